//! Columns of catalog rows, by the catalog cache.

use core::ffi::c_int;

use pgrx::pg_sys;

/// A catalog cache, as PostgreSQL's functions take it.
#[cfg(not(since_19))]
pub const fn cache_id(cache: pg_sys::SysCacheIdentifier::Type) -> c_int {
    cache.cast_signed()
}

/// A catalog cache, as PostgreSQL's functions take it.
#[cfg(since_19)]
pub const fn cache_id(cache: pg_sys::SysCacheIdentifier::Type) -> c_int {
    cache
}

/// Reads a column of the object with this oid. `None` if there is no such object, or the column is
/// null.
///
/// # Safety
/// In a transaction. The cache is keyed by one oid, and the column is one of its table. `read`
/// keeps no reference to the value, and fits its type.
pub(super) unsafe fn cached<T>(
    cache: pg_sys::SysCacheIdentifier::Type,
    object: pg_sys::Oid,
    column: u32,
    read: impl FnOnce(pg_sys::Datum) -> T,
) -> Option<T> {
    // SAFETY: guaranteed by the caller; the row is released after the column is read.
    unsafe {
        let cache = cache_id(cache);
        let row = pg_sys::SearchSysCache1(cache, object.into());
        if row.is_null() {
            return None;
        }
        let mut null = false;
        let column = i16::try_from(column).unwrap_or(0);
        let value = pg_sys::SysCacheGetAttr(cache, row, column, &raw mut null);
        let result = (!null).then(|| read(value));
        pg_sys::ReleaseSysCache(row);
        result
    }
}
