//! Worker ids that are leased from a registry.
//!
//! * [`client`]: the server that leases one: the launcher's part.
//! * [`registry`]: the registry, where it is in a database of this server.
//!
//! The decisions of both are in `leaf_id_core`: `lease` and `registry`.

pub mod client;
pub mod registry;
