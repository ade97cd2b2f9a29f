//! Would catch: servers that lease the same worker id, a restart that takes another one, a new
//! holder that starts below the previous one's ids, a lost answer mistaken for a copy of the
//! server, and a holder that continues after its worker id was revoked.

use std::fs;
use std::sync::Barrier;
use std::time::Duration;

use leaf_id_tests::{
    Asking, CENTRAL, Mode, OTHER_BOOT, Proxy, Registry, Server, Session, Stop, assert_apart,
    assert_in_order, assert_issued_once, edit_json, in_threads, in_threads_until, lease_conf,
    now_ms, time_of, timed, wait_until, worker_of,
};

const LIMIT: Duration = Duration::from_secs(60);

/// Takes ids of a server until they have this worker id, and returns the others.
#[track_caller]
fn ids_until_worker(session: &mut Session, worker_id: i32) -> Vec<i64> {
    let mut ids = Vec::new();
    wait_until(LIMIT, "the worker id", || {
        ids.extend(session.try_snowflake());
        ids.last().is_some_and(|id| worker_of(*id) == worker_id)
    });
    ids
}

#[test]
fn a_restart_keeps_the_id() {
    let registry = Registry::ahead(Server::with_leaf_id(&[]), 30_000);
    let servers = ["a", "b"].map(|node| registry.member(node));
    let mut ids = [0, 1].map(|server| vec![servers[server].session().next_snowflake()]);
    let workers = [0, 1].map(|server| worker_of(ids[server][0]));
    assert_ne!(workers[0], workers[1]);
    let mut session = servers[1].session();
    assert_eq!(
        session.snowflake_status::<String>("snowflake_state"),
        "open"
    );
    assert_eq!(session.snowflake_status::<i32>("worker_id"), workers[1]);
    assert_eq!(
        session.snowflake_status::<String>("worker_id_source"),
        "registry"
    );
    assert_eq!(
        session.snowflake_status::<String>("registry"),
        format!("postgres/{CENTRAL}")
    );
    assert!(session.snowflake_status::<bool>("lease_until > now()"));
    assert!(session.snowflake_status::<bool>("not_renewed_since IS NULL"));

    let leased = workers.map(|worker_id| registry.holder(worker_id).unwrap());
    assert_eq!(leased[0].node.as_deref(), Some("a"));
    let stops: [fn(&Server); 3] = [
        |server| server.stop(Stop::Fast),
        |server| server.stop(Stop::Immediate),
        Server::kill_9,
    ];
    for stop in stops {
        for server in [1, 0] {
            stop(&servers[server]);
            servers[server].launch();
            let id = servers[server].session().next_snowflake();
            assert_eq!(worker_of(id), workers[server]);
            // It does not wait for the end of the recorded reservation.
            assert!(time_of(id) < leased[server].reserved_until_ms);
            ids[server].push(id);
            let mut session = servers[server].session();
            wait_until(LIMIT, "the first renewal", || {
                session.snowflake_status::<String>("worker_id_source") == "registry"
            });
            let holder = registry.holder(workers[server]).unwrap();
            assert_eq!(holder.leased_us, leased[server].leased_us, "the same lease");
        }
    }
    assert_eq!(
        registry
            .server
            .session()
            .value::<i64>("SELECT count(*) FROM leaf_id.leaf_worker"),
        2
    );
    assert_issued_once(&ids);
}

/// Another server may have had it since, with a clock ahead.
#[test]
fn a_worker_id_that_was_leased_is_not_known_once_it_is_set() {
    let registry = Registry::start();
    for (node, stop) in [("a", Stop::Fast), ("b", Stop::Immediate)] {
        let server = registry.member(node);
        let mut session = server.session();
        let id = session.next_snowflake();
        let worker_id = worker_of(id);
        session.run(&format!(
            "ALTER SYSTEM SET leaf_id.worker_id = '{worker_id}'"
        ));
        server.stop(stop);
        server.launch();
        let mut session = server.session();
        let set = session.next_snowflake();
        assert_eq!(worker_of(set), worker_id);
        assert!(time_of(set) > now_ms() + 8_000, "M is 10 s");
        let reason: String = session.snowflake_status("floor_reason");
        assert_eq!(reason, "other worker id", "after {stop:?}");
        server.stop(Stop::Fast);
        server.launch();
        let reason: String = server.session().snowflake_status("floor_reason");
        assert_eq!(reason, "clean stop", "it is known now");
    }
}

#[test]
fn after_its_lease_has_ended_a_node_still_has_its_id() {
    let registry = Registry::start();
    let servers = ["a", "b"].map(|node| registry.member(node));
    let mut ids = servers
        .each_ref()
        .map(|server| vec![server.session().next_snowflake()]);
    for stop in [|server: &Server| server.stop(Stop::Fast), Server::kill_9] {
        let worker_id = worker_of(ids[0][0]);
        stop(&servers[0]);
        registry.wait_for_end(worker_id);
        servers[0].launch();
        let id = servers[0].session().next_snowflake();
        assert_eq!(worker_of(id), worker_id);
        ids[0].push(id);
    }
    ids[1].push(servers[1].session().next_snowflake());
    assert_issued_once(ids);
}

/// Small servers: twenty of them share a machine with other tests.
const SMALL: [(&str, &str); 7] = [
    ("shared_buffers", "1MB"),
    ("max_connections", "8"),
    ("max_worker_processes", "4"),
    ("max_wal_senders", "0"),
    ("max_logical_replication_workers", "0"),
    ("autovacuum", "off"),
    ("leaf_id.max_tags", "16"),
];

#[test]
fn twenty_servers_at_once_get_twenty_ids() {
    const SERVERS: usize = 20;
    let registry = Registry::start();
    let (servers, took) = timed(|| {
        let servers = in_threads(2, |half| {
            let servers = (half..SERVERS).step_by(2).map(|number| {
                // Node names distinguish nodes of one system.
                let server = Server::start_unrelated(number % 3, &SMALL);
                server.session().run("CREATE EXTENSION leaf_id");
                server.connect_to_registry(registry.server.dir());
                server
            });
            servers.collect::<Vec<_>>()
        });
        servers.into_iter().flatten().collect::<Vec<_>>()
    });
    println!("started in {took:?}");
    let barrier = Barrier::new(SERVERS);
    let (ids, took) = timed(|| {
        in_threads(SERVERS, |number| {
            let server = &servers[number];
            let mut session = server.session();
            barrier.wait();
            server.lease_as(&format!("node {number}"));
            let mut ids = vec![session.next_snowflake()];
            for _ in 0..10 {
                ids.extend(session.ids("SELECT leaf_snowflake_next_batch(1000)"));
            }
            ids
        })
    });
    println!("twenty worker ids in {took:?}");
    let mut workers: Vec<_> = ids.iter().map(|ids| worker_of(ids[0])).collect();
    for (ids, worker_id) in ids.iter().zip(&workers) {
        assert!(ids.iter().all(|id| worker_of(*id) == *worker_id));
    }
    workers.sort_unstable();
    assert_eq!(workers, (0..20).collect::<Vec<_>>());
    assert_issued_once(ids);
    let mut session = registry.server.session();
    assert_eq!(
        session.value::<i64>(
            "SELECT count(DISTINCT (system_identifier, name)) FROM leaf_id.fleet WHERE state = 'leased'"
        ),
        20
    );
}

/// A server that lost a file, or was restored from a backup, does not know its issued ids.
#[test]
fn a_lost_data_directory_gets_another_id_at_once() {
    let registry = Registry::ahead(Server::with_leaf_id(&[]), 60_000);
    let server = registry.member("a");
    let mut ids = vec![server.session().next_snowflake()];
    assert_eq!(worker_of(ids[0]), 0);
    let backup = server.backup();
    // In use until it is killed.
    let mut kill = |server: &Server| {
        let mut session = server.session();
        ids.extend(session.ids("SELECT leaf_snowflake_next_batch(9000)"));
        server.kill_9();
    };
    let next = |server: &Server, worker_id| {
        let (id, took) = timed(|| server.session().next_snowflake());
        println!("the first id after {took:?}");
        assert_eq!(worker_of(id), worker_id);
    };
    kill(&server);
    fs::remove_file(server.lease_file()).unwrap();
    server.launch();
    next(&server, 1);
    kill(&server);
    fs::remove_file(server.reservation_file()).unwrap();
    server.launch();
    next(&server, 2);
    // A name has three at most, so that a server that crashes again and again leaves some for others.
    kill(&server);
    let restored = backup.start(&[]);
    let failure = restored
        .session()
        .wait_for_refusal("the worker registry has no free worker id");
    failure
        .is("54000")
        .details("node \"a\" has worker ids 0, 1, 2, of servers that were rebooted or copied")
        .hints("\"leaf_id.node_name\"");
    // By its own file it is still the same server.
    server.launch();
    wait_until(LIMIT, "its renewal", || {
        let mut session = server.session();
        session.snowflake_status::<String>("worker_id_source") == "registry"
    });
    next(&server, 2);
    let mut session = server.session();
    ids.extend(session.ids("SELECT leaf_snowflake_next_batch(9000)"));
    // A newly created cluster is another server, even with the same name.
    let new = Server::start_unrelated(0, &[]);
    new.session().run("CREATE EXTENSION leaf_id");
    new.lease_from(registry.server.dir(), "a");
    let id = new.session().next_snowflake();
    assert_eq!(worker_of(id), 3);
    ids.push(id);
    ids.sort_unstable();
    assert_issued_once([ids]);
}

/// Its clock is behind as far as allowed, and the previous holder was killed under full load.
#[test]
fn a_new_holder_starts_above_the_floor() {
    let registry = Registry::start();
    registry.leave(&[5]);
    let old = registry.member("old");
    assert_eq!(worker_of(old.session().next_snowflake()), 5);
    let new = registry.member_with_clock("new", -700, &[]);
    new.session()
        .wait_for_refusal("all 1024 worker ids are leased or retired")
        .is("54000");
    let asking = Asking::default();
    in_threads_until(
        2,
        |_, done| asking.ask(&old, done),
        || {
            registry.wait_for_renewal(5);
            asking.wait_for_ids();
            old.kill_9();
        },
    );
    let reserved_until_ms = registry.holder(5).unwrap().reserved_until_ms;
    let last = asking.ids().into_iter().max().unwrap();
    assert!(time_of(last) <= reserved_until_ms);
    let mut session = new.session();
    let id = session.next_snowflake();
    assert_eq!(worker_of(id), 5);
    assert!(id > last && time_of(id) > reserved_until_ms);
    assert_eq!(registry.holder(5).unwrap().node.as_deref(), Some("new"));
    // The old holder is back, and has nothing left.
    old.launch();
    old.session()
        .wait_for_refusal("all 1024 worker ids")
        .is("55000");
    assert!(session.next_snowflake() > id);
}

#[test]
fn a_lost_renewal_answer_is_no_clone() {
    const REQUEST: &str = r#""question":"#;
    let registry = Registry::ahead(Server::with_leaf_id(&[]), 6000);
    let proxy = Proxy::to(&registry.server);
    let cut_after = || {
        let cuts = proxy.cuts();
        proxy.set(Mode::CutAfter(REQUEST));
        wait_until(LIMIT, "the cut", || proxy.cuts() > cuts);
    };
    // The answer to the first request of all is lost, too.
    proxy.set(Mode::CutAfter(REQUEST));
    let server = registry.member_by(proxy.dir(), "a", &[]);
    let first = server.session().next_snowflake();
    assert_eq!((worker_of(first), proxy.cuts()), (0, 1));
    assert!(registry.holder(1).is_none());

    let asking = Asking::default();
    in_threads_until(
        2,
        |_, done| asking.ask(&server, done),
        || {
            for _ in 0..2 {
                cut_after();
                registry.wait_for_renewal(0);
                asking.wait_for_ids();
            }
        },
    );
    asking.is_never_refused();
    assert!(asking.ids().iter().all(|id| worker_of(*id) == 0));
    // The server dies before it can retry.
    cut_after();
    server.kill_9();
    server.launch();
    let id = server.session().next_snowflake();
    registry.wait_for_renewal(0);
    assert_eq!(worker_of(id), 0);
    assert!(registry.holder(1).is_none(), "it was taken for a copy");
    let mut ids = asking.ids();
    ids.extend([first, id]);
    ids.sort_unstable();
    assert_issued_once([ids]);
}

/// A server that leases from its own database `ids`.
fn server_with_a_registry_of_its_own() -> Server {
    let server = Server::with_leaf_id(&[]);
    server.session().run("CREATE DATABASE ids");
    server.session_in("ids").run(
        "CREATE EXTENSION leaf_id; INSERT INTO leaf_id.leaf_registry (grant_ahead_ms) VALUES (1000)",
    );
    server.lease("ids", "here");
    server
}

#[test]
fn registry_in_a_local_database() {
    let server = server_with_a_registry_of_its_own();
    let mut last = server.session().next_snowflake();
    assert_eq!(worker_of(last), 0);
    for restart in [Server::restart, Server::crash] {
        restart(&server);
        let mut session = server.session();
        let id = session.next_snowflake();
        assert_eq!(worker_of(id), 0);
        assert!(id > last);
        last = id;
        assert_eq!(session.snowflake_status::<String>("registry"), "ids");
        assert_eq!(
            session.snowflake_status::<String>("worker_id_source"),
            "registry"
        );
    }
    // Other servers lease from it, too.
    server.admit_members();
    let mut session = server.session_in("ids");
    session.run("GRANT EXECUTE ON FUNCTION leaf_id.leaf_worker_lease TO leaf_member");
    let other = Server::start_unrelated(1, &[]);
    let mut there = other.session();
    there.run("CREATE EXTENSION leaf_id");
    other.connect_to_registry(server.dir());
    there.run(&format!(
        "ALTER SERVER {CENTRAL} OPTIONS (SET dbname 'ids')"
    ));
    other.lease_as("there");
    assert_eq!(worker_of(there.next_snowflake()), 1);
    let nodes = "SELECT name FROM leaf_id.fleet WHERE state = 'leased' ORDER BY worker_id";
    assert_eq!(session.column::<String>(nodes), ["here", "there"]);
    let empty = "SELECT count(*) FROM leaf_id.leaf_worker";
    assert_eq!(server.session().value::<i64>(empty), 0, "not the registry");
}

/// The registry knows its own server without a token.
#[test]
fn the_registrys_own_server_keeps_its_worker_id_over_a_reboot() {
    let server = server_with_a_registry_of_its_own();
    let last = server.session().next_snowflake();
    server.stop(Stop::Fast);
    edit_json(&server.lease_file(), "boot_id", OTHER_BOOT);
    server.launch();
    let (id, took) = timed(|| server.session().next_snowflake());
    println!("the first id after {took:?}");
    assert_eq!([last, id].map(worker_of), [0, 0]);
    assert!(id > last);
}

/// The lease is renewed three times per second. DROP DATABASE waits a few seconds for other
/// sessions in the database, then fails.
#[test]
fn registry_in_a_local_database_is_dropped_in_peace() {
    let server = server_with_a_registry_of_its_own();
    let mut session = server.session();
    let mut other = server.session();
    let first = session.next_snowflake();
    for _ in 0..3 {
        for sql in [
            "CREATE DATABASE copy TEMPLATE ids",
            "ALTER DATABASE ids RENAME TO aside",
            "ALTER DATABASE aside RENAME TO ids",
            "DROP DATABASE copy",
        ] {
            session.run(sql);
        }
        other.next_snowflake();
    }
    let warnings = || {
        server
            .log()
            .lines()
            .filter(|line| line.contains("WARNING"))
            .count()
    };
    session.run("DROP DATABASE ids");
    let before = warnings();
    let failure = session.wait_for_refusal("the lease of worker id 0 is used up");
    failure.is("55000").details("\"ids\"");
    assert!(session.snowflake_status::<bool>("not_renewed_since IS NOT NULL"));
    // Retries are not logged.
    let asked_until = now_ms() + 3000;
    wait_until(LIMIT, "some more tries", || now_ms() > asked_until);
    let log = server.log();
    // One may have been starting when the database was dropped.
    let fatal = |line: &&str| line.contains("FATAL") && !line.contains(" 57P03 ");
    assert!(log.lines().filter(fatal).count() <= 1);
    let more = warnings() - before;
    assert!(more <= 3, "{more} warnings");

    session.run("CREATE DATABASE ids");
    server.session_in("ids").run("CREATE EXTENSION leaf_id");
    let id = session.next_snowflake();
    assert!(id > first);
    assert_eq!(worker_of(id), 0);
}

#[test]
fn a_retired_holder_stops() {
    // It comes back above what another server may have issued with it.
    let registry = Registry::on(Server::with_leaf_id(&[
        ("leaf_id.max_clock_lead", "100ms"),
        ("leaf_id.timestamp_reservation", "100ms"),
    ]));
    let server = registry.member("a");
    let mut session = server.session();
    let mut ids = vec![session.next_snowflake()];
    assert_eq!(worker_of(ids[0]), 0);
    let asking = Asking::default();
    let mut in_registry = registry.server.session();
    in_threads_until(
        2,
        |_, done| asking.ask(&server, done),
        || {
            asking.wait_for_ids();
            in_registry.run("SELECT leaf_id.leaf_worker_retire(0)");
            ids.extend(ids_until_worker(&mut session, 1));
        },
    );
    asking.is_never_refused();
    let calls = asking.calls();
    for worker_id in [0, 1] {
        let of_it = |call: &&leaf_id_tests::Call| worker_of(call.last) == worker_id;
        assert!(calls.iter().any(|call| of_it(&call)), "{worker_id}");
    }
    assert_in_order(calls);
    assert_issued_once([ids]);

    // If no worker id is left, it issues up to R, and then gets none.
    registry.leave(&[]);
    let failure = session.wait_for_refusal("all 1024 worker ids are leased or retired");
    failure
        .is("55000")
        .says("the lease of worker id 1 is used up");
    server.restart();
    let mut session = server.session();
    session.wait_for_refusal("all 1024 worker ids").is("55000");
    in_registry.run("SELECT leaf_id.leaf_worker_retire(1, false)");
    ids_until_worker(&mut session, 1);
    assert_apart([&asking]);
}

/// The registry's row is locked before those of worker ids: a renewal that has locked its own, and
/// then needs another worker id, is refused and asked again.
#[test]
fn a_renewal_whose_row_has_changed_is_asked_again() {
    let registry = Registry::start();
    let server = registry.member("a");
    let mut session = server.session();
    assert_eq!(worker_of(session.next_snowflake()), 0);
    let mut admin = registry.server.session();
    admin.run("BEGIN; SELECT leaf_id.leaf_worker_retire(0)");
    wait_until(LIMIT, "a renewal that waits", || {
        admin.value(
            "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid)
                 WHERE NOT l.granted AND a.usename = 'leaf_member')",
        )
    });
    admin.run("COMMIT");
    ids_until_worker(&mut session, 1);
    let refused = "40001 ERROR:  the lease of worker id 0 has changed";
    let log = registry.server.log();
    assert!(log.contains(refused), "{log}");
}

#[test]
fn a_worker_id_by_hand_and_one_from_a_registry_follow_each_other() {
    let registry = Registry::start();
    registry.leave(&[7]);
    let server = registry.member("a");
    let mut session = server.session();
    session.next_snowflake();
    let asking = Asking::default();
    in_threads_until(
        2,
        |_, done| asking.ask(&server, done),
        || {
            for worker_id in ["3", "auto", "4", "auto"] {
                asking.wait_for_ids();
                server.configure("leaf_id.worker_id", worker_id);
                ids_until_worker(&mut session, worker_id.parse().unwrap_or(7));
            }
        },
    );
    asking.is_refused_with(&["55000", "55P03"]);
    assert_apart([&asking]);
    assert_in_order(asking.calls());
}

#[test]
fn auto_without_a_registry_is_an_error_that_says_so() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    for (name, value) in lease_conf("", "a") {
        server.configure(name, &value);
    }
    let mut refusal = None;
    wait_until(LIMIT, "the reload", || {
        refusal = session.try_snowflake().err();
        let failure = refusal.as_ref().unwrap();
        failure.message.contains("leaf_id.worker_registry")
    });
    refusal.unwrap().is("55000");
}

/// The reset must not go below the reservation in the registry.
#[test]
fn reset_is_refused_with_auto() {
    let registry = Registry::start();
    let server = registry.member("a");
    let mut session = server.session();
    let first = session.next_snowflake();
    session
        .fails("SELECT leaf_id.leaf_snowflake_reset(now())")
        .is("55000");
    assert!(session.next_snowflake() > first);
}
