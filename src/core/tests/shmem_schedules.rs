//! `src/shmem` as it ships, under shuttle: sessions, allocators, editors and launchers as up to a
//! dozen threads, in random schedules. A step of a schedule is an access to an atomic or to a lock.
//! Every load sees the last store. What else orderings allow is tried for the core, by
//! `loom_segment`; here it is argued where they stand (loom has no SeqCst, which [`shmem`] needs).
//!
//! Would catch: a race between an eviction, an edit or a drop and what sessions and allocators do
//! with the slot, which servers meet once a year. Each model names the wrong result.
//!
//! Run with `RUSTFLAGS="--cfg leaf_id_shuttle" cargo test -p leaf_id_core --profile schedules --test
//! shmem_schedules`. `LEAF_ID_SEED` repeats a failure; `LEAF_ID_LONG` runs millions of schedules.

#![cfg(leaf_id_shuttle)]
#![allow(
    clippy::unwrap_used,
    unsafe_code,
    reason = "a test that panics fails; threads of the schedules are not of the system"
)]

extern crate self as pgrx;

#[path = "shmem_schedules/server.rs"]
mod server;
#[path = "shmem_schedules/shmem.rs"]
mod shmem;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use leaf_id_core::primitive::step;
use leaf_id_core::segment::{Miss, SegmentRequest};
use leaf_id_core::state::State;
use server::{PgSharedMemoryInitialization, error, guc, pg, pg_shmem_init, pg_sys};
use shmem::{Area, Claimed, Key, Slot, SlotAccess, SlotRef, SlotState, Tag};
use shuttle::rand::{Rng, thread_rng};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, FailurePersistence, Runner, thread};

fn pg_guard() {}

/// Runs a model in random schedules, half of them with few preemptions.
fn check(model: fn()) {
    // The area has one address.
    static ALONE: Mutex<()> = Mutex::new(());
    const AT_ONCE: usize = 20;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    struct Failing(u64);
    impl Drop for Failing {
        fn drop(&mut self) {
            if std::thread::panicking() {
                println!("to repeat it: LEAF_ID_SEED={}", self.0);
            }
        }
    }
    let mut config = Config::new();
    config.failure_persistence = FailurePersistence::None;
    let seed = support::seed();
    for round in 0..support::rounds(25, 10_000) {
        let seed = seed.wrapping_add(round);
        let _failing = Failing(seed);
        let random = RandomScheduler::new_from_seed(seed, AT_ONCE);
        Runner::new(random, config.clone()).run(model);
        let rarely = PctScheduler::new_from_seed(seed, 5, AT_ONCE);
        Runner::new(rarely, config.clone()).run(model);
    }
}

/// Any time, up to what a session takes for a few ids.
fn any_time() {
    for _ in 0..thread_rng().gen_range(0..400) {
        step();
    }
}

/// Ids tell where they come from.
const EDITS: i64 = 1_000_000;
const TAGS: i64 = 1000 * EDITS;
const DATABASES: i64 = 1000 * TAGS;

fn key(database: u32, tag: u8) -> Key {
    Key {
        database,
        relation: 1,
        tag: Tag::new(&[tag]).unwrap(),
    }
}

/// A tag's row.
#[derive(Clone, Copy)]
struct Row {
    /// Number of edits. Each sets `max_id`, and changes the rights.
    edits: i64,
    max_id: i64,
}

impl Row {
    fn new(database: u32, tag: u8, edits: i64) -> Self {
        let max_id = i64::from(database) * DATABASES + i64::from(tag) * TAGS + edits * EDITS;
        Self { edits, max_id }
    }

    /// Every third edit is a reset.
    fn incarnation(&self) -> i64 {
        1 + self.edits / 3
    }

    /// All roles may issue its ids after every other edit.
    fn access(&self) -> SlotAccess {
        if self.edits % 2 == 0 {
            SlotAccess::Public
        } else {
            SlotAccess::Restricted
        }
    }
}

/// The server of one schedule.
struct World {
    area: &'static Area,
    /// Number of ids in a claim.
    claim: u32,
    launcher: *mut pg_sys::Latch,
    is_over: AtomicBool,
    /// Database 1 is being dropped.
    is_dropped: AtomicBool,
    /// Number of allocators connected to it.
    connected: AtomicI64,
    rows: Mutex<BTreeMap<(u32, u8), Row>>,
    /// The number of edits of each tag of database 1 that have returned.
    edited: [AtomicI64; 8],
    issued: Mutex<BTreeSet<i64>>,
    claimed: AtomicI64,
}

// SAFETY: all threads of a schedule run in one.
unsafe impl Send for World {}
// SAFETY: as above.
unsafe impl Sync for World {}

impl World {
    fn new(slots: i32, claim: u32) -> Arc<Self> {
        server::start(slots);
        let area = shmem::area().unwrap();
        let launcher = server::new_latch();
        area.launcher().enter(launcher);
        Arc::new(Self {
            area,
            claim,
            launcher,
            is_over: AtomicBool::new(false),
            is_dropped: AtomicBool::new(false),
            connected: AtomicI64::new(0),
            rows: Mutex::default(),
            edited: Default::default(),
            issued: Mutex::default(),
            claimed: AtomicI64::new(0),
        })
    }

    fn spawn(
        self: &Arc<Self>,
        body: impl Fn(&Arc<Self>) + Send + 'static,
    ) -> thread::JoinHandle<()> {
        let world = Arc::clone(self);
        thread::spawn(move || body(&world))
    }

    /// Ends the schedule once these have: the launcher and its allocators are still there.
    fn run(self: &Arc<Self>, threads: Vec<thread::JoinHandle<()>>) {
        let launcher = self.spawn(Self::launch);
        for thread in threads {
            thread.join().unwrap();
        }
        self.is_over.store(true, Relaxed);
        server::wake_sleepers();
        launcher.join().unwrap();
    }

    /// Changes a row in a transaction.
    fn row<T>(&self, database: u32, tag: u8, change: impl FnOnce(&mut Row) -> T) -> T {
        step();
        let mut rows = self.rows.lock().unwrap();
        let row = rows.entry((database, tag));
        change(row.or_insert_with(|| Row::new(database, tag, 0)))
    }

    // As src/worker/launcher.rs.

    fn launch(self: &Arc<Self>) {
        let mut allocators = Vec::new();
        while !self.is_over.load(Relaxed) {
            for (number, _) in self.area.queues().wanted() {
                if let Some(registration) = self.area.queues().announce(number) {
                    allocators.push(self.spawn(move |world| world.allocate(number, registration)));
                }
            }
            server::wait_latch(self.launcher, || self.is_over.load(Relaxed));
        }
        for allocator in allocators {
            allocator.join().unwrap();
        }
    }

    fn save_and_restore(&self) {
        any_time();
        while !self.area.claims().stop() {
            thread::yield_now();
        }
        let mut taken = Vec::with_capacity(8);
        self.area.directory().take_out_ranges(&mut taken);
        for (key, saved) in &taken {
            assert!(saved.is_sound());
            assert!(self.area.directory_mut().restore(key, saved));
        }
        self.area.claims().resume();
    }

    // As src/worker/allocator.rs and request.rs.

    fn allocate(&self, number: u32, registration: u32) {
        let queues = self.area.queues();
        let latch = server::new_latch();
        let Some(database) = queues.attach(number, registration, latch) else {
            return;
        };
        step();
        if self.is_gone(database) {
            queues.fail_posted(number, error::RefillError::NoSuchTag);
            queues.detach(number, registration, false);
        } else {
            let connected = i64::from(database == 1);
            self.connected.fetch_add(connected, Relaxed);
            if !self.allocate_in(database, number, registration, latch) {
                queues.close_accepted(database);
                queues.detach(number, registration, false);
            }
            self.connected.fetch_sub(connected, Relaxed);
            server::wake_sleepers();
        }
    }

    /// False if it is terminated, before it has detached.
    fn allocate_in(
        &self,
        database: u32,
        number: u32,
        registration: u32,
        latch: *const pg_sys::Latch,
    ) -> bool {
        let queues = self.area.queues();
        let is_ended = || self.is_over.load(Relaxed) || self.is_gone(database);
        while !is_ended() {
            let mut accepted = Vec::with_capacity(8);
            let most = thread_rng().gen_range(1..4);
            queues.take_posted(number, most, |slot| {
                accepted.extend(
                    queues
                        .accept(slot)
                        .map(|(request, key)| (slot, request, key)),
                );
            });
            let is_idle = accepted.is_empty();
            let mut is_leaving = false;
            for (slot, request, key) in accepted {
                assert!(key.database == database, "a request of another database");
                match thread_rng().gen_range(0..32) {
                    // Once it has detached, it processes no interrupts.
                    0 if !is_leaving => return false,
                    1 => is_leaving = queues.detach(number, registration, false),
                    _ => {}
                }
                if is_leaving {
                    queues.clear_request(slot, &request);
                } else {
                    self.serve(slot, &request, &key);
                }
            }
            if is_leaving
                || is_idle && thread_rng().r#gen() && queues.detach(number, registration, true)
            {
                return true;
            }
            if is_idle {
                server::wait_latch(latch, is_ended);
            }
        }
        false
    }

    fn is_gone(&self, database: u32) -> bool {
        database == 1 && self.is_dropped.load(Relaxed)
    }

    fn serve(&self, slot: &'static Slot, request: &SegmentRequest, key: &Key) {
        loop {
            let look = |_: &mut SlotState| slot.buffer.version();
            let Some(version) = self.area.with_request(slot, request, look) else {
                break;
            };
            if self.area.claims().begin() {
                // Not if ranges were saved and restored since the look.
                let is_new = slot.buffer.version() == version;
                while is_new && !self.try_serve(slot, request, version, key) {}
                self.area.claims().end();
                if is_new {
                    break;
                }
            }
            thread::yield_now();
        }
        self.area.queues().clear_request(slot, request);
    }

    /// False if saved ranges were dropped.
    fn try_serve(&self, slot: &Slot, request: &SegmentRequest, version: u64, key: &Key) -> bool {
        let (area, tag) = (self.area, key.tag.bytes()[0]);
        let Some(state) = area.with_request(slot, request, |state| *state) else {
            return true;
        };
        if slot.buffer.has_spare() {
            slot.forget_wanted();
            return true;
        }
        if state.next_saved().is_some() {
            let row = self.row(key.database, tag, |row| *row);
            let is_published = (row.incarnation(), row.max_id)
                == (state.row_incarnation, state.max_id)
                && area
                    .publish_saved_range(slot, version, row.access())
                    .is_ok();
            if !is_published {
                area.with_request(slot, request, SlotState::drop_saved);
            }
            return is_published;
        }
        let len = self.claim;
        let row = self.row(key.database, tag, |row| {
            row.max_id += i64::from(len);
            *row
        });
        self.claimed.fetch_add(len.into(), Relaxed);
        let claimed = Claimed {
            first: row.max_id - i64::from(len),
            len,
            row_incarnation: row.incarnation(),
            pace: state.pace,
            max_step: len,
            skipped: 0,
            access: row.access(),
        };
        area.note_claim(slot, request, &claimed);
        let _ = area.publish(slot, request, version, &claimed);
        true
    }

    // As src/segment.

    /// A session takes this many ids, each of any of the tags.
    fn take(&self, database: u32, tags: u8, times: u32) {
        let mut known = BTreeMap::new();
        for _ in 0..times {
            // Another session takes over, which knows no slot.
            if thread_rng().r#gen() {
                known.clear();
            }
            let tag = thread_rng().gen_range(0..tags);
            let edited = self.edited[usize::from(tag)].load(Relaxed);
            let Some((id, access)) = self.next(&mut known, database, tag) else {
                return;
            };
            assert!(self.issued.lock().unwrap().insert(id), "{id} twice");
            let origin = (id / DATABASES, id % DATABASES / TAGS);
            assert_eq!(origin, (database.into(), tag.into()), "of another tag");
            let edits = id % TAGS / EDITS;
            assert!(edits >= edited, "{id} after edit {edited}");
            let is_public = edits % 2 == 0;
            assert!(
                is_public || access != SlotAccess::Public,
                "{id} by any role"
            );
        }
    }

    /// The next id, and the access that the session has read for its version. `None` if the database
    /// is dropped.
    fn next(
        &self,
        known: &mut BTreeMap<u8, (SlotRef, SlotAccess)>,
        database: u32,
        tag: u8,
    ) -> Option<(i64, SlotAccess)> {
        let key = key(database, tag);
        loop {
            let (slot_ref, access) = match known.get(&tag) {
                Some(known) if known.0.buffer.version() == known.0.version => *known,
                _ => {
                    let slot_ref = self.find(&key);
                    (slot_ref, slot_ref.slot.access())
                }
            };
            known.insert(tag, (slot_ref, access));
            let mut waiting = slot_ref.slot.waiters().join();
            loop {
                match slot_ref.buffer.take(slot_ref.version) {
                    Ok(taken) => {
                        if taken.spare_due && slot_ref.buffer.want() {
                            self.area.queues().post(database, slot_ref.slot);
                        }
                        return Some((taken.first, access));
                    }
                    Err(Miss::Changed) => break,
                    Err(_) => {}
                }
                if slot_ref.buffer.want() {
                    self.area.queues().post(database, slot_ref.slot);
                }
                if self.is_gone(database) {
                    return None;
                }
                waiting.sleep(|| self.is_gone(database));
            }
        }
    }

    fn find(&self, key: &Key) -> SlotRef {
        let found = self.area.directory().find(key);
        if let Some(slot_ref) = found {
            return slot_ref;
        }
        loop {
            let created = self.area.directory_mut().find_or_create(key);
            if let Ok(slot_ref) = created {
                return slot_ref;
            }
            thread::yield_now();
        }
    }

    /// Edits a tag of database 1.
    fn edit(&self, tag: u8) {
        any_time();
        let edits = self.row(1, tag, |row| {
            *row = Row::new(1, tag, row.edits + 1);
            row.edits
        });
        self.area.directory().retire(&key(1, tag));
        self.edited[usize::from(tag)].store(edits, Relaxed);
    }
}

/// A request that is lost leaves its sessions asleep: a deadlock. A claim for the slot's last tag is
/// issued as ids of its next one.
#[test]
fn five_tags_share_two_slots() {
    check(|| {
        let world = World::new(2, 3);
        let sessions = (0..8).map(|_| world.spawn(|world| world.take(1, 5, 2)));
        world.run(sessions.collect());
    });
}

/// A session finds its buffer empty. By the time it asks for ids, the slot is another database's,
/// by an eviction or a drop. Posted in the session's database, it gets ids of the tag of its name
/// there.
#[test]
fn a_database_is_dropped_between_requests_and_posts() {
    check(|| {
        let world = World::new(2, 3);
        let sessions =
            (0..10).map(|number| world.spawn(move |world| world.take(1 + number % 2, 2, 2)));
        let mut threads: Vec<_> = sessions.collect();
        threads.push(world.spawn(|world| {
            any_time();
            world.is_dropped.store(true, Relaxed);
            server::wake_sleepers();
            server::sleep_until(|| world.connected.load(Relaxed) == 0);
            world.area.forget_database(1);
        }));
        world.run(threads);
    });
}

/// A claim of the old row is published after the edit: a call that begins later gets its ids. A
/// session reads the new version, and still the old access.
#[test]
fn an_edit_ends_what_is_claimed_and_cached() {
    check(|| {
        let world = World::new(2, 10);
        let sessions = (0..8).map(|_| world.spawn(|world| world.take(1, 1, 10)));
        let mut threads: Vec<_> = sessions.collect();
        threads.push(world.spawn(|world| (0..4).for_each(|_| world.edit(0))));
        world.run(threads);
    });
}

/// Ranges are saved while a claim is under way, which then fits neither them nor the row: lost. Or
/// they are published although the row was edited concurrently.
#[test]
fn ranges_are_saved_and_restored_over_edits() {
    const CLAIM: u32 = 1000;
    check(|| {
        let world = World::new(2, CLAIM);
        let sessions = (0..8).map(|_| world.spawn(|world| world.take(1, 2, 3)));
        let mut threads: Vec<_> = sessions.collect();
        threads.push(world.spawn(|world| (0..2).for_each(|_| world.save_and_restore())));
        let is_edited = thread_rng().r#gen();
        if is_edited {
            threads.push(world.spawn(|world| world.edit(0)));
        }
        world.run(threads);
        let mut taken = Vec::with_capacity(8);
        world.area.directory().take_out_ranges(&mut taken);
        let ranges = taken.iter().flat_map(|(_, saved)| saved.ranges);
        let left: i64 = ranges.map(|range| i64::from(range.len)).sum();
        let issued = world.issued.lock().unwrap().len() as i64;
        // A take that a switch overtakes loses one id.
        let lost = world.claimed.load(Relaxed) - issued - left;
        assert!(is_edited || lost < CLAIM.into(), "{lost} ids are lost");
    });
}

/// A reader sleeps while the state changes, and again until it is what it was: it pairs the state
/// with the detail of the other one.
#[test]
fn a_state_is_read_with_its_own_detail() {
    const STATES: [State; 2] = [
        State::Open { worker_id: 1 },
        State::WaitingOut {
            until_ms: i64::MAX >> 8,
        },
    ];
    check(|| {
        let world = World::new(2, 3);
        let mut threads = vec![world.spawn(|world| {
            for state in STATES.into_iter().cycle().take(6) {
                world.area.snowflake.show(state);
            }
        })];
        threads.extend((0..2).map(|_| {
            world.spawn(|world| {
                for _ in 0..6 {
                    let state = world.area.snowflake.state();
                    assert!(
                        state == State::Starting || STATES.contains(&state),
                        "{state:?}"
                    );
                }
            })
        }));
        world.run(threads);
    });
}

/// Before: the entries of a dropped database keep their times, so the next server takes the entry of
/// one that is in use.
#[test]
fn servers_of_a_dropped_database_make_room() {
    check(|| {
        let world = World::new(2, 3);
        let thread = world.spawn(|world| {
            let servers = world.area.remote_servers();
            let update = |database| servers.update(database, &pg::Name, |_| {});
            // Takes the entry of the oldest one, the first.
            let next = (1..).find(|database| update(*database) + 1 != *database);
            servers.forget(3);
            update(next.unwrap() + 1);
            assert!(!servers.of(2).is_empty());
        });
        world.run(vec![thread]);
    });
}
