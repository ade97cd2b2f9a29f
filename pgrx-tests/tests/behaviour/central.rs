//! Would catch: an id that two members of a fleet issue (I3), a member whose ids go down
//! (I4), a claim that is used although the row here or there was edited meanwhile, and a
//! member that tells the password.

use leaf_id_tests::{Fleet, Session, assert_issued_once, in_threads};

/// Sessions of each member.
const SESSIONS: usize = 4;

/// How a member stands with the centre, and why that is away.
fn link(session: &mut Session) -> (String, Option<String>) {
    (
        session.value("SELECT state FROM leaf_central_status"),
        session.value("SELECT last_error FROM leaf_central_status"),
    )
}

#[test]
fn three_members_share_one_tag() {
    let fleet = Fleet::new(3, &[]);
    fleet.create_tag("t", 100, 1_000_000);
    let drawn = in_threads(fleet.members.len() * SESSIONS, |i| {
        let member = &fleet.members[i % fleet.members.len()];
        let mut session = member.session();
        let mut ids = Vec::new();
        while ids.len() < 50_000 {
            let more = session.take("t", [50, 100, 333, 2500][i / fleet.members.len()]);
            // I4, as one session sees it.
            assert!(
                more.first() > ids.last(),
                "{:?} after {:?}",
                more[0],
                ids.last()
            );
            ids.extend(more);
        }
        ids
    });
    assert_issued_once(&drawn);
    // Nobody had them to himself.
    let claimed = fleet.centre.session().max_id("t");
    println!("claimed up to {claimed}");
    for mut session in fleet.sessions() {
        let of_it: i64 = session.figure("t", "refills");
        assert!(of_it > 2, "{of_it}");
        let last_error = session
            .value::<Option<String>>("SELECT last_error FROM leaf_segment_status WHERE tag = 't'");
        assert_eq!(last_error, None);
        let (state, last_error) = link(&mut session);
        assert!(["connected", "closed"].contains(&&*state), "{state}");
        assert_eq!(last_error, None);
    }
}
