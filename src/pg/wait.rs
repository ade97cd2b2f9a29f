//! Short waits, and wait events.

#[cfg(since_17)]
use core::sync::atomic::{AtomicU32, Ordering};

use pgrx::pg_sys;

use super::clock::now_us;

/// Wait event in `pg_stat_activity`.
#[derive(Clone, Copy)]
pub enum WaitEvent {
    /// Session waiting for a segment.
    Segment,
    /// Session waiting for the snowflake generator.
    Snowflake,
    /// Main loop of the launcher.
    Launcher,
    /// Main loop of an allocator.
    Allocator,
    /// Worker waiting for another server.
    Remote,
}

impl WaitEvent {
    /// The number that PostgreSQL's wait functions take.
    #[cfg(not(since_17))]
    pub fn number(self) -> u32 {
        // These versions have one wait event for all extensions.
        pg_sys::PG_WAIT_EXTENSION
    }

    /// The number that PostgreSQL's wait functions take.
    #[cfg(since_17)]
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
                // SAFETY: a null-terminated string, which is copied; the same name yields the same
                // number. Not called in a signal handler.
                let number = unsafe { pg_sys::WaitEventExtensionNew(name.as_ptr()) };
                slot.store(number, Ordering::Relaxed);
                number
            }
            number => number,
        }
    }
}

/// Reports a wait event while `body` runs, which must neither wait by other means nor raise an
/// error.
pub fn while_waiting<T>(event: WaitEvent, body: impl FnOnce() -> T) -> T {
    // SAFETY: same as pgstat_report_wait_start: a word written only by this process, in shared
    // memory or, before that exists, in a global.
    unsafe { core::ptr::write_volatile(pg_sys::my_wait_event_info, event.number()) };
    let result = body();
    // SAFETY: as above.
    unsafe { core::ptr::write_volatile(pg_sys::my_wait_event_info, 0) };
    result
}

/// Sleeps at most a millisecond. Not interruptible; the caller checks.
pub fn sleep_us(us: i64, event: WaitEvent) {
    // SAFETY: a sleep raises no error and touches no memory.
    while_waiting(event, || unsafe { pg_sys::pg_usleep(us.clamp(1, 1000)) });
}

/// Max delay of a sleep's end, in microseconds: Linux has a timer slack of 50, and an idle
/// processor takes time to wake up.
const OVERSLEEP_US: i64 = 150;

/// Waits until `until_us`, in Unix microseconds, at most a millisecond away. `exactly`: spins for
/// the last part, otherwise a sleep that ends late. Not interruptible; the caller checks.
pub fn sleep_until(until_us: i64, exactly: bool, event: WaitEvent) {
    let awake_us = if exactly { OVERSLEEP_US } else { 0 };
    let us = until_us - now_us() - awake_us;
    if us > 0 {
        sleep_us(us, event);
    }
    // Also ends if the clock is set back.
    let mut left = until_us - now_us();
    while exactly && (1..=awake_us).contains(&left) {
        core::hint::spin_loop();
        left = until_us - now_us();
    }
}
