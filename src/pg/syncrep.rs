//! Transactions whose result must not reach the client before the commit is acknowledged.
//!
//! While a commit waits for synchronous standbys, PostgreSQL turns a cancel into a warning and
//! reports success. A session that has disclosed uncommitted results to its client is terminated
//! instead, without an answer, like PostgreSQL does for a session terminated in that wait. It is
//! also terminated if its statement continues for longer than [`MAX_HOLD_MS`], which would block
//! others from the row.

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use pgrx::pg_sys;

use super::backend_local::BackendLocal;
use super::process::check_for_interrupts;
use super::settings::set_local;
use super::signals::{note_cancel, pqsignal, take_canceled};
use super::transaction::once;

unsafe extern "C-unwind" {
    // From utils/timeout.h; missing in the bindings.
    fn RegisterTimeout(id: c_int, handler: unsafe extern "C-unwind" fn()) -> c_int;
    fn enable_timeout_after(id: c_int, delay_ms: c_int);
    fn disable_timeout(id: c_int, keep_indicator: bool);
}

/// At least `USER_TIMEOUT` of utils/timeout.h, another number in each version: requests a new timeout id.
const USER_TIMEOUT: c_int = 1000;
/// Time that the statement of a call from another server may continue after its answer, in
/// milliseconds. It holds a row lock that others wait for, and has nothing left to do.
const MAX_HOLD_MS: c_int = 250;
/// Id of that timeout; 0 if not registered yet.
static HOLD_TIMEOUT: AtomicI32 = AtomicI32::new(0);

/// Terminates this session at its next check for interrupts, like `pg_terminate_backend`. An error
/// could be caught instead.
unsafe extern "C-unwind" fn end_session() {
    // SAFETY: globals that a signal handler may write, hence volatile. The timeout handler sets the
    // latch.
    unsafe {
        core::ptr::write_volatile(&raw mut pg_sys::ProcDiePending, 1);
        core::ptr::write_volatile(&raw mut pg_sys::InterruptPending, 1);
    }
}

fn end_hold() {
    let timeout = HOLD_TIMEOUT.load(Ordering::Relaxed);
    if timeout != 0 {
        // SAFETY: a timeout registered by this process.
        unsafe { disable_timeout(timeout, false) };
    }
}

/// `synchronous_commit` required for the commit of the open transaction, if it is such a
/// transaction.
static OPEN: BackendLocal<Option<&'static CStr>> = BackendLocal::new(None);
/// The signal handler and the callback are installed.
static WATCHING: AtomicBool = AtomicBool::new(false);

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn at_end(event: pg_sys::XactEvent::Type, _arg: *mut c_void) {
    use pg_sys::XactEvent as Event;
    match event {
        Event::XACT_EVENT_PRE_COMMIT => {
            end_hold();
            // Not earlier: functions of the same statement may change it.
            if let Some(acknowledgement) = OPEN.with(|open| *open) {
                set_local(c"synchronous_commit", acknowledgement);
            }
            return;
        }
        Event::XACT_EVENT_COMMIT => {}
        Event::XACT_EVENT_ABORT => end_hold(),
        _ => return,
    }
    let open = OPEN.with_mut(Option::take).is_some();
    if open && event == Event::XACT_EVENT_COMMIT && take_canceled() {
        // SAFETY: a global of a single-threaded process.
        unsafe {
            pg_sys::whereToSendOutput = pg_sys::CommandDest::DestNone;
            end_session();
        }
    }
}

/// Marks the open transaction: its commit must be acknowledged as this value of
/// `synchronous_commit` requires.
pub fn only_when_acknowledged(acknowledgement: &'static CStr) {
    // SAFETY: an async-signal-safe handler that also calls PostgreSQL's handler, and a callback; the
    // library is never unloaded. The one that can fail comes first.
    once(&WATCHING, || unsafe {
        pg_sys::RegisterXactCallback(Some(at_end), core::ptr::null_mut());
        pqsignal(pg_sys::SIGINT.cast_signed(), Some(note_cancel));
    });
    // Let PostgreSQL process earlier interrupts now. At the commit they would end the wait for a
    // standby, and go unnoticed here.
    take_canceled();
    check_for_interrupts();
    OPEN.with_mut(|open| *open = Some(acknowledgement));
}

/// Limits the time that the statement continues, since its results have been determined.
pub fn limit_hold() {
    let mut timeout = HOLD_TIMEOUT.load(Ordering::Relaxed);
    // SAFETY: registered once per process, with an async-signal-safe handler in a library that is
    // never unloaded; enabled by the id returned.
    unsafe {
        if timeout == 0 {
            timeout = RegisterTimeout(USER_TIMEOUT, end_session);
            HOLD_TIMEOUT.store(timeout, Ordering::Relaxed);
        }
        enable_timeout_after(timeout, MAX_HOLD_MS);
    }
}

/// Raises `synchronous_commit` to `on` for the commit of the open transaction, unless it is at
/// least that. Call only from PRE_COMMIT, as above.
pub fn commit_synchronously() {
    // SAFETY: a global of a single-threaded process.
    let level = unsafe { pg_sys::synchronous_commit };
    if level.cast_unsigned() < pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_REMOTE_FLUSH {
        set_local(c"synchronous_commit", c"on");
    }
}
