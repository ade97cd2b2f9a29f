//! From where on snowflake ids may be issued, when, and how far ahead timestamps are
//! reserved: the decisions of I7, without the clock and the file. Times in Unix milliseconds.
//!
//! | rule | decides |
//! | --- | --- |
//! | [`floor`], [`Floor::of_word`] | the floor of a run: what may have been issued before |
//! | [`Opening::decide`] | whether the generator may be opened now, and above what |
//! | [`Terms::target`] | how far timestamps are reserved |
//! | [`Renewal::decide`] | when the launcher renews |
//! | [`late_renewal`] | the same, for a session in place of a launcher that is late |
//! | [`reserve_until`] | what of that is reserved: never beyond what the registry recorded |
//!
//! # The logical clock
//!
//! A start goes on at once above its floor, as long as that leads the clock by no more than
//! [`Terms::max_lead_ms`] (M). What it must be above follows from what others may have done
//! whose clocks differ from this one by no more than one reservation (R):
//!
//! * A run that knows its predecessor, by the file that was written in this place on this
//!   timeline, starts above what that had reserved. That is no further ahead of the clock than
//!   M, unless the clock was set back: see [`Terms::target`].
//! * Any other run, and the first one with a worker id that is not leased, may follow a server
//!   that has led its clock by M, with a clock that was ahead by R: it starts M + R above the
//!   clock. By how much more than M it may lead melts half as fast as time passes, over crashes
//!   too ([`Lead::bound_ms`]): so the next run that knows nothing starts above it, if it starts
//!   no sooner than twice what the clocks differ.
//!
//! With a floor of one reservation above the clock the old primary of a pair, after a crash,
//! issues at 4.0 s while its clock shows 1 s; the promoted server's floor is 2 s, and 3.0 comes
//! twice.

use crate::layout::{Layout, Parts};
use crate::numbered::numbered;
use crate::snowflake::Lead;
use crate::state::Refusal;

/// The least that is reserved at once, in milliseconds, or a whole reservation: many times what it
/// takes to write it down, or it would be over before it may be used.
const LEAST_MS: i64 = 100;
/// The same where ids lead the clock. There time does not run out while it is written; and where
/// they lead by as much as they may, a crash makes the next start wait for it.
const LEAST_AHEAD_MS: i64 = 25;

/// What the settings, and the registry, say of reservations. Times in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// `leaf_id.timestamp_reservation`: how far ahead of use timestamps are reserved, and how
    /// far the clocks of servers that share a worker id may differ.
    pub reservation_ms: i64,
    /// `leaf_id.max_clock_lead`.
    pub configured_lead_ms: i64,
    /// What the registry allows at most, also to a run that does not know its predecessor.
    pub granted_lead_ms: i64,
}

impl Terms {
    /// How far ids may lead the clock. One reservation less than a run may that does not know its
    /// predecessor: so far the clocks of the two may differ.
    #[must_use]
    pub fn max_lead_ms(self) -> i64 {
        let granted_ms = self.granted_lead_ms.saturating_sub(self.reservation_ms);
        self.configured_lead_ms.min(granted_ms.max(0))
    }

    /// The same, of a run that does not know its predecessor, until it is below the other one.
    #[must_use]
    pub fn unknown_lead_ms(self) -> i64 {
        (self.configured_lead_ms + self.reservation_ms).min(self.granted_lead_ms)
    }

    /// How far ids may lead the clock, by more where the run does not know its predecessor since
    /// then. `max_burst_ms`: `leaf_id.max_burst_lead`; what a crash leaves reserved comes on top
    /// of it.
    #[must_use]
    pub fn lead(self, unknown_since_ms: Option<i64>, max_burst_ms: i64) -> Lead {
        let max_ms = self.max_lead_ms();
        Lead {
            max_ms,
            extra_ms: unknown_since_ms.map_or(0, |_| self.unknown_lead_ms() - max_ms),
            since_ms: unknown_since_ms.unwrap_or(0),
            burst_ms: max_burst_ms.min(max_ms - self.reservation_ms).max(0),
        }
    }

    /// How soon the launcher looks after the reservation of a generator that is in use.
    #[must_use]
    pub fn renew_after_ms(self) -> i64 {
        (self.target(0, 0) / 2).max(1)
    }

    /// Until when timestamps are reserved while ids are issued at a time: one reservation ahead,
    /// but not so far that the start after a crash could not go on at once. Otherwise each crash
    /// of a series would reserve another one, though nothing was issued. `last_ms`: the last id,
    /// or that above which the generator is to be opened.
    #[must_use]
    pub fn target(self, now_ms: i64, last_ms: i64) -> i64 {
        let from_ms = now_ms.max(last_ms);
        let least_ms = if last_ms > now_ms {
            LEAST_AHEAD_MS
        } else {
            LEAST_MS
        };
        let least_ms = least_ms.min(self.reservation_ms);
        let whole_ms = from_ms.saturating_add(self.reservation_ms);
        let survivable_ms = now_ms + self.max_lead_ms() - least_ms;
        whole_ms
            .min(survivable_ms)
            .max(from_ms.saturating_add(least_ms))
    }
}

/// What a start knows about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// The clock.
    pub now_ms: i64,
    /// The epoch of this server's ids.
    pub epoch_ms: i64,
    /// Their layout.
    pub layout: Layout,
    /// What the settings say.
    pub terms: Terms,
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
    /// Their layout.
    pub layout: Layout,
    /// The cluster that wrote it.
    pub system_identifier: u64,
    /// The timeline it was written on; 0 on a standby.
    pub timeline: u32,
    /// It is the file that was written, and no copy of it.
    pub original: bool,
    /// It is the exact last timestamp, written by a clean stop.
    pub clean: bool,
    /// Since then the run has led the clock by more than it otherwise may, because it did not
    /// know its predecessor; `None`: it did not.
    pub unknown_since_ms: Option<i64>,
    /// Until when ids carry times of the worker ids that a reset has left behind; `None`: there are none.
    pub left_behind_until_ms: Option<i64>,
}

impl Stored {
    /// Whether all ids from `ms` on are larger than any that this server may have issued: the last
    /// run may have had another epoch, or another layout, with which its worker ids tell
    /// nothing apart.
    #[must_use]
    pub fn is_below(&self, epoch_ms: i64, layout: Layout, ms: i64) -> bool {
        // With an earlier epoch alone, worker ids tell them apart as before.
        let left_behind = self
            .left_behind_until_ms
            .filter(|_| layout != self.layout || epoch_ms > self.epoch_ms);
        let until_ms = self.reserved_until_ms.max(left_behind.unwrap_or(i64::MIN));
        let largest = self.layout.compose(Parts {
            ms: (until_ms.saturating_sub(self.epoch_ms)).clamp(0, self.layout.max_ms()),
            worker_id: self.layout.max_worker_id(),
            sequence: self.layout.max_sequence(),
        });
        let smallest = layout.compose(Parts {
            ms: ms.saturating_sub(epoch_ms).clamp(0, layout.max_ms()),
            worker_id: 0,
            sequence: 0,
        });
        smallest > largest
    }
}

/// The floor of a run and where it comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Floor {
    /// Ids must carry later timestamps, in Unix milliseconds.
    pub ms: i64,
    /// What the last run has left.
    pub reason: Reason,
    /// What was issued before is not known, since then; or it was not known to the last run, see
    /// [`Stored::unknown_since_ms`].
    pub unknown_since_ms: Option<i64>,
}

impl Floor {
    /// After a launcher that ended alone, and after a reset, the word in shared memory knows
    /// the last id. `unknown_since_ms`: as the generator says.
    #[must_use]
    pub fn of_word(last_ms: i64, was_reset: bool, unknown_since_ms: Option<i64>) -> Self {
        let reason = if was_reset {
            Reason::Reset
        } else {
            Reason::LauncherRestart
        };
        Self {
            ms: last_ms,
            reason,
            unknown_since_ms,
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
            | Reason::Reset
            | Reason::OtherWorkerId
            | Reason::Registry => true,
        }
    }

    /// The file says which worker id was in force before.
    #[must_use]
    pub fn knows_worker_id(self) -> bool {
        matches!(self.reason, Reason::CleanStop | Reason::Crash)
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
        /// The worker id was changed: another server may have used it.
        OtherWorkerId => "other worker id",
        /// The registry knows what was issued with the worker id.
        Registry => "worker registry",
    }
}

/// The floor: ids must carry later timestamps.
///
/// # Errors
/// The epoch or the layout were changed, and ids would be smaller than some that were issued.
pub fn floor(start: Start, stored: Option<Stored>) -> Result<Floor, Refusal> {
    let terms = start.terms;
    let above_others_ms = start.now_ms + terms.unknown_lead_ms();
    let Some(stored) = stored else {
        return Ok(Floor {
            ms: above_others_ms,
            reason: Reason::NoFile,
            unknown_since_ms: Some(start.now_ms),
        });
    };
    let reserved_until_ms = stored.reserved_until_ms;
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
    let known = matches!(reason, Reason::CleanStop | Reason::Crash);
    let ms = if known {
        reserved_until_ms
    } else {
        above_others_ms.max(reserved_until_ms.saturating_add(terms.reservation_ms))
    };
    let changed = (stored.epoch_ms, stored.layout) != (start.epoch_ms, start.layout);
    let first_ms = start.now_ms.max(ms.saturating_add(1));
    // The clock may be set back before the first id.
    let ms = if changed { first_ms - 1 } else { ms };
    // The file of another run says nothing of how late the predecessor's ids are: as late as the floor.
    let bound = Stored {
        reserved_until_ms: if known { reserved_until_ms } else { ms },
        ..stored
    };
    if changed && !bound.is_below(start.epoch_ms, start.layout, first_ms) {
        return Err(if stored.layout == start.layout {
            Refusal::EpochMovedLater {
                stored_ms: stored.epoch_ms,
            }
        } else {
            Refusal::LayoutChanged {
                stored: stored.layout.pack().into(),
            }
        });
    }
    Ok(Floor {
        ms,
        reason,
        unknown_since_ms: if known {
            stored.unknown_since_ms
        } else {
            Some(start.now_ms)
        },
    })
}

/// Whether the generator may be opened with a worker id, or the worker id of an open one be
/// changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// The clock.
    pub now_ms: i64,
    /// The last id, whatever its worker id was.
    pub last_ms: i64,
    /// Since when the generator leads by more than it otherwise may.
    pub last_unknown_since_ms: Option<i64>,
    /// What may have been issued before in this run's place; `None` where the registry alone
    /// knows.
    pub floor: Option<Floor>,
    /// What the registry says was issued with the worker id, where that is leased.
    pub granted_floor_ms: Option<i64>,
    /// The worker id is not leased, and was not in force before: another server may have used
    /// it, with a clock of its own.
    pub other_worker_id: bool,
    /// A reset has left the worker id behind: its ids may carry times until here.
    pub retired_until_ms: Option<i64>,
    /// What the settings and the registry say.
    pub terms: Terms,
}

/// What [`Opening::decide`] says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// It may, above this floor, once timestamps are reserved.
    Open {
        /// Ids carry later times.
        floor: Floor,
        /// See [`Terms::target`].
        until_ms: i64,
    },
    /// It may once the clock has reached this time.
    WaitOut {
        /// See above.
        until_ms: i64,
    },
    /// The same, because the worker id was left behind by a reset.
    WaitOutRetired {
        /// See above.
        until_ms: i64,
    },
}

impl Opening {
    /// What the first id must be above.
    fn floor(self) -> Floor {
        let known = |ms, reason| Floor {
            ms,
            reason,
            unknown_since_ms: None,
        };
        let above_others_ms = self.now_ms + self.terms.unknown_lead_ms();
        let other = self.other_worker_id.then_some(Floor {
            ms: above_others_ms,
            reason: Reason::OtherWorkerId,
            unknown_since_ms: Some(self.now_ms),
        });
        let granted = self.granted_floor_ms.map(|ms| Floor {
            ms,
            reason: Reason::Registry,
            unknown_since_ms: Some(self.now_ms),
        });
        let retired = self.retired_until_ms.map(|ms| known(ms, Reason::Reset));
        let mut floor = Floor {
            unknown_since_ms: self.last_unknown_since_ms,
            ..known(self.last_ms, Reason::LauncherRestart)
        };
        if let Some(own) = self.floor {
            // The last id is above it, or of a generator that was never opened.
            floor = Floor {
                ms: own.ms.max(self.last_ms),
                unknown_since_ms: own.unknown_since_ms.max(self.last_unknown_since_ms),
                ..own
            };
        }
        for other in [granted, retired, other].into_iter().flatten() {
            if other.ms > floor.ms {
                // That nothing is known of this run's place says more.
                let is_said =
                    floor.unknown_since_ms.is_some() && other.reason == Reason::OtherWorkerId;
                let reason = if is_said { floor.reason } else { other.reason };
                floor = Floor { reason, ..other };
            }
        }
        floor
    }

    /// The decision: what leads the clock by too much is waited out.
    #[must_use]
    pub fn decide(self) -> Decision {
        let mut floor = self.floor();
        let lead_ms = floor.ms.saturating_sub(self.now_ms);
        // One that leads by less than others may is as one that knows all.
        if lead_ms <= self.terms.max_lead_ms() {
            floor.unknown_since_ms = None;
        }
        let lead = self.terms.lead(floor.unknown_since_ms, 0);
        let bound_ms = lead.bound_ms(self.now_ms);
        if lead_ms <= bound_ms {
            return Decision::Open {
                floor,
                until_ms: self.terms.target(self.now_ms, floor.ms),
            };
        }
        let until_ms = floor.ms.saturating_sub(bound_ms);
        if self.retired_until_ms == Some(floor.ms) {
            Decision::WaitOutRetired { until_ms }
        } else {
            Decision::WaitOut { until_ms }
        }
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
    /// What the settings and the registry say.
    pub terms: Terms,
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
        let from_ms = self.now_ms.max(self.last_ms);
        let target_ms = self.terms.target(self.now_ms, self.last_ms);
        let half = (target_ms - from_ms) / 2;
        let left = self.reserved_until_ms - from_ms;
        let used = self.last_ms >= self.renewed_at_ms;
        if !self.wanted && left > half {
            return Renew::Later(used.then_some(left - half));
        }
        if !self.wanted && !used {
            // Idle: the next call asks, and waits for one fsync.
            return Renew::Later(None);
        }
        let until_ms = target_ms.min(self.recorded_until_ms);
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
    last_ms: i64,
    terms: Terms,
    reserved_until_ms: i64,
    recorded_until_ms: i64,
) -> Option<i64> {
    let until_ms = terms.target(now_ms, last_ms).min(recorded_until_ms);
    (until_ms > reserved_until_ms).then_some(until_ms)
}
