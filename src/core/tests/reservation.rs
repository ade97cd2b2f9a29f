//! The floor of snowflake timestamps after a start (I7).
//!
//! Would catch: a start that issues at or below a timestamp that an earlier run, a copy of
//! this server or the other side of a failover may have issued; and one that waits for
//! hours, or panics, because the file says so.

#![cfg(not(leaf_id_loom))]

use leaf_id_core::reservation::{
    self, Decision, Opening, Reason, Renew, Renewal, Start, Stored, late_renewal, reserve_until,
};
use leaf_id_core::state::Refusal;

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

fn floor(start: Start, stored: Option<Stored>) -> Result<i64, Refusal> {
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
            Err(Refusal::EpochMovedLater {
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
            Err(Refusal::ReservationAhead { until_ms: too_far })
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
        Err(Refusal::EpochMovedLater { .. })
    ));
}

#[test]
fn absurd_numbers_in_the_file_do_not_overflow() {
    assert!(matches!(
        floor(START, Some(stored(i64::MAX))),
        Err(Refusal::ReservationAhead { .. })
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
        Err(Refusal::ReservationAhead { .. })
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
    }
}

#[test]
fn each_reason_comes_back_from_its_number() {
    let mut texts = Vec::new();
    while let Some(reason) = Reason::decode(u32::try_from(texts.len()).unwrap_or(0), 0) {
        assert_eq!(
            reason.encode(),
            (u32::try_from(texts.len()).unwrap_or(0), 0)
        );
        assert!(!texts.contains(&reason.text()), "{reason:?}");
        texts.push(reason.text());
    }
    assert_eq!(texts.len(), 8);
    assert_eq!(Reason::decode(u32::MAX, 0), None);
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

mod opening {
    //! When the generator may be opened, and above what.

    use super::*;

    /// The floor is long over, and nothing else is in the way.
    const FREE: Opening = Opening {
        now_ms: NOW,
        last_ms: NOW - 100_000,
        is_open: false,
        floor_ms: NOW - 50_000,
        granted_floor_ms: None,
        retired_until_ms: None,
        reservation_ms: RESERVATION,
        max_backward_ms: 5,
    };

    fn above(opening: Opening) -> Option<i64> {
        match opening.decide() {
            Decision::Open { above_ms, until_ms } => {
                assert_eq!(until_ms, NOW + RESERVATION);
                Some(above_ms)
            }
            Decision::WaitOut { .. } | Decision::Refuse { .. } => None,
        }
    }

    #[test]
    fn it_opens_above_the_floor_and_the_last_id() {
        assert_eq!(above(FREE), Some(NOW - 50_000));
        let last_ms = NOW - 10;
        assert_eq!(above(Opening { last_ms, ..FREE }), Some(last_ms));
        // A worker id that was left behind has its time.
        let retired_until_ms = Some(NOW - 5);
        let retired = Opening {
            retired_until_ms,
            last_ms,
            ..FREE
        };
        assert_eq!(above(retired), retired_until_ms);
    }

    #[test]
    fn what_is_not_over_is_waited_out() {
        for ahead in [0, 1, RESERVATION, 3 * RESERVATION] {
            let until_ms = NOW + ahead;
            let (floor_ms, last_ms) = (until_ms, until_ms);
            for opening in [
                Opening { floor_ms, ..FREE },
                Opening { last_ms, ..FREE },
                Opening {
                    retired_until_ms: Some(until_ms),
                    ..FREE
                },
            ] {
                assert_eq!(opening.decide(), Decision::WaitOut { until_ms }, "{ahead}");
            }
        }
    }

    #[test]
    fn what_is_far_ahead_is_refused_with_its_reason() {
        let until_ms = NOW + 3 * RESERVATION + 1;
        let ahead = Opening {
            floor_ms: until_ms,
            ..FREE
        };
        let refusal = Refusal::ReservationAhead { until_ms };
        assert_eq!(ahead.decide(), Decision::Refuse { refusal, until_ms });
        let retired = Opening {
            retired_until_ms: Some(until_ms),
            ..FREE
        };
        let refusal = Refusal::WorkerIdRetired { until_ms };
        assert_eq!(retired.decide(), Decision::Refuse { refusal, until_ms });
        // The registry's floor is over by itself.
        let granted = Opening {
            granted_floor_ms: Some(until_ms),
            ..ahead
        };
        assert_eq!(granted.decide(), Decision::WaitOut { until_ms });
        let both = Opening {
            granted_floor_ms: Some(until_ms - 1),
            ..ahead
        };
        assert!(matches!(both.decide(), Decision::Refuse { .. }));
    }

    /// An open word is above the floor already.
    #[test]
    fn an_open_word_gets_another_worker_id_unless_the_clock_has_gone_back() {
        let open = Opening {
            is_open: true,
            floor_ms: NOW + 10,
            last_ms: NOW + 5,
            ..FREE
        };
        assert_eq!(above(open), Some(i64::MIN));
        let back = Opening {
            last_ms: NOW + 6,
            ..open
        };
        let until_ms = NOW + 10;
        assert_eq!(back.decide(), Decision::WaitOut { until_ms });
        let left_behind = Opening {
            retired_until_ms: Some(NOW),
            ..open
        };
        let until_ms = NOW;
        assert_eq!(left_behind.decide(), Decision::WaitOut { until_ms });
    }
}

mod renewal {
    //! When the reservation is renewed, and how far.

    use super::*;

    /// In use, and half of it is left.
    const HALF: Renewal = Renewal {
        now_ms: NOW,
        last_ms: NOW,
        reserved_until_ms: NOW + RESERVATION / 2,
        recorded_until_ms: i64::MAX,
        renewed_at_ms: NOW - RESERVATION / 2,
        wanted: false,
        reservation_ms: RESERVATION,
    };

    #[test]
    fn at_half_while_it_is_used() {
        assert_eq!(HALF.decide(), Renew::Until(NOW + RESERVATION));
        let early = Renewal {
            reserved_until_ms: HALF.reserved_until_ms + 7,
            ..HALF
        };
        assert_eq!(early.decide(), Renew::Later(Some(7)));
    }

    #[test]
    fn idle_only_for_a_session_that_asks() {
        let idle = Renewal {
            last_ms: HALF.renewed_at_ms - 1,
            ..HALF
        };
        for reserved_until_ms in [NOW - 1, NOW + 1, NOW + RESERVATION] {
            let idle = Renewal {
                reserved_until_ms,
                ..idle
            };
            assert_eq!(idle.decide(), Renew::Later(None));
        }
        let wanted = Renewal {
            wanted: true,
            ..idle
        };
        assert_eq!(wanted.decide(), Renew::Until(NOW + RESERVATION));
    }

    #[test]
    fn never_beyond_what_is_recorded_and_never_back() {
        let recorded_until_ms = NOW + RESERVATION / 2 + 1;
        let short = Renewal {
            recorded_until_ms,
            ..HALF
        };
        assert_eq!(short.decide(), Renew::Until(recorded_until_ms));
        let all = Renewal {
            reserved_until_ms: recorded_until_ms,
            wanted: true,
            ..short
        };
        assert_eq!(all.decide(), Renew::Enough);
        assert_eq!(reserve_until(NOW + 9, NOW, NOW + 5), NOW + 5);
        assert_eq!(reserve_until(NOW + 9, NOW + 11, i64::MAX), NOW + 11);
    }

    #[test]
    fn a_session_renews_only_what_is_not_reserved() {
        let late = |reserved, recorded| late_renewal(NOW, RESERVATION, reserved, recorded);
        assert_eq!(late(NOW, i64::MAX), Some(NOW + RESERVATION));
        assert_eq!(late(NOW, NOW + 3), Some(NOW + 3));
        assert_eq!(late(NOW + RESERVATION, i64::MAX), None);
        assert_eq!(late(NOW + 3, NOW + 3), None);
    }
}
