//! The floor of snowflake timestamps after a start (I7).
//!
//! Would catch: a start that issues at or below a timestamp that an earlier run, a copy of
//! this server or the other side of a failover may have issued; and one that waits for
//! hours, or panics, because the file says so.

#![cfg(not(leaf_id_loom))]

use leaf_id_core::reservation::{self, Reason, Start, Stored, Unsafe};

const NOW: i64 = 1_800_000_000_000;
const RESERVATION: i64 = 5_000;

const START: Start = Start {
    now_ms: NOW,
    epoch_ms: 1_288_834_974_657,
    reservation_ms: RESERVATION,
    system_identifier: 77,
    timeline: 3,
    leased: false,
};

fn stored(reserved_until_ms: i64) -> Stored {
    Stored {
        reserved_until_ms,
        epoch_ms: START.epoch_ms,
        system_identifier: START.system_identifier,
        timeline: START.timeline,
        original: true,
        clean: false,
    }
}

fn floor(start: Start, stored: Option<Stored>) -> Result<i64, Unsafe> {
    reservation::floor(start, stored).map(|floor| floor.ms)
}

/// The three ways in which a file is not this server's own.
fn foreign(reserved_until_ms: i64) -> [Stored; 3] {
    let own = stored(reserved_until_ms);
    [
        Stored {
            original: false,
            ..own
        },
        Stored {
            system_identifier: 78,
            ..own
        },
        Stored { timeline: 2, ..own },
    ]
}

#[test]
fn without_a_file_the_floor_is_one_reservation_ahead() {
    assert_eq!(floor(START, None), Ok(NOW + RESERVATION));
}

#[test]
fn the_own_file_is_the_floor() {
    // Clean stop long ago, clean stop just now, and after a crash what is left of it.
    for reserved in [NOW - 1_000_000, NOW, NOW + 1, NOW + RESERVATION] {
        assert_eq!(floor(START, Some(stored(reserved))), Ok(reserved));
    }
}

#[test]
fn another_servers_file_raises_the_floor_and_gives_nothing_else() {
    for file in foreign(NOW - 1_000_000) {
        assert_eq!(floor(START, Some(file)), Ok(NOW + RESERVATION), "{file:?}");
    }
    for file in foreign(NOW + 300) {
        assert_eq!(
            floor(START, Some(file)),
            Ok(NOW + 300 + RESERVATION),
            "{file:?}"
        );
    }
}

#[test]
fn a_leased_worker_id_is_this_servers_own_on_any_timeline() {
    let leased = Start {
        leased: true,
        ..START
    };
    for timeline in [0, 2, 3, 4] {
        let file = Stored {
            timeline,
            ..stored(NOW + 300)
        };
        assert_eq!(floor(leased, Some(file)), Ok(NOW + 300));
    }
    let [copied, of_another_cluster, _] = foreign(NOW + 300);
    for file in [copied, of_another_cluster] {
        assert_eq!(floor(leased, Some(file)), Ok(NOW + 300 + RESERVATION));
    }
}

#[test]
fn a_later_epoch_is_refused_whoever_wrote_the_file() {
    let later = Start {
        epoch_ms: START.epoch_ms + 1,
        ..START
    };
    for file in foreign(NOW).into_iter().chain([stored(NOW)]) {
        assert_eq!(
            floor(later, Some(file)),
            Err(Unsafe::EpochMovedLater {
                stored_ms: START.epoch_ms
            })
        );
    }
    assert_eq!(
        floor(later, None),
        Ok(NOW + RESERVATION),
        "nothing to compare with"
    );
}

#[test]
fn an_earlier_epoch_keeps_the_floor() {
    let earlier = Start {
        epoch_ms: START.epoch_ms - 1_000,
        ..START
    };
    assert_eq!(floor(earlier, Some(stored(NOW + 10))), Ok(NOW + 10));
}

#[test]
fn a_reservation_far_ahead_is_refused_with_the_distance() {
    let most = 2 * RESERVATION;
    assert_eq!(floor(START, Some(stored(NOW + most))), Ok(NOW + most));
    let too_far = NOW + most + 1;
    for file in foreign(too_far).into_iter().chain([stored(too_far)]) {
        assert_eq!(
            floor(START, Some(file)),
            Err(Unsafe::FarAhead {
                reserved_until_ms: too_far
            })
        );
    }
}

#[test]
fn the_epoch_is_judged_before_the_distance() {
    let later = Start {
        epoch_ms: START.epoch_ms + 1,
        ..START
    };
    assert!(matches!(
        floor(later, Some(stored(NOW + 1_000_000))),
        Err(Unsafe::EpochMovedLater { .. })
    ));
}

#[test]
fn absurd_numbers_in_the_file_do_not_overflow() {
    assert!(matches!(
        floor(START, Some(stored(i64::MAX))),
        Err(Unsafe::FarAhead { .. })
    ));
    assert_eq!(floor(START, Some(stored(i64::MIN))), Ok(i64::MIN));
    for file in foreign(i64::MIN) {
        assert_eq!(floor(START, Some(file)), Ok(NOW + RESERVATION));
    }
    let before_1970 = Start {
        now_ms: -1,
        ..START
    };
    assert!(matches!(
        floor(before_1970, Some(stored(i64::MAX))),
        Err(Unsafe::FarAhead { .. })
    ));
}

#[test]
fn the_floor_says_where_it_comes_from() {
    let own = stored(NOW);
    let [copied, other_cluster, new_timeline] = foreign(NOW);
    let clean = |file| Stored {
        clean: true,
        ..file
    };
    for (file, reason) in [
        (None, Reason::NoFile),
        (Some(own), Reason::Crash),
        (Some(clean(own)), Reason::CleanStop),
        (Some(clean(copied)), Reason::CopiedFile),
        (Some(clean(other_cluster)), Reason::OtherCluster),
        (Some(clean(new_timeline)), Reason::NewTimeline),
    ] {
        let found = reservation::floor(START, file).map(|floor| floor.reason);
        assert_eq!(found, Ok(reason));
        assert_eq!(Reason::of(reason as u32), reason);
    }
    assert_eq!(Reason::of(0), Reason::None);
    assert_eq!(Reason::of(Reason::Reset as u32), Reason::Reset);
}

/// A clean stop of another server says nothing about what this one has issued.
#[test]
fn a_clean_stop_is_exact_only_for_its_own_server() {
    for file in foreign(NOW) {
        let file = Stored {
            clean: true,
            ..file
        };
        assert_eq!(floor(START, Some(file)), Ok(NOW + RESERVATION), "{file:?}");
    }
}
