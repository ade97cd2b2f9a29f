//! Would catch: an edit of a tag that sessions under load do not notice, not all, or too late; ids
//! of the previous incarnation issued after it (I3, I4); and an edit that stops them. (Edits at
//! rest are tested in `tag_edits.rs`.)

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leaf_id_tests::server::FUNCTION_GONE;
use leaf_id_tests::{
    Call, Failure, Server, Session, assert_in_order, assert_issued_once, in_threads_until,
    wait_until,
};

const LIMIT: Duration = Duration::from_secs(30);
const SESSIONS: usize = 16;
/// Each incarnation of a tag starts at another multiple of this, so that the incarnation of an id
/// is known.
const LIFE: i64 = 1_000_000_000;

/// Ids of one session.
#[derive(Default)]
struct Drawn {
    calls: Vec<Call>,
    ids: Vec<i64>,
    failures: Vec<(Instant, Failure)>,
}

/// Takes single ids, batches and ranges of t until `done`. If an incarnation's ids are lower than
/// the previous one's, `key` maps them above.
fn draw(server: &Server, i: usize, done: &AtomicBool, key: impl Fn(i64) -> i64) -> Drawn {
    let mut session = server.session();
    let mut drawn = Drawn::default();
    for round in i.. {
        if done.load(Ordering::Relaxed) {
            break;
        }
        let n = round % 40 + 1;
        let sql = match n % 3 {
            0 => format!("SELECT leaf_segment_next_batch('t', {n})"),
            1 => format!(
                "SELECT generate_series(first_id, last_id) FROM leaf_segment_next_range('t', {n})"
            ),
            _ => "SELECT leaf_segment_next('t')".into(),
        };
        let start = Instant::now();
        match session.try_column::<i64>(&sql) {
            Ok(ids) => {
                let ids: Vec<_> = ids.into_iter().map(&key).collect();
                let end = Instant::now();
                let (first, last) = (ids[0], ids[ids.len() - 1]);
                drawn.calls.push(Call {
                    start,
                    end,
                    first,
                    last,
                });
                drawn.ids.extend(ids);
            }
            Err(failure) => {
                drawn.failures.push((start, failure));
                thread::sleep(Duration::from_millis(2));
            }
        }
    }
    drawn
}

/// Eight edits, each followed by some use. `begin` returns the first key of an incarnation, and the
/// statement that starts it.
fn begin_incarnations(editor: &mut Session, begin: impl Fn(i64) -> (i64, String)) -> Vec<Call> {
    let mut edits = Vec::new();
    for incarnation in 1..=8 {
        let (first, sql) = begin(incarnation);
        edits.push(edit(first, || editor.run(&sql)));
        let_them_draw(editor, 300);
    }
    edits
}

/// Runs edits while 16 sessions take ids. Checks that no id was issued twice and that ids are in
/// order, including the edits: each counts as a call that got the id before the first new one.
/// Sessions may fail only with these SQLSTATEs. Returns their ids.
fn edit_under_load(
    server: &Server,
    may_fail: &[&str],
    key: impl Fn(i64) -> i64 + Sync,
    edits: impl FnOnce(&mut Session) -> Vec<Call>,
) -> Vec<Drawn> {
    let (drawn, edits) = in_threads_until(
        SESSIONS,
        |i, done| draw(server, i, done, &key),
        || {
            let mut editor = server.session();
            wait_until(LIMIT, "the load", || {
                editor.value("SELECT coalesce(sum(ids_issued), 0) > 1000 FROM leaf_id.tags_detail")
            });
            let made = edits(&mut editor);
            let_them_draw(&mut editor, 4000);
            made
        },
    );
    let ids: Vec<_> = drawn.iter().map(|drawn| &drawn.ids).collect();
    println!("{} ids", ids.iter().map(|ids| ids.len()).sum::<usize>());
    assert_issued_once(ids);
    for (_, failure) in drawn.iter().flat_map(|drawn| &drawn.failures) {
        assert!(
            may_fail.contains(&&*failure.state) || failure.message.contains(FUNCTION_GONE),
            "{failure}"
        );
    }
    let calls = drawn.iter().flat_map(|drawn| &drawn.calls).chain(&edits);
    assert_in_order(calls.copied().collect());
    let mut states: Vec<_> = drawn
        .iter()
        .flat_map(|drawn| &drawn.failures)
        .map(|(_, failure)| &failure.state)
        .collect();
    states.sort();
    for same in states.chunk_by(|a, b| a == b) {
        println!("{} calls failed with {}", same.len(), same[0]);
    }
    // Many sessions took ids after the last edit.
    if let Some(last) = edits.last() {
        let after = |drawn: &&Drawn| drawn.calls.iter().any(|call| call.first > last.last);
        let went_on = drawn.iter().filter(after).count();
        assert!(went_on > SESSIONS / 2, "{went_on} sessions went on");
    }
    drawn
}

fn server_with_t() -> Server {
    let server = Server::with_leaf_id(&[("max_prepared_transactions", "2")]);
    server
        .session()
        .run("SELECT leaf_tag_create('t', step => 10, max_step => 200)");
    server
}

/// An edit after which the first id is `first`.
fn edit(first: i64, work: impl FnOnce()) -> Call {
    Call::make(|| {
        work();
        vec![first - 1]
    })
}

/// Waits until the sessions have taken `more` ids.
fn let_them_draw(editor: &mut Session, more: i64) {
    let issued = "SELECT coalesce(sum(ids_issued), 0)::bigint FROM leaf_id.tags_detail";
    let before: i64 = editor.value(issued);
    wait_until(LIMIT, "more ids", || {
        // The counter restarts with the slot.
        let now: i64 = editor.value(issued);
        now > before + more || (now < before && now > more)
    });
}

#[test]
fn steps_limits_and_words_change_without_a_gap_in_service() {
    let server = server_with_t();
    edit_under_load(
        &server,
        &[],
        |id| id,
        |editor| {
            for (step, max_step) in [(50, 50), (1, 41), (2000, 100_000), (60, 60)] {
                editor.run(&format!(
                    "UPDATE leaf_id.leaf_alloc SET step = {step}, max_step = {max_step},
                     description = 'step {step}' WHERE biz_tag = 't'"
                ));
                wait_until(LIMIT, "a claim of that length", || {
                    editor.value(&format!(
                        "SELECT step BETWEEN {step} AND {max_step} FROM leaf_id.tags_detail"
                    ))
                });
                let_them_draw(editor, 500);
            }
            editor
                .fails("UPDATE leaf_id.leaf_alloc SET max_id = 1")
                .is("55000")
                .hints("leaf_tag_reset('t', 1)");
            editor.run("UPDATE leaf_id.leaf_alloc SET max_value = 9000000000000000000");
            editor.run("BEGIN; UPDATE leaf_id.leaf_alloc SET max_id = max_id + 1");
            editor.fails("PREPARE TRANSACTION 'p'").is("0A000");
            editor.run("ROLLBACK");
            editor
                .fails("ALTER EXTENSION leaf_id SET SCHEMA pg_catalog")
                .is("0A000");
            editor.run("ALTER EXTENSION leaf_id UPDATE");
            editor.run("VACUUM (FREEZE, ANALYZE) leaf_id.leaf_alloc");
            let_them_draw(editor, 500);
            Vec::new()
        },
    );
}

/// Maintenance of the table by a DBA: it is locked for a moment, and calls wait no longer than
/// that.
#[test]
fn the_table_is_maintained() {
    let server = server_with_t();
    edit_under_load(
        &server,
        &[],
        |id| id,
        |editor| {
            for work in [
                "VACUUM (FULL, FREEZE, ANALYZE) leaf_id.leaf_alloc",
                "REINDEX TABLE leaf_id.leaf_alloc",
                "REINDEX TABLE CONCURRENTLY leaf_id.leaf_alloc",
                "CLUSTER leaf_id.leaf_alloc USING leaf_alloc_pkey",
                "ALTER TABLE leaf_id.leaf_alloc ADD COLUMN owner text DEFAULT 'none'",
                "UPDATE leaf_id.leaf_alloc SET owner = 'app'",
                "ALTER TABLE leaf_id.leaf_alloc DROP COLUMN owner",
                "ALTER TABLE leaf_id.leaf_alloc ALTER description SET STORAGE EXTERNAL",
                "UPDATE leaf_id.leaf_alloc SET description = repeat('long ', 100000)",
                "CREATE INDEX CONCURRENTLY by_time ON leaf_id.leaf_alloc (update_time)",
                "DROP INDEX CONCURRENTLY leaf_id.by_time",
            ] {
                println!("{work}");
                editor.run(work);
                let_them_draw(editor, 1000);
            }
            Vec::new()
        },
    );
}

/// A range must fit in a segment. If it no longer can, the error is immediate.
#[test]
fn a_max_step_that_is_lowered_is_reported_to_ranges() {
    let server = server_with_t();
    let drawn = edit_under_load(
        &server,
        &["22023"],
        |id| id,
        |editor| {
            editor.run("UPDATE leaf_id.leaf_alloc SET step = 5, max_step = 20");
            let_them_draw(editor, 2000);
            Vec::new()
        },
    );
    let failures: Vec<_> = drawn.iter().flat_map(|drawn| &drawn.failures).collect();
    println!("{} ranges were refused", failures.len());
    assert!(!failures.is_empty());
    for (_, failure) in failures {
        failure.details("is 20");
    }
}

#[test]
fn a_raised_max_id_holds_for_every_call_that_begins_afterwards() {
    let server = server_with_t();
    edit_under_load(
        &server,
        &[],
        |id| id,
        |editor| {
            begin_incarnations(editor, |incarnation| {
                let first = incarnation * LIFE;
                (
                    first,
                    format!("UPDATE leaf_id.leaf_alloc SET max_id = {first}"),
                )
            })
        },
    );
}

#[test]
fn a_reset_holds_for_every_call_that_begins_afterwards_downwards_too() {
    let server = server_with_t();
    // The first incarnation is above all others.
    server
        .session()
        .run(&format!("SELECT leaf_tag_reset('t', {})", 20 * LIFE));
    let key = |id: i64| (20 - id / LIFE) * LIFE + id % LIFE + 1;
    edit_under_load(&server, &[], key, |editor| {
        begin_incarnations(editor, |incarnation| {
            let first = (20 - incarnation) * LIFE;
            (key(first), format!("SELECT leaf_tag_reset('t', {first})"))
        })
    });
}

/// While the tag does not exist, there are no ids; then ids are from the new row.
#[test]
fn a_tag_that_goes_and_comes_again() {
    let server = server_with_t();
    let mut away = Vec::new();
    let come = |incarnation: i64| {
        format!(
            "INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id, step, max_step) VALUES ('t', {}, 10, 200)",
            incarnation * LIFE
        )
    };
    let drawn = edit_under_load(
        &server,
        &["42704"],
        |id| id,
        |editor| {
            let mut edits = Vec::new();
            for (incarnation, (go, come)) in (1..).zip([
                ("DELETE FROM leaf_id.leaf_alloc", come(1)),
                (
                    "SET leaf_id.allow_truncate = on; TRUNCATE leaf_id.leaf_alloc",
                    come(2),
                ),
                ("SELECT leaf_tag_drop('t')", come(3)),
                (
                    "UPDATE leaf_id.leaf_alloc SET biz_tag = 'away'",
                    format!(
                        "UPDATE leaf_id.leaf_alloc SET biz_tag = 't', max_id = {}",
                        4 * LIFE
                    ),
                ),
                (
                    "BEGIN; SAVEPOINT s; DELETE FROM leaf_id.leaf_alloc; RELEASE s; COMMIT",
                    come(5),
                ),
            ]) {
                println!("{go}");
                editor.run(go);
                let gone = Instant::now();
                thread::sleep(Duration::from_millis(20));
                let back = Instant::now();
                away.push((gone, back));
                edits.push(edit(incarnation * LIFE, || editor.run(&come)));
                let_them_draw(editor, 300);
            }
            // In one transaction, the tag never disappears.
            editor.run("BEGIN; SET LOCAL leaf_id.allow_truncate = on; TRUNCATE leaf_id.leaf_alloc");
            editor.run(&come(6));
            edits.push(edit(6 * LIFE, || editor.run("COMMIT")));
            let_them_draw(editor, 300);
            edits
        },
    );
    for call in drawn.iter().flat_map(|drawn| &drawn.calls) {
        let within = |(gone, back): &(Instant, Instant)| call.start > *gone && call.end < *back;
        assert!(!away.iter().any(within), "{call:?} got ids of no tag");
    }
    assert!(drawn.iter().all(|drawn| !drawn.failures.is_empty()));
}

#[test]
fn a_limit_that_is_lowered_and_lifted() {
    let server = server_with_t();
    let mut bounds = Vec::new();
    let drawn = edit_under_load(
        &server,
        &["2200H"],
        |id| id,
        |editor| {
            let mut edits = Vec::new();
            for _ in 0..4 {
                // Slightly beyond the claimed ids.
                let max_value: i64 = editor.value(
                    "UPDATE leaf_id.leaf_alloc SET max_value = max_id + 300 RETURNING max_value",
                );
                let mut other = server.session();
                wait_until(LIMIT, "the end of the tag", || {
                    other
                        .try_next("t")
                        .is_err_and(|failure| failure.state == "2200H")
                });
                let ended = Instant::now();
                thread::sleep(Duration::from_millis(20));
                let lifted = Instant::now();
                bounds.push((ended, lifted, max_value));
                // Not the next id: an edit is represented by an id that no call gets.
                let first = max_value + 10;
                edits.push(edit(first, || {
                    editor.run(&format!(
                        "UPDATE leaf_id.leaf_alloc SET max_value = DEFAULT, max_id = {first}"
                    ));
                }));
                let_them_draw(editor, 300);
            }
            edits
        },
    );
    for call in drawn.iter().flat_map(|drawn| &drawn.calls) {
        for (ended, lifted, max_value) in &bounds {
            assert!(
                call.end > *lifted || call.last <= *max_value,
                "{call:?} beyond {max_value}"
            );
            assert!(!(call.start > *ended && call.end < *lifted), "{call:?}");
        }
    }
}

/// The new extension is unrelated: its tag starts at its own start value.
#[test]
fn the_extension_goes_and_comes_again() {
    let server = server_with_t();
    // Functions, table, extension: for a running call, they disappear at slightly different
    // moments.
    let may_fail = ["42883", "42P01", "42704", "55P03"];
    edit_under_load(
        &server,
        &may_fail,
        |id| id,
        |editor| {
            let mut edits = Vec::new();
            for incarnation in 1..=3 {
                editor.run("DROP EXTENSION leaf_id");
                let first = incarnation * LIFE;
                edits.push(edit(first, || {
                    editor.run(&format!(
                        "BEGIN; CREATE EXTENSION leaf_id;
                     SELECT leaf_tag_create('t', {first}, 10, 200); COMMIT"
                    ));
                }));
                let_them_draw(editor, 300);
            }
            edits
        },
    );
}
