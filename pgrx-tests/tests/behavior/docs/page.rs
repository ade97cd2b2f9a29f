//! Parser for Markdown pages, as far as the tests of the documentation need it.
//!
//! A fenced block of SQL or shell is run, unless a comment above it says otherwise:
//!
//! | comment | meaning |
//! | --- | --- |
//! | `<!-- test: before SQL -->` | run this SQL first; for objects that the reader has, and the test does not |
//! | `<!-- test: expect SQLSTATE -->` | the block fails with this SQLSTATE |
//! | `<!-- test: run by module::test -->` | run by that test, as it needs several servers, for example |
//! | `<!-- test: run by scripts/name -->` | run by that script, as it needs a bare Debian, or Citus |
//! | `<!-- test: from path -->` | its lines are in that file, in this order; the file is run |
//! | `<!-- test: not run: reason -->` | never run |

use std::fs;
use std::path::{Path, PathBuf};

use leaf_id_tests::Session;

/// Treatment of a block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mark {
    /// Run as is.
    Run,
    /// Fails with this SQLSTATE.
    Expect(String),
    /// Run by this test or script.
    RunBy(String),
    /// Excerpt of this file.
    From(String),
    /// Not run, for this reason.
    NotRun(String),
}

/// A fenced block.
#[derive(Clone, Debug)]
pub struct Block {
    /// Line of its fence.
    pub line: usize,
    /// Language after the fence; empty for output.
    pub language: String,
    /// Lines, without the indentation of the fence.
    pub text: String,
    /// Treatment according to the comment above.
    pub mark: Mark,
    /// SQL to run first, hidden from readers.
    pub before: Vec<String>,
    /// Block without a language directly below a block of SQL: its output, or part of it.
    pub output: Option<String>,
    /// Heading above it.
    pub heading: String,
}

impl Block {
    /// The test that runs it, if any.
    pub fn test(&self) -> Option<&str> {
        match &self.mark {
            Mark::RunBy(test) => Some(test),
            _ => None,
        }
    }
}

/// Runs statements one by one, each in its own transaction.
#[track_caller]
pub fn run_statements(session: &mut Session, sql: &str) {
    // No statement on the pages contains a semicolon.
    for statement in sql.split_inclusive(';') {
        if statement.contains(';') {
            session.run(statement);
        }
    }
}

/// A Markdown file.
pub struct Page {
    /// Path relative to the root of the sources.
    pub name: String,
    /// Absolute path.
    pub path: PathBuf,
    /// Contents.
    pub text: String,
}

impl Page {
    /// Reads a page, given its relative path.
    pub fn read(name: &str) -> Self {
        let path = root().join(name);
        let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"));
        Self {
            name: name.into(),
            path,
            text,
        }
    }

    /// All pages: in the root directory and in docs/.
    pub fn all() -> Vec<Self> {
        let mut names = Vec::new();
        for folder in ["", "docs/"] {
            for entry in fs::read_dir(root().join(folder)).unwrap() {
                let name = entry.unwrap().file_name().into_string().unwrap();
                if name.ends_with(".md") {
                    names.push(format!("{folder}{name}"));
                }
            }
        }
        names.sort();
        names.iter().map(|name| Self::read(name)).collect()
    }

    /// Fenced blocks.
    pub fn blocks(&self) -> Vec<Block> {
        blocks(&self.text).unwrap_or_else(|problem| panic!("{}: {problem}", self.name))
    }

    /// Lines outside of blocks, with their numbers.
    pub fn prose(&self) -> Vec<(usize, &str)> {
        let mut inside = false;
        let lines = (1..).zip(self.text.lines());
        lines
            .filter(|(_, line)| {
                let fence = line.trim_start().starts_with("```");
                inside ^= fence;
                !fence && !inside
            })
            .collect()
    }

    /// Texts of headings, without their markup.
    pub fn headings(&self) -> Vec<&str> {
        let lines = self.prose().into_iter();
        lines.filter_map(|(_, line)| heading(line)).collect()
    }

    /// Rows of the first table below a heading, without its header, by cell.
    pub fn table(&self, heading_above: &str) -> Vec<Vec<String>> {
        let lines = self.prose().into_iter().map(|(_, line)| line);
        let below = lines.skip_while(|line| heading(line) != Some(heading_above));
        let of_section = below.skip(1).take_while(|line| heading(line).is_none());
        let rows = of_section
            .skip_while(|line| !line.starts_with('|'))
            .take_while(|line| line.starts_with('|'));
        let rows = rows.skip(2).map(|row| {
            let row = row.trim().trim_start_matches('|').trim_end_matches('|');
            row.split('|').map(|cell| cell.trim().to_string()).collect()
        });
        rows.collect()
    }
}

/// Root directory of the sources.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#').strip_prefix(' ')?;
    line.starts_with('#').then_some(text)
}

/// Blocks of a text, or a problem with it.
fn blocks(text: &str) -> Result<Vec<Block>, String> {
    let mut found: Vec<Block> = Vec::new();
    let mut mark = Mark::Run;
    let mut before = Vec::new();
    let mut above = String::new();
    let mut lines = (1..).zip(text.lines());
    // True directly after the end of a block.
    let mut after_block = false;
    while let Some((number, line)) = lines.next() {
        let wrong = |what: &str| Err(format!("line {number}: {what}: {line}"));
        let trimmed = line.trim();
        if let Some(text) = heading(line) {
            above = text.into();
        }
        if let Some(comment) = trimmed.strip_prefix("<!-- test: ") {
            let Some(comment) = comment.strip_suffix(" -->") else {
                return wrong("the comment does not end");
            };
            match comment.split_once(' ') {
                Some(("before", sql)) => before.push(sql.into()),
                Some(("expect", state)) => mark = Mark::Expect(state.into()),
                Some(("from", path)) => mark = Mark::From(path.into()),
                Some(("run", by)) if by.starts_with("by ") => mark = Mark::RunBy(by[3..].into()),
                Some(("not", why)) if why.starts_with("run: ") => {
                    mark = Mark::NotRun(why[5..].into());
                }
                _ => return wrong("unknown comment"),
            }
        } else if let Some(language) = trimmed.strip_prefix("```") {
            let indentation = line.len() - line.trim_start().len();
            let mut body = String::new();
            loop {
                match lines.next() {
                    None => return wrong("the block does not end"),
                    Some((_, line)) if line.trim() == "```" => break,
                    Some((_, line)) => {
                        body += line.get(indentation..).unwrap_or_default();
                        body.push('\n');
                    }
                }
            }
            let code = !language.is_empty() && language != "text";
            match found.last_mut() {
                Some(sql) if after_block && language.is_empty() && sql.language == "sql" => {
                    sql.output = Some(body);
                }
                _ => found.push(Block {
                    line: number,
                    language: language.into(),
                    text: body,
                    mark: std::mem::replace(&mut mark, Mark::Run),
                    before: if code {
                        std::mem::take(&mut before)
                    } else {
                        Vec::new()
                    },
                    output: None,
                    heading: above.clone(),
                }),
            }
            after_block = true;
            continue;
        } else if !trimmed.is_empty() && mark != Mark::Run {
            return wrong("a comment for a block, and no block below it");
        }
        after_block = false;
    }
    if mark != Mark::Run || !before.is_empty() {
        return Err("a comment for a block, and no block below it".into());
    }
    Ok(found)
}

#[test]
fn blocks_are_found_with_what_is_said_of_them() {
    let text = "# A\n<!-- test: before CREATE ROLE r -->\nwords\n```sql\nSELECT 1;\n```\n```\n 1\n```\n\
                ## B\n<!-- test: expect 22023 -->\n- item\n";
    assert!(blocks(text).unwrap_err().contains("no block below"));
    let text = text.replace(
        "- item\n",
        "\n  ```sh\n  make a\n    b\n  ```\n```text\nx\n```\n",
    );
    let found = blocks(&text).unwrap();
    let [first, second, third] = &found[..] else {
        panic!("{found:?}");
    };
    assert_eq!(
        (first.line, &*first.text, &*first.heading),
        (4, "SELECT 1;\n", "A")
    );
    assert_eq!(first.before, ["CREATE ROLE r"]);
    assert_eq!(first.output.as_deref(), Some(" 1\n"));
    assert_eq!((&*second.language, &*second.text), ("sh", "make a\n  b\n"));
    assert_eq!(second.mark, Mark::Expect("22023".into()));
    assert_eq!((&*third.heading, &third.mark), ("B", &Mark::Run));
    for wrong in [
        "```sql\nSELECT",
        "<!-- test: skip -->\n",
        "<!-- test: before X -->\n",
    ] {
        blocks(wrong).unwrap_err();
    }
}
