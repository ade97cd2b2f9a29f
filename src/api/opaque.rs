//! Opaque ids, encoding and decoding, and their keys.

use leaf_id_core::opaque::Permutation;
use pgrx::pg_sys;
use pgrx::prelude::*;

use super::call::{finish, second_bigint, tag, text, trigger_call};
use crate::error::Failure;
use crate::pg::{self, Privilege, RawDatum};
use crate::segment::opaque as ids;
use crate::shmem::Tag;
use crate::tags::{opaque as keys, rights, transaction};

fn name(tag: &[u8]) -> Result<Tag, Failure> {
    Tag::new(tag).ok_or(Failure::TagLength { bytes: tag.len() })
}

#[pg_extern(strict, parallel_safe, sql = false)]
fn leaf_opaque_next(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: a call of the SQL function of this name.
    finish(ids::next(unsafe { tag(fcinfo) }))
}

#[pg_extern(strict, stable, parallel_safe, sql = false)]
fn leaf_opaque_encode(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: a call of the SQL function of this name, which is strict, with a text and a bigint.
    let (tag, value) = unsafe { (tag(fcinfo), second_bigint(fcinfo)) };
    finish(ids::map(tag, value, Permutation::encode))
}

#[pg_extern(strict, stable, parallel_safe, sql = false)]
fn leaf_opaque_decode(fcinfo: pg_sys::FunctionCallInfo) -> i64 {
    // SAFETY: as above.
    let (tag, value) = unsafe { (tag(fcinfo), second_bigint(fcinfo)) };
    finish(ids::map(tag, value, Permutation::decode))
}

#[pg_extern(strict, stable, parallel_safe, sql = false)]
fn leaf_opaque_key(fcinfo: pg_sys::FunctionCallInfo) -> String {
    // SAFETY: a call of the SQL function of this name.
    let tag = finish(name(unsafe { tag(fcinfo) }));
    finish(keys::hex(&tag))
}

#[pg_extern(strict, stable, parallel_safe, sql = false)]
fn leaf_has_key(fcinfo: pg_sys::FunctionCallInfo) -> bool {
    // SAFETY: a call of the SQL function of this name.
    let tag = unsafe { tag(fcinfo) };
    Tag::new(tag).is_some_and(|tag| finish(keys::has_key(&tag)))
}

/// The part of `leaf_opaque_create` that SQL cannot do: for roles that may execute that one.
#[pg_extern(strict, sql = false)]
fn leaf_make_key(fcinfo: pg_sys::FunctionCallInfo) {
    let types = [
        pg_sys::TEXTOID,
        pg_sys::INT8OID,
        pg_sys::INT4OID,
        pg_sys::INT4OID,
        pg_sys::TEXTOID,
        pg_sys::TEXTOID,
    ];
    let create = pg::find_function(pg::SCHEMA, c"leaf_opaque_create", &types);
    // No function has the oid 0, which is an error.
    pg::check_execute(create.map_or(0, |create| create.oid));
    // leaf_opaque_create() inserts the row of the tag, too.
    finish(rights::require(&[Privilege::Insert]));
    // SAFETY: a call of the SQL function of this name, which is strict, with a text, a bigint and a
    // text.
    let (tag, last, key) = unsafe { (tag(fcinfo), second_bigint(fcinfo), text(fcinfo, 2)) };
    let tag = finish(name(tag));
    // An empty string requests a random key.
    let key = Some(key).filter(|key| !key.is_empty());
    finish(keys::create(&tag, last, key));
    // Prepared, it would be a key that waits for its tag.
    transaction::watch();
}

#[pg_extern(sql = false)]
fn leaf_opaque_key_changed(fcinfo: pg_sys::FunctionCallInfo) -> RawDatum {
    // SAFETY: a call of the SQL function of this name.
    let call = unsafe { trigger_call(fcinfo, "leaf_opaque_key_changed") };
    keys::key_changed();
    call.unchanged()
}
