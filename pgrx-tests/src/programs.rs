//! PostgreSQL programs, the user that runs them, and the directories they use.

use std::fs::DirBuilder;
use std::os::unix::fs::{DirBuilderExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::{env, fs};

use parking_lot::Mutex;

use crate::clock;
use crate::disk;
use crate::guard::guard;
use crate::memory;
use crate::preload::preload;

/// The system user that runs servers, if the test runs as root, which PostgreSQL refuses.
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

/// Common prefix of the template clusters, which are kept next to the test binary between runs.
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

/// Serializes the creation of templates in this process.
static MAKING_TEMPLATE: Mutex<()> = Mutex::new(());

/// A template cluster. Each number has its own system identifier.
pub(crate) fn template(number: usize) -> PathBuf {
    let template = TEMPLATES.with_extension(number.to_string());
    let _making = MAKING_TEMPLATE.lock();
    if !template.exists() {
        let dir = new_dir();
        initdb(&dir);
        let partial = template.with_file_name(format!("partial-{}", std::process::id()));
        copy_dir(&dir.join("data"), &partial);
        // Another process may have been faster; its cluster is equivalent.
        if fs::rename(&partial, &template).is_err() {
            fs::remove_dir_all(&partial).unwrap();
        }
        fs::remove_dir_all(dir).unwrap();
    }
    template
}

/// In a server's directory: symlink to its own postgres binary, if any.
pub(crate) const OWN_PROGRAM: &str = "own-postgres";

/// Precedes each error that memcheck finds in a server's process, in the server's log.
pub(crate) const MEMORY_ERROR: &str = "MEMCHECK";

/// The command to run the server in this directory, with its own binary, its own clock and
/// memory, and callgrind, if the directory has them; or under memcheck.
pub(crate) fn postgres(dir: &Path) -> Command {
    let program = fs::read_link(dir.join(OWN_PROGRAM)).unwrap_or_else(|_| "postgres".into());
    let mut command = counted(dir)
        .or_else(|| memchecked(dir))
        .unwrap_or_else(|| as_server_user(program.to_str().unwrap(), dir));
    preload(
        &[&clock::PRELOAD, &disk::PRELOAD, &memory::PRELOAD],
        dir,
        &mut command,
    );
    command
}

fn counted(dir: &Path) -> Option<Command> {
    let functions = fs::read_to_string(dir.join("counted")).ok()?;
    let mut command = as_server_user(&valgrind()?, dir);
    command
        .args([
            "--tool=callgrind",
            "--collect-atstart=no",
            "--callgrind-out-file=callgrind.%p",
        ])
        .args(functions.lines().map(|f| format!("--toggle-collect={f}")))
        .arg(as_server_user("postgres", dir).get_program());
    Some(command)
}

fn memchecked(dir: &Path) -> Option<Command> {
    let suppressions = env::var("LEAF_ID_MEMCHECK").ok()?;
    let mut command = as_server_user(&valgrind().expect("valgrind"), dir);
    command
        .args(["--quiet", "--leak-check=no"])
        .arg(format!("--error-markers={MEMORY_ERROR},{MEMORY_ERROR}"))
        .arg(format!("--suppressions={suppressions}"))
        .arg(as_server_user("postgres", dir).get_program());
    Some(command)
}

/// Absolute path of valgrind. A name would be resolved in PostgreSQL's bin directory.
pub(crate) fn valgrind() -> Option<String> {
    let found = Command::new("sh")
        .args(["-c", "command -v valgrind"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let path = String::from_utf8(found.stdout).unwrap();
    found.status.success().then(|| path.trim().to_owned())
}

/// Directory of pg_regress, which is not in the bin directory.
#[must_use]
pub fn regress_dir() -> PathBuf {
    let pgxs = env::var("LEAF_ID_PGXS")
        .unwrap_or_else(|_| output(Command::new(BIN_DIR.join("pg_config")).arg("--pgxs")));
    Path::new(pgxs.trim())
        .parent()
        .unwrap()
        .join("../test/regress")
}

/// The bin directory.
#[must_use]
pub fn bin_dir() -> &'static Path {
    &BIN_DIR
}

/// Creates a directory with a short path: socket paths are limited to 107 bytes.
pub(crate) fn new_dir() -> PathBuf {
    loop {
        let dir = PathBuf::from(format!("/tmp/li-{:010x}", rand::random::<u64>() >> 24));
        // Others must not connect: its servers trust all local users.
        if DirBuilder::new().mode(0o700).create(&dir).is_ok() {
            give(&dir);
            guard(&dir);
            return dir;
        }
    }
}

/// Changes the owner of a file or directory tree to the server's user.
pub(crate) fn give(path: &Path) {
    if let Some((uid, gid)) = *SERVER_USER {
        chown(path, Some(uid), Some(gid)).unwrap();
        if path.is_dir() {
            for entry in fs::read_dir(path).unwrap() {
                give(&entry.unwrap().path());
            }
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

/// A PostgreSQL program with a clean environment. Changes the user itself: runuser would be an
/// additional process between the test and the one to signal and reap.
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
    command
        // As some servers are started: no backtrace may reach users, who would see it in each test.
        .env("RUST_BACKTRACE", "1")
        .env("LC_ALL", "C")
        .current_dir(dir);
    command
}

/// Standard output of a command, which must succeed.
#[track_caller]
pub(crate) fn output(command: &mut Command) -> String {
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
