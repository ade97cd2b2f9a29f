//! Snowflake ids: their order, the clock, the launcher that reserves time for them, and what
//! they are made of.

mod clock;
mod ids;
mod late_launcher;
mod layout;
