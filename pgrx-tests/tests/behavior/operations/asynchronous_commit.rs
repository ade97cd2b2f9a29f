//! Would catch: ids whose claim is lost in a crash because `synchronous_commit` was turned off for
//! the server, a database, a role or a session (I1). (Crashes under load are tested in
//! `restarts.rs`.)

use std::time::Duration;

use leaf_id_tests::{Server, Session, assert_issued_once, wait_until};

const LIMIT: Duration = Duration::from_secs(30);

/// Scopes of the setting, in order of increasing precedence.
const PLACES: [&str; 5] = [
    "ALTER SYSTEM SET synchronous_commit = off",
    "ALTER DATABASE postgres SET synchronous_commit = off",
    "ALTER ROLE postgres SET synchronous_commit = off",
    "ALTER ROLE postgres IN DATABASE postgres SET synchronous_commit = off",
    "SELECT set_config('synchronous_commit', 'off', false)",
];

/// A server on which no WAL is flushed unless a session waits for it.
fn lazy_server() -> Server {
    Server::with_leaf_id(&[
        ("wal_writer_delay", "10s"),
        // With 0, each commit wakes the WAL writer, since PostgreSQL 17.
        ("wal_writer_flush_after", "1GB"),
        ("bgwriter_delay", "10s"),
        ("autovacuum", "off"),
    ])
}

fn turn_off(server: &Server, place: &str) -> Session {
    let mut session = server.session();
    session.run(place);
    server.reload();
    if !place.starts_with("SELECT") {
        session = server.session();
    }
    // A reload takes effect with a delay.
    session.run("SET synchronous_commit = off");
    session
}

/// Writes something that the crash loses; otherwise the test would prove nothing. Not concurrent
/// with a claim, which flushes all earlier WAL.
fn write_in_vain(session: &mut Session, round: usize) {
    wait_until(LIMIT, "the spares", || {
        session.value(
            "SELECT bool_and(spare_state IS DISTINCT FROM 'in flight') FROM leaf_id.tags_detail",
        )
    });
    session.run(&format!("INSERT INTO vain VALUES ({round})"));
}

/// Checks that the crashes lost something. Some of it may have been flushed, since a full page
/// wakes the WAL writer.
fn assert_vain(server: &Server, rounds: usize) {
    let kept: i64 = server.session().value("SELECT count(*) FROM vain");
    println!("{kept} of {rounds} writes in vain were flushed");
    assert!(usize::try_from(kept).unwrap() < rounds);
}

#[test]
fn the_first_ids_of_a_tag_are_above_after_a_crash() {
    let server = lazy_server();
    server
        .session()
        .run("CREATE TABLE vain (round int); CHECKPOINT");
    for (round, place) in PLACES.into_iter().enumerate() {
        println!("{place}");
        let mut session = turn_off(&server, place);
        session.run("CHECKPOINT");
        // The tag, its first claim and the next ones: none of them is flushed by its session's own
        // commit.
        let tag = format!("t{round}");
        session.create_steady_tag(&tag, 5);
        let mut ids = session.take(&tag, 12);
        write_in_vain(&mut session, round);
        server.kill_9();
        drop(session);
        server.launch();
        let mut session = server.session();
        ids.extend(session.take(&tag, 12));
        assert_issued_once([ids]);
    }
    assert_vain(&server, PLACES.len());
}

/// An edit that was not flushed applies from the first id on.
#[test]
fn ids_after_an_edit_are_above_after_a_crash() {
    let server = lazy_server();
    let mut session = server.session();
    session.run("CREATE TABLE vain (round int)");
    for tag in ["raised", "reset", "renamed"] {
        session.create_steady_tag(tag, 5);
        session.next(tag);
    }
    drop(session);
    for round in 0..3 {
        let mut session = server.session();
        session.run("CHECKPOINT; SET synchronous_commit = off");
        let (base, other) = (1000 * (round as i64 + 1), ["renamed", "other"][round % 2]);
        let edited = ["other", "renamed"][round % 2];
        session.run(&format!(
            "UPDATE leaf_id.leaf_alloc SET max_id = {base} WHERE biz_tag = 'raised';
             SELECT leaf_tag_reset('reset', {base});
             UPDATE leaf_id.leaf_alloc SET biz_tag = '{edited}', max_id = {base} WHERE biz_tag = '{other}'"
        ));
        let tags = ["raised", "reset", edited];
        let before = tags.map(|tag| session.take(tag, 7));
        write_in_vain(&mut session, round);
        server.kill_9();
        drop(session);
        server.launch();
        let mut session = server.session();
        for (tag, before) in tags.into_iter().zip(before) {
            assert_eq!(before[0], base);
            assert_issued_once([[before, session.take(tag, 7)].concat()]);
        }
    }
    assert_vain(&server, 3);
}

/// A caller may have passed its ids on, and they would repeat if the tag were created again.
#[test]
fn a_transaction_that_creates_and_uses_a_tag_is_not_lost() {
    let server = lazy_server();
    let mut session = server.session();
    session.run(
        "CHECKPOINT; SET synchronous_commit = off;
         BEGIN; SELECT leaf_tag_create('t', step => 5);
         SELECT leaf_segment_next('t') FROM generate_series(1, 50);
         COMMIT",
    );
    server.kill_9();
    drop(session);
    server.launch();
    let mut session = server.session();
    assert!(session.next("t") > 50);
}
