//! What an id costs one session, beyond a call that does nothing.

use std::time::Duration;

use leaf_id_tests::{Session, timed, wait_until};

use crate::chart::{Bar, Chart};
use crate::contender::{
    CACHE_1, CACHE_32, CACHE_1000, Contender, NS_PER_SNOWFLAKE, RANDOM_UUID, SEGMENT, SNOWFLAKE,
    color, only,
};
use crate::context::Context;
use crate::figures::{Series, Unmeasured, count, in_turns, number, range, spread};
use crate::fixture::Fixture;
use crate::report::Section;
use crate::table::{Row, Table};
use crate::targets::{Bound, Check, Target};

/// How often a statement is run in each round. The fastest counts: passes are short, and the
/// others are those that the rest of the machine disturbed.
const PASSES: u32 = 5;
/// Ids of one range.
const RANGE: u32 = 1000;
const ATOMIC: &str = "one atomic addition";
/// Enough for all rounds, see [`bursts`].
const BURST: [(&str, &str); 2] = [
    ("leaf_id.max_clock_lead", "20s"),
    ("leaf_id.max_burst_lead", "15s"),
];
/// What is called with a tag from a column. The first one does nothing.
const TAG_CALLS: [&str; 4] = [
    "noop",
    "leaf_segment_next",
    "atomic_add_far",
    "atomic_add_through",
];

/// Measures all of it.
pub fn run(context: &Context, section: &mut Section) {
    let conf = [
        ("leaf_id.max_tags", "150000"),
        ("max_parallel_workers_per_gather", "0"),
    ];
    let fixture = Fixture::start(context.running, &conf);
    section.attempt("this section", |section| {
        fixture.create_noop()?;
        let mut session = fixture.session();
        let mut contenders = Contender::usual(&mut session);
        constant(context, section, &mut session, &mut contenders);
        plpgsql(context, section, &mut session, &contenders);
        blocks(context, section, &mut session);
        below_the_ceiling(context, section, &mut session, &contenders);
        columns(context, section, &mut session);
        drop(session);
        bursts(context, section)
    });
}

/// Nanoseconds per id of each contender, less the idle call.
struct Nets {
    nets: Vec<Series>,
    /// What was subtracted from each.
    idle: Vec<Series>,
}

/// Measures a statement for each contender in turns, each right after its idle call, so that
/// both see the machine in the same state.
fn nets(
    context: &Context,
    session: &mut Session,
    contenders: &[&Contender],
    ids: u32,
    statement: impl Fn(&str, u32) -> String,
) -> Nets {
    let calls: Vec<_> = contenders
        .iter()
        .flat_map(|contender| {
            let ids = if contender.slow { ids / 10 } else { ids };
            [(contender.idle, ids), (&contender.call, ids)]
        })
        .collect();
    let series = in_turns(context.options.rounds, &calls, |(call, ids)| {
        let ids = ids / PASSES;
        fastest(session, &statement(call, ids)) * 1e9 / f64::from(ids)
    });
    let pairs = || series.chunks_exact(2);
    Nets {
        nets: pairs().map(|pair| pair[1].less(&pair[0])).collect(),
        idle: pairs().map(|pair| pair[0].clone()).collect(),
    }
}

/// Seconds of the fastest pass.
fn fastest(session: &mut Session, sql: &str) -> f64 {
    let passes = (0..PASSES).map(|_| timed(|| session.run(sql)).1.as_secs_f64());
    passes.fold(f64::INFINITY, f64::min)
}

/// Adds a table of net figures and a paragraph on the idle calls, and keeps all figures. Those
/// that are absent have a row that says why.
fn show(
    section: &mut Section,
    title: &str,
    contenders: &[&Contender],
    nets: &Nets,
    absent: &[(&str, String)],
) {
    let rows: Vec<_> = contenders
        .iter()
        .zip(&nets.nets)
        .map(|(contender, series)| Row {
            label: &contender.label,
            series,
        })
        .collect();
    for row in &rows {
        section.keep(title, row.label, "ns net per id", row.series);
    }
    let mut table = Table::comparison(title, "ns net", 1, CACHE_1, &rows);
    for (label, why) in absent {
        let dash = || "-".to_owned();
        table.row(vec![(*label).into(), dash(), dash(), why.clone(), dash()]);
    }
    section.table(table);
    for (row, idle) in rows.iter().zip(&nets.idle) {
        section.keep(title, row.label, "ns per idle call, subtracted", idle);
    }
    if let Some(idle) = nets.idle.first() {
        section.say(format!(
            "Subtracted from the first row: {} ns per call, loop included.",
            spread(idle, 1)
        ));
    }
}

fn constant(
    context: &Context,
    section: &mut Section,
    session: &mut Session,
    contenders: &mut Vec<Contender>,
) {
    let ids = context.options.pick(200_000, 2_000_000);
    let (others, failures) = Contender::others(session);
    contenders.push(Contender::new(ATOMIC, "atomic_add('bench')"));
    contenders.extend(others);
    section.say(format!(
        "In this section a round's figure is that of the fastest of {PASSES} passes in a \
         row, for every contender: passes are short, and the others are those that the \
         rest of the machine disturbed. The statement is SELECT count(f) FROM \
         generate_series(1, {}) (a tenth of that for contenders that take microseconds), \
         in a transaction of its own. This server has leaf_id.max_tags = 150000 and \
         max_parallel_workers_per_gather = 0. \"{ATOMIC}\" is the least that a counter \
         can cost: it adds 1 to memory of its own process. The layout of snowflake ids \
         allows 4,096 per millisecond, so a loop that does nothing else waits for the \
         clock; below is what they cost without that wait.",
        count(ids / PASSES)
    ));
    for failure in failures {
        section.say(failure);
    }
    let list: Vec<_> = contenders.iter().collect();
    let before = claims(session);
    let nets = nets(context, session, &list, ids, |call, ids| {
        format!("SELECT count({call}) FROM generate_series(1, {ids})")
    });
    let after = claims(session);
    show(section, "A constant tag", &list, &nets, &[]);
    section.say(format!(
        "Segments claimed meanwhile: {}; waits for a segment: {}, {} ms in total (all \
         rounds, warm-up included; the tag started with a step of 1,000).",
        number(after.0 - before.0, 0),
        number(after.1 - before.1, 0),
        number(after.2 - before.2, 1),
    ));

    let of = |label: &str| {
        let index = list.iter().position(|contender| contender.label == label);
        index.map(|index| &nets.nets[index])
    };
    if let (Some(leaf), Some(cached)) = (of(SEGMENT), of(CACHE_1000)) {
        section.check(Check {
            target: Target::ConstantTag,
            what: "net".into(),
            measured: leaf.clone(),
            shown: (1, "ns"),
            bound: Bound::AtMost(8.0),
            limit: Some(
                "45 instructions by callgrind (test \
                 a_call_takes_no_more_instructions_than_it_did), one of them \
                 locked; each load before it depends on the previous one. The section's \
                 first table shows an atomic addition alone."
                    .into(),
            ),
        });
        section.check(Check {
            target: Target::ConstantTag,
            what: "net, relative to nextval CACHE 1000".into(),
            measured: leaf.over(cached),
            shown: (2, "×"),
            bound: Bound::AtMost(0.25),
            limit: None,
        });
    }
    // Contenders that take microseconds would dwarf these.
    let near = [ATOMIC, SEGMENT, SNOWFLAKE, CACHE_1, CACHE_32, CACHE_1000];
    let bars = list.iter().zip(&nets.nets).map(|(contender, series)| Bar {
        name: contender.label.clone(),
        value: series.median(),
        color: contender.color,
    });
    let bars = bars
        .filter(|bar| near.contains(&bar.name.as_str()))
        .collect();
    section.chart(Chart::bars(
        "one-session.svg",
        "One session",
        "ns per id, net of a call that does nothing",
        1,
        vec![(
            "A constant tag; snowflake ids wait for the clock".into(),
            bars,
        )],
    ));
}

/// Segments claimed for the tag `bench`, waits, and milliseconds waited.
fn claims(session: &mut Session) -> (f64, f64, f64) {
    let mut figure = |name: &str| {
        session.value(&format!(
            "SELECT coalesce({name}, 0)::float8 FROM leaf_segment_status WHERE tag = 'bench'"
        ))
    };
    (figure("refills"), figure("waits"), figure("waited_ms"))
}

fn plpgsql(
    context: &Context,
    section: &mut Section,
    session: &mut Session,
    contenders: &[Contender],
) {
    let ids = context.options.pick(100_000, 1_000_000);
    let list = only(
        contenders,
        &[SEGMENT, SNOWFLAKE, CACHE_1, CACHE_32, CACHE_1000, ATOMIC],
    );
    let nets = nets(context, session, &list, ids, |call, ids| {
        format!(
            "DO $$ DECLARE id bigint; BEGIN
                 FOR i IN 1 .. {ids} LOOP id := {call}; END LOOP;
             END $$"
        )
    });
    section.say(format!(
        "A loop of {} assignments in PL/pgSQL, less the same loop with noop().",
        count(ids / PASSES)
    ));
    show(section, "Inside PL/pgSQL", &list, &nets, &[]);
}

fn blocks(context: &Context, section: &mut Section, session: &mut Session) {
    let ids = context.options.pick(200_000u32, 1_000_000);
    let ranges = ids / RANGE;
    // The statements that are timed.
    let statements = [
        format!("SELECT count(*) FROM leaf_segment_next_batch('bench', {ids})"),
        format!("SELECT count(*) FROM generate_series(1::bigint, {ids})"),
        format!("SELECT count(*) FROM (SELECT leaf_segment_next_batch('bench', {ids})) ids"),
        format!("SELECT count(*) FROM (SELECT generate_series(1::bigint, {ids})) ids"),
        format!(
            "SELECT count(leaf_segment_next_range('bench', {RANGE})) FROM generate_series(1, {ranges})"
        ),
        format!("SELECT count(noop('bench')) FROM generate_series(1, {ranges})"),
    ];
    let series = in_turns(context.options.rounds, &statements, |sql| {
        fastest(session, sql) * 1e9 / f64::from(ids)
    });
    let [batch, rows, listed, listed_rows, range, calls] = &series[..] else {
        unreachable!("one series for each statement")
    };
    let range_net = range.less(calls);
    section.say(format!(
        "{} ids in one statement: leaf_segment_next_batch compared with generate_series \
         in the same place, and leaf_segment_next_range with {} ids per call, less as \
         many calls of noop(text).",
        count(ids),
        count(RANGE)
    ));
    let columns = [
        "",
        "× generate_series",
        "min .. max",
        "ns per id",
        "min .. max",
    ];
    let mut table = Table::new("Blocks of ids", &columns);
    for (label, series, base) in [
        ("batch, in FROM", batch, Some(rows)),
        ("generate_series, in FROM", rows, Some(rows)),
        ("batch, in the select list", listed, Some(listed_rows)),
        (
            "generate_series, in the select list",
            listed_rows,
            Some(listed_rows),
        ),
        ("range, net", &range_net, None),
    ] {
        section.keep("Blocks of ids", label, "ns per id", series);
        let ratio = base.map(|base| series.over(base));
        table.row(vec![
            label.into(),
            ratio
                .as_ref()
                .map_or("-".into(), |ratio| number(ratio.median(), 2)),
            ratio
                .as_ref()
                .map_or("-".into(), |ratio| self::range(ratio, 2)),
            number(series.median(), 2),
            self::range(series, 2),
        ]);
    }
    section.table(table);
    section.check(Check {
        target: Target::Blocks,
        what: "range, net".into(),
        measured: range_net,
        shown: (2, "ns"),
        bound: Bound::AtMost(1.0),
        limit: None,
    });
    for (what, own, base) in [
        ("batch in FROM", batch, rows),
        ("batch in the select list", listed, listed_rows),
    ] {
        section.check(Check {
            target: Target::Blocks,
            what: format!("{what}, relative to generate_series"),
            measured: own.over(base),
            shown: (2, "×"),
            bound: Bound::AtMost(1.2),
            limit: None,
        });
    }
}

/// One statement that takes many ids, where a full millisecond may borrow from the next ones,
/// and where it may not.
fn bursts(context: &Context, section: &mut Section) -> Result<(), Unmeasured> {
    let ids = context.options.pick(500_000, 5_000_000);
    let statement =
        |call: &str, ids: u32| format!("SELECT count({call}) FROM generate_series(1, {ids})");
    let title = format!("One statement of {} ids", count(ids / PASSES));
    section.say(format!(
        "{title}. \"With a burst lead\" is leaf_snowflake_next on a server with \
         leaf_id.max_burst_lead = 15s, as all of this table but one row: a full millisecond \
         borrows from the next ones instead of waiting for them. By default it does not."
    ));
    let fixture = Fixture::start(context.running, &BURST);
    fixture.create_noop()?;
    let mut session = fixture.session();
    let mut contenders = Contender::usual(&mut session);
    contenders.retain(|contender| contender.label != CACHE_32);
    let mut absent = Vec::new();
    for other in Contender::with_time(&mut session) {
        match other {
            Ok(other) => contenders.push(other),
            Err(why) => absent.push(why),
        }
    }
    // On a new server ids lead the clock by more than a burst may.
    eprintln!("    until the clock has caught up");
    wait_until(Duration::from_secs(60), "the clock to catch up", || {
        session.value("SELECT clock_lead_ms = 0 FROM leaf_snowflake_status")
    });
    let list: Vec<_> = contenders.iter().collect();
    let mut all = nets(context, &mut session, &list, ids, statement);
    drop(session);
    drop(fixture);

    let fixture = Fixture::start(context.running, &[]);
    fixture.create_noop()?;
    let mut session = fixture.session();
    let waiting = [Contender::new(SNOWFLAKE, "leaf_snowflake_next()")];
    let by_default = nets(context, &mut session, &[&waiting[0]], ids, statement);
    all.nets.extend(by_default.nets);
    all.idle.extend(by_default.idle);

    let mut named: Vec<_> = contenders.iter().chain(&waiting).cloned().collect();
    for contender in &mut named {
        if contender.label == SNOWFLAKE {
            contender.label += ", with a burst lead";
            break;
        }
    }
    show(
        section,
        &title,
        &named.iter().collect::<Vec<_>>(),
        &all,
        &absent,
    );
    Ok(())
}

fn below_the_ceiling(
    context: &Context,
    section: &mut Section,
    session: &mut Session,
    contenders: &[Contender],
) {
    let ids = context.options.pick(100_000, 1_000_000);
    let list = only(
        contenders,
        &[SEGMENT, SNOWFLAKE, CACHE_1, CACHE_1000, RANDOM_UUID],
    );
    let nets = nets(context, session, &list, ids, |call, ids| {
        format!("SELECT count({call}), count(md5(i::text)) FROM generate_series(1, {ids}) i")
    });
    section.say(format!(
        "The same over {} rows with other work in each, md5(i::text), so that ids are \
         requested at less than the ceiling's rate (one per {} ns): what snowflake ids \
         cost when they do not wait for the clock.",
        count(ids / PASSES),
        number(NS_PER_SNOWFLAKE, 0)
    ));
    show(section, "With other work in each row", &list, &nets, &[]);
    if nets
        .idle
        .iter()
        .any(|idle| idle.median() < 1.2 * NS_PER_SNOWFLAKE)
    {
        section.say(
            "This machine does the other work so fast that the ceiling may have been \
             reached: then the figure for snowflake ids is too large.",
        );
    }
    let snowflake = list
        .iter()
        .position(|contender| contender.label == SNOWFLAKE);
    if let Some(index) = snowflake {
        section.check(Check {
            target: Target::Snowflake,
            what: "below the ceiling, net".into(),
            measured: nets.nets[index].clone(),
            shown: (1, "ns"),
            bound: Bound::AtMost(35.0),
            limit: None,
        });
    }
}

fn columns(context: &Context, section: &mut Section, session: &mut Session) {
    let rows: u32 = context.options.pick(100_000, 500_000);
    let many: u32 = context.options.pick(10_000, 100_000);
    let kinds = [10, 1_000, many];
    eprintln!("    the first pass over {} tags", count(many));
    let mut first_pass = String::new();
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
        let first = format!(
            "SELECT count(leaf_segment_next(tag)) FROM (SELECT DISTINCT tag FROM tags_{tags}) t"
        );
        let ((), took) = timed(|| session.run(&first));
        first_pass = format!(
            "The first pass over {} tags, which claims a segment for each, took {} s ({} \
             µs per tag).",
            count(tags),
            number(took.as_secs_f64(), 1),
            number(took.as_secs_f64() * 1e6 / f64::from(tags), 0)
        );
    }
    let calls: Vec<_> = kinds
        .iter()
        .flat_map(|tags| TAG_CALLS.map(|call| (call, *tags)))
        .collect();
    let series = in_turns(context.options.rounds, &calls, |(call, tags)| {
        let sql = format!("SELECT count({call}(tag)) FROM tags_{tags}");
        fastest(session, &sql) * 1e9 / f64::from(rows)
    });
    let net = |call: usize| {
        let turns = series.chunks_exact(TAG_CALLS.len());
        turns.map(move |turn| turn[call].less(&turn[0])).collect()
    };
    let [nets, one_line, two_lines]: [Vec<Series>; 3] = [net(1), net(2), net(3)];
    section.say(format!(
        "The tag from a column: SELECT count(leaf_segment_next(tag)) over a table of {} \
         rows in shuffled order, less noop(tag) over the same table. {first_pass} \
         \"One line\" hashes the tag and adds 1 in one of 131,072 cache lines, \"two lines\" \
         in one that is found through such a line: the least that memory costs that does \
         not fit into the cache. (A lookup touches three: where the session's table has the \
         tag, and through that the tag's bytes and its counter, both at once.)",
        count(rows)
    ));
    let labels: Vec<_> = kinds
        .iter()
        .map(|tags| format!("{} tags", count(*tags)))
        .collect();
    let least = |what: &str| -> Vec<_> { labels.iter().map(|l| format!("{l}, {what}")).collect() };
    let (one_line_labels, two_lines_labels) = (least("one line"), least("two lines"));
    let compared: Vec<_> = labels
        .iter()
        .zip(&nets)
        .chain(one_line_labels.iter().zip(&one_line))
        .chain(two_lines_labels.iter().zip(&two_lines))
        .map(|(label, series)| Row { label, series })
        .collect();
    for row in &compared {
        section.keep(
            "The tag from a column",
            row.label,
            "ns net per id",
            row.series,
        );
    }
    section.table(Table::comparison(
        "The tag from a column",
        "ns net",
        1,
        &labels[0],
        &compared,
    ));
    section.check(Check {
        target: Target::ColumnTag,
        what: "net".into(),
        measured: nets[1].clone(),
        shown: (1, "ns"),
        bound: Bound::AtMost(25.0),
        limit: Some(format!(
            "about 200 instructions by callgrind (test \
             a_call_takes_no_more_instructions_than_it_did): the tag's hash, the \
             session's table, the comparison, and branches that differ from row to row; {} \
             ns with 10 tags. A hash and an atomic addition take {} ns.",
            number(nets[0].median(), 1),
            number(one_line[1].median(), 1)
        )),
    });
    section.check(Check {
        target: Target::ManyTags,
        what: format!("{} tags, net, relative to 10 tags", count(many)),
        measured: nets[2].over(&nets[0]),
        shown: (2, "×"),
        bound: Bound::AtMost(2.0),
        limit: Some(format!(
            "memory: one atomic addition takes {} ns in one of 131,072 cache lines, and {} in \
             one that is found through another, with {} tags; {} and {} with 10.",
            number(one_line[2].median(), 0),
            number(two_lines[2].median(), 0),
            count(many),
            number(one_line[0].median(), 0),
            number(two_lines[0].median(), 0)
        )),
    });
    let bars = labels.iter().zip(&nets).map(|(name, series)| Bar {
        name: name.clone(),
        value: series.median(),
        color: color(SEGMENT),
    });
    section.chart(Chart::bars(
        "one-session-tags.svg",
        "One session, the tag from a column",
        "ns per id, net of a call that does nothing",
        1,
        vec![(SEGMENT.into(), bars.collect())],
    ));
}
