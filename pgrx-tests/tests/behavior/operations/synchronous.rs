//! Would catch: ids used before a synchronous standby has acknowledged their claim (I1), however
//! the wait ended; and an unnecessary skip after a failover although every claim was acknowledged
//! (I3).

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use leaf_id_tests::{
    STANDBY, Server, Session, Stop, assert_issued_once, becomes, random, wait_until,
};
use parking_lot::Mutex;
use rand::RngExt;

const LIMIT: Duration = Duration::from_secs(30);

/// The applications' own commits do not wait.
const CONF: [(&str, &str); 3] = [
    ("synchronous_commit", "off"),
    ("leaf_id.failover_skip", "0"),
    ("wal_retrieve_retry_interval", "100ms"),
];

/// A primary with tag `t`, and its synchronous standby.
fn synchronous_pair(step: i32, max_step: i32) -> (Server, Server) {
    let primary = Server::with_leaf_id(&CONF);
    let mut session = primary.session();
    session.run(&format!(
        "SELECT leaf_tag_create('t', step => {step}, max_step => {max_step});
         CREATE TABLE taken (id bigint)"
    ));
    let standby = primary.standby(&[]);
    primary.configure("synchronous_standby_names", STANDBY);
    wait_until(LIMIT, "the standby to be synchronous", || {
        session.value("SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')")
    });
    (primary, standby)
}

/// The allocator, once it waits for the standby to acknowledge a claim.
fn waiting_allocator(session: &mut Session) -> i32 {
    let mut pids = Vec::new();
    wait_until(LIMIT, "a claim to wait for the standby", || {
        pids = session.column(
            "SELECT pid FROM pg_stat_activity
             WHERE backend_type = 'leaf_id allocator' AND wait_event = 'SyncRep'",
        );
        !pids.is_empty()
    });
    pids[0]
}

/// The reason is visible without examining processes.
#[test]
fn a_claim_that_waits_for_a_standby_says_so() {
    let (primary, standby) = synchronous_pair(10, 10);
    let mut session = primary.session();
    session.next("t");
    session.wait_for_spare("t");
    standby.kill_9();
    drain(&mut session);
    wait_until(LIMIT, "what it waits for", || {
        session.value::<Option<bool>>(
            "SELECT last_error LIKE '%synchronous_standby_names%' FROM leaf_id.tags_detail",
        ) == Some(true)
    });
    let failure = session.fails("SELECT leaf_segment_next('t')");
    failure
        .is("55P03")
        .details("waits for a synchronous standby");
    primary.configure("synchronous_standby_names", "");
    wait_until(LIMIT, "ids", || session.try_next("t").is_ok());
    assert!(session.value::<bool>("SELECT last_error IS NULL FROM leaf_id.tags_detail"));
}

/// Takes all available ids, with a short timeout for more.
fn drain(session: &mut Session) -> Vec<i64> {
    session.run("SET leaf_id.refill_timeout = '100ms'");
    let mut ids = Vec::new();
    let failure = loop {
        match session.try_next("t") {
            Ok(id) => ids.push(id),
            Err(failure) => break failure,
        }
        assert!(ids.len() < 1000, "there is no end of them");
    };
    failure.is("55P03");
    ids
}

/// Asserts that the promoted standby's ids continue above the old primary's, without a gap.
fn assert_standby_goes_on(standby: &Server, mut old: Vec<i64>) {
    standby.promote();
    let mut session = standby.session();
    let known = session.max_id("t");
    let new = session.take("t", 100);
    assert_eq!(new[0], known, "something was skipped");
    old.sort_unstable();
    assert_issued_once([[old, new].concat()]);
    assert!(!standby.log().contains("leaf_id: skipped"));
}

#[test]
fn after_a_synchronous_failover_nothing_is_skipped_and_nothing_comes_twice() {
    let (primary, standby) = synchronous_pair(20, 500);
    let drawn = Mutex::new(Vec::new());
    let dead = AtomicBool::new(false);
    thread::scope(|scope| {
        for commit in ["off", "local", "off", "local"] {
            let mut session = primary.session();
            session.run(&format!("SET synchronous_commit = {commit}"));
            let (drawn, dead) = (&drawn, &dead);
            scope.spawn(move || {
                let sql = "INSERT INTO taken SELECT leaf_segment_next('t')
                           FROM generate_series(1, 20) RETURNING id";
                let mut ids = Vec::new();
                let failure = loop {
                    match session.try_column::<i64>(sql) {
                        Ok(more) => ids.extend(more),
                        Err(failure) => break failure,
                    }
                };
                drawn.lock().push(ids);
                assert!(dead.load(Ordering::SeqCst), "{failure}");
            });
        }
        thread::sleep(Duration::from_millis(random().random_range(100..500)));
        // Without it, the primary can use only ids claimed already.
        standby.cut_off();
        thread::sleep(Duration::from_millis(100));
        dead.store(true, Ordering::SeqCst);
        primary.kill_9();
    });
    let drawn = drawn.into_inner();
    assert_issued_once(&drawn);
    println!("{} ids on the old primary", drawn.concat().len());
    assert!(drawn.iter().all(|ids| !ids.is_empty()));
    assert_standby_goes_on(&standby, drawn.concat());
}

#[test]
fn a_claim_that_the_standby_has_not_acknowledged_is_never_used() {
    let (primary, standby) = synchronous_pair(20, 20);
    let mut session = primary.session();
    let mut ids = session.take("t", 5);
    standby.stop(Stop::Fast);
    ids.extend(drain(&mut session));
    let (mut watcher, mut waiter) = (primary.session(), primary.session());
    for (ways_out, end) in (1..).zip(["pg_cancel_backend", "pg_terminate_backend"]) {
        let allocator = waiting_allocator(&mut watcher);
        let row = watcher.max_id("t");
        assert!(watcher.value::<bool>(&format!("SELECT {end}({allocator})")));
        // The wait has ended: the claim stays in the table, and the next one waits, too.
        wait_until(LIMIT, "the end of the wait", || {
            primary
                .log()
                .matches("wait for synchronous replication")
                .count()
                >= ways_out
        });
        wait_until(LIMIT, "the claim to show", || watcher.max_id("t") > row);
        assert_eq!(drain(&mut session), [], "after {end}");
    }
    // The same at a shutdown, with a session waiting for the claim.
    waiting_allocator(&mut watcher);
    waiter.run("SET leaf_id.refill_timeout = '1min'");
    thread::scope(|scope| {
        let waiting = scope.spawn(|| waiter.try_next("t"));
        primary.stop(Stop::Fast);
        waiting.join().unwrap().unwrap_err().is_termination();
    });
    primary.launch();
    let mut session = primary.session();
    assert_eq!(drain(&mut session), [], "after a stop");
    waiting_allocator(&mut session);
    primary.crash();
    let mut session = primary.session();
    assert_eq!(drain(&mut session), [], "after a crash");

    standby.launch();
    session.run("SET leaf_id.refill_timeout = '20s'");
    ids.extend(session.take("t", 50));
    assert_issued_once([&ids]);
    primary.kill_9();
    assert_standby_goes_on(&standby, ids);
}

#[test]
fn what_a_claim_waits_for_is_what_the_setting_says() {
    let (primary, standby) = synchronous_pair(20, 20);
    let mut session = primary.session();
    session.take("t", 5);
    let set = |value: &str| {
        primary.set("leaf_id.claim_synchronous_commit", value);
        wait_until(LIMIT, "the reload", || {
            primary
                .session()
                .value::<String>("SHOW leaf_id.claim_synchronous_commit")
                == value
        });
    };
    standby.pause_replay();
    session.take("t", 100);
    set("remote_apply");
    drain(&mut session);
    waiting_allocator(&mut session);
    standby.resume_replay();
    session.run("SET leaf_id.refill_timeout = '20s'");
    session.take("t", 100);
    set("remote_write");
    session.take("t", 100);
    set("local");
    standby.stop(Stop::Fast);
    session.take("t", 100);
    set("on");
    drain(&mut session);
    waiting_allocator(&mut session);
    // Without configured standbys there is no wait.
    primary.configure("synchronous_standby_names", "");
    session.run("SET leaf_id.refill_timeout = '20s'");
    session.take("t", 100);
}

/// The launcher waits for it before it saves cached ranges.
#[test]
fn a_claim_that_waits_while_the_launcher_ends_is_not_lost() {
    let (primary, standby) = synchronous_pair(20, 20);
    let mut session = primary.session();
    let mut ids = session.take("t", 5);
    standby.stop(Stop::Fast);
    ids.extend(drain(&mut session));
    waiting_allocator(&mut session);
    let launcher: i32 =
        session.value("SELECT pid FROM pg_stat_activity WHERE backend_type = 'leaf_id launcher'");
    session.run(&format!("SELECT pg_terminate_backend({launcher})"));
    // As long as a slow disk takes.
    let ends = becomes(Duration::from_millis(1500), || {
        session.value(&format!(
            "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {launcher})"
        ))
    });
    assert!(!ends, "the launcher did not wait for the claim");
    primary.configure("synchronous_standby_names", "");
    session.run("SET leaf_id.refill_timeout = '20s'");
    ids.extend(session.take("t", 50));
    let expected: Vec<i64> = (1..).take(ids.len()).collect();
    assert_eq!(ids, expected, "a claim was lost");
}
