//! Would catch: a worker id held by two servers at once, a new holder without a floor above the
//! previous one's ids, and a copy of a server accepted as the original.
//!
//! Sessions call the registry's functions like servers.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use leaf_id_tests::{Server, Session, becomes, in_threads, random, wait_until};
use rand::RngExt;

use super::asking::{
    BRIEF, LIMIT, Node, TERMS, Terms, claim_at_last, leave, once_no_longer, server_and_session,
    try_call,
};

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
            Some(claim_at_last(&mut session, &mut node).id())
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
    let (server, mut session) = server_and_session();
    let mut nodes = ["a", "b", "c"].map(|name| Node::new(name, BRIEF));
    for (id, node) in (0..).zip(&mut nodes) {
        assert_eq!(node.claim(&mut session).id(), id);
    }
    // The same name in another cluster is another node.
    let other = format!("4712, 'a', NULL, 1, NULL, NULL, {}", nodes[0].what());
    let answer = try_call(&mut session, "claim", &other).unwrap();
    assert_eq!(answer.id(), 3);
    // A known token gets the worker id at once, ...
    for (id, node) in (0..).zip(&mut nodes) {
        *node = node.restarted();
        assert_eq!(node.claim(&mut session).id(), id);
    }
    server.restart();
    let mut session = server.session();
    wait_until(LIMIT, "the end of all leases", || {
        session.value("SELECT NOT bool_or(state = 'leased') FROM leaf_id.fleet")
    });
    // ... also after the end of the lease, unless it was reassigned, ...
    assert_eq!(nodes[1].renew(&mut session).id(), 1);
    nodes[2] = nodes[2].restarted();
    assert_eq!(nodes[2].claim(&mut session).id(), 2);
    // ... and a lost data directory gets a floor above the previous reservation.
    let reserved = nodes[0].reserved_until_ms.unwrap();
    let mut copied = nodes[0].copied();
    let answer = once_no_longer("held", || copied.claim(&mut session));
    assert_eq!(answer.worker_id, Some(0));
    assert!(answer.clone().floor() >= reserved, "{answer:?}");
    nodes[0].renew(&mut session).is("lost").details("by a copy");
}

#[test]
fn a_new_holder_gets_the_floor() {
    let (_server, mut session) = server_and_session();
    leave(&mut session, 7..8);
    let mut a = Node::new("a", BRIEF);
    assert_eq!(a.claim(&mut session).id(), 7);
    // The reservation is bounded by the registry's clock, and never lowered.
    a.terms.reserve_ms = 1_000_000_000;
    let answer = a.renew(&mut session).is("granted");
    let bound = answer.registry_ms + 3000 + 1000 + 1000;
    let reserved = answer.reserved_until_ms.unwrap();
    assert!(
        (bound..bound + 500).contains(&reserved),
        "{reserved} is not a little above {bound}"
    );
    for less in [0, i64::MIN / 2] {
        a.terms.reserve_ms = less;
        assert_eq!(a.renew(&mut session).reserved_until_ms, Some(reserved));
    }
    let mut b = Node::new("b", TERMS);
    b.claim(&mut session).is("full").details("1024");
    let answer = once_no_longer("full", || b.claim(&mut session));
    assert_eq!(answer.worker_id, Some(7));
    let floor = answer.clone().floor();
    assert!(floor >= reserved, "{answer:?} after {reserved}");
    assert!(floor >= answer.registry_ms + 1000, "{answer:?}");
    assert!(answer.reserved_until_ms.unwrap() >= reserved, "{answer:?}");
    // Requests of the old holder do not change that.
    a.terms.reserve_ms = 1_000_000;
    a.renew(&mut session).is("lost").details("to node \"b\"");
    a.claim(&mut session).is("full");
    let now = b.renew(&mut session).is("granted");
    assert!(now.reserved_until_ms.unwrap() < now.registry_ms + 62_000);
}

#[test]
fn a_lost_answer_is_no_clone() {
    let (_server, mut session) = server_and_session();
    let mut a = Node::new("a", TERMS);
    // The answers to the first claim and to a renewal are lost, the latter also by a restart.
    a.unanswered(|a| a.claim(&mut session));
    assert_eq!(a.claim(&mut session).id(), 0);
    a.unanswered(|a| a.renew(&mut session));
    let before = a.clone();
    assert_eq!(a.renew(&mut session).id(), 0);
    a.unanswered(|a| a.renew(&mut session));
    a = a.restarted();
    assert_eq!(a.claim(&mut session).id(), 0);
    assert_eq!(a.renew(&mut session).id(), 0);
    // An outdated token is another server's.
    before.clone().renew(&mut session).is("lost");
    before.clone().claim(&mut session).is("held");
}

#[test]
fn a_clone_is_held_off() {
    let (_server, mut session) = server_and_session();
    let mut a = Node::new("a", BRIEF);
    assert_eq!(a.claim(&mut session).id(), 0);
    let image = a.clone();
    assert_eq!(a.renew(&mut session).id(), 0);
    for mut clone in [image.clone(), image.restarted(), a.copied()] {
        let until = clone.claim(&mut session).is("held");
        until.details("worker id 0 is leased until");
        if clone.token.is_some() {
            clone.worker_id = Some(0);
            clone.renew(&mut session).is("lost").details("by a copy");
        }
        assert_eq!(a.renew(&mut session).id(), 0);
    }
    // Of two nodes with the same token, the first one to present it stays.
    let mut quicker = a.clone();
    assert_eq!(quicker.renew(&mut session).id(), 0);
    a.renew(&mut session).is("lost").details("by a copy");
    a = quicker;
    // A missing token does not match a missing token.
    for token in ["NULL", "0"] {
        let arguments = format!("4711, 'a', {token}, 5, NULL, NULL, {}", a.what());
        let answer = try_call(&mut session, "claim", &arguments);
        answer.unwrap().is("held");
    }
    // After the end of the lease, the worker id goes to whichever presents its token first.
    let mut clone = a.copied();
    let reserved = a.reserved_until_ms.unwrap();
    let answer = once_no_longer("held", || clone.claim(&mut session));
    assert!(answer.floor() >= reserved);
    a.renew(&mut session).is("lost").details("by a copy");
    a.claim(&mut session).is("held");
}

/// Fills the registry with leases that end in an hour, or ended an hour ago.
fn fill(session: &mut Session, ended: &[i32]) {
    session.run(&format!(
        "INSERT INTO leaf_id.leaf_worker (worker_id, system_identifier, node_name, token, lease_until, reserved_until_ms)
         SELECT n, 1, 'node ' || n, 1,
             now() + CASE WHEN n = ANY ('{{{}}}') THEN make_interval(mins => -n) ELSE '1 hour' END, n
         FROM generate_series(0, 1023) n",
        ended.iter().map(i32::to_string).collect::<Vec<_>>().join(",")
    ));
}

#[test]
fn full_is_an_error() {
    let (_server, mut session) = server_and_session();
    fill(&mut session, &[]);
    let mut a = Node::new("a", TERMS);
    a.claim(&mut session).is("full").details("all 1024");
    assert_eq!(
        session.value::<i64>("SELECT count(*) FROM leaf_id.leaf_worker WHERE token = 1"),
        1024
    );
    // An existing holder can renew.
    let renewal = format!("1, 'node 5', 1, 2, 5, NULL, {}", a.what());
    let answer = try_call(&mut session, "renew", &renewal).unwrap();
    assert_eq!(answer.id(), 5);
}

#[test]
fn an_ended_lease_is_granted_again() {
    let (server, mut session) = server_and_session();
    fill(&mut session, &[3, 500, 1023, 4]);
    session.run("SELECT leaf_id.leaf_worker_retire(500)");
    // The lease that ended first, but not one that is being renewed.
    let mut renewing = server.session();
    renewing.run("BEGIN; SELECT FROM leaf_id.leaf_worker WHERE worker_id = 1023 FOR UPDATE");
    let mut claim = |name: &str| Node::new(name, TERMS).claim(&mut session);
    assert_eq!(claim("a").worker_id, Some(4));
    renewing.run("ROLLBACK");
    assert_eq!(claim("b").worker_id, Some(1023));
    assert_eq!(claim("c").worker_id, Some(3));
    claim("d").is("full");
}

#[test]
fn retire_and_release() {
    let (_server, mut session) = server_and_session();
    let mut nodes = ["a", "b", "c"].map(|name| Node::new(name, TERMS));
    // A worker id configured on some server.
    session.run("SELECT leaf_id.leaf_worker_retire(1)");
    let [a, b, c] = &mut nodes;
    assert_eq!(a.claim(&mut session).id(), 0);
    assert_eq!(b.claim(&mut session).id(), 2);
    // Its holder may use up its reservation, then needs another worker id.
    session.run("SELECT leaf_id.leaf_worker_retire(0)");
    a.renew(&mut session).is("retired").details("worker id 0");
    a.copied().claim(&mut session).is("held");
    assert_eq!(a.claim(&mut session).id(), 3);
    assert_eq!(a.renew(&mut session).id(), 3);
    assert_eq!(c.claim(&mut session).id(), 4);

    let reserved = b.reserved_until_ms.unwrap();
    session.run("SELECT leaf_id.leaf_worker_release(2)");
    b.renew(&mut session).is("lost").details("to nobody");
    let left: Vec<(i32, bool)> = session
        .query(
            "SELECT worker_id, lease_ends > now() IS TRUE FROM leaf_id.fleet WHERE name IS NULL ORDER BY 1",
            &[],
        )
        .unwrap()
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    assert_eq!(left, [(0, true), (1, false), (2, false)]);
    leave(&mut session, 2..3);
    let answer = Node::new("d", TERMS).claim(&mut session);
    assert_eq!(answer.worker_id, Some(2));
    assert!(answer.clone().floor() >= reserved, "{answer:?}");
    // A retired worker id is reused above its reservation.
    let reserved = c.reserved_until_ms.unwrap();
    session.run("SELECT leaf_id.leaf_worker_release(4)");
    Node::new("e", TERMS).claim(&mut session).is("full");
    session.run("SELECT leaf_id.leaf_worker_retire(4, false)");
    let answer = Node::new("e", TERMS).claim(&mut session);
    assert_eq!(answer.worker_id, Some(4));
    assert!(answer.clone().floor() >= reserved, "{answer:?}");

    session
        .fails("SELECT leaf_id.leaf_worker_release(1)")
        .is("42704");
    session
        .fails("SELECT leaf_id.leaf_worker_release(NULL)")
        .is("22004");
    session
        .fails("SELECT leaf_id.leaf_worker_release(-7)")
        .is("42704");
    session
        .fails("SELECT leaf_id.leaf_worker_retire(1024)")
        .is("22023");
    session
        .fails("SELECT leaf_id.leaf_worker_retire(NULL)")
        .is("22004");
    session
        .fails("SELECT leaf_id.leaf_worker_retire(1, NULL::boolean)")
        .is("22004");
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
    assert_eq!(a.claim(&mut session).id(), 1);
    session
        .run("SELECT leaf_id.leaf_worker_retire(2), leaf_id.leaf_worker_retire(3), leaf_id.leaf_worker_retire(3, false)");
    let mut b = Node::new("b", TERMS);
    let answer = b.claim(&mut session);
    assert_eq!(answer.worker_id, Some(4), "the next without a row");
    session.run("SELECT leaf_id.leaf_worker_release(4)");
    server.configure("leaf_id.worker_id", "5");
    wait_until(LIMIT, "the setting", || {
        session.value::<String>("SHOW leaf_id.worker_id") == "5"
    });
    // Set aside, leased, retired (so perhaps configured on a server), leased once, configured here.
    for used in [0, 1, 2, 4, 5] {
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
    session.run("SELECT leaf_id.leaf_worker_set_aside(3, now())");
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
    // Put back into service, it is leased above the time it was set aside for.
    let far = "timestamptz '2074-05-01 12:00:00+00'";
    session.run(&format!("SELECT leaf_id.leaf_worker_set_aside(6, {far})"));
    leave(&mut session, 6..7);
    session.run("SELECT leaf_id.leaf_worker_retire(6, false)");
    let answer = Node::new("c", TERMS).claim(&mut session);
    assert_eq!(answer.worker_id, Some(6));
    let floor: i64 = session.value(&format!(
        "SELECT (extract(epoch FROM {far}) * 1000)::bigint"
    ));
    assert_eq!(answer.floor(), floor);
}

/// The same worker id with another epoch repeats ids.
#[test]
fn another_epoch_is_refused() {
    let (_server, mut session) = server_and_session();
    let mut a = Node::new("a", TERMS);
    assert_eq!(a.claim(&mut session).id(), 0);
    for epoch_ms in [TERMS.epoch_ms + 1, 0, i64::MIN, i64::MAX] {
        let terms = Terms { epoch_ms, ..TERMS };
        let answer = Node::new("b", terms).claim(&mut session).is("epoch");
        answer.details(&format!("is {}, not {epoch_ms}", TERMS.epoch_ms));
        a.terms = terms;
        a.renew(&mut session).is("epoch");
        a.restarted().claim(&mut session).is("epoch");
    }
    a.terms = TERMS;
    assert_eq!(a.renew(&mut session).id(), 0);
    assert_eq!(
        session.value::<i64>("SELECT count(*) FROM leaf_id.leaf_worker"),
        1
    );
}

#[test]
fn a_clock_that_is_off_is_refused() {
    let (_server, mut session) = server_and_session();
    let off = |ahead_ms| Terms { ahead_ms, ..TERMS };
    for (ahead_ms, text) in [
        (2000, "ms ahead of the registry's"),
        (-2000, "ms behind the registry's"),
    ] {
        let answer = Node::new("a", off(ahead_ms)).claim(&mut session);
        answer.is("clock").details(text);
    }
    assert_eq!(
        session.value::<i64>("SELECT count(*) FROM leaf_id.leaf_worker"),
        0
    );
    let mut a = Node::new("a", off(900));
    assert_eq!(a.claim(&mut session).peers, 0);
    // A single other server may be the one that is off.
    let mut late = Node::new("late", off(-400));
    let answer = late.claim(&mut session).is("granted");
    assert_eq!(answer.peers, 1);
    assert!(
        (850..=950).contains(&answer.peers_offset_ms.unwrap()),
        "{answer:?}"
    );
    let mut b = Node::new(
        "b",
        Terms {
            lease_ms: 2000,
            ..off(900)
        },
    );
    b.claim(&mut session).is("granted");
    // Compared with the median of the two others, not with the registry. It keeps its reservation,
    // which is not extended.
    let reserved = late.reserved_until_ms;
    let answer = late.renew(&mut session).is("clock");
    assert_eq!(answer.peers, 2);
    answer.details("behind the median of 2 other servers");
    let sql = "SELECT reserved_until_ms FROM leaf_id.leaf_worker WHERE node_name = 'late'";
    assert_eq!(Some(session.value::<i64>(sql)), reserved);
    let mut new = Node::new("new", off(-800));
    new.claim(&mut session)
        .is("clock")
        .details("behind the median of 3");
    // Only members with a live lease count.
    let answer = once_no_longer("clock", || late.renew(&mut session));
    assert_eq!(answer.is("granted").peers, 1);
}

#[test]
fn a_dump_carries_floors() {
    let (server, mut session) = server_and_session();
    let terms = Terms {
        lease_ms: 1000,
        ..TERMS
    };
    let mut nodes = ["a", "b"].map(|name| Node::new(name, terms));
    for node in &mut nodes {
        node.claim(&mut session).is("granted");
    }
    session.run("SELECT leaf_id.leaf_worker_retire(2)");
    let dump = server.dir().join("dump.sql");
    let dump = dump.to_str().unwrap();
    server.run("pg_dump", &["-f", dump, "postgres"]);
    let forgotten = Node::new("c", terms).claim(&mut session);
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
        let reserved_by_nodes = nodes.clone().map(|node| node.reserved_until_ms.unwrap());
        assert_eq!(session.ids(reserved), reserved_by_nodes);
        // Leases granted after the dump are lost.
        let mut new = Node::new("new", terms);
        new.claim(&mut session).is("grace");
        let answer = once_no_longer("grace", || new.claim(&mut session)).is("granted");
        let next_free = if restored {
            forgotten.worker_id
        } else {
            Some(4)
        };
        assert_eq!(answer.worker_id, next_free);
        assert!(answer.floor() > 0);
        let mut copied = nodes[0].copied();
        let answer = once_no_longer("held", || copied.claim(&mut session));
        assert!(answer.floor() >= reserved_by_nodes[0]);
        nodes[1].clone().renew(&mut session).is("granted");
    }
}

/// Ids allowed by an answer do not overlap with those of other holders.
#[test]
fn under_load_no_id_has_two_holders() {
    let (server, mut admin) = server_and_session();
    leave(&mut admin, 0..3);
    // A lease is not reassigned before this time after its end.
    admin.run("UPDATE leaf_id.leaf_registry SET max_skew_ms = 20");
    // (worker id, after, until): no id of this holder has a timestamp outside.
    let spans = in_threads(8, |i| {
        let mut session = server.session();
        let mut random = random();
        let mut spans: Vec<(i32, i64, i64)> = Vec::new();
        let started = Instant::now();
        while started.elapsed() < Duration::from_secs(6) {
            let terms = Terms {
                lease_ms: random.random_range(1..100),
                reserve_ms: random.random_range(-100..300),
                skew_ms: 60,
                lead_ms: random.random_range(0..100),
                ..TERMS
            };
            let mut node = Node::new(&format!("node {i}"), terms);
            let Ok(answer) = node.try_claim(&mut session) else {
                continue;
            };
            if answer.status != "granted" {
                continue;
            }
            let id = answer.worker_id.unwrap();
            let after = answer.floor_ms.unwrap();
            let mut until = answer.reserved_until_ms.unwrap();
            while random.random_bool(0.7) {
                let answer = node.renew(&mut session);
                if answer.status == "granted" {
                    until = answer.reserved_until_ms.unwrap();
                }
            }
            spans.push((id, after, until));
        }
        spans
    });
    let mut spans: Vec<_> = spans.concat();
    println!("{} grants", spans.len());
    assert!(spans.len() > 50);
    spans.retain(|(_, after, until)| after < until);
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
