//! Maps the file in which `leaf_id_core::sometimes` counts: that of `LEAF_ID_SOMETIMES` in the
//! environment of the postmaster. Not part of a release.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicU64;

use leaf_id_core::sometimes::{COUNTERS, count_in};

/// Maps the file, if there is one, for all processes of the server.
pub fn init() {
    let Some(path) = std::env::var_os("LEAF_ID_SOMETIMES") else {
        return;
    };
    let Ok(file) = File::options().read(true).write(true).open(path) else {
        pgrx::error!("leaf_id: could not open the file of LEAF_ID_SOMETIMES");
    };
    // SAFETY: a new mapping, of the file's length; it is never unmapped.
    let map = unsafe {
        libc::mmap(
            core::ptr::null_mut(),
            COUNTERS * size_of::<AtomicU64>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if map != libc::MAP_FAILED {
        // SAFETY: the mapping is aligned to a page, and the file is of zeroes and counts.
        count_in(unsafe { core::slice::from_raw_parts(map.cast(), COUNTERS) });
    }
}
