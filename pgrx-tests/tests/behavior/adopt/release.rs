//! Would catch: releasing a column from a tag whose ids other servers have, too.

use leaf_id_tests::Fleet;

/// This server does not know which ids the other members have.
#[test]
fn a_sourced_tag_cannot_go_back() {
    let fleet = Fleet::new(2, &[]);
    fleet.create_tag("t", 10, 10);
    let mut sessions = fleet.sessions();
    let mut here = sessions.remove(0);
    here.run("CREATE TABLE t (id bigint PRIMARY KEY DEFAULT leaf_segment_next('t')); INSERT INTO t DEFAULT VALUES");
    sessions[0].take("t", 200);
    here.wait_for_spare("t");
    let before: String = here.value("SELECT t::text FROM leaf_id.leaf_alloc t");
    here.fails("SELECT leaf_release('t', 'id')")
        .is("55000")
        .says(r#"cannot release column "id" of table public.t from tag "t", which is sourced from server "leaf_central""#)
        .details("Other servers have ids of it");
    assert_eq!(
        here.value::<String>("SELECT t::text FROM leaf_id.leaf_alloc t"),
        before
    );
    here.run("INSERT INTO t DEFAULT VALUES");
    assert_eq!(
        here.value::<String>(
            "SELECT column_default::text FROM information_schema.columns WHERE table_name = 't'"
        ),
        "leaf_segment_next('t'::text)"
    );
}
