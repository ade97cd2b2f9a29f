//! Errors about the extension's tables.

use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys::panic::ErrorReport;

use super::report::error;
use crate::pg::Misshapen;

/// See this file's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableError {
    /// The table does not exist.
    Missing { table: String },
    /// The table differs from the extension's script.
    Altered { table: String, detail: String },
    /// The same, and the extension in this database has another version than the library.
    OtherVersion {
        installed: String,
        table: String,
        detail: String,
    },
}

impl TableError {
    /// The error to raise.
    pub(super) fn report(self) -> ErrorReport {
        match self {
            Self::Missing { table } => error(
                Code::ERRCODE_UNDEFINED_TABLE,
                format!("table \"leaf_id.{table}\" is missing"),
            )
            .set_hint("Move it back to schema \"leaf_id\", or restore it from a dump."),
            Self::Altered { table, detail } => error(
                Code::ERRCODE_DATATYPE_MISMATCH,
                format!("table \"leaf_id.{table}\" does not have the definition that extension \"leaf_id\" created"),
            )
            .set_detail(detail)
            .set_hint("Undo the change shown in the DETAIL."),
            Self::OtherVersion {
                installed,
                table,
                detail,
            } => error(
                Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
                format!(
                    "extension leaf_id of this database is version {installed}, but the library is version {}",
                    env!("CARGO_PKG_VERSION")
                ),
            )
            .set_detail(format!(
                "Table \"leaf_id.{table}\" is not as this version needs it: {detail} Where the library is the older one, the server has to be restarted."
            ))
            .set_hint("To bring the extension to the library's version: ALTER EXTENSION leaf_id UPDATE;"),
        }
    }
}

impl From<Misshapen> for TableError {
    fn from(misshapen: Misshapen) -> Self {
        let table = misshapen.table.to_string_lossy().into_owned();
        let detail = misshapen.detail;
        match misshapen.installed {
            Some(installed) => Self::OtherVersion {
                installed,
                table,
                detail,
            },
            None => Self::Altered { table, detail },
        }
    }
}
