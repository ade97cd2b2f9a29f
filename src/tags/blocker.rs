//! Holders of locks that block a claim, looked up after it has timed out.

use super::heap::{self, Look};
use super::mark;
use crate::error::{Locked, RefillClass, RefillError};
use crate::pg::{self, LockHolder};
use crate::shmem::Key;

/// The holder that blocks the allocator from a tag's row or the mark of its name, or from one of the
/// tables. Runs in a separate transaction, and waits for no lock.
pub fn find(key: &Key) -> RefillError {
    let row = match heap::see(key) {
        Ok(Look::Row(seen)) => pg::row_holder(seen.locker),
        _ => LockHolder::Unknown,
    };
    let mark = mark::relation().ok();
    let mark_row = match mark.map(|relation| mark::see(relation, &key.tag)) {
        Some(Ok(Look::Row(locker))) => pg::row_holder(locker),
        _ => LockHolder::Unknown,
    };
    let of_table = |of, relation| RefillError::TableLocked {
        of,
        by: pg::table_holder(relation),
    };
    let found = [
        Some(RefillError::RowLocked {
            of: Locked::Tag,
            by: row,
        }),
        Some(RefillError::RowLocked {
            of: Locked::Mark,
            by: mark_row,
        }),
        Some(of_table(Locked::Tag, key.relation)),
        mark.map(|relation| of_table(Locked::Mark, relation)),
    ];
    let names_one = |error: &RefillError| error.class() != RefillClass::Locked(LockHolder::Unknown);
    found
        .into_iter()
        .flatten()
        .find(names_one)
        .unwrap_or(RefillError::RowLocked {
            of: Locked::Tag,
            by: LockHolder::Unknown,
        })
}
