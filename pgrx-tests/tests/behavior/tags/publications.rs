//! Would catch: logical replication of the table of tags that stops (in the initial copy, or in the
//! apply worker) because the subscriber already has a tag; one that causes issued ids to be issued
//! again; and a TRUNCATE that silently drops all tags of a database.

use std::time::Duration;

use leaf_id_tests::{Server, Session, assert_issued_once, wait_until};

use crate::opaque;

const LIMIT: Duration = Duration::from_secs(60);
const MAX_IDS: &str = "SELECT biz_tag || ' ' || max_id FROM leaf_id.leaf_alloc ORDER BY biz_tag";

/// A publisher and a subscriber, each with leaf_id and table orders.
fn pair() -> (Server, Server) {
    let server = |number| {
        let server = Server::start_unrelated(number, &[("wal_level", "logical")]);
        server.session().run(
            "CREATE EXTENSION leaf_id;
             CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT leaf_segment_next('orders'))",
        );
        server
    };
    (server(0), server(1))
}

fn subscribe(publisher: &Server, subscriber: &Server) {
    let conninfo = format!("{} dbname=postgres", publisher.conninfo());
    subscriber.session().run(&format!(
        "CREATE SUBSCRIPTION s CONNECTION '{conninfo}' PUBLICATION p"
    ));
}

fn wait_for(session: &mut Session, sql: &str, expected: &[&str]) {
    wait_until(LIMIT, &format!("{expected:?}"), || {
        session.column::<String>(sql) == expected
    });
}

/// Waits until the initial copy of all tables is complete.
fn wait_for_copy(session: &mut Session) {
    wait_until(LIMIT, "the initial copy", || {
        session.value("SELECT count(*) > 0 AND bool_and(srsubstate = 'r') FROM pg_subscription_rel")
    });
}

/// A subscriber of all tables goes on when the extension is created on its publisher, until the first
/// tag; what the warning says then helps.
#[test]
fn a_subscriber_without_the_extension_goes_on_until_the_first_tag() {
    let server = |number| Server::start_unrelated(number, &[("wal_level", "logical")]);
    let (publisher, subscriber) = (server(0), server(1));
    let (mut there, mut here) = (publisher.session(), subscriber.session());
    for session in [&mut there, &mut here] {
        session.run("CREATE TABLE orders (id bigint PRIMARY KEY)");
    }
    there.run("CREATE PUBLICATION p FOR ALL TABLES");
    subscribe(&publisher, &subscriber);
    wait_for_copy(&mut here);
    there.run("CREATE EXTENSION leaf_id; INSERT INTO orders VALUES (1)");
    let ids = "SELECT id::text FROM orders ORDER BY id";
    wait_for(&mut here, ids, &["1"]);
    let log = publisher.log();
    assert!(log.contains("publication \"p\" includes the tables of extension \"leaf_id\""));
    there.run("SELECT leaf_tag_create('orders'); INSERT INTO orders VALUES (2)");
    wait_until(LIMIT, "the error", || {
        (subscriber.log()).contains("relation \"leaf_id.leaf_alloc\" does not exist")
    });
    // As the hint says.
    here.run("CREATE EXTENSION leaf_id");
    wait_for(&mut here, ids, &["1", "2"]);
}

/// Keys of opaque ids are replicated like any table. An existing key of a name is kept.
#[test]
fn a_subscriber_has_opaque_tags_with_their_keys() {
    let (publisher, subscriber) = pair();
    let (mut there, mut here) = (publisher.session(), subscriber.session());
    let keys = "SELECT string_agg(leaf_id.leaf_opaque_key(tag), ' ') FROM leaf_id.leaf_opaque_key";
    let first = "SELECT leaf_id.leaf_opaque_encode('orders', 1)";
    there.run(
        "BEGIN; SELECT leaf_id.leaf_opaque_create('orders'), leaf_id.leaf_opaque_create('own'); COMMIT;
         ALTER TABLE orders ALTER id SET DEFAULT leaf_opaque_next('orders');
         INSERT INTO orders SELECT FROM generate_series(1, 250);
         CREATE PUBLICATION p FOR TABLE orders, leaf_id.leaf_alloc",
    );
    here.run("SELECT leaf_id.leaf_opaque_create('own')");
    let own: String = here.value(keys);
    subscribe(&publisher, &subscriber);
    wait_for_copy(&mut here);
    here.fails("SELECT leaf_opaque_next('orders')").is("42809");
    there.run("ALTER PUBLICATION p ADD TABLE leaf_id.leaf_opaque_key");
    here.run("ALTER SUBSCRIPTION s REFRESH PUBLICATION");
    wait_for_copy(&mut here);
    assert_eq!(here.value::<i64>(first), there.value::<i64>(first));
    let keys_here: String = here.value(keys);
    assert!(keys_here.contains(&own) && keys_here.len() == 2 * own.len() + 1);
    let log = subscriber.log();
    assert!(log.contains("tag \"own\" has another key of opaque ids on the publisher"));
    assert!(!log.contains("tag \"orders\" has another key"), "{log}");
    let mut ids = here.ids("SELECT id FROM orders");
    ids.extend(opaque::take(&mut here, "orders", 100));
    opaque::assert_distinct(&ids);
    here.fails("SELECT leaf_segment_next('orders')").is("42809");
    // A reset is replicated, and so is the drop of the tag, whose key stays.
    there.run("SELECT leaf_tag_reset('orders', 20000)");
    wait_for(&mut here, MAX_IDS, &["orders 20000", "own 1"]);
    let id = opaque::take(&mut here, "orders", 1);
    assert_eq!(opaque::decoded(&mut here, "orders", &id), [20_000]);
    there.run("SELECT leaf_tag_drop('orders', force => true)");
    wait_for(&mut here, MAX_IDS, &["own 1"]);
    assert_eq!(here.value::<String>(keys), keys_here);
    // What the warning says helps.
    here.run("DROP SUBSCRIPTION s");
    here.run("SET leaf_id.allow_truncate = on; TRUNCATE leaf_id.leaf_alloc, leaf_id.leaf_opaque_key, orders");
    subscribe(&publisher, &subscriber);
    wait_for_copy(&mut here);
    assert_eq!(here.value::<String>(keys), there.value::<String>(keys));
}

/// A subscriber that is going to take over: it has the schema, and tags that were used.
#[test]
fn a_subscriber_with_tags_of_its_own_copies_applies_and_takes_over() {
    let (publisher, subscriber) = pair();
    let (mut there, mut here) = (publisher.session(), subscriber.session());
    there.run(
        "SELECT leaf_tag_create('orders', step => 100), leaf_tag_create('only there', start => 70),
             leaf_tag_create('behind', start => 5);
         INSERT INTO orders SELECT FROM generate_series(1, 250);
         CREATE PUBLICATION p FOR ALL TABLES",
    );
    here.run(
        "SELECT leaf_tag_create('orders', step => 10), leaf_tag_create('behind', start => 5000, step => 10)",
    );
    assert_eq!((here.next("orders"), here.next("behind")), (1, 5000));
    subscribe(&publisher, &subscriber);
    wait_for_copy(&mut here);
    let claimed: i64 =
        there.value("SELECT max_id FROM leaf_id.leaf_alloc WHERE biz_tag = 'orders'");
    wait_until(LIMIT, "the tags", || {
        here.value(&format!(
            "SELECT count(*) = 3 AND bool_and(CASE biz_tag WHEN 'orders' THEN max_id >= {claimed}
                 WHEN 'behind' THEN max_id >= 5010 ELSE max_id = 70 END) FROM leaf_id.leaf_alloc"
        ))
    });
    // Ids cached here below the publisher's are gone.
    assert!(here.next("orders") >= claimed);
    assert_eq!(here.next("behind"), 5001);
    let mut ids = here.ids("SELECT id FROM orders");
    assert_eq!(ids.len(), 250);

    // Claims continue there; new tags are replicated, also one that exists here.
    here.run("SELECT leaf_tag_create('new', start => 40)");
    there.run(
        "INSERT INTO orders SELECT FROM generate_series(1, 1000);
         SELECT leaf_tag_create('new', start => 300), leaf_tag_create('newer', start => 9);
         CREATE TABLE last (id int PRIMARY KEY)",
    );
    here.run("CREATE TABLE last (id int PRIMARY KEY)");
    here.run("ALTER SUBSCRIPTION s REFRESH PUBLICATION");
    there.run("INSERT INTO last VALUES (1)");
    wait_for(&mut here, "SELECT id::text FROM last", &["1"]);
    assert!(here.next("new") >= 300);
    assert_eq!(here.next("newer"), 9);
    here.run("DROP SUBSCRIPTION s");
    ids.clear();
    ids.extend(here.ids("SELECT id FROM orders"));
    assert_eq!(ids.len(), 1250);
    ids.extend(here.take("orders", 500));
    assert_issued_once(&[ids]);
    let failed = subscriber.log().contains("duplicate key");
    assert!(!failed, "{}", subscriber.log());
}

/// Neither a local source server nor other settings of the local row are changed.
#[test]
fn the_row_that_is_here_stays() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session
        .run("SELECT leaf_tag_create('t', step => 10, description => 'ours', max_value => 99999)");
    let ids = session.take("t", 5);
    let incarnation: i64 = session.value("SELECT incarnation FROM leaf_id.leaf_alloc");
    let insert = |max_id: i64| {
        format!(
            "INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id, step, description, incarnation)
             VALUES ('t', {max_id}, 77, 'theirs', 3)"
        )
    };
    session.fails(&insert(50)).is("23505");
    session.run("SET session_replication_role = replica");
    // Below the local row: no cached ids are dropped.
    session.run(&insert(2));
    assert_eq!(session.next("t"), 6);
    session.run(&insert(5000));
    // A segment claimed between this session's commit and its notification is dropped, along with
    // the ids below.
    let first = session.next("t");
    assert!([5000, 5010].contains(&first), "{first}");
    session.run("BEGIN");
    session.run(&insert(6000));
    session.fails("SELECT leaf_segment_next('t')").is("55000");
    session.run("ROLLBACK");
    assert_eq!(session.next("t"), first + 1);
    let row = session
        .query_one(
            "SELECT step, description, incarnation, max_value FROM leaf_id.leaf_alloc",
            &[],
        )
        .unwrap();
    assert_eq!(
        (row.get(0), row.get(1), row.get(2), row.get(3)),
        (10, "ours", incarnation, 99_999_i64)
    );
    assert_issued_once(&[ids]);
    // A role with only INSERT cannot raise it.
    session.run(
        "CREATE ROLE mallory LOGIN; GRANT INSERT ON leaf_id.leaf_alloc TO mallory;
         GRANT SET ON PARAMETER session_replication_role TO mallory",
    );
    let mut mallory = server.connect_as("mallory", "postgres");
    mallory.run("SET session_replication_role = replica");
    mallory.fails(&insert(900_000)).is("23505");
}

#[test]
fn what_the_docs_leave_out_is_left_out() {
    let (publisher, subscriber) = pair();
    let (mut there, mut here) = (publisher.session(), subscriber.session());
    there.run("SELECT leaf_tag_create('orders'); CREATE PUBLICATION p FOR TABLES IN SCHEMA public");
    here.run("SELECT leaf_tag_create('orders', start => 3)");
    subscribe(&publisher, &subscriber);
    there.run("INSERT INTO orders DEFAULT VALUES");
    wait_for(&mut here, "SELECT id::text FROM orders", &["1"]);
    assert_eq!(here.column::<String>(MAX_IDS), ["orders 3"]);
    here.run("DROP SUBSCRIPTION s");
}

#[test]
fn truncate_needs_the_owners_word() {
    let (publisher, subscriber) = pair();
    let (mut there, mut here) = (publisher.session(), subscriber.session());
    there.run("SELECT leaf_tag_create('orders', step => 10)");
    assert_eq!(there.next("orders"), 1);
    there.run("CREATE TABLE parent (tag text PRIMARY KEY)");
    there.run("ALTER TABLE leaf_id.leaf_alloc ADD CONSTRAINT fk FOREIGN KEY (description) REFERENCES parent");
    for truncate in [
        "TRUNCATE leaf_id.leaf_alloc",
        "TRUNCATE orders, leaf_id.leaf_alloc RESTART IDENTITY",
        "TRUNCATE parent CASCADE",
    ] {
        there
            .fails(truncate)
            .is("55000")
            .hints("\"leaf_id.allow_truncate\"");
        assert!(there.next("orders") < 10);
    }
    there.run("ALTER TABLE leaf_id.leaf_alloc DROP CONSTRAINT fk");
    // The constraint is checked where the tag is assigned, and does not stop an apply worker.
    there.run("CREATE PUBLICATION p FOR ALL TABLES");
    here.run("CREATE TABLE parent (tag text PRIMARY KEY); SELECT leaf_tag_create('ours')");
    subscribe(&publisher, &subscriber);
    wait_for_copy(&mut here);
    assert_eq!(
        here.value::<i64>("SELECT count(*) FROM leaf_id.leaf_alloc"),
        2
    );
    there.run("BEGIN; SET LOCAL leaf_id.allow_truncate = on; TRUNCATE leaf_id.leaf_alloc; COMMIT");
    there
        .fails("SELECT leaf_segment_next('orders')")
        .is("42704");
    wait_for(&mut here, MAX_IDS, &[]);
    here.fails("SELECT leaf_segment_next('ours')").is("42704");
    here.run("DROP SUBSCRIPTION s");
    // Tags are recreated with their tables' defaults.
    there.run("INSERT INTO orders VALUES (33); SELECT leaf_sync()");
    assert_eq!(there.next("orders"), 34);
}

/// A row renamed to a name that exists here, too: the two are merged.
#[test]
fn a_rename_onto_a_name_that_is_here_arrives() {
    let (publisher, subscriber) = pair();
    let (mut there, mut here) = (publisher.session(), subscriber.session());
    there.run(
        "SELECT leaf_tag_create('a'), leaf_id.leaf_gapless_create('x');
         CREATE PUBLICATION p FOR TABLE leaf_id.leaf_alloc, leaf_id.leaf_gapless",
    );
    here.run("SELECT leaf_tag_create('b'), leaf_id.leaf_gapless_create('y', start => 8)");
    let before = here.take("b", 10);
    subscribe(&publisher, &subscriber);
    wait_for_copy(&mut here);
    there.run(
        "UPDATE leaf_id.leaf_alloc SET biz_tag = 'b', max_id = 500000 WHERE biz_tag = 'a';
         UPDATE leaf_id.leaf_gapless SET series = 'y', last_number = 5 WHERE series = 'x';
         SELECT leaf_tag_create('later')",
    );
    let series = "SELECT series || ' ' || last_number FROM leaf_id.leaf_gapless ORDER BY series";
    wait_for(&mut here, MAX_IDS, &["a 1", "b 500000", "later 1"]);
    assert_eq!(here.column::<String>(series), ["x 0", "y 7"]);
    // Cached ids are dropped a moment after the row becomes visible.
    let mut after = Vec::new();
    wait_until(LIMIT, "ids above", || {
        after.push(here.next("b"));
        after[after.len() - 1] >= 500_000
    });
    assert_issued_once(&[before, after]);
    there.run(
        "UPDATE leaf_id.leaf_alloc SET max_id = 900000 WHERE biz_tag = 'b';
         UPDATE leaf_id.leaf_gapless SET last_number = 9 WHERE series = 'y'",
    );
    wait_for(&mut here, MAX_IDS, &["a 1", "b 900000", "later 1"]);
    wait_for(&mut here, series, &["x 0", "y 9"]);
}

/// A tool copies the tables, then a replicated row raises one that is here, then the copies are swapped in.
/// Before: ids and numbers that the publisher has issued came again.
#[test]
fn what_was_merged_does_not_go_with_the_table() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    let tables = ["leaf_alloc", "leaf_gapless"];
    session.run("SELECT leaf_tag_create('t'), leaf_id.leaf_gapless_create('s')");
    for table in tables {
        session.keep_copy(table);
    }
    session.run(
        "SET session_replication_role = replica;
         INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id) VALUES ('t', 500);
         INSERT INTO leaf_id.leaf_gapless (series, last_number) VALUES ('s', 499);
         RESET session_replication_role",
    );
    for table in tables {
        session.set_back(table);
    }
    assert_eq!(session.next("t"), 500);
    assert_eq!(
        session.value::<i64>("SELECT leaf_id.leaf_gapless_next('s')"),
        500
    );
}

/// The snapshot of the transaction has no mark. Before: the series went on below it.
#[test]
fn a_renamed_series_goes_on_above_a_mark_that_has_just_arrived() {
    let server = Server::with_leaf_id(&[]);
    let (mut session, mut other) = (server.session(), server.session());
    session.run("SELECT leaf_id.leaf_gapless_create('s'); DELETE FROM leaf_id.leaf_gapless_mark");
    session.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class");
    other.run("INSERT INTO leaf_id.leaf_gapless_mark (series, high) VALUES ('s', 900)");
    session.run("UPDATE leaf_id.leaf_gapless SET series = 'z'; COMMIT");
    assert_eq!(
        session.value::<i64>("SELECT leaf_id.leaf_gapless_next('z')"),
        900
    );
}

/// A row filter on a column that is not part of the replica identity forbids all updates of a table.
#[test]
fn a_publication_with_a_row_filter_says_why_claims_fail() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "SELECT leaf_tag_create('t');
         CREATE PUBLICATION p FOR TABLE leaf_id.leaf_alloc WHERE (max_id > 1)",
    );
    let failure = session.fails("SELECT leaf_segment_next('t')");
    println!("{failure}");
    // Both ends of it; the log has it all.
    failure
        .details("cannot update table")
        .details("replica identity");
    assert!(server.log().contains("publication WHERE expression"));
    session.run("DROP PUBLICATION p");
    assert_eq!(session.value::<i64>("SELECT leaf_segment_next('t')"), 1);
}
