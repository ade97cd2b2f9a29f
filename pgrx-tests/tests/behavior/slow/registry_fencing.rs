//! Would catch: a server that continues to issue ids with a worker id that was reassigned: because
//! it was stopped for longer than its lease, as a whole or in part, whatever its clock shows on
//! resume; or because it is a copy of the holder.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use leaf_id_tests::{
    Asking, Paused, Registry, Server, Session, Stop, assert_apart, assert_in_order,
    in_threads_until, now_ms, random, time_of, wait_until, worker_of,
};
use rand::RngExt;

const LIMIT: Duration = Duration::from_secs(60);
/// A call that the launcher cannot serve fails soon.
const IMPATIENT: [(&str, &str); 1] = [("leaf_id.refill_timeout", "500ms")];
/// SQLSTATEs of a server without a lease: at once, or after waiting for one.
const NO_LEASE: [&str; 3] = ["55000", "54000", "55P03"];

/// Two servers that share the only worker id, 7; the first one holds it.
fn pair(registry: &Registry, first: impl FnOnce() -> Server) -> [Server; 2] {
    registry.leave(&[7]);
    let first = first();
    assert_eq!(worker_of(first.session().next_snowflake()), 7);
    let second = registry.member_with("second", &IMPATIENT);
    second.session().wait_for_refusal("all 1024 worker ids");
    [first, second]
}

/// Runs sessions that request ids from both servers, half of them each, during `act`.
fn ask_both(servers: &[Server; 2], sessions: usize, act: impl FnOnce(&[Asking; 2])) -> [Asking; 2] {
    let asking = [Asking::default(), Asking::default()];
    in_threads_until(
        sessions,
        |i, done: &AtomicBool| asking[i % 2].ask(&servers[i % 2], done),
        || act(&asking),
    );
    // Or terminated by a shutdown.
    let expected = [&NO_LEASE[..], &["57P01", ""]].concat();
    for asking in &asking {
        asking.is_refused_with(&expected);
    }
    assert_apart(&asking);
    asking
}

/// No call that ended after `since` got an id with a timestamp after `ms`.
#[track_caller]
fn assert_silent_since(asking: &Asking, since: Instant, ms: i64) {
    for call in asking.calls().iter().filter(|call| call.end >= since) {
        let late_ms = time_of(call.last) - ms;
        assert!(late_ms <= 0, "{} was issued {late_ms} ms late", call.last);
    }
}

/// Waits until a server's ids do not lead its clock.
fn caught_up(server: &Server) {
    let mut session = server.session();
    wait_until(LIMIT, "the clock to catch up with the ids", || {
        session.value("SELECT clock_lead_ms = 0 FROM leaf_id.server")
    });
}

/// Stops a server's launcher while it is idle: in the middle of a write, no other process could
/// write the file.
fn pause_launcher(server: &Server) -> Paused {
    let mut session = server.session();
    let launcher = session.worker("launcher").unwrap();
    let waits =
        format!("SELECT wait_event IS NOT NULL FROM pg_stat_activity WHERE pid = {launcher}");
    let mut paused = None;
    wait_until(LIMIT, "an idle launcher", || {
        paused = None;
        paused = Some(server.pause(launcher));
        session.value(&waits)
    });
    paused.unwrap()
}

/// Each holder in turn is stopped under full load until the other server has taken over.
#[test]
fn a_frozen_holder_issues_nothing_on_the_old_lease() {
    let registry = Registry::start();
    let servers = pair(&registry, || registry.member_with("first", &IMPATIENT));
    let asking = ask_both(&servers, 8, |asking| {
        asking[0].wait_for_ids();
        for round in 0..4 {
            let (old, new) = (round % 2, (round + 1) % 2);
            caught_up(&servers[old]);
            let frozen = servers[old].freeze();
            let frozen_ms = now_ms();
            let id = asking[new].wait_for_ids();
            println!(
                "round {round}: taken over after {} ms",
                now_ms() - frozen_ms
            );
            assert!(time_of(id) > frozen_ms);
            let thawed = Instant::now();
            drop(frozen);
            println!("{}", asking[old].wait_for_refusal());
            asking[new].wait_for_ids();
            registry.wait_for_renewal(7);
            // Ids returned until then had been issued before.
            assert_silent_since(&asking[old], thawed, frozen_ms);
        }
    });
    for asking in asking {
        assert_in_order(asking.calls());
    }
}

/// On resume, its clock has not advanced, so by that clock the lease has not ended.
#[test]
fn a_frozen_holder_with_the_clock_set_back_issues_nothing_either() {
    let registry = Registry::start();
    let servers = pair(&registry, || {
        registry.member_with_clock("first", 0, &IMPATIENT)
    });
    let clock = servers[0].clock();
    ask_both(&servers, 8, |asking| {
        for _ in 0..2 {
            asking[0].wait_for_ids();
            caught_up(&servers[0]);
            let frozen = servers[0].freeze();
            let frozen_ms = now_ms();
            asking[1].wait_for_ids();
            // Later than all its issued ids, but within its reservation.
            clock.set(frozen_ms + 20 - now_ms());
            let thawed = Instant::now();
            drop(frozen);
            asking[0].wait_for_refusal();
            registry.wait_for_renewal(7);
            asking[0].wait_for_refusal();
            assert_silent_since(&asking[0], thawed, frozen_ms);
            // The first server takes over again.
            clock.set(0);
            servers[1].stop(Stop::Fast);
            asking[0].wait_for_ids();
            servers[1].launch();
        }
    });
}

/// Only the lease prevents ids: the reservation includes the current time by the clock that was set
/// back, and no launcher is running to close the generator.
#[test]
fn a_frozen_launcher_with_the_clock_set_back_lets_no_session_issue() {
    let registry = Registry::start();
    let servers = pair(&registry, || {
        registry.member_with_clock("first", 0, &IMPATIENT)
    });
    let mut session = servers[0].session();
    registry.wait_for_renewal(7);
    let last = session.next_snowflake();
    let paused = pause_launcher(&servers[0]);
    let id = servers[1].session().next_snowflake();
    assert!(time_of(id) > time_of(last));
    for _ in 0..3 {
        servers[0].clock().set(time_of(last) + 20 - now_ms());
        let failure = session.try_snowflake().unwrap_err();
        println!("{failure}");
        assert!(NO_LEASE.contains(&&*failure.state), "{failure}");
    }
    servers[0].clock().set(0);
    drop(paused);
    session.wait_for_refusal("all 1024 worker ids");
}

/// Sessions detect the end of the lease by themselves, by the monotonic clock.
#[test]
fn a_frozen_launcher_stops_no_other_server_and_lets_no_session_issue_without_a_lease() {
    let registry = Registry::start();
    let servers = pair(&registry, || registry.member_with("first", &IMPATIENT));
    ask_both(&servers, 4, |asking| {
        registry.wait_for_renewal(7);
        asking[0].wait_for_ids();
        let paused = pause_launcher(&servers[0]);
        let paused_ms = now_ms();
        println!("{}", asking[0].wait_for_refusal());
        asking[1].wait_for_ids();
        let last = asking[0].ids().into_iter().max().unwrap();
        println!("issued for {} ms more", time_of(last) - paused_ms);
        assert!(time_of(last) > paused_ms, "it must not need the launcher");
        drop(paused);
        asking[0].wait_for_refusal();
        registry.wait_for_renewal(7);
        asking[0].wait_for_refusal();
        assert_eq!(asking[0].ids().into_iter().max().unwrap(), last);
        // It can get the worker id again.
        servers[1].stop(Stop::Fast);
        asking[0].wait_for_ids();
    });
}

/// Single sessions are stopped at random points while another server gets their worker id.
#[test]
fn a_frozen_session_between_clock_and_word() {
    const SESSIONS: usize = 4;
    let mut random = random();
    let registry = Registry::start();
    registry.leave(&[0, 1]);
    let servers = ["first", "second"].map(|node| registry.member_with(node, &IMPATIENT));
    let mut in_registry = registry.server.session();
    let mut sessions = servers.each_ref().map(Server::session);
    let asking = ask_both(&servers, 2 * SESSIONS, |asking| {
        for round in 0..4 {
            let workers = asking
                .each_ref()
                .map(|asking| worker_of(asking.wait_for_ids()));
            let (old, new) = (round % 2, (round + 1) % 2);
            let pids: Vec<i32> = sessions[old].column(
                "SELECT pid FROM pg_stat_activity WHERE query LIKE '%leaf_snowflake_next_batch%'
                     AND pid <> pg_backend_pid()",
            );
            let launcher = pause_launcher(&servers[old]);
            let paused: Vec<_> = pids
                .iter()
                .filter(|_| random.random_bool(0.7))
                .map(|pid| servers[old].pause(*pid))
                .collect();
            // No other worker id is available.
            in_registry.run(&format!(
                "SELECT leaf_id.leaf_worker_release({}); SELECT leaf_id.leaf_worker_release({1}); SELECT leaf_id.leaf_worker_retire({1})",
                workers[old], workers[new]
            ));
            wait_until(LIMIT, "the worker id", || {
                worker_of(asking[new].wait_for_ids()) == workers[old]
            });
            println!("{} of {} stood still", paused.len(), pids.len());
            drop(paused);
            asking[old].wait_for_refusal();
            drop(launcher);
            in_registry.run(&format!(
                "SELECT leaf_id.leaf_worker_retire({}, false)",
                workers[new]
            ));
            wait_until(LIMIT, "the other worker id", || {
                worker_of(asking[old].wait_for_ids()) == workers[new]
            });
        }
    });
    for asking in asking {
        assert_in_order(asking.calls());
    }
}

/// A copy with its original's name is refused, and the original continues.
#[track_caller]
fn assert_held(registry: &Registry, copy: &Server, original: &mut Session, last: &mut i64) {
    let mut session = copy.session();
    let failure = session.wait_for_refusal("which this server is not, or is a copy of");
    failure.is("55000").hints("leaf_id.node_name");
    for _ in 0..3 {
        registry.wait_for_renewal(7);
        let id = original.next_snowflake();
        assert_eq!(worker_of(id), 7);
        assert!(id > *last);
        *last = id;
        session.try_snowflake().unwrap_err().is("55000");
    }
}

#[test]
fn a_clone_of_a_data_directory() {
    let registry = Registry::start();
    registry.leave(&[7, 8]);
    let server = registry.member("a");
    let mut session = server.session();
    let mut last = session.next_snowflake();
    assert_eq!(worker_of(last), 7);

    let clone = server.backup().start(&[]);
    assert_held(&registry, &clone, &mut session, &mut last);
    // With its own name, it is another server.
    clone.configure("leaf_id.node_name", "b");
    let mut in_clone = clone.session();
    let id = in_clone.next_snowflake();
    assert_eq!(worker_of(id), 8);

    // A copy of a stopped server is a copy, too, even if it starts first.
    server.stop(Stop::Fast);
    let copy = server.copy();
    server.launch();
    let mut session = server.session();
    last = session.next_snowflake();
    let clone = copy.start(&[]);
    assert_held(&registry, &clone, &mut session, &mut last);
    clone.stop(Stop::Fast);

    // Once the original is gone, a copy takes over, above all its possible ids.
    server.kill_9();
    let reserved_until_ms = registry.holder(7).unwrap().reserved_until_ms;
    clone.launch();
    let mut in_clone = clone.session();
    let id = in_clone.next_snowflake();
    assert_eq!(worker_of(id), 7);
    assert!(id > last && time_of(id) > reserved_until_ms);
    // Then the original counts as the copy.
    server.launch();
    let mut last = id;
    assert_held(&registry, &server, &mut in_clone, &mut last);
}

/// Of two servers with one name that request ids, one continues, and the other one does not.
/// Returns true if the original continues.
#[track_caller]
fn assert_one_is_held(registry: &Registry, both: [&Asking; 2]) -> bool {
    for _ in 0..4 {
        registry.wait_for_renewal(7);
    }
    let since = Instant::now();
    registry.wait_for_renewal(7);
    let issues = both.map(|asking| asking.calls().iter().any(|call| call.start >= since));
    println!(
        "the original issues: {}, the copy: {}",
        issues[0], issues[1]
    );
    assert_ne!(issues[0], issues[1]);
    let refused = both[usize::from(issues[0])].wait_for_refusal();
    refused.is("55000");
    println!("{refused}");
    issues[0]
}

/// By all they contain, its files are originals. But the machine was rebooted, and their server was
/// not shut down, so it may still be running.
#[test]
fn a_disk_image_clone() {
    let registry = Registry::start();
    registry.leave(&[7]);
    let server = registry.member_with("a", &IMPATIENT);
    let asking = [Asking::default(), Asking::default()];
    let [of_original, of_copy] = &asking;
    in_threads_until(
        2,
        |_, done| of_original.ask(&server, done),
        || {
            let backup = server.backup();
            registry.wait_for_renewal(7);
            of_original.wait_for_ids();
            let copy = backup.of_the_disk(&server).start(&[]);
            in_threads_until(
                2,
                |_, done| of_copy.ask(&copy, done),
                || {
                    assert!(assert_one_is_held(&registry, [of_original, of_copy]));
                    server.kill_9();
                    of_copy.wait_for_ids();
                },
            );
        },
    );
    of_original.is_refused_with(&["57P01", "57P02", ""]);
    assert_apart(&asking);
}

/// In this case the original cannot be identified. But one of the machines was not rebooted.
#[test]
fn a_disk_image_of_a_stopped_server() {
    let registry = Registry::start();
    registry.leave(&[7]);
    let server = registry.member_with("a", &IMPATIENT);
    let asking = [Asking::default(), Asking::default()];
    let [of_original, of_copy] = &asking;
    let mut session = server.session();
    session.next_snowflake();
    of_original.call(&mut session, 1000).unwrap();
    server.stop(Stop::Fast);
    let copy = server.copy().of_the_disk(&server).start(&[]);
    server.launch();
    in_threads_until(
        4,
        |i, done| asking[i % 2].ask([&server, &copy][i % 2], done),
        || assert_one_is_held(&registry, [of_original, of_copy]),
    );
    assert_apart(&asking);
}
