//! Segment ids: the hot path, the lookup of a slot, and the wait for a segment.

pub mod issue;
pub mod lookup;
pub mod opaque;
pub mod ordered;
mod slot_cache;
pub mod take;
pub mod upcoming;
mod wait;
