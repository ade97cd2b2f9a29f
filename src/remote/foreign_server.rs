//! Where another server is, as CREATE SERVER and CREATE USER MAPPING say.
//!
//! Options are taken as dblink takes them: those of the wrapper, of the server and of the
//! mapping that libpq knows; the others are somebody else's. So a server of dblink_fdw or of
//! postgres_fdw will do, and both check what they are given.

#![allow(unsafe_code)]

use core::ffi::{CStr, c_int};
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::ffi::CString;
use std::time::Duration;

use pgrx::pg_sys;

use super::libpq::{Options, RemoteError, known_options};
use crate::pg::usage;

/// How long one host may take to connect, where `connect_timeout` does not say.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// One host of a foreign server.
#[derive(PartialEq, Eq)]
pub struct Host {
    /// What it is called, for messages.
    pub name: String,
    /// How to connect to it.
    pub options: Options,
    /// How long that may take, everything together: libpq itself does not look at
    /// `connect_timeout` where it is not to wait, and would never leave a silent host.
    pub timeout: Duration,
}

/// A foreign server, as one user reaches it.
pub struct Destination {
    /// Its hosts, in the order in which to try them.
    pub hosts: Vec<Host>,
    /// It must ask for a password, and get the mapping's: otherwise whoever may create
    /// servers would get in with what this server's own user is let in with elsewhere.
    pub needs_password: bool,
}

/// Looks a foreign server up for a user: in a transaction. PostgreSQL raises its own error
/// where there is no such server, or no mapping for that user and none for PUBLIC.
///
/// # Errors
/// The user may not use the server, or would need a password for that.
pub fn destination(name: &CStr, user: u32) -> Result<Destination, RemoteError> {
    let user = pg_sys::Oid::from(user);
    let refused = |sqlstate: &[u8; 5], message: String| RemoteError {
        sqlstate: Some(*sqlstate),
        message,
        broken: true,
    };
    let mut options = Options::default();
    // SAFETY: in a transaction. What is not there is an error, so nothing of this is null but a
    // list without elements; all of it is palloc'ed, and lives longer than this call. The elements
    // are DefElems, with names that end with null.
    let needs_password = unsafe {
        let server = &*pg_sys::GetForeignServerByName(name.as_ptr(), false);
        if usage(server.serverid, user) != pg_sys::AclResult::ACLCHECK_OK {
            let name = name.to_string_lossy();
            return Err(refused(
                b"42501",
                format!("permission denied for foreign server {name}"),
            ));
        }
        let mapping = &*pg_sys::GetUserMapping(user, server.serverid);
        let wrapper = &*pg_sys::GetForeignDataWrapper(server.fdwid);
        let known = known_options();
        for list in [wrapper.options, server.options, mapping.options] {
            for element in elements(list) {
                let keyword = CStr::from_ptr((*element).defname);
                if known.iter().any(|known| known.as_c_str() == keyword) {
                    options.set(keyword, CStr::from_ptr(pg_sys::defGetString(element)));
                }
            }
        }
        let trusted = pg_sys::superuser_arg(user) && pg_sys::superuser_arg(server.owner);
        !trusted
    };
    if needs_password && options.get(c"password").is_none_or(CStr::is_empty) {
        return Err(refused(
            b"2F003",
            "a password is required in the user mapping: the foreign server or leaf_id.leaf_alloc is not a superuser's".into(),
        ));
    }
    // SAFETY: takes nothing; a static string that ends with null.
    let encoding = unsafe { CStr::from_ptr(pg_sys::GetDatabaseEncodingName()) };
    options.set(c"client_encoding", encoding);
    if options.get(c"fallback_application_name").is_none() {
        options.set(c"fallback_application_name", c"leaf_id");
    }
    Ok(Destination {
        hosts: split_hosts(options),
        needs_password,
    })
}

/// The elements of a list of options; null is a list without any.
///
/// # Safety
/// The list is valid, and one of pointers to DefElems.
unsafe fn elements(list: *const pg_sys::List) -> Vec<*mut pg_sys::DefElem> {
    // SAFETY: as the caller says; it has as many elements as it says.
    unsafe {
        let Some(list) = list.as_ref() else {
            return Vec::new();
        };
        let count = usize::try_from(list.length).unwrap_or(0);
        (0..count)
            .map(|number| (*list.elements.add(number)).ptr_value.cast())
            .collect()
    }
}

/// The hosts one by one, so that each has a time limit of its own. Lists of different length
/// are left as they are: libpq says so.
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
                // A single port is that of all hosts.
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
        // A deadline that far away can be reckoned with, and nobody waits for it.
        seconds => Duration::from_secs(seconds.min(3600)),
    }
}

static CHANGES: AtomicU64 = AtomicU64::new(0);

unsafe extern "C-unwind" fn changed(_arg: pg_sys::Datum, _cache: c_int, _hash: u32) {
    // Called from anywhere that looks at the catalogs: nothing but a counter.
    CHANGES.fetch_add(1, Ordering::Relaxed);
}

/// Watches foreign servers and user mappings from now on, see [`foreign_changes`].
pub fn watch_foreign_servers() {
    static WATCHING: AtomicBool = AtomicBool::new(false);
    if WATCHING.swap(true, Ordering::Relaxed) {
        return;
    }
    use pg_sys::SysCacheIdentifier::{FOREIGNDATAWRAPPEROID, FOREIGNSERVEROID, USERMAPPINGOID};
    for cache in [FOREIGNDATAWRAPPEROID, FOREIGNSERVEROID, USERMAPPINGOID] {
        // SAFETY: a callback that touches nothing but an atomic, and lives as long as the library, which is
        // never unloaded.
        unsafe {
            pg_sys::CacheRegisterSyscacheCallback(
                cache.cast_signed(),
                Some(changed),
                pg_sys::Datum::null(),
            );
        }
    }
}

/// Counts what may have changed the options of a foreign server, as far as this process has
/// heard: what other sessions do is heard of when a transaction begins.
pub fn foreign_changes() -> u64 {
    CHANGES.load(Ordering::Relaxed)
}
