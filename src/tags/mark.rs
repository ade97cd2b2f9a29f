//! Marks of names: one past the highest id ever claimed under a name in this database. The rules
//! are in `leaf_id_core::row`.
//!
//! Claims write marks by oid, bypassing triggers, like rows; so do replicated rows that raise one here,
//! and keys. Triggers in SQL (sql/tags.sql, sql/gapless.sql) write the marks left by edits, so that tools
//! that copy the table see them.

use super::heap::{self, Look};
use crate::error::Failure;
use crate::pg::{self, Access, Locker, Obstacle, Shape, Table, TriggerCall, Type, Value};
use crate::shmem::Tag;

/// Shape of `leaf_high_mark`, as created by sql/schema.sql.
pub static MARKS: Shape = Shape::new(
    c"leaf_high_mark",
    &[(c"tag", Type::Text), (c"high", Type::Bigint)],
    &[
        c"leaf_high_mark_tag_length",
        c"leaf_high_mark_high_positive",
    ],
);
const NAME: usize = 1;
const HIGH: usize = 2;

fn open(shape: &'static Shape, access: Access) -> Result<Table, Failure> {
    let missing = || Failure::missing(shape);
    let relation = pg::find_table(shape).ok_or_else(missing)?;
    Table::open(relation, shape, access)?.ok_or_else(missing)
}

/// The mark of a tag's name as it is committed now, or as this transaction has made it; 0 for none.
///
/// # Errors
/// The table of marks was dropped or altered.
pub fn get(tag: &Tag) -> Result<i64, Failure> {
    let table = open(&MARKS, Access::Read)?;
    let row = table.get(&heap::key(tag));
    Ok(row.and_then(|row| row.bigint(HIGH)).unwrap_or(0))
}

/// Oid of `leaf_high_mark`.
///
/// # Errors
/// There is no such table.
pub fn relation() -> Result<u32, Failure> {
    pg::find_table(&MARKS).ok_or_else(|| Failure::missing(&MARKS))
}

/// The last locker or updater of a mark. Waits for no lock.
///
/// # Errors
/// The table was altered.
pub fn see(relation: u32, tag: &Tag) -> Result<Look<Locker>, Failure> {
    Ok(match Table::open_at_once(relation, &MARKS) {
        Ok(Some(table)) => match table.get(&heap::key(tag)) {
            Some(row) => Look::Row(row.locker()),
            None => Look::Nothing,
        },
        Ok(None) => Look::Nothing,
        Err(Obstacle::Locked) => Look::Locked,
        Err(Obstacle::Misshapen(misshapen)) => return Err(misshapen.into()),
    })
}

/// Handles a mark that SQL inserts into a table of marks: it raises the one that is here. True if there
/// is one.
///
/// # Errors
/// The table was altered.
pub fn arrives(call: &TriggerCall<'_>, shape: &'static Shape) -> Result<bool, Failure> {
    call.check(shape)?;
    let Some(mark) = call.new_row() else {
        return Ok(false);
    };
    let (Some(name), Some(high)) = (mark.text(NAME), mark.bigint(HIGH)) else {
        // The constraints refuse it.
        return Ok(false);
    };
    // An edit deletes a mark before it inserts it.
    pg::see_own_changes();
    let name = Value::Text(&name);
    let here = lock_in(shape, &name)?;
    if here.stored.is_some() {
        here.raise(name, high);
    }
    Ok(here.stored.is_some())
}

/// A mark, locked after the row of its name.
pub struct LockedMark {
    table: Table,
    stored: Option<pg::Row>,
}

/// Locks the mark of a tag's name, if there is one.
///
/// # Errors
/// As [`get`].
pub fn lock(tag: &Tag) -> Result<LockedMark, Failure> {
    lock_in(&MARKS, &heap::key(tag))
}

/// Locks the mark of a name in a table like `leaf_high_mark`, if there is one.
///
/// # Errors
/// As [`get`].
pub fn lock_in(shape: &'static Shape, name: &Value) -> Result<LockedMark, Failure> {
    let table = open(shape, Access::Write)?;
    let stored = table.lock(name);
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

    /// Raises the mark, or creates it.
    pub fn raise(&self, name: Value, high: i64) {
        if self.high() < high {
            self.set(name, high);
        }
    }

    /// Sets the mark, also below what it was, or creates it.
    pub fn set(&self, name: Value, high: i64) {
        match &self.stored {
            Some(row) => self.table.update(row, &[(HIGH, Value::Bigint(high))]),
            None => self
                .table
                .insert(&[(NAME, name), (HIGH, Value::Bigint(high))]),
        }
    }
}
