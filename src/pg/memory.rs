//! Rust's memory allocator. Where the system has no more memory, this process ends (FATAL), and no
//! other.
//!
//! Rust's own answer is `abort`, after which the postmaster restarts all processes. An ERROR is no
//! answer: it unwinds from the middle of a change, and leaves a `RefCell` borrowed or a lock of this
//! process locked for as long as the session lasts. After FATAL nothing returns to these frames.
//!
//! Rules that follow, here and elsewhere:
//!
//! 1. Shared memory must not stay half written: an exclusive LWLock is a critical section
//!    (`shmem::lock`), where FATAL becomes PANIC. Nothing allocates under one.
//! 2. Callbacks after a commit allocate nothing, since the server could not abort any more.
//! 3. Callbacks at abort and at exit run in the middle of what has failed: they use `try_borrow` and
//!    `try_lock`.
//! 4. The library's thread-local variables exist before memory is short: see [`touch`]. No other one has
//!    a destructor, so `rand::rng()` is banned (clippy.toml).
//! 5. `Vec::try_reserve` ends the process, too. What has a user's size is refused by its length
//!    first, or is in PostgreSQL's memory, whose end is an ordinary ERROR.
//! 6. No other thread allocates: FATAL is for the main thread alone.

use core::ffi::{CStr, c_char, c_int};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use pgrx::pg_sys;

unsafe extern "C-unwind" {
    // Without pgrx's guards, which allocate.
    #[link_name = "errstart"]
    fn raw_errstart(level: c_int, domain: *const c_char) -> bool;
    #[link_name = "errcode"]
    fn raw_errcode(sqlstate: c_int) -> c_int;
    #[link_name = "errmsg_internal"]
    fn raw_errmsg_internal(format: *const c_char, ...) -> c_int;
    #[link_name = "errfinish"]
    fn raw_errfinish(file: *const c_char, line: c_int, function: *const c_char);
    // PostgreSQL's, by the linker's option --wrap.
    #[link_name = "__real_CopyErrorData"]
    fn real_copy_error_data() -> *mut pg_sys::ErrorData;
}

struct OrFatal;

#[global_allocator]
static ALLOCATOR: OrFatal = OrFatal;

// SAFETY: the system's allocator, which never returns null from here.
unsafe impl GlobalAlloc for OrFatal {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: guaranteed by the caller.
        checked(unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: guaranteed by the caller.
        checked(unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: guaranteed by the caller.
        checked(unsafe { System.realloc(memory, layout, size) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: guaranteed by the caller.
        unsafe { System.dealloc(memory, layout) };
    }
}

#[inline]
fn checked(memory: *mut u8) -> *mut u8 {
    if memory.is_null() {
        end_process();
    }
    memory
}

#[cold]
fn end_process() -> ! {
    // SAFETY: a global of a single-threaded process, and constant strings: nothing is formatted,
    // translated or allocated, except in the memory that PostgreSQL keeps for errors. What fails
    // from here on is FATAL as well.
    unsafe {
        pg_sys::ExitOnAnyError = true;
        if raw_errstart(pg_sys::FATAL.cast_signed(), core::ptr::null()) {
            raw_errcode(pgrx::PgSqlErrorCode::ERRCODE_OUT_OF_MEMORY as c_int);
            raw_errmsg_internal(c"out of memory".as_ptr());
            let file: &CStr = c"memory.rs";
            raw_errfinish(file.as_ptr(), 0, c"end_process".as_ptr());
        }
    }
    // FATAL does not return.
    std::process::abort()
}

/// Called by pgrx instead of `CopyErrorData`, by the linker's option --wrap: its guard copies each
/// error that it catches. Where there is no memory for the copy, that is an error, which the guard
/// would catch and copy, and so on until PostgreSQL's stack of errors is full, which is a PANIC.
#[unsafe(no_mangle)]
unsafe extern "C-unwind" fn __wrap_CopyErrorData() -> *mut pg_sys::ErrorData {
    static COPYING: AtomicBool = AtomicBool::new(false);
    if COPYING.swap(true, Ordering::Relaxed) {
        end_process();
    }
    // SAFETY: as for the caller. An error jumps over this frame, which has nothing to drop.
    let copy = unsafe { real_copy_error_data() };
    COPYING.store(false, Ordering::Relaxed);
    copy
}

/// Makes the thread-local variables of this library exist, in the postmaster and so in all its
/// processes. The C library ends a process at once if there is no memory for them later (127), or
/// for their destructors (abort): pgrx's hook for panics has a variable with one.
pub fn touch() {
    thread_local!(static ANY: Cell<bool> = const { Cell::new(false) });
    ANY.set(true);
    drop(std::panic::catch_unwind(|| std::panic::panic_any(())));
}

/// Bytes of this process's own data: its heap and stack, mapped or used. 0 where Linux does not tell.
pub fn data_size() -> usize {
    // SAFETY: no pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let sizes = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let data = sizes.split(' ').nth(5).and_then(|pages| pages.parse().ok());
    data.unwrap_or(0) * usize::try_from(page).unwrap_or(0)
}
