//! Gapless numbers; implemented by `gapless`.

use pgrx::pg_sys;
use pgrx::prelude::*;

use super::call::{finish, text};
use crate::gapless;

#[pg_extern(strict, sql = false)]
fn leaf_gapless_next(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: a call of the SQL function of this name.
    finish(gapless::next(unsafe { text(fcinfo, 0) }))
}

#[pg_extern(strict, sql = false)]
fn leaf_gapless_raise(fcinfo: pg_sys::FunctionCallInfo) {
    // SAFETY: a call of the SQL function of this name.
    finish(gapless::raise_to_mark(unsafe { text(fcinfo, 0) }));
}
