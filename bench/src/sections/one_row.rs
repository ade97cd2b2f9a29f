//! What an application pays that takes one id per statement, and the WAL that this writes.

use std::fs;

use leaf_id_tests::Session;

use crate::contender::{
    CACHE_1, CACHE_32, CACHE_1000, Contender, IDENTITY, RANDOM_UUID, SEGMENT, SNOWFLAKE,
};
use crate::context::Context;
use crate::figures::{Series, Unmeasured, in_turns, number, spread};
use crate::fixture::Fixture;
use crate::report::Section;
use crate::table::{Row, Table};
use crate::targets::{Bound, Check, Target};

const LABELS: [&str; 6] = [
    SEGMENT,
    SNOWFLAKE,
    CACHE_1,
    CACHE_32,
    CACHE_1000,
    RANDOM_UUID,
];

/// How pgbench is run.
struct Workload {
    title: String,
    insert: bool,
    protocol: &'static str,
    clients: u32,
    synchronous_commit: &'static str,
}

/// Measures all of it.
pub fn run(context: &Context, section: &mut Section) {
    let fixture = Fixture::start(context.running, &[]);
    let mut session = fixture.session();
    let contenders = Contender::usual(&mut session);
    section.say(format!(
        "pgbench, {} for each contender in each round, without the time to connect. \
         INSERT adds one row of (id DEFAULT, payload integer) to a logged table without \
         an index; the ids of leaf_segment_next and leaf_snowflake_next are checked for \
         duplicates. The server looks up the function in every statement.",
        if context.options.quick {
            "a few hundred statements"
        } else {
            "one second"
        }
    ));
    section.attempt("statements of one row", |section| {
        for workload in workloads() {
            eprintln!("    {}", workload.title);
            measure(context, section, &fixture, &contenders, &workload)?;
        }
        Ok(())
    });
    section.attempt("WAL", |section| wal(context, section, &fixture));
}

fn workloads() -> Vec<Workload> {
    let mut workloads = Vec::new();
    for (protocol, clients) in [
        ("prepared", 1),
        ("prepared", 8),
        ("simple", 1),
        ("simple", 8),
    ] {
        workloads.push(Workload {
            title: format!("SELECT, {protocol}, clients: {clients}"),
            insert: false,
            protocol,
            clients,
            synchronous_commit: "on",
        });
    }
    for (synchronous_commit, clients) in [("off", 1), ("off", 8), ("on", 1), ("on", 8)] {
        workloads.push(Workload {
            title: format!(
                "INSERT, prepared, synchronous_commit = {synchronous_commit}, clients: {clients}"
            ),
            insert: true,
            protocol: "prepared",
            clients,
            synchronous_commit,
        });
    }
    workloads
}

fn measure(
    context: &Context,
    section: &mut Section,
    fixture: &Fixture,
    contenders: &[Contender],
    workload: &Workload,
) -> Result<(), Unmeasured> {
    let mut scripts = Vec::new();
    let mut session = fixture.session();
    for (index, label) in LABELS.iter().chain(&[IDENTITY]).enumerate() {
        let contender = contenders
            .iter()
            .find(|contender| contender.label == *label);
        let sql = if workload.insert {
            let kind = if *label == RANDOM_UUID {
                "uuid"
            } else {
                "bigint"
            };
            let made = contender.map_or_else(
                || "GENERATED ALWAYS AS IDENTITY".into(),
                |contender| format!("DEFAULT {}", contender.call),
            );
            session.run(&format!(
                "DROP TABLE IF EXISTS one_row_{index};
                 CREATE TABLE one_row_{index} (id {kind} NOT NULL {made}, payload integer)"
            ));
            format!("INSERT INTO one_row_{index} (payload) VALUES (1)")
        } else if let Some(contender) = contender {
            format!("SELECT {}", contender.call)
        } else {
            continue;
        };
        let script = fixture.server.dir().join(format!("one_row_{index}.sql"));
        fs::write(&script, sql + ";\n")
            .map_err(|error| Unmeasured(format!("{}: {error}", script.display())))?;
        scripts.push((*label, script));
    }
    let mut failure = None;
    let mut tps = Vec::new();
    let mut latency = in_turns(context.options.rounds, &scripts, |(_, script)| {
        // A workload that fails for one contender has no table.
        if failure.is_some() {
            return f64::NAN;
        }
        match pgbench(context, fixture, workload, &script.to_string_lossy()) {
            Ok((per_second, ms)) => {
                tps.push(per_second);
                ms
            }
            Err(why) => {
                failure = Some(why);
                f64::NAN
            }
        }
    });
    if let Some(why) = failure {
        return Err(why);
    }
    if workload.insert {
        check_ids(&mut session, &workload.title);
    }
    // In the order of the measurements, which begin with the warm-up.
    let of = |index: usize| {
        let own = tps.iter().skip(index).step_by(scripts.len()).skip(1);
        Series::new(own.copied().collect())
    };
    let tps: Vec<_> = (0..scripts.len()).map(of).collect();
    for series in &mut latency {
        *series = series.map(|ms| ms * 1000.0);
    }
    let rows: Vec<_> = scripts
        .iter()
        .zip(&tps)
        .map(|((label, _), series)| Row { label, series })
        .collect();
    section.table(Table::comparison(
        workload.title.as_str(),
        "statements/s",
        0,
        CACHE_1,
        &rows,
    ));
    let latencies: Vec<_> = scripts
        .iter()
        .zip(&latency)
        .map(|((label, _), series)| format!("{label} {}", number(series.median(), 0)))
        .collect();
    section.say(format!("Mean latency in µs: {}.", latencies.join("; ")));
    for (row, latency) in rows.iter().zip(&latency) {
        section.keep(
            &workload.title,
            row.label,
            "statements per second",
            row.series,
        );
        section.keep(&workload.title, row.label, "µs mean latency", latency);
    }
    let find = |label: &str| rows.iter().find(|row| row.label == label);
    if let (Some(leaf), Some(sequence), "prepared") =
        (find(SEGMENT), find(CACHE_1), workload.protocol)
    {
        section.check(Check {
            target: Target::OneRow,
            what: format!(
                "{}: statements/s, relative to nextval CACHE 1",
                workload.title
            ),
            measured: leaf.series.over(sequence.series),
            shown: (2, "×"),
            bound: Bound::AtLeast(1.0),
            limit: None,
        });
    }
    Ok(())
}

/// Fails the bench if the clients have inserted an id twice.
fn check_ids(session: &mut Session, title: &str) {
    for (index, label) in LABELS.iter().enumerate() {
        if [SEGMENT, SNOWFLAKE].contains(label) {
            let different = format!("SELECT count(*) = count(DISTINCT id) FROM one_row_{index}");
            assert!(
                session.value::<bool>(&different),
                "{label} issued an id twice: {title}"
            );
        }
    }
}

/// Statements per second, and milliseconds of one.
fn pgbench(
    context: &Context,
    fixture: &Fixture,
    workload: &Workload,
    script: &str,
) -> Result<(f64, f64), Unmeasured> {
    let clients = workload.clients.to_string();
    let threads = workload.clients.min(2).to_string();
    let (much, how_much) = if context.options.quick {
        ("-t", (240 / workload.clients).to_string())
    } else {
        ("-T", "1".into())
    };
    let output = fixture
        .server
        .program("pgbench")
        .env(
            "PGOPTIONS",
            format!("-c synchronous_commit={}", workload.synchronous_commit),
        )
        .args([
            "-n",
            "-M",
            workload.protocol,
            "-c",
            &clients,
            "-j",
            &threads,
        ])
        .args([much, &how_much, "-f", script, "postgres"])
        .output()
        .map_err(|error| Unmeasured(format!("pgbench: {error}")))?;
    let said = String::from_utf8_lossy(&output.stdout);
    // The statement fails only by a bug in leaf_id or in the bench.
    assert!(
        output.status.success(),
        "pgbench {}: {}{said}",
        workload.title,
        String::from_utf8_lossy(&output.stderr)
    );
    let figure = |name: &str| {
        let line = said.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    figure("tps = ")
        .zip(figure("latency average = "))
        .ok_or_else(|| Unmeasured(format!("pgbench said: {said}")))
}

/// WAL of the server so far.
struct Wal {
    /// Position in the WAL, in bytes.
    bytes: f64,
    /// How often it was synced.
    syncs: f64,
}

fn wal_so_far(session: &mut Session) -> Wal {
    let syncs = if session.major() >= 18 {
        "SELECT coalesce(sum(fsyncs), 0)::float8 FROM pg_stat_io WHERE object = 'wal'"
    } else {
        "SELECT wal_sync::float8 FROM pg_stat_wal"
    };
    session.run("SELECT pg_stat_force_next_flush()");
    Wal {
        bytes: session.value("SELECT (pg_current_wal_insert_lsn() - '0/0')::float8"),
        syncs: session.value(syncs),
    }
}

fn wal(context: &Context, section: &mut Section, fixture: &Fixture) -> Result<(), Unmeasured> {
    let ids: u32 = context.options.pick(300, 3_000);
    let mut session = fixture.session();
    // All of a round's ids lie in one cached segment, and its spare is there already.
    session.run(
        "SELECT leaf_tag_create('wal', step => 1000000);
         CREATE SEQUENCE wal_1;
         CREATE SEQUENCE wal_32 CACHE 32;
         CREATE SEQUENCE wal_1000 CACHE 1000",
    );
    session.run("SELECT count(leaf_segment_next('wal')) FROM generate_series(1, 200000)");
    session.wait_for_spare("wal");
    let room: i64 = session.figure("wal", "current_remaining");
    let needed = i64::from(ids) * (i64::try_from(context.options.rounds).unwrap_or(99) + 1);
    if room < needed {
        return Err(Unmeasured(format!(
            "the segment has {room} ids left, {needed} are needed"
        )));
    }
    let calls = [
        (SEGMENT, "leaf_segment_next('wal')"),
        (SNOWFLAKE, "leaf_snowflake_next()"),
        (CACHE_1, "nextval('wal_1')"),
        (CACHE_32, "nextval('wal_32')"),
        (CACHE_1000, "nextval('wal_1000')"),
        (RANDOM_UUID, RANDOM_UUID),
    ];
    let mut syncs = Vec::new();
    let bytes = in_turns(context.options.rounds, &calls, |(_, call)| {
        let statement = format!("SELECT {call}");
        let before = wal_so_far(&mut session);
        (0..ids).for_each(|_| session.run(&statement));
        let after = wal_so_far(&mut session);
        syncs.push((after.syncs - before.syncs) / f64::from(ids));
        (after.bytes - before.bytes) / f64::from(ids)
    });
    section.say(format!(
        "WAL of {ids} statements of SELECT f, each a transaction. The ids of \
         leaf_segment_next lie in a segment that was cached before, so the allocator has \
         nothing to do and all WAL is the caller's. The figures are those of the whole \
         server, so what it writes by itself (a record about every 15 s) can show in the \
         largest one."
    ));
    let columns = ["", "bytes per id", "syncs per id"];
    let mut table = Table::new("WAL of the caller, median (min .. max)", &columns);
    for (index, ((label, _), bytes)) in calls.iter().zip(&bytes).enumerate() {
        let own = syncs.iter().skip(index).step_by(calls.len()).skip(1);
        let syncs = Series::new(own.copied().collect());
        table.row(vec![(*label).into(), spread(bytes, 2), spread(&syncs, 4)]);
        section.keep("WAL of the caller", label, "bytes per id", bytes);
        section.keep("WAL of the caller", label, "syncs per id", &syncs);
        if index == 0 {
            for (what, measured, shown) in [
                ("WAL bytes per id", bytes.clone(), (2, "bytes")),
                ("WAL syncs per id", syncs, (4, "")),
            ] {
                section.check(Check {
                    target: Target::Wal,
                    what: what.into(),
                    measured,
                    shown,
                    bound: Bound::AtMost(0.0),
                    limit: None,
                });
            }
        }
    }
    section.table(table);

    let many: u32 = context.options.pick(1_000_000, 10_000_000);
    let before = wal_so_far(&mut session);
    let claimed = session.figure("wal", "refills");
    session.run(&format!(
        "SELECT count(leaf_segment_next('wal')) FROM generate_series(1, {many})"
    ));
    session.wait_for_spare("wal");
    let after = wal_so_far(&mut session);
    section.say(format!(
        "The allocator's own: {} claims for {} ids wrote {} bytes of WAL, {} bytes per id, with {} syncs.",
        session.figure("wal", "refills") - claimed,
        number(f64::from(many), 0),
        number(after.bytes - before.bytes, 0),
        number((after.bytes - before.bytes) / f64::from(many), 4),
        number(after.syncs - before.syncs, 0)
    ));
    Ok(())
}
