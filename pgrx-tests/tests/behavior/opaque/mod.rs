//! Opaque ids: numbers of a tag, encrypted.

mod ids;
mod keys;

use std::collections::HashSet;

use leaf_id_tests::Session;

/// Creates an opaque tag with segments of constant length.
pub(crate) fn create(session: &mut Session, tag: &str, step: i32, arguments: &str) {
    session.run(&format!(
        "SELECT leaf_id.leaf_opaque_create('{tag}', step => {step}, max_step => {step}{arguments})"
    ));
}

/// `count` ids, by as many calls.
#[track_caller]
pub(crate) fn take(session: &mut Session, tag: &str, count: i32) -> Vec<i64> {
    session.ids(&format!(
        "SELECT leaf_opaque_next('{tag}') FROM generate_series(1, {count})"
    ))
}

/// Numbers behind ids.
#[track_caller]
pub(crate) fn decoded(session: &mut Session, tag: &str, ids: &[i64]) -> Vec<i64> {
    let sql = "SELECT leaf_id.leaf_opaque_decode($1, id) FROM unnest($2::bigint[]) WITH ORDINALITY u (id, n) ORDER BY n";
    let rows = session.query(sql, &[&tag, &ids]).unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[track_caller]
pub(crate) fn assert_distinct(ids: &[i64]) {
    let distinct: HashSet<_> = ids.iter().collect();
    assert_eq!(distinct.len(), ids.len(), "an id was issued twice");
}

/// Asserts that the ids are opaque, their numbers distinct, and in order.
#[track_caller]
pub(crate) fn assert_opaque(session: &mut Session, tag: &str, ids: &[i64]) {
    assert_distinct(ids);
    let numbers = decoded(session, tag, ids);
    assert!(numbers.is_sorted(), "the numbers are out of order");
    assert!(numbers != ids, "they are not opaque");
}
