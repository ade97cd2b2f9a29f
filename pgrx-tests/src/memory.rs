//! Allocations of a server's process that fail.
//!
//! All processes of the server preload `memory.c`.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use crate::preload::Preload;

pub(crate) const PRELOAD: Preload = Preload {
    name: "memory",
    library: include_bytes!(concat!(env!("OUT_DIR"), "/memory.so")),
    variable: "LEAF_ID_MEMORY",
};

/// `struct control` of memory.c: the offset of the name, and the size of all of it.
const NAME: usize = 16;
const SIZE: usize = NAME + 96;

/// The process whose allocation fails.
#[derive(Clone, Copy)]
pub enum Starved<'a> {
    /// That with this id.
    Pid(i32),
    /// The background worker of this name, from its first instruction on.
    Worker(&'a str),
}

/// The memory of one server.
pub struct Memory {
    file: PathBuf,
}

impl Memory {
    /// That of the server in this directory, if its allocations can fail.
    pub(crate) fn of(dir: &Path) -> Option<Self> {
        PRELOAD.control(dir).map(|file| Self { file })
    }

    /// Lets allocations of the server that is to be started in this directory fail.
    pub(crate) fn make(dir: &Path) {
        PRELOAD.make(dir, &[0; SIZE]);
    }

    /// Lets the `nth` allocation of a process from now on fail, and all after it, if `lasting`.
    pub fn fail(&self, who: Starved<'_>, nth: i32, lasting: bool) {
        let (pid, name) = match who {
            Starved::Pid(pid) => (pid, ""),
            Starved::Worker(name) => (0, name),
        };
        let mut control = [pid, nth, i32::from(lasting), 0]
            .map(i32::to_ne_bytes)
            .concat();
        control.extend(name.as_bytes());
        control.resize(SIZE, 0);
        self.write(&control);
    }

    /// Lets no allocation fail. True if one had failed.
    pub fn heal(&self) -> bool {
        let failed = self.failed();
        self.write(&[0; SIZE]);
        failed
    }

    /// True if an allocation has failed since [`Memory::fail`].
    #[must_use]
    pub fn failed(&self) -> bool {
        fs::read(&self.file).unwrap()[12..NAME] != [0; 4]
    }

    fn write(&self, control: &[u8]) {
        let file = fs::File::options().write(true).open(&self.file).unwrap();
        file.write_all_at(control, 0).unwrap();
    }
}
