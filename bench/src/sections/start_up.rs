//! Time from the start of a server, and from the creation of a tag, to the first id.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use leaf_id_tests::{Server, Session, Stop, timed, wait_until};

use crate::figures::in_turns;
use crate::options::Options;
use crate::report::Section;
use crate::servers;
use crate::table::Table;

/// Time limit for workers to start or to exit.
const LIMIT: Duration = Duration::from_secs(30);
/// File in the data directory with segments saved by a clean shutdown.
const SAVED_RANGES: &str = "leaf_id_saved_ranges.json";

/// Measures the section.
pub fn measure(options: &Options, section: &mut Section) {
    section.say(
        "Starts are after a clean shutdown, until a client that tries every half millisecond is \
         connected. The first id of a server is requested at once on that connection. The first id \
         of a tag is requested in a session that is connected, just after the tag was created.",
    );
    let mut table = Table::new("Times", &[("ms", 1)]);
    starts(options, &mut table);
    first_of_a_server(options, &mut table);
    first_of_a_tag(options, &mut table);
    section.table(table);
}

/// Starts the server, connects as soon as it accepts connections, and runs `work`. Returns the
/// milliseconds of the start, and the result of `work`.
fn start<T>(server: &Server, work: impl FnOnce(&mut Session) -> T) -> (f64, T) {
    let began = Instant::now();
    thread::scope(|scope| {
        // Also waits for the server, but polls too rarely to measure the time.
        scope.spawn(|| server.launch());
        loop {
            if let Ok(mut session) = server.try_connect("postgres", "postgres") {
                return (ms(began.elapsed()), work(&mut session));
            }
            assert!(began.elapsed() < LIMIT, "the server does not answer");
            thread::sleep(Duration::from_micros(500));
        }
    })
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

fn starts(options: &Options, table: &mut Table) {
    eprintln!("    starts");
    let servers = [
        (
            "server start, without leaf_id",
            ("shared_preload_libraries", ""),
        ),
        ("server start", ("leaf_id.max_tags", "1024")),
        (
            "server start, max_tags 1,000,000",
            ("leaf_id.max_tags", "1000000"),
        ),
    ]
    .map(|(label, setting)| (label, servers::start_bare(&[setting])));
    let times = in_turns(options.rounds, &servers, |(_, server)| {
        server.stop(Stop::Fast);
        [start(server, |_| ()).0]
    });
    for ((label, _), times) in servers.iter().zip(times) {
        table.row(*label, times);
    }
}

fn first_of_a_server(options: &Options, table: &mut Table) {
    eprintln!("    first ids of a server");
    let server = servers::start(&[]);
    let mut session = servers::session(&server);
    session.create_tag("first");
    session.run("CREATE SEQUENCE first; SELECT leaf_segment_next('first')");
    session.wait_for_spare("first");
    drop(session);
    // Label, expression, and whether saved ranges are used.
    let kinds = [
        ("first id of a server", "leaf_segment_next('first')", true),
        (
            "first id of a server, no ranges saved",
            "leaf_segment_next('first')",
            false,
        ),
        (
            "first snowflake id of a server",
            "leaf_snowflake_next()",
            true,
        ),
        ("first nextval of a server", "nextval('first')", true),
    ];
    let times = in_turns(options.rounds, &kinds, |(_, call, saved)| {
        server.stop(Stop::Fast);
        let file = server.data_dir().join(SAVED_RANGES);
        if !saved {
            fs::remove_file(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        }
        let (_, ((), took)) = start(&server, |session| {
            timed(|| session.run(&format!("SELECT {call}")))
        });
        let mut session = servers::session(&server);
        // To have ranges for the next shutdown to save.
        session.next("first");
        session.wait_for_spare("first");
        [ms(took)]
    });
    for ((label, ..), times) in kinds.iter().zip(times) {
        table.row(*label, times);
    }
}

fn first_of_a_tag(options: &Options, table: &mut Table) {
    eprintln!("    first ids of a tag");
    let server = servers::start(&[("leaf_id.allocator_idle_timeout", "1s")]);
    let mut session = servers::session(&server);
    let mut created = 0;
    let kinds = [
        ("first id of a tag", true),
        ("first id of a tag, no allocator running", false),
    ];
    let times = in_turns(options.rounds, &kinds, |(_, running)| {
        created += 1;
        if *running {
            // A claim for another tag starts it, and it remains for a second.
            let other = format!("other_{created}");
            session.create_tag(&other);
            session.next(&other);
        }
        wait_until(LIMIT, "the allocator", || {
            session.worker("allocator").is_some() == *running
        });
        let tag = format!("new_{created}");
        session.create_tag(&tag);
        let sql = format!("SELECT leaf_segment_next('{tag}')");
        [ms(timed(|| session.run(&sql)).1)]
    });
    for ((label, _), times) in kinds.iter().zip(times) {
        table.row(*label, times);
    }
}
