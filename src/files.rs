//! Files in the data directory.
//!
//! * [`protocol`]: reading, writing, and detection of copies.
//! * [`reservation`]: the reservation of snowflake timestamps (I7).
//! * [`lease`]: the lease of the worker id.
//! * [`saved_ranges`]: remainders of segments while no launcher runs (I6).

pub mod lease;
pub mod protocol;
pub mod reservation;
pub mod saved_ranges;
