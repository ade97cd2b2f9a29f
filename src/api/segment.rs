//! Ids of tags, for sessions and for other servers.

use pgrx::iter::SetOfIterator;
use pgrx::prelude::*;
use pgrx::{IntoDatum, pg_sys};

use super::call::{bigint, count, finish, kept, names_a_constant, row_type, second_argument, tag};
use crate::pg::{self, RawDatum};
use crate::remote::serve;
use crate::segment::issue::{self, Batch, CallSite};
use crate::segment::wait;
use crate::shmem::Period;
use crate::tags::claim;

#[pg_extern(
    sql = r#"
CREATE FUNCTION leaf_segment_next(tag text) RETURNS bigint
    STRICT VOLATILE PARALLEL SAFE SUPPORT leaf_id.leaf_next_support
    LANGUAGE c AS '@MODULE_PATHNAME@', 'leaf_segment_next';
COMMENT ON FUNCTION leaf_segment_next(text) IS 'The next id of a tag';
"#,
    requires = [leaf_next_support]
)]
pub fn leaf_segment_next(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: a call of the SQL function above, which keeps a CallSite; see also `fmgr`.
    let (site, tag) = unsafe {
        let site = kept(fcinfo, || CallSite::new(names_a_constant(fcinfo)));
        (site, tag(fcinfo))
    };
    finish(issue::next(site, tag))
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_segment_next_batch(tag text, n integer) RETURNS SETOF bigint
    STRICT VOLATILE PARALLEL SAFE ROWS 1000 LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_segment_next_batch(text, integer) IS
    'The next n ids of a tag, in increasing order';
"#)]
fn leaf_segment_next_batch(fcinfo: pg_sys::FunctionCallInfo) -> SetOfIterator<'static, i64> {
    // SAFETY: a call of the SQL function above; the batch copies the tag.
    let (tag, n) = unsafe { (tag(fcinfo), second_argument(fcinfo)) };
    SetOfIterator::new(Batch::new(tag, finish(count(n))))
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_segment_next_range(tag text, n integer, OUT first_id bigint, OUT last_id bigint)
    STRICT VOLATILE PARALLEL SAFE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_segment_next_range(text, integer) IS
    'The next n ids of a tag without a gap, as the first and the last; n up to max_step';
"#)]
fn leaf_segment_next_range(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: a call of the SQL function above.
    let (row, tag, n) = unsafe { (row_type(fcinfo), tag(fcinfo), second_argument(fcinfo)) };
    let columns = match finish(count(n)) {
        0 => [None, None],
        n => {
            let (first, last) = finish(issue::next_range(tag, n));
            [first.into_datum(), last.into_datum()]
        }
    };
    // SAFETY: its OUT arguments.
    unsafe { row.form(columns) }
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_claim(
    tag text, n integer, OUT first_id bigint, OUT last_id bigint, OUT incarnation bigint,
    OUT max_step integer, OUT max_value bigint, OUT skipped bigint, OUT growth_limited boolean,
    OUT period_first bigint, OUT period_left_us bigint,
    OUT opaque_key bigint, OUT opaque_bounds bigint[], OUT key text)
    STRICT VOLATILE PARALLEL UNSAFE LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_claim(text, integer) IS
    'Claims at most n ids of a tag for another server, for 0 its step; not in a transaction block';
"#)]
fn leaf_claim(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: a call of the SQL function above.
    let (row, tag, n) = unsafe { (row_type(fcinfo), tag(fcinfo), second_argument(fcinfo)) };
    // Short, as a locked row here holds up a member's other tags.
    finish(serve::begin(c"leaf_claim()", c"300ms"));
    let n = finish(count(n));
    let key = finish(wait::untouched(tag));
    let answer = finish(claim::claim_for_member(&key, n));
    claim::log_skip(&key.tag, answer.skipped);
    // Last: it counts from when the answer arrives.
    let left = |period: Period| (pg::end_timestamp(period.end) - pg::now_timestamp()).max(0);
    let left_us = answer.period.map(left);
    pg::tell();
    let columns = [
        answer.first.into_datum(),
        (answer.end() - 1).into_datum(),
        answer.incarnation.into_datum(),
        answer.max_step.cast_signed().into_datum(),
        answer.max_value.into_datum(),
        bigint(answer.skipped).into_datum(),
        answer.growth_limited.into_datum(),
        answer.period.map(|period| period.first).into_datum(),
        left_us.into_datum(),
        answer.opaque.map(|handed| handed.opaque.key.into()),
        answer
            .opaque
            .map(|handed| pg::bigints_datum(handed.opaque.domain.bounds())),
        answer.opaque.and_then(|handed| handed.hex().into_datum()),
    ];
    // SAFETY: its OUT arguments.
    unsafe { row.form(columns) }
}
