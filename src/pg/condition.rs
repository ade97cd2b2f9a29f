//! Condition variables in shared memory.

use pgrx::pg_sys;

use super::wait::WaitEvent;

/// A condition variable in shared memory.
#[derive(Clone, Copy)]
pub struct Waiters(*mut pg_sys::ConditionVariable);

/// A place in its queue; left on drop.
pub struct Waiting(Waiters);

impl Waiters {
    /// For the shared area, which hands out its own.
    ///
    /// # Safety
    /// It is initialized, and lies in shared memory for as long as the server runs.
    pub unsafe fn new(variable: *mut pg_sys::ConditionVariable) -> Self {
        Self(variable)
    }

    /// Joins the queue: a broadcast from now on ends the next sleep. Check the condition
    /// between this and the sleep.
    pub fn join(self) -> Waiting {
        // SAFETY: a valid variable, see `new`. A queue that was joined before is left.
        unsafe { pg_sys::ConditionVariablePrepareToSleep(self.0) };
        Waiting(self)
    }
}

impl Waiting {
    /// Sleeps until a broadcast, at most `ms`. Raises an error on cancel or terminate.
    pub fn sleep(&self, ms: i64, event: WaitEvent) {
        let ms = ms.clamp(1, 60_000);
        // SAFETY: a valid variable, see `new`. If the queue was left meanwhile, PostgreSQL joins
        // it again instead of sleeping.
        unsafe {
            pg_sys::ConditionVariableTimedSleep(self.0.0, ms as core::ffi::c_long, event.number());
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // SAFETY: allowed at any time, also in no queue: an error has left it.
        unsafe { pg_sys::ConditionVariableCancelSleep() };
    }
}
