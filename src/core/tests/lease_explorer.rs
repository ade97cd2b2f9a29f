//! Explores every history, up to a depth, of servers that lease worker ids from a registry with
//! standbys, and random ones far beyond that depth; and histories of a few steps that belong
//! together, which random ones of all steps miss, deeper. Time passes in ticks of one second.
//!
//! Would catch: two servers, or two runs of one, that issue the same worker id and millisecond; a
//! server that cannot issue again once all is well; one that cannot issue after an answer, though it
//! could before. Each rule is left out once, and the shortest history that shows why it is needed is
//! printed. The lease and the registry's decision are the code that ships; the word, the files and
//! the launcher are a few lines here. See `lease_sim` for more servers and worker ids, and for what
//! takes long.

#![cfg(not(leaf_id_loom))]
#![allow(clippy::expect_used, reason = "a test that panics fails")]

mod support;

#[path = "row_explorer/report.rs"]
mod report;
#[expect(dead_code, reason = "shared with row_explorer")]
#[path = "row_explorer/search.rs"]
mod search;

use leaf_id_core::layout::Layout;
use leaf_id_core::lease::{Clocks, Effect, Grant, Heard, Lease, LeaseHolder, Question};
use leaf_id_core::registry::{
    self, Bounds, Decision, Here, Hold, Holder, LeaseRequest, Next, Place, Registry, Reply,
    Requester,
};
use leaf_id_core::reservation::{self, Floor, Opening, Reason, Terms, late_renewal};

use search::{Histories, Rules};

const TICK_MS: i64 = 1_000;
const BEGIN_MS: i64 = 1_000 * TICK_MS;
/// How far ahead the registry grants.
const AHEAD_MS: i64 = 3 * TICK_MS;
const SKEW_MS: i64 = TICK_MS;
/// Max lead.
const LEAD_MS: i64 = TICK_MS + 500;
const TERMS: Terms = Terms {
    reservation_ms: TICK_MS,
    max_lead_ms: LEAD_MS,
};
/// Max ids in a history of the search of all.
const FEW_IDS: usize = 4;
const IDS: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// A lease file of another boot is not used: a copied disk is booted elsewhere, ...
    Boot,
    /// ... nor the tokens in it.
    BootToken,
    /// A reservation is used once it is on disk.
    Durable,
    /// The first use after a move is never in the future.
    FirstUseClock,
    /// A new holder starts above R of the previous one.
    Floor,
    /// That floor is repeated until the holder has used it.
    FloorOfLostAnswer,
    /// A worker id is granted to another server only when R has passed by every clock of a registry.
    GivenWhenPassed,
    /// After a move, what is held enters with its floor.
    HeldFloor,
    /// After a move, only what is held counts, and no token.
    HeldOnly,
    /// After a move, a held segment that has passed needs the token, too.
    HeldToken,
    /// On the registry's own server, the segment in the file is not used.
    HostsFile,
    /// The worker id of the registry's own server is granted to no other.
    HostsOwn,
    /// That server starts above its predecessor.
    InheritFloor,
    /// New holders start above what a move may have forgotten, ...
    MovedFloor,
    /// ... and wait until that has passed by every clock of a registry.
    MovedWait,
    /// A copied file is not used.
    Original,
    /// A run starts above the reservation of the last one.
    OwnFloor,
    /// A holder whose R has passed starts above what a move may have forgotten, too.
    PassedAfterMove,
    /// Nothing is reserved beyond R.
    Reserved,
    /// Only the token shows who the holder is.
    Token,
    /// The token is drawn anew at each renewal.
    TokenOfRenewal,
    /// Assumption: no raise of how far ahead is granted is lost together with a grant made after it.
    RaiseKept,
    /// Assumption: the clocks of the registry's servers differ by the max skew at most, at the first
    /// use after a move and at the grants that it lost.
    RegistryClocks,
    /// Assumption: no snapshot of the registry is started in its place.
    SnapshotSeen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Ticks.
    Pass(i8),
    /// A server asks, and is answered.
    Ask(usize),
    /// The answer is lost, ...
    AskLost(usize),
    /// ... or its write to the file seems to fail, but has reached it.
    AskUnwritten(usize),
    /// The question is under way for long, ...
    Send(usize),
    /// ... until it arrives, and its answer, if the server still waits for it.
    Arrive(usize),
    /// There is no answer.
    Away(usize),
    /// One id.
    Issue(usize),
    Crash(usize),
    /// PostgreSQL is restarted, ...
    Restart(usize),
    /// ... or the machine crashes.
    Reboot(usize),
    /// The second server becomes a copy of the first one's machine while that runs, ...
    CopyImage,
    /// ... or while its PostgreSQL is stopped, which then starts again, ...
    CopyStopped,
    /// ... or of its files, and has had a worker id of its own before it leases, ...
    CopyFiles,
    /// ... or of its memory as well, and both go on once what they hold has passed: until then, nothing
    /// tells them apart.
    CopyMemory,
    /// A server's clock is set, in ticks ahead of the time, ...
    SetClock(usize, i8),
    /// ... or the registry's.
    SetRegistry(i8),
    /// An operator retires a worker id, or puts it back into service.
    Retire(usize),
    /// The owner grants further ahead, ...
    Raise,
    /// ... or less far.
    Lower,
    /// The registry's standby receives everything, ...
    Follow,
    /// ... or its second one, which lags.
    Follow2,
    /// The standby is promoted; its clock.
    Promote(i8),
    Promote2(i8),
    /// The server that was the registry's before is again, with its own files.
    FailBack(i8),
    /// The registry goes on from an older snapshot, which nothing tells from itself.
    RestoreSnapshot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Row {
    /// The server's name.
    holder: Option<u8>,
    host: bool,
    retired: bool,
    token: i64,
    reserved_until_ms: i64,
    floor_ms: i64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Tables<const WORKER_IDS: usize> {
    timeline: i32,
    moved_at_ms: Option<i64>,
    moved_floor_ms: Option<i64>,
    ahead_ms: i64,
    rows: [Option<Row>; WORKER_IDS],
    /// Granted with a clock that is off, since either standby has received everything.
    is_off: [bool; 2],
}

/// A question under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Sent {
    question: Question,
    clocks: Clocks,
    /// The server has not asked again.
    is_awaited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Node {
    name: u8,
    is_host: bool,
    ahead_ms: i64,
    boot: u8,
    /// The lease file: contents, the boot that wrote it, and whether it is a copy.
    lease: Lease,
    lease_boot: u8,
    lease_is_copy: bool,
    /// The only token, if none is drawn for each renewal.
    token: i64,
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
    run: u8,
    /// Tokens drawn.
    drawn: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct World<const SERVERS: usize, const WORKER_IDS: usize, const IS_PAIR: bool> {
    now_ms: i64,
    registry: Tables<WORKER_IDS>,
    standbys: [Tables<WORKER_IDS>; 2],
    timeline: i32,
    /// The registry's clock.
    ahead_ms: i64,
    nodes: [Node; SERVERS],
    /// The registry's server before the last promotion.
    former: Option<Node>,
    /// Worker ids and milliseconds of ids, with the server and its run.
    issued: [Option<(u16, u32, u8, u8)>; IDS],
    is_twice: bool,
}

impl Row {
    fn shipped(self, worker_id: u16) -> registry::Row {
        registry::Row {
            worker_id,
            holder: self.holder.map(|name| Holder {
                system_identifier: 1,
                node_name: vec![name],
            }),
            role: self.holder.map(|_| b"member".to_vec()),
            host: self.host,
            retired: self.retired,
            token: self.token,
            reserved_until_ms: self.reserved_until_ms,
            floor_ms: self.floor_ms,
            ..registry::Row::default()
        }
    }

    fn of(row: &registry::Row) -> Self {
        Self {
            holder: row.holder.as_ref().map(|holder| holder.node_name[0]),
            host: row.host,
            retired: row.retired,
            token: row.token,
            reserved_until_ms: row.reserved_until_ms,
            floor_ms: row.floor_ms,
        }
    }
}

impl<const WORKER_IDS: usize> Tables<WORKER_IDS> {
    /// A copy for a standby.
    fn follow(&mut self, standby: usize) -> Self {
        self.is_off[standby] = false;
        Self {
            is_off: [false; 2],
            ..*self
        }
    }
}

impl Node {
    fn new(name: u8, is_host: bool) -> Self {
        Self {
            name,
            is_host,
            ahead_ms: 0,
            boot: 10 * name,
            lease: Lease::default(),
            lease_boot: 10 * name,
            lease_is_copy: false,
            token: 0,
            until_ms: 0,
            holder: LeaseHolder::new(Lease::default()),
            grant: None,
            floor_ms: 0,
            is_open: false,
            last_ms: 0,
            is_full: true,
            reserved_ms: 0,
            sent: None,
            run: 0,
            drawn: 0,
        }
    }

    fn draw(&mut self) -> i64 {
        self.drawn += 1;
        i64::from(self.name) * 1_000_000 + self.drawn
    }

    fn close(&mut self) {
        self.is_open = false;
        self.reserved_ms = self.last_ms;
    }

    /// Writes the lease file.
    fn write(&mut self) {
        self.lease = *self.holder.lease();
        self.lease_boot = self.boot;
        self.lease_is_copy = false;
    }

    fn follow(&mut self, effect: Effect) {
        match effect {
            Effect::Keep => {}
            Effect::Close(_) => {
                self.close();
                self.grant = None;
            }
            Effect::Use { grant, anew } => {
                self.write();
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
        let token = self.draw();
        self.drawn -= i64::from(self.holder.lease().next_token != 0);
        self.holder.prepare(|| token);
        self.write();
        if let Some(sent) = &mut self.sent {
            sent.is_awaited = false;
        }
        let mut question = self.holder.ask();
        if !rules.hold(Rule::TokenOfRenewal) {
            if self.token == 0 {
                self.token = question.next_token;
            }
            question.token = self.token;
            question.next_token = self.token;
        }
        Sent {
            question,
            clocks,
            is_awaited: true,
        }
    }

    fn hear(&mut self, sent: &Sent, reply: &Reply, received: Clocks) {
        let heard = Heard {
            answer: reply.answer,
            sent: sent.clocks,
            received,
        };
        let token = self.draw();
        let effect = self.holder.hear(&sent.question, &heard, || token);
        self.drawn -= i64::from(reply.answer.outcome.is_err());
        self.follow(effect);
    }

    fn hear_unwritten(&mut self, sent: &Sent, reply: &Reply, clocks: Clocks) {
        let mut heard = *self;
        heard.hear(sent, reply, clocks);
        self.lease = heard.lease;
        self.drawn = heard.drawn;
        self.fail(clocks);
    }

    fn fail(&mut self, clocks: Clocks) {
        let effect = self.holder.fail(clocks);
        self.follow(effect);
    }

    /// The next run, on the files as they are.
    fn start(&mut self, rules: Rules<Rule>) {
        let is_original = !(self.lease_is_copy && rules.hold(Rule::Original));
        let is_of_boot = self.lease_boot == self.boot || !rules.hold(Rule::Boot);
        let mut lease = self.lease;
        if is_original && !is_of_boot && !rules.hold(Rule::BootToken) {
            lease.grant = None;
        } else if !(is_original && is_of_boot) {
            lease = Lease::default();
            self.token = 0;
        }
        if self.is_host && rules.hold(Rule::HostsFile) {
            lease.grant = None;
        }
        self.holder = LeaseHolder::new(lease);
        self.grant = None;
        self.floor_ms = rules.keep(Rule::OwnFloor, self.until_ms);
        self.is_open = false;
        self.last_ms = 0;
        self.is_full = true;
        self.reserved_ms = 0;
        if let Some(sent) = &mut self.sent {
            sent.is_awaited = false;
        }
        self.run += 1;
        self.follow(self.holder.begin());
    }

    fn reboot(&mut self, rules: Rules<Rule>) {
        self.boot += 1;
        self.start(rules);
    }

    /// True if its grant goes on after its last id.
    fn has_more(&self) -> bool {
        (self.grant).is_some_and(|grant| grant.reserved_until_ms > self.last_ms)
    }

    /// A clean stop.
    fn stop(&mut self) {
        if self.is_open {
            self.until_ms = self.last_ms;
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
            terms: TERMS,
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

    /// The worker id and the time of the next id.
    fn issue(&mut self, now_ms: i64, rules: Rules<Rule>) -> Option<(u16, i64)> {
        let grant = self.grant?;
        let wall_ms = now_ms + self.ahead_ms;
        if !self.is_open {
            self.open(grant, wall_ms, rules)?;
        }
        let next_ms = self.last_ms + i64::from(self.is_full);
        let ms = wall_ms.max(next_ms);
        if ms - wall_ms > TERMS.max_lead_ms {
            return None;
        }
        if ms > self.reserved_ms {
            let recorded_ms = recorded_ms(grant, rules);
            let until_ms =
                late_renewal(wall_ms, self.last_ms, TERMS, self.reserved_ms, recorded_ms)?;
            self.reserve(until_ms, rules);
        }
        if ms > self.reserved_ms {
            return None;
        }
        self.last_ms = ms;
        self.is_full = false;
        Some((grant.worker_id, ms))
    }
}

fn recorded_ms(grant: Grant, rules: Rules<Rule>) -> i64 {
    if rules.hold(Rule::Reserved) {
        grant.reserved_until_ms
    } else {
        i64::MAX
    }
}

fn layout() -> Layout {
    Layout::new(41, 2, 12).expect("a layout")
}

impl<const SERVERS: usize, const WORKER_IDS: usize, const IS_PAIR: bool>
    World<SERVERS, WORKER_IDS, IS_PAIR>
{
    fn clocks(&self, number: usize) -> Clocks {
        Clocks {
            boot_ms: self.now_ms,
            wall_ms: self.now_ms + self.nodes[number].ahead_ms,
        }
    }

    /// True if the registry's clock is not that of all its servers.
    fn is_off(&self) -> bool {
        !(-SKEW_MS..=0).contains(&self.ahead_ms)
    }

    fn is_first_use(&self) -> bool {
        self.registry.timeline != self.timeline
    }

    /// True until MF has passed.
    fn has_moved(&self) -> bool {
        let now_ms = self.now_ms + self.ahead_ms;
        let moved_floor_ms = self.registry.moved_floor_ms;
        self.is_first_use() || moved_floor_ms.is_some_and(|ms| ms + SKEW_MS > now_ms)
    }

    /// The registry's answer to a question of a server; `None` if it has a clock that no promise
    /// is made for.
    fn decide(&mut self, number: usize, sent: &Sent, rules: Rules<Rule>) -> Option<Reply> {
        if self.is_first_use() && self.is_off() && rules.hold(Rule::RegistryClocks) {
            return None;
        }
        let node = self.nodes[number];
        let tables = self.registry;
        let now_ms = self.now_ms + self.ahead_ms;
        let here = Here {
            place: place(self.timeline),
            epoch_ms: 0,
            layout: layout(),
            worker_id: None,
            max_lead_ms: LEAD_MS + SKEW_MS,
            arrived_ms: now_ms,
            now_ms,
            format_ms: |ms| ms.to_string(),
        };
        let mut question = sent.question;
        if let Some(held) = &mut question.held
            && !rules.hold(Rule::HeldFloor)
        {
            held.floor_ms = 0;
        }
        let mut rows = self.seen(&node, &mut question, rules);
        let passed_ms = now_ms.max(tables.moved_at_ms.unwrap_or(0)) - SKEW_MS;
        let is_between = |moved_ms| moved_ms > passed_ms && moved_ms <= passed_ms + SKEW_MS;
        let mut registry = Registry {
            place: Some(place(tables.timeline)),
            epoch_ms: None,
            layout: None,
            moved_at_ms: tables
                .moved_at_ms
                .filter(|_| rules.hold(Rule::FirstUseClock)),
            moved_floor_ms: tables.moved_floor_ms,
            bounds: Bounds {
                max_skew_ms: SKEW_MS,
                grant_ahead_ms: tables.ahead_ms,
                max_ids_per_role: None,
            },
        };
        if tables.moved_floor_ms.is_some_and(is_between) && !rules.hold(Rule::MovedWait) {
            registry.moved_floor_ms = Some(passed_ms);
        }
        // Worker ids beyond those of this world are taken.
        rows.extend((WORKER_IDS..4).map(|worker_id| registry::Row {
            worker_id: u16::try_from(worker_id).expect("a worker id"),
            retired: true,
            ..registry::Row::default()
        }));
        let rows: Vec<_> = rows.into_iter().map(|row| (row, Hold::Locked)).collect();
        let request = LeaseRequest {
            question,
            system_identifier: 1,
            node_name: vec![node.name],
            now_ms: sent.clocks.wall_ms,
            epoch_ms: here.epoch_ms,
            layout: here.layout,
        };
        let requester = Requester {
            role: b"member",
            trusted: false,
            address: None,
            host: node.is_host,
        };
        let tables = registry::Tables {
            registry: &registry,
            registry_locked: true,
            rows: &rows,
        };
        let decision = match registry::decide(tables, &request, &requester, &here) {
            Next::Done(decision) => *decision,
            _ => unreachable!("everything is locked"),
        };
        Some(self.commit(&node, decision, &here, rules))
    }

    /// The rows as the decision sees them.
    fn seen(&self, node: &Node, question: &mut Question, rules: Rules<Rule>) -> Vec<registry::Row> {
        let tables = &self.registry;
        let has_moved = self.has_moved();
        let mut seen = Vec::new();
        for (worker_id, row) in (0..).zip(&tables.rows) {
            let Some(mut row) = *row else { continue };
            let is_named = row.holder == Some(node.name);
            if is_named && !rules.hold(Rule::Token) && row.token != question.next_token {
                question.token = row.token;
            }
            if is_named
                && has_moved
                && question
                    .held
                    .is_some_and(|held| held.worker_id == worker_id)
                && !rules.hold(Rule::HeldToken)
            {
                question.token = row.token;
            }
            let shows_token =
                is_named && [question.token, question.next_token].contains(&row.token);
            row.host &= node.is_host || rules.hold(Rule::HostsOwn);
            if !shows_token && !rules.hold(Rule::GivenWhenPassed) {
                row.reserved_until_ms -= SKEW_MS;
            }
            if shows_token && row.token != 0 && !rules.hold(Rule::HeldOnly) {
                question.held = Some(Grant {
                    worker_id,
                    floor_ms: row.floor_ms,
                    reserved_until_ms: row.reserved_until_ms,
                });
                row.host &= !has_moved;
            }
            seen.push(row.shipped(worker_id));
        }
        seen
    }

    fn commit(
        &mut self,
        node: &Node,
        decision: Decision,
        here: &Here,
        rules: Rules<Rule>,
    ) -> Reply {
        let Decision {
            mut reply,
            registry,
            row,
            is_moved,
            is_new,
        } = decision;
        let is_off = self.is_off();
        let tables = &mut self.registry;
        if let Some(registry) = registry {
            tables.timeline = registry.place.map_or(0, |place| place.timeline);
            if is_moved {
                tables.moved_at_ms = registry.moved_at_ms;
                tables.moved_floor_ms = registry.moved_floor_ms;
            }
        }
        let moved_floor_ms = tables.moved_floor_ms.unwrap_or(0);
        let waited = moved_floor_ms + rules.keep(Rule::MovedWait, SKEW_MS) <= here.now_ms;
        if let Some(row) = &row {
            let before = &mut tables.rows[usize::from(row.worker_id)];
            let mut row = Row::of(row);
            let recorded_ms = before.map_or(0, |before| before.reserved_until_ms);
            row.reserved_until_ms = row.reserved_until_ms.max(recorded_ms);
            let is_late = !is_new && recorded_ms <= here.now_ms && waited && !node.is_host;
            if let Ok(granted) = &mut reply.answer.outcome {
                if is_new && !node.is_host || is_late {
                    // Broken rules have shown other numbers.
                    let floor_ms = if is_new { recorded_ms } else { row.floor_ms };
                    row.floor_ms = row.floor_ms.max(floor_ms).max(moved_floor_ms);
                }
                if is_new && !node.is_host {
                    if !rules.hold(Rule::MovedFloor) {
                        row.floor_ms = recorded_ms;
                    }
                    row.floor_ms = rules.keep(Rule::Floor, row.floor_ms);
                }
                if is_late && !rules.hold(Rule::PassedAfterMove) {
                    row.floor_ms = before.map_or(0, |before| before.floor_ms);
                }
                if node.is_host {
                    row.floor_ms = rules.keep(Rule::InheritFloor, row.floor_ms);
                }
                granted.floor_ms = row.floor_ms;
                granted.reserved_until_ms = row.reserved_until_ms;
            }
            row.floor_ms = rules.keep(Rule::FloorOfLostAnswer, row.floor_ms);
            *before = Some(row);
            tables.is_off = tables.is_off.map(|was| was || is_off);
        }
        reply
    }

    fn issue(&mut self, number: usize, rules: Rules<Rule>) -> Option<()> {
        let node = &mut self.nodes[number];
        let (worker_id, ms) = node.issue(self.now_ms, rules)?;
        let id = (
            worker_id,
            u32::try_from(ms - BEGIN_MS + 10 * TICK_MS).ok()?,
            u8::try_from(number).ok()?,
            node.run,
        );
        let mut others = self.issued.iter().flatten();
        if let Some(other) = others.find(|other| (other.0, other.1) == (id.0, id.1)) {
            self.is_twice |= *other != id;
            return Some(());
        }
        *self.issued.iter_mut().find(|issued| issued.is_none())? = Some(id);
        Some(())
    }

    /// True if a server could issue an id now.
    fn can_issue(&self, number: usize) -> bool {
        let rules = Rules::ALL;
        (self.nodes[number].clone())
            .issue(self.now_ms, rules)
            .is_some()
    }

    /// A standby is promoted.
    fn promote(&mut self, standby: usize, ahead: i8, rules: Rules<Rule>) -> Option<()> {
        let is_off = !(-SKEW_MS..=0).contains(&ticks(ahead)) || self.registry.is_off[standby];
        if is_off && rules.hold(Rule::RegistryClocks) {
            return None;
        }
        self.registry = self.standbys[standby];
        self.timeline += 1;
        self.ahead_ms = ticks(ahead);
        Some(())
    }

    /// The standby's server is the registry's now, with a file that is not its own, or none.
    fn promote_server(&mut self) {
        let last = self.nodes[0];
        self.former = Some(last);
        self.nodes[0] = Node {
            ahead_ms: self.ahead_ms,
            run: last.run + 1,
            drawn: last.drawn,
            ..Node::new(9 - last.name, true)
        };
    }

    /// The former server is again.
    fn fail_back(&mut self, rules: Rules<Rule>) -> Option<()> {
        let former = self.former.replace(self.nodes[0])?;
        self.nodes[0] = Node {
            ahead_ms: self.ahead_ms,
            run: self.nodes[0].run,
            ..former
        };
        self.nodes[0].start(rules);
        Some(())
    }

    fn copy(&mut self) -> &mut Node {
        let node = self.nodes[0];
        let copy = &mut self.nodes[1];
        *copy = Node {
            ahead_ms: copy.ahead_ms,
            run: copy.run,
            // Other ones than its original.
            drawn: node.drawn.max(copy.drawn) + 500,
            ..node
        };
        copy
    }

    fn ask(&mut self, number: usize, rules: Rules<Rule>) -> Option<()> {
        let clocks = self.clocks(number);
        let sent = self.nodes[number].ask(clocks, rules);
        let reply = self.decide(number, &sent, rules)?;
        self.nodes[number].hear(&sent, &reply, clocks);
        Some(())
    }

    fn retire(&mut self, worker_id: usize) {
        let row = &mut self.registry.rows[worker_id];
        let retired = row.is_none_or(|row| !row.retired);
        let empty = Row::of(&registry::Row::default());
        let changed = row.unwrap_or(empty).shipped(0);
        let changed = if retired {
            registry::Row { retired, ..changed }
        } else {
            changed.back_in_service(self.now_ms + self.ahead_ms)
        };
        *row = Some(Row::of(&changed));
    }

    /// As many servers as there are worker ids issue ids, once all is well: clocks are right, each
    /// asks, everything granted passes, and each asks again.
    fn recovers(mut self) -> bool {
        let rules = Rules::ALL;
        for number in 0..SERVERS {
            self.nodes[number].ahead_ms = 0;
        }
        self.ahead_ms = 0;
        for worker_id in 0..WORKER_IDS {
            if self.registry.rows[worker_id].is_some_and(|row| row.retired) {
                self.retire(worker_id);
            }
        }
        let ask_all =
            |world: &mut Self| (0..SERVERS).all(|number| world.ask(number, rules).is_some());
        let asked = ask_all(&mut self);
        self.now_ms += self.registry.ahead_ms + 2 * SKEW_MS;
        let asked = asked && ask_all(&mut self);
        let issuing = (0..SERVERS)
            .filter(|number| self.can_issue(*number))
            .count();
        let is_kept = self.registry.rows.iter().flatten().any(|row| row.host);
        let kept = usize::from(is_kept && !IS_PAIR);
        asked && issuing + kept >= WORKER_IDS.min(SERVERS)
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

impl<const SERVERS: usize, const WORKER_IDS: usize, const IS_PAIR: bool> search::World
    for World<SERVERS, WORKER_IDS, IS_PAIR>
{
    const NAME: &'static str = match (IS_PAIR, SERVERS, WORKER_IDS) {
        (true, ..) => "leases of a pair",
        (false, 2, 1) => "leases",
        (false, 3, 1) => "leases of three servers",
        _ => "leases of two worker ids",
    };
    type Rule = Rule;
    type Step = Step;

    fn new() -> Self {
        let tables = Tables {
            timeline: 1,
            moved_at_ms: None,
            moved_floor_ms: None,
            ahead_ms: AHEAD_MS,
            rows: [None; WORKER_IDS],
            is_off: [false; 2],
        };
        let node = |number: usize| {
            let name = u8::try_from(number + 1).expect("a name");
            Node::new(name, IS_PAIR && number == 0)
        };
        Self {
            now_ms: BEGIN_MS,
            registry: tables,
            standbys: [tables; 2],
            timeline: 1,
            ahead_ms: 0,
            nodes: core::array::from_fn(node),
            former: None,
            issued: [None; IDS],
            is_twice: false,
        }
    }

    fn after(mut self, step: Step, rules: Rules<Rule>) -> Option<Self> {
        match step {
            Step::Pass(number) => self.now_ms += ticks(number),
            Step::Ask(number) => self.ask(number, rules)?,
            Step::AskLost(number) => {
                let clocks = self.clocks(number);
                let sent = self.nodes[number].ask(clocks, rules);
                self.decide(number, &sent, rules)?;
                self.nodes[number].fail(clocks);
            }
            Step::AskUnwritten(number) => {
                let clocks = self.clocks(number);
                let sent = self.nodes[number].ask(clocks, rules);
                let reply = self.decide(number, &sent, rules)?;
                self.nodes[number].hear_unwritten(&sent, &reply, clocks);
            }
            Step::Send(number) => {
                let clocks = self.clocks(number);
                let node = &mut self.nodes[number];
                node.sent = Some(node.ask(clocks, rules));
            }
            Step::Arrive(number) => {
                let sent = self.nodes[number].sent.take()?;
                let reply = self.decide(number, &sent, rules)?;
                let clocks = self.clocks(number);
                if sent.is_awaited {
                    self.nodes[number].hear(&sent, &reply, clocks);
                }
            }
            Step::Away(number) => {
                let clocks = self.clocks(number);
                let node = &mut self.nodes[number];
                node.ask(clocks, rules);
                node.fail(clocks);
            }
            Step::Issue(number) => self.issue(number, rules)?,
            Step::Crash(number) => self.nodes[number].start(rules),
            Step::Restart(number) => {
                self.nodes[number].stop();
                self.nodes[number].start(rules);
            }
            Step::Reboot(number) => self.nodes[number].reboot(rules),
            Step::CopyImage => self.copy().reboot(rules),
            Step::CopyStopped => {
                self.nodes[0].stop();
                self.copy().reboot(rules);
                self.nodes[0].start(rules);
            }
            Step::CopyFiles => {
                let copy = self.copy();
                copy.lease_is_copy = true;
                copy.start(rules);
            }
            Step::CopyMemory => {
                self.copy().run += 1;
                for number in [0, 1, 0, 1] {
                    self.ask(number, rules)?;
                }
                self.now_ms += self.registry.ahead_ms + TICK_MS;
            }
            Step::SetClock(number, ahead) => self.nodes[number].ahead_ms = ticks(ahead),
            Step::SetRegistry(ahead) => {
                self.ahead_ms = ticks(ahead);
                if IS_PAIR {
                    self.nodes[0].ahead_ms = self.ahead_ms;
                }
            }
            Step::Retire(worker_id) => self.retire(worker_id),
            Step::Raise => {
                self.registry.ahead_ms += AHEAD_MS;
                if rules.hold(Rule::RaiseKept) {
                    for standby in &mut self.standbys {
                        standby.ahead_ms = self.registry.ahead_ms;
                    }
                }
            }
            Step::Lower => {
                let lower_ms = self.registry.ahead_ms - AHEAD_MS;
                self.registry.ahead_ms = Some(lower_ms).filter(|ms| *ms > 0)?;
            }
            Step::Follow => self.standbys[0] = self.registry.follow(0),
            Step::Follow2 => self.standbys[1] = self.registry.follow(1),
            Step::Promote(ahead) => {
                self.promote(0, ahead, rules)?;
                if IS_PAIR {
                    self.promote_server();
                }
            }
            Step::Promote2(ahead) => self.promote(1, ahead, rules)?,
            Step::FailBack(ahead) => {
                self.promote(0, ahead, rules)?;
                self.fail_back(rules)?;
            }
            Step::RestoreSnapshot => {
                if rules.hold(Rule::SnapshotSeen) {
                    return None;
                }
                self.registry = self.standbys[0];
            }
        }
        Some(self)
    }

    fn is_broken(&self) -> bool {
        self.is_twice
    }

    fn is_small(&self) -> bool {
        self.issued[FEW_IDS].is_none() && self.now_ms < BEGIN_MS + 16 * TICK_MS
    }
}

/// Two servers and one worker id; ...
type Two = World<2, 1, false>;
/// ... the first of them is the registry's own server, whichever that is; ...
type Pair = World<2, 1, true>;
/// ... three servers; ...
type Three = World<3, 1, false>;
/// ... and three with two worker ids.
type TwoIds = World<3, 2, false>;

/// Asks of a world whether every server that there is a worker id for can issue, once all is well.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Recovering<W>(W);

/// Asks whether an answer, or a restart, takes a worker id from a server that could issue.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Needless<W> {
    world: W,
    is_broken: bool,
}

impl<const SERVERS: usize, const WORKER_IDS: usize, const IS_PAIR: bool> search::World
    for Recovering<World<SERVERS, WORKER_IDS, IS_PAIR>>
{
    const NAME: &'static str = World::<SERVERS, WORKER_IDS, IS_PAIR>::NAME;
    type Rule = Rule;
    type Step = Step;

    fn new() -> Self {
        Self(search::World::new())
    }

    fn after(self, step: Step, rules: Rules<Rule>) -> Option<Self> {
        self.0.after(step, rules).map(Self)
    }

    fn is_broken(&self) -> bool {
        !self.0.recovers()
    }

    fn is_small(&self) -> bool {
        self.0.is_small()
    }
}

impl<const SERVERS: usize, const WORKER_IDS: usize, const IS_PAIR: bool> search::World
    for Needless<World<SERVERS, WORKER_IDS, IS_PAIR>>
{
    const NAME: &'static str = World::<SERVERS, WORKER_IDS, IS_PAIR>::NAME;
    type Rule = Rule;
    type Step = Step;

    fn new() -> Self {
        Self {
            world: search::World::new(),
            is_broken: false,
        }
    }

    fn after(self, step: Step, rules: Rules<Rule>) -> Option<Self> {
        let world = self.world.after(step, rules)?;
        let is_broken = match step {
            // The registry's own server begins above all others with each answer, and waits for a
            // reservation.
            Step::Ask(0) if IS_PAIR && self.world.has_moved() => false,
            // Its file's grant is not used.
            Step::Restart(0) if IS_PAIR => false,
            // It goes on in the next millisecond.
            Step::Restart(number) if !self.world.nodes[number].has_more() => false,
            Step::Ask(number) | Step::Restart(number) => {
                self.world.can_issue(number) && !world.can_issue(number)
            }
            _ => false,
        };
        Some(Self { world, is_broken })
    }

    fn is_broken(&self) -> bool {
        self.is_broken
    }

    fn is_small(&self) -> bool {
        self.world.is_small()
    }
}

const ALL: [Step; 36] = [
    Step::Pass(1),
    Step::Pass(4),
    Step::Ask(0),
    Step::Ask(1),
    Step::AskLost(0),
    Step::AskLost(1),
    Step::AskUnwritten(0),
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
    Step::Restart(0),
    Step::Restart(1),
    Step::CopyImage,
    Step::CopyStopped,
    Step::CopyFiles,
    Step::SetClock(0, -5),
    Step::SetClock(1, -1),
    Step::SetClock(0, 4),
    Step::SetClock(1, 4),
    Step::SetRegistry(-4),
    Step::SetRegistry(4),
    Step::Retire(0),
    Step::Raise,
    Step::Lower,
    Step::Follow,
    Step::Promote(0),
    Step::Promote(-1),
];

const OF_PAIR: [Step; 18] = [
    Step::Pass(1),
    Step::Pass(4),
    Step::Ask(0),
    Step::Ask(1),
    Step::AskLost(0),
    Step::AskLost(1),
    Step::Issue(0),
    Step::Issue(1),
    Step::Crash(0),
    Step::Reboot(0),
    Step::Restart(0),
    Step::SetClock(1, 1),
    Step::SetClock(1, 4),
    Step::Follow,
    Step::Promote(0),
    Step::Promote(-1),
    Step::FailBack(0),
    Step::FailBack(-1),
];

fn histories<'a>(steps: &'a [Step], depth: u64) -> Histories<'a, Step> {
    Histories {
        begin: &[],
        steps,
        depth,
    }
}

#[test]
fn no_id_comes_twice() {
    search::assert_holds::<Two>(histories(&ALL, 5), 6);
    search::assert_holds::<Pair>(histories(&OF_PAIR, 6), 8);
}

/// The first two servers ask and issue, among other steps.
fn with(more: &[Step]) -> Vec<Step> {
    let both = [Step::Ask(0), Step::Ask(1), Step::Issue(0), Step::Issue(1)];
    [&both, more].concat()
}

/// Steps that belong together, and a depth that finds more than any random history: for every run,
/// and for long ones.
#[test]
fn no_id_comes_twice_deeper() {
    use Step::*;
    let drift = with(&[Follow, Promote(-1), SetRegistry(0), Pass(1), Pass(3)]);
    none::<Two>(&drift, 8, 9);
    let second = with(&[Follow, Follow2, Promote(0), Promote2(0), Pass(1), Pass(4)]);
    none::<Two>(&second, 8, 10);
    let copies = with(&[CopyImage, CopyStopped, Follow, Promote(0), Pass(1), Pass(4)]);
    none::<Two>(&copies, 7, 9);
    let restarted = with(&[CopyImage, CopyStopped, Restart(0), Restart(1), Crash(1)]);
    none::<Two>(&restarted, 7, 9);
    let clocks = with(&[
        Restart(0),
        Crash(0),
        SetClock(0, -5),
        SetClock(1, -1),
        Pass(4),
    ]);
    none::<Two>(&clocks, 7, 9);
    let lost = with(&[Restart(0), AskLost(0), Follow, Promote(0), Pass(1), Pass(4)]);
    none::<Two>(&lost, 7, 9);
    let unwritten = with(&[
        AskUnwritten(0),
        Crash(0),
        Restart(0),
        Follow,
        Promote(0),
        Pass(1),
        Pass(4),
    ]);
    none::<Two>(&unwritten, 7, 9);
    let under_way = with(&[
        Send(0),
        Arrive(0),
        Restart(0),
        Crash(0),
        Follow,
        Promote(0),
        Pass(4),
    ]);
    none::<Two>(&under_way, 7, 9);
    let away = with(&[
        CopyStopped,
        Away(0),
        Away(1),
        Follow,
        Promote(0),
        Pass(1),
        Pass(4),
        Crash(0),
    ]);
    none::<Two>(&away, 6, 9);
    let passed = with(&[CopyStopped, Follow, Promote(-1), Pass(1), Pass(4)]);
    none::<Two>(&passed, 8, 9);
    let late = with(&[Send(0), Arrive(0), Follow, Promote(0), Pass(1), Pass(4)]);
    none::<Two>(&late, 8, 10);
    let restarts = with(&[
        Crash(0),
        Restart(0),
        AskLost(0),
        AskLost(1),
        Away(0),
        Pass(4),
    ]);
    none::<Two>(&restarts, 8, 10);
    let registry = with(&[SetRegistry(-4), SetRegistry(4), Follow, Promote(0), Pass(4)]);
    none::<Two>(&registry, 7, 9);
    let ahead = with(&[Raise, Lower, Follow, Promote(0), Pass(1), Pass(4)]);
    none::<Two>(&ahead, 7, 9);
    let retired = with(&[Retire(0), Restart(0), Follow, Promote(0), Pass(1), Pass(4)]);
    none::<Two>(&retired, 7, 9);
    let back = with(&[Follow, Promote(0), FailBack(-1), Pass(1), Away(0)]);
    none::<Pair>(&back, 7, 9);
    let pair = with(&[
        Restart(0),
        Crash(0),
        Follow,
        Promote(0),
        FailBack(0),
        Pass(1),
    ]);
    none::<Pair>(&pair, 7, 9);
    let three = [
        with(&[Follow, Promote(0), Pass(1), Pass(4)]),
        vec![Ask(2), Issue(2)],
    ]
    .concat();
    none::<Three>(&three, 7, 9);
    let crashes = [&*three, &[Crash(0), Reboot(1)]].concat();
    none::<TwoIds>(&crashes, 6, 8);
}

fn none<W: search::World<Rule = Rule, Step = Step>>(steps: &[Step], depth: u64, long: u64) {
    search::assert_none::<W>(histories(steps, support::rounds(depth, long)));
}

/// All steps but these: two clocks that are ahead put R ahead, and a lower bound comes late. That
/// takes longer than servers wait otherwise.
fn most() -> Vec<Step> {
    let slow = [Step::SetRegistry(4), Step::Lower];
    ALL.into_iter()
        .filter(|step| !slow.contains(step))
        .collect()
}

#[test]
fn every_server_recovers() {
    use Step::*;
    none::<Recovering<Two>>(&most(), 4, 5);
    none::<Recovering<Pair>>(&OF_PAIR, 5, 6);
    let few = with(&[
        Ask(2),
        Follow,
        Promote(0),
        Crash(0),
        Reboot(1),
        Pass(1),
        Pass(4),
    ]);
    none::<Recovering<Three>>(&few, 5, 7);
    none::<Recovering<TwoIds>>(&few, 5, 7);
}

#[test]
fn no_answer_stops_a_holder() {
    use Step::*;
    none::<Needless<Two>>(&most(), 4, 5);
    none::<Needless<Pair>>(&OF_PAIR, 6, 7);
    let few = with(&[
        Follow,
        Promote(0),
        Promote(-1),
        AskLost(0),
        Restart(0),
        Pass(1),
        Pass(4),
    ]);
    none::<Needless<TwoIds>>(&few, 6, 8);
}

/// With all rules, none of these histories issues an id twice; without this one, one does.
fn needed<W: search::World<Rule = Rule, Step = Step>>(
    kind: &str,
    rule: Rule,
    begin: &[Step],
    steps: &[Step],
    depth: u64,
) {
    let histories = Histories {
        begin,
        steps,
        depth,
    };
    search::assert_needed::<W>(kind, rule, histories);
    search::assert_none::<W>(histories);
}

/// In walks over all steps; the other rules need more luck than that.
#[test]
fn random_histories_find_rules_left_out() {
    for rule in [Rule::Durable, Rule::Original, Rule::OwnFloor, Rule::Token] {
        search::assert_a_walk_finds::<Two>(rule, histories(&ALL, 5));
    }
    search::assert_a_walk_finds::<Pair>(Rule::InheritFloor, histories(&OF_PAIR, 5));
}

#[test]
fn each_rule_is_needed() {
    use Step::*;
    let needed = |rule, begin: &[Step], steps: &[Step], depth| {
        needed::<Two>("rule", rule, begin, steps, depth);
    };
    let alone = [Ask(0), Issue(0), Crash(0)];
    needed(Rule::Durable, &[], &alone, 5);
    needed(Rule::OwnFloor, &[], &alone, 5);

    let passed = with(&[Pass(4), AskLost(1), SetClock(0, -1), SetClock(1, -1)]);
    needed(Rule::Reserved, &[], &passed, 5);
    needed(Rule::Floor, &[], &passed, 7);
    needed(Rule::FloorOfLostAnswer, &[], &passed, 8);

    let image = with(&[CopyImage]);
    needed(Rule::Token, &[], &image, 5);
    needed(Rule::Boot, &[], &image, 5);
    needed(Rule::BootToken, &[], &image, 5);
    needed(Rule::TokenOfRenewal, &[], &with(&[CopyMemory]), 6);
    needed(Rule::Original, &[], &with(&[CopyFiles]), 5);

    let moved = with(&[Pass(1), Pass(4), Promote(0), SetClock(1, -5)]);
    needed(Rule::MovedFloor, &[], &moved, 9);
    let held = [Ask(0), Follow, Pass(4), Ask(1), Issue(1)];
    let promoted = with(&[Pass(1), Pass(4), Promote(0), SetClock(0, -5)]);
    needed(Rule::PassedAfterMove, &held, &promoted, 7);
    needed(Rule::HeldFloor, &held, &promoted, 10);
    let before = [Ask(0), Follow, Pass(3), Ask(0), Promote(-1), Ask(1)];
    let drift = with(&[Pass(1), Pass(3), Promote(-1), SetRegistry(0)]);
    needed(Rule::MovedWait, &before, &drift, 8);
    let used = [
        Ask(0),
        Follow,
        Pass(4),
        Ask(1),
        Promote(0),
        Ask(1),
        Issue(1),
    ];
    let back = with(&[Pass(1), SetRegistry(-4), SetClock(0, -1)]);
    needed(Rule::FirstUseClock, &used, &back, 5);
    let cold = with(&[CopyStopped, Follow, Promote(-1), Pass(4)]);
    needed(Rule::HeldToken, &[], &cold, 9);
    let followed = [Ask(0), Follow, Pass(3)];
    needed(
        Rule::GivenWhenPassed,
        &followed,
        &with(&[Pass(2), Promote(-1)]),
        6,
    );
}

#[test]
fn each_rule_of_a_pair_is_needed() {
    use Step::*;
    let needed = |rule, begin: &[Step], steps: &[Step], depth| {
        needed::<Pair>("rule", rule, begin, steps, depth);
    };
    let followed = [Ask(0), Follow];
    needed(
        Rule::InheritFloor,
        &followed,
        &with(&[Pass(2), Promote(0)]),
        4,
    );
    let given = [Ask(0), Follow, Pass(4), Ask(1), SetClock(1, 3)];
    let promoted = with(&[Pass(1), Pass(2), Promote(0)]);
    needed(Rule::HostsOwn, &given, &promoted, 7);
    let back = with(&[Follow, Pass(1), FailBack(0), FailBack(-1), Away(0)]);
    let moved = [Ask(0), Follow, Promote(0), Ask(0)];
    needed(Rule::HeldOnly, &moved, &back, 8);
    needed(Rule::HostsFile, &moved, &back, 9);
}

#[test]
fn each_assumption_is_needed() {
    use Step::*;
    let needed = |assumption, begin: &[Step], steps: &[Step], depth| {
        needed::<Two>("assumption", assumption, begin, steps, depth);
    };
    needed(Rule::SnapshotSeen, &[], &with(&[RestoreSnapshot]), 5);
    let raised = with(&[Raise, Promote(0), Pass(1), Pass(4)]);
    needed(Rule::RaiseKept, &[], &raised, 9);
    let given = [Ask(0), Follow, Pass(4), Ask(1), Issue(1)];
    needed(Rule::RegistryClocks, &given, &with(&[Promote(-2)]), 3);
}
