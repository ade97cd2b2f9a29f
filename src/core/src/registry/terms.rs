//! Types of the registry's decision: rows, request and answer.

use serde::{Deserialize, Serialize};

use crate::layout::Layout;
use crate::lease::{Answer, Question};
use crate::message;

/// Max length of a node name, in bytes.
pub(crate) const LONGEST_NAME: usize = 63;
/// The end of the year 9999, in Unix milliseconds.
pub const LAST_MS: i64 = 253_402_300_799_999;

/// Terms set by the registry's owner. See the header of [`super`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Tolerated skew of clocks: of a member's that asks for a worker id, and between the servers
    /// that the registry fails over to. In milliseconds.
    pub max_skew_ms: i64,
    /// G: how far ahead of the clock timestamps are granted, in milliseconds.
    pub grant_ahead_ms: i64,
    /// Max worker ids per role; `None`: no limit.
    pub max_ids_per_role: Option<i64>,
}

impl Bounds {
    /// Defaults.
    ///
    /// With five minutes, members go on through an outage of the registry of three to five. A role
    /// may have 256 worker ids, a quarter of all: enough for a fleet that shares one role, and most
    /// remain for other roles.
    pub const DEFAULT: Self = Self {
        max_skew_ms: 1_000,
        grant_ahead_ms: 300_000,
        max_ids_per_role: Some(256),
    };
}

/// Location of a registry; differs in a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// System identifier of the cluster.
    pub system_identifier: i64,
    /// WAL timeline.
    pub timeline: i32,
    /// Oid of the database.
    pub database: u32,
    /// Oid of the table.
    pub relation: u32,
}

/// The registry's own row. Times in Unix milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registry {
    /// Place of its last use, or of its creation.
    pub place: Option<Place>,
    /// `leaf_id.epoch` of all members; `None` before the first.
    pub epoch_ms: Option<i64>,
    /// Layout of all members' ids, which determines the number of worker ids; `None` before the
    /// first.
    pub layout: Option<Layout>,
    /// Time of its first use after the last promotion or restore. From then on, no earlier time
    /// counts.
    pub moved_at_ms: Option<i64>,
    /// MF: nothing that was recorded before the move, and may have been lost, is later.
    pub moved_floor_ms: Option<i64>,
    /// The owner's terms.
    pub bounds: Bounds,
}

/// The current or last holder of a worker id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// System identifier of its cluster.
    pub system_identifier: i64,
    /// Its `leaf_id.node_name`, in the encoding of the registry's database.
    pub node_name: Vec<u8>,
}

/// The registry's record of a worker id. Times in Unix milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Row {
    /// The worker id.
    pub worker_id: u16,
    /// Its current or last holder; `None` if there is none.
    pub holder: Option<Holder>,
    /// Role of the holder.
    pub role: Option<Vec<u8>>,
    /// Token that the holder must present; 0 matches none.
    pub token: i64,
    /// Time of the first grant to this holder.
    pub leased_at_ms: Option<i64>,
    /// Time of the last grant.
    pub renewed_at_ms: Option<i64>,
    /// R: no id of any holder so far has a later timestamp.
    pub reserved_until_ms: i64,
    /// Ids of this holder have later timestamps.
    pub floor_ms: i64,
    /// Holder's clock minus the registry's at the last grant, in milliseconds.
    pub clock_offset_ms: Option<i64>,
    /// Not granted any more.
    pub retired: bool,
    /// Granted to the registry's own server, and kept for that server, whichever it is after a
    /// promotion: so no failover can have lost another holder.
    pub host: bool,
    /// Address that the holder connected from.
    pub address: Option<Vec<u8>>,
}

impl Row {
    pub(super) fn is_held_by(&self, system_identifier: i64, node_name: &[u8]) -> bool {
        self.holder.as_ref().is_some_and(|holder| {
            holder.system_identifier == system_identifier && holder.node_name == node_name
        })
    }

    /// True if the requester's role may act for the holder.
    #[must_use]
    pub fn admits(&self, requester: &Requester<'_>) -> bool {
        requester.trusted
            || self
                .role
                .as_deref()
                .is_none_or(|role| role == requester.role)
    }

    /// Retires the worker id for ids with timestamps up to `until_ms` that users compose. If it is
    /// put back into service later, its holder starts above `until_ms`. `None` if ids may have been
    /// issued with it: it has or had a holder, or is retired because a server has it configured.
    #[must_use]
    pub fn set_aside(self, until_ms: i64) -> Option<Self> {
        let unused = self.reserved_until_ms == 0
            && self.holder.is_none()
            && self.leased_at_ms.is_none()
            && !self.retired;
        unused.then_some(Self {
            reserved_until_ms: until_ms,
            retired: true,
            ..self
        })
    }

    /// Puts the worker id back into service, without a holder: another server may have had it
    /// configured meanwhile, and issued ids with timestamps up to `until_ms`.
    #[must_use]
    pub fn back_in_service(self, until_ms: i64) -> Self {
        Self {
            holder: None,
            role: None,
            token: 0,
            reserved_until_ms: self.reserved_until_ms.max(until_ms),
            clock_offset_ms: None,
            retired: false,
            ..self
        }
    }
}

/// Lock state of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Read without a lock.
    Seen,
    /// Locked, then read.
    Locked,
    /// Locked by another transaction.
    Busy,
}

/// The caller of a request.
#[derive(Debug, Clone, Copy)]
pub struct Requester<'a> {
    /// Role name.
    pub role: &'a [u8],
    /// The role can modify the registry's tables anyway: a superuser, or this server itself.
    pub trusted: bool,
    /// Address that it connected from.
    pub address: Option<&'a [u8]>,
    /// It is the registry's own server.
    pub host: bool,
}

/// A request with its sender.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LeaseRequest {
    /// The question.
    pub question: Question,
    /// System identifier of the sender's cluster.
    pub system_identifier: i64,
    /// Sender's `leaf_id.node_name`.
    #[serde(with = "message")]
    pub node_name: Vec<u8>,
    /// Sender's clock, in Unix milliseconds.
    pub now_ms: i64,
    /// Sender's `leaf_id.epoch`, in Unix milliseconds.
    pub epoch_ms: i64,
    /// Layout of the sender's ids.
    pub layout: Layout,
}

impl LeaseRequest {
    /// Validates the ranges that [`super::decide()`] relies on.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let Question {
            token,
            next_token,
            held,
        } = self.question;
        held.is_none_or(|held| {
            held.worker_id <= self.layout.max_worker_id()
                && (0..=LAST_MS).contains(&held.floor_ms)
                && (0..=LAST_MS).contains(&held.reserved_until_ms)
        }) && self.node_name.len() <= LONGEST_NAME
            && !self.node_name.iter().any(u8::is_ascii_control)
            && next_token != 0
            && next_token != token
            && (0..=LAST_MS).contains(&self.now_ms)
    }
}

/// The registry's own server and its clock.
#[derive(Debug, Clone, Copy)]
pub struct Here {
    /// Current place of the registry.
    pub place: Place,
    /// Its own `leaf_id.epoch`, in Unix milliseconds.
    pub epoch_ms: i64,
    /// Layout of its own ids.
    pub layout: Layout,
    /// Its clock when the request arrived, before any wait for a lock, in Unix milliseconds.
    pub arrived_ms: i64,
    /// The same, now.
    pub now_ms: i64,
    /// Its own worker id, if it is set by hand.
    pub worker_id: Option<u16>,
    /// How far ids of a server that shares its worker id, and has been the registry's own before,
    /// may lead this clock, in milliseconds.
    pub max_lead_ms: i64,
    /// Formats Unix milliseconds for messages.
    pub format_ms: fn(i64) -> String,
}

/// Current contents of the tables.
#[derive(Debug, Clone, Copy)]
pub struct Tables<'a> {
    /// The registry's row, or its initial values if it does not exist.
    pub registry: &'a Registry,
    /// The row exists and is locked.
    pub registry_locked: bool,
    /// All rows of worker ids.
    pub rows: &'a [(Row, Hold)],
}

/// The registry's reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The answer.
    pub answer: Answer,
    /// Explanation of a refusal for people; else empty.
    #[serde(
        serialize_with = "message::serialize",
        deserialize_with = "message::deserialize_shown"
    )]
    pub detail: String,
}

/// A decision. It must be committed before the reply is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The reply.
    pub reply: Reply,
    /// New version of the registry's row, which is locked then; `None` if unchanged.
    pub registry: Option<Registry>,
    /// New version of the row of the worker id, to be updated or inserted; `None` if none is granted.
    pub row: Option<Row>,
    /// The first use after a promotion or a restore: to be logged.
    pub is_moved: bool,
    /// The worker id has a new holder: to be logged.
    pub is_new: bool,
}

/// Result of [`super::decide()`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Lock the registry's row, inserting it if needed; then reread all rows.
    LockRegistry,
    /// The row that was locked has changed meanwhile: end the transaction, and let the requester ask
    /// again. The registry's row is locked before rows of worker ids.
    StartOver {
        /// The worker id.
        worker_id: u16,
    },
    /// Lock the row of a worker id and reread it.
    LockRow {
        /// The worker id.
        worker_id: u16,
        /// Wait for the lock; otherwise the row becomes [`Hold::Busy`] if it is locked.
        wait: bool,
    },
    /// Final decision.
    Done(Box<Decision>),
}
