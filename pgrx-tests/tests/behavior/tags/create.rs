//! Would catch: concurrent migrations of which one fails, or that create a tag twice.

use leaf_id_tests::{Server, assert_issued_once, in_threads};

#[test]
fn migrations_at_once_create_one_tag() {
    let server = Server::with_leaf_id(&[]);
    let created = in_threads(8, |_| {
        let mut session = server.session();
        session.run("SELECT leaf_tag_create('race', if_not_exists => true)");
        session.take("race", 10)
    });
    assert_issued_once(created);
}
