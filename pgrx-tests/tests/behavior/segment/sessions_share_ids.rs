//! Would catch: an id issued twice (I3) or out of order (I4) when many sessions take from
//! one tag across many segments, while others roll back or edit the tag.

use leaf_id_tests::{
    Call, Server, assert_in_order, assert_issued_once, in_threads, random, timed, while_repeating,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const SESSIONS: usize = 32;
const IDS: usize = 2_000_000;

/// Two million ids of tag t taken by 32 sessions, in statements of different lengths.
fn draw(server: &Server) -> Vec<Vec<i64>> {
    let (drawn, took) = timed(|| {
        in_threads(SESSIONS, |i| {
            let mut session = server.session();
            let mut ids = Vec::new();
            while ids.len() < IDS / SESSIONS {
                ids.extend(session.take("t", [100, 333, 1000, 2500][i % 4]));
            }
            ids
        })
    });
    let issued: usize = drawn.iter().map(Vec::len).sum();
    println!(
        "{issued} ids in {took:?}, the highest {:?}",
        drawn.iter().flatten().max()
    );
    assert!(issued >= IDS);
    drawn
}

fn server_with_step_10() -> Server {
    let server = Server::with_leaf_id(&[]);
    server
        .session()
        .run("SELECT leaf_tag_create('t', step => 10)");
    server
}

#[test]
fn two_sessions_in_turn_count_up() {
    let server = Server::with_leaf_id(&[]);
    let (mut a, mut b) = (server.session(), server.session());
    a.create_tag("t");
    let ids: Vec<_> = (0..50).flat_map(|_| [a.next("t"), b.next("t")]).collect();
    assert_eq!(ids, (1..=100).collect::<Vec<_>>());
    assert_eq!(
        a.ids("SELECT leaf_segment_next('t') FROM generate_series(1, 3)"),
        [101, 102, 103]
    );
    assert_eq!(b.next("t"), 104);
}

#[test]
fn two_million_ids_of_32_sessions_are_distinct() {
    let server = server_with_step_10();
    let drawn = draw(&server);
    assert_issued_once(&drawn);
    let highest = drawn.iter().flatten().max().unwrap();
    // I1: the table covers all issued ids.
    let max_id: i64 = server
        .session()
        .value("SELECT max_id FROM leaf_id.leaf_alloc");
    assert!(max_id > *highest, "max_id {max_id} covers {highest}");
}

#[test]
fn rollbacks_and_changes_of_step_make_no_duplicates() {
    let server = server_with_step_10();
    let mut random = random();
    let (mut roller, mut editor) = (server.session(), server.session());
    let mut rolled_back = Vec::new();
    let mut drawn = while_repeating(
        || {
            roller.run("BEGIN");
            rolled_back.extend(roller.take("t", 500));
            roller.run("ROLLBACK");
        },
        || {
            while_repeating(
                || {
                    let step = random.random_range(1..=2000);
                    editor.run(&format!("UPDATE leaf_id.leaf_alloc SET step = {step}"));
                },
                || draw(&server),
            )
        },
    );
    println!("{} ids were rolled back", rolled_back.len());
    drawn.push(rolled_back);
    assert_issued_once(&drawn);
}

#[test]
fn ids_follow_the_order_of_calls_across_sessions() {
    let server = server_with_step_10();
    let seed: u64 = random().random();
    let mut editor = server.session();
    let mut step = 0;
    let calls = while_repeating(
        || {
            step = step % 50 + 1;
            editor.run(&format!("UPDATE leaf_id.leaf_alloc SET step = {step}"));
        },
        || {
            in_threads(8, |i| {
                let mut random = StdRng::seed_from_u64(seed + i as u64);
                let mut session = server.session();
                (0..2000)
                    .map(|_| {
                        let n = random.random_range(1..=40);
                        let sql = match n % 4 {
                            0 => format!("SELECT leaf_segment_next_batch('t', {n})"),
                            1 => format!(
                                "SELECT generate_series(first_id, last_id) \
                                 FROM leaf_segment_next_range('t', {n})"
                            ),
                            _ => "SELECT leaf_segment_next('t')".into(),
                        };
                        Call::make(|| session.ids(&sql))
                    })
                    .collect::<Vec<_>>()
            })
        },
    );
    assert_in_order(calls.concat());
}
