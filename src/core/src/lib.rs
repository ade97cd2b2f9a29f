//! The heart of leaf_id: what hands out ids, without PostgreSQL around it.
//!
//! Nothing here knows the server, the clock or the disk: time comes as an
//! argument, durability is the caller's promise. That is what lets threads,
//! loom and a seeded simulation check the very code that ships.
//!
//! The invariants I1..I10 that the comments quote are in ARCHITECTURE.md.

#![forbid(unsafe_code)]

pub mod format;
pub mod keeper;
pub mod layout;
pub mod lease;
pub mod message;
pub mod node_name;
mod numbered;
pub mod opaque;
mod primitive;
pub mod registry;
pub mod reservation;
pub mod row;
pub mod segment;
pub mod snowflake;
pub mod state;
pub mod step;
pub mod tag_table;
