//! Arguments and results of SQL function calls.

use pgrx::pg_sys;

use crate::error::Failure;
use crate::pg::{RowType, TriggerCall, oid_value};

/// State that a call site keeps between calls (PostgreSQL's `fn_extra`), created by the first call.
///
/// # Safety
/// `fcinfo` is the argument of an SQL function called by PostgreSQL that keeps nothing but a `T`.
/// The result is dropped before the call returns, and before `kept` is called again.
#[inline]
pub unsafe fn kept<'a, T: Copy>(
    fcinfo: pg_sys::FunctionCallInfo,
    make: impl FnOnce() -> T,
) -> &'a mut T {
    // SAFETY: guaranteed by the caller, so flinfo is set, and fn_extra is null or a `T` created
    // here. It is palloc'ed, so sufficiently aligned for up to 8 bytes, and lives in fn_mcxt as
    // long as flinfo. A `Copy` type needs no drop.
    unsafe {
        const { assert!(align_of::<T>() <= 8, "palloc aligns to 8 bytes") };
        let flinfo = (*fcinfo).flinfo;
        if (*flinfo).fn_extra.is_null() {
            let value = make();
            let memory = pg_sys::MemoryContextAlloc((*flinfo).fn_mcxt, size_of::<T>());
            memory.cast::<T>().write(value);
            (*flinfo).fn_extra = memory;
        }
        &mut *(*flinfo).fn_extra.cast::<T>()
    }
}

/// Expected row type of a call, kept by its call site.
///
/// # Safety
/// `fcinfo` is the argument of an SQL function with OUT arguments, called by PostgreSQL, that keeps
/// nothing else.
pub unsafe fn row_type(fcinfo: pg_sys::FunctionCallInfo) -> RowType {
    // SAFETY: guaranteed by the caller; copied at once.
    unsafe { *kept(fcinfo, || RowType::of(fcinfo)) }
}

/// The first argument, not detoasted.
///
/// # Safety
/// `fcinfo` is the argument of a STRICT SQL function called by PostgreSQL, whose first argument is
/// a text.
#[inline]
pub unsafe fn first_text(fcinfo: pg_sys::FunctionCallInfo) -> *mut pg_sys::varlena {
    // SAFETY: guaranteed by the caller: the argument exists and is not null.
    unsafe { (*(*fcinfo).args.as_ptr()).value.cast_mut_ptr() }
}

/// Bytes of the first argument.
///
/// # Safety
/// `fcinfo` is the argument of a STRICT SQL function called by PostgreSQL, whose first argument is
/// a text. The result is dropped before the call returns.
#[inline]
pub unsafe fn tag<'a>(fcinfo: pg_sys::FunctionCallInfo) -> &'a [u8] {
    // SAFETY: guaranteed by the caller. A detoasted copy lives in the memory context of the call.
    unsafe {
        let text = first_text(fcinfo);
        inline_bytes(text)
            .unwrap_or_else(|| pgrx::varlena_to_byte_slice(pg_sys::pg_detoast_datum_packed(text)))
    }
}

/// Bytes of argument `number`, from 0.
///
/// # Safety
/// `fcinfo` is the argument of a STRICT SQL function called by PostgreSQL, whose argument `number`
/// is a text. The result is dropped before the call returns.
pub unsafe fn text<'a>(fcinfo: pg_sys::FunctionCallInfo, number: usize) -> &'a [u8] {
    // SAFETY: guaranteed by the caller: the argument exists and is not null. A detoasted copy lives
    // in the memory context of the call.
    unsafe {
        let datum = (*(*fcinfo).args.as_ptr().add(number)).value;
        pgrx::varlena_to_byte_slice(pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr()))
    }
}

/// Bytes of a text stored inline and uncompressed, by the low bits of its header; `None` otherwise.
///
/// # Safety
/// `text` is a valid varlena that outlives the result.
#[inline]
pub unsafe fn inline_bytes<'a>(text: *mut pg_sys::varlena) -> Option<&'a [u8]> {
    // SAFETY: guaranteed by the caller. The header has the length of an inline value.
    unsafe {
        let inline =
            pgrx::varatt_is_1b(text) && !pgrx::varatt_is_1b_e(text) || pgrx::varatt_is_4b_u(text);
        inline.then(|| pgrx::varlena_to_byte_slice(text))
    }
}

/// True if a call's first argument is a constant of the query, as in a column's DEFAULT. A
/// parameter is not, although PostgreSQL considers it stable: PL/pgSQL keeps a call site while its
/// variables change.
///
/// # Safety
/// `fcinfo` is the argument of an SQL function called by PostgreSQL.
pub unsafe fn names_a_constant(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: guaranteed by the caller, so flinfo is set; its expression is null or a node, whose
    // tag determines its type.
    unsafe {
        let flinfo = (*fcinfo).flinfo;
        let Some(call) = (*flinfo).fn_expr.as_ref() else {
            return false;
        };
        if call.type_ != pg_sys::NodeTag::T_FuncExpr {
            return false;
        }
        let call = core::ptr::from_ref(call).cast::<pg_sys::FuncExpr>();
        // The expression may be another function's, perhaps without arguments.
        if (*call).funcid != (*flinfo).fn_oid {
            return false;
        }
        let first = (*call)
            .args
            .as_ref()
            .and_then(|args| args.elements.as_ref());
        first.is_some_and(|first| {
            let node = first.ptr_value.cast::<pg_sys::Node>();
            (*node).type_ == pg_sys::NodeTag::T_Const
        })
    }
}

/// True if none of the first `count` arguments is NULL, for functions that are not STRICT.
///
/// # Safety
/// `fcinfo` is the argument of an SQL function called by PostgreSQL, with at least `count`
/// arguments.
pub unsafe fn given(fcinfo: pg_sys::FunctionCallInfo, count: usize) -> bool {
    // SAFETY: guaranteed by the caller.
    unsafe {
        (*fcinfo)
            .args
            .as_slice(count)
            .iter()
            .all(|argument| !argument.isnull)
    }
}

/// Argument `number`, from 0, as an oid.
///
/// # Safety
/// `fcinfo` is the argument of an SQL function called by PostgreSQL, whose argument `number` is an
/// oid and not null.
pub unsafe fn oid(fcinfo: pg_sys::FunctionCallInfo, number: usize) -> u32 {
    // SAFETY: guaranteed by the caller: the argument exists.
    oid_value(unsafe { (*(*fcinfo).args.as_ptr().add(number)).value })
}

/// The second argument, a bigint.
///
/// # Safety
/// `fcinfo` is the argument of a STRICT SQL function called by PostgreSQL, whose second argument is
/// a bigint.
pub unsafe fn second_bigint(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: guaranteed by the caller: the argument exists and is not null.
    unsafe { (*(*fcinfo).args.as_ptr().add(1)).value.value() as i64 }
}

/// The second argument, an integer.
///
/// # Safety
/// `fcinfo` is the argument of a STRICT SQL function called by PostgreSQL, whose second argument is
/// an integer.
pub unsafe fn second_argument(fcinfo: pg_sys::FunctionCallInfo) -> i32 {
    // SAFETY: guaranteed by the caller: the argument exists and is not null.
    let value = unsafe { (*(*fcinfo).args.as_ptr().add(1)).value.value() };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "an integer is the datum's low half"
    )]
    let n = value as i32;
    n
}

/// Validates a number of ids, which must not be negative.
pub fn count(n: i32) -> Result<u32, Failure> {
    u32::try_from(n).map_err(|_| Failure::NegativeCount { n })
}

/// The result of an SQL function: the value, or an ERROR.
#[inline]
pub fn finish<T>(result: Result<T, Failure>) -> T {
    match result {
        Ok(value) => value,
        Err(failure) => failure.raise(),
    }
}

/// Converts a counter for SQL. Not to `numeric`, since no counter of ids reaches 2^63.
pub fn bigint(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The call of a trigger function.
///
/// # Safety
/// `fcinfo` is the argument of a function called by PostgreSQL, which does not return before the
/// result is dropped.
pub unsafe fn trigger_call<'a>(
    fcinfo: pg_sys::FunctionCallInfo,
    function: &'static str,
) -> TriggerCall<'a> {
    // SAFETY: guaranteed by the caller.
    let call = unsafe { TriggerCall::new(fcinfo) };
    finish(call.ok_or(Failure::NotATrigger { function }))
}
