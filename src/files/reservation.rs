//! The reservation file: the reservation of snowflake timestamps (I7).

use std::fs::{self, File};
use std::io;

use leaf_id_core::layout::Layout;
use leaf_id_core::reservation::{Stored, Used};
use serde::{Deserialize, Serialize};

use super::protocol::{self, Origin, Place};

const FILE: Place = Place {
    file: "leaf_id_reservation.json",
    temporary: "leaf_id_reservation.json.tmp",
};

#[derive(Serialize, Deserialize)]
struct Document {
    #[serde(flatten)]
    reservation: Reservation,
    #[serde(flatten)]
    origin: Origin,
}

/// A reservation as written. Times in Unix milliseconds.
#[derive(Clone, Serialize, Deserialize)]
pub struct Reservation {
    /// The worker id in force.
    pub worker_id: u16,
    /// The worker id is leased.
    pub leased: bool,
    /// No id carries a later timestamp.
    pub reserved_until_ms: i64,
    /// Epoch of the ids.
    pub epoch_ms: i64,
    /// Layout of the ids.
    pub layout: Layout,
    /// Clean shutdown: `reserved_until_ms` is the exact last timestamp.
    pub clean: bool,
    /// Ids may have been issued. A file without it was written when they were.
    #[serde(default = "issued")]
    pub issued: bool,
    /// Worker ids used before.
    pub used: Vec<Used>,
}

fn issued() -> bool {
    true
}

/// The reservation left by the last run.
pub struct FoundReservation {
    /// The worker id in force.
    pub worker_id: u16,
    /// The worker id was leased.
    pub leased: bool,
    /// Worker ids used before.
    pub used: Vec<Used>,
    /// The reservation, and what is needed to judge its validity.
    pub stored: Stored,
}

/// Reads the reservation; `None` if there is no file.
///
/// # Errors
/// The file cannot be read or is corrupt: see [`protocol::is_damage`].
pub fn read() -> io::Result<Option<FoundReservation>> {
    let Some(Document {
        reservation,
        origin,
    }) = protocol::read(&FILE)?
    else {
        return Ok(None);
    };
    // No setting allows this: nothing in the file can be trusted.
    if reservation.epoch_ms < 0
        || reservation.reserved_until_ms < reservation.epoch_ms
        || reservation.worker_id > Layout::MAX_WORKER_ID
    {
        let what = "a value in it is out of range";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let left_behind = reservation.used.iter().filter(|used| used.retired);
    Ok(Some(FoundReservation {
        worker_id: reservation.worker_id,
        leased: reservation.leased,
        stored: Stored {
            reserved_until_ms: reservation.reserved_until_ms,
            epoch_ms: reservation.epoch_ms,
            layout: reservation.layout,
            issued: reservation.issued,
            system_identifier: origin.system_identifier,
            timeline: origin.timeline,
            original: origin.is_original(&FILE)?,
            clean: reservation.clean,
            left_behind_until_ms: left_behind.map(|used| used.until_ms).max(),
        },
        used: reservation.used,
    }))
}

/// Replaces the file by a copy of itself, which the next run will not take for its own: pg_upgrade
/// puts another cluster's data into this one, whose ids the file does not bound. The epoch, the
/// layout and the worker ids used before still count, since the old cluster is started for
/// pg_upgrade, too.
///
/// # Errors
/// The disk is full or read-only, or another I/O error.
pub fn disown() -> io::Result<()> {
    match fs::copy(FILE.file, FILE.temporary) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        copied => copied?,
    };
    File::open(FILE.temporary)?.sync_all()?;
    fs::rename(FILE.temporary, FILE.file)?;
    protocol::sync_directory()
}

/// Writes a reservation. It may be used once this returns `Ok`. One process at a time: see
/// [`crate::snowflake::keeper`].
///
/// # Errors
/// The disk is full or read-only, or another I/O error. The reservation must not be used, although
/// the next start may find it.
pub fn write(reservation: &Reservation) -> io::Result<()> {
    protocol::write(&FILE, |origin| Document {
        reservation: reservation.clone(),
        origin,
    })
}
