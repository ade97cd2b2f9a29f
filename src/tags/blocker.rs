//! Who keeps a claim from its row, looked for after the claim gave up waiting.

use super::heap;
use crate::pg::{self, Holder};
use crate::shmem::{Key, Trouble};

/// Who keeps the allocator from a tag's row, in a transaction of its own.
pub fn find(key: &Key) -> Trouble {
    let row = match heap::see(key) {
        Ok(Ok(Some(seen))) => pg::row_holder(seen.locker),
        _ => Holder::Nobody,
    };
    if row != Holder::Nobody {
        return Trouble::RowLocked { by: row };
    }
    match pg::table_holder(key.relation) {
        Holder::Nobody => Trouble::RowLocked { by: Holder::Nobody },
        by => Trouble::TableLocked { by },
    }
}
