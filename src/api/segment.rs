//! Ids of tags.

use pgrx::iter::SetOfIterator;
use pgrx::prelude::*;
use pgrx::{IntoDatum, pg_sys};

use super::call::{count, finish, kept, names_a_constant, row_type, second_argument, tag};
use crate::pg::RawDatum;
use crate::segment::issue::{self, Batch, CallSite};

#[pg_extern(strict, parallel_safe, sql = false)]
pub fn leaf_segment_next(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: a call of the SQL function of this name, which keeps a CallSite; see also `fmgr`.
    let (site, tag) = unsafe {
        let site = kept(fcinfo, || CallSite::new(names_a_constant(fcinfo)));
        (site, tag(fcinfo))
    };
    finish(issue::next(site, tag))
}

#[pg_extern(strict, parallel_safe, sql = false)]
fn leaf_segment_next_batch(fcinfo: pg_sys::FunctionCallInfo) -> SetOfIterator<'static, i64> {
    // SAFETY: a call of the SQL function of this name; the batch copies the tag.
    let (tag, n) = unsafe { (tag(fcinfo), second_argument(fcinfo)) };
    SetOfIterator::new(Batch::new(tag, finish(count(n))))
}

#[pg_extern(strict, parallel_safe, sql = false)]
fn leaf_segment_next_range(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: a call of the SQL function of this name.
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
