//! A disk of a server that hangs when the test says so.
//!
//! All processes of the server preload `disk.c`.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::preload::Preload;

pub(crate) const PRELOAD: Preload = Preload {
    name: "disk",
    library: include_bytes!(concat!(env!("OUT_DIR"), "/disk.so")),
    variable: "LEAF_ID_DISK",
};

/// The disk of one server.
pub struct Disk {
    file: PathBuf,
}

impl Disk {
    /// That of the server in this directory, if it can hang.
    pub(crate) fn of(dir: &Path) -> Option<Self> {
        PRELOAD.control(dir).map(|file| Self { file })
    }

    /// Gives the server that is to be started in this directory a disk that can hang.
    pub(crate) fn make(dir: &Path) {
        PRELOAD.make(dir, &[0; 8]);
    }

    /// Lets writes of the reservation file wait from now on, or ends that.
    pub fn hang(&self, hangs: bool) {
        let file = fs::File::options().write(true).open(&self.file).unwrap();
        file.write_all_at(&i32::from(hangs).to_ne_bytes(), 0)
            .unwrap();
    }

    /// Number of processes that wait for such a write.
    #[must_use]
    pub fn waiting(&self) -> i32 {
        let control = fs::read(&self.file).unwrap();
        i32::from_ne_bytes(control[4..8].try_into().unwrap())
    }
}
