//! Would catch: what it takes several servers and more than one thing at a time to see: an id
//! that two servers issue (I3, I7), or one of them out of order (I4), ids that the centre has
//! not claimed (I1), and sessions that hang (I5), while three members under twelve sessions
//! take their segments and their worker ids from a central pair, servers are killed, frozen,
//! copied and promoted, clocks are set, and the network between them fails in every way.
//!
//! The events are drawn from the seed; how they meet the sessions is not.

use std::collections::BTreeMap;
use std::ops::Range;
use std::time::{Duration, Instant};
use std::{mem, thread};

use leaf_id_tests::{
    Caller, Failure, Haste, History, Load, Mode, Part, Plan, Proxy, Run, Server, Session, Source,
    Stop, random, wait_until,
};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;

const LIMIT: Duration = Duration::from_secs(60);
const MEMBERS: usize = 3;
const SESSIONS: usize = 12;
/// Copies of members note their calls, and the driver, as if they were one more server.
const CLONES: Caller = Caller {
    server: MEMBERS,
    session: SESSIONS,
};
/// How far a clock is set, which is more than `leaf_id.max_clock_skew`.
const OFF_MS: i64 = 2000;
/// How long a call may take while its server is up: some of its ids may each have to wait,
/// and two processors are few for all of this.
const STUCK: Duration = Duration::from_secs(15);
/// One round may take this long at most.
const ROUND: Duration = Duration::from_secs(300);
const CLAIM: &str = "leaf_claim($1";

/// A name, `step`, `max_step`, and how many ids a call asks for at most.
const TAGS: [(&str, i32, i32, u32); 3] = [
    // Somebody is always waiting for the centre.
    ("tiny", 10, 50, 10),
    ("small", 100, 5_000, 30),
    ("big", 10_000, 1_000_000, 200),
];

/// The kinds of events, and all of them in a list.
macro_rules! events {
    ($($event:ident)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        enum Event {
            $($event,)*
        }

        const EVENTS: &[Event] = &[$(Event::$event),*];
    };
}

events! {
    KillMember
    RestartMember
    FreezeMember
    KillAllocator
    TerminateAllocator
    CrashCentre
    RestartCentre
    FreezeCentre
    FailOver
    StandbyAway
    CancelClaims
    TerminateClaims
    SilentNetwork
    RefusedConnections
    EndedConnections
    CutBeforeClaim
    CutAfterClaim
    LockRowAtCentre
    ChangeSteps
    RaiseMaxIdAtCentre
    ResetAtCentre
    ReplaceTagOfMember
    SetClock
    CloneMember
    RenameNode
    ReleaseWorkerId
    RetireWorkerId
}

impl Event {
    /// Whether this is how sessions may see it.
    fn explains(self, failure: &Failure) -> bool {
        // Empty: the connection is lost.
        let states: &[_] = match self {
            Self::KillMember | Self::RestartMember => &["57P01", "57P03", ""],
            Self::KillAllocator => &["57P02", "57P03", ""],
            Self::CrashCentre
            | Self::RestartCentre
            | Self::FreezeCentre
            | Self::FailOver
            | Self::StandbyAway
            | Self::SilentNetwork
            | Self::RefusedConnections => &["55P03"],
            _ => &[],
        };
        states.contains(&&*failure.state) || (self.keeps_worker_ids_away() && is_refusal(failure))
    }

    /// Whether a member may have no worker id for a while.
    fn keeps_worker_ids_away(self) -> bool {
        !matches!(
            self,
            Self::TerminateAllocator
                | Self::CutBeforeClaim
                | Self::CutAfterClaim
                | Self::LockRowAtCentre
                | Self::ChangeSteps
                | Self::RaiseMaxIdAtCentre
                | Self::ResetAtCentre
                | Self::ReplaceTagOfMember
        )
    }
}

/// Whether a call for snowflake ids was refused, or has waited too long for the registry.
fn is_refusal(failure: &Failure) -> bool {
    ["55000", "55P03"].contains(&&*failure.state) && failure.message.contains("snowflake id")
}

/// Two servers, one of which is the centre and the other its synchronous standby.
struct Pair {
    servers: [Server; 2],
    primary: usize,
}

impl Pair {
    fn new() -> Self {
        let first = Server::with_leaf_id(&[
            // Every claim is acknowledged: nothing needs to be skipped.
            ("leaf_id.failover_skip", "0"),
            ("wal_retrieve_retry_interval", "100ms"),
            // What pg_rewind needs.
            ("wal_log_hints", "on"),
            ("wal_keep_size", "256MB"),
        ]);
        first.admit_members();
        first.lease_worker_ids();
        let second = first.standby(&[]);
        let pair = Self {
            servers: [first, second],
            primary: 0,
        };
        pair.make_synchronous();
        pair
    }

    fn primary(&self) -> &Server {
        &self.servers[self.primary]
    }

    fn standby(&self) -> &Server {
        &self.servers[1 - self.primary]
    }

    fn make_synchronous(&self) {
        self.primary().configure("synchronous_standby_names", "*");
        self.wait_for_standby();
    }

    fn wait_for_standby(&self) {
        let mut session = self.primary().session();
        wait_until(LIMIT, "the standby to be synchronous", || {
            session
                .value("SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')")
        });
    }

    /// The primary dies, the standby takes its place, and later the other one the standby's.
    fn fail_over(&mut self, vacancy: Duration) {
        self.primary().kill_9();
        thread::sleep(vacancy);
        self.standby().promote();
        self.primary = 1 - self.primary;
        // pg_rewind would not see the new timeline.
        self.primary().session().run("CHECKPOINT");
        self.standby().rewind_and_follow(self.primary());
        self.make_synchronous();
    }
}

/// A server that issues, and its ways to the pair.
struct Member {
    server: Server,
    ways: [Proxy; 2],
}

impl Member {
    fn new(number: usize, pair: &Pair) -> Self {
        let ways = pair.servers.each_ref().map(Proxy::to);
        let server = Server::start_unrelated_with_clock(
            number + 1,
            0,
            &[
                ("leaf_id.worker_lease", "6s"),
                ("leaf_id.timestamp_reservation", "300ms"),
                ("leaf_id.refill_timeout", "3s"),
                ("leaf_id.claim_timeout", "1s"),
            ],
        );
        server.feed_from(&ways.each_ref().map(Proxy::dir));
        let mut session = server.session();
        session.run("ALTER SERVER leaf_central OPTIONS (SET connect_timeout '1')");
        for (tag, step, max_step, _) in TAGS {
            session.create_fed_tag(tag, step, max_step);
        }
        server.lease_from_link(&node_name(number));
        Self { server, ways }
    }

    fn set(&self, mode: Mode) {
        for way in &self.ways {
            way.set(mode);
        }
    }
}

fn node_name(number: usize) -> String {
    format!("m{number}")
}

/// What came of it all.
#[derive(Default)]
struct Report {
    events: BTreeMap<Event, u32>,
    ids: BTreeMap<&'static str, u64>,
    errors: BTreeMap<String, u64>,
    lost: i64,
    longest_call: Duration,
    longest_silence: Duration,
}

struct Torture<'a> {
    pair: Pair,
    members: &'a [Member],
    history: &'a History,
    plan: &'a Plan,
    load: &'a Load<'a>,
    random: &'a mut StdRng,
    began: Instant,
    report: Report,
    /// What happened since the last settlement, and what before it.
    events: Vec<Event>,
    earlier: Vec<Event>,
}

impl Torture<'_> {
    fn round(&mut self, events: &[Event]) {
        let members = self.members.iter().map(|member| &member.server);
        for server in self.pair.servers.iter().chain(members) {
            server.allow(ROUND);
        }
        for &event in events {
            self.pass(50..300);
            self.events.push(event);
            *self.report.events.entry(event).or_default() += 1;
            println!("{:?} {event:?}", self.began.elapsed());
            self.perform(event);
        }
        self.pass(300..1000);
        let pause = self.load.pause(LIMIT);
        self.settle();
        drop(pause);
    }

    /// Lets the sessions work.
    fn pass(&mut self, ms: Range<u64>) {
        thread::sleep(self.draw(ms));
    }

    fn draw(&mut self, ms: Range<u64>) -> Duration {
        Duration::from_millis(self.random.random_range(ms))
    }

    fn choose_member(&mut self) -> (usize, &Member) {
        let number = self.random.random_range(0..MEMBERS);
        (number, &self.members[number])
    }

    fn choose_tag(&mut self) -> (usize, &'static str) {
        let source = self.random.random_range(0..TAGS.len());
        (source, TAGS[source].0)
    }

    fn perform(&mut self, event: Event) {
        let (number, _) = self.choose_member();
        let member = &self.members[number];
        match event {
            Event::KillMember => self.history.while_down(number, || member.server.crash()),
            Event::RestartMember => self.history.restart(number, &member.server),
            Event::FreezeMember => {
                let frozen = Instant::now();
                let guard = member.server.freeze();
                self.pass(100..2000);
                drop(guard);
                self.history.was_down(number, frozen);
            }
            Event::KillAllocator => self.kill_allocator(number),
            Event::TerminateAllocator => {
                let mut session = member.server.session();
                if let Some(pid) = session.worker("allocator") {
                    session.run(&format!("SELECT pg_terminate_backend({pid})"));
                }
            }
            Event::CrashCentre => self.pair.primary().crash(),
            Event::RestartCentre => self.pair.primary().restart(),
            Event::FreezeCentre => {
                let longest = self.draw(100..4000);
                let frozen = self.pair.primary().freeze();
                thread::sleep(longest);
                drop(frozen);
            }
            Event::FailOver => {
                let vacancy = self.draw(0..1500);
                self.pair.fail_over(vacancy);
            }
            Event::StandbyAway => {
                self.pair.standby().stop(Stop::Fast);
                self.pass(100..2000);
                self.pair.standby().launch();
                self.pair.wait_for_standby();
            }
            Event::CancelClaims => self.signal_claims("pg_cancel_backend"),
            Event::TerminateClaims => self.signal_claims("pg_terminate_backend"),
            Event::SilentNetwork => {
                member.set(Mode::Silent);
                self.pass(100..4000);
                member.set(Mode::Pass);
            }
            Event::RefusedConnections => {
                member.set(Mode::Refuse);
                self.pass(100..4000);
                member.set(Mode::Pass);
            }
            Event::EndedConnections => {
                for way in self.members.iter().flat_map(|member| &member.ways) {
                    way.end_connections();
                }
            }
            Event::CutBeforeClaim => self.cut(Mode::CutBefore(CLAIM)),
            Event::CutAfterClaim => self.cut(Mode::CutAfter(CLAIM)),
            Event::LockRowAtCentre => {
                let (_, tag) = self.choose_tag();
                let mut session = self.pair.primary().session();
                session.run(&format!("BEGIN; {} FOR UPDATE", row_of(tag)));
                self.pass(50..1500);
                session.run("COMMIT");
            }
            Event::ChangeSteps => self.change_steps(number),
            Event::RaiseMaxIdAtCentre | Event::ResetAtCentre => self.edit_centre(event),
            Event::ReplaceTagOfMember => self.replace_tag(number),
            Event::SetClock => {
                let clock = member.server.clock();
                let sign = if self.random.random() { 1 } else { -1 };
                clock.set(sign * OFF_MS);
                self.pass(100..4000);
                clock.set(0);
            }
            Event::CloneMember => self.clone_member(number),
            // It is another node for a while, and comes back.
            Event::RenameNode => {
                let name = format!("{}_again", node_name(number));
                member.server.set("leaf_id.node_name", &name);
                self.pass(100..2000);
                let server = &self.members[number].server;
                server.set("leaf_id.node_name", &node_name(number));
                // What it could show as this node is forgotten: it waits for the end of its own
                // lease, longer perhaps than the next two events take.
                let mut session = server.session();
                wait_until(LIMIT, "the node's own lease to end", || {
                    session.try_run("SELECT leaf_snowflake_next()").is_ok()
                });
            }
            Event::ReleaseWorkerId => self.take_worker_id("leaf_worker_release", number),
            Event::RetireWorkerId => self.take_worker_id("leaf_worker_retire", number),
        }
    }

    /// Kills it, and waits until its server is back.
    fn kill_allocator(&mut self, number: usize) {
        let server = &self.members[number].server;
        let crashes = || server.log().matches(" reinitializing").count();
        let before = crashes();
        let mut session = server.session();
        let Some(pid) = session.worker("allocator") else {
            return;
        };
        let killed = Instant::now();
        if server.kill_9_backend(pid) {
            wait_until(LIMIT, "the server to be back", || {
                crashes() > before && server.try_connect("postgres", "postgres").is_ok()
            });
            self.history.was_down(number, killed);
        }
    }

    fn signal_claims(&mut self, function: &str) {
        for _ in 0..5 {
            self.pair.primary().session().run(&format!(
                "SELECT {function}(pid) FROM pg_stat_activity WHERE usename = 'leaf_member'"
            ));
            self.pass(10..100);
        }
    }

    /// Every way of every member cuts off a claim.
    fn cut(&mut self, mode: Mode) {
        for member in self.members {
            member.set(mode);
        }
        self.pass(100..1000);
        for member in self.members {
            member.set(Mode::Pass);
        }
    }

    fn change_steps(&mut self, number: usize) {
        let factor = self.random.random_range(1..4);
        let mut there = self.pair.primary().session();
        let mut here = self.members[number].server.session();
        for (tag, step, max_step, _) in TAGS {
            for session in [&mut here, &mut there] {
                session.run(&format!(
                    "UPDATE leaf_id.leaf_alloc SET step = {}, max_step = {} WHERE biz_tag = '{tag}'",
                    step * factor,
                    max_step * factor
                ));
            }
        }
    }

    /// Ids go on above all that were claimed, so that none may come twice, whatever incarnation of
    /// the row it is from.
    fn edit_centre(&mut self, event: Event) {
        let (source, tag) = self.choose_tag();
        let gap: i64 = self.random.random_range(0..2000);
        let mut session = self.pair.primary().session();
        session.run("BEGIN");
        let max_id: i64 = session.value(&format!("{} FOR UPDATE", row_of(tag)));
        let to = max_id + gap;
        session.run(&if event == Event::ResetAtCentre {
            format!("SELECT leaf_tag_reset('{tag}', {to})")
        } else {
            format!("UPDATE leaf_id.leaf_alloc SET max_id = {to} WHERE biz_tag = '{tag}'")
        });
        session.run("COMMIT");
        self.history.skip(source, max_id, to);
    }

    /// What the member had is dropped, and it forgets what it was given. The next ids come
    /// from the centre all the same.
    fn replace_tag(&mut self, number: usize) {
        let (source, tag) = self.choose_tag();
        let (_, step, max_step, _) = TAGS[source];
        let mut session = self.members[number].server.session();
        session.run("BEGIN");
        session.run(&format!(
            "DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = '{tag}'"
        ));
        session.create_fed_tag(tag, step, max_step);
        session.run("COMMIT; SET leaf_id.refill_timeout = '60s'");
        // From now on its row covers what it has issued.
        let driver = Caller {
            server: number,
            session: SESSIONS,
        };
        let call = || Ok(Run::of(&[session.try_next(tag)?]));
        let called = self.history.call(driver, source, "by the driver", 1, call);
        called.expect("an id of a tag created anew");
    }

    /// A copy of a member runs for a while, and takes ids as the member does.
    fn clone_member(&mut self, number: usize) {
        let clone = self.members[number].server.backup().start(&[]);
        let mut session = clone.session();
        session.run("SET leaf_id.refill_timeout = '1s'");
        for _ in 0..self.random.random_range(1..10) {
            for (place, source) in self.history.sources().iter().enumerate() {
                let sql = match source {
                    Source::Tag(tag) => format!("SELECT leaf_segment_next_batch('{tag}', 20)"),
                    Source::Snowflake => "SELECT leaf_snowflake_next_batch(20)".into(),
                };
                let call = || Ok(Run::of(&session.try_column::<i64>(&sql)?));
                // What it is refused is noted, too.
                let _ = self.history.call(CLONES, place, "by a clone", 20, call);
            }
        }
    }

    /// Takes away the worker id that a member has.
    fn take_worker_id(&mut self, function: &str, number: usize) {
        let mut session = self.pair.primary().session();
        let name = node_name(number);
        session.run(&format!(
            "SELECT {function}(worker_id) FROM leaf_id.leaf_worker WHERE node_name = '{name}'"
        ));
    }

    /// Checks what happened since the last time, and adds it to the report. While the
    /// sessions pause.
    fn settle(&mut self) {
        let servers = self.members.iter().map(|member| &member.server);
        let mut sessions: Vec<_> = servers.map(Server::session).collect();
        let mut centre = self.pair.primary().session();
        let windows = self.history.settle_fleet(&mut sessions, &mut centre);
        for session in &mut sessions {
            // The rows were a check of their own, by the primary key.
            for part in &self.plan.parts {
                session.run(&format!("TRUNCATE {}", part.table()));
            }
        }
        for failure in self.load.take_troubles() {
            // Any statement of a hasty session may have taken too long.
            self.judge(&failure, &["57014"]);
        }
        for (source, window) in self.history.sources().iter().zip(&windows) {
            for cut in &window.cut {
                if cut.caller == CLONES && ["55000", "55P03"].contains(&&*cut.failure.state) {
                    continue;
                }
                let expected: &[_] = match self.plan.haste(cut.caller.session) {
                    Haste::None => &[],
                    Haste::Refill => &["55P03"],
                    Haste::Statement => &["57014"],
                };
                self.judge(&cut.failure, expected);
            }
            let failed = window.cut.iter().map(|cut| cut.took).max();
            let longest = window.longest_call.max(failed.unwrap_or_default());
            if longest > STUCK {
                self.history
                    .fail(&format!("{source}: a call took {longest:?}"));
            }
            let report = &mut self.report;
            report.longest_call = report.longest_call.max(window.longest_call);
            report.longest_silence = report.longest_silence.max(window.longest_silence);
            report.lost += window.lost;
            for (kind, ids) in &window.ids {
                *report.ids.entry(kind).or_default() += ids;
            }
        }
        self.earlier = mem::take(&mut self.events);
    }

    /// Ends the test at an error that nothing explains: neither what its session is like,
    /// nor what happened, nor what happened before, which a session may have missed.
    fn judge(&mut self, failure: &Failure, expected: &[&str]) {
        let state = &*failure.state;
        *self.report.errors.entry(state.into()).or_default() += 1;
        let mut events = self.earlier.iter().chain(&self.events);
        if !events.any(|event| event.explains(failure)) && !expected.contains(&state) {
            self.history.fail(&format!(
                "{failure}\nafter {:?} and {:?}",
                self.earlier, self.events
            ));
        }
    }
}

fn row_of(tag: &str) -> String {
    format!("SELECT max_id FROM leaf_id.leaf_alloc WHERE biz_tag = '{tag}'")
}

/// Has events happen, from a shuffled deck of all kinds, until there were so many and so
/// much time has passed.
fn torture(events: usize, at_least: Duration) {
    let began = Instant::now();
    let mut random = random();
    let pair = Pair::new();
    let mut centre: Session = pair.primary().session();
    for (tag, step, max_step, _) in TAGS {
        centre.run(&format!(
            "SELECT leaf_tag_create('{tag}', step => {step}, max_step => {max_step})"
        ));
    }
    drop(centre);
    let members: Vec<_> = (0..MEMBERS).map(|n| Member::new(n, &pair)).collect();
    let mut parts = TAGS
        .map(|(tag, _, _, most)| Part {
            source: Source::Tag(tag.into()),
            most,
        })
        .to_vec();
    parts.push(Part {
        source: Source::Snowflake,
        most: 100,
    });
    let plan = Plan {
        parts,
        sessions: SESSIONS,
        hasty: true,
        seed: random.random(),
    };
    for member in &members {
        Load::prepare(&mut member.server.session(), &plan.parts);
    }
    let history = plan.history(members[0].server.dir(), MEMBERS + 1);
    let servers: Vec<_> = members.iter().map(|member| &member.server).collect();
    let (pair, report) = Load::run(&servers, &history, &plan, |load| {
        let mut torture = Torture {
            pair,
            members: &members,
            history: &history,
            plan: &plan,
            load,
            random: &mut random,
            began,
            report: Report::default(),
            events: Vec::new(),
            earlier: Vec::new(),
        };
        let mut deck = Vec::new();
        let mut happened = 0;
        while happened < events || began.elapsed() < at_least {
            // One after the other, mostly; or before the effects of another are over.
            let count = if torture.random.random_bool(0.7) {
                1
            } else {
                2
            };
            if deck.len() < count {
                deck = EVENTS.to_vec();
                deck.shuffle(torture.random);
            }
            torture.round(&deck.split_off(deck.len() - count));
            happened += count;
        }
        (torture.pair, torture.report)
    });
    report.print();
    let ids: u64 = report.ids.values().sum();
    assert!(ids > 10_000, "the sessions were not at work");
    for server in servers.into_iter().chain(&pair.servers) {
        server.stop(Stop::Fast);
        assert_eq!(server.processes(), [], "left behind");
    }
    println!("{:?} in all", began.elapsed());
}

impl Report {
    fn print(&self) {
        println!("events: {}", self.events.values().sum::<u32>());
        for (event, times) in &self.events {
            println!("  {:26} {times:>12}", format!("{event:?}"));
        }
        // Each was compared with all the others, of all servers: see the history.
        println!(
            "ids, none of them twice: {}",
            self.ids.values().sum::<u64>()
        );
        for (kind, ids) in &self.ids {
            println!("  {kind:26} {ids:>12}");
        }
        println!("ids of tags lost: {}", self.lost);
        println!("errors:");
        for (state, times) in &self.errors {
            let state = if state.is_empty() {
                "connection lost"
            } else {
                state
            };
            println!("  {state:26} {times:>12}");
        }
        println!("longest call that got ids {:?}", self.longest_call);
        println!(
            "longest time without an id of a source on one server {:?}",
            self.longest_silence
        );
    }
}

#[test]
fn ten_events_in_a_fleet_repeat_nothing() {
    torture(10, Duration::ZERO);
}

/// By `make torture`.
#[test]
#[ignore = "takes LEAF_ID_TORTURE_SECONDS, or ten minutes"]
fn a_hundred_events_in_a_fleet_repeat_nothing() {
    let seconds = std::env::var("LEAF_ID_TORTURE_SECONDS")
        .map_or(600, |seconds| seconds.parse().expect("a number"));
    torture(100, Duration::from_secs(seconds));
}
