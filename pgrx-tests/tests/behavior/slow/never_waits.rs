//! Would catch: a fault after which snowflake ids are not available at once (I10), or repeat or go
//! back (I3, I4, I7): a crash, a promotion, a restored backup, a clock set back, and any two of
//! them in a row. With a fixed worker id, a server that was promoted or restored issues above all
//! ids of its predecessor, after one reservation.
//!
//! Durations are printed. The assertion is that a server did not wait without need; before the
//! logical clock, it waited up to five seconds.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use leaf_id_tests::{
    Asking, Backup, Failure, First, Registry, Server, assert_apart, assert_in_order,
    in_threads_until, tell, time_of, wait_until,
};

const LIMIT: Duration = Duration::from_secs(60);
/// Time limit on a busy machine for work that does not wait.
const AT_ONCE: Duration = Duration::from_secs(2);
/// leaf_id.timestamp_reservation, by default.
const RESERVATION: Duration = Duration::from_secs(1);
/// Clock offset that makes up for the effects of previous faults.
const HEALING_MS: i64 = 60_000;

const CONF: [(&str, &str); 3] = [
    ("leaf_id.worker_id", "1"),
    // For standbys from older backups.
    ("wal_keep_size", "256MB"),
    ("wal_retrieve_retry_interval", "100ms"),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    KillServer,
    KillBackend,
    KillLauncher,
    Promote,
    Restore,
    /// By this many milliseconds, under load.
    SetClockBack(u32),
}

const FAULTS: [Fault; 8] = [
    Fault::KillServer,
    Fault::KillBackend,
    Fault::KillLauncher,
    Fault::Promote,
    Fault::Restore,
    Fault::SetClockBack(20),
    Fault::SetClockBack(1000),
    Fault::SetClockBack(4000),
];

impl Fault {
    /// True if the server cannot know which ids were issued before.
    fn forgets(self) -> bool {
        matches!(self, Self::Promote | Self::Restore)
    }

    /// Time limit for the first id after this fault, given the previous one.
    fn may_take(self, before: Option<Self>) -> Duration {
        match (before, self) {
            // It waits for one reservation.
            (_, fault) if fault.forgets() => RESERVATION + AT_ONCE,
            // Its ids lead the clock by the max lead.
            (Some(before), Self::SetClockBack(ms)) if before.forgets() && ms >= 1000 => {
                Duration::from_millis(ms.into()) + AT_ONCE
            }
            _ => AT_ONCE,
        }
    }
}

/// A server subjected to faults, and all ids issued by it and its predecessors.
struct Scene {
    server: Server,
    /// Taken before the first fault.
    backup: Option<Backup>,
    asking: Asking,
    refused: usize,
}

impl Scene {
    /// A scene before these faults.
    fn new(faults: &[Fault]) -> Self {
        let server = Server::with_clock(0, &CONF);
        let asking = Asking::default();
        // A first start is like one that lost its state.
        let _ = asking.first(&server);
        let clock = server.clock();
        clock.set(HEALING_MS);
        let mut session = server.session();
        wait_until(LIMIT, "an id of the present", || {
            asking.call(&mut session, 1).is_ok() && {
                let id = asking.ids().pop().expect("just issued");
                time_of(id) <= clock.now_ms()
            }
        });
        let refused = asking.refusals().len();
        Self {
            backup: faults
                .iter()
                .any(|fault| fault.forgets())
                .then(|| server.backup()),
            server,
            asking,
            refused,
        }
    }

    /// A backup from before the faults, with the current clock.
    fn backup(&self) -> Backup {
        let backup = self.backup.as_ref().expect("a backup").again();
        backup.with_clock(self.server.clock().ahead_ms())
    }

    /// Causes a fault, and takes the first id after it.
    fn suffer(&mut self, fault: Fault) -> First {
        match fault {
            Fault::KillServer => self.server.crash(),
            Fault::KillBackend => {
                let mut victim = self.server.session();
                assert!(self.server.crash_by(victim.pid()));
            }
            Fault::KillLauncher => {
                let launcher = self
                    .server
                    .session()
                    .worker("launcher")
                    .expect("a launcher");
                assert!(self.server.crash_by(launcher));
            }
            Fault::Promote => {
                let standby = self.backup().start_standby(&self.server, &[]);
                standby.replay_all_of(&self.server);
                self.server.kill_9();
                standby.promote();
                self.server = standby;
            }
            Fault::Restore => {
                let backup = self.backup();
                self.server.kill_9();
                self.server = backup.start(&[]);
            }
            Fault::SetClockBack(ms) => return self.set_clock_back(ms),
        }
        let first = self.asking.first(&self.server);
        // Enough for some of them to be beyond the previous reservation.
        let mut session = self.server.session();
        for _ in 0..20 {
            self.asking.call(&mut session, 500).expect("more ids");
        }
        first
    }

    fn set_clock_back(&self, ms: u32) -> First {
        let clock = self.server.clock();
        let mut session = self.server.session();
        let act = || {
            self.asking.wait_for_ids();
            clock.set(clock.ahead_ms() - i64::from(ms));
            let first = self.asking.first_in(&mut session);
            // From all sessions.
            let before = self.asking.calls().len();
            wait_until(LIMIT, "more ids", || {
                self.asking.calls().len() >= before + 40
            });
            first
        };
        let ask = |_: usize, done: &_| self.asking.ask(&self.server, done);
        in_threads_until(4, ask, act).1
    }

    /// Calls refused since the last call of this function.
    fn refusals(&mut self) -> Vec<Failure> {
        let refusals = self.asking.refusals();
        let new = refusals[self.refused..].iter();
        let new = new.map(|refusal| refusal.failure.clone()).collect();
        self.refused = refusals.len();
        new
    }

    /// I3, I4: across all servers, since one replaced the other.
    fn check(&self) {
        assert_apart([&self.asking]);
        assert_in_order(self.asking.calls());
    }
}

/// Applies each pair to a server of its own. Tries all of them before the test fails.
fn try_pairs(pairs: &[(Fault, Fault)]) {
    let mut faults = Vec::new();
    let mut longest = BTreeMap::<_, Duration>::new();
    for &(one, other) in pairs {
        let mut scene = Scene::new(&[one, other]);
        let mut before = None;
        let mut line = String::new();
        for fault in [one, other] {
            let took = scene.suffer(fault).took;
            let refusals = scene.refusals();
            line += &format!("{fault:?}: {took:.1?}, {} refused; ", refusals.len());
            if took > fault.may_take(before) || !refusals.is_empty() {
                faults.push(format!(
                    "{fault:?} after {before:?}: {took:?}, {} refused, {:?}",
                    refusals.len(),
                    refusals.last()
                ));
            }
            if fault.may_take(before) == AT_ONCE {
                let longest = longest.entry(fault).or_default();
                *longest = took.max(*longest);
            }
            before = Some(fault);
        }
        println!("{line}");
        scene.check();
    }
    tell(&format!(
        "the first snowflake id came at the latest after: {longest:.1?}"
    ));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn after_every_pair_of_faults_ids_are_there_at_once() {
    let pairs = FAULTS.map(|one| FAULTS.map(|other| (one, other)));
    try_pairs(&pairs.concat());
}

/// The same with a leased worker id, and a registry on another server. A clock that is further off
/// than this is not acceptable for a member.
#[test]
fn with_a_leased_worker_id_ids_are_there_at_once() {
    let registry = Registry::ahead(Server::with_leaf_id(&[]), 300_000);
    let conf = [("leaf_id.timestamp_reservation", "5s")];
    let server = registry.member_with_clock("%h:%p", 0, &[&CONF[1..], &conf].concat());
    let asking = Asking::default();
    let _ = asking.first(&server);
    let mut scene = Scene {
        refused: asking.refusals().len(),
        asking,
        backup: None,
        server,
    };
    let mut figures = Vec::new();
    let mut check = |scene: &mut Scene, what: &str, first: &First| {
        figures.push(format!("{what} {:.1?}", first.took));
        assert!(first.took < AT_ONCE, "{what}: {first:?}");
        assert_eq!(scene.refusals(), [], "{what}");
    };
    for fault in [
        Fault::KillServer,
        Fault::SetClockBack(20),
        Fault::KillBackend,
        Fault::KillLauncher,
    ] {
        let first = scene.suffer(fault);
        check(&mut scene, &format!("{fault:?}"), &first);
    }
    scene.check();
    // One configuration; the port makes the node name unique.
    let standby = scene.server.standby(&[("port", "5433")]);
    standby.replay_all_of(&scene.server);
    let on_standby = Asking::default();
    let _ = on_standby.first(&standby);
    scene.server.kill_9();
    standby.promote();
    let first = on_standby.first(&standby);
    check(&mut scene, "a promotion", &first);
    assert_in_order(on_standby.calls());
    assert_apart([&scene.asking, &on_standby]);
    tell(&format!("with a leased worker id: {}", figures.join(", ")));
}

/// Kills a server repeatedly while 16 sessions request ids. A period begins when the server accepts
/// connections again, and lasts at least half a second.
fn crash_every_second(crashes: usize) {
    let server = Server::with_leaf_id(&CONF);
    let asking = Asking::default();
    let _ = asking.first(&server);
    let ask = |_: usize, done: &_| asking.ask(&server, done);
    let (_, periods) = in_threads_until(16, ask, || {
        asking.wait_for_ids();
        let period = |_| {
            let begin = Instant::now();
            server.crash();
            let up = Instant::now();
            let rest = Duration::from_secs(1).saturating_sub(begin.elapsed());
            // The pace of the crashes, regardless of ids.
            thread::sleep(rest.max(Duration::from_millis(500)));
            (up, Instant::now())
        };
        (0..crashes).map(period).collect::<Vec<_>>()
    });
    asking.is_refused_with(&["", "57P01", "57P02", "57P03"]);
    let calls = asking.calls();
    let firsts: Vec<_> = periods
        .iter()
        .map(|&(up, end)| {
            let calls = calls.iter().map(|call| call.end);
            let first = calls.filter(|&at| at >= up && at < end).min();
            first.map(|at| at - up)
        })
        .collect();
    let without = firsts.iter().filter(|first| first.is_none()).count();
    tell(&format!(
        "{crashes} crashes, one a second: {} ids, {without} periods without, the first of a period after {:.1?} at the latest",
        calls.len() * 20,
        firsts.iter().flatten().max()
    ));
    assert_apart([&asking]);
    assert_in_order(calls);
    assert_eq!(without, 0, "{firsts:.1?}");
}

/// For a minute by `make torture`: 16 sessions would disturb concurrent tests.
#[test]
fn a_crash_every_second_leaves_no_second_without_ids() {
    let tortured = std::env::var_os("LEAF_ID_TORTURE_SECONDS").is_some();
    crash_every_second(if tortured { 60 } else { 10 });
}
