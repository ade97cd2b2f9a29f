//! Address of another server, as defined by CREATE SERVER and CREATE USER MAPPING.
//!
//! Uses the same options as dblink: those of the wrapper, the server and the mapping that libpq
//! knows; others are ignored. So servers of dblink_fdw and of postgres_fdw can be used, and both
//! wrappers validate their options.

#![allow(unsafe_code)]

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::ffi::{CString, OsStr};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use pgrx::pg_sys;

use super::libpq::{Options, RemoteError, known_options};
use crate::pg;

/// Options that name a file, which libpq or OpenSSL reads without a time limit and without a look at
/// interrupts. (What kind of file `passfile` and `sslkey` are, libpq looks at.)
const FILES: [&CStr; 5] = [
    c"oauth_ca_file",
    c"servicefile",
    c"sslcert",
    c"sslcrl",
    c"sslrootcert",
];

/// Max length of one of them in bytes, if the foreign server is not a superuser's.
const MAX_FILE: u64 = 16 << 20;

/// Options that are refused unless the foreign server is a superuser's. A service sets any option, even those for
/// debugging; the other server says which files of a directory are read; with `sslkey '/tmp/x.so:key'`, OpenSSL loads
/// that library. `sslcert` and `gssdelegation` use what is the operating system user's; with `oauth_issuer`, the worker
/// connects to a web server.
const RESERVED: [&CStr; 7] = [
    c"gssdelegation",
    c"oauth_issuer",
    c"service",
    c"servicefile",
    c"sslcert",
    c"sslcrldir",
    c"sslkey",
];

/// Default of `connect_timeout`, per host.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Max time to connect to all hosts, one after the other, if the foreign server is not a superuser's: an allocator that
/// connects keeps its worker slot, also where other databases wait for one.
const MAX_TIMEOUT: Duration = Duration::from_secs(300);

const NOT_SUPERUSERS: &str = "the foreign server is not a superuser's";

/// One host of a foreign server.
#[derive(PartialEq, Eq)]
pub struct Host {
    /// Name for messages.
    pub name: String,
    /// Connection options.
    pub options: Options,
    /// Time limit of the whole connection attempt. libpq ignores `connect_timeout` in nonblocking
    /// mode, and would wait for a silent host forever.
    pub timeout: Duration,
}

/// A foreign server, with its owner's user mapping.
pub struct Destination {
    /// Hosts, in the order to try them.
    pub hosts: Vec<Host>,
    /// The server must request a password, and gets the mapping's. Otherwise any role that can
    /// create servers could log in anywhere this server's operating system user is admitted.
    pub needs_password: bool,
}

/// Looks up a foreign server, in a transaction. The user mapping is that of its owner, who has put
/// it there for this server; no other role's is used. PostgreSQL raises its own error if the
/// server, or a mapping for its owner or PUBLIC, does not exist.
///
/// # Errors
/// The mapping lacks a required password, an option takes a superuser's foreign server, or one names what
/// would hold up a worker that other databases need: a pipe or a device; or, unless the foreign server is a
/// superuser's, a large file, or hosts that may take too long to connect to.
pub fn destination(name: &CStr) -> Result<Destination, RemoteError> {
    let mut options = Options::default();
    // SAFETY: in a transaction. A missing object raises an error, so nothing is null except for
    // empty lists. Everything is palloc'ed, and lives longer than this call. The elements are
    // DefElems with null-terminated names.
    let needs_password = unsafe {
        let server = &*pg_sys::GetForeignServerByName(name.as_ptr(), false);
        let mapping = &*pg_sys::GetUserMapping(server.owner, server.serverid);
        let wrapper = &*pg_sys::GetForeignDataWrapper(server.fdwid);
        let known = known_options();
        for list in [wrapper.options, server.options, mapping.options] {
            for cell in pg::cells(list) {
                let element = cell.ptr_value.cast::<pg_sys::DefElem>();
                let keyword = CStr::from_ptr((*element).defname);
                if known.iter().any(|known| known.as_c_str() == keyword) {
                    options.set(keyword, CStr::from_ptr(pg_sys::defGetString(element)));
                }
            }
        }
        !pg_sys::superuser_arg(server.owner)
    };
    let refused = |sqlstate, message| {
        Err(RemoteError {
            sqlstate: Some(sqlstate),
            message,
            broken: true,
        })
    };
    if needs_password {
        if options.get(c"password").is_none_or(CStr::is_empty) {
            let message = format!("a password is required in the user mapping: {NOT_SUPERUSERS}");
            return refused(*b"2F003", message);
        }
        let mut reserved = RESERVED.into_iter();
        if let Some(keyword) = reserved.find(|keyword| options.get(keyword).is_some()) {
            let keyword = keyword.to_string_lossy();
            return refused(
                *b"42501",
                format!("this {keyword} is not allowed: {NOT_SUPERUSERS}"),
            );
        }
    }
    let is_special = |path: &CStr| {
        // Where no file is to be read, it is common, and ends at once.
        path != c"/dev/null"
            && fs::metadata(OsStr::from_bytes(path.to_bytes()))
                .is_ok_and(|found| !found.is_file() || needs_password && found.len() > MAX_FILE)
    };
    let mut files = FILES.into_iter();
    let special = files.find(|keyword| options.get(keyword).is_some_and(is_special));
    if let Some(keyword) = special {
        let keyword = keyword.to_string_lossy();
        let size = if needs_password {
            " of up to 16 MB"
        } else {
            ""
        };
        let message = format!("{keyword} is not a regular file{size}");
        return refused(*b"42809", message);
    }
    // SAFETY: no arguments; returns a static null-terminated string.
    let encoding = unsafe { CStr::from_ptr(pg_sys::GetDatabaseEncodingName()) };
    options.set(c"client_encoding", encoding);
    if options.get(c"fallback_application_name").is_none() {
        options.set(c"fallback_application_name", c"leaf_id");
    }
    let hosts = split_hosts(options);
    let total = hosts.iter().map(|host| host.timeout).sum::<Duration>();
    if needs_password && total > MAX_TIMEOUT {
        let seconds = total.as_secs();
        let message =
            format!("a connect_timeout of {seconds} s in all is not allowed: {NOT_SUPERUSERS}");
        return refused(*b"42501", message);
    }
    Ok(Destination {
        hosts,
        needs_password,
    })
}

/// Splits a list of hosts, so that each has its own time limit. Lists of different lengths are left
/// unchanged; libpq reports them.
fn split_hosts(mut options: Options) -> Vec<Host> {
    let timeout = timeout(&options);
    options.remove(c"connect_timeout");
    let list = |keyword| {
        let value = options.get(keyword).map(CStr::to_bytes);
        let parts = value.map(|value| value.split(|byte| *byte == b',').collect::<Vec<_>>());
        (keyword, parts.unwrap_or_default())
    };
    let lists = [list(c"host"), list(c"hostaddr"), list(c"port")];
    let [(_, names), (_, addresses), (_, ports)] = &lists;
    let count = names.len().max(addresses.len());
    let fits = |list: &[&[u8]]| list.is_empty() || list.len() == count;
    if count < 2 || !fits(names) || !fits(addresses) || (!fits(ports) && ports.len() != 1) {
        return vec![host(options, timeout)];
    }
    (0..count)
        .map(|number| {
            let mut options = options.clone();
            for (keyword, parts) in &lists {
                // A single port applies to all hosts.
                let part = parts.get(number).filter(|_| parts.len() > 1);
                if let Some(value) = part.and_then(|part| CString::new(*part).ok()) {
                    options.set(keyword, &value);
                }
            }
            host(options, timeout)
        })
        .collect()
}

fn host(options: Options, timeout: Duration) -> Host {
    let text = |keyword| {
        let value = options.get(keyword).filter(|value| !value.is_empty());
        value.map(|value| value.to_string_lossy())
    };
    let host = text(c"host").or_else(|| text(c"hostaddr"));
    let host = host.unwrap_or("the default host".into());
    let name = match text(c"port") {
        Some(port) => format!("{host} port {port}"),
        None => host.into_owned(),
    };
    Host {
        name,
        options,
        timeout,
    }
}

fn timeout(options: &Options) -> Duration {
    let seconds = options
        .get(c"connect_timeout")
        .and_then(|text| text.to_str().ok()?.trim().parse().ok())
        .unwrap_or(0);
    match seconds {
        0 => CONNECT_TIMEOUT,
        // Capped at one hour to avoid overflow of the deadline.
        seconds => Duration::from_secs(seconds.min(3600)),
    }
}

static CHANGES: AtomicU64 = AtomicU64::new(0);

unsafe extern "C-unwind" fn changed(_arg: pg_sys::Datum, _cache: c_int, _hash: u32) {
    // Called during any catalog access: only increments a counter.
    CHANGES.fetch_add(1, Ordering::Relaxed);
}

/// Registers callbacks for foreign servers and user mappings; see [`foreign_changes`].
pub fn watch_foreign_servers() {
    static WATCHING: AtomicBool = AtomicBool::new(false);
    if WATCHING.swap(true, Ordering::Relaxed) {
        return;
    }
    use pg_sys::SysCacheIdentifier::{FOREIGNDATAWRAPPEROID, FOREIGNSERVEROID, USERMAPPINGOID};
    for cache in [FOREIGNDATAWRAPPEROID, FOREIGNSERVEROID, USERMAPPINGOID] {
        // SAFETY: the callback only accesses an atomic, and is in a library that is never unloaded.
        unsafe {
            pg_sys::CacheRegisterSyscacheCallback(
                pg::cache_id(cache),
                Some(changed),
                pg_sys::Datum::null(),
            );
        }
    }
}

/// Counts cache invalidations that may have changed the options of a foreign server. Those of other
/// sessions are processed at the start of a transaction.
pub fn foreign_changes() -> u64 {
    CHANGES.load(Ordering::Relaxed)
}
