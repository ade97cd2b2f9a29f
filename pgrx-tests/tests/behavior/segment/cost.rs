//! Cost of a call in instructions, which are nearly the same on every x86 machine and in every run,
//! relative to PostgreSQL's own `nextval` on the same server, since an assertion build makes both
//! more expensive. Would catch: a lock, an allocation, a copy, a guard or a slow lookup on the hot
//! path. `make bench` measures time.

use std::time::Duration;

use leaf_id_tests::{Server, wait_until};

const LIMIT: Duration = Duration::from_secs(30);

/// A measurement, and its limit in hundredths of a `nextval`: the original cost (of a `nextval`
/// with 2480 instructions, or 2220 since PostgreSQL 17), plus a fifth for other compilers or libcs.
struct Limit {
    what: &'static str,
    hundredths: f64,
    /// Makes `:n` calls.
    statement: &'static str,
}

const LIMITS: [Limit; 9] = [
    Limit {
        what: "a segment id, constant tag",
        hundredths: 2.5,
        statement: "SELECT count(leaf_segment_next('a')) FROM generate_series(1, :n)",
    },
    Limit {
        what: "a segment id, tag from a column",
        hundredths: 10.8,
        statement: "SELECT count(leaf_segment_next(tag)) FROM (
            SELECT CASE i % 3 WHEN 0 THEN 'a' WHEN 1 THEN 'b' ELSE 'the_third_of_them' END AS tag
            FROM generate_series(1, :n) i OFFSET 0) tags",
    },
    Limit {
        what: "a segment id, one in each statement",
        hundredths: 26.4,
        statement: "DO $$ DECLARE id bigint; BEGIN
            FOR i IN 1..:n LOOP EXECUTE 'SELECT leaf_segment_next(''a'')' INTO id; END LOOP;
            END $$",
    },
    Limit {
        what: "a segment id of a tag that not all roles may use, constant tag",
        hundredths: 3.9,
        statement: "SELECT count(leaf_segment_next('mine')) FROM generate_series(1, :n)",
    },
    Limit {
        what: "a segment id of a tag that not all roles may use, tag from a column",
        hundredths: 10.1,
        statement: "SELECT count(leaf_segment_next(tag)) FROM (
            SELECT CASE i % 3 WHEN 0 THEN 'a' WHEN 1 THEN 'b' ELSE 'mine' END AS tag
            FROM generate_series(1, :n) i OFFSET 0) tags",
    },
    Limit {
        what: "a segment id of a tag that not all roles may use, one in each statement",
        hundredths: 25.1,
        statement: "DO $$ DECLARE id bigint; BEGIN
            FOR i IN 1..:n LOOP EXECUTE 'SELECT leaf_segment_next(''mine'')' INTO id; END LOOP;
            END $$",
    },
    Limit {
        what: "a segment id of a batch",
        hundredths: 5.4,
        statement: "SELECT count(*) FROM leaf_segment_next_batch('a', :n)",
    },
    Limit {
        what: "a range",
        hundredths: 58.5,
        statement: "SELECT count(leaf_segment_next_range('a', 10)) FROM generate_series(1, :n)",
    },
    Limit {
        // Including its share of millisecond changes, which are more frequent on a slow machine.
        what: "a snowflake id",
        hundredths: 4.9,
        statement: "SELECT count(leaf_snowflake_next()) FROM generate_series(1, :n)",
    },
];

#[test]
#[cfg(target_arch = "x86_64")]
fn a_call_takes_no_more_instructions_than_it_did() {
    let functions = [
        "nextval_oid",
        "leaf_segment_next",
        "leaf_segment_next_batch_wrapper",
        "leaf_segment_next_range_wrapper",
        "leaf_snowflake_next",
    ];
    // Ids ahead of the clock are slower. On a new server, the lead is the sum of these two.
    let conf = [
        ("leaf_id.worker_id", "1"),
        ("leaf_id.max_clock_lead", "0"),
        ("leaf_id.timestamp_reservation", "100ms"),
    ];
    let Some(server) = Server::counting(&functions, &conf) else {
        println!("SKIPPED: there is no valgrind here");
        eprintln!("SKIPPED: there is no valgrind here, so no instructions are counted");
        return;
    };
    let mut session = server.session();
    for tag in ["mine", "a", "b", "the_third_of_them"] {
        // So large that no further segment is needed.
        session.run(&format!(
            "SELECT leaf_tag_create('{tag}', step => 100000000)"
        ));
        if tag != "mine" {
            session.run(&format!("SELECT leaf_tag_grant('{tag}', 'public')"));
        }
        session.next(tag);
    }
    session.run("SELECT leaf_snowflake_next()");
    wait_until(LIMIT, "the clock to catch up", || {
        session.value("SELECT clock_lead_ms = 0 FROM leaf_id.server")
    });
    session.run("CREATE SEQUENCE s");
    let per_call = |statement: &str| {
        server.instructions_per_call(|calls| statement.replace(":n", &calls.to_string()))
    };
    let unit = per_call("SELECT count(nextval('s')) FROM generate_series(1, :n)");
    println!("{unit:>7.1} nextval");
    let mut costly = Vec::new();
    for limit in LIMITS {
        let count = per_call(limit.statement);
        let hundredths = count / unit * 100.0;
        println!("{count:>7.1} {}: {hundredths:.1} % of that", limit.what);
        if hundredths > limit.hundredths {
            costly.push(format!(
                "{}: {hundredths:.1} % of a nextval, limit {}",
                limit.what, limit.hundredths
            ));
        }
    }
    assert!(costly.is_empty(), "{costly:#?}");
}
