//! The directory: maps tags to slots.
//!
//! A guard holds the directory lock: [`ReadGuard`] shared, [`WriteGuard`] exclusively. Slots are
//! looked up, assigned and freed only through a guard. A guard is dropped at the end of its
//! statement or of the block that names it. Never create one in the head of a `match` or an `if
//! let`: the arms would run under the lock.

use core::hash::{Hash, Hasher};
use core::ops::Deref;
use std::hash::DefaultHasher;

use leaf_id_core::primitive::{AtomicI64, AtomicU32, AtomicU64, Ordering};

use super::eviction::Accounts;
use super::lock::{Held, Lock};
use super::slot::{Key, Slot, SlotRef, SlotState, Tag};
use super::slots::Slots;
use crate::pg;

/// Slots examined per lock acquisition when all slots of a database are visited.
const CHUNK: u32 = 256;
/// Max distinct `leaf_alloc` tables per database: the current one, and dropped ones whose slots
/// remain.
pub const RELATIONS: usize = 16;

/// No slot in the sample could be evicted.
pub struct Full;

/// Slot usage of the whole server.
pub struct SlotCounts {
    /// Size of the array.
    pub slots: u32,
    /// Slots assigned to a tag.
    pub used: u32,
    /// Evictions since server start.
    pub evictions: u64,
    /// Ids lost by evictions: cached in the slot, or claimed for it.
    pub ids_lost: u64,
}

/// Hash buckets, free list and per-database accounts.
#[repr(C)]
pub struct Directory {
    lock: Lock,
    slots: Slots,
    buckets: *mut AtomicU32,
    bucket_count: u32,
    /// Head of the free list, a link. Directory lock, exclusively.
    free: AtomicU32,
    /// Number of slots assigned so far: the clock for evictions. Directory lock, exclusively.
    gives: AtomicU32,
    /// See [`SlotCounts`].
    evictions: AtomicU64,
    evicted_ids: AtomicU64,
    /// Random key of the hash, chosen at server start, so that no role can construct tags that
    /// collide.
    hash_key: [u64; 2],
    /// Time of the last sweep, in microseconds since 2000.
    swept_at: AtomicI64,
    /// Slots per database. Directory lock.
    accounts: Accounts,
}

impl Directory {
    /// Initializes an empty directory in zeroed memory.
    ///
    /// # Safety
    /// `this` points to zeroed memory, and `buckets` to `bucket_count` zeroed buckets in shared
    /// memory. `bucket_count` is a power of two.
    pub unsafe fn init(
        this: *mut Self,
        lock: Lock,
        slots: Slots,
        buckets: *mut AtomicU32,
        bucket_count: u32,
    ) {
        // SAFETY: the caller owns the memory; the remaining fields are valid as zeroes.
        unsafe {
            (&raw mut (*this).lock).write(lock);
            (&raw mut (*this).slots).write(slots);
            (&raw mut (*this).buckets).write(buckets);
            (&raw mut (*this).bucket_count).write(bucket_count);
            (&raw mut (*this).hash_key).write([pg::strong_random(), pg::strong_random()]);
        }
    }

    /// The slot array.
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Locks the directory shared.
    pub fn read(&self) -> ReadGuard<'_> {
        ReadGuard {
            directory: self,
            _held: self.lock.shared(),
        }
    }

    /// Locks the directory exclusively.
    pub fn write(&self) -> WriteGuard<'_> {
        WriteGuard(ReadGuard {
            directory: self,
            _held: self.lock.exclusive(),
        })
    }

    fn bucket(&self, key: &Key) -> &AtomicU32 {
        let mut hasher = DefaultHasher::new();
        self.hash_key.hash(&mut hasher);
        key.hash(&mut hasher);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "any bits of the hash will do"
        )]
        let index = hasher.finish() as u32 & (self.bucket_count - 1);
        // SAFETY: masked by the array length, a power of two.
        unsafe { &*self.buckets.add(index as usize) }
    }

    /// True if the caller should free the slots of dropped tables in its database: the array is
    /// full, and no session has swept it for one second.
    pub fn may_sweep(&self) -> bool {
        let now = pg::now_timestamp();
        let swept_at = self.swept_at.load(Ordering::Relaxed);
        self.slots.used() == self.slots.capacity()
            && self.free.load(Ordering::Relaxed) == 0
            && now.abs_diff(swept_at) > 1_000_000
            && self
                .swept_at
                .compare_exchange(swept_at, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Counts ids lost by an eviction.
    pub fn lose_evicted(&self, ids: u64) {
        self.evicted_ids.fetch_add(ids, Ordering::Relaxed);
    }

    /// Frees the slots of a dropped table, or of a dropped database, then also those with open
    /// requests, in chunks. Runs in a commit callback: allocates nothing and cannot fail.
    pub fn free_all(&self, database: u32, relation: Option<u32>) {
        let mut left = None;
        loop {
            let directory = self.write();
            let account = self.accounts.of(database);
            let left = left.get_or_insert(account.len());
            for _ in 0..CHUNK {
                let next = account.advance_hand(&self.slots);
                let (Some(less), Some(slot)) = (left.checked_sub(1), next) else {
                    return;
                };
                *left = less;
                let key = directory.key(slot);
                if key.database == database && relation.is_none_or(|r| r == key.relation) {
                    directory.free(slot, relation.is_none());
                }
            }
        }
    }
}

/// The directory, locked at least shared.
#[clippy::has_significant_drop]
pub struct ReadGuard<'a> {
    directory: &'a Directory,
    _held: Held,
}

impl<'a> ReadGuard<'a> {
    /// The slot array.
    pub fn slots(&self) -> &'a Slots {
        &self.directory.slots
    }

    /// The slot's key.
    pub fn key(&self, slot: &Slot) -> Key {
        // SAFETY: written only under a WriteGuard, which excludes this guard.
        unsafe { *slot.key.get() }
    }

    fn find_slot(&self, key: &Key) -> Option<&'static Slot> {
        let slots = &self.directory.slots;
        let mut next = self.directory.bucket(key).load(Ordering::Relaxed);
        while let Some(slot) = slots.at(next) {
            // SAFETY: as in `key`. Compared in place, since a key is large.
            if unsafe { &*slot.key.get() } == key {
                return Some(slot);
            }
            next = slot.next.load(Ordering::Relaxed);
        }
        None
    }

    /// Looks up a tag's slot.
    pub fn find(&self, key: &Key) -> Option<SlotRef> {
        self.find_slot(key).map(SlotRef::of)
    }

    /// The slots of a database, or of one of its tables.
    pub fn slots_of(
        &self,
        database: u32,
        relation: Option<u32>,
    ) -> impl Iterator<Item = &'static Slot> {
        let account = self.directory.accounts.of(database);
        account.ring(&self.directory.slots).filter(move |slot| {
            let key = self.key(slot);
            key.database == database && relation.is_none_or(|r| r == key.relation)
        })
    }

    /// Counts ids that a session has taken from a slot and not used. By now, the slot may be another
    /// tag's.
    pub fn lose_taken(&self, slot: &Slot, database: u32, tag: &[u8], ids: u64) {
        let key = self.key(slot);
        if key.database == database && key.tag.bytes() == tag {
            self.directory
                .slots
                .with_state(slot, |state| state.lost += ids);
        } else {
            self.directory.lose_evicted(ids);
        }
    }

    /// Counts ids that were claimed for a tag and not published. By now, the slot may be another
    /// tag's.
    pub fn lose_claimed(&self, slot: &Slot, key: &Key, ids: u64) {
        if self.key(slot) == *key {
            self.directory.slots.with_state(slot, |state| {
                state.published += ids;
                state.lost += ids;
            });
        } else {
            self.directory.lose_evicted(ids);
        }
    }

    fn retire_slot(&self, slot: &Slot) {
        self.directory.slots.with_state(slot, |state| {
            state.lost += slot.invalidate().count();
            state.drop_saved();
            // The error describes the old row.
            state.refill_error = None;
        });
        slot.edited_by.store(0, Ordering::Relaxed);
        slot.server_max_step.store(0, Ordering::Relaxed);
        slot.wake();
    }

    /// Invalidates a tag's slot for all sessions. Runs in commit callbacks: allocates nothing and
    /// cannot fail.
    pub fn retire(&self, key: &Key) {
        if let Some(slot) = self.find_slot(key) {
            self.retire_slot(slot);
        }
    }

    /// As [`Self::retire`], for all tags of a table or of a database.
    pub fn retire_all(&self, database: u32, relation: Option<u32>) {
        for slot in self.slots_of(database, relation) {
            self.retire_slot(slot);
        }
    }

    /// Sets or clears the mark that this process's open transaction has edited the tag.
    pub fn mark_edited(&self, key: &Key, edited: bool) {
        if let Some(slot) = self.find_slot(key) {
            slot.mark_edited(edited);
        }
    }

    /// As [`Self::mark_edited`], for all tags of a table or of a database.
    pub fn mark_all_edited(&self, database: u32, relation: Option<u32>, edited: bool) {
        for slot in self.slots_of(database, relation) {
            slot.mark_edited(edited);
        }
    }

    /// Collects the tables of a database that have slots, up to the vector's capacity.
    pub fn relations_of(&self, database: u32, relations: &mut Vec<u32>) {
        for slot in self.slots_of(database, None) {
            let relation = self.key(slot).relation;
            if relations.len() < relations.capacity() && !relations.contains(&relation) {
                relations.push(relation);
            }
        }
    }

    /// Collects the databases that have slots, up to the vector's capacity. May contain duplicates.
    pub fn databases(&self, databases: &mut Vec<u32>) {
        let directory = self.directory;
        let others = directory.accounts.shared().ring(&directory.slots);
        let all = directory.accounts.databases();
        let all = all.chain(others.map(|slot| self.key(slot).database));
        let room = databases.capacity() - databases.len();
        databases.extend(all.take(room));
    }

    /// Collects the tags of a table that have slots, up to the vector's capacity.
    pub fn tags_of(&self, database: u32, relation: u32, tags: &mut Vec<(Tag, &'static Slot)>) {
        let all = self.slots_of(database, Some(relation));
        let room = tags.capacity() - tags.len();
        tags.extend(all.map(|slot| (self.key(slot).tag, slot)).take(room));
    }

    /// Slot usage of the whole server.
    pub fn slot_counts(&self) -> SlotCounts {
        SlotCounts {
            slots: self.directory.slots.capacity(),
            used: self.directory.accounts.slots(),
            evictions: self.directory.evictions.load(Ordering::Relaxed),
            ids_lost: self.directory.evicted_ids.load(Ordering::Relaxed),
        }
    }
}

/// The directory, locked exclusively.
#[clippy::has_significant_drop]
pub struct WriteGuard<'a>(ReadGuard<'a>);

impl<'a> Deref for WriteGuard<'a> {
    type Target = ReadGuard<'a>;

    fn deref(&self) -> &ReadGuard<'a> {
        &self.0
    }
}

impl WriteGuard<'_> {
    /// The slot of a tag whose row the caller has seen. Assigns one if needed, by eviction if none
    /// is free.
    ///
    /// # Errors
    /// [`Full`] if no slot can be evicted for this tag.
    pub fn find_or_create(&self, key: &Key) -> Result<SlotRef, Full> {
        let slot = match self.find_slot(key) {
            Some(slot) => slot,
            None => {
                let evict = || self.evict(key.database);
                let slot = self.free_slot().or_else(evict).ok_or(Full)?;
                self.give(slot, key);
                slot
            }
        };
        Ok(SlotRef::of(slot))
    }

    /// The slot of a tag, or a free one. Never evicts.
    pub fn find_or_take_free(&self, key: &Key) -> Option<&'static Slot> {
        self.find_slot(key).or_else(|| {
            let slot = self.free_slot()?;
            self.give(slot, key);
            Some(slot)
        })
    }

    fn free_slot(&self) -> Option<&'static Slot> {
        let Directory { free, slots, .. } = self.directory;
        if let Some(slot) = slots.at(free.load(Ordering::Relaxed)) {
            free.store(slot.next.load(Ordering::Relaxed), Ordering::Relaxed);
            return Some(slot);
        }
        // SAFETY: the directory lock is held exclusively.
        unsafe { slots.add() }
    }

    /// Assigns a free slot to a tag.
    fn give(&self, slot: &'static Slot, key: &Key) {
        let Directory { slots, gives, .. } = self.directory;
        debug_assert!(self.key(slot).is_free(), "another tag has the slot");
        // SAFETY: the directory lock is held exclusively, and references to keys are never kept.
        unsafe { *slot.key.get() = *key };
        let bucket = self.directory.bucket(key);
        slot.next
            .store(bucket.load(Ordering::Relaxed), Ordering::Relaxed);
        bucket.store(slots.link(slot), Ordering::Relaxed);
        let clock = gives.fetch_add(1, Ordering::Relaxed);
        let accounts = &self.directory.accounts;
        accounts.join(slots, slot, key.database, clock);
    }

    /// Evicts a slot for a tag of this database.
    fn evict(&self, database: u32) -> Option<&'static Slot> {
        let directory = self.directory;
        let clock = directory.gives.load(Ordering::Relaxed);
        let slot = directory
            .accounts
            .victim(&directory.slots, database, clock)?;
        // None if a session has requested a segment since then; the next call tries other slots.
        let lost = self.take_away(slot, false)?;
        directory.evictions.fetch_add(1, Ordering::Relaxed);
        directory.lose_evicted(lost);
        Some(slot)
    }

    /// Moves a slot to the free list. A wanted slot is left alone unless `gone`.
    fn free(&self, slot: &'static Slot, gone: bool) {
        if self.take_away(slot, gone).is_some() {
            let Directory { free, slots, .. } = self.directory;
            slot.next
                .store(free.load(Ordering::Relaxed), Ordering::Relaxed);
            free.store(slots.link(slot), Ordering::Relaxed);
        }
    }

    /// Removes a slot from its hash chain and its ring, invalidates its buffers and clears its
    /// state. Returns the number of lost ids. `None`, with nothing changed, if the slot is wanted
    /// and not `gone`.
    fn take_away(&self, slot: &'static Slot, gone: bool) -> Option<u64> {
        let slots = &self.directory.slots;
        let lost = slots.with_state(slot, |state| {
            // Before the version ends: a reader of the next version finds the request closed.
            if !slot.buffer.close() && !gone {
                return None;
            }
            let lost = slot.invalidate().count() + state.saved_ids();
            *state = SlotState::NEW;
            slot.max_step.store(0, Ordering::Relaxed);
            slot.server_max_step.store(0, Ordering::Relaxed);
            slot.wanted_at.store(0, Ordering::Relaxed);
            Some(lost)
        })?;
        self.leave_bucket(slot);
        let accounts = &self.directory.accounts;
        accounts.leave(slots, slot, self.key(slot).database);
        // SAFETY: as in `give`.
        unsafe { *slot.key.get() = Key::FREE };
        slot.starved.store(0, Ordering::Relaxed);
        slot.unusable.store(0, Ordering::Relaxed);
        slot.edited_by.store(0, Ordering::Relaxed);
        slot.waits.store(0, Ordering::Relaxed);
        slot.waited_us.store(0, Ordering::Relaxed);
        slot.wake();
        Some(lost)
    }

    fn leave_bucket(&self, slot: &Slot) {
        let mut link = self.directory.bucket(&self.key(slot));
        while let Some(here) = self.directory.slots.at(link.load(Ordering::Relaxed)) {
            if core::ptr::eq(here, slot) {
                link.store(slot.next.load(Ordering::Relaxed), Ordering::Relaxed);
                break;
            }
            link = &here.next;
        }
    }
}
