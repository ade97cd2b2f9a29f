//! Databases: lookup, exclusive use, and hooks for CREATE and DROP DATABASE in any session.
//!
//! DROP DATABASE calls the hook before its checks, and may still fail: the oid is only recorded,
//! and reported once the transaction has committed. CREATE DATABASE calls the hook when the row is
//! written and no session can connect yet.

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pgrx::pg_sys;

use super::backend_local::BackendLocal;
use super::cached::cache_id;
use super::process::database;
use super::transaction::{Caught, once, transaction};

/// Connects a worker to a database, even one that does not allow connections. If the database is
/// locked, because it is being copied or dropped, the process exits instead of waiting.
pub fn connect(database: u32) {
    // SAFETY: null-terminated strings, which are copied; called once, by a background worker. There
    // is no user yet to check a session-level setting against, so it is set the way autovacuum
    // does.
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

/// Lets the owner of the current database terminate this worker. DROP DATABASE ... WITH (FORCE) may
/// terminate only processes of roles that the caller is a member of, and a worker without a user
/// has no role. This affects only who may terminate the process, not its own privileges. For a
/// connected worker that works only for this database, outside of a transaction. If the catalog is
/// locked or cannot be read, nothing changes.
pub fn belong_to_owner() {
    let lock = pg_sys::AccessShareLock.cast_signed();
    // SAFETY: in a transaction. The catalog is locked without waiting. The tuple begins with the
    // fixed part of a pg_database row. roleId belongs to this process, which sets it at session
    // start, too.
    let look = || unsafe {
        if pg_sys::ConditionalLockRelationOid(pg_sys::DatabaseRelationId, lock) {
            let cache = cache_id(pg_sys::SysCacheIdentifier::DATABASEOID);
            let row = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(pg_sys::MyDatabaseId));
            if !row.is_null() {
                let form = pg_sys::GETSTRUCT(row).cast::<pg_sys::FormData_pg_database>();
                (*pg_sys::MyProc).roleId = (*form).datdba;
                pg_sys::ReleaseSysCache(row);
            }
        }
        Ok::<_, Caught>(())
    };
    // Errors are ignored; the next call is soon.
    drop(transaction(look));
}

/// The catalog of databases is locked by another session.
pub struct CatalogLocked;

/// Oid of a database by name. In a transaction, also in a process connected to no database, which
/// has no other way to look it up. Does not wait for a lock on the catalog.
///
/// # Errors
/// [`CatalogLocked`].
pub fn find_database(name: &str) -> Result<Option<u32>, CatalogLocked> {
    let mut found = None;
    // SAFETY: in a transaction. The catalog is locked before it is opened with NoLock. A tuple
    // begins with the fixed part of a pg_database row and is valid until the next one is fetched; a
    // name is null-terminated.
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

/// As [`is_free`], for the current database.
pub fn database_is_free() -> bool {
    is_free(database())
}

/// True if no session is waiting for, or holds, exclusive use of a database, as for DROP, RENAME,
/// TEMPLATE and SET TABLESPACE. Their lock on the database conflicts with that of a session.
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
    // SAFETY: a complete tag and a mode of its lock method; an acquired lock is released once.
    unsafe {
        let result = try_lock(&tag, mode);
        let got = result != pg_sys::LockAcquireResult::LOCKACQUIRE_NOT_AVAIL;
        if got {
            pg_sys::LockRelease(&raw const tag, mode, true);
        }
        got
    }
}

/// Tries to acquire a session lock. A full lock table is not an error, since any role can fill it.
///
/// # Safety
/// The tag is complete, and the mode belongs to its lock method.
#[cfg(not(since_18))]
unsafe fn try_lock(
    tag: &pg_sys::LOCKTAG,
    mode: pg_sys::LOCKMODE,
) -> pg_sys::LockAcquireResult::Type {
    // SAFETY: guaranteed by the caller. The local lock is not requested, so its pointer may be
    // null.
    unsafe { pg_sys::LockAcquireExtended(tag, mode, true, true, false, core::ptr::null_mut()) }
}

/// Tries to acquire a session lock. A full lock table is not an error, since any role can fill it.
///
/// # Safety
/// The tag is complete, and the mode belongs to its lock method.
#[cfg(since_18)]
unsafe fn try_lock(
    tag: &pg_sys::LOCKTAG,
    mode: pg_sys::LOCKMODE,
) -> pg_sys::LockAcquireResult::Type {
    let none = core::ptr::null_mut();
    // SAFETY: guaranteed by the caller. The local lock is not requested, so its pointer may be
    // null.
    unsafe { pg_sys::LockAcquireExtended(tag, mode, true, true, false, none, false) }
}

/// Callback with the oid of a database. Must not fail or allocate, as it also runs after commit.
pub type ForgetDatabase = fn(u32);

static FORGET: BackendLocal<Option<ForgetDatabase>> = BackendLocal::new(None);
static PREVIOUS: BackendLocal<pg_sys::object_access_hook_type> = BackendLocal::new(None);
/// The database dropped by the open transaction; 0 if none. DROP DATABASE is the only statement in
/// its transaction.
static DROPPED: AtomicU32 = AtomicU32::new(0);

/// Sets the callback for databases that were dropped, or created with an oid that may have been
/// used before. Only while the library is being preloaded.
pub fn watch_databases(forget: ForgetDatabase) {
    FORGET.with_mut(|ours| *ours = Some(forget));
    // SAFETY: a global, set by the postmaster before it starts other processes, which inherit it
    // along with the library.
    let previous = unsafe {
        let previous = pg_sys::object_access_hook;
        pg_sys::object_access_hook = Some(on_access);
        previous
    };
    PREVIOUS.with_mut(|hook| *hook = previous);
}

fn tell(database: u32) {
    if let Some(forget) = FORGET.with(|forget| *forget) {
        forget(database);
    }
}

/// Not guarded: an error of the previous hook passes through, and there is nothing to drop here.
/// Called for every function of a statement, so most calls are a single comparison.
unsafe extern "C-unwind" fn on_access(
    access: pg_sys::ObjectAccessType::Type,
    class: pg_sys::Oid,
    object: pg_sys::Oid,
    sub_object: c_int,
    argument: *mut c_void,
) {
    if class == pg_sys::DatabaseRelationId {
        // SAFETY: plain values; unsafe only because pg_guard requires it.
        unsafe { on_database(access, object.to_u32()) };
    }
    if let Some(previous) = PREVIOUS.with(|hook| *hook) {
        // SAFETY: the previous hook, called with PostgreSQL's own arguments.
        unsafe { previous(access, class, object, sub_object, argument) };
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn on_database(access: pg_sys::ObjectAccessType::Type, database: u32) {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    match access {
        pg_sys::ObjectAccessType::OAT_POST_CREATE => tell(database),
        pg_sys::ObjectAccessType::OAT_DROP => {
            // SAFETY: the library is never unloaded, and the callback takes no argument.
            once(&REGISTERED, || unsafe {
                pg_sys::RegisterXactCallback(Some(on_end), core::ptr::null_mut());
            });
            DROPPED.store(database, Ordering::Relaxed);
        }
        _ => {}
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn on_end(event: pg_sys::XactEvent::Type, _arg: *mut c_void) {
    use pg_sys::XactEvent as Event;
    match event {
        Event::XACT_EVENT_COMMIT => match DROPPED.swap(0, Ordering::Relaxed) {
            0 => {}
            database => tell(database),
        },
        Event::XACT_EVENT_ABORT => DROPPED.store(0, Ordering::Relaxed),
        _ => {}
    }
}
