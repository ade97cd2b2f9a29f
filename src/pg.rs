//! Thin safe wrappers over PostgreSQL: what the rest of leaf_id needs of it, and every
//! difference between its versions.

#![allow(unsafe_code)]

use core::cell::RefCell;
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::{AtomicBool, Ordering};
use std::os::fd::RawFd;
use std::panic::AssertUnwindSafe;

use pgrx::pg_sys;
use pgrx::pg_sys::panic::CaughtError;
use pgrx::pgrx_sql_entity_graph::metadata;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, PgSqlErrorCode, PgTryBuilder};

mod client;
mod databases;
mod holder;
mod name;
mod roles;
mod syncrep;
mod table;
mod trigger;

pub use client::{Client, client, prevent_if_read_only, server_start, shown};
pub use databases::watch_databases;
pub use holder::{LockHolder, row_holder, table_holder};
pub use name::{Name, ServerProblem, foreign_server, usage};
pub use roles::{Caller, caller_is_monitor, caller_is_one_of, relation_owner, user};
pub use syncrep::{only_when_acknowledged, prevent_in_transaction_block, set_local, tell};
pub use table::{
    Access, LockedAtOnce, Locker, Misshapen, Obstacle, Row, Shape, Table, Type, Value, find_table,
    lock_against_writers, see_own_changes,
};
pub use trigger::TriggerCall;

// ---- The process and the server ----------------------------------------------------

/// Whether `shared_preload_libraries` is being loaded.
pub fn preloading() -> bool {
    // SAFETY: a plain global of the backend.
    unsafe { pg_sys::process_shared_preload_libraries_in_progress }
}

/// Whether pg_upgrade runs this server.
pub fn binary_upgrade() -> bool {
    // SAFETY: a plain global of the backend.
    unsafe { pg_sys::IsBinaryUpgrade }
}

/// Whether this is a server of one process, without workers.
pub fn single_user() -> bool {
    // SAFETY: a plain global of the backend.
    unsafe { !pg_sys::IsUnderPostmaster }
}

/// Whether this server is a standby, or still recovering.
pub fn in_recovery() -> bool {
    // SAFETY: reads shared memory.
    unsafe { pg_sys::RecoveryInProgress() }
}

/// The process id.
pub fn pid() -> i32 {
    // SAFETY: a plain global of the backend.
    unsafe { pg_sys::MyProcPid }
}

/// Oid of the database that this process is connected to.
pub fn database() -> u32 {
    // SAFETY: a plain global of the backend.
    unsafe { pg_sys::MyDatabaseId }.to_u32()
}

/// The process id of the leader, in a parallel worker.
pub fn leader_pid() -> Option<i32> {
    // SAFETY: plain globals of the backend; a worker's group leader outlives it.
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

/// Whether a parallel query runs, here or in a worker of ours.
pub fn in_parallel_mode() -> bool {
    // SAFETY: reads the transaction state.
    unsafe { pg_sys::IsInParallelMode() }
}

/// Whether `session_replication_role` is `replica`.
pub fn replica_role() -> bool {
    // SAFETY: a plain global of the backend.
    let role = unsafe { pg_sys::SessionReplicationRole };
    role == pg_sys::SESSION_REPLICATION_ROLE_REPLICA.cast_signed()
}

/// The identifier of the database cluster.
pub fn system_identifier() -> u64 {
    // SAFETY: reads shared memory.
    unsafe { pg_sys::GetSystemIdentifier() }
}

/// The timeline that WAL is written on: current at once after a promotion, unlike what SQL
/// shows until a checkpoint. 0 during recovery, when none is written on.
pub fn timeline() -> u32 {
    if in_recovery() {
        return 0;
    }
    // SAFETY: reads shared memory, not in recovery.
    unsafe { pg_sys::GetWALInsertionTimeLine() }
}

/// Whether commits may wait for standbys, as `synchronous_standby_names` says. Reads the
/// configuration again if it has changed: outside of a transaction.
pub fn has_synchronous_standbys() -> bool {
    reload_if_asked();
    // SAFETY: a setting of every server; the value is looked at before any other call.
    unsafe {
        let names = pg_sys::GetConfigOption(c"synchronous_standby_names".as_ptr(), true, false);
        !names.is_null() && !CStr::from_ptr(names).is_empty()
    }
}

/// Whether the session's user is a superuser.
pub fn is_superuser() -> bool {
    // SAFETY: reads the catalog, in a transaction.
    unsafe { pg_sys::superuser() }
}

/// The session's user, for the log.
pub fn user_name() -> String {
    // SAFETY: a palloc'ed string; the user exists while its session runs.
    unsafe { CStr::from_ptr(pg_sys::GetUserNameFromId(pg_sys::GetUserId(), false)) }
        .to_string_lossy()
        .into_owned()
}

/// Raises an error if this process was cancelled or is to end.
pub fn check_for_interrupts() {
    pgrx::check_for_interrupts!();
}

/// Whether this process was told to end.
pub fn terminating() -> bool {
    // SAFETY: set by signal handlers, read once.
    unsafe { core::ptr::read_volatile(&raw const pg_sys::ProcDiePending) != 0 }
}

unsafe extern "C" {
    // The bindings leave it out.
    #[link_name = "hash_bytes_extended"]
    fn raw_hash(bytes: *const u8, len: c_int, seed: u64) -> u64;
    // Without the guard of the bindings: every snowflake id reads the clock.
    #[link_name = "GetCurrentTimestamp"]
    fn raw_now() -> i64;
    #[link_name = "clock_gettime"]
    fn raw_clock_gettime(clock: c_int, now: *mut [i64; 2]) -> c_int;
}

/// A number that nobody can guess. Raises an error where the system has none.
pub fn strong_random() -> u64 {
    let mut number = 0_u64;
    // SAFETY: writes as many bytes as the number has.
    let drawn = unsafe { pg_sys::pg_strong_random((&raw mut number).cast(), size_of::<u64>()) };
    if !drawn {
        pgrx::error!("could not draw a random number");
    }
    number
}

/// A hash that stays the same for all servers of a version.
pub fn hash(bytes: &[u8]) -> u64 {
    let chunks = bytes.chunks(1 << 30);
    chunks.fold(0, |seed, chunk| {
        let len = c_int::try_from(chunk.len()).unwrap_or(0);
        // SAFETY: reads as many bytes as the slice has.
        unsafe { raw_hash(chunk.as_ptr(), len, seed) }
    })
}

/// What a process keeps to itself.
pub struct BackendLocal<T>(RefCell<T>);

// SAFETY: a process of PostgreSQL has one thread, and leaf_id starts no other.
unsafe impl<T> Sync for BackendLocal<T> {}

impl<T> BackendLocal<T> {
    /// Something to keep.
    pub const fn new(value: T) -> Self {
        Self(RefCell::new(value))
    }

    /// Looks at it. The closure must not come here again to change it.
    #[inline]
    pub fn with<R>(&self, body: impl FnOnce(&T) -> R) -> R {
        body(&self.0.borrow())
    }

    /// Changes it. The closure must not come here again.
    pub fn with_mut<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        body(&mut self.0.borrow_mut())
    }
}

// ---- Time --------------------------------------------------------------------------

/// The clock, in Unix milliseconds.
#[inline]
pub fn now_ms() -> i64 {
    now_us() / 1000
}

/// The clock, in Unix microseconds.
#[inline]
pub fn now_us() -> i64 {
    now_timestamp() + TIMESTAMP_EPOCH_US
}

/// Unix microseconds at PostgreSQL's own epoch, 2000-01-01.
pub const TIMESTAMP_EPOCH_US: i64 = 946_684_800_000_000;

/// The clock as a TimestampTz: microseconds since 2000-01-01.
#[inline]
pub fn now_timestamp() -> i64 {
    // SAFETY: reads the clock, and cannot raise an error.
    unsafe { raw_now() }
}

/// Milliseconds of CLOCK_BOOTTIME: monotonic, and it goes on while the machine is suspended.
/// It begins anew with the machine.
pub fn boot_ms() -> i64 {
    let mut now = [0_i64; 2];
    // SAFETY: a struct timespec of a 64-bit system; a clock that every such system has.
    unsafe { raw_clock_gettime(BOOT_CLOCK, &raw mut now) };
    let [seconds, nanoseconds] = now;
    seconds * 1000 + nanoseconds / 1_000_000
}

/// `CLOCK_BOOTTIME`; elsewhere `CLOCK_MONOTONIC`.
const BOOT_CLOCK: c_int = if cfg!(target_os = "linux") {
    7
} else if cfg!(target_os = "macos") {
    6
} else {
    4
};

/// Unix milliseconds as a person reads them, in the session's time zone.
pub fn format_ms(unix_ms: i64) -> String {
    let us = unix_ms
        .saturating_mul(1000)
        .saturating_sub(TIMESTAMP_EPOCH_US);
    // SAFETY: timestamptz_to_str formats any value into a buffer of its own.
    unsafe { CStr::from_ptr(pg_sys::timestamptz_to_str(us)) }
        .to_string_lossy()
        .into_owned()
}

/// Sleeps a millisecond at most. Not interruptible: the caller checks.
pub fn sleep_us(us: i64, event: WaitEvent) {
    // SAFETY: plain nanosleep.
    while_waiting(event, || unsafe { pg_sys::pg_usleep(us.clamp(1, 1000)) });
}

/// How late a sleep may end, in microseconds: Linux rounds the ends of sleeps to 50, and
/// an idle processor takes its time to wake.
const OVERSLEEP_US: i64 = 150;

/// Waits until a time of the clock, a millisecond away at most. Exactly: awake for the
/// last part of it. Otherwise a sleep, which ends late. Not interruptible: the caller checks.
pub fn sleep_until(until_us: i64, exactly: bool, event: WaitEvent) {
    let awake_us = if exactly { OVERSLEEP_US } else { 0 };
    let us = until_us - now_us() - awake_us;
    if us > 0 {
        sleep_us(us, event);
    }
    // A clock that is set back ends it too.
    let mut left = until_us - now_us();
    while exactly && (1..=awake_us).contains(&left) {
        core::hint::spin_loop();
        left = until_us - now_us();
    }
}

/// Shows a wait event while a closure runs that neither waits by other means nor raises an
/// error.
pub fn while_waiting<T>(event: WaitEvent, body: impl FnOnce() -> T) -> T {
    // SAFETY: what pgstat_report_wait_start does, on this process's own word.
    unsafe { core::ptr::write_volatile(pg_sys::my_wait_event_info, event.number()) };
    let result = body();
    // SAFETY: as above.
    unsafe { core::ptr::write_volatile(pg_sys::my_wait_event_info, 0) };
    result
}

// ---- Waiting -----------------------------------------------------------------------

/// What a process waits for, as `pg_stat_activity` shows it.
#[derive(Clone, Copy)]
pub enum WaitEvent {
    /// A session, for a segment.
    Segment,
    /// A session, for the snowflake generator.
    Snowflake,
    /// The launcher, for something to do.
    Launcher,
    /// An allocator, for something to do.
    Allocator,
    /// A worker, for another server.
    Remote,
}

impl WaitEvent {
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    fn number(self) -> u32 {
        // These versions know one wait event for all extensions.
        pg_sys::PG_WAIT_EXTENSION
    }

    #[cfg(any(feature = "pg17", feature = "pg18"))]
    fn number(self) -> u32 {
        use core::sync::atomic::AtomicU32;
        static NUMBERS: [AtomicU32; 5] = [const { AtomicU32::new(0) }; 5];
        let (index, name) = match self {
            Self::Segment => (0, c"LeafIdSegment"),
            Self::Snowflake => (1, c"LeafIdSnowflake"),
            Self::Launcher => (2, c"LeafIdLauncherMain"),
            Self::Allocator => (3, c"LeafIdAllocatorMain"),
            Self::Remote => (4, c"LeafIdRemote"),
        };
        let Some(slot) = NUMBERS.get(index) else {
            return pg_sys::PG_WAIT_EXTENSION;
        };
        match slot.load(Ordering::Relaxed) {
            0 => {
                // SAFETY: a name that lives for ever; the same name gives the same number.
                let number = unsafe { pg_sys::WaitEventExtensionNew(name.as_ptr()) };
                slot.store(number, Ordering::Relaxed);
                number
            }
            number => number,
        }
    }
}

/// A condition variable in shared memory.
#[derive(Clone, Copy)]
pub struct Waiters(*mut pg_sys::ConditionVariable);

/// A place in its queue; left on drop.
pub struct Waiting(Waiters);

impl Waiters {
    /// For the shared area, which hands out its own.
    ///
    /// # Safety
    /// It is initialized, and lies in shared memory.
    pub unsafe fn new(variable: *mut pg_sys::ConditionVariable) -> Self {
        Self(variable)
    }

    /// Joins the queue: a broadcast from now on ends the next sleep. Check the condition
    /// between this and the sleep.
    pub fn join(self) -> Waiting {
        // SAFETY: what `new` asks for.
        unsafe { pg_sys::ConditionVariablePrepareToSleep(self.0) };
        Waiting(self)
    }
}

impl Waiting {
    /// Sleeps until a broadcast, at most `ms`. Raises an error on cancel or terminate.
    pub fn sleep(&self, ms: i64, event: WaitEvent) {
        let ms = ms.clamp(1, 60_000);
        // SAFETY: prepared by `join`.
        unsafe {
            pg_sys::ConditionVariableTimedSleep(self.0.0, ms as core::ffi::c_long, event.number());
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // SAFETY: allowed at any time, also when not sleeping any more.
        unsafe { pg_sys::ConditionVariableCancelSleep() };
    }
}

/// Sets a latch that another process published; nothing if it is null. A latch that was
/// handed on meanwhile is a spurious wake-up of its new owner.
pub fn set_latch(latch: *mut pg_sys::Latch) {
    if !latch.is_null() {
        // SAFETY: latches of processes lie in shared memory for as long as the server runs.
        unsafe { pg_sys::SetLatch(latch) };
    }
}

/// This process's latch, to publish.
pub fn my_latch() -> *mut pg_sys::Latch {
    // SAFETY: a plain global of the backend.
    unsafe { pg_sys::MyLatch }
}

/// Waits for this process's latch, at most `ms`, or for ever; then handles interrupts.
pub fn wait_latch(ms: Option<i64>, event: WaitEvent) {
    let mut events = pg_sys::WL_LATCH_SET | pg_sys::WL_EXIT_ON_PM_DEATH;
    if ms.is_some() {
        events |= pg_sys::WL_TIMEOUT;
    }
    let ms = ms.map_or(-1, |ms| ms.clamp(1, 3_600_000));
    // SAFETY: the process's own latch.
    unsafe {
        pg_sys::WaitLatch(
            pg_sys::MyLatch,
            events.cast_signed(),
            ms as core::ffi::c_long,
            event.number(),
        );
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    check_for_interrupts();
}

/// What a socket is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// Something to read.
    Reading,
    /// Room to write.
    Writing,
    /// Either.
    Both,
}

/// Waits for this process's latch or one of these sockets, at most `ms`; then handles
/// interrupts.
pub fn wait_for(ms: i64, sockets: &[(RawFd, Readiness)], event: WaitEvent) {
    if sockets.is_empty() {
        wait_latch(Some(ms), event);
        return;
    }
    let count = c_int::try_from(sockets.len()).unwrap_or(0) + 2;
    // SAFETY: a set of this process's own latch and sockets that are open, made for this
    // wait: sockets come and go between two. An error here ends the process, and the set.
    unsafe {
        let set = create_wait_event_set(count);
        let latch = pg_sys::MyLatch;
        let add = |events: u32, socket: c_int, latch: *mut pg_sys::Latch| {
            pg_sys::AddWaitEventToSet(set, events, socket, latch, core::ptr::null_mut());
        };
        add(pg_sys::WL_LATCH_SET, NO_SOCKET, latch);
        add(
            pg_sys::WL_EXIT_ON_PM_DEATH,
            NO_SOCKET,
            core::ptr::null_mut(),
        );
        for (socket, readiness) in sockets {
            let events = match readiness {
                Readiness::Reading => pg_sys::WL_SOCKET_READABLE,
                Readiness::Writing => pg_sys::WL_SOCKET_WRITEABLE,
                Readiness::Both => pg_sys::WL_SOCKET_READABLE | pg_sys::WL_SOCKET_WRITEABLE,
            };
            add(events, *socket, core::ptr::null_mut());
        }
        let mut occurred = pg_sys::WaitEvent::default();
        pg_sys::WaitEventSetWait(
            set,
            ms.clamp(1, 3_600_000) as core::ffi::c_long,
            &raw mut occurred,
            1,
            event.number(),
        );
        pg_sys::FreeWaitEventSet(set);
        pg_sys::ResetLatch(latch);
    }
    check_for_interrupts();
}

/// `PGINVALID_SOCKET`.
const NO_SOCKET: c_int = -1;

#[cfg(any(feature = "pg15", feature = "pg16"))]
unsafe fn create_wait_event_set(count: c_int) -> *mut pg_sys::WaitEventSet {
    // SAFETY: in a context that lives until the set is freed.
    unsafe { pg_sys::CreateWaitEventSet(pg_sys::TopMemoryContext, count) }
}

#[cfg(any(feature = "pg17", feature = "pg18"))]
unsafe fn create_wait_event_set(count: c_int) -> *mut pg_sys::WaitEventSet {
    // SAFETY: without an owner it lives until it is freed.
    unsafe { pg_sys::CreateWaitEventSet(core::ptr::null_mut(), count) }
}

unsafe extern "C" {
    #[link_name = "kill"]
    fn raw_kill(pid: c_int, signal: c_int) -> c_int;
}

/// Has the postmaster look which workers it should start. Up to version 15 it may
/// otherwise sleep for a minute over a worker that is to be restarted, if that one ended
/// just before the postmaster went to sleep.
pub fn nudge_postmaster() {
    // SAFETY: the signal that any process sends it for work; without a reason it does no
    // more than its rounds.
    unsafe { raw_kill(pg_sys::PostmasterPid, pg_sys::SIGUSR1.cast_signed()) };
}

/// Asks a process of this server to end.
pub fn terminate(pid: i32) {
    // SAFETY: a process id of this server's.
    unsafe { raw_kill(pid, pg_sys::SIGTERM.cast_signed()) };
}

// ---- Signals of the workers --------------------------------------------------------

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

#[cfg(not(feature = "pg18"))]
use pg_sys::pqsignal;
#[cfg(feature = "pg18")]
use pg_sys::pqsignal_be as pqsignal;

static CANCELLED: AtomicBool = AtomicBool::new(false);

/// Remembers the cancel: while a commit waits for its standby, PostgreSQL turns it into a
/// warning and returns as if all were well.
unsafe extern "C-unwind" fn note_cancel(signal: c_int) {
    CANCELLED.store(true, Ordering::Relaxed);
    // SAFETY: PostgreSQL's own handler, in a signal handler.
    unsafe { raw_cancel(signal) };
}

/// Signals of a worker that runs transactions: SIGTERM ends it also inside a statement.
pub fn handle_signals_in_transactions() {
    // SAFETY: async-signal-safe handlers, before signals are unblocked.
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
    // SAFETY: async-signal-safe handlers, before signals are unblocked.
    unsafe {
        pqsignal(pg_sys::SIGTERM.cast_signed(), Some(raw_shutdown));
        pqsignal(pg_sys::SIGINT.cast_signed(), Some(ignore_cancel));
        pqsignal(pg_sys::SIGHUP.cast_signed(), Some(raw_reload));
        pg_sys::BackgroundWorkerUnblockSignals();
    }
}

/// Whether SIGTERM came, after [`handle_signals_in_loop`].
pub fn asked_to_stop() -> bool {
    // SAFETY: set by a signal handler.
    unsafe { core::ptr::read_volatile(&raw const pg_sys::ShutdownRequestPending) != 0 }
}

/// Whether this process was cancelled since the last call, or is to end.
pub fn take_cancelled() -> bool {
    CANCELLED.swap(false, Ordering::Relaxed) || terminating()
}

/// Reads the configuration again if SIGHUP came.
pub fn reload_if_asked() -> bool {
    // SAFETY: set by a signal handler; ProcessConfigFile outside of a transaction.
    unsafe {
        if core::ptr::read_volatile(&raw const pg_sys::ConfigReloadPending) == 0 {
            return false;
        }
        pg_sys::ConfigReloadPending = 0;
        pg_sys::ProcessConfigFile(pg_sys::GucContext::PGC_SIGHUP);
    }
    true
}

/// Registers what is done when this process ends, however it ends short of a crash.
pub fn on_exit(callback: unsafe extern "C-unwind" fn(c_int, pg_sys::Datum)) {
    // SAFETY: the callback raises no error; a panic in it is turned into one by pg_guard.
    unsafe { pg_sys::before_shmem_exit(Some(callback), pg_sys::Datum::null()) };
}

/// Ends this process with an exit code.
#[allow(
    unreachable_code,
    reason = "PostgreSQL 18's bindings do not say that it never returns"
)]
pub fn exit(code: c_int) -> ! {
    // SAFETY: runs the exit callbacks.
    unsafe { pg_sys::proc_exit(code) };
    unreachable!("proc_exit does not return")
}

/// Connects a worker to a database, also to one that does not allow connections. Whoever copies
/// or drops it may have it locked: that is not waited for, and ends this process.
pub fn connect(database: u32) {
    // SAFETY: once, in a background worker. There is no user yet, whom a change in the session
    // would be checked against: this is set as autovacuum sets it.
    unsafe {
        pg_sys::SetConfigOption(
            c"lock_timeout".as_ptr(),
            c"100ms".as_ptr(),
            pg_sys::GucContext::PGC_SUSET,
            pg_sys::GucSource::PGC_S_OVERRIDE,
        );
        pg_sys::BackgroundWorkerInitializeConnectionByOid(
            pg_sys::Oid::from(database),
            pg_sys::InvalidOid,
            pg_sys::BGWORKER_BYPASS_ALLOWCONN,
        );
    }
}

/// Whether nobody waits for every process to leave this process's database.
pub fn database_is_free() -> bool {
    is_free(database())
}

/// Whether nobody waits for every process to leave a database (DROP, RENAME, TEMPLATE and SET
/// TABLESPACE do): they hold a lock on it that conflicts with a session's.
pub fn is_free(database: u32) -> bool {
    let tag = pg_sys::LOCKTAG {
        locktag_field1: 0,
        locktag_field2: pg_sys::DatabaseRelationId.to_u32(),
        locktag_field3: database,
        locktag_field4: 0,
        locktag_type: u8::try_from(pg_sys::LockTagType::LOCKTAG_OBJECT).unwrap_or(0),
        locktag_lockmethodid: u8::try_from(pg_sys::DEFAULT_LOCKMETHOD).unwrap_or(1),
    };
    let mode = pg_sys::RowExclusiveLock.cast_signed();
    // SAFETY: a session lock, taken without waiting and released at once.
    unsafe {
        let result = try_lock(&tag, mode);
        let got = result != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL;
        if got {
            pg_sys::LockRelease(&raw const tag, mode, true);
        }
        got
    }
}

/// Takes a session lock if it is free. A full lock table is no error: anybody may fill it.
#[cfg(not(feature = "pg18"))]
unsafe fn try_lock(
    tag: &pg_sys::LOCKTAG,
    mode: pg_sys::LOCKMODE,
) -> pg_sys::LockAcquireResult::Type {
    // SAFETY: a valid tag and mode.
    unsafe { pg_sys::LockAcquireExtended(tag, mode, true, true, false, core::ptr::null_mut()) }
}

#[cfg(feature = "pg18")]
unsafe fn try_lock(
    tag: &pg_sys::LOCKTAG,
    mode: pg_sys::LOCKMODE,
) -> pg_sys::LockAcquireResult::Type {
    let none = core::ptr::null_mut();
    // SAFETY: a valid tag and mode.
    unsafe { pg_sys::LockAcquireExtended(tag, mode, true, true, false, none, false) }
}

/// Shows in `pg_stat_activity` what a worker does; `None` is idle.
pub fn report_activity(activity: Option<&CStr>) {
    let state = if activity.is_some() {
        pg_sys::BackendState::STATE_RUNNING
    } else {
        pg_sys::BackendState::STATE_IDLE
    };
    // SAFETY: the text is copied.
    unsafe { pg_sys::pgstat_report_activity(state, activity.unwrap_or_default().as_ptr()) };
}

// ---- Transactions ------------------------------------------------------------------

/// An error that a transaction ended with.
pub struct Caught {
    /// The SQLSTATE.
    pub code: PgSqlErrorCode,
    /// The primary message.
    pub message: String,
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

/// Runs one transaction of a worker: committed when this returns `Ok(Ok(..))`, aborted
/// otherwise. A commit that was told to wait for a standby may have given up waiting: see
/// [`take_cancelled`].
///
/// # Errors
/// What PostgreSQL raised, or in the inner result what the body says.
pub fn transaction<T, E>(body: impl FnOnce() -> Result<T, E>) -> Result<Result<T, E>, Caught> {
    let result = PgTryBuilder::new(AssertUnwindSafe(|| {
        // SAFETY: a worker, outside of a transaction.
        unsafe {
            pg_sys::SetCurrentStatementStartTimestamp();
            pg_sys::StartTransactionCommand();
            pg_sys::PushActiveSnapshot(pg_sys::GetTransactionSnapshot());
        }
        let result = body();
        // SAFETY: ends what was begun above.
        unsafe {
            pg_sys::PopActiveSnapshot();
            if result.is_ok() {
                pg_sys::CommitTransactionCommand();
            } else {
                pg_sys::AbortCurrentTransaction();
            }
        }
        Ok(result)
    }))
    .catch_others(|error| {
        // SAFETY: releases every lock and ends the failed transaction.
        unsafe { pg_sys::AbortCurrentTransaction() };
        Err(caught(error))
    })
    .execute();
    // SAFETY: outside of a transaction.
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

static CALLBACKS: parking_lot::Mutex<Option<TransactionCallbacks>> = parking_lot::Mutex::new(None);

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn transaction_callback(
    event: pg_sys::XactEvent::Type,
    _arg: *mut c_void,
) {
    use pg_sys::XactEvent as Event;
    let event = match event {
        Event::XACT_EVENT_PRE_COMMIT => TransactionEvent::PreCommit,
        Event::XACT_EVENT_PRE_PREPARE => TransactionEvent::PrePrepare,
        Event::XACT_EVENT_COMMIT => TransactionEvent::Commit,
        Event::XACT_EVENT_ABORT => TransactionEvent::Abort,
        // Parallel workers edit nothing, and PREPARE is refused before.
        _ => return,
    };
    let callbacks = *CALLBACKS.lock();
    if let Some(callbacks) = callbacks {
        (callbacks.transaction)(event);
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn subtransaction_callback(
    event: pg_sys::SubXactEvent::Type,
    mine: pg_sys::SubTransactionId,
    parent: pg_sys::SubTransactionId,
    _arg: *mut c_void,
) {
    use pg_sys::SubXactEvent as Event;
    let event = match event {
        Event::SUBXACT_EVENT_COMMIT_SUB => SubtransactionEvent::Commit { parent },
        Event::SUBXACT_EVENT_ABORT_SUB => SubtransactionEvent::Abort,
        _ => return,
    };
    let callbacks = *CALLBACKS.lock();
    if let Some(callbacks) = callbacks {
        (callbacks.subtransaction)(mine, event);
    }
}

/// Sets who is told of transactions' ends in this process. The first call registers.
pub fn watch_transactions(callbacks: TransactionCallbacks) {
    if CALLBACKS.lock().replace(callbacks).is_none() {
        // SAFETY: callbacks that live as long as the process.
        unsafe {
            pg_sys::RegisterXactCallback(Some(transaction_callback), core::ptr::null_mut());
            pg_sys::RegisterSubXactCallback(Some(subtransaction_callback), core::ptr::null_mut());
        }
    }
}

/// The number of the open subtransaction.
pub fn subtransaction() -> u32 {
    // SAFETY: reads the transaction state.
    unsafe { pg_sys::GetCurrentSubTransactionId() }
}

// ---- Catalog -----------------------------------------------------------------------

static RELATION_CHANGED: AtomicBool = AtomicBool::new(true);
static WATCHED_RELATION: core::sync::atomic::AtomicU32 = core::sync::atomic::AtomicU32::new(0);

unsafe extern "C-unwind" fn relation_callback(_arg: pg_sys::Datum, relation: pg_sys::Oid) {
    // Called from anywhere that looks at the catalogs: nothing but a flag.
    let relation = relation.to_u32();
    if relation == 0 || relation == WATCHED_RELATION.load(Ordering::Relaxed) {
        RELATION_CHANGED.store(true, Ordering::Relaxed);
    }
}

/// Watches a relation in this process from now on, instead of the one before.
pub fn watch_relation(relation: u32) {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    WATCHED_RELATION.store(relation, Ordering::Relaxed);
    RELATION_CHANGED.store(false, Ordering::Relaxed);
    if !REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: a callback that lives as long as the process and cannot fail.
        unsafe {
            pg_sys::CacheRegisterRelcacheCallback(Some(relation_callback), pg_sys::Datum::null());
        }
    }
}

/// Whether the watched relation was altered or dropped, or none is watched.
#[inline]
pub fn relation_changed() -> bool {
    RELATION_CHANGED.load(Ordering::Relaxed)
}

/// The catalog of databases was locked by somebody else, so it could not be looked at.
pub struct CatalogLocked;

/// The oid of a database, by its name: in a transaction, also of a process that is connected
/// to none, which has no other way to look. A lock on the catalog is not waited for.
///
/// # Errors
/// [`CatalogLocked`].
pub fn find_database(name: &str) -> Result<Option<u32>, CatalogLocked> {
    let mut found = None;
    // SAFETY: a scan of a shared catalog in a transaction; tuples are looked at before the
    // next one is fetched.
    unsafe {
        let lock = pg_sys::AccessShareLock.cast_signed();
        if !pg_sys::ConditionalLockRelationOid(pg_sys::DatabaseRelationId, lock) {
            return Err(CatalogLocked);
        }
        let none = pg_sys::NoLock.cast_signed();
        let table = pg_sys::table_open(pg_sys::DatabaseRelationId, none);
        let scan = pg_sys::table_beginscan_catalog(table, 0, core::ptr::null_mut());
        loop {
            let forward = pg_sys::ScanDirection::ForwardScanDirection;
            let tuple = pg_sys::heap_getnext(scan, forward);
            if tuple.is_null() {
                break;
            }
            let form = pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_database>();
            let datname = CStr::from_ptr((*form).datname.data.as_ptr());
            if datname.to_bytes() == name.as_bytes() {
                found = Some((*form).oid.to_u32());
            }
        }
        pg_sys::heap_endscan(scan);
        pg_sys::table_close(table, lock);
    }
    Ok(found)
}

/// Whether a relation exists in this database.
pub fn relation_exists(oid: u32) -> bool {
    let cache = pg_sys::SysCacheIdentifier::RELOID.cast_signed();
    let none = pg_sys::Datum::null();
    // SAFETY: a cache whose key is one oid.
    unsafe { pg_sys::SearchSysCacheExists(cache, pg_sys::Datum::from(oid), none, none, none) }
}

#[cfg(not(feature = "pg18"))]
unsafe fn primary_key(table: pg_sys::Relation) -> pg_sys::Oid {
    // SAFETY: an open relation.
    unsafe { pg_sys::RelationGetPrimaryKeyIndex(table) }
}

#[cfg(feature = "pg18")]
unsafe fn primary_key(table: pg_sys::Relation) -> pg_sys::Oid {
    // SAFETY: an open relation. A deferrable key would do for a look-up, but there is none.
    unsafe { pg_sys::RelationGetPrimaryKeyIndex(table, true) }
}

// ---- Settings ----------------------------------------------------------------------

/// A check hook, as PostgreSQL calls it.
pub type CheckHook = unsafe extern "C-unwind" fn(
    *mut *mut c_char,
    *mut *mut c_void,
    pg_sys::GucSource::Type,
) -> bool;

/// Defines a string setting whose values are checked.
pub fn define_checked_string(
    name: &'static CStr,
    short: &'static CStr,
    long: &'static CStr,
    setting: &'static GucSetting<Option<std::ffi::CString>>,
    context: GucContext,
    hook: CheckHook,
) {
    // SAFETY: the hook neither fails nor changes the value.
    unsafe {
        GucRegistry::define_string_guc_with_hooks(
            name,
            short,
            long,
            setting,
            context,
            GucFlags::default(),
            Some(hook),
            None,
            None,
        );
    }
}

/// The value that a check hook is asked about.
pub fn with_setting(value: *mut *mut c_char, check: impl FnOnce(&CStr) -> bool) -> bool {
    // SAFETY: PostgreSQL passes a pointer to a string or to null.
    let text = unsafe {
        match value.as_ref() {
            Some(text) if !text.is_null() => CStr::from_ptr(*text),
            _ => c"",
        }
    };
    check(text)
}

/// Says in a check hook why a value is refused.
pub fn explain_check_failure(code: PgSqlErrorCode, detail: &CStr) {
    // SAFETY: what the GUC_check_errdetail macro does.
    unsafe {
        pg_sys::GUC_check_errcode(code as c_int);
        pg_sys::GUC_check_errdetail_string = pg_sys::pstrdup(detail.as_ptr());
    }
}

/// Makes any other setting of this prefix an error.
pub fn reserve_prefix(prefix: &CStr) {
    // SAFETY: after all definitions.
    unsafe { pg_sys::MarkGUCPrefixReserved(prefix.as_ptr()) };
}

/// Sets a setting of this worker's session, over what the database or the role says. One
/// that this version of PostgreSQL does not know is passed over.
pub fn pin_setting(name: &CStr, value: &CStr) {
    // SAFETY: a worker that runs as superuser.
    unsafe {
        if pg_sys::GetConfigOption(name.as_ptr(), true, false).is_null() {
            return;
        }
        pg_sys::SetConfigOption(
            name.as_ptr(),
            value.as_ptr(),
            pg_sys::GucContext::PGC_SUSET,
            pg_sys::GucSource::PGC_S_SESSION,
        );
    }
}

// ---- Results -----------------------------------------------------------------------

/// A result that is returned as it is: a row of OUT arguments, a trigger's row.
pub struct RawDatum(pg_sys::Datum);

impl RawDatum {
    fn datum(self) -> pg_sys::Datum {
        self.0
    }
}

/// The row type that a call expects of its function, one with OUT arguments. It lives as
/// long as the call site, and to make it costs many times what a row does.
#[derive(Clone, Copy)]
pub struct RowType(pg_sys::TupleDesc);

impl RowType {
    /// That of a call through SQL.
    pub fn of(fcinfo: pg_sys::FunctionCallInfo) -> Self {
        let mut descriptor = core::ptr::null_mut();
        // SAFETY: called from an SQL function, so flinfo is set. An error on the way resets
        // the memory context too.
        unsafe {
            let before = pg_sys::MemoryContextSwitchTo((*(*fcinfo).flinfo).fn_mcxt);
            pg_sys::get_call_result_type(fcinfo, core::ptr::null_mut(), &raw mut descriptor);
            let blessed = pg_sys::BlessTupleDesc(descriptor);
            pg_sys::MemoryContextSwitchTo(before);
            Self(blessed)
        }
    }

    /// A row of it; one entry per column, `None` is NULL.
    pub fn form<const N: usize>(self, columns: [Option<pg_sys::Datum>; N]) -> RawDatum {
        let mut nulls = columns.map(|column| column.is_none());
        let mut values = columns.map(|column| column.unwrap_or(pg_sys::Datum::null()));
        // SAFETY: the function is declared with as many OUT arguments.
        unsafe {
            let tuple = pg_sys::heap_form_tuple(self.0, values.as_mut_ptr(), nulls.as_mut_ptr());
            RawDatum(pg_sys::HeapTupleHeaderGetDatum((*tuple).t_data))
        }
    }
}

/// For types that only stand where the SQL of a function is written out by hand.
macro_rules! declared_in_sql {
    ($type:ident, $sql:literal) => {
        // SAFETY: the datum is of the type that the function's SQL declares.
        unsafe impl pgrx::callconv::BoxRet for $type {
            unsafe fn box_into<'fcx>(
                self,
                fcinfo: &mut pgrx::callconv::FcInfo<'fcx>,
            ) -> pgrx::datum::Datum<'fcx> {
                // SAFETY: as above.
                unsafe { fcinfo.return_raw_datum(self.datum()) }
            }
        }

        // SAFETY: the SQL that this would generate is never used.
        unsafe impl metadata::SqlTranslatable for $type {
            const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!($type);
            const TYPE_ORIGIN: metadata::TypeOrigin = metadata::TypeOrigin::External;
            const ARGUMENT_SQL: Result<metadata::SqlMappingRef, metadata::ArgumentError> =
                Ok(metadata::SqlMappingRef::literal($sql));
            const RETURN_SQL: Result<metadata::ReturnsRef, metadata::ReturnsError> = Ok(
                metadata::ReturnsRef::One(metadata::SqlMappingRef::literal($sql)),
            );
        }
    };
}

// ---- SQL values --------------------------------------------------------------------

unsafe fn text_datum(bytes: &[u8]) -> pg_sys::Datum {
    let len = c_int::try_from(bytes.len()).unwrap_or(0);
    // SAFETY: copies the bytes.
    pg_sys::Datum::from(unsafe { pg_sys::cstring_to_text_with_len(bytes.as_ptr().cast(), len) })
}

/// A text result as its bytes in the encoding of the database: tags are not converted.
pub struct Text(Vec<u8>);

impl Text {
    /// Copies the bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    fn datum(&self) -> pg_sys::Datum {
        // SAFETY: palloc'ed in the context of the call.
        unsafe { text_datum(&self.0) }
    }
}

impl pgrx::IntoDatum for Text {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        Some(self.datum())
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::TEXTOID
    }
}

declared_in_sql!(Text, "text");
declared_in_sql!(Name, "name");
declared_in_sql!(RawDatum, "record");
