//! The report: measurements as Markdown, all figures as JSON, and plots of some.

use std::io::ErrorKind;
use std::path::Path;
use std::{fs, io};

use serde::Serialize;

use crate::figures::Series;
use crate::options::Options;
use crate::plot::{self, Plot};
use crate::table::Table;
use crate::targets::{self, Measured, Target};

/// A section of the report.
pub struct Section {
    name: &'static str,
    title: &'static str,
    words: String,
    tables: Vec<Table>,
    plots: Vec<Plot>,
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
            plots: Vec::new(),
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

    /// Adds a plot.
    pub fn plot(&mut self, plot: Plot) {
        self.plots.push(plot);
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

    /// Lines below a plot, which is shown without the report.
    fn notes(&self) -> [String; 2] {
        let of = |name| {
            let mut all = self.circumstances.iter();
            let own = all.find(|(own, _)| own == name);
            own.map_or("unknown", |(_, value)| value)
        };
        let medians = match self.options.quick {
            true => "Rough medians",
            false => "Medians",
        };
        // The package's version follows in parentheses.
        let version = of("PostgreSQL").split(" (").next().unwrap_or_default();
        [
            format!(
                "{medians} of {} rounds, thin lines from the smallest to the largest; clients on \
                 the server's processors.",
                self.options.rounds
            ),
            format!(
                "PostgreSQL {version}; processors: {}; {}",
                of("processors"),
                of("day")
            ),
        ]
    }

    /// Writes report.md, results.json and the plots. A plot that is not in this report is removed,
    /// since it would be of another run.
    pub fn write(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir_all(directory)?;
        fs::write(directory.join("report.md"), self.markdown())?;
        fs::write(directory.join("results.json"), self.json()?)?;
        for file in plot::FILES {
            let mut plots = self.sections.iter().flat_map(|section| &section.plots);
            let plot = plots.find(|plot| plot.file == file);
            let path = directory.join(file);
            match plot.and_then(|plot| plot.svg(&self.notes())) {
                Some(svg) => fs::write(path, svg)?,
                None => match fs::remove_file(path) {
                    Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                    _ => {}
                },
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plot::Shape;

    #[test]
    fn a_plot_of_another_run_is_removed() -> io::Result<()> {
        let directory = std::env::temp_dir().join(format!("leaf_id_bench_{}", std::process::id()));
        let options = Options {
            sections: Vec::new(),
            quick: true,
            rounds: 1,
            results: directory.clone(),
            publish: false,
            command: String::new(),
        };
        let mut report = Report::new(&options, Vec::new());
        let mut section = Section::new("bulk", "COPY");
        section.plot(Plot {
            file: plot::COPY,
            title: String::new(),
            unit: "rows",
            shape: Shape::Bars,
            rows: vec![("nextval", vec![vec![1.0].into()])],
        });
        report.sections.push(section);
        let is_there = || plot::FILES.map(|file| directory.join(file).exists());
        report.write(&directory)?;
        assert_eq!(is_there(), [false, true]);
        report.sections.clear();
        report.write(&directory)?;
        assert_eq!(is_there(), [false, false]);
        fs::remove_dir_all(&directory)
    }
}
