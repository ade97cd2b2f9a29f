//! Many sessions at once, on one source of ids and on one each.

use std::time::Duration;

use crate::chart::{Chart, Line, Scale};
use crate::clients::{Clients, SESSIONS, positions};
use crate::contender::{CACHE_1, CACHE_32, CACHE_1000, SEGMENT, color};
use crate::context::Context;
use crate::figures::{Series, count, in_turns, spread};
use crate::fixture::Fixture;
use crate::report::Section;
use crate::table::Table;
use crate::targets::{Bound, Check, Target};

/// Ids of one statement.
const IDS: u32 = 20_000;

/// Label, the call on the shared source, and the call on the source of session `N`.
const CONTENDERS: [(&str, &str, &str); 4] = [
    (
        SEGMENT,
        "leaf_segment_next('one')",
        "leaf_segment_next('own_N')",
    ),
    (CACHE_1, "nextval('one_1')", "nextval('own_1_N')"),
    (CACHE_32, "nextval('one_32')", "nextval('own_32_N')"),
    (CACHE_1000, "nextval('one_1000')", "nextval('own_1000_N')"),
];

/// Measures all of it.
pub fn run(context: &Context, section: &mut Section) {
    let lasts: Duration = context.options.pick_ms(100, 1000);
    let fixture = Fixture::start(context.running, &[]);
    let most = SESSIONS.into_iter().max().unwrap_or(1);
    let mut clients = Clients::connect(&fixture, most);
    let session = clients.one();
    session.create_tag("one");
    for cache in [1, 32, 1000] {
        session.run(&format!("CREATE SEQUENCE one_{cache} CACHE {cache}"));
        for index in 0..most {
            session.run(&format!(
                "CREATE SEQUENCE own_{cache}_{index} CACHE {cache}"
            ));
        }
    }
    for index in 0..most {
        session.create_tag(&format!("own_{index}"));
    }
    section.say(format!(
        "All sessions connect, then start together and run SELECT count(f) FROM \
         generate_series(1, {}) for {} ms; a statement that has begun is finished and \
         counts. Figures are ids per second of all sessions together, loop included.",
        count(IDS),
        lasts.as_millis()
    ));

    // Every number of sessions of every contender in each round.
    let cells: Vec<(bool, usize, usize)> = [false, true]
        .into_iter()
        .flat_map(|own| SESSIONS.map(|sessions| (own, sessions)))
        .flat_map(|(own, sessions)| {
            (0..CONTENDERS.len()).map(move |contender| (own, sessions, contender))
        })
        .collect();
    let series = in_turns(
        context.options.rounds,
        &cells,
        |(own, sessions, contender)| {
            let (_, one, each) = CONTENDERS[*contender];
            let done = clients.run(*sessions, lasts, |index| {
                let call = if *own {
                    each.replace('N', &index.to_string())
                } else {
                    one.to_owned()
                };
                format!("SELECT count({call}) FROM generate_series(1, {IDS})")
            });
            done.per_second() * f64::from(IDS)
        },
    );
    let of = |own: bool, sessions: usize, label: &str| {
        let found = cells
            .iter()
            .position(|cell| (cell.0, cell.1) == (own, sessions) && CONTENDERS[cell.2].0 == label);
        found.map(|index| &series[index])
    };

    for (own, title, file) in [
        (false, "One tag, one sequence", "sessions-one-tag.svg"),
        (true, "A tag each, a sequence each", "sessions-own-tags.svg"),
    ] {
        let of = |sessions: usize, label: &str| of(own, sessions, label);
        matrix(
            section,
            &format!("{title}: times nextval CACHE 1"),
            |sessions, label| {
                let ratio = of(sessions, label)?.over(of(sessions, CACHE_1)?);
                Some(spread(&ratio, 2))
            },
        );
        matrix(
            section,
            &format!("{title}: million ids per second"),
            |sessions, label| {
                let millions = of(sessions, label)?.map(|ids| ids / 1e6);
                Some(spread(&millions, 2))
            },
        );
        for (sessions, (label, ..)) in SESSIONS.iter().flat_map(|n| CONTENDERS.map(|c| (n, c))) {
            if let Some(series) = of(*sessions, label) {
                let title = format!("{title}, sessions: {sessions}");
                section.keep(&title, label, "ids per second", series);
            }
        }
        section.chart(chart(file, title, of));
    }
    checks(section, |sessions, label| of(false, sessions, label));
}

/// A table of contenders by numbers of sessions.
fn matrix(section: &mut Section, title: &str, cell: impl Fn(usize, &str) -> Option<String>) {
    let sessions = SESSIONS.map(|sessions| sessions.to_string());
    let mut columns = vec!["sessions"];
    columns.extend(sessions.iter().map(String::as_str));
    let mut table = Table::new(format!("{title}, median (min .. max)"), &columns);
    for (label, ..) in CONTENDERS {
        let mut row = vec![label.to_owned()];
        row.extend(SESSIONS.map(|sessions| cell(sessions, label).unwrap_or("-".into())));
        table.row(row);
    }
    section.table(table);
}

fn chart<'a>(
    file: &'static str,
    title: &str,
    of: impl Fn(usize, &str) -> Option<&'a Series>,
) -> Chart {
    let lines = CONTENDERS.iter().map(|(label, ..)| Line {
        name: (*label).into(),
        points: SESSIONS
            .iter()
            .enumerate()
            .filter_map(|(place, sessions)| Some((place, of(*sessions, label)?.median() / 1e6)))
            .collect(),
        color: color(label),
        dashed: false,
    });
    Chart::lines(
        file,
        &format!("{title}: all sessions together"),
        ("sessions", "million ids per second"),
        positions(),
        Scale::Linear,
        lines.collect(),
    )
}

fn checks<'a>(section: &mut Section, of: impl Fn(usize, &str) -> Option<&'a Series>) {
    let Some(leaf) = of(8, SEGMENT) else { return };
    for (base, label, bound) in [
        (of(8, CACHE_1), "nextval CACHE 1", 4.0),
        (of(8, CACHE_1000), "nextval CACHE 1000", 1.0),
    ] {
        if let Some(base) = base {
            section.check(Check {
                target: Target::Sessions,
                what: format!("ids/s, relative to {label}"),
                measured: leaf.over(base),
                shown: (2, "×"),
                bound: Bound::AtLeast(bound),
                limit: None,
            });
        }
    }
    if let Some(alone) = of(1, SEGMENT) {
        section.check(Check {
            target: Target::NeverFewer,
            what: "ids/s, 8 sessions relative to 1".into(),
            measured: leaf.over(alone),
            shown: (2, "×"),
            bound: Bound::AtLeast(1.0),
            limit: None,
        });
    }
}
