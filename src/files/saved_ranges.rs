//! The file of saved ranges: remainders of segments while no launcher runs (I6).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use leaf_id_core::message;
use serde::{Deserialize, Serialize};

use super::protocol::{self, Identity, Origin, Place};
use crate::pg;
use crate::shmem::{Key, SavedRanges, Tag};

const FILE: Place = Place {
    file: "leaf_id_saved_ranges.json",
    temporary: "leaf_id_saved_ranges.json.tmp",
};

#[derive(Serialize, Deserialize)]
struct Document {
    #[serde(flatten)]
    origin: Origin,
    /// Checksum of `tags`, to never issue ids from corrupted data.
    checksum: u64,
    tags: Vec<SavedTag>,
    /// Databases of the tags. A database that is missing was created during the save.
    databases: Vec<Database>,
}

/// A database, distinguished from a later one with the same oid: a copy of the same template has
/// the same rows with the same `incarnation`.
#[derive(Clone, Serialize, Deserialize)]
pub struct Database {
    oid: u32,
    #[serde(flatten)]
    identity: Identity,
    /// mtime of `PG_VERSION` in nanoseconds since 1970; never written after CREATE DATABASE.
    modified_ns: i64,
}

impl Database {
    /// The current database with this oid; `None` if it cannot be determined.
    pub fn find(oid: u32) -> Option<Self> {
        let metadata = directories_of(oid)
            .into_iter()
            .find_map(|directory| fs::metadata(directory.join("PG_VERSION")).ok())?;
        Some(Self {
            oid,
            identity: Identity::of(&metadata),
            modified_ns: metadata
                .mtime()
                .saturating_mul(1_000_000_000)
                .saturating_add(metadata.mtime_nsec()),
        })
    }

    /// Oid of the database.
    pub fn oid(&self) -> u32 {
        self.oid
    }

    /// True if the database still exists.
    pub fn is_there(&self) -> bool {
        Self::find(self.oid).is_some_and(|now| {
            now.identity.is(&self.identity) && now.modified_ns == self.modified_ns
        })
    }
}

/// Possible directories of a database: in the default tablespace and in all others.
fn directories_of(oid: u32) -> Vec<PathBuf> {
    let children = |directory: &Path| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let oid = oid.to_string();
    let mut directories = vec![Path::new("base").join(&oid)];
    for tablespace in children(Path::new("pg_tblspc")) {
        // One directory per server version that uses the tablespace.
        let versions = children(&tablespace).into_iter();
        directories.extend(versions.map(|version| version.join(&oid)));
    }
    directories
}

fn checksum(tags: &[SavedTag]) -> io::Result<u64> {
    Ok(pg::hash(&serde_json::to_vec(tags)?))
}

#[derive(Serialize, Deserialize)]
struct SavedTag {
    database: u32,
    relation: u32,
    #[serde(with = "message")]
    tag: Vec<u8>,
    #[serde(flatten)]
    saved: SavedRanges,
}

/// Writes the ranges taken out of shared memory. `databases` was determined before that.
///
/// # Errors
/// As [`protocol::write`]; the ranges become a gap.
pub fn save(remainders: &[(Key, SavedRanges)], databases: &[Database]) -> io::Result<()> {
    let tag = |(key, saved): &(Key, SavedRanges)| SavedTag {
        database: key.database,
        relation: key.relation,
        tag: key.tag.bytes().to_vec(),
        saved: *saved,
    };
    let tags: Vec<SavedTag> = remainders.iter().map(tag).collect();
    let checksum = checksum(&tags)?;
    protocol::write(&FILE, |origin| Document {
        origin,
        checksum,
        tags,
        databases: databases.to_vec(),
    })
}

/// Ranges saved by the last launcher.
#[derive(Default)]
pub struct SavedRemainders {
    /// Ranges per tag.
    pub tags: Vec<(Key, SavedRanges)>,
    /// Databases of the tags. If one no longer exists, or is missing here, its ranges belong to an
    /// earlier database with the same oid.
    pub databases: Vec<Database>,
}

/// Reads and removes the file. Once this returns, no later start can find it. Empty if there is no
/// file.
///
/// # Errors
/// The file cannot be read, is corrupt, was written on another timeline or at another place, or
/// cannot be removed durably. None of its ranges may be used.
pub fn take() -> io::Result<SavedRemainders> {
    let document = protocol::read::<Document>(&FILE);
    if matches!(document, Ok(None)) {
        return Ok(SavedRemainders::default());
    }
    let original = match &document {
        Ok(Some(document)) => document.origin.is_original(&FILE)?,
        _ => false,
    };
    // Removed first, used second: ranges restored twice would be issued twice. Truncated, too,
    // since a hard link may keep the file.
    if let Ok(file) = File::options().write(true).truncate(true).open(FILE.file) {
        file.sync_all()?;
    }
    fs::remove_file(FILE.file)?;
    protocol::sync_directory()?;
    let Some(document) = document? else {
        return Ok(SavedRemainders::default());
    };
    if document.checksum != checksum(&document.tags)? {
        return Err(io::Error::other("its checksum is wrong"));
    }
    let ours = document.origin.system_identifier == pg::system_identifier()
        && document.origin.timeline == pg::timeline();
    if !original || !ours {
        return Err(io::Error::other("it was copied, or left before a failover"));
    }
    let remainders = document.tags.iter().filter_map(|saved| {
        let key = Key {
            database: saved.database,
            relation: saved.relation,
            tag: Tag::new(&saved.tag)?,
        };
        Some((key, saved.saved))
    });
    Ok(SavedRemainders {
        tags: remainders.collect(),
        databases: document.databases,
    })
}
