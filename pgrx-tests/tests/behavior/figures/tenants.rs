//! Cost of one tag per tenant: a measurement without assertions, cited in docs/tenants.md.
//!
//! `make test TESTS=figures::tenants::a_slot_for_each_tenant`; `LEAF_ID_TENANTS` replaces the
//! default of 100000.

use std::time::Duration;

use leaf_id_tests::{Server, Session, tell, timed};

/// Calls per measurement.
const CALLS: u32 = 20_000;

fn tenants() -> u32 {
    std::env::var("LEAF_ID_TENANTS").map_or(100_000, |n| n.parse().expect("a number"))
}

/// A server with `slots` slots, and a tag with this step for each tenant.
fn server_with_tags(slots: u32, tenants: u32, step: u32) -> (Server, Session) {
    let server = Server::start(&[
        ("leaf_id.max_tags", &slots.to_string()),
        ("shared_buffers", "256MB"),
        ("max_wal_size", "4GB"),
    ]);
    server.allow(Duration::from_secs(3600));
    let mut session = server.session();
    session.run("CREATE EXTENSION leaf_id; SET statement_timeout = 0");
    session.be_patient();
    let ((), took) = timed(|| {
        session.run(&format!(
            "SELECT leaf_tag_create('orders/' || n, step => {step}) FROM generate_series(1, {tenants}) n"
        ));
    });
    tell(&format!(
        "{tenants} tags created in one statement: {took:.1?}"
    ));
    session.run("VACUUM ANALYZE leaf_id.leaf_alloc");
    (server, session)
}

fn size(session: &mut Session, sql: &str) -> String {
    session.value(&format!("SELECT pg_size_pretty({sql})"))
}

fn shared_memory(session: &mut Session) -> String {
    let sql = "(SELECT sum(allocated_size) FROM pg_shmem_allocations WHERE name LIKE 'leaf_id%')";
    size(session, sql)
}

/// Takes one id of each of `calls` random tenants in one statement. Returns the time per id.
fn at_random(session: &mut Session, tenants: u32, calls: u32) -> Duration {
    let sql = format!(
        "SELECT count(leaf_segment_next('orders/' || 1 + floor(random() * {tenants})::int))
         FROM generate_series(1, {calls})"
    );
    timed(|| session.run(&sql)).1 / calls
}

fn evictions(session: &mut Session) -> String {
    session.value(
        "SELECT format('%s evictions, %s ids lost', evictions, evicted_ids) FROM leaf_id.server",
    )
}

#[test]
#[ignore = "a figure, minutes long"]
fn a_slot_for_each_tenant() {
    let tenants = tenants();
    let (server, mut session) = server_with_tags(tenants + 1000, tenants, 10);
    let sizes = [
        shared_memory(&mut session),
        size(&mut session, "pg_total_relation_size('leaf_id.leaf_alloc')"),
    ];
    tell(&format!(
        "shared memory {}, leaf_alloc {}",
        sizes[0], sizes[1]
    ));
    let all = format!(
        "SELECT count(leaf_segment_next('orders/' || n)) FROM generate_series(1, {tenants}) n"
    );
    let ((), took) = timed(|| session.run(&all));
    tell(&format!("the first id of each: {:?} an id", took / tenants));
    let ((), took) = timed(|| session.run(&all));
    tell(&format!("the next id of each: {:?} an id", took / tenants));
    let took = at_random(&mut session, tenants, 1_000_000);
    tell(&format!(
        "tenants at random: {took:?} an id; {}",
        evictions(&mut session)
    ));
    for (what, sql) in [
        ("leaf_id.tags", "SELECT count(health) FROM leaf_id.tags"),
        ("leaf_id.problems", "SELECT count(*) FROM leaf_id.problems"),
        ("leaf_sync()", "SELECT count(*) FROM leaf_sync()"),
    ] {
        let ((), took) = timed(|| session.run(sql));
        tell(&format!("{what}: {took:.1?}"));
    }
    let mut other = server.session();
    other.run("SET statement_timeout = 0");
    other.be_patient();
    let ((), took) = timed(|| other.run(&all));
    tell(&format!(
        "another session, the next id of each: {:?} an id",
        took / tenants
    ));
    let memory = size(
        &mut other,
        "(SELECT sum(total_bytes) FROM pg_backend_memory_contexts)",
    );
    tell(&format!("that session's memory contexts: {memory}"));
    let ((), took) = timed(|| server.restart());
    tell(&format!("a clean restart: {took:.1?}"));
}

#[test]
#[ignore = "a figure, minutes long"]
fn fewer_slots_than_tenants() {
    let tenants = tenants();
    for (slots, step) in [(1024, 10), (tenants / 10, 10)] {
        let (_server, mut session) = server_with_tags(slots, tenants, step);
        let memory = shared_memory(&mut session);
        tell(&format!(
            "{slots} slots, step {step}: shared memory {memory}"
        ));
        at_random(&mut session, tenants, slots);
        let took = at_random(&mut session, tenants, CALLS);
        tell(&format!(
            "tenants at random: {took:?} an id; {}",
            evictions(&mut session)
        ));
        let took = at_random(&mut session, slots / 2, slots * 4);
        tell(&format!("half as many tenants as slots: {took:?} an id"));
        let took = at_random(&mut session, slots / 2, CALLS);
        tell(&format!("the same, once they are there: {took:?} an id"));
    }
}
