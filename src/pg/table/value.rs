//! Values of columns.

use pgrx::pg_sys;

use crate::pg::datum::text_datum;

/// A value of a column.
#[derive(Clone, Copy)]
pub enum Value<'a> {
    /// NULL
    Null,
    /// `boolean`
    Boolean(bool),
    /// `integer`
    Integer(i32),
    /// `bigint`
    Bigint(i64),
    /// `bytea`
    Bytes(&'a [u8]),
    /// `oid`
    Oid(u32),
    /// `timestamp with time zone`: microseconds since 2000.
    Timestamp(i64),
    /// `text`, in the encoding of the database.
    Text(&'a [u8]),
}

impl Value<'_> {
    /// The value as a datum; `None` for NULL.
    pub fn datum(&self) -> Option<pg_sys::Datum> {
        Some(match self {
            Self::Null => return None,
            Self::Boolean(value) => pg_sys::Datum::from(*value),
            Self::Integer(value) => pg_sys::Datum::from(*value),
            Self::Bigint(value) | Self::Timestamp(value) => pg_sys::Datum::from(*value),
            Self::Oid(value) => pg_sys::Datum::from(*value),
            // Both are bytes behind a length.
            Self::Text(bytes) | Self::Bytes(bytes) => text_datum(bytes),
        })
    }

    /// Function of `=` for a key of this type, and its collation.
    pub fn equality(&self) -> (u32, pg_sys::Oid) {
        match self {
            Self::Text(_) => (pg_sys::F_TEXTEQ, pg_sys::C_COLLATION_OID),
            Self::Boolean(_) => (pg_sys::F_BOOLEQ, pg_sys::InvalidOid),
            Self::Bigint(_) => (pg_sys::F_INT8EQ, pg_sys::InvalidOid),
            _ => (pg_sys::F_INT4EQ, pg_sys::InvalidOid),
        }
    }
}
