//! Snowflake ids: who opens the generator, and who reserves its timestamps.

pub mod keeper;
