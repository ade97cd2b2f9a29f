//! Names and their display form.

use core::ffi::{CStr, c_char};

use leaf_id_core::message::shown;
use pgrx::pg_sys;

/// Size of a name in bytes, including the terminating null.
const LENGTH: usize = pg_sys::NAMEDATALEN as usize;

/// True if these bytes are text in the encoding of the database.
pub fn is_text(bytes: &[u8]) -> bool {
    let len = i32::try_from(bytes.len()).unwrap_or(i32::MAX);
    // SAFETY: as many bytes; raises no error.
    unsafe { pg_sys::pg_verifymbstr(bytes.as_ptr().cast(), len, true) }
}

/// A name as stored by PostgreSQL, in the encoding of its database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Name([u8; LENGTH]);

impl Name {
    /// The name as a C string.
    pub fn as_c_str(&self) -> &CStr {
        CStr::from_bytes_until_nul(&self.0).unwrap_or_default()
    }

    /// The name for messages. Invalid UTF-8 becomes a question mark, which any encoding has.
    pub fn text(&self) -> String {
        shown(self.as_c_str().to_bytes())
    }

    /// The name as a datum, in the current memory context.
    pub fn datum(&self) -> pg_sys::Datum {
        // SAFETY: both have the size of a name: the palloc'ed copy and the array.
        unsafe {
            let copy = pg_sys::palloc0(LENGTH);
            core::ptr::copy_nonoverlapping(self.0.as_ptr(), copy.cast(), LENGTH);
            pg_sys::Datum::from(copy)
        }
    }

    /// The name in a column or a result.
    ///
    /// # Safety
    /// The datum is a name, and not null.
    pub unsafe fn from_value(datum: pg_sys::Datum) -> Self {
        let mut name = Self([0; LENGTH]);
        // SAFETY: guaranteed by the caller; a name is null-terminated within its size.
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
        // SAFETY: not null, and of the type `type_oid`, guaranteed by pgrx.
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
