//! Would catch: ids that do not match `leaf_id.snowflake_layout`, or are decoded differently; a
//! worker id that overflows into an id's time; and a server that starts with a setting's default
//! because the configured value is invalid.

use std::process::Stdio;
use std::time::Duration;

use leaf_id_tests::{Server, Session, Stop, assert_issued_once, becomes, wait_until};

const LIMIT: Duration = Duration::from_secs(30);
const EPOCH_MS: i64 = 1_288_834_974_657;
/// Largest integer that is exact in JavaScript.
const LARGEST: i64 = (1 << 53) - 1;

fn server_with(layout: &str, worker_id: &str) -> Server {
    Server::with_leaf_id(&[
        ("leaf_id.snowflake_layout", layout),
        ("leaf_id.worker_id", worker_id),
        ("leaf_id.timestamp_reservation", "100ms"),
    ])
}

fn text(session: &mut Session, sql: &str) -> String {
    session.value(&format!("SELECT ({sql})::text"))
}

#[test]
fn what_is_read_follows_the_setting() {
    let server = server_with("41/6/6", "63");
    let mut session = server.session();
    session.run("SET timezone = 'UTC'");
    assert_eq!(
        text(
            &mut session,
            "SELECT (layout, exhausted_at) FROM leaf_id.server"
        ),
        "(41/6/6,\"2080-07-10 17:30:30.208+00\")"
    );
    for (sql, expected) in [
        (
            format!("leaf_snowflake_decode({LARGEST})"),
            "(\"2080-07-10 17:30:30.208+00\",63,63)",
        ),
        (
            "leaf_snowflake_decode(4096 + 65)".into(),
            "(\"2010-11-04 01:42:54.658+00\",1,1)",
        ),
        // An argument takes precedence.
        (
            format!("leaf_snowflake_decode(4096 + 65, {EPOCH_MS})"),
            "(\"2010-11-04 01:42:54.657+00\",1,65)",
        ),
        (
            "leaf_snowflake_min('2010-11-04 01:42:54.658')".into(),
            "4096",
        ),
        (
            "leaf_snowflake_min('2010-11-04 01:42:54.659')".into(),
            "8192",
        ),
        (
            format!("leaf_snowflake_time({LARGEST})"),
            "2080-07-10 17:30:30.208+00",
        ),
        (
            "leaf_snowflake_min('infinity')".into(),
            &i64::MAX.to_string(),
        ),
    ] {
        assert_eq!(text(&mut session, &sql), expected, "{sql}");
    }
    for id in [LARGEST + 1, i64::MAX, -1] {
        session
            .fails(&format!("SELECT leaf_snowflake_decode({id})"))
            .is("22023")
            .says(&id.to_string())
            .details("41/6/6 are 0 to 9007199254740991");
    }
}

#[test]
fn ids_of_a_layout_have_its_bits() {
    let server = server_with("41/6/6", "63");
    let mut session = server.session();
    let mut all = Vec::new();
    for worker in [63, 0, 40] {
        server.set("leaf_id.worker_id", &worker.to_string());
        wait_until(LIMIT, "the worker id", || {
            let ids = session.try_column::<i64>("SELECT leaf_snowflake_next_batch(1000)");
            let ids = ids.unwrap_or_default();
            all.extend(&ids);
            ids.iter().all(|id| id >> 6 & 63 == worker) && !ids.is_empty()
        });
    }
    let now_ms = session.value::<i64>("SELECT (extract(epoch FROM now()) * 1000)::bigint");
    for &id in &all {
        assert!(id <= LARGEST);
        let off_ms: i64 = (id >> 12) + EPOCH_MS - now_ms;
        assert!((-60_000..60_000).contains(&off_ms), "{id}: {off_ms}");
    }
    // Sequences reach the maximum, but do not exceed it.
    assert_eq!(all.iter().map(|id| id & 63).max(), Some(63));
    assert_issued_once([all]);
    assert!(session.value::<bool>(
        "SELECT s.worker_id = 40 AND d.worker_id = 40
             AND d.ts BETWEEN now() - interval '1 min' AND now() + interval '1 min'
         FROM leaf_id.server s, leaf_snowflake_decode(leaf_snowflake_next()) d"
    ));
}

#[test]
fn a_worker_id_that_the_layout_does_not_have_is_refused() {
    let server = server_with("41/6/6", "64");
    // Like any invalid setting in the file: it is logged, and no ids are issued.
    let logged = "invalid value for parameter \"leaf_id.worker_id\": \"64\"";
    assert!(server.log().contains(logged), "{}", server.log());
    assert!(server.log().contains("a number from 0 to 63 "));
    let mut session = server.session();
    session
        .fails("SELECT leaf_snowflake_next()")
        .is("55000")
        .details("a number from 0 to 63 ");
    for bad in ["64", "1023", "32768"] {
        session
            .fails(&format!("ALTER SYSTEM SET leaf_id.worker_id = '{bad}'"))
            .is("22023")
            .details("0 to 63 (the layout of ids is 41/6/6)");
    }
    session.run("ALTER SYSTEM SET leaf_id.worker_id = '63'");
    // The largest layout.
    let server = server_with("44/15/4", "32767");
    let shown: String = server.session().value("SHOW leaf_id.worker_id");
    assert_eq!(shown, "32767");
}

#[test]
fn a_leased_worker_id_that_the_layout_does_not_have_is_not_used() {
    let server = Server::with_leaf_id(&[
        ("leaf_id.worker_id", "auto"),
        ("leaf_id.timestamp_reservation", "100ms"),
    ]);
    let mut session = server.session();
    session.run("INSERT INTO leaf_id.leaf_registry (grant_ahead_ms) VALUES (2000)");
    session.run("SELECT leaf_id.leaf_worker_retire(n) FROM generate_series(0, 899) n");
    server.set("leaf_id.worker_registry", "postgres");
    let leased = |session: &mut Session| {
        let sql = "SELECT leaf_snowflake_next() >> 12 & 1023 = 900";
        session.try_column::<bool>(sql).is_ok_and(|is| is == [true])
    };
    wait_until(LIMIT, "the worker id", || leased(&mut session));
    session.run("ALTER SYSTEM SET leaf_id.snowflake_layout = '41/6/6'");
    server.restart();
    let mut session = server.session();
    session.run("SET leaf_id.refill_timeout = '1s'");
    // Nor after its lease, when the registry could grant it again.
    let issues = becomes(Duration::from_secs(5), || {
        match session.try_column::<i64>("SELECT leaf_snowflake_next()") {
            Ok(_) => true,
            Err(failure) => {
                assert!(["55000", "55P03"].contains(&&*failure.state), "{failure}");
                false
            }
        }
    });
    assert!(!issues, "with a worker id that the layout does not have");
    session.run("ALTER SYSTEM RESET leaf_id.snowflake_layout");
    server.restart();
    let mut session = server.session();
    wait_until(LIMIT, "the worker id", || leased(&mut session));
}

#[test]
fn a_layout_is_fixed_at_start() {
    let server = server_with("41/6/6", "1");
    let mut session = server.session();
    server.set("leaf_id.snowflake_layout", "41/10/12");
    wait_until(LIMIT, "the reload", || {
        session.value(
            "SELECT pending_restart FROM pg_settings WHERE name = 'leaf_id.snowflake_layout'",
        )
    });
    assert_eq!(
        session.value::<String>("SELECT layout FROM leaf_id.server"),
        "41/6/6"
    );
}

/// With the default of either setting, ids might be larger than any correct one, which no later
/// correction could undo.
#[test]
fn no_server_starts_with_a_default_that_was_not_meant() {
    let server = server_with("41/6/6", "1");
    server.stop(Stop::Fast);
    // Loads the library like a start, prints this and exits.
    let start = |setting: &str| {
        let output = server
            .program("postgres")
            .args(["-C", "shared_memory_size", "-c", setting, "-D"])
            .arg(server.data_dir())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said)
    };
    for (name, bad, detail) in [
        ("leaf_id.snowflake_layout", "41/6/7x", "38 to 46"),
        ("leaf_id.snowflake_layout", "", "38 to 46"),
        ("leaf_id.epoch", "2020-01-01", "milliseconds since 1970"),
        ("leaf_id.epoch", "9999999999999", "a moment in the past"),
    ] {
        let (started, said) = start(&format!("{name}={bad}"));
        println!("{said}");
        assert!(!started, "{name} {bad}");
        assert!(said.contains(&format!(
            "FATAL:  invalid value for parameter \"{name}\": \"{bad}\""
        )));
        assert!(said.contains(detail), "{said}");
    }
    for good in [
        "leaf_id.snowflake_layout=41/10/12",
        "leaf_id.epoch=0",
        "leaf_id.worker_id=64",
    ] {
        let (started, said) = start(good);
        assert!(started, "{good}: {said}");
    }
    server.launch();
}
