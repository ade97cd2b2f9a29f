//! The servers that are measured, and what is installed in them.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use leaf_id_tests::programs::bin_dir;
use leaf_id_tests::{Server, Session};

use crate::figures::Unmeasured;
use crate::interrupt::Running;

/// A server that runs longer than this is considered hung, and killed.
const LIMIT: Duration = Duration::from_secs(3 * 3600);

/// Settings of every server, unless a section overrides them. Others keep PostgreSQL's
/// defaults; shared_buffers is listed because the harness changes it.
const CONF: [(&str, &str); 6] = [
    ("shared_buffers", "128MB"),
    ("work_mem", "1GB"),
    ("jit", "off"),
    ("fsync", "on"),
    ("autovacuum", "off"),
    ("leaf_id.worker_id", "1"),
];

/// Settings that the report lists.
const SHOWN: [&str; 11] = [
    "fsync",
    "synchronous_commit",
    "full_page_writes",
    "wal_level",
    "wal_sync_method",
    "shared_buffers",
    "work_mem",
    "jit",
    "max_connections",
    "autovacuum",
    "leaf_id.max_tags",
];

/// The functions of noop.c, declared so that the planner may use them wherever it may use
/// those of leaf_id.
const NOOP_SQL: &str = "
CREATE FUNCTION noop() RETURNS bigint STRICT VOLATILE PARALLEL SAFE LANGUAGE c
    AS 'LIBRARY', 'noop';
CREATE FUNCTION noop(text) RETURNS bigint STRICT VOLATILE PARALLEL SAFE LANGUAGE c
    AS 'LIBRARY', 'noop';
CREATE FUNCTION atomic_add(text) RETURNS bigint STRICT VOLATILE PARALLEL SAFE LANGUAGE c
    AS 'LIBRARY', 'atomic_add';
CREATE FUNCTION atomic_add_far(text) RETURNS bigint STRICT VOLATILE PARALLEL SAFE LANGUAGE c
    AS 'LIBRARY', 'atomic_add_far';
CREATE FUNCTION atomic_add_through(text) RETURNS bigint STRICT VOLATILE PARALLEL SAFE LANGUAGE c
    AS 'LIBRARY', 'atomic_add_through';";

/// A server that a section measures. Dropping it stops and removes the server.
pub struct Fixture {
    /// The server, with the extension in the database postgres.
    pub server: Server,
    running: Running,
}

impl Fixture {
    /// Starts a server with the common settings and these.
    #[must_use]
    pub fn start(running: &Running, conf: &[(&str, &str)]) -> Self {
        let fixture = Self::without_leaf_id(running, conf);
        fixture.session().run("CREATE EXTENSION leaf_id");
        fixture
    }

    /// As [`Fixture::start`], without the extension in its database.
    #[must_use]
    pub fn without_leaf_id(running: &Running, conf: &[(&str, &str)]) -> Self {
        let server = Server::start(&[&CONF[..], conf].concat());
        server.allow(LIMIT);
        running.add(server.dir());
        Self {
            server,
            running: running.clone(),
        }
    }

    /// A session of the superuser, without a statement timeout.
    #[must_use]
    pub fn session(&self) -> Session {
        let mut session = self.server.session();
        session.run("SET statement_timeout = 0");
        session
    }

    /// Compiles noop.c against this server's headers, and creates its functions.
    ///
    /// # Errors
    /// What is missing to compile them.
    pub fn create_noop(&self) -> Result<(), Unmeasured> {
        let library = self.server.dir().join("noop.so");
        compile_noop(&library).map_err(|why| Unmeasured(format!("noop.c: {why}")))?;
        self.server.give(&library);
        let library = library.display().to_string();
        self.session().run(&NOOP_SQL.replace("LIBRARY", &library));
        Ok(())
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.running.forget(self.server.dir());
    }
}

fn compile_noop(library: &Path) -> Result<(), String> {
    let headers = Command::new(bin_dir().join("pg_config"))
        .arg("--includedir-server")
        .output()
        .map_err(|error| format!("pg_config: {error}"))?;
    let headers = String::from_utf8_lossy(&headers.stdout).trim().to_owned();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let mut child = Command::new(&compiler)
        .args(["-shared", "-fPIC", "-O2", "-D_GNU_SOURCE"])
        .arg("-Werror=implicit-function-declaration")
        .arg(format!("-I{headers}"))
        .arg("-o")
        .arg(library)
        .args(["-x", "c", "-"])
        .stdin(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{compiler}: {error}"))?;
    if let Some(mut input) = child.stdin.take() {
        // If the compiler does not read it, its exit status tells.
        let _ = input.write_all(include_bytes!("../noop.c"));
    }
    match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{compiler} ended with {status}")),
        Err(error) => Err(format!("{compiler}: {error}")),
    }
}

/// What the figures depend on: versions, machine, settings.
#[must_use]
pub fn settings(running: &Running) -> Vec<(String, String)> {
    let fixture = Fixture::start(running, &[]);
    let mut session = fixture.session();
    let mut settings = vec![
        ("day".into(), session.value("SELECT current_date::text")),
        (
            "PostgreSQL".into(),
            session.value("SELECT regexp_replace(version(), '^PostgreSQL | on .*', '', 'g')"),
        ),
        (
            "leaf_id".into(),
            session.value("SELECT extversion FROM pg_extension WHERE extname = 'leaf_id'"),
        ),
        (
            "commit".into(),
            std::env::var("LEAF_ID_COMMIT").unwrap_or_else(|_| "unknown".into()),
        ),
        ("file system".into(), file_system(fixture.server.dir())),
    ];
    settings.extend(machine());
    for name in SHOWN {
        let value = session.value(&format!("SELECT current_setting('{name}')"));
        settings.push((name.into(), value));
    }
    settings
}

/// The file system of a directory: on tmpfs, a sync costs nothing.
fn file_system(dir: &Path) -> String {
    let output = Command::new("stat")
        .args(["-f", "-c", "%T"])
        .arg(dir)
        .output();
    output.map_or("unknown".into(), |output| {
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    })
}

fn machine() -> Vec<(String, String)> {
    let processors = std::thread::available_parallelism().map_or(0, usize::from);
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let info = read("/proc/cpuinfo");
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown", |(_, model)| model.trim());
    let kernel = read("/proc/sys/kernel/osrelease");
    let memory = read("/proc/meminfo");
    let memory = memory
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))
        .map_or("unknown", str::trim);
    vec![
        ("processors".into(), format!("{processors}, {model}")),
        ("memory".into(), memory.into()),
        ("kernel".into(), kernel.trim().into()),
    ]
}
