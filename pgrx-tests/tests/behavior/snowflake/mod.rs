//! Snowflake ids: their order, the clock, and the launcher that reserves time for them.

mod clock;
mod ids;
mod late_launcher;
mod never_waits;
