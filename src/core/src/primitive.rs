//! Atomics: those of loom under its models, the real ones otherwise.

#[cfg(not(leaf_id_loom))]
pub use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
#[cfg(leaf_id_loom)]
pub use under_loom::{AtomicI64, AtomicU32, AtomicU64, Ordering, fail_weak_exchanges};

/// Loom's atomics, with an extra step before every access.
///
/// Loom remembers only the last access per atomic and treats two loads as independent. A thread
/// that loads before it stores thus hides its store from the loads of others, and loom never tries
/// the interleavings in between (tokio-rs/loom#166 and #392). Our takes do exactly this, and some
/// models ended after one execution. Notifying a condition variable without waiters orders and
/// changes nothing, but loom treats any two notifications as dependent.
#[cfg(leaf_id_loom)]
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

            #[expect(dead_code, reason = "no type needs all of them")]
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
