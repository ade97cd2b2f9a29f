//! Lengths of a tag's segments over time.
//!
//! Would catch: a step that overflows (Leaf's 2^30 doubles into a negative number), stops below its
//! cap (Leaf's stays at 512,000 of 1,000,000), leaves the row's limits, ignores a changed `step`,
//! grows or shrinks because a clock is set back, or never settles at a steady rate.

#![cfg(not(leaf_id_loom))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics fails"
)]

mod support;

use leaf_id_core::step::{
    Decay, Limits, Pace, SEGMENT_DURATION_MS, largest_recent, longest_claim, most_taken,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const MINUTE_MS: i64 = 60_000;
const DEFAULT: Limits = Limits {
    step: 1_000,
    max_step: 1_000_000,
};

/// A tag and a clock; claims like the allocator.
struct Tag {
    pace: Pace,
    now_ms: i64,
}

impl Tag {
    fn new() -> Self {
        Self {
            pace: Pace::default(),
            now_ms: 1_700_000_000_000,
        }
    }

    /// A tag that has repeatedly claimed this many ids.
    fn steady(step: u32, limits: Limits) -> Self {
        let mut tag = Self::new();
        let fixed = Limits {
            max_step: step,
            ..limits
        };
        assert_eq!(tag.claims(20, 0, true, fixed)[19], step);
        tag
    }

    fn claim(&mut self, after_ms: i64, starved: bool, limits: Limits) -> u32 {
        self.now_ms += after_ms;
        let step = self.pace.next(self.now_ms, starved, limits);
        self.pace = self.pace.claimed(self.now_ms, self.now_ms, step, limits);
        step
    }

    fn claims(&mut self, n: usize, after_ms: i64, starved: bool, limits: Limits) -> Vec<u32> {
        (0..n)
            .map(|_| self.claim(after_ms, starved, limits))
            .collect()
    }
}

#[test]
fn a_fast_consumer_doubles_up_to_the_cap_itself() {
    assert_eq!(
        Tag::new().claims(14, MINUTE_MS, false, DEFAULT),
        [
            1_000, // the first segment
            1_000, // its spare, claimed at 10 %: says nothing of how fast it goes
            2_000, 4_000, 8_000, 16_000, 32_000, 64_000, 128_000, 256_000, 512_000, 1_000_000,
            1_000_000, 1_000_000
        ]
    );
}

#[test]
fn a_consumer_of_15_to_30_minutes_keeps_its_step() {
    for after_ms in [
        SEGMENT_DURATION_MS,
        20 * MINUTE_MS,
        2 * SEGMENT_DURATION_MS - 1,
    ] {
        let mut tag = Tag::steady(8_000, DEFAULT);
        assert_eq!(tag.claims(3, after_ms, false, DEFAULT), [8_000; 3]);
    }
}

#[test]
fn the_borders_belong_to_the_slower_side() {
    let limits = Limits {
        step: 10,
        max_step: 1_000,
    };
    let after = |ms| Tag::steady(40, limits).claim(ms, false, limits);
    assert_eq!(after(0), 80);
    assert_eq!(after(SEGMENT_DURATION_MS - 1), 80);
    assert_eq!(after(SEGMENT_DURATION_MS), 40);
    assert_eq!(after(2 * SEGMENT_DURATION_MS - 1), 40);
    assert_eq!(after(2 * SEGMENT_DURATION_MS), 20);
}

/// Most of what was used since the last claim is from the one before, which was shorter or longer.
#[test]
fn the_time_that_another_segment_lasted_is_not_taken_for_this_ones() {
    let mut tag = Tag::steady(4_000, DEFAULT);
    // 4,000 in 10 minutes, so doubled.
    assert_eq!(tag.claim(10 * MINUTE_MS, false, DEFAULT), 8_000);
    // 4,400 in 11 minutes: the 8,000 will last 20.
    assert_eq!(tag.claim(11 * MINUTE_MS, false, DEFAULT), 8_000);
    // From now on half as fast.
    assert_eq!(tag.claim(40 * MINUTE_MS, false, DEFAULT), 4_000);
    assert_eq!(tag.claim(38 * MINUTE_MS, false, DEFAULT), 4_000);
}

/// A tag in use at a steady rate: the next segment is requested at a tenth of the current one.
/// Would catch: a step that oscillates forever, so that the cache at the worst moment lasts half as
/// long as possible.
#[test]
fn at_any_steady_rate_a_segment_lasts_15_to_30_minutes_in_the_end() {
    let mut random = StdRng::seed_from_u64(support::seed());
    for _ in 0..2_000 {
        // From a segment that lasts 15 minutes to a rate a hundred thousand times higher.
        let a_minute = 10f64.powf(random.random_range(1.9..7.0));
        let minutes = |ids: u32| f64::from(ids) / a_minute;
        let limits = Limits {
            max_step: u32::MAX,
            ..DEFAULT
        };
        let mut tag = Tag::new();
        let began_ms = tag.now_ms;
        let mut in_use = tag.claim(0, false, limits);
        let mut used_up = 0.0;
        for claims in 0..60 {
            let asked = used_up + minutes(in_use) / 10.0;
            let after_ms = began_ms + (asked * 60_000.0) as i64 - tag.now_ms;
            let starved = claims < 10 && random.random_bool(0.2);
            let spare = tag.claim(after_ms, starved, limits);
            if claims > 30 {
                let lasts = minutes(in_use);
                let cleared = (14.9..30.1).contains(&lasts) || (in_use == 1_000 && lasts > 14.9);
                assert!(cleared, "{in_use} at {a_minute} a minute");
            }
            used_up += minutes(in_use);
            in_use = spare;
        }
    }
}

#[test]
fn a_slow_consumer_halves_down_to_the_rows_step() {
    let limits = Limits {
        step: 300,
        max_step: 1_000_000,
    };
    let mut tag = Tag::new();
    assert_eq!(
        tag.claims(5, MINUTE_MS, false, limits),
        [300, 300, 600, 1_200, 2_400]
    );
    assert_eq!(
        tag.claims(5, 90 * MINUTE_MS, false, limits),
        [1_200, 600, 300, 300, 300]
    );
}

#[test]
fn halving_an_odd_step_stops_at_the_floor_not_below() {
    let small = Limits {
        step: 3,
        max_step: 10,
    };
    let mut tag = Tag::new();
    assert_eq!(
        tag.claims(5, MINUTE_MS, false, small),
        [3, 3, 6, 10, 10],
        "clamped at a cap that is no power of two times the step"
    );
    assert_eq!(
        tag.claims(4, 60 * MINUTE_MS, false, small),
        [5, 3, 3, 3],
        "5 / 2 would be below the row's step"
    );
}

#[test]
fn a_starved_consumer_grows_eightfold_from_the_second_claim_on() {
    assert_eq!(
        Tag::new().claims(6, 10, true, DEFAULT),
        [1_000, 8_000, 64_000, 512_000, 1_000_000, 1_000_000]
    );
}

#[test]
fn starvation_does_not_make_a_slow_consumer_grow() {
    // Both buffers empty after an hour: the refill was late, the segment was not too small.
    let mut tag = Tag::steady(4_000, DEFAULT);
    assert_eq!(tag.claim(20 * MINUTE_MS, true, DEFAULT), 4_000);
    assert_eq!(tag.claim(60 * MINUTE_MS, true, DEFAULT), 2_000);
}

/// Would catch: an outage of a tag's source server after which the step shrinks just when the tag
/// has run dry, or grows because the segments arriving then are used at once.
#[test]
fn how_long_a_claim_took_says_nothing_of_use() {
    for late_ms in [0, 1_000, 10 * MINUTE_MS, 40 * MINUTE_MS, 600 * MINUTE_MS] {
        let mut tag = Tag::steady(16_000, DEFAULT);
        let step = tag.claim(20 * MINUTE_MS, false, DEFAULT);
        // Requested in time, but late to arrive.
        let asked_ms = tag.now_ms + 20 * MINUTE_MS;
        assert_eq!(tag.pace.next(asked_ms, late_ms > 0, DEFAULT), step);
        tag.now_ms = asked_ms + late_ms;
        tag.pace = tag.pace.claimed(asked_ms, tag.now_ms, step, DEFAULT);
        // The next one is requested when a tenth of that segment is used: at once if nothing was
        // left, otherwise when the previous one is used up.
        let next_ms = tag.now_ms.max(asked_ms + 20 * MINUTE_MS);
        assert_eq!(tag.pace.next(next_ms, false, DEFAULT), step, "{late_ms}");
    }
}

#[test]
fn a_changed_step_starts_over() {
    let mut tag = Tag::new();
    tag.claims(6, MINUTE_MS, false, DEFAULT);
    assert_eq!(tag.pace.step, 16_000);
    for step in [50, 100_000] {
        let changed = Limits { step, ..DEFAULT };
        assert_eq!(
            tag.claims(4, MINUTE_MS, true, changed)[0],
            step,
            "starvation of the old step does not count"
        );
    }
    let changed = Limits {
        step: 70,
        ..DEFAULT
    };
    assert_eq!(
        tag.claims(4, MINUTE_MS, false, changed),
        [70, 70, 140, 280],
        "the new first two claims do not double either"
    );
}

#[test]
fn a_changed_cap_holds_at_once_and_does_not_restart() {
    let mut tag = Tag::new();
    tag.claims(6, MINUTE_MS, false, DEFAULT);
    let lower = Limits {
        max_step: 5_000,
        ..DEFAULT
    };
    assert_eq!(tag.claims(2, MINUTE_MS, false, lower), [5_000, 5_000]);
    assert_eq!(tag.claims(2, MINUTE_MS, false, DEFAULT), [10_000, 20_000]);
}

#[test]
fn a_clock_that_goes_back_keeps_the_step() {
    let mut tag = Tag::new();
    tag.claims(4, MINUTE_MS, false, DEFAULT);
    for starved in [false, true] {
        assert_eq!(tag.claim(-60 * MINUTE_MS, starved, DEFAULT), 4_000);
        assert_eq!(tag.claim(-1, starved, DEFAULT), 4_000);
    }
    assert_eq!(
        tag.claim(MINUTE_MS, false, DEFAULT),
        8_000,
        "measured from the clock as it is now"
    );
    // No overflow at the ends of the clock's range.
    tag.pace.claimed_at_ms = i64::MAX;
    assert_eq!(tag.pace.next(i64::MIN, true, DEFAULT), 8_000);
    tag.pace.claimed_at_ms = i64::MIN;
    assert_eq!(tag.pace.next(i64::MAX, true, DEFAULT), 4_000);
}

#[test]
fn the_largest_steps_do_not_overflow() {
    const LARGEST: u32 = i32::MAX as u32;
    for starved in [false, true] {
        for step in [1, 1 << 30, LARGEST] {
            let limits = Limits {
                step,
                max_step: LARGEST,
            };
            let mut tag = Tag::new();
            let mut last = 0;
            for claimed in tag.claims(40, 0, starved, limits) {
                assert!(claimed >= last && (step..=LARGEST).contains(&claimed));
                last = claimed;
            }
            assert_eq!(last, LARGEST, "the cap is reached");
            assert_eq!(
                tag.claims(40, 60 * MINUTE_MS, starved, limits)[39],
                step,
                "and left again"
            );
        }
    }
    let doubled = Limits {
        step: 1 << 30,
        max_step: LARGEST,
    };
    assert_eq!(
        Tag::new().claims(4, 0, false, doubled),
        [1 << 30, 1 << 30, LARGEST, LARGEST]
    );
    // A pace that no claim produces, to reach the end of the conversion.
    let huge = Pace {
        base: 1,
        step: u32::MAX,
        before: u32::MAX,
        claimed_at_ms: 0,
        claims: 9,
    };
    assert_eq!(huge.wanted(0, true), u32::MAX);
    assert_eq!(huge.wanted(0, false), u32::MAX);
}

#[test]
fn counting_claims_does_not_overflow() {
    let old = Pace {
        base: 1_000,
        step: 1_000,
        before: 1_000,
        claimed_at_ms: 0,
        claims: u32::MAX,
    };
    let next = old.claimed(0, 0, 2_000, DEFAULT);
    assert_eq!(next.claims, u32::MAX, "0 would be a tag that never claimed");
}

#[test]
fn a_fixed_step_stays_fixed() {
    let fixed = Limits {
        step: 500,
        max_step: 500,
    };
    for (after_ms, starved) in [(0, true), (MINUTE_MS, false), (90 * MINUTE_MS, false)] {
        assert_eq!(Tag::new().claims(5, after_ms, starved, fixed), [500; 5]);
    }
}

/// The bound used by a server that takes over. Would catch: a skip smaller than the ids of lost
/// claims, at any use of the tag.
#[test]
fn lost_claims_take_no_more_than_is_skipped_for_them() {
    let mut random = StdRng::seed_from_u64(support::seed());
    for _ in 0..2_000 {
        let step = random.random_range(1..100_000);
        let limits = Limits {
            step,
            max_step: random.random_range(step..=i32::MAX.unsigned_abs()),
        };
        let mut recent = step;
        let mut claims = Vec::new();
        for _ in 0..30 {
            // The max length, or a shorter one, for whatever reason.
            let longest = longest_claim(recent, limits);
            let claimed = if random.random() {
                longest
            } else {
                random.random_range(1..=longest)
            };
            claims.push((recent, claimed));
            // For this server, or for another one.
            let decay = if random.random() {
                Decay::Alone
            } else {
                Decay::Fleet
            };
            recent = largest_recent(recent, claimed, decay);
        }
        for lost in 0..=10 {
            for window in claims.windows(lost + 1) {
                let (known, _) = window[0];
                let taken: u64 = window[..lost].iter().map(|(_, n)| u64::from(*n)).sum();
                let skipped = most_taken(u32::try_from(lost).unwrap(), known, limits);
                assert!(taken <= skipped, "{lost} claims after {known}: {taken}");
            }
        }
    }
}

#[test]
fn the_skip_of_a_small_tag_is_small() {
    assert_eq!(most_taken(0, 1_000, DEFAULT), 0);
    assert_eq!(most_taken(1, 1_000, DEFAULT), 8_000);
    assert_eq!(most_taken(2, 1_000, DEFAULT), 72_000);
    assert_eq!(most_taken(5, 1_000, DEFAULT), 584_000 + 2_000_000);
    // A steady tag claims nothing else.
    let fixed = Limits {
        step: 500,
        max_step: 500,
    };
    assert_eq!(most_taken(2, 500, fixed), 1_000);
    let huge = Limits {
        step: 1,
        max_step: u32::MAX,
    };
    assert_eq!(longest_claim(u32::MAX, huge), u32::MAX);
    assert_eq!(
        most_taken(1_000, u32::MAX, huge),
        1_000 * u64::from(u32::MAX)
    );
    assert_eq!(longest_claim(0, huge), 8, "a row that remembers nothing");
}

#[test]
fn the_largest_recent_claim_is_forgotten_by_halves() {
    let alone = |before, claimed| largest_recent(before, claimed, Decay::Alone);
    assert_eq!(alone(1_000, 8_000), 8_000);
    assert_eq!(alone(8_000, 1_000), 4_000);
    assert_eq!(alone(1_000, 1_000), 1_000);
    assert_eq!(alone(0, 1), 1);
}

/// Would catch: a slow member that keeps a fast one from claims as long as its last.
#[test]
fn slow_members_do_not_cut_short_what_a_fast_one_claims() {
    let mut recent = 1_000_000;
    for _ in 0..100 {
        recent = largest_recent(recent, 1_000, Decay::Fleet);
    }
    assert!((200_000..250_000).contains(&recent), "{recent}");
    assert_eq!(longest_claim(recent, DEFAULT), 1_000_000);
    for _ in 0..1_000 {
        recent = largest_recent(recent, 10, Decay::Fleet);
    }
    assert_eq!(recent, 63, "forgotten in the end");
    assert_eq!(largest_recent(63, 64, Decay::Fleet), 64);
}
