//! Inputs and outputs of the state machine. Times in Unix milliseconds.

use crate::lease::Effect;
use crate::reservation::{Floor, Stored};
use crate::snowflake::Lead;
use crate::state::{LeadReason, State};

/// A time later than any other.
pub const FOR_EVER: i64 = i64::MAX;

/// Observations at each step.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// The clock.
    pub now_ms: i64,
    /// Timestamp of the last id, or the floor that the generator was opened above; the epoch if it
    /// was never opened.
    pub last_ms: i64,
    /// Worker id of that; `None` if it was leased, since others may have had it since.
    pub last_worker_id: Option<u16>,
    /// The generator is open.
    pub is_open: bool,
    /// End of the reservation.
    pub reserved_until_ms: i64,
    /// The generator's current max lead.
    pub lead: Lead,
}

/// The configured worker id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Configured {
    /// Not configured.
    Unset,
    /// A fixed worker id.
    Fixed(u16),
    /// Leased from a registry.
    Leased(Registry),
}

/// The configured registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registry {
    /// Not configured.
    Unset,
    /// The registry of the current lease.
    Same,
    /// Another registry, or no current lease.
    Other,
}

/// Observations at the start of a turn.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// `leaf_id.worker_id` and `leaf_id.worker_registry`.
    pub configured: Configured,
    /// The server is a standby.
    pub in_recovery: bool,
    /// The registry is in a database of this server.
    pub registry_is_here: bool,
    /// Number of resets so far.
    pub resets: u32,
    /// A session found the reservation used up.
    pub wanted: bool,
    /// A session has issued an id that leads the clock by more than a burst.
    pub led: bool,
    /// `leaf_id.timestamp_reservation`.
    pub reservation_ms: i64,
    /// How long a write of the reservation takes of late.
    pub write_ms: i64,
    /// `leaf_id.max_clock_lead`.
    pub max_lead_ms: i64,
    /// `leaf_id.max_burst_lead`.
    pub max_burst_ms: i64,
}

/// Contents of the reservation file, and this server's identity.
#[derive(Debug, Clone)]
pub struct File {
    /// System identifier of the cluster that reads the file.
    pub system_identifier: u64,
    /// Timeline that WAL is written on; 0 on a standby.
    pub timeline: u32,
    /// No object of a user was ever created in this cluster.
    pub pristine: bool,
    /// Result of the read.
    pub found: Found,
}

/// Result of reading the file.
#[derive(Debug, Clone)]
pub enum Found {
    /// No file.
    Nothing,
    /// A valid file.
    Contents {
        /// The reservation.
        stored: Stored,
        /// Its worker id; `None` if it was leased, since others may have had it since.
        worker_id: Option<u16>,
        /// Worker ids retired by a reset, with the end of the times their ids may carry.
        retired: Vec<(u16, i64)>,
    },
    /// Corrupt: rereading will not help. Its contents are lost, and the next write repairs it.
    Damaged(String),
    /// Could not be read; a retry may succeed.
    Unreadable(String),
}

/// Input of a step.
#[derive(Debug, Clone)]
pub enum Input {
    /// Start of a turn.
    Look(Look),
    /// Result of [`Then::Read`].
    File(File),
    /// Result of [`Then::Lease`].
    Lease {
        /// Effect on the generator.
        effect: Effect,
        /// Time until the lease is due again, in milliseconds.
        again_ms: Option<i64>,
    },
    /// Result of [`Then::Reserve`]. `Ok`: written, and the reservation raised; contains the damage
    /// if the file was repaired. `Err`: the error message.
    Written(Result<Option<String>, String>),
}

/// Immediate action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Close the generator.
    Close,
    /// Open the generator above this time, or change the worker id of an open one.
    Open {
        /// The worker id.
        worker_id: u16,
        /// Ids must have later timestamps.
        above_ms: i64,
    },
    /// Show the floor of this run and its reason.
    ShowFloor(Floor),
    /// Set the max lead of ids over the clock.
    SetLead(Lead),
    /// Show the reason why ids lead the clock; `None` if they no longer do.
    ShowLead(Option<LeadReason>),
    /// Set the end of the time recorded by the registry; nothing later may be reserved.
    SetRecorded(i64),
    /// Forget the lease.
    StopLeasing,
    /// Ask the registry soon, because its recorded time is used up.
    Hurry,
    /// Wake the waiting sessions.
    Wake,
    /// Write to the server log.
    Log(Message),
}

/// Log message, once per change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The reservation file cannot be read or written.
    FileProblem(String),
    /// The reservation file can be read and written again.
    FileMended,
    /// A corrupt file was rewritten, without the worker ids used before.
    FileHealed(String),
    /// Ids lead the clock by this many milliseconds.
    Leading(i64, LeadReason),
    /// Ids no longer lead the clock.
    LeadOver,
}

/// Operation at the end of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    /// Read the reservation file.
    Read,
    /// Advance the lease.
    Lease {
        /// `Some`: begin a new lease; true if the lease file of an earlier run may be used, since
        /// it bounds the ids issued.
        begin: Option<bool>,
    },
    /// Write a reservation for a worker id to the file; once durable, raise the reservation in
    /// shared memory.
    Reserve {
        /// The worker id.
        worker_id: u16,
        /// No id will have a later timestamp.
        until_ms: i64,
        /// Ids may be issued then. Otherwise the file says that none was, and nothing is reserved.
        issued: bool,
    },
    /// End of the turn. The next one is due after this many milliseconds, or on an event.
    Wait(Option<i64>),
}

/// Result of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// First, execute these actions in order.
    pub actions: Vec<Action>,
    /// Then show this state to sessions.
    pub shown: State,
    /// Then do this.
    pub then: Then,
}
