//! Rare branches, each of which long tests should reach sometimes: a rule that is never needed may
//! be wrong, or the tests are too tame.
//!
//! [`sometimes!`](crate::sometimes) marks one. It expands to nothing, except under
//! `cfg(leaf_id_sometimes)`: there it counts, in a file that all processes of a server map. It does
//! not allocate, lock or fail, so it may stand anywhere.

/// Number of counters in the file.
pub const COUNTERS: usize = 1 << 12;

/// The counter of a name: its hash (FNV-1a). A test compares those of all names.
#[must_use]
pub const fn counter(name: &str) -> usize {
    let bytes = name.as_bytes();
    let mut hash: u32 = 0x811c_9dc5;
    let mut at = 0;
    while at < bytes.len() {
        hash = (hash ^ bytes[at] as u32).wrapping_mul(0x0100_0193);
        at += 1;
    }
    (hash ^ hash >> 16) as usize % COUNTERS
}

/// Marks a branch by a name of its own; or a condition, where there is no branch for it.
#[macro_export]
macro_rules! sometimes {
    ($name:literal $(, $condition:expr)?) => {
        #[cfg(leaf_id_sometimes)]
        if true $(&& $condition)? {
            const COUNTER: usize = $crate::sometimes::counter($name);
            $crate::sometimes::count(COUNTER);
        }
    };
}

#[cfg(leaf_id_sometimes)]
mod counting {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static COUNTS: OnceLock<&'static [AtomicU64]> = OnceLock::new();

    /// Where to count from now on, in this process and its children.
    pub fn count_in(counts: &'static [AtomicU64]) {
        let _ = COUNTS.set(counts);
    }

    /// Counts, if there is a file.
    pub fn count(counter: usize) {
        if let Some(count) = COUNTS.get().and_then(|counts| counts.get(counter)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[cfg(leaf_id_sometimes)]
pub use counting::{count, count_in};
