//! Seeded simulation of servers that share fixed worker ids: crashes, restarts of the launcher,
//! clock changes, promotions, restored backups and changes of the worker id. The launcher's state
//! machine and the word are the code that ships; clocks and disks are simulated.
//!
//! Would catch: an id issued twice or out of order, within one server (I4, I7) or from a server to
//! its successor; an id whose timestamp is not on disk, or leads the clock by more than allowed;
//! and a call that waits without need.

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

/// Few ids per millisecond, so that many milliseconds are full.
const LAYOUT: &str = "41/2/2";
const TERMS: Terms = Terms {
    reservation_ms: 1_000,
    configured_lead_ms: 3_000,
    granted_lead_ms: FOR_EVER,
};
/// Max offset of a server's clock from true time; so two clocks differ by at most one reservation.
const OFF_MS: i64 = TERMS.reservation_ms / 2;
const BURST_MS: i64 = 20;
const SERVERS: usize = 3;
const STEPS: usize = 6_000;
/// Max wait of a call in a normal state: a few turns of a slow launcher.
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
    /// Time of the launcher's next turn.
    turn_at_ms: i64,
}

struct Server {
    off_ms: i64,
    worker_id: u16,
    timeline: u32,
    disk: Option<Reserved>,
    /// An older copy of the disk.
    backup: Option<Reserved>,
    running: Option<Running>,
}

struct World {
    random: StdRng,
    /// Fewer runs without a known predecessor, and faster time.
    calm: bool,
    now_ms: i64,
    servers: Vec<Server>,
    /// The server that issues now; the others are down.
    live: usize,
    timeline: u32,
    /// Largest id per worker id, over all servers.
    largest: HashMap<u16, i64>,
    /// Start of the last run that did not know its predecessor.
    unknown_at_ms: i64,
    /// Start of the current wait, other than for the next millisecond.
    waiting_since_ms: Option<i64>,
    /// Calls may wait until then, because the clock was set back too far.
    excused_until_ms: i64,
    issued: usize,
    led: usize,
    trouble: Option<String>,
    /// Recent events, for the failure message.
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
                clean: true,
                unknown_since_ms: running.generator.lead().unknown_since_ms(),
                original: true,
            });
        }
    }

    /// Passes time before a start without a known predecessor: two of them are at least twice the
    /// clock difference apart.
    fn before_unknown(&mut self) {
        let earliest = self.unknown_at_ms + 2 * (2 * OFF_MS) + 2;
        self.now_ms = self.now_ms.max(earliest);
        self.unknown_at_ms = self.now_ms;
        self.waiting_since_ms = None;
    }

    /// Allows a wait: the author of the copy led the clock by more than usual, and what it may have
    /// issued since is waited out.
    fn excuse_copy(&mut self) {
        let until_ms = self.live().disk.map_or(0, |disk| disk.until_ms);
        let excess_ms = until_ms - self.wall_ms() - TERMS.configured_lead_ms;
        self.excused_until_ms = self.excused_until_ms.max(self.now_ms + excess_ms);
    }

    /// Allows a wait: each crash of a run without a known predecessor leaves the min reservation
    /// above its max lead, which shrinks half as fast as time passes.
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
            let pristine = self.largest.is_empty();
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
                    pristine,
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
                    // A failed write may still have reached the disk.
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

    /// A session's call.
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

    /// A copy of the live server's disk, for another server.
    fn copied(&mut self) -> Option<Reserved> {
        self.live().disk.map(|disk| Reserved {
            original: false,
            ..disk
        })
    }

    /// Sets the live server's clock, within the allowed offset.
    fn set_clock(&mut self) {
        let off_ms = self.within(2 * OFF_MS) - OFF_MS;
        let back_ms = self.live().off_ms - off_ms;
        self.live().off_ms = off_ms;
        // After a crash and a set-back of less than the remaining lead, ids must continue.
        let last_ms = (self.live().running.as_ref()).map_or(0, |run| run.generator.last().ms);
        let disk_ms = self.live().disk.map_or(0, |disk| disk.until_ms);
        let lead_ms = last_ms.max(disk_ms) - self.wall_ms();
        if back_ms > 0 && lead_ms > TERMS.configured_lead_ms {
            self.excused_until_ms = self.excused_until_ms.max(self.now_ms + back_ms);
        }
    }

    /// Runs a random event.
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
            // A crash, sometimes many in a row.
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
                // Restart of the launcher alone: the word is kept.
                self.stop(true);
                let running = self.live().running.as_mut().expect("a server that is up");
                running.keeper = Keeper::new(0, layout(), 0, false);
                self.turn();
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
                // Failover: the primary is down and another server is promoted.
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
                // An older backup replaces the server.
                self.stop(false);
                self.before_unknown();
                let server = self.live();
                server.disk = server.backup;
                self.excuse_copy();
                self.start();
            }
            41..=42 => {
                // Change to a worker id that another server has used.
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
