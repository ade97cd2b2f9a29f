//! A clock that a test sets while the server runs under it.
//!
//! All processes of the server preload `clock.c`, which moves the time of day. The
//! monotonic clock stays the machine's, so that timeouts are as long as they say.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/clock.so"));

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
    pub(crate) fn make(dir: &Path, ahead_ms: i64) {
        let clock = Self {
            file: dir.join("clock"),
        };
        for (file, content) in [(&clock.file, &[][..]), (&clock.library(), LIBRARY)] {
            fs::write(file, content).unwrap();
            fs::set_permissions(file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        clock.set(ahead_ms);
    }

    /// Has a program see this clock.
    pub(crate) fn preload(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", self.library())
            .env("LEAF_ID_CLOCK", &self.file);
    }

    /// Sets the clock to so many milliseconds ahead of the machine's; behind it, if that is
    /// negative. It holds at once for all processes of the server.
    pub fn set(&self, ahead_ms: i64) {
        let file = fs::File::options().write(true).open(&self.file).unwrap();
        let pair = [ahead_ms.to_ne_bytes(), (!ahead_ms).to_ne_bytes()];
        file.write_all_at(&pair.concat(), 0).unwrap();
    }

    /// How far it is ahead of the machine's, in milliseconds.
    #[must_use]
    pub fn ahead_ms(&self) -> i64 {
        let pair = fs::read(&self.file).unwrap();
        i64::from_ne_bytes(pair[..8].try_into().unwrap())
    }

    /// What it shows, in Unix milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        i64::try_from(since.as_millis()).unwrap() + self.ahead_ms()
    }

    fn library(&self) -> PathBuf {
        self.file.with_extension("so")
    }
}
