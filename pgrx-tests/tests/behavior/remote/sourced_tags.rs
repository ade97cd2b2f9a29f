//! Would catch: a tag sourced from a server that the editor may not use, one that loses its server
//! and thereby the record of ids issued by others, or one that starts at the wrong id. No
//! connection is made here.

use leaf_id_tests::{Server, Session};

/// A server with two unreachable foreign servers.
fn server(conf: &[(&str, &str)]) -> (Server, Session) {
    let server = Server::with_leaf_id(conf);
    let mut session = server.session();
    session.run(
        "CREATE EXTENSION dblink;
         CREATE SERVER leaf_central FOREIGN DATA WRAPPER dblink_fdw OPTIONS (host '/nowhere');
         CREATE SERVER other FOREIGN DATA WRAPPER dblink_fdw OPTIONS (host '/nowhere')",
    );
    (server, session)
}

/// A tag's server, its `server_incarnation` and its `max_id`.
fn row(session: &mut Session, tag: &str) -> (Option<String>, i64, i64) {
    let row = session
        .query_one(
            "SELECT server::text, server_incarnation, max_id FROM leaf_id.leaf_alloc WHERE biz_tag = $1",
            &[&tag],
        )
        .unwrap();
    (row.get(0), row.get(1), row.get(2))
}

fn sourced(server: &str, max_id: i64) -> (Option<String>, i64, i64) {
    (Some(server.into()), 0, max_id)
}

/// Sets a column that only leaf_id writes, in the same way.
fn set_server_incarnation(session: &mut Session, tag: &str, incarnation: i64) {
    session.run(&format!(
        "ALTER TABLE leaf_id.leaf_alloc DISABLE TRIGGER leaf_alloc_stamp;
         UPDATE leaf_id.leaf_alloc SET server_incarnation = {incarnation} WHERE biz_tag = '{tag}';
         ALTER TABLE leaf_id.leaf_alloc ENABLE ALWAYS TRIGGER leaf_alloc_stamp"
    ));
}

#[test]
fn dml_feeds_a_tag_too() {
    let (_server, mut session) = server(&[]);
    session.run(
        "INSERT INTO leaf_id.leaf_alloc (biz_tag, server, server_incarnation) VALUES ('a', 'leaf_central', 7);
         INSERT INTO leaf_id.leaf_alloc (biz_tag, server_incarnation) VALUES ('b', 7);
         INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id) VALUES ('b', 50)
             ON CONFLICT (biz_tag) DO UPDATE SET server = 'other', max_id = excluded.max_id;
         SELECT leaf_tag_create('c', start => 5, server => 'other')",
    );
    assert_eq!(row(&mut session, "a"), sourced("leaf_central", 1));
    assert_eq!(row(&mut session, "b"), sourced("other", 50));
    assert_eq!(row(&mut session, "c"), sourced("other", 5));
    // Users cannot write it. After a rename, it is another row at the server.
    set_server_incarnation(&mut session, "a", 7);
    session
        .run("UPDATE leaf_id.leaf_alloc SET server_incarnation = 8, step = 5 WHERE biz_tag = 'a'");
    assert_eq!(row(&mut session, "a").1, 7);
    session.run("UPDATE leaf_id.leaf_alloc SET biz_tag = 'd' WHERE biz_tag = 'a'");
    assert_eq!(row(&mut session, "d").1, 0);
    session
        .fails("UPDATE leaf_id.leaf_alloc SET max_id = 1 WHERE biz_tag = 'c'")
        .is("55000");
}

#[test]
fn a_sourced_tag_needs_the_owner_of_its_server() {
    let (server, mut admin) = server(&[]);
    admin.run(
        "CREATE ROLE alice LOGIN; GRANT USAGE ON SCHEMA leaf_id TO alice; GRANT ALL ON leaf_id.leaf_alloc TO alice;
         GRANT EXECUTE ON FUNCTION leaf_tag_create, leaf_tag_drop TO alice;
         SELECT leaf_tag_create('local')",
    );
    let mut alice = server.connect_as("alice", "postgres");
    let ways = [
        "SELECT leaf_tag_create('t', server => 'SERVER')",
        "INSERT INTO leaf_id.leaf_alloc (biz_tag, server) VALUES ('u', 'SERVER')",
        "UPDATE leaf_id.leaf_alloc SET server = 'SERVER' WHERE biz_tag = 'local'",
    ];
    for way in ways {
        println!("{way}");
        alice
            .fails(&way.replace("SERVER", "missing"))
            .is("42704")
            .says("server \"missing\" does not exist");
        alice
            .fails(&way.replace("SERVER", "leaf_central"))
            .is("42501")
            .says("leaf_central");
    }
    // The mapping of its owner would be used. Nor as an apply worker, which may write with her rights.
    admin.run(
        "GRANT USAGE ON FOREIGN SERVER leaf_central TO alice;
         GRANT SET ON PARAMETER session_replication_role TO alice",
    );
    for role in ["origin", "replica"] {
        alice.run(&format!("SET session_replication_role = {role}"));
        for way in ways {
            alice
                .fails(&way.replace("SERVER", "leaf_central"))
                .is("42501")
                .says("must be owner");
        }
    }
    alice.run("RESET session_replication_role");
    admin.run(
        "GRANT USAGE ON FOREIGN DATA WRAPPER dblink_fdw TO alice; ALTER SERVER leaf_central OWNER TO alice",
    );
    for way in ways {
        alice.run(&way.replace("SERVER", "leaf_central"));
    }
    // Other edits do not require that any more.
    admin.run("ALTER SERVER leaf_central OWNER TO CURRENT_USER");
    alice.run("UPDATE leaf_id.leaf_alloc SET step = 20, server = 'leaf_central'");
    // Under another name, ids of another tag would be claimed there.
    alice
        .fails("UPDATE leaf_id.leaf_alloc SET biz_tag = 'secret' WHERE biz_tag = 'u'")
        .is("42501")
        .says("must be owner");
    alice.run("SELECT leaf_tag_drop('t')");

    // A name that PostgreSQL would truncate to that of an existing server.
    let long = "s".repeat(63);
    admin.run(&format!(
        "CREATE SERVER {long} FOREIGN DATA WRAPPER dblink_fdw"
    ));
    admin
        .fails(&format!("SELECT leaf_tag_create('v', server => '{long}s')"))
        .is("42602");
    admin.run(&format!("SELECT leaf_tag_create('v', server => '{long}')"));
    assert_eq!(row(&mut admin, "v"), sourced(&long, 1));
}

#[test]
fn a_tag_cannot_be_taken_away_from_its_server() {
    let (_server, mut session) = server(&[]);
    session.run("SELECT leaf_tag_create('t', start => 5, server => 'leaf_central')");
    for to in ["NULL", "'other'", "'missing'"] {
        session
            .fails(&format!("UPDATE leaf_id.leaf_alloc SET server = {to}"))
            .is("55000")
            .says("cannot take tag \"t\" away from server \"leaf_central\"")
            .details("max_id")
            .hints("create it again");
    }
    session
        .fails(
            "INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('t')
             ON CONFLICT (biz_tag) DO UPDATE SET server = excluded.server",
        )
        .is("55000");
    session
        .fails("SELECT leaf_tag_reset('t', 1)")
        .is("55000")
        .says("tag \"t\" is sourced from server \"leaf_central\"")
        .hints("Reset it on that server");
    assert_eq!(row(&mut session, "t"), sourced("leaf_central", 5));
    session.run("SELECT leaf_tag_drop('t'), leaf_tag_create('t', start => 100)");
    assert_eq!(session.next("t"), 100);
}

/// Cached ids are dropped; issued ids are known from the row.
#[test]
fn a_local_tag_becomes_a_sourced_one_above_its_ids() {
    let (server, mut session) = server(&[]);
    session.create_steady_tag("t", 50);
    let mut other = server.session();
    let used = other.take("t", 70);
    session.wait_for_spare("t");
    let max_id = session.max_id("t");
    assert!(*used.last().unwrap() < max_id);
    session.run("BEGIN; UPDATE leaf_id.leaf_alloc SET server = 'leaf_central'; SAVEPOINT s");
    session.try_next("t").unwrap_err().is("55000");
    assert_eq!(other.next("t"), 71, "not committed yet");
    session.run("ROLLBACK TO s; COMMIT");
    other.run("SET leaf_id.refill_timeout = '300ms'");
    other.try_next("t").unwrap_err().is("55P03");
    assert_eq!(row(&mut session, "t"), sourced("leaf_central", max_id));
}

#[test]
fn a_sourced_tag_is_used_after_the_commit() {
    let (_server, mut session) = server(&[]);
    session.run("BEGIN; SELECT leaf_tag_create('t', server => 'leaf_central'); SAVEPOINT s");
    session
        .try_next("t")
        .unwrap_err()
        .is("55000")
        .hints("Commit first");
    session.run("ROLLBACK TO s; COMMIT");
    session.run("SET leaf_id.refill_timeout = '300ms'");
    session.try_next("t").unwrap_err().is("55P03");
    assert_eq!(row(&mut session, "t"), sourced("leaf_central", 1));

    // Ids issued before the row named its server are not issued again.
    session.run("BEGIN; SELECT leaf_tag_create('u')");
    assert_eq!(session.take("u", 30).last(), Some(&30));
    session.run(
        "UPDATE leaf_id.leaf_alloc SET server = 'leaf_central' WHERE biz_tag = 'u'; SAVEPOINT s",
    );
    session.try_next("u").unwrap_err().is("55000");
    session.run("ROLLBACK TO s; COMMIT");
    assert_eq!(row(&mut session, "u"), sourced("leaf_central", 31));
    // If that is rolled back, ids continue locally.
    session.run(
        "BEGIN; SELECT leaf_tag_create('v'); SAVEPOINT s;
         UPDATE leaf_id.leaf_alloc SET server = 'leaf_central' WHERE biz_tag = 'v'; ROLLBACK TO s",
    );
    assert_eq!(session.take("v", 3), [1, 2, 3]);
    session.run("COMMIT; RESET leaf_id.refill_timeout");
    assert_eq!(session.next("v"), 4);
    // Nor if the whole row was rolled back, and another one is sourced.
    session.run("BEGIN; SAVEPOINT s; SELECT leaf_tag_create('w')");
    session.take("w", 30);
    session.run("ROLLBACK TO s; SELECT leaf_tag_create('w', server => 'leaf_central'); COMMIT");
    assert_eq!(row(&mut session, "w"), sourced("leaf_central", 31));
}

#[test]
fn a_dump_carries_the_server() {
    let (server, mut session) = server(&[]);
    session.run("SELECT leaf_tag_create('t', start => 1000, server => 'leaf_central')");
    set_server_incarnation(&mut session, "t", 7);
    let dump = server.dir().join("dump.sql");
    let dump = dump.to_str().unwrap();
    server.run("pg_dump", &["-f", dump, "postgres"]);
    session.run("CREATE DATABASE copy");
    server.run(
        "psql",
        &["-Xq", "-v", "ON_ERROR_STOP=1", "-d", "copy", "-f", dump],
    );
    // The dump covers ids below, regardless of the source of the next ones.
    assert_eq!(
        row(&mut server.session_in("copy"), "t"),
        sourced("leaf_central", 1000)
    );
}

#[test]
fn replication_of_a_sourced_tag_is_never_stopped() {
    let (server, mut session) = server(&[]);
    session.run(
        "SET session_replication_role = replica;
         INSERT INTO leaf_id.leaf_alloc (biz_tag, server) VALUES ('t', 'missing'), ('u', 'leaf_central')",
    );
    assert_eq!(row(&mut session, "t"), sourced("missing", 1));
    set_server_incarnation(&mut session, "u", 7);
    session.run("UPDATE leaf_id.leaf_alloc SET server = 'other' WHERE biz_tag = 'u'");
    assert_eq!(row(&mut session, "u"), sourced("other", 1));
    set_server_incarnation(&mut session, "u", 7);
    session.run("UPDATE leaf_id.leaf_alloc SET server = NULL WHERE biz_tag = 'u'");
    assert_eq!(row(&mut session, "u"), (None, 0, 1));
    let log = server.log();
    for from in ["leaf_central", "other"] {
        let line = format!("leaf_id: tag \"u\" is no longer sourced from server \"{from}\"");
        assert_eq!(log.matches(&line).count(), 1, "{line}");
    }
}

/// Claims of a sourced tag are not in this table, so no failover can lose them.
#[test]
fn a_failover_skips_nothing_of_a_sourced_tag() {
    let (primary, mut session) = server(&[]);
    session.run(
        "SELECT leaf_tag_create('sourced', step => 20, server => 'leaf_central'),
                leaf_tag_create('local', step => 20),
                leaf_tag_create('both', step => 20)",
    );
    let standby = primary.standby(&[]);
    standby.replay_all_of(&primary);
    primary.kill_9();
    standby.promote();
    let mut session = standby.session();
    session.run(
        "UPDATE leaf_id.leaf_alloc SET max_step = 20000;
         UPDATE leaf_id.leaf_alloc SET server = 'leaf_central' WHERE biz_tag = 'both'",
    );
    assert_eq!(row(&mut session, "sourced"), sourced("leaf_central", 1));
    let skipped = session.max_id("local");
    assert!(skipped > 1);
    // Until then, its claims were local.
    assert_eq!(row(&mut session, "both"), sourced("leaf_central", skipped));
}
