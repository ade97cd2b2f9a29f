//! Worker ids that are leased from a registry. The decisions are in `leaf_id_core`: `lease` and
//! `registry`.

pub mod client;
pub mod registry;
