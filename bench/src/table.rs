//! Markdown tables, padded to be legible as plain text, too.

use crate::figures::{Series, number};

/// Rows of text. The first column is left-aligned, the others right-aligned.
pub struct Grid(Vec<Vec<String>>);

impl Grid {
    /// A grid with these headings.
    pub fn new(columns: &[&str]) -> Self {
        Self(vec![columns.iter().map(|&name| name.into()).collect()])
    }

    /// Adds a row.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.0[0].len(), "cells of a row");
        self.0.push(cells);
    }

    /// The text.
    pub fn markdown(&self) -> String {
        let width = |column: usize| {
            let cells = self.0.iter().map(|row| row[column].chars().count());
            cells.max().unwrap_or(0).max(3)
        };
        let widths: Vec<_> = (0..self.0[0].len()).map(width).collect();
        let line = |row: &Vec<String>| {
            let mut line = format!("| {:w$} |", row[0], w = widths[0]);
            for (cell, width) in row.iter().zip(&widths).skip(1) {
                line += &format!(" {cell:>width$} |");
            }
            line + "\n"
        };
        let mut rule = format!("| {} |", "-".repeat(widths[0]));
        for width in &widths[1..] {
            rule += &format!(" {}: |", "-".repeat(width - 1));
        }
        let mut text = line(&self.0[0]) + &rule + "\n";
        text.extend(self.0[1..].iter().map(line));
        text
    }
}

/// Figures of contenders.
pub struct Table {
    /// Quantity and unit.
    pub title: String,
    /// Names, and digits after the decimal point.
    columns: Vec<(String, usize)>,
    /// Row that others are compared with.
    base: Option<&'static str>,
    /// Names, and figures of the columns.
    rows: Vec<(String, Vec<Series>)>,
    /// Names of contenders that could not be measured.
    absent: Vec<String>,
}

impl Table {
    /// A table with these columns, given with their digits after the decimal point.
    pub fn new(title: impl Into<String>, columns: &[(&str, usize)]) -> Self {
        let columns = columns.iter();
        Self {
            title: title.into(),
            columns: columns
                .map(|(name, digits)| ((*name).into(), *digits))
                .collect(),
            base: None,
            rows: Vec::new(),
            absent: Vec::new(),
        }
    }

    /// Shows ratios to this row, too.
    pub fn compared_with(self, base: &'static str) -> Self {
        Self {
            base: Some(base),
            ..self
        }
    }

    /// Adds a row.
    pub fn row(&mut self, label: impl Into<String>, figures: impl Into<Vec<Series>>) {
        let (label, figures) = (label.into(), figures.into());
        assert_eq!(figures.len(), self.columns.len(), "figures of {label}");
        self.rows.push((label, figures));
    }

    /// Adds rows without figures.
    pub fn absent(&mut self, labels: Vec<String>) {
        self.absent.extend(labels);
    }

    /// Figures of an existing row in a column.
    pub fn of(&self, label: &str, column: usize) -> &Series {
        let row = self.rows.iter().find(|(own, _)| own == label);
        let (_, figures) = row.unwrap_or_else(|| panic!("no {label} in {}", self.title));
        &figures[column]
    }

    /// Row, column and figures of each non-empty cell.
    pub fn cells(&self) -> impl Iterator<Item = (&str, &str, &Series)> {
        let rows = self.rows.iter();
        rows.flat_map(|(label, figures)| {
            let cells = self.columns.iter().zip(figures);
            cells.map(move |((column, _), series)| (label.as_str(), column.as_str(), series))
        })
        .filter(|(.., series)| !series.median().is_nan())
    }

    /// The text.
    pub fn markdown(&self) -> String {
        let mut columns = vec![""];
        columns.extend(self.columns.iter().map(|(name, _)| name.as_str()));
        let mut grid = Grid::new(&columns);
        for (label, figures) in &self.rows {
            let mut row = vec![label.clone()];
            for (column, series) in figures.iter().enumerate() {
                let mut cell = series.text(self.columns[column].1);
                let base = self.base.filter(|base| base != label);
                let ratio = base.map(|base| series.over(self.of(base, column)).median());
                if let Some(ratio) = ratio.filter(|ratio| !ratio.is_nan()) {
                    cell += &format!(", {} ×", number(ratio, 2));
                }
                row.push(cell);
            }
            grid.row(row);
        }
        for label in &self.absent {
            let mut row = vec!["-".to_owned(); columns.len()];
            row[0].clone_from(label);
            grid.row(row);
        }
        let compared = self
            .base
            .map_or(String::new(), |base| format!("; × {base}"));
        format!("**{}{compared}**\n\n{}", self.title, grid.markdown())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_divides_within_the_rounds_and_is_aligned() {
        let mut table = Table::new("Time", &[("ns", 0)]).compared_with("slow");
        table.row("slow", [vec![10.0, 100.0, 20.0].into()]);
        table.row("fast", [vec![5.0, 50.0, 5.0].into()]);
        table.row("none", [vec![f64::NAN; 3].into()]);
        table.absent(vec!["other: not measured".into()]);
        let expected = "\
**Time; × slow**

|                     |                  ns |
| ------------------- | ------------------: |
| slow                |      20 (10 .. 100) |
| fast                | 5 (5 .. 50), 0.50 × |
| none                |                   - |
| other: not measured |                   - |
";
        assert_eq!(table.markdown(), expected);
        assert_eq!(table.cells().count(), 2);
    }
}
