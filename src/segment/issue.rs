//! The hot path: from a call to a cached id.
//!
//! | call | tag | handled by |
//! | --- | --- | --- |
//! | `api/fmgr` | a constant of the query | its entry, inline |
//! | | the same, but not all roles may issue its ids | `at_call_site`: the caller as well |
//! | | any other tag | `cached`, by [`known_slot`] |
//! | [`next`], [`next_range`], [`Batch`], [`next_number`] | any tag in the slot cache | [`take`] |
//! | | all others | [`wait::take`]: looks up the slot, waits for a segment |
//!
//! Each path falls through to those below it, never back. None of them runs SQL.

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
    /// The slot of a tag issuable by all roles.
    public: Option<SlotRef>,
    /// The slot of any other tag, and who may take from it.
    callers: Option<(SlotRef, Caller)>,
}

impl CallSite {
    /// A call site before its first call. The caller knows whether its tag is a constant.
    pub const fn new(is_constant: bool) -> Self {
        Self {
            is_constant,
            public: None,
            callers: None,
        }
    }

    /// True if the tag is a constant of the query.
    #[inline]
    pub fn is_constant(&self) -> bool {
        self.is_constant
    }

    /// The slot of a constant tag that all roles may issue ids of.
    #[inline]
    pub fn public(&self) -> Option<&SlotRef> {
        match &self.public {
            Some(slot_ref) if !edits::open() => Some(slot_ref),
            _ => None,
        }
    }

    /// The slot of any other constant tag, if this caller may take from it.
    #[inline]
    pub fn callers(&self) -> Option<&SlotRef> {
        match &self.callers {
            Some((slot_ref, caller)) if cache_holds() && *caller == Caller::now() => Some(slot_ref),
            _ => None,
        }
    }
}

/// True if the slot cache is valid: the open transaction has edited no tag, and `leaf_alloc` has
/// not been replaced.
#[inline]
fn cache_holds() -> bool {
    !edits::open() && !pg::relation_changed()
}

/// The slot of the session's last take from a tag with plain ids, if still valid, and the caller, if
/// not all roles may use the tag. Cannot fail or panic.
#[inline(always)]
pub fn known_slot(tag: &[u8]) -> Option<(SlotRef, Option<Caller>)> {
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
        (site.public, site.callers) = match caller {
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
    Some(Run::of(&slot_ref, &taken))
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
            run: Run::default(),
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

/// Ids that no one has read, as after a LIMIT, are a gap.
impl Drop for Batch {
    fn drop(&mut self) {
        if let Some(slot_ref) = self.run.slot_ref.filter(|_| self.run.count > 0) {
            take::give_up(&slot_ref, &self.tag, self.run.count);
        }
    }
}
