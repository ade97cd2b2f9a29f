//! Functions of the worker registry; implemented by `lease::registry`.

use pgrx::pg_sys;
use pgrx::prelude::*;

use super::call::{finish, text};
use crate::lease::registry;
use crate::pg::Text;
use crate::remote::message;

#[pg_extern(strict, sql = false)]
fn leaf_worker_lease(fcinfo: pg_sys::FunctionCallInfo) -> Text {
    // SAFETY: a call of the SQL function of this name. json is stored as text is.
    let request = unsafe { text(fcinfo, 0) };
    let reply = finish(registry::ask(false, || message::read(request)));
    Text::new(&message::write(&reply))
}

#[pg_extern(sql = false)]
fn leaf_worker_release(worker_id: Option<i32>) {
    finish(registry::release(worker_id));
}

#[pg_extern(sql = false)]
fn leaf_worker_retire(worker_id: Option<i32>, retired: Option<bool>) {
    finish(registry::retire(worker_id, retired));
}

#[pg_extern(sql = false)]
fn leaf_worker_set_aside(worker_id: Option<i32>, until: Option<TimestampWithTimeZone>) {
    finish(registry::set_aside(worker_id, until.map(Into::into)));
}
