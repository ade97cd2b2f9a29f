//! Plots of figures, as SVG.
//!
//! README shows them, on GitHub's light or dark page, where an image cannot load anything: they
//! have a background of their own, and only what every viewer draws.

use crate::contender::{OPAQUE, SEGMENT, SNOWFLAKE};
use crate::figures::{Series, number};

/// File of the plot of ids by sessions.
pub const SESSIONS: &str = "sessions.svg";
/// File of the plot of COPY.
pub const COPY: &str = "copy.svg";
/// Files of all plots.
pub const FILES: [&str; 2] = [SESSIONS, COPY];

/// Contenders that are leaf_id's, which are emphasized.
const OURS: [&str; 3] = [SEGMENT.label, OPAQUE.label, SNOWFLAKE.label];
const OUR_LINE: &str = "#0b57d0";
/// Colors of other lines, with dashes for readers to whom the colors look alike.
const OTHER_LINES: [(&str, &str); 4] = [
    ("#a3581a", "none"),
    ("#2f7d62", "10 3 2 3"),
    ("#8a4f7d", "8 4"),
    ("#59636e", "2 3"),
];
/// Lighter than the lines, for dark whiskers to be seen in front of them.
const OUR_BAR: &str = "#5a8de0";
const OTHER_BAR: &str = "#a9b1ba";
const DARK: &str = r##"fill="#1f2328""##;
const MUTED: &str = r##"fill="#59636e""##;
const MIDDLE: &str = r##"fill="#59636e" text-anchor="middle""##;
const END: &str = r##"fill="#59636e" text-anchor="end""##;
const GRID: &str = r##"stroke="#e3e7eb""##;

const WIDTH: f64 = 720.0;
const MARGIN: f64 = 20.0;
/// Upper edge of the lines or bars.
const TOP: f64 = 76.0;

/// How figures are shown.
pub enum Shape {
    /// A line for each contender, over these numbers of sessions.
    Lines(Vec<usize>),
    /// A bar for each contender, which has one figure.
    Bars,
}

/// A plot of figures of which more is better.
pub struct Plot {
    /// One of [`FILES`].
    pub file: &'static str,
    /// First line above it.
    pub title: String,
    /// Quantity and unit.
    pub unit: &'static str,
    /// How it is drawn.
    pub shape: Shape,
    /// Names of contenders, and their figures.
    pub rows: Vec<(&'static str, Vec<Series>)>,
}

type Row<'a> = &'a (&'static str, Vec<Series>);

impl Plot {
    /// The SVG with these lines at the bottom, unless nothing was measured.
    pub fn svg(&self, notes: &[String]) -> Option<String> {
        // What was measured is above zero.
        let is_measured = |row: &Row| row.1.iter().all(|own| own.median() > 0.0);
        let rows: Vec<_> = self.rows.iter().filter(is_measured).collect();
        let axis = Axis::of(rows.iter().flat_map(|row| &row.1))?;
        let mut svg = Svg(String::new());
        let bold = format!(r#"{DARK} font-size="17" font-weight="bold""#);
        svg.text(MARGIN, 26.0, &bold, &self.title);
        let unit = format!("{}; more is better", self.unit);
        svg.text(MARGIN, 50.0, MUTED, &unit);
        let mut y = match &self.shape {
            Shape::Lines(sessions) => svg.lines(&axis, sessions, &rows),
            Shape::Bars => svg.bars(&axis, rows),
        };
        y += 12.0;
        let small = format!(r#"{MUTED} font-size="11""#);
        for note in notes {
            y += 16.0;
            svg.text(MARGIN, y, &small, note);
        }
        let height = y + 18.0;
        let size = format!(r#"width="{WIDTH}" height="{height}""#);
        // Without a viewBox, a narrow page would cut it off.
        Some(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" {size} viewBox=\"0 0 {WIDTH} {height}\" \
             font-family=\"sans-serif\" font-size=\"13\">\n<rect {size} fill=\"#fcfcfd\"/>\n\
             {}</svg>\n",
            svg.0
        ))
    }
}

/// An axis from 0 in round steps: on a logarithmic one, ratios would look smaller.
struct Axis {
    step: f64,
    end: f64,
}

impl Axis {
    /// An axis for these figures, if there are any.
    fn of<'a>(shown: impl Iterator<Item = &'a Series>) -> Option<Self> {
        let largest = shown.map(Series::max).reduce(f64::max)?;
        let power = 10_f64.powf((largest / 7.0).log10().floor());
        let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
        let step = steps.into_iter().find(|step| largest <= 7.0 * step)?;
        let end = (largest / step).ceil() * step;
        Some(Self { step, end })
    }

    /// Place of a figure on the way between two ends.
    fn place(&self, figure: f64, from: f64, to: f64) -> f64 {
        from + figure / self.end * (to - from)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        let ticks = (0..).map(|tick| f64::from(tick) * self.step);
        ticks.take_while(|tick| *tick < self.end + self.step / 2.0)
    }

    fn text(&self, figure: f64) -> String {
        let digits = [1.0, 0.1].into_iter().filter(|unit| self.step < *unit);
        number(figure, digits.count())
    }
}

/// Elements of an SVG.
struct Svg(String);

impl Svg {
    /// Adds text whose middle is at this height.
    fn text(&mut self, x: f64, y: f64, style: &str, text: &str) {
        let y = y + 4.5;
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.0 += &format!("<text x=\"{x:.1}\" y=\"{y:.1}\" {style}>{text}</text>\n");
    }

    fn line(&mut self, points: &[(f64, f64)], style: &str) {
        let points = points.iter().map(|(x, y)| format!("{x:.1},{y:.1} "));
        let points: String = points.collect();
        self.0 += &format!("<polyline fill=\"none\" points=\"{points}\" {style}/>\n");
    }

    /// Draws lines, and returns the lower edge.
    fn lines(&mut self, axis: &Axis, sessions: &[usize], rows: &[Row]) -> f64 {
        const LEFT: f64 = 56.0;
        const RIGHT: f64 = 510.0;
        const BOTTOM: f64 = 370.0;
        // The numbers of sessions double.
        #[expect(clippy::cast_precision_loss, reason = "numbers of sessions")]
        let doublings = |sessions: usize| (sessions as f64).log2();
        let most = sessions.iter().copied().map(doublings).fold(1.0, f64::max);
        let x = |sessions| LEFT + 18.0 + doublings(sessions) / most * (RIGHT - LEFT - 36.0);
        let y = |figure| axis.place(figure, BOTTOM, TOP);
        for tick in axis.ticks() {
            self.line(&[(LEFT, y(tick)), (RIGHT, y(tick))], GRID);
            self.text(LEFT - 8.0, y(tick), END, &axis.text(tick));
        }
        for sessions in sessions {
            self.text(x(*sessions), BOTTOM + 16.0, MIDDLE, &sessions.to_string());
        }
        let middle = f64::midpoint(LEFT, RIGHT);
        self.text(middle, BOTTOM + 36.0, MIDDLE, "sessions");

        let ends = rows.iter().filter_map(|(_, figures)| figures.last());
        let labels = spread(ends.map(|own| y(own.median())).collect());
        let mut others = OTHER_LINES.iter().cycle();
        // Whiskers of different lines are beside each other.
        let mut aside = -6.0;
        // Backwards: the first one is above the others.
        for ((label, figures), label_y) in rows.iter().zip(labels).rev() {
            let (color, dashes, width, weight) = match others.next() {
                Some((color, dashes)) if !OURS.contains(label) => (*color, *dashes, 1.8, "normal"),
                _ => (OUR_LINE, "none", 3.2, "bold"),
            };
            let color = format!(r#"="{color}""#);
            let thin = format!(r#"stroke{color} stroke-opacity="0.55""#);
            let thick =
                format!(r#"stroke{color} stroke-width="{width}" stroke-dasharray="{dashes}""#);
            let mut points = Vec::new();
            for (sessions, own) in sessions.iter().zip(figures) {
                let x = x(*sessions) + aside;
                self.line(&[(x, y(own.min())), (x, y(own.max()))], &thin);
                points.push((x, y(own.median())));
            }
            self.line(&points, &thick);
            let to_label = points.last().copied().into_iter();
            let to_label: Vec<_> = to_label.chain([(RIGHT + 4.0, label_y)]).collect();
            self.line(&to_label, &thin);
            let style = format!(r#"fill{color} font-weight="{weight}""#);
            self.text(RIGHT + 8.0, label_y, &style, label);
            aside += 3.0;
        }
        BOTTOM + 36.0
    }

    /// Draws bars, the longest first, and returns the lower edge.
    fn bars(&mut self, axis: &Axis, mut rows: Vec<Row>) -> f64 {
        const LEFT: f64 = 200.0;
        const RIGHT: f64 = 640.0;
        const EACH: f64 = 30.0;
        rows.sort_by(|(_, one), (_, other)| other[0].median().total_cmp(&one[0].median()));
        let x = |figure| axis.place(figure, LEFT, RIGHT);
        let bottom = rows.iter().fold(TOP, |y, _| y + EACH);
        for tick in axis.ticks() {
            self.line(&[(x(tick), TOP), (x(tick), bottom)], GRID);
            self.text(x(tick), bottom + 14.0, MIDDLE, &axis.text(tick));
        }
        let mut y = TOP + EACH / 2.0;
        for (label, figures) in rows {
            let (color, weight) = match OURS.contains(label) {
                true => (OUR_BAR, "bold"),
                false => (OTHER_BAR, "normal"),
            };
            let text = format!(r#"{DARK} font-weight="{weight}""#);
            let end = format!(r#"{text} text-anchor="end""#);
            let bar = format!(r#"stroke="{color}" stroke-width="18""#);
            let own = &figures[0];
            let [median, min, max] = [own.median(), own.min(), own.max()].map(x);
            self.text(LEFT - 8.0, y, &end, label);
            self.line(&[(LEFT, y), (median, y)], &bar);
            self.line(&[(min, y), (max, y)], r##"stroke="#1f2328""##);
            self.text(max + 8.0, y, &text, &axis.text(own.median()));
            y += EACH;
        }
        bottom + 14.0
    }
}

/// Moves labels down until they are apart.
fn spread(mut labels: Vec<f64>) -> Vec<f64> {
    let mut order: Vec<_> = (0..labels.len()).collect();
    order.sort_by(|one, other| labels[*one].total_cmp(&labels[*other]));
    let mut least = f64::NEG_INFINITY;
    for label in order {
        labels[label] = labels[label].max(least);
        least = labels[label] + 18.0;
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;

    fn svg(shape: Shape, rows: &[(&'static str, &[f64])]) -> String {
        let figures = |all: &[f64]| all.iter().map(|own| vec![*own].into()).collect();
        let rows = rows.iter().map(|(label, all)| (*label, figures(all)));
        let plot = Plot {
            file: COPY,
            title: "rows & <ids>".into(),
            unit: "rows",
            shape,
            rows: rows.collect(),
        };
        plot.svg(&["1 < 2".into()]).unwrap_or_default()
    }

    /// Coordinates x, y, x, y ... of the elements with this attribute.
    fn drawn(svg: &str, attribute: &str) -> Vec<Vec<f64>> {
        let elements = svg.lines().filter(|line| line.contains(attribute));
        let numbers = elements.map(|line| line.split(['"', ',', ' ']));
        numbers
            .map(|words| words.filter_map(|word| word.parse().ok()).collect())
            .collect()
    }

    #[test]
    fn more_is_higher_and_longer() {
        let three = [("nextval", &[1.0, 3.0, 2.0][..])];
        let lines = drawn(&svg(Shape::Lines(vec![1, 2, 8]), &three), "dasharray");
        let [x1, one, x2, three, x8, two, ..] = lines[0][..] else {
            panic!("{lines:?}");
        };
        assert!(one > two && two > three, "{lines:?}");
        let doublings = (x8 - x1) / (x2 - x1);
        assert!((doublings - 3.0).abs() < 0.01, "{lines:?}");

        let pair = [("nextval", &[1.0][..]), ("serial", &[2.0])];
        let bars = drawn(&svg(Shape::Bars, &pair), r#"stroke-width="18""#);
        let lengths: Vec<_> = bars.iter().map(|bar| bar[2] - bar[0]).collect();
        assert_eq!(lengths, [440.0, 220.0]);
    }

    #[test]
    fn text_is_escaped() {
        let svg = svg(Shape::Bars, &[("a<b", &[1.0])]);
        for text in [">rows &amp; &lt;ids><", ">a&lt;b<", ">1 &lt; 2<"] {
            assert!(svg.contains(text), "{svg}");
        }
    }

    #[test]
    fn only_what_was_measured_is_shown() {
        let missing = ("missing", &[f64::NAN][..]);
        let svg_of_one = svg(Shape::Bars, &[missing, ("measured", &[1.0])]);
        assert!(svg_of_one.contains("measured"), "{svg_of_one}");
        assert!(!svg_of_one.contains("missing"), "{svg_of_one}");
        assert_eq!(svg(Shape::Bars, &[missing]), "");
    }

    #[test]
    fn labels_do_not_overlap() {
        let labels = spread(vec![100.0, 300.0, 99.0, 110.0]);
        assert_eq!(labels, [117.0, 300.0, 99.0, 135.0]);
    }
}
