//! What the registry's decision is made of: its rows, the question, and the answer.

use serde::{Deserialize, Serialize};

use crate::layout::Layout;
use crate::lease::{Answer, Clocks, Question, Status};
use crate::message;

/// The longest lease that can be asked for, in milliseconds.
pub const LONGEST_LEASE_MS: i64 = 86_400_000;
/// The largest clock skew that can be asked for, in milliseconds.
pub const LARGEST_SKEW_MS: i64 = 3_600_000;
/// How far a server may say at most that its ids lead its clock, in milliseconds.
pub const LARGEST_LEAD_MS: i64 = 3_600_000;
/// The longest name of a node, in bytes.
pub const LONGEST_NAME: usize = 63;
/// The end of the year 9999, in Unix milliseconds.
pub const LAST_MS: i64 = 253_402_300_799_999;

/// What the registry's owner allows its members. See the module's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// How far a member's clock may be off, in milliseconds. A member may be stricter.
    pub max_skew_ms: i64,
    /// The longest lease, in milliseconds.
    pub max_lease_ms: i64,
    /// How far a member's ids may lead its clock, in milliseconds. A member may be stricter.
    pub max_lead_ms: i64,
    /// How many worker ids one role may have; `None`: all.
    pub max_ids_per_role: Option<i64>,
}

impl Bounds {
    /// Those of a registry whose owner has said nothing.
    ///
    /// The skew is the default of `leaf_id.max_clock_skew`. A lease may last an hour, twelve
    /// times the default of `leaf_id.worker_lease`: after a promotion nothing is given away
    /// for the longest lease on record, so the bound is how long one member can make that.
    /// Ids may lead the clock by the defaults of `leaf_id.max_clock_lead` and, for some seconds
    /// after a promotion or a restore, `leaf_id.timestamp_reservation` together.
    /// A role may have 256 worker ids, a quarter of all: enough for a fleet whose members
    /// share one role, and the other roles still have most of the ids.
    pub const DEFAULT: Self = Self {
        max_skew_ms: 1_000,
        max_lease_ms: 3_600_000,
        max_lead_ms: 15_000,
        max_ids_per_role: Some(256),
    };
}

/// Where a registry is: a copy of it is elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The database cluster ...
    pub system_identifier: i64,
    /// ... its WAL timeline ...
    pub timeline: i32,
    /// ... the database ...
    pub database: u32,
    /// ... and the table.
    pub relation: u32,
}

/// The time after a promotion or a restore in which nothing is given away.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grace {
    /// When it began, on the monotonic clock ...
    pub since_boot_ms: i64,
    /// ... of the server that was started then: after another start it begins anew.
    pub server_start: i64,
}

/// The registry's own row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registry {
    /// Where it was last used, or created.
    pub place: Option<Place>,
    /// `leaf_id.epoch` of all its members; `None` before the first of them.
    pub epoch_ms: Option<i64>,
    /// The layout of all its members' ids; `None` before the first of them. It says how many
    /// worker ids there are.
    pub layout: Option<Layout>,
    /// When it was first used after a promotion or a restore, the last time, in Unix
    /// milliseconds.
    pub moved_at_ms: Option<i64>,
    /// While nothing is given away because of that.
    pub grace: Option<Grace>,
    /// What was recorded before and may be forgotten is not above this: fixed when the time in
    /// which nothing is given away has ended, in Unix milliseconds.
    pub moved_floor_ms: Option<i64>,
    /// What its owner allows.
    pub bounds: Bounds,
}

/// Who has a worker id, or had it last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its database cluster.
    pub system_identifier: i64,
    /// Its `leaf_id.node_name`, in the encoding of the registry's database.
    pub node_name: Vec<u8>,
}

/// A worker id as the registry knows it. Times in Unix milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Row {
    /// The worker id.
    pub worker_id: u16,
    /// Its holder, also when the lease has ended; `None`: nobody.
    pub holder: Option<Holder>,
    /// The role to which the holder's name belongs.
    pub role: Option<Vec<u8>>,
    /// What the holder must show; 0: nobody can.
    pub token: i64,
    /// When the holder got it.
    pub leased_at_ms: Option<i64>,
    /// When it was last renewed.
    pub renewed_at_ms: Option<i64>,
    /// Nobody else gets it before, and not before the largest clock skew has passed too, by the
    /// clock of this server.
    pub lease_until_ms: Option<i64>,
    /// How long the lease is.
    pub lease_ms: i64,
    /// R: no id of any holder so far carries a later time.
    pub reserved_until_ms: i64,
    /// Ids of this holder carry later times.
    pub floor_ms: i64,
    /// The holder's clock minus the registry's when it was last renewed.
    pub clock_offset_ms: Option<i64>,
    /// Neither leased nor renewed any more.
    pub retired: bool,
    /// It was leased to the server that the registry is on. It is kept for that, whichever it is
    /// after a promotion: no failover can have forgotten that somebody else has it.
    pub host: bool,
    /// Where the holder connected from.
    pub address: Option<Vec<u8>>,
}

impl Row {
    pub(super) fn is_live(&self, now_ms: i64) -> bool {
        self.lease_until_ms.is_some_and(|until| until > now_ms)
    }

    /// Whether its lease may not have ended yet by the clock of another registry, which may be
    /// behind this one by as much as clocks may differ. Until then nobody else gets the worker
    /// id: if that is forgotten in a failover, the registry that is promoted would renew the
    /// lease of the holder before.
    pub(super) fn may_be_live(&self, now_ms: i64, max_skew_ms: i64) -> bool {
        self.is_live(now_ms.saturating_sub(max_skew_ms))
    }

    pub(super) fn is_held_by(&self, system_identifier: i64, node_name: &[u8]) -> bool {
        self.holder.as_ref().is_some_and(|holder| {
            holder.system_identifier == system_identifier && holder.node_name == node_name
        })
    }

    /// Whether this role may speak for its holder.
    #[must_use]
    pub fn admits(&self, requester: &Requester<'_>) -> bool {
        requester.trusted
            || self
                .role
                .as_deref()
                .is_none_or(|role| role == requester.role)
    }

    /// Set aside for ids with times up to this one, which somebody composes: retired, so that
    /// nobody leases it, and whoever does later begins above. `None` if somebody may have
    /// issued ids with it: as a holder, or, as it is retired, because it is set by hand.
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

    /// Without a holder. What was reserved stays: the next one begins above it.
    #[must_use]
    pub fn without_holder(self) -> Self {
        Self {
            holder: None,
            role: None,
            token: 0,
            lease_ms: 0,
            clock_offset_ms: None,
            ..self
        }
    }

    /// Taken from its holder, which nobody waits for: whoever releases it says that it is gone.
    #[must_use]
    pub fn released(self) -> Self {
        Self {
            lease_until_ms: None,
            ..self.without_holder()
        }
    }
}

/// How a row is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// It was read.
    Seen,
    /// It was locked, and read then.
    Locked,
    /// Somebody else has locked it.
    Busy,
}

/// Who calls.
#[derive(Debug, Clone, Copy)]
pub struct Requester<'a> {
    /// The role.
    pub role: &'a [u8],
    /// It can change the registry's tables anyhow: a superuser, or this server itself.
    pub trusted: bool,
    /// Where it connected from.
    pub address: Option<&'a [u8]>,
    /// It is the server that the registry is on.
    pub host: bool,
}

/// What is asked, by whom, and on which terms: the message of a server to the registry.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LeaseRequest {
    /// The question. What a renewal says about what is reserved is not looked at.
    pub question: Question,
    /// The database cluster of who asks ...
    pub system_identifier: i64,
    /// ... and its `leaf_id.node_name`.
    #[serde(with = "message")]
    pub node_name: Vec<u8>,
    /// Its clock, in Unix milliseconds.
    pub now_ms: i64,
    /// Until when it wants to issue ids, in Unix milliseconds.
    pub reserve_until_ms: i64,
    /// Its `leaf_id.max_clock_skew`, in milliseconds.
    pub max_skew_ms: i64,
    /// How far its ids may lead its clock, in milliseconds.
    pub max_lead_ms: i64,
    /// Its `leaf_id.epoch`.
    pub epoch_ms: i64,
    /// The layout of its ids.
    pub layout: Layout,
}

impl LeaseRequest {
    /// Whether it can be decided on.
    #[must_use]
    pub fn is_valid(&self) -> bool {
        let Question {
            token,
            next_token,
            held,
            lease_ms,
            ..
        } = self.question;
        held.is_none_or(|held| held.worker_id <= self.layout.max_worker_id())
            && self.node_name.len() <= LONGEST_NAME
            && !self.node_name.iter().any(u8::is_ascii_control)
            && next_token != 0
            && next_token != token
            && (0..=LAST_MS).contains(&self.now_ms)
            && (1..=LONGEST_LEASE_MS).contains(&lease_ms)
            && (0..=LARGEST_SKEW_MS).contains(&self.max_skew_ms)
            && (0..=LARGEST_LEAD_MS).contains(&self.max_lead_ms)
    }
}

/// The server of the registry, and its clocks.
#[derive(Debug, Clone, Copy)]
pub struct Here {
    /// Where this is.
    pub place: Place,
    /// When the server was started.
    pub server_start: i64,
    /// Its own `leaf_id.epoch`.
    pub epoch_ms: i64,
    /// The layout of its own ids.
    pub layout: Layout,
    /// The clock when the question arrived, before anything was waited for, in Unix
    /// milliseconds.
    pub arrived_ms: i64,
    /// The clocks now.
    pub now: Clocks,
    /// A time for people.
    pub format_ms: fn(i64) -> String,
}

/// What is known of the tables.
#[derive(Debug, Clone, Copy)]
pub struct Tables<'a> {
    /// The registry's row, or what it would be if there were one.
    pub registry: &'a Registry,
    /// It is there and locked.
    pub registry_locked: bool,
    /// All rows of worker ids.
    pub rows: &'a [(Row, Hold)],
}

/// What the other servers' clocks say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peers {
    /// How many have a vote: servers, or where they have several roles, roles.
    pub votes: u32,
    /// The median of how far they are ahead of the registry's clock, in milliseconds.
    pub offset_ms: Option<i64>,
    /// Roles vote.
    pub by_role: bool,
}

/// What is granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Granted {
    /// The worker id.
    pub worker_id: u16,
    /// Ids carry later times.
    pub floor_ms: i64,
    /// Ids carry no later times.
    pub reserved_until_ms: i64,
    /// How long the lease is: what was asked for, or less.
    pub lease_ms: i64,
    /// Ids lead the holder's clock by no more, in milliseconds: what was asked for, or less.
    pub max_lead_ms: i64,
}

/// Why nothing is granted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusal {
    /// Anything but [`Status::Granted`].
    pub status: Status,
    /// For people.
    #[serde(
        serialize_with = "message::serialize",
        deserialize_with = "message::deserialize_shown"
    )]
    pub detail: String,
}

/// What the registry answers: its message to the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reply {
    /// The registry's clock when the question arrived, in Unix milliseconds.
    pub registry_ms: i64,
    /// The other servers' clocks.
    pub peers: Peers,
    /// How far the clock may be off: the smaller of what both allow.
    pub max_skew_ms: i64,
    /// What became of the question.
    pub outcome: Result<Granted, Refusal>,
}

impl Reply {
    /// As its receiver sees it; `None` if no registry says that.
    #[must_use]
    pub fn heard(&self, sent: Clocks, received: Clocks) -> Option<Answer> {
        let (status, granted) = match &self.outcome {
            Ok(granted) if granted.lease_ms > 0 => (Status::Granted, *granted),
            Err(refusal) if refusal.status != Status::Granted => {
                (refusal.status, Granted::default())
            }
            _ => return None,
        };
        Some(Answer {
            status,
            worker_id: granted.worker_id,
            floor_ms: granted.floor_ms,
            reserved_until_ms: granted.reserved_until_ms,
            lease_ms: granted.lease_ms,
            max_lead_ms: granted.max_lead_ms,
            max_skew_ms: self.max_skew_ms,
            registry_ms: self.registry_ms,
            peers: self.peers.votes,
            peers_offset_ms: self.peers.offset_ms.unwrap_or(0),
            sent,
            received,
        })
    }
}

/// Something that the registry's log should tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It was promoted or restored.
    Moved,
    /// A worker id has another holder.
    Leased(u16),
}

/// A decision: to be written and committed before the reply is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    /// The answer.
    pub reply: Reply,
    /// The registry's row, if it changes: it is locked then.
    pub registry: Option<Registry>,
    /// The rows of worker ids that change, or that there are to be, in this order.
    pub rows: Vec<Row>,
    /// What is to be logged.
    pub events: Vec<Event>,
}

/// What is to be done next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Next {
    /// Lock the registry's row, and make it if there is none; read all rows again.
    LockRegistry,
    /// Lock the row of a worker id, and read it again.
    LockRow {
        /// The worker id.
        worker_id: u16,
        /// Wait for whoever has locked it; otherwise it is [`Hold::Busy`].
        wait: bool,
    },
    /// It is decided.
    Done(Box<Decision>),
}
