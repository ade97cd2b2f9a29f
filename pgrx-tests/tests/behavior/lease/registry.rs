//! Would catch: a worker id held by two servers at once, a new holder without a floor above the
//! previous one's ids, and a copy of a server accepted as the original.
//!
//! Sessions call the registry's functions like servers.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use leaf_id_tests::{Server, Session, becomes, in_threads, random, wait_until};
use rand::RngExt;

use super::asking::{
    LIMIT, NOW_MS, Node, TERMS, Terms, ask_at_last, leave, once_no_longer, server_and_session,
    server_and_session_ahead, try_call,
};

/// How far ahead a registry grants whose leases a test sees end, in milliseconds.
const AHEAD_MS: i64 = 2_000;

#[test]
fn twenty_sessions_at_once_get_twenty_ids() {
    let (server, mut admin) = server_and_session();
    for (round, isolation) in (0..).zip(["read committed", "repeatable read", "serializable"]) {
        admin.run("BEGIN; LOCK TABLE leaf_id.leaf_registry IN EXCLUSIVE MODE");
        let together = in_threads(21, |i| {
            if i == 20 {
                let mut watcher = server.session();
                let all_wait = becomes(LIMIT, || {
                    watcher.value(
                        "SELECT count(*) = 20 FROM pg_locks
                         WHERE NOT granted AND relation = 'leaf_id.leaf_registry'::regclass",
                    )
                });
                watcher.run(
                    "SELECT pg_terminate_backend(pid) FROM pg_locks
                     WHERE granted AND mode = 'ExclusiveLock' AND relation = 'leaf_id.leaf_registry'::regclass",
                );
                assert!(all_wait, "they do not come together");
                return None;
            }
            let mut session = server.session();
            session.run(&format!(
                "SET default_transaction_isolation = '{isolation}'"
            ));
            let mut node = Node::new(&format!("node {round} {i}"), TERMS);
            Some(ask_at_last(&mut session, &mut node).id())
        });
        admin = server.session();
        let ids: HashSet<_> = together.into_iter().flatten().collect();
        let expected: HashSet<_> = (20 * round..20 * (round + 1)).collect();
        assert_eq!(ids, expected, "{isolation}");
    }
    assert_eq!(
        admin.value::<i64>("SELECT count(*) FROM leaf_id.fleet WHERE state = 'leased'"),
        60
    );
}

#[test]
fn the_same_node_gets_its_id_back() {
    let (server, mut session) = server_and_session_ahead(AHEAD_MS);
    let mut nodes = ["a", "b", "c"].map(|name| Node::new(name, TERMS));
    for (id, node) in (0..).zip(&mut nodes) {
        assert_eq!(node.ask(&mut session).id(), id);
    }
    // The same name in another cluster is another node.
    let other = format!("4712, 'a', NULL, 1, NULL, NULL, NULL, {}", nodes[0].what());
    assert_eq!(try_call(&mut session, &other).unwrap().id(), 3);
    // A known token gets the worker id, ...
    for (id, node) in (0..).zip(&mut nodes) {
        *node = node.by_token();
        assert_eq!(node.ask(&mut session).id(), id);
    }
    // ... a lost data directory gets another one at once, ...
    assert_eq!(nodes[0].copied().ask(&mut session).id(), 4);
    server.restart();
    let mut session = server.session();
    wait_until(LIMIT, "the end of all leases", || {
        session.value(&format!(
            "SELECT max(reserved_until_ms) + 1000 <= {NOW_MS} FROM leaf_id.leaf_worker"
        ))
    });
    // ... also after R, unless it was reassigned: to its name first.
    assert_eq!(nodes[1].ask(&mut session).id(), 1);
    nodes[2] = nodes[2].by_token();
    assert_eq!(nodes[2].ask(&mut session).id(), 2);
    let reserved = nodes[0].until_ms();
    assert_eq!(nodes[0].copied().ask(&mut session).floor(), reserved);
    assert_eq!(nodes[0].ask(&mut session).worker_id, Some(4));
}

#[test]
fn a_new_holder_gets_the_floor() {
    let (_server, mut session) = server_and_session_ahead(AHEAD_MS);
    leave(&mut session, 7..8);
    let mut a = Node::new("a", TERMS);
    assert_eq!(a.ask(&mut session).id(), 7);
    // By the earlier of both clocks, however far off the other one is, and never lowered.
    for ahead_ms in [900, 3_000_000] {
        a.terms.ahead_ms = ahead_ms;
        let answer = a.ask(&mut session).is("granted");
        assert_eq!(a.until_ms(), answer.registry_ms + AHEAD_MS);
    }
    let reserved = a.until_ms();
    for ahead_ms in [-900, -3_000_000] {
        a.terms.ahead_ms = ahead_ms;
        a.ask(&mut session).id();
        assert_eq!(a.until_ms(), reserved);
    }
    let ahead = Terms {
        ahead_ms: 500,
        ..TERMS
    };
    let mut b = Node::new("b", ahead);
    b.ask(&mut session).is("full").details("1024");
    let answer = once_no_longer("full", || b.ask(&mut session));
    assert_eq!(answer.worker_id, Some(7));
    assert!(answer.registry_ms >= reserved + 1000, "{answer:?}");
    assert_eq!(answer.clone().floor(), reserved);
    assert_eq!(b.until_ms(), answer.registry_ms + AHEAD_MS);
    // Requests of the old holder do not change that.
    a.terms = TERMS;
    a.ask(&mut session).is("full");
    a.by_token().ask(&mut session).is("full");
    assert_eq!(b.ask(&mut session).floor(), reserved);
}

#[test]
fn a_lost_answer_is_no_clone() {
    let (_server, mut session) = server_and_session();
    let mut a = Node::new("a", TERMS);
    // The answers to the first request and to a renewal are lost.
    a.unanswered(&mut session);
    assert_eq!(a.ask(&mut session).id(), 0);
    a.unanswered(&mut session);
    let before = a.clone();
    assert_eq!(a.ask(&mut session).id(), 0);
    assert_eq!(a.ask(&mut session).id(), 0);
    // An outdated token is another server's, and so is the one before the next, which was recorded.
    assert_eq!(before.by_token().ask(&mut session).id(), 1);
    a.unanswered(&mut session);
    assert_eq!(a.by_token().ask(&mut session).id(), 2);
    assert_eq!(a.ask(&mut session).id(), 0);
}

#[test]
fn a_clone_is_another_server() {
    let (_server, mut session) = server_and_session();
    let mut a = Node::new("a", TERMS);
    assert_eq!(a.ask(&mut session).id(), 0);
    let mut image = a.clone();
    assert_eq!(a.ask(&mut session).id(), 0);
    assert_eq!(image.ask(&mut session).id(), 1);
    // Of two with the same token, the first one to show it stays.
    let mut quicker = a.clone();
    assert_eq!(quicker.ask(&mut session).id(), 0);
    assert_eq!(a.ask(&mut session).id(), 2);
    for (id, node) in (0..).zip([&mut quicker, &mut image, &mut a]) {
        assert_eq!(node.ask(&mut session).id(), id);
    }
    // A missing token does not match a missing token, and a name has three at most.
    for token in ["NULL", "0"] {
        let fields = format!("4711, 'a', {token}, 5, NULL, NULL, NULL, {}", a.what());
        let answer = try_call(&mut session, &fields).unwrap().is("full");
        answer
            .details("node \"a\" has worker ids 0, 1, 2, of servers that were rebooted or copied");
    }
    // Another name is another node, and a retired one does not count.
    assert_eq!(Node::new("b", TERMS).ask(&mut session).id(), 3);
    session.run("SELECT leaf_id.leaf_worker_retire(1)");
    assert_eq!(a.copied().ask(&mut session).id(), 4);
    a.copied().ask(&mut session).is("full").details("0, 2, 4");
}

/// A server that crashes again and again takes three worker ids, and then those again.
#[test]
fn a_name_gets_its_worker_ids_again() {
    let (_server, mut session) = server_and_session_ahead(AHEAD_MS);
    let crashed = Node::new("a", TERMS);
    let mut last = [0; 3];
    for id in 0..6 {
        let mut node = crashed.copied();
        let answer = once_no_longer("full", || node.ask(&mut session));
        let (worker_id, floor_ms, until_ms) = node.held.unwrap();
        let last = &mut last[usize::try_from(worker_id).unwrap()];
        assert_eq!((worker_id, floor_ms), (id % 3, *last), "{answer:?}");
        *last = until_ms;
    }
}

/// Fills the registry with leases that end in an hour, or ended an hour ago.
fn fill(session: &mut Session, ended: &[i32]) {
    session.run(&format!(
        "INSERT INTO leaf_id.leaf_worker (worker_id, system_identifier, node_name, token, reserved_until_ms)
         SELECT n, 1, 'node ' || n, 1,
             {NOW_MS} + 60000 * CASE WHEN n = ANY ('{{{}}}') THEN -n ELSE 60 END
         FROM generate_series(0, 1023) n",
        ended.iter().map(i32::to_string).collect::<Vec<_>>().join(",")
    ));
}

#[test]
fn full_is_an_error() {
    let (_server, mut session) = server_and_session();
    fill(&mut session, &[]);
    let mut a = Node::new("a", TERMS);
    a.ask(&mut session).is("full").details("all 1024");
    assert_eq!(
        session.value::<i64>("SELECT count(*) FROM leaf_id.leaf_worker WHERE token = 1"),
        1024
    );
    // An existing holder can renew.
    let renewal = format!("1, 'node 5', 1, 2, NULL, NULL, NULL, {}", a.what());
    assert_eq!(try_call(&mut session, &renewal).unwrap().id(), 5);
}

#[test]
fn an_ended_lease_is_granted_again() {
    let (server, mut session) = server_and_session();
    fill(&mut session, &[3, 500, 1023, 4]);
    session.run("SELECT leaf_id.leaf_worker_retire(500)");
    // The lease that ended first, but not one that is being renewed.
    let mut renewing = server.session();
    renewing.run("BEGIN; SELECT FROM leaf_id.leaf_worker WHERE worker_id = 1023 FOR UPDATE");
    let mut claim = |name: &str| Node::new(name, TERMS).ask(&mut session);
    assert_eq!(claim("a").worker_id, Some(4));
    renewing.run("ROLLBACK");
    assert_eq!(claim("b").worker_id, Some(1023));
    assert_eq!(claim("c").worker_id, Some(3));
    claim("d").is("full");
}

#[test]
fn retire_and_put_back() {
    let server = Server::with_leaf_id(&[
        ("leaf_id.max_clock_lead", "100ms"),
        ("leaf_id.timestamp_reservation", "100ms"),
    ]);
    let mut session = server.session();
    session.run("INSERT INTO leaf_id.leaf_registry (grant_ahead_ms) VALUES (2000)");
    let mut nodes = ["a", "b"].map(|name| Node::new(name, TERMS));
    // A worker id configured on some server.
    session.run("SELECT leaf_id.leaf_worker_retire(1)");
    let [a, b] = &mut nodes;
    assert_eq!(a.ask(&mut session).id(), 0);
    assert_eq!(b.ask(&mut session).id(), 2);
    // Its holder may issue up to R, and then needs another worker id, as does its copy.
    let reserved = a.until_ms();
    session.run("SELECT leaf_id.leaf_worker_retire(0)");
    let mut copied = a.copied();
    assert_eq!(a.ask(&mut session).id(), 3);
    assert_eq!(a.ask(&mut session).id(), 3);
    assert_eq!(copied.ask(&mut session).id(), 4);
    leave(&mut session, 0..0);
    for node in [&mut *b, &mut Node::new("c", TERMS)] {
        node.ask(&mut session).is("full");
    }
    // Another server may have had it by hand, with ids ahead of the clock. Whose it was is forgotten.
    let before_ms: i64 = session.value(&format!("SELECT {NOW_MS}"));
    session.run("SELECT leaf_id.leaf_worker_retire(0, false)");
    let after_ms: i64 = session.value(&format!("SELECT {NOW_MS}"));
    let is_free = "SELECT f.state = 'free' AND f.name IS NULL AND w.token = 0
                   FROM leaf_id.fleet f JOIN leaf_id.leaf_worker w USING (worker_id) WHERE worker_id = 0";
    assert!(session.value::<bool>(is_free));
    let answer = once_no_longer("full", || b.ask(&mut session));
    assert_eq!(answer.worker_id, Some(0));
    let above = (before_ms + 199).max(reserved)..=(after_ms + 201).max(reserved);
    assert!(above.contains(&answer.floor()), "{:?}: {above:?}", b.held);
    // What is in service stays as it is.
    session.run("SELECT leaf_id.leaf_worker_retire(0, false)");
    assert_eq!(b.ask(&mut session).worker_id, Some(0));

    for (arguments, state) in [
        ("1024", "22023"),
        ("NULL", "22004"),
        ("1, NULL::boolean", "22004"),
    ] {
        let call = format!("SELECT leaf_id.leaf_worker_retire({arguments})");
        session.fails(&call).is(state);
    }
}

/// Only a worker id that was never used can be reserved for composed ids of past times.
#[test]
fn a_fresh_worker_id_is_set_aside() {
    let (server, mut session) = server_and_session();
    let row = |session: &mut Session, id: i32| -> (bool, i64) {
        let sql = "SELECT retired, reserved_until_ms FROM leaf_id.leaf_worker WHERE worker_id = $1";
        let row = session.query_one(sql, &[&id]).unwrap();
        (row.get(0), row.get(1))
    };
    // The next holder starts above it, so the time is rounded up to milliseconds.
    let until_ms = 1_714_564_800_001;
    let until = "timestamptz '2024-05-01 12:00:00.0001+00'";
    session.run(&format!("SELECT leaf_id.leaf_worker_set_aside(0, {until})"));
    assert_eq!(row(&mut session, 0), (true, until_ms));
    let mut a = Node::new("a", TERMS);
    assert_eq!(a.ask(&mut session).id(), 1);
    session
        .run("SELECT leaf_id.leaf_worker_retire(2), leaf_id.leaf_worker_retire(3), leaf_id.leaf_worker_retire(3, false)");
    let mut b = Node::new("b", TERMS);
    assert_eq!(b.ask(&mut session).id(), 4, "the next without a row");
    session.run("SELECT leaf_id.leaf_worker_retire(6, false)");
    server.configure("leaf_id.worker_id", "5");
    wait_until(LIMIT, "the setting", || {
        session.value::<String>("SHOW leaf_id.worker_id") == "5"
    });
    // Set aside, leased, retired (so perhaps configured on a server), retired once, configured here.
    for used in [0, 1, 2, 3, 5] {
        let before: Vec<String> = session.column("SELECT w::text FROM leaf_id.leaf_worker w");
        let failure = session.fails(&format!(
            "SELECT leaf_id.leaf_worker_set_aside({used}, now())"
        ));
        failure
            .is("55000")
            .says(&format!("worker id {used} may have been used"))
            .hints("leaf_id.fleet");
        let after: Vec<String> = session.column("SELECT w::text FROM leaf_id.leaf_worker w");
        assert_eq!(after, before);
    }
    session.run("SELECT leaf_id.leaf_worker_set_aside(6, now())");
    for (arguments, state) in [
        ("-1, now()", "22023"),
        ("1024, now()", "22023"),
        ("9, 'infinity'::timestamptz", "22023"),
        ("9, '-infinity'::timestamptz", "22023"),
        ("9, '1970-01-01 00:00:00+00'::timestamptz", "22023"),
        ("9, '10000-01-01 00:00:00+00'::timestamptz", "22023"),
        ("9, NULL::timestamptz", "22004"),
        ("NULL, now()", "22004"),
    ] {
        let call = format!("SELECT leaf_id.leaf_worker_set_aside({arguments})");
        session.fails(&call).is(state);
    }
    // Put back into service, it is leased after the time that it was set aside for.
    let far = "timestamptz '2074-05-01 12:00:00+00'";
    session.run(&format!("SELECT leaf_id.leaf_worker_set_aside(7, {far})"));
    leave(&mut session, 7..8);
    session.run("SELECT leaf_id.leaf_worker_retire(7, false)");
    Node::new("c", TERMS).ask(&mut session).is("full");
    let until: bool = session.value(&format!(
        "SELECT lease_until = {far} FROM leaf_id.fleet WHERE worker_id = 7 AND state = 'free'"
    ));
    assert!(until);
}

/// The same worker id with another epoch repeats ids.
#[test]
fn another_epoch_is_refused() {
    let (_server, mut session) = server_and_session();
    let mut a = Node::new("a", TERMS);
    assert_eq!(a.ask(&mut session).id(), 0);
    for epoch_ms in [TERMS.epoch_ms + 1, 0, i64::MIN, i64::MAX] {
        let terms = Terms { epoch_ms, ..TERMS };
        let answer = Node::new("b", terms).ask(&mut session).is("epoch");
        answer.details(&format!("is {}, not {epoch_ms}", TERMS.epoch_ms));
        a.terms = terms;
        a.ask(&mut session).is("epoch");
        a.by_token().ask(&mut session).is("epoch");
    }
    a.terms = TERMS;
    assert_eq!(a.ask(&mut session).id(), 0);
    assert_eq!(
        session.value::<i64>("SELECT count(*) FROM leaf_id.leaf_worker"),
        1
    );
}

#[test]
fn a_clock_that_is_off_is_refused_if_nothing_is_held() {
    let (_server, mut session) = server_and_session_ahead(AHEAD_MS);
    let off = |ahead_ms| Terms { ahead_ms, ..TERMS };
    for (ahead_ms, text) in [
        (2000, "ms ahead of the registry's"),
        (-2000, "ms behind the registry's"),
    ] {
        let answer = Node::new("a", off(ahead_ms)).ask(&mut session);
        answer.is("clock").details(text);
    }
    assert_eq!(
        session.value::<i64>("SELECT count(*) FROM leaf_id.leaf_worker"),
        0
    );
    let mut a = Node::new("a", off(900));
    assert_eq!(a.ask(&mut session).peers, 0);
    // A single other server may be the one that is off.
    let mut late = Node::new("late", off(-400));
    let answer = late.ask(&mut session).is("granted");
    assert_eq!(answer.peers, 1);
    assert!(
        (850..=950).contains(&answer.peers_offset_ms.unwrap()),
        "{answer:?}"
    );
    let mut b = Node::new("b", off(900));
    b.ask(&mut session).is("granted");
    let mut new = Node::new("new", off(-800));
    new.ask(&mut session)
        .is("clock")
        .details("behind the median of 3");
    // A holder renews with any clock, and one that is behind gets no time.
    let reserved = late.until_ms();
    late.terms.ahead_ms = -60_000;
    let answer = late.ask(&mut session);
    assert_eq!(answer.peers, 2);
    assert_eq!(answer.id(), 1);
    assert_eq!(late.until_ms(), reserved);
    // Only members with a live lease have a vote.
    late.terms = off(-400);
    let answer = once_no_longer("clock", || {
        for node in [&mut a, &mut late] {
            node.ask(&mut session).is("granted");
        }
        new.ask(&mut session)
    });
    assert_eq!(answer.is("granted").peers, 2);
}

#[test]
fn a_dump_carries_floors() {
    let (server, mut session) = server_and_session_ahead(1000);
    let mut nodes = ["a", "b"].map(|name| Node::new(name, TERMS));
    for node in &mut nodes {
        node.ask(&mut session).is("granted");
    }
    session.run("SELECT leaf_id.leaf_worker_retire(2)");
    let dump = server.dir().join("dump.sql");
    let dump = dump.to_str().unwrap();
    server.run("pg_dump", &["-f", dump, "postgres"]);
    let forgotten = Node::new("c", TERMS).ask(&mut session).id();
    let elsewhere = Server::start_unrelated(1, &[]);
    session.run("CREATE DATABASE beside");
    // Like a copy of the whole database, which keeps the oids of its tables.
    drop(session);
    server
        .session_in("beside")
        .run("CREATE DATABASE copy TEMPLATE postgres");
    for (server, database, restored) in [
        (&elsewhere, "postgres", true),
        (&server, "beside", true),
        (&server, "copy", false),
    ] {
        println!("{database}");
        if restored {
            server.run(
                "psql",
                &["-Xq", "-v", "ON_ERROR_STOP=1", "-d", database, "-f", dump],
            );
        }
        let mut session = server.session_in(database);
        let reserved =
            "SELECT reserved_until_ms FROM leaf_id.leaf_worker WHERE node_name IN ('a', 'b')
                        ORDER BY worker_id";
        let reserved_by_nodes = nodes.clone().map(|node| node.until_ms());
        assert_eq!(session.ids(reserved), reserved_by_nodes);
        // Leases granted after the dump are lost.
        let mut new = Node::new("new", TERMS);
        let first = new.ask(&mut session).is("moved");
        let answer = once_no_longer("moved", || new.ask(&mut session));
        let next_free = if restored { forgotten } else { 4 };
        assert_eq!(answer.worker_id, Some(next_free));
        let floor = answer.clone().floor();
        assert!(
            (first.registry_ms + 2000..answer.registry_ms).contains(&floor),
            "{answer:?} after {first:?}"
        );
        for node in [&mut nodes[0].copied(), &mut nodes[1].clone()] {
            let before = node.held.map_or(0, |held| held.0);
            let answer = node.ask(&mut session);
            assert_eq!(answer.worker_id, Some(before));
            assert_eq!(answer.floor(), floor);
        }
    }
}

/// Ids allowed by an answer do not overlap with those of other holders.
#[test]
fn under_load_no_id_has_two_holders() {
    let (server, mut admin) = server_and_session_ahead(1000);
    leave(&mut admin, 0..16);
    // A worker id is granted again so much later than R, and a clock may be so far behind.
    admin.run("UPDATE leaf_id.leaf_registry SET max_skew_ms = 200");
    // (worker id, after, until): no id of this holder has a timestamp outside.
    let spans = in_threads(8, |i| {
        let mut session = server.session();
        let mut random = random();
        let mut spans: Vec<(i32, i64, i64)> = Vec::new();
        let started = Instant::now();
        for n in 0.. {
            if started.elapsed() > Duration::from_secs(6) {
                break;
            }
            let ahead_ms = random.random_range(-90..90);
            let mut node = Node::new(&format!("node {i} {n}"), Terms { ahead_ms, ..TERMS });
            let mut own = HashMap::new();
            loop {
                ask_at_last(&mut session, &mut node);
                let Some((id, after, until)) = node.held else {
                    break;
                };
                own.insert((id, after), until);
                if random.random_bool(0.3) {
                    break;
                }
            }
            spans.extend(
                own.into_iter()
                    .map(|((id, after), until)| (id, after, until)),
            );
        }
        spans
    });
    let mut spans: Vec<_> = spans.concat();
    println!("{} grants", spans.len());
    assert!(spans.len() > 30);
    spans.sort_unstable();
    let mut compared = 0;
    for pair in spans.windows(2) {
        let ((id, _, until), (next_id, after, _)) = (pair[0], pair[1]);
        if id == next_id {
            assert!(after >= until, "two held worker id {id}: {pair:?}");
            compared += 1;
        }
    }
    assert!(compared > 10, "only {compared} changes of a holder");
}

/// Before: with the defaults of settings, not by what this server is set to.
#[test]
fn no_worker_id_is_changed_without_the_library() {
    let server = Server::with_leaf_id(&[("shared_preload_libraries", "")]);
    let mut session = server.session();
    for call in [
        "leaf_worker_retire(5, false)",
        "leaf_worker_set_aside(5, now())",
    ] {
        session
            .fails(&format!("SELECT leaf_id.{call}"))
            .is("55000")
            .says("shared_preload_libraries");
    }
}

/// Its locks would outlast restarts, and no lease would be renewed.
#[test]
fn an_edit_cannot_be_prepared() {
    let server = Server::with_leaf_id(&[("max_prepared_transactions", "1")]);
    let mut session = server.session();
    session.run("SELECT leaf_id.leaf_worker_retire(1)");
    for edit in [
        "SELECT leaf_id.leaf_worker_retire(2)",
        "SELECT leaf_id.leaf_worker_retire(1, false)",
        "SELECT leaf_id.leaf_worker_set_aside(3, now())",
        "UPDATE leaf_id.leaf_registry SET grant_ahead_ms = 9000",
        "UPDATE leaf_id.leaf_registry SET max_skew_ms = 900",
        "INSERT INTO leaf_id.leaf_registry (grant_ahead_ms) VALUES (9000)
             ON CONFLICT (one) DO UPDATE SET grant_ahead_ms = excluded.grant_ahead_ms",
        "INSERT INTO leaf_id.leaf_worker (worker_id) VALUES (4)",
        "UPDATE leaf_id.leaf_worker SET retired = false",
    ] {
        session.run(&format!("BEGIN; {edit}"));
        session
            .fails("PREPARE TRANSACTION 'p'")
            .is("0A000")
            .says("the worker registry");
    }
    session.run("BEGIN; SELECT FROM leaf_id.leaf_registry; PREPARE TRANSACTION 'p'");
    session.run("ROLLBACK PREPARED 'p'");
}
