//! Statistics over rounds: medians, ratios, percentiles.

use serde::{Serialize, Serializer};

/// One figure for each round, in the order of the rounds. There is at least one.
#[derive(Clone, Debug, PartialEq)]
pub struct Series(Vec<f64>);

impl Series {
    /// The middle figure, or the mean of the two in the middle.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        if sorted.len() % 2 == 1 {
            sorted[middle]
        } else {
            f64::midpoint(sorted[middle - 1], sorted[middle])
        }
    }

    /// The smallest figure.
    pub fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    /// The largest figure.
    pub fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    /// Ratio to another series within each round, since slow rounds affect both.
    pub fn over(&self, base: &Self) -> Self {
        self.with(base, |own, base| own / base)
    }

    /// Difference from another series within each round.
    pub fn less(&self, base: &Self) -> Self {
        self.with(base, |own, base| own - base)
    }

    fn with(&self, other: &Self, join: impl Fn(f64, f64) -> f64) -> Self {
        assert_eq!(self.0.len(), other.0.len(), "series of the same rounds");
        let pairs = self.0.iter().zip(&other.0);
        Self(pairs.map(|(own, other)| join(*own, *other)).collect())
    }

    /// Converts the unit.
    pub fn map(&self, convert: impl Fn(f64) -> f64) -> Self {
        Self(self.0.iter().copied().map(convert).collect())
    }

    /// Median with minimum and maximum; a dash if there is no measurement.
    pub fn text(&self, digits: usize) -> String {
        if self.median().is_nan() {
            return "-".into();
        }
        let [median, min, max] =
            [self.median(), self.min(), self.max()].map(|figure| number(figure, digits));
        format!("{median} ({min} .. {max})")
    }
}

impl From<Vec<f64>> for Series {
    fn from(rounds: Vec<f64>) -> Self {
        assert!(!rounds.is_empty(), "a series of no rounds");
        Self(rounds)
    }
}

impl Serialize for Series {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Further digits are not reproducible.
        serializer.collect_seq(
            self.0
                .iter()
                .map(|figure| (figure * 1000.0).round() / 1000.0),
        )
    }
}

/// Smallest sorted sample that is not exceeded by at least this share of samples; 0 if there are
/// none.
pub fn percentile(sorted: &[u64], per_mille: usize) -> u64 {
    let rank = (sorted.len() * per_mille).div_ceil(1000);
    sorted.get(rank.max(1) - 1).copied().unwrap_or_default()
}

/// Measures the contenders in turn in each round, so that disturbances affect all of them. The
/// first round is a warm-up. Returns results in the order of the contenders.
pub fn in_turns<C, const N: usize>(
    rounds: usize,
    contenders: &[C],
    mut measure: impl FnMut(&C) -> [f64; N],
) -> Vec<[Series; N]> {
    let mut measured = vec![Vec::new(); contenders.len()];
    for round in 0..=rounds {
        for (contender, measured) in contenders.iter().zip(&mut measured) {
            let figures = measure(contender);
            if round > 0 {
                measured.push(figures);
            }
        }
    }
    let series = |rounds: &Vec<[f64; N]>, figure: usize| {
        Series::from(rounds.iter().map(|round| round[figure]).collect::<Vec<_>>())
    };
    measured
        .iter()
        .map(|rounds| std::array::from_fn(|figure| series(rounds, figure)))
        .collect()
}

/// Formats a figure with thousands separators.
pub fn number(figure: f64, digits: usize) -> String {
    let plain = format!("{:.digits$}", figure.abs());
    let (whole, fraction) = plain.split_at(plain.find('.').unwrap_or(plain.len()));
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
    text + fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(rounds: &[f64]) -> Series {
        Series::from(rounds.to_vec())
    }

    #[test]
    fn the_median_is_the_middle_whatever_the_order() {
        assert_eq!(series(&[9.0, 1.0, 5.0]).median(), 5.0);
        assert_eq!(series(&[100.0, 2.0, 1.0, 4.0]).median(), 3.0);
        assert_eq!(series(&[-5.0, 7.0, -6.0]).text(1), "-5.0 (-6.0 .. 7.0)");
        assert_eq!(series(&[f64::NAN]).text(1), "-");
    }

    #[test]
    fn ratios_and_differences_are_taken_within_the_rounds() {
        // The second round was ten times as slow for both: the ratio does not show it.
        let ratio = series(&[1.0, 20.0, 4.0]).over(&series(&[2.0, 40.0, 4.0]));
        assert_eq!(ratio, series(&[0.5, 0.5, 1.0]));
        let net = series(&[60.0, 100.0]).less(&series(&[50.0, 95.0]));
        assert_eq!(net, series(&[10.0, 5.0]));
    }

    #[test]
    fn percentiles_are_samples_that_occurred() {
        let samples: Vec<u64> = (1..=2000).collect();
        assert_eq!(percentile(&samples, 500), 1000);
        assert_eq!(percentile(&samples, 999), 1998);
        assert_eq!(percentile(&samples, 1000), 2000);
        assert_eq!(percentile(&[3], 999), 3);
        assert_eq!(percentile(&[3, 8], 500), 3);
        assert_eq!(percentile(&[], 500), 0);
    }

    #[test]
    fn contenders_take_turns_and_the_first_round_does_not_count() {
        let mut turn = 0.0;
        let mut order = String::new();
        let figures = in_turns(2, &["a", "b"], |contender| {
            order += contender;
            turn += 1.0;
            [turn, -turn]
        });
        assert_eq!(order, "ababab");
        let [a, b] = [[3.0, 5.0], [4.0, 6.0]].map(|rounds| series(&rounds));
        let negative = |own: &Series| own.map(|figure| -figure);
        assert_eq!(
            figures,
            [[a.clone(), negative(&a)], [b.clone(), negative(&b)]]
        );
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(number(1_234_567.891, 1), "1,234,567.9");
        assert_eq!(number(-123_456.0, 0), "-123,456");
        assert_eq!(number(-0.001, 2), "0.00");
        let kept = serde_json::to_string(&series(&[9.160_517_5, 14_039_851.0, f64::NAN]));
        assert_eq!(kept.ok().as_deref(), Some("[9.161,14039851.0,null]"));
    }
}
