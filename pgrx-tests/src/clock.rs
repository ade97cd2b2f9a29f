//! A clock that a test sets while the server runs under it.
//!
//! The server sees it through libfaketime (Debian's package of that name), which every
//! process of it asks for the time; the monotonic clock stays the machine's, so that
//! timeouts are as long as they say.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::server::{Server, new_dir};

static LIBRARY: LazyLock<PathBuf> = LazyLock::new(|| {
    if let Some(library) = std::env::var_os("LEAF_ID_FAKETIME") {
        return library.into();
    }
    // Debian has a directory for each architecture, others have none.
    let parents = fs::read_dir("/usr/lib")
        .unwrap()
        .map(|entry| entry.unwrap().path());
    parents
        .chain(["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from))
        .map(|parent| parent.join("faketime/libfaketime.so.1"))
        .find(|library| library.exists())
        .expect("libfaketime is missing: install it, or say where it is in LEAF_ID_FAKETIME")
});

/// The clock of one server: that of the machine, moved.
pub struct Clock {
    file: PathBuf,
}

impl Clock {
    /// The clock of the server in this directory, if it has one of its own.
    pub(crate) fn of(dir: &Path) -> Option<Self> {
        let file = dir.join("clock");
        file.exists().then_some(Self { file })
    }

    /// Gives the server that will be started in this directory a clock of its own.
    pub(crate) fn make(dir: &Path, ahead_ms: i64) -> Self {
        let clock = Self {
            file: dir.join("clock"),
        };
        clock.set(ahead_ms);
        clock
    }

    /// Has a program see this clock.
    pub(crate) fn preload(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", &*LIBRARY)
            .env("FAKETIME_TIMESTAMP_FILE", &self.file)
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("NO_FAKE_STAT", "1");
    }

    /// Sets the clock to so many milliseconds ahead of the machine's; behind it, if that is
    /// negative. It holds at once for all processes of the server.
    pub fn set(&self, ahead_ms: i64) {
        let sign = if ahead_ms < 0 { '-' } else { '+' };
        let (s, ms) = (
            ahead_ms.unsigned_abs() / 1000,
            ahead_ms.unsigned_abs() % 1000,
        );
        let new = self.file.with_extension("new");
        fs::write(&new, format!("{sign}{s}.{ms:03}\n")).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o644)).unwrap();
        // A reader finds the old file or the new one, never half a one.
        fs::rename(new, &self.file).unwrap();
    }

    /// How far it is ahead of the machine's, in milliseconds.
    #[must_use]
    pub fn ahead_ms(&self) -> i64 {
        let text = fs::read_to_string(&self.file).unwrap();
        text.trim().replace('.', "").parse().unwrap()
    }

    /// What it shows, in Unix milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        i64::try_from(since.as_millis()).unwrap() + self.ahead_ms()
    }
}

impl Server {
    /// As [`Server::with_leaf_id`], under a clock of its own, which is so many milliseconds
    /// ahead of the machine's.
    #[must_use]
    pub fn with_clock(ahead_ms: i64, conf: &[(&str, &str)]) -> Self {
        let dir = new_dir();
        Clock::make(&dir, ahead_ms);
        let server = Self::start_in_new(dir, conf);
        server.session().run("CREATE EXTENSION leaf_id");
        server
    }

    /// The clock that this server was started under.
    ///
    /// # Panics
    /// When that is the machine's.
    #[must_use]
    pub fn clock(&self) -> Clock {
        Clock::of(self.dir()).expect("a server with a clock of its own")
    }
}
