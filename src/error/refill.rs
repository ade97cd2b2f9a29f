//! Why a slot got no segment: what a claim says of a tag, what the slot remembers, and the
//! words for both. A waiting session raises it, the views show it.

use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys::panic::ErrorReport;

use crate::pg::LockHolder;
use crate::pg::sqlstate::SqlState;

/// Why a tag gives no ids. Asking again does not change it before its row is edited, here or
/// on its source server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TagError {
    /// It has no row.
    NoSuchTag,
    /// Its `max_value` is reached, by ids that are left out because of a failover where
    /// `skip` is not 0.
    EndOfTag { max_value: i64, skip: u64 },
    /// The same incarnation of its row on the source server, which has given ids below those
    /// that had come from there.
    ServerBehind { received: i64, answered: i64 },
}

/// Why the last request of a slot was not answered with a segment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum RefillError {
    /// The row is locked.
    RowLocked { by: LockHolder },
    /// The table is locked.
    TableLocked { by: LockHolder },
    /// No background worker slot was free, and there is no reserve worker.
    NoWorkerSlot,
    /// No background worker slot was free, and the reserve worker is busy.
    WorkerSlotShared,
    /// The allocator could not be started or connected.
    NoAllocator,
    /// The tag gives none; the text is the name of the source server that is behind.
    Tag(TagError),
    /// Another error: the text.
    Failed,
    /// The source server of the tag, by its number in shared memory, was asked, and has not
    /// answered yet.
    Asked { server: u32 },
    /// The claim is committed here, and waits to be acknowledged by a synchronous standby.
    AwaitsStandby,
    /// That server has refused with an error: the text.
    Refused { server: u32, sqlstate: SqlState },
}

impl RefillError {
    /// As a sentence. `server`: the name of the one with the number. `text`: what is
    /// remembered with the error. `None` where what is known of that server says it.
    pub fn sentence(self, server: &str, text: &str) -> Option<String> {
        let locked = |what: &str, by: LockHolder| match by {
            LockHolder::Nobody => format!("{what} was locked."),
            LockHolder::Process(pid) => format!("{what} is locked by process {pid}."),
            LockHolder::Prepared => format!("{what} is locked by a prepared transaction."),
        };
        Some(match self {
            Self::RowLocked { by } => locked("The row of the tag in leaf_id.leaf_alloc", by),
            Self::TableLocked { by } => locked("Table leaf_id.leaf_alloc", by),
            Self::NoWorkerSlot => {
                "All background worker slots are in use, and the reserve worker is missing.".into()
            }
            Self::WorkerSlotShared => {
                "All background worker slots are in use, and databases take turns at the reserve worker.".into()
            }
            Self::NoAllocator => "No allocator could be started for this database.".into(),
            Self::Tag(error) => error.sentence(text),
            Self::Failed => format!("The allocator has failed: {text}"),
            Self::Asked { .. } => return None,
            Self::AwaitsStandby => {
                "The claim waits for a synchronous standby; see \"synchronous_standby_names\".".into()
            }
            Self::Refused { .. } => format!("Server \"{server}\" has refused: {text}"),
        })
    }
}

impl TagError {
    /// As a sentence; `server` is the tag's source server.
    pub fn sentence(self, server: &str) -> String {
        match self {
            Self::NoSuchTag => "The tag does not exist.".into(),
            Self::EndOfTag { max_value, .. } => {
                format!("The tag has reached its maximum value ({max_value}).")
            }
            Self::ServerBehind { received, answered } => format!(
                "Server \"{server}\" is behind: ids below {received} were in use, now it has given {answered}."
            ),
        }
    }

    /// What the server's log says, where somebody has to look after the tag.
    pub fn log_text(self, server: &str) -> Option<String> {
        match self {
            Self::NoSuchTag | Self::EndOfTag { .. } => None,
            Self::ServerBehind { received, answered } => Some(format!(
                "server \"{server}\" has given {answered}, though ids below {received} were in use"
            )),
        }
    }

    /// The error to raise.
    pub(super) fn report(self, tag: &str, server: &str) -> ErrorReport {
        let not_ready = Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
        let exhausted = Code::ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED;
        let error = |code, message: String| ErrorReport::new(code, message, "leaf_id");
        match self {
            Self::NoSuchTag => error(
                Code::ERRCODE_UNDEFINED_OBJECT,
                format!("tag \"{tag}\" does not exist"),
            )
            .set_hint(format!(
                "Create it: SELECT leaf_tag_create('{}');",
                tag.replace('\'', "''")
            )),
            // The last id that there can be: nothing is to be raised.
            Self::EndOfTag { max_value, skip: 0 } if max_value == i64::MAX - 1 => error(
                exhausted,
                format!("tag \"{tag}\" has reached the end of bigint"),
            ),
            Self::EndOfTag { max_value, skip } => {
                let report = error(
                    exhausted,
                    format!("tag \"{tag}\" has reached its maximum value ({max_value})"),
                );
                if skip == 0 {
                    report.set_hint("Raise \"max_value\" in leaf_id.leaf_alloc.")
                } else {
                    report.set_detail(format!(
                        "After a failover, {skip} ids are left out, which claims that are missing here may have taken."
                    ))
                    .set_hint("Raise \"max_value\" in leaf_id.leaf_alloc. Or, if no claim is missing, set \"leaf_id.failover_skip\" to 0 until this tag has issued an id.")
                }
            }
            Self::ServerBehind { received, answered } => error(
                not_ready,
                format!("server \"{server}\" is behind with tag \"{tag}\""),
            )
            .set_detail(format!(
                "Ids below {received} had come from there, or were in use here before; now it has given {answered}. It may have lost claims in a failover."
            ))
            .set_hint("Raise its \"max_id\" there, above every id that is in use on any server."),
        }
    }
}
