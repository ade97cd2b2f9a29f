//! Would catch: a central server whose failure stops inserts on the others (fleet of three, twelve
//! sessions), ids issued twice after its standby took over (I3), with claims acknowledged by the
//! standby and without; and a central server that reissues ids it has forgotten.

use std::thread;
use std::time::{Duration, Instant};

use leaf_id_tests::{
    CENTRAL, Haste, History, Load, Part, Plan, STANDBY, Server, Session, Source, Stop,
    assert_issued_once, random, tell, wait_until,
};
use rand::RngExt;

const LIMIT: Duration = Duration::from_secs(60);
const MEMBERS: usize = 3;
const SESSIONS: usize = 12;
/// Time without a central server, in addition to the promotion.
const VACANCY: Duration = Duration::from_secs(3);

/// A central server, its standby, and members that know both.
struct Fleet {
    first: Server,
    second: Server,
    members: Vec<Server>,
}

impl Fleet {
    /// Creates tags of the same names everywhere. `step` equals `max_step`, so that the lifetime of
    /// cached ids is known.
    fn new(failover_skip: &str, tags: &[(&str, i32)]) -> Self {
        let first = Server::with_leaf_id(&[
            ("leaf_id.failover_skip", failover_skip),
            ("wal_retrieve_retry_interval", "100ms"),
        ]);
        first.admit_members();
        let second = first.standby(&[]);
        let mut session = first.session();
        for (tag, step) in tags {
            session.create_steady_tag(tag, *step);
        }
        let members = (1..=MEMBERS).map(|number| {
            let member = Server::start_unrelated(number, &[("leaf_id.refill_timeout", "60s")]);
            member.source_from(&[first.dir(), second.dir()]);
            let mut session = member.session();
            for (tag, step) in tags {
                session.create_sourced_tag(tag, *step, *step);
            }
            member
        });
        Self {
            members: members.collect(),
            first,
            second,
        }
    }

    fn make_synchronous(&self) {
        self.first.configure("synchronous_standby_names", STANDBY);
        let mut session = self.first.session();
        wait_until(LIMIT, "the standby to be synchronous", || {
            session
                .value("SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')")
        });
    }

    fn sessions(&self) -> Vec<Session> {
        self.members.iter().map(Server::session).collect()
    }
}

/// Checks that this many ids were skipped there, at once.
#[track_caller]
fn assert_skipped(server: &Server, ids: i64) {
    let log = server.log();
    let line = format!("leaf_id: skipped {ids} ids of tag \"t\"");
    assert_eq!(log.matches("leaf_id: skipped").count(), 1, "{log}");
    assert!(log.contains(&line), "{log}");
}

/// No short timeouts: every missing id is a failure.
fn plan(tags: &[(&str, i32)]) -> Plan {
    let part = |(tag, _): &(&str, i32)| Part {
        source: Source::Tag((*tag).into()),
        most: 20,
    };
    let plan = Plan {
        parts: tags.iter().map(part).collect(),
        sessions: SESSIONS,
        hasty: false,
        seed: random().random(),
    };
    assert!((0..SESSIONS).all(|session| plan.haste(session) == Haste::None));
    plan
}

/// Lets the sessions insert while the first server dies and the second one is promoted. Checks that
/// no call fails and no id is issued twice. Prints the longest stalls.
fn fail_over_under_load(
    what: &str,
    fleet: &Fleet,
    tags: &[(&str, i32)],
    whole: Duration,
    before: impl Fn(),
) {
    for member in &fleet.members {
        member.allow(whole + Duration::from_secs(300));
    }
    fleet.second.allow(whole + Duration::from_secs(300));
    fleet.first.allow(whole + Duration::from_secs(300));
    let plan = plan(tags);
    for session in &mut fleet.sessions() {
        Load::prepare(session, &plan.parts);
    }
    let history: History = plan.history(fleet.members[0].dir(), MEMBERS);
    let servers: Vec<&Server> = fleet.members.iter().collect();
    let began = Instant::now();
    let (windows, outage) = Load::run(&servers, &history, &plan, |load| {
        thread::sleep(whole * 2 / 5);
        before();
        let gone = Instant::now();
        fleet.first.kill_9();
        thread::sleep(VACANCY);
        fleet.second.promote();
        let mut session = fleet.second.session();
        wait_until(LIMIT, "a claim on the new timeline", || {
            session.value("SELECT timeline = 2 FROM leaf_id.leaf_alloc WHERE biz_tag <> 'large'")
        });
        let outage = gone.elapsed();
        thread::sleep(whole.saturating_sub(began.elapsed()));
        let pause = load.pause(LIMIT);
        let windows = history.settle_fleet(&mut fleet.sessions(), &mut session);
        drop(pause);
        let failures = load.take_failures();
        assert!(failures.is_empty(), "{failures:?}");
        (windows, outage)
    });
    for ((tag, step), window) in tags.iter().zip(windows) {
        let ids: u64 = window.ids.values().sum();
        assert!(ids > 1000, "the sessions were not at work");
        tell(&format!(
            "{what}: {ids} ids by {SESSIONS} sessions on {MEMBERS} servers in {whole:?}, none \
             twice; by segments of {step} the longest insert took {:?}",
            window.longest_call
        ));
        if let Some(cut) = window.cut.first() {
            history.fail(&format!("an insert has failed: {}", cut.failure));
        }
        // No session waits while cached ids remain.
        if *tag == LARGE && window.longest_call >= outage {
            history.fail(&format!("{tag}: a call took {:?}", window.longest_call));
        }
    }
}

/// Cached ids of one tag last for the whole test, those of the other for a moment. After the
/// failover, no ids of the large one are claimed, and none need be skipped.
const TAGS: [(&str, i32); 2] = [(LARGE, 10_000_000), ("small", 500)];
const LARGE: &str = "large";

fn synchronous_pair(whole: Duration) {
    let fleet = Fleet::new("0", &TAGS);
    fleet.make_synchronous();
    fail_over_under_load("synchronous failover", &fleet, &TAGS, whole, || {
        // The standby does not receive any further claims, so there must be none.
        fleet.second.cut_off();
        thread::sleep(Duration::from_secs(1));
    });
    assert!(!fleet.second.log().contains("leaf_id: skipped"));
}

#[test]
fn a_synchronous_pair_fails_over_under_load() {
    synchronous_pair(Duration::from_secs(8));
}

/// Run by `make torture`.
#[test]
#[ignore = "takes a minute"]
fn a_synchronous_pair_fails_over_in_a_minute_under_load() {
    synchronous_pair(Duration::from_secs(60));
}

/// The standby lacks the last claims of all members; two of each are skipped.
fn asynchronous_pair(whole: Duration) {
    const TAGS: [(&str, i32); 1] = [("t", 200_000)];
    let fleet = Fleet::new(&(2 * MEMBERS).to_string(), &TAGS);
    fail_over_under_load("asynchronous failover", &fleet, &TAGS, whole, || {
        let claimed = || fleet.first.session().max_id("t");
        fleet.second.cut_off();
        let known = fleet.second.session().max_id("t");
        // At least one claim that the standby never receives.
        wait_until(LIMIT, "a claim", || claimed() > known);
    });
    assert_skipped(&fleet.second, 2 * 3 * 200_000);
}

#[test]
fn an_asynchronous_pair_fails_over_under_load() {
    asynchronous_pair(Duration::from_secs(8));
}

/// Run by `make torture`.
#[test]
#[ignore = "takes a minute"]
fn an_asynchronous_pair_fails_over_in_a_minute_under_load() {
    asynchronous_pair(Duration::from_secs(60));
}

/// As many claims of all members together as are skipped, none of which the standby has received.
#[test]
fn an_asynchronous_pair_skips() {
    let tags = [("t", 100)];
    let fleet = Fleet::new("6", &tags);
    let mut sessions = fleet.sessions();
    let mut ids: Vec<Vec<i64>> = sessions.iter_mut().map(|s| s.take("t", 3)).collect();
    for session in &mut sessions {
        session.wait_for_spare("t");
    }
    fleet.second.replay_all_of(&fleet.first);
    fleet.second.cut_off();
    for (session, ids) in sessions.iter_mut().zip(&mut ids) {
        ids.extend(session.use_claims("t", 2));
    }
    let known = fleet.second.session().max_id("t");
    let lost = fleet.first.session().max_id("t") - known;
    assert_eq!(lost, 6 * 100);
    assert!(ids.iter().flatten().any(|id| *id >= known));
    fleet.first.kill_9();
    fleet.second.promote();
    for (session, ids) in sessions.iter_mut().zip(&mut ids) {
        ids.extend(session.take("t", 1000));
    }
    assert_issued_once(ids);
    assert_skipped(&fleet.second, lost);
}

/// It lost claims without skipping any, so it assigns ids below those of its members. They detect
/// that as far as possible, and an edit repairs it.
#[test]
fn a_central_server_behind_the_members_is_reported() {
    let tags = [("t", 100)];
    let fleet = Fleet::new("0", &tags);
    let mut session = fleet.members[0].session();
    let mut ids = session.take("t", 3);
    session.wait_for_spare("t");
    fleet.second.replay_all_of(&fleet.first);
    fleet.second.cut_off();
    // More than it makes up for by a few refused claims.
    ids.extend(session.use_claims("t", 20));
    let forgotten = fleet.first.session().max_id("t");
    fleet.first.stop(Stop::Immediate);
    fleet.second.promote();
    session.run("SET leaf_id.refill_timeout = '2s'");
    let failure = loop {
        match session.try_next("t") {
            Ok(id) => ids.push(id),
            // Errors until it has found the new central server.
            Err(failure) if failure.state == "55P03" => {}
            Err(failure) => break failure,
        }
    };
    failure.is("55000").says(CENTRAL).says("is behind");
    let mut central = fleet.second.session();
    assert!(central.max_id("t") < forgotten);
    central.run(&format!(
        "UPDATE leaf_id.leaf_alloc SET max_id = {forgotten} WHERE biz_tag = 't'"
    ));
    session.run("SET leaf_id.refill_timeout = '60s'");
    wait_until(LIMIT, "an id", || {
        session.try_next("t").is_ok_and(|id| {
            ids.push(id);
            true
        })
    });
    ids.extend(session.take("t", 1000));
    assert!(ids[ids.len() - 1000] >= forgotten);
    assert_issued_once([ids]);
}
