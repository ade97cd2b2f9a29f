//! Functions in the catalog of this database.

use core::ffi::{CStr, c_int};

use pgrx::pg_sys;

/// What the catalog says of a function.
#[derive(Clone, Copy)]
pub struct Function {
    /// Its oid.
    pub oid: u32,
    /// The role that owns it.
    pub owner: u32,
    /// The language that it is written in.
    pub language: u32,
    /// How many arguments it has.
    pub arguments: usize,
    /// The type of its result.
    pub result: u32,
    /// What the planner asks about its calls; 0 if nothing.
    pub support: u32,
    /// Whether it is declared STABLE.
    pub is_stable: bool,
}

impl Function {
    /// Releases the row.
    ///
    /// # Safety
    /// A row of a cache of pg_proc that was just found, or null.
    unsafe fn from_row(row: pg_sys::HeapTuple) -> Option<Self> {
        if row.is_null() {
            return None;
        }
        // SAFETY: as the caller says; the fixed part is read before the row is released.
        unsafe {
            let form = &*pg_sys::GETSTRUCT(row).cast::<pg_sys::FormData_pg_proc>();
            let function = Self {
                oid: form.oid.to_u32(),
                owner: form.proowner.to_u32(),
                language: form.prolang.to_u32(),
                arguments: usize::try_from(form.pronargs).unwrap_or(0),
                result: form.prorettype.to_u32(),
                support: form.prosupport.to_u32(),
                // C's char has a sign on some processors, and none on arm64.
                is_stable: form.provolatile as u8 == pg_sys::PROVOLATILE_STABLE,
            };
            pg_sys::ReleaseSysCache(row);
            Some(function)
        }
    }
}

/// The function of an oid; `None` if it is gone.
pub fn function(oid: u32) -> Option<Function> {
    // SAFETY: in a transaction; a cache whose key is one oid.
    unsafe {
        Function::from_row(pg_sys::SearchSysCache1(
            pg_sys::SysCacheIdentifier::PROCOID.cast_signed(),
            pg_sys::Datum::from(oid),
        ))
    }
}

/// The function of exactly this schema, name and argument types: no search path takes part.
pub fn find_function(schema: &CStr, name: &CStr, arguments: &[pg_sys::Oid]) -> Option<Function> {
    // SAFETY: in a transaction; as many types as there are, which are copied; a cache whose keys
    // are a name, a list of types and the oid of a schema.
    unsafe {
        let schema = pg_sys::get_namespace_oid(schema.as_ptr(), true);
        let count = c_int::try_from(arguments.len()).unwrap_or(0);
        let arguments = pg_sys::buildoidvector(arguments.as_ptr(), count);
        Function::from_row(pg_sys::SearchSysCache3(
            pg_sys::SysCacheIdentifier::PROCNAMEARGSNSP.cast_signed(),
            pg_sys::Datum::from(name.as_ptr()),
            pg_sys::Datum::from(arguments),
            pg_sys::Datum::from(schema),
        ))
    }
}

/// Whether a function may be executed by every role.
pub fn is_everybodys(function: u32) -> bool {
    aclcheck(function, pg_sys::Oid::from(pg_sys::ACL_ID_PUBLIC)) == pg_sys::AclResult::ACLCHECK_OK
}

/// Whether the caller may execute a function.
pub fn caller_may_execute(function: u32) -> bool {
    // SAFETY: takes nothing, and reads a global.
    let user = unsafe { pg_sys::GetUserId() };
    aclcheck(function, user) == pg_sys::AclResult::ACLCHECK_OK
}

/// What the executor does before it calls a function: an error if the caller may not execute it.
pub fn check_execute(function: u32) {
    // SAFETY: in a transaction; a palloc'ed name, or null if the function is gone, which the check
    // has found already; the hook is a plain global of this process, which has one thread.
    unsafe {
        let result = aclcheck(function, pg_sys::GetUserId());
        if result != pg_sys::AclResult::ACLCHECK_OK {
            let name = pg_sys::get_func_name(function.into());
            pg_sys::aclcheck_error(result, pg_sys::ObjectType::OBJECT_FUNCTION, name);
        }
        let hook = pg_sys::object_access_hook;
        if hook.is_some() {
            pg_sys::RunFunctionExecuteHook(function.into());
        }
    }
}

/// An error if the function is gone.
#[cfg(feature = "pg15")]
fn aclcheck(function: u32, role: pg_sys::Oid) -> pg_sys::AclResult::Type {
    // SAFETY: in a transaction; takes any two oids.
    unsafe { pg_sys::pg_proc_aclcheck(function.into(), role, pg_sys::ACL_EXECUTE) }
}

/// An error if the function is gone.
#[cfg(not(feature = "pg15"))]
fn aclcheck(function: u32, role: pg_sys::Oid) -> pg_sys::AclResult::Type {
    let catalog = pg_sys::ProcedureRelationId;
    // SAFETY: in a transaction; takes any two oids, of a catalog that has privileges.
    unsafe { pg_sys::object_aclcheck(catalog, function.into(), role, pg_sys::ACL_EXECUTE.into()) }
}
