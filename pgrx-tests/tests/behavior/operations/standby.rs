//! Would catch: a hot standby that issues its primary's ids, lets a session wait for ids that
//! cannot arrive, or uses worker slots for them; one with a worker id of its own that does not use
//! it; and one that must be restarted after its promotion.

use std::time::Duration;

use leaf_id_tests::{
    Asking, Registry, Server, Session, assert_apart, assert_in_order, assert_issued_once,
    in_threads_until, lease_conf, promptly, wait_until, worker_of,
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
    session.be_patient();
    for sql in ISSUING {
        let failure = promptly(|| session.fails(sql));
        failure.is("25006").says("recovery");
    }
    for sql in [
        "SELECT leaf_id.leaf_snowflake_reset(now())",
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
        session.column::<String>("SELECT tag FROM leaf_id.tags_detail"),
        ["t"]
    );
    assert_eq!(
        session.value::<String>("SELECT snowflake_state FROM leaf_id.server"),
        "standby"
    );
    session.run("SELECT * FROM leaf_snowflake_decode(leaf_snowflake_min(now()))");
    // The requests have not started a worker.
    assert_eq!(workers(&mut session), ["leaf_id launcher"]);

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

/// A cascading standby; the one in between is promoted.
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

/// Settings of a standby that is a node of its own.
const STANDBY_NODE: (&str, &str) = ("leaf_id.node_name", "standby");

#[test]
fn a_hot_standby_issues_snowflakes_with_a_registry() {
    let registry = Registry::start();
    let primary = registry.member("primary");
    primary.session().create_steady_tag("t", 20);
    let mut snowflakes = vec![vec![primary.session().next_snowflake()]];
    let standby = primary.standby(&[STANDBY_NODE]);
    standby.replay_all_of(&primary);
    let mut session = standby.session();
    let first = session.next_snowflake();
    assert_ne!(worker_of(first), worker_of(snowflakes[0][0]));
    assert_eq!(
        registry.holder(worker_of(first)).unwrap().node.as_deref(),
        Some("standby")
    );
    assert_eq!(
        session.snowflake_status::<String>("snowflake_state"),
        "open"
    );
    assert_eq!(
        session.snowflake_status::<String>("worker_id_source"),
        "registry"
    );
    session.run("BEGIN TRANSACTION READ ONLY");
    let mut ids = vec![first];
    ids.extend(session.ids("SELECT leaf_snowflake_next_batch(5000)"));
    ids.extend(session.ids("SELECT leaf_snowflake_next() FROM generate_series(1, 5000)"));
    session.run("COMMIT");
    // Segments belong to the primary, and so does this.
    for sql in &ISSUING[..4] {
        session.fails(sql).is("25006").says("recovery");
    }
    session
        .fails("SELECT leaf_id.leaf_snowflake_reset(now())")
        .is("25006");
    assert_eq!(workers(&mut session), ["leaf_id launcher"]);

    // Permanently, also after restarts.
    for restart in [|_: &Server| (), Server::restart, Server::crash] {
        restart(&standby);
        for _ in 0..2 {
            registry.wait_for_renewal(worker_of(first));
        }
        let id = standby.session().next_snowflake();
        assert_eq!(worker_of(id), worker_of(first));
        ids.push(id);
    }
    snowflakes.push(ids);
    snowflakes[0].push(primary.session().next_snowflake());
    assert_issued_once(snowflakes);
}

#[test]
fn a_hot_standby_that_issues_snowflakes_goes_on_over_its_promotion() {
    let registry = Registry::start();
    let primary = registry.member("primary");
    let mut ids = {
        let mut session = primary.session();
        session.create_steady_tag("t", 20);
        session.take("t", 100)
    };
    let standby = primary.standby(&[STANDBY_NODE]);
    standby.replay_all_of(&primary);
    let mut session = standby.session();
    let worker_id = worker_of(session.next_snowflake());
    let asking = [Asking::default(), Asking::default()];
    let [on_primary, on_standby] = &asking;
    in_threads_until(
        4,
        |i, done| asking[i % 2].ask([&primary, &standby][i % 2], done),
        || {
            on_primary.wait_for_ids();
            on_standby.wait_for_ids();
            primary.kill_9();
            standby.promote();
            ids.extend(session.take("t", 100));
            for _ in 0..2 {
                registry.wait_for_renewal(worker_id);
            }
            on_standby.wait_for_ids();
        },
    );
    on_standby.is_never_refused();
    assert!(
        on_standby
            .ids()
            .iter()
            .all(|id| worker_of(*id) == worker_id)
    );
    let calls = on_standby.calls();
    let longest = calls.iter().map(|call| call.end - call.start).max();
    println!("the longest call took {:?}", longest.unwrap());
    assert_in_order(calls);
    assert_apart(&asking);
    assert_issued_once([ids]);
    assert!(registry.holder(2).is_none());
    let last = on_standby.ids().into_iter().max().unwrap();
    for restart in [Server::restart, Server::crash] {
        restart(&standby);
        let id = standby.session().next_snowflake();
        assert_eq!(worker_of(id), worker_id);
        assert!(id > last);
    }
}

/// It is the same database cluster, and the registry takes it for a copy.
#[test]
fn a_standby_that_is_named_as_its_primary_is_another_server() {
    let registry = Registry::start();
    let primary = registry.member("primary");
    let on_primary = worker_of(primary.session().next_snowflake());
    let standby = primary.standby(&[]);
    let mut session = standby.session();
    let first = session.next_snowflake();
    let on_standby = worker_of(first);
    assert_ne!(on_standby, on_primary);
    for worker_id in [on_primary, on_standby].repeat(2) {
        registry.wait_for_renewal(worker_id);
        assert_eq!(worker_of(primary.session().next_snowflake()), on_primary);
    }
    primary.kill_9();
    standby.promote();
    let id = session.next_snowflake();
    assert_eq!(worker_of(id), on_standby);
    assert!(id > first);
}

#[test]
fn a_registry_on_the_standby_itself_waits_for_the_promotion() {
    let primary = Server::with_leaf_id(&[]);
    for (name, value) in lease_conf("postgres", "primary") {
        primary.configure(name, &value);
    }
    let last = primary.session().next_snowflake();
    let standby = primary.standby(&[STANDBY_NODE]);
    let mut session = standby.session();
    session.run("SET leaf_id.refill_timeout = '500ms'");
    session
        .fails("SELECT leaf_snowflake_next()")
        .is("25006")
        .details("a registry on this server itself");
    primary.kill_9();
    standby.promote();
    let id = session.next_snowflake();
    assert_eq!(worker_of(id), worker_of(last));
    assert!(id > last);
}
