//! Would catch: a row that a reader below the watermark never sees. Readers that go on behind the largest id
//! lose rows under the same load; if they did not, the load would show nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leaf_id_tests::{Server, in_threads_until, random, tell};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::{Reader, Reading, server_with_events};

const WRITERS: usize = 8;
const TIME: Duration = Duration::from_secs(4);

/// Rows that `WRITERS` insert in short transactions, and how many of them the reader has never seen.
fn losses(how: Reading, default: &str) -> (i64, usize) {
    let (server, mut session) = server_with_events(&[]);
    session.run("CREATE DATABASE next_door");
    session.run(&format!(
        "CREATE SEQUENCE s; ALTER TABLE events ALTER id SET DEFAULT {default}"
    ));
    // Only that of one database, whatever other databases do.
    let mut idle = server.session_in("next_door");
    idle.run("BEGIN; SELECT pg_current_xact_id()");
    let mut reader = Reader::new(how);
    let seed: u64 = random().random();
    in_threads_until(
        WRITERS,
        |writer, done: &AtomicBool| write(&server, seed + writer as u64, done),
        || {
            let begin = Instant::now();
            while begin.elapsed() < TIME {
                reader.poll(&mut session);
            }
        },
    );
    reader.poll(&mut session);
    let rows = session.value("SELECT count(*) FROM events");
    (rows, reader.lost(&mut session))
}

fn write(server: &Server, seed: u64, done: &AtomicBool) {
    let mut random = StdRng::seed_from_u64(seed);
    let mut session = server.session();
    while !done.load(Ordering::Relaxed) {
        let ms = random.random_range(0..4);
        session.run(&format!(
            "BEGIN; INSERT INTO events DEFAULT VALUES; SELECT pg_sleep(0.00{ms}); COMMIT"
        ));
    }
}

#[test]
fn a_reader_behind_the_largest_id_passes_rows() {
    for default in ["nextval('s')", "leaf_segment_next('events')"] {
        let (rows, lost) = losses(Reading::All, default);
        tell(&format!("{default}: {rows} rows, {lost} never delivered"));
        assert!(lost > 0, "the load shows nothing");
    }
}

#[test]
fn a_reader_below_the_watermark_passes_none() {
    let default = "leaf_ordered_next('events')";
    let (rows, lost) = losses(Reading::BelowWatermark, default);
    tell(&format!("{default}: {rows} rows, {lost} never delivered"));
    assert_eq!(lost, 0);
    assert!(rows > 100, "{rows} rows");
}
