//! Would catch: registry functions that depend on a schema's name. (Arguments and rights are tested
//! in sql/registry.sql.)

use leaf_id_tests::Server;

use super::asking::{Node, TERMS};

#[test]
fn the_functions_work_in_a_schema_of_any_name() {
    let server = Server::start(&[]);
    server.session().run(
        "CREATE SCHEMA \"the ids\"; CREATE EXTENSION leaf_id SCHEMA \"the ids\";
         CREATE ROLE member LOGIN; CREATE ROLE monitor LOGIN IN ROLE pg_monitor;
         GRANT USAGE ON SCHEMA \"the ids\" TO member, monitor;
         GRANT EXECUTE ON FUNCTION leaf_id.leaf_worker_lease TO member;
         REVOKE ALL ON SCHEMA public FROM PUBLIC",
    );
    let mut member = server.connect_as("member", "postgres");
    let mut a = Node::new("a", TERMS);
    member.run("SET search_path = \"the ids\"");
    assert_eq!(a.ask(&mut member).id(), 0);
    assert_eq!(a.ask(&mut member).id(), 0);
    let mut monitor = server.connect_as("monitor", "postgres");
    let live = "SELECT name FROM leaf_id.fleet WHERE state = 'leased'";
    assert_eq!(monitor.column::<String>(live), ["a"]);
}
