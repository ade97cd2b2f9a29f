//! How a call brings its arguments, and how it is answered.

use pgrx::pg_sys;

use crate::error::Failure;

/// What a call site keeps between its calls (PostgreSQL's `fn_extra`), made by the first.
#[inline]
pub fn kept<'a, T: Copy>(fcinfo: pg_sys::FunctionCallInfo, make: impl FnOnce() -> T) -> &'a mut T {
    // SAFETY: called through SQL, so flinfo is set. fn_extra is ours alone, always of the
    // same type for one function, and lives in fn_mcxt as long as flinfo does.
    unsafe {
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

/// The first argument, of a STRICT SQL function where that is a text.
#[inline]
pub fn first_text(fcinfo: pg_sys::FunctionCallInfo) -> *mut pg_sys::varlena {
    // SAFETY: called through SQL, with as many arguments as were declared.
    unsafe { (*(*fcinfo).args.as_ptr()).value.cast_mut_ptr() }
}

/// The bytes of the first argument. They live as long as the call.
#[inline]
pub fn tag<'a>(fcinfo: pg_sys::FunctionCallInfo) -> &'a [u8] {
    let text = first_text(fcinfo);
    inline_bytes(text).unwrap_or_else(|| {
        // SAFETY: a valid varlena.
        unsafe { pgrx::varlena_to_byte_slice(pg_sys::pg_detoast_datum_packed(text)) }
    })
}

/// The bytes of a text that is stored inline, which the header's low bits tell.
#[inline]
pub fn inline_bytes<'a>(text: *mut pg_sys::varlena) -> Option<&'a [u8]> {
    // SAFETY: a valid varlena.
    unsafe {
        let inline =
            pgrx::varatt_is_1b(text) && !pgrx::varatt_is_1b_e(text) || pgrx::varatt_is_4b_u(text);
        inline.then(|| pgrx::varlena_to_byte_slice(text))
    }
}

/// Whether a call's first argument is a constant of the query, as in a column's DEFAULT. A
/// parameter is none, though PostgreSQL calls it stable: PL/pgSQL keeps a call site while
/// its variables change.
pub fn names_a_constant(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: called through SQL, so flinfo is set; its expression is null or a node.
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

/// The integer that follows the tag.
pub fn second_argument(fcinfo: pg_sys::FunctionCallInfo) -> i32 {
    // SAFETY: a STRICT function of two arguments.
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
