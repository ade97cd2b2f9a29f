//! Roles: who the caller is, and what he may do as somebody else's member.

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use pgrx::pg_sys;

use super::name::Name;
use super::table::shape::SCHEMA;

unsafe extern "C" {
    // Without the guard of the bindings: it is asked by every call for a restricted tag.
    #[link_name = "GetUserId"]
    fn raw_user() -> pg_sys::Oid;
}

/// The effective user of this call, and how much this process has heard of changes to roles
/// and their memberships: what was found out about somebody holds while both are the same.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    user: u32,
    changes: u32,
}

impl Caller {
    /// Now. SET ROLE and a SECURITY DEFINER function change it.
    pub fn now() -> Self {
        watch();
        Self {
            // SAFETY: takes nothing, reads a global, and cannot raise an error: no guard is needed.
            user: unsafe { raw_user() }.to_u32(),
            changes: CHANGES.load(Ordering::Relaxed),
        }
    }
}

static CHANGES: AtomicU32 = AtomicU32::new(0);

unsafe extern "C-unwind" fn changed(_arg: pg_sys::Datum, _cache: c_int, _hash: u32) {
    // Called from anywhere that looks at the catalogs: nothing but a counter.
    CHANGES.fetch_add(1, Ordering::Relaxed);
}

fn watch() {
    static WATCHING: AtomicBool = AtomicBool::new(false);
    if WATCHING.load(Ordering::Relaxed) || WATCHING.swap(true, Ordering::Relaxed) {
        return;
    }
    // Those that PostgreSQL's own cache of memberships listens to, and the schema's grants.
    use pg_sys::SysCacheIdentifier::{AUTHMEMROLEMEM, AUTHOID, DATABASEOID, NAMESPACEOID};
    for cache in [AUTHMEMROLEMEM, AUTHOID, DATABASEOID, NAMESPACEOID] {
        // SAFETY: a callback that touches nothing but an atomic, and lives as long as the library, which is
        // never unloaded.
        unsafe {
            pg_sys::CacheRegisterSyscacheCallback(
                cache.cast_signed(),
                Some(changed),
                pg_sys::Datum::null(),
            );
        }
    }
}

/// Whether the caller is a superuser, or one of these roles or a member that inherits from
/// one. Only a role that was itself granted USAGE on the extension's schema counts: so
/// PostgreSQL refuses to drop it while its name stands somewhere, and another role that gets
/// the name later has not got its rights.
pub fn caller_is_one_of(names: &[Name]) -> bool {
    // SAFETY: in a transaction; names that end with null, and roles by oid.
    unsafe {
        let user = raw_user();
        if pg_sys::superuser_arg(user) {
            return true;
        }
        let grantees = schema_users();
        names.iter().any(|name| {
            let role = pg_sys::get_role_oid(name.as_c_str().as_ptr(), true);
            role != pg_sys::InvalidOid
                && grantees.contains(&role)
                && pg_sys::has_privs_of_role(user, role)
        })
    }
}

/// Whether the caller may read what monitoring shows.
pub fn caller_is_monitor() -> bool {
    // SAFETY: in a transaction; takes any two oids.
    unsafe { pg_sys::has_privs_of_role(raw_user(), pg_sys::Oid::from(pg_sys::ROLE_PG_MONITOR)) }
}

/// Raises PostgreSQL's own error where the caller may not update all columns of a table.
pub fn require_update(table: u32, name: &CStr) {
    if !caller_may_update(table) {
        let table = pg_sys::ObjectType::OBJECT_TABLE;
        // SAFETY: a string that ends with null.
        unsafe {
            pg_sys::aclcheck_error(pg_sys::AclResult::ACLCHECK_NO_PRIV, table, name.as_ptr())
        };
    }
}

/// Whether the caller may update all columns of a table.
pub fn caller_may_update(table: u32) -> bool {
    // SAFETY: in a transaction; a table that there is.
    unsafe {
        let mode = pg_sys::AclMode::from(pg_sys::ACL_UPDATE);
        pg_sys::pg_class_aclcheck(pg_sys::Oid::from(table), raw_user(), mode)
            == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// Whether the caller may read a column of a table, by its number.
///
/// # Safety
/// The table is open, and has the column.
pub(super) unsafe fn user_may_read(table: pg_sys::Oid, column: i16) -> bool {
    // SAFETY: in a transaction; as the caller says.
    unsafe {
        let mode = pg_sys::AclMode::from(pg_sys::ACL_SELECT);
        pg_sys::pg_class_aclcheck(table, raw_user(), mode) == pg_sys::AclResult::ACLCHECK_OK
            || pg_sys::pg_attribute_aclcheck(table, column, raw_user(), mode)
                == pg_sys::AclResult::ACLCHECK_OK
    }
}

/// The roles that USAGE on the extension's schema was granted to, each by name and not as a
/// member of another.
fn schema_users() -> Vec<pg_sys::Oid> {
    // SAFETY: in a transaction; the list is copied before the row is released. An ACL is an array of one dimension without NULLs, whose items follow its
    // header at the next multiple of the largest alignment.
    unsafe {
        let cache = pg_sys::SysCacheIdentifier::NAMESPACEOID.cast_signed();
        let schema = pg_sys::get_namespace_oid(SCHEMA.as_ptr(), true);
        let row = pg_sys::SearchSysCache1(cache, pg_sys::Datum::from(schema));
        if row.is_null() {
            return Vec::new();
        }
        let mut null = false;
        let column = i16::try_from(pg_sys::Anum_pg_namespace_nspacl).unwrap_or(0);
        let value = pg_sys::SysCacheGetAttr(cache, row, column, &raw mut null);
        let mut users = Vec::new();
        if !null {
            let list: *const pg_sys::ArrayType =
                pg_sys::pg_detoast_datum(value.cast_mut_ptr()).cast();
            let length = *list.add(1).cast::<c_int>();
            let header = size_of::<pg_sys::ArrayType>() + 2 * size_of::<c_int>();
            let items: *const pg_sys::AclItem = list.byte_add(header.next_multiple_of(8)).cast();
            for position in 0..usize::try_from(length).unwrap_or(0) {
                let item = &*items.add(position);
                #[allow(
                    clippy::useless_conversion,
                    reason = "the type differs between versions"
                )]
                let rights: u64 = item.ai_privs.into();
                if rights & u64::from(pg_sys::ACL_USAGE) != 0 {
                    users.push(item.ai_grantee);
                }
            }
        }
        pg_sys::ReleaseSysCache(row);
        users
    }
}

/// The user that this process acts as.
pub fn user() -> u32 {
    // SAFETY: takes nothing, and reads a global.
    unsafe { pg_sys::GetUserId() }.to_u32()
}

/// Whether the session's user is a superuser.
pub fn is_superuser() -> bool {
    // SAFETY: in a transaction; takes nothing.
    unsafe { pg_sys::superuser() }
}

/// The session's user, for the log.
pub fn user_name() -> String {
    // SAFETY: in a transaction. A palloc'ed string, which is copied; a user that is gone is an
    // error.
    unsafe { CStr::from_ptr(pg_sys::GetUserNameFromId(pg_sys::GetUserId(), false)) }
        .to_string_lossy()
        .into_owned()
}
