//! The next id of a tag, without taking it. Compared with the maximum of a column, to decide
//! whether the tag must be raised.

use super::issue::Batch;
use crate::error::{Failure, RefillError};
use crate::pg::{self, Privilege};
use crate::shmem::{self, Area, Key, SlotRef, Tag};
use crate::tags::heap::{self, Look};
use crate::tags::transaction::{self as edits, Standing};
use crate::tags::{mark, rights};

/// A lower bound for all ids issued from now on. `None` if unknown: on a standby, while a claim is
/// in flight or remainders are saved, or where the library was not loaded at server start.
///
/// The row is read before the cache. A segment claimed after that starts at or above the row's
/// `max_id`; one claimed before is in the cache, in flight, or used up.
///
/// # Errors
/// The tag does not exist, or `leaf_alloc` cannot be read, or not by the caller.
pub fn next_id(bytes: &[u8]) -> Result<Option<i64>, Failure> {
    let key = key(bytes)?;
    rights::require(&[Privilege::Select])?;
    let no_such_tag = || Failure::tag(key.tag.name(), RefillError::NoSuchTag);
    let max_id = heap::max_id(&key)?.ok_or_else(no_such_tag)?;
    let claimed = max_id.max(mark::get(&key.tag)?);
    let Some(area) = shmem::area() else {
        return Ok(None);
    };
    Ok(match edits::standing(&key) {
        Standing::Created(_) => Some(edits::next_here(&key).max(claimed)),
        // All cached ids are dropped when the transaction commits.
        Standing::Changed => Some(claimed),
        Standing::Untouched if pg::in_recovery() => None,
        Standing::Untouched => {
            let before = gate(area);
            let slot_ref = area.directory().find(&key);
            match slot_ref.map_or(Cached::Nothing, |slot_ref| cached(area, &slot_ref)) {
                Cached::From(first) => Some(first),
                // What was saved before the look may come back after it.
                Cached::Nothing if before.is_some() && before == gate(area) => Some(claimed),
                Cached::Nothing | Cached::Unknown => None,
            }
        }
    })
}

/// Takes ids until all up to `last` are taken, and says whether they are: they are not if the open
/// transaction has changed the tag or written its row, or if nothing is known about its next id.
/// Those cached above stay.
///
/// # Errors
/// The caller may not edit tags, since what is taken is a gap; see also [`next_id`] and [`Failure`].
pub fn skip(tag: &[u8], last: i64) -> Result<bool, Failure> {
    rights::require(&[Privilege::Select, Privilege::Update])?;
    let mut taken = false;
    loop {
        match next_id(tag)? {
            Some(next) if next > last => return Ok(true),
            Some(_) if is_blocked_here(&key(tag)?, last)? => return Ok(false),
            Some(next) => {
                let count = last.saturating_sub(next).saturating_add(1);
                // Each id is greater than the one before.
                Batch::new(tag, u32::try_from(count).unwrap_or(u32::MAX)).for_each(drop);
                taken = true;
            }
            // Nothing is cached, and what is being claimed is above what was taken.
            None => return Ok(taken),
        }
    }
}

/// True if the open transaction gets no ids of the tag up to `last`: it has changed the tag, or it
/// has written the row that they would have to be claimed from.
fn is_blocked_here(key: &Key, last: i64) -> Result<bool, Failure> {
    Ok(match edits::standing(key) {
        Standing::Created(_) => false,
        Standing::Changed => true,
        Standing::Untouched => match heap::see(key)? {
            Look::Row(seen) => seen.ours && last >= seen.alloc.row.max_id,
            Look::Nothing | Look::Locked => false,
        },
    })
}

fn key(bytes: &[u8]) -> Result<Key, Failure> {
    let tag = Tag::new(bytes).ok_or(Failure::TagLength { bytes: bytes.len() })?;
    Ok(Key::here(heap::relation()?, tag))
}

enum Cached {
    From(i64),
    Nothing,
    Unknown,
}

fn cached(area: &Area, slot_ref: &SlotRef) -> Cached {
    let slot = slot_ref.slot;
    // Read before the buffers, so that a segment published in between is seen. A request that is
    // merely wanted has not been claimed for before the row was read.
    let on_its_way = slot.buffer.is_requested() && !slot.buffer.is_wanted();
    let (state, remainders) = area.look(slot);
    let buffers = [remainders.current, remainders.spare].into_iter().flatten();
    let saved = state.saved.into_iter().filter(|range| range.len > 0);
    let lowest = buffers
        .map(|remainder| remainder.first)
        .chain(saved.map(|range| range.first))
        .min();
    if slot.buffer.version() != slot_ref.version {
        // Edited, or another tag's slot by now.
        return Cached::Unknown;
    }
    match lowest {
        Some(first) => Cached::From(first),
        None if on_its_way => Cached::Unknown,
        None => Cached::Nothing,
    }
}

/// The number of the gate for claims, if it is open. Without a launcher, remainders may be saved, and
/// come back with the next one.
fn gate(area: &Area) -> Option<u32> {
    let opened = area.claims().opened();
    opened.filter(|_| !area.launcher().is_missing())
}
