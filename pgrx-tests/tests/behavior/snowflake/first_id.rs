//! Would catch: an epoch or a layout that is bound before any id is issued, or not yet when one is
//! (I7), and a clock that was ahead for a while and stops the ids for as long, though none was that
//! far (I10).

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use leaf_id_tests::{Failure, Server, Session, becomes, now_ms, wait_until};

const LIMIT: Duration = Duration::from_secs(30);
const HOUR_MS: i64 = 3_600_000;
const DEFAULT_EPOCH_MS: i64 = 1_288_834_974_657;
const TSID_EPOCH_MS: i64 = 1_577_836_800_000;
const NEXT: &str = "SELECT leaf_snowflake_next()";
const CONF: [(&str, &str); 3] = [
    ("leaf_id.worker_id", "1"),
    ("leaf_id.timestamp_reservation", "100ms"),
    ("leaf_id.max_clock_lead", "1s"),
];

fn file(server: &Server) -> PathBuf {
    server.data_dir().join("leaf_id_reservation.json")
}

/// Waits until the launcher has written the file, and has found nothing missing but a call.
#[track_caller]
fn is_ready(server: &Server) {
    wait_until(LIMIT, "the reservation file", || {
        let sql = "SELECT snowflake_state = 'open' FROM leaf_id.server";
        file(server).exists() && server.session().value(sql)
    });
}

#[track_caller]
fn next_soon(session: &mut Session) -> i64 {
    let mut last = None::<Failure>;
    let mut ids = Vec::new();
    let comes = becomes(LIMIT, || match session.try_column::<i64>(NEXT) {
        Ok(next) => {
            ids = next;
            true
        }
        Err(failure) => {
            last = Some(failure);
            false
        }
    });
    assert!(comes, "no id: {last:?}");
    ids[0]
}

/// A page's setting, as `name = value`, and a restart.
#[track_caller]
fn follow(server: &Server, page: &str, setting: &str) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/").to_owned() + page;
    let text = fs::read_to_string(&path).unwrap();
    // A page may have the name and the value in columns of a table.
    let (name, value) = setting.split_once(" = ").unwrap();
    let says = text.contains(name) && text.contains(value);
    assert!(says, "{page} does not say {setting}");
    server.session().run(&format!("ALTER SYSTEM SET {setting}"));
    server.restart();
    is_ready(server);
}

/// README's "Install", then the pages that say "before the first id", one after the other.
#[test]
fn the_pages_can_be_followed_after_the_installation() {
    let server = Server::start(&[("leaf_id.worker_id", "1")]);
    server.session().run("CREATE EXTENSION leaf_id");
    is_ready(&server);
    follow(&server, "clients.md", "leaf_id.snowflake_layout = '41/6/6'");
    server.crash();
    follow(&server, "moving.md", "leaf_id.epoch = 1577836800000");
    let mut session = server.session();
    let before_ms = now_ms();
    let id = next_soon(&mut session);
    assert!(id < 1 << 53, "{id}");
    let lead_ms = (id >> 12) + TSID_EPOCH_MS - before_ms;
    // Nor does the first id of a new cluster lead the clock, however often it was started before.
    assert!((-100..5_000).contains(&lead_ms), "{lead_ms}");
}

/// Whatever comes right after it.
#[test]
fn the_first_id_binds_epoch_and_layout() {
    let ends: [fn(&Server); 2] = [Server::crash, Server::restart];
    for end in ends {
        let server = Server::with_leaf_id(&CONF);
        is_ready(&server);
        next_soon(&mut server.session());
        end(&server);
        for (setting, value, detail) in [
            (
                "leaf_id.snowflake_layout",
                "41/6/6",
                "with the layout 41/10/12",
            ),
            (
                "leaf_id.epoch",
                "1577836800000",
                "with the epoch 1288834974657",
            ),
        ] {
            server.configure(setting, value);
            server.restart();
            let mut session = server.session();
            wait_until(LIMIT, "a refusal", || {
                let failure = session.try_column::<i64>(NEXT).unwrap_err();
                failure.state == "55000" && failure.detail.contains(detail)
            });
            let before = match setting {
                "leaf_id.epoch" => DEFAULT_EPOCH_MS.to_string(),
                _ => "41/10/12".into(),
            };
            server.configure(setting, &before);
        }
    }
}

/// While it cannot be written that there is one, there is none.
#[test]
fn there_is_no_first_id_on_a_full_disk() {
    let server = Server::with_leaf_id(&CONF);
    is_ready(&server);
    let in_the_way = server.data_dir().join("leaf_id_reservation.json.tmp");
    fs::create_dir(&in_the_way).unwrap();
    let mut session = server.session();
    session.run("SET leaf_id.refill_timeout = '300ms'");
    for _ in 0..3 {
        session.fails(NEXT);
    }
    assert!(
        fs::read_to_string(file(&server))
            .unwrap()
            .contains("\"issued\":false")
    );
    fs::remove_dir(&in_the_way).unwrap();
    session.run("RESET leaf_id.refill_timeout");
    next_soon(&mut session);
    assert!(
        fs::read_to_string(file(&server))
            .unwrap()
            .contains("\"issued\":true")
    );
}

/// That no id was issued is the original's to say: its copy may be from before the first one.
#[test]
fn a_standby_from_before_the_first_id_refuses_another_layout() {
    let server = Server::with_leaf_id(&CONF);
    is_ready(&server);
    let standby = server.standby(&[("leaf_id.snowflake_layout", "41/6/6")]);
    next_soon(&mut server.session());
    server.kill_9();
    standby.promote();
    let mut session = standby.session();
    wait_until(LIMIT, "a refusal", || {
        let failure = session.try_column::<i64>(NEXT).unwrap_err();
        failure.state == "55000" && failure.hint.contains("41/10/12")
    });
}

/// So is a file that was copied to another server.
#[test]
fn a_copied_file_binds_epoch_and_layout() {
    let server = Server::with_leaf_id(&CONF);
    is_ready(&server);
    let copy = server
        .backup()
        .start(&[("leaf_id.snowflake_layout", "41/6/6")]);
    let mut session = copy.session();
    wait_until(LIMIT, "a refusal", || {
        let failure = session.try_column::<i64>(NEXT).unwrap_err();
        failure.state == "55000" && failure.hint.contains("41/10/12")
    });
}

/// Before: a standby's copy of the file said what was set at the original's first start, and bound it to that.
#[test]
fn a_standby_from_after_another_layout_was_chosen_issues_by_it() {
    let server = Server::with_leaf_id(&CONF);
    is_ready(&server);
    server.configure("leaf_id.snowflake_layout", "41/6/6");
    server.restart();
    is_ready(&server);
    let standby = server.standby(&[]);
    let id = next_soon(&mut server.session());
    server.kill_9();
    standby.promote();
    assert!(next_soon(&mut standby.session()) > id);
}

/// A reservation by a clock that was an hour ahead is lowered, so that a crash within that hour stops
/// nothing.
#[test]
fn a_reservation_by_a_clock_that_was_ahead_is_lowered() {
    let server = Server::with_clock(0, &CONF);
    let clock = server.clock();
    let before = next_soon(&mut server.session());
    server.kill_9();
    clock.set(HOUR_MS);
    server.launch();
    let reserved_ms = |server: &Server| -> i64 {
        let text = fs::read_to_string(file(server)).unwrap();
        let (_, value) = text.split_once("\"reserved_until_ms\":").unwrap();
        let digits = value.find(|c: char| !c.is_ascii_digit()).unwrap();
        value[..digits].parse().unwrap()
    };
    wait_until(LIMIT, "the reservation", || {
        reserved_ms(&server) > now_ms() + HOUR_MS / 2
    });
    clock.set(0);
    let id = next_soon(&mut server.session());
    wait_until(LIMIT, "a lower one", || {
        reserved_ms(&server) < now_ms() + HOUR_MS / 2
    });
    server.crash();
    let after = next_soon(&mut server.session());
    assert!(before < id && id < after, "{before} {id} {after}");
}

/// Nor does the floor of a run that does not know its predecessor stay where the clock was.
#[test]
fn a_floor_by_a_clock_that_was_ahead_is_lowered() {
    let server = Server::with_clock(0, &CONF);
    let before = next_soon(&mut server.session());
    server.kill_9();
    fs::remove_file(file(&server)).unwrap();
    server.clock().set(HOUR_MS);
    server.launch();
    wait_until(LIMIT, "the floor", || {
        let sql = "SELECT floor_reason = 'no file' FROM leaf_id.server";
        server.session().value::<Option<bool>>(sql) == Some(true)
    });
    server.clock().set(0);
    assert!(next_soon(&mut server.session()) > before);
}

/// What the author of a copy may have issued is bounded by the first look, not by each one.
#[test]
fn a_copy_of_an_earlier_epoch_issues_once_its_ids_are_larger() {
    let server = Server::with_leaf_id(&CONF);
    let before = next_soon(&mut server.session());
    let epoch = (DEFAULT_EPOCH_MS + 2000).to_string();
    let copy = server.backup().start(&[("leaf_id.epoch", &epoch)]);
    copy.session()
        .fails(NEXT)
        .is("55000")
        .hints(&DEFAULT_EPOCH_MS.to_string());
    assert!(next_soon(&mut copy.session()) > before);
}

/// A promoted server that still waits does not know what its primary has issued.
#[test]
fn a_reset_after_a_promotion_repeats_nothing_of_the_primary() {
    let server = Server::with_clock(
        0,
        &[
            ("leaf_id.worker_id", "1"),
            ("leaf_id.max_clock_lead", "20s"),
        ],
    );
    let standby = server.standby(&[]);
    let mut session = server.session();
    next_soon(&mut session);
    server.clock().set(15_000);
    next_soon(&mut session);
    server.clock().set(0);
    let before = next_soon(&mut session);
    server.kill_9();
    standby.promote();
    let mut session = standby.session();
    wait_until(LIMIT, "the reset", || {
        session
            .try_run("SELECT leaf_id.leaf_snowflake_reset(now())")
            .is_ok()
    });
    assert!(next_soon(&mut session) > before);
}

/// A registry binds both at its first lease. Until a member has issued, its owner changes them.
#[test]
fn the_owner_of_a_registry_changes_what_no_member_has_used() {
    let server = Server::with_leaf_id(&[
        ("leaf_id.worker_id", "auto"),
        ("leaf_id.worker_registry", "postgres"),
    ]);
    is_ready(&server);
    server.configure("leaf_id.snowflake_layout", "41/6/6");
    server.restart();
    let mut session = server.session();
    wait_until(LIMIT, "a refusal", || {
        let failure = session.try_column::<i64>(NEXT).unwrap_err();
        failure
            .message
            .contains("is not that of the worker registry")
    });
    session.run("UPDATE leaf_id.leaf_registry SET layout = '41/6/6'");
    assert!(next_soon(&mut session) < 1 << 53);
}
