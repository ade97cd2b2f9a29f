//! The reservation file: up to when snowflake timestamps may have been issued (I7).
//!
//! `leaf_id_reservation.json` in the data directory. Written to a temporary name, fsynced,
//! renamed, and the directory fsynced, before the reservation is used. It holds its own
//! device and inode: pg_basebackup and pg_rewind copy it, and a copy says nothing about
//! what the original's server has issued since.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use leaf_id_core::reservation::Stored;
use serde::{Deserialize, Serialize};

/// Relative to the data directory, which every process of the server works in.
const FILE: &str = "leaf_id_reservation.json";
const TEMPORARY: &str = "leaf_id_reservation.json.tmp";

#[derive(Serialize, Deserialize)]
struct Document {
    worker_id: u16,
    reserved_until_ms: i64,
    epoch_ms: i64,
    system_identifier: u64,
    timeline: u32,
    device: u64,
    inode: u64,
}

/// What is reserved, and by whom. Times in Unix milliseconds.
#[derive(Clone, Copy)]
pub struct Reservation {
    /// The worker id in force.
    pub worker_id: u16,
    /// No id carries a later timestamp.
    pub reserved_until_ms: i64,
    /// The epoch of the ids.
    pub epoch_ms: i64,
    /// The database cluster.
    pub system_identifier: u64,
    /// The WAL timeline.
    pub timeline: u32,
}

/// What the last run has left; `None` if there is no file.
///
/// # Errors
/// The file cannot be read or is not what was written.
pub fn read() -> io::Result<Option<Stored>> {
    let text = match fs::read(FILE) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let document: Document = serde_json::from_slice(&text)?;
    let file = fs::metadata(FILE)?;
    Ok(Some(Stored {
        reserved_until_ms: document.reserved_until_ms,
        epoch_ms: document.epoch_ms,
        system_identifier: document.system_identifier,
        timeline: document.timeline,
        original: (document.device, document.inode) == (file.dev(), file.ino()),
    }))
}

/// Writes a reservation down. It may be used when this has returned `Ok`.
///
/// # Errors
/// The disk is full or read-only, or another failure of the file system; then what was
/// there before still stands.
pub fn write(reservation: Reservation) -> io::Result<()> {
    let mut file = File::create(TEMPORARY)?;
    let metadata = file.metadata()?;
    let document = Document {
        worker_id: reservation.worker_id,
        reserved_until_ms: reservation.reserved_until_ms,
        epoch_ms: reservation.epoch_ms,
        system_identifier: reservation.system_identifier,
        timeline: reservation.timeline,
        device: metadata.dev(),
        inode: metadata.ino(),
    };
    serde_json::to_writer(&mut file, &document)?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    fs::rename(TEMPORARY, FILE)?;
    File::open(Path::new("."))?.sync_all()
}
