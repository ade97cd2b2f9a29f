//! Ids whose rows can be read in order, and how far; implemented by `segment::ordered`.

use pgrx::pg_sys;
use pgrx::prelude::*;

use super::call::{finish, tag};
use crate::error::{Failure, OrderedError};
use crate::pg::{self, RawDatum};
use crate::segment::ordered;

#[pg_extern(strict, parallel_restricted, sql = false)]
fn leaf_ordered_next(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: a call of the SQL function of this name.
    finish(ordered::next(unsafe { tag(fcinfo) }))
}

#[pg_extern(strict, parallel_restricted, sql = false)]
fn leaf_ordered_watermark(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: a call of the SQL function of this name.
    finish(ordered::watermark(unsafe { tag(fcinfo) }))
}

/// Planner support that refuses a watermark beside a table, where it is younger than the snapshot.
#[pg_extern(strict, immutable, parallel_safe, sql = false)]
fn leaf_watermark_support(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: a call of the SQL function of this name.
    if unsafe { pg::is_beside_tables(fcinfo) } {
        finish(Err(Failure::Ordered(OrderedError::BesideTables)))
    }
    RawDatum::none()
}
