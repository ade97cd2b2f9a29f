//! Would catch: any change of what psql shows: values, texts of errors, the table and
//! functions as a user sees them, and an object without a comment. The tests are
//! pgrx-tests/sql/*.sql, as PostgreSQL's own pg_regress runs them.
//!
//! And anything that PostgreSQL does otherwise because leaf_id is loaded: its own tests.

use std::path::Path;
use std::process::{Command, Output};
use std::{env, fs};

use leaf_id_tests::Server;
use leaf_id_tests::programs::{bin_dir, regress_dir};

#[test]
fn what_psql_shows() {
    let server = Server::start(&[("leaf_id.worker_id", "5")]);
    server.session().run("CREATE DATABASE regression");
    // A copy, where the server's user can read and write.
    let source = Path::new(env!("CARGO_MANIFEST_DIR"));
    let run = server.dir().join("regress");
    fs::create_dir(&run).unwrap();
    for part in ["sql", "expected"] {
        let copied = Command::new("cp")
            .arg("-r")
            .arg(source.join(part))
            .arg(&run)
            .status();
        assert!(copied.unwrap().success());
    }
    let mut tests: Vec<_> = fs::read_dir(run.join("sql"))
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_owned())
        .collect();
    // One after the other, in one database: setup comes first by its name.
    tests.sort();
    assert!(!tests.is_empty());
    let write = env::var("LEAF_ID_EXPECTED").is_ok_and(|what| what == "write");
    for test in tests.iter().filter(|_| write) {
        // pg_regress ends at a test without one.
        let file = run.join("expected").join(test).with_extension("out");
        fs::File::options()
            .create(true)
            .append(true)
            .open(file)
            .unwrap();
    }
    server.give(&run);

    let output = pg_regress(&server, &run)
        .args(["--use-existing", "--dbname=regression"])
        .arg(format!("--inputdir={}", run.display()))
        .args(&tests)
        .output()
        .unwrap();
    if write {
        for test in &tests {
            let file = Path::new(test).with_extension("out");
            fs::copy(
                run.join("results").join(&file),
                source.join("expected").join(&file),
            )
            .unwrap();
        }
    }
    assert_no_differences(&output, &run);
}

/// PostgreSQL's own regression tests on a server that has leaf_id loaded.
#[test]
#[ignore = "needs PostgreSQL's own tests, as scripts/postgresql.sh keeps them: make test-all"]
fn postgresqls_own_tests() {
    let server = Server::start(&[
        ("shared_buffers", "128MB"),
        // As pg_regress sets it for a server of its own.
        ("max_prepared_transactions", "2"),
    ]);
    // Some of them provoke one.
    server.expect_internal_errors();
    let tests = bin_dir().join("../regress").canonicalize().unwrap();
    let run = server.dir().join("regress");
    fs::create_dir(&run).unwrap();
    server.give(&run);
    let output = pg_regress(&server, &run)
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

/// As the superuser on this server, with what it writes going into a directory.
fn pg_regress(server: &Server, results: &Path) -> Command {
    let at = |name: &str, value: &Path| format!("--{name}={}", value.display());
    // The path is absolute: it is no program of the usual directory.
    let mut command = server.program(regress_dir().join("pg_regress").to_str().unwrap());
    command
        .args(["--user=postgres", "--port=5432"])
        .args([at("host", server.dir()), at("bindir", bin_dir())])
        .arg(at("outputdir", results));
    command
}

/// What it says of all of its tests.
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
