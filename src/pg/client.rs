//! The caller.

use core::ffi::CStr;

use pgrx::pg_sys;

use super::roles::owns;

/// The caller of a function: the role whose privileges count, and its address.
pub struct Client {
    /// Name of the effective user.
    pub role: Vec<u8>,
    /// The role owns the extension or is a superuser.
    pub owns_extension: bool,
    /// Network address; `None` for a Unix socket or a background worker.
    pub address: Option<Vec<u8>>,
}

/// The client of this session.
pub fn client() -> Client {
    // SAFETY: in a transaction. The user exists, so its name is a palloc'ed string, which is
    // copied; `owns` gets an existing extension and an existing role.
    unsafe {
        let role = pg_sys::GetUserId();
        let name = pg_sys::GetUserNameFromId(role, false);
        let extension = pg_sys::get_extension_oid(c"leaf_id".as_ptr(), true);
        Client {
            role: CStr::from_ptr(name).to_bytes().to_vec(),
            owns_extension: extension != pg_sys::InvalidOid
                && owns(pg_sys::ExtensionRelationId, extension, role),
            address: address(),
        }
    }
}

fn address() -> Option<Vec<u8>> {
    // SAFETY: inet_client_addr has no arguments and returns an inet or NULL; network_host takes an
    // inet and returns a text, which is copied.
    unsafe {
        let address = pgrx::direct_function_call_as_datum(pg_sys::inet_client_addr, &[])?;
        let host = pgrx::direct_function_call_as_datum(pg_sys::network_host, &[Some(address)])?;
        let host = pg_sys::pg_detoast_datum_packed(host.cast_mut_ptr());
        Some(pgrx::varlena_to_byte_slice(host).to_vec())
    }
}
