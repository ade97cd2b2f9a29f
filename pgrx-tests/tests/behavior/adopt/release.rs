//! Would catch: a column that comes back from a tag below ids that were issued, without what it
//! needs, or with a tag that others still use gone.

use leaf_id_tests::Fleet;

use super::{assert_told, server};

#[test]
fn it_goes_on_above_everything_that_was_issued() {
    let server = server();
    let mut session = server.session();
    for definition in [
        "serial PRIMARY KEY",
        "bigint GENERATED ALWAYS AS IDENTITY",
        "smallint",
        "whole NOT NULL",
    ] {
        session.run("DROP DOMAIN IF EXISTS whole CASCADE; CREATE DOMAIN whole AS int");
        session.run(&format!(
            "DROP TABLE IF EXISTS t; CREATE TABLE t (id {definition})"
        ));
        session.run("SELECT leaf_adopt('t', 'id', step => 50); INSERT INTO t DEFAULT VALUES");
        let issued = *session.take("t", 30).last().unwrap();
        session.run("SELECT leaf_release('t', 'id')");
        let id: i64 = session.value("INSERT INTO t DEFAULT VALUES RETURNING id::bigint");
        assert!(id > issued, "{definition}: {id}");
        // An identity needs NOT NULL and a plain type; the rest gets what a serial has.
        let identities = session.ids("SELECT count(*) FROM pg_attribute WHERE attrelid = 't'::regclass AND attidentity = 'd'");
        let plain = !definition.starts_with("smallint") && !definition.starts_with("whole");
        assert_eq!(identities, [i64::from(plain)], "{definition}");
        let sequence: String = session.value("SELECT pg_get_serial_sequence('t', 'id')");
        assert_eq!(sequence, "public.t_id_seq");
        let max: i64 =
            session.value("SELECT max_value FROM pg_sequences WHERE sequencename = 't_id_seq'");
        let most = if definition.starts_with("smallint") {
            32_767
        } else if definition.starts_with("bigint") {
            i64::MAX
        } else {
            2_147_483_647
        };
        assert_eq!(max, most);
        // Whoever asks for an id of it gets none that could collide.
        assert_eq!(session.try_next("t").unwrap_err().state, "42704");
        session.run("INSERT INTO t (id) VALUES (30000); SELECT leaf_adopt('t', 'id', step => 5)");
        assert_eq!(
            session.ids("INSERT INTO t DEFAULT VALUES RETURNING id::bigint"),
            [30_001]
        );
        session.run("INSERT INTO t (id) VALUES (31000); SELECT leaf_release('t', 'id')");
        assert_eq!(
            session.ids("INSERT INTO t DEFAULT VALUES RETURNING id::bigint"),
            [31_001]
        );
    }
    assert!(server.log().contains(r#"LOG:  leaf_id: column "id" of table public.t takes its ids from an identity, from 31001 on"#));
}

#[test]
fn a_tag_of_other_columns_and_a_sequence_that_was_left_stay() {
    let server = server();
    let mut session = server.session();
    session.run(
        "CREATE TABLE t (id bigserial PRIMARY KEY); CREATE TABLE u (id bigserial);
         CREATE TABLE w (n bigint DEFAULT nextval('t_id_seq')); INSERT INTO t DEFAULT VALUES;
         SELECT leaf_adopt('t', 'id'); SELECT leaf_adopt('u', 'id', 't')",
    );
    session.run("INSERT INTO t DEFAULT VALUES; INSERT INTO w DEFAULT VALUES; SELECT leaf_release('t', 'id')");
    assert_told(
        &server,
        r#"tag "t" stays, as other columns use it: public.u.id"#,
    );
    // The sequence that w needs is that of t again.
    let first: i64 = session.value("INSERT INTO t DEFAULT VALUES RETURNING id");
    assert_eq!(
        session.ids("INSERT INTO w DEFAULT VALUES RETURNING n"),
        [first + 1]
    );
    assert!(first > 1_000_002);
    session.run("INSERT INTO u DEFAULT VALUES; SELECT leaf_release('u', 'id')");
    assert_eq!(session.ids("SELECT count(*) FROM leaf_id.leaf_alloc"), [0]);
    // A tag that is gone, after a restore of the schema alone, does not stop it.
    session.run("SELECT leaf_adopt('u', 'id'); DELETE FROM leaf_id.leaf_alloc; SELECT leaf_release('u', 'id')");
    session.run("INSERT INTO u DEFAULT VALUES");
}

#[test]
fn an_exhausted_tag_cannot_go_back() {
    let server = server();
    let mut session = server.session();
    session.run("CREATE TABLE t (id smallserial); INSERT INTO t VALUES (32766); SELECT leaf_adopt('t', 'id')");
    assert_eq!(
        session.ids("INSERT INTO t DEFAULT VALUES RETURNING id::bigint"),
        [32_767]
    );
    session.fails("INSERT INTO t DEFAULT VALUES").is("2200H");
    session
        .fails("SELECT leaf_release('t', 'id')")
        .is("2200H")
        .says("no ids are left");
}

/// Nobody here knows which ids the other members have.
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

#[test]
fn whoever_may_insert_may_use_a_sequence_that_was_left() {
    let server = server();
    let mut session = server.session();
    session.run(
        "CREATE ROLE writer LOGIN; CREATE TABLE t (id bigserial, n int); GRANT INSERT ON t TO writer;
         CREATE VIEW v AS SELECT last_value FROM t_id_seq; SELECT leaf_adopt('t', 'id')",
    );
    let mut writer = server.connect_as("writer", "postgres");
    writer.run("INSERT INTO t (n) VALUES (1)");
    session.run("SELECT leaf_release('t', 'id')");
    writer.run("INSERT INTO t (n) VALUES (2)");
    assert_told(
        &server,
        "roles that may insert into table public.t may use sequence public.t_id_seq",
    );
    assert_eq!(
        session.ids("SELECT id - (SELECT last_value FROM v) FROM t WHERE n = 2"),
        [0]
    );
}
