//! What a process keeps to itself.

use core::cell::{Ref, RefCell};

/// What a process keeps to itself.
pub struct BackendLocal<T>(RefCell<T>);

// SAFETY: a process of PostgreSQL has one thread, and leaf_id starts no other, so nothing is ever
// shared.
unsafe impl<T> Sync for BackendLocal<T> {}

impl<T> BackendLocal<T> {
    /// Something to keep.
    pub const fn new(value: T) -> Self {
        Self(RefCell::new(value))
    }

    /// Looks at it. Nobody may change it before the result is dropped.
    #[inline(always)]
    pub fn look(&self) -> Ref<'_, T> {
        self.0.borrow()
    }

    /// Looks at it. The closure must not come here again to change it.
    #[inline]
    pub fn with<R>(&self, body: impl FnOnce(&T) -> R) -> R {
        body(&self.look())
    }

    /// Changes it. The closure must not come here again.
    pub fn with_mut<R>(&self, body: impl FnOnce(&mut T) -> R) -> R {
        body(&mut self.0.borrow_mut())
    }
}
