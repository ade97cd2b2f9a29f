//! User locks of PostgreSQL's lock manager, which stand for nothing in the catalogs: three numbers, in the
//! current database. In `pg_locks` their `locktype` is `userlock`; advisory locks are of another type.
//!
//! PREPARE TRANSACTION hands them to the prepared transaction, also over a restart. Whatever ends the
//! transaction releases them, after it has ended for all snapshots. Never by the fast path, which is for weak
//! locks of tables: all holders are in the lock table.

use pgrx::pg_sys;

use super::process::database;

/// Not the method of advisory locks, all of which DISCARD ALL releases.
const METHOD: u8 = pg_sys::DEFAULT_LOCKMETHOD as u8;
const TYPE: u8 = pg_sys::LockTagType::LOCKTAG_USERLOCK as u8;

/// Holds a lock together with others, until the transaction has ended. Raises PostgreSQL's error if its lock
/// table is full.
pub fn share_user_lock(class: u32, (number, kind): (u32, u16)) {
    let tag = pg_sys::LOCKTAG {
        locktag_field1: database(),
        locktag_field2: class,
        locktag_field3: number,
        locktag_field4: kind,
        locktag_type: TYPE,
        locktag_lockmethodid: METHOD,
    };
    let share = pg_sys::ShareLock.cast_signed();
    // SAFETY: in a transaction; reads the tag. The owner is set for the call, as PostgreSQL does for the lock of
    // an xid; an error resets it with the abort of the transaction, or of a subtransaction.
    unsafe {
        let owner = pg_sys::CurrentResourceOwner;
        // Not released by ROLLBACK TO: the client, or a variable, may still have what the lock protects.
        pg_sys::CurrentResourceOwner = pg_sys::TopTransactionResourceOwner;
        pg_sys::LockAcquire(&raw const tag, share, false, false);
        pg_sys::CurrentResourceOwner = owner;
    }
}

/// The other numbers of all locks of this class that are held. Looks at every lock of the server, as
/// `pg_locks` does.
pub fn user_locks(class: u32) -> Vec<(u32, u16)> {
    // SAFETY: in a transaction. The array was just allocated, with as many elements.
    unsafe {
        let data = pg_sys::GetLockStatusData();
        let count = usize::try_from((*data).nelements).unwrap_or(0);
        let locks = core::slice::from_raw_parts((*data).locks, count);
        let is_of_class = |tag: &pg_sys::LOCKTAG| {
            tag.locktag_type == TYPE
                && tag.locktag_field1 == database()
                && tag.locktag_field2 == class
        };
        let held = locks
            .iter()
            .filter(|lock| lock.holdMask != 0 && is_of_class(&lock.locktag))
            .map(|lock| (lock.locktag.locktag_field3, lock.locktag.locktag_field4))
            .collect();
        pg_sys::pfree((*data).locks.cast());
        pg_sys::pfree(data.cast());
        held
    }
}
