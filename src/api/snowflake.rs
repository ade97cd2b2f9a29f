//! Snowflake ids and their parts.

use std::sync::atomic::Ordering;

use leaf_id_core::layout::{Layout, Parts};
use pgrx::iter::SetOfIterator;
use pgrx::prelude::*;
use pgrx::{IntoDatum, pg_sys};

use super::call::{count, finish, row_type, text};
use crate::error::{Failure, FormatError, RegistryError};
use crate::pg::{self, RawDatum};
use crate::shmem;
use crate::snowflake::{issue, reset};

#[pg_extern(strict, parallel_safe, sql = false)]
pub fn leaf_snowflake_next() -> i64 {
    finish(issue::next())
}

#[pg_extern(strict, parallel_safe, sql = false)]
fn leaf_snowflake_next_batch(n: i32) -> SetOfIterator<'static, i64> {
    let n = finish(count(n));
    SetOfIterator::new(
        (0..n).map(|_| issue::next_at_once().unwrap_or_else(|| finish(issue::next()))),
    )
}

#[pg_extern(strict, sql = false)]
fn leaf_snowflake_reset(until: TimestampWithTimeZone) {
    finish(reset::reset(until.into()));
}

/// `MIN_TIMESTAMP` of datatype/timestamp.h, missing in the bindings: 4714-11-24 BC. The maximum
/// exceeds the range of Unix time in microseconds.
const MIN_TIMESTAMP_US: i64 = -211_813_488_000_000_000;

/// Converts Unix milliseconds to a TimestampTz; `None` if out of range.
pub fn timestamp(unix_ms: i64) -> Option<i64> {
    unix_ms
        .checked_mul(1000)?
        .checked_sub(pg::TIMESTAMP_EPOCH_US)
        .filter(|us| *us >= MIN_TIMESTAMP_US)
}

/// Parameters needed to compose and decode ids.
#[derive(Clone, Copy)]
pub struct Format {
    /// The epoch, in Unix milliseconds.
    pub epoch_ms: i64,
    /// Bit layout.
    pub layout: Layout,
}

impl Format {
    /// The format of this server's ids.
    pub fn configured() -> Result<Self, Failure> {
        let area = shmem::area().ok_or(Failure::NotPreloaded)?;
        Ok(Self {
            epoch_ms: area.snowflake.epoch_ms.load(Ordering::Relaxed),
            layout: area.snowflake.layout(),
        })
    }

    /// The format given in a call.
    ///
    /// # Safety
    /// As [`text`]; the argument `number` is the layout.
    unsafe fn given(
        epoch_ms: i64,
        fcinfo: pg_sys::FunctionCallInfo,
        number: usize,
    ) -> Result<Self, Failure> {
        // SAFETY: guaranteed by the caller; dropped here.
        let layout = unsafe { text(fcinfo, number) };
        let parsed = str::from_utf8(layout).ok().and_then(Layout::parse);
        let layout = parsed.ok_or_else(|| {
            Failure::Format(FormatError::BadLayout {
                layout: pg::shown(layout),
            })
        })?;
        Ok(Self { epoch_ms, layout })
    }
}

/// The parts of an id, and its time as a TimestampTz.
fn parts(id: i64, format: Format) -> Result<(Parts, i64), Failure> {
    let Format { epoch_ms, layout } = format;
    let parts = layout
        .decompose(id)
        .ok_or(Failure::Format(FormatError::NoSnowflake { id, layout }))?;
    let ts = epoch_ms
        .checked_add(parts.ms)
        .and_then(timestamp)
        .ok_or(Failure::Format(FormatError::BadEpoch { epoch_ms }))?;
    Ok((parts, ts))
}

fn decode(fcinfo: pg_sys::FunctionCallInfo, id: i64, format: Format) -> Result<RawDatum, Failure> {
    let (parts, ts) = parts(id, format)?;
    let columns = [
        ts.into_datum(),
        i32::from(parts.worker_id).into_datum(),
        i32::from(parts.sequence).into_datum(),
    ];
    // SAFETY: a call of one of the SQL functions below, with its OUT arguments.
    Ok(unsafe { row_type(fcinfo).form(columns) })
}

#[pg_extern(strict, stable, parallel_safe, sql = false)]
fn leaf_snowflake_decode(id: i64, fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    finish(Format::configured().and_then(|format| decode(fcinfo, id, format)))
}

#[pg_extern(strict, immutable, parallel_safe, sql = false)]
fn leaf_snowflake_decode_in_format(
    id: i64,
    epoch: i64,
    fcinfo: pg_sys::FunctionCallInfo,
) -> RawDatum {
    // SAFETY: a call of the SQL function of this name.
    let format = unsafe { Format::given(epoch, fcinfo, 2) };
    finish(format.and_then(|format| decode(fcinfo, id, format)))
}

fn time(id: i64, format: Format) -> Result<TimestampWithTimeZone, Failure> {
    let Format { epoch_ms, .. } = format;
    let (_, ts) = parts(id, format)?;
    TimestampWithTimeZone::try_from(ts)
        .map_err(|_| Failure::Format(FormatError::BadEpoch { epoch_ms }))
}

#[pg_extern(strict, stable, parallel_safe, sql = false)]
fn leaf_snowflake_time(id: i64) -> TimestampWithTimeZone {
    finish(Format::configured().and_then(|format| time(id, format)))
}

#[pg_extern(strict, immutable, parallel_safe, sql = false)]
fn leaf_snowflake_time_in_format(
    id: i64,
    epoch: i64,
    fcinfo: pg_sys::FunctionCallInfo,
) -> TimestampWithTimeZone {
    // SAFETY: a call of the SQL function of this name.
    let format = unsafe { Format::given(epoch, fcinfo, 2) };
    finish(format.and_then(|format| time(id, format)))
}

/// Milliseconds from the epoch to the millisecond of a timestamp. Infinities become the extremes.
fn ms_since(ts: i64, epoch_ms: i64) -> i64 {
    match ts {
        i64::MIN => i64::MIN,
        i64::MAX => i64::MAX,
        us => (us.saturating_add(pg::TIMESTAMP_EPOCH_US))
            .div_euclid(1000)
            .saturating_sub(epoch_ms),
    }
}

fn lower_bound(ts: i64, format: Format) -> i64 {
    let Format { epoch_ms, layout } = format;
    let ms = ms_since(ts, epoch_ms);
    if ms > layout.max_ms() {
        return i64::MAX;
    }
    layout.compose(Parts {
        ms: ms.max(0),
        worker_id: 0,
        sequence: 0,
    })
}

#[pg_extern(strict, stable, parallel_safe, sql = false)]
fn leaf_snowflake_min(ts: TimestampWithTimeZone) -> i64 {
    lower_bound(ts.into(), finish(Format::configured()))
}

#[pg_extern(strict, immutable, parallel_safe, sql = false)]
fn leaf_snowflake_min_in_format(
    ts: TimestampWithTimeZone,
    epoch: i64,
    fcinfo: pg_sys::FunctionCallInfo,
) -> i64 {
    // SAFETY: a call of the SQL function of this name.
    let format = unsafe { Format::given(epoch, fcinfo, 2) };
    lower_bound(ts.into(), finish(format))
}

/// Composes an id, which may or may not have been issued.
fn compose(ts: i64, worker_id: i32, sequence: i64, format: Format) -> Result<i64, Failure> {
    let Format { epoch_ms, layout } = format;
    let ms = ms_since(ts, epoch_ms);
    if !(0..=layout.max_ms()).contains(&ms) {
        if timestamp(epoch_ms).is_none() {
            return Err(Failure::Format(FormatError::BadEpoch { epoch_ms }));
        }
        return Err(Failure::Format(FormatError::TimeOutOfRange {
            first: pg::format_ms(epoch_ms),
            last: pg::format_ms(epoch_ms.saturating_add(layout.max_ms())),
        }));
    }
    let largest = layout.max_worker_id();
    let fits = |worker_id: &u16| *worker_id <= largest;
    let worker_id = (u16::try_from(worker_id).ok().filter(fits)).ok_or(Failure::Registry(
        RegistryError::NoSuchWorkerId { worker_id, largest },
    ))?;
    let max = layout.max_sequence();
    let fits = |sequence: &u16| *sequence <= max;
    let sequence = (u16::try_from(sequence).ok().filter(fits)).ok_or(Failure::Format(
        FormatError::SequenceOutOfRange { sequence, max },
    ))?;
    Ok(layout.compose(Parts {
        ms,
        worker_id,
        sequence,
    }))
}

#[pg_extern(strict, stable, parallel_safe, sql = false)]
fn leaf_snowflake_compose(ts: TimestampWithTimeZone, worker_id: i32, sequence: i64) -> i64 {
    let format = Format::configured();
    finish(format.and_then(|format| compose(ts.into(), worker_id, sequence, format)))
}

#[pg_extern(strict, immutable, parallel_safe, sql = false)]
fn leaf_snowflake_compose_in_format(
    ts: TimestampWithTimeZone,
    worker_id: i32,
    sequence: i64,
    epoch: i64,
    fcinfo: pg_sys::FunctionCallInfo,
) -> i64 {
    // SAFETY: a call of the SQL function of this name.
    let format = unsafe { Format::given(epoch, fcinfo, 4) };
    finish(format.and_then(|format| compose(ts.into(), worker_id, sequence, format)))
}
