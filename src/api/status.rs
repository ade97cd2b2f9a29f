//! Data for the status views.

use leaf_id_core::segment::{Remainder, Remainders};
use leaf_id_core::state::State;
use pgrx::iter::TableIterator;
use pgrx::prelude::*;
use pgrx::{IntoDatum, name, pg_sys};

use super::call::{bigint, finish, row_type};
use super::snowflake::{Format, timestamp};
use crate::error::Failure;
use crate::guc::{self, WorkerId};
use crate::pg::{self, Name, RawDatum};
use crate::shmem::{self, RemoteServerState, Slot, WorkerIdSource};
use crate::tags::heap;

fn timestamptz(us: i64) -> Option<TimestampWithTimeZone> {
    if us == 0 {
        None
    } else {
        TimestampWithTimeZone::try_from(us).ok()
    }
}

/// A number for display.
#[expect(clippy::cast_precision_loss, reason = "it is rounded for them anyway")]
fn figure(n: u64) -> f64 {
    n as f64
}

fn milliseconds(us: u64) -> f64 {
    figure(us) / 1000.0
}

fn remaining(remainder: Option<Remainder>) -> u64 {
    remainder.map_or(0, |remainder| remainder.count())
}

fn spare_state(remainders: &Remainders, slot: &Slot) -> &'static str {
    if remainders.spare.is_some() {
        "ready"
    } else if slot.buffer.is_requested() {
        "in flight"
    } else {
        "none"
    }
}

#[pg_extern(strict, parallel_restricted, sql = false)]
#[allow(clippy::type_complexity, reason = "one entry per column")]
fn leaf_segment_slots() -> TableIterator<
    'static,
    (
        name!(tag, pg::Text),
        name!(current_first, Option<i64>),
        name!(current_last, Option<i64>),
        name!(current_next, Option<i64>),
        name!(current_remaining, i64),
        name!(fill_percent, f64),
        name!(spare_first, Option<i64>),
        name!(spare_last, Option<i64>),
        name!(spare_remaining, i64),
        name!(spare_state, &'static str),
        name!(step, Option<i32>),
        name!(ids_issued, i64),
        name!(ids_per_second, f64),
        name!(refills, i64),
        name!(last_refill, Option<TimestampWithTimeZone>),
        name!(last_refill_ms, f64),
        name!(waits, i64),
        name!(waited_ms, f64),
        name!(ids_lost, i64),
        name!(ids_skipped, i64),
        name!(last_error, Option<String>),
    ),
> {
    use core::sync::atomic::Ordering::Relaxed;
    let area = finish(shmem::area().ok_or(Failure::NotPreloaded));
    let relation = finish(heap::relation());
    let mut tags = Vec::with_capacity(area.used());
    area.directory()
        .tags_of(pg::database(), relation, &mut tags);
    let rows = tags.into_iter().map(move |(tag, slot)| {
        let (state, remainders) = area.look(slot);
        let segment = remainders.current_segment;
        let fill = segment.map_or(0.0, |(_, len)| {
            100.0 * figure(remaining(remainders.current)) / f64::from(len)
        });
        let issued = state.issued(&remainders);
        (
            pg::Text::new(tag.bytes()),
            segment.map(|(first, _)| first),
            segment.map(|(first, len)| first + i64::from(len) - 1),
            remainders.current.map(|remainder| remainder.first),
            bigint(remaining(remainders.current)),
            fill,
            remainders.spare.map(|remainder| remainder.first),
            remainders.spare.map(|remainder| remainder.last),
            bigint(remaining(remainders.spare)),
            spare_state(&remainders, slot),
            i32::try_from(state.pace.step).ok().filter(|step| *step > 0),
            bigint(issued),
            state.ids_per_second(issued, pg::now_timestamp()),
            i64::from(state.refills),
            timestamptz(state.last_refill),
            milliseconds(u64::from(state.last_refill_us)),
            bigint(slot.waits.load(Relaxed)),
            milliseconds(slot.waited_us.load(Relaxed)),
            bigint(state.lost),
            bigint(state.skipped),
            area.explain(&state),
        )
    });
    TableIterator::new(rows.collect::<Vec<_>>())
}

#[pg_extern(strict, parallel_restricted, sql = false)]
fn leaf_slot_counts(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    let counts = finish(shmem::area().ok_or(Failure::NotPreloaded))
        .directory()
        .slot_counts();
    let columns = [
        i64::from(counts.slots).into_datum(),
        i64::from(counts.used).into_datum(),
        bigint(counts.evictions).into_datum(),
        bigint(counts.ids_lost).into_datum(),
    ];
    // SAFETY: a call of the SQL function of this name, and its OUT arguments.
    unsafe { row_type(fcinfo).form(columns) }
}

#[pg_extern(strict, parallel_restricted, sql = false)]
#[allow(clippy::type_complexity, reason = "one entry per column")]
fn leaf_central_connections() -> TableIterator<
    'static,
    (
        name!(server, Name),
        name!(state, &'static str),
        name!(since, Option<TimestampWithTimeZone>),
        name!(last_error, Option<String>),
        name!(attempts, i32),
        name!(last_claim, Option<TimestampWithTimeZone>),
    ),
> {
    let area = finish(shmem::area().ok_or(Failure::NotPreloaded));
    let rows = area
        .remote_servers()
        .of(pg::database())
        .into_iter()
        .map(|link| {
            let state = match link.state() {
                RemoteServerState::Connecting => "connecting",
                RemoteServerState::Connected => "connected",
                RemoteServerState::Away => "away",
                RemoteServerState::Closed | RemoteServerState::Free => "closed",
            };
            (
                link.server(),
                state,
                timestamptz(link.since()),
                link.last_error(),
                i32::try_from(link.attempts()).unwrap_or(i32::MAX),
                timestamptz(link.last_claim()),
            )
        });
    TableIterator::new(rows.collect::<Vec<_>>())
}

#[pg_extern(strict, parallel_restricted, sql = false)]
fn leaf_snowflake_state(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    use core::sync::atomic::Ordering::Relaxed;
    let area = finish(shmem::area().ok_or(Failure::NotPreloaded));
    let snowflake = &area.snowflake;
    let Format { epoch_ms, layout } = finish(Format::configured());
    let state = snowflake.state();
    let leases = guc::worker_id() == WorkerId::Auto;
    let open = matches!(state, State::Open { .. });
    let last = snowflake.generator.last();
    let known = last.ms > 0;
    let lead_ms = (last.ms + epoch_ms - pg::now_ms()).max(0);
    let text = match state {
        // Also before the launcher has determined the state.
        State::Starting if pg::in_recovery() && !leases => State::Standby,
        state => state,
    }
    .text();
    let lease = area.registry().lease_status();
    let source = match lease.source {
        WorkerIdSource::Setting => "leaf_id.worker_id",
        WorkerIdSource::Registry => "registry",
        WorkerIdSource::File => "file",
    };
    let some_text = |text: String| Some(text).filter(|text| !text.is_empty());
    let at = |ms: i64| timestamp(ms + epoch_ms);
    let floor = snowflake.floor();
    let columns = [
        text.into_datum(),
        open.then_some(i32::from(last.worker_id)).into_datum(),
        open.then_some(source).into_datum(),
        known.then(|| at(last.ms)).flatten().into_datum(),
        open.then(|| at(snowflake.generator.reserved_until()))
            .flatten()
            .into_datum(),
        floor.and_then(|floor| timestamp(floor.ms)).into_datum(),
        floor.map(|floor| floor.reason.text()).into_datum(),
        known.then_some(lead_ms).into_datum(),
        snowflake
            .lead_reason()
            .filter(|_| lead_ms > 0)
            .map(|reason| reason.text())
            .into_datum(),
        bigint(snowflake.generator.issued()).into_datum(),
        bigint(snowflake.waits.load(Relaxed)).into_datum(),
        bigint(snowflake.rollbacks()).into_datum(),
        layout.to_string().into_datum(),
        at(layout.max_ms()).into_datum(),
        some_text(lease.registry.get()).into_datum(),
        lease.until_ms.and_then(timestamp).into_datum(),
        lease.away_since_ms.and_then(timestamp).into_datum(),
        lease.clock_offset_ms.into_datum(),
        lease.peers_offset_ms.into_datum(),
        some_text(lease.last_error.get()).into_datum(),
    ];
    // SAFETY: a call of the SQL function of this name, and its OUT arguments.
    unsafe { row_type(fcinfo).form(columns) }
}
