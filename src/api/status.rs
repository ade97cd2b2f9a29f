//! Data for the status views.

use leaf_id_core::segment::{Remainder, Remainders};
use leaf_id_core::state::State;
use pgrx::iter::TableIterator;
use pgrx::prelude::*;
use pgrx::{IntoDatum, name, pg_sys};

use super::call::{bigint, finish, row_type};
use super::snowflake::{Format, timestamp};
use crate::error::{EditError, Failure, RefillError, for_monitors, reason_for_monitors};
use crate::guc::{self, WorkerId};
use crate::lease::registry;
use crate::pg::{self, Name, Privilege, RawDatum, RowType};
use crate::shmem::{self, Area, RemoteServerState, Slot, WorkerIdSource};
use crate::snowflake;
use crate::tags::{heap, rights};

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
fn leaf_segment_slots(
    fcinfo: pg_sys::FunctionCallInfo,
) -> TableIterator<
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
        name!(ids_per_second, Option<f64>),
        name!(refills, i64),
        name!(last_refill, Option<TimestampWithTimeZone>),
        name!(last_refill_ms, f64),
        name!(waits, i64),
        name!(waited_ms, f64),
        name!(ids_lost, i64),
        name!(ids_skipped, i64),
        name!(last_error, Option<String>),
        name!(failing_since, Option<TimestampWithTimeZone>),
        name!(blocked_by, Option<i32>),
    ),
> {
    use core::sync::atomic::Ordering::Relaxed;
    // SAFETY: a call of the SQL function of this name.
    unsafe { RowType::of(fcinfo) }.require_columns(23);
    finish(rights::require(&[Privilege::Select]));
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
        let error = state.refill_error;
        let last_error = area.explain(&state).map(|sentence| {
            if error.is_some_and(RefillError::quotes_others) {
                reason_for_monitors(sentence)
            } else {
                sentence
            }
        });
        let failing_since = last_error.as_ref().and_then(|_| {
            let wanted_at = slot.wanted_at.load(Relaxed);
            timestamptz(if wanted_at == 0 {
                state.error_at
            } else {
                wanted_at
            })
        });
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
            last_error,
            failing_since,
            error.and_then(RefillError::blocker),
        )
    });
    TableIterator::new(rows.collect::<Vec<_>>())
}

#[pg_extern(strict, parallel_restricted, sql = false)]
#[allow(clippy::type_complexity, reason = "one entry per column")]
fn leaf_central_connections(
    fcinfo: pg_sys::FunctionCallInfo,
) -> TableIterator<
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
    // SAFETY: a call of the SQL function of this name.
    unsafe { RowType::of(fcinfo) }.require_columns(6);
    finish(rights::require(&[Privilege::Select]));
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
                link.last_error().map(for_monitors),
                i32::try_from(link.attempts()).unwrap_or(i32::MAX),
                timestamptz(link.last_claim()),
            )
        });
    TableIterator::new(rows.collect::<Vec<_>>())
}

#[pg_extern(strict, parallel_restricted, sql = false)]
#[allow(clippy::type_complexity, reason = "one entry per column")]
fn leaf_leases(
    fcinfo: pg_sys::FunctionCallInfo,
) -> TableIterator<
    'static,
    (
        name!(node_name, Option<pg::Text>),
        name!(state, &'static str),
        name!(leased_at, Option<TimestampWithTimeZone>),
        name!(renewed_at, Option<TimestampWithTimeZone>),
        name!(worker_id, i32),
        name!(lease_until, Option<TimestampWithTimeZone>),
        name!(clock_offset_ms, Option<i64>),
        name!(max_skew_ms, i64),
        name!(system_identifier, Option<i64>),
        name!(address, Option<pg::Text>),
        name!(role_name, Option<pg::Text>),
    ),
> {
    // SAFETY: a call of the SQL function of this name.
    unsafe { RowType::of(fcinfo) }.require_columns(11);
    finish(rights::require(&[Privilege::Select]));
    let now_ms = pg::now_ms();
    let rows = finish(registry::leases()).into_iter().map(move |lease| {
        let row = lease.row;
        let state = match &row.holder {
            _ if row.retired => "retired",
            None => "free",
            Some(_) if row.reserved_until_ms > now_ms => "leased",
            Some(_) => "expired",
        };
        let holder = row.holder.as_ref();
        (
            holder.map(|holder| pg::Text::new(&holder.node_name)),
            state,
            lease.leased_at.and_then(timestamptz),
            lease.renewed_at.and_then(timestamptz),
            row.worker_id.into(),
            (row.reserved_until_ms > 0)
                .then(|| timestamp(row.reserved_until_ms))
                .flatten()
                .and_then(timestamptz),
            row.clock_offset_ms,
            lease.max_skew_ms,
            holder.map(|holder| holder.system_identifier),
            row.address.as_deref().map(pg::Text::new),
            row.role.as_deref().map(pg::Text::new),
        )
    });
    TableIterator::new(rows.collect::<Vec<_>>())
}

/// Microseconds since 2000, as PostgreSQL stores it.
type Timestamp = i64;

/// Declares a struct with the OUT arguments of an SQL function as its fields, in their order.
macro_rules! row {
    ($(#[$meta:meta])* struct $name:ident { $($column:ident: $type:ty),* $(,)? }) => {
        $(#[$meta])*
        struct $name {
            $($column: $type),*
        }

        impl $name {
            fn columns(self) -> [Option<pg_sys::Datum>; [$(stringify!($column)),*].len()] {
                [$(self.$column.into_datum()),*]
            }
        }
    };
}

row! {
    /// The row of `leaf_server_state`.
    struct ServerState {
        slots: i64,
        slots_used: i64,
        evictions: i64,
        evicted_ids: i64,
        launcher_missing_since: Option<Timestamp>,
        reserve_worker_missing_since: Option<Timestamp>,
        snowflake_state: &'static str,
        snowflake_since: Option<Timestamp>,
        snowflake_hint: Option<String>,
        worker_id: Option<i32>,
        worker_id_source: Option<&'static str>,
        worker_id_invalid: bool,
        last_timestamp: Option<Timestamp>,
        reserved_until: Option<Timestamp>,
        floor: Option<Timestamp>,
        floor_reason: Option<&'static str>,
        clock_lead_ms: Option<i64>,
        clock_lead_reason: Option<&'static str>,
        snowflake_ids: i64,
        snowflake_waits: i64,
        rollbacks_seen: i64,
        layout: String,
        exhausted_at: Option<Timestamp>,
        registry: Option<String>,
        lease_until: Option<Timestamp>,
        not_renewed_since: Option<Timestamp>,
        clock_offset_ms: Option<i64>,
        peers_offset_ms: Option<i64>,
        registry_error: Option<String>,
    }
}

fn server_state(area: &Area, format: Format) -> ServerState {
    use core::sync::atomic::Ordering::Relaxed;
    let counts = area.directory().slot_counts();
    let generator = &area.snowflake;
    let Format { epoch_ms, layout } = format;
    let state = generator.state();
    let from_start = |at: Timestamp| at.max(area.started_at);
    let since = from_start(generator.state_since());
    let invalid = generator.is_worker_id_invalid();
    let leases = guc::worker_id() == WorkerId::Auto;
    let worker_id = match state {
        State::Open { worker_id } => Some(worker_id.into()),
        _ => None,
    };
    let last = generator.generator.last();
    let known = last.ms > 0;
    let lead_ms = (last.ms + epoch_ms - pg::now_ms()).max(0);
    let state = match state {
        // Also before the launcher has determined the state.
        State::Starting if pg::in_recovery() && !leases => State::Standby,
        state => state,
    };
    let text = match state {
        State::Unconfigured if invalid => "worker id is not valid",
        state => state.text(),
    };
    let lease = area.registry().lease_status();
    let source = match lease.source {
        WorkerIdSource::Setting => "leaf_id.worker_id",
        WorkerIdSource::Registry => "registry",
        WorkerIdSource::File => "file",
    };
    let some_text = |text: String| Some(text).filter(|text| !text.is_empty());
    let at = |ms: i64| timestamp(ms + epoch_ms);
    let floor = generator.floor();
    let lead_reason = generator.lead_reason().filter(|_| lead_ms > 0);
    let reserved_until =
        (known && worker_id.is_some()).then(|| at(generator.generator.reserved_until()));
    ServerState {
        slots: counts.slots.into(),
        slots_used: counts.used.into(),
        evictions: bigint(counts.evictions),
        evicted_ids: bigint(counts.ids_lost),
        launcher_missing_since: area.launcher().missing_since().map(from_start),
        reserve_worker_missing_since: area.reserve().missing_since().map(from_start),
        snowflake_state: text,
        snowflake_since: Some(since),
        snowflake_hint: snowflake::hint(area),
        worker_id,
        worker_id_source: worker_id.map(|_| source),
        worker_id_invalid: invalid,
        last_timestamp: known.then(|| at(last.ms)).flatten(),
        reserved_until: reserved_until.flatten(),
        floor: floor.and_then(|floor| timestamp(floor.ms)),
        floor_reason: floor.map(|floor| floor.reason.text()),
        clock_lead_ms: known.then_some(lead_ms),
        clock_lead_reason: lead_reason.map(|reason| reason.text()),
        snowflake_ids: bigint(generator.generator.issued()),
        snowflake_waits: bigint(generator.waits.load(Relaxed)),
        rollbacks_seen: bigint(generator.rollbacks()),
        layout: layout.to_string(),
        exhausted_at: at(layout.max_ms()),
        registry: some_text(lease.registry.get()),
        lease_until: lease.until_ms.and_then(timestamp),
        not_renewed_since: lease.not_renewed_since_ms.and_then(timestamp),
        clock_offset_ms: lease.clock_offset_ms,
        peers_offset_ms: lease.peers_offset_ms,
        registry_error: some_text(lease.last_error.get()),
    }
}

#[pg_extern(strict, parallel_restricted, sql = false)]
fn leaf_server_state(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    if !pg::caller_is_monitor() {
        let role = pg::user_identifier();
        Failure::Edit(EditError::NotMonitor { role }).raise();
    }
    let area = finish(shmem::area().ok_or(Failure::NotPreloaded));
    let state = server_state(area, finish(Format::configured()));
    // SAFETY: a call of the SQL function of this name, and its OUT arguments.
    unsafe { row_type(fcinfo).form(state.columns()) }
}
