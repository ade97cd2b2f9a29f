//! Suggestions for a tag that does not exist.

use super::{heap, rights};
use crate::error::Cure;
use crate::pg::{self, Table, Type};
use crate::shmem::Key;

/// Rows that are compared with a missing name at most.
const MOST: usize = 1000;

/// The suggestion for ids of a tag that does not exist. Waits for no lock.
pub fn cure(key: &Key) -> Cure {
    let issuer = pg::extension_function(c"leaf_segment_next", &[Type::Text.oid()]);
    if issuer.is_some_and(|issuer| pg::is_default(issuer.oid, key.tag.bytes())) {
        return Cure::Sync;
    }
    similar(key).map_or(Cure::Create, Cure::Similar)
}

/// A tag with a similar name that the caller may issue ids of: a name that is not the caller's is
/// not disclosed.
fn similar(key: &Key) -> Option<String> {
    let table = Table::open_at_once(key.relation, &heap::ALLOC).ok()??;
    let rows = table.first_rows(MOST).into_iter();
    let rows = rows.filter_map(|row| heap::AllocRow::of(&row));
    rows.filter(|row| rights::caller_may_issue(key.relation, &row.granted_to))
        .map(|row| row.tag)
        .find(|tag| pg::is_similar(tag.bytes(), key.tag.bytes()))
        .map(|tag| tag.name())
}
