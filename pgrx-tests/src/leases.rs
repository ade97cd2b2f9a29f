//! A worker registry, servers that lease their worker ids from it, and sessions that watch
//! what these issue.

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
/// `leaf_id.epoch`, unless it is set.
const EPOCH_MS: i64 = 1_288_834_974_657;
/// So many system identifiers are enough: a node's name tells it from others of its system.
const SYSTEMS: usize = 3;

/// The file with the lease.
const LEASE_FILE: &str = "leaf_id_lease.json";
/// The file with the reservation.
const RESERVATION_FILE: &str = "leaf_id_reservation.json";
/// What a lease says of a machine that was started when this one was not, or is another.
pub const OTHER_BOOT: &str = "\"00000000-0000-4000-8000-000000000000\"";

/// What members are started with, unless their test says otherwise. What a crash leaves
/// reserved is soon over.
const CONF: [(&str, &str); 2] = [
    ("leaf_id.worker_lease", "2s"),
    ("leaf_id.timestamp_reservation", "500ms"),
];

/// Unix milliseconds by the machine's clock.
///
/// # Panics
/// Before 1970.
#[must_use]
pub fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_millis().try_into().unwrap()
}

/// The time in a snowflake id, in Unix milliseconds.
#[must_use]
pub const fn time_of(id: i64) -> i64 {
    (id >> 22) + EPOCH_MS
}

/// The worker id in a snowflake id.
#[must_use]
pub const fn worker_of(id: i64) -> i32 {
    (id >> 12 & 1023) as i32
}

/// A server with a worker registry in its database postgres.
pub struct Registry {
    /// The server.
    pub server: Server,
    members: AtomicUsize,
}

/// What a registry has on a worker id.
#[derive(Clone, Debug)]
pub struct Holder {
    /// The name of the node.
    pub node: Option<String>,
    /// The lease has not ended.
    pub live: bool,
    /// When the node got it, in microseconds.
    pub leased_us: Option<i64>,
    /// When it was last renewed, in microseconds.
    pub renewed_us: Option<i64>,
    /// The end of the lease, in Unix milliseconds.
    pub lease_until_ms: Option<i64>,
    /// No id of any holder so far carries a later time.
    pub reserved_until_ms: i64,
    /// The holder's clock minus the registry's.
    pub clock_offset_ms: Option<i64>,
}

impl Registry {
    /// One with default settings, and no worker id leased.
    #[must_use]
    pub fn start() -> Self {
        Self::on(Server::with_leaf_id(&[]))
    }

    /// One on a server that has the extension.
    #[must_use]
    pub fn on(server: Server) -> Self {
        server.admit_members();
        server.lease_worker_ids();
        Self {
            server,
            members: AtomicUsize::new(0),
        }
    }

    /// A server of its own that leases its worker id from here, under this name, for 2 s.
    #[must_use]
    pub fn member(&self, node: &str) -> Server {
        self.member_with(node, &[])
    }

    /// As [`Registry::member`], with these settings.
    #[must_use]
    pub fn member_with(&self, node: &str, conf: &[(&str, &str)]) -> Server {
        self.member_by(self.server.dir(), node, conf)
    }

    /// As [`Registry::member_with`], by way of a proxy.
    #[must_use]
    pub fn member_by(&self, dir: &Path, node: &str, conf: &[(&str, &str)]) -> Server {
        let number = 1 + self.members.fetch_add(1, Ordering::Relaxed) % SYSTEMS;
        let server = Server::start_unrelated(number, &[&CONF, conf].concat());
        server.session().run("CREATE EXTENSION leaf_id");
        server.lease_from(dir, node);
        server
    }

    /// As [`Registry::member`], under a clock of its own.
    #[must_use]
    pub fn member_with_clock(&self, node: &str, ahead_ms: i64, conf: &[(&str, &str)]) -> Server {
        let server = Server::with_clock(ahead_ms, &[&CONF, conf].concat());
        server.lease_from(self.server.dir(), node);
        server
    }

    /// Leaves these worker ids to be leased, and no others.
    pub fn leave(&self, worker_ids: &[i32]) {
        self.server.session().run(&format!(
            "SELECT leaf_worker_retire(n) FROM generate_series(0, 1023) n
             WHERE n <> ALL (ARRAY{worker_ids:?}::int[])"
        ));
    }

    /// What is known of a worker id, if anything is.
    ///
    /// # Panics
    /// When the registry cannot be read.
    #[must_use]
    #[track_caller]
    pub fn holder(&self, worker_id: i32) -> Option<Holder> {
        let sql = "SELECT node_name, coalesce(lease_until > clock_timestamp(), false),
                       (extract(epoch FROM leased_at) * 1000000)::bigint,
                       (extract(epoch FROM renewed_at) * 1000000)::bigint,
                       (extract(epoch FROM lease_until) * 1000)::bigint,
                       reserved_until_ms, clock_offset_ms
                   FROM leaf_id.leaf_worker WHERE worker_id = $1";
        let row = self.server.session().query_opt(sql, &[&worker_id]).unwrap();
        row.map(|row| Holder {
            node: row.get(0),
            live: row.get(1),
            leased_us: row.get(2),
            renewed_us: row.get(3),
            lease_until_ms: row.get(4),
            reserved_until_ms: row.get(5),
            clock_offset_ms: row.get(6),
        })
    }

    /// Waits until the holder of a worker id has renewed it once more.
    #[track_caller]
    pub fn wait_for_renewal(&self, worker_id: i32) {
        let renewed = || self.holder(worker_id).and_then(|holder| holder.renewed_us);
        let before = renewed();
        wait_until(LIMIT, "a renewal", || renewed() != before);
    }

    /// Waits until the lease of a worker id has ended.
    #[track_caller]
    pub fn wait_for_end(&self, worker_id: i32) {
        wait_until(LIMIT, "the end of the lease", || {
            self.holder(worker_id).is_none_or(|holder| !holder.live)
        });
    }
}

impl Server {
    /// Has this server, which has the extension, lease its worker id from the registry in
    /// the database postgres there, as this node.
    pub fn lease_from(&self, dir: &Path, node: &str) {
        self.connect_to_registry(dir);
        self.lease_as(node);
    }

    /// As [`Server::lease_from`], where [`CENTRAL`] is there already.
    pub fn lease_as(&self, node: &str) {
        self.lease(&format!("postgres/{CENTRAL}"), node);
    }

    /// Creates the foreign server of a registry.
    pub fn connect_to_registry(&self, dir: &Path) {
        let mut session = self.session();
        session.run("CREATE EXTENSION dblink");
        session.create_foreign_server(CENTRAL, &[dir]);
    }

    /// Has this server lease its worker id from this registry, as this node. A base backup
    /// has these settings too.
    pub fn lease(&self, registry: &str, node: &str) {
        for (name, value) in lease_conf(registry, node) {
            self.configure(name, &value);
        }
    }

    /// The file with the reservation.
    #[must_use]
    pub fn reservation_file(&self) -> PathBuf {
        self.data_dir().join(RESERVATION_FILE)
    }

    /// The file with the lease.
    #[must_use]
    pub fn lease_file(&self) -> PathBuf {
        self.data_dir().join(LEASE_FILE)
    }
}

/// What `leaf_id.node_name` is by default on a server.
///
/// # Panics
/// Where the host name cannot be read.
#[must_use]
pub fn default_node_name(server: &Server) -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    format!("{}:{}", host.trim(), server.port())
}

/// The settings by which a server leases its worker id.
#[must_use]
pub fn lease_conf(registry: &str, node: &str) -> [(&'static str, String); 3] {
    [
        ("leaf_id.node_name", node.into()),
        ("leaf_id.worker_registry", registry.into()),
        ("leaf_id.worker_id", "auto".into()),
    ]
}

impl Backup {
    /// Makes the copy one of the whole disk, in another machine: its files say that they are
    /// the originals. They say what the server's files say now.
    pub fn of_the_disk(self, server: &Server) -> Self {
        for name in [RESERVATION_FILE, LEASE_FILE] {
            let file = self.data_dir().join(name);
            let original = fs::read(server.data_dir().join(name)).unwrap();
            // Into the file of the copy, which stays the same one.
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

/// Writes something else under a key of a JSON file that comes once and has no object, list
/// or text with a comma. The file itself stays the same.
///
/// # Panics
/// When there is no such key.
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
    /// What the server answered.
    pub fn try_snowflake(&mut self) -> Result<i64, Failure> {
        let ids = self.try_column("SELECT leaf_snowflake_next()")?;
        Ok(ids[0])
    }

    /// A column of `leaf_snowflake_status`.
    #[track_caller]
    pub fn snowflake_status<T: FromSqlOwned>(&mut self, column: &str) -> T {
        self.value(&format!("SELECT {column} FROM leaf_snowflake_status"))
    }

    /// Asks for snowflake ids until it is refused with a message, or a detail, that says
    /// this. It may get ids until then, or be refused for something else.
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

/// A call for snowflake ids that was refused.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// When it was made.
    pub start: Instant,
    /// Why.
    pub failure: Failure,
}

/// How a server came to its first snowflake id.
#[must_use]
#[derive(Clone, Debug)]
pub struct First {
    /// How long it took from when the server answered other questions.
    pub took: Duration,
    /// What was refused until then.
    pub refusals: Vec<Failure>,
}

/// What the sessions of one server got that asked for snowflake ids all the time.
#[derive(Default)]
pub struct Asking {
    ids: Mutex<Vec<i64>>,
    calls: Mutex<Vec<Call>>,
    refusals: Mutex<Vec<Refusal>>,
}

impl Asking {
    /// One session's work: calls until it is told to stop, or has stopped being needed. It
    /// connects again when it is cut off.
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

    /// One call for so many ids.
    ///
    /// # Errors
    /// What the server answered.
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
                // As an application would: not in a tight loop.
                thread::sleep(Duration::from_millis(2));
                Err(failure)
            }
        }
    }

    /// Asks in a new session until there is an id.
    #[track_caller]
    pub fn first(&self, server: &Server) -> First {
        let mut session = server.session();
        session.run("SELECT 1");
        self.first_in(&mut session)
    }

    /// Asks in this session until there is an id.
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

    /// All calls so far that got ids.
    #[must_use]
    pub fn calls(&self) -> Vec<Call> {
        self.calls.lock().clone()
    }

    /// All calls so far that got none.
    #[must_use]
    pub fn refusals(&self) -> Vec<Refusal> {
        self.refusals.lock().clone()
    }

    /// Waits until a call that is made from now on gets ids. The last of them.
    #[track_caller]
    pub fn wait_for_ids(&self) -> i64 {
        let since = Instant::now();
        let mut id = 0;
        let failures = self.refusals.lock().len();
        let start = Instant::now();
        while id == 0 {
            let calls = self.calls.lock();
            // Whoever was asked last may have answered first.
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

    /// Waits until a call that is made from now on is refused.
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

    /// Checks that all calls that were refused were so with one of these SQLSTATEs.
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

/// I3, over several servers: no id of theirs comes twice.
///
/// # Panics
/// When one does.
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
