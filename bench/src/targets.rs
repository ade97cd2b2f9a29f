//! Performance targets, and their evaluation.

use crate::figures::{Series, number};
use crate::table::Grid;

/// Targets, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// One session, a constant tag.
    ConstantTag,
    /// One session, the tag from a column.
    ColumnTag,
    /// The same with more tags than fit in the processor's cache.
    ManyTags,
    /// Many ids by one call.
    Range,
    /// Ids of an opaque tag.
    Opaque,
    /// Snowflake ids that do not wait for the clock.
    BelowCeiling,
    /// Snowflake ids at the maximum rate of their layout.
    Ceiling,
    /// Many rows by COPY.
    Copy,
    /// One row by INSERT.
    Insert,
}

/// Bound of a figure.
#[derive(Clone, Copy, Debug)]
enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

use Bound::{AtLeast, AtMost};

/// Bounds of the targets, digits after the decimal point, and units.
const ALL: [(Target, &str, Bound, usize, &str); 9] = [
    (
        Target::ConstantTag,
        "constant tag, beyond an atomic addition",
        AtMost(3.0),
        1,
        "ns",
    ),
    (
        Target::ColumnTag,
        "tag from a column, 1,000 tags",
        AtMost(25.0),
        1,
        "ns",
    ),
    (
        Target::ManyTags,
        "tag from a column, 100,000 tags, relative to two dependent cache misses",
        AtMost(1.3),
        2,
        "×",
    ),
    (Target::Range, "an id of a range", AtMost(1.0), 2, "ns"),
    (Target::Opaque, "an opaque id", AtMost(250.0), 0, "ns"),
    (
        Target::BelowCeiling,
        "snowflake id below the ceiling",
        AtMost(35.0),
        1,
        "ns",
    ),
    (
        Target::Ceiling,
        "snowflake ids, of the ceiling",
        AtLeast(98.0),
        1,
        "%",
    ),
    (
        Target::Copy,
        "COPY with a primary key, time relative to serial's",
        AtMost(0.8),
        2,
        "×",
    ),
    (
        Target::Insert,
        "one row, statements/s relative to serial's",
        AtLeast(1.0),
        2,
        "×",
    ),
];

/// A figure for a target.
pub struct Measured {
    /// The target.
    pub target: Target,
    /// Distinguishes figures of the same target.
    pub case: String,
    /// All rounds.
    pub rounds: Series,
}

/// Evaluates the median of the rounds.
fn result(rounds: &Series, bound: Bound) -> String {
    let median = rounds.median();
    let (met, bound) = match bound {
        AtMost(bound) => (median <= bound, bound),
        AtLeast(bound) => (median >= bound, bound),
    };
    let by = number((median - bound).abs() / bound * 100.0, 0);
    let result = match met {
        true => "met".into(),
        false => format!("MISSED by {by} %"),
    };
    if rounds.min() < bound && bound < rounds.max() {
        result + ", within noise"
    } else {
        result
    }
}

/// Table of all targets, including those not measured.
pub fn markdown(measured: &[&Measured]) -> String {
    let mut grid = Grid::new(&["target", "bound", "measured", "result"]);
    for (target, what, bound, digits, unit) in ALL {
        let bound_text = match bound {
            AtMost(figure) => format!("≤ {} {unit}", number(figure, digits)),
            AtLeast(figure) => format!("≥ {} {unit}", number(figure, digits)),
        };
        let own: Vec<_> = measured.iter().filter(|own| own.target == target).collect();
        if own.is_empty() {
            let row = [what, &bound_text, "-", "not measured"];
            grid.row(row.map(String::from).into());
        }
        for own in own {
            let what = [what, &own.case].join(if own.case.is_empty() { "" } else { ", " });
            let figures = own.rounds.text(digits);
            let result = result(&own.rounds, bound);
            grid.row(vec![what, bound_text.clone(), figures, result]);
        }
    }
    grid.markdown()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rounds: &[f64], bound: Bound) -> String {
        result(&Series::from(rounds.to_vec()), bound)
    }

    #[test]
    fn a_result_says_by_how_much() {
        assert_eq!(of(&[6.0], AtMost(8.0)), "met");
        assert_eq!(of(&[10.0], AtMost(8.0)), "MISSED by 25 %");
        assert_eq!(of(&[3.0], AtLeast(4.0)), "MISSED by 25 %");
        assert_eq!(of(&[4.0], AtLeast(4.0)), "met");
    }

    #[test]
    fn a_bound_between_the_rounds_is_within_noise() {
        assert_eq!(of(&[90.0, 99.0, 101.0], AtMost(100.0)), "met, within noise");
        assert_eq!(
            of(&[90.0, 102.0, 103.0], AtMost(100.0)),
            "MISSED by 2 %, within noise"
        );
        assert_eq!(of(&[90.0, 95.0, 100.0], AtMost(100.0)), "met");
    }

    #[test]
    fn a_target_without_a_figure_keeps_its_row() {
        let range = Measured {
            target: Target::Range,
            case: String::new(),
            rounds: vec![0.5].into(),
        };
        let table = markdown(&[&range]);
        assert_eq!(table.matches("not measured").count(), ALL.len() - 1);
        assert!(table.contains("0.50 (0.50 .. 0.50)"), "{table}");
    }
}
