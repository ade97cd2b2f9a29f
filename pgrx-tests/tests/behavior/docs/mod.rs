//! The README and docs/ against the software: what they show runs, and what they list is there.

mod examples;
mod links;
pub mod page;
mod reference;
mod several_servers;
mod snowflake_recovery;
