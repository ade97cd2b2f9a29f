//! Snowflake ids, and what they are made of.

use leaf_id_core::layout::{Layout, Parts};
use pgrx::iter::SetOfIterator;
use pgrx::prelude::*;
use pgrx::{IntoDatum, pg_sys};

use super::call::{count, finish, row_type};
use crate::error::Failure;
use crate::pg::{self, RawDatum};
use crate::shmem;
use crate::snowflake::{issue, reset};

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_snowflake_next() RETURNS bigint
    STRICT VOLATILE PARALLEL SAFE LANGUAGE c AS '@MODULE_PATHNAME@', 'leaf_snowflake_next';
COMMENT ON FUNCTION leaf_snowflake_next() IS
    'The next snowflake id of this server: 41 bits of milliseconds, worker id, sequence';
"#)]
fn leaf_snowflake_next() -> i64 {
    finish(issue::next())
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_snowflake_next_batch(n integer) RETURNS SETOF bigint
    STRICT VOLATILE PARALLEL SAFE ROWS 1000 LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_snowflake_next_batch(integer) IS
    'The next n snowflake ids, in increasing order';
"#)]
fn leaf_snowflake_next_batch(n: i32) -> SetOfIterator<'static, i64> {
    let n = finish(count(n));
    SetOfIterator::new((0..n).map(|_| finish(issue::next())))
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_snowflake_reset(until timestamptz) RETURNS void
    STRICT VOLATILE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_snowflake_reset(timestamptz) IS
    'Lets snowflake ids carry times later than until, whatever was reserved before: for a worker id that was never used; superuser only';
"#)]
fn leaf_snowflake_reset(until: TimestampWithTimeZone) {
    finish(reset::reset(until.into()));
}

/// The time of a timestamp that PostgreSQL cannot hold is an error, not a wrap.
pub fn timestamp(unix_ms: i64) -> Option<i64> {
    unix_ms
        .checked_mul(1000)?
        .checked_sub(pg::TIMESTAMP_EPOCH_US)
}

fn decode(fcinfo: pg_sys::FunctionCallInfo, id: i64, epoch_ms: i64) -> Result<RawDatum, Failure> {
    let parts = Layout::DEFAULT
        .decompose(id)
        .ok_or(Failure::NoSnowflake { id })?;
    let ts = epoch_ms
        .checked_add(parts.ms)
        .and_then(timestamp)
        .ok_or(Failure::BadEpoch { epoch_ms })?;
    let columns = [
        ts.into_datum(),
        i32::from(parts.worker_id).into_datum(),
        i32::from(parts.sequence).into_datum(),
    ];
    // SAFETY: a call of one of the SQL functions below, and their OUT arguments.
    Ok(unsafe { row_type(fcinfo).form(columns) })
}

/// The configured epoch; an id means nothing without one.
pub fn configured_epoch() -> Result<i64, Failure> {
    let area = shmem::area().ok_or(Failure::NotPreloaded)?;
    Ok(area
        .snowflake
        .epoch_ms
        .load(core::sync::atomic::Ordering::Relaxed))
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_snowflake_decode(
    id bigint, OUT ts timestamptz, OUT worker_id integer, OUT sequence integer)
    STRICT STABLE PARALLEL SAFE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_snowflake_decode(bigint) IS
    'The parts of a snowflake id, with the epoch of leaf_id.epoch';
"#)]
fn leaf_snowflake_decode(id: i64, fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    finish(configured_epoch().and_then(|epoch_ms| decode(fcinfo, id, epoch_ms)))
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_snowflake_decode(
    id bigint, epoch bigint, OUT ts timestamptz, OUT worker_id integer, OUT sequence integer)
    STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_snowflake_decode(bigint, bigint) IS
    'The parts of a snowflake id, with an epoch in Unix milliseconds';
"#)]
fn leaf_snowflake_decode_with_epoch(
    id: i64,
    epoch: i64,
    fcinfo: pg_sys::FunctionCallInfo,
) -> RawDatum {
    finish(decode(fcinfo, id, epoch))
}

/// Milliseconds since the epoch within which a timestamp lies; clamped to what ids hold,
/// as the infinities are.
fn ms_since(ts: i64, epoch_ms: i64) -> i64 {
    match ts {
        i64::MIN => i64::MIN,
        i64::MAX => i64::MAX,
        us => (us.saturating_add(pg::TIMESTAMP_EPOCH_US))
            .div_euclid(1000)
            .saturating_sub(epoch_ms),
    }
}

fn lower_bound(ts: i64, epoch_ms: i64) -> i64 {
    let ms = ms_since(ts, epoch_ms);
    let layout = Layout::DEFAULT;
    if ms > layout.max_ms() {
        return i64::MAX;
    }
    layout.compose(Parts {
        ms: ms.max(0),
        worker_id: 0,
        sequence: 0,
    })
}

fn upper_bound(ts: i64, epoch_ms: i64) -> i64 {
    let ms = ms_since(ts, epoch_ms);
    if ms < 0 {
        return -1;
    }
    let layout = Layout::DEFAULT;
    layout.compose(Parts {
        ms: ms.min(layout.max_ms()),
        worker_id: layout.max_worker_id(),
        sequence: layout.max_sequence(),
    })
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_snowflake_min(ts timestamptz) RETURNS bigint
    STRICT STABLE PARALLEL SAFE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_snowflake_min(timestamptz) IS
    'The smallest snowflake id of the millisecond of ts: WHERE id >= leaf_snowflake_min(from)';
"#)]
fn leaf_snowflake_min(ts: TimestampWithTimeZone) -> i64 {
    lower_bound(ts.into(), finish(configured_epoch()))
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_snowflake_min(ts timestamptz, epoch bigint) RETURNS bigint
    STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_snowflake_min(timestamptz, bigint) IS
    'The same with an epoch in Unix milliseconds, for partition bounds and checks';
"#)]
fn leaf_snowflake_min_with_epoch(ts: TimestampWithTimeZone, epoch: i64) -> i64 {
    lower_bound(ts.into(), epoch)
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_snowflake_max(ts timestamptz) RETURNS bigint
    STRICT STABLE PARALLEL SAFE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_snowflake_max(timestamptz) IS
    'The largest snowflake id of the millisecond of ts: WHERE id <= leaf_snowflake_max(until)';
"#)]
fn leaf_snowflake_max(ts: TimestampWithTimeZone) -> i64 {
    upper_bound(ts.into(), finish(configured_epoch()))
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_snowflake_max(ts timestamptz, epoch bigint) RETURNS bigint
    STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_snowflake_max(timestamptz, bigint) IS
    'The same with an epoch in Unix milliseconds, for partition bounds and checks';
"#)]
fn leaf_snowflake_max_with_epoch(ts: TimestampWithTimeZone, epoch: i64) -> i64 {
    upper_bound(ts.into(), epoch)
}
