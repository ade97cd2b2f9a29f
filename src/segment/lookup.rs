//! From a tag to its slot, with the caller's rights. Reads rows, but runs no SQL.

use std::sync::atomic::Ordering;

use leaf_id_core::sometimes;

use super::slot_cache::{SLOT_CACHE, SlotCache};
use super::take::Wanted;
use crate::deadline::{Deadline, RETRY_MS};
use crate::error::{Advice, Failure, OpaqueError, RefillError};
use crate::pg::{self, Caller, WaitEvent};
use crate::shmem::{Area, Key, RELATIONS, SlotAccess, SlotRef, Tag};
use crate::tags::heap::{self, Look, SeenRow};
use crate::tags::opaque::{self, FoundKey};
use crate::tags::rights;
use crate::tags::transaction::{self as edits, Standing};

/// Oid of `leaf_alloc`. Clears the session's cache if it has changed.
pub(super) fn relation() -> Result<u32, Failure> {
    if !pg::relation_changed() {
        return Ok(SLOT_CACHE.with(|cache| cache.relation));
    }
    let relation = heap::relation()?;
    pg::watch_relation(relation);
    SLOT_CACHE.with_mut(|cache| {
        *cache = SlotCache::of(relation);
    });
    Ok(relation)
}

/// The key of a tag of this database.
pub(super) fn key(bytes: &[u8]) -> Result<Key, Failure> {
    let tag = Tag::new(bytes).ok_or(Failure::TagLength { bytes: bytes.len() })?;
    Ok(Key::here(relation()?, tag))
}

/// Validates a tag that another server claims.
///
/// # Errors
/// The name is invalid, or the open transaction has edited the tag and may have issued ids of it.
pub fn untouched(bytes: &[u8]) -> Result<Key, Failure> {
    let key = key(bytes)?;
    if edits::open() && !matches!(edits::standing(&key), Standing::Untouched) {
        return Err(changed(&key));
    }
    Ok(key)
}

/// The error for a tag that the open transaction has edited.
pub(super) fn changed(key: &Key) -> Failure {
    Failure::TagChanged {
        tag: key.tag.name(),
        parallel: pg::in_parallel_mode(),
    }
}

/// The slot of an existing tag. An unknown tag gets none, or random names could fill the array.
pub(super) fn find_slot(
    area: &'static Area,
    key: &Key,
    wanted: Wanted,
    deadline: &Deadline,
) -> Result<SlotRef, Failure> {
    let found = area.directory().find(key);
    let slot_ref = match found {
        Some(slot_ref) => slot_ref,
        None => create_slot(area, key, deadline)?,
    };
    // A parallel worker does not have its leader's list of edits.
    if let Some(leader) = pg::leader_pid()
        && slot_ref.slot.edited_by.load(Ordering::Relaxed) == leader
    {
        return Err(changed(key));
    }
    // Read after the version, which is in slot_ref.
    let access = slot_ref.slot.access();
    // Before the check, so that invalidations during it make this caller stale.
    let caller = Caller::to_check();
    // A right that the open transaction has granted may be rolled back.
    let is_ours = access != SlotAccess::Public && check_rights(key, deadline)?;
    let is_opaque = match access {
        // A key restored or replicated after its row: end the version for all sessions.
        SlotAccess::Public | SlotAccess::Restricted if wanted == Wanted::Numbers => {
            area.directory().retire(key);
            true
        }
        SlotAccess::Public | SlotAccess::Restricted => false,
        SlotAccess::Opaque => true,
        SlotAccess::Unknown => find_key(key, deadline)?.is_some(),
    };
    if is_opaque && wanted == Wanted::Ids {
        return Err(Failure::Opaque(OpaqueError::Required {
            tag: key.tag.name(),
        }));
    }
    if !is_ours {
        SLOT_CACHE.with_mut(|cache| {
            cache.remember(&key.tag, slot_ref, access, caller, area.capacity());
        });
    }
    Ok(slot_ref)
}

/// Checks that the caller may issue ids of an existing tag. True if the open transaction has written
/// its row.
pub(super) fn check_rights(key: &Key, deadline: &Deadline) -> Result<bool, Failure> {
    let seen = see_row(key, deadline)?;
    if rights::caller_may_issue(key.relation, &seen.alloc.granted_to) {
        Ok(seen.ours)
    } else {
        Err(Failure::TagForbidden {
            tag: key.tag.name(),
        })
    }
}

/// The key of a tag, if its ids are opaque.
pub(super) fn find_key(key: &Key, deadline: &Deadline) -> Result<Option<FoundKey>, Failure> {
    look(key, deadline, "leaf_opaque_key", || opaque::find(&key.tag))
}

/// Looks at a row until its table is not locked.
fn look<T>(
    key: &Key,
    deadline: &Deadline,
    table: &str,
    look: impl Fn() -> Result<Look<T>, Failure>,
) -> Result<Option<T>, Failure> {
    loop {
        match look()? {
            Look::Row(row) => return Ok(Some(row)),
            Look::Nothing => return Ok(None),
            Look::Locked if deadline.left_ms().is_none() => {
                return Err(Failure::NoSegment {
                    tag: key.tag.name(),
                    timeout_ms: deadline.timeout_ms(),
                    detail: format!("Table leaf_id.{table} is locked."),
                    advice: Advice::Wait,
                });
            }
            Look::Locked => {
                sometimes!("take: the table is locked");
                pg::wait_latch(Some(RETRY_MS), WaitEvent::Segment);
            }
        }
    }
}

fn create_slot(area: &'static Area, key: &Key, deadline: &Deadline) -> Result<SlotRef, Failure> {
    let seen = see_row(key, deadline)?;
    // Written by the open transaction (in a parallel worker, the leader's): no allocator can see
    // the row, and it would wait for our lock.
    if seen.ours {
        return Err(changed(key));
    }
    // Before evicting another tag's slot.
    if !rights::caller_may_issue(key.relation, &seen.alloc.granted_to) {
        return Err(Failure::TagForbidden {
            tag: key.tag.name(),
        });
    }
    loop {
        if area.may_sweep() {
            sweep(area);
        }
        let directory = area.directory_mut();
        if let Ok(slot_ref) = directory.find_or_create(key) {
            // Before another tag may have the slot.
            slot_ref
                .slot
                .max_step
                .store(seen.alloc.row.limits.max_step, Ordering::Relaxed);
            return Ok(slot_ref);
        }
        drop(directory);
        if deadline.left_ms().is_none() {
            return Err(Failure::NoFreeSlot);
        }
        pg::wait_latch(Some(RETRY_MS), WaitEvent::Segment);
    }
}

/// The row of an existing tag.
pub(super) fn see_row(key: &Key, deadline: &Deadline) -> Result<SeenRow, Failure> {
    let row = look(key, deadline, "leaf_alloc", || heap::see(key))?;
    row.ok_or_else(|| Failure::tag(key.tag.name(), RefillError::NoSuchTag))
}

/// Frees the slots of dropped tables in this database.
fn sweep(area: &Area) {
    let database = pg::database();
    let mut relations = Vec::with_capacity(RELATIONS);
    area.directory().relations_of(database, &mut relations);
    for relation in relations {
        if !pg::relation_exists(relation) {
            area.sweep(database, relation);
        }
    }
}
