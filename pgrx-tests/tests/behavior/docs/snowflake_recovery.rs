//! Would catch: a recovery procedure in docs/troubleshooting.md that does not work.

use std::fs;
use std::time::Duration;

use leaf_id_tests::{Server, Session, Stop, wait_until};

use super::page::{Page, run_statements};

const CONF: [(&str, &str); 2] = [
    ("leaf_id.worker_id", "1"),
    ("leaf_id.timestamp_reservation", "100ms"),
];
const NEXT: &str = "SELECT leaf_snowflake_next()";
const HOUR_MS: i64 = 3_600_000;

/// Runs the block marked for this test.
#[track_caller]
fn run_block_of(test: &str, session: &mut Session) {
    let name = format!("snowflake_recovery::{test}");
    let blocks = Page::read("docs/troubleshooting.md").blocks();
    let block = blocks
        .iter()
        .find(|block| block.test() == Some(&*name))
        .unwrap();
    run_statements(session, &block.text);
}

/// The next id, as soon as it is available.
#[track_caller]
fn next_soon(session: &mut Session) -> i64 {
    let mut ids = Vec::new();
    wait_until(Duration::from_secs(30), "a snowflake id", || {
        ids = session.try_column::<i64>(NEXT).unwrap_or_default();
        !ids.is_empty()
    });
    ids[0]
}

#[test]
fn a_damaged_reservation_file_is_reset() {
    let server = Server::with_leaf_id(&CONF);
    let before = next_soon(&mut server.session());
    server.stop(Stop::Fast);
    fs::write(
        server.data_dir().join("leaf_id_reservation.json"),
        "damaged",
    )
    .unwrap();
    server.launch();
    let mut session = server.session();
    session
        .fails(NEXT)
        .is("58030")
        .hints("leaf_snowflake_reset");
    run_block_of("a_damaged_reservation_file_is_reset", &mut session);
    assert!(next_soon(&mut session) > before);
}

#[test]
fn a_clock_that_was_ahead_is_left_behind() {
    let server = Server::with_clock(HOUR_MS, &CONF);
    let ahead = next_soon(&mut server.session());
    server.clock().set(0);
    let mut session = server.session();
    session
        .fails(NEXT)
        .is("55000")
        .hints("leaf_snowflake_reset");
    run_block_of("a_clock_that_was_ahead_is_left_behind", &mut session);
    let after = next_soon(&mut session);
    assert!(after < ahead, "{after} {ahead}");
    let worker: i32 = session.value(&format!(
        "SELECT worker_id FROM leaf_snowflake_decode({after})"
    ));
    assert_eq!(worker, 77);
}
