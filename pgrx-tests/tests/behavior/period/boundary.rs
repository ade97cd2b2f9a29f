//! Would catch: a number of the old period after one of the new (I4), a number twice when the
//! clock goes over a boundary, back, and over several (I3), a period that begins early or late,
//! also where midnight does not exist or comes twice, and numbers that are used up for longer than
//! their period.

use std::sync::atomic::Ordering;
use std::time::Duration;

use leaf_id_tests::{
    Call, Clock, PROMPTLY, Session, assert_in_order, assert_issued_once, in_threads,
    in_threads_until, promptly, tell, wait_until,
};

use super::{AFTER, BEFORE, DAY_MS, MIDNIGHT_MS, NUMBERS, create_daily, parts, server_at, set_to};

const SESSIONS: usize = 16;
const LIMIT: Duration = Duration::from_secs(30);

/// A call, and what the clock showed before and after it.
struct Timed {
    call: Call,
    ids: Vec<i64>,
    began_ms: i64,
    ended_ms: i64,
}

fn timed_take(session: &mut Session, clock: &Clock, n: i32) -> Timed {
    let began_ms = clock.now_ms();
    let mut ids = Vec::new();
    let call = Call::make(|| {
        ids = session.take("t", n);
        ids.clone()
    });
    Timed {
        call,
        ids,
        began_ms,
        ended_ms: clock.now_ms(),
    }
}

/// What a cursor has begun to read is not read on the day after.
#[test]
fn a_batch_that_is_read_slowly_does_not_go_back() {
    let server = server_at(MIDNIGHT_MS - 60_000, &[]);
    let mut session = server.session();
    create_daily(&mut session, "t", 500, 5000);
    session.run("BEGIN; DECLARE c CURSOR FOR SELECT leaf_segment_next_batch('t', 50)");
    let mut ids = session.ids("FETCH 2 c");
    set_to(&server.clock(), MIDNIGHT_MS + 10);
    ids.push(server.session().next("t"));
    ids.extend(session.ids("FETCH 48 c"));
    let periods: Vec<_> = ids.iter().map(|id| parts(*id).0).collect();
    assert_eq!(periods[..3], [BEFORE, BEFORE, AFTER]);
    assert!(periods[3..].iter().all(|period| *period == AFTER));
    assert!(ids.is_sorted());
    assert_eq!(ids.len(), 51);
}

#[test]
fn sixteen_sessions_go_over_a_boundary_at_once_and_punctually() {
    let server = server_at(MIDNIGHT_MS - 60_000, &[]);
    let clock = server.clock();
    create_daily(&mut server.session(), "t", 500, 5000);
    let mut sessions: Vec<_> = (0..SESSIONS).map(|_| Some(server.session())).collect();
    for session in sessions.iter_mut().flatten() {
        session.next("t");
    }
    let sessions: Vec<_> = sessions.into_iter().map(std::sync::Mutex::new).collect();
    set_to(&clock, MIDNIGHT_MS - 1500);
    let takes: Vec<Vec<Timed>> = in_threads(SESSIONS, |i| {
        let mut session = sessions[i].lock().unwrap().take().unwrap();
        let mut takes = Vec::new();
        while clock.now_ms() < MIDNIGHT_MS + 1500 {
            takes.push(timed_take(&mut session, &clock, [1, 1, 7, 60][i % 4]));
        }
        takes
    });
    let by_session = |takes: &Vec<Timed>| -> Vec<i64> {
        takes.iter().flat_map(|take| take.ids.clone()).collect()
    };
    assert_issued_once(takes.iter().map(by_session));
    assert_in_order(takes.iter().flatten().map(|take| take.call).collect());
    let (mut first_new, mut last_old) = (i64::MAX, i64::MIN);
    for take in takes.iter().flatten() {
        for id in &take.ids {
            let (period, number) = parts(*id);
            assert!([BEFORE, AFTER].contains(&period) && number > 0, "{id}");
            // A millisecond, as this clock is read in whole ones.
            assert!(
                period == AFTER || take.began_ms <= MIDNIGHT_MS,
                "{id} is late"
            );
            assert!(
                period == BEFORE || take.ended_ms >= MIDNIGHT_MS,
                "{id} is early"
            );
        }
        if take.ids.iter().all(|id| parts(*id).0 == AFTER) {
            first_new = first_new.min(take.ended_ms - MIDNIGHT_MS);
        } else if take.ids.iter().all(|id| parts(*id).0 == BEFORE) {
            last_old = last_old.max(take.ended_ms - MIDNIGHT_MS);
        }
    }
    let all: Vec<i64> = takes.iter().flat_map(by_session).collect();
    assert!(all.contains(&(AFTER * NUMBERS + 1)), "it begins at 1");
    tell(&format!(
        "period: {} ids; the last call with the old day ended {last_old} ms after midnight, the first with the new one {first_new} ms after",
        all.len()
    ));
    assert!(
        last_old <= 10_000 && first_new <= 10_000,
        "on a busy machine"
    );
}

/// The period goes with the clock where that is later, and never back.
#[test]
fn a_clock_that_is_set_back_and_forward_repeats_no_number() {
    let server = server_at(MIDNIGHT_MS - 600_000, &[]);
    let clock = server.clock();
    create_daily(&mut server.session(), "t", 20, 1000);
    let first = server.session().next("t");
    let (takes, between) = in_threads_until(
        SESSIONS,
        |i, done| {
            let mut session = server.session();
            let mut calls = Vec::new();
            let mut ids = Vec::new();
            while !done.load(Ordering::Relaxed) {
                calls.push(Call::make(|| {
                    let taken = session.take("t", [1, 3, 50][i % 3]);
                    ids.extend(&taken);
                    taken
                }));
            }
            (calls, ids)
        },
        || {
            let mut session = server.session();
            let mut ids = Vec::new();
            for ms in [
                MIDNIGHT_MS - 200,
                MIDNIGHT_MS + 100,
                MIDNIGHT_MS - 5000,
                MIDNIGHT_MS - 3_600_000,
                MIDNIGHT_MS + 3 * DAY_MS - 2000,
                MIDNIGHT_MS + 3 * DAY_MS + 10,
                MIDNIGHT_MS - 10,
                MIDNIGHT_MS + DAY_MS - 300,
                MIDNIGHT_MS + 400 * DAY_MS,
                MIDNIGHT_MS - DAY_MS,
                MIDNIGHT_MS + 400 * DAY_MS + 5,
            ] {
                set_to(&clock, ms);
                ids.push(session.next("t"));
                // Some ids of this time, and over what boundary there is.
                wait_until(LIMIT, "that time to pass", || clock.now_ms() >= ms + 300);
                ids.push(session.next("t"));
            }
            ids
        },
    );
    let (mut calls, mut ids): (Vec<_>, Vec<_>) = takes.into_iter().unzip();
    ids.extend([vec![first], between]);
    assert_issued_once(&ids);
    let mut periods: Vec<_> = ids.iter().flatten().map(|id| parts(*id).0).collect();
    assert_in_order(calls.drain(..).flatten().collect());
    periods.sort_unstable();
    periods.dedup();
    println!("{periods:?}");
    assert_eq!(periods, [BEFORE, AFTER, 20_261_125, 20_261_126, 20_271_228]);
}

/// Midnight that does not exist, comes twice, or whose day does not exist.
#[test]
fn a_period_begins_at_the_first_instant_of_its_date_wherever_that_is() {
    let server = server_at(MIDNIGHT_MS, &[]);
    let clock = server.clock();
    let mut session = server.session();
    for (number, (zone, unit, boundary, before, after)) in [
        (
            "America/Havana",
            "day",
            1_772_946_000,
            20_260_307,
            20_260_308,
        ),
        (
            "Atlantic/Azores",
            "day",
            1_792_886_400,
            20_261_024,
            20_261_025,
        ),
        ("Pacific/Apia", "day", 1_325_239_200, 20_111_229, 20_111_231),
        ("Europe/Berlin", "month", 1_793_487_600, 202_610, 202_611),
        ("Asia/Kolkata", "year", 1_798_741_800, 2026, 2027),
        ("<+03>-3", "year", 1_798_750_800, 2026, 2027),
    ]
    .into_iter()
    .enumerate()
    {
        let tag = format!("t{number}");
        session.run(&format!(
            "SELECT leaf_tag_create('{tag}', step => 10, period => '{unit}',
                 time_zone => '{zone}', digits => 4)"
        ));
        set_to(&clock, boundary * 1000 - 20_000);
        assert_eq!(
            session.take(&tag, 2),
            [before * 10_000 + 1, before * 10_000 + 2],
            "{zone}"
        );
        let ends = format!(
            "SELECT extract(epoch FROM period_ends)::bigint FROM leaf_segment_status
             WHERE tag = '{tag}'"
        );
        assert_eq!(session.value::<i64>(&ends), boundary, "{zone}");
        set_to(&clock, boundary * 1000 + 5);
        assert_eq!(
            session.take(&tag, 2),
            [after * 10_000 + 1, after * 10_000 + 2],
            "{zone}"
        );
        // Clocks that are put back do not bring the old date back.
        set_to(&clock, boundary * 1000 + 2 * 3_600_000);
        assert_eq!(session.next(&tag), after * 10_000 + 3, "{zone}");
    }
}

/// Would catch: an alert at each midnight, of what a day leaves unused.
#[test]
fn what_a_period_leaves_unused_is_not_lost() {
    let server = server_at(MIDNIGHT_MS - 3_600_000, &[]);
    let mut session = server.session();
    create_daily(&mut session, "t", 1000, 1000);
    session.take("t", 3);
    session.wait_for_spare("t");
    set_to(&server.clock(), MIDNIGHT_MS + 1000);
    session.take("t", 3);
    let counts = "SELECT ids_issued || ' ' || ids_lost FROM leaf_segment_status WHERE tag = 't'";
    assert_eq!(session.value::<String>(counts), "6 0");
}

#[test]
fn numbers_that_are_used_up_come_again_with_the_next_period() {
    let server = server_at(MIDNIGHT_MS - 3_600_000, &[]);
    let clock = server.clock();
    let mut session = server.session();
    session.run(
        "SELECT leaf_tag_create('t', period => 'day', time_zone => 'Europe/Berlin', digits => 2)",
    );
    let ids = session.take("t", 99);
    assert_eq!((ids[0], ids[98]), (BEFORE * 100 + 1, BEFORE * 100 + 99));
    for _ in 0..3 {
        let failure = promptly(|| session.fails("SELECT leaf_segment_next('t')"));
        failure
            .is("2200H")
            .says("used up the numbers of this period")
            .details("2026-11-2")
            .hints("digits");
    }
    // The rest of a batch does not come from anywhere else.
    session
        .fails("SELECT leaf_segment_next_batch('t', 2)")
        .is("2200H");
    session
        .fails("SELECT leaf_segment_next_range('t', 2)")
        .is("2200H");
    // Longer than a request is held: until when depends on the clock.
    set_to(&clock, MIDNIGHT_MS - 2500);
    let mut early = 0;
    let mut id = None;
    wait_until(LIMIT, "the next period", || {
        let began_ms = clock.now_ms();
        match session.try_next("t") {
            Ok(first) => id = Some(first),
            Err(failure) => {
                failure.is("2200H");
                assert!(
                    began_ms <= MIDNIGHT_MS,
                    "{} ms late",
                    began_ms - MIDNIGHT_MS
                );
                early += 1;
            }
        }
        id.is_some()
    });
    let late_ms = clock.now_ms() - MIDNIGHT_MS;
    tell(&format!(
        "period: numbers again {late_ms} ms after midnight"
    ));
    assert!(early > 0);
    assert!((0..=10_000).contains(&late_ms), "{late_ms} ms");
    assert_eq!(id, Some(AFTER * 100 + 1));
    // The clock is set over it: no longer than a request is held.
    session.take("t", 98);
    session.fails("SELECT leaf_segment_next('t')").is("2200H");
    set_to(&clock, MIDNIGHT_MS + DAY_MS + 10);
    let next = leaf_id_tests::timed(|| session.next("t"));
    assert_eq!(next.0, (AFTER + 1) * 100 + 1);
    assert!(next.1 < PROMPTLY);
}
