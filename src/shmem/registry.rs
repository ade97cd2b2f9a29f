//! The mailbox of the worker registry: how the launcher's question reaches the registrar, and
//! the answer the launcher; and what sessions are told of both.
//!
//! 1. The launcher puts a question here, under a number that no other one has, and starts a
//!    registrar with that number.
//! 2. The registrar takes the question by the number, and leaves its reply, which wakes the
//!    launcher. It may be late: a reply to a question that was given up is dropped.
//!
//! All of it under a lock of its own.

use leaf_id_core::layout::Layout;
use leaf_id_core::lease::{Answer, Draft};

use super::databases::Launcher;
use super::lock::Locked;
use super::text::Text;
use crate::guc::MAX_NAME;

/// What is kept of an error or an explanation, in bytes.
const EXPLANATION: usize = 191;
/// The name of a registry: of a database and of a server.
const MAX_REGISTRY: usize = 2 * MAX_NAME + 1;

/// An explanation for people.
pub type Explanation = Text<EXPLANATION>;

/// A question to the registry, with all that the registrar needs to ask it.
#[derive(Clone, Copy)]
pub struct LeaseQuestion {
    /// The question, which is finished when there is a connection.
    pub draft: Draft,
    /// Who asks.
    pub node_name: Text<MAX_NAME>,
    /// Oid of the database to connect to.
    pub database: u32,
    /// The foreign server in it; empty: the registry is in that database.
    pub server: Text<MAX_NAME>,
    /// How long it may take, in milliseconds.
    pub timeout_ms: i64,
    /// The time of the last id, or that above which the next one is, in Unix milliseconds.
    pub last_ms: i64,
    /// `leaf_id.max_clock_skew`, in milliseconds.
    pub max_skew_ms: i64,
    /// How far ids may lead the clock, in milliseconds.
    pub max_lead_ms: i64,
    /// `leaf_id.epoch`.
    pub epoch_ms: i64,
    /// The layout of this server's ids.
    pub layout: Layout,
}

/// What became of a question.
#[derive(Clone, Copy)]
pub enum LeaseReply {
    /// The registry has answered, and what it says for people.
    Answered(Answer, Explanation),
    /// It has not, or it cannot be known.
    Failed(Explanation),
}

/// Where the worker id in use comes from.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum WorkerIdSource {
    /// `leaf_id.worker_id`.
    Setting,
    /// The registry.
    Registry,
    /// The file of an earlier run: the registry has not answered since.
    File,
}

/// What is told of the lease. Times in Unix milliseconds.
#[derive(Clone, Copy)]
pub struct LeaseStatus {
    /// `leaf_id.worker_registry`; empty if nothing is leased.
    pub registry: Text<MAX_REGISTRY>,
    /// Where the worker id comes from.
    pub source: WorkerIdSource,
    /// The worker id of the last lease.
    pub worker_id: u16,
    /// When the lease ends, as far as the clock is right.
    pub until_ms: Option<i64>,
    /// Since when the registry has not answered.
    pub away_since_ms: Option<i64>,
    /// This server's clock minus the registry's.
    pub clock_offset_ms: Option<i64>,
    /// The median of the other servers' clocks minus the registry's.
    pub peers_offset_ms: Option<i64>,
    /// Why the last question was not granted; empty if it was.
    pub last_error: Explanation,
}

impl LeaseStatus {
    /// Nothing is leased.
    pub const NONE: Self = Self {
        registry: Text::EMPTY,
        source: WorkerIdSource::Setting,
        worker_id: 0,
        until_ms: None,
        away_since_ms: None,
        clock_offset_ms: None,
        peers_offset_ms: None,
        last_error: Text::EMPTY,
    };
}

/// See this file's header.
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

/// The way to the mailbox.
pub struct Registry<'a> {
    mailbox: &'a Locked<RegistryMailbox>,
    launcher: &'a Launcher,
}

impl<'a> Registry<'a> {
    /// That of the area.
    pub fn new(mailbox: &'a Locked<RegistryMailbox>, launcher: &'a Launcher) -> Self {
        Self { mailbox, launcher }
    }

    /// Puts a question, in place of any other. The number is for the registrar.
    pub fn ask(&self, request: LeaseQuestion) -> u64 {
        self.mailbox.with(|mailbox| {
            mailbox.number += 1;
            mailbox.request = Some(request);
            mailbox.reply = None;
            mailbox.number
        })
    }

    /// The database to ask the question with this number in, while it waits for a registrar.
    pub fn asked_in(&self, number: u64) -> Option<u32> {
        self.mailbox.with(|mailbox| {
            let asked = mailbox.number == number;
            asked.then_some(mailbox.request?.database)
        })
    }

    /// The question with this number, if nobody has taken it yet.
    pub fn take_request(&self, number: u64) -> Option<LeaseQuestion> {
        self.mailbox.with(|mailbox| {
            let asked = mailbox.number == number;
            asked.then(|| mailbox.request.take()).flatten()
        })
    }

    /// Leaves a reply, unless there is one, or another question.
    pub fn reply(&self, number: u64, reply: LeaseReply) {
        self.mailbox.with(|mailbox| {
            if mailbox.number == number && mailbox.reply.is_none() {
                mailbox.request = None;
                mailbox.reply = Some(reply);
            }
        });
        self.launcher.wake();
    }

    /// The reply to a question, if there is one.
    pub fn take_reply(&self, number: u64) -> Option<LeaseReply> {
        self.mailbox.with(|mailbox| {
            let asked = mailbox.number == number;
            asked.then(|| mailbox.reply.take()).flatten()
        })
    }

    /// Changes what is told of the lease.
    pub fn tell_lease(&self, tell: impl FnOnce(&mut LeaseStatus)) {
        self.mailbox.with(|mailbox| tell(&mut mailbox.status));
    }

    /// What is told of the lease.
    pub fn lease_status(&self) -> LeaseStatus {
        self.mailbox.read(|mailbox| mailbox.status)
    }
}
