//! Functions of the worker registry for operators; implemented by `lease::registry`.

use pgrx::prelude::*;

use super::call::finish;
use crate::lease::registry;

#[pg_extern(sql = false)]
fn leaf_worker_retire(worker_id: Option<i32>, retired: Option<bool>) {
    finish(registry::retire(worker_id, retired));
}

#[pg_extern(sql = false)]
fn leaf_worker_set_aside(worker_id: Option<i32>, until: Option<TimestampWithTimeZone>) {
    finish(registry::set_aside(worker_id, until.map(Into::into)));
}
