//! Would catch: an id issued twice because a sequence was set but not called, or after a failover;
//! a move after which no row can be inserted. Interference by other roles is tested in
//! pgrx-tests/isolation/specs/adopt.spec.

use super::server;

#[test]
fn a_sequence_that_was_set_and_not_called_counts() {
    let server = server();
    let mut session = server.session();
    session.run(
        "CREATE TABLE t (id bigserial, n int); INSERT INTO t (n) SELECT generate_series(1, 999);
         SELECT setval('t_id_seq', 1000, false); DELETE FROM t WHERE id > 500;
         SELECT leaf_adopt('t', 'id')",
    );
    let first = "INSERT INTO t (n) VALUES (1) RETURNING id";
    assert_eq!(session.ids(first), [1000]);
    // What is refused takes nothing from the sequence.
    session.run(
        "CREATE TABLE u (id smallserial, n int); SELECT setval('u_id_seq', 32767, false);
         INSERT INTO u VALUES (32767, 1); SELECT setval('u_id_seq', 7, false)",
    );
    session.fails("SELECT leaf_adopt('u', 'id')").is("2200H");
    assert_eq!(
        session.ids("INSERT INTO u (n) VALUES (1) RETURNING id::bigint"),
        [7]
    );
}

/// A release skips ids that the lost primary may have issued, like a claim.
#[test]
fn a_release_after_a_failover_skips() {
    let server = server();
    let mut session = server.session();
    session.run(
        "CREATE TABLE t (id bigserial, n int); SELECT leaf_adopt('t', 'id', step => 100);
         INSERT INTO t (n) VALUES (1)",
    );
    let before: i64 = session.value("SELECT max_id FROM leaf_id.leaf_alloc");
    drop(session);
    let standby = server.standby(&[]);
    standby.promote();
    let mut session = standby.session();
    session.run("SELECT leaf_release('t', 'id')");
    let first = session.ids("INSERT INTO t (n) VALUES (1) RETURNING id")[0];
    assert!(first > before + 100, "{first} after {before}");
}

#[test]
fn what_this_transaction_has_issued_counts() {
    let server = server();
    let mut session = server.session();
    session.run(
        "BEGIN; CREATE TABLE t (id bigserial, n int); SELECT leaf_adopt('t', 'id');
         INSERT INTO t (n) SELECT generate_series(1, 50); DELETE FROM t; SELECT leaf_release('t', 'id'); COMMIT",
    );
    assert!(session.ids("INSERT INTO t (n) VALUES (1) RETURNING id")[0] > 50);
}

#[test]
fn a_tag_that_others_use_in_other_ways_stays() {
    let server = server();
    let mut session = server.session();
    session.run(
        "CREATE TABLE t (id bigserial); SELECT leaf_adopt('t', 'id');
         CREATE DOMAIN number AS bigint DEFAULT leaf_segment_next('t'); CREATE TABLE d (id number, n int)",
    );
    session.run("SELECT leaf_release('t', 'id')");
    session.run("INSERT INTO d (n) VALUES (1)");
    session.run(
        "DROP TABLE d; SELECT leaf_adopt('t', 'id', 't');
         CREATE TABLE c (id bigint DEFAULT leaf_segment_next('t'::varchar), n int);
         SELECT leaf_release('t', 'id')",
    );
    session.run("INSERT INTO c (n) VALUES (1)");
}

#[test]
fn a_tag_without_ids_for_the_column_is_refused() {
    let server = server();
    let mut session = server.session();
    session.run(
        "SELECT leaf_tag_create('big', start => 5000000000), leaf_tag_create('small', max_value => 100);
         CREATE TABLE t (id serial); CREATE TABLE u (id bigserial); INSERT INTO u VALUES (1000)",
    );
    session
        .fails("SELECT leaf_adopt('t', 'id', 'big')")
        .is("2200H");
    session
        .fails("SELECT leaf_adopt('u', 'id', 'small')")
        .is("2200H");
    // No id of the tag was used.
    assert_eq!(session.next("small"), 1);
}

#[test]
fn a_thousand_partitions_are_moved() {
    let server = server();
    let mut session = server.session();
    session.run(
        "CREATE TABLE t (id bigserial, n int) PARTITION BY LIST (n);
         DO $$ BEGIN FOR i IN 1 .. 1000 LOOP
             EXECUTE format('CREATE TABLE t%s PARTITION OF t FOR VALUES IN (%1$s)', i);
         END LOOP; END $$",
    );
    session.run("SELECT leaf_adopt('t', 'id')");
    assert_eq!(
        session.ids("INSERT INTO t (n) VALUES (7) RETURNING id"),
        [1]
    );
}
