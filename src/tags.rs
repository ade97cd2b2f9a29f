//! Tags: the rows of `leaf_alloc`.
//!
//! * [`heap`]: contents of a row, and reading rows by oid.
//! * [`claim`]: the only place that claims ids.
//! * [`receive`]: recording claims made on a source server.
//! * [`mark`]: high-water marks of names.
//! * [`missing`]: suggestions for a tag that does not exist.
//! * [`opaque`]: keys of opaque ids.
//! * [`blocker`]: holders of locks that block a claim.
//! * [`rights`]: the roles that may issue ids of a tag.
//! * [`trigger`]: checks of edits.
//! * [`transaction`]: edits of the open transaction.

pub mod blocker;
pub mod claim;
pub mod heap;
pub mod mark;
pub mod missing;
pub mod opaque;
pub mod receive;
pub mod rights;
pub mod transaction;
pub mod trigger;
