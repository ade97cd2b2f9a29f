//! Holders of locks that block a claim, looked up after it has timed out.

use super::heap::{self, Look};
use crate::error::RefillError;
use crate::pg::{self, LockHolder};
use crate::shmem::Key;

/// The holder that blocks the allocator from a tag's row. Runs in a separate transaction.
pub fn find(key: &Key) -> RefillError {
    let row = match heap::see(key) {
        Ok(Look::Row(seen)) => pg::row_holder(seen.locker),
        _ => LockHolder::Unknown,
    };
    if row != LockHolder::Unknown {
        return RefillError::RowLocked { by: row };
    }
    match pg::table_holder(key.relation) {
        LockHolder::Unknown => RefillError::RowLocked {
            by: LockHolder::Unknown,
        },
        by => RefillError::TableLocked { by },
    }
}
