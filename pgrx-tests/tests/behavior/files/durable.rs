//! Would catch: a file that is not durable before it is relied on, which only the loss of power shows
//! (I3, I7): contents, a rename or a removal that the disk does not have yet.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;
use std::time::Duration;

use leaf_id_tests::{Registry, Server, Stop, assert_issued_once, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

/// What makes a new version of this file durable.
fn written(file: &str) -> [String; 4] {
    [
        format!("truncate {file}.tmp"),
        format!("sync {file}.tmp"),
        format!("rename {file}"),
        "sync .".into(),
    ]
}

/// What makes its removal durable, also under another name.
fn removed(file: &str) -> [String; 4] {
    [
        format!("truncate {file}"),
        format!("sync {file}"),
        format!("unlink {file}"),
        "sync .".into(),
    ]
}

#[test]
fn each_file_is_synced_renamed_and_the_directory_synced() {
    let registry = Registry::start();
    let server = Server::with_disk(&[]);
    let disk = server.disk();
    server.lease_from(registry.server.dir(), "a");
    let mut session = server.session();
    session.create_steady_tag("t", 1000);
    let mut ids = session.take("t", 3);
    wait_until(LIMIT, "a lease", || session.try_snowflake().is_ok());
    drop(session);
    server.restart();
    ids.extend(server.session().take("t", 3));
    assert_eq!(ids, [1, 2, 3, 4, 5, 6]);
    server.stop(Stop::Fast);
    // As pg_upgrade starts it.
    let data = server.data_dir();
    let before = disk.log().len();
    let upgraded = server
        .program("postgres")
        .args([
            "--single",
            "-b",
            "-F",
            "-D",
            data.to_str().unwrap(),
            "postgres",
        ])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(upgraded.status.success(), "{upgraded:?}");
    assert_eq!(disk.log().len(), before + 4, "{:?}", disk.log());

    let mut of_process: BTreeMap<i32, Vec<String>> = BTreeMap::new();
    for (pid, what, name) in disk.log() {
        of_process
            .entry(pid)
            .or_default()
            .push(format!("{what} {name}"));
    }
    let files = ["reservation", "lease", "saved_ranges"].map(|name| format!("leaf_id_{name}.json"));
    let mut allowed: Vec<_> = files.iter().map(|file| written(file)).collect();
    allowed.push(removed(&files[2]));
    let mut seen = BTreeSet::new();
    for (pid, steps) in of_process {
        for part in steps.chunks(4) {
            let known = allowed.iter().position(|steps| steps == part);
            seen.insert(known.unwrap_or_else(|| panic!("process {pid}: {part:?} in {steps:?}")));
        }
    }
    assert_eq!(seen.len(), allowed.len(), "{seen:?}");
}

/// The server dies between the reading of the file and its removal.
#[test]
fn saved_ranges_are_gone_before_they_are_issued() {
    let server = Server::with_disk(&[]);
    let disk = server.disk();
    disk.choose("leaf_id_saved_ranges");
    let mut session = server.session();
    session.create_steady_tag("t", 1000);
    let mut ids = session.take("t", 3);
    drop(session);
    server.stop(Stop::Fast);
    disk.hang(true);
    server.launch();
    wait_until(LIMIT, "its removal", || disk.waiting() == 1);
    let mut session = server.session();
    session.run("SET leaf_id.refill_timeout = '300ms'");
    // No id is issued before, least of all one of them.
    session.fails("SELECT leaf_segment_next('t')").is("55P03");
    server.kill_9();
    disk.hang(false);
    server.launch();
    ids.extend(server.session().take("t", 2000));
    assert_issued_once(&[ids]);
}
