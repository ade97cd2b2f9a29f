//! A transaction that must not be answered before it is acknowledged.
//!
//! While a commit waits for its synchronous standbys, PostgreSQL turns a cancel into a
//! warning and answers as if all were well. A session that hands out what it has committed
//! ends instead, without an answer, as PostgreSQL itself ends one that is terminated in
//! that wait. So does one that rolls back what it was told: a procedure can; and one that goes
//! on with its statement for longer than [`MAX_HOLD_MS`]: it would keep others from the row.

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicI32, Ordering};

use pgrx::pg_sys;

use super::backend_local::BackendLocal;
use super::process::check_for_interrupts;
use super::settings::set_local;
use super::signals::{note_cancel, pqsignal, take_canceled};

unsafe extern "C-unwind" {
    // utils/timeout.h, which the bindings leave out.
    fn RegisterTimeout(id: c_int, handler: unsafe extern "C-unwind" fn()) -> c_int;
    fn enable_timeout_after(id: c_int, delay_ms: c_int);
    fn disable_timeout(id: c_int, keep_indicator: bool);
}

/// `USER_TIMEOUT` of utils/timeout.h: asks for one that nobody else has.
const USER_TIMEOUT: c_int = if cfg!(any(feature = "pg15", feature = "pg16")) {
    12
} else {
    13
};
/// How long the statement of a call from another server may go on after that, in milliseconds.
/// It holds the lock of a row that others wait for, and has nothing more to do.
const MAX_HOLD_MS: c_int = 250;
/// The number of the timeout that ends it; 0 before there is one.
static HOLD_TIMEOUT: AtomicI32 = AtomicI32::new(0);

/// Ends this session at its next look for interrupts, as `pg_terminate_backend` does: an
/// error could be caught.
unsafe extern "C-unwind" fn end_session() {
    // SAFETY: plain globals of this process, which a signal handler may write: hence volatile.
    // The handler of timeouts sets the latch.
    unsafe {
        core::ptr::write_volatile(&raw mut pg_sys::ProcDiePending, 1);
        core::ptr::write_volatile(&raw mut pg_sys::InterruptPending, 1);
    }
}

fn end_hold() {
    let timeout = HOLD_TIMEOUT.load(Ordering::Relaxed);
    if timeout != 0 {
        // SAFETY: the number of a timeout that this process has registered.
        unsafe { disable_timeout(timeout, false) };
    }
}

/// What the commit of the open transaction waits for, if that is such a one.
static OPEN: BackendLocal<Option<&'static CStr>> = BackendLocal::new(None);
/// The open transaction has told what it is going to commit.
static TOLD: AtomicBool = AtomicBool::new(false);
/// This process has the signal handler and the callback.
static WATCHING: AtomicBool = AtomicBool::new(false);

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn at_end(event: pg_sys::XactEvent::Type, _arg: *mut c_void) {
    use pg_sys::XactEvent as Event;
    match event {
        Event::XACT_EVENT_PRE_COMMIT => {
            end_hold();
            // Not before: the end of a function with a SET clause would take it back.
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
    let told = TOLD.swap(false, Ordering::Relaxed);
    let unacknowledged = open && event == Event::XACT_EVENT_COMMIT && take_canceled();
    // A procedure goes on after its ROLLBACK, with what it was told; after an error nobody
    // has been told anything.
    let undone = told
        && event == Event::XACT_EVENT_ABORT
        // SAFETY: takes nothing; reads the state of this process.
        && unsafe { pg_sys::SPI_inside_nonatomic_context() };
    if unacknowledged || undone {
        // SAFETY: a plain global of this process, which has one thread.
        unsafe {
            pg_sys::whereToSendOutput = pg_sys::CommandDest::DestNone;
            end_session();
        }
    }
}

/// The open transaction of a session becomes such a one, whose commit waits for what this
/// value of `synchronous_commit` says. (PostgreSQL stops `statement_timeout` before it
/// commits a statement, but not at a COMMIT in a procedure: then it is a cancel like any
/// other.)
pub fn only_when_acknowledged(acknowledgement: &'static CStr) {
    if !WATCHING.swap(true, Ordering::Relaxed) {
        // SAFETY: an async-signal-safe handler, which does what the one before it did; and a
        // callback that lives as long as the library, which is never unloaded.
        unsafe {
            pqsignal(pg_sys::SIGINT.cast_signed(), Some(note_cancel));
            pg_sys::RegisterXactCallback(Some(at_end), core::ptr::null_mut());
        }
    }
    // What came before now is PostgreSQL's to raise: at the commit it would end the wait for a
    // standby, and be forgotten here.
    take_canceled();
    check_for_interrupts();
    OPEN.with_mut(|open| *open = Some(acknowledgement));
}

/// What the open transaction is going to commit is told its caller. If a procedure rolls it
/// back all the same, this session ends without an answer.
pub fn tell() {
    if TOLD.swap(true, Ordering::Relaxed) {
        // The clock runs from the first answer: each of several would put it back.
        return;
    }
    let mut timeout = HOLD_TIMEOUT.load(Ordering::Relaxed);
    // SAFETY: registered once in each process, with a handler that is async-signal-safe and lives
    // as long as the library; enabled by the number that it got.
    unsafe {
        if timeout == 0 {
            timeout = RegisterTimeout(USER_TIMEOUT, end_session);
            HOLD_TIMEOUT.store(timeout, Ordering::Relaxed);
        }
        enable_timeout_after(timeout, MAX_HOLD_MS);
    }
}

/// Has the open transaction, which is about to commit, wait for what `synchronous_commit` = `on`
/// waits for, if it would wait for less. As above, not before.
pub fn commit_synchronously() {
    // SAFETY: a plain global of this process, which has one thread.
    let level = unsafe { pg_sys::synchronous_commit };
    if level.cast_unsigned() < pg_sys::SyncCommitLevel::SYNCHRONOUS_COMMIT_REMOTE_FLUSH {
        set_local(c"synchronous_commit", c"on");
    }
}
