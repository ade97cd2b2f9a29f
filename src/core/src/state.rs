//! State of the snowflake generator and the reason why it issues no ids, for sessions and views.

use crate::numbered::numbered;

numbered! {
    /// Reason why the generator is closed, or will be once its reservation is used up, although a
    /// worker id is configured. Times in Unix milliseconds.
    Refusal {
        /// A reset has retired this worker id, whose ids have timestamps in the future.
        WorkerIdRetired {
            /// Time that the clock must reach.
            until_ms
        } => "refused: worker id was retired by a reset",
        /// The epoch was moved later: ids of the same instants would be smaller than before.
        EpochMovedLater {
            /// Previous epoch.
            stored_ms
        } => "refused: epoch was moved later",
        /// The layout was changed: new ids would be smaller than some old ones.
        LayoutChanged {
            /// Previous layout; see [`crate::layout::Layout::pack`].
            stored
        } => "refused: layout was changed",
        /// The reservation file cannot be read or written.
        FileProblem => "reservation file cannot be read or written",
        /// The worker id is to be leased, but no registry is set.
        NoRegistrySet => "no worker registry",
        /// The registry has not assigned a worker id yet.
        NoAnswer => "worker registry does not answer",
        /// The lease leaves no time: ids have come to its end, and it was not renewed.
        TimeUsedUp => "lease is used up",
        /// No worker id is free, or this server's name or role has as many as it may have.
        NoFreeWorkerId => "refused: no free worker id",
        /// The clock is off.
        ClockSkew {
            /// Milliseconds ahead; negative if behind.
            by_ms
        } => "refused: clock is off",
        /// The registry was promoted or restored, and grants worker ids only to servers that hold one.
        RegistryMoved => "worker registry leases no worker ids yet",
        /// The members of the registry have another epoch.
        OtherEpoch => "refused: epoch is not that of the worker registry",
        /// The members of the registry have another layout.
        OtherLayout => "refused: layout is not that of the worker registry",
    }
}

numbered! {
    /// Reason why ids lead the clock.
    LeadReason {
        /// The last run crashed: its whole reservation counts as used.
        Crash => "crash",
        /// The ids issued by an earlier run or another server are not known.
        Unknown => "unknown predecessor",
        /// The worker registry has recorded later timestamps for the worker id.
        Registry => "worker registry",
        /// Ids issued before led the clock already.
        EarlierIds => "earlier ids",
        /// The clock is behind ids already issued.
        ClockSetBack => "clock set back",
    }
}

/// State of the generator; see the table in [`crate::keeper`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not determined yet, or being redetermined.
    Starting,
    /// No worker id is set.
    Unconfigured,
    /// A standby without a worker id of its own.
    Standby,
    /// The floor of an earlier run or another server leads the clock by too much.
    WaitingOut {
        /// Time that the clock must reach, in Unix milliseconds.
        until_ms: i64,
    },
    /// Issuing.
    Open {
        /// Worker id in use.
        worker_id: u16,
    },
    /// Not issuing, for this reason.
    Refused(Refusal),
}

impl State {
    /// Number of the first refusal.
    const REFUSED: u32 = 5;
    /// Bits of the number in a word.
    const NUMBER_BITS: u32 = 8;

    /// Text in views.
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

    /// Encodes the state for shared memory, in one word, so that no reader combines a state with the
    /// detail of another: its number in the low byte, 0 for [`State::Starting`], and its detail.
    #[must_use]
    pub fn pack(self) -> i64 {
        let (number, detail) = match self {
            Self::Starting => (0, 0),
            Self::Unconfigured => (1, 0),
            Self::Standby => (2, 0),
            Self::WaitingOut { until_ms } => (3, until_ms),
            Self::Open { worker_id } => (4, i64::from(worker_id)),
            Self::Refused(refusal) => {
                let (number, detail) = refusal.encode();
                (Self::REFUSED + number, detail)
            }
        };
        // Times of a million years.
        let detail = detail.clamp(i64::MIN >> Self::NUMBER_BITS, i64::MAX >> Self::NUMBER_BITS);
        detail << Self::NUMBER_BITS | i64::from(number)
    }

    /// Decodes a word in shared memory; `None` if invalid.
    #[must_use]
    pub fn unpack(word: i64) -> Option<Self> {
        let (number, detail) = (word.to_le_bytes()[0], word >> Self::NUMBER_BITS);
        match u32::from(number) {
            0 => Some(Self::Starting),
            1 => Some(Self::Unconfigured),
            2 => Some(Self::Standby),
            3 => Some(Self::WaitingOut { until_ms: detail }),
            4 => u16::try_from(detail)
                .ok()
                .map(|worker_id| Self::Open { worker_id }),
            number => Refusal::decode(number - Self::REFUSED, detail).map(Self::Refused),
        }
    }
}
