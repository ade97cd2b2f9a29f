//! Taking from a slot without waiting, and the follow-up work of a take.

use leaf_id_core::segment::{DoubleBuffer, Miss, Taken};
use leaf_id_core::sometimes;

use crate::pg;
use crate::shmem::{self, Area, SlotRef};

/// Kind of value a call takes. An opaque tag has numbers only.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wanted {
    /// Ids.
    Ids,
    /// Numbers, to be encrypted to opaque ids.
    Numbers,
}

/// Number of ids a call takes at once.
#[derive(Clone, Copy)]
pub enum Amount {
    /// One.
    One,
    /// As many as one run has, up to this.
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

    /// Takes without waiting.
    ///
    /// # Errors
    /// See [`NotReady`].
    #[inline(always)]
    pub fn take(self, area: &Area, slot_ref: &SlotRef) -> Result<Taken, NotReady> {
        loop {
            return match self.try_take(slot_ref.buffer, slot_ref.version) {
                Ok(taken) => Ok(taken),
                Err(Miss::Changed) => Err(NotReady::Changed),
                Err(Miss::Empty) => Err(NotReady::Empty),
                Err(Miss::Short { lost }) => {
                    sometimes!("take: the rest is too short for a range");
                    count_lost(area, slot_ref, lost);
                    continue;
                }
            };
        }
    }

    /// Requests a segment long enough for this amount; see [`DoubleBuffer::want`].
    pub fn want(self, buffer: &DoubleBuffer) -> bool {
        match self {
            Self::One | Self::UpTo(_) => buffer.want(),
            Self::Range(n) => buffer.want_range(n),
        }
    }

    /// The number of ids to issue from a tag created in the open transaction, which has any number
    /// ready.
    pub fn count(self) -> u32 {
        match self {
            Self::One => 1,
            Self::UpTo(n) | Self::Range(n) => n,
        }
    }
}

/// Reason why nothing can be taken without waiting.
pub enum NotReady {
    /// The slot has another version; look up the tag again.
    Changed,
    /// Both buffers are used up.
    Empty,
}

/// Contiguous ids that were taken.
#[derive(Default)]
pub struct Run {
    /// First id.
    pub first: i64,
    /// Number of ids.
    pub count: u32,
    /// The slot; `None` if the open transaction has created the tag.
    pub slot_ref: Option<SlotRef>,
}

impl Run {
    /// Ids taken from a slot.
    pub fn of(slot_ref: &SlotRef, taken: &Taken) -> Self {
        Self {
            first: taken.first,
            count: taken.count,
            slot_ref: Some(*slot_ref),
        }
    }
}

/// Follow-up work of a take: requests the spare and counts lost ids.
#[cold]
#[inline(never)]
pub fn finish(slot_ref: &SlotRef, taken: &Taken) {
    let Some(area) = shmem::area() else { return };
    if taken.spare_due && slot_ref.buffer.want() {
        area.queues().post(pg::database(), slot_ref.slot);
    }
    count_lost(area, slot_ref, taken.lost);
}

/// Counts ids that were taken and not used.
#[cold]
#[inline(never)]
pub fn give_up(slot_ref: &SlotRef, tag: &[u8], count: u32) {
    if let Some(area) = shmem::area() {
        let directory = area.directory();
        directory.lose_taken(slot_ref.slot, pg::database(), tag, count.into());
    }
}

#[cold]
#[inline(never)]
fn count_lost(area: &Area, slot_ref: &SlotRef, lost: u32) {
    if lost > 0 {
        area.with_state(slot_ref.slot, |state| state.lost += u64::from(lost));
    }
}
