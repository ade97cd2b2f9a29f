//! Would catch: names and numbers that nobody had in mind: a tag cut in the middle of a
//! letter, another tag's ids, a message that breaks, memory that grows with n, and a limit
//! that is only checked in one of the places where it can be broken.

use std::fs;
use std::thread;
use std::time::Duration;

use leaf_id_tests::{Failure, Server, Session, assert_issued_once, promptly, wait_until};

/// Letters of one to four bytes in UTF-8.
const LETTERS: [&str; 4] = ["x", "\u{e4}", "\u{20ac}", "\u{1f343}"];

/// Names that a program may stumble over.
const NAMES: [&str; 20] = [
    " ",
    "  two spaces  ",
    "it's",
    "''",
    "\"quoted\"",
    "back\\slash",
    "\\",
    "\\'",
    "E'\\\\x41'",
    "new\nline",
    "\r\n\t",
    "\u{1}\u{7f}",
    "$$",
    "$1",
    "%s %d %n %%",
    "{} {0}",
    "'; DROP TABLE leaf_id.leaf_alloc; --",
    "NULL",
    "a/../b",
    "\u{202e}\u{feff}",
];

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
    with_tag(session, "SELECT 0::bigint FROM leaf_tag_create($1, 2)", tag)
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
    let seen = "SELECT count(*) FROM leaf_segment_status WHERE tag = $1 AND ids_issued > 16";
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
    create(session, tag).unwrap_err().is("23514");
    for dml in [
        "INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ($1) RETURNING max_id",
        "UPDATE leaf_id.leaf_alloc SET biz_tag = $1 WHERE biz_tag = 'good' RETURNING max_id",
    ] {
        with_tag(session, dml, tag).unwrap_err().is("23514");
    }
}

#[test]
fn tags_have_1_to_128_bytes_in_letters_of_any_width() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.create_tag("good");
    for letter in LETTERS {
        let width = letter.len();
        assert_good_tag(&mut session, letter);
        // Just in, and with something that is cut by the limit.
        for before in ["", "a", "ab", "abc"] {
            let fits = (128 - before.len()) / width;
            let tag = |letters: usize| format!("{before}{}", letter.repeat(letters));
            assert_good_tag(&mut session, &tag(fits));
            let long = tag(fits + 1);
            assert_bad_tag(&mut session, &long, long.len());
        }
    }
    assert_bad_tag(&mut session, "", 0);
    assert_bad_tag(&mut session, &"x".repeat(129), 129);
    // Out of line, compressed, and much longer than anything that is copied.
    let long = "x".repeat(10_000_000);
    assert_bad_tag(&mut session, &long, long.len());
    // The first 128 bytes are another tag.
    let (full, longer) = ("y".repeat(128), "y".repeat(129));
    create(&mut session, &full).unwrap();
    with_tag(&mut session, CALLS[0], &longer)
        .unwrap_err()
        .is("22023");
    assert_eq!(with_tag(&mut session, CALLS[0], &full).unwrap(), [1]);
    assert_eq!(session.next("good"), 1);
}

#[test]
fn names_are_taken_as_they_are() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    let mut holder = server.session();
    for name in NAMES {
        println!("{name:?}");
        // The hint can be run as it is.
        let failure = with_tag(&mut session, CALLS[0], name).unwrap_err();
        failure
            .is("42704")
            .says(&format!("tag \"{name}\" does not exist"));
        let hint = failure.hint.strip_prefix("Create it: ").unwrap();
        session.run(hint);
        assert_eq!(with_tag(&mut session, CALLS[0], name).unwrap(), [1]);
        // An error of the allocator, with the name in it.
        session.run("SET leaf_id.refill_timeout = '150ms'");
        holder.run("BEGIN");
        with_tag(
            &mut holder,
            "UPDATE leaf_id.leaf_alloc SET step = 1000 WHERE biz_tag = $1 RETURNING max_id",
            name,
        )
        .unwrap();
        let batch = "SELECT leaf_segment_next_batch($1, 5000)";
        let failure = with_tag(&mut session, batch, name).unwrap_err();
        failure
            .is("55P03")
            .says(&format!("for tag \"{name}\" within"));
        holder.run("COMMIT");
        session.run("RESET leaf_id.refill_timeout");
        with_tag(&mut session, batch, name).unwrap();
        // The way out of a refused edit can be run too. A claim that is under way then takes the
        // first ids of the new row, for nothing.
        session.wait_for_spare(name);
        let lower = "UPDATE leaf_id.leaf_alloc SET max_id = 1 WHERE biz_tag = $1 RETURNING max_id";
        let failure = with_tag(&mut session, lower, name).unwrap_err();
        let hint = failure
            .hint
            .strip_prefix("To start the tag anew: ")
            .unwrap();
        session.run(hint);
        assert_eq!(with_tag(&mut session, CALLS[0], name).unwrap(), [1]);
        with_tag(
            &mut session,
            "SELECT 0::bigint FROM leaf_tag_drop($1)",
            name,
        )
        .unwrap();
        assert_good_tag(&mut session, name);
    }
    assert_eq!(
        session.value::<i64>("SELECT count(*) FROM leaf_id.leaf_alloc"),
        0
    );
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
        // Bytes that are no letters at all.
        if encoding == "SQL_ASCII" {
            session.run("SELECT leaf_tag_create(E'\\xff\\xfe\\xc3', 2)");
            let next = "SELECT leaf_segment_next(E'\\xff\\xfe\\xc3')";
            assert_eq!([session.value::<i64>(next), session.value(next)], [1, 2]);
            session
                .fails("SELECT leaf_segment_next(E'\\xff')")
                .is("42704");
            session.value::<i64>(next);
            let cached = "SELECT count(*) FROM leaf_segment_status WHERE tag = E'\\xff\\xfe\\xc3'";
            assert_eq!(session.value::<i64>(cached), 1);
        }
        // Its cached ids find back to it after a restart.
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

/// What a process holds for itself, in kibibytes.
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
    // While it runs, not only when it has been cleaned up.
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
    // A reader that stops has the rest left to others.
    let few = promptly(|| watcher.ids("SELECT leaf_segment_next_batch('t', 2147483647) LIMIT 3"));
    assert_eq!(few.len(), 3);
}

#[test]
fn numbers_at_and_beyond_their_ends() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run("SELECT leaf_tag_create('t', 10, max_step => 2147483647)");
    let first = session.next("t");
    for (statement, state) in [
        ("UPDATE leaf_id.leaf_alloc SET step = 0", "23514"),
        ("UPDATE leaf_id.leaf_alloc SET step = -1", "23514"),
        ("UPDATE leaf_id.leaf_alloc SET step = -2147483648", "23514"),
        ("UPDATE leaf_id.leaf_alloc SET step = 2147483648", "22003"),
        ("UPDATE leaf_id.leaf_alloc SET max_step = 9", "23514"),
        (
            "UPDATE leaf_id.leaf_alloc SET max_step = -2147483648",
            "23514",
        ),
        (
            "UPDATE leaf_id.leaf_alloc SET max_step = 2147483648",
            "22003",
        ),
        ("UPDATE leaf_id.leaf_alloc SET max_id = 0", "55000"),
        (
            "UPDATE leaf_id.leaf_alloc SET max_id = -9223372036854775808",
            "55000",
        ),
        (
            "UPDATE leaf_id.leaf_alloc SET max_id = 9223372036854775808",
            "22003",
        ),
        ("UPDATE leaf_id.leaf_alloc SET max_value = 0", "23514"),
        ("UPDATE leaf_id.leaf_alloc SET max_value = -1", "23514"),
        (
            "UPDATE leaf_id.leaf_alloc SET max_value = 9223372036854775807",
            "23514",
        ),
        ("UPDATE leaf_id.leaf_alloc SET biz_tag = NULL", "23502"),
        ("UPDATE leaf_id.leaf_alloc SET max_id = NULL", "23502"),
        ("UPDATE leaf_id.leaf_alloc SET step = NULL", "23502"),
        ("UPDATE leaf_id.leaf_alloc SET max_step = NULL", "23502"),
        ("UPDATE leaf_id.leaf_alloc SET max_value = NULL", "23502"),
        (
            "UPDATE leaf_id.leaf_alloc SET update_time = NULL, max_id = NULL",
            "23502",
        ),
        (
            "INSERT INTO leaf_id.leaf_alloc (biz_tag, step) VALUES ('u', 0)",
            "23514",
        ),
        (
            "INSERT INTO leaf_id.leaf_alloc (biz_tag, step, max_step) VALUES ('u', 2, 1)",
            "23514",
        ),
        (
            "INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id) VALUES ('u', 0)",
            "23514",
        ),
        (
            "INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id) VALUES ('u', NULL)",
            "23502",
        ),
        (
            "INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES (NULL)",
            "23502",
        ),
        (
            "INSERT INTO leaf_id.leaf_alloc (max_id) VALUES (5)",
            "23502",
        ),
        ("SELECT leaf_tag_create('u', -1)", "23514"),
        (
            "SELECT leaf_tag_create('u', 2147483647, max_step => 2147483646)",
            "23514",
        ),
        ("SELECT leaf_tag_create('u', max_step => 0)", "23514"),
        ("SELECT leaf_tag_create('u', max_step => 999)", "23514"),
        ("SELECT leaf_tag_create('u', start => -1)", "23514"),
        (
            "SELECT leaf_tag_create('u', max_value => 9223372036854775807)",
            "23514",
        ),
        ("SELECT leaf_tag_create('u', 2147483648)", "42883"),
        ("SELECT leaf_tag_create(NULL)", "22004"),
        ("SELECT leaf_tag_create('u', NULL)", "22004"),
        ("SELECT leaf_tag_create('u', start => NULL)", "22004"),
        ("SELECT leaf_tag_create('u', opaque => NULL)", "22004"),
        ("SELECT leaf_tag_drop(NULL)", "22004"),
        ("SELECT leaf_tag_reset(NULL, 1)", "22004"),
        ("SELECT leaf_tag_reset('t', NULL)", "22004"),
        ("SELECT leaf_tag_reset('t', 0)", "23514"),
        ("SELECT leaf_tag_reset('t', -9223372036854775808)", "23514"),
        ("SELECT leaf_segment_next_batch('t', -2147483648)", "22023"),
        ("SELECT leaf_segment_next_range('t', -2147483648)", "22023"),
        ("SELECT leaf_snowflake_next_batch(-2147483648)", "22023"),
        (
            "SELECT leaf_snowflake_decode(-9223372036854775808)",
            "22023",
        ),
        (
            "SELECT leaf_snowflake_decode(1, 9223372036854775807)",
            "22023",
        ),
        (
            "SELECT leaf_snowflake_decode(1, -9223372036854775808)",
            "22023",
        ),
        ("SELECT leaf_alloc_stamp()", "39P01"),
        ("SELECT leaf_alloc_edit()", "39P01"),
    ] {
        println!("{statement}");
        session.fails(statement).is(state);
    }
    // None of that has touched the tag.
    assert_eq!(session.next("t"), first + 1);
    // The longest range there is, until the end.
    session.run(
        "SELECT leaf_tag_reset('t', 9223372036854775806 - 2 * 2147483647::bigint);
         UPDATE leaf_id.leaf_alloc SET step = 2147483647",
    );
    let range = "SELECT last_id FROM leaf_segment_next_range('t', 2147483647)";
    assert_eq!(
        [session.value::<i64>(range), session.value(range)],
        [i64::MAX - 2 - 2_147_483_647, i64::MAX - 2]
    );
    session.fails(range).is("2200H");
    assert_eq!(session.next("t"), i64::MAX - 1);
    session.fails("SELECT leaf_segment_next('t')").is("2200H");
    session.run("SELECT leaf_tag_reset('t', 9223372036854775807)");
    session.fails("SELECT leaf_segment_next('t')").is("2200H");
    // Any epoch and any time gives bounds.
    for epoch in ["-9223372036854775808", "9223372036854775807", "-1", "0"] {
        session.ids(&format!(
            "SELECT leaf_snowflake_min(ts, {epoch}) + leaf_snowflake_max(ts, {epoch}, '38/0/1') * 0
             FROM (VALUES ('-infinity'::timestamptz), ('infinity'), ('4714-11-24 00:00+00 BC'),
                 ('294276-12-31 23:59:59.999999+00'), (now())) AS times (ts)"
        ));
    }
}
