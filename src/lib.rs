//! leaf_id: unique 64-bit ids for all sessions of a server, from shared memory.
//!
//! Meituan's Leaf as a PostgreSQL extension. Comments cite the invariants I1 to I10 of
//! ARCHITECTURE.md, which also has a map of the modules.

mod api;
mod deadline;
mod error;
mod files;
mod gapless;
mod guc;
mod lease;
mod pg;
mod random;
mod remote;
mod segment;
mod shmem;
mod snowflake;
#[cfg(leaf_id_sometimes)]
mod sometimes;
mod tags;
mod worker;

pgrx::pg_module_magic!();

/// Called when the library is loaded. Never raises an error if the library is not preloaded, since
/// pg_upgrade and pg_restore load it into such servers; the functions raise it instead.
#[pgrx::pg_guard]
#[allow(unsafe_code, reason = "PostgreSQL finds it by this name")]
pub extern "C-unwind" fn _PG_init() {
    pg::touch();
    if pg::binary_upgrade()
        && let Err(error) = files::reservation::disown()
    {
        pgrx::error!("leaf_id: could not replace leaf_id_reservation.json: {error}");
    }
    guc::define_reloadable();
    if !pg::preloading() {
        return;
    }
    if let Err(refused) = guc::define() {
        error::Failure::from(refused).raise();
    }
    #[cfg(leaf_id_sometimes)]
    sometimes::init();
    // Read it once: a running server must keep its node name if the machine is renamed.
    pg::host_name();
    shmem::init();
    pg::watch_databases(shmem::forget_database);
    if !pg::binary_upgrade() {
        worker::register();
    }
}
