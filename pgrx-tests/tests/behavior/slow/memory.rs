//! Would catch: an allocation that fails and ends more than its process, repeats an id, or leaves a
//! lock behind. The first 200 allocations of each function fail, alone and with all that follow, in a
//! session that begins and in one that has made the call before; and those of each worker, from its
//! start. Every tenth of them by default, and each one with `LEAF_ID_LONG`.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;

use leaf_id_tests::{
    CENTRAL, Server, Starved, assert_issued_once, in_threads, lease_message, lease_query,
    wait_until,
};

const LIMIT: Duration = Duration::from_secs(60);
const ALLOCATIONS: i32 = 200;
const THREADS: usize = 2;
/// Of the postmaster, when a process has crashed.
pub(super) const CRASH: &str = "terminating any other active";

pub(super) const SETUP: &str = "
    SELECT leaf_tag_create(t) FROM unnest('{t, u, orders, granted, reset, r1}'::text[]) t;
    SELECT leaf_id.leaf_opaque_create('o');
    SELECT leaf_id.leaf_gapless_create('g');
    CREATE ROLE app;
    CREATE TABLE orders (id bigint DEFAULT leaf_segment_next('orders'), n int);
    CREATE TABLE events (id bigint DEFAULT leaf_snowflake_next(), n int);
    CREATE TABLE numbered (id serial, n int);
    CREATE TABLE codes (code text DEFAULT 'C-' || leaf_segment_next('t'))";

/// Statements that return ids, and what these are unique within.
pub(super) const IDS: [(&str, &str); 10] = [
    ("t", "SELECT leaf_segment_next('t')"),
    ("t", "SELECT leaf_segment_next_batch('t', 3)"),
    (
        "t",
        "SELECT unnest(ARRAY[r.first_id, r.last_id]) FROM leaf_segment_next_range('t', 2) r",
    ),
    (
        "u",
        "SELECT leaf_segment_next(t) FROM (VALUES ('u'), ('u')) v (t)",
    ),
    ("orders", "INSERT INTO orders DEFAULT VALUES RETURNING id"),
    ("snowflake", "SELECT leaf_snowflake_next()"),
    ("snowflake", "SELECT leaf_snowflake_next_batch(3)"),
    ("t", "SELECT leaf_ordered_next('t')"),
    ("o", "SELECT leaf_opaque_next('o')"),
    ("g", "SELECT leaf_id.leaf_gapless_next('g')"),
];

/// Other statements. `{n}` is another number in each call.
pub(super) const STATEMENTS: &[&str] = &[
    "SELECT leaf_snowflake_decode(2124058834992369739), leaf_snowflake_decode(1, 0, '41/10/12'),
         leaf_snowflake_time(1), leaf_snowflake_time(1, 0), leaf_snowflake_min(now()),
         leaf_snowflake_min(now(), 0), leaf_snowflake_compose(now(), 1, 1),
         leaf_snowflake_compose(now(), 1, 1, 0, '41/10/12')",
    "SELECT leaf_parse(leaf_format(n, p), p) FROM unnest(ARRAY['A-{N:6}', '{UUID}']) WITH ORDINALITY v (p, n)",
    "SELECT leaf_ordered_watermark('t')",
    "SELECT leaf_id.leaf_opaque_decode('o', leaf_id.leaf_opaque_encode('o', 5))",
    "SELECT leaf_id.leaf_opaque_key('o'), leaf_id_internal.leaf_has_key('o')",
    "BEGIN; DELETE FROM leaf_id.leaf_opaque_key; ROLLBACK",
    "BEGIN; SELECT leaf_id.leaf_opaque_create('o{n}'); SELECT leaf_tag_drop('o{n}', forget => true); COMMIT",
    "BEGIN; SELECT leaf_id.leaf_gapless_create('g{n}'); SELECT leaf_id.leaf_gapless_next('g{n}');
         SELECT leaf_id.leaf_gapless_drop('g{n}', forget => true); COMMIT",
    "SELECT leaf_tag_create('n{n}')",
    "BEGIN; SELECT leaf_tag_create('n{n}'); SELECT leaf_segment_next('n{n}'); SAVEPOINT s;
         UPDATE leaf_id.leaf_alloc SET max_id = max_id + 5000 WHERE biz_tag = 'n{n}';
         SELECT leaf_segment_next('n{n}'); ROLLBACK TO s; COMMIT",
    "BEGIN; SELECT leaf_tag_create('n{n}'); SELECT leaf_segment_next('n{n}'); ROLLBACK",
    "SELECT leaf_tag_reset('reset', 1)",
    "BEGIN; SELECT leaf_tag_create('n{n}'); SELECT leaf_tag_drop('n{n}', forget => true); COMMIT",
    "SELECT leaf_tag_grant('granted', 'app'); SELECT leaf_tag_revoke('granted', 'app')",
    "UPDATE leaf_id.leaf_alloc SET description = 'x' WHERE biz_tag IN ('t', 'u')",
    "INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id) VALUES ('i{n}', 7)",
    "BEGIN; SET LOCAL leaf_id.allow_truncate = on; TRUNCATE leaf_id.leaf_alloc; ROLLBACK",
    "BEGIN; UPDATE leaf_id.leaf_alloc SET biz_tag = 'r{n}' WHERE biz_tag LIKE 'r%' AND biz_tag <> 'reset'; COMMIT",
    "SELECT * FROM leaf_id.tags; SELECT * FROM leaf_id.tags_detail",
    "SELECT * FROM leaf_id.problems; SELECT * FROM leaf_id.server; SELECT * FROM leaf_id.fleet",
    "SELECT * FROM leaf_id_internal.leaf_central_connections()",
    "SELECT * FROM leaf_check()",
    "BEGIN; INSERT INTO orders VALUES (1000000000); SELECT * FROM leaf_sync(); ROLLBACK; SELECT * FROM leaf_sync('orders', 'orders', 'id')",
    "CALL leaf_adopt_all('leaf_id')",
    "BEGIN; SELECT leaf_adopt('numbered', 'id'); INSERT INTO numbered (n) VALUES (1);
         SELECT leaf_release('numbered', 'id'); ROLLBACK",
    "COPY orders (n) FROM PROGRAM 'seq 5'",
    "COPY events (n) FROM PROGRAM 'seq 5'",
    "SELECT token FROM ts_parse('leaf_id.leaf_claim', '{\"version\": 1, \"tag\": \"t\", \"n\": 10}')",
    "BEGIN; SELECT leaf_id.leaf_worker_set_aside(6, now()); UPDATE leaf_id.leaf_registry SET max_skew_ms = max_skew_ms; ROLLBACK",
    "SELECT leaf_id.leaf_worker_retire(0), leaf_id.leaf_worker_retire(0, false)",
    "SELECT leaf_id_internal.leaf_skip_ids('t', leaf_segment_next('t') + 5), leaf_id_internal.leaf_function_name('leaf_sync'), leaf_id_internal.leaf_mark('t')",
    "SELECT leaf_id_internal.leaf_gapless_raise('g', 1, 'h')",
    REFUSED[0].0,
    REFUSED[1].0,
    REFUSED[2].0,
];

/// Leases a worker id to a node of this name.
pub(super) fn lease(node: &str) -> String {
    let now = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";
    lease_query(&lease_message(&format!(
        "4711, '{node}', NULL, 2, NULL, NULL, NULL, {now}, 1288834974657, '41/10/12'"
    )))
}

/// Statements that fail with memory, too.
const REFUSED: [(&str, &str); 3] = [
    ("SELECT leaf_id.leaf_snowflake_reset('2020-01-01')", "55000"),
    ("SELECT leaf_segment_next('missing')", "42704"),
    ("SELECT leaf_segment_next(repeat('x', 5000))", "22023"),
];

/// Functions in C that the statistics do not count: called by the planner, the executor or the
/// parser for texts, or always refused.
const NOT_COUNTED: [&str; 8] = [
    "leaf_claim",
    "leaf_end_parse",
    "leaf_next_support",
    "leaf_next_token",
    "leaf_snowflake_reset",
    "leaf_token_types",
    "leaf_watermark_support",
    "leaf_worker_lease",
];

fn is_long() -> bool {
    std::env::var_os("LEAF_ID_LONG").is_some()
}

/// The allocations that fail. `start`: 0 to 9, another one for each call.
fn allocations(start: usize) -> impl Iterator<Item = i32> {
    let (start, step) = if is_long() { (0, 1) } else { (start % 10, 10) };
    (1..=ALLOCATIONS).skip(start).step_by(step)
}

/// Runs a statement with its first allocations failing. Returns the ids, if it returns any.
fn starve(server: &Server, call: usize, statement: &str) -> Vec<i64> {
    let memory = server.memory();
    let mut ids = Vec::new();
    let (mut errors, mut ended) = (0, 0);
    // For the statistics, too: a session that ends without memory reports none.
    let healthy = server
        .session()
        .try_run(&statement.replace("{n}", &call.to_string()));
    let refused = REFUSED.iter().find(|(text, _)| *text == statement);
    match (healthy, refused) {
        (Ok(()), None) => {}
        (Err(failure), Some((_, state))) => drop(failure.is(state)),
        (other, _) => panic!("{other:?}: {statement}"),
    }
    for (lasting, warm) in [(false, false), (true, false), (false, true), (true, true)] {
        for nth in allocations(call) {
            let number = format!("{call}_{nth}_{lasting}_{warm}");
            let mut session = server.session();
            // What is in its caches now needs no memory below.
            if warm {
                let _ = session.try_run(&statement.replace("{n}", &format!("{number}_warm")));
            }
            let statement = statement.replace("{n}", &number);
            memory.fail(Starved::Pid(session.pid()), nth, lasting);
            let result = if call < IDS.len() {
                session.try_column(&statement)
            } else {
                session.try_run(&statement).map(|()| Vec::<i64>::new())
            };
            let is_over = !memory.heal();
            match result {
                Ok(issued) => ids.extend(issued),
                Err(_) => errors += 1,
            }
            ended += i32::from(session.try_run("ROLLBACK; SELECT 1").is_err());
            if is_over {
                break;
            }
        }
    }
    println!("{errors} errors, {ended} sessions ended: {statement}");
    // No lock is left.
    let mut session = server.session();
    session.run("SET lock_timeout = '10s'");
    session.run("BEGIN; LOCK leaf_id.leaf_alloc, leaf_id.leaf_gapless; COMMIT");
    session.next("t");
    session.run("SELECT leaf_snowflake_next()");
    assert!(!server.log().contains(CRASH), "{statement}");
    ids
}

fn with_memory() -> Server {
    let server = Server::with_memory(&[("leaf_id.worker_id", "1"), ("track_functions", "all")]);
    if is_long() {
        server.allow(Duration::from_secs(3600));
    }
    // PL/pgSQL's own, where it cannot be loaded.
    server.expect_internal_errors();
    let mut session = server.session();
    session.run(SETUP);
    session.run(&lease("first"));
    session.run("SELECT leaf_snowflake_next()");
    server
}

/// Functions in C.
const FUNCTIONS: &str = "SELECT DISTINCT p.proname::text FROM pg_proc p
    JOIN pg_depend d ON d.objid = p.oid AND d.classid = 'pg_proc'::regclass AND d.deptype = 'e'
    JOIN pg_language l ON l.oid = p.prolang WHERE l.lanname = 'c' AND p.proname LIKE 'leaf%' ORDER BY 1";

/// PostgreSQL's own assertions do not hold after its own allocations have failed: in its statistics,
/// and in the abort of a transaction.
fn has_assertions() -> bool {
    let has = Server::start(&[])
        .session()
        .value::<String>("SHOW debug_assertions")
        == "on";
    if has {
        println!("SKIPPED: PostgreSQL has assertions");
    }
    has
}

#[test]
fn an_allocation_that_fails_ends_no_other_process() {
    if has_assertions() {
        return;
    }
    let statements = IDS.iter().map(|(_, statement)| *statement);
    let lease = lease("n{n}");
    let others = STATEMENTS.iter().copied().chain([lease.as_str()]);
    let calls = Mutex::new(statements.chain(others).enumerate());
    let called = in_threads(THREADS, |_| {
        let server = with_memory();
        let mut ids: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
        loop {
            let Some((call, statement)) = calls.lock().unwrap().next() else {
                break;
            };
            let issued = starve(&server, call, statement);
            if let Some((counter, _)) = IDS.get(call) {
                ids.entry(counter).or_default().extend(issued);
            }
        }
        for (counter, mut ids) in ids {
            println!("{} ids of {counter}", ids.len());
            ids.sort_unstable();
            assert_issued_once([ids]);
        }
        let mut session = server.session();
        session.run("SELECT pg_stat_force_next_flush()");
        session
            .column::<String>("SELECT funcname::text FROM pg_stat_user_functions WHERE calls > 0")
    });
    let called = called.concat();
    let server = Server::with_leaf_id(&[]);
    let mut others: Vec<String> = server.session().column(FUNCTIONS);
    others.retain(|name| !called.contains(name));
    assert_eq!(others, NOT_COUNTED);
}

#[test]
fn a_worker_without_memory_ends_alone_and_comes_back() {
    let server = with_memory();
    let memory = server.memory();
    let mut session = server.session();
    session.be_patient();
    let mut ids = Vec::new();
    for (i, name) in ["allocator", "reserve worker", "launcher"]
        .into_iter()
        .enumerate()
    {
        let mut failed = 0;
        let title = format!("leaf_id {name}");
        for nth in allocations(i) {
            let before = server.worker(&title);
            memory.fail(Starved::Worker(&title), nth, false);
            if let Some(pid) = before {
                server.terminate(pid);
            }
            let tag = format!("{name} {nth}");
            session.run(&format!("SELECT leaf_tag_create('{tag}', step => 10)"));
            // The allocator starts on demand, the others by themselves.
            ids.push(session.next("t"));
            // A launcher that ends saves what is cached, and the next one, starved, may lose that.
            let first = session.next(&tag);
            assert!(first == 1 || first == 11 && name == "launcher", "{first}");
            wait_until(LIMIT, name, || {
                let now = server.worker(&title);
                now.is_some() && now != before
            });
            let is_over = !memory.heal();
            session.run("SELECT leaf_snowflake_next()");
            if is_over {
                break;
            }
            failed += 1;
        }
        println!("{failed} allocations of the {name} failed");
        assert!(failed > 0);
    }
    assert_issued_once([ids]);
    assert!(!server.log().contains(CRASH));
}

/// A server that leases its worker id from itself, and whose database "member" sources a tag from
/// database "postgres".
#[test]
fn a_worker_that_talks_to_a_server_ends_alone_and_comes_back() {
    let server = Server::with_memory(&[
        ("leaf_id.worker_id", "auto"),
        ("leaf_id.worker_registry", "postgres"),
    ]);
    server.expect_internal_errors();
    server.admit_members();
    let memory = server.memory();
    let mut central = server.session();
    central.run("SELECT leaf_tag_create('t', step => 1, max_step => 1)");
    central.run("CREATE DATABASE member");
    let mut member = server.session_in("member");
    member.run("CREATE EXTENSION leaf_id; CREATE EXTENSION dblink");
    member.create_foreign_server(CENTRAL, &[server.dir()]);
    member.create_sourced_tag("t", 1, 1);
    member.be_patient();
    let mut ids = vec![member.next("t")];

    // An allocator, of either database, from the next claim on.
    let mut failed = 0;
    for nth in allocations(3) {
        memory.fail(Starved::Worker("leaf_id allocator"), nth, false);
        for _ in 0..3 {
            ids.push(member.next("t"));
        }
        if !memory.heal() {
            break;
        }
        failed += 1;
    }
    println!("{failed} allocations of an allocator failed");
    assert!(failed > 0);
    assert_issued_once([ids]);

    // The registrar, which asks for each lease and renewal.
    let leased =
        "SELECT coalesce(extract(epoch FROM max(lease_until)), 0)::float8 FROM leaf_id.server";
    let mut failed = 0;
    for nth in allocations(4) {
        let before: f64 = central.value(leased);
        memory.fail(Starved::Worker("leaf_id registrar"), nth, false);
        if let Some(launcher) = server.worker("leaf_id launcher") {
            server.terminate(launcher);
        }
        wait_until(LIMIT, "a registrar", || {
            memory.failed() || central.value::<f64>(leased) > before
        });
        let is_over = !memory.heal();
        wait_until(LIMIT, "a lease", || central.value::<f64>(leased) > before);
        central.run("SELECT leaf_snowflake_next()");
        if is_over {
            break;
        }
        failed += 1;
    }
    println!("{failed} allocations of the registrar failed");
    assert!(failed > 0);
    assert!(!server.log().contains(CRASH));
}
