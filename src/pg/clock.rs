//! Clocks, and formatted times.

use core::ffi::CStr;

use leaf_id_core::lease::Clocks;
use pgrx::pg_sys;

#[cfg(target_os = "linux")]
use libc::CLOCK_BOOTTIME as BOOT_CLOCK;
/// CLOCK_BOOTTIME does not exist elsewhere.
#[cfg(not(target_os = "linux"))]
use libc::CLOCK_MONOTONIC as BOOT_CLOCK;

unsafe extern "C" {
    // Declared here to avoid pgrx's guard: every snowflake id reads the clock.
    #[link_name = "GetCurrentTimestamp"]
    fn raw_now() -> i64;
}

/// Current time, in Unix milliseconds.
#[inline]
pub fn now_ms() -> i64 {
    now_us() / 1000
}

/// Current time, in Unix microseconds.
#[inline]
pub fn now_us() -> i64 {
    now_timestamp() + TIMESTAMP_EPOCH_US
}

/// PostgreSQL's epoch, 2000-01-01, in Unix microseconds.
pub const TIMESTAMP_EPOCH_US: i64 = 946_684_800_000_000;

/// Current time as a TimestampTz: microseconds since 2000-01-01.
#[inline]
pub fn now_timestamp() -> i64 {
    // SAFETY: no arguments; reads the clock and cannot raise an error, so no guard is needed.
    unsafe { raw_now() }
}

/// CLOCK_BOOTTIME in milliseconds: monotonic, includes time while suspended, restarts at boot.
pub fn boot_ms() -> i64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes to a local timespec.
    unsafe { libc::clock_gettime(BOOT_CLOCK, &raw mut now) };
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}

/// Both clocks.
pub fn clocks() -> Clocks {
    Clocks {
        boot_ms: boot_ms(),
        wall_ms: now_ms(),
    }
}

/// Formats Unix milliseconds in the session's time zone.
pub fn format_ms(unix_ms: i64) -> String {
    let us = unix_ms
        .saturating_mul(1000)
        .saturating_sub(TIMESTAMP_EPOCH_US);
    // SAFETY: timestamptz_to_str accepts any value, and returns a string in a static buffer, which
    // is copied before the next call.
    unsafe { CStr::from_ptr(pg_sys::timestamptz_to_str(us)) }
        .to_string_lossy()
        .into_owned()
}
