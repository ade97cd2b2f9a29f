//! Would catch: a server in its own prefix whose dblink, postgres_fdw or WAL receiver does not
//! load, or uses another version's libpq, because leaf_id has loaded the system's into the
//! postmaster. (A server in the system's directories has only that one.)

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use leaf_id_tests::programs::bin_dir;
use leaf_id_tests::{Server, Session};

/// The libpq libraries loaded in a process. (libpqwalreceiver.so does not count.)
fn loaded(pid: i32) -> BTreeSet<PathBuf> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let files = maps
        .lines()
        .filter_map(|line| Some(Path::new(&line[line.find('/')?..])));
    files
        .filter(|file| {
            let name = file.file_name().unwrap().to_string_lossy();
            name.starts_with("libpq.so") || name.starts_with("libpq-")
        })
        .map(Into::into)
        .collect()
}

/// The libpq in the server's own directories, if any.
fn own() -> Option<PathBuf> {
    let asked = Command::new(bin_dir().join("pg_config"))
        .arg("--libdir")
        .output()
        .unwrap();
    let directory = String::from_utf8(asked.stdout).unwrap();
    fs::canonicalize(Path::new(directory.trim()).join("libpq.so.5")).ok()
}

fn postmaster(session: &mut Session) -> i32 {
    let file: String = session.value("SELECT pg_read_file('postmaster.pid')");
    file.lines().next().unwrap().parse().unwrap()
}

#[test]
fn the_server_s_own_serves_all_that_need_one() {
    let primary = Server::with_leaf_id(&[("leaf_id.worker_id", "1")]);
    let mut session = primary.session();
    let in_postmaster = loaded(postmaster(&mut session));
    assert_eq!(in_postmaster.len(), 1, "{in_postmaster:?}");
    if let Some(own) = own() {
        assert_eq!(in_postmaster, BTreeSet::from([own]));
    }

    session.create_tag("t");
    session.run("CREATE EXTENSION dblink; CREATE EXTENSION postgres_fdw");
    let there = primary.conninfo();
    let by_dblink = format!(
        "SELECT id FROM dblink('{there} dbname=postgres', $$SELECT leaf_segment_next('t')$$) \
         AS ids (id bigint)"
    );
    assert_eq!(session.value::<i64>(&by_dblink), 1);
    let dir = primary.dir().display();
    session.run(&format!(
        "CREATE TABLE here (id bigint DEFAULT leaf_segment_next('t'), other int);
         CREATE SERVER itself FOREIGN DATA WRAPPER postgres_fdw
             OPTIONS (host '{dir}', dbname 'postgres');
         CREATE USER MAPPING FOR postgres SERVER itself OPTIONS (user 'postgres');
         CREATE FOREIGN TABLE there (id bigint DEFAULT leaf_segment_next('t'), other int)
             SERVER itself OPTIONS (table_name 'here')"
    ));
    let ids = session.ids("INSERT INTO there (other) VALUES (1), (2) RETURNING id");
    assert_eq!(ids, [2, 3]);
    assert_eq!(loaded(session.pid()), in_postmaster);

    let standby = primary.standby(&[]);
    standby.replay_all_of(&primary);
    let mut replica = standby.session();
    assert_eq!(replica.ids("SELECT id FROM here ORDER BY id"), ids);
    let receiver = replica.value("SELECT pid FROM pg_stat_wal_receiver");
    assert_eq!(loaded(receiver), in_postmaster);
}
