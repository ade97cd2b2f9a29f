//! What `leaf_sync` and `leaf_check` need beyond SQL. Both run with the caller's rights, and
//! check them. They stand in schema leaf_id, which nobody can rename: PL/pgSQL calls them by
//! name.

use pgrx::prelude::*;
use pgrx::{IntoDatum, pg_sys};

use super::call::{finish, row_type, tag};
use crate::pg::{self, RawDatum, Text, Unread};
use crate::segment::upcoming;

/// `leaf_fit_tags()` tells by these words where there may be ids that nobody has seen.
fn reason(unread: Unread) -> &'static str {
    match unread {
        Unread::Gone => "it was dropped",
        Unread::NotATable => "it is not a table",
        Unread::OtherSession => "it is a temporary table of another session",
        Unread::Locked => "it is locked by another session: try again",
        Unread::NotAnInteger => "its values are not integers",
        Unread::Forbidden => "you may not read it",
        Unread::RowSecurity => "row-level security may hide rows from you",
    }
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_id.leaf_column_max(
    relation oid, column_number smallint, OUT largest bigint, OUT unread text)
    STRICT VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_id.leaf_column_max(oid, smallint) IS
    'The largest value in an integer column of one table, or why it was not read; runs no code of the table''s owner';
"#)]
fn leaf_column_max(
    relation: pg_sys::Oid,
    column_number: i16,
    fcinfo: pg_sys::FunctionCallInfo,
) -> RawDatum {
    let found = pg::largest_value(relation.to_u32(), column_number);
    let unread = found.as_ref().err().map(|unread| reason(*unread));
    let columns = [
        found.ok().flatten().and_then(IntoDatum::into_datum),
        unread.and_then(|reason| Text::new(reason.as_bytes()).into_datum()),
    ];
    // SAFETY: a call of the SQL function above, and its OUT arguments.
    unsafe { row_type(fcinfo).form(columns) }
}

#[pg_extern(sql = r#"
CREATE FUNCTION leaf_id.leaf_tag_next(tag text) RETURNS bigint
    STRICT VOLATILE PARALLEL UNSAFE
    LANGUAGE c AS '@MODULE_PATHNAME@', '@FUNCTION_NAME@';
COMMENT ON FUNCTION leaf_id.leaf_tag_next(text) IS
    'No id of the tag that is issued from now on is smaller; null where that is not known at the moment';
"#)]
fn leaf_tag_next(fcinfo: pg_sys::FunctionCallInfo) -> Option<i64> {
    // SAFETY: a call of the SQL function above, which is strict.
    finish(upcoming::next_id(unsafe { tag(fcinfo) }))
}
