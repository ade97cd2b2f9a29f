//! Roles, privileges and memberships of the caller.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pgrx::pg_sys;

use super::cached::{cache_id, cached};
use super::name::Name;
use super::table::shape::SCHEMA;

unsafe extern "C" {
    // Declared here to avoid pgrx's guard: called for every id of a restricted tag.
    #[link_name = "GetUserId"]
    fn raw_user() -> pg_sys::Oid;
}

/// The effective user, and the number of invalidations of roles, memberships and `leaf_alloc` that
/// this process has received. A cached privilege check is valid while both are the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    user: u32,
    changes: u32,
}

impl Caller {
    /// The current caller, before its rights are checked.
    pub fn to_check() -> Self {
        watch();
        Self::now()
    }

    /// The current caller, to be compared with one that was checked. Cannot fail or panic. SET ROLE
    /// and SECURITY DEFINER functions change it.
    #[inline]
    pub fn now() -> Self {
        Self {
            // SAFETY: no arguments; reads a global and cannot raise an error, so no guard is
            // needed.
            user: unsafe { raw_user() }.to_u32(),
            changes: CHANGES.load(Ordering::Relaxed),
        }
    }
}

static CHANGES: AtomicU32 = AtomicU32::new(0);

unsafe extern "C-unwind" fn changed(_arg: pg_sys::Datum, _cache: c_int, _hash: u32) {
    rights_changed();
}

/// Ends all cached privilege checks. Called during any catalog access, so it only increments a
/// counter.
pub fn rights_changed() {
    CHANGES.fetch_add(1, Ordering::Relaxed);
}

fn watch() {
    static WATCHING: AtomicBool = AtomicBool::new(false);
    if WATCHING.load(Ordering::Relaxed) || WATCHING.swap(true, Ordering::Relaxed) {
        return;
    }
    // The caches that PostgreSQL's membership cache depends on, and the schema's grants.
    use pg_sys::SysCacheIdentifier::{AUTHMEMROLEMEM, AUTHOID, DATABASEOID, NAMESPACEOID};
    for cache in [AUTHMEMROLEMEM, AUTHOID, DATABASEOID, NAMESPACEOID] {
        // SAFETY: the callback only touches an atomic, and the library is never unloaded.
        unsafe {
            pg_sys::CacheRegisterSyscacheCallback(
                cache_id(cache),
                Some(changed),
                pg_sys::Datum::null(),
            );
        }
    }
}

/// True if the caller is a superuser, one of these roles, or a member that inherits from one. A
/// role counts only if it was granted a privilege on the extension's schema or on `table`, the one
/// with the names, directly: then PostgreSQL refuses to drop it while it is named in a row, and a
/// later role of the same name does not get its rights.
pub fn caller_is_one_of(names: &[Name], table: u32) -> bool {
    use pg_sys::SysCacheIdentifier::{NAMESPACEOID, RELOID};
    use pg_sys::{Anum_pg_class_relacl, Anum_pg_namespace_nspacl};
    // SAFETY: in a transaction; null-terminated names, and roles by oid; caches keyed by one oid,
    // with these columns.
    unsafe {
        let user = raw_user();
        if pg_sys::superuser_arg(user) {
            return true;
        }
        let schema = pg_sys::get_namespace_oid(SCHEMA.as_ptr(), true);
        let mut grantees = grantees_of(NAMESPACEOID, schema, Anum_pg_namespace_nspacl);
        grantees.extend(grantees_of(RELOID, table.into(), Anum_pg_class_relacl));
        names.iter().any(|name| {
            let role = pg_sys::get_role_oid(name.as_c_str().as_ptr(), true);
            role != pg_sys::InvalidOid
                && grantees.contains(&role)
                && pg_sys::has_privs_of_role(user, role)
        })
    }
}

/// True if the caller has the privileges of pg_monitor.
pub fn caller_is_monitor() -> bool {
    // SAFETY: in a transaction; accepts any two oids.
    unsafe { pg_sys::has_privs_of_role(raw_user(), pg_sys::Oid::from(pg_sys::ROLE_PG_MONITOR)) }
}

/// A privilege on a table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Privilege {
    /// SELECT.
    Select,
    /// INSERT.
    Insert,
    /// UPDATE.
    Update,
    /// DELETE.
    Delete,
}

/// True if the caller has a privilege on a table; to insert or update, on any of its columns.
pub fn caller_has(table: u32, privilege: Privilege) -> bool {
    let (mode, on_columns) = match privilege {
        Privilege::Select => (pg_sys::ACL_SELECT, false),
        Privilege::Insert => (pg_sys::ACL_INSERT, true),
        Privilege::Update => (pg_sys::ACL_UPDATE, true),
        Privilege::Delete => (pg_sys::ACL_DELETE, false),
    };
    let (table, mode) = (pg_sys::Oid::from(table), pg_sys::AclMode::from(mode));
    let any = pg_sys::AclMaskHow::ACLMASK_ANY;
    let ok = pg_sys::AclResult::ACLCHECK_OK;
    // SAFETY: in a transaction; an existing table.
    unsafe {
        pg_sys::pg_class_aclcheck(table, raw_user(), mode) == ok
            || on_columns && pg_sys::pg_attribute_aclcheck_all(table, raw_user(), mode, any) == ok
    }
}

/// True if the caller may update all columns of a table.
pub fn caller_may_update(table: u32) -> bool {
    // SAFETY: in a transaction; an existing table.
    unsafe {
        let mode = pg_sys::AclMode::from(pg_sys::ACL_UPDATE);
        pg_sys::pg_class_aclcheck(pg_sys::Oid::from(table), raw_user(), mode)
            == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// True if a role owns a relation, a foreign server or an extension, of this catalog.
///
/// # Safety
/// A transaction is open, and the role exists.
#[cfg(not(since_16))]
pub(super) unsafe fn owns(catalog: pg_sys::Oid, object: pg_sys::Oid, role: pg_sys::Oid) -> bool {
    let check = match catalog {
        pg_sys::ForeignServerRelationId => pg_sys::pg_foreign_server_ownercheck,
        pg_sys::ExtensionRelationId => pg_sys::pg_extension_ownercheck,
        _ => pg_sys::pg_class_ownercheck,
    };
    // SAFETY: guaranteed by the caller. A missing object raises an ordinary error.
    unsafe { check(object, role) }
}

/// True if a role owns a relation, a foreign server or an extension, of this catalog.
///
/// # Safety
/// A transaction is open, and the role exists.
#[cfg(since_16)]
pub(super) unsafe fn owns(catalog: pg_sys::Oid, object: pg_sys::Oid, role: pg_sys::Oid) -> bool {
    // SAFETY: guaranteed by the caller. A missing object raises an ordinary error.
    unsafe { pg_sys::object_ownercheck(catalog, object, role) }
}

/// True if the caller may use a schema.
///
/// # Safety
/// A transaction is open.
#[cfg(not(since_16))]
pub(super) unsafe fn caller_may_use_schema(schema: pg_sys::Oid) -> bool {
    // SAFETY: guaranteed by the caller. A missing object raises an ordinary error.
    let result = unsafe { pg_sys::pg_namespace_aclcheck(schema, raw_user(), pg_sys::ACL_USAGE) };
    result == pg_sys::AclResult::ACLCHECK_OK
}

/// True if the caller may use a schema.
///
/// # Safety
/// A transaction is open.
#[cfg(since_16)]
pub(super) unsafe fn caller_may_use_schema(schema: pg_sys::Oid) -> bool {
    let catalog = pg_sys::NamespaceRelationId;
    // SAFETY: guaranteed by the caller. A missing object raises an ordinary error.
    let result =
        unsafe { pg_sys::object_aclcheck(catalog, schema, raw_user(), pg_sys::ACL_USAGE.into()) };
    result == pg_sys::AclResult::ACLCHECK_OK
}

/// True if the caller may read a column of a table, by its number, and use the table's schema.
///
/// # Safety
/// The table is open, and has the column.
pub(super) unsafe fn user_may_read(table: pg_sys::Oid, column: i16) -> bool {
    // SAFETY: in a transaction; guaranteed by the caller.
    unsafe {
        let mode = pg_sys::AclMode::from(pg_sys::ACL_SELECT);
        caller_may_use_schema(pg_sys::get_rel_namespace(table))
            && (pg_sys::pg_class_aclcheck(table, raw_user(), mode)
                == pg_sys::AclResult::ACLCHECK_OK
                || pg_sys::pg_attribute_aclcheck(table, column, raw_user(), mode)
                    == pg_sys::AclResult::ACLCHECK_OK)
    }
}

/// Roles in a column of a catalog row: those with a direct grant, not through membership.
///
/// # Safety
/// In a transaction. The cache is keyed by one oid, and the column is an ACL.
unsafe fn grantees_of(
    cache: pg_sys::SysCacheIdentifier::Type,
    object: pg_sys::Oid,
    column: u32,
) -> Vec<pg_sys::Oid> {
    let grantees = |value: pg_sys::Datum| {
        // SAFETY: guaranteed by the caller. An ACL is a one-dimensional array without NULLs, whose
        // items follow the header at the next MAXALIGN boundary.
        unsafe {
            let list: *const pg_sys::ArrayType =
                pg_sys::pg_detoast_datum(value.cast_mut_ptr()).cast();
            let length = *list.add(1).cast::<c_int>();
            let header = size_of::<pg_sys::ArrayType>() + 2 * size_of::<c_int>();
            let items: *const pg_sys::AclItem = list.byte_add(header.next_multiple_of(8)).cast();
            let count = usize::try_from(length).unwrap_or(0);
            let grantee = |position| (*items.add(position)).ai_grantee;
            (0..count).map(grantee).collect()
        }
    };
    // SAFETY: guaranteed by the caller; the list is copied.
    unsafe { cached(cache, object, column, grantees) }.unwrap_or_default()
}

/// True if the effective user is a superuser.
pub fn is_superuser() -> bool {
    // SAFETY: in a transaction; no arguments.
    unsafe { pg_sys::superuser() }
}

/// Name of the effective user.
pub fn user_name() -> String {
    // SAFETY: in a transaction. A palloc'ed string, which is copied; a dropped user is an error.
    unsafe { CStr::from_ptr(pg_sys::GetUserNameFromId(pg_sys::GetUserId(), false)) }
        .to_string_lossy()
        .into_owned()
}

/// Name of the effective user, quoted for SQL.
pub fn user_identifier() -> String {
    // SAFETY: in a transaction. Palloc'ed strings, which are copied; a dropped user is an error.
    unsafe {
        let name = pg_sys::GetUserNameFromId(pg_sys::GetUserId(), false);
        CStr::from_ptr(pg_sys::quote_identifier(name))
    }
    .to_string_lossy()
    .into_owned()
}
