//! Snowflake ids: their layout, their order, and when none are issued.
//!
//! Would catch: an id issued twice or out of order (I4) within a millisecond, between sessions or
//! across a change of the worker id; an id above the reservation, or from a word that is closed or
//! was never opened (I7); a clock that seems to have gone back because another session was faster;
//! an id beyond the layout's bits (I8); a call that waits for a clock that is behind.

#![cfg(not(leaf_id_loom))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics fails"
)]

mod support;

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;

use leaf_id_core::layout::{Layout, Parts};
use leaf_id_core::snowflake::{
    DEFAULT_EPOCH_MS, Full, Generator, Issued, Lead, START_SPREAD, Stall,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const WORKER: u16 = 5;
const LAYOUT: Layout = Layout::DEFAULT;
const MAX_MS: i64 = (1 << 41) - 1;
const MAX_WORKER_ID: u16 = (1 << 10) - 1;
const MAX_SEQUENCE: u16 = (1 << 12) - 1;

/// Open just below `ms`, with a reservation far ahead.
fn open_before(ms: i64) -> Generator {
    let generator = Generator::new(LAYOUT);
    generator.reserve(MAX_MS);
    generator.open(WORKER, ms - 1);
    generator
}

/// Issues like a session: by the fast path if possible.
fn at(generator: &Generator, ms: i64) -> Result<i64, Stall> {
    generator
        .next_at_once(|| ms)
        .map_or_else(|| slowly(generator, ms, 0), Ok)
}

/// The first id of a millisecond, with this sequence.
fn slowly(generator: &Generator, ms: i64, start: u16) -> Result<i64, Stall> {
    let issued = generator.next(|| ms, |_| start, None);
    issued.map(|issued| issued.id)
}

/// The millisecond is full; the next one may begin at that time.
fn full(generator: &Generator, until_ms: i64) -> Result<i64, Stall> {
    Err(Stall::Full(Full {
        ms: generator.last().ms,
        found_at_ms: until_ms - 1,
    }))
}

fn parts(id: i64) -> Parts {
    LAYOUT.decompose(id).unwrap()
}

mod layout {
    use super::*;

    #[test]
    fn a_public_id_of_twitters_decodes_as_known() {
        // The worked example of Wikipedia's article "Snowflake ID".
        let id = 1_541_815_603_606_036_480;
        assert_eq!(
            parts(id),
            Parts {
                ms: 367_597_485_448,
                worker_id: 378,
                sequence: 0
            }
        );
        assert_eq!(LAYOUT.compose(parts(id)), id);
        // 2022-06-28 16:07:40.105 UTC
        assert_eq!(parts(id).ms + DEFAULT_EPOCH_MS, 1_656_432_460_105);
    }

    #[test]
    fn each_part_has_its_bits() {
        let id = |ms, worker_id, sequence| {
            LAYOUT.compose(Parts {
                ms,
                worker_id,
                sequence,
            })
        };
        assert_eq!(id(0, 0, 0), 0);
        assert_eq!(id(0, 0, 1), 1);
        assert_eq!(id(0, 1, 0), 1 << 12);
        assert_eq!(id(1, 0, 0), 1 << 22);
        assert_eq!(id(0, 0, MAX_SEQUENCE), 0xfff);
        assert_eq!(id(0, MAX_WORKER_ID, 0), 0x3ff << 12);
        assert_eq!(id(MAX_MS, MAX_WORKER_ID, MAX_SEQUENCE), i64::MAX);
    }

    #[test]
    fn a_negative_number_is_no_id() {
        assert_eq!(LAYOUT.decompose(-1), None);
        assert_eq!(LAYOUT.decompose(i64::MIN), None);
    }
}

mod issuing {
    use super::*;

    #[test]
    fn at_once_comes_only_what_the_last_millisecond_still_holds() {
        let zeroed = Generator::new(LAYOUT);
        assert_eq!(zeroed.next_at_once(|| 0), None);
        let generator = open_before(1_000);
        let at_once = |ms| generator.next_at_once(|| ms);
        // A new millisecond has a random start, and checks the reservation.
        assert_eq!(at_once(999), None);
        assert_eq!(at_once(1_000), None);
        let first = slowly(&generator, 1_000, 0).unwrap();
        assert_eq!(at_once(1_000), Some(first + 1));
        assert_eq!(at_once(1_001), None);
        assert_eq!(at_once(999), None);
        for sequence in 2..=i64::from(MAX_SEQUENCE) {
            assert_eq!(at_once(1_000), Some(first + sequence));
        }
        assert_eq!(at_once(1_000), None);
        assert_eq!(at(&generator, 1_000), full(&generator, 1_001));
        let id = at(&generator, 1_001).unwrap();
        generator.close();
        assert_eq!(at_once(1_001), None);
        generator.reserve(MAX_MS);
        generator.open(WORKER, 0);
        assert_eq!(at_once(1_001), None);
        assert!(at(&generator, 1_002).unwrap() > id);
    }

    #[test]
    fn ids_of_others_while_the_clock_is_read_do_not_make_it_slow() {
        let generator = open_before(1_000);
        let first = slowly(&generator, 1_000, 0).unwrap();
        let id = generator.next_at_once(|| {
            assert_eq!(at(&generator, 1_000), Ok(first + 1));
            1_000
        });
        assert_eq!(id, Some(first + 2));
        // A millisecond that another session has begun concurrently is left to the slow path.
        let id = generator.next_at_once(|| {
            slowly(&generator, 1_001, 0).unwrap();
            1_000
        });
        assert_eq!(id, None);
    }

    #[test]
    fn a_new_millisecond_starts_at_the_given_number_and_counts_up() {
        let generator = open_before(1_000);
        let first = slowly(&generator, 1_000, START_SPREAD - 1).unwrap();
        assert_eq!(
            parts(first),
            Parts {
                ms: 1_000,
                worker_id: WORKER,
                sequence: START_SPREAD - 1
            }
        );
        // The random start applies to new milliseconds only.
        assert_eq!(at(&generator, 1_000), Ok(first + 1));
        assert_eq!(at(&generator, 1_000), Ok(first + 2));
        assert_eq!(parts(at(&generator, 1_001).unwrap()).sequence, 0);
        assert_eq!(generator.last().ms, 1_001);
    }

    #[test]
    fn a_millisecond_has_4096_ids_and_then_the_next_one_goes_on() {
        let generator = open_before(1_000);
        let mut last = 0;
        for _ in 0..4_096 {
            let id = at(&generator, 1_000).unwrap();
            assert!(id > last);
            last = id;
        }
        assert_eq!(at(&generator, 1_000), full(&generator, 1_001));
        assert_eq!(
            at(&generator, 1_000),
            full(&generator, 1_001),
            "never into the next"
        );
        assert!(at(&generator, 1_001).unwrap() > last);
    }

    #[test]
    fn nothing_above_the_reservation_is_issued() {
        let generator = Generator::new(LAYOUT);
        generator.open(WORKER, 999);
        assert_eq!(at(&generator, 1_000), Err(Stall::Unreserved));
        generator.reserve(1_001);
        assert!(at(&generator, 1_001).is_ok());
        assert_eq!(at(&generator, 1_002), Err(Stall::Unreserved));
        generator.reserve(500);
        assert_eq!(generator.reserved_until(), 1_001, "never lowered");
        assert!(at(&generator, 1_001).is_ok());
    }

    #[test]
    fn ids_are_counted_by_the_word() {
        let generator = open_before(1_000);
        assert_eq!(generator.issued(), 0, "opened, and none issued");
        let mut random = StdRng::seed_from_u64(support::seed());
        let (mut ms, mut issued) = (1_000, 0);
        for _ in 0..20_000 {
            match random.random_range(0..100) {
                0 => generator.open(random.random_range(0..9), ms),
                1 => {
                    generator.close();
                    generator.rewind(WORKER, ms - 5);
                    generator.reserve(MAX_MS);
                    generator.open(WORKER, 0);
                }
                _ => {
                    ms += random.random_range(0..2);
                    issued += u64::from(at(&generator, ms).is_ok());
                }
            }
            assert_eq!(generator.issued(), issued);
        }
        assert!(issued > 10_000);
    }

    #[test]
    fn a_small_layout_has_few_ids_a_millisecond() {
        let layout = Layout::parse("41/6/6").unwrap();
        let generator = Generator::new(layout);
        generator.reserve(MAX_MS);
        generator.open(63, 999);
        let mut most = 0;
        let first = generator.next(
            || 1_000,
            |spread| {
                most = spread;
                0
            },
            None,
        );
        assert_eq!(most, 15, "a quarter of them");
        let first = first.unwrap().id;
        let expected = Parts {
            ms: 1_000,
            worker_id: 63,
            sequence: 0,
        };
        assert_eq!(layout.decompose(first), Some(expected));
        for sequence in 1..64 {
            assert_eq!(at(&generator, 1_000), Ok(first + sequence));
        }
        assert_eq!(at(&generator, 1_000), full(&generator, 1_001));
    }

    #[test]
    fn time_ends_with_its_bits() {
        let generator = open_before(MAX_MS);
        let last = slowly(&generator, MAX_MS, MAX_SEQUENCE).unwrap();
        assert_eq!(last >> 22, MAX_MS);
        assert!(last > 0);
        assert_eq!(at(&generator, MAX_MS), full(&generator, MAX_MS + 1));
        assert_eq!(at(&generator, MAX_MS + 1), Err(Stall::EndOfTime));
        assert_eq!(at(&generator, i64::MAX), Err(Stall::EndOfTime));
        generator.open(WORKER, i64::MAX);
        assert_eq!(
            at(&generator, MAX_MS),
            full(&generator, MAX_MS + 1),
            "no floor goes beyond"
        );
    }

    #[test]
    fn the_clock_is_read_after_the_word() {
        // Another session issues in a later millisecond while this one reads the clock. Read before
        // the word, the clock would seem to have gone back.
        let generator = open_before(1_000);
        let clock = Cell::new(1_000);
        let mut other = None;
        let id = generator.next(
            || {
                let read = clock.get();
                if other.is_none() {
                    clock.set(1_001);
                    other = Some(at(&generator, 1_001).unwrap());
                }
                read
            },
            |_| 0,
            None,
        );
        assert_eq!(id.map(|issued| issued.id), Ok(other.unwrap() + 1));
    }
}

mod lead {
    //! Would catch: a call that waits without need for a clock that is behind; a lead increased by
    //! load; an id beyond the bound or the reservation.

    use super::*;

    const LEAD: Lead = Lead {
        max_ms: 150,
        burst_ms: 0,
    };

    /// Open at the end of this millisecond, with the clock behind it.
    fn opened_at(ms: i64, lead: Lead) -> Generator {
        let generator = open_before(ms + 1);
        generator.set_lead(lead);
        generator
    }

    fn issued(id: i64, lead_ms: i64) -> Result<Issued, Stall> {
        Ok(Issued { id, lead_ms })
    }

    fn next(generator: &Generator, now_ms: i64) -> Result<Issued, Stall> {
        generator.next(|| now_ms, |_| 0, None)
    }

    /// Issues like a session that found the millisecond full one tick ago.
    fn waited(generator: &Generator, now_ms: i64) -> Result<Issued, Stall> {
        let full = Full {
            ms: generator.last().ms,
            found_at_ms: now_ms - 1,
        };
        generator.next(|| now_ms, |_| 0, Some(full))
    }

    /// Begins the next millisecond, and takes all of it.
    fn fill(generator: &Generator, now_ms: i64) {
        waited(generator, now_ms).unwrap();
        while next(generator, now_ms).is_ok() {}
    }

    #[test]
    fn a_clock_that_is_set_back_is_not_waited_for() {
        let generator = opened_at(999, LEAD);
        let id = at(&generator, 1_000).unwrap();
        for (count, now) in [(1, 999), (2, 900), (3, 850)] {
            let next = generator.next(|| now, |_| 7, None);
            assert_eq!(next, issued(id + count, 1_000 - now));
        }
        assert_eq!(at(&generator, 849), Err(Stall::TooFarAhead(1)));
        assert_eq!(at(&generator, -5_000), Err(Stall::TooFarAhead(5_850)));
        assert_eq!(at(&generator, 1_000), Ok(id + 4), "caught up");
        assert_eq!(parts(at(&generator, 1_001).unwrap()).ms, 1_001);
    }

    #[test]
    fn a_full_millisecond_waits_for_the_tick_after_it_was_found_full() {
        let generator = opened_at(1_000, LEAD);
        assert_eq!(at(&generator, 950), full(&generator, 951));
        let found = |found_at_ms| {
            let full = Full {
                ms: 1_000,
                found_at_ms,
            };
            generator.next(|| 951, |_| 0, Some(full))
        };
        for found_at_ms in [951, 952] {
            let stall = found(found_at_ms).map(|id| id.id);
            assert_eq!(stall, full(&generator, 952), "no tick, or set back since");
        }
        let id = found(950).unwrap();
        assert_eq!((parts(id.id).ms, id.lead_ms), (1_001, 50));
        // Another session has filled that one since.
        while next(&generator, 951).is_ok() {}
        let stall = found(950).map(|id| id.id);
        assert_eq!(stall, full(&generator, 952));
    }

    #[test]
    fn nothing_is_issued_beyond_the_bound() {
        let generator = opened_at(1_000, LEAD);
        assert_eq!(at(&generator, 850), full(&generator, 851));
        assert_eq!(waited(&generator, 841), Err(Stall::TooFarAhead(10)));
        assert!(waited(&generator, 851).is_ok());
    }

    #[test]
    fn nothing_is_issued_beyond_the_reservation() {
        let generator = Generator::new(LAYOUT);
        generator.set_lead(LEAD);
        generator.reserve(1_001);
        generator.open(WORKER, 1_000);
        fill(&generator, 951);
        let last = generator.last();
        assert_eq!(waited(&generator, 952), Err(Stall::Unreserved));
        generator.reserve(1_002);
        assert!(parts(waited(&generator, 952).unwrap().id).ms > last.ms);
    }

    #[test]
    fn use_makes_no_lead_larger() {
        let seed = support::seed();
        let mut random = StdRng::seed_from_u64(seed);
        let generator = opened_at(999, LEAD);
        let (mut now, mut most, mut last) = (1_000, 0, 0);
        let mut full = None;
        for _ in 0..200_000 {
            match random.random_range(0..20_000) {
                // A fault determines the lead.
                0 => {
                    now -= 50;
                    most = (last - now).max(most);
                }
                1..2_000 => now += 1,
                _ => {}
            }
            match generator.next(|| now, |_| 4_000, full) {
                Ok(Issued { id, lead_ms }) => {
                    assert!(lead_ms <= most, "{lead_ms} ahead, {most} before");
                    // A millisecond keeps the lead it began with.
                    if parts(id).ms > last {
                        most = lead_ms;
                    }
                    last = parts(id).ms;
                }
                Err(Stall::Full(found)) => {
                    full = full
                        .filter(|before: &Full| before.ms == found.ms)
                        .or(Some(found));
                }
                Err(Stall::TooFarAhead(_)) => now += 1,
                Err(other) => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_burst_borrows_from_the_milliseconds_to_come() {
        let lead = Lead {
            burst_ms: 3,
            ..LEAD
        };
        let generator = opened_at(999, lead);
        let mut before = 0;
        for count in 0..4 * 4_096 {
            let next = generator.next(|| 1_000, |_| 0, None).unwrap();
            assert!(next.id > before);
            before = next.id;
            assert_eq!(next.lead_ms, count / 4_096);
        }
        assert_eq!(at(&generator, 1_000), full(&generator, 1_001));
        assert_eq!(parts(at(&generator, 1_001).unwrap()).ms, 1_004);
        // Never beyond the bound.
        let generator = opened_at(999, Lead { max_ms: 0, ..lead });
        for _ in 0..4_096 {
            at(&generator, 1_000).unwrap();
        }
        assert_eq!(at(&generator, 1_000), full(&generator, 1_001));
    }
}

mod closing {
    use super::*;

    #[test]
    fn a_new_generator_is_closed() {
        let generator = Generator::new(LAYOUT);
        assert!(!generator.is_open());
        assert_eq!(at(&generator, 1), Err(Stall::Closed));
    }

    #[test]
    fn opening_and_closing() {
        let generator = open_before(1_000);
        assert!(generator.is_open());
        let id = at(&generator, 1_000).unwrap();
        assert_eq!(generator.close(), parts(id), "the last id, exactly");
        assert!(!generator.is_open());
        assert_eq!(generator.last(), parts(id));
        assert_eq!(at(&generator, 2_000), Err(Stall::Closed));
        assert_eq!(generator.close(), parts(id), "twice is once");
    }

    #[test]
    fn closing_gives_the_reservation_back() {
        // The caller writes the exact last timestamp to disk: the reservation beyond it is no
        // longer durable (I7).
        let generator = open_before(1_000);
        at(&generator, 1_000).unwrap();
        generator.close();
        assert_eq!(generator.reserved_until(), 1_000);
        generator.open(WORKER, 1_000);
        assert_eq!(at(&generator, 1_001), Err(Stall::Unreserved));
        generator.reserve(1_001);
        assert!(at(&generator, 1_001).is_ok());
    }

    #[test]
    fn an_id_prepared_before_a_close_is_not_issued_after_the_next_open() {
        // Even with the same worker id and floor, the word must differ.
        let generator = open_before(1_000);
        let reopened = Cell::new(false);
        let id = generator.next(
            || 1_005,
            |_| {
                if !reopened.replace(true) {
                    let last = generator.close();
                    generator.open(last.worker_id, last.ms);
                }
                0
            },
            None,
        );
        assert_eq!(id, Err(Stall::Unreserved));
    }

    #[test]
    fn opening_goes_above_the_floor_and_every_earlier_id() {
        let generator = open_before(1_000);
        let before = at(&generator, 1_000).unwrap();
        generator.close();
        generator.reserve(MAX_MS);
        generator.open(WORKER, 900);
        assert_eq!(
            at(&generator, 1_000),
            full(&generator, 1_001),
            "a lower floor does not lower it"
        );
        assert!(at(&generator, 1_001).unwrap() > before);
        generator.open(WORKER, 3_000);
        assert_eq!(at(&generator, 2_999), full(&generator, 3_000));
        assert_eq!(
            at(&generator, 3_000),
            full(&generator, 3_001),
            "the floor itself neither"
        );
        assert_eq!(parts(at(&generator, 3_001).unwrap()).ms, 3_001);
        generator.open(WORKER, i64::MIN);
        assert!(at(&generator, 3_002).is_ok());
    }

    #[test]
    fn a_change_of_the_worker_id_keeps_the_order() {
        let generator = open_before(1_000);
        let mut last = 0;
        let mut ms = 1_000;
        // Up, down, the largest, the smallest, the same.
        for worker_id in [WORKER, 6, 2, MAX_WORKER_ID, 0, 0] {
            generator.open(worker_id, 0);
            assert_eq!(
                generator.last().worker_id,
                worker_id,
                "in force before the first id"
            );
            // A word at the end of its millisecond skips one: see the header of the module.
            let id = loop {
                match at(&generator, ms) {
                    Ok(id) => break id,
                    Err(Stall::Full(_)) => ms += 1,
                    Err(other) => panic!("{other:?}"),
                }
            };
            assert_eq!(parts(id).worker_id, worker_id);
            assert!(id > last);
            last = id;
        }
        assert!(ms <= 1_000 + 6, "one millisecond each at most");
    }

    #[test]
    fn a_stale_session_takes_the_new_worker_id() {
        let generator = open_before(1_000);
        let changed = Cell::new(false);
        let id = generator.next(
            || {
                if !changed.replace(true) {
                    generator.open(9, 0);
                }
                1_001
            },
            |_| 0,
            None,
        );
        assert_eq!(parts(id.unwrap().id).worker_id, 9);
    }

    /// `leaf_snowflake_reset`, after the clock was ahead.
    #[test]
    fn a_rewound_word_issues_above_the_new_floor_with_the_new_worker_id() {
        let generator = open_before(1_000_000);
        let ahead = at(&generator, 1_000_000).unwrap();
        generator.close();
        generator.rewind(WORKER + 1, 500);
        assert_eq!(at(&generator, 501), Err(Stall::Closed));
        assert_eq!(generator.reserved_until(), 500);
        generator.reserve(600);
        generator.open(WORKER + 1, 500);
        assert_eq!(at(&generator, 500), full(&generator, 501));
        let id = at(&generator, 502).unwrap();
        assert!(id < ahead);
        assert_eq!((parts(id).ms, parts(id).worker_id), (502, WORKER + 1));
        assert_eq!(at(&generator, 601), Err(Stall::Unreserved));
        for to_ms in [i64::MIN, -1, MAX_MS + 1, i64::MAX] {
            generator.close();
            generator.rewind(WORKER, to_ms);
            assert!(!generator.is_open());
            assert!((0..=MAX_MS).contains(&generator.last().ms));
        }
    }
}

mod threads {
    use super::*;

    const ISSUERS: u64 = 4;
    const IDS: usize = 15_000;
    const LEAD: Lead = Lead {
        max_ms: 60,
        burst_ms: 3,
    };

    /// A clock advanced by the issuers themselves, so that no run depends on time.
    struct World {
        generator: Generator,
        clock: AtomicI64,
        /// Largest id returned by any call; a later call must be above (I4).
        returned: AtomicI64,
    }

    impl World {
        fn issue(&self, random: &mut StdRng) -> i64 {
            let mut full = None;
            loop {
                let floor = self.returned.load(Ordering::SeqCst);
                let start = random.random_range(0..START_SPREAD);
                let now = || self.clock.load(Ordering::SeqCst);
                let issued = self.generator.next_at_once(now).map_or_else(
                    || self.generator.next(now, |_| start, full),
                    |id| Ok(Issued { id, lead_ms: 0 }),
                );
                match issued {
                    Ok(Issued { id, lead_ms }) => {
                        assert!(id > floor, "{id} after {floor} had been returned");
                        assert!(parts(id).ms <= self.generator.reserved_until());
                        assert!((0..=LEAD.max_ms).contains(&lead_ms));
                        self.returned.fetch_max(id, Ordering::SeqCst);
                        // Occasionally set back, by no more than the max lead.
                        match random.random_range(0..500) {
                            0..10 => _ = self.clock.fetch_add(1, Ordering::SeqCst),
                            10 => _ = self.clock.fetch_sub(LEAD.max_ms / 3, Ordering::SeqCst),
                            _ => {}
                        }
                        return id;
                    }
                    Err(stall @ (Stall::Full(_) | Stall::TooFarAhead(_))) => {
                        full = match stall {
                            Stall::Full(found) => Some(found),
                            _ => None,
                        };
                        self.clock.fetch_add(1, Ordering::SeqCst);
                    }
                    Err(Stall::Unreserved) => {
                        let last = self.generator.last().ms;
                        let until = self.clock.load(Ordering::SeqCst).max(last) + 20;
                        self.generator.reserve(until);
                    }
                    Err(other) => panic!("{other:?}"),
                }
            }
        }
    }

    fn run(change_worker: bool) {
        let seed = support::seed();
        let world = World {
            generator: Generator::new(LAYOUT),
            clock: AtomicI64::new(1_000),
            returned: AtomicI64::new(0),
        };
        world.generator.set_lead(LEAD);
        world.generator.open(0, 999);
        let mut first = Vec::new();
        if change_worker {
            // The change has taken effect, however late its thread was scheduled.
            first.push(world.issue(&mut StdRng::seed_from_u64(seed)));
            world.generator.open(1, 0);
        }
        let done = AtomicBool::new(false);
        let mut all = thread::scope(|scope| {
            let issuers: Vec<_> = (0..ISSUERS)
                .map(|i| {
                    let mut random = StdRng::seed_from_u64(seed.wrapping_add(i));
                    let world = &world;
                    scope.spawn(move || {
                        let mut ids = Vec::with_capacity(IDS);
                        for _ in 0..IDS {
                            let id = world.issue(&mut random);
                            assert!(ids.last().is_none_or(|last| *last < id));
                            ids.push(id);
                        }
                        ids
                    })
                })
                .collect();
            if change_worker {
                let (world, done) = (&world, &done);
                scope.spawn(move || {
                    let mut worker_id = 0_u16;
                    while !done.load(Ordering::SeqCst) {
                        worker_id = (worker_id + 389) & MAX_WORKER_ID;
                        let before = world.returned.load(Ordering::SeqCst);
                        world.generator.open(worker_id, 0);
                        // No other thread changes it until the next round.
                        while world.returned.load(Ordering::SeqCst) == before
                            && !done.load(Ordering::SeqCst)
                        {
                            thread::yield_now();
                        }
                        assert_eq!(world.generator.last().worker_id, worker_id);
                    }
                });
            }
            let issued: Vec<_> = issuers.into_iter().map(|issuer| issuer.join()).collect();
            done.store(true, Ordering::SeqCst);
            let ids = |issued: thread::Result<_>| issued.expect("an issuer panicked");
            issued.into_iter().flat_map(ids).collect::<Vec<i64>>()
        });
        assert_eq!(all.len(), usize::try_from(ISSUERS).unwrap() * IDS);
        all.extend(first);
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count, "no id twice");
        let workers: std::collections::BTreeSet<u16> =
            all.iter().map(|id| parts(*id).worker_id).collect();
        assert_eq!(workers.len() > 1, change_worker);
    }

    #[test]
    fn sessions_issue_no_id_twice_and_keep_the_order() {
        run(false);
    }

    #[test]
    fn so_they_do_while_the_worker_id_changes() {
        run(true);
    }
}
