//! How the remainders survive the launcher: a restart of the server, and the end of the
//! launcher alone, lose no ids (I6).

use core::sync::atomic::{AtomicU32, Ordering};

use leaf_id_core::segment::{MAX_LEN, Remainders};
use serde::{Deserialize, Serialize};

use super::directory::{ReadGuard, WriteGuard};
use super::slot::{IdRange, Key, SAVED_RANGES, SlotState};

/// The remainders of one tag while no launcher runs, and the row that they may be used with.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct SavedRanges {
    /// The row's `incarnation`.
    pub incarnation: i64,
    /// The row's `max_id`: later claims would make the remainders come out of order (I4).
    pub max_id: i64,
    /// In order.
    pub ranges: [IdRange; SAVED_RANGES],
}

impl SavedRanges {
    /// What was in the buffers, and after it what waited to be given back. Together that
    /// is never more than two buffers hold: no claim is made while something waits.
    fn of(state: &SlotState, remainders: &Remainders) -> Option<Self> {
        let mut ranges = [IdRange::NONE; SAVED_RANGES];
        let mut used = 0_usize;
        let buffers = [remainders.current, remainders.spare]
            .map(|remainder| remainder.map_or(IdRange::NONE, IdRange::from));
        let all = buffers.into_iter().chain(state.saved);
        for range in all.filter(|range| range.len > 0) {
            let before = used.checked_sub(1).and_then(|last| ranges.get_mut(last));
            if let Some(before) = before
                && before.end() == range.first
                && before.len <= MAX_LEN - range.len
            {
                before.len += range.len;
            } else if let Some(free) = ranges.get_mut(used) {
                *free = range;
                used += 1;
            }
        }
        (used > 0).then_some(Self {
            incarnation: state.row_incarnation,
            max_id: state.max_id,
            ranges,
        })
    }

    /// Whether these can be remainders at all: anybody may have edited the file.
    pub fn is_sound(&self) -> bool {
        let mut floor = 1;
        self.ranges.iter().all(|range| {
            let sound = range.len == 0
                || (range.first >= floor && range.len <= MAX_LEN && range.end() <= self.max_id);
            floor = floor.max(range.end());
            sound
        })
    }
}

/// Whether claims may begin, and how many are under way. All zeroes is that they may.
#[repr(C)]
pub struct Claims {
    /// The launcher takes the remainders out, or they are saved: no claim may begin.
    saving: AtomicU32,
    /// Claims between their begin and their publication.
    under_way: AtomicU32,
}

impl Claims {
    /// Begins a claim; false if none may begin, because the remainders are being saved.
    pub fn begin(&self) -> bool {
        // Counted first, looked second; `stop` does it the other way round.
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let may = self.saving.load(Ordering::SeqCst) == 0;
        if !may {
            self.end();
        }
        may
    }

    /// Whether the remainders may be out of the buffers: they come back with the next launcher.
    pub fn are_stopped(&self) -> bool {
        self.saving.load(Ordering::SeqCst) != 0
    }

    /// Ends a claim, published or not.
    pub fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::SeqCst);
    }

    /// From now on no claim begins. True if none is under way either.
    pub fn stop(&self) -> bool {
        self.saving.store(1, Ordering::SeqCst);
        self.under_way.load(Ordering::SeqCst) == 0
    }

    /// Claims may begin again.
    pub fn resume(&self) {
        self.saving.store(0, Ordering::SeqCst);
    }
}

impl WriteGuard<'_> {
    /// Puts remainders beside a tag's buffers, for its allocator to publish once it has seen
    /// that they fit the row. False if there is no room: they are a gap.
    pub fn restore(&self, key: &Key, saved: &SavedRanges) -> bool {
        let Some(slot) = self.find_or_take_free(key) else {
            return false;
        };
        self.slots().with_state(slot, |state| {
            state.row_incarnation = saved.incarnation;
            state.max_id = saved.max_id;
            state.saved = saved.ranges;
        });
        slot.wake();
        true
    }
}

impl ReadGuard<'_> {
    /// Takes what both buffers of every tag hold out of shared memory, as many tags as there is
    /// room for in the vector: nobody can take it any more. A claim that is still under way is
    /// not going to be published.
    pub fn take_out_ranges(&self, taken: &mut Vec<(Key, SavedRanges)>) {
        let slots = self.slots();
        for slot in slots.all() {
            if taken.len() == taken.capacity() {
                break;
            }
            let key = self.key(slot);
            if key.is_free() {
                continue;
            }
            let saved = slots.with_state(slot, |state| {
                let remainders = slot.invalidate();
                state.published -= remainders.count().min(state.published);
                let saved = SavedRanges::of(state, &remainders);
                state.saved = [IdRange::NONE; SAVED_RANGES];
                saved
            });
            slot.wake();
            taken.extend(saved.map(|saved| (key, saved)));
        }
    }
}
