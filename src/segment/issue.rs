//! The hot path: from a call to an id that lies ready.
//!
//! | call | the tag | taken in |
//! | --- | --- | --- |
//! | [`next_unguarded`] | a constant of the query | this function, where nothing is left to do |
//! | | any other, if it is everybody's | [`next_cached`], from the slot that the session knows |
//! | [`next`], [`next_range`], [`Batch`], [`next_number`] | any that the session knows the slot of | [`take`] |
//! | | all others | [`wait::take`]: finds the slot, and waits where nothing lies ready |
//!
//! Each leads to those below it, and none back. No SQL is reached from here.

use leaf_id_core::segment::{Obstacle, Taken};

use crate::error::Failure;
use crate::pg;
use crate::shmem::{self, SlotRef};
use crate::tags::transaction as edits;

use super::slot_cache::SLOT_CACHE;
use super::take::{self, Amount, Run, Wanted};
use super::wait;

/// What one call site remembers between its calls (PostgreSQL's `fn_extra`): where the ids
/// of its tag come from, if the tag is a constant of the query. Other tags are found anew
/// in each call, by what the session knows.
#[derive(Clone, Copy)]
pub struct CallSite {
    is_constant: bool,
    slot_ref: Option<SlotRef>,
}

impl CallSite {
    /// One that has not been called. Whether its tag is a constant is the caller's to know.
    pub const fn new(is_constant: bool) -> Self {
        Self {
            is_constant,
            slot_ref: None,
        }
    }

    fn note(&mut self, slot_ref: &SlotRef) {
        if self.is_constant {
            self.slot_ref = Some(*slot_ref);
        }
    }
}

/// A call that PostgreSQL has made without a guard: nothing that it reaches may fail or panic,
/// but for what it says it guards.
pub trait Unguarded<'a>: Copy {
    /// An id as PostgreSQL gets it.
    type Id: From<i64>;

    /// The tag, if it can be read at once.
    fn tag(self) -> Option<&'a [u8]>;

    /// Calls [`take::finish`], guarded. Returns the id.
    fn finish(self, slot_ref: &SlotRef, taken: &Taken) -> Self::Id;

    /// Calls [`next`], guarded.
    fn next(self) -> Self::Id;
}

/// The next id of a tag, of a call site that was called before: for the tag that it always
/// names, a few loads and one atomic addition.
#[inline]
pub fn next_unguarded<'a, C: Unguarded<'a>>(site: &CallSite, call: C) -> C::Id {
    if let Some(slot_ref) = &site.slot_ref
        && !edits::open()
    {
        return next_of(slot_ref, call);
    }
    if site.is_constant {
        return call.next();
    }
    next_cached(call)
}

/// The next id of a slot that was looked up.
#[inline(always)]
fn next_of<'a, C: Unguarded<'a>>(slot_ref: &SlotRef, call: C) -> C::Id {
    match slot_ref.buffer.try_take(slot_ref.version) {
        Ok(taken) if taken.leaves_work() => finish_attempt(slot_ref, call, taken.first),
        Ok(taken) => taken.first.into(),
        Err(obstacle) => next_attempt(slot_ref, call, obstacle),
    }
}

/// The first attempt has found the spare due, which is all that it can leave to
/// do. What these two are given fits in registers: with a constant tag, their caller needs no stack.
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

/// The first attempt has failed.
#[cold]
#[inline(never)]
fn next_attempt<'a, C: Unguarded<'a>>(slot_ref: &SlotRef, call: C, obstacle: Obstacle) -> C::Id {
    match slot_ref.buffer.take_again(slot_ref.version, obstacle) {
        Ok(taken) => finished(call, slot_ref, &taken),
        Err(_) => call.next(),
    }
}

/// A tag that differs from call to call. Out of line, so that the other case needs no
/// stack for it.
#[inline(never)]
fn next_cached<'a, C: Unguarded<'a>>(call: C) -> C::Id {
    match call.tag().and_then(everybodys_slot) {
        Some(slot_ref) => next_of(&slot_ref, call),
        None => call.next(),
    }
}

/// The id, after what taking it has left to do.
#[inline]
fn finished<'a, C: Unguarded<'a>>(call: C, slot_ref: &SlotRef, taken: &Taken) -> C::Id {
    if taken.leaves_work() {
        call.finish(slot_ref, taken)
    } else {
        taken.first.into()
    }
}

/// Whether the slots that this session knows are still those of their tags.
#[inline]
fn cache_holds() -> bool {
    !edits::open() && !pg::relation_changed()
}

/// The slot of a tag that is everybody's and that this session has used before. Nothing here
/// can fail or panic.
#[inline(always)]
fn everybodys_slot(tag: &[u8]) -> Option<SlotRef> {
    if !cache_holds() {
        return None;
    }
    SLOT_CACHE.look().everybodys(tag)
}

/// The next id of a tag.
///
/// # Errors
/// See [`Failure`].
pub fn next(site: &mut CallSite, tag: &[u8]) -> Result<i64, Failure> {
    let slot_ref = everybodys_slot(tag);
    let taken = slot_ref.and_then(|slot_ref| slot_ref.buffer.take(slot_ref.version).ok());
    let (Some(slot_ref), Some(taken)) = (slot_ref, taken) else {
        return Ok(take(tag, Amount::One, Wanted::Ids)?.first);
    };
    site.note(&slot_ref);
    if taken.leaves_work() {
        take::finish(&slot_ref, &taken);
    }
    Ok(taken.first)
}

/// `n` contiguous ids of a tag, as the first and the last; `n` is at least 1.
///
/// # Errors
/// See [`Failure`].
pub fn next_range(tag: &[u8], n: u32) -> Result<(i64, i64), Failure> {
    let run = take(tag, Amount::Range(n), Wanted::Ids)?;
    Ok((run.first, run.first + i64::from(n) - 1))
}

/// The next number of a tag whose ids are opaque.
///
/// # Errors
/// See [`Failure`].
pub fn next_number(tag: &[u8]) -> Result<i64, Failure> {
    Ok(take(tag, Amount::One, Wanted::Numbers)?.first)
}

/// Takes what lies ready, of a tag that this session has used before. Otherwise waits.
#[inline]
fn take(tag: &[u8], amount: Amount, wanted: Wanted) -> Result<Run, Failure> {
    match take_ready(tag, amount, wanted) {
        Some(run) => Ok(run),
        None => wait::take(tag, amount, wanted),
    }
}

/// Where this session took this of a tag last.
#[inline(never)]
fn known_slot(tag: &[u8], wanted: Wanted) -> Option<SlotRef> {
    if !cache_holds() {
        return None;
    }
    SLOT_CACHE.with(|cache| cache.find(tag, wanted))
}

#[inline(always)]
fn take_ready(tag: &[u8], amount: Amount, wanted: Wanted) -> Option<Run> {
    let slot_ref = known_slot(tag, wanted)?;
    let taken = amount.take(shmem::area()?, &slot_ref).ok()??;
    if taken.leaves_work() {
        take::finish(&slot_ref, &taken);
    }
    Some(Run {
        first: taken.first,
        count: taken.count,
    })
}

/// The ids of one batch call, taken as they are read, in as few runs as the segments allow.
pub struct Batch {
    tag: Vec<u8>,
    left: u32,
    /// What is left of a run.
    run: Run,
}

impl Batch {
    /// `n` ids of a tag.
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
