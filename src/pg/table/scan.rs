//! Reading rows of a table.

use core::ffi::c_int;

use pgrx::pg_sys;

use super::open::Table;
use super::place::Place;
use super::row::Row;
use super::value::Value;

impl Table {
    /// A copy of a row, in the current memory context.
    ///
    /// # Safety
    /// `tuple` is a tuple of this table.
    pub(super) unsafe fn row(&self, tuple: pg_sys::HeapTuple) -> Row {
        // SAFETY: guaranteed by the caller; the relation is open.
        unsafe { Row::new(pg_sys::heap_copytuple(tuple), (*self.relation).rd_att) }
    }

    /// The row with this key as committed now, or as modified by this transaction, without regard
    /// to row locks.
    pub fn get(&self, key: &Value<'_>) -> Option<Row> {
        self.with_latest_snapshot(|snapshot| {
            let mut found = None;
            self.scan(Some(key), snapshot, |tuple| {
                // SAFETY: a tuple of the scan of this table, copied before the next one.
                found = Some(unsafe { self.row(tuple) });
                false
            });
            found
        })
    }

    /// As [`Table::get`], from a place near the row, if there is one: an index scan visits all versions
    /// that an old snapshot keeps.
    pub fn get_near(&self, place: Option<Place>, key: &Value<'_>) -> Option<Row> {
        let near = place.and_then(|place| {
            self.with_latest_snapshot(|snapshot| {
                // SAFETY: in a transaction, with the snapshot of the fetch; the relation is open and
                // locked. The row is copied before its slot is dropped.
                unsafe {
                    let slot = pg_sys::table_slot_create(self.relation, core::ptr::null_mut());
                    let row = self.fetch_from(place, key, snapshot, slot).map(|_| {
                        let mut free = false;
                        self.row(pg_sys::ExecFetchSlotHeapTuple(slot, true, &raw mut free))
                    });
                    pg_sys::ExecDropSingleTupleTableSlot(slot);
                    row
                }
            })
        });
        near.or_else(|| self.get(key))
    }

    /// All rows, in no particular order.
    pub fn rows(&self) -> Vec<Row> {
        self.with_latest_snapshot(|snapshot| {
            let mut found = Vec::new();
            self.scan(None, snapshot, |tuple| {
                // SAFETY: a tuple of the scan of this table, copied before the next one.
                found.push(unsafe { self.row(tuple) });
                true
            });
            found
        })
    }

    /// Runs `body` with a new snapshot, registered and active, both of which detoasting requires.
    /// It is a catalog snapshot, the only kind allowed in a parallel query; for a table that is not
    /// a catalog it is always a new one.
    pub(super) fn with_latest_snapshot<T>(&self, body: impl FnOnce(pg_sys::Snapshot) -> T) -> T {
        // SAFETY: in a transaction; the relation is open. Register and push are undone in reverse
        // order; an error ends the transaction, and the snapshot with it.
        unsafe {
            let relation = (*self.relation).rd_id;
            let snapshot = pg_sys::RegisterSnapshot(pg_sys::GetCatalogSnapshot(relation));
            pg_sys::PushActiveSnapshot(snapshot);
            let result = body(snapshot);
            pg_sys::PopActiveSnapshot();
            pg_sys::UnregisterSnapshot(snapshot);
            result
        }
    }

    /// Runs `see` on each row with this key, or on all, until it returns false.
    pub(super) fn scan(
        &self,
        key: Option<&Value<'_>>,
        snapshot: pg_sys::Snapshot,
        mut see: impl FnMut(pg_sys::HeapTuple) -> bool,
    ) {
        let mut scan_key = pg_sys::ScanKeyData::default();
        // SAFETY: in a transaction; the relation is open, and its key is the first column alone,
        // compared by a function of its type. The scan ends here, or with the transaction on error.
        // A tuple is valid until the next one is fetched.
        unsafe {
            if let Some(key) = key {
                let (procedure, collation) = key.equality();
                pg_sys::ScanKeyEntryInitialize(
                    &raw mut scan_key,
                    0,
                    1,
                    u16::try_from(pg_sys::BTEqualStrategyNumber).unwrap_or(3),
                    pg_sys::InvalidOid,
                    collation,
                    pg_sys::Oid::from(procedure),
                    key.datum().unwrap_or(pg_sys::Datum::null()),
                );
            }
            let scan = pg_sys::systable_beginscan(
                self.relation,
                self.key_index,
                key.is_some(),
                snapshot,
                c_int::from(key.is_some()),
                &raw mut scan_key,
            );
            loop {
                let tuple = pg_sys::systable_getnext(scan);
                if tuple.is_null() || !see(tuple) {
                    break;
                }
            }
            pg_sys::systable_endscan(scan);
        }
    }
}
