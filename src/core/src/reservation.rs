//! From where on snowflake ids may be issued, when, and how far ahead timestamps are
//! reserved: the decisions of I7, without the clock and the file. Times in Unix milliseconds.
//!
//! | rule | decides |
//! | --- | --- |
//! | [`floor`], [`Floor::of_word`] | the floor of a run: what may have been issued before |
//! | [`Opening::decide`] | whether the generator may be opened now, and above what |
//! | [`Renewal::decide`] | when the launcher renews, and how far |
//! | [`late_renewal`] | the same, for a session in place of a launcher that is late |
//! | [`reserve_until`] | what of that is reserved: never beyond what the registry recorded |

use crate::numbered::numbered;
use crate::state::Refusal;

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

impl Floor {
    /// After a launcher that ended alone, and after a reset, the word in shared memory knows
    /// the last id, and nothing needs to be waited out beyond it.
    #[must_use]
    pub fn of_word(last_ms: i64, was_reset: bool) -> Self {
        let reason = if was_reset {
            Reason::Reset
        } else {
            Reason::LauncherRestart
        };
        Self {
            ms: last_ms,
            reason,
        }
    }

    /// It says what was issued with the worker ids of this server. Otherwise a lease can: what
    /// is leased as by another server is free above the registry's floor.
    #[must_use]
    pub fn is_own(self) -> bool {
        match self.reason {
            Reason::NoFile | Reason::CopiedFile | Reason::OtherCluster => false,
            Reason::CleanStop
            | Reason::LauncherRestart
            | Reason::Crash
            | Reason::NewTimeline
            | Reason::Reset => true,
        }
    }
}

numbered! {
    /// What a floor comes from.
    Reason {
        /// The last run has stopped in good order.
        CleanStop => "clean stop",
        /// Only the launcher has ended and come back.
        LauncherRestart => "launcher restart",
        /// The last run has crashed: all that it had reserved.
        Crash => "crash",
        /// There was no file.
        NoFile => "no file",
        /// The file was written somewhere else and copied.
        CopiedFile => "copied file",
        /// The file was written before a promotion or a recovery to a point in time.
        NewTimeline => "new timeline",
        /// The file is of another cluster.
        OtherCluster => "other cluster",
        /// `leaf_snowflake_reset` has set it.
        Reset => "reset",
    }
}

/// The floor: ids must carry later timestamps. What is left of it above the clock has
/// to be waited out.
///
/// A missing file, another timeline and a copied file say nothing of what another
/// server may have issued since: the floor is then one reservation ahead.
///
/// # Errors
/// The epoch was moved later, or the reservation lies further in the future than any waiting
/// is worth.
pub fn floor(start: Start, stored: Option<Stored>) -> Result<Floor, Refusal> {
    let Some(stored) = stored else {
        return Ok(Floor {
            ms: start.now_ms + start.reservation_ms,
            reason: Reason::NoFile,
        });
    };
    if start.epoch_ms > stored.epoch_ms {
        return Err(Refusal::EpochMovedLater {
            stored_ms: stored.epoch_ms,
        });
    }
    // An earlier epoch makes the same instant a larger id: the old floor still holds.
    let reserved_until_ms = stored.reserved_until_ms;
    if is_far_ahead(start, reserved_until_ms) {
        return Err(Refusal::ReservationAhead {
            until_ms: reserved_until_ms,
        });
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

/// Whether the generator may be opened with a worker id, or the worker id of an open one be
/// changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// The clock.
    pub now_ms: i64,
    /// The last id, whatever its worker id was.
    pub last_ms: i64,
    /// The generator is open, with another worker id.
    pub is_open: bool,
    /// What may have been issued before, in this run's place or with this worker id.
    pub floor_ms: i64,
    /// What the registry has said of that, where the worker id is leased.
    pub granted_floor_ms: Option<i64>,
    /// A reset has left the worker id behind: its ids may carry times until here.
    pub retired_until_ms: Option<i64>,
    /// How far ahead of use timestamps are reserved.
    pub reservation_ms: i64,
    /// How far behind the last id the clock is waited for.
    pub max_backward_ms: i64,
}

/// What [`Opening::decide`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It may, above this time, once timestamps are reserved until that one.
    Open {
        /// Ids carry later times.
        above_ms: i64,
        /// See [`reserve_until`].
        until_ms: i64,
    },
    /// It may once the clock has passed this time.
    WaitOut {
        /// See above.
        until_ms: i64,
    },
    /// The same, and that is far ahead.
    Refuse {
        /// Why.
        refusal: Refusal,
        /// See above.
        until_ms: i64,
    },
}

impl Opening {
    /// What the first id must be above: the floor and the last id, and what is left of the
    /// time of a worker id that was left behind.
    ///
    /// An open word is above the floor, and the clock beside it. But if the clock has gone
    /// back, the word must not get another worker id: its time is not that one's.
    fn above_ms(self) -> i64 {
        let ahead = self.last_ms - self.now_ms > self.max_backward_ms;
        let floor_ms = if self.is_open && !ahead {
            i64::MIN
        } else {
            self.floor_ms.max(self.last_ms)
        };
        self.retired_until_ms
            .map_or(floor_ms, |until_ms| floor_ms.max(until_ms))
    }

    /// The decision: what lies above the clock is waited out.
    #[must_use]
    pub fn decide(self) -> Decision {
        let above_ms = self.above_ms();
        if self.now_ms > above_ms {
            return Decision::Open {
                above_ms,
                until_ms: self.now_ms + self.reservation_ms,
            };
        }
        let until_ms = above_ms;
        // The most that a floor found at the start lies ahead.
        let far = until_ms.saturating_sub(self.now_ms) > 3 * self.reservation_ms;
        // What another holder of a leased worker id may have used lies one lease ahead at
        // most, and then this is over by itself.
        let far = far && self.granted_floor_ms.is_none_or(|ms| ms < until_ms);
        if !far {
            return Decision::WaitOut { until_ms };
        }
        let refusal = if self.retired_until_ms == Some(until_ms) {
            Refusal::WorkerIdRetired { until_ms }
        } else {
            Refusal::ReservationAhead { until_ms }
        };
        Decision::Refuse { refusal, until_ms }
    }
}

/// What is reserved, of what is wanted: no less than is in use already, and nothing that the
/// registry has not recorded.
#[must_use]
pub fn reserve_until(wanted_ms: i64, reserved_until_ms: i64, recorded_until_ms: i64) -> i64 {
    wanted_ms.max(reserved_until_ms).min(recorded_until_ms)
}

/// Whether the launcher renews the reservation of an open generator: at half while ids are
/// issued, or because a session found it used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewal {
    /// The clock.
    pub now_ms: i64,
    /// The last id.
    pub last_ms: i64,
    /// What is reserved.
    pub reserved_until_ms: i64,
    /// What the registry has recorded.
    pub recorded_until_ms: i64,
    /// When it was reserved.
    pub renewed_at_ms: i64,
    /// A session asks for it, or the last attempt has failed.
    pub wanted: bool,
    /// How far ahead of use timestamps are reserved.
    pub reservation_ms: i64,
}

/// What [`Renewal::decide`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renew {
    /// Not yet: in so many milliseconds, or when a session asks.
    Later(Option<i64>),
    /// Until then, see [`reserve_until`].
    Until(i64),
    /// All is reserved that may be.
    Enough,
}

impl Renewal {
    /// The decision.
    #[must_use]
    pub fn decide(self) -> Renew {
        let half = self.reservation_ms / 2;
        let left = self.reserved_until_ms - self.now_ms;
        let used = self.last_ms >= self.renewed_at_ms;
        if !self.wanted && left > half {
            return Renew::Later(used.then_some(left - half));
        }
        if !self.wanted && !used {
            // Idle: the next call asks, and waits for one fsync.
            return Renew::Later(None);
        }
        let until_ms = (self.now_ms + 2 * half).min(self.recorded_until_ms);
        if self.reserved_until_ms < until_ms {
            Renew::Until(until_ms)
        } else {
            Renew::Enough
        }
    }
}

/// How far a session renews the reservation in place of the launcher; `None` if there is
/// nothing to renew.
#[must_use]
pub fn late_renewal(
    now_ms: i64,
    reservation_ms: i64,
    reserved_until_ms: i64,
    recorded_until_ms: i64,
) -> Option<i64> {
    let until_ms = (now_ms + reservation_ms).min(recorded_until_ms);
    (until_ms > reserved_until_ms).then_some(until_ms)
}
