//! Functions of the worker registry for operators; implemented by `lease::registry`.

use pgrx::pg_sys;
use pgrx::prelude::*;

use super::call::{finish, trigger_call};
use crate::lease::registry;
use crate::pg::RawDatum;
use crate::tags::transaction;

#[pg_extern(sql = false)]
fn leaf_worker_retire(worker_id: Option<i32>, retired: Option<bool>) {
    finish(registry::retire(worker_id, retired));
}

#[pg_extern(sql = false)]
fn leaf_worker_set_aside(worker_id: Option<i32>, until: Option<TimestampWithTimeZone>) {
    finish(registry::set_aside(worker_id, until.map(Into::into)));
}

#[pg_extern(sql = false)]
fn leaf_registry_edited(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: a call of the SQL function of this name.
    let call = unsafe { trigger_call(fcinfo, "leaf_registry_edited") };
    transaction::watch();
    call.unchanged()
}
