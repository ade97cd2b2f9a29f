//! Snowflake ids: the hot path, opening the generator, and reserving timestamps.

pub mod issue;
pub mod keeper;
mod reservation;
pub mod reset;
mod state;

pub use state::hint;
