//! Seeded simulation of servers that share fixed worker ids: crashes, restarts of the launcher,
//! clock changes, promotions, restored backups and changes of the worker id. The launcher's state
//! machine and the word are the code that ships; clocks and disks are simulated.
//!
//! Would catch: an id issued twice or out of order, within one server (I4, I7) or from a server to
//! its successor; an id whose timestamp is not on disk, or leads the clock by more than allowed;
//! a file that is written too often; and a call that waits without need: for each kind of event, the
//! time to the first id has a limit. Each rule that this depends on is broken once, and the
//! simulation must fail.
//!
//! The bound of the lead and the allowed waits are computed here from the events, not taken from
//! the generator.

#![cfg(not(leaf_id_loom))]
#![allow(clippy::expect_used, reason = "a test that panics fails")]

mod support;

use core::fmt::Write as _;
use std::collections::{BTreeMap, HashMap};
use std::thread;

use leaf_id_core::keeper::{
    Action, Configured, FOR_EVER, File, Found, Input, Keeper, Look, Seen, Then,
};
use leaf_id_core::layout::{Layout, Parts};
use leaf_id_core::reservation::{Stored, Terms, late_renewal};
use leaf_id_core::snowflake::{Full, Generator, Lead, Stall};
use leaf_id_core::state::State;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Few ids per millisecond, so that many milliseconds are full.
const LAYOUT: &str = "41/2/2";
const TERMS: [Terms; 3] = [
    terms(1_000, 3_000),
    terms(1_000, 10_000),
    terms(5_000, 10_000),
];
const BURST_MS: i64 = 20;
const SERVERS: usize = 3;
const STEPS: usize = 6_000;
/// Min reservation of the shipped code.
const LEAST_MS: i64 = 50;
/// Max duration of a few turns of the launcher with their writes.
const TURNS_MS: i64 = 60;
/// The launcher's retry interval after a failed write, unless a call waits.
const RETRY_MS: i64 = 1_000;

const fn terms(reservation_ms: i64, max_lead_ms: i64) -> Terms {
    Terms {
        write_ms: 0,
        reservation_ms,
        max_lead_ms,
    }
}

/// A broken rule, or an assumption that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// The last run's reservation is not waited out.
    OwnFloor,
    /// A reservation is used before it is on disk.
    Durable,
    /// A copied file counts as the original.
    Original,
    /// A file from another timeline counts as this one's.
    Timeline,
    /// The floor above an unknown predecessor does not allow for its max lead.
    UnknownFloor,
    /// That floor does not allow for the difference between the clocks.
    ClockDifference,
    /// The lead has no bound.
    Bound,
    /// While ids lead, a full millisecond does not wait for the next tick of the clock.
    Pace,
    /// Reservations may exceed the max lead.
    Cap,
    /// Reservations may be arbitrarily short.
    Least,
    /// A worker id that another server may have used counts as the previous one.
    OtherWorkerId,
    /// A worker id counts as kept that was not configured here for a while.
    Kept,
    /// A server without a file counts as new.
    NewCluster,
    /// A generator opened above a millisecond may issue the rest of it.
    EndOfMillisecond,
    /// A restarted launcher takes its floor from the file, not from the word.
    WordFloor,
    /// Assumption: clocks differ by no more than a reservation.
    Clocks,
}

/// Rules and assumptions, without each of which something goes wrong.
const NEEDED: [Broken; 16] = [
    Broken::OwnFloor,
    Broken::Durable,
    Broken::Original,
    Broken::Timeline,
    Broken::UnknownFloor,
    Broken::ClockDifference,
    Broken::Bound,
    Broken::Pace,
    Broken::Cap,
    Broken::Least,
    Broken::OtherWorkerId,
    Broken::Kept,
    Broken::NewCluster,
    Broken::EndOfMillisecond,
    Broken::WordFloor,
    Broken::Clocks,
];

/// An event that interrupts the ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Happened {
    Nothing,
    Kill,
    LauncherRestart,
    CleanStop,
    SetBack,
    SetAhead,
    Promotion,
    Restore,
    LostDisk,
    OtherWorkerId,
}

impl Happened {
    /// Max time to the first id.
    fn limit_ms(self, terms: Terms) -> i64 {
        match self {
            // A call that finds its time used up waits for the launcher, but not for the clock.
            Self::SetBack => TURNS_MS,
            Self::Nothing
            | Self::Kill
            | Self::LauncherRestart
            | Self::CleanStop
            | Self::SetAhead => 100,
            Self::Promotion | Self::Restore | Self::LostDisk | Self::OtherWorkerId => {
                terms.reservation_ms + 100
            }
        }
    }
}

/// Times to the first id after an event.
#[derive(Default)]
struct Times {
    /// How many were below each of `BOUNDS_MS`, and how many were longer.
    counts: [u64; BOUNDS_MS.len() + 1],
    longest_ms: i64,
    /// Longer than the limit, because faults had added up to more than the max lead; counted only
    /// here.
    excused: u64,
}

const BOUNDS_MS: [i64; 7] = [2, 10, 30, 60, 100, 1_000, 1_100];

impl Times {
    fn add(&mut self, ms: i64, limit_ms: i64) {
        if ms > limit_ms {
            self.excused += 1;
            return;
        }
        let column = BOUNDS_MS.iter().position(|bound_ms| ms <= *bound_ms);
        self.counts[column.unwrap_or(BOUNDS_MS.len())] += 1;
        self.longest_ms = self.longest_ms.max(ms);
    }

    fn add_all(&mut self, other: &Self) {
        for (sum, more) in self.counts.iter_mut().zip(other.counts) {
            *sum += more;
        }
        self.longest_ms = self.longest_ms.max(other.longest_ms);
        self.excused += other.excused;
    }
}

/// What went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Twice,
    NotOnDisk,
    Lead,
    Waits(Happened),
    /// The file is written so often that a slow disk could not follow.
    Writes,
}

/// The last event, until the first id after it.
#[derive(Clone, Copy)]
struct Since {
    happened: Happened,
    at_ms: i64,
    /// Failed writes have delayed a change of the worker id so long, in which ids of the one in force
    /// go on.
    delayed_ms: i64,
}

/// The reservation file.
#[derive(Clone, Copy)]
struct Reserved {
    worker_id: u16,
    until_ms: i64,
    timeline: u32,
    issued: bool,
    clean: bool,
    original: bool,
}

struct Running {
    keeper: Keeper,
    generator: Generator,
    shown: State,
    wanted: bool,
    in_recovery: bool,
    /// It has written a reservation, perhaps without being opened.
    has_written: bool,
    /// Time of the launcher's next turn.
    turn_at_ms: i64,
}

struct Server {
    off_ms: i64,
    worker_id: u16,
    /// No worker id is configured for now.
    is_unset: bool,
    timeline: u32,
    disk: Option<Reserved>,
    /// An older copy of the disk.
    backup: Option<Reserved>,
    running: Option<Running>,
}

struct World {
    broken: Broken,
    terms: Terms,
    random: StdRng,
    /// Fewer runs without a known predecessor, and faster time.
    calm: bool,
    /// One server that shares its worker id with no other. Its clock may be set back by almost the
    /// max lead.
    alone: bool,
    now_ms: i64,
    servers: Vec<Server>,
    /// The server that issues now; the others are down.
    live: usize,
    timeline: u32,
    /// Largest id per worker id, over all servers.
    largest: HashMap<u16, i64>,
    /// This run does not know its predecessor, and has not been opened yet.
    is_unknown: bool,
    /// Max lead that is due to faults, not to load; negative if the last id is behind the clock.
    owed_ms: i64,
    /// The same of the reservation.
    owed_until_ms: i64,
    since: Option<Since>,
    /// Start of the current wait, other than for the next millisecond.
    waiting_since_ms: Option<i64>,
    /// Calls may wait until then, because faults have added up to more than the max lead.
    excused_until_ms: i64,
    /// A full millisecond that sessions wait for.
    full: Option<Full>,
    /// Time of the last event, and the writes since then.
    writes_since_ms: i64,
    writes: i64,
    issued: usize,
    led: usize,
    times: BTreeMap<Happened, Times>,
    trouble: Option<(Trouble, String)>,
    /// Recent events, for the failure message.
    recent: Vec<String>,
}

fn layout() -> Layout {
    Layout::parse(LAYOUT).expect("a layout")
}

impl World {
    fn new(seed: u64, terms: Terms, broken: Broken) -> Self {
        let server = |_| Server {
            off_ms: 0,
            worker_id: 1,
            is_unset: false,
            timeline: 1,
            disk: None,
            backup: None,
            running: None,
        };
        let mut world = Self {
            broken,
            terms,
            random: StdRng::seed_from_u64(seed),
            calm: seed.is_multiple_of(2),
            alone: (seed / 2).is_multiple_of(3),
            now_ms: 1_000_000,
            servers: (0..SERVERS).map(server).collect(),
            live: 0,
            timeline: 1,
            largest: HashMap::new(),
            is_unknown: false,
            owed_ms: 0,
            owed_until_ms: 0,
            since: None,
            waiting_since_ms: None,
            excused_until_ms: 0,
            full: None,
            writes_since_ms: 0,
            writes: 0,
            issued: 0,
            led: 0,
            times: BTreeMap::new(),
            trouble: None,
            recent: Vec::new(),
        };
        world.start(false);
        world
    }

    fn within(&mut self, max: i64) -> i64 {
        self.random.random_range(0..=max)
    }

    fn chance(&mut self, one_in: u32) -> bool {
        self.random.random_range(0..one_in) == 0
    }

    fn live(&mut self) -> &mut Server {
        &mut self.servers[self.live]
    }

    fn wall_ms(&self) -> i64 {
        self.now_ms + self.servers[self.live].off_ms
    }

    fn fails(&mut self, trouble: Trouble, text: String) {
        self.trouble.get_or_insert((trouble, text));
    }

    fn start(&mut self, in_recovery: bool) {
        let now_ms = self.now_ms;
        let worker_id = Some(self.live().worker_id);
        self.live().running = Some(Running {
            keeper: Keeper::new(0, layout(), 0, in_recovery, worker_id),
            generator: Generator::new(layout()),
            shown: State::Starting,
            wanted: false,
            in_recovery,
            has_written: false,
            turn_at_ms: now_ms,
        });
    }

    /// Stops the launcher, cleanly or not.
    fn stop(&mut self, clean: bool) {
        let timeline = self.live().timeline;
        let server = self.live();
        let Some(running) = &server.running else {
            return;
        };
        if clean && running.generator.is_open() {
            let last = running.generator.close();
            server.disk = Some(Reserved {
                worker_id: last.worker_id,
                until_ms: last.ms,
                timeline,
                issued: true,
                clean: true,
                original: true,
            });
        }
    }

    fn generator(&self) -> &Generator {
        let running = &self.servers[self.live].running;
        &running.as_ref().expect("a server that is up").generator
    }

    /// The worker id in force, or that of the file, if the run has not been opened yet.
    fn worker_id(&self) -> u16 {
        let disk = self.servers[self.live].disk;
        match self.generator().last() {
            last if last.ms > 0 => last.worker_id,
            last => disk.map_or(last.worker_id, |disk| disk.worker_id),
        }
    }

    /// Lead of the last id or, if there is none yet, of the file's reservation.
    fn lead_ms(&self) -> i64 {
        let last_ms = self.last_ms();
        let top_ms = if last_ms > 0 { last_ms } else { self.disk_ms() };
        top_ms - self.wall_ms()
    }

    fn last_ms(&self) -> i64 {
        let running = &self.servers[self.live].running;
        running.as_ref().map_or(0, |run| run.generator.last().ms)
    }

    fn disk_ms(&self) -> i64 {
        let disk = self.servers[self.live].disk;
        disk.map_or(0, |disk| disk.until_ms)
    }

    /// Notes an event, after which ids must come again within its limit.
    fn happened(&mut self, happened: Happened) {
        // A run that was waiting for an unknown predecessor begins to wait again.
        let happened = match self.since {
            Some(before)
                if before.happened.limit_ms(self.terms) > happened.limit_ms(self.terms) =>
            {
                before.happened
            }
            _ => happened,
        };
        self.since = Some(Since {
            happened,
            at_ms: self.now_ms,
            delayed_ms: 0,
        });
        self.waiting_since_ms = None;
        (self.writes_since_ms, self.writes) = (self.now_ms, 0);
        // A wait is allowed if faults have added up to more than the max lead.
        let mut expected_ms = self.terms.max_lead_ms;
        if self.is_unknown {
            expected_ms += self.terms.reservation_ms;
        }
        let until_ms = self.now_ms + self.owed_ms - expected_ms;
        self.excused_until_ms = self.excused_until_ms.max(until_ms);
    }

    /// Before an event: load and time have not made the leads due to faults any larger.
    fn settle(&mut self) {
        if self.is_unknown {
            return;
        }
        self.owed_ms = self.owed_ms.min(self.lead_ms());
        let owed_ms = self.owed_ms.max(0);
        let most_ms = self.terms.max_lead_ms - LEAST_MS;
        let wanted_ms = (owed_ms + self.terms.reservation_ms).min(most_ms);
        let until_ms = self.disk_ms() - self.wall_ms();
        self.owed_until_ms = (self.owed_until_ms.min(until_ms))
            .max(wanted_ms)
            .max(owed_ms + LEAST_MS);
    }

    /// A run ends with a reservation, which counts as used.
    fn crash(&mut self) {
        self.settle();
        if (self.live().running.as_ref()).is_some_and(|running| running.has_written) {
            self.owed_ms = self.owed_until_ms;
        }
        self.stop(false);
    }

    /// A start without a known predecessor.
    fn unknown(&mut self, happened: Happened) {
        self.is_unknown = true;
        let terms = self.terms;
        let unknown_ms = terms.max_lead_ms + terms.reservation_ms;
        self.owed_ms = if happened == Happened::OtherWorkerId {
            self.owed_ms.max(unknown_ms)
        } else {
            unknown_ms
        };
        // What the author of a copy may have issued since is waited out.
        let copied_ms = self.disk_ms() - self.wall_ms();
        if happened != Happened::LostDisk && happened != Happened::OtherWorkerId {
            self.owed_ms = self.owed_ms.max(copied_ms);
        }
        self.owed_until_ms = self.owed_ms + LEAST_MS;
        self.happened(happened);
    }

    /// Counts a write: few after an event, then at most two for each min reservation.
    fn wrote(&mut self) {
        self.writes += 1;
        let elapsed_ms = self.now_ms - self.writes_since_ms;
        if self.writes > 5 + 2 * elapsed_ms / LEAST_MS {
            let text = format!("{} writes within {elapsed_ms} ms", self.writes);
            self.fails(Trouble::Writes, text);
        }
    }

    /// Issues as many ids as possible for some time.
    fn load(&mut self, ms: i64) {
        for _ in 0..ms {
            self.now_ms += 1;
            self.turn_if_due();
            for _ in 0..24 {
                if !self.issue() {
                    break;
                }
            }
        }
    }

    fn turn_if_due(&mut self) {
        let now_ms = self.now_ms;
        let running = self.live().running.as_ref().expect("a server that is up");
        if running.wanted || running.turn_at_ms <= now_ms {
            self.turn();
        }
    }

    /// The file as read, with a rule broken.
    fn stored(&self, disk: Reserved, timeline: u32) -> Stored {
        let broken = self.broken;
        let mut stored = Stored {
            reserved_until_ms: disk.until_ms,
            epoch_ms: 0,
            layout: layout(),
            issued: disk.issued,
            system_identifier: 1,
            timeline: disk.timeline,
            original: disk.original || broken == Broken::Original,
            clean: disk.clean,
            left_behind_until_ms: None,
        };
        match broken {
            Broken::OwnFloor => stored.reserved_until_ms = 0,
            Broken::Timeline => stored.timeline = timeline,
            _ => {}
        }
        stored
    }

    /// The max lead as set, with a rule broken.
    fn lead(&self, lead: Lead) -> Lead {
        match self.broken {
            Broken::Bound => Lead {
                max_ms: i64::MAX / 2,
                ..lead
            },
            Broken::Pace => Lead {
                burst_ms: lead.max_ms,
                ..lead
            },
            _ => lead,
        }
    }

    /// The floor to open above, with a rule broken.
    fn above_ms(&self, above_ms: i64) -> i64 {
        let terms = self.terms;
        match self.broken {
            Broken::UnknownFloor if self.is_unknown => above_ms - terms.max_lead_ms,
            Broken::ClockDifference if self.is_unknown => above_ms - terms.reservation_ms,
            Broken::EndOfMillisecond => above_ms - 1,
            _ => above_ms,
        }
    }

    /// The reservation to write above `from_ms`, with a rule broken.
    fn until_ms(&self, from_ms: i64, until_ms: i64) -> i64 {
        match self.broken {
            Broken::Cap => until_ms.max(from_ms + self.terms.reservation_ms),
            Broken::Least if until_ms - from_ms <= LEAST_MS => {
                until_ms.min((from_ms + 1).max(self.disk_ms()))
            }
            _ => until_ms,
        }
    }

    fn turn(&mut self) {
        let mut input = Input::Look(self.look());
        loop {
            let wall_ms = self.wall_ms();
            let fails = self.chance(50);
            let write_ms = if self.chance(20) { self.within(10) } else { 0 };
            let pristine = self.largest.is_empty() || self.broken == Broken::NewCluster;
            let server = &mut self.servers[self.live];
            let worker_id = server.worker_id;
            let running = server.running.as_mut().expect("a server that is up");
            let generator = &running.generator;
            let last = generator.last();
            let from_the_file = self.broken == Broken::WordFloor
                && matches!(input, Input::Look(_))
                && !generator.is_open();
            let same_worker_id = self.broken == Broken::OtherWorkerId;
            let seen = Seen {
                now_ms: wall_ms,
                last_ms: if from_the_file { 0 } else { last.ms },
                last_worker_id: Some(if same_worker_id {
                    worker_id
                } else {
                    last.worker_id
                }),
                is_open: generator.is_open(),
                reserved_until_ms: generator.reserved_until(),
                lead: generator.lead(),
            };
            let step = running.keeper.step(&seen, input);
            running.shown = step.shown;
            for action in step.actions {
                self.act(action);
            }
            input = match step.then {
                Then::Read => {
                    let server = &self.servers[self.live];
                    let timeline = server.timeline;
                    Input::File(File {
                        system_identifier: 1,
                        timeline: if self.broken == Broken::NewCluster {
                            1
                        } else {
                            timeline
                        },
                        pristine,
                        found: server.disk.map_or(Found::Nothing, |disk| Found::Contents {
                            stored: self.stored(disk, timeline),
                            worker_id: Some(if same_worker_id {
                                worker_id
                            } else {
                                disk.worker_id
                            }),
                            retired: Vec::new(),
                        }),
                    })
                }
                Then::Reserve {
                    worker_id,
                    until_ms,
                    issued,
                } => {
                    let server = &self.servers[self.live];
                    let disk_ms = server.disk.map_or(0, |disk| disk.until_ms);
                    let is_open =
                        (server.running.as_ref()).is_some_and(|run| run.generator.is_open());
                    let above_ms = if is_open { last.ms } else { disk_ms };
                    let until_ms = self.until_ms(wall_ms.max(above_ms), until_ms);
                    self.now_ms += write_ms;
                    let server = &mut self.servers[self.live];
                    if self.broken != Broken::Durable {
                        server.write(worker_id, until_ms, issued);
                    }
                    // A failed write may still have reached the disk.
                    if fails {
                        let old_goes_on = is_open && last.worker_id != worker_id;
                        if let Some(since) = self.since.as_mut().filter(|_| old_goes_on) {
                            since.delayed_ms += RETRY_MS;
                        }
                        Input::Written(Err("the disk".into()))
                    } else {
                        if issued {
                            server.raise(until_ms);
                        }
                        self.wrote();
                        Input::Written(Ok(None))
                    }
                }
                Then::Wait(again_ms) => {
                    let again_ms = if fails { Some(1) } else { again_ms };
                    let now_ms = self.now_ms;
                    let running = self.live().running.as_mut().expect("a server that is up");
                    running.turn_at_ms = now_ms + again_ms.unwrap_or(100_000);
                    return;
                }
                Then::Lease { .. } => unreachable!("a worker id that is not leased"),
            };
        }
    }

    fn act(&mut self, action: Action) {
        let server = &self.servers[self.live];
        let configured = server.worker_id;
        let generator = &(server.running.as_ref().expect("a server that is up")).generator;
        match action {
            Action::Close => _ = generator.close(),
            Action::Open {
                worker_id,
                above_ms,
            } => {
                generator.open(worker_id, self.above_ms(above_ms));
                if self.is_unknown && worker_id == configured {
                    self.is_unknown = false;
                }
            }
            Action::SetLead(lead) => generator.set_lead(self.lead(lead)),
            _ => {}
        }
    }

    fn look(&mut self) -> Look {
        let terms = self.terms;
        let configured = match self.live() {
            server if server.is_unset => Configured::Unset,
            server => Configured::Fixed(server.worker_id),
        };
        let running = self.live().running.as_mut().expect("a server that is up");
        Look {
            write_ms: 0,
            configured,
            in_recovery: running.in_recovery,
            resets: 0,
            wanted: core::mem::take(&mut running.wanted),
            registry_is_here: false,
            led: false,
            reservation_ms: terms.reservation_ms,
            max_lead_ms: terms.max_lead_ms,
            max_burst_ms: BURST_MS,
        }
    }

    /// A session's call. True if it got an id.
    fn issue(&mut self) -> bool {
        let wall_ms = self.wall_ms();
        let late = self.chance(3);
        let start = self.random.random_range(0..4);
        let has_waited = self.chance(2);
        let server = &self.servers[self.live];
        let disk_ms = server.disk.map_or(0, |disk| disk.until_ms);
        let running = server.running.as_ref().expect("a server that is up");
        let generator = &running.generator;
        let full = self.full.filter(|_| has_waited);
        let issued = generator.next(|| wall_ms, |most| start.min(most), full);
        let stall = match issued {
            Ok(issued) => {
                self.check(issued.id, disk_ms, issued.lead_ms);
                return true;
            }
            Err(stall) => stall,
        };
        match stall {
            Stall::Full(found) => {
                // Found again if the clock was set back since then, as in a session.
                let is_waited_for = self.full.is_some_and(|full| {
                    full.ms == found.ms && full.found_at_ms <= found.found_at_ms
                });
                if !is_waited_for {
                    self.full = Some(found);
                }
                return false;
            }
            Stall::Unreserved if late => {
                let last = generator.last();
                let reserved_ms = generator.reserved_until();
                let until_ms = late_renewal(wall_ms, last.ms, self.terms, reserved_ms, FOR_EVER)
                    .map(|until_ms| self.until_ms(wall_ms.max(last.ms), until_ms));
                if let Some(until_ms) = until_ms {
                    let is_written = self.broken != Broken::Durable;
                    let server = self.live();
                    if is_written {
                        server.write(last.worker_id, until_ms, true);
                    }
                    server.raise(until_ms);
                    self.wrote();
                }
            }
            Stall::Unreserved | Stall::Closed => {
                let running = self.live().running.as_mut().expect("a server that is up");
                running.wanted = true;
            }
            Stall::TooFarAhead(_) => {}
            Stall::EndOfTime => unreachable!("{stall:?}"),
        }
        let since = match self.since {
            Some(since) => since,
            None => Since {
                happened: Happened::Nothing,
                at_ms: *self.waiting_since_ms.get_or_insert(self.now_ms),
                delayed_ms: 0,
            },
        };
        let limit_ms = since.happened.limit_ms(self.terms) + since.delayed_ms;
        let until_ms = since.at_ms.max(self.excused_until_ms) + limit_ms;
        if self.now_ms > until_ms {
            let shown = self.live().running.as_ref().map(|running| running.shown);
            let waited_ms = self.now_ms - since.at_ms;
            self.fails(
                Trouble::Waits(since.happened),
                format!("{waited_ms} ms without an id: {stall:?}, {shown:?}"),
            );
        }
        false
    }

    fn check(&mut self, id: i64, disk_ms: i64, lead_ms: i64) {
        let parts = layout().decompose(id).expect("an id");
        if let Some(since) = self.since
            && parts.worker_id == self.servers[self.live].worker_id
        {
            let waited_ms = self.now_ms - since.at_ms;
            let times = self.times.entry(since.happened).or_default();
            let limit_ms = since.happened.limit_ms(self.terms) + since.delayed_ms;
            times.add(waited_ms, limit_ms);
            self.since = None;
        }
        if let Some(since_ms) = self.waiting_since_ms.take() {
            let times = self.times.entry(Happened::Nothing).or_default();
            let limit_ms = Happened::Nothing.limit_ms(self.terms);
            times.add(self.now_ms - since_ms, limit_ms);
        }
        self.owed_ms = self.owed_ms.max(lead_ms.min(BURST_MS));
        self.issued += 1;
        self.led += usize::from(lead_ms > BURST_MS);
        let before = self.largest.insert(parts.worker_id, id).unwrap_or(0);
        if id <= before {
            let before = layout().decompose(before);
            self.fails(Trouble::Twice, format!("{parts:?} after {before:?}"));
        }
        if parts.ms > disk_ms {
            self.fails(
                Trouble::NotOnDisk,
                format!("{parts:?}, and {disk_ms} is on the disk"),
            );
        }
        if lead_ms > self.terms.max_lead_ms {
            self.fails(Trouble::Lead, format!("{parts:?} leads by {lead_ms}"));
        }
        let real_ms = (parts.ms - self.wall_ms()).max(0);
        assert_eq!(lead_ms.max(0), real_ms, "the lead as reported");
    }

    /// A copy of the live server's disk, for another server.
    fn copied(&mut self) -> Option<Reserved> {
        self.live().disk.map(|disk| Reserved {
            original: false,
            ..disk
        })
    }

    /// Sets the live server's clock, within the allowed offset.
    fn set_clock(&mut self) {
        let apart_ms = match self.broken {
            _ if self.alone => self.terms.max_lead_ms - 1,
            Broken::Clocks => 2 * self.terms.reservation_ms,
            _ => self.terms.reservation_ms,
        };
        let off_ms = self.within(apart_ms) - apart_ms / 2;
        self.settle();
        let back_ms = self.live().off_ms - off_ms;
        self.live().off_ms = off_ms;
        // The floor above an unknown predecessor may still be computed, by the clock as set.
        let owed_ms = if self.is_unknown {
            back_ms.max(0)
        } else {
            back_ms
        };
        self.owed_ms += owed_ms;
        self.owed_until_ms += owed_ms;
        self.happened(if back_ms > 0 {
            Happened::SetBack
        } else {
            Happened::SetAhead
        });
    }

    /// Runs a random event.
    fn happen(&mut self) {
        self.now_ms += i64::from(self.chance(2));
        let is_waited_for = self.since.is_some() || self.waiting_since_ms.is_some();
        if !is_waited_for {
            self.now_ms += if self.chance(40) { self.within(60) } else { 0 };
            self.now_ms += if self.calm { self.within(4) } else { 0 };
        }
        let event = match self.within(2_000) {
            0..=43 if self.calm && !self.chance(16) => return,
            30..=43 if self.alone => return,
            event => event,
        };
        if event < 45 {
            self.recent.push(format!(
                "{event} at {}, {} ahead, {} off",
                self.now_ms,
                self.lead_ms(),
                self.servers[self.live].off_ms
            ));
            let old = self.recent.len().saturating_sub(6);
            self.recent.drain(..old);
        }
        match event {
            // A crash, sometimes many in a row.
            0..=9 => {
                let crashes = if self.chance(4) { 20 } else { 1 };
                for _ in 0..crashes {
                    self.now_ms += self.within(20);
                    self.crash();
                    self.start(false);
                    self.happened(Happened::Kill);
                    self.turn();
                }
            }
            10..=13 => {
                // What was written for a generator that was not opened counts as used.
                if self.generator().is_open() {
                    self.settle();
                    self.stop(true);
                } else {
                    self.crash();
                }
                self.start(false);
                self.happened(Happened::CleanStop);
            }
            14..=19 => {
                // Restarts of the launcher alone: the word is kept.
                let restarts = if self.chance(4) { 20 } else { 1 };
                for _ in 0..restarts {
                    if self.last_ms() > 0 {
                        self.settle();
                        self.stop(true);
                    } else {
                        self.crash();
                    }
                    let worker_id = self.live().worker_id;
                    self.restart_launcher(Some(worker_id));
                    self.happened(Happened::LauncherRestart);
                    self.turn();
                }
            }
            20..=29 => self.set_clock(),
            30..=35 => {
                // A standby's disk is like a backup's.
                let copy = self.copied();
                let other = usize::try_from(self.within(2)).unwrap_or(0);
                if other != self.live {
                    self.servers[other].disk = copy;
                    self.servers[other].timeline = self.servers[self.live].timeline;
                }
                self.live().backup = copy;
            }
            36..=38 => {
                let other = usize::try_from(self.within(2)).unwrap_or(0);
                if other != self.live {
                    self.promote(other);
                }
            }
            39..=40 => {
                // An older backup replaces the server.
                self.crash();
                let server = self.live();
                server.disk = server.backup;
                self.start(false);
                self.unknown(Happened::Restore);
            }
            41..=42 => {
                // Change to a worker id that another server has used since, perhaps the own one.
                self.settle();
                let worker_id = u16::try_from(self.within(3)).unwrap_or(0);
                let is_own = [self.worker_id(), self.live().worker_id].contains(&worker_id);
                // The first one of a new cluster is one that no server has used.
                if self.issued > 0 {
                    if is_own {
                        self.live().is_unset = true;
                        if self.chance(4) {
                            self.restart_launcher(None);
                        }
                        self.turn();
                    }
                    self.use_elsewhere(worker_id);
                    let server = self.live();
                    server.worker_id = worker_id;
                    server.is_unset = false;
                    // A running launcher would know by itself.
                    if self.broken == Broken::OtherWorkerId
                        || (self.broken == Broken::Kept && is_own)
                    {
                        self.restart_launcher(Some(worker_id));
                    }
                    self.unknown(Happened::OtherWorkerId);
                    self.turn();
                    if is_own && self.chance(3) {
                        let running = self.live().running.as_ref();
                        let kept = running.and_then(|running| running.keeper.kept_worker_id());
                        self.restart_launcher(kept);
                        self.turn();
                    }
                    // Assumption: no server starts with one that another has just used.
                    while is_own && self.is_unknown {
                        self.now_ms += 1;
                        let running = self.live().running.as_mut();
                        running.expect("a server that is up").wanted = true;
                        self.turn_if_due();
                    }
                }
            }
            43 => {
                self.crash();
                self.live().disk = None;
                self.start(false);
                self.unknown(Happened::LostDisk);
            }
            44 => {
                let ms = self.within(500);
                self.load(ms);
            }
            45..=1_000 => self.turn_if_due(),
            _ => {
                let most = if self.calm && !is_waited_for { 2 } else { 12 };
                for _ in 0..=self.within(most) {
                    let _ = self.issue();
                }
            }
        }
    }

    /// A new launcher; `kept`: as the last one saw it.
    fn restart_launcher(&mut self, kept: Option<u16>) {
        let running = self.live().running.as_mut().expect("a server that is up");
        running.keeper = Keeper::new(0, layout(), 0, false, kept);
    }

    /// A server that is not simulated has issued ids with this worker id, as late as it may.
    fn use_elsewhere(&mut self, worker_id: u16) {
        let terms = self.terms;
        let ms = self.now_ms + terms.reservation_ms / 2 + terms.max_lead_ms;
        let id = layout().compose(Parts {
            ms,
            worker_id,
            sequence: layout().max_sequence(),
        });
        let largest = self.largest.entry(worker_id).or_default();
        *largest = id.max(*largest);
    }

    /// Failover: the primary is down and another server is promoted, whose launcher looks for that
    /// once a second.
    fn promote(&mut self, other: usize) {
        if self.chance(2) {
            self.stop(true);
        }
        self.live().running = None;
        let worker_id = self.live().worker_id;
        self.live = other;
        self.timeline += 1;
        let timeline = self.timeline;
        self.start(true);
        self.turn();
        let turn_at_ms = self.now_ms + self.within(1_000);
        let server = self.live();
        (server.timeline, server.worker_id) = (timeline, worker_id);
        if let Some(running) = &mut server.running {
            running.in_recovery = false;
            running.turn_at_ms = turn_at_ms;
        }
        self.unknown(Happened::Promotion);
    }
}

impl Server {
    fn write(&mut self, worker_id: u16, until_ms: i64, issued: bool) {
        if let Some(running) = &mut self.running {
            running.has_written |= issued;
        }
        self.disk = Some(Reserved {
            worker_id,
            until_ms,
            timeline: self.timeline,
            issued,
            clean: !issued,
            original: true,
        });
    }

    fn raise(&self, until_ms: i64) {
        if let Some(running) = &self.running {
            running.generator.reserve(until_ms);
        }
    }
}

/// The result of a simulation.
struct Outcome {
    trouble: Option<(Trouble, String)>,
    times: BTreeMap<Happened, Times>,
    issued: usize,
    led: usize,
}

fn run(seed: u64, terms: Terms, broken: Broken) -> Outcome {
    let mut world = World::new(seed, terms, broken);
    for step in 0..STEPS {
        world.happen();
        if let Some((_, text)) = &mut world.trouble {
            let recent = &world.recent;
            let _ = write!(text, " (step {step}); {recent:?}");
            break;
        }
    }
    Outcome {
        trouble: world.trouble,
        times: world.times,
        issued: world.issued,
        led: world.led,
    }
}

fn show(terms: Terms, times: &BTreeMap<Happened, Times>) {
    let bounds = BOUNDS_MS.map(|ms| format!("{:>9}", format!("<= {ms}")));
    println!(
        "{:<16}{}     more  longest  excused",
        format!("{}, {}", terms.reservation_ms, terms.max_lead_ms),
        bounds.concat()
    );
    for (happened, times) in times {
        let counts = times.counts.map(|count| format!("{count:>9}")).concat();
        println!(
            "{:<16}{counts}{:>9}{:>9}",
            format!("{happened:?}"),
            times.longest_ms,
            times.excused
        );
    }
}

#[test]
fn no_id_comes_twice_or_goes_back_and_no_call_waits() {
    let seed = support::seed();
    let (mut issued, mut led) = (0, 0);
    println!("Milliseconds from an event to the first id, for a reservation and a max lead");
    for terms in TERMS {
        let mut times = BTreeMap::<_, Times>::new();
        for round in 0..support::rounds(100, 7_000) {
            let seed = seed.wrapping_add(round);
            let outcome = run(seed, terms, Broken::Nothing);
            let trouble = outcome.trouble;
            assert_eq!(trouble, None, "{terms:?}, LEAF_ID_SEED={seed}");
            for (happened, more) in &outcome.times {
                times.entry(*happened).or_default().add_all(more);
            }
            issued += outcome.issued;
            led += outcome.led;
        }
        show(terms, &times);
    }
    println!("{issued} ids, {led} of them ahead of the clock");
    let not_led = issued - led;
    assert!(led > 100_000 && not_led > 100_000, "it does nothing");
}

/// The first trouble in so many rounds.
fn noticed(seed: u64, rounds: u64, broken: Broken) -> Option<Trouble> {
    let found = (0..rounds).find_map(|round| {
        let terms = TERMS[usize::try_from(round).unwrap_or(0) % TERMS.len()];
        let seed = seed.wrapping_add(round);
        let (trouble, text) = run(seed, terms, broken).trouble?;
        let (reservation_ms, max_ms) = (terms.reservation_ms, terms.max_lead_ms);
        println!("{broken:?}: {trouble:?} in round {round} ({reservation_ms}, {max_ms}); {text}");
        Some(trouble)
    });
    if found.is_none() {
        println!("{broken:?}: nothing in {rounds} rounds");
    }
    found
}

#[test]
fn each_rule_is_needed() {
    let seed = support::seed();
    let rounds = support::rounds(20_000, 60_000);
    let not_found: Vec<_> = thread::scope(|scope| {
        let runs: Vec<_> = NEEDED
            .into_iter()
            .map(|broken| {
                let run = scope.spawn(move || noticed(seed, rounds, broken).is_some());
                (broken, run)
            })
            .collect();
        runs.into_iter()
            .filter_map(|(broken, run)| (!run.join().expect("no panic")).then_some(broken))
            .collect()
    });
    assert!(not_found.is_empty(), "not needed: {not_found:?}");
}
