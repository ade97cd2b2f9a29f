//! Atomics: those of loom or shuttle under their models, the real ones otherwise.

#[cfg(not(any(leaf_id_loom, leaf_id_shuttle)))]
pub use core::sync::atomic::{
    AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering,
};
#[cfg(leaf_id_loom)]
pub use under_loom::{AtomicI64, AtomicU32, AtomicU64, Ordering, fail_weak_exchanges};
#[cfg(leaf_id_shuttle)]
pub use under_shuttle::{
    AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, step,
};

/// Loom's atomics, with an extra step before every access.
///
/// Loom remembers only the last access per atomic and treats two loads as independent. A thread
/// that loads before it stores thus hides its store from the loads of others, and loom never tries
/// the interleavings in between (tokio-rs/loom#166 and #392). Our takes do exactly this, and some
/// models ended after one execution. Notifying a condition variable without waiters orders and
/// changes nothing, but loom treats any two notifications as dependent.
#[cfg(leaf_id_loom)]
#[allow(missing_docs, reason = "as in core::sync::atomic")]
mod under_loom {
    use core::cell::Cell;

    use loom::sync::{Condvar, atomic};

    pub use atomic::Ordering;

    std::thread_local! {
        /// Loom runs all threads of a model in one thread.
        static FAILING: Cell<u32> = const { Cell::new(0) };
    }

    /// Makes the next weak exchanges of an execution fail spuriously where the bits of `failing`,
    /// lowest first, are set. A model calls this first: loom itself makes no exchange fail so.
    pub fn fail_weak_exchanges(failing: u32) {
        FAILING.set(failing);
    }

    macro_rules! atomic {
        ($name:ident, $int:ty) => {
            pub struct $name {
                value: atomic::$name,
                step: Condvar,
            }

            impl $name {
                pub fn new(value: $int) -> Self {
                    Self {
                        value: atomic::$name::new(value),
                        step: Condvar::new(),
                    }
                }

                pub fn load(&self, order: Ordering) -> $int {
                    self.step.notify_one();
                    self.value.load(order)
                }

                pub fn store(&self, value: $int, order: Ordering) {
                    self.step.notify_one();
                    self.value.store(value, order);
                }

                pub fn swap(&self, value: $int, order: Ordering) -> $int {
                    self.step.notify_one();
                    self.value.swap(value, order)
                }

                pub fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                    self.step.notify_one();
                    self.value.fetch_add(value, order)
                }

                pub fn fetch_or(&self, value: $int, order: Ordering) -> $int {
                    self.step.notify_one();
                    self.value.fetch_or(value, order)
                }

                pub fn fetch_max(&self, value: $int, order: Ordering) -> $int {
                    self.step.notify_one();
                    self.value.fetch_max(value, order)
                }

                pub fn compare_exchange(
                    &self,
                    current: $int,
                    new: $int,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$int, $int> {
                    self.step.notify_one();
                    self.value.compare_exchange(current, new, success, failure)
                }

                pub fn compare_exchange_weak(
                    &self,
                    current: $int,
                    new: $int,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$int, $int> {
                    let failing = FAILING.get();
                    FAILING.set(failing >> 1);
                    if failing & 1 == 1 {
                        return Err(self.load(failure));
                    }
                    self.compare_exchange(current, new, success, failure)
                }
            }
        };
    }

    atomic!(AtomicI64, i64);
    atomic!(AtomicU32, u32);
    atomic!(AtomicU64, u64);
}

/// The real atomics, with a step before every access, at which shuttle may run another thread. Not
/// shuttle's own, for which zeroed memory is no valid value.
#[cfg(leaf_id_shuttle)]
#[allow(missing_docs, reason = "as in core::sync::atomic")]
mod under_shuttle {
    use core::sync::atomic;

    pub use atomic::Ordering;

    /// Lets shuttle run another thread.
    pub fn step() {
        shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::SeqCst);
    }

    macro_rules! atomic {
        ($name:ident $(<$of:ident>)?, $value:ty) => {
            #[repr(transparent)]
            pub struct $name$(<$of>)?(atomic::$name$(<$of>)?);

            impl$(<$of>)? $name$(<$of>)? {
                pub const fn new(value: $value) -> Self {
                    Self(atomic::$name::new(value))
                }

                pub fn load(&self, order: Ordering) -> $value {
                    step();
                    self.0.load(order)
                }

                pub fn store(&self, value: $value, order: Ordering) {
                    step();
                    self.0.store(value, order);
                }

                pub fn swap(&self, value: $value, order: Ordering) -> $value {
                    step();
                    self.0.swap(value, order)
                }

                pub fn compare_exchange(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    step();
                    self.0.compare_exchange(current, new, success, failure)
                }

                pub fn compare_exchange_weak(
                    &self,
                    current: $value,
                    new: $value,
                    success: Ordering,
                    failure: Ordering,
                ) -> Result<$value, $value> {
                    self.compare_exchange(current, new, success, failure)
                }
            }
        };
    }

    macro_rules! number {
        ($name:ident, $int:ty) => {
            atomic!($name, $int);

            impl $name {
                pub fn fetch_add(&self, value: $int, order: Ordering) -> $int {
                    step();
                    self.0.fetch_add(value, order)
                }

                pub fn fetch_sub(&self, value: $int, order: Ordering) -> $int {
                    step();
                    self.0.fetch_sub(value, order)
                }

                pub fn fetch_or(&self, value: $int, order: Ordering) -> $int {
                    step();
                    self.0.fetch_or(value, order)
                }

                pub fn fetch_max(&self, value: $int, order: Ordering) -> $int {
                    step();
                    self.0.fetch_max(value, order)
                }
            }
        };
    }

    atomic!(AtomicPtr<T>, *mut T);
    number!(AtomicI32, i32);
    number!(AtomicI64, i64);
    number!(AtomicU8, u8);
    number!(AtomicU32, u32);
    number!(AtomicU64, u64);
}
