//! Transactions of workers, and end-of-transaction callbacks.

use core::ffi::{CStr, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use std::panic::AssertUnwindSafe;

use pgrx::pg_sys;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::{PgSqlErrorCode, PgTryBuilder};

/// Error that ended a transaction.
pub struct Caught {
    /// The SQLSTATE.
    pub code: PgSqlErrorCode,
    /// The message, with its detail.
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
        } => {
            let code = report.sql_error_code();
            // The details of a violated constraint show a row, which not every reader may see.
            let detail = report.detail().filter(|_| !is_of_constraint(code));
            Caught {
                code,
                message: match detail {
                    Some(detail) => format!("{}: {detail}", report.message()),
                    None => report.message().to_string(),
                },
            }
        }
    }
}

/// True for class `integrity_constraint_violation`: of a SQLSTATE's five characters of six bits, the
/// first two are the class.
fn is_of_constraint(code: PgSqlErrorCode) -> bool {
    const CLASS: i32 = (1 << 12) - 1;
    let class = PgSqlErrorCode::ERRCODE_INTEGRITY_CONSTRAINT_VIOLATION;
    (code as i32 ^ class as i32) & CLASS == 0
}

/// Runs a worker's transaction. It is committed if `body` returns `Ok`, aborted otherwise. A
/// commit that had to wait for a standby may have given up the wait: see
/// [`super::signals::take_canceled`].
///
/// # Errors
/// That of `body`, or the ERROR raised by PostgreSQL.
pub fn transaction<T, E: From<Caught>>(body: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let result = PgTryBuilder::new(AssertUnwindSafe(|| {
        // SAFETY: called by a worker outside of a transaction; the snapshot is pushed in the
        // transaction just started.
        unsafe {
            pg_sys::SetCurrentStatementStartTimestamp();
            pg_sys::StartTransactionCommand();
            // As PostgreSQL in InitPostgres: a serializable one fails in a hot standby, and if it is also
            // deferrable, its snapshot waits for the serializable transactions of all databases.
            pg_sys::XactIsoLevel = pg_sys::XACT_READ_COMMITTED.cast_signed();
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        }
        let result = body();
        // SAFETY: ends the transaction started above; an error would have unwound.
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
        // SAFETY: the error was caught at the level that started the transaction; this releases all
        // its resources.
        unsafe { pg_sys::AbortCurrentTransaction() };
        Err(caught(error).into())
    })
    .execute();
    // SAFETY: outside of a transaction, as required.
    unsafe { pg_sys::pgstat_report_stat(true) };
    result
}

/// Event of the open transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum TransactionEvent {
    /// About to commit: the last point where an error is allowed.
    PreCommit,
    /// About to be prepared; an error is allowed.
    PrePrepare,
    /// Committed. No error is allowed.
    Commit,
    /// Aborted. No error is allowed.
    Abort,
}

/// Event of a subtransaction; no error is allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum SubtransactionEvent {
    /// Merged into its parent.
    Commit {
        /// Id of the parent.
        parent: u32,
    },
    /// Aborted.
    Abort,
}

/// End-of-transaction callbacks.
#[derive(Clone, Copy)]
pub struct TransactionCallbacks {
    /// For transactions.
    pub transaction: fn(TransactionEvent),
    /// For subtransactions, with their id.
    pub subtransaction: fn(u32, SubtransactionEvent),
}

impl TransactionCallbacks {
    /// # Safety
    /// `arg` is the argument registered by [`watch_transactions`].
    unsafe fn of(arg: *mut c_void) -> Self {
        // SAFETY: guaranteed by the caller: a reference to a static.
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
        // Parallel workers edit nothing, and PREPARE was refused at PrePrepare.
        _ => return,
    };
    // SAFETY: registered with that argument.
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
    // SAFETY: registered with that argument.
    let callbacks = unsafe { TransactionCallbacks::of(arg) };
    (callbacks.subtransaction)(mine, event);
}

/// Registers the callbacks in this process; later calls have no effect.
pub fn watch_transactions(callbacks: &'static TransactionCallbacks, watching: &[AtomicBool; 2]) {
    let arg = core::ptr::from_ref(callbacks).cast_mut().cast();
    // SAFETY: the library is never unloaded, and the argument is a static that is only read.
    once(&watching[0], || unsafe {
        pg_sys::RegisterXactCallback(Some(transaction_callback), arg);
    });
    // SAFETY: as above.
    once(&watching[1], || unsafe {
        pg_sys::RegisterSubXactCallback(Some(subtransaction_callback), arg);
    });
}

/// Registers a callback in this process, unless it is. Registering fails for want of memory: then the
/// next transaction tries again.
pub fn once(is_registered: &AtomicBool, register: impl FnOnce()) {
    if !is_registered.load(Ordering::Relaxed) {
        register();
        is_registered.store(true, Ordering::Relaxed);
    }
}

/// Id of the current subtransaction.
pub fn subtransaction() -> u32 {
    // SAFETY: no arguments; reads the state of the transaction.
    unsafe { pg_sys::GetCurrentSubTransactionId() }
}

/// Number of the transaction in its session, never 0.
pub fn local_transaction() -> u32 {
    // SAFETY: this process has a PGPROC, whose number only it sets.
    unsafe {
        #[cfg(not(since_17))]
        return (*pg_sys::MyProc).lxid;
        #[cfg(since_17)]
        return (*pg_sys::MyProc).vxid.lxid;
    }
}

/// True during a parallel query, in the leader or in a worker.
pub fn in_parallel_mode() -> bool {
    // SAFETY: no arguments; reads the state of the transaction.
    unsafe { pg_sys::IsInParallelMode() }
}

/// True below REPEATABLE READ: each statement sees what was committed before it.
pub fn is_read_committed() -> bool {
    // SAFETY: reads the state of the transaction.
    unsafe { pg_sys::XactIsoLevel < pg_sys::XACT_REPEATABLE_READ.cast_signed() }
}

/// Raises an error in a read-only transaction, and so on a standby.
pub fn prevent_if_read_only(function: &CStr) {
    // SAFETY: a null-terminated string; reads the state of the transaction.
    unsafe { pg_sys::PreventCommandIfReadOnly(function.as_ptr()) };
}

/// Raises an error inside a transaction block, a multi-statement query, or a pipeline that has
/// begun. Also makes the statement commit before it is answered, whatever follows in a pipeline.
pub fn prevent_in_transaction_block(statement: &CStr) {
    // SAFETY: a null-terminated string; reads the state of the transaction, and marks it.
    unsafe { pg_sys::PreventInTransactionBlock(true, statement.as_ptr()) };
}

/// CommandCounterIncrement: makes this transaction's changes visible to subsequent reads.
pub fn see_own_changes() {
    // SAFETY: in a transaction; no arguments.
    unsafe { pg_sys::CommandCounterIncrement() };
}
