//! Which id of a tag comes next, without taking it: what a maximum found in a table is compared
//! with, to see whether the tag has to be raised above it.

use crate::error::{Failure, RefillError};
use crate::pg;
use crate::shmem::{self, Area, Key, Slot, Tag};
use crate::tags::transaction::{self as edits, Standing};
use crate::tags::{heap, mark};

/// No id that is issued from now on is below this; `None` where that is not known: the cache is
/// the primary's, or a claim is on its way.
///
/// The row is read before the cache: a segment that is claimed after that begins no lower than
/// the row's `max_id`, and one that was claimed before is in the cache, on its way, or used up.
///
/// # Errors
/// There is no such tag, or the table of tags cannot be read. PostgreSQL's own where the caller
/// may not update it.
pub fn next_id(bytes: &[u8]) -> Result<Option<i64>, Failure> {
    let area = shmem::area().ok_or(Failure::NotPreloaded)?;
    let tag = Tag::new(bytes).ok_or(Failure::TagLength { bytes: bytes.len() })?;
    let relation = heap::relation()?;
    pg::require_update(relation, c"leaf_alloc");
    let key = Key {
        database: pg::database(),
        relation,
        tag,
    };
    let no_such_tag = || Failure::tag(tag.name(), RefillError::NoSuchTag);
    let max_id = heap::max_id(&key)?.ok_or_else(no_such_tag)?;
    let claimed = max_id.max(mark::get(&tag)?);
    Ok(match edits::standing(&key) {
        Standing::Created => Some(edits::next_here(&key).max(claimed)),
        // Nothing that is cached is left when the transaction commits.
        Standing::Changed => Some(claimed),
        Standing::Untouched if pg::in_recovery() => None,
        Standing::Untouched => {
            let slot = area.directory().find(&key).map(|slot_ref| slot_ref.slot);
            match slot {
                Some(slot) => cached(area, slot).or_claimed(claimed),
                None => nothing_cached(area).or_claimed(claimed),
            }
        }
    })
}

enum Cached {
    /// The lowest id.
    From(i64),
    Nothing,
    Unknown,
}

impl Cached {
    fn or_claimed(self, claimed: i64) -> Option<i64> {
        match self {
            Self::From(first) => Some(first),
            Self::Nothing => Some(claimed),
            Self::Unknown => None,
        }
    }
}

fn cached(area: &Area, slot: &Slot) -> Cached {
    // Before the buffers are looked at: a segment that is published in between is then seen.
    // One that was only asked for has not been claimed before the row was read.
    let on_its_way = slot.buffer.is_requested() && !slot.buffer.is_wanted();
    let (state, remainders) = area.look(slot);
    let buffers = [remainders.current, remainders.spare].into_iter().flatten();
    let saved = state.saved.into_iter().filter(|range| range.len > 0);
    let lowest = buffers
        .map(|remainder| remainder.first)
        .chain(saved.map(|range| range.first))
        .min();
    match lowest {
        Some(first) => Cached::From(first),
        None if on_its_way => Cached::Unknown,
        None => nothing_cached(area),
    }
}

/// What a launcher that has ended has saved comes back with the next one.
fn nothing_cached(area: &Area) -> Cached {
    if area.launcher().is_missing() || area.claims().are_stopped() {
        Cached::Unknown
    } else {
        Cached::Nothing
    }
}
