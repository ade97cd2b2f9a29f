//! Synthetic histories, correct and faulty.

use std::time::Duration;

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A synthetic history of one tag and the snowflake generator.
struct Forged(History);

impl Forged {
    fn new() -> Self {
        let sources = vec![Source::Tag("t".into()), Source::Snowflake];
        Self(History::new(&std::env::temp_dir(), 1, sources, 3))
    }

    /// Two servers, with session 0 on the first and session 1 on the second. The ids of the tag are
    /// claimed on a third one.
    fn fleet() -> Self {
        let sources = vec![Source::Tag("t".into())];
        Self(History::new(&std::env::temp_dir(), 2, sources, 2))
    }

    /// Settles a fleet. `ends`: ends of the claims on both servers and the central one. `cached`:
    /// cached ids of each server.
    fn check_fleet(&self, ends: [i64; 3], cached: [&[i64]; 2]) -> Result<Window, Fault> {
        let claimed = |server: usize| Claimed {
            end: ends[server],
            max_value: 1000,
            cached: IdRange::of(cached[server]),
            dropped: 0,
        };
        let claims = Claims {
            end: ends[2],
            servers: vec![claimed(0), claimed(1)],
        };
        let checked = self.0.check(&[claims]);
        checked.map_or_else(|(_, fault)| Err(fault), |mut windows| Ok(windows.remove(0)))
    }

    /// A successful call of a session between two times, in seconds.
    fn got(&self, session: usize, seconds: (u32, u32), ids: &[i64]) -> &Self {
        self.note(session, 0, seconds, ids.len(), Ok(IdRange::of(ids)))
    }

    fn cut(&self, session: usize, seconds: (u32, u32), asked: usize) -> &Self {
        let failure = Failure {
            state: "57P01".into(),
            message: String::new(),
            detail: String::new(),
            hint: String::new(),
        };
        self.note(session, 0, seconds, asked, Err(failure))
    }

    fn note(
        &self,
        session: usize,
        source: usize,
        (start, end): (u32, u32),
        asked: usize,
        outcome: Result<Vec<IdRange>, Failure>,
    ) -> &Self {
        self.0.notes[session].lock().push(Note {
            caller: Caller {
                server: session % self.0.servers,
                session,
            },
            source,
            kind: "forged",
            start: self.0.began + SECOND * start,
            end: self.0.began + SECOND * end,
            asked: u32::try_from(asked).unwrap(),
            outcome,
        });
        self
    }

    /// Settles with a `max_id` and cached ids.
    fn check(&self, max_id: i64, cached: &[i64]) -> Result<Window, Fault> {
        self.check_dropped(max_id, cached, 0)
    }

    fn check_dropped(&self, end: i64, cached: &[i64], dropped: u64) -> Result<Window, Fault> {
        let claimed = Claimed {
            end,
            max_value: 1000,
            cached: IdRange::of(cached),
            dropped,
        };
        let endless = Claimed {
            end: i64::MAX,
            max_value: i64::MAX,
            cached: Vec::new(),
            dropped: 0,
        };
        match self.0.check(&[claimed.into(), endless.into()]) {
            Ok(mut windows) => Ok(windows.remove(0)),
            Err((source, fault)) => {
                println!("{source}: {fault}");
                Err(fault)
            }
        }
    }
}

#[test]
fn what_is_right_passes() {
    let forged = Forged::new();
    forged
        .got(0, (0, 2), &[1, 2, 5])
        .got(1, (1, 3), &[3, 4])
        .got(0, (3, 4), &[6]);
    let window = forged.check(11, &[7, 8, 9, 10]).unwrap();
    assert_eq!((window.ids["forged"], window.lost), (6, 0));
    assert_eq!(window.longest_call, SECOND * 2);
    assert_eq!(window.longest_silence, SECOND * 2);
    forged.got(2, (5, 6), &[7]);
    let window = forged.check(11, &[8, 9, 10]).unwrap();
    assert_eq!((window.ids["forged"], window.lost), (1, 0));
}

#[test]
fn a_duplicate_is_found() {
    let at_once = Forged::new();
    at_once.got(0, (0, 2), &[1, 2, 3]).got(1, (1, 3), &[3, 4]);
    assert_eq!(at_once.check(11, &[]).unwrap_err(), Fault::Twice(3));
    let within = Forged::new();
    within.got(0, (0, 2), &[1, 2, 2]);
    assert_eq!(within.check(11, &[]).unwrap_err(), Fault::Twice(2));
    let inside = Forged::new();
    inside.got(0, (0, 2), &[1, 2, 3, 4]).got(1, (1, 3), &[2]);
    assert_eq!(inside.check(11, &[]).unwrap_err(), Fault::Twice(2));
    // Repeats an id that was settled before.
    let later = Forged::new();
    later.got(0, (0, 1), &[1, 2, 3]).check(11, &[]).unwrap();
    later.got(0, (2, 3), &[4]).check(11, &[]).unwrap();
    later.got(1, (4, 5), &[2]);
    assert_eq!(later.check(11, &[]).unwrap_err(), Fault::Twice(2));
    let snowflake = Forged::new();
    for session in [0, 1] {
        let range = IdRange { first: 7, last: 7 };
        snowflake.note(session, 1, (0, 1), 1, Ok(vec![range]));
    }
    assert_eq!(snowflake.check(11, &[]).unwrap_err(), Fault::Twice(7));
}

#[test]
fn a_new_incarnation_may_issue_again_and_once_only() {
    let forged = Forged::new();
    forged.got(0, (0, 1), &[5, 6]).check(11, &[]).unwrap();
    forged.0.begin_incarnation(0, 5);
    let window = forged.got(0, (2, 3), &[5, 6]).check(7, &[]).unwrap();
    assert_eq!(window.lost, 0);
    forged.got(1, (4, 5), &[6]);
    assert_eq!(forged.check(11, &[]).unwrap_err(), Fault::Twice(6));
}

#[test]
fn a_broken_order_is_found() {
    let within = Forged::new();
    within.got(0, (0, 1), &[2, 1]);
    let fault = Fault::Order { id: 1, after: 2 };
    assert_eq!(within.check(11, &[]).unwrap_err(), fault);
    let across = Forged::new();
    across.got(0, (0, 2), &[1, 9]).got(1, (3, 4), &[8]);
    let fault = Fault::Order { id: 8, after: 9 };
    assert_eq!(across.check(11, &[]).unwrap_err(), fault);
    // Overlapping calls may have ids in any order.
    let at_once = Forged::new();
    at_once.got(0, (0, 3), &[1, 9]).got(1, (3, 4), &[8]);
    at_once.check(11, &[]).unwrap();
    at_once.got(2, (5, 6), &[7]);
    let fault = Fault::Order { id: 7, after: 9 };
    assert_eq!(at_once.check(11, &[]).unwrap_err(), fault);
}

#[test]
fn an_id_outside_of_the_claims_is_found() {
    for (ids, unclaimed) in [([9, 11], 11), ([0, 1], 0), ([1000, 1001], 1001)] {
        let forged = Forged::new();
        forged.got(0, (0, 1), &ids);
        let max_id = if unclaimed == 1001 { 2000 } else { 11 };
        let fault = Fault::Unclaimed(unclaimed);
        assert_eq!(forged.check(max_id, &[]).unwrap_err(), fault);
    }
    let skipped = Forged::new();
    skipped.0.skip(0, 3, 6);
    skipped.got(0, (0, 1), &[1, 2, 6]).check(7, &[]).unwrap();
    skipped.0.skip(0, 7, 10);
    skipped.got(0, (2, 3), &[8]);
    let fault = Fault::Unclaimed(8);
    assert_eq!(skipped.check(11, &[]).unwrap_err(), fault);
}

#[test]
fn an_id_that_is_still_cached_is_found() {
    let forged = Forged::new();
    forged.got(0, (0, 1), &[1, 2, 3]);
    let fault = Fault::StillCached(3);
    assert_eq!(forged.check(11, &[3, 4]).unwrap_err(), fault);
}

#[test]
fn a_wrong_number_of_ids_is_found() {
    let forged = Forged::new();
    forged.note(0, 0, (0, 1), 3, Ok(IdRange::of(&[1, 2])));
    let fault = Fault::Count { asked: 3, got: 2 };
    assert_eq!(forged.check(11, &[]).unwrap_err(), fault);
}

#[test]
fn lost_ids_are_counted() {
    let forged = Forged::new();
    forged.got(0, (0, 1), &[1, 2, 4]);
    let window = forged.check(11, &[6, 7, 8, 9, 10]).unwrap();
    assert_eq!((window.lost, window.unexplained()), (2, 2));
    // Only new losses count, and a failed call may have used the id.
    forged.got(0, (2, 3), &[7]).cut(1, (2, 3), 1);
    let window = forged.check(11, &[8, 9, 10]).unwrap();
    assert_eq!((window.lost, window.unexplained()), (1, 0));
    // The status view counts the losses.
    forged.got(0, (4, 5), &[10]);
    let window = forged.check_dropped(21, &[], 11).unwrap();
    assert_eq!((window.lost, window.unexplained()), (12, 1));
    // Ids skipped by an edit are not lost.
    forged.0.skip(0, 21, 31);
    assert_eq!(forged.check_dropped(31, &[], 11).unwrap().lost, 0);
    // The view restarts from 0 after a restart.
    let window = forged.check_dropped(35, &[], 3).unwrap();
    assert_eq!((window.lost, window.unexplained()), (4, 1));
}

#[test]
fn servers_may_issue_in_any_order_between_them() {
    let fleet = Forged::fleet();
    fleet.got(0, (0, 1), &[11, 12]).got(1, (2, 3), &[1, 2]);
    let window = fleet.check_fleet([21, 11, 31], [&[15], &[3, 4]]).unwrap();
    assert_eq!((window.ids["forged"], window.lost), (4, 30 - 4 - 3));
    fleet.got(0, (4, 5), &[13]).got(1, (4, 5), &[5]);
    let window = fleet.check_fleet([21, 11, 31], [&[15], &[]]).unwrap();
    assert_eq!(window.lost, 0);
    // Each server has an order of its own.
    fleet.got(0, (6, 7), &[14]).got(1, (6, 7), &[4]);
    let fault = Fault::Order { id: 4, after: 5 };
    assert_eq!(fleet.check_fleet([21, 11, 31], [&[]; 2]), Err(fault));
}

#[test]
fn a_duplicate_of_another_server_is_found() {
    let at_once = Forged::fleet();
    at_once.got(0, (0, 1), &[1, 2]).got(1, (0, 1), &[2, 3]);
    let twice = Err(Fault::Twice(2));
    assert_eq!(at_once.check_fleet([11, 11, 11], [&[]; 2]), twice);
    let later = Forged::fleet();
    later.got(0, (0, 1), &[1, 2]);
    later.check_fleet([11, 11, 11], [&[]; 2]).unwrap();
    later.got(1, (2, 3), &[2]);
    assert_eq!(later.check_fleet([11, 11, 11], [&[]; 2]), twice);
}

#[test]
fn an_id_that_only_the_server_itself_or_only_the_central_server_knows_is_found() {
    for ends in [[11, 21, 21], [21, 21, 11]] {
        let fleet = Forged::fleet();
        fleet.got(0, (0, 1), &[11]);
        let fault = Err(Fault::Unclaimed(11));
        assert_eq!(fleet.check_fleet(ends, [&[]; 2]), fault);
    }
    // The ids are cached, but not issued yet.
    let fleet = Forged::fleet();
    let fault = Err(Fault::Unclaimed(11));
    assert_eq!(fleet.check_fleet([21, 21, 11], [&[10, 11], &[]]), fault);
}

#[test]
fn an_id_that_another_server_has_cached_is_found() {
    let issued = Forged::fleet();
    issued.got(0, (0, 1), &[5, 6]);
    let fault = Err(Fault::StillCached(6));
    assert_eq!(issued.check_fleet([11, 11, 11], [&[], &[6, 7]]), fault);
    let idle = Forged::fleet();
    let fault = Err(Fault::CachedTwice(7));
    assert_eq!(idle.check_fleet([11, 11, 11], [&[6, 7], &[7, 8]]), fault);
}

#[test]
fn a_server_that_is_down_is_no_excuse_for_another_one() {
    let fleet = Forged::fleet();
    let at = |seconds| fleet.0.began + SECOND * seconds;
    fleet.0.outages.lock().push(Outage {
        server: 0,
        from: at(1),
        to: at(9),
    });
    fleet.got(0, (0, 9), &[1]);
    let window = fleet.check_fleet([11, 11, 11], [&[]; 2]).unwrap();
    assert_eq!(window.longest_call, SECOND);
    fleet.got(1, (0, 9), &[2]);
    let window = fleet.check_fleet([11, 11, 11], [&[]; 2]).unwrap();
    assert_eq!(window.longest_call, SECOND * 9);
}

#[test]
fn time_without_a_server_does_not_count() {
    let forged = Forged::new();
    let at = |seconds| forged.0.began + SECOND * seconds;
    forged.0.outages.lock().push(Outage {
        server: 0,
        from: at(2),
        to: at(7),
    });
    forged
        .got(0, (0, 1), &[1])
        .got(0, (1, 9), &[2])
        .cut(1, (6, 8), 1);
    let window = forged.check(3, &[]).unwrap();
    assert_eq!(window.longest_call, SECOND * 3);
    assert_eq!(window.longest_silence, SECOND * 3);
    assert_eq!(window.cut[0].took, SECOND);
}

#[test]
fn a_fault_leaves_the_history_in_a_file() {
    let forged = Forged::new();
    let dir = std::env::temp_dir().join(format!("history-{}", std::process::id()));
    fs::create_dir(&dir).unwrap();
    let forged = Forged(History {
        dir: dir.clone(),
        ..forged.0
    });
    forged.got(0, (0, 1), &[4, 5, 7]).cut(1, (1, 2), 3);
    let failed =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| forged.0.fail("a reason")));
    assert!(failed.is_err());
    let text = fs::read_to_string(dir.join("history")).unwrap();
    fs::remove_dir_all(&dir).unwrap();
    assert!(
        text.contains("0 1000000 0 0 tag t forged 3: 4..5 7..7\n"),
        "{text}"
    );
    assert!(
        text.contains("1000000 2000000 0 1 tag t forged 3: 57P01 \n"),
        "{text}"
    );
}
