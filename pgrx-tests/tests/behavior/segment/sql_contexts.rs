//! Would catch: ids that repeat, stop or come from the wrong tag depending on the SQL context of
//! the call, since caches live in statements, sessions and plans. Single-session behavior is tested
//! in sql/segment_contexts.sql.

use std::thread;
use std::time::Duration;

use leaf_id_tests::{Server, Session, assert_issued_once, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

/// A server with tags odd (from 1) and even (from 1,000,000), small steps, and a session.
fn server_and_session() -> (Server, Session) {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "SELECT leaf_tag_create('odd', step => 10);
         SELECT leaf_tag_create('even', step => 10, start => 1000000)",
    );
    (server, session)
}

/// Checks that ids at odd positions are of tag odd, and the others of tag even.
fn assert_alternating(ids: &[i64]) {
    assert!(!ids.is_empty());
    for (i, id) in ids.iter().enumerate() {
        assert_eq!(*id >= 1_000_000, i % 2 == 1, "{id} at {i}");
    }
    for tag in [0, 1] {
        let of_tag: Vec<_> = ids.iter().skip(tag).step_by(2).copied().collect();
        assert_issued_once(&[of_tag]);
    }
}

#[test]
fn a_prepared_statement_with_changing_tags() {
    let (_server, mut session) = server_and_session();
    for mode in ["auto", "force_generic_plan", "force_custom_plan"] {
        session.run(&format!("SET plan_cache_mode = {mode}"));
        let statement = session.prepare("SELECT leaf_segment_next($1)").unwrap();
        let ids: Vec<i64> = ["odd", "even"]
            .iter()
            .cycle()
            .take(60)
            .map(|tag| session.query_one(&statement, &[tag]).unwrap().get(0))
            .collect();
        assert_alternating(&ids);
    }
}

#[test]
fn cursors_of_two_sessions() {
    let (server, mut a) = server_and_session();
    let mut b = server.session();
    let mut ids = Vec::new();
    for session in [&mut a, &mut b] {
        session.run(
            "BEGIN; DECLARE c CURSOR FOR
                 SELECT leaf_segment_next('odd') FROM generate_series(1, 100)",
        );
    }
    for _ in 0..10 {
        ids.extend(a.ids("FETCH 3 FROM c"));
        ids.extend(b.ids("FETCH 3 FROM c"));
        // A rollback to a savepoint in between restores no ids.
        a.run("SAVEPOINT s");
        ids.extend(a.ids("FETCH 2 FROM c"));
        a.run("ROLLBACK TO s");
    }
    a.run("COMMIT");
    b.run("ROLLBACK");
    assert_eq!(ids.len(), 80);
    assert_issued_once(&[ids]);
}

#[test]
fn transactions_of_every_kind_may_call() {
    let (server, mut a) = server_and_session();
    let mut b = server.session();
    // First use of the tag, in a read-only transaction.
    a.run("BEGIN READ ONLY");
    let mut ids = a.take("odd", 50);
    a.run("COMMIT; BEGIN ISOLATION LEVEL SERIALIZABLE");
    b.run("BEGIN ISOLATION LEVEL SERIALIZABLE");
    for _ in 0..20 {
        ids.extend(a.take("odd", 5));
        ids.extend(b.take("odd", 5));
    }
    a.run("CREATE TABLE of_a AS SELECT leaf_segment_next('even') AS id");
    b.run("CREATE TABLE of_b AS SELECT leaf_segment_next('even') AS id");
    a.run("COMMIT");
    b.run("COMMIT");
    assert_issued_once(&[ids]);
    let (of_a, of_b) = (a.ids("SELECT id FROM of_a"), a.ids("SELECT id FROM of_b"));
    assert_issued_once(&[[of_a, of_b].concat()]);
}

#[test]
fn an_old_snapshot_can_use_a_newer_tag() {
    let (server, mut a) = server_and_session();
    let mut b = server.session();
    for level in [
        "REPEATABLE READ",
        "SERIALIZABLE",
        "REPEATABLE READ READ ONLY",
    ] {
        a.run(&format!("BEGIN ISOLATION LEVEL {level}"));
        assert_eq!(a.value::<i64>("SELECT count(*) FROM leaf_id.leaf_alloc"), 2);
        b.create_tag("new");
        assert_eq!(a.next("new"), 1);
        b.run("SELECT leaf_tag_reset('new', 500)");
        assert_eq!(a.next("new"), 500);
        b.run("SELECT leaf_tag_drop('new', forget => true)");
        a.fails("SELECT leaf_segment_next('new')").is("42704");
        a.run("ROLLBACK");
    }
}

#[test]
fn a_tag_is_created_while_others_ask_for_it() {
    let (server, mut session) = server_and_session();
    let ids = thread::scope(|scope| {
        let waiting: Vec<_> = (0..4)
            .map(|_| server.session())
            .map(|mut other| {
                scope.spawn(move || {
                    let mut ids = Vec::new();
                    wait_until(LIMIT, "the tag to come", || {
                        match other.try_take("late", 20) {
                            Ok(taken) => {
                                ids = taken;
                                true
                            }
                            Err(failure) => {
                                failure.is("42704");
                                false
                            }
                        }
                    });
                    ids
                })
            })
            .collect();
        session.run("BEGIN; SELECT leaf_tag_create('late', step => 10)");
        let mut all = vec![session.take("late", 35)];
        session.run("COMMIT");
        all.extend(waiting.into_iter().map(|thread| thread.join().unwrap()));
        all
    });
    assert_issued_once(&ids);
}

#[test]
fn pgbench_in_every_query_mode() {
    let (server, mut session) = server_and_session();
    session.run(
        "CREATE TABLE item (id bigint PRIMARY KEY DEFAULT leaf_segment_next('odd'), other bigint)",
    );
    let script = server.dir().join("insert.sql");
    std::fs::write(
        &script,
        "INSERT INTO item (other) VALUES (leaf_segment_next('even'));\n\
         INSERT INTO item (other) SELECT leaf_segment_next('even') FROM generate_series(1, 9);\n",
    )
    .unwrap();
    for mode in ["simple", "extended", "prepared"] {
        let script = script.to_str().unwrap();
        server.run(
            "pgbench",
            &[
                "-n", "-M", mode, "-c", "8", "-j", "2", "-t", "40", "-f", script, "postgres",
            ],
        );
    }
    let count = "SELECT count(DISTINCT other) FROM item";
    assert_eq!(session.value::<i64>(count), 3 * 8 * 40 * 10);
}
