//! Opaque ids, there and back.

use leaf_id_core::opaque::Permutation;
use pgrx::pg_sys;
use pgrx::prelude::*;

use super::call::{finish, second_bigint, tag};
use crate::error::Failure;
use crate::segment::wait;
use crate::tags::opaque;

/// Maps a value of a tag's domain.
///
/// # Safety
/// PostgreSQL has called one of the two SQL functions below with this.
unsafe fn mapped(
    fcinfo: pg_sys::FunctionCallInfo,
    map: impl FnOnce(&Permutation, i64) -> Option<i64>,
) -> Result<i64, Failure> {
    // SAFETY: as the caller says: both are strict, with a text and a bigint.
    let (tag, value) = unsafe { (tag(fcinfo), second_bigint(fcinfo)) };
    let found = wait::opaque_tag(tag)?;
    let domain = &found.opaque.domain;
    map(&found.permutation, value).ok_or_else(|| Failure::OpaqueOutOfRange {
        tag: found.key.tag.name(),
        value,
        first: domain.first(),
        last: domain.last(),
    })
}

#[pg_extern(strict, stable, parallel_safe, sql = false)]
fn leaf_opaque_encode(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: a call of the SQL function of this name.
    finish(unsafe { mapped(fcinfo, Permutation::encode) })
}

#[pg_extern(strict, stable, parallel_safe, sql = false)]
fn leaf_opaque_decode(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: a call of the SQL function of this name.
    finish(unsafe { mapped(fcinfo, Permutation::decode) })
}

#[pg_extern(strict, stable, parallel_safe, sql = false)]
fn leaf_key_of(fcinfo: pg_sys::FunctionCallInfo) -> String {
    // SAFETY: a call of the SQL function of this name, which is strict.
    let found = finish(wait::opaque_tag(unsafe { tag(fcinfo) }));
    finish(opaque::hand_over(&found.key.tag, &found.opaque)).hex()
}
