//! Would catch: an id from a rolled back transaction issued again after a crash (I2), and a
//! migration that creates tag, table and rows in one transaction but shares its ids with others.
//! Single-session behavior is tested in sql/segment_rollback.sql.

use leaf_id_tests::{Server, assert_issued_once};

#[test]
fn first_use_in_a_rolled_back_transaction_is_not_repeated() {
    let server = Server::with_leaf_id(&[]);
    let (mut a, mut b) = (server.session(), server.session());
    a.run("SELECT leaf_tag_create('t', step => 10)");
    a.run("BEGIN");
    let rolled_back = a.take("t", 25);
    a.run("ROLLBACK");
    let mut ids = vec![rolled_back, a.take("t", 25), b.take("t", 25)];
    assert_eq!(ids[1][0], 26);
    server.restart();
    ids.push(server.session().take("t", 25));
    server.crash();
    ids.push(server.session().take("t", 25));
    assert_issued_once(&[ids.concat()]);
}

#[test]
fn a_migration_in_one_transaction_commits() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "BEGIN; SELECT leaf_tag_create('orders', step => 100);
         CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT leaf_segment_next('orders'), note text);
         INSERT INTO orders (note) SELECT 'row ' || i FROM generate_series(1, 10000) i",
    );
    // Other sessions do not see the tag yet.
    server
        .session()
        .fails("SELECT leaf_segment_next('orders')")
        .is("42704");
    session.run("COMMIT");
    let ids = session.ids("SELECT id FROM orders ORDER BY id");
    assert_eq!(ids.len(), 10_000);
    assert_issued_once([&ids]);
    let ids = [
        ids,
        server.session().take("orders", 500),
        session.take("orders", 500),
    ];
    assert_issued_once(&[ids.concat()]);
    server.crash();
    let after = server.session().next("orders");
    assert!(after > ids.concat()[10_999]);
}
