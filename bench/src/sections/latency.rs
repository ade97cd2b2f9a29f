//! Latency of single statements while claims are slow, from a cold start and later.

use std::time::Duration;

use leaf_id_tests::{Server, Session, wait_until};

use crate::clients::{Clients, Run};
use crate::contender::{CACHE_1000, Contender, SEGMENT, SERIAL};
use crate::figures::{in_turns, percentile};
use crate::options::Options;
use crate::report::Section;
use crate::servers;
use crate::table::Table;

const SESSIONS: usize = 8;
/// Milliseconds that a commit waits before it flushes, to simulate a slow disk or standby.
const DELAYS: [u32; 2] = [0, 20];
const CONTENDERS: [&Contender; 3] = [&SEGMENT, &SERIAL, &CACHE_1000];
/// Title, ids per statement, and milliseconds of half a round in a quick and a full run.
const LOADS: [(&str, u32, u64, u64); 2] = [
    ("Steady load, one id in a statement", 1, 300, 2000),
    ("Full speed, 1,000 ids in a statement", 1000, 200, 1000),
];
const COLUMNS: [(&str, usize); 7] = [
    ("p50, µs", 0),
    ("p99.9, µs", 0),
    ("max, µs", 0),
    ("waits", 0),
    ("from cold: max, µs", 0),
    ("from cold: waits", 0),
    ("from cold: ms waited", 1),
];

/// Measures the section.
pub fn measure(options: &Options, section: &mut Section) {
    let server = servers::start(&[("commit_siblings", "0")]);
    let mut clients = Clients::connect(&server, SESSIONS);
    let mut session = servers::session(&server);
    section.say(format!(
        "{SESSIONS} sessions, each of which waits for its result before it sends the next prepared \
         SELECT. Each round has a new tag with a step of 1,000, or a new sequence; the first half of \
         the round is the one from cold. A commit_delay of 20 ms makes claims slow, and likewise the \
         commits for which nextval waits. Waits are calls that waited for a segment, of all \
         sessions together."
    ));
    let mut created = 0;
    for (title, at_once, quick, full) in LOADS {
        eprintln!("    {title}");
        let lasts = options.pick_ms(quick, full);
        let cells = DELAYS.map(|delay| CONTENDERS.map(|contender| (delay, contender)));
        let cells = cells.as_flattened();
        let measured = in_turns(options.rounds, cells, |(delay, contender)| {
            created += 1;
            let source = format!("latency_{created}");
            contender.create(&mut session, &source);
            delay_commits(&server, &mut session, *delay);
            let call = contender.call(&source);
            let sql = match at_once {
                1 => format!("SELECT {call}"),
                _ => format!("SELECT count({call}) FROM generate_series(1, {at_once})"),
            };
            let mut half = || {
                let run = clients.run(SESSIONS, lasts, |_| sql.clone());
                (run, waits(&mut session, &source))
            };
            let (cold, cold_waits) = half();
            let (warm, all_waits) = half();
            [
                us(&warm, 500),
                us(&warm, 999),
                us(&warm, 1000),
                all_waits[0] - cold_waits[0],
                us(&cold, 1000),
                cold_waits[0],
                cold_waits[1],
            ]
        });
        let mut table = Table::new(title, &COLUMNS);
        for ((delay, contender), figures) in cells.iter().zip(measured) {
            table.row(
                format!("{}, commit_delay {delay} ms", contender.label),
                figures,
            );
        }
        section.table(table);
    }
}

/// Calls that waited for a segment of the tag, and the total wait in milliseconds; 0 for a
/// sequence.
fn waits(session: &mut Session, tag: &str) -> [f64; 2] {
    ["waits", "waited_ms"].map(|figure| {
        session.value(&format!(
            "SELECT coalesce(min({figure})::float8, 'NaN') FROM leaf_id.tags_detail
                 WHERE tag = '{tag}'"
        ))
    })
}

/// Percentile of statements in microseconds.
#[expect(clippy::cast_precision_loss, reason = "shorter than 52 days")]
fn us(run: &Run, per_mille: usize) -> f64 {
    percentile(&run.took, per_mille) as f64 / 1000.0
}

fn delay_commits(server: &Server, session: &mut Session, ms: u32) {
    let shown = format!("{}", ms * 1000);
    let sql = "SELECT setting FROM pg_settings WHERE name = 'commit_delay'";
    if session.value::<String>(sql) != shown {
        server.set("commit_delay", &shown);
        wait_until(Duration::from_secs(10), "the new commit_delay", || {
            session.value::<String>(sql) == shown
        });
    }
}
