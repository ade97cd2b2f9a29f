//! Would catch: a hot standby that issues ids, lets a session wait for ids that cannot come,
//! or spends worker slots on it; and one that must be restarted after its promotion.

use std::time::Duration;

use leaf_id_tests::{Server, Session, assert_issued_once, timed, wait_until};

const LIMIT: Duration = Duration::from_secs(30);

const ISSUING: [&str; 6] = [
    "SELECT leaf_segment_next('t')",
    "SELECT leaf_segment_next('no such tag')",
    "SELECT leaf_segment_next_batch('t', 3)",
    "SELECT leaf_segment_next_range('t', 3)",
    "SELECT leaf_snowflake_next()",
    "SELECT leaf_snowflake_next_batch(3)",
];

fn workers(session: &mut Session) -> Vec<String> {
    session.column(
        "SELECT backend_type FROM pg_stat_activity WHERE backend_type LIKE 'leaf_id%' ORDER BY 1",
    )
}

#[test]
fn a_hot_standby_refuses_at_once_and_its_sessions_are_served_after_the_promotion() {
    let primary = Server::with_leaf_id(&[
        ("leaf_id.worker_id", "1"),
        ("leaf_id.timestamp_reservation", "500ms"),
    ]);
    let mut on_primary = primary.session();
    on_primary.create_steady_tag("t", 20);
    on_primary.run("CREATE TABLE orders (id bigint DEFAULT leaf_segment_next('t'))");
    let mut ids = on_primary.take("t", 100);
    let mut snowflakes = on_primary.ids("SELECT leaf_snowflake_next_batch(100)");
    let standby = primary.standby(&[]);
    standby.replay_all_of(&primary);

    let (mut session, mut other) = (standby.session(), standby.session());
    for sql in ISSUING {
        let (failure, took) = timed(|| session.fails(sql));
        failure.is("25006").says("recovery");
        assert!(took < Duration::from_millis(500), "{sql} took {took:?}");
    }
    for sql in [
        "SELECT leaf_snowflake_reset(now())",
        "SELECT leaf_tag_create('u')",
        "SELECT leaf_tag_drop('t')",
        "INSERT INTO orders DEFAULT VALUES",
    ] {
        session.fails(sql).is("25006");
    }
    other.run("BEGIN TRANSACTION READ ONLY");
    other.fails("SELECT leaf_segment_next('t')").is("25006");
    other.run("ROLLBACK");
    assert_eq!(
        session.column::<String>("SELECT tag FROM leaf_segment_status"),
        ["t"]
    );
    assert_eq!(
        session.value::<String>("SELECT state FROM leaf_snowflake_status"),
        "standby"
    );
    session.run("SELECT * FROM leaf_snowflake_decode(leaf_snowflake_min(now()))");
    // Asking has started nobody else.
    assert_eq!(workers(&mut session), ["leaf_id launcher"]);
    assert_eq!(
        workers(&mut on_primary),
        ["leaf_id allocator", "leaf_id launcher"]
    );

    primary.kill_9();
    standby.promote();
    for session in [&mut session, &mut other] {
        ids.extend(session.take("t", 50));
        snowflakes.extend(session.ids("SELECT leaf_snowflake_next_batch(10)"));
        session.run("INSERT INTO orders DEFAULT VALUES");
    }
    assert_issued_once([ids]);
    assert_issued_once([snowflakes]);
    wait_until(LIMIT, "the workers", || {
        workers(&mut session) == ["leaf_id allocator", "leaf_id launcher"]
    });
}

/// A standby of a standby, promoted in the middle of it.
#[test]
fn a_cascaded_standby_follows_the_promotion_and_is_promoted_itself() {
    let primary = Server::with_leaf_id(&[]);
    let mut ids = {
        let mut session = primary.session();
        session.create_steady_tag("t", 20);
        session.take("t", 100)
    };
    let middle = primary.standby(&[]);
    middle.replay_all_of(&primary);
    let last = middle.standby(&[("wal_retrieve_retry_interval", "100ms")]);
    last.session()
        .fails("SELECT leaf_segment_next('t')")
        .is("25006");
    primary.kill_9();
    middle.promote();
    ids.extend(middle.session().take("t", 100));
    last.replay_all_of(&middle);
    last.session()
        .fails("SELECT leaf_segment_next('t')")
        .is("25006");
    middle.kill_9();
    last.promote();
    ids.extend(last.session().take("t", 100));
    assert_issued_once([ids]);
}
