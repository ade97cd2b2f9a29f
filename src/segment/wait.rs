//! The slow path, if no id is cached: requests a segment, waits for it, and reports why none came.
//! Runs no SQL.

use std::sync::atomic::Ordering;
use std::time::Instant;

use leaf_id_core::segment::Taken;
use leaf_id_core::sometimes;

use super::lookup;
use super::slot_cache::SLOT_CACHE;
use super::take::{self, Amount, NotReady, Run, Wanted};
use crate::deadline::{Deadline, SLEEP_MS, ready, silence};
use crate::error::{Advice, Failure, OpaqueError, RefillClass, RefillError, reason_for_monitors};
use crate::pg::{self, LockHolder, WaitEvent};
use crate::shmem::{Area, Key, SlotAccess, SlotRef, SlotState};
use crate::tags::transaction::{self as edits, Standing};

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
        let key = lookup::key(bytes)?;
        if edits::open()
            && let Some(run) = take_here(&key, amount, wanted, &deadline)?
        {
            return Ok(run);
        }
        let known = SLOT_CACHE.with(|cache| cache.slot(bytes, wanted));
        let slot_ref = match known {
            Some(slot_ref) if slot_ref.buffer.version() == slot_ref.version => slot_ref,
            _ => lookup::find_slot(area, &key, wanted, &deadline)?,
        };
        if let Some(taken) = take_or_wait(area, &slot_ref, &key, amount, &deadline)? {
            if taken.leaves_work() {
                take::finish(&slot_ref, &taken);
            }
            return Ok(Run::of(&slot_ref, &taken));
        }
        // Also checked if edits or evictions follow one another so fast that no wait begins (I5).
        pg::check_for_interrupts();
        if deadline.left_ms().is_none() {
            return Err(Failure::NoSegment {
                tag: key.tag.name(),
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
                SlotAccess::Opaque => {
                    return Err(Failure::Opaque(OpaqueError::Required {
                        tag: key.tag.name(),
                    }));
                }
                SlotAccess::Restricted | SlotAccess::Unknown => {
                    lookup::check_rights(key, deadline)?;
                }
                SlotAccess::Public => {}
            }
            let is_range = matches!(amount, Amount::Range(_));
            let count = amount.count();
            Ok(Some(Run {
                first: edits::issue_local(key, count, is_range)?,
                count,
                slot_ref: None,
            }))
        }
        // Opaque: after a rollback, the caller would know the id of a number yet to be issued.
        Standing::Created(_) | Standing::Changed => Err(lookup::changed(key)),
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
    let row = lookup::see_row(key, deadline)?.alloc.row.limits.max_step;
    let max_step = match slot_ref.slot.server_max_step.load(Ordering::Relaxed) {
        0 => row,
        there => row.min(there),
    };
    if n <= max_step {
        return Ok(());
    }
    let n = i32::try_from(n).unwrap_or(i32::MAX);
    Err(Failure::RangeTooLong {
        tag: key.tag.name(),
        n,
        max_step,
    })
}

fn is_caller(holder: LockHolder) -> bool {
    match holder {
        LockHolder::Process(pid) => pid == pg::pid() || pg::leader_pid() == Some(pid),
        LockHolder::Unknown | LockHolder::Prepared => false,
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
            let tag = key.tag.name();
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
        tag: key.tag.name(),
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
        tag: key.tag.name(),
        timeout_ms: deadline.timeout_ms(),
        detail,
        advice: state.refill_error.map_or(Advice::Wait, RefillError::advice),
    }
}
