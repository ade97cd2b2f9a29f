//! The heart of leaf_id: what hands out ids, without PostgreSQL around it.
//!
//! Nothing here knows the server, the clock or the disk: time comes as an
//! argument, durability is the caller's promise. That is what lets threads,
//! loom and a seeded simulation check the very code that ships.
//!
//! The invariants I1..I8 that the comments quote are the README's guarantees.

#![forbid(unsafe_code)]

pub mod reservation;
pub mod segment;
pub mod snowflake;
pub mod step;

/// The one seam for loom: the same code runs on its atomics or on the real ones.
mod primitive {
    #[cfg(not(leaf_id_loom))]
    pub use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
    #[cfg(leaf_id_loom)]
    pub use loom::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
}
