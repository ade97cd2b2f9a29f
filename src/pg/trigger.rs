//! Trigger functions on the extension's own tables.

use pgrx::pg_sys;

use super::datum::RawDatum;
use super::table::check::check_open;
use super::table::row::Row;
use super::table::shape::{Misshapen, Shape};
use super::table::value::Value;

/// Whether `session_replication_role` is `replica`.
pub fn replica_role() -> bool {
    // SAFETY: a plain global of this process, which has one thread.
    let role = unsafe { pg_sys::SessionReplicationRole };
    role == pg_sys::SESSION_REPLICATION_ROLE_REPLICA.cast_signed()
}

/// A call of a trigger function.
pub struct TriggerCall<'a>(&'a pg_sys::TriggerData);

/// What fired a trigger.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// INSERT
    Insert,
    /// UPDATE
    Update,
    /// DELETE
    Delete,
    /// TRUNCATE, which has no rows.
    Truncate,
}

impl TriggerCall<'_> {
    /// `None` if the function was not called as a trigger.
    ///
    /// # Safety
    /// PostgreSQL has called a function with this, which does not return before the result is
    /// dropped.
    pub unsafe fn new(fcinfo: pg_sys::FunctionCallInfo) -> Option<Self> {
        // SAFETY: as the caller says. The context of a call is null or a node, and one of this
        // type is a TriggerData: what the macro CALLED_AS_TRIGGER looks at.
        unsafe {
            let context = (*fcinfo).context;
            (!context.is_null() && (*context).type_ == pg_sys::NodeTag::T_TriggerData)
                .then(|| Self(&*context.cast()))
        }
    }

    /// Whether its table is of a shape: before rows are looked at.
    ///
    /// # Errors
    /// [`Misshapen`]: it was altered, or is some other table.
    pub fn check(&self, shape: &'static Shape) -> Result<(), Misshapen> {
        // SAFETY: PostgreSQL has opened and locked the table of the trigger.
        unsafe { check_open(self.0.tg_relation, shape) }
    }

    /// Oid of the table.
    pub fn relation(&self) -> u32 {
        // SAFETY: PostgreSQL has opened the table of the trigger.
        unsafe { (*self.0.tg_relation).rd_id }.to_u32()
    }

    /// What fired it.
    pub fn operation(&self) -> Operation {
        match self.0.tg_event & pg_sys::TRIGGER_EVENT_OPMASK {
            pg_sys::TRIGGER_EVENT_INSERT => Operation::Insert,
            pg_sys::TRIGGER_EVENT_UPDATE => Operation::Update,
            pg_sys::TRIGGER_EVENT_DELETE => Operation::Delete,
            _ => Operation::Truncate,
        }
    }

    fn row(&self, tuple: pg_sys::HeapTuple) -> Option<Row> {
        // SAFETY: a tuple of the table of the trigger, which PostgreSQL has opened.
        (!tuple.is_null()).then(|| unsafe { Row::new(tuple, (*self.0.tg_relation).rd_att) })
    }

    /// The row before; `None` for INSERT.
    pub fn old(&self) -> Option<Row> {
        match self.operation() {
            Operation::Update | Operation::Delete => self.row(self.0.tg_trigtuple),
            Operation::Insert | Operation::Truncate => None,
        }
    }

    /// The row after; `None` for DELETE.
    pub fn new_row(&self) -> Option<Row> {
        match self.operation() {
            Operation::Insert => self.row(self.0.tg_trigtuple),
            Operation::Update => self.row(self.0.tg_newtuple),
            Operation::Delete | Operation::Truncate => None,
        }
    }

    /// What the trigger function returns: the row to write, with these changes. Only after
    /// [`Self::check`].
    pub fn with(&self, changes: &[(usize, Value<'_>)]) -> RawDatum {
        match self.new_row() {
            // SAFETY: columns of the trigger's table, of the types that its shape names.
            Some(row) => RawDatum(pg_sys::Datum::from(unsafe { row.with(changes) })),
            None => self.unchanged(),
        }
    }

    /// What the trigger function returns where the row is not to be written: a null pointer, and
    /// no SQL NULL.
    pub fn none(&self) -> RawDatum {
        RawDatum(pg_sys::Datum::null())
    }

    /// What the trigger function returns where the row stays as it is.
    pub fn unchanged(&self) -> RawDatum {
        let data = self.0;
        let tuple = if data.tg_newtuple.is_null() {
            data.tg_trigtuple
        } else {
            data.tg_newtuple
        };
        RawDatum(pg_sys::Datum::from(tuple))
    }
}
