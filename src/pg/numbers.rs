//! Hashes and random numbers.

use core::ffi::c_int;

use pgrx::pg_sys;

/// A cryptographically strong random number. Raises an error if none is available.
pub fn strong_random() -> u64 {
    let mut number = 0_u64;
    // SAFETY: writes as many bytes as the number has; any bytes are a valid number.
    let drawn = unsafe { pg_sys::pg_strong_random((&raw mut number).cast(), size_of::<u64>()) };
    if !drawn {
        pgrx::error!("could not draw a random number");
    }
    number
}

/// A hash that is the same on all servers of one version.
pub fn hash(bytes: &[u8]) -> u64 {
    let chunks = bytes.chunks(1 << 30);
    chunks.fold(0, |seed, chunk| {
        let len = c_int::try_from(chunk.len()).unwrap_or(0);
        // SAFETY: reads exactly the chunk.
        unsafe { pg_sys::hash_bytes_extended(chunk.as_ptr(), len, seed) }
    })
}
