//! The files in the data directory: the reservation of snowflake timestamps (I7), the lease
//! of the worker id, and the segments' remainders while no launcher runs (I6).
//!
//! They are JSON, written to a temporary name, fsynced, renamed, and the directory fsynced.
//! All say which file they are: pg_basebackup and pg_rewind copy them, and a copy says
//! nothing about what the original's server has issued since.

use std::fs::{self, File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use leaf_id_core::lease::{self, Grant, Lease};
use leaf_id_core::reservation::Stored;
use leaf_id_core::snowflake::MAX_WORKER_ID;
use serde::{Deserialize, Serialize};

use crate::pg;
use crate::shmem::{Key, SavedRanges, Tag};

/// A file in the data directory, which every process of the server works in.
struct Place {
    file: &'static str,
    temporary: &'static str,
}

const RESERVATION: Place = Place {
    file: "leaf_id_reservation.json",
    temporary: "leaf_id_reservation.json.tmp",
};
const LEASE: Place = Place {
    file: "leaf_id_lease.json",
    temporary: "leaf_id_lease.json.tmp",
};
const SAVED_FILE: Place = Place {
    file: "leaf_id_saved_ranges.json",
    temporary: "leaf_id_saved_ranges.json.tmp",
};

/// Who wrote a file, and which file it was.
#[derive(Serialize, Deserialize)]
struct Origin {
    system_identifier: u64,
    timeline: u32,
    #[serde(flatten)]
    identity: Identity,
}

/// What tells a file from its copies.
#[derive(Clone, Serialize, Deserialize)]
struct Identity {
    device: u64,
    inode: u64,
    /// In nanoseconds since 1970, where the file system knows it: the inode of a removed
    /// file may be given to the next one.
    created_ns: Option<u64>,
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        let since = |time: SystemTime| time.duration_since(UNIX_EPOCH).ok();
        let created = metadata.created().ok().and_then(since);
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            created_ns: created.and_then(|since| u64::try_from(since.as_nanos()).ok()),
        }
    }

    /// The device counts only where nothing better is known: some file systems are given
    /// another number at each mount.
    fn is(&self, other: &Self) -> bool {
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
    fn is_original(&self, place: &Place) -> io::Result<bool> {
        Ok(self.identity.is(&Identity::of(&fs::metadata(place.file)?)))
    }
}

/// Reads a file; `None` if there is none.
fn read<T: for<'de> Deserialize<'de>>(place: &Place) -> io::Result<Option<T>> {
    match fs::read(place.file) {
        Ok(text) => Ok(Some(serde_json::from_slice(&text)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Puts a file in place of the one before. Durable when it returns `Ok`; otherwise the next
/// start finds the one or the other, whole.
fn write<T: Serialize>(place: &Place, document: impl FnOnce(Origin) -> T) -> io::Result<()> {
    let mut file = File::create(place.temporary)?;
    let document = document(Origin::of(&file)?);
    serde_json::to_writer(&mut file, &document)?;
    file.write_all(b"\n")?;
    file.sync_all()?;
    fs::rename(place.temporary, place.file)?;
    sync_directory()
}

fn sync_directory() -> io::Result<()> {
    match File::open(".")?.sync_all() {
        // EBADF and EINVAL: this file system does not sync directories. PostgreSQL lets
        // that pass too.
        Err(error) if [Some(9), Some(22)].contains(&error.raw_os_error()) => Ok(()),
        result => result,
    }
}

// ---- The reservation ---------------------------------------------------------------

#[derive(Serialize, Deserialize)]
struct ReservationDocument {
    worker_id: u16,
    reserved_until_ms: i64,
    epoch_ms: i64,
    #[serde(default)]
    clean: bool,
    #[serde(default)]
    used: Vec<Used>,
    #[serde(flatten)]
    origin: Origin,
}

/// A worker id that this server has used before. Each is kept once, for ever: 1,024 at most.
#[derive(Clone, Serialize, Deserialize)]
pub struct Used {
    /// The worker id.
    pub worker_id: u16,
    /// Its ids may carry times until here, in Unix milliseconds.
    pub until_ms: i64,
    /// `leaf_snowflake_reset` has gone back behind that time: this worker id must wait for
    /// it, where otherwise the floor of all is enough.
    pub retired: bool,
}

impl Used {
    /// Adds a worker id to those that were used, or raises what is known of it. That it has
    /// issued later ids shows that it has waited.
    pub fn add(list: &mut Vec<Self>, worker_id: u16, until_ms: i64) {
        match list.iter_mut().find(|used| used.worker_id == worker_id) {
            Some(used) if used.until_ms >= until_ms => {}
            Some(used) => {
                used.until_ms = until_ms;
                used.retired = false;
            }
            None => list.push(Self {
                worker_id,
                until_ms,
                retired: false,
            }),
        }
    }
}

/// What is reserved, and by whom. Times in Unix milliseconds.
pub struct Reservation {
    /// The worker id in force.
    pub worker_id: u16,
    /// No id carries a later timestamp.
    pub reserved_until_ms: i64,
    /// The epoch of the ids.
    pub epoch_ms: i64,
    /// It is the exact last timestamp.
    pub clean: bool,
    /// The worker ids of before.
    pub used: Vec<Used>,
}

/// What the last run has left.
pub struct Found {
    /// The worker id that was in force.
    pub worker_id: u16,
    /// The worker ids of before.
    pub used: Vec<Used>,
    /// What it reserved, and how far that is to be trusted.
    pub stored: Stored,
}

/// Reads the reservation; `None` if there is no file.
///
/// # Errors
/// The file cannot be read or is not what was written: see [`is_damage`].
pub fn read_reservation() -> io::Result<Option<Found>> {
    let Some(document) = read::<ReservationDocument>(&RESERVATION)? else {
        return Ok(None);
    };
    // No setting could be this: nothing else of it is to be believed.
    if document.epoch_ms < 0 || document.worker_id > MAX_WORKER_ID {
        let what = "a number in it is out of range";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(Some(Found {
        worker_id: document.worker_id,
        used: document.used,
        stored: Stored {
            reserved_until_ms: document.reserved_until_ms,
            epoch_ms: document.epoch_ms,
            system_identifier: document.origin.system_identifier,
            timeline: document.origin.timeline,
            original: document.origin.is_original(&RESERVATION)?,
            clean: document.clean,
        },
    }))
}

/// Whether an error says that the file itself is not what was written: no later try will
/// read it.
pub fn is_damage(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
    )
}

/// Writes a reservation down. It may be used when this has returned `Ok`. One process at
/// a time: see [`crate::snowflake`].
///
/// # Errors
/// The disk is full or read-only, or another failure of the file system: nothing of it may
/// be used, but the next start may find it.
pub fn write_reservation(reservation: &Reservation) -> io::Result<()> {
    write(&RESERVATION, |origin| ReservationDocument {
        worker_id: reservation.worker_id,
        reserved_until_ms: reservation.reserved_until_ms,
        epoch_ms: reservation.epoch_ms,
        clean: reservation.clean,
        used: reservation.used.clone(),
        origin,
    })
}

// ---- The lease ---------------------------------------------------------------------

#[derive(Serialize, Deserialize)]
struct LeaseDocument {
    registry: String,
    node_name: String,
    epoch_ms: i64,
    token: i64,
    next_token: i64,
    granted: Option<Granted>,
    /// What tells this start of the machine from others, where that is known.
    boot_id: Option<String>,
    /// The server was stopped in good order.
    clean: bool,
    #[serde(flatten)]
    origin: Origin,
}

#[derive(Serialize, Deserialize)]
struct Granted {
    worker_id: u16,
    floor_ms: i64,
    reserved_until_ms: i64,
    until_boot_ms: i64,
}

/// Tells this start of the machine from others; `None` where that cannot be known.
fn boot_id() -> Option<String> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_string()).filter(|text| !text.is_empty())
}

/// Whose lease it is.
#[derive(Clone, PartialEq, Eq)]
pub struct HolderIdentity {
    /// `leaf_id.worker_registry`.
    pub registry: String,
    /// `leaf_id.node_name`.
    pub node_name: String,
    /// `leaf_id.epoch`: the same worker id with another one repeats ids.
    pub epoch_ms: i64,
}

/// Reads the lease of the last run, as far as it counts: an empty one if there is none, if it
/// was copied, or if it is another identity's.
///
/// # Errors
/// The file cannot be read, or is not what was written.
pub fn read_lease(identity: &HolderIdentity) -> io::Result<Lease> {
    let Some(document) = read::<LeaseDocument>(&LEASE)? else {
        return Ok(Lease::default());
    };
    let metadata = fs::metadata(LEASE.file)?;
    let boot_id = boot_id();
    let found = lease::Found {
        original: document.origin.is_original(&LEASE)?
            && document.origin.system_identifier == pg::system_identifier()
            && document.registry == identity.registry
            && document.node_name == identity.node_name
            && document.epoch_ms == identity.epoch_ms,
        // A snapshot of the disk is another device, though its files look the same.
        same_boot: boot_id.is_some()
            && document.boot_id == boot_id
            && document.origin.identity.device == metadata.dev(),
        clean: document.clean,
    };
    let grant = document.granted.map(|granted| Grant {
        worker_id: granted.worker_id,
        floor_ms: granted.floor_ms,
        reserved_until_ms: granted.reserved_until_ms,
        until_boot_ms: granted.until_boot_ms,
    });
    if grant.is_some_and(|grant| grant.worker_id > MAX_WORKER_ID) {
        let what = "a number in it is out of range";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    let lease = Lease {
        grant,
        token: document.token,
        next_token: document.next_token,
    };
    Ok(lease.of_file(found))
}

/// Writes a lease down. It may be used when this has returned `Ok`. By the launcher alone.
///
/// # Errors
/// As [`write_reservation`].
pub fn write_lease(identity: &HolderIdentity, lease: &Lease) -> io::Result<()> {
    write(&LEASE, |origin| LeaseDocument {
        registry: identity.registry.clone(),
        node_name: identity.node_name.clone(),
        epoch_ms: identity.epoch_ms,
        token: lease.token,
        next_token: lease.next_token,
        granted: lease.grant.map(|grant| Granted {
            worker_id: grant.worker_id,
            floor_ms: grant.floor_ms,
            reserved_until_ms: grant.reserved_until_ms,
            until_boot_ms: grant.until_boot_ms,
        }),
        boot_id: boot_id(),
        clean: false,
        origin,
    })
}

/// Says that nothing was issued since the lease was written down last, and that nothing will
/// be before it is written down again.
///
/// # Errors
/// As [`write_reservation`].
pub fn mark_lease_clean() -> io::Result<()> {
    match read::<LeaseDocument>(&LEASE)? {
        Some(document) if document.origin.is_original(&LEASE)? => {
            write(&LEASE, |origin| LeaseDocument {
                clean: true,
                origin,
                ..document
            })
        }
        _ => Ok(()),
    }
}

// ---- Saved ranges --------------------------------------------------------------------------

#[derive(Serialize, Deserialize)]
struct SavedDocument {
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
/// As [`write_reservation`]; the remainders are then a gap.
pub fn save(remainders: &[(Key, SavedRanges)], databases: &[Database]) -> io::Result<()> {
    let tag = |(key, saved): &(Key, SavedRanges)| SavedTag {
        database: key.database,
        relation: key.relation,
        tag: Name::of(&key.tag),
        saved: *saved,
    };
    let tags: Vec<SavedTag> = remainders.iter().map(tag).collect();
    let checksum = checksum(&tags)?;
    write(&SAVED_FILE, |origin| SavedDocument {
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
pub fn take_saved() -> io::Result<Remainders> {
    let document = read::<SavedDocument>(&SAVED_FILE);
    if matches!(document, Ok(None)) {
        return Ok(Remainders::default());
    }
    let original = match &document {
        Ok(Some(document)) => document.origin.is_original(&SAVED_FILE)?,
        _ => false,
    };
    // Gone first, used second: remainders that are given back twice are issued twice. Emptied,
    // because a hard link may keep it.
    if let Ok(file) = File::options()
        .write(true)
        .truncate(true)
        .open(SAVED_FILE.file)
    {
        file.sync_all()?;
    }
    fs::remove_file(SAVED_FILE.file)?;
    sync_directory()?;
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
