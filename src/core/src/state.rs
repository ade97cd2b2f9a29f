//! What the snowflake generator is doing, and why no id is issued: what sessions are shown.

use crate::numbered::numbered;

numbered! {
    /// Why the generator is closed, or will be when its reservation is used up, although a
    /// worker id is configured. Times in Unix milliseconds.
    Refusal {
        /// A reset has left this worker id behind, with times to come.
        WorkerIdRetired {
            /// What the clock must reach.
            until_ms
        } => "refused: worker id left behind by a reset",
        /// The epoch was moved later: the same instants would give smaller ids again.
        EpochMovedLater {
            /// The earlier one.
            stored_ms
        } => "refused: epoch was moved later",
        /// The layout was changed: ids of the new one would be smaller than some of the old.
        LayoutChanged {
            /// The old one, see [`crate::layout::Layout::pack`].
            stored
        } => "refused: layout was changed",
        /// The reservation file could not be read or written.
        FileProblem => "reservation file cannot be read or written",
        /// A worker id is to be leased, and no registry is set.
        NoRegistrySet => "no worker registry",
        /// The registry has not given a worker id yet.
        NoAnswer => "worker registry does not answer",
        /// The lease of the worker id has ended.
        LeaseEnded => "lease ended",
        /// Another server has this node's lease.
        HeldByOther => "refused: another server has the worker id of this node",
        /// All worker ids are leased or retired.
        NoFreeWorkerId => "refused: no free worker id",
        /// The clock is off.
        ClockSkew {
            /// By how much, in milliseconds: ahead; negative is behind.
            by_ms
        } => "refused: clock is off",
        /// The registry was promoted or restored, and gives nothing away for a while.
        RegistryGrace => "worker registry gives nothing away yet",
        /// The worker id was taken away; another one is asked for.
        WorkerIdLost => "worker id was taken away",
        /// The registry's servers have another epoch.
        OtherEpoch => "refused: epoch is not that of the worker registry",
        /// This node's name belongs to another role in the registry.
        OtherRole => "refused: name of this node belongs to another role",
        /// The ids of the registry's servers have another layout.
        OtherLayout => "refused: layout is not that of the worker registry",
    }
}

numbered! {
    /// Why the times of ids are ahead of the clock.
    LeadReason {
        /// The last run has crashed: its ids may carry times up to all that it had reserved.
        Crash => "crash",
        /// What an earlier run or another server has issued is not known.
        Unknown => "unknown predecessor",
        /// The worker registry knows later ids of the worker id.
        Registry => "worker registry",
        /// The ids of before did already.
        EarlierIds => "earlier ids",
        /// The clock stands behind ids that were issued.
        ClockSetBack => "clock set back",
    }
}

/// What the generator is doing; see the table in [`crate::keeper`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Nothing is known yet, or not any more.
    Starting,
    /// No worker id is set.
    Unconfigured,
    /// A standby without a worker id of its own.
    Standby,
    /// What an earlier run or another server had reserved leads the clock by too much.
    WaitingOut {
        /// What the clock must reach.
        until_ms: i64,
    },
    /// Issuing.
    Open {
        /// With this worker id.
        worker_id: u16,
    },
    /// Not issuing.
    Refused(Refusal),
}

impl State {
    /// The first number of a refusal.
    const REFUSED: u32 = 5;

    /// How a view shows it.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Unconfigured => "no worker id",
            Self::Standby => "standby",
            Self::WaitingOut { .. } => "waiting out an earlier reservation",
            Self::Open { .. } => "open",
            Self::Refused(refusal) => refusal.text(),
        }
    }

    /// As shared memory holds it: a number, 0 for [`State::Starting`], and what belongs to it.
    #[must_use]
    pub fn encode(self) -> (u32, i64) {
        match self {
            Self::Starting => (0, 0),
            Self::Unconfigured => (1, 0),
            Self::Standby => (2, 0),
            Self::WaitingOut { until_ms } => (3, until_ms),
            Self::Open { worker_id } => (4, i64::from(worker_id)),
            Self::Refused(refusal) => {
                let (number, detail) = refusal.encode();
                (Self::REFUSED + number, detail)
            }
        }
    }

    /// What shared memory holds; `None` if that is no state.
    #[must_use]
    pub fn decode(number: u32, detail: i64) -> Option<Self> {
        match number {
            0 => Some(Self::Starting),
            1 => Some(Self::Unconfigured),
            2 => Some(Self::Standby),
            3 => Some(Self::WaitingOut { until_ms: detail }),
            4 => u16::try_from(detail)
                .ok()
                .map(|worker_id| Self::Open { worker_id }),
            _ => Refusal::decode(number.checked_sub(Self::REFUSED)?, detail).map(Self::Refused),
        }
    }
}
