//! Would catch: parallel queries, or other workers, that take every worker slot and so block the
//! claims of all databases and the lease of the worker id; and a reserve worker that blocks DROP
//! DATABASE, is lost when it exits, or fills the log.
//!
//! One file, since all tests need [`Hogs`].

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leaf_id_tests::{
    Asking, CENTRAL, Mode, Paused, Proxy, Registry, Server, Session, Stop, assert_issued_once,
    in_threads, in_threads_until, lease_conf, random, tell, timed, wait_until, worker_of,
};
use rand::RngExt;

const LIMIT: Duration = Duration::from_secs(30);
const RESERVE: &str = "leaf_id reserve worker";
/// Keeps the worker in a database that has no competition.
const STAYS: (&str, &str) = ("leaf_id.allocator_idle_timeout", "1h");

/// Slots for the launcher, the reserve worker, and [`FREE`] others.
const CONF: [(&str, &str); 5] = [
    ("max_worker_processes", "8"),
    ("max_parallel_workers", "8"),
    ("max_logical_replication_workers", "0"),
    ("autovacuum", "off"),
    ("leaf_id.allocator_idle_timeout", "100ms"),
];
const FREE: i64 = 6;
const QUERIES: usize = 4;

/// Parallel queries of a role that can only connect, in its own database. They occupy every free
/// worker slot until this is dropped.
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
            hogs.add();
        }
        // A query that started while a slot was in use permanently lacks a worker.
        let mut looks = 0;
        wait_until(LIMIT, "every worker slot to be taken", || {
            let all = taken(&mut admin) == FREE;
            looks += 1;
            if !all && looks % 20 == 0 {
                hogs.add();
            }
            all
        });
        hogs
    }

    fn add(&mut self) {
        let mut session = self.server.connect_as("hog", "hogs");
        self.pids.push(session.pid());
        session.run(
            "SET statement_timeout = 0; SET max_parallel_workers_per_gather = 2;
             SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0;
             SET min_parallel_table_scan_size = 0; SET enable_indexonlyscan = off",
        );
        self.threads.push(thread::spawn(move || {
            // Until terminated.
            let _ = session.try_run("SELECT pg_sleep(1000) FROM pg_proc");
        }));
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

/// Worker slots occupied by parallel queries.
fn taken(session: &mut Session) -> i64 {
    session.value("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'parallel worker'")
}

fn allocators(session: &mut Session) -> i64 {
    session.value("SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'leaf_id allocator'")
}

/// A server with the extension in these databases, and tag t with short segments in each.
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

/// Takes ids one by one until `done`. Returns the ids and the longest call.
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

/// Pid of the reserve worker. It is running, unless it has just exited.
fn process(server: &Server) -> Option<i32> {
    server.worker(RESERVE)
}

/// Its pid while it serves a database.
fn serving(session: &mut Session, database: &str) -> Option<i32> {
    session
        .column(&format!(
            "SELECT pid FROM pg_stat_activity
             WHERE backend_type = '{RESERVE}' AND datname = '{database}'"
        ))
        .pop()
}

/// Waits until it serves no database. Returns its pid.
fn wait_for_waiting(server: &Server) -> i32 {
    let mut session = server.session();
    let mut pid = None;
    wait_until(LIMIT, "the reserve worker to wait", || {
        let connected: i64 = session.value(&format!(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = '{RESERVE}'"
        ));
        pid = process(server).filter(|_| connected == 0);
        pid.is_some()
    });
    pid.unwrap()
}

/// Number of its exits, according to the log.
fn ends(server: &Server) -> usize {
    let log = server.log();
    log.lines()
        .filter(|line| line.contains(RESERVE) && line.contains("exited with exit code 1"))
        .count()
}

#[test]
fn claims_go_on_while_parallel_queries_have_every_slot() {
    const DATABASES: [&str; 3] = ["a", "b", "c"];
    let server = server_with(&DATABASES, &[]);
    let hogs = Hogs::start(&server);
    let start = Instant::now();
    let (drawn, ()) = in_threads_until(
        DATABASES.len(),
        |i, done| take_until(&server, DATABASES[i], done),
        || thread::sleep(Duration::from_secs(5)),
    );
    // Throughout the test.
    assert_eq!(taken(&mut server.session()), FREE);
    drop(hogs);
    // A database gets it at most four times per second.
    let ends = ends(&server);
    let took = start.elapsed();
    tell(&format!(
        "the reserve worker ended {ends} times in {took:?}"
    ));
    let seconds = usize::try_from(took.as_secs()).unwrap();
    assert!(ends < 20 * seconds, "{ends} ends in {took:?}");
    // The databases take turns.
    let counts = drawn.iter().map(|(ids, _)| ids.len());
    let (least, most) = (counts.clone().min().unwrap(), counts.max().unwrap());
    assert!(5 * least > most, "from {least} to {most} ids");
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
            // For three leases.
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

#[test]
fn databases_are_copied_and_dropped_while_it_waits_and_while_it_serves() {
    let server = server_with(&["a", "b"], &[STAYS]);
    let hogs = Hogs::start(&server);
    let mut admin = server.session();
    wait_for_waiting(&server);
    admin.run("CREATE DATABASE copy TEMPLATE a");
    admin.run("DROP DATABASE copy");
    for round in 0..3 {
        let ids = server.session_in("a").take("t", 500);
        assert_eq!(ids.len(), 500);
        assert!(serving(&mut admin, "a").is_some());
        let ((), took) = timed(|| admin.run(&format!("CREATE DATABASE a{round} TEMPLATE a")));
        println!("copied in {took:?}");
    }
    server.session_in("a").take("t", 500);
    assert!(serving(&mut admin, "a").is_some());
    admin.run("DROP DATABASE a");
    admin.run("ALTER DATABASE a0 RENAME TO c");
    for database in ["b", "c", "a1"] {
        server.session_in(database).take("t", 500);
    }
    assert_eq!(taken(&mut admin), FREE);
    drop(hogs);
}

#[test]
fn it_is_back_whatever_ends_it() {
    // Two segments of a hundred, and one being claimed: another worker is needed.
    const MORE_THAN_CACHED: i32 = 500;
    let server = server_with(&["a"], &[STAYS]);
    let hogs = Hogs::start(&server);
    let (mut admin, mut session) = (server.session(), server.session_in("a"));
    let mut ids = Vec::new();
    for _ in 0..5 {
        // A spare requested at its exit makes it serve again.
        wait_until(LIMIT, "it to serve no database", || {
            let pid = serving(&mut admin, "a");
            if let Some(pid) = pid {
                admin.run(&format!("SELECT pg_terminate_backend({pid})"));
            }
            pid.is_none() && process(&server).is_some()
        });
        // PostgreSQL does not consider it a backend.
        let waiting = wait_for_waiting(&server);
        assert!(!admin.value::<bool>(&format!("SELECT pg_terminate_backend({waiting})")));
        server.terminate(waiting);
        wait_until(LIMIT, "another one", || {
            process(&server).is_some_and(|pid| pid != waiting)
        });
        ids.extend(session.take("t", MORE_THAN_CACHED));
        let pid = serving(&mut admin, "a").unwrap();
        assert!(admin.value::<bool>(&format!("SELECT pg_terminate_backend({pid})")));
        ids.extend(session.take("t", MORE_THAN_CACHED));
        let pid = serving(&mut admin, "a").unwrap();
        assert!(admin.value::<bool>(&format!("SELECT pg_cancel_backend({pid})")));
        ids.extend(session.take("t", MORE_THAN_CACHED));
        let pid = serving(&mut admin, "a").unwrap();
        assert!(admin.value::<bool>(&format!("SELECT pg_terminate_backend({pid})")));
    }
    assert_issued_once([ids]);
    assert_eq!(taken(&mut admin), FREE);
    drop(hogs);
    // A crash, which the server reports to every session, and exits of the server.
    drop((admin, session));
    for end in [
        |server: &Server| {
            // The previous one may have just exited.
            assert!(server.kill_9_backend(wait_for_waiting(server)));
            // The server accepts connections until the postmaster has noticed.
            wait_until(LIMIT, "the server", || {
                server.log().contains("all server processes terminated")
                    && server.try_connect("postgres", "postgres").is_ok()
            });
        },
        Server::restart,
        |server: &Server| {
            server.stop(Stop::Immediate);
            server.launch();
        },
    ] {
        end(&server);
        wait_for_waiting(&server);
        let hogs = Hogs::start(&server);
        server.session_in("a").take("t", 300);
        assert!(serving(&mut server.session(), "a").is_some());
        // It does not block a shutdown while it serves.
        if server.log().contains("was terminated by signal 9") {
            drop(hogs);
        } else {
            server.restart();
        }
    }
}

#[test]
fn ids_go_on_when_it_and_the_launcher_are_terminated_all_the_time() {
    const DATABASES: [&str; 3] = ["a", "b", "c"];
    let server = server_with(&DATABASES, &[]);
    let hogs = Hogs::start(&server);
    let mut random = random();
    let taken_by = [const { AtomicUsize::new(0) }; 2 * DATABASES.len()];
    let (drawn, ()) = in_threads_until(
        taken_by.len(),
        |i, done| {
            let mut session = server.session_in(DATABASES[i / 2]);
            session.run("SET leaf_id.refill_timeout = '30s'");
            let mut ids = Vec::new();
            while !done.load(Ordering::Relaxed) {
                ids.extend(session.take("t", 30));
                taken_by[i].store(ids.len(), Ordering::Relaxed);
            }
            ids
        },
        || {
            let mut admin = server.session();
            let deadline = Instant::now() + LIMIT;
            // At least this often, and until ids have continued in all databases.
            let goes_on = || {
                let gone_on = |ids: &AtomicUsize| ids.load(Ordering::Relaxed) > 100;
                taken_by.iter().all(gone_on)
            };
            for round in 0.. {
                if round >= 60 && goes_on() {
                    break;
                }
                assert!(Instant::now() < deadline, "{taken_by:?}");
                let pid = if round % 10 == 0 {
                    admin.worker("launcher")
                } else {
                    process(&server)
                };
                if let Some(pid) = pid {
                    server.terminate(pid);
                }
                thread::sleep(Duration::from_millis(random.random_range(0..100)));
            }
        },
    );
    for pair in drawn.chunks(2) {
        assert_issued_once(pair);
    }
    assert_eq!(taken(&mut server.session()), FREE);
    drop(hogs);
}

/// Makes the launcher assign it to a database, and stops it before it reads the assignment. Returns
/// its pid.
fn stop_with_assignment(server: &Server, database: &str) -> (i32, Paused) {
    let mut stopped = None;
    wait_until(LIMIT, "an assignment", || {
        // May be the previous one, about to exit.
        stopped = None;
        let pid = wait_for_waiting(server);
        let paused = server.pause(pid);
        let mut session = server.session_in(database);
        session.run("SET leaf_id.refill_timeout = '1s'");
        // Another worker has served the request, since a slot was free for a moment.
        let Err(failure) = session.try_take("t", 500) else {
            return false;
        };
        let assigned = failure.is("55P03").detail.starts_with("No allocator");
        stopped = assigned.then_some((pid, paused));
        assigned
    });
    stopped.unwrap()
}

#[test]
fn an_assignment_outlives_neither_the_launcher_nor_the_worker() {
    let server = server_with(&["a", "b"], &[]);
    let hogs = Hogs::start(&server);
    let mut admin = server.session();
    // The launcher exits after the assignment, and its successor does not know of it. The worker
    // continues, or exits, too.
    for both in [false, true] {
        let (pid, stopped) = stop_with_assignment(&server, "a");
        let launcher = admin.worker("launcher").unwrap();
        server.terminate(launcher);
        wait_until(LIMIT, "the next launcher", || {
            admin
                .worker("launcher")
                .is_some_and(|next| next != launcher)
        });
        if both {
            server.terminate(pid);
        }
        drop(stopped);
        for database in ["a", "b"] {
            server.session_in(database).take("t", 500);
        }
    }
    // The worker exits after the assignment.
    let (pid, stopped) = stop_with_assignment(&server, "a");
    server.terminate(pid);
    drop(stopped);
    for database in ["a", "b"] {
        server.session_in(database).take("t", 500);
    }
    assert_eq!(taken(&mut admin), FREE);
    drop(hogs);
}

#[test]
fn a_database_that_is_gone_or_locked_when_it_comes_ends_it_once() {
    let server = server_with(&["a", "b", "c"], &[]);
    let hogs = Hogs::start(&server);
    let mut admin = server.session();
    let (_, stopped) = stop_with_assignment(&server, "a");
    admin.run("DROP DATABASE a");
    let before = ends(&server);
    drop(stopped);
    let (ids, took) = timed(|| server.session_in("b").take("t", 500));
    assert_eq!(ids.len(), 500);
    wait_for_waiting(&server);
    let ended = ends(&server) - before;
    tell(&format!("after a dropped database: {took:?}, {ended} ends"));
    assert!(ended < 10, "{ended} ends");
    let gone = server.log().matches("does not exist").count();
    assert_eq!(gone, 1, "logged once");

    // The database is locked for long, as by CREATE DATABASE TEMPLATE: after the assignment, ...
    let timeouts = || server.log().matches("due to lock timeout").count();
    let mut locker = server.session_in("c");
    let (_, stopped) = stop_with_assignment(&server, "b");
    locker.run("BEGIN; ALTER DATABASE b RENAME TO locked");
    drop(stopped);
    server.session_in("c").take("t", 500);
    assert_eq!(timeouts(), 1);
    locker.run("ROLLBACK");
    server.session_in("b").take("t", 500);
    // ... and before.
    let stopped = server.pause(admin.worker("launcher").unwrap());
    wait_for_waiting(&server);
    let mut session = server.session_in("b");
    session.run("SET leaf_id.refill_timeout = '300ms'");
    session.try_take("t", 500).unwrap_err().is("55P03");
    drop(session);
    locker.run("BEGIN; ALTER DATABASE b RENAME TO locked");
    drop(stopped);
    server.session_in("c").take("t", 500);
    locker.run("ROLLBACK");
    server.session_in("b").take("t", 500);
    assert_eq!(timeouts(), 1);
    assert_eq!(taken(&mut admin), FREE);
    drop(hogs);
}

/// A session that waits for its turn too long gets the reason.
#[test]
fn a_busy_one_is_reported() {
    let server = server_with(&["a", "b"], &[STAYS]);
    let hogs = Hogs::start(&server);
    server.session_in("a").take("t", 300);
    let pid = serving(&mut server.session(), "a").unwrap();
    let stopped = server.pause(pid);
    let mut session = server.session_in("b");
    session.run("SET leaf_id.refill_timeout = '500ms'");
    session
        .try_next("t")
        .unwrap_err()
        .is("55P03")
        .details("take turns at the reserve worker");
    drop(stopped);
    session.run("RESET leaf_id.refill_timeout");
    session.take("t", 300);
    drop(hogs);
}

#[test]
fn a_claim_that_hangs_does_not_hold_up_the_lease() {
    let registry = Registry::ahead(Server::with_leaf_id(&[]), 12_000);
    let server = registry.member_with("a", &CONF);
    create_database(&server, "d");
    let worker_id = worker_of(server.session().next_snowflake());
    let hogs = Hogs::start(&server);
    server.set("synchronous_standby_names", "absent");
    let impatient = || {
        let mut session = server.session_in("d");
        session.run("SET leaf_id.refill_timeout = '300ms'");
        session.try_take("t", 500).unwrap_err().is("55P03");
    };
    impatient();
    let mut admin = server.session();
    wait_until(LIMIT, "the claim to hang", || {
        admin.value(&format!(
            "SELECT count(*) = 1 FROM pg_stat_activity
             WHERE backend_type = '{RESERVE}' AND wait_event = 'SyncRep'"
        ))
    });
    // It is requested repeatedly.
    in_threads_until(
        1,
        |_, done| {
            while !done.load(Ordering::Relaxed) {
                impatient();
            }
        },
        || {
            for _ in 0..3 {
                registry.wait_for_renewal(worker_id);
            }
        },
    );
    assert_eq!(taken(&mut admin), FREE);
    server.set("synchronous_standby_names", "");
    drop(hogs);
}

#[test]
fn a_registry_that_says_nothing_does_not_hold_up_claims() {
    // Asked again after more than a second, as operations.md has it.
    let registry = Registry::ahead(Server::with_leaf_id(&[]), 12_000);
    let proxy = Proxy::to(&registry.server);
    let server = registry.member_by(proxy.dir(), "a", &CONF);
    for database in ["a", "b"] {
        create_database(&server, database);
    }
    server.session().next_snowflake();
    // It would wait up to leaf_id.claim_timeout.
    server.session().run(&format!(
        "ALTER SERVER {CENTRAL} OPTIONS (SET connect_timeout '30')"
    ));
    let hogs = Hogs::start(&server);
    proxy.set(Mode::Silent);
    let mut admin = server.session();
    wait_until(LIMIT, "the registry to be missed", || {
        admin
            .snowflake_status::<Option<String>>("registry_error")
            .is_some()
    });
    let drawn = in_threads(2, |i| {
        let mut session = server.session_in(["a", "b"][i]);
        let (mut ids, mut longest) = (Vec::new(), Duration::ZERO);
        for _ in 0..10 {
            let (more, took) = timed(|| session.take("t", 250));
            longest = longest.max(took);
            ids.extend(more);
        }
        (ids, longest)
    });
    for (ids, longest) in drawn {
        tell(&format!(
            "with a silent registry: the longest wait {longest:?}"
        ));
        assert_issued_once([ids]);
    }
    assert_eq!(taken(&mut admin), FREE);
    drop(hogs);
}

#[test]
fn a_standby_renews_its_lease_by_it() {
    let registry = Registry::start();
    let primary = registry.member_with("primary", &CONF);
    primary.session().next_snowflake();
    // For parallel queries on the standby.
    drop(Hogs::start(&primary));
    let conf = lease_conf("postgres/leaf_central", "standby");
    let conf: Vec<_> = conf.iter().map(|(name, value)| (*name, &**value)).collect();
    let standby = primary.standby(&conf);
    standby.replay_all_of(&primary);
    let worker_id = worker_of(standby.session().next_snowflake());
    let hogs = Hogs::start(&standby);
    for _ in 0..6 {
        registry.wait_for_renewal(worker_id);
    }
    assert_eq!(worker_of(standby.session().next_snowflake()), worker_id);
    assert_eq!(taken(&mut standby.session()), FREE);
    drop(hogs);
}
