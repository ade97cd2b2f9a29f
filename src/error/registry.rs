//! Errors of the worker registry.

use pgrx::PgSqlErrorCode as Code;
use pgrx::pg_sys::panic::ErrorReport;

use super::report::error;

/// See this file's header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RegistryError {
    /// The tables of the worker registry are missing.
    NoRegistryTable,
    /// A request has invalid terms.
    LeaseTerms,
    /// The row of a worker id has changed while its lock was waited for.
    RowChanged { worker_id: u16 },
    /// The worker id belongs to another role.
    OtherRolesWorkerId { worker_id: i32 },
    /// The worker id exceeds the registry's layout.
    NoSuchWorkerId { worker_id: i32, largest: u16 },
    /// `leaf_worker_set_aside` of a worker id that may have been used.
    WorkerIdNotFresh { worker_id: i32 },
    /// `leaf_worker_set_aside` until a time outside the range of ids.
    SetAsideOutOfRange { first: String, last: String },
    /// A NULL argument.
    Null { function: &'static str },
}

impl RegistryError {
    /// The error to raise.
    pub(super) fn report(self) -> ErrorReport {
        let not_ready = Code::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE;
        let invalid = Code::ERRCODE_INVALID_PARAMETER_VALUE;
        match self {
            Self::NoRegistryTable => error(
                Code::ERRCODE_UNDEFINED_TABLE,
                "the tables of the worker registry in schema leaf_id are missing",
            )
            .set_hint("Move them back to schema \"leaf_id\", or restore them from a dump."),
            Self::LeaseTerms => error(
                invalid,
                "a worker id cannot be leased on these terms",
            )
            .set_detail("Expected are a worker id that the layout has, a node name of at most 63 printable bytes in the encoding of the registry's database, a next_token that is neither 0 nor token, and times between 1970 and 9999."),
            Self::RowChanged { worker_id } => error(
                Code::ERRCODE_T_R_SERIALIZATION_FAILURE,
                format!("the lease of worker id {worker_id} has changed"),
            )
            .set_hint("leaf_id asks again by itself."),
            Self::OtherRolesWorkerId { worker_id } => error(
                Code::ERRCODE_INSUFFICIENT_PRIVILEGE,
                format!("permission denied for worker id {worker_id}"),
            )
            .set_detail("It is leased to a server of another role.")
            .set_hint("That role can do this, and the owner of extension leaf_id."),
            Self::NoSuchWorkerId { worker_id, largest } => error(
                invalid,
                format!("worker id is out of range: {worker_id}"),
            )
            .set_detail(format!("Worker ids are 0 to {largest}.")),
            Self::WorkerIdNotFresh { worker_id } => error(
                not_ready,
                format!("worker id {worker_id} may have been used before"),
            )
            .set_detail("It was leased once, is retired already, or is \"leaf_id.worker_id\" of this server.")
            .set_hint("Choose one that leaf_id.fleet does not show, and that no server was ever set to."),
            Self::SetAsideOutOfRange { first, last } => error(
                invalid,
                "cannot set a worker id aside until a time that no id can carry",
            )
            .set_detail(format!("Ids of this registry carry times from {first} to {last}.")),
            Self::Null { function } => error(
                Code::ERRCODE_NULL_VALUE_NOT_ALLOWED,
                format!("arguments of {function}() must not be null"),
            ),
        }
    }
}
