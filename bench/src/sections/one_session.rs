//! Cost of an id in one session, net of a call that does nothing.

use leaf_id_tests::{Session, timed};

use crate::contender::{
    CACHE_32, CACHE_1000, Contender, OPAQUE, PGEDGE, SEGMENT, SERIAL, SNOWFLAKE, UUID, UUID_V7,
    available,
};
use crate::figures::{Series, in_turns, number};
use crate::options::Options;
use crate::report::Section;
use crate::servers;
use crate::table::Table;
use crate::targets::Target;

/// Runs of a statement per round, of which the fastest counts: other load on the machine slows down
/// some of these short runs.
const PASSES: u32 = 5;
/// Ids per range.
const RANGE: u32 = 1000;
const CONTENDERS: [&Contender; 9] = [
    &SEGMENT,
    &OPAQUE,
    &SNOWFLAKE,
    &SERIAL,
    &CACHE_32,
    &CACHE_1000,
    &UUID,
    &UUID_V7,
    &PGEDGE,
];
/// Contenders that may wait for the clock, and serial for comparison.
const WITH_TIME: [&Contender; 4] = [&SNOWFLAKE, &SERIAL, &UUID_V7, &PGEDGE];

const ATOMIC: &str = "one atomic addition";
const IN_RANGE: &str = "leaf_segment_next_range, 1,000 ids each";
const FROM_COLUMN: &str = "leaf_segment_next(tag)";
const CACHE_MISSES: &str = "atomic addition in a cache line found through another";

/// A statement that measures a call, and the same with a call that does nothing.
struct Probe {
    label: &'static str,
    /// `CALL` is a placeholder for the call.
    statement: String,
    call: String,
    idle: &'static str,
    /// Ids per statement.
    ids: u32,
}

impl Probe {
    /// The call of a contender, once per row, with or without other expressions.
    fn new(label: &'static str, call: String, others: &str, rows: u32) -> Self {
        let idle = if call.ends_with("()") {
            "noop()"
        } else {
            "noop('bench')"
        };
        Self {
            label,
            statement: format!("SELECT count(CALL){others} FROM generate_series(1, {rows}) i"),
            call,
            idle,
            ids: rows,
        }
    }

    /// Net nanoseconds per id.
    fn net(&self, session: &mut Session) -> f64 {
        let mut fastest = |call: &str| {
            let sql = self.statement.replace("CALL", call);
            let passes = (0..PASSES).map(|_| timed(|| session.run(&sql)).1.as_secs_f64());
            passes.fold(f64::INFINITY, f64::min)
        };
        (fastest(&self.call) - fastest(self.idle)) * 1e9 / f64::from(self.ids)
    }
}

/// Probes of a table.
struct Probes {
    all: Vec<Probe>,
    /// Contenders not available on this server.
    absent: Vec<String>,
}

impl Probes {
    /// Probes of contenders, each with its own tag or sequence.
    fn new(
        session: &mut Session,
        contenders: &[&'static Contender],
        others: &str,
        rows: u32,
    ) -> Self {
        let (contenders, absent) = available(session, contenders);
        let probe = |(place, contender): (usize, &&Contender)| {
            let source = format!("source_{rows}_{place}");
            contender.create(session, &source);
            Probe::new(contender.label, contender.call(&source), others, rows)
        };
        Self {
            all: contenders.iter().enumerate().map(probe).collect(),
            absent,
        }
    }

    fn table(self, options: &Options, session: &mut Session, title: &str) -> Table {
        let mut table = Table::new(title, &[("ns", 1)]).compared_with(SERIAL.label);
        for (probe, net) in self.all.iter().zip(nets(options, session, &self.all)) {
            table.row(probe.label, [net]);
        }
        table.absent(self.absent);
        table
    }
}

/// Measures the section.
pub fn measure(options: &Options, section: &mut Section) {
    let server = servers::start(&[("leaf_id.max_tags", "150000")]);
    servers::create_noop(&server);
    let mut session = servers::session(&server);
    section.say(format!(
        "Net of a C function that returns a constant, in the same statement of the same round; the \
         fastest of {PASSES} runs counts. A snowflake id needs its share of a millisecond, so a \
         loop that does nothing else waits for the clock; the second table has md5(i::text) in \
         each row, and no waits. The atomic addition is to memory of one process. Tags from a \
         column: a table in shuffled order."
    ));
    let rows = options.pick(40_000, 400_000);
    session.create_tag("range");
    let call = format!("leaf_segment_next_range('range', {RANGE})");
    let ranges = options.pick(200, 1000);
    let limits = vec![
        Probe::new(ATOMIC, "atomic_add('bench')".into(), "", rows),
        Probe {
            ids: ranges * RANGE,
            ..Probe::new(IN_RANGE, call, "", ranges)
        },
    ];
    let mut probes = Probes::new(&mut session, &CONTENDERS, "", rows);
    probes.all.extend(limits);
    let table = probes.table(options, &mut session, "ns an id, net");
    let of = |label| table.of(label, 0);
    section.target(Target::ConstantTag, "", of(SEGMENT.label).less(of(ATOMIC)));
    section.target(Target::Range, "", of(IN_RANGE).clone());
    section.target(Target::Opaque, "", of(OPAQUE.label).clone());
    section.table(table);

    let rows = options.pick(20_000, 200_000);
    let probes = Probes::new(&mut session, &WITH_TIME, ", count(md5(i::text))", rows);
    let title = "ns an id, net, with other work in each row";
    let table = probes.table(options, &mut session, title);
    let net = table.of(SNOWFLAKE.label, 0).clone();
    section.target(Target::BelowCeiling, "", net);
    section.table(table);

    tags_from_a_column(options, section, &mut session);
}

fn nets(options: &Options, session: &mut Session, probes: &[Probe]) -> Vec<Series> {
    let series = in_turns(options.rounds, probes, |probe| [probe.net(session)]);
    series.into_iter().map(|[net]| net).collect()
}

fn tags_from_a_column(options: &Options, section: &mut Section, session: &mut Session) {
    let rows: u32 = options.pick(100_000, 500_000);
    let kinds = [10, 1_000, options.pick(10_000, 100_000)];
    let mut probes = Vec::new();
    for (label, call) in [
        (FROM_COLUMN, "leaf_segment_next(tag)"),
        (CACHE_MISSES, "atomic_add_through(tag)"),
    ] {
        probes.extend(kinds.map(|tags| Probe {
            label,
            statement: format!("SELECT count(CALL) FROM tags_{tags}"),
            call: call.into(),
            idle: "noop(tag)",
            ids: rows,
        }));
    }
    for tags in kinds {
        session.run(&format!(
            "CREATE UNLOGGED TABLE tags_{tags} AS
                 SELECT 'tag-{tags}-' || i % {tags} AS tag FROM generate_series(1, {rows}) i
                 ORDER BY hashint4(i)"
        ));
        session.run(&format!("VACUUM ANALYZE tags_{tags}"));
        session.run(&format!(
            "INSERT INTO leaf_id.leaf_alloc (biz_tag, step)
                 SELECT DISTINCT tag, 100000 FROM tags_{tags}"
        ));
    }
    let nets = nets(options, session, &probes);

    let names = kinds.map(|tags| format!("{} tags", number(f64::from(tags), 0)));
    let columns = names.each_ref().map(|name| (name.as_str(), 1));
    let mut table = Table::new("ns an id, net, the tag from a column", &columns);
    for (probes, nets) in probes.chunks(kinds.len()).zip(nets.chunks(kinds.len())) {
        table.row(probes[0].label, nets);
    }
    section.target(Target::ColumnTag, "", table.of(FROM_COLUMN, 1).clone());
    // A quick run has too few tags for this target.
    if !options.quick {
        let ratio = table.of(FROM_COLUMN, 2).over(table.of(CACHE_MISSES, 2));
        section.target(Target::ManyTags, "", ratio);
    }
    section.table(table);
}
