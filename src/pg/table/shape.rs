//! Expected definitions of the extension's tables.

use core::ffi::CStr;
use core::sync::atomic::AtomicU64;

use pgrx::pg_sys;

/// Schema of the extension's tables.
pub const SCHEMA: &CStr = c"leaf_id";
/// Schema of what only leaf_id itself calls.
pub const INTERNAL_SCHEMA: &CStr = c"leaf_id_internal";

/// Column types.
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
    /// Oid of the type.
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

/// Definition of a table by the extension's script. The actual table is compared with it before any
/// access, since `CatalogTupleUpdate` crashes on an index over an expression, inserts wrong entries
/// into a partial index, and ignores constraints and generated columns; and a value of another type
/// would be a wild pointer.
pub struct Shape {
    /// Table name, in [`SCHEMA`].
    pub name: &'static CStr,
    /// Columns in order. More may follow; they are left unchanged.
    pub columns: &'static [(&'static CStr, Type)],
    /// CHECK constraints, which the writes here satisfy.
    pub checks: &'static [&'static CStr],
    /// See [`Self::without_row_triggers`].
    pub(super) without_row_triggers: bool,
    /// The table last verified, with the number of relcache invalidations then.
    pub(super) checked: AtomicU64,
}

impl Shape {
    /// A shape. The primary key is the first column.
    pub const fn new(
        name: &'static CStr,
        columns: &'static [(&'static CStr, Type)],
        checks: &'static [&'static CStr],
    ) -> Self {
        Self {
            name,
            columns,
            checks,
            without_row_triggers: false,
            checked: AtomicU64::new(0),
        }
    }

    /// Refuses the table while it has row triggers other than the extension's. Writes here fire none,
    /// so a tool that copies a table and tracks changes by trigger would replace it with stale rows.
    pub const fn without_row_triggers(mut self) -> Self {
        self.without_row_triggers = true;
        self
    }
}

/// Difference between a table and its [`Shape`].
#[derive(Debug)]
pub struct Misshapen {
    /// Name of the table.
    pub table: &'static CStr,
    /// The difference, as a sentence.
    pub detail: String,
    /// Version of the extension in this database, if it differs from the library's: then the table
    /// was not altered.
    pub installed: Option<String>,
}

/// Oid of one of the extension's tables; `None` if it does not exist.
pub fn find_table(shape: &Shape) -> Option<u32> {
    // SAFETY: in a transaction; null-terminated names. A missing schema has no tables.
    let oid = unsafe {
        let schema = pg_sys::get_namespace_oid(SCHEMA.as_ptr(), true);
        pg_sys::get_relname_relid(shape.name.as_ptr(), schema)
    };
    (oid != pg_sys::InvalidOid).then(|| oid.to_u32())
}

/// Keeps the extension from being dropped until the end of the transaction, by a lock on this table or
/// view of it, for which it waits within `lock_timeout`. False if there is none. Without it, names
/// in schema `leaf_id` may come to mean what another role has put there.
pub fn hold(relation: &CStr) -> bool {
    // SAFETY: in a transaction; null-terminated names. Whatever the names meant before, the lock is
    // that of an oid, and whether that is the extension's is looked up once it is locked.
    unsafe {
        let schema = pg_sys::get_namespace_oid(SCHEMA.as_ptr(), true);
        let oid = pg_sys::get_relname_relid(relation.as_ptr(), schema);
        if oid == pg_sys::InvalidOid {
            return false;
        }
        pg_sys::LockRelationOid(oid, pg_sys::AccessShareLock.cast_signed());
        let extension = pg_sys::get_extension_oid(c"leaf_id".as_ptr(), true);
        let is_member = |class, object| pg_sys::getExtensionOfObject(class, object) == extension;
        extension != pg_sys::InvalidOid
            && is_member(pg_sys::RelationRelationId, oid)
            && is_member(pg_sys::NamespaceRelationId, schema)
    }
}
