//! Gapless numbers. Each series is a row of `leaf_gapless`, locked until the end of the caller's
//! transaction.
//!
//! This is the opposite of I2: a number belongs to the transaction that took it, and a number
//! rolled back is issued again. So nothing is cached, and a call returns one number. The latest
//! version of the row is locked, and written by oid (I9).
//!
//! The promise: committed calls have the numbers from 1 to n, and no number is reported twice.
//! These would break it:
//!
//! * A transaction-wide snapshot. The latest version of the row would be locked nevertheless, but
//!   the caller would not see the row that has the previous number: refused.
//! * A prepared transaction, which would lock the series across restarts, and whose commit need not wait
//!   for a standby, in a session that knows nothing of it: refused, also after an edit.
//! * A commit that is reported before it is durable: after a crash, the number would be issued
//!   again. So the commit runs with `synchronous_commit` at least `on`, whatever the setting is by
//!   then.
//!
//! A tool that rewrites a table by row triggers does not see these writes, and restores old
//! numbers. So each call also raises the mark of its series, in a second table, and the next number
//! is above both.
//!
//! The state of the transaction is one number: the lowest subtransaction that has taken a number.
//! Subtransaction ids increase, so a rollback to a savepoint undoes everything not below it.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use leaf_id_core::row;
use leaf_id_core::sometimes;

use crate::error::{Failure, GaplessError};
use crate::pg::{
    self, Access, Row, Shape, SubtransactionEvent, Table, TransactionCallbacks, TransactionEvent,
    TriggerCall, Type, Value,
};
use crate::tags::{mark, transaction};

/// Shape of `leaf_gapless`, as created by sql/gapless.sql.
static GAPLESS: Shape = Shape::new(
    c"leaf_gapless",
    &[(c"series", Type::Text), (c"last_number", Type::Bigint)],
    &[c"leaf_gapless_series_length", c"leaf_gapless_range"],
);
const LAST_NUMBER: usize = 2;
/// Shape of `leaf_gapless_mark`: one past the highest number of each series.
static MARKS: Shape = Shape::new(
    c"leaf_gapless_mark",
    &[(c"series", Type::Text), (c"high", Type::Bigint)],
    &[
        c"leaf_gapless_mark_series_length",
        c"leaf_gapless_mark_high_positive",
    ],
);
/// Upper limit of the CHECK constraint: as for tags, one number remains above it.
const MAX: i64 = i64::MAX - 1;

/// Value of [`CHANGED_BY`] if no number was taken. Subtransaction ids start at 1.
const NO_SUBTRANSACTION: u32 = u32::MAX;
/// The lowest subtransaction that has taken a number, or edited a series.
static CHANGED_BY: AtomicU32 = AtomicU32::new(NO_SUBTRANSACTION);

static CALLBACKS: TransactionCallbacks = TransactionCallbacks {
    transaction: on_transaction,
    subtransaction: on_subtransaction,
};
static WATCHING: [AtomicBool; 2] = [const { AtomicBool::new(false) }; 2];

/// The locked row of a series, if there is one, and its table.
fn lock(series: &[u8]) -> Result<(Table, Option<Row>), Failure> {
    let missing = || Failure::missing(&GAPLESS);
    let relation = pg::find_table(&GAPLESS).ok_or_else(missing)?;
    // See rows written by an earlier call in the same statement.
    pg::see_own_changes();
    let table = Table::open(relation, &GAPLESS, Access::Write)?.ok_or_else(missing)?;
    let stored = table.lock(&Value::Text(series));
    Ok((table, stored))
}

/// Raises the row of a series, and its mark, to this number, the mark of its name and that of another one;
/// false if there is no such row. By oid, so that no trigger of others runs with the rights of ours, as in
/// `tags::trigger::meet_mark`: a tool that copies the table does not see it, so the mark has to.
///
/// # Errors
/// A table was altered.
pub fn raise(series: &[u8], last_number: i64, other: &[u8]) -> Result<bool, Failure> {
    let (table, stored) = lock(series)?;
    let Some(stored) = stored else {
        return Ok(false);
    };
    let name = Value::Text(series);
    let mark = mark::lock_in(&MARKS, &name)?;
    let left = mark::lock_in(&MARKS, &Value::Text(other))?.high();
    let last = last_number.max(mark.high().max(left) - 1).min(MAX);
    if stored.bigint(LAST_NUMBER) < Some(last) {
        table.update(&stored, &[(LAST_NUMBER, Value::Bigint(last))]);
        mark.raise(name, last + 1);
    }
    Ok(true)
}

/// Handles a mark that SQL inserts, of a series or of a tag: as [`mark::arrives`]. It stays locked, so the
/// transaction cannot be prepared. (At a subscriber it never is: nor could it be at the publisher.)
///
/// # Errors
/// The table was altered.
pub fn mark_arrives(call: &TriggerCall<'_>) -> Result<bool, Failure> {
    let is_of_series = pg::find_table(&MARKS) == Some(call.relation());
    match (pg::replica_role(), is_of_series) {
        (true, _) => {}
        (false, true) => note_change(),
        (false, false) => transaction::watch(),
    }
    mark::arrives(call, if is_of_series { &MARKS } else { &mark::MARKS })
}

/// Records that the open subtransaction takes a number, or edits a series or deletes its mark.
pub fn note_change() {
    // Registered first: what is noted has to be forgotten.
    pg::watch_transactions(&CALLBACKS, &WATCHING);
    CHANGED_BY.fetch_min(pg::subtransaction(), Ordering::Relaxed);
}

/// The next number of a series, which stays locked until the end of the transaction.
///
/// # Errors
/// There is no such series, it has reached its end, or the transaction does not allow it.
pub fn next(series: &[u8]) -> Result<i64, Failure> {
    pg::prevent_if_read_only(c"leaf_gapless_next()");
    if !pg::is_read_committed() {
        return Err(Failure::Gapless(GaplessError::Isolation));
    }
    let (table, stored) = lock(series)?;
    let stored = stored.ok_or_else(|| {
        Failure::Gapless(GaplessError::NoSeries {
            series: pg::shown(series),
        })
    })?;
    let mark = mark::lock_in(&MARKS, &Value::Text(series))?;
    let last = stored.bigint(LAST_NUMBER).unwrap_or(MAX);
    sometimes!(
        "gapless: the row is behind its mark",
        mark.high() > last + 1
    );
    sometimes!(
        "gapless: the mark is behind its row",
        last > 0 && mark.high() <= last
    );
    let number = row::next(last + 1, mark.high(), 0);
    if number > MAX {
        return Err(Failure::Gapless(GaplessError::EndOfSeries {
            series: pg::shown(series),
        }));
    }
    note_change();
    table.update(&stored, &[(LAST_NUMBER, Value::Bigint(number))]);
    mark.raise(Value::Text(series), number + 1);
    Ok(number)
}

fn on_transaction(event: TransactionEvent) {
    let changed = CHANGED_BY.load(Ordering::Relaxed) != NO_SUBTRANSACTION;
    match event {
        TransactionEvent::PreCommit if changed => pg::commit_synchronously(),
        TransactionEvent::PrePrepare if changed => Failure::Gapless(GaplessError::Prepared).raise(),
        TransactionEvent::PreCommit | TransactionEvent::PrePrepare => {}
        TransactionEvent::Commit | TransactionEvent::Abort => {
            CHANGED_BY.store(NO_SUBTRANSACTION, Ordering::Relaxed);
        }
    }
}

fn on_subtransaction(number: u32, event: SubtransactionEvent) {
    if CHANGED_BY.load(Ordering::Relaxed) < number {
        return;
    }
    match event {
        SubtransactionEvent::Abort => CHANGED_BY.store(NO_SUBTRANSACTION, Ordering::Relaxed),
        SubtransactionEvent::Commit { parent } => {
            // Either nothing was changed, or by this subtransaction and its children.
            let changed = CHANGED_BY.load(Ordering::Relaxed) != NO_SUBTRANSACTION;
            if changed {
                CHANGED_BY.store(parent, Ordering::Relaxed);
            }
        }
    }
}
