//! A PostgreSQL installation for a single test, with additional scripts of the extension: of former
//! versions, or made up.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::programs::{OWN_PROGRAM, bin_dir, output};

/// The version under test.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Output of `pg_config`.
fn pg_config(option: &str) -> PathBuf {
    let said = output(Command::new(bin_dir().join("pg_config")).arg(option));
    PathBuf::from(said.trim())
}

/// Directory of extension scripts.
fn scripts() -> PathBuf {
    pg_config("--sharedir").join("extension")
}

/// The generated script of the version under test.
///
/// # Panics
/// If there is none: the extension was not built.
#[must_use]
pub fn script() -> String {
    fs::read_to_string(scripts().join(format!("leaf_id--{VERSION}.sql"))).unwrap()
}

/// Creates an installation for the server to be started in this directory, with additional scripts,
/// given by name and text. The server locates its files relative to the real path of its binary, so
/// that is copied; the rest is linked.
pub(crate) fn make(dir: &Path, more: &[(String, String)]) {
    let (bin, share, lib) = (
        bin_dir().to_path_buf(),
        pg_config("--sharedir"),
        pg_config("--pkglibdir"),
    );
    let root = bin
        .ancestors()
        .find(|above| share.starts_with(above) && lib.starts_with(above))
        .unwrap();
    let own = |path: &Path| dir.join("own").join(path.strip_prefix(root).unwrap());
    for path in [&bin, &share] {
        fs::create_dir_all(own(path)).unwrap();
    }
    fs::copy(bin.join("postgres"), own(&bin).join("postgres")).unwrap();
    fs::create_dir_all(own(&lib).parent().unwrap()).unwrap();
    symlink(&lib, own(&lib)).unwrap();
    for entry in fs::read_dir(&share).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name() != "extension" {
            symlink(entry.path(), own(&share).join(entry.file_name())).unwrap();
        }
    }
    let extension = own(&share).join("extension");
    output(Command::new("cp").arg("-rL").arg(scripts()).arg(&extension));
    for (name, text) in more {
        fs::write(extension.join(name), text).unwrap();
    }
    symlink(own(&bin).join("postgres"), dir.join(OWN_PROGRAM)).unwrap();
}
