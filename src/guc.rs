//! All settings of leaf_id.
//!
//! Settings read by workers are SIGHUP; those fixed at server start are POSTMASTER, which is FATAL to define
//! if the library is not preloaded: then only what sessions read of tags is defined.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, Ordering};
use std::borrow::Cow;

use leaf_id_core::layout::Layout;
use leaf_id_core::node_name::Template;
use leaf_id_core::snowflake::DEFAULT_EPOCH_MS;
use pgrx::{GucContext, GucFlags, GucRegistry, GucSetting, PostgresGucEnum};

use crate::pg::{self, Check, InvalidSetting};

/// Durability required of a claim before its segment is published; at least the local flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PostgresGucEnum)]
pub enum ClaimSynchronousCommit {
    /// Local flush only.
    #[name = c"local"]
    Local,
    /// Also written by the synchronous standbys.
    #[name = c"remote_write"]
    RemoteWrite,
    /// Also flushed by the synchronous standbys.
    #[name = c"on"]
    On,
    /// Also replayed by the synchronous standbys.
    #[name = c"remote_apply"]
    RemoteApply,
}

impl ClaimSynchronousCommit {
    /// The corresponding value of `synchronous_commit`.
    pub fn setting(self) -> &'static CStr {
        match self {
            Self::Local => c"local",
            Self::RemoteWrite => c"remote_write",
            Self::On => c"on",
            Self::RemoteApply => c"remote_apply",
        }
    }
}

/// Grants new tags to `public`. Read by the default of `granted_to`.
static PUBLIC_TAGS: GucSetting<bool> = GucSetting::<bool>::new(false);
/// Slots in shared memory, one per tag in use, all databases together.
pub static MAX_TAGS: GucSetting<i32> = GucSetting::<i32>::new(1024);
/// As text: 0 to the layout's largest worker id, or [`AUTO`]; empty if unset.
static WORKER_ID: GucSetting<Option<std::ffi::CString>> =
    GucSetting::<Option<std::ffi::CString>>::new(Some(c""));
/// `database` or `database/server`; empty if unset.
static WORKER_REGISTRY: GucSetting<Option<std::ffi::CString>> =
    GucSetting::<Option<std::ffi::CString>>::new(Some(c""));
/// See [`Template`].
static NODE_NAME: GucSetting<Option<std::ffi::CString>> =
    GucSetting::<Option<std::ffi::CString>>::new(Some(c"%h:%p"));
/// Unix milliseconds as text, since they exceed the range of an integer setting.
static EPOCH: GucSetting<Option<std::ffi::CString>> =
    GucSetting::<Option<std::ffi::CString>>::new(Some(c"1288834974657"));
/// See [`Layout::parse`].
static SNOWFLAKE_LAYOUT: GucSetting<Option<std::ffi::CString>> =
    GucSetting::<Option<std::ffi::CString>>::new(Some(c"41/10/12"));
/// Milliseconds.
pub static MAX_CLOCK_LEAD: GucSetting<i32> = GucSetting::<i32>::new(10_000);
/// Milliseconds.
pub static MAX_BURST_LEAD: GucSetting<i32> = GucSetting::<i32>::new(0);
/// Milliseconds.
pub static TIMESTAMP_RESERVATION: GucSetting<i32> = GucSetting::<i32>::new(1_000);
/// Milliseconds.
pub static REFILL_TIMEOUT: GucSetting<i32> = GucSetting::<i32>::new(5_000);
/// Allows TRUNCATE to drop all tags of a database.
pub static ALLOW_TRUNCATE: GucSetting<bool> = GucSetting::<bool>::new(false);
/// Milliseconds.
pub static ALLOCATOR_IDLE_TIMEOUT: GucSetting<i32> = GucSetting::<i32>::new(10_000);
/// Milliseconds.
pub static CLAIM_TIMEOUT: GucSetting<i32> = GucSetting::<i32>::new(10_000);
/// Number of claims of a tag that a failover may lose without ids being issued again.
pub static FAILOVER_SKIP: GucSetting<i32> = GucSetting::<i32>::new(2);
/// See [`ClaimSynchronousCommit`].
pub static CLAIM_SYNCHRONOUS_COMMIT: GucSetting<ClaimSynchronousCommit> =
    GucSetting::<ClaimSynchronousCommit>::new(ClaimSynchronousCommit::On);

/// Value of `leaf_id.worker_id`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkerId {
    /// Empty.
    Unset,
    /// A number.
    Fixed(u16),
    /// Leased from the worker registry.
    Auto,
}

/// `leaf_id.worker_id` for a leased worker id.
const AUTO: &CStr = c"auto";
/// The `leaf_id.worker_id` that this process has checked last is not valid: that before stays in force.
/// Other processes than the launcher also check what ALTER SYSTEM is to set.
static WORKER_ID_INVALID: AtomicBool = AtomicBool::new(false);
/// It came from the configuration file, and goes with its line.
static WORKER_ID_FROM_FILE: AtomicBool = AtomicBool::new(false);
/// Max length of the name of a database, a foreign server or a node, in bytes.
pub const MAX_NAME: usize = 63;

/// `leaf_id.worker_id`. Only the launcher acts on it. Backends use the worker id in the shared
/// word, since they process a reload at different times.
pub fn worker_id() -> WorkerId {
    WORKER_ID
        .get()
        .and_then(|text| parse_worker_id(&text))
        .unwrap_or(WorkerId::Unset)
}

/// True if the configuration that the launcher, the caller, has read last has a `leaf_id.worker_id`
/// that is not valid.
pub fn is_worker_id_invalid() -> bool {
    WORKER_ID_INVALID.load(Ordering::Relaxed)
}

/// Reloads the configuration after SIGHUP; called by the launcher.
pub fn reload_if_asked() {
    if pg::reload_is_asked() {
        reload(pg::reload_if_asked);
    }
}

/// Called by the launcher when it starts: what it has inherited from the postmaster is from the last time
/// that there was a worker id to check.
pub fn check_worker_id_again() {
    if is_worker_id_invalid() {
        reload(pg::reload);
    }
}

/// Reloads the configuration. A worker id in the file is checked even if it is the one in force; nothing is
/// checked where the file has none any more, or cannot be read.
fn reload(reload: impl FnOnce() -> bool) {
    let from_file = WORKER_ID_FROM_FILE.load(Ordering::Relaxed);
    let before = WORKER_ID_INVALID.fetch_and(!from_file, Ordering::Relaxed);
    if !reload() {
        WORKER_ID_INVALID.store(before, Ordering::Relaxed);
    }
}

/// DETAIL for a `leaf_id.worker_id` that is not valid.
pub fn worker_id_allowed() -> String {
    let layout = layout();
    let max = layout.max_worker_id();
    format!(
        "A worker id is a number from 0 to {max} (the layout of ids is {layout}), \"auto\", or empty for none."
    )
}

/// Location of a worker registry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registry {
    /// Database of this server that contains the registry or the foreign server.
    pub database: String,
    /// Foreign server, if the registry is on another server.
    pub server: Option<String>,
}

impl Registry {
    fn parse(text: &str) -> Option<Self> {
        let (database, server) = match text.rsplit_once('/') {
            Some((database, server)) => (database, Some(server)),
            None => (text, None),
        };
        let valid = |name: &str| (1..=MAX_NAME).contains(&name.len());
        (valid(database) && server.is_none_or(valid)).then(|| Self {
            database: database.into(),
            server: server.map(Into::into),
        })
    }

    /// True if the registry is on this server.
    pub fn is_here(&self) -> bool {
        self.server.is_none()
    }

    /// The registry as written in the setting.
    pub fn name(&self) -> String {
        match &self.server {
            Some(server) => format!("{}/{server}", self.database),
            None => self.database.clone(),
        }
    }
}

/// The registry that worker ids are leased from, if set.
pub fn worker_registry() -> Option<Registry> {
    Registry::parse(WORKER_REGISTRY.get()?.to_str().ok()?)
}

/// Name that distinguishes this server from others with the same system identifier, with escapes
/// expanded.
pub fn node_name() -> String {
    NODE_NAME
        .get()
        .and_then(|text| Template::parse(text.to_str().ok()?))
        .map_or_else(String::new, |name| name.expand(pg::host_name(), pg::port()))
}

/// The epoch of snowflake ids, in Unix milliseconds.
pub fn epoch_ms() -> i64 {
    EPOCH
        .get()
        .and_then(|text| parse_epoch(&text))
        .unwrap_or(DEFAULT_EPOCH_MS)
}

/// The layout of snowflake ids.
pub fn layout() -> Layout {
    SNOWFLAKE_LAYOUT
        .get()
        .and_then(|text| parse_layout(&text))
        .unwrap_or(Layout::DEFAULT)
}

fn parse_layout(text: &CStr) -> Option<Layout> {
    Layout::parse(text.to_str().ok()?)
}

fn parse_worker_id(text: &CStr) -> Option<WorkerId> {
    if text.is_empty() {
        return Some(WorkerId::Unset);
    }
    if text == AUTO {
        return Some(WorkerId::Auto);
    }
    let number = text.to_str().ok()?.parse().ok();
    number
        .filter(|id| *id <= layout().max_worker_id())
        .map(WorkerId::Fixed)
}

fn parse_epoch(text: &CStr) -> Option<i64> {
    let ms = text.to_str().ok()?.parse().ok()?;
    (ms >= 0).then_some(ms)
}

/// A setting that is a text, and is checked.
struct TextSetting {
    name: &'static CStr,
    short: &'static CStr,
    long: &'static CStr,
    value: &'static GucSetting<Option<std::ffi::CString>>,
    /// Fixed at server start.
    is_fixed: bool,
    /// True if a value is valid. The flag says whether it comes from the configuration file.
    allows: fn(&CStr, bool) -> bool,
    /// DETAIL of the error for a value that is not allowed.
    detail: fn() -> Cow<'static, str>,
}

/// All of them. The layout stands before the worker id, which is checked against it.
static TEXTS: [TextSetting; 5] = [
    TextSetting {
        name: c"leaf_id.snowflake_layout",
        short: c"Sets how many bits of a snowflake id are for milliseconds, worker id and sequence.",
        long: c"41/6/6 gives ids that are exact in JavaScript. Ids of one layout may equal those of another.",
        value: &SNOWFLAKE_LAYOUT,
        is_fixed: true,
        allows: |value, _| parse_layout(value).is_some(),
        detail: || Layout::ALLOWED.into(),
    },
    TextSetting {
        name: c"leaf_id.worker_id",
        short: c"Sets the worker id in this server's snowflake ids.",
        long: c"A number, a different one on every server; or \"auto\", to lease one from the worker registry. Empty: no snowflake ids are issued.",
        value: &WORKER_ID,
        is_fixed: false,
        allows: |value, from_file| {
            let is_valid = parse_worker_id(value).is_some();
            WORKER_ID_INVALID.store(!is_valid, Ordering::Relaxed);
            WORKER_ID_FROM_FILE.store(from_file, Ordering::Relaxed);
            is_valid
        },
        detail: || worker_id_allowed().into(),
    },
    TextSetting {
        name: c"leaf_id.epoch",
        short: c"Sets the moment from which snowflake ids count milliseconds.",
        long: c"In milliseconds since 1970-01-01 00:00:00 UTC. It must never be moved later.",
        value: &EPOCH,
        is_fixed: true,
        // No id has an earlier timestamp. Checked only when set: a clock set back later does not
        // invalidate the epoch. The default is in the past, whatever a clock says that is not set
        // yet; the server has to start.
        allows: |value, _| {
            parse_epoch(value).is_some_and(|ms| ms == DEFAULT_EPOCH_MS || ms <= pg::now_ms())
        },
        detail: || {
            "An epoch is a moment in the past, in milliseconds since 1970-01-01 00:00:00 UTC.".into()
        },
    },
    TextSetting {
        name: c"leaf_id.worker_registry",
        short: c"Sets where a worker id is leased from.",
        long: c"A database of this server, or \"database/server\" with a foreign server that is defined in that database. Used where leaf_id.worker_id is \"auto\".",
        value: &WORKER_REGISTRY,
        is_fixed: false,
        allows: |value, _| {
            value.is_empty() || value.to_str().is_ok_and(|t| Registry::parse(t).is_some())
        },
        detail: || {
            "A worker registry is a database of this server, or \"database/server\" with a foreign server of that database; each at most 63 bytes long.".into()
        },
    },
    TextSetting {
        name: c"leaf_id.node_name",
        short: c"Sets the name by which the worker registry tells this server from its standbys and copies.",
        long: c"A different one on every server of the same system identifier. \"%h\" is the host name, \"%p\" the port.",
        value: &NODE_NAME,
        is_fixed: false,
        allows: |value, _| {
            value
                .to_str()
                .is_ok_and(|text| Template::parse(text).is_some())
        },
        detail: || {
            "A node name has at most 63 bytes, none of them a control character. In it \"%h\" is the host name, \"%p\" the port, and \"%%\" a percent sign.".into()
        },
    },
];

/// The check of a text by its number in the list, since PostgreSQL does not pass which it is.
struct TextCheck<const N: usize>;

impl<const N: usize> Check for TextCheck<N> {
    fn detail() -> Cow<'static, str> {
        (TEXTS[N].detail)()
    }

    fn allows(value: &CStr, from_file: bool) -> bool {
        (TEXTS[N].allows)(value, from_file)
    }
}

fn define_text<const N: usize>() -> Result<(), InvalidSetting> {
    let text = &TEXTS[N];
    let context = if text.is_fixed {
        GucContext::Postmaster
    } else {
        GucContext::Sighup
    };
    pg::define_checked_string::<TextCheck<N>>(text.name, text.short, text.long, text.value, context)
}

fn int(
    name: &'static CStr,
    short: &'static CStr,
    long: &'static CStr,
    setting: &'static GucSetting<i32>,
    (min, max): (c_int, c_int),
    context: GucContext,
    flags: GucFlags,
) {
    GucRegistry::define_int_guc(name, short, long, setting, min, max, context, flags);
}

/// Defines what is also read where the library is not preloaded.
pub fn define_reloadable() {
    define_segments();
    define_claims();
}

/// Defines the other settings and reserves the prefix, so that a misspelled setting is an error.
///
/// # Errors
/// A setting fixed at server start is invalid. Falling back to the default epoch or layout could
/// issue ids that cannot be corrected later.
pub fn define() -> Result<(), InvalidSetting> {
    int(
        c"leaf_id.max_tags",
        c"Sets how many tags can be cached in shared memory.",
        c"All databases together. When slots run out, the database that holds the most gives up one that it has not used for long.",
        &MAX_TAGS,
        (1, 1_000_000),
        GucContext::Postmaster,
        GucFlags::default(),
    );
    define_text::<0>()?;
    define_text::<1>()?;
    define_text::<2>()?;
    define_text::<3>()?;
    define_text::<4>()?;
    define_snowflake();
    pg::reserve_prefix(c"leaf_id");
    Ok(())
}

/// Settings for tags and their segments.
fn define_segments() {
    GucRegistry::define_bool_guc(
        c"leaf_id.public_tags",
        c"Lets every role issue the ids of new tags.",
        c"Otherwise the role that creates a tag, until others are granted it.",
        &PUBLIC_TAGS,
        GucContext::Suset,
        GucFlags::default(),
    );
    int(
        c"leaf_id.refill_timeout",
        c"Sets how long a call waits for ids before it fails.",
        c"",
        &REFILL_TIMEOUT,
        (1, 3_600_000),
        GucContext::Userset,
        GucFlags::UNIT_MS,
    );
    int(
        c"leaf_id.allocator_idle_timeout",
        c"Sets how long an allocator without work stays connected to its database.",
        c"",
        &ALLOCATOR_IDLE_TIMEOUT,
        (100, 3_600_000),
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    GucRegistry::define_bool_guc(
        c"leaf_id.allow_truncate",
        c"Allows TRUNCATE of the table of tags, which drops all tags of the database.",
        c"Off protects the tags from tools that truncate every table. To allow one TRUNCATE, use SET LOCAL in its transaction.",
        &ALLOW_TRUNCATE,
        GucContext::Userset,
        GucFlags::default(),
    );
}

/// Settings for claims, here and on other servers.
fn define_claims() {
    int(
        c"leaf_id.claim_timeout",
        c"Sets how long a claim on another server may take before it is given up.",
        c"What it has claimed there is a gap then. Waiting sessions fail by leaf_id.refill_timeout, whatever this is.",
        &CLAIM_TIMEOUT,
        (100, 3_600_000),
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    int(
        c"leaf_id.failover_skip",
        c"Sets how many claims of a tag a failover may lose without an id being issued again.",
        c"The first claim on a new timeline leaves out what so many claims can have taken. 0 where claims wait for a synchronous standby.",
        &FAILOVER_SKIP,
        (0, 1000),
        GucContext::Sighup,
        GucFlags::default(),
    );
    GucRegistry::define_enum_guc(
        c"leaf_id.claim_synchronous_commit",
        c"Sets what a claim of ids waits for before the ids are used.",
        c"As synchronous_commit, whatever that is for the server or the role; never weaker than the local flush.",
        &CLAIM_SYNCHRONOUS_COMMIT,
        GucContext::Sighup,
        GucFlags::default(),
    );
}

/// Settings for snowflake ids.
fn define_snowflake() {
    int(
        c"leaf_id.max_clock_lead",
        c"Sets how far the times in snowflake ids may be ahead of the clock.",
        c"After a crash, a promotion, or where the clock was set back, ids go on above all earlier ones at once as long as that is no further ahead. The same on all servers that share a worker id: raise it on the standbys first, lower it there last.",
        &MAX_CLOCK_LEAD,
        (0, 3_600_000),
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    int(
        c"leaf_id.max_burst_lead",
        c"Sets how far a full millisecond may borrow from the next ones instead of waiting for them.",
        c"The times in snowflake ids are ahead of the clock by as much then. At most leaf_id.max_clock_lead less leaf_id.timestamp_reservation.",
        &MAX_BURST_LEAD,
        (0, 3_600_000),
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
    int(
        c"leaf_id.timestamp_reservation",
        c"Sets how far ahead of use snowflake timestamps are written to disk.",
        c"After a crash the times in snowflake ids are ahead of the clock by up to this much, after several in a row by up to leaf_id.max_clock_lead. It is also how far the clocks of servers that share a worker id may differ, and how long the first id after a promotion waits.",
        &TIMESTAMP_RESERVATION,
        (100, 60_000),
        GucContext::Sighup,
        GucFlags::UNIT_MS,
    );
}
