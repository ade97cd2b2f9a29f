//! Segment ids: the hot path, and the wait for a segment.

pub mod issue;
pub mod opaque;
mod slot_cache;
pub mod take;
pub mod upcoming;
pub mod wait;
