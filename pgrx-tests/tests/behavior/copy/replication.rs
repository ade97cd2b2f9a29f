//! Would catch: a subscriber whose additional column gets one id for many rows, during or after the
//! initial copy.

use std::time::Duration;

use leaf_id_tests::{Server, assert_issued_once, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

#[test]
fn a_column_of_the_subscriber_gets_ids() {
    let publisher = Server::start_unrelated(1, &[("wal_level", "logical")]);
    let mut source = publisher.session();
    source.run(
        "CREATE TABLE t (i int PRIMARY KEY);
         INSERT INTO t SELECT generate_series(1, 5000);
         CREATE PUBLICATION p FOR TABLE t",
    );
    let subscriber = Server::with_leaf_id(&[]);
    let mut session = subscriber.session();
    session.create_tag("a");
    session.run("CREATE TABLE t (id bigint DEFAULT leaf_segment_next('a'), i int PRIMARY KEY)");
    session.run(&format!(
        "CREATE SUBSCRIPTION s CONNECTION '{} dbname=postgres' PUBLICATION p",
        publisher.conninfo()
    ));
    let mut wait_for = |rows: i64| {
        wait_until(LIMIT, "the rows", || {
            session.value::<i64>("SELECT count(*) FROM t") == rows
        });
        session.ids("SELECT id FROM t ORDER BY i")
    };
    assert_issued_once(&[wait_for(5000)]);
    source.run("INSERT INTO t SELECT generate_series(5001, 6000)");
    assert_issued_once(&[wait_for(6000)]);
    session.run("DROP SUBSCRIPTION s");
}
