//! Many rows per statement, with ids from a column default.

use leaf_id_tests::timed;

use crate::contender::{
    CACHE_1000, Contender, IDENTITY, OPAQUE, PGEDGE, SEGMENT, SERIAL, SNOWFLAKE, UUID, UUID_V7,
    available,
};
use crate::figures::{in_turns, number};
use crate::options::Options;
use crate::plot::{self, Plot, Shape};
use crate::report::Section;
use crate::servers;
use crate::table::Table;
use crate::targets::Target;

const CONTENDERS: [&Contender; 9] = [
    &SEGMENT,
    &OPAQUE,
    &SNOWFLAKE,
    &SERIAL,
    &CACHE_1000,
    &IDENTITY,
    &UUID,
    &UUID_V7,
    &PGEDGE,
];
/// Title, statement, and a table constraint.
const WORKLOADS: [(&str, &str, &str); 4] = [
    ("INSERT ... SELECT", INSERT, ""),
    ("COPY", COPY, ""),
    ("INSERT ... SELECT, primary key", INSERT, KEY),
    (COPY_WITH_KEY, COPY, KEY),
];
const COPY_WITH_KEY: &str = "COPY, primary key";
const INSERT: &str = "INSERT INTO filled (payload) SELECT payload FROM source";
const COPY: &str = "COPY filled (payload) FROM 'FILE'";
const KEY: &str = ", PRIMARY KEY (id)";

/// Measures the section.
pub fn measure(options: &Options, section: &mut Section) {
    let rows = options.pick(100_000, 2_000_000);
    let server = servers::start(&[]);
    let mut session = servers::session(&server);
    let (contenders, absent) = available(&mut session, &CONTENDERS);
    let sources: Vec<_> = (0..contenders.len())
        .map(|place| format!("source_{place}"))
        .collect();
    for (contender, source) in contenders.iter().zip(&sources) {
        contender.create(&mut session, source);
    }
    let file = server.dir().join("rows").display().to_string();
    session.run(&format!(
        "CREATE TABLE source AS SELECT i AS payload FROM generate_series(1, {rows}) i"
    ));
    session.run("VACUUM ANALYZE source");
    session.run(&format!("COPY source TO '{file}'"));
    section.say(format!(
        "{} rows of (id DEFAULT, payload integer) into a new table, after a CHECKPOINT. COPY reads a \
         file on the server. WAL is all that is written during the COPY.",
        number(f64::from(rows), 0)
    ));

    let pairs: Vec<_> = contenders.iter().zip(&sources).collect();
    let measured = WORKLOADS.map(|(title, statement, key)| {
        eprintln!("    {title}");
        in_turns(options.rounds, &pairs, |(contender, source)| {
            let column = contender.column(source);
            session.run("DROP TABLE IF EXISTS filled");
            session.run(&format!(
                "CREATE TABLE filled ({column}, payload integer{key})"
            ));
            session.run("CHECKPOINT");
            let before = servers::wal_bytes(&mut session);
            let ((), took) = timed(|| session.run(&statement.replace("FILE", &file)));
            let wal = servers::wal_bytes(&mut session) - before;
            [took.as_secs_f64() * 1000.0, wal / 1e6]
        })
    });

    let columns = WORKLOADS.map(|(title, ..)| (title, 0));
    for (figure, title) in ["Milliseconds", "MB of WAL"].into_iter().enumerate() {
        let mut table = Table::new(title, &columns).compared_with(SERIAL.label);
        for (place, contender) in contenders.iter().enumerate() {
            let figures = measured.each_ref().map(|of| of[place][figure].clone());
            table.row(contender.label, figures);
        }
        table.absent(absent.clone());
        if figure == 0 {
            let copy = columns
                .iter()
                .position(|(title, _)| *title == COPY_WITH_KEY);
            let of = |label| table.of(label, copy.unwrap_or_default());
            section.target(Target::Copy, "", of(SEGMENT.label).over(of(SERIAL.label)));
            // Rows per millisecond are thousands per second.
            let rates = |label| vec![of(label).map(|ms| f64::from(rows) / ms)];
            let contenders = contenders.iter();
            section.plot(Plot {
                file: plot::COPY,
                title: format!(
                    "COPY of {} rows into a table with a primary key",
                    number(rows.into(), 0)
                ),
                unit: "thousand rows a second, ids from the column's default",
                shape: Shape::Bars,
                rows: contenders
                    .map(|own| (own.label, rates(own.label)))
                    .collect(),
            });
        }
        section.table(table);
    }
}
