//! Would catch: claims that visit each version that an old snapshot keeps; and, since they enter
//! versions in the primary key without checking it, two rows of one name.

use std::thread;
use std::time::Duration;

use leaf_id_tests::{Server, Session, assert_issued_once, wait_until};

const LIMIT: Duration = Duration::from_secs(30);

/// A session with an old snapshot.
fn old_snapshot(server: &Server) -> Session {
    let mut session = server.session();
    session.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class");
    session
}

/// Buffers that this process has accessed for our tables and their indexes.
fn accessed(session: &mut Session, tables: &[&str]) -> i64 {
    let tables = tables.join(",");
    session.run("SELECT pg_stat_force_next_flush()");
    session.value(&format!(
        "SELECT sum(pg_stat_get_blocks_fetched(c.oid))::bigint
         FROM unnest('{{{tables}}}'::regclass[]) t
         JOIN pg_index i ON i.indrelid = t
         JOIN pg_class c ON c.oid IN (i.indrelid, i.indexrelid)"
    ))
}

/// Buffers accessed for 200 calls.
fn cost(session: &mut Session, tables: &[&str], call: &str) -> i64 {
    let before = accessed(session, tables);
    for _ in 0..200 {
        session.run(call);
    }
    accessed(session, tables) - before
}

/// `call` writes a version of its row in each of `tables`.
fn costs_the_same_under_an_old_snapshot(setup: &str, tables: &[&str], call: &str) {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(setup);
    session.run(call);
    let fresh = cost(&mut session, tables, call);
    let mut holder = old_snapshot(&server);
    for _ in 0..4000 {
        session.run(call);
    }
    let kept = cost(&mut session, tables, call);
    println!("{fresh} buffers for 200 calls, {kept} with 4,000 versions kept");
    assert!(kept <= fresh + 20, "{kept}, {fresh} before");
    // Another session does not know where the last version is.
    let mut another = server.session();
    let first = cost(&mut another, tables, call);
    println!("{first} in a session that begins");
    assert!(first <= fresh + 200, "{first}, {fresh} before");
    holder.run("COMMIT");
}

#[test]
fn numbers_cost_the_same_under_an_old_snapshot() {
    costs_the_same_under_an_old_snapshot(
        "SELECT leaf_id.leaf_gapless_create('s')",
        &["leaf_id.leaf_gapless", "leaf_id.leaf_gapless_mark"],
        "SELECT leaf_id.leaf_gapless_next('s')",
    );
}

#[test]
fn claims_cost_the_same_under_an_old_snapshot() {
    costs_the_same_under_an_old_snapshot(
        "SELECT leaf_tag_create('t')",
        &["leaf_id.leaf_alloc", "leaf_id.leaf_high_mark"],
        r#"SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "t", "n": 10}')"#,
    );
}

/// What a session does for ranges as long as a segment, each of which takes a claim; of tags that all
/// roles may issue, and of others.
#[test]
fn ranges_cost_the_same_under_an_old_snapshot() {
    for roles in ["'public'", "current_user::text"] {
        costs_the_same_under_an_old_snapshot(
            &format!(
                "SELECT leaf_tag_create('t', step => 10, max_step => 10);
                 SELECT leaf_tag_grant('t', {roles})"
            ),
            &["leaf_id.leaf_alloc", "leaf_id.leaf_high_mark"],
            "SELECT leaf_segment_next_range('t', 10)",
        );
    }
}

/// Of a tag that not all roles may issue, whose row says so: the first call of a session, and each
/// call that decodes an id.
#[test]
fn rights_are_read_at_the_same_cost_under_an_old_snapshot() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "SELECT leaf_id.leaf_opaque_create('o', step => 1, max_step => 1);
         SELECT leaf_tag_create('t', step => 10, max_step => 10)",
    );
    let use_both = "SELECT leaf_opaque_next('o'), leaf_segment_next_range('t', 10)";
    session.run(use_both);
    let tables = ["leaf_id.leaf_alloc"];
    for (call, is_first) in [
        ("SELECT leaf_segment_next('t')", true),
        ("SELECT leaf_id.leaf_opaque_encode('o', 1)", false),
    ] {
        let costs = || {
            (0..5)
                .map(|_| {
                    let mut new = server.session();
                    let calls = if is_first { 1 } else { 20 };
                    let before = accessed(&mut new, &tables);
                    for _ in 0..calls {
                        new.run(call);
                    }
                    accessed(&mut new, &tables) - before
                })
                .min()
                .unwrap()
        };
        let fresh = costs();
        let mut holder = old_snapshot(&server);
        for _ in 0..4000 {
            session.run(use_both);
        }
        let kept = costs();
        println!("{call}: {fresh} buffers, {kept} with 4,000 versions kept");
        assert!(kept <= fresh + 20, "{call}: {kept}, {fresh} before");
        holder.run("COMMIT");
        session.run("VACUUM leaf_id.leaf_alloc");
    }
}

#[test]
fn a_name_stays_unique_while_its_row_moves() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run("SELECT leaf_id.leaf_gapless_create('s')");
    session.create_steady_tag("t", 1);
    let mut holder = old_snapshot(&server);
    let mut observer = server.session();
    let mut ids = Vec::new();
    for round in 0..100 {
        // A version that only an open transaction has seen, often in another page.
        session.run("BEGIN; SELECT leaf_id.leaf_gapless_next('s')");
        ids.extend(server.session().take("t", 10));
        thread::scope(|scope| {
            let waits = scope.spawn(|| {
                server
                    .session()
                    .fails("INSERT INTO leaf_id.leaf_gapless VALUES ('s', 0)")
                    .is("23505");
            });
            wait_until(LIMIT, "it waits for the row", || {
                observer.value(
                    "SELECT count(*) = 1 FROM pg_stat_activity
                     WHERE query LIKE 'INSERT INTO leaf_id.leaf_gapless%' AND wait_event_type = 'Lock'",
                )
            });
            session.run(if round % 3 == 0 { "ROLLBACK" } else { "COMMIT" });
            waits.join().unwrap();
        });
        session
            .fails("INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('t')")
            .is("23505");
    }
    holder.run("COMMIT");
    assert_issued_once([ids]);
    session.run("CREATE EXTENSION amcheck");
    for index in [
        "leaf_alloc_pkey",
        "leaf_high_mark_pkey",
        "leaf_gapless_pkey",
    ] {
        session.run(&format!("SELECT bt_index_check('leaf_id.{index}', true)"));
    }
}
