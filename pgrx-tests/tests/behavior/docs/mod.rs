//! The README and docs/ compared with the software: examples run, and lists are complete.

mod examples;
mod guarantees;
mod hints;
mod installer;
mod links;
pub mod page;
mod reference;
mod several_servers;
mod snowflake_recovery;
mod stays;
