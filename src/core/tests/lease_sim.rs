//! A seeded simulation of servers that lease worker ids from one registry: there are fewer
//! ids than servers, so that they go from hand to hand. What decides is what ships: the
//! launcher's state machine, the lease, the registry and the word. Clocks, disks, messages and
//! the failures of all of them are made here.
//!
//! Would catch: two servers, or two runs of one, that issue the same worker id and
//! millisecond twice, whatever their clocks do, wherever they stop and go on, whichever
//! answers are lost, and though the registry forgets what its standby had not received.
//! Each rule that this rests on is broken once, and the simulation must notice.
//!
//! Long, because servers, disks, registry and the ways to break them make one world of one seed.

#![cfg(not(leaf_id_loom))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics fails"
)]

mod support;

use core::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::thread;

use leaf_id_core::keeper::{
    self, Action, Configured, FOR_EVER, File, Input, Keeper, Look, Seen, Then,
};
use leaf_id_core::layout::Layout;
use leaf_id_core::lease::{
    Clocks, Draft, Effect, FoundFile, Held, Lease, LeaseHolder, Question, Rules, Step,
};
use leaf_id_core::registry::{
    self, Bounds, Decision, Here, Hold, LeaseRequest, Next, Place, Registry, Reply, Requester, Row,
};
use leaf_id_core::reservation::{Stored, Terms, late_renewal};
use leaf_id_core::snowflake::{Generator, Stall};
use leaf_id_core::state::{Refusal, State};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const NODES: usize = 4;
/// Worker ids that go from hand to hand, of those that the registry's layout has.
const WORKER_IDS: u16 = 3;
const RULES: Rules = Rules {
    lease_ms: 3_000,
    max_skew_ms: 200,
};
/// How far servers want their ids to lead the clock.
const MAX_LEAD_MS: i64 = 300;
/// Servers get shorter leases than they ask for.
const BOUNDS: Bounds = Bounds {
    max_skew_ms: 250,
    max_lease_ms: 2_500,
    max_lead_ms: 250,
    max_ids_per_role: None,
};
const TERMS: Terms = Terms {
    reservation_ms: 300,
    configured_lead_ms: 600,
    granted_lead_ms: FOR_EVER,
};
/// Few ids a millisecond, so that some are full.
const LAYOUT: &str = "41/10/2";
const STEPS: usize = 6_000;

/// A rule that is broken, so that the simulation must fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// A new holder is not told what the last one may have used.
    Floor,
    /// It is told once, and no more when it asks again because the answer was lost.
    FloorOfLostAnswer,
    /// Who shows no valid token is taken for the holder.
    Token,
    /// The reservation goes beyond what the registry has recorded.
    Reserved,
    /// What is held is shown although the lease has ended.
    HeldAfterTheEnd,
    /// A worker id is given away as soon as its lease has ended by this registry's clock.
    GivenAtTheEnd,
    /// The registry gives away at once after it has forgotten.
    Grace,
    /// A copied disk shows the token of its original.
    CopiedDisk,
    /// What was reserved counts before it is on the disk.
    Durable,
    /// What the last run has left is not waited out.
    OwnFloor,
}

/// The tables of a registry, and where it is.
#[derive(Clone)]
struct Tables {
    registry: Registry,
    rows: [Option<Row>; WORKER_IDS as usize + 1],
}

impl Tables {
    fn new() -> Self {
        Self {
            registry: Registry {
                place: Some(place(1)),
                epoch_ms: None,
                layout: None,
                moved_at_ms: None,
                moved_floor_ms: None,
                grace: None,
                bounds: BOUNDS,
            },
            rows: [
                None,
                None,
                None,
                Some(Row {
                    worker_id: WORKER_IDS,
                    retired: true,
                    ..Row::default()
                }),
            ],
        }
    }

    /// What `decide` says, with one of its rules broken.
    fn answer(
        &mut self,
        broken: Broken,
        node: u32,
        asked: &Question,
        sent: Clocks,
        here: &Here,
    ) -> Reply {
        let mut request = LeaseRequest {
            question: *asked,
            system_identifier: 1,
            node_name: node.to_string().into_bytes(),
            now_ms: sent.wall_ms,
            reserve_until_ms: sent.wall_ms + asked.lease_ms,
            max_skew_ms: RULES.max_skew_ms,
            max_lead_ms: MAX_LEAD_MS,
            epoch_ms: here.epoch_ms,
            layout: here.layout,
        };
        let held_by = |row: &Row, name: &[u8]| {
            let holder = row.holder.as_ref();
            holder.is_some_and(|holder| holder.node_name == name)
        };
        if broken == Broken::Token {
            let own = (self.rows.iter().flatten()).find(|row| held_by(row, &request.node_name));
            let token = own.map_or(0, |row| row.token);
            if token != request.question.next_token {
                request.question.token = token;
            }
        }
        assert!(request.is_valid());
        let requester = Requester {
            role: b"member",
            trusted: false,
            address: None,
            host: false,
        };
        // It locks whatever it is asked to.
        let given_at_the_end = |row: &mut Row| {
            if broken == Broken::GivenAtTheEnd && !held_by(row, &request.node_name) {
                let early = |until_ms| until_ms - BOUNDS.max_skew_ms;
                row.lease_until_ms = row.lease_until_ms.map(early);
            }
        };
        let mut registry_locked = false;
        let mut rows: Vec<_> = (self.rows.iter().flatten().cloned())
            .map(|mut row| {
                given_at_the_end(&mut row);
                (row, Hold::Seen)
            })
            .collect();
        let decision = loop {
            let mut registry = self.registry;
            if broken == Broken::Grace {
                registry.grace = None;
            }
            let tables = registry::Tables {
                registry: &registry,
                registry_locked,
                rows: &rows,
            };
            match registry::decide(tables, &request, &requester, here) {
                Next::LockRegistry => registry_locked = true,
                Next::LockRow { worker_id, .. } => {
                    let row = rows.iter_mut().find(|(row, _)| row.worker_id == worker_id);
                    row.unwrap().1 = Hold::Locked;
                }
                Next::Done(decision) => break *decision,
            }
        };
        let Decision {
            mut reply,
            registry,
            rows,
            ..
        } = decision;
        assert!(registry.is_none() || registry_locked);
        self.registry = registry.unwrap_or(self.registry);
        for mut row in rows {
            let before = &mut self.rows[usize::from(row.worker_id)];
            let same = (before.as_ref()).is_some_and(|before| before.holder == row.holder);
            if broken == Broken::Floor && !same {
                row.floor_ms = 0;
                if let Ok(granted) = &mut reply.outcome {
                    granted.floor_ms = 0;
                }
            }
            if broken == Broken::FloorOfLostAnswer {
                row.floor_ms = 0;
            }
            *before = Some(row);
        }
        reply
    }
}

fn layout() -> Layout {
    Layout::parse(LAYOUT).unwrap()
}

fn place(timeline: i32) -> Place {
    Place {
        system_identifier: 1,
        timeline,
        database: 1,
        relation: 1,
    }
}

/// A question before and after it is sent, or its answer.
struct Message {
    node: usize,
    /// The run that has sent it: an answer to another one is lost.
    run: u64,
    draft: Draft,
    /// What was sent, once there was a connection.
    sent: Option<(Question, Clocks)>,
    /// When it is sent, or arrives.
    at_ms: i64,
    answer: Option<Reply>,
}

/// The reservation file.
#[derive(Clone, Copy)]
struct Reserved {
    until_ms: i64,
    unknown_since_ms: Option<i64>,
    clean: bool,
    original: bool,
}

/// What is on a server's disk.
#[derive(Clone, Copy, Default)]
struct Disk {
    lease: Lease,
    lease_is_clean: bool,
    reserved: Option<Reserved>,
    boot: u32,
    copied: bool,
}

/// What a server has in memory while it runs.
struct Running {
    keeper: Keeper,
    /// Once the keeper has begun to lease.
    holder: Option<LeaseHolder>,
    generator: Generator,
    /// What sessions are shown.
    shown: State,
    lease_until_boot_ms: i64,
    recorded_until_ms: i64,
    /// A session has found the reservation used up.
    wanted: bool,
    /// The question that is under way, and when it is given up.
    asked: Option<i64>,
    /// What follows from an answer that has come.
    heard: Effect,
}

struct Node {
    /// As the registry knows it: a copy of a disk has the name of its original.
    name: u32,
    disk: Disk,
    boot: u32,
    wall_offset_ms: i64,
    frozen_until_ms: i64,
    /// Nothing that it asks arrives before.
    cut_off_until_ms: i64,
    /// `None` while it is down.
    running: Option<Running>,
    run: u64,
}

struct World {
    broken: Broken,
    random: RefCell<StdRng>,
    now_ms: Cell<i64>,
    registry: RefCell<Tables>,
    standby: RefCell<Tables>,
    /// Of the registry: counts its promotions.
    timeline: Cell<i32>,
    /// The clock of the server that the registry is on.
    registry_offset_ms: Cell<i64>,
    nodes: Vec<RefCell<Node>>,
    messages: RefCell<Vec<Message>>,
    issued: RefCell<HashMap<i64, usize>>,
    milliseconds: RefCell<HashMap<(u16, i64), (usize, u64)>>,
    trouble: RefCell<Option<String>>,
    depth: Cell<u32>,
    changes_of_holder: Cell<u32>,
}

impl Running {
    fn act(&mut self, action: Action) {
        match action {
            Action::Close => {
                self.generator.close();
            }
            Action::Open {
                worker_id,
                above_ms,
            } => self.generator.open(worker_id, above_ms.max(0)),
            Action::SetLease {
                until_boot_ms,
                recorded_until_ms,
            } => {
                self.lease_until_boot_ms = until_boot_ms;
                self.recorded_until_ms = recorded_until_ms;
            }
            Action::StopLeasing => self.holder = None,
            Action::Hurry => self.holder.as_mut().unwrap().hurry(),
            Action::SetLead(lead) => self.generator.set_lead(lead),
            Action::ShowFloor(_) | Action::ShowLead(_) | Action::Wake | Action::Log(_) => {}
        }
    }
}

impl World {
    fn new(seed: u64, broken: Broken) -> Self {
        let node = |number: usize| {
            RefCell::new(Node {
                name: u32::try_from(number).unwrap(),
                disk: Disk::default(),
                boot: u32::try_from(number).unwrap() * 1000,
                wall_offset_ms: 0,
                frozen_until_ms: 0,
                cut_off_until_ms: 0,
                running: None,
                run: 0,
            })
        };
        Self {
            broken,
            random: RefCell::new(StdRng::seed_from_u64(seed)),
            now_ms: Cell::new(1_000_000),
            registry: RefCell::new(Tables::new()),
            standby: RefCell::new(Tables::new()),
            timeline: Cell::new(1),
            registry_offset_ms: Cell::new(BOUNDS.max_skew_ms / 2),
            nodes: (0..NODES).map(node).collect(),
            messages: RefCell::default(),
            issued: RefCell::default(),
            milliseconds: RefCell::default(),
            trouble: RefCell::default(),
            depth: Cell::new(0),
            changes_of_holder: Cell::new(0),
        }
    }

    fn chance(&self, one_in: u32) -> bool {
        self.random.borrow_mut().random_range(0..one_in) == 0
    }

    fn within(&self, max: i64) -> i64 {
        self.random.borrow_mut().random_range(0..=max)
    }

    fn token(&self) -> i64 {
        self.random.borrow_mut().random_range(1..i64::MAX)
    }

    fn clocks(&self, node: &Node) -> Clocks {
        Clocks {
            boot_ms: self.now_ms.get(),
            wall_ms: self.now_ms.get() + node.wall_offset_ms,
        }
    }

    fn registry_ms(&self) -> i64 {
        self.now_ms.get() + self.registry_offset_ms.get()
    }

    /// The standby of the registry is promoted, and its clock is another one. What it has not
    /// received is forgotten.
    fn promote(&self) {
        let standby = self.standby.borrow().clone();
        *self.registry.borrow_mut() = standby;
        self.timeline.set(self.timeline.get() + 1);
        self.set_registry_clock(-BOUNDS.max_skew_ms / 2);
    }

    /// Servers of the registry differ by no more than clocks may.
    fn set_registry_clock(&self, extreme_ms: i64) {
        let most = BOUNDS.max_skew_ms;
        let any_ms = self.within(most) - most / 2;
        let offset_ms = if self.chance(2) { extreme_ms } else { any_ms };
        self.registry_offset_ms.set(offset_ms);
    }

    fn start(&self, node: &mut Node) {
        if node.disk.copied {
            node.disk.reserved = node.disk.reserved.map(|reserved| Reserved {
                original: false,
                ..reserved
            });
        }
        node.running = Some(Running {
            keeper: Keeper::new(0, layout(), 0, false),
            holder: None,
            generator: Generator::new(layout()),
            shown: State::Starting,
            lease_until_boot_ms: 0,
            recorded_until_ms: 0,
            wanted: false,
            asked: None,
            heard: Effect::Keep,
        });
        node.run += 1;
    }

    fn stop(node: &mut Node, clean: bool) {
        let Some(running) = node.running.take() else {
            return;
        };
        if clean && running.generator.is_open() {
            let last = running.generator.close();
            node.disk.reserved = Some(Reserved {
                until_ms: last.ms,
                unknown_since_ms: running.generator.lead().unknown_since_ms(),
                clean: true,
                original: true,
            });
            node.disk.lease_is_clean = true;
        }
        node.run += 1;
    }

    /// The lease of a disk, for a server that starts to lease.
    fn begin_leasing(&self, node: &mut Node, own: bool) -> LeaseHolder {
        let disk = &mut node.disk;
        let found = FoundFile {
            original: !disk.copied,
            same_boot: disk.boot == node.boot || self.broken == Broken::CopiedDisk,
            clean: disk.lease_is_clean,
        };
        let lease = if own {
            disk.lease.of_file(found)
        } else {
            Lease::default()
        };
        disk.lease = lease;
        disk.lease_is_clean = false;
        disk.copied = false;
        disk.boot = node.boot;
        LeaseHolder::new(lease)
    }

    /// A turn of the launcher of a server.
    fn turn(&self, number: usize) {
        let node = &mut *self.nodes[number].borrow_mut();
        let Some(running) = &mut node.running else {
            return;
        };
        let mut input = Input::Look(Look {
            configured: Configured::Leased(match running.holder {
                Some(_) => keeper::Registry::Same,
                None => keeper::Registry::Other,
            }),
            in_recovery: false,
            resets: 0,
            wanted: core::mem::take(&mut running.wanted),
            registry_is_here: false,
            led: false,
            reservation_ms: TERMS.reservation_ms,
            max_lead_ms: TERMS.configured_lead_ms,
            max_burst_ms: 0,
        });
        loop {
            let clocks = self.clocks(node);
            let running = node.running.as_mut().unwrap();
            let seen = Seen {
                now_ms: clocks.wall_ms,
                boot_ms: clocks.boot_ms,
                last_ms: running.generator.last().ms,
                last_worker_id: None,
                lead: running.generator.lead(),
                reserved_until_ms: running.generator.reserved_until(),
            };
            let step = running.keeper.step(&seen, input);
            for action in step.actions {
                running.act(action);
            }
            running.shown = step.shown;
            input = match step.then {
                Then::Read => Input::File(self.read(&node.disk)),
                Then::Lease { begin } => {
                    if let Some(own) = begin {
                        let holder = self.begin_leasing(node, own);
                        node.running.as_mut().unwrap().holder = Some(holder);
                    }
                    Input::Lease {
                        effect: self.lease(number, node),
                        again_ms: None,
                    }
                }
                Then::Reserve {
                    until_ms,
                    unknown_since_ms,
                    ..
                } => Input::Written(self.write(node, until_ms, unknown_since_ms)),
                Then::Wait(_) => return,
            };
        }
    }

    fn read(&self, disk: &Disk) -> File {
        let found = disk.reserved.map(|reserved| keeper::Found::Contents {
            stored: Stored {
                reserved_until_ms: if self.broken == Broken::OwnFloor {
                    0
                } else {
                    reserved.until_ms
                },
                epoch_ms: 0,
                layout: layout(),
                system_identifier: 1,
                timeline: 1,
                original: reserved.original,
                clean: reserved.clean,
                unknown_since_ms: reserved.unknown_since_ms,
                left_behind_until_ms: None,
            },
            worker_id: None,
            retired: Vec::new(),
        });
        File {
            system_identifier: 1,
            timeline: 1,
            found: if self.chance(50) {
                keeper::Found::Unreadable("the disk".into())
            } else {
                found.unwrap_or(keeper::Found::Nothing)
            },
        }
    }

    fn write(
        &self,
        node: &mut Node,
        until_ms: i64,
        unknown_since_ms: Option<i64>,
    ) -> Result<Option<String>, String> {
        let fails = self.chance(50);
        let is_late = self.broken == Broken::Durable && node.disk.reserved.is_some();
        // Also what has failed may be there.
        if (!fails || self.chance(2)) && !is_late {
            node.disk.reserved = Some(Reserved {
                until_ms,
                unknown_since_ms,
                clean: false,
                original: true,
            });
        }
        if fails {
            return Err("the disk is full".into());
        }
        node.running.as_mut().unwrap().generator.reserve(until_ms);
        Ok(None)
    }

    /// What is due of the lease. It is written down before it is used, or asked for.
    fn lease(&self, number: usize, node: &mut Node) -> Effect {
        let clocks = self.clocks(node);
        let running = node.running.as_mut().unwrap();
        let holder = running.holder.as_mut().unwrap();
        let mut effect = core::mem::replace(&mut running.heard, Effect::Keep);
        if running.asked.is_some_and(|until| clocks.boot_ms > until) {
            running.asked = None;
            effect = holder.fail(clocks.boot_ms, RULES);
        }
        // Somebody tells it to ask at once.
        if holder.grant().is_none() && self.chance(4) {
            holder.hurry();
        }
        if effect == Effect::Keep {
            match holder.step(clocks.boot_ms) {
                Step::Close => effect = Effect::Close(Refusal::LeaseEnded),
                Step::Ask => {
                    holder.prepare(|| self.token());
                    let draft = holder.ask(clocks.boot_ms, RULES);
                    running.asked = Some(clocks.boot_ms + 500);
                    let is_cut_off = self.now_ms.get() < node.cut_off_until_ms;
                    if !is_cut_off && !self.chance(20) {
                        let message = Message {
                            node: number,
                            run: node.run,
                            draft,
                            sent: None,
                            at_ms: self.now_ms.get() + self.delay(),
                            answer: None,
                        };
                        self.messages.borrow_mut().push(message);
                    }
                }
                Step::Wait(_) => {}
            }
        }
        node.disk.lease = *holder.lease();
        match effect {
            Effect::Use { mut grant, anew } => {
                if self.broken == Broken::Reserved {
                    grant.reserved_until_ms = FOR_EVER;
                }
                Effect::Use { grant, anew }
            }
            effect => effect,
        }
    }

    fn delay(&self) -> i64 {
        if self.chance(10) {
            // So late that the next question overtakes it, or the lease has ended.
            self.within(5_000)
        } else {
            self.within(20)
        }
    }

    /// There is a connection to the registry, for a question that may be due for long.
    fn send(&self, mut message: Message) {
        if let Ok(node) = self.nodes[message.node].try_borrow() {
            let Some(running) = &node.running else { return };
            if node.run != message.run {
                return;
            }
            let clocks = self.clocks(&node);
            let mut question = message.draft.at(clocks.boot_ms);
            if self.broken == Broken::HeldAfterTheEnd {
                let held = running.holder.as_ref().unwrap().lease().grant;
                question.held = held.map(|g| Held {
                    worker_id: g.worker_id,
                    reserved_until_ms: g.reserved_until_ms,
                });
            }
            message.sent = Some((question, clocks));
            message.at_ms += self.delay();
        } else {
            message.at_ms += 1;
        }
        self.messages.borrow_mut().push(message);
    }

    /// What arrives somewhere now.
    fn deliver(&self) {
        loop {
            let now = self.now_ms.get();
            let arrived = {
                let mut messages = self.messages.borrow_mut();
                let node_of = |message: &Message| &self.nodes[message.node];
                let position = messages.iter().position(|message| {
                    let busy = || match node_of(message).try_borrow_mut() {
                        Ok(node) => now < node.frozen_until_ms,
                        Err(_) => true,
                    };
                    message.at_ms <= now && !(message.answer.is_some() && busy())
                });
                position.map(|position| messages.swap_remove(position))
            };
            let Some(mut message) = arrived else { return };
            let Some((question, sent)) = message.sent else {
                self.send(message);
                continue;
            };
            let name = self.nodes[message.node].try_borrow().map(|node| node.name);
            let Some(reply) = message.answer.take() else {
                let Ok(name) = name else {
                    message.at_ms += 1;
                    self.messages.borrow_mut().push(message);
                    continue;
                };
                let here = Here {
                    place: place(self.timeline.get()),
                    server_start: 1,
                    epoch_ms: 0,
                    layout: Layout::new(41, 2, 12).unwrap(),
                    arrived_ms: self.registry_ms(),
                    now: Clocks {
                        boot_ms: now,
                        wall_ms: self.registry_ms(),
                    },
                    format_ms: |ms| ms.to_string(),
                };
                let last = self.registry.borrow().clone();
                let reply =
                    self.registry
                        .borrow_mut()
                        .answer(self.broken, name, &question, sent, &here);
                let registry = self.registry.borrow();
                let mut given = false;
                for (before, after) in last.rows.iter().zip(&registry.rows) {
                    let (Some(before), Some(after)) = (before, after) else {
                        assert!(before.is_none(), "a row is gone");
                        continue;
                    };
                    let changed = before.holder.is_some() && before.holder != after.holder;
                    given |= changed;
                    self.changes_of_holder
                        .set(self.changes_of_holder.get() + u32::from(changed));
                    assert!(before.reserved_until_ms <= after.reserved_until_ms);
                }
                drop(registry);
                if given && self.chance(2) {
                    // The standby has received all but this, and whoever had the worker id
                    // before is there again.
                    *self.standby.borrow_mut() = last;
                    self.promote();
                    for node in &self.nodes {
                        if let Ok(mut node) = node.try_borrow_mut() {
                            node.frozen_until_ms = now;
                            node.cut_off_until_ms = now;
                        }
                    }
                }
                // Committed, and nobody is told.
                if !self.chance(3) {
                    message.answer = Some(reply);
                    message.at_ms = now + self.delay();
                    self.messages.borrow_mut().push(message);
                }
                continue;
            };
            let node = &mut *self.nodes[message.node].borrow_mut();
            let clocks = self.clocks(node);
            let Some(running) = &mut node.running else {
                continue;
            };
            if node.run != message.run || running.asked.take().is_none() {
                continue;
            }
            let answer = reply.heard(sent, clocks).unwrap();
            let holder = running.holder.as_mut().unwrap();
            running.heard = holder.hear(&question, &answer, RULES, || self.token());
        }
    }

    /// A call of a session. While it reads the clock, anything may happen.
    fn issue(&self, number: usize) {
        let nested = self.depth.get();
        let (id, run) = {
            let Ok(node) = self.nodes[number].try_borrow() else {
                return;
            };
            let Some(running) = &node.running else {
                return;
            };
            let until = running.lease_until_boot_ms;
            let boot = self.now_ms.get();
            let wall_offset_ms = node.wall_offset_ms;
            let id = running.generator.next(
                || {
                    let read = self.now_ms.get() + wall_offset_ms;
                    if nested == 0 && self.chance(50) {
                        // It stops here, and the others go on. (This server cannot: it is
                        // borrowed.)
                        self.depth.set(1);
                        for _ in 0..self.within(400) {
                            self.happen();
                        }
                        self.depth.set(0);
                    }
                    read
                },
                || boot < until,
                |_| 0,
            );
            (id, node.run)
        };
        if id == Err(Stall::Unreserved) {
            self.renew_late(number);
        }
        match id {
            Ok(issued) => self.check(number, run, issued.id),
            Err(
                Stall::Closed
                | Stall::Unreserved
                | Stall::Unleased
                | Stall::TooFarAhead(_)
                | Stall::Full(_),
            ) => {}
            Err(Stall::EndOfTime) => panic!("the end of time"),
        }
    }

    /// A session asks for a renewal, or makes one in place of a launcher that is late.
    fn renew_late(&self, number: usize) {
        let node = &mut *self.nodes[number].borrow_mut();
        let clocks = self.clocks(node);
        let Some(running) = &mut node.running else {
            return;
        };
        running.wanted = true;
        let may_issue = clocks.boot_ms < running.lease_until_boot_ms;
        if !running.generator.is_open() || !may_issue || self.chance(2) {
            return;
        }
        let generator = &running.generator;
        let (last, lead) = (generator.last(), generator.lead());
        let until_ms = late_renewal(
            clocks.wall_ms,
            last.ms,
            Terms {
                configured_lead_ms: lead.max_ms,
                ..TERMS
            },
            generator.reserved_until(),
            running.recorded_until_ms,
        );
        if let Some(until_ms) = until_ms {
            let _ = self.write(node, until_ms, lead.unknown_since_ms());
        }
    }

    fn check(&self, number: usize, run: u64, id: i64) {
        let parts = layout().decompose(id).unwrap();
        if let Some(other) = self.issued.borrow_mut().insert(id, number) {
            *self.trouble.borrow_mut() = Some(format!("{parts:?} by {other} and {number}"));
        }
        let here = (number, run);
        let key = (parts.worker_id, parts.ms);
        let before = *self.milliseconds.borrow_mut().entry(key).or_insert(here);
        if before != here {
            *self.trouble.borrow_mut() = Some(format!("{parts:?} by {before:?} and {here:?}"));
        }
    }

    /// Something happens.
    fn happen(&self) {
        let number = usize::try_from(self.within(3)).unwrap();
        self.now_ms.set(self.now_ms.get() + self.within(8));
        self.deliver();
        let frozen = |node: &Node| self.now_ms.get() < node.frozen_until_ms;
        let Ok(mut node) = self.nodes[number].try_borrow_mut() else {
            return;
        };
        if frozen(&node) {
            return;
        }
        // What is to come of a crash is looked for where that is what is broken.
        let crashes = match self.broken {
            Broken::Durable | Broken::OwnFloor => 100,
            _ => 81,
        };
        match self.within(1000) {
            0..=3 => node.frozen_until_ms = self.now_ms.get() + self.within(8_000),
            4..=6 => {
                let clean = self.chance(2);
                Self::stop(&mut node, clean);
                if self.chance(2) {
                    node.boot += 1;
                }
            }
            7 => node.wall_offset_ms = self.within(600) - 300,
            8 => node.wall_offset_ms = self.within(20_000) - 10_000,
            9..=14 => node.wall_offset_ms = 0,
            15 => {
                // The disk is lost.
                Self::stop(&mut node, false);
                node.disk = Disk::default();
            }
            16 => {
                // The disk of another server, copied while that runs or not, and its name.
                let other = usize::try_from(self.within(3)).unwrap();
                if let Ok(mut other) = self.nodes[other].try_borrow_mut()
                    && !frozen(&other)
                {
                    Self::stop(&mut node, false);
                    node.disk = other.disk;
                    node.name = other.name;
                    node.boot += 1;
                    // What `Lease::of_file` does not see is an original that goes on from its
                    // file without a start of its machine.
                    other.boot += u32::from(other.running.is_none());
                }
            }
            17..=20 => {
                Self::stop(&mut node, false);
                node.name = u32::try_from(number).unwrap();
                node.disk.copied = true;
            }
            21..=24 => {
                *self.standby.borrow_mut() = self.registry.borrow().clone();
                self.set_registry_clock(BOUNDS.max_skew_ms / 2);
            }
            25 if self.broken != Broken::Nothing || self.chance(2) => {
                // Renewals of less than a lease are forgotten.
                self.promote();
            }
            26..=29 => {
                let id = usize::try_from(self.within(2)).unwrap();
                let mut registry = self.registry.borrow_mut();
                let row = &mut registry.rows[id];
                *row = row.take().map(Row::released);
                // A release that is forgotten in a failover is not provided for.
                *self.standby.borrow_mut() = registry.clone();
            }
            30..=35 => {
                let id = usize::try_from(self.within(2)).unwrap();
                let retired = self.chance(2);
                let mut registry = self.registry.borrow_mut();
                let row = &mut registry.rows[id];
                row.get_or_insert_with(|| Row {
                    worker_id: u16::try_from(id).unwrap(),
                    ..Row::default()
                })
                .retired = retired;
                *self.standby.borrow_mut() = registry.clone();
            }
            36..=80 if node.running.is_none() => self.start(&mut node),
            event @ 81.. if event <= crashes && node.running.is_some() => {
                // A crash, and the clock is set back before the next start.
                Self::stop(&mut node, false);
                node.wall_offset_ms -= self.within(TERMS.reservation_ms);
                self.start(&mut node);
            }
            // It cannot reach the registry, until after the end of its lease.
            101..=104 if node.running.is_some() => {
                node.cut_off_until_ms = self.now_ms.get() + self.within(2 * BOUNDS.max_lease_ms);
            }
            _ => {
                let up = node.running.is_some();
                drop(node);
                if up && self.chance(2) {
                    self.turn(number);
                } else if up {
                    self.issue(number);
                }
            }
        }
    }
}

/// What went wrong, and how much was issued.
fn run(seed: u64, broken: Broken) -> (Option<String>, usize, u32) {
    let world = World::new(seed, broken);
    for _ in 0..STEPS {
        world.happen();
        if world.trouble.borrow().is_some() {
            break;
        }
    }
    let issued = world.issued.borrow().len();
    (
        world.trouble.into_inner(),
        issued,
        world.changes_of_holder.get(),
    )
}

#[test]
fn no_worker_id_and_millisecond_comes_twice() {
    let seed = support::seed();
    let (mut issued, mut changes) = (0, 0);
    for round in 0..support::rounds(200, 5_000) {
        let (trouble, more, changed) = run(seed.wrapping_add(round), Broken::Nothing);
        assert_eq!(trouble, None, "LEAF_ID_SEED={}", seed.wrapping_add(round));
        issued += more;
        changes += changed;
    }
    println!("{issued} ids, {changes} changes of a holder");
    assert!(
        issued > 10_000 && changes > 100,
        "the simulation does nothing"
    );
}

#[test]
fn every_rule_is_needed() {
    let seed = support::seed();
    let rules = [
        Broken::Floor,
        Broken::FloorOfLostAnswer,
        Broken::Token,
        Broken::Reserved,
        Broken::HeldAfterTheEnd,
        Broken::GivenAtTheEnd,
        Broken::Grace,
        Broken::CopiedDisk,
        Broken::Durable,
        Broken::OwnFloor,
    ];
    let is_noticed = |broken| {
        let noticed = (0..60_000).find_map(|round| {
            let trouble = run(seed.wrapping_add(round), broken).0?;
            Some((round, trouble))
        });
        println!("{broken:?}: {noticed:?}");
        noticed.is_some()
    };
    let unnoticed: Vec<_> = thread::scope(|scope| {
        let runs = rules.map(|broken| (broken, scope.spawn(move || is_noticed(broken))));
        runs.into_iter()
            .filter_map(|(broken, run)| (!run.join().unwrap()).then_some(broken))
            .collect()
    });
    assert!(unnoticed.is_empty(), "not noticed: {unnoticed:?}");
}
