//! Errors about ids whose rows are read in order.

use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys::panic::ErrorReport;

use super::report::error;

/// See this file's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OrderedError {
    /// The tag is sourced from another server.
    Sourced { tag: String },
    /// The tag has passed the last id that a lock can carry.
    End { tag: String },
    /// An id in a parallel worker.
    ParallelWorker,
    /// A watermark in a transaction with a single snapshot.
    Isolation,
    /// A watermark in a statement that reads or writes a table.
    BesideTables,
}

impl OrderedError {
    /// The error to raise.
    pub(super) fn report(self) -> ErrorReport {
        let unsupported = Code::ERRCODE_FEATURE_NOT_SUPPORTED;
        let new_snapshot = "Rows are read in a later statement, with a snapshot of its own: one that is older than the watermark misses some.";
        match self {
            Self::Sourced { tag } => error(
                unsupported,
                format!("the ids of tag \"{tag}\" are in order on each server only"),
            )
            .set_detail("It is sourced from another server."),
            Self::End { tag } => error(
                Code::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
                format!("tag \"{tag}\" is beyond the last ordered id"),
            )
            .set_detail("Ordered ids end at 2^47."),
            Self::ParallelWorker => {
                error(unsupported, "cannot issue ordered ids in a parallel worker")
            }
            Self::Isolation => error(
                unsupported,
                "leaf_ordered_watermark() can be called only in a READ COMMITTED transaction",
            )
            .set_detail(new_snapshot),
            Self::BesideTables => error(
                unsupported,
                "leaf_ordered_watermark() must be in a statement of its own, without a table",
            )
            .set_detail(new_snapshot),
        }
    }
}
