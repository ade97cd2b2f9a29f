//! Would catch: a registry that grants what it may have forgotten, after a failover, or after a
//! restore from a dump; one that stops holders then, or lets others wait for longer than the rule
//! says; and an answer that no standby has acknowledged.

use std::path::Path;
use std::thread;
use std::time::Duration;

use leaf_id_tests::{
    Asking, CENTRAL, Call, Failure, Registry, STANDBY, Server, Session, Stop, assert_apart,
    assert_in_order, in_threads_until, now_ms, time_of, wait_until, worker_of,
};

use crate::lease::asking::{Answer, LIMIT, Node, TERMS};

/// A call that the launcher cannot serve fails soon.
const CONF: [(&str, &str); 2] = [
    ("leaf_id.refill_timeout", "2s"),
    ("leaf_id.timestamp_reservation", "500ms"),
];
/// SQLSTATEs of a member without time to issue ids: at once, or after waiting for some.
const NO_TIME: [&str; 3] = ["55000", "54000", "55P03"];
/// Default of `max_skew_ms`.
const SKEW_MS: i64 = 1_000;
/// For what depends on the machine, not on a rule.
const SLACK_MS: i64 = 10_000;

/// A primary and its standby.
fn pair() -> (Server, Server) {
    let primary = Server::with_leaf_id(&[]);
    let standby = primary.standby(&[]);
    (primary, standby)
}

/// A server that leases its worker id from a registry on the one of these hosts that is a primary.
struct Member {
    server: Server,
    asking: Asking,
}

impl Member {
    fn new(number: usize, hosts: &[&Server]) -> Self {
        let server = Server::start_unrelated(1 + number % 2, &CONF);
        let mut session = server.session();
        session.run("CREATE EXTENSION leaf_id; CREATE EXTENSION dblink");
        let dirs: Vec<&Path> = hosts.iter().map(|host| host.dir()).collect();
        session.create_foreign_server(CENTRAL, &dirs);
        server.lease_as(&format!("m{number}"));
        Self {
            server,
            asking: Asking::default(),
        }
    }

    /// Members that have worker ids, the first one from 0.
    fn several(count: usize, hosts: &[&Server]) -> Vec<Self> {
        let members = (0..count).map(|number| {
            let member = Self::new(number, hosts);
            let _ = member.asking.first(&member.server);
            member
        });
        members.collect()
    }

    fn worker_id(&self) -> i32 {
        worker_of(self.asking.ids()[0])
    }

    /// When ids are issued to their end without a renewal, as the member says.
    fn until_ms(&self) -> i64 {
        let sql = "(extract(epoch FROM lease_until) * 1000)::bigint";
        self.server.session().snowflake_status(sql)
    }

    /// Checks that it was never without ids, and always had the same worker id.
    #[track_caller]
    fn assert_never_refused(&self) {
        self.asking.is_never_refused();
        let worker_id = self.worker_id();
        let ids = self.asking.ids();
        assert!(ids.iter().all(|id| worker_of(*id) == worker_id));
        assert_in_order(self.asking.calls());
    }
}

/// All members take ids during `act`.
fn while_asking<T>(members: &[Member], act: impl FnOnce() -> T) -> T {
    let result = in_threads_until(
        members.len(),
        |i, done| members[i].asking.ask(&members[i].server, done),
        act,
    );
    assert_apart(members.iter().map(|member| &member.asking));
    result.1
}

/// MF of a registry that was used after a move; it had granted this far ahead before.
#[track_caller]
fn moved_floor_ms(registry: &Server, ahead_ms: i64) -> i64 {
    let mut session = registry.session();
    let mut floor_ms = None;
    wait_until(LIMIT, "the first use", || {
        floor_ms = session.value("SELECT moved_floor_ms FROM leaf_id.leaf_registry");
        floor_ms.is_some()
    });
    let moved_at_ms: i64 = session
        .value("SELECT (extract(epoch FROM moved_at) * 1000)::bigint FROM leaf_id.leaf_registry");
    let floor_ms: i64 = floor_ms.unwrap();
    assert_eq!(floor_ms, moved_at_ms + ahead_ms + SKEW_MS);
    floor_ms
}

/// Waits until nothing is left that a registry may have forgotten.
fn wait_out(floor_ms: i64) {
    wait_until(LIMIT, "the end of what was forgotten", || {
        now_ms() > floor_ms + SKEW_MS
    });
}

/// Waits until each of these members has renewed its lease.
#[track_caller]
fn wait_for_renewals(registry: &Registry, members: &[Member]) {
    for member in members {
        registry.wait_for_renewal(member.worker_id());
    }
}

/// Restores the registry of a server, by a dump of all of that, on another one, which is stopped.
fn restore(dump: &Path, elsewhere: &Server) {
    elsewhere.launch();
    // The superuser exists already.
    let dump = dump.to_str().unwrap();
    elsewhere.run("psql", &["-Xq", "-d", "postgres", "-f", dump]);
}

/// A stopped server for a registry that is to be restored.
fn spare() -> Server {
    let spare = Server::start_unrelated(2, &[]);
    spare.stop(Stop::Fast);
    spare
}

#[test]
fn holders_go_on_when_their_last_renewals_are_lost() {
    const AHEAD_MS: i64 = 15_000;
    for is_restored in [false, true] {
        let registry = Registry::ahead(Server::with_leaf_id(&[]), AHEAD_MS);
        let first = &registry.server;
        let second = if is_restored {
            spare()
        } else {
            first.standby(&[])
        };
        let members = Member::several(3, &[first, &second]);
        while_asking(&members, || {
            wait_for_renewals(&registry, &members);
            let dump = first.dir().join("dump.sql");
            if is_restored {
                first.run("pg_dumpall", &["-f", dump.to_str().unwrap()]);
            } else {
                second.replay_all_of(first);
                second.cut_off();
            }
            wait_for_renewals(&registry, &members);
            first.kill_9();
            let killed_ms = now_ms();
            if is_restored {
                restore(&dump, &second);
            } else {
                second.promote();
            }
            let floor_ms = moved_floor_ms(&second, AHEAD_MS);
            println!(
                "restored: {is_restored}; used again after {} ms",
                floor_ms - AHEAD_MS - SKEW_MS - killed_ms
            );
            // What was granted before has passed then.
            wait_out(floor_ms);
            for member in &members {
                member.asking.wait_for_ids();
            }
        });
        for member in &members {
            member.assert_never_refused();
        }
    }
}

/// Members whose grants the registry has forgotten: each has issued up to R, and issues again,
/// above MF, when nothing forgotten is left.
#[track_caller]
fn assert_paused(members: &[Member], floor_ms: i64, ahead_ms: i64) {
    let until_ms: Vec<_> = members.iter().map(Member::until_ms).collect();
    assert!(until_ms.iter().all(|until_ms| *until_ms < floor_ms));
    wait_out(floor_ms);
    for (member, until_ms) in members.iter().zip(until_ms) {
        member.asking.wait_for_ids();
        let calls = member.asking.calls();
        let is_before = |call: &&Call| time_of(call.last) <= until_ms;
        let last = calls.iter().filter(is_before).max_by_key(|call| call.end);
        let first = calls.iter().filter(|call| !is_before(call));
        let first = first.min_by_key(|call| call.start).unwrap();
        let left_ms = until_ms - time_of(last.unwrap().last);
        // Tried again after a tenth of what is granted ahead.
        let rule_ms = floor_ms + SKEW_MS + ahead_ms / 10;
        let late_ms = now_ms() - ms(first.end.elapsed()) - rule_ms;
        println!(
            "worker id {}, then {}: ids up to {left_ms} ms before R, then none for {:?}, {late_ms} ms more than by the rule",
            member.worker_id(),
            worker_of(first.first),
            first.end - last.unwrap().end
        );
        assert!((0..1_000).contains(&left_ms), "{left_ms} ms not used");
        assert!(time_of(first.first) > floor_ms);
        assert!(late_ms <= SLACK_MS, "{late_ms} ms late");
        let refusals = member.asking.refusals();
        let used_up = refusals
            .iter()
            .find(|refusal| refusal.failure.state == "55000");
        used_up
            .unwrap()
            .failure
            .says("is used up")
            .details("promoted or restored and may have forgotten leases")
            .hints("as soon as the registry renews it");
    }
}

fn ms(duration: Duration) -> i64 {
    duration.as_millis().try_into().unwrap()
}

#[test]
fn a_holder_whose_first_claim_is_lost_waits() {
    // Longer than a slow machine needs to restart a server and to start another one.
    const AHEAD_MS: i64 = 20_000;
    let registry = Registry::ahead(Server::with_leaf_id(&[]), AHEAD_MS);
    let first = &registry.server;
    let second = first.standby(&[]);
    let mut members = Member::several(2, &[first, &second]);
    second.replay_all_of(first);
    second.cut_off();
    let late = Member::new(2, &[first, &second]);
    let _ = late.asking.first(&late.server);
    members.push(late);
    assert_eq!(members[2].worker_id(), 2);
    while_asking(&members, || {
        for member in &members {
            member.asking.wait_for_ids();
        }
        first.kill_9();
        second.promote();
        let floor_ms = moved_floor_ms(&second, AHEAD_MS);
        // A restart does not begin the wait again.
        second.restart();
        let new = Member::new(3, &[first, &second]);
        let failure = new
            .server
            .session()
            .wait_for_refusal("promoted or restored");
        failure.is("55P03");
        assert_paused(&members[2..], floor_ms, AHEAD_MS);
        let _ = new.asking.first(&new.server);
        let late_ms = now_ms() - (floor_ms + SKEW_MS);
        println!(
            "a new one has worker id {}, {late_ms} ms late",
            new.worker_id()
        );
        // It retries more and more rarely.
        assert!(
            (0..30_000 + SLACK_MS).contains(&late_ms),
            "{late_ms} ms late"
        );
        assert!(time_of(new.asking.ids()[0]) > floor_ms);
        assert_eq!(moved_floor_ms(&second, AHEAD_MS), floor_ms);
        let asking = members.iter().chain([&new]).map(|member| &member.asking);
        assert_apart(asking);
    });
    for member in &members[..2] {
        member.assert_never_refused();
    }
    members[2].asking.is_refused_with(&NO_TIME);
    assert_in_order(members[2].asking.calls());
}

/// The dump has the registry's first use, and nothing of its members.
#[test]
fn members_that_a_restored_registry_does_not_know_wait() {
    const AHEAD_MS: i64 = 6_000;
    let registry = Registry::ahead(Server::with_leaf_id(&[]), AHEAD_MS);
    let first = &registry.server;
    let second = spare();
    drop(Member::several(1, &[first]));
    let dump = first.dir().join("dump.sql");
    first.run("pg_dumpall", &["-f", dump.to_str().unwrap()]);
    let hosts = [first, &second];
    let members: Vec<_> = (1..4).map(|number| Member::new(number, &hosts)).collect();
    for (worker_id, member) in (1..).zip(&members) {
        let _ = member.asking.first(&member.server);
        assert_eq!(member.worker_id(), worker_id);
    }
    while_asking(&members, || {
        wait_for_renewals(&registry, &members);
        first.kill_9();
        restore(&dump, &second);
        let floor_ms = moved_floor_ms(&second, AHEAD_MS);
        assert_paused(&members, floor_ms, AHEAD_MS);
    });
    for member in &members {
        member.asking.is_refused_with(&NO_TIME);
        assert_in_order(member.asking.calls());
    }
}

/// The standby that lags is promoted first, then the other one, which has not what the first one
/// granted; then the old primary again. Each of them leases from itself while it is the primary.
fn fail_over_and_back(waits: bool) {
    const AHEAD_MS: i64 = 4_000;
    let conf = [
        // Requirements of pg_rewind.
        ("wal_log_hints", "on"),
        ("wal_keep_size", "128MB"),
        // A promoted server starts above what this lets the other one issue: less than is granted.
        ("leaf_id.max_clock_lead", "2s"),
    ];
    let registry = Registry::ahead(Server::with_leaf_id(&[&conf[..], &CONF].concat()), AHEAD_MS);
    let first = &registry.server;
    first.lease("postgres", "own");
    let [lagging, other] = [first.standby(&[]), first.standby(&[])];
    let own = [first, &lagging, &other];
    let of_own = [Asking::default(), Asking::default(), Asking::default()];
    let _ = of_own[0].first(first);
    // One that all three know, ...
    let mut members = vec![Member::new(1, &own)];
    let _ = members[0].asking.first(&members[0].server);
    lagging.replay_all_of(first);
    lagging.cut_off();
    // ... one that the lagging standby does not know, ...
    members.push(Member::new(2, &own));
    let _ = members[1].asking.first(&members[1].server);
    other.replay_all_of(first);
    other.cut_off();
    // ... and one that only the primary knows.
    members.push(Member::new(3, &own));
    let _ = members[2].asking.first(&members[2].server);
    let issues = |primary: usize, move_ms: i64| {
        of_own[primary].wait_for_ids();
        let took_ms = now_ms() - move_ms;
        println!("server {primary} issues {took_ms} ms after the move");
    };
    let all_issue = |primary: usize, move_ms: i64| {
        let mut session = own[primary].session();
        wait_out(session.value("SELECT moved_floor_ms FROM leaf_id.leaf_registry"));
        of_own[primary].wait_for_ids();
        for member in &members {
            member.asking.wait_for_ids();
        }
        println!("all issue {} ms after it", now_ms() - move_ms);
    };
    in_threads_until(
        own.len(),
        |i, done| of_own[i].ask(own[i], done),
        || {
            while_asking(&members, || {
                for member in &members {
                    member.asking.wait_for_ids();
                }
                first.kill_9();
                let move_ms = now_ms();
                lagging.promote();
                issues(1, move_ms);
                if waits {
                    all_issue(1, move_ms);
                }

                lagging.kill_9();
                let move_ms = now_ms();
                other.promote();
                issues(2, move_ms);
                if waits {
                    all_issue(2, move_ms);
                }

                // Otherwise pg_rewind would not see the new timeline.
                other.session().run("CHECKPOINT");
                first.rewind_and_follow(&other);
                first.replay_all_of(&other);
                other.stop(Stop::Fast);
                let move_ms = now_ms();
                first.promote();
                issues(0, move_ms);
                all_issue(0, move_ms);
            });
        },
    );
    for asking in &of_own {
        assert_in_order(asking.calls());
    }
    let all = members.iter().map(|member| &member.asking);
    assert_apart(all.chain(&of_own));
    for member in &members {
        member.asking.is_refused_with(&NO_TIME);
        assert_in_order(member.asking.calls());
    }
}

#[test]
fn a_registrys_own_servers_fail_over_and_back() {
    fail_over_and_back(true);
}

/// Each while holders whose grants were lost before have not used them up.
#[test]
fn a_registrys_own_servers_fail_over_and_back_in_a_row() {
    fail_over_and_back(false);
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
        Node::new("a", TERMS).ask(&mut session).is("moved");
        // Nothing can be lost: the registry was created on this timeline.
        session.run("DROP EXTENSION leaf_id; CREATE EXTENSION leaf_id");
        assert_eq!(Node::new("a", TERMS).ask(&mut session).id(), 0);
    }
}

#[test]
fn a_registry_on_a_standby_is_none() {
    let (primary, standby) = pair();
    standby.replay_all_of(&primary);
    let mut session = standby.session();
    let failure = Node::new("a", TERMS).try_ask(&mut session).unwrap_err();
    failure.is("25006");
    session
        .fails("SELECT leaf_id.leaf_worker_retire(1)")
        .is("25006");
    assert_eq!(
        session.value::<i64>("SELECT count(*) FROM leaf_id.fleet WHERE kind = 'member'"),
        0
    );
}

/// Sends a request while no standby responds, and acts once it waits.
fn asks_unanswered(
    server: &Server,
    node: &Node,
    then: impl FnOnce(&mut Session, i32),
) -> Result<Answer, Failure> {
    let mut session = server.session();
    session.run("SET synchronous_commit = off; SET statement_timeout = '500ms'");
    let pid = session.pid();
    let mut node = node.clone();
    thread::scope(|scope| {
        let asking = scope.spawn(move || node.try_ask(&mut session));
        let mut watcher = server.session();
        wait_until(LIMIT, "the request to wait for the standby", || {
            watcher.value(&format!(
                "SELECT count(*) = 1 FROM pg_stat_activity
                 WHERE pid = {pid} AND wait_event = 'SyncRep'
                     AND clock_timestamp() > query_start + interval '1 s'"
            ))
        });
        then(&mut watcher, pid);
        asking.join().unwrap()
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
    assert_eq!(a.ask(&mut session).id(), 0);
    standby.stop(Stop::Fast);
    a.who();
    for end in ["pg_cancel_backend", "pg_terminate_backend"] {
        let unanswered = asks_unanswered(&primary, &a, |watcher, pid| {
            watcher.run(&format!("SELECT {end}({pid})"));
        });
        let failure = unanswered.unwrap_err();
        println!("{end}: {failure}");
        failure.is_termination();
    }
    // Once the standby is back, the request is answered. The answers to the previous two were lost.
    let answer = asks_unanswered(&primary, &a, |_, _| standby.launch());
    assert_eq!(answer.unwrap().id(), 0);
    primary.kill_9();
    standby.promote();
    let mut session = standby.session();
    assert_eq!(a.ask(&mut session).id(), 0);
    assert_eq!(a.ask(&mut session).id(), 0);
}
