//! Short waits, and what a wait is shown as.

#[cfg(any(feature = "pg17", feature = "pg18"))]
use core::sync::atomic::{AtomicU32, Ordering};

use pgrx::pg_sys;

use super::clock::now_us;

/// What a process waits for, as `pg_stat_activity` shows it.
#[derive(Clone, Copy)]
pub enum WaitEvent {
    /// A session, for a segment.
    Segment,
    /// A session, for the snowflake generator.
    Snowflake,
    /// The launcher, for something to do.
    Launcher,
    /// An allocator, for something to do.
    Allocator,
    /// A worker, for another server.
    Remote,
}

impl WaitEvent {
    #[cfg(any(feature = "pg15", feature = "pg16"))]
    pub fn number(self) -> u32 {
        // These versions know one wait event for all extensions.
        pg_sys::PG_WAIT_EXTENSION
    }

    #[cfg(any(feature = "pg17", feature = "pg18"))]
    pub fn number(self) -> u32 {
        static NUMBERS: [AtomicU32; 5] = [const { AtomicU32::new(0) }; 5];
        let (index, name) = match self {
            Self::Segment => (0, c"LeafIdSegment"),
            Self::Snowflake => (1, c"LeafIdSnowflake"),
            Self::Launcher => (2, c"LeafIdLauncherMain"),
            Self::Allocator => (3, c"LeafIdAllocatorMain"),
            Self::Remote => (4, c"LeafIdRemote"),
        };
        let Some(slot) = NUMBERS.get(index) else {
            return pg_sys::PG_WAIT_EXTENSION;
        };
        match slot.load(Ordering::Relaxed) {
            0 => {
                // SAFETY: a string that ends with null, and is copied; the same name gives the same
                // number. Not in a signal handler.
                let number = unsafe { pg_sys::WaitEventExtensionNew(name.as_ptr()) };
                slot.store(number, Ordering::Relaxed);
                number
            }
            number => number,
        }
    }
}

/// Shows a wait event while a closure runs that neither waits by other means nor raises an
/// error.
pub fn while_waiting<T>(event: WaitEvent, body: impl FnOnce() -> T) -> T {
    // SAFETY: what pgstat_report_wait_start does: a word that is this process's alone to write,
    // in shared memory or, before there is any, a global.
    unsafe { core::ptr::write_volatile(pg_sys::my_wait_event_info, event.number()) };
    let result = body();
    // SAFETY: as above.
    unsafe { core::ptr::write_volatile(pg_sys::my_wait_event_info, 0) };
    result
}

/// Sleeps a millisecond at most. Not interruptible: the caller checks.
pub fn sleep_us(us: i64, event: WaitEvent) {
    // SAFETY: a sleep, which raises no error and touches no memory.
    while_waiting(event, || unsafe { pg_sys::pg_usleep(us.clamp(1, 1000)) });
}

/// How late a sleep may end, in microseconds: Linux rounds the ends of sleeps to 50, and
/// an idle processor takes its time to wake.
const OVERSLEEP_US: i64 = 150;

/// Waits until a time of the clock, a millisecond away at most. Exactly: awake for the
/// last part of it. Otherwise a sleep, which ends late. Not interruptible: the caller checks.
pub fn sleep_until(until_us: i64, exactly: bool, event: WaitEvent) {
    let awake_us = if exactly { OVERSLEEP_US } else { 0 };
    let us = until_us - now_us() - awake_us;
    if us > 0 {
        sleep_us(us, event);
    }
    // A clock that is set back ends it too.
    let mut left = until_us - now_us();
    while exactly && (1..=awake_us).contains(&left) {
        core::hint::spin_loop();
        left = until_us - now_us();
    }
}
