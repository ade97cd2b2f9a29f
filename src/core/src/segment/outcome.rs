//! Results of takes, publications and reads of the double buffer.

/// Ids that now belong to the caller: `first ..= first + count - 1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Taken {
    /// First id.
    pub first: i64,
    /// Number of ids, at least 1.
    pub count: u32,
    /// The caller should request a spare with `DoubleBuffer::want`.
    pub spare_due: bool,
    /// Ids given up by this take: the rest of the current buffer, to keep a range contiguous, and
    /// ids lost by attempts that a switch has overtaken.
    pub lost: u32,
}

impl Taken {
    /// True if the caller must request a spare or count lost ids.
    #[inline]
    #[must_use]
    pub fn leaves_work(&self) -> bool {
        self.spare_due || self.lost > 0
    }
}

/// Reason why nothing could be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Miss {
    /// The slot has another version; look up the tag again.
    Changed,
    /// Both buffers are used up; request a segment and wait.
    Empty,
    /// Only from `DoubleBuffer::take_range`: the spare was too short. It is now the current buffer,
    /// which makes room for a longer spare; try again.
    Short {
        /// Ids given up by the attempt.
        lost: u32,
    },
}

/// Reason why an attempt to take one id failed. The attempt may have lost one id, which
/// `DoubleBuffer::take_again` counts.
#[must_use]
#[derive(Debug, Clone, Copy)]
pub enum Obstacle {
    /// The slot has another version.
    Changed,
    /// The current buffer is used up, or was never filled. Contains the word as seen.
    UsedUp(u64),
    /// A switch or an invalidation came in between. Contains the word that was incremented instead.
    Overtaken(u64),
}

/// Reason why a segment was not published. Its ids become a gap (I6).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The row was edited, or the slot reused, since the claim began.
    Changed,
    /// The segment starts below ids already published in this version.
    OutOfOrder,
    /// There is a spare already.
    Full,
}

/// A request accepted by an allocator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentRequest {
    /// Value of `DoubleBuffer::request` while this is in flight.
    pub(super) word: u32,
    /// The longest range a session is waiting for, in ids; 0 if none.
    pub range_len: u32,
}

/// Ids left in a buffer, both ends inclusive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remainder {
    /// First id not yet taken.
    pub first: i64,
    /// Last id of the segment.
    pub last: i64,
}

impl Remainder {
    /// Number of ids, at least 1.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.last.abs_diff(self.first) + 1
    }
}

/// Contents of both buffers at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Remainders {
    /// Remainder of the current buffer.
    pub current: Option<Remainder>,
    /// Remainder of the spare.
    pub spare: Option<Remainder>,
    /// First id and length of the current buffer's segment, even if it is used up.
    pub current_segment: Option<(i64, u32)>,
}

impl Remainders {
    /// Number of ids in both buffers.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.current.map_or(0, |r| r.count()) + self.spare.map_or(0, |r| r.count())
    }
}
