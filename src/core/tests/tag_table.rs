//! The table of tags compared with a map: random operations, and colliding tags.

#![cfg(not(leaf_id_loom))]

use std::collections::HashMap;

use leaf_id_core::tag_table::{Known, TagTable};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Model of the table.
type Model = HashMap<Vec<u8>, Known>;

const SEEDS: [u64; 2] = [0x0123_4567_89AB_CDEF, 0xFEDC_BA98_7654_3210];

/// Something that is known of a tag.
fn known(number: u32) -> Known {
    Known {
        link: number,
        version: u64::from(number) << 32,
        caller: number as u8,
    }
}

/// A tag of any length, similar to others of the same length.
fn tag(rng: &mut StdRng, longest: usize) -> Vec<u8> {
    let mut tag = vec![rng.random_range(0..3); rng.random_range(1..=longest)];
    for _ in 0..rng.random_range(0..3) {
        let place = rng.random_range(0..tag.len());
        tag[place] = rng.random_range(0..3);
    }
    tag
}

fn run(seed: u64, longest: usize, steps: u32) {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut table = TagTable::new([rng.random(), rng.random()]);
    let mut model = Model::new();
    for step in 0..steps {
        let tag = tag(&mut rng, longest);
        match rng.random_range(0..20) {
            0..10 => {
                let known = known(rng.random());
                table.insert(&tag, known);
                model.insert(tag.clone(), known);
            }
            10..15 => {
                table.remove(&tag);
                model.remove(&tag);
            }
            _ => {}
        }
        if step % 3_000 == 2_999 {
            table.clear();
            model.clear();
        }
        let seen = (table.get(&tag), table.len(), table.is_empty());
        let expected = (model.get(&tag).copied(), model.len(), model.is_empty());
        assert_eq!(seen, expected, "seed {seed}, step {step}, {tag:?}");
    }
    for (tag, expected) in &model {
        assert_eq!(table.get(tag), Some(*expected), "seed {seed}, {tag:?}");
    }
}

#[test]
fn a_table_is_a_map() {
    for seed in 0..10 {
        // Within an entry's words; mostly longer; all lengths.
        for longest in [3, 8, 16, 24, 26, 255] {
            run(seed, longest, 10_000);
        }
    }
}

#[test]
fn what_is_no_tag_is_never_in_it() {
    let mut table = TagTable::new(SEEDS);
    for bytes in [&[][..], &[7; 256]] {
        table.insert(bytes, known(1));
        assert_eq!((table.get(bytes), table.len()), (None, 0));
    }
    table.insert(&[7; 255], known(1));
    assert_eq!(table.get(&[7; 255]), Some(known(1)));
    assert_eq!(table.get(&[7; 256]), None);
}

/// Tags in which each byte matters, of any length.
#[test]
fn tags_that_differ_in_one_byte_are_two() {
    for len in 1..=40 {
        let mut table = TagTable::new(SEEDS);
        table.insert(&vec![b'a'; len], known(1));
        for place in 0..len {
            let mut other = vec![b'a'; len];
            other[place] = b'b';
            assert_eq!(table.get(&other), None, "byte {place} of {len}");
            table.insert(&other, known(2));
        }
        assert_eq!(table.len(), len + 1);
        assert_eq!(table.get(&vec![b'a'; len]), Some(known(1)));
    }
}

/// With seeds that no session has, a table keeps all tags, however many.
#[test]
fn a_quarter_of_a_million_tags_are_all_remembered() {
    let mut rng = StdRng::seed_from_u64(13);
    let mut table = TagTable::new([rng.random(), rng.random()]);
    for i in 0..250_000 {
        table.insert(format!("tag-{i}").as_bytes(), known(i));
    }
    assert_eq!(table.len(), 250_000);
    for i in 0..250_000 {
        let found = table.get(format!("tag-{i}").as_bytes());
        assert_eq!(found, Some(known(i)));
    }
}

/// A tag with the same hash as others, constructed from the seeds: the first factor is 0 for tags
/// that begin with the first seed.
fn colliding(i: u32) -> Vec<u8> {
    let mut tag = SEEDS[0].to_le_bytes().to_vec();
    tag.extend_from_slice(format!("{i:08}").as_bytes());
    // Not counted in the middle word.
    tag.truncate(15);
    tag
}

/// Tags with the same hash are distinguished, up to the capacity of their buckets. Beyond that the
/// table evicts some, but confuses none and does not grow.
#[test]
fn tags_that_collide_are_forgotten_and_never_confused() {
    let mut table = TagTable::new(SEEDS);
    for i in 0..10_000 {
        table.insert(&colliding(i * 10), known(i));
        assert_eq!(table.get(&colliding(i * 10)), Some(known(i)));
        assert_eq!(table.len(), (i as usize + 1).min(64));
    }
    let remembered = (0..10_000).filter(|i| {
        let found = table.get(&colliding(i * 10));
        assert!(found.is_none_or(|found| found == known(*i)));
        found.is_some()
    });
    assert_eq!(remembered.count(), 64);
    for i in 0..10_000 {
        table.remove(&colliding(i * 10));
    }
    assert!(table.is_empty());
}
