//! Would catch: ids that stop, repeat or go back when workers are terminated during their work, and
//! sessions that fail for lack of slots and never recover.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use leaf_id_tests::{
    Call, Server, Session, assert_in_order, assert_issued_once, disturb_waiting, in_threads,
    in_threads_until, random, wait_until,
};
use rand::RngExt;

const LIMIT: Duration = Duration::from_secs(30);
const SESSIONS: usize = 16;

/// A call of a session for ids of t: one id, a batch or a range.
fn call(session: &mut Session, round: usize) -> Call {
    let n = round % 60 + 1;
    let sql = match n % 3 {
        0 => format!("SELECT leaf_segment_next_batch('t', {n})"),
        1 => format!(
            "SELECT generate_series(first_id, last_id) FROM leaf_segment_next_range('t', {n})"
        ),
        _ => "SELECT leaf_segment_next('t')".into(),
    };
    Call::make(|| session.ids(&sql))
}

fn end(session: &mut Session, pid: i32) {
    session.run(&format!("SELECT pg_terminate_backend({pid})"));
    wait_until(LIMIT, "it to end", || {
        session.value(&format!(
            "SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = {pid}"
        ))
    });
}

fn wait_for_launcher(session: &mut Session) {
    wait_until(LIMIT, "the launcher to come back", || {
        session.worker("launcher").is_some()
    });
}

#[test]
fn workers_that_are_terminated_at_rest_come_back() {
    let server = Server::with_leaf_id(&[
        ("leaf_id.worker_id", "1"),
        ("leaf_id.timestamp_reservation", "100ms"),
    ]);
    let mut session = server.session();
    session.create_steady_tag("t", 10);
    session.run("SET leaf_id.refill_timeout = '30s'");
    let (mut ids, mut snowflakes) = (Vec::new(), Vec::new());
    for names in [
        &["allocator"][..],
        &["launcher"],
        &["launcher", "allocator"],
        &["allocator", "launcher"],
    ] {
        ids.extend(session.take("t", 25));
        snowflakes.extend(session.ids("SELECT leaf_snowflake_next_batch(10)"));
        for name in names {
            if let Some(pid) = session.worker(name) {
                end(&mut session, pid);
            }
        }
        // Do not wait for the launcher; the sessions do.
        ids.extend(session.take("t", 25));
        snowflakes.extend(session.ids("SELECT leaf_snowflake_next_batch(10)"));
        wait_for_launcher(&mut session);
    }
    assert_issued_once(&[ids]);
    assert_issued_once(&[snowflakes]);
}

/// Every id needs a claim, so the allocator always has a request.
#[test]
fn an_allocator_that_never_rests_ends_when_it_is_terminated() {
    let server = Server::with_leaf_id(&[]);
    let mut admin = server.session();
    for tag in 0..SESSIONS {
        admin.create_steady_tag(&format!("t{tag}"), 1);
    }
    let (taken, ()) = in_threads_until(
        SESSIONS,
        |tag, done| {
            let mut session = server.session();
            session.run("SET leaf_id.refill_timeout = '30s'");
            let mut ids = Vec::new();
            while !done.load(Ordering::Relaxed) {
                ids.extend(session.take(&format!("t{tag}"), 100));
            }
            ids
        },
        || {
            for _ in 0..5 {
                let mut pid = None;
                wait_until(LIMIT, "an allocator", || {
                    pid = admin.worker("allocator");
                    pid.is_some()
                });
                end(&mut admin, pid.unwrap());
            }
        },
    );
    for ids in taken {
        assert_issued_once([ids]);
    }
}

#[test]
fn workers_that_are_terminated_or_canceled_under_load_disturb_no_session() {
    let server = Server::with_leaf_id(&[("leaf_id.allocator_idle_timeout", "100ms")]);
    let mut admin = server.session();
    admin.run("SELECT leaf_tag_create('t', step => 10, max_step => 100)");
    let mut random = random();
    let (calls, ()) = in_threads_until(
        SESSIONS,
        |i, done| {
            let mut session = server.session();
            session.run("SET leaf_id.refill_timeout = '30s'");
            let mut calls = Vec::new();
            while !done.load(Ordering::Relaxed) {
                calls.push(call(&mut session, calls.len() + i));
            }
            calls
        },
        || {
            for round in 0..40 {
                // Each exit of the launcher takes a second.
                let name = ["allocator", "launcher"][usize::from(round % 10 == 0)];
                let how = ["terminate", "cancel"][random.random_range(0..2)];
                let mut pid = None;
                wait_until(LIMIT, name, || {
                    pid = admin.worker(name);
                    pid.is_some()
                });
                admin.run(&format!("SELECT pg_{how}_backend({})", pid.unwrap()));
                thread::sleep(Duration::from_millis(random.random_range(0..50)));
            }
        },
    );
    let calls = calls.concat();
    println!("{} calls", calls.len());
    assert!(calls.len() > 10 * SESSIONS);
    assert_in_order(calls);
    let mut session = server.session();
    wait_for_launcher(&mut session);
    session.next("t");
}

#[test]
fn an_allocator_terminated_in_a_row_lock_repeats_nothing() {
    let server = Server::with_leaf_id(&[]);
    let (mut admin, mut holder) = (server.session(), server.session());
    admin.create_steady_tag("t", 10);
    let mut issued = vec![admin.next("t")];
    for _ in 0..3 {
        holder.run("BEGIN; SELECT FROM leaf_id.leaf_alloc WHERE biz_tag = 't' FOR UPDATE");
        let mut waiter = server.session();
        waiter.run("SET leaf_id.refill_timeout = '30s'; CREATE TEMP TABLE got (id bigint)");
        let batch = "INSERT INTO got SELECT leaf_segment_next_batch('t', 100)";
        let mut ended = disturb_waiting(&server, waiter, batch, |_| {
            for _ in 0..3 {
                let mut stuck = None;
                wait_until(LIMIT, "an allocator to wait for the row", || {
                    stuck = admin
                        .column::<i32>(
                            "SELECT pid FROM pg_stat_activity
                             WHERE backend_type = 'leaf_id allocator' AND wait_event_type = 'Lock'",
                        )
                        .pop();
                    stuck.is_some()
                });
                end(&mut admin, stuck.unwrap());
            }
            holder.run("COMMIT");
        });
        println!("it took {:?}", ended.took);
        ended.result.unwrap();
        issued.extend(ended.session.ids("SELECT id FROM got ORDER BY id"));
        issued.push(admin.next("t"));
    }
    assert_eq!(issued.len(), 1 + 3 * 101);
    assert_issued_once(&[issued]);
}

/// A parallel worker occupies the only slot, and the reserve worker is busy elsewhere.
#[test]
fn sessions_that_wait_for_a_worker_slot_are_served_when_it_is_free() {
    let server = Server::with_leaf_id(&[
        ("max_worker_processes", "3"),
        ("max_logical_replication_workers", "0"),
        ("max_parallel_workers", "1"),
        ("leaf_id.allocator_idle_timeout", "100ms"),
    ]);
    let mut admin = server.session();
    admin.create_tag("t");
    admin.run("CREATE DATABASE other");
    server
        .session_in("other")
        .run("CREATE EXTENSION leaf_id; SELECT leaf_tag_create('t')");
    let mut hog = server.session();
    let pid = hog.pid();
    hog.run(
        "CREATE FUNCTION hog() RETURNS void PARALLEL SAFE LANGUAGE sql AS 'SELECT pg_sleep(100)'",
    );
    let forced = if hog.major() >= 16 {
        "debug_parallel_query"
    } else {
        "force_parallel_mode"
    };
    hog.run(&format!("SET {forced} = on"));
    let slots = AtomicUsize::new(0);
    let drawn = thread::scope(|scope| {
        let hogging = scope.spawn(move || hog.fails("SELECT hog()"));
        wait_until(LIMIT, "the parallel worker", || {
            admin.value(&format!(
                "SELECT count(*) = 1 FROM pg_stat_activity WHERE leader_pid = {pid}"
            ))
        });
        server.session_in("other").next("t");
        let busy = admin.value(
            "SELECT pid FROM pg_stat_activity WHERE backend_type = 'leaf_id reserve worker'",
        );
        let busy = server.pause(busy);
        let mut impatient = server.session();
        impatient.run("SET leaf_id.refill_timeout = '300ms'");
        let refused = impatient.try_next("t");
        let drawn = thread::scope(|inner| {
            let drawing = inner.spawn(|| {
                in_threads(SESSIONS, |_| {
                    let mut session = server.session();
                    session.run("SET leaf_id.refill_timeout = '30s'");
                    slots.fetch_add(1, Ordering::SeqCst);
                    session.take("t", 500)
                })
            });
            wait_until(LIMIT, "all to wait", || {
                admin.value(&format!(
                    "SELECT count(*) = {SESSIONS} FROM pg_stat_activity
                     WHERE backend_type = 'client backend' AND wait_event_type = 'Extension'"
                ))
            });
            admin.run(&format!("SELECT pg_cancel_backend({pid})"));
            drawing.join().unwrap()
        });
        hogging.join().unwrap().is("57014");
        drop(busy);
        refused
            .unwrap_err()
            .is("55P03")
            .details("All background worker slots are in use");
        drawn
    });
    assert_issued_once(&drawn);
}

/// More tags in use than slots: each call gets ids, or an error with the reason.
#[test]
fn sixteen_sessions_on_sixteen_tags_share_two_slots() {
    let server = Server::with_leaf_id(&[("leaf_id.max_tags", "2")]);
    let mut session = server.session();
    for tag in 0..SESSIONS {
        session.create_steady_tag(&format!("t{tag}"), 5);
    }
    let full = AtomicUsize::new(0);
    let drawn = in_threads(SESSIONS, |i| {
        let mut session = server.session();
        // Its own tag and its neighbor's.
        let mut ids = [Vec::new(), Vec::new()];
        for round in 0..40 {
            let which = usize::from(round % 4 == 3);
            match session.try_take(&format!("t{}", (i + which) % SESSIONS), 7) {
                Ok(taken) => ids[which].extend(taken),
                Err(failure) => {
                    failure.is("54000").hints("leaf_id.max_tags");
                    full.fetch_add(1, Ordering::SeqCst);
                }
            }
        }
        ids
    });
    println!("no slot was free {} times", full.load(Ordering::SeqCst));
    for tag in 0..SESSIONS {
        let neighbor = (tag + SESSIONS - 1) % SESSIONS;
        assert!(!drawn[tag][0].is_empty(), "t{tag} starved");
        assert_issued_once([&drawn[tag][0], &drawn[neighbor][1]]);
    }
}

/// A hanging claim, for example on a disk, holds up only its own database, and within bounds.
#[test]
fn an_allocator_that_is_late_is_waited_for_in_bounds() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.create_steady_tag("t", 10);
    session.run("CREATE DATABASE other");
    let mut ids = vec![session.next("t")];
    // An idle one: an allocator stopped in a commit holds up all commits of the server.
    session.wait_for_spare("t");
    let paused = server.pause(session.worker("allocator").unwrap());
    session.run("SET leaf_id.refill_timeout = '300ms'");
    let failure = loop {
        match session.try_next("t") {
            Ok(id) => ids.push(id),
            Err(failure) => break failure,
        }
        assert!(ids.len() < 100, "who claims them?");
    };
    failure.is("55P03").says("300 ms");
    session.run("SET leaf_id.refill_timeout = '60s'; SET statement_timeout = '300ms'");
    session.fails("SELECT leaf_segment_next('t')").is("57014");
    let mut other = server.session_in("other");
    other.run("CREATE EXTENSION leaf_id; SELECT leaf_tag_create('t')");
    assert_eq!(other.next("t"), 1);
    let mut waiter = server.session();
    waiter.run("SET leaf_id.refill_timeout = '60s'; CREATE TEMP TABLE got (id bigint)");
    let batch = "INSERT INTO got SELECT leaf_segment_next_batch('t', 100)";
    let mut ended = disturb_waiting(&server, waiter, batch, |_| drop(paused));
    ended.result.unwrap();
    ids.extend(ended.session.ids("SELECT id FROM got ORDER BY id"));
    session.run("RESET statement_timeout");
    ids.push(session.next("t"));
    assert_issued_once([ids]);
}
