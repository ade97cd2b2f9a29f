//! Regression tests (`pgrx-tests/sql`) run by PostgreSQL's pg_regress, and tests with several
//! sessions (`pgrx-tests/isolation`) run by its isolationtester.
//!
//! Would catch: any change of psql's output: values, error texts, rights, the table, views and
//! functions as seen by users, an object without a comment; and of lock waits. Also any change in
//! PostgreSQL's own behavior because leaf_id is loaded: its own tests are run, too.

use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;
use std::{env, fs};

use leaf_id_tests::Server;
use leaf_id_tests::programs::{bin_dir, regress_dir};

#[test]
fn what_one_session_shows() {
    run(
        "regress/pg_regress",
        Path::new(env!("CARGO_MANIFEST_DIR")),
        "sql",
    );
}

#[test]
fn what_sessions_show_each_other() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("isolation");
    run("isolation/pg_isolation_regress", &tests, "specs");
}

/// Runs the tests of a directory, which has a schedule, on a server like `make installcheck`. With
/// `LEAF_ID_EXPECTED=write`, accepts their output as expected.
fn run(program: &str, source: &Path, tests: &str) {
    let server = Server::start(&[("leaf_id.worker_id", "5")]);
    // Under memcheck, all of them.
    server.allow(Duration::from_secs(3600));
    server.session().run("CREATE DATABASE regression");
    // A copy that the server's user can read and write.
    let run = server.dir().join("run");
    fs::create_dir(&run).unwrap();
    for part in [tests, "expected", "schedule"] {
        let copied = Command::new("cp")
            .arg("-r")
            .arg(source.join(part))
            .arg(&run)
            .status();
        assert!(copied.unwrap().success());
    }
    let schedule = run.join("schedule");
    let text = fs::read_to_string(&schedule).unwrap();
    let scheduled: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_prefix("test: "))
        .collect();
    let files = fs::read_dir(run.join(tests)).unwrap().count();
    assert_eq!(scheduled.len(), files, "each file is scheduled");
    let write = env::var("LEAF_ID_EXPECTED").is_ok_and(|what| what == "write");
    let expected = |test: &str| Path::new("expected").join(test).with_extension("out");
    for test in scheduled.iter().filter(|_| write) {
        // pg_regress aborts at a test without expected output.
        let file = fs::File::options()
            .create(true)
            .append(true)
            .open(run.join(expected(test)));
        file.unwrap();
    }
    server.give(&run);

    let program = regress_dir().parent().unwrap().join(program);
    let output = pg_regress(&server, &program, &run)
        .args(["--use-existing", "--dbname=regression"])
        .arg(format!("--inputdir={}", run.display()))
        .arg(format!("--schedule={}", schedule.display()))
        .output()
        .unwrap();
    if write {
        // 1: there are differences.
        assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
        for test in &scheduled {
            let result = run.join("results").join(test).with_extension("out");
            fs::copy(result, source.join(expected(test))).unwrap();
        }
        return;
    }
    assert_no_differences(&output, &run);
}

/// PostgreSQL's own regression tests on a server that has leaf_id loaded.
#[test]
#[ignore = "needs PostgreSQL's own tests, as scripts/postgresql.sh keeps them: make test-all"]
fn postgresqls_own_tests() {
    let server = Server::start(&[
        ("shared_buffers", "128MB"),
        // Like pg_regress for a temporary server.
        ("max_prepared_transactions", "2"),
    ]);
    // Some tests provoke one.
    server.expect_internal_errors();
    let tests = bin_dir().join("../regress").canonicalize().unwrap();
    let run = server.dir().join("regress");
    fs::create_dir(&run).unwrap();
    server.give(&run);
    let output = pg_regress(&server, &regress_dir().join("pg_regress"), &run)
        .arg("--no-locale")
        .arg(format!("--inputdir={}", tests.display()))
        .arg(format!("--dlpath={}", tests.display()))
        .arg(format!(
            "--schedule={}",
            tests.join("parallel_schedule").display()
        ))
        .arg("--max-concurrent-tests=20")
        .output()
        .unwrap();
    assert_no_differences(&output, &run);
    println!("{}", last_line(&output));
}

/// Connects as the superuser to this server, with a directory for results.
fn pg_regress(server: &Server, program: &Path, results: &Path) -> Command {
    let at = |name: &str, value: &Path| format!("--{name}={}", value.display());
    // An absolute path, since the program is not in the bin directory.
    let mut command = server.program(program.to_str().unwrap());
    command
        .args(["--user=postgres", "--port=5432"])
        .args([at("host", server.dir()), at("bindir", bin_dir())])
        .arg(at("outputdir", results));
    command
}

/// Summary line of all tests.
fn last_line(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stdout);
    let last = said.lines().rfind(|line| line.contains("passed"));
    last.unwrap_or_default().to_owned()
}

#[track_caller]
fn assert_no_differences(output: &Output, results: &Path) {
    let differences = fs::read_to_string(results.join("regression.diffs")).unwrap_or_default();
    assert!(
        output.status.success(),
        "{}{}{differences}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
