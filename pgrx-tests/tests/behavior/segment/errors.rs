//! Would catch: a server without the necessary setup that does not report it, and errors that show
//! more than they say. Single-session errors are tested in sql/segment_errors.sql.

use std::io::Write;
use std::process::Stdio;

use leaf_id_tests::{Server, Stop};

#[test]
fn without_preload_everything_says_how_to_get_it() {
    // The setting is unknown then, and must not cause problems.
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
    // Statements of pg_restore and pg_upgrade must work, and everything else that needs no shared
    // memory.
    session.run(
        "INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id) VALUES ('u', 500);
         UPDATE leaf_id.leaf_alloc SET max_id = 600 WHERE biz_tag = 'u';
         UPDATE leaf_id.leaf_alloc SET biz_tag = 'v' WHERE biz_tag = 'u';
         LOAD 'leaf_id';
         SELECT leaf_snowflake_decode(1, 1288834974657), leaf_snowflake_min(now(), 1288834974657),
             leaf_parse(leaf_format(1, '{N}'), '{N}'), leaf_parse(leaf_format(1, '{UUID}'), '{UUID}')",
    );
    // A column is not moved where its inserts would fail then, and moves back where they do.
    session.run(
        "SELECT leaf_tag_create('moved', start => 7);
         CREATE TABLE moved (id bigint NOT NULL DEFAULT leaf_segment_next('moved'));
         CREATE TABLE stays (id serial)",
    );
    for statement in [
        "SELECT leaf_adopt('stays', 'id')",
        "CALL leaf_adopt_all('public')",
    ] {
        let refused = session.fails(statement);
        refused.is("55000").says("shared_preload_libraries");
    }
    session.run("INSERT INTO stays DEFAULT VALUES; SELECT leaf_release('moved', 'id')");
    let id: i64 = session.value("INSERT INTO moved DEFAULT VALUES RETURNING id");
    assert_eq!(id, 7);
    // One line for each session.
    session.run("CREATE DATABASE other");
    for (database, statements) in [
        (
            "postgres",
            ["SELECT leaf_tag_create('x')", "SELECT leaf_tag_create('y')"],
        ),
        (
            "other",
            ["CREATE EXTENSION leaf_id", "SELECT leaf_tag_create('x')"],
        ),
    ] {
        let commands = statements.map(|statement| format!("-c{statement}"));
        let psql = server
            .program("psql")
            .arg(database)
            .args(commands)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&psql.stderr);
        assert_eq!(said.matches("WARNING").count(), 1, "{said}");
        assert!(said.contains("shared_preload_libraries"), "{said}");
    }
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

/// Errors of PostgreSQL below a function of leaf_id, and leaf_id's own. Before: where the server is
/// started with `RUST_BACKTRACE`, the DETAIL of the former is a backtrace.
#[test]
fn no_error_shows_a_backtrace() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "CREATE TABLE environment (variable text);
         COPY environment FROM PROGRAM 'printenv RUST_BACKTRACE'",
    );
    let variable: String = session.value("SELECT variable FROM environment");
    assert_eq!(variable, "1", "every server of these tests is started so");
    session.run("SET default_transaction_read_only = on");
    for (statement, state) in [
        ("SELECT leaf_id.leaf_gapless_next('invoices')", "25006"),
        ("SELECT leaf_segment_next('nope')", "42704"),
    ] {
        let refused = session.fails(statement);
        refused.is(state);
        assert_eq!(refused.detail, "", "{refused}");
    }
}
