//! Row access to the extension's own tables: by oid, through the table access method.
//!
//! Everything that leaf_id does with more privileges than its caller is done here (I9). There is no
//! parser and no executor: no name is looked up, no user is switched, and no trigger, rule, policy
//! or constraint expression is run. Logical decoding, standbys and ordinary indexes see the writes
//! as usual.
//!
//! In return, the table must be as created by the extension's script: see [`shape::Shape`].
//!
//! A new snapshot is taken for each read, after the table is locked: an older one would miss the
//! rows of a table that was rewritten concurrently.
//!
//! * [`shape`]: expected definition of a table. [`check`]: verification of it.
//! * [`open`]: opening and locking. [`scan`]: reading rows. [`write`](mod@write): locking and
//!   writing rows. [`place`]: where they were last.
//! * [`row`], [`value`]: a row that was read, a value to be written.

pub mod check;
pub mod open;
pub mod place;
pub mod row;
pub mod scan;
pub mod shape;
pub mod value;
pub mod write;
