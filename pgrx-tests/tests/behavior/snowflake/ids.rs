//! Would catch: snowflake ids that repeat or go back (I4, I7), between sessions, when the
//! worker id changes, or after a stop or a crash; and parts that do not decode.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leaf_id_tests::{
    Call, Server, Session, Stop, assert_in_order, assert_issued_once, in_threads, promptly, timed,
    wait_until, while_repeating,
};

const LIMIT: Duration = Duration::from_secs(30);
const EPOCH_MS: i64 = 1_288_834_974_657;

fn server_with_worker(id: &str) -> Server {
    Server::with_leaf_id(&[("leaf_id.worker_id", id)])
}

/// One that has issued with this reservation. The very first start waits one out, since
/// nothing says what was issued before: that one is short.
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

/// The next id, and how long it took until there was one: after a crash the generator
/// waits out what was reserved.
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

/// Milliseconds since the Unix epoch.
fn time_of(id: i64) -> i64 {
    (id >> 22) + EPOCH_MS
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
fn an_id_decodes_to_its_parts() {
    let server = server_with_worker("1023");
    let mut session = server.session();
    for _ in 0..200 {
        let id = next(&mut session);
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap()
            .as_millis();
        assert!(
            // On a new server ids lead the clock by 15 s.
            (-16_000..10_000).contains(&(i64::try_from(now).unwrap() - time_of(id))),
            "{id}"
        );
        let row = session
            .query_one(
                "SELECT (extract(epoch FROM ts) * 1000)::bigint, worker_id, sequence,
                     leaf_snowflake_decode($1) = leaf_snowflake_decode($1, $2),
                     leaf_snowflake_min(ts), leaf_snowflake_max(ts),
                     leaf_snowflake_min(ts + interval '1 ms'),
                     leaf_snowflake_min(ts, $2), leaf_snowflake_max(ts, $2)
                 FROM leaf_snowflake_decode($1)",
                &[&id, &EPOCH_MS],
            )
            .unwrap();
        let (ms, worker, sequence): (i64, i32, i32) = (row.get(0), row.get(1), row.get(2));
        assert_eq!((ms, i64::from(worker)), (time_of(id), 1023));
        assert!(
            row.get::<_, bool>(3),
            "the explicit epoch is the default one"
        );
        let (min, max): (i64, i64) = (row.get(4), row.get(5));
        assert_eq!(min | 1023 << 12 | i64::from(sequence), id);
        assert_eq!(max, min | 0x3f_ffff);
        assert_eq!(row.get::<_, i64>(6), max + 1);
        assert_eq!((row.get::<_, i64>(7), row.get::<_, i64>(8)), (min, max));
    }
    // The end of the 41 bits, and the beginning.
    for (id, parts) in [
        (0, "2010-11-04 01:42:54.657+00,0,0"),
        (i64::MAX, "2080-07-10 17:30:30.208+00,1023,4095"),
    ] {
        session.run("SET timezone = 'UTC'");
        let sql = format!(
            "SELECT concat_ws(',', ts, worker_id, sequence) FROM leaf_snowflake_decode({id})"
        );
        assert_eq!(session.value::<String>(&sql), parts);
    }
}

#[test]
fn bounds_hold_every_id_between_them() {
    let server = server_with_worker("5");
    let mut session = server.session();
    session.run("SET timezone = 'UTC'");
    let id = next(&mut session);
    for (bound, expected) in [
        ("leaf_snowflake_min('-infinity')", 0),
        ("leaf_snowflake_max('infinity')", i64::MAX),
        ("leaf_snowflake_min('1900-01-01')", 0),
        ("leaf_snowflake_max('2500-01-01')", i64::MAX),
        ("leaf_snowflake_min('-infinity', 0)", 0),
        ("leaf_snowflake_max('infinity', 0)", i64::MAX),
        ("leaf_snowflake_min('2010-11-04 01:42:54.657')", 0),
        ("leaf_snowflake_min('1970-01-01 00:00:00.001', 0)", 1 << 22),
        (
            "leaf_snowflake_max('1970-01-01 00:00:00.001', 0)",
            (2 << 22) - 1,
        ),
        // Within a millisecond it is that millisecond.
        ("leaf_snowflake_min('1970-01-01 00:00:00.0019', 0)", 1 << 22),
    ] {
        assert_eq!(
            session.value::<i64>(&format!("SELECT {bound}")),
            expected,
            "{bound}"
        );
    }
    assert!(session.value::<bool>(&format!(
        "SELECT {id} BETWEEN leaf_snowflake_min(now() - interval '1 min')
             AND leaf_snowflake_max(now() + interval '1 min')"
    )));
    assert_eq!(
        session.value::<Option<i64>>("SELECT leaf_snowflake_min(NULL)"),
        None
    );
}

#[test]
fn an_explicit_epoch_is_immutable_and_the_setting_is_not() {
    let server = server_with_worker("5");
    let mut session = server.session();
    session.run(
        "CREATE TABLE events (
             id bigint PRIMARY KEY DEFAULT leaf_snowflake_next()
                 CHECK (id >= leaf_snowflake_min('2020-01-01 00:00+00', 1288834974657)),
             at timestamptz GENERATED ALWAYS AS
                 ((leaf_snowflake_decode(id, 1288834974657)).ts) STORED);
         INSERT INTO events SELECT FROM generate_series(1, 100)",
    );
    let close = "SELECT bool_and(at BETWEEN now() - interval '1 min' AND now() + interval '1 min')
                 FROM events";
    assert!(session.value::<bool>(close));
    session
        .fails(
            "CREATE TABLE wrong (id bigint, at timestamptz GENERATED ALWAYS AS
                 ((leaf_snowflake_decode(id)).ts) STORED)",
        )
        .is("42P17");
}

#[test]
fn a_new_worker_id_takes_effect_by_reload_and_keeps_the_order() {
    let server = Server::with_leaf_id(&[]);
    let (mut a, mut b) = (server.session(), server.session());
    a.fails("SELECT leaf_snowflake_next()")
        .is("55000")
        .hints("ALTER SYSTEM");
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
fn a_bad_worker_id_is_refused() {
    let server = server_with_worker("5");
    let mut session = server.session();
    for bad in [
        "1024",
        "-1",
        "x",
        "1.5",
        "0x1",
        "99999999999999999999",
        "1 2",
    ] {
        session
            .fails(&format!("ALTER SYSTEM SET leaf_id.worker_id = '{bad}'"))
            .is("22023")
            .details("0 to 1023");
    }
    session.fails("SET leaf_id.worker_id = '6'").is("55P02");
    session
        .fails("ALTER SYSTEM SET leaf_id.epoch = 'x'")
        .is("22023");
    // From 17 on it could be set, were the prefix not reserved.
    let unknown = if session.major() < 17 {
        "42704"
    } else {
        "42602"
    };
    session
        .fails("ALTER SYSTEM SET leaf_id.no_such_setting = '1'")
        .is(unknown);
    assert_eq!(worker_of(next(&mut session)), 5);
}

#[test]
fn a_batch_is_as_long_as_asked() {
    let server = server_with_worker("5");
    let mut session = server.session();
    let mut ids = Vec::new();
    // More than a millisecond holds.
    for n in [1, 100, 4096, 20_000] {
        let batch = session.ids(&format!("SELECT * FROM leaf_snowflake_next_batch({n})"));
        assert_eq!(batch.len(), n);
        ids.extend(batch);
        ids.push(next(&mut session));
    }
    assert_issued_once(&[ids]);
}

#[test]
fn after_a_clean_restart_ids_come_at_once_and_larger() {
    // Half of which is more than anybody waits for here.
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

/// What a crash leaves is never more than ids may lead the clock.
#[test]
fn a_long_reservation_keeps_nobody_waiting() {
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

/// The file may be lost with a careless cleanup, or a copy of the data directory.
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
    // Nor is that what a reset is for: old ids would come again, without any clock's help.
    server
        .session()
        .fails("SELECT leaf_snowflake_reset(now())")
        .is("55000")
        .hints(&EPOCH_MS.to_string());
    let earlier = EPOCH_MS - 86_400_000;
    server
        .session()
        .run(&format!("ALTER SYSTEM SET leaf_id.epoch = '{earlier}'"));
    server.restart();
    let mut session = server.session();
    let (id, _) = next_in_time(&mut session);
    // The same time is a larger id now.
    assert!(id - before >= 86_400_000 << 22);
}

/// What cannot be shown cannot be dumped either.
#[test]
fn no_time_is_earlier_than_postgresqls_first() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    let first = "SELECT (leaf_snowflake_decode(0, -210866803200000)).ts::text";
    assert_eq!(session.value::<String>(first), "4714-11-24 00:00:00+00 BC");
    session
        .fails("SELECT leaf_snowflake_decode(0, -210866803200001)")
        .is("22023");
}

#[test]
fn the_status_view_shows_the_worker_id() {
    let server = server_with_worker("321");
    let mut session = server.session();
    next(&mut session);
    assert_eq!(
        session.value::<i32>("SELECT worker_id::int FROM leaf_snowflake_status"),
        321
    );
}
