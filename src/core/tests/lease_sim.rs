//! A seeded simulation of servers that lease worker ids from one registry: there are fewer
//! ids than servers, so that they go from hand to hand.
//!
//! Would catch: two servers, or two runs of one, that issue the same worker id and
//! millisecond twice, whatever their clocks do, wherever they stop and go on, whichever
//! answers are lost, and though the registry forgets what its standby had not received.
//! Each rule that this rests on is broken once, and the simulation must notice.

#![cfg(not(leaf_id_loom))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics fails"
)]

mod support;

use core::cell::{Cell, RefCell};
use std::collections::HashMap;

use leaf_id_core::lease::{
    Answer, Clocks, Found, Grant, Kind, Lease, Question, Rules, Status, Step, Tenant, Verdict,
};
use leaf_id_core::snowflake::{Generator, Parts, Stall};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const NODES: usize = 4;
const WORKER_IDS: usize = 3;
const RULES: Rules = Rules {
    lease_ms: 3_000,
    max_skew_ms: 200,
};
const RESERVATION_MS: i64 = 300;
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
    /// The registry gives away at once after it has forgotten.
    Grace,
    /// A copied disk shows the token of its original.
    CopiedDisk,
}

/// A row of the registry.
#[derive(Clone, Copy, Default)]
struct Row {
    holder: Option<u32>,
    token: i64,
    floor_ms: i64,
    reserved_ms: i64,
    lease_until_ms: i64,
    retired: bool,
}

/// As sql/workers.sql decides.
#[derive(Clone, Default)]
struct Registry {
    rows: [Row; WORKER_IDS],
    moved: bool,
    grace_until_ms: i64,
}

impl Registry {
    fn answer(
        &mut self,
        broken: Broken,
        node: u32,
        asked: &Question,
        sent: Clocks,
        now: i64,
    ) -> Answer {
        let mut answer = Answer {
            status: Status::Clock,
            worker_id: 0,
            floor_ms: 0,
            reserved_until_ms: 0,
            registry_ms: now,
            peers: 0,
            peers_offset_ms: 0,
            sent,
            received: sent,
        };
        if (sent.wall_ms - now).abs() > RULES.max_skew_ms {
            return answer;
        }
        let own = self.rows.iter().position(|row| row.holder == Some(node));
        let chosen = match asked.kind {
            Kind::Renew => asked.held.map(|(id, _)| usize::from(id)),
            Kind::Claim => own,
        };
        let row = chosen.map(|id| self.rows[id]).unwrap_or_default();
        let known = row.holder == Some(node)
            && row.token != 0
            && (broken == Broken::Token || [asked.token, asked.next_token].contains(&row.token));
        let live = now < row.lease_until_ms;
        let usable = own.is_some() && !row.retired;
        let grace = now < self.grace_until_ms && broken != Broken::Grace;
        let moved_floor = if self.moved {
            now + RULES.max_skew_ms
        } else {
            0
        };
        let above_all = |row: &Row| row.reserved_ms.max(now + RULES.max_skew_ms);
        // The worker id, the floor of now, and whether the holder stays.
        let granted = if asked.kind == Kind::Renew {
            answer.status = Status::Lost;
            match chosen.filter(|_| known) {
                Some(_) if row.retired => {
                    answer.status = Status::Retired;
                    None
                }
                Some(_) if grace && !live => {
                    answer.status = Status::Grace;
                    None
                }
                Some(id) => Some((id, if live { 0 } else { moved_floor }, true)),
                None => None,
            }
        } else {
            let enters = grace.then_some(asked.held).flatten().filter(|(id, until)| {
                let row = &self.rows[usize::from(*id)];
                own.is_none_or(|own| own == usize::from(*id))
                    && *until >= row.reserved_ms + i64::from(own.is_none())
                    && (own.is_some() || now >= row.lease_until_ms)
            });
            if let Some((id, until)) = enters {
                let row = &mut self.rows[usize::from(id)];
                row.reserved_ms = row.reserved_ms.max(until);
                Some((usize::from(id), 0, own.is_some()))
            } else if own.is_some() && live && !known {
                answer.status = Status::Held;
                None
            } else if grace && !(usable && live) {
                answer.status = Status::Grace;
                None
            } else if let Some(id) = own.filter(|_| usable) {
                let floor = match (known, live) {
                    (true, true) => 0,
                    (true, false) => moved_floor,
                    (false, _) => above_all(&row),
                };
                Some((id, floor, known))
            } else {
                answer.status = Status::Full;
                let free = self
                    .rows
                    .iter()
                    .position(|row| row.reserved_ms == 0 && !row.retired);
                let ended = |(_, row): &(usize, &Row)| now >= row.lease_until_ms && !row.retired;
                let rows = self.rows.iter().enumerate().filter(ended);
                let oldest = rows.min_by_key(|(_, row)| row.lease_until_ms);
                free.map(|id| (id, moved_floor, false))
                    .or_else(|| oldest.map(|(id, row)| (id, above_all(row), false)))
            }
        };
        let Some((id, floor, stays)) = granted else {
            return answer;
        };
        for (other, row) in self.rows.iter_mut().enumerate() {
            if other != id && row.holder == Some(node) {
                (row.holder, row.token) = (None, 0);
            }
        }
        let row = &mut self.rows[id];
        let floor = match broken {
            Broken::Floor => 0,
            Broken::FloorOfLostAnswer => floor,
            _ if stays => floor.max(row.floor_ms),
            _ => floor,
        };
        let until = (sent.wall_ms + asked.lease_ms).min(now + asked.lease_ms + RULES.max_skew_ms);
        *row = Row {
            holder: Some(node),
            token: asked.next_token,
            floor_ms: floor,
            reserved_ms: row.reserved_ms.max(until),
            lease_until_ms: now + asked.lease_ms,
            retired: false,
        };
        Answer {
            status: Status::Granted,
            worker_id: u16::try_from(id).unwrap(),
            floor_ms: floor,
            reserved_until_ms: row.reserved_ms,
            ..answer
        }
    }
}

/// A question on its way, or its answer.
#[derive(Clone, Copy)]
struct Message {
    node: usize,
    /// The run that has sent it: an answer to another one is lost.
    run: u64,
    question: Question,
    sent: Clocks,
    /// When it arrives.
    at_ms: i64,
    answer: Option<Answer>,
}

/// What is on a server's disk.
#[derive(Clone, Copy, Default)]
struct Disk {
    lease: Lease,
    reserved_until_ms: i64,
    clean: bool,
    boot: u32,
    copied: bool,
}

struct Node {
    /// As the registry knows it: a copy of a disk has the name of its original.
    name: u32,
    disk: Disk,
    boot: u32,
    wall_offset_ms: i64,
    frozen_until_ms: i64,
    /// `None` while it is down.
    tenant: Option<Tenant>,
    generator: Generator,
    floor_ms: i64,
    /// Opened with, and what the registry has recorded of it.
    open: Option<Grant>,
    run: u64,
    /// The question that is under way, and when it is given up.
    asked: Option<i64>,
}

struct World {
    broken: Broken,
    random: RefCell<StdRng>,
    now_ms: Cell<i64>,
    registry: RefCell<Registry>,
    standby: RefCell<Registry>,
    nodes: Vec<RefCell<Node>>,
    messages: RefCell<Vec<Message>>,
    issued: RefCell<HashMap<i64, usize>>,
    milliseconds: RefCell<HashMap<(u16, i64), (usize, u64)>>,
    trouble: RefCell<Option<String>>,
    depth: Cell<u32>,
    changes_of_holder: Cell<u32>,
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
                tenant: None,
                generator: Generator::new(),
                floor_ms: 0,
                open: None,
                run: 0,
                asked: None,
            })
        };
        Self {
            broken,
            random: RefCell::new(StdRng::seed_from_u64(seed)),
            now_ms: Cell::new(1_000_000),
            registry: RefCell::default(),
            standby: RefCell::default(),
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

    fn start(&self, node: &mut Node) {
        let clocks = self.clocks(node);
        let disk = node.disk;
        let found = Found {
            original: !disk.copied,
            same_boot: disk.boot == node.boot || self.broken == Broken::CopiedDisk,
            clean: disk.clean,
        };
        node.generator = Generator::new();
        let never = disk.reserved_until_ms == 0;
        let copied = disk.copied || never;
        node.floor_ms = if copied {
            disk.reserved_until_ms.max(clocks.wall_ms) + RESERVATION_MS
        } else {
            disk.reserved_until_ms
        };
        let lease = disk.lease.of_file(found);
        node.tenant = Some(Tenant::new(lease));
        node.disk.lease = lease;
        node.disk.clean = false;
        node.disk.copied = false;
        node.disk.boot = node.boot;
        node.disk.reserved_until_ms = node.floor_ms;
        node.open = None;
        node.asked = None;
        node.run += 1;
    }

    fn stop(node: &mut Node, clean: bool) {
        if node.tenant.take().is_none() {
            return;
        }
        if clean && node.open.is_some() {
            node.disk.reserved_until_ms = node.generator.close().ms;
        }
        node.disk.clean = clean;
        node.open = None;
        node.run += 1;
    }

    fn use_grant(&self, node: &mut Node, grant: Grant, anew: bool) {
        if anew && node.open.take().is_some() {
            node.generator.close();
        }
        if let Some(open) = &mut node.open {
            *open = grant;
            return;
        }
        let wall_ms = self.clocks(node).wall_ms;
        let floor = node
            .floor_ms
            .max(grant.floor_ms)
            .max(node.generator.last().ms);
        // What lies ahead is waited out: asked again at the next turn.
        if wall_ms <= floor {
            return;
        }
        self.reserve(node, &grant, wall_ms + RESERVATION_MS);
        node.generator.open(grant.worker_id, floor);
        node.open = Some(grant);
    }

    fn reserve(&self, node: &mut Node, grant: &Grant, until_ms: i64) {
        let cap = if self.broken == Broken::Reserved {
            i64::MAX
        } else {
            grant.reserved_until_ms
        };
        let until = until_ms.min(cap).max(node.generator.reserved_until());
        node.disk.reserved_until_ms = until.max(node.floor_ms);
        node.generator.reserve(until);
    }

    /// What the launcher of a server does.
    fn turn(&self, number: usize) {
        let node = &mut *self.nodes[number].borrow_mut();
        let clocks = self.clocks(node);
        if node.asked.is_some_and(|until| clocks.boot_ms > until) {
            node.asked = None;
            let verdict = node.tenant.as_mut().unwrap().fail(clocks.boot_ms, RULES);
            self.follow(node, verdict);
        }
        let Some(tenant) = &mut node.tenant else {
            return;
        };
        match tenant.step(clocks.boot_ms) {
            Step::Close => {
                node.generator.close();
                node.open = None;
            }
            Step::Ask => {
                if tenant.prepare(|| self.token()) {
                    node.disk.lease = *tenant.lease();
                }
                let mut question = tenant.ask(clocks.boot_ms, RULES);
                if self.broken == Broken::HeldAfterTheEnd {
                    let held = tenant.lease().grant;
                    question.held = held.map(|g| (g.worker_id, g.reserved_until_ms));
                }
                node.asked = Some(clocks.boot_ms + 500);
                if !self.chance(20) {
                    let message = Message {
                        node: number,
                        run: node.run,
                        question,
                        sent: clocks,
                        at_ms: self.now_ms.get() + self.delay(),
                        answer: None,
                    };
                    self.messages.borrow_mut().push(message);
                }
            }
            Step::Wait(_) => {
                if let Some(grant) = tenant.grant() {
                    if node.open.is_none() {
                        self.use_grant(node, grant, false);
                    } else if node.generator.reserved_until() - clocks.wall_ms < RESERVATION_MS / 2
                    {
                        self.reserve(node, &grant, clocks.wall_ms + RESERVATION_MS);
                    }
                }
            }
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

    fn follow(&self, node: &mut Node, verdict: Verdict) {
        node.disk.lease = *node.tenant.as_ref().unwrap().lease();
        match verdict {
            Verdict::Use { grant, anew } => self.use_grant(node, grant, anew),
            Verdict::Close(_) => {
                if node.open.take().is_some() {
                    node.generator.close();
                }
            }
            Verdict::Keep => {}
        }
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
            let name = self.nodes[message.node].try_borrow().map(|node| node.name);
            let Some(answer) = message.answer else {
                let Ok(name) = name else {
                    message.at_ms += 1;
                    self.messages.borrow_mut().push(message);
                    continue;
                };
                let before = self.registry.borrow().rows;
                let answer = self.registry.borrow_mut().answer(
                    self.broken,
                    name,
                    &message.question,
                    message.sent,
                    now,
                );
                let after = self.registry.borrow().rows;
                for (before, after) in before.iter().zip(&after) {
                    let changed = before.holder.is_some() && before.holder != after.holder;
                    self.changes_of_holder
                        .set(self.changes_of_holder.get() + u32::from(changed));
                    assert!(before.reserved_ms <= after.reserved_ms);
                }
                // Committed, and nobody is told.
                if !self.chance(3) {
                    message.answer = Some(answer);
                    message.at_ms = now + self.delay();
                    self.messages.borrow_mut().push(message);
                }
                continue;
            };
            let node = &mut *self.nodes[message.node].borrow_mut();
            if node.run != message.run || node.asked.is_none() {
                continue;
            }
            node.asked = None;
            let answer = Answer {
                received: self.clocks(node),
                ..answer
            };
            let tenant = node.tenant.as_mut().unwrap();
            let verdict = tenant.hear(&message.question, &answer, RULES, || self.token());
            self.follow(node, verdict);
        }
    }

    /// A call of a session. While it reads the clock, anything may happen.
    fn issue(&self, number: usize) {
        let nested = self.depth.get();
        let (id, run) = {
            let Ok(node) = self.nodes[number].try_borrow() else {
                return;
            };
            if node.tenant.is_none() {
                return;
            }
            let until = node.open.map_or(0, |grant| grant.until_boot_ms);
            let boot = self.now_ms.get();
            let wall_offset_ms = node.wall_offset_ms;
            let id = node.generator.next(
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
                || (boot < until).then_some(0),
            );
            (id, node.run)
        };
        match id {
            Ok(id) => self.check(number, run, id),
            Err(
                Stall::Closed
                | Stall::Unreserved
                | Stall::Unleased
                | Stall::ClockBack(_)
                | Stall::Full(_),
            ) => {}
            Err(Stall::EndOfTime) => panic!("the end of time"),
        }
    }

    fn check(&self, number: usize, run: u64, id: i64) {
        let parts = Parts::decompose(id).unwrap();
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
                if let Ok(other) = self.nodes[other].try_borrow()
                    && !frozen(&other)
                {
                    Self::stop(&mut node, false);
                    node.disk = other.disk;
                    node.name = other.name;
                    node.boot += 1;
                }
            }
            17..=20 => {
                Self::stop(&mut node, false);
                node.name = u32::try_from(number).unwrap();
                node.disk.copied = true;
            }
            21..=24 => *self.standby.borrow_mut() = self.registry.borrow().clone(),
            25 if self.broken != Broken::Nothing || self.chance(2) => {
                // Renewals of less than a lease are forgotten.
                let mut registry = self.standby.borrow().clone();
                registry.moved = true;
                registry.grace_until_ms = self.now_ms.get() + RULES.lease_ms;
                *self.registry.borrow_mut() = registry.clone();
                *self.standby.borrow_mut() = registry;
            }
            26..=29 => {
                let id = usize::try_from(self.within(2)).unwrap();
                let now = self.now_ms.get();
                // In both: a release that is forgotten in a failover is not provided for.
                for registry in [&self.registry, &self.standby] {
                    let row = &mut registry.borrow_mut().rows[id];
                    (row.holder, row.token) = (None, 0);
                    row.lease_until_ms = row.lease_until_ms.min(now);
                }
            }
            30..=35 => {
                let id = usize::try_from(self.within(2)).unwrap();
                let retired = self.chance(2);
                for registry in [&self.registry, &self.standby] {
                    registry.borrow_mut().rows[id].retired = retired;
                }
            }
            36..=80 if node.tenant.is_none() => self.start(&mut node),
            _ => {
                let up = node.tenant.is_some();
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

fn rounds() -> u64 {
    if std::env::var_os("LEAF_ID_LONG").is_some() {
        5_000
    } else {
        200
    }
}

#[test]
fn no_worker_id_and_millisecond_comes_twice() {
    let seed = support::seed();
    let (mut issued, mut changes) = (0, 0);
    for round in 0..rounds() {
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
    let mut unnoticed = Vec::new();
    for broken in [
        Broken::Floor,
        Broken::FloorOfLostAnswer,
        Broken::Token,
        Broken::Reserved,
        Broken::HeldAfterTheEnd,
        Broken::Grace,
        Broken::CopiedDisk,
    ] {
        let noticed = (0..4_000).find_map(|round| {
            let trouble = run(seed.wrapping_add(round), broken).0?;
            Some((round, trouble))
        });
        println!("{broken:?}: {noticed:?}");
        if noticed.is_none() {
            unnoticed.push(broken);
        }
    }
    assert!(unnoticed.is_empty(), "not noticed: {unnoticed:?}");
}
