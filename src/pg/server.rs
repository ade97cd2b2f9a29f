//! The server of this process.

use core::ffi::CStr;
use std::sync::OnceLock;

use pgrx::pg_sys;

use super::signals::reload_if_asked;

/// True while `shared_preload_libraries` is being loaded.
pub fn preloading() -> bool {
    // SAFETY: a global of a single-threaded process.
    unsafe { pg_sys::process_shared_preload_libraries_in_progress }
}

/// True if pg_upgrade runs this server.
pub fn binary_upgrade() -> bool {
    // SAFETY: a global of a single-threaded process.
    unsafe { pg_sys::IsBinaryUpgrade }
}

/// True in single-user mode.
pub fn single_user() -> bool {
    // SAFETY: a global of a single-threaded process.
    unsafe { !pg_sys::IsUnderPostmaster }
}

/// True during recovery, including on a standby.
pub fn in_recovery() -> bool {
    // SAFETY: no arguments; reads shared memory, which this process is attached to.
    unsafe { pg_sys::RecoveryInProgress() }
}

/// Port of the server.
pub fn port() -> u16 {
    // SAFETY: a global of a single-threaded process.
    let port = unsafe { pg_sys::PostPortNumber };
    port.try_into().unwrap_or_default()
}

/// Host name, as of the first call in this process or its ancestors; empty if unavailable. Called
/// in the postmaster, so that all its children have the same one.
pub fn host_name() -> &'static [u8] {
    static HOST_NAME: OnceLock<Vec<u8>> = OnceLock::new();
    HOST_NAME.get_or_init(|| {
        // Larger than any name: the limit is 255 bytes in POSIX, 64 in Linux.
        let mut buffer = [0; 256];
        // SAFETY: the buffer has the given length.
        let result = unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len()) };
        let name = CStr::from_bytes_until_nul(&buffer).unwrap_or_default();
        if result == 0 { name.to_bytes() } else { b"" }.to_vec()
    })
}

/// System identifier of the database cluster.
pub fn system_identifier() -> u64 {
    // SAFETY: no arguments; reads shared memory, which this process is attached to.
    unsafe { pg_sys::GetSystemIdentifier() }
}

/// Timeline that WAL is written on; 0 during recovery. Unlike pg_control_checkpoint(), it is
/// current right after a promotion.
pub fn timeline() -> u32 {
    if in_recovery() {
        return 0;
    }
    // SAFETY: no arguments; reads shared memory, after the end of recovery.
    unsafe { pg_sys::GetWALInsertionTimeLine() }
}

/// True if no user has ever created an object in this cluster: the counter of oids is where initdb
/// has left it. Every copy of a cluster has its counter, pg_upgrade sets it to that of the old one,
/// and it never goes back below the first oid of users.
pub fn is_pristine() -> bool {
    // SAFETY: shared memory, which this process is attached to; a number that is read at once.
    unsafe { next_oid().read_volatile() }.to_u32() < pg_sys::FirstNormalObjectId
}

#[cfg(not(since_17))]
fn next_oid() -> *const pg_sys::Oid {
    // SAFETY: set before the process runs extensions.
    unsafe { &raw const (*pg_sys::ShmemVariableCache).nextOid }
}

#[cfg(since_17)]
fn next_oid() -> *const pg_sys::Oid {
    // SAFETY: set before the process runs extensions.
    unsafe { &raw const (*pg_sys::TransamVariables).nextOid }
}

/// True if commits may wait for synchronous standbys, by `synchronous_standby_names`. Reloads the
/// configuration if it has changed, so it must be called outside of a transaction.
pub fn has_synchronous_standbys() -> bool {
    reload_if_asked();
    // SAFETY: null, or a null-terminated string that is valid until the next change of a setting.
    unsafe {
        let names = pg_sys::GetConfigOption(c"synchronous_standby_names".as_ptr(), true, false);
        !names.is_null() && !CStr::from_ptr(names).is_empty()
    }
}

/// Makes the postmaster check which workers to start. Up to version 15, it may otherwise sleep for
/// up to a minute if a worker to be restarted exited just before the sleep.
pub fn nudge_postmaster() {
    // SAFETY: kill takes two integers; PostmasterPid is set before any child starts. Every process
    // sends the postmaster SIGUSR1 for work; without a reason it only runs its main loop.
    unsafe { libc::kill(pg_sys::PostmasterPid, libc::SIGUSR1) };
}

/// Sends SIGTERM to a process of this server.
pub fn terminate(pid: i32) {
    // SAFETY: kill takes two integers and touches no memory of this process.
    unsafe { libc::kill(pid, libc::SIGTERM) };
}
