//! Would catch: an id already in a table that is issued again after `leaf_sync()`; a tag that it
//! lowers, or whose cache it drops without need; under load, after a restart, on a standby.
//! (Single-session behavior is tested in sql/sync.sql.)

use std::sync::atomic::Ordering;

use leaf_id_tests::{
    Call, Fleet, Server, Session, assert_in_order, assert_issued_once, in_threads,
    in_threads_until, random, timed,
};
use rand::RngExt;

/// Actions done or planned, one line per row.
pub fn rows(session: &mut Session, call: &str) -> Vec<String> {
    session.column(&format!(
        "SELECT concat_ws(' ', tag, relation::text, column_name, max_in_column, next_before, next_after, action,
             '[' || detail || ']') FROM {call}"
    ))
}

pub fn server_with_orders() -> (Server, Session) {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "SELECT leaf_tag_create('orders', step => 100);
         CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT leaf_segment_next('orders'))",
    );
    (server, session)
}

#[test]
fn what_stands_above_is_left_alone() {
    let (server, mut session) = server_with_orders();
    session.run("INSERT INTO orders SELECT FROM generate_series(1, 10)");
    for _ in 0..3 {
        assert_eq!(
            rows(&mut session, "leaf_sync()"),
            ["orders orders id 10 11 11 none"]
        );
    }
    assert_eq!(session.next("orders"), 11);
    // Under load, with ids issued by the tag itself, no cached ids are dropped.
    let raised: i64 = in_threads(4, |i| {
        let mut session = server.session();
        let mut raised = 0;
        for _ in 0..50 {
            if i == 0 {
                raised +=
                    session.value::<i64>("SELECT count(*) FROM leaf_sync() WHERE action <> 'none'");
            } else {
                session.run("INSERT INTO orders SELECT FROM generate_series(1, 7)");
            }
        }
        raised
    })
    .into_iter()
    .sum();
    // A claim may be in flight while nothing is cached.
    assert!(raised < 25, "{raised} of 50 calls");
    if raised == 0 {
        assert_eq!(session.figure("orders", "ids_lost"), 0);
    }
    assert!(session.next("orders") > 1061);
}

/// Uncommitted rows are found by an index, and by a sequential scan.
#[test]
fn rows_that_are_not_committed_count() {
    let (server, mut session) = server_with_orders();
    session.run("CREATE TABLE heap (id bigint DEFAULT leaf_segment_next('orders'))");
    let mut writer = server.session();
    for (table, id) in [("orders", 5000), ("heap", 6000)] {
        writer.run(&format!("BEGIN; INSERT INTO {table} VALUES ({id})"));
        session.run("SELECT * FROM leaf_sync()");
        writer.run("COMMIT");
        assert_eq!(session.next("orders"), id + 1);
        writer.run(&format!(
            "BEGIN; INSERT INTO {table} VALUES ({id} + 500); ROLLBACK"
        ));
        session.run("SELECT * FROM leaf_sync()");
        assert_eq!(session.next("orders"), id + 2);
    }
}

/// Remainders saved by the launcher, and restored by its successor.
#[test]
fn what_a_restart_gives_back_does_not_come_again() {
    let (server, mut session) = server_with_orders();
    session.run("INSERT INTO orders SELECT FROM generate_series(1, 3)");
    server.restart();
    let mut session = server.session();
    session.run("INSERT INTO orders VALUES (20); SELECT leaf_sync()");
    let mut ids = session.ids("SELECT id FROM orders ORDER BY id");
    ids.extend(session.take("orders", 200));
    assert_issued_once(&[ids]);
}

/// A row begins at the mark of its name: below it, another id was reported than the next one, and beyond
/// the column's type, each INSERT failed.
#[test]
fn a_tag_is_created_above_the_mark_of_its_name_or_not_at_all() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "INSERT INTO leaf_id.leaf_high_mark VALUES ('last', 32767), ('small', 32768), ('wide', 40000);
         CREATE TABLE last (id smallint DEFAULT leaf_segment_next('last'));
         CREATE TABLE small (id smallint DEFAULT leaf_segment_next('small'));
         CREATE TABLE wide (id bigint DEFAULT leaf_segment_next('wide'));
         INSERT INTO small VALUES (7); INSERT INTO wide VALUES (7);
         -- One that may not read the marks.
         CREATE ROLE manager; GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO manager;
         GRANT SELECT ON last, small, wide TO manager; SET ROLE manager",
    );
    let refused = "small small id 7 skip [ids of this name were issued up to 32767, and no id above that is left in the type of the column: give it a wider type or, if none of them is in use any more, SELECT public.leaf_tag_drop('small', forget => true);]";
    for call in ["leaf_check()", "leaf_sync()"] {
        assert_eq!(
            rows(&mut session, call),
            [
                "last last id 32767 create [95 % of the column's type is used]",
                refused,
                "wide wide id 7 40000 create",
            ]
        );
    }
    assert_eq!(
        rows(&mut session, "leaf_sync('small', 'small', 'id')"),
        [refused]
    );
    session.run("SELECT public.leaf_tag_drop('small', forget => true)");
    assert_eq!(
        rows(&mut session, "leaf_sync('small', 'small', 'id')"),
        ["small small id 7 8 create"]
    );
    session.run("RESET ROLE");
    let ids = session.ids("INSERT INTO wide DEFAULT VALUES RETURNING id");
    assert_eq!(ids, [40_000]);
    session.run("INSERT INTO last DEFAULT VALUES; INSERT INTO small DEFAULT VALUES");
}

/// By the name of the tag alone, a stranger's smallint would leave one id.
#[test]
fn what_a_hint_says_counts_no_strangers_column() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "CREATE TABLE a (id bigint DEFAULT leaf_segment_next('t'));
         CREATE TABLE b (id bigint DEFAULT leaf_segment_next('t'), k int) PARTITION BY LIST (k);
         CREATE TABLE b1 PARTITION OF b FOR VALUES IN (1);
         CREATE TABLE not_read (id numeric DEFAULT leaf_segment_next('t'));
         INSERT INTO a VALUES (5); INSERT INTO b VALUES (70, 1);
         CREATE ROLE stranger; GRANT CREATE ON SCHEMA public TO stranger; SET ROLE stranger;
         CREATE TABLE small (id smallint DEFAULT leaf_segment_next('t'));
         INSERT INTO small VALUES (32766); RESET ROLE",
    );
    for call in [
        "SELECT leaf_tag_create('t')",
        "SELECT leaf_release('a', 'id')",
    ] {
        session
            .fails(call)
            .hints(": SELECT * FROM public.leaf_check();");
    }
    // What it holds is not known.
    let row = &rows(&mut session, "leaf_sync()")[0];
    assert!(
        row.ends_with("create it by hand, above all ids in them]"),
        "{row}"
    );
    session.run("ALTER TABLE not_read ALTER id DROP DEFAULT; SELECT leaf_sync()");
    session.run("ALTER TABLE not_read ALTER id SET DEFAULT leaf_segment_next('t')");
    assert_eq!(session.next("t"), 71);
    // Leaves what is cached.
    session.run("SELECT leaf_tag_grant('t', 'stranger')");
    assert_eq!(
        rows(&mut session, "leaf_check()"),
        [
            "t a id 5 1071 1071 none",
            "t b id 70 1071 1071 none",
            "t small id 32766 1071 1071 skip [stranger, who owns the table or its domain, may not edit tags: if this column is right, SELECT * FROM public.leaf_sync('t', 'public.small', 'id');]",
            "t not_read id skip [its values are not integers]",
        ]
    );
}

/// Its type says nothing of the application's. Before: ids ended at 32767, or the tag could not be created.
#[test]
fn a_strangers_type_ends_no_ids() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "CREATE ROLE app; CREATE ROLE stranger; GRANT CREATE ON SCHEMA public TO app, stranger; SET ROLE app;
         CREATE TABLE a (id int DEFAULT leaf_segment_next('t')); INSERT INTO a VALUES (40000); SET ROLE stranger;
         CREATE TABLE small (id smallint DEFAULT leaf_segment_next('t')); RESET ROLE",
    );
    session.run("SELECT leaf_sync('t')");
    assert_eq!(
        session.value::<i64>("SELECT max_value FROM leaf_id.leaf_alloc"),
        2_147_483_647
    );
    assert_eq!(session.next("t"), 40_001);
}

/// Before: 42704, and no row of leaf_check().
#[test]
fn a_tag_in_a_temporary_table_of_another_session_is_unknown() {
    let server = Server::with_leaf_id(&[]);
    let mut other = server.session();
    other.run("SELECT leaf_tag_create('t'); CREATE TEMP TABLE x (id bigint DEFAULT leaf_segment_next('t'))");
    let mut session = server.session();
    for tag in ["", "'t'"] {
        let actions: Vec<String> = session.column(&format!("SELECT action FROM leaf_check({tag})"));
        assert_eq!(actions, ["unknown"]);
        let actions: Vec<String> = other.column(&format!("SELECT action FROM leaf_check({tag})"));
        assert_eq!(actions, ["none"]);
    }
}

/// Its owner may not raise a tag, but the table above is the word of one who may. Before: the tag was
/// created below the ids in the partition.
#[test]
fn no_tag_is_created_below_ids_in_a_partition_of_another_role() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "CREATE TABLE p (id bigint DEFAULT leaf_segment_next('p'), k int) PARTITION BY LIST (k);
         CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
         CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2);
         CREATE TABLE q (id bigint DEFAULT leaf_segment_next('p'));
         INSERT INTO p VALUES (5, 1), (900, 2); INSERT INTO q VALUES (70);
         CREATE ROLE app; ALTER TABLE p2 OWNER TO app;
         CREATE ROLE stranger; GRANT CREATE ON SCHEMA public TO stranger; SET ROLE stranger;
         CREATE TABLE theirs (id bigint DEFAULT leaf_segment_next('p'));
         INSERT INTO theirs VALUES (5000); RESET ROLE",
    );
    let mut other = server.session();
    other.run("BEGIN; LOCK TABLE p2");
    let unread = "skip [it does not exist, and not all of its columns could be read: create it by hand, above all ids in them]";
    assert_eq!(
        rows(&mut session, "leaf_sync()"),
        [
            format!("p p id 5 {unread}"),
            format!("p q id 70 {unread}"),
            format!("p theirs id 5000 {unread}"),
            "p p2 id skip [it is locked by another session: try again]".into(),
        ]
    );
    other.run("COMMIT");
    let refused = "skip [it does not exist, and 900 does not count, in a partition or child whose owner may not edit tags: if all values of public.leaf_check('p') are right, SELECT * FROM public.leaf_sync('p');]";
    for call in ["leaf_check()", "leaf_sync()"] {
        assert_eq!(
            rows(&mut session, call),
            [
                format!("p p id 900 {refused}"),
                format!("p q id 70 {refused}"),
                format!("p theirs id 5000 {refused}"),
            ]
        );
    }
    // What is not above the others is in no one's way, nor is a stranger's own table.
    session.run("BEGIN; INSERT INTO q VALUES (900)");
    assert_eq!(
        rows(&mut session, "leaf_sync()")[..2],
        ["p p id 900 901 create", "p q id 900 901 create"]
    );
    session.run("ROLLBACK");
    // Not all are right.
    session.run("SELECT leaf_sync('p', 'p', 'id')");
    assert_eq!(session.next("p"), 901);
}

/// Before: the tag was created above the column that was named.
#[test]
fn no_tag_is_created_below_ids_of_other_columns() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    for (table, id) in [("a", 10), ("b", 1000)] {
        session.run(&format!(
            "CREATE TABLE {table} (id bigint PRIMARY KEY DEFAULT leaf_segment_next('shared')); INSERT INTO {table} VALUES ({id})"
        ));
    }
    session
        .fails("SELECT leaf_sync('shared', 'a', 'id')")
        .is("55000")
        .details("Column \"id\" of table public.b holds 1000.");
    session.run("SELECT leaf_sync('shared', 'b', 'id'); SELECT leaf_sync('shared', 'a', 'id')");
    assert_eq!(session.next("shared"), 1001);
}

/// Before: the tag was created above the plain column.
#[test]
fn no_tag_is_created_below_ids_in_an_expression() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "CREATE TABLE a (id bigint PRIMARY KEY DEFAULT leaf_segment_next('shared'));
         CREATE TABLE b (id bigint PRIMARY KEY DEFAULT coalesce(leaf_segment_next('shared'), 0));
         INSERT INTO a VALUES (10); INSERT INTO b VALUES (1000)",
    );
    for call in [
        "leaf_check()",
        "leaf_sync()",
        "leaf_check('shared')",
        "leaf_sync('shared')",
    ] {
        let rows = rows(&mut session, call);
        let row = rows
            .iter()
            .find(|row| row.starts_with("shared a id"))
            .unwrap();
        assert!(
            row.contains("skip")
                && row.contains("of table public.b, which has it in an expression, holds 1000"),
            "{row}"
        );
    }
    session.run("DELETE FROM b WHERE id = 1000; SELECT leaf_sync('shared')");
    assert_eq!(session.next("shared"), 11);
    // In an expression, too, what is in the column counts.
    session.run("INSERT INTO b VALUES (2000)");
    session
        .fails("SELECT leaf_tag_reset('shared', 1)")
        .details("Column \"id\" of table public.b holds 2000.");
}

/// The table that Citus leaves behind is empty, or has the rows of before. Before: it was read.
#[test]
fn a_table_of_citus_is_not_read() {
    let (server, mut session) = server_with_orders();
    session.run(
        "SET allow_system_table_mods = on;
         CREATE TABLE pg_catalog.pg_dist_partition (logicalrelid regclass NOT NULL, partmethod \"char\");
         RESET allow_system_table_mods",
    );
    let before = rows(&mut session, "leaf_check()");
    assert!(
        before[0].contains("none") || before[0].contains("raise"),
        "{before:?}"
    );
    session.run("INSERT INTO pg_dist_partition VALUES ('pg_class', 'h'), ('orders', 'h')");
    let rows = rows(&mut session, "leaf_check()");
    assert!(
        rows[0].contains("skip") && rows[0].contains("it is a table of Citus"),
        "{rows:?}"
    );
    session
        .fails("SELECT leaf_sync('orders', 'orders', 'id')")
        .details("it is a table of Citus");
    drop(server);
}

#[test]
fn two_calls_at_once_do_not_deadlock() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    for n in 0..20 {
        session.run(&format!(
            "SELECT leaf_tag_create('t{n}');
             CREATE TABLE t{n} (id bigint DEFAULT leaf_segment_next('t{n}'))"
        ));
    }
    in_threads(4, |i| {
        let mut session = server.session();
        for round in 0..25 {
            let id = 10_000 * (round * 4 + i + 1);
            session.run(&format!(
                "INSERT INTO t{} VALUES ({id}); INSERT INTO t{} VALUES ({id})",
                (i * 7 + round) % 20,
                (i * 3 + 2 * round) % 20
            ));
            session.run("SELECT leaf_sync()");
        }
    });
    for n in 0..20 {
        let last: Option<i64> = session.value(&format!("SELECT max(id) FROM t{n}"));
        assert!(session.next(&format!("t{n}")) > last.unwrap_or(0));
    }
}

/// This server does not know which of its ids are in use.
#[test]
fn a_sourced_tag_is_raised_where_it_comes_from() {
    let fleet = Fleet::new(1, &[]);
    fleet.create_tag("t", 100, 1000);
    let mut session = fleet.members[0].session();
    session.run("CREATE TABLE t (id bigint DEFAULT leaf_segment_next('t'))");
    session.run("INSERT INTO t DEFAULT VALUES");
    assert_eq!(rows(&mut session, "leaf_sync()"), ["t t id 1 2 2 none"]);
    session.run("INSERT INTO t VALUES (5000)");
    let synced = rows(&mut session, "leaf_sync()");
    assert!(
        synced.len() == 1
            && synced[0].starts_with("t t id 5000 2 2 skip [its ids come from server")
            && synced[0]
                .ends_with("raise max_id above 5000 there, then here, and on each other server that takes them]"),
        "{synced:#?}"
    );
    for mut server in [fleet.central.session(), fleet.members[0].session()] {
        server.run("UPDATE leaf_id.leaf_alloc SET max_id = 5001");
    }
    assert_eq!(session.next("t"), 5001);
    assert_eq!(
        rows(&mut session, "leaf_sync()"),
        ["t t id 5000 5002 5002 none"]
    );
    session.run("INSERT INTO t VALUES (9223372036854775807)");
    let synced = rows(&mut session, "leaf_sync()");
    let end = "skip [max_value (9223372036854775806) leaves no id above 9223372036854775807]";
    assert!(synced.len() == 1 && synced[0].ends_with(end), "{synced:#?}");
}

#[test]
fn a_standby_says_what_it_knows() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "SELECT leaf_tag_create('a', step => 100), leaf_tag_create('b', step => 100);
         CREATE TABLE a (id bigint DEFAULT leaf_segment_next('a'));
         CREATE TABLE b (id bigint DEFAULT leaf_segment_next('b'));
         CREATE TABLE c (id bigint DEFAULT leaf_segment_next('c'));
         INSERT INTO a DEFAULT VALUES; INSERT INTO b DEFAULT VALUES; INSERT INTO b VALUES (900)",
    );
    let standby = server.standby(&[]);
    standby.replay_all_of(&server);
    let mut there = standby.session();
    assert_eq!(
        rows(&mut there, "leaf_check()"),
        [
            "a a id 1 skip [only the primary knows what is cached]",
            "b b id 900 901 raise",
            "c c id 1 create",
        ]
    );
    there
        .fails("SELECT leaf_sync()")
        .is("25006")
        .hints("primary");
}

/// As many as in a large database.
#[test]
fn thousands_of_tables_take_seconds() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "DO $$ BEGIN FOR n IN 1 .. 1500 LOOP
             EXECUTE format('CREATE TABLE t%s (id bigint PRIMARY KEY DEFAULT leaf_segment_next(''t%s''))', n, n);
         END LOOP; END $$;
         CREATE TABLE p (id bigint DEFAULT leaf_segment_next('p')) PARTITION BY RANGE (id)",
    );
    session.run(
        "DO $$ BEGIN FOR n IN 1 .. 1500 LOOP
             EXECUTE format('CREATE TABLE p%s PARTITION OF p FOR VALUES FROM (%s) TO (%s)', n, n * 10, n * 10 + 10);
         END LOOP; END $$;
         INSERT INTO p SELECT i FROM generate_series(10, 10000, 3) i",
    );
    let (done, took) = timed(|| rows(&mut session, "leaf_sync()").len());
    println!("{done} rows in {took:?}");
    assert_eq!(done, 1501);
    assert_eq!(
        session.value::<i64>("SELECT max_in_column FROM leaf_check('p')"),
        10_000
    );
    let (_, took) = timed(|| rows(&mut session, "leaf_check()"));
    println!("a check in {took:?}");
}

/// Any role can make tables that inherit from each other, each with a default for another tag. Before:
/// for each of them, all below it are read.
#[test]
fn a_chain_of_tables_is_read_once() {
    const TABLES: i64 = 60;
    let (server, mut session) = server_with_orders();
    session.run("CREATE ROLE stranger LOGIN; GRANT CREATE ON SCHEMA public TO stranger");
    server.connect_as("stranger", "postgres").run(&format!(
        "CREATE TABLE chain_0 (id bigint);
         DO $$ BEGIN FOR n IN 1 .. {TABLES} LOOP
             EXECUTE format('CREATE TABLE chain_%s (id bigint DEFAULT leaf_segment_next(''x%s'')) INHERITS (chain_%s)', n, n, n - 1);
         END LOOP; END $$"
    ));
    let read: i64 = session.value(
        "SELECT count(*) FROM leaf_id_internal.leaf_read_tables(NULL) WHERE tag <> 'orders'",
    );
    assert_eq!(read, TABLES);
    // Where the tag is named, they are all read.
    assert_eq!(rows(&mut session, "leaf_check('x1')").len(), 1);
    let read: i64 = session.value("SELECT count(*) FROM leaf_id_internal.leaf_read_tables('x1')");
    assert_eq!(read, TABLES);
}

/// Ids just above the claimed ones, while others claim more: after the call, only ids above them
/// are issued.
#[test]
fn under_load_ids_go_on_above_once_the_call_is_over() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "SELECT leaf_tag_create('t', step => 10, max_step => 500);
         CREATE TABLE explicit (id bigint DEFAULT leaf_segment_next('t'))",
    );
    let (drawn, syncs) = in_threads_until(
        8,
        |i, done| {
            let mut session = server.session();
            let mut calls = Vec::new();
            while !done.load(Ordering::Relaxed) {
                let n = 1 + i32::try_from(i).unwrap() * 5;
                calls.push(Call::make(|| session.take("t", n)));
            }
            calls
        },
        || {
            let mut random = random();
            let mut session = server.session();
            let sync = |_| {
                let ahead: i64 = random.random_range(0..2000);
                Call::make(|| {
                    let id = session.value(&format!(
                        "INSERT INTO explicit SELECT max_id + {ahead} FROM leaf_id.leaf_alloc RETURNING id"
                    ));
                    session.run("SELECT leaf_sync()");
                    vec![id]
                })
            };
            (0..60).map(sync).collect::<Vec<_>>()
        },
    );
    let calls = drawn.into_iter().flatten().chain(syncs);
    assert_in_order(calls.collect());
}
