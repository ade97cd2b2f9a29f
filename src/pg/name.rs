//! Foreign servers by their names.

use core::ffi::{CStr, c_char};

use pgrx::pg_sys;

/// How many bytes a name takes, with the null that ends it.
const LENGTH: usize = pg_sys::NAMEDATALEN as usize;

/// A name as PostgreSQL stores it, in the encoding of its database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name([u8; LENGTH]);

impl Name {
    /// The name, for PostgreSQL.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }

    /// For messages. What is no UTF-8 becomes a question mark: other encodings have that.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(self.as_c_str().to_bytes())
            .replace(char::REPLACEMENT_CHARACTER, "?")
    }

    pub(super) fn datum(&self) -> pg_sys::Datum {
        // SAFETY: palloc'ed in the context of the call, as long as a name.
        unsafe {
            let copy = pg_sys::palloc0(LENGTH);
            core::ptr::copy_nonoverlapping(self.0.as_ptr(), copy.cast(), LENGTH);
            pg_sys::Datum::from(copy)
        }
    }

    /// That of a column or a result.
    ///
    /// # Safety
    /// The datum is a name, and not null.
    pub unsafe fn from_value(datum: pg_sys::Datum) -> Self {
        let mut name = Self([0; LENGTH]);
        // SAFETY: a name ends with a null within its length.
        let bytes = unsafe { CStr::from_ptr(datum.cast_mut_ptr::<c_char>()) }.to_bytes();
        for (to, from) in name.0.iter_mut().take(LENGTH - 1).zip(bytes) {
            *to = *from;
        }
        name
    }
}

impl pgrx::FromDatum for Name {
    unsafe fn from_polymorphic_datum(
        datum: pg_sys::Datum,
        is_null: bool,
        _type: pg_sys::Oid,
    ) -> Option<Self> {
        // SAFETY: not null, and of the type that `type_oid` says.
        (!is_null).then(|| unsafe { Self::from_value(datum) })
    }
}

impl pgrx::IntoDatum for Name {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        Some(self.datum())
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::NAMEOID
    }
}

/// Why a foreign server may not be used.
#[derive(Clone, Copy, PartialEq, Eq)]
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
    // SAFETY: syscache look-ups inside a transaction.
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

#[cfg(feature = "pg15")]
pub unsafe fn usage(server: pg_sys::Oid, role: pg_sys::Oid) -> pg_sys::AclResult::Type {
    // SAFETY: a server and a role that exist, inside a transaction.
    unsafe { pg_sys::pg_foreign_server_aclcheck(server, role, pg_sys::ACL_USAGE) }
}

#[cfg(not(feature = "pg15"))]
pub unsafe fn usage(server: pg_sys::Oid, role: pg_sys::Oid) -> pg_sys::AclResult::Type {
    let catalog = pg_sys::ForeignServerRelationId;
    // SAFETY: a server and a role that exist, inside a transaction.
    unsafe { pg_sys::object_aclcheck(catalog, server, role, pg_sys::ACL_USAGE.into()) }
}
