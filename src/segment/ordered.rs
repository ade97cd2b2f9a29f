//! Ids whose rows can be read in order. The protocol is in the header of `leaf_id_core::ordered`.
//!
//! The locks of a tag have a hash of its name. Of a row's incarnation, a reader of a tag that was dropped and
//! created again would not see the locks of transactions that have ids of the former. Names with the same hash
//! hold back each other's readers, which is safe.
//!
//! A reader that has taken a larger id sees the lock: both ids were taken by exchanges of acquire and release
//! order on the word of the tag's buffer, after the lock manager of the one, and before that of the other.

use std::collections::BTreeSet;

use leaf_id_core::ordered;

use super::issue::{self, CallSite};
use super::lookup;
use crate::deadline::Deadline;
use crate::error::{Failure, OrderedError};
use crate::pg;

/// The tags of which a transaction holds a low.
struct Lows {
    /// Number of the transaction in its session. Of any other, nothing is remembered.
    transaction: u32,
    tags: BTreeSet<Box<[u8]>>,
}

static LOWS: pg::BackendLocal<Lows> = pg::BackendLocal::new(Lows {
    transaction: 0,
    tags: BTreeSet::new(),
});

/// The class of a tag's locks, also in `sql/views.sql`.
fn class(tag: &[u8]) -> u32 {
    pg::hash(tag) as u32
}

/// The next id of a tag. Until the transaction ends, its readers get no id from its low on.
///
/// # Errors
/// See [`OrderedError`] and [`Failure`].
pub fn next(tag: &[u8]) -> Result<i64, Failure> {
    let transaction = pg::local_transaction();
    let has_low = LOWS.with(|lows| lows.transaction == transaction && lows.tags.contains(tag));
    if !has_low {
        // Its locks end with it, before its leader's transaction.
        if pg::leader_pid().is_some() {
            return Err(Failure::Ordered(OrderedError::ParallelWorker));
        }
        let low = take(tag)?;
        let numbers = ordered::numbers(low).ok_or_else(|| {
            Failure::Ordered(OrderedError::End {
                tag: pg::shown(tag),
            })
        })?;
        pg::share_user_lock(class(tag), numbers);
        LOWS.with_mut(|lows| {
            if lows.transaction != transaction {
                lows.transaction = transaction;
                lows.tags.clear();
            }
            lows.tags.insert(tag.into());
        });
    }
    issue::next(&mut CallSite::new(false), tag)
}

/// The watermark of a tag: in statements after this one, whatever has an id below it is visible, or never will
/// be.
///
/// # Errors
/// See [`OrderedError`] and [`Failure`].
pub fn watermark(tag: &[u8]) -> Result<i64, Failure> {
    if !pg::is_read_committed() {
        return Err(Failure::Ordered(OrderedError::Isolation));
    }
    let here = take(tag)?;
    let lows = pg::user_locks(class(tag)).into_iter();
    Ok(ordered::watermark(here, lows.filter_map(ordered::low)))
}

/// An id of a tag whose ids are in one order: those of a sourced tag are issued by other servers, too.
fn take(tag: &[u8]) -> Result<i64, Failure> {
    let id = issue::next(&mut CallSite::new(false), tag)?;
    let seen = lookup::see_row(&lookup::key(tag)?, &Deadline::new())?;
    match seen.alloc.row.server {
        None => Ok(id),
        Some(_) => Err(Failure::Ordered(OrderedError::Sourced {
            tag: pg::shown(tag),
        })),
    }
}
