//! Names, and how they are shown.

use core::ffi::{CStr, c_char};

use leaf_id_core::message::shown;
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
        shown(self.as_c_str().to_bytes())
    }

    /// The name as a value.
    pub fn datum(&self) -> pg_sys::Datum {
        // SAFETY: both are as long as a name: what was just palloc'ed, and our array.
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
        // SAFETY: as the caller says; a name ends with a null within its length.
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
        // SAFETY: not null, and of the type that `type_oid` says, as pgrx promises.
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
