//! A slot: the shared state of one tag. `area` states which lock protects which field.

use core::cell::UnsafeCell;
use core::hash::{Hash, Hasher};

use leaf_id_core::primitive::{AtomicI32, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};
use leaf_id_core::segment::{DoubleBuffer, Remainder, Remainders};
use leaf_id_core::step::Pace;
use pgrx::pg_sys;
use serde::{Deserialize, Serialize};

use super::text::Text;
use crate::error::RefillError;
use crate::pg;

/// Max length of a tag, in bytes (Leaf: varchar(128)).
pub const MAX_TAG: usize = 128;

/// A tag in the encoding of its database.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Tag {
    len: u8,
    bytes: [u8; MAX_TAG],
}

impl Tag {
    /// Empty; equal to no valid tag.
    pub const EMPTY: Self = Self {
        len: 0,
        bytes: [0; MAX_TAG],
    };

    /// `None` if `bytes` is empty or longer than [`MAX_TAG`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let len = u8::try_from(bytes.len()).ok()?;
        let mut tag = Self { len, ..Self::EMPTY };
        tag.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        (len > 0).then_some(tag)
    }

    /// The tag's bytes.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// The tag for messages, which pgrx passes as UTF-8. Invalid bytes are escaped as in an `E''`
    /// string.
    pub fn name(&self) -> String {
        let mut name = String::with_capacity(usize::from(self.len));
        for chunk in self.bytes().utf8_chunks() {
            name.push_str(chunk.valid());
            name.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
        }
        name
    }
}

impl Hash for Tag {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes().hash(state);
    }
}

/// Identity of a slot's tag. `relation` is the oid of `leaf_alloc`: a re-created extension has
/// other keys.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Key {
    /// Oid of the database.
    pub database: u32,
    /// Oid of its `leaf_alloc`.
    pub relation: u32,
    /// The tag.
    pub tag: Tag,
}

impl Key {
    pub(super) const FREE: Self = Self {
        database: 0,
        relation: 0,
        tag: Tag::EMPTY,
    };

    /// The key of a tag in a table of this database.
    pub fn here(relation: u32, tag: Tag) -> Self {
        Self {
            database: pg::database(),
            relation,
            tag,
        }
    }

    pub(super) fn is_free(&self) -> bool {
        self.database == 0
    }
}

/// Shared state of one tag. The double buffers are in an array of their own, one cache line each: a
/// session that uses many tags touches little else.
#[repr(C)]
pub struct Slot {
    /// The double buffer; sessions take from it without a lock.
    pub buffer: &'static DoubleBuffer,

    // Plain atomics.
    /// The row's `max_step` as last seen, in ids; for a sourced tag, capped by the source server's.
    pub max_step: AtomicU32,
    /// Starved: a session has waited since the last publication.
    pub starved: AtomicU8,
    /// An [`SlotAccess`]. Written under the slot's lock.
    access: AtomicU8,
    /// The last refill failed because of the tag itself: the source server's answer could not be
    /// used, or the server has no ids for it. Written under the slot's lock.
    pub unusable: AtomicU8,
    /// Pid of the process whose open transaction has edited the tag's row; 0 for none. For its
    /// parallel workers, which do not have the list of edits.
    pub edited_by: AtomicI32,
    /// Next slot on a queue's list, a link.
    pub(super) next_posted: AtomicU32,
    /// Number of calls that had to wait.
    pub waits: AtomicU64,
    /// Total wait time, in microseconds.
    pub waited_us: AtomicU64,
    /// Time of the first request since the last segment arrived, in microseconds since 2000; 0 if
    /// none is open.
    pub wanted_at: AtomicI64,

    // Written under the directory lock, exclusively.
    pub(super) key: UnsafeCell<Key>,
    /// Next slot in the hash chain or in the free list, a link.
    pub(super) next: AtomicU32,
    /// Eviction clock when an eviction last found the slot used, and the buffer's mark then.
    pub(super) used_at: AtomicU32,
    pub(super) seen_mark: AtomicU32,
    /// Neighbors in the database's ring, links.
    pub(super) ring_next: AtomicU32,
    pub(super) ring_before: AtomicU32,

    // Under the slot's lock.
    pub(super) state: UnsafeCell<SlotState>,

    /// `max_step` of the tag's source server; 0 if the tag has none. A plain atomic, placed here to
    /// fill padding.
    pub server_max_step: AtomicU32,
    pub(super) waiters: UnsafeCell<pg_sys::ConditionVariable>,
}

/// Memory per tag: a slot, a double buffer, and at most two hash buckets.
const _: () =
    assert!(size_of::<Slot>() + size_of::<DoubleBuffer>() + 2 * size_of::<AtomicU32>() <= 512);

impl Slot {
    /// Wakes the calls that wait for a segment of this slot.
    pub fn wake(&self) {
        // SAFETY: initialized before the slot is; a condition variable has its own lock.
        unsafe { pg_sys::ConditionVariableBroadcast(self.waiters.get()) };
    }

    /// The access in a version of the buffer that the caller has read before this call.
    pub fn access(&self) -> SlotAccess {
        SlotAccess::from_number(self.access.load(Ordering::Acquire))
    }

    /// Sets the access granted by a published row. Under the slot's lock.
    pub(super) fn allow(&self, access: SlotAccess) {
        self.access.store(access as u8, Ordering::Release);
    }

    /// Drops the cached ids, under the slot's lock. The access is reset before the version ends:
    /// see [`crate::tags::rights`].
    pub(super) fn invalidate(&self) -> Remainders {
        self.allow(SlotAccess::Unknown);
        self.buffer.invalidate()
    }

    pub(super) fn mark_edited(&self, edited: bool) {
        let me = pg::pid();
        if edited {
            self.edited_by.store(me, Ordering::Relaxed);
        } else {
            // Keep the mark of another transaction that has edited the tag since.
            let _ = self
                .edited_by
                .compare_exchange(me, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Time of the first request since the last segment arrived, in microseconds since 2000; now,
    /// if there is none.
    pub fn wanted_since(&self) -> i64 {
        match self.wanted_at.load(Ordering::Relaxed) {
            0 => pg::now_timestamp(),
            at => at,
        }
    }

    /// As [`Self::wanted_since`], but records `now` if there is none.
    pub(super) fn want_from(&self, now: i64) -> i64 {
        let free = self
            .wanted_at
            .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        free.map_or_else(|since| since, |_| now)
    }

    /// Clears the time of the first request: the segment has arrived.
    pub fn forget_wanted(&self) {
        self.wanted_at.store(0, Ordering::Relaxed);
    }

    /// Condition variable of the calls that wait for a segment of this slot.
    pub fn waiters(&self) -> pg::Waiters {
        // SAFETY: as in `wake`. Shared memory outlives the process.
        unsafe { pg::Waiters::new(self.waiters.get()) }
    }
}

/// A tag's slot, with the version seen at lookup.
#[derive(Clone, Copy)]
pub struct SlotRef {
    /// The slot's double buffer.
    pub buffer: &'static DoubleBuffer,
    /// The slot.
    pub slot: &'static Slot,
    /// Version to pass to takes.
    pub version: u64,
}

impl SlotRef {
    /// The slot in its current version.
    pub(super) fn of(slot: &'static Slot) -> Self {
        Self {
            buffer: slot.buffer,
            slot,
            version: slot.buffer.version(),
        }
    }
}

/// Max length of an error text, in bytes.
const ERROR_TEXT: usize = 43;
/// Max ranges saved per tag: what two buffers can hold.
pub const SAVED_RANGES: usize = 2;

/// Contiguous ids; empty if `len` is 0. Packed, since a slot's state holds two.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C, packed(4))]
pub struct IdRange {
    /// First id.
    pub first: i64,
    /// Number of ids.
    pub len: u32,
}

impl IdRange {
    /// No ids.
    pub const NONE: Self = Self { first: 0, len: 0 };

    /// One past the last id.
    pub fn end(&self) -> i64 {
        self.first.saturating_add(i64::from(self.len))
    }
}

impl From<Remainder> for IdRange {
    fn from(remainder: Remainder) -> Self {
        Self {
            first: remainder.first,
            // At most the length of a segment.
            len: u32::try_from(remainder.count()).unwrap_or(0),
        }
    }
}

/// Roles that may take from a slot, in one version of its buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum SlotAccess {
    /// Not known; check the row.
    Unknown = 0,
    /// All roles.
    Public = 1,
    /// The roles named in the row.
    Restricted = 2,
    /// Numbers of an opaque tag, not ids yet: check the row, and permute with its key.
    Opaque = 3,
}

impl SlotAccess {
    /// Decodes the value stored in a slot.
    fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Public,
            2 => Self::Restricted,
            3 => Self::Opaque,
            _ => Self::Unknown,
        }
    }
}

/// State of a slot's tag. Protected by the slot's lock.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SlotState {
    /// The adaptive step.
    pub pace: Pace,
    /// `incarnation` of the row that the published segments came from; 0 if none.
    pub row_incarnation: i64,
    /// `max_id` of that row after the last committed claim, published or not.
    pub max_id: i64,
    /// Saved ranges not yet republished, in ascending order.
    pub saved: [IdRange; SAVED_RANGES],
    /// Ids published since the slot was assigned to the tag.
    pub published: u64,
    /// Published ids that were dropped by an invalidation or given up for a range.
    pub lost: u64,
    /// Ids skipped by claims because of a failover.
    pub skipped: u64,
    /// Time of the last refill, in microseconds since 2000 (TimestampTz); 0 for never.
    pub last_refill: i64,
    /// Duration of the last refill, request to publication, in microseconds.
    pub last_refill_us: u32,
    /// Number of segments published.
    pub refills: u32,
    /// Ids issued up to the last refill.
    pub issued_at_refill: u64,
    /// Ids issued between the last two refills.
    pub paced_ids: u64,
    /// Time between the last two refills, in microseconds.
    pub paced_us: u64,
    /// Last failure since the last refill.
    pub refill_error: Option<RefillError>,
    /// Version of the buffer that `refill_error` occurred in.
    pub error_version: u64,
    /// Time of `refill_error`, in microseconds since 2000.
    pub error_at: i64,
    /// Text of `refill_error`, for variants that have one.
    pub text: Text<ERROR_TEXT>,
    /// Where a claim has last found the row: number of a `pg::Place`, a hint; 0 for nowhere.
    pub place: u32,
}

impl SlotState {
    pub(super) const NEW: Self = Self {
        pace: Pace {
            base: 0,
            step: 0,
            before: 0,
            claimed_at_ms: 0,
            claims: 0,
        },
        row_incarnation: 0,
        max_id: 0,
        saved: [IdRange::NONE; SAVED_RANGES],
        published: 0,
        lost: 0,
        skipped: 0,
        refills: 0,
        last_refill: 0,
        last_refill_us: 0,
        issued_at_refill: 0,
        paced_ids: 0,
        paced_us: 0,
        refill_error: None,
        error_version: 0,
        error_at: 0,
        text: Text::EMPTY,
        place: 0,
    };

    /// The next saved range to republish.
    pub fn next_saved(&self) -> Option<IdRange> {
        self.saved.iter().find(|range| range.len > 0).copied()
    }

    /// Number of saved ids.
    pub fn saved_ids(&self) -> u64 {
        self.saved.iter().map(|range| u64::from(range.len)).sum()
    }

    /// Gives up the saved ranges, which become a gap (I6).
    pub fn drop_saved(&mut self) {
        let ids = self.saved_ids();
        self.saved = [IdRange::NONE; SAVED_RANGES];
        self.published += ids;
        self.lost += ids;
    }

    /// Ids issued so far, given what remains in the buffers.
    pub fn issued(&self, remainders: &Remainders) -> u64 {
        self.published
            .saturating_sub(self.lost + remainders.count())
    }

    /// Consumption rate, over the last two refills and the time since; `None` until there were three,
    /// or a second has passed: two ids in a millisecond are no rate.
    pub fn ids_per_second(&self, issued: u64, now: i64) -> Option<f64> {
        let since_us = u64::try_from(now.saturating_sub(self.last_refill)).unwrap_or(0);
        let us = self.paced_us + if self.last_refill > 0 { since_us } else { 0 };
        let ids = self.paced_ids + issued.saturating_sub(self.issued_at_refill);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let (ids, seconds) = (ids as f64, us as f64 / 1e6);
        (us >= 1_000_000 || us > 0 && self.refills > 2).then(|| ids / seconds)
    }
}
