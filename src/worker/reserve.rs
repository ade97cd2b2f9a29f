//! The reserve worker: a worker slot of leaf_id's own, even if all others are taken.
//!
//! The slots of `max_worker_processes` are shared: any role that can connect can hold them with a
//! parallel query for as long as it likes. This worker is registered at server start, so that
//! claims and lease renewals continue nevertheless. It waits until the launcher assigns it a task
//! for which no dynamic worker could be registered, acts as an allocator or a registrar once, and
//! exits; the postmaster restarts it. The handshake is described in `shmem/reserve.rs`.
//!
//! * It waits without a database, so it is not in `pg_stat_activity` and blocks nothing. A process
//!   can connect only once, so it serves one database per life.
//! * It never exits with code 0, which would unregister it until the server restarts. Other exit
//!   codes log one line per exit.
//! * Under contention, an allocator's tenure is short, and the registrar has priority.

use std::time::Duration;

use pgrx::bgworkers::{BackgroundWorkerBuilder, BgWorkerStartTime};
use pgrx::pg_sys;

use super::handle::WorkerHandle;
use super::{allocator, registrar};
use crate::pg::{self, WaitEvent};
use crate::shmem::{self, Area, Task};

/// Max duration of a request to a remote worker registry.
pub const REGISTRY_LIMIT: Duration = Duration::from_secs(2);

/// Registers the reserve worker. Only while the library is being preloaded.
pub fn register() {
    BackgroundWorkerBuilder::new("leaf_id reserve worker")
        .set_library("leaf_id")
        .set_function("leaf_id_reserve_main")
        .enable_spi_access()
        // Must follow enable_spi_access, which sets another start time.
        .set_start_time(BgWorkerStartTime::ConsistentState)
        // Restart at once.
        .set_restart_time(Some(Duration::ZERO))
        .load();
}

/// Exit callback; runs on every exit except a crash, and after the allocator's, which is registered
/// later.
fn reserve_exit() {
    if let Some(area) = shmem::area() {
        area.reserve().leave();
    }
}

/// Main function of the reserve worker.
#[pgrx::pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn leaf_id_reserve_main(_arg: pg_sys::Datum) {
    pg::handle_signals_in_loop();
    if let Some(area) = shmem::area() {
        pg::on_exit(reserve_exit);
        area.reserve().enter();
        if let Some(task) = wait_for_task(area) {
            serve(area, task);
        }
    }
    pg::exit(1);
}

/// Waits for an assignment; `None` if asked to stop.
fn wait_for_task(area: &Area) -> Option<Task> {
    loop {
        let task = area.reserve().pick_up();
        if pg::asked_to_stop() {
            return None;
        }
        // The settings may be outdated after a long wait.
        pg::reload_if_asked();
        if task.is_some() {
            return task;
        }
        // No wait event of its own, since it is not visible in pg_stat_activity.
        pg::wait_latch(None, WaitEvent::Allocator);
    }
}

fn serve(area: &'static Area, task: Task) {
    pg::handle_signals_in_transactions();
    if pg::asked_to_stop() {
        // Requested between the last check and the change of the signal handler.
        return;
    }
    match task {
        Task::Allocate {
            queue,
            registration,
        } => {
            let handle = WorkerHandle {
                queue,
                registration,
            };
            allocator::allocate(area, handle, true);
        }
        Task::AskRegistry(question) => registrar::ask(area, question, Some(REGISTRY_LIMIT)),
    }
}
