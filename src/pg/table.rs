//! Tables of the extension's own, row by row: by oid, through the table access method.
//!
//! What leaf_id does with more rights than its caller has, it does here (I9). There is no
//! parser and no executor, so no name is looked up, no user is changed, and no trigger,
//! rule, policy or constraint expression of anybody takes part. Logical decoding, standbys
//! and the table's ordinary indexes see such a write as any other.
//!
//! In return the table must be as the extension's script has made it: see [`shape::Shape`].
//!
//! A snapshot is taken after the table is locked, and anew for each look: one from before
//! would miss the rows of a table that was rewritten meanwhile.
//!
//! * [`shape`]: what a table must be like. [`check`]: whether it is.
//! * [`open`]: it is opened and locked. [`scan`]: its rows are looked at. [`write`](mod@write):
//!   they are locked and written.
//! * [`row`], [`value`]: a row as it was read, a value to be written.

pub mod check;
pub mod open;
pub mod row;
pub mod scan;
pub mod shape;
pub mod value;
pub mod write;
