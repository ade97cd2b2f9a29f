//! Would catch: a server that gets a worker id although its clock is off, or none because the
//! network is slow; one that stops for its clock while it has one, or issues ids beyond what it was
//! granted; and ids issued twice because the registry's clock was set.

use std::time::Duration;

use leaf_id_tests::{
    Asking, CENTRAL, Clock, Failure, Registry, Server, Session, assert_apart, assert_in_order,
    in_threads_until, now_ms, time_of, wait_until, worker_of,
};

const LIMIT: Duration = Duration::from_secs(60);
const REFUSED: &str = "cannot issue snowflake ids: the clock is";
const MINUTE_MS: i64 = 60_000;
const HOUR_MS: i64 = 60 * MINUTE_MS;
/// A call that the launcher cannot serve fails soon.
const IMPATIENT: (&str, &str) = ("leaf_id.refill_timeout", "500ms");

/// Offset of the clock in a message.
fn ms_in(text: &str) -> i64 {
    let before = text.split(" ms").next().unwrap();
    before.rsplit(' ').next().unwrap().parse().unwrap()
}

/// Waits until a server is refused because its clock is off by this much, and reports it.
#[track_caller]
fn wait_until_off(session: &mut Session, off_ms: i64) -> Failure {
    let failure = session.wait_for_refusal(REFUSED);
    let said = ms_in(&failure.message);
    assert!((said - off_ms.abs()).abs() < 500, "{failure}");
    let side = if off_ms > 0 { "ahead" } else { "behind" };
    failure.is("55000").says(side).hints("max_skew_ms");
    let shown: i64 = session.snowflake_status("clock_offset_ms::bigint");
    assert!((shown - off_ms).abs() < 500, "{shown}");
    failure
}

#[test]
fn a_minute_off_before_it_has_a_worker_id() {
    for off_ms in [MINUTE_MS, -MINUTE_MS] {
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
    }
}

/// What `leaf_id.problems` says about clocks.
fn problems(server: &Server) -> String {
    server.session().value(
        "SELECT coalesce(string_agg(what, '; '), '') FROM leaf_id.problems
         WHERE what LIKE 'the clock %'",
    )
}

/// It goes on: what it was granted is further ahead. But people learn of it.
#[test]
fn a_minute_off_while_it_has_a_worker_id() {
    // Renewed after 40 s, with 80 s left.
    let registry = Registry::ahead(Server::with_leaf_id(&[]), 2 * MINUTE_MS);
    // Where the clock goes back, ids go on above the last one.
    let server = registry.member_with_clock("a", 0, &[("leaf_id.max_clock_lead", "5min")]);
    server.session().next_snowflake();
    let asking = Asking::default();
    in_threads_until(
        2,
        |_, done| asking.ask(&server, done),
        || {
            for off_ms in [MINUTE_MS, -MINUTE_MS, 0] {
                asking.wait_for_ids();
                server.clock().set(off_ms);
                let is_it = |offset_ms: Option<i64>| {
                    offset_ms.is_some_and(|offset_ms| (offset_ms - off_ms).abs() < 500)
                };
                let mut in_registry = registry.server.session();
                let mut session = server.session();
                wait_until(LIMIT, "the offset", || {
                    is_it(in_registry.value("SELECT clock_offset_ms FROM leaf_id.fleet"))
                        && is_it(session.snowflake_status("clock_offset_ms"))
                });
                asking.wait_for_ids();
                if off_ms == 0 {
                    // Ids may lead the clock for a while.
                    wait_until(LIMIT, "no problems", || {
                        [&registry.server, &server]
                            .map(problems)
                            .concat()
                            .is_empty()
                    });
                } else {
                    let [there, here] = [&registry.server, &server].map(problems);
                    println!("{off_ms} ms: {there}; {here}");
                    assert!(there.starts_with("the clock of node \"a\" is "), "{there}");
                    assert!(here.starts_with("the clock is "), "{here}");
                    assert!(is_it(Some(ms_in(&there))) && is_it(Some(ms_in(&here))));
                }
                // The earlier of the two clocks counts.
                let until_ms = registry.holder(0).unwrap().reserved_until_ms;
                assert!(until_ms <= now_ms() + 2 * MINUTE_MS);
            }
        },
    );
    asking.is_never_refused();
    assert!(asking.ids().iter().all(|id| worker_of(*id) == 0));
    assert_apart([&asking]);
    assert_in_order(asking.calls());
}

/// Sets a server's clock off until it issues no ids, then back.
fn be_off(registry: &Registry, server: &Server, clock: &Clock, asking: &Asking, off_ms: i64) {
    asking.wait_for_ids();
    clock.set(off_ms);
    let mut session = server.session();
    let failure = session.wait_for_refusal(match off_ms {
        0.. => "the lease of worker id 0 is used up",
        _ => "the clock went back",
    });
    failure.is("55000");
    // The registry's record bounds the ids issued.
    let reserved_until_ms = registry.holder(0).unwrap().reserved_until_ms;
    assert!(reserved_until_ms <= now_ms() + 2000 + 500);
    for _ in 0..5 {
        session.try_snowflake().unwrap_err().is("55000");
    }
    clock.set(0);
    asking.wait_for_ids();
}

/// Once its clock is right, it goes on at once: no id carries a time that was not granted.
#[test]
fn further_off_than_granted() {
    let registry = Registry::start();
    let server = registry.member_with_clock("a", 0, &[IMPATIENT]);
    let clock = server.clock();
    let asking = Asking::default();
    server.session().next_snowflake();
    in_threads_until(
        2,
        |_, done| asking.ask(&server, done),
        || {
            for off_ms in [2_500, HOUR_MS, -HOUR_MS] {
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
}

/// Its clock is off, but the answer, which was slow, does not prove it.
#[test]
fn a_server_that_starts_and_is_refused_is_shown() {
    const LOCK: &str = "BEGIN; SELECT FROM leaf_id.leaf_registry FOR UPDATE";
    let registry = Registry::start();
    let mut locking = registry.server.session();
    locking.run("UPDATE leaf_id.leaf_registry SET max_skew_ms = 500");
    locking.run(LOCK);
    let server = registry.member_with_clock("a", -600, &[IMPATIENT]);
    let mut watcher = registry.server.session();
    let mut session = server.session();
    wait_until(LIMIT, "the problem", || {
        wait_until(LIMIT, "a request that waits", || {
            watcher.value(
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'
                     AND clock_timestamp() > query_start + interval '400 ms')",
            )
        });
        locking.run("ROLLBACK");
        // The next one waits, too.
        locking.run(LOCK);
        let problems: Vec<String> = session.column("SELECT what FROM leaf_id.problems");
        let said = "no snowflake ids are issued: starting: the clock is ";
        problems.iter().any(|what| what.starts_with(said))
    });
    locking.run("ROLLBACK");
    server.clock().set(0);
    assert_eq!(worker_of(session.next_snowflake()), 0);
}

/// The answer is late, and its time is neither that of the request nor of the answer.
#[test]
fn a_slow_registry_is_no_skew() {
    let registry = Registry::ahead(Server::with_leaf_id(&[]), 12_000);
    let mut locking = registry.server.session();
    locking.run("UPDATE leaf_id.leaf_registry SET max_skew_ms = 500");
    locking.run("BEGIN; SELECT FROM leaf_id.leaf_registry FOR UPDATE");
    let frozen = registry.server.freeze();
    let server = Server::start_unrelated(1, &[]);
    let mut session = server.session();
    session.run("CREATE EXTENSION leaf_id");
    server.lease_from(registry.server.dir(), "a");
    let mut while_frozen = |frozen| {
        // For longer than the tolerated skew.
        wait_until(LIMIT, "a request that waits", || {
            session.value(
                "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE backend_type = 'leaf_id registrar'
                     AND clock_timestamp() > backend_start + interval '1500 ms')",
            )
        });
        drop(frozen);
    };
    while_frozen(frozen);
    // Nor when it waits for a lock.
    let mut watcher = registry.server.session();
    wait_until(LIMIT, "a request that waits", || {
        watcher.value(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock'
                 AND clock_timestamp() > query_start + interval '700 ms')",
        )
    });
    locking.run("ROLLBACK");
    server.session().next_snowflake();
    let offset_ms = registry.holder(0).unwrap().clock_offset_ms.unwrap();
    assert!(offset_ms.abs() < 500, "{offset_ms}");
    let asking = Asking::default();
    in_threads_until(
        2,
        |_, done| asking.ask(&server, done),
        || {
            for _ in 0..2 {
                registry.wait_for_renewal(0);
                while_frozen(registry.server.freeze());
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
    let [a, b] = ["a", "b"].map(|node| registry.member_with_clock(node, 700, &[]));
    for (worker_id, peer) in [&a, &b].into_iter().enumerate() {
        let id = peer.session().next_snowflake();
        assert_eq!(usize::try_from(worker_of(id)), Ok(worker_id));
    }
    let [c, d] = ["c", "d"].map(|node| registry.member_with_clock(node, -700, &[]));
    for server in [&c, &d] {
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
    }
    // Once it is within a second of theirs.
    c.clock().set(100);
    assert_eq!(worker_of(c.session().next_snowflake()), 2);
    // A single other server proves nothing.
    for (worker_id, peer) in [(1, b), (2, c)] {
        drop(peer);
        registry.wait_for_end(worker_id);
    }
    d.session().next_snowflake();
    a.session().next_snowflake();
}

/// A member that knows both places of its registry.
fn member(number: usize, node: &str, hosts: [&Server; 2]) -> Server {
    let conf = [IMPATIENT, ("leaf_id.timestamp_reservation", "500ms")];
    let server = Server::start_unrelated(number, &conf);
    let mut session = server.session();
    session.run("CREATE EXTENSION leaf_id; CREATE EXTENSION dblink");
    session.create_foreign_server(CENTRAL, &hosts.map(Server::dir));
    server.lease_as(node);
    server
}

/// Once the registry was used after a promotion, its clock may show anything.
#[test]
fn the_registrys_clock_is_an_hour_off_after_its_first_use() {
    const AHEAD_MS: i64 = 6_000;
    let registry = Registry::ahead(Server::with_leaf_id(&[]), AHEAD_MS);
    let first = &registry.server;
    let second = first.backup().with_clock(0).start_standby(first, &[]);
    let members = [(1, "a"), (2, "b")].map(|(number, node)| member(number, node, [first, &second]));
    let asking = [Asking::default(), Asking::default()];
    for (worker_id, (member, asking)) in members.iter().zip(&asking).enumerate() {
        let _ = asking.first(member);
        assert_eq!(usize::try_from(worker_of(asking.ids()[0])), Ok(worker_id));
    }
    let clock = second.clock();
    let ids_of_each = || asking.each_ref().map(Asking::wait_for_ids);
    in_threads_until(
        4,
        |i, done| asking[i % 2].ask(&members[i % 2], done),
        || {
            second.replay_all_of(first);
            first.kill_9();
            second.promote();
            let mut session = second.session();
            wait_until(LIMIT, "the first use", || {
                session.value(
                    "SELECT bool_and(renewed_at >= moved_at) IS TRUE
                     FROM leaf_id.leaf_worker, leaf_id.leaf_registry",
                )
            });
            ids_of_each();
            // By the earlier of two clocks, so members use up what they have.
            clock.set(-HOUR_MS);
            for asking in &asking {
                let failure = asking.wait_for_refusal();
                println!("an hour behind: {failure}");
                failure.is("55000").says("is used up");
            }
            let said = problems(&second);
            let all_off = said.split("; ").map(ms_in);
            let all_off = all_off.filter(|off_ms| (off_ms - HOUR_MS).abs() < 1_000);
            assert_eq!(all_off.count(), 2, "{said}");
            // A server that holds nothing gets nothing, either.
            let new = member(3, "new", [first, &second]);
            let failure = new.session().wait_for_refusal("promoted or restored");
            println!("a new one: {failure}");
            drop(new);
            clock.set(0);
            ids_of_each();
            // By this clock, all that was granted has passed. So the only worker id that is left
            // goes from one to the other.
            clock.set(HOUR_MS);
            let new = member(3, "new", [first, &second]);
            new.session().wait_for_refusal(REFUSED).says("behind");
            session.run(
                "UPDATE leaf_id.leaf_registry SET max_ids_per_role = 1;
                 SELECT leaf_id.leaf_worker_retire(0)",
            );
            let given = || {
                second
                    .log()
                    .matches("worker id 1 is leased to node")
                    .count()
            };
            let before = given();
            wait_until(LIMIT, "six holders", || given() >= before + 6);
            ids_of_each();
            println!("an hour ahead: {} times to the other", given() - before);
            session.run("UPDATE leaf_id.leaf_registry SET max_ids_per_role = NULL");
            clock.set(0);
            ids_of_each();
        },
    );
    for asking in &asking {
        asking.is_refused_with(&["55000", "55P03", "54000"]);
        assert_in_order(asking.calls());
    }
    assert_apart(&asking);
}
