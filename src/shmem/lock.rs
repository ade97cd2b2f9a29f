//! The LWLocks of the area, and what is known to be locked.

use core::cell::UnsafeCell;

use pgrx::pg_sys;

/// One LWLock of the area.
pub struct Lock(*mut pg_sys::LWLock);

impl Lock {
    /// # Safety
    /// It is initialized, and lies in shared memory.
    pub unsafe fn new(lock: *mut pg_sys::LWLock) -> Self {
        Self(lock)
    }

    /// Waits for it.
    pub fn shared(&self) -> Held {
        self.acquire(pg_sys::LWLockMode::LW_SHARED)
    }

    /// Waits for it.
    pub fn exclusive(&self) -> Held {
        self.acquire(pg_sys::LWLockMode::LW_EXCLUSIVE)
    }

    fn acquire(&self, mode: pg_sys::LWLockMode::Type) -> Held {
        // SAFETY: what `new` asks for.
        unsafe { pg_sys::LWLockAcquire(self.0, mode) };
        Held(self.0)
    }
}

/// An LWLock that this process holds, released on drop.
#[clippy::has_significant_drop]
pub struct Held(*mut pg_sys::LWLock);

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: acquired by `Lock::acquire`, released here alone: nothing that is done under
        // a lock raises an error, which would release it too.
        unsafe { pg_sys::LWLockRelease(self.0) };
    }
}

/// What lies behind a lock of its own.
pub struct Locked<T> {
    lock: Lock,
    value: UnsafeCell<T>,
}

impl<T> Locked<T> {
    /// With this value. The lock is to protect nothing else.
    pub fn new(lock: Lock, value: T) -> Self {
        Self {
            lock,
            value: UnsafeCell::new(value),
        }
    }

    /// The same, with the value that the memory holds already.
    ///
    /// # Safety
    /// It is the caller's alone to write, and holds a valid value.
    pub unsafe fn init(this: *mut Self, lock: Lock) {
        // SAFETY: a field of it.
        unsafe { (&raw mut (*this).lock).write(lock) };
    }

    /// Runs a closure with it. The closure must do nothing that can fail or wait, which an
    /// attempt to come here again is: it would wait for itself.
    pub fn with<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        let _held = self.lock.exclusive();
        // SAFETY: the lock is held exclusively, and the reference ends with the closure: every
        // other one is made after the lock was released.
        body(unsafe { &mut *self.value.get() })
    }

    /// Runs a closure with it that changes nothing; otherwise as [`Self::with`].
    pub fn read<R>(&self, body: impl FnOnce(&T) -> R) -> R {
        let _held = self.lock.shared();
        // SAFETY: the lock is held shared, so nobody has a reference to change it.
        body(unsafe { &*self.value.get() })
    }
}
