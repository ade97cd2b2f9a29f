//! The event trigger of `leaf_id.adopt_new_columns`. The work is done in sql/adopt.sql, with the
//! rights of the role that creates the column.

use pgrx::pg_sys;
use pgrx::prelude::*;

use super::call::finish;
use crate::error::Failure;
use crate::guc;
use crate::pg::{self, EventTriggerCall, RawDatum};

#[pg_extern(sql = false)]
fn leaf_adopt_new_columns(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: a call of the SQL function of this name.
    let call = unsafe { EventTriggerCall::new(fcinfo) };
    let function = "leaf_adopt_new_columns";
    let call = finish(call.ok_or(Failure::NotATrigger { function }));
    if guc::ADOPT_NEW_COLUMNS.get()
        && let Some(names) = call.new_columns()
    {
        // Setting a default is an ALTER TABLE, too, but one that adds no column, so the recursion
        // ends.
        // SAFETY: the schema belongs to a superuser, the only role that can create objects in it.
        unsafe { pg::call_with_names(c"leaf_id", c"leaf_adopt_new", &names) };
    }
    RawDatum::none()
}
