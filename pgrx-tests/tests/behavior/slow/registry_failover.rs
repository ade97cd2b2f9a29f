//! Would catch: a registry that assigns worker ids after a failover or a restart although it may
//! have lost leases; an answer that no standby has acknowledged; and a grace measured by the clock
//! of the previous server.

use std::thread;
use std::time::{Duration, Instant};

use leaf_id_tests::{Failure, STANDBY, Server, Session, Stop, wait_until};

use crate::lease::asking::{
    Answer, BRIEF, LIMIT, Node, TERMS, Terms, once_no_longer, server_and_session,
};

/// A primary and its standby.
fn pair() -> (Server, Server) {
    let primary = Server::with_leaf_id(&[]);
    let standby = primary.standby(&[]);
    (primary, standby)
}

#[test]
fn a_promoted_registry_grants_nothing_for_one_lease() {
    let (primary, standby) = pair();
    let mut session = primary.session();
    let mut nodes = ["a", "b", "c", "old"].map(|name| Node::new(name, TERMS));
    for node in &mut nodes {
        node.claim(&mut session).is("granted");
    }
    let [a, b, c, old] = &mut nodes;
    // Simulates leases of this duration, granted just now, since the test cannot wait a minute.
    session.run(
        "UPDATE leaf_id.leaf_worker SET lease_ms = 5000;
         UPDATE leaf_id.leaf_worker SET lease_until = now() WHERE node_name = 'old'",
    );
    standby.replay_all_of(&primary);
    let stale = a.clone();
    standby.cut_off();
    // The standby does not receive these.
    a.renew(&mut session).is("granted");
    let mut late = Node::new("late", TERMS);
    assert_eq!(late.claim(&mut session).id(), 4);
    primary.kill_9();
    standby.promote();

    for node in [&mut *a, &mut *b, &mut *c, &mut *old, &mut late] {
        node.terms.lease_ms = 5000;
    }
    let mut session = standby.session();
    let first = Instant::now();
    let mut new = Node::new("new", BRIEF);
    new.claim(&mut session).is("grace").details("promoted");
    // It has no lease, or an impossible one.
    new.worker_id = Some(5);
    for impossible in [
        i64::MIN,
        -1,
        i64::MAX,
        b.reserved_until_ms.unwrap() + 100_000_000,
    ] {
        new.reserved_until_ms = Some(impossible);
        new.claim(&mut session).is("grace");
    }
    new.worker_id = b.worker_id;
    new.reserved_until_ms = b.reserved_until_ms;
    new.claim(&mut session).is("grace");
    (new.worker_id, new.reserved_until_ms) = (None, None);
    // A holder continues: by its token, ...
    assert_eq!(b.renew(&mut session).id(), 1);
    *c = c.restarted();
    assert_eq!(c.claim(&mut session).id(), 2);
    // ... or by its last answer, if its renewal or its worker id was lost.
    stale.copied().claim(&mut session).is("held");
    a.renew(&mut session).is("lost");
    let reserved = a.reserved_until_ms.unwrap();
    let answer = a.claim(&mut session);
    assert!(answer.reserved_until_ms.unwrap() >= reserved, "{answer:?}");
    assert_eq!(answer.id(), 0);
    assert_eq!(a.renew(&mut session).id(), 0);
    stale.clone().claim(&mut session).is("held");
    late.renew(&mut session).is("lost").details("to nobody");
    assert_eq!(late.claim(&mut session).id(), 4);
    // As far as known, this lease has ended, and may have been reassigned.
    old.renew(&mut session).is("grace");
    old.restarted().claim(&mut session).is("grace");
    assert_eq!(
        session.value::<i64>(
            "SELECT count(*) FROM leaf_id.leaf_registry WHERE grace_since_ms IS NOT NULL"
        ),
        1
    );
    let answer = once_no_longer("grace", || new.claim(&mut session));
    assert!(first.elapsed() >= Duration::from_secs(5));
    // Above all ids of lost holders.
    assert_eq!(answer.worker_id, Some(5));
    assert!(answer.clone().floor() >= answer.registry_ms + 1000);
    let answer = old.renew(&mut session);
    assert!(answer.clone().floor() >= answer.registry_ms + 1000);
    // The grace has ended, and does not restart.
    standby.restart();
    let answer = Node::new("newer", TERMS).claim(&mut standby.session());
    assert_eq!(answer.is("granted").worker_id, Some(6));
}

/// The monotonic clock from before a restart is meaningless.
#[test]
fn a_restart_within_that_time_begins_it_again() {
    let (primary, standby) = pair();
    let terms = Terms {
        lease_ms: 4000,
        ..TERMS
    };
    Node::new("a", terms)
        .claim(&mut primary.session())
        .is("granted");
    standby.replay_all_of(&primary);
    primary.kill_9();
    standby.promote();
    let mut new = Node::new("new", terms);
    let mut session = standby.session();
    new.claim(&mut session).is("grace");
    let left = |answer: &Answer| -> i64 {
        let ms = answer.detail.rsplit(' ').nth(1).unwrap();
        ms.parse().unwrap()
    };
    wait_until(LIMIT, "a part of it", || {
        left(&new.claim(&mut session).is("grace")) < 3500
    });
    standby.restart();
    let restarted = Instant::now();
    let mut session = standby.session();
    let answer = new.claim(&mut session).is("grace");
    assert_eq!(left(&answer), 4000);
    once_no_longer("grace", || new.claim(&mut session)).is("granted");
    assert!(restarted.elapsed() >= Duration::from_secs(4));
}

/// An empty registry, or one with only its owner's settings, may have lost leases, too.
#[test]
fn a_promoted_registry_that_was_never_used_waits_too() {
    for settings in [
        "",
        "INSERT INTO leaf_id.leaf_registry (max_ids_per_role) VALUES (7)",
    ] {
        let (primary, standby) = pair();
        primary.session().run(settings);
        standby.replay_all_of(&primary);
        primary.kill_9();
        standby.promote();
        let mut session = standby.session();
        Node::new("a", BRIEF).claim(&mut session).is("grace");
        // Nothing can be lost: the registry was created on this timeline.
        session.run("DROP EXTENSION leaf_id; CREATE EXTENSION leaf_id");
        assert_eq!(Node::new("a", BRIEF).claim(&mut session).id(), 0);
    }
}

#[test]
fn a_registry_on_a_standby_is_none() {
    let (primary, standby) = pair();
    standby.replay_all_of(&primary);
    let mut session = standby.session();
    let failure = Node::new("a", TERMS).try_claim(&mut session).unwrap_err();
    failure.is("25006");
    session
        .fails("SELECT leaf_id.leaf_worker_retire(1)")
        .is("25006");
    assert_eq!(
        session.value::<i64>("SELECT count(*) FROM leaf_id.fleet WHERE kind = 'member'"),
        0
    );
}

/// Sends a claim while no standby responds, and acts once it waits.
fn claims_unanswered(
    server: &Server,
    node: &Node,
    then: impl FnOnce(&mut Session, i32),
) -> Result<Answer, Failure> {
    let mut session = server.session();
    session.run("SET synchronous_commit = off; SET statement_timeout = '500ms'");
    let pid = session.pid();
    let mut node = node.clone();
    thread::scope(|scope| {
        let claiming = scope.spawn(move || node.try_claim(&mut session));
        let mut watcher = server.session();
        wait_until(LIMIT, "the claim to wait for the standby", || {
            watcher.value(&format!(
                "SELECT count(*) = 1 FROM pg_stat_activity
                 WHERE pid = {pid} AND wait_event = 'SyncRep'
                     AND clock_timestamp() > query_start + interval '1 s'"
            ))
        });
        then(&mut watcher, pid);
        claiming.join().unwrap()
    })
}

#[test]
fn a_canceled_wait_for_a_standby_answers_nothing() {
    let (primary, standby) = pair();
    let mut session = primary.session();
    primary.configure("synchronous_standby_names", STANDBY);
    wait_until(LIMIT, "the standby to be synchronous", || {
        session.value("SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')")
    });
    let mut a = Node::new("a", TERMS);
    assert_eq!(a.claim(&mut session).id(), 0);
    standby.stop(Stop::Fast);
    a.who();
    for end in ["pg_cancel_backend", "pg_terminate_backend"] {
        let unanswered = claims_unanswered(&primary, &a, |watcher, pid| {
            watcher.run(&format!("SELECT {end}({pid})"));
        });
        let failure = unanswered.unwrap_err();
        println!("{end}: {failure}");
        failure.is_termination();
    }
    // Once the standby is back, the claim is answered. The answers to the previous two were lost.
    let answer = claims_unanswered(&primary, &a, |_, _| standby.launch());
    assert_eq!(answer.unwrap().id(), 0);
    primary.kill_9();
    standby.promote();
    let mut session = standby.session();
    assert_eq!(a.claim(&mut session).id(), 0);
    assert_eq!(a.renew(&mut session).id(), 0);
}

/// Three servers whose clocks are off the registry's by as much as tolerated; then the registry
/// gets another clock, off by as much in the other direction.
fn three_ahead(session: &mut Session) -> [Node; 3] {
    ["a", "b", "c"].map(|name| {
        let terms = Terms {
            ahead_ms: 600,
            ..TERMS
        };
        let mut node = Node::new(name, terms);
        node.claim(session).is("granted");
        node.terms.ahead_ms = -600;
        node
    })
}

#[test]
fn after_a_failover_peers_count_once_they_have_met_the_new_clock() {
    let (_server, mut session) = server_and_session();
    let mut nodes = three_ahead(&mut session);
    // Simulates a promotion.
    session.run("UPDATE leaf_id.leaf_registry SET timeline = 0");
    for node in &mut nodes {
        node.renew(&mut session).is("granted");
    }
    assert_eq!(nodes[0].renew(&mut session).is("granted").peers, 2);
}

#[test]
fn when_the_registrys_clock_is_set_servers_agree_again() {
    let (_server, mut session) = server_and_session();
    let mut nodes = three_ahead(&mut session);
    let refused = nodes[0].renew(&mut session).is("clock");
    refused.details("behind the median");
    for node in &mut nodes[1..] {
        node.renew(&mut session);
    }
    for node in &mut nodes {
        node.renew(&mut session).is("granted");
    }
}
