//! Foreign servers by name.

use pgrx::pg_sys;

use super::name::Name;
use super::roles::owns;

/// Reason why a foreign server cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerProblem {
    /// It does not exist.
    Missing,
    /// The current user does not own it.
    NotOwner,
}

/// Checks that a foreign server exists and is the current user's: its owner's user mapping is used.
///
/// # Errors
/// See [`ServerProblem`].
pub fn check_foreign_server(name: &Name) -> Result<(), ServerProblem> {
    // SAFETY: in a transaction; a null-terminated string, and a server that was just found.
    unsafe {
        let oid = pg_sys::get_foreign_server_oid(name.as_c_str().as_ptr(), true);
        if oid == pg_sys::InvalidOid {
            return Err(ServerProblem::Missing);
        }
        if owns(pg_sys::ForeignServerRelationId, oid, pg_sys::GetUserId()) {
            Ok(())
        } else {
            Err(ServerProblem::NotOwner)
        }
    }
}
