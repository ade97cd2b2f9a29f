//! Seeded simulation of servers that lease worker ids from one registry, with fewer worker ids than
//! servers, so that they change hands. The launcher's state machine, the lease, the registry and
//! the word are the code that ships; clocks, disks, messages and their failures are simulated.
//!
//! Would catch: two servers, or two runs of one, that issue the same worker id and millisecond,
//! whatever their clocks do, wherever they stop and resume, whichever answers are lost, and
//! although the registry loses what its standby had not received; two of them that are granted the
//! same time; a server that waits for longer than what is granted ahead after everything has healed,
//! or loses its worker id though the registry knows it; a role or a name with more worker ids than
//! allowed. Rules are broken once, and the simulation must fail as `src/core/README.md` says;
//! `lease_explorer` breaks the others.
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
use core::fmt::Write as _;
use std::collections::HashMap;
use std::thread;

use leaf_id_core::keeper::{
    self, Action, Configured, FOR_EVER, File, Input, Keeper, Look, Seen, Then,
};
use leaf_id_core::layout::Layout;
use leaf_id_core::lease::{
    Clocks, Effect, Grant, Heard, Lease, LeaseHolder, Question, Status, Step,
};
use leaf_id_core::registry::{
    self, Bounds, Decision, Here, Hold, LeaseRequest, MAX_PER_NAME, Next, Place, Registry, Reply,
    Requester, Row,
};
use leaf_id_core::reservation::{Stored, Terms, late_renewal};
use leaf_id_core::snowflake::{Full, Generator, Stall};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const README: &str = include_str!("../README.md");
/// Members, ...
const MEMBERS: usize = 4;
/// ... and the registry's own server. It is another one after each promotion.
const HOST: usize = MEMBERS;
/// Number of worker ids in use, out of those in the registry's layout, ...
const WORKER_IDS: usize = 3;
/// ... and where a server loses its disk again and again, ...
const MORE_WORKER_IDS: usize = 6;
/// ... and in that layout.
const ALL_WORKER_IDS: usize = 8;
const BOUNDS: Bounds = Bounds {
    max_skew_ms: 250,
    grant_ahead_ms: 2_500,
    max_ids_per_role: None,
};
const TERMS: Terms = Terms {
    write_ms: 0,
    reservation_ms: 300,
    max_lead_ms: 600,
};
/// How far a server that shares the worker id of the registry's own may lead the registry's clock.
const HOSTS_LEAD_MS: i64 = TERMS.max_lead_ms + BOUNDS.max_skew_ms;
/// Few ids per millisecond, so that some milliseconds are full.
const LAYOUT: &str = "41/10/2";
const STEPS: usize = 6_000;
const BEGIN_MS: i64 = 1_000_000;
/// Max time to the first id of a server after everything has healed: until everything granted has
/// passed by each clock, with an unanswered request before that, and a retry and its turns after it.
const LONGEST_WAIT_MS: i64 = BOUNDS.grant_ahead_ms + 2 * BOUNDS.max_skew_ms + 800;
/// The same of the registry's own server, which waits for nothing but its clock.
const HOSTS_WAIT_MS: i64 = 1_500;

/// A broken rule that must make the simulation fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// A reservation is used before it is on disk.
    Durable,
    /// A new holder gets no floor above the previous one's reservation.
    Floor,
    /// The registry's own server waits like a member.
    Inherit,
    /// A role may have any number of worker ids.
    Limit,
    /// A promoted registry goes on as if it could not have forgotten anything.
    Moved,
    /// Another token is drawn for each request, though the last one was not answered.
    NextToken,
    /// The last run's reservation is not waited out.
    OwnFloor,
    /// A name may have any number of worker ids.
    PerName,
    /// Timestamps are reserved beyond what the registry has recorded.
    Reserved,
    /// A requester without a valid token is accepted as the holder.
    Token,
}

/// What goes wrong without each rule.
const NEEDED: [(Broken, Trouble); 12] = [
    (Broken::Durable, Trouble::Twice),
    (Broken::Floor, Trouble::Overlap),
    (Broken::Floor, Trouble::Twice),
    (Broken::Inherit, Trouble::Waits),
    (Broken::Limit, Trouble::Over),
    (Broken::Moved, Trouble::Overlap),
    (Broken::Moved, Trouble::Twice),
    (Broken::NextToken, Trouble::Needless),
    (Broken::OwnFloor, Trouble::Twice),
    (Broken::PerName, Trouble::Over),
    (Broken::Reserved, Trouble::Twice),
    (Broken::Token, Trouble::Twice),
];

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// An id, or a worker id and millisecond in two runs.
    Twice,
    /// Two holders of a worker id are granted the same time, whether or not they use it.
    Overlap,
    /// A server has no id for too long after everything has healed.
    Waits,
    /// A server gets another worker id, or none, though the registry knows its token.
    Needless,
    /// A role, or a name, has more worker ids than allowed.
    Over,
}

impl Trouble {
    fn words(self) -> &'static str {
        match self {
            Self::Twice => "an id comes twice",
            Self::Overlap => "two servers are granted the same time",
            Self::Waits => "a server waits for too long",
            Self::Needless => "a server loses its worker id",
            Self::Over => "a role or a name has too many worker ids",
        }
    }
}

/// A member, the registry's own server, or a copy of either.
#[derive(Clone, Copy)]
struct Asker {
    node: usize,
    /// Its name and role: a copy has those of its original.
    identity: usize,
    /// It still waits for the answer.
    waits: bool,
}

impl Asker {
    fn is_host(self) -> bool {
        self.identity >= HOST
    }

    fn name(self) -> Vec<u8> {
        let name = if self.is_host() {
            self.identity
        } else {
            // The roles have the same names.
            self.identity % 2
        };
        name.to_string().into_bytes()
    }

    fn role(self) -> &'static [u8] {
        match self.identity {
            0 | 1 => b"a",
            2 | 3 => b"b",
            _ => b"host",
        }
    }

    fn holds(self, row: &Row) -> bool {
        let holder = row.holder.as_ref();
        holder.is_some_and(|holder| holder.node_name == self.name())
            && row.role.as_deref() == Some(self.role())
    }
}

/// A request as sent.
#[derive(Clone, Copy)]
struct Sent {
    question: Question,
    clocks: Clocks,
}

/// A decision on a request.
struct Answered {
    reply: Reply,
    timeline: i32,
    /// The worker id has a new holder.
    is_new: bool,
    /// The requester does not get the worker id that was last granted to itself.
    is_needless: bool,
}

/// Time granted to a holder of a worker id.
struct Segment {
    /// Tells holders apart.
    claim: usize,
    /// Of all of the registry's own servers, one.
    identity: usize,
    floor_ms: i64,
    until_ms: i64,
}

/// Tables of a registry.
#[derive(Clone)]
struct Tables {
    registry: Registry,
    rows: [Option<Row>; ALL_WORKER_IDS],
    /// The node that each worker id was last granted to, if it was to know that.
    granted_to: [Option<usize>; ALL_WORKER_IDS],
}

impl Tables {
    fn new(max_ids_per_role: Option<i64>, worker_ids: usize) -> Self {
        let bounds = Bounds {
            max_ids_per_role,
            ..BOUNDS
        };
        let out_of_service = |id: usize| {
            (id >= worker_ids).then(|| Row {
                retired: true,
                ..empty(id)
            })
        };
        Self {
            registry: Registry {
                place: Some(place(1)),
                epoch_ms: None,
                layout: None,
                moved_at_ms: None,
                moved_floor_ms: None,
                bounds,
            },
            rows: core::array::from_fn(out_of_service),
            granted_to: [None; ALL_WORKER_IDS],
        }
    }

    /// The result of `decide`, with one rule broken.
    fn answer(&mut self, broken: Broken, asker: Asker, sent: &Sent, here: &Here) -> Answered {
        let mut request = LeaseRequest {
            question: sent.question,
            system_identifier: 1,
            node_name: asker.name(),
            now_ms: sent.clocks.wall_ms,
            epoch_ms: here.epoch_ms,
            layout: here.layout,
        };
        if broken == Broken::Token {
            let own = self.rows.iter().flatten().find(|row| asker.holds(row));
            let token = own.map_or(0, |row| row.token);
            if token != request.question.next_token {
                request.question.token = token;
            }
        }
        assert!(request.is_valid());
        let requester = Requester {
            role: asker.role(),
            trusted: asker.is_host(),
            address: None,
            host: asker.is_host() && broken != Broken::Inherit,
        };
        let mut registry = self.registry;
        match broken {
            Broken::Moved => registry.place = Some(here.place),
            Broken::Limit => registry.bounds.max_ids_per_role = None,
            _ => {}
        }
        let mut rows: Vec<_> = (self.rows.iter().flatten().cloned())
            .map(|row| (row, Hold::Seen))
            .collect();
        if broken == Broken::PerName {
            let Question {
                token, next_token, ..
            } = request.question;
            let is_unproved =
                |row: &Row| asker.holds(row) && ![token, next_token].contains(&row.token);
            for (row, _) in rows.iter_mut().filter(|(row, _)| is_unproved(row)) {
                row.holder = None;
            }
        }
        // Every requested lock is granted.
        let mut registry_locked = false;
        let decision = loop {
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
                Next::StartOver { .. } => unreachable!("no other transaction runs"),
                Next::Done(decision) => break *decision,
            }
        };
        self.commit(broken, asker, here, decision, registry_locked)
    }

    fn commit(
        &mut self,
        broken: Broken,
        asker: Asker,
        here: &Here,
        decision: Decision,
        registry_locked: bool,
    ) -> Answered {
        let Decision {
            mut reply,
            registry,
            row,
            is_new,
            ..
        } = decision;
        assert!(registry.is_none() || registry_locked);
        let bounds = self.registry.bounds;
        self.registry = Registry {
            bounds,
            ..registry.unwrap_or(self.registry)
        };
        let is_own = |id: &usize| {
            let is_granted = self.granted_to[*id] == Some(asker.node);
            let row = self.rows[*id].as_ref();
            is_granted && row.is_some_and(|row| asker.holds(row) && !row.retired)
        };
        let own = (0..ALL_WORKER_IDS).find(is_own);
        let mut granted_id = None;
        if let Ok(granted) = &mut reply.answer.outcome {
            let mut row = row.expect("the row of the worker id");
            let recorded = Grant {
                worker_id: row.worker_id,
                floor_ms: row.floor_ms,
                reserved_until_ms: row.reserved_until_ms,
            };
            assert_eq!(*granted, recorded, "granted before it is recorded");
            if broken == Broken::Floor && is_new {
                row.floor_ms = 0;
                granted.floor_ms = 0;
            }
            let id = usize::from(row.worker_id);
            for node in &mut self.granted_to {
                *node = node.filter(|node| *node != asker.node);
            }
            self.granted_to[id] = asker.waits.then_some(asker.node);
            self.rows[id] = Some(row);
            granted_id = Some(id);
        } else {
            assert!(row.is_none(), "recorded, but not granted");
        }
        let status = reply.answer.outcome.err();
        Answered {
            reply,
            timeline: here.place.timeline,
            is_new,
            is_needless: own.is_some() && own != granted_id && status != Some(Status::Moved),
        }
    }

    /// True if a role has more worker ids than allowed.
    fn is_over(&self) -> bool {
        let max = self.registry.bounds.max_ids_per_role.unwrap_or(i64::MAX);
        let of = |role: &[u8]| {
            let rows = self.rows.iter().flatten().filter(|row| !row.retired);
            rows.filter(|row| row.role.as_deref() == Some(role)).count()
        };
        [&b"a"[..], b"b"]
            .iter()
            .any(|role| i64::try_from(of(role)).unwrap() > max)
    }

    /// True if a name has more worker ids than allowed.
    fn is_over_for(&self, asker: Asker, registry_ms: i64) -> bool {
        let now_ms = registry_ms.max(self.registry.moved_at_ms.unwrap_or(0));
        let has_passed = |row: &Row| row.reserved_until_ms + BOUNDS.max_skew_ms <= now_ms;
        let rows = self.rows.iter().flatten();
        let of_name = rows.filter(|row| asker.holds(row) && !row.retired && !has_passed(row));
        of_name.count() > MAX_PER_NAME
    }
}

/// The row of a worker id that was never granted.
fn empty(id: usize) -> Row {
    Row {
        worker_id: u16::try_from(id).unwrap(),
        ..Row::default()
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
    /// See [`Asker`]; of the run that sent it.
    identity: usize,
    /// The run that sent it; answers to other runs are lost.
    run: u64,
    /// So are answers to other requests than the last one.
    number: u64,
    question: Question,
    /// The request as sent, once connected.
    sent: Option<Sent>,
    /// Time of sending or arrival.
    at_ms: i64,
    answer: Option<Answered>,
}

/// The reservation file.
#[derive(Clone, Copy)]
struct Reserved {
    until_ms: i64,
    issued: bool,
    clean: bool,
    original: bool,
}

/// Contents of a server's disk.
#[derive(Clone, Copy, Default)]
struct Disk {
    lease: Lease,
    reserved: Option<Reserved>,
    boot: u32,
    /// The lease is a copy.
    copied: bool,
}

impl Disk {
    /// A copy of the files, which is recognized as one.
    fn copied(self) -> Self {
        let reserved = self.reserved.map(|reserved| Reserved {
            original: false,
            ..reserved
        });
        Self {
            reserved,
            copied: true,
            ..self
        }
    }
}

/// State of a running server.
struct Running {
    keeper: Keeper,
    /// Set once the keeper has begun to lease.
    holder: Option<LeaseHolder>,
    generator: Generator,
    recorded_until_ms: i64,
    /// A session found the reservation used up.
    wanted: bool,
    /// A full millisecond that a session waits for.
    full: Cell<Option<Full>>,
    /// The number of the pending request, and its timeout.
    asked: Option<(u64, i64)>,
    /// Effect of an answer that has arrived.
    heard: Effect,
}

struct Node {
    number: usize,
    /// See [`Asker`].
    identity: usize,
    disk: Disk,
    boot: u32,
    wall_offset_ms: i64,
    /// Where its clock is set right, more or less.
    usual_offset_ms: i64,
    /// The time that the monotonic clock has not seen.
    paused_ms: i64,
    /// The registry's timeline at the last grant, if the token of that grant is still known here.
    proved_on: Option<i32>,
    frozen_until_ms: i64,
    /// It is frozen by a pause of its virtual machine.
    is_paused: bool,
    /// None of its requests arrives before.
    cut_off_until_ms: i64,
    /// `None` while it is down.
    running: Option<Running>,
    run: u64,
}

/// The server that is promoted next to be the registry's.
struct Standby {
    tables: Tables,
    identity: usize,
    disk: Disk,
    boot: u32,
}

struct World {
    broken: Broken,
    /// No other trouble counts.
    sought: Option<Trouble>,
    worker_ids: usize,
    /// The registry's own server leases a worker id, too.
    is_hosted: bool,
    random: RefCell<StdRng>,
    now_ms: Cell<i64>,
    /// No more faults.
    is_healed: Cell<bool>,
    registry: RefCell<Tables>,
    standby: RefCell<Standby>,
    /// Timeline of the registry; counts its promotions.
    timeline: Cell<i32>,
    /// Clock offset of the registry's server.
    registry_offset_ms: Cell<i64>,
    /// Counts the boots of all machines.
    boots: Cell<u32>,
    nodes: Vec<RefCell<Node>>,
    messages: RefCell<Vec<Message>>,
    requests: Cell<u64>,
    issued: RefCell<HashMap<i64, usize>>,
    milliseconds: RefCell<HashMap<(u16, i64), (usize, u64)>>,
    /// Everything granted of each worker id, also if its answer or its record was lost.
    granted: RefCell<[Vec<Segment>; ALL_WORKER_IDS]>,
    claims: Cell<usize>,
    trouble: RefCell<Option<(Trouble, String)>>,
    /// Recent events, for the failure message.
    recent: RefCell<Vec<String>>,
    depth: Cell<u32>,
    changes_of_holder: Cell<u32>,
    /// The longest time to the first id of a server after everything has healed.
    longest_wait_ms: Cell<i64>,
    /// The same of the registry's own server, if its predecessor has had a worker id.
    hosts_wait_ms: Cell<i64>,
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
            Action::SetRecorded(ms) => self.recorded_until_ms = ms,
            Action::StopLeasing => self.holder = None,
            Action::Hurry => self.holder.as_mut().unwrap().hurry(),
            Action::SetLead(lead) => self.generator.set_lead(lead),
            Action::ShowFloor(_) | Action::ShowLead(_) | Action::Wake | Action::Log(_) => {}
        }
    }
}

impl Node {
    /// Resumes, if it is frozen.
    fn resume(&mut self, now_ms: i64) {
        let left_ms = (self.frozen_until_ms - now_ms).max(0);
        if core::mem::take(&mut self.is_paused) {
            self.paused_ms -= left_ms;
        }
        self.frozen_until_ms = self.frozen_until_ms.min(now_ms);
    }
}

impl World {
    fn new(seed: u64, broken: Broken, sought: Option<Trouble>) -> Self {
        let node = |number: usize| {
            RefCell::new(Node {
                number,
                identity: number,
                disk: Disk::default(),
                boot: u32::try_from(number).unwrap(),
                wall_offset_ms: 0,
                usual_offset_ms: 0,
                paused_ms: 0,
                proved_on: None,
                frozen_until_ms: 0,
                is_paused: false,
                cut_off_until_ms: 0,
                running: None,
                run: 0,
            })
        };
        let max_ids_per_role = (seed / 2).is_multiple_of(2).then_some(1);
        let worker_ids = match (seed / 16).is_multiple_of(4) {
            true => MORE_WORKER_IDS,
            false => WORKER_IDS,
        };
        let standby = Standby {
            tables: Tables::new(max_ids_per_role, worker_ids),
            identity: HOST + usize::from((seed / 4).is_multiple_of(2)),
            disk: Disk::default(),
            boot: 9,
        };
        let world = Self {
            broken,
            sought,
            worker_ids,
            is_hosted: seed.is_multiple_of(2),
            random: RefCell::new(StdRng::seed_from_u64(seed)),
            now_ms: Cell::new(BEGIN_MS),
            is_healed: Cell::new(false),
            registry: RefCell::new(standby.tables.clone()),
            standby: RefCell::new(standby),
            timeline: Cell::new(1),
            registry_offset_ms: Cell::new(0),
            boots: Cell::new(10),
            nodes: (0..=MEMBERS).map(node).collect(),
            messages: RefCell::default(),
            requests: Cell::new(0),
            issued: RefCell::default(),
            milliseconds: RefCell::default(),
            granted: RefCell::default(),
            claims: Cell::new(0),
            trouble: RefCell::default(),
            recent: RefCell::default(),
            depth: Cell::new(0),
            changes_of_holder: Cell::new(0),
            longest_wait_ms: Cell::new(0),
            hosts_wait_ms: Cell::new(0),
        };
        for node in &world.nodes {
            let offset_ms = -world.within(BOUNDS.max_skew_ms);
            let node = &mut *node.borrow_mut();
            if (seed / 8).is_multiple_of(2) {
                node.usual_offset_ms = offset_ms;
                node.wall_offset_ms = offset_ms;
            }
        }
        world
    }

    fn note(&self, event: impl FnOnce() -> String) {
        let mut recent = self.recent.borrow_mut();
        recent.push(format!("{} {}", self.now_ms.get() - BEGIN_MS, event()));
        let old = recent.len().saturating_sub(40);
        recent.drain(..old);
    }

    fn trouble(&self, trouble: Trouble, what: String) {
        if self.sought.is_none_or(|sought| sought == trouble) {
            self.trouble.borrow_mut().get_or_insert((trouble, what));
        }
    }

    fn chance(&self, one_in: u32) -> bool {
        self.random.borrow_mut().random_range(0..one_in) == 0
    }

    fn within(&self, max: i64) -> i64 {
        self.random.borrow_mut().random_range(0..=max)
    }

    /// A fault, until everything heals.
    fn fails(&self, one_in: u32) -> bool {
        !self.is_healed.get() && self.chance(one_in)
    }

    fn index(&self, len: usize) -> usize {
        self.random.borrow_mut().random_range(0..len)
    }

    /// True if a server loses its disk again and again, and the registry, which has more worker ids
    /// for that, is not promoted until the end.
    fn loses_disks(&self) -> bool {
        self.worker_ids == MORE_WORKER_IDS
    }

    fn any_node(&self) -> usize {
        self.index(MEMBERS + usize::from(self.is_hosted))
    }

    fn token(&self) -> i64 {
        self.random.borrow_mut().random_range(1..i64::MAX)
    }

    fn wall_offset_ms(&self, node: &Node) -> i64 {
        if node.number == HOST {
            self.registry_offset_ms.get()
        } else {
            node.wall_offset_ms
        }
    }

    fn clocks(&self, node: &Node) -> Clocks {
        let now_ms = self.now_ms.get();
        Clocks {
            boot_ms: now_ms - node.paused_ms,
            wall_ms: now_ms + self.wall_offset_ms(node),
        }
    }

    fn registry_ms(&self) -> i64 {
        self.now_ms.get() + self.registry_offset_ms.get()
    }

    /// The registry's standby receives everything.
    fn follow(&self) {
        let tables = self.registry.borrow().clone();
        self.standby.borrow_mut().tables = tables;
    }

    /// Promotes the registry's standby, with another clock. What it has not received is lost, and
    /// its predecessor is down.
    fn promote(&self) {
        let Ok(mut host) = self.nodes[HOST].try_borrow_mut() else {
            return;
        };
        let standby = &mut *self.standby.borrow_mut();
        if self.is_hosted {
            Self::stop(&mut host, self.chance(2));
            core::mem::swap(&mut host.identity, &mut standby.identity);
            core::mem::swap(&mut host.disk, &mut standby.disk);
            core::mem::swap(&mut host.boot, &mut standby.boot);
            if self.chance(2) {
                // A standby that was made anew.
                standby.disk = host.disk.copied();
            }
            host.proved_on = None;
            host.resume(self.now_ms.get());
        }
        *self.registry.borrow_mut() = standby.tables.clone();
        self.timeline.set(self.timeline.get() + 1);
        self.set_registry_clock(-BOUNDS.max_skew_ms);
        if self.is_hosted {
            self.start(&mut host);
        }
        self.note(|| format!("promotion, clock {}", self.registry_offset_ms.get()));
    }

    /// Sets the registry's clock; those of its servers differ by at most the max skew. Those that are
    /// right are not ahead, so that nothing granted is, once all are at the same time.
    fn set_registry_clock(&self, extreme_ms: i64) {
        let any_ms = -self.within(BOUNDS.max_skew_ms);
        let offset_ms = if self.chance(2) { extreme_ms } else { any_ms };
        self.registry_offset_ms.set(offset_ms);
    }

    fn start(&self, node: &mut Node) {
        node.running = Some(Running {
            keeper: Keeper::new(0, layout(), 0, false, None),
            holder: None,
            generator: Generator::new(layout()),
            recorded_until_ms: 0,
            wanted: false,
            full: Cell::new(None),
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
                issued: true,
                clean: true,
                original: true,
            });
        }
        node.run += 1;
    }

    /// The lease from a disk, for a server that begins to lease.
    fn begin_leasing(&self, node: &mut Node, own: bool) -> LeaseHolder {
        let same_boot = node.disk.boot == node.boot;
        let disk = &mut node.disk;
        let mut lease = if own && same_boot && !disk.copied {
            disk.lease
        } else {
            Lease::default()
        };
        if node.number == HOST {
            // Another server may have had both the lease and the registry since.
            lease.grant = None;
        }
        if !same_boot || lease.token == 0 {
            node.proved_on = None;
        }
        disk.lease = lease;
        disk.copied = false;
        disk.boot = node.boot;
        LeaseHolder::new(lease, || self.token())
    }

    /// Runs a turn of a server's launcher.
    fn turn(&self, number: usize) {
        let node = &mut *self.nodes[number].borrow_mut();
        let Some(running) = &mut node.running else {
            return;
        };
        let mut input = Input::Look(Look {
            write_ms: 0,
            configured: Configured::Leased(match running.holder {
                Some(_) => keeper::Registry::Same,
                None => keeper::Registry::Other,
            }),
            in_recovery: false,
            resets: 0,
            wanted: core::mem::take(&mut running.wanted),
            registry_is_here: number == HOST,
            led: false,
            reservation_ms: TERMS.reservation_ms,
            max_lead_ms: TERMS.max_lead_ms,
            max_burst_ms: 0,
        });
        loop {
            let clocks = self.clocks(node);
            let running = node.running.as_mut().unwrap();
            let seen = Seen {
                now_ms: clocks.wall_ms,
                last_ms: running.generator.last().ms,
                last_worker_id: None,
                is_open: running.generator.is_open(),
                lead: running.generator.lead(),
                reserved_until_ms: running.generator.reserved_until(),
            };
            let step = running.keeper.step(&seen, input);
            for action in step.actions {
                running.act(action);
            }
            input = match step.then {
                Then::Read => Input::File(self.read(&node.disk)),
                Then::Lease { begin } => {
                    if let Some(own) = begin {
                        let holder = self.begin_leasing(node, own);
                        let running = node.running.as_mut().unwrap();
                        running.heard = holder.begin();
                        running.holder = Some(holder);
                    }
                    Input::Lease {
                        effect: self.lease(number, node),
                        again_ms: None,
                    }
                }
                Then::Reserve {
                    until_ms, issued, ..
                } => Input::Written(self.write(node, until_ms, issued)),
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
                issued: reserved.issued,
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
            found: if self.fails(50) {
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
        issued: bool,
    ) -> Result<Option<String>, String> {
        let fails = self.fails(50);
        let is_late = self.broken == Broken::Durable && node.disk.reserved.is_some();
        // A failed write may still have reached the disk.
        if (!fails || self.chance(2)) && !is_late {
            node.disk.reserved = Some(Reserved {
                until_ms,
                issued,
                clean: !issued,
                original: true,
            });
        }
        if fails {
            return Err("the disk is full".into());
        }
        if issued {
            node.running.as_mut().unwrap().generator.reserve(until_ms);
        }
        Ok(None)
    }

    /// Advances the lease. It is written to disk before it is used and before a request.
    fn lease(&self, number: usize, node: &mut Node) -> Effect {
        let clocks = self.clocks(node);
        let running = node.running.as_mut().unwrap();
        let holder = running.holder.as_mut().unwrap();
        let mut effect = core::mem::replace(&mut running.heard, Effect::Keep);
        if running
            .asked
            .is_some_and(|(_, until)| clocks.boot_ms > until)
        {
            running.asked = None;
            effect = holder.fail(clocks);
        }
        // Something makes a request due at once.
        if holder.lease().grant.is_none() && self.chance(4) {
            holder.hurry();
        }
        if effect == Effect::Keep {
            match holder.step(clocks) {
                Step::Ask => {
                    let mut question = holder.ask();
                    if self.broken == Broken::NextToken {
                        question.next_token = self.token();
                    }
                    let request = self.requests.get() + 1;
                    self.requests.set(request);
                    running.asked = Some((request, clocks.boot_ms + 500));
                    let is_cut_off = self.now_ms.get() < node.cut_off_until_ms;
                    if !is_cut_off && !self.fails(20) {
                        let message = Message {
                            node: number,
                            identity: node.identity,
                            run: node.run,
                            number: request,
                            question,
                            sent: None,
                            at_ms: self.now_ms.get() + self.delay(number),
                            answer: None,
                        };
                        self.messages.borrow_mut().push(message);
                    }
                }
                Step::Wait(_) => {}
            }
        }
        node.disk.lease = *holder.lease();
        if let Effect::Use { grant, anew } = &mut effect {
            self.note(|| {
                let (id, floor_ms) = (grant.worker_id, grant.floor_ms - BEGIN_MS);
                let until_ms = grant.reserved_until_ms - BEGIN_MS;
                format!("{number} uses {id} from {floor_ms} to {until_ms}, anew: {anew}")
            });
            if self.broken == Broken::Reserved {
                grant.reserved_until_ms = FOR_EVER;
            }
        }
        effect
    }

    fn delay(&self, node: usize) -> i64 {
        // The registry's own server is not far, and asks one question after another.
        if node != HOST && self.fails(10) {
            // Late enough for the next request to overtake it, or for what is granted to pass.
            self.within(5_000)
        } else if node != HOST && self.fails(10) {
            // Or just within what clocks may differ by.
            self.within(2 * BOUNDS.max_skew_ms)
        } else {
            self.within(20)
        }
    }

    /// Sends a request, which may have been due for long, once connected.
    fn send(&self, mut message: Message) {
        if let Ok(node) = self.nodes[message.node].try_borrow() {
            if node.run != message.run {
                return;
            }
            message.sent = Some(Sent {
                question: message.question,
                clocks: self.clocks(&node),
            });
            message.at_ms += self.delay(message.node);
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
            let Some(sent) = message.sent else {
                self.send(message);
                continue;
            };
            let Some(answered) = message.answer.take() else {
                let Ok(node) = self.nodes[message.node].try_borrow() else {
                    message.at_ms += 1;
                    self.messages.borrow_mut().push(message);
                    continue;
                };
                if message.node == HOST && node.run != message.run {
                    // The predecessor's question is for the predecessor's registry.
                    continue;
                }
                let asked = node.running.as_ref().and_then(|running| running.asked);
                let asker = Asker {
                    node: message.node,
                    identity: message.identity,
                    waits: node.run == message.run
                        && asked.is_some_and(|(last, _)| last == message.number),
                };
                drop(node);
                let (answered, is_lost) = self.decide(asker, &sent);
                if !is_lost {
                    message.answer = Some(answered);
                    message.at_ms = now + self.delay(message.node);
                    self.messages.borrow_mut().push(message);
                }
                continue;
            };
            let node = &mut *self.nodes[message.node].borrow_mut();
            let clocks = self.clocks(node);
            let Some(running) = &mut node.running else {
                continue;
            };
            let is_last = running
                .asked
                .is_some_and(|(last, _)| last == message.number);
            if node.run != message.run || !is_last {
                continue;
            }
            running.asked = None;
            let answer = answered.reply.answer;
            let heard = Heard {
                answer,
                sent: sent.clocks,
                received: clocks,
            };
            let holder = running.holder.as_mut().unwrap();
            running.heard = holder.hear(&sent.question, &heard, || self.token());
            if answered.is_needless && node.proved_on == Some(answered.timeline) {
                self.trouble(Trouble::Needless, format!("{}", message.node));
            }
            if answer.outcome.is_ok() {
                node.proved_on = Some(answered.timeline);
            }
        }
    }

    /// The registry's decision, and whether its answer is lost.
    fn decide(&self, asker: Asker, sent: &Sent) -> (Answered, bool) {
        let now_ms = self.now_ms.get();
        let here = Here {
            place: place(self.timeline.get()),
            epoch_ms: 0,
            layout: Layout::new(41, 3, 12).unwrap(),
            arrived_ms: self.registry_ms(),
            now_ms: self.registry_ms(),
            worker_id: None,
            max_lead_ms: HOSTS_LEAD_MS,
            format_ms: |ms| ms.to_string(),
        };
        let last = self.registry.borrow().clone();
        let answered = (self.registry.borrow_mut()).answer(self.broken, asker, sent, &here);
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
            assert!(
                before.reserved_until_ms <= after.reserved_until_ms,
                "what is recorded was lowered"
            );
        }
        let is_over_for = || registry.is_over_for(asker, here.arrived_ms);
        if registry.is_over() || answered.is_new && is_over_for() {
            self.trouble(Trouble::Over, format!("{}", asker.node));
        }
        match &answered.reply.answer.outcome {
            Ok(granted) => {
                let grant = *granted;
                self.note(|| format!("{} is granted {}", asker.node, grant.worker_id));
                self.compare(asker, grant, answered.is_new);
            }
            Err(status) => self.note(|| format!("{}: {:?}", asker.node, status)),
        }
        drop(registry);
        if given && !self.loses_disks() && self.fails(2) {
            // The standby has received everything but this. The previous holder is back, or the new
            // one cannot reach the registry.
            self.standby.borrow_mut().tables = last;
            self.promote();
            let is_back = self.chance(2);
            for node in &self.nodes {
                if let Ok(mut node) = node.try_borrow_mut() {
                    if is_back {
                        node.resume(now_ms);
                        node.cut_off_until_ms = now_ms;
                    } else if node.number == asker.node {
                        node.cut_off_until_ms = now_ms + 2 * BOUNDS.grant_ahead_ms;
                    }
                }
            }
        }
        // Committed, but the answer may be lost.
        (answered, self.fails(3))
    }

    /// Compares what is granted with what other holders of the worker id were granted.
    fn compare(&self, asker: Asker, grant: Grant, is_new: bool) {
        let segments = &mut self.granted.borrow_mut()[usize::from(grant.worker_id)];
        let identity = asker.identity.min(HOST);
        let last = segments
            .iter_mut()
            .rev()
            // The registry's own server goes on with what its predecessor had.
            .find(|last| (!is_new || asker.is_host()) && last.identity == identity);
        let claim = match &last {
            Some(last) => last.claim,
            None => {
                self.claims.set(self.claims.get() + 1);
                self.claims.get()
            }
        };
        let (floor_ms, until_ms) = (grant.floor_ms, grant.reserved_until_ms);
        match last {
            Some(last) if last.floor_ms == floor_ms => last.until_ms = last.until_ms.max(until_ms),
            _ => segments.push(Segment {
                claim,
                identity,
                floor_ms,
                until_ms,
            }),
        }
        let mut others = segments.iter().filter(|other| other.claim != claim);
        let is_common = |other: &&Segment| floor_ms < other.until_ms && other.floor_ms < until_ms;
        if let Some(other) = others.find(is_common) {
            let what = format!(
                "{grant:?} of {} and until {} of {}",
                asker.node, other.until_ms, other.identity
            );
            self.trouble(Trouble::Overlap, what);
        }
    }

    /// A session's call. Anything may happen while it reads the clock.
    fn issue(&self, number: usize) {
        let nested = self.depth.get();
        let (id, run) = {
            let Ok(node) = self.nodes[number].try_borrow() else {
                return;
            };
            let Some(running) = &node.running else {
                return;
            };
            let generator = &running.generator;
            let wall_offset_ms = self.wall_offset_ms(&node);
            let read = || {
                let read = self.now_ms.get() + wall_offset_ms;
                if nested == 0 && self.fails(50) {
                    // It stalls here while the others continue. (Only the others: this server is
                    // borrowed.)
                    self.depth.set(1);
                    for _ in 0..self.within(400) {
                        self.happen();
                    }
                    self.depth.set(0);
                }
                read
            };
            let at_once = self
                .chance(2)
                .then(|| generator.next_at_once(read))
                .flatten();
            let id = match at_once {
                Some(id) => Ok(id),
                None => (generator.next(read, |_| 0, running.full.take())).map(|issued| issued.id),
            };
            if let Err(Stall::Full(full)) = id {
                running.full.set(Some(full));
            }
            (id, node.run)
        };
        if matches!(id, Err(Stall::Unreserved | Stall::Closed)) {
            self.renew_late(number);
        }
        match id {
            Ok(id) => self.check(number, run, id),
            Err(Stall::Closed | Stall::Unreserved | Stall::TooFarAhead(_) | Stall::Full(_)) => {}
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
        if !running.generator.is_open() || self.chance(2) {
            return;
        }
        let generator = &running.generator;
        let (last, lead) = (generator.last(), generator.lead());
        let until_ms = late_renewal(
            clocks.wall_ms,
            last.ms,
            Terms {
                write_ms: 0,
                max_lead_ms: lead.max_ms,
                ..TERMS
            },
            generator.reserved_until(),
            running.recorded_until_ms,
        );
        if let Some(until_ms) = until_ms {
            let _ = self.write(node, until_ms, true);
        }
    }

    fn check(&self, number: usize, run: u64, id: i64) {
        let parts = layout().decompose(id).unwrap();
        if let Some(other) = self.issued.borrow_mut().insert(id, number) {
            self.trouble(Trouble::Twice, format!("{parts:?} by {other} and {number}"));
        }
        let here = (number, run);
        let key = (parts.worker_id, parts.ms);
        let before = *self.milliseconds.borrow_mut().entry(key).or_insert(here);
        if before != here {
            let what = format!("{} by {number}, also in {before:?}", parts.ms - BEGIN_MS);
            self.trouble(Trouble::Twice, what);
        }
    }

    /// Runs a random event.
    fn happen(&self) {
        let number = self.any_node();
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
        let event = match self.broken {
            Broken::Durable | Broken::OwnFloor if self.chance(25) => 81,
            // Clocks are off, and right again.
            Broken::Floor if self.chance(10) => 8 + self.within(1),
            _ if self.loses_disks() && number == 0 && self.chance(10) => 82,
            _ => self.within(1_000),
        };
        if matches!(event, 0..=35 | 81..=82 | 101..=104) {
            self.note(|| format!("event {event} of {number}"));
        }
        match event {
            0..=3 => {
                let ms = self.within(8_000);
                node.frozen_until_ms = self.now_ms.get() + ms;
                node.is_paused = self.chance(2);
                if node.is_paused {
                    node.paused_ms += ms;
                    if self.chance(2) {
                        // Until its clock is set right.
                        node.wall_offset_ms -= ms;
                    }
                }
            }
            4..=6 => {
                let clean = self.chance(2);
                Self::stop(&mut node, clean);
                if self.chance(2) {
                    self.reboot(&mut node);
                }
            }
            7 => node.wall_offset_ms = self.within(600) - 300,
            8 => node.wall_offset_ms = self.within(20_000) - 10_000,
            9..=14 => node.wall_offset_ms = node.usual_offset_ms,
            15 => {
                // The disk is lost.
                Self::stop(&mut node, false);
                node.disk = Disk::default();
                node.proved_on = None;
            }
            16 if number != HOST => {
                let other = usize::try_from(self.within(3)).unwrap();
                if let Ok(mut other) = self.nodes[other].try_borrow_mut()
                    && !frozen(&other)
                {
                    self.copy(&mut node, &mut other);
                }
            }
            17..=20 if number != HOST => Self::be_itself(&mut node),
            21..=24 => {
                self.follow();
                self.set_registry_clock(0);
                if number == HOST && self.chance(4) {
                    // Also of its server's disk.
                    let mut standby = self.standby.borrow_mut();
                    standby.disk = node.disk.copied();
                }
            }
            25 if !self.loses_disks() && (self.broken != Broken::Nothing || self.chance(2)) => {
                drop(node);
                self.promote();
            }
            30..=35 => {
                let id = usize::try_from(self.within(2)).unwrap();
                let retired = self.chance(2);
                self.retire(id, retired);
            }
            36..=80 if node.running.is_none() => self.start(&mut node),
            81 if node.running.is_some() => {
                // A crash, and the clock is set back before the next start.
                Self::stop(&mut node, false);
                node.wall_offset_ms -= self.within(TERMS.reservation_ms);
                self.start(&mut node);
            }
            82 => {
                // The disk is lost, and the server starts at once.
                Self::stop(&mut node, false);
                node.disk = Disk::default();
                node.proved_on = None;
                self.start(&mut node);
            }
            // The registry is unreachable until what it has granted has passed.
            101..=104 if node.running.is_some() => {
                node.cut_off_until_ms = self.now_ms.get() + self.within(2 * BOUNDS.grant_ahead_ms);
            }
            _ => {
                drop(node);
                if self.chance(2) {
                    self.turn(number);
                } else {
                    self.issue(number);
                }
            }
        }
    }

    /// Copies the disk of another server, running or not, along with its name.
    fn copy(&self, node: &mut Node, other: &mut Node) {
        Self::stop(node, false);
        node.disk = other.disk;
        node.identity = other.identity;
        if self.chance(2) {
            // An image.
            self.reboot(node);
            return;
        }
        // Its files, on the same machine. Sometimes it has had a fixed worker id before it leases.
        node.boot = other.boot;
        node.disk.copied = true;
        if let Some(reserved) = &mut node.disk.reserved {
            reserved.original = self.chance(2);
        }
    }

    fn reboot(&self, node: &mut Node) {
        self.boots.set(self.boots.get() + 1);
        node.boot = self.boots.get();
    }

    /// Ceases to be a copy of another server.
    fn be_itself(node: &mut Node) {
        Self::stop(node, false);
        node.identity = node.number;
        node.disk = node.disk.copied();
    }

    fn retire(&self, id: usize, retired: bool) {
        let row = &mut self.registry.borrow_mut().rows[id];
        let before = row.take().unwrap_or_else(|| empty(id));
        *row = Some(match (before.retired, retired) {
            (true, false) => before.back_in_service(self.registry_ms()),
            _ => Row { retired, ..before },
        });
    }

    /// The end of all faults, sometimes with a last failover. As many servers are up as there are
    /// worker ids for; each must get one.
    fn heal(&self) {
        if self.chance(2) {
            self.promote();
        }
        self.is_healed.set(true);
        self.registry_offset_ms.set(0);
        self.note(|| "healed".into());
        for id in 0..self.worker_ids {
            self.retire(id, false);
        }
        let now_ms = self.now_ms.get();
        for message in self.messages.borrow_mut().iter_mut() {
            message.at_ms = message.at_ms.min(now_ms + 20);
        }
        let registry = self.registry.borrow();
        let is_limited = registry.registry.bounds.max_ids_per_role.is_some();
        // What the registry's own server has had is for no other, and it may get another one.
        let kept = registry.rows.iter().flatten().filter(|row| row.host);
        let has_one =
            (registry.rows.iter().flatten()).any(|row| row.role.as_deref() == Some(b"host"));
        let others = usize::from(self.is_hosted && !has_one);
        let host_is_known = has_one && self.is_hosted;
        let mut left = self.worker_ids.saturating_sub(kept.count() + others);
        drop(registry);
        let mut waiting = Vec::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let node = &mut *node.borrow_mut();
            let is_wanted = match number {
                HOST => self.is_hosted,
                1 | 3 if is_limited => false,
                _ => left > 0,
            };
            left -= usize::from(is_wanted && number != HOST);
            if node.identity != number && number != HOST {
                Self::be_itself(node);
            } else if !is_wanted {
                Self::stop(node, false);
            }
            node.wall_offset_ms = 0;
            node.resume(now_ms);
            node.cut_off_until_ms = 0;
            if is_wanted {
                if node.running.is_none() {
                    self.start(node);
                }
                waiting.push(number);
            }
        }
        while !waiting.is_empty() {
            self.now_ms.set(self.now_ms.get() + 2);
            let waited_ms = self.now_ms.get() - now_ms;
            self.deliver();
            let is_late = |number: &usize| {
                let limit_ms = if *number == HOST && host_is_known {
                    HOSTS_WAIT_MS
                } else {
                    LONGEST_WAIT_MS
                };
                waited_ms > limit_ms
            };
            waiting.retain(|number| {
                let before = self.issued.borrow().len();
                self.turn(*number);
                self.issue(*number);
                let has_issued = self.issued.borrow().len() > before;
                let longest = if *number == HOST && host_is_known {
                    &self.hosts_wait_ms
                } else {
                    &self.longest_wait_ms
                };
                longest.set(longest.get().max(waited_ms));
                !has_issued
            });
            if waiting.iter().any(is_late) {
                self.trouble(Trouble::Waits, format!("{waiting:?}"));
                return;
            }
            if self.trouble.borrow().is_some() {
                return;
            }
        }
    }
}

/// The result of a simulation.
struct Outcome {
    trouble: Option<(Trouble, String)>,
    issued: usize,
    changes_of_holder: u32,
    longest_wait_ms: i64,
    hosts_wait_ms: i64,
}

fn run(seed: u64, broken: Broken, sought: Option<Trouble>) -> Outcome {
    let world = World::new(seed, broken, sought);
    for step in 0..STEPS {
        world.happen();
        if let Some((_, what)) = &mut *world.trouble.borrow_mut() {
            let recent = world.recent.borrow().join("\n  ");
            let _ = write!(what, " in step {step}:\n  {recent}");
            break;
        }
    }
    if world.trouble.borrow().is_none() {
        world.heal();
        if let Some((_, what)) = &mut *world.trouble.borrow_mut() {
            let recent = world.recent.borrow().join("\n  ");
            let _ = write!(what, " at the end:\n  {recent}");
        }
    }
    let issued = world.issued.borrow().len();
    Outcome {
        trouble: world.trouble.into_inner(),
        issued,
        changes_of_holder: world.changes_of_holder.get(),
        longest_wait_ms: world.longest_wait_ms.get(),
        hosts_wait_ms: world.hosts_wait_ms.get(),
    }
}

#[test]
fn no_worker_id_and_millisecond_comes_twice() {
    let seed = support::seed();
    let (mut issued, mut changes, mut longest_ms, mut hosts_ms) = (0, 0, 0, 0);
    for round in 0..support::rounds(200, 5_000) {
        let outcome = run(seed.wrapping_add(round), Broken::Nothing, None);
        if let Some((trouble, what)) = outcome.trouble {
            let seed = seed.wrapping_add(round);
            panic!("LEAF_ID_SEED={seed}: {trouble:?}, {what}");
        }
        issued += outcome.issued;
        changes += outcome.changes_of_holder;
        longest_ms = longest_ms.max(outcome.longest_wait_ms);
        hosts_ms = hosts_ms.max(outcome.hosts_wait_ms);
    }
    println!("{issued} ids, {changes} changes of a holder");
    println!("longest wait {longest_ms} ms, of the registry's own server {hosts_ms} ms");
    assert!(
        issued > 10_000 && changes > 100,
        "the simulation does nothing"
    );
}

#[test]
fn every_rule_is_needed() {
    let seed = support::seed();
    let is_noticed = |broken, expected| {
        let noticed = (0..60_000).find_map(|round| {
            let outcome = run(seed.wrapping_add(round), broken, Some(expected));
            outcome.trouble.map(|(_, what)| (round, what))
        });
        match &noticed {
            Some((round, what)) => println!("{broken:?}: {expected:?} in round {round}, {what}"),
            None => println!("{broken:?}: nothing"),
        }
        noticed.is_some()
    };
    let unnoticed: Vec<_> = thread::scope(|scope| {
        let runs = NEEDED
            .map(|(broken, expected)| (broken, scope.spawn(move || is_noticed(broken, expected))));
        runs.into_iter()
            .filter_map(|(broken, run)| (!run.join().unwrap()).then_some(broken))
            .collect()
    });
    assert!(unnoticed.is_empty(), "not noticed: {unnoticed:?}");
}

#[test]
fn the_readme_says_what_else_each_rule_is_for() {
    // For what comes twice, `lease_explorer` has the shortest histories.
    for (broken, trouble) in NEEDED
        .into_iter()
        .filter(|needed| needed.1 != Trouble::Twice)
    {
        let row = format!("\n| {broken:?} | {} |", trouble.words());
        assert!(README.contains(&row), "src/core/README.md lacks {row}");
    }
}
