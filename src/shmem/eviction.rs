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
//!    and no other request is cleared. It drops the request when it comes to it next.
//!
//! A database that is gone takes its slots along, wanted ones too: its list is emptied
//! first, and who has set a request and not posted it finds that the slot is not its own.

use core::sync::atomic::{AtomicU32, Ordering};

use super::slot::Slot;
use super::slots::Slots;
use crate::pg;

/// Databases whose slots are counted each for itself.
pub const ACCOUNTS: usize = 4096;
/// The entry that all others share.
const SHARED: usize = ACCOUNTS - 1;
/// Slots looked at to find one to evict: all of a small database's, a sample of a large one's.
const SAMPLE: u32 = 64;
/// For how long an unanswered request keeps its slot, in microseconds.
const PATIENCE_US: u64 = 1_000_000;

/// A database that has slots.
#[repr(C)]
pub struct SlotAccount {
    /// Its oid; 0 where the entry is free, or shared.
    database: AtomicU32,
    /// How many slots it has.
    slots: AtomicU32,
    /// Where the next eviction begins to look in its ring: a link.
    hand: AtomicU32,
}

impl SlotAccount {
    /// How many slots it has.
    pub fn len(&self) -> u32 {
        self.slots.load(Ordering::Relaxed)
    }

    /// The slot that the ring's hand is at, which goes on to the next one.
    pub fn advance_hand(&self, slots: &Slots) -> Option<&'static Slot> {
        let slot = slots.at(self.hand.load(Ordering::Relaxed))?;
        let next = slot.ring_next.load(Ordering::Relaxed);
        self.hand.store(next, Ordering::Relaxed);
        Some(slot)
    }

    /// Its slots.
    pub fn ring(&self, slots: &Slots) -> impl Iterator<Item = &'static Slot> {
        let mut next = self.hand.load(Ordering::Relaxed);
        (0..self.len()).map_while(move |_| {
            let slot = slots.at(next)?;
            next = slot.ring_next.load(Ordering::Relaxed);
            Some(slot)
        })
    }

    /// The longest unused slot of a sample that starts where the last one ended.
    fn longest_unused(&self, slots: &Slots, clock: u32) -> Option<&'static Slot> {
        let now = pg::now_timestamp();
        let mut victim: Option<&'static Slot> = None;
        let mut longest = 0;
        for _ in 0..SAMPLE.min(self.len()) {
            let slot = self.advance_hand(slots)?;
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
        victim
    }
}

/// A slot's mark, in less room: whether it was used between two looks.
fn short_mark(slot: &Slot) -> u32 {
    let mark = slot.buffer.mark();
    #[expect(clippy::cast_possible_truncation, reason = "both halves count")]
    let (high, low) = ((mark >> 32) as u32, mark as u32);
    // A switch resets the offset: not to what it was before.
    high.wrapping_mul(0x9E37_79B9) ^ low
}

/// The databases that have slots. All zeroes is none.
#[repr(C)]
pub struct Accounts {
    /// Entries that were ever used.
    used: AtomicU32,
    entries: [SlotAccount; ACCOUNTS],
}

impl Accounts {
    fn used(&self) -> impl Iterator<Item = &SlotAccount> {
        self.entries
            .iter()
            .take(self.used.load(Ordering::Relaxed) as usize)
            .filter(|account| account.database.load(Ordering::Relaxed) != 0)
    }

    /// The entry that all databases share that have none of their own.
    pub fn shared(&self) -> &SlotAccount {
        let [.., last] = &self.entries;
        last
    }

    /// The databases that have an entry of their own.
    pub fn databases(&self) -> impl Iterator<Item = u32> {
        self.used()
            .map(|account| account.database.load(Ordering::Relaxed))
    }

    /// How many slots all databases have.
    pub fn slots(&self) -> u32 {
        self.used()
            .chain([self.shared()])
            .map(SlotAccount::len)
            .sum()
    }

    /// The entry that a database's slots are counted in, if it has any.
    pub fn of(&self, database: u32) -> &SlotAccount {
        self.used()
            .find(|account| account.database.load(Ordering::Relaxed) == database)
            .unwrap_or(self.shared())
    }

    /// The same for one that is about to have another slot.
    fn add(&self, database: u32) -> &SlotAccount {
        let account = self.of(database);
        if account.len() > 0 {
            return account;
        }
        let used = self.used.load(Ordering::Relaxed);
        let is_free = |account: &&SlotAccount| account.database.load(Ordering::Relaxed) == 0;
        let free = self
            .entries
            .iter()
            .take(SHARED)
            .zip(0..)
            .find(|(account, _)| is_free(account));
        let Some((free, number)) = free else {
            return account;
        };
        self.used.store(used.max(number + 1), Ordering::Relaxed);
        free.database.store(database, Ordering::Relaxed);
        free
    }

    /// Counts a slot that is given to a tag of this database, by the clock of evictions.
    pub fn join(&self, slots: &Slots, slot: &Slot, database: u32, clock: u32) {
        slot.used_at.store(clock, Ordering::Relaxed);
        slot.seen_mark.store(short_mark(slot), Ordering::Relaxed);
        // Where the hand comes last.
        let account = self.add(database);
        let mine = slots.link(slot);
        let (mut before, mut after) = (mine, mine);
        let hand = account.hand.load(Ordering::Relaxed);
        if let Some(at_hand) = slots.at(hand) {
            after = hand;
            before = at_hand.ring_before.load(Ordering::Relaxed);
        } else {
            account.hand.store(mine, Ordering::Relaxed);
        }
        slot.ring_before.store(before, Ordering::Relaxed);
        slot.ring_next.store(after, Ordering::Relaxed);
        close_ring(slots, before, mine);
        close_ring(slots, mine, after);
        account.slots.fetch_add(1, Ordering::Relaxed);
    }

    /// The slot is taken away from its tag.
    pub fn leave(&self, slots: &Slots, slot: &Slot, database: u32) {
        let account = self.of(database);
        let mine = slots.link(slot);
        let before = slot.ring_before.load(Ordering::Relaxed);
        let after = slot.ring_next.load(Ordering::Relaxed);
        if after == mine {
            account.hand.store(0, Ordering::Relaxed);
        } else {
            close_ring(slots, before, after);
            if account.hand.load(Ordering::Relaxed) == mine {
                account.hand.store(after, Ordering::Relaxed);
            }
        }
        if account.slots.fetch_sub(1, Ordering::Relaxed) == 1 {
            account.database.store(0, Ordering::Relaxed);
        }
    }

    /// The slot that should make room for a tag of this database.
    pub fn victim(&self, slots: &Slots, database: u32, clock: u32) -> Option<&'static Slot> {
        let own = self.of(database);
        let most = self
            .used()
            .chain([self.shared()])
            .max_by_key(|account| account.len())
            .filter(|most| most.len() > own.len())
            .unwrap_or(own);
        // None of its own where those cannot be had: they can in a moment, and a database whose
        // requests nobody answers must not cost others what they have cached.
        most.longest_unused(slots, clock)
    }
}

/// Makes two slots of a ring neighbors.
fn close_ring(slots: &Slots, before: u32, after: u32) {
    if let (Some(first), Some(second)) = (slots.at(before), slots.at(after)) {
        first.ring_next.store(after, Ordering::Relaxed);
        second.ring_before.store(before, Ordering::Relaxed);
    }
}
