//! Explores every history, up to a depth, of two servers that lease one worker id from a registry
//! with a standby, and random ones far beyond that depth. Time passes in ticks of one second.
//!
//! Would catch: two servers, or two runs of one, that issue the same worker id and millisecond; an
//! id of a call that began after the worker id may have been given to another server. Each rule is
//! left out once, and the shortest history that shows why it is needed is printed. The lease and
//! the registry's decision are the code that ships; the word, the files and the launcher are a few
//! lines here. See `lease_sim` for more servers and worker ids, and for what takes long.

#![cfg(not(leaf_id_loom))]
#![allow(clippy::expect_used, reason = "a test that panics fails")]

mod support;

#[path = "row_explorer/report.rs"]
mod report;
#[expect(dead_code, reason = "shared with row_explorer")]
#[path = "row_explorer/search.rs"]
mod search;

use leaf_id_core::layout::Layout;
use leaf_id_core::lease::{
    self, Clocks, Effect, FoundFile, Grant, Held, Kind, Lease, LeaseHolder, Question, Status,
};
use leaf_id_core::registry::{
    self, Bounds, Decision, Grace, Here, Hold, Holder, LeaseRequest, Next, Place, Registry, Reply,
    Requester,
};
use leaf_id_core::reservation::{self, Floor, Opening, Reason, Terms, late_renewal};

use search::{Histories, Rules};

const TICK_MS: i64 = 1_000;
const BEGIN_MS: i64 = 1_000 * TICK_MS;
const LEASE_MS: i64 = 3 * TICK_MS;
const SKEW_MS: i64 = TICK_MS;
/// Max lead.
const LEAD_MS: i64 = TICK_MS + 500;
const LEASE: lease::Rules = lease::Rules {
    lease_ms: LEASE_MS,
    max_skew_ms: SKEW_MS,
};
const BOUNDS: Bounds = Bounds {
    max_skew_ms: SKEW_MS,
    max_lease_ms: LEASE_MS,
    max_lead_ms: LEAD_MS,
    max_ids_per_role: None,
};
/// Max ids in a history of the search of all.
const FEW_IDS: usize = 4;
const IDS: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// A reservation is used once it is on disk.
    Durable,
    /// No call gets an id after the end of the lease.
    EndOfLease,
    /// During a grace, no renewal is granted whose lease has ended.
    EndedInGrace,
    /// A server enters only with more than is recorded.
    EnterEarliest,
    /// A new holder starts above all that was recorded for the previous one.
    Floor,
    /// That floor is repeated until the holder has used it.
    FloorOfLostAnswer,
    /// A worker id is granted only when its lease has ended by every clock of a registry.
    GivenAtTheEnd,
    /// A registry that has moved grants nothing for the longest lease.
    Grace,
    /// This time begins anew with each start of the registry's server.
    GraceStart,
    /// After a reboot, the grant in the file has ended.
    GrantOfReboot,
    /// The worker id of the registry's own server is given to nobody else.
    HostsOwn,
    /// That server starts above its predecessor.
    InheritFloor,
    /// What is held is shown only while the lease cannot have ended on arrival.
    HeldAfterTheEnd,
    /// What a move may have forgotten is below a floor.
    MovedFloor,
    /// After a reboot, the next token in the file is not used.
    NextTokenOfReboot,
    /// A copied file is not used.
    Original,
    /// A run starts above the reservation of the last one.
    OwnFloor,
    /// A holder remembers a floor that the registry has forgotten.
    RememberedFloor,
    /// Nothing is reserved beyond what the registry has recorded.
    Reserved,
    /// Only the token shows who the holder is.
    Token,
    /// After a reboot, the token in the file is used only if a clean stop has written it.
    TokenOfReboot,
    /// Assumption: a stopped machine that was copied does not go on without a reboot.
    CopiedRebooted,
    /// Assumption: the clocks of the registry's servers differ by the max skew at most.
    RegistryClocks,
    /// Assumption: the registry's standby has received a release before it is promoted.
    ReleaseKept,
    /// Assumption: no snapshot of the registry is started in its place.
    SnapshotSeen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Ticks.
    Pass(i8),
    Millisecond,
    /// A server asks, and is answered.
    Ask(usize),
    /// The answer is lost.
    AskLost(usize),
    /// The question is under way for long, ...
    Send(usize),
    /// ... until it arrives, and its answer, if the server still waits for it.
    Arrive(usize),
    /// There is no answer.
    Away(usize),
    /// One id.
    Issue(usize),
    Crash(usize),
    /// The machine crashes, ...
    Reboot(usize),
    /// ... or is stopped properly.
    CleanReboot(usize),
    /// The second server becomes a copy of the first one's machine while that runs, ...
    CopyImage,
    /// ... or is stopped, ...
    CopyStopped,
    /// ... or of its files, and has had a worker id of its own before it leases.
    CopyFiles,
    /// A server's clock is set, in ticks ahead of the time.
    SetClock(usize, i8),
    /// An operator releases the worker id.
    Release,
    /// The registry's standby receives everything.
    Follow,
    /// It is promoted; its clock.
    Promote(i8),
    /// The registry goes on on a machine that has been up for longer, ...
    MoveRegistry,
    /// ... or from an older snapshot, which nothing tells from itself.
    RestoreSnapshot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Row {
    /// The server's name.
    holder: Option<u8>,
    host: bool,
    token: i64,
    lease_until_ms: Option<i64>,
    reserved_until_ms: i64,
    floor_ms: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Tables {
    timeline: i32,
    moved_floor_ms: Option<i64>,
    /// Its beginning, by the monotonic clock, and the start of that server.
    grace: Option<(i64, i64)>,
    row: Option<Row>,
}

/// A question under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sent {
    question: Question,
    clocks: (i64, i64),
    reserve_until_ms: i64,
    /// The server has not asked again.
    is_awaited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    name: u8,
    ahead_ms: i64,
    boot: u8,
    /// The lease file: contents, the boot that wrote it, and whether it is a copy.
    lease: Lease,
    lease_boot: u8,
    lease_is_copy: bool,
    lease_is_clean: bool,
    /// The reservation file.
    until_ms: i64,
    holder: LeaseHolder,
    /// The grant in use.
    grant: Option<Grant>,
    /// Floor of this run.
    floor_ms: i64,
    is_open: bool,
    /// The word.
    last_ms: i64,
    is_full: bool,
    reserved_ms: i64,
    sent: Option<Sent>,
    /// End of the lease by the registry.
    lease_end_ms: i64,
    run: u8,
    /// Tokens drawn.
    drawn: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct World<const IS_PAIR: bool> {
    now_ms: i64,
    registry: Tables,
    standby: Tables,
    timeline: i32,
    /// The registry's clocks.
    ahead_ms: i64,
    boot_ahead_ms: i64,
    starts: i64,
    nodes: [Node; 2],
    /// Milliseconds of ids, with the server and its run.
    issued: [Option<(u32, u8, u8)>; IDS],
    is_twice: bool,
    is_late: bool,
}

impl Row {
    fn shipped(self) -> registry::Row {
        registry::Row {
            holder: self.holder.map(|name| Holder {
                system_identifier: 1,
                node_name: vec![name],
            }),
            role: self.holder.map(|_| b"member".to_vec()),
            host: self.host,
            token: self.token,
            lease_until_ms: self.lease_until_ms,
            lease_ms: LEASE_MS,
            reserved_until_ms: self.reserved_until_ms,
            floor_ms: self.floor_ms,
            ..registry::Row::default()
        }
    }

    fn of(row: &registry::Row) -> Self {
        Self {
            holder: row.holder.as_ref().map(|holder| holder.node_name[0]),
            host: row.host,
            token: row.token,
            lease_until_ms: row.lease_until_ms,
            reserved_until_ms: row.reserved_until_ms,
            floor_ms: row.floor_ms,
        }
    }
}

impl Node {
    fn new(name: u8) -> Self {
        Self {
            name,
            ahead_ms: 0,
            boot: 10 * name,
            lease: Lease::default(),
            lease_boot: 10 * name,
            lease_is_copy: false,
            lease_is_clean: false,
            until_ms: 0,
            holder: LeaseHolder::new(Lease::default()),
            grant: None,
            floor_ms: 0,
            is_open: false,
            last_ms: 0,
            is_full: true,
            reserved_ms: 0,
            sent: None,
            lease_end_ms: 0,
            run: 0,
            drawn: 0,
        }
    }

    fn draw(&mut self) -> i64 {
        self.drawn += 1;
        i64::from(self.name) * 1_000 + self.drawn
    }

    fn close(&mut self) {
        self.is_open = false;
        self.reserved_ms = self.last_ms;
    }

    fn follow(&mut self, effect: Effect) {
        self.lease = *self.holder.lease();
        match effect {
            Effect::Keep => {}
            Effect::Close(_) => {
                self.close();
                self.grant = None;
            }
            Effect::Use { grant, anew } => {
                if anew {
                    self.close();
                }
                self.grant = Some(grant);
            }
        }
        // Something makes the next question due at once.
        self.holder.hurry();
    }

    /// A question, as sent now.
    fn ask(&mut self, clocks: Clocks, rules: Rules<Rule>) -> Sent {
        if self.holder.step(clocks.boot_ms) == lease::Step::Close {
            self.close();
            self.grant = None;
        }
        let token = self.draw();
        let has_drawn = self.holder.prepare(|| token);
        self.drawn -= i64::from(!has_drawn);
        self.lease = *self.holder.lease();
        if let Some(sent) = &mut self.sent {
            sent.is_awaited = false;
        }
        let mut question = self.holder.ask(clocks.boot_ms, LEASE).at(clocks.boot_ms);
        if !rules.hold(Rule::HeldAfterTheEnd) {
            question.held = self.lease.grant.map(|grant| Held {
                worker_id: grant.worker_id,
                reserved_until_ms: grant.reserved_until_ms,
            });
        }
        let above_ms = clocks.wall_ms.max(self.last_ms).max(self.floor_ms);
        Sent {
            question,
            clocks: (clocks.boot_ms, clocks.wall_ms),
            reserve_until_ms: above_ms + question.lease_ms,
            is_awaited: true,
        }
    }

    fn hear(&mut self, sent: &Sent, reply: &Reply, received: Clocks, rules: Rules<Rule>) {
        let (boot_ms, wall_ms) = sent.clocks;
        let answer = reply.heard(Clocks { boot_ms, wall_ms }, received);
        let answer = answer.expect("an answer");
        let token = self.draw();
        let effect = self.holder.hear(&sent.question, &answer, LEASE, || token);
        self.drawn -= i64::from(answer.status != Status::Granted);
        let effect = match effect {
            Effect::Use { mut grant, anew } => {
                if !rules.hold(Rule::RememberedFloor) {
                    grant.floor_ms = answer.floor_ms;
                }
                Effect::Use { grant, anew }
            }
            effect => effect,
        };
        self.follow(effect);
    }

    /// The next run, on the files as they are.
    fn start(&mut self, rules: Rules<Rule>) {
        let same_boot = self.lease_boot == self.boot;
        let found = FoundFile {
            original: !(self.lease_is_copy && rules.hold(Rule::Original)),
            same_boot: same_boot || !rules.hold(Rule::GrantOfReboot),
            clean: self.lease_is_clean || !rules.hold(Rule::TokenOfReboot),
        };
        let mut lease = self.lease.of_file(found);
        if lease.token != 0 && !rules.hold(Rule::NextTokenOfReboot) {
            lease.next_token = self.lease.next_token;
        }
        self.lease = lease;
        self.lease_boot = self.boot;
        self.lease_is_copy = false;
        self.lease_is_clean = false;
        self.holder = LeaseHolder::new(lease);
        self.grant = None;
        self.floor_ms = rules.keep(Rule::OwnFloor, self.until_ms);
        self.is_open = false;
        self.last_ms = 0;
        self.is_full = true;
        self.reserved_ms = 0;
        self.sent = None;
        self.run += 1;
    }

    fn reboot(&mut self, rules: Rules<Rule>) {
        self.boot += 1;
        self.start(rules);
    }

    /// A clean stop.
    fn stop(&mut self) {
        if self.is_open {
            self.until_ms = self.last_ms;
            self.lease_is_clean = true;
        }
    }

    /// Opens the generator, if it is time to.
    fn open(&mut self, grant: Grant, wall_ms: i64, rules: Rules<Rule>) -> Option<()> {
        let opening = Opening {
            now_ms: wall_ms,
            last_ms: self.last_ms,
            floor: Some(Floor {
                ms: self.floor_ms,
                reason: Reason::Crash,
            }),
            granted_floor_ms: Some(grant.floor_ms),
            others_floor_ms: None,
            retired_until_ms: None,
            terms: terms(grant),
        };
        let reservation::Decision::Open { floor, until_ms } = opening.decide() else {
            return None;
        };
        let recorded_ms = recorded_ms(grant, rules);
        if floor.ms >= recorded_ms {
            return None;
        }
        self.reserve(until_ms.min(recorded_ms), rules);
        self.is_open = true;
        self.last_ms = floor.ms;
        self.is_full = true;
        Some(())
    }

    fn reserve(&mut self, until_ms: i64, rules: Rules<Rule>) {
        if rules.hold(Rule::Durable) {
            self.until_ms = until_ms;
        }
        self.reserved_ms = until_ms;
    }

    /// The time of the next id.
    fn issue(&mut self, now_ms: i64, rules: Rules<Rule>) -> Option<i64> {
        let grant = self.grant?;
        let wall_ms = now_ms + self.ahead_ms;
        let has_ended = now_ms >= grant.until_boot_ms && rules.hold(Rule::EndOfLease);
        if has_ended {
            return None;
        }
        if !self.is_open {
            self.open(grant, wall_ms, rules)?;
        }
        let next_ms = self.last_ms + i64::from(self.is_full);
        let ms = wall_ms.max(next_ms);
        if ms - wall_ms > terms(grant).max_lead_ms() {
            return None;
        }
        if ms > self.reserved_ms {
            let recorded_ms = recorded_ms(grant, rules);
            let terms = terms(grant);
            let until_ms =
                late_renewal(wall_ms, self.last_ms, terms, self.reserved_ms, recorded_ms)?;
            self.reserve(until_ms, rules);
        }
        if ms > self.reserved_ms {
            return None;
        }
        self.last_ms = ms;
        self.is_full = false;
        Some(ms)
    }
}

fn terms(grant: Grant) -> Terms {
    Terms {
        reservation_ms: TICK_MS,
        configured_lead_ms: LEAD_MS,
        granted_lead_ms: grant.max_lead_ms,
    }
}

fn recorded_ms(grant: Grant, rules: Rules<Rule>) -> i64 {
    if rules.hold(Rule::Reserved) {
        grant.reserved_until_ms
    } else {
        i64::MAX
    }
}

impl<const IS_PAIR: bool> World<IS_PAIR> {
    /// True for the registry's own server.
    fn is_host(number: usize) -> bool {
        IS_PAIR && number == 0
    }

    fn clocks(&self, node: &Node) -> Clocks {
        Clocks {
            boot_ms: self.now_ms,
            wall_ms: self.now_ms + node.ahead_ms,
        }
    }

    /// The registry's answer to a question of a server.
    fn decide(&mut self, number: usize, sent: &Sent, rules: Rules<Rule>) -> Reply {
        let name = self.nodes[number].name;
        let mut question = sent.question;
        let tables = self.registry;
        if let Some(row) = tables.row
            && row.holder == Some(name)
            && !rules.hold(Rule::Token)
            && row.token != question.next_token
        {
            question.token = row.token;
        }
        let now = Clocks {
            boot_ms: self.now_ms + self.boot_ahead_ms,
            wall_ms: self.now_ms + self.ahead_ms,
        };
        let here = Here {
            place: place(self.timeline),
            server_start: self.starts,
            epoch_ms: 0,
            layout: Layout::new(41, 0, 12).expect("a layout"),
            worker_id: None,
            arrived_ms: now.wall_ms,
            now,
            format_ms: |ms| ms.to_string(),
        };
        let request = LeaseRequest {
            question,
            system_identifier: 1,
            node_name: vec![name],
            now_ms: sent.clocks.1,
            reserve_until_ms: sent.reserve_until_ms,
            max_skew_ms: SKEW_MS,
            max_lead_ms: LEAD_MS + SKEW_MS,
            epoch_ms: here.epoch_ms,
            layout: here.layout,
        };
        let requester = Requester {
            role: b"member",
            trusted: false,
            address: None,
            host: Self::is_host(number),
        };
        let seen = (tables.row).map(|row| self.seen(row, number, &question, rules));
        let rows: Vec<_> = (seen.iter())
            .map(|row| (row.shipped(), Hold::Locked))
            .collect();
        let start = |(since_boot_ms, server_start)| Grace {
            since_boot_ms,
            server_start: if rules.hold(Rule::GraceStart) {
                server_start
            } else {
                here.server_start
            },
        };
        let mut registry = Registry {
            place: Some(place(tables.timeline)),
            epoch_ms: None,
            layout: None,
            moved_at_ms: None,
            moved_floor_ms: tables.moved_floor_ms,
            grace: tables.grace.map(start).filter(|_| rules.hold(Rule::Grace)),
            bounds: BOUNDS,
        };
        let decide = |registry: &Registry, request: &LeaseRequest| {
            let tables = registry::Tables {
                registry,
                registry_locked: true,
                rows: &rows,
            };
            match registry::decide(tables, request, &requester, &here) {
                Next::Done(decision) => *decision,
                _ => unreachable!("everything is locked"),
            }
        };
        if !rules.hold(Rule::MovedFloor) {
            // Somebody else's claim is the first after a grace.
            let first = LeaseRequest {
                node_name: vec![0],
                question: Question {
                    kind: Kind::Claim,
                    token: 0,
                    held: None,
                    ..question
                },
                now_ms: now.wall_ms,
                ..request.clone()
            };
            registry = decide(&registry, &first).registry.unwrap_or(registry);
            registry.moved_floor_ms = None;
        }
        let decision = decide(&registry, &request);
        let registry = decision.registry.unwrap_or(registry);
        let decision = Decision {
            registry: Some(registry),
            ..decision
        };
        self.commit(number, decision, rules)
    }

    /// The row as the decision sees it.
    fn seen(&self, row: Row, number: usize, question: &Question, rules: Rules<Rule>) -> Row {
        let name = self.nodes[number].name;
        let mut seen = row;
        seen.host &= Self::is_host(number) || rules.hold(Rule::HostsOwn);
        if row.holder != Some(name) && !rules.hold(Rule::GivenAtTheEnd) {
            seen.lease_until_ms = row.lease_until_ms.map(|until_ms| until_ms - SKEW_MS);
        }
        let has_moved = self.registry.grace.is_some() || self.registry.timeline != self.timeline;
        if row.holder == Some(name)
            && question.kind == Kind::Renew
            && has_moved
            && !rules.hold(Rule::EndedInGrace)
        {
            seen.lease_until_ms = Some(i64::MAX);
        }
        if let Some(held) = question.held
            && !rules.hold(Rule::EnterEarliest)
        {
            seen.reserved_until_ms = row.reserved_until_ms.min(held.reserved_until_ms - 1);
        }
        seen
    }

    fn commit(&mut self, number: usize, decision: Decision, rules: Rules<Rule>) -> Reply {
        let Decision {
            mut reply,
            registry,
            rows,
            ..
        } = decision;
        let tables = &mut self.registry;
        if let Some(registry) = registry {
            tables.timeline = registry.place.map_or(0, |place| place.timeline);
            tables.grace = (registry.grace).map(|grace| (grace.since_boot_ms, grace.server_start));
            tables.moved_floor_ms = registry.moved_floor_ms;
        }
        for row in &rows {
            let mut row = Row::of(row);
            let before = tables.row;
            let recorded_ms = before.map_or(0, |before| before.reserved_until_ms);
            if rules.hold(Rule::EnterEarliest) {
                assert!(row.reserved_until_ms >= recorded_ms, "it never goes down");
            } else {
                row.reserved_until_ms = row.reserved_until_ms.max(recorded_ms);
            }
            let same = before.is_some_and(|before| before.holder == row.holder);
            let forgets = if Self::is_host(number) {
                !rules.hold(Rule::InheritFloor)
            } else {
                !same && !rules.hold(Rule::Floor)
            };
            if let Ok(granted) = &mut reply.outcome
                && forgets
            {
                row.floor_ms = 0;
                granted.floor_ms = 0;
            }
            row.floor_ms = rules.keep(Rule::FloorOfLostAnswer, row.floor_ms);
            tables.row = Some(row);
        }
        if let Ok(granted) = &reply.outcome {
            self.nodes[number].lease_end_ms = self.now_ms + granted.lease_ms;
        }
        reply
    }

    fn issue(&mut self, number: usize, rules: Rules<Rule>) -> Option<()> {
        let node = &mut self.nodes[number];
        let ms = node.issue(self.now_ms, rules)?;
        let run = node.run;
        self.is_late |= self.now_ms > node.lease_end_ms + SKEW_MS;
        let id = (
            u32::try_from(ms - BEGIN_MS + 10 * TICK_MS).ok()?,
            u8::try_from(number).ok()?,
            run,
        );
        let mut others = self.issued.iter().flatten();
        if let Some(other) = others.find(|other| other.0 == id.0) {
            self.is_twice |= *other != id;
            return Some(());
        }
        *self.issued.iter_mut().find(|issued| issued.is_none())? = Some(id);
        Some(())
    }

    /// The standby's server is the registry's now, with a file that is not its own, or none.
    fn promote_server(&mut self) {
        let last = self.nodes[0];
        self.nodes[0] = Node {
            ahead_ms: self.ahead_ms,
            run: last.run + 1,
            drawn: last.drawn,
            ..Node::new(4 - last.name)
        };
    }

    fn copy(&mut self) -> &mut Node {
        let [node, copy] = &mut self.nodes;
        *copy = Node {
            ahead_ms: copy.ahead_ms,
            lease_end_ms: copy.lease_end_ms,
            run: copy.run,
            // Other ones than its original.
            drawn: node.drawn.max(copy.drawn) + 500,
            ..*node
        };
        copy
    }
}

fn place(timeline: i32) -> Place {
    Place {
        system_identifier: 1,
        timeline,
        database: 1,
        relation: 1,
    }
}

fn ticks(number: i8) -> i64 {
    i64::from(number) * TICK_MS
}

impl<const IS_PAIR: bool> search::World for World<IS_PAIR> {
    const NAME: &'static str = if IS_PAIR {
        "leases of a pair"
    } else {
        "leases"
    };
    type Rule = Rule;
    type Step = Step;

    fn new() -> Self {
        let tables = Tables {
            timeline: 1,
            moved_floor_ms: None,
            grace: None,
            row: None,
        };
        Self {
            now_ms: BEGIN_MS,
            registry: tables,
            standby: tables,
            timeline: 1,
            ahead_ms: 0,
            boot_ahead_ms: 0,
            starts: 1,
            nodes: [Node::new(1), Node::new(2)],
            issued: [None; IDS],
            is_twice: false,
            is_late: false,
        }
    }

    fn after(mut self, step: Step, rules: Rules<Rule>) -> Option<Self> {
        match step {
            Step::Pass(number) => self.now_ms += ticks(number),
            Step::Millisecond => self.now_ms += 1,
            Step::Ask(number) | Step::AskLost(number) => {
                let clocks = self.clocks(&self.nodes[number]);
                let sent = self.nodes[number].ask(clocks, rules);
                let reply = self.decide(number, &sent, rules);
                let node = &mut self.nodes[number];
                if step == Step::Ask(number) {
                    node.hear(&sent, &reply, clocks, rules);
                } else {
                    let effect = node.holder.fail(clocks.boot_ms, LEASE);
                    node.follow(effect);
                }
            }
            Step::Send(number) => {
                let clocks = self.clocks(&self.nodes[number]);
                let node = &mut self.nodes[number];
                node.sent = Some(node.ask(clocks, rules));
            }
            Step::Arrive(number) => {
                let sent = self.nodes[number].sent.take()?;
                let reply = self.decide(number, &sent, rules);
                let clocks = self.clocks(&self.nodes[number]);
                if sent.is_awaited {
                    self.nodes[number].hear(&sent, &reply, clocks, rules);
                }
            }
            Step::Away(number) => {
                let clocks = self.clocks(&self.nodes[number]);
                let node = &mut self.nodes[number];
                node.ask(clocks, rules);
                let effect = node.holder.fail(clocks.boot_ms, LEASE);
                node.follow(effect);
            }
            Step::Issue(number) => self.issue(number, rules)?,
            Step::Crash(number) => self.nodes[number].start(rules),
            Step::Reboot(number) => self.nodes[number].reboot(rules),
            Step::CleanReboot(number) => {
                self.nodes[number].stop();
                self.nodes[number].reboot(rules);
            }
            Step::CopyImage => self.copy().reboot(rules),
            Step::CopyStopped => {
                self.nodes[0].stop();
                self.copy().reboot(rules);
                if rules.hold(Rule::CopiedRebooted) {
                    self.nodes[0].reboot(rules);
                } else {
                    self.nodes[0].start(rules);
                }
            }
            Step::CopyFiles => {
                let copy = self.copy();
                copy.lease_is_copy = true;
                copy.start(rules);
            }
            Step::SetClock(number, ahead) => self.nodes[number].ahead_ms = ticks(ahead),
            Step::Release => {
                let row = self.registry.row?;
                self.registry.row = Some(Row::of(&row.shipped().released()));
                if rules.hold(Rule::ReleaseKept) {
                    self.standby = self.registry;
                }
            }
            Step::Follow => self.standby = self.registry,
            Step::Promote(ahead) => {
                if ticks(ahead).abs() > SKEW_MS && rules.hold(Rule::RegistryClocks) {
                    return None;
                }
                self.registry = self.standby;
                self.timeline += 1;
                self.starts += 1;
                self.ahead_ms = ticks(ahead);
                if IS_PAIR {
                    self.promote_server();
                }
            }
            Step::MoveRegistry => {
                self.boot_ahead_ms += 10 * TICK_MS;
                self.starts += 1;
            }
            Step::RestoreSnapshot => {
                if rules.hold(Rule::SnapshotSeen) {
                    return None;
                }
                self.registry = self.standby;
            }
        }
        Some(self)
    }

    fn is_broken(&self) -> bool {
        self.is_twice || self.is_late
    }

    fn is_small(&self) -> bool {
        self.issued[FEW_IDS].is_none() && self.now_ms < BEGIN_MS + 12 * TICK_MS
    }
}

const ALL: [Step; 35] = [
    Step::Pass(1),
    Step::Pass(4),
    Step::Millisecond,
    Step::Ask(0),
    Step::Ask(1),
    Step::AskLost(0),
    Step::AskLost(1),
    Step::Send(0),
    Step::Send(1),
    Step::Arrive(0),
    Step::Arrive(1),
    Step::Away(0),
    Step::Away(1),
    Step::Issue(0),
    Step::Issue(1),
    Step::Crash(0),
    Step::Crash(1),
    Step::Reboot(0),
    Step::Reboot(1),
    Step::CleanReboot(0),
    Step::CleanReboot(1),
    Step::CopyImage,
    Step::CopyStopped,
    Step::CopyFiles,
    Step::SetClock(0, -1),
    Step::SetClock(1, -1),
    Step::SetClock(0, 1),
    Step::SetClock(1, 1),
    Step::SetClock(0, 4),
    Step::SetClock(1, 4),
    Step::Release,
    Step::Follow,
    Step::Promote(0),
    Step::Promote(-1),
    Step::MoveRegistry,
];

/// The first server is the registry's own, whichever that is.
const OF_PAIR: [Step; 15] = [
    Step::Pass(1),
    Step::Pass(4),
    Step::Millisecond,
    Step::Ask(0),
    Step::Ask(1),
    Step::AskLost(0),
    Step::AskLost(1),
    Step::Issue(0),
    Step::Issue(1),
    Step::Crash(0),
    Step::SetClock(1, 1),
    Step::SetClock(1, 4),
    Step::Follow,
    Step::Promote(0),
    Step::Promote(-1),
];

#[test]
fn no_id_comes_twice() {
    let histories = |steps, depth| Histories {
        begin: &[],
        steps,
        depth,
    };
    search::assert_holds::<World<false>>(histories(&ALL, 5), 6);
    search::assert_holds::<World<true>>(histories(&OF_PAIR, 6), 8);
}

/// With all rules, none of these histories breaks a promise; without this one, one does.
fn needed<const IS_PAIR: bool>(kind: &str, rule: Rule, begin: &[Step], steps: &[Step], depth: u64) {
    let histories = Histories {
        begin,
        steps,
        depth,
    };
    search::assert_needed::<World<IS_PAIR>>(kind, rule, histories);
    search::assert_none::<World<IS_PAIR>>(histories);
}

/// In walks over all steps; the other rules need more luck than that.
#[test]
fn random_histories_find_rules_left_out() {
    let histories = |steps| Histories {
        begin: &[],
        steps,
        depth: 5,
    };
    for rule in [
        Rule::Durable,
        Rule::EndOfLease,
        Rule::Floor,
        Rule::Grace,
        Rule::GrantOfReboot,
        Rule::Original,
        Rule::OwnFloor,
        Rule::Token,
    ] {
        search::assert_a_walk_finds::<World<false>>(rule, histories(&ALL));
    }
    search::assert_a_walk_finds::<World<true>>(Rule::InheritFloor, histories(&OF_PAIR));
}

/// Both servers ask and issue, among other steps.
fn with(more: &[Step]) -> Vec<Step> {
    let both = [Step::Ask(0), Step::Ask(1), Step::Issue(0), Step::Issue(1)];
    [&both, more].concat()
}

#[test]
fn each_rule_is_needed() {
    use Step::{
        Arrive, Ask, AskLost, CopyFiles, CopyImage, CopyStopped, Crash, Follow, Issue, Millisecond,
        MoveRegistry, Pass, Promote, Release, Send, SetClock,
    };
    let needed = |rule, begin: &[Step], steps: &[Step], depth| {
        needed::<false>("rule", rule, begin, steps, depth);
    };
    // The first server's ids are as late as they may be.
    let late = [SetClock(0, 1), Ask(0), SetClock(0, 4), Issue(0)];

    let alone = [Ask(0), Issue(0), Crash(0)];
    needed(Rule::Durable, &[], &alone, 5);
    needed(Rule::OwnFloor, &[], &alone, 5);
    let clock = [Pass(1), Pass(4), SetClock(0, 1), SetClock(0, -1)];
    needed(Rule::EndOfLease, &[], &with(&clock), 6);

    let passed = with(&[Pass(4), Pass(2), AskLost(1), SetClock(0, 6)]);
    needed(Rule::Floor, &late, &passed, 3);
    needed(Rule::FloorOfLostAnswer, &late, &passed, 4);
    needed(Rule::Reserved, &[], &passed, 7);

    let image = with(&[CopyImage]);
    needed(Rule::Token, &[], &image, 5);
    needed(Rule::TokenOfReboot, &[], &image, 5);
    needed(Rule::GrantOfReboot, &[], &image, 5);
    needed(Rule::NextTokenOfReboot, &[], &with(&[CopyStopped]), 7);
    needed(Rule::Original, &[], &with(&[CopyFiles]), 5);

    needed(Rule::Grace, &[], &with(&[Promote(0)]), 6);
    let moved = with(&[Promote(0), MoveRegistry, Pass(2), Pass(4)]);
    needed(Rule::GraceStart, &late, &moved, 8);
    needed(Rule::MovedFloor, &late, &moved, 5);
    needed(Rule::HeldAfterTheEnd, &[], &moved, 8);
    let behind = with(&[Pass(1), Pass(4), Promote(0), SetClock(1, -1)]);
    needed(Rule::RememberedFloor, &late, &behind, 6);

    let followed = [Ask(0), Pass(3), Follow];
    needed(
        Rule::GivenAtTheEnd,
        &followed,
        &with(&[Pass(2), Promote(-1)]),
        6,
    );
    let sent = [SetClock(0, 1), Ask(0), Follow, Pass(2), Send(0), Pass(2)];
    let arrives = with(&[Arrive(0), Promote(-1), Millisecond]);
    needed(Rule::EndedInGrace, &sent, &arrives, 6);
    let released = [Ask(0), Release, Ask(1)];
    let again = with(&[Millisecond, Pass(2), Promote(0), Release]);
    needed(Rule::EnterEarliest, &released, &again, 8);
}

#[test]
fn each_rule_of_a_pair_is_needed() {
    use Step::{Ask, Follow, Pass, Promote, SetClock};
    let steps = with(&[Pass(2), Promote(0)]);
    let followed = [Ask(0), Follow];
    needed::<true>("rule", Rule::InheritFloor, &followed, &steps, 4);
    let given = [Ask(0), Follow, Pass(4), Ask(1), SetClock(1, 4)];
    needed::<true>("rule", Rule::HostsOwn, &given, &steps, 7);
}

#[test]
fn each_assumption_is_needed() {
    use Step::{
        Ask, Away, CopyStopped, Follow, Millisecond, Pass, Promote, Release, RestoreSnapshot,
        SetClock,
    };
    let needed = |assumption, begin: &[Step], steps: &[Step], depth| {
        needed::<false>("assumption", assumption, begin, steps, depth);
    };
    let stopped = with(&[CopyStopped, Away(0)]);
    needed(Rule::CopiedRebooted, &[], &stopped, 7);
    needed(Rule::SnapshotSeen, &[], &with(&[RestoreSnapshot]), 5);
    let released = [Ask(0), Follow, Release, Ask(1)];
    let promoted = with(&[Millisecond, Pass(2), Promote(0), SetClock(0, 1)]);
    needed(Rule::ReleaseKept, &released, &promoted, 7);
    let given = [Ask(0), Follow, Pass(4), Ask(1)];
    let behind = with(&[Pass(2), Promote(-2), SetClock(0, -2)]);
    needed(Rule::RegistryClocks, &given, &behind, 8);
}
