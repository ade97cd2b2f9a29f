//! The targets, and whether they are met.

use crate::figures::{Series, number, spread};
use crate::table::Table;

/// What is to be met, in the order of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    /// The WAL of the caller.
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
            "one tag, 8 sessions, ids per second in total: ≥ 4 × nextval CACHE 1, ≥ \
             nextval CACHE 1000",
        ),
        (
            Self::NeverFewer,
            "one tag, 8 sessions compared with 1: never fewer ids per second",
        ),
        (
            Self::OneRow,
            "one-row prepared SELECT and INSERT: no slower than nextval CACHE 1",
        ),
        (
            Self::Bulk,
            "DEFAULT, relative to serial: INSERT ... SELECT ≤ 0.95 of the time; COPY ≤ 0.85, and ≤ 1 of the WAL",
        ),
        (Self::Wal, "the caller's WAL bytes and syncs: 0"),
        (
            Self::SteadyLoad,
            "steady load, claims of 20 ms, after warm-up: 0 waits",
        ),
        (
            Self::FromCold,
            "from a cold start at full speed (step 1000): waits < 100 ms in total until \
             the step has grown",
        ),
        (
            Self::ManyTags,
            "100,000 tags: ≤ 2 × the cost of 10 tags; ≤ 512 bytes of shared memory per tag",
        ),
        (
            Self::FirstId,
            "first id: ≤ 50 ms after server start, ≤ 20 ms for a new tag",
        ),
    ];

    /// Whether one bad round misses the target.
    fn by_worst(self) -> bool {
        matches!(self, Self::SteadyLoad | Self::NeverFewer)
    }
}

/// What the measured figure must reach.
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
    /// What was measured; [`Target::by_worst`] says which round decides.
    pub measured: Series,
    /// Digits after the point, and the unit.
    pub shown: (usize, &'static str),
    /// What it must reach.
    pub bound: Bound,
    /// Why no more can be reached, or why nothing was measured. Printed below a target that is
    /// missed or was not measured.
    pub limit: Option<String>,
}

const RULE: &str = "The median of the rounds decides; for \"0 waits\" and \"never fewer\", the worst \
     round does.";
const NOISE: &str =
    "Within noise: the bound lies between the smallest and the largest figure of the rounds.";

impl Check {
    /// A row without a figure.
    #[must_use]
    pub fn not_measured(target: Target, what: &str, bound: Bound, why: &str) -> Self {
        Self {
            target,
            what: what.into(),
            measured: Series::new(vec![f64::NAN]),
            shown: (0, ""),
            bound,
            limit: Some(why.into()),
        }
    }

    fn is_measured(&self) -> bool {
        !self.measured.median().is_nan()
    }

    fn figures(&self) -> String {
        if !self.is_measured() {
            return "-".into();
        }
        let (digits, unit) = self.shown;
        let figures = spread(&self.measured, digits);
        format!("{figures} {unit}").trim_end().into()
    }

    /// A negative time means that the noise was larger than what was measured.
    fn is_noise(&self) -> bool {
        self.measured.median() < 0.0
    }

    /// The figure that is compared with the bound.
    fn figure(&self) -> f64 {
        match self.bound {
            _ if !self.target.by_worst() => self.measured.median(),
            Bound::AtMost(_) => self.measured.max(),
            Bound::AtLeast(_) => self.measured.min(),
        }
    }

    fn met(&self) -> bool {
        let figure = self.figure();
        self.is_measured()
            && match self.bound {
                Bound::AtMost(bound) => figure <= bound && !self.is_noise(),
                Bound::AtLeast(bound) => figure >= bound,
            }
    }

    /// The rounds lie on both sides of the bound. Where the worst round decides, that is no
    /// excuse.
    fn is_within_noise(&self) -> bool {
        let (Bound::AtMost(bound) | Bound::AtLeast(bound)) = self.bound;
        !self.target.by_worst() && self.measured.min() < bound && bound < self.measured.max()
    }

    /// What is printed under the row.
    fn explanation(&self) -> Option<&str> {
        self.limit.as_deref().filter(|_| !self.met())
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
    fn result(&self) -> String {
        let (Bound::AtMost(bound) | Bound::AtLeast(bound)) = self.bound;
        let (digits, unit) = self.shown;
        let away = (self.figure() - bound).abs();
        let by = if bound == 0.0 {
            format!("{} {unit}", number(away, digits))
        } else {
            format!("{} %", number(away / bound * 100.0, 0))
        };
        let by = by.trim_end();
        if !self.is_measured() {
            "not measured".into()
        } else if self.is_noise() {
            "NOISE: below zero".into()
        } else if self.is_within_noise() {
            if self.met() {
                "met, within noise".into()
            } else {
                format!("missed by {by}, within noise")
            }
        } else if !self.met() && self.target.by_worst() {
            format!("MISSED by {by}, worst round")
        } else if !self.met() {
            format!("MISSED by {by}")
        } else if away == 0.0 {
            "met".into()
        } else {
            format!("met by {by}")
        }
    }
}

/// Every target with what was measured, as Markdown, including those not measured.
#[must_use]
pub fn markdown(checks: &[&Check]) -> String {
    let columns = ["target", "measured", "median (min .. max)", "bound", ""];
    let mut table = Table::new(RULE, &columns).words(&[1, 2, 3, 4]);
    for (target, promise) in Target::ALL {
        let mut promise = promise;
        for check in checks.iter().filter(|check| check.target == target) {
            table.row(vec![
                promise.into(),
                check.what.clone(),
                check.figures(),
                check.bound(),
                check.result(),
            ]);
            if let Some(explanation) = check.explanation() {
                let under = ["", explanation, "", "", ""].map(String::from);
                table.row(under.into());
            }
            promise = "";
        }
        if !promise.is_empty() {
            let nothing = ["-", "-", "-", "not measured"].map(String::from);
            table.row([vec![promise.into()], nothing.to_vec()].concat());
        }
    }
    format!("{}\n{NOISE}\n", table.markdown())
}

/// The same as plain text.
#[must_use]
pub fn text(checks: &[&Check]) -> String {
    let mut text = format!("{RULE}\n{NOISE}\n");
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
                "  {:30} {}: {}, bound {}\n",
                check.result(),
                check.what,
                check.figures(),
                check.bound()
            );
            if let Some(explanation) = check.explanation() {
                text += &format!("  {:30} {explanation}\n", "");
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(target: Target, rounds: &[f64], bound: Bound) -> Check {
        Check {
            target,
            what: "what".into(),
            measured: Series::new(rounds.to_vec()),
            shown: (1, "ns"),
            bound,
            limit: None,
        }
    }

    fn result(figure: f64, bound: Bound) -> String {
        check(Target::Wal, &[figure], bound).result()
    }

    #[test]
    fn a_result_says_by_how_much() {
        assert_eq!(result(6.0, Bound::AtMost(8.0)), "met by 25 %");
        assert_eq!(result(10.0, Bound::AtMost(8.0)), "MISSED by 25 %");
        assert_eq!(result(3.0, Bound::AtLeast(4.0)), "MISSED by 25 %");
        assert_eq!(result(5.0, Bound::AtLeast(4.0)), "met by 25 %");
        assert_eq!(result(0.0, Bound::AtMost(0.0)), "met");
        assert_eq!(result(3.0, Bound::AtMost(0.0)), "MISSED by 3.0 ns");
        assert_eq!(result(-3.0, Bound::AtMost(8.0)), "NOISE: below zero");
    }

    #[test]
    fn a_bound_between_the_rounds_is_within_noise() {
        let result = |rounds: &[f64]| check(Target::Bulk, rounds, Bound::AtMost(100.0)).result();
        assert_eq!(result(&[90.0, 99.0, 101.0]), "met, within noise");
        assert_eq!(result(&[90.0, 102.0, 103.0]), "missed by 2 %, within noise");
        assert_eq!(result(&[90.0, 95.0, 100.0]), "met by 5 %");
        let wal = check(Target::Wal, &[0.0, 0.0, 0.4], Bound::AtMost(0.0));
        assert_eq!(wal.result(), "met");
    }

    #[test]
    fn one_bad_round_misses_a_target_for_every_moment() {
        let waits = check(Target::SteadyLoad, &[0.0, 0.0, 2.0], Bound::AtMost(0.0));
        assert_eq!(waits.result(), "MISSED by 2.0 ns, worst round");
        let fewer = check(Target::NeverFewer, &[0.9, 1.2, 1.3], Bound::AtLeast(1.0));
        assert_eq!(fewer.result(), "MISSED by 10 %, worst round");
    }

    #[test]
    fn a_limit_is_shown_below_what_is_missed_only() {
        let shown = |figure: f64| {
            let mut check = check(Target::Bulk, &[figure], Bound::AtMost(1.0));
            check.limit = Some("because".into());
            let shown = text(&[&check]).contains("because");
            assert_eq!(shown, markdown(&[&check]).contains("because"));
            shown
        };
        assert!(shown(2.0));
        assert!(!shown(0.5));
    }

    #[test]
    fn what_has_no_figure_keeps_its_row() {
        let bound = Bound::AtMost(0.0);
        let check = Check::not_measured(Target::SteadyLoad, "waits", bound, "too short");
        let text = text(&[&check]);
        assert!(text.contains("waits: -"), "{text}");
        assert!(text.contains("too short"), "{text}");
        assert!(!check.met());
    }
}
