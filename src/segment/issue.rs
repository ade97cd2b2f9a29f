//! The hot path: from a call to a cached id.
//!
//! | call | tag | handled by |
//! | --- | --- | --- |
//! | [`next_unguarded`] | a constant of the query | this function, inline |
//! | | the same, but the tag is not everybody's | [`next_restricted`]: the caller as well |
//! | | any other tag | [`next_cached`], from the session's slot cache |
//! | [`next`], [`next_range`], [`Batch`], [`next_number`] | any tag in the slot cache | [`take`] |
//! | | all others | [`wait::take`]: looks up the slot, waits for a segment |
//!
//! Each path falls through to those below it, never back. None of them runs SQL.

use leaf_id_core::segment::{Obstacle, Taken};

use crate::error::Failure;
use crate::pg::{self, Caller};
use crate::shmem::{self, SlotRef};
use crate::tags::transaction as edits;

use super::slot_cache::SLOT_CACHE;
use super::take::{self, Amount, Run, Wanted};
use super::wait;

/// State that a call site keeps between calls (PostgreSQL's `fn_extra`): the slot of its tag, if
/// the tag is a constant of the query. Other tags are looked up in the slot cache in each call.
#[derive(Clone, Copy)]
pub struct CallSite {
    is_constant: bool,
    /// The slot of a tag issuable by everybody.
    everybodys: Option<SlotRef>,
    /// The slot of any other tag, and who may take from it.
    callers: Option<(SlotRef, Caller)>,
}

impl CallSite {
    /// A call site before its first call. The caller knows whether its tag is a constant.
    pub const fn new(is_constant: bool) -> Self {
        Self {
            is_constant,
            everybodys: None,
            callers: None,
        }
    }
}

/// A call from fmgr without pgrx's guard. Nothing on its path may raise an error or panic, except
/// for the methods that install the guard.
pub trait Unguarded<'a>: Copy {
    /// Result type for fmgr.
    type Id: From<i64>;

    /// The tag, if readable without detoasting.
    fn tag(self) -> Option<&'a [u8]>;

    /// Calls [`take::finish`] under the guard and returns the id.
    fn finish(self, slot_ref: &SlotRef, taken: &Taken) -> Self::Id;

    /// Calls [`next`] under the guard.
    fn next(self) -> Self::Id;
}

/// The next id for a call site after its first call. With a constant tag: a few loads and one
/// atomic addition.
#[inline]
pub fn next_unguarded<'a, C: Unguarded<'a>>(site: &CallSite, call: C) -> C::Id {
    if let Some(slot_ref) = &site.everybodys
        && !edits::open()
    {
        return next_of(slot_ref, call);
    }
    if site.is_constant {
        return next_restricted(site, call);
    }
    next_cached(call)
}

/// The next id of a constant tag that is not everybody's. Out of line, as [`next_cached`].
#[inline(never)]
fn next_restricted<'a, C: Unguarded<'a>>(site: &CallSite, call: C) -> C::Id {
    match &site.callers {
        Some((slot_ref, caller)) if cache_holds() && *caller == Caller::now() => {
            next_of(slot_ref, call)
        }
        _ => call.next(),
    }
}

/// The next id from a known slot.
#[inline(always)]
fn next_of<'a, C: Unguarded<'a>>(slot_ref: &SlotRef, call: C) -> C::Id {
    match slot_ref.buffer.try_take(slot_ref.version) {
        Ok(taken) if taken.leaves_work() => finish_attempt(slot_ref, call, taken.first),
        Ok(taken) => taken.first.into(),
        Err(obstacle) => next_attempt(slot_ref, call, obstacle),
    }
}

/// Finishes a first attempt that found the spare due, which is all it can leave to do. The
/// arguments of this function and of [`next_attempt`] fit in registers: with a constant tag, the
/// caller needs no stack frame.
#[cold]
#[inline(never)]
fn finish_attempt<'a, C: Unguarded<'a>>(slot_ref: &SlotRef, call: C, first: i64) -> C::Id {
    let taken = Taken {
        first,
        count: 1,
        spare_due: true,
        lost: 0,
    };
    call.finish(slot_ref, &taken)
}

/// Retries after a failed first attempt.
#[cold]
#[inline(never)]
fn next_attempt<'a, C: Unguarded<'a>>(slot_ref: &SlotRef, call: C, obstacle: Obstacle) -> C::Id {
    match slot_ref.buffer.take_again(slot_ref.version, obstacle) {
        Ok(taken) => finished(call, slot_ref, &taken),
        Err(_) => call.next(),
    }
}

/// The next id for a tag that varies between calls. Out of line, so that a constant tag needs no
/// stack frame.
#[inline(never)]
fn next_cached<'a, C: Unguarded<'a>>(call: C) -> C::Id {
    match call.tag().and_then(known_slot) {
        Some((slot_ref, _)) => next_of(&slot_ref, call),
        None => call.next(),
    }
}

/// The id, after any remaining work.
#[inline]
fn finished<'a, C: Unguarded<'a>>(call: C, slot_ref: &SlotRef, taken: &Taken) -> C::Id {
    if taken.leaves_work() {
        call.finish(slot_ref, taken)
    } else {
        taken.first.into()
    }
}

/// True if the slot cache is valid: the open transaction has edited no tag, and `leaf_alloc` has
/// not been replaced.
#[inline]
fn cache_holds() -> bool {
    !edits::open() && !pg::relation_changed()
}

/// The slot of the session's last take from a tag with plain ids, if still valid, and the caller, if
/// the tag is not everybody's. Cannot fail or panic.
#[inline(always)]
fn known_slot(tag: &[u8]) -> Option<(SlotRef, Option<Caller>)> {
    if !cache_holds() {
        return None;
    }
    SLOT_CACHE.look().find(tag)
}

/// The next id of a tag.
///
/// # Errors
/// See [`Failure`].
pub fn next(site: &mut CallSite, tag: &[u8]) -> Result<i64, Failure> {
    let known = known_slot(tag);
    let taken = known.and_then(|(slot_ref, _)| slot_ref.buffer.take(slot_ref.version).ok());
    let (Some((slot_ref, caller)), Some(taken)) = (known, taken) else {
        return Ok(wait::take(tag, Amount::One, Wanted::Ids)?.first);
    };
    if site.is_constant {
        (site.everybodys, site.callers) = match caller {
            None => (Some(slot_ref), None),
            Some(caller) => (None, Some((slot_ref, caller))),
        };
    }
    if taken.leaves_work() {
        take::finish(&slot_ref, &taken);
    }
    Ok(taken.first)
}

/// `n` contiguous ids of a tag, as (first, last). `n` must be at least 1.
///
/// # Errors
/// See [`Failure`].
pub fn next_range(tag: &[u8], n: u32) -> Result<(i64, i64), Failure> {
    let run = take(tag, Amount::Range(n), Wanted::Ids)?;
    Ok((run.first, run.first + i64::from(n) - 1))
}

/// The next number of an opaque tag.
///
/// # Errors
/// See [`Failure`].
pub fn next_number(tag: &[u8]) -> Result<i64, Failure> {
    Ok(take(tag, Amount::One, Wanted::Numbers)?.first)
}

/// Takes from the cached slot, or waits for a segment.
#[inline]
fn take(tag: &[u8], amount: Amount, wanted: Wanted) -> Result<Run, Failure> {
    match take_ready(tag, amount, wanted) {
        Some(run) => Ok(run),
        None => wait::take(tag, amount, wanted),
    }
}

#[inline(never)]
fn take_ready(tag: &[u8], amount: Amount, wanted: Wanted) -> Option<Run> {
    if !cache_holds() {
        return None;
    }
    let slot_ref = SLOT_CACHE.with(|cache| cache.slot(tag, wanted))?;
    let taken = amount.take(shmem::area()?, &slot_ref).ok()?;
    if taken.leaves_work() {
        take::finish(&slot_ref, &taken);
    }
    Some(Run {
        first: taken.first,
        count: taken.count,
    })
}

/// Iterator over the ids of one batch call. Ids are taken as they are read, in as few runs as the
/// segments allow.
pub struct Batch {
    tag: Vec<u8>,
    left: u32,
    /// Remainder of the current run.
    run: Run,
}

impl Batch {
    /// A batch of `n` ids of a tag.
    pub fn new(tag: &[u8], n: u32) -> Self {
        Self {
            tag: tag.to_vec(),
            left: n,
            run: Run { first: 0, count: 0 },
        }
    }

    #[cold]
    #[inline(never)]
    fn take_run(&mut self) {
        pg::check_for_interrupts();
        match take(&self.tag, Amount::UpTo(self.left), Wanted::Ids) {
            Ok(run) => self.run = run,
            Err(failure) => failure.raise(),
        }
    }
}

impl Iterator for Batch {
    type Item = i64;

    #[inline]
    fn next(&mut self) -> Option<i64> {
        if self.left == 0 {
            return None;
        }
        if self.run.count == 0 {
            self.take_run();
        }
        let id = self.run.first;
        self.run.first += 1;
        self.run.count -= 1;
        self.left -= 1;
        Some(id)
    }
}
