//! How long single calls take while segments are claimed, quickly and slowly.

mod load;

use std::time::Duration;

use leaf_id_tests::Session;

use super::Context;
use crate::bed::Bed;
use crate::chart::{Chart, Line, Position, Scale};
use crate::contender::{CACHE_1, SEGMENT, colour};
use crate::figures::{HundredthsOfPercent, Series, percentile};
use crate::report::Section;
use crate::table::{Table, number, range, spread};
use crate::targets::{Bound, Check, Target};
use load::{Round, Waits};

const SESSIONS: usize = 8;
/// Milliseconds that a commit waits before it flushes: as slow as a disk, or a standby.
const DELAYS: [u64; 4] = [0, 5, 20, 100];
/// Ids of one statement at full speed.
const AT_ONCE: u32 = 1000;
const PERCENTS: [(&str, HundredthsOfPercent); 5] = [
    ("p50", HundredthsOfPercent(5000)),
    ("p99", HundredthsOfPercent(9900)),
    ("p99.9", HundredthsOfPercent(9990)),
    ("p99.99", HundredthsOfPercent(9999)),
    ("max", HundredthsOfPercent(10_000)),
];

/// One kind of load on one source under one delay, over all rounds.
struct Cell {
    delay: u64,
    /// Ids of one statement.
    at_once: u32,
    leaf: bool,
    /// Nanoseconds of all statements, and of those after the step had grown.
    all: Vec<u64>,
    warm: Vec<u64>,
    rounds: Vec<Round>,
}

impl Cell {
    fn series(&self, figure: impl Fn(&Round) -> f64) -> Series {
        Series::new(self.rounds.iter().map(figure).collect())
    }

    fn waits(
        &self,
        of: impl Fn(&Round) -> Option<Waits>,
        figure: fn(&Waits) -> f64,
    ) -> Option<Series> {
        let figures = self
            .rounds
            .iter()
            .map(|round| of(round).as_ref().map(figure));
        figures.collect::<Option<Vec<_>>>().map(Series::new)
    }
}

/// Measures all of it.
pub fn run(context: &Context, section: &mut Section) {
    // A minute of steady load on each, in all rounds together.
    let rounds = u64::try_from(context.options.rounds).unwrap_or(u64::MAX);
    let steady = Duration::from_millis(context.options.pick(3_000, 60_000) / rounds);
    let full = context.options.pick_ms(300, 1_500);
    let bed = Bed::start(context.running, &[("commit_siblings", "0")]);
    let mut sessions: Vec<_> = (0..SESSIONS).map(|_| bed.session()).collect();
    let mut monitor = bed.session();
    section.say(format!(
        "{SESSIONS} sessions run a prepared SELECT f over and over, and the client measures \
         each; once with one id in a statement (steady load, {} ms in each of {} rounds) and \
         once with {} (full speed, {} ms). In each round leaf_segment_next has a fresh tag with \
         a step of 1,000, and no warm-up. Claims are made slow by commit_delay, with \
         commit_siblings = 0; nextval waits for its commit under the same delay. Percentiles \
         are exact, over the statements of all rounds.",
        steady.as_millis(),
        context.options.rounds,
        number(f64::from(AT_ONCE), 0),
        full.as_millis()
    ));
    section.say(
        "\"Until the step has grown\": until a segment holds the ids of one second at this \
         round's rate, or max_step (1,000,000). \"Warm\" is after that.",
    );

    let mut cells = Vec::new();
    for delay in DELAYS {
        for at_once in [1, AT_ONCE] {
            for leaf in [true, false] {
                let (all, warm, rounds) = Default::default();
                cells.push(Cell {
                    delay,
                    at_once,
                    leaf,
                    all,
                    warm,
                    rounds,
                });
            }
        }
    }
    let mut set = None;
    for round in 0..context.options.rounds {
        eprintln!("    round {}", round + 1);
        for (place, cell) in cells.iter_mut().enumerate() {
            if set != Some(cell.delay) {
                delay_commits(&bed, &mut monitor, cell.delay);
                set = Some(cell.delay);
            }
            let source = format!("latency_{round}_{place}");
            let create = if cell.leaf {
                format!("SELECT leaf_tag_create('{source}')")
            } else {
                format!("CREATE SEQUENCE {source}")
            };
            monitor.run(&create);
            let lasts = if cell.at_once == 1 { steady } else { full };
            let load = load::Load {
                source: &source,
                leaf: cell.leaf,
                at_once: cell.at_once,
                lasts,
            };
            let (samples, round) = load.run(&mut sessions, &mut monitor);
            cell.all.extend(samples.iter().map(|sample| sample.took_ns));
            if let Some(grown) = round.grown {
                let warm = samples.iter().filter(|sample| sample.began > grown);
                cell.warm.extend(warm.map(|sample| sample.took_ns));
            }
            cell.rounds.push(round);
        }
    }
    for cell in &mut cells {
        cell.all.sort_unstable();
        cell.warm.sort_unstable();
    }

    claims(section, &cells);
    percentiles(
        section,
        &cells,
        1,
        "Steady load: µs of a statement with one id",
    );
    percentiles(
        section,
        &cells,
        AT_ONCE,
        "Full speed: µs of a statement with 1,000 ids",
    );
    waits(section, &cells);
    checks(section, &cells);
    section.chart(chart(&cells));
}

fn delay_commits(bed: &Bed, monitor: &mut Session, ms: u64) {
    let us = (ms * 1000).to_string();
    bed.server.set("commit_delay", &us);
    leaf_id_tests::wait_until(Duration::from_secs(10), "the new commit_delay", || {
        monitor.value::<String>("SELECT setting FROM pg_settings WHERE name = 'commit_delay'") == us
    });
}

fn called(cell: &Cell) -> String {
    let source = if cell.leaf { SEGMENT } else { CACHE_1 };
    format!("{source}, commit_delay {} ms", cell.delay)
}

/// Whether commit_delay has made claims slow at all.
fn claims(section: &mut Section, cells: &[Cell]) {
    let columns = ["commit_delay", "ms from request to segment", "claims seen"];
    let mut table = Table::new("Claims, median (min .. max) of last_refill_ms", &columns);
    for delay in DELAYS {
        let seen: Vec<f64> = cells
            .iter()
            .filter(|cell| cell.delay == delay)
            .flat_map(|cell| &cell.rounds)
            .flat_map(|round| round.claims_ms.iter().copied())
            .collect();
        let count = seen.len().to_string();
        let figures = if seen.is_empty() {
            "-".into()
        } else {
            spread(&Series::new(seen), 1)
        };
        table.row(vec![format!("{delay} ms"), figures, count]);
    }
    section.table(table);
}

fn percentiles(section: &mut Section, cells: &[Cell], at_once: u32, title: &str) {
    let columns = [
        "",
        "p99.9 × nextval",
        "p50",
        "p99",
        "p99.9",
        "p99.99",
        "max",
        "statements",
    ];
    let mut table = Table::new(title, &columns);
    for delay in DELAYS {
        let of = |leaf: bool| {
            cells
                .iter()
                .find(|cell| (cell.delay, cell.at_once, cell.leaf) == (delay, at_once, leaf))
        };
        let (Some(leaf), Some(sequence)) = (of(true), of(false)) else {
            continue;
        };
        let ratio = leaf
            .series(|round| round.p999_ns)
            .over(&sequence.series(|round| round.p999_ns));
        let warm = format!("{}, warm", called(leaf));
        for (label, samples, ratio) in [
            (called(leaf), &leaf.all, number(ratio.median(), 2)),
            (warm, &leaf.warm, "-".into()),
            (called(sequence), &sequence.all, number(1.0, 2)),
        ] {
            let mut row = vec![label, ratio];
            row.extend(PERCENTS.map(|(_, percent)| {
                if samples.is_empty() {
                    "-".into()
                } else {
                    number(us(percentile(samples, percent)), 0)
                }
            }));
            row.push(samples.len().to_string());
            table.row(row);
        }
        for cell in [leaf, sequence] {
            for (name, percent) in PERCENTS {
                let pooled = Series::new(vec![us(percentile(&cell.all, percent))]);
                section.keep(
                    title,
                    &called(cell),
                    &format!("µs, {name}, all rounds"),
                    &pooled,
                );
            }
            section.keep(
                title,
                &called(cell),
                "ns, p99.9",
                &cell.series(|round| round.p999_ns),
            );
            section.keep(
                title,
                &called(cell),
                "ids per second",
                &cell.series(|round| round.ids_per_second),
            );
        }
    }
    section.table(table);
}

#[expect(
    clippy::cast_precision_loss,
    reason = "shorter than 2^52 ns, which are 52 days"
)]
fn us(ns: u64) -> f64 {
    ns as f64 / 1000.0
}

fn waits(section: &mut Section, cells: &[Cell]) {
    let columns = [
        "",
        "ids/s",
        "grown after ms",
        "waits until then",
        "ms together",
        "waits after",
        "ms together",
    ];
    let title = "Calls of leaf_segment_next that had to wait, median (min .. max) of the rounds";
    let mut table = Table::new(title, &columns);
    for cell in cells.iter().filter(|cell| cell.leaf) {
        let kind = if cell.at_once == 1 {
            "steady"
        } else {
            "full speed"
        };
        let label = format!("{kind}, commit_delay {} ms", cell.delay);
        let shown = |series: Option<Series>, digits: usize| {
            series.map_or("-".into(), |series| spread(&series, digits))
        };
        let grown: Option<Vec<f64>> = cell
            .rounds
            .iter()
            .map(|round| Some(round.grown?.as_secs_f64() * 1000.0))
            .collect();
        let cold = |figure: fn(&Waits) -> f64| cell.waits(|round| Some(round.cold), figure);
        let warm = |figure: fn(&Waits) -> f64| cell.waits(|round| round.warm, figure);
        let figures = [
            ("waits until the step has grown", cold(|waits| waits.count)),
            ("ms waited until the step has grown", cold(|waits| waits.ms)),
            ("waits after", warm(|waits| waits.count)),
            ("ms waited after", warm(|waits| waits.ms)),
        ];
        let mut row = vec![
            label.clone(),
            number(cell.series(|round| round.ids_per_second).median(), 0),
            shown(grown.map(Series::new), 0),
        ];
        for (index, (unit, series)) in figures.into_iter().enumerate() {
            if let Some(series) = &series {
                section.keep("Waits", &label, unit, series);
            }
            row.push(shown(series, index % 2));
        }
        table.row(row);
    }
    section.table(table);
    section.say("A dash: in at least one round the step had not grown when the time was over.");
}

fn checks(section: &mut Section, cells: &[Cell]) {
    let of = |delay: u64, at_once: u32| {
        cells
            .iter()
            .find(|cell| cell.leaf && (cell.delay, cell.at_once) == (delay, at_once))
    };
    let steady = of(20, 1).and_then(|cell| cell.waits(|round| round.warm, |waits| waits.count));
    if let Some(measured) = steady {
        section.check(Check {
            target: Target::SteadyLoad,
            what: format!(
                "waits, commit_delay 20 ms, of all rounds: {}",
                range(&measured, 0)
            ),
            measured,
            shown: (0, ""),
            bound: Bound::AtMost(0.0),
        });
    }
    let cold =
        of(0, AT_ONCE).and_then(|cell| cell.waits(|round| Some(round.cold), |waits| waits.ms));
    if let Some(measured) = cold {
        section.check(Check {
            target: Target::FromCold,
            what: "all waits together, commit_delay 0".into(),
            measured,
            shown: (1, "ms"),
            bound: Bound::AtMost(100.0),
        });
    }
}

fn chart(cells: &[Cell]) -> Chart {
    let lines = cells
        .iter()
        .filter(|cell| cell.at_once == 1 && cell.delay > 0)
        .map(|cell| {
            let source = if cell.leaf { SEGMENT } else { CACHE_1 };
            let points = PERCENTS
                .iter()
                .enumerate()
                .map(|(place, (_, percent))| (place, us(percentile(&cell.all, *percent)) / 1000.0));
            Line {
                name: format!("{source}, {} ms", cell.delay),
                points: points.collect(),
                colour: colour(source),
                dashed: !cell.leaf,
            }
        });
    let positions = (0..).zip(PERCENTS).map(|(step, (name, _))| Position {
        step,
        name: name.into(),
    });
    Chart::lines(
        "latency.svg",
        "One id in a statement, 8 sessions, from cold, with slow commits",
        ("percentile of the statements", "milliseconds"),
        positions.collect(),
        Scale::Logarithmic,
        lines.collect(),
    )
}
