//! Would catch: any change of what psql shows: values, texts of errors, the table and
//! functions as a user sees them, and an object without a comment. The tests are
//! pgrx-tests/sql/*.sql, as PostgreSQL's own pg_regress runs them.

use std::path::Path;
use std::process::Command;
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

    let at = |name: &str, value: &Path| format!("--{name}={}", value.display());
    let program = regress_dir().join("pg_regress");
    // The path is absolute: it is no program of the usual directory.
    let output = server
        .program(program.to_str().unwrap())
        .args([
            "--use-existing",
            "--dbname=regression",
            "--user=postgres",
            "--port=5432",
        ])
        .args([at("host", server.dir()), at("bindir", bin_dir())])
        .args([at("inputdir", &run), at("outputdir", &run)])
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
    let differences = fs::read_to_string(run.join("regression.diffs")).unwrap_or_default();
    assert!(
        output.status.success(),
        "{}{}{differences}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
