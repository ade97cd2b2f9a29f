//! Would catch: code of a table's owner that runs when a superuser calls `leaf_sync()`, a number of
//! his that uses up the tag of others, a lock of his that holds up the call; and a caller who
//! learns what he may not read, or is not told that he was not given it.

use leaf_id_tests::Server;

use super::sync::{rows, server_with_orders};

/// What a hostile owner can put into a table, and beside it: none of it runs.
#[test]
fn a_superuser_runs_no_code_of_the_tables_owners() {
    let server = Server::with_leaf_id(&[]);
    let mut admin = server.session();
    admin.run(
        "CREATE ROLE mallory LOGIN; GRANT CREATE ON SCHEMA public TO mallory; CREATE ROLE reader LOGIN;
         CREATE FOREIGN DATA WRAPPER nowhere; GRANT USAGE ON FOREIGN DATA WRAPPER nowhere TO mallory",
    );
    let mut mallory = server.connect_as("mallory", "postgres");
    mallory.run(
        "CREATE FUNCTION trap(n bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS
             $$ BEGIN IF current_user <> 'mallory' THEN RAISE EXCEPTION 'trap as %', current_user; END IF; RETURN n; END $$;
         CREATE FUNCTION is_so(n bigint) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
             $$ BEGIN IF current_user <> 'mallory' THEN RAISE EXCEPTION 'is_so as %', current_user; END IF; RETURN true; END $$;
         CREATE FUNCTION more(a bigint, b integer) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
             $$ BEGIN IF current_user <> 'mallory' THEN RAISE EXCEPTION 'more as %', current_user; END IF; RETURN true; END $$;
         CREATE OPERATOR >= (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = more);
         CREATE DOMAIN checked AS bigint CHECK (is_so(value));
         CREATE TABLE t (id checked DEFAULT leaf_segment_next('t'), n bigint);
         CREATE INDEX ON t (id, trap(n)); CREATE INDEX ON t (trap(id)); CREATE INDEX ON t (id) WHERE is_so(id);
         CREATE VIEW v AS SELECT trap(1) AS id; ALTER VIEW v ALTER id SET DEFAULT leaf_segment_next('t');
         CREATE SERVER elsewhere FOREIGN DATA WRAPPER nowhere;
         CREATE FOREIGN TABLE f (id bigint DEFAULT leaf_segment_next('t')) SERVER elsewhere;
         CREATE FOREIGN TABLE child (id checked, n bigint) INHERITS (t) SERVER elsewhere;
         CREATE TABLE r (id bigint DEFAULT leaf_segment_next('t')); ALTER TABLE r ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
         CREATE POLICY p ON r USING (is_so(id));
         INSERT INTO t VALUES (1, 1), (5, 2); INSERT INTO r VALUES (7)",
    );
    assert_eq!(
        rows(&mut admin, "leaf_sync('t')"),
        [
            "t r id 7 8 create",
            "t t id 5 8 create",
            "t v id skip [it is not a table]",
            "t f id skip [it is not a table]",
            "t child id skip [it is not a table]",
        ]
    );
    admin.run("SELECT leaf_check()");
    // Nor for somebody who may read all of it.
    admin.run(
        "GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO reader;
         GRANT pg_read_all_data TO reader",
    );
    let mut reader = server.connect_as("reader", "postgres");
    let told = rows(&mut reader, "leaf_sync('t')");
    assert!(
        told.contains(&"t r id skip [row-level security may hide rows from you]".to_string()),
        "{told:#?}"
    );
    // It would have been noticed.
    admin
        .fails("INSERT INTO t VALUES (9, 9)")
        .says("is_so as postgres");
    admin.fails("SELECT * FROM v").says("trap as postgres");
}

/// Whoever owns a table writes any number into it: it must not use up the tag of others.
#[test]
fn a_number_has_the_weight_of_its_owners_rights() {
    let (server, mut admin) = server_with_orders();
    admin.run(
        "CREATE ROLE mallory LOGIN; CREATE ROLE app LOGIN; GRANT CREATE ON SCHEMA public TO mallory, app;
         INSERT INTO orders SELECT FROM generate_series(1, 3)",
    );
    let mut mallory = server.connect_as("mallory", "postgres");
    mallory.run(
        "CREATE TABLE mine (id bigint DEFAULT leaf_segment_next('orders'));
         INSERT INTO mine VALUES (9000000000000000000)",
    );
    let refused = "orders mine id 9000000000000000000 4 4 skip [its owner mallory may not edit tags: if this value is right, SELECT * FROM leaf_sync('orders')]";
    assert_eq!(
        rows(&mut admin, "leaf_sync()"),
        [refused, "orders orders id 3 4 4 none"]
    );
    // What costs no more than the cache counts.
    mallory.run("UPDATE mine SET id = 50");
    assert_eq!(
        rows(&mut admin, "leaf_sync()"),
        [
            "orders mine id 50 4 102 raise",
            "orders orders id 3 4 102 raise"
        ]
    );
    // By the caller's explicit word.
    mallory.run("UPDATE mine SET id = 7000");
    assert_eq!(
        rows(&mut admin, "leaf_sync('orders')"),
        [
            "orders mine id 7000 102 7001 raise",
            "orders orders id 3 102 7001 raise"
        ]
    );
    // A tag that does not exist: of one role's tables alone, or of those who may edit tags.
    let mut app = server.connect_as("app", "postgres");
    mallory.run("CREATE TABLE m1 (id bigint DEFAULT leaf_segment_next('gone')); INSERT INTO m1 VALUES (900)");
    app.run(
        "CREATE TABLE a1 (id bigint DEFAULT leaf_segment_next('gone')); INSERT INTO a1 VALUES (5)",
    );
    mallory.run("DROP TABLE mine");
    let of_gone = "leaf_sync() WHERE tag = 'gone'";
    let both = "skip [it does not exist, and the owners of its tables may not edit tags: if they are right, SELECT * FROM leaf_sync('gone')]";
    assert_eq!(
        rows(&mut admin, of_gone),
        [
            format!("gone a1 id 5 {both}"),
            format!("gone m1 id 900 {both}")
        ]
    );
    admin.run("GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO app");
    let told = rows(&mut admin, of_gone);
    assert_eq!(told[0], "gone a1 id 5 6 create");
    assert!(
        told[1].starts_with("gone m1 id 900 6 skip [its owner"),
        "{told:#?}"
    );
    app.run("DROP TABLE a1");
    admin.run("SELECT leaf_tag_drop('gone')");
    assert_eq!(
        rows(&mut admin, of_gone),
        [both.replace("skip", "gone m1 id 900 skip")]
    );
    assert_eq!(
        rows(&mut admin, "leaf_sync('gone')"),
        ["gone m1 id 900 901 create"]
    );
}

/// Nobody's lock holds up the caller, and what he may not read is told.
#[test]
fn what_is_not_read_is_told() {
    let (server, mut admin) = server_with_orders();
    admin.run(
        "CREATE ROLE manager LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO manager;
         CREATE TABLE secret (id bigint DEFAULT leaf_segment_next('orders'), n int);
         INSERT INTO secret VALUES (3000);
         GRANT SELECT ON orders TO manager",
    );
    let mut manager = server.connect_as("manager", "postgres");
    assert_eq!(
        rows(&mut manager, "leaf_sync()"),
        [
            "orders orders id 1 1 none",
            "orders secret id skip [you may not read it]"
        ]
    );
    admin.run("GRANT SELECT (id) ON secret TO manager");
    assert_eq!(
        rows(&mut manager, "leaf_check()")[1],
        "orders secret id 3000 1 3001 raise"
    );
    let mut other = server.session();
    other.run("BEGIN; LOCK TABLE secret; CREATE TEMP TABLE mine (id bigint DEFAULT leaf_segment_next('orders'))");
    assert_eq!(
        rows(&mut manager, "leaf_sync()"),
        [
            "orders orders id 1 1 none",
            "orders secret id skip [it is locked by another session: try again]"
        ]
    );
    other.run("COMMIT");
    let told = rows(&mut manager, "leaf_sync()");
    assert!(
        told.iter()
            .any(|row| row.ends_with("mine id skip [it is a temporary table of another session]")),
        "{told:#?}"
    );
    assert!(manager.next("orders") > 3000);
    // Who manages no tags.
    admin.run("CREATE ROLE nobody LOGIN");
    let mut nobody = server.connect_as("nobody", "postgres");
    for call in ["leaf_sync()", "leaf_check()"] {
        nobody.fails(&format!("SELECT {call}")).is("42501");
    }
    nobody
        .fails("SELECT leaf_id.leaf_tag_next('orders')")
        .is("42501");
    nobody.run("SELECT leaf_id.leaf_column_max('secret'::regclass, 1::smallint)");
    assert_eq!(
        nobody.value::<String>(
            "SELECT unread FROM leaf_id.leaf_column_max('secret'::regclass, 1::smallint)"
        ),
        "you may not read it"
    );
}

/// A partitioned table can always be read, and has no rows: those of its partitions count.
#[test]
fn no_tag_is_created_below_what_was_not_read() {
    let server = Server::with_leaf_id(&[]);
    let mut admin = server.session();
    admin.run(
        "CREATE ROLE manager LOGIN; GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO manager;
         CREATE TABLE p (id bigint DEFAULT leaf_segment_next('p'), k int) PARTITION BY LIST (k);
         CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1); INSERT INTO p VALUES (5, 1);
         CREATE TABLE parent (id bigint DEFAULT leaf_segment_next('parent')); INSERT INTO parent VALUES (2);
         CREATE TABLE child () INHERITS (parent); INSERT INTO child VALUES (7);
         CREATE TABLE a (id bigint DEFAULT leaf_segment_next('both')); INSERT INTO a VALUES (3);
         CREATE TABLE b (id bigint DEFAULT leaf_segment_next('both')); INSERT INTO b VALUES (9);
         ALTER TABLE b ENABLE ROW LEVEL SECURITY;
         GRANT SELECT ON p, parent, a, b TO manager",
    );
    let mut manager = server.connect_as("manager", "postgres");
    let incomplete = "skip [it does not exist, and not all of its columns could be read]";
    let expected = [
        format!("both a id 3 {incomplete}"),
        "both b id skip [row-level security may hide rows from you]".into(),
        format!("p p id {incomplete}"),
        "p p1 id skip [you may not read it]".into(),
        format!("parent parent id 2 {incomplete}"),
        "parent child id skip [you may not read it]".into(),
    ];
    for call in ["leaf_check()", "leaf_sync()"] {
        assert_eq!(rows(&mut manager, call), expected, "{call}");
    }
    assert_eq!(
        rows(&mut manager, "leaf_sync('p')"),
        [&*expected[2], &*expected[3]]
    );
    let mut other = server.session();
    other.run("BEGIN; LOCK TABLE p1");
    assert_eq!(
        rows(&mut admin, "leaf_sync('p')"),
        [
            format!("p p id {incomplete}"),
            "p p1 id skip [it is locked by another session: try again]".into(),
        ]
    );
    other.run("COMMIT");
    assert_eq!(
        rows(&mut admin, "leaf_sync()"),
        [
            "both a id 3 10 create",
            "both b id 9 10 create",
            "p p id 5 6 create",
            "parent parent id 7 8 create",
        ]
    );
    // Of a tag that exists, nothing is claimed about a partition that was not read.
    assert_eq!(
        rows(&mut manager, "leaf_sync('p')"),
        [
            "p p id 6 6 skip [not all of its tables could be read]",
            "p p1 id skip [you may not read it]",
        ]
    );
    // What is there is raised for all the same.
    admin.run("INSERT INTO parent VALUES (50)");
    assert_eq!(
        rows(&mut manager, "leaf_sync('parent')"),
        [
            "parent parent id 50 8 51 raise [not all of its tables could be read]",
            "parent child id skip [you may not read it]",
        ]
    );
    // A stranger's table, whose ids would not count either, keeps no tag from being created.
    admin.run(
        "SELECT leaf_tag_drop('both'); ALTER TABLE b DISABLE ROW LEVEL SECURITY;
         CREATE ROLE mallory LOGIN; GRANT CREATE ON SCHEMA public TO mallory",
    );
    server.connect_as("mallory", "postgres").run(
        "CREATE TABLE m (id bigint DEFAULT leaf_segment_next('both')); INSERT INTO m VALUES (900)",
    );
    assert_eq!(
        rows(&mut manager, "leaf_sync() WHERE tag = 'both'"),
        [
            "both a id 3 10 create",
            "both b id 9 10 create",
            "both m id skip [you may not read it]",
        ]
    );
}
