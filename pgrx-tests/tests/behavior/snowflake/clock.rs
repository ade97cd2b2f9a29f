//! Would catch: snowflake ids that repeat or go back when the clock is set (I4, I7), at rest, under
//! load, while the server is down or after a crash; a call that waits for an hour, or does not
//! report how far the clock is behind; and time that wraps at its end (I8).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use leaf_id_tests::{
    Call, Clock, Failure, PROMPTLY, Server, Session, Stop, assert_in_order, assert_issued_once,
    in_threads, promptly, timed, wait_until, while_repeating,
};

const LIMIT: Duration = Duration::from_secs(30);
const EPOCH_MS: i64 = 1_288_834_974_657;
const HOUR_MS: i64 = 3_600_000;
/// The first two are within the max lead, the others are refused.
const STEPS_BACK_MS: [i64; 4] = [3, 100, 10_000, HOUR_MS];
const MAX_LEAD_MS: i64 = 2000;
const CONF: [(&str, &str); 3] = [
    ("leaf_id.worker_id", "1"),
    ("leaf_id.timestamp_reservation", "500ms"),
    ("leaf_id.max_clock_lead", "2s"),
];

fn try_next(session: &mut Session) -> Result<i64, Failure> {
    let ids = session.try_column("SELECT leaf_snowflake_next()")?;
    Ok(ids[0])
}

fn worker_of(id: i64) -> i64 {
    id >> 12 & 1023
}

/// Timestamp of an id, in Unix milliseconds.
fn time_of(id: i64) -> i64 {
    (id >> 22) + EPOCH_MS
}

/// Number of milliseconds in a message.
fn ms_in(text: &str) -> i64 {
    let before = text.split(" ms").next().unwrap();
    before.rsplit(' ').next().unwrap().parse().unwrap()
}

/// PostgreSQL's own timeouts must not be affected; otherwise these tests would test something else.
#[test]
fn a_server_sees_the_clock_that_is_set_and_waits_by_the_real_one() {
    let server = Server::with_clock(-86_400_000, &[]);
    let clock = server.clock();
    let mut session = server.session();
    let mut shown =
        || session.value::<i64>("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint");
    for ahead_ms in [-86_400_000, 3_600_000, -7, 0, 1_700_000_000_000] {
        clock.set(ahead_ms);
        let (before, shown, after) = (clock.now_ms(), shown(), clock.now_ms());
        assert!(
            (before - 1..=after + 1).contains(&shown),
            "{before} {shown} {after}"
        );
    }
    session.run("SET statement_timeout = '300ms'");
    let (failure, took) = timed(|| session.fails("SELECT pg_sleep(60)"));
    failure.is("57014");
    assert!(took > Duration::from_millis(250), "{took:?}");
    assert!(took < PROMPTLY, "{took:?}");
}

/// The postmaster forks it on another code path than a session.
#[test]
fn the_launcher_sees_the_clock_that_is_set() {
    let server = Server::with_clock(-86_400_000, &CONF);
    let clock = server.clock();
    let mut session = server.session();
    for ahead_ms in [0, HOUR_MS] {
        clock.set(ahead_ms);
        let off_ms = time_of(session.next_snowflake()) - clock.now_ms();
        assert!((-10_000..10).contains(&off_ms), "{off_ms}");
        let reserved = "SELECT (extract(epoch FROM reserved_until) * 1000)::bigint
                        FROM leaf_id.server";
        let reserved_ms = session.value::<i64>(reserved) - clock.now_ms();
        assert!((-10_000..10_000).contains(&reserved_ms), "{reserved_ms}");
    }
}

/// Waits until the launcher has noticed that ids do not lead the clock: it looks once a second, and
/// the view hides a reason that is over.
fn shows_the_end(server: &Server, session: &mut Session) {
    wait_until(LIMIT, "the log to tell", || {
        let began: i64 = session.value("SELECT rollbacks_seen FROM leaf_id.server");
        let log = server.log();
        let ended = log.matches("are not ahead of the clock any more").count();
        began == i64::try_from(ended).unwrap()
    });
}

/// Waits until ids do not lead the clock.
fn caught_up(session: &mut Session) {
    wait_until(LIMIT, "the clock to catch up with the ids", || {
        session.value("SELECT clock_lead_ms = 0 FROM leaf_id.server")
    });
}

/// Waits until the launcher has noticed why ids lead the clock, or that they do not.
fn shows_reason(session: &mut Session, reason: Option<&str>) {
    wait_until(LIMIT, "the view to show why ids lead the clock", || {
        let shown: Option<String> = session.value("SELECT clock_lead_reason FROM leaf_id.server");
        shown.as_deref() == reason
    });
}

#[test]
fn a_clock_set_back_at_rest_is_gone_along_with_or_refused_by_how_far() {
    let server = Server::with_clock(0, &CONF);
    let clock = server.clock();
    let mut session = server.session();
    session.create_tag("t");
    let mut ids = vec![session.next_snowflake()];
    caught_up(&mut session);
    for back_ms in [3, 20, 100, 1000] {
        ids.push(session.next_snowflake());
        for _ in 0..5 {
            clock.set(clock.ahead_ms() - back_ms / 5);
            let (id, took) = timed(|| try_next(&mut session).unwrap());
            println!("set back by {back_ms} ms in five steps: {took:?}");
            ids.push(id);
        }
        // Long enough for the launcher to notice.
        if back_ms >= 1000 {
            shows_reason(&mut session, Some("clock set back"));
        }
        caught_up(&mut session);
        shows_the_end(&server, &mut session);
    }
    for back_ms in [10_000, HOUR_MS] {
        let ahead_ms = clock.ahead_ms();
        let since = Instant::now();
        // What is left of the time that it was set back by.
        let left = || back_ms - 100 - i64::try_from(since.elapsed().as_millis()).unwrap();
        ids.push(session.next_snowflake());
        clock.set(clock.ahead_ms() - back_ms);
        let refusal = try_next(&mut session).expect_err("an id");
        println!("{refusal}");
        refusal.is("55000").says("clock");
        assert!((1..=back_ms).contains(&ms_in(&refusal.detail)), "{refusal}");
        assert!(ms_in(&refusal.detail) >= left() - MAX_LEAD_MS, "{refusal}");
        session.next("t");
        let lead: i64 = session.value("SELECT clock_lead_ms FROM leaf_id.server");
        assert!((left()..=back_ms).contains(&lead), "{lead}");
        shows_reason(&mut session, Some("clock set back"));
        clock.set(ahead_ms);
        ids.push(try_next(&mut session).unwrap());
        shows_reason(&mut session, None);
        shows_the_end(&server, &mut session);
    }
    assert!(session.value::<bool>("SELECT rollbacks_seen >= 3 FROM leaf_id.server"));
    assert_issued_once([ids]);
}

#[test]
fn a_wait_for_the_clock_is_as_long_as_it_must_be_and_can_be_canceled() {
    let server = Server::with_clock(0, &CONF);
    let clock = server.clock();
    let mut session = server.session();
    session.next_snowflake();
    caught_up(&mut session);
    let (id, took) = timed(|| {
        let last = session.next_snowflake();
        clock.set(-3000);
        session.run("SET statement_timeout = '100ms'");
        session.fails("SELECT leaf_snowflake_next()").is("57014");
        session.run("SET statement_timeout = 0");
        let id = try_next(&mut session).unwrap();
        assert!(id > last);
        id
    });
    // Until the last id is within the max lead.
    println!("{id} after {took:?}");
    assert!(took > Duration::from_millis(900), "{took:?}");
}

/// Sets the clock during `work`: back by every step and forward again, and an hour forward, back,
/// and forward again.
fn while_the_clock_jumps<T>(clock: &Clock, work: impl FnOnce(&AtomicUsize) -> T) -> T {
    let jumps = AtomicUsize::new(0);
    let pause = || thread::sleep(Duration::from_millis(20));
    while_repeating(
        || {
            let ahead_ms = clock.ahead_ms();
            let jump = jumps.load(Ordering::SeqCst) % (STEPS_BACK_MS.len() + 1);
            if let Some(back_ms) = STEPS_BACK_MS.get(jump) {
                clock.set(ahead_ms - back_ms);
                pause();
                clock.set(ahead_ms);
            } else {
                clock.set(ahead_ms + HOUR_MS);
                pause();
                clock.set(ahead_ms);
                pause();
                clock.set(ahead_ms + HOUR_MS);
            }
            pause();
            jumps.fetch_add(1, Ordering::SeqCst);
        },
        || work(&jumps),
    )
}

#[test]
fn in_full_use_a_clock_that_jumps_repeats_nothing_and_keeps_the_order() {
    let server = Server::with_clock(0, &CONF);
    server.session().next_snowflake();
    let refused = AtomicUsize::new(0);
    let calls = while_the_clock_jumps(&server.clock(), |jumps| {
        in_threads(4, |_| {
            let mut session = server.session();
            let mut calls = Vec::new();
            while jumps.load(Ordering::SeqCst) < 15 {
                let start = Instant::now();
                match session.try_column::<i64>("SELECT leaf_snowflake_next_batch(3)") {
                    Ok(ids) => calls.push(Call {
                        start,
                        end: Instant::now(),
                        first: ids[0],
                        last: ids[2],
                    }),
                    Err(failure) => {
                        failure.is("55000").says("clock");
                        refused.fetch_add(1, Ordering::SeqCst);
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            }
            calls
        })
    });
    let refused = refused.into_inner();
    println!("{} calls, {refused} refused", calls.concat().len());
    assert!(refused > 0);
    for calls in &calls {
        assert!(!calls.is_empty());
    }
    assert_issued_once(calls.iter().map(|calls| {
        let ids = calls.iter().flat_map(|call| [call.first, call.last]);
        ids.collect::<Vec<_>>()
    }));
    assert_in_order(calls.concat());
}

/// Stops the server with `stop`, sets the clock back, starts it, and expects larger ids, or a
/// refusal until the clock is right again.
fn set_back_while_it_is_down(stop: impl Fn(&Server)) {
    let server = Server::with_clock(0, &CONF);
    let clock = server.clock();
    server.session().next_snowflake();
    server.set("leaf_id.timestamp_reservation", "1s");
    let mut ids = vec![server.session().next_snowflake()];
    // The server restarts within a second, with its clock still behind the last id.
    for back_ms in [3, 100, 1000, 10_000, HOUR_MS] {
        let mut session = server.session();
        ids.extend(session.ids("SELECT leaf_snowflake_next_batch(20000)"));
        stop(&server);
        let ahead_ms = clock.ahead_ms();
        clock.set(ahead_ms - back_ms);
        server.launch();
        let mut session = server.session();
        if back_ms > 5000 {
            // Far more than a reservation can explain, and than a call would wait.
            if back_ms == HOUR_MS {
                session.be_patient();
            }
            let failure = promptly(|| session.fails("SELECT leaf_snowflake_next()"));
            session.run("RESET leaf_id.refill_timeout");
            println!("{failure}");
            failure.is("55000").says("ahead of the clock");
            assert!((back_ms - 5000..back_ms + 5000).contains(&ms_in(&failure.detail)));
            clock.set(ahead_ms);
        }
        // The rest of the reservation, if any, is shorter than the calls' timeout.
        ids.push(try_next(&mut session).unwrap());
    }
    assert_issued_once([ids]);
}

#[test]
fn a_clock_set_back_while_the_server_is_stopped_repeats_nothing() {
    set_back_while_it_is_down(|server| server.stop(Stop::Fast));
}

#[test]
fn a_clock_set_back_after_a_crash_repeats_nothing() {
    set_back_while_it_is_down(Server::kill_9);
}

/// The only solution if the clock was an hour ahead: another worker id.
fn start_again_with_worker_2(server: &Server, before_the_reset: Duration, ids: &mut Vec<i64>) {
    let reset = "SELECT leaf_id.leaf_snowflake_reset(now())";
    let mut session = server.session();
    session
        .fails("SELECT leaf_snowflake_next()")
        .is("55000")
        .hints("leaf_snowflake_reset");
    // The worker id that was used an hour ahead might repeat ids.
    session.fails(reset).is("55000").hints("leaf_id.worker_id");
    server.set("leaf_id.worker_id", "2");
    thread::sleep(before_the_reset);
    wait_until(LIMIT, "the reset", || session.try_run(reset).is_ok());
    let id = session.next_snowflake();
    assert_eq!(worker_of(id), 2);
    let off_ms = time_of(id) - server.clock().now_ms();
    assert!((-10_000..10).contains(&off_ms), "{off_ms}");
    assert_eq!(
        session.value::<String>("SELECT floor_reason FROM leaf_id.server"),
        "reset"
    );
    let logged = "leaf_id: snowflake ids were reset by postgres";
    assert_eq!(server.log().matches(logged).count(), 1);
    ids.push(id);
}

fn assert_all_different(mut ids: Vec<i64>) {
    ids.sort_unstable();
    assert_issued_once([ids]);
}

/// Changes the worker id, and takes ids until they have it.
fn change_worker(server: &Server, worker: i64, ids: &mut Vec<i64>) {
    server.set("leaf_id.worker_id", &worker.to_string());
    let mut session = server.session();
    wait_until(LIMIT, "the new worker id", || {
        ids.push(session.next_snowflake());
        worker_of(*ids.last().unwrap()) == worker
    });
}

#[test]
fn after_an_hour_ahead_a_reset_and_a_new_worker_id_are_the_way_out() {
    let server = Server::with_clock(0, &CONF);
    let clock = server.clock();
    let mut ids = vec![server.session().next_snowflake()];
    clock.set(HOUR_MS);
    // Both have ids in the future then.
    for worker in [1, 3] {
        change_worker(&server, worker, &mut ids);
        let sql = "SELECT leaf_snowflake_next_batch(100)";
        ids.extend(server.session().ids(sql));
    }
    clock.set(0);
    // Either the launcher or the reset notices the new worker id first.
    start_again_with_worker_2(&server, Duration::from_millis(300), &mut ids);
    for restart in [Server::restart, Server::crash] {
        restart(&server);
        let id = server.session().next_snowflake();
        assert_eq!(worker_of(id), 2);
        ids.push(id);
    }
    // The hour of the old worker ids is not over: calls wait, or are refused.
    for worker in [1, 3] {
        server.set("leaf_id.worker_id", &worker.to_string());
        for restart in [|_: &Server| (), Server::restart] {
            restart(&server);
            let mut session = server.session();
            session.run("SET leaf_id.refill_timeout = '200ms'");
            wait_until(LIMIT, "a refusal", || match try_next(&mut session) {
                Ok(id) => {
                    assert_eq!(worker_of(id), 2, "time {}", time_of(id));
                    ids.push(id);
                    false
                }
                Err(failure) => ["55000", "55P03"].contains(&&*failure.state),
            });
        }
    }
    clock.set(HOUR_MS + 10_000);
    for worker in [1, 3] {
        change_worker(&server, worker, &mut ids);
    }
    assert_all_different(ids);
}

#[test]
fn after_an_hour_ahead_and_a_restart_the_way_out_is_the_same() {
    let stops: [fn(&Server); 2] = [Server::kill_9, |server| server.stop(Stop::Fast)];
    for stop in stops {
        let server = Server::with_clock(0, &CONF);
        let clock = server.clock();
        let mut ids = vec![server.session().next_snowflake()];
        clock.set(HOUR_MS);
        let sql = "SELECT leaf_snowflake_next_batch(100)";
        ids.extend(server.session().ids(sql));
        stop(&server);
        clock.set(0);
        server.launch();
        start_again_with_worker_2(&server, Duration::ZERO, &mut ids);
        assert_all_different(ids);
    }
}

/// The epoch was in the past when the server started, and is kept.
#[test]
fn a_crash_restart_with_the_clock_before_the_epoch_keeps_the_epoch() {
    let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let epoch_ms = i64::try_from(real.as_millis()).unwrap() - HOUR_MS / 2;
    let epoch = epoch_ms.to_string();
    let server = Server::with_clock(0, &[&CONF[..], &[("leaf_id.epoch", &epoch)]].concat());
    let clock = server.clock();
    let mut session = server.session();
    let before = session.value::<i64>("SELECT leaf_snowflake_next()");
    clock.set(-HOUR_MS);
    assert!(server.crash_by(session.pid()));
    clock.set(0);
    for _ in 0..2 {
        let mut session = server.session();
        let id = session.value::<i64>("SELECT leaf_snowflake_next()");
        let ahead_ms = (id >> 22) + epoch_ms - clock.now_ms();
        assert!(id > before && ahead_ms < 60_000, "{before} {id} {ahead_ms}");
        server.restart();
    }
}

/// As where there is no battery, until the clock is set by the network.
#[test]
fn a_server_starts_with_the_clock_before_the_default_epoch() {
    let real = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let before_ms = EPOCH_MS - HOUR_MS - i64::try_from(real.as_millis()).unwrap();
    let server = Server::with_clock(before_ms, &CONF);
    let mut session = server.session();
    session.run("SELECT leaf_tag_create('t')");
    assert_eq!(session.next("t"), 1);
    session.fails("SELECT leaf_snowflake_next()").is("55000");
    server.clock().set(0);
    wait_until(LIMIT, "an id", || {
        session
            .try_column::<i64>("SELECT leaf_snowflake_next()")
            .is_ok()
    });
}

/// 41 bits of milliseconds since the default epoch end in the year 2080.
#[test]
fn at_the_end_of_time_ids_end_and_never_wrap() {
    let end_ms = EPOCH_MS + (1 << 41) - 1;
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let end_ahead_ms = end_ms - i64::try_from(now_ms.as_millis()).unwrap();
    let server = Server::with_clock(end_ahead_ms - HOUR_MS, &CONF);
    let clock = server.clock();
    let mut session = server.session();
    let mut ids = vec![session.next_snowflake()];
    session.run(
        "CREATE FUNCTION all_there_are() RETURNS bigint[] LANGUAGE plpgsql AS $$
         DECLARE ids bigint[] := '{}';
         BEGIN
             LOOP ids := ids || leaf_snowflake_next(); END LOOP;
         EXCEPTION WHEN sequence_generator_limit_exceeded THEN RETURN ids;
         END $$",
    );
    // The last millisecond is short: on a busy machine, it takes several attempts.
    wait_until(LIMIT, "an id in the last millisecond", || {
        clock.set(clock.ahead_ms() + end_ms - clock.now_ms() - 50);
        ids.extend(session.value::<Vec<i64>>("SELECT all_there_are()"));
        time_of(*ids.last().unwrap()) == end_ms
    });
    println!("{} ids", ids.len());
    assert_issued_once([&ids]);
    let at_the_end = |session: &mut Session| {
        for sql in [
            "SELECT leaf_snowflake_next()",
            "SELECT leaf_snowflake_next_batch(2)",
        ] {
            session.fails(sql).is("2200H").says("end of their time");
        }
        session.run("SELECT * FROM leaf_id.server");
    };
    at_the_end(&mut session);
    for restart in [Server::restart, Server::crash] {
        restart(&server);
        let mut session = server.session();
        // Until then, calls may wait for earlier reservations.
        wait_until(LIMIT, "the end of time", || {
            try_next(&mut session).expect_err("no id").state == "2200H"
        });
        at_the_end(&mut session);
        // No id of the last second repeats, and none before the epoch is issued.
        clock.set(clock.ahead_ms() - 20_000);
        session.fails("SELECT leaf_snowflake_next()").is("55000");
        clock.set(clock.ahead_ms() + 20_000);
        at_the_end(&mut session);
    }
}

/// The worker id was changed while the clock was an hour ahead. Its use must not be forgotten once
/// the word has another one.
#[test]
fn a_worker_id_that_was_left_in_the_future_is_remembered() {
    let server = Server::with_clock(0, &CONF);
    let clock = server.clock();
    let mut ids = vec![server.session().next_snowflake()];
    clock.set(HOUR_MS);
    for worker in [1, 2] {
        change_worker(&server, worker, &mut ids);
    }
    server.stop(Stop::Fast);
    clock.set(0);
    server.launch();
    server.set("leaf_id.worker_id", "3");
    let mut session = server.session();
    wait_until(LIMIT, "the reset", || {
        session
            .try_run("SELECT leaf_id.leaf_snowflake_reset(now())")
            .is_ok()
    });
    change_worker(&server, 3, &mut ids);
    session.run("SET leaf_id.refill_timeout = '200ms'");
    let log = server.log();
    for worker in [1, 2] {
        // Standbys do not know it.
        let warning = format!("WARNING:  worker id {worker} is retired until");
        assert!(log.contains(&warning), "{warning}");
        server.set("leaf_id.worker_id", &worker.to_string());
        wait_until(LIMIT, "a refusal", || match try_next(&mut session) {
            Ok(id) => {
                assert_eq!(worker_of(id), 3, "it has issued ids of an hour ahead");
                false
            }
            Err(failure) => {
                assert!(["55000", "55P03"].contains(&&*failure.state), "{failure}");
                failure
                    .message
                    .contains("was retired by leaf_snowflake_reset()")
            }
        });
    }
    // Once the clock has passed it, the worker id is usable like any other.
    clock.set(2 * HOUR_MS);
    for worker in [1, 4, 1] {
        change_worker(&server, worker, &mut ids);
    }
}
