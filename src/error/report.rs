//! Building blocks of all reports.

use std::borrow::Cow;

use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::panic::ErrorReport;

/// An error without detail and hint.
#[track_caller]
pub(super) fn error(code: PgSqlErrorCode, message: impl Into<Cow<'static, str>>) -> ErrorReport {
    ErrorReport::new(code, message, "leaf_id")
}

/// A function of the extension, for hints.
pub(super) use crate::pg::function_name as function;

/// An SQL literal, for the commands in hints: as of `quote_literal`, whatever
/// `standard_conforming_strings` is.
pub(super) fn literal(text: &str) -> String {
    let escape = if text.contains('\\') { "E" } else { "" };
    let text = text.replace('\\', r"\\").replace('\'', "''");
    format!("{escape}'{text}'")
}

/// HINT: restart a tag at an id.
pub(super) fn restart_at(tag: &str, id: i64) -> String {
    let (id, reset) = (id.max(1), function("leaf_tag_reset"));
    format!(
        "Only if no id from {id} on is in use, or cached by any server: SELECT {reset}({}, {id});",
        literal(tag)
    )
}
