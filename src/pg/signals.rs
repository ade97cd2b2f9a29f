//! What a process does when it is signaled.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};

use pgrx::pg_sys;

use super::process::terminating;

#[cfg(not(feature = "pg18"))]
pub use pg_sys::pqsignal;
#[cfg(feature = "pg18")]
pub use pg_sys::pqsignal_be as pqsignal;

unsafe extern "C-unwind" {
    // The handlers themselves: pgrx's wrappers are no C function pointers.
    #[link_name = "die"]
    fn raw_die(signal: c_int);
    #[link_name = "StatementCancelHandler"]
    fn raw_cancel(signal: c_int);
    #[link_name = "SignalHandlerForConfigReload"]
    fn raw_reload(signal: c_int);
    #[link_name = "SignalHandlerForShutdownRequest"]
    fn raw_shutdown(signal: c_int);
}

static CANCELED: AtomicBool = AtomicBool::new(false);

/// Remembers the cancel: while a commit waits for its standby, PostgreSQL turns it into a
/// warning and returns as if all were well.
pub unsafe extern "C-unwind" fn note_cancel(signal: c_int) {
    CANCELED.store(true, Ordering::Relaxed);
    // SAFETY: PostgreSQL's handler of this signal, called as one, with the number of it.
    unsafe { raw_cancel(signal) };
}

/// Signals of a worker that runs transactions: SIGTERM ends it also inside a statement.
pub fn handle_signals_in_transactions() {
    // SAFETY: handlers that are async-signal-safe: PostgreSQL's own, or one that only touches an
    // atomic besides. They are set before signals are unblocked.
    unsafe {
        pqsignal(pg_sys::SIGTERM.cast_signed(), Some(raw_die));
        pqsignal(pg_sys::SIGINT.cast_signed(), Some(note_cancel));
        pqsignal(pg_sys::SIGHUP.cast_signed(), Some(raw_reload));
        pg_sys::BackgroundWorkerUnblockSignals();
    }
}

/// There is nothing to cancel.
unsafe extern "C-unwind" fn ignore_cancel(_signal: c_int) {}

/// Signals of a worker that only runs its own loop: SIGTERM asks, see [`asked_to_stop`].
pub fn handle_signals_in_loop() {
    // SAFETY: handlers that are async-signal-safe: PostgreSQL's own, or one that only touches an
    // atomic besides. They are set before signals are unblocked.
    unsafe {
        pqsignal(pg_sys::SIGTERM.cast_signed(), Some(raw_shutdown));
        pqsignal(pg_sys::SIGINT.cast_signed(), Some(ignore_cancel));
        pqsignal(pg_sys::SIGHUP.cast_signed(), Some(raw_reload));
        pg_sys::BackgroundWorkerUnblockSignals();
    }
}

/// Whether SIGTERM came, after [`handle_signals_in_loop`].
pub fn asked_to_stop() -> bool {
    // SAFETY: a plain global, which a signal handler of this process may set at any time: hence
    // volatile.
    unsafe { core::ptr::read_volatile(&raw const pg_sys::ShutdownRequestPending) != 0 }
}

/// Whether this process was canceled since the last call, or is to end.
pub fn take_canceled() -> bool {
    CANCELED.swap(false, Ordering::Relaxed) || terminating()
}

/// Reads the configuration again if SIGHUP came.
pub fn reload_if_asked() -> bool {
    // SAFETY: a plain global, which a signal handler of this process may set at any time: hence
    // volatile; cleared first, so that no signal is lost. Callers are between two transactions,
    // where ProcessConfigFile may be called.
    unsafe {
        if core::ptr::read_volatile(&raw const pg_sys::ConfigReloadPending) == 0 {
            return false;
        }
        core::ptr::write_volatile(&raw mut pg_sys::ConfigReloadPending, 0);
        pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
    }
    true
}
