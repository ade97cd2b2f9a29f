//! Would catch: a valid value of a setting with which the server does not start or issues nothing;
//! and a value out of range that is accepted.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use leaf_id_tests::{Server, Session, becomes, wait_until};

const LIMIT: Duration = Duration::from_secs(30);

/// Name, minimum and maximum of numeric settings.
fn numbers(session: &mut Session) -> Vec<(String, i64, i64)> {
    let sql = "SELECT name, min_val::bigint, max_val::bigint FROM pg_settings
               WHERE name LIKE 'leaf\\_id.%' AND vartype = 'integer' ORDER BY name";
    let rows = session.query(sql, &[]).unwrap();
    rows.iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect()
}

/// Checks that both kinds of ids are issued, in order. With a timeout of a millisecond, some calls
/// may fail, but not all.
fn assert_issues(server: &Server, last: &mut (i64, i64)) {
    let mut session = server.session();
    for (sql, last) in [
        ("SELECT leaf_segment_next('t')", &mut last.0),
        ("SELECT leaf_snowflake_next()", &mut last.1),
    ] {
        for _ in 0..50 {
            let mut result = Ok(Vec::new());
            let issued = becomes(LIMIT, || {
                result = session.try_column::<i64>(sql);
                result.is_ok()
            });
            assert!(issued, "{sql}: {}", result.unwrap_err());
            let id = result.unwrap()[0];
            assert!(id > *last, "{sql}: {id} after {last}");
            *last = id;
        }
    }
}

#[test]
fn the_log_says_at_the_start_that_it_works() {
    let version = env!("CARGO_PKG_VERSION");
    for (worker_id, said) in [("", "no worker id"), ("7", "worker id 7")] {
        let server = Server::start(&[("leaf_id.worker_id", worker_id), ("leaf_id.max_tags", "50")]);
        let line = format!(
            "LOG:  leaf_id: version {version} is ready, with {said}, and caches up to 50 tags\n"
        );
        wait_until(LIMIT, "the line", || server.log().contains(&line));
        assert_eq!(server.log().matches("is ready, with").count(), 1);
    }
}

#[test]
fn ids_are_issued_with_every_setting_at_either_end() {
    // On a new server, ids lead the clock by the sum of these two, which must not exceed their max
    // lead under the settings below.
    let server = Server::with_leaf_id(&[
        ("leaf_id.worker_id", "0"),
        ("leaf_id.timestamp_reservation", "100ms"),
        ("leaf_id.max_clock_lead", "0"),
    ]);
    let mut session = server.session();
    session.create_steady_tag("t", 5);
    let mut last = (0, 0);
    assert_issues(&server, &mut last);
    let numbers = numbers(&mut session);
    println!("{numbers:?}");
    assert!(numbers.len() >= 5);
    for (name, min, max) in &numbers {
        for beyond in [min - 1, max + 1] {
            let set = format!("ALTER SYSTEM SET {name} = '{beyond}'");
            session.fails(&set).is("22023");
        }
    }
    drop(session);
    for highest in [false, true] {
        let mut session = server.session();
        for (name, min, max) in &numbers {
            let value = if highest { max } else { min };
            session.run(&format!("ALTER SYSTEM SET {name} = '{value}'"));
        }
        // Lowering it is allowed.
        session.run("ALTER SYSTEM SET leaf_id.epoch = '0'");
        drop(session);
        server.restart();
        let mut session = server.session();
        for (name, min, max) in &numbers {
            let value: i64 = session.value(&format!(
                "SELECT setting::bigint FROM pg_settings WHERE name = '{name}'"
            ));
            assert_eq!(value, if highest { *max } else { *min }, "{name}");
        }
        assert_issues(&server, &mut last);
    }
    // Settings changed by a reload: from minimum to maximum and back.
    for (name, min, max) in &numbers {
        if name == "leaf_id.max_tags" {
            continue;
        }
        for value in [min, max, min] {
            server.set(name, &value.to_string());
            assert_issues(&server, &mut last);
        }
    }
    let mut session = server.session();
    let words: Vec<Vec<String>> = session
        .column("SELECT enumvals FROM pg_settings WHERE name = 'leaf_id.claim_synchronous_commit'");
    assert_eq!(words[0].len(), 4);
    for word in &words[0] {
        server.set("leaf_id.claim_synchronous_commit", word);
        assert_issues(&server, &mut last);
    }
}

#[test]
fn an_epoch_of_this_moment() {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let server = Server::with_leaf_id(&[
        ("leaf_id.worker_id", "1023"),
        ("leaf_id.timestamp_reservation", "100ms"),
        ("leaf_id.epoch", &now.as_millis().to_string()),
    ]);
    let mut session = server.session();
    session.create_tag("t");
    let mut last = (0, 0);
    assert_issues(&server, &mut last);
    assert!(last.1 >> 22 < 60_000, "milliseconds since a moment ago");
    let later = (now + Duration::from_secs(3600)).as_millis();
    session
        .fails(&format!("ALTER SYSTEM SET leaf_id.epoch = '{later}'"))
        .is("22023");
}

/// Errors in postgresql.conf are not reported to a user. An invalid number must not be replaced by
/// another one.
#[test]
fn a_bad_worker_id_in_the_file_is_none() {
    for bad in ["1024", "-1"] {
        let server = Server::with_leaf_id(&[
            ("leaf_id.worker_id", bad),
            ("leaf_id.timestamp_reservation", "100ms"),
        ]);
        assert!(server.log().contains("leaf_id.worker_id"), "it is logged");
        let mut session = server.session();
        session.fails("SELECT leaf_snowflake_next()").is("55000");
        session.create_tag("t");
        assert_eq!(session.next("t"), 1);
        server.set("leaf_id.worker_id", "1023");
        wait_until(LIMIT, "ids", || {
            session.try_run("SELECT leaf_snowflake_next()").is_ok()
        });
    }
}
