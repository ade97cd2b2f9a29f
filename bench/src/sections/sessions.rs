//! Concurrent sessions, with a shared source of ids and with one each.

use std::collections::HashSet;
use std::time::Duration;

use leaf_id_tests::{Server, in_threads};

use crate::clients::Clients;
use crate::contender::{
    CACHE_32, CACHE_1000, Contender, SEGMENT, SERIAL, SHARED_ATOMIC, SNOWFLAKE,
};
use crate::figures::{Series, in_turns, number};
use crate::options::Options;
use crate::plot::{self, Plot, Shape};
use crate::report::Section;
use crate::servers;
use crate::table::Table;
use crate::targets::Target;

/// Numbers of concurrent sessions.
const SESSIONS: [usize; 7] = [1, 2, 4, 8, 16, 32, MOST];
const MOST: usize = 64;
/// Ids per statement, times the number of sessions: enough to make the time between statements
/// negligible, and few enough for all sessions to finish at about the same time.
const IDS: usize = 200_000;
/// Upper limit of snowflake ids: 4,096 per millisecond, less the mean of the random start below
/// 100.
const CEILING: f64 = (4096.0 - 49.5) * 1000.0;

const COUNTERS: [&Contender; 5] = [&SEGMENT, &SHARED_ATOMIC, &SERIAL, &CACHE_32, &CACHE_1000];

/// A contender with one tag or sequence, or with one per session.
struct Source {
    contender: &'static Contender,
    name: String,
    each: bool,
}

impl Source {
    fn create(server: &Server, contender: &'static Contender, name: String, each: bool) -> Self {
        let source = Self {
            contender,
            name,
            each,
        };
        let mut session = servers::session(server);
        for index in 0..if each { MOST } else { 1 } {
            contender.create(&mut session, &source.of(index));
        }
        source
    }

    /// Name of a session's tag or sequence.
    fn of(&self, session: usize) -> String {
        match self.each {
            true => format!("{}_{session}", self.name),
            false => self.name.clone(),
        }
    }

    /// Ids per second of this number of sessions together.
    fn rate(&self, clients: &mut Clients, sessions: usize, lasts: Duration) -> f64 {
        let ids = IDS / sessions;
        let run = clients.run(sessions, lasts, |session| {
            let call = self.contender.call(&self.of(session));
            format!("SELECT count({call}) FROM (SELECT generate_series(1, {ids})) rows")
        });
        #[expect(clippy::cast_precision_loss, reason = "at most 200,000")]
        let ids = ids as f64;
        run.per_second() * ids
    }
}

/// Measures the section.
pub fn measure(options: &Options, section: &mut Section) {
    let server = servers::start(&[]);
    servers::create_noop(&server);
    let mut clients = Clients::connect(&server, MOST);
    let lasts = options.pick_ms(100, 1000);
    section.say(format!(
        "All sessions start together and run SELECT count(f) FROM (SELECT generate_series(1, n)) \
         rows for {} ms; n is 200,000 divided by the number of sessions. Figures are ids of all \
         sessions together, loop included. The layout of snowflake ids has room for {} in a \
         second: 4,096 in each millisecond, beginning at a random number below 100.",
        lasts.as_millis(),
        number(CEILING, 0)
    ));
    let names = SESSIONS.map(|sessions| format!("sessions: {sessions}"));
    let columns = names.each_ref().map(|name| (name.as_str(), 2));
    let mut rates = |sources: &[Source]| rates(options.rounds, &mut clients, sources, lasts);

    for (title, name, each) in [
        ("One tag, one sequence: million ids/s", "one", false),
        ("A tag each, a sequence each: million ids/s", "own", true),
    ] {
        eprintln!("    {title}");
        let sources = COUNTERS.iter().enumerate().map(|(place, contender)| {
            Source::create(&server, contender, format!("{name}_{place}"), each)
        });
        let mut table = Table::new(title, &columns).compared_with(SERIAL.label);
        let rates = rates(&sources.collect::<Vec<_>>());
        for (contender, rates) in COUNTERS.iter().zip(rates) {
            table.row(contender.label, rates.map(|rate| rate.map(|ids| ids / 1e6)));
        }
        // This one, since all sessions that insert into a table share the tag or sequence of its
        // column default.
        if !each {
            section.plot(plot(&table));
        }
        section.table(table);
    }

    eprintln!("    snowflake ids");
    let snowflake = Source::create(&server, &SNOWFLAKE, String::new(), false);
    let mut table = Table::new("Snowflake ids: % of the ceiling", &columns);
    for rates in rates(&[snowflake]) {
        let shares = rates.map(|rate| rate.map(|ids| ids / CEILING * 100.0));
        table.row(SNOWFLAKE.label, shares);
    }
    for column in [0, SESSIONS.len() - 1] {
        let share = table.of(SNOWFLAKE.label, column).clone();
        section.target(Target::Ceiling, &names[column], share);
    }
    section.table(table);
    assert_different_snowflake_ids(&server);
}

fn plot(table: &Table) -> Plot {
    let rates = |label| (0..SESSIONS.len()).map(move |column| table.of(label, column).clone());
    let rows = COUNTERS
        .iter()
        .map(|own| (own.label, rates(own.label).collect()));
    Plot {
        file: plot::SESSIONS,
        title: "Ids of one tag or sequence, by concurrent sessions".into(),
        unit: "million ids a second, of all sessions together",
        shape: Shape::Lines(SESSIONS.into()),
        rows: rows.collect(),
    }
}

/// Ids per second of each source, for each number of sessions.
fn rates(
    rounds: usize,
    clients: &mut Clients,
    sources: &[Source],
    lasts: Duration,
) -> Vec<[Series; SESSIONS.len()]> {
    // Measure contenders with the same number of sessions successively.
    let cells: Vec<_> = SESSIONS
        .iter()
        .flat_map(|sessions| sources.iter().map(move |source| (source, *sessions)))
        .collect();
    let rates = in_turns(rounds, &cells, |(source, sessions)| {
        [source.rate(clients, *sessions, lasts)]
    });
    let rate = |column, row| {
        let [rate]: &[Series; 1] = &rates[column * sources.len() + row];
        rate.clone()
    };
    (0..sources.len())
        .map(|row| std::array::from_fn(|column| rate(column, row)))
        .collect()
}

fn assert_different_snowflake_ids(server: &Server) {
    let sample: Vec<Vec<i64>> = in_threads(16, |_| {
        let mut session = servers::session(server);
        session.value("SELECT array_agg(leaf_snowflake_next()) FROM generate_series(1, 20000)")
    });
    let ids = sample.concat();
    let different: HashSet<_> = ids.iter().collect();
    assert_eq!(different.len(), ids.len(), "different snowflake ids");
}
