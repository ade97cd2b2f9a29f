//! Taking from a slot: what lies ready, and what that leaves to do.

use std::rc::Rc;

use leaf_id_core::opaque::Permutation;
use leaf_id_core::segment::{DoubleBuffer, Miss, Taken};

use crate::error::{Failure, TagError};
use crate::pg;
use crate::shmem::{self, Area, SlotRef, Tag};

/// How many ids a call takes at once.
#[derive(Clone, Copy)]
pub enum Amount {
    /// One.
    One,
    /// As many as there are in one run, up to this.
    UpTo(u32),
    /// Exactly this many in one run.
    Range(u32),
}

impl Amount {
    #[inline]
    fn try_take(self, buffer: &DoubleBuffer, version: u64) -> Result<Taken, Miss> {
        match self {
            Self::One => buffer.take(version),
            Self::UpTo(n) => buffer.take_up_to(version, n),
            Self::Range(n) => buffer.take_range(version, n),
        }
    }

    /// What can be taken without waiting; `Ok(None)`: the slot's version has changed.
    ///
    /// # Errors
    /// Both buffers are used up.
    #[inline(always)]
    pub fn take(self, area: &Area, slot_ref: &SlotRef) -> Result<Option<Taken>, Exhausted> {
        loop {
            return match self.try_take(slot_ref.buffer, slot_ref.version) {
                Ok(taken) => Ok(Some(taken)),
                Err(Miss::Changed) => Ok(None),
                Err(Miss::Empty) => Err(Exhausted),
                Err(Miss::Short { lost }) => {
                    count_lost(area, slot_ref, lost);
                    continue;
                }
            };
        }
    }

    /// Asks for a segment that this can be taken from; as [`DoubleBuffer::want`].
    pub fn want(self, buffer: &DoubleBuffer) -> bool {
        match self {
            Self::One | Self::UpTo(_) => buffer.want(),
            Self::Range(n) => buffer.want_range(n),
        }
    }

    /// Ids of a tag that lives in the open transaction alone come in any number.
    pub fn count(self) -> u32 {
        match self {
            Self::One => 1,
            Self::UpTo(n) | Self::Range(n) => n,
        }
    }
}

/// Both buffers are used up.
pub struct Exhausted;

/// What was taken, in one run.
pub struct Ids {
    /// The lowest: an id, or a number that stands for one.
    pub first: i64,
    /// How many.
    pub count: u32,
    /// What makes ids of numbers, where they are opaque.
    pub permutation: Option<Rc<Permutation>>,
}

impl Ids {
    /// What was taken from a slot.
    pub fn new(taken: &Taken, permutation: Option<Rc<Permutation>>) -> Self {
        Self {
            first: taken.first,
            count: taken.count,
            permutation,
        }
    }

    /// Whether ids can be made of them. Where not, the domain has just grown, and the slot's version
    /// is about to end.
    pub fn are_in_domain(&self) -> bool {
        let last = || self.first + i64::from(self.count) - 1;
        self.permutation
            .as_ref()
            .is_none_or(|permutation| permutation.holds(last()))
    }
}

/// The id that a number stands for.
///
/// # Errors
/// It is outside of the domain of its tag: nothing that the triggers let through.
#[inline]
pub fn id(permutation: Option<&Permutation>, number: i64, tag: &[u8]) -> Result<i64, Failure> {
    let Some(permutation) = permutation else {
        return Ok(number);
    };
    permutation.encode(number).ok_or_else(|| {
        let tag = Tag::new(tag).unwrap_or(Tag::EMPTY);
        Failure::tag(tag.name(), TagError::NoKey)
    })
}

/// What a take leaves to do: to ask for the spare, and to count what was lost.
#[cold]
#[inline(never)]
pub fn finish(slot_ref: &SlotRef, taken: &Taken) {
    let Some(area) = shmem::area() else { return };
    if taken.spare_due && slot_ref.buffer.want() {
        area.queues().post(pg::database(), slot_ref.slot);
    }
    count_lost(area, slot_ref, taken.lost);
}

#[cold]
#[inline(never)]
fn count_lost(area: &Area, slot_ref: &SlotRef, lost: u32) {
    if lost > 0 {
        area.with_state(slot_ref.slot, |state| state.lost += u64::from(lost));
    }
}
