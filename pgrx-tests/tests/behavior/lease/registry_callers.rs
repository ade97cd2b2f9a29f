//! Would catch: registry functions that depend on a schema's name, and an answer that its caller
//! can still roll back. (Arguments and rights are tested in sql/registry.sql.)

use leaf_id_tests::Server;

use super::asking::{Node, TERMS, server_and_session, try_call};

#[test]
fn the_functions_work_in_a_schema_of_any_name() {
    let server = Server::start(&[]);
    server.session().run(
        "CREATE SCHEMA \"the ids\"; CREATE EXTENSION leaf_id SCHEMA \"the ids\";
         CREATE ROLE member LOGIN; CREATE ROLE monitor LOGIN IN ROLE pg_monitor;
         GRANT USAGE ON SCHEMA \"the ids\" TO member, monitor;
         GRANT EXECUTE ON FUNCTION \"the ids\".leaf_worker_claim, \"the ids\".leaf_worker_renew TO member;
         REVOKE ALL ON SCHEMA public FROM PUBLIC",
    );
    let mut member = server.connect_as("member", "postgres");
    let mut a = Node::new("a", TERMS);
    let claim = format!("{}, NULL, NULL, {}", a.who(), a.what());
    a.learn(&try_call(&mut member, "\"the ids\".leaf_worker_claim", &claim).unwrap());
    assert_eq!(a.worker_id, Some(0));
    let renewal = format!("0, {}, {}", a.who(), a.what());
    let answer = try_call(&mut member, "\"the ids\".leaf_worker_renew", &renewal);
    answer.unwrap().is("granted");
    let mut monitor = server.connect_as("monitor", "postgres");
    let live = "SELECT node_name FROM \"the ids\".leaf_worker_status WHERE live";
    assert_eq!(monitor.column::<String>(live), ["a"]);
}

/// What a procedure has learned and takes back it tells nobody.
#[test]
fn a_procedure_that_takes_its_claim_back_tells_nobody() {
    let (server, mut admin) = server_and_session();
    let mut a = Node::new("a", TERMS);
    admin.run(&format!(
        "CREATE PROCEDURE claims(INOUT told bigint) LANGUAGE plpgsql AS
             'BEGIN told := (leaf_worker_claim({}, NULL, NULL, {})).reserved_until_ms; ROLLBACK; END'",
        a.who().replace('\'', "''"),
        a.what().replace('\'', "''")
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
