//! Taking from a slot: what lies ready, and what that leaves to do.

use leaf_id_core::segment::{DoubleBuffer, Miss, Taken};

use crate::pg;
use crate::shmem::{self, Area, SlotRef};

/// What a call takes of a tag. A tag whose ids are opaque has no others.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Ids.
    Ids,
    /// Numbers, of which opaque ids are made.
    Numbers,
}

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
pub struct Run {
    /// The lowest.
    pub first: i64,
    /// How many.
    pub count: u32,
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
