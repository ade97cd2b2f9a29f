//! The slow path, if no id is cached: looks up the slot, requests a segment, waits for it, and
//! reports why none came. Runs no SQL.

use std::sync::atomic::Ordering;
use std::time::Instant;

use leaf_id_core::segment::Taken;
use leaf_id_core::sometimes;

use super::slot_cache::{SLOT_CACHE, SlotCache};
use super::take::{self, Amount, NotReady, Run, Wanted};
use crate::deadline::{Deadline, RETRY_MS, SLEEP_MS, ready, silence};
use crate::error::{Advice, Failure, OpaqueError, RefillClass, RefillError, reason_for_monitors};
use crate::pg::{self, Caller, LockHolder, WaitEvent};
use crate::shmem::{Access, Area, Key, RELATIONS, SlotRef, SlotState, Tag};
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

/// Takes ids of any tag, waiting for a segment if none are cached.
///
/// # Errors
/// See [`Failure`].
#[cold]
#[inline(never)]
pub fn take(bytes: &[u8], amount: Amount, wanted: Wanted) -> Result<Run, Failure> {
    let area = ready()?;
    let deadline = Deadline::new();
    loop {
        let key = key(bytes)?;
        if edits::open()
            && let Some(run) = take_here(&key, amount, wanted, &deadline)?
        {
            return Ok(run);
        }
        let known = SLOT_CACHE.with(|cache| cache.slot(bytes, wanted));
        let slot_ref = match known {
            Some(slot_ref) if slot_ref.buffer.version() == slot_ref.version => slot_ref,
            _ => find_slot(area, &key, wanted, &deadline)?,
        };
        if let Some(taken) = take_or_wait(area, &slot_ref, &key, amount, &deadline)? {
            if taken.leaves_work() {
                take::finish(&slot_ref, &taken);
            }
            return Ok(Run {
                first: taken.first,
                count: taken.count,
            });
        }
        // Also checked if edits or evictions follow one another so fast that no wait begins (I5).
        pg::check_for_interrupts();
        if deadline.left_ms().is_none() {
            return Err(Failure::NoSegment {
                tag: name(&key),
                timeout_ms: deadline.timeout_ms(),
                detail: "What was cached of the tag was dropped time and again: by edits of its row, or because \"leaf_id.max_tags\" is too small.".into(),
                advice: Advice::Wait,
            });
        }
    }
}

/// Ids of a tag that the open transaction has created; `None` if it has not edited the tag.
fn take_here(
    key: &Key,
    amount: Amount,
    wanted: Wanted,
    deadline: &Deadline,
) -> Result<Option<Run>, Failure> {
    match edits::standing(key) {
        Standing::Untouched => Ok(None),
        Standing::Created(access) if wanted == Wanted::Ids && !pg::in_parallel_mode() => {
            match access {
                Access::Opaque => {
                    return Err(Failure::Opaque(OpaqueError::Required { tag: name(key) }));
                }
                Access::Restricted | Access::Unknown => {
                    check_rights(key, deadline)?;
                }
                Access::Everybody => {}
            }
            let is_range = matches!(amount, Amount::Range(_));
            let first = edits::issue_local(key, amount.count(), is_range)?;
            let count = amount.count();
            Ok(Some(Run { first, count }))
        }
        // Opaque: after a rollback, the caller would know the id of a number yet to be issued.
        Standing::Created(_) | Standing::Changed => Err(changed(key)),
    }
}

fn name(key: &Key) -> String {
    key.tag.name()
}

fn changed(key: &Key) -> Failure {
    Failure::TagChanged {
        tag: name(key),
        parallel: pg::in_parallel_mode(),
    }
}

/// The slot of an existing tag. An unknown tag gets none, or random names could fill the array.
fn find_slot(
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
    let is_ours = access != Access::Everybody && check_rights(key, deadline)?;
    let is_opaque = match access {
        // A key restored or replicated after its row: end the version for all sessions.
        Access::Everybody | Access::Restricted if wanted == Wanted::Numbers => {
            area.directory().retire(key);
            true
        }
        Access::Everybody | Access::Restricted => false,
        Access::Opaque => true,
        Access::Unknown => find_key(key, deadline)?.is_some(),
    };
    if is_opaque && wanted == Wanted::Ids {
        return Err(Failure::Opaque(OpaqueError::Required { tag: name(key) }));
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
        Err(Failure::TagForbidden { tag: name(key) })
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
                    tag: name(key),
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
        return Err(Failure::TagForbidden { tag: name(key) });
    }
    loop {
        if area.may_sweep() {
            sweep(area);
        }
        let created = area.directory_mut().find_or_create(key);
        if let Ok(slot_ref) = created {
            slot_ref
                .slot
                .max_step
                .store(seen.alloc.row.limits.max_step, Ordering::Relaxed);
            return Ok(slot_ref);
        }
        if deadline.left_ms().is_none() {
            return Err(Failure::NoFreeSlot);
        }
        pg::wait_latch(Some(RETRY_MS), WaitEvent::Segment);
    }
}

fn see_row(key: &Key, deadline: &Deadline) -> Result<SeenRow, Failure> {
    let row = look(key, deadline, "leaf_alloc", || heap::see(key))?;
    row.ok_or_else(|| Failure::tag(name(key), RefillError::NoSuchTag))
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

/// Takes, waiting for a segment if needed. `None`: the slot's version has changed; look up the tag
/// again.
fn take_or_wait(
    area: &'static Area,
    slot_ref: &SlotRef,
    key: &Key,
    amount: Amount,
    deadline: &Deadline,
) -> Result<Option<Taken>, Failure> {
    match amount.take(area, slot_ref) {
        Err(NotReady::Empty) => {}
        result => return Ok(result.ok()),
    }
    let started = Instant::now();
    let result = wait(area, slot_ref, key, amount, deadline);
    sometimes!(
        "take: the version ends while a session waits",
        matches!(result, Ok(None))
    );
    let us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    slot_ref.slot.waits.fetch_add(1, Ordering::Relaxed);
    slot_ref.slot.waited_us.fetch_add(us, Ordering::Relaxed);
    result
}

fn wait(
    area: &'static Area,
    slot_ref: &SlotRef,
    key: &Key,
    amount: Amount,
    deadline: &Deadline,
) -> Result<Option<Taken>, Failure> {
    let buffer = slot_ref.buffer;
    let began = pg::now_timestamp();
    let waiting = slot_ref.slot.waiters().join();
    slot_ref.slot.starved.store(1, Ordering::Relaxed);
    loop {
        match amount.take(area, slot_ref) {
            Err(NotReady::Empty) => {}
            result => return Ok(result.ok()),
        }
        if let Amount::Range(n) = amount {
            check_range(slot_ref, key, n, deadline)?;
        }
        // Before the check for a final error, which may predate a change of settings: the request
        // makes the allocator refresh it for the next call.
        if amount.want(buffer) {
            area.queues().post(key.database, slot_ref.slot);
        }
        if let Some(failure) = final_error(area, slot_ref, key, amount, began) {
            sometimes!("take: a final error ends the wait");
            return Err(failure);
        }
        match deadline.left_ms() {
            Some(left) => {
                if area.launcher().is_missing() {
                    pg::nudge_postmaster();
                }
                waiting.sleep(left.min(SLEEP_MS), WaitEvent::Segment);
            }
            None => return Err(timed_out(area, slot_ref, key, deadline)),
        }
    }
}

/// A range longer than `max_step` can never be taken. The slot's `max_step` may be stale.
fn check_range(slot_ref: &SlotRef, key: &Key, n: u32, deadline: &Deadline) -> Result<(), Failure> {
    if n <= slot_ref.slot.max_step.load(Ordering::Relaxed) {
        return Ok(());
    }
    let row = see_row(key, deadline)?.alloc.row.limits.max_step;
    let max_step = match slot_ref.slot.server_max_step.load(Ordering::Relaxed) {
        0 => row,
        there => row.min(there),
    };
    slot_ref.slot.max_step.store(max_step, Ordering::Relaxed);
    if n <= max_step {
        return Ok(());
    }
    let n = i32::try_from(n).unwrap_or(i32::MAX);
    Err(Failure::RangeTooLong {
        tag: name(key),
        n,
        max_step,
    })
}

fn is_caller(holder: LockHolder) -> bool {
    match holder {
        LockHolder::Process(pid) => pid == pg::pid() || pg::leader_pid() == Some(pid),
        LockHolder::Nobody | LockHolder::Prepared => false,
    }
}

/// Error recorded by the allocator that makes waiting pointless. Valid for one version: an edit
/// that could help starts another.
fn final_error(
    area: &Area,
    slot_ref: &SlotRef,
    key: &Key,
    amount: Amount,
    began: i64,
) -> Option<Failure> {
    let (state, _) = area.look(slot_ref.slot);
    if state.error_version != slot_ref.version {
        return None;
    }
    let error = state.refill_error?;
    // Not left from an earlier wait.
    let is_new = state.error_at >= began;
    let ends_wait = match error.class() {
        RefillClass::Final | RefillClass::EndThere => true,
        RefillClass::MissingThere => is_new,
        RefillClass::Locked(by) => is_new && is_caller(by),
        RefillClass::Passing | RefillClass::There => false,
    };
    if !ends_wait {
        return None;
    }
    Some(match (error, amount) {
        (RefillError::EndOfTag { max_value, .. }, Amount::Range(n))
            if slot_ref.buffer.remainders().count() > 0 =>
        {
            let tag = name(key);
            Failure::RangeAtEnd { tag, n, max_value }
        }
        _ => refill(area, key, error, &state),
    })
}

fn refill(area: &Area, key: &Key, error: RefillError, state: &SlotState) -> Failure {
    let server = error
        .server()
        .and_then(|server| area.remote_servers().find(server));
    Failure::Refill {
        tag: name(key),
        error,
        server: server.map_or_else(String::new, |server| server.server().text()),
        text: state.text.get(),
    }
}

fn timed_out(area: &Area, slot_ref: &SlotRef, key: &Key, deadline: &Deadline) -> Failure {
    let (state, _) = area.look(slot_ref.slot);
    let explained = match state.refill_error {
        Some(error @ RefillError::NoWorkerSlot) => return refill(area, key, error, &state),
        Some(RefillError::Asked { server }) => area
            .remote_servers()
            .find(server)
            .map(|server| reason_for_monitors(server.explain())),
        Some(error) if error.quotes_others() => area.explain(&state).map(reason_for_monitors),
        _ => area.explain(&state),
    };
    let detail = explained.unwrap_or_else(|| silence(area).into());
    Failure::NoSegment {
        tag: name(key),
        timeout_ms: deadline.timeout_ms(),
        detail,
        advice: state.refill_error.map_or(Advice::Wait, RefillError::advice),
    }
}
