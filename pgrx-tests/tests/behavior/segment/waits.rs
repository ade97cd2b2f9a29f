//! Would catch: a wait that cannot be ended (I5), ends late or with the wrong error, is missing in
//! `pg_stat_activity`, or leaves the session unusable. (Waiting for a locked row is tested in
//! `tags/locked_tag_row.rs`.)

use std::thread;
use std::time::Duration;

use leaf_id_tests::{
    Failure, PROMPTLY, Server, Session, Stop, assert_issued_once, disturb_waiting, timed,
    wait_until,
};
use postgres::NoTls;

const LIMIT: Duration = Duration::from_secs(30);

const NEXT: &str = "SELECT leaf_segment_next('t')";
const BATCH: &str = "SELECT leaf_segment_next_batch('t', 5000)";
const RANGE: &str = "SELECT leaf_segment_next_range('t', 50)";
const SNOWFLAKE: &str = "SELECT leaf_snowflake_next()";
const SNOWFLAKES: &str = "SELECT leaf_snowflake_next_batch(5000)";

/// A session whose timeout exceeds that of the test.
fn patient(server: &Server) -> Session {
    let mut session = server.session();
    session.be_patient();
    session
}

/// Checks that a wait ended with this error, and that the session is still usable.
fn assert_ended(session: &mut Session, result: Result<(), Failure>, state: &str) {
    result.unwrap_err().is(state);
    session.run("BEGIN; SAVEPOINT s; SELECT 1; COMMIT");
}

/// Checks that a statement, which must wait, can be canceled, terminated and timed out, in time and
/// with the right error. `late`: SQLSTATE when `leaf_id.refill_timeout` expires. Returns the
/// remaining sessions.
pub fn assert_can_be_ended(server: &Server, statement: &str, late: &str) -> Vec<Session> {
    let mut admin = server.session();
    let mut left = Vec::new();

    let waiter = patient(server);
    let token = waiter.cancel_token();
    let mut ended = disturb_waiting(server, waiter, statement, |_| {
        token.cancel_query(NoTls).unwrap();
    });
    println!("{statement} was canceled by the client in {:?}", ended.took);
    assert!(ended.took < PROMPTLY);
    assert_ended(&mut ended.session, ended.result, "57014");
    left.push(ended.session);

    // In a transaction that continues afterwards.
    let mut waiter = patient(server);
    waiter.run("BEGIN; SAVEPOINT outer_one");
    let mut ended = disturb_waiting(server, waiter, statement, |pid| {
        admin.run(&format!("SELECT pg_cancel_backend({pid})"));
    });
    println!("{statement} was canceled in {:?}", ended.took);
    assert!(ended.took < PROMPTLY);
    ended.session.run("ROLLBACK TO outer_one; COMMIT");
    assert_ended(&mut ended.session, ended.result, "57014");
    left.push(ended.session);

    let terminations = || server.log().matches(" 57P01 FATAL:").count();
    let before = terminations();
    let ended = disturb_waiting(server, patient(server), statement, |pid| {
        admin.run(&format!("SELECT pg_terminate_backend({pid})"));
    });
    println!("{statement} was terminated in {:?}", ended.took);
    assert!(ended.took < PROMPTLY);
    ended.result.unwrap_err().is_termination();
    assert_eq!(terminations(), before + 1);

    for (setting, state) in [
        ("statement_timeout", "57014"),
        ("leaf_id.refill_timeout", late),
    ] {
        let mut session = patient(server);
        session.run(&format!("SET {setting} = '300ms'"));
        let (result, took) = timed(|| session.try_run(statement));
        println!("{statement} ended by {setting} in {took:?}");
        assert!(
            took > Duration::from_millis(290) && took < PROMPTLY,
            "{took:?}"
        );
        assert_ended(&mut session, result, state);
        session.run("RESET ALL");
        left.push(session);
    }
    left
}

/// Checks that waiting sessions get ids of t now.
fn assert_served(sessions: &mut [Session]) {
    let ids: Vec<_> = sessions
        .iter_mut()
        .map(|session| {
            session.run("SET leaf_id.refill_timeout = '30s'");
            session.next("t")
        })
        .collect();
    assert_issued_once(&[ids]);
}

fn wait_event(session: &mut Session, pid: i32) -> Option<String> {
    session
        .column(&format!(
            "SELECT wait_event FROM pg_stat_activity
             WHERE pid = {pid} AND wait_event_type = 'Extension'"
        ))
        .pop()
}

#[test]
fn for_a_locked_table() {
    let server = Server::with_leaf_id(&[]);
    let (mut holder, mut user) = (server.session(), server.session());
    user.run("SELECT leaf_tag_create('t', step => 10, max_step => 50)");
    for used_before in [false, true] {
        if used_before {
            user.next("t");
        }
        holder.run("BEGIN; LOCK TABLE leaf_id.leaf_alloc IN ACCESS EXCLUSIVE MODE");
        for statement in [NEXT, BATCH, RANGE] {
            if used_before && statement == NEXT {
                // Cached ids are issued without access to the table.
                user.run("SET leaf_id.refill_timeout = '1ms'");
                for _ in 0..200 {
                    if user.try_next("t").is_err() {
                        break;
                    }
                }
            }
            let mut left = assert_can_be_ended(&server, statement, "55P03");
            if statement == RANGE {
                holder.run("COMMIT");
                assert_served(&mut left);
            }
        }
    }
}

#[test]
fn for_a_worker_slot() {
    // One slot is the launcher's, the other that of logical replication: the reserve worker has
    // none.
    let server = Server::with_leaf_id(&[("max_worker_processes", "2")]);
    server.session().create_tag("t");
    for statement in [NEXT, BATCH, RANGE] {
        assert_can_be_ended(&server, statement, "54000");
    }
}

#[test]
fn for_a_slot_of_a_full_array() {
    let server = Server::with_leaf_id(&[("leaf_id.max_tags", "1")]);
    let mut holder = server.session();
    holder.create_tag("first");
    holder.create_tag("t");
    holder.next("first");
    let state = "SELECT spare_state FROM leaf_id.tags_detail WHERE tag = 'first'";
    wait_until(LIMIT, "the answer to be settled", || {
        holder.value::<String>(state) == "none"
    });
    holder.run("UPDATE leaf_id.leaf_alloc SET max_id = max_id + 1 WHERE biz_tag = 'first'");
    // Its request is never accepted, and its slot not reassigned.
    let mut paused = Some(server.pause(holder.worker("allocator").unwrap()));
    let ended = disturb_waiting(
        &server,
        patient(&server),
        "SELECT leaf_segment_next('first')",
        |_| {
            for statement in [NEXT, BATCH, RANGE] {
                let mut left = assert_can_be_ended(&server, statement, "54000");
                if statement == RANGE {
                    paused = None;
                    assert_served(&mut left);
                }
            }
        },
    );
    ended.result.unwrap();
}

#[test]
fn for_a_standby_that_is_away() {
    let server = Server::with_leaf_id(&[]);
    server.session().create_tag("t");
    server.set("synchronous_standby_names", "absent");
    wait_until(LIMIT, "the reload", || {
        server
            .session()
            .value::<String>("SHOW synchronous_standby_names")
            == "absent"
    });
    let mut left = Vec::new();
    for statement in [NEXT, BATCH, RANGE] {
        left.extend(assert_can_be_ended(&server, statement, "55P03"));
    }
    server.set("synchronous_standby_names", "");
    assert_served(&mut left);
}

#[test]
fn for_a_launcher_that_is_late() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.create_tag("t");
    let mut left = Vec::new();
    let launcher = server.pause(session.worker("launcher").unwrap());
    for statement in [NEXT, BATCH, RANGE] {
        left.extend(assert_can_be_ended(&server, statement, "55P03"));
    }
    session.run("SET leaf_id.refill_timeout = '10ms'");
    session
        .fails(BATCH)
        .is("55P03")
        .says("could not get ids for tag \"t\" within 10 ms");
    drop(launcher);
    assert_served(&mut left);
}

/// Ids issued before are further ahead of the clock than the max lead, in a running server and
/// after a start.
#[test]
fn for_a_clock_that_earlier_ids_are_ahead_of() {
    let server = Server::with_leaf_id(&[
        ("leaf_id.worker_id", "5"),
        ("leaf_id.timestamp_reservation", "100ms"),
        ("leaf_id.max_clock_lead", "50s"),
    ]);
    // Another server may have had this worker id, and ids up to the max lead ahead.
    server.set("leaf_id.worker_id", "6");
    wait_until(LIMIT, "the worker id", || {
        server
            .session()
            .value("SELECT (leaf_snowflake_decode(leaf_snowflake_next())).worker_id = 6")
    });
    server.set("leaf_id.max_clock_lead", "0");
    for restart in [false, true] {
        if restart {
            // Not by SIGKILL: the launcher might notice the postmaster's death, and shut down
            // cleanly.
            server.stop(Stop::Immediate);
            server.launch();
        }
        for statement in [SNOWFLAKE, SNOWFLAKES] {
            let mut hasty = server.session();
            hasty.run("SET leaf_id.refill_timeout = '300ms'");
            wait_until(LIMIT, "a refusal", || {
                let result = hasty.try_run(statement);
                result.is_err_and(|failure| failure.state == "55000")
            });
            let waiter = patient(&server);
            let token = waiter.cancel_token();
            let mut ended = disturb_waiting(&server, waiter, statement, |_| {
                token.cancel_query(NoTls).unwrap();
            });
            println!("{statement} was canceled in {:?}", ended.took);
            assert!(ended.took < PROMPTLY);
            assert_ended(&mut ended.session, ended.result, "57014");
        }
    }
}

/// The launcher may not have read yet that it was set.
#[test]
fn for_a_worker_id_that_is_not_set() {
    let server = Server::with_leaf_id(&[]);
    let mut session = patient(&server);
    // The minimum of several measurements, to exclude delays by the machine.
    let mut fastest_with = |settings: &str, state: &str| {
        session.run(settings);
        let calls = (0..5).map(|_| {
            let (result, took) = timed(|| session.try_run(SNOWFLAKE));
            assert_ended(&mut session, result, state);
            took
        });
        calls.min().unwrap()
    };
    let whole = fastest_with("SET statement_timeout = '60s'", "55000");
    let ended = fastest_with("SET statement_timeout = '50ms'", "57014");
    assert!(whole < PROMPTLY, "{whole:?}");
    assert!(ended < whole, "{ended:?} of {whole:?}");
    session.run("RESET statement_timeout");
    let ended = disturb_waiting(&server, session, SNOWFLAKE, |pid| {
        server
            .session()
            .run(&format!("SELECT pg_cancel_backend({pid})"));
    });
    // Whichever came first.
    let state = ended.result.unwrap_err().state;
    assert!(["57014", "55000"].contains(&&*state), "{state}");
}

/// A batch longer than any timeout spends most of its time waiting for the next millisecond.
#[test]
fn for_the_next_millisecond() {
    let server = Server::with_leaf_id(&[
        ("leaf_id.worker_id", "5"),
        ("leaf_id.timestamp_reservation", "100ms"),
    ]);
    wait_until(LIMIT, "the first id", || {
        server.session().try_run(SNOWFLAKE).is_ok()
    });
    for statement in [
        "SELECT count(*) FROM (SELECT leaf_snowflake_next_batch(2147483647)) AS ids",
        "SELECT count(leaf_snowflake_next()) FROM generate_series(1, 2147483647)",
    ] {
        for act in ["pg_cancel_backend", "pg_terminate_backend"] {
            let mut session = server.session();
            let (pid, mut admin) = (session.pid(), server.session());
            thread::scope(|scope| {
                let running = scope.spawn(move || {
                    let result = session.try_run(statement);
                    (session, result)
                });
                wait_until(LIMIT, "it to issue", || {
                    admin.value(&format!(
                        "SELECT count(*) = 1 FROM pg_stat_activity
                         WHERE pid = {pid} AND state = 'active'
                             AND query_start < now() - interval '50 ms'"
                    ))
                });
                let ((mut session, result), took) = timed(|| {
                    admin.run(&format!("SELECT {act}({pid})"));
                    running.join().unwrap()
                });
                println!("{act} took {took:?}");
                assert!(took < PROMPTLY);
                if act == "pg_cancel_backend" {
                    assert_ended(&mut session, result, "57014");
                } else {
                    result.unwrap_err().is_termination();
                }
            });
        }
        let mut session = server.session();
        session.run("SET statement_timeout = '200ms'");
        let (result, took) = timed(|| session.try_run(statement));
        assert!(took < PROMPTLY, "{took:?}");
        assert_ended(&mut session, result, "57014");
    }
}

#[test]
fn waits_have_names() {
    let server = Server::with_leaf_id(&[("leaf_id.worker_id", "5")]);
    let mut session = server.session();
    let named = session.major() >= 17;
    let expected = |name: &str| Some(if named { name } else { "Extension" }.to_string());
    session.create_steady_tag("t", 10);
    let sleeping = session.worker("launcher").unwrap();
    wait_until(LIMIT, "the launcher to have nothing to do", || {
        wait_event(&mut session, sleeping) == expected("LeafIdLauncherMain")
    });
    session.next("t");
    let sleeping = session.worker("allocator").unwrap();
    wait_until(LIMIT, "the allocator to have nothing to do", || {
        wait_event(&mut session, sleeping) == expected("LeafIdAllocatorMain")
    });
    let mut watcher = server.session();
    let mut holder = server.session();
    holder.run("BEGIN; LOCK TABLE leaf_id.leaf_alloc IN ACCESS EXCLUSIVE MODE");
    let ended = disturb_waiting(&server, patient(&server), BATCH, |pid| {
        let event = wait_event(&mut watcher, pid);
        holder.run("COMMIT");
        assert_eq!(event, expected("LeafIdSegment"));
    });
    ended.result.unwrap();
    server.set("leaf_id.worker_id", "");
    wait_until(LIMIT, "the worker id to be unset", || {
        session.try_run(SNOWFLAKE).is_err()
    });
    let ended = disturb_waiting(&server, session, SNOWFLAKE, |pid| {
        // It may have ended since then.
        let event = wait_event(&mut watcher, pid);
        assert!(
            event.is_none() || event == expected("LeafIdSnowflake"),
            "{event:?}"
        );
    });
    ended.result.unwrap_err().is("55000");
}
