//! Transactions: those of a worker, and who is told of their ends.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use std::panic::AssertUnwindSafe;

use pgrx::pg_sys;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgSqlErrorCode, PgTryBuilder};

/// An error that a transaction ended with.
pub struct Caught {
    /// The SQLSTATE.
    pub code: PgSqlErrorCode,
    /// The primary message.
    pub message: String,
}

impl From<Caught> for String {
    fn from(error: Caught) -> Self {
        error.message
    }
}

fn caught(error: CaughtError) -> Caught {
    match error {
        CaughtError::PostgresError(report)
        | CaughtError::ErrorReport(report)
        | CaughtError::RustPanic {
            ereport: report, ..
        } => Caught {
            code: report.sql_error_code(),
            message: report.message().to_string(),
        },
    }
}

/// Runs one transaction of a worker: committed when this returns `Ok`, aborted otherwise. A
/// commit that was told to wait for a standby may have given up waiting: see
/// [`super::signals::take_canceled`].
///
/// # Errors
/// What PostgreSQL raised, or the body's.
pub fn transaction<T, E: From<Caught>>(body: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let result = PgTryBuilder::new(AssertUnwindSafe(|| {
        // SAFETY: a worker calls this, outside of a transaction; the snapshot is pushed in the one
        // that was begun.
        unsafe {
            pg_sys::SetCurrentStatementStartTimestamp();
            pg_sys::StartTransactionCommand();
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        }
        let result = body();
        // SAFETY: ends what was begun above: an error would have left by unwinding.
        unsafe {
            pg_sys::PopActiveSnapshot();
            if result.is_ok() {
                pg_sys::CommitTransactionCommand();
            } else {
                pg_sys::AbortCurrentTransaction();
            }
        }
        result
    }))
    .catch_others(|error| {
        // SAFETY: the error that ended the transaction was caught here, where it was begun; this
        // releases whatever it held.
        unsafe { pg_sys::AbortCurrentTransaction() };
        Err(caught(error).into())
    })
    .execute();
    // SAFETY: outside of a transaction, as it must be.
    unsafe { pg_sys::pgstat_report_stat(true) };
    result
}

/// What happens to the open transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TransactionEvent {
    /// It is about to commit: the last place where an error is allowed.
    PreCommit,
    /// It is about to be prepared for two-phase commit; an error is allowed.
    PrePrepare,
    /// It has committed. No error is allowed.
    Commit,
    /// It was rolled back. No error is allowed.
    Abort,
}

/// What happens to a subtransaction; no error is allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SubtransactionEvent {
    /// It becomes part of its parent.
    Commit {
        /// The parent's number.
        parent: u32,
    },
    /// It was rolled back.
    Abort,
}

/// Who is told of every transaction's end.
#[derive(Clone, Copy)]
pub struct TransactionCallbacks {
    /// Transactions.
    pub transaction: fn(TransactionEvent),
    /// Subtransactions, by number.
    pub subtransaction: fn(u32, SubtransactionEvent),
}

impl TransactionCallbacks {
    /// # Safety
    /// What [`watch_transactions`] has registered a callback with.
    unsafe fn of(arg: *mut c_void) -> Self {
        // SAFETY: as the caller says: something static.
        unsafe { *arg.cast::<Self>() }
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn transaction_callback(event: pg_sys::XactEvent::Type, arg: *mut c_void) {
    use pg_sys::XactEvent as Event;
    let event = match event {
        Event::XACT_EVENT_PRE_COMMIT => TransactionEvent::PreCommit,
        Event::XACT_EVENT_PRE_PREPARE => TransactionEvent::PrePrepare,
        Event::XACT_EVENT_COMMIT => TransactionEvent::Commit,
        Event::XACT_EVENT_ABORT => TransactionEvent::Abort,
        // Parallel workers edit nothing, and PREPARE is refused before.
        _ => return,
    };
    // SAFETY: registered with that.
    let callbacks = unsafe { TransactionCallbacks::of(arg) };
    (callbacks.transaction)(event);
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn subtransaction_callback(
    event: pg_sys::SubXactEvent::Type,
    mine: pg_sys::SubTransactionId,
    parent: pg_sys::SubTransactionId,
    arg: *mut c_void,
) {
    use pg_sys::SubXactEvent as Event;
    let event = match event {
        Event::SUBXACT_EVENT_COMMIT_SUB => SubtransactionEvent::Commit { parent },
        Event::SUBXACT_EVENT_ABORT_SUB => SubtransactionEvent::Abort,
        _ => return,
    };
    // SAFETY: registered with that.
    let callbacks = unsafe { TransactionCallbacks::of(arg) };
    (callbacks.subtransaction)(mine, event);
}

/// Has somebody told of transactions' ends in this process, from the first call on.
pub fn watch_transactions(callbacks: &'static TransactionCallbacks, watching: &AtomicBool) {
    if watching.swap(true, Ordering::Relaxed) {
        return;
    }
    let arg = core::ptr::from_ref(callbacks).cast_mut().cast();
    // SAFETY: callbacks that live as long as the library, which is never unloaded, as their
    // argument does, which is only read.
    unsafe {
        pg_sys::RegisterXactCallback(Some(transaction_callback), arg);
        pg_sys::RegisterSubXactCallback(Some(subtransaction_callback), arg);
    }
}

/// The number of the open subtransaction.
pub fn subtransaction() -> u32 {
    // SAFETY: takes nothing; reads the state of the transaction.
    unsafe { pg_sys::GetCurrentSubTransactionId() }
}

/// Whether a parallel query runs, here or in a worker of ours.
pub fn in_parallel_mode() -> bool {
    // SAFETY: takes nothing; reads the state of the transaction.
    unsafe { pg_sys::IsInParallelMode() }
}

/// Whether each statement of the transaction sees what was committed before it.
pub fn is_read_committed() -> bool {
    // SAFETY: reads the state of the transaction.
    unsafe { pg_sys::XactIsoLevel < pg_sys::XACT_REPEATABLE_READ.cast_signed() }
}

/// Raises an error in a read-only transaction, and so on a standby.
pub fn prevent_if_read_only(function: &CStr) {
    // SAFETY: a string that ends with null; reads the state of the transaction.
    unsafe { pg_sys::PreventCommandIfReadOnly(function.as_ptr()) };
}

/// Raises an error inside a transaction block, a query of several statements, or a pipeline
/// that has begun; and has the statement committed before it is answered, whatever comes
/// after it in a pipeline.
pub fn prevent_in_transaction_block(statement: &CStr) {
    // SAFETY: a string that ends with null; reads the state of the transaction, and marks it.
    unsafe { pg_sys::PreventInTransactionBlock(true, statement.as_ptr()) };
}

/// Has what follows see what this transaction has written so far.
pub fn see_own_changes() {
    // SAFETY: in a transaction; takes nothing.
    unsafe { pg_sys::CommandCounterIncrement() };
}
