//! Why a snowflake id cannot be issued, or the generator not be reset.

use leaf_id_core::state::Refusal;
use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys::panic::ErrorReport;

use super::refusal;
use crate::guc;

/// See this file's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnowflakeError {
    /// `leaf_id.worker_id` is empty.
    WorkerIdUnset,
    /// The clock is too far behind the last id.
    ClockBack {
        by_ms: i64,
        last: String,
        max_lead_ms: i64,
    },
    /// The time range of the layout is exhausted.
    EndOfTime,
    /// Ids issued by an earlier run or another server may be too far ahead.
    TooFarAhead { by_ms: i64, until: String },
    /// The generator is closed; `said` is the last answer of the worker registry.
    Refusal { refusal: Refusal, said: String },
    /// The reservation could not be written or read.
    ReservationFile { reason: String },
    /// `leaf_snowflake_reset` below what was reserved for the same worker id.
    WorkerIdUsed { worker_id: u16, until: String },
    /// `leaf_snowflake_reset` found no launcher, or a busy one.
    ResetTimeout {
        timeout_ms: i64,
        detail: &'static str,
    },
    /// `leaf_snowflake_reset` to a time that no id can carry.
    ResetOutOfRange,
    /// The generator did not open in time.
    Timeout { timeout_ms: i64, detail: String },
    /// A standby with a fixed worker id.
    StandbyWithoutLease,
    /// The lease of the worker id has ended. With the time since when the registry is unreachable,
    /// and its last answer or connection error.
    LeaseEnded {
        worker_id: u16,
        registry: String,
        away_since: Option<String>,
        said: String,
    },
    /// `leaf_snowflake_reset` with a leased worker id.
    ResetLeased,
}

impl SnowflakeError {
    /// The error of a closed generator, if no registry is involved.
    pub fn refusal(refusal: Refusal) -> Self {
        let said = String::new();
        Self::Refusal { refusal, said }
    }

    /// The error to raise.
    pub(super) fn report(self) -> ErrorReport {
        let not_ready = Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
        let invalid = Code::ERRCODE_INVALID_PARAMETER_VALUE;
        let exhausted = Code::ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED;
        let error = |code, message: String| ErrorReport::new(code, message, "leaf_id");
        match self {
            Self::Refusal { refusal, said } => {
                refusal::report(refusal, &said).unwrap_or_else(|| {
                    let timeout_ms = guc::REFILL_TIMEOUT.get().into();
                    Self::Timeout { timeout_ms, detail: said }.report()
                })
            }
            Self::WorkerIdUnset => error(not_ready, "\"leaf_id.worker_id\" is not set".into())
                .set_hint(
                    "Give every server a number of its own: ALTER SYSTEM SET leaf_id.worker_id = '1'; SELECT pg_reload_conf();",
                ),
            Self::ClockBack {
                by_ms,
                last,
                max_lead_ms,
            } => error(
                not_ready,
                "could not issue a snowflake id: the clock went back".into(),
            )
            .set_detail(format!(
                "The clock is {by_ms} ms behind the last id, which carries the time {last}; ids may lead it by {max_lead_ms} ms."
            ))
            .set_hint("Calls succeed again once the clock is within \"leaf_id.max_clock_lead\" of the last id. If the clock was wrong then and is right now, and that is too long: set \"leaf_id.worker_id\" to one that was never used before, reload, and SELECT leaf_snowflake_reset(now());"),
            Self::EndOfTime => error(
                exhausted,
                "snowflake ids have reached the end of their time".into(),
            ),
            Self::TooFarAhead { by_ms, until } => error(
                not_ready,
                "cannot issue snowflake ids: earlier ones may carry times too far ahead of the clock".into(),
            )
            .set_detail(format!("They can be issued again at {until}, in {by_ms} ms, when the lead is within \"leaf_id.max_clock_lead\"."))
            .set_hint("Set the clock right, or raise \"leaf_id.max_clock_lead\". If the clock is right now, and the worker id is not leased: set \"leaf_id.worker_id\" to one that was never used before, reload, and SELECT leaf_snowflake_reset(now());"),
            Self::ReservationFile { reason } => error(
                Code::ERRCODE_IO_ERROR,
                "could not reserve snowflake timestamps".into(),
            )
            .set_detail(format!("The file leaf_id_reservation.json in the data directory could not be read or written: {reason}"))
            .set_hint("Make the file readable and the disk writable; the launcher tries again every second. If the file is damaged, and the clock was never ahead: SELECT leaf_snowflake_reset(now());"),
            Self::WorkerIdUsed { worker_id, until } => error(
                not_ready,
                format!("worker id {worker_id} may have issued snowflake ids with later times"),
            )
            .set_detail(format!("Its timestamps are reserved until {until}."))
            .set_hint("Set \"leaf_id.worker_id\" to one that was never used before: ALTER SYSTEM SET leaf_id.worker_id = '...'; SELECT pg_reload_conf(); and call this again."),
            Self::ResetTimeout { timeout_ms, detail } => error(
                Code::ERRCODE_LOCK_NOT_AVAILABLE,
                format!("could not reset snowflake ids within {timeout_ms} ms"),
            )
            .set_detail(detail.to_string()),
            Self::ResetOutOfRange => error(
                invalid,
                "snowflake ids cannot carry this time".into(),
            )
            .set_hint("To issue ids from now on: SELECT leaf_snowflake_reset(now());"),
            Self::Timeout { timeout_ms, detail } => error(
                Code::ERRCODE_LOCK_NOT_AVAILABLE,
                format!("could not get a snowflake id within {timeout_ms} ms"),
            )
            .set_detail(detail)
            .set_hint("Try again, look at leaf_snowflake_status, or increase \"leaf_id.refill_timeout\"."),
            Self::StandbyWithoutLease => error(
                Code::ERRCODE_READ_ONLY_SQL_TRANSACTION,
                "cannot issue snowflake ids during recovery".into(),
            )
            .set_detail("The worker id is in the configuration, or from a registry on this server itself, and may be that of the primary.")
            .set_hint("A standby can have one of its own: set \"leaf_id.worker_registry\" to one on another server, and \"leaf_id.worker_id\" to auto."),
            Self::LeaseEnded { worker_id, registry, away_since, said } => error(
                not_ready,
                format!("cannot issue snowflake ids: the lease of worker id {worker_id} has ended"),
            )
            .set_detail(match away_since {
                Some(since) => format!("Worker registry \"{registry}\" has not answered since {since}: {said}."),
                None => format!("Worker registry \"{registry}\" has not renewed it yet."),
            })
            .set_hint("Calls succeed again as soon as the registry renews it; leaf_snowflake_status tells more."),
            Self::ResetLeased => error(
                not_ready,
                "cannot reset snowflake ids while \"leaf_id.worker_id\" is auto".into(),
            )
            .set_detail("No id carries a later time than the worker registry has recorded, so there is nothing to go back from."),
        }
    }
}
