//! Would catch: servers that get the same worker id from a registry; one that loses its id
//! over a restart, or waits then; one that gets an id without the floor that the last holder
//! has left; and a registry that stands in the way of its database.

use std::collections::BTreeSet;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use leaf_id_tests::{
    Fleet, LINK, Mode, Proxy, Server, Session, Stop, assert_issued_once, timed, wait_until,
};

const LIMIT: Duration = Duration::from_secs(60);
const EPOCH_MS: i64 = 1_288_834_974_657;
const CONF: [(&str, &str); 2] = [
    ("leaf_id.timestamp_reservation", "200ms"),
    ("leaf_id.worker_lease", "60s"),
];

fn worker_of(id: i64) -> i64 {
    id >> 12 & 1023
}

/// Unix milliseconds.
fn time_of(id: i64) -> i64 {
    (id >> 22) + EPOCH_MS
}

fn state(session: &mut Session) -> String {
    session.value("SELECT state FROM leaf_snowflake_status")
}

/// Leaves the registry with these worker ids, and no others to give.
fn leave(registry: &Server, ids: i32) {
    registry.session().run(&format!(
        "SELECT leaf_worker_retire(n) FROM generate_series({ids}, 1023) n"
    ));
}

/// How far the registry has recorded a worker id as used, in Unix milliseconds.
fn recorded(registry: &Server, worker_id: i64) -> i64 {
    registry.session().value(&format!(
        "SELECT reserved_until_ms FROM leaf_worker WHERE worker_id = {worker_id}"
    ))
}

#[test]
fn registry_in_a_local_database() {
    let server = Server::with_leaf_id(&[
        ("leaf_id.worker_id", "auto"),
        ("leaf_id.worker_registry", "postgres"),
        CONF[0],
    ]);
    let mut session = server.session();
    let id = session.next_snowflake();
    assert_eq!(worker_of(id), 0);
    let shown: bool = session.value(
        "SELECT (state, worker_id, worker_id_source, registry) = ('open', 0, 'registry', 'postgres')
             AND lease_until BETWEEN now() + '4 min' AND now() + '6 min'
             AND registry_away_since IS NULL AND last_error IS NULL
             AND abs(clock_offset_ms) < 1000 AND peers_offset_ms IS NULL
         FROM leaf_snowflake_status",
    );
    assert!(shown);
    // Not there between two questions.
    let workers =
        "SELECT count(*) = 0 FROM pg_stat_activity WHERE backend_type = 'leaf_id registrar'";
    wait_until(LIMIT, "the end of the registrar", || session.value(workers));
    server.restart();
    let mut session = server.session();
    let again = session.next_snowflake();
    assert_eq!(worker_of(again), 0);
    assert!(again > id);
}

#[test]
fn a_restart_keeps_the_id() {
    let fleet = Fleet::leasing(2, &CONF);
    let member = &fleet.members[1];
    fleet.members[0].session().next_snowflake();
    let mut ids = vec![member.session().next_snowflake()];
    let worker = worker_of(ids[0]);
    type End = fn(&Server);
    let restarts: [(&str, End); 4] = [
        ("fast", |server| server.stop(Stop::Fast)),
        ("immediate", |server| server.stop(Stop::Immediate)),
        ("killed", Server::kill_9),
        ("fast", |server| server.stop(Stop::Fast)),
    ];
    for (name, stop) in restarts {
        stop(member);
        member.launch();
        let mut session = member.session();
        // The lease is a minute, and it is not waited for.
        let (id, took) = timed(|| session.next_snowflake());
        println!("{name}: {took:?}");
        assert_eq!(worker_of(id), worker, "{name}");
        assert!(took < Duration::from_secs(20), "{name}: {took:?}");
        ids.push(id);
    }
    // The launcher alone.
    let mut session = member.session();
    let launcher = session.worker("launcher").unwrap();
    session.run(&format!("SELECT pg_terminate_backend({launcher})"));
    ids.push(session.next_snowflake());
    assert_eq!(worker_of(*ids.last().unwrap()), worker);
    assert_issued_once([ids]);
}

#[test]
fn several_servers_at_once_get_different_ids() {
    let count = match std::env::var_os("LEAF_ID_TORTURE_SECONDS") {
        Some(_) => 20,
        None => 4,
    };
    let small = [CONF[0], CONF[1], ("shared_buffers", "1MB")];
    let fleet = Fleet::new(count, &small);
    fleet.centre.lease_worker_ids();
    let mut blocker = fleet.centre.session();
    blocker.run("BEGIN; LOCK TABLE leaf_registry");
    for (number, member) in fleet.members.iter().enumerate() {
        member.lease_from_link(&format!("m{number}"));
    }
    let mut watcher = fleet.centre.session();
    wait_until(LIMIT, "the claims", || {
        let waiting: i64 = watcher.value(
            "SELECT count(*) FROM pg_stat_activity WHERE usename = 'leaf_member' AND wait_event_type = 'Lock'",
        );
        waiting >= 3
    });
    blocker.run("COMMIT");
    let workers: BTreeSet<i64> = fleet
        .members
        .iter()
        .map(|member| worker_of(member.session().next_snowflake()))
        .collect();
    println!("{workers:?}");
    assert_eq!(workers.len(), count);
    assert!(workers.last() < Some(&i64::try_from(count).unwrap()));
}

/// The files of the data directory are gone, as with the whole of it: nobody knows what was
/// issued, except the registry.
#[test]
fn a_lost_data_directory_gets_the_floor() {
    let fleet = Fleet::leasing(1, &[CONF[0], ("leaf_id.worker_lease", "4s")]);
    let member = &fleet.members[0];
    let mut session = member.session();
    let id = session.next_snowflake();
    member.stop(Stop::Fast);
    let recorded = recorded(&fleet.centre, worker_of(id));
    assert!(time_of(id) <= recorded);
    for file in ["leaf_id_lease.json", "leaf_id_reservation.json"] {
        fs::remove_file(member.data_dir().join(file)).unwrap();
    }
    member.launch();
    let mut session = member.session();
    let mut failure = None;
    wait_until(LIMIT, "a refusal", || {
        failure = session
            .try_column::<i64>("SELECT leaf_snowflake_next()")
            .err();
        failure
            .as_ref()
            .is_some_and(|failure| failure.state == "55000")
    });
    let failure = failure.unwrap();
    println!("{failure}");
    failure
        .says("another server")
        .details("is a copy of")
        .hints("leaf_id.node_name");
    let again = session.next_snowflake();
    assert_eq!(worker_of(again), worker_of(id));
    assert!(time_of(again) > recorded, "{} {recorded}", time_of(again));
}

/// The only worker id there is goes from one server to the other and back, under load.
#[test]
fn a_released_id_changes_hands_under_load() {
    let fleet = Fleet::leasing(2, &[CONF[0], ("leaf_id.worker_lease", "2s")]);
    leave(&fleet.centre, 1);
    let over = AtomicBool::new(false);
    let mut centre = fleet.centre.session();
    let ids = thread::scope(|scope| {
        let draw = |member: &Server| {
            let mut session = member.session();
            session.run("SET leaf_id.refill_timeout = '200ms'");
            let mut ids = Vec::new();
            while !over.load(Ordering::Relaxed) {
                if let Ok(more) = session.try_column::<i64>("SELECT leaf_snowflake_next_batch(5)") {
                    ids.extend(more);
                }
            }
            ids
        };
        let threads: Vec<_> = fleet
            .members
            .iter()
            .map(|member| scope.spawn(move || draw(member)))
            .collect();
        let holder = "SELECT node_name FROM leaf_worker WHERE worker_id = 0";
        for _ in 0..6 {
            let mut before = None;
            wait_until(LIMIT, "a holder", || {
                before = centre.value::<Option<String>>(holder);
                before.is_some()
            });
            thread::sleep(Duration::from_millis(300));
            centre.run("SELECT leaf_worker_release(0) FROM leaf_worker WHERE worker_id = 0 AND node_name IS NOT NULL");
        }
        over.store(true, Ordering::Relaxed);
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect::<Vec<_>>()
    });
    println!("{:?} ids", ids.iter().map(Vec::len).collect::<Vec<_>>());
    let all: Vec<i64> = ids.concat();
    let different: BTreeSet<i64> = all.iter().copied().collect();
    assert_eq!(different.len(), all.len(), "an id came twice");
    assert!(all.iter().all(|id| worker_of(*id) == 0));
    for ids in &ids {
        assert!(ids.is_sorted());
    }
}

#[test]
fn a_server_without_an_id_is_told_so() {
    let fleet = Fleet::leasing(2, &CONF);
    leave(&fleet.centre, 1);
    let mut first = fleet.members[0].session();
    wait_until(LIMIT, "the first one", || {
        first
            .try_column::<i64>("SELECT leaf_snowflake_next()")
            .is_ok()
            || fleet.members[1]
                .session()
                .try_column::<i64>("SELECT leaf_snowflake_next()")
                .is_ok()
    });
    let refused = fleet
        .members
        .iter()
        .filter_map(|member| {
            let mut session = member.session();
            let failure = session
                .try_column::<i64>("SELECT leaf_snowflake_next()")
                .err()?;
            println!("{failure}");
            failure
                .is("53400")
                .says("no free worker id")
                .hints("leaf_worker_release");
            assert_eq!(state(&mut session), "refused: no free worker id");
            Some(())
        })
        .count();
    assert_eq!(refused, 1);
}

/// The holder of a retired id changes to another one, and no call fails.
#[test]
fn a_retired_id_is_replaced() {
    let fleet = Fleet::leasing(1, &[CONF[0], ("leaf_id.worker_lease", "3s")]);
    let mut session = fleet.members[0].session();
    let mut ids = vec![session.next_snowflake()];
    assert_eq!(worker_of(ids[0]), 0);
    fleet.centre.session().run("SELECT leaf_worker_retire(0)");
    wait_until(LIMIT, "another worker id", || {
        ids.extend(session.ids("SELECT leaf_snowflake_next()"));
        worker_of(*ids.last().unwrap()) == 1
    });
    assert_issued_once([ids]);
    let log = fleet.members[0].log();
    assert_eq!(log.matches("worker id 0 is retired").count(), 1, "{log}");
    assert!(log.contains("has granted worker id 1"));
}

#[test]
fn the_registrys_database_is_dropped_in_peace() {
    let server = Server::start(&[
        ("leaf_id.worker_id", "auto"),
        ("leaf_id.worker_registry", "other"),
        CONF[0],
        ("leaf_id.worker_lease", "3s"),
    ]);
    let mut session = server.session();
    session.run("CREATE EXTENSION leaf_id");
    session.run("SET leaf_id.refill_timeout = '500ms'");
    let failure = session.fails("SELECT leaf_snowflake_next()");
    failure.is("55P03").details("\"other\" does not exist");
    session.run("CREATE DATABASE other");
    server.session_in("other").run("CREATE EXTENSION leaf_id");
    session.next_snowflake();
    let ((), took) = timed(|| session.run("DROP DATABASE other"));
    assert!(took < Duration::from_secs(10), "{took:?}");
    wait_until(LIMIT, "the end of the lease", || {
        let result = session.try_column::<i64>("SELECT leaf_snowflake_next()");
        result.is_err_and(|failure| {
            println!("{failure}");
            failure.is("55000").says("lease of worker id 0 has ended");
            failure.details("does not exist");
            true
        })
    });
    let shown: bool = session.value(
        "SELECT state = 'lease ended' AND lease_until < now() AND registry_away_since < now()
             AND last_error LIKE '%does not exist%' FROM leaf_snowflake_status",
    );
    assert!(shown);
    let log = server.log();
    assert!(!log.contains("FATAL:  database \"other\""));
    // Once before it was there, and once after.
    let told = log
        .matches("WARNING:  leaf_id: worker registry \"other\" does not answer")
        .count();
    assert!((2..=3).contains(&told), "told {told} times");
}

/// The settings change while it runs.
#[test]
fn a_worker_id_is_leased_fixed_and_leased_again() {
    let fleet = Fleet::leasing(1, &CONF);
    let member = &fleet.members[0];
    let mut session = member.session();
    let mut ids = vec![session.next_snowflake()];
    let mut until = |worker: i64, session: &mut Session| {
        wait_until(LIMIT, "the worker id", || {
            ids.push(session.next_snowflake());
            worker_of(*ids.last().unwrap()) == worker
        });
    };
    let source = "SELECT worker_id_source FROM leaf_snowflake_status";
    member.set("leaf_id.worker_id", "700");
    until(700, &mut session);
    assert_eq!(session.value::<String>(source), "leaf_id.worker_id");
    assert_eq!(
        session.value::<Option<String>>("SELECT registry FROM leaf_snowflake_status"),
        None
    );
    member.set("leaf_id.worker_id", "auto");
    until(0, &mut session);
    assert_eq!(session.value::<String>(source), "registry");
    session
        .fails("SELECT leaf_snowflake_reset(now())")
        .is("55000")
        .says("auto");
    // As another node it is another server.
    member.set("leaf_id.node_name", "renamed");
    until(1, &mut session);
    member.set("leaf_id.worker_registry", "");
    wait_until(LIMIT, "the error", || {
        let result = session.try_column::<i64>("SELECT leaf_snowflake_next()");
        result.is_err_and(|failure| {
            failure
                .is("55000")
                .says("worker_registry")
                .hints("ALTER SYSTEM");
            true
        })
    });
    assert_issued_once([ids]);
}

#[test]
fn another_epoch_is_told() {
    let fleet = Fleet::leasing(1, &CONF);
    fleet.members[0].session().next_snowflake();
    let other = Server::start_unrelated(2, &[CONF[0], ("leaf_id.epoch", "1500000000000")]);
    other.feed_from(&[fleet.centre.dir()]);
    other.lease_from_link("other");
    let mut session = other.session();
    wait_until(LIMIT, "the refusal", || {
        state(&mut session) == "refused: epoch is not that of the worker registry"
    });
    let failure = session.fails("SELECT leaf_snowflake_next()");
    println!("{failure}");
    failure
        .is("55000")
        .details("1288834974657")
        .hints("leaf_id.epoch");
}

/// It was granted, and nobody knows: the next question is not taken for a copy's.
#[test]
fn a_lost_answer_is_no_clone() {
    let fleet = Fleet::new(1, &[CONF[0], ("leaf_id.worker_lease", "6s")]);
    fleet.centre.lease_worker_ids();
    let member = &fleet.members[0];
    let proxy = Proxy::to(&fleet.centre);
    let mut session = member.session();
    session.run(&format!(
        "ALTER SERVER {LINK} OPTIONS (SET host '{}')",
        proxy.dir().display()
    ));
    proxy.set(Mode::CutAfter("leaf_worker_claim($1"));
    member.lease_from_link("m1");
    let mut ids = vec![session.next_snowflake()];
    assert_eq!(proxy.cuts(), 1);
    proxy.set(Mode::CutAfter("leaf_worker_renew($1"));
    wait_until(LIMIT, "a lost renewal", || {
        ids.extend(session.ids("SELECT leaf_snowflake_next()"));
        proxy.cuts() == 2
    });
    let renewed = "SELECT lease_until > now() + '3s' AND registry_away_since IS NULL
        AND last_error IS NULL FROM leaf_snowflake_status";
    wait_until(LIMIT, "the next renewal", || {
        ids.extend(session.ids("SELECT leaf_snowflake_next()"));
        session.value(renewed)
    });
    assert_issued_once([ids]);
    assert!(!member.log().contains("grants no worker id"));
}
