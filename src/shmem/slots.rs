//! The array of slots, the double buffers beside it, and the locks that the slots share.

use core::sync::atomic::{AtomicU32, Ordering};

use leaf_id_core::segment::DoubleBuffer;
use pgrx::pg_sys;

use super::lock::Lock;
use super::slot::{Slot, SlotRef, SlotState};
use super::text::Text;
use crate::error::RefillError;
use crate::pg;

/// Locks shared out among the slots.
pub const SLOT_LOCKS: usize = 64;

/// All slots. A link is the number of one, plus 1; 0 leads nowhere.
#[repr(C)]
pub struct Slots {
    buffers: *mut DoubleBuffer,
    slots: *mut Slot,
    capacity: u32,
    /// Slots that were ever given out, which come first and are initialized. Directory lock,
    /// exclusively.
    used: AtomicU32,
    /// As many as [`SLOT_LOCKS`].
    locks: *mut pg_sys::LWLockPadded,
}

impl Slots {
    /// None given out.
    ///
    /// # Safety
    /// Both arrays have room for this many and lie in shared memory, aligned, as do
    /// [`SLOT_LOCKS`] initialized locks. Nobody else uses any of them.
    pub unsafe fn new(
        buffers: *mut DoubleBuffer,
        slots: *mut Slot,
        capacity: u32,
        locks: *mut pg_sys::LWLockPadded,
    ) -> Self {
        Self {
            buffers,
            slots,
            capacity,
            used: AtomicU32::new(0),
            locks,
        }
    }

    /// How many there are.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// How many were ever given out.
    #[inline]
    pub fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// The slot that a link leads to.
    #[inline]
    pub fn at(&self, link: u32) -> Option<&'static Slot> {
        let index = link.checked_sub(1).filter(|index| *index < self.used())?;
        // SAFETY: within the array, which lives as long as the process, and initialized. Who
        // has a link has it from under the directory lock or from a list that was released
        // after the slot was linked into it, so it sees the slot initialized too.
        Some(unsafe { &*self.slots.add(index as usize) })
    }

    /// The same, in a version in which it was looked up, without a look at the slot or its
    /// buffer: neither may be in the processor's cache.
    #[inline]
    pub fn slot_ref(&self, link: u32, version: u64) -> Option<SlotRef> {
        let slot = self.at(link)?;
        // SAFETY: as `at` has found: there are as many buffers, initialized with their slots.
        let buffer = unsafe { &*self.buffers.add(link as usize - 1) };
        Some(SlotRef {
            buffer,
            slot,
            version,
        })
    }

    /// All slots that were ever given out.
    pub fn all(&self) -> impl Iterator<Item = &'static Slot> {
        (1..=self.used()).filter_map(|link| self.at(link))
    }

    /// The link of a slot.
    pub fn link(&self, slot: &Slot) -> u32 {
        1 + self.index(slot)
    }

    fn index(&self, slot: &Slot) -> u32 {
        // SAFETY: every Slot there is lies in the array.
        let index = unsafe { core::ptr::from_ref(slot).offset_from(self.slots) };
        u32::try_from(index).unwrap_or(0)
    }

    /// Makes a slot that was never used.
    ///
    /// # Safety
    /// The directory is held exclusively.
    pub unsafe fn add(&self) -> Option<&'static Slot> {
        let used = self.used();
        if used >= self.capacity {
            return None;
        }
        // SAFETY: both lie in their arrays, and nobody has a reference to a slot that was
        // never given out, or gives it out now. All zeroes is an empty double buffer, and a slot
        // but for the reference, the state and the condition variable, which are written here.
        unsafe {
            let buffer = self.buffers.add(used as usize);
            buffer.write_bytes(0, 1);
            let slot = self.slots.add(used as usize);
            slot.write_bytes(0, 1);
            (&raw mut (*slot).buffer).write(&*buffer);
            (*slot).state.get().write(SlotState::NEW);
            pg_sys::ConditionVariableInit((*slot).waiters.get());
        }
        self.used.store(used + 1, Ordering::Relaxed);
        self.at(used + 1)
    }

    /// Runs a closure with a slot's state, under the slot's lock. The closure must do
    /// nothing that can fail or wait, which an attempt to lock any slot is.
    pub fn with_state<T>(&self, slot: &Slot, body: impl FnOnce(&mut SlotState) -> T) -> T {
        let number = self.index(slot) as usize % SLOT_LOCKS;
        // SAFETY: one of the locks that `new` was given.
        let lock = unsafe { Lock::new(&raw mut (*self.locks.add(number)).lock) };
        let _held = lock.exclusive();
        // SAFETY: the slot's lock is held exclusively, and the reference ends with the closure:
        // every other one is made here after the lock was released.
        body(unsafe { &mut *slot.state.get() })
    }

    /// Notes a refill error of one version of the slot, if that has not ended, without ending the
    /// request.
    pub fn note(&self, slot: &Slot, version: u64, refill_error: RefillError, text: Option<&str>) {
        let text = text.map(Text::new);
        self.with_state(slot, |state| {
            // It may be another tag's slot, where nobody is to read of this one's.
            if slot.buffer.version() != version {
                return;
            }
            if refill_error.is_of_tag() {
                slot.unusable.store(1, Ordering::Relaxed);
            }
            state.refill_error = Some(refill_error);
            state.error_version = version;
            state.error_at = pg::now_timestamp();
            if let Some(text) = text {
                state.text = text;
            }
        });
        slot.wake();
    }
}
