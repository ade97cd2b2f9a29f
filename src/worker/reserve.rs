//! The reserve worker: its slot is leaf_id's own, whoever has taken all the others.
//!
//! The slots of `max_worker_processes` are anybody's: a role that can only connect holds them
//! for as long as it likes with a parallel query. This worker is registered with the server, so
//! that claims and lease renewals go on nevertheless. It waits until the launcher assigns it
//! what no dynamic worker could be registered for, is an allocator or a registrar once, and
//! ends; the postmaster starts it anew. The handshake is in `shmem/reserve.rs`.
//!
//! * It waits without a database: it is not in `pg_stat_activity` then, and in nobody's way.
//!   A process can connect once, so it serves one database in its life.
//! * It never ends with exit code 0, which would unregister it until the server restarts.
//!   Another one puts a line into the server's log, one for each life.
//! * Where many need it, an allocator's time is short, and the registrar goes first.

use std::time::Duration;

use pgrx::bgworkers::{BackgroundWorkerBuilder, BgWorkerStartTime};
use pgrx::pg_sys;

use super::handle::WorkerHandle;
use super::{allocator, registrar};
use crate::pg::{self, WaitEvent};
use crate::shmem::{self, Area, Task};

/// How long it asks a worker registry elsewhere.
pub const REGISTRY_LIMIT: Duration = Duration::from_secs(2);

/// Registers it. While the library is being preloaded.
pub fn register() {
    BackgroundWorkerBuilder::new("leaf_id reserve worker")
        .set_library("leaf_id")
        .set_function("leaf_id_reserve_main")
        .enable_spi_access()
        // After the line before, which sets another one.
        .set_start_time(BgWorkerStartTime::ConsistentState)
        // At once.
        .set_restart_time(Some(Duration::ZERO))
        .load();
}

/// Whatever it ends for, short of a crash. After the allocator's own callback, which was
/// registered later.
fn reserve_exit() {
    if let Some(area) = shmem::area() {
        area.reserve().leave();
    }
}

/// The reserve worker's main function.
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

/// `None`: it is to end.
fn wait_for_task(area: &Area) -> Option<Task> {
    loop {
        let task = area.reserve().pick_up();
        if pg::asked_to_stop() {
            return None;
        }
        // It has waited for long, perhaps: the settings are those of now.
        pg::reload_if_asked();
        if task.is_some() {
            return task;
        }
        // No event of its own: it is not shown.
        pg::wait_latch(None, WaitEvent::Allocator);
    }
}

fn serve(area: &'static Area, task: Task) {
    pg::handle_signals_in_transactions();
    if pg::asked_to_stop() {
        // Between the last look and the new handler.
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
