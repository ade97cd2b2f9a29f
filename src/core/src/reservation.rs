//! Decisions behind I7: the floor of snowflake ids, when to open the generator, and how far ahead
//! to reserve timestamps. No access to the clock or the file. Times in Unix milliseconds.
//!
//! | rule | decides |
//! | --- | --- |
//! | [`floor`], [`Floor::of_word`] | the floor of a run: above all ids that may have been issued before |
//! | [`Opening::decide`] | whether the generator may be opened now, and above which floor |
//! | [`Terms::target`] | how far ahead timestamps are reserved |
//! | [`Renewal::decide`] | when the launcher renews the reservation |
//! | [`late_renewal`] | the same, for a session in place of a late launcher |
//! | [`reserve_until`] | the part that may be reserved: never beyond the time recorded by the registry |
//!
//! # The logical clock
//!
//! A start continues at once above its floor, if the floor leads the clock by no more than
//! [`Terms::max_lead_ms`] (M). The floor depends on what other servers may have issued, assuming
//! their clocks differ from this one by at most one reservation (R):
//!
//! * A run that knows its predecessor, by a file written at this place on this timeline, starts
//!   above the predecessor's reservation. That leads the clock by no more than M, unless the clock
//!   was set back: see [`Terms::target`].
//! * The first run of a cluster that has never issued an id ([`Start::never_issued`]) has no
//!   predecessor: it starts at its clock. Until the first id, so does each later one.
//! * Any other run, and the first one with a worker id that is not leased, may follow a server that
//!   led its clock by M and whose clock was ahead by R: it starts M + R above its clock at that
//!   time. Like any other floor, this may lead the clock by M, so it opens after R: the next run
//!   that does not know its predecessor is above it, however soon it starts. Until it opens, a
//!   lower reading of the clock counts, as it would after a restart ([`AboveOthers`]).
//!
//! Counterexample for a floor of one reservation above the clock: after a crash, the old primary of
//! a pair issues at 4.0 s while its clock shows 1 s. The promoted server's floor is 2 s, and 3.0 is
//! issued twice.

use serde::{Deserialize, Serialize};

use crate::layout::{Layout, Parts};
use crate::numbered::numbered;
use crate::snowflake::Lead;
use crate::sometimes;
use crate::state::Refusal;

/// Min reservation in milliseconds, or a whole one if shorter. Many times the duration of a write,
/// or ids near the max lead would wait for one in each millisecond; and at the max lead, the start
/// after a crash has to wait for it.
const LEAST_MS: i64 = 50;

/// Limits from the settings, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// `leaf_id.timestamp_reservation`: how far ahead timestamps are reserved, and the max
    /// difference between the clocks of servers that share a worker id.
    pub reservation_ms: i64,
    /// `leaf_id.max_clock_lead`: max lead of ids over the clock, M.
    pub max_lead_ms: i64,
    /// How long a write of the reservation takes of late.
    pub write_ms: i64,
}

impl Terms {
    /// Floor above all ids that servers with the same worker id may have issued until `now_ms`, by
    /// this server's clock: M + R above it.
    #[must_use]
    pub fn above_others_ms(self, now_ms: i64) -> i64 {
        now_ms + self.max_lead_ms + self.reservation_ms
    }

    /// The limits of the lead. `max_burst_ms`: `leaf_id.max_burst_lead`, reduced so that the
    /// reservation left by a crash fits on top.
    #[must_use]
    pub fn lead(self, max_burst_ms: i64) -> Lead {
        let max_ms = self.max_lead_ms;
        Lead {
            max_ms,
            burst_ms: max_burst_ms.min(max_ms - self.reservation_ms).max(0),
        }
    }

    /// Renewal interval of a generator in use, in milliseconds.
    #[must_use]
    pub(crate) fn renew_after_ms(self) -> i64 {
        (self.target(0, 0) / 2).max(1)
    }

    /// End of the reservation to write while ids are issued: one reservation ahead, or three times as
    /// long as the write takes, since the next one begins after half of it, and must end before it is
    /// over; but never so far that the start after a crash could not continue at once. Otherwise a
    /// series of crashes would each reserve further ahead, without issuing any id. `last_ms`: the last
    /// id, or the floor to open above.
    #[must_use]
    pub fn target(self, now_ms: i64, last_ms: i64) -> i64 {
        let from_ms = now_ms.max(last_ms);
        let least_ms = LEAST_MS.min(self.reservation_ms);
        let whole_ms = from_ms.saturating_add(self.reservation_ms.max(3 * self.write_ms));
        let survivable_ms = now_ms + self.max_lead_ms - least_ms;
        whole_ms
            .min(survivable_ms)
            .max(from_ms.saturating_add(least_ms))
    }
}

/// The floor above the ids of others ([`Terms::above_others_ms`]), by the lowest reading of the clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AboveOthers {
    read_ms: i64,
    /// Ids must have later timestamps.
    pub(crate) ms: i64,
}

impl AboveOthers {
    /// By this reading.
    pub(crate) fn read(now_ms: i64, terms: Terms) -> Self {
        Self {
            read_ms: now_ms,
            ms: terms.above_others_ms(now_ms),
        }
    }

    /// By the lower one of this reading and an earlier one. Time that passes raises no floor.
    pub(crate) fn or_earlier(self, earlier: Option<Self>) -> Self {
        earlier
            .filter(|earlier| earlier.read_ms <= self.read_ms)
            .unwrap_or(self)
    }
}

/// The server that reads a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reader {
    /// System identifier from pg_control.
    pub system_identifier: u64,
    /// Timeline that WAL is written on; 0 on a standby.
    pub timeline: u32,
    /// The worker id is leased in this server's own name: no other server of the cluster has had
    /// it, on whatever timeline.
    pub leased: bool,
}

/// This server and its configuration at startup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Start {
    /// Current time.
    pub now_ms: i64,
    /// Epoch of this server's ids.
    pub epoch_ms: i64,
    /// Layout of this server's ids.
    pub layout: Layout,
    /// [`Terms::above_others_ms`] by the lowest reading of the clock so far.
    pub above_others_ms: i64,
    /// Who reads the file.
    pub reader: Reader,
    /// No server of this cluster, nor one that it was copied from, can have issued an id.
    pub never_issued: bool,
}

/// Contents of the last run's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored {
    /// No id of the last run has a later timestamp.
    pub reserved_until_ms: i64,
    /// Epoch of its ids.
    pub epoch_ms: i64,
    /// Layout of its ids.
    pub layout: Layout,
    /// Ids may have been issued. Until then epoch and layout bind nothing.
    pub issued: bool,
    /// System identifier of the cluster that wrote the file.
    pub system_identifier: u64,
    /// Timeline it was written on; 0 on a standby.
    pub timeline: u32,
    /// The file itself, not a copy.
    pub original: bool,
    /// Written at a clean shutdown: `reserved_until_ms` is the exact last timestamp.
    pub clean: bool,
    /// Latest timestamp of ids whose worker ids were retired by a reset; `None` if there are none.
    pub left_behind_until_ms: Option<i64>,
}

impl Stored {
    /// Origin of the floor that this file gives.
    fn reason(&self, reader: Reader) -> Reason {
        if self.system_identifier != reader.system_identifier {
            Reason::OtherCluster
        } else if self.timeline != reader.timeline && !reader.leased {
            Reason::NewTimeline
        } else if !self.original {
            Reason::CopiedFile
        } else if self.clean {
            Reason::CleanStop
        } else {
            Reason::Crash
        }
    }

    /// True if it is this server's own file, which bounds all ids that it has issued.
    #[must_use]
    pub fn is_own(&self, reader: Reader) -> bool {
        matches!(self.reason(reader), Reason::CleanStop | Reason::Crash)
    }

    /// True if no id was issued here. A copy does not tell what the original has issued since.
    #[must_use]
    pub fn is_unissued(&self, reader: Reader) -> bool {
        !self.issued && self.is_own(reader)
    }

    /// True if all ids from `ms` on are larger than any id this server may have issued. The last
    /// run may have had another epoch, or another layout, so that worker ids do not keep the ids
    /// apart.
    #[must_use]
    pub fn is_below(&self, epoch_ms: i64, layout: Layout, ms: i64) -> bool {
        // With an earlier epoch and the same layout, worker ids still keep them apart.
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

/// The floor of a run and its origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Floor {
    /// Ids must have later timestamps, in Unix milliseconds.
    pub ms: i64,
    /// Origin of the floor.
    pub reason: Reason,
}

impl Floor {
    /// The floor after a restart of the launcher alone, or after a reset: the word in shared memory
    /// has the last id.
    #[must_use]
    pub(crate) fn of_word(last_ms: i64, was_reset: bool) -> Self {
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

    /// True if the floor bounds all ids issued with this server's worker ids. Otherwise it must
    /// lease as another server: the registry's floor is then sufficient.
    #[must_use]
    pub(crate) fn is_own(self) -> bool {
        match self.reason {
            Reason::NoFile | Reason::CopiedFile | Reason::OtherCluster | Reason::NewCluster => {
                false
            }
            Reason::CleanStop
            | Reason::LauncherRestart
            | Reason::Crash
            | Reason::NewTimeline
            | Reason::Reset
            | Reason::OtherWorkerId
            | Reason::Registry => true,
        }
    }

    /// True if the file tells which worker id was in force before.
    #[must_use]
    pub(crate) fn knows_worker_id(self) -> bool {
        matches!(self.reason, Reason::CleanStop | Reason::Crash)
    }
}

numbered! {
    /// Origin of a floor.
    Reason {
        /// Clean shutdown of the last run.
        CleanStop => "clean stop",
        /// Restart of the launcher alone.
        LauncherRestart => "launcher restart",
        /// Crash of the last run: its whole reservation counts as used.
        Crash => "crash",
        /// No file.
        NoFile => "no file",
        /// The file was copied from another place, or pg_upgrade has run this cluster since.
        CopiedFile => "copied file",
        /// The file predates a promotion or a point-in-time recovery.
        NewTimeline => "new timeline",
        /// The file belongs to another cluster.
        OtherCluster => "other cluster",
        /// Set by `leaf_snowflake_reset`.
        Reset => "reset",
        /// The worker id was changed; another server may have used it.
        OtherWorkerId => "other worker id",
        /// The registry's record of the worker id.
        Registry => "worker registry",
        /// No file, in a cluster that has never issued an id.
        NewCluster => "new cluster",
    }
}

/// Computes the floor of a run from the last run's file.
///
/// # Errors
/// The epoch or the layout was changed, and ids would be smaller than some already issued.
pub fn floor(start: Start, stored: Option<Stored>) -> Result<Floor, Refusal> {
    let above_others_ms = start.above_others_ms;
    let Some(stored) = stored else {
        return Ok(if start.never_issued {
            Floor {
                ms: start.now_ms,
                reason: Reason::NewCluster,
            }
        } else {
            Floor {
                ms: above_others_ms,
                reason: Reason::NoFile,
            }
        });
    };
    let reserved_until_ms = stored.reserved_until_ms;
    let reason = stored.reason(start.reader);
    let known = stored.is_own(start.reader);
    sometimes!("generator: another server may have issued ids", !known);
    if stored.is_unissued(start.reader) {
        // Neither epoch nor layout binds, nor a clock that was ahead.
        let ms = reserved_until_ms.min(above_others_ms);
        return Ok(Floor { ms, reason });
    }
    let ms = if known {
        reserved_until_ms
    } else {
        above_others_ms.max(reserved_until_ms)
    };
    // A copy does not bound the predecessor's ids; the floor does.
    let bound = Stored {
        reserved_until_ms: ms,
        ..stored
    };
    let changed = (stored.epoch_ms, stored.layout) != (start.epoch_ms, start.layout);
    let first_ms = start.now_ms.max(ms.saturating_add(1));
    // The clock may be set back before the first id is issued.
    let ms = if changed { first_ms - 1 } else { ms };
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
    debug_assert!(ms >= reserved_until_ms, "ids may have been issued");
    Ok(Floor { ms, reason })
}

/// Input of the decision to open the generator, or to change the worker id of an open one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    /// Current time.
    pub now_ms: i64,
    /// Timestamp of the last id, of any worker id.
    pub last_ms: i64,
    /// Floor of this run; `None` if only the registry's floor applies.
    pub floor: Option<Floor>,
    /// The registry's floor for a leased worker id.
    pub granted_floor_ms: Option<i64>,
    /// Floor above the ids of another server with the same worker id, if that is not leased and was
    /// not in force before: [`Terms::above_others_ms`] since it was configured.
    pub others_floor_ms: Option<i64>,
    /// The worker id was retired by a reset; its ids may have timestamps up to this one.
    pub retired_until_ms: Option<i64>,
    /// Limits.
    pub terms: Terms,
}

/// Result of [`Opening::decide`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Open above this floor, once timestamps are reserved.
    Open {
        /// Ids must have later timestamps.
        floor: Floor,
        /// See [`Terms::target`].
        until_ms: i64,
    },
    /// Wait until the clock reaches this time.
    WaitOut {
        /// Time to reach, in Unix milliseconds.
        until_ms: i64,
    },
    /// The same, because the worker id was retired by a reset.
    WaitOutRetired {
        /// Time to reach, in Unix milliseconds.
        until_ms: i64,
    },
}

impl Opening {
    /// The highest of all applicable floors.
    fn floor(self) -> Floor {
        let of = |ms, reason| Floor { ms, reason };
        // The last id is above the floor, unless the generator was never opened.
        let own = match self.floor {
            Some(own) => of(own.ms.max(self.last_ms), own.reason),
            None => of(self.last_ms, Reason::LauncherRestart),
        };
        let others = [
            (self.granted_floor_ms, Reason::Registry),
            (self.retired_until_ms, Reason::Reset),
            (self.others_floor_ms, Reason::OtherWorkerId),
        ];
        let others = (others.into_iter()).filter_map(|(ms, reason)| Some(of(ms?, reason)));
        let floor = others.fold(own, |highest, other| {
            if other.ms > highest.ms {
                sometimes!(
                    "generator: another worker id, above all others",
                    other.reason == Reason::OtherWorkerId
                );
                other
            } else {
                highest
            }
        });
        debug_assert!(floor.ms >= self.last_ms, "ids were issued");
        floor
    }

    /// Opens if the floor is within the max lead, waits otherwise.
    #[must_use]
    pub fn decide(self) -> Decision {
        let floor = self.floor();
        let max_lead_ms = self.terms.max_lead_ms;
        if floor.ms.saturating_sub(self.now_ms) <= max_lead_ms {
            return Decision::Open {
                floor,
                until_ms: self.terms.target(self.now_ms, floor.ms),
            };
        }
        let until_ms = floor.ms.saturating_sub(max_lead_ms);
        if self.retired_until_ms == Some(floor.ms) {
            Decision::WaitOutRetired { until_ms }
        } else {
            Decision::WaitOut { until_ms }
        }
    }
}

/// The end of the reservation: as wanted, but not below the current one, and not above the time
/// recorded by the registry.
#[must_use]
pub fn reserve_until(wanted_ms: i64, reserved_until_ms: i64, recorded_until_ms: i64) -> i64 {
    wanted_ms.max(reserved_until_ms).min(recorded_until_ms)
}

/// True if a reservation that was written while the clock was ahead is to be replaced by a lower one:
/// the ids are not that far, and a crash would leave the next run waiting for it.
#[must_use]
pub(crate) fn is_too_far(now_ms: i64, last_ms: i64, reserved_until_ms: i64, terms: Terms) -> bool {
    let led_ms = now_ms + terms.max_lead_ms;
    last_ms <= led_ms && reserved_until_ms > led_ms + terms.reservation_ms
}

/// Input of the launcher's decision to renew the reservation of an open generator: at half while
/// ids are issued, or if a session found it used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Renewal {
    /// Current time.
    pub now_ms: i64,
    /// Timestamp of the last id.
    pub last_ms: i64,
    /// End of the reservation.
    pub reserved_until_ms: i64,
    /// End of the time recorded by the registry.
    pub recorded_until_ms: i64,
    /// Time of the last renewal.
    pub renewed_at_ms: i64,
    /// A session requests it, or the last attempt failed.
    pub wanted: bool,
    /// Limits.
    pub terms: Terms,
}

/// Result of [`Renewal::decide`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Renew {
    /// Not now; check again after this many milliseconds, or when a session requests it.
    Later(Option<i64>),
    /// Reserve up to this time; see [`reserve_until`].
    Until(i64),
    /// Already reserved as far as allowed.
    Enough,
}

impl Renewal {
    /// Decides whether to renew.
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
            // Idle: the next call requests it, and waits for one fsync.
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

/// End of the reservation that a session writes in place of the launcher; `None` if there is
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

/// A worker id used by this server before. Kept forever, one entry per worker id.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Used {
    /// The worker id.
    pub worker_id: u16,
    /// Latest timestamp that its ids may have, in Unix milliseconds.
    pub until_ms: i64,
    /// `leaf_snowflake_reset` has gone back behind `until_ms`: this worker id must wait for that
    /// time. For others the common floor suffices.
    pub retired: bool,
}

impl Used {
    /// Adds a worker id to the list, or raises its time, which also clears `retired`: having issued
    /// later ids, it has waited.
    pub fn add(list: &mut Vec<Self>, worker_id: u16, until_ms: i64) {
        match list.iter_mut().find(|used| used.worker_id == worker_id) {
            Some(used) if used.until_ms >= until_ms => {}
            Some(used) => {
                used.until_ms = until_ms;
                used.retired = false;
            }
            None => list.push(Self {
                worker_id,
                until_ms,
                retired: false,
            }),
        }
    }
}

/// Retires the worker ids whose ids may have timestamps later than `until_ms`, for a reset to it.
///
/// # Errors
/// `worker_id`, the one to go on with, is one of them: the latest time that its ids may have.
pub fn retire(mut used: Vec<Used>, worker_id: u16, until_ms: i64) -> Result<Vec<Used>, i64> {
    for used in used.iter_mut().filter(|used| used.until_ms > until_ms) {
        if used.worker_id == worker_id {
            return Err(used.until_ms);
        }
        used.retired = true;
    }
    Ok(used)
}
