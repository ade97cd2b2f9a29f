//! Would catch: registry functions that depend on a schema's name, and an answer that its caller
//! can still roll back. (Arguments and rights are tested in sql/registry.sql.)

use leaf_id_tests::{Server, lease_message};

use super::asking::{Node, TERMS, server_and_session};

#[test]
fn the_functions_work_in_a_schema_of_any_name() {
    let server = Server::start(&[]);
    server.session().run(
        "CREATE SCHEMA \"the ids\"; CREATE EXTENSION leaf_id SCHEMA \"the ids\";
         CREATE ROLE member LOGIN; CREATE ROLE monitor LOGIN IN ROLE pg_monitor;
         GRANT USAGE ON SCHEMA \"the ids\" TO member, monitor;
         GRANT EXECUTE ON FUNCTION \"the ids\".leaf_worker_lease TO member;
         REVOKE ALL ON SCHEMA public FROM PUBLIC",
    );
    let mut member = server.connect_as("member", "postgres");
    let mut a = Node::new("a", TERMS);
    member.run("SET search_path = \"the ids\"");
    assert_eq!(a.claim(&mut member).id(), 0);
    assert_eq!(a.renew(&mut member).id(), 0);
    let mut monitor = server.connect_as("monitor", "postgres");
    let live = "SELECT name FROM leaf_id.fleet WHERE state = 'leased'";
    assert_eq!(monitor.column::<String>(live), ["a"]);
}

/// A claim that a procedure rolls back is not disclosed.
#[test]
fn a_procedure_that_takes_its_claim_back_tells_nobody() {
    let (server, mut admin) = server_and_session();
    let mut a = Node::new("a", TERMS);
    admin.run(&format!(
        "CREATE PROCEDURE claims(INOUT told bigint) LANGUAGE plpgsql AS
             'BEGIN told := leaf_worker_lease({}) #>> ''{{outcome,Ok,reserved_until_ms}}''; ROLLBACK; END'",
        lease_message("claim", &a.fields()).replace('\'', "''"),
    ));
    let mut session = server.session();
    let told = session.try_column::<i64>("CALL claims(0)");
    println!("{told:?}");
    assert!(told.is_err(), "it was told {told:?}");
    assert!(session.try_run("SELECT 1").is_err());
    assert_eq!(
        admin.value::<i64>("SELECT count(*) FROM leaf_id.leaf_worker"),
        0
    );
    assert_eq!(a.claim(&mut admin).id(), 0);
}
