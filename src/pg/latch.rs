//! Waits for the latch of this process, and for sockets.

use core::ffi::c_int;
use std::os::fd::RawFd;

use pgrx::pg_sys;

use super::process::check_for_interrupts;
use super::wait::WaitEvent;

/// Sets a latch that another process published; nothing if it is null. A latch that was
/// handed on meanwhile is a spurious wake-up of its new owner.
///
/// # Safety
/// It is null, or what [`my_latch`] has returned in a process of this server.
pub unsafe fn set_latch(latch: *mut pg_sys::Latch) {
    if !latch.is_null() {
        // SAFETY: as the caller says. The latch of a process that has a PGPROC is in it, and so
        // in shared memory for as long as the server runs, whoever has the PGPROC by now.
        unsafe { pg_sys::SetLatch(latch) };
    }
}

/// This process's latch, to publish: of a process that is attached to shared memory.
pub fn my_latch() -> *mut pg_sys::Latch {
    // SAFETY: a plain global of this process, which has one thread.
    unsafe { pg_sys::MyLatch }
}

/// Waits for this process's latch, at most `ms`, or for ever; then handles interrupts.
pub fn wait_latch(ms: Option<i64>, event: WaitEvent) {
    let mut events = pg_sys::WL_LATCH_SET | pg_sys::WL_EXIT_ON_PM_DEATH;
    if ms.is_some() {
        events |= pg_sys::WL_TIMEOUT;
    }
    let ms = ms.map_or(-1, |ms| ms.clamp(1, 3_600_000));
    // SAFETY: MyLatch is set before any code of a library runs, and owned by this process, which
    // alone may wait for it and reset it.
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

/// What a socket is waited for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Readiness {
    /// Something to read.
    Reading,
    /// Room to write.
    Writing,
    /// Either.
    Both,
}

/// Waits for this process's latch or one of these sockets, at most `ms`; then handles
/// interrupts.
pub fn wait_for(ms: i64, sockets: &[(RawFd, Readiness)], event: WaitEvent) {
    if sockets.is_empty() {
        wait_latch(Some(ms), event);
        return;
    }
    let count = c_int::try_from(sockets.len()).unwrap_or(0) + 2;
    // SAFETY: a set with room for its entries, made for this wait, as sockets come and go
    // between two; `occurred` has room for the one event that is asked for. An error here, as
    // for a socket that is closed, ends the process, and the set with it.
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

#[cfg(any(feature = "pg15", feature = "pg16"))]
unsafe fn create_wait_event_set(count: c_int) -> *mut pg_sys::WaitEventSet {
    // SAFETY: TopMemoryContext lives as long as the process.
    unsafe { pg_sys::CreateWaitEventSet(pg_sys::TopMemoryContext, count) }
}

#[cfg(any(feature = "pg17", feature = "pg18"))]
unsafe fn create_wait_event_set(count: c_int) -> *mut pg_sys::WaitEventSet {
    // SAFETY: no resource owner is allowed: the set lives until it is freed.
    unsafe { pg_sys::CreateWaitEventSet(core::ptr::null_mut(), count) }
}
