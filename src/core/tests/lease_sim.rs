//! Seeded simulation of servers that lease worker ids from one registry, with fewer worker ids than
//! servers, so that they change hands. The launcher's state machine, the lease, the registry and
//! the word are the code that ships; clocks, disks, messages and their failures are simulated.
//!
//! Would catch: two servers, or two runs of one, that issue the same worker id and millisecond,
//! whatever their clocks do, wherever they stop and resume, whichever answers are lost, and
//! although the registry loses what its standby had not received. Each rule that this depends on is
//! broken once, and the simulation must fail.
//!
//! One file, because servers, disks, registry and the broken rules form one world with one seed.

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
use leaf_id_core::snowflake::{Full, Generator, Stall};
use leaf_id_core::state::{Refusal, State};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const NODES: usize = 4;
/// Number of worker ids in use, out of those in the registry's layout.
const WORKER_IDS: u16 = 3;
const RULES: Rules = Rules {
    lease_ms: 3_000,
    max_skew_ms: 200,
};
/// Max lead that servers request.
const MAX_LEAD_MS: i64 = 300;
/// Shorter leases than servers request.
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
/// Few ids per millisecond, so that some milliseconds are full.
const LAYOUT: &str = "41/10/2";
const STEPS: usize = 6_000;

/// A broken rule that must make the simulation fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// A new holder gets no floor above the previous one's reservation.
    Floor,
    /// It gets the floor only once, not again after a lost answer.
    FloorOfLostAnswer,
    /// A requester without a valid token is accepted as the holder.
    Token,
    /// The reservation exceeds the time recorded by the registry.
    Reserved,
    /// `held` is sent after the end of the lease.
    HeldAfterTheEnd,
    /// A worker id is reassigned as soon as its lease has ended by this registry's clock.
    GivenAtTheEnd,
    /// The registry assigns worker ids right after it has lost leases.
    Grace,
    /// A copied disk presents the token of its original.
    CopiedDisk,
    /// A reservation is used before it is on disk.
    Durable,
    /// The last run's reservation is not waited out.
    OwnFloor,
}

/// Tables and place of a registry.
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

    /// The result of `decide`, with one rule broken.
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
        // Every requested lock is granted.
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

/// A request before or after it is sent, or its answer.
struct Message {
    node: usize,
    /// The run that sent it; answers to other runs are lost.
    run: u64,
    draft: Draft,
    /// The request as sent, once connected.
    sent: Option<(Question, Clocks)>,
    /// Time of sending or arrival.
    at_ms: i64,
    answer: Option<Reply>,
}

/// The reservation file.
#[derive(Clone, Copy)]
struct Reserved {
    until_ms: i64,
    clean: bool,
    original: bool,
}

/// Contents of a server's disk.
#[derive(Clone, Copy, Default)]
struct Disk {
    lease: Lease,
    lease_is_clean: bool,
    reserved: Option<Reserved>,
    boot: u32,
    copied: bool,
}

/// State of a running server.
struct Running {
    keeper: Keeper,
    /// Set once the keeper has begun to lease.
    holder: Option<LeaseHolder>,
    generator: Generator,
    /// State shown to sessions.
    shown: State,
    lease_until_boot_ms: i64,
    recorded_until_ms: i64,
    /// A session found the reservation used up.
    wanted: bool,
    /// A full millisecond that a session waits for.
    full: Option<Full>,
    /// The pending request, and its timeout.
    asked: Option<i64>,
    /// Effect of an answer that has arrived.
    heard: Effect,
}

struct Node {
    /// Node name: a copy of a disk has that of its original.
    name: u32,
    disk: Disk,
    boot: u32,
    wall_offset_ms: i64,
    frozen_until_ms: i64,
    /// None of its requests arrives before.
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
    /// Timeline of the registry; counts its promotions.
    timeline: Cell<i32>,
    /// Clock offset of the registry's server.
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

    /// Promotes the registry's standby, with another clock. What it has not received is lost.
    fn promote(&self) {
        let standby = self.standby.borrow().clone();
        *self.registry.borrow_mut() = standby;
        self.timeline.set(self.timeline.get() + 1);
        self.set_registry_clock(-BOUNDS.max_skew_ms / 2);
    }

    /// Sets the registry's clock; its servers differ by at most the max skew.
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
            full: None,
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
                clean: true,
                original: true,
            });
            node.disk.lease_is_clean = true;
        }
        node.run += 1;
    }

    /// The lease from a disk, for a server that begins to lease.
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

    /// Runs a turn of a server's launcher.
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
                Then::Reserve { until_ms, .. } => Input::Written(self.write(node, until_ms)),
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
                left_behind_until_ms: None,
            },
            worker_id: None,
            retired: Vec::new(),
        });
        File {
            system_identifier: 1,
            timeline: 1,
            pristine: false,
            found: if self.chance(50) {
                keeper::Found::Unreadable("the disk".into())
            } else {
                found.unwrap_or(keeper::Found::Nothing)
            },
        }
    }

    fn write(&self, node: &mut Node, until_ms: i64) -> Result<Option<String>, String> {
        let fails = self.chance(50);
        let is_late = self.broken == Broken::Durable && node.disk.reserved.is_some();
        // A failed write may still have reached the disk.
        if (!fails || self.chance(2)) && !is_late {
            node.disk.reserved = Some(Reserved {
                until_ms,
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

    /// Advances the lease. It is written to disk before it is used and before a request.
    fn lease(&self, number: usize, node: &mut Node) -> Effect {
        let clocks = self.clocks(node);
        let running = node.running.as_mut().unwrap();
        let holder = running.holder.as_mut().unwrap();
        let mut effect = core::mem::replace(&mut running.heard, Effect::Keep);
        if running.asked.is_some_and(|until| clocks.boot_ms > until) {
            running.asked = None;
            effect = holder.fail(clocks.boot_ms, RULES);
        }
        // Something makes a request due at once.
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
            // Late enough for the next request to overtake it, or for the lease to end.
            self.within(5_000)
        } else {
            self.within(20)
        }
    }

    /// Sends a request, which may have been due for long, once connected.
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

    /// Delivers the messages that arrive now.
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
                    // The standby has received everything but this, and the previous holder is
                    // back.
                    *self.standby.borrow_mut() = last;
                    self.promote();
                    for node in &self.nodes {
                        if let Ok(mut node) = node.try_borrow_mut() {
                            node.frozen_until_ms = now;
                            node.cut_off_until_ms = now;
                        }
                    }
                }
                // Committed, but the answer is lost.
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

    /// A session's call. Anything may happen while it reads the clock.
    fn issue(&self, number: usize) {
        let nested = self.depth.get();
        let (id, run) = {
            let Ok(mut node) = self.nodes[number].try_borrow_mut() else {
                return;
            };
            let node = &mut *node;
            let Some(running) = &mut node.running else {
                return;
            };
            let until = running.lease_until_boot_ms;
            let boot = self.now_ms.get();
            let wall_offset_ms = node.wall_offset_ms;
            let id = running.generator.next(
                || {
                    let read = self.now_ms.get() + wall_offset_ms;
                    if nested == 0 && self.chance(50) {
                        // It stalls here while the others continue. (Only the others: this server
                        // is borrowed.)
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
                running.full,
            );
            running.full = match id {
                Err(Stall::Full(full)) => Some(full),
                _ => None,
            };
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

    /// A session requests a renewal, or renews in place of a late launcher.
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
            let _ = self.write(node, until_ms);
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

    /// Runs a random event.
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
        // Crashes are frequent if the broken rule concerns them.
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
                // The disk of another server is copied, running or not, along with its name.
                let other = usize::try_from(self.within(3)).unwrap();
                if let Ok(mut other) = self.nodes[other].try_borrow_mut()
                    && !frozen(&other)
                {
                    Self::stop(&mut node, false);
                    node.disk = other.disk;
                    node.name = other.name;
                    node.boot += 1;
                    // `Lease::of_file` cannot detect an original that continues from its file
                    // without a reboot.
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
                // Less than a lease of renewals is lost.
                self.promote();
            }
            26..=29 => {
                let id = usize::try_from(self.within(2)).unwrap();
                let mut registry = self.registry.borrow_mut();
                let row = &mut registry.rows[id];
                *row = row.take().map(Row::released);
                // Losing a release in a failover is not covered.
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
            // The registry is unreachable until after the end of the lease.
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

/// Runs a simulation: the failure, if any, and the amount of work.
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
