//! The double buffer of Leaf's segment mode, shared by every session of a server.
//!
//! One [`DoubleBuffer`] holds what one tag can hand out: the segment in use and
//! the spare, already claimed from the table. Sessions take without a lock; the
//! allocator publishes and invalidates under the slot's lock.
//!
//! # The word
//!
//! `word` = generation (high 32 bits) and offset (low 32 bits), and is never reset.
//! The buffer in use is `generation & 1`; it is valid only if its `tag` equals the
//! generation. There is no ready flag that could disagree with the word.
//!
//! | generation g, buffer g & 1      | buffer (g + 1) & 1 | state                                |
//! |---------------------------------|--------------------|--------------------------------------|
//! | tag == g, offset < len          | tag != g + 1       | issuing, no spare                    |
//! | tag == g, offset < len          | tag == g + 1       | issuing, spare ready                 |
//! | tag != g, or offset >= len      | tag == g + 1       | used up: the next taker switches     |
//! | tag != g, or offset >= len      | tag != g + 1       | empty: takers wait for a publication |
//!
//! Shared memory starts zeroed: generation 0 with a buffer of length 0, which is
//! the last line of the table.
//!
//! # Who may do what
//!
//! * take, switch: anybody, any time, without a lock.
//! * publish, invalidate: one at a time, under the slot's lock.
//!
//! # The request
//!
//! `request` = number (high 30 bits) and state (low 2 bits).
//!
//! | state | by | leaves by | to |
//! | --- | --- | --- | --- |
//! | idle | | want: the one session that succeeds | wanted |
//! | wanted | that session, then whoever has taken it over from it | withdraw: the same | idle |
//! | | | accept: an allocator, which gets the next number | in flight |
//! | in flight | that allocator | clear: the allocator, by its number | idle |
//! | | | close: whoever gives the slot to another tag | idle |
//!
//! Wanted is the only state in which a slot may be linked into a list, and nobody but its
//! owner ends it: so no slot is linked twice. A request in flight can be closed over the
//! allocator's head; the next one has another number, so that what the allocator still says
//! concerns no request any more. (Numbers go around after 2^30 requests of one slot, all of
//! them while the same claim is under way.)
//!
//! # Why each order is what it is
//!
//! Takers read the word before anything else, and the fetch-and-add that takes the
//! id fails (by its generation) if the word moved on in between. Every change of
//! what the buffers mean goes through the word: a switch adds one to the generation,
//! an invalidation two, which leaves neither buffer valid. The shortcuts that look
//! equivalent issue duplicates (a state search found each): a ready flag lets two
//! takers switch twice; an invalidation by one revives a used buffer; a fetch-and-add
//! of n carries into the generation; reading `version` before the word takes an id of
//! another tag; publishing out of claim order breaks I4.
//!
//! A buffer that is overwritten while a taker reads it is no danger: the exchange that
//! takes the id releases the taker's loads to the switch, and so to whoever overwrites
//! the buffer after it; a taker that came too late fails by the generation. But what
//! "empty" is concluded from (tags and lengths) is loaded with acquire, so that the look
//! at the word that confirms it is no older than they are.
//!
//! Long, because every one of these methods counts on what the others may do at the same time.

use crate::primitive::{AtomicI64, AtomicU32, AtomicU64, Ordering};

mod outcome;

pub use outcome::{Miss, Obstacle, Refused, Remainder, Remainders, SegmentRequest, Taken};

/// The longest segment, in ids: the largest `step` a tag can have (an SQL integer).
/// Far enough below 2^32 that the overshoot of takers (at most one each) cannot
/// carry into the generation.
pub const MAX_LEN: u32 = i32::MAX as u32;

/// The spare is requested once 1/10 of the buffer in use is taken (Leaf: 10 %).
const PREFETCH_DIVISOR: u64 = 10;

/// Nobody has asked for a spare.
const IDLE: u32 = 0;
/// A session asked; no allocator has picked it up.
const WANTED: u32 = 1;
/// An allocator is claiming.
const IN_FLIGHT: u32 = 2;
/// The bits of a request that are its state; the others number the requests that were
/// accepted, so that an allocator that is late knows its own.
const STATE: u32 = 3;
const ONE_REQUEST: u32 = STATE + 1;

#[repr(C)]
struct Buffer {
    first: AtomicI64,
    /// Ids.
    len: AtomicU32,
    /// The generation this buffer was filled for.
    filled_for: AtomicU32,
}

/// Both buffers of one tag. 64 bytes: what a take touches is one cache line.
#[repr(C)]
pub struct DoubleBuffer {
    word: AtomicU64,
    /// Counts invalidations: edits of the row and reuses of the slot. Never reset.
    version: AtomicU64,
    buffers: [Buffer; 2],
    request: AtomicU32,
    /// The longest contiguous range a session waits for, in ids; 0 for none.
    range_len: AtomicU32,
    /// Fills the cache line.
    unused: u64,
}

#[cfg(not(leaf_id_loom))]
const _: () = assert!(size_of::<DoubleBuffer>() == 64);

fn pack(generation: u32, offset: u32) -> u64 {
    (u64::from(generation) << 32) | u64::from(offset)
}

fn generation(word: u64) -> u32 {
    (word >> 32) as u32
}

fn offset(word: u64) -> u32 {
    word as u32
}

/// The buffer in use, as a taker has seen it.
struct Look<'a> {
    /// The word that was seen before anything else.
    word: u64,
    /// Its generation.
    current: u32,
    buffer: &'a Buffer,
    /// In ids. 0 if the buffer was not filled for this generation: it holds nothing.
    len: u32,
}

impl Look<'_> {
    /// The lowest id of the segment. Only if there is one.
    #[inline]
    fn first(&self) -> i64 {
        self.buffer.first.load(Ordering::Relaxed)
    }
}

impl DoubleBuffer {
    /// An empty double buffer: what zeroed shared memory is, for those who have none.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "shared memory is never made this way"
    )]
    pub fn new() -> Self {
        let buffer = || Buffer {
            first: AtomicI64::new(0),
            len: AtomicU32::new(0),
            filled_for: AtomicU32::new(0),
        };
        Self {
            word: AtomicU64::new(0),
            version: AtomicU64::new(0),
            buffers: [buffer(), buffer()],
            request: AtomicU32::new(IDLE),
            range_len: AtomicU32::new(0),
            unused: 0,
        }
    }

    fn buffer(&self, generation: u32) -> &Buffer {
        if generation & 1 == 0 {
            &self.buffers[0]
        } else {
            &self.buffers[1]
        }
    }

    /// The version that takes and publications must name.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Looks at the buffer in use; `None` if the slot has another version. The order of the
    /// loads is the header's: the word, only then the version, then the buffer.
    #[inline(always)]
    fn look(&self, version: u64) -> Option<Look<'_>> {
        let word = self.word.load(Ordering::Acquire);
        let current = generation(word);
        if self.version.load(Ordering::Relaxed) != version {
            return None;
        }
        let buffer = self.buffer(current);
        let valid = buffer.filled_for.load(Ordering::Acquire) == current;
        let len = if valid {
            buffer.len.load(Ordering::Acquire)
        } else {
            0
        };
        Some(Look {
            word,
            current,
            buffer,
            len,
        })
    }

    /// Takes one id of the given version.
    ///
    /// # Errors
    /// [`Miss::Changed`] if the slot has another version, [`Miss::Empty`] if both
    /// buffers are used up.
    #[inline]
    pub fn take(&self, version: u64) -> Result<Taken, Miss> {
        match self.try_take(version) {
            Ok(taken) => Ok(taken),
            Err(obstacle) => self.take_again(version, obstacle),
        }
    }

    /// The first attempt of [`DoubleBuffer::take`], which nearly always succeeds.
    ///
    /// # Errors
    /// An obstacle, to be handed to [`DoubleBuffer::take_again`].
    #[inline]
    pub fn try_take(&self, version: u64) -> Result<Taken, Obstacle> {
        let Some(look) = self.look(version) else {
            return Err(Obstacle::Changed);
        };
        if offset(look.word) >= look.len {
            return Err(Obstacle::UsedUp(look.word));
        }
        let first = look.first();
        let seen = self.word.fetch_add(1, Ordering::AcqRel);
        if generation(seen) != look.current {
            return Err(Obstacle::Overtaken(seen));
        }
        let taken = offset(seen);
        if taken >= look.len {
            return Err(Obstacle::UsedUp(seen));
        }
        Ok(Taken {
            first: first + i64::from(taken),
            count: 1,
            spare_due: self.spare_due(look.current, taken + 1, look.len),
            lost: 0,
        })
    }

    /// The rest of [`DoubleBuffer::take`], and its errors.
    ///
    /// # Errors
    /// As [`DoubleBuffer::take`].
    #[cold]
    #[inline(never)]
    pub fn take_again(&self, version: u64, mut obstacle: Obstacle) -> Result<Taken, Miss> {
        let mut lost = 0;
        loop {
            match obstacle {
                Obstacle::Changed => return Err(Miss::Changed),
                Obstacle::UsedUp(word) => self.switch(word)?,
                // One id of the new buffer is a gap.
                Obstacle::Overtaken(word) => lost += u32::from(self.was_ready(word)),
            }
            match self.try_take(version) {
                Ok(taken) => return Ok(Taken { lost, ..taken }),
                Err(next) => obstacle = next,
            }
        }
    }

    /// Takes up to `n` ids in one run, fewer where the buffer in use ends.
    ///
    /// # Errors
    /// As [`DoubleBuffer::take`]. `n` = 0 takes nothing and is the caller's mistake.
    pub fn take_up_to(&self, version: u64, n: u32) -> Result<Taken, Miss> {
        loop {
            let look = self.look(version).ok_or(Miss::Changed)?;
            let (used, len) = (offset(look.word), look.len);
            if used >= len {
                self.switch(look.word)?;
                continue;
            }
            let first = look.first();
            let end = used.saturating_add(n).min(len);
            if self.advance(look.word, pack(look.current, end)) {
                return Ok(Taken {
                    first: first + i64::from(used),
                    count: end - used,
                    spare_due: self.spare_due(look.current, end, len),
                    lost: 0,
                });
            }
        }
    }

    /// Takes exactly `n` ids in one run. Where the buffer in use is too short, its
    /// rest is given up for the spare's head in the same step: ids keep increasing (I4)
    /// and nobody can nibble at the spare first.
    ///
    /// # Errors
    /// As [`DoubleBuffer::take`], but [`Miss::Empty`] says that there is no spare and
    /// the buffer in use is too short: it stays as it is, and
    /// [`DoubleBuffer::want_range`] asks for a spare that is not. [`Miss::Short`] says
    /// that a spare that is too short had to be moved out of its way.
    #[inline(never)]
    pub fn take_range(&self, version: u64, n: u32) -> Result<Taken, Miss> {
        loop {
            let look = self.look(version).ok_or(Miss::Changed)?;
            let (word, current, len) = (look.word, look.current, look.len);
            let used = offset(word).min(len);
            if n <= len - used {
                let first = look.first();
                if self.advance(word, pack(current, used + n)) {
                    return Ok(Taken {
                        first: first + i64::from(used),
                        count: n,
                        spare_due: self.spare_due(current, used + n, len),
                        lost: 0,
                    });
                }
                continue;
            }
            let next = current.wrapping_add(1);
            let spare = self.buffer(next);
            if spare.filled_for.load(Ordering::Acquire) != next {
                self.confirm_empty(current)?;
                continue;
            }
            // Again, as this takes from the spare without going by the word: between an
            // invalidation's two steps the first look saw the old version still, and the
            // spare may be the new version's already.
            if self.version.load(Ordering::Relaxed) != version {
                return Err(Miss::Changed);
            }
            let first = spare.first.load(Ordering::Relaxed);
            let spare_len = spare.len.load(Ordering::Relaxed);
            let fits = n <= spare_len;
            if self.advance(word, pack(next, if fits { n } else { 0 })) {
                let lost = len - used;
                if !fits {
                    return Err(Miss::Short { lost });
                }
                return Ok(Taken {
                    first,
                    count: n,
                    spare_due: self.spare_due(next, n, spare_len),
                    lost,
                });
            }
        }
    }

    /// Whether a word stands for an id that could be taken. Of a word that was replaced
    /// meanwhile it may say no: good enough for a count of gaps.
    fn was_ready(&self, word: u64) -> bool {
        let buffer = self.buffer(generation(word));
        buffer.filled_for.load(Ordering::Acquire) == generation(word)
            && offset(word) < buffer.len.load(Ordering::Relaxed)
    }

    fn advance(&self, from: u64, to: u64) -> bool {
        self.word
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Makes the spare the buffer in use. `word` is one whose buffer was seen used up.
    /// Returning means that the word has moved, by us or by somebody else.
    fn switch(&self, word: u64) -> Result<(), Miss> {
        let next = generation(word).wrapping_add(1);
        if self.buffer(next).filled_for.load(Ordering::Acquire) == next {
            // If this fails, a straggler has counted the offset up or another taker
            // has switched: look again.
            let _ = self.advance(word, pack(next, 0));
            return Ok(());
        }
        self.confirm_empty(generation(word))
    }

    /// The buffers were read after the word; only if its generation still stands was
    /// that one state. Otherwise a spare may have come and gone in between: look again.
    fn confirm_empty(&self, seen: u32) -> Result<(), Miss> {
        if generation(self.word.load(Ordering::Acquire)) == seen {
            return Err(Miss::Empty);
        }
        Ok(())
    }

    /// "Past the threshold and not yet requested", never at equality: a discarded
    /// take may land exactly on the threshold.
    #[inline]
    fn spare_due(&self, current: u32, used: u32, len: u32) -> bool {
        let next = current.wrapping_add(1);
        u64::from(used) * PREFETCH_DIVISOR >= u64::from(len)
            && self.buffer(next).filled_for.load(Ordering::Relaxed) != next
            && self.request.load(Ordering::Relaxed) & STATE == IDLE
    }

    /// Moves the request from a state that this applies to. The word before, or the one that
    /// it does not apply to.
    fn move_request(&self, to: impl Fn(u32) -> Option<u32>) -> Result<u32, u32> {
        let mut seen = self.request.load(Ordering::Acquire);
        while let Some(next) = to(seen) {
            match self
                .request
                .compare_exchange(seen, next, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(before) => return Ok(before),
                Err(now) => seen = now,
            }
        }
        Err(seen)
    }

    /// Asks for a segment. True for the one session that must now tell the allocator, or
    /// [`DoubleBuffer::withdraw`] the request.
    pub fn want(&self) -> bool {
        self.move_request(|seen| (seen & STATE == IDLE).then_some(seen | WANTED))
            .is_ok()
    }

    /// Asks for a segment that holds a run of `n` ids; otherwise as [`DoubleBuffer::want`].
    pub fn want_range(&self, n: u32) -> bool {
        self.range_len.fetch_max(n, Ordering::Relaxed);
        self.want()
    }

    /// Ends a request that no allocator has picked up. By the session whose
    /// [`DoubleBuffer::want`] has succeeded, or by who has taken the slot over from it.
    /// Wake the waiters afterwards.
    pub fn withdraw(&self) {
        let seen = self.request.load(Ordering::Relaxed);
        debug_assert_eq!(seen & STATE, WANTED);
        self.request.store(seen & !STATE | IDLE, Ordering::Release);
    }

    /// The allocator picks the request up; `None` if there is none.
    pub fn accept(&self) -> Option<SegmentRequest> {
        let next = |seen: u32| (seen & !STATE).wrapping_add(ONE_REQUEST) | IN_FLIGHT;
        let seen = self
            .move_request(|seen| (seen & STATE == WANTED).then(|| next(seen)))
            .ok()?;
        Some(SegmentRequest {
            word: next(seen),
            range_len: self.range_len.swap(0, Ordering::Relaxed),
        })
    }

    /// Ends a request, answered or not: sessions that still want ids ask again. Nothing if
    /// it was closed. Wake the waiters afterwards.
    pub fn clear(&self, request: &SegmentRequest) {
        let _ = self.request.compare_exchange(
            request.word,
            request.word & !STATE | IDLE,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }

    /// Whether this is the request in flight: it was not closed.
    #[must_use]
    pub fn is_in_flight(&self, request: &SegmentRequest) -> bool {
        self.request.load(Ordering::Acquire) == request.word
    }

    /// Closes the request in flight, if there is one, over the head of its allocator. False
    /// if a session has asked and nobody has accepted: such a slot must not be given to
    /// another tag.
    pub fn close(&self) -> bool {
        let closed = |seen: u32| (seen & STATE == IN_FLIGHT).then_some(seen & !STATE | IDLE);
        match self.move_request(closed) {
            Ok(_) => true,
            Err(seen) => seen & STATE == IDLE,
        }
    }

    /// Whether a request is open.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.request.load(Ordering::Acquire) & STATE != IDLE
    }

    /// Whether a session has asked and nobody has accepted.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.request.load(Ordering::Acquire) & STATE == WANTED
    }

    /// Whether the spare is ready.
    #[must_use]
    pub fn has_spare(&self) -> bool {
        let next = generation(self.word.load(Ordering::Acquire)).wrapping_add(1);
        self.buffer(next).filled_for.load(Ordering::Acquire) == next
    }

    /// Publishes a claimed segment as the spare. `version` is what [`DoubleBuffer::version`]
    /// was before the claim's transaction began; the claim is durable (I1). `len` is
    /// 1 to [`MAX_LEN`]. Under the slot's lock.
    ///
    /// # Errors
    /// See [`Refused`]: nothing was published.
    pub fn publish(&self, version: u64, first: i64, len: u32) -> Result<(), Refused> {
        if self.version.load(Ordering::Relaxed) != version {
            return Err(Refused::Changed);
        }
        if first < self.high() {
            return Err(Refused::OutOfOrder);
        }
        debug_assert!((1..=MAX_LEN).contains(&len) && first > 0);
        // The generation stands still here: a switch needs the tag that is not yet
        // written, an invalidation needs the lock that we hold.
        let next = generation(self.word.load(Ordering::Acquire)).wrapping_add(1);
        let spare = self.buffer(next);
        if spare.filled_for.load(Ordering::Relaxed) == next {
            return Err(Refused::Full);
        }
        // Release on all three: who reads one of them without the lock, and too late, must
        // find the word moved on.
        spare.first.store(first, Ordering::Release);
        spare.len.store(len, Ordering::Release);
        // The tag last: it is what makes the other two the takers'.
        spare.filled_for.store(next, Ordering::Release);
        Ok(())
    }

    /// One past the last id published in this version, which no publication may begin below (I4);
    /// 0 for none. Under the slot's lock: the buffers stand still, and a switch in between makes
    /// the spare the buffer in use.
    #[must_use]
    pub fn high(&self) -> i64 {
        let current = generation(self.word.load(Ordering::Acquire));
        let last = [current.wrapping_add(1), current]
            .into_iter()
            .find(|generation| {
                self.buffer(*generation).filled_for.load(Ordering::Relaxed) == *generation
            });
        last.map_or(0, |generation| {
            let buffer = self.buffer(generation);
            let len = buffer.len.load(Ordering::Relaxed);
            buffer.first.load(Ordering::Relaxed) + i64::from(len)
        })
    }

    /// Begins the next version: nothing that was published can be taken any more, nothing that
    /// was claimed before can be published. Returns what was left, which is the
    /// caller's now. Under the slot's lock; wake the waiters afterwards.
    pub fn invalidate(&self) -> Remainders {
        // An addition, not an exchange, which busy takers could hold up for long under
        // the lock. The offset stays: it says nothing until the next switch resets it.
        let word = self.word.fetch_add(pack(2, 0), Ordering::AcqRel);
        // Nobody changes the buffers before the lock is released.
        let remainders = self.remainders_at(word);
        // No generation of a buffer's own parity: else one that is never filled again
        // would come back to life when the generation has gone around.
        self.buffers[0].filled_for.store(1, Ordering::Release);
        self.buffers[1].filled_for.store(0, Ordering::Release);
        self.range_len.store(0, Ordering::Relaxed);
        // The word first, the version last: see the file's header.
        self.version.fetch_add(1, Ordering::Release);
        remainders
    }

    /// What both buffers hold, for the status views.
    #[must_use]
    pub fn remainders(&self) -> Remainders {
        loop {
            let word = self.word.load(Ordering::Acquire);
            let remainders = self.remainders_at(word);
            if generation(self.word.load(Ordering::Acquire)) == generation(word) {
                return remainders;
            }
        }
    }

    /// The word itself, to see whether a slot was used between two looks.
    #[must_use]
    pub fn mark(&self) -> u64 {
        self.word.load(Ordering::Relaxed)
    }

    fn remainders_at(&self, word: u64) -> Remainders {
        let segment = |generation: u32| {
            let buffer = self.buffer(generation);
            (buffer.filled_for.load(Ordering::Acquire) == generation)
                .then(|| {
                    (
                        buffer.first.load(Ordering::Acquire),
                        buffer.len.load(Ordering::Acquire),
                    )
                })
                .filter(|(_, len)| *len > 0)
        };
        let rest = |segment: Option<(i64, u32)>, used: u32| {
            let (first, len) = segment?;
            (used < len).then(|| Remainder {
                first: first + i64::from(used),
                last: first + i64::from(len) - 1,
            })
        };
        let current = segment(generation(word));
        let spare = segment(generation(word).wrapping_add(1));
        Remainders {
            current: rest(current, offset(word)),
            spare: rest(spare, 0),
            current_segment: current,
        }
    }
}

#[cfg(all(test, not(leaf_id_loom)))]
mod tests;
