//! A slot: what is shared of one tag, and its plain data.
//!
//! What lock protects which field says the header of `area`.

use core::cell::UnsafeCell;
use core::hash::{Hash, Hasher};
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};

use leaf_id_core::segment::{DoubleBuffer, Remainder, Remainders};
use leaf_id_core::step::Pace;
use pgrx::pg_sys;
use serde::{Deserialize, Serialize};

use super::text::Text;
use crate::error::RefillError;
use crate::pg;

/// The longest tag, in bytes (Leaf: varchar(128)).
pub const MAX_TAG: usize = 128;

/// A tag's bytes, in the encoding of its database.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Tag {
    len: u8,
    bytes: [u8; MAX_TAG],
}

impl Tag {
    /// An empty one, equal to no valid tag.
    pub const EMPTY: Self = Self {
        len: 0,
        bytes: [0; MAX_TAG],
    };

    /// `None` if it is empty or longer than [`MAX_TAG`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let len = u8::try_from(bytes.len()).ok()?;
        let mut tag = Self { len, ..Self::EMPTY };
        tag.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        (len > 0).then_some(tag)
    }

    /// The bytes that were given.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// For messages, which pgrx carries as UTF-8: what is none is escaped as in an `E''` string.
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

/// What a slot is for. The relation is `leaf_alloc` by its oid: another database, or the
/// extension created anew, is another key.
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

    pub(super) fn is_free(&self) -> bool {
        self.database == 0
    }
}

/// One tag in use. Its double buffer lies apart, among the others' in a line of the cache
/// each: sessions that use many tags touch little else.
#[repr(C)]
pub struct Slot {
    /// What sessions take from, without a lock.
    pub buffer: &'static DoubleBuffer,

    // Plain atomics.
    /// The row's `max_step` as last seen, in ids; where the tag is sourced from another server, that
    /// server's if it is smaller.
    pub max_step: AtomicU32,
    /// A session has waited since the last publication (it is starved).
    pub starved: AtomicU8,
    /// Who may take from it: an [`Access`], written under the slot's lock.
    access: AtomicU8,
    /// Nothing came last because of the tag itself: what its source server had answered could not be
    /// used, or it gives none. Written under the slot's lock.
    pub unusable: AtomicU8,
    /// The process whose open transaction has edited this tag's row; 0 for none. For its
    /// parallel workers, which do not have its list of edits.
    pub edited_by: AtomicI32,
    /// Next slot in a queue's list, plus 1.
    pub(super) next_posted: AtomicU32,
    /// Calls that had to wait.
    pub waits: AtomicU64,
    /// How long, together, in microseconds.
    pub waited_us: AtomicU64,
    /// When a segment was first asked for since the last one came, in microseconds since
    /// 2000; 0 when it was not.
    pub wanted_at: AtomicI64,

    // Written under the directory lock, exclusively.
    pub(super) key: UnsafeCell<Key>,
    /// Next slot in the chain or in the free list, plus 1.
    pub(super) next: AtomicU32,
    /// When an eviction last found it used, in slots that were given out until then, and the
    /// buffer's mark then.
    pub(super) used_at: AtomicU32,
    pub(super) seen_mark: AtomicU32,
    /// The slots of the same database, in a ring, plus 1.
    pub(super) ring_next: AtomicU32,
    pub(super) ring_before: AtomicU32,

    // Under the slot's lock.
    pub(super) state: UnsafeCell<SlotState>,

    /// The `max_step` of the source server of the tag; 0 where there is none. A plain atomic,
    /// here where there is room for it.
    pub server_max_step: AtomicU32,
    pub(super) waiters: UnsafeCell<pg_sys::ConditionVariable>,
}

/// What a tag costs: a slot, a double buffer, and two hash buckets at most.
const _: () =
    assert!(size_of::<Slot>() + size_of::<DoubleBuffer>() + 2 * size_of::<AtomicU32>() <= 512);

impl Slot {
    /// Wakes the calls that wait for this slot's segment.
    pub fn wake(&self) {
        // SAFETY: initialized before there is a reference to the slot; it has a lock of its own.
        unsafe { pg_sys::ConditionVariableBroadcast(self.waiters.get()) };
    }

    /// Who may take from it in a version of its buffer that was read before this is.
    pub fn access(&self) -> Access {
        Access::from_number(self.access.load(Ordering::Acquire))
    }

    /// A row was published from that says who may. Under the slot's lock.
    pub(super) fn allow(&self, access: Access) {
        self.access.store(access as u8, Ordering::Release);
    }

    /// Drops what is cached. Under the slot's lock. First the access, then the version: see
    /// [`crate::tags::rights`].
    pub(super) fn invalidate(&self) -> Remainders {
        self.allow(Access::Unknown);
        self.buffer.invalidate()
    }

    pub(super) fn mark_edited(&self, edited: bool) {
        let me = pg::pid();
        if edited {
            self.edited_by.store(me, Ordering::Relaxed);
        } else {
            // Not the mark of another transaction that came after ours.
            let _ = self
                .edited_by
                .compare_exchange(me, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// When a segment was first asked for since the last one came, in microseconds since
    /// 2000; now, if none was.
    pub fn wanted_since(&self) -> i64 {
        match self.wanted_at.load(Ordering::Relaxed) {
            0 => pg::now_timestamp(),
            at => at,
        }
    }

    /// The same; from now on, if none was.
    pub(super) fn want_from(&self, now: i64) -> i64 {
        let free = self
            .wanted_at
            .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        free.map_or_else(|since| since, |_| now)
    }

    /// The segment that was asked for has come, or is there.
    pub fn forget_wanted(&self) {
        self.wanted_at.store(0, Ordering::Relaxed);
    }

    /// Where calls wait for this slot's segment.
    pub fn waiters(&self) -> pg::Waiters {
        // SAFETY: as in `wake`; slots lie in shared memory, which outlives the process.
        unsafe { pg::Waiters::new(self.waiters.get()) }
    }
}

/// A tag's slot, in the version in which it was looked up.
#[derive(Clone, Copy)]
pub struct SlotRef {
    /// What ids are taken from.
    pub buffer: &'static DoubleBuffer,
    /// The slot it belongs to.
    pub slot: &'static Slot,
    /// What takes must name.
    pub version: u64,
}

impl SlotRef {
    /// In its present version.
    pub(super) fn of(slot: &'static Slot) -> Self {
        Self {
            buffer: slot.buffer,
            slot,
            version: slot.buffer.version(),
        }
    }
}

/// What is kept of an allocator's last error, in bytes.
const ERROR_TEXT: usize = 47;
/// What both buffers hold at most, and so what can be saved of one tag.
pub const SAVED_RANGES: usize = 2;

/// Contiguous ids; none where `len` is 0. Packed: a slot's state holds two.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[repr(C, packed(4))]
pub struct IdRange {
    /// The lowest id.
    pub first: i64,
    /// How many ids.
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
            // Never more than a segment has.
            len: u32::try_from(remainder.count()).unwrap_or(0),
        }
    }
}

/// Who may take from a slot in one version of its buffer.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Access {
    /// The row is to be looked at.
    Unknown = 0,
    /// Everybody.
    Everybody = 1,
    /// The roles that the row names.
    Restricted = 2,
    /// The row is to be looked at: what is taken are not ids yet, but numbers that it says how to
    /// permute.
    Opaque = 3,
}

impl Access {
    /// As it is stored in a slot.
    fn from_number(number: u8) -> Self {
        match number {
            1 => Self::Everybody,
            2 => Self::Restricted,
            3 => Self::Opaque,
            _ => Self::Unknown,
        }
    }
}

/// What is remembered about a slot's tag. Protected by the slot's lock.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct SlotState {
    /// The adaptive step.
    pub pace: Pace,
    /// `incarnation` of the row that the published segments came from; 0 for none.
    pub row_incarnation: i64,
    /// The `max_id` of that row after the last claim that has committed, published or not.
    pub max_id: i64,
    /// Remainders of before the launcher's last end, not yet given back; in order.
    pub saved: [IdRange; SAVED_RANGES],
    /// Ids published since the slot was given to the tag.
    pub published: u64,
    /// Ids of them that were dropped: invalidated, or given up for a range.
    pub lost: u64,
    /// Ids that claims have left out because of a failover.
    pub skipped: u64,
    /// Microseconds since 2000 (TimestampTz); 0 for never.
    pub last_refill: i64,
    /// From the request to the publication, in microseconds.
    pub last_refill_us: u32,
    /// Segments published.
    pub refills: u32,
    /// Ids issued up to the last refill ...
    pub issued_at_refill: u64,
    /// ... and between it and the one before, in microseconds.
    pub paced_ids: u64,
    /// See `paced_ids`.
    pub paced_us: u64,
    /// The last failure since the last refill, and the buffer's version it is about.
    pub refill_error: Option<RefillError>,
    /// See `refill_error`.
    pub error_version: u64,
    /// When, in microseconds since 2000.
    pub error_at: i64,
    /// What goes with `refill_error`, where that says so.
    pub text: Text<ERROR_TEXT>,
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
    };

    /// The next remainder to give back.
    pub fn next_saved(&self) -> Option<IdRange> {
        self.saved.iter().find(|range| range.len > 0).copied()
    }

    /// How many ids are saved.
    pub fn saved_ids(&self) -> u64 {
        self.saved.iter().map(|range| u64::from(range.len)).sum()
    }

    /// Gives up what is saved: a gap (I6).
    pub fn drop_saved(&mut self) {
        let ids = self.saved_ids();
        self.saved = [IdRange::NONE; SAVED_RANGES];
        self.published += ids;
        self.lost += ids;
    }

    /// Ids that were handed out, when the buffers hold `remainders`.
    pub fn issued(&self, remainders: &Remainders) -> u64 {
        self.published
            .saturating_sub(self.lost + remainders.count())
    }

    /// How fast ids are used: over the last two refills and the time since.
    pub fn ids_per_second(&self, issued: u64, now: i64) -> f64 {
        let since_us = u64::try_from(now.saturating_sub(self.last_refill)).unwrap_or(0);
        let us = self.paced_us + if self.last_refill > 0 { since_us } else { 0 };
        let ids = self.paced_ids + issued.saturating_sub(self.issued_at_refill);
        #[expect(clippy::cast_precision_loss, reason = "an estimate")]
        let (ids, seconds) = (ids as f64, us as f64 / 1e6);
        if us == 0 { 0.0 } else { ids / seconds }
    }
}
