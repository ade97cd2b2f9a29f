//! Results of SQL functions.

use core::ffi::{c_char, c_int};

use pgrx::pg_sys;
use pgrx::pgrx_sql_entity_graph::metadata;

use super::name::Name;

/// A result returned without conversion: a row of OUT arguments, a trigger's tuple, a planner node.
pub struct RawDatum(pub(super) pg_sys::Datum);

impl RawDatum {
    /// A null pointer. Not SQL NULL.
    pub fn none() -> Self {
        Self(pg_sys::Datum::null())
    }

    /// A text of `len` bytes in the encoding of the database, written in place by `write`.
    pub fn text(len: usize, write: impl FnOnce(&mut [u8])) -> Self {
        let size = len.saturating_add(pg_sys::VARHDRSZ);
        // SAFETY: as many bytes as the header says, zeroed before they are read. palloc raises an
        // error if it is too long for a text.
        unsafe {
            let text = pg_sys::palloc0(size).cast::<pg_sys::varlena>();
            pgrx::set_varsize_4b(text, i32::try_from(size).unwrap_or(0));
            write(core::slice::from_raw_parts_mut(
                pgrx::vardata_4b(text).cast_mut().cast(),
                len,
            ));
            Self(pg_sys::Datum::from(text))
        }
    }

    fn datum(self) -> pg_sys::Datum {
        self.0
    }
}

impl From<pg_sys::Datum> for RawDatum {
    fn from(datum: pg_sys::Datum) -> Self {
        Self(datum)
    }
}

/// Row type of a call to a function with OUT arguments. Lives as long as the call site; creating it
/// costs many times as much as forming a row.
#[derive(Clone, Copy)]
pub struct RowType(pg_sys::TupleDesc);

impl RowType {
    /// Row type of a call.
    ///
    /// # Safety
    /// `fcinfo` is the argument of an SQL function with OUT arguments, called by PostgreSQL.
    pub unsafe fn of(fcinfo: pg_sys::FunctionCallInfo) -> Self {
        let mut descriptor = core::ptr::null_mut();
        // SAFETY: guaranteed by the caller, so flinfo is set. An error also resets the memory
        // context.
        unsafe {
            let before = pg_sys::MemoryContextSwitchTo((*(*fcinfo).flinfo).fn_mcxt);
            pg_sys::get_call_result_type(fcinfo, core::ptr::null_mut(), &raw mut descriptor);
            let blessed = pg_sys::BlessTupleDesc(descriptor);
            pg_sys::MemoryContextSwitchTo(before);
            Self(blessed)
        }
    }

    /// Raises an error unless the row type has this many columns: after an update, a server that was
    /// not restarted has an older library than its functions.
    pub fn require_columns(self, columns: usize) {
        // SAFETY: the descriptor lives as long as the call site.
        let len = unsafe { (*self.0).natts };
        if usize::try_from(len) != Ok(columns) {
            pgrx::error!("leaf_id: the library is of another version than this function");
        }
    }

    /// Forms a row; `None` is NULL. Raises an error unless there is one entry per OUT argument.
    ///
    /// # Safety
    /// Each entry is of its argument's type, and the call site of this row type is alive.
    pub unsafe fn form<const N: usize>(self, columns: [Option<pg_sys::Datum>; N]) -> RawDatum {
        self.require_columns(N);
        let mut nulls = columns.map(|column| column.is_none());
        let mut values = columns.map(|column| column.unwrap_or(pg_sys::Datum::null()));
        // SAFETY: guaranteed by the caller; there are as many nulls as values.
        unsafe {
            let tuple = pg_sys::heap_form_tuple(self.0, values.as_mut_ptr(), nulls.as_mut_ptr());
            RawDatum(pg_sys::HeapTupleHeaderGetDatum((*tuple).t_data))
        }
    }
}

/// For types used only in functions whose SQL is written by hand.
macro_rules! declared_in_sql {
    ($type:ident, $sql:literal) => {
        // SAFETY: only returns the datum.
        unsafe impl pgrx::callconv::BoxRet for $type {
            unsafe fn box_into<'fcx>(
                self,
                fcinfo: &mut pgrx::callconv::FcInfo<'fcx>,
            ) -> pgrx::datum::Datum<'fcx> {
                // SAFETY: of the type declared in the function's SQL, which is written by hand.
                unsafe { fcinfo.return_raw_datum(self.datum()) }
            }
        }

        // SAFETY: no SQL is generated from this.
        unsafe impl metadata::SqlTranslatable for $type {
            const TYPE_IDENT: &'static str = pgrx::pgrx_resolved_type!($type);
            const TYPE_ORIGIN: metadata::TypeOrigin = metadata::TypeOrigin::External;
            const ARGUMENT_SQL: Result<metadata::SqlMappingRef, metadata::ArgumentError> =
                Ok(metadata::SqlMappingRef::literal($sql));
            const RETURN_SQL: Result<metadata::ReturnsRef, metadata::ReturnsError> = Ok(
                metadata::ReturnsRef::One(metadata::SqlMappingRef::literal($sql)),
            );
        }
    };
}

/// A text in the current memory context.
pub fn text_datum(bytes: &[u8]) -> pg_sys::Datum {
    let len = c_int::try_from(bytes.len()).unwrap_or(0);
    // SAFETY: copies exactly the given bytes.
    pg_sys::Datum::from(unsafe { pg_sys::cstring_to_text_with_len(bytes.as_ptr().cast(), len) })
}

/// A `text[]` in the current memory context.
pub fn texts_datum<'a>(texts: impl Iterator<Item = &'a [u8]>) -> pg_sys::Datum {
    let mut elements: Vec<_> = texts.map(text_datum).collect();
    let count = c_int::try_from(elements.len()).unwrap_or(0);
    // SAFETY: the elements are copied; length and alignment are those of type text.
    let array = unsafe {
        let (length, align) = (-1, b'i' as c_char);
        pg_sys::construct_array(
            elements.as_mut_ptr(),
            count,
            pg_sys::TEXTOID,
            length,
            false,
            align,
        )
    };
    pg_sys::Datum::from(array)
}

/// Converts a datum to an oid.
pub fn oid_value(datum: pg_sys::Datum) -> u32 {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "an oid is the datum's low half"
    )]
    let oid = datum.value() as u32;
    oid
}

/// A text as bytes in the encoding of the database; tags are not converted.
pub struct Text(Vec<u8>);

impl Text {
    /// Copies the bytes.
    pub fn new(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn datum(&self) -> pg_sys::Datum {
        text_datum(&self.0)
    }
}

impl pgrx::IntoDatum for Text {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        Some(self.datum())
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::TEXTOID
    }
}

declared_in_sql!(Text, "text");
declared_in_sql!(Name, "name");
declared_in_sql!(RawDatum, "record");
