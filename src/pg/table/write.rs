//! Locking and writing rows of a table.

use core::ffi::CStr;

use pgrx::{PgLogLevel, PgSqlErrorCode, pg_sys};

use super::check::index_problem;
use super::open::Table;
use super::row::Row;
use super::value::Value;
use crate::pg::catalog::attribute;
use crate::pg::expression::cells;
use crate::pg::process::check_for_interrupts;

enum Locked {
    Row(Row),
    None,
    Gone,
    Busy,
}

/// Result of [`Table::lock_at_once`].
pub enum LockedAtOnce {
    /// The row, now locked.
    Row(Row),
    /// There is no row with this key.
    None,
    /// The row is locked by another transaction.
    Busy,
}

impl Table {
    /// Locks the latest version of the row with this key, like `SELECT ... FOR NO KEY UPDATE`.
    /// Waits for concurrent writers and lockers within `lock_timeout`. `None` if there is no such
    /// row.
    pub fn lock(&self, key: &Value<'_>) -> Option<Row> {
        loop {
            match self.try_lock(key, pg_sys::LockWaitPolicy::LockWaitBlock) {
                Locked::Row(row) => return Some(row),
                Locked::None => return None,
                // Deleted or renamed during the wait; there may be a new row.
                Locked::Gone | Locked::Busy => check_for_interrupts(),
            }
        }
    }

    /// As [`Table::lock`], but without waiting.
    pub fn lock_at_once(&self, key: &Value<'_>) -> LockedAtOnce {
        loop {
            match self.try_lock(key, pg_sys::LockWaitPolicy::LockWaitSkip) {
                Locked::Row(row) => return LockedAtOnce::Row(row),
                Locked::None => return LockedAtOnce::None,
                Locked::Busy => return LockedAtOnce::Busy,
                Locked::Gone => check_for_interrupts(),
            }
        }
    }

    fn try_lock(&self, key: &Value<'_>, wait: pg_sys::LockWaitPolicy::Type) -> Locked {
        self.with_latest_snapshot(|snapshot| {
            let mut failure = pg_sys::TM_FailureData::default();
            // SAFETY: in a transaction, with the snapshot of the scan; the relation is open and
            // locked, and `place` was found in it, and is pinned if it was remembered. The contents
            // of the slots are copied before they are dropped.
            unsafe {
                let slot = pg_sys::table_slot_create(self.relation, core::ptr::null_mut());
                let pinned = pg_sys::table_slot_create(self.relation, core::ptr::null_mut());
                let place = self.fetch_remembered(key, snapshot, pinned);
                let Some(mut place) = place.or_else(|| self.place(key, snapshot)) else {
                    pg_sys::ExecDropSingleTupleTableSlot(pinned);
                    pg_sys::ExecDropSingleTupleTableSlot(slot);
                    return Locked::None;
                };
                let result = pg_sys::table_tuple_lock(
                    self.relation,
                    &raw mut place,
                    snapshot,
                    slot,
                    pg_sys::GetCurrentCommandId(false),
                    pg_sys::LockTupleMode::LockTupleNoKeyExclusive,
                    wait,
                    u8::try_from(pg_sys::TUPLE_LOCK_FLAG_FIND_LAST_VERSION).unwrap_or(0),
                    &raw mut failure,
                );
                let locked = match result {
                    pg_sys::TM_Result::TM_Ok => {
                        let mut free = false;
                        let tuple = pg_sys::ExecFetchSlotHeapTuple(slot, true, &raw mut free);
                        let row = self.row(tuple);
                        // The latest version may have another key.
                        if row.has(key) {
                            self.remember(key, (*row.tuple).t_self);
                            Locked::Row(row)
                        } else {
                            Locked::Gone
                        }
                    }
                    pg_sys::TM_Result::TM_WouldBlock => Locked::Busy,
                    pg_sys::TM_Result::TM_Deleted | pg_sys::TM_Result::TM_Updated => Locked::Gone,
                    _ => {
                        pg_sys::panic::ErrorReport::new(
                            PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                            "cannot lock a row that the same statement has changed",
                            "leaf_id",
                        )
                        .report(PgLogLevel::ERROR);
                        unreachable!("an ERROR does not return")
                    }
                };
                pg_sys::ExecDropSingleTupleTableSlot(pinned);
                pg_sys::ExecDropSingleTupleTableSlot(slot);
                locked
            }
        })
    }

    /// TID of the row with this key, from the index.
    fn place(
        &self,
        key: &Value<'_>,
        snapshot: pg_sys::Snapshot,
    ) -> Option<pg_sys::ItemPointerData> {
        let mut place = None;
        self.scan(Some(key), snapshot, |tuple| {
            // SAFETY: a tuple of the scan, read before the next one.
            place = Some(unsafe { (*tuple).t_self });
            false
        });
        place
    }

    /// Updates columns (numbered from 1) of a row returned by [`Table::lock`] or written by this
    /// transaction. The key must not change.
    pub fn update(&self, row: &Row, changes: &[(usize, Value<'_>)]) {
        // Needs a snapshot, which commit callbacks lack, in case a value is toasted.
        self.with_latest_snapshot(|_| {
            // SAFETY: in a transaction; the relation is open and locked. The tuple was read from
            // this table, the columns have the types in its shape, and it is locked or this
            // transaction's own.
            unsafe {
                // Otherwise a subscriber could never apply the update.
                pg_sys::CheckCmdReplicaIdentity(self.relation, pg_sys::CmdType::CMD_UPDATE);
                let new = row.with(changes);
                #[cfg(not(since_16))]
                let summarizing_only = {
                    pg_sys::simple_heap_update(self.relation, &raw mut (*row.tuple).t_self, new);
                    false
                };
                #[cfg(since_16)]
                let summarizing_only = {
                    let mut to_update = pg_sys::TU_UpdateIndexes::TU_All;
                    pg_sys::simple_heap_update(
                        self.relation,
                        &raw mut (*row.tuple).t_self,
                        new,
                        &raw mut to_update,
                    );
                    to_update == pg_sys::TU_UpdateIndexes::TU_Summarizing
                };
                self.enter(new, false, summarizing_only);
            }
        });
    }

    /// Enters a row in the indexes, as `CatalogIndexInsert`, with two differences.
    ///
    /// Each index is checked once more. One that was created concurrently since the table was checked could have an
    /// expression, which `CatalogOpenIndexes` would read, and so fold, and so run.
    ///
    /// Of a new version, the primary key is not checked: it has not changed, and the check visits every dead version
    /// that an old snapshot keeps. Another row with this key cannot exist: an INSERT of one finds the previous version,
    /// and waits for this transaction.
    ///
    /// # Safety
    /// `tuple` was written by this command.
    unsafe fn enter(&self, tuple: pg_sys::HeapTuple, is_new: bool, summarizing_only: bool) {
        // SAFETY: guaranteed by the caller. The list is copied before an index is opened, which may replace it. The
        // arrays have room for the columns of an index; ordinary ones need no executor state.
        unsafe {
            let heap_only =
                u32::from((*(*tuple).t_data).t_infomask2) & pg_sys::HEAP_ONLY_TUPLE != 0;
            if heap_only && !summarizing_only {
                return;
            }
            let slot = pg_sys::MakeSingleTupleTableSlot(
                (*self.relation).rd_att,
                &raw const pg_sys::TTSOpsHeapTuple,
            );
            pg_sys::ExecStoreHeapTuple(tuple, slot, false);
            let list = cells(pg_sys::RelationGetIndexList(self.relation));
            let indexes: Vec<_> = list.iter().map(|cell| cell.oid_value).collect();
            for oid in indexes {
                let lock = pg_sys::RowExclusiveLock.cast_signed();
                let index = pg_sys::index_open(oid, lock);
                let is_key = oid == self.key_index;
                if let Some(problem) = index_problem(index, self.shape, is_key) {
                    let name = CStr::from_ptr((*(*index).rd_rel).relname.data.as_ptr());
                    self.refuse(format!("Index \"{}\" {problem}.", name.to_string_lossy()));
                }
                let info = pg_sys::BuildIndexInfo(index);
                #[cfg(since_16)]
                let is_left_out = summarizing_only && !(*info).ii_Summarizing;
                #[cfg(not(since_16))]
                let is_left_out = false;
                if (*info).ii_ReadyForInserts && !is_left_out {
                    self.enter_in(index, info, tuple, slot, is_key && !is_new);
                }
                pg_sys::index_close(index, lock);
            }
            pg_sys::ExecDropSingleTupleTableSlot(slot);
        }
    }

    /// # Safety
    /// As [`Table::enter`]; the index is open and has no expressions, and the slot has the tuple.
    unsafe fn enter_in(
        &self,
        index: pg_sys::Relation,
        info: *mut pg_sys::IndexInfo,
        tuple: pg_sys::HeapTuple,
        slot: *mut pg_sys::TupleTableSlot,
        is_unchanged: bool,
    ) {
        let mut values = [pg_sys::Datum::null(); pg_sys::INDEX_MAX_KEYS as usize];
        let mut nulls = [false; pg_sys::INDEX_MAX_KEYS as usize];
        // SAFETY: guaranteed by the caller.
        unsafe {
            pg_sys::FormIndexDatum(
                info,
                slot,
                core::ptr::null_mut(),
                values.as_mut_ptr(),
                nulls.as_mut_ptr(),
            );
            let check = if (*(*index).rd_index).indisunique && !is_unchanged {
                pg_sys::IndexUniqueCheck::UNIQUE_CHECK_YES
            } else {
                pg_sys::IndexUniqueCheck::UNIQUE_CHECK_NO
            };
            pg_sys::index_insert(
                index,
                values.as_mut_ptr(),
                nulls.as_mut_ptr(),
                &raw mut (*tuple).t_self,
                self.relation,
                check,
                is_unchanged,
                info,
            );
            #[cfg(since_17)]
            pg_sys::index_insert_cleanup(index, info);
        }
    }

    fn refuse(&self, detail: String) -> ! {
        pg_sys::panic::ErrorReport::new(
            PgSqlErrorCode::ERRCODE_DATATYPE_MISMATCH,
            format!(
                "table \"leaf_id.{}\" does not have the definition that extension \"leaf_id\" created",
                self.shape.name.to_string_lossy()
            ),
            "leaf_id",
        )
        .set_detail(detail)
        .report(PgLogLevel::ERROR);
        unreachable!("an ERROR does not return")
    }

    /// Deletes a row returned by [`Table::lock`].
    pub fn delete(&self, row: &Row) {
        // SAFETY: in a transaction; the relation is open and locked. The tuple was read from this
        // table, and is locked.
        unsafe {
            pg_sys::CheckCmdReplicaIdentity(self.relation, pg_sys::CmdType::CMD_DELETE);
            pg_sys::CatalogTupleDelete(self.relation, &raw mut (*row.tuple).t_self);
        }
    }

    /// Inserts a row. Columns not given are NULL.
    pub fn insert(&self, columns: &[(usize, Value<'_>)]) {
        // SAFETY: in a transaction; the relation is open and locked. There is a value and a null
        // flag for each of its columns, of the types in its shape.
        unsafe {
            let descriptor = (*self.relation).rd_att;
            let count = usize::try_from((*descriptor).natts).unwrap_or(0);
            let mut values = vec![pg_sys::Datum::null(); count];
            let mut nulls = vec![true; count];
            for (number, value) in columns {
                let position = number.wrapping_sub(1);
                if let (Some(datum), Some(to), Some(null)) = (
                    value.datum(),
                    values.get_mut(position),
                    nulls.get_mut(position),
                ) {
                    *to = datum;
                    *null = false;
                }
            }
            for (number, is_null) in (0..).zip(&nulls) {
                let column = &*attribute(descriptor, number);
                if *is_null && column.attnotnull && !column.attisdropped {
                    let name = CStr::from_ptr(column.attname.data.as_ptr()).to_string_lossy();
                    self.refuse(format!("Column \"{name}\" is NOT NULL."));
                }
            }
            let tuple =
                pg_sys::heap_form_tuple(descriptor, values.as_mut_ptr(), nulls.as_mut_ptr());
            self.with_latest_snapshot(|_| {
                pg_sys::simple_heap_insert(self.relation, tuple);
                self.enter(tuple, true, false);
            });
        }
    }
}

/// Locks a table in SHARE ROW EXCLUSIVE mode until the end of the transaction, against writers.
pub fn lock_against_writers(relation: u32) {
    let lock = pg_sys::ShareRowExclusiveLock.cast_signed();
    // SAFETY: in a transaction, whose end releases the lock; accepts any oid.
    unsafe { pg_sys::LockRelationOid(pg_sys::Oid::from(relation), lock) };
}
