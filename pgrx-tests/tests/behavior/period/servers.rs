//! Would catch: a number twice after a promotion (I3), from another member of a fleet, after a
//! restart, a crash or a restore; numbers of a period that has ended given back by a restart (I6);
//! and a member that looks at its own calendar.

use std::time::Duration;

use leaf_id_tests::{
    CENTRAL, Call, Server, Session, assert_in_order, assert_issued_once, in_threads, tell,
};

use super::{AFTER, BEFORE, DAY_MS, MIDNIGHT_MS, NUMBERS, create_daily, parts, server_at, set_to};

fn create_and_use(server: &Server, tags: &[&str]) {
    let mut session = server.session();
    for tag in tags {
        create_daily(&mut session, tag, 20, 20);
        session.take(tag, 3);
        session.wait_for_spare(tag);
    }
}

/// The old primary's clock is ahead: it issues numbers of a day that the standby has not heard of.
#[test]
fn a_promoted_server_repeats_no_number_of_a_period_that_had_begun() {
    let primary = server_at(MIDNIGHT_MS - 600_000, &[]);
    let tags = ["after", "around", "away"];
    create_and_use(&primary, &tags);
    let standby = primary.backup().with_clock(0);
    let standby = standby.start_standby(&primary, &[]);
    set_to(&standby.clock(), MIDNIGHT_MS - 2000);
    standby.replay_all_of(&primary);
    standby.cut_off();
    set_to(&primary.clock(), MIDNIGHT_MS + 1000);
    let mut session = primary.session();
    let mut ids: Vec<Vec<i64>> = tags.iter().map(|tag| session.take(tag, 30)).collect();
    assert!(ids.iter().all(|ids| parts(ids[29]).0 == AFTER));
    primary.kill_9();
    standby.promote();
    set_to(&standby.clock(), MIDNIGHT_MS - 4500);
    let mut session = standby.session();
    // Its first claim here is of the day before; the new one begins soon after.
    let around = session.next("around");
    assert_eq!(parts(around).0, BEFORE);
    ids[1].splice(..0, [around]);
    set_to(&standby.clock(), MIDNIGHT_MS + 10);
    for (tag, ids) in tags[..2].iter().zip(&mut ids) {
        let new = session.take(tag, 100);
        // Twice what 2 claims of 20 can have taken.
        assert_eq!(new[0], AFTER * NUMBERS + 1 + 2 * 40, "{tag}");
        ids.extend(new);
        ids.sort_unstable();
    }
    assert_issued_once(&ids[..1]);
    assert_issued_once(&ids[1..2]);
    // The next day begins in peace, and for a tag that was not used in between a later one too,
    // but for what its first claim on this timeline leaves out.
    set_to(&standby.clock(), MIDNIGHT_MS + DAY_MS + 10);
    assert_eq!(session.next("after"), (AFTER + 1) * NUMBERS + 1);
    assert_eq!(session.next("away"), (AFTER + 1) * NUMBERS + 81);
}

/// What an edit leaves out on a new timeline is of the old day too, and not of the next one.
#[test]
fn an_edit_after_a_promotion_does_not_begin_the_next_day() {
    let primary = server_at(MIDNIGHT_MS - 600_000, &[]);
    create_and_use(&primary, &["t"]);
    primary.session().run(&format!(
        "UPDATE leaf_id.leaf_alloc SET max_id = {} WHERE biz_tag = 't'",
        AFTER * NUMBERS - 10
    ));
    let standby = primary.backup().with_clock(primary.clock().ahead_ms());
    let standby = standby.start_standby(&primary, &[]);
    standby.replay_all_of(&primary);
    standby.cut_off();
    primary.kill_9();
    standby.promote();
    let mut session = standby.session();
    session.run("UPDATE leaf_id.leaf_alloc SET description = 'x' WHERE biz_tag = 't'");
    session.fails("SELECT leaf_segment_next('t')").is("2200H");
    // Ten minutes later: it begins in peace.
    set_to(&standby.clock(), MIDNIGHT_MS + 1000);
    assert_eq!(session.next("t"), AFTER * NUMBERS + 1);
}

/// What an edit leaves out goes by the limits that the missing claims had: of the day that begins, too.
#[test]
fn an_edit_of_the_limits_after_a_promotion_leaves_out_what_those_before_allowed() {
    let primary = server_at(MIDNIGHT_MS - 600_000, &[]);
    create_and_use(&primary, &["t"]);
    let standby = primary.backup().with_clock(primary.clock().ahead_ms());
    let standby = standby.start_standby(&primary, &[]);
    standby.replay_all_of(&primary);
    standby.cut_off();
    set_to(&primary.clock(), MIDNIGHT_MS + 1000);
    let mut ids = primary.session().take("t", 30);
    primary.kill_9();
    set_to(&standby.clock(), MIDNIGHT_MS + 1000);
    standby.promote();
    let mut session = standby.session();
    session.run("UPDATE leaf_id.leaf_alloc SET step = 1, max_step = 1 WHERE biz_tag = 't'");
    ids.extend(session.take("t", 3));
    assert_eq!(ids[30], AFTER * NUMBERS + 1 + 2 * 40);
    assert_issued_once([ids]);
}

/// A second promotion loses what the first promoted server has claimed of the day.
#[test]
fn two_promotions_in_one_period_leave_out_more() {
    let first = server_at(MIDNIGHT_MS - 600_000, &[]);
    create_and_use(&first, &["t"]);
    let second = first.backup().with_clock(first.clock().ahead_ms());
    let second = second.start_standby(&first, &[]);
    second.replay_all_of(&first);
    second.cut_off();
    set_to(&first.clock(), MIDNIGHT_MS + 1000);
    let mut ids = first.session().take("t", 30);
    first.kill_9();
    second.promote();
    set_to(&second.clock(), MIDNIGHT_MS - 4500);
    let mut session = second.session();
    ids.push(session.next("t"));
    session.wait_for_spare("t");
    let third = second.backup().with_clock(second.clock().ahead_ms());
    let third = third.start_standby(&second, &[]);
    third.replay_all_of(&second);
    third.cut_off();
    set_to(&second.clock(), MIDNIGHT_MS + 1000);
    ids.extend(session.take("t", 30));
    drop(session);
    second.kill_9();
    set_to(&third.clock(), MIDNIGHT_MS + 1000);
    third.promote();
    let new = third.session().take("t", 100);
    assert_eq!(new[0], AFTER * NUMBERS + 1 + 2 * 2 * 40);
    ids.extend(new);
    ids.sort_unstable();
    assert_issued_once([ids]);
}

#[test]
fn a_restart_gives_back_what_has_not_ended_and_a_crash_repeats_nothing() {
    let server = server_at(MIDNIGHT_MS - DAY_MS / 2, &[]);
    let clock = server.clock();
    create_and_use(&server, &["t"]);
    server.restart();
    assert_eq!(server.session().next("t"), BEFORE * NUMBERS + 4);
    // The launcher may yet have saved what was cached, if its postmaster died first.
    server.crash();
    let after_crash = server.session().next("t");
    let (period, number) = parts(after_crash);
    assert!(
        period == BEFORE && (5..=61).contains(&number),
        "{after_crash}"
    );
    server.session().wait_for_spare("t");
    // Over the boundary, both while it is down and after it.
    server.stop(leaf_id_tests::Stop::Fast);
    set_to(&clock, MIDNIGHT_MS + 1000);
    server.launch();
    let mut session = server.session();
    assert_eq!(session.next("t"), AFTER * NUMBERS + 1);
    session.wait_for_spare("t");
    drop(session);
    server.restart();
    set_to(&clock, MIDNIGHT_MS + DAY_MS + 1000);
    assert_eq!(server.session().next("t"), (AFTER + 1) * NUMBERS + 1);
}

#[test]
fn a_dump_brings_the_period_along() {
    let server = server_at(MIDNIGHT_MS - DAY_MS / 2, &[]);
    create_and_use(&server, &["t"]);
    let dump = server.dir().join("dump.sql");
    let dump = dump.to_str().unwrap();
    server.run("pg_dump", &["-f", dump, "postgres"]);
    server.session().run("CREATE DATABASE copy");
    server.run(
        "psql",
        &["-Xq", "-v", "ON_ERROR_STOP=1", "-d", "copy", "-f", dump],
    );
    let mut session = server.session_in("copy");
    let (period, number) = parts(session.next("t"));
    assert!(period == BEFORE && number > 3, "{period} {number}");
    set_to(&server.clock(), MIDNIGHT_MS + 1000);
    assert_eq!(session.next("t"), AFTER * NUMBERS + 1);
}

/// The calendar is the central server's, whatever the members' clocks show.
#[test]
fn members_go_over_a_boundary_with_their_source() {
    let central = server_at(MIDNIGHT_MS - 600_000, &[]);
    central.admit_members();
    create_daily(&mut central.session(), "t", 50, 500);
    let members = [-40 * DAY_MS, 3 * DAY_MS].map(|off_ms| {
        let number = if off_ms < 0 { 1 } else { 2 };
        let ahead_ms = central.clock().ahead_ms() + off_ms;
        let member = Server::start_unrelated_with_clock(number, ahead_ms, &[]);
        member.source_from(&[central.dir()]);
        member.session().create_sourced_tag("t", 50, 500);
        member
    });
    let mut sessions: Vec<Session> = members.iter().map(Server::session).collect();
    // Nothing is cached yet: what a member was told holds by a clock that is not set.
    let clock = central.clock();
    set_to(&clock, MIDNIGHT_MS - 8000);
    for session in &mut sessions {
        assert_eq!(parts(session.next("t")).0, BEFORE);
    }
    let takes = in_threads(8, |i| {
        let mut session = members[i % 2].session();
        let mut calls = Vec::new();
        while clock.now_ms() < MIDNIGHT_MS + 1500 {
            let began_ms = clock.now_ms();
            let mut ids = Vec::new();
            let call = Call::make(|| {
                ids = session.take("t", 5);
                ids.clone()
            });
            calls.push((began_ms, call, ids));
        }
        calls
    });
    assert_issued_once(takes.iter().map(|calls| {
        let ids = calls.iter().flat_map(|(_, _, ids)| ids.clone());
        ids.collect::<Vec<i64>>()
    }));
    let mut latest = i64::MIN;
    for member in 0..2 {
        let of_member = takes.iter().skip(member).step_by(2).flatten();
        assert_in_order(of_member.map(|(_, call, _)| *call).collect());
    }
    for (began_ms, call, _) in takes.iter().flatten() {
        if parts(call.first).0 == BEFORE {
            latest = latest.max(began_ms - MIDNIGHT_MS);
        }
        assert!([BEFORE, AFTER].contains(&parts(call.last).0));
    }
    assert!(
        takes
            .iter()
            .all(|calls| parts(calls.last().unwrap().1.last).0 == AFTER)
    );
    tell(&format!(
        "period: the last call of a member with the old day began {latest} ms after midnight"
    ));
    assert!(
        latest <= 2000,
        "{latest} ms: it counts from when the answer has come"
    );
    // What is used up there is so here, until the next day.
    central.session().run(&format!(
        "UPDATE leaf_id.leaf_alloc SET max_id = {} WHERE biz_tag = 't'",
        (AFTER + 1) * NUMBERS
    ));
    let mut refused = None;
    leaf_id_tests::wait_until(Duration::from_secs(30), "the end of the numbers", || {
        refused = sessions[0].try_take("t", 500).err();
        refused.is_some()
    });
    refused.unwrap().is("2200H").says(CENTRAL);
    set_to(&clock, MIDNIGHT_MS + DAY_MS + 100);
    let mut id = 0;
    leaf_id_tests::wait_until(Duration::from_secs(30), "the next day", || {
        id = sessions[0].try_next("t").unwrap_or(0);
        id > 0
    });
    assert_eq!(id, (AFTER + 1) * NUMBERS + 1);
    // A restart of a member gives nothing back that would end by a clock that it cannot know.
    members[0].restart();
    let after = members[0].session().next("t");
    assert!(after > id, "{after}");
}
