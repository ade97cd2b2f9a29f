//! leaf_id: unique 64-bit ids for every session of a server, from shared memory.
//!
//! Meituan's Leaf inside PostgreSQL. The invariants that comments quote as I1..I10 are in
//! ARCHITECTURE.md. Where to look:
//!
//! * `api`: the SQL functions, by feature; `error`: what they raise; `guc`: the settings.
//! * `segment`: ids of tags; the hot path, from an SQL call to an id.
//! * `worker`: the control path.
//! * `tags`: the rows of `leaf_alloc`, and claims of ids from them.
//! * `remote`: other servers: the way to one, and what a call from one has to keep.
//! * `shmem`: what sessions and workers share, and the rules for it.
//! * `snowflake`: snowflake ids: the call, and who opens the generator and reserves timestamps.
//! * `lease`: worker ids that are leased from a registry, and that registry.
//! * `files`: the files in the data directory.
//! * `gapless`: gapless numbers, from rows that are locked until the caller commits.
//! * `pg`: PostgreSQL, one file a subject; it knows nothing of the others.
//! * `leaf_id_core`: what needs no PostgreSQL: the double buffer, the snowflake word, the
//!   adaptive step, leases and the registry's decisions, ids as people read them.

mod api;
mod deadline;
mod error;
mod files;
mod gapless;
mod guc;
mod lease;
mod pg;
mod remote;
mod segment;
mod shmem;
mod snowflake;
mod tags;
mod worker;

pgrx::pg_module_magic!();

/// Called when the library is loaded. Where it is not preloaded, this never raises: pg_upgrade
/// and pg_restore load it into such servers; the functions say so instead.
#[pgrx::pg_guard]
#[allow(unsafe_code, reason = "PostgreSQL finds it by this name")]
pub extern "C-unwind" fn _PG_init() {
    if !pg::preloading() {
        return;
    }
    if let Err(refused) = guc::define() {
        error::Failure::from(refused).raise();
    }
    // A server that runs must not become another node when its machine is renamed.
    pg::host_name();
    shmem::init();
    pg::watch_databases(shmem::forget_database);
    if !pg::binary_upgrade() {
        worker::register();
    }
}
