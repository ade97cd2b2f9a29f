//! Would catch: batches and ranges of several sessions that share an id. Single-session behavior is
//! tested in sql/segment_ranges.sql.

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
