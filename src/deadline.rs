//! Preconditions and time limits of calls that issue ids, and the DETAIL of a timeout.

use std::time::{Duration, Instant};

use crate::error::Failure;
use crate::guc;
use crate::pg;
use crate::shmem::{self, Area};

/// Max duration of one sleep before the state is checked again, in milliseconds, in case a
/// broadcast was missed.
pub const SLEEP_MS: i64 = 200;
/// Retry interval for operations that must not block, in milliseconds.
pub const RETRY_MS: i64 = 10;
/// Max time for a reload to reach the launcher, in milliseconds.
pub const RELOAD_GRACE_MS: i64 = SLEEP_MS;

/// The shared area, if ids can be issued.
///
/// # Errors
/// The library is not preloaded; the server is a standby, or in single-user mode.
pub fn ready() -> Result<&'static Area, Failure> {
    let area = ready_on_standby()?;
    if pg::in_recovery() {
        return Err(Failure::Standby);
    }
    Ok(area)
}

/// The shared area, if ids that need no table can be issued.
///
/// # Errors
/// The library is not preloaded, or the server is in single-user mode.
pub fn ready_on_standby() -> Result<&'static Area, Failure> {
    let area = shmem::area().ok_or(Failure::NotPreloaded)?;
    if pg::single_user() {
        return Err(Failure::SingleUser);
    }
    Ok(area)
}

/// DETAIL for a timeout when no worker responded.
pub fn silence(area: &Area) -> &'static str {
    if area.launcher().is_missing() {
        "The launcher of leaf_id is not running; if it does not start within a few seconds, \"max_worker_processes\" is too small."
    } else {
        "No allocator has answered; see the server's log."
    }
}

/// Time limit of a call, by `leaf_id.refill_timeout`.
pub struct Deadline {
    started: Instant,
    timeout: Duration,
}

impl Deadline {
    /// The deadline of a call that starts now.
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

    /// Time since the call started, in milliseconds.
    pub fn elapsed_ms(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    /// Time left, in milliseconds, rounded up; `None` after the deadline.
    pub fn left_ms(&self) -> Option<i64> {
        let left = self.timeout.checked_sub(self.started.elapsed())?;
        i64::try_from(left.as_millis() + 1).ok()
    }
}
