//! Would catch: an id that a rolled back (sub)transaction got being issued again (I2), and
//! a migration that creates tag, table and rows in one transaction failing or, worse,
//! sharing its ids with others.

use leaf_id_tests::{Server, Session, assert_issued_once};

const MIGRATION: &str = "SELECT leaf_tag_create('orders', step => 100);
    CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT leaf_segment_next('orders'), note text);
    INSERT INTO orders (note) SELECT 'row ' || i FROM generate_series(1, 10000) i";

fn orders(session: &mut Session) -> Vec<i64> {
    session.ids("SELECT id FROM orders ORDER BY id")
}

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
fn a_failed_statement_repeats_nothing() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.create_tag("t");
    session.run("CREATE TABLE seen (id bigint)");
    session.fails(
        "INSERT INTO seen SELECT 1 / (5 - leaf_segment_next('t')) FROM generate_series(1, 9)",
    );
    assert_eq!(session.next("t"), 6);
}

#[test]
fn a_migration_in_one_transaction_commits() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run("BEGIN");
    session.run(MIGRATION);
    // Nobody else knows the tag yet.
    server
        .session()
        .fails("SELECT leaf_segment_next('orders')")
        .is("42704");
    session.run("COMMIT");
    let ids = orders(&mut session);
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

#[test]
fn a_migration_in_one_transaction_rolls_back() {
    let server = Server::with_leaf_id(&[]);
    let (mut session, mut other) = (server.session(), server.session());
    session.run("BEGIN");
    session.run(MIGRATION);
    session.run("ROLLBACK");
    session
        .fails("SELECT leaf_segment_next('orders')")
        .is("42704");
    other
        .fails("SELECT leaf_segment_next('orders')")
        .is("42704");
    session.run(MIGRATION);
    assert_eq!(orders(&mut session).len(), 10_000);
    let last = *orders(&mut session).last().unwrap();
    assert!(other.next("orders") > last);
}

#[test]
fn savepoints_bring_no_id_back() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run("BEGIN; SELECT leaf_tag_create('t', step => 10)");
    let mut ids = session.take("t", 5);
    session.run("SAVEPOINT a");
    ids.extend(session.take("t", 25));
    session.run("SAVEPOINT b");
    ids.extend(session.take("t", 25));
    session.run("ROLLBACK TO b");
    ids.extend(session.take("t", 25));
    session.run("ROLLBACK TO a");
    ids.extend(session.take("t", 7));
    session.run("SAVEPOINT c");
    ids.extend(session.take("t", 25));
    session.run("RELEASE c; COMMIT AND CHAIN");
    ids.extend(session.take("t", 25));
    session.run("ROLLBACK");
    ids.extend(server.session().take("t", 25));
    ids.extend(session.take("t", 25));
    assert_issued_once(&[ids]);
}

#[test]
fn exception_blocks_bring_no_id_back() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "CREATE FUNCTION draw(tag text) RETURNS SETOF bigint LANGUAGE plpgsql AS $$
         DECLARE id bigint;
         BEGIN
             FOR i IN 1..300 LOOP
                 BEGIN
                     id := leaf_segment_next(tag);
                     RAISE EXCEPTION 'undo';
                 EXCEPTION WHEN raise_exception THEN
                     RETURN NEXT id;
                 END;
             END LOOP;
         END $$;
         BEGIN; SELECT leaf_tag_create('new', step => 10)",
    );
    let mut ids = session.ids("SELECT draw('new')");
    session.run("COMMIT");
    ids.extend(session.ids("SELECT draw('new')"));
    ids.extend(server.session().ids("SELECT draw('new')"));
    assert_eq!(ids.len(), 900);
    assert_issued_once(&[ids]);
}

#[test]
fn a_tag_created_in_an_undone_savepoint_is_gone_and_can_come_again() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run("BEGIN; SAVEPOINT a; SELECT leaf_tag_create('t', step => 10)");
    session.take("t", 25);
    session.run("ROLLBACK TO a");
    session.fails("SELECT leaf_segment_next('t')").is("42704");
    session.run("ROLLBACK TO a; SELECT leaf_tag_create('t', step => 10)");
    let mut ids = session.take("t", 25);
    session.run("COMMIT");
    ids.extend(server.session().take("t", 25));
    ids.extend(session.take("t", 25));
    assert_issued_once(&[ids]);
}

#[test]
fn limits_hold_inside_the_transaction_that_made_the_tag() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run("BEGIN; SELECT leaf_tag_create('t', step => 10, max_value => 15)");
    assert_eq!(session.take("t", 15), (1..=15).collect::<Vec<_>>());
    session.run("SAVEPOINT a");
    session.fails("SELECT leaf_segment_next('t')").is("2200H");
    session.run("ROLLBACK TO a; COMMIT");
    session.fails("SELECT leaf_segment_next('t')").is("2200H");
}

/// The creation is undone, but its ids may have been seen.
#[test]
fn a_tag_created_again_after_a_savepoint_goes_on_above() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run("BEGIN; SAVEPOINT s; SELECT leaf_tag_create('t')");
    let mut ids = session.take("t", 5);
    session.run("ROLLBACK TO s; SELECT leaf_tag_create('t')");
    ids.extend(session.take("t", 5));
    session.run("COMMIT");
    ids.extend(session.take("t", 5));
    assert_issued_once(&[ids]);
    // Although nothing was issued of the row that stands.
    session.run("BEGIN; SAVEPOINT s; SELECT leaf_tag_create('v')");
    assert_eq!(session.take("v", 3), [1, 2, 3]);
    session.run("ROLLBACK TO s; SELECT leaf_tag_create('v'); COMMIT");
    assert_eq!(session.next("v"), 4);
    // On purpose it does start anew.
    session.run("BEGIN; SELECT leaf_tag_create('u', step => 10)");
    assert_eq!(session.take("u", 3), [1, 2, 3]);
    session.run("SELECT leaf_tag_reset('u', 1)");
    assert_eq!(session.take("u", 3), [1, 2, 3]);
    session.run("COMMIT");
    assert_eq!(session.next("u"), 4);
}

/// A rename keeps the row, and with it what was issued.
#[test]
fn a_new_tag_renamed_in_its_transaction_goes_on_above() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run("BEGIN; SELECT leaf_tag_create('a')");
    let mut ids = session.take("a", 5);
    session.run("SAVEPOINT s; UPDATE leaf_id.leaf_alloc SET biz_tag = 'b'");
    ids.extend(session.take("b", 5));
    session.run("ROLLBACK TO s");
    ids.extend(session.take("a", 5));
    session.run("UPDATE leaf_id.leaf_alloc SET biz_tag = 'b'; COMMIT");
    ids.extend(session.take("b", 5));
    assert_issued_once(&[ids]);
}

#[test]
fn a_new_tag_is_kept_by_a_transaction_that_ends_read_only() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run("BEGIN; SELECT leaf_tag_create('a')");
    let mut ids = session.take("a", 5);
    session.run("SET TRANSACTION READ ONLY; COMMIT");
    ids.extend(session.take("a", 5));
    assert_issued_once(&[ids]);
}
