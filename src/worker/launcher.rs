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

use std::time::{Duration, Instant};

use pgrx::bgworkers::{BackgroundWorker, BackgroundWorkerBuilder, BgWorkerStartTime};
use pgrx::pg_sys;

use super::start::{Allocators, CROWDED_RETRY_MS, Registrar};
use crate::error::RefillError;
use crate::files::saved_ranges::{self, Database};
use crate::pg::{self, WaitEvent};
use crate::shmem::{self, Area};
use crate::snowflake::keeper::{self, Keeper};

/// How often requests are to be made again that no worker slot is free for.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// How long a launcher that ends waits for claims that have begun.
const CLAIM_GRACE: Duration = Duration::from_secs(5);

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

struct Launcher {
    area: &'static Area,
    allocators: Allocators,
    registrar: Registrar,
    snowflake: Keeper,
    /// When requests were to be made again last.
    asked_again: Instant,
    /// What the last launcher has left was given back, and allocators may be started: not
    /// on a standby.
    serving: bool,
}

/// Whatever the launcher ends for, short of a crash.
fn launcher_exit() {
    let Some(area) = shmem::area() else { return };
    area.launcher().set(core::ptr::null_mut());
    if let Err(error) = keeper::stop(&area.snowflake) {
        pgrx::warning!(
            "leaf_id: could not write leaf_id_reservation.json, so that snowflake ids will be ahead of the clock after the next start: {error}"
        );
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
    if let Err(error) = saved_ranges::save(&remainders, &databases) {
        let tags = remainders.len();
        pgrx::warning!(
            "leaf_id: cached ids of {tags} tags are lost: could not write leaf_id_saved_ranges.json: {error}"
        );
    }
}

/// Gives back what the last launcher has saved, and lets claims begin.
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
        allocators: Allocators::default(),
        registrar: Registrar::default(),
        snowflake: Keeper::new(area),
        asked_again: Instant::now(),
        serving: false,
    };
    launcher.serve();
    area.launcher().set(pg::my_latch());
    while !pg::asked_to_stop() {
        let serving = launcher.serve();
        launcher.registrar.look(area);
        let reserving = launcher.snowflake.tend();
        let question = launcher.snowflake.question();
        let asking = launcher.registrar.start(area, question);
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

    /// Starts an allocator for each database that wants one. Returns when to look again,
    /// in milliseconds, if nothing wakes us earlier.
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
                    area.queues().ask_again(queue, refill_error);
                } else {
                    area.queues().explain(queue, refill_error);
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
