//! Would catch: another session's lock that blocks `leaf_sync()`, and a column silently skipped
//! because of it. (Rights are tested in sql/sync.sql.)

use super::sync::{rows, server_with_orders};

#[test]
fn what_another_session_keeps_is_reported() {
    let (server, mut admin) = server_with_orders();
    admin.run(
        "CREATE TABLE secret (id bigint DEFAULT leaf_segment_next('orders'), n int);
         CREATE TABLE p (id bigint DEFAULT leaf_segment_next('p'), k int) PARTITION BY LIST (k);
         CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1); INSERT INTO p VALUES (5, 1)",
    );
    let mut other = server.session();
    other.run("BEGIN; LOCK TABLE secret, p1; CREATE TEMP TABLE mine (id bigint DEFAULT leaf_segment_next('orders'))");
    // No tag is created below columns that were not read.
    assert_eq!(
        rows(&mut admin, "leaf_sync()"),
        [
            "orders orders id 1 1 none",
            "orders secret id skip [it is locked by another session: try again]",
            "p p id skip [it does not exist, and not all of its columns could be read: create it by hand, above all ids in them]",
            "p p1 id skip [it is locked by another session: try again]",
        ]
    );
    other.run("COMMIT");
    // Temporary tables of other sessions are left out: they cannot be read.
    assert_eq!(
        rows(&mut admin, "leaf_sync()"),
        [
            "orders orders id 1 1 none",
            "orders secret id 1 1 none",
            "p p id 5 6 create",
        ]
    );
    assert_eq!(admin.next("p"), 6);
}
