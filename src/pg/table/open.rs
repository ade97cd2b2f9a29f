//! Opening and locking the extension's tables.

use pgrx::pg_sys;

use super::check::{Obstacle, check_once};
use super::shape::{Misshapen, Shape};
use crate::pg::catalog::primary_key;

/// Access mode of a table.
#[derive(Clone, Copy)]
pub enum Access {
    /// Read rows.
    Read,
    /// Lock or write rows.
    Write,
}

/// An open table of the extension. Its lock is held until the end of the transaction; for
/// [`Access::Read`], until drop.
pub struct Table {
    pub(super) relation: pg_sys::Relation,
    pub(super) key_index: pg_sys::Oid,
    pub(super) shape: &'static Shape,
    /// Table lock to release on drop.
    lock: pg_sys::LOCKMODE,
    /// Lock on the primary key's index to release on drop.
    index_lock: pg_sys::LOCKMODE,
}

impl Drop for Table {
    fn drop(&mut self) {
        // During an error, the end of the transaction closes the relation.
        if std::thread::panicking() {
            return;
        }
        // SAFETY: opened and locked once, and not released before.
        unsafe {
            if self.index_lock != pg_sys::NoLock.cast_signed() {
                pg_sys::UnlockRelationOid(self.key_index, self.index_lock);
            }
            pg_sys::relation_close(self.relation, self.lock);
        }
    }
}

impl Table {
    /// Opens a table by its oid, waiting for its lock within `lock_timeout`. `None` if it was
    /// dropped.
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
        // SAFETY: in a transaction; accepts any oid, and returns null if the relation does not
        // exist.
        let relation =
            unsafe { pg_sys::try_relation_open(pg_sys::Oid::from(oid), lock.cast_signed()) };
        // SAFETY: opened and locked above.
        match unsafe { Self::opened(relation, shape, released, true) } {
            Ok(table) => Ok(table),
            Err(Obstacle::Misshapen(misshapen)) => Err(misshapen),
            Err(Obstacle::Locked) => Ok(None),
        }
    }

    /// Opens a table for reading, without waiting for a lock.
    ///
    /// # Errors
    /// [`Obstacle`].
    pub fn open_at_once(oid: u32, shape: &'static Shape) -> Result<Option<Self>, Obstacle> {
        let oid = pg_sys::Oid::from(oid);
        let share = pg_sys::AccessShareLock.cast_signed();
        // SAFETY: in a transaction; accepts any oid. The relation is locked before it is opened
        // with NoLock; the result is null if it does not exist.
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
        // SAFETY: accepts any oid. REINDEX locks only the index, and a scan would wait for it.
        if unsafe { !pg_sys::ConditionalLockRelationOid(table.key_index, share) } {
            return Err(Obstacle::Locked);
        }
        table.index_lock = share;
        Ok(Some(table))
    }

    /// # Safety
    /// `relation` is null, or was opened and locked for this.
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
            shape,
            lock: lock.cast_signed(),
            index_lock: pg_sys::NoLock.cast_signed(),
        };
        // SAFETY: open and locked, guaranteed by the caller.
        unsafe {
            check_once(relation, shape, waits)?;
            table.key_index = primary_key(relation);
        }
        Ok(Some(table))
    }
}
