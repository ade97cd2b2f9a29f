//! Figures of rounds: median, range, percentiles, and how they are printed.

use serde::{Serialize, Serializer};
use serde_json::Value;

/// One figure for each round, in the order of the rounds. There is at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Series(Vec<f64>);

impl Series {
    /// The figures of the rounds.
    ///
    /// # Panics
    /// If there are none.
    #[must_use]
    pub fn new(rounds: Vec<f64>) -> Self {
        assert!(!rounds.is_empty(), "a series of no rounds");
        Self(rounds)
    }

    /// The middle one; if their number is even, the mean of the two in the middle.
    #[must_use]
    pub fn median(&self) -> f64 {
        let sorted = self.sorted();
        let middle = sorted.len() / 2;
        if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        }
    }

    /// The smallest one.
    #[must_use]
    pub fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The largest one.
    #[must_use]
    pub fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    /// The ratio to the other's figures, round by round: what disturbed a round has disturbed
    /// both.
    #[must_use]
    pub fn over(&self, base: &Self) -> Self {
        self.with(base, |own, base| own / base)
    }

    /// The difference to the other's figures, round by round.
    #[must_use]
    pub fn less(&self, base: &Self) -> Self {
        self.with(base, |own, base| own - base)
    }

    /// Both together, round by round.
    #[must_use]
    pub fn with(&self, other: &Self, join: impl Fn(f64, f64) -> f64) -> Self {
        assert_eq!(self.0.len(), other.0.len(), "series of the same rounds");
        let pairs = self.0.iter().zip(&other.0);
        Self(pairs.map(|(own, other)| join(*own, *other)).collect())
    }

    /// Converts each figure, as to another unit.
    #[must_use]
    pub fn map(&self, change: impl Fn(f64) -> f64) -> Self {
        Self(self.0.iter().copied().map(change).collect())
    }

    fn sorted(&self) -> Vec<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        sorted
    }
}

impl Serialize for Series {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.iter().copied().map(seven_digits))
    }
}

/// A figure as it is kept: to seven digits, far fewer of which repeat from round to round.
/// Whole numbers stay exact, and what is not a number becomes null.
#[expect(clippy::cast_possible_truncation, reason = "smaller than 2^52")]
fn seven_digits(figure: f64) -> Value {
    let rounded = if figure.abs() < 1e7 {
        format!("{figure:.6e}").parse().unwrap_or(figure)
    } else {
        figure.round()
    };
    if rounded.fract() == 0.0 && rounded.abs() < 2f64.powi(52) {
        Value::from(rounded as i64)
    } else {
        Value::from(rounded)
    }
}

/// Why something has no figure although nothing is wrong with leaf_id.
pub struct Unmeasured(pub String);

/// A share of all samples: 99.9 % is `HundredthsOfPercent(9990)`. (An f64 would be rounded,
/// and the rank with it.)
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HundredthsOfPercent(pub usize);

/// The smallest of the samples that at least this share of them does not exceed (the
/// "nearest rank"); 0 if there are none. They must be sorted.
#[must_use]
pub fn percentile(sorted: &[u64], share: HundredthsOfPercent) -> u64 {
    debug_assert!(sorted.is_sorted(), "percentiles are of sorted samples");
    let rank = (sorted.len() * share.0).div_ceil(10_000);
    sorted.get(rank.max(1) - 1).copied().unwrap_or_default()
}

/// Measures the contenders one after the other in each round, so that what disturbs the
/// machine disturbs all of them. The first round warms up and does not count. The result is
/// in the order of the contenders.
pub fn in_turns<C>(
    rounds: usize,
    contenders: &[C],
    mut measure: impl FnMut(&C) -> f64,
) -> Vec<Series> {
    let mut figures = vec![Vec::new(); contenders.len()];
    for round in 0..=rounds {
        for (contender, figures) in contenders.iter().zip(&mut figures) {
            let figure = measure(contender);
            if round > 0 {
                figures.push(figure);
            }
        }
    }
    figures.into_iter().map(Series::new).collect()
}

/// A figure with so many digits after the point, and commas between thousands.
#[must_use]
pub fn number(figure: f64, digits: usize) -> String {
    if !figure.is_finite() {
        return "-".into();
    }
    let plain = format!("{:.digits$}", figure.abs());
    let (whole, rest) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
    let mut text = String::new();
    // Zero has no sign.
    if figure < 0.0 && plain.contains(|digit: char| ('1'..='9').contains(&digit)) {
        text.push('-');
    }
    for (place, digit) in whole.chars().enumerate() {
        if place > 0 && (whole.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + rest
}

/// From the smallest to the largest.
#[must_use]
pub fn range(series: &Series, digits: usize) -> String {
    format!(
        "{} .. {}",
        number(series.min(), digits),
        number(series.max(), digits)
    )
}

/// The median with its range.
#[must_use]
pub fn spread(series: &Series, digits: usize) -> String {
    format!(
        "{} ({})",
        number(series.median(), digits),
        range(series, digits)
    )
}

/// A count, as in "1,000 rows".
#[must_use]
pub fn count(count: u32) -> String {
    number(f64::from(count), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(rounds: &[f64]) -> Series {
        Series::new(rounds.to_vec())
    }

    #[test]
    fn the_median_is_the_middle_whatever_the_order() {
        assert_eq!(series(&[9.0, 1.0, 5.0]).median(), 5.0);
        assert_eq!(series(&[100.0, 2.0, 1.0, 4.0]).median(), 3.0);
        assert_eq!(series(&[7.0]).median(), 7.0);
    }

    #[test]
    fn the_range_holds_negative_figures_too() {
        let figures = series(&[-2.0, 3.0, -5.0]);
        assert_eq!((figures.min(), figures.max()), (-5.0, 3.0));
    }

    #[test]
    fn a_ratio_is_taken_within_the_rounds() {
        // The second round was ten times as slow for both: the ratio does not show it.
        let ratio = series(&[1.0, 20.0, 4.0]).over(&series(&[2.0, 40.0, 4.0]));
        assert_eq!(ratio, series(&[0.5, 0.5, 1.0]));
        assert_eq!(ratio.median(), 0.5);
    }

    #[test]
    fn the_idle_call_is_subtracted_within_the_rounds() {
        let net = series(&[60.0, 100.0]).less(&series(&[50.0, 95.0]));
        assert_eq!(net, series(&[10.0, 5.0]));
    }

    #[test]
    fn percentiles_are_samples_that_occurred() {
        let of = |sorted: &[u64], share| percentile(sorted, HundredthsOfPercent(share));
        let samples: Vec<u64> = (1..=1000).collect();
        assert_eq!(of(&samples, 5000), 500);
        assert_eq!(of(&samples, 9900), 990);
        assert_eq!(of(&samples, 9990), 999);
        assert_eq!(of(&samples, 9999), 1000);
        assert_eq!(of(&samples, 10000), 1000);
        assert_eq!(of(&[3], 9999), 3);
        assert_eq!(of(&[3, 8], 5000), 3);
        assert_eq!(of(&[], 5000), 0);
    }

    #[test]
    fn contenders_take_turns_and_the_first_round_does_not_count() {
        let mut turn = 0.0;
        let mut order = String::new();
        let figures = in_turns(2, &["a", "b"], |contender| {
            order += contender;
            turn += 1.0;
            turn
        });
        assert_eq!(order, "ababab");
        assert_eq!(figures, [series(&[3.0, 5.0]), series(&[4.0, 6.0])]);
    }

    #[test]
    fn seven_digits_are_kept_and_whole_numbers() {
        let figures = series(&[
            9.160_517_500_1,
            -0.000_123_456_789,
            14_039_851.7,
            508_235_520.0,
            0.0,
            f64::NAN,
        ]);
        assert_eq!(
            serde_json::to_string(&figures).ok().as_deref(),
            Some("[9.160518,-0.0001234568,14039852,508235520,0,null]")
        );
    }

    #[test]
    fn thousands_are_grouped_and_zero_has_no_sign() {
        assert_eq!(number(1_234_567.891, 1), "1,234,567.9");
        assert_eq!(number(-123_456.0, 0), "-123,456");
        assert_eq!(number(999.0, 2), "999.00");
        assert_eq!(number(-0.001, 2), "0.00");
        assert_eq!(number(f64::NAN, 2), "-");
    }
}
