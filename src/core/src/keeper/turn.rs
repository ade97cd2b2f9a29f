//! What the launcher tells the state machine in a turn, and what it is told. Times in Unix
//! milliseconds, but those of the monotonic clock (`boot`).

use crate::lease::Effect;
use crate::reservation::{Floor, Stored};
use crate::snowflake::Lead;
use crate::state::{LeadReason, State};

/// A lease that does not end, and a time that is later than any.
pub const FOR_EVER: i64 = i64::MAX;

/// What the launcher sees at each step.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// The clock.
    pub now_ms: i64,
    /// The monotonic clock.
    pub boot_ms: i64,
    /// The time of the last id, or that above which the generator was opened; the epoch if it
    /// never was.
    pub last_ms: i64,
    /// The worker id of that; `None`: it was leased, so others may have had it since.
    pub last_worker_id: Option<u16>,
    /// What is reserved.
    pub reserved_until_ms: i64,
    /// How far ids may lead the clock, as the generator knows it.
    pub lead: Lead,
}

/// What the settings say of the worker id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Configured {
    /// There is none.
    Unset,
    /// This one.
    Fixed(u16),
    /// It is leased.
    Leased(Registry),
}

/// The registry that it is leased from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registry {
    /// None is set.
    Unset,
    /// The one that the present lease is of.
    Same,
    /// Another one; or there is no lease.
    Other,
}

/// What the launcher sees when a turn begins.
#[derive(Debug, Clone, Copy)]
pub struct Look {
    /// `leaf_id.worker_id` and `leaf_id.worker_registry`.
    pub configured: Configured,
    /// The server is a standby.
    pub in_recovery: bool,
    /// The registry is in a database of this server.
    pub registry_is_here: bool,
    /// How many resets there have been.
    pub resets: u32,
    /// A session has found the reservation used up.
    pub wanted: bool,
    /// A session has issued an id that leads the clock by more than a burst may.
    pub led: bool,
    /// `leaf_id.timestamp_reservation`.
    pub reservation_ms: i64,
    /// `leaf_id.max_clock_lead`.
    pub max_lead_ms: i64,
    /// `leaf_id.max_burst_lead`.
    pub max_burst_ms: i64,
}

/// What the reservation file says.
#[derive(Debug, Clone)]
pub struct File {
    /// The cluster that reads it.
    pub system_identifier: u64,
    /// The timeline that WAL is written on; 0 on a standby.
    pub timeline: u32,
    /// What was found.
    pub found: Found,
}

/// See [`File`].
#[derive(Debug, Clone)]
pub enum Found {
    /// There is no file.
    Nothing,
    /// This.
    Contents {
        /// What was reserved.
        stored: Stored,
        /// With this worker id; `None`: it was leased, so others may have had it since.
        worker_id: Option<u16>,
        /// Worker ids that a reset has left behind, and until when their ids may carry times.
        retired: Vec<(u16, i64)>,
    },
    /// Not what was written: no later try will read it. What it knew is gone, and the next
    /// write heals it.
    Damaged(String),
    /// It cannot be read, this time.
    Unreadable(String),
}

/// What a step begins with.
#[derive(Debug, Clone)]
pub enum Input {
    /// A turn begins.
    Look(Look),
    /// The reservation file was read.
    File(File),
    /// What was due of the lease is done.
    Lease {
        /// What follows.
        effect: Effect,
        /// When the lease is to be looked after again, in milliseconds.
        again_ms: Option<i64>,
    },
    /// The reservation was written, and raised: with the damage of the file that was healed, if
    /// any. Or it was not.
    Written(Result<Option<String>, String>),
}

/// What is to be done at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Close the generator.
    Close,
    /// Open the generator above this time, or change the worker id of an open one.
    Open {
        /// The worker id.
        worker_id: u16,
        /// Ids carry later times.
        above_ms: i64,
    },
    /// Show where this run's ids start, and why.
    ShowFloor(Floor),
    /// From now on ids may lead the clock this far.
    SetLead(Lead),
    /// Show why ids lead the clock; `None`: they do not any more.
    ShowLead(Option<LeadReason>),
    /// What the lease allows.
    SetLease {
        /// Until when ids may be issued, by the monotonic clock.
        until_boot_ms: i64,
        /// What the registry has recorded: nothing later may be reserved.
        recorded_until_ms: i64,
    },
    /// Forget the lease.
    StopLeasing,
    /// Ask the registry soon, because what it has recorded is used up.
    Hurry,
    /// Wake the sessions that wait.
    Wake,
    /// Log this.
    Log(Message),
}

/// What the server's log is told, once for each change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The reservation file cannot be read or written.
    FileProblem(String),
    /// It can again.
    FileMended,
    /// A damaged file was written anew, without the worker ids that were used before.
    FileHealed(String),
    /// Ids lead the clock by so many milliseconds.
    Leading(i64, LeadReason),
    /// They do not any more.
    LeadOver,
}

/// What a step ends with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Then {
    /// Read the reservation file.
    Read,
    /// Do what is due of the lease.
    Lease {
        /// Begin a new one. Whether what this server remembers of an earlier one may be used:
        /// it says what was issued.
        begin: Option<bool>,
    },
    /// Write down that timestamps are reserved for a worker id until then; once that is
    /// durable, let it be used.
    Reserve {
        /// The worker id.
        worker_id: u16,
        /// No id will carry a later time.
        until_ms: i64,
        /// See [`Stored::unknown_since_ms`].
        unknown_since_ms: Option<i64>,
    },
    /// The turn is over. The next one is due after so many milliseconds, or when something
    /// happens.
    Wait(Option<i64>),
}

/// What a step says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// First this, in this order.
    pub actions: Vec<Action>,
    /// Then sessions are shown this.
    pub shown: State,
    /// Then comes this.
    pub then: Then,
}
