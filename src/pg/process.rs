//! This process: identity, interrupts and exit.

use core::ffi::{CStr, c_int, c_void};

use pgrx::pg_sys;

/// Process id.
pub fn pid() -> i32 {
    // SAFETY: a global of a single-threaded process.
    unsafe { pg_sys::MyProcPid }
}

/// Oid of the current database.
pub fn database() -> u32 {
    // SAFETY: a global of a single-threaded process.
    unsafe { pg_sys::MyDatabaseId }.to_u32()
}

/// Pid of the leader, in a parallel worker.
pub fn leader_pid() -> Option<i32> {
    // SAFETY: globals of this process. A parallel worker has a PGPROC and sets its leader itself;
    // both stay in shared memory as long as the server runs, and the leader waits for its workers
    // before it exits.
    unsafe {
        if pg_sys::ParallelWorkerNumber < 0 {
            return None;
        }
        (*pg_sys::MyProc)
            .lockGroupLeader
            .as_ref()
            .map(|leader| leader.pid)
    }
}

/// CHECK_FOR_INTERRUPTS.
pub fn check_for_interrupts() {
    pgrx::check_for_interrupts!();
}

/// True if this process was asked to terminate.
pub fn terminating() -> bool {
    // SAFETY: a global that a signal handler may set at any time, hence volatile.
    unsafe { core::ptr::read_volatile(&raw const pg_sys::ProcDiePending) != 0 }
}

/// Registers an exit callback, which runs on every exit except a crash; last registered, first
/// called. An error or a panic ends only that callback.
pub fn on_exit(callback: fn()) {
    let arg = pg_sys::Datum::from(callback as *mut c_void);
    // SAFETY: the library is never unloaded, and the argument is a function in it. An error in the
    // callback is FATAL, as proc_exit has begun, which continues with the next callback.
    unsafe { pg_sys::before_shmem_exit(Some(call_on_exit), arg) };
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn call_on_exit(_code: c_int, arg: pg_sys::Datum) {
    // SAFETY: registered only by `on_exit`, with a `fn()` as its argument.
    let callback: fn() = unsafe { core::mem::transmute(arg.cast_mut_ptr::<c_void>()) };
    callback();
}

/// Exits with an exit code.
#[allow(
    unreachable_code,
    reason = "PostgreSQL 18's bindings do not say that it never returns"
)]
pub fn exit(code: c_int) -> ! {
    // SAFETY: may be called anywhere except in a signal handler. It does not unwind: nothing is
    // dropped, as the process ends.
    unsafe { pg_sys::proc_exit(code) };
    unreachable!("proc_exit does not return")
}

/// Sets the activity in `pg_stat_activity`; `None` means idle.
pub fn report_activity(activity: Option<&CStr>) {
    let state = if activity.is_some() {
        pg_sys::BackendState::STATE_RUNNING
    } else {
        pg_sys::BackendState::STATE_IDLE
    };
    // SAFETY: a null-terminated string, and is copied.
    unsafe { pg_sys::pgstat_report_activity(state, activity.unwrap_or_default().as_ptr()) };
}

/// Number of background workers registered so far, in the postmaster. RegisterBackgroundWorker()
/// only logs that there is no slot.
pub fn registered_workers() -> usize {
    // SAFETY: a global of the single-threaded postmaster; the nodes are in entries that stay while
    // libraries are preloaded. The doubly linked list ends where it began.
    unsafe {
        let head = &raw const pg_sys::BackgroundWorkerList.head;
        let mut next = (*head).next;
        let mut count = 0;
        while !next.is_null() && !core::ptr::eq(next, head) {
            count += 1;
            next = (*next).next;
        }
        count
    }
}

/// Setting `max_worker_processes`.
pub fn max_worker_processes() -> i32 {
    // SAFETY: a global of a single-threaded process.
    unsafe { pg_sys::max_worker_processes }
}
