//! Would catch: an error without its SQLSTATE, fact or way out, a panic or an internal error
//! where a user only made a mistake, and ids beyond a limit (I8).

use std::io::Write;
use std::process::Stdio;

use leaf_id_tests::{Server, Stop, promptly};

#[test]
fn mistakes_of_callers() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run("SELECT leaf_tag_create('t', max_step => 2000)");
    let long = "repeat('x', 129)";
    let wide = "repeat('\u{e4}', 65)";
    let issue = |tag: &str| format!("SELECT leaf_segment_next({tag})");
    for (statement, state, message, detail, hint) in [
        (
            &issue("'nope'")[..],
            "42704",
            "tag \"nope\" does not exist",
            "",
            "leaf_tag_create('nope')",
        ),
        (
            &issue("'it''s'"),
            "42704",
            "tag \"it's\" does",
            "",
            "leaf_tag_create('it''s')",
        ),
        (
            "SELECT leaf_segment_next_batch('nope', 3)",
            "42704",
            "\"nope\"",
            "",
            "leaf_tag_create",
        ),
        (
            "SELECT leaf_segment_next_range('nope', 3)",
            "42704",
            "\"nope\"",
            "",
            "leaf_tag_create",
        ),
        (&issue(long), "22023", "128 bytes", "129 bytes", ""),
        (&issue(wide), "22023", "128 bytes", "130 bytes", ""),
        (&issue("''"), "22023", "128 bytes", "0 bytes", ""),
        (
            "SELECT leaf_segment_next_batch('t', -1)",
            "22023",
            "negative",
            "",
            "",
        ),
        (
            "SELECT leaf_segment_next_range('t', -1)",
            "22023",
            "negative",
            "",
            "",
        ),
        (
            "SELECT leaf_snowflake_next_batch(-1)",
            "22023",
            "negative",
            "",
            "",
        ),
        (
            "SELECT leaf_segment_next_range('t', 2001)",
            "22023",
            "2001 ids of tag \"t\"",
            "2000",
            "max_step",
        ),
        (
            "SELECT leaf_snowflake_next()",
            "55000",
            "leaf_id.worker_id",
            "",
            "ALTER SYSTEM SET",
        ),
        (
            "SELECT leaf_snowflake_next_batch(3)",
            "55000",
            "leaf_id.worker_id",
            "",
            "ALTER SYSTEM",
        ),
        ("SELECT leaf_snowflake_decode(-1)", "22023", "-1", "", ""),
        (
            "INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('')",
            "23514",
            "biz_tag_length",
            "",
            "",
        ),
        (
            &format!("SELECT leaf_tag_create({long})"),
            "23514",
            "biz_tag_length",
            "",
            "",
        ),
        (
            "SELECT leaf_tag_create('u', step => 0)",
            "23514",
            "step_positive",
            "",
            "",
        ),
        (
            "SELECT leaf_tag_create('u', 10, max_step => 9)",
            "23514",
            "max_step",
            "",
            "",
        ),
        (
            "SELECT leaf_tag_create('u', start => 0)",
            "23514",
            "max_id_positive",
            "",
            "",
        ),
        (
            "SELECT leaf_tag_create('u', max_value => 0)",
            "23514",
            "max_value",
            "",
            "",
        ),
        (
            "SELECT leaf_tag_create('t')",
            "23505",
            "leaf_alloc_pkey",
            "",
            "",
        ),
        (
            "SELECT leaf_tag_drop('nope')",
            "42704",
            "tag \"nope\" does not exist",
            "",
            "",
        ),
    ] {
        println!("{statement}");
        let failure = session.fails(statement);
        failure.is(state).says(message).details(detail).hints(hint);
        let first = failure.message.chars().next().unwrap();
        assert!(
            !first.is_uppercase() && !failure.message.ends_with('.'),
            "{failure}"
        );
    }
}

#[test]
fn null_and_zero_are_no_mistakes() {
    let server = Server::with_leaf_id(&[("leaf_id.worker_id", "1")]);
    let mut session = server.session();
    session.create_tag("t");
    assert_eq!(
        session.value::<Option<i64>>("SELECT leaf_segment_next(NULL)"),
        None
    );
    let range = "SELECT last_id FROM leaf_segment_next_range";
    for arguments in ["(NULL, 3)", "('t', NULL)"] {
        assert_eq!(
            session.value::<Option<i64>>(&format!("{range}{arguments}")),
            None
        );
    }
    for call in [
        "leaf_segment_next_batch('t', 0)",
        "leaf_segment_next_batch('t', NULL)",
        "leaf_segment_next_batch(NULL, 3)",
        "leaf_snowflake_next_batch(0)",
        "leaf_snowflake_next_batch(NULL)",
    ] {
        assert_eq!(session.ids(&format!("SELECT * FROM {call}")), [], "{call}");
    }
    let tag = format!("repeat('{}', 64)", '\u{e4}');
    session.run(&format!("SELECT leaf_tag_create({tag})"));
    assert_eq!(
        session.ids(&format!("SELECT leaf_segment_next({tag})")),
        [1]
    );
    assert_eq!(session.next("t"), 1, "nothing was issued before");
}

#[test]
fn the_last_id_of_a_tag_is_its_max_value() {
    let server = Server::with_leaf_id(&[]);
    let (mut session, mut other) = (server.session(), server.session());
    for step in [1, 2, 5, 1000] {
        let tag = format!("t{step}");
        session.run(&format!(
            "SELECT leaf_tag_create('{tag}', {step}, max_value => 5)"
        ));
        assert_eq!(session.take(&tag, 5), [1, 2, 3, 4, 5]);
        for session in [&mut session, &mut other] {
            session.be_patient();
            promptly(|| session.try_next(&tag))
                .unwrap_err()
                .is("2200H")
                .says(&tag)
                .says("(5)")
                .hints("max_value");
        }
        session.run(&format!(
            "UPDATE leaf_id.leaf_alloc SET max_value = 7 WHERE biz_tag = '{tag}'"
        ));
        assert_eq!(other.take(&tag, 2), [6, 7]);
        session.try_next(&tag).unwrap_err().is("2200H");
    }
    session.run("SELECT leaf_tag_create('batch', 4, max_value => 6)");
    session
        .fails("SELECT leaf_segment_next_batch('batch', 10)")
        .is("2200H");
    session.run("SELECT leaf_tag_create('range', 4, max_value => 6)");
    session
        .fails("SELECT leaf_segment_next_range('range', 10)")
        .is("2200H");
}

#[test]
fn the_last_id_of_all_is_below_the_end_of_bigint() {
    let server = Server::with_leaf_id(&[]);
    let (mut session, mut other) = (server.session(), server.session());
    for step in [1, 3, 1000, i32::MAX] {
        let tag = format!("t{step}");
        let start = i64::MAX - 4;
        session.run(&format!("SELECT leaf_tag_create('{tag}', {step}, {start})"));
        assert_eq!(session.take(&tag, 2), [start, start + 1]);
        assert_eq!(other.take(&tag, 2), [start + 2, i64::MAX - 1]);
        for _ in 0..3 {
            session.try_next(&tag).unwrap_err().is("2200H").says(&tag);
            other.try_next(&tag).unwrap_err().is("2200H").says(&tag);
        }
    }
    session
        .fails("SELECT leaf_tag_create('u', max_value => 9223372036854775807)")
        .is("23514");
}

#[test]
fn without_preload_everything_says_how_to_get_it() {
    // The setting belongs to nobody then, and must not be in the way.
    let server = Server::start(&[("shared_preload_libraries", ""), ("leaf_id.max_tags", "7")]);
    let mut session = server.session();
    session.run("CREATE EXTENSION leaf_id; SELECT leaf_tag_create('t')");
    for statement in [
        "SELECT leaf_segment_next('t')",
        "SELECT leaf_segment_next_batch('t', 3)",
        "SELECT leaf_segment_next_range('t', 3)",
        "SELECT leaf_segment_next('nope')",
        "SELECT leaf_snowflake_next()",
        "SELECT leaf_snowflake_next_batch(3)",
    ] {
        println!("{statement}");
        session
            .fails(statement)
            .is("55000")
            .says("shared_preload_libraries")
            .hints("ALTER SYSTEM SET shared_preload_libraries")
            .hints("restart");
    }
    // What pg_restore and pg_upgrade do must work.
    session.run(
        "INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id) VALUES ('u', 500);
         UPDATE leaf_id.leaf_alloc SET max_id = 600 WHERE biz_tag = 'u';
         UPDATE leaf_id.leaf_alloc SET biz_tag = 'v' WHERE biz_tag = 'u';
         LOAD 'leaf_id';
         SELECT leaf_snowflake_decode(1, 1288834974657), leaf_snowflake_min(now(), 1288834974657)",
    );
    assert!(
        server
            .run("pg_dump", &["postgres"])
            .contains("COPY leaf_id.leaf_alloc")
    );
    session.run("ALTER SYSTEM SET shared_preload_libraries = 'leaf_id'");
    server.restart();
    let mut session = server.session();
    assert_eq!((session.next("t"), session.next("v")), (1, 600));
}

#[test]
fn single_user_mode_issues_nothing() {
    let server = Server::with_leaf_id(&[("leaf_id.worker_id", "1")]);
    let mut session = server.session();
    session.create_tag("t");
    drop(session);
    server.stop(Stop::Fast);
    let mut single = server
        .program("postgres")
        .args(["--single", "-c", "log_error_verbosity=verbose", "-D"])
        .arg(server.data_dir())
        .arg("postgres")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let statements = "SELECT leaf_segment_next('t')\nSELECT leaf_snowflake_next()\n";
    single
        .stdin
        .take()
        .unwrap()
        .write_all(statements.as_bytes())
        .unwrap();
    let output = single.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(said.matches("ERROR:  55000: ").count(), 2, "{said}");
    assert!(output.status.success(), "{said}");
    server.launch();
    assert_eq!(server.session().next("t"), 1);
}

/// What has no end has NULL, and no infinity: drivers cannot read one, nor years above 9999.
#[test]
fn no_time_in_the_views_is_more_than_a_driver_reads() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "SELECT leaf_tag_create('idle'), leaf_tag_create('slow'),
             leaf_tag_create('ends', max_value => 1000000)",
    );
    session.take("slow", 3);
    session.take("ends", 3000);
    assert!(session.value::<bool>(
        "SELECT bool_and(coalesce(isfinite(exhausted_at) AND exhausted_at < '9999-01-01', true)
             AND coalesce(cached_for < '1000 years', true)) FROM leaf_segment_status"
    ));
    assert_eq!(
        session.column::<String>(
            "SELECT tag FROM leaf_segment_status WHERE exhausted_at IS NULL ORDER BY tag"
        ),
        ["idle", "slow"]
    );
}
