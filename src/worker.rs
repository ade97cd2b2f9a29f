//! Background workers: the work that sessions cannot do.
//!
//! A session cannot claim ids for itself: its transaction may roll back after it has issued them,
//! and the table would give them out again (I2). The workers serve as its autonomous transaction.
//! Waiting, SQL and file I/O happen here, never on the hot path.
//!
//! * [`launcher`]: one per server, without a database. It starts the other workers ([`start`]) and
//!   runs the snowflake generator.
//! * [`allocator`]: one per database that needs ids. It claims and publishes segments, and talks to
//!   source servers. [`request`] is its work for one request.
//! * [`registrar`]: short-lived, for one request to the worker registry.
//! * [`reserve`]: one per server. It acts as an allocator or a registrar if no worker slot is free.

#![allow(unsafe_code)]

mod allocator;
mod handle;
mod launcher;
mod registrar;
mod request;
mod reserve;
mod settings;
mod start;

use crate::pg;

/// Registers the permanent workers. Only while the library is being preloaded.
pub fn register() {
    // The launcher first: it gets the slot if there is only one.
    for (name, register) in [
        ("launcher", launcher::register as fn()),
        ("reserve worker", reserve::register),
    ] {
        let before = pg::registered_workers();
        register();
        if pg::registered_workers() == before {
            let slots = pg::max_worker_processes();
            pgrx::warning!(
                "leaf_id: no worker slot is left for the {name}: \"max_worker_processes\" ({slots}) is too small"
            );
        }
    }
}
