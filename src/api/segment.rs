//! Ids of tags, for sessions and for other servers.

use pgrx::iter::SetOfIterator;
use pgrx::prelude::*;
use pgrx::{IntoDatum, pg_sys};

use super::call::{bigint, count, finish, kept, names_a_constant, second_argument, tag};
use crate::error::Failure;
use crate::pg::{self, RawDatum, RowType};
use crate::remote::serve;
use crate::segment::issue::{self, Batch, CallSite};
use crate::tags::claim::{self, ClaimProblem};

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
    let key = finish(issue::untouched(tag(fcinfo)));
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
