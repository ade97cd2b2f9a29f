//! Servers under test, and the functions of noop.c on them.

use std::fs;
use std::process::Command;
use std::time::Duration;

use leaf_id_tests::programs::bin_dir;
use leaf_id_tests::{Server, Session};

/// Time limit of a server, after which it is killed.
const LIMIT: Duration = Duration::from_secs(3 * 3600);

/// Settings of all servers. Others have PostgreSQL's defaults.
const CONF: [(&str, &str); 7] = [
    ("shared_buffers", "128MB"),
    ("work_mem", "1GB"),
    ("jit", "off"),
    ("autovacuum", "off"),
    ("max_parallel_workers_per_gather", "0"),
    ("leaf_id.worker_id", "1"),
    // For pgEdge's extension, if installed.
    ("snowflake.node", "1"),
];

/// Settings shown in the report.
const SHOWN: [&str; 8] = [
    "fsync",
    "synchronous_commit",
    "wal_sync_method",
    "shared_buffers",
    "work_mem",
    "jit",
    "autovacuum",
    "max_parallel_workers_per_gather",
];

/// Declared like leaf_id's functions, so that the planner treats them alike.
const NOOP_SQL: &str = "
CREATE FUNCTION noop() RETURNS bigint STRICT VOLATILE PARALLEL SAFE LANGUAGE c
    AS 'LIBRARY', 'noop';
CREATE FUNCTION noop(text) RETURNS bigint STRICT VOLATILE PARALLEL SAFE LANGUAGE c
    AS 'LIBRARY', 'noop';
CREATE FUNCTION atomic_add(text) RETURNS bigint STRICT VOLATILE PARALLEL SAFE LANGUAGE c
    AS 'LIBRARY', 'atomic_add';
CREATE FUNCTION atomic_add_shared(text) RETURNS bigint STRICT VOLATILE PARALLEL SAFE LANGUAGE c
    AS 'LIBRARY', 'atomic_add_shared';
CREATE FUNCTION atomic_add_through(text) RETURNS bigint STRICT VOLATILE PARALLEL SAFE LANGUAGE c
    AS 'LIBRARY', 'atomic_add_through';";

/// A server with these additional settings, and leaf_id in its database.
pub fn start(conf: &[(&str, &str)]) -> Server {
    let server = start_bare(conf);
    server.session().run("CREATE EXTENSION leaf_id");
    server
}

/// A server whose database has no extension yet.
pub fn start_bare(conf: &[(&str, &str)]) -> Server {
    let server = Server::start(&[&CONF[..], conf].concat());
    server.allow(LIMIT);
    server
}

/// A session without a statement timeout.
pub fn session(server: &Server) -> Session {
    let mut session = server.session();
    session.run("SET statement_timeout = 0");
    session
}

/// WAL written by the server so far, in bytes.
pub fn wal_bytes(session: &mut Session) -> f64 {
    session.value("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8")
}

/// Compiles noop.c against the server's headers, and creates its functions.
pub fn create_noop(server: &Server) {
    let library = server.dir().join("noop.so");
    let headers = Command::new(bin_dir().join("pg_config"))
        .arg("--includedir-server")
        .output()
        .unwrap_or_else(|error| panic!("pg_config: {error}"));
    let headers = String::from_utf8_lossy(&headers.stdout).trim().to_owned();
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".into());
    let status = Command::new(&compiler)
        .args(["-shared", "-fPIC", "-O2", "-D_GNU_SOURCE"])
        .arg(format!("-I{headers}"))
        .arg("-o")
        .arg(&library)
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/noop.c"))
        .status()
        .unwrap_or_else(|error| panic!("{compiler}: {error}"));
    assert!(status.success(), "{compiler} noop.c: {status}");
    server.give(&library);
    let library = library.display().to_string();
    server.session().run(&NOOP_SQL.replace("LIBRARY", &library));
}

/// The major version of PostgreSQL, and the conditions of the measurements: versions, machine,
/// settings.
pub fn circumstances() -> (i32, Vec<(String, String)>) {
    let server = start(&[]);
    let mut session = session(&server);
    let settings = SHOWN.map(|name| {
        let value: String = session.value(&format!("SELECT current_setting('{name}')"));
        format!("{name} {value}")
    });
    let commit = std::env::var("LEAF_ID_COMMIT").unwrap_or_else(|_| "unknown".into());
    let circumstances = [
        ("day", session.value("SELECT current_date::text")),
        (
            "PostgreSQL",
            session.value("SELECT regexp_replace(version(), '^PostgreSQL | on .*', '', 'g')"),
        ),
        ("commit", commit),
        ("processors", processors()),
        ("file system", file_system(&server)),
        ("settings", settings.join(", ")),
    ]
    .map(|(name, value)| (name.into(), value));
    (session.major(), circumstances.into())
}

fn processors() -> String {
    let count = std::thread::available_parallelism().map_or(0, usize::from);
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info
        .lines()
        .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown", |(_, model)| model.trim());
    format!("{count}, {model}")
}

/// Type of the file system; on tmpfs, a sync costs nothing.
fn file_system(server: &Server) -> String {
    let stat = Command::new("stat")
        .args(["-f", "-c", "%T"])
        .arg(server.dir())
        .output();
    stat.map_or("unknown".into(), |stat| {
        String::from_utf8_lossy(&stat.stdout).trim().to_owned()
    })
}
