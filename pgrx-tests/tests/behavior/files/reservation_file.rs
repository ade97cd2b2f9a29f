//! Would catch: a reservation file that is corrupt, missing, another server's or not writable,
//! after which snowflake ids are issued twice (I7), never again, or late without need; or the
//! server does not start.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leaf_id_tests::{
    DAMAGES, Damage, Failure, Server, Session, Stop, assert_issued_once, becomes, in_threads_until,
    promptly, timed, wait_until,
};
use parking_lot::Mutex;

const LIMIT: Duration = Duration::from_secs(30);
const EPOCH_MS: i64 = 1_288_834_974_657;
/// Length of a reservation in these tests.
const RESERVATION_MS: i64 = 300;

fn file(server: &Server) -> PathBuf {
    server.data_dir().join("leaf_id_reservation.json")
}

/// A server that has issued ids, and the last id.
fn server_and_id() -> (Server, i64) {
    let server = Server::with_leaf_id(&[
        ("leaf_id.worker_id", "5"),
        (
            "leaf_id.timestamp_reservation",
            &format!("{RESERVATION_MS}ms"),
        ),
    ]);
    server.session().create_steady_tag("t", 10);
    let id = next_in_time(&server);
    (server, id)
}

fn try_next(session: &mut Session) -> Result<i64, Failure> {
    session
        .try_column("SELECT leaf_snowflake_next()")
        .map(|ids| ids[0])
}

/// The next id, which must be available: no obstacle remains.
#[track_caller]
fn next_in_time(server: &Server) -> i64 {
    let mut session = server.session();
    let mut result = Ok(0);
    let comes = becomes(LIMIT, || {
        result = try_next(&mut session);
        result.is_ok()
    });
    assert!(comes, "no id came: {}", result.unwrap_err());
    result.unwrap()
}

/// Error of a call after the start, once the problem is known.
#[track_caller]
fn refusal(server: &Server) -> Failure {
    let mut session = server.session();
    session.be_patient();
    let failure = promptly(|| try_next(&mut session)).unwrap_err();
    println!("{failure}");
    assert!(
        !failure.detail.is_empty() && !failure.hint.is_empty(),
        "{failure}"
    );
    failure
}

fn time_of(id: i64) -> i64 {
    (id >> 22) + EPOCH_MS
}

fn now_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_millis().try_into().unwrap()
}

/// Value of a key in the file, and its position.
fn number(text: &str, key: &str) -> (i64, std::ops::Range<usize>) {
    let start = text.find(&format!("\"{key}\"")).unwrap() + key.len() + 2;
    let start = start
        + text[start..]
            .find(|c: char| c == '-' || c.is_ascii_digit())
            .unwrap();
    let rest = &text[start + 1..];
    let end = start + 1 + rest.find(|c: char| !c.is_ascii_digit()).unwrap();
    (text[start..end].parse().unwrap_or(i64::MAX), start..end)
}

/// Changes the value of a key in the file, which keeps its inode.
fn edit(path: &Path, key: &str, value: &str) {
    let mut text = fs::read_to_string(path).unwrap();
    let (_, place) = number(&text, key);
    text.replace_range(place, value);
    fs::write(path, text).unwrap();
}

fn remove(path: &Path) {
    if path.is_dir() {
        fs::remove_dir(path).unwrap();
    } else {
        fs::remove_file(path).unwrap();
    }
}

#[test]
fn a_file_that_cannot_be_read_is_an_error_until_it_is_gone() {
    let (server, mut last) = server_and_id();
    let more: [(&str, Damage); 1] = [("a field is missing", |path| {
        let text = fs::read_to_string(path).unwrap();
        fs::write(path, text.replace("reserved_until_ms", "renamed")).unwrap();
    })];
    for (i, (name, damage)) in DAMAGES.into_iter().chain(more).enumerate() {
        println!("{name}");
        if i % 2 == 0 {
            server.stop(Stop::Fast);
        } else {
            server.stop(Stop::Immediate);
        }
        damage(&file(&server));
        server.launch();
        let failure = refusal(&server);
        failure.is("58030").details("leaf_id_reservation.json");
        assert!(server.log().contains("leaf_id_reservation.json"));
        let mut session = server.session();
        session.next("t");
        let state = "SELECT snowflake_state FROM leaf_id.server";
        assert!(session.value::<String>(state).contains("cannot be read"));
        // It is not overwritten: an operator has to check it.
        refusal(&server).is("58030");

        let cured_at = now_ms();
        remove(&file(&server));
        let id = next_in_time(&server);
        assert!(id > last, "{name}");
        // The reservation is unknown.
        assert!(time_of(id) >= cured_at + RESERVATION_MS, "{name}");
        last = id;
    }
}

#[test]
fn a_file_made_readable_again_is_as_good_as_ever() {
    let (server, last) = server_and_id();
    server.stop(Stop::Fast);
    fs::set_permissions(file(&server), Permissions::from_mode(0o000)).unwrap();
    server.launch();
    refusal(&server).is("58030");
    fs::set_permissions(file(&server), Permissions::from_mode(0o600)).unwrap();
    assert!(next_in_time(&server) > last);
    assert!(server.log().contains("can be reserved again"));
}

/// Nothing was issued before on a cluster in which nothing has been created. A backup of one
/// that is in use is none, whether it has the file or not.
#[test]
fn the_first_ids_of_a_new_cluster_carry_the_present_time() {
    let reason = |server: &Server| {
        let mut reason = None::<String>;
        // The launcher may not have read the file yet.
        wait_until(LIMIT, "the floor", || {
            let sql = "SELECT floor_reason FROM leaf_id.server";
            reason = server.session().value(sql);
            reason.is_some()
        });
        reason.unwrap()
    };
    let lead_ms = |server: &Server| -> i64 {
        next_in_time(server);
        server
            .session()
            .value("SELECT clock_lead_ms FROM leaf_id.server")
    };
    let server = Server::with_leaf_id(&[("leaf_id.worker_id", "5")]);
    assert_eq!(reason(&server), "new cluster");
    assert!(lead_ms(&server) < 100, "{}", lead_ms(&server));
    // Nor is another worker id known to have had no other server.
    server.set("leaf_id.worker_id", "6");
    wait_until(LIMIT, "the worker id", || {
        let sql = "SELECT (leaf_snowflake_decode(leaf_snowflake_next())).worker_id = 6";
        server.session().value(sql)
    });
    assert_eq!(reason(&server), "other worker id");
    assert!(lead_ms(&server) > 1000);

    for with_file in [true, false] {
        let backup = server.backup();
        if !with_file {
            fs::remove_file(backup.data_dir().join("leaf_id_reservation.json")).unwrap();
        }
        let copy = backup.start(&[]);
        let expected = if with_file { "copied file" } else { "no file" };
        assert_eq!(reason(&copy), expected);
        assert!(lead_ms(&copy) > 1000);
    }
}

/// Its contents may be outdated, or from another server: it raises the floor, and in addition, a
/// whole reservation must pass.
#[test]
fn a_file_of_another_server_is_no_proof() {
    let (server, mut last) = server_and_id();
    type Change = fn(&Path);
    let changes: [(&str, &str, Change); 6] = [
        ("gone", "no file", |path| fs::remove_file(path).unwrap()),
        ("copied", "copied file", |path| {
            let aside = path.with_extension("aside");
            fs::copy(path, &aside).unwrap();
            fs::rename(aside, path).unwrap();
        }),
        ("of another cluster", "other cluster", |path| {
            edit(path, "system_identifier", "7000000000000000001");
        }),
        ("of another timeline", "new timeline", |path| {
            edit(path, "timeline", "77")
        }),
        ("of another worker id", "", |path| {
            edit(path, "worker_id", "6")
        }),
        ("of a later version", "", |path| {
            let text = fs::read_to_string(path).unwrap();
            fs::write(path, text.replacen('{', "{\"new\": {\"x\": [1]}, ", 1)).unwrap();
        }),
    ];
    for (name, reason, change) in changes {
        let waited_out = !reason.is_empty();
        for crash in [false, true] {
            if crash {
                server.stop(Stop::Immediate);
            } else {
                server.stop(Stop::Fast);
            }
            change(&file(&server));
            // The server's user must be able to read it.
            if file(&server).exists() {
                server.give(&file(&server));
            }
            let started_at = now_ms();
            server.launch();
            let (id, took) = timed(|| next_in_time(&server));
            println!("{name}, crash {crash}: the first id after {took:?}");
            assert!(id > last, "{name}");
            if waited_out {
                assert!(time_of(id) >= started_at + RESERVATION_MS, "{name}");
            }
            let expected = match (reason, crash) {
                ("", false) => "clean stop",
                ("", true) => "crash",
                (reason, _) => reason,
            };
            let shown: String = server
                .session()
                .value("SELECT floor_reason FROM leaf_id.server");
            // Said only once the lead of the runs before it is over.
            let other = name == "of another worker id" && shown == "other worker id";
            assert!(shown == expected || other, "{name}: {shown}");
            last = id;
        }
    }
}

/// Anybody may have edited the file, so any number is possible.
#[test]
fn numbers_beyond_all_sense_are_survived() {
    let (server, mut last) = server_and_id();
    let hour = now_ms() + 3_600_000;
    for (key, value, state) in [
        // Far in the future.
        ("reserved_until_ms", &hour.to_string()[..], "55000"),
        ("reserved_until_ms", "9223372036854775807", "55000"),
        // Never written by leaf_id.
        ("reserved_until_ms", "9223372036854775808", "58030"),
        ("reserved_until_ms", "1e300", "58030"),
        ("worker_id", "70000", "58030"),
    ] {
        println!("{key} {value}");
        server.stop(Stop::Fast);
        edit(&file(&server), key, value);
        server.launch();
        let failure = refusal(&server);
        failure.is(state);
        if state == "55000" {
            failure.hints("leaf_snowflake_reset");
        }
        let mut session = server.session();
        session.next("t");
        assert_eq!(
            session.value::<i64>("SELECT count(snowflake_state) FROM leaf_id.server"),
            1
        );
        // A restart does not change that.
        server.restart();
        refusal(&server).is(state);
        server.stop(Stop::Fast);
        fs::remove_file(file(&server)).unwrap();
        server.launch();
        let id = next_in_time(&server);
        assert!(id > last);
        last = id;
    }
}

/// No ids were ever issued at such times: either ids continue, or an error has the reason.
#[test]
fn numbers_from_before_all_time_are_survived() {
    let (server, mut last) = server_and_id();
    for (key, value) in [
        ("reserved_until_ms", "-1"),
        ("reserved_until_ms", "0"),
        ("reserved_until_ms", "-9223372036854775808"),
        ("reserved_until_ms", "-9223372036854775000"),
        ("epoch_ms", "9223372036854775807"),
        ("epoch_ms", "-1"),
        ("epoch_ms", "-9223372036854775808"),
    ] {
        println!("{key} {value}");
        server.stop(Stop::Fast);
        edit(&file(&server), key, value);
        server.launch();
        let mut session = server.session();
        match try_next(&mut session) {
            Ok(id) => {
                assert!(
                    id > last && time_of(id) < now_ms() + 1000,
                    "{id} after {last}"
                );
                last = id;
            }
            Err(failure) => {
                println!("{failure}");
                assert!(["55000", "58030"].contains(&&*failure.state));
                assert!(!failure.hint.contains("'-"), "no such setting");
                remove(&file(&server));
            }
        }
        let id = next_in_time(&server);
        assert!(id > last);
        last = id;
    }
}

/// Blocks all writes of the file until dropped.
struct Blocked<'a> {
    server: &'a Server,
    by: Blocker,
}

#[derive(Clone, Copy, Debug)]
enum Blocker {
    FullDisk,
    ReadOnlyDirectory,
}

impl<'a> Blocked<'a> {
    fn new(server: &'a Server, by: Blocker) -> Self {
        match by {
            // A file may exist, from a concurrent write, or from one cut short by the server's
            // exit.
            Blocker::FullDisk => wait_until(LIMIT, "a place for it", || {
                let _ = fs::remove_file(Self::temporary(server));
                symlink("/dev/full", Self::temporary(server)).is_ok()
            }),
            Blocker::ReadOnlyDirectory => Self::set_mode(server, 0o500),
        }
        Self { server, by }
    }

    fn temporary(server: &Server) -> PathBuf {
        server.data_dir().join("leaf_id_reservation.json.tmp")
    }

    fn set_mode(server: &Server, mode: u32) {
        fs::set_permissions(server.data_dir(), Permissions::from_mode(mode)).unwrap();
    }
}

impl Drop for Blocked<'_> {
    fn drop(&mut self) {
        match self.by {
            Blocker::FullDisk => fs::remove_file(Self::temporary(self.server)).unwrap(),
            Blocker::ReadOnlyDirectory => Self::set_mode(self.server, 0o700),
        }
    }
}

/// Ids of 16 sessions while `act` runs.
fn draw_while(server: &Server, act: impl FnOnce()) -> Vec<Vec<i64>> {
    let failures = Mutex::new(Vec::new());
    let (drawn, ()) = in_threads_until(
        16,
        |i, done| {
            let mut session = server.session();
            session.be_patient();
            let mut ids = Vec::new();
            while !done.load(Ordering::Relaxed) {
                let n = 1 + i * 10;
                let sql = format!("SELECT leaf_snowflake_next_batch({n})");
                match promptly(|| session.try_column(&sql)) {
                    Ok(more) => ids.extend::<Vec<i64>>(more),
                    Err(failure) => {
                        failures.lock().push(failure.state.clone());
                        failure.is("58030");
                        // Like an application, not in a tight loop.
                        thread::sleep(Duration::from_millis(5));
                    }
                }
            }
            ids
        },
        act,
    );
    println!("{} calls failed", failures.into_inner().len());
    drawn
}

#[test]
fn a_disk_that_is_full_for_a_while_under_load_repeats_nothing() {
    let (server, first) = server_and_id();
    let mut issued = vec![vec![first]];
    for by in [Blocker::FullDisk, Blocker::ReadOnlyDirectory] {
        println!("{by:?}");
        let (mut watcher, mut user) = (server.session(), server.session());
        user.create_steady_tag(&format!("{by:?}"), 10);
        let drawn = draw_while(&server, || {
            let blocked = Blocked::new(&server, by);
            wait_until(LIMIT, "the refusal", || {
                try_next(&mut watcher).is_err_and(|failure| failure.state == "58030")
            });
            // Tags are not affected.
            assert_issued_once([user.take(&format!("{by:?}"), 100)]);
            drop(blocked);
            let (id, took) = timed(|| next_in_time(&server));
            println!("{id} came after {took:?}");
        });
        let highest = drawn.iter().flatten().copied().max().unwrap();
        assert!(highest > first);
        issued.extend(drawn);
        let log = server.log();
        let warnings = log
            .lines()
            .filter(|line| line.contains("WARNING:") && line.contains("leaf_id_reservation.json"))
            .count();
        assert!((1..10).contains(&warnings), "{warnings} warnings");
    }
    assert_issued_once(&issued);
}

#[test]
fn a_disk_that_is_full_at_start_or_stop_repeats_nothing() {
    let (server, mut last) = server_and_id();
    for crash in [false, true] {
        println!("crash {crash}");
        let stop = || {
            if crash {
                server.stop(Stop::Immediate);
            } else {
                server.stop(Stop::Fast);
            }
        };
        // Disk full at startup.
        stop();
        let blocked = Blocked::new(&server, Blocker::FullDisk);
        server.launch();
        refusal(&server).is("58030");
        drop(blocked);
        let id = next_in_time(&server);
        assert!(id > last);
        // Disk full at shutdown: the reservation remains, and must pass.
        last = next_in_time(&server);
        let blocked = Blocked::new(&server, Blocker::FullDisk);
        stop();
        let reserved = number(
            &fs::read_to_string(file(&server)).unwrap(),
            "reserved_until_ms",
        )
        .0;
        drop(blocked);
        server.launch();
        let id = next_in_time(&server);
        assert!(id > last && time_of(id) > reserved);
        last = id;
    }
}
