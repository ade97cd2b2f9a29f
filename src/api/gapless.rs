//! Gapless numbers, and marks that arrive from elsewhere; implemented by `gapless`.

use pgrx::pg_sys;
use pgrx::prelude::*;

use super::call::{finish, second_bigint, text, trigger_call};
use crate::gapless;
use crate::pg::{self, RawDatum};

#[pg_extern(strict, sql = false)]
fn leaf_gapless_next(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: a call of the SQL function of this name.
    finish(gapless::next(unsafe { text(fcinfo, 0) }))
}

#[pg_extern(strict, sql = false)]
fn leaf_gapless_raise(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: a call of the SQL function of this name, which is strict.
    let (series, last_number, other) =
        unsafe { (text(fcinfo, 0), second_bigint(fcinfo), text(fcinfo, 2)) };
    finish(gapless::raise(series, last_number, other))
}

#[pg_extern(sql = false)]
fn leaf_gapless_edited(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: a call of the SQL function of this name.
    let call = unsafe { trigger_call(fcinfo, "leaf_gapless_edited") };
    gapless::note_change();
    call.unchanged()
}

#[pg_extern(sql = false)]
fn leaf_mark_arrives(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: a call of the SQL function of this name.
    let call = unsafe { trigger_call(fcinfo, "leaf_mark_arrives") };
    match gapless::mark_arrives(&call) {
        Ok(false) => call.unchanged(),
        Ok(true) => RawDatum::none(),
        // An error would stop the apply worker with all its tables.
        Err(_) if pg::replica_role() => RawDatum::none(),
        Err(failure) => failure.raise(),
    }
}
