//! Which databases are made and dropped, by whichever session.
//!
//! DROP DATABASE calls its hook before it has checked anything, and may fail: the oid is only
//! noted, and told of when the transaction has committed. CREATE DATABASE calls its hook when
//! the row is written and nobody can connect yet.

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pgrx::pg_sys;

use super::BackendLocal;

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
    // SAFETY: the postmaster is alone, and every process inherits the hook.
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
        // SAFETY: what we were called with.
        unsafe { on_database(access, object.to_u32()) };
    }
    if let Some(previous) = PREVIOUS.with(|hook| *hook) {
        // SAFETY: as PostgreSQL would have called it.
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
                // SAFETY: a callback that lives as long as the process.
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
