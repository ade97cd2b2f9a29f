//! The launcher: one per server, and connected to no database.
//!
//! It starts an allocator for each database that asks, and keeps the snowflake generator. Where
//! it finds no worker slot, it has the [reserve worker](super::reserve) do it.
//! When it ends, it takes what the buffers hold out of shared memory and writes it down;
//! when it starts, it gives that back (I6). So a restart of the server and the end of the
//! launcher alone are one case.
//!
//! On a standby it keeps the snowflake generator and does nothing else: that can have a
//! worker id of its own there.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use pgrx::bgworkers::{
    BackgroundWorker, BackgroundWorkerBuilder, BackgroundWorkerStatus, BgWorkerStartTime,
    DynamicBackgroundWorker,
};
use pgrx::{IntoDatum, PgMemoryContexts, pg_sys};

use super::{pack, reserve};
use crate::guc;
use crate::persist::{self, Database};
use crate::pg::{self, WaitEvent};
use crate::shmem::{self, Area, Explanation, RefillError, Reply, Task};
use crate::snowflake::keeper::{self, Keeper};

/// How long the launcher waits before it starts another allocator for a database where
/// one has just ended.
const RESTART_DELAY: Duration = Duration::from_millis(250);
/// How often the launcher tries again for a worker slot.
const CROWDED_RETRY_MS: i64 = 50;
/// How often requests are to be made again that no worker slot is free for.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long a question to the worker registry waits for a worker slot.
const CROWDED_LIMIT: Duration = Duration::from_secs(5);
/// How long it leaves the reserve worker to an allocator: longer than that stays by itself while
/// others wait.
const RESERVE_LIMIT: Duration = Duration::from_millis(2500);
/// How often the launcher looks whether a registrar still runs: it is told, too.
const REGISTRAR_LOOK_MS: i64 = 1000;
/// How long a registrar may run beyond what it is given for its question; and where databases
/// may wait for it to end.
const REGISTRAR_GRACE: Duration = Duration::from_secs(5);
const RESERVE_GRACE: Duration = Duration::from_secs(1);
/// How long a launcher that ends waits for claims that have begun.
const CLAIM_GRACE: Duration = Duration::from_secs(1);

/// Registers the launcher. While the library is being preloaded.
pub fn register() {
    BackgroundWorkerBuilder::new("leaf_id launcher")
        .set_library("leaf_id")
        .set_function("leaf_id_launcher_main")
        .enable_spi_access()
        .set_start_time(BgWorkerStartTime::ConsistentState)
        .set_restart_time(Some(Duration::from_secs(1)))
        .load();
}

/// A worker that was started.
enum Worker {
    /// One that was registered.
    Dynamic {
        handle: DynamicBackgroundWorker,
        /// Where the handle lies, freed with it.
        _memory: PgMemoryContexts,
    },
    /// The reserve worker, with the assignment of this number.
    Reserve(u64),
}

impl Worker {
    /// Registers one for a task. `None`: there is no slot for it.
    fn register(task: Task) -> Option<Self> {
        let (name, function, argument) = match task {
            Task::Allocate {
                queue,
                registration,
            } => (
                "leaf_id allocator",
                "leaf_id_allocator_main",
                pack(queue, registration),
            ),
            Task::AskRegistry(question) => {
                ("leaf_id registrar", "leaf_id_registrar_main", question)
            }
        };
        let builder = BackgroundWorkerBuilder::new(name)
            .set_library("leaf_id")
            .set_function(function)
            .set_argument(argument.cast_signed().into_datum())
            .set_notify_pid(pg::pid())
            .enable_spi_access()
            // After the line before, which sets another one.
            .set_start_time(BgWorkerStartTime::ConsistentState);
        let mut memory = PgMemoryContexts::new("leaf_id worker handle");
        // SAFETY: what is allocated there lives as long as the handle does.
        let handle = unsafe { memory.switch_to(|_| builder.load_dynamic()) }.ok()?;
        Some(Self::Dynamic {
            handle,
            _memory: memory,
        })
    }

    /// Has the reserve worker do it, in this database. `None`: it is busy; or somebody has
    /// locked the database, and it would wait there and nobody else could have it.
    fn assign(area: &Area, task: Task, database: u32) -> Option<Self> {
        let free = area.reserve().is_waiting() && pg::is_free(database);
        free.then(|| area.reserve().assign(task))
            .flatten()
            .map(Self::Reserve)
    }

    fn has_ended(&self, area: &Area) -> bool {
        match self {
            Self::Dynamic { handle, .. } => matches!(
                handle.pid(),
                Err(BackgroundWorkerStatus::Stopped | BackgroundWorkerStatus::PostmasterDied)
            ),
            Self::Reserve(number) => !area.reserve().is_assigned(*number),
        }
    }

    /// Has it end soon. Nobody waits for that.
    fn terminate(self, area: &Area) {
        match self {
            Self::Dynamic { handle, .. } => {
                let _ = handle.terminate();
            }
            Self::Reserve(number) => area.reserve().end_assignment(Some(number)),
        }
    }
}

/// An allocator that was started and not seen to end.
struct StartedAllocator {
    queue: u32,
    registration: u32,
    database: u32,
    since: Instant,
    worker: Worker,
}

struct Launcher {
    area: &'static Area,
    allocators: Vec<StartedAllocator>,
    /// Databases whose last allocator ended a moment ago.
    delayed: HashMap<u32, Instant>,
    /// When requests were to be made again last.
    asked_again: Instant,
    snowflake: Keeper,
    /// What the last launcher has left was given back, and allocators may be started: not
    /// on a standby.
    serving: bool,
    registrar: Option<Registrar>,
    /// Since when there is no worker slot for a registrar.
    registrar_waits: Option<Instant>,
}

/// A registrar that was started and not seen to end.
struct Registrar {
    question: u64,
    since: Instant,
    worker: Worker,
}

impl Registrar {
    /// How long it may run.
    fn limit(&self) -> Duration {
        match self.worker {
            Worker::Dynamic { .. } => {
                let ms = u64::try_from(guc::CLAIM_TIMEOUT.get()).unwrap_or(0);
                Duration::from_millis(ms) + REGISTRAR_GRACE
            }
            Worker::Reserve(_) => reserve::REGISTRY_LIMIT + RESERVE_GRACE,
        }
    }
}

/// Whatever the launcher ends for, short of a crash.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn launcher_exit(_code: i32, _arg: pg_sys::Datum) {
    let Some(area) = shmem::area() else { return };
    area.launcher().set(core::ptr::null_mut());
    if let Err(error) = keeper::stop(&area.snowflake) {
        pgrx::warning!("leaf_id: could not write leaf_id_reservation.json: {error}");
    }
    save_ranges(area);
}

/// Takes what the buffers hold out of shared memory, and writes it down. Sessions that still
/// run, while the server stops or until the next launcher comes, find empty buffers.
fn save_ranges(area: &Area) {
    let began = Instant::now();
    // What they claim is published first; one that waits for longer is a gap.
    while !area.claims().stop() && began.elapsed() < CLAIM_GRACE {
        pg::sleep_us(1000, WaitEvent::Launcher);
    }
    // Before: what is taken out of one that is dropped meanwhile is not of the next one.
    let mut databases = Vec::with_capacity(2 * shmem::ACCOUNTS);
    area.directory().databases(&mut databases);
    databases.sort_unstable();
    databases.dedup();
    let databases: Vec<_> = databases.into_iter().filter_map(Database::find).collect();
    let mut remainders = Vec::with_capacity(area.used());
    area.directory().take_out_ranges(&mut remainders);
    if remainders.is_empty() {
        return;
    }
    if let Err(error) = persist::save(&remainders, &databases) {
        let tags = remainders.len();
        pgrx::warning!(
            "leaf_id: cached ids of {tags} tags are lost: could not write leaf_id_saved_ranges.json: {error}"
        );
    }
}

/// Gives back what the last launcher has saved, and lets claims begin.
fn restore_ranges(area: &Area) {
    match persist::take_saved() {
        Ok(remainders) => {
            let mut lost = 0;
            let mut gone: Vec<u32> = Vec::new();
            for (key, saved) in &remainders.tags {
                if !saved.is_sound() || !area.directory_mut().restore(key, saved) {
                    lost += 1;
                }
                gone.push(key.database);
            }
            // Afterwards: one that is dropped from now on takes its slots along.
            gone.sort_unstable();
            gone.dedup();
            let there: Vec<u32> = remainders
                .databases
                .iter()
                .filter(|database| database.is_there())
                .map(Database::oid)
                .collect();
            gone.retain(|database| !there.contains(database));
            for database in gone {
                area.forget_database(database);
            }
            if lost > 0 {
                pgrx::warning!(
                    "leaf_id: cached ids of {lost} tags are lost: leaf_id.max_tags was lowered, or leaf_id_saved_ranges.json is damaged"
                );
            }
        }
        Err(error) => {
            pgrx::log!(
                "leaf_id: leaf_id_saved_ranges.json is not used, what it holds is a gap: {error}"
            );
        }
    }
    area.claims().resume();
}

/// The launcher's main function.
#[pgrx::pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn leaf_id_launcher_main(_arg: pg_sys::Datum) {
    pg::handle_signals_in_loop();
    BackgroundWorker::connect_worker_to_spi(None, None);
    let Some(area) = shmem::area() else { return };
    pg::on_exit(launcher_exit);
    let mut launcher = Launcher {
        area,
        allocators: Vec::new(),
        delayed: HashMap::new(),
        asked_again: Instant::now(),
        snowflake: Keeper::new(area),
        serving: false,
        registrar: None,
        registrar_waits: None,
    };
    launcher.serve();
    area.launcher().set(pg::my_latch());
    while !pg::asked_to_stop() {
        let serving = launcher.serve();
        launcher.see_registrar_end();
        let reserving = launcher.snowflake.tend();
        let asking = launcher.start_registrar();
        let allocators = serving.then(|| launcher.start_allocators()).flatten();
        let waits = allocators.into_iter().chain(reserving).chain(asking);
        pg::wait_latch(waits.min(), WaitEvent::Launcher);
        pg::reload_if_asked();
    }
    // 1: exit code 0 would unregister it until the server restarts.
    pg::exit(1);
}

impl Launcher {
    /// Begins to serve sessions that want segments, unless this is a standby. True from
    /// then on.
    fn serve(&mut self) -> bool {
        if !self.serving && !pg::in_recovery() {
            restore_ranges(self.area);
            self.area.queues().forget_starting();
            self.serving = true;
        }
        self.serving
    }

    /// Starts a registrar if a question is to be asked. Returns when to look again, in
    /// milliseconds.
    fn start_registrar(&mut self) -> Option<i64> {
        let waits = self.registrar_waits.take();
        let question = self.snowflake.question()?;
        // An earlier one has to end first.
        if self.registrar.is_some() {
            return Some(REGISTRAR_LOOK_MS);
        }
        let database = self.area.registry().asked_in(question)?;
        let task = Task::AskRegistry(question);
        let worker = Worker::register(task).or_else(|| Worker::assign(self.area, task, database));
        if let Some(worker) = worker {
            self.registrar = Some(Registrar {
                question,
                since: Instant::now(),
                worker,
            });
            return Some(REGISTRAR_LOOK_MS);
        }
        // Allocators without work make room.
        self.area.reserve().rouse();
        let since = waits.unwrap_or_else(Instant::now);
        let waited = since.elapsed();
        if waited >= CROWDED_LIMIT {
            let text = "all background worker slots are in use";
            self.area
                .registry()
                .reply(question, Reply::Failed(Explanation::new(text)));
        } else {
            if waited >= RESERVE_LIMIT && pg::is_free(database) {
                // It hangs, in a wait for a standby perhaps, which this ends.
                self.area.reserve().end_assignment(None);
            }
            self.registrar_waits = Some(since);
        }
        Some(CROWDED_RETRY_MS)
    }

    /// Looks whether the registrar has ended, and ends one that hangs.
    fn see_registrar_end(&mut self) {
        let Some(registrar) = self.registrar.take() else {
            return;
        };
        if registrar.worker.has_ended(self.area) {
            let text = "the registrar has ended without an answer; see the server's log";
            let failed = Reply::Failed(Explanation::new(text));
            self.area.registry().reply(registrar.question, failed);
        } else if registrar.since.elapsed() >= registrar.limit() {
            // In a wait for a standby, perhaps. It is over soon, and the handle not needed.
            registrar.worker.terminate(self.area);
            let text = "the registrar had to be ended: it took too long";
            let failed = Reply::Failed(Explanation::new(text));
            self.area.registry().reply(registrar.question, failed);
        } else {
            self.registrar = Some(registrar);
        }
    }

    /// Starts an allocator for each database that wants one. Returns when to look again,
    /// in milliseconds, if nothing wakes us earlier.
    fn start_allocators(&mut self) -> Option<i64> {
        self.see_who_ended();
        self.delayed
            .retain(|_, since| since.elapsed() < RESTART_DELAY);
        let wanted = self.area.queues().wanted();
        let (mut full, mut crowded) = (false, self.registrar_waits.is_some());
        let mut again = None;
        let ask_again = self.asked_again.elapsed() >= ASK_AGAIN;
        for (queue, database) in wanted {
            if self.delayed.contains_key(&database) {
                again = Some(CROWDED_RETRY_MS);
            } else if !self.start_allocator(queue, database, &mut full) {
                crowded = true;
                let refill_error = if self.area.reserve().is_missing() {
                    RefillError::NoWorkerSlot
                } else {
                    RefillError::WorkerSlotShared
                };
                if ask_again {
                    self.asked_again = Instant::now();
                    self.area.queues().ask_again(queue, refill_error);
                } else {
                    self.area.queues().explain(queue, refill_error);
                }
                again = Some(CROWDED_RETRY_MS);
            }
        }
        self.area.queues().set_crowded(crowded);
        if crowded {
            self.area.reserve().rouse();
        }
        again
    }

    /// Starts an allocator for a queue. `full`: there is no slot for a dynamic worker. False
    /// if the queue has to wait.
    fn start_allocator(&mut self, queue: u32, database: u32, full: &mut bool) -> bool {
        if *full && !self.area.reserve().is_waiting() {
            return false;
        }
        let Some(registration) = self.area.queues().announce(queue) else {
            return true;
        };
        let task = Task::Allocate {
            queue,
            registration,
        };
        let mut worker = None;
        if !*full {
            worker = Worker::register(task);
            *full = worker.is_none();
        }
        let worker = worker.or_else(|| Worker::assign(self.area, task, database));
        if let Some(worker) = worker {
            self.allocators.push(StartedAllocator {
                queue,
                registration,
                database,
                since: Instant::now(),
                worker,
            });
            true
        } else {
            self.area.queues().retract(queue, registration);
            false
        }
    }

    fn see_who_ended(&mut self) {
        let area = self.area;
        let (ended, allocators) = core::mem::take(&mut self.allocators)
            .into_iter()
            .partition(|allocators| allocators.worker.has_ended(area));
        self.allocators = allocators;
        let ended: Vec<StartedAllocator> = ended;
        for gone in ended {
            // A dynamic one that never attached: the server could not start it. The reserve
            // worker did run, and was ended.
            if area.queues().retract(gone.queue, gone.registration)
                && matches!(gone.worker, Worker::Dynamic { .. })
            {
                area.queues().abandon(gone.queue, RefillError::NoAllocator);
            }
            if gone.since.elapsed() < RESTART_DELAY {
                self.delayed.insert(gone.database, Instant::now());
            }
        }
    }
}
