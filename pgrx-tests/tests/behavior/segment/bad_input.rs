//! Would catch: a tag that is a different one in another encoding, and memory use that grows with
//! n. Single-session errors are tested in sql/segment_errors.sql and sql/segment_names.sql.

use std::fs;
use std::thread;
use std::time::Duration;

use leaf_id_tests::{Failure, Server, Session, assert_issued_once, promptly, wait_until};

fn with_tag(session: &mut Session, call: &str, tag: &str) -> Result<Vec<i64>, Failure> {
    session
        .query(call, &[&tag])
        .map(|rows| rows.iter().map(|row| row.get(0)).collect())
        .map_err(|error| Failure::from(&error))
}

const CALLS: [&str; 3] = [
    "SELECT leaf_segment_next($1)",
    "SELECT leaf_segment_next_batch($1, 2)",
    "SELECT first_id FROM leaf_segment_next_range($1, 2)",
];

fn create(session: &mut Session, tag: &str) -> Result<Vec<i64>, Failure> {
    with_tag(
        session,
        "SELECT 0::bigint FROM leaf_tag_create($1, step => 2)",
        tag,
    )
}

/// Checks that a tag can be created, used across segments, seen and dropped.
fn assert_good_tag(session: &mut Session, tag: &str) {
    create(session, tag).unwrap();
    let mut ids = Vec::new();
    for call in CALLS.iter().cycle().take(12) {
        ids.extend(with_tag(session, call, tag).unwrap());
    }
    assert!(ids[0] == 1 && ids.len() == 16, "{ids:?}");
    assert_issued_once([ids]);
    let seen = "SELECT count(*) FROM leaf_id.tags_detail WHERE tag = $1 AND ids_issued > 16";
    assert_eq!(with_tag(session, seen, tag).unwrap(), [1], "{tag:?}");
    with_tag(session, "SELECT 0::bigint FROM leaf_tag_drop($1)", tag).unwrap();
}

/// Checks that a tag is refused wherever it can be named.
fn assert_bad_tag(session: &mut Session, tag: &str, bytes: usize) {
    for call in CALLS {
        let failure = with_tag(session, call, tag).unwrap_err();
        failure
            .is("22023")
            .says("128 bytes")
            .details(&format!("{bytes} bytes"));
    }
    create(session, tag).unwrap_err().is("22023");
    for dml in [
        "INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ($1) RETURNING max_id",
        "UPDATE leaf_id.leaf_alloc SET biz_tag = $1 WHERE biz_tag = 'good' RETURNING max_id",
    ] {
        with_tag(session, dml, tag).unwrap_err().is("23514");
    }
}

/// A tag is its bytes in the encoding of its database.
#[test]
fn databases_of_other_encodings() {
    let server = Server::with_leaf_id(&[]);
    let mut admin = server.session();
    for encoding in ["LATIN1", "SQL_ASCII", "EUC_JP"] {
        println!("{encoding}");
        admin.run(&format!(
            "CREATE DATABASE d ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'"
        ));
        let mut session = server.session_in("d");
        session.run("CREATE EXTENSION leaf_id; SELECT leaf_tag_create('good')");
        let (letter, width) = match encoding {
            "LATIN1" => ("\u{e4}", 1),
            "EUC_JP" => ("\u{3042}", 2),
            _ => ("\u{e4}", 2),
        };
        assert_good_tag(&mut session, &letter.repeat(128 / width));
        let long = letter.repeat(128 / width + 1);
        assert_bad_tag(&mut session, &long, 128 + width);
        let failure = with_tag(&mut session, CALLS[0], letter).unwrap_err();
        failure.is("42704").says("does not exist");
        println!("{failure}");
        create(&mut session, letter).unwrap();
        let ids = [CALLS[0], CALLS[1], CALLS[0]]
            .map(|call| with_tag(&mut session, call, letter).unwrap())
            .concat();
        assert_eq!(ids, [1, 2, 3, 4]);
        // Bytes that are no valid characters.
        if encoding == "SQL_ASCII" {
            session.run("SELECT leaf_tag_create(E'\\xff\\xfe\\xc3', step => 2)");
            let next = "SELECT leaf_segment_next(E'\\xff\\xfe\\xc3')";
            assert_eq!([session.value::<i64>(next), session.value(next)], [1, 2]);
            session
                .fails("SELECT leaf_segment_next(E'\\xff')")
                .is("42704");
            session.value::<i64>(next);
            let cached = "SELECT count(*) FROM leaf_id.tags_detail WHERE tag = E'\\xff\\xfe\\xc3'";
            assert_eq!(session.value::<i64>(cached), 1);
        }
        // Its cached ids are restored to it after a restart.
        drop((session, admin));
        server.restart();
        let mut session = server.session_in("d");
        assert_eq!(with_tag(&mut session, CALLS[0], letter).unwrap(), [5]);
        if encoding == "SQL_ASCII" {
            let next = "SELECT leaf_segment_next(E'\\xff\\xfe\\xc3')";
            assert_eq!(session.value::<i64>(next), 4);
        }
        drop(session);
        admin = server.session();
        admin.run("DROP DATABASE d");
    }
}

/// Private memory of a process, in kB.
fn memory(pid: i32) -> i64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:"));
    let kibibytes = line.unwrap().split_whitespace().nth(1).unwrap();
    kibibytes.parse().unwrap()
}

#[test]
fn a_batch_of_two_billion_ids_takes_no_memory_and_can_be_ended() {
    let server = Server::with_leaf_id(&[
        ("leaf_id.worker_id", "1"),
        ("leaf_id.timestamp_reservation", "100ms"),
    ]);
    let mut session = server.session();
    session.run("SELECT leaf_tag_create('t', max_step => 2147483647)");
    session.ids("SELECT leaf_segment_next_batch('t', 10)");
    let pid = session.pid();
    for (statement, used) in [
        (
            "SELECT count(*) FROM (SELECT leaf_segment_next_batch('t', 2147483647)) AS ids",
            "t",
        ),
        (
            "SELECT count(*) FROM leaf_segment_next_batch('t', 2147483647)",
            "t",
        ),
        (
            "SELECT count(*) FROM (SELECT leaf_snowflake_next_batch(2147483647)) AS ids",
            "snowflake",
        ),
        (
            "BEGIN; SELECT leaf_tag_create('new');
             SELECT count(*) FROM (SELECT leaf_segment_next_batch('new', 2147483647)) AS ids",
            "new",
        ),
    ] {
        session.run("SET statement_timeout = '1s'");
        let before = memory(pid);
        let failure = promptly(|| session.fails(statement));
        let grown = memory(pid) - before;
        println!("{used}: {grown} kB more");
        failure.is("57014");
        // work_mem is 4 MB.
        assert!(grown < 16_000, "{grown} kB more");
        session.run("ROLLBACK; RESET statement_timeout");
    }
    // While it runs, not only after cleanup.
    let mut watcher = server.session();
    thread::scope(|scope| {
        let running = scope.spawn(|| {
            session.run("SET statement_timeout = '2s'");
            session.fails(
                "SELECT count(*) FROM (SELECT leaf_segment_next_batch('t', 2147483647)) AS i",
            )
        });
        let before = memory(pid);
        wait_until(
            Duration::from_secs(10),
            "it to have run for a second",
            || {
                watcher.value(&format!(
                    "SELECT query_start < clock_timestamp() - interval '1 s' AND state = 'active'
                 FROM pg_stat_activity WHERE pid = {pid}"
                ))
            },
        );
        let grown = memory(pid) - before;
        println!("{grown} kB more after a second");
        assert!(grown < 16_000);
        running.join().unwrap().is("57014");
    });
    // If the reader stops, the rest is available to others.
    let few = promptly(|| watcher.ids("SELECT leaf_segment_next_batch('t', 2147483647) LIMIT 3"));
    assert_eq!(few.len(), 3);
}
