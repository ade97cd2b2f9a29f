//! Signal handling.

use core::ffi::c_int;
use core::sync::atomic::{AtomicBool, Ordering};

use pgrx::pg_sys;

use super::process::terminating;

#[cfg(not(since_18))]
pub use pg_sys::pqsignal;
#[cfg(since_18)]
pub use pg_sys::pqsignal_be as pqsignal;

static CANCELED: AtomicBool = AtomicBool::new(false);

/// The handlers, with the arguments of this version. PostgreSQL's own are declared by hand, since
/// pgrx's wrappers are not C function pointers: no compiler compares them with the headers.
macro_rules! handlers {
    ($($sender:ident: $type:ty)?) => {
        unsafe extern "C-unwind" {
            #[link_name = "die"]
            fn raw_die(signal: c_int, $($sender: $type)?);
            #[link_name = "StatementCancelHandler"]
            fn raw_cancel(signal: c_int, $($sender: $type)?);
            #[link_name = "SignalHandlerForConfigReload"]
            fn raw_reload(signal: c_int, $($sender: $type)?);
            #[link_name = "SignalHandlerForShutdownRequest"]
            fn raw_shutdown(signal: c_int, $($sender: $type)?);
        }

        /// Records a cancel: while a commit waits for its standby, PostgreSQL turns a cancel into a
        /// warning and reports success.
        pub unsafe extern "C-unwind" fn note_cancel(signal: c_int, $($sender: $type)?) {
            CANCELED.store(true, Ordering::Relaxed);
            // SAFETY: PostgreSQL's own handler of this signal, called from a signal handler.
            unsafe { raw_cancel(signal, $($sender)?) };
        }

        /// SIGINT is ignored by a worker that has nothing to cancel.
        unsafe extern "C-unwind" fn ignore_cancel(_signal: c_int, $(_: $type)?) {}
    };
}

#[cfg(not(since_19))]
handlers!();
#[cfg(since_19)]
handlers!(sender: *const pg_sys::pg_signal_info);

/// Signal handlers for a worker that runs transactions: SIGTERM ends it even inside a statement.
pub fn handle_signals_in_transactions() {
    // SAFETY: async-signal-safe handlers: PostgreSQL's own, or one that additionally sets an
    // atomic. Installed before signals are unblocked.
    unsafe {
        pqsignal(pg_sys::SIGTERM.cast_signed(), Some(raw_die));
        pqsignal(pg_sys::SIGINT.cast_signed(), Some(note_cancel));
        pqsignal(pg_sys::SIGHUP.cast_signed(), Some(raw_reload));
        pg_sys::BackgroundWorkerUnblockSignals();
    }
}

/// Signal handlers for a worker that only runs its own loop: SIGTERM sets [`asked_to_stop`].
pub fn handle_signals_in_loop() {
    // SAFETY: async-signal-safe handlers: PostgreSQL's own, or one that does nothing. Installed
    // before signals are unblocked.
    unsafe {
        pqsignal(pg_sys::SIGTERM.cast_signed(), Some(raw_shutdown));
        pqsignal(pg_sys::SIGINT.cast_signed(), Some(ignore_cancel));
        pqsignal(pg_sys::SIGHUP.cast_signed(), Some(raw_reload));
        pg_sys::BackgroundWorkerUnblockSignals();
    }
}

/// True after SIGTERM, with [`handle_signals_in_loop`].
pub fn asked_to_stop() -> bool {
    // SAFETY: a global that a signal handler may set at any time, hence volatile.
    unsafe { core::ptr::read_volatile(&raw const pg_sys::ShutdownRequestPending) != 0 }
}

/// True if this process was canceled since the last call, or was asked to terminate.
pub fn take_canceled() -> bool {
    CANCELED.swap(false, Ordering::Relaxed) || terminating()
}

/// True if SIGHUP has come, and the configuration was not reloaded since.
pub fn reload_is_asked() -> bool {
    // SAFETY: a global that a signal handler may set at any time, hence volatile.
    unsafe { core::ptr::read_volatile(&raw const pg_sys::ConfigReloadPending) != 0 }
}

/// Reloads the configuration after SIGHUP. True if it did.
pub fn reload_if_asked() -> bool {
    if !reload_is_asked() {
        return false;
    }
    // SAFETY: a global, as above. Cleared first, so that no signal is lost.
    unsafe { core::ptr::write_volatile(&raw mut pg_sys::ConfigReloadPending, 0) };
    reload()
}

/// Reloads the configuration. False if the file could not be read.
pub fn reload() -> bool {
    // SAFETY: callers are between transactions, where this is allowed. A global that only this process
    // sets, at the end of a reload.
    unsafe {
        let before = pg_sys::PgReloadTime;
        pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
        pg_sys::PgReloadTime != before
    }
}
