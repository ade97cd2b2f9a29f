//! Would catch: ids whose claim is lost in a crash because `synchronous_commit` was turned off for
//! the server, a database, a role or a session (I1). (Crashes under load are tested in
//! `restarts.rs`.)

use std::time::Duration;

use leaf_id_tests::{Server, Session, assert_issued_once, wait_until};

const LIMIT: Duration = Duration::from_secs(30);

/// Where it is turned off, in what order it counts least to most.
const PLACES: [&str; 5] = [
    "ALTER SYSTEM SET synchronous_commit = off",
    "ALTER DATABASE postgres SET synchronous_commit = off",
    "ALTER ROLE postgres SET synchronous_commit = off",
    "ALTER ROLE postgres IN DATABASE postgres SET synchronous_commit = off",
    "SELECT set_config('synchronous_commit', 'off', false)",
];

/// A server where nothing but a flush that somebody waits for reaches the disk.
fn lazy_server() -> Server {
    Server::with_leaf_id(&[
        ("wal_writer_delay", "10s"),
        // With 0, each commit wakes the WAL writer from 17 on.
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
    // A reload takes its time.
    session.run("SET synchronous_commit = off");
    session
}

/// Writes something that the crash loses: otherwise nothing was tried here. Not while a
/// claim is made, which flushes all that was written before.
fn write_in_vain(session: &mut Session, round: usize) {
    wait_until(LIMIT, "the spares", || {
        session.value(
            "SELECT bool_and(spare_state IS DISTINCT FROM 'in flight') FROM leaf_segment_status",
        )
    });
    session.run(&format!("INSERT INTO vain VALUES ({round})"));
}

/// Checks that the crashes lost something. One or another may have been flushed: the
/// WAL writer is woken by a full page.
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
        // The tag, its first claim and the next ones: none of them is flushed for its
        // session's sake.
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

/// What an edit that nobody has flushed says counts from the first id on.
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

/// A caller may have passed its ids on, and they would come again if the tag were created again.
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
