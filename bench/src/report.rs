//! What was measured: sections of text, tables and charts, and all figures beside them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;
use serde_json::to_string as json;

use crate::chart::Chart;
use crate::figures::{Series, Unmeasured};
use crate::options::Options;
use crate::table::Table;
use crate::targets::{self, Check};

/// The longest line of plain text.
const LINE: usize = 92;

/// A part of a section.
enum Block {
    Words(String),
    Table(Table),
    Chart(Chart),
}

/// All figures of one contender in one comparison.
#[derive(Serialize)]
struct Measured {
    section: &'static str,
    what: String,
    contender: String,
    /// By their units.
    rounds: BTreeMap<String, Series>,
}

/// A section of the report.
#[derive(Default)]
pub struct Section {
    name: &'static str,
    title: &'static str,
    blocks: Vec<Block>,
    measured: Vec<Measured>,
    checks: Vec<Check>,
    failure: Option<String>,
    /// Something could not be measured here.
    partial: bool,
}

impl Section {
    /// Empty.
    #[must_use]
    pub fn new(name: &'static str, title: &'static str) -> Self {
        Self {
            name,
            title,
            ..Self::default()
        }
    }

    /// Adds a paragraph.
    pub fn say(&mut self, words: impl AsRef<str>) {
        let words: Vec<_> = words.as_ref().split_whitespace().collect();
        self.blocks.push(Block::Words(words.join(" ")));
    }

    /// Adds a table.
    pub fn table(&mut self, table: Table) {
        self.blocks.push(Block::Table(table));
    }

    /// Adds a chart.
    pub fn chart(&mut self, chart: Chart) {
        self.blocks.push(Block::Chart(chart));
    }

    /// Keeps figures for results.json.
    pub fn keep(&mut self, what: &str, contender: &str, unit: &str, rounds: &Series) {
        let known = self
            .measured
            .iter()
            .position(|known| known.what == what && known.contender == contender);
        let place = known.unwrap_or_else(|| {
            self.measured.push(Measured {
                section: self.name,
                what: what.into(),
                contender: contender.into(),
                rounds: BTreeMap::new(),
            });
            self.measured.len() - 1
        });
        self.measured[place]
            .rounds
            .insert(unit.into(), rounds.clone());
    }

    /// Compares what was measured with a target.
    pub fn check(&mut self, check: Check) {
        self.checks.push(check);
    }

    /// Measures something that may be impossible here: then the report says so.
    pub fn attempt(
        &mut self,
        what: &str,
        measure: impl FnOnce(&mut Self) -> Result<(), Unmeasured>,
    ) {
        if let Err(Unmeasured(why)) = measure(self) {
            self.say(format!("Not measured: {what}: {why}"));
            self.partial = true;
        }
    }

    /// The section could not be finished.
    pub fn fail(&mut self, why: String) {
        self.failure = Some(why);
    }
}

/// All of it.
pub struct Report {
    /// Name and value, in the order in which they are printed.
    pub settings: Vec<(String, String)>,
    /// In the order in which they ran.
    pub sections: Vec<Section>,
    rounds: usize,
    quick: bool,
    command: String,
}

impl Report {
    /// Empty.
    #[must_use]
    pub fn new(options: &Options, settings: Vec<(String, String)>) -> Self {
        Self {
            settings,
            sections: Vec::new(),
            rounds: options.rounds,
            quick: options.quick,
            command: options.command.clone(),
        }
    }

    /// Whether leaf_id, or the bench itself, failed anywhere.
    #[must_use]
    pub fn failed(&self) -> bool {
        self.sections
            .iter()
            .any(|section| section.failure.is_some())
    }

    /// Whether everything was measured.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.sections.iter().all(|section| !section.partial)
    }

    fn checks(&self) -> Vec<&Check> {
        let checks = self.sections.iter().flat_map(|section| &section.checks);
        checks.collect()
    }

    fn preface(&self) -> String {
        let rough = if self.quick {
            "This was a quick run: it shows that everything works; its figures are rough. "
        } else {
            ""
        };
        let processors = std::thread::available_parallelism().map_or(0, usize::from);
        format!(
            "{rough}leaf_id issues 64-bit ids to the sessions of a PostgreSQL server from \
             shared memory: leaf_segment_next takes them from segments that a background \
             worker claims in a table, leaf_snowflake_next builds them from the time. \
             They are compared with what PostgreSQL has: nextval of a sequence with CACHE \
             1 (the default), 32 and 1000, identity columns, and random UUIDs. In each \
             round the contenders run one after the other; a first round warms up and \
             does not count (the section on latency has none). Figures are medians of {} \
             rounds with the smallest and the largest, unless a table says otherwise. \
             Ratios are computed within each round, before the median: for times, smaller \
             is better; for ids or statements per second, larger is. \"Net\" means less \
             the cost of a call that does nothing (a C function that returns a constant) \
             in the same statement of the same round. The servers are private to the \
             bench, on this machine, with autovacuum off, and are reached through Unix \
             sockets; the clients share its {processors} processors, so runs with many \
             sessions show how sessions share processors more than how they contend for \
             memory.",
            self.rounds
        )
    }

    /// As plain text.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = heading("leaf_id: benchmark", '=');
        text += &wrapped(&self.preface());
        text += &format!("\nTo repeat it: {}\n\n", self.command);
        let names = self.settings.iter().map(|(name, _)| name.chars().count());
        let width = names.max().unwrap_or(0);
        for (name, value) in &self.settings {
            text += &format!("  {name:width$}  {value}\n");
        }
        text += &format!(
            "\n\n{}{}",
            heading("Targets", '-'),
            targets::text(&self.checks())
        );
        for section in &self.sections {
            text += &format!("\n\n{}", heading(section.title, '-'));
            for block in &section.blocks {
                text += &match block {
                    Block::Words(words) => wrapped(words),
                    Block::Table(table) => table.text(),
                    Block::Chart(_) => continue,
                };
                text.push('\n');
            }
            if let Some(why) = &section.failure {
                text += &format!("FAILED: {why}\n");
            }
        }
        text
    }

    /// As Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut text = format!(
            "# leaf_id: benchmark\n\n{}\n\nTo repeat it:\n\n```sh\n{}\n```\n\n| setting | value |\n| --- | --- |\n",
            self.preface(),
            self.command
        );
        for (name, value) in &self.settings {
            text += &format!("| {name} | {value} |\n");
        }
        text += &format!("\n## Targets\n\n{}", targets::markdown(&self.checks()));
        for section in &self.sections {
            text += &format!("\n## {}\n", section.title);
            for block in &section.blocks {
                text += &match block {
                    Block::Words(words) => format!("\n{words}\n"),
                    Block::Table(table) => format!("\n{}", table.markdown()),
                    Block::Chart(chart) => format!("\n![{}]({})\n", chart.title, chart.file),
                };
            }
            if let Some(why) = &section.failure {
                text += &format!("\n**FAILED:**\n\n```\n{why}\n```\n");
            }
        }
        text
    }

    /// Every figure of every round, as JSON: a line for each setting, and for each contender
    /// in a comparison.
    fn results(&self) -> serde_json::Result<String> {
        let settings: Result<Vec<_>, _> = self
            .settings
            .iter()
            .map(|(name, value)| Ok(format!("{}: {}", json(name)?, json(value)?)))
            .collect();
        let measured = self.sections.iter().flat_map(|section| &section.measured);
        let figures: Result<Vec<_>, _> = measured.map(json).collect();
        Ok(format!(
            "{{\n\"command\": {},\n\"settings\": {{\n{}\n}},\n\"figures\": [\n{}\n]\n}}\n",
            json(&self.command)?,
            settings?.join(",\n"),
            figures?.join(",\n")
        ))
    }

    /// Writes the report, the figures and the charts.
    ///
    /// # Errors
    /// That of the file system, or of a chart.
    pub fn write(&self, dir: &Path) -> io::Result<()> {
        fs::create_dir_all(dir)?;
        fs::write(dir.join("report.md"), self.markdown())?;
        fs::write(dir.join("results.json"), self.results()?)?;
        for block in self.sections.iter().flat_map(|section| &section.blocks) {
            if let Block::Chart(chart) = block {
                chart.draw(dir).map_err(io::Error::other)?;
            }
        }
        Ok(())
    }
}

fn heading(title: &str, line: char) -> String {
    let rule: String = title.chars().map(|_| line).collect();
    format!("{title}\n{rule}\n\n")
}

fn wrapped(words: &str) -> String {
    let mut text = String::new();
    let mut length = 0;
    for word in words.split(' ') {
        let width = word.chars().count();
        if length > 0 && length + 1 + width > LINE {
            text.push('\n');
            length = 0;
        } else if length > 0 {
            text.push(' ');
            length += 1;
        }
        text += word;
        length += width;
    }
    text + "\n"
}
