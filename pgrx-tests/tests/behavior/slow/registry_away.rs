//! Would catch: a server that stops as soon as its registry is down, or issues ids beyond what it
//! was granted; one that trusts a file that is not its own, or is from before a reboot, or that has
//! to wait after one; and one that must be restarted when the registry is back.

use std::fs;
use std::time::Duration;

use leaf_id_tests::{
    Asking, CENTRAL, Mode, OTHER_BOOT, Proxy, Registry, Server, Stop, assert_apart,
    assert_in_order, assert_issued_once, edit_json, in_threads_until, now_ms, promptly, time_of,
    timed, wait_until, worker_of,
};

const LIMIT: Duration = Duration::from_secs(60);
/// How far ahead a registry grants, longer than a test takes: no worker id comes back.
const LONG_MS: i64 = 600_000;
/// A call that the launcher cannot serve fails soon.
const IMPATIENT: [(&str, &str); 1] = [("leaf_id.refill_timeout", "500ms")];
const USED_UP: &str = "cannot issue snowflake ids: the lease of worker id 0 is used up";

fn registry_ahead(ahead_ms: i64) -> Registry {
    Registry::ahead(Server::with_leaf_id(&[]), ahead_ms)
}

/// Kills a server as its machine does that crashes: its lease file is from before the reboot.
fn crash_machine(server: &Server) {
    server.kill_9();
    edit_json(&server.lease_file(), "boot_id", OTHER_BOOT);
}

struct Place {
    registry: Registry,
    proxy: Proxy,
    server: Server,
}

impl Place {
    /// A server whose connection to its registry can be blocked.
    fn new(ahead_ms: i64) -> Self {
        let registry = registry_ahead(ahead_ms);
        let proxy = Proxy::to(&registry.server);
        let server = registry.member_by(proxy.dir(), "a", &IMPATIENT);
        Self {
            registry,
            proxy,
            server,
        }
    }

    fn status(&self, column: &str) -> String {
        let text = format!("coalesce({column}::text, '')");
        self.server.session().snowflake_status(&text)
    }
}

#[test]
fn away_at_start_the_file_serves() {
    let place = Place::new(LONG_MS);
    let server = &place.server;
    let mut last = server.session().next_snowflake();
    let worker_id = worker_of(last);
    let stops: [fn(&Server); 2] = [|server| server.stop(Stop::Fast), Server::kill_9];
    for mode in [Mode::Refuse, Mode::Silent] {
        for stop in stops {
            println!("{mode:?}");
            stop(server);
            place.proxy.set(mode);
            server.launch();
            let (id, took) = timed(|| server.session().next_snowflake());
            println!("the first id after {took:?}");
            assert_eq!(worker_of(id), worker_id);
            assert!(id > last);
            last = id;
            assert_eq!(place.status("worker_id_source"), "file");
            wait_until(LIMIT, "the first failure", || {
                !place.status("not_renewed_since").is_empty()
            });
            assert_ne!(place.status("registry_error"), "");
            place.proxy.set(Mode::Pass);
            wait_until(LIMIT, "the registry", || {
                place.status("worker_id_source") == "registry"
            });
            assert_eq!(place.status("not_renewed_since"), "");
            let id = server.session().next_snowflake();
            assert_eq!(worker_of(id), worker_id);
            assert!(id > last);
            last = id;
        }
    }
    assert!(place.registry.holder(worker_id + 1).is_none());
}

#[test]
fn away_longer_than_granted() {
    const AHEAD_MS: i64 = 5_000;
    let place = Place::new(AHEAD_MS);
    let (server, proxy) = (&place.server, &place.proxy);
    let mut session = server.session();
    session.next_snowflake();
    let asking = Asking::default();
    in_threads_until(
        2,
        |_, done| asking.ask(server, done),
        || {
            for mode in [Mode::Refuse, Mode::Silent] {
                asking.wait_for_ids();
                place.registry.wait_for_renewal(0);
                proxy.set(mode);
                let (away_ms, refusals) = (now_ms(), asking.refusals().len());
                // It continues to issue, and reports the failure as soon as it is detected.
                if mode == Mode::Refuse {
                    wait_until(LIMIT, "the first failure", || {
                        !place.status("not_renewed_since").is_empty()
                    });
                }
                // One may have been requested just before.
                wait_until(LIMIT, "a later id", || {
                    time_of(asking.wait_for_ids()) > away_ms
                });
                assert_eq!(asking.refusals().len(), refusals);
                // Up to R, and not beyond it.
                let failure = session.wait_for_refusal(USED_UP);
                failure
                    .is("55000")
                    .hints("as soon as the registry renews it");
                let holder = place.registry.holder(0).unwrap();
                let last_ms = asking.ids().into_iter().map(time_of).max().unwrap();
                let left_ms = holder.reserved_until_ms - last_ms;
                assert!((0..1_000).contains(&left_ms), "{left_ms} ms not used");
                wait_until(LIMIT, "the first failure", || {
                    !place.status("not_renewed_since").is_empty()
                });
                assert_ne!(place.status("registry_error"), "");
                proxy.set(Mode::Pass);
                let (_, took) = timed(|| asking.wait_for_ids());
                println!(
                    "{mode:?}: ids for {} ms, up to {left_ms} ms before R; then after {took:?}",
                    last_ms - away_ms
                );
                assert!(took < Duration::from_secs(10), "{took:?}");
            }
        },
    );
    asking.is_refused_with(&["55000", "55P03"]);
    assert!(asking.ids().iter().all(|id| worker_of(*id) == 0));
    assert_apart([&asking]);
    assert_in_order(asking.calls());
    // Each change was logged once.
    let log = server.log();
    let warnings = log.lines().filter(|line| line.contains("WARNING")).count();
    assert!((2..=10).contains(&warnings), "{warnings} warnings");
}

/// The file is used up to R, but no longer.
#[test]
fn away_at_start_and_longer_than_granted() {
    let place = Place::new(10_000);
    let server = &place.server;
    let last = server.session().next_snowflake();
    place.registry.wait_for_renewal(0);
    server.stop(Stop::Fast);
    place.proxy.set(Mode::Refuse);
    server.launch();
    let mut session = server.session();
    let id = session.next_snowflake();
    assert!(id > last);
    assert_eq!(place.status("worker_id_source"), "file");
    let mut ids = vec![last, id];
    while let Ok(id) = session.try_snowflake() {
        ids.push(id);
    }
    session.wait_for_refusal(USED_UP).is("55000");
    let until_ms = place.registry.holder(0).unwrap().reserved_until_ms;
    assert!(time_of(*ids.last().unwrap()) <= until_ms);
    // Nor after another start.
    server.restart();
    let mut session = server.session();
    session.wait_for_refusal(USED_UP).is("55000");
    place.proxy.set(Mode::Pass);
    ids.push(session.next_snowflake());
    println!("{} ids", ids.len());
    assert_issued_once([ids]);
}

#[test]
fn away_at_start_without_a_file() {
    for mode in [Mode::Refuse, Mode::Silent] {
        println!("{mode:?}");
        let registry = Registry::start();
        let proxy = Proxy::to(&registry.server);
        proxy.set(mode);
        let server = registry.member_by(proxy.dir(), "a", &IMPATIENT);
        let mut session = server.session();
        session.create_tag("t");
        let failure = session.wait_for_refusal("Worker registry");
        assert!(["55000", "55P03"].contains(&&*failure.state), "{failure}");
        wait_until(LIMIT, "the first failure", || {
            session.snowflake_status::<bool>("not_renewed_since IS NOT NULL")
        });
        for _ in 0..5 {
            promptly(|| session.try_snowflake()).unwrap_err();
        }
        // Tags are not affected.
        session.next("t");
        let shown: Option<i32> = session.snowflake_status("worker_id");
        assert_eq!(shown, None);
        proxy.set(Mode::Pass);
        assert_eq!(worker_of(session.next_snowflake()), 0);
    }
}

/// Checks that a server that has just started issues nothing, although it has noticed that the registry
/// says nothing.
#[track_caller]
fn assert_no_id(server: &Server) {
    let mut session = server.session();
    wait_until(LIMIT, "the first failure", || {
        session.snowflake_status::<bool>("not_renewed_since IS NOT NULL")
    });
    for _ in 0..10 {
        let failure = session.try_snowflake().unwrap_err();
        assert!(["55000", "55P03"].contains(&&*failure.state), "{failure}");
    }
}

/// Starts a server while the registry is down: it must issue nothing until the registry is back.
#[track_caller]
fn assert_no_id_before_the_registry(place: &Place, server: &Server) -> i64 {
    assert_no_id(server);
    place.proxy.set(Mode::Pass);
    server.session().next_snowflake()
}

/// What keeps a server from asking its registry: in which database, how it begins and ends, and what is
/// shown.
const OBSTACLES: [[&str; 4]; 3] = [
    [
        "postgres",
        "ALTER DATABASE gate RENAME TO aside",
        "ALTER DATABASE aside RENAME TO gate",
        "database \"gate\" does not exist",
    ],
    [
        "gate",
        "ALTER SERVER leaf_central RENAME TO aside",
        "ALTER SERVER aside RENAME TO leaf_central",
        "server \"leaf_central\" does not exist",
    ],
    [
        "gate",
        "ALTER SERVER leaf_central OPTIONS (ADD sslrootcert '/')",
        "ALTER SERVER leaf_central OPTIONS (DROP sslrootcert)",
        "sslrootcert is not a regular file",
    ],
];

/// A member whose foreign server is in database `gate`.
fn member_by_gate(registry: &Registry) -> Server {
    let server = Server::start_unrelated(1, &IMPATIENT);
    let mut session = server.session();
    session.run("CREATE EXTENSION leaf_id");
    session.run("CREATE DATABASE gate");
    let mut gate = server.session_in("gate");
    gate.run("CREATE EXTENSION dblink");
    gate.create_foreign_server(CENTRAL, &[registry.server.dir()]);
    server.lease(&format!("gate/{CENTRAL}"), "a");
    server
}

/// Nothing of that stops a server that has a lease, nor its restart.
#[test]
fn unasked_a_holder_goes_on() {
    // Asked every 20 s.
    let registry = registry_ahead(60_000);
    let server = member_by_gate(&registry);
    let mut last = server.session().next_snowflake();
    for [database, begin, end, why] in OBSTACLES {
        println!("{why}");
        server.session_in(database).run(begin);
        server.restart();
        let mut session = server.session();
        wait_until(LIMIT, "the failure", || {
            session.snowflake_status::<bool>("not_renewed_since IS NOT NULL")
        });
        assert_eq!(session.snowflake_status::<String>("registry_error"), why);
        let id = session.try_snowflake().unwrap();
        assert_eq!(worker_of(id), worker_of(last));
        assert!(id > last);
        last = id;
        let warning = format!(
            "could not lease from worker registry \"gate/{CENTRAL}\"; snowflake ids stop when the lease is used up: {why}"
        );
        assert_eq!(server.log().matches(&warning).count(), 1, "logged once");
        server.session_in(database).run(end);
        wait_until(LIMIT, "the renewal", || {
            session.snowflake_status::<bool>("not_renewed_since IS NULL")
        });
    }
    assert!(registry.holder(worker_of(last) + 1).is_none());
}

/// Nor is there anything to wait for: it is another server.
#[test]
fn a_copied_file_does_not_serve() {
    let place = Place::new(LONG_MS);
    let server = &place.server;
    let mut ids = vec![server.session().next_snowflake()];
    let backup = server.backup();
    server.stop(Stop::Fast);
    for copy in [backup, server.copy()] {
        place.proxy.set(Mode::Refuse);
        let clone = copy.start(&[]);
        ids.push(assert_no_id_before_the_registry(&place, &clone));
    }
    assert_eq!([0, 1, 2].map(|place| worker_of(ids[place])), [0, 1, 2]);
    assert_issued_once([ids]);
}

/// Before: the copy had the original's worker id, which the original used, too.
#[test]
fn the_image_of_a_stopped_server_takes_nothing_from_it() {
    let place = Place::new(LONG_MS);
    let server = &place.server;
    let before = server.session().next_snowflake();
    server.stop(Stop::Fast);
    let copy = server.copy().of_the_disk(server).start(&[]);
    let of_copy = copy.session().next_snowflake();
    place.proxy.set(Mode::Refuse);
    server.launch();
    let id = server.session().next_snowflake();
    assert_eq!([before, of_copy, id].map(worker_of), [0, 1, 0]);
    assert!(id > before);
}

/// A disk that was copied looks like that of a machine that was rebooted, or is another device.
#[test]
fn another_boot_does_not_serve() {
    let place = Place::new(LONG_MS);
    let server = &place.server;
    let mut ids = vec![server.session().next_snowflake()];
    for crash in [false, true] {
        if crash {
            crash_machine(server);
        } else {
            server.stop(Stop::Fast);
            edit_json(&server.lease_file(), "device", "1");
        }
        place.proxy.set(Mode::Refuse);
        server.launch();
        let id = assert_no_id_before_the_registry(&place, server);
        ids.push(id);
    }
    assert_eq!([0, 1, 2].map(|place| worker_of(ids[place])), [0, 1, 2]);
    assert_issued_once([ids]);
}

/// As if no answer had come: what cannot be written must not be used.
#[test]
fn a_lease_file_that_cannot_be_written_is_no_lease() {
    let registry = registry_ahead(6_000);
    let server = registry.member_with("a", &IMPATIENT);
    let last = server.session().next_snowflake();
    let in_the_way = server.lease_file().with_extension("json.tmp");
    let said = "could not write leaf_id_lease.json: ";
    let is_shown = || {
        let mut session = server.session();
        let problems: Vec<String> = session.column("SELECT what FROM leaf_id.problems");
        let is_it = |what: &String| what.starts_with("no snowflake ids") && what.contains(said);
        problems.iter().any(is_it)
    };
    fs::create_dir(&in_the_way).unwrap();
    // What it has is used up, though the registry has leased it more.
    let mut session = server.session();
    session
        .wait_for_refusal("could not write leaf_id_lease.json")
        .is("55000")
        .says("the lease of worker id 0 is used up");
    wait_until(LIMIT, "the problem", is_shown);
    fs::remove_dir(&in_the_way).unwrap();
    let id = session.next_snowflake();
    assert_eq!(worker_of(id), 0);
    assert!(id > last);
    // A server without a lease.
    server.stop(Stop::Fast);
    fs::remove_file(server.lease_file()).unwrap();
    fs::create_dir(&in_the_way).unwrap();
    server.launch();
    let mut session = server.session();
    session.wait_for_refusal("could not write leaf_id_lease.json");
    wait_until(LIMIT, "the problem", is_shown);
    fs::remove_dir(&in_the_way).unwrap();
    let another = session.next_snowflake();
    assert!(another > id);
}

#[test]
fn a_crashed_machine_has_another_worker_id_at_once() {
    let registry = registry_ahead(LONG_MS);
    let server = registry.member("a");
    let asking = Asking::default();
    let crashes: [fn(&Server); 2] = [crash_machine, |server| {
        // Its disk is lost, too.
        server.kill_9();
        fs::remove_file(server.lease_file()).unwrap();
        fs::remove_file(server.reservation_file()).unwrap();
    }];
    let _ = asking.first(&server);
    for (worker_id, crash) in (1..).zip(crashes) {
        in_threads_until(
            2,
            |_, done| asking.ask(&server, done),
            || {
                asking.wait_for_ids();
                crash(&server);
            },
        );
        let before = asking.ids().into_iter().max().unwrap();
        let (first, took) = timed(|| {
            server.launch();
            asking.first(&server)
        });
        println!("worker id {worker_id} after {:?}, of {took:?}", first.took);
        assert!(first.took < Duration::from_secs(3), "{first:?}");
        let id = asking.calls().last().unwrap().last;
        // Without its reservation it is another server, whose clock may be behind those ids.
        assert!(id > before || worker_id == 2);
        assert_eq!(worker_of(id), worker_id);
    }
    assert_apart([&asking]);
}

/// A name takes three worker ids at most, and gets them back one by one.
#[test]
fn a_crash_loop_takes_three_worker_ids() {
    const AHEAD_MS: i64 = 20_000;
    let registry = registry_ahead(AHEAD_MS);
    let server = registry.member_with("a", &IMPATIENT);
    let asking = Asking::default();
    let mut taken = Vec::new();
    for _ in 0..3 {
        let first = asking.first(&server);
        taken.push(worker_of(asking.ids()[taken.len()]));
        println!("worker id {:?} after {:?}", taken.last(), first.took);
        crash_machine(&server);
        server.launch();
    }
    assert_eq!(taken, [0, 1, 2]);
    let until_ms = registry.holder(0).unwrap().reserved_until_ms;
    for crash in [true, false] {
        let failure = server
            .session()
            .wait_for_refusal("of servers that were rebooted");
        failure
            .is("54000")
            .says("no free worker id")
            .details("node \"a\" has worker ids")
            .details("the first is free after")
            .hints("leaf_id.node_name");
        for worker_id in ["0", "1", "2"] {
            failure.details(worker_id);
        }
        if crash {
            crash_machine(&server);
            server.launch();
        }
    }
    let mut session = registry.server.session();
    wait_until(LIMIT, "the problem", || {
        let problems: Vec<String> = session.column("SELECT what FROM leaf_id.problems");
        problems == ["node \"a\" has 3 worker ids"]
    });
    // Others do not suffer from it.
    assert_eq!(
        worker_of(registry.member("b").session().next_snowflake()),
        3
    );
    let _ = asking.first(&server);
    let late_ms = now_ms() - (until_ms + 1_000);
    println!("the first one back {late_ms} ms after it was free");
    assert!(late_ms >= 0);
    let id = asking.ids()[3];
    assert_eq!(worker_of(id), 0);
    assert!(time_of(id) > until_ms);
    assert_apart([&asking]);
}

/// Only the second host of the registry is left, and the first one uses up the time of a request.
#[test]
fn a_silent_first_host_is_not_all_that_is_asked() {
    let registry = Registry::start();
    let silent = Proxy::to(&registry.server);
    silent.set(Mode::Silent);
    let server = Server::start_unrelated(1, &[("leaf_id.claim_timeout", "2s")]);
    let mut session = server.session();
    session.run("CREATE EXTENSION leaf_id; CREATE EXTENSION dblink");
    session.create_foreign_server(CENTRAL, &[silent.dir(), registry.server.dir()]);
    server.lease_as("a");
    wait_until(LIMIT, "a worker id", || session.try_snowflake().is_ok());
}

/// The same worker id with another epoch repeats ids, so the file is not used.
#[test]
fn a_file_of_another_epoch_does_not_serve() {
    let place = Place::new(LONG_MS);
    let server = &place.server;
    server.session().next_snowflake();
    place.proxy.set(Mode::Refuse);
    server.configure("leaf_id.epoch", "1200000000000");
    server.restart();
    server
        .session()
        .wait_for_refusal("has leased nothing")
        .is("55P03");
    assert_eq!(place.status("worker_id_source"), "");
}

/// Nothing is known of the ids issued with the old worker id.
#[test]
fn a_damaged_reservation_file_needs_another_worker_id() {
    let place = Place::new(LONG_MS);
    let server = &place.server;
    let last = server.session().next_snowflake();
    server.stop(Stop::Fast);
    fs::write(server.reservation_file(), "garbled").unwrap();
    server.launch();
    let id = server.session().next_snowflake();
    assert_eq!([last, id].map(worker_of), [0, 1]);
    assert!(id > last);
}

/// The contents that a reset writes bound no ids of the lease. Before: the server went on with it.
#[test]
fn a_reservation_file_that_was_reset_needs_another_worker_id() {
    let place = Place::new(LONG_MS);
    let server = &place.server;
    let last = server.session().next_snowflake();
    server.configure("leaf_id.worker_id", "5");
    server.stop(Stop::Fast);
    fs::write(server.reservation_file(), "garbled").unwrap();
    server.launch();
    server
        .session()
        .run("SELECT leaf_id.leaf_snowflake_reset(now())");
    let reset = server.session().next_snowflake();
    server.configure("leaf_id.worker_id", "auto");
    server.restart();
    let id = server.session().next_snowflake();
    assert_eq!([last, reset, id].map(worker_of), [0, 5, 1]);
}
