//! Would catch: a server that stops as soon as its registry is down, or continues after its lease
//! has ended; one that trusts a file that is not its own, or is from before a reboot; and one that
//! must be restarted when the registry is back.

use std::fs;
use std::time::Duration;

use leaf_id_tests::{
    Asking, CENTRAL, Mode, OTHER_BOOT, Proxy, Registry, Server, Stop, assert_apart,
    assert_in_order, edit_json, in_threads_until, now_ms, promptly, time_of, timed, wait_until,
    worker_of,
};

const LIMIT: Duration = Duration::from_secs(60);
/// Longer than a restart and the following steps.
const LONG: [(&str, &str); 2] = [
    ("leaf_id.worker_lease", "60s"),
    ("leaf_id.refill_timeout", "500ms"),
];

struct Place {
    registry: Registry,
    proxy: Proxy,
    server: Server,
}

impl Place {
    /// A server whose connection to its registry can be blocked.
    fn new(conf: &[(&str, &str)]) -> Self {
        let registry = Registry::start();
        let proxy = Proxy::to(&registry.server);
        let server = registry.member_by(proxy.dir(), "a", conf);
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
    let place = Place::new(&LONG);
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
            assert_ne!(place.status("registry_away_since"), "");
            assert_ne!(place.status("registry_error"), "");
            place.proxy.set(Mode::Pass);
            wait_until(LIMIT, "the registry", || {
                place.status("worker_id_source") == "registry"
            });
            assert_eq!(place.status("registry_away_since"), "");
            let id = server.session().next_snowflake();
            assert_eq!(worker_of(id), worker_id);
            assert!(id > last);
            last = id;
        }
    }
    assert!(place.registry.holder(worker_id + 1).is_none());
}

#[test]
fn away_longer_than_the_lease() {
    let place = Place::new(&[("leaf_id.worker_lease", "3s"), LONG[1]]);
    let (server, proxy) = (&place.server, &place.proxy);
    let mut session = server.session();
    session.next_snowflake();
    let asking = Asking::default();
    in_threads_until(
        2,
        |_, done| asking.ask(server, done),
        || {
            for mode in [Mode::Refuse, Mode::Silent] {
                println!("{mode:?}");
                asking.wait_for_ids();
                place.registry.wait_for_renewal(0);
                proxy.set(mode);
                let (away_ms, refusals) = (now_ms(), asking.refusals().len());
                // It continues to issue, and reports the failure as soon as it is detected.
                if mode == Mode::Refuse {
                    wait_until(LIMIT, "the first failure", || {
                        !place.status("registry_away_since").is_empty()
                    });
                }
                // One may have been requested just before.
                wait_until(LIMIT, "a later id", || {
                    time_of(asking.wait_for_ids()) > away_ms
                });
                assert_eq!(asking.refusals().len(), refusals);
                // Until the end of the lease; no other server can have the worker id before.
                let ended = "cannot issue snowflake ids: the lease of worker id 0 has ended";
                let failure = session.wait_for_refusal(ended);
                failure.is("55000");
                let holder = place.registry.holder(0).unwrap();
                let last_ms = asking.ids().into_iter().map(time_of).max().unwrap();
                assert!(last_ms <= holder.lease_until_ms.unwrap());
                assert!(last_ms <= holder.reserved_until_ms);
                wait_until(LIMIT, "the first failure", || {
                    !place.status("registry_away_since").is_empty()
                });
                assert_ne!(place.status("registry_error"), "");
                proxy.set(Mode::Pass);
                asking.wait_for_ids();
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

/// The file is used until the end of its lease, but no longer.
#[test]
fn away_at_start_and_longer_than_the_lease() {
    let place = Place::new(&[("leaf_id.worker_lease", "10s"), LONG[1]]);
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
    session.wait_for_refusal("the lease of worker id 0 has ended");
    let until_ms = place.registry.holder(0).unwrap().lease_until_ms.unwrap();
    assert!(time_of(*ids.last().unwrap()) <= until_ms);
    // Nor after another start.
    server.restart();
    let mut session = server.session();
    for _ in 0..5 {
        let failure = session.try_snowflake().unwrap_err();
        assert!(["55000", "55P03"].contains(&&*failure.state), "{failure}");
    }
    place.proxy.set(Mode::Pass);
    ids.push(session.next_snowflake());
    leaf_id_tests::assert_issued_once([ids]);
}

#[test]
fn away_at_start_without_a_file() {
    for mode in [Mode::Refuse, Mode::Silent] {
        println!("{mode:?}");
        let registry = Registry::start();
        let proxy = Proxy::to(&registry.server);
        proxy.set(mode);
        let server = registry.member_by(proxy.dir(), "a", &[LONG[1]]);
        let mut session = server.session();
        session.create_tag("t");
        let failure = session.wait_for_refusal("Worker registry");
        assert!(["55000", "55P03"].contains(&&*failure.state), "{failure}");
        wait_until(LIMIT, "the first failure", || {
            session.snowflake_status::<bool>("registry_away_since IS NOT NULL")
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

/// Starts a server while the registry is down: it must issue nothing until the registry is back.
#[track_caller]
fn assert_no_id_before_the_registry(place: &Place, server: &Server) -> i64 {
    let mut session = server.session();
    wait_until(LIMIT, "the first failure", || {
        session.snowflake_status::<bool>("registry_away_since IS NOT NULL")
    });
    for _ in 0..10 {
        let failure = session.try_snowflake().unwrap_err();
        assert!(["55000", "55P03"].contains(&&*failure.state), "{failure}");
    }
    place.proxy.set(Mode::Pass);
    session.next_snowflake()
}

#[test]
fn a_copied_file_does_not_serve() {
    let place = Place::new(&[("leaf_id.worker_lease", "10s"), LONG[1]]);
    let server = &place.server;
    let last = server.session().next_snowflake();
    let backup = server.backup();
    server.stop(Stop::Fast);
    let copy = server.copy();
    place.proxy.set(Mode::Refuse);
    let clone = backup.start(&[]);
    let id = assert_no_id_before_the_registry(&place, &clone);
    // It gets the worker id of the original, which is gone, after the end of the lease.
    assert_eq!(worker_of(id), worker_of(last));
    assert!(id > last);
    drop(clone);
    place.proxy.set(Mode::Refuse);
    let clone = copy.start(&[]);
    let next = assert_no_id_before_the_registry(&place, &clone);
    assert!(next > id);
}

/// The monotonic clock, by which a lease is measured, restarts with the machine.
#[test]
fn another_boot_does_not_serve() {
    let place = Place::new(&[("leaf_id.worker_lease", "4s"), LONG[1]]);
    let server = &place.server;
    let mut last = server.session().next_snowflake();
    for crash in [false, true] {
        if crash {
            server.kill_9();
        } else {
            server.stop(Stop::Fast);
        }
        let held_until_ms = place.registry.holder(0).unwrap().lease_until_ms.unwrap();
        place.proxy.set(Mode::Refuse);
        edit_json(&server.lease_file(), "boot_id", OTHER_BOOT);
        server.launch();
        let id = assert_no_id_before_the_registry(&place, server);
        assert_eq!(worker_of(id), worker_of(last));
        assert!(id > last);
        if crash {
            // It may be a copy of a machine whose server is still running.
            assert!(time_of(id) > held_until_ms);
        }
        last = id;
    }
}

/// Only the second host of the registry is left, and the first one uses up the time of a request.
#[test]
fn a_silent_first_host_is_not_all_that_is_asked() {
    let registry = Registry::start();
    let silent = Proxy::to(&registry.server);
    silent.set(Mode::Silent);
    let server = Server::start_unrelated(
        1,
        &[
            ("leaf_id.claim_timeout", "2s"),
            ("leaf_id.worker_lease", "60s"),
        ],
    );
    let mut session = server.session();
    session.run("CREATE EXTENSION leaf_id; CREATE EXTENSION dblink");
    session.create_foreign_server(CENTRAL, &[silent.dir(), registry.server.dir()]);
    server.lease_as("a");
    wait_until(LIMIT, "a worker id", || session.try_snowflake().is_ok());
}

/// The same worker id with another epoch repeats ids, so the file is not used.
#[test]
fn a_file_of_another_epoch_does_not_serve() {
    let place = Place::new(&LONG);
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

/// The registry also knows an upper bound of issued ids.
#[test]
fn a_damaged_reservation_file_is_healed() {
    let place = Place::new(&[("leaf_id.worker_lease", "2s")]);
    let server = &place.server;
    let last = server.session().next_snowflake();
    server.stop(Stop::Fast);
    fs::write(server.reservation_file(), "garbled").unwrap();
    server.launch();
    let mut session = server.session();
    let mut id = 0;
    wait_until(LIMIT, "an id", || match session.try_snowflake() {
        Ok(next) => {
            id = next;
            true
        }
        Err(_) => false,
    });
    assert!(time_of(id) > time_of(last));
}
