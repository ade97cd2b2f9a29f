//! Errors of issuing snowflake ids.

use leaf_id_core::state::Refusal;
use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys::panic::ErrorReport;

use super::refusal;
use super::report::error;
use crate::guc::{self, WorkerId};

/// See this file's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SnowflakeError {
    /// `leaf_id.worker_id` is empty.
    WorkerIdUnset,
    /// What stands in the configuration as `leaf_id.worker_id` is no worker id.
    WorkerIdInvalid,
    /// The clock is too far behind the last id.
    ClockBack {
        by_ms: i64,
        last: String,
        max_lead_ms: i64,
    },
    /// The time range of the layout is exhausted.
    EndOfTime,
    /// `leaf_snowflake_reset` has retired the worker id, whose ids may carry times until then.
    WorkerIdRetired { worker_id: u16, until: String },
    /// Ids issued by an earlier run or another server may be too far ahead.
    TooFarAhead { by_ms: i64, until: String },
    /// The generator is closed; `said` is the last answer of the worker registry.
    Refusal { refusal: Refusal, said: String },
    /// The reservation could not be written or read.
    ReservationFile { reason: String },
    /// The generator did not open in time; `asked`: since the registry leases nothing.
    Timeout {
        timeout_ms: i64,
        detail: String,
        asked: bool,
    },
    /// A standby with a fixed worker id.
    StandbyWithoutLease,
    /// The lease of the worker id leaves no time. With the time since when the registry has not
    /// renewed it, and its last answer or connection error.
    LeaseUsedUp {
        worker_id: u16,
        registry: String,
        not_renewed_since: Option<String>,
        said: String,
    },
}

/// A wait that no change of settings would shorten by much, in milliseconds.
const PASSES_MS: i64 = 60_000;

/// Part of a HINT: what to do if ids carry times that are too late for good.
fn new_worker_id(condition: &str) -> String {
    format!(
        "if {condition}, and the worker id is not leased, set \"leaf_id.worker_id\" to one that was never used before, reload, and call leaf_id.leaf_snowflake_reset(now())"
    )
}

/// A worker id whose ids may carry times until then.
fn retired(worker_id: u16, until: &str) -> ErrorReport {
    error(
        Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        format!("worker id {worker_id} was retired by leaf_snowflake_reset()"),
    )
    .set_detail(format!("It may have issued snowflake ids with times until {until}."))
    .set_hint("Set \"leaf_id.worker_id\" to the one that was in use, or to one that was never used before.")
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
        match self {
            Self::Refusal { refusal, said } => {
                refusal::report(refusal, &said).unwrap_or_else(|| {
                    let timeout_ms = guc::REFILL_TIMEOUT.get().into();
                    Self::Timeout { timeout_ms, detail: said, asked: true }.report()
                })
            }
            Self::WorkerIdUnset => error(not_ready, "\"leaf_id.worker_id\" is not set")
                .set_hint(
                    "Set it to a number that no other server has, or to auto to lease one from a registry.",
                ),
            Self::WorkerIdInvalid => error(not_ready, "\"leaf_id.worker_id\" is not valid")
                .set_detail(guc::worker_id_allowed())
                .set_hint("Correct it in the configuration file, and reload."),
            Self::ClockBack {
                by_ms,
                last,
                max_lead_ms,
            } => error(
                not_ready,
                "could not issue a snowflake id: the clock went back",
            )
            .set_detail(format!(
                "The clock is {by_ms} ms behind the last id, which carries the time {last}; ids may lead it by {max_lead_ms} ms."
            ))
            .set_hint(format!("Wait until the clock is within \"leaf_id.max_clock_lead\" of the last id; {}.", new_worker_id("the clock was wrong then and is right now"))),
            Self::EndOfTime => error(
                Code::ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED,
                "snowflake ids have reached the end of their time",
            ),
            Self::WorkerIdRetired { worker_id, until } => retired(worker_id, &until),
            Self::TooFarAhead { by_ms, until } => error(
                not_ready,
                "cannot issue snowflake ids: earlier ones may carry times too far ahead of the clock",
            )
            .set_detail(format!("They can be issued again at {until}, in {by_ms} ms, when the lead is within \"leaf_id.max_clock_lead\"."))
            .set_hint(if by_ms <= PASSES_MS {
                "No action is needed: calls succeed again then.".into()
            } else if guc::worker_id() == WorkerId::Auto {
                "Correct the clock, or raise \"leaf_id.max_clock_lead\"; if the clock is right now, give this server another worker id as docs/troubleshooting.md says.".into()
            } else {
                format!("Correct the clock, or raise \"leaf_id.max_clock_lead\", first on all standbys that share this worker id; {}.", new_worker_id("the clock is right now"))
            }),
            Self::ReservationFile { reason } => error(
                Code::ERRCODE_IO_ERROR,
                "could not reserve snowflake timestamps",
            )
            .set_detail(format!("The file leaf_id_reservation.json in the data directory could not be read or written: {reason}"))
            .set_hint("Make the file readable and the disk writable; if the file is damaged, and the clock was never ahead, call leaf_id.leaf_snowflake_reset(now())."),
            Self::Timeout { timeout_ms, detail, asked } => error(
                Code::ERRCODE_LOCK_NOT_AVAILABLE,
                format!("could not get a snowflake id within {timeout_ms} ms"),
            )
            .set_detail(detail)
            .set_hint(if asked {
                "Fix the problem shown in the DETAIL; the registry is retried automatically."
            } else {
                "Try again, look at leaf_id.problems, or increase \"leaf_id.refill_timeout\"."
            }),
            Self::StandbyWithoutLease => error(
                Code::ERRCODE_READ_ONLY_SQL_TRANSACTION,
                "cannot issue snowflake ids during recovery",
            )
            .set_detail("The worker id is in the configuration, or from a registry on this server itself, and may be that of the primary.")
            .set_hint("A standby can have one of its own: set \"leaf_id.worker_registry\" to one on another server, and \"leaf_id.worker_id\" to auto."),
            Self::LeaseUsedUp { worker_id, registry, not_renewed_since, said } => error(
                not_ready,
                format!("cannot issue snowflake ids: the lease of worker id {worker_id} is used up"),
            )
            .set_detail(match not_renewed_since {
                Some(since) => format!("Worker registry \"{registry}\" has not renewed it since {since}: {said}."),
                None => format!("Worker registry \"{registry}\" has not renewed it yet."),
            })
            .set_hint("Calls succeed again as soon as the registry renews it; leaf_id.server shows more."),
        }
    }
}
