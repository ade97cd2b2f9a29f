//! The directory: which tag has which slot.
//!
//! Its lock is held by a guard: [`ReadGuard`] shared, [`WriteGuard`] exclusively. What a guard
//! offers needs that lock; so who has none cannot find, give or take away a slot. A guard ends
//! at the end of its statement, or of the block that names it: never in the head of a `match`
//! or an `if let`, whose arms would run under the lock.

use core::hash::{Hash, Hasher};
use core::ops::Deref;
use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::hash::DefaultHasher;

use super::eviction::Accounts;
use super::lock::{Held, Lock};
use super::slot::{Key, Slot, SlotRef, SlotState, Tag};
use super::slots::Slots;
use crate::pg;

/// Slots that are looked at before others get the directory lock, where all of a database
/// are.
const CHUNK: u32 = 256;
/// Tables of one database that are told apart: the extension's, and what was left by those
/// before.
pub const RELATIONS: usize = 16;

/// No slot that was looked at could be given away.
pub struct Full;

/// What the slots are used for, all databases together.
pub struct SlotCounts {
    /// How many there are.
    pub slots: u32,
    /// How many tags have one.
    pub used: u32,
    /// Slots that were taken away from one tag for another one since the server started.
    pub evictions: u64,
    /// Ids that were cached there, or claimed for them: a gap.
    pub ids_lost: u64,
}

/// The hash buckets, the free list and the accounts.
#[repr(C)]
pub struct Directory {
    lock: Lock,
    slots: Slots,
    buckets: *mut AtomicU32,
    bucket_count: u32,
    /// First slot of the free list: a link. Directory lock, exclusively.
    free: AtomicU32,
    /// Counts slots that were given to tags: the clock of evictions. Directory lock,
    /// exclusively.
    gives: AtomicU32,
    /// See [`SlotCounts`].
    evictions: AtomicU64,
    evicted_ids: AtomicU64,
    /// What the hash of a tag begins with: drawn at each start, so that nobody can choose
    /// tags that share a bucket.
    hash_key: [u64; 2],
    /// When gone tables were last looked for, in microseconds since 2000.
    swept_at: AtomicI64,
    /// The databases that hold slots. Directory lock.
    accounts: Accounts,
}

impl Directory {
    /// Makes an empty one in zeroed memory.
    ///
    /// # Safety
    /// `this` points to zeroed memory, `buckets` to as many zeroed ones, a power of two, in
    /// shared memory.
    pub unsafe fn init(
        this: *mut Self,
        lock: Lock,
        slots: Slots,
        buckets: *mut AtomicU32,
        bucket_count: u32,
    ) {
        // SAFETY: the fields of what the caller owns; the others are fine as zeroes.
        unsafe {
            (&raw mut (*this).lock).write(lock);
            (&raw mut (*this).slots).write(slots);
            (&raw mut (*this).buckets).write(buckets);
            (&raw mut (*this).bucket_count).write(bucket_count);
            (&raw mut (*this).hash_key).write([pg::strong_random(), pg::strong_random()]);
        }
    }

    /// All slots, given out or not.
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// Locks it to look something up.
    pub fn read(&self) -> ReadGuard<'_> {
        ReadGuard {
            directory: self,
            _held: self.lock.shared(),
        }
    }

    /// Locks it to change it.
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
        // SAFETY: masked to the power of two that is the array's length.
        unsafe { &*self.buckets.add(index as usize) }
    }

    /// Whether the caller should look for slots of its database's gone tables: at most
    /// once a second, when the array is full.
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

    /// Counts ids that were lost by an eviction.
    pub fn lose_evicted(&self, ids: u64) {
        self.evicted_ids.fetch_add(ids, Ordering::Relaxed);
    }

    /// Frees the slots of a table that is gone.
    pub fn sweep(&self, database: u32, relation: u32) {
        self.free_all(database, Some(relation));
    }

    /// Frees the slots of a database that is gone, wanted ones too. Allocates nothing and
    /// cannot fail: it runs in a commit callback.
    pub fn forget_database(&self, database: u32) {
        self.free_all(database, None);
    }

    /// Frees the slots of a table or, wanted or not, of a database, with pauses.
    fn free_all(&self, database: u32, relation: Option<u32>) {
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

/// The directory, locked shared at least.
#[clippy::has_significant_drop]
pub struct ReadGuard<'a> {
    directory: &'a Directory,
    _held: Held,
}

impl<'a> ReadGuard<'a> {
    /// All slots, given out or not.
    pub fn slots(&self) -> &'a Slots {
        &self.directory.slots
    }

    /// The slot's identity.
    pub fn key(&self, slot: &Slot) -> Key {
        // SAFETY: written only by a WriteGuard, which there is none beside this one.
        unsafe { *slot.key.get() }
    }

    fn find_slot(&self, key: &Key) -> Option<&'static Slot> {
        let slots = &self.directory.slots;
        let mut next = self.directory.bucket(key).load(Ordering::Relaxed);
        while let Some(slot) = slots.at(next) {
            // SAFETY: as in `key`; compared in place, as it is large.
            if unsafe { &*slot.key.get() } == key {
                return Some(slot);
            }
            next = slot.next.load(Ordering::Relaxed);
        }
        None
    }

    /// The slot of a tag, if it has one.
    pub fn find(&self, key: &Key) -> Option<SlotRef> {
        self.find_slot(key).map(SlotRef::of)
    }

    /// The slots of a database, or of one table.
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

    fn retire_slot(&self, slot: &Slot) {
        self.directory.slots.with_state(slot, |state| {
            state.lost += slot.invalidate().count();
            state.drop_saved();
            // It spoke of the row as it was.
            state.refill_error = None;
        });
        slot.edited_by.store(0, Ordering::Relaxed);
        slot.server_max_step.store(0, Ordering::Relaxed);
        slot.wake();
    }

    /// Drops what is cached of a tag, in every session. Allocates nothing and cannot
    /// fail: it runs in commit callbacks.
    pub fn retire(&self, key: &Key) {
        if let Some(slot) = self.find_slot(key) {
            self.retire_slot(slot);
        }
    }

    /// The same for every tag of a table, or of a database.
    pub fn retire_all(&self, database: u32, relation: Option<u32>) {
        for slot in self.slots_of(database, relation) {
            self.retire_slot(slot);
        }
    }

    /// Marks a tag as edited by this process's open transaction, or no longer.
    pub fn mark_edited(&self, key: &Key, edited: bool) {
        if let Some(slot) = self.find_slot(key) {
            slot.mark_edited(edited);
        }
    }

    /// The same for every tag of a table, or of a database.
    pub fn mark_all_edited(&self, database: u32, relation: Option<u32>, edited: bool) {
        for slot in self.slots_of(database, relation) {
            slot.mark_edited(edited);
        }
    }

    /// The tables of a database that have slots, as many as there is room for in the vector.
    pub fn relations_of(&self, database: u32, relations: &mut Vec<u32>) {
        for slot in self.slots_of(database, None) {
            let relation = self.key(slot).relation;
            if relations.len() < relations.capacity() && !relations.contains(&relation) {
                relations.push(relation);
            }
        }
    }

    /// Databases that have slots, as many as there is room for in the vector; some of them
    /// repeatedly.
    pub fn databases(&self, databases: &mut Vec<u32>) {
        let directory = self.directory;
        let others = directory.accounts.shared().ring(&directory.slots);
        let all = directory.accounts.databases();
        let all = all.chain(others.map(|slot| self.key(slot).database));
        let room = databases.capacity() - databases.len();
        databases.extend(all.take(room));
    }

    /// The tags of a table that have a slot, as many as there is room for in the vector.
    pub fn tags_of(&self, database: u32, relation: u32, tags: &mut Vec<(Tag, &'static Slot)>) {
        let all = self.slots_of(database, Some(relation));
        let room = tags.capacity() - tags.len();
        tags.extend(all.map(|slot| (self.key(slot).tag, slot)).take(room));
    }

    /// What the slots are used for.
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
    /// The slot of a tag whose row the caller has seen; made room for if need be.
    ///
    /// # Errors
    /// [`Full`] if no slot that this tag may have can be taken away.
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

    /// The slot of a tag, a free one if it has none. Nobody else's makes room for it.
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
        // SAFETY: the directory is held exclusively.
        unsafe { slots.add() }
    }

    /// Gives a free slot to a tag.
    fn give(&self, slot: &'static Slot, key: &Key) {
        let Directory { slots, gives, .. } = self.directory;
        // SAFETY: the directory is held exclusively, and no reference to a key is kept.
        unsafe { *slot.key.get() = *key };
        let bucket = self.directory.bucket(key);
        slot.next
            .store(bucket.load(Ordering::Relaxed), Ordering::Relaxed);
        bucket.store(slots.link(slot), Ordering::Relaxed);
        let clock = gives.fetch_add(1, Ordering::Relaxed);
        let accounts = &self.directory.accounts;
        accounts.join(slots, slot, key.database, clock);
    }

    /// Makes room for a tag of this database.
    fn evict(&self, database: u32) -> Option<&'static Slot> {
        let directory = self.directory;
        let clock = directory.gives.load(Ordering::Relaxed);
        let slot = directory
            .accounts
            .victim(&directory.slots, database, clock)?;
        // None if a session wants it by now: the next call looks at others.
        let lost = self.take_away(slot, false)?;
        directory.evictions.fetch_add(1, Ordering::Relaxed);
        directory.lose_evicted(lost);
        Some(slot)
    }

    /// Takes a slot away from its tag for the free list, unless it is wanted and not `gone`.
    fn free(&self, slot: &'static Slot, gone: bool) {
        if self.take_away(slot, gone).is_some() {
            let Directory { free, slots, .. } = self.directory;
            slot.next
                .store(free.load(Ordering::Relaxed), Ordering::Relaxed);
            free.store(slots.link(slot), Ordering::Relaxed);
        }
    }

    /// Takes a slot away from its tag: out of its chain and its ring, its buffers a gap, its
    /// memory of the tag blank. How many ids that are; `None` if it is wanted, and then
    /// nothing is done unless it is `gone`.
    fn take_away(&self, slot: &'static Slot, gone: bool) -> Option<u64> {
        let slots = &self.directory.slots;
        let lost = slots.with_state(slot, |state| {
            // Before the version ends: who reads the next one finds the request closed.
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
