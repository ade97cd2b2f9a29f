//! Would catch: an ordered id or a watermark where the order does not hold: beside a table, in an old snapshot,
//! in a parallel worker, on a standby, of a sourced tag; one for a role without the tag; and a lock table
//! without room that leaves an id without its lock.

use leaf_id_tests::{Fleet, PROMPTLY, wait_until};

use super::{WATERMARK, server_with_events};

#[test]
fn a_watermark_needs_a_statement_of_its_own() {
    let (_server, mut session) = server_with_events(&[]);
    session.run("CREATE VIEW some_events AS SELECT id FROM events OFFSET 0");
    for sql in [
        "SELECT * FROM events WHERE id < leaf_ordered_watermark('events')",
        "SELECT * FROM events WHERE id < (SELECT leaf_ordered_watermark('events'))",
        "WITH w AS MATERIALIZED (SELECT leaf_ordered_watermark('events') AS w) SELECT * FROM events, w WHERE id < w",
        "SELECT * FROM events, leaf_ordered_watermark('events') w WHERE id < w",
        "SELECT * FROM events, (SELECT leaf_ordered_watermark('events') AS w OFFSET 0) w WHERE id < w",
        "DELETE FROM events WHERE id < leaf_ordered_watermark('events')",
        "WITH w AS (SELECT leaf_ordered_watermark('events') AS w) SELECT e.* FROM w, LATERAL (SELECT FROM events WHERE id < w LIMIT 9) e",
        "WITH w AS (SELECT leaf_ordered_watermark('events') AS w) SELECT FROM some_events, w WHERE id < w",
        "WITH w AS (SELECT leaf_ordered_watermark('events') AS w), gone AS (DELETE FROM events USING w WHERE id < w RETURNING id)
             SELECT FROM gone",
        "WITH read AS MATERIALIZED (SELECT id FROM events) SELECT FROM read WHERE id < leaf_ordered_watermark('events')",
        "SELECT leaf_ordered_watermark('events') FROM some_events",
        "SELECT leaf_ordered_watermark('events'), (SELECT count(*) FROM events)",
        "SELECT (SELECT count(*) FROM events), leaf_ordered_watermark('events')",
        "SELECT (SELECT count(*) FROM events) WHERE leaf_ordered_watermark('events') > 0",
        "SELECT leaf_ordered_watermark('events') UNION ALL SELECT id FROM events",
        "DO $$ BEGIN PERFORM FROM events WHERE id < leaf_ordered_watermark('events'); END $$",
    ] {
        session.fails(sql).is("0A000").says("statement of its own");
    }
    for sql in [
        "SELECT (SELECT leaf_ordered_watermark('events'))",
        "WITH w AS MATERIALIZED (SELECT leaf_ordered_watermark('events') AS w) SELECT w, (SELECT max(n) FROM generate_series(1, 9) n) FROM w",
        "DO $$ DECLARE w bigint := leaf_ordered_watermark('events'); BEGIN PERFORM FROM events WHERE id < w; END $$",
        "PREPARE w AS SELECT leaf_ordered_watermark($1); EXECUTE w('events'); EXECUTE w('events')",
        "SELECT leaf_ordered_watermark(tag) FROM unnest('{events}'::text[]) tag",
        "BEGIN READ ONLY; SELECT leaf_ordered_watermark('events'); COMMIT",
    ] {
        session.run(sql);
    }
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        session.run(&format!("BEGIN ISOLATION LEVEL {level}"));
        session.run("INSERT INTO events DEFAULT VALUES");
        session.fails(WATERMARK).is("0A000").says("READ COMMITTED");
        session.run("ROLLBACK");
    }
}

#[test]
fn where_the_order_does_not_hold() {
    let (server, mut session) = server_with_events(&[]);
    session.run(
        "SELECT leaf_id.leaf_opaque_create('opaque');
         CREATE ROLE writer LOGIN; GRANT ALL ON events TO writer",
    );
    for call in ["next", "watermark"] {
        let call = |tag: &str| format!("SELECT leaf_ordered_{call}({tag})");
        session.fails(&call("'opaque'")).is("42809");
        session.fails(&call("'missing'")).is("42704");
        session.fails(&call("repeat('x', 129)")).is("22023");
        assert_eq!(session.column::<Option<i64>>(&call("NULL")), [None]);
        let mut writer = server.connect_as("writer", "postgres");
        writer.fails(&call("'events'")).is("42501");
    }
    let standby = server.standby(&[]);
    wait_until(PROMPTLY, "the tag", || {
        standby
            .session()
            .value("SELECT EXISTS (SELECT FROM leaf_id.leaf_alloc)")
    });
    for sql in ["SELECT leaf_ordered_next('events')", WATERMARK] {
        standby.session().fails(sql).is("25006");
    }
}

#[test]
fn a_parallel_worker() {
    let (_server, mut session) = server_with_events(&[]);
    session.run(
        "CREATE TABLE many AS SELECT n FROM generate_series(1, 100000) n; ANALYZE many;
         CREATE FUNCTION mislabeled() RETURNS bigint PARALLEL SAFE LANGUAGE plpgsql
             AS 'BEGIN RETURN leaf_ordered_next(''events''); END';
         SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
         SET parallel_leader_participation = off",
    );
    session
        .fails("SELECT count(*) FROM many WHERE mislabeled() < n")
        .is("0A000")
        .says("parallel worker");
    // As it is declared, the leader calls it.
    let counted: i64 =
        session.value("SELECT count(leaf_ordered_next('events')) FROM many WHERE n <= 100");
    assert_eq!(counted, 100);
}

#[test]
fn a_sourced_tag() {
    let fleet = Fleet::new(1, &[]);
    fleet.create_tag("t", 100, 1000);
    let mut session = fleet.members[0].session();
    for call in ["next", "watermark"] {
        session
            .fails(&format!("SELECT leaf_ordered_{call}('t')"))
            .is("0A000")
            .says("on each server only");
    }
}

#[test]
fn a_full_lock_table() {
    let (server, mut session) = server_with_events(&[
        ("max_locks_per_transaction", "10"),
        ("max_connections", "10"),
        ("max_prepared_transactions", "0"),
    ]);
    let (mut writer, mut full) = (server.session(), server.session());
    writer.run("SELECT leaf_segment_next('events'); BEGIN");
    full.fails("SELECT pg_advisory_lock(n) FROM generate_series(1, 10000) n")
        .is("53200");
    // Caught, and called again: the id has its lock.
    writer.run(
        "DO $$ BEGIN
             PERFORM leaf_ordered_next('events');
             RAISE 'it should fail';
         EXCEPTION WHEN out_of_memory THEN
         END $$",
    );
    full.run("SELECT pg_advisory_unlock_all()");
    let id: i64 = writer.value("SELECT leaf_ordered_next('events')");
    let held: i64 = session.value(WATERMARK);
    assert!(held < id, "{held} has passed {id}");
}
