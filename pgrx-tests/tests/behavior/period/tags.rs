//! Would catch: a range over a boundary, and a wrong row that takes a tag years ahead. (What is
//! refused is in sql/period.sql.)

use leaf_id_tests::Server;

use super::{AFTER, BEFORE, DAY_MS, MIDNIGHT_MS, NUMBERS, create_daily, server_at, set_to};

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
