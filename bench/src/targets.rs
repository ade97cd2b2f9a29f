//! What leaf_id is meant to reach, and whether it does.

use serde::Serialize;

use crate::figures::Series;
use crate::table::{Table, number, spread};

/// What was promised. The order is that of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Target {
    /// One session, a constant tag.
    ConstantTag,
    /// One session, the tag from a column.
    ColumnTag,
    /// Many ids by one call.
    Blocks,
    /// Snowflake ids, below and at their ceiling.
    Snowflake,
    /// Eight sessions on one tag.
    Sessions,
    /// One tag, eight sessions against one.
    NeverFewer,
    /// One row in one statement.
    OneRow,
    /// Many rows in one statement.
    Bulk,
    /// The WAL of whoever takes ids.
    Wal,
    /// Steady load with slow claims.
    SteadyLoad,
    /// Full speed from the first id.
    FromCold,
    /// Very many tags.
    ManyTags,
    /// The first id of a server or a tag.
    FirstId,
}

impl Target {
    const ALL: [(Self, &str); 13] = [
        (
            Self::ConstantTag,
            "leaf_segment_next, constant tag, net: ≤ 8 ns, and ≤ 1/4 of nextval CACHE 1000",
        ),
        (
            Self::ColumnTag,
            "tag from a column, 1,000 tags, net: ≤ 25 ns",
        ),
        (
            Self::Blocks,
            "range: ≤ 1 ns per id; batch: within 20 % of generate_series",
        ),
        (
            Self::Snowflake,
            "leaf_snowflake_next, below the ceiling, net: ≤ 35 ns; ≥ 98 % of the ceiling at 1 and at 64 sessions",
        ),
        (
            Self::Sessions,
            "one tag, 8 sessions, together: ≥ 4 × nextval CACHE 1, ≥ nextval CACHE 1000",
        ),
        (
            Self::NeverFewer,
            "one tag, 8 sessions against 1: never fewer ids per second",
        ),
        (
            Self::OneRow,
            "one-row prepared SELECT and INSERT: no slower than nextval CACHE 1",
        ),
        (
            Self::Bulk,
            "INSERT ... SELECT and COPY with DEFAULT: ≤ 0.95 of serial's time",
        ),
        (Self::Wal, "the caller's WAL bytes and syncs: 0"),
        (
            Self::SteadyLoad,
            "steady load, claims of 20 ms, after warm-up: 0 waits",
        ),
        (
            Self::FromCold,
            "from cold at full speed (step 1000): all waits together < 100 ms until the step has grown",
        ),
        (
            Self::ManyTags,
            "100,000 tags: ≤ 2 × the cost of 10 tags; ≤ 512 bytes of shared memory a tag",
        ),
        (
            Self::FirstId,
            "first id: ≤ 50 ms after server start, ≤ 20 ms of a new tag",
        ),
    ];
}

/// Where the measured figure has to lie.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
}

/// One figure against one bound.
pub struct Check {
    /// The target that it belongs to.
    pub target: Target,
    /// What the figure is.
    pub what: String,
    /// What was measured; its median is judged.
    pub measured: Series,
    /// Digits after the point, and the unit.
    pub shown: (usize, &'static str),
    /// What it must reach.
    pub bound: Bound,
}

/// A check and its result, for results.json.
#[derive(Serialize)]
pub struct Judged<'a> {
    target: Target,
    what: &'a str,
    measured: &'a Series,
    median: f64,
    bound: String,
    met: bool,
}

const JUDGED: &str = "Judged by the median of the rounds.";

impl Check {
    fn figures(&self) -> String {
        let (digits, unit) = self.shown;
        let figures = spread(&self.measured, digits);
        format!("{figures} {unit}").trim_end().into()
    }

    /// Nothing takes less than no time: then the noise was larger than what was measured.
    fn is_noise(&self) -> bool {
        self.measured.median() < 0.0
    }

    fn met(&self) -> bool {
        let median = self.measured.median();
        match self.bound {
            Bound::AtMost(bound) => median <= bound && !self.is_noise(),
            Bound::AtLeast(bound) => median >= bound,
        }
    }

    fn bound(&self) -> String {
        let (digits, unit) = self.shown;
        let (sign, bound) = match self.bound {
            Bound::AtMost(bound) => ("≤", bound),
            Bound::AtLeast(bound) => ("≥", bound),
        };
        format!("{sign} {} {unit}", number(bound, digits))
            .trim_end()
            .into()
    }

    /// Met or missed, and by how much.
    fn verdict(&self) -> String {
        let (Bound::AtMost(bound) | Bound::AtLeast(bound)) = self.bound;
        let (digits, unit) = self.shown;
        let away = (self.measured.median() - bound).abs();
        let by = if bound == 0.0 {
            format!("{} {unit}", number(away, digits))
        } else {
            format!("{} %", number(away / bound * 100.0, 0))
        };
        if self.is_noise() {
            "NOISE: below zero".into()
        } else if !self.met() {
            format!("MISSED by {}", by.trim_end())
        } else if away == 0.0 {
            "met".into()
        } else {
            format!("met by {}", by.trim_end())
        }
    }

    /// For results.json.
    #[must_use]
    pub fn judged(&self) -> Judged<'_> {
        Judged {
            target: self.target,
            what: &self.what,
            measured: &self.measured,
            median: self.measured.median(),
            bound: self.bound(),
            met: self.met(),
        }
    }
}

/// Every target with what was measured, as Markdown; those that were not measured too.
#[must_use]
pub fn markdown(checks: &[&Check]) -> String {
    let columns = ["target", "measured", "median (min .. max)", "bound", ""];
    let mut table = Table::new(JUDGED, &columns).words(&[1, 2, 3, 4]);
    for (target, promise) in Target::ALL {
        let mut promise = promise;
        for check in checks.iter().filter(|check| check.target == target) {
            table.row(vec![
                promise.into(),
                check.what.clone(),
                check.figures(),
                check.bound(),
                check.verdict(),
            ]);
            promise = "";
        }
        if !promise.is_empty() {
            let nothing = ["-", "-", "-", "not measured"].map(String::from);
            table.row([vec![promise.into()], nothing.to_vec()].concat());
        }
    }
    table.markdown()
}

/// The same as plain text.
#[must_use]
pub fn text(checks: &[&Check]) -> String {
    let mut text = format!("{JUDGED}\n");
    for (target, promise) in Target::ALL {
        text += &format!("\n{promise}\n");
        let mut own = checks
            .iter()
            .filter(|check| check.target == target)
            .peekable();
        if own.peek().is_none() {
            text += "  not measured\n";
        }
        for check in own {
            text += &format!(
                "  {:18} {}: {}, bound {}\n",
                check.verdict(),
                check.what,
                check.figures(),
                check.bound()
            );
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(figure: f64, bound: Bound) -> String {
        Check {
            target: Target::Wal,
            what: String::new(),
            measured: Series::new(vec![figure]),
            shown: (1, "ns"),
            bound,
        }
        .verdict()
    }

    #[test]
    fn a_verdict_says_by_how_much() {
        assert_eq!(verdict(6.0, Bound::AtMost(8.0)), "met by 25 %");
        assert_eq!(verdict(10.0, Bound::AtMost(8.0)), "MISSED by 25 %");
        assert_eq!(verdict(3.0, Bound::AtLeast(4.0)), "MISSED by 25 %");
        assert_eq!(verdict(5.0, Bound::AtLeast(4.0)), "met by 25 %");
        assert_eq!(verdict(0.0, Bound::AtMost(0.0)), "met");
        assert_eq!(verdict(3.0, Bound::AtMost(0.0)), "MISSED by 3.0 ns");
        assert_eq!(verdict(-3.0, Bound::AtMost(8.0)), "NOISE: below zero");
    }
}
