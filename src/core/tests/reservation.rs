//! The floor of snowflake timestamps after a start (I7).
//!
//! Would catch: a start that issues at or below a timestamp that an earlier run, a copy of this
//! server or the other side of a failover may have issued; and one that waits for hours, or panics,
//! because of the file's contents.

#![cfg(not(leaf_id_loom))]
#![allow(clippy::unwrap_used, reason = "a test that panics fails")]

use leaf_id_core::layout::Layout;
use leaf_id_core::reservation::{
    self, Decision, Floor, Opening, Reader, Reason, Renew, Renewal, Start, Stored, Terms,
    late_renewal, reserve_until,
};
use leaf_id_core::state::Refusal;

const NOW: i64 = 1_800_000_000_000;
const RESERVATION: i64 = 5_000;
const LEAD: i64 = 10_000;
/// Max lead of another server's ids: the max lead, plus a clock one reservation ahead.
const OTHERS: i64 = LEAD + RESERVATION;

const TERMS: Terms = Terms {
    write_ms: 0,
    reservation_ms: RESERVATION,
    max_lead_ms: LEAD,
};

const START: Start = Start {
    now_ms: NOW,
    epoch_ms: 1_288_834_974_657,
    layout: Layout::DEFAULT,
    above_others_ms: NOW + OTHERS,
    reader: Reader {
        system_identifier: 77,
        timeline: 3,
        leased: false,
    },
    never_issued: false,
};

fn stored(reserved_until_ms: i64) -> Stored {
    Stored {
        reserved_until_ms,
        epoch_ms: START.epoch_ms,
        layout: START.layout,
        issued: true,
        system_identifier: START.reader.system_identifier,
        timeline: START.reader.timeline,
        original: true,
        clean: false,
        left_behind_until_ms: None,
    }
}

fn floor(start: Start, stored: Option<Stored>) -> Result<i64, Refusal> {
    let above_others_ms = TERMS.above_others_ms(start.now_ms);
    let start = Start {
        above_others_ms,
        ..start
    };
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
fn without_a_file_the_floor_is_what_others_may_have_issued() {
    assert_eq!(floor(START, None), Ok(NOW + OTHERS));
}

#[test]
fn the_own_file_is_the_floor() {
    // Clean stop long ago, clean stop just now, and reservations left by a crash.
    for reserved in [NOW - 1_000_000, NOW, NOW + 1, NOW + RESERVATION] {
        assert_eq!(floor(START, Some(stored(reserved))), Ok(reserved));
    }
}

#[test]
fn another_servers_file_raises_the_floor_and_gives_nothing_else() {
    for ahead in [-1_000_000, 300, LEAD, OTHERS] {
        for file in foreign(NOW + ahead) {
            assert_eq!(floor(START, Some(file)), Ok(NOW + OTHERS), "{file:?}");
        }
    }
    // Its author has led by more.
    for file in foreign(NOW + OTHERS + 1) {
        assert_eq!(floor(START, Some(file)), Ok(NOW + OTHERS + 1), "{file:?}");
    }
}

#[test]
fn a_leased_worker_id_is_this_servers_own_on_any_timeline() {
    let leased = Start {
        reader: Reader {
            leased: true,
            ..START.reader
        },
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
        assert_eq!(floor(leased, Some(file)), Ok(NOW + OTHERS));
    }
}

#[test]
fn a_later_epoch_is_refused_until_its_ids_are_larger() {
    let later = |by_ms, now_ms| Start {
        epoch_ms: START.epoch_ms + by_ms,
        now_ms,
        ..START
    };
    let refused = Err(Refusal::EpochMovedLater {
        stored_ms: START.epoch_ms,
    });
    let hour = 3_600_000;
    let file = Some(stored(NOW));
    assert_eq!(floor(later(1, NOW), file), refused);
    assert_eq!(floor(later(hour, NOW + hour), file), refused);
    // Also if the clock is set back before the first id.
    assert_eq!(floor(later(hour, NOW + hour + 1), file), Ok(NOW + hour));
    // Another server's file is no bound: the predecessor's ids may be as late as the floor.
    for file in foreign(NOW) {
        for now in [NOW + 60_000, NOW + hour + 1, NOW + 24 * hour] {
            assert_eq!(floor(later(1, now), Some(file)), refused);
            assert_eq!(floor(later(23_000, now), Some(file)), refused);
        }
        assert_eq!(floor(later(-1, NOW), Some(file)), Ok(NOW + OTHERS));
    }
    // Nothing to compare with.
    assert_eq!(floor(later(hour, NOW), None), Ok(NOW + OTHERS));
}

/// What others may have issued is bounded by the first look, so that ids come to exceed it.
#[test]
fn a_later_epoch_than_that_of_a_copy_is_refused_for_as_long_as_it_was_moved() {
    let minute = 60_000;
    for file in foreign(NOW) {
        let at = |now_ms| {
            let later = Start {
                epoch_ms: START.epoch_ms + minute,
                now_ms,
                ..START
            };
            reservation::floor(later, Some(file)).map(|floor| floor.ms)
        };
        let above_ms = NOW + OTHERS + minute;
        assert!(at(above_ms).is_err(), "{file:?}");
        assert_eq!(at(above_ms + 1), Ok(above_ms), "{file:?}");
    }
}

/// Until the first id, neither the epoch nor the layout binds, nor a clock that was ahead.
#[test]
fn a_file_without_ids_bounds_little() {
    let unissued = |file| {
        Some(Stored {
            issued: false,
            clean: true,
            ..file
        })
    };
    let hour = 3_600_000;
    let other = Start {
        epoch_ms: START.epoch_ms + hour,
        layout: Layout::parse("41/6/6").unwrap(),
        ..START
    };
    for (until_ms, floor_ms) in [(NOW - 7, NOW - 7), (NOW + hour, NOW + OTHERS)] {
        for start in [START, other] {
            assert_eq!(floor(start, unissued(stored(until_ms))), Ok(floor_ms));
        }
    }
    // A copy does not tell what the original has issued since.
    for file in foreign(NOW) {
        assert!(floor(other, unissued(file)).is_err(), "{file:?}");
        assert_eq!(floor(START, unissued(file)), Ok(NOW + OTHERS), "{file:?}");
    }
}

#[test]
fn another_layout_is_refused_unless_its_ids_are_larger() {
    let layout = |text| Layout::parse(text).unwrap();
    let start = |text| Start {
        layout: layout(text),
        ..START
    };
    let file = |text| {
        Some(Stored {
            layout: layout(text),
            ..stored(NOW)
        })
    };
    for wider in ["41/10/12", "44/6/12", "41/7/6"] {
        assert_eq!(floor(start(wider), file("41/6/6")), Ok(NOW), "{wider}");
        assert_eq!(
            floor(start("41/6/6"), file(wider)),
            Err(Refusal::LayoutChanged {
                stored: layout(wider).pack().into()
            }),
            "{wider}"
        );
    }
    // As many bits, in other places.
    assert_eq!(floor(start("41/12/10"), file("41/10/12")), Ok(NOW));
    // But worker id 4 there has the bits of 1 here, whose ids a reset has retired.
    let far = NOW + 60_000;
    let reset = file("41/10/12").map(|file| Stored {
        left_behind_until_ms: Some(far),
        ..file
    });
    let at = |now_ms| Start {
        now_ms,
        ..start("41/12/10")
    };
    for now_ms in [NOW, far] {
        assert_eq!(
            floor(at(now_ms), reset),
            Err(Refusal::LayoutChanged {
                stored: layout("41/10/12").pack().into()
            })
        );
    }
    assert_eq!(floor(at(far + 1), reset), Ok(far));
    let same = Start {
        now_ms: NOW,
        ..START
    };
    assert_eq!(floor(same, reset), Ok(NOW));
    assert_eq!(floor(start("41/6/6"), file("41/6/6")), Ok(NOW));
    for file in foreign(NOW) {
        let file = |text| {
            Some(Stored {
                layout: layout(text),
                ..file
            })
        };
        let late = |text| Start {
            now_ms: NOW + 100_000_000,
            ..start(text)
        };
        assert!(floor(late("41/10/12"), file("41/6/6")).is_ok());
        assert!(floor(late("41/6/6"), file("41/10/12")).is_err());
        // As many bits in other places: a worker id there may be any here.
        assert!(floor(late("41/12/10"), file("41/10/12")).is_ok());
    }
}

#[test]
fn an_earlier_epoch_keeps_the_floor() {
    let earlier = Start {
        epoch_ms: START.epoch_ms - 1_000,
        ..START
    };
    assert_eq!(floor(earlier, Some(stored(NOW + 10))), Ok(NOW + 10));
    // Retired ids have another worker id, which waits for them.
    let reset = Stored {
        left_behind_until_ms: Some(NOW + 60_000),
        ..stored(NOW + 10)
    };
    assert_eq!(floor(earlier, Some(reset)), Ok(NOW + 10));
    let later = Start {
        epoch_ms: START.epoch_ms + 1_000,
        now_ms: NOW + 30_000,
        ..START
    };
    assert!(floor(later, Some(reset)).is_err());
    assert!(floor(later, Some(stored(NOW + 10))).is_ok());
}

#[test]
fn absurd_numbers_in_the_file_do_not_overflow() {
    assert_eq!(floor(START, Some(stored(i64::MAX))), Ok(i64::MAX));
    assert_eq!(floor(START, Some(stored(i64::MIN))), Ok(i64::MIN));
    for file in foreign(i64::MIN) {
        assert_eq!(floor(START, Some(file)), Ok(NOW + OTHERS));
    }
    for file in foreign(i64::MAX) {
        assert_eq!(floor(START, Some(file)), Ok(i64::MAX));
    }
    let other_epoch = Stored {
        epoch_ms: -1,
        ..stored(i64::MAX)
    };
    assert!(floor(START, Some(other_epoch)).is_err());
}

/// A cluster that has never issued an id has no predecessor, as long as there is no file.
#[test]
fn a_new_cluster_starts_at_its_clock() {
    let new = Start {
        never_issued: true,
        ..START
    };
    assert_eq!(
        reservation::floor(new, None),
        Ok(Floor {
            ms: NOW,
            reason: Reason::NewCluster,
        })
    );
    for file in foreign(NOW) {
        assert_eq!(floor(new, Some(file)), floor(START, Some(file)));
    }
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
    assert_eq!(texts.len(), 11);
    assert_eq!(Reason::decode(u32::MAX, 0), None);
}

/// Another server's clean stop does not bound the ids of this one.
#[test]
fn a_clean_stop_is_exact_only_for_its_own_server() {
    for file in foreign(NOW) {
        let file = Stored {
            clean: true,
            ..file
        };
        assert_eq!(floor(START, Some(file)), Ok(NOW + OTHERS), "{file:?}");
    }
}

mod target {
    //! Extent of a reservation.

    use super::*;

    /// Any reservation, max lead, and lead of the last id.
    #[test]
    fn as_far_as_a_reservation_and_a_crash_allow() {
        for write_ms in [0, 20, 90] {
            for reservation_ms in 1..=130 {
                for max_lead_ms in 0..=260 {
                    let terms = Terms {
                        reservation_ms,
                        max_lead_ms,
                        write_ms,
                    };
                    let least_ms = reservation_ms.min(50);
                    let whole_ms = reservation_ms.max(3 * write_ms);
                    for lead_ms in -130..=390 {
                        let last = NOW + lead_ms;
                        let from = last.max(NOW);
                        let target = terms.target(NOW, last);
                        assert!((from + least_ms..=from + whole_ms).contains(&target));
                        // After a crash, the next run starts above it.
                        let survivable = NOW + max_lead_ms - least_ms;
                        assert!(target <= survivable.max(from + least_ms));
                        assert!(target >= survivable.min(from + whole_ms));
                        assert!(target <= terms.target(NOW + 1, last));
                        assert!(target <= terms.target(NOW, last + 1));
                    }
                }
            }
        }
    }

    /// Otherwise a crash each second would increase the lead until nothing is issued.
    #[test]
    fn a_series_of_crashes_does_not_add_up() {
        let mut last = NOW;
        for crash in 0..1_000 {
            let now = NOW + crash * 300;
            assert!(last - now <= LEAD, "crash {crash}");
            last = TERMS.target(now, last);
        }
    }

    #[test]
    fn a_burst_leaves_room_for_a_crash() {
        for (wanted, burst) in [(0, 0), (100, 100), (LEAD, LEAD - RESERVATION), (-1, 0)] {
            assert_eq!(TERMS.lead(wanted).burst_ms, burst);
        }
        let small = Terms {
            write_ms: 0,
            max_lead_ms: 5,
            ..TERMS
        };
        assert_eq!(small.lead(100).burst_ms, 0);
    }
}

mod opening {
    //! Conditions and floor for opening the generator.

    use super::*;

    const fn own(ms: i64) -> Floor {
        Floor {
            ms,
            reason: Reason::Crash,
        }
    }

    /// The floor is long past, and nothing else prevents opening.
    const FREE: Opening = Opening {
        now_ms: NOW,
        last_ms: NOW - 100_000,
        floor: Some(own(NOW - 50_000)),
        granted_floor_ms: None,
        others_floor_ms: None,
        retired_until_ms: None,
        terms: TERMS,
    };

    fn above(opening: Opening) -> Option<Floor> {
        match opening.decide() {
            Decision::Open { floor, until_ms } => {
                assert_eq!(until_ms, TERMS.target(NOW, floor.ms));
                Some(floor)
            }
            Decision::WaitOut { .. } | Decision::WaitOutRetired { .. } => None,
        }
    }

    fn above_ms(opening: Opening) -> Option<i64> {
        above(opening).map(|floor| floor.ms)
    }

    #[test]
    fn it_opens_above_the_floor_and_the_last_id() {
        assert_eq!(above(FREE), FREE.floor);
        let last_ms = NOW - 10;
        assert_eq!(above_ms(Opening { last_ms, ..FREE }), Some(last_ms));
        // A retired worker id whose time has passed.
        let retired_until_ms = Some(NOW - 5);
        let retired = Opening {
            retired_until_ms,
            last_ms,
            ..FREE
        };
        assert_eq!(above_ms(retired), retired_until_ms);
        // If only the registry's floor applies, the last id still does.
        let granted = Opening {
            floor: None,
            granted_floor_ms: Some(NOW - 20),
            ..FREE
        };
        assert_eq!(above_ms(granted), Some(NOW - 20));
        assert_eq!(above_ms(Opening { last_ms, ..granted }), Some(last_ms));
    }

    #[test]
    fn it_opens_at_once_ahead_of_the_clock_as_far_as_ids_may_lead() {
        for ahead in [0, 1, RESERVATION, LEAD] {
            let ms = NOW + ahead;
            for opening in [
                Opening {
                    floor: Some(own(ms)),
                    ..FREE
                },
                Opening {
                    last_ms: ms,
                    ..FREE
                },
                Opening {
                    retired_until_ms: Some(ms),
                    ..FREE
                },
                Opening {
                    granted_floor_ms: Some(ms),
                    ..FREE
                },
            ] {
                assert_eq!(above_ms(opening), Some(ms), "{ahead}");
            }
        }
    }

    #[test]
    fn what_is_further_ahead_is_waited_out() {
        let last_ms = NOW + LEAD + 7;
        let until_ms = NOW + 7;
        let wait = Decision::WaitOut { until_ms };
        let floor = Some(own(last_ms));
        assert_eq!(Opening { floor, ..FREE }.decide(), wait);
        assert_eq!(Opening { last_ms, ..FREE }.decide(), wait);
        let retired = Opening {
            retired_until_ms: Some(last_ms),
            ..FREE
        };
        assert_eq!(retired.decide(), Decision::WaitOutRetired { until_ms });
        let absurd = Opening {
            floor: Some(own(i64::MAX)),
            ..FREE
        };
        assert!(matches!(absurd.decide(), Decision::WaitOut { .. }));
    }

    /// Another server may have used it, or whatever ran here before.
    #[test]
    fn a_floor_above_others_is_waited_for_once() {
        let floor = floor_of(Reason::NoFile);
        let others_floor_ms = Some(floor.ms);
        for opening in [
            Opening {
                floor: Some(floor),
                ..FREE
            },
            Opening {
                others_floor_ms,
                ..FREE
            },
        ] {
            let until_ms = NOW + RESERVATION;
            assert_eq!(opening.decide(), Decision::WaitOut { until_ms });
            let now_ms = until_ms;
            let waited = Opening { now_ms, ..opening };
            let Decision::Open { floor: opened, .. } = waited.decide() else {
                panic!("{:?}", waited.decide());
            };
            assert_eq!(opened.ms, floor.ms);
        }
        let other = Opening {
            now_ms: NOW + RESERVATION,
            others_floor_ms,
            ..FREE
        };
        let expected = floor_of(Reason::OtherWorkerId);
        assert!(matches!(other.decide(), Decision::Open { floor, .. } if floor == expected));
    }

    fn floor_of(reason: Reason) -> Floor {
        let ms = TERMS.above_others_ms(NOW);
        assert_eq!(ms, NOW + OTHERS);
        Floor { ms, reason }
    }
}

mod renewal {
    //! Time and extent of a renewal.

    use super::*;

    /// In use, with half of it left.
    const HALF: Renewal = Renewal {
        now_ms: NOW,
        last_ms: NOW,
        reserved_until_ms: NOW + RESERVATION / 2,
        recorded_until_ms: i64::MAX,
        renewed_at_ms: NOW - RESERVATION / 2,
        wanted: false,
        terms: TERMS,
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
    fn in_the_lead_by_what_is_left_above_the_last_id() {
        let last_ms = NOW + 2_000;
        let leading = |left, wanted| Renewal {
            last_ms,
            reserved_until_ms: last_ms + left,
            wanted,
            ..HALF
        };
        assert_eq!(
            leading(2_500, false).decide(),
            Renew::Until(last_ms + 5_000)
        );
        assert_eq!(leading(2_501, false).decide(), Renew::Later(Some(1)));
        // At the max lead: half of the possible reservation is renewed, and then no more.
        let last_ms = NOW + LEAD;
        let most = |left, wanted| Renewal {
            last_ms,
            ..leading(left, wanted)
        };
        let most = |left, wanted| Renewal {
            reserved_until_ms: last_ms + left,
            ..most(left, wanted)
        };
        assert_eq!(most(26, false).decide(), Renew::Later(Some(1)));
        assert_eq!(most(25, false).decide(), Renew::Until(last_ms + 50));
        assert_eq!(most(50, true).decide(), Renew::Enough);
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
        let late = |last, reserved, recorded| late_renewal(NOW, last, TERMS, reserved, recorded);
        assert_eq!(late(NOW, NOW, i64::MAX), Some(NOW + RESERVATION));
        assert_eq!(late(NOW, NOW, NOW + 3), Some(NOW + 3));
        assert_eq!(late(NOW, NOW + RESERVATION, i64::MAX), None);
        assert_eq!(late(NOW, NOW + 3, NOW + 3), None);
        // Also while ids lead the clock, or calls would hang.
        let last = NOW + 7_000;
        assert_eq!(late(last, last, i64::MAX), Some(NOW + LEAD - 50));
    }
}
