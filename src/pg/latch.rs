//! Waiting for this process's latch and for sockets.

use core::ffi::c_int;
use std::os::fd::RawFd;

use pgrx::pg_sys;

use super::process::check_for_interrupts;
use super::wait::WaitEvent;

/// Sets a latch published by another process; no effect if null. If the latch has a new owner, this
/// is a spurious wakeup.
///
/// # Safety
/// `latch` is null, or was returned by [`my_latch`] in a process of this server.
pub unsafe fn set_latch(latch: *mut pg_sys::Latch) {
    if !latch.is_null() {
        // SAFETY: guaranteed by the caller. The latch is part of a PGPROC, and stays in shared
        // memory as long as the server runs, even if the PGPROC is reused.
        unsafe { pg_sys::SetLatch(latch) };
    }
}

/// This process's latch, to be published. The process must be attached to shared memory.
pub fn my_latch() -> *mut pg_sys::Latch {
    // SAFETY: a global of a single-threaded process.
    unsafe { pg_sys::MyLatch }
}

/// Waits for this process's latch, at most `ms` or without limit, then checks for interrupts.
pub fn wait_latch(ms: Option<i64>, event: WaitEvent) {
    let mut events = pg_sys::WL_LATCH_SET | pg_sys::WL_EXIT_ON_PM_DEATH;
    if ms.is_some() {
        events |= pg_sys::WL_TIMEOUT;
    }
    let ms = ms.map_or(-1, |ms| ms.clamp(1, 3_600_000));
    // SAFETY: MyLatch is set before any library code runs, and owned by this process, the only one
    // that may wait for it and reset it.
    unsafe {
        pg_sys::WaitLatch(
            pg_sys::MyLatch,
            events.cast_signed(),
            ms as core::ffi::c_long,
            event.number(),
        );
        pg_sys::ResetLatch(pg_sys::MyLatch);
    }
    check_for_interrupts();
}

/// Socket condition to wait for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// Readable.
    Reading,
    /// Writable.
    Writing,
    /// Either.
    Both,
}

/// Waits for this process's latch or one of the sockets, at most `ms`, then checks for interrupts.
pub fn wait_for(ms: i64, sockets: &[(RawFd, Readiness)], event: WaitEvent) {
    if sockets.is_empty() {
        wait_latch(Some(ms), event);
        return;
    }
    let count = c_int::try_from(sockets.len()).unwrap_or(0) + 2;
    // SAFETY: a set with room for its entries, created per wait since sockets come and go;
    // `occurred` has room for the one requested event. An error here, as for a closed socket, ends
    // the process, and the set with it.
    unsafe {
        let set = create_wait_event_set(count);
        let latch = pg_sys::MyLatch;
        let add = |events: u32, socket: c_int, latch: *mut pg_sys::Latch| {
            pg_sys::AddWaitEventToSet(set, events, socket, latch, core::ptr::null_mut());
        };
        add(pg_sys::WL_LATCH_SET, NO_SOCKET, latch);
        add(
            pg_sys::WL_EXIT_ON_PM_DEATH,
            NO_SOCKET,
            core::ptr::null_mut(),
        );
        for (socket, readiness) in sockets {
            let events = match readiness {
                Readiness::Reading => pg_sys::WL_SOCKET_READABLE,
                Readiness::Writing => pg_sys::WL_SOCKET_WRITEABLE,
                Readiness::Both => pg_sys::WL_SOCKET_READABLE | pg_sys::WL_SOCKET_WRITEABLE,
            };
            add(events, *socket, core::ptr::null_mut());
        }
        let mut occurred = pg_sys::WaitEvent::default();
        pg_sys::WaitEventSetWait(
            set,
            ms.clamp(1, 3_600_000) as core::ffi::c_long,
            &raw mut occurred,
            1,
            event.number(),
        );
        pg_sys::FreeWaitEventSet(set);
        pg_sys::ResetLatch(latch);
    }
    check_for_interrupts();
}

/// `PGINVALID_SOCKET`.
const NO_SOCKET: c_int = -1;

#[cfg(not(since_17))]
unsafe fn create_wait_event_set(count: c_int) -> *mut pg_sys::WaitEventSet {
    // SAFETY: TopMemoryContext lives as long as the process.
    unsafe { pg_sys::CreateWaitEventSet(pg_sys::TopMemoryContext, count) }
}

#[cfg(since_17)]
unsafe fn create_wait_event_set(count: c_int) -> *mut pg_sys::WaitEventSet {
    // SAFETY: the resource owner may be null: the set lives until it is freed.
    unsafe { pg_sys::CreateWaitEventSet(core::ptr::null_mut(), count) }
}
