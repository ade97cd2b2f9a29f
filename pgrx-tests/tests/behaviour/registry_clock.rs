//! Would catch: a server that issues snowflake ids with a clock that is off from that of the
//! worker registry or of the other servers; one that is refused though its clock is right,
//! because the registry was slow; and one that stays refused when it is right again.

use std::time::Duration;

use leaf_id_tests::{Failure, Fleet, LINK, Server, Session, assert_issued_once, wait_until};

const LIMIT: Duration = Duration::from_secs(60);
const CONF: [(&str, &str); 2] = [
    ("leaf_id.timestamp_reservation", "200ms"),
    ("leaf_id.worker_lease", "6s"),
];
const OFF: &str = "refused: clock is off";

/// A centre, and members with clocks of their own, so far ahead.
fn fleet(ahead_ms: &[i64]) -> Fleet {
    let centre = Server::with_leaf_id(&[]);
    centre.admit_members();
    centre.lease_worker_ids();
    let members = (1..).zip(ahead_ms).map(|(number, ahead_ms)| {
        let member = Server::start_unrelated_with_clock(number, *ahead_ms, &CONF);
        member.feed_from(&[centre.dir()]);
        member
    });
    Fleet {
        members: members.collect(),
        centre,
    }
}

fn state(session: &mut Session) -> String {
    session.value("SELECT state FROM leaf_snowflake_status")
}

#[track_caller]
fn refusal(session: &mut Session) -> Failure {
    wait_until(LIMIT, "the refusal", || state(session) == OFF);
    let failure = session.fails("SELECT leaf_snowflake_next()");
    println!("{failure}");
    failure.is("55000").hints("leaf_id.max_clock_skew");
    failure
}

#[test]
fn two_seconds_off_at_start() {
    for ahead_ms in [2000, -2000] {
        let fleet = fleet(&[ahead_ms]);
        let member = &fleet.members[0];
        member.lease_from_link("m1");
        let mut session = member.session();
        let failure = refusal(&mut session);
        failure.says(if ahead_ms > 0 { "ahead" } else { "behind" });
        failure.details("registry");
        let shown: bool = session.value(&format!(
            "SELECT clock_offset_ms BETWEEN {ahead_ms} - 900 AND {ahead_ms} + 900
                 AND last_error LIKE '%clock is%' FROM leaf_snowflake_status"
        ));
        assert!(shown);
        // It is asked again every second.
        member.clock().set(0);
        let id = session.next_snowflake();
        let leased: bool = session.value("SELECT last_error IS NULL FROM leaf_snowflake_status");
        assert!(leased);
        assert!(id > 0);
        let log = member.log();
        assert!(log.contains("grants no worker id: the clock is"), "{log}");
        assert!(log.contains("has granted worker id 0"));
    }
}

#[test]
fn two_seconds_off_while_running_until_it_is_right() {
    let fleet = fleet(&[0]);
    let member = &fleet.members[0];
    member.lease_from_link("m1");
    let mut session = member.session();
    let mut ids = vec![session.next_snowflake()];
    let clock = member.clock();
    for ahead_ms in [2000, -2000] {
        clock.set(ahead_ms);
        refusal(&mut session);
        let recorded = "SELECT reserved_until_ms FROM leaf_worker WHERE node_name = 'm1'";
        let mut centre = fleet.centre.session();
        let before: i64 = centre.value(recorded);
        // A clock that is off does not push on what is reserved.
        assert_eq!(state(&mut session), OFF);
        assert_eq!(centre.value::<i64>(recorded), before);
        clock.set(0);
        // Nobody asks for an id meanwhile: the registry is asked all the same.
        wait_until(LIMIT, "the end of the refusal", || {
            state(&mut session) != OFF
        });
        ids.push(session.next_snowflake());
    }
    assert_issued_once([ids]);
}

#[test]
fn a_slow_registry_is_no_skew() {
    let fleet = fleet(&[0]);
    let member = &fleet.members[0];
    member.lease_from_link("m1");
    let mut session = member.session();
    let mut ids = vec![session.next_snowflake()];
    let mut centre = fleet.centre.session();
    let renewed = "SELECT renewed_at::text FROM leaf_worker WHERE node_name = 'm1'";
    for _ in 0..3 {
        let before: String = centre.value(renewed);
        let frozen = fleet.centre.freeze();
        std::thread::sleep(Duration::from_secs(3));
        drop(frozen);
        wait_until(LIMIT, "a renewal", || {
            ids.extend(session.ids("SELECT leaf_snowflake_next()"));
            centre.value::<String>(renewed) != before
        });
    }
    assert_issued_once([ids]);
    assert!(!member.log().contains("clock is"), "{}", member.log());
}

/// Each is within a second of the registry, and one is not of the others.
#[test]
fn off_from_the_peers_alone() {
    let fleet = fleet(&[700, 700, -700]);
    for (number, member) in (1..).zip(&fleet.members) {
        if number < 3 {
            member.lease_from_link(&format!("m{number}"));
            member.session().next_snowflake();
        }
    }
    let last = &fleet.members[2];
    last.lease_from_link("m3");
    let mut session = last.session();
    let failure = refusal(&mut session);
    failure.says("behind").details("average of 2 other servers");
    let shown: bool = session.value(
        "SELECT abs(clock_offset_ms) < 1000 AND peers_offset_ms > 0 FROM leaf_snowflake_status",
    );
    assert!(shown);
    last.clock().set(0);
    session.next_snowflake();
    assert!(!last.log().contains(&format!("{LINK}\" does not answer")));
}
