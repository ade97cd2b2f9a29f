//! Worker ids that are leased from a registry.
//!
//! * [`client`]: the server that leases one: the launcher's part.
//! * [`registry`]: the registry, where it is in a database of this server.
//!
//! What either decides is in `leaf_id_core`: `lease` and `registry`.

use leaf_id_core::layout::Layout;

pub mod client;
pub mod registry;

/// The layout of this server's ids.
pub fn layout() -> Layout {
    Layout::DEFAULT
}
