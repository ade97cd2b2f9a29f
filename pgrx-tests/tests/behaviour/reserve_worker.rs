//! Would catch: parallel queries, or anybody's workers, that take every worker slot and with
//! them the claims of all databases and the lease of the worker id; and a reserve worker that
//! is in the way of DROP DATABASE, is lost when it ends, or fills the log.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leaf_id_tests::{
    Asking, Registry, Server, Session, assert_issued_once, in_threads_until, tell, timed,
    wait_until, worker_of,
};

const LIMIT: Duration = Duration::from_secs(30);

/// The launcher's slot, the reserve worker's, and [`FREE`] ones for whoever comes.
const CONF: [(&str, &str); 5] = [
    ("max_worker_processes", "8"),
    ("max_parallel_workers", "8"),
    ("max_logical_replication_workers", "0"),
    ("autovacuum", "off"),
    ("leaf_id.allocator_idle_timeout", "100ms"),
];
const FREE: i64 = 6;
const QUERIES: usize = 4;

/// Parallel queries of a role that can only connect, in a database of its own. They have
/// every free worker slot for as long as this lives.
struct Hogs<'a> {
    server: &'a Server,
    pids: Vec<i32>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl<'a> Hogs<'a> {
    fn start(server: &'a Server) -> Self {
        let mut admin = server.session();
        if admin
            .column::<i32>("SELECT 1 FROM pg_database WHERE datname = 'hogs'")
            .is_empty()
        {
            admin.run("CREATE DATABASE hogs");
            admin.run("CREATE ROLE hog LOGIN");
        }
        wait_until(LIMIT, "the allocators to leave", || {
            admin.worker("allocator").is_none() && allocators(&mut admin) == 0
        });
        let mut hogs = Self {
            server,
            pids: Vec::new(),
            threads: Vec::new(),
        };
        for _ in 0..QUERIES {
            let mut session = server.connect_as("hog", "hogs");
            hogs.pids.push(session.pid());
            session.run(
                "SET statement_timeout = 0; SET max_parallel_workers_per_gather = 2;
                 SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
                 SET min_parallel_table_scan_size = 0; SET enable_indexonlyscan = off",
            );
            hogs.threads.push(thread::spawn(move || {
                // Until it is ended.
                let _ = session.try_run("SELECT pg_sleep(1000) FROM pg_proc");
            }));
        }
        wait_until(LIMIT, "every worker slot to be taken", || {
            taken(&mut admin) == FREE
        });
        hogs
    }
}

impl Drop for Hogs<'_> {
    fn drop(&mut self) {
        if let Ok(mut admin) = self.server.try_connect("postgres", "postgres") {
            for pid in &self.pids {
                admin.run(&format!("SELECT pg_terminate_backend({pid})"));
            }
        }
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Worker slots that parallel queries have.
fn taken(session: &mut Session) -> i64 {
    session.value("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'parallel worker'")
}

fn allocators(session: &mut Session) -> i64 {
    session.value("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'leaf_id allocator'")
}

/// A server with the extension in these databases, with a tag t of short segments in each.
fn server_with(databases: &[&str], conf: &[(&str, &str)]) -> Server {
    let server = Server::with_leaf_id(&[&CONF, conf].concat());
    for database in databases {
        create_database(&server, database);
    }
    server
}

fn create_database(server: &Server, name: &str) {
    server.session().run(&format!("CREATE DATABASE {name}"));
    let mut session = server.session_in(name);
    session.run("CREATE EXTENSION leaf_id");
    session.create_steady_tag("t", 100);
}

/// Takes ids until told to stop, one call at a time; the ids, and the longest call.
fn take_until(server: &Server, database: &str, done: &AtomicBool) -> (Vec<i64>, Duration) {
    let mut session = server.session_in(database);
    let (mut ids, mut longest) = (Vec::new(), Duration::ZERO);
    while !done.load(Ordering::Relaxed) {
        let (id, took) = timed(|| session.next("t"));
        longest = longest.max(took);
        ids.push(id);
        thread::sleep(Duration::from_micros(200));
    }
    (ids, longest)
}

#[test]
fn claims_go_on_while_parallel_queries_have_every_slot() {
    const DATABASES: [&str; 3] = ["a", "b", "c"];
    let server = server_with(&DATABASES, &[]);
    let hogs = Hogs::start(&server);
    let (drawn, ()) = in_threads_until(
        DATABASES.len(),
        |i, done| take_until(&server, DATABASES[i], done),
        || {
            let start = Instant::now();
            wait_until(LIMIT, "five seconds", || {
                start.elapsed() > Duration::from_secs(5)
            });
        },
    );
    // It was so all the time.
    assert_eq!(taken(&mut server.session()), FREE);
    drop(hogs);
    for (database, (ids, longest)) in DATABASES.iter().zip(drawn) {
        tell(&format!(
            "{database}: {} ids, the longest wait {longest:?}",
            ids.len()
        ));
        assert!(ids.len() > 200, "only {} ids in {database}", ids.len());
        assert_issued_once([ids]);
    }
}

#[test]
fn lease_renewals_go_on_while_parallel_queries_have_every_slot() {
    let registry = Registry::start();
    let server = registry.member_with("a", &CONF);
    for database in ["a", "b"] {
        create_database(&server, database);
    }
    let worker_id = worker_of(server.session().next_snowflake());
    let hogs = Hogs::start(&server);
    let asking = Asking::default();
    let (taken_ids, ()) = in_threads_until(
        3,
        |i, done| match i {
            0 => {
                asking.ask(&server, done);
                Vec::new()
            }
            _ => take_until(&server, ["a", "b"][i - 1], done).0,
        },
        || {
            asking.wait_for_ids();
            // Three leases long.
            for _ in 0..9 {
                registry.wait_for_renewal(worker_id);
            }
        },
    );
    assert_eq!(taken(&mut server.session()), FREE);
    drop(hogs);
    asking.is_never_refused();
    let longest = asking
        .calls()
        .iter()
        .map(|call| call.end - call.start)
        .max();
    tell(&format!("snowflake ids: the longest wait {longest:?}"));
    assert!(taken_ids[1..].iter().all(|ids| ids.len() > 200));
}
