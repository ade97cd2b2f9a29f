//! A PostgreSQL server that belongs to one test.

use std::fs::{self, File};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, mpsc};
use std::time::{Duration, Instant};
use std::{env, thread};

use parking_lot::Mutex;
use postgres::{Config, NoTls};

use crate::checks::{becomes, wait_until};
use crate::clock::Clock;
use crate::counting;
use crate::session::{Failure, Session};

/// A test that runs longer than this hangs: its server is killed, so that its sessions fail.
const TEST_LIMIT: Duration = Duration::from_secs(600);
/// How long a server may take to start or to stop.
const SERVER_LIMIT: Duration = Duration::from_secs(60);
/// A statement that runs longer than this has hung. Given with the connection, so that
/// neither ALTER DATABASE SET nor DISCARD ALL takes it away.
const STATEMENT_LIMIT: &str = "-c statement_timeout=120s";

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

/// The system user that runs servers, if that is not us: PostgreSQL refuses root.
static SERVER_USER: LazyLock<Option<(u32, u32)>> = LazyLock::new(|| {
    let id = |args: &[&str]| -> u32 {
        output(Command::new("id").args(args))
            .trim()
            .parse()
            .unwrap()
    };
    (id(&["-u"]) == 0).then(|| {
        let user = env::var("LEAF_ID_SERVER_USER").unwrap_or_else(|_| "postgres".into());
        (id(&["-u", &user]), id(&["-g", &user]))
    })
});

static BIN_DIR: LazyLock<PathBuf> = LazyLock::new(|| {
    env::var_os("LEAF_ID_PG_BIN").map_or_else(
        || {
            output(Command::new("pg_config").arg("--bindir"))
                .trim()
                .into()
        },
        PathBuf::from,
    )
});

/// Fresh clusters to copy, kept beside the test's own binary from one run to the next: the
/// name that they all have.
static TEMPLATES: LazyLock<PathBuf> = LazyLock::new(|| {
    let version = output(Command::new(BIN_DIR.join("postgres")).arg("--version"));
    let mut name: String = version
        .chars()
        .filter(|c| c.is_ascii_alphanumeric())
        .collect();
    if let Some((uid, _)) = *SERVER_USER {
        name += &format!("-{uid}");
    }
    let beside = env::current_exe()
        .unwrap()
        .parent()
        .unwrap()
        .join("clusters");
    fs::create_dir_all(&beside).unwrap();
    beside.join(name)
});

/// Held while a cluster to copy is made.
static MAKING_TEMPLATE: Mutex<()> = Mutex::new(());

/// The fresh cluster of a number. Each number has a system identifier of its own.
fn template(number: usize) -> PathBuf {
    let template = TEMPLATES.with_extension(number.to_string());
    let _making = MAKING_TEMPLATE.lock();
    if !template.exists() {
        let dir = new_dir();
        initdb(&dir);
        let partial = template.with_file_name(format!("partial-{}", std::process::id()));
        copy_dir(&dir.join("data"), &partial);
        // Another process may have been quicker: its cluster is as good.
        if fs::rename(&partial, &template).is_err() {
            fs::remove_dir_all(&partial).unwrap();
        }
        fs::remove_dir_all(dir).unwrap();
    }
    template
}

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

    /// As [`Server::start`], in a directory that may hold a clock, but no cluster yet.
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
        fs::write(&file, text).unwrap();

        let (watchdog, limits) = mpsc::channel::<Duration>();
        let server = Self {
            dir,
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
        let mut command =
            counting::postgres(&self.dir).unwrap_or_else(|| as_server_user("postgres", &self.dir));
        if let Some(clock) = Clock::of(&self.dir) {
            clock.preload(&mut command);
        }
        let child = command
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
            if let Some(status) = self.postmaster.lock().as_mut().unwrap().try_wait().unwrap() {
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
        if !ended {
            kill_family(child.id());
            child.wait().unwrap();
            panic!("the server did not end by itself within {SERVER_LIMIT:?}");
        }
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
        fs::remove_file(self.dir.join(".s.PGSQL.5432.lock")).unwrap();
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
        connect(&self.dir, role, database)
    }

    /// A PostgreSQL program that would connect to this server, run by the server's user
    /// in [`Server::dir`].
    #[must_use]
    pub fn program(&self, name: &str) -> Command {
        let mut command = as_server_user(name, &self.dir);
        command.env("PGHOST", &self.dir).env("PGUSER", "postgres");
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

    /// Where the server's user may write.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The data directory.
    #[must_use]
    pub fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Gives a file or directory tree to the server's user.
    pub fn give(&self, path: &Path) {
        if let Some((uid, gid)) = *SERVER_USER {
            chown(path, Some(uid), Some(gid)).unwrap();
            if path.is_dir() {
                for entry in fs::read_dir(path).unwrap() {
                    self.give(&entry.unwrap().path());
                }
            }
        }
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

/// A stopped process: goes on when this is dropped, also in a test that fails.
pub struct Paused(u32);

impl Drop for Paused {
    fn drop(&mut self) {
        signal("CONT", &[self.0]);
    }
}

/// A stopped server: goes on when this is dropped, also in a test that fails.
pub struct Frozen(Vec<u32>);

impl Drop for Frozen {
    fn drop(&mut self) {
        // One by one: some may have been killed meanwhile.
        for &pid in &self.0 {
            signal("CONT", &[pid]);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let failed = thread::panicking();
        if failed {
            if let Some(mut child) = self.postmaster.lock().take() {
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
        for line in log.lines() {
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
pub(crate) fn connect(dir: &Path, role: &str, database: &str) -> Result<Session, Failure> {
    let client = Config::new()
        .host_path(dir)
        .user(role)
        .dbname(database)
        .options(STATEMENT_LIMIT)
        .connect_timeout(Duration::from_secs(30))
        .connect(NoTls)
        .map_err(|error| Failure::from(&error))?;
    Ok(Session::new(client))
}

/// The directory of pg_regress, which is not among the programs.
#[must_use]
pub fn regress_dir() -> PathBuf {
    let pgxs = env::var("LEAF_ID_PGXS")
        .unwrap_or_else(|_| output(Command::new(BIN_DIR.join("pg_config")).arg("--pgxs")));
    Path::new(pgxs.trim())
        .parent()
        .unwrap()
        .join("../test/regress")
}

/// The directory of the programs.
#[must_use]
pub fn bin_dir() -> &'static Path {
    &BIN_DIR
}

/// A new directory with a short path: a socket's has room for 107 bytes.
pub(crate) fn new_dir() -> PathBuf {
    loop {
        let dir = PathBuf::from(format!("/tmp/li-{:06x}", rand::random::<u32>() >> 8));
        if fs::create_dir(&dir).is_ok() {
            if let Some((uid, gid)) = *SERVER_USER {
                chown(&dir, Some(uid), Some(gid)).unwrap();
            }
            return dir;
        }
    }
}

fn initdb(dir: &Path) {
    let data = dir.join("data");
    output(as_server_user("initdb", dir).arg("-D").arg(data).args([
        "--no-sync",
        "--auth=trust",
        "--username=postgres",
        "--locale=C",
        "--encoding=UTF8",
    ]));
}

pub(crate) fn copy_dir(from: &Path, to: &Path) {
    output(Command::new("cp").arg("-a").arg(from).arg(to));
}

/// A program of PostgreSQL with a clean environment. The user is changed by us and not by
/// runuser, which would stand between us and the process we must signal and reap.
pub(crate) fn as_server_user(program: &str, dir: &Path) -> Command {
    let mut command = Command::new(BIN_DIR.join(program));
    if let Some((uid, gid)) = *SERVER_USER {
        command.uid(uid).gid(gid);
    }
    for (name, _) in env::vars_os() {
        if name.to_string_lossy().starts_with("PG") {
            command.env_remove(name);
        }
    }
    // A backtrace takes seconds in a debug build, and hides the message in the log.
    command
        .env_remove("RUST_BACKTRACE")
        .env("LC_ALL", "C")
        .current_dir(dir);
    command
}

/// What a command, which must succeed, wrote to standard output.
#[track_caller]
fn output(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

/// False if one of them does not exist: a process that has just ended by itself is no
/// failure.
fn signal(name: &str, pids: &[u32]) -> bool {
    let pids = pids.iter().map(u32::to_string);
    Command::new("kill")
        .args(["-s", name])
        .args(pids)
        .stderr(Stdio::null())
        .status()
        .unwrap()
        .success()
}

/// Stops a process where it is, and waits until it stands still.
fn stop_process(pid: u32) {
    signal("STOP", &[pid]);
    wait_until(SERVER_LIMIT, "the process to stop", || {
        state_and_parent(pid).is_none_or(|(state, _)| matches!(state, 'T' | 'Z'))
    });
}

/// Kills a postmaster and its children, and waits until the children are gone: they would
/// hold the shared memory against the next start.
fn kill_family(postmaster: u32) {
    // Stopped, it can fork no child that we do not see.
    signal("STOP", &[postmaster]);
    let children = children_of(postmaster);
    signal("KILL", &[&[postmaster][..], &children[..]].concat());
    let ended = |pid: &u32| matches!(state_and_parent(*pid), None | Some(('Z', _)));
    wait_until(SERVER_LIMIT, "the server's processes to end", || {
        children.iter().all(ended)
    });
}

fn all_processes() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
}

fn children_of(parent: u32) -> Vec<u32> {
    all_processes()
        .filter(|pid| state_and_parent(*pid).is_some_and(|(_, its)| its == parent))
        .collect()
}

fn state_and_parent(pid: u32) -> Option<(char, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before them is in brackets, and may hold anything.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.chars().next()?, fields.next()?.parse().ok()?))
}
