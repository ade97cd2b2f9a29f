//! From where on snowflake ids may be issued after a start: the decision of I7,
//! without the file it is read from. Times in Unix milliseconds.

/// What a start knows about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// The clock.
    pub now_ms: i64,
    /// The epoch of this server's ids.
    pub epoch_ms: i64,
    /// How far ahead of use timestamps are reserved.
    pub reservation_ms: i64,
    /// The cluster, as pg_control knows it.
    pub system_identifier: u64,
    /// The timeline that WAL is written on.
    pub timeline: u32,
}

/// What the file of the last run says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// No id of the last run carries a later timestamp.
    pub reserved_until_ms: i64,
    /// The epoch of those ids.
    pub epoch_ms: i64,
    /// The cluster that wrote it.
    pub system_identifier: u64,
    /// The timeline it was written on.
    pub timeline: u32,
    /// Device and inode are those of the file that was written: it was not copied.
    pub original: bool,
}

/// Why a start may not issue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unsafe {
    /// The epoch was moved later: the same instants would give smaller ids again.
    EpochMovedLater {
        /// The epoch of the last run.
        stored_ms: i64,
    },
    /// The reservation lies further in the future than any waiting is worth.
    FarAhead {
        /// By how many milliseconds.
        by_ms: i64,
        /// The reservation that was found.
        reserved_until_ms: i64,
    },
}

/// The floor: ids must carry later timestamps. What is left of it above the clock has
/// to be waited out.
///
/// A missing file, another timeline and a copied file say nothing of what another
/// server may have issued since: the floor is then one reservation ahead.
///
/// # Errors
/// See [`Unsafe`].
pub fn floor(start: Start, stored: Option<Stored>) -> Result<i64, Unsafe> {
    let Some(stored) = stored else {
        return Ok(start.now_ms + start.reservation_ms);
    };
    if start.epoch_ms > stored.epoch_ms {
        return Err(Unsafe::EpochMovedLater {
            stored_ms: stored.epoch_ms,
        });
    }
    // An earlier epoch makes the same instant a larger id: the old floor still holds.
    // From a file that anybody may have edited: any number is possible.
    let reserved = stored.reserved_until_ms;
    let by_ms = reserved.saturating_sub(start.now_ms);
    // Twice: the clock may have been set within one reservation, and one is the promise.
    if by_ms > 2 * start.reservation_ms {
        return Err(Unsafe::FarAhead {
            by_ms,
            reserved_until_ms: reserved,
        });
    }
    let same = stored.original
        && stored.system_identifier == start.system_identifier
        && stored.timeline == start.timeline;
    if same {
        Ok(reserved)
    } else {
        Ok(reserved.max(start.now_ms) + start.reservation_ms)
    }
}
