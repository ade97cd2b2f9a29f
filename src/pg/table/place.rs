//! Remembered places of rows.
//!
//! Each claim adds a version of its row. While an old snapshot is held, none of them is removed, and
//! an index scan visits them all to find the last one. So a process remembers where it has last
//! locked a row, and follows the chain of versions from there: the ones that it and others have
//! added since. Others are given the [`Place`].
//!
//! A place is a hint. VACUUM, VACUUM FULL, a rename or a rollback may have put anything there since,
//! or nothing. So the version at the end of the chain must be visible in a new snapshot and have the
//! key; otherwise the index is scanned.

use std::collections::BTreeMap;

use pgrx::itemptr::{item_pointer_get_block_number_no_check, item_pointer_set_all};
use pgrx::pg_sys;

use super::open::Table;
use super::value::Value;
use crate::pg::backend_local::BackendLocal;

/// Bits of a place's number for the line pointer in its page, of which even the largest pages have fewer.
const LINE_BITS: u32 = 11;

/// Where a version of a row was.
#[derive(Clone, Copy)]
pub struct Place(pg_sys::ItemPointerData);

impl Place {
    pub(super) fn of(place: pg_sys::ItemPointerData) -> Self {
        Self(place)
    }

    /// The place as a number; 0 for one beyond the first 16 GB of its table.
    pub fn number(self) -> u32 {
        // SAFETY: a valid reference.
        let block = unsafe { item_pointer_get_block_number_no_check(self.0) };
        let line = u32::from(self.0.ip_posid);
        if block >> (u32::BITS - LINE_BITS) == 0 && line >> LINE_BITS == 0 {
            block << LINE_BITS | line
        } else {
            0
        }
    }

    /// The place with this number; `None` for 0.
    pub fn at(number: u32) -> Option<Self> {
        let mut place = pg_sys::ItemPointerData::default();
        let line = u16::try_from(number & ((1 << LINE_BITS) - 1)).unwrap_or(0);
        item_pointer_set_all(&mut place, number >> LINE_BITS, line);
        (number != 0).then_some(Self(place))
    }
}

/// Places of a table's rows, by key.
type Places = BTreeMap<Box<[u8]>, pg_sys::ItemPointerData>;

/// By the table's oid.
static PLACES: BackendLocal<BTreeMap<u32, Places>> = BackendLocal::new(BTreeMap::new());

/// Number of rows of a table that are remembered; beyond it, all are forgotten.
const MOST: usize = 10_000;

impl Table {
    /// Remembers that the row with this key is here.
    pub(super) fn remember(&self, key: &Value<'_>, place: pg_sys::ItemPointerData) {
        let Value::Text(key) = key else { return };
        PLACES.with_mut(|tables| {
            let places = tables.entry(self.oid()).or_default();
            if let Some(known) = places.get_mut(*key) {
                *known = place;
                return;
            }
            if places.len() >= MOST {
                places.clear();
            }
            places.insert((*key).into(), place);
        });
    }

    /// Fetches the version of the row that is visible in the snapshot, if it can be reached from the
    /// remembered place. `slot` holds it, pinned so that its place is not used again.
    ///
    /// # Safety
    /// In a transaction; `slot` is an empty slot of this table.
    pub(super) unsafe fn fetch_remembered(
        &self,
        key: &Value<'_>,
        snapshot: pg_sys::Snapshot,
        slot: *mut pg_sys::TupleTableSlot,
    ) -> Option<pg_sys::ItemPointerData> {
        let Value::Text(name) = key else { return None };
        let place = PLACES.with(|tables| tables.get(&self.oid())?.get(*name).copied())?;
        // SAFETY: guaranteed by the caller.
        unsafe { self.fetch_from(Place(place), key, snapshot, slot) }
    }

    /// The same from any place.
    ///
    /// # Safety
    /// As [`Self::fetch_remembered`].
    pub(super) unsafe fn fetch_from(
        &self,
        place: Place,
        key: &Value<'_>,
        snapshot: pg_sys::Snapshot,
        slot: *mut pg_sys::TupleTableSlot,
    ) -> Option<pg_sys::ItemPointerData> {
        let Place(mut place) = place;
        // SAFETY: in a transaction, and the relation is open and locked, so it is not truncated.
        // The block exists; the functions check the rest of a place that may hold anything. The
        // tuple is read while the slot holds it.
        unsafe {
            let blocks = pg_sys::RelationGetNumberOfBlocksInFork(
                self.relation,
                pg_sys::ForkNumber::MAIN_FORKNUM,
            );
            if item_pointer_get_block_number_no_check(place) >= blocks {
                return None;
            }
            let scan = pg_sys::table_beginscan_tid(self.relation, snapshot);
            pg_sys::table_tuple_get_latest_tid(scan, &raw mut place);
            pg_sys::table_endscan(scan);
            if !pg_sys::table_tuple_fetch_row_version(self.relation, &raw mut place, snapshot, slot)
            {
                return None;
            }
            let mut free = false;
            let tuple = pg_sys::ExecFetchSlotHeapTuple(slot, false, &raw mut free);
            self.row(tuple).has(key).then_some(place)
        }
    }

    fn oid(&self) -> u32 {
        // SAFETY: the relation is open.
        unsafe { (*self.relation).rd_id.to_u32() }
    }
}
