//! Would catch: a gap, or a number twice, among the committed calls of many sessions that roll
//! back, are killed, crash with their server, and fail over with it to a synchronous standby and back;
//! and a number that was reported as committed and then lost.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use leaf_id_tests::{Failure, Server, Session, in_threads_until, random, wait_until};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::gapless::last;

const SESSIONS: usize = 16;
const LIMIT: Duration = Duration::from_secs(120);

/// Knowledge of a client.
#[derive(Default)]
struct Client {
    /// Numbers of transactions whose COMMIT was acknowledged, with their marks.
    printed: Vec<(i64, i64)>,
    /// Marks of transactions whose COMMIT was not answered.
    unknown: Vec<i64>,
    rolled_back: usize,
}

/// Runs one transaction; `Err` if the connection is lost.
fn transaction(
    session: &mut Session,
    mark: i64,
    client: &mut Client,
    how: u32,
) -> Result<(), Failure> {
    let insert = format!("INSERT INTO invoices (mark) VALUES ({mark}) RETURNING number");
    session.try_run("BEGIN")?;
    let mut numbers = Vec::new();
    match how % 8 {
        // A failing statement.
        0 => {
            session.try_column::<i64>(&insert)?;
            let failure = session.fails("SELECT 1 / 0");
            session.try_run("ROLLBACK")?;
            assert_eq!(failure.state, "22012", "{failure}");
            client.rolled_back += 1;
            return Ok(());
        }
        1 => {
            session.try_column::<i64>(&insert)?;
            session.try_run("ROLLBACK")?;
            client.rolled_back += 1;
            return Ok(());
        }
        // A number that is rolled back and taken again.
        2 => {
            session.try_run("SAVEPOINT a")?;
            session.try_column::<i64>(&insert)?;
            session.try_run("ROLLBACK TO a")?;
            numbers.extend(session.try_column::<i64>(&insert)?);
        }
        3 => {
            numbers.extend(session.try_column::<i64>(&insert)?);
            session.try_run("SAVEPOINT a")?;
            session.try_column::<i64>(&insert)?;
            session.try_run("ROLLBACK TO a; SAVEPOINT b")?;
            numbers.extend(session.try_column::<i64>(&insert)?);
            session.try_run("RELEASE b")?;
        }
        _ => numbers.extend(session.try_column::<i64>(&insert)?),
    }
    if let Err(failure) = session.try_run("COMMIT") {
        client.unknown.push(mark);
        return Err(failure);
    }
    let printed = numbers.into_iter().map(|number| (number, mark));
    client.printed.extend(printed);
    Ok(())
}

fn work(
    server: impl Fn() -> Result<Session, Failure>,
    number: usize,
    seed: u64,
    done: &AtomicBool,
    committed: &AtomicUsize,
) -> Client {
    let mut client = Client::default();
    let mut marks = (0..).map(|n| i64::try_from(number).unwrap() * 10_000_000 + n);
    let mut random = StdRng::seed_from_u64(seed);
    while !done.load(Ordering::Relaxed) {
        let Ok(mut session) = server() else {
            std::thread::yield_now();
            continue;
        };
        // Half of them turn off synchronous_commit.
        let level = ["on", "off"][number % 2];
        if session
            .try_run(&format!("SET synchronous_commit = {level}"))
            .is_err()
        {
            continue;
        }
        while !done.load(Ordering::Relaxed) {
            let mark = marks.next().unwrap();
            let before = client.printed.len();
            if transaction(&mut session, mark, &mut client, random.random()).is_err() {
                break;
            }
            committed.fetch_add(client.printed.len() - before, Ordering::Relaxed);
        }
    }
    client
}

/// A backend that is in a transaction.
fn victim(server: &Server) -> i32 {
    let mut session = server.session();
    let mut pids = Vec::new();
    wait_until(LIMIT, "a session in a transaction", || {
        pids = session.column(
            "SELECT pid FROM pg_stat_activity
             WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
             ORDER BY random() LIMIT 1",
        );
        !pids.is_empty()
    });
    pids[0]
}

const PREPARE: &str = "SELECT leaf_id.leaf_gapless_create('s');
     CREATE TABLE invoices (number bigint DEFAULT leaf_id.leaf_gapless_next('s'), mark bigint)";

/// Runs clients while `disturb` does its work, which gets what waits until they have gone on.
fn with_clients(
    connect: impl Fn() -> Result<Session, Failure> + Sync,
    disturb: impl FnOnce(&dyn Fn()),
) -> Vec<Client> {
    let committed = AtomicUsize::new(0);
    let seeds: [u64; SESSIONS] = random().random();
    let goes_on = || {
        let before = committed.load(Ordering::Relaxed);
        wait_until(LIMIT, "100 more numbers", || {
            committed.load(Ordering::Relaxed) >= before + 100
        });
    };
    let (clients, ()) = in_threads_until(
        SESSIONS,
        |number, done| work(&connect, number, seeds[number], done, &committed),
        || disturb(&goes_on),
    );
    clients
}

/// Rows have the numbers from 1 to n, and clients have seen no other numbers.
fn assert_from_1_and_none_twice(mut session: Session, clients: &[Client]) {
    let rows: Vec<String> =
        session.column("SELECT number || ' ' || mark FROM invoices ORDER BY number");
    let rows: Vec<(i64, i64)> = rows
        .iter()
        .map(|row| {
            let (number, mark) = row.split_once(' ').unwrap();
            (number.parse().unwrap(), mark.parse().unwrap())
        })
        .collect();
    // 1 to n, each once.
    for (expected, (number, mark)) in (1..).zip(&rows) {
        assert_eq!(*number, expected, "of {mark}");
    }
    assert_eq!(last(&mut session), i64::try_from(rows.len()).unwrap());
    // All numbers reported to clients exist, and none was reported twice.
    let mut printed = 0;
    for (number, mark) in clients.iter().flat_map(|client| &client.printed) {
        let (_, found) = rows[usize::try_from(number - 1).unwrap()];
        assert_eq!(found, *mark, "{number} was printed");
        printed += 1;
    }
    // The rest are those with an unknown outcome.
    let unknown: Vec<i64> = clients
        .iter()
        .flat_map(|client| client.unknown.iter().copied())
        .collect();
    let of_unknown = rows
        .iter()
        .filter(|(_, mark)| unknown.contains(mark))
        .count();
    assert_eq!(rows.len(), printed + of_unknown);
    let rolled_back: usize = clients.iter().map(|client| client.rolled_back).sum();
    println!(
        "{} numbers: {printed} printed, {of_unknown} of {} commits with an unknown outcome; {rolled_back} rolled back",
        rows.len(),
        unknown.len()
    );
    assert!(rolled_back > 50);
}

#[test]
fn committed_calls_have_the_numbers_from_1_and_none_twice() {
    let server = Server::with_leaf_id(&[]);
    server.session().run(PREPARE);
    let connect = || server.try_connect("postgres", "postgres");
    let clients = with_clients(connect, |goes_on| {
        for _ in 0..3 {
            goes_on();
            for _ in 0..5 {
                server.terminate(victim(&server));
            }
            goes_on();
            server.crash_by(victim(&server));
            goes_on();
            server.crash();
        }
        goes_on();
    });
    assert_from_1_and_none_twice(server.session(), &clients);
}

/// The old primary has committed what its standby has not acknowledged, and comes back without it.
#[test]
fn nor_over_failovers_there_and_back() {
    let first = Server::with_leaf_id(&[
        ("wal_retrieve_retry_interval", "100ms"),
        // Requirements of pg_rewind.
        ("wal_log_hints", "on"),
        ("wal_keep_size", "256MB"),
    ]);
    first.session().run(PREPARE);
    let second = first.standby(&[]);
    let servers = [first, second];
    let make_synchronous = |primary: &Server| {
        primary.configure("synchronous_standby_names", "*");
        let mut session = primary.session();
        wait_until(LIMIT, "the standby to be synchronous", || {
            session
                .value("SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')")
        });
    };
    make_synchronous(&servers[0]);
    let primary = AtomicUsize::new(0);
    let connect = || servers[primary.load(Ordering::Relaxed)].try_connect("postgres", "postgres");
    let clients = with_clients(connect, |goes_on| {
        for failover in 0..3 {
            let [old, new] = [failover % 2, 1 - failover % 2];
            goes_on();
            servers[old].kill_9();
            servers[new].promote();
            primary.store(new, Ordering::Relaxed);
            goes_on();
            // Otherwise pg_rewind would not see the new timeline.
            servers[new].session().run("CHECKPOINT");
            servers[old].rewind_and_follow(&servers[new]);
            make_synchronous(&servers[new]);
        }
        goes_on();
    });
    assert_from_1_and_none_twice(servers[1].session(), &clients);
}
