//! Helpers of `leaf_sync`, `leaf_check` and `leaf_adopt` that SQL cannot provide. All run with the
//! caller's rights and check them. They are in schema leaf_id, which no other role can rename, so
//! PL/pgSQL calls them by name.

use pgrx::prelude::*;
use pgrx::{FromDatum, IntoDatum, pg_sys};

use super::call::{finish, oid, row_type, second_bigint, tag};
use crate::pg::{self, Expression, Privilege, RawDatum, Text, Unread};
use crate::segment::upcoming;
use crate::shmem::Tag;
use crate::tags::{mark, rights};

/// Reason why a column was not read.
fn reason(unread: Unread) -> &'static str {
    match unread {
        Unread::Gone => "it was dropped",
        Unread::NotATable => "it is not a table",
        Unread::OtherSession => "it is a temporary table of another session",
        Unread::Locked => "it is locked by another session: try again",
        Unread::NotAnInteger => "its values are not integers",
        Unread::Forbidden => "you may not read it",
        Unread::RowSecurity => "row-level security may hide rows from you",
        Unread::Distributed => {
            "it is a table of Citus, whose rows are in others: raise the tag by hand, on each node"
        }
    }
}

#[pg_extern(strict, sql = false)]
fn leaf_column_max(
    relation: pg_sys::Oid,
    column_number: i16,
    fcinfo: pg_sys::FunctionCallInfo,
) -> RawDatum {
    let found = pg::largest_value(relation.to_u32(), column_number);
    let unread = found.as_ref().err().map(|unread| reason(*unread));
    // Views and foreign tables have their ids elsewhere.
    let is_hidden = found.as_ref().err().map(|unread| {
        let hidden = [
            Unread::Locked,
            Unread::Forbidden,
            Unread::RowSecurity,
            Unread::Distributed,
        ];
        hidden.contains(unread)
    });
    let columns = [
        found.ok().flatten().and_then(IntoDatum::into_datum),
        unread.and_then(|reason| Text::new(reason.as_bytes()).into_datum()),
        is_hidden.and_then(IntoDatum::into_datum),
    ];
    // SAFETY: a call of the SQL function of this name, and its OUT arguments.
    unsafe { row_type(fcinfo).form(columns) }
}

/// The first argument, unless it has more bytes than the third one allows.
///
/// # Safety
/// `fcinfo` is the argument of a STRICT SQL function called by PostgreSQL, with a pg_node_tree, another argument and an
/// integer. The result is dropped before the call returns.
unsafe fn expression(fcinfo: pg_sys::FunctionCallInfo) -> Option<Expression> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let given = (*fcinfo).args.as_slice(3);
        let longest = i32::from_datum(given[2].value, false);
        let longest = longest.and_then(|bytes| usize::try_from(bytes).ok());
        Expression::from_value(given[0].value, longest.unwrap_or(0))
    }
}

#[pg_extern(strict, immutable, parallel_safe, sql = false)]
fn leaf_named_tags(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: a call of the SQL function of this name, which is strict, with a pg_node_tree, an array of oids and an
    // integer.
    let (expression, issuers) = unsafe {
        let issuers = (*fcinfo).args.as_slice(2)[1].value;
        (
            expression(fcinfo),
            Vec::<pg_sys::Oid>::from_datum(issuers, false).unwrap_or_default(),
        )
    };
    let issuers: Vec<u32> = issuers.into_iter().map(pg_sys::Oid::to_u32).collect();
    let texts = expression.map_or_else(Vec::new, |expression| expression.texts_given_to(&issuers));
    pg::texts_datum(texts.iter().map(Text::bytes)).into()
}

/// A procedure whose argument is INOUT: whether the procedure that calls it may end the transaction,
/// which only the context of a CALL says.
#[pg_extern(sql = false)]
fn leaf_may_commit(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: a call of the SQL procedure of this name, and its argument.
    unsafe {
        let may_commit = pg::is_nonatomic_call(fcinfo);
        row_type(fcinfo).form([may_commit.into_datum()])
    }
}

#[pg_extern(strict, sql = false)]
fn leaf_lock_relation(relation: pg_sys::Oid) {
    pg::lock_relation(relation.to_u32());
}

#[pg_extern(strict, sql = false)]
fn leaf_tag_next(fcinfo: pg_sys::FunctionCallInfo) -> Option<i64> {
    // SAFETY: a call of the SQL function of this name, which is strict.
    finish(upcoming::next_id(unsafe { tag(fcinfo) }))
}

#[pg_extern(strict, sql = false)]
fn leaf_mark(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    finish(rights::require(&[Privilege::Select]));
    // SAFETY: a call of the SQL function of this name, which is strict.
    let name = unsafe { tag(fcinfo) };
    Tag::new(name).map_or(0, |tag| finish(mark::get(&tag)))
}

#[pg_extern(strict, sql = false)]
fn leaf_skip_ids(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: a call of the SQL function of this name, which is strict.
    let (tag, last) = unsafe { (tag(fcinfo), second_bigint(fcinfo)) };
    finish(upcoming::skip(tag, last))
}

#[pg_extern(strict, immutable, parallel_safe, sql = false)]
fn leaf_default_source(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: a call of the SQL function of this name, which is strict, with a pg_node_tree, an oid
    // and an integer.
    let (expression, issuer) = unsafe { (expression(fcinfo), oid(fcinfo, 1)) };
    let expression = expression.as_ref();
    let tag = expression.and_then(|expression| expression.text_given_to(issuer));
    let sequence = expression.and_then(Expression::sequence);
    let texts = expression.map_or_else(Vec::new, Expression::texts);
    let columns = [
        tag.and_then(IntoDatum::into_datum),
        sequence
            .map(pg_sys::Oid::from)
            .and_then(IntoDatum::into_datum),
        Some(pg::texts_datum(texts.iter().map(Text::bytes))),
    ];
    // SAFETY: a call of the SQL function of this name, and its OUT arguments.
    unsafe { row_type(fcinfo).form(columns) }
}
