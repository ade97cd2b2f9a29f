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
    /// The timeline that WAL is written on; 0 on a standby.
    pub timeline: u32,
    /// The worker id is leased in this server's own name: no other server of this cluster
    /// has had it, whatever timeline that was on.
    pub leased: bool,
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
    /// The timeline it was written on; 0 on a standby.
    pub timeline: u32,
    /// It is the file that was written, and no copy of it.
    pub original: bool,
    /// It is the exact last timestamp, written by a clean stop.
    pub clean: bool,
}

/// The floor of a run and where it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Floor {
    /// Ids must carry later timestamps, in Unix milliseconds.
    pub ms: i64,
    /// What the last run has left.
    pub reason: Reason,
}

/// What a floor comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Reason {
    /// Not decided yet.
    None,
    /// The last run has stopped in good order.
    CleanStop,
    /// Only the launcher has ended and come back.
    LauncherRestart,
    /// The last run has crashed: all that it had reserved.
    Crash,
    /// There was no file.
    NoFile,
    /// The file was written somewhere else and copied.
    CopiedFile,
    /// The file was written before a promotion or a recovery to a point in time.
    NewTimeline,
    /// The file is of another cluster.
    OtherCluster,
    /// `leaf_snowflake_reset` has set it.
    Reset,
}

impl Reason {
    /// The reason with this number, which shared memory holds.
    #[must_use]
    pub fn of(number: u32) -> Self {
        [
            Self::CleanStop,
            Self::LauncherRestart,
            Self::Crash,
            Self::NoFile,
            Self::CopiedFile,
            Self::NewTimeline,
            Self::OtherCluster,
            Self::Reset,
        ]
        .into_iter()
        .find(|reason| *reason as u32 == number)
        .unwrap_or(Self::None)
    }
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
pub fn floor(start: Start, stored: Option<Stored>) -> Result<Floor, Unsafe> {
    let Some(stored) = stored else {
        return Ok(Floor {
            ms: start.now_ms + start.reservation_ms,
            reason: Reason::NoFile,
        });
    };
    if start.epoch_ms > stored.epoch_ms {
        return Err(Unsafe::EpochMovedLater {
            stored_ms: stored.epoch_ms,
        });
    }
    // An earlier epoch makes the same instant a larger id: the old floor still holds.
    let reserved_until_ms = stored.reserved_until_ms;
    if is_far_ahead(start, reserved_until_ms) {
        return Err(Unsafe::FarAhead { reserved_until_ms });
    }
    let reason = if stored.system_identifier != start.system_identifier {
        Reason::OtherCluster
    } else if stored.timeline != start.timeline && !start.leased {
        Reason::NewTimeline
    } else if !stored.original {
        Reason::CopiedFile
    } else if stored.clean {
        Reason::CleanStop
    } else {
        Reason::Crash
    };
    let ms = match reason {
        Reason::CleanStop | Reason::Crash => reserved_until_ms,
        _ => reserved_until_ms.max(start.now_ms) + start.reservation_ms,
    };
    Ok(Floor { ms, reason })
}

/// Whether waiting until then is not worth while. Twice the reservation: the clock may
/// have been set within one, and one is the promise. From a file that anybody may have
/// edited: any number is possible.
fn is_far_ahead(start: Start, until_ms: i64) -> bool {
    until_ms.saturating_sub(start.now_ms) > 2 * start.reservation_ms
}
