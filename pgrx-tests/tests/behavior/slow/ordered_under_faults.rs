//! Would catch: a row that a reader below the watermark never sees, or sees and that is not there, among those
//! of writers that roll back, prepare, store ids of savepoints that were rolled back, are killed, and crash with
//! their server and with prepared transactions.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leaf_id_tests::{Failure, Server, Session, in_threads_until, random, tell};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::ordered::{Reader, Reading, server_with_events};

const WRITERS: usize = 8;
const ROWS: usize = 100_000;
const FAULTS: usize = 12;
const LIMIT: Duration = Duration::from_secs(240);

/// One transaction of a writer.
fn transaction(session: &mut Session, name: &str, random: &mut StdRng) -> Result<(), Failure> {
    let rows = random.random_range(1..60);
    let item = random.random_range(1..1000);
    let insert = format!("INSERT INTO events SELECT FROM generate_series(1, {rows})");
    let one = "INSERT INTO events DEFAULT VALUES";
    let pause = format!("SELECT pg_sleep(0.00{})", random.random_range(0..4));
    let id_of_savepoint = |session: &mut Session| {
        session.try_run("SAVEPOINT a")?;
        let id = session.try_column::<i64>("SELECT leaf_ordered_next('events')")?[0];
        session.try_run(&format!(
            "ROLLBACK TO a; {pause}; INSERT INTO events VALUES ({id})"
        ))
    };
    session.try_run("BEGIN")?;
    match random.random_range(0..8) {
        0 => session.try_run(&format!("{insert}; {pause}; ROLLBACK; BEGIN"))?,
        1 => session.try_run(&format!(
            "{one}; SAVEPOINT a; {insert}; ROLLBACK TO a; {one}; SAVEPOINT b; {insert}; RELEASE b"
        ))?,
        2 => id_of_savepoint(session)?,
        3 => {
            session.try_run(&format!("{insert}; {pause}; PREPARE TRANSACTION '{name}'"))?;
            session.try_run(one)?;
            let how = ["COMMIT", "ROLLBACK"][usize::from(random.random_bool(0.2))];
            session.try_run(&pause)?;
            session.try_run(&format!("{how} PREPARED '{name}'"))?;
            session.try_run("BEGIN")?;
        }
        4 => session.try_run(&format!(
            "INSERT INTO events (item) VALUES ({item}), ({item} + 1000)
             ON CONFLICT (item) DO UPDATE SET item = excluded.item; {pause}"
        ))?,
        5 => session.try_run(&format!(
            "COPY events (item) FROM PROGRAM 'yes \\\\N | head -n {rows}'; {pause}"
        ))?,
        6 => session.try_run(&format!("{insert}; {pause}; {insert}"))?,
        _ => session.try_run(&insert)?,
    }
    session.try_run("COMMIT")
}

fn work(server: &Server, number: usize, seed: u64, done: &AtomicBool) {
    let mut random = StdRng::seed_from_u64(seed);
    let name = format!("writer {number}");
    while !done.load(Ordering::Relaxed) {
        let Ok(mut session) = server.try_connect("postgres", "postgres") else {
            thread::yield_now();
            continue;
        };
        // That of a session that was killed.
        drop(session.try_run(&format!("COMMIT PREPARED '{name}'")));
        while !done.load(Ordering::Relaxed) {
            match transaction(&mut session, &name, &mut random) {
                Ok(()) => {}
                // Two writers of two items each.
                Err(failure) if failure.state == "40P01" => session.run("ROLLBACK"),
                Err(failure) => {
                    // No fault of the test's statements.
                    assert!(
                        ["", "57P01", "57P02", "57P03"].contains(&failure.state.as_str()),
                        "{failure}"
                    );
                    break;
                }
            }
        }
    }
}

/// A writer that is in a transaction, if there is one.
fn victim(session: &mut Session) -> Option<i32> {
    session
        .column(
            "SELECT pid FROM pg_stat_activity
             WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
                 AND datname = 'postgres' AND xact_start IS NOT NULL
             ORDER BY random() LIMIT 1",
        )
        .pop()
}

/// A session whose transaction stays open, with an xid, in another database.
fn idle_next_door(server: &Server) -> Session {
    let mut idle = server.session_in("next_door");
    idle.run("BEGIN; SELECT pg_current_xact_id()");
    idle
}

#[test]
fn a_reader_below_the_watermark_sees_every_row() {
    let (server, mut session) = server_with_events(&[]);
    session.run("CREATE DATABASE next_door");
    let mut idle = idle_next_door(&server);
    let seeds: [u64; WRITERS] = random().random();
    let mut reader = Reader::new(Reading::BelowWatermark);
    let mut faults = 0;
    in_threads_until(
        WRITERS,
        |number, done| work(&server, number, seeds[number], done),
        || {
            let begin = Instant::now();
            while reader.delivered.len() < ROWS {
                assert!(begin.elapsed() < LIMIT, "{} rows", reader.delivered.len());
                reader.poll(&mut session);
                if reader.delivered.len() < (faults + 1) * ROWS / (FAULTS + 1) {
                    continue;
                }
                faults += 1;
                let victim = victim(&mut session);
                if let (1, Some(pid)) = (faults % 3, victim) {
                    server.terminate(pid);
                    continue;
                }
                session.run("BEGIN; INSERT INTO events DEFAULT VALUES; PREPARE TRANSACTION 'left'");
                match (faults % 3, victim) {
                    (2, Some(pid)) => drop(server.crash_by(pid)),
                    _ => server.crash(),
                }
                session = server.session();
                idle = idle_next_door(&server);
                for _ in 0..20 {
                    reader.poll(&mut session);
                }
                session.run("COMMIT PREPARED 'left'");
            }
        },
    );
    for gid in session.column::<String>("SELECT gid FROM pg_prepared_xacts") {
        session.run(&format!("COMMIT PREPARED '{gid}'"));
    }
    reader.poll(&mut session);
    idle.run("COMMIT");
    let rows: i64 = session.value("SELECT count(*) FROM events");
    tell(&format!("{rows} rows, {faults} faults"));
    assert_eq!(reader.lost(&mut session), 0);
    assert_eq!(i64::try_from(reader.delivered.len()), Ok(rows));
    assert!(faults >= FAULTS);
}
