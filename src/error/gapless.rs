//! Errors about gapless series.

use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys::panic::ErrorReport;

use super::report::{error, literal};

/// See this file's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GaplessError {
    /// The series does not exist.
    NoSeries { series: String },
    /// The series has reached the end of bigint.
    EndOfSeries { series: String },
    /// A number in a transaction with a single snapshot.
    Isolation,
    /// Two-phase commit of a number, or of an edit.
    Prepared,
}

impl GaplessError {
    /// The error to raise.
    pub(super) fn report(self) -> ErrorReport {
        match self {
            Self::NoSeries { series } => {
                let report = error(
                    Code::ERRCODE_UNDEFINED_OBJECT,
                    format!("gapless series \"{series}\" does not exist"),
                );
                // Others cannot be created.
                if !(1..=128).contains(&series.len()) {
                    return report;
                }
                report.set_hint(format!(
                    "A role that manages series can create it, if it had no numbers yet: SELECT leaf_id.leaf_gapless_create({});",
                    literal(&series)
                ))
            }
            Self::EndOfSeries { series } => error(
                Code::ERRCODE_SEQUENCE_GENERATOR_LIMIT_EXCEEDED,
                format!("gapless series \"{series}\" has reached the end of bigint"),
            ),
            Self::Isolation => error(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                "numbers of a gapless series can be taken only in a READ COMMITTED transaction",
            )
            .set_detail(
                "With one snapshot for all, a transaction would not see the row that has the number before.",
            ),
            Self::Prepared => error(
                Code::ERRCODE_FEATURE_NOT_SUPPORTED,
                "cannot PREPARE a transaction that has taken a number of a gapless series, or changed one",
            )
            .set_detail("It would keep the series locked until it is committed, across restarts too."),
        }
    }
}
