//! Would catch: an ordinary role that reads or changes tags, one that cannot issue ids, and
//! a way through the claims to the rights of the table's owner.

use leaf_id_tests::{Server, Session, assert_issued_once};

/// A server with the tag t, and sessions of the superuser and of the ordinary role alice.
fn server_and_alice() -> (Server, Session, Session) {
    let server = Server::with_leaf_id(&[("leaf_id.worker_id", "1")]);
    let mut admin = server.session();
    admin.run("SELECT leaf_tag_create('t', step => 10); CREATE ROLE alice LOGIN");
    let alice = server.connect_as("alice", "postgres");
    (server, admin, alice)
}

const EDITS: [&str; 5] = [
    "SELECT * FROM leaf_id.leaf_alloc",
    "INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('mine')",
    "UPDATE leaf_id.leaf_alloc SET step = 20",
    "DELETE FROM leaf_id.leaf_alloc",
    "TRUNCATE leaf_id.leaf_alloc",
];
const MANAGEMENT: [&str; 3] = [
    "SELECT leaf_tag_create('mine')",
    "SELECT leaf_tag_reset('mine', 1)",
    "SELECT leaf_tag_drop('mine')",
];

#[test]
fn everybody_issues_and_nobody_else_manages() {
    let (_server, mut admin, mut alice) = server_and_alice();
    assert_eq!(alice.next("t"), 1);
    assert_eq!(
        alice.ids("SELECT leaf_segment_next_batch('t', 15)").len(),
        15
    );
    assert_eq!(
        // Where it lies depends on which segments were there.
        alice.ids("SELECT last_id - first_id FROM leaf_segment_next_range('t', 5)"),
        [4]
    );
    let id: i64 = alice.value("SELECT leaf_snowflake_next()");
    alice.run(&format!(
        "SELECT leaf_snowflake_decode({id}), leaf_snowflake_min(now())"
    ));
    for statement in EDITS.iter().chain(&MANAGEMENT) {
        println!("{statement}");
        alice.fails(statement).is("42501");
    }
    admin.run("REVOKE EXECUTE ON FUNCTION leaf_segment_next(text) FROM PUBLIC");
    alice.try_next("t").unwrap_err().is("42501");
}

#[test]
fn management_takes_both_the_functions_and_the_table() {
    let (_server, mut admin, mut alice) = server_and_alice();
    let functions = "FUNCTION leaf_tag_create, leaf_tag_drop, leaf_tag_reset TO alice";
    admin.run(&format!("GRANT EXECUTE ON {functions}"));
    for statement in MANAGEMENT {
        alice.fails(statement).is("42501");
    }
    admin.run(
        "GRANT USAGE ON SCHEMA leaf_id TO alice;
         GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO alice",
    );
    alice.run("SELECT leaf_tag_create('mine', step => 10)");
    assert_eq!(alice.take("mine", 25).len(), 25);
    // It is a DELETE and an INSERT, and asks for no more.
    admin.wait_for_spare("mine");
    alice.run("SELECT leaf_tag_reset('mine', 700)");
    assert_eq!(alice.next("mine"), 700);
    // A claim that the edit overtakes is a gap.
    admin.wait_for_spare("mine");
    alice.run("UPDATE leaf_id.leaf_alloc SET max_id = 5000 WHERE biz_tag = 'mine'");
    assert_eq!(alice.next("mine"), 5000);
    alice.run("SELECT leaf_tag_drop('mine')");
    alice.try_next("mine").unwrap_err().is("42704");
    alice.fails("TRUNCATE leaf_id.leaf_alloc").is("42501");
}

#[test]
fn insert_alone_is_enough_for_a_migration() {
    let (_server, mut admin, mut alice) = server_and_alice();
    admin.run(
        "GRANT USAGE ON SCHEMA leaf_id TO alice;
         GRANT INSERT (biz_tag, step) ON leaf_id.leaf_alloc TO alice",
    );
    alice.run("BEGIN; INSERT INTO leaf_id.leaf_alloc (biz_tag, step) VALUES ('mine', 10)");
    let mut ids = alice.take("mine", 500);
    alice.run("COMMIT");
    ids.extend(admin.take("mine", 500));
    ids.extend(alice.take("mine", 500));
    assert_issued_once(&[ids]);
}

/// A claim runs with the rights of the table's owner: nothing of the caller's may run in it.
#[test]
fn a_claim_runs_nothing_of_the_callers() {
    let (_server, mut admin, mut alice) = server_and_alice();
    admin.run(
        "GRANT USAGE ON SCHEMA leaf_id TO alice;
         GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO alice;
         CREATE SCHEMA evil AUTHORIZATION alice",
    );
    alice.run(
        "CREATE FUNCTION evil.trap() RETURNS trigger LANGUAGE plpgsql
             AS 'BEGIN RAISE EXCEPTION ''run as %'', current_user; END';
         CREATE FUNCTION evil.plus(bigint, integer) RETURNS bigint LANGUAGE plpgsql
             AS 'BEGIN RAISE EXCEPTION ''run as %'', current_user; END';
         CREATE OPERATOR evil.+ (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = evil.plus);
         CREATE FUNCTION evil.now() RETURNS timestamptz LANGUAGE plpgsql
             AS 'BEGIN RAISE EXCEPTION ''run as %'', current_user; END';
         CREATE TEMP TABLE leaf_alloc (biz_tag text, max_id bigint, step int)",
    );
    for event in ["INSERT", "UPDATE"] {
        alice
            .fails(&format!(
                "CREATE TRIGGER trap AFTER {event} ON leaf_id.leaf_alloc
                 FOR EACH ROW EXECUTE FUNCTION evil.trap()"
            ))
            .is("42501");
    }
    alice.run(
        "SET search_path = evil, pg_temp, pg_catalog, public;
         BEGIN; INSERT INTO leaf_id.leaf_alloc (biz_tag, step) VALUES ('mine', 10)",
    );
    let mut ids = alice.take("mine", 100);
    alice.run("COMMIT");
    ids.extend(alice.take("mine", 100));
    assert_issued_once(&[ids]);
    assert_issued_once(&[alice.take("t", 100)]);
}

#[test]
fn the_views_are_for_monitors() {
    let (server, mut admin, mut alice) = server_and_alice();
    admin.run("CREATE ROLE monitor LOGIN; GRANT pg_monitor TO monitor");
    let mut monitor = server.connect_as("monitor", "postgres");
    alice.next("t");
    for view in ["leaf_segment_status", "leaf_snowflake_status"] {
        alice.fails(&format!("SELECT * FROM {view}")).is("42501");
        assert_eq!(
            monitor.value::<i64>(&format!("SELECT count(*) FROM {view}")),
            1
        );
    }
    alice
        .fails("SELECT * FROM leaf_segment_slots()")
        .is("42501");
    alice
        .fails("SELECT * FROM leaf_snowflake_state()")
        .is("42501");
    monitor
        .fails("SELECT * FROM leaf_id.leaf_alloc")
        .is("42501");
    assert_eq!(
        monitor.ids("SELECT current_next FROM leaf_segment_status"),
        [2]
    );
}

/// A trigger of somebody's takes no part in a claim: neither may it keep it from being
/// written, nor run as anybody else.
#[test]
fn a_trigger_takes_no_part_in_a_claim() {
    let (_server, mut admin, mut alice) = server_and_alice();
    let mut ids = alice.ids("SELECT leaf_segment_next('t')");
    admin.run(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER keep BEFORE UPDATE ON leaf_id.leaf_alloc FOR EACH ROW EXECUTE FUNCTION keep()",
    );
    ids.extend(alice.take("t", 200));
    admin.run("DROP TRIGGER keep ON leaf_id.leaf_alloc");
    ids.extend(alice.take("t", 30));
    assert_issued_once(&[ids]);
}

/// It can make a server issue snowflake ids again: nobody but a superuser takes that upon
/// them, whatever was granted.
#[test]
fn a_snowflake_reset_is_the_superusers() {
    let (_server, mut admin, mut alice) = server_and_alice();
    let reset = "SELECT leaf_snowflake_reset(now())";
    alice.fails(reset).is("42501").says("permission denied");
    admin.run("GRANT EXECUTE ON FUNCTION leaf_snowflake_reset TO alice");
    alice.fails(reset).is("42501").says("must be superuser");
    // Its own worker id has issued ids ahead of the clock.
    admin.run("SELECT leaf_snowflake_reset(now() + interval '1 minute')");
}
