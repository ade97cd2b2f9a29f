//! The snowflake word: the last issued id itself, advanced by compare-and-swap.
//!
//! Layout (see [`crate::layout`]): sign 0, milliseconds since the epoch, worker id, sequence.
//! Because the word is an id, the next one only ever has to be larger: strictly increasing
//! ids (I4) need no other state.
//!
//! Bit 63 of the word means closed: nothing is issued until the launcher has made sure
//! that no earlier id can come again (I7). So does 0, which no open word ever is: an
//! open word read as a signed number is positive.
//!
//! No two open words are alike, ever: issuing makes the word larger, and opening puts it
//! at the end of a millisecond that it was never at the end of before. So an exchange
//! that was prepared before a close cannot succeed after the next open. Only
//! `leaf_snowflake_reset` moves a word back, and then with another worker id.
//!
//! # The logical clock
//!
//! The time in an id is a logical clock, as hybrid logical clocks have it: the clock, or where
//! that stands behind the last id, the time of the last id. How far the time of an id is ahead
//! of the clock is the lead. An id is issued only
//!
//! 1. if its lead is within the bound ([`Lead`]): the clock is read after the word;
//! 2. if its time is reserved (I7);
//! 3. if the worker id may be used: asked for at each new millisecond, and in the lead for
//!    each id, since a millisecond lasts there until it is full.
//!
//! Use makes no lead, only faults do: a full millisecond is followed by the next one once the
//! clock has moved on since it was begun, whether the clock is behind or not. So the lead melts by
//! itself below 4,096 ids a millisecond. Up to [`Lead::burst_ms`] the next one follows at once.

use core::sync::atomic::{
    AtomicI64 as PlainI64, AtomicU32 as PlainU32, AtomicU64 as PlainU64, Ordering::Relaxed,
};

use crate::layout::{Layout, Parts};
use crate::primitive::{AtomicI64, AtomicU64, Ordering};

/// Leaf's and Twitter's epoch in Unix milliseconds: 2010-11-04 01:42:54.657 UTC.
pub const DEFAULT_EPOCH_MS: i64 = 1_288_834_974_657;
/// A new millisecond starts at a random sequence below this, and below a quarter of what it
/// holds (Leaf): ids of a quiet server then do not all end in the same digits.
pub const START_SPREAD: u16 = 100;

const CLOSED: u64 = 1 << 63;

fn is_open(word: u64) -> bool {
    word.cast_signed() > 0
}

/// How far ids may lead the clock, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lead {
    /// `leaf_id.max_clock_lead`.
    pub max_ms: i64,
    /// How much more it may be after the start of a run that did not know what was issued
    /// before; 0 in others. It melts half as fast as time passes, whatever happens: the next run
    /// that knows nothing starts above it, though its clock may be behind this one.
    pub extra_ms: i64,
    /// From then on, in milliseconds since the epoch.
    pub since_ms: i64,
    /// `leaf_id.max_burst_lead`: up to here a full millisecond borrows from the next one.
    pub burst_ms: i64,
}

impl Lead {
    /// None.
    pub const NONE: Self = Self {
        max_ms: 0,
        extra_ms: 0,
        since_ms: 0,
        burst_ms: 0,
    };

    /// No id is issued with a larger one.
    #[must_use]
    pub fn bound_ms(self, now_ms: i64) -> i64 {
        let melted_ms = now_ms.saturating_sub(self.since_ms).max(0) / 2;
        self.max_ms + self.extra_ms.saturating_sub(melted_ms).max(0)
    }

    /// Since when a run leads by more than it otherwise may, because it did not know what was
    /// issued before.
    #[must_use]
    pub fn unknown_since_ms(self) -> Option<i64> {
        (self.extra_ms > 0).then_some(self.since_ms)
    }
}

/// Why no id could be issued just now. Times in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stall {
    /// The launcher has not opened the word.
    Closed,
    /// This millisecond is used up: there is more when the clock shows this one, since the epoch.
    Full(i64),
    /// The clock stands so far behind the last id that the lead would be beyond its bound, by
    /// so much.
    TooFarAhead(i64),
    /// The clock has passed the reservation: it must be renewed first (I7).
    Unreserved,
    /// The lease of the worker id has ended.
    Unleased,
    /// The clock has passed the end of the layout's bits (I8).
    EndOfTime,
}

/// An id that was issued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Issued {
    /// The id.
    pub id: i64,
    /// How far its time is ahead of the clock, in milliseconds: never negative.
    pub lead_ms: i64,
}

/// A millisecond of ids in the lead, and the clock's when it was begun, or first found full; the
/// low 32 bits of each. It sets the pace alone: where another session has stored a later or an
/// earlier one, a full millisecond waits for one more tick, and never does the lead exceed its
/// bound.
#[derive(Clone, Copy)]
struct Begun(u64);

impl Begun {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the low bits"
    )]
    fn at(ms: i64, now_ms: i64) -> Self {
        Self(u64::from(ms as u32) << 32 | u64::from(now_ms as u32))
    }

    /// How long ago that was, if it says so of this millisecond.
    #[expect(clippy::cast_possible_truncation, reason = "the low bits")]
    fn elapsed_ms(self, ms: i64, now_ms: i64) -> Option<i32> {
        let now = Self::at(ms, now_ms).0;
        (now >> 32 == self.0 >> 32).then(|| (now as i32).wrapping_sub(self.0 as i32))
    }
}

/// The one generator of a server. All zeroes is a closed one with nothing reserved:
/// zeroed shared memory issues nothing.
#[repr(C)]
pub struct Generator {
    word: AtomicU64,
    /// The last millisecond since the epoch that may be issued; durable before it is
    /// stored here (I7).
    reserved_until: AtomicI64,
    /// See [`Layout::pack`]; 0, and so no layout, until [`Generator::set_layout`].
    layout: PlainU32,
    /// Ids issued before the present millisecond, less its start: with the word's sequence it
    /// is the number of all.
    issued_before: PlainU64,
    max_lead: PlainI64,
    extra_lead: PlainI64,
    extra_since: PlainI64,
    burst_lead: PlainI64,
    /// A millisecond, and when the clock was first seen in it: see [`Begun`].
    begun: AtomicU64,
    /// The most that [`Generator::issued`] has returned.
    shown: PlainU64,
}

impl Generator {
    /// A closed generator, for those who have no zeroed shared memory.
    #[must_use]
    pub fn new(layout: Layout) -> Self {
        Self {
            word: AtomicU64::new(CLOSED),
            reserved_until: AtomicI64::new(0),
            layout: PlainU32::new(layout.pack()),
            issued_before: PlainU64::new(0),
            max_lead: PlainI64::new(0),
            extra_lead: PlainI64::new(0),
            extra_since: PlainI64::new(0),
            burst_lead: PlainI64::new(0),
            begun: AtomicU64::new(0),
            shown: PlainU64::new(0),
        }
    }

    /// The layout of its ids, before it is opened for the first time.
    pub fn set_layout(&self, layout: Layout) {
        self.layout.store(layout.pack(), Relaxed);
    }

    /// The layout of its ids.
    #[must_use]
    #[inline]
    pub fn layout(&self) -> Layout {
        Layout::of_packed(self.layout.load(Relaxed))
    }

    fn parts(&self, word: u64) -> Parts {
        self.layout().parts(word & !CLOSED)
    }

    /// How far ids may lead the clock, from now on.
    pub fn set_lead(&self, lead: Lead) {
        self.max_lead.store(lead.max_ms, Relaxed);
        self.extra_lead.store(lead.extra_ms, Relaxed);
        self.extra_since.store(lead.since_ms, Relaxed);
        self.burst_lead.store(lead.burst_ms, Relaxed);
    }

    /// How far ids may lead the clock.
    #[must_use]
    pub fn lead(&self) -> Lead {
        Lead {
            max_ms: self.max_lead.load(Relaxed),
            extra_ms: self.extra_lead.load(Relaxed),
            since_ms: self.extra_since.load(Relaxed),
            burst_ms: self.burst_lead.load(Relaxed),
        }
    }

    /// How many ids were issued since this was all zeroes. It never goes down; it may be off by the
    /// ids of one millisecond where one is begun, or the generator opened, at the same moment.
    #[must_use]
    pub fn issued(&self) -> u64 {
        let before = self.issued_before.load(Relaxed);
        let sequence = self.parts(self.word.load(Ordering::Acquire)).sequence;
        let count = before.wrapping_add(sequence.into());
        // Between the exchange of the word and the count's the sum may be that of neither.
        let count = if count.cast_signed() < 0 { 0 } else { count };
        self.shown.fetch_max(count, Relaxed).max(count)
    }

    /// A millisecond was left at one sequence, and another one begun before another.
    fn count_to(&self, left: u16, begun_before: i64) {
        let ids = i64::from(left) - begun_before;
        self.issued_before.fetch_add(ids.cast_unsigned(), Relaxed);
    }

    /// Issues the next id of the millisecond that the last one was of, if it is not over, not
    /// full, and nobody else comes in between: one exchange, and nothing that can panic.
    /// `None` says nothing but that [`Generator::next`] must be asked.
    #[inline]
    pub fn next_at_once(&self, now_ms: impl FnOnce() -> i64) -> Option<i64> {
        let word = self.word.load(Ordering::Acquire);
        let layout = self.layout();
        let last = layout.parts(word);
        if !is_open(word) || last.sequence == layout.max_sequence() || now_ms() != last.ms {
            return None;
        }
        self.word
            .compare_exchange(word, word + 1, Ordering::AcqRel, Ordering::Relaxed)
            .ok()
            .map(|_| (word + 1).cast_signed())
    }

    /// Issues the next id. `now_ms` reads the clock (milliseconds since the epoch), `may_issue`
    /// says whether the worker id may be used now, and `start` draws a sequence up to the given
    /// one for the first id of a millisecond.
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
        mut may_issue: impl FnMut() -> bool,
        mut start: impl FnMut(u16) -> u16,
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
                match self.after_full(word, last.ms, now)? {
                    Some(ms) => ms,
                    None => continue,
                }
            };
            let lead_ms = ms - now;
            if lead_ms > 0 {
                let bound_ms = self.lead().bound_ms(now);
                if lead_ms > bound_ms {
                    return Err(Stall::TooFarAhead(lead_ms - bound_ms));
                }
            }
            let begins = ms > last.ms;
            if begins && ms > layout.max_ms() {
                return Err(Stall::EndOfTime);
            }
            if begins && ms > self.reserved_until.load(Ordering::Acquire) {
                return Err(Stall::Unreserved);
            }
            if (begins || lead_ms > 0) && !may_issue() {
                return Err(Stall::Unleased);
            }
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
                if begins && lead_ms > 0 {
                    self.begun.store(Begun::at(ms, now).0, Ordering::Release);
                }
                let id = next.cast_signed();
                return Ok(Issued { id, lead_ms });
            }
        }
    }

    /// The millisecond after a full one that the clock has not passed; `None` if another session
    /// has begun it.
    fn after_full(&self, word: u64, last_ms: i64, now_ms: i64) -> Result<Option<i64>, Stall> {
        let ms = last_ms + 1;
        let lead = self.lead();
        let borrows = ms - now_ms <= lead.burst_ms.min(lead.max_ms);
        let begun = Begun(self.begun.load(Ordering::Acquire));
        match begun.elapsed_ms(last_ms, now_ms) {
            Some(1..) => return Ok(Some(ms)),
            _ if borrows => return Ok(Some(ms)),
            // What was begun then is that one.
            _ if self.word.load(Ordering::Acquire) != word => return Ok(None),
            Some(0) => {}
            // Nobody has seen it begin, or the clock was set back since then.
            _ => self
                .begun
                .store(Begun::at(last_ms, now_ms).0, Ordering::Release),
        }
        Err(Stall::Full(now_ms + 1))
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
        self.parts(self.word.load(Ordering::Acquire))
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
        let last = self.parts(self.word.fetch_or(CLOSED, Ordering::AcqRel));
        self.reserved_until.store(last.ms, Ordering::Release);
        last
    }

    /// Puts a closed word at the end of a millisecond since the epoch, also below ids that
    /// it has issued: they are not of the worker id that comes next, or not in the way.
    /// For `leaf_snowflake_reset` alone.
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

    /// Starts issuing, with this worker id and above `floor_ms` and every earlier id:
    /// the first id carries a later millisecond than both (I4, I7). Also how a change
    /// of the worker id is applied to an open word. What was reserved before holds for
    /// the new worker id too: it must be durable for that one first.
    pub fn open(&self, worker_id: u16, floor_ms: i64) {
        let layout = self.layout();
        let mut word = self.word.load(Ordering::Acquire);
        loop {
            let last = self.parts(word);
            // A full millisecond: nothing of it can be issued, the next one is above every
            // earlier id, whatever the worker ids were. One that is full already would
            // make a word that was there before: see the file's header.
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
    //! Would catch: an id from shared memory that nobody has set up.

    use super::*;

    fn zeroed() -> Generator {
        Generator {
            word: AtomicU64::new(0),
            ..Generator::new(Layout::DEFAULT)
        }
    }

    #[test]
    fn zeroed_memory_issues_nothing() {
        let issued = |generator: &Generator, now| generator.next(|| now, || true, |_| 0);
        // The epoch's own millisecond is the one that compares equal.
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
