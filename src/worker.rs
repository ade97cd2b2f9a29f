//! The control path: the workers that do what sessions cannot.
//!
//! A session cannot claim ids for itself: its transaction may roll back after it has
//! handed them out, and the table would hand them out again (I2). The workers are its
//! autonomous transaction. Waiting, SQL and files happen there, never on the hot path.
//!
//! * [`launcher`]: one per server, without a database. It starts the others, and keeps the
//!   snowflake generator.
//! * [`allocator`]: one per database that wants ids. It claims segments and publishes them,
//!   and talks to the servers that tags are sourced from ([`central`]).
//! * [`registrar`]: for a moment, while the worker registry is asked.
//! * [`reserve`]: one per server. It waits to be an allocator or a registrar where others have
//!   taken all worker slots.

#![allow(unsafe_code)]

use crate::pg;

pub mod allocator;
mod launcher;
mod registrar;
mod reserve;

/// Registers the workers that every server has. While the library is being preloaded.
pub fn register() {
    // First: where there is one slot, it is the launcher's.
    launcher::register();
    reserve::register();
}

/// What the launcher tells an allocator with: the number of its queue, and the registration that
/// it is awaited with. In one word; 0 is none, as no registration is.
fn pack(queue: u32, registration: u32) -> u64 {
    (u64::from(queue) << 32) | u64::from(registration)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "two halves of what was packed"
)]
fn unpack(slot_ref: u64) -> (u32, u32) {
    ((slot_ref >> 32) as u32, slot_ref as u32)
}

/// What ALTER DATABASE or ALTER ROLE SET may have changed must not stop claims.
fn pin_settings() {
    for (name, value) in [
        (c"role", c"none"),
        (c"session_replication_role", c"origin"),
        (c"search_path", c"pg_catalog, pg_temp"),
        (c"default_transaction_read_only", c"off"),
        (c"default_transaction_isolation", c"read committed"),
        (c"default_transaction_deferrable", c"off"),
        (c"statement_timeout", c"0"),
        (c"transaction_timeout", c"0"),
        (c"idle_in_transaction_session_timeout", c"0"),
        (c"idle_session_timeout", c"0"),
        // Short: no tag holds up another.
        (c"lock_timeout", c"100ms"),
        (c"jit", c"off"),
    ] {
        pg::pin_setting(name, value);
    }
}
