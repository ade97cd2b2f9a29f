//! Libraries that all processes of a server preload, and that the test controls by a file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library of build.rs.
pub(crate) struct Preload {
    /// Name of its file in the server's directory.
    pub name: &'static str,
    pub library: &'static [u8],
    /// Environment variable that names the control file.
    pub variable: &'static str,
}

impl Preload {
    fn library(&self, dir: &Path) -> PathBuf {
        dir.join(self.name).with_extension("so")
    }

    /// The control file, if the server in this directory preloads the library.
    pub fn control(&self, dir: &Path) -> Option<PathBuf> {
        let file = dir.join(self.name);
        file.exists().then_some(file)
    }

    /// Has the server that is to be started in this directory preload the library.
    pub fn make(&self, dir: &Path, control: &[u8]) -> PathBuf {
        let file = dir.join(self.name);
        for (file, content) in [(&file, control), (&self.library(dir), self.library)] {
            fs::write(file, content).unwrap();
            // The server's user is another one.
            fs::set_permissions(file, fs::Permissions::from_mode(0o777)).unwrap();
        }
        file
    }
}

/// Runs a program with those of the libraries that the server in this directory has.
pub(crate) fn preload(all: &[&Preload], dir: &Path, command: &mut Command) {
    let mut libraries = Vec::new();
    for one in all {
        if let Some(control) = one.control(dir) {
            command.env(one.variable, control);
            libraries.push(one.library(dir).into_os_string().into_string().unwrap());
        }
    }
    if !libraries.is_empty() {
        command.env("LD_PRELOAD", libraries.join(":"));
    }
}
