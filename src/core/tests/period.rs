//! Would catch: an id of the wrong period, a number 0, numbers that go over into the next
//! period, a claim that goes back, a day that ends late where clocks are put forward or back
//! over midnight, and a leap day that is forgotten.

#![cfg(not(leaf_id_loom))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics fails"
)]

mod support;

use leaf_id_core::period::{Begin, Date, End, Missing, Numbering, Offset, first_instant};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const PEACE: Missing = Missing {
    skip: 0,
    per_timeline: 0,
    timelines: 0,
};

fn daily() -> Numbering {
    Numbering::new(b"day", 6).unwrap()
}

#[test]
fn an_id_is_its_period_and_a_number() {
    let date = Date {
        year: 2026,
        month: 11,
        day: 2,
    };
    for (unit, digits, first, last) in [
        ("day", 6, 20_261_102_000_001, 20_261_102_999_999),
        ("month", 4, 2_026_110_001, 2_026_119_999),
        ("year", 6, 2_026_000_001, 2_026_999_999),
        ("year", 14, 202_600_000_000_000_001, 202_699_999_999_999_999),
    ] {
        let numbering = Numbering::new(unit.as_bytes(), digits).unwrap();
        let period = numbering.on(date);
        assert_eq!(
            (numbering.first(period), numbering.last(period)),
            (first, last)
        );
        for id in [first, last] {
            assert_eq!(numbering.before(id + 1), period);
        }
        assert_eq!(
            numbering.before(first - 1),
            period - 1,
            "there is no number 0"
        );
    }
    for (unit, digits) in [
        ("day", 11),
        ("month", 13),
        ("year", 15),
        ("year", 0),
        ("week", 6),
    ] {
        assert_eq!(
            Numbering::new(unit.as_bytes(), digits),
            None,
            "{unit} {digits}"
        );
    }
    // The last id of each fits a bigint, and is followed by one.
    for (unit, digits, period) in [
        ("day", 10, 99_991_231),
        ("month", 12, 999_912),
        ("year", 14, 9999),
    ] {
        let numbering = Numbering::new(unit.as_bytes(), digits).unwrap();
        assert!(numbering.last(period) < i64::MAX - 1, "{unit}");
    }
}

#[test]
fn the_next_period_begins_at_a_local_midnight() {
    let seconds = |days: i64| days * 86_400;
    let begins = |unit: &str, period| {
        Numbering::new(unit.as_bytes(), 3)
            .unwrap()
            .next_begins(period)
    };
    for (unit, period, days) in [
        ("day", 19_691_231, 0),
        ("day", 19_700_101, 1),
        ("year", 1969, 0),
        ("month", 197_001, 31),
        ("day", 20_000_228, 11_016),
        ("day", 20_000_229, 11_017),
        ("day", 21_000_228, 47_541),
        ("year", 2025, 20_454),
        ("month", 202_512, 20_454),
        ("day", 20_251_231, 20_454),
        // None that there are: the next one is what counts.
        ("day", 20_251_299, 20_454),
        ("day", 20_251_399, 20_454),
        ("day", 20_260_000, 20_454),
        ("day", 20_260_100, 20_454),
        ("month", 202_599, 20_454),
        ("month", 202_600, 20_454),
    ] {
        assert_eq!(begins(unit, period), seconds(days), "{unit} {period}");
    }
    // Every day of four hundred years has a successor one day later.
    let (mut at, mut days) = (begins("day", 16_001_231), 0);
    for year in 1601..=2000 {
        for month in 1..=12 {
            for day in 1..=31 {
                let next = begins("day", (year * 100 + month) * 100 + day);
                if next != at {
                    assert_eq!(next, at + 86_400, "{year}-{month}-{day}");
                    (at, days) = (next, days + 1);
                }
            }
        }
    }
    assert_eq!(days, 146_097);
}

/// A zone of a few changes: from when on clocks are how far ahead.
fn zone(changes: &[(i64, i64)]) -> impl Fn(i64) -> Offset {
    move |at| Offset {
        ahead: changes
            .iter()
            .rev()
            .find(|(from, _)| *from <= at)
            .unwrap()
            .1,
        until: changes
            .iter()
            .map(|(from, _)| *from)
            .find(|from| *from > at),
    }
}

#[test]
fn a_period_ends_at_the_first_instant_that_is_later() {
    const START: i64 = i64::MIN;
    const HOUR: i64 = 3600;
    let midnight = 20_000 * 86_400;
    for (what, changes, end) in [
        ("no change", vec![(START, HOUR)], midnight - HOUR),
        // Havana in spring: 0:00 is 1:00.
        (
            "forward over midnight",
            vec![(START, -5 * HOUR), (midnight + 5 * HOUR, -4 * HOUR)],
            midnight + 5 * HOUR,
        ),
        // From 23:30 to 0:30: the instant of the change, and not half an hour before or after.
        (
            "forward to the next day",
            vec![(START, 0), (midnight - HOUR / 2, HOUR)],
            midnight - HOUR / 2,
        ),
        // Azores in autumn: 1:00 is 0:00.
        (
            "back to midnight",
            vec![(START, 0), (midnight + HOUR, -HOUR)],
            midnight,
        ),
        // 0:30 is 23:30 once more: the day had ended.
        (
            "back to the day before",
            vec![(START, 0), (midnight + HOUR / 2, -HOUR / 2)],
            midnight,
        ),
        // Samoa in 2011: 30 December did not exist.
        (
            "a day left out",
            vec![(START, -10 * HOUR), (midnight + 10 * HOUR, 14 * HOUR)],
            midnight + 10 * HOUR,
        ),
    ] {
        assert_eq!(first_instant(midnight, zone(&changes)), end, "{what}");
    }
    // The day that did not exist ends when it would have begun.
    let samoa = [(START, -10 * HOUR), (midnight + 10 * HOUR, 14 * HOUR)];
    assert_eq!(
        first_instant(midnight + 24 * HOUR, zone(&samoa)),
        midnight + 10 * HOUR
    );
}

/// Against a look at each minute.
#[test]
fn no_instant_before_it_is_later() {
    let mut random = StdRng::seed_from_u64(support::seed());
    for _ in 0..300 {
        let midnight = random.random_range(10_000..30_000) * 86_400;
        let mut changes = vec![(i64::MIN, random.random_range(-48..56) * 900)];
        let mut at = midnight - 4 * 86_400;
        for _ in 0..random.random_range(0..6) {
            at += random.random_range(1..3000) * 60;
            let ahead = changes.last().unwrap().1 + random.random_range(-8..8) * 900;
            changes.push((at, ahead));
        }
        let zone = zone(&changes);
        let minutes = (-7 * 1440..7 * 1440).map(|minute| midnight + minute * 60);
        let found = minutes
            .clone()
            .find(|at| at + zone(*at).ahead >= midnight)
            .unwrap();
        assert_eq!(first_instant(midnight, zone), found, "{changes:?}");
    }
}

#[test]
fn a_claim_begins_in_the_present_period_or_stays_in_a_later_one() {
    let today = 20_261_122;
    let begin = |max_id, missing| daily().begin(max_id, today, missing);
    let fresh = Begin {
        period: today,
        first: 20_261_122_000_001,
        last: 20_261_122_999_999,
        skipped: 0,
        in_peace: true,
    };
    assert_eq!(begin(1, PEACE), fresh);
    assert_eq!(begin(20_261_121_000_500, PEACE), fresh);
    // Yesterday's are used up.
    assert_eq!(begin(20_261_122_000_000, PEACE), fresh);
    let later = Begin {
        first: 20_261_122_000_500,
        in_peace: false,
        ..fresh
    };
    assert_eq!(begin(20_261_122_000_500, PEACE), later);
    // None is left, and tomorrow has not begun.
    let used_up = begin(20_261_123_000_000, PEACE);
    assert_eq!(
        (used_up.first, used_up.last),
        (20_261_123_000_000, 20_261_122_999_999)
    );
    // The clock was set back: never back.
    let ahead = begin(20_270_101_000_007, PEACE);
    assert_eq!(
        (ahead.period, ahead.first),
        (20_270_101, 20_270_101_000_007)
    );
    let missing = Missing {
        skip: 40,
        per_timeline: 20,
        timelines: 3,
    };
    let promoted = begin(20_261_121_000_500, missing);
    assert_eq!(
        (promoted.first, promoted.skipped),
        (20_261_122_000_121, 120)
    );
    assert!(!promoted.in_peace);
    let promoted = begin(20_261_122_000_500, missing);
    assert_eq!((promoted.first, promoted.skipped), (20_261_122_000_540, 40));
}

#[test]
fn an_end_is_a_word() {
    for end in [
        End::Wall(1),
        End::Wall(i64::MAX),
        End::Boot(1),
        End::Boot(i64::MAX),
    ] {
        assert_eq!(End::from_word(end.to_word()), Some(end));
    }
    assert_eq!(End::from_word(0), None);
    assert_ne!(End::Wall(-5).to_word(), 0);
    assert_ne!(End::Boot(0).to_word(), 0);
}
