//! The launcher: one per server, and connected to no database.
//!
//! It starts an allocator for each database that asks, and keeps the snowflake generator.
//! When it ends, it takes what the buffers hold out of shared memory and writes it down;
//! when it starts, it gives that back (I6). So a restart of the server and the end of the
//! launcher alone are one case.
//!
//! On a standby it keeps the snowflake generator and does nothing else: that can have a
//! worker id of its own there.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pgrx::bgworkers::{
    BackgroundWorker, BackgroundWorkerBuilder, BackgroundWorkerStatus, BgWorkerStartTime,
    DynamicBackgroundWorker,
};
use pgrx::{IntoDatum, PgMemoryContexts, pg_sys};

use super::pack;
use crate::guc;
use crate::persist::{self, Database};
use crate::pg::{self, WaitEvent};
use crate::shmem::{self, Area, Explanation, Reply, Trouble};
use crate::snowflake::{self, Keeper};

/// How long the launcher waits before it starts another allocator for a database where
/// one has just ended.
const RESTART_DELAY: Duration = Duration::from_millis(250);
/// How often the launcher tries again for a worker slot.
const CROWDED_RETRY_MS: i64 = 50;
/// How often requests are to be made again that no worker slot is free for.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long a question to the worker registry waits for a worker slot.
const CROWDED_LIMIT: Duration = Duration::from_secs(1);
/// How often the launcher looks whether a registrar still runs: it is told, too.
const REGISTRAR_LOOK_MS: i64 = 1000;
/// How long a registrar may run beyond what it is given for its question.
const REGISTRAR_GRACE: Duration = Duration::from_secs(5);
/// How long a launcher that ends waits for claims that have begun.
const CLAIM_GRACE: Duration = Duration::from_secs(1);

fn registrar_limit() -> Duration {
    let ms = u64::try_from(guc::CLAIM_TIMEOUT.get()).unwrap_or(0);
    Duration::from_millis(ms) + REGISTRAR_GRACE
}

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

/// An allocator that was registered and not seen to end.
struct Hired {
    desk: u32,
    ticket: u32,
    database: u32,
    since: Instant,
    worker: DynamicBackgroundWorker,
    /// Where the handle lies, freed with it.
    _memory: PgMemoryContexts,
}

struct Launcher {
    area: &'static Area,
    hired: Vec<Hired>,
    /// Databases whose last allocator ended a moment ago.
    resting: HashMap<u32, Instant>,
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

/// A registrar that was registered and not seen to end.
struct Registrar {
    question: u64,
    since: Instant,
    worker: DynamicBackgroundWorker,
    /// Where the handle lies, freed with it.
    _memory: PgMemoryContexts,
}

/// Whatever the launcher ends for, short of a crash.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn launcher_exit(_code: i32, _arg: pg_sys::Datum) {
    let Some(area) = shmem::area() else { return };
    area.set_launcher(core::ptr::null_mut());
    if let Err(error) = snowflake::stop(&area.snowflake) {
        pgrx::warning!("leaf_id: could not write leaf_id_reservation.json: {error}");
    }
    park_rests(area);
}

/// Takes what the buffers hold out of shared memory, and writes it down. Sessions that still
/// run, while the server stops or until the next launcher comes, find empty buffers.
fn park_rests(area: &Area) {
    let began = Instant::now();
    // What they claim is published first; one that waits for longer is a gap.
    while !area.stop_claims() && began.elapsed() < CLAIM_GRACE {
        pg::sleep_us(1000, WaitEvent::Launcher);
    }
    // Before: what is taken out of one that is dropped meanwhile is not of the next one.
    let mut databases = area.databases();
    databases.sort_unstable();
    databases.dedup();
    let databases: Vec<_> = databases.into_iter().filter_map(Database::find).collect();
    let rests = area.take_out_rests();
    if rests.is_empty() {
        return;
    }
    if let Err(error) = persist::park(&rests, &databases) {
        let tags = rests.len();
        pgrx::warning!(
            "leaf_id: cached ids of {tags} tags are lost: could not write leaf_id_parked.json: {error}"
        );
    }
}

/// Gives back what the last launcher has parked, and lets claims begin.
fn give_back_rests(area: &Area) {
    match persist::take_parked() {
        Ok(rests) => {
            let mut lost = 0;
            let mut gone: Vec<u32> = Vec::new();
            for (key, parked) in &rests.tags {
                if !parked.is_sound() || !area.give_back(key, parked) {
                    lost += 1;
                }
                gone.push(key.database);
            }
            // Afterwards: one that is dropped from now on takes its slots along.
            gone.sort_unstable();
            gone.dedup();
            let there: Vec<u32> = rests
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
                    "leaf_id: cached ids of {lost} tags are lost: leaf_id.max_tags was lowered, or leaf_id_parked.json is damaged"
                );
            }
        }
        Err(error) => {
            pgrx::log!("leaf_id: leaf_id_parked.json is not used, what it holds is a gap: {error}");
        }
    }
    area.resume_claims();
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
        hired: Vec::new(),
        resting: HashMap::new(),
        asked_again: Instant::now(),
        snowflake: Keeper::new(area),
        serving: false,
        registrar: None,
        registrar_waits: None,
    };
    launcher.serve();
    area.set_launcher(pg::my_latch());
    while !pg::asked_to_stop() {
        let serving = launcher.serve();
        launcher.see_registrar_end();
        let reserving = launcher.snowflake.tend();
        let asking = launcher.staff_registrar();
        let staffing = serving.then(|| launcher.staff_desks()).flatten();
        let waits = staffing.into_iter().chain(reserving).chain(asking);
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
            give_back_rests(self.area);
            self.area.forget_starting();
            self.serving = true;
        }
        self.serving
    }

    /// Starts a registrar if a question is to be asked. Returns when to look again, in
    /// milliseconds.
    fn staff_registrar(&mut self) -> Option<i64> {
        let waits = self.registrar_waits.take();
        let question = self.snowflake.question()?;
        // An earlier one has to end first.
        if self.registrar.is_some() {
            return Some(REGISTRAR_LOOK_MS);
        }
        if !self.area.is_asked(question) {
            return None;
        }
        let builder = BackgroundWorkerBuilder::new("leaf_id registrar")
            .set_library("leaf_id")
            .set_function("leaf_id_registrar_main")
            .set_argument(question.cast_signed().into_datum())
            .set_notify_pid(pg::pid())
            .enable_spi_access()
            // After the line before, which sets another one.
            .set_start_time(BgWorkerStartTime::ConsistentState);
        let mut memory = PgMemoryContexts::new("leaf_id registrar handle");
        // SAFETY: what is allocated there lives as long as `Registrar` does.
        match unsafe { memory.switch_to(|_| builder.load_dynamic()) } {
            Ok(worker) => {
                self.registrar = Some(Registrar {
                    question,
                    since: Instant::now(),
                    worker,
                    _memory: memory,
                });
                Some(REGISTRAR_LOOK_MS)
            }
            Err(_) => {
                // Allocators without work make room.
                let since = waits.unwrap_or_else(Instant::now);
                if since.elapsed() >= CROWDED_LIMIT {
                    let text = "all background worker slots are in use";
                    self.area
                        .reply(question, Reply::Failed(Explanation::new(text)));
                } else {
                    self.registrar_waits = Some(since);
                }
                Some(CROWDED_RETRY_MS)
            }
        }
    }

    /// Looks whether the registrar has ended, and ends one that hangs.
    fn see_registrar_end(&mut self) {
        let Some(registrar) = self.registrar.take() else {
            return;
        };
        let ended = matches!(
            registrar.worker.pid(),
            Err(BackgroundWorkerStatus::Stopped | BackgroundWorkerStatus::PostmasterDied)
        );
        if ended {
            let text = "the registrar has ended without an answer; see the server's log";
            let failed = Reply::Failed(Explanation::new(text));
            self.area.reply(registrar.question, failed);
        } else if registrar.since.elapsed() >= registrar_limit() {
            // In a wait for a standby, perhaps. It is over soon, and the handle not needed.
            let _ = registrar.worker.terminate();
            let text = "the registrar had to be ended: it took too long";
            let failed = Reply::Failed(Explanation::new(text));
            self.area.reply(registrar.question, failed);
        } else {
            self.registrar = Some(registrar);
        }
    }

    /// Starts an allocator for each database that wants one. Returns when to look again,
    /// in milliseconds, if nothing wakes us earlier.
    fn staff_desks(&mut self) -> Option<i64> {
        self.see_who_ended();
        self.resting
            .retain(|_, since| since.elapsed() < RESTART_DELAY);
        let wanted = self.area.wanted_desks();
        let mut crowded = false;
        let mut again = None;
        let ask_again = self.asked_again.elapsed() >= ASK_AGAIN;
        for (desk, database) in wanted {
            if self.resting.contains_key(&database) {
                again = Some(CROWDED_RETRY_MS);
            } else if crowded || !self.hire(desk, database) {
                crowded = true;
                if ask_again {
                    self.asked_again = Instant::now();
                    self.area.ask_again(desk, Trouble::NoWorkerSlot);
                } else {
                    self.area.explain(desk, Trouble::NoWorkerSlot);
                }
                again = Some(CROWDED_RETRY_MS);
            }
        }
        self.area.crowded.store(
            u32::from(crowded || self.registrar_waits.is_some()),
            Ordering::Relaxed,
        );
        again
    }

    fn hire(&mut self, desk: u32, database: u32) -> bool {
        let Some(ticket) = self.area.announce(desk) else {
            return true;
        };
        let argument = pack(desk, ticket).cast_signed();
        let builder = BackgroundWorkerBuilder::new("leaf_id allocator")
            .set_library("leaf_id")
            .set_function("leaf_id_allocator_main")
            .set_argument(argument.into_datum())
            .set_notify_pid(pg::pid())
            .enable_spi_access();
        let mut memory = PgMemoryContexts::new("leaf_id allocator handle");
        // SAFETY: what is allocated there lives as long as `Hired` does.
        let worker = unsafe { memory.switch_to(|_| builder.load_dynamic()) };
        match worker {
            Ok(worker) => {
                self.hired.push(Hired {
                    desk,
                    ticket,
                    database,
                    since: Instant::now(),
                    worker,
                    _memory: memory,
                });
                true
            }
            Err(_) => {
                self.area.retract(desk, ticket);
                false
            }
        }
    }

    fn see_who_ended(&mut self) {
        let (ended, hired) = core::mem::take(&mut self.hired)
            .into_iter()
            .partition(|hired| {
                matches!(
                    hired.worker.pid(),
                    Err(BackgroundWorkerStatus::Stopped | BackgroundWorkerStatus::PostmasterDied)
                )
            });
        self.hired = hired;
        let ended: Vec<Hired> = ended;
        for gone in ended {
            // It never sat down: the server could not start it.
            if self.area.retract(gone.desk, gone.ticket) {
                self.area.abandon(gone.desk, Trouble::NoAllocator);
            }
            if gone.since.elapsed() < RESTART_DELAY {
                self.resting.insert(gone.database, Instant::now());
            }
        }
    }
}
