//! Condition variables in shared memory.

use pgrx::pg_sys;

use super::wait::WaitEvent;

/// A condition variable in shared memory.
#[derive(Clone, Copy)]
pub struct Waiters(*mut pg_sys::ConditionVariable);

/// Membership in the queue of a condition variable; ends on drop.
pub struct Waiting(Waiters);

impl Waiters {
    /// Wraps a condition variable of the shared area.
    ///
    /// # Safety
    /// `variable` is initialized, and in shared memory for as long as the server runs.
    pub unsafe fn new(variable: *mut pg_sys::ConditionVariable) -> Self {
        Self(variable)
    }

    /// Joins the queue: a broadcast from now on ends the next sleep. Check the condition between
    /// this call and the sleep.
    pub fn join(self) -> Waiting {
        // SAFETY: a valid variable; see `new`. Leaves a queue joined before.
        unsafe { pg_sys::ConditionVariablePrepareToSleep(self.0) };
        Waiting(self)
    }
}

impl Waiting {
    /// Sleeps until a broadcast, at most `ms`. Raises an error on cancel or terminate.
    pub fn sleep(&self, ms: i64, event: WaitEvent) {
        let ms = ms.clamp(1, 60_000);
        // SAFETY: a valid variable; see `new`. If the queue was left since then, PostgreSQL rejoins
        // it instead of sleeping.
        unsafe {
            pg_sys::ConditionVariableTimedSleep(self.0.0, ms as core::ffi::c_long, event.number());
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // SAFETY: allowed at any time, even outside of a queue, which an error has left already.
        unsafe { pg_sys::ConditionVariableCancelSleep() };
    }
}
