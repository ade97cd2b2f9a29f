//! Building blocks of all reports.

use std::borrow::Cow;

use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::panic::ErrorReport;

/// An error without detail and hint.
#[track_caller]
pub(super) fn error(code: PgSqlErrorCode, message: impl Into<Cow<'static, str>>) -> ErrorReport {
    ErrorReport::new(code, message, "leaf_id")
}

/// An SQL literal, for the commands in hints.
pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
