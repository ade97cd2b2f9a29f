//! Functions in the catalog of the current database.

use core::ffi::{CStr, c_int};

use pgrx::pg_sys;

use super::cached::{cache_id, cached};
use super::roles::caller_may_use_schema;

/// Catalog data of a function.
#[derive(Clone, Copy)]
pub struct Function {
    /// Oid of the function.
    pub oid: u32,
    /// Owner.
    pub owner: u32,
    /// Language.
    pub language: u32,
    /// Number of arguments.
    pub arguments: usize,
    /// Result type.
    pub result: u32,
    /// Planner support function; 0 if none.
    pub support: u32,
    /// Declared STABLE.
    pub is_stable: bool,
}

impl Function {
    /// Decodes and releases a row.
    ///
    /// # Safety
    /// `row` was just found in a cache of pg_proc, or is null.
    unsafe fn from_row(row: pg_sys::HeapTuple) -> Option<Self> {
        if row.is_null() {
            return None;
        }
        // SAFETY: guaranteed by the caller; the fixed part is read before the row is released.
        unsafe {
            let form = &*pg_sys::GETSTRUCT(row).cast::<pg_sys::FormData_pg_proc>();
            let function = Self {
                oid: form.oid.to_u32(),
                owner: form.proowner.to_u32(),
                language: form.prolang.to_u32(),
                arguments: usize::try_from(form.pronargs).unwrap_or(0),
                result: form.prorettype.to_u32(),
                support: form.prosupport.to_u32(),
                // char is signed on some platforms, and unsigned on arm64.
                is_stable: form.provolatile as u8 == pg_sys::PROVOLATILE_STABLE,
            };
            pg_sys::ReleaseSysCache(row);
            Some(function)
        }
    }
}

/// The function with this oid; `None` if it was dropped.
pub fn function(oid: u32) -> Option<Function> {
    // SAFETY: in a transaction; the cache is keyed by one oid.
    unsafe {
        Function::from_row(pg_sys::SearchSysCache1(
            cache_id(pg_sys::SysCacheIdentifier::PROCOID),
            pg_sys::Datum::from(oid),
        ))
    }
}

/// The function with exactly this schema, name and argument types. Does not use the search path.
pub fn find_function(schema: &CStr, name: &CStr, arguments: &[pg_sys::Oid]) -> Option<Function> {
    // SAFETY: in a transaction; a null-terminated string.
    let schema = unsafe { pg_sys::get_namespace_oid(schema.as_ptr(), true) };
    // SAFETY: in a transaction; `count` types, which are copied; the cache is keyed by a name, a
    // list of types and the oid of a schema.
    unsafe {
        let count = c_int::try_from(arguments.len()).unwrap_or(0);
        let arguments = pg_sys::buildoidvector(arguments.as_ptr(), count);
        Function::from_row(pg_sys::SearchSysCache3(
            cache_id(pg_sys::SysCacheIdentifier::PROCNAMEARGSNSP),
            pg_sys::Datum::from(name.as_ptr()),
            pg_sys::Datum::from(arguments),
            pg_sys::Datum::from(schema),
        ))
    }
}

/// The body of the function with this schema and name, without arguments, in SQL or another
/// language that keeps it in the catalog.
pub fn function_source(schema: &CStr, name: &CStr) -> Option<String> {
    let function = find_function(schema, name, &[])?;
    let text = |value: pg_sys::Datum| {
        // SAFETY: the column is a text; the copy is null-terminated.
        let text = unsafe { CStr::from_ptr(pg_sys::text_to_cstring(value.cast_mut_ptr())) };
        text.to_string_lossy().into_owned()
    };
    // SAFETY: in a transaction; the cache is keyed by one oid, and the text is copied.
    unsafe {
        cached(
            pg_sys::SysCacheIdentifier::PROCOID,
            function.oid.into(),
            pg_sys::Anum_pg_proc_prosrc,
            text,
        )
    }
}

/// True if PUBLIC may execute a function.
pub fn public_may_execute(function: u32) -> bool {
    aclcheck(function, pg_sys::Oid::from(pg_sys::ACL_ID_PUBLIC)) == pg_sys::AclResult::ACLCHECK_OK
}

/// True if the current user may execute a function.
pub fn caller_may_execute(function: u32) -> bool {
    // SAFETY: no arguments; reads a global.
    let user = unsafe { pg_sys::GetUserId() };
    aclcheck(function, user) == pg_sys::AclResult::ACLCHECK_OK
}

/// The executor's check before a function call: raises an error if the current user may not execute
/// it.
pub fn check_execute(function: u32) {
    // SAFETY: in a transaction; the name is palloc'ed, or null if the function was dropped, which
    // the check has reported already; the hook is a global of a single-threaded process.
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

/// The checks before a function call in SQL: raises an error if the current user may not execute
/// it, or not use its schema.
pub fn check_call(function: u32) {
    // SAFETY: in a transaction; a function without a schema was dropped, which the next check
    // reports. The name is palloc'ed, or null if the schema was dropped.
    unsafe {
        let schema = pg_sys::get_func_namespace(function.into());
        if schema != pg_sys::InvalidOid && !caller_may_use_schema(schema) {
            let (refused, kind) = (
                pg_sys::AclResult::ACLCHECK_NO_PRIV,
                pg_sys::ObjectType::OBJECT_SCHEMA,
            );
            pg_sys::aclcheck_error(refused, kind, pg_sys::get_namespace_name(schema));
        }
    }
    check_execute(function);
}

/// Checks EXECUTE. Raises an error if the function was dropped.
#[cfg(not(since_16))]
fn aclcheck(function: u32, role: pg_sys::Oid) -> pg_sys::AclResult::Type {
    // SAFETY: in a transaction; accepts any two oids.
    unsafe { pg_sys::pg_proc_aclcheck(function.into(), role, pg_sys::ACL_EXECUTE) }
}

/// Checks EXECUTE. Raises an error if the function was dropped.
#[cfg(since_16)]
fn aclcheck(function: u32, role: pg_sys::Oid) -> pg_sys::AclResult::Type {
    let catalog = pg_sys::ProcedureRelationId;
    // SAFETY: in a transaction; accepts any two oids, and the catalog has privileges.
    unsafe { pg_sys::object_aclcheck(catalog, function.into(), role, pg_sys::ACL_EXECUTE.into()) }
}

/// True for a CALL outside of a transaction block and of functions: the procedure may end its
/// transaction.
///
/// # Safety
/// `fcinfo` is the argument of a function or procedure called by PostgreSQL.
pub unsafe fn is_nonatomic_call(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: guaranteed by the caller: the context of a call is null or a node, whose tag determines
    // its type.
    unsafe {
        let context = super::expression::as_node::<pg_sys::CallContext>(
            (*fcinfo).context,
            pg_sys::NodeTag::T_CallContext,
        );
        context.is_some_and(|context| !context.atomic)
    }
}
