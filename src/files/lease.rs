//! The lease file: the lease of the worker id.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;

use leaf_id_core::layout::Layout;
use leaf_id_core::lease::Lease;
use serde::{Deserialize, Serialize};

use super::protocol::{self, Origin, Place};
use crate::pg;

const FILE: Place = Place {
    file: "leaf_id_lease.json",
    temporary: "leaf_id_lease.json.tmp",
};

#[derive(Serialize, Deserialize)]
struct Document {
    #[serde(flatten)]
    holder: HolderIdentity,
    #[serde(flatten)]
    lease: Lease,
    /// Boot id of the machine, if available.
    boot_id: Option<String>,
    #[serde(flatten)]
    origin: Origin,
}

/// Boot id of the machine; `None` if not available.
fn boot_id() -> Option<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_string()).filter(|text| !text.is_empty())
}

/// The holder that a lease file belongs to.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderIdentity {
    /// `leaf_id.worker_registry`.
    pub registry: String,
    /// `leaf_id.node_name`.
    pub node_name: String,
    /// `leaf_id.epoch`; the same worker id with another epoch repeats ids.
    pub epoch_ms: i64,
    /// Layout of ids; the same worker id with another layout repeats ids.
    pub layout: Layout,
}

/// Reads the last run's lease: an empty one if there is no file, if it is a copy or another holder's, and
/// after a reboot, since the file of a copied disk looks like the original.
///
/// # Errors
/// The file cannot be read or is corrupt.
pub fn read(identity: &HolderIdentity) -> io::Result<Lease> {
    let Some(document) = protocol::read::<Document>(&FILE)? else {
        return Ok(Lease::default());
    };
    let boot_id = boot_id();
    let is_own = document.origin.is_original(&FILE)?
        && document.origin.system_identifier == pg::system_identifier()
        && document.holder == *identity
        && boot_id.is_some()
        && document.boot_id == boot_id
        // A snapshot of the disk is another device.
        && document.origin.identity.device == fs::metadata(FILE.file)?.dev();
    if !is_own {
        return Ok(Lease::default());
    }
    let lease = document.lease;
    let max_worker_id = identity.layout.max_worker_id();
    if (lease.grant).is_some_and(|grant| grant.worker_id > max_worker_id) {
        let what = "a number in it is out of range";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(lease)
}

/// Writes a lease. It may be used once this returns `Ok`. Launcher only.
///
/// # Errors
/// As [`protocol::write`].
pub fn write(identity: &HolderIdentity, lease: &Lease) -> io::Result<()> {
    protocol::write(&FILE, |origin| Document {
        holder: identity.clone(),
        lease: *lease,
        boot_id: boot_id(),
        origin,
    })
}

/// Removes the file: the next lease is another server's.
///
/// # Errors
/// I/O error.
pub fn forget() -> io::Result<()> {
    match fs::remove_file(FILE.file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
