//! A clock of a server that the test can set.
//!
//! All processes of the server preload `clock.c`, which shifts the time of day. The monotonic clock
//! is not shifted, so timeouts keep their lengths.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::preload::Preload;

pub(crate) const PRELOAD: Preload = Preload {
    name: "clock",
    library: include_bytes!(concat!(env!("OUT_DIR"), "/clock.so")),
    variable: "LEAF_ID_CLOCK",
};

/// The clock of one server: the machine's, shifted.
pub struct Clock {
    file: PathBuf,
}

impl Clock {
    /// The clock of the server in this directory, if it has its own.
    pub(crate) fn of(dir: &Path) -> Option<Self> {
        PRELOAD.control(dir).map(|file| Self { file })
    }

    /// Creates a clock for the server to be started in this directory.
    pub(crate) fn make(dir: &Path, ahead_ms: i64) {
        let file = PRELOAD.make(dir, &[]);
        Self { file }.set(ahead_ms);
    }

    /// Sets the offset from the machine's clock in milliseconds; negative if behind. Takes effect
    /// at once in all processes of the server.
    pub fn set(&self, ahead_ms: i64) {
        let file = fs::File::options().write(true).open(&self.file).unwrap();
        let pair = [ahead_ms.to_ne_bytes(), (!ahead_ms).to_ne_bytes()];
        file.write_all_at(&pair.concat(), 0).unwrap();
    }

    /// Offset from the machine's clock, in milliseconds.
    #[must_use]
    pub fn ahead_ms(&self) -> i64 {
        let pair = fs::read(&self.file).unwrap();
        i64::from_ne_bytes(pair[..8].try_into().unwrap())
    }

    /// Current time, in Unix milliseconds.
    #[must_use]
    pub fn now_ms(&self) -> i64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        i64::try_from(since.as_millis()).unwrap() + self.ahead_ms()
    }
}
