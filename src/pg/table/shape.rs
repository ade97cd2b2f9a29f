//! What a table of the extension must be like.

use core::ffi::CStr;
use core::sync::atomic::AtomicU64;

use pgrx::pg_sys;

/// The schema of the extension's tables.
pub const SCHEMA: &CStr = c"leaf_id";

/// Types of columns.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Type {
    /// `boolean`
    Boolean,
    /// `integer`
    Integer,
    /// `bigint`
    Bigint,
    /// `bytea`
    Bytes,
    /// `text`
    Text,
    /// `name`
    Name,
    /// `name[]`
    Names,
    /// `oid`
    Oid,
    /// `timestamp with time zone`
    Timestamp,
}

impl Type {
    /// Its oid.
    pub fn oid(self) -> pg_sys::Oid {
        match self {
            Self::Boolean => pg_sys::BOOLOID,
            Self::Integer => pg_sys::INT4OID,
            Self::Bigint => pg_sys::INT8OID,
            Self::Bytes => pg_sys::BYTEAOID,
            Self::Text => pg_sys::TEXTOID,
            Self::Name => pg_sys::NAMEOID,
            Self::Names => pg_sys::NAMEARRAYOID,
            Self::Oid => pg_sys::OIDOID,
            Self::Timestamp => pg_sys::TIMESTAMPTZOID,
        }
    }
}

/// A table as the extension's script makes it. Before it is written or read it is compared
/// with what there is: `CatalogTupleUpdate` crashes on an index over an expression, enters
/// wrong rows into a partial one, and looks at no constraint and no generated column; and a
/// value of another type is a wild pointer.
pub struct Shape {
    /// Its name, in [`SCHEMA`].
    pub name: &'static CStr,
    /// Its columns in order. Others may follow, which are then left as they are.
    pub columns: &'static [(&'static CStr, Type)],
    /// Its CHECK constraints. What is written here keeps them.
    pub checks: &'static [&'static CStr],
    /// No trigger of anybody else's may follow its rows: see [`Self::unfollowed`].
    pub(super) is_unfollowed: bool,
    /// The table that was found to be so, and after how many relcache invalidations.
    pub(super) checked: AtomicU64,
}

impl Shape {
    /// The primary key is the first column.
    pub const fn new(
        name: &'static CStr,
        columns: &'static [(&'static CStr, Type)],
        checks: &'static [&'static CStr],
    ) -> Self {
        Self {
            name,
            columns,
            checks,
            is_unfollowed: false,
            checked: AtomicU64::new(0),
        }
    }

    /// For a table that nothing remembers beside it. Its rows are written past triggers: a tool that
    /// copies the table, and follows its rows by a trigger, would put older ones in its place.
    pub const fn unfollowed(mut self) -> Self {
        self.is_unfollowed = true;
        self
    }
}

/// In what a table differs from its [`Shape`], as a sentence.
#[derive(Debug)]
pub struct Misshapen {
    /// The table.
    pub table: &'static CStr,
    /// In what.
    pub detail: String,
    /// The version of the extension in this database, if it is another than the library's: then
    /// nobody has altered the table.
    pub installed: Option<String>,
}

/// The oid of one of the extension's tables; `None` if there is none of this name.
pub fn find_table(shape: &Shape) -> Option<u32> {
    // SAFETY: in a transaction; names that end with null. In a schema that is not there is no table.
    let oid = unsafe {
        let schema = pg_sys::get_namespace_oid(SCHEMA.as_ptr(), true);
        pg_sys::get_relname_relid(shape.name.as_ptr(), schema)
    };
    (oid != pg_sys::InvalidOid).then(|| oid.to_u32())
}
