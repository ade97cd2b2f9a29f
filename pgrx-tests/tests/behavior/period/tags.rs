//! Would catch: a period that cannot be, or that changes; ids from a transaction that has created
//! the tag, which no calendar was looked at for; a range over a boundary; and a wrong row that
//! takes a tag years ahead.

use leaf_id_tests::Server;

use crate::tags::sync::rows;

use super::{AFTER, BEFORE, DAY_MS, MIDNIGHT_MS, NUMBERS, create_daily, server_at, set_to};

#[test]
fn a_period_is_said_once_and_checked() {
    let server = server_at(MIDNIGHT_MS - DAY_MS / 2, &[]);
    let mut session = server.session();
    let create = |rest: &str| format!("SELECT leaf_tag_create('t', {rest})");
    for (rest, state, text) in [
        ("period => 'day'", "22004", "time_zone"),
        ("time_zone => 'UTC'", "23514", "leaf_alloc_period_valid"),
        ("digits => 6", "23514", "leaf_alloc_period_valid"),
        (
            "period => 'week', time_zone => 'UTC'",
            "23514",
            "leaf_alloc_period_valid",
        ),
        (
            "period => 'day', time_zone => 'UTC', digits => 11",
            "23514",
            "leaf_alloc_period_valid",
        ),
        (
            "period => 'day', time_zone => 'UTC', digits => 0",
            "23514",
            "leaf_alloc_period_valid",
        ),
        (
            "period => 'day', time_zone => 'UTC', digits => 100",
            "23514",
            "leaf_alloc_period_valid",
        ),
        (
            "period => 'day', time_zone => 'UTC', digits => 3, max_step => 101",
            "23514",
            "leaf_alloc_period_valid",
        ),
        (
            "period => 'day', time_zone => 'Europe/Nowhere'",
            "22023",
            "time zone \"Europe/Nowhere\" not recognized",
        ),
    ] {
        session.fails(&create(rest)).is(state).says(text);
    }
    session.run("CREATE EXTENSION dblink");
    session.create_foreign_server("elsewhere", &[server.dir()]);
    session
        .fails(&create(
            "server => 'elsewhere', period => 'day', time_zone => 'UTC'",
        ))
        .is("23514");
    for (unit, digits, last) in [
        ("day", 10, 999_912_319_999_999_999_i64),
        ("month", 12, 999_912_999_999_999_999),
        ("year", 14, 999_999_999_999_999_999),
        ("year", 1, 99_999),
    ] {
        session.run(&format!(
            "SELECT leaf_tag_create('{unit}{digits}', period => '{unit}', time_zone => 'UTC',
                 digits => {digits})"
        ));
        let max_value: i64 = session.value(&format!(
            "SELECT max_value FROM leaf_id.leaf_alloc WHERE biz_tag = '{unit}{digits}'"
        ));
        assert_eq!(max_value, last);
        session.next(&format!("{unit}{digits}"));
    }
    session.run(&create("period => 'year', time_zone => 'UTC'"));
    assert_eq!(session.next("t"), 2_026_000_001);
    session.run("SELECT leaf_tag_create('plain')");
    for edit in [
        "UPDATE leaf_id.leaf_alloc SET period = 'month' WHERE biz_tag = 't'",
        "UPDATE leaf_id.leaf_alloc SET digits = 7 WHERE biz_tag = 't'",
        "UPDATE leaf_id.leaf_alloc SET time_zone = 'Asia/Tokyo' WHERE biz_tag = 't'",
        "UPDATE leaf_id.leaf_alloc SET period = NULL, time_zone = NULL, digits = NULL
         WHERE biz_tag = 't'",
        "UPDATE leaf_id.leaf_alloc SET period = 'year', time_zone = 'UTC', digits = 7,
             max_value = 99, max_step = 1000 WHERE biz_tag = 'plain'",
    ] {
        session
            .fails(edit)
            .is("55000")
            .says("cannot change the period");
    }
    session.run("UPDATE leaf_id.leaf_alloc SET description = 'x' WHERE biz_tag = 't'");
    assert_eq!(session.next("t"), 2_026_000_002);
    // Nobody has looked at the calendar for it yet.
    session.run("BEGIN");
    session.run("SELECT leaf_tag_create('new', period => 'year', time_zone => 'UTC')");
    session.fails("SELECT leaf_segment_next('new')").is("55000");
    session.run("ROLLBACK");
}

#[test]
fn a_tag_can_go_on_from_a_number_or_begin_its_period_anew() {
    let server = server_at(MIDNIGHT_MS - DAY_MS / 2, &[]);
    let clock = server.clock();
    let mut session = server.session();
    session.run(&format!(
        "SELECT leaf_tag_create('t', step => 10, start => {}, period => 'day',
             time_zone => 'Europe/Berlin', digits => 9)",
        BEFORE * NUMBERS + 500
    ));
    assert_eq!(session.next("t"), BEFORE * NUMBERS + 500);
    // A claim that is under way would be overtaken: a gap.
    session.wait_for_spare("t");
    session.run(&format!(
        "SELECT leaf_tag_reset('t', {})",
        BEFORE * NUMBERS + 300
    ));
    assert_eq!(session.next("t"), BEFORE * NUMBERS + 300);
    session.wait_for_spare("t");
    session.run("SELECT leaf_tag_reset('t', 1)");
    assert_eq!(session.next("t"), BEFORE * NUMBERS + 1);
    set_to(&clock, MIDNIGHT_MS + 5);
    let range = session.column::<i64>("SELECT first_id FROM leaf_segment_next_range('t', 7)");
    assert_eq!(range, [AFTER * NUMBERS + 1]);
    assert_eq!(session.next("t"), AFTER * NUMBERS + 8);
}

#[test]
fn a_range_is_of_one_period_and_a_batch_goes_over() {
    let server = server_at(MIDNIGHT_MS - DAY_MS / 2, &[]);
    let clock = server.clock();
    let mut session = server.session();
    create_daily(&mut session, "t", 10, 1000);
    session.take("t", 3);
    session.run("BEGIN; DECLARE c CURSOR FOR SELECT leaf_segment_next_batch('t', 5)");
    assert_eq!(session.ids("FETCH 1 FROM c").len(), 1);
    set_to(&clock, MIDNIGHT_MS + 5);
    session.run("COMMIT");
    let range = |session: &mut leaf_id_tests::Session, n: i32| {
        let row = session
            .query_one("SELECT * FROM leaf_segment_next_range('t', $1)", &[&n])
            .unwrap();
        (row.get::<_, i64>(0), row.get::<_, i64>(1))
    };
    let (first, last) = range(&mut session, 500);
    assert_eq!(last - first, 499);
    assert_eq!(first / NUMBERS, AFTER);
    set_to(&clock, MIDNIGHT_MS + DAY_MS + 5);
    let (first, last) = range(&mut session, 900);
    assert_eq!((first / NUMBERS, last - first), (AFTER + 1, 899));
}

/// Never back: ids of a later year would be issued from then on.
#[test]
fn a_row_of_a_later_period_is_told_and_not_followed() {
    let server: Server = server_at(MIDNIGHT_MS - DAY_MS / 2, &[]);
    let mut session = server.session();
    session.run(
        "SELECT leaf_tag_create('invoices', step => 10, period => 'year',
             time_zone => 'Europe/Berlin')",
    );
    session.run(
        "CREATE TABLE invoices (id bigint PRIMARY KEY DEFAULT leaf_segment_next('invoices'));
         INSERT INTO invoices DEFAULT VALUES;
         INSERT INTO invoices VALUES (2026000042)",
    );
    let synced: Vec<i64> = session.column("SELECT next_after FROM leaf_sync()");
    assert_eq!(synced, [2_026_000_043]);
    assert_eq!(session.next("invoices"), 2_026_000_043);
    session.run("INSERT INTO invoices VALUES (2099000001)");
    for function in ["leaf_check()", "leaf_sync()", "leaf_sync('invoices')"] {
        let found: Vec<String> = session.column(&format!(
            "SELECT action || ': ' || detail FROM {function} WHERE tag = 'invoices'"
        ));
        assert_eq!(found.len(), 1);
        assert!(
            found[0].starts_with("skip: id 2099000001 is of a later period"),
            "{found:?}"
        );
    }
    assert_eq!(session.next("invoices"), 2_026_000_044);
}

/// How much is left is told of the present period: years of an integer column are no reason to
/// worry, and the last numbers of a year are.
#[test]
fn how_much_is_used_is_told_of_the_period() {
    let server = server_at(MIDNIGHT_MS - DAY_MS / 2, &[]);
    let mut session = server.session();
    session.run(
        "SELECT leaf_tag_create('wide', period => 'year', time_zone => 'UTC', max_value => 2147483647),
                leaf_tag_create('narrow', step => 1, max_step => 9, period => 'day', time_zone => 'UTC', digits => 2)",
    );
    let used = |session: &mut leaf_id_tests::Session, tag: &str| -> f64 {
        session.value(&format!(
            "SELECT used_ratio FROM leaf_segment_status WHERE tag = '{tag}'"
        ))
    };
    let checked = "SELECT detail FROM leaf_check() WHERE tag = $1";
    assert_eq!(used(&mut session, "wide"), 0.0);
    session.next("wide");
    assert!(used(&mut session, "wide") < 0.1);
    assert!(session.query(checked, &[&"wide"]).unwrap().is_empty());
    assert_eq!(used(&mut session, "narrow"), 0.0);
    session.take("narrow", 99);
    assert_eq!(used(&mut session, "narrow"), 1.0);
    session
        .fails("SELECT leaf_segment_next('narrow')")
        .is("2200H");
    let detail: String = session.query(checked, &[&"narrow"]).unwrap()[0].get(0);
    assert_eq!(detail, "the end of the present day is reached");
    // The day after nothing of it is used yet.
    set_to(&server.clock(), MIDNIGHT_MS + DAY_MS);
    session.run("SELECT leaf_tag_create('other')");
    session.next("narrow");
    assert!(used(&mut session, "narrow") < 0.2);
    assert!(session.query(checked, &[&"narrow"]).unwrap().is_empty());
}

/// Of one that was restored to a server without the zone: the others can still be looked at.
#[test]
fn an_unknown_time_zone_stops_nothing_but_its_tag() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "SET session_replication_role = replica;
         INSERT INTO leaf_id.leaf_alloc (biz_tag, period, time_zone, digits, max_step, max_value)
             VALUES ('v', 'day', 'US/Gone', 6, 1000, 99991231999999), ('w', 'day', 'US/Gone', 6, 1000, 99991231999999);
         RESET session_replication_role;
         CREATE TABLE t (id bigint DEFAULT leaf_segment_next('t')); INSERT INTO t VALUES (5);
         CREATE TABLE v (id bigint DEFAULT leaf_segment_next('v')); INSERT INTO v VALUES (20990101000001)",
    );
    let max_id = session.max_id("v");
    let used: Vec<String> = session.column(
        "SELECT concat_ws(' ', tag, coalesce(used_ratio::text, 'unknown')) FROM leaf_segment_status ORDER BY tag",
    );
    assert_eq!(used, ["v unknown", "w unknown"]);
    let unknown = r#"[time zone "US/Gone" is not known here]"#;
    for call in ["leaf_check()", "leaf_sync()"] {
        assert_eq!(
            rows(&mut session, call),
            [
                "t t id 5 6 create".to_string(),
                format!("v v id 20990101000001 skip {unknown}"),
                format!("w 1 1 skip {unknown}"),
            ],
            "{call}"
        );
    }
    assert_eq!(rows(&mut session, "leaf_sync('v')").len(), 1);
    assert_eq!(rows(&mut session, "leaf_sync('w')").len(), 1);
    assert_eq!(session.max_id("v"), max_id);
    assert_eq!(session.next("t"), 6);
}

/// CET is a zone with a summer time to claims, and so it is to `leaf_sync()`, to which it was an
/// abbreviation without one.
#[test]
fn a_zone_that_is_named_like_an_abbreviation_is_a_zone() {
    const HALF_PAST_MIDNIGHT_IN_JULY_MS: i64 = 1_782_945_000_000;
    let server = server_at(HALF_PAST_MIDNIGHT_IN_JULY_MS, &[]);
    let mut session = server.session();
    session.run("SELECT leaf_tag_create('t', period => 'day', time_zone => 'CET', digits => 6)");
    assert_eq!(session.next("t"), 20_260_702_000_001);
    let sql = "SELECT leaf_id.leaf_next_period('day', 'CET', 6)";
    assert_eq!(session.value::<i64>(sql), 20_260_703_000_000);
    assert_ne!(session.value::<String>("SHOW timezone"), "CET");
}
