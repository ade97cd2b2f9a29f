//! Would catch: a migration that cannot run twice, or changes a tag that is there; a NULL that
//! fails with words about something else; and a role with the one documented GRANT that cannot
//! manage tags, or can do more.

use leaf_id_tests::{Server, assert_issued_once, in_threads};

#[test]
fn a_migration_runs_twice() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    let create = |arguments: &str| format!("SELECT leaf_tag_create('t', {arguments})");
    session.run(&create("start => 5, if_not_exists => true"));
    let mut ids = session.take("t", 3);
    let row = "SELECT leaf_alloc::text FROM leaf_id.leaf_alloc";
    let before: String = session.value(row);
    session.run(&create(
        "start => 900, step => 7, description => 'other', if_not_exists => true",
    ));
    assert_eq!(session.value::<String>(row), before);
    // Nothing that is cached is dropped, not even within the transaction.
    session.run("BEGIN");
    session.run(&create("if_not_exists => true"));
    ids.extend(session.take("t", 3));
    session.run("COMMIT");
    assert_eq!(ids, [5, 6, 7, 8, 9, 10]);
    session.fails(&create("if_not_exists => false")).is("23505");
    // Several at once.
    let created = in_threads(8, |_| {
        let mut session = server.session();
        session.run("SELECT leaf_tag_create('race', if_not_exists => true)");
        session.take("race", 10)
    });
    assert_issued_once(created);
    let told = server
        .program("psql")
        .args(["-Xc", "SELECT leaf_tag_create('t', if_not_exists => true)"])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&told.stderr).into_owned();
    assert!(
        told.contains("NOTICE:  tag \"t\" already exists, skipping"),
        "{told}"
    );
}

#[test]
fn a_null_has_its_own_words() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run("SELECT leaf_tag_create('t')");
    for (call, argument) in [
        ("leaf_tag_create(NULL)", "tag"),
        ("leaf_tag_create('u', step => NULL)", "step"),
        ("leaf_tag_create('u', start => NULL)", "start"),
        ("leaf_tag_create('u', opaque => NULL)", "opaque"),
        (
            "leaf_tag_create('u', if_not_exists => NULL)",
            "if_not_exists",
        ),
        ("leaf_tag_drop(NULL)", "tag"),
        ("leaf_tag_reset(NULL, 1)", "tag"),
        ("leaf_tag_reset('t', NULL)", "next_id"),
        ("leaf_tag_grant(NULL, 'public')", "tag"),
        ("leaf_tag_revoke(NULL, 'public')", "tag"),
    ] {
        let name = call.split_once('(').unwrap().0;
        session
            .fails(&format!("SELECT {call}"))
            .is("22004")
            .says(&format!("{name}() takes no null for \"{argument}\""));
    }
    session.run(
        "SELECT leaf_tag_create('u', max_step => NULL, max_value => NULL, description => NULL, server => NULL);
         SELECT leaf_sync(NULL), leaf_check(NULL)",
    );
}

/// A role of migrations, which owns the tables, in a database of somebody else.
#[test]
fn one_grant_makes_a_role_a_manager_of_tags() {
    let server = Server::with_leaf_id(&[]);
    let mut admin = server.session();
    admin.run(
        "CREATE ROLE migrator LOGIN; CREATE ROLE app LOGIN; CREATE SCHEMA app AUTHORIZATION migrator;
         GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO migrator",
    );
    let mut migrator = server.connect_as("migrator", "postgres");
    migrator.run(
        "SELECT leaf_tag_create('t', if_not_exists => true); SELECT leaf_tag_create('t', if_not_exists => true);
         CREATE TABLE app.t (id bigint PRIMARY KEY DEFAULT leaf_segment_next('t'));
         INSERT INTO app.t VALUES (40); SELECT leaf_sync(); SELECT leaf_check();
         UPDATE leaf_id.leaf_alloc SET step = 20; SELECT leaf_tag_revoke('t', 'public')",
    );
    assert!(server.connect_as("app", "postgres").try_next("t").is_err());
    // A role by name takes the grant option: nothing is changed without it.
    migrator
        .fails("SELECT leaf_tag_grant('t', 'app')")
        .is("42501");
    admin.run("SELECT leaf_tag_grant('t', 'migrator')");
    assert_eq!(
        migrator.ids("INSERT INTO app.t DEFAULT VALUES RETURNING id"),
        [41]
    );
    migrator.run("SELECT leaf_tag_reset('t', 90); SELECT leaf_tag_drop('t')");
    for forbidden in [
        "TRUNCATE leaf_id.leaf_alloc",
        "SELECT * FROM leaf_id.leaf_registry",
        "SELECT * FROM leaf_id.leaf_worker",
        "SELECT leaf_claim('t', 1)",
        "SELECT leaf_worker_retire(1)",
        "CREATE TABLE leaf_id.mine ()",
        "CREATE TRIGGER t AFTER UPDATE ON leaf_id.leaf_alloc
             FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
        "GRANT SELECT ON leaf_id.leaf_alloc TO app; SELECT 1 / (has_table_privilege('app', 'leaf_id.leaf_alloc', 'SELECT')::int)",
    ] {
        let refused = migrator.fails(forbidden);
        assert!(
            ["42501", "22012"].contains(&&*refused.state),
            "{forbidden}: {refused}"
        );
    }
}

/// PUBLIC's USAGE on the schema names nobody: a name counts while its role has a USAGE of its own.
#[test]
fn everybodys_usage_admits_no_name() {
    let server = Server::with_leaf_id(&[]);
    let mut admin = server.session();
    admin.run(
        "CREATE ROLE app LOGIN; SELECT leaf_tag_create('t');
         UPDATE leaf_id.leaf_alloc SET granted_to = '{app}'",
    );
    assert!(admin.value::<bool>("SELECT has_schema_privilege('app', 'leaf_id', 'USAGE')"));
    let mut app = server.connect_as("app", "postgres");
    app.try_next("t").unwrap_err().is("42501");
    admin.run("SELECT leaf_tag_grant('t', 'app')");
    assert_eq!(app.next("t"), 1);
    // Another role of the name.
    admin.run("DROP OWNED BY app; DROP ROLE app; CREATE ROLE app LOGIN");
    server
        .connect_as("app", "postgres")
        .try_next("t")
        .unwrap_err()
        .is("42501");
}
