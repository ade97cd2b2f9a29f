//! The snowflake word: the last issued id itself, advanced by compare-and-swap.
//!
//! Layout (see [`crate::layout`]): sign 0, milliseconds since the epoch, worker id, sequence. Since
//! the word is an id, the next one only has to be larger: strictly increasing ids (I4) need no
//! other state.
//!
//! Bit 63 of the word means closed: nothing is issued until the launcher has ensured that no
//! earlier id can be issued again (I7). So does 0, which no open word ever is: an open word is
//! positive as a signed number.
//!
//! No two open words are ever equal: issuing increases the word, and opening sets it to the end of
//! a millisecond at whose end it has not been before. So an exchange prepared before a close cannot
//! succeed after the next open. Only `leaf_snowflake_reset` moves the word back, and then with
//! another worker id.
//!
//! # The logical clock
//!
//! The timestamp of an id is a logical clock, as in hybrid logical clocks: the wall clock, or the
//! timestamp of the last id if the clock is behind it. The lead is how far an id's timestamp is
//! ahead of the clock. An id is issued only
//!
//! 1. if its lead is within the bound ([`Lead`]): the clock is read after the word, or is the
//!    timestamp itself;
//! 2. if its timestamp is reserved (I7);
//! 3. if the worker id may be used: checked at each new millisecond; while ids lead, for each id,
//!    since a millisecond then lasts until it is full.
//!
//! Load does not cause a lead, only faults do: while ids lead, a call that finds the millisecond
//! full begins the next one only after the clock has advanced since then. So a millisecond lasts
//! for one of the clock or longer, and the lead does not grow. Within [`Lead::burst_ms`] the next
//! millisecond begins at once.

use core::sync::atomic::{
    AtomicI64 as PlainI64, AtomicU32 as PlainU32, AtomicU64 as PlainU64, Ordering::Relaxed,
};

use crate::layout::{Layout, Parts};
use crate::primitive::{AtomicI64, AtomicU64, Ordering};

/// Leaf's and Twitter's epoch in Unix milliseconds: 2010-11-04 01:42:54.657 UTC.
pub const DEFAULT_EPOCH_MS: i64 = 1_288_834_974_657;
/// A new millisecond starts at a random sequence below this, and within a quarter of the sequence
/// range (Leaf). Otherwise all ids of a quiet server would end in the same digits.
pub const START_SPREAD: u16 = 100;

const CLOSED: u64 = 1 << 63;

fn is_open(word: u64) -> bool {
    word.cast_signed() > 0
}

/// Limits for the lead of ids over the clock, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lead {
    /// `leaf_id.max_clock_lead`, or less if the worker registry allows less.
    pub max_ms: i64,
    /// `leaf_id.max_burst_lead`, or less: up to this lead, a full millisecond borrows from the
    /// next.
    pub burst_ms: i64,
}

impl Lead {
    /// No lead.
    pub const NONE: Self = Self {
        max_ms: 0,
        burst_ms: 0,
    };
}

/// A full millisecond, and the clock when a call found it full. In milliseconds since the epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full {
    /// The full millisecond.
    pub ms: i64,
    /// The clock then.
    pub found_at_ms: i64,
}

/// Reason why no id can be issued now. Times in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stall {
    /// The word is not open.
    Closed,
    /// The millisecond is used up. The call may begin the next one at the next tick of the clock.
    Full(Full),
    /// The clock is so far behind the last id that the lead would exceed its bound by this much.
    TooFarAhead(i64),
    /// The timestamp is not reserved; the reservation must be renewed first (I7).
    Unreserved,
    /// The timestamp does not fit in the layout's bits (I8).
    EndOfTime,
}

/// An issued id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Issued {
    /// The id.
    pub id: i64,
    /// Lead of its timestamp over the clock, in milliseconds; never negative.
    pub lead_ms: i64,
}

/// The generator of a server. All zeroes is closed, with nothing reserved.
#[repr(C)]
pub struct Generator {
    word: AtomicU64,
    /// Last millisecond since the epoch that may be issued. On disk before it is stored here (I7).
    reserved_until: AtomicI64,
    /// [`Layout::pack`]; 0, which is no layout, until [`Generator::set_layout`].
    layout: PlainU32,
    /// Ids issued before the current millisecond, minus its starting sequence. Plus the word's
    /// sequence it is the total.
    issued_before: PlainU64,
    max_lead: PlainI64,
    burst_lead: PlainI64,
    /// Largest value that [`Generator::issued`] has returned.
    shown: PlainU64,
}

impl Generator {
    /// A closed generator. In shared memory, zeroes are used instead.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        Self {
            word: AtomicU64::new(CLOSED),
            reserved_until: AtomicI64::new(0),
            layout: PlainU32::new(layout.pack()),
            issued_before: PlainU64::new(0),
            max_lead: PlainI64::new(0),
            burst_lead: PlainI64::new(0),
            shown: PlainU64::new(0),
        }
    }

    /// Sets the layout of ids. Before the generator is opened for the first time.
    pub fn set_layout(&self, layout: Layout) {
        self.layout.store(layout.pack(), Relaxed);
    }

    /// Layout of ids.
    #[must_use]
    #[inline]
    pub fn layout(&self) -> Layout {
        Layout::of_packed(self.layout.load(Relaxed))
    }

    fn parts(&self, word: u64) -> Parts {
        self.layout().parts(word & !CLOSED)
    }

    /// Sets the limits for the lead.
    pub fn set_lead(&self, lead: Lead) {
        self.max_lead.store(lead.max_ms, Relaxed);
        self.burst_lead.store(lead.burst_ms, Relaxed);
    }

    /// Limits for the lead.
    #[must_use]
    pub fn lead(&self) -> Lead {
        Lead {
            max_ms: self.max_lead.load(Relaxed),
            burst_ms: self.burst_lead.load(Relaxed),
        }
    }

    /// Number of ids issued since the generator was zeroed. Never decreases. May be off by the ids
    /// of one millisecond if that is beginning, or the generator being opened, concurrently.
    #[must_use]
    pub fn issued(&self) -> u64 {
        let before = self.issued_before.load(Relaxed);
        let sequence = self.parts(self.word.load(Ordering::Acquire)).sequence;
        let count = before.wrapping_add(sequence.into());
        // Between the exchange of the word and the update of the count, the sum may be invalid.
        let count = if count.cast_signed() < 0 { 0 } else { count };
        self.shown.fetch_max(count, Relaxed).max(count)
    }

    /// Accounts for a change of millisecond: the old one was left at sequence `left`, and the first
    /// sequence of the new one follows `begun_before`.
    fn count_to(&self, left: u16, begun_before: i64) {
        let ids = i64::from(left) - begun_before;
        self.issued_before.fetch_add(ids.cast_unsigned(), Relaxed);
    }

    /// Issues the next id of the last id's millisecond, if that is not over or full: exchanges only,
    /// and nothing that can panic. `None` means only that [`Generator::next`] must be called.
    ///
    /// The clock is read before the word, unlike in [`Generator::next`]: reading it takes longer
    /// than an exchange, and between the word and the exchange it let sessions on many processors
    /// fail each other's. The id has the millisecond just read, so the order does not matter; a
    /// session that sleeps in between issues one id below the reservation, as does one that sleeps
    /// just before its exchange.
    #[inline]
    pub fn next_at_once(&self, now_ms: impl FnOnce() -> i64) -> Option<i64> {
        let now = now_ms();
        let layout = self.layout();
        let mut word = self.word.load(Ordering::Acquire);
        // Ends when the millisecond is full, at the latest.
        loop {
            let last = layout.parts(word);
            if !is_open(word) || last.sequence == layout.max_sequence() || now != last.ms {
                return None;
            }
            match self.word.compare_exchange_weak(
                word,
                word + 1,
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Some((word + 1).cast_signed()),
                Err(other) => word = other,
            }
        }
    }

    /// Issues the next id. `now_ms` reads the clock (milliseconds since the epoch), and `start`
    /// draws a sequence from 0 to its argument for the first id of a millisecond. `full`: the
    /// millisecond that this call has waited for, by its last [`Stall::Full`].
    ///
    /// The clock is read after the word, so that a word advanced by another session in between does
    /// not look like a clock that went back.
    ///
    /// # Errors
    /// See [`Stall`].
    #[inline]
    pub fn next(
        &self,
        mut now_ms: impl FnMut() -> i64,
        mut start: impl FnMut(u16) -> u16,
        full: Option<Full>,
    ) -> Result<Issued, Stall> {
        loop {
            let word = self.word.load(Ordering::Acquire);
            if !is_open(word) {
                return Err(Stall::Closed);
            }
            let now = now_ms();
            let layout = self.layout();
            let last = layout.parts(word);
            let ms = if now > last.ms {
                now
            } else if last.sequence < layout.max_sequence() {
                last.ms
            } else {
                self.after_full(full, last.ms, now)?
            };
            let begins = ms > last.ms;
            let lead_ms = self.check(ms, begins, now)?;
            let next = if begins {
                let worker_id = last.worker_id;
                let spread = (START_SPREAD - 1).min(layout.max_sequence() / 4);
                let sequence = start(spread);
                let first = Parts {
                    ms,
                    worker_id,
                    sequence,
                };
                layout.compose(first).cast_unsigned()
            } else {
                word + 1
            };
            if self
                .word
                .compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                if begins {
                    let sequence = layout.parts(next).sequence;
                    self.count_to(last.sequence, i64::from(sequence) - 1);
                }
                let id = next.cast_signed();
                return Ok(Issued { id, lead_ms });
            }
        }
    }

    /// Checks that the next id may have this timestamp: the conditions in the header. Returns its
    /// lead.
    #[inline]
    fn check(&self, ms: i64, begins: bool, now_ms: i64) -> Result<i64, Stall> {
        let lead_ms = ms - now_ms;
        if lead_ms > 0 {
            let max_ms = self.lead().max_ms;
            if lead_ms > max_ms {
                return Err(Stall::TooFarAhead(lead_ms - max_ms));
            }
        }
        if begins && ms > self.layout().max_ms() {
            return Err(Stall::EndOfTime);
        }
        if begins && ms > self.reserved_until.load(Ordering::Acquire) {
            return Err(Stall::Unreserved);
        }
        Ok(lead_ms)
    }

    /// The millisecond after a full one that the clock has not passed.
    fn after_full(&self, full: Option<Full>, last_ms: i64, now_ms: i64) -> Result<i64, Stall> {
        let ms = last_ms + 1;
        let lead = self.lead();
        let borrows = ms - now_ms <= lead.burst_ms.min(lead.max_ms);
        let waited = full.is_some_and(|full| full.ms == last_ms && full.found_at_ms < now_ms);
        if borrows || waited {
            return Ok(ms);
        }
        Err(Stall::Full(Full {
            ms: last_ms,
            found_at_ms: now_ms,
        }))
    }

    /// True if ids can be issued at all.
    #[must_use]
    pub fn is_open(&self) -> bool {
        is_open(self.word.load(Ordering::Acquire))
    }

    /// The last issued id, or the position where the word was opened. Its worker id is the one in
    /// force.
    #[must_use]
    pub fn last(&self) -> Parts {
        self.parts(self.word.load(Ordering::Acquire))
    }

    /// Last millisecond since the epoch that may be issued.
    #[must_use]
    pub fn reserved_until(&self) -> i64 {
        self.reserved_until.load(Ordering::Acquire)
    }

    /// Raises the reservation to `until_ms`, in milliseconds since the epoch; never lowers it. Must
    /// be on disk before (I7).
    pub fn reserve(&self, until_ms: i64) {
        self.reserved_until.fetch_max(until_ms, Ordering::AcqRel);
    }

    /// Stops issuing and returns the parts of the last id: no later call gets an id until
    /// [`Generator::open`]. Drops the reservation beyond that id, so that the caller may write the
    /// exact last timestamp to disk.
    pub fn close(&self) -> Parts {
        let last = self.parts(self.word.fetch_or(CLOSED, Ordering::AcqRel));
        self.reserved_until.store(last.ms, Ordering::Release);
        last
    }

    /// Sets a closed word to the end of a millisecond since the epoch, possibly below ids it has
    /// issued: those have another worker id, or do not conflict. Only for `leaf_snowflake_reset`.
    pub fn rewind(&self, worker_id: u16, to_ms: i64) {
        let layout = self.layout();
        let rewound = Parts {
            ms: to_ms.clamp(0, layout.max_ms()),
            worker_id,
            sequence: layout.max_sequence(),
        };
        let before = self.word.swap(
            CLOSED | layout.compose(rewound).cast_unsigned(),
            Ordering::AcqRel,
        );
        self.count_to(self.parts(before).sequence, rewound.sequence.into());
        self.reserved_until.store(rewound.ms, Ordering::Release);
    }

    /// Starts issuing with this worker id, above `floor_ms` and every earlier id: the first id has
    /// a later millisecond than both (I4, I7). Also changes the worker id of an open word. The
    /// current reservation then applies to the new worker id, too, and must be on disk for it
    /// first.
    pub fn open(&self, worker_id: u16, floor_ms: i64) {
        let layout = self.layout();
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let last = self.parts(word);
            // A full millisecond: nothing of it can be issued, and the next one is above every
            // earlier id, whatever the worker ids. If the last one is full already, skip it, or the
            // word would repeat an earlier one: see the header.
            let after = last.ms + i64::from(last.sequence == layout.max_sequence());
            let opened = Parts {
                ms: after.max(floor_ms).min(layout.max_ms()),
                worker_id,
                sequence: layout.max_sequence(),
            };
            match self.word.compare_exchange(
                word,
                layout.compose(opened).cast_unsigned(),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return self.count_to(last.sequence, opened.sequence.into()),
                Err(now) => word = now,
            }
        }
    }
}

#[cfg(all(test, not(leaf_id_loom)))]
mod tests {
    //! Would catch: ids issued from uninitialized shared memory.

    use super::*;

    fn zeroed() -> Generator {
        Generator {
            word: AtomicU64::new(0),
            ..Generator::new(Layout::DEFAULT)
        }
    }

    #[test]
    fn zeroed_memory_issues_nothing() {
        let issued = |generator: &Generator, now| generator.next(|| now, |_| 0, None);
        // Includes the first millisecond of the epoch, which compares equal.
        for now in [-1, 0, 1, Layout::DEFAULT.max_ms()] {
            assert!(!zeroed().is_open());
            assert_eq!(issued(&zeroed(), now), Err(Stall::Closed));
        }
        let reserved = zeroed();
        reserved.reserve(10);
        assert_eq!(issued(&reserved, 0), Err(Stall::Closed));
        reserved.open(0, 0);
        assert!(reserved.is_open());
        let (id, lead_ms) = (1 << 22, 0);
        assert_eq!(issued(&reserved, 1), Ok(Issued { id, lead_ms }));
        assert_eq!(reserved.issued(), 1);
    }
}
