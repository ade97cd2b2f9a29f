//! Many rows per statement: ids from a column default, or from a query that may run in parallel.

use std::path::PathBuf;

use leaf_id_tests::{Session, timed};

use crate::chart::{Bar, Chart};
use crate::contender::{IDENTITY, RANDOM_UUID, SEGMENT, SERIAL, SERIAL_1000, SNOWFLAKE, color};
use crate::context::Context;
use crate::figures::{Series, count, in_turns};
use crate::fixture::Fixture;
use crate::report::Section;
use crate::table::{Row, Table};
use crate::targets::{Bound, Check, Target};

/// A default that does nothing: the cost of any volatile function but nextval.
const NOTHING: &str = "noop()";
const COPY: &str = "COPY";

/// Where the ids of a table come from.
struct Source {
    label: &'static str,
    table: &'static str,
    /// Definition of the id column.
    column: &'static str,
    /// The expression, if there is one.
    call: Option<&'static str>,
    /// Whether it is measured with a primary key too.
    keyed: bool,
}

const SOURCES: [Source; 7] = [
    Source {
        label: SEGMENT,
        table: "bulk_segment",
        column: "bigint NOT NULL DEFAULT leaf_segment_next('bulk')",
        call: Some("leaf_segment_next('bulk')"),
        keyed: true,
    },
    Source {
        label: SNOWFLAKE,
        table: "bulk_snowflake",
        column: "bigint NOT NULL DEFAULT leaf_snowflake_next()",
        call: Some("leaf_snowflake_next()"),
        keyed: false,
    },
    Source {
        label: SERIAL,
        table: "bulk_serial",
        column: "bigserial",
        call: Some("nextval('bulk_serial_id_seq')"),
        keyed: true,
    },
    Source {
        label: SERIAL_1000,
        table: "bulk_serial_1000",
        column: "bigserial",
        call: Some("nextval('bulk_serial_1000_id_seq')"),
        keyed: true,
    },
    Source {
        label: IDENTITY,
        table: "bulk_identity",
        column: "bigint GENERATED ALWAYS AS IDENTITY",
        call: None,
        keyed: false,
    },
    Source {
        label: RANDOM_UUID,
        table: "bulk_uuid",
        column: "uuid NOT NULL DEFAULT gen_random_uuid()",
        call: Some("gen_random_uuid()"),
        keyed: false,
    },
    Source {
        label: NOTHING,
        table: "bulk_nothing",
        column: "bigint NOT NULL DEFAULT noop()",
        call: None,
        keyed: false,
    },
];

/// A way to fill the table `TABLE`.
struct Workload {
    title: &'static str,
    statement: String,
    /// Into the tables with a primary key.
    keyed: bool,
    /// Whether it has a target.
    has_target: bool,
}

impl Source {
    fn table(&self, keyed: bool) -> String {
        let suffix = if keyed { "_keyed" } else { "" };
        format!("{}{suffix}", self.table)
    }
}

/// Measures all of it.
pub fn run(context: &Context, section: &mut Section) {
    let fixture = Fixture::start(context.running, &[("max_parallel_workers_per_gather", "2")]);
    section.attempt("this section", |section| {
        fixture.create_noop()?;
        measure(section, context, &fixture);
        Ok(())
    });
}

fn measure(section: &mut Section, context: &Context, fixture: &Fixture) {
    let rows: u32 = context.options.pick(100_000, 2_000_000);
    let mut session = fixture.session();
    let file = prepare(fixture, &mut session, rows);
    section.say(format!(
        "{} rows of (id, payload integer) into a logged table without an index, or with a \
         primary key on id where the title says so. Before each run come a TRUNCATE of \
         the table and a CHECKPOINT. COPY reads a file on the server. PostgreSQL's COPY \
         inserts many rows at once, except where a default is a volatile function other \
         than nextval: then it inserts them one by one, whatever the function does. \
         {NOTHING} shows what that costs. WAL is all that was written meanwhile.",
        count(rows)
    ));

    let insert = format!("INSERT INTO TABLE (payload) SELECT i FROM generate_series(1, {rows}) i");
    let copy = format!("COPY TABLE (payload) FROM '{}'", file.display());
    let workloads = [
        Workload {
            title: "INSERT ... SELECT",
            statement: insert.clone(),
            keyed: false,
            has_target: true,
        },
        Workload {
            title: COPY,
            statement: copy.clone(),
            keyed: false,
            has_target: true,
        },
        Workload {
            title: "INSERT ... SELECT, with a primary key",
            statement: insert,
            keyed: true,
            has_target: false,
        },
        Workload {
            title: "COPY, with a primary key",
            statement: copy,
            keyed: true,
            has_target: false,
        },
    ];
    let mut groups = Vec::new();
    for workload in &workloads {
        eprintln!("    {}", workload.title);
        let sources: Vec<_> = SOURCES
            .iter()
            .filter(|source| source.keyed || !workload.keyed)
            .collect();
        let mut written = Vec::new();
        let series = in_turns(context.options.rounds, &sources, |source| {
            let table = source.table(workload.keyed);
            session.run(&format!("TRUNCATE {table}"));
            session.run("CHECKPOINT");
            let sql = workload.statement.replace("TABLE", &table);
            let before = wal_position(&mut session);
            let ((), took) = timed(|| session.run(&sql));
            written.push((wal_position(&mut session) - before) / 1e6);
            took.as_secs_f64() * 1000.0
        });
        check_rows(&mut session, &sources, workload.keyed, rows);
        let labels: Vec<_> = sources.iter().map(|source| source.label).collect();
        // In the same turns; the first round does not count.
        let rounds: Vec<_> = written.chunks(sources.len()).skip(1).collect();
        let wal: Vec<_> = (0..sources.len())
            .map(|source| Series::new(rounds.iter().map(|round| round[source]).collect()))
            .collect();
        show(section, workload.title, "ms", &labels, &series);
        show(
            section,
            &format!("{}, WAL", workload.title),
            "MB",
            &labels,
            &wal,
        );
        if workload.has_target {
            check(section, workload.title, &labels, &series, &wal);
        }
        groups.push(group(workload.title, &labels, &series));
    }

    eprintln!("    CREATE TABLE AS");
    let (title, labels, series) = create_table_as(context, section, &mut session);
    show(section, title, "ms", &labels, &series);
    groups.push(group(title, &labels, &series));
    section.chart(Chart::bars(
        "bulk.svg",
        &format!("{} rows", count(rows)),
        "milliseconds",
        0,
        groups,
    ));
}

/// Creates the tables, and the file for COPY.
fn prepare(fixture: &Fixture, session: &mut Session, rows: u32) -> PathBuf {
    session.create_tag("bulk");
    for source in &SOURCES {
        let keys: &[bool] = if source.keyed {
            &[false, true]
        } else {
            &[false]
        };
        for keyed in keys {
            let (table, column) = (source.table(*keyed), source.column);
            let key = if *keyed { "PRIMARY KEY" } else { "" };
            session.run(&format!(
                "CREATE TABLE {table} (id {column} {key}, payload integer)"
            ));
            if source.label == SERIAL_1000 {
                session.run(&format!("ALTER SEQUENCE {table}_id_seq CACHE 1000"));
            }
        }
    }
    let file = fixture.server.dir().join("rows");
    session.run(&format!(
        "CREATE TABLE source AS SELECT i AS payload FROM generate_series(1, {rows}) i"
    ));
    session.run("VACUUM ANALYZE source");
    session.run(&format!("COPY source TO '{}'", file.display()));
    file
}

/// Fails the bench if a table has fewer different ids than rows.
fn check_rows(session: &mut Session, sources: &[&Source], keyed: bool, rows: u32) {
    for source in sources.iter().filter(|source| source.label != NOTHING) {
        let sql = format!("SELECT count(DISTINCT id) FROM {}", source.table(keyed));
        let different: i64 = session.value(&sql);
        assert_eq!(
            different,
            i64::from(rows),
            "different ids of {}",
            source.label
        );
    }
}

/// How many bytes of WAL there are.
fn wal_position(session: &mut Session) -> f64 {
    session.value("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8")
}

fn check(section: &mut Section, title: &str, labels: &[&str], time: &[Series], wal: &[Series]) {
    let ratio = |series: &[Series]| {
        let of = |label: &str| labels.iter().position(|known| *known == label);
        Some(series[of(SEGMENT)?].over(&series[of(SERIAL)?]))
    };
    let is_copy = title == COPY;
    let checks = [
        ("time", time, Some(if is_copy { 0.85 } else { 0.95 })),
        ("WAL", wal, is_copy.then_some(1.0)),
    ];
    for (of_what, series, bound) in checks {
        if let (Some(measured), Some(bound)) = (ratio(series), bound) {
            section.check(Check {
                target: Target::Bulk,
                what: format!("{title}, {of_what} relative to serial"),
                measured,
                shown: (2, "×"),
                bound: Bound::AtMost(bound),
                limit: None,
            });
        }
    }
}

fn create_table_as(
    context: &Context,
    section: &mut Section,
    session: &mut Session,
) -> (&'static str, Vec<&'static str>, Vec<Series>) {
    let contenders: Vec<_> = SOURCES
        .iter()
        .filter_map(|source| source.call.map(|call| (source.label, call)))
        .collect();
    let select = |call: &str| format!("SELECT {call} AS id, payload FROM source");
    let plans = |session: &mut Session| -> Vec<_> {
        let plan = |(_, call): &(&str, &str)| {
            let sql = format!("EXPLAIN (COSTS off) CREATE TABLE made AS {}", select(call));
            let plan: Vec<String> = session.column(&sql);
            if plan.iter().any(|line| line.contains("Gather")) {
                "parallel"
            } else {
                "not parallel"
            }
        };
        contenders.iter().map(plan).collect()
    };
    let usual = plans(session);
    session.run(
        "SET parallel_tuple_cost = 0; SET parallel_setup_cost = 0;
         SET min_parallel_table_scan_size = 0",
    );
    let free = plans(session);
    let plans: Vec<_> = contenders
        .iter()
        .zip(free.iter().zip(&usual))
        .map(|((label, _), (free, usual))| {
            format!("{label}: {free} (with the default costs: {usual})")
        })
        .collect();
    section.say(format!(
        "CREATE TABLE AS SELECT f AS id, payload FROM a table, with up to two parallel \
         workers, and parallel_tuple_cost, parallel_setup_cost and \
         min_parallel_table_scan_size = 0. The planner's choice: {}. (nextval is not \
         parallel safe; this statement cannot create an identity column.)",
        plans.join("; ")
    ));
    let series = in_turns(context.options.rounds, &contenders, |(_, call)| {
        session.run("DROP TABLE IF EXISTS made");
        session.run("CHECKPOINT");
        let sql = format!("CREATE TABLE made AS {}", select(call));
        let ((), took) = timed(|| session.run(&sql));
        assert!(
            !call.starts_with("leaf_")
                || session.value::<bool>("SELECT count(*) = count(DISTINCT id) FROM made"),
            "an id was issued twice: {sql}"
        );
        took.as_secs_f64() * 1000.0
    });
    let labels = contenders.iter().map(|(label, _)| *label).collect();
    ("CREATE TABLE AS", labels, series)
}

fn show(section: &mut Section, title: &str, unit: &str, labels: &[&str], series: &[Series]) {
    let rows: Vec<_> = labels
        .iter()
        .zip(series)
        .map(|(label, series)| Row { label, series })
        .collect();
    for row in &rows {
        section.keep(title, row.label, unit, row.series);
    }
    section.table(Table::comparison(title, unit, 0, SERIAL, &rows));
}

fn group(title: &str, labels: &[&str], series: &[Series]) -> (String, Vec<Bar>) {
    let bars = labels.iter().zip(series).map(|(label, series)| Bar {
        name: (*label).into(),
        value: series.median(),
        color: color(label),
    });
    (title.into(), bars.collect())
}
