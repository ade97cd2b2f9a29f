//! The server that this process belongs to.

use core::ffi::CStr;
use std::sync::OnceLock;

use pgrx::pg_sys;

use super::signals::reload_if_asked;

/// Whether `shared_preload_libraries` is being loaded.
pub fn preloading() -> bool {
    // SAFETY: a plain global of this process, which has one thread.
    unsafe { pg_sys::process_shared_preload_libraries_in_progress }
}

/// Whether pg_upgrade runs this server.
pub fn binary_upgrade() -> bool {
    // SAFETY: a plain global of this process, which has one thread.
    unsafe { pg_sys::IsBinaryUpgrade }
}

/// Whether this is a server of one process, without workers.
pub fn single_user() -> bool {
    // SAFETY: a plain global of this process, which has one thread.
    unsafe { !pg_sys::IsUnderPostmaster }
}

/// Whether this server is a standby, or still recovering.
pub fn in_recovery() -> bool {
    // SAFETY: takes nothing; reads shared memory, which this process is attached to.
    unsafe { pg_sys::RecoveryInProgress() }
}

/// When the server was started, as a TimestampTz.
pub fn server_start() -> i64 {
    // SAFETY: a plain global of this process, which has one thread.
    unsafe { pg_sys::PgStartTime }
}

/// The port that the server listens on.
pub fn port() -> u16 {
    // SAFETY: a plain global of this process, which has one thread.
    let port = unsafe { pg_sys::PostPortNumber };
    port.try_into().unwrap_or_default()
}

/// The machine's host name when this was first asked; empty where it cannot be read. Asked in
/// the postmaster, it is the same in all its children, whatever the machine is called by then.
pub fn host_name() -> &'static [u8] {
    static HOST_NAME: OnceLock<Vec<u8>> = OnceLock::new();
    HOST_NAME.get_or_init(|| {
        // Longer than any: POSIX has 255 bytes, Linux 64.
        let mut buffer = [0; 256];
        // SAFETY: the buffer is as long as it says.
        let result = unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len()) };
        let name = CStr::from_bytes_until_nul(&buffer).unwrap_or_default();
        if result == 0 { name.to_bytes() } else { b"" }.to_vec()
    })
}

/// The identifier of the database cluster.
pub fn system_identifier() -> u64 {
    // SAFETY: takes nothing; reads shared memory, which this process is attached to.
    unsafe { pg_sys::GetSystemIdentifier() }
}

/// The timeline that WAL is written on: current at once after a promotion, unlike what SQL
/// shows until a checkpoint. 0 during recovery, when none is written on.
pub fn timeline() -> u32 {
    if in_recovery() {
        return 0;
    }
    // SAFETY: takes nothing; reads shared memory, and recovery is over for good.
    unsafe { pg_sys::GetWALInsertionTimeLine() }
}

/// Whether commits may wait for standbys, as `synchronous_standby_names` says. Reads the
/// configuration again if it has changed: outside of a transaction.
pub fn has_synchronous_standbys() -> bool {
    reload_if_asked();
    // SAFETY: null, or a string that ends with null and is valid until the next call that changes
    // a setting.
    unsafe {
        let names = pg_sys::GetConfigOption(c"synchronous_standby_names".as_ptr(), true, false);
        !names.is_null() && !CStr::from_ptr(names).is_empty()
    }
}

/// Has the postmaster look which workers it should start. Up to version 15 it may
/// otherwise sleep for a minute over a worker that is to be restarted, if that one ended
/// just before the postmaster went to sleep.
pub fn nudge_postmaster() {
    // SAFETY: kill takes two numbers; PostmasterPid is set before any other process starts.
    // SIGUSR1 is the signal that every process sends the postmaster for work; without a reason
    // it does no more than its rounds.
    unsafe { libc::kill(pg_sys::PostmasterPid, libc::SIGUSR1) };
}

/// Asks a process of this server to end.
pub fn terminate(pid: i32) {
    // SAFETY: kill takes two numbers, and no memory of this process is touched.
    unsafe { libc::kill(pid, libc::SIGTERM) };
}
