//! The functions as PostgreSQL calls them, where that is not left to pgrx.
//!
//! Two, and what the planner puts in their place, have an entry of their own. What nearly every
//! call does is done there, without pgrx's guard, which costs as much again: so nothing in an entry
//! may panic, or call what can raise an error. Everything else is behind the guard, in the
//! function that pgrx made.

use leaf_id_core::segment::Taken;
use pgrx::pg_sys;
use pgrx::pg_sys::submodules::panic::pgrx_extern_c_guard;

use super::call::{first_text, inline_bytes};
use super::segment::leaf_segment_next_wrapper;
use super::snowflake::leaf_snowflake_next_wrapper;
use super::support::{leaf_segment_next_stable_wrapper, leaf_snowflake_next_stable_wrapper};
use crate::segment::issue::{self, CallSite, Unguarded};
use crate::segment::take;
use crate::shmem::SlotRef;
use crate::snowflake;

/// PostgreSQL's only calling convention, said by a `pg_finfo_` function for each function
/// that pgrx did not make.
static CONVENTION: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };

/// What an entry leaves to the function that pgrx made. Out of line: an entry needs no
/// registers saved and no stack for it.
#[cold]
#[inline(never)]
fn guarded(
    function: unsafe extern "C-unwind" fn(pg_sys::FunctionCallInfo) -> pg_sys::Datum,
    fcinfo: pg_sys::FunctionCallInfo,
) -> pg_sys::Datum {
    // SAFETY: the call that PostgreSQL has made, of the same function.
    unsafe { function(fcinfo) }
}

/// `leaf_segment_next` as PostgreSQL calls it.
#[unsafe(export_name = "leaf_segment_next")]
unsafe extern "C-unwind" fn segment_entry(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: PostgreSQL calls this, so flinfo is set, and fn_extra null or the CallSite that
    // `leaf_segment_next` has kept.
    let site = unsafe { (*(*fcinfo).flinfo).fn_extra.cast::<CallSite>().as_ref() };
    let Some(site) = site else {
        return guarded(leaf_segment_next_wrapper, fcinfo);
    };
    issue::next_unguarded(site, SegmentCall(fcinfo))
}

/// A call of `leaf_segment_next`.
#[derive(Clone, Copy)]
struct SegmentCall(pg_sys::FunctionCallInfo);

impl<'a> Unguarded<'a> for SegmentCall {
    type Id = pg_sys::Datum;

    #[inline]
    fn tag(self) -> Option<&'a [u8]> {
        // SAFETY: the call of `segment_entry`: STRICT, and the argument is a text that outlives it.
        unsafe { inline_bytes(first_text(self.0)) }
    }

    #[cold]
    #[inline(never)]
    fn finish(self, slot_ref: &SlotRef, taken: &Taken) -> pg_sys::Datum {
        // SAFETY: no frame above this one, up to PostgreSQL's, has anything to drop, so the error
        // that the guard raises may jump over them.
        unsafe {
            pgrx_extern_c_guard(|| {
                take::finish(slot_ref, taken);
                taken.first.into()
            })
        }
    }

    #[inline]
    fn next(self) -> pg_sys::Datum {
        guarded(leaf_segment_next_wrapper, self.0)
    }
}

#[unsafe(no_mangle)]
extern "C" fn pg_finfo_leaf_segment_next() -> &'static pg_sys::Pg_finfo_record {
    &CONVENTION
}

/// `leaf_segment_next_stable` as PostgreSQL calls it: the same, but for the first call.
#[unsafe(export_name = "leaf_segment_next_stable")]
unsafe extern "C-unwind" fn stable_segment_entry(
    fcinfo: pg_sys::FunctionCallInfo,
) -> pg_sys::Datum {
    // SAFETY: as in `segment_entry`. Who has kept a CallSite here has found the tag to be a
    // constant, and not null.
    unsafe {
        if (*(*fcinfo).flinfo).fn_extra.is_null() {
            return guarded(leaf_segment_next_stable_wrapper, fcinfo);
        }
        segment_entry(fcinfo)
    }
}

#[unsafe(no_mangle)]
extern "C" fn pg_finfo_leaf_segment_next_stable() -> &'static pg_sys::Pg_finfo_record {
    &CONVENTION
}

/// `leaf_snowflake_next` as PostgreSQL calls it.
#[unsafe(export_name = "leaf_snowflake_next")]
unsafe extern "C-unwind" fn snowflake_entry(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    match snowflake::issue::next_at_once() {
        Some(id) => id.into(),
        None => guarded(leaf_snowflake_next_wrapper, fcinfo),
    }
}

#[unsafe(no_mangle)]
extern "C" fn pg_finfo_leaf_snowflake_next() -> &'static pg_sys::Pg_finfo_record {
    &CONVENTION
}

/// `leaf_snowflake_next_stable` as PostgreSQL calls it: the same, but for the first call.
#[unsafe(export_name = "leaf_snowflake_next_stable")]
unsafe extern "C-unwind" fn stable_snowflake_entry(
    fcinfo: pg_sys::FunctionCallInfo,
) -> pg_sys::Datum {
    // SAFETY: PostgreSQL calls this, so flinfo is set; the call goes on as it came.
    unsafe {
        if (*(*fcinfo).flinfo).fn_extra.is_null() {
            return guarded(leaf_snowflake_next_stable_wrapper, fcinfo);
        }
        snowflake_entry(fcinfo)
    }
}

#[unsafe(no_mangle)]
extern "C" fn pg_finfo_leaf_snowflake_next_stable() -> &'static pg_sys::Pg_finfo_record {
    &CONVENTION
}
