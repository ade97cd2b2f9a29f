//! Would catch: ids that stop because the launcher stalls (a stopped process, a disk that hangs).
//! Calls that depend on it must wait within bounds, and others not at all.

use std::os::unix::fs::symlink;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use leaf_id_tests::{
    Paused, Server, Session, Stop, assert_issued_once, in_threads, in_threads_until, promptly,
    random, timed, wait_until, worker_of,
};
use rand::RngExt;

const LIMIT: Duration = Duration::from_secs(30);

/// Stops the launcher while it sleeps. In the middle of a write of its file, no other process could
/// write it.
fn pause_launcher(server: &Server) -> Paused {
    let mut session = server.session();
    let mut paused = None;
    wait_until(LIMIT, "the launcher to sleep", || {
        let Some(launcher) = session.worker("launcher") else {
            return false;
        };
        paused = Some(server.pause(launcher));
        let sleeps: bool = session.value(&format!(
            "SELECT count(*) = 1 FROM pg_stat_activity
             WHERE pid = {launcher} AND wait_event_type = 'Extension'"
        ));
        if !sleeps {
            paused = None;
        }
        sleeps
    });
    paused.unwrap()
}

fn snowflakes(session: &mut Session, n: i32) -> Vec<i64> {
    session.ids(&format!("SELECT leaf_snowflake_next_batch({n})"))
}

#[test]
fn tags_with_a_running_allocator_go_on() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.create_steady_tag("t", 10);
    session.create_steady_tag("u", 10);
    session.next("t");
    let launcher = pause_launcher(&server);
    // Hundreds of segments, and a tag that was not used before.
    let (drawn, took) = timed(|| {
        in_threads(16, |_| {
            let mut session = server.session();
            (session.take("t", 300), session.take("u", 100))
        })
    });
    println!("6,400 ids in {took:?}");
    assert_issued_once(drawn.iter().map(|ids| &ids.0));
    assert_issued_once(drawn.iter().map(|ids| &ids.1));
    drop(launcher);
}

#[test]
fn a_database_without_an_allocator_is_refused_in_time_and_served_later() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.create_tag("t");
    let launcher = pause_launcher(&server);
    session.run("SET leaf_id.refill_timeout = '300ms'");
    let failure = promptly(|| session.try_next("t")).unwrap_err();
    failure.is("55P03").says("300 ms");
    assert!(!failure.detail.is_empty() && !failure.hint.is_empty());
    drop(launcher);
    session.run("RESET leaf_id.refill_timeout");
    assert_eq!(session.next("t"), 1);
}

/// Before: 25006, as on a standby. Paused before the promotion, the launcher would hold it up: since
/// PostgreSQL 19, a promotion waits for each process to accept a barrier.
#[test]
fn calls_after_a_promotion_wait_for_the_launcher() {
    let server = Server::with_leaf_id(&[("leaf_id.worker_id", "5")]);
    let mut launcher = None;
    // It looks once a second.
    wait_until(LIMIT, "a promotion that it has not noticed", || {
        server.stop(Stop::Fast);
        server.launch_as_standby();
        let mut session = server.session();
        session.fails("SELECT leaf_snowflake_next()").is("25006");
        server.promote();
        let paused = pause_launcher(&server);
        let state: String = session.snowflake_status("snowflake_state");
        launcher = (state == "standby").then_some(paused);
        launcher.is_some()
    });
    let mut watcher = server.session();
    let mut session = server.session();
    let pid = session.pid();
    let id = thread::scope(|scope| {
        let call = scope.spawn(move || session.try_column::<i64>("SELECT leaf_snowflake_next()"));
        wait_until(LIMIT, "a call that waits", || {
            call.is_finished()
                || watcher.value(&format!(
                    "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid} AND state = 'active'
                         AND clock_timestamp() > query_start + interval '500 ms')"
                ))
        });
        drop(launcher);
        call.join().unwrap()
    });
    assert_eq!(worker_of(id.unwrap()[0]), 5);
}

/// The caller renews the reservation itself.
#[test]
fn snowflake_ids_go_on_beyond_the_reservation() {
    let server = Server::with_leaf_id(&[
        ("leaf_id.worker_id", "5"),
        ("leaf_id.timestamp_reservation", "100ms"),
    ]);
    let mut session = server.session();
    let mut issued = snowflakes(&mut session, 10);
    let launcher = pause_launcher(&server);
    let paused_at: f64 = session.value("SELECT extract(epoch FROM clock_timestamp())::float8");
    // For many reservations, after an idle period and without one, in one session and in many.
    session.run("SET statement_timeout = '5s'");
    wait_until(LIMIT, "one second to pass", || {
        issued.extend(snowflakes(&mut session, 100));
        session.value(&format!(
            "SELECT extract(epoch FROM clock_timestamp()) > {paused_at} + 1"
        ))
    });
    let drawn = in_threads(16, |_| {
        let mut session = server.session();
        let until = "SELECT extract(epoch FROM clock_timestamp())::float8";
        let start: f64 = session.value(until);
        let mut ids = Vec::new();
        while session.value::<f64>(until) < start + 0.5 {
            ids.extend(snowflakes(&mut session, 200));
        }
        ids
    });
    assert_issued_once(
        [&issued[..]]
            .into_iter()
            .chain(drawn.iter().map(Vec::as_slice)),
    );
    // It continues with a reservation that others have extended.
    drop(launcher);
    issued = snowflakes(&mut session, 10);
    assert!(issued[0] > *drawn.iter().flatten().max().unwrap());
    // The callers' reservations are durable: a crash repeats nothing.
    let launcher = pause_launcher(&server);
    let mut last = 0;
    let ((), took) = timed(|| {
        for _ in 0..20 {
            last = *snowflakes(&mut session, 1000).last().unwrap();
        }
    });
    println!("20,000 more in {took:?}");
    server.kill_9();
    drop(launcher);
    server.launch();
    let mut session = server.session();
    session.run("SET leaf_id.refill_timeout = '30s'");
    assert!(snowflakes(&mut session, 1)[0] > last);
}

#[test]
fn a_call_that_needs_a_late_launcher_can_be_timed_out() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.create_tag("t");
    let launcher = pause_launcher(&server);
    session.be_patient();
    session.run("SET statement_timeout = '300ms'");
    for _ in 0..3 {
        let failure = promptly(|| session.fails("SELECT leaf_segment_next('t')"));
        failure.is("57014");
    }
    drop(launcher);
    session.run("SET statement_timeout = '30s'");
    assert_eq!(session.next("t"), 1);
}

#[test]
fn a_worker_id_set_while_it_is_late_takes_effect_later() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    let launcher = pause_launcher(&server);
    server.set("leaf_id.worker_id", "7");
    session.be_patient();
    let failure = promptly(|| session.fails("SELECT leaf_snowflake_next()"));
    failure.is("55000");
    drop(launcher);
    session.run("SET leaf_id.refill_timeout = '30s'");
    let mut id = None;
    wait_until(LIMIT, "the worker id", || {
        let issued = session.try_column::<i64>("SELECT leaf_snowflake_next()");
        id = issued.ok().map(|ids| ids[0]);
        id.is_some()
    });
    assert_eq!(id.unwrap() >> 12 & 1023, 7);
}

/// A caller that renews the reservation may be terminated in the middle, or find the disk full; the
/// next one retries.
#[test]
fn callers_that_are_ended_while_they_renew_hold_up_no_other_session() {
    let server = Server::with_leaf_id(&[
        ("leaf_id.worker_id", "5"),
        ("leaf_id.timestamp_reservation", "100ms"),
    ]);
    let (mut session, mut admin) = (server.session(), server.session());
    let issued = snowflakes(&mut session, 10);
    let launcher = pause_launcher(&server);
    let mut random = random();
    let (drawn, ()) = in_threads_until(
        16,
        |_, done| {
            let mut ids = Vec::new();
            while !done.load(Ordering::Relaxed) {
                // A terminated session is replaced by another one.
                let mut session = server.session();
                while !done.load(Ordering::Relaxed) {
                    match session.try_column::<i64>("SELECT leaf_snowflake_next_batch(300)") {
                        Ok(more) => ids.extend(more),
                        Err(failure) if failure.state == "57014" => {}
                        Err(failure) => {
                            failure.is_termination();
                            break;
                        }
                    }
                }
            }
            ids
        },
        || {
            for _ in 0..60 {
                let how = ["cancel", "terminate"][random.random_range(0..2)];
                admin.run(&format!(
                    "SELECT pg_{how}_backend(pid) FROM pg_stat_activity
                     WHERE query LIKE '%next_batch(300)%' AND pid <> pg_backend_pid()
                     ORDER BY random() LIMIT 8"
                ));
                thread::sleep(Duration::from_millis(random.random_range(0..40)));
            }
        },
    );
    assert!(drawn.iter().all(|ids| !ids.is_empty()));
    assert_issued_once([&issued].into_iter().chain(&drawn));

    // The disk is full for callers, too, and they notice by themselves when it no longer is.
    let temporary = server.data_dir().join("leaf_id_reservation.json.tmp");
    symlink("/dev/full", &temporary).unwrap();
    wait_until(LIMIT, "the refusal", || {
        let result = session.try_column::<i64>("SELECT leaf_snowflake_next()");
        result.is_err_and(|failure| failure.is("58030").state == "58030")
    });
    std::fs::remove_file(temporary).unwrap();
    let mut next = Vec::new();
    wait_until(LIMIT, "ids without the launcher", || {
        let result = session.try_column::<i64>("SELECT leaf_snowflake_next()");
        result.is_ok_and(|ids| {
            next = ids;
            true
        })
    });
    assert!(next[0] > *drawn.iter().flatten().max().unwrap());
    drop(launcher);
    assert!(snowflakes(&mut session, 1)[0] > next[0]);
}

/// The launcher is about to open the generator: another server may have been given the worker id
/// before the write ends.
#[test]
fn a_worker_id_that_is_taken_back_during_a_write_issues_nothing() {
    let server = Server::with_disk(&[
        ("leaf_id.refill_timeout", "30s"),
        ("leaf_id.timestamp_reservation", "100ms"),
    ]);
    let disk = server.disk();
    let mut session = server.session();
    let mut configure = |worker_id: &str| {
        session.run(&format!(
            "ALTER SYSTEM SET leaf_id.worker_id = '{worker_id}'"
        ));
        server.reload();
        wait_until(LIMIT, "the setting", || {
            server.session().value::<String>("SHOW leaf_id.worker_id") == worker_id
        });
    };
    // Each time the calls that wait may come too late.
    for worker_id in 1..=5 {
        disk.hang(true);
        configure(&worker_id.to_string());
        wait_until(LIMIT, "the write", || disk.waiting() == 1);
        thread::scope(|scope| {
            let call = || {
                let mut session = server.session();
                session.try_column::<i64>("SELECT leaf_snowflake_next()")
            };
            let calls: Vec<_> = (0..16).map(|_| scope.spawn(call)).collect();
            let mut watcher = server.session();
            wait_until(LIMIT, "calls that wait", || {
                watcher.value(
                    "SELECT count(*) = 16 FROM pg_stat_activity
                     WHERE query LIKE 'SELECT leaf_snowflake%' AND wait_event_type = 'Extension'",
                )
            });
            configure("");
            disk.hang(false);
            for call in calls {
                let failure = call.join().unwrap().expect_err("an id");
                failure.is("55000").says("worker_id");
            }
        });
    }
    configure("6");
    let mut session = server.session();
    assert_eq!(worker_of(snowflakes(&mut session, 1)[0]), 6);
}

/// Writes that take longer than `leaf_id.timestamp_reservation`.
#[test]
fn a_slow_disk_stops_no_ids() {
    let server = Server::with_disk(&[("leaf_id.worker_id", "5")]);
    let disk = server.disk();
    let mut session = server.session();
    let mut ids = snowflakes(&mut session, 1);
    disk.slow_down(Duration::from_millis(1500));
    wait_until(LIMIT, "a slow write", || {
        ids.extend(
            session
                .try_column::<i64>("SELECT leaf_snowflake_next()")
                .unwrap_or_default(),
        );
        disk.waiting() > 0
    });
    let mut in_a_row = 0;
    wait_until(LIMIT, "calls that succeed for three seconds", || {
        let began = Instant::now();
        while began.elapsed() < Duration::from_millis(100) {
            match session.try_column::<i64>("SELECT leaf_snowflake_next()") {
                Ok(id) => ids.extend(id),
                Err(failure) => {
                    failure.is("55P03");
                    in_a_row = -1;
                    break;
                }
            }
        }
        in_a_row += 1;
        in_a_row == 30
    });
    assert_issued_once(&[ids]);
}

#[test]
fn calls_beside_a_hanging_write_can_be_canceled() {
    let server = Server::with_disk(&[
        ("leaf_id.worker_id", "5"),
        // The launcher writes only if an id was issued within the last one.
        ("leaf_id.timestamp_reservation", "2s"),
    ]);
    let disk = server.disk();
    let mut session = server.session();
    snowflakes(&mut session, 1);
    disk.hang(true);
    wait_until(LIMIT, "a write", || disk.waiting() == 1);
    session.be_patient();
    wait_until(LIMIT, "the end of what was reserved", || {
        session.run("SET statement_timeout = '300ms'");
        session
            .try_column::<i64>("SELECT leaf_snowflake_next()")
            .is_err()
    });
    for _ in 0..3 {
        promptly(|| session.fails("SELECT leaf_snowflake_next()")).is("57014");
    }
    disk.hang(false);
}

/// Where no reservation survives its own write, each call reserves once more.
#[test]
fn a_call_that_reserves_again_and_again_can_be_canceled() {
    let server = Server::with_disk(&[
        ("leaf_id.worker_id", "5"),
        ("leaf_id.max_clock_lead", "600ms"),
        ("leaf_id.timestamp_reservation", "100ms"),
    ]);
    let disk = server.disk();
    let mut session = server.session();
    snowflakes(&mut session, 1);
    let launcher = pause_launcher(&server);
    disk.slow_down(Duration::from_millis(1000));
    session.be_patient();
    session.run("SET statement_timeout = '300ms'");
    wait_until(LIMIT, "the end of what was reserved", || {
        session
            .try_column::<i64>("SELECT leaf_snowflake_next()")
            .is_err()
    });
    for _ in 0..3 {
        promptly(|| session.fails("SELECT leaf_snowflake_next()")).is("57014");
    }
    drop(launcher);
}
