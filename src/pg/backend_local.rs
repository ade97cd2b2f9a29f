//! Backend-local state.

use core::cell::{Ref, RefCell};

/// A value private to this process.
pub struct BackendLocal<T>(RefCell<T>);

// SAFETY: a PostgreSQL process has one thread, and leaf_id starts no others.
unsafe impl<T> Sync for BackendLocal<T> {}

impl<T> BackendLocal<T> {
    /// Wraps the initial value.
    pub const fn new(value: T) -> Self {
        Self(RefCell::new(value))
    }

    /// Borrows the value. It must not be modified while the result is live.
    #[inline(always)]
    pub fn look(&self) -> Ref<'_, T> {
        self.0.borrow()
    }

    /// Runs `body` with the value. It must not modify the value through this cell.
    #[inline]
    pub fn with<R>(&self, body: impl FnOnce(&T) -> R) -> R {
        body(&self.look())
    }

    /// Runs `body` with the mutable value. It must not access this cell.
    pub fn with_mut<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        body(&mut self.0.borrow_mut())
    }
}
