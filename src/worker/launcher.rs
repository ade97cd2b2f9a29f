//! The launcher: one per server, not connected to a database.
//!
//! It starts an allocator for each database that requests ids, and runs the snowflake generator. If
//! no worker slot is free, it assigns the task to the [reserve worker](super::reserve). When it
//! exits, it takes the remainders out of shared memory and writes them to a file; when it starts,
//! it restores them (I6). So a restart of the server and one of the launcher alone are the same
//! case.
//!
//! On a standby it only runs the snowflake generator, which can have a worker id of its own there.

use std::time::{Duration, Instant};

use leaf_id_core::sometimes;
use pgrx::bgworkers::{BackgroundWorker, BackgroundWorkerBuilder, BgWorkerStartTime};
use pgrx::pg_sys;

use super::start::{Allocators, CROWDED_RETRY_MS, Registrar};
use crate::error::RefillError;
use crate::files::saved_ranges::{self, Database};
use crate::guc::{self, WorkerId};
use crate::pg::{self, WaitEvent};
use crate::shmem::{self, Area};
use crate::snowflake::keeper::{self, Keeper};

/// Interval at which requests are failed while no worker slot is free; sessions request again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Max wait of an exiting launcher for claims in progress.
const CLAIM_GRACE: Duration = Duration::from_secs(5);

/// Registers the launcher. Only while the library is being preloaded.
pub fn register() {
    BackgroundWorkerBuilder::new("leaf_id launcher")
        .set_library("leaf_id")
        .set_function("leaf_id_launcher_main")
        .enable_spi_access()
        .set_start_time(BgWorkerStartTime::ConsistentState)
        .set_restart_time(Some(Duration::from_secs(1)))
        .load();
}

struct Launcher {
    area: &'static Area,
    allocators: Allocators,
    registrar: Registrar,
    snowflake: Keeper,
    /// Time at which requests were last failed.
    asked_again: Instant,
    /// Saved ranges are restored and allocators may be started; never on a standby.
    serving: bool,
}

/// Exit callback; runs on every exit except a crash.
fn launcher_exit() {
    let Some(area) = shmem::area() else { return };
    area.launcher().leave();
    if let Err(error) = keeper::stop(&area.snowflake) {
        pgrx::warning!(
            "leaf_id: could not write leaf_id_reservation.json, so that snowflake ids will be ahead of the clock after the next start: {error}"
        );
    }
    save_ranges(area);
}

/// Takes the remainders out of shared memory and writes them to a file. Sessions still running,
/// during shutdown or until the next launcher starts, find empty buffers.
fn save_ranges(area: &Area) {
    let began = Instant::now();
    // Claims in progress are published first. Those that take longer become a gap.
    while !area.claims().stop() && began.elapsed() < CLAIM_GRACE {
        sometimes!("launcher: a claim is in progress at its end");
        pg::sleep_us(1000, WaitEvent::Launcher);
    }
    // Before taking ranges out: ranges of a database dropped since then do not belong to a later
    // one with the same oid.
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
    if let Err(error) = saved_ranges::save(&remainders, &databases) {
        let tags = remainders.len();
        pgrx::warning!(
            "leaf_id: cached ids of {tags} tags are lost: could not write leaf_id_saved_ranges.json: {error}"
        );
    }
}

/// Restores the ranges saved by the last launcher, and lets claims begin.
fn restore_ranges(area: &Area) {
    match saved_ranges::take() {
        Ok(remainders) => {
            let mut lost = 0;
            let mut gone: Vec<u32> = Vec::new();
            for (key, saved) in &remainders.tags {
                if !saved.is_sound() || !area.directory_mut().restore(key, saved) {
                    lost += 1;
                }
                gone.push(key.database);
            }
            // After the restore: a database dropped from now on takes its slots along.
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

/// Main function of the launcher.
#[pgrx::pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn leaf_id_launcher_main(_arg: pg_sys::Datum) {
    pg::handle_signals_in_loop();
    BackgroundWorker::connect_worker_to_spi(None, None);
    let Some(area) = shmem::area() else { return };
    pg::on_exit(launcher_exit);
    guc::check_worker_id_again();
    // FATAL, in the middle of a turn.
    pg::pin_setting(c"transaction_timeout", c"0");
    let mut launcher = Launcher {
        area,
        allocators: Allocators::default(),
        registrar: Registrar::default(),
        snowflake: Keeper::new(area),
        asked_again: Instant::now(),
        serving: false,
    };
    launcher.serve();
    area.launcher().enter(pg::my_latch());
    pgrx::log!("{}", introduction());
    while !pg::asked_to_stop() {
        let serving = launcher.serve();
        launcher.registrar.look(area);
        let reserving = launcher.snowflake.tend();
        let question = launcher.snowflake.question();
        let asking = launcher.registrar.start(area, question);
        let allocators = serving.then(|| launcher.start_allocators()).flatten();
        let waits = allocators.into_iter().chain(reserving).chain(asking);
        pg::wait_latch(waits.min(), WaitEvent::Launcher);
        guc::reload_if_asked();
    }
    // 1: exit code 0 would unregister the worker until the server restarts.
    pg::exit(1);
}

/// Log message at startup: leaf_id works, and how it is set up.
fn introduction() -> String {
    let worker_id = match (guc::worker_id(), guc::worker_registry()) {
        (WorkerId::Unset, _) => "no worker id".into(),
        (WorkerId::Fixed(worker_id), _) => format!("worker id {worker_id}"),
        (WorkerId::Auto, None) => "a worker id to be leased, but no registry".into(),
        (WorkerId::Auto, Some(registry)) => {
            format!("a worker id leased from \"{}\"", registry.name())
        }
    };
    let (version, tags) = (env!("CARGO_PKG_VERSION"), guc::MAX_TAGS.get());
    format!("leaf_id: version {version} is ready, with {worker_id}, and caches up to {tags} tags")
}

impl Launcher {
    /// Starts serving segment requests, unless this is a standby. Returns true once serving.
    fn serve(&mut self) -> bool {
        if !self.serving && !pg::in_recovery() {
            restore_ranges(self.area);
            self.area.queues().retract_all();
            self.serving = true;
        }
        self.serving
    }

    /// Starts an allocator for each database that needs one. Returns the time to the next attempt,
    /// in milliseconds; `None` if nothing is pending.
    fn start_allocators(&mut self) -> Option<i64> {
        let area = self.area;
        self.allocators.look(area);
        let (mut full, mut crowded) = (false, self.registrar.is_waiting());
        let mut again = None;
        let ask_again = self.asked_again.elapsed() >= ASK_AGAIN;
        for (queue, database) in area.queues().wanted() {
            if self.allocators.is_delayed(database) {
                again = Some(CROWDED_RETRY_MS);
            } else if !self.allocators.start(area, queue, database, &mut full) {
                crowded = true;
                let refill_error = if area.reserve().is_missing() {
                    RefillError::NoWorkerSlot
                } else {
                    RefillError::WorkerSlotShared
                };
                if ask_again {
                    self.asked_again = Instant::now();
                    area.queues().fail_or_free(queue, refill_error);
                } else {
                    area.queues().note_posted(queue, refill_error);
                }
                again = Some(CROWDED_RETRY_MS);
            }
        }
        area.queues().set_crowded(crowded);
        if crowded {
            area.reserve().rouse();
        }
        again
    }
}
