//! What a call says of the state of the generator, where it gets no id.

use crate::deadline::{self, Deadline, RELOAD_GRACE_MS};
use crate::error::{Failure, for_monitors};
use crate::pg;
use crate::shmem::{Area, LeaseStatus, SnowflakeState};

/// Whether the launcher has found that waiting is useless.
pub fn check(area: &Area, deadline: &Deadline) -> Result<(), Failure> {
    let (state, detail) = area.snowflake.status();
    let said = || for_monitors(area.lease_status().last_error.get());
    match state {
        // Set a moment ago, perhaps, and the launcher has not read it yet.
        SnowflakeState::NoWorkerId
        | SnowflakeState::NoRegistrySet
        | SnowflakeState::OtherEpoch
        | SnowflakeState::Standby
            if deadline.elapsed_ms() < RELOAD_GRACE_MS =>
        {
            Ok(())
        }
        SnowflakeState::NoWorkerId => Err(Failure::WorkerIdUnset),
        SnowflakeState::ReservationAhead => {
            let by_ms = detail - pg::now_ms();
            // No longer, or within what this call waits for anyhow.
            if deadline.left_ms().is_some_and(|left| by_ms <= left) {
                return Ok(());
            }
            Err(Failure::ReservationAhead {
                by_ms,
                until: pg::format_ms(detail),
            })
        }
        SnowflakeState::WorkerIdRetired => Err(Failure::WorkerIdRetired {
            until: pg::format_ms(detail),
        }),
        SnowflakeState::EpochMovedLater => Err(Failure::EpochMovedLater { stored_ms: detail }),
        SnowflakeState::FileProblem => Err(Failure::ReservationFile {
            reason: "the reason is in the server's log.".into(),
        }),
        SnowflakeState::NoRegistrySet => Err(Failure::RegistryUnset),
        SnowflakeState::HeldByOther => Err(Failure::HeldByOther { said: said() }),
        SnowflakeState::NoFreeWorkerId => Err(Failure::NoFreeWorkerId { said: said() }),
        SnowflakeState::ClockSkew => Err(Failure::ClockSkew {
            by_ms: detail,
            said: said(),
        }),
        SnowflakeState::OtherEpoch => Err(Failure::OtherEpoch { said: said() }),
        SnowflakeState::OtherRole => Err(Failure::OtherRole { said: said() }),
        SnowflakeState::Standby => Err(Failure::StandbyWithoutLease),
        SnowflakeState::LeaseEnded => {
            let status = area.lease_status();
            // Otherwise it is being renewed just now.
            match status.away_since_ms {
                Some(_) => Err(lease_ended(&status)),
                None => Ok(()),
            }
        }
        // The registry may answer yet.
        SnowflakeState::NoRegistry
        | SnowflakeState::RegistryGrace
        | SnowflakeState::WorkerIdLost
        | SnowflakeState::Starting
        | SnowflakeState::WaitingOut
        | SnowflakeState::Open => Ok(()),
    }
}

pub fn lease_ended(status: &LeaseStatus) -> Failure {
    Failure::LeaseEnded {
        worker_id: status.worker_id,
        registry: status.registry.get(),
        away_since: status.away_since_ms.map(pg::format_ms),
        said: for_monitors(status.last_error.get()),
    }
}

pub fn timed_out(area: &Area, deadline: &Deadline) -> Failure {
    let (state, detail) = area.snowflake.status();
    let status = area.lease_status();
    let registry = status.registry.get();
    let detail = match state {
        _ if area.is_orphaned() => deadline::silence(area).into(),
        SnowflakeState::WaitingOut => format!(
            "Timestamps that an earlier run or another server had reserved are being waited out, until {}.",
            pg::format_ms(detail)
        ),
        SnowflakeState::LeaseEnded => return lease_ended(&status),
        SnowflakeState::NoRegistry | SnowflakeState::Starting if !registry.is_empty() => {
            match status.away_since_ms {
                Some(since) => format!(
                    "Worker registry \"{registry}\" has not answered since {}: {}.",
                    pg::format_ms(since),
                    for_monitors(status.last_error.get())
                ),
                None => format!("Worker registry \"{registry}\" has not answered yet."),
            }
        }
        SnowflakeState::RegistryGrace | SnowflakeState::WorkerIdLost => format!(
            "Worker registry \"{registry}\" grants no worker id: {}.",
            for_monitors(status.last_error.get())
        ),
        SnowflakeState::Open => "The reservation of timestamps was not renewed.".into(),
        _ => "The launcher has not started the generator.".into(),
    };
    Failure::SnowflakeTimeout {
        timeout_ms: deadline.timeout_ms(),
        detail,
    }
}
