//! Gapless numbers; implemented by `gapless`.

use pgrx::pg_sys;
use pgrx::prelude::*;

use super::call::{finish, text, trigger_call};
use crate::gapless;
use crate::pg::RawDatum;

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

#[pg_extern(sql = false)]
fn leaf_gapless_edited(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: a call of the SQL function of this name.
    let call = unsafe { trigger_call(fcinfo, "leaf_gapless_edited") };
    gapless::note_edit();
    call.unchanged()
}
