//! Many rows whose ids come from a column default, or from a query that can be parallel.

use std::path::PathBuf;

use leaf_id_tests::{Session, timed};

use super::Context;
use crate::bed::Bed;
use crate::chart::{Bar, Chart};
use crate::contender::{IDENTITY, RANDOM_UUID, SEGMENT, SERIAL, SNOWFLAKE, colour, count};
use crate::figures::{Series, in_turns};
use crate::report::Section;
use crate::table::{Row, Table};
use crate::targets::{Bound, Check, Target};

/// A default that does nothing: what PostgreSQL charges for any function but nextval.
const NOTHING: &str = "noop()";
/// What the id column is, and the expression where there is one.
const COLUMNS: [(&str, &str, Option<&str>); 6] = [
    (
        SEGMENT,
        "bigint NOT NULL DEFAULT leaf_segment_next('bulk')",
        Some("leaf_segment_next('bulk')"),
    ),
    (
        SNOWFLAKE,
        "bigint NOT NULL DEFAULT leaf_snowflake_next()",
        Some("leaf_snowflake_next()"),
    ),
    (SERIAL, "bigserial", Some("nextval('bulk_2_id_seq')")),
    (IDENTITY, "bigint GENERATED ALWAYS AS IDENTITY", None),
    (
        RANDOM_UUID,
        "uuid NOT NULL DEFAULT gen_random_uuid()",
        Some("gen_random_uuid()"),
    ),
    (NOTHING, "bigint NOT NULL DEFAULT noop()", None),
];

/// Measures all of it.
pub fn run(context: &Context, section: &mut Section) {
    let bed = Bed::start(context.running, &[("max_parallel_workers_per_gather", "2")]);
    section.attempt("this section", |section| {
        bed.create_noop()?;
        measure(section, context, &bed);
        Ok(())
    });
}

fn measure(section: &mut Section, context: &Context, bed: &Bed) {
    let rows: u32 = context.options.pick(100_000, 2_000_000);
    let mut session = bed.session();
    let file = prepare(bed, &mut session, rows);
    section.say(format!(
        "{} rows of (id, payload integer) into a logged table without an index. Before each run \
         the table is emptied with TRUNCATE, and a CHECKPOINT is made. COPY reads a file on the \
         server. PostgreSQL's COPY inserts many rows at once, except where a default is a \
         volatile function other than nextval: then it inserts them one by one, whoever makes \
         the ids. {NOTHING} shows what that costs.",
        count(rows)
    ));

    let tables: Vec<_> = COLUMNS.iter().map(|(label, ..)| *label).collect();
    let indices: Vec<_> = (0..COLUMNS.len()).collect();
    let mut groups = Vec::new();
    let inserts = [
        (
            "INSERT ... SELECT",
            format!("INSERT INTO TABLE (payload) SELECT i FROM generate_series(1, {rows}) i"),
        ),
        (
            "COPY",
            format!("COPY TABLE (payload) FROM '{}'", file.display()),
        ),
    ];
    for (title, statement) in &inserts {
        eprintln!("    {title}");
        let series = in_turns(context.options.rounds, &indices, |index| {
            let table = format!("bulk_{index}");
            session.run(&format!("TRUNCATE {table}"));
            session.run("CHECKPOINT");
            let sql = statement.replace("TABLE", &table);
            let ((), took) = timed(|| session.run(&sql));
            took.as_secs_f64() * 1000.0
        });
        check_rows(&mut session, rows);
        show(section, title, &tables, &series);
        section.check(Check {
            target: Target::Bulk,
            what: format!("{title}, of serial's time"),
            measured: series[0].over(&series[2]),
            shown: (2, "×"),
            bound: Bound::AtMost(0.95),
        });
        groups.push(group(title, &tables, &series));
    }

    eprintln!("    CREATE TABLE AS");
    let (title, labels, series) = create_table_as(context, section, &mut session);
    show(section, title, &labels, &series);
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
fn prepare(bed: &Bed, session: &mut Session, rows: u32) -> PathBuf {
    session.create_tag("bulk");
    for (index, (_, column, _)) in COLUMNS.iter().enumerate() {
        session.run(&format!(
            "CREATE TABLE bulk_{index} (id {column}, payload integer)"
        ));
    }
    let file = bed.server.dir().join("rows");
    session.run(&format!(
        "CREATE TABLE source AS SELECT i AS payload FROM generate_series(1, {rows}) i"
    ));
    session.run("VACUUM ANALYZE source");
    session.run(&format!("COPY source TO '{}'", file.display()));
    file
}

/// As many different ids as rows, in each table.
fn check_rows(session: &mut Session, rows: u32) {
    let with_ids = COLUMNS.iter().enumerate();
    for (index, (label, ..)) in with_ids.filter(|(_, (label, ..))| *label != NOTHING) {
        let different: i64 = session.value(&format!("SELECT count(DISTINCT id) FROM bulk_{index}"));
        assert_eq!(different, i64::from(rows), "different ids of {label}");
    }
}

fn create_table_as(
    context: &Context,
    section: &mut Section,
    session: &mut Session,
) -> (&'static str, Vec<&'static str>, Vec<Series>) {
    // All rows pass from the workers to the leader, which PostgreSQL reckons dearer than it is.
    session.run(
        "SET parallel_tuple_cost = 0; SET parallel_setup_cost = 0;
         SET min_parallel_table_scan_size = 0",
    );
    let contenders: Vec<_> = COLUMNS
        .iter()
        .filter_map(|(label, _, call)| call.map(|call| (*label, call)))
        .collect();
    let select = |call: &str| format!("SELECT {call} AS id, payload FROM source");
    let mut plans = Vec::new();
    for (label, call) in &contenders {
        let plan: Vec<String> = session.column(&format!(
            "EXPLAIN (COSTS off) CREATE TABLE made AS {}",
            select(call)
        ));
        let parallel = plan.iter().any(|line| line.contains("Gather"));
        let how = if parallel { "parallel" } else { "not parallel" };
        plans.push(format!("{label}: {how}"));
    }
    section.say(format!(
        "CREATE TABLE AS SELECT f AS id, payload FROM a table, with up to two workers, and \
         parallel_tuple_cost, parallel_setup_cost and min_parallel_table_scan_size = 0. What the planner makes of it: {}. \
         (nextval is not parallel safe; an identity column cannot be had this way.)",
        plans.join(", ")
    ));
    let series = in_turns(context.options.rounds, &contenders, |(_, call)| {
        session.run("DROP TABLE IF EXISTS made");
        session.run("CHECKPOINT");
        let sql = format!("CREATE TABLE made AS {}", select(call));
        let ((), took) = timed(|| session.run(&sql));
        assert!(
            !call.starts_with("leaf_")
                || session.value::<bool>("SELECT count(*) = count(DISTINCT id) FROM made"),
            "an id comes twice: {sql}"
        );
        took.as_secs_f64() * 1000.0
    });
    let labels = contenders.iter().map(|(label, _)| *label).collect();
    ("CREATE TABLE AS", labels, series)
}

fn show(section: &mut Section, title: &str, labels: &[&str], series: &[Series]) {
    let rows: Vec<_> = labels
        .iter()
        .zip(series)
        .map(|(label, series)| Row { label, series })
        .collect();
    for row in &rows {
        section.keep(title, row.label, "ms", row.series);
    }
    section.table(Table::comparison(title, "ms", 0, SERIAL, &rows));
}

fn group(title: &str, labels: &[&str], series: &[Series]) -> (String, Vec<Bar>) {
    let bars = labels.iter().zip(series).map(|(label, series)| Bar {
        name: (*label).into(),
        value: series.median(),
        colour: colour(label),
    });
    (title.into(), bars.collect())
}
