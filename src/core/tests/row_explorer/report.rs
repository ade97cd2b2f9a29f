//! What the searches have found, kept in a file and in `src/core/README.md`.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};

const README: &str = include_str!("../../README.md");

/// Outcome of one search of all histories.
pub struct Line<'a> {
    pub world: &'a str,
    /// The rule or the assumption left out.
    pub without: &'a str,
    /// The shortest history that breaks a promise.
    pub history: String,
    /// Its number of steps; 0 for none.
    pub len: usize,
    pub worlds: usize,
    pub depth: u64,
    pub seconds: f32,
}

/// The directory of the file, if it is to be written; relative to the workspace.
fn directory() -> Option<PathBuf> {
    let named = std::env::var_os("LEAF_ID_PROOF")?;
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    Some(workspace.join(named))
}

/// Prints a line, and appends it to a file in the directory that `LEAF_ID_PROOF` names.
pub fn keep(line: &Line) {
    let Line {
        world,
        without,
        history,
        len,
        worlds,
        depth,
        seconds,
    } = line;
    let text = format!(
        "{world}\t{without}\t{history}\t{len}\t{worlds} worlds\tdepth {depth}\t{seconds:.1} s\n"
    );
    print!("{text}");
    if let Some(directory) = directory() {
        fs::create_dir_all(&directory).expect("LEAF_ID_PROOF is a directory");
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(directory.join("row_explorer.tsv"))
            .expect("the report can be opened");
        // In one write: other tests append to it, too.
        file.write_all(text.as_bytes())
            .expect("the report can be written");
    }
}

/// Asserts that the table in README.md has a line, unless the table is being made.
pub fn assert_in_readme(line: &Line) {
    let row = format!("| {} | {} | {} |\n", line.world, line.without, line.history);
    assert!(
        directory().is_some() || README.contains(&row),
        "src/core/README.md lacks this row, and says how the table is made:\n{row}"
    );
}
