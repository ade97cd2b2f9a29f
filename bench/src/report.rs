//! The report: measurements as Markdown, and all figures as JSON.

use std::path::Path;
use std::{fs, io};

use serde::Serialize;

use crate::figures::Series;
use crate::options::Options;
use crate::table::Table;
use crate::targets::{self, Measured, Target};

/// A section of the report.
pub struct Section {
    name: &'static str,
    title: &'static str,
    words: String,
    tables: Vec<Table>,
    measured: Vec<Measured>,
}

impl Section {
    /// A section without contents.
    pub fn new(name: &'static str, title: &'static str) -> Self {
        Self {
            name,
            title,
            words: String::new(),
            tables: Vec::new(),
            measured: Vec::new(),
        }
    }

    /// Sets the paragraph above the tables.
    pub fn say(&mut self, words: impl Into<String>) {
        self.words = words.into();
    }

    /// Adds a table.
    pub fn table(&mut self, table: Table) {
        self.tables.push(table);
    }

    /// Adds a figure of a target, which may have several cases.
    pub fn target(&mut self, target: Target, case: &str, rounds: Series) {
        let case = case.into();
        self.measured.push(Measured {
            target,
            case,
            rounds,
        });
    }
}

/// A cell of a table, in results.json.
#[derive(Serialize)]
struct Cell<'a> {
    section: &'a str,
    table: &'a str,
    row: &'a str,
    column: &'a str,
    rounds: &'a Series,
}

/// The complete report.
pub struct Report<'a> {
    options: &'a Options,
    /// Conditions of the measurements.
    circumstances: Vec<(String, String)>,
    /// In the order of execution.
    pub sections: Vec<Section>,
}

impl<'a> Report<'a> {
    /// A report without sections.
    pub fn new(options: &'a Options, circumstances: Vec<(String, String)>) -> Self {
        Self {
            options,
            circumstances,
            sections: Vec::new(),
        }
    }

    fn preface(&self) -> String {
        let rough = match self.options.quick {
            true => "This was a quick run: its figures are rough. ",
            false => "",
        };
        format!(
            "{rough}leaf_id beside what else issues ids in PostgreSQL, on private servers. In each \
             round the contenders run one after the other; a first round warms up and does not \
             count. Figures are medians of {} rounds, with the smallest and the largest in \
             parentheses. Ratios (×) are the medians of those within the rounds. The clients run \
             on the same processors as the servers.",
            self.options.rounds
        )
    }

    /// The report as Markdown.
    pub fn markdown(&self) -> String {
        let circumstances = self.circumstances.iter();
        let circumstances: String = circumstances
            .map(|(name, value)| format!("- {name}: {value}\n"))
            .collect();
        let sections = self.sections.iter();
        let measured: Vec<_> = sections.flat_map(|section| &section.measured).collect();
        let mut text = format!(
            "# leaf_id: benchmark\n\n{}\n\n{}- command: `{}`\n\n## Targets\n\n{}\n{}\n",
            self.preface(),
            circumstances,
            self.options.command,
            targets::markdown(&measured),
            "The medians decide. Within noise: the bound lies between the smallest and the \
             largest figure."
        );
        for section in &self.sections {
            text += &format!("\n## {}\n\n{}\n", section.title, section.words);
            for table in &section.tables {
                text += &format!("\n{}", table.markdown());
            }
        }
        text
    }

    /// Every figure of every round as JSON, a line for each cell of a table.
    fn json(&self) -> serde_json::Result<String> {
        let mut cells = Vec::new();
        for section in &self.sections {
            for table in &section.tables {
                for (row, column, rounds) in table.cells() {
                    cells.push(serde_json::to_string(&Cell {
                        section: section.name,
                        table: &table.title,
                        row,
                        column,
                        rounds,
                    })?);
                }
            }
        }
        Ok(format!("[\n{}\n]\n", cells.join(",\n")))
    }

    /// Writes report.md and results.json.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        fs::write(directory.join("report.md"), self.markdown())?;
        fs::write(directory.join("results.json"), self.json()?)
    }
}
