//! Charts as SVG: bars, and lines over a few positions. The background is white, for
//! dark pages; every line has its name at its end.

use std::error::Error;
use std::path::Path;

use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::figures::number;

const INK: RGBColor = RGBColor(40, 40, 40);
const PALE: RGBColor = RGBColor(222, 222, 222);
/// Pixels: the whole chart, and the room around its figures.
const WIDTH: i32 = 900;
const LINES_HEIGHT: i32 = 480;
const TOP: i32 = 50;
const BOTTOM: i32 = 60;
const LEFT: i32 = 90;
const RIGHT: i32 = 230;
/// Width of the bars' names, height of a bar with its gap, and pixels between groups.
const BAR_NAMES: i32 = 250;
const BAR_HEIGHT: i32 = 26;
const GROUP_GAP: i32 = 40;
/// Pixels between the names of two lines.
const NAME_HEIGHT: i32 = 16;

/// A bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// Printed beside it.
    pub name: String,
    /// Its length, in the unit of the chart.
    pub value: f64,
    /// The contender's color in all charts.
    pub color: RGBColor,
}

/// Points that are connected.
#[derive(Clone, Debug)]
pub struct Line {
    /// Printed at its end.
    pub name: String,
    /// Index of the position, and the figure there.
    pub points: Vec<(usize, f64)>,
    /// The contender's color in all charts.
    pub color: RGBColor,
    /// Drawn dashed: a limit, or a second line of the same contender.
    pub dashed: bool,
}

/// A place on the horizontal axis.
#[derive(Clone, Debug)]
pub struct Position {
    /// Its distance from the first one, in steps of equal length.
    pub step: u32,
    /// Printed below it.
    pub name: String,
}

/// How figures become heights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// From zero.
    Linear,
    /// In powers of ten.
    Logarithmic,
}

#[derive(Clone, Debug)]
enum Kind {
    /// Groups of bars, each with a title.
    Bars {
        groups: Vec<(String, Vec<Bar>)>,
        digits: usize,
    },
    Lines {
        positions: Vec<Position>,
        x_label: String,
        scale: Scale,
        lines: Vec<Line>,
    },
}

/// A chart of the report.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Name of the file in the directory of the results.
    pub file: &'static str,
    /// What it shows.
    pub title: String,
    /// What the figures are, with the unit.
    label: String,
    kind: Kind,
}

impl Chart {
    /// Groups of horizontal bars.
    #[must_use]
    pub fn bars(
        file: &'static str,
        title: &str,
        label: &str,
        digits: usize,
        groups: Vec<(String, Vec<Bar>)>,
    ) -> Self {
        Self {
            file,
            title: title.into(),
            label: label.into(),
            kind: Kind::Bars { groups, digits },
        }
    }

    /// Lines over a few positions.
    #[must_use]
    pub fn lines(
        file: &'static str,
        title: &str,
        (x_label, label): (&str, &str),
        positions: Vec<Position>,
        scale: Scale,
        lines: Vec<Line>,
    ) -> Self {
        Self {
            file,
            title: title.into(),
            label: label.into(),
            kind: Kind::Lines {
                positions,
                x_label: x_label.into(),
                scale,
                lines,
            },
        }
    }

    /// Draws it into that directory.
    ///
    /// # Errors
    /// That of the file system.
    pub fn draw(&self, dir: &Path) -> Result<(), Box<dyn Error + Send + Sync>> {
        let file = dir.join(self.file);
        match &self.kind {
            Kind::Bars { groups, digits } => self.draw_bars(&file, groups, *digits),
            Kind::Lines {
                positions,
                x_label,
                scale,
                lines,
            } => self.draw_lines(&file, positions, x_label, *scale, lines),
        }
        .map_err(|error| format!("{}: {error}", file.display()).into())
    }

    fn draw_bars(
        &self,
        file: &Path,
        groups: &[(String, Vec<Bar>)],
        digits: usize,
    ) -> Result<(), Box<dyn Error>> {
        let bars: usize = groups.iter().map(|(_, bars)| bars.len()).sum();
        let height = TOP + 20 + pixels(bars) * BAR_HEIGHT + pixels(groups.len()) * GROUP_GAP;
        let area = SVGBackend::new(file, (size(WIDTH), size(height))).into_drawing_area();
        area.fill(&WHITE)?;
        title(&area, &format!("{}, {}", self.title, self.label))?;
        let values = groups
            .iter()
            .flat_map(|(_, bars)| bars)
            .map(|bar| bar.value);
        let longest = values.fold(f64::MIN_POSITIVE, f64::max);
        let mut y = TOP;
        for (name, bars) in groups {
            area.draw(&Text::new(
                name.as_str(),
                (20, y + 22),
                styled(17, HPos::Left, &INK),
            ))?;
            y += GROUP_GAP;
            for bar in bars {
                let length = bar.value.max(0.0) / longest * f64::from(WIDTH - BAR_NAMES - 110);
                let end = BAR_NAMES + rounded(length).max(1);
                let middle = y + BAR_HEIGHT / 2;
                area.draw(&Rectangle::new(
                    [(BAR_NAMES, y + 3), (end, y + BAR_HEIGHT - 3)],
                    bar.color.filled(),
                ))?;
                let beside = styled(16, HPos::Right, &INK);
                area.draw(&Text::new(
                    bar.name.as_str(),
                    (BAR_NAMES - 8, middle),
                    beside,
                ))?;
                let at_end = styled(16, HPos::Left, &INK);
                area.draw(&Text::new(
                    number(bar.value, digits),
                    (end + 6, middle),
                    at_end,
                ))?;
                y += BAR_HEIGHT;
            }
        }
        area.present()?;
        Ok(())
    }

    fn draw_lines(
        &self,
        file: &Path,
        positions: &[Position],
        x_label: &str,
        scale: Scale,
        lines: &[Line],
    ) -> Result<(), Box<dyn Error>> {
        let area = SVGBackend::new(file, (size(WIDTH), size(LINES_HEIGHT))).into_drawing_area();
        area.fill(&WHITE)?;
        title(&area, &self.title)?;
        let floor = LINES_HEIGHT - BOTTOM;
        let axis = Axis::over(scale, lines);
        let step = |position: &Position| f64::from(position.step);
        let last = positions.last().map_or(1.0, step).max(1.0);
        let x = |position: &Position| {
            let room = f64::from(WIDTH - RIGHT - LEFT - 40);
            LEFT + 20 + rounded(room * step(position) / last)
        };
        let y = |figure: f64| floor - rounded(axis.height(figure) * f64::from(floor - TOP));

        for tick in &axis.ticks {
            let height = y(*tick);
            let across = vec![(LEFT, height), (WIDTH - RIGHT, height)];
            area.draw(&PathElement::new(across, PALE))?;
            let text = if scale == Scale::Logarithmic && *tick < 1.0 {
                tick.to_string()
            } else {
                number(*tick, axis.digits)
            };
            area.draw(&Text::new(
                text,
                (LEFT - 8, height),
                styled(15, HPos::Right, &INK),
            ))?;
        }
        let across = vec![(LEFT, floor), (WIDTH - RIGHT, floor)];
        area.draw(&PathElement::new(across, INK))?;
        for position in positions {
            let style = styled(15, HPos::Center, &INK);
            area.draw(&Text::new(
                position.name.as_str(),
                (x(position), floor + 14),
                style,
            ))?;
        }
        let below = (LEFT + (WIDTH - RIGHT - LEFT) / 2, floor + 38);
        area.draw(&Text::new(x_label, below, styled(16, HPos::Center, &INK)))?;
        let upright = styled(16, HPos::Center, &INK).transform(FontTransform::Rotate270);
        let beside = (18, TOP + (floor - TOP) / 2);
        area.draw(&Text::new(self.label.as_str(), beside, upright))?;

        let mut ends = Vec::new();
        for line in lines {
            let points: Vec<_> = line
                .points
                .iter()
                .map(|(position, figure)| (x(&positions[*position]), y(*figure)))
                .collect();
            let stroke = line.color.stroke_width(2);
            if line.dashed {
                area.draw(&DashedPathElement::new(points.clone(), 5, 4, stroke))?;
            } else {
                area.draw(&PathElement::new(points.clone(), stroke))?;
                for point in &points {
                    area.draw(&Circle::new(*point, 3, line.color.filled()))?;
                }
            }
            if let Some(&(end, height)) = points.last() {
                ends.push((height, end, line));
            }
        }
        // From top to bottom, each below the one before it, and all of them in the chart.
        ends.sort_by_key(|(height, ..)| *height);
        let mut free = TOP - NAME_HEIGHT;
        let count = ends.len();
        for (index, (height, end, line)) in ends.into_iter().enumerate() {
            let last = floor - NAME_HEIGHT * pixels(count - 1 - index);
            let place = height.min(last).max(free + NAME_HEIGHT);
            free = place;
            let lead = vec![(end + 5, height), (WIDTH - RIGHT + 10, place)];
            area.draw(&PathElement::new(lead, line.color.mix(0.4)))?;
            let style = styled(15, HPos::Left, &line.color);
            area.draw(&Text::new(
                line.name.as_str(),
                (WIDTH - RIGHT + 14, place),
                style,
            ))?;
        }
        area.present()?;
        Ok(())
    }
}

/// The vertical axis.
struct Axis {
    scale: Scale,
    from: f64,
    to: f64,
    ticks: Vec<f64>,
    /// Digits after the point of the ticks.
    digits: usize,
}

impl Axis {
    fn over(scale: Scale, lines: &[Line]) -> Self {
        let figures = || {
            let points = lines.iter().flat_map(|line| &line.points);
            points.map(|(_, figure)| *figure)
        };
        let most = figures().fold(0.0, f64::max);
        if scale == Scale::Logarithmic {
            let positive = figures().filter(|figure| *figure > 0.0);
            let least = positive.fold(f64::INFINITY, f64::min);
            if most > 0.0 && least.is_finite() {
                let from = least.log10().floor();
                let to = most.log10().ceil().max(from + 1.0);
                let decades = rounded(from)..=rounded(to);
                return Self {
                    scale,
                    from,
                    to,
                    ticks: decades.map(|decade| 10f64.powi(decade)).collect(),
                    digits: 0,
                };
            }
        }
        let most = if most > 0.0 { most } else { 1.0 };
        // 1, 2 or 5 times a power of ten, so that there are four to ten of them.
        let power = 10f64.powf((most / 4.0).log10().floor());
        let steps = [5.0, 2.0, 1.0].map(|times| times * power);
        let step = steps
            .into_iter()
            .find(|step| most / step >= 4.0)
            .unwrap_or(power);
        let count = rounded((most / step).ceil());
        Self {
            scale: Scale::Linear,
            from: 0.0,
            to: f64::from(count) * step,
            ticks: (0..=count).map(|tick| f64::from(tick) * step).collect(),
            digits: usize::from(step < 1.0),
        }
    }

    /// 0 at the lower end, 1 at the upper one.
    fn height(&self, figure: f64) -> f64 {
        let place = match self.scale {
            Scale::Linear => figure,
            Scale::Logarithmic if figure > 0.0 => figure.log10(),
            Scale::Logarithmic => self.from,
        };
        ((place - self.from) / (self.to - self.from)).clamp(0.0, 1.0)
    }
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn title(area: &Area, text: &str) -> Result<(), Box<dyn Error>> {
    let style = styled(21, HPos::Left, &INK);
    area.draw(&Text::new(text.to_owned(), (20, 22), style))?;
    Ok(())
}

fn styled(size: i32, horizontal: HPos, color: &RGBColor) -> TextStyle<'_> {
    TextStyle::from(("sans-serif", size).into_font())
        .color(color)
        .pos(Pos::new(horizontal, VPos::Center))
}

fn pixels(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn size(pixels: i32) -> u32 {
    pixels.unsigned_abs()
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "figures of a chart are small"
)]
fn rounded(figure: f64) -> i32 {
    figure.round() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(scale: Scale, figures: &[f64]) -> Axis {
        let line = Line {
            name: String::new(),
            points: figures.iter().copied().enumerate().collect(),
            color: INK,
            dashed: false,
        };
        Axis::over(scale, &[line])
    }

    #[test]
    fn ticks_are_round_and_reach_the_largest_figure() {
        assert_eq!(axis(Scale::Linear, &[3.0, 9.1]).ticks.last(), Some(&10.0));
        assert_eq!(
            axis(Scale::Linear, &[41.0]).ticks,
            [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
        );
        assert_eq!(
            axis(Scale::Logarithmic, &[0.02, 30.0]).ticks,
            [0.01, 0.1, 1.0, 10.0, 100.0]
        );
        assert_eq!(axis(Scale::Linear, &[]).ticks.first(), Some(&0.0));
    }
}
