//! The event triggers of `leaf_id.adopt_new_columns`, and the columns whose tags go with them. The
//! work is done in sql/adopt.sql: with the rights of the role that creates a column, and with the
//! extension's where one is dropped, or where `leaf_adopted` is read or written. All of it is called
//! by name, after the extension was kept from being dropped: whoever may drop it could otherwise put
//! something else in its place meanwhile, which would run with those rights.

use core::ffi::CStr;
use core::sync::atomic::{AtomicBool, Ordering};

use pgrx::pg_sys;
use pgrx::prelude::*;

use super::call::finish;
use crate::error::Failure;
use crate::guc;
use crate::pg::{self, EventTriggerCall, RawDatum};

/// This session is giving a new column its tag.
static ADOPTING: AtomicBool = AtomicBool::new(false);

struct Adopting;

impl Drop for Adopting {
    fn drop(&mut self) {
        ADOPTING.store(false, Ordering::Relaxed);
    }
}

/// Calls a function of schema `leaf_id` that the caller cannot, once the extension is kept. `None`
/// if it is gone.
///
/// # Safety
/// As for [`pg::call`].
unsafe fn call_kept(
    function: &CStr,
    arguments: &[(pg_sys::Oid, pg_sys::Datum)],
) -> Option<pg_sys::Datum> {
    if !pg::hold(c"leaf_adopted") {
        return None;
    }
    // SAFETY: the schema belongs to a superuser, the only role that can create objects in it, and
    // stays; the rest is guaranteed by the caller.
    unsafe { pg::call(c"leaf_id", function, arguments) }
}

#[pg_extern(sql = false)]
fn leaf_adopt_new_columns(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: a call of the SQL function of this name.
    let call = unsafe { EventTriggerCall::new(fcinfo) };
    let function = "leaf_adopt_new_columns";
    let call = finish(call.ok_or(Failure::NotATrigger { function }));
    if guc::ADOPT_NEW_COLUMNS.get()
        && let Some(names) = call.new_columns()
    {
        ADOPTING.store(true, Ordering::Relaxed);
        let _adopting = Adopting;
        // Setting a default is an ALTER TABLE, too, but one that adds no column, so the recursion
        // ends.
        // SAFETY: one value of its type.
        unsafe { call_kept(c"leaf_adopt_new", &[pg::names_argument(&names)]) };
    }
    RawDatum::none()
}

#[pg_extern(sql = false)]
fn leaf_drop_adopted(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: a call of the SQL function of this name.
    let call = unsafe { EventTriggerCall::new(fcinfo) };
    let function = "leaf_drop_adopted";
    finish(call.ok_or(Failure::NotATrigger { function }));
    // SAFETY: no values.
    unsafe { call_kept(c"leaf_drop_tags_of_columns", &[]) };
    RawDatum::none()
}

/// Only for the event trigger: nobody else gives a column a tag, which may be that of others.
#[pg_extern(strict, sql = false)]
fn leaf_note_adopted(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    if ADOPTING.load(Ordering::Relaxed) {
        // SAFETY: a call of the SQL function of this name, which is strict, with values of these
        // types.
        unsafe {
            let given = (*fcinfo).args.as_slice(3);
            let arguments = [
                (pg_sys::OIDOID, given[0].value),
                (pg_sys::INT2OID, given[1].value),
                (pg_sys::TEXTOID, given[2].value),
            ];
            call_kept(c"leaf_write_adopted", &arguments);
        }
    }
    RawDatum::none()
}

#[pg_extern(strict, sql = false)]
fn leaf_lock_table(relation: pg_sys::Oid) {
    pg::lock_table(relation.to_u32());
}

#[pg_extern(strict, sql = false)]
fn leaf_belongs_to_column(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: a call of the SQL function of this name, which is strict, with a text.
    let found = unsafe {
        let tag = (*(*fcinfo).args.as_ptr()).value;
        call_kept(c"leaf_read_adopted", &[(pg_sys::TEXTOID, tag)])
    };
    found.is_some_and(|found| found.value() != 0)
}
