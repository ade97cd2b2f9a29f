//! Relations in the catalogs of the current database.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use leaf_id_core::message::shown;
use pgrx::pg_sys;

use super::cached::cache_id;
use super::roles::{caller_may_use_schema, owns};

static RELATION_CHANGED: AtomicBool = AtomicBool::new(true);
static WATCHED_RELATION: AtomicU32 = AtomicU32::new(0);

unsafe extern "C-unwind" fn relation_callback(_arg: pg_sys::Datum, relation: pg_sys::Oid) {
    // Called during any catalog access, so it only sets a flag and increments a counter.
    let relation = relation.to_u32();
    if relation == 0 || relation == WATCHED_RELATION.load(Ordering::Relaxed) {
        RELATION_CHANGED.store(true, Ordering::Relaxed);
        // The flag ends with the next look at the relation, which does not see each call site.
        super::roles::rights_changed();
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

/// Has every session that watches a relation look at it again, once the open transaction commits:
/// on standbys, too.
pub fn touch_relation(relation: u32) {
    // SAFETY: in a transaction. Accepts the oid of a relation that exists, as the caller has looked it
    // up in this command.
    unsafe { pg_sys::CacheInvalidateRelcacheByRelid(pg_sys::Oid::from(relation)) };
}

/// Locks a table, partitioned or not, or a sequence in ACCESS EXCLUSIVE mode until the end of the
/// transaction, within `lock_timeout`, with the privileges of LOCK TABLE; a sequence, as its owner. Does
/// nothing if there is none with this oid.
pub fn lock_relation(relation: u32) {
    let oid = pg_sys::Oid::from(relation);
    if caller_may_lock(oid) {
        // SAFETY: in a transaction; a lock of a relation that was dropped is harmless.
        unsafe { pg_sys::LockRelationOid(oid, pg_sys::AccessExclusiveLock.cast_signed()) };
        // They may have been revoked during the wait.
        caller_may_lock(oid);
    }
}

/// False if there is no such table or sequence; an error if the caller may not lock it.
fn caller_may_lock(oid: pg_sys::Oid) -> bool {
    let kinds = [
        pg_sys::RELKIND_RELATION,
        pg_sys::RELKIND_PARTITIONED_TABLE,
        pg_sys::RELKIND_SEQUENCE,
    ];
    let mode = pg_sys::ACL_UPDATE | pg_sys::ACL_DELETE | pg_sys::ACL_TRUNCATE;
    let denied = pg_sys::AclResult::ACLCHECK_NO_PRIV;
    // SAFETY: in a transaction; accepts any oid. The name is null if there is no such relation.
    unsafe {
        let name = pg_sys::get_rel_name(oid);
        // A char has a sign on some processors only.
        let [kind] = pg_sys::get_rel_relkind(oid).to_ne_bytes();
        if name.is_null() || !kinds.contains(&kind) {
            return false;
        }
        let schema = pg_sys::get_rel_namespace(oid);
        if !caller_may_use_schema(schema) {
            let schema = pg_sys::get_namespace_name(schema);
            pg_sys::aclcheck_error(denied, pg_sys::ObjectType::OBJECT_SCHEMA, schema);
        }
        let user = pg_sys::GetUserId();
        // UPDATE on a sequence lets call nextval(), which takes a weaker lock.
        if kind == pg_sys::RELKIND_SEQUENCE {
            if !owns(pg_sys::RelationRelationId, oid, user) {
                let denied = pg_sys::AclResult::ACLCHECK_NOT_OWNER;
                pg_sys::aclcheck_error(denied, pg_sys::ObjectType::OBJECT_SEQUENCE, name);
            }
            return true;
        }
        let result = pg_sys::pg_class_aclcheck(oid, user, pg_sys::AclMode::from(mode));
        if result != pg_sys::AclResult::ACLCHECK_OK {
            pg_sys::aclcheck_error(denied, pg_sys::ObjectType::OBJECT_TABLE, name);
        }
    }
    true
}

/// True if the relation exists in the current database.
pub fn relation_exists(oid: u32) -> bool {
    let cache = cache_id(pg_sys::SysCacheIdentifier::RELOID);
    let none = pg_sys::Datum::null();
    // SAFETY: in a transaction; the cache is keyed by one oid.
    unsafe { pg_sys::SearchSysCacheExists(cache, pg_sys::Datum::from(oid), none, none, none) }
}

/// Version of the extension installed in this database, by its scripts rather than the library;
/// `None` if it is not installed.
pub fn extension_version() -> Option<String> {
    // SAFETY: the row and the descriptor of pg_extension, whose version is a text.
    extension_row(|tuple, descriptor| unsafe {
        let number = pg_sys::Anum_pg_extension_extversion.cast_signed();
        let mut null = false;
        let text = pg_sys::heap_getattr(tuple, number, descriptor, &mut null);
        shown(CStr::from_ptr(pg_sys::text_to_cstring(text.cast_mut_ptr())).to_bytes())
    })
}

/// A function of the extension as a statement must name it: with its schema, unless that is in the
/// search path.
pub fn function_name(function: &str) -> String {
    // SAFETY: reads a global.
    let schema = if unsafe { pg_sys::IsTransactionState() } {
        extension_schema()
    } else {
        None
    };
    // Not all of a longer one: the name is right with a schema, too.
    let mut path = [pg_sys::InvalidOid; 32];
    // SAFETY: in a transaction, as there is a schema; the array is as long as is said. The name is
    // palloc'ed, and null if the schema was dropped concurrently.
    let name = schema.and_then(|schema| unsafe {
        // Not fetch_search_path(), which may create the temporary schema.
        pg_sys::fetch_search_path_array(path.as_mut_ptr(), 32);
        if path.contains(&schema) {
            return None;
        }
        let name = pg_sys::get_namespace_name(schema);
        (!name.is_null()).then(|| CStr::from_ptr(pg_sys::quote_identifier(name)))
    });
    match name {
        Some(name) => format!("{}.{function}", shown(name.to_bytes())),
        None => function.into(),
    }
}

/// Schema of the extension's functions; `None` if it is not installed.
pub fn extension_schema() -> Option<pg_sys::Oid> {
    // SAFETY: a row of pg_extension, whose fixed part has the schema.
    extension_row(|tuple, _| unsafe {
        (*pg_sys::GETSTRUCT(tuple).cast::<pg_sys::FormData_pg_extension>()).extnamespace
    })
}

/// Reads the extension's row of pg_extension, and its descriptor; `None` if it is not installed.
fn extension_row<T>(read: impl FnOnce(pg_sys::HeapTuple, pg_sys::TupleDesc) -> T) -> Option<T> {
    let lock = pg_sys::AccessShareLock.cast_signed();
    let mut key = pg_sys::ScanKeyData::default();
    // SAFETY: in a transaction; the index is on a name, and the key is null-terminated. The tuple
    // is valid until the scan ends.
    unsafe {
        let catalog = pg_sys::table_open(pg_sys::ExtensionRelationId, lock);
        pg_sys::ScanKeyInit(
            &raw mut key,
            i16::try_from(pg_sys::Anum_pg_extension_extname).unwrap_or(0),
            u16::try_from(pg_sys::BTEqualStrategyNumber).unwrap_or(3),
            pg_sys::F_NAMEEQ.into(),
            pg_sys::Datum::from(c"leaf_id".as_ptr()),
        );
        let index = pg_sys::Oid::from(pg_sys::ExtensionNameIndexId);
        let latest = core::ptr::null_mut();
        let scan = pg_sys::systable_beginscan(catalog, index, true, latest, 1, &raw mut key);
        let tuple = pg_sys::systable_getnext(scan);
        let result = (!tuple.is_null()).then(|| read(tuple, (*catalog).rd_att));
        pg_sys::systable_endscan(scan);
        pg_sys::table_close(catalog, lock);
        result
    }
}

/// Index of a table's primary key; `InvalidOid` if it has no valid one.
///
/// # Safety
/// The relation is open.
#[cfg(not(since_18))]
pub unsafe fn primary_key(table: pg_sys::Relation) -> pg_sys::Oid {
    // SAFETY: guaranteed by the caller.
    unsafe { pg_sys::RelationGetPrimaryKeyIndex(table) }
}

/// Index of a table's primary key; `InvalidOid` if it has no valid one.
///
/// # Safety
/// The relation is open.
#[cfg(since_18)]
pub unsafe fn primary_key(table: pg_sys::Relation) -> pg_sys::Oid {
    // SAFETY: guaranteed by the caller. A deferrable key would do for lookups, but there is none.
    unsafe { pg_sys::RelationGetPrimaryKeyIndex(table, true) }
}

/// Attribute at a position, from 0.
///
/// # Safety
/// The descriptor is valid and has an attribute at that position.
#[cfg(not(since_18))]
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
#[cfg(since_18)]
pub unsafe fn attribute(
    descriptor: pg_sys::TupleDesc,
    position: c_int,
) -> *const pg_sys::FormData_pg_attribute {
    // SAFETY: guaranteed by the caller.
    unsafe { pg_sys::TupleDescAttr(descriptor, position) }
}
