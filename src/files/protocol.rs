//! How every file is written and read: JSON, written to a temporary name, fsynced, renamed,
//! and the directory fsynced.
//!
//! All say which file they are: pg_basebackup and pg_rewind copy them, and a copy says
//! nothing about what the original's server has issued since.

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::pg;

/// A file in the data directory, which every process of the server works in.
pub struct Place {
    /// Its name.
    pub file: &'static str,
    /// What it is called until it is complete.
    pub temporary: &'static str,
}

/// Who wrote a file, and which file it was.
#[derive(Serialize, Deserialize)]
pub struct Origin {
    /// Of its cluster.
    pub system_identifier: u64,
    /// The timeline that it was written on.
    pub timeline: u32,
    /// The file itself.
    #[serde(flatten)]
    pub identity: Identity,
}

/// What tells a file from its copies.
#[derive(Clone, Serialize, Deserialize)]
pub struct Identity {
    /// The device that it lies on.
    pub device: u64,
    inode: u64,
    /// In nanoseconds since 1970, where the file system knows it: the inode of a removed
    /// file may be given to the next one.
    created_ns: Option<u64>,
}

impl Identity {
    /// That of a file that lies there.
    pub fn of(metadata: &Metadata) -> Self {
        let since = |time: SystemTime| time.duration_since(UNIX_EPOCH).ok();
        let created = metadata.created().ok().and_then(since);
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            created_ns: created.and_then(|since| u64::try_from(since.as_nanos()).ok()),
        }
    }

    /// Whether both are the same file.
    /// The device counts only where nothing better is known: some file systems are given
    /// another number at each mount.
    pub fn is(&self, other: &Self) -> bool {
        let known = self.created_ns.is_some();
        self.inode == other.inode
            && self.created_ns == other.created_ns
            && (known || self.device == other.device)
    }
}

impl Origin {
    /// What a file that this server writes now says.
    fn of(file: &File) -> io::Result<Self> {
        Ok(Self {
            system_identifier: pg::system_identifier(),
            timeline: pg::timeline(),
            identity: Identity::of(&file.metadata()?),
        })
    }

    /// Whether the file that says this is the one that was written.
    ///
    /// # Errors
    /// The file cannot be looked at.
    pub fn is_original(&self, place: &Place) -> io::Result<bool> {
        Ok(self.identity.is(&Identity::of(&fs::metadata(place.file)?)))
    }
}

/// Reads a file; `None` if there is none.
///
/// # Errors
/// The file cannot be read or is not what was written: see [`is_damage`].
pub fn read<T: for<'de> Deserialize<'de>>(place: &Place) -> io::Result<Option<T>> {
    match fs::read(place.file) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Puts a file in place of the one before. Durable when it returns `Ok`; otherwise the next
/// start finds the one or the other, whole.
///
/// # Errors
/// The disk is full or read-only, or another failure of the file system: nothing of it may
/// be used, but the next start may find it.
pub fn write<T: Serialize>(place: &Place, document: impl FnOnce(Origin) -> T) -> io::Result<()> {
    let mut file = File::create(place.temporary)?;
    let document = document(Origin::of(&file)?);
    serde_json::to_writer(&mut file, &document)?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    fs::rename(place.temporary, place.file)?;
    sync_directory()
}

/// Makes what was renamed or removed here durable.
///
/// # Errors
/// A failure of the file system.
pub fn sync_directory() -> io::Result<()> {
    match File::open(".")?.sync_all() {
        // This file system does not sync directories. PostgreSQL lets that pass too.
        Err(error) if matches!(error.raw_os_error(), Some(libc::EBADF | libc::EINVAL)) => Ok(()),
        result => result,
    }
}

/// Whether an error says that the file itself is not what was written: no later try will
/// read it.
pub fn is_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
    )
}
