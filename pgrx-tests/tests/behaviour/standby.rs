//! Would catch: a hot standby that issues ids, lets a session wait for ids that cannot come,
//! or spends worker slots on it; and one that must be restarted after its promotion.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use leaf_id_tests::{
    Fleet, LINK, Server, Session, assert_issued_once, in_threads_until, timed, wait_until,
};

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

/// A primary that leases its worker id, and its standby that does so in a name of its own.
fn leasing_pair() -> (Fleet, Server) {
    let fleet = Fleet::new(
        1,
        &[
            ("leaf_id.timestamp_reservation", "300ms"),
            ("leaf_id.worker_lease", "6s"),
        ],
    );
    fleet.centre.lease_worker_ids();
    let primary = &fleet.members[0];
    for (name, value) in [
        ("node_name", "primary"),
        ("worker_registry", &*format!("postgres/{LINK}")),
        ("worker_id", "auto"),
    ] {
        primary.configure(&format!("leaf_id.{name}"), value);
    }
    primary.session().next_snowflake();
    let standby = primary.standby(&[("leaf_id.node_name", "standby")]);
    standby.replay_all_of(primary);
    (fleet, standby)
}

#[test]
fn a_hot_standby_issues_snowflakes_with_a_registry() {
    let (fleet, standby) = leasing_pair();
    let mut on_primary = fleet.members[0].session();
    let mut session = standby.session();
    let mut ids = [Vec::new(), Vec::new()];
    for _ in 0..10 {
        ids[0].push(on_primary.next_snowflake());
        ids[1].push(session.next_snowflake());
    }
    let workers = ids.each_ref().map(|ids| ids[0] >> 12 & 1023);
    assert_ne!(workers[0], workers[1]);
    session.run("BEGIN TRANSACTION READ ONLY");
    ids[1].extend(session.ids("SELECT leaf_snowflake_next_batch(10)"));
    session.run("COMMIT");
    // Segments need a table, which is read-only there.
    session.fails("SELECT leaf_segment_next('t')").is("25006");
    // Restarted it is the same server, at once; and it needs the registry's answer each time.
    standby.restart();
    let mut session = standby.session();
    ids[1].push(session.next_snowflake());
    let shown: bool = session.value(
        "SELECT state = 'open' AND worker_id_source = 'registry' FROM leaf_snowflake_status",
    );
    assert!(shown);
    for ids in ids {
        assert!(ids.iter().all(|id| id >> 12 & 1023 == ids[0] >> 12 & 1023));
        assert_issued_once([ids]);
    }
}

#[test]
fn a_hot_standbys_snowflakes_go_on_over_its_promotion() {
    let (fleet, standby) = leasing_pair();
    fleet.members[0].session().create_steady_tag("t", 20);
    standby.replay_all_of(&fleet.members[0]);
    let first = standby.session().next_snowflake();
    let (drawn, ()) = in_threads_until(
        3,
        |_, done| {
            let mut session = standby.session();
            let mut ids = Vec::new();
            while !done.load(Ordering::Relaxed) {
                // No call fails.
                ids.extend(session.ids("SELECT leaf_snowflake_next_batch(10)"));
            }
            ids
        },
        || {
            fleet.members[0].kill_9();
            standby.promote();
            let mut session = standby.session();
            assert_issued_once([session.take("t", 30)]);
            // For longer than a lease.
            thread::sleep(Duration::from_secs(8));
        },
    );
    for ids in &drawn {
        assert!(ids.iter().all(|id| id >> 12 & 1023 == first >> 12 & 1023));
        assert!(ids.len() > 100);
    }
    assert_issued_once(drawn);
}

/// The registry is in a database of this server, which is read-only as long as it is a
/// standby.
#[test]
fn a_registry_on_the_standby_itself_gives_nothing_before_its_promotion() {
    let primary = Server::with_leaf_id(&[
        ("leaf_id.worker_id", "auto"),
        ("leaf_id.worker_registry", "postgres"),
        ("leaf_id.worker_lease", "2s"),
        ("leaf_id.timestamp_reservation", "300ms"),
    ]);
    let first = primary.session().next_snowflake();
    let standby = primary.standby(&[("leaf_id.node_name", "standby")]);
    let mut session = standby.session();
    session.run("SET leaf_id.refill_timeout = '1s'");
    let failure = session.fails("SELECT leaf_snowflake_next()");
    println!("{failure}");
    failure.is("55P03").details("on this standby");
    standby.replay_all_of(&primary);
    primary.kill_9();
    standby.promote();
    // It has to wait out what it may have forgotten: one lease.
    let id = session.next_snowflake();
    assert_ne!(id >> 12, first >> 12);
}
