//! The snowflake word: the last issued id itself, advanced by compare-and-swap.
//!
//! Layout (Leaf's and Twitter's): sign 0, 41 bits of milliseconds since the epoch,
//! 10 bits of worker id, 12 bits of sequence. Because the word is an id, the next one
//! only ever has to be larger: strictly increasing ids (I4) need no other state.
//!
//! Bit 63 of the word means closed: nothing is issued until the launcher has made sure
//! that no earlier id can come again (I7). So does 0, which no open word ever is: an
//! open word read as a signed number is positive.
//!
//! No two open words are alike, ever: issuing makes the word larger, and opening puts it
//! at the end of a millisecond that it was never at the end of before. So an exchange
//! that was prepared before a close cannot succeed after the next open. Only
//! `leaf_snowflake_reset` moves a word back, and then with another worker id.

use crate::layout::{Layout, Parts};
use crate::primitive::{AtomicI64, AtomicU64, Ordering};

/// Leaf's and Twitter's epoch in Unix milliseconds: 2010-11-04 01:42:54.657 UTC.
pub const DEFAULT_EPOCH_MS: i64 = 1_288_834_974_657;
/// A new millisecond starts at a random sequence below this (Leaf): ids of a quiet
/// server then do not all end in the same digits.
pub const START_SPREAD: u16 = 100;

const CLOSED: u64 = 1 << 63;

fn is_open(word: u64) -> bool {
    word.cast_signed() > 0
}

/// The layout of the ids of every generator.
const LAYOUT: Layout = Layout::DEFAULT;
const MAX_SEQUENCE: u16 = (1 << 12) - 1;
const MAX_MS: i64 = (1 << 41) - 1;

fn parts(word: u64) -> Parts {
    LAYOUT.parts(word & !CLOSED)
}

/// Why no id could be issued just now. Times in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stall {
    /// The launcher has not opened the word.
    Closed,
    /// This millisecond since the epoch is used up: the next one brings more.
    Full(i64),
    /// The clock stands this far behind the last id.
    ClockBack(i64),
    /// The clock has passed the reservation: it must be renewed first (I7).
    Unreserved,
    /// The lease of the worker id has ended: no other millisecond is begun.
    Unleased,
    /// The clock has passed the end of the 41 bits (I8).
    EndOfTime,
}

/// The one generator of a server. All zeroes is a closed one with nothing reserved:
/// zeroed shared memory issues nothing.
#[repr(C)]
pub struct Generator {
    word: AtomicU64,
    /// The last millisecond since the epoch that may be issued; durable before it is
    /// stored here (I7).
    reserved_until: AtomicI64,
}

impl Generator {
    /// A closed generator, for those who have no zeroed shared memory.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "shared memory is never made this way"
    )]
    pub fn new() -> Self {
        Self {
            word: AtomicU64::new(CLOSED),
            reserved_until: AtomicI64::new(0),
        }
    }

    /// Issues the next id of the millisecond that the last one was of, if it is not over, not
    /// full, and nobody else comes in between: one exchange, and nothing that can panic.
    /// `None` says nothing but that [`Generator::next`] must be asked.
    #[inline]
    pub fn next_at_once(&self, now_ms: impl FnOnce() -> i64) -> Option<i64> {
        let word = self.word.load(Ordering::Acquire);
        let last = parts(word);
        if !is_open(word) || last.sequence == MAX_SEQUENCE || now_ms() != last.ms {
            return None;
        }
        self.word
            .compare_exchange(word, word + 1, Ordering::AcqRel, Ordering::Relaxed)
            .ok()
            .map(|_| (word + 1).cast_signed())
    }

    /// Issues the next id. `now_ms` reads the clock (milliseconds since the epoch). Where a
    /// millisecond begins, `start` draws a sequence below [`START_SPREAD`], or says that the
    /// worker id may not be used any more.
    ///
    /// The clock is read after the word: a word that another session advanced in
    /// between cannot look like a clock that went back.
    ///
    /// # Errors
    /// See [`Stall`].
    #[inline]
    pub fn next(
        &self,
        mut now_ms: impl FnMut() -> i64,
        mut start: impl FnMut() -> Option<u16>,
    ) -> Result<i64, Stall> {
        loop {
            let word = self.word.load(Ordering::Acquire);
            if !is_open(word) {
                return Err(Stall::Closed);
            }
            let now = now_ms();
            let last = parts(word);
            let next = if now > last.ms {
                if now > MAX_MS {
                    return Err(Stall::EndOfTime);
                }
                if now > self.reserved_until.load(Ordering::Acquire) {
                    return Err(Stall::Unreserved);
                }
                let next = Parts {
                    ms: now,
                    worker_id: last.worker_id,
                    sequence: start().ok_or(Stall::Unleased)?,
                };
                LAYOUT.compose(next).cast_unsigned()
            } else if now < last.ms {
                return Err(Stall::ClockBack(last.ms - now));
            } else if last.sequence == MAX_SEQUENCE {
                return Err(Stall::Full(now));
            } else {
                word + 1
            };
            if self
                .word
                .compare_exchange_weak(word, next, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                return Ok(next.cast_signed());
            }
        }
    }

    /// Whether ids can be issued at all.
    #[must_use]
    pub fn is_open(&self) -> bool {
        is_open(self.word.load(Ordering::Acquire))
    }

    /// The last id that was issued, or where the word was opened; its worker id is the
    /// one in force.
    #[must_use]
    pub fn last(&self) -> Parts {
        parts(self.word.load(Ordering::Acquire))
    }

    /// The last millisecond since the epoch that may be issued.
    #[must_use]
    pub fn reserved_until(&self) -> i64 {
        self.reserved_until.load(Ordering::Acquire)
    }

    /// Allows ids up to a millisecond since the epoch. Only after that is on disk (I7);
    /// never lowers it.
    pub fn reserve(&self, until_ms: i64) {
        self.reserved_until.fetch_max(until_ms, Ordering::AcqRel);
    }

    /// Stops issuing and returns the last id's parts: no later call gets an id until
    /// [`Generator::open`]. Gives back what is reserved beyond that id, so that the
    /// caller may write the exact last timestamp down.
    pub fn close(&self) -> Parts {
        let last = parts(self.word.fetch_or(CLOSED, Ordering::AcqRel));
        self.reserved_until.store(last.ms, Ordering::Release);
        last
    }

    /// Puts a closed word at the end of a millisecond since the epoch, also below ids that
    /// it has issued: they are not of the worker id that comes next, or not in the way.
    /// For `leaf_snowflake_reset` alone.
    pub fn rewind(&self, worker_id: u16, to_ms: i64) {
        let rewound = Parts {
            ms: to_ms.clamp(0, MAX_MS),
            worker_id,
            sequence: MAX_SEQUENCE,
        };
        self.word.store(
            CLOSED | LAYOUT.compose(rewound).cast_unsigned(),
            Ordering::Release,
        );
        self.reserved_until.store(rewound.ms, Ordering::Release);
    }

    /// Starts issuing, with this worker id and above `floor_ms` and every earlier id:
    /// the first id carries a later millisecond than both (I4, I7). Also how a change
    /// of the worker id is applied to an open word. What was reserved before holds for
    /// the new worker id too: it must be durable for that one first.
    pub fn open(&self, worker_id: u16, floor_ms: i64) {
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let last = parts(word);
            // A full millisecond: nothing of it can be issued, the next one is above every
            // earlier id, whatever the worker ids were. One that is full already would
            // make a word that was there before: see the file's header.
            let after = last.ms + i64::from(last.sequence == MAX_SEQUENCE);
            let opened = Parts {
                ms: after.max(floor_ms).min(MAX_MS),
                worker_id,
                sequence: MAX_SEQUENCE,
            };
            match self.word.compare_exchange(
                word,
                LAYOUT.compose(opened).cast_unsigned(),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return,
                Err(now) => word = now,
            }
        }
    }
}

#[cfg(all(test, not(leaf_id_loom)))]
mod tests {
    //! Would catch: an id from shared memory that nobody has set up.

    use super::*;

    #[test]
    fn zeroed_memory_issues_nothing() {
        let zeroed = || Generator {
            word: AtomicU64::new(0),
            reserved_until: AtomicI64::new(0),
        };
        let issued = |generator: &Generator, now| generator.next(|| now, || Some(0));
        // The epoch's own millisecond is the one that compares equal.
        for now in [-1, 0, 1, MAX_MS] {
            assert!(!zeroed().is_open());
            assert_eq!(issued(&zeroed(), now), Err(Stall::Closed));
        }
        let reserved = zeroed();
        reserved.reserve(10);
        assert_eq!(issued(&reserved, 0), Err(Stall::Closed));
        reserved.open(0, 0);
        assert!(reserved.is_open());
        assert_eq!(issued(&reserved, 1), Ok(1 << 22));
    }
}
