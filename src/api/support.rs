//! What lets COPY insert in bulk where a default issues ids.
//!
//! COPY inserts rows one by one if a default is volatile, unless that is `nextval`: the function
//! might look at the table. Ours do not. PostgreSQL has no word for that, but asks a support
//! function how a call can be simplified. Where the call stands in an expression that is planned
//! outside of a query, as COPY plans defaults, it becomes one of its *twin*: the same function,
//! declared STABLE. What keeps everybody but COPY thinking that it is volatile is at
//! [`LoneCall::with_twin`].
//!
//! A twin has two arguments more: the oid of the function that was called, on which it asks for
//! EXECUTE as the executor would have; and an `internal`, so that only the planner calls it. Some
//! minor versions have a NULL of that type for SQL, so a twin does not rely on it: it stands for
//! no other function, and gives what that would.

use pgrx::pg_sys;
use pgrx::prelude::*;

use super::call::{finish, given, kept, names_a_constant, oid};
use super::segment::leaf_segment_next;
use super::snowflake::leaf_snowflake_next;
use crate::error::Failure;
use crate::pg::{self, LoneCall, RawDatum, SCHEMA};

#[pg_extern(strict, immutable, parallel_safe, sql = false)]
fn leaf_next_support(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: a call of the SQL function of this name.
    let call = unsafe { LoneCall::new(fcinfo) };
    let simplified = call.and_then(|call| Some(call.with_twin(twin(call)?)));
    simplified.unwrap_or_else(RawDatum::none)
}

/// The twin of the function that is called, if it may stand in its place. Where it may not, the
/// call remains as it is: that is right, and no worse than before.
fn twin(call: LoneCall<'_>) -> Option<u32> {
    let mut types = call.constant_types()?;
    let name = if types.is_empty() {
        c"leaf_snowflake_next_stable"
    } else {
        c"leaf_segment_next_stable"
    };
    types.extend([pg_sys::OIDOID, pg_sys::INTERNALOID]);
    let twin = pg::find_function(SCHEMA, name, &types)?.oid;
    let function = call.function();
    // The executor checks the rights to the twin. That they are not the caller's to the function
    // is seen here as early as the executor would, and by the twin where a plan outlives its
    // role.
    let stands_for_it =
        stands_for(twin, function) && pg::is_everybodys(twin) && pg::caller_may_execute(function);
    stands_for_it.then_some(twin)
}

/// Whether one function is the twin of another. Only a superuser declares a support function, so
/// nobody else can make a function to be taken for one of ours.
fn stands_for(twin: u32, function: u32) -> bool {
    let support = pg::find_function(SCHEMA, c"leaf_next_support", &[pg_sys::INTERNALOID]);
    let (Some(twin), Some(function), Some(support)) =
        (pg::function(twin), pg::function(function), support)
    else {
        return false;
    };
    function.support == support.oid
        && twin.is_stable
        && twin.owner == function.owner
        && twin.language == function.language
        && twin.result == function.result
        && twin.arguments == function.arguments + 2
}

/// What a twin checks at the first call of a call site. The number of its argument that is the
/// function tells how many come before that.
///
/// The function may be any that SQL names, if SQL could call the twin: EXECUTE on another would
/// say nothing.
///
/// # Safety
/// PostgreSQL has called a twin with this, or a function that says it is one: without SQL's
/// checks, so it has as many arguments.
unsafe fn check_first_call(
    fcinfo: pg_sys::FunctionCallInfo,
    function_number: usize,
    twin: &'static str,
) -> Result<(), Failure> {
    // SAFETY: as the caller says.
    unsafe {
        if !given(fcinfo, function_number + 1) {
            return Err(Failure::CalledDirectly { function: twin });
        }
        let function = oid(fcinfo, function_number);
        if !stands_for((*(*fcinfo).flinfo).fn_oid.to_u32(), function) {
            return Err(Failure::CalledDirectly { function: twin });
        }
        pg::check_execute(function);
    }
    Ok(())
}

#[pg_extern(stable, parallel_safe, sql = false)]
fn leaf_segment_next_stable(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    let twin = "leaf_segment_next_stable";
    // SAFETY: a call of the SQL function of this name, the first one of its call site; see `fmgr`. The
    // first argument is then a text that is not null, as it is to `leaf_segment_next`. It is
    // a constant, so that holds for the calls that follow.
    unsafe {
        if !names_a_constant(fcinfo) {
            finish(Err(Failure::CalledDirectly { function: twin }))
        }
        finish(check_first_call(fcinfo, 1, twin));
    }
    leaf_segment_next(fcinfo)
}

#[pg_extern(stable, parallel_safe, sql = false)]
fn leaf_snowflake_next_stable(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: a call of the SQL function of this name, which keeps nothing but this; see also `fmgr`.
    unsafe {
        kept(fcinfo, || {
            finish(check_first_call(fcinfo, 0, "leaf_snowflake_next_stable"));
            true
        });
    }
    leaf_snowflake_next()
}
