//! Errors for calls that get no id, from the state of the generator.

use leaf_id_core::state::{Refusal, State};

use crate::deadline::{self, Deadline, RELOAD_GRACE_MS};
use crate::error::{Failure, SnowflakeError, for_monitors};
use crate::guc::WorkerId;
use crate::pg;
use crate::shmem::{Area, LeaseStatus};

/// Fails if waiting is pointless, with the reason found by the launcher.
pub fn check(area: &Area, deadline: &Deadline) -> Result<(), Failure> {
    let state = area.snowflake.state();
    // The setting may have been changed a moment ago, and the launcher has not read it yet.
    if is_of_settings(state) && deadline.elapsed_ms() < RELOAD_GRACE_MS {
        return Ok(());
    }
    match state {
        State::Starting | State::Open { .. } => Ok(()),
        // Promoted, which the launcher has not noticed yet.
        State::Standby if !pg::in_recovery() => Ok(()),
        // Within the call's own timeout.
        State::WaitingOut { until_ms } | State::Refused(Refusal::WorkerIdRetired { until_ms })
            if deadline
                .left_ms()
                .is_some_and(|left| until_ms - pg::now_ms() <= left) =>
        {
            Ok(())
        }
        State::WaitingOut { until_ms } => Err(too_far_ahead(until_ms)),
        State::Unconfigured => Err(Failure::Snowflake(without_worker_id(area))),
        State::Standby => Err(Failure::Snowflake(SnowflakeError::StandbyWithoutLease)),
        State::Refused(refusal) => failure(area, refusal).map_or(Ok(()), Err),
    }
}

/// True if a change of settings would resolve the state.
fn is_of_settings(state: State) -> bool {
    matches!(
        state,
        State::Unconfigured
            | State::Standby
            | State::Refused(Refusal::NoRegistrySet | Refusal::OtherEpoch | Refusal::OtherLayout)
    )
}

/// The error for a refusal; `None` if it may end soon.
fn failure(area: &Area, refusal: Refusal) -> Option<Failure> {
    let status = area.registry().lease_status();
    match refusal {
        // Unless a renewal is in progress.
        Refusal::TimeUsedUp if status.not_renewed_since_ms.is_some() => Some(used_up(&status)),
        // The registry may still answer.
        Refusal::TimeUsedUp | Refusal::NoAnswer | Refusal::RegistryMoved => None,
        Refusal::FileProblem => Some(Failure::Snowflake(SnowflakeError::ReservationFile {
            reason: "the reason is in the server's log.".into(),
        })),
        Refusal::WorkerIdRetired { until_ms } => {
            let worker_id = match area.snowflake.configured_worker_id() {
                WorkerId::Fixed(worker_id) => worker_id,
                WorkerId::Unset | WorkerId::Auto => status.worker_id,
            };
            Some(Failure::Snowflake(SnowflakeError::WorkerIdRetired {
                worker_id,
                until: pg::format_ms(until_ms),
            }))
        }
        _ => Some(Failure::Snowflake(SnowflakeError::Refusal {
            refusal,
            said: for_monitors(status.last_error.get()),
        })),
    }
}

/// HINT of the error that calls get in this state, for the views.
pub fn hint(area: &Area) -> Option<String> {
    let failure = match area.snowflake.state() {
        State::WaitingOut { until_ms } => Some(too_far_ahead(until_ms)),
        State::Refused(refusal) => failure(area, refusal),
        State::Unconfigured if area.snowflake.is_worker_id_invalid() => {
            Some(Failure::Snowflake(SnowflakeError::WorkerIdInvalid))
        }
        State::Starting | State::Unconfigured | State::Standby | State::Open { .. } => None,
    };
    failure?.report().hint().map(Into::into)
}

/// The error where no worker id is in force.
fn without_worker_id(area: &Area) -> SnowflakeError {
    if area.snowflake.is_worker_id_invalid() {
        SnowflakeError::WorkerIdInvalid
    } else {
        SnowflakeError::WorkerIdUnset
    }
}

fn too_far_ahead(until_ms: i64) -> Failure {
    Failure::Snowflake(SnowflakeError::TooFarAhead {
        by_ms: until_ms - pg::now_ms(),
        until: pg::format_ms(until_ms),
    })
}

/// The error for a call that has timed out.
pub fn timed_out(area: &Area, deadline: &Deadline) -> Failure {
    let status = area.registry().lease_status();
    let registry = status.registry.get();
    let said = || for_monitors(status.last_error.get());
    let detail = match area.snowflake.state() {
        _ if area.launcher().is_missing() => deadline::silence(area).into(),
        State::WaitingOut { until_ms } => format!(
            "Ids of an earlier run or of another server may carry times that are too far ahead of the clock until {}.",
            pg::format_ms(until_ms)
        ),
        // Also if no launcher was running to notice.
        State::Refused(Refusal::TimeUsedUp) => return used_up(&status),
        State::Refused(Refusal::NoAnswer) | State::Starting if !registry.is_empty() => {
            match status.not_renewed_since_ms {
                Some(since) => format!(
                    "Worker registry \"{registry}\" has leased nothing since {}: {}.",
                    pg::format_ms(since),
                    said()
                ),
                None => format!("Worker registry \"{registry}\" has not answered yet."),
            }
        }
        State::Refused(Refusal::RegistryMoved) => {
            format!(
                "Worker registry \"{registry}\" leases no worker id: {}.",
                said()
            )
        }
        State::Open { .. } => "The reservation of timestamps was not renewed.".into(),
        State::Starting | State::Unconfigured | State::Standby | State::Refused(_) => {
            "The launcher has not started the generator.".into()
        }
    };
    Failure::Snowflake(SnowflakeError::Timeout {
        timeout_ms: deadline.timeout_ms(),
        detail,
        // After a move, nothing is to be mended.
        asked: status.not_renewed_since_ms.is_some()
            && area.snowflake.state() != State::Refused(Refusal::RegistryMoved),
    })
}

/// The error when the lease leaves no time.
fn used_up(status: &LeaseStatus) -> Failure {
    Failure::Snowflake(SnowflakeError::LeaseUsedUp {
        worker_id: status.worker_id,
        registry: status.registry.get(),
        not_renewed_since: status.not_renewed_since_ms.map(pg::format_ms),
        said: for_monitors(status.last_error.get()),
    })
}
