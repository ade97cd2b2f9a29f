//! Reasons why a slot got no segment, with their texts for waiting sessions, the views and the log.

use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys::panic::ErrorReport;

use super::report::{error, function, literal};
use crate::pg::sqlstate::{self, SqlState};
use crate::pg::{self, LockHolder};

/// Reason why the last request of a slot failed. Stored in shared memory, with a short text where
/// noted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefillError {
    /// The row is locked.
    RowLocked { of: Locked, by: LockHolder },
    /// The table is locked.
    TableLocked { of: Locked, by: LockHolder },
    /// No background worker slot was free, and there is no reserve worker.
    NoWorkerSlot,
    /// No background worker slot was free, and the reserve worker is busy.
    WorkerSlotShared,
    /// The allocator could not be started or connected.
    NoAllocator,
    /// The tag has no row.
    NoSuchTag,
    /// The tag has reached its `max_value`; if `skip` is not 0, by ids skipped because of a
    /// failover.
    EndOfTag { max_value: i64, skip: u64 },
    /// The source server has returned ids below those received before, for the same incarnation of
    /// its row. The text is the server's name.
    ServerBehind { received: i64, answered: i64 },
    /// Another error, in the text.
    Failed,
    /// The source server, given by its number in shared memory, was asked, and has not answered
    /// yet.
    Asked { server: u32 },
    /// The claim is committed locally, and waits for a synchronous standby.
    AwaitsStandby,
    /// That server has refused with an error, in the text.
    Refused { server: u32, sqlstate: SqlState },
}

/// What a claim locks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locked {
    /// The tag, in `leaf_alloc`.
    Tag,
    /// The mark of its name, in `leaf_high_mark`.
    Mark,
}

/// What an error means to the allocator, which retries or holds the request, and to a session,
/// which waits or fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefillClass {
    /// No ids until a row of the tag is edited: an edit here starts another version. Held, and the
    /// session fails.
    Final,
    /// The tag is at its end on the source server. Held, and the session fails.
    EndThere,
    /// The source server has no such tag. Held; the session fails if this was the answer to its own
    /// wait, since nothing here tells when the tag is created there.
    MissingThere,
    /// A lock is in the way. Retried; the session fails if it holds the lock.
    Locked(LockHolder),
    /// This server retries, and the session waits.
    Passing,
    /// Up to the source server, which is asked again, or has not answered. The session waits.
    There,
}

/// What to do if no segment comes in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// The cause may end by itself.
    Wait,
    /// The source server gives no ids.
    LookThere,
    /// The role that claims on the source server lacks a right.
    GrantThere,
}

impl Advice {
    /// The HINT.
    pub(super) fn hint(self, tag: &str) -> String {
        match self {
            Self::Wait => {
                "Try again, look at leaf_id.problems, or increase \"leaf_id.refill_timeout\"."
                    .into()
            }
            Self::LookThere => {
                "Fix the problem shown in the DETAIL; the server is retried automatically.".into()
            }
            Self::GrantThere => format!(
                "On that server, for the user of the user mapping: SELECT {}({}, 'user');",
                function("leaf_tag_grant"),
                literal(tag)
            ),
        }
    }
}

impl RefillError {
    /// What it means. A new error has to be given a class here.
    pub fn class(self) -> RefillClass {
        match self {
            Self::NoSuchTag | Self::EndOfTag { .. } | Self::ServerBehind { .. } => {
                RefillClass::Final
            }
            Self::RowLocked { by, .. } | Self::TableLocked { by, .. } => RefillClass::Locked(by),
            Self::NoWorkerSlot
            | Self::WorkerSlotShared
            | Self::NoAllocator
            | Self::Failed
            | Self::AwaitsStandby => RefillClass::Passing,
            Self::Refused { sqlstate, .. } => match sqlstate {
                sqlstate::UNDEFINED_OBJECT => RefillClass::MissingThere,
                sqlstate::SEQUENCE_GENERATOR_LIMIT_EXCEEDED => RefillClass::EndThere,
                _ => RefillClass::There,
            },
            Self::Asked { .. } => RefillClass::There,
        }
    }

    /// True if the cause is the tag's row here, or an answer that the row does not allow.
    pub fn is_of_tag(self) -> bool {
        self.class() == RefillClass::Final
    }

    /// True if a retry is useless until the row is edited, here or on the source server.
    pub fn is_final(self) -> bool {
        match self.class() {
            RefillClass::Final | RefillClass::MissingThere | RefillClass::EndThere => true,
            RefillClass::Locked(_) | RefillClass::Passing | RefillClass::There => false,
        }
    }

    /// What to do where this lasts.
    pub fn advice(self) -> Advice {
        match self.class() {
            RefillClass::Final | RefillClass::Locked(_) | RefillClass::Passing => Advice::Wait,
            RefillClass::MissingThere | RefillClass::EndThere => Advice::LookThere,
            RefillClass::There => match self {
                Self::Refused {
                    sqlstate: sqlstate::INSUFFICIENT_PRIVILEGE,
                    ..
                } => Advice::GrantThere,
                _ => Advice::LookThere,
            },
        }
    }

    /// True if its sentence has the answer of another server or of PostgreSQL in it.
    pub fn quotes_others(self) -> bool {
        match self.class() {
            RefillClass::MissingThere | RefillClass::EndThere | RefillClass::There => true,
            RefillClass::Passing => self == Self::Failed,
            RefillClass::Final | RefillClass::Locked(_) => false,
        }
    }

    /// Pid of the process that holds the row or the table.
    pub fn blocker(self) -> Option<i32> {
        match self.class() {
            RefillClass::Locked(LockHolder::Process(pid)) => Some(pid),
            _ => None,
        }
    }

    /// Number of the source server in shared memory.
    pub fn server(self) -> Option<u32> {
        match self {
            Self::Asked { server } | Self::Refused { server, .. } => Some(server),
            _ => None,
        }
    }

    /// A sentence for DETAIL. `server`: name of the server with that number. `text`: the text
    /// stored with the error. `None` if the known state of that server is sufficient.
    pub fn sentence(self, server: &str, text: &str) -> Option<String> {
        let locked = |what: &str, by: LockHolder| match by {
            LockHolder::Unknown => format!("{what} was locked."),
            LockHolder::Process(pid) => format!("{what} is locked by process {pid}."),
            LockHolder::Prepared => format!("{what} is locked by a prepared transaction."),
        };
        Some(match self {
            Self::RowLocked { of, by } => match of {
                Locked::Tag => locked("The row of the tag in leaf_id.leaf_alloc", by),
                Locked::Mark => locked("The mark of the tag's name in leaf_id.leaf_high_mark", by),
            },
            Self::TableLocked { of, by } => match of {
                Locked::Tag => locked("Table leaf_id.leaf_alloc", by),
                Locked::Mark => locked("Table leaf_id.leaf_high_mark", by),
            },
            Self::NoWorkerSlot => {
                "All background worker slots are in use, and the reserve worker is missing.".into()
            }
            Self::WorkerSlotShared => {
                "All background worker slots are in use, and databases take turns at the reserve worker.".into()
            }
            Self::NoAllocator => "No allocator could be started for this database.".into(),
            Self::NoSuchTag => "The tag does not exist.".into(),
            Self::EndOfTag { max_value, .. } => {
                format!("The tag has reached its maximum value ({max_value}).")
            }
            Self::ServerBehind { received, answered } => format!(
                "Server \"{text}\" is behind: ids below {received} were in use, now it has given {answered}."
            ),
            Self::Failed => format!("The allocator has failed: {text}"),
            Self::Asked { .. } => return None,
            Self::AwaitsStandby => {
                "The claim waits for a synchronous standby; see \"synchronous_standby_names\".".into()
            }
            Self::Refused { .. } => format!("Server \"{server}\" has refused: {text}"),
        })
    }

    /// Text for the server log, if the error needs attention.
    pub fn log_text(self, server: &str, text: &str) -> Option<String> {
        match self {
            Self::ServerBehind { received, answered } => Some(format!(
                "server \"{text}\" has given {answered}, though ids below {received} were in use"
            )),
            Self::Refused { sqlstate, .. } => {
                let is_passing = matches!(
                    sqlstate,
                    sqlstate::SERIALIZATION_FAILURE
                        | sqlstate::DEADLOCK_DETECTED
                        | sqlstate::LOCK_NOT_AVAILABLE
                        | sqlstate::QUERY_CANCELED
                );
                (!is_passing && !self.is_final())
                    .then(|| format!("server \"{server}\" has refused: {text}"))
            }
            Self::Failed => Some(text.into()),
            Self::RowLocked { .. }
            | Self::TableLocked { .. }
            | Self::NoWorkerSlot
            | Self::WorkerSlotShared
            | Self::NoAllocator
            | Self::NoSuchTag
            | Self::EndOfTag { .. }
            | Self::Asked { .. }
            | Self::AwaitsStandby => None,
        }
    }

    /// The error to raise, if it is final, or caused by the call itself. `None` for others, which
    /// may disappear soon.
    pub(super) fn report(self, tag: &str, server: &str, text: &str) -> Option<ErrorReport> {
        let not_ready = Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
        Some(match self {
            Self::NoSuchTag => no_such_tag(tag).set_hint(format!(
                "Create it with {}(), with a start above all ids of it that are in use; if a column's default names it, {}() finds them.",
                function("leaf_tag_create"),
                function("leaf_sync")
            )),
            Self::EndOfTag { max_value, skip } => end_of_tag(tag, max_value, skip),
            Self::ServerBehind { received, answered } => error(
                not_ready,
                format!("server \"{text}\" is behind with tag \"{tag}\""),
            )
            .set_detail(format!(
                "Ids below {received} had come from there, or were in use here before; now it has given {answered}. It may have lost claims in a failover."
            ))
            .set_hint("Raise its \"max_id\" there, above that of this tag on every server that takes ids from it, and above the ids that it has issued itself."),
            Self::Refused { sqlstate: sqlstate::UNDEFINED_OBJECT, .. } => error(
                Code::ERRCODE_UNDEFINED_OBJECT,
                format!("tag \"{tag}\" does not exist on server \"{server}\""),
            )
            .set_detail("If that server has lost it, create it with a start above \"max_id\" of this tag in leaf_id.leaf_alloc of every member, and above the ids that it has issued itself. Otherwise, ids are issued again.")
            .set_hint(format!(
                "If it is new, create it on that server: SELECT leaf_tag_create({});",
                literal(tag)
            )),
            Self::Refused { sqlstate: sqlstate::SEQUENCE_GENERATOR_LIMIT_EXCEEDED, .. } => error(
                Code::ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED,
                format!("tag \"{tag}\" has no ids left on server \"{server}\""),
            )
            .set_detail(format!("That server says: {}.", for_monitors(text.into())))
            .set_hint("Raise \"max_value\" in leaf_id.leaf_alloc there."),
            Self::RowLocked { .. } | Self::TableLocked { .. } => error(
                not_ready,
                format!("tag \"{tag}\" is locked by this transaction"),
            )
            .set_detail("Its cached ids are used up, and new ones cannot be claimed while the row or the table is locked.")
            .set_hint("Commit first; then its ids can be used."),
            Self::NoWorkerSlot => error(
                Code::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
                format!("could not start an allocator for tag \"{tag}\""),
            )
            .set_detail("All background worker slots are in use, and the reserve worker is missing: there was no slot for it when the server started.")
            .set_hint("Increase \"max_worker_processes\", on standbys first, and restart the server."),
            Self::WorkerSlotShared
            | Self::NoAllocator
            | Self::Failed
            | Self::Asked { .. }
            | Self::AwaitsStandby
            | Self::Refused { .. } => return None,
        })
    }
}

/// The error for a tag that does not exist, without its HINT.
pub(super) fn no_such_tag(tag: &str) -> ErrorReport {
    error(
        Code::ERRCODE_UNDEFINED_OBJECT,
        format!("tag \"{tag}\" does not exist"),
    )
}

/// Ends of integer columns, which are the `max_value` of tags that were created for them.
const SMALLINT_END: i64 = i16::MAX as i64;
const INTEGER_END: i64 = i32::MAX as i64;

fn end_of_tag(tag: &str, max_value: i64, skip: u64) -> ErrorReport {
    let exhausted = Code::ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED;
    if skip == 0 && max_value == i64::MAX - 1 {
        return error(
            exhausted,
            format!("tag \"{tag}\" has reached the end of bigint"),
        );
    }
    let report = error(
        exhausted,
        format!("tag \"{tag}\" has reached its maximum value ({max_value})"),
    );
    if skip == 0 {
        return report.set_hint(raise_end("Raise it", tag, max_value, 0));
    }
    report
        .set_detail(format!(
            "After a failover, {skip} ids are left out, which claims that are missing here may have taken."
        ))
        .set_hint(raise_end("If no claim of any tag is missing, set \"leaf_id.failover_skip\" to 0, issue an id of this tag, and set it back; otherwise raise its end", tag, max_value, skip))
}

/// HINT: to raise the end, `advice`, by one more digit and what is skipped, and what must not depend on
/// the old one.
pub(super) fn raise_end(advice: &str, tag: &str, max_value: i64, skip: u64) -> String {
    let end = max_value
        .saturating_mul(10)
        .saturating_add_unsigned(skip)
        .min(i64::MAX - 1);
    let condition = match max_value {
        SMALLINT_END | INTEGER_END => "once the columns that hold its ids are bigint",
        _ => "if nothing depends on this end",
    };
    format!(
        "{advice}, {condition}: UPDATE leaf_id.leaf_alloc SET max_value = {end} WHERE biz_tag = {};",
        literal(tag)
    )
}

/// The answer of another server or of PostgreSQL, which may contain host, role and node names;
/// hidden from roles without the privileges of pg_monitor.
pub fn for_monitors(said: String) -> String {
    if pg::caller_is_monitor() {
        said
    } else {
        "(shown to roles with the privileges of pg_monitor)".into()
    }
}

/// A sentence that has such an answer in it.
pub fn reason_for_monitors(sentence: String) -> String {
    if pg::caller_is_monitor() {
        sentence
    } else {
        "The reason is shown to roles with the privileges of pg_monitor.".into()
    }
}
