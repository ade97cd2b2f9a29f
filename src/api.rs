//! The SQL functions: check, call, convert.

#![allow(unsafe_code)]

use leaf_id_core::segment::Taken;
use leaf_id_core::snowflake::{MAX_MS, MAX_SEQUENCE, MAX_WORKER_ID, Parts};
use pgrx::iter::SetOfIterator;
use pgrx::pg_sys::submodules::panic::pgrx_extern_c_guard;
use pgrx::prelude::*;
use pgrx::{IntoDatum, pg_sys};

use crate::error::Failure;
use crate::pg::{self, RawDatum, RowType, TriggerCall};
use crate::remote::serve;
use crate::segment::issue::{self, Batch, CallSite, Unguarded};
use crate::segment::{take, wait};
use crate::shmem::{self, SlotRef};
use crate::snowflake::keeper;
use crate::tags::claim::{self, ClaimProblem};
use crate::tags::heap::{ALLOC, AllocRow};
use crate::tags::transaction::{self as edits, Edit};

mod status;
mod workers;

use status::bigint;

pgrx::extension_sql_file!("../sql/schema.sql", name = "schema", bootstrap);
pgrx::extension_sql_file!(
    "../sql/tags.sql",
    name = "tags",
    requires = [
        "schema",
        leaf_alloc_stamp,
        leaf_alloc_edit,
        leaf_alloc_truncate
    ]
);
pgrx::extension_sql_file!("../sql/rights.sql", name = "rights", requires = ["tags"]);
pgrx::extension_sql_file!(
    "../sql/views.sql",
    name = "views",
    requires = ["tags", leaf_segment_slots, leaf_snowflake_state]
);
pgrx::extension_sql_file!("../sql/privileges.sql", name = "privileges", finalize);

/// What a call site keeps between its calls (PostgreSQL's `fn_extra`), made by the first.
#[inline]
fn kept<'a, T: Copy>(fcinfo: pg_sys::FunctionCallInfo, make: impl FnOnce() -> T) -> &'a mut T {
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
fn first_text(fcinfo: pg_sys::FunctionCallInfo) -> *mut pg_sys::varlena {
    // SAFETY: called through SQL, with as many arguments as were declared.
    unsafe { (*(*fcinfo).args.as_ptr()).value.cast_mut_ptr() }
}

/// The bytes of the first argument. They live as long as the call.
#[inline]
fn tag<'a>(fcinfo: pg_sys::FunctionCallInfo) -> &'a [u8] {
    let text = first_text(fcinfo);
    inline_bytes(text).unwrap_or_else(|| {
        // SAFETY: a valid varlena.
        unsafe { pgrx::varlena_to_byte_slice(pg_sys::pg_detoast_datum_packed(text)) }
    })
}

/// The bytes of a text that is stored inline, which the header's low bits tell.
#[inline]
fn inline_bytes<'a>(text: *mut pg_sys::varlena) -> Option<&'a [u8]> {
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
fn names_a_constant(fcinfo: pg_sys::FunctionCallInfo) -> bool {
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
fn second_argument(fcinfo: pg_sys::FunctionCallInfo) -> i32 {
    // SAFETY: a STRICT function of two arguments.
    let value = unsafe { (*(*fcinfo).args.as_ptr().add(1)).value.value() };
    #[expect(
        clippy::cast_possible_truncation,
        reason = "an integer is the datum's low half"
    )]
    let n = value as i32;
    n
}

fn count(n: i32) -> Result<u32, Failure> {
    u32::try_from(n).map_err(|_| Failure::NegativeCount { n })
}

/// PostgreSQL's only calling convention, said by a `pg_finfo_` function for each function
/// that pgrx did not make.
///
/// Two have an entry of their own. What nearly every call does is done there, without
/// pgrx's guard, which costs as much again: so nothing in an entry may panic, or call what
/// can raise an error. Everything else is behind the guard, in the function that pgrx made.
static CONVENTION: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };

/// What an entry leaves to the function that pgrx made. Out of line: an entry needs no
/// registers saved and no stack for it.
#[cold]
#[inline(never)]
fn guarded(
    function: unsafe extern "C-unwind" fn(pg_sys::FunctionCallInfo) -> pg_sys::Datum,
    fcinfo: pg_sys::FunctionCallInfo,
) -> pg_sys::Datum {
    // SAFETY: the same call.
    unsafe { function(fcinfo) }
}

/// The result of an SQL function: the value, or an ERROR.
#[inline]
fn finish<T>(result: Result<T, Failure>) -> T {
    match result {
        Ok(value) => value,
        Err(failure) => failure.raise(),
    }
}

/// `leaf_segment_next` as PostgreSQL calls it; see [`CONVENTION`].
#[unsafe(export_name = "leaf_segment_next")]
unsafe extern "C-unwind" fn segment_entry(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    // SAFETY: as in `kept`: fn_extra is null or our CallSite.
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
        inline_bytes(first_text(self.0))
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

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_segment_next(tag text) RETURNS bigint
    STRICT VOLATILE PARALLEL SAFE LANGUAGE c AS '@MODULE_PATHNAME@', 'leaf_segment_next';
COMMENT ON FUNCTION leaf_segment_next(text) IS 'The next id of a tag';
"#)]
fn leaf_segment_next(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    let site = kept(fcinfo, || CallSite::new(names_a_constant(fcinfo)));
    finish(issue::next(site, tag(fcinfo)))
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_segment_next_batch(tag text, n integer) RETURNS SETOF bigint
    STRICT VOLATILE PARALLEL SAFE ROWS 1000 LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_segment_next_batch(text, integer) IS
    'The next n ids of a tag, in increasing order';
"#)]
fn leaf_segment_next_batch(fcinfo: pg_sys::FunctionCallInfo) -> SetOfIterator<'static, i64> {
    let n = finish(count(second_argument(fcinfo)));
    SetOfIterator::new(Batch::new(tag(fcinfo), n))
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_segment_next_range(tag text, n integer, OUT first_id bigint, OUT last_id bigint)
    STRICT VOLATILE PARALLEL SAFE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_segment_next_range(text, integer) IS
    'The next n ids of a tag without a gap, as the first and the last; n up to max_step';
"#)]
fn leaf_segment_next_range(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    let row = kept(fcinfo, || RowType::of(fcinfo));
    let n = finish(count(second_argument(fcinfo)));
    if n == 0 {
        return row.form([None, None]);
    }
    let range = issue::next_range(tag(fcinfo), n);
    let (first, last) = finish(range);
    row.form([first.into_datum(), last.into_datum()])
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_claim(
    tag text, n integer, OUT first_id bigint, OUT last_id bigint, OUT incarnation bigint,
    OUT max_step integer, OUT max_value bigint, OUT skipped bigint, OUT growth_limited boolean)
    STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_claim(text, integer) IS
    'Claims at most n ids of a tag for another server, for 0 its step; not in a transaction block';
"#)]
fn leaf_claim(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    let row = kept(fcinfo, || RowType::of(fcinfo));
    // Short, as a locked row here holds up a member's other tags.
    finish(serve::begin(c"leaf_claim()", c"300ms"));
    let n = finish(count(second_argument(fcinfo)));
    let key = finish(wait::untouched(tag(fcinfo)));
    let tag = key.tag.name();
    let claimed = claim::claim_for_member(&key, n);
    let answer = finish(claimed.map_err(|problem| match problem {
        ClaimProblem::NoSuchTag => Failure::NoSuchTag { tag },
        ClaimProblem::Forbidden => Failure::TagForbidden { tag },
        ClaimProblem::EndOfTag { max_value, skip } => Failure::end_of_tag(tag, max_value, skip),
        ClaimProblem::MaxIdBackwards { published, found } => Failure::MaxIdBackwards {
            tag,
            published,
            found,
        },
        ClaimProblem::Sourced(source) => Failure::SourcedElsewhere {
            tag,
            server: source.server.text(),
        },
    }));
    claim::log_skip(&key.tag, answer.skipped);
    pg::tell();
    row.form([
        answer.first.into_datum(),
        (answer.end() - 1).into_datum(),
        answer.incarnation.into_datum(),
        answer.max_step.cast_signed().into_datum(),
        answer.max_value.into_datum(),
        bigint(answer.skipped).into_datum(),
        answer.growth_limited.into_datum(),
    ])
}

/// `leaf_snowflake_next` as PostgreSQL calls it; see [`CONVENTION`].
#[unsafe(export_name = "leaf_snowflake_next")]
unsafe extern "C-unwind" fn snowflake_entry(fcinfo: pg_sys::FunctionCallInfo) -> pg_sys::Datum {
    match issue::next_snowflake_at_once() {
        Some(id) => id.into(),
        None => guarded(leaf_snowflake_next_wrapper, fcinfo),
    }
}

#[unsafe(no_mangle)]
extern "C" fn pg_finfo_leaf_snowflake_next() -> &'static pg_sys::Pg_finfo_record {
    &CONVENTION
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_snowflake_next() RETURNS bigint
    STRICT VOLATILE PARALLEL SAFE LANGUAGE c AS '@MODULE_PATHNAME@', 'leaf_snowflake_next';
COMMENT ON FUNCTION leaf_snowflake_next() IS
    'The next snowflake id of this server: 41 bits of milliseconds, worker id, sequence';
"#)]
fn leaf_snowflake_next() -> i64 {
    finish(issue::next_snowflake())
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_snowflake_next_batch(n integer) RETURNS SETOF bigint
    STRICT VOLATILE PARALLEL SAFE ROWS 1000 LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_snowflake_next_batch(integer) IS
    'The next n snowflake ids, in increasing order';
"#)]
fn leaf_snowflake_next_batch(n: i32) -> SetOfIterator<'static, i64> {
    let n = finish(count(n));
    SetOfIterator::new((0..n).map(|_| finish(issue::next_snowflake())))
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_snowflake_reset(until timestamptz) RETURNS void
    STRICT VOLATILE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_snowflake_reset(timestamptz) IS
    'Lets snowflake ids carry times later than until, whatever was reserved before: for a worker id that was never used; superuser only';
"#)]
fn leaf_snowflake_reset(until: TimestampWithTimeZone) {
    finish(keeper::reset(until.into()));
}

/// The time of a timestamp that PostgreSQL cannot hold is an error, not a wrap.
fn timestamp(unix_ms: i64) -> Option<i64> {
    unix_ms
        .checked_mul(1000)?
        .checked_sub(pg::TIMESTAMP_EPOCH_US)
}

fn decode(fcinfo: pg_sys::FunctionCallInfo, id: i64, epoch_ms: i64) -> Result<RawDatum, Failure> {
    let parts = Parts::decompose(id).ok_or(Failure::NoSnowflake { id })?;
    let ts = epoch_ms
        .checked_add(parts.ms)
        .and_then(timestamp)
        .ok_or(Failure::BadEpoch { epoch_ms })?;
    Ok(kept(fcinfo, || RowType::of(fcinfo)).form([
        ts.into_datum(),
        i32::from(parts.worker_id).into_datum(),
        i32::from(parts.sequence).into_datum(),
    ]))
}

/// The configured epoch; an id means nothing without one.
fn configured_epoch() -> Result<i64, Failure> {
    let area = shmem::area().ok_or(Failure::NotPreloaded)?;
    Ok(area
        .snowflake
        .epoch_ms
        .load(core::sync::atomic::Ordering::Relaxed))
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_snowflake_decode(
    id bigint, OUT ts timestamptz, OUT worker_id integer, OUT sequence integer)
    STRICT STABLE PARALLEL SAFE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_snowflake_decode(bigint) IS
    'The parts of a snowflake id, with the epoch of leaf_id.epoch';
"#)]
fn leaf_snowflake_decode(id: i64, fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    finish(configured_epoch().and_then(|epoch_ms| decode(fcinfo, id, epoch_ms)))
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_snowflake_decode(
    id bigint, epoch bigint, OUT ts timestamptz, OUT worker_id integer, OUT sequence integer)
    STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_snowflake_decode(bigint, bigint) IS
    'The parts of a snowflake id, with an epoch in Unix milliseconds';
"#)]
fn leaf_snowflake_decode_with_epoch(
    id: i64,
    epoch: i64,
    fcinfo: pg_sys::FunctionCallInfo,
) -> RawDatum {
    finish(decode(fcinfo, id, epoch))
}

/// Milliseconds since the epoch within which a timestamp lies; clamped to what ids hold,
/// as the infinities are.
fn ms_since(ts: i64, epoch_ms: i64) -> i64 {
    match ts {
        i64::MIN => i64::MIN,
        i64::MAX => i64::MAX,
        us => (us.saturating_add(pg::TIMESTAMP_EPOCH_US))
            .div_euclid(1000)
            .saturating_sub(epoch_ms),
    }
}

fn lower_bound(ts: i64, epoch_ms: i64) -> i64 {
    let ms = ms_since(ts, epoch_ms);
    if ms > MAX_MS {
        return i64::MAX;
    }
    Parts {
        ms: ms.max(0),
        worker_id: 0,
        sequence: 0,
    }
    .compose()
}

fn upper_bound(ts: i64, epoch_ms: i64) -> i64 {
    let ms = ms_since(ts, epoch_ms);
    if ms < 0 {
        return -1;
    }
    Parts {
        ms: ms.min(MAX_MS),
        worker_id: MAX_WORKER_ID,
        sequence: MAX_SEQUENCE,
    }
    .compose()
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_snowflake_min(ts timestamptz) RETURNS bigint
    STRICT STABLE PARALLEL SAFE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_snowflake_min(timestamptz) IS
    'The smallest snowflake id of the millisecond of ts: WHERE id >= leaf_snowflake_min(from)';
"#)]
fn leaf_snowflake_min(ts: TimestampWithTimeZone) -> i64 {
    lower_bound(ts.into(), finish(configured_epoch()))
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_snowflake_min(ts timestamptz, epoch bigint) RETURNS bigint
    STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_snowflake_min(timestamptz, bigint) IS
    'The same with an epoch in Unix milliseconds, for partition bounds and checks';
"#)]
fn leaf_snowflake_min_with_epoch(ts: TimestampWithTimeZone, epoch: i64) -> i64 {
    lower_bound(ts.into(), epoch)
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_snowflake_max(ts timestamptz) RETURNS bigint
    STRICT STABLE PARALLEL SAFE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_snowflake_max(timestamptz) IS
    'The largest snowflake id of the millisecond of ts: WHERE id <= leaf_snowflake_max(until)';
"#)]
fn leaf_snowflake_max(ts: TimestampWithTimeZone) -> i64 {
    upper_bound(ts.into(), finish(configured_epoch()))
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_snowflake_max(ts timestamptz, epoch bigint) RETURNS bigint
    STRICT IMMUTABLE PARALLEL SAFE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_snowflake_max(timestamptz, bigint) IS
    'The same with an epoch in Unix milliseconds, for partition bounds and checks';
"#)]
fn leaf_snowflake_max_with_epoch(ts: TimestampWithTimeZone, epoch: i64) -> i64 {
    upper_bound(ts.into(), epoch)
}

// ---- Triggers ----------------------------------------------------------------------

fn trigger_call(fcinfo: pg_sys::FunctionCallInfo, function: &'static str) -> TriggerCall {
    finish(TriggerCall::new(fcinfo).ok_or(Failure::NotATrigger { function }))
}

/// Whether the rows can be looked at. Where they cannot, an apply worker goes on all the same,
/// as an error would stop all its tables: it counts as an edit of every tag.
fn is_readable(call: &TriggerCall) -> bool {
    match call.check(&ALLOC) {
        Ok(()) => true,
        Err(misshapen) if pg::replica_role() => {
            let detail = misshapen.detail;
            pgrx::log!("leaf_id: table leaf_id.leaf_alloc was altered: {detail}");
            edits::note_truncate(call.relation());
            false
        }
        Err(misshapen) => Failure::from(misshapen).raise(),
    }
}

/// The row edit, for a row trigger.
fn edit(call: &TriggerCall) -> Edit {
    Edit {
        relation: call.relation(),
        old: call.old().as_ref().map(AllocRow::of),
        new: call.new_row().as_ref().map(AllocRow::of),
        replica: pg::replica_role(),
    }
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_alloc_stamp() RETURNS trigger
    LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_alloc_stamp() IS
    'Trigger: stamps rows of leaf_id.leaf_alloc, and refuses to lower max_id';
"#)]
fn leaf_alloc_stamp(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    let call = trigger_call(fcinfo, "leaf_alloc_stamp");
    if !is_readable(&call) {
        return call.unchanged();
    }
    let stamp = finish(edits::stamp(&edit(&call)));
    call.with(&stamp.changes())
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_alloc_edit() RETURNS trigger
    LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_alloc_edit() IS
    'Trigger: makes edits of leaf_id.leaf_alloc known to every session when they commit';
"#)]
fn leaf_alloc_edit(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    let call = trigger_call(fcinfo, "leaf_alloc_edit");
    if is_readable(&call) {
        let edit = edit(&call);
        finish(edits::check_written(&edit));
        edits::remember(&edit);
    }
    call.unchanged()
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_alloc_truncate() RETURNS trigger
    LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_alloc_truncate() IS
    'Trigger: drops every cached segment of this database when a TRUNCATE commits';
"#)]
fn leaf_alloc_truncate(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    let call = trigger_call(fcinfo, "leaf_alloc_truncate");
    is_readable(&call);
    edits::note_truncate(call.relation());
    call.unchanged()
}
