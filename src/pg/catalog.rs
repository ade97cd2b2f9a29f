//! Relations in the catalogs of the current database.

use core::ffi::{CStr, c_int};
use core::ops::ControlFlow;
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use leaf_id_core::message::shown;
use pgrx::pg_sys;

use super::datum::oid_value;

static RELATION_CHANGED: AtomicBool = AtomicBool::new(true);
static WATCHED_RELATION: AtomicU32 = AtomicU32::new(0);

unsafe extern "C-unwind" fn relation_callback(_arg: pg_sys::Datum, relation: pg_sys::Oid) {
    // Called during any catalog access, so it only sets a flag.
    let relation = relation.to_u32();
    if relation == 0 || relation == WATCHED_RELATION.load(Ordering::Relaxed) {
        RELATION_CHANGED.store(true, Ordering::Relaxed);
    }
}

/// Watches a relation in this process, replacing the one watched before.
pub fn watch_relation(relation: u32) {
    static REGISTERED: AtomicBool = AtomicBool::new(false);
    WATCHED_RELATION.store(relation, Ordering::Relaxed);
    RELATION_CHANGED.store(false, Ordering::Relaxed);
    if !REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: the callback only touches an atomic, and the library is never unloaded.
        unsafe {
            pg_sys::CacheRegisterRelcacheCallback(Some(relation_callback), pg_sys::Datum::null());
        }
    }
}

/// True if the watched relation was altered or dropped, or if none is watched.
#[inline]
pub fn relation_changed() -> bool {
    RELATION_CHANGED.load(Ordering::Relaxed)
}

/// True if the relation exists in the current database.
pub fn relation_exists(oid: u32) -> bool {
    let cache = pg_sys::SysCacheIdentifier::RELOID.cast_signed();
    let none = pg_sys::Datum::null();
    // SAFETY: in a transaction; the cache is keyed by one oid.
    unsafe { pg_sys::SearchSysCacheExists(cache, pg_sys::Datum::from(oid), none, none, none) }
}

/// Owner of a relation; `None` if it was dropped.
pub fn relation_owner(relation: u32) -> Option<u32> {
    // SAFETY: in a transaction; the tuple is a pg_class row, whose fixed part is read before the
    // tuple is released.
    unsafe {
        let class = pg_sys::SearchSysCache1(
            pg_sys::SysCacheIdentifier::RELOID.cast_signed(),
            pg_sys::Datum::from(relation),
        );
        if class.is_null() {
            return None;
        }
        let form = pg_sys::GETSTRUCT(class).cast::<pg_sys::FormData_pg_class>();
        let owner = (*form).relowner;
        pg_sys::ReleaseSysCache(class);
        Some(owner.to_u32())
    }
}

/// A search key: the number of a catalog's column of type oid, and its value.
pub(super) fn key(column: u32, value: pg_sys::Oid) -> pg_sys::ScanKeyData {
    search_key(column, pg_sys::F_OIDEQ, value.into())
}

fn search_key(column: u32, equal: u32, value: pg_sys::Datum) -> pg_sys::ScanKeyData {
    let mut key = pg_sys::ScanKeyData::default();
    // SAFETY: fills the key.
    unsafe {
        pg_sys::ScanKeyInit(
            &raw mut key,
            i16::try_from(column).unwrap_or(0),
            u16::try_from(pg_sys::BTEqualStrategyNumber).unwrap_or(3),
            equal.into(),
            value,
        );
    }
    key
}

/// A row of a catalog that is being visited.
pub(super) struct CatalogRow {
    row: pg_sys::HeapTuple,
    shape: pg_sys::TupleDesc,
}

impl CatalogRow {
    /// The value of a column; meaningless if it is null. It is valid until the visit ends.
    pub(super) fn column(&self, number: c_int) -> pg_sys::Datum {
        let mut null = false;
        // SAFETY: a row and its shape, both alive during the visit.
        unsafe { pg_sys::heap_getattr(self.row, number, self.shape, &mut null) }
    }
}

/// Visits the rows of a catalog with these keys, until `visit` breaks off with a result. Without an
/// index and keys, all rows.
///
/// # Safety
/// In a transaction. The index belongs to the catalog and begins with the columns of the keys, of
/// their types. `visit` asks for columns of the catalog.
pub(super) unsafe fn visit_rows<T>(
    catalog: pg_sys::Oid,
    index: pg_sys::Oid,
    keys: &[pg_sys::ScanKeyData],
    mut visit: impl FnMut(CatalogRow) -> ControlFlow<T>,
) -> Option<T> {
    let lock = pg_sys::AccessShareLock.cast_signed();
    let mut keys = keys.to_vec();
    let count = c_int::try_from(keys.len()).unwrap_or(0);
    let latest = core::ptr::null_mut();
    // SAFETY: guaranteed by the caller; the keys outlive the scan.
    unsafe {
        let catalog = pg_sys::table_open(catalog, lock);
        let keys = keys.as_mut_ptr();
        let scan = pg_sys::systable_beginscan(
            catalog,
            index,
            index != pg_sys::InvalidOid,
            latest,
            count,
            keys,
        );
        let mut result = None;
        while result.is_none() {
            let row = pg_sys::systable_getnext(scan);
            if row.is_null() {
                break;
            }
            let shape = (*catalog).rd_att;
            result = visit(CatalogRow { row, shape }).break_value();
        }
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(catalog, lock);
        result
    }
}

/// Reads the row of the extension in this database; `None` if it is not installed.
fn extension<T>(read: impl Fn(CatalogRow) -> T) -> Option<T> {
    let name = c"leaf_id".as_ptr();
    let name = search_key(
        pg_sys::Anum_pg_extension_extname,
        pg_sys::F_NAMEEQ,
        name.into(),
    );
    let index = pg_sys::Oid::from(pg_sys::ExtensionNameIndexId);
    // SAFETY: in a transaction; the index is on the name, and the key is null-terminated.
    unsafe {
        visit_rows(pg_sys::ExtensionRelationId, index, &[name], |row| {
            ControlFlow::Break(read(row))
        })
    }
}

/// Version of the extension installed in this database, by its scripts rather than the library;
/// `None` if it is not installed.
pub fn extension_version() -> Option<String> {
    extension(|row| {
        let version = row.column(pg_sys::Anum_pg_extension_extversion.cast_signed());
        // SAFETY: a text, which is never null, and is copied.
        unsafe { shown(CStr::from_ptr(pg_sys::text_to_cstring(version.cast_mut_ptr())).to_bytes()) }
    })
}

/// Schema of the functions that users call; `None` if the extension is not installed.
pub fn extension_schema() -> Option<u32> {
    extension(|row| oid_value(row.column(pg_sys::Anum_pg_extension_extnamespace.cast_signed())))
}

/// Index of a table's primary key; `InvalidOid` if it has no valid one.
///
/// # Safety
/// The relation is open.
#[cfg(not(feature = "pg18"))]
pub unsafe fn primary_key(table: pg_sys::Relation) -> pg_sys::Oid {
    // SAFETY: guaranteed by the caller.
    unsafe { pg_sys::RelationGetPrimaryKeyIndex(table) }
}

/// Index of a table's primary key; `InvalidOid` if it has no valid one.
///
/// # Safety
/// The relation is open.
#[cfg(feature = "pg18")]
pub unsafe fn primary_key(table: pg_sys::Relation) -> pg_sys::Oid {
    // SAFETY: guaranteed by the caller. A deferrable key would do for lookups, but there is none.
    unsafe { pg_sys::RelationGetPrimaryKeyIndex(table, true) }
}

/// Attribute at a position, from 0.
///
/// # Safety
/// The descriptor is valid and has an attribute at that position.
#[cfg(not(feature = "pg18"))]
pub unsafe fn attribute(
    descriptor: pg_sys::TupleDesc,
    position: c_int,
) -> *const pg_sys::FormData_pg_attribute {
    // SAFETY: guaranteed by the caller. The attributes follow the descriptor; natts is their
    // number.
    unsafe {
        let columns = usize::try_from((*descriptor).natts).unwrap_or(0);
        let position = usize::try_from(position).unwrap_or(0);
        (*descriptor).attrs.as_slice(columns).as_ptr().add(position)
    }
}

/// Attribute at a position, from 0.
///
/// # Safety
/// The descriptor is valid and has an attribute at that position.
#[cfg(feature = "pg18")]
pub unsafe fn attribute(
    descriptor: pg_sys::TupleDesc,
    position: c_int,
) -> *const pg_sys::FormData_pg_attribute {
    // SAFETY: guaranteed by the caller.
    unsafe { pg_sys::TupleDescAttr(descriptor, position) }
}
