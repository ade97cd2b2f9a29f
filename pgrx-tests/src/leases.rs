//! A worker registry, servers that lease their worker ids from it, and sessions that check their
//! ids.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use postgres::types::FromSqlOwned;

use crate::checks::{Call, wait_until};
use crate::cluster::Backup;
use crate::fleet::CENTRAL;
use crate::server::Server;
use crate::session::{Failure, Session};

const LIMIT: Duration = Duration::from_secs(60);
/// Default of `leaf_id.epoch`.
const EPOCH_MS: i64 = 1_288_834_974_657;
/// Number of system identifiers used: nodes of the same system differ in their names.
const SYSTEMS: usize = 3;

/// Lease file.
const LEASE_FILE: &str = "leaf_id_lease.json";
/// Reservation file.
const RESERVATION_FILE: &str = "leaf_id_reservation.json";
/// Boot id in a lease file from another machine, or from before a reboot.
pub const OTHER_BOOT: &str = "\"00000000-0000-4000-8000-000000000000\"";

/// Default settings of members. The reservation left by a crash ends soon.
const CONF: [(&str, &str); 1] = [("leaf_id.timestamp_reservation", "500ms")];
/// How far ahead a registry grants, in milliseconds.
const AHEAD_MS: i64 = 2_000;

/// Current time of the machine's clock, in Unix milliseconds.
///
/// # Panics
/// Before 1970.
#[must_use]
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_millis().try_into().unwrap()
}

/// Timestamp of a snowflake id, in Unix milliseconds.
#[must_use]
pub const fn time_of(id: i64) -> i64 {
    (id >> 22) + EPOCH_MS
}

/// Worker id of a snowflake id.
#[must_use]
pub const fn worker_of(id: i64) -> i32 {
    (id >> 12 & 1023) as i32
}

/// A server with a worker registry in database postgres.
pub struct Registry {
    /// The server.
    pub server: Server,
    members: AtomicUsize,
}

/// The registry's record of a worker id.
#[derive(Clone, Debug)]
pub struct Holder {
    /// Node name.
    pub node: Option<String>,
    /// No server but the holder can have it.
    pub live: bool,
    /// Time of the first grant to the node, in Unix microseconds.
    pub leased_us: Option<i64>,
    /// Time of the last renewal, in Unix microseconds.
    pub renewed_us: Option<i64>,
    /// No id of any holder so far has a later timestamp.
    pub reserved_until_ms: i64,
    /// Holder's clock minus the registry's.
    pub clock_offset_ms: Option<i64>,
}

impl Registry {
    /// A registry without leases, which grants 2 s ahead.
    #[must_use]
    pub fn start() -> Self {
        Self::on(Server::with_leaf_id(&[]))
    }

    /// As [`Registry::start`], on a server that has the extension.
    #[must_use]
    pub fn on(server: Server) -> Self {
        Self::ahead(server, AHEAD_MS)
    }

    /// As [`Registry::on`], but it grants this many milliseconds ahead.
    #[must_use]
    pub fn ahead(server: Server, ahead_ms: i64) -> Self {
        server.admit_members();
        server.lease_worker_ids();
        server.session().run(&format!(
            "INSERT INTO leaf_id.leaf_registry (grant_ahead_ms) VALUES ({ahead_ms})"
        ));
        Self {
            server,
            members: AtomicUsize::new(0),
        }
    }

    /// A new server that leases its worker id from this registry under this name.
    #[must_use]
    pub fn member(&self, node: &str) -> Server {
        self.member_with(node, &[])
    }

    /// As [`Registry::member`], with these settings.
    #[must_use]
    pub fn member_with(&self, node: &str, conf: &[(&str, &str)]) -> Server {
        self.member_by(self.server.dir(), node, conf)
    }

    /// As [`Registry::member_with`], through a proxy in `dir`.
    #[must_use]
    pub fn member_by(&self, dir: &Path, node: &str, conf: &[(&str, &str)]) -> Server {
        let number = 1 + self.members.fetch_add(1, Ordering::Relaxed) % SYSTEMS;
        let server = Server::start_unrelated(number, &[&CONF, conf].concat());
        server.session().run("CREATE EXTENSION leaf_id");
        server.lease_from(dir, node);
        server
    }

    /// As [`Registry::member`], with its own clock.
    #[must_use]
    pub fn member_with_clock(&self, node: &str, ahead_ms: i64, conf: &[(&str, &str)]) -> Server {
        let server = Server::with_clock(ahead_ms, &[&CONF, conf].concat());
        server.lease_from(self.server.dir(), node);
        server
    }

    /// Retires all worker ids except these.
    pub fn leave(&self, worker_ids: &[i32]) {
        self.server.session().run(&format!(
            "SELECT leaf_id.leaf_worker_retire(n) FROM generate_series(0, 1023) n
             WHERE n <> ALL (ARRAY{worker_ids:?}::int[])"
        ));
    }

    /// The registry's record of a worker id, if any.
    ///
    /// # Panics
    /// If the registry cannot be read.
    #[must_use]
    #[track_caller]
    pub fn holder(&self, worker_id: i32) -> Option<Holder> {
        let sql = "SELECT node_name, reserved_until_ms + 1000 > extract(epoch FROM clock_timestamp()) * 1000,
                       (extract(epoch FROM leased_at) * 1000000)::bigint,
                       (extract(epoch FROM renewed_at) * 1000000)::bigint,
                       reserved_until_ms, clock_offset_ms
                   FROM leaf_id.leaf_worker WHERE worker_id = $1";
        let row = self.server.session().query_opt(sql, &[&worker_id]).unwrap();
        row.map(|row| Holder {
            node: row.get(0),
            live: row.get(1),
            leased_us: row.get(2),
            renewed_us: row.get(3),
            reserved_until_ms: row.get(4),
            clock_offset_ms: row.get(5),
        })
    }

    /// Waits until the holder of a worker id has renewed its lease.
    #[track_caller]
    pub fn wait_for_renewal(&self, worker_id: i32) {
        let renewed = || self.holder(worker_id).and_then(|holder| holder.renewed_us);
        let before = renewed();
        wait_until(LIMIT, "a renewal", || renewed() != before);
    }

    /// Waits until a worker id is free.
    #[track_caller]
    pub fn wait_for_end(&self, worker_id: i32) {
        wait_until(LIMIT, "a free worker id", || {
            self.holder(worker_id).is_none_or(|holder| !holder.live)
        });
    }
}

impl Server {
    /// Makes this server, which has the extension, lease its worker id from the registry in
    /// database postgres on the server at `dir`, as this node.
    pub fn lease_from(&self, dir: &Path, node: &str) {
        self.connect_to_registry(dir);
        self.lease_as(node);
    }

    /// As [`Server::lease_from`], if [`CENTRAL`] exists already.
    pub fn lease_as(&self, node: &str) {
        self.lease(&format!("postgres/{CENTRAL}"), node);
    }

    /// Creates the foreign server for a registry.
    pub fn connect_to_registry(&self, dir: &Path) {
        let mut session = self.session();
        session.run("CREATE EXTENSION dblink");
        session.create_foreign_server(CENTRAL, &[dir]);
    }

    /// Makes this server lease its worker id from this registry, as this node. Base backups contain
    /// these settings.
    pub fn lease(&self, registry: &str, node: &str) {
        for (name, value) in lease_conf(registry, node) {
            self.configure(name, &value);
        }
    }

    /// Path of the reservation file.
    #[must_use]
    pub fn reservation_file(&self) -> PathBuf {
        self.data_dir().join(RESERVATION_FILE)
    }

    /// Path of the lease file.
    #[must_use]
    pub fn lease_file(&self) -> PathBuf {
        self.data_dir().join(LEASE_FILE)
    }
}

/// Default of `leaf_id.node_name` on a server.
///
/// # Panics
/// If the host name cannot be read.
#[must_use]
pub fn default_node_name(server: &Server) -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    format!("{}:{}", host.trim(), server.port())
}

/// Settings of a server that leases its worker id.
#[must_use]
pub fn lease_conf(registry: &str, node: &str) -> [(&'static str, String); 3] {
    [
        ("leaf_id.node_name", node.into()),
        ("leaf_id.worker_registry", registry.into()),
        ("leaf_id.worker_id", "auto".into()),
    ]
}

impl Backup {
    /// Turns the copy into one of the whole disk, in another machine: its files claim to be the
    /// originals, with the current contents of the server's files.
    pub fn of_the_disk(self, server: &Server) -> Self {
        for name in [RESERVATION_FILE, LEASE_FILE] {
            let file = self.data_dir().join(name);
            let original = fs::read(server.data_dir().join(name)).unwrap();
            // Write to the existing file of the copy, to keep its inode.
            fs::write(&file, original).unwrap();
            let metadata = fs::metadata(&file).unwrap();
            let created = metadata.created().map_or("null".into(), |time| {
                let since = time.duration_since(UNIX_EPOCH).unwrap();
                since.as_nanos().to_string()
            });
            edit_json(&file, "device", &metadata.dev().to_string());
            edit_json(&file, "inode", &metadata.ino().to_string());
            edit_json(&file, "created_ns", &created);
        }
        edit_json(&self.data_dir().join(LEASE_FILE), "boot_id", OTHER_BOOT);
        self
    }
}

/// Changes the value of a key in a JSON file. The key must be unique, and its value must be no
/// object, list, or text with a comma. The file keeps its inode.
///
/// # Panics
/// If there is no such key.
#[track_caller]
pub fn edit_json(path: &Path, key: &str, value: &str) {
    let mut text = fs::read_to_string(path).unwrap();
    let key = format!("\"{key}\":");
    assert_eq!(text.matches(&key).count(), 1, "{key} in {text}");
    let start = text.find(&key).unwrap() + key.len();
    let end = start + text[start..].find([',', '}']).unwrap();
    text.replace_range(start..end, value);
    fs::write(path, text).unwrap();
}

impl Session {
    /// The next snowflake id.
    ///
    /// # Errors
    /// The server's error.
    pub fn try_snowflake(&mut self) -> Result<i64, Failure> {
        let ids = self.try_column("SELECT leaf_snowflake_next()")?;
        Ok(ids[0])
    }

    /// A column of `leaf_id.server`.
    #[track_caller]
    pub fn snowflake_status<T: FromSqlOwned>(&mut self, column: &str) -> T {
        self.value(&format!("SELECT {column} FROM leaf_id.server"))
    }

    /// Requests snowflake ids until a refusal whose message or detail contains this text. Ids and
    /// other refusals are ignored until then.
    #[track_caller]
    pub fn wait_for_refusal(&mut self, text: &str) -> Failure {
        let mut last = None;
        let start = Instant::now();
        loop {
            assert!(
                start.elapsed() < LIMIT,
                "no refusal that says {text:?}, but {last:?}"
            );
            last = self.try_snowflake().err();
            if let Some(failure) = &last
                && (failure.message.contains(text) || failure.detail.contains(text))
            {
                println!("{failure}");
                return failure.clone();
            }
            thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A refused request for snowflake ids.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// Time of the request.
    pub start: Instant,
    /// The error.
    pub failure: Failure,
}

/// Requests up to a server's first snowflake id.
#[must_use]
#[derive(Clone, Debug)]
pub struct First {
    /// Time from the first answer to any statement.
    pub took: Duration,
    /// Refusals before the first id.
    pub refusals: Vec<Failure>,
}

/// Results of sessions that continuously request snowflake ids.
#[derive(Default)]
pub struct Asking {
    ids: Mutex<Vec<i64>>,
    calls: Mutex<Vec<Call>>,
    refusals: Mutex<Vec<Refusal>>,
}

impl Asking {
    /// The loop of a session: requests ids until `done`, and reconnects after losing its
    /// connection.
    pub fn ask(&self, server: &Server, done: &AtomicBool) {
        let mut connected = None;
        while !done.load(Ordering::Relaxed) {
            let Some(session) = &mut connected else {
                connected = server.try_connect("postgres", "postgres").ok();
                if connected.is_none() {
                    thread::sleep(Duration::from_millis(20));
                }
                continue;
            };
            if let Err(failure) = self.call(session, 20)
                && ["", "57P01", "57P02", "57P03"].contains(&&*failure.state)
            {
                connected = None;
            }
        }
    }

    /// Requests `count` ids in one call.
    ///
    /// # Errors
    /// The server's error.
    pub fn call(&self, session: &mut Session, count: usize) -> Result<(), Failure> {
        let start = Instant::now();
        match session.try_column::<i64>(&format!("SELECT leaf_snowflake_next_batch({count})")) {
            Ok(ids) => {
                assert_eq!(ids.len(), count);
                self.calls.lock().push(Call {
                    start,
                    end: Instant::now(),
                    first: ids[0],
                    last: ids[count - 1],
                });
                self.ids.lock().extend(ids);
                Ok(())
            }
            Err(failure) => {
                self.refusals.lock().push(Refusal {
                    start,
                    failure: failure.clone(),
                });
                // Like an application, not in a tight loop.
                thread::sleep(Duration::from_millis(2));
                Err(failure)
            }
        }
    }

    /// Requests ids in a new session until one is issued.
    #[track_caller]
    pub fn first(&self, server: &Server) -> First {
        let mut session = server.session();
        session.run("SELECT 1");
        self.first_in(&mut session)
    }

    /// Requests ids in this session until one is issued.
    #[track_caller]
    pub fn first_in(&self, session: &mut Session) -> First {
        let start = Instant::now();
        let mut refusals = Vec::new();
        while let Err(failure) = self.call(session, 1) {
            assert!(start.elapsed() < LIMIT, "no id for {LIMIT:?}: {failure}");
            refusals.push(failure);
        }
        let took = start.elapsed();
        First { took, refusals }
    }

    /// All ids so far.
    #[must_use]
    pub fn ids(&self) -> Vec<i64> {
        self.ids.lock().clone()
    }

    /// All successful calls so far.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().clone()
    }

    /// All refused calls so far.
    #[must_use]
    pub fn refusals(&self) -> Vec<Refusal> {
        self.refusals.lock().clone()
    }

    /// Waits until a call made from now on succeeds. Returns its last id.
    #[track_caller]
    pub fn wait_for_ids(&self) -> i64 {
        let since = Instant::now();
        let mut id = 0;
        let failures = self.refusals.lock().len();
        let start = Instant::now();
        while id == 0 {
            let calls = self.calls.lock();
            // A call made earlier may have been recorded later.
            let mut late = calls.iter().rev().take(100);
            if let Some(call) = late.find(|call| call.start >= since) {
                id = call.last;
            }
            drop(calls);
            assert!(
                start.elapsed() < LIMIT,
                "no ids for {LIMIT:?}: {:?}",
                self.refusals.lock().get(failures..).and_then(<[_]>::last)
            );
            thread::sleep(Duration::from_millis(5));
        }
        id
    }

    /// Waits until a call made from now on is refused.
    #[track_caller]
    pub fn wait_for_refusal(&self) -> Failure {
        let since = Instant::now();
        let mut failure = None;
        wait_until(LIMIT, "a refusal", || {
            let refusals = self.refusals.lock();
            let mut late = refusals.iter().rev().take(100);
            failure = late
                .find(|refusal| refusal.start >= since)
                .map(|refusal| refusal.failure.clone());
            failure.is_some()
        });
        failure.unwrap()
    }

    /// Checks that all refusals have one of these SQLSTATEs.
    #[track_caller]
    pub fn is_refused_with(&self, states: &[&str]) {
        for refusal in &*self.refusals.lock() {
            let failure = &refusal.failure;
            assert!(states.contains(&&*failure.state), "{failure}");
        }
    }

    /// Checks that no call was refused.
    #[track_caller]
    pub fn is_never_refused(&self) {
        self.is_refused_with(&[]);
    }
}

/// I3: no id is issued twice by these servers.
///
/// # Panics
/// On a violation.
#[track_caller]
pub fn assert_apart<'a>(servers: impl IntoIterator<Item = &'a Asking>) {
    let mut ids: Vec<i64> = servers.into_iter().flat_map(Asking::ids).collect();
    ids.sort_unstable();
    for pair in ids.windows(2) {
        let id = pair[0];
        assert!(
            id != pair[1],
            "{id} was issued twice (worker id {}, time {})",
            worker_of(id),
            time_of(id)
        );
    }
    println!("{} ids", ids.len());
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    fn asking(ids: &[i64]) -> Asking {
        let asking = Asking::default();
        asking.ids.lock().extend(ids);
        asking
    }

    #[test]
    fn an_id_of_two_servers_is_found() {
        let [one, other] = [&[3, 1], &[2, 4]].map(|ids| asking(ids));
        assert_apart([&one, &other]);
        assert!(catch_unwind(|| assert_apart([&asking(&[1, 3]), &asking(&[2, 3])])).is_err());
    }

    #[test]
    fn the_parts_of_an_id_are_read() {
        let id = (1000 << 22) | (1023 << 12) | 4095;
        assert_eq!((time_of(id), worker_of(id)), (EPOCH_MS + 1000, 1023));
    }
}
