//! What leaf_id costs up to the first id: shared memory, server start, and the first calls.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use leaf_id_tests::{Server, Session, Stop, timed, wait_until};

use crate::context::Context;
use crate::figures::{Series, in_turns, number, spread};
use crate::fixture::Fixture;
use crate::report::Section;
use crate::table::{Row, Table};
use crate::targets::{Bound, Check, Target};

/// How long workers may take to start or to end.
const LIMIT: Duration = Duration::from_secs(30);
/// What a clean shutdown saves of the segments, in the data directory.
const SAVED_RANGES: &str = "leaf_id_saved_ranges.json";
/// How often each kind of first id is measured, at least.
const FIRSTS: usize = 11;

/// For comparison, without a target.
const FIRST_NEXTVAL: &str = "nextval, CACHE 1";

/// Measures all of it.
pub fn run(context: &Context, section: &mut Section) {
    starts_and_memory(context, section);
    first_of_a_server(context, section);
    first_of_a_tag(context, section);
}

/// Starts the server, connects as soon as it accepts connections, and runs `work` at once.
/// Returns how long the start took, and the result of `work`.
fn start<T>(server: &Server, work: impl FnOnce(&mut Session) -> T) -> (Duration, T) {
    let began = Instant::now();
    thread::scope(|scope| {
        // Not waited for: it polls the server, but too rarely for this.
        scope.spawn(|| server.launch());
        loop {
            if let Ok(mut session) = server.try_connect("postgres", "postgres") {
                return (began.elapsed(), work(&mut session));
            }
            assert!(began.elapsed() < LIMIT, "the server does not answer");
            thread::sleep(Duration::from_micros(500));
        }
    })
}

fn starts_and_memory(context: &Context, section: &mut Section) {
    eprintln!("    starts");
    const NONE: &str = "without leaf_id";
    let kinds = [
        (
            NONE,
            [
                ("shared_preload_libraries", ""),
                ("leaf_id.max_tags", "1000"),
            ],
        ),
        ("max_tags 1,000", with_tags("1000")),
        ("max_tags 100,000", with_tags("100000")),
        ("max_tags 1,000,000", with_tags("1000000")),
    ];
    let fixtures: Vec<_> = kinds
        .iter()
        .map(|(_, conf)| Fixture::without_leaf_id(context.running, conf))
        .collect();
    let bytes: Vec<i64> = fixtures
        .iter()
        .map(|fixture| {
            fixture.session().value(
                "SELECT coalesce(sum(allocated_size), 0)::bigint FROM pg_shmem_allocations
                     WHERE name LIKE 'leaf_id%'",
            )
        })
        .collect();
    let places: Vec<_> = (0..fixtures.len()).collect();
    let starts = in_turns(context.options.rounds, &places, |place| {
        let server = &fixtures[*place].server;
        server.stop(Stop::Fast);
        start(server, |_| ()).0.as_secs_f64() * 1000.0
    });
    let rows: Vec<_> = kinds
        .iter()
        .zip(&starts)
        .map(|((label, _), series)| Row { label, series })
        .collect();
    let title = "Server start, until a session is connected";
    for row in &rows {
        section.keep(title, row.label, "ms", row.series);
    }
    section.say(
        "From the start of the postmaster, after a clean shutdown, until a client that \
         tries every half millisecond is connected.",
    );
    section.table(Table::comparison(title, "ms", 1, NONE, &rows));

    let mut table = Table::new("Shared memory", &["", "bytes", "bytes per tag"]);
    for ((label, _), (bytes, tags)) in kinds
        .iter()
        .zip(bytes.iter().zip([0, 1_000, 100_000, 1_000_000]))
    {
        let bytes = whole(*bytes);
        let each = if tags == 0 {
            f64::NAN
        } else {
            bytes / f64::from(tags)
        };
        table.row(vec![(*label).into(), number(bytes, 0), number(each, 1)]);
        section.keep("Shared memory", label, "bytes", &Series::new(vec![bytes]));
    }
    section.table(table);
    // The difference leaves out what all tags share.
    let slot = (whole(bytes[3]) - whole(bytes[2])) / 900_000.0;
    section.say(format!(
        "Each additional tag takes {} bytes (between max_tags 100,000 and 1,000,000).",
        number(slot, 1)
    ));
    section.check(Check {
        target: Target::ManyTags,
        what: "shared memory per tag, max_tags 100,000".into(),
        measured: Series::new(vec![whole(bytes[2]) / 100_000.0]),
        shown: (1, "bytes"),
        bound: Bound::AtMost(512.0),
        limit: None,
    });
}

fn with_tags(tags: &'static str) -> [(&'static str, &'static str); 2] {
    [
        ("shared_preload_libraries", "leaf_id"),
        ("leaf_id.max_tags", tags),
    ]
}

#[expect(clippy::cast_precision_loss, reason = "less than 2^52 bytes")]
fn whole(bytes: i64) -> f64 {
    bytes as f64
}

fn first_of_a_server(context: &Context, section: &mut Section) {
    eprintln!("    first ids of a server");
    let fixture = Fixture::start(context.running, &[]);
    let mut session = fixture.session();
    session.create_tag("first");
    session.run("SELECT leaf_segment_next('first')");
    session.wait_for_spare("first");
    let kinds = [
        (
            "leaf_segment_next, ranges saved",
            "leaf_segment_next('first')",
            true,
        ),
        (
            "leaf_segment_next, nothing saved",
            "leaf_segment_next('first')",
            false,
        ),
        ("leaf_snowflake_next", "leaf_snowflake_next()", true),
        (FIRST_NEXTVAL, "nextval('first')", true),
    ];
    session.run("CREATE SEQUENCE first");
    drop(session);
    let rounds = context.options.rounds.max(FIRSTS);
    let ready = in_turns(rounds, &kinds, |(_, call, saved)| {
        fixture.server.stop(Stop::Fast);
        let file = fixture.server.data_dir().join(SAVED_RANGES);
        if !saved {
            fs::remove_file(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        }
        let (_, ((), took)) = start(&fixture.server, |session| {
            timed(|| session.run(&format!("SELECT {call}")))
        });
        let mut session = fixture.session();
        // So that the next shutdown has ranges to save.
        session.run("SELECT leaf_segment_next('first')");
        session.wait_for_spare("first");
        took.as_secs_f64() * 1000.0
    });
    section.say(
        "The first id after a clean shutdown and start of the server: the call is made at \
         once on the first connection that the server accepts, and timed by the client. \
         (After a crash they come at once, too, with times ahead of the clock by up to \
         leaf_id.timestamp_reservation.)",
    );
    let labels: Vec<_> = kinds.iter().map(|(label, ..)| *label).collect();
    firsts(section, "The first id of a server", &labels, &ready, 50.0);
}

fn first_of_a_tag(context: &Context, section: &mut Section) {
    eprintln!("    first ids of a tag");
    let fixture = Fixture::start(context.running, &[("leaf_id.allocator_idle_timeout", "1s")]);
    let mut session = fixture.session();
    let mut made = 0;
    let kinds = [
        ("the allocator is running", true),
        ("no allocator is running", false),
    ];
    let rounds = context.options.rounds.max(FIRSTS);
    let series = in_turns(rounds, &kinds, |(_, running)| {
        made += 1;
        session.create_tag(&format!("new_{made}"));
        if *running {
            // A claim for another tag starts it, and it stays for a second.
            let busy = format!("busy_{made}");
            session.create_tag(&busy);
            session.next(&busy);
            wait_until(LIMIT, "the allocator", || {
                session.worker("allocator").is_some()
            });
        } else {
            wait_until(LIMIT, "the end of the allocator", || {
                session.worker("allocator").is_none()
            });
        }
        let sql = format!("SELECT leaf_segment_next('new_{made}')");
        let ((), took) = timed(|| session.run(&sql));
        took.as_secs_f64() * 1000.0
    });
    section.say(
        "The first id of a new tag, in a connected session: its segment is claimed while \
         the call waits. (leaf_id.allocator_idle_timeout = 1s.)",
    );
    let labels: Vec<_> = kinds.iter().map(|(label, _)| *label).collect();
    firsts(section, "The first id of a tag", &labels, &series, 20.0);
}

fn firsts(section: &mut Section, title: &str, labels: &[&str], series: &[Series], bound: f64) {
    let mut table = Table::new(title, &["", "ms, median (min .. max)"]);
    for (label, series) in labels.iter().zip(series) {
        section.keep(title, label, "ms", series);
        table.row(vec![(*label).into(), spread(series, 2)]);
        if *label == FIRST_NEXTVAL {
            continue;
        }
        section.check(Check {
            target: Target::FirstId,
            what: format!("{title}, {label}"),
            measured: series.clone(),
            shown: (1, "ms"),
            bound: Bound::AtMost(bound),
            limit: None,
        });
    }
    section.table(table);
}
