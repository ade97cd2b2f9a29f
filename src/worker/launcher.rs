//! The launcher: one per server, and connected to no database.
//!
//! It starts an allocator for each database that asks, and keeps the snowflake generator.
//! When it ends, it takes what the buffers hold out of shared memory and writes it down;
//! when it starts, it gives that back (I6). So a restart of the server and the end of the
//! launcher alone are one case.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use pgrx::bgworkers::{
    BackgroundWorker, BackgroundWorkerBuilder, BackgroundWorkerStatus, BgWorkerStartTime,
    DynamicBackgroundWorker,
};
use pgrx::{IntoDatum, PgMemoryContexts, pg_sys};

use super::pack;
use crate::persist;
use crate::pg::{self, WaitEvent};
use crate::shmem::{self, Area, Trouble};
use crate::snowflake::{self, Keeper};

/// How long the launcher waits before it starts another allocator for a database where
/// one has just ended.
const RESTART_DELAY: Duration = Duration::from_millis(250);
/// How often the launcher tries again for a worker slot.
const CROWDED_RETRY_MS: i64 = 50;
/// How long a launcher that ends waits for claims that have begun.
const CLAIM_GRACE: Duration = Duration::from_secs(1);

/// Registers the launcher. While the library is being preloaded.
pub fn register() {
    BackgroundWorkerBuilder::new("leaf_id launcher")
        .set_library("leaf_id")
        .set_function("leaf_id_launcher_main")
        .enable_spi_access()
        .set_start_time(BgWorkerStartTime::RecoveryFinished)
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
    snowflake: Keeper,
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
    let rests = area.take_out_rests();
    if rests.is_empty() {
        return;
    }
    if let Err(error) = persist::park(&rests) {
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
            for (key, parked) in &rests {
                if !parked.is_sound() || !area.give_back(key, parked) {
                    lost += 1;
                }
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
    give_back_rests(area);
    area.set_launcher(pg::my_latch());
    area.forget_starting();
    let mut launcher = Launcher {
        area,
        hired: Vec::new(),
        resting: HashMap::new(),
        snowflake: Keeper::new(area),
    };
    while !pg::asked_to_stop() {
        let staffing = launcher.staff_desks();
        let reserving = launcher.snowflake.tend();
        let wait = staffing.into_iter().chain(reserving).min();
        pg::wait_latch(wait, WaitEvent::Launcher);
        pg::reload_if_asked();
    }
    // 1: exit code 0 would unregister it until the server restarts.
    pg::exit(1);
}

impl Launcher {
    /// Starts an allocator for each database that wants one. Returns when to look again,
    /// in milliseconds, if nothing wakes us earlier.
    fn staff_desks(&mut self) -> Option<i64> {
        self.see_who_ended();
        self.resting
            .retain(|_, since| since.elapsed() < RESTART_DELAY);
        let wanted = self.area.wanted_desks();
        let mut crowded = false;
        let mut again = None;
        for (desk, database) in wanted {
            if self.resting.contains_key(&database) {
                again = Some(CROWDED_RETRY_MS);
            } else if crowded || !self.hire(desk, database) {
                crowded = true;
                self.area.explain(desk, Trouble::NoWorkerSlot);
                again = Some(CROWDED_RETRY_MS);
            }
        }
        self.area
            .crowded
            .store(u32::from(crowded), Ordering::Relaxed);
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
