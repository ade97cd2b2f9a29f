//! leaf_id: unique 64-bit ids for every session of a server, from shared memory.
//!
//! Meituan's Leaf inside PostgreSQL. The guarantees that comments quote as I1..I9 are in
//! the README. Where to look:
//!
//! * `segment`: ids of tags; the hot path, from an SQL call to an id.
//! * `worker`: the control path.
//! * `tags`: the rows of `leaf_alloc`, and claims of ids from them.
//! * `remote`: other servers: the way to one, and what a call from one has to keep.
//! * `shmem`: what both share, and the rules for it.
//! * `snowflake`: snowflake ids: the call, and who opens the generator and reserves timestamps.
//! * `lease`: worker ids that are leased from a registry, and that registry.
//! * `persist`: the files in the data directory.
//! * `leaf_id_core`: the double buffer, the snowflake word and the adaptive step.

mod api;
mod deadline;
mod error;
mod guc;
mod lease;
mod persist;
mod pg;
mod remote;
mod segment;
mod shmem;
mod snowflake;
mod tags;
mod worker;

pgrx::pg_module_magic!();

/// Called when the library is loaded. Never raises: pg_upgrade and pg_restore load it into
/// servers that have not preloaded it; the functions say so instead.
#[pgrx::pg_guard]
#[allow(unsafe_code, reason = "PostgreSQL finds it by this name")]
pub extern "C-unwind" fn _PG_init() {
    if !pg::preloading() {
        return;
    }
    guc::define();
    shmem::init();
    pg::watch_databases(shmem::forget_database);
    if !pg::binary_upgrade() {
        worker::register();
    }
}
