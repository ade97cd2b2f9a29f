//! Errors about edits of tags.

use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys::panic::ErrorReport;

use super::report::{error, restart_at};
use crate::pg::ServerProblem;

/// See this file's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EditError {
    /// An UPDATE that lowers `max_id`.
    MaxIdLowered { tag: String, from: i64, to: i64 },
    /// A reset of a tag whose ids come from another server.
    ResetSourced { tag: String, server: String },
    /// A change of the server that a tag is sourced from.
    SourceIsFinal { tag: String, server: String },
    /// A foreign server that cannot be used.
    Server {
        server: String,
        problem: ServerProblem,
    },
    /// TRUNCATE without `leaf_id.allow_truncate`.
    TruncateNotAllowed,
    /// Two-phase commit of an edit.
    Prepared,
    /// The caller may not edit `leaf_alloc`.
    NotManager { role: String },
    /// The caller may not read `leaf_alloc`, nor the views of it.
    NotReader { role: String },
    /// The caller may not see the state of the server.
    NotMonitor { role: String },
}

impl EditError {
    /// The error to raise.
    pub(super) fn report(self) -> ErrorReport {
        let not_ready = Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
        match self {
            Self::MaxIdLowered { tag, from, to } => error(
                not_ready,
                format!("cannot lower \"max_id\" of tag \"{tag}\" from {from} to {to}"),
            )
            .set_detail("Ids below it may already be in use.")
            .set_hint(restart_at(&tag, to)),
            Self::ResetSourced { tag, server } => error(
                not_ready,
                format!("tag \"{tag}\" is sourced from server \"{server}\""),
            )
            .set_hint(
                "Reset it on that server, but only once no server has ids of it cached: they are still issued.",
            ),
            Self::SourceIsFinal { tag, server } => error(
                not_ready,
                format!("cannot take tag \"{tag}\" away from server \"{server}\""),
            )
            .set_detail("Other servers may have issued ids above its \"max_id\" here.")
            .set_hint(
                "Drop the tag, and create it again with a start above all ids that are in use, and that other servers will get.",
            ),
            Self::Server {
                server,
                problem: ServerProblem::Missing,
            } => error(
                Code::ERRCODE_UNDEFINED_OBJECT,
                format!("server \"{server}\" does not exist"),
            )
            .set_hint("Create the foreign server first, with CREATE SERVER."),
            Self::Server {
                server,
                problem: ServerProblem::NotOwner,
            } => error(
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("must be owner of foreign server {server}"),
            )
            .set_detail("Its ids are claimed with the owner's user mapping."),
            Self::TruncateNotAllowed => error(
                not_ready,
                "TRUNCATE of leaf_id.leaf_alloc would drop all tags of this database",
            )
            .set_detail("The defaults that issue their ids would fail.")
            .set_hint(
                "Leave the table out, or set \"leaf_id.allow_truncate\" in the transaction that is to drop all tags.",
            ),
            Self::Prepared => error(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                "cannot PREPARE a transaction that has changed tags or the worker registry",
            )
            .set_hint("Change them in a separate transaction, and COMMIT that."),
            Self::NotManager { role } => error(
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                "permission denied to manage tags",
            )
            .set_hint(format!(
                "To allow that: GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO {role};"
            )),
            Self::NotReader { role } => error(
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                "permission denied to read the state of tags",
            )
            .set_hint(format!(
                "To allow that: GRANT SELECT ON leaf_id.leaf_alloc TO {role};"
            )),
            Self::NotMonitor { role } => error(
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                "permission denied to read the state of the server",
            )
            .set_hint(format!("To allow that: GRANT pg_monitor TO {role};")),
        }
    }
}
