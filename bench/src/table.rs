//! Tables, as aligned text and as Markdown.

use crate::figures::{Series, number, range};

/// A table; the first column is text, the others are figures.
#[derive(Clone, Debug)]
pub struct Table {
    /// Printed above it.
    pub title: String,
    columns: Vec<String>,
    rows: Vec<Vec<String>>,
    /// Columns that hold text.
    words: Vec<usize>,
}

/// A contender in a comparison.
pub struct Row<'a> {
    /// Its name.
    pub label: &'a str,
    /// Its figures.
    pub series: &'a Series,
}

impl Table {
    /// Empty.
    #[must_use]
    pub fn new(title: impl Into<String>, columns: &[&str]) -> Self {
        Self {
            title: title.into(),
            columns: columns.iter().map(|&column| column.into()).collect(),
            rows: Vec::new(),
            words: vec![0],
        }
    }

    /// Makes these columns hold text too.
    #[must_use]
    pub fn words(mut self, columns: &[usize]) -> Self {
        self.words.extend(columns);
        self
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "cells of {}", self.title);
        self.rows.push(cells);
    }

    /// Ratios to the row called `base`, computed within the rounds, then the figures
    /// themselves.
    #[must_use]
    pub fn comparison(
        title: impl Into<String>,
        unit: &str,
        digits: usize,
        base: &str,
        rows: &[Row],
    ) -> Self {
        let ratio = format!("× {base}");
        let mut table = Self::new(title, &["", &ratio, "min .. max", unit, "min .. max"]);
        let base = rows.iter().find(|row| row.label == base);
        for row in rows {
            let (median, range) = base.map_or_else(
                || ("-".into(), "-".into()),
                |base| {
                    let ratio = row.series.over(base.series);
                    (number(ratio.median(), 2), range(&ratio, 2))
                },
            );
            table.row(vec![
                row.label.into(),
                median,
                range,
                number(row.series.median(), digits),
                self::range(row.series, digits),
            ]);
        }
        table
    }

    /// As aligned text.
    #[must_use]
    pub fn text(&self) -> String {
        let widths: Vec<_> = (0..self.columns.len())
            .map(|column| {
                let cells = self.rows.iter().map(|row| width(&row[column]));
                cells.max().unwrap_or(0).max(width(&self.columns[column]))
            })
            .collect();
        let line = |cells: &[String]| {
            let mut line = String::from("  ");
            for (column, cell) in cells.iter().enumerate() {
                let gap = " ".repeat(widths[column] - width(cell));
                if self.words.contains(&column) {
                    line += &format!("{cell}{gap}  ");
                } else {
                    line += &format!("{gap}{cell}  ");
                }
            }
            line.trim_end().to_owned() + "\n"
        };
        let rule = "-".repeat(widths.iter().sum::<usize>() + 2 * (widths.len() - 1));
        let mut text = format!("{}\n\n{}  {rule}\n", self.title, line(&self.columns));
        for row in &self.rows {
            text += &line(row);
        }
        text
    }

    /// As Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        let line = |cells: &[String]| {
            let cells: Vec<_> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule: Vec<_> = (0..self.columns.len())
            .map(|column| {
                if self.words.contains(&column) {
                    "---"
                } else {
                    "---:"
                }
                .into()
            })
            .collect();
        let mut text = format!(
            "**{}**\n\n{}{}",
            self.title,
            line(&self.columns),
            line(&rule)
        );
        for row in &self.rows {
            text += &line(row);
        }
        text
    }
}

fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comparison_divides_within_the_rounds() {
        let slow = Series::new(vec![10.0, 100.0, 20.0]);
        let fast = Series::new(vec![5.0, 50.0, 5.0]);
        let rows = [
            Row {
                label: "slow",
                series: &slow,
            },
            Row {
                label: "fast",
                series: &fast,
            },
        ];
        let table = Table::comparison("t", "ns", 0, "slow", &rows);
        assert_eq!(
            table.rows[1],
            ["fast", "0.50", "0.25 .. 0.50", "5", "5 .. 50"]
        );
        assert!(
            table.markdown().contains("| fast | 0.50 |"),
            "{}",
            table.markdown()
        );
    }
}
