//! A PostgreSQL server for a single test.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use postgres::{Config, NoTls};

use crate::checks::{becomes, wait_until};
use crate::clock::Clock;
use crate::disk::Disk;
use crate::installation;
use crate::memory::Memory;
use crate::processes::{
    Frozen, Paused, all_processes, children_of, kill_family, signal, state_and_parent, stop_process,
};
use crate::programs::{self, MEMORY_ERROR, as_server_user, copy_dir, new_dir, output, template};
use crate::session::{Failure, Session};

/// Time limit of a test. After that its server is killed, so that its sessions fail.
const TEST_LIMIT: Duration = Duration::from_secs(600);
/// Time limit for a server to start or to stop.
const SERVER_LIMIT: Duration = Duration::from_secs(60);
/// Time limit of a statement. Set in the connection string, so that neither ALTER DATABASE SET nor
/// DISCARD ALL resets it.
const STATEMENT_LIMIT: &str = "-c statement_timeout=120s";

/// Default port, which is only part of the socket's name.
pub(crate) const PORT: u16 = 5432;
/// Settings of all servers, unless overridden by the test.
const CONF: [(&str, &str); 6] = [
    ("listen_addresses", ""),
    ("shared_preload_libraries", "leaf_id"),
    ("shared_buffers", "32MB"),
    ("log_line_prefix", "%m [%p] %b %d %e "),
    ("lc_messages", "C"),
    // Syncing a thousand files one by one takes seconds in crash recovery.
    ("recovery_init_sync_method", "syncfs"),
];

/// Log messages that fail a test: crashes, Rust panics, internal errors, memory errors. ([`KILLED`] is allowed as
/// often as the test has killed a process.)
const DISASTERS: [&str; 7] = [
    "PANIC:",
    "TRAP:",
    "terminated by signal",
    "panicked at",
    "stuck spinlock",
    INTERNAL_ERROR,
    MEMORY_ERROR,
];

/// SQLSTATE of an internal error, or of a Rust panic.
const INTERNAL_ERROR: &str = " XX000 ";
/// PostgreSQL's own internal error for a call planned before its function was dropped: functions
/// are not locked.
pub const FUNCTION_GONE: &str = "cache lookup failed for function";
/// The same for a text search parser, which servers call by its oid.
const PARSER_GONE: &str = "cache lookup failed for text search parser";
/// Log message for a child killed with SIGKILL.
const KILLED: &str = "terminated by signal 9";

/// Shutdown mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// SIGINT: terminates sessions and writes a checkpoint.
    Fast,
    /// SIGQUIT: no checkpoint, so the next start performs crash recovery.
    Immediate,
}

/// A server in its own directory, which also contains its socket. Dropping it stops the server and
/// removes the directory. If the test panics, the directory remains, and the end of the log is
/// printed.
pub struct Server {
    dir: PathBuf,
    port: u16,
    postmaster: Arc<Mutex<Option<Child>>>,
    /// Number of processes killed by the test.
    kills: AtomicUsize,
    /// The test has made the server exit by itself.
    ended_by_itself: AtomicBool,
    random_sql: AtomicBool,
    /// The watchdog waits at the other end, until this is dropped with the server.
    watchdog: mpsc::Sender<Duration>,
}

impl Server {
    /// A running server with these settings, leaf_id preloaded (unless overridden), and no
    /// extension created.
    #[must_use]
    pub fn start(conf: &[(&str, &str)]) -> Self {
        Self::start_unrelated(0, conf)
    }

    /// As [`Server::start`], with the system identifier of template `number`. Other servers have
    /// that of template 0.
    #[must_use]
    pub fn start_unrelated(number: usize, conf: &[(&str, &str)]) -> Self {
        Self::start_in_new(new_dir(), number, conf)
    }

    /// As [`Server::start`], with the extension in database postgres.
    #[must_use]
    pub fn with_leaf_id(conf: &[(&str, &str)]) -> Self {
        let server = Self::start(conf);
        server.session().run("CREATE EXTENSION leaf_id");
        server
    }

    /// As [`Server::with_leaf_id`], with its own clock, ahead of the machine's by this many
    /// milliseconds.
    #[must_use]
    pub fn with_clock(ahead_ms: i64, conf: &[(&str, &str)]) -> Self {
        let server = Self::start_unrelated_with_clock(0, ahead_ms, conf);
        server.session().run("CREATE EXTENSION leaf_id");
        server
    }

    /// As [`Server::start_unrelated`], with such a clock.
    #[must_use]
    pub fn start_unrelated_with_clock(number: usize, ahead_ms: i64, conf: &[(&str, &str)]) -> Self {
        let dir = new_dir();
        Clock::make(&dir, ahead_ms);
        Self::start_in_new(dir, number, conf)
    }

    /// As [`Server::with_leaf_id`], with allocations that can fail.
    #[must_use]
    pub fn with_memory(conf: &[(&str, &str)]) -> Self {
        let dir = new_dir();
        Memory::make(&dir);
        Self::with_leaf_id_in(dir, conf)
    }

    /// As [`Server::with_leaf_id`], with a disk that can hang.
    #[must_use]
    pub fn with_disk(conf: &[(&str, &str)]) -> Self {
        let dir = new_dir();
        Disk::make(&dir);
        Self::with_leaf_id_in(dir, conf)
    }

    fn with_leaf_id_in(dir: PathBuf, conf: &[(&str, &str)]) -> Self {
        let server = Self::start_in_new(dir, 0, conf);
        server.session().run("CREATE EXTENSION leaf_id");
        server
    }

    /// As [`Server::start`], with additional scripts of the extension: names such as
    /// `leaf_id--1.0--1.1.sql`, and texts.
    #[must_use]
    pub fn with_scripts(scripts: &[(String, String)], conf: &[(&str, &str)]) -> Self {
        let dir = new_dir();
        installation::make(&dir, scripts);
        Self::start_in_new(dir, 0, conf)
    }

    /// As [`Server::start`], in a directory that may contain a clock or an installation, but no
    /// cluster yet.
    pub(crate) fn start_in_new(dir: PathBuf, number: usize, conf: &[(&str, &str)]) -> Self {
        copy_dir(&template(number), &dir.join("data"));
        Self::start_in(dir, conf)
    }

    /// Starts a server on the existing cluster in `dir/data`.
    pub(crate) fn start_in(dir: PathBuf, conf: &[(&str, &str)]) -> Self {
        let socket = dir.to_str().unwrap();
        let file = dir.join("data/postgresql.conf");
        let mut text = fs::read_to_string(&file).unwrap();
        // The last occurrence of a setting applies.
        for (name, value) in [("unix_socket_directories", socket)]
            .iter()
            .chain(&CONF)
            .chain(conf)
        {
            text += &format!("{name} = '{value}'\n");
        }
        let mut ports = text.lines().filter_map(|line| line.strip_prefix("port = "));
        let port = ports
            .next_back()
            .map(|port| port.trim_matches('\'').parse());
        fs::write(&file, text).unwrap();

        let (watchdog, limits) = mpsc::channel::<Duration>();
        let server = Self {
            dir,
            port: port.map_or(PORT, Result::unwrap),
            postmaster: Arc::default(),
            kills: AtomicUsize::new(0),
            ended_by_itself: AtomicBool::new(false),
            random_sql: AtomicBool::new(false),
            watchdog,
        };
        let postmaster = Arc::clone(&server.postmaster);
        thread::spawn(move || {
            let mut limit = TEST_LIMIT;
            let over = loop {
                match limits.recv_timeout(limit) {
                    Ok(more) => limit = more,
                    Err(reason) => break reason,
                }
            };
            if over == mpsc::RecvTimeoutError::Timeout {
                eprintln!("the test takes longer than {limit:?}: its server is killed");
                if let Some(child) = postmaster.lock().as_ref() {
                    kill_family(child.id());
                }
            }
        });
        server.launch();
        server
    }

    /// Sets the time limit of the test, from now on.
    pub fn allow(&self, limit: Duration) {
        self.watchdog.send(limit).unwrap();
    }

    /// Starts the server after [`Server::stop`] or [`Server::kill_9`].
    pub fn launch(&self) {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_file())
            .unwrap();
        let child = programs::postgres(&self.dir)
            .arg("-D")
            .arg(self.data_dir())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        assert!(
            self.postmaster.lock().replace(child).is_none(),
            "it is already running"
        );
        wait_until(SERVER_LIMIT, "the server to start", || {
            let ended = self.postmaster.lock().as_mut().unwrap().try_wait().unwrap();
            if let Some(status) = ended {
                panic!("the server ended at its start: {status}");
            }
            self.try_connect("postgres", "postgres").is_ok()
        });
    }

    /// Stops the server, and checks that it exits cleanly.
    pub fn stop(&self, how: Stop) {
        let mut child = self.postmaster.lock().take().expect("a running server");
        signal(
            if how == Stop::Fast { "INT" } else { "QUIT" },
            &[child.id()],
        );
        let asked = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if asked.elapsed() > SERVER_LIMIT {
                kill_family(child.id());
                child.wait().unwrap();
                panic!("the server did not stop within {SERVER_LIMIT:?}");
            }
            thread::sleep(Duration::from_millis(5));
        };
        assert!(
            status.success() || how == Stop::Immediate,
            "the server ended with {status}"
        );
    }

    /// Restarts the server.
    pub fn restart(&self) {
        self.stop(Stop::Fast);
        self.launch();
    }

    /// Waits until the server has exited by itself, as it does if recovery fails.
    pub fn wait_for_end(&self) {
        self.ended_by_itself.store(true, Ordering::Relaxed);
        let mut child = self.postmaster.lock().take().expect("a running server");
        let ended = becomes(SERVER_LIMIT, || child.try_wait().unwrap().is_some());
        if ended {
            return;
        }
        kill_family(child.id());
        child.wait().unwrap();
        assert!(
            self.missed_a_failed_recovery(),
            "the server did not end by itself within {SERVER_LIMIT:?}"
        );
        println!("the postmaster has missed that recovery failed, and was killed");
        self.remove_locks();
    }

    /// Since PostgreSQL 18, a postmaster that sees the start and the failure of crash recovery at
    /// once takes the failure for the crash it is recovering from, and waits forever.
    fn missed_a_failed_recovery(&self) -> bool {
        let version = fs::read_to_string(self.data_dir().join("PG_VERSION")).unwrap();
        let failed = |line: &str| line.contains(" startup ") && line.contains(" FATAL:");
        version.trim().parse::<u32>().unwrap() >= 18
            && self.log().lines().last().is_some_and(failed)
    }

    /// Kills the postmaster and all its children with SIGKILL, as a machine crash would.
    pub fn kill_9(&self) {
        let mut child = self.postmaster.lock().take().expect("a running server");
        kill_family(child.id());
        child.wait().unwrap();
        self.remove_locks();
    }

    /// Kills only the postmaster, and waits until its children have noticed and exited.
    pub fn kill_9_postmaster(&self) {
        let mut child = self.postmaster.lock().take().expect("a running server");
        signal("KILL", &[child.id()]);
        child.wait().unwrap();
        wait_until(SERVER_LIMIT, "its children to end", || {
            self.processes().is_empty()
        });
        self.remove_locks();
    }

    /// Removes the lock files: both contain a process id, which another test's server may have by
    /// now.
    fn remove_locks(&self) {
        fs::remove_file(self.data_dir().join("postmaster.pid")).unwrap();
        let socket = format!(".s.PGSQL.{}.lock", self.port);
        fs::remove_file(self.dir.join(socket)).unwrap();
    }

    /// Kills the server and starts it again.
    pub fn crash(&self) {
        self.kill_9();
        self.launch();
    }

    /// Kills one process, which makes the server restart its other processes and shared memory.
    /// False if the process had already exited.
    pub fn kill_9_backend(&self, pid: i32) -> bool {
        let pid = pid.try_into().unwrap();
        // A zombie accepts signals until its parent has reaped it.
        let runs = !matches!(state_and_parent(pid), None | Some(('Z', _)));
        let killed = runs && signal("KILL", &[pid]);
        self.kills.fetch_add(usize::from(killed), Ordering::Relaxed);
        killed
    }

    /// As [`Server::kill_9_backend`], and waits until the server accepts connections again.
    pub fn crash_by(&self, pid: i32) -> bool {
        let crashes = || self.log().matches(" reinitializing").count();
        let before = crashes();
        let killed = self.kill_9_backend(pid);
        if killed {
            wait_until(SERVER_LIMIT, "the server to be back", || {
                // It still accepts connections until the postmaster has noticed.
                crashes() > before && self.try_connect("postgres", "postgres").is_ok()
            });
        }
        killed
    }

    /// Sends SIGTERM to a process of the server, including one that no view shows.
    pub fn terminate(&self, pid: i32) {
        signal("TERM", &[pid.try_into().unwrap()]);
    }

    /// Stops a process of the server (SIGSTOP) until the result is dropped.
    #[must_use]
    pub fn pause(&self, pid: i32) -> Paused {
        let pid = pid.try_into().unwrap();
        stop_process(pid);
        Paused(pid)
    }

    /// Stops all processes of the server (SIGSTOP) until the result is dropped. Connections remain
    /// open without response, as on a hung machine.
    #[must_use]
    pub fn freeze(&self) -> Frozen {
        let postmaster = self.postmaster.lock();
        let postmaster = postmaster.as_ref().expect("a running server").id();
        // A stopped postmaster cannot fork further children.
        let mut stopped = Vec::new();
        stop_process(postmaster);
        stopped.push(postmaster);
        for child in children_of(postmaster) {
            stop_process(child);
            stopped.push(child);
        }
        Frozen(stopped)
    }

    /// Requires a role's password from now on.
    pub fn require_password(&self, role: &str) {
        let file = self.data_dir().join("pg_hba.conf");
        let others = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("local all {role} scram-sha-256\n{others}")).unwrap();
        self.reload();
        wait_until(SERVER_LIMIT, "the reload", || {
            self.try_connect(role, "postgres").is_err()
        });
    }

    /// Changes a setting with ALTER SYSTEM, and reloads.
    pub fn set(&self, name: &str, value: &str) {
        let mut session = self.session();
        session.run(&format!("ALTER SYSTEM SET {name} = '{value}'"));
        session.run("SELECT pg_reload_conf()");
    }

    /// Reloads the configuration.
    pub fn reload(&self) {
        self.session().run("SELECT pg_reload_conf()");
    }

    /// A superuser session in database postgres.
    #[must_use]
    #[track_caller]
    pub fn session(&self) -> Session {
        self.connect_as("postgres", "postgres")
    }

    /// A superuser session in `database`.
    #[must_use]
    #[track_caller]
    pub fn session_in(&self, database: &str) -> Session {
        self.connect_as("postgres", database)
    }

    /// A session of a role in a database.
    #[must_use]
    #[track_caller]
    pub fn connect_as(&self, role: &str, database: &str) -> Session {
        self.try_connect(role, database)
            .unwrap_or_else(|failure| panic!("{role} could not connect to {database}: {failure}"))
    }

    /// A session of a role in a database.
    ///
    /// # Errors
    /// The connection failed.
    pub fn try_connect(&self, role: &str, database: &str) -> Result<Session, Failure> {
        connect(&self.dir, self.port, role, database)
    }

    /// A PostgreSQL program with connection settings for this server, run by the server's user in
    /// [`Server::dir`]; a server itself with the disk, clock and memory that this one has.
    #[must_use]
    pub fn program(&self, name: &str) -> Command {
        let mut command = match name {
            "postgres" => programs::postgres(&self.dir),
            _ => as_server_user(name, &self.dir),
        };
        command
            .env("PGHOST", &self.dir)
            .env("PGPORT", self.port.to_string())
            .env("PGUSER", "postgres");
        command
    }

    /// Runs such a program, which must succeed. Returns its standard output.
    #[track_caller]
    pub fn run(&self, name: &str, args: &[&str]) -> String {
        output(self.program(name).args(args))
    }

    /// Permits PostgreSQL's own internal errors, which random statements cause.
    pub fn expect_internal_errors(&self) {
        self.random_sql.store(true, Ordering::Relaxed);
    }

    /// The clock that this server was started with.
    ///
    /// # Panics
    /// If that is the machine's.
    #[must_use]
    pub fn clock(&self) -> Clock {
        Clock::of(self.dir()).expect("a server with a clock of its own")
    }

    /// If its allocations can fail.
    #[must_use]
    pub fn memory(&self) -> Memory {
        Memory::of(self.dir()).expect("a server whose allocations can fail")
    }

    /// If it can hang.
    #[must_use]
    pub fn disk(&self) -> Disk {
        Disk::of(self.dir()).expect("a server whose disk can hang")
    }

    /// Directory of the server, writable by the server's user.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The port, which is only part of the names of the socket and of the node.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Connection string of a superuser.
    #[must_use]
    pub fn conninfo(&self) -> String {
        let (dir, port) = (self.dir.display(), self.port);
        format!("host={dir} port={port} user=postgres")
    }

    /// The data directory.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Changes the owner of a file or directory tree to the server's user.
    pub fn give(&self, path: &Path) {
        programs::give(path);
    }

    /// Processes working in the data directory: those of this server, and leftovers of others.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        let here = |pid: &u32| {
            fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|dir| dir == self.data_dir())
        };
        all_processes().filter(here).collect()
    }

    /// Pid of a background worker of this type, also of one that is connected to no database, which
    /// no view shows.
    #[must_use]
    pub fn worker(&self, name: &str) -> Option<i32> {
        let is_it = |pid: &u32| {
            fs::read_to_string(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|title| title.contains(name))
        };
        let pid = self.processes().into_iter().find(is_it)?;
        Some(pid.try_into().unwrap())
    }

    /// The server log.
    #[must_use]
    pub fn log(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.log_file()).unwrap_or_default()).into_owned()
    }

    fn log_file(&self) -> PathBuf {
        self.dir.join("log")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let failed = thread::panicking();
        if failed {
            let postmaster = self.postmaster.lock().take();
            if let Some(mut child) = postmaster {
                kill_family(child.id());
                child.wait().unwrap();
            }
            let log = self.log();
            // Without errors that only mean that the server is still starting.
            let lines: Vec<_> = log
                .lines()
                .filter(|line| !line.contains(" 57P03 "))
                .collect();
            let tail = lines
                .get(lines.len().saturating_sub(60)..)
                .unwrap_or_default();
            eprintln!(
                "{}\n(all of it is in {})",
                tail.join("\n"),
                self.dir.display()
            );
            return;
        }
        if self.postmaster.lock().is_some() {
            self.stop(Stop::Fast);
        }
        let log = self.log();
        // If several are killed at once, fewer are logged.
        let mut kills = self.kills.load(Ordering::Relaxed);
        // The STATEMENT line follows its error, which is checked.
        for line in log.lines().filter(|line| !line.contains(" STATEMENT:")) {
            if kills > 0 && line.contains(KILLED) {
                kills -= 1;
                continue;
            }
            if self.ended_by_itself.load(Ordering::Relaxed)
                && ["PANIC:", "terminated by signal 6"]
                    .iter()
                    .any(|text| line.contains(text))
            {
                continue;
            }
            let excused = line.contains(FUNCTION_GONE)
                || line.contains(PARSER_GONE)
                || self.random_sql.load(Ordering::Relaxed) && line.contains(INTERNAL_ERROR);
            let disaster = DISASTERS.iter().any(|text| line.contains(text)) && !excused;
            assert!(!disaster, "in the log of {}: {line}", self.dir.display());
        }
        // Do not wait: after syncs, removal takes seconds on some disks.
        Command::new("sh")
            .args(["-c", "rm -rf \"$0\" &"])
            .arg(&self.dir)
            .status()
            .unwrap();
    }
}

/// Connects through the socket in a directory.
pub(crate) fn connect(
    dir: &Path,
    port: u16,
    role: &str,
    database: &str,
) -> Result<Session, Failure> {
    let client = Config::new()
        .host_path(dir)
        .port(port)
        .user(role)
        .dbname(database)
        .options(STATEMENT_LIMIT)
        .connect_timeout(Duration::from_secs(30))
        .connect(NoTls)
        .map_err(|error| Failure::from(&error))?;
    Ok(Session::new(client))
}
