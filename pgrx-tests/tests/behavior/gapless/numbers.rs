//! Would catch: a call that does not wait for the one before, and a number that a prepared
//! transaction takes. (What one session can show is in sql/gapless.sql.)

use std::thread;
use std::time::Duration;

use leaf_id_tests::{Server, Session, wait_until};

use super::{NEXT, last, next, server_and_session};

const LIMIT: Duration = Duration::from_secs(30);

/// Whoever waits gets the number that the one before has given back, or the next one.
#[test]
fn a_call_waits_for_the_transaction_that_has_the_number_before() {
    let (server, mut first) = server_and_session(&[]);
    let mut other = server.session();
    other.run("SELECT leaf_gapless_create('other')");
    let taking = "SELECT leaf_gapless_next('s')";
    for (begin, end, more) in [
        (format!("BEGIN; {taking}"), "ROLLBACK", 1),
        (format!("BEGIN; {taking}"), "COMMIT", 2),
        (format!("BEGIN; SAVEPOINT a; {taking}"), "ROLLBACK TO a", 1),
        (
            format!("BEGIN; {taking}; SAVEPOINT a; {taking}"),
            "ROLLBACK TO a; COMMIT",
            2,
        ),
        (
            format!("BEGIN; {taking}; SAVEPOINT a; {taking}"),
            "ROLLBACK",
            1,
        ),
    ] {
        let before = last(&mut other);
        first.run(&begin);
        let mut second = server.session();
        let pid = second.pid();
        thread::scope(|scope| {
            let waiting = scope.spawn(move || next(&mut second));
            wait_for_lock(&mut other, pid);
            // Another series is free meanwhile.
            other.run("SELECT leaf_gapless_next('other')");
            first.run(end);
            assert_eq!(waiting.join().unwrap(), before + more, "{begin}; {end}");
        });
        first.run("ROLLBACK");
    }
}

/// Until the session of this process waits for somebody's lock.
fn wait_for_lock(session: &mut Session, pid: i32) {
    wait_until(LIMIT, "it to wait", || {
        session.value(&format!(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid} AND wait_event_type = 'Lock')"
        ))
    });
}

#[test]
fn a_wait_ends_as_the_settings_say() {
    let (server, mut first) = server_and_session(&[]);
    first.run("BEGIN");
    next(&mut first);
    let mut second = server.session();
    second.run("SET lock_timeout = '50ms'");
    second.fails(NEXT).is("55P03");
    second.run("RESET lock_timeout; BEGIN; SET LOCAL statement_timeout = '50ms'");
    second.fails(NEXT).is("57014");
    second.run("ROLLBACK");
    // A series that is dropped while it is waited for.
    let mut dropping = server.session();
    dropping.run("SELECT leaf_gapless_create('gone')");
    dropping.run("BEGIN; SELECT leaf_gapless_drop('gone')");
    let pid = second.pid();
    thread::scope(|scope| {
        let waiting = scope.spawn(move || second.fails("SELECT leaf_gapless_next('gone')"));
        wait_for_lock(&mut server.session(), pid);
        dropping.run("COMMIT");
        waiting
            .join()
            .unwrap()
            .is("42704")
            .says("\"gone\" does not exist");
    });
}

#[test]
fn a_transaction_that_has_one_cannot_be_prepared() {
    let (_server, mut session) = server_and_session(&[("max_prepared_transactions", "5")]);
    session.run("BEGIN; SELECT leaf_gapless_next('s')");
    session.fails("PREPARE TRANSACTION 'p'").is("0A000");
    for within in [
        "SAVEPOINT a; SELECT leaf_gapless_next('s'); RELEASE a",
        "SAVEPOINT a; SAVEPOINT b; SELECT leaf_gapless_next('s'); RELEASE b",
        "SELECT leaf_gapless_next('s'); SAVEPOINT a; SELECT leaf_gapless_next('s'); ROLLBACK TO a",
        "SAVEPOINT a; SELECT leaf_gapless_next('s'); SAVEPOINT b; SELECT leaf_gapless_next('s');
         ROLLBACK TO b; RELEASE a",
    ] {
        session.run(&format!("BEGIN; {within}"));
        session.fails("PREPARE TRANSACTION 'p'").is("0A000");
    }
    // One that has given its numbers back may, and one that had none.
    for within in [
        "SAVEPOINT a; SELECT leaf_gapless_next('s'); ROLLBACK TO a",
        "SAVEPOINT a; SAVEPOINT b; SELECT leaf_gapless_next('s'); RELEASE b; ROLLBACK TO a",
        "SELECT 1",
    ] {
        session.run(&format!("BEGIN; {within}; PREPARE TRANSACTION 'p'"));
        session.run("COMMIT PREPARED 'p'");
    }
    assert_eq!(next(&mut session), 1);
}

/// Of two series in one order; in two orders PostgreSQL ends one of them.
#[test]
fn two_series_in_one_order_are_no_deadlock() {
    let (server, mut session) = server_and_session(&[("deadlock_timeout", "100ms")]);
    session.run("SELECT leaf_gapless_create('t')");
    let failures = leaf_id_tests::in_threads(4, |_| {
        let mut session = server.session();
        let both = "BEGIN; SELECT leaf_gapless_next('s'); SELECT leaf_gapless_next('t'); COMMIT";
        (0..100).filter(|_| session.try_run(both).is_err()).count()
    });
    assert_eq!(failures, [0; 4]);
    assert_eq!(next(&mut session), 401);
    let mut other = server.session();
    session.run("BEGIN; SELECT leaf_gapless_next('s')");
    other.run("BEGIN; SELECT leaf_gapless_next('t')");
    let states = thread::scope(|scope| {
        let state =
            |result: Result<(), leaf_id_tests::Failure>| result.err().map(|failure| failure.state);
        let one = scope.spawn(|| session.try_run("SELECT leaf_gapless_next('t'); COMMIT"));
        let two = other.try_run("SELECT leaf_gapless_next('s'); COMMIT");
        let two = state(two);
        if two.is_some() {
            other.run("ROLLBACK");
        }
        [state(one.join().unwrap()), two]
    });
    assert!(states.contains(&Some("40P01".into())), "{states:?}");
}

/// It needs no shared memory, so not to be preloaded either.
#[test]
fn it_works_where_the_library_is_not_preloaded() {
    let server = Server::with_leaf_id(&[("shared_preload_libraries", "")]);
    let mut session = server.session();
    session.run("SELECT leaf_gapless_create('s')");
    assert_eq!([next(&mut session), next(&mut session)], [1, 2]);
}
