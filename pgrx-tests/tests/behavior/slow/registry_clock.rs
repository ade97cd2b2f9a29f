//! Would catch: a server that issues ids although its clock is off; one whose correct clock is
//! refused because the network was slow; and one that must be restarted, or has made its worker id
//! unusable for others, after its clock was off for a while.

use std::thread;
use std::time::Duration;

use leaf_id_tests::{
    Asking, Clock, Failure, Registry, Server, Session, assert_apart, assert_in_order, becomes,
    in_threads_until, now_ms, time_of, wait_until, worker_of,
};

const LIMIT: Duration = Duration::from_secs(60);
const REFUSED: &str = "cannot issue snowflake ids: the clock is";

/// Offset of the clock in a message.
fn ms_in(text: &str) -> i64 {
    let before = text.split(" ms").next().unwrap();
    before.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Waits until a server stops because its clock is off by this much, and reports it.
#[track_caller]
fn wait_until_off(session: &mut Session, off_ms: i64) -> Failure {
    let failure = session.wait_for_refusal(REFUSED);
    let said = ms_in(&failure.message);
    assert!((said - off_ms.abs()).abs() < 500, "{failure}");
    let side = if off_ms > 0 { "ahead" } else { "behind" };
    failure.is("55000").says(side).hints("clock");
    let shown: i64 = session.snowflake_status("clock_offset_ms::bigint");
    assert!((shown - off_ms).abs() < 500, "{shown}");
    failure
}

#[test]
fn two_seconds_off_at_start() {
    for off_ms in [2000, -2000] {
        let registry = Registry::start();
        let server = registry.member_with_clock("a", off_ms, &[]);
        let mut session = server.session();
        wait_until_off(&mut session, off_ms).details("registry");
        assert!(registry.holder(0).is_none(), "it has nothing");
        // Nor after a restart.
        server.restart();
        let mut session = server.session();
        wait_until_off(&mut session, off_ms);
        server.clock().set(0);
        let id = session.next_snowflake();
        assert_eq!(worker_of(id), 0);
        assert!((time_of(id) - now_ms()).abs() < 5000);
        let shown: i64 = session.snowflake_status("clock_offset_ms::bigint");
        assert!(shown.abs() < 500, "{shown}");

        // The same with a worker id.
        server.clock().set(off_ms);
        server.restart();
        let mut session = server.session();
        wait_until_off(&mut session, off_ms);
        server.clock().set(0);
        assert!(session.next_snowflake() > id);
    }
}

/// Sets a server's clock off until that is detected, then back.
fn be_off(registry: &Registry, server: &Server, clock: &Clock, asking: &Asking, off_ms: i64) {
    asking.wait_for_ids();
    clock.set(off_ms);
    let mut session = server.session();
    wait_until_off(&mut session, off_ms);
    // The registry's record bounds the ids issued.
    let reserved_until_ms = registry.holder(0).unwrap().reserved_until_ms;
    assert!(reserved_until_ms <= now_ms() + 2000 + 1000);
    for _ in 0..20 {
        session.try_snowflake().unwrap_err().is("55000");
    }
    clock.set(0);
    asking.wait_for_ids();
}

#[test]
fn two_seconds_off_while_running() {
    let registry = Registry::start();
    let server = registry.member_with_clock("a", 0, &[]);
    let clock = server.clock();
    let asking = Asking::default();
    server.session().next_snowflake();
    in_threads_until(
        2,
        |_, done| asking.ask(&server, done),
        || {
            for off_ms in [2000, -2000, 2000, 3_600_000, -3_600_000] {
                println!("{off_ms}");
                be_off(&registry, &server, &clock, &asking, off_ms);
            }
        },
    );
    asking.is_refused_with(&["55000", "55P03"]);
    assert!(asking.ids().iter().all(|id| worker_of(*id) == 0));
    let last_ms = asking.ids().into_iter().map(time_of).max().unwrap();
    assert!(last_ms <= now_ms() + 3000, "nothing of an hour ahead");
    assert_apart([&asking]);
    assert_in_order(asking.calls());
    // Each change was logged once, including the end.
    let log = server.log();
    let warned = log
        .lines()
        .filter(|line| line.contains("WARNING") && line.contains("clock"));
    let warned = warned.count();
    assert!((5..=15).contains(&warned), "warned {warned} times");
}

/// If ids continue above the last one although the clock was set back, a reservation requested
/// relative to the clock alone would not last until the end of the lease.
#[test]
fn rule_1_what_is_asked_for_is_above_the_last_id() {
    let registry = Registry::start();
    let server = registry.member_with_clock("a", 0, &[]);
    let mut session = server.session();
    session.next_snowflake();
    registry.wait_for_renewal(0);
    // About half of the renewal interval.
    let renewed = || registry.holder(0).and_then(|holder| holder.renewed_us);
    wait_until(LIMIT, "a while without a renewal", || {
        let before = renewed();
        !becomes(Duration::from_millis(300), || renewed() != before)
    });
    let last_ms = time_of(session.next_snowflake());
    // Within the tolerated skew, but more than the renewal interval.
    server.clock().set(-900);
    registry.wait_for_renewal(0);
    let reserved_until_ms = registry.holder(0).unwrap().reserved_until_ms;
    assert!(
        reserved_until_ms >= last_ms + 2000,
        "{} ms after the last id",
        reserved_until_ms - last_ms
    );
}

/// The answer is late, and its time is neither that of the request nor of the answer.
#[test]
fn a_slow_registry_is_no_skew() {
    let registry = Registry::start();
    let conf = [
        ("leaf_id.worker_lease", "12s"),
        ("leaf_id.max_clock_skew", "500ms"),
    ];
    let server = registry.member_with("a", &conf);
    let mut session = server.session();
    session.next_snowflake();
    let asking = Asking::default();
    in_threads_until(
        2,
        |_, done| asking.ask(&server, done),
        || {
            for _ in 0..2 {
                registry.wait_for_renewal(0);
                let frozen = registry.server.freeze();
                wait_until(LIMIT, "a request", || session.worker("registrar").is_some());
                // Longer than the tolerated skew.
                thread::sleep(Duration::from_millis(1500));
                drop(frozen);
            }
            registry.wait_for_renewal(0);
            asking.wait_for_ids();
        },
    );
    asking.is_never_refused();
    assert_in_order(asking.calls());
    let shown: i64 = session.snowflake_status("clock_offset_ms::bigint");
    assert!(shown.abs() < 500, "{shown}");
    assert!(!server.log().contains(REFUSED));
}

/// All are within the tolerated skew of the registry, whose own clock may be the wrong one.
#[test]
fn off_from_the_peers_alone() {
    let registry = Registry::start();
    let peers = ["a", "b"].map(|node| registry.member_with_clock(node, 700, &[]));
    for peer in &peers {
        peer.session().next_snowflake();
    }
    let server = registry.member_with_clock("c", -700, &[]);
    let mut session = server.session();
    let failure = session.wait_for_refusal(REFUSED);
    failure
        .is("55000")
        .says("behind")
        .details("the median of 2 other servers");
    let said = ms_in(&failure.message);
    assert!((said - 1400).abs() < 400, "{failure}");
    let shown: i64 = session.snowflake_status("peers_offset_ms::bigint");
    assert!((shown - 700).abs() < 400, "{shown}");
    for peer in &peers {
        peer.session().next_snowflake();
    }
    // Once it is within a second of theirs.
    server.clock().set(100);
    let id = session.next_snowflake();
    assert_eq!(worker_of(id), 2);
    // A single other server proves nothing.
    let [a, b] = peers;
    let worker_of_b = worker_of(b.session().next_snowflake());
    drop(b);
    registry.wait_for_end(worker_of_b);
    server.clock().set(-700);
    wait_until(LIMIT, "an id after the clock went back", || {
        session.try_snowflake().is_ok_and(|next| next > id)
    });
    for _ in 0..2 {
        registry.wait_for_renewal(2);
    }
    session.next_snowflake();
    a.session().next_snowflake();
}
