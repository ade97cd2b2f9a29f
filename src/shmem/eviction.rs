//! Slots per database, and the choice of the slot to evict.
//!
//! An account counts the slots of one database and links them into a ring. If no slot is free, a
//! new tag evicts the least recently used slot in a sample of the database that holds the most
//! slots; of its own, if no other holds more. A database with thousands of tags thus evicts its
//! own, and the work per eviction is bounded: all accounts, and [`SAMPLE`] slots.
//!
//! The counts are exact. Sampling the whole array would often pick the wrong database if several
//! hold about the same number. Databases beyond [`ACCOUNTS`] share the last account and count as
//! one. While the shared account has slots, every database without an account joins it, so that all
//! slots of a database are in one ring.
//!
//! Everything here is protected by the directory lock; changes need it exclusively.
//!
//! # Slots with an open request
//!
//! 1. A session sets the request; it is now *wanted*. It posts the slot under the directory lock,
//!    shared, if the slot still belongs to its database, and withdraws the request otherwise. A
//!    wanted slot is never evicted: it is on a list, or about to be.
//! 2. The allocator takes the slot off the list. Under the directory lock, shared, it accepts the
//!    request and reads the slot's key. The request is now *in flight* and has a number; the slot
//!    is on no list.
//! 3. A slot in flight can be evicted once its request has been open for [`PATIENCE_US`]: its row
//!    is locked, or its source server is down. Under the directory lock, exclusively, and the
//!    slot's lock, the request is closed, the buffers are invalidated (which ends the version) and
//!    the slot state is cleared.
//! 4. Afterwards the allocator acts on the slot only under the slot's lock, and only if its request
//!    is still the one in flight, or in the version that it read while it was. So its claim is
//!    never published, recorded or counted for another tag, and no other request is cleared.
//!    Eviction is detected the next time the request is serviced.
//!
//! Dropping a database frees all its slots, wanted ones included. Its list is drained first. A
//! session that has set a request but not yet posted it finds that the slot no longer belongs to
//! its database.

use leaf_id_core::primitive::{AtomicU32, Ordering};

use super::slot::Slot;
use super::slots::Slots;
use crate::pg;

/// Max databases with an account, including the shared one.
pub const ACCOUNTS: usize = 4096;
/// Index of the shared account.
const SHARED: usize = ACCOUNTS - 1;
/// Slots examined per eviction: all slots of a small database, a sample of a large one.
const SAMPLE: u32 = 64;
/// Age at which an unanswered request no longer pins its slot, in microseconds.
const PATIENCE_US: u64 = 1_000_000;

/// Account of one database.
#[repr(C)]
pub struct SlotAccount {
    /// Database oid; 0 if the account is free or shared.
    database: AtomicU32,
    /// Number of slots in the ring.
    slots: AtomicU32,
    /// Ring position where the next eviction starts, a link.
    hand: AtomicU32,
}

impl SlotAccount {
    /// Number of slots in the ring.
    pub fn len(&self) -> u32 {
        self.slots.load(Ordering::Relaxed)
    }

    /// Returns the slot at the hand and advances the hand.
    pub fn advance_hand(&self, slots: &Slots) -> Option<&'static Slot> {
        let slot = slots.at(self.hand.load(Ordering::Relaxed))?;
        let next = slot.ring_next.load(Ordering::Relaxed);
        self.hand.store(next, Ordering::Relaxed);
        Some(slot)
    }

    /// The slots in the ring, starting at the hand.
    pub fn ring(&self, slots: &Slots) -> impl Iterator<Item = &'static Slot> {
        let mut next = self.hand.load(Ordering::Relaxed);
        (0..self.len()).map_while(move |_| {
            let slot = slots.at(next)?;
            next = slot.ring_next.load(Ordering::Relaxed);
            Some(slot)
        })
    }

    /// The least recently used slot of a sample that starts where the last one ended.
    fn longest_unused(&self, slots: &Slots, clock: u32) -> Option<&'static Slot> {
        let now = pg::now_timestamp();
        let mut victim: Option<&'static Slot> = None;
        let mut longest = 0;
        for _ in 0..SAMPLE.min(self.len()) {
            let slot = self.advance_hand(slots)?;
            // Ordered by the last eviction that saw the slot used. In an array that is much too
            // small all slots have been used since the last pass.
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

/// The buffer's mark in 32 bits, to detect use between two passes.
fn short_mark(slot: &Slot) -> u32 {
    let mark = slot.buffer.mark();
    #[expect(clippy::cast_possible_truncation, reason = "both halves count")]
    let (high, low) = ((mark >> 32) as u32, mark as u32);
    // A switch of buffers resets the offset, but not to its former value.
    high.wrapping_mul(0x9E37_79B9) ^ low
}

/// All accounts. All zeroes means none.
#[repr(C)]
pub struct Accounts {
    /// Number of entries ever used.
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

    /// The account shared by all databases without one of their own.
    pub fn shared(&self) -> &SlotAccount {
        let [.., last] = &self.entries;
        last
    }

    /// The databases with an account of their own.
    pub fn databases(&self) -> impl Iterator<Item = u32> {
        self.used()
            .map(|account| account.database.load(Ordering::Relaxed))
    }

    /// Number of assigned slots, all databases together.
    pub fn slots(&self) -> u32 {
        self.used()
            .chain([self.shared()])
            .map(SlotAccount::len)
            .sum()
    }

    /// The account of a database; the shared one if it has none.
    pub fn of(&self, database: u32) -> &SlotAccount {
        self.used()
            .find(|account| account.database.load(Ordering::Relaxed) == database)
            .unwrap_or(self.shared())
    }

    /// The account that the next slot of a database joins, created if possible.
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

    /// Adds a slot just assigned to a tag of this database; `clock` is the eviction clock.
    pub fn join(&self, slots: &Slots, slot: &Slot, database: u32, clock: u32) {
        slot.used_at.store(clock, Ordering::Relaxed);
        slot.seen_mark.store(short_mark(slot), Ordering::Relaxed);
        // Insert behind the hand: examined last.
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

    /// Removes a slot from its database's account.
    pub fn leave(&self, slots: &Slots, slot: &Slot, database: u32) {
        let account = self.of(database);
        debug_assert!(account.len() > 0, "an account without slots");
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

    /// The slot to evict for a tag of this database.
    pub fn victim(&self, slots: &Slots, database: u32, clock: u32) -> Option<&'static Slot> {
        let own = self.of(database);
        let most = self
            .used()
            .chain([self.shared()])
            .max_by_key(|account| account.len())
            .filter(|most| most.len() > own.len())
            .unwrap_or(own);
        // No fallback to another account. Pinned slots become available within PATIENCE_US, and a
        // database whose requests are not answered must not evict the caches of others.
        most.longest_unused(slots, clock)
    }
}

fn close_ring(slots: &Slots, before: u32, after: u32) {
    if let (Some(first), Some(second)) = (slots.at(before), slots.at(after)) {
        first.ring_next.store(after, Ordering::Relaxed);
        second.ring_before.store(before, Ordering::Relaxed);
    }
}
