//! Would catch: a move that makes an insert fail, deadlocks with writers, issues an id twice, or
//! blocks writers for long.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use leaf_id_tests::{Server, Session, in_threads_until, random, tell, timed, wait_until};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Rows of the table before the move: `LEAF_ID_ROWS`, or the default.
fn rows() -> i64 {
    std::env::var("LEAF_ID_ROWS").map_or(200_000, |rows| rows.parse().expect("a number"))
}

/// Observations of a writer.
#[derive(Default)]
struct Writer {
    ids: Vec<i64>,
    longest: Duration,
}

impl Writer {
    /// Inserts like a writer of its kind until it must stop: half of them read, then write in one
    /// transaction, and two of these keep it open for a while.
    fn work(server: &Server, number: usize, seed: u64, done: impl Fn() -> bool) -> Self {
        let mut random = StdRng::seed_from_u64(seed.wrapping_add(number as u64));
        let mut session = server.session();
        let mut writer = Self::default();
        while !done() {
            let start = Instant::now();
            let id = if number.is_multiple_of(2) {
                session.run("BEGIN");
                session.column::<i64>("SELECT id FROM orders ORDER BY id DESC LIMIT 1");
                let id = session.value("INSERT INTO orders (item) VALUES ('tea') RETURNING id");
                writer.longest = writer.longest.max(start.elapsed());
                if number.is_multiple_of(4) {
                    thread::sleep(Duration::from_millis(random.random_range(200..2500)));
                }
                session.run("COMMIT");
                id
            } else {
                let id = session.value("INSERT INTO orders (item) VALUES ('tea') RETURNING id");
                writer.longest = writer.longest.max(start.elapsed());
                id
            };
            writer.ids.push(id);
        }
        writer
    }
}

/// The last move, as reported by its notice.
fn report(server: &Server) -> String {
    let log = server.log();
    let lines = log.lines().rev();
    let mut details = lines.filter(|line| line.contains("Locked by try"));
    let line = details.next().expect("a move");
    line.split("DETAIL:  ").last().unwrap().into()
}

/// Waits until the writers have inserted more rows, so that the next step is under load.
fn under_way(session: &mut Session) {
    let before: i64 = session.value("SELECT max(id) FROM orders");
    wait_until(Duration::from_secs(60), "inserts", || {
        let more = format!("SELECT count(*) > 500 FROM orders WHERE id > {before}");
        session.value(&more)
    });
}

fn moves(key: &str) {
    let server = crate::adopt::server();
    server.allow(Duration::from_secs(1800));
    let rows = rows();
    let seed: u64 = random().random();
    let mut session = server.session();
    session.run("SET statement_timeout = 0");
    session.run(&format!("CREATE TABLE orders (id {key}, item text)"));
    session.run(&format!(
        "INSERT INTO orders (item) SELECT 'old' FROM generate_series(1, {rows});
         ALTER TABLE orders ADD PRIMARY KEY (id); ANALYZE orders"
    ));
    let load = |number: usize, done: &std::sync::atomic::AtomicBool| {
        Writer::work(&server, number, seed, || done.load(Ordering::Relaxed))
    };
    let work = || {
        under_way(&mut session);
        let ((), took) = timed(|| session.run("SELECT leaf_adopt('orders', 'id')"));
        tell(&format!(
            "{key}, {rows} rows, adopted in {took:?}: {}",
            report(&server)
        ));
        under_way(&mut session);
        // Drops the sequence, if it had to be kept.
        session.run("SELECT leaf_adopt('orders', 'id')");
        let from_tag: i64 = session.next("orders");
        under_way(&mut session);
        let ((), took) = timed(|| session.run("SELECT leaf_release('orders', 'id')"));
        tell(&format!(
            "{key}, {rows} rows, released in {took:?}: {}",
            report(&server)
        ));
        under_way(&mut session);
        from_tag
    };
    // A writer panics if a statement fails, for example by a deadlock.
    let (writers, from_tag) = in_threads_until(8, load, work);
    let mut ids: Vec<i64> = writers
        .iter()
        .flat_map(|writer| writer.ids.clone())
        .collect();
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count, "an id came twice");
    assert!(ids[0] > rows && ids.iter().any(|id| *id > from_tag));
    let longest = writers.iter().map(|writer| writer.longest).max().unwrap();
    tell(&format!(
        "{key}: {count} inserts, none failed; the longest took {longest:?}"
    ));
    let found: i64 = session.value("SELECT count(*) FROM orders");
    assert_eq!(found, rows + i64::try_from(count).unwrap());
    let sequences: i64 = session.value("SELECT count(*) FROM pg_class WHERE relkind = 'S'");
    assert_eq!(sequences, 1);
    assert!(!server.log().contains("deadlock detected"));
    // The longest lock attempt, plus delays of the machine.
    assert!(longest < Duration::from_secs(15), "{longest:?}");
}

#[test]
fn a_serial_moves_there_and_back() {
    moves("bigserial");
}

#[test]
fn an_identity_moves_there_and_back() {
    moves("bigint GENERATED BY DEFAULT AS IDENTITY");
}
