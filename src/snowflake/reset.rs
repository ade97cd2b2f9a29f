//! `leaf_snowflake_reset`.

use std::sync::atomic::Ordering;

use leaf_id_core::reservation::{Reader, Stored, Terms, Used, retire};
use leaf_id_core::state::{Refusal, State};

use super::reservation::{file_problem, max_lead_ms, reservation_ms};
use crate::deadline::{self, Deadline, RELOAD_GRACE_MS, RETRY_MS};
use crate::error::{self, Failure, ResetError, SnowflakeError};
use crate::files::reservation::{self as file, FoundReservation, Reservation};
use crate::files::{self, protocol};
use crate::guc::{self, WorkerId};
use crate::pg::{self, WaitEvent};
use crate::shmem::Snowflake;

/// `leaf_snowflake_reset`: lets ids have timestamps from `until` (a TimestampTz) on, whatever was
/// reserved or issued before. The remedy after the clock was far ahead, or if the file is corrupt.
///
/// # Errors
/// See [`Failure`].
pub fn reset(until: i64) -> Result<(), Failure> {
    if !pg::is_superuser() {
        return Err(Failure::NotSuperuser {
            function: "leaf_snowflake_reset",
        });
    }
    let area = deadline::ready()?;
    if guc::worker_id() == WorkerId::Auto {
        return Err(Failure::Reset(ResetError::Leased));
    }
    let snowflake = &area.snowflake;
    let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
    let until_ms = until
        .saturating_add(pg::TIMESTAMP_EPOCH_US)
        .div_euclid(1000);
    if !(0..=snowflake.layout().max_ms()).contains(&until_ms.saturating_sub(epoch_ms)) {
        return Err(Failure::Reset(ResetError::OutOfRange));
    }
    let deadline = Deadline::new();
    let done = loop {
        match try_reset(snowflake, until_ms) {
            Ok(Some(done)) => break done,
            Ok(None) => {}
            // The setting may have been changed a moment ago and the launcher has not read it yet,
            // or there is no launcher to read it.
            Err(
                Failure::Reset(ResetError::WorkerIdUsed { .. } | ResetError::Leased)
                | Failure::Snowflake(SnowflakeError::WorkerIdUnset),
            ) if deadline.elapsed_ms() < RELOAD_GRACE_MS || area.launcher().is_missing() => {}
            Err(failure) => return Err(failure),
        }
        if deadline.left_ms().is_none() {
            let busy = "The reservation is being written by another process.";
            return Err(Failure::Reset(ResetError::Timeout {
                timeout_ms: deadline.timeout_ms(),
                detail: if area.launcher().is_missing() {
                    deadline::silence(area)
                } else {
                    busy
                },
            }));
        }
        pg::wait_latch(Some(RETRY_MS), WaitEvent::Snowflake);
    };
    area.launcher().wake();
    let (user, until) = (pg::user_name(), pg::format_ms(done.until_ms));
    let worker_id = done.worker_id;
    pgrx::log!(
        "leaf_id: snowflake ids were reset by {user} to carry times later than {until}, with worker id {worker_id}"
    );
    for used in done.retired {
        error::tell_retired(used.worker_id, &pg::format_ms(used.until_ms));
    }
    Ok(())
}

/// What a reset has done.
struct Done {
    worker_id: u16,
    /// Ids have later timestamps, in Unix milliseconds.
    until_ms: i64,
    retired: Vec<Used>,
}

/// One attempt. Worker ids that may have issued timestamps later than `until_ms` (Unix
/// milliseconds) are retired until then; the configured one must not be among them. `None` if
/// another process is the writer.
fn try_reset(snowflake: &Snowflake, until_ms: i64) -> Result<Option<Done>, Failure> {
    let worker_id = match snowflake.configured_worker_id() {
        WorkerId::Fixed(worker_id) => worker_id,
        WorkerId::Unset => return Err(Failure::Snowflake(SnowflakeError::WorkerIdUnset)),
        WorkerId::Auto => return Err(Failure::Reset(ResetError::Leased)),
    };
    let Some(_writer) = snowflake.try_write() else {
        return Ok(None);
    };
    let (found, damaged) = match file::read() {
        // A corrupt file is one of the reasons for a reset.
        Err(error) if protocol::is_damage(&error) => (None, true),
        result => (result.map_err(file_problem)?, false),
    };
    let terms = Terms {
        reservation_ms: reservation_ms(),
        write_ms: 0,
        max_lead_ms: max_lead_ms(),
    };
    let reader = Reader {
        system_identifier: pg::system_identifier(),
        timeline: pg::timeline(),
        leased: false,
    };
    // A file that says that no id was issued binds nothing.
    let binds = |found: &&FoundReservation| !found.stored.is_unissued(reader);
    let stored = found.as_ref().filter(binds).map(|found| found.stored);
    let was_opened = snowflake.generator.last().ms > 0;
    let is_own = was_opened || stored.is_some_and(|stored| stored.is_own(reader));
    // The file's contents are lost, or do not bound the ids of another server, which may have had
    // this worker id and led the clock.
    let is_known = !damaged && is_own;
    let until_ms = if is_known {
        until_ms
    } else {
        until_ms.max(terms.above_others_ms(pg::now_ms()))
    };
    if let Some(stored) = stored {
        check_order(snowflake, stored, until_ms)?;
    }
    let used = retire(used_so_far(snowflake, found), worker_id, until_ms).map_err(|used_ms| {
        Failure::Reset(ResetError::WorkerIdUsed {
            worker_id,
            until: pg::format_ms(used_ms),
        })
    })?;
    let retired = used.iter().filter(|used| used.retired).cloned().collect();
    let generator = &snowflake.generator;
    let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
    generator.close();
    snowflake.show(State::Starting);
    let written = pg::while_waiting(WaitEvent::Snowflake, || {
        // The new contents do not bound the ids of a lease, either, so it is given up.
        if !is_known {
            files::lease::forget()?;
        }
        file::write(&Reservation {
            leased: snowflake.is_leased(),
            worker_id,
            reserved_until_ms: until_ms,
            epoch_ms,
            layout: generator.layout(),
            clean: true,
            issued: true,
            used,
        })
    });
    // If it was not written, the launcher opens the generator again above the last id.
    written.map_err(file_problem)?;
    generator.rewind(worker_id, until_ms - epoch_ms);
    generator.set_lead(terms.lead(0));
    snowflake.resets.fetch_add(1, Ordering::AcqRel);
    Ok(Some(Done {
        worker_id,
        until_ms,
        retired,
    }))
}

/// Checks that ids later than `until_ms` are above all ids of the reservation, whose epoch and
/// layout may be others.
fn check_order(snowflake: &Snowflake, stored: Stored, until_ms: i64) -> Result<(), Failure> {
    let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
    let layout = snowflake.layout();
    let refusal = if stored.epoch_ms < epoch_ms {
        let stored_ms = stored.epoch_ms;
        Refusal::EpochMovedLater { stored_ms }
    } else if stored.layout != layout && !stored.is_below(epoch_ms, layout, until_ms + 1) {
        let stored = stored.layout.pack().into();
        Refusal::LayoutChanged { stored }
    } else {
        return Ok(());
    };
    Err(Failure::Snowflake(SnowflakeError::refusal(refusal)))
}

/// All worker ids that this server has used, including the one in force.
fn used_so_far(snowflake: &Snowflake, found: Option<FoundReservation>) -> Vec<Used> {
    let mut used = Vec::new();
    if let Some(found) = found {
        used = found.used;
        Used::add(&mut used, found.worker_id, found.stored.reserved_until_ms);
    }
    let generator = &snowflake.generator;
    let last = generator.last();
    if last.ms > 0 {
        let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
        let until_ms = generator.reserved_until().max(last.ms) + epoch_ms;
        Used::add(&mut used, last.worker_id, until_ms);
    }
    used
}
