//! The arrays of slots and double buffers, and the locks the slots share.

use leaf_id_core::primitive::{AtomicU32, Ordering};
use leaf_id_core::segment::DoubleBuffer;
use pgrx::pg_sys;

use super::lock::Lock;
use super::slot::{Slot, SlotRef, SlotState};
use super::text::Text;
use crate::error::RefillError;
use crate::pg;

/// Number of LWLocks that the slots are partitioned among.
pub const SLOT_LOCKS: usize = 64;

/// The slot array. A link is a slot number plus 1; 0 is no slot.
#[repr(C)]
pub struct Slots {
    buffers: *mut DoubleBuffer,
    slots: *mut Slot,
    capacity: u32,
    /// Number of slots ever assigned, which come first and are initialized. Directory lock,
    /// exclusively.
    used: AtomicU32,
    /// [`SLOT_LOCKS`] locks.
    locks: *mut pg_sys::LWLockPadded,
}

impl Slots {
    /// An empty array.
    ///
    /// # Safety
    /// Both arrays have room for `capacity` elements, and `locks` points to [`SLOT_LOCKS`]
    /// initialized locks. All are aligned, in shared memory, and used by nothing else.
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

    /// Size of the array.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Number of slots ever assigned.
    #[inline]
    pub fn used(&self) -> u32 {
        self.used.load(Ordering::Relaxed)
    }

    /// The slot with this link.
    #[inline]
    pub fn at(&self, link: u32) -> Option<&'static Slot> {
        let index = link.checked_sub(1).filter(|index| *index < self.used())?;
        // SAFETY: initialized and within the array, which outlives the process. A link is read
        // under the directory lock, or from a list with a release after the push, so the caller
        // also sees the slot initialized.
        Some(unsafe { &*self.slots.add(index as usize) })
    }

    /// The slot with this link, in a version seen at lookup. Touches neither the slot nor its
    /// buffer, which may not be in the processor's cache.
    #[inline]
    pub fn slot_ref(&self, link: u32, version: u64) -> Option<SlotRef> {
        let slot = self.at(link)?;
        // SAFETY: `at` has checked the link; there are as many buffers, initialized with their
        // slots.
        let buffer = unsafe { &*self.buffers.add(link as usize - 1) };
        Some(SlotRef {
            buffer,
            slot,
            version,
        })
    }

    /// All slots ever assigned.
    pub fn all(&self) -> impl Iterator<Item = &'static Slot> {
        (1..=self.used()).filter_map(|link| self.at(link))
    }

    /// The link of a slot.
    pub fn link(&self, slot: &Slot) -> u32 {
        1 + self.index(slot)
    }

    fn index(&self, slot: &Slot) -> u32 {
        // SAFETY: every Slot is in the array.
        let index = unsafe { core::ptr::from_ref(slot).offset_from(self.slots) };
        u32::try_from(index).unwrap_or(0)
    }

    /// Initializes the next unused slot; `None` if the array is used up.
    ///
    /// # Safety
    /// The directory lock is held exclusively.
    pub unsafe fn add(&self) -> Option<&'static Slot> {
        let used = self.used();
        if used >= self.capacity {
            return None;
        }
        // SAFETY: both are within their arrays. No session references a slot that was never
        // assigned, and the directory lock keeps others from assigning it. All zeroes is a valid
        // double buffer, and a valid slot except for the fields written here.
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

    /// Runs `body` with the slot's state, under the slot's lock. It must not fail, wait or lock any
    /// slot.
    pub fn with_state<T>(&self, slot: &Slot, body: impl FnOnce(&mut SlotState) -> T) -> T {
        let number = self.index(slot) as usize % SLOT_LOCKS;
        // SAFETY: one of the SLOT_LOCKS locks passed to `new`.
        let lock = unsafe { Lock::new(&raw mut (*self.locks.add(number)).lock) };
        let _held = lock.exclusive();
        // SAFETY: the slot's lock is held exclusively, and the reference ends with the closure.
        body(unsafe { &mut *slot.state.get() })
    }

    /// Records an error for `version` of the slot, unless that version has ended. The request stays
    /// open.
    pub fn note(&self, slot: &Slot, version: u64, refill_error: RefillError, text: Option<&str>) {
        let text = text.map(Text::new);
        self.with_state(slot, |state| {
            // The slot may belong to another tag, whose sessions must not see this error.
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
