//! Ways to damage a file.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Damages the file at a path.
pub type Damage = fn(&Path);

/// Kinds of damage, by name; each makes the contents unreadable.
pub const DAMAGES: [(&str, Damage); 6] = [
    ("garbage", |path| {
        fs::write(path, b"\x00\xffgarbage").unwrap();
    }),
    ("truncated", |path| {
        let text = fs::read(path).unwrap();
        fs::write(path, &text[..text.len() / 2]).unwrap();
    }),
    ("empty", |path| fs::write(path, b"").unwrap()),
    ("another shape", |path| {
        fs::write(path, b"[1, 2, 3]").unwrap();
    }),
    ("unreadable", |path| {
        fs::set_permissions(path, Permissions::from_mode(0o000)).unwrap();
    }),
    ("a directory", |path| {
        fs::remove_file(path).unwrap();
        fs::create_dir(path).unwrap();
    }),
];
