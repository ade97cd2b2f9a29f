//! The files in the data directory.
//!
//! * [`protocol`]: how each of them is written and read, and told from its copies.
//! * [`reservation`]: the reservation of snowflake timestamps (I7).
//! * [`lease`]: the lease of the worker id.
//! * [`saved_ranges`]: what is left of the segments while no launcher runs (I6).

pub mod lease;
pub mod protocol;
pub mod reservation;
pub mod saved_ranges;
