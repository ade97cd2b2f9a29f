//! The control path: the workers that do what sessions cannot.
//!
//! A session cannot claim ids for itself: its transaction may roll back after it has
//! handed them out, and the table would hand them out again (I2). The workers are its
//! autonomous transaction. Waiting, SQL and files happen there, never on the hot path.
//!
//! * [`launcher`]: one per server, without a database. It starts the others ([`start`]), and
//!   keeps the snowflake generator.
//! * [`allocator`]: one per database that wants ids. It claims segments and publishes them,
//!   and talks to the servers that tags are sourced from. What it does for one of them is a
//!   [`request`].
//! * [`registrar`]: for a moment, while the worker registry is asked.
//! * [`reserve`]: one per server. It waits to be an allocator or a registrar where others have
//!   taken all worker slots.

#![allow(unsafe_code)]

mod allocator;
mod handle;
mod launcher;
mod registrar;
mod request;
mod reserve;
mod settings;
mod start;

/// Registers the workers that every server has. While the library is being preloaded.
pub fn register() {
    // First: where there is one slot, it is the launcher's.
    launcher::register();
    reserve::register();
}
