//! Rare branches of the library, and how often the servers of this run have reached them: see
//! src/core/src/sometimes.rs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{env, fs};

use leaf_id_core::sometimes::{COUNTERS, counter};

/// The file in which a library that was built for it counts; `None` if this one was not.
fn file() -> Option<PathBuf> {
    let file = env::var_os("LEAF_ID_SOMETIMES")?;
    Some(PathBuf::from(file)).filter(|file| !file.as_os_str().is_empty())
}

/// Names of all branches in the sources.
#[must_use]
pub fn branches() -> Vec<String> {
    let mut names = Vec::new();
    read(
        &Path::new(env!("CARGO_MANIFEST_DIR")).join("../src"),
        &mut names,
    );
    names
}

fn read(path: &Path, names: &mut Vec<String>) {
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            read(&entry.unwrap().path(), names);
        }
    } else if path.extension().is_some_and(|is| is == "rs") {
        let text = fs::read_to_string(path).unwrap();
        let calls = text.split("sometimes!(").skip(1);
        let quoted = calls.filter_map(|call| call.trim_start().strip_prefix('"'));
        names.extend(quoted.filter_map(|name| Some(name.split_once('"')?.0.to_owned())));
    }
}

/// How often each branch was reached, if the library counts.
#[must_use]
pub fn reached() -> Option<BTreeMap<String, u64>> {
    let counts = fs::read(file()?).unwrap();
    assert_eq!(counts.len(), COUNTERS * size_of::<u64>());
    let count = |name: String| {
        let at = counter(&name) * size_of::<u64>();
        let bytes = counts[at..at + size_of::<u64>()].try_into().unwrap();
        (name, u64::from_ne_bytes(bytes))
    };
    Some(branches().into_iter().map(count).collect())
}
