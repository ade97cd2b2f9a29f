//! A seeded simulation of servers that share fixed worker ids: crashes, restarts of the
//! launcher, clocks that are set, promotions, restored backups and changes of the worker id.
//! What decides is what ships: the launcher's state machine and the word. Clocks and disks are
//! made here.
//!
//! Would catch: an id that comes twice or goes back, within one server (I4, I7) or from a server
//! to the one that takes its place; an id whose time is not on disk, or that leads the clock by
//! more than it may; and a call that waits where nothing is to be waited for.

#![cfg(not(leaf_id_loom))]
#![allow(clippy::expect_used, reason = "a test that panics fails")]

mod support;

use std::collections::HashMap;

use leaf_id_core::keeper::{
    Action, Configured, FOR_EVER, File, Found, Input, Keeper, Look, Seen, Then,
};
use leaf_id_core::layout::Layout;
use leaf_id_core::reservation::{Stored, Terms, late_renewal};
use leaf_id_core::snowflake::{Generator, Stall};
use leaf_id_core::state::State;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Few ids a millisecond, so that many are full.
const LAYOUT: &str = "41/2/2";
const TERMS: Terms = Terms {
    reservation_ms: 1_000,
    configured_lead_ms: 3_000,
    granted_lead_ms: FOR_EVER,
};
/// Clocks of servers are this far from the right time at most, and so one reservation from each
/// other.
const OFF_MS: i64 = TERMS.reservation_ms / 2;
const BURST_MS: i64 = 20;
const SERVERS: usize = 3;
const STEPS: usize = 6_000;
/// How long a call may wait for what is done at once: some turns of a launcher that is slow.
const AT_ONCE_MS: i64 = 400;

/// The reservation file.
#[derive(Clone, Copy)]
struct Reserved {
    worker_id: u16,
    until_ms: i64,
    timeline: u32,
    clean: bool,
    unknown_since_ms: Option<i64>,
    original: bool,
}

struct Running {
    keeper: Keeper,
    generator: Generator,
    shown: State,
    wanted: bool,
    /// When the launcher's next turn is due.
    turn_at_ms: i64,
}

struct Server {
    off_ms: i64,
    worker_id: u16,
    timeline: u32,
    disk: Option<Reserved>,
    /// A copy of the disk, of some time ago.
    backup: Option<Reserved>,
    running: Option<Running>,
}

struct World {
    random: StdRng,
    /// Few runs begin that know nothing, and time passes faster.
    calm: bool,
    now_ms: i64,
    servers: Vec<Server>,
    /// Who issues now; the others are off.
    live: usize,
    timeline: u32,
    /// The largest id of each worker id, from whichever server.
    largest: HashMap<u16, i64>,
    /// When a run began last that did not know its predecessor.
    unknown_at_ms: i64,
    /// Since when a call waits, other than for the next millisecond.
    waiting_since_ms: Option<i64>,
    /// Until when calls may wait, since the clock was set back further than can be gone along
    /// with.
    excused_until_ms: i64,
    issued: usize,
    led: usize,
    trouble: Option<String>,
    /// What happened last, for people.
    recent: Vec<String>,
}

fn layout() -> Layout {
    Layout::parse(LAYOUT).expect("a layout")
}

impl World {
    fn new(seed: u64) -> Self {
        let server = |_| Server {
            off_ms: 0,
            worker_id: 1,
            timeline: 1,
            disk: None,
            backup: None,
            running: None,
        };
        let mut world = Self {
            random: StdRng::seed_from_u64(seed),
            calm: seed.is_multiple_of(2),
            now_ms: 1_000_000,
            servers: (0..SERVERS).map(server).collect(),
            live: 0,
            timeline: 1,
            largest: HashMap::new(),
            unknown_at_ms: 1_000_000,
            waiting_since_ms: None,
            excused_until_ms: 0,
            issued: 0,
            led: 0,
            trouble: None,
            recent: Vec::new(),
        };
        world.start();
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

    fn fails(&mut self, what: String) {
        self.trouble.get_or_insert(what);
    }

    fn start(&mut self) {
        let now_ms = self.now_ms;
        self.live().running = Some(Running {
            keeper: Keeper::new(0, layout(), 0, false),
            generator: Generator::new(layout()),
            shown: State::Starting,
            wanted: false,
            turn_at_ms: now_ms,
        });
    }

    /// The launcher ends in good order, or all does.
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
                clean: true,
                unknown_since_ms: running.generator.lead().unknown_since_ms(),
                original: true,
            });
        }
    }

    /// Before a start that cannot know what was issued: two of those are at least twice as far
    /// apart as clocks differ.
    fn before_unknown(&mut self) {
        let earliest = self.unknown_at_ms + 2 * (2 * OFF_MS) + 2;
        self.now_ms = self.now_ms.max(earliest);
        self.unknown_at_ms = self.now_ms;
        self.waiting_since_ms = None;
    }

    /// Who wrote the copy led the clock by more than most: what it may have issued since is
    /// waited out.
    fn excuse_copy(&mut self) {
        let until_ms = self.live().disk.map_or(0, |disk| disk.until_ms);
        let excess_ms = until_ms - self.wall_ms() - TERMS.configured_lead_ms;
        self.excused_until_ms = self.excused_until_ms.max(self.now_ms + excess_ms);
    }

    /// Each crash of a run that knew nothing leaves the least that is reserved above what its ids
    /// may lead by, and that melts half as fast as time passes.
    fn excuse_crash(&mut self) {
        let until_ms = self.live().disk.map_or(0, |disk| disk.until_ms);
        if until_ms - self.wall_ms() > TERMS.configured_lead_ms {
            self.excused_until_ms = self.excused_until_ms.max(self.now_ms) + 2 * 100;
        }
    }

    fn turn(&mut self) {
        let mut input = Input::Look(self.look());
        loop {
            let wall_ms = self.wall_ms();
            let boot_ms = self.now_ms;
            let fails = self.chance(200);
            let server = &mut self.servers[self.live];
            let running = server.running.as_mut().expect("a server that is up");
            let generator = &running.generator;
            let last = generator.last();
            let seen = Seen {
                now_ms: wall_ms,
                boot_ms,
                last_ms: last.ms,
                last_worker_id: Some(last.worker_id),
                reserved_until_ms: generator.reserved_until(),
                lead: generator.lead(),
            };
            let step = running.keeper.step(&seen, input);
            for action in step.actions {
                match action {
                    Action::Close => _ = generator.close(),
                    Action::Open {
                        worker_id,
                        above_ms,
                    } => generator.open(worker_id, above_ms),
                    Action::SetLead(lead) => generator.set_lead(lead),
                    _ => {}
                }
            }
            running.shown = step.shown;
            input = match step.then {
                Then::Read => Input::File(File {
                    system_identifier: 1,
                    timeline: server.timeline,
                    found: server.disk.map_or(Found::Nothing, |disk| Found::Contents {
                        stored: Stored {
                            reserved_until_ms: disk.until_ms,
                            epoch_ms: 0,
                            layout: layout(),
                            system_identifier: 1,
                            timeline: disk.timeline,
                            original: disk.original,
                            clean: disk.clean,
                            unknown_since_ms: disk.unknown_since_ms,
                            left_behind_until_ms: None,
                        },
                        worker_id: Some(disk.worker_id),
                        retired: Vec::new(),
                    }),
                }),
                Then::Reserve {
                    worker_id,
                    until_ms,
                    unknown_since_ms,
                } => {
                    server.write(worker_id, until_ms, unknown_since_ms);
                    // What has failed may be on the disk, too.
                    if fails {
                        Input::Written(Err("the disk".into()))
                    } else {
                        server.raise(until_ms);
                        Input::Written(Ok(None))
                    }
                }
                Then::Wait(again_ms) => {
                    let again_ms = if fails { Some(1) } else { again_ms };
                    running.turn_at_ms = boot_ms + again_ms.unwrap_or(100_000);
                    return;
                }
                Then::Lease { .. } => unreachable!("a worker id that is not leased"),
            };
        }
    }

    fn look(&mut self) -> Look {
        let worker_id = self.live().worker_id;
        let running = self.live().running.as_mut().expect("a server that is up");
        Look {
            configured: Configured::Fixed(worker_id),
            in_recovery: false,
            resets: 0,
            wanted: core::mem::take(&mut running.wanted),
            registry_is_here: false,
            led: false,
            reservation_ms: TERMS.reservation_ms,
            max_lead_ms: TERMS.configured_lead_ms,
            max_burst_ms: BURST_MS,
        }
    }

    /// A call of a session.
    fn issue(&mut self) {
        let wall_ms = self.wall_ms();
        let late = self.chance(3);
        let start = self.random.random_range(0..4);
        let server = &mut self.servers[self.live];
        let disk_ms = server.disk.map_or(0, |disk| disk.until_ms);
        let running = server.running.as_mut().expect("a server that is up");
        let generator = &running.generator;
        let bound_ms = generator.lead().bound_ms(wall_ms);
        let stall = match generator.next(|| wall_ms, || true, |most| start.min(most)) {
            Ok(issued) => {
                self.waiting_since_ms = None;
                self.check(issued.id, disk_ms, bound_ms, issued.lead_ms);
                return;
            }
            Err(stall) => stall,
        };
        match stall {
            Stall::Full(_) => return,
            Stall::Unreserved if late => {
                let last = generator.last();
                let reserved_ms = generator.reserved_until();
                let unknown_since_ms = generator.lead().unknown_since_ms();
                let until_ms = late_renewal(wall_ms, last.ms, TERMS, reserved_ms, FOR_EVER);
                if let Some(until_ms) = until_ms {
                    server.write(last.worker_id, until_ms, unknown_since_ms);
                    server.raise(until_ms);
                }
            }
            Stall::Unreserved | Stall::Closed => running.wanted = true,
            Stall::TooFarAhead(_) => {}
            Stall::Unleased | Stall::EndOfTime => unreachable!("{stall:?}"),
        }
        let since_ms = *self.waiting_since_ms.get_or_insert(self.now_ms);
        let waited_ms = self.now_ms - since_ms.max(self.excused_until_ms);
        if waited_ms > AT_ONCE_MS {
            let shown = self.live().running.as_ref().map(|running| running.shown);
            self.fails(format!(
                "{waited_ms} ms without an id: {stall:?}, {shown:?}"
            ));
        }
    }

    fn check(&mut self, id: i64, disk_ms: i64, bound_ms: i64, lead_ms: i64) {
        self.issued += 1;
        self.led += usize::from(lead_ms > BURST_MS);
        let parts = layout().decompose(id).expect("an id");
        let before = self.largest.insert(parts.worker_id, id).unwrap_or(0);
        if id <= before {
            let before = layout().decompose(before);
            self.fails(format!("{parts:?} after {before:?}"));
        }
        if parts.ms > disk_ms {
            self.fails(format!("{parts:?}, and {disk_ms} is on the disk"));
        }
        if lead_ms > bound_ms || lead_ms != parts.ms - self.wall_ms() {
            self.fails(format!("{parts:?} leads by {lead_ms}"));
        }
    }

    /// The live server's disk, as another one has it.
    fn copied(&mut self) -> Option<Reserved> {
        self.live().disk.map(|disk| Reserved {
            original: false,
            ..disk
        })
    }

    /// The live server's clock is set, within what clocks may be off.
    fn set_clock(&mut self) {
        let off_ms = self.within(2 * OFF_MS) - OFF_MS;
        let back_ms = self.live().off_ms - off_ms;
        self.live().off_ms = off_ms;
        // With a crash and a set-back of less than what is left of the lead ids go on.
        let last_ms = (self.live().running.as_ref()).map_or(0, |run| run.generator.last().ms);
        let disk_ms = self.live().disk.map_or(0, |disk| disk.until_ms);
        let lead_ms = last_ms.max(disk_ms) - self.wall_ms();
        if back_ms > 0 && lead_ms > TERMS.configured_lead_ms {
            self.excused_until_ms = self.excused_until_ms.max(self.now_ms + back_ms);
        }
    }

    /// Something happens.
    fn happen(&mut self) {
        self.now_ms +=
            i64::from(self.chance(2)) + if self.chance(40) { self.within(60) } else { 0 };
        if self.calm {
            self.now_ms += self.within(4);
        }
        let event = match self.within(2_000) {
            0..=43 if self.calm && !self.chance(16) => return,
            event => event,
        };
        if event < 44 {
            let lead_ms = (self.live().running.as_ref())
                .map_or(0, |running| running.generator.last().ms)
                - self.wall_ms();
            self.recent.push(format!(
                "{event} at {}, {lead_ms} ahead, {} off",
                self.now_ms, self.servers[self.live].off_ms
            ));
            let old = self.recent.len().saturating_sub(6);
            self.recent.drain(..old);
        }
        match event {
            // A crash, once in a while many in a row.
            0..=9 => {
                let crashes = if self.chance(4) { 20 } else { 1 };
                for _ in 0..crashes {
                    self.excuse_crash();
                    self.stop(false);
                    self.start();
                    self.turn();
                    self.now_ms += self.within(20);
                }
            }
            10..=13 => {
                self.stop(true);
                self.start();
            }
            14..=19 => {
                // The launcher alone: the word stays.
                self.stop(true);
                let running = self.live().running.as_mut().expect("a server that is up");
                running.keeper = Keeper::new(0, layout(), 0, false);
                self.turn();
            }
            20..=29 => self.set_clock(),
            30..=35 => {
                // A standby's disk is that of a backup.
                let copy = self.copied();
                let other = usize::try_from(self.within(2)).unwrap_or(0);
                if other != self.live {
                    self.servers[other].disk = copy;
                    self.servers[other].timeline = self.servers[self.live].timeline;
                }
                self.live().backup = copy;
            }
            36..=38 => {
                // The primary is off, and another server promoted.
                let other = usize::try_from(self.within(2)).unwrap_or(0);
                if other == self.live {
                    return;
                }
                let clean = self.chance(2);
                self.stop(clean);
                self.live().running = None;
                let worker_id = self.live().worker_id;
                self.live = other;
                self.before_unknown();
                self.timeline += 1;
                let timeline = self.timeline;
                let server = self.live();
                (server.timeline, server.worker_id) = (timeline, worker_id);
                self.excuse_copy();
                self.start();
            }
            39..=40 => {
                // The backup of some time ago takes the server's place.
                self.stop(false);
                self.before_unknown();
                let server = self.live();
                server.disk = server.backup;
                self.excuse_copy();
                self.start();
            }
            41..=42 => {
                // Another worker id, which another server has used.
                self.before_unknown();
                let worker_id = u16::try_from(self.within(3)).unwrap_or(0);
                self.live().worker_id = worker_id;
                self.turn();
            }
            43 => {
                self.stop(false);
                self.before_unknown();
                self.live().disk = None;
                self.start();
            }
            44..=1_000 => {
                let now_ms = self.now_ms;
                let running = self.live().running.as_ref().expect("a server that is up");
                if running.wanted || running.turn_at_ms <= now_ms {
                    self.turn();
                }
            }
            _ => {
                let most = if self.calm { 2 } else { 12 };
                for _ in 0..self.within(most) {
                    self.issue();
                }
            }
        }
    }
}

impl Server {
    fn write(&mut self, worker_id: u16, until_ms: i64, unknown_since_ms: Option<i64>) {
        self.disk = Some(Reserved {
            worker_id,
            until_ms,
            timeline: self.timeline,
            clean: false,
            unknown_since_ms,
            original: true,
        });
    }

    fn raise(&self, until_ms: i64) {
        if let Some(running) = &self.running {
            running.generator.reserve(until_ms);
        }
    }
}

#[test]
fn no_id_comes_twice_or_goes_back_and_no_call_waits() {
    let seed = support::seed();
    let (mut issued, mut led) = (0, 0);
    for round in 0..support::rounds(300, 20_000) {
        let seed = seed.wrapping_add(round);
        let mut world = World::new(seed);
        for step in 0..STEPS {
            world.happen();
            if let Some(trouble) = world.trouble {
                panic!(
                    "round {round}, step {step}: {trouble} (LEAF_ID_SEED={seed}); {:?}",
                    world.recent
                );
            }
        }
        issued += world.issued;
        led += world.led;
    }
    println!("{issued} ids, {led} of them ahead of the clock");
    let not_led = issued - led;
    assert!(led > 100_000 && not_led > 100_000, "it does nothing");
}
