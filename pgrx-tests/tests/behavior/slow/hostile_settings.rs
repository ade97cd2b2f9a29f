//! Would catch: an allocator that stops because of a setting from ALTER DATABASE or ALTER ROLE
//! meant for ordinary sessions.

use leaf_id_tests::{Server, assert_issued_once};

/// Settings for the database, and for the role that workers run as. None of them affects the ids
/// themselves.
const SETTINGS: [&str; 17] = [
    "default_transaction_read_only = on",
    "default_transaction_isolation = 'serializable'",
    "default_transaction_isolation = 'repeatable read'",
    "default_transaction_deferrable = on",
    "role = unprivileged",
    "session_replication_role = replica",
    "session_replication_role = local",
    "statement_timeout = '1ms'",
    "lock_timeout = '1ms'",
    "idle_in_transaction_session_timeout = '1ms'",
    "idle_session_timeout = '1ms'",
    "synchronous_commit = off",
    "search_path = evil, pg_catalog",
    "row_security = off",
    "force_parallel_mode = regress",
    "check_function_bodies = off",
    "exit_on_error = on",
];

#[test]
fn refills_go_on() {
    let server = Server::start(&[("fsync", "off")]);
    let mut admin = server.session();
    admin.run("CREATE ROLE unprivileged");
    admin.run("CREATE DATABASE template");
    server.session_in("template").run(
        "CREATE EXTENSION leaf_id;
         SELECT leaf_tag_create('t', step => 10, max_step => 200), leaf_tag_grant('t', 'public');
         CREATE SCHEMA evil;
         CREATE TABLE evil.leaf_alloc (LIKE leaf_id.leaf_alloc INCLUDING ALL);
         INSERT INTO evil.leaf_alloc (biz_tag, max_id) VALUES ('t', 1);
         CREATE FUNCTION evil.raise(bigint, integer) RETURNS bigint LANGUAGE plpgsql
             AS 'BEGIN RAISE EXCEPTION ''hijacked''; END';
         CREATE OPERATOR evil.+
             (LEFTARG = bigint, RIGHTARG = integer, FUNCTION = evil.raise)",
    );
    let mut refused = 0;
    for (i, setting) in SETTINGS.iter().enumerate() {
        for target in ["DATABASE", "ROLE postgres IN DATABASE"] {
            println!("ALTER {target} SET {setting}");
            let name = format!("d{i}_{}", target[..1].to_lowercase());
            admin.run(&format!("CREATE DATABASE {name} TEMPLATE template"));
            // Connect first, so that this session is not affected.
            let mut session = server.session_in(&name);
            if admin
                .try_run(&format!("ALTER {target} {name} SET {setting}"))
                .is_err()
            {
                // Not a setting of this version, or it cannot be set this way.
                println!("refused");
                refused += 1;
                continue;
            }
            let mut ids = session.take("t", 3000);
            // A session that is affected, unless the setting prevents it from working.
            if !setting.contains("1ms") && !setting.contains("search_path") {
                ids.extend(server.session_in(&name).take("t", 3000));
            }
            assert_issued_once(&[ids]);
        }
    }
    assert!(
        refused <= SETTINGS.len() / 2,
        "{refused} of {}",
        2 * SETTINGS.len()
    );
}

/// Settings by which each transaction waits for the serializable ones that write, in any database.
const DEFERRABLE: [(&str, &str); 3] = [
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_read_only", "on"),
    ("default_transaction_deferrable", "on"),
];

/// Before: an allocator waits in its first transaction, and keeps its worker slot.
#[test]
fn an_allocator_waits_for_no_transaction() {
    let server = Server::start(&[]);
    let mut admin = server.session();
    admin.run("CREATE DATABASE hers");
    let mut session = server.session_in("hers");
    session.run("CREATE EXTENSION leaf_id; SELECT leaf_tag_create('t', step => 10)");
    for (name, value) in DEFERRABLE {
        admin.run(&format!("ALTER DATABASE hers SET {name} = '{value}'"));
    }
    let mut writer = server.session();
    writer.run("BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE; SELECT count(*) FROM pg_class");
    session.take("t", 100);
}

/// Before: the launcher waits for them where it looks for the database of the registry, and cannot be
/// stopped.
#[test]
fn the_launcher_waits_for_no_transaction() {
    let registry = [
        ("leaf_id.worker_id", "auto"),
        ("leaf_id.worker_registry", "app"),
    ];
    let server = Server::start(&[&DEFERRABLE[..], &registry].concat());
    let write = "SET default_transaction_read_only = off; SET default_transaction_deferrable = off";
    let mut writer = server.session();
    writer.run(write);
    writer.run("CREATE DATABASE app");
    writer.run("BEGIN ISOLATION LEVEL SERIALIZABLE READ WRITE; SELECT count(*) FROM pg_class");
    let mut session = server.session_in("app");
    session.run(write);
    session.run("CREATE EXTENSION leaf_id");
    session.run("SELECT leaf_snowflake_next()");
}

#[test]
fn a_database_that_takes_no_connections_is_served() {
    let server = Server::start(&[]);
    server.session().run("CREATE DATABASE closed");
    let mut session = server.session_in("closed");
    session.run("CREATE EXTENSION leaf_id; SELECT leaf_tag_create('t', step => 10)");
    server
        .session()
        .run("ALTER DATABASE closed ALLOW_CONNECTIONS false");
    assert_issued_once(&[session.take("t", 3000)]);
}

#[test]
fn a_role_with_hostile_settings_everywhere_is_served() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "SELECT leaf_tag_create('t', step => 10);
         ALTER ROLE ALL SET default_transaction_read_only = on;
         ALTER ROLE postgres SET lock_timeout = '1ms';
         ALTER ROLE postgres SET idle_in_transaction_session_timeout = '1ms'",
    );
    assert_issued_once(&[session.take("t", 3000)]);
}

/// An error in one tag's claim does not end the allocator, which would hold up all others.
#[test]
fn an_error_does_not_end_the_allocator() {
    let server = Server::with_leaf_id(&[("leaf_id.refill_timeout", "10s")]);
    let mut session = server.session();
    session.run(
        "SELECT leaf_tag_create(tag, step => 10) FROM unnest(ARRAY['locked', 't']) tag;
         ALTER DATABASE postgres SET exit_on_error = on",
    );
    session.next("t");
    let allocator = session.worker("allocator");
    assert!(allocator.is_some());
    let mut owner = server.session();
    owner.run("BEGIN; UPDATE leaf_id.leaf_alloc SET step = step WHERE biz_tag = 'locked'");
    session
        .try_next("locked")
        .unwrap_err()
        .is("55P03")
        .details("is locked by process");
    assert_issued_once(&[session.take("t", 3000)]);
    assert_eq!(session.worker("allocator"), allocator);
}
