//! The clocks, and times for people.

use core::ffi::CStr;

use pgrx::pg_sys;

#[cfg(target_os = "linux")]
use libc::CLOCK_BOOTTIME as BOOT_CLOCK;
/// Other systems have no CLOCK_BOOTTIME.
#[cfg(not(target_os = "linux"))]
use libc::CLOCK_MONOTONIC as BOOT_CLOCK;

unsafe extern "C" {
    // Without the guard of the bindings: every snowflake id reads the clock.
    #[link_name = "GetCurrentTimestamp"]
    fn raw_now() -> i64;
}

/// The clock, in Unix milliseconds.
#[inline]
pub fn now_ms() -> i64 {
    now_us() / 1000
}

/// The clock, in Unix microseconds.
#[inline]
pub fn now_us() -> i64 {
    now_timestamp() + TIMESTAMP_EPOCH_US
}

/// Unix microseconds at PostgreSQL's own epoch, 2000-01-01.
pub const TIMESTAMP_EPOCH_US: i64 = 946_684_800_000_000;

/// The clock as a TimestampTz: microseconds since 2000-01-01.
#[inline]
pub fn now_timestamp() -> i64 {
    // SAFETY: takes nothing, reads the clock, and cannot raise an error: no guard is needed.
    unsafe { raw_now() }
}

/// Milliseconds of CLOCK_BOOTTIME: monotonic, and it goes on while the machine is suspended.
/// It begins anew with the machine.
pub fn boot_ms() -> i64 {
    let mut now = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes one timespec, which is ours.
    unsafe { libc::clock_gettime(BOOT_CLOCK, &raw mut now) };
    now.tv_sec * 1000 + now.tv_nsec / 1_000_000
}

/// Unix milliseconds as a person reads them, in the session's time zone.
pub fn format_ms(unix_ms: i64) -> String {
    let us = unix_ms
        .saturating_mul(1000)
        .saturating_sub(TIMESTAMP_EPOCH_US);
    // SAFETY: timestamptz_to_str takes any value, and returns a string in a static buffer, which
    // is copied before the next call.
    unsafe { CStr::from_ptr(pg_sys::timestamptz_to_str(us)) }
        .to_string_lossy()
        .into_owned()
}
