//! Would catch: two servers of a fleet that issue the same id because their keys differ.

use leaf_id_tests::{CENTRAL, Fleet, Server, Session};

use crate::opaque::{assert_distinct, assert_opaque, create, decoded, take};

/// Imports another server's key on a member.
fn import(member: &Server, key: &str) -> Session {
    let mut session = member.session();
    session.be_patient();
    create(
        &mut session,
        "t",
        100,
        &format!(", server => '{CENTRAL}', key => '{key}'"),
    );
    session
}

/// The center counts without a key. Its standby takes over without the last claims of a member, and
/// a member's standby takes over with the key.
#[test]
fn members_with_one_key_share_a_tag_over_failovers() {
    let central = Server::with_leaf_id(&[("leaf_id.failover_skip", "8")]);
    central.admit_members();
    let standby = central.standby(&[]);
    let mut center = central.session();
    center.run("SELECT leaf_tag_create('t', step => 100, max_step => 100)");
    // The key's owner creates it where it is not in use.
    create(&mut center, "kept", 100, "");
    let key: String = center.value("SELECT leaf_id.leaf_opaque_key('kept')");
    let members = [1, 2].map(|number| {
        let member = Server::start_unrelated(number, &[]);
        member.source_from(&[central.dir(), standby.dir()]);
        import(&member, &key);
        member
    });
    let mut ids = Vec::new();
    for round in 0..3 {
        for member in &members {
            let mut session = member.session();
            let mine = take(&mut session, "t", 250);
            assert_opaque(&mut session, "t", &mine);
            ids.extend(mine);
            match round {
                0 => member.restart(),
                1 => member.crash(),
                _ => {}
            }
        }
    }
    let mut sessions: Vec<_> = members.iter().map(Server::session).collect();
    sessions[0].wait_for_spare("t");
    standby.replay_all_of(&central);
    standby.cut_off();
    let known = standby.session().max_id("t");
    ids.extend(sessions[0].use_claims_with("t", 2, |session, count| take(session, "t", count)));
    let lost = center.max_id("t") - known;
    assert!((100..=800).contains(&lost), "{lost} numbers are lost");
    central.kill_9();
    standby.promote();
    for session in &mut sessions {
        session.be_patient();
        let mine = take(session, "t", 500);
        assert_opaque(session, "t", &mine);
        ids.extend(mine);
    }
    let [member, _] = &members;
    let promoted = member.standby(&[]);
    promoted.replay_all_of(member);
    member.kill_9();
    promoted.promote();
    for session in [&mut promoted.session(), &mut sessions[1]] {
        session.be_patient();
        ids.extend(take(session, "t", 250));
    }
    assert_distinct(&ids);
    // All members use one key, so their ids decode to distinct numbers counted by the center.
    let numbers = decoded(&mut sessions[1], "t", &ids);
    assert_distinct(&numbers);
    let end = standby.session().max_id("t");
    assert!(numbers.iter().all(|number| (1..end).contains(number)));
}

/// A server with the key may issue opaque ids, so as a center it would issue some of them twice.
#[test]
fn a_center_with_a_key_gives_members_no_numbers() {
    let fleet = Fleet::new(1, &[("leaf_id.refill_timeout", "3s")]);
    let mut central = fleet.central.session();
    create(&mut central, "t", 100, "");
    let key: String = central.value("SELECT leaf_id.leaf_opaque_key('t')");
    let mut session = import(&fleet.members[0], &key);
    session.run("SET leaf_id.refill_timeout = '3s'");
    session
        .fails("SELECT leaf_opaque_next('t')")
        .is("55P03")
        .details("the ids of tag \"t\" are opaque");
    assert_eq!(central.max_id("t"), 1);
}
