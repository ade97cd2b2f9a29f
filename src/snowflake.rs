//! Snowflake ids: the hot path, who opens the generator, and who reserves its timestamps.

pub mod issue;
pub mod keeper;
mod reservation;
pub mod reset;
mod state;
