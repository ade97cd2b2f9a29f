//! Mailbox between the launcher and the registrar, and the lease status shown to sessions.
//!
//! 1. The launcher stores a request under a new number and starts a registrar with that number.
//! 2. The registrar takes the request by its number.
//! 3. It stores the reply, which wakes the launcher. A reply to an abandoned request is dropped.
//!
//! Protected by its own lock.

use leaf_id_core::layout::Layout;
use leaf_id_core::lease::{Heard, Question};

use super::databases::Launcher;
use super::lock::Locked;
use super::text::Text;
use crate::guc::MAX_NAME;

/// Max length of an error or an explanation, in bytes.
const EXPLANATION: usize = 191;
/// Max length of a registry's name, in bytes: database, separator, server.
const MAX_REGISTRY: usize = 2 * MAX_NAME + 1;

/// A message for people.
pub type Explanation = Text<EXPLANATION>;

/// A request to the registry, with everything the registrar needs.
#[derive(Clone, Copy)]
pub struct LeaseQuestion {
    /// The question.
    pub question: Question,
    /// Name of this server.
    pub node_name: Text<MAX_NAME>,
    /// Oid of the database to connect to.
    pub database: u32,
    /// Foreign server in that database; empty if the registry is in the database itself.
    pub server: Text<MAX_NAME>,
    /// Timeout, in milliseconds.
    pub timeout_ms: i64,
    /// `leaf_id.epoch`.
    pub epoch_ms: i64,
    /// Layout of this server's ids.
    pub layout: Layout,
}

/// Outcome of a request.
#[derive(Clone, Copy)]
pub enum LeaseReply {
    /// The registry's answer, with its explanation.
    Answered(Heard, Explanation),
    /// No answer, or an unknown one.
    Failed(Explanation),
}

/// Source of the worker id in use.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WorkerIdSource {
    /// `leaf_id.worker_id`.
    Setting,
    /// The registry.
    Registry,
    /// The lease file of an earlier run; the registry has not renewed it since.
    File,
}

/// Status of the lease, for the views. Times in Unix milliseconds.
#[derive(Clone, Copy)]
pub struct LeaseStatus {
    /// `leaf_id.worker_registry`; empty if nothing is leased.
    pub registry: Text<MAX_REGISTRY>,
    /// Source of the worker id.
    pub source: WorkerIdSource,
    /// Worker id of the last lease.
    pub worker_id: u16,
    /// R: no id has a later timestamp.
    pub until_ms: Option<i64>,
    /// Time of the first request since the last grant that was not granted; `None` if there is none.
    pub not_renewed_since_ms: Option<i64>,
    /// This server's clock minus the registry's.
    pub clock_offset_ms: Option<i64>,
    /// The median of the other servers' clocks minus the registry's.
    pub peers_offset_ms: Option<i64>,
    /// Reason why the last request was not granted; empty if it was.
    pub last_error: Explanation,
}

impl LeaseStatus {
    /// No lease.
    pub const NONE: Self = Self {
        registry: Text::EMPTY,
        source: WorkerIdSource::Setting,
        worker_id: 0,
        until_ms: None,
        not_renewed_since_ms: None,
        clock_offset_ms: None,
        peers_offset_ms: None,
        last_error: Text::EMPTY,
    };
}

/// The mailbox; see the file header.
pub struct RegistryMailbox {
    number: u64,
    request: Option<LeaseQuestion>,
    reply: Option<LeaseReply>,
    status: LeaseStatus,
}

impl RegistryMailbox {
    /// An empty one.
    pub const NEW: Self = Self {
        number: 0,
        request: None,
        reply: None,
        status: LeaseStatus::NONE,
    };
}

/// Access to the mailbox.
pub struct Registry<'a> {
    mailbox: &'a Locked<RegistryMailbox>,
    launcher: &'a Launcher,
}

impl<'a> Registry<'a> {
    /// Access to the area's mailbox.
    pub fn new(mailbox: &'a Locked<RegistryMailbox>, launcher: &'a Launcher) -> Self {
        Self { mailbox, launcher }
    }

    /// Stores a request, replacing any other, and returns its number.
    pub fn ask(&self, request: LeaseQuestion) -> u64 {
        self.mailbox.with(|mailbox| {
            mailbox.number += 1;
            mailbox.request = Some(request);
            mailbox.reply = None;
            mailbox.number
        })
    }

    /// Database of request `number`, while no registrar has taken it.
    pub fn asked_in(&self, number: u64) -> Option<u32> {
        self.mailbox.with(|mailbox| {
            let asked = mailbox.number == number;
            asked.then_some(mailbox.request?.database)
        })
    }

    /// Takes request `number`, unless it was taken.
    pub fn take_request(&self, number: u64) -> Option<LeaseQuestion> {
        self.mailbox.with(|mailbox| {
            let asked = mailbox.number == number;
            asked.then(|| mailbox.request.take()).flatten()
        })
    }

    /// Stores the reply to request `number`, unless that was replaced or has a reply.
    pub fn reply(&self, number: u64, reply: LeaseReply) {
        self.mailbox.with(|mailbox| {
            if mailbox.number == number && mailbox.reply.is_none() {
                mailbox.request = None;
                mailbox.reply = Some(reply);
            }
        });
        self.launcher.wake();
    }

    /// Takes the reply to request `number`, if it has arrived.
    pub fn take_reply(&self, number: u64) -> Option<LeaseReply> {
        self.mailbox.with(|mailbox| {
            let asked = mailbox.number == number;
            asked.then(|| mailbox.reply.take()).flatten()
        })
    }

    /// Updates the lease status.
    pub fn tell_lease(&self, tell: impl FnOnce(&mut LeaseStatus)) {
        self.mailbox.with(|mailbox| tell(&mut mailbox.status));
    }

    /// The lease status.
    pub fn lease_status(&self) -> LeaseStatus {
        self.mailbox.read(|mailbox| mailbox.status)
    }
}
