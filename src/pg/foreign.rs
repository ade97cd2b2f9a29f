//! Foreign servers by their names.

use pgrx::pg_sys;

use super::name::Name;

/// Why a foreign server may not be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ServerProblem {
    /// There is none of this name.
    Missing,
    /// The session's user has no USAGE on it.
    Forbidden,
}

/// The oid of a foreign server that the session's user may use, by its name.
///
/// # Errors
/// See [`ServerProblem`].
pub fn foreign_server(name: &Name) -> Result<u32, ServerProblem> {
    // SAFETY: in a transaction; a string that ends with null, and a server that was just found.
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

/// What a role may do with a foreign server: whether it has USAGE.
///
/// # Safety
/// A transaction is open.
#[cfg(feature = "pg15")]
pub unsafe fn usage(server: pg_sys::Oid, role: pg_sys::Oid) -> pg_sys::AclResult::Type {
    // SAFETY: as the caller says. What does not exist is an error, raised in the ordinary way.
    unsafe { pg_sys::pg_foreign_server_aclcheck(server, role, pg_sys::ACL_USAGE) }
}

/// What a role may do with a foreign server: whether it has USAGE.
///
/// # Safety
/// A transaction is open.
#[cfg(not(feature = "pg15"))]
pub unsafe fn usage(server: pg_sys::Oid, role: pg_sys::Oid) -> pg_sys::AclResult::Type {
    let catalog = pg_sys::ForeignServerRelationId;
    // SAFETY: as the caller says. What does not exist is an error, raised in the ordinary way.
    unsafe { pg_sys::object_aclcheck(catalog, server, role, pg_sys::ACL_USAGE.into()) }
}
