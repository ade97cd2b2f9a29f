//! Which database holds which slots, and which slot makes room for another tag.
//!
//! An account is a database that has slots: how many, and a ring of them. A tag that finds no
//! free slot takes the longest unused one, in a sample, of the database that holds most; of
//! its own, where that holds as many. So whoever uses thousands of tags evicts their own,
//! and what an eviction looks at is bounded: the accounts, and [`SAMPLE`] slots.
//!
//! Exact counts rather than a sample of the array, as a sample errs where databases hold
//! about as much. Databases beyond [`ACCOUNTS`] share the last entry and count as one. While
//! that has slots, whoever has no entry joins it: all slots of a database are in one ring.
//!
//! All of it under the directory lock, exclusively to change it.
//!
//! # A slot with an open request
//!
//! 1. A session sets the request, which is *wanted* then, and posts the slot under the
//!    directory lock, shared: only if the slot is its database's still, otherwise it
//!    withdraws the request. A slot that is wanted is never evicted: it is linked into a
//!    list, or about to be.
//! 2. The allocator takes the slot off the list, and accepts the request and reads the
//!    slot's key under the directory lock, shared. The request is *in flight* then and has a
//!    number; the slot is in no list.
//! 3. A slot in flight is evicted if nothing has come of it for [`PATIENCE_US`]: its row is
//!    locked, or the source server is away. Under the directory lock, exclusively, and
//!    the slot's: the request is closed, the buffers are invalidated (which ends the version),
//!    the slot state is blank.
//! 4. Whatever the allocator does with a slot after that, it does under the slot's lock and
//!    only if its request is the one in flight still, or in the version that it has read while
//!    that was so: nothing it has claimed is published, noted or counted as another tag's,
//!    and no other request is settled. It drops the request when it comes to it next.
//!
//! A database that is gone takes its slots along, wanted ones too: its list is emptied
//! first, and who has set a request and not posted it finds that the slot is not its own.

use core::sync::atomic::{AtomicU32, Ordering};

use super::{Area, Key, Slot, SlotState, Tag};
use crate::pg;

/// Databases whose slots are counted each for itself.
pub const ACCOUNTS: usize = 4096;
/// The entry that all others share.
const SHARED: usize = ACCOUNTS - 1;
/// Slots looked at to find one to evict: all of a small database's, a sample of a large one's.
const SAMPLE: u32 = 64;
/// For how long an unanswered request keeps its slot, in microseconds.
const PATIENCE_US: u64 = 1_000_000;
/// Slots that are looked at before others get the directory lock, where all of a database
/// are.
const CHUNK: u32 = 256;

/// A database that has slots.
#[repr(C)]
pub struct SlotAccount {
    /// Its oid; 0 where the entry is free, or shared.
    database: AtomicU32,
    /// How many slots it has.
    slots: AtomicU32,
    /// Where the next eviction begins to look in its ring: a slot, plus 1.
    hand: AtomicU32,
}

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

/// A slot's mark, in less room: whether it was used between two looks.
fn short_mark(slot: &Slot) -> u32 {
    let mark = slot.buffer.mark();
    #[expect(clippy::cast_possible_truncation, reason = "both halves count")]
    let (high, low) = ((mark >> 32) as u32, mark as u32);
    // A switch resets the offset: not to what it was before.
    high.wrapping_mul(0x9E37_79B9) ^ low
}

impl Area {
    fn used_accounts(&self) -> impl Iterator<Item = &SlotAccount> {
        self.accounts
            .iter()
            .take(self.accounts_used.load(Ordering::Relaxed) as usize)
            .filter(|account| account.database.load(Ordering::Relaxed) != 0)
    }

    fn shared_account(&self) -> &SlotAccount {
        let [.., last] = &self.accounts;
        last
    }

    /// The entry that a database's slots are counted in, if it has any.
    fn account_of(&self, database: u32) -> &SlotAccount {
        self.used_accounts()
            .find(|account| account.database.load(Ordering::Relaxed) == database)
            .unwrap_or(self.shared_account())
    }

    /// The same for one that is about to have another slot.
    fn add_account(&self, database: u32) -> &SlotAccount {
        let account = self.account_of(database);
        if account.slots.load(Ordering::Relaxed) > 0 {
            return account;
        }
        let used = self.accounts_used.load(Ordering::Relaxed);
        let is_free = |account: &&SlotAccount| account.database.load(Ordering::Relaxed) == 0;
        let free = self
            .accounts
            .iter()
            .take(SHARED)
            .zip(0..)
            .find(|(account, _)| is_free(account));
        let Some((free, number)) = free else {
            return account;
        };
        self.accounts_used
            .store(used.max(number + 1), Ordering::Relaxed);
        free.database.store(database, Ordering::Relaxed);
        free
    }

    /// The slot that the ring's hand is at, which goes on to the next one.
    fn advance_hand(&self, account: &SlotAccount) -> Option<&'static Slot> {
        let index = account.hand.load(Ordering::Relaxed).checked_sub(1)?;
        let slot = self.slot(index);
        let next = slot.ring_next.load(Ordering::Relaxed);
        account.hand.store(next, Ordering::Relaxed);
        Some(slot)
    }

    /// The slots of a database, or of one table. Under the directory lock.
    pub(super) fn slots_locked(
        &self,
        database: u32,
        relation: Option<u32>,
    ) -> impl Iterator<Item = &'static Slot> {
        self.ring(self.account_of(database)).filter(move |slot| {
            let key = Self::key(slot);
            key.database == database && relation.is_none_or(|r| r == key.relation)
        })
    }

    fn ring(&self, account: &SlotAccount) -> impl Iterator<Item = &'static Slot> {
        let mut next = account.hand.load(Ordering::Relaxed);
        (0..account.slots.load(Ordering::Relaxed)).map_while(move |_| {
            let slot = self.slot(next.checked_sub(1)?);
            next = slot.ring_next.load(Ordering::Relaxed);
            Some(slot)
        })
    }

    /// Gives a free slot to a tag. The directory is held exclusively.
    pub(super) fn give(&self, slot: &'static Slot, key: &Key) {
        let bucket = self.bucket(key);
        // SAFETY: the directory is held exclusively, the slot is in no chain.
        unsafe { *slot.key.get() = *key };
        let mine = self.index(slot) + 1;
        slot.next
            .store(bucket.load(Ordering::Relaxed), Ordering::Relaxed);
        bucket.store(mine, Ordering::Relaxed);
        let now = self.gives.fetch_add(1, Ordering::Relaxed);
        slot.used_at.store(now, Ordering::Relaxed);
        slot.seen_mark.store(short_mark(slot), Ordering::Relaxed);

        // Where the hand comes last.
        let account = self.add_account(key.database);
        let (mut before, mut after) = (mine, mine);
        if let Some(index) = account.hand.load(Ordering::Relaxed).checked_sub(1) {
            let hand = self.slot(index);
            after = index + 1;
            before = hand.ring_before.load(Ordering::Relaxed);
        } else {
            account.hand.store(mine, Ordering::Relaxed);
        }
        slot.ring_before.store(before, Ordering::Relaxed);
        slot.ring_next.store(after, Ordering::Relaxed);
        self.slot(before - 1)
            .ring_next
            .store(mine, Ordering::Relaxed);
        self.slot(after - 1)
            .ring_before
            .store(mine, Ordering::Relaxed);
        account.slots.fetch_add(1, Ordering::Relaxed);
    }

    fn leave_ring(&self, slot: &Slot) {
        let account = self.account_of(Self::key(slot).database);
        let mine = self.index(slot) + 1;
        let before = slot.ring_before.load(Ordering::Relaxed);
        let after = slot.ring_next.load(Ordering::Relaxed);
        if after == mine {
            account.hand.store(0, Ordering::Relaxed);
        } else {
            self.slot(before - 1)
                .ring_next
                .store(after, Ordering::Relaxed);
            self.slot(after - 1)
                .ring_before
                .store(before, Ordering::Relaxed);
            if account.hand.load(Ordering::Relaxed) == mine {
                account.hand.store(after, Ordering::Relaxed);
            }
        }
        if account.slots.fetch_sub(1, Ordering::Relaxed) == 1 {
            account.database.store(0, Ordering::Relaxed);
        }
    }

    fn leave_bucket(&self, slot: &Slot) {
        let mut link = self.bucket(&Self::key(slot));
        while let Some(index) = link.load(Ordering::Relaxed).checked_sub(1) {
            let here = self.slot(index);
            if core::ptr::eq(here, slot) {
                link.store(slot.next.load(Ordering::Relaxed), Ordering::Relaxed);
                break;
            }
            link = &here.next;
        }
    }

    /// Takes a slot away from its tag: out of its chain and its ring, its buffers a gap, its
    /// memory of the tag blank. How many ids that are; `None` if it is wanted, and then
    /// nothing is done unless it is `gone`. The directory is held exclusively.
    fn take_away(&self, slot: &'static Slot, gone: bool) -> Option<u64> {
        let lost = self.with_state(slot, |state| {
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
        self.leave_ring(slot);
        // SAFETY: the directory is held exclusively.
        unsafe { *slot.key.get() = Key::FREE };
        slot.starved.store(0, Ordering::Relaxed);
        slot.edited_by.store(0, Ordering::Relaxed);
        slot.waits.store(0, Ordering::Relaxed);
        slot.waited_us.store(0, Ordering::Relaxed);
        slot.wake();
        Some(lost)
    }

    /// Makes room for a tag of this database. The directory is held exclusively.
    pub(super) fn evict(&self, database: u32) -> Option<&'static Slot> {
        let slots = |account: &&SlotAccount| account.slots.load(Ordering::Relaxed);
        let own = self.account_of(database);
        let most = self
            .used_accounts()
            .chain([self.shared_account()])
            .max_by_key(slots)
            .filter(|most| slots(most) > slots(&own))
            .unwrap_or(own);
        // None of its own where those cannot be had: they can in a moment, and a database whose
        // requests nobody answers must not cost others what they have cached.
        self.evict_from(most).map(|(slot, lost)| {
            self.evictions.fetch_add(1, Ordering::Relaxed);
            self.lose_evicted(lost);
            slot
        })
    }

    /// The longest unused slot of a sample that starts where the last one ended.
    fn evict_from(&self, account: &SlotAccount) -> Option<(&'static Slot, u64)> {
        let (clock, now) = (self.gives.load(Ordering::Relaxed), pg::now_timestamp());
        let mut victim: Option<&'static Slot> = None;
        let mut longest = 0;
        for _ in 0..SAMPLE.min(account.slots.load(Ordering::Relaxed)) {
            let slot = self.advance_hand(account)?;
            // Compared by when it was seen used before: all were used since the last look
            // where the array is much too small.
            let unused = clock.wrapping_sub(slot.used_at.load(Ordering::Relaxed));
            let mark = short_mark(slot);
            if slot.seen_mark.swap(mark, Ordering::Relaxed) != mark {
                slot.used_at.store(clock, Ordering::Relaxed);
            }
            let held = slot.buffer.is_requested()
                && (slot.buffer.is_wanted() || now.abs_diff(slot.want_from(now)) < PATIENCE_US);
            if !held && (victim.is_none() || unused > longest) {
                victim = Some(slot);
                longest = unused;
            }
        }
        let slot = victim?;
        // None if a session wants it by now: the next call looks at others.
        self.take_away(slot, false).map(|lost| (slot, lost))
    }

    /// Counts ids that were lost by an eviction.
    pub(super) fn lose_evicted(&self, ids: u64) {
        self.evicted_ids.fetch_add(ids, Ordering::Relaxed);
    }

    /// Frees the slots of a table that is gone.
    pub fn sweep(&self, database: u32, relation: u32) {
        self.free_all(database, |slot| {
            Self::key(slot).relation == relation && self.take_away(slot, false).is_some()
        });
    }

    /// Frees everything of a database that is gone, or that is about to come into being with
    /// an oid that another one had. Allocates nothing and cannot fail: it runs in a commit
    /// callback.
    pub fn forget_database(&self, database: u32) {
        self.forget_queue(database);
        self.free_all(database, |slot| self.take_away(slot, true).is_some());
        self.forget_remote_servers(database);
    }

    /// Frees the slots of a database that the closure has taken away, with pauses.
    fn free_all(&self, database: u32, taken_away: impl Fn(&'static Slot) -> bool) {
        let mut left = None;
        loop {
            let _held = self.write_directory();
            let account = self.account_of(database);
            let left = left.get_or_insert(account.slots.load(Ordering::Relaxed));
            for _ in 0..CHUNK {
                let (Some(less), Some(slot)) = (left.checked_sub(1), self.advance_hand(account))
                else {
                    return;
                };
                *left = less;
                if Self::key(slot).database == database && taken_away(slot) {
                    let free = self.free.load(Ordering::Relaxed);
                    slot.next.store(free, Ordering::Relaxed);
                    self.free.store(self.index(slot) + 1, Ordering::Relaxed);
                }
            }
        }
    }

    /// The tables of a database that have slots.
    pub fn relations_of(&self, database: u32) -> Vec<u32> {
        let mut relations = Vec::with_capacity(RELATIONS);
        let _held = self.read_directory();
        for slot in self.slots_locked(database, None) {
            let relation = Self::key(slot).relation;
            // Never beyond what was allocated before the lock.
            if relations.len() < RELATIONS && !relations.contains(&relation) {
                relations.push(relation);
            }
        }
        relations
    }

    /// What the slots are used for.
    pub fn slot_counts(&self) -> SlotCounts {
        let _held = self.read_directory();
        let accounts = self.used_accounts().chain([self.shared_account()]);
        let used = accounts.map(|account| account.slots.load(Ordering::Relaxed));
        SlotCounts {
            slots: self.slot_count,
            used: used.sum(),
            evictions: self.evictions.load(Ordering::Relaxed),
            ids_lost: self.evicted_ids.load(Ordering::Relaxed),
        }
    }

    /// Databases that have slots; some of them repeatedly.
    pub fn databases(&self) -> Vec<u32> {
        let mut databases = Vec::with_capacity(2 * ACCOUNTS);
        let _held = self.read_directory();
        let accounts = self.used_accounts();
        databases.extend(accounts.map(|account| account.database.load(Ordering::Relaxed)));
        for slot in self.ring(self.shared_account()) {
            // Never beyond what was allocated before the lock.
            if databases.len() < databases.capacity() {
                databases.push(Self::key(slot).database);
            }
        }
        databases
    }

    /// What the status view shows of one database: every slot with its tag.
    pub fn slots_of(&self, database: u32, relation: u32) -> Vec<(Tag, &'static Slot)> {
        let mut found = Vec::with_capacity(self.used.load(Ordering::Relaxed) as usize);
        let _held = self.read_directory();
        for slot in self.slots_locked(database, Some(relation)) {
            // Never beyond what was allocated before the lock.
            if found.len() < found.capacity() {
                found.push((Self::key(slot).tag, slot));
            }
        }
        found
    }
}

/// Tables of one database that are told apart: the extension's, and what was left by those
/// before.
const RELATIONS: usize = 16;
