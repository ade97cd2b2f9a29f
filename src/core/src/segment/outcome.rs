//! What comes of a take, a publication or a look at the double buffer.

/// Ids that now belong to the caller: `first ..= first + count - 1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// The lowest id.
    pub first: i64,
    /// How many ids, at least 1.
    pub count: u32,
    /// The caller should ask for a spare with `DoubleBuffer::want`.
    pub spare_due: bool,
    /// Ids that were given up on the way: the rest of the buffer in use, to keep a range
    /// contiguous, and those of takes that came between a switch.
    pub lost: u32,
}

impl Taken {
    /// Whether there is more to do than to use the ids: a spare to ask for, a loss to count.
    #[inline]
    #[must_use]
    pub fn leaves_work(&self) -> bool {
        self.spare_due || self.lost > 0
    }
}

/// Why nothing could be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Miss {
    /// The slot now has another version: look the tag up again.
    Changed,
    /// Both buffers are used up: ask for a segment and wait.
    Empty,
    /// Only from `DoubleBuffer::take_range`: the spare is too short for the range. It
    /// is the buffer in use now, which makes room for a longer one: try again.
    Short {
        /// Ids that were given up for it.
        lost: u32,
    },
}

/// Why an attempt to take one id got none. One id may have been lost in it, which is not
/// counted before `DoubleBuffer::take_again`.
#[must_use]
#[derive(Debug, Clone, Copy)]
pub enum Obstacle {
    /// The slot has another version.
    Changed,
    /// The buffer in use is used up, or was never filled; with the word as it was seen.
    UsedUp(u64),
    /// Somebody switched or invalidated in between; with the word that was counted up instead.
    Overtaken(u64),
}

/// Why a segment was not published. The claimed ids are then a gap (I6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The row was edited, or the slot reused, since the claim began.
    Changed,
    /// The segment starts below ids that were already published in this version.
    OutOfOrder,
    /// The spare is already there.
    Full,
}

/// A request that an allocator has accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentRequest {
    /// The word while it is in flight.
    pub(super) word: u32,
    /// The longest range that a session waits for, 0 for none.
    pub range_len: u32,
}

/// A run of ids, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remainder {
    /// The lowest id not yet taken.
    pub first: i64,
    /// The highest id of the segment.
    pub last: i64,
}

impl Remainder {
    /// How many ids, at least 1.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.last.abs_diff(self.first) + 1
    }
}

/// What both buffers held at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Remainders {
    /// Of the buffer in use.
    pub current: Option<Remainder>,
    /// Of the spare.
    pub spare: Option<Remainder>,
    /// First id and length of the buffer in use, also when it is used up.
    pub current_segment: Option<(i64, u32)>,
}

impl Remainders {
    /// The ids in both buffers together.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.current.map_or(0, |r| r.count()) + self.spare.map_or(0, |r| r.count())
    }
}
