//! This process: what it is, how it is interrupted and how it ends.

use core::ffi::{CStr, c_int, c_void};

use pgrx::pg_sys;

/// The process id.
pub fn pid() -> i32 {
    // SAFETY: a plain global of this process, which has one thread.
    unsafe { pg_sys::MyProcPid }
}

/// Oid of the database that this process is connected to.
pub fn database() -> u32 {
    // SAFETY: a plain global of this process, which has one thread.
    unsafe { pg_sys::MyDatabaseId }.to_u32()
}

/// The process id of the leader, in a parallel worker.
pub fn leader_pid() -> Option<i32> {
    // SAFETY: plain globals of this process. A parallel worker has a PGPROC, whose leader it sets
    // itself; both lie in shared memory as long as the server runs, and the leader waits for its
    // workers before it ends.
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

/// Raises an error if this process was canceled or is to end.
pub fn check_for_interrupts() {
    pgrx::check_for_interrupts!();
}

/// Whether this process was told to end.
pub fn terminating() -> bool {
    // SAFETY: a plain global, which a signal handler of this process may set at any time: hence
    // volatile.
    unsafe { core::ptr::read_volatile(&raw const pg_sys::ProcDiePending) != 0 }
}

/// Registers what is done when this process ends, however it ends short of a crash: what was
/// registered last comes first. An error there, or a panic, ends that callback alone.
pub fn on_exit(callback: fn()) {
    let arg = pg_sys::Datum::from(callback as *mut c_void);
    // SAFETY: the function and its argument live as long as the library, which is never
    // unloaded. An error in it is FATAL, as proc_exit has begun, which then goes on with the
    // next callback.
    unsafe { pg_sys::before_shmem_exit(Some(call_on_exit), arg) };
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn call_on_exit(_code: c_int, arg: pg_sys::Datum) {
    // SAFETY: `on_exit` alone registers this, and its argument is a `fn()`.
    let callback: fn() = unsafe { core::mem::transmute(arg.cast_mut_ptr::<c_void>()) };
    callback();
}

/// Ends this process with an exit code.
#[allow(
    unreachable_code,
    reason = "PostgreSQL 18's bindings do not say that it never returns"
)]
pub fn exit(code: c_int) -> ! {
    // SAFETY: may be called anywhere but in a signal handler. It does not unwind, so nothing of
    // ours is dropped: the process ends.
    unsafe { pg_sys::proc_exit(code) };
    unreachable!("proc_exit does not return")
}

/// Shows in `pg_stat_activity` what a worker does; `None` is idle.
pub fn report_activity(activity: Option<&CStr>) {
    let state = if activity.is_some() {
        pg_sys::BackendState::STATE_RUNNING
    } else {
        pg_sys::BackendState::STATE_IDLE
    };
    // SAFETY: a string that ends with null, and is copied.
    unsafe { pg_sys::pgstat_report_activity(state, activity.unwrap_or_default().as_ptr()) };
}
