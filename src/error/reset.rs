//! Errors of `leaf_snowflake_reset`.

use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys::panic::ErrorReport;

use super::report::error;

/// See this file's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResetError {
    /// A time below what is reserved for the same worker id.
    WorkerIdUsed { worker_id: u16, until: String },
    /// There is no launcher, or it is busy.
    Timeout {
        timeout_ms: i64,
        detail: &'static str,
    },
    /// A time that no id can carry.
    OutOfRange,
    /// The worker id is leased.
    Leased,
}

impl ResetError {
    /// The error to raise.
    pub(super) fn report(self) -> ErrorReport {
        let not_ready = Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
        match self {
            Self::WorkerIdUsed { worker_id, until } => error(
                not_ready,
                format!("worker id {worker_id} may have issued snowflake ids with later times"),
            )
            .set_detail(format!("Its timestamps are reserved until {until}."))
            .set_hint("Set \"leaf_id.worker_id\" to one that was never used before, and call this again."),
            Self::Timeout { timeout_ms, detail } => error(
                Code::ERRCODE_LOCK_NOT_AVAILABLE,
                format!("could not reset snowflake ids within {timeout_ms} ms"),
            )
            .set_detail(detail.to_string()),
            Self::OutOfRange => error(
                Code::ERRCODE_INVALID_PARAMETER_VALUE,
                "snowflake ids cannot carry this time",
            )
            .set_hint("To issue ids from now on: SELECT leaf_id.leaf_snowflake_reset(now());"),
            Self::Leased => error(
                not_ready,
                "cannot reset snowflake ids while \"leaf_id.worker_id\" is auto",
            )
            .set_detail("No id carries a later time than the worker registry has recorded, so there is nothing to go back from."),
        }
    }
}
