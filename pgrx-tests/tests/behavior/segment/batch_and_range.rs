//! Would catch: batches that lose or repeat ids where one segment ends and the next begins,
//! ranges with a hole, and losses that no view shows.

use leaf_id_tests::{Server, Session, assert_issued_once, in_threads, random};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

fn batch(session: &mut Session, n: i32) -> Vec<i64> {
    session.ids(&format!("SELECT * FROM leaf_segment_next_batch('t', {n})"))
}

fn range(session: &mut Session, n: i32) -> Vec<i64> {
    let row = session
        .query_one(
            "SELECT first_id, last_id FROM leaf_segment_next_range('t', $1)",
            &[&n],
        )
        .unwrap();
    let ids: Vec<i64> = (row.get(0)..=row.get(1)).collect();
    assert_eq!(ids.len(), usize::try_from(n).unwrap());
    ids
}

#[test]
fn a_batch_crosses_segments() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.create_steady_tag("t", 10);
    assert_eq!(batch(&mut session, 25), (1..=25).collect::<Vec<_>>());
    assert_eq!(session.next("t"), 26);
    let ids = batch(&mut session, 20_000);
    assert_eq!(ids.len(), 20_000);
    assert_issued_once(&[vec![26], ids.clone()]);
    // A cursor may stop in the middle.
    let some = session.ids("SELECT leaf_segment_next_batch('t', 1000) LIMIT 5");
    assert_eq!(some.len(), 5);
    assert_issued_once(&[[ids, some, vec![session.next("t")]].concat()]);
}

/// A range is no longer than a segment may be now, whatever that was when the last one came: it is
/// not put together of thousands of claims.
#[test]
fn a_range_is_no_longer_than_a_lowered_max_step() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run("SELECT leaf_tag_create('t', step => 1, max_step => 1000000)");
    session.next("t");
    session.wait_for_spare("t");
    session.run("UPDATE leaf_id.leaf_alloc SET max_step = 1");
    let before = session.max_id("t");
    session
        .fails("SELECT leaf_segment_next_range('t', 1000000)")
        .is("22023");
    let claims = session.max_id("t") - before;
    assert!(claims < 10, "{claims} claims for one range");
}

#[test]
fn a_range_is_contiguous_whatever_is_cached() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run("SELECT leaf_tag_create('t', step => 10, max_step => 1000)");
    let mut ids = Vec::new();
    for n in [1, 3, 10, 7, 25, 1, 999, 1000, 2, 500, 501] {
        ids.extend(range(&mut session, n));
        ids.push(session.next("t"));
    }
    assert_issued_once(&[ids]);
    session
        .fails("SELECT leaf_segment_next_range('t', 1001)")
        .is("22023");
    session
        .fails("SELECT leaf_segment_next_range('t', 2147483647)")
        .is("22023");
}

#[test]
fn what_a_range_loses_is_counted() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.create_steady_tag("t", 10);
    assert_eq!(session.take("t", 5), [1, 2, 3, 4, 5]);
    // The rest of the segment in use does not hold it.
    assert!(range(&mut session, 10)[0] > 5);
    assert!(session.ids("SELECT ids_lost::bigint FROM leaf_segment_status")[0] >= 5);
}

#[test]
fn batches_ranges_and_single_ids_of_many_sessions_are_distinct() {
    let server = Server::with_leaf_id(&[]);
    server
        .session()
        .run("SELECT leaf_tag_create('t', step => 10, max_step => 300)");
    let seed: u64 = random().random();
    let drawn = in_threads(12, |i| {
        let mut random = StdRng::seed_from_u64(seed + i as u64);
        let mut session = server.session();
        let mut ids = Vec::new();
        for _ in 0..400 {
            let n = random.random_range(1..=60);
            ids.extend(match random.random_range(0..3) {
                0 => session.take("t", n),
                1 => batch(&mut session, n),
                _ => range(&mut session, n),
            });
        }
        ids
    });
    println!("{} ids", drawn.iter().map(Vec::len).sum::<usize>());
    assert_issued_once(&drawn);
}

/// A claim is never much longer than the ones before it: a long range takes several.
#[test]
fn a_first_range_is_as_long_as_asked_and_no_longer() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    for (tag, step, n) in [
        ("a", 1, 1_000_000),
        ("b", 1000, 1_000_000),
        ("c", 200_000_000, i32::MAX),
    ] {
        session.run(&format!(
            "SELECT leaf_tag_create('{tag}', step => {step}, max_step => {n})"
        ));
        let range = format!("SELECT last_id FROM leaf_segment_next_range('{tag}', {n})");
        assert_eq!(session.value::<i64>(&range), i64::from(n), "{tag}");
        let held = format!(
            "SELECT current_last - current_first + 1 FROM leaf_segment_status WHERE tag = '{tag}'"
        );
        assert_eq!(session.value::<i64>(&held), i64::from(n), "{tag}");
    }
}
