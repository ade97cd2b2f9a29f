//! Roles, privileges and memberships of the caller.

use core::ffi::{CStr, c_int};

use leaf_id_core::message::shown;
use pgrx::pg_sys;

use super::caller::{note_relation, user};
use super::name::Name;
use super::table::shape::SCHEMA;

/// True if a role is a superuser, one of these roles, or a member that inherits from one. A name
/// counts only if its role was granted a privilege on the extension's schema or on `table`, the one
/// with the name, directly: then PostgreSQL refuses to drop the role while it is named in a row,
/// and a later role of the same name does not get its rights.
pub fn role_is_one_of(role: u32, names: &[Name], table: u32) -> bool {
    note_relation(table);
    // SAFETY: in a transaction; null-terminated names, and roles by oid.
    unsafe {
        let role = pg_sys::Oid::from(role);
        if pg_sys::superuser_arg(role) {
            return true;
        }
        let grantees = grantees(table);
        names.iter().any(|name| {
            let named = pg_sys::get_role_oid(name.as_c_str().as_ptr(), true);
            named != pg_sys::InvalidOid
                && grantees.contains(&named)
                && pg_sys::has_privs_of_role(role, named)
        })
    }
}

/// True if the caller has the privileges of pg_monitor.
pub fn caller_is_monitor() -> bool {
    // SAFETY: in a transaction; accepts any two oids.
    unsafe { pg_sys::has_privs_of_role(user().into(), pg_sys::Oid::from(pg_sys::ROLE_PG_MONITOR)) }
}

/// Raises PostgreSQL's permission error unless the caller may update all columns of a table.
pub fn require_update(table: u32, name: &CStr) {
    if !caller_may_update(table) {
        let table = pg_sys::ObjectType::OBJECT_TABLE;
        // SAFETY: a null-terminated string.
        unsafe {
            pg_sys::aclcheck_error(pg_sys::AclResult::ACLCHECK_NO_PRIV, table, name.as_ptr())
        };
    }
}

/// True if the caller may update all columns of a table.
pub fn caller_may_update(table: u32) -> bool {
    role_may_update(user(), table)
}

/// True if a role may update all columns of a table.
pub fn role_may_update(role: u32, table: u32) -> bool {
    note_relation(table);
    may(role, table, pg_sys::ACL_UPDATE)
}

/// True if a role may insert into some columns of a table: the others get their defaults.
pub fn role_may_insert(role: u32, table: u32) -> bool {
    note_relation(table);
    let any = pg_sys::AclMaskHow::ACLMASK_ANY;
    let mode = pg_sys::AclMode::from(pg_sys::ACL_INSERT);
    may(role, table, pg_sys::ACL_INSERT)
        // SAFETY: in a transaction; accepts any two oids.
        || unsafe { pg_sys::pg_attribute_aclcheck_all(table.into(), role.into(), mode, any) }
            == pg_sys::AclResult::ACLCHECK_OK
}

/// True if a role has a privilege on a table; false if the table was dropped.
fn may(role: u32, table: u32, privilege: u32) -> bool {
    let mode = pg_sys::AclMode::from(privilege);
    let mut missing = false;
    // SAFETY: in a transaction; accepts any two oids.
    let result =
        unsafe { pg_sys::pg_class_aclcheck_ext(table.into(), role.into(), mode, &raw mut missing) };
    result == pg_sys::AclResult::ACLCHECK_OK && !missing
}

/// True if the caller may read a column of a table, by its number.
///
/// # Safety
/// The table is open, and has the column.
pub(super) unsafe fn user_may_read(table: pg_sys::Oid, column: i16) -> bool {
    // SAFETY: in a transaction; guaranteed by the caller.
    unsafe {
        let mode = pg_sys::AclMode::from(pg_sys::ACL_SELECT);
        let user = pg_sys::GetUserId();
        pg_sys::pg_class_aclcheck(table, user, mode) == pg_sys::AclResult::ACLCHECK_OK
            || pg_sys::pg_attribute_aclcheck(table, column, user, mode)
                == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// Roles with a direct grant on the extension's schema or on a table, not through membership.
fn grantees(table: u32) -> Vec<pg_sys::Oid> {
    use pg_sys::SysCacheIdentifier::{NAMESPACEOID, RELOID};
    // SAFETY: in a transaction; each cache is keyed by one oid, and has these columns.
    unsafe {
        let schema = pg_sys::get_namespace_oid(SCHEMA.as_ptr(), true);
        let mut roles = grantees_in(NAMESPACEOID, schema, pg_sys::Anum_pg_namespace_nspacl);
        roles.extend(grantees_in(
            RELOID,
            table.into(),
            pg_sys::Anum_pg_class_relacl,
        ));
        roles
    }
}

/// Roles in a column of a catalog row.
///
/// # Safety
/// The cache is keyed by one oid, and the column is an ACL.
unsafe fn grantees_in(
    cache: pg_sys::SysCacheIdentifier::Type,
    object: pg_sys::Oid,
    column: u32,
) -> Vec<pg_sys::Oid> {
    // SAFETY: guaranteed by the caller. In a transaction; the list is copied before the row is
    // released. An ACL is a one-dimensional array without NULLs, whose items follow the header at
    // the next MAXALIGN boundary.
    unsafe {
        let cache = cache.cast_signed();
        let row = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(object));
        if row.is_null() {
            return Vec::new();
        }
        let mut null = false;
        let column = i16::try_from(column).unwrap_or(0);
        let value = pg_sys::SysCacheGetAttr(cache, row, column, &raw mut null);
        let mut roles = Vec::new();
        if !null {
            let list: *const pg_sys::ArrayType =
                pg_sys::pg_detoast_datum(value.cast_mut_ptr()).cast();
            let length = *list.add(1).cast::<c_int>();
            let header = size_of::<pg_sys::ArrayType>() + 2 * size_of::<c_int>();
            let items: *const pg_sys::AclItem = list.byte_add(header.next_multiple_of(8)).cast();
            let count = usize::try_from(length).unwrap_or(0);
            roles.extend((0..count).map(|position| (*items.add(position)).ai_grantee));
        }
        pg_sys::ReleaseSysCache(row);
        roles
    }
}

/// True if the effective user is a superuser.
pub fn is_superuser() -> bool {
    // SAFETY: in a transaction; no arguments.
    unsafe { pg_sys::superuser() }
}

/// Name of a role, for messages; empty if it was dropped.
pub fn role_name(role: u32) -> String {
    // SAFETY: in a transaction. A palloc'ed string, which is copied, or null.
    unsafe {
        let name = pg_sys::GetUserNameFromId(role.into(), true);
        if name.is_null() {
            return String::new();
        }
        shown(CStr::from_ptr(name).to_bytes())
    }
}
