//! Files in the data directory.

pub mod lease;
pub mod protocol;
pub mod reservation;
pub mod saved_ranges;
