//! Would catch: ids that repeat after a point-in-time recovery, on a copy of a data directory, or
//! after pg_upgrade; ranges saved by one server and also used by its copy; and a gap after an
//! upgrade that lost nothing (I3, I6). Dumps are tested in `survival`.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use leaf_id_tests::{ARCHIVING, Server, Session, Stop, assert_issued_once, wait_until};

const SAVED: &str = "leaf_id_saved_ranges.json";
const SNOWFLAKE: [(&str, &str); 2] = [
    ("leaf_id.worker_id", "1"),
    ("leaf_id.timestamp_reservation", "500ms"),
];

fn floor_reason(session: &mut Session) -> String {
    session.value("SELECT floor_reason FROM leaf_id.server")
}

#[test]
fn after_a_recovery_to_an_earlier_moment_later_ids_do_not_come_again() {
    let primary = Server::with_leaf_id(&[&ARCHIVING[..], &SNOWFLAKE].concat());
    let mut session = primary.session();
    let tags = ["none", "one", "two"];
    for tag in tags {
        session.create_steady_tag(tag, 20);
        session.take(tag, 30);
    }
    session.next_snowflake();
    let backups = [(); 3].map(|()| primary.backup());
    for tag in tags {
        session.take(tag, 200);
        session.wait_for_spare(tag);
    }
    let lsn: String = session.value("SELECT pg_create_restore_point('here')::text");
    let time: String = session.value("SELECT clock_timestamp()::text");
    let mut lost = vec![vec![]];
    for (tag, claims) in tags.iter().zip(0..).skip(1) {
        lost.push(session.use_claims(tag, claims));
    }
    let snowflakes = session.ids("SELECT leaf_snowflake_next_batch(10000)");
    drop(session);
    primary.archive_wal();
    primary.stop(Stop::Fast);
    let targets = [
        ("recovery_target_name", "here"),
        ("recovery_target_lsn", &*lsn),
        ("recovery_target_time", &*time),
    ];
    for (backup, target) in backups.into_iter().zip(targets) {
        let restored = backup.recover(&primary, target, &[]);
        let mut session = restored.session();
        for (tag, lost) in tags.iter().zip(&lost) {
            let known = session.max_id(tag);
            assert!(
                lost.is_empty() || lost.iter().any(|id| *id >= known),
                "{target:?} is too late"
            );
            let new = session.take(tag, 100);
            assert_eq!(new[0], known + 2 * 20);
            assert_issued_once([[&lost[..], &new].concat()]);
        }
        let after = session.next_snowflake();
        assert_issued_once([[&snowflakes[..], &[after]].concat()]);
        assert_eq!(floor_reason(&mut session), "new timeline");
    }
}

/// Not as a standby, but as an independent server on the same timeline.
#[test]
fn a_server_made_of_a_base_backup_takes_its_reservation_for_a_floor_alone() {
    let server = Server::with_leaf_id(&SNOWFLAKE);
    let mut session = server.session();
    session.create_steady_tag("t", 100);
    let mut ids = session.take("t", 120);
    session.wait_for_spare("t");
    let mut snowflakes = vec![session.next_snowflake()];
    let known = session.max_id("t");
    let backup = server.backup();
    // For longer than the reservation in the copied file.
    let since = Instant::now();
    while since.elapsed() < Duration::from_millis(800) {
        snowflakes.push(session.next_snowflake());
    }
    ids.extend(session.take("t", 3));
    server.kill_9();
    let copy = backup.with_clock(-400).start(&[]);
    let mut session = copy.session();
    // Ids cached by the server may only be issued there.
    let new = session.take("t", 200);
    assert_eq!(new[0], known);
    ids.extend(new);
    snowflakes.push(session.next_snowflake());
    assert_eq!(floor_reason(&mut session), "copied file");
    assert_issued_once([ids]);
    assert_issued_once([snowflakes]);
}

/// Remainders may be restored once, by the server that saved them.
#[test]
fn a_copy_of_what_was_saved_is_not_issued() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.create_steady_tag("t", 1000);
    let mut ids = session.take("t", 150);
    session.wait_for_spare("t");
    let known = session.max_id("t");
    drop(session);
    server.stop(Stop::Fast);
    let saved = server.data_dir().join(SAVED);
    // Kept, so that no copy gets the same inode by chance.
    let held = server.dir().join("held");
    fs::hard_link(&saved, &held).unwrap();
    let cold = server.dir().join("cold");
    copy(&server.data_dir(), &cold);
    server.launch();
    let mut session = server.session();
    ids.extend(session.take("t", 5));
    assert_eq!(ids[150], 151, "nothing was restored to the server itself");
    assert!(!saved.exists(), "it could be restored once more");
    // While the server runs, the file exists only for moments; simulate one of them. (The kept file
    // was emptied when it was restored.)
    fs::copy(cold.join(SAVED), &saved).unwrap();
    server.give(&saved);
    let of_backup = server.backup();
    // Shut down without saving ranges.
    server.stop(Stop::Immediate);
    server.launch();
    let (of_backup, of_itself) = (of_backup.start(&[]), &server);
    for server in [&of_backup, of_itself] {
        assert_eq!(server.session().next("t"), known);
        // Removed by the launcher, which may have just started.
        wait_until(Duration::from_secs(30), "the file to be removed", || {
            !server.data_dir().join(SAVED).exists()
        });
    }
    // A copy made while the server was stopped replaces it.
    server.stop(Stop::Fast);
    fs::remove_dir_all(server.data_dir()).unwrap();
    copy(&cold, &server.data_dir());
    server.launch();
    assert_eq!(server.session().next("t"), known);
}

fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(status.unwrap().success());
}

/// A server created from another one by pg_upgrade. Stops the old one.
fn upgraded(old: &Server) -> Server {
    old.stop(Stop::Fast);
    let new = Server::start_unrelated(1, &SNOWFLAKE);
    new.stop(Stop::Fast);
    let bin = leaf_id_tests::programs::bin_dir().to_str().unwrap();
    let (from, to) = (old.data_dir(), new.data_dir());
    let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
    new.run(
        "pg_upgrade",
        &[
            "-b", bin, "-B", bin, "-d", from, "-D", to, "-U", "postgres", "-N",
        ],
    );
    new.launch();
    new
}

/// The old cluster was promoted once, so its timeline differs from the new one's.
#[test]
fn pg_upgrade_loses_no_tag_and_skips_nothing() {
    let primary = Server::with_leaf_id(&SNOWFLAKE);
    let old = primary.standby(&[]);
    old.replay_all_of(&primary);
    old.promote();
    let mut session = old.session();
    session.create_steady_tag("t", 20);
    session.run(
        "CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT leaf_segment_next('t'));
         INSERT INTO orders SELECT FROM generate_series(1, 50)",
    );
    session.wait_for_spare("t");
    let before = session.next_snowflake();
    let known = session.max_id("t");
    drop(session);
    let new = upgraded(&old);
    let mut session = new.session();
    assert_eq!(session.max_id("t"), known);
    session.run("INSERT INTO orders SELECT FROM generate_series(1, 50)");
    let ids = session.ids("SELECT id FROM orders ORDER BY id");
    assert_eq!((ids.len(), ids[50]), (100, known));
    assert!(!new.log().contains("leaf_id: skipped"));
    assert!(session.next_snowflake() > before);
}

/// Its rows are from another system, whose timelines have no relation to the one that lost claims.
#[test]
fn a_promotion_after_pg_upgrade_skips_what_was_lost() {
    let old = Server::with_leaf_id(&SNOWFLAKE);
    let mut session = old.session();
    session.create_steady_tag("t", 20);
    let mut ids = session.take("t", 30);
    drop(session);
    let new = upgraded(&old);
    let standby = new.standby(&[]);
    standby.replay_all_of(&new);
    standby.stop(Stop::Fast);
    ids.extend(new.session().take("t", 25));
    new.kill_9();
    standby.launch();
    standby.promote();
    ids.extend(standby.session().take("t", 500));
    assert_issued_once([ids]);
}
