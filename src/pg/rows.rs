//! Rows of `leaf_alloc` as PostgreSQL hands them over: to a session that looks for one, and
//! to the triggers.

use core::ffi::c_int;

use leaf_id_core::step::Limits;
use pgrx::pg_sys;

use super::{Name, Raw, now_timestamp, primary_key, replica_role, text_datum};
use crate::catalog::Memory;
use crate::edits::{Edit, Row, Stamp};
use crate::shmem::Tag;

/// Columns of `leaf_alloc` by number; sql/schema.sql gives them their order.
const TAG_COLUMN: c_int = 1;
const MAX_ID_COLUMN: c_int = 2;
const STEP_COLUMN: c_int = 3;
const UPDATE_TIME_COLUMN: c_int = 5;
const MAX_STEP_COLUMN: c_int = 6;
const MAX_VALUE_COLUMN: c_int = 7;
const LIFE_COLUMN: c_int = 8;
const SYSTEM_IDENTIFIER_COLUMN: c_int = 9;
const TIMELINE_COLUMN: c_int = 10;
const CLAIMED_STEP_COLUMN: c_int = 11;
const SERVER_COLUMN: c_int = 12;
const SERVER_LIFE_COLUMN: c_int = 13;

// ---- What a session sees ------------------------------------------------------------

/// A row of `leaf_alloc` as a session sees it before it asks for a slot.
pub struct SeenRow {
    /// The row's `max_step`.
    pub max_step: i32,
    /// It was written by the open transaction, or by a parallel worker's leader.
    pub ours: bool,
    /// Who has locked or updated it last.
    pub locker: Locker,
}

/// A row's locker, as a number that SQL can look up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Locker {
    /// Nobody.
    None,
    /// A transaction.
    Transaction(u32),
    /// Several transactions.
    Multi(u32),
}

/// The table was locked by somebody else, so the row could not be looked at.
pub struct TableLocked;

/// Looks at a row by its text key in the first column, with a snapshot of this very
/// moment: a tag that was committed after the transaction's own snapshot counts too. No
/// privilege is needed, no xid is assigned, and a lock on the table is not waited for.
///
/// # Errors
/// [`TableLocked`].
pub fn see_row(relation: u32, key: &[u8]) -> Result<Option<SeenRow>, TableLocked> {
    let oid = pg_sys::Oid::from(relation);
    let share = pg_sys::AccessShareLock.cast_signed();
    // SAFETY: the relation is locked before it is opened and checked to exist; the scan and
    // the relation are closed on the one way out, an error ends the transaction and both.
    unsafe {
        if !pg_sys::ConditionalLockRelationOid(oid, share) {
            return Err(TableLocked);
        }
        let table = pg_sys::try_relation_open(oid, pg_sys::NoLock.cast_signed());
        if table.is_null() {
            pg_sys::UnlockRelationOid(oid, share);
            return Ok(None);
        }
        let mut scan_key = pg_sys::ScanKeyData::default();
        pg_sys::ScanKeyInit(
            &raw mut scan_key,
            1,
            u16::try_from(pg_sys::BTEqualStrategyNumber).unwrap_or(3),
            pg_sys::Oid::from(pg_sys::F_TEXTEQ),
            text_datum(key),
        );
        let index = primary_key(table);
        // REINDEX locks the index alone, and the scan would wait for it.
        let has_index = index != pg_sys::InvalidOid;
        if has_index && !pg_sys::ConditionalLockRelationOid(index, share) {
            pg_sys::relation_close(table, share);
            return Err(TableLocked);
        }
        let scan = pg_sys::systable_beginscan(
            table,
            index,
            has_index,
            core::ptr::null_mut(),
            1,
            &raw mut scan_key,
        );
        let tuple = pg_sys::systable_getnext(scan);
        let row = tuple.as_ref().map(|tuple| {
            let header = &*tuple.t_data;
            let mut null = false;
            let max_step = pg_sys::heap_getattr(
                core::ptr::from_ref(tuple).cast_mut(),
                MAX_STEP_COLUMN,
                (*table).rd_att,
                &mut null,
            );
            let xmin = header.t_choice.t_heap.t_xmin;
            SeenRow {
                max_step: if null { 0 } else { max_step.value() as i32 },
                ours: pg_sys::TransactionIdIsCurrentTransactionId(xmin),
                locker: locker(header),
            }
        });
        pg_sys::systable_endscan(scan);
        if has_index {
            pg_sys::UnlockRelationOid(index, share);
        }
        pg_sys::relation_close(table, share);
        Ok(row)
    }
}

unsafe fn locker(header: &pg_sys::HeapTupleHeaderData) -> Locker {
    let info = u32::from(header.t_infomask);
    // SAFETY: a heap tuple that was read from a table.
    let xmax = unsafe { header.t_choice.t_heap.t_xmax };
    #[allow(
        clippy::useless_conversion,
        reason = "the type differs between versions"
    )]
    let number: u32 = xmax.into();
    if info & pg_sys::HEAP_XMAX_INVALID != 0 || number == 0 {
        Locker::None
    } else if info & pg_sys::HEAP_XMAX_IS_MULTI != 0 {
        Locker::Multi(number)
    } else {
        Locker::Transaction(number)
    }
}

// ---- Triggers ----------------------------------------------------------------------

/// A call of a trigger function.
pub struct TriggerCall(*mut pg_sys::TriggerData);

impl TriggerCall {
    /// `None` if the function was not called as a trigger.
    pub fn new(fcinfo: pg_sys::FunctionCallInfo) -> Option<Self> {
        // SAFETY: what the CALLED_AS_TRIGGER macro does.
        unsafe {
            let context = (*fcinfo).context;
            (!context.is_null() && (*context).type_ == pg_sys::NodeTag::T_TriggerData)
                .then(|| Self(context.cast()))
        }
    }

    fn data(&self) -> &pg_sys::TriggerData {
        // SAFETY: lives as long as the call.
        unsafe { &*self.0 }
    }

    /// Oid of the table.
    pub fn relation(&self) -> u32 {
        // SAFETY: an open relation.
        unsafe { (*self.data().tg_relation).rd_id }.to_u32()
    }

    fn is(&self, operation: u32) -> bool {
        self.data().tg_event & pg_sys::TRIGGER_EVENT_OPMASK == operation
    }

    /// The row edit, for a row trigger.
    pub fn edit(&self) -> Edit {
        let data = self.data();
        let (old, new) = if self.is(pg_sys::TRIGGER_EVENT_INSERT) {
            (None, Some(data.tg_trigtuple))
        } else if self.is(pg_sys::TRIGGER_EVENT_UPDATE) {
            (Some(data.tg_trigtuple), Some(data.tg_newtuple))
        } else {
            (Some(data.tg_trigtuple), None)
        };
        Edit {
            relation: self.relation(),
            old: old.map(|tuple| self.row(tuple)),
            new: new.map(|tuple| self.row(tuple)),
            replica: replica_role(),
        }
    }

    fn column(&self, tuple: pg_sys::HeapTuple, number: c_int) -> Option<pg_sys::Datum> {
        let mut null = false;
        // SAFETY: a tuple of the trigger's table.
        let value = unsafe {
            pg_sys::heap_getattr(tuple, number, (*self.data().tg_relation).rd_att, &mut null)
        };
        (!null).then_some(value)
    }

    /// An integer column; 0 where it is NULL.
    fn integer(&self, tuple: pg_sys::HeapTuple, number: c_int) -> i32 {
        self.column(tuple, number)
            .map_or(0, |value| value.value() as i32)
    }

    fn row(&self, tuple: pg_sys::HeapTuple) -> Row {
        let bigint = |number| self.column(tuple, number).map(|value| value.value() as i64);
        // What its CHECK is going to refuse counts as 0.
        let ids = |number| u32::try_from(self.integer(tuple, number)).unwrap_or(0);
        let tag = self.column(tuple, TAG_COLUMN).and_then(|value| {
            // SAFETY: a text, copied out before anything can free it.
            unsafe {
                let text = pg_sys::pg_detoast_datum_packed(value.cast_mut_ptr());
                Tag::new(pgrx::varlena_to_byte_slice(text))
            }
        });
        Row {
            tag,
            max_id: bigint(MAX_ID_COLUMN),
            max_value: bigint(MAX_VALUE_COLUMN),
            life: bigint(LIFE_COLUMN).unwrap_or(0),
            limits: Limits {
                step: ids(STEP_COLUMN),
                max_step: ids(MAX_STEP_COLUMN),
            },
            memory: Memory {
                system_identifier: bigint(SYSTEM_IDENTIFIER_COLUMN).unwrap_or(0),
                timeline: self.integer(tuple, TIMELINE_COLUMN),
                claimed_step: self.integer(tuple, CLAIMED_STEP_COLUMN),
            },
            // SAFETY: a column of that type, and not null.
            server: (self.column(tuple, SERVER_COLUMN))
                .map(|value| unsafe { Name::from_value(value) }),
            server_life: bigint(SERVER_LIFE_COLUMN).unwrap_or(0),
        }
    }

    /// What the trigger function returns: the row to write, with the stamp in it.
    pub fn stamped(&self, stamp: &Stamp) -> Raw {
        let data = self.data();
        let (tuple, edited) = if self.is(pg_sys::TRIGGER_EVENT_UPDATE) {
            (data.tg_newtuple, true)
        } else {
            (data.tg_trigtuple, self.is(pg_sys::TRIGGER_EVENT_INSERT))
        };
        if !edited {
            return Raw(pg_sys::Datum::from(tuple));
        }
        let mut columns = vec![UPDATE_TIME_COLUMN];
        let mut values = vec![pg_sys::Datum::from(now_timestamp())];
        if let Some(life) = stamp.life {
            columns.push(LIFE_COLUMN);
            values.push(pg_sys::Datum::from(life));
        }
        if let Some(memory) = stamp.memory {
            columns.extend([
                SYSTEM_IDENTIFIER_COLUMN,
                TIMELINE_COLUMN,
                CLAIMED_STEP_COLUMN,
            ]);
            values.extend([
                pg_sys::Datum::from(memory.system_identifier),
                pg_sys::Datum::from(memory.timeline),
                pg_sys::Datum::from(memory.claimed_step),
            ]);
        }
        if let Some(max_id) = stamp.max_id {
            columns.push(MAX_ID_COLUMN);
            values.push(pg_sys::Datum::from(max_id));
        }
        if let Some(server_life) = stamp.server_life {
            columns.push(SERVER_LIFE_COLUMN);
            values.push(pg_sys::Datum::from(server_life));
        }
        let mut nulls = vec![false; columns.len()];
        // SAFETY: as many columns, values and nulls as are said.
        unsafe {
            Raw(pg_sys::Datum::from(pg_sys::heap_modify_tuple_by_cols(
                tuple,
                (*data.tg_relation).rd_att,
                c_int::try_from(columns.len()).unwrap_or(0),
                columns.as_mut_ptr(),
                values.as_mut_ptr(),
                nulls.as_mut_ptr(),
            )))
        }
    }

    /// What the trigger function returns where the row is not ours to change.
    pub fn unchanged(&self) -> Raw {
        let data = self.data();
        let tuple = if data.tg_newtuple.is_null() {
            data.tg_trigtuple
        } else {
            data.tg_newtuple
        };
        Raw(pg_sys::Datum::from(tuple))
    }
}
