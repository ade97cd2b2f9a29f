//! Would catch: a server that issues ids beyond what it was granted with a worker id that another
//! server has by now, because it was stopped for longer than that, as a whole or in part, whatever
//! its clock shows on resume; and a copy that issues the ids of its original.

use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use leaf_id_tests::{
    Asking, Backup, Call, Paused, Registry, Server, Stop, assert_apart, assert_in_order,
    in_threads_until, now_ms, random, time_of, wait_until, worker_of,
};
use rand::RngExt;

const LIMIT: Duration = Duration::from_secs(60);
/// A call that the launcher cannot serve fails soon.
const IMPATIENT: [(&str, &str); 1] = [("leaf_id.refill_timeout", "500ms")];
/// SQLSTATEs of a server without time to issue ids: at once, or after waiting for some.
const NO_TIME: [&str; 3] = ["55000", "54000", "55P03"];

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
    let expected = [&NO_TIME[..], &["57P01", ""]].concat();
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

/// On resume, its clock has not advanced: what it was granted is left to it, but is no other
/// server's.
#[test]
fn a_frozen_holder_with_the_clock_set_back_issues_only_what_it_was_granted() {
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
            let until_ms = registry.holder(7).unwrap().reserved_until_ms;
            let id = asking[1].wait_for_ids();
            assert!(time_of(id) > until_ms);
            // Later than all its issued ids, but within its reservation.
            clock.set(frozen_ms + 20 - now_ms());
            let thawed = Instant::now();
            drop(frozen);
            asking[0].wait_for_refusal();
            registry.wait_for_renewal(7);
            asking[0].wait_for_refusal();
            let left = |call: &Call| call.start >= thawed && time_of(call.last) <= until_ms;
            let left = asking[0].calls().iter().filter(|call| left(call)).count();
            println!("{left} calls issued ids of {} ms", until_ms - frozen_ms);
            assert_silent_since(&asking[0], thawed, until_ms);
            // The first server takes over again.
            clock.set(0);
            servers[1].stop(Stop::Fast);
            asking[0].wait_for_ids();
            servers[1].launch();
        }
    });
}

/// Sessions reserve for a launcher that does not, up to what was granted: also by a clock that
/// shows that time again when another server has the worker id.
#[test]
fn a_frozen_launcher_with_the_clock_set_back_lets_sessions_issue_only_what_was_granted() {
    let registry = Registry::start();
    let servers = pair(&registry, || {
        registry.member_with_clock("first", 0, &IMPATIENT)
    });
    let [of_first, of_second] = [Asking::default(), Asking::default()];
    let mut session = servers[0].session();
    registry.wait_for_renewal(7);
    of_first.call(&mut session, 1).unwrap();
    let last_ms = time_of(of_first.ids()[0]);
    let paused = pause_launcher(&servers[0]);
    let until_ms = registry.holder(7).unwrap().reserved_until_ms;
    let _ = of_second.first(&servers[1]);
    assert!(time_of(of_second.ids()[0]) > until_ms);
    servers[0].clock().set(last_ms + 20 - now_ms());
    let failure = loop {
        if let Err(failure) = of_first.call(&mut session, 20) {
            break failure;
        }
    };
    println!("{failure}");
    assert!(NO_TIME.contains(&&*failure.state), "{failure}");
    let end_ms = of_first.ids().into_iter().map(time_of).max().unwrap();
    println!(
        "issued for {} ms, of {}",
        end_ms - last_ms,
        until_ms - last_ms
    );
    assert!(end_ms <= until_ms);
    of_second.call(&mut servers[1].session(), 1000).unwrap();
    servers[0].clock().set(0);
    drop(paused);
    session.wait_for_refusal("all 1024 worker ids").is("55000");
    assert_apart([&of_first, &of_second]);
}

#[test]
fn a_frozen_launcher_stops_no_other_server_and_lets_sessions_issue_only_what_was_granted() {
    let registry = Registry::start();
    let servers = pair(&registry, || registry.member_with("first", &IMPATIENT));
    ask_both(&servers, 4, |asking| {
        registry.wait_for_renewal(7);
        asking[0].wait_for_ids();
        let paused = pause_launcher(&servers[0]);
        let paused_ms = now_ms();
        let until_ms = registry.holder(7).unwrap().reserved_until_ms;
        println!("{}", asking[0].wait_for_refusal());
        let id = asking[1].wait_for_ids();
        let last = asking[0].ids().into_iter().max().unwrap();
        println!(
            "issued for {} ms more, of {}",
            time_of(last) - paused_ms,
            until_ms - paused_ms
        );
        assert!(time_of(last) > paused_ms, "it must not need the launcher");
        assert!(time_of(last) <= until_ms && time_of(id) > until_ms);
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
                "SELECT leaf_id.leaf_worker_retire({})",
                workers[new]
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

/// A registry whose worker ids do not come back during a test, and its member.
fn original() -> (Registry, Server) {
    let registry = Registry::ahead(Server::with_leaf_id(&[]), 600_000);
    let server = registry.member("a");
    server.session().next_snowflake();
    (registry, server)
}

/// Starts copies of a server while that issues ids. Checks that each issues with a worker id of its
/// own, at once. Returns these, that of the original first.
#[track_caller]
fn worker_ids_of(original: &Server, copies: Vec<Backup>) -> Vec<i32> {
    let asking: Vec<_> = (0..=copies.len()).map(|_| Asking::default()).collect();
    let copies: Vec<_> = in_threads_until(
        2,
        |_, done| asking[0].ask(original, done),
        || {
            let copies = copies.into_iter().zip(&asking[1..]);
            let copies = copies.map(|(copy, asking)| {
                let copy = copy.start(&[]);
                println!("{:?}", asking.first(&copy));
                copy
            });
            copies.collect()
        },
    )
    .1;
    let all: Vec<_> = [original].into_iter().chain(&copies).collect();
    in_threads_until(
        2 * all.len(),
        |i, done| asking[i % all.len()].ask(all[i % all.len()], done),
        || {
            for _ in 0..2 {
                for asking in &asking {
                    asking.wait_for_ids();
                }
            }
        },
    );
    assert_apart(&asking);
    let worker_ids = asking.iter().map(|asking| {
        asking.is_never_refused();
        assert_in_order(asking.calls());
        let ids = asking.ids();
        let worker_id = worker_of(ids[0]);
        assert!(ids.iter().all(|id| worker_of(*id) == worker_id));
        worker_id
    });
    worker_ids.collect()
}

/// By a base backup of the running server, and file by file while it is stopped.
#[test]
fn clones_under_one_name_are_other_servers() {
    let (registry, server) = original();
    let running = server.backup();
    let late = running.again();
    server.stop(Stop::Fast);
    let stopped = server.copy();
    server.launch();
    assert_eq!(worker_ids_of(&server, vec![running, stopped]), [0, 1, 2]);
    let mut session = registry.server.session();
    let mut problem = || {
        session
            .value::<String>("SELECT coalesce(min(concat(what, advice)), '') FROM leaf_id.problems")
    };
    wait_until(LIMIT, "the problem", || {
        let found = problem();
        found.starts_with("node \"a\" has 3 worker ids") && found.contains("leaf_id.node_name")
    });
    // No more than three, unless it has a name of its own.
    let clone = late.start(&[]);
    clone
        .session()
        .wait_for_refusal("of servers that were rebooted or copied")
        .is("54000")
        .hints("leaf_id.node_name");
    clone.configure("leaf_id.node_name", "b");
    assert_eq!(worker_of(clone.session().next_snowflake()), 3);
    assert!(problem().starts_with("node \"a\" has 3 worker ids"));
}

/// By all they contain, the copy's files are originals. But the machine was rebooted.
#[test]
fn a_disk_image_clone() {
    let (_registry, server) = original();
    let copy = server.backup().of_the_disk(&server);
    assert_eq!(worker_ids_of(&server, vec![copy]), [0, 1]);
}

/// Whichever starts first. Before: the first one to ask had the original's worker id.
#[test]
fn a_disk_image_of_a_stopped_server() {
    for first_is_copy in [false, true] {
        let (_registry, server) = original();
        server.stop(Stop::Fast);
        let copy = server.copy().of_the_disk(&server);
        if !first_is_copy {
            server.launch();
            assert_eq!(worker_ids_of(&server, vec![copy]), [0, 1]);
            continue;
        }
        let copy = copy.start(&[]);
        let asking = [Asking::default(), Asking::default()];
        in_threads_until(
            2,
            |_, done| asking[1].ask(&copy, done),
            || {
                asking[1].wait_for_ids();
                server.launch();
                let _ = asking[0].first(&server);
                asking[0].call(&mut server.session(), 1000).unwrap();
                asking[1].wait_for_ids();
            },
        );
        assert_apart(&asking);
        assert_eq!(asking.map(|asking| worker_of(asking.ids()[0])), [0, 1]);
    }
}
