//! LWLocks of the area, and data protected by one.

use core::cell::UnsafeCell;

use pgrx::pg_sys;

/// One LWLock of the area.
pub struct Lock(*mut pg_sys::LWLock);

impl Lock {
    /// # Safety
    /// `lock` points to an initialized LWLock in shared memory.
    pub unsafe fn new(lock: *mut pg_sys::LWLock) -> Self {
        Self(lock)
    }

    /// Acquires the lock shared.
    pub fn shared(&self) -> Held {
        // SAFETY: guaranteed by the caller of `new`.
        unsafe { pg_sys::LWLockAcquire(self.0, pg_sys::LWLockMode::LW_SHARED) };
        Held {
            lock: self.0,
            is_exclusive: false,
        }
    }

    /// Acquires the lock exclusively. What it protects may be half written until it is released, so
    /// that is a critical section: a process that ends there has to take the others along.
    pub fn exclusive(&self) -> Held {
        // SAFETY: guaranteed by the caller of `new`. A counter of this process.
        unsafe {
            pg_sys::LWLockAcquire(self.0, pg_sys::LWLockMode::LW_EXCLUSIVE);
            pg_sys::CritSectionCount += 1;
        }
        Held {
            lock: self.0,
            is_exclusive: true,
        }
    }
}

/// An LWLock held by this process; released on drop.
#[clippy::has_significant_drop]
pub struct Held {
    lock: *mut pg_sys::LWLock,
    is_exclusive: bool,
}

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: acquired by `Lock` and released only here. Code under a lock raises no error, which
        // would release it as well. A counter of this process.
        unsafe {
            if self.is_exclusive {
                pg_sys::CritSectionCount -= 1;
            }
            pg_sys::LWLockRelease(self.lock);
        }
    }
}

/// A value protected by its own LWLock.
pub struct Locked<T> {
    lock: Lock,
    value: UnsafeCell<T>,
}

impl<T> Locked<T> {
    /// Protects `value` with `lock`, which must protect nothing else.
    pub fn new(lock: Lock, value: T) -> Self {
        Self {
            lock,
            value: UnsafeCell::new(value),
        }
    }

    /// Sets the lock; the value already in memory is used.
    ///
    /// # Safety
    /// The caller has exclusive access to `this`, which holds a valid value.
    pub unsafe fn init(this: *mut Self, lock: Lock) {
        // SAFETY: a field of the caller's memory.
        unsafe { (&raw mut (*this).lock).write(lock) };
    }

    /// Runs `body` under the exclusive lock. It must not fail, wait or access the same value again
    /// (self-deadlock).
    pub fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        let _held = self.lock.exclusive();
        // SAFETY: the lock is held exclusively, and the reference ends with the closure.
        body(unsafe { &mut *self.value.get() })
    }

    /// Runs `body` under the shared lock; otherwise as [`Self::with`].
    pub fn read<R>(&self, body: impl FnOnce(&T) -> R) -> R {
        let _held = self.lock.shared();
        // SAFETY: the lock is held shared, so no mutable reference exists.
        body(unsafe { &*self.value.get() })
    }
}
