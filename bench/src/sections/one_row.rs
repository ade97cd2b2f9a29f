//! Cost for an application that takes one id per statement.

use leaf_id_tests::Session;

use crate::clients::Clients;
use crate::contender::{
    CACHE_32, CACHE_1000, Contender, IDENTITY, OPAQUE, PGEDGE, SEGMENT, SERIAL, SNOWFLAKE, UUID,
    UUID_V7, available,
};
use crate::figures::in_turns;
use crate::options::Options;
use crate::report::Section;
use crate::servers;
use crate::table::Table;
use crate::targets::Target;

const CONTENDERS: [&Contender; 10] = [
    &SEGMENT,
    &OPAQUE,
    &SNOWFLAKE,
    &SERIAL,
    &CACHE_32,
    &CACHE_1000,
    &IDENTITY,
    &UUID,
    &UUID_V7,
    &PGEDGE,
];
const INSERT: &str = "INSERT INTO TABLE (payload) VALUES (1)";

/// A statement repeated by clients.
struct Workload {
    title: &'static str,
    /// `TABLE` and `CALL` are placeholders for the contender's.
    statement: &'static str,
    clients: usize,
    synchronous_commit: &'static str,
}

const WORKLOADS: [Workload; 5] = [
    Workload {
        title: "SELECT, clients: 1",
        statement: "SELECT CALL",
        clients: 1,
        synchronous_commit: "on",
    },
    Workload {
        title: "INSERT, clients: 1",
        statement: INSERT,
        clients: 1,
        synchronous_commit: "on",
    },
    Workload {
        title: "INSERT, clients: 8",
        statement: INSERT,
        clients: 8,
        synchronous_commit: "on",
    },
    Workload {
        title: "INSERT, clients: 1, synchronous_commit off",
        statement: INSERT,
        clients: 1,
        synchronous_commit: "off",
    },
    Workload {
        title: "INSERT, clients: 8, synchronous_commit off",
        statement: INSERT,
        clients: 8,
        synchronous_commit: "off",
    },
];

/// Measures the section.
pub fn measure(options: &Options, section: &mut Section) {
    let lasts = options.pick_ms(100, 1000);
    let server = servers::start(&[]);
    let mut session = servers::session(&server);
    let (contenders, absent) = available(&mut session, &CONTENDERS);
    let tables = create_tables(&mut session, &contenders);
    section.say(format!(
        "Prepared statements, each a transaction, for {} ms in each round. INSERT adds (id DEFAULT, \
         payload integer) to a table without an index. WAL is all that the server writes while one \
         client repeats the SELECT.",
        lasts.as_millis()
    ));

    let mut clients = Clients::connect(&server, 8);
    let pairs: Vec<_> = contenders.iter().zip(&tables).collect();
    let measured = WORKLOADS.each_ref().map(|workload| {
        eprintln!("    {}", workload.title);
        server.set("synchronous_commit", workload.synchronous_commit);
        in_turns(options.rounds, &pairs, |(contender, table)| {
            let call = contender.call(&format!("source_of_{table}"));
            if call.is_empty() && workload.statement != INSERT {
                return [f64::NAN; 2];
            }
            let statement = workload
                .statement
                .replace("TABLE", table)
                .replace("CALL", &call);
            let before = servers::wal_bytes(&mut session);
            let run = clients.run(workload.clients, lasts, |_| statement.clone());
            let wal = servers::wal_bytes(&mut session) - before;
            [run.per_second(), wal / run.statements()]
        })
    });
    for table in &tables {
        let sql = format!("SELECT count(*) = count(DISTINCT id) FROM {table}");
        assert!(
            session.value::<bool>(&sql),
            "an id was issued twice: {table}"
        );
    }

    let columns = WORKLOADS.each_ref().map(|workload| (workload.title, 0));
    let mut rates = Table::new("Statements per second", &columns).compared_with(SERIAL.label);
    let mut wal = Table::new("WAL of a SELECT", &[("bytes", 2)]).compared_with(SERIAL.label);
    for (place, contender) in contenders.iter().enumerate() {
        rates.row(
            contender.label,
            measured.each_ref().map(|of| of[place][0].clone()),
        );
        wal.row(contender.label, [measured[0][place][1].clone()]);
    }
    for (column, workload) in WORKLOADS.iter().enumerate() {
        if workload.statement == INSERT {
            let ratio = rates
                .of(SEGMENT.label, column)
                .over(rates.of(SERIAL.label, column));
            section.target(Target::Insert, workload.title, ratio);
        }
    }
    for mut table in [rates, wal] {
        table.absent(absent.clone());
        section.table(table);
    }
}

/// A table for each contender, with a tag or sequence of its own.
fn create_tables(session: &mut Session, contenders: &[&Contender]) -> Vec<String> {
    let table = |(place, contender): (usize, &&Contender)| {
        let table = format!("one_row_{place}");
        let source = format!("source_of_{table}");
        contender.create(session, &source);
        let column = contender.column(&source);
        session.run(&format!("CREATE TABLE {table} ({column}, payload integer)"));
        table
    };
    contenders.iter().enumerate().map(table).collect()
}
