//! Would catch: two servers of a fleet that issue an id both, because they do not have one key; and
//! a key that is handed to a role without the right to it.

use std::time::Duration;

use leaf_id_tests::{Fleet, Server, Session, wait_until};

use crate::opaque::{assert_distinct, assert_opaque, create};

const SOURCED: &str = ", server => 'leaf_central'";

fn fleet() -> Fleet {
    let fleet = Fleet::new(2, &[]);
    let mut central = fleet.central.session();
    central.run("GRANT EXECUTE ON FUNCTION leaf_id.leaf_key_of TO leaf_member");
    create(&mut central, "t", 100, "");
    for session in &mut fleet.sessions() {
        create(session, "t", 100, SOURCED);
    }
    fleet
}

fn key(session: &mut Session) -> String {
    session.value("SELECT leaf_id.leaf_key_of('t')")
}

/// Uses t until it has the key of the row that has this name at the center by now. (In between it may
/// have none.)
#[track_caller]
fn wait_for_key(session: &mut Session, central: &mut Session) {
    let number = "SELECT opaque_key FROM leaf_id.leaf_alloc WHERE biz_tag = 't'";
    wait_until(Duration::from_secs(30), "the other key", || {
        session.next("t");
        session.value::<i64>(number) == central.value::<i64>(number)
    });
}

#[test]
fn members_and_the_center_share_a_key() {
    let fleet = fleet();
    let mut ids = fleet.central.session().take("t", 250);
    for round in 0..3 {
        for member in &fleet.members {
            ids.extend(member.session().take("t", 250));
            // What it was handed survives it.
            match round {
                0 => member.restart(),
                1 => member.crash(),
                _ => {}
            }
        }
    }
    assert_distinct(&ids);
    let central = key(&mut fleet.central.session());
    for session in &mut fleet.sessions() {
        assert_eq!(key(session), central);
        let mine = session.take("t", 10);
        assert_opaque(session, "t", &mine);
        ids.extend(mine);
    }
    // The domain grows for all, although they have cached ids and know it as it was.
    let mut session = fleet.central.session();
    session.run("SELECT leaf_tag_reset('t', 9007199254740980)");
    session.run("UPDATE leaf_id.leaf_alloc SET max_value = 9007199256740991");
    for session in &mut fleet.sessions() {
        session.run("UPDATE leaf_id.leaf_alloc SET max_value = 9007199256740991");
    }
    for member in &fleet.members {
        let mine = member.session().take("t", 150);
        ids.extend(mine);
    }
    assert_distinct(&ids);
    // Created anew there, it has a new key, here too.
    fleet
        .central
        .session()
        .run("SELECT leaf_tag_drop('t'), leaf_tag_create('t', step => 100, max_step => 100, max_value => 9007199256740991, opaque => true)");
    let new = key(&mut fleet.central.session());
    assert_ne!(new, central);
    for session in &mut fleet.sessions() {
        wait_until(Duration::from_secs(30), "the new key", || {
            session.next("t");
            key(session) == new
        });
    }
}

#[test]
fn a_promoted_member_has_the_key() {
    let fleet = fleet();
    let [member, other] = &fleet.members[..] else {
        panic!("two members");
    };
    let mut ids = member.session().take("t", 150);
    ids.extend(other.session().take("t", 150));
    let standby = member.standby(&[]);
    standby.replay_all_of(member);
    member.kill_9();
    standby.promote();
    let mine = standby.session().take("t", 250);
    assert_opaque(&mut standby.session(), "t", &mine);
    ids.extend(mine);
    ids.extend(other.session().take("t", 150));
    assert_distinct(&ids);
}

/// The center's standby takes over, without the last claims of both members: it has the key, and
/// skips the numbers that became ids there.
#[test]
fn a_promoted_center_goes_on_with_the_key() {
    let central = Server::with_leaf_id(&[("leaf_id.failover_skip", "4")]);
    central.admit_members();
    let standby = central.standby(&[]);
    let mut session = central.session();
    session.run("GRANT EXECUTE ON FUNCTION leaf_id.leaf_key_of TO leaf_member");
    create(&mut session, "t", 100, "");
    let members = [1, 2].map(|number| {
        let member = Server::start_unrelated(number, &[]);
        member.source_from(&[central.dir(), standby.dir()]);
        create(&mut member.session(), "t", 100, SOURCED);
        member
    });
    // One of them has a key already; the other one asks the promoted server for it.
    let mut sessions: Vec<_> = members.iter().map(Server::session).collect();
    let mut ids = sessions[0].take("t", 3);
    sessions[0].wait_for_spare("t");
    standby.replay_all_of(&central);
    standby.cut_off();
    let known = standby.session().max_id("t");
    ids.extend(sessions[0].use_claims("t", 2));
    let lost = session.max_id("t") - known;
    assert!((100..=400).contains(&lost), "{lost} numbers are lost");
    let before = key(&mut session);
    central.kill_9();
    standby.promote();
    assert_eq!(key(&mut standby.session()), before);
    for session in &mut sessions {
        let mine = session.take("t", 500);
        assert_opaque(session, "t", &mine);
        ids.extend(mine);
        assert_eq!(key(session), before);
    }
    ids.extend(standby.session().take("t", 500));
    assert_distinct(&ids);
}

#[track_caller]
fn says(server: &Server, state: &str, text: &str) {
    let mut session = server.session();
    let failure = session.fails("SELECT leaf_segment_next('t')");
    failure.is(state).details(text);
}

#[test]
fn both_sides_must_say_that_it_is_opaque() {
    let fleet = Fleet::new(2, &[("leaf_id.refill_timeout", "3s")]);
    let mut central = fleet.central.session();
    let [member, other] = &fleet.members[..] else {
        panic!("two members");
    };
    create(&mut central, "t", 100, "");
    create(&mut member.session(), "t", 100, SOURCED);
    // leaf_claim alone is not the right to a key.
    says(
        member,
        "55P03",
        "permission denied for the key of opaque tag",
    );
    assert_eq!(
        member
            .session()
            .value::<i64>("SELECT count(*) FROM leaf_id.leaf_opaque_key"),
        0
    );
    central.run("GRANT EXECUTE ON FUNCTION leaf_id.leaf_key_of TO leaf_member");
    wait_until(Duration::from_secs(30), "ids", || {
        member.session().try_next("t").is_ok()
    });
    // Numbers must not be taken for ids, nor ids for numbers.
    other
        .session()
        .run("SELECT leaf_tag_create('t', server => 'leaf_central')");
    says(
        other,
        "55000",
        "opaque on server \"leaf_central\", and not here",
    );
    central.run("SELECT leaf_tag_drop('t'), leaf_tag_create('t')");
    other.session().run("SELECT leaf_tag_drop('t')");
    create(&mut other.session(), "t", 100, SOURCED);
    says(other, "55000", "opaque here, and not on server");
    // Ids may be as large as the domain is there.
    central.run("SELECT leaf_tag_drop('t'), leaf_tag_create('t', opaque => true, max_value => 9007199254740993)");
    other.session().run("SELECT leaf_tag_drop('t')");
    create(&mut other.session(), "t", 100, SOURCED);
    other
        .session()
        .fails("SELECT leaf_segment_next('t')")
        .is("2200H");
    // A tag does not change its source with its key.
    central.fails("UPDATE leaf_id.leaf_alloc SET server = 'nowhere'");
}

/// Names that change places at the center take their keys along. A member that has both tags goes on.
#[test]
fn tags_that_change_names_at_the_center_go_on() {
    let fleet = Fleet::new(1, &[]);
    let mut central = fleet.central.session();
    central.run("GRANT EXECUTE ON FUNCTION leaf_id.leaf_key_of TO leaf_member");
    let member = &fleet.members[0];
    let mut session = member.session();
    for tag in ["t", "u"] {
        create(&mut central, tag, 10, "");
        create(&mut session, tag, 10, SOURCED);
    }
    // What one row permutes is one name's here, and then the other's.
    let mut ids = [session.take("t", 25), session.take("u", 25)];
    central.run(
        "UPDATE leaf_id.leaf_alloc SET biz_tag = 'x' WHERE biz_tag = 't';
         UPDATE leaf_id.leaf_alloc SET biz_tag = 't' WHERE biz_tag = 'u';
         UPDATE leaf_id.leaf_alloc SET biz_tag = 'u' WHERE biz_tag = 'x'",
    );
    wait_for_key(&mut session, &mut central);
    let [t, u] = &mut ids;
    u.extend(session.take("t", 50));
    assert_distinct(u);
    wait_until(Duration::from_secs(30), "ids of the other tag", || {
        session.try_next("u").is_ok()
    });
    session.take("u", 25);
    t.extend(session.take("u", 50));
    assert_distinct(t);
}

/// The numbers that are cached of a row that has lost its key are dropped at once: a session that
/// cannot make ids of them does not take them one by one.
#[test]
fn a_row_that_has_lost_its_key_is_asked_for_anew() {
    let fleet = Fleet::new(1, &[]);
    let mut central = fleet.central.session();
    central.run("GRANT EXECUTE ON FUNCTION leaf_id.leaf_key_of TO leaf_member");
    let member = &fleet.members[0];
    let mut session = member.session();
    for (tag, step) in [("t", 10), ("u", 20_000)] {
        create(&mut central, tag, step, "");
        create(&mut session, tag, step, SOURCED);
    }
    session.take("t", 25);
    session.next("u");
    session.wait_for_spare("u");
    central.run(
        "UPDATE leaf_id.leaf_alloc SET biz_tag = 'x' WHERE biz_tag = 't';
         UPDATE leaf_id.leaf_alloc SET biz_tag = 't' WHERE biz_tag = 'u';
         UPDATE leaf_id.leaf_alloc SET biz_tag = 'u' WHERE biz_tag = 'x'",
    );
    wait_for_key(&mut session, &mut central);
    // It knows nothing of the tag yet.
    let mut other = member.session();
    wait_until(Duration::from_secs(30), "an id of the other row", || {
        other.try_next("u").is_ok()
    });
    let [issued, lost] = ["ids_issued", "ids_lost"].map(|figure| other.figure("u", figure));
    assert!(
        issued < 100 && lost > 10_000,
        "{issued} issued, {lost} lost"
    );
}

/// What was permuted one way is not permuted another way by the same key.
#[test]
fn a_center_that_permutes_otherwise_than_before_is_refused() {
    let central = Server::with_leaf_id(&[("leaf_id.failover_skip", "0")]);
    central.admit_members();
    let standby = central.standby(&[]);
    let mut session = central.session();
    session.run("GRANT EXECUTE ON FUNCTION leaf_id.leaf_key_of TO leaf_member");
    create(&mut session, "t", 1000, ", max_value => 1000000");
    session.run("UPDATE leaf_id.leaf_alloc SET max_id = 999001");
    let member = Server::start_unrelated(1, &[]);
    member.source_from(&[central.dir(), standby.dir()]);
    let mut mine = member.session();
    create(&mut mine, "t", 1000, SOURCED);
    mine.run("UPDATE leaf_id.leaf_alloc SET max_value = 9007199254740991");
    standby.replay_all_of(&central);
    standby.cut_off();
    session.run("UPDATE leaf_id.leaf_alloc SET max_value = 2000000");
    let mut ids = mine.take("t", 3000);
    central.kill_9();
    standby.promote();
    let mut session = standby.session();
    session.run("UPDATE leaf_id.leaf_alloc SET max_value = 3000000, max_id = 1500000");
    wait_until(Duration::from_secs(60), "the refusal", || {
        match mine.try_next("t") {
            Ok(id) => ids.push(id),
            Err(failure) if failure.detail.contains("in another way") => return true,
            // It looks for the center yet, or has asked it before the edit.
            Err(failure) => assert!(["55P03", "55000"].contains(&&*failure.state), "{failure}"),
        }
        false
    });
    assert_distinct(&ids);
}
