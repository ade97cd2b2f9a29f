//! The largest value in an integer column of anybody's table, without SQL: a superuser may ask
//! for it where hostile roles own tables.
//!
//! No name is looked up, and no code of the table's owner runs: no view, policy, operator,
//! function of an index, domain or foreign-data wrapper takes part. What an index is on is read
//! from its catalog row; PostgreSQL's integers are compared here. Tables that inherit from this
//! one are not looked at. No lock is waited for, so nobody's ACCESS EXCLUSIVE lock holds up the
//! caller.

use core::ffi::c_int;

use pgrx::pg_sys;

use super::catalog::attribute;
use super::holder::is_locked_by_me;
use super::process::check_for_interrupts;
use super::roles::user_may_read;

const SHARE: pg_sys::LOCKMODE = pg_sys::AccessShareLock.cast_signed();
const NO_LOCK: pg_sys::LOCKMODE = pg_sys::NoLock.cast_signed();

/// Why a column was not read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    /// There is no such table, or no such column in it.
    Gone,
    /// It is no ordinary table: a view, a foreign table.
    NotATable,
    /// A temporary table of another session.
    OtherSession,
    /// Somebody else holds an ACCESS EXCLUSIVE lock.
    Locked,
    /// Its values are no integers.
    NotAnInteger,
    /// The caller may not read it.
    Forbidden,
    /// Row-level security may hide rows from the caller.
    RowSecurity,
}

/// A relation that was locked without a wait, until it is dropped, and with what it was.
struct Opened(pg_sys::Relation, pg_sys::LOCKMODE);

impl Opened {
    /// `Ok(None)` if it is gone.
    fn at_once(oid: pg_sys::Oid) -> Result<Option<Self>, Unread> {
        // What waits for the lock that this session holds would be in the way of another one of
        // it, as PostgreSQL looks at those who wait first.
        let lock = if is_locked_by_me(oid.to_u32()) {
            NO_LOCK
        } else {
            SHARE
        };
        // SAFETY: in a transaction; takes any oid. It is locked before it is opened without a lock;
        // null if there is none.
        unsafe {
            if lock != NO_LOCK && !pg_sys::ConditionalLockRelationOid(oid, lock) {
                return Err(Unread::Locked);
            }
            let relation = pg_sys::try_relation_open(oid, NO_LOCK);
            if relation.is_null() {
                if lock != NO_LOCK {
                    pg_sys::UnlockRelationOid(oid, lock);
                }
                return Ok(None);
            }
            Ok(Some(Self(relation, lock)))
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // An error may have been raised in the middle of anything: the end of the transaction
        // closes what is open.
        if !std::thread::panicking() {
            // SAFETY: opened once, and locked with that, by `at_once`.
            unsafe { pg_sys::relation_close(self.0, self.1) };
        }
    }
}

/// The types of integers, also under a domain.
#[derive(Clone, Copy)]
enum Integer {
    Small,
    Plain,
    Big,
}

impl Integer {
    fn of(kind: pg_sys::Oid) -> Option<Self> {
        // SAFETY: in a transaction; the type of a column of an open table.
        match unsafe { pg_sys::getBaseType(kind) } {
            pg_sys::INT2OID => Some(Self::Small),
            pg_sys::INT4OID => Some(Self::Plain),
            pg_sys::INT8OID => Some(Self::Big),
            _ => None,
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "a shorter integer is the low part of the datum"
    )]
    fn value(self, datum: pg_sys::Datum) -> i64 {
        let value = datum.value() as i64;
        match self {
            Self::Small => i64::from(value as i16),
            Self::Plain => i64::from(value as i32),
            Self::Big => value,
        }
    }
}

/// The largest value of a column, by its number from 1, with the rows of transactions that have
/// not ended: they may commit, and a rollback costs their ids only. `None` if there is no value.
///
/// # Errors
/// See [`Unread`].
pub fn largest_value(relation: u32, number: i16) -> Result<Option<i64>, Unread> {
    let table = Opened::at_once(pg_sys::Oid::from(relation))?.ok_or(Unread::Gone)?;
    // SAFETY: open and locked; the parts of a relation live as long as it is open, and a column
    // is looked at only if there is one of this number.
    let integer = unsafe {
        let class = &*(*table.0).rd_rel;
        // C's char has a sign on some processors, and none on arm64.
        if class.relkind as u8 != pg_sys::RELKIND_RELATION {
            return Err(Unread::NotATable);
        }
        if class.relpersistence as u8 == pg_sys::RELPERSISTENCE_TEMP && !(*table.0).rd_islocaltemp {
            return Err(Unread::OtherSession);
        }
        let descriptor = (*table.0).rd_att;
        if number < 1 || c_int::from(number) > (*descriptor).natts {
            return Err(Unread::Gone);
        }
        let column = &*attribute(descriptor, c_int::from(number) - 1);
        if column.attisdropped {
            return Err(Unread::Gone);
        }
        if !user_may_read((*table.0).rd_id, number) {
            return Err(Unread::Forbidden);
        }
        // As a query would find it, but without an error.
        if pg_sys::check_enable_rls((*table.0).rd_id, pg_sys::InvalidOid, true)
            == pg_sys::CheckEnableRlsResult::RLS_ENABLED.cast_signed()
        {
            return Err(Unread::RowSecurity);
        }
        Integer::of(column.atttypid).ok_or(Unread::NotAnInteger)?
    };
    let mut any_end = pg_sys::SnapshotData {
        snapshot_type: pg_sys::SnapshotType::SNAPSHOT_DIRTY,
        ..Default::default()
    };
    // SAFETY: open and locked, and it has this column, which is not dropped. A dirty snapshot is
    // not registered, and lives as long as the scans.
    unsafe {
        // Other access methods need not know the dirty snapshot.
        let is_heap = (*(*table.0).rd_rel).relam == pg_sys::HEAP_TABLE_AM_OID;
        let latest = pg_sys::RegisterSnapshot(pg_sys::GetLatestSnapshot());
        let snapshot = if is_heap { &raw mut any_end } else { latest };
        let slot = pg_sys::table_slot_create(table.0, core::ptr::null_mut());
        let found = match first_index(table.0, number) {
            Some(index) => last_of(table.0, &index, snapshot, slot, number),
            None => scan(table.0, snapshot, slot, number, integer),
        };
        let found = found.map(|datum| integer.value(datum));
        pg_sys::ExecDropSingleTupleTableSlot(slot);
        pg_sys::UnregisterSnapshot(latest);
        Ok(found)
    }
}

/// A B-tree over all rows whose first column is this one, if there is one that takes no wait.
///
/// # Safety
/// The table is open and locked.
unsafe fn first_index(table: pg_sys::Relation, number: i16) -> Option<Opened> {
    // SAFETY: as the caller says; the list has as many elements as it says, and is read while the
    // lock of the table keeps others from dropping an index but concurrently.
    unsafe {
        let list = pg_sys::RelationGetIndexList(table);
        let count = list.as_ref().map_or(0, |list| list.length);
        for position in 0..usize::try_from(count).unwrap_or(0) {
            let oid = (*(*list).elements.add(position)).oid_value;
            if let Ok(Some(index)) = Opened::at_once(oid)
                && is_ordered_by(index.0, number)
            {
                return Some(index);
            }
        }
        None
    }
}

/// # Safety
/// The index is open.
unsafe fn is_ordered_by(index: pg_sys::Relation, number: i16) -> bool {
    // SAFETY: as the caller says; an index has a first column, and a B-tree its operator family.
    // The predicate's place in the catalog row is looked at and not the predicate, which
    // PostgreSQL would fold, and so run functions in it.
    unsafe {
        let form = &*(*index).rd_index;
        let predicate = pg_sys::Anum_pg_index_indpred.cast_signed();
        form.indisvalid
            && form.indisready
            && form.indislive
            // An old snapshot may not see all of its rows in it; ours is none, but PostgreSQL
            // does not use it either.
            && !form.indcheckxmin
            && (*(*index).rd_rel).relam == pg_sys::BTREE_AM_OID
            && *(*index).rd_opfamily == pg_sys::INTEGER_BTREE_FAM_OID
            && form.indkey.values.as_slice(1).first() == Some(&number)
            && pg_sys::heap_attisnull((*index).rd_indextuple, predicate, core::ptr::null_mut())
    }
}

/// The largest value, by an index.
///
/// # Safety
/// The table, and an index of it that [`is_ordered_by`] the column, are open and locked; the slot
/// is for its rows.
unsafe fn last_of(
    table: pg_sys::Relation,
    index: &Opened,
    snapshot: pg_sys::Snapshot,
    slot: *mut pg_sys::TupleTableSlot,
    number: i16,
) -> Option<pg_sys::Datum> {
    let mut is_not_null = pg_sys::ScanKeyData::default();
    // SAFETY: as the caller says. The key is the index's first column. The datum is by value.
    unsafe {
        let descending =
            u32::from((*(*index.0).rd_indoption).cast_unsigned()) & pg_sys::INDOPTION_DESC != 0;
        let direction = if descending {
            pg_sys::ScanDirection::ForwardScanDirection
        } else {
            pg_sys::ScanDirection::BackwardScanDirection
        };
        pg_sys::ScanKeyEntryInitialize(
            &raw mut is_not_null,
            (pg_sys::SK_ISNULL | pg_sys::SK_SEARCHNOTNULL).cast_signed(),
            1,
            0,
            pg_sys::InvalidOid,
            pg_sys::InvalidOid,
            pg_sys::InvalidOid,
            pg_sys::Datum::null(),
        );
        let scan = begin_index_scan(table, index.0, snapshot);
        pg_sys::index_rescan(scan, &raw mut is_not_null, 1, core::ptr::null_mut(), 0);
        let found = pg_sys::index_getnext_slot(scan, direction, slot)
            .then(|| value_in(slot, number))
            .flatten();
        pg_sys::index_endscan(scan);
        found
    }
}

/// # Safety
/// The table and its index are open and locked.
#[cfg(not(feature = "pg18"))]
unsafe fn begin_index_scan(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
) -> pg_sys::IndexScanDesc {
    // SAFETY: as the caller says.
    unsafe { pg_sys::index_beginscan(table, index, snapshot, 1, 0) }
}

/// # Safety
/// The table and its index are open and locked.
#[cfg(feature = "pg18")]
unsafe fn begin_index_scan(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
) -> pg_sys::IndexScanDesc {
    // SAFETY: as the caller says; what it costs is not counted.
    unsafe { pg_sys::index_beginscan(table, index, snapshot, core::ptr::null_mut(), 1, 0) }
}

/// The largest value, by a look at all rows.
///
/// # Safety
/// The table is open and locked, the slot is for its rows, and it has the column.
unsafe fn scan(
    table: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    slot: *mut pg_sys::TupleTableSlot,
    number: i16,
    integer: Integer,
) -> Option<pg_sys::Datum> {
    // SAFETY: as the caller says; a value is looked at before the next row, and is by value.
    unsafe {
        let scan = pg_sys::table_beginscan(table, snapshot, 0, core::ptr::null_mut());
        let mut largest: Option<pg_sys::Datum> = None;
        let forward = pg_sys::ScanDirection::ForwardScanDirection;
        while pg_sys::table_scan_getnextslot(scan, forward, slot) {
            check_for_interrupts();
            if let Some(found) = value_in(slot, number)
                && largest.is_none_or(|largest| integer.value(largest) < integer.value(found))
            {
                largest = Some(found);
            }
        }
        pg_sys::table_endscan(scan);
        largest
    }
}

/// # Safety
/// The slot holds a row of a table with this column.
unsafe fn value_in(slot: *mut pg_sys::TupleTableSlot, number: i16) -> Option<pg_sys::Datum> {
    let mut null = false;
    // SAFETY: as the caller says.
    let datum = unsafe { pg_sys::slot_getattr(slot, c_int::from(number), &raw mut null) };
    (!null).then_some(datum)
}
