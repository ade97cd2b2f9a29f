//! Would catch: failures that need several servers and concurrent events: an id issued by two
//! servers (I3, I7) or out of order (I4), ids that the central server has not claimed (I1), and
//! sessions that hang (I5). Three members with twelve sessions take segments and worker ids from a
//! central pair, while servers are killed, frozen, copied and promoted, clocks are set, and the
//! network between them fails in every way.

use std::thread;
use std::time::{Duration, Instant};

use leaf_id_tests::{
    CENTRAL, Caller, Cut, Failure, History, IdRange, Mode, Part, Proxy, Server, Session, Source,
    Stop, Window, wait_until,
};
use rand::RngExt;
use rand::seq::IndexedRandom;

use super::driver::{Driver, Extent, LIMIT, Subject, Work, lock_of, run};
use super::event::{Happening, Loss, events};

const MEMBERS: usize = 3;
const SESSIONS: usize = 12;
/// Copies of members record their calls, like the driver, as those of an additional server.
const CLONES: Caller = Caller {
    server: MEMBERS,
    session: SESSIONS,
};
/// Clock offsets that the registry does not tolerate at a claim, ...
const OFF_MS: [i64; 3] = [2000, 60_000, 3_600_000];
/// ... and below, so that nothing may be refused.
const NUDGES_MS: [i64; 2] = [20, 500];
const CLAIM: &str = "pg_catalog.ts_parse(";
/// What a server without a worker id says.
const REFUSED: [&str; 3] = ["54000", "55000", "55P03"];

/// Name, `step`, `max_step`, and max ids per call.
const TAGS: [(&str, i32, i32, u32); 4] = [
    // Sessions always wait for the central server.
    ("tiny", 10, 50, 10),
    ("small", 100, 5_000, 30),
    ("big", 10_000, 1_000_000, 200),
    (SECRET, 100, 5_000, 20),
];
/// The members have a key of this tag.
const SECRET: &str = "secret";
const SECRET_NUMBERS: i64 = (1 << 53) - 1;

events! {
    KillMember
    RestartMember
    FreezeMember
    KillAllocator
    TerminateAllocator
    CrashCentral
    RestartCentral
    FreezeCentral
    FailOver
    StandbyAway
    CancelClaims
    TerminateClaims
    SilentNetwork
    RefusedConnections
    EndedConnections
    CutBeforeClaim
    CutAfterClaim
    LockRowAtCentral
    ChangeSteps
    RaiseMaxIdAtCentral
    ResetAtCentral
    ReplaceTagOfMember
    SetBackTagsAtCentral
    SetBackMarksAtCentral
    SetBackWorkers
    SetClock
    NudgeClock
    CloneMember
    RenameNode
    RetireWorkerId
}

impl Happening for Event {
    const ALL: &'static [Self] = EVENTS;

    fn is_cheap(self) -> bool {
        matches!(
            self,
            Self::TerminateAllocator
                | Self::CancelClaims
                | Self::TerminateClaims
                | Self::EndedConnections
                | Self::CutBeforeClaim
                | Self::CutAfterClaim
                | Self::LockRowAtCentral
                | Self::ChangeSteps
                | Self::RaiseMaxIdAtCentral
                | Self::ResetAtCentral
                | Self::ReplaceTagOfMember
        )
    }

    fn recovers(self) -> Duration {
        if self.keeps_worker_ids_away() {
            // What was granted ahead before a failover, twice the skew, and a request.
            Duration::from_secs(10)
        } else {
            // Two claims that time out.
            Duration::from_secs(3)
        }
    }

    /// A claim is lost with its answer, wherever between two servers that happens.
    fn loss(self) -> Loss {
        Loss::Crash
    }

    fn explains(self, failure: &Failure) -> bool {
        // Empty: the connection is lost.
        let states: &[_] = match self {
            Self::KillMember | Self::RestartMember => &["57P01", "57P03", ""],
            Self::KillAllocator => &["57P02", "57P03", ""],
            // PostgreSQL schedules timeouts by the wall clock once one of them has expired.
            Self::SetClock => &["57014"],
            Self::CrashCentral
            | Self::RestartCentral
            | Self::FreezeCentral
            | Self::FailOver
            | Self::StandbyAway
            | Self::SetBackTagsAtCentral
            | Self::SetBackMarksAtCentral
            | Self::SetBackWorkers
            | Self::SilentNetwork
            | Self::RefusedConnections => &["55P03"],
            _ => &[],
        };
        states.contains(&&*failure.state) || (self.keeps_worker_ids_away() && is_refusal(failure))
    }

    fn delays(self) -> bool {
        matches!(
            self,
            Self::CancelClaims
                | Self::TerminateClaims
                | Self::EndedConnections
                | Self::CutBeforeClaim
                | Self::CutAfterClaim
        )
    }
}

impl Event {
    /// True if a member may have no worker id for a while.
    fn keeps_worker_ids_away(self) -> bool {
        match self {
            Self::NudgeClock => false,
            // May hit a request for a worker id.
            Self::CancelClaims | Self::TerminateClaims | Self::EndedConnections => true,
            _ => !self.is_cheap(),
        }
    }
}

/// True if a call for snowflake ids was refused, or waited too long for the registry.
fn is_refusal(failure: &Failure) -> bool {
    REFUSED.contains(&&*failure.state) && failure.message.contains("snowflake id")
}

/// Two servers: a central server and its synchronous standby.
struct Pair {
    servers: [Server; 2],
    primary: usize,
}

impl Pair {
    fn new() -> Self {
        let first = Server::with_leaf_id(&[
            // Every claim is acknowledged, so none need be skipped.
            ("leaf_id.failover_skip", "0"),
            ("wal_retrieve_retry_interval", "100ms"),
            // Requirements of pg_rewind.
            ("wal_log_hints", "on"),
            ("wal_keep_size", "256MB"),
        ]);
        first.admit_members();
        first.lease_worker_ids();
        first
            .session()
            .run("INSERT INTO leaf_id.leaf_registry (grant_ahead_ms) VALUES (6000)");
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

    /// The primary dies and is replaced by the standby, and later becomes the new standby.
    fn fail_over(&mut self, vacancy: Duration) {
        self.primary().kill_9();
        thread::sleep(vacancy);
        self.standby().promote();
        self.primary = 1 - self.primary;
        // Otherwise pg_rewind would not see the new timeline.
        self.primary().session().run("CHECKPOINT");
        self.standby().rewind_and_follow(self.primary());
        self.make_synchronous();
    }
}

/// An issuing server, and its proxies to the pair.
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
                ("leaf_id.timestamp_reservation", "300ms"),
                ("leaf_id.refill_timeout", "3s"),
                ("leaf_id.claim_timeout", "1s"),
            ],
        );
        server.source_from(&ways.each_ref().map(Proxy::dir));
        let mut session = server.session();
        session.run("ALTER SERVER leaf_central OPTIONS (SET connect_timeout '1')");
        let key = "c0ffee".repeat(11);
        session.run(&format!(
            "SELECT leaf_id_internal.leaf_make_key('{SECRET}', {SECRET_NUMBERS}, '{}')",
            &key[..64]
        ));
        for source in 0..TAGS.len() {
            create_tag(&mut session, source);
        }
        server.lease_as(&node_name(number));
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

struct Fleet<'a> {
    pair: Pair,
    members: &'a [Member],
}

impl Subject for Fleet<'_> {
    type Event = Event;
    const STUCK: Duration = Duration::from_secs(15);

    fn servers(&self) -> Vec<&Server> {
        let members = self.members.iter().map(|member| &member.server);
        self.pair.servers.iter().chain(members).collect()
    }

    fn perform(driver: &mut Driver<'_, Self>, event: Event) {
        driver.perform(event);
    }

    fn settle(&self, history: &History, sessions: &mut [Session]) -> Vec<Window> {
        history.settle_fleet(sessions, &mut self.pair.primary().session())
    }

    fn excuses(&self, cut: &Cut) -> bool {
        cut.caller == CLONES && REFUSED.contains(&&*cut.failure.state)
    }
}

impl Driver<'_, Fleet<'_>> {
    fn choose_member(&mut self) -> (usize, &Member) {
        let number = self.random.random_range(0..MEMBERS);
        (number, &self.subject.members[number])
    }

    fn choose_tag(&mut self) -> (usize, &'static str) {
        let source = self.random.random_range(0..TAGS.len());
        (source, TAGS[source].0)
    }

    fn perform(&mut self, event: Event) {
        let (number, _) = self.choose_member();
        let member = &self.subject.members[number];
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
            Event::CrashCentral => self.subject.pair.primary().crash(),
            Event::RestartCentral => self.subject.pair.primary().restart(),
            Event::FreezeCentral => {
                let longest = self.draw(100..4000);
                let frozen = self.subject.pair.primary().freeze();
                thread::sleep(longest);
                drop(frozen);
            }
            Event::FailOver => {
                let vacancy = self.draw(0..1500);
                self.subject.pair.fail_over(vacancy);
            }
            Event::StandbyAway => {
                self.subject.pair.standby().stop(Stop::Fast);
                self.pass(100..2000);
                self.subject.pair.standby().launch();
                self.subject.pair.wait_for_standby();
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
                for way in self.subject.members.iter().flat_map(|member| &member.ways) {
                    way.end_connections();
                }
            }
            Event::CutBeforeClaim => self.cut(Mode::CutBefore(CLAIM)),
            Event::CutAfterClaim => self.cut(Mode::CutAfter(CLAIM)),
            Event::LockRowAtCentral => {
                let (_, tag) = self.choose_tag();
                let mut session = self.subject.pair.primary().session();
                self.hold_lock(&mut session, &lock_of(tag), 50..1500);
            }
            Event::ChangeSteps => self.change_steps(number),
            Event::RaiseMaxIdAtCentral | Event::ResetAtCentral => self.edit_central(event),
            Event::ReplaceTagOfMember => self.replace_tag(number),
            Event::SetBackTagsAtCentral => self.set_back("leaf_alloc"),
            Event::SetBackMarksAtCentral => self.set_back("leaf_high_mark"),
            Event::SetBackWorkers => self.set_back("leaf_worker"),
            Event::SetClock => self.set_clock(number, &OFF_MS),
            Event::NudgeClock => self.set_clock(number, &NUDGES_MS),
            Event::CloneMember => self.clone_member(number),
            // It is another node for a while, then the same one again.
            Event::RenameNode => {
                let name = format!("{}_again", node_name(number));
                member.server.set("leaf_id.node_name", &name);
                self.pass(100..2000);
                let server = &self.subject.members[number].server;
                server.set("leaf_id.node_name", &node_name(number));
                // It has lost the token of this node. If that has three worker ids, it waits for the
                // first to pass, perhaps for longer than the next two events take.
                let mut session = server.session();
                wait_until(LIMIT, "a worker id of the node", || {
                    session.try_run("SELECT leaf_snowflake_next()").is_ok()
                });
            }
            Event::RetireWorkerId => self.retire_worker_ids(number),
        }
    }

    /// Sets a member's clock off by one of these for a while, and reports when ids are available
    /// again.
    fn set_clock(&mut self, number: usize, steps_ms: &[i64]) {
        let sign = if self.random.random() { 1 } else { -1 };
        let off_ms = sign * steps_ms.choose(&mut self.random).unwrap();
        let server = &self.subject.members[number].server;
        server.clock().set(off_ms);
        self.pass(100..4000);
        server.clock().set(0);
        let right = Instant::now();
        let mut session = server.session();
        wait_until(LIMIT, "an id", || session.try_snowflake().is_ok());
        println!(
            "  {off_ms} ms off: ids {:?} after it was right",
            right.elapsed()
        );
    }

    /// Kills it, and waits until its server is back.
    fn kill_allocator(&mut self, number: usize) {
        let server = &self.subject.members[number].server;
        if let Some(pid) = server.session().worker("allocator") {
            self.kill(number, server, pid);
        }
    }

    fn signal_claims(&mut self, function: &str) {
        for _ in 0..5 {
            self.subject.pair.primary().session().run(&format!(
                "SELECT {function}(pid) FROM pg_stat_activity WHERE usename = 'leaf_member'"
            ));
            self.pass(10..100);
        }
    }

    /// Each proxy of every member cuts off a claim.
    fn cut(&mut self, mode: Mode) {
        for member in self.subject.members {
            member.set(mode);
        }
        self.pass(100..1000);
        for member in self.subject.members {
            member.set(Mode::Pass);
        }
    }

    fn change_steps(&mut self, number: usize) {
        let factor = self.random.random_range(1..4);
        let mut there = self.subject.pair.primary().session();
        let mut here = self.subject.members[number].server.session();
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

    /// Ids continue above all claimed ones, so none may be issued twice, across all incarnations of
    /// the row.
    fn edit_central(&mut self, event: Event) {
        let (source, tag) = self.choose_tag();
        let gap: i64 = self.random.random_range(0..2000);
        let mut session = self.subject.pair.primary().session();
        session.run("BEGIN");
        let max_id: i64 = session.value(&lock_of(tag));
        let to = max_id + gap;
        session.run(&if event == Event::ResetAtCentral {
            format!("SELECT leaf_tag_reset('{tag}', {to})")
        } else {
            format!("UPDATE leaf_id.leaf_alloc SET max_id = {to} WHERE biz_tag = '{tag}'")
        });
        session.run("COMMIT");
        self.history.skip(source, max_id, to);
    }

    /// A tool sets a table of the central server back to an earlier copy, and that goes on, is
    /// restarted, or crashes. Members claim before and after it.
    fn set_back(&mut self, table: &str) {
        let mut session = self.subject.pair.primary().session();
        session.keep_copy(table);
        self.pass(20..500);
        session.set_back(table);
        match self.random.random_range(0..3) {
            0 => self.subject.pair.primary().restart(),
            1 => self.subject.pair.primary().crash(),
            _ => {}
        }
    }

    /// The member loses its cached ids, and its record of received ids. The next ids nevertheless
    /// come from the central server.
    fn replace_tag(&mut self, number: usize) {
        let (source, tag) = self.choose_tag();
        let mut session = self.subject.members[number].server.session();
        session.run("BEGIN");
        session.run(&format!(
            "DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = '{tag}'"
        ));
        create_tag(&mut session, source);
        session.run("COMMIT; SET leaf_id.refill_timeout = '60s'");
        // From now on, its row covers its issued ids.
        let sql = self.history.sources()[source].next();
        let call = || Ok(IdRange::of(&session.try_column(&sql)?));
        let caller = self.caller(number);
        let called = self.history.call(caller, source, "by the driver", 1, call);
        called.expect("an id of a tag created again");
    }

    /// A copy of a member runs for a while, and takes ids like the member.
    fn clone_member(&mut self, number: usize) {
        let clone = self.subject.members[number].server.backup().start(&[]);
        let mut session = clone.session();
        session.run("SET leaf_id.refill_timeout = '1s'");
        for _ in 0..self.random.random_range(1..10) {
            for (place, source) in self.history.sources().iter().enumerate() {
                let sql = format!("{} FROM generate_series(1, 20)", source.next());
                let call = || Ok(IdRange::of(&session.try_column::<i64>(&sql)?));
                // Refusals are recorded, too.
                let _ = self.history.call(CLONES, place, "by a clone", 20, call);
            }
        }
    }

    /// Revokes a member's worker ids.
    fn retire_worker_ids(&mut self, number: usize) {
        let mut session = self.subject.pair.primary().session();
        let name = node_name(number);
        session.run(&format!(
            "SELECT leaf_id.leaf_worker_retire(worker_id) FROM leaf_id.leaf_worker WHERE node_name = '{name}'"
        ));
    }
}

/// Creates a tag on a member.
fn create_tag(session: &mut Session, source: usize) {
    let (tag, step, max_step, _) = TAGS[source];
    if tag == SECRET {
        session.run(&format!(
            "SELECT leaf_tag_create('{tag}', step => {step}, max_step => {max_step},
                 max_value => {SECRET_NUMBERS}, server => '{CENTRAL}')"
        ));
    } else {
        session.create_sourced_tag(tag, step, max_step);
    }
}

fn torture(extent: Extent) {
    let pair = Pair::new();
    let mut central = pair.primary().session();
    for (tag, step, max_step, _) in TAGS {
        central.run(&format!(
            "SELECT leaf_tag_create('{tag}', step => {step}, max_step => {max_step})"
        ));
    }
    drop(central);
    let members: Vec<_> = (0..MEMBERS).map(|n| Member::new(n, &pair)).collect();
    let mut parts = TAGS
        .map(|(tag, _, _, most)| Part {
            source: match tag {
                SECRET => Source::Opaque(tag.into()),
                _ => Source::Tag(tag.into()),
            },
            most,
        })
        .to_vec();
    parts.push(Part {
        source: Source::Snowflake,
        most: 100,
    });
    let servers: Vec<_> = members.iter().map(|member| &member.server).collect();
    let work = Work {
        servers: &servers,
        copies: 1,
        parts,
        sessions: SESSIONS,
    };
    let subject = Fleet {
        pair,
        members: &members,
    };
    run(subject, work, extent);
}

#[test]
fn ten_events_in_a_fleet_repeat_nothing() {
    torture(Extent::Short);
}

/// Run by `make torture`.
#[test]
#[ignore = "takes LEAF_ID_TORTURE_SECONDS, or ten minutes"]
fn events_in_a_fleet_for_ten_minutes_repeat_nothing() {
    torture(Extent::long());
}
