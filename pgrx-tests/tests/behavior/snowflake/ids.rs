//! Would catch: snowflake ids that repeat or go back (I4, I7), between sessions, when the worker id
//! changes, or after a stop or a crash. Their parts are tested in sql/snowflake.sql.

use std::fs;
use std::time::Duration;

use leaf_id_tests::{
    Call, Server, Session, Stop, assert_in_order, assert_issued_once, in_threads, promptly, timed,
    wait_until, while_repeating,
};

const LIMIT: Duration = Duration::from_secs(30);
const EPOCH_MS: i64 = 1_288_834_974_657;

fn server_with_worker(id: &str) -> Server {
    Server::with_leaf_id(&[("leaf_id.worker_id", id)])
}

/// A server that has issued with this reservation, after one with a short one.
fn server_with_reservation(length: &str) -> Server {
    let server = Server::with_leaf_id(&[
        ("leaf_id.worker_id", "5"),
        ("leaf_id.timestamp_reservation", "100ms"),
    ]);
    next(&mut server.session());
    server.set("leaf_id.timestamp_reservation", length);
    server.restart();
    next(&mut server.session());
    server
}

fn next(session: &mut Session) -> i64 {
    session.value("SELECT leaf_snowflake_next()")
}

/// The next id, and the time until it was available: after a crash, the generator waits for the end
/// of the reservation.
fn next_in_time(session: &mut Session) -> (i64, Duration) {
    let mut ids = Vec::new();
    let ((), took) = timed(|| {
        wait_until(LIMIT, "a snowflake id", || {
            session
                .try_column::<i64>("SELECT leaf_snowflake_next()")
                .is_ok_and(|issued| {
                    ids = issued;
                    true
                })
        });
    });
    (ids[0], took)
}

fn worker_of(id: i64) -> i64 {
    id >> 12 & 1023
}

#[test]
fn ids_of_eight_sessions_are_distinct_and_increase() {
    let server = server_with_worker("7");
    let (drawn, took) = timed(|| {
        in_threads(8, |_| {
            let mut session = server.session();
            let sql = "SELECT array_agg(leaf_snowflake_next()) FROM generate_series(1, 500)";
            (0..100)
                .flat_map(|_| session.value::<Vec<i64>>(sql))
                .collect::<Vec<_>>()
        })
    });
    println!("400,000 ids in {took:?}");
    assert_eq!(drawn.iter().map(Vec::len).sum::<usize>(), 400_000);
    assert_issued_once(&drawn);
    assert!(drawn.iter().flatten().all(|id| worker_of(*id) == 7));
}

#[test]
fn ids_follow_the_order_of_calls_across_sessions_and_worker_ids() {
    let server = server_with_worker("1");
    let (mut a, mut b) = (server.session(), server.session());
    let alternating: Vec<_> = (0..1000)
        .flat_map(|_| [next(&mut a), next(&mut b)])
        .collect();
    assert_issued_once(&[alternating]);
    let mut worker = 0;
    let calls = while_repeating(
        || {
            worker = (worker + 77) % 1024;
            server.set("leaf_id.worker_id", &worker.to_string());
            wait_until(LIMIT, "the new worker id", || {
                worker_of(next(&mut a)) == worker
            });
        },
        || {
            in_threads(6, |i| {
                let mut session = server.session();
                (0..1500)
                    .map(|round| {
                        let n = (round + i) % 30 + 1;
                        let sql = match n {
                            ..20 => "SELECT leaf_snowflake_next()".into(),
                            _ => format!("SELECT leaf_snowflake_next_batch({n})"),
                        };
                        Call::make(|| session.ids(&sql))
                    })
                    .collect::<Vec<_>>()
            })
        },
    );
    assert_in_order(calls.concat());
}

#[test]
fn a_new_worker_id_takes_effect_by_reload_and_keeps_the_order() {
    let server = Server::with_leaf_id(&[]);
    let (mut a, mut b) = (server.session(), server.session());
    for call in ["leaf_snowflake_next()", "leaf_snowflake_next_batch(3)"] {
        a.fails(&format!("SELECT {call}"))
            .is("55000")
            .says("leaf_id.worker_id")
            .hints("a number that no other server has");
    }
    let mut ids = Vec::new();
    for worker in [900, 3, 1023, 0] {
        server.set("leaf_id.worker_id", &worker.to_string());
        wait_until(LIMIT, "the new worker id", || {
            let issued = [
                a.try_column::<i64>("SELECT leaf_snowflake_next()"),
                b.try_column::<i64>("SELECT leaf_snowflake_next()"),
            ];
            ids.extend(issued.into_iter().flatten().flatten());
            ids.last().is_some_and(|id| worker_of(*id) == worker)
        });
    }
    assert_issued_once(&[ids]);
    // Unset again: refused again.
    server.set("leaf_id.worker_id", "");
    wait_until(LIMIT, "the refusal", || {
        let refused = a
            .try_column::<i64>("SELECT leaf_snowflake_next()")
            .map_err(|f| f.state);
        refused == Err("55000".into())
    });
}

#[test]
fn after_a_clean_restart_ids_come_at_once_and_larger() {
    // Waiting for half of it would exceed the limits of this test.
    let server = server_with_reservation("60s");
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.extend(
            server
                .session()
                .ids("SELECT leaf_snowflake_next_batch(10000)"),
        );
        server.restart();
        let mut session = server.session();
        let (id, took) = next_in_time(&mut session);
        println!("the first id after the start took {took:?}");
        ids.push(id);
    }
    assert_issued_once(&[ids]);
}

/// A crash never leaves more than the max lead to wait for.
#[test]
fn a_long_reservation_keeps_no_session_waiting() {
    let server = server_with_reservation("1min");
    let mut ids = vec![next(&mut server.session())];
    server.crash();
    let (id, took) = promptly(|| next_in_time(&mut server.session()));
    println!("the first id after the crash took {took:?}");
    ids.push(id);
    assert_issued_once(&[ids]);
}

#[test]
fn what_leads_by_too_much_is_an_error_that_says_so() {
    let server =
        Server::with_leaf_id(&[("leaf_id.worker_id", "5"), ("leaf_id.max_clock_lead", "1h")]);
    next(&mut server.session());
    // Without it, ids go on above what any other server may have issued.
    server.stop(Stop::Fast);
    fs::remove_file(server.data_dir().join("leaf_id_reservation.json")).unwrap();
    server.launch();
    next(&mut server.session());
    server.set("leaf_id.max_clock_lead", "10s");
    for crash in [false, true] {
        if crash {
            server.crash();
        }
        let mut failure = None;
        wait_until(LIMIT, "a refusal", || {
            failure = server
                .session()
                .try_column::<i64>("SELECT leaf_snowflake_next()")
                .err();
            failure.is_some()
        });
        let failure = failure.unwrap();
        println!("{failure}");
        failure.is("55000");
        assert!(
            failure.detail.contains("may lead it by") || failure.detail.contains("max_clock_lead")
        );
        assert!(!failure.hint.is_empty());
    }
}

/// The file may be lost by a careless cleanup, or missing in a copy of the data directory.
#[test]
fn a_lost_reservation_repeats_nothing() {
    let server = Server::with_leaf_id(&[
        ("leaf_id.worker_id", "5"),
        ("leaf_id.timestamp_reservation", "2s"),
    ]);
    let mut ids = server
        .session()
        .ids("SELECT leaf_snowflake_next_batch(1000)");
    for crash in [false, true] {
        if crash {
            server.kill_9();
        } else {
            server.stop(Stop::Fast);
        }
        std::fs::remove_file(server.data_dir().join("leaf_id_reservation.json")).unwrap();
        server.launch();
        ids.push(next_in_time(&mut server.session()).0);
    }
    assert_issued_once(&[ids]);
}

#[test]
fn a_later_epoch_is_refused_and_an_earlier_one_is_not() {
    let server = server_with_worker("5");
    let before = next(&mut server.session());
    let later = EPOCH_MS + 86_400_000;
    server
        .session()
        .run(&format!("ALTER SYSTEM SET leaf_id.epoch = '{later}'"));
    server.restart();
    wait_until(LIMIT, "the refusal", || {
        let result = server
            .session()
            .try_column::<i64>("SELECT leaf_snowflake_next()");
        result.is_err_and(|failure| {
            failure.state == "55000" && failure.hint.contains(&EPOCH_MS.to_string())
        })
    });
    // A reset must not allow that, either: old ids would repeat, even with a correct clock.
    server
        .session()
        .fails("SELECT leaf_id.leaf_snowflake_reset(now())")
        .is("55000")
        .hints(&EPOCH_MS.to_string());
    let earlier = EPOCH_MS - 86_400_000;
    server
        .session()
        .run(&format!("ALTER SYSTEM SET leaf_id.epoch = '{earlier}'"));
    server.restart();
    let mut session = server.session();
    let (id, _) = next_in_time(&mut session);
    // The same time results in a larger id now.
    assert!(id - before >= 86_400_000 << 22);
}
