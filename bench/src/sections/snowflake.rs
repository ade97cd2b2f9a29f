//! How close snowflake ids come to their ceiling, and how much CPU time the sessions use there.

use std::collections::HashSet;

use leaf_id_tests::in_threads;

use crate::chart::{Chart, Line, Scale};
use crate::clients::{Clients, SESSIONS, cpu_ticks, positions};
use crate::contender::{SNOWFLAKE, SNOWFLAKES_PER_SECOND, color};
use crate::context::Context;
use crate::figures::{Series, count, in_turns, number, range, spread};
use crate::fixture::Fixture;
use crate::report::Section;
use crate::table::Table;
use crate::targets::{Bound, Check, Target};

/// Ids per statement, times the number of sessions: enough that the time between statements
/// does not count, and few enough that all sessions end at about the same time.
const IDS: usize = 200_000;
/// Clock ticks in a second, as /proc counts them on Linux.
const TICKS: f64 = 100.0;

/// Measures all of it.
pub fn run(context: &Context, section: &mut Section) {
    let lasts = context.options.pick_ms(300, 2000);
    let fixture = Fixture::start(context.running, &[]);
    let most = SESSIONS.into_iter().max().unwrap_or(1);
    let mut clients = Clients::connect(&fixture, most);
    section.say(format!(
        "SELECT count(leaf_snowflake_next()) FROM (SELECT generate_series(1, n)) rows, \
         which produces the rows one by one (a generate_series in FROM produces all rows \
         first, and no id is issued meanwhile), {} ms in each round; n is {} divided by \
         the number of sessions. The ceiling is {} ids per second: 4,096 per millisecond, \
         less 49.5, the mean of the random start. CPU time is that of the backends, user \
         and system, from /proc, in ticks of 10 ms.",
        lasts.as_millis(),
        count(whole(IDS)),
        number(SNOWFLAKES_PER_SECOND, 0)
    ));

    // User and system seconds of CPU time per second, and CPU nanoseconds per id.
    let mut cpu = Vec::new();
    let rates = in_turns(context.options.rounds, &SESSIONS, |sessions| {
        let ids = whole(IDS / sessions);
        let before = cpu_ticks(clients.pids(*sessions));
        let done = clients.run(*sessions, lasts, |_| {
            format!(
                "SELECT count(leaf_snowflake_next()) FROM (SELECT generate_series(1, {ids})) rows"
            )
        });
        let after = cpu_ticks(clients.pids(*sessions));
        let seconds = |ticks: u64| f64::from(whole(ticks)) / TICKS;
        let (user, system) = (seconds(after.0 - before.0), seconds(after.1 - before.1));
        let rate = done.per_second() * f64::from(ids);
        cpu.push([
            user / done.seconds,
            system / done.seconds,
            (user + system) * 1e9 / (rate * done.seconds),
        ]);
        rate
    });
    let cpu = |place: usize, which: usize| {
        let own = cpu.iter().skip(place).step_by(SESSIONS.len()).skip(1);
        Series::new(own.map(|figures| figures[which]).collect())
    };

    let columns = [
        "sessions",
        "of the ceiling",
        "min .. max",
        "ids/s",
        "CPU s per s, user",
        "system",
        "CPU ns per id",
    ];
    let title = "Ids per second of all sessions together";
    let mut table = Table::new(title, &columns);
    for (place, (sessions, rate)) in SESSIONS.iter().zip(&rates).enumerate() {
        let share = rate.map(|rate| rate / SNOWFLAKES_PER_SECOND);
        let [user, system, per_id] = [0, 1, 2].map(|which| cpu(place, which));
        let who = format!("sessions: {sessions}");
        for (unit, series) in [
            ("ids per second", rate),
            ("user CPU s per s", &user),
            ("system CPU s per s", &system),
            ("CPU ns per id", &per_id),
        ] {
            section.keep(title, &who, unit, series);
        }
        table.row(vec![
            sessions.to_string(),
            number(share.median(), 3),
            range(&share, 3),
            number(rate.median(), 0),
            number(user.median(), 2),
            number(system.median(), 2),
            spread(&per_id, 0),
        ]);
        if [1, 64].contains(sessions) {
            section.check(Check {
                target: Target::Snowflake,
                what: format!("share of the ceiling, sessions: {sessions}"),
                measured: share.map(|share| share * 100.0),
                shown: (1, "%"),
                bound: Bound::AtLeast(98.0),
                limit: None,
            });
        }
    }
    section.table(table);
    distinct(&fixture, section);
    section.chart(chart(&rates));
}

fn whole(number: impl TryInto<u32>) -> u32 {
    number.try_into().unwrap_or(u32::MAX)
}

/// A duplicate fails the bench.
fn distinct(fixture: &Fixture, section: &mut Section) {
    let sample: Vec<Vec<i64>> = in_threads(16, |_| {
        fixture
            .session()
            .value("SELECT array_agg(leaf_snowflake_next()) FROM generate_series(1, 20000)")
    });
    let ids: Vec<_> = sample.concat();
    let different: HashSet<_> = ids.iter().collect();
    assert_eq!(different.len(), ids.len(), "different snowflake ids");
    section.say(format!(
        "A sample from 16 concurrent sessions: {} ids, all different.",
        count(whole(ids.len()))
    ));
}

fn chart(rates: &[Series]) -> Chart {
    let ceiling = Line {
        name: "ceiling".into(),
        points: (0..SESSIONS.len())
            .map(|place| (place, SNOWFLAKES_PER_SECOND / 1e6))
            .collect(),
        color: color(""),
        dashed: true,
    };
    let measured = Line {
        name: SNOWFLAKE.into(),
        points: rates
            .iter()
            .map(|rate| rate.median() / 1e6)
            .enumerate()
            .collect(),
        color: color(SNOWFLAKE),
        dashed: false,
    };
    Chart::lines(
        "snowflake.svg",
        "Snowflake ids: all sessions together",
        ("sessions", "million ids per second"),
        positions(),
        Scale::Linear,
        vec![ceiling, measured],
    )
}
