//! Saving the remainders when the launcher exits, and restoring them: neither a restart of the
//! server nor of the launcher loses ids (I6).

use leaf_id_core::primitive::{AtomicU32, Ordering};
use leaf_id_core::segment::{MAX_LEN, Remainders};
use serde::{Deserialize, Serialize};

use super::directory::{ReadGuard, WriteGuard};
use super::slot::{IdRange, Key, SAVED_RANGES, SlotState};

/// Remainders of one tag while no launcher runs, and the row they belong to.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub struct SavedRanges {
    /// The row's `incarnation`.
    pub incarnation: i64,
    /// The row's `max_id`. After a later claim the remainders would be out of order (I4).
    pub max_id: i64,
    /// In ascending order.
    pub ranges: [IdRange; SAVED_RANGES],
}

impl SavedRanges {
    /// The remainders of both buffers, followed by ranges not yet restored. At most two ranges
    /// together: no claim is made while a saved range is pending.
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

    /// Validates ranges read from the file, which anybody may have edited.
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

/// Gate for claims, and the number of claims in progress. All zeroes is open.
#[repr(C)]
pub struct Claims {
    /// Odd while remainders are being taken out, or are saved: no claim may begin. Counts both
    /// turns. Written by the launcher alone.
    gate: AtomicU32,
    /// Claims between `begin` and their publication.
    under_way: AtomicU32,
}

impl Claims {
    /// Begins a claim; false if the gate is closed because the remainders are being saved.
    pub fn begin(&self) -> bool {
        // Increment, then check the gate; `stop` closes the gate, then checks the counter.
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let may = self.opened().is_some();
        if !may {
            self.end();
        }
        may
    }

    /// `None` if remainders may be out of the buffers until the next launcher restores them.
    /// Otherwise a number, which is another one if they were out since then.
    pub fn opened(&self) -> Option<u32> {
        let gate = self.gate.load(Ordering::SeqCst);
        gate.is_multiple_of(2).then_some(gate)
    }

    /// Ends a claim, published or not.
    pub fn end(&self) {
        self.under_way.fetch_sub(1, Ordering::SeqCst);
    }

    /// Closes the gate. True if no claim is in progress.
    pub fn stop(&self) -> bool {
        self.gate.fetch_or(1, Ordering::SeqCst);
        self.under_way.load(Ordering::SeqCst) == 0
    }

    /// Opens the gate.
    pub fn resume(&self) {
        if self.opened().is_none() {
            self.gate.fetch_add(1, Ordering::SeqCst);
        }
    }
}

impl WriteGuard<'_> {
    /// Stores saved ranges in the tag's slot. The allocator publishes them once it has verified the
    /// row. False if no slot is free: the ranges become a gap.
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
    /// Takes the remainders of all tags out of shared memory, up to the vector's capacity; no
    /// session can use them afterwards. A claim still in progress will not be published.
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
