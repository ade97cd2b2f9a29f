//! A table of the extension, open and locked.

use pgrx::pg_sys;

use super::check::{Obstacle, check_once};
use super::shape::{Misshapen, Shape};
use crate::pg::catalog::primary_key;

/// How a table is used.
#[derive(Clone, Copy)]
pub enum Access {
    /// Rows are read.
    Read,
    /// Rows are locked or written.
    Write,
}

/// One of the extension's tables, open and locked until the transaction ends (or, for
/// [`Access::Read`], until it is dropped).
pub struct Table {
    pub(super) relation: pg_sys::Relation,
    pub(super) key_index: pg_sys::Oid,
    /// The lock of the table that is released on drop ...
    lock: pg_sys::LOCKMODE,
    /// ... and of the index of its key.
    index_lock: pg_sys::LOCKMODE,
}

impl Drop for Table {
    fn drop(&mut self) {
        // An error may have been raised in the middle of anything: the end of the transaction
        // closes what is open.
        if std::thread::panicking() {
            return;
        }
        // SAFETY: opened and locked once, by whoever has made this, and neither given back before.
        unsafe {
            if self.index_lock != pg_sys::NoLock.cast_signed() {
                pg_sys::UnlockRelationOid(self.key_index, self.index_lock);
            }
            pg_sys::relation_close(self.relation, self.lock);
        }
    }
}

impl Table {
    /// Opens a table by its oid, and waits for its lock as `lock_timeout` allows; `None` if
    /// it is gone.
    ///
    /// # Errors
    /// [`Misshapen`].
    pub fn open(
        oid: u32,
        shape: &'static Shape,
        access: Access,
    ) -> Result<Option<Self>, Misshapen> {
        let (lock, released) = match access {
            Access::Read => (pg_sys::AccessShareLock, pg_sys::AccessShareLock),
            Access::Write => (pg_sys::RowExclusiveLock, pg_sys::NoLock),
        };
        // SAFETY: in a transaction; takes any oid, and returns null if there is no such relation.
        let relation =
            unsafe { pg_sys::try_relation_open(pg_sys::Oid::from(oid), lock.cast_signed()) };
        // SAFETY: opened and locked above.
        match unsafe { Self::opened(relation, shape, released, true) } {
            Ok(table) => Ok(table),
            Err(Obstacle::Misshapen(misshapen)) => Err(misshapen),
            Err(Obstacle::Locked) => Ok(None),
        }
    }

    /// The same for reading, if that takes no wait.
    ///
    /// # Errors
    /// [`Obstacle`].
    pub fn open_at_once(oid: u32, shape: &'static Shape) -> Result<Option<Self>, Obstacle> {
        let oid = pg_sys::Oid::from(oid);
        let share = pg_sys::AccessShareLock.cast_signed();
        // SAFETY: in a transaction; takes any oid. The relation is locked before it is opened
        // without a lock; null if there is none.
        let relation = unsafe {
            if !pg_sys::ConditionalLockRelationOid(oid, share) {
                return Err(Obstacle::Locked);
            }
            let relation = pg_sys::try_relation_open(oid, pg_sys::NoLock.cast_signed());
            if relation.is_null() {
                pg_sys::UnlockRelationOid(oid, share);
            }
            relation
        };
        // SAFETY: opened and locked above.
        let table = unsafe { Self::opened(relation, shape, pg_sys::AccessShareLock, false) }?;
        let Some(mut table) = table else {
            return Ok(None);
        };
        // SAFETY: takes any oid. REINDEX locks the index alone, and a scan would wait for it.
        if unsafe { !pg_sys::ConditionalLockRelationOid(table.key_index, share) } {
            return Err(Obstacle::Locked);
        }
        table.index_lock = share;
        Ok(Some(table))
    }

    /// # Safety
    /// The relation is null, or was opened and locked for this.
    unsafe fn opened(
        relation: pg_sys::Relation,
        shape: &'static Shape,
        lock: u32,
        waits: bool,
    ) -> Result<Option<Self>, Obstacle> {
        if relation.is_null() {
            return Ok(None);
        }
        let mut table = Self {
            relation,
            key_index: pg_sys::InvalidOid,
            lock: lock.cast_signed(),
            index_lock: pg_sys::NoLock.cast_signed(),
        };
        // SAFETY: open and locked, as the caller says.
        unsafe {
            check_once(relation, shape, waits)?;
            table.key_index = primary_key(relation);
        }
        Ok(Some(table))
    }
}
