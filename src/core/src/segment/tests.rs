//! Wraparound of the generation, which takes years from outside. Would catch: a buffer that becomes
//! valid again, or takes that stop, at 2^32.
#![allow(clippy::unwrap_used, reason = "a test that panics fails")]

use super::*;

/// An empty buffer in version 1.
fn at_generation(generation: u32) -> DoubleBuffer {
    let buffer = DoubleBuffer::new();
    let before = pack(generation.wrapping_sub(2), 0);
    buffer.word.store(before, Ordering::Relaxed);
    buffer.invalidate();
    buffer
}

#[test]
fn ids_go_on_when_the_generation_goes_around() {
    for start in u32::MAX - 5..=u32::MAX {
        let buffer = at_generation(start);
        let mut version = 1;
        for i in 0..10 {
            let first = 1 + 2 * i;
            buffer.publish(version, first, 2).unwrap();
            let full = buffer.publish(version, first + 2, 2);
            assert_eq!(full, Err(Refused::Full));
            assert_eq!(buffer.take(version).unwrap().first, first);
            assert_eq!(buffer.take_range(version, 1).unwrap().first, first + 1);
            assert_eq!(buffer.take(version), Err(Miss::Empty));
            if i % 3 == 2 {
                buffer.invalidate();
                version += 1;
            }
        }
    }
}

#[test]
fn an_invalidation_across_the_end_revives_nothing() {
    for start in u32::MAX - 3..=u32::MAX {
        let buffer = at_generation(start);
        buffer.publish(1, 1, 10).unwrap();
        buffer.take(1).unwrap();
        buffer.publish(1, 11, 10).unwrap();
        assert_eq!(buffer.invalidate().count(), 19);
        assert_eq!(buffer.take(2), Err(Miss::Empty));
        assert_eq!(buffer.take_range(2, 1), Err(Miss::Empty));
    }
}

#[test]
fn a_buffer_never_filled_again_stays_dead_when_its_generation_returns() {
    // Edits of an unused tag: 2^31 invalidations in a row.
    let buffer = DoubleBuffer::new();
    buffer.publish(0, 1, 10).unwrap();
    buffer.take(0).unwrap();
    buffer.publish(0, 11, 10).unwrap();
    let returning = buffer.word.load(Ordering::Relaxed);
    let mut version = 0;
    for generation in [generation(returning), generation(returning) - 1] {
        buffer.invalidate();
        let before = pack(generation.wrapping_sub(2), offset(returning));
        buffer.word.store(before, Ordering::Relaxed);
        buffer.invalidate();
        version += 2;
        assert_eq!(buffer.take(version), Err(Miss::Empty));
        assert_eq!(buffer.remainders(), Remainders::default());
        assert!(!buffer.has_spare());
    }
}
