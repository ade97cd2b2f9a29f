//! How a call brings its arguments, and how it is answered.

use pgrx::pg_sys;

use crate::error::Failure;
use crate::pg::{RowType, oid_value};

/// What a call site keeps between its calls (PostgreSQL's `fn_extra`), made by the first.
///
/// # Safety
/// PostgreSQL has called an SQL function with this, which keeps nothing but a `T`; and the
/// result is dropped before the call returns, or the same is asked for again.
#[inline]
pub unsafe fn kept<'a, T: Copy>(
    fcinfo: pg_sys::FunctionCallInfo,
    make: impl FnOnce() -> T,
) -> &'a mut T {
    // SAFETY: as the caller says, so flinfo is set, and fn_extra null or a `T` that was made
    // here. It is palloc'ed, so aligned for all that need no more than 8 bytes, and lives in
    // fn_mcxt as long as flinfo does. It is not dropped, as nothing that is `Copy` has to be.
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

/// The row type that a call expects, kept by its call site.
///
/// # Safety
/// PostgreSQL has called an SQL function with this, one with OUT arguments that keeps nothing
/// else.
pub unsafe fn row_type(fcinfo: pg_sys::FunctionCallInfo) -> RowType {
    // SAFETY: as the caller says; copied at once.
    unsafe { *kept(fcinfo, || RowType::of(fcinfo)) }
}

/// The first argument.
///
/// # Safety
/// PostgreSQL has called a STRICT SQL function with this, whose first argument is a text.
#[inline]
pub unsafe fn first_text(fcinfo: pg_sys::FunctionCallInfo) -> *mut pg_sys::varlena {
    // SAFETY: as the caller says: there is such an argument, and it is not null.
    unsafe { (*(*fcinfo).args.as_ptr()).value.cast_mut_ptr() }
}

/// The bytes of the first argument.
///
/// # Safety
/// PostgreSQL has called a STRICT SQL function with this, whose first argument is a text; and
/// the result is dropped before the call returns.
#[inline]
pub unsafe fn tag<'a>(fcinfo: pg_sys::FunctionCallInfo) -> &'a [u8] {
    // SAFETY: as the caller says. What is detoasted lives in the memory context of the call.
    unsafe {
        let text = first_text(fcinfo);
        inline_bytes(text)
            .unwrap_or_else(|| pgrx::varlena_to_byte_slice(pg_sys::pg_detoast_datum_packed(text)))
    }
}

/// The bytes of an argument; they are numbered from 0.
///
/// # Safety
/// PostgreSQL has called a STRICT SQL function with this, whose argument of this number is a
/// text; and the result is dropped before the call returns.
pub unsafe fn text<'a>(fcinfo: pg_sys::FunctionCallInfo, number: usize) -> &'a [u8] {
    // SAFETY: as the caller says: there is such an argument, and it is not null. What is
    // detoasted lives in the memory context of the call.
    unsafe {
        let datum = (*(*fcinfo).args.as_ptr().add(number)).value;
        pgrx::varlena_to_byte_slice(pg_sys::pg_detoast_datum_packed(datum.cast_mut_ptr()))
    }
}

/// The bytes of a text that is stored inline, which the header's low bits tell.
///
/// # Safety
/// A valid varlena, which outlives the result.
#[inline]
pub unsafe fn inline_bytes<'a>(text: *mut pg_sys::varlena) -> Option<&'a [u8]> {
    // SAFETY: as the caller says. The header tells the length of what is stored inline.
    unsafe {
        let inline =
            pgrx::varatt_is_1b(text) && !pgrx::varatt_is_1b_e(text) || pgrx::varatt_is_4b_u(text);
        inline.then(|| pgrx::varlena_to_byte_slice(text))
    }
}

/// Whether a call's first argument is a constant of the query, as in a column's DEFAULT. A
/// parameter is none, though PostgreSQL calls it stable: PL/pgSQL keeps a call site while
/// its variables change.
///
/// # Safety
/// PostgreSQL has called an SQL function with this.
pub unsafe fn names_a_constant(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: as the caller says, so flinfo is set; its expression is null or a node, whose type
    // says what it is, and a list has as many elements as it says.
    unsafe {
        let flinfo = (*fcinfo).flinfo;
        let Some(call) = (*flinfo).fn_expr.as_ref() else {
            return false;
        };
        if call.type_ != pg_sys::NodeTag::T_FuncExpr {
            return false;
        }
        let call = core::ptr::from_ref(call).cast::<pg_sys::FuncExpr>();
        // Not another function's, which may have no arguments.
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

/// Whether none of the first so many arguments is NULL: for functions that are not STRICT.
///
/// # Safety
/// PostgreSQL has called an SQL function with this, one with as many arguments.
pub unsafe fn given(fcinfo: pg_sys::FunctionCallInfo, count: usize) -> bool {
    // SAFETY: as the caller says.
    unsafe {
        (*fcinfo)
            .args
            .as_slice(count)
            .iter()
            .all(|argument| !argument.isnull)
    }
}

/// An argument that is an oid; they are numbered from 0.
///
/// # Safety
/// PostgreSQL has called an SQL function with this, whose argument of this number is an oid and
/// not null.
pub unsafe fn oid(fcinfo: pg_sys::FunctionCallInfo, number: usize) -> u32 {
    // SAFETY: as the caller says: there is such an argument.
    oid_value(unsafe { (*(*fcinfo).args.as_ptr().add(number)).value })
}

/// The bigint that follows the tag.
///
/// # Safety
/// PostgreSQL has called a STRICT SQL function with this, whose second argument is a bigint.
pub unsafe fn second_bigint(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: as the caller says: there is such an argument, and it is not null.
    unsafe { (*(*fcinfo).args.as_ptr().add(1)).value.value() as i64 }
}

/// The integer that follows the tag.
///
/// # Safety
/// PostgreSQL has called a STRICT SQL function with this, whose second argument is an integer.
pub unsafe fn second_argument(fcinfo: pg_sys::FunctionCallInfo) -> i32 {
    // SAFETY: as the caller says: there is such an argument, and it is not null.
    let value = unsafe { (*(*fcinfo).args.as_ptr().add(1)).value.value() };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "an integer is the datum's low half"
    )]
    let n = value as i32;
    n
}

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

/// Not `numeric`: no id count reaches 2^63 in a server's life.
pub fn bigint(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}
