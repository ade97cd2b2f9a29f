//! A PostgreSQL that one test has for itself, with other scripts of the extension than the one
//! that is built: of versions that are gone, or that never were.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::programs::{OWN_PROGRAM, bin_dir, output};

/// The version that is built.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// What `pg_config` answers.
fn pg_config(option: &str) -> PathBuf {
    let said = output(Command::new(bin_dir().join("pg_config")).arg(option));
    PathBuf::from(said.trim())
}

/// Where the server looks for scripts.
fn scripts() -> PathBuf {
    pg_config("--sharedir").join("extension")
}

/// The script that makes the version that is built, as it was generated.
///
/// # Panics
/// When there is none: the extension is not built.
#[must_use]
pub fn script() -> String {
    fs::read_to_string(scripts().join(format!("leaf_id--{VERSION}.sql"))).unwrap()
}

/// Gives the server that will be started in this directory a PostgreSQL of its own, with more
/// scripts: by their names and texts. The server looks for its files from where its program
/// really is, so that one is copied; the rest is linked.
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
