//! Would catch: ids issued although their claim never reached the disk, because it was full (I1),
//! and a tag that does not recover when space is available again.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leaf_id_tests::{
    Failure, Server, Session, Stop, assert_issued_once, becomes, in_threads, timed, wait_until,
};

const LIMIT: Duration = Duration::from_secs(30);

/// A small file system in memory, removed on drop. Declare it before the server.
struct SmallDisk(PathBuf);

impl SmallDisk {
    /// `None`, with a prominent message, if mounting is not permitted.
    fn new(mebibytes: u32) -> Option<Self> {
        let dir = PathBuf::from(format!("/tmp/li-disk-{:06x}", rand::random::<u32>() >> 8));
        fs::create_dir(&dir).unwrap();
        let mounted = Command::new("mount")
            .args([
                "-t",
                "tmpfs",
                "-o",
                &format!("size={mebibytes}m,mode=777"),
                "tmpfs",
            ])
            .arg(&dir)
            .output();
        match mounted {
            Ok(output) if output.status.success() => Some(Self(dir)),
            other => {
                fs::remove_dir(&dir).unwrap();
                println!("SKIPPED: a small disk cannot be mounted here: {other:?}");
                None
            }
        }
    }

    fn filler(&self) -> PathBuf {
        self.0.join("filler")
    }

    /// Fills the disk.
    fn fill(&self) {
        // Ends with an error when the disk is full.
        Command::new("dd")
            .args(["if=/dev/zero", "bs=4096"])
            .arg(format!("of={}", self.filler().display()))
            .output()
            .unwrap();
        assert!(
            fs::write(self.0.join("more"), [1; 8192]).is_err(),
            "it has room"
        );
        fs::remove_file(self.0.join("more")).unwrap();
    }

    fn make_room(&self) {
        fs::remove_file(self.filler()).unwrap();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let free = becomes(LIMIT, || {
            let unmounted = Command::new("umount").arg(&self.0).status();
            unmounted.is_ok_and(|status| status.success())
        });
        if free {
            let _ = fs::remove_dir(&self.0);
        } else {
            eprintln!("still mounted: {}", self.0.display());
        }
    }
}

/// Moves a directory of the stopped server to another disk.
fn move_to(server: &Server, name: &str, disk: &Path) {
    let (from, to) = (server.data_dir().join(name), disk.join(name));
    let copied = Command::new("cp").arg("-a").arg(&from).arg(&to).status();
    assert!(copied.unwrap().success());
    fs::remove_dir_all(&from).unwrap();
    symlink(to, from).unwrap();
}

/// Takes ids until the server is gone.
fn take_to_the_end(mut session: Session) -> (Vec<i64>, Failure) {
    let mut ids = Vec::new();
    loop {
        match session.try_take("t", 20) {
            Ok(more) => ids.extend(more),
            Err(failure) => return (ids, failure),
        }
    }
}

/// PostgreSQL cannot run without WAL: it PANICs, and so does its recovery.
#[test]
fn no_room_for_wal_repeats_nothing() {
    let Some(disk) = SmallDisk::new(64) else {
        return;
    };
    let server = Server::with_leaf_id(&[
        ("min_wal_size", "32MB"),
        ("max_wal_size", "32MB"),
        ("wal_recycle", "off"),
        ("max_worker_processes", "4"),
    ]);
    let mut session = server.session();
    session.run(
        "SELECT leaf_tag_create('t', step => 10, max_step => 50);
         CREATE TABLE hog (what text)",
    );
    let mut issued = vec![session.take("t", 100)];
    drop(session);
    server.stop(Stop::Fast);
    move_to(&server, "pg_wal", &disk.0);
    server.launch();
    for round in 0..2 {
        // Connect first: the server may be gone soon.
        let connect = |_| Mutex::new(Some(server.session()));
        let sessions: Vec<_> = (0..17).map(connect).collect();
        disk.fill();
        let begun = AtomicUsize::new(0);
        let drawn = in_threads(17, |i| {
            let mut session = sessions[i].lock().unwrap().take().unwrap();
            if i < 16 {
                let first = session.try_take("t", 20);
                begun.fetch_add(1, Ordering::Relaxed);
                let Ok(first) = first else {
                    return Vec::new();
                };
                return [first, take_to_the_end(session).0].concat();
            }
            // Not before all sessions have begun.
            wait_until(LIMIT, "all to begin", || {
                begun.load(Ordering::Relaxed) == 16
            });
            // Claims alone would take long to fill a WAL segment.
            let wal =
                "INSERT INTO hog SELECT repeat(md5(i::text), 50) FROM generate_series(1, 1000) i";
            while session.try_run(wal).is_ok() {}
            Vec::new()
        });
        let drawn: Vec<_> = drawn.into_iter().filter(|ids| !ids.is_empty()).collect();
        assert!(drawn.len() > 8, "few sessions got ids: {}", drawn.len());
        server.wait_for_end();
        assert!(server.log().contains("No space left on device"));
        let before = issued.iter().flatten().max();
        assert!(drawn.iter().flatten().min() > before, "round {round}");
        issued.extend(drawn);
        disk.make_room();
        server.launch();
        let mut session = server.session();
        let (ids, took) = timed(|| session.take("t", 100));
        println!("round {round}: the first ids took {took:?}");
        assert!(Some(&ids[0]) > issued.iter().flatten().max());
        issued.push(ids);
        session.run("TRUNCATE hog; CHECKPOINT");
    }
    assert_issued_once(&issued);
}

/// The claim fails like any UPDATE. Sessions get the error, and continue once there is space.
#[test]
fn no_room_for_the_table_is_an_error_until_there_is() {
    let Some(disk) = SmallDisk::new(2) else {
        return;
    };
    let server = Server::with_leaf_id(&[]);
    let (mut session, mut old) = (server.session(), server.session());
    let place = disk.0.join("place");
    fs::create_dir(&place).unwrap();
    server.give(&place);
    session.run(&format!(
        "CREATE TABLESPACE small LOCATION '{}'",
        place.display()
    ));
    session.run(
        "SELECT leaf_tag_create('t', step => 1, max_step => 1);
         ALTER TABLE leaf_id.leaf_alloc SET TABLESPACE small",
    );
    let mut issued = session.take("t", 10);
    // While an old snapshot sees the old tuples, their space is not reused.
    old.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM leaf_id.leaf_alloc");
    disk.fill();
    session.run("SET leaf_id.refill_timeout = '1s'");
    // A claim that fails may find room on another page the next time.
    let (mut failed_before, mut outages) = (false, 0);
    let failure = loop {
        match session.try_next("t") {
            Ok(id) => {
                issued.push(id);
                failed_before = false;
            }
            Err(failure) if failed_before => break failure,
            Err(_) => {
                failed_before = true;
                outages += 1;
            }
        }
        assert!(issued.len() < 10_000, "the disk is not full");
    };
    println!("after {} ids: {failure}", issued.len());
    // Of which PostgreSQL 16 says more than there is room for.
    failure.is("55P03").details("could not extend fil");
    let last_error = "SELECT last_error FROM leaf_id.tags_detail WHERE tag = 't'";
    assert!(
        session
            .value::<String>(last_error)
            .contains("could not extend fil")
    );
    let log = server.log();
    let warnings = log.matches("could not claim ids for tag \"t\"").count();
    assert_eq!(warnings, outages, "logged once for each");
    disk.make_room();
    old.run("COMMIT");
    session.run("RESET leaf_id.refill_timeout");
    let (more, took) = timed(|| session.take("t", 50));
    println!("50 ids in {took:?} when there was room");
    wait_until(LIMIT, "the end to be logged", || {
        let recovery = "ids of tag \"t\" can be claimed again";
        server.log().matches(recovery).count() == outages
    });
    issued.extend(more);
    assert_issued_once([issued]);
}
