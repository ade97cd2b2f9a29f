//! What calls of both kinds need before they wait, and while they do: whether ids can be issued
//! here at all, for how long a call may wait, and why nobody has answered.

use std::time::{Duration, Instant};

use crate::error::Failure;
use crate::guc;
use crate::pg;
use crate::shmem::{self, Area};

/// How long one sleep lasts at most before the state is looked at again, in milliseconds:
/// the safety net under the broadcasts.
pub const SLEEP_MS: i64 = 200;
/// How often a look that may not block is tried again, in milliseconds.
pub const RETRY_MS: i64 = 10;
/// How long a reload may take to reach the launcher, in milliseconds.
pub const RELOAD_GRACE_MS: i64 = SLEEP_MS;

/// The shared area, where ids can be issued at all.
///
/// # Errors
/// The library is not preloaded; the server is a standby, or one of a single process.
pub fn ready() -> Result<&'static Area, Failure> {
    let area = ready_on_standby()?;
    if pg::in_recovery() {
        return Err(Failure::Standby);
    }
    Ok(area)
}

/// The shared area, where ids can be issued that no table is needed for.
///
/// # Errors
/// The library is not preloaded; the server is one of a single process.
pub fn ready_on_standby() -> Result<&'static Area, Failure> {
    let area = shmem::area().ok_or(Failure::NotPreloaded)?;
    if pg::single_user() {
        return Err(Failure::SingleUser);
    }
    Ok(area)
}

/// Why nobody has answered.
pub fn silence(area: &Area) -> &'static str {
    if area.launcher().is_missing() {
        "The launcher of leaf_id is not running. If it never does, \"max_worker_processes\" leaves no room for it."
    } else {
        "No allocator has answered; see the server's log."
    }
}

/// How long a call may still wait, by `leaf_id.refill_timeout`.
pub struct Deadline {
    started: Instant,
    timeout: Duration,
}

impl Deadline {
    /// Of a call that begins now.
    pub fn new() -> Self {
        let ms = u64::try_from(guc::REFILL_TIMEOUT.get()).unwrap_or(1);
        Self {
            started: Instant::now(),
            timeout: Duration::from_millis(ms),
        }
    }

    /// `leaf_id.refill_timeout`, in milliseconds.
    pub fn timeout_ms(&self) -> i64 {
        i64::try_from(self.timeout.as_millis()).unwrap_or(i64::MAX)
    }

    /// How long the call has taken so far, in milliseconds.
    pub fn elapsed_ms(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    /// What is left, in milliseconds, rounded up; `None` when nothing is.
    pub fn left_ms(&self) -> Option<i64> {
        let left = self.timeout.checked_sub(self.started.elapsed())?;
        i64::try_from(left.as_millis() + 1).ok()
    }
}
