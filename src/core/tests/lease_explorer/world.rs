//! A registry with two standbys, and the servers that lease from it.

use leaf_id_core::layout::Layout;
use leaf_id_core::lease::{Clocks, Grant, Question};
use leaf_id_core::registry::{
    self, Bounds, Decision, Here, Hold, Holder, LeaseRequest, Next, Place, Registry, Reply,
    Requester,
};

use crate::node::{LEAD_MS, Node, Sent, TICK_MS};
use crate::search::{self, Rules};

const BEGIN_MS: i64 = 1_000 * TICK_MS;
/// How far ahead the registry grants.
const AHEAD_MS: i64 = 3 * TICK_MS;
const SKEW_MS: i64 = TICK_MS;
/// Max ids in a history of the search of all.
const FEW_IDS: usize = 4;
const IDS: usize = 12;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
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
    /// After a move, a held segment that ends before the row's needs the token, too.
    HeldLast,
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
pub enum Step {
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
    /// ... or arrives, and waits for a lock, ...
    Wait(usize),
    /// ... until it is answered, if the server still waits for that.
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
    /// ... or of its memory as well, with its lease, and both go on once that has passed: until then,
    /// nothing tells them apart.
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

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct World<const SERVERS: usize, const WORKER_IDS: usize, const IS_PAIR: bool> {
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
        let arrived_ms = sent.arrived_ms.unwrap_or(now_ms);
        let here = Here {
            place: place(self.timeline),
            epoch_ms: 0,
            layout: layout(),
            worker_id: None,
            max_lead_ms: LEAD_MS + SKEW_MS,
            arrived_ms,
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
            let ends_before = |held: Grant| {
                held.worker_id == worker_id && held.reserved_until_ms < row.reserved_until_ms
            };
            if is_named
                && has_moved
                && question.held.is_some_and(ends_before)
                && !rules.hold(Rule::HeldLast)
            {
                row.reserved_until_ms = question.held.map_or(0, |held| held.reserved_until_ms);
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
        // As core: a question is about the time at which it arrived.
        let asked_ms = here.arrived_ms.max(tables.moved_at_ms.unwrap_or(0));
        let waited = moved_floor_ms + rules.keep(Rule::MovedWait, SKEW_MS) <= asked_ms;
        if let Some(row) = &row {
            let before = &mut tables.rows[usize::from(row.worker_id)];
            let mut row = Row::of(row);
            let decided = (row, reply.answer.outcome);
            let recorded_ms = before.map_or(0, |before| before.reserved_until_ms);
            row.reserved_until_ms = row.reserved_until_ms.max(recorded_ms);
            let is_late = !is_new && recorded_ms <= asked_ms && waited && !node.is_host;
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
            // What is above restates the rules, to leave one out: with all, it changes nothing.
            if rules.hold_all() {
                assert_eq!((row, reply.answer.outcome), decided);
            }
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
        // The server that they waited at is gone.
        for sent in self.nodes.iter_mut().filter_map(|node| node.sent.as_mut()) {
            sent.arrived_ms = None;
        }
        Some(())
    }

    /// The standby's server is the registry's now, with a file that is not its own, or none.
    fn promote_server(&mut self) {
        let last = self.nodes[0];
        self.former = Some(last);
        self.nodes[0] = Node {
            ahead_ms: self.ahead_ms,
            run: last.run + 1,
            ..Node::new(9 - last.name, true, last.drawn)
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
        let (sent, reply) = self.answered(number, rules)?;
        self.nodes[number].hear(&sent, &reply, sent.clocks);
        Some(())
    }

    /// A question, and the answer to it.
    fn answered(&mut self, number: usize, rules: Rules<Rule>) -> Option<(Sent, Reply)> {
        let clocks = self.clocks(number);
        let sent = self.nodes[number].ask(clocks, rules);
        let reply = self.decide(number, &sent, rules)?;
        Some((sent, reply))
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
            Node::new(name, IS_PAIR && number == 0, 0)
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
                let (sent, _) = self.answered(number, rules)?;
                self.nodes[number].fail(sent.clocks);
            }
            Step::AskUnwritten(number) => {
                let (sent, reply) = self.answered(number, rules)?;
                self.nodes[number].hear_unwritten(&sent, &reply);
            }
            Step::Send(number) => {
                let clocks = self.clocks(number);
                let node = &mut self.nodes[number];
                node.sent = Some(node.ask(clocks, rules));
            }
            Step::Wait(number) => {
                let now_ms = self.now_ms + self.ahead_ms;
                let sent = self.nodes[number].sent.as_mut()?;
                sent.arrived_ms = Some(now_ms);
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
                self.nodes[0].grant?;
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
pub type Two = World<2, 1, false>;
/// ... the first of them is the registry's own server, whichever that is; ...
pub type Pair = World<2, 1, true>;
/// ... three servers; ...
pub type Three = World<3, 1, false>;
/// ... and three with two worker ids.
pub type TwoIds = World<3, 2, false>;

/// Asks of a world whether every server that there is a worker id for can issue, once all is well.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Recovering<W>(W);

/// Asks whether an answer, or a restart, takes a worker id from a server that could issue.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Needless<W> {
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
