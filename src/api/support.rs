//! Planner support that lets COPY insert in bulk if a default issues ids.
//!
//! COPY inserts rows one by one if a default is volatile, except for `nextval`: the function might
//! query the table. Ours do not, but PostgreSQL has no declaration for that. It does ask a support
//! function to simplify a call. In a default that COPY plans, the call is replaced by a call of its
//! *twin*: the same function, declared STABLE, beside an expression that is volatile like `nextval`
//! ([`DefaultOfCopy::with_twin`]). All other code sees the call as it is.
//!
//! A twin has two additional arguments: the oid of the original function, on which it checks
//! EXECUTE as the executor would have, and an `internal`, so that only the planner can call it. In
//! some minor versions SQL can supply a NULL of that type, so a twin does not rely on it: it
//! accepts only its own function, and does what that would.
//!
//! Benefit: COPY of 2,000,000 rows takes half as long as with a serial column, and 0.87 of its WAL
//! (bench/results/15/report.md); row by row it took as long. Cost:
//!
//! * this file and `pg/planner`, a support function, and two functions that no later version may
//!   drop, since a session may have planned a call of them;
//! * for each such default: four lookups of functions in the catalog cache, and two privilege
//!   checks;
//! * for each call site, in its first call: three lookups and one check;
//! * for each id: one COALESCE in the expression;
//! * a failed COPY may have taken the ids of the rows it had not inserted yet, up to a thousand.
//!
//! Queries, including INSERT, are unaffected, and so is all else that is planned outside of a query.

use pgrx::pg_sys;
use pgrx::prelude::*;

use super::call::{finish, given, kept, names_a_constant, oid};
use super::segment::leaf_segment_next;
use super::snowflake::leaf_snowflake_next;
use crate::error::Failure;
use crate::pg::{self, DefaultOfCopy, INTERNAL_SCHEMA, RawDatum};

#[pg_extern(strict, immutable, parallel_safe, sql = false)]
fn leaf_next_support(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: a call of the SQL function of this name.
    let call = unsafe { DefaultOfCopy::new(fcinfo) };
    let simplified = call.and_then(|call| Some(call.with_twin(twin(call)?)));
    simplified.unwrap_or_else(RawDatum::none)
}

/// The twin of the called function, if it may be substituted. If not, the call is left unchanged,
/// which is always correct.
fn twin(call: DefaultOfCopy<'_>) -> Option<u32> {
    let mut types = call.constant_types()?;
    let name = if types.is_empty() {
        c"leaf_snowflake_next_stable"
    } else {
        c"leaf_segment_next_stable"
    };
    types.extend([pg_sys::OIDOID, pg_sys::INTERNALOID]);
    let twin = pg::find_function(INTERNAL_SCHEMA, name, &types)?.oid;
    let function = call.function();
    // The executor checks EXECUTE on the twin. EXECUTE on the original function is checked here, as
    // early as the executor would, and again by the twin in case a plan outlives its role.
    let stands_for_it = stands_for(twin, function)
        && pg::public_may_execute(twin)
        && pg::caller_may_execute(function);
    stands_for_it.then_some(twin)
}

/// True if one function is the twin of the other. Only a superuser can declare a support function,
/// so no other role can create a function that passes for one of ours.
fn stands_for(twin: u32, function: u32) -> bool {
    let support = pg::find_function(
        INTERNAL_SCHEMA,
        c"leaf_next_support",
        &[pg_sys::INTERNALOID],
    );
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

/// A twin's checks in the first call of a call site. `function_number` is the position of the oid
/// argument.
///
/// If SQL could call the twin, it could pass any function, so EXECUTE on the function would prove
/// nothing without the check that it is the twin's own.
///
/// # Safety
/// `fcinfo` is the argument of a twin called by PostgreSQL, or of a function declared like one,
/// without SQL's checks, so with as many arguments.
unsafe fn check_first_call(
    fcinfo: pg_sys::FunctionCallInfo,
    function_number: usize,
    twin: &'static str,
) -> Result<(), Failure> {
    // SAFETY: guaranteed by the caller.
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
    // SAFETY: a call of the SQL function of this name, the first one of its call site; see `fmgr`.
    // The first argument is then a non-null text, as for `leaf_segment_next`. It is a constant, so
    // this holds for later calls, too.
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
    // SAFETY: a call of the SQL function of this name, which keeps nothing else; see also `fmgr`.
    unsafe {
        kept(fcinfo, || {
            finish(check_first_call(fcinfo, 0, "leaf_snowflake_next_stable"));
            true
        });
    }
    leaf_snowflake_next()
}
