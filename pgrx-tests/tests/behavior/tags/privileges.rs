//! Would catch: a way through claims to the rights of the table's owner. (Ordinary roles are tested
//! in sql/tag_rights.sql.)

use leaf_id_tests::{Server, assert_issued_once};

/// Triggers of others do not fire in a claim: they can neither prevent it from being written, nor
/// run with other rights.
#[test]
fn a_trigger_takes_no_part_in_a_claim() {
    let server = Server::with_leaf_id(&[]);
    let mut admin = server.session();
    admin.run("CREATE ROLE alice LOGIN; SELECT leaf_tag_create('t', step => 10), leaf_tag_grant('t', 'alice')");
    let mut alice = server.connect_as("alice", "postgres");
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
