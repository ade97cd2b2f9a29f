//! Reading and writing of files: JSON, written to a temporary file, fsynced, renamed, and the
//! directory fsynced.
//!
//! Each file records its own identity: pg_basebackup and pg_rewind copy files, and a copy does not
//! tell what the original's server has issued since.

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::pg;

/// A file in the data directory, the working directory of all server processes.
pub struct Place {
    /// File name.
    pub file: &'static str,
    /// Name of the temporary file.
    pub temporary: &'static str,
}

/// Author and identity of a file.
#[derive(Serialize, Deserialize)]
pub struct Origin {
    /// System identifier of the cluster.
    pub system_identifier: u64,
    /// Timeline at the time of writing.
    pub timeline: u32,
    /// Identity of the file.
    #[serde(flatten)]
    pub identity: Identity,
}

/// Distinguishes a file from its copies.
#[derive(Clone, Serialize, Deserialize)]
pub struct Identity {
    /// Device number.
    pub device: u64,
    inode: u64,
    /// Creation time in nanoseconds since 1970, if the file system has it: the inode of a removed
    /// file may be reused.
    created_ns: Option<u64>,
}

impl Identity {
    /// Identity of the file with this metadata.
    pub fn of(metadata: &Metadata) -> Self {
        let since = |time: SystemTime| time.duration_since(UNIX_EPOCH).ok();
        let created = metadata.created().ok().and_then(since);
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            created_ns: created.and_then(|since| u64::try_from(since.as_nanos()).ok()),
        }
    }

    /// True if both are the same file. The device is compared only if the creation time is unknown:
    /// some file systems get another device number at each mount.
    pub fn is(&self, other: &Self) -> bool {
        let known = self.created_ns.is_some();
        self.inode == other.inode
            && self.created_ns == other.created_ns
            && (known || self.device == other.device)
    }
}

impl Origin {
    /// Origin for a file being written by this server.
    fn of(file: &File) -> io::Result<Self> {
        Ok(Self {
            system_identifier: pg::system_identifier(),
            timeline: pg::timeline(),
            identity: Identity::of(&file.metadata()?),
        })
    }

    /// True if the file at `place` is the original.
    ///
    /// # Errors
    /// The file's metadata cannot be read.
    pub fn is_original(&self, place: &Place) -> io::Result<bool> {
        Ok(self.identity.is(&Identity::of(&fs::metadata(place.file)?)))
    }
}

/// Reads a file; `None` if it does not exist.
///
/// # Errors
/// The file cannot be read or is corrupt: see [`is_damage`].
pub fn read<T: for<'de> Deserialize<'de>>(place: &Place) -> io::Result<Option<T>> {
    match fs::read(place.file) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Replaces a file. Durable if this returns `Ok`; otherwise the next start finds either version,
/// complete.
///
/// # Errors
/// The disk is full or read-only, or another I/O error. The new contents must not be used, although
/// the next start may find them.
pub fn write<T: Serialize>(place: &Place, document: impl FnOnce(Origin) -> T) -> io::Result<()> {
    let mut file = File::create(place.temporary)?;
    let document = document(Origin::of(&file)?);
    serde_json::to_writer(&mut file, &document)?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    fs::rename(place.temporary, place.file)?;
    sync_directory()
}

/// Makes renames and removals in the data directory durable.
///
/// # Errors
/// I/O error.
pub fn sync_directory() -> io::Result<()> {
    match File::open(".")?.sync_all() {
        // This file system does not support fsync of directories. PostgreSQL ignores that, too.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EBADF | libc::EINVAL)) => Ok(()),
        result => result,
    }
}

/// True if the error means that the file is corrupt, so that rereading will not help.
pub fn is_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
    )
}
