//! Tags: the rows of `leaf_alloc`.
//!
//! * [`heap`]: what a row holds, and how it is read by oid.
//! * [`claim`]: the only place that claims ids.
//! * [`receive`]: what a claim on another server has brought.
//! * [`mark`]: how far ids of a name were claimed.
//! * [`opaque`]: the keys of opaque ids.
//! * [`blocker`]: who keeps a claim from its row.
//! * [`rights`]: who may issue ids of a tag.
//! * [`trigger`]: what an edit may do.
//! * [`transaction`]: the edits of the open transaction.

pub mod blocker;
pub mod claim;
pub mod heap;
pub mod mark;
pub mod opaque;
pub mod receive;
pub mod rights;
pub mod transaction;
pub mod trigger;
