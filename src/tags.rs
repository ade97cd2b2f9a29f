//! Tags: the rows of `leaf_alloc`.

pub mod blocker;
pub mod claim;
pub mod heap;
pub mod mark;
pub mod opaque;
pub mod receive;
pub mod rights;
pub mod transaction;
pub mod trigger;
