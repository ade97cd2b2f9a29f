//! Trigger functions on the extension's own tables.

use pgrx::pg_sys;

use super::datum::RawDatum;
use super::table::check::check_open;
use super::table::row::Row;
use super::table::shape::{Misshapen, Shape};
use super::table::value::Value;

/// True if `session_replication_role` is `replica`.
pub fn replica_role() -> bool {
    // SAFETY: a global of a single-threaded process.
    let role = unsafe { pg_sys::SessionReplicationRole };
    role == pg_sys::SESSION_REPLICATION_ROLE_REPLICA.cast_signed()
}

/// A call of a trigger function.
pub struct TriggerCall<'a>(&'a pg_sys::TriggerData);

impl TriggerCall<'_> {
    /// `None` if the function was not called as a trigger.
    ///
    /// # Safety
    /// `fcinfo` is the argument of a function called by PostgreSQL, which does not return before
    /// the result is dropped.
    pub unsafe fn new(fcinfo: pg_sys::FunctionCallInfo) -> Option<Self> {
        // SAFETY: guaranteed by the caller. The context of a call is null or a node, and a node
        // with this tag is a TriggerData, as in CALLED_AS_TRIGGER.
        unsafe {
            let context = (*fcinfo).context;
            (!context.is_null() && (*context).type_ == pg_sys::NodeTag::T_TriggerData)
                .then(|| Self(&*context.cast()))
        }
    }

    /// Checks the shape of the trigger's table. Must be called before rows are read.
    ///
    /// # Errors
    /// [`Misshapen`]: the table was altered, or is another one.
    pub fn check(&self, shape: &'static Shape) -> Result<(), Misshapen> {
        // SAFETY: PostgreSQL has opened and locked the trigger's table.
        unsafe { check_open(self.0.tg_relation, shape) }
    }

    /// Oid of the table.
    pub fn relation(&self) -> u32 {
        // SAFETY: PostgreSQL has opened the trigger's table.
        unsafe { (*self.0.tg_relation).rd_id }.to_u32()
    }

    fn is_insert(&self) -> bool {
        self.0.tg_event & pg_sys::TRIGGER_EVENT_OPMASK == pg_sys::TRIGGER_EVENT_INSERT
    }

    fn row(&self, tuple: pg_sys::HeapTuple) -> Option<Row> {
        // SAFETY: a tuple of the trigger's table, which PostgreSQL has opened.
        (!tuple.is_null()).then(|| unsafe { Row::new(tuple, (*self.0.tg_relation).rd_att) })
    }

    /// Old row; `None` for INSERT, and for TRUNCATE, which has no rows.
    pub fn old(&self) -> Option<Row> {
        if self.is_insert() {
            return None;
        }
        self.row(self.0.tg_trigtuple)
    }

    /// New row; `None` for DELETE and TRUNCATE.
    pub fn new_row(&self) -> Option<Row> {
        self.row(if self.is_insert() {
            self.0.tg_trigtuple
        } else {
            self.0.tg_newtuple
        })
    }

    /// Return value for the trigger: the new row with these changes. Only after [`Self::check`].
    pub fn with(&self, changes: &[(usize, Value<'_>)]) -> RawDatum {
        match self.new_row() {
            // SAFETY: columns of the trigger's table, of the types in its shape.
            Some(row) => RawDatum(pg_sys::Datum::from(unsafe { row.with(changes) })),
            None => self.unchanged(),
        }
    }

    /// Return value for the trigger to leave the row unchanged.
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
