//! Snowflake ids: their order, the clock, the launcher that reserves time for them, and their
//! parts.

mod clock;
mod first_id;
mod ids;
mod late_launcher;
mod layout;
