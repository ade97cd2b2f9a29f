//! The double buffer of Leaf's segment mode, shared by all sessions of a server.
//!
//! A [`DoubleBuffer`] holds the ids available for one tag: the current segment and the spare, which
//! is already claimed from the table. Sessions take without a lock; the allocator publishes and
//! invalidates under the slot's lock.
//!
//! # The word
//!
//! `word` = generation (high 32 bits) and offset (low 32 bits). It is never reset. The current
//! buffer is number `generation & 1`, and is valid only if its `filled_for` equals the generation.
//! There is no ready flag that could contradict the word.
//!
//! | generation g, buffer g & 1         | buffer (g + 1) & 1  | state                                |
//! |------------------------------------|---------------------|--------------------------------------|
//! | filled_for == g, offset < len      | filled_for != g + 1 | issuing, no spare                    |
//! | filled_for == g, offset < len      | filled_for == g + 1 | issuing, spare ready                 |
//! | filled_for != g, or offset >= len  | filled_for == g + 1 | used up: the next taker switches     |
//! | filled_for != g, or offset >= len  | filled_for != g + 1 | empty: takers wait for a publication |
//!
//! Shared memory starts zeroed: generation 0 with a buffer of length 0, which is the last row.
//!
//! # Concurrency
//!
//! * take, switch: any process at any time, without a lock.
//! * publish, invalidate: one process at a time, under the slot's lock.
//!
//! # The request
//!
//! `request` = number (high 30 bits) and state (low 2 bits).
//!
//! | state | owner | event | next state |
//! | --- | --- | --- | --- |
//! | idle | | want: by the one session that succeeds | wanted |
//! | wanted | that session, then the process that has taken the slot over | withdraw: by the owner | idle |
//! | | | accept: by an allocator; assigns the next number | in flight |
//! | in flight | that allocator | clear: by the allocator, with its number | idle |
//! | | | close: by the process that gives the slot to another tag | idle |
//!
//! A slot may be linked into a list only in state wanted, and only the owner ends that state: so no
//! slot is linked twice. A request in flight can be closed without its allocator. The next request
//! has another number, so later actions of that allocator affect no request. (Numbers wrap after
//! 2^30 requests of one slot, all during the same claim.)
//!
//! # Memory ordering
//!
//! Takers read the word first, and the fetch-and-add that takes the id fails (by its generation) if
//! the word has moved on since. Every change of the buffers' meaning goes through the word: a
//! switch adds one to the generation, an invalidation two, which leaves neither buffer valid.
//! Shortcuts that look equivalent issue duplicates (a state search found each): with a ready flag
//! two takers switch twice; an invalidation by one revives a used buffer; a fetch-and-add of n
//! carries into the generation; reading `version` before the word takes an id of another tag;
//! publishing out of claim order breaks I4.
//!
//! Overwriting a buffer while a taker reads it is harmless. The exchange that takes the id releases
//! the taker's loads to the switch, and so to the process that overwrites the buffer afterwards; a
//! taker that is too late fails by the generation. But the inputs for "empty" (`filled_for` and
//! lengths) are loaded with acquire, so that the subsequent check of the word is no older than they
//! are.
//!
//! All in one file, because each method relies on what the others may do concurrently.

use crate::primitive::{AtomicI64, AtomicU32, AtomicU64, Ordering};

mod outcome;

pub use outcome::{Miss, Obstacle, Refused, Remainder, Remainders, SegmentRequest, Taken};

/// Max length of a segment, in ids: the largest `step` of a tag (an SQL integer). Far enough below
/// 2^32 that overshooting takers (at most one id each) cannot carry into the generation.
pub const MAX_LEN: u32 = i32::MAX as u32;

/// The spare is requested once 1/10 of the current buffer is taken (Leaf: 10 %).
const PREFETCH_DIVISOR: u64 = 10;

/// No open request.
const IDLE: u32 = 0;
/// Requested by a session, not yet accepted.
const WANTED: u32 = 1;
/// Accepted by an allocator.
const IN_FLIGHT: u32 = 2;
/// Mask of the state bits. The other bits number the accepted requests, so that a late allocator
/// recognizes its own.
const STATE: u32 = 3;
const ONE_REQUEST: u32 = STATE + 1;

#[repr(C)]
struct Buffer {
    first: AtomicI64,
    /// Number of ids.
    len: AtomicU32,
    /// Generation that this buffer was filled for.
    filled_for: AtomicU32,
}

/// The two buffers of a tag. 64 bytes, so that a take touches one cache line.
#[repr(C)]
pub struct DoubleBuffer {
    word: AtomicU64,
    /// Number of invalidations, by edits of the row and reuse of the slot. Never reset.
    version: AtomicU64,
    buffers: [Buffer; 2],
    request: AtomicU32,
    /// The longest contiguous range a session is waiting for, in ids; 0 if none.
    range_len: AtomicU32,
    /// Padding to a cache line.
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

/// A taker's view of the current buffer.
struct Look<'a> {
    /// The word, read first.
    word: u64,
    /// Generation of the word.
    current: u32,
    buffer: &'a Buffer,
    /// In ids; 0 if the buffer was not filled for this generation.
    len: u32,
}

impl Look<'_> {
    /// First id of the segment. Valid only if `len` > 0.
    #[inline]
    fn first(&self) -> i64 {
        self.buffer.first.load(Ordering::Relaxed)
    }
}

impl DoubleBuffer {
    /// An empty double buffer. In shared memory, zeroes are used instead.
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

    /// Current version, to be passed to takes and publications.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Reads the current buffer; `None` if the slot has another version. The order of the loads
    /// matters (see the header): the word, then the version, then the buffer.
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

    /// Takes one id from the given version.
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

    /// First attempt of [`DoubleBuffer::take`], which nearly always succeeds.
    ///
    /// # Errors
    /// An obstacle, to be passed to [`DoubleBuffer::take_again`].
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

    /// Continues [`DoubleBuffer::take`] after a failed attempt.
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
                // One id of the new buffer becomes a gap.
                Obstacle::Overtaken(word) => lost += u32::from(self.was_ready(word)),
            }
            match self.try_take(version) {
                Ok(taken) => return Ok(Taken { lost, ..taken }),
                Err(next) => obstacle = next,
            }
        }
    }

    /// Takes up to `n` contiguous ids, fewer if the current buffer ends. `n` must be at least 1.
    ///
    /// # Errors
    /// As [`DoubleBuffer::take`].
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

    /// Takes exactly `n` contiguous ids. If the current buffer is too short, the same step gives up
    /// its rest and takes from the start of the spare: ids keep increasing (I4), and no other taker
    /// can take from the spare first.
    ///
    /// # Errors
    /// As [`DoubleBuffer::take`], but [`Miss::Empty`] means that the current buffer is too short
    /// and there is no spare. The buffer is left as it is; [`DoubleBuffer::want_range`] requests a
    /// spare of sufficient length. [`Miss::Short`] means that the spare was too short and has been
    /// made the current buffer.
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
            // Checked again, since this takes from the spare, which the word does not cover:
            // between the two steps of an invalidation, look() still saw the old version, and the
            // spare may already belong to the new one.
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

    /// True if the word denotes an id that could be taken. May be false for a word replaced since,
    /// which is good enough to count gaps.
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

    /// Makes the spare the current buffer. `word` is one whose buffer was seen used up. On `Ok` the
    /// word has moved, by this call or by another process.
    fn switch(&self, word: u64) -> Result<(), Miss> {
        let next = generation(word).wrapping_add(1);
        if self.buffer(next).filled_for.load(Ordering::Acquire) == next {
            // On failure a late taker has advanced the offset, or another taker has switched:
            // retry.
            let _ = self.advance(word, pack(next, 0));
            return Ok(());
        }
        self.confirm_empty(generation(word))
    }

    /// Confirms "empty": the buffers were read after the word, so they are consistent only if the
    /// generation is unchanged. Otherwise a spare may have come and gone: retry.
    fn confirm_empty(&self, seen: u32) -> Result<(), Miss> {
        if generation(self.word.load(Ordering::Acquire)) == seen {
            return Err(Miss::Empty);
        }
        Ok(())
    }

    /// Past the threshold and not yet requested. Not a test for equality: the take that lands on
    /// the threshold may be discarded.
    #[inline]
    fn spare_due(&self, current: u32, used: u32, len: u32) -> bool {
        let next = current.wrapping_add(1);
        u64::from(used) * PREFETCH_DIVISOR >= u64::from(len)
            && self.buffer(next).filled_for.load(Ordering::Relaxed) != next
            && self.request.load(Ordering::Relaxed) & STATE == IDLE
    }

    /// Changes the request to the state that `to` returns. `Ok`: the previous word. `Err`: the word
    /// for which `to` returned `None`.
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

    /// Requests a segment. True for the one session that must now post the slot to the allocator,
    /// or [`DoubleBuffer::withdraw`] the request.
    pub fn want(&self) -> bool {
        self.move_request(|seen| (seen & STATE == IDLE).then_some(seen | WANTED))
            .is_ok()
    }

    /// Requests a segment with at least `n` contiguous ids; otherwise as [`DoubleBuffer::want`].
    pub fn want_range(&self, n: u32) -> bool {
        self.range_len.fetch_max(n, Ordering::Relaxed);
        self.want()
    }

    /// Ends a request that no allocator has accepted. Called by the session whose
    /// [`DoubleBuffer::want`] succeeded, or by the process that has taken the slot over from it.
    /// The caller must wake the waiters, unless it waits with them.
    pub fn withdraw(&self) {
        let seen = self.request.load(Ordering::Relaxed);
        debug_assert_eq!(seen & STATE, WANTED);
        self.request.store(seen & !STATE | IDLE, Ordering::Release);
    }

    /// Accepts the request, for an allocator; `None` if there is none.
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

    /// Ends a request, answered or not; sessions that still need ids request again. No effect if it
    /// was closed. The caller must wake the waiters.
    pub fn clear(&self, request: &SegmentRequest) {
        let _ = self.request.compare_exchange(
            request.word,
            request.word & !STATE | IDLE,
            Ordering::AcqRel,
            Ordering::Relaxed,
        );
    }

    /// True if this request is still in flight, not closed.
    #[must_use]
    pub fn is_in_flight(&self, request: &SegmentRequest) -> bool {
        self.request.load(Ordering::Acquire) == request.word
    }

    /// Closes the request in flight, if any, without its allocator. False if a request is wanted
    /// but not accepted: then the slot must not be given to another tag.
    pub fn close(&self) -> bool {
        let closed = |seen: u32| (seen & STATE == IN_FLIGHT).then_some(seen & !STATE | IDLE);
        match self.move_request(closed) {
            Ok(_) => true,
            Err(seen) => seen & STATE == IDLE,
        }
    }

    /// True if a request is open.
    #[must_use]
    pub fn is_requested(&self) -> bool {
        self.request.load(Ordering::Acquire) & STATE != IDLE
    }

    /// True if a session has requested a segment and no allocator has accepted.
    #[must_use]
    pub fn is_wanted(&self) -> bool {
        self.request.load(Ordering::Acquire) & STATE == WANTED
    }

    /// True if the spare is ready.
    #[must_use]
    pub fn has_spare(&self) -> bool {
        let next = generation(self.word.load(Ordering::Acquire)).wrapping_add(1);
        self.buffer(next).filled_for.load(Ordering::Acquire) == next
    }

    /// Publishes a claimed segment as the spare. `version` is the [`DoubleBuffer::version`] read
    /// before the claim's transaction began. The claim must be durable (I1). `len` is 1 to
    /// [`MAX_LEN`]. Under the slot's lock.
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
        // The generation cannot change here: a switch needs the filled_for not yet written, an
        // invalidation needs the lock held by the caller.
        let next = generation(self.word.load(Ordering::Acquire)).wrapping_add(1);
        let spare = self.buffer(next);
        if spare.filled_for.load(Ordering::Relaxed) == next {
            return Err(Refused::Full);
        }
        // Release on all three: a process that reads one of them without the lock, and too late,
        // must find that the word has moved on.
        spare.first.store(first, Ordering::Release);
        spare.len.store(len, Ordering::Release);
        // filled_for last: it makes the other two visible to takers.
        spare.filled_for.store(next, Ordering::Release);
        Ok(())
    }

    /// One past the last id published in this version, the lower bound for the next publication
    /// (I4); 0 if none. Under the slot's lock, so that the buffers cannot change; a concurrent
    /// switch makes the spare the current buffer.
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

    /// Starts the next version: nothing published before can be taken, nothing claimed before can
    /// be published. Returns the remainders, which now belong to the caller. Under the slot's lock;
    /// the caller must wake the waiters.
    pub fn invalidate(&self) -> Remainders {
        // fetch_add rather than an exchange, which busy takers could delay for long under the lock.
        // The offset is meaningless until the next switch resets it.
        let word = self.word.fetch_add(pack(2, 0), Ordering::AcqRel);
        // The buffers cannot change until the lock is released.
        let remainders = self.remainders_at(word);
        // Set to a generation of the other parity. Otherwise a buffer that is never refilled would
        // become valid again when the generation wraps.
        self.buffers[0].filled_for.store(1, Ordering::Release);
        self.buffers[1].filled_for.store(0, Ordering::Release);
        self.range_len.store(0, Ordering::Relaxed);
        // The word first, the version last: see the header.
        self.version.fetch_add(1, Ordering::Release);
        remainders
    }

    /// The remainders of both buffers, for the status views.
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

    /// The word, to detect use of a slot between two passes.
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
