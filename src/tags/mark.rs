//! Marks of names: one past the highest id ever claimed under a name in this database. The rules
//! are in `leaf_id_core::row`.
//!
//! Claims write marks by oid, bypassing triggers, like rows. A trigger in SQL (sql/tags.sql) writes
//! the marks left by edits, so that tools that copy the table see them.

use super::heap;
use crate::error::Failure;
use crate::pg::{self, Access, Shape, Table, Type, Value};
use crate::shmem::Tag;

/// Shape of `leaf_high_mark`, as created by sql/schema.sql.
static MARKS: Shape = Shape::new(
    c"leaf_high_mark",
    &[(c"tag", Type::Text), (c"high", Type::Bigint)],
    &[
        c"leaf_high_mark_tag_length",
        c"leaf_high_mark_high_positive",
    ],
);
const TAG: usize = 1;
const HIGH: usize = 2;

fn open(access: Access) -> Result<Table, Failure> {
    let relation = pg::find_table(&MARKS).ok_or(Failure::NoMarkTable)?;
    Table::open(relation, &MARKS, access)?.ok_or(Failure::NoMarkTable)
}

/// The mark of a name as committed now, or as modified by this transaction; 0 if none.
///
/// # Errors
/// The table of marks was dropped or altered.
pub fn get(tag: &Tag) -> Result<i64, Failure> {
    let row = open(Access::Read)?.get(&heap::key(tag));
    Ok(row.and_then(|row| row.bigint(HIGH)).unwrap_or(0))
}

/// The locked mark of a name. Lock order: the tag's row first.
pub struct LockedMark {
    table: Table,
    stored: Option<pg::Row>,
}

/// Locks the mark of a name, if it exists.
///
/// # Errors
/// As [`get`].
pub fn lock(tag: &Tag) -> Result<LockedMark, Failure> {
    let table = open(Access::Write)?;
    let stored = table.lock(&heap::key(tag));
    Ok(LockedMark { table, stored })
}

impl LockedMark {
    /// The mark; 0 if there is none.
    pub fn high(&self) -> i64 {
        self.stored
            .as_ref()
            .and_then(|row| row.bigint(HIGH))
            .unwrap_or(0)
    }

    /// Deletes the mark; false if there is none.
    pub fn forget(&self) -> bool {
        if let Some(row) = &self.stored {
            self.table.delete(row);
        }
        self.stored.is_some()
    }

    /// Raises the mark to `high`, or creates it. Never lowers it.
    pub fn raise(&self, tag: &Tag, high: i64) {
        match &self.stored {
            Some(row) if self.high() < high => {
                self.table.update(row, &[(HIGH, Value::Bigint(high))]);
            }
            Some(_) => {}
            None => self
                .table
                .insert(&[(TAG, heap::key(tag)), (HIGH, Value::Bigint(high))]),
        }
    }
}
