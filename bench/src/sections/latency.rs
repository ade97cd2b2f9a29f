//! How long single calls take while claims are fast, and while they are slow.

mod load;

use std::time::Duration;

use leaf_id_tests::Session;

use crate::chart::{Chart, Line, Position, Scale};
use crate::contender::{CACHE_1, CACHE_1000, SEGMENT, color};
use crate::context::Context;
use crate::figures::{HundredthsOfPercent, Series, number, percentile, spread};
use crate::fixture::Fixture;
use crate::report::Section;
use crate::table::Table;
use crate::targets::{Bound, Check, Target};
use load::{Round, Waits};

const SESSIONS: usize = 8;
/// Milliseconds that a commit waits before it flushes: stands for a slow disk or standby.
const DELAYS: [u64; 4] = [0, 5, 20, 100];
/// Contenders.
const SOURCES: [&str; 3] = [SEGMENT, CACHE_1, CACHE_1000];
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
    source: &'static str,
    /// Nanoseconds of all statements, and of those after the step had grown.
    all: Vec<u64>,
    warm: Vec<u64>,
    rounds: Vec<Round>,
}

impl Cell {
    fn series(&self, figure: impl Fn(&Round) -> f64) -> Series {
        Series::new(self.rounds.iter().map(figure).collect())
    }

    fn is_leaf(&self) -> bool {
        self.source == SEGMENT
    }

    /// The figure of each round that has it, if any does.
    fn figures(&self, figure: impl Fn(&Round) -> Option<f64>) -> Option<Series> {
        let figures: Vec<_> = self.rounds.iter().filter_map(figure).collect();
        (!figures.is_empty()).then(|| Series::new(figures))
    }

    /// In how many rounds the step had grown before the time was up.
    fn grown(&self) -> String {
        let grown = self.rounds.iter().filter(|round| round.grown.is_some());
        format!("{} of {}", grown.count(), self.rounds.len())
    }
}

/// Measures all of it.
pub fn run(context: &Context, section: &mut Section) {
    // Each source has the same total time of steady load, so that their largest figures can be
    // compared.
    let rounds = u64::try_from(context.options.rounds).unwrap_or(u64::MAX);
    let steady = Duration::from_millis(context.options.pick(3_000, 28_000) / rounds);
    let full = context.options.pick_ms(300, 1_500);
    let fixture = Fixture::start(context.running, &[("commit_siblings", "0")]);
    let mut sessions: Vec<_> = (0..SESSIONS).map(|_| fixture.session()).collect();
    let mut monitor = fixture.session();
    section.say(format!(
        "{SESSIONS} sessions run a prepared SELECT f over and over, and the client times \
         each statement; once with one id per statement (steady load, {} ms in each of {} \
         rounds, which is {} s for each source and delay) and once with {} (full speed, \
         {} ms). In each round leaf_segment_next has a new tag with a step of 1,000, and \
         no warm-up. commit_delay, with commit_siblings = 0, makes claims slow; nextval \
         waits for its commit under the same delay. Percentiles are exact, over the \
         statements of all rounds.",
        steady.as_millis(),
        context.options.rounds,
        steady.as_millis() * u128::from(rounds) / 1000,
        number(f64::from(AT_ONCE), 0),
        full.as_millis()
    ));
    section.say(
        "\"Until the step has grown\" means until a segment holds the ids of one second \
         at this round's rate, or max_step (1,000,000). \"Warm\" means after that.",
    );

    let mut cells = Vec::new();
    for delay in DELAYS {
        for at_once in [1, AT_ONCE] {
            for source in SOURCES {
                cells.push(Cell {
                    delay,
                    at_once,
                    source,
                    all: Vec::new(),
                    warm: Vec::new(),
                    rounds: Vec::new(),
                });
            }
        }
    }
    let mut set = None;
    for round in 0..context.options.rounds {
        eprintln!("    round {}", round + 1);
        for (place, cell) in cells.iter_mut().enumerate() {
            if set != Some(cell.delay) {
                delay_commits(&fixture, &mut monitor, cell.delay);
                set = Some(cell.delay);
            }
            let source = format!("latency_{round}_{place}");
            let create = match cell.source {
                SEGMENT => format!("SELECT leaf_tag_create('{source}')"),
                CACHE_1000 => format!("CREATE SEQUENCE {source} CACHE 1000"),
                _ => format!("CREATE SEQUENCE {source}"),
            };
            monitor.run(&create);
            let lasts = if cell.at_once == 1 { steady } else { full };
            let load = load::Load {
                source: &source,
                leaf: cell.is_leaf(),
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
    waits(section, &cells);
    section.say(
        "Each session waits for its result before it sends the next statement (a closed \
         loop), so a long wait counts once among many short calls, and few percentiles \
         show it: see max, and the waits above.",
    );
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
    checks(section, &cells);
    section.say(format!(
        "The chart shows steady load: commit_delay 20 ms for all as solid lines, and 100 \
         ms for {SEGMENT} and {CACHE_1} as dashed ones. The table has the others.",
    ));
    section.chart(chart(&cells));
}

fn delay_commits(fixture: &Fixture, monitor: &mut Session, ms: u64) {
    let us = (ms * 1000).to_string();
    fixture.server.set("commit_delay", &us);
    leaf_id_tests::wait_until(Duration::from_secs(10), "the new commit_delay", || {
        monitor.value::<String>("SELECT setting FROM pg_settings WHERE name = 'commit_delay'") == us
    });
}

fn called(cell: &Cell) -> String {
    format!("{}, commit_delay {} ms", cell.source, cell.delay)
}

/// Shows whether commit_delay has made claims slow.
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
        "p99.9 × CACHE 1",
        "p50",
        "p99",
        "p99.9",
        "p99.99",
        "max",
        "statements",
    ];
    let mut table = Table::new(title, &columns);
    for delay in DELAYS {
        let own: Vec<_> = cells
            .iter()
            .filter(|cell| (cell.delay, cell.at_once) == (delay, at_once))
            .collect();
        let p999 = |cell: &Cell| cell.series(|round| round.p999_ns);
        let base = own.iter().find(|cell| cell.source == CACHE_1);
        let mut rows = Vec::new();
        for cell in &own {
            let ratio = base.map(|base| p999(cell).over(&p999(base)).median());
            let ratio = ratio.map_or("-".into(), |ratio| number(ratio, 2));
            rows.push((called(cell), &cell.all, ratio));
            if cell.is_leaf() {
                let warm = format!("{}, warm", called(cell));
                rows.push((warm, &cell.warm, "-".into()));
            }
        }
        for (label, samples, ratio) in rows {
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
        for cell in own {
            for (name, percent) in PERCENTS {
                let pooled = Series::new(vec![us(percentile(&cell.all, percent))]);
                section.keep(
                    title,
                    &called(cell),
                    &format!("µs, {name}, all rounds"),
                    &pooled,
                );
            }
            section.keep(title, &called(cell), "ns, p99.9", &p999(cell));
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
        "grown in rounds",
        "grown after ms",
        "waits until then",
        "ms in total",
        "waits after",
        "ms in total",
    ];
    let title = "Calls of leaf_segment_next that had to wait, median (min .. max) of the rounds";
    let mut table = Table::new(title, &columns);
    for cell in cells.iter().filter(|cell| cell.is_leaf()) {
        let kind = if cell.at_once == 1 {
            "steady"
        } else {
            "full speed"
        };
        let label = format!("{kind}, commit_delay {} ms", cell.delay);
        let shown = |series: Option<Series>, digits: usize| {
            series.map_or("-".into(), |series| spread(&series, digits))
        };
        let grown = cell.figures(|round| Some(round.grown?.as_secs_f64() * 1000.0));
        let cold = |figure: fn(&Waits) -> f64| cell.figures(|round| Some(figure(&round.cold)));
        let warm =
            |figure: fn(&Waits) -> f64| cell.figures(|round| round.warm.as_ref().map(figure));
        let figures = [
            ("waits until the step has grown", cold(|waits| waits.count)),
            ("ms waited until the step has grown", cold(|waits| waits.ms)),
            ("waits after", warm(|waits| waits.count)),
            ("ms waited after", warm(|waits| waits.ms)),
        ];
        let mut row = vec![
            label.clone(),
            number(cell.series(|round| round.ids_per_second).median(), 0),
            cell.grown(),
            shown(grown, 0),
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
    section.say(
        "\"Grown after\" and \"waits after\" cover the rounds in which the step had grown \
         before the time was up (a dash: in none). In the other rounds, \"waits until \
         then\" covers the whole round.",
    );
}

fn checks(section: &mut Section, cells: &[Cell]) {
    let of = |delay: u64, at_once: u32| {
        cells
            .iter()
            .find(|cell| cell.is_leaf() && (cell.delay, cell.at_once) == (delay, at_once))
    };
    if let Some(cell) = of(20, 1) {
        let (target, bound) = (Target::SteadyLoad, Bound::AtMost(0.0));
        let warm = cell.figures(|round| round.warm.map(|waits| waits.count));
        section.check(warm.map_or_else(
            || {
                let why = "in no round had the step grown before the time was up";
                Check::not_measured(target, "waits, commit_delay 20 ms", bound, why)
            },
            |measured| Check {
                target,
                what: format!(
                    "waits, commit_delay 20 ms, {} rounds (those in which the step had grown)",
                    cell.grown()
                ),
                measured,
                shown: (0, ""),
                bound,
                limit: None,
            },
        ));
    }
    if let Some(cell) = of(0, AT_ONCE) {
        section.check(Check {
            target: Target::FromCold,
            what: "waits in total, commit_delay 0".into(),
            measured: cell.series(|round| round.cold.ms),
            shown: (1, "ms"),
            bound: Bound::AtMost(100.0),
            limit: None,
        });
    }
}

fn chart(cells: &[Cell]) -> Chart {
    // More lines could not be told apart.
    let shown = |cell: &Cell| cell.delay == 20 || (cell.delay == 100 && cell.source != CACHE_1000);
    let lines = cells
        .iter()
        .filter(|cell| cell.at_once == 1 && shown(cell))
        .map(|cell| {
            let points = PERCENTS
                .iter()
                .enumerate()
                .map(|(place, (_, percent))| (place, us(percentile(&cell.all, *percent)) / 1000.0));
            Line {
                name: format!("{}, {} ms", cell.source, cell.delay),
                points: points.collect(),
                color: color(cell.source),
                dashed: cell.delay == 100,
            }
        });
    let positions = (0..).zip(PERCENTS).map(|(step, (name, _))| Position {
        step,
        name: name.into(),
    });
    Chart::lines(
        "latency.svg",
        "One id in a statement, 8 sessions, from cold; commit_delay 20 ms, 100 ms dashed",
        ("percentile of the statements", "milliseconds"),
        positions.collect(),
        Scale::Logarithmic,
        lines.collect(),
    )
}
