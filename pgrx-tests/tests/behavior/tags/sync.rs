//! Would catch: an id that is in a table already and comes again after `leaf_sync()`; a tag that
//! it lowers, or whose cache it drops without need; and a column that it passes over without a
//! word.

use std::sync::atomic::Ordering;

use leaf_id_tests::{
    Call, Fleet, Server, Session, assert_in_order, assert_issued_once, in_threads,
    in_threads_until, random, timed,
};
use rand::RngExt;

/// What was done, or would be, as one line a row.
pub fn rows(session: &mut Session, call: &str) -> Vec<String> {
    session.column(&format!(
        "SELECT concat_ws(' ', tag, relation::text, column_name, max_in_column, next_before, next_after, action,
             '[' || detail || ']') FROM {call}"
    ))
}

/// Checks that both say the same, and that nothing is left to do.
#[track_caller]
fn syncs(session: &mut Session, expected: &[&str]) {
    assert_eq!(rows(session, "leaf_check()"), expected);
    assert_eq!(rows(session, "leaf_sync()"), expected);
    let left: i64 =
        session.value("SELECT count(*) FROM leaf_check() WHERE action IN ('create', 'raise')");
    assert_eq!(left, 0);
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
fn a_missing_tag_is_created_above_the_column() {
    let (_server, mut session) = server_with_orders();
    session.run(
        "CREATE TABLE parcels (id integer PRIMARY KEY DEFAULT leaf_segment_next('parcels'));
         CREATE TABLE boxes (id smallint DEFAULT leaf_segment_next('boxes'));
         INSERT INTO parcels VALUES (41), (7); INSERT INTO boxes VALUES (-3), (NULL)",
    );
    syncs(
        &mut session,
        &[
            "boxes boxes id -3 1 create",
            "orders orders id 1 1 none",
            "parcels parcels id 41 42 create",
        ],
    );
    assert_eq!(session.next("parcels"), 42);
    assert_eq!(session.next("boxes"), 1);
    let ends: Vec<i64> =
        session.column("SELECT max_value FROM leaf_id.leaf_alloc ORDER BY biz_tag COLLATE \"C\"");
    assert_eq!(ends, [32767, i64::MAX - 1, 2_147_483_647]);
}

/// Fixtures: what setval is for where there is a sequence.
#[test]
fn an_id_inside_the_cached_segment_does_not_come_again() {
    let (server, mut session) = server_with_orders();
    let mut other = server.session();
    session.run("INSERT INTO orders SELECT FROM generate_series(1, 3)");
    assert_eq!(other.next("orders"), 4);
    session.run("INSERT INTO orders VALUES (50)");
    assert_eq!(
        rows(&mut session, "leaf_sync('orders')"),
        ["orders orders id 50 5 102 raise"]
    );
    assert_eq!((other.next("orders"), session.next("orders")), (102, 103));
    // Far above what was claimed.
    session.run("INSERT INTO orders VALUES (5000)");
    assert_eq!(
        rows(&mut session, "leaf_sync()"),
        ["orders orders id 5000 104 5001 raise"]
    );
    assert_eq!(other.next("orders"), 5001);
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
    // Under load, with ids that the tag itself has issued, nothing is dropped.
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
    // A claim may be on its way with nothing cached.
    assert!(raised < 25, "{raised} of 50 calls");
    if raised == 0 {
        assert_eq!(session.figure("orders", "ids_lost"), 0);
    }
    assert!(session.next("orders") > 1061);
}

/// Saved by the launcher, and given back by the next one.
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

#[test]
fn in_the_transaction_of_a_migration() {
    let (server, mut session) = server_with_orders();
    session.run(
        "BEGIN; CREATE TABLE new (id bigint PRIMARY KEY DEFAULT leaf_segment_next('new'));
         INSERT INTO new VALUES (7)",
    );
    assert_eq!(
        rows(&mut session, "leaf_sync('new')"),
        ["new new id 7 8 create"]
    );
    assert_eq!(
        session.ids("INSERT INTO new DEFAULT VALUES RETURNING id"),
        [8]
    );
    session.run("INSERT INTO new VALUES (20)");
    assert_eq!(
        rows(&mut session, "leaf_sync('new')"),
        ["new new id 20 9 21 raise"]
    );
    // One that is there before, and a second call in the transaction.
    session.run("INSERT INTO orders VALUES (30)");
    assert_eq!(session.next("orders"), 1);
    assert_eq!(
        rows(&mut session, "leaf_sync('orders')"),
        ["orders orders id 30 2 102 raise"]
    );
    assert_eq!(
        rows(&mut session, "leaf_sync('orders')"),
        ["orders orders id 30 102 102 none"]
    );
    session.run("COMMIT");
    assert_eq!(server.session().next("new"), 21);
    assert_eq!(server.session().next("orders"), 102);
    // Rolled back, nothing has happened.
    session.run("BEGIN; INSERT INTO orders VALUES (9000); SELECT leaf_sync(); ROLLBACK");
    assert_eq!(session.next("orders"), 103);
}

/// However the default is written down.
#[test]
fn tags_are_read_from_defaults_of_all_forms() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "CREATE SCHEMA \"Sales and ''more\";
         CREATE DOMAIN key AS bigint CHECK (value > 0);
         CREATE DOMAIN own AS bigint DEFAULT leaf_segment_next('of a domain');
         CREATE TABLE \"Sales and ''more\".\"T 1\" (\"I d\" bigint DEFAULT leaf_segment_next('it''s \"one\"'));
         CREATE TABLE t2 (id bigint DEFAULT leaf_segment_next(E'back\\\\slash ''and\\nline'));
         CREATE TABLE t3 (id int DEFAULT leaf_segment_next('cast'::varchar)::int);
         CREATE TABLE t4 (id key DEFAULT leaf_segment_next('domain'::name));
         CREATE TABLE t5 (id own);
         CREATE TABLE t6 (id bigint DEFAULT public.leaf_segment_next('ünïcödé'));
         CREATE TABLE t7 (id bigint DEFAULT leaf_segment_next('leaf_segment_next(''x''::text)'));
         CREATE TABLE u1 (id bigint DEFAULT 1000 + leaf_segment_next('computed'));
         CREATE TABLE u2 (id bigint DEFAULT leaf_segment_next('a' || current_user));
         CREATE TABLE u3 (id text DEFAULT leaf_segment_next('text'));
         CREATE TABLE u4 (id bigint DEFAULT (leaf_segment_next_range('range', 1)).first_id);
         CREATE TABLE other (id bigint DEFAULT leaf_snowflake_next(), n int DEFAULT 3)",
    );
    let created: Vec<String> = session
        .column("SELECT tag FROM leaf_sync() WHERE action = 'create' ORDER BY tag COLLATE \"C\"");
    assert_eq!(
        created,
        [
            "back\\slash 'and\nline",
            "cast",
            "domain",
            "it's \"one\"",
            "leaf_segment_next('x'::text)",
            "of a domain",
            "ünïcödé",
        ]
    );
    for table in [
        "\"Sales and ''more\".\"T 1\"",
        "t2",
        "t3",
        "t4",
        "t5",
        "t6",
        "t7",
    ] {
        session.run(&format!("INSERT INTO {table} DEFAULT VALUES"));
    }
    let told: Vec<String> = session.column(
        "SELECT concat_ws(': ', relation, tag, detail) FROM leaf_sync() WHERE action = 'skip' ORDER BY relation::text",
    );
    assert_eq!(told.len(), 4, "{told:#?}");
    assert!(
        told[0].starts_with("u1: its default is not just a call"),
        "{told:#?}"
    );
    assert!(
        told[1].starts_with("u2: its default is not just a call"),
        "{told:#?}"
    );
    assert_eq!(told[2], "u3: text: its values are not integers");
    assert!(
        told[3].starts_with("u4: its default is not just a call"),
        "{told:#?}"
    );
    // Whatever the session's settings.
    session.run("SET standard_conforming_strings = off; SET search_path = pg_catalog");
    let left: i64 =
        session.value("SELECT count(*) FROM public.leaf_check() WHERE action = 'create'");
    assert_eq!(left, 0);
}

#[test]
fn partitions_and_children_are_read() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "CREATE TABLE p (id bigint DEFAULT leaf_segment_next('p'), k int) PARTITION BY LIST (k);
         CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
         CREATE TABLE p2 PARTITION OF p FOR VALUES IN (2) PARTITION BY LIST (id);
         CREATE TABLE p2a PARTITION OF p2 DEFAULT;
         CREATE TABLE attached (k int, gone int, id bigint); ALTER TABLE attached DROP gone;
         ALTER TABLE p ATTACH PARTITION attached FOR VALUES IN (3);
         INSERT INTO p VALUES (5, 1), (9, 2), (12, 3);
         CREATE TABLE parent (id bigint DEFAULT leaf_segment_next('parent'));
         CREATE TABLE child (id bigint DEFAULT leaf_segment_next('child')) INHERITS (parent);
         INSERT INTO parent VALUES (3); INSERT INTO child VALUES (8);
         CREATE TABLE empty (id bigint DEFAULT leaf_segment_next('empty')) PARTITION BY RANGE (id)",
    );
    syncs(
        &mut session,
        &[
            "child child id 8 9 create",
            "empty empty id 1 create",
            "p p id 12 13 create",
            "parent parent id 8 9 create",
        ],
    );
}

/// By an index, in all its forms, or without one.
#[test]
fn the_maximum_is_found_whatever_the_index() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    for (number, index) in [
        "",
        "CREATE UNIQUE INDEX ON t (id)",
        "CREATE INDEX ON t (id DESC)",
        "CREATE INDEX ON t (id NULLS FIRST)",
        "CREATE INDEX ON t (id DESC NULLS LAST, n)",
        "CREATE INDEX ON t (n, id)",
        "CREATE INDEX ON t (id) WHERE id < 10",
        "CREATE INDEX ON t USING hash (id)",
        "CREATE INDEX ON t ((id + 1))",
    ]
    .iter()
    .enumerate()
    {
        for kind in ["smallint", "integer", "bigint"] {
            session.run(&format!(
                "DROP TABLE IF EXISTS t;
                 CREATE TABLE t (n int, id {kind} DEFAULT leaf_segment_next('t'));
                 INSERT INTO t SELECT i, i FROM generate_series(-50, 200) i; INSERT INTO t VALUES (1, NULL), (2, NULL);
                 INSERT INTO t VALUES (0, 300); {index}; DELETE FROM t WHERE id = 300",
            ));
            assert_eq!(
                session.value::<i64>("SELECT max_in_column FROM leaf_check('t')"),
                200,
                "{number} {index} {kind}"
            );
            session.run("DELETE FROM t WHERE id > -50");
            assert_eq!(
                session.value::<i64>("SELECT max_in_column FROM leaf_check('t')"),
                -50,
                "{number} {index} {kind}"
            );
        }
    }
    session.run("DROP TABLE t; CREATE TABLE t (n int); INSERT INTO t VALUES (1)");
    // A value that stands in no row.
    session.run("ALTER TABLE t ADD id bigint DEFAULT 77; ALTER TABLE t ALTER id SET DEFAULT leaf_segment_next('t')");
    assert_eq!(
        session.value::<i64>("SELECT max_in_column FROM leaf_check('t')"),
        77
    );
}

#[test]
fn several_columns_of_one_tag() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "CREATE TABLE a (id bigint DEFAULT leaf_segment_next('both'));
         CREATE TABLE b (id bigint DEFAULT leaf_segment_next('both'), n int DEFAULT leaf_segment_next('both'));
         INSERT INTO a VALUES (5); INSERT INTO b VALUES (70, 6)",
    );
    syncs(
        &mut session,
        &[
            "both a id 5 71 create",
            "both b id 70 71 create",
            "both b n 6 71 create",
        ],
    );
    session.run("DELETE FROM b; INSERT INTO a VALUES (300)");
    syncs(
        &mut session,
        &[
            "both a id 300 71 301 raise",
            "both b id 71 301 raise",
            "both b n 71 301 raise",
        ],
    );
}

#[test]
fn the_end_of_a_tag_is_told_and_never_passed() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "SELECT leaf_tag_create('small', max_value => 1000, step => 10);
         SELECT leaf_tag_create('full', max_value => 100, start => 101);
         SELECT leaf_tag_create('plenty', start => 1000);
         CREATE TABLE small (id bigint DEFAULT leaf_segment_next('small'));
         CREATE TABLE wide (id smallint DEFAULT leaf_segment_next('wide'));
         INSERT INTO wide VALUES (26300);
         INSERT INTO small VALUES (850)",
    );
    assert_eq!(
        rows(&mut session, "leaf_sync()"),
        [
            "small small id 850 1 851 raise [80 % of max_value is used]",
            "wide wide id 26300 26301 create [80 % of max_value is used]",
            "full 101 101 none [the end of max_value is reached]",
        ]
    );
    session.run("INSERT INTO small VALUES (899)");
    assert_eq!(
        rows(&mut session, "leaf_sync('small')"),
        ["small small id 899 851 900 raise [90 % of max_value is used]"]
    );
    session.run("INSERT INTO small VALUES (1000)");
    assert_eq!(
        rows(&mut session, "leaf_sync('small')"),
        ["small small id 1000 900 900 skip [max_value (1000) leaves no id above 1000]"]
    );
    session.run(
        "UPDATE leaf_id.leaf_alloc SET max_value = 100000 WHERE biz_tag IN ('small', 'wide');
         INSERT INTO wide VALUES (32000)",
    );
    assert_eq!(
        rows(&mut session, "leaf_sync('wide')"),
        ["wide wide id 32000 26301 32001 raise [95 % of the column's type is used]"]
    );
    session.run("INSERT INTO small VALUES (9223372036854775807)");
    assert_eq!(
        rows(&mut session, "leaf_check('small')"),
        [
            "small small id 9223372036854775807 900 900 skip [max_value (100000) leaves no id above 9223372036854775807]"
        ]
    );
    session.run("SELECT leaf_tag_drop('small')");
    assert_eq!(
        rows(&mut session, "leaf_sync('small')"),
        [
            "small small id 9223372036854775807 skip [no id above 9223372036854775807 is left in the type of the column]"
        ]
    );
    assert_eq!(
        rows(&mut session, "leaf_check('plenty')"),
        ["plenty 1000 1000 none [no column's default issues its ids]"]
    );
    session.fails("SELECT leaf_sync('nope')").is("42704");
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

/// Which ids of it are in use is not for this server to say.
#[test]
fn a_sourced_tag_is_raised_where_it_comes_from() {
    let fleet = Fleet::new(1, &[]);
    fleet.create_tag("t", 100, 1000);
    let mut session = fleet.members[0].session();
    session.run("CREATE TABLE t (id bigint DEFAULT leaf_segment_next('t'))");
    session.run("INSERT INTO t DEFAULT VALUES");
    assert_eq!(rows(&mut session, "leaf_sync()"), ["t t id 1 2 2 none"]);
    session.run("INSERT INTO t VALUES (5000)");
    let told = rows(&mut session, "leaf_sync()");
    assert!(
        told.len() == 1
            && told[0].starts_with("t t id 5000 2 2 skip [its ids come from server")
            && told[0].ends_with("raise max_id to 5001 there, and then here]"),
        "{told:#?}"
    );
    for mut server in [fleet.central.session(), fleet.members[0].session()] {
        server.run("UPDATE leaf_id.leaf_alloc SET max_id = 5001");
    }
    assert_eq!(session.next("t"), 5001);
    assert_eq!(
        rows(&mut session, "leaf_sync()"),
        ["t t id 5000 5002 5002 none"]
    );
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

/// As many as a big database has.
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

/// Ids just above what is claimed, while others have more claimed: once the call is over, only
/// ids above them come.
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
