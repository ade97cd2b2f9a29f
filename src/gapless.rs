//! Gapless numbers: a row of `leaf_gapless` for each series, locked until the caller's
//! transaction ends.
//!
//! This is the opposite of I2: a number belongs to the transaction that took it, and with it a
//! number that was rolled back is the next one again. So nothing is cached, and a series gives
//! one number at a time. The row is locked in its last version and written by oid (I9).
//!
//! What would break the promise, 1 to n for the committed calls and none printed twice:
//!
//! * A snapshot for the whole transaction. Its last version is locked all the same, but the
//!   caller would not see the row that has the number before: refused.
//! * A prepared transaction, which holds the series over restarts: refused.
//! * A commit that is reported before it is durable: after a crash the number would come again.
//!   So `synchronous_commit` is at least `on` for the commit, whatever anybody has set since.
//!
//! A tool that rewrites a table by row triggers does not see these writes, and takes numbers back. So
//! each call also raises the mark of its series, in a second table: the next number is above both.
//!
//! The state of the transaction is one number: the lowest subtransaction that has taken any.
//! Subtransactions are numbered upwards, so a rollback to one takes back what is not below it.

use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use leaf_id_core::row;

use crate::error::{Failure, GaplessError};
use crate::pg::{
    self, Access, Shape, SubtransactionEvent, Table, TransactionCallbacks, TransactionEvent, Type,
    Value,
};
use crate::tags::mark;

/// `leaf_gapless` as sql/gapless.sql makes it.
static GAPLESS: Shape = Shape::new(
    c"leaf_gapless",
    &[(c"series", Type::Text), (c"last_number", Type::Bigint)],
    &[c"leaf_gapless_series_length", c"leaf_gapless_range"],
);
const LAST_NUMBER: usize = 2;
/// `leaf_gapless_mark`: one past the highest number of each name.
static MARKS: Shape = Shape::new(
    c"leaf_gapless_mark",
    &[(c"series", Type::Text), (c"high", Type::Bigint)],
    &[
        c"leaf_gapless_mark_series_length",
        c"leaf_gapless_mark_high_positive",
    ],
);
/// The constraint's: as with tags, one number is left above all.
const MAX: i64 = i64::MAX - 1;

/// What [`TAKEN_BY`] is where no number was taken. Transactions are numbered from 1.
const NOBODY: u32 = u32::MAX;
/// The lowest subtransaction that has taken a number.
static TAKEN_BY: AtomicU32 = AtomicU32::new(NOBODY);

static CALLBACKS: TransactionCallbacks = TransactionCallbacks {
    transaction: on_transaction,
    subtransaction: on_subtransaction,
};
static WATCHING: AtomicBool = AtomicBool::new(false);

/// The next number of a series, which is locked until the transaction ends.
///
/// # Errors
/// There is no such series, it has reached its end, or it cannot be taken from in this
/// transaction.
pub fn next(series: &[u8]) -> Result<i64, Failure> {
    pg::prevent_if_read_only(c"leaf_gapless_next()");
    if !pg::is_read_committed() {
        return Err(Failure::Gapless(GaplessError::Isolation));
    }
    let missing = || Failure::missing(&GAPLESS);
    let relation = pg::find_table(&GAPLESS).ok_or_else(missing)?;
    // What an earlier call in the same statement has written is to be seen.
    pg::see_own_changes();
    let table = Table::open(relation, &GAPLESS, Access::Write)?.ok_or_else(missing)?;
    let stored = table.lock(&Value::Text(series)).ok_or_else(|| {
        Failure::Gapless(GaplessError::NoSeries {
            series: pg::shown(series),
        })
    })?;
    let mark = mark::lock_in(&MARKS, &Value::Text(series))?;
    let last = stored.bigint(LAST_NUMBER).unwrap_or(MAX);
    let number = row::first(last + 1, mark.high(), 0, 0);
    if number > MAX {
        return Err(Failure::Gapless(GaplessError::EndOfSeries {
            series: pg::shown(series),
        }));
    }
    // Before the number is anybody's.
    pg::watch_transactions(&CALLBACKS, &WATCHING);
    TAKEN_BY.fetch_min(pg::subtransaction(), Ordering::Relaxed);
    table.update(&stored, &[(LAST_NUMBER, Value::Bigint(number))]);
    mark.raise(Value::Text(series), number + 1);
    Ok(number)
}

fn on_transaction(event: TransactionEvent) {
    let taken = TAKEN_BY.load(Ordering::Relaxed) != NOBODY;
    match event {
        TransactionEvent::PreCommit if taken => pg::commit_synchronously(),
        TransactionEvent::PrePrepare if taken => Failure::Gapless(GaplessError::Prepared).raise(),
        TransactionEvent::PreCommit | TransactionEvent::PrePrepare => {}
        TransactionEvent::Commit | TransactionEvent::Abort => {
            TAKEN_BY.store(NOBODY, Ordering::Relaxed);
        }
    }
}

fn on_subtransaction(number: u32, event: SubtransactionEvent) {
    if TAKEN_BY.load(Ordering::Relaxed) < number {
        return;
    }
    match event {
        SubtransactionEvent::Abort => TAKEN_BY.store(NOBODY, Ordering::Relaxed),
        SubtransactionEvent::Commit { parent } => {
            // Nothing was taken by anybody, or by this one and those in it.
            let taken = TAKEN_BY.load(Ordering::Relaxed) != NOBODY;
            if taken {
                TAKEN_BY.store(parent, Ordering::Relaxed);
            }
        }
    }
}
