//! A disk of a server that is slow or hangs when the test says so, and that says what was done.
//!
//! All processes of the server preload `disk.c`.

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::preload::Preload;

pub(crate) const PRELOAD: Preload = Preload {
    name: "disk",
    library: include_bytes!(concat!(env!("OUT_DIR"), "/disk.so")),
    variable: "LEAF_ID_DISK",
};

/// As in `disk.c`: a delay, a count, and part of a name.
const CONTROL: usize = 64;

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
        let mut control = [0; CONTROL];
        control[8..27].copy_from_slice(b"leaf_id_reservation");
        let file = PRELOAD.make(dir, &control);
        let log = log(&file);
        fs::write(&log, "").unwrap();
        // The server's user is another one.
        fs::set_permissions(log, fs::Permissions::from_mode(0o666)).unwrap();
    }

    /// Lets writes of the reservation file wait from now on, or ends that.
    pub fn hang(&self, hangs: bool) {
        self.delay(if hangs { -1 } else { 0 });
    }

    /// Lets each write of the reservation file take this long from now on.
    pub fn slow_down(&self, by: Duration) {
        self.delay(i32::try_from(by.as_millis()).unwrap());
    }

    fn delay(&self, ms: i32) {
        self.set(0, &ms.to_ne_bytes());
    }

    /// Lets writes of the files with this part of a name wait or take long, instead of the reservation
    /// file's.
    pub fn choose(&self, part: &str) {
        let mut name = [0; CONTROL - 8];
        name[..part.len()].copy_from_slice(part.as_bytes());
        self.set(8, &name);
    }

    fn set(&self, at: u64, bytes: &[u8]) {
        let file = fs::File::options().write(true).open(&self.file).unwrap();
        file.write_all_at(bytes, at).unwrap();
    }

    /// Number of processes that wait for such a write.
    #[must_use]
    pub fn waiting(&self) -> i32 {
        let control = fs::read(&self.file).unwrap();
        i32::from_ne_bytes(control[4..8].try_into().unwrap())
    }

    /// What was done to the files of leaf_id, and the directory that has them: process id, `truncate`, `sync`,
    /// `rename` or `unlink`, and the file's name, or a dot.
    #[must_use]
    pub fn log(&self) -> Vec<(i32, String, String)> {
        let text = fs::read_to_string(log(&self.file)).unwrap();
        let line = |line: &str| {
            let words: Vec<_> = line.split(' ').collect();
            (words[0].parse().unwrap(), words[1].into(), words[2].into())
        };
        text.lines().map(line).collect()
    }
}

fn log(control: &Path) -> PathBuf {
    control.with_extension("log")
}
