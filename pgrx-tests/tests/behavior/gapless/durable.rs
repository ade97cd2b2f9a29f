//! Would catch: a number reported as committed and issued again after a crash or a failover,
//! because `synchronous_commit` was turned off.

use std::thread;
use std::time::Duration;

use leaf_id_tests::{STANDBY, Stop, becomes, wait_until};

use super::{NEXT, last, next, server_and_session};

const LIMIT: Duration = Duration::from_secs(30);

/// Ways to take a number with an asynchronous commit.
const WAYS: [&[&str]; 6] = [
    &["SET synchronous_commit = off", NEXT],
    &[
        "BEGIN",
        NEXT,
        "SET LOCAL synchronous_commit = off",
        "COMMIT",
    ],
    &["BEGIN", NEXT, "SET synchronous_commit = off", "COMMIT"],
    &["SET synchronous_commit = off", "SELECT next_quickly()"],
    &[
        "SET synchronous_commit = off",
        "BEGIN; SAVEPOINT a; SELECT leaf_id.leaf_gapless_next('s'); RELEASE a",
        "SAVEPOINT a; SELECT leaf_id.leaf_gapless_next('s'); ROLLBACK TO a; COMMIT",
    ],
    &[
        "SET synchronous_commit = off",
        "DO $$ BEGIN PERFORM leaf_id.leaf_gapless_next('s'); COMMIT; END $$",
    ],
];

#[test]
fn a_number_survives_a_crash_whatever_synchronous_commit_says() {
    let (server, mut session) = server_and_session(&[
        // No WAL is flushed unless a session waits for it.
        ("wal_writer_delay", "10s"),
        ("wal_writer_flush_after", "1GB"),
        ("bgwriter_delay", "10s"),
        ("autovacuum", "off"),
    ]);
    session.run(
        "CREATE TABLE vain (way int);
         CREATE FUNCTION next_quickly() RETURNS bigint LANGUAGE sql
             SET synchronous_commit = off AS 'SELECT leaf_id.leaf_gapless_next(''s'')'",
    );
    for (way, sql) in (1..).zip(WAYS) {
        let mut session = server.session();
        session.run("CHECKPOINT");
        for sql in sql {
            session.run(sql);
        }
        session.run("SET synchronous_commit = off");
        session.run(&format!("INSERT INTO vain VALUES ({way})"));
        server.kill_9();
        drop(session);
        server.launch();
        assert_eq!(last(&mut server.session()), way, "{sql:?}");
    }
    let kept: usize =
        usize::try_from(server.session().value::<i64>("SELECT count(*) FROM vain")).unwrap();
    println!("{kept} of {} writes in vain were flushed", WAYS.len());
    assert!(kept < WAYS.len(), "the crashes have lost nothing");
}

#[test]
fn the_setting_is_the_sessions_own_again_afterwards() {
    let (_server, mut session) = server_and_session(&[]);
    for (set, then) in [
        ("off", "off"),
        ("local", "local"),
        ("remote_apply", "remote_apply"),
    ] {
        session.run(&format!("SET synchronous_commit = {set}"));
        session.run(NEXT);
        assert_eq!(session.value::<String>("SHOW synchronous_commit"), then);
    }
}

/// At least `on`: a standby that may be promoted has the commit.
#[test]
fn a_number_waits_for_the_synchronous_standby() {
    let (primary, mut session) = server_and_session(&[("wal_retrieve_retry_interval", "100ms")]);
    let standby = primary.standby(&[]);
    primary.configure("synchronous_standby_names", STANDBY);
    wait_until(LIMIT, "the standby to be synchronous", || {
        session.value("SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')")
    });
    session.run("CREATE TABLE t (i int)");
    for level in ["off", "local", "remote_write"] {
        standby.stop(Stop::Fast);
        let mut taking = primary.session();
        taking.run(&format!("SET synchronous_commit = {level}"));
        if level != "remote_write" {
            // Other sessions' commits do not wait.
            taking.run("INSERT INTO t VALUES (1)");
        }
        let pid = taking.pid();
        thread::scope(|scope| {
            let waiting = scope.spawn(move || next(&mut taking));
            let waits = becomes(LIMIT, || {
                session.value(&format!(
                    "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'SyncRep')"
                ))
            });
            // Before the assertion, which may fail: the other session cannot be canceled.
            standby.launch();
            waiting.join().unwrap();
            assert!(waits, "the commit with {level}");
        });
    }
    primary.kill_9();
    standby.promote();
    assert_eq!(next(&mut standby.session()), 4);
}
