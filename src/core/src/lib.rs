//! The core of leaf_id: allocation of ids, without PostgreSQL.
//!
//! It has no access to the server, the clock or the disk. Time is an argument, durability the
//! caller's responsibility. So threads, loom and seeded simulations test the code that ships.
//!
//! Comments cite the invariants I1 to I10 of ARCHITECTURE.md.

#![forbid(unsafe_code)]

pub mod format;
pub mod keeper;
pub mod layout;
pub mod lease;
pub mod message;
pub mod node_name;
mod numbered;
pub mod opaque;
pub mod ordered;
pub mod primitive;
pub mod registry;
pub mod reservation;
pub mod row;
pub mod segment;
pub mod snowflake;
pub mod sometimes;
pub mod state;
pub mod step;
pub mod tag_table;
