//! Would catch: a promoted standby that issues ids again which the old primary issued without
//! replicating the claim (I3); and one that leaves gaps although nothing can have been lost.

use std::time::Duration;

use leaf_id_tests::{Server, Session, Stop, assert_issued_once, edit_json, random, wait_until};
use rand::RngExt;

const LIMIT: Duration = Duration::from_secs(30);

/// Name, `step` and `max_step`.
type Tag = (&'static str, i32, i32);

/// Enables snowflake ids, with a short reservation to wait for after a promotion.
const SNOWFLAKE: [(&str, &str); 2] = [
    ("leaf_id.worker_id", "1"),
    ("leaf_id.timestamp_reservation", "1s"),
];

/// Creates tags and takes some ids of each.
fn create_tags(server: &Server, tags: &[Tag]) {
    let mut session = server.session();
    for (tag, step, max_step) in tags {
        session.run(&format!(
            "SELECT leaf_tag_create('{tag}', step => {step}, max_step => {max_step})"
        ));
        session.take(tag, 3);
        session.wait_for_spare(tag);
    }
}

/// A primary with these tags, and a standby that has all claims so far, and will receive no further
/// ones.
fn pair_that_parts(tags: &[Tag], conf: &[(&str, &str)]) -> (Server, Server) {
    let primary = Server::with_leaf_id(conf);
    create_tags(&primary, tags);
    let standby = primary.standby(&[]);
    standby.replay_all_of(&primary);
    standby.cut_off();
    (primary, standby)
}

/// Asserts that the new primary's ids are above the old one's.
fn assert_goes_on_above(tag: &str, known: i64, old: &[i64], new: &[i64]) {
    let unknown = old.iter().filter(|id| **id >= known).count();
    println!("{tag}: {unknown} ids were issued of claims that the standby never got");
    assert!(unknown > 0, "nothing was lost of {tag}");
    assert_issued_once([[old, new].concat()]);
}

#[test]
fn ids_of_claims_that_the_standby_never_got_are_not_issued_again() {
    let tags = [
        ("one", 20, 20),
        ("two", 20, 20),
        ("growing", 20, 1_000_000),
        ("bounded", 100, 300),
        ("ranges", 50, 1000),
    ];
    let (primary, standby) = pair_that_parts(&tags, &SNOWFLAKE);
    let mut session = primary.session();
    let mut old: Vec<_> = tags
        .iter()
        .map(|(tag, ..)| session.use_claims(tag, if *tag == "one" { 1 } else { 2 }))
        .collect();
    let range = session
        .query_one("SELECT * FROM leaf_segment_next_range('ranges', 3)", &[])
        .unwrap();
    old[4].extend(range.get::<_, i64>("first_id")..=range.get("last_id"));
    let mut snowflakes = session.ids("SELECT leaf_snowflake_next_batch(5000)");
    primary.kill_9();
    let mut session = standby.session();
    let known = tags.map(|(tag, ..)| session.max_id(tag));
    standby.promote();
    for (((tag, ..), known), old) in tags.iter().zip(known).zip(old) {
        assert_goes_on_above(tag, known, &old, &session.take(tag, 500));
    }
    snowflakes.push(session.next_snowflake());
    assert_issued_once([snowflakes]);
}

/// The skip of a row that goes before its next claim stands in the mark of its name.
#[test]
fn rows_that_go_after_a_promotion_leave_what_was_lost() {
    let tags = [
        ("dropped", 20, 20),
        ("renamed", 20, 20),
        ("truncated", 20, 20),
    ];
    let (primary, standby) = pair_that_parts(&tags, &[]);
    let mut session = primary.session();
    let old = tags.map(|(tag, ..)| session.use_claims(tag, 2));
    primary.kill_9();
    let mut session = standby.session();
    let known = tags.map(|(tag, ..)| session.max_id(tag));
    standby.promote();
    session.run(
        "SELECT leaf_tag_drop('dropped');
         UPDATE leaf_id.leaf_alloc SET biz_tag = 'another' WHERE biz_tag = 'renamed'",
    );
    session.run("SET leaf_id.allow_truncate = on; TRUNCATE leaf_id.leaf_alloc");
    for (((tag, ..), known), old) in tags.iter().zip(known).zip(old) {
        session.create_steady_tag(tag, 20);
        assert_goes_on_above(tag, known, &old, &session.take(tag, 100));
    }
}

/// The first edit settles the row. Before: by the default of the setting, where the session had brought a
/// value that it may not set.
#[test]
fn a_promoted_server_without_the_library_settles_nothing() {
    let tags = [("edited", 20, 20), ("dropped", 20, 20)];
    let (primary, standby) = pair_that_parts(&tags, &[("leaf_id.failover_skip", "5")]);
    standby.configure("shared_preload_libraries", "");
    standby.restart();
    let mut session = primary.session();
    let old = tags.map(|(tag, ..)| session.use_claims(tag, 5));
    primary.kill_9();
    let mut session = standby.session();
    let known = tags.map(|(tag, ..)| session.max_id(tag));
    standby.promote();
    let edits = [
        "UPDATE leaf_id.leaf_alloc SET description = 'edited' WHERE biz_tag = 'edited'",
        "SELECT leaf_tag_drop('dropped')",
    ];
    for edit in edits {
        session
            .fails(edit)
            .is("55000")
            .says("shared_preload_libraries");
    }
    standby.configure("shared_preload_libraries", "leaf_id");
    standby.restart();
    let mut session = standby.session();
    for edit in edits {
        session.run(edit);
    }
    session.run("SELECT leaf_tag_create('dropped', step => 20, max_step => 20)");
    for (((tag, ..), known), old) in tags.iter().zip(known).zip(old) {
        assert_goes_on_above(tag, known, &old, &session.take(tag, 200));
    }
}

/// Tests the documented limit of failover_skip. Shows also that the other tests can fail.
#[test]
fn ids_of_more_lost_claims_than_are_skipped_come_again() {
    let tags = [("a", 20, 20), ("b", 20, 20), ("c", 20, 20)];
    let (primary, standby) = pair_that_parts(&tags, &[]);
    let mut session = primary.session();
    let old = tags.map(|(tag, ..)| session.use_claims(tag, 2));
    primary.kill_9();
    standby.promote();
    let mut session = standby.session();
    for (((tag, ..), old), (skip, repeats)) in
        tags.iter().zip(old).zip([(0, true), (1, true), (2, false)])
    {
        standby.set("leaf_id.failover_skip", &skip.to_string());
        wait_until(LIMIT, "the reload", || {
            session.value::<String>("SHOW leaf_id.failover_skip") == skip.to_string()
        });
        let known = session.max_id(tag);
        let new = session.take(tag, 50);
        assert_eq!(new[0], known + skip * 20, "{tag}");
        assert_eq!(new.iter().any(|id| old.contains(id)), repeats, "{tag}");
    }
}

#[test]
fn a_skip_shows_in_the_view_and_the_log_and_comes_once() {
    let tags = [("steady", 20, 20), ("bounded", 100, 300), ("idle", 20, 20)];
    let (primary, standby) = pair_that_parts(&tags, &[]);
    let timeline: i64 = primary.session().figure("steady", "timeline");
    assert_eq!(timeline, 1);
    assert_eq!(primary.session().figure("steady", "ids_skipped"), 0);
    primary.kill_9();
    standby.promote();
    let mut session = standby.session();
    // 8 and 64 times 100 are limited to max_step.
    for (tag, skipped) in [("steady", 2 * 20), ("bounded", 2 * 300)] {
        let known = session.max_id(tag);
        assert_eq!(session.next(tag), known + skipped);
        assert_eq!(session.figure(tag, "ids_skipped"), skipped);
        assert_eq!(session.figure(tag, "timeline"), 2);
        let line = format!("skipped {skipped} ids of tag \"{tag}\"");
        assert_eq!(standby.log().matches(&line).count(), 1, "{line}");
        // No gap from here on.
        let ids = session.take(tag, 500);
        assert_eq!(ids[499] - ids[0], 499);
        assert_eq!(session.figure(tag, "ids_skipped"), skipped);
    }
    // An edit of the row hides neither the timeline of its last claim nor its length.
    let known = session.max_id("idle");
    let unsettled = "SELECT count(*) FROM leaf_check() WHERE tag = 'idle' AND detail LIKE '%since a promotion%'";
    assert_eq!(session.ids(unsettled), [1]);
    let problems = "SELECT count(*) FROM leaf_id.problems
                WHERE severity = 'info' AND what LIKE 'tag \"idle\": %since a promotion%'";
    assert_eq!(session.ids(problems), [1]);
    session.run("UPDATE leaf_id.leaf_alloc SET step = 5, max_step = 5 WHERE biz_tag = 'idle'");
    assert_eq!(session.ids(unsettled), [0]);
    assert_eq!(session.ids(problems), [0]);
    assert_eq!(session.next("idle"), known + 2 * 20);
    drop(session);
    for restart in [Server::restart, Server::crash] {
        restart(&standby);
        let mut session = standby.session();
        for (tag, ..) in tags {
            session.take(tag, 700);
        }
    }
    for tag in ["steady", "bounded"] {
        let line = format!("ids of tag \"{tag}\"");
        assert_eq!(standby.log().matches(&line).count(), 1);
    }
}

/// The skip may exceed the remaining ids. The user can override it.
#[test]
fn a_skip_beyond_the_limit_of_a_tag_is_reported_and_can_be_taken_back() {
    let tags = [("a", 100, 1000), ("b", 100, 1000)];
    let (primary, standby) = pair_that_parts(&tags, &[]);
    primary.kill_9();
    standby.promote();
    let mut session = standby.session();
    session.run("SET leaf_id.refill_timeout = '1s'");
    // Without the edit that this test makes.
    let known = tags.map(|(tag, ..)| {
        let known = session.max_id(tag);
        session.run(&format!(
            "BEGIN; ALTER TABLE leaf_id.leaf_alloc DISABLE TRIGGER ALL;
             UPDATE leaf_id.leaf_alloc SET max_value = {} WHERE biz_tag = '{tag}';
             ALTER TABLE leaf_id.leaf_alloc ENABLE ALWAYS TRIGGER leaf_alloc_stamp;
             ALTER TABLE leaf_id.leaf_alloc ENABLE ALWAYS TRIGGER leaf_alloc_edit;
             ALTER TABLE leaf_id.leaf_alloc ENABLE ALWAYS TRIGGER leaf_alloc_truncate;
             ALTER TABLE leaf_id.leaf_alloc ENABLE ALWAYS TRIGGER leaf_alloc_mark;
             ALTER TABLE leaf_id.leaf_alloc ENABLE ALWAYS TRIGGER leaf_alloc_mark_truncate; COMMIT",
            known + 500
        ));
        known
    });
    for (tag, ..) in tags {
        session
            .fails(&format!("SELECT leaf_segment_next('{tag}')"))
            .is("2200H")
            .details("1800 ids are left out")
            .hints("leaf_id.failover_skip");
    }
    // So does an edit: raising the limit is a way out.
    session.run("UPDATE leaf_id.leaf_alloc SET description = 'b' WHERE biz_tag = 'b'");
    assert_eq!(session.max_id("b"), known[1] + 1800);
    session.run(&format!(
        "UPDATE leaf_id.leaf_alloc SET max_value = {} WHERE biz_tag = 'b'",
        known[1] + 2000
    ));
    assert_eq!(session.next("b"), known[1] + 1800);
    standby.set("leaf_id.failover_skip", "0");
    let mut first = None;
    wait_until(LIMIT, "an id", || {
        first = session.try_next("a").ok();
        first.is_some()
    });
    assert_eq!(first, Some(known[0]));
}

/// The old primary has raised the limit of an exhausted tag, and continued. So does the new one.
#[test]
fn a_limit_that_is_raised_on_both_sides_repeats_nothing() {
    let tags = [("a", 100, 100), ("b", 100, 100)];
    let primary = Server::with_leaf_id(&[]);
    let mut session = primary.session();
    for (tag, ..) in tags {
        session.run(&format!(
            "SELECT leaf_tag_create('{tag}', step => 100, max_step => 100, max_value => 1000)"
        ));
        session.take(tag, 1000);
    }
    let standby = primary.standby(&[]);
    standby.replay_all_of(&primary);
    standby.cut_off();
    let raise = |session: &mut leaf_id_tests::Session, tag: &str| {
        session.run(&format!(
            "UPDATE leaf_id.leaf_alloc SET max_value = 5000 WHERE biz_tag = '{tag}'"
        ));
        session.take(tag, 50)
    };
    let old = tags.map(|(tag, ..)| raise(&mut session, tag));
    primary.kill_9();
    standby.promote();
    let mut session = standby.session();
    // Whichever comes first.
    session.run("UPDATE leaf_id.leaf_alloc SET description = 'b' WHERE biz_tag = 'b'");
    for ((tag, ..), old) in tags.iter().zip(old) {
        assert_issued_once([[old, raise(&mut session, tag)].concat()]);
    }
}

/// Random steps, growth and starvation: the skip covers as many lost claims as configured.
#[test]
fn whatever_the_pace_no_id_of_a_lost_claim_comes_again() {
    let mut random = random();
    let names = ["a", "b", "c", "d", "e", "f"];
    let tags = names.map(|name| {
        let step = random.random_range(20..300);
        (name, step, step * random.random_range(1..500))
    });
    println!("{tags:?}");
    let primary = Server::with_leaf_id(&[]);
    create_tags(&primary, &tags);
    let mut session = primary.session();
    for tag in names {
        session.use_claims(tag, random.random_range(0..5));
    }
    let standby = primary.standby(&[("leaf_id.failover_skip", "4")]);
    standby.replay_all_of(&primary);
    standby.cut_off();
    let old = names.map(|tag| session.use_claims(tag, random.random_range(1..5)));
    primary.kill_9();
    let mut session = standby.session();
    let known = names.map(|tag| session.max_id(tag));
    standby.promote();
    for ((tag, known), old) in names.iter().zip(known).zip(old) {
        let new = session.take(tag, 100);
        println!("{tag}: {} were skipped", new[0] - known);
        assert_goes_on_above(tag, known, &old, &new);
    }
}

/// All received WAL is replayed before the promotion, even if the standby was far behind.
#[test]
fn a_standby_whose_replay_is_held_has_lost_nothing() {
    let tags = [("a", 20, 20), ("growing", 20, 100_000)];
    let primary = Server::with_leaf_id(&SNOWFLAKE);
    create_tags(&primary, &tags);
    let standby = primary.standby(&[("leaf_id.failover_skip", "0")]);
    standby.replay_all_of(&primary);
    standby.pause_replay();
    let mut session = primary.session();
    let old = tags.map(|(tag, ..)| session.use_claims(tag, 3));
    let mut snowflakes = session.ids("SELECT leaf_snowflake_next_batch(5000)");
    standby.receive_all_of(&primary);
    primary.kill_9();
    let mut session = standby.session();
    let known = tags.map(|(tag, ..)| session.max_id(tag));
    standby.promote();
    for (((tag, ..), known), old) in tags.iter().zip(known).zip(old) {
        assert_goes_on_above(tag, known, &old, &session.take(tag, 100));
    }
    snowflakes.push(session.next_snowflake());
    assert_issued_once([snowflakes]);
}

/// Clocks may differ by a reservation.
#[test]
fn a_standby_whose_clock_is_behind_repeats_no_snowflake_id() {
    let primary = Server::with_clock(0, &SNOWFLAKE);
    let mut snowflakes = vec![primary.session().next_snowflake()];
    let standby = primary
        .backup()
        .with_clock(-500)
        .start_standby(&primary, &[]);
    standby.replay_all_of(&primary);
    let mut session = primary.session();
    snowflakes.extend(session.ids("SELECT leaf_snowflake_next_batch(20000)"));
    primary.kill_9();
    standby.promote();
    let mut session = standby.session();
    snowflakes.push(session.next_snowflake());
    snowflakes.extend(session.ids("SELECT leaf_snowflake_next_batch(5000)"));
    assert_issued_once([snowflakes]);
    assert_eq!(
        session.value::<String>("SELECT floor_reason FROM leaf_id.server"),
        "new timeline"
    );
}

/// Promoted, copied from the promoted server, promoted again: each timeline has its own skip.
#[test]
fn every_promotion_in_a_row_of_them_skips() {
    let tags = [("t", 20, 20)];
    let (first, second) = pair_that_parts(&tags, &[]);
    let mut old = first.session().use_claims("t", 2);
    first.kill_9();
    let mut servers = vec![first, second];
    for timeline in [2, 3] {
        let newest = servers.last().unwrap();
        newest.promote();
        let mut session = newest.session();
        old.extend(session.take("t", 3));
        assert_eq!(session.figure("t", "timeline"), timeline);
        let next = newest.standby(&[]);
        next.replay_all_of(newest);
        next.cut_off();
        old.extend(session.use_claims("t", 2));
        newest.kill_9();
        servers.push(next);
    }
    let newest = servers.last().unwrap();
    newest.promote();
    old.extend(newest.session().take("t", 100));
    assert_issued_once([old]);
}

/// Would catch: a skip of as many claims as each promotion may lose. The server promoted in between
/// has skipped those, and has issued the ids above them.
#[test]
fn a_standby_that_did_not_follow_the_last_primary_skips_what_that_one_skipped_and_issued() {
    let tags = [("t", 20, 20)];
    let first = Server::with_leaf_id(&[]);
    create_tags(&first, &tags);
    // It will know of the second one's timeline, but not follow it.
    let third = first.standby(&[("recovery_target_timeline", "current")]);
    third.replay_all_of(&first);
    third.cut_off();
    let known = third.session().max_id("t");
    let mut ids = first.session().use_claims("t", 2);
    let second = first.standby(&[]);
    second.replay_all_of(&first);
    second.cut_off();
    ids.extend(first.session().use_claims("t", 2));
    first.kill_9();
    second.promote();
    let mut session = second.session();
    // The first one makes a claim, without a spare.
    let reached = session.next("t");
    assert_eq!(reached, known + (2 + 2) * 20);
    ids.push(reached);
    ids.extend(session.use_claims("t", 1));
    assert_eq!(session.max_id("t"), reached + 2 * 20);
    second.kill_9();
    third.learn_timelines_of(&second);
    third.promote();
    let mut session = third.session();
    let new = session.take("t", 200);
    assert_eq!(session.figure("t", "timeline"), 3);
    let first = new[0];
    assert_issued_once([ids, new]);
    assert_eq!(first, reached + 2 * 20, "nothing more is skipped");
}

/// Its rows are still from the previous timeline, and both timelines have lost claims.
#[test]
fn a_promotion_after_which_nothing_was_claimed_counts_too() {
    let tags = [("t", 20, 20), ("growing", 20, 100_000)];
    let (first, second) = pair_that_parts(&tags, &[]);
    let mut old = tags.map(|(tag, ..)| first.session().use_claims(tag, 2));
    first.kill_9();
    second.promote();
    let third = second.standby(&[]);
    third.replay_all_of(&second);
    third.cut_off();
    let mut session = second.session();
    for ((tag, ..), old) in tags.iter().zip(&mut old) {
        // The first one makes a claim, without a spare.
        old.push(session.next(tag));
        old.extend(session.use_claims(tag, 1));
    }
    second.kill_9();
    third.promote();
    let mut session = third.session();
    for ((tag, ..), mut old) in tags.iter().zip(old) {
        old.extend(session.take(tag, 500));
        assert_issued_once([old]);
    }
}

/// pg_rewind copies the files of the other server, and removes claims that only this one had.
#[test]
fn an_old_primary_that_was_rewound_and_comes_back_repeats_nothing() {
    let tags = [("t", 20, 20)];
    // Requirements of pg_rewind.
    let rewind = [("wal_log_hints", "on"), ("wal_keep_size", "128MB")];
    let conf = [SNOWFLAKE, rewind].concat();
    let (first, second) = pair_that_parts(&tags, &conf);
    let mut session = first.session();
    let mut ids = session.use_claims("t", 2);
    let mut snowflakes = vec![session.next_snowflake()];
    first.kill_9();
    second.promote();
    let mut session = second.session();
    ids.extend(session.take("t", 30));
    snowflakes.push(session.next_snowflake());
    first.rewind_and_follow(&second);
    first.replay_all_of(&second);
    first.cut_off();
    ids.extend(session.use_claims("t", 2));
    snowflakes.extend(session.ids("SELECT leaf_snowflake_next_batch(5000)"));
    second.kill_9();
    first.promote();
    let mut session = first.session();
    ids.extend(session.take("t", 100));
    snowflakes.push(session.next_snowflake());
    assert_issued_once([ids]);
    assert_issued_once([snowflakes]);
}

/// A switchover and back. Between them, the name is forgotten, and its row comes back from a dump, just
/// as it was when the old primary saved what it had cached: the timeline alone shows that ids were
/// issued since then.
#[test]
fn what_a_server_had_saved_is_not_issued_when_it_comes_back() {
    for timeline in ["its own", "3"] {
        let first = Server::with_leaf_id(&[]);
        let mut session = first.session();
        session.create_steady_tag("t", 20);
        let row: String =
            session.value("SELECT to_json(a)::text FROM leaf_id.leaf_alloc a WHERE biz_tag = 't'");
        let take = |session: &mut Session, count| {
            let ids = session.take("t", count);
            session.wait_for_spare("t");
            ids
        };
        take(&mut session, 3);
        // Connected, it gets the last of the WAL, without which the first one cannot follow it.
        let second = first.standby(&[]);
        second.replay_all_of(&first);
        drop(session);
        first.stop(Stop::Fast);
        second.promote();
        let mut session = second.session();
        session.run(&format!(
            "SELECT leaf_tag_drop('t', forget => true);
             INSERT INTO leaf_id.leaf_alloc
             SELECT * FROM json_populate_record(NULL::leaf_id.leaf_alloc, $json${row}$json$)"
        ));
        let mut ids = take(&mut session, 18);
        let saved = first.data_dir().join("leaf_id_saved_ranges.json");
        if timeline != "its own" {
            edit_json(&saved, "timeline", timeline);
        }
        first.follow(&second);
        first.replay_all_of(&second);
        drop(session);
        second.stop(Stop::Fast);
        assert!(saved.exists());
        first.promote();
        ids.extend(first.session().take("t", 60));
        assert!(!saved.exists());
        ids.sort_unstable();
        let count = ids.len();
        ids.dedup();
        assert_eq!(ids.len() == count, timeline == "its own", "{timeline}");
    }
}
