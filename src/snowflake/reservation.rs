//! Writing the reservation of timestamps, by the launcher and by sessions: durable first, usable
//! second (I7).

use std::io;
use std::sync::atomic::Ordering;
use std::time::Instant;

use leaf_id_core::reservation::{Terms, Used, late_renewal};

use crate::error::{Failure, SnowflakeError};
use crate::files::protocol;
use crate::files::reservation::{self as file, Reservation};
use crate::guc;
use crate::pg::{self, WaitEvent};
use crate::shmem::{Snowflake, Writer};

/// `leaf_id.timestamp_reservation`, in milliseconds.
pub fn reservation_ms() -> i64 {
    i64::from(guc::TIMESTAMP_RESERVATION.get())
}

/// `leaf_id.max_clock_lead`, in milliseconds.
pub fn max_lead_ms() -> i64 {
    i64::from(guc::MAX_CLOCK_LEAD.get())
}

/// The worker ids used before this one. The last of them may issue until `until_ms`, in Unix
/// milliseconds, before it is replaced. A corrupt file's contents are lost; the next write repairs
/// it, and the damage is returned for logging. It is not logged here: a session that is the writer
/// must not process interrupts, which logging does. If it exited there, no process could become the
/// writer again.
pub fn used_before(worker_id: u16, until_ms: i64) -> io::Result<(Vec<Used>, Option<io::Error>)> {
    let found = match file::read() {
        Err(error) if protocol::is_damage(&error) => return Ok((Vec::new(), Some(error))),
        result => result?,
    };
    let Some(found) = found else {
        return Ok((Vec::new(), None));
    };
    let mut used = found.used;
    if found.worker_id != worker_id {
        let until_ms = until_ms.max(found.stored.reserved_until_ms);
        Used::add(&mut used, found.worker_id, until_ms);
    }
    Ok((used, None))
}

/// Writes a reservation, then allows its use (I7); unless `issued`, nothing is reserved, and the file
/// says that no id was issued. Returns the damage if a corrupt file was repaired.
pub fn reserve(
    snowflake: &Snowflake,
    _writer: &Writer<'_>,
    worker_id: u16,
    until_ms: i64,
    issued: bool,
) -> io::Result<Option<io::Error>> {
    let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
    let begun = Instant::now();
    let (used, damage) = used_before(worker_id, until_ms)?;
    file::write(&Reservation {
        worker_id,
        leased: snowflake.is_leased(),
        reserved_until_ms: until_ms,
        epoch_ms,
        layout: snowflake.generator.layout(),
        clean: !issued,
        issued,
        used,
    })?;
    snowflake.note_write(begun.elapsed());
    if issued {
        snowflake.generator.reserve(until_ms - epoch_ms);
    }
    Ok(damage)
}

/// Renews the reservation in place of a late launcher. True if it was renewed; false if another
/// process is the writer, or the generator is closed. Cannot be canceled while the file is written.
///
/// # Errors
/// The file could not be written.
pub fn renew_late(snowflake: &Snowflake) -> Result<bool, Failure> {
    let Some(writer) = snowflake.try_write() else {
        return Ok(false);
    };
    let generator = &snowflake.generator;
    if !generator.is_open() {
        return Ok(false);
    }
    let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
    let last = generator.last();
    let worker_id = last.worker_id;
    let terms = Terms {
        reservation_ms: reservation_ms(),
        write_ms: snowflake.write_ms(),
        max_lead_ms: generator.lead().max_ms,
    };
    let Some(until_ms) = late_renewal(
        pg::now_ms(),
        last.ms + epoch_ms,
        terms,
        generator.reserved_until() + epoch_ms,
        snowflake.recorded_until_ms(),
    ) else {
        return Ok(false);
    };
    pg::while_waiting(WaitEvent::Snowflake, || {
        reserve(snowflake, &writer, worker_id, until_ms, true)
    })
    .map_err(file_problem)?;
    snowflake.wake();
    Ok(true)
}

/// The failure for an I/O error of the reservation file.
pub fn file_problem(error: io::Error) -> Failure {
    Failure::Snowflake(SnowflakeError::ReservationFile {
        reason: error.to_string(),
    })
}
