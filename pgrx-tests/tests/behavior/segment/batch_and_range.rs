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

/// Would catch: ids of a batch that is not read to its end, which are a gap, counted as issued.
#[test]
fn what_is_left_of_a_batch_is_lost() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.create_steady_tag("t", 1000);
    let counts = "SELECT ARRAY[ids_issued, ids_lost] FROM leaf_id.tags_detail WHERE tag = 't'";
    session.next("t");
    for (how, read) in [
        ("SELECT leaf_segment_next_batch('t', 100) LIMIT 7", 7),
        (
            "BEGIN; DECLARE c CURSOR FOR SELECT leaf_segment_next_batch('t', 100);
             FETCH 9 FROM c; CLOSE c; COMMIT",
            9,
        ),
        (
            "BEGIN; DECLARE c CURSOR FOR SELECT leaf_segment_next_batch('t', 100);
             FETCH 11 FROM c; ROLLBACK",
            11,
        ),
        ("SELECT 1 / (leaf_segment_next_batch('t', 100) % 10)", -1),
        ("SELECT leaf_segment_next_batch('t', 100)", 100),
    ] {
        let before: Vec<i64> = session.value(counts);
        let _ = session.try_run(how);
        let after: Vec<i64> = session.value(counts);
        println!("{how}: {before:?}, {after:?}");
        assert_eq!(after[0] + after[1] - before[0] - before[1], 100, "{how}");
        if read >= 0 {
            assert_eq!(after[0] - before[0], read, "{how}");
        }
    }
}
