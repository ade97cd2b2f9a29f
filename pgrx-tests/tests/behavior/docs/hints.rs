//! Would catch: a HINT that does harm when it is followed, or that cannot be run as it is.
//!
//! `check_hint` of `sql/test_setup.sql` runs what a HINT says. The regression tests call it for each
//! refusal; here it gets the HINTs that their sessions print, and those of errors that need a
//! server of their own.

use std::collections::BTreeSet;
use std::fs;

use leaf_id_tests::session::Failure;
use leaf_id_tests::{Server, Session};

use super::page::{Page, root};

/// Defines `check_hint` in the database of the session.
fn judge(session: &mut Session) {
    let setup = fs::read_to_string(root().join("pgrx-tests/sql/test_setup.sql")).unwrap();
    session.run(&setup);
}

#[track_caller]
fn check(session: &mut Session, hint: &str) {
    session
        .query_one("SELECT public.check_hint($1)", &[&hint])
        .unwrap_or_else(|error| panic!("{}", Failure::from(&error)));
}

/// The statements of a HINT.
#[track_caller]
fn statements(failure: &Failure) -> &str {
    let (_, statements) = failure.hint.split_once(": ").expect("a statement");
    statements
}

/// Libraries besides leaf_id, of those that there are; loaded by the server from now on.
fn other_libraries(server: &Server) -> Vec<String> {
    let mut session = server.session();
    let found: Vec<_> = ["pg_stat_statements", "auto_explain", "$libdir/plpgsql"]
        .into_iter()
        .filter(|name| session.try_run(&format!("LOAD '{name}'")).is_ok())
        .map(str::to_string)
        .collect();
    assert!(!found.is_empty());
    let list: Vec<_> = found.iter().map(|name| format!("'{name}'")).collect();
    session.run(&format!(
        "ALTER SYSTEM SET shared_preload_libraries = {}",
        list.join(", ")
    ));
    server.restart();
    found
}

/// The libraries that the server has loaded, by its setting, which it would not start without.
fn loaded(server: &Server) -> Vec<String> {
    let list: String = server
        .session()
        .value("SELECT current_setting('shared_preload_libraries')");
    let names = list.split(',').map(|name| name.trim().trim_matches('"'));
    names.map(str::to_string).collect()
}

#[test]
fn the_hint_to_load_the_library_keeps_what_is_loaded() {
    let server = Server::start(&[("shared_preload_libraries", "")]);
    let mut expected = other_libraries(&server);
    let mut session = server.session();
    session.run("CREATE EXTENSION leaf_id; SELECT leaf_tag_create('t'); CREATE ROLE app LOGIN");
    let failure = session.fails("SELECT leaf_segment_next('t')");
    failure.is("55000").says("must be loaded");
    // The list is not for all roles.
    server
        .connect_as("app", "postgres")
        .fails("SELECT leaf_segment_next('t')")
        .hints("A superuser can add leaf_id");
    session.run(statements(&failure));
    server.restart();
    expected.push("leaf_id".into());
    assert_eq!(loaded(&server), expected);
    assert_eq!(server.session().next("t"), 1);
}

/// The command of README.md, which computes the list.
#[test]
fn the_installation_in_the_readme_keeps_what_is_loaded() {
    let server = Server::start(&[("shared_preload_libraries", "")]);
    let blocks = Page::read("README.md").blocks();
    let install = blocks.iter().find(|block| block.text.contains("\\gexec"));
    let (_, command) = install.unwrap().text.split_once("psql <<'END'\n").unwrap();
    let (command, _) = command.split_once("END\n").unwrap();
    let file = server.dir().join("install.sql");
    fs::write(&file, command).unwrap();
    let follow = || {
        let file = file.to_str().unwrap();
        server.run(
            "psql",
            &["-X", "-v", "ON_ERROR_STOP=1", "-d", "postgres", "-f", file],
        );
        server.restart();
    };
    follow();
    assert_eq!(loaded(&server), ["leaf_id"]);
    let mut expected = other_libraries(&server);
    follow();
    expected.push("leaf_id".into());
    assert_eq!(loaded(&server), expected);
}

/// HINTs of PostgreSQL itself.
const NOT_OURS: [&str; 4] = ["No function matches", "Use DROP", "Try ", "You might"];

#[test]
fn the_hints_that_the_regression_tests_print_can_be_run() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    judge(&mut session);
    let mut hints = BTreeSet::new();
    for folder in ["pgrx-tests/expected", "pgrx-tests/isolation/expected"] {
        for entry in fs::read_dir(root().join(folder)).unwrap() {
            let text = fs::read_to_string(entry.unwrap().path()).unwrap();
            let lines = text.lines().filter_map(|line| line.strip_prefix("HINT:  "));
            hints.extend(lines.map(str::to_string));
        }
    }
    hints.retain(|hint| !NOT_OURS.iter().any(|start| hint.starts_with(start)));
    assert!(hints.len() > 5, "{hints:?}");
    // Of which one speaks.
    session.run("CREATE SCHEMA many; CREATE TABLE many.d (id serial)");
    for hint in &hints {
        check(&mut session, hint);
    }
    // It notices what is wrong.
    for wrong in [
        "",
        "Create it: SELECT leaf_tag_make('t');",
        "Create it: SELECT leaf_tag_create('t'); and restart;",
        "Create it: SELECT leaf_tag_create('t', step => 0);",
        "Create it: SELECT * FROM leaf_allocs;",
        "Create it: CREATE SERVER ... OPTIONS (...);",
        "Run: ALTER SYSTEM SET leaf_id.worker_id = '1'; and restart.",
        "Try again. Or wait.",
        "try again.",
    ] {
        let result = session.query_one("SELECT public.check_hint($1)", &[&wrong]);
        result.expect_err(wrong);
    }
}

/// Each error, with its HINT, in a database whose extension is in a schema that is not searched.
#[test]
fn hints_name_the_schema_that_is_not_searched() {
    let server = Server::start(&[]);
    let mut session = server.session();
    session.run(
        "CREATE SCHEMA \"Odd ids\"; CREATE EXTENSION leaf_id SCHEMA \"Odd ids\";
         SET search_path = public, \"Odd ids\"",
    );
    judge(&mut session);
    session.run("RESET search_path");
    session.run(
        "SELECT \"Odd ids\".leaf_tag_create('t'), \"Odd ids\".leaf_segment_next('t');
         SELECT \"Odd ids\".leaf_tag_revoke('t', 'public');
         CREATE ROLE app LOGIN; GRANT USAGE ON SCHEMA \"Odd ids\" TO app;
         CREATE TABLE orders (id bigint DEFAULT \"Odd ids\".leaf_segment_next('orders'));
         SELECT leaf_id.leaf_opaque_create('o')",
    );
    let mut app = server.connect_as("app", "postgres");
    let mut failures = vec![app.fails("SELECT \"Odd ids\".leaf_segment_next('t')")];
    for call in [
        "UPDATE leaf_id.leaf_alloc SET max_id = 1 WHERE biz_tag = 't'",
        "SELECT \"Odd ids\".leaf_segment_next('o')",
        "SELECT leaf_id.leaf_opaque_create('o')",
    ] {
        failures.push(session.fails(call));
    }
    for failure in failures {
        assert!(failure.hint.contains("\"Odd ids\".leaf_"), "{failure}");
        check(&mut session, &failure.hint);
    }
    session.run("SET search_path = public, \"Odd ids\"");
    let failure = session.fails("SELECT leaf_segment_next('none')");
    failure.hints("Create it with leaf_tag_create(), with a start");
}

/// Errors that need a configuration of their own.
#[test]
fn the_hints_of_configurations_can_be_run() {
    let healthy = Server::with_leaf_id(&[]);
    let mut session = healthy.session();
    judge(&mut session);
    let mut seen = |failure: &Failure| {
        assert!(!failure.hint.is_empty(), "{failure}");
        check(&mut session, &failure.hint);
    };
    let standby = healthy.standby(&[]);
    let mut there = standby.session();
    seen(there.fails("SELECT leaf_segment_next('t')").is("25006"));
    seen(there.fails("SELECT leaf_sync()").is("25006"));
    let call = "SELECT leaf_snowflake_next()";
    seen(there.fails(call).is("25006"));
    let next = |conf: &[(&str, &str)]| {
        let server = Server::with_leaf_id(conf);
        let failure = server.session().fails(call);
        server.stop(leaf_id_tests::Stop::Fast);
        failure
    };
    seen(&next(&[("leaf_id.worker_id", "")]));
    seen(&next(&[("leaf_id.worker_id", "auto")]));
    seen(&next(&[
        ("leaf_id.worker_id", "auto"),
        ("leaf_id.worker_registry", "nowhere"),
        ("leaf_id.refill_timeout", "500ms"),
    ]));

    let server = Server::with_leaf_id(&[("leaf_id.worker_id", "1"), ("leaf_id.max_tags", "1")]);
    let mut session = server.session();
    session.value::<i64>(call);
    seen(&session.fails("SELECT leaf_id.leaf_snowflake_reset(now() - interval '1 hour')"));
    seen(&session.fails("TRUNCATE leaf_id.leaf_alloc"));
    for (name, value) in [
        ("leaf_id.epoch", "1600000000000"),
        ("leaf_id.snowflake_layout", "41/6/6"),
    ] {
        server.set(name, value);
        server.restart();
        let failure = server.session().fails(call);
        seen(&failure);
        server.session().run(statements(&failure));
        server.restart();
        server.session().value::<i64>(call);
    }
}
