//! Would catch: duplicates between the workers of a parallel query, issuing functions that no
//! longer run in parallel workers, and workers that use a tag changed by their leader.

use leaf_id_tests::{Server, Session, assert_issued_once};

/// A server with tags, a table of 200,000 rows, and a session that gets parallel plans.
fn server_and_parallel_session() -> (Server, Session) {
    let server =
        Server::with_leaf_id(&[("max_worker_processes", "16"), ("leaf_id.worker_id", "1")]);
    let mut session = server.session();
    session.run(
        "SELECT leaf_tag_create('t', step => 10);
         CREATE TABLE big AS SELECT i FROM generate_series(1, 200000) i;
         ANALYZE big;
         SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
         SET min_parallel_table_scan_size = 0; SET max_parallel_workers_per_gather = 4",
    );
    (server, session)
}

fn force(session: &mut Session) {
    let name = if session.major() < 16 {
        "force_parallel_mode"
    } else {
        "debug_parallel_query"
    };
    session.run(&format!("SET {name} = on"));
}

fn sorted(mut ids: Vec<i64>) -> Vec<i64> {
    ids.sort_unstable();
    ids
}

#[test]
fn workers_share_the_tag() {
    let (server, mut session) = server_and_parallel_session();
    for call in ["leaf_segment_next('t')", "leaf_snowflake_next()"] {
        let query = format!("SELECT {call} FROM big");
        let plan = session
            .column::<String>(&format!("EXPLAIN (VERBOSE) {query}"))
            .join("\n");
        // Below the Gather; otherwise only the leader would issue.
        let gather = plan
            .find("Gather")
            .unwrap_or_else(|| panic!("no parallel plan:\n{plan}"));
        assert!(
            plan.rfind(call.split('(').next().unwrap()).unwrap() > gather,
            "{plan}"
        );
        let ids = session.ids(&query);
        assert_eq!(ids.len(), 200_000);
        assert_issued_once(&[sorted(ids)]);
    }
    session.run("CREATE TABLE copied AS SELECT leaf_segment_next('t') AS id FROM big");
    session.run("ALTER TABLE copied ADD PRIMARY KEY (id)");
    let last: i64 = session.value("SELECT max(id) FROM copied");
    assert!(server.session().next("t") > 0 && last >= 400_000);
}

#[test]
fn forced_parallel_mode_issues_as_ever() {
    let (_server, mut session) = server_and_parallel_session();
    force(&mut session);
    let mut ids = Vec::new();
    for _ in 0..20 {
        ids.extend(session.ids("SELECT leaf_segment_next('t')"));
        ids.extend(session.ids("SELECT leaf_segment_next_batch('t', 15)"));
        ids.extend(session.ids("SELECT first_id FROM leaf_segment_next_range('t', 15)"));
    }
    assert_issued_once(&[ids]);
    // The SQLSTATE and fields of errors are passed on by the worker.
    session
        .fails("SELECT leaf_segment_next('nope')")
        .is("42704")
        .hints("leaf_tag_create");
}

#[test]
fn a_tag_that_the_transaction_changed_is_refused() {
    let (_server, mut session) = server_and_parallel_session();
    force(&mut session);
    for edit in [
        "UPDATE leaf_id.leaf_alloc SET max_id = max_id + 5000 WHERE biz_tag = 't'",
        "SELECT leaf_tag_drop('t')",
        "SET LOCAL leaf_id.allow_truncate = on; TRUNCATE leaf_id.leaf_alloc",
        "SELECT leaf_tag_drop('t'); SELECT leaf_tag_create('t')",
    ] {
        println!("{edit}");
        session.run("BEGIN");
        session.run(edit);
        session.run("SAVEPOINT s");
        session.fails("SELECT leaf_segment_next('t')").is("0A000");
        session.run("ROLLBACK TO s");
        session
            .fails("SELECT leaf_segment_next('t') FROM big")
            .is("0A000");
        session.run("ROLLBACK");
        assert_issued_once(&[session.ids("SELECT leaf_segment_next('t')")]);
    }
    session.run("BEGIN; SELECT leaf_tag_create('own')");
    session.fails("SELECT leaf_segment_next('own')").is("0A000");
    session.run("ROLLBACK");
}

/// Before: a TRUNCATE that was rolled back took the mark of an edit that was not, and workers took from
/// the old cache.
#[test]
fn what_a_savepoint_takes_back_leaves_edits_before_it() {
    let (_server, mut session) = server_and_parallel_session();
    force(&mut session);
    let truncate = "SET LOCAL leaf_id.allow_truncate = on; TRUNCATE leaf_id.leaf_alloc";
    let reset = "SELECT leaf_tag_reset('t', 1000)";
    for (before, after) in [
        (reset, truncate),
        (truncate, truncate),
        (truncate, "SELECT leaf_tag_create('t')"),
        (reset, "SELECT leaf_tag_drop('t')"),
    ] {
        println!("{before}, then {after}");
        session.ids("SELECT leaf_segment_next('t')");
        session.run("BEGIN");
        session.run(before);
        session.run("SAVEPOINT s");
        session.run(after);
        session.run("ROLLBACK TO s");
        session.fails("SELECT leaf_segment_next('t')").is("0A000");
        session.run("ROLLBACK");
    }
}

#[test]
fn another_tag_is_usable_while_one_is_changed() {
    let (_server, mut session) = server_and_parallel_session();
    session.create_tag("u");
    force(&mut session);
    session.run("BEGIN; UPDATE leaf_id.leaf_alloc SET max_id = 5000 WHERE biz_tag = 't'");
    assert_eq!(session.ids("SELECT leaf_segment_next('u')"), [1]);
    session.run("COMMIT");
    assert_eq!(session.ids("SELECT leaf_segment_next('t')"), [5000]);
}
