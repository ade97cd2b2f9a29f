//! What is left of the segments while no launcher runs (I6).

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

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
    /// Of `tags` as they are written: ids must not be made of what a disk has garbled.
    checksum: u64,
    tags: Vec<SavedTag>,
    /// The databases of the tags; those that are not among them were made while they were
    /// looked for.
    databases: Vec<Database>,
}

/// A database, and what tells it from another one that has its oid later: a copy of the same
/// template has the same rows, with the same `incarnation`.
#[derive(Clone, Serialize, Deserialize)]
pub struct Database {
    oid: u32,
    #[serde(flatten)]
    identity: Identity,
    /// In nanoseconds since 1970: nobody writes to that file after the database is made.
    modified_ns: i64,
}

impl Database {
    /// The one that has this oid now; `None` if that cannot be known.
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

    /// Its oid.
    pub fn oid(&self) -> u32 {
        self.oid
    }

    /// Whether it is there still.
    pub fn is_there(&self) -> bool {
        Self::find(self.oid).is_some_and(|now| {
            now.identity.is(&self.identity) && now.modified_ns == self.modified_ns
        })
    }
}

/// Where a database may lie: in the default tablespace, or in any other.
fn directories_of(oid: u32) -> Vec<PathBuf> {
    let children = |directory: &Path| {
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let oid = oid.to_string();
    let mut directories = vec![Path::new("base").join(&oid)];
    for tablespace in children(Path::new("pg_tblspc")) {
        // One for each version that uses it.
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
    tag: Name,
    #[serde(flatten)]
    saved: SavedRanges,
}

/// A tag as people read it, unless its bytes are no UTF-8.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Name {
    Text(String),
    Bytes(Vec<u8>),
}

impl Name {
    fn of(tag: &Tag) -> Self {
        let bytes = tag.bytes().to_vec();
        String::from_utf8(bytes).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Text)
    }

    fn tag(&self) -> Option<Tag> {
        match self {
            Self::Text(text) => Tag::new(text.as_bytes()),
            Self::Bytes(bytes) => Tag::new(bytes),
        }
    }
}

/// Writes down what was taken out of shared memory, of databases that were looked for before
/// that.
///
/// # Errors
/// As [`protocol::write`]; the remainders are then a gap.
pub fn save(remainders: &[(Key, SavedRanges)], databases: &[Database]) -> io::Result<()> {
    let tag = |(key, saved): &(Key, SavedRanges)| SavedTag {
        database: key.database,
        relation: key.relation,
        tag: Name::of(&key.tag),
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

/// What the last launcher has saved.
#[derive(Default)]
pub struct Remainders {
    /// Of each tag.
    pub tags: Vec<(Key, SavedRanges)>,
    /// The databases that they are of. If one of them is not there any more, or is missing
    /// here, the remainders are of a database that had its oid before.
    pub databases: Vec<Database>,
}

/// Takes what the last launcher has saved: when this returns it, no later start can find
/// it any more. Empty if there is no file.
///
/// # Errors
/// The file cannot be read, is not what was written, was written on another timeline or
/// in another place, or cannot be removed for good: nothing of it may be used then.
pub fn take() -> io::Result<Remainders> {
    let document = protocol::read::<Document>(&FILE);
    if matches!(document, Ok(None)) {
        return Ok(Remainders::default());
    }
    let original = match &document {
        Ok(Some(document)) => document.origin.is_original(&FILE)?,
        _ => false,
    };
    // Gone first, used second: remainders that are given back twice are issued twice. Emptied,
    // because a hard link may keep it.
    if let Ok(file) = File::options().write(true).truncate(true).open(FILE.file) {
        file.sync_all()?;
    }
    fs::remove_file(FILE.file)?;
    protocol::sync_directory()?;
    let Some(document) = document? else {
        return Ok(Remainders::default());
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
            tag: saved.tag.tag()?,
        };
        Some((key, saved.saved))
    });
    Ok(Remainders {
        tags: remainders.collect(),
        databases: document.databases,
    })
}
