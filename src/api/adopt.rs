//! The event trigger of `leaf_id.adopt_new_columns`. What it does is in sql/adopt.sql, with the
//! rights of whoever creates the column.

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
        // Setting a default is an ALTER TABLE too, one that adds no column: this ends here.
        // SAFETY: the schema belongs to a superuser, who alone can create in it.
        unsafe { pg::call_with_names(c"leaf_id", c"leaf_adopt_new", &names) };
    }
    call.done()
}
