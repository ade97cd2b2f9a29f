//! The double buffer against a small model, single-threaded, seeded.
//!
//! Would catch: any result of the double buffer that differs from its documentation: a spare
//! requested too early, too late or not at all; an id from an invalidated or used-up buffer; a
//! publication that should be refused; ids that are neither issued, lost nor left.

#![cfg(not(leaf_id_loom))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics fails"
)]

mod support;

use leaf_id_core::segment::{DoubleBuffer, MAX_LEN, Miss, Refused, Remainder, Remainders, Taken};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A segment and its used part.
#[derive(Debug, Clone, Copy)]
struct Segment {
    first: i64,
    len: u32,
    used: u32,
}

impl Segment {
    fn left(&self) -> u32 {
        self.len - self.used
    }

    fn rest(&self) -> Option<Remainder> {
        (self.left() > 0).then(|| Remainder {
            first: self.first + i64::from(self.used),
            last: self.first + i64::from(self.len) - 1,
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Request {
    Idle,
    Wanted,
    InFlight,
}

/// Model of the double buffer's contract.
#[derive(Debug)]
struct Model {
    version: u64,
    current: Option<Segment>,
    spare: Option<Segment>,
    high: i64,
    request: Request,
    range_len: u32,
}

impl Model {
    fn new() -> Self {
        Self {
            version: 0,
            current: None,
            spare: None,
            high: 0,
            request: Request::Idle,
            range_len: 0,
        }
    }

    fn left(&self) -> u32 {
        self.current.map_or(0, |s| s.left())
    }

    fn take_up_to(&mut self, version: u64, n: u32) -> Result<Taken, Miss> {
        if version != self.version {
            return Err(Miss::Changed);
        }
        if self.left() == 0 {
            self.current = Some(self.spare.take().ok_or(Miss::Empty)?);
        }
        Ok(self.cut(n.min(self.left()), 0))
    }

    fn take_range(&mut self, version: u64, n: u32) -> Result<Taken, Miss> {
        if version != self.version {
            return Err(Miss::Changed);
        }
        if n <= self.left() {
            return Ok(self.cut(n, 0));
        }
        let spare = self.spare.take().ok_or(Miss::Empty)?;
        let lost = self.left();
        self.current = Some(spare);
        if n <= spare.len {
            Ok(self.cut(n, lost))
        } else {
            Err(Miss::Short { lost })
        }
    }

    fn cut(&mut self, count: u32, lost: u32) -> Taken {
        let current = self.current.as_mut().expect("it holds ids");
        let first = current.first + i64::from(current.used);
        current.used += count;
        let tenth = current.len.div_ceil(10);
        Taken {
            first,
            count,
            spare_due: current.used >= tenth
                && self.spare.is_none()
                && self.request == Request::Idle,
            lost,
        }
    }

    fn publish(&mut self, version: u64, first: i64, len: u32) -> Result<(), Refused> {
        if version != self.version {
            return Err(Refused::Changed);
        }
        if first < self.high {
            return Err(Refused::OutOfOrder);
        }
        if self.spare.is_some() {
            return Err(Refused::Full);
        }
        self.spare = Some(Segment {
            first,
            len,
            used: 0,
        });
        self.high = first + i64::from(len);
        Ok(())
    }

    fn invalidate(&mut self) -> Remainders {
        let remainders = self.remainders();
        self.version += 1;
        self.current = None;
        self.spare = None;
        self.high = 0;
        self.range_len = 0;
        remainders
    }

    fn remainders(&self) -> Remainders {
        Remainders {
            current: self.current.and_then(|s| s.rest()),
            spare: self.spare.and_then(|s| s.rest()),
            current_segment: self.current.map(|s| (s.first, s.len)),
        }
    }

    fn want(&mut self) -> bool {
        let idle = self.request == Request::Idle;
        if idle {
            self.request = Request::Wanted;
        }
        idle
    }

    fn accept(&mut self) -> Option<u32> {
        (self.request == Request::Wanted).then(|| {
            self.request = Request::InFlight;
            core::mem::take(&mut self.range_len)
        })
    }
}

/// Runs both through the same random calls and compares all results and all observable state. Ids
/// are counted: none may vanish or appear.
fn simulate(seed: u64, calls: u32) {
    let mut random = StdRng::seed_from_u64(seed);
    let buffer = DoubleBuffer::new();
    let mut model = Model::new();
    let mut requests = Vec::new();
    let (mut published, mut gone) = (0_u64, 0_u64);
    // Last id issued in this version; the next one must be larger (I4).
    let mut last_id = 0;
    for call in 0..calls {
        let version = match random.random_range(0..20) {
            0 => model.version.wrapping_sub(1),
            1 => model.version + 1,
            _ => model.version,
        };
        let n = match random.random_range(0..20) {
            0 => random.random_range(1..=u32::MAX),
            1..4 => random.random_range(1..=2_000),
            _ => random.random_range(1..=20),
        };
        let mut took = |taken: &Result<Taken, Miss>| match taken {
            Ok(taken) => {
                assert!(taken.first > last_id && taken.count > 0);
                last_id = taken.first + i64::from(taken.count) - 1;
                gone += u64::from(taken.count) + u64::from(taken.lost);
            }
            Err(Miss::Short { lost }) => gone += u64::from(*lost),
            Err(_) => (),
        };
        match random.random_range(0..100) {
            0..40 => {
                let taken = buffer.take(version);
                took(&taken);
                assert_eq!(taken, model.take_up_to(version, 1), "call {call}: take");
            }
            40..55 => {
                let taken = buffer.take_up_to(version, n);
                took(&taken);
                assert_eq!(
                    taken,
                    model.take_up_to(version, n),
                    "call {call}: up to {n}"
                );
            }
            55..65 => {
                let taken = buffer.take_range(version, n);
                took(&taken);
                assert_eq!(
                    taken,
                    model.take_range(version, n),
                    "call {call}: range {n}"
                );
            }
            65..85 => {
                let first = match random.random_range(0..10) {
                    0 => random.random_range(1..=model.high.max(1)),
                    1..4 => model.high.max(1) + random.random_range(0..1_000),
                    _ => model.high.max(1),
                };
                let len = match random.random_range(0..20) {
                    0 => MAX_LEN,
                    1..5 => random.random_range(1..=2_000),
                    _ => random.random_range(1..=40),
                };
                let result = buffer.publish(version, first, len);
                assert_eq!(
                    result,
                    model.publish(version, first, len),
                    "call {call}: publish"
                );
                if result.is_ok() {
                    published += u64::from(len);
                }
            }
            85..87 => {
                let remainders = buffer.invalidate();
                gone += remainders.count();
                last_id = 0;
                assert_eq!(remainders, model.invalidate(), "call {call}: invalidate");
            }
            87..90 => assert_eq!(buffer.want(), model.want(), "call {call}: want"),
            90..93 => {
                model.range_len = model.range_len.max(n);
                assert_eq!(buffer.want_range(n), model.want(), "call {call}: want {n}");
            }
            93..96 => {
                let accepted = buffer.accept();
                let range_len = accepted.map(|request| request.range_len);
                assert_eq!(range_len, model.accept(), "call {call}: accept");
                requests.extend(accepted);
            }
            96 => {
                let free = model.request != Request::Wanted;
                assert_eq!(buffer.close(), free, "call {call}: close");
                if free {
                    model.request = Request::Idle;
                }
            }
            97 if model.request == Request::Wanted => {
                buffer.withdraw();
                model.request = Request::Idle;
            }
            _ => {
                // Any earlier request; only the last one can be open.
                let last = requests.len().saturating_sub(1);
                let which = random.random_range(last.saturating_sub(2)..=last);
                if let Some(request) = requests.get(which) {
                    buffer.clear(request);
                    if which == last && model.request == Request::InFlight {
                        model.request = Request::Idle;
                    }
                }
            }
        }
        assert_eq!(buffer.version(), model.version, "call {call}");
        assert_eq!(buffer.high(), model.high, "call {call}");
        assert_eq!(buffer.remainders(), model.remainders(), "call {call}");
        assert_eq!(buffer.has_spare(), model.spare.is_some(), "call {call}");
        assert_eq!(buffer.is_requested(), model.request != Request::Idle);
        assert_eq!(buffer.is_wanted(), model.request == Request::Wanted);
        for (number, request) in requests.iter().enumerate().rev().take(3) {
            let open = model.request == Request::InFlight && number + 1 == requests.len();
            assert_eq!(buffer.is_in_flight(request), open, "call {call}");
        }
        assert_eq!(gone + model.remainders().count(), published, "call {call}");
    }
}

#[test]
fn every_answer_is_the_models() {
    let seed = support::seed();
    for i in 0..20 {
        println!("run {i}");
        simulate(seed.wrapping_add(i), 10_000);
    }
}

fn filled(first: i64, len: u32) -> DoubleBuffer {
    let buffer = DoubleBuffer::new();
    buffer.publish(0, first, len).unwrap();
    buffer
}

fn ids(taken: Result<Taken, Miss>) -> (i64, u32) {
    let taken = taken.unwrap();
    (taken.first, taken.count)
}

mod the_spare_is_due {
    use super::*;

    /// The single take from a buffer of `len` ids that first reports the spare due.
    fn first_due(len: u32) -> Option<u32> {
        let buffer = filled(1, len);
        (1..=len).find(|_| buffer.take(0).unwrap().spare_due)
    }

    #[test]
    fn at_ten_percent() {
        assert_eq!(first_due(1_000), Some(100));
        assert_eq!(first_due(1_001), Some(101));
        assert_eq!(first_due(999), Some(100));
        assert_eq!(first_due(20), Some(2));
        assert_eq!(first_due(11), Some(2));
    }

    #[test]
    fn at_the_first_take_of_a_tiny_buffer() {
        for len in 1..=10 {
            assert_eq!(first_due(len), Some(1), "{len}");
        }
    }

    #[test]
    fn past_ten_percent_whatever_step_led_there() {
        let past = |buffer: DoubleBuffer| buffer.take(0).unwrap().spare_due;
        let buffer = filled(1, 1_000);
        assert!(!buffer.take_up_to(0, 99).unwrap().spare_due);
        assert!(buffer.take_up_to(0, 51).unwrap().spare_due, "jumped over");
        assert!(past(buffer), "and still is until a session asks");
        let buffer = filled(1, 1_000);
        assert!(buffer.take_range(0, 700).unwrap().spare_due);
        assert!(past(buffer));
        // A range that continued into the spare is judged by the spare.
        let buffer = filled(1, 10);
        ids(buffer.take(0));
        buffer.publish(0, 11, 1_000).unwrap();
        assert!(!buffer.take_range(0, 99).unwrap().spare_due);
        assert!(past(buffer));
    }

    #[test]
    fn until_it_is_asked_for_and_again_if_that_failed() {
        let buffer = filled(1, 1_000);
        let due = || buffer.take(0).unwrap().spare_due;
        ids(buffer.take_up_to(0, 500));
        assert!(due());
        assert!(buffer.want());
        assert!(!due(), "wanted");
        let request = buffer.accept().unwrap();
        assert!(!due(), "in flight");
        buffer.clear(&request);
        assert!(due(), "cleared without an answer");
        buffer.publish(0, 1_001, 10).unwrap();
        assert!(!due(), "there");
    }

    #[test]
    fn for_the_longest_segment_as_well() {
        let buffer = filled(1, MAX_LEN);
        assert!(!buffer.take_up_to(0, MAX_LEN / 10).unwrap().spare_due);
        assert!(buffer.take(0).unwrap().spare_due);
    }
}

mod taking {
    use super::*;

    #[test]
    fn goes_through_the_segments_in_order() {
        let buffer = filled(10, 2);
        assert_eq!(ids(buffer.take(0)), (10, 1));
        buffer.publish(0, 50, 2).unwrap();
        assert_eq!(ids(buffer.take(0)), (11, 1));
        assert_eq!(ids(buffer.take(0)), (50, 1));
        buffer.publish(0, 52, 1).unwrap();
        assert_eq!(
            ids(buffer.take_up_to(0, 9)),
            (51, 1),
            "a run ends with its segment"
        );
        assert_eq!(ids(buffer.take_up_to(0, 9)), (52, 1));
        for miss in [
            buffer.take(0),
            buffer.take_up_to(0, 1),
            buffer.take_range(0, 1),
        ] {
            assert_eq!(miss, Err(Miss::Empty));
        }
    }

    #[test]
    fn from_a_new_buffer_finds_nothing() {
        let buffer = DoubleBuffer::new();
        assert_eq!(buffer.take(0), Err(Miss::Empty));
        assert_eq!(buffer.take_up_to(0, 1), Err(Miss::Empty));
        assert_eq!(buffer.take_range(0, 1), Err(Miss::Empty));
        assert_eq!(buffer.remainders(), Remainders::default());
    }

    #[test]
    fn too_much_and_too_often_does_not_carry_into_the_generation() {
        let buffer = filled(1, MAX_LEN);
        assert_eq!(ids(buffer.take_up_to(0, 7)), (1, 7));
        for n in [MAX_LEN, u32::MAX, 1 << 31] {
            let _ = buffer.take_up_to(0, n);
        }
        let used_up = buffer.mark();
        for _ in 0..3 {
            assert_eq!(buffer.take_up_to(0, u32::MAX), Err(Miss::Empty));
            assert_eq!(buffer.take_range(0, u32::MAX), Err(Miss::Empty));
            assert_eq!(buffer.take(0), Err(Miss::Empty));
        }
        assert_eq!(buffer.mark(), used_up, "an empty buffer is left alone");
        assert_eq!(buffer.remainders().current_segment, Some((1, MAX_LEN)));
    }

    #[test]
    fn the_last_ids_of_bigint() {
        const LAST: i64 = i64::MAX - 1;
        let buffer = filled(LAST - 2, 3);
        assert_eq!(
            buffer.remainders().spare,
            Some(Remainder {
                first: LAST - 2,
                last: LAST
            })
        );
        assert_eq!(ids(buffer.take(0)), (LAST - 2, 1));
        assert_eq!(ids(buffer.take_range(0, 2)), (LAST - 1, 2));
        assert_eq!(buffer.high(), i64::MAX);
        assert_eq!(buffer.publish(0, LAST, 1), Err(Refused::OutOfOrder));
    }
}

mod a_range {
    use super::*;

    #[test]
    fn that_fits_loses_nothing() {
        let buffer = filled(1, 10);
        let taken = buffer.take_range(0, 10).unwrap();
        assert_eq!((taken.first, taken.count, taken.lost), (1, 10, 0));
    }

    #[test]
    fn that_does_not_fit_gives_the_rest_up_for_the_spares_head() {
        let buffer = filled(1, 10);
        ids(buffer.take_up_to(0, 7));
        buffer.publish(0, 100, 20).unwrap();
        let taken = buffer.take_range(0, 4).unwrap();
        assert_eq!((taken.first, taken.count, taken.lost), (100, 4, 3));
        assert_eq!(
            ids(buffer.take(0)),
            (104, 1),
            "no session gets an id of the rest"
        );
    }

    #[test]
    fn that_waits_for_a_spare_leaves_the_rest_to_others() {
        let buffer = filled(1, 10);
        ids(buffer.take(0));
        assert_eq!(buffer.take_range(0, 10), Err(Miss::Empty));
        assert_eq!(ids(buffer.take(0)), (2, 1));
    }

    #[test]
    fn longer_than_the_spare_makes_room_and_says_what_that_cost() {
        let buffer = filled(1, 10);
        ids(buffer.take_up_to(0, 7));
        buffer.publish(0, 11, 10).unwrap();
        assert_eq!(buffer.take_range(0, 15), Err(Miss::Short { lost: 3 }));
        assert_eq!(buffer.take_range(0, 15), Err(Miss::Empty), "once");
        assert_eq!(ids(buffer.take(0)), (11, 1), "others go on");
        buffer.publish(0, 21, 15).unwrap();
        let taken = buffer.take_range(0, 15).unwrap();
        assert_eq!((taken.first, taken.count, taken.lost), (21, 15, 9));
    }
}

mod a_publication {
    use super::*;

    /// Checks that a publication is refused and changes nothing.
    fn refused(buffer: &DoubleBuffer, version: u64, first: i64, why: Refused) {
        let before = (
            buffer.remainders(),
            buffer.high(),
            buffer.mark(),
            buffer.version(),
        );
        assert_eq!(buffer.publish(version, first, 5), Err(why));
        let after = (
            buffer.remainders(),
            buffer.high(),
            buffer.mark(),
            buffer.version(),
        );
        assert_eq!(before, after);
    }

    #[test]
    fn of_another_life_is_refused() {
        let buffer = filled(1, 10);
        ids(buffer.take(0));
        refused(&buffer, 1, 11, Refused::Changed);
        buffer.invalidate();
        refused(&buffer, 0, 11, Refused::Changed);
        buffer.publish(1, 11, 5).unwrap();
    }

    #[test]
    fn below_what_was_published_is_refused() {
        let buffer = filled(1, 10);
        ids(buffer.take_up_to(0, 10));
        for first in [1, 5, 10] {
            refused(&buffer, 0, first, Refused::OutOfOrder);
        }
        buffer.publish(0, 11, 5).unwrap();
    }

    #[test]
    fn over_a_spare_is_refused() {
        let buffer = filled(1, 10);
        refused(&buffer, 0, 11, Refused::Full);
        ids(buffer.take(0));
        buffer.publish(0, 11, 5).unwrap();
        refused(&buffer, 0, 16, Refused::Full);
    }

    #[test]
    fn after_an_invalidation_may_start_lower() {
        // A tag after leaf_tag_reset(), or a slot given to another tag.
        let buffer = filled(1_000, 10);
        buffer.invalidate();
        assert_eq!(buffer.high(), 0);
        buffer.publish(1, 1, 5).unwrap();
        assert_eq!(ids(buffer.take(1)), (1, 1));
    }
}

mod an_invalidation {
    use super::*;

    #[test]
    fn hands_out_both_remainders_and_revives_neither_buffer() {
        // The spare used, then unused, then neither buffer filled.
        for taken in [3, 10] {
            let buffer = filled(1, 10);
            ids(buffer.take_up_to(0, taken));
            buffer.publish(0, 11, 10).unwrap();
            let remainders = buffer.invalidate();
            assert_eq!(
                remainders.current,
                (taken < 10).then_some(Remainder { first: 4, last: 10 })
            );
            assert_eq!(
                remainders.spare,
                Some(Remainder {
                    first: 11,
                    last: 20
                })
            );
            assert_eq!(remainders.count(), u64::from(20 - taken));
            for version in [0, 1] {
                let miss = if version == 1 {
                    Miss::Empty
                } else {
                    Miss::Changed
                };
                assert_eq!(buffer.take(version), Err(miss));
                assert_eq!(buffer.take_up_to(version, 5), Err(miss));
                assert_eq!(buffer.take_range(version, 5), Err(miss));
            }
            assert_eq!(buffer.remainders(), Remainders::default());
            assert_eq!(buffer.invalidate(), Remainders::default(), "twice is once");
            assert!(!buffer.has_spare());
        }
    }

    #[test]
    fn many_in_a_row_revive_nothing_either() {
        let buffer = filled(1, 10);
        ids(buffer.take(0));
        buffer.publish(0, 11, 10).unwrap();
        for version in 1..10 {
            buffer.invalidate();
            assert_eq!(buffer.take(version), Err(Miss::Empty));
        }
        buffer.publish(9, 31, 2).unwrap();
        assert_eq!(ids(buffer.take_up_to(9, 9)), (31, 2));
        assert_eq!(buffer.take(9), Err(Miss::Empty));
    }

    #[test]
    fn keeps_the_request_and_drops_the_wish() {
        let buffer = filled(1, 10);
        assert!(buffer.want_range(500));
        buffer.invalidate();
        assert!(buffer.is_requested());
        assert_eq!(buffer.accept().unwrap().range_len, 0);
    }
}

mod a_request {
    use super::*;

    #[test]
    fn has_one_asker_one_taker_and_an_end() {
        let buffer = DoubleBuffer::new();
        assert_eq!(buffer.accept(), None);
        assert!(buffer.want());
        assert!(!buffer.want(), "one session wakes the allocator");
        assert!(buffer.is_wanted());
        let request = buffer.accept().unwrap();
        assert!(buffer.is_in_flight(&request) && !buffer.is_wanted());
        assert_eq!(buffer.accept(), None, "one allocator claims");
        assert!(!buffer.want(), "it is on its way");
        buffer.clear(&request);
        assert!(!buffer.is_requested() && !buffer.is_in_flight(&request));
        assert!(buffer.want());
        buffer.withdraw();
        assert_eq!(buffer.accept(), None);
        assert!(buffer.want());
    }

    #[test]
    fn is_closed_over_its_allocators_head_once_it_has_one() {
        let buffer = DoubleBuffer::new();
        assert!(buffer.close(), "there is none");
        assert!(buffer.want());
        assert!(!buffer.close(), "it may be linked into a list");
        let old = buffer.accept().unwrap();
        assert!(buffer.close());
        assert!(!buffer.is_requested() && !buffer.is_in_flight(&old));
        assert!(buffer.want());
        buffer.clear(&old);
        assert!(buffer.is_wanted(), "the next one is not its own");
        let new = buffer.accept().unwrap();
        assert_ne!(old, new);
        buffer.clear(&old);
        assert!(buffer.is_in_flight(&new));
        buffer.clear(&new);
        assert!(!buffer.is_requested());
    }

    #[test]
    fn carries_the_longest_range_once() {
        let buffer = DoubleBuffer::new();
        assert!(buffer.want_range(30));
        assert!(!buffer.want_range(70));
        assert!(!buffer.want_range(50));
        let request = buffer.accept().unwrap();
        assert_eq!(request.range_len, 70);
        assert!(!buffer.want_range(20), "too late for this claim");
        buffer.clear(&request);
        assert!(buffer.want());
        assert_eq!(buffer.accept().unwrap().range_len, 20, "but not forgotten");
    }
}
