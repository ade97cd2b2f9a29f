//! Would catch: an id of a past time that has not the parts it was composed of, or of parts
//! that it cannot have; and a backfill as in docs/guide.md that repeats an id.

use std::collections::HashSet;

use leaf_id_tests::{Server, Session, in_threads};

const EPOCH_MS: i64 = 1_288_834_974_657;

fn server() -> Server {
    Server::with_leaf_id(&[
        ("leaf_id.worker_id", "5"),
        ("leaf_id.timestamp_reservation", "100ms"),
    ])
}

fn compose(session: &mut Session, arguments: &str) -> i64 {
    session.value(&format!("SELECT leaf_snowflake_compose({arguments})"))
}

#[test]
fn an_id_has_the_parts_that_it_is_composed_of() {
    let server = server();
    let mut session = server.session();
    session.run("SET timezone = 'UTC'");
    for (arguments, id) in [
        ("'2010-11-04 01:42:54.657', 0, 0", 0),
        ("'2080-07-10 17:30:30.208999', 1023, 4095", i64::MAX),
        ("'1970-01-01', 0, 0, 0", 0),
        // Within a millisecond it is that millisecond, also before 1970.
        ("'1970-01-01 00:00:00.0019', 2, 3, 0", 1 << 22 | 2 << 12 | 3),
        ("'1969-12-31 23:59:59.9991', 0, 0, -2", 1 << 22),
        (
            "'1970-01-01 00:00:00.001', 63, 63, 0, '41/6/6'",
            (2 << 12) - 1,
        ),
        ("'1970-01-01 00:00:00.001', 0, 1, 0, layout => '38/0/1'", 3),
    ] {
        assert_eq!(compose(&mut session, arguments), id, "{arguments}");
    }
    assert!(session.value::<bool>(&format!(
        "SELECT bool_and(id = leaf_snowflake_compose(ts, worker_id, sequence)
             AND id = leaf_snowflake_compose(ts, worker_id, sequence, {EPOCH_MS}))
         FROM leaf_snowflake_next_batch(10000) id, leaf_snowflake_decode(id)"
    )));
    for null in [
        "NULL, 1, 1",
        "now(), NULL, 1",
        "now(), 1, NULL",
        "now(), 1, 1, NULL",
        "now(), 1, 1, 0, NULL",
    ] {
        let sql = format!("SELECT leaf_snowflake_compose({null})");
        assert_eq!(session.value::<Option<i64>>(&sql), None, "{null}");
    }
}

#[test]
fn parts_that_an_id_cannot_have_are_refused() {
    let server = server();
    let mut session = server.session();
    session.run("SET timezone = 'UTC'");
    for (arguments, message, detail) in [
        ("now(), -1, 0", "worker id is out of range: -1", "0 to 1023"),
        (
            "now(), 1024, 0",
            "worker id is out of range: 1024",
            "0 to 1023",
        ),
        (
            "now(), 2147483647, 0",
            "worker id is out of range: 2147483647",
            "",
        ),
        ("now(), 65536, 0", "worker id is out of range: 65536", ""),
        (
            "now(), 64, 0, 0, '41/6/6'",
            "worker id is out of range: 64",
            "0 to 63",
        ),
        (
            "now(), 1, 4096",
            "sequence is out of range: 4096",
            "0 to 4095: a worker id has 4096 ids in a millisecond",
        ),
        ("now(), 1, -1", "sequence is out of range: -1", ""),
        (
            "now(), 1, 9223372036854775807",
            "sequence is out of range: 9223372036854775807",
            "",
        ),
        (
            "now(), 1, 65536, 0, '46/1/16'",
            "sequence is out of range: 65536",
            "0 to 65535: a worker id has 65536 ids",
        ),
        (
            "'2010-11-04 01:42:54.656999', 1, 1",
            "snowflake ids cannot carry this time",
            "from 2010-11-04 01:42:54.657+00 to 2080-07-10 17:30:30.208+00",
        ),
        (
            "'2080-07-10 17:30:30.209', 1, 1",
            "snowflake ids cannot carry this time",
            "",
        ),
        (
            "'infinity', 1, 1",
            "snowflake ids cannot carry this time",
            "",
        ),
        (
            "'-infinity', 1, 1",
            "snowflake ids cannot carry this time",
            "",
        ),
        (
            "'294276-12-31', 1, 1, 0, '46/1/1'",
            "snowflake ids cannot carry this time",
            "",
        ),
        (
            "now(), 1, 1, 9223372036854775807",
            "epoch is out of range: 9223372036854775807",
            "",
        ),
        (
            "now(), 1, 1, -9223372036854775808",
            "epoch is out of range: -9223372036854775808",
            "",
        ),
    ] {
        session
            .fails(&format!("SELECT leaf_snowflake_compose({arguments})"))
            .is("22023")
            .says(message)
            .details(detail);
    }
}

#[test]
fn with_an_epoch_it_stands_in_an_index_a_check_and_a_generated_column() {
    let server = server();
    let mut session = server.session();
    session.run(&format!(
        "CREATE TABLE events (
             at timestamptz NOT NULL, n integer NOT NULL,
             id bigint PRIMARY KEY
                 GENERATED ALWAYS AS (leaf_snowflake_compose(at, 900, n, {EPOCH_MS})) STORED,
             CHECK (leaf_snowflake_compose(at, 900, n, {EPOCH_MS}, '41/10/12') = id));
         CREATE INDEX ON events (leaf_snowflake_compose(at, 0, 0, {EPOCH_MS}, '41/6/6'));
         INSERT INTO events (at, n) SELECT now(), n FROM generate_series(0, 4095) n"
    ));
    assert_eq!(
        session.value::<i64>("SELECT count(DISTINCT id) FROM events"),
        4096
    );
    session
        .fails("INSERT INTO events (at, n) VALUES (now(), 4096)")
        .is("22023");
    session
        .fails(
            "CREATE TABLE wrong (at timestamptz,
                 id bigint GENERATED ALWAYS AS (leaf_snowflake_compose(at, 900, 0)) STORED)",
        )
        .is("42P17");
}

/// As in docs/guide.md, with as many rows in some milliseconds as these hold.
#[test]
fn a_backfill_repeats_nothing_beside_live_ids() {
    let server = server();
    server.session().run(
        "CREATE TABLE old_events (created_at timestamptz NOT NULL, what text NOT NULL);
         INSERT INTO old_events
             SELECT timestamptz '2020-01-01 00:00+00' + (i / 4096) * interval '1 ms'
                 + (i % 7) * interval '100 us', 'row ' || i
             FROM generate_series(0, 8191) i
         UNION ALL
             SELECT now() - i * interval '1 ms', 'recent row ' || i FROM generate_series(1, 2000) i;
         CREATE TABLE events (
             id bigint PRIMARY KEY DEFAULT leaf_snowflake_next(), what text NOT NULL, live boolean)",
    );
    let inserted = in_threads(3, |thread| {
        let mut session = server.session();
        if thread == 0 {
            session.run(&format!(
                "INSERT INTO events (id, what)
                 SELECT leaf_snowflake_compose(created_at, 900,
                     row_number() OVER (
                         PARTITION BY date_trunc('milliseconds', created_at)
                         ORDER BY created_at, what) - 1,
                     {EPOCH_MS}, '41/10/12'), what
                 FROM old_events"
            ));
            return 0;
        }
        for _ in 0..20 {
            session.run(
                "INSERT INTO events (what, live) SELECT 'live', true FROM generate_series(1, 500)",
            );
        }
        10_000
    });
    let live: i64 = inserted.iter().sum();
    let mut session = server.session();
    let ids = session.ids("SELECT id FROM events WHERE live IS NULL");
    assert_eq!(ids.len(), 10_192);
    assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
    assert_eq!(
        session.value::<i64>("SELECT count(*) FROM events WHERE live"),
        live
    );
    // Each carries its row's time, and follows the order.
    assert!(session.value::<bool>(
        "SELECT bool_and(d.ts = date_trunc('milliseconds', created_at) AND d.worker_id = 900)
         FROM events e JOIN old_events o USING (what), leaf_snowflake_decode(e.id) d"
    ));
    assert!(session.value::<bool>(
        "SELECT bool_and(increases) FROM (
             SELECT e.id > lag(e.id) OVER (ORDER BY created_at, what) IS NOT false AS increases
             FROM events e JOIN old_events o USING (what)) pairs"
    ));
    // One row more than a millisecond holds.
    session.run("INSERT INTO old_events VALUES ('2020-01-01 00:00+00', 'one more')");
    session
        .fails(
            "SELECT leaf_snowflake_compose(created_at, 900,
                 row_number() OVER (PARTITION BY date_trunc('milliseconds', created_at)) - 1)
             FROM old_events",
        )
        .is("22023")
        .says("sequence is out of range: 4096");
}

/// As in docs/guide.md, too: many rows of one time spill over into the milliseconds after it.
#[test]
fn a_backfill_of_dates_spills_over() {
    let server = server();
    let mut session = server.session();
    session.run(
        "CREATE TABLE old_bills (billed_on date NOT NULL, n integer NOT NULL);
         INSERT INTO old_bills SELECT date '2020-01-01' + i % 2, i FROM generate_series(1, 20001) i;
         CREATE TABLE bills (id bigint PRIMARY KEY, billed_on date, n integer)",
    );
    session.run(&format!(
        "INSERT INTO bills
         SELECT leaf_snowflake_compose(
                 billed_on + (k / 4096) * interval '1 ms', 901, k % 4096, {EPOCH_MS}, '41/10/12'),
             billed_on, n
         FROM (SELECT *, row_number() OVER (PARTITION BY billed_on ORDER BY n) - 1 AS k FROM old_bills) numbered"
    ));
    assert!(session.value::<bool>(
        "SELECT count(*) = 20001 AND bool_and((leaf_snowflake_decode(id)).ts::date = billed_on)
         FROM bills"
    ));
}
