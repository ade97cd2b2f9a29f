//! Databases: which there are, whether one is free, and which are made and dropped by whichever
//! session.
//!
//! DROP DATABASE calls its hook before it has checked anything, and may fail: the oid is only
//! noted, and told of when the transaction has committed. CREATE DATABASE calls its hook when
//! the row is written and nobody can connect yet.

use core::ffi::{CStr, c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pgrx::pg_sys;

use super::backend_local::BackendLocal;
use super::process::database;
use super::transaction::{Caught, transaction};

/// Connects a worker to a database, also to one that does not allow connections. Whoever copies
/// or drops it may have it locked: that is not waited for, and ends this process.
pub fn connect(database: u32) {
    // SAFETY: strings that end with null, and are copied; a background worker calls this, once.
    // There is no user yet, whom a change in the session would be checked against: this is set as
    // autovacuum sets it.
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

/// Lets the owner of its database end this worker. DROP DATABASE ... WITH (FORCE) may end only what
/// belongs to a role that the caller is a member of, and a worker without a user belongs to none.
/// It only says who may end this: what this may do is as before. In a worker that is connected, and works for this
/// database alone, outside of a transaction. Where the catalog is locked, or cannot be read, all stays as it is.
pub fn belong_to_owner() {
    let lock = pg_sys::AccessShareLock.cast_signed();
    // SAFETY: in a transaction. The catalog is locked without a wait. A tuple of it begins with the fixed
    // part of a pg_database row. The field is this process's own to set, as a session's start sets it.
    let look = || unsafe {
        if pg_sys::ConditionalLockRelationOid(pg_sys::DatabaseRelationId, lock) {
            let cache = pg_sys::SysCacheIdentifier::DATABASEOID.cast_signed();
            let row = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(pg_sys::MyDatabaseId));
            if !row.is_null() {
                let form = pg_sys::GETSTRUCT(row).cast::<pg_sys::FormData_pg_database>();
                (*pg_sys::MyProc).roleId = (*form).datdba;
                pg_sys::ReleaseSysCache(row);
            }
        }
        Ok::<_, Caught>(())
    };
    // The next look is soon.
    drop(transaction(look));
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
    // SAFETY: in a transaction. The catalog is locked before it is opened without a lock. A tuple
    // of it begins with the fixed part of a pg_database row, and is valid until the next one is
    // fetched; a name ends with a null.
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
    // SAFETY: a complete tag and a mode of its lock method; what was taken is released, once.
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
///
/// # Safety
/// The tag is complete, and the mode one of its lock method.
#[cfg(not(feature = "pg18"))]
unsafe fn try_lock(
    tag: &pg_sys::LOCKTAG,
    mode: pg_sys::LOCKMODE,
) -> pg_sys::LockAcquireResult::Type {
    // SAFETY: as the caller says. Nobody asks for the local lock, so its pointer may be null.
    unsafe { pg_sys::LockAcquireExtended(tag, mode, true, true, false, core::ptr::null_mut()) }
}

/// Takes a session lock if it is free. A full lock table is no error: anybody may fill it.
///
/// # Safety
/// The tag is complete, and the mode one of its lock method.
#[cfg(feature = "pg18")]
unsafe fn try_lock(
    tag: &pg_sys::LOCKTAG,
    mode: pg_sys::LOCKMODE,
) -> pg_sys::LockAcquireResult::Type {
    let none = core::ptr::null_mut();
    // SAFETY: as the caller says. Nobody asks for the local lock, so its pointer may be null.
    unsafe { pg_sys::LockAcquireExtended(tag, mode, true, true, false, none, false) }
}

/// Who is told, with the oid. It must not fail, and allocates nothing: it is called after the
/// commit, too.
pub type ForgetDatabase = fn(u32);

static FORGET: BackendLocal<Option<ForgetDatabase>> = BackendLocal::new(None);
static PREVIOUS: BackendLocal<pg_sys::object_access_hook_type> = BackendLocal::new(None);
/// The database that the open transaction drops, 0 for none: DROP DATABASE is alone in its
/// transaction.
static DROPPED: AtomicU32 = AtomicU32::new(0);

/// Has somebody told when a database is gone, or is made with an oid that another one may have
/// had. While the library is being preloaded.
pub fn watch_databases(forget: ForgetDatabase) {
    FORGET.with_mut(|ours| *ours = Some(forget));
    // SAFETY: a plain global, which the postmaster sets before it has started any process: each
    // inherits it, with the library.
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

/// Not guarded: an error of the hook before ours passes as it is, and nothing here needs to be
/// dropped. Called for every function of a statement: nothing but a comparison for most.
unsafe extern "C-unwind" fn on_access(
    access: pg_sys::ObjectAccessType::Type,
    class: pg_sys::Oid,
    object: pg_sys::Oid,
    sub_object: c_int,
    argument: *mut c_void,
) {
    if class == pg_sys::DatabaseRelationId {
        // SAFETY: takes plain values; it is unsafe only as a guard needs it so.
        unsafe { on_database(access, object.to_u32()) };
    }
    if let Some(previous) = PREVIOUS.with(|hook| *hook) {
        // SAFETY: the hook that was there before ours, called with what PostgreSQL has passed.
        unsafe { previous(access, class, object, sub_object, argument) };
    }
}

#[pgrx::pg_guard]
unsafe extern "C-unwind" fn on_database(access: pg_sys::ObjectAccessType::Type, database: u32) {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    match access {
        pg_sys::ObjectAccessType::OAT_POST_CREATE => tell(database),
        pg_sys::ObjectAccessType::OAT_DROP => {
            if !REGISTERED.swap(true, Ordering::Relaxed) {
                // SAFETY: the callback lives as long as the library, and takes no argument.
                unsafe { pg_sys::RegisterXactCallback(Some(on_end), core::ptr::null_mut()) };
            }
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
