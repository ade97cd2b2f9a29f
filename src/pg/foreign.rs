//! Foreign servers by name.

use pgrx::pg_sys;

use super::name::Name;

/// Reason why a foreign server cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerProblem {
    /// It does not exist.
    Missing,
    /// The current user lacks USAGE.
    Forbidden,
}

/// Oid of a foreign server that the current user may use.
///
/// # Errors
/// See [`ServerProblem`].
pub fn foreign_server(name: &Name) -> Result<u32, ServerProblem> {
    // SAFETY: in a transaction; a null-terminated string, and a server that was just found.
    unsafe {
        let oid = pg_sys::get_foreign_server_oid(name.as_c_str().as_ptr(), true);
        if oid == pg_sys::InvalidOid {
            return Err(ServerProblem::Missing);
        }
        if usage(oid, pg_sys::GetUserId()) != pg_sys::AclResult::ACLCHECK_OK {
            return Err(ServerProblem::Forbidden);
        }
        Ok(oid.to_u32())
    }
}

/// Checks a role's USAGE privilege on a foreign server.
///
/// # Safety
/// A transaction is open.
#[cfg(feature = "pg15")]
pub unsafe fn usage(server: pg_sys::Oid, role: pg_sys::Oid) -> pg_sys::AclResult::Type {
    // SAFETY: guaranteed by the caller. A missing object raises an ordinary error.
    unsafe { pg_sys::pg_foreign_server_aclcheck(server, role, pg_sys::ACL_USAGE) }
}

/// Checks a role's USAGE privilege on a foreign server.
///
/// # Safety
/// A transaction is open.
#[cfg(not(feature = "pg15"))]
pub unsafe fn usage(server: pg_sys::Oid, role: pg_sys::Oid) -> pg_sys::AclResult::Type {
    let catalog = pg_sys::ForeignServerRelationId;
    // SAFETY: guaranteed by the caller. A missing object raises an ordinary error.
    unsafe { pg_sys::object_aclcheck(catalog, server, role, pg_sys::ACL_USAGE.into()) }
}
