//! Would catch: a watermark that passes an id whose transaction is still open, be it prepared, rolled back to a
//! savepoint or older than the tag's row; one that stays back when the transaction has ended; and one that
//! waits for transactions without an id of the tag.

use leaf_id_tests::{Session, Stop};

use super::{Reader, Reading, WATERMARK, server_with_events};

fn insert(session: &mut Session) -> i64 {
    session.value("INSERT INTO events DEFAULT VALUES RETURNING id")
}

fn watermark(session: &mut Session) -> i64 {
    session.value(WATERMARK)
}

/// The watermark stays at or below `id`, whatever comes after it.
#[track_caller]
fn assert_held(session: &mut Session, id: i64) {
    for _ in 0..3 {
        insert(session);
        let held = watermark(session);
        assert!(held <= id, "{held} has passed {id}");
    }
}

/// The watermark stays at or below `id` until `end` has ended its transaction, and is above it then.
#[track_caller]
fn assert_held_until(session: &mut Session, id: i64, end: impl FnOnce()) {
    assert_held(session, id);
    end();
    let free = watermark(session);
    assert!(free > id, "{free} has not passed {id}");
}

#[test]
fn the_oldest_open_transaction_of_the_tag_is_the_end() {
    let (server, mut session) = server_with_events(&[]);
    session.run("CREATE DATABASE next_door");
    session.run("SELECT leaf_tag_create('other')");
    let mut reader = Reader::new(Reading::BelowWatermark);
    // None of these has an ordered id of the tag.
    let mut others = [
        "SELECT leaf_ordered_next('other')",
        "SELECT leaf_segment_next('events')",
        "SELECT pg_current_xact_id()",
    ]
    .map(|sql| {
        let mut other = server.session();
        other.run("BEGIN");
        other.run(sql);
        other
    });
    let mut next_door = server.session_in("next_door");
    next_door.run(
        "CREATE EXTENSION leaf_id; SELECT leaf_tag_create('events');
         BEGIN; SELECT leaf_ordered_next('events')",
    );
    let first = insert(&mut session);
    assert_eq!(reader.poll(&mut session), [first]);

    let (mut older, mut newer) = (server.session(), server.session());
    older.run("BEGIN");
    let a = insert(&mut older);
    let b = insert(&mut session);
    newer.run("BEGIN");
    let c = insert(&mut newer);
    let d = insert(&mut session);
    let e = insert(&mut older);
    assert!(a < b && b < c && c < d && d < e);
    assert_eq!(reader.poll(&mut session), []);
    newer.run("COMMIT");
    assert_eq!(reader.poll(&mut session), []);
    older.run("COMMIT");
    assert_eq!(reader.poll(&mut session), [a, b, c, d, e]);
    for other in &mut others {
        other.run("COMMIT");
    }
}

#[test]
fn a_transactions_own_ids_hold_it_back_too() {
    let (_server, mut session) = server_with_events(&[]);
    session.run("BEGIN");
    let id = insert(&mut session);
    assert!(watermark(&mut session) < id);
    session.run("ROLLBACK");
    assert!(watermark(&mut session) > id);
}

#[test]
fn whatever_ends_the_transaction_ends_it() {
    let (server, mut session) = server_with_events(&[]);
    for end in [
        "COMMIT",
        "ROLLBACK",
        "COMMIT AND CHAIN",
        "ROLLBACK AND CHAIN",
    ] {
        let mut writer = server.session();
        writer.run("BEGIN");
        let id = insert(&mut writer);
        assert_held_until(&mut session, id, || writer.run(end));
        // The next one has a low of its own.
        writer.run("ROLLBACK; BEGIN");
        let id = insert(&mut writer);
        assert_held_until(&mut session, id, || {
            writer.fails("SELECT 1 / 0").is("22012");
            // The error is sent before the locks are released.
            writer.fails("SELECT").is("25P02");
        });
    }
    let mut writer = server.session();
    writer.run("BEGIN");
    let (id, pid) = (insert(&mut writer), writer.pid());
    assert_held_until(&mut session, id, || {
        server
            .session()
            .run(&format!("SELECT pg_terminate_backend({pid}, 10000)"));
    });
}

/// The client, or a variable, still has the id.
#[test]
fn an_id_of_a_savepoint_that_was_rolled_back_may_be_stored() {
    let (server, mut session) = server_with_events(&[]);
    let mut writer = server.session();
    writer.run("BEGIN; SAVEPOINT a");
    let id: i64 = writer.value("SELECT leaf_ordered_next('events')");
    writer.run("ROLLBACK TO a; RELEASE a");
    writer.run(&format!("INSERT INTO events VALUES ({id})"));
    assert_held_until(&mut session, id, || writer.run("COMMIT"));

    writer.run(
        "CREATE PROCEDURE retry(OUT kept bigint) LANGUAGE plpgsql AS $$
         BEGIN
             BEGIN
                 kept := leaf_ordered_next('events');
                 RAISE division_by_zero;
             EXCEPTION WHEN division_by_zero THEN
                 INSERT INTO events VALUES (kept);
             END;
         END $$",
    );
    writer.run("BEGIN");
    let id: i64 = writer.value("CALL retry(NULL)");
    assert_held_until(&mut session, id, || writer.run("COMMIT"));
}

#[test]
fn a_procedure_that_commits_has_a_low_for_each_transaction() {
    let (server, mut session) = server_with_events(&[]);
    let mut writer = server.session();
    writer.run(
        "CREATE PROCEDURE twice() LANGUAGE plpgsql AS $$
         BEGIN
             INSERT INTO events DEFAULT VALUES;
             COMMIT;
             INSERT INTO events DEFAULT VALUES;
             PERFORM pg_advisory_lock(1);
         END $$",
    );
    session.run("SELECT pg_advisory_lock(1)");
    std::thread::scope(|scope| {
        scope.spawn(|| writer.run("CALL twice()"));
        leaf_id_tests::wait_until(leaf_id_tests::PROMPTLY, "the lock", || {
            session.value("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
        });
        // The first row is visible, and the second one still open.
        let first: i64 = session.value("SELECT max(id) FROM events");
        let held = watermark(&mut session);
        let again = watermark(&mut session);
        assert!(first < held && held == again, "{first} {held} {again}");
        session.run("SELECT pg_advisory_unlock(1)");
    });
    let last: i64 = session.value("SELECT max(id) FROM events");
    assert!(watermark(&mut session) > last);
}

#[test]
fn a_prepared_transaction_is_open_over_a_crash_and_a_promotion() {
    let (server, mut session) = server_with_events(&[]);
    let mut reader = Reader::new(Reading::BelowWatermark);
    let prepare = |session: &mut Session, name: &str| {
        session.run("BEGIN");
        let id = insert(session);
        session.run(&format!("PREPARE TRANSACTION '{name}'"));
        id
    };
    let a = prepare(&mut session, "a");
    // The session itself has a new low, and forgets nothing of the other.
    let b = prepare(&mut session, "b");
    session.run("DISCARD ALL");
    session.run("SELECT pg_advisory_unlock_all()");
    assert_held(&mut session, a);
    server.crash();
    let mut session = server.session();
    assert!(reader.poll(&mut session).is_empty());
    assert_held_until(&mut session, a, || {
        server.session().run("COMMIT PREPARED 'a'")
    });
    assert!(reader.poll(&mut session).contains(&a));
    assert_held_until(&mut session, b, || {
        server.session().run("ROLLBACK PREPARED 'b'")
    });

    let c = prepare(&mut session, "c");
    let standby = server.standby(&[]);
    session.run("CHECKPOINT");
    server.stop(Stop::Fast);
    standby.promote();
    let mut session = standby.session();
    assert_held_until(&mut session, c, || {
        standby.session().run("COMMIT PREPARED 'c'");
    });
    assert!(reader.poll(&mut session).contains(&c));
    assert_eq!(reader.lost(&mut session), 0);
}

/// The locks of a tag go by its name: a reader sees those of transactions with ids of an earlier row.
#[test]
fn a_tag_that_is_created_again_is_held_back_by_ids_of_the_earlier() {
    let (server, mut session) = server_with_events(&[]);
    for forget in [false, true] {
        let mut writer = server.session();
        writer.run("BEGIN");
        let id = insert(&mut writer);
        session.run(&format!(
            "SELECT leaf_tag_drop('events', force => true, forget => {forget})"
        ));
        session.run(if forget {
            "SELECT leaf_tag_create('events', 100000)"
        } else {
            "SELECT leaf_sync('events')"
        });
        assert_held_until(&mut session, id, || writer.run("COMMIT"));
    }
    // The row of an open transaction is moved far up.
    let mut writer = server.session();
    writer.run("BEGIN");
    let id = insert(&mut writer);
    session.run("UPDATE leaf_id.leaf_alloc SET max_id = max_id + (1::bigint << 40)");
    assert_held_until(&mut session, id, || writer.run("COMMIT"));
    // With the low behind it, the tag may pass what a lock can carry.
    writer.run("BEGIN");
    let id = insert(&mut writer);
    session.run("UPDATE leaf_id.leaf_alloc SET max_id = 1::bigint << 47");
    assert!(watermark(&mut session) < id);
    let beyond: i64 = writer.value("SELECT leaf_ordered_next('events')");
    assert!(beyond >= 1 << 47, "{beyond}");
    writer.run("COMMIT");
    assert!(watermark(&mut session) > 1 << 47);
    session
        .fails("SELECT leaf_ordered_next('events')")
        .is("54000");
}

#[test]
fn a_tag_of_the_open_transaction_has_ordered_ids() {
    let (server, mut session) = server_with_events(&[]);
    session.run(
        "BEGIN; SELECT leaf_tag_create('new');
         CREATE TABLE new (id bigint DEFAULT leaf_ordered_next('new')); INSERT INTO new DEFAULT VALUES",
    );
    let id: i64 = session.value("SELECT id FROM new");
    assert!(session.value::<i64>("SELECT leaf_ordered_watermark('new')") < id);
    session.run("COMMIT");
    let mut other = server.session();
    assert!(other.value::<i64>("SELECT leaf_ordered_watermark('new')") > id);
}
