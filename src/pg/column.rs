//! The largest value of an integer column of any table, without SQL, so that a superuser can call
//! it safely on tables owned by hostile roles.
//!
//! No name is looked up, and no code of the table's owner runs: no view, policy, operator, index
//! function, domain or foreign-data wrapper is involved. Index properties are read from the catalog
//! row, and integers are compared here. Inheritance children are not included. No lock is waited
//! for, so an ACCESS EXCLUSIVE lock does not block the caller.

use core::ffi::c_int;

use pgrx::pg_sys;

use super::catalog::attribute;
use super::expression::cells;
use super::holder::is_locked_by_me;
use super::process::check_for_interrupts;
use super::roles::user_may_read;

const SHARE: pg_sys::LOCKMODE = pg_sys::AccessShareLock.cast_signed();
const NO_LOCK: pg_sys::LOCKMODE = pg_sys::NoLock.cast_signed();

/// Reason why a column was not read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unread {
    /// The table or the column does not exist.
    Gone,
    /// Not an ordinary table but, for example, a view or a foreign table.
    NotATable,
    /// A temporary table of another session.
    OtherSession,
    /// Another session holds an ACCESS EXCLUSIVE lock.
    Locked,
    /// Not an integer column.
    NotAnInteger,
    /// The caller lacks the SELECT privilege, or USAGE on the schema.
    Forbidden,
    /// Row-level security may hide rows from the caller.
    RowSecurity,
    /// A table of Citus: its rows are in others, on other servers.
    Distributed,
}

/// An open relation, locked without waiting, with the lock mode to release on drop.
struct Opened(pg_sys::Relation, pg_sys::LOCKMODE);

impl Opened {
    /// Opens a relation without waiting. `Ok(None)` if it does not exist.
    fn at_once(oid: pg_sys::Oid) -> Result<Option<Self>, Unread> {
        // A session that already holds the lock could not acquire another one behind sessions that
        // wait for it, since PostgreSQL checks waiters first.
        let lock = if is_locked_by_me(oid.to_u32()) {
            NO_LOCK
        } else {
            SHARE
        };
        // SAFETY: in a transaction; accepts any oid. The relation is locked before it is opened
        // with NoLock; the result is null if it does not exist.
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
        // During an error, the end of the transaction closes the relation.
        if !std::thread::panicking() {
            // SAFETY: opened and locked once, by `at_once`.
            unsafe { pg_sys::relation_close(self.0, self.1) };
        }
    }
}

/// Integer types, also as the base type of a domain.
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

/// The largest value of a column (by its number from 1), including uncommitted rows of other
/// transactions: they may commit, and if they roll back, only their ids are skipped. `None` if the
/// column has no non-null value.
///
/// # Errors
/// See [`Unread`].
pub fn largest_value(relation: u32, number: i16) -> Result<Option<i64>, Unread> {
    let table = Opened::at_once(pg_sys::Oid::from(relation))?.ok_or(Unread::Gone)?;
    // SAFETY: open and locked. The parts of a relation live as long as it is open, and a column is
    // accessed only if the number is valid.
    let integer = unsafe {
        let class = &*(*table.0).rd_rel;
        // char is signed on some platforms, and unsigned on arm64.
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
        // Like a query, but without raising an error.
        if pg_sys::check_enable_rls((*table.0).rd_id, pg_sys::InvalidOid, true)
            == pg_sys::CheckEnableRlsResult::RLS_ENABLED.cast_signed()
        {
            return Err(Unread::RowSecurity);
        }
        if is_distributed((*table.0).rd_id)? {
            return Err(Unread::Distributed);
        }
        Integer::of(column.atttypid).ok_or(Unread::NotAnInteger)?
    };
    let mut any_end = pg_sys::SnapshotData {
        snapshot_type: pg_sys::SnapshotType::SNAPSHOT_DIRTY,
        ..Default::default()
    };
    // SAFETY: open and locked, and the column exists and is not dropped. A dirty snapshot is not
    // registered; it outlives the scans.
    unsafe {
        // Other table access methods may not support dirty snapshots.
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

/// True if Citus has made a table its own, which has no rows, or those of before. Its catalog says so, of which only
/// a superuser can make another one in that schema.
///
/// # Errors
/// That is locked.
///
/// # Safety
/// In a transaction.
unsafe fn is_distributed(table: pg_sys::Oid) -> Result<bool, Unread> {
    // SAFETY: guaranteed by the caller. The catalog is open and locked while it is scanned, by its first column, which
    // is a regclass.
    unsafe {
        let name = c"pg_dist_partition".as_ptr();
        let catalog = pg_sys::get_relname_relid(name, pg_sys::PG_CATALOG_NAMESPACE.into());
        if catalog == pg_sys::InvalidOid {
            return Ok(false);
        }
        let Some(catalog) = Opened::at_once(catalog)? else {
            return Ok(false);
        };
        let descriptor = (*catalog.0).rd_att;
        if (*descriptor).natts < 1 || (*attribute(descriptor, 0)).atttypid != pg_sys::REGCLASSOID {
            return Ok(false);
        }
        let mut key = pg_sys::ScanKeyData::default();
        pg_sys::ScanKeyInit(
            &raw mut key,
            1,
            pg_sys::BTEqualStrategyNumber as pg_sys::StrategyNumber,
            pg_sys::RegProcedure::from(pg_sys::F_OIDEQ),
            pg_sys::Datum::from(table),
        );
        let no_index = pg_sys::InvalidOid;
        let scan = pg_sys::systable_beginscan(
            catalog.0,
            no_index,
            false,
            core::ptr::null_mut(),
            1,
            &raw mut key,
        );
        let is_found = !pg_sys::systable_getnext(scan).is_null();
        pg_sys::systable_endscan(scan);
        Ok(is_found)
    }
}

/// A full B-tree index with this column first, if one can be locked without waiting.
///
/// # Safety
/// The table is open and locked.
unsafe fn first_index(table: pg_sys::Relation, number: i16) -> Option<Opened> {
    // SAFETY: guaranteed by the caller. The lock on
    // the table keeps its indexes from being dropped, except concurrently.
    unsafe {
        for index in cells(pg_sys::RelationGetIndexList(table)) {
            if let Ok(Some(index)) = Opened::at_once(index.oid_value)
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
    // SAFETY: guaranteed by the caller; an index has a first column, and a B-tree its operator
    // family. The predicate is only tested for NULL in the catalog row: reading it would let
    // PostgreSQL fold it, and so run functions in it.
    unsafe {
        let form = &*(*index).rd_index;
        let predicate = pg_sys::Anum_pg_index_indpred.cast_signed();
        form.indisvalid
            && form.indisready
            && form.indislive
            // Old snapshots may miss rows in such an index. Ours is not old, but PostgreSQL does
            // not use it either.
            && !form.indcheckxmin
            && (*(*index).rd_rel).relam == pg_sys::BTREE_AM_OID
            && *(*index).rd_opfamily == pg_sys::INTEGER_BTREE_FAM_OID
            && form.indkey.values.as_slice(1).first() == Some(&number)
            && pg_sys::heap_attisnull((*index).rd_indextuple, predicate, core::ptr::null_mut())
    }
}

/// The largest value, from an index.
///
/// # Safety
/// The table and an index of it that [`is_ordered_by`] the column are open and locked; the slot is
/// for the table's rows.
unsafe fn last_of(
    table: pg_sys::Relation,
    index: &Opened,
    snapshot: pg_sys::Snapshot,
    slot: *mut pg_sys::TupleTableSlot,
    number: i16,
) -> Option<pg_sys::Datum> {
    let mut is_not_null = pg_sys::ScanKeyData::default();
    // SAFETY: guaranteed by the caller. The key is the index's first column. The datum is by value.
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
#[cfg(not(since_18))]
unsafe fn begin_index_scan(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
) -> pg_sys::IndexScanDesc {
    // SAFETY: guaranteed by the caller.
    unsafe { pg_sys::index_beginscan(table, index, snapshot, 1, 0) }
}

/// # Safety
/// The table and its index are open and locked.
#[cfg(since_18)]
unsafe fn begin_index_scan(
    table: pg_sys::Relation,
    index: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
) -> pg_sys::IndexScanDesc {
    let uncounted = core::ptr::null_mut();
    // SAFETY: guaranteed by the caller; no instrumentation, and no flags.
    unsafe {
        #[cfg(not(since_19))]
        let scan = pg_sys::index_beginscan(table, index, snapshot, uncounted, 1, 0);
        #[cfg(since_19)]
        let scan = pg_sys::index_beginscan(table, index, snapshot, uncounted, 1, 0, 0);
        scan
    }
}

/// The largest value, from a sequential scan.
///
/// # Safety
/// The table is open and locked and has the column; the slot is for its rows.
unsafe fn scan(
    table: pg_sys::Relation,
    snapshot: pg_sys::Snapshot,
    slot: *mut pg_sys::TupleTableSlot,
    number: i16,
    integer: Integer,
) -> Option<pg_sys::Datum> {
    // SAFETY: guaranteed by the caller; a value is read before the next row, and is by value.
    unsafe {
        #[cfg(not(since_19))]
        let scan = pg_sys::table_beginscan(table, snapshot, 0, core::ptr::null_mut());
        #[cfg(since_19)]
        let scan = pg_sys::table_beginscan(table, snapshot, 0, core::ptr::null_mut(), 0);
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
    // SAFETY: guaranteed by the caller.
    let datum = unsafe { pg_sys::slot_getattr(slot, c_int::from(number), &raw mut null) };
    (!null).then_some(datum)
}
