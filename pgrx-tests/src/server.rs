//! A PostgreSQL server that belongs to one test.

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
use crate::installation;
use crate::processes::{
    Frozen, Paused, all_processes, children_of, kill_family, signal, state_and_parent, stop_process,
};
use crate::programs::{self, as_server_user, copy_dir, new_dir, output, template};
use crate::session::{Failure, Session};

/// A test that runs longer than this hangs: its server is killed, so that its sessions fail.
const TEST_LIMIT: Duration = Duration::from_secs(600);
/// How long a server may take to start or to stop.
const SERVER_LIMIT: Duration = Duration::from_secs(60);
/// A statement that runs longer than this has hung. Given with the connection, so that
/// neither ALTER DATABASE SET nor DISCARD ALL takes it away.
const STATEMENT_LIMIT: &str = "-c statement_timeout=120s";

/// The port of a server whose settings say nothing else: the name of its socket.
pub(crate) const PORT: u16 = 5432;
/// What every server has, unless its test says otherwise.
const CONF: [(&str, &str); 6] = [
    ("listen_addresses", ""),
    ("shared_preload_libraries", "leaf_id"),
    ("shared_buffers", "32MB"),
    ("log_line_prefix", "%m [%p] %b %d %e "),
    ("lc_messages", "C"),
    // A thousand files, one by one, take seconds at the start after a crash.
    ("recovery_init_sync_method", "syncfs"),
];

/// What no server may ever write to its log: crashes, Rust panics, internal errors. (Of
/// [`KILLED`] there may be as many as were announced.)
const DISASTERS: [&str; 6] = [
    "PANIC:",
    "TRAP:",
    "terminated by signal",
    "panicked at",
    "stuck spinlock",
    INTERNAL_ERROR,
];

/// An error that PostgreSQL does not expect, or a panic in Rust.
const INTERNAL_ERROR: &str = " XX000 ";
/// PostgreSQL's own answer (XX000) to a call that was planned before its function was
/// dropped: it does not lock functions.
pub const FUNCTION_GONE: &str = "cache lookup failed for function";
/// What a server says of a child that was killed with SIGKILL.
const KILLED: &str = "terminated by signal 9";

/// How a server is asked to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// SIGINT: sessions are ended, and a checkpoint is written.
    Fast,
    /// SIGQUIT: no checkpoint, recovery at the next start.
    Immediate,
}

/// A server in a directory of its own, reached by a socket in that directory. It is
/// stopped and removed when the value goes, unless the test panics: then the directory
/// stays, and the end of the log is printed.
pub struct Server {
    dir: PathBuf,
    port: u16,
    postmaster: Arc<Mutex<Option<Child>>>,
    /// How often a process of it was killed with our knowledge.
    kills: AtomicUsize,
    /// PostgreSQL itself gave up, where a test made it.
    ended_by_itself: AtomicBool,
    random_sql: AtomicBool,
    /// Dropped with the server; until then the watchdog waits at the other end.
    watchdog: mpsc::Sender<Duration>,
}

impl Server {
    /// A running server with these settings, leaf_id preloaded (unless they say
    /// otherwise), and no extension created.
    #[must_use]
    pub fn start(conf: &[(&str, &str)]) -> Self {
        Self::start_unrelated(0, conf)
    }

    /// As [`Server::start`], with the system identifier of this number. Servers that were
    /// started without one have that of 0.
    #[must_use]
    pub fn start_unrelated(number: usize, conf: &[(&str, &str)]) -> Self {
        Self::start_in_new(new_dir(), number, conf)
    }

    /// As [`Server::start`], with the extension in the database postgres.
    #[must_use]
    pub fn with_leaf_id(conf: &[(&str, &str)]) -> Self {
        let server = Self::start(conf);
        server.session().run("CREATE EXTENSION leaf_id");
        server
    }

    /// As [`Server::with_leaf_id`], under a clock of its own, which is so many milliseconds
    /// ahead of the machine's.
    #[must_use]
    pub fn with_clock(ahead_ms: i64, conf: &[(&str, &str)]) -> Self {
        let server = Self::start_unrelated_with_clock(0, ahead_ms, conf);
        server.session().run("CREATE EXTENSION leaf_id");
        server
    }

    /// As [`Server::start_unrelated`], under such a clock.
    #[must_use]
    pub fn start_unrelated_with_clock(number: usize, ahead_ms: i64, conf: &[(&str, &str)]) -> Self {
        let dir = new_dir();
        Clock::make(&dir, ahead_ms);
        Self::start_in_new(dir, number, conf)
    }

    /// As [`Server::start`], with more scripts of the extension than the one that is built: by
    /// their names, as in `leaf_id--1.0--1.1.sql`, and texts.
    #[must_use]
    pub fn with_scripts(scripts: &[(String, String)], conf: &[(&str, &str)]) -> Self {
        let dir = new_dir();
        installation::make(&dir, scripts);
        Self::start_in_new(dir, 0, conf)
    }

    /// As [`Server::start`], in a directory that may hold a clock or an installation, but no
    /// cluster yet.
    pub(crate) fn start_in_new(dir: PathBuf, number: usize, conf: &[(&str, &str)]) -> Self {
        copy_dir(&template(number), &dir.join("data"));
        Self::start_in(dir, conf)
    }

    /// Starts a server on the cluster in `dir/data`.
    pub(crate) fn start_in(dir: PathBuf, conf: &[(&str, &str)]) -> Self {
        let socket = dir.to_str().unwrap();
        let file = dir.join("data/postgresql.conf");
        let mut text = fs::read_to_string(&file).unwrap();
        // Where a setting comes twice, the last one counts.
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

    /// From now on the test may take this long, before it counts as hanging.
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

    /// Stops the server and checks that it does so in good order.
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

    /// Stops the server and starts it again.
    pub fn restart(&self) {
        self.stop(Stop::Fast);
        self.launch();
    }

    /// Waits until the server has ended by itself, as it does when not even recovery helps.
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

    /// From 18 on, a postmaster that learns in the same instant that recovery has begun and that
    /// it has failed takes the failure for the one that it recovers from, and waits for ever.
    fn missed_a_failed_recovery(&self) -> bool {
        let version = fs::read_to_string(self.data_dir().join("PG_VERSION")).unwrap();
        let failed = |line: &str| line.contains(" startup ") && line.contains(" FATAL:");
        version.trim().parse::<u32>().unwrap() >= 18
            && self.log().lines().last().is_some_and(failed)
    }

    /// Kills the postmaster and all its children with SIGKILL, as a dying machine would.
    pub fn kill_9(&self) {
        let mut child = self.postmaster.lock().take().expect("a running server");
        kill_family(child.id());
        child.wait().unwrap();
        self.remove_locks();
    }

    /// Kills the postmaster alone, and waits until its children have noticed and ended.
    pub fn kill_9_postmaster(&self) {
        let mut child = self.postmaster.lock().take().expect("a running server");
        signal("KILL", &[child.id()]);
        child.wait().unwrap();
        wait_until(SERVER_LIMIT, "its children to end", || {
            self.processes().is_empty()
        });
        self.remove_locks();
    }

    /// Both name a process id, which may belong to another test's server by now.
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

    /// Kills one process of the server, after which the server restarts its shared memory.
    /// False if that process had ended by itself.
    pub fn kill_9_backend(&self, pid: i32) -> bool {
        let pid = pid.try_into().unwrap();
        // A process that has ended takes signals until its parent has noticed.
        let runs = !matches!(state_and_parent(pid), None | Some(('Z', _)));
        let killed = runs && signal("KILL", &[pid]);
        self.kills.fetch_add(usize::from(killed), Ordering::Relaxed);
        killed
    }

    /// As [`Server::kill_9_backend`], and waits until the server takes connections again.
    pub fn crash_by(&self, pid: i32) -> bool {
        let crashes = || self.log().matches(" reinitializing").count();
        let before = crashes();
        let killed = self.kill_9_backend(pid);
        if killed {
            wait_until(SERVER_LIMIT, "the server to be back", || {
                // It still takes connections until the postmaster has noticed.
                crashes() > before && self.try_connect("postgres", "postgres").is_ok()
            });
        }
        killed
    }

    /// Asks one process of the server to end (SIGTERM), one that is in no view perhaps.
    pub fn terminate(&self, pid: i32) {
        signal("TERM", &[pid.try_into().unwrap()]);
    }

    /// Stops a process of the server where it is (SIGSTOP), until the value goes.
    #[must_use]
    pub fn pause(&self, pid: i32) -> Paused {
        let pid = pid.try_into().unwrap();
        stop_process(pid);
        Paused(pid)
    }

    /// Stops all processes of the server where they are (SIGSTOP), until the value goes: it
    /// keeps its connections and says nothing, as a machine that hangs.
    #[must_use]
    pub fn freeze(&self) -> Frozen {
        let postmaster = self.postmaster.lock();
        let postmaster = postmaster.as_ref().expect("a running server").id();
        // Stopped, it can fork no child that we do not see.
        let mut stopped = Vec::new();
        stop_process(postmaster);
        stopped.push(postmaster);
        for child in children_of(postmaster) {
            stop_process(child);
            stopped.push(child);
        }
        Frozen(stopped)
    }

    /// From now on a role must give its password.
    pub fn require_password(&self, role: &str) {
        let file = self.data_dir().join("pg_hba.conf");
        let others = fs::read_to_string(&file).unwrap();
        fs::write(&file, format!("local all {role} scram-sha-256\n{others}")).unwrap();
        self.reload();
        wait_until(SERVER_LIMIT, "the reload", || {
            self.try_connect(role, "postgres").is_err()
        });
    }

    /// Sets a value that a reload applies, and reloads.
    pub fn set(&self, name: &str, value: &str) {
        self.session()
            .run(&format!("ALTER SYSTEM SET {name} = '{value}'"));
        self.reload();
    }

    /// Has the server read its configuration again.
    pub fn reload(&self) {
        self.session().run("SELECT pg_reload_conf()");
    }

    /// A session of the superuser in the database postgres.
    #[must_use]
    #[track_caller]
    pub fn session(&self) -> Session {
        self.connect_as("postgres", "postgres")
    }

    /// A session of the superuser in a database.
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

    /// A session of a role in a database, or why there is none.
    ///
    /// # Errors
    /// What the server answered.
    pub fn try_connect(&self, role: &str, database: &str) -> Result<Session, Failure> {
        connect(&self.dir, self.port, role, database)
    }

    /// A PostgreSQL program that would connect to this server, run by the server's user
    /// in [`Server::dir`].
    #[must_use]
    pub fn program(&self, name: &str) -> Command {
        let mut command = as_server_user(name, &self.dir);
        command
            .env("PGHOST", &self.dir)
            .env("PGPORT", self.port.to_string())
            .env("PGUSER", "postgres");
        command
    }

    /// Runs such a program, which must succeed, and returns what it wrote to standard output.
    #[track_caller]
    pub fn run(&self, name: &str, args: &[&str]) -> String {
        output(self.program(name).args(args))
    }

    /// Statements at random run into internal errors of PostgreSQL's own.
    pub fn expect_internal_errors(&self) {
        self.random_sql.store(true, Ordering::Relaxed);
    }

    /// The clock that this server was started under.
    ///
    /// # Panics
    /// When that is the machine's.
    #[must_use]
    pub fn clock(&self) -> Clock {
        Clock::of(self.dir()).expect("a server with a clock of its own")
    }

    /// Where the server's user may write.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Its port, which is only part of a name: of its socket, and of the node.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What libpq is to be told to connect to it as the superuser.
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

    /// Gives a file or directory tree to the server's user.
    pub fn give(&self, path: &Path) {
        programs::give(path);
    }

    /// The processes that work in the data directory: those of this server, and what other
    /// ones have left.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        let here = |pid: &u32| {
            fs::read_link(format!("/proc/{pid}/cwd")).is_ok_and(|dir| dir == self.data_dir())
        };
        all_processes().filter(here).collect()
    }

    /// The log so far.
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
            // Without those that only say that we wait for it to start.
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
        // Fewer are told of where several are killed at once.
        let mut kills = self.kills.load(Ordering::Relaxed);
        // A statement follows its error, which is judged.
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
                || self.random_sql.load(Ordering::Relaxed) && line.contains(INTERNAL_ERROR);
            let disaster = DISASTERS.iter().any(|text| line.contains(text)) && !excused;
            assert!(!disaster, "in the log of {}: {line}", self.dir.display());
        }
        // Not waited for: where files were synced, that takes seconds on some disks.
        Command::new("sh")
            .args(["-c", "rm -rf \"$0\" &"])
            .arg(&self.dir)
            .status()
            .unwrap();
    }
}

/// A session by the socket in a directory.
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
