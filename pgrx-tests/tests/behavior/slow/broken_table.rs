//! Would catch: a table altered by its owner that crashes a process, or makes it read one column as
//! another.

use std::time::Duration;

use leaf_id_tests::{
    Attack, Attacker, SHOP, Server, assert_issued_once, each, lease_message, lease_query,
    wait_until,
};

const LIMIT: Duration = Duration::from_secs(30);

/// Changes of the table of tags by its owner. Columns used by a status view cannot be changed while
/// the view exists.
const CHANGES: [&str; 14] = [
    "ALTER TABLE {table} ALTER update_time TYPE text",
    "ALTER TABLE {table} ALTER incarnation TYPE text",
    "ALTER TABLE {table} ALTER incarnation TYPE name USING incarnation::text::name",
    "ALTER TABLE {table} ALTER server_incarnation TYPE numeric",
    "ALTER TABLE {table} ALTER largest_claim TYPE bytea USING '\\x'::bytea",
    "ALTER TABLE {table} ALTER system_identifier TYPE jsonb USING to_jsonb(1)",
    "ALTER TABLE {table} DROP description, ADD description bigint",
    "ALTER TABLE {table} DROP update_time, ADD update_time text",
    "ALTER TABLE {table} RENAME largest_claim TO other; ALTER TABLE {table} ADD largest_claim text",
    "ALTER TABLE {table} ALTER incarnation DROP NOT NULL, ALTER largest_claim DROP NOT NULL;
     ALTER TABLE {table} DISABLE TRIGGER ALL; UPDATE {table} SET incarnation = NULL, largest_claim = NULL",
    "ALTER TABLE {table} DROP CONSTRAINT leaf_alloc_pkey",
    "ALTER TABLE {table} DROP CONSTRAINT leaf_alloc_pkey;
     ALTER TABLE {table} ADD CONSTRAINT leaf_alloc_pkey PRIMARY KEY (biz_tag, step)",
    "ALTER TABLE {table} SET UNLOGGED",
    "ALTER TABLE {table} DROP max_step CASCADE, ADD max_step text DEFAULT 'long'",
];

/// A change, an edit by DML, and claims. Each is correct, or refused.
fn change_and_use(attack: &Attack, by: &str, change: &str) {
    let mut admin = attack.admin();
    admin.create_steady_tag("t", 10);
    let mut ids = admin.take("t", 25);
    let table = admin.table("leaf_alloc");
    let (schema, _) = table.split_once('.').unwrap();
    admin.run(&format!(
        "GRANT USAGE, CREATE ON SCHEMA {schema} TO {by}; ALTER TABLE {table} OWNER TO {by};
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO {by}"
    ));
    let mut owner = attack.server.connect_as(by, SHOP);
    owner.run("SET leaf_id.refill_timeout = '500ms'");
    for statement in change.split(";\n") {
        if let Err(failure) = owner.try_run(&statement.replace("{table}", &table)) {
            println!("refused: {statement}: {failure}");
        }
    }
    for statement in [
        "UPDATE {table} SET step = 7 WHERE biz_tag = 't'",
        "UPDATE {table} SET max_id = max_id + 10 WHERE biz_tag = 't'",
        "INSERT INTO {table} (biz_tag) VALUES ('more')",
        "SELECT leaf_tag_create('other', step => 10)",
        "SELECT leaf_segment_next_batch('more', 50)",
        "SELECT token FROM ts_parse('leaf_id.leaf_claim', json_build_object('version', 1, 'tag', 't', 'n', 10)::text)",
        "SELECT leaf_tag_reset('more', 5)",
        "BEGIN; SELECT leaf_tag_create('local'); SELECT leaf_segment_next('local'); COMMIT",
    ] {
        if let Err(failure) = owner.try_run(&statement.replace("{table}", &table)) {
            println!("{statement}: {} {}", failure.state, failure.message);
            assert_ne!(failure.state, "", "{statement}: {failure}");
            assert_ne!(failure.state, "XX000", "{statement}: {failure}");
            let _ = owner.try_run("ROLLBACK");
        }
    }
    let mut alice = attack.alice();
    alice.run("SET leaf_id.refill_timeout = '500ms'");
    if let Ok(more) = alice.try_take("t", 60) {
        ids.extend(more);
    }
    // No process has crashed.
    assert_eq!(admin.value::<i32>("SELECT 1"), 1);
    assert_issued_once([ids]);
    // Other databases are not affected.
    let mut other = attack.server.session();
    other.run("CREATE EXTENSION leaf_id");
    other.create_steady_tag("t", 10);
    assert_issued_once([other.take("t", 50)]);
}

/// S12, by an owner of the table who is not a superuser. Before: signal 11, and a restart of the
/// whole server.
#[test]
fn a_table_that_its_owner_has_changed() {
    each(CHANGES, |change| {
        let attack = Attack::on_installed(Attacker::Stranger, &[]);
        change_and_use(&attack, "mallory", change);
    });
}

/// S12, by a superuser. Before: the same.
#[test]
fn a_table_that_a_superuser_has_changed() {
    each(CHANGES.iter().step_by(3), |change| {
        let attack = Attack::on_installed(Attacker::Stranger, &[]);
        change_and_use(&attack, "postgres", change);
    });
}

/// S12: columns of other types cause error 42804, and are not read as the original type. Before:
/// signal 11.
#[test]
fn a_column_of_another_type_is_said() {
    let server = Server::with_leaf_id(&[]);
    let mut admin = server.session();
    admin.create_steady_tag("t", 10);
    let table = admin.table("leaf_alloc");
    admin.run(&format!(
        "ALTER TABLE {table} ALTER update_time DROP DEFAULT;
         ALTER TABLE {table} ALTER update_time TYPE text"
    ));
    admin
        .fails(&format!("UPDATE {table} SET step = 20"))
        .is("42804");
    admin
        .fails("SELECT token FROM ts_parse('leaf_id.leaf_claim', json_build_object('version', 1, 'tag', 't', 'n', 10)::text)")
        .is("42804");
}

/// S12 for the registry's tables. Before: an error of PL/pgSQL, as expected.
#[test]
fn tables_of_the_registry_that_were_changed() {
    each(
        [
            "ALTER TABLE {worker} ALTER token TYPE text",
            "ALTER TABLE {worker} ALTER floor_ms TYPE numeric",
            "ALTER TABLE {worker} DROP token, ADD token text",
            "ALTER TABLE {registry} ALTER epoch_ms TYPE text",
            "ALTER TABLE {registry} ALTER timeline TYPE text",
            "ALTER TABLE {worker} DROP CONSTRAINT leaf_worker_pkey CASCADE",
        ],
        |change| {
            let server = Server::with_leaf_id(&[]);
            let mut admin = server.session();
            admin.run("INSERT INTO leaf_id.leaf_registry (grant_ahead_ms) VALUES (2000)");
            server.lease("postgres", "here");
            wait_until(LIMIT, "a lease", || admin.try_snowflake().is_ok());
            let (worker, registry) = (admin.table("leaf_worker"), admin.table("leaf_registry"));
            let sql = change
                .replace("{worker}", &worker)
                .replace("{registry}", &registry);
            if let Err(failure) = admin.try_run(&sql) {
                println!("refused: {failure}");
            }
            let now = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";
            let fields =
                format!("1, 'm', NULL, 7, NULL, NULL, NULL, {now}, 1288834974657, '41/10/12'");
            let lease = lease_query(&lease_message(&fields));
            for call in [
                "SELECT leaf_id.leaf_worker_retire(5)",
                "SELECT * FROM leaf_id.fleet",
                &lease,
            ] {
                if let Err(failure) = admin.try_run(call) {
                    println!("{call}: {} {}", failure.state, failure.message);
                    assert!(!["", "XX000"].contains(&&*failure.state), "{failure}");
                }
            }
            assert_eq!(admin.value::<i32>("SELECT 1"), 1);
        },
    );
}

/// Tags in the encoding of their database, not UTF-8. Errors show invalid UTF-8 as bytes.
#[test]
fn tags_that_are_not_utf_8() {
    each(["SQL_ASCII", "LATIN1"], |encoding| {
        let server = Server::start(&[]);
        server.session().run(&format!(
            "CREATE DATABASE d TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'"
        ));
        let mut session = server.session_in("d");
        session.run(
            "CREATE EXTENSION leaf_id;
             CREATE FUNCTION tag() RETURNS text IMMUTABLE LANGUAGE sql AS
                 $$ SELECT convert_from('\\x636166e9'::bytea, getdatabaseencoding()) $$;
             SELECT leaf_tag_create(tag(), step => 10, max_step => 10)",
        );
        let ids = session.ids("SELECT leaf_segment_next(tag()) FROM generate_series(1, 55)");
        assert_issued_once([ids]);
        let issued: Option<i64> =
            session.value("SELECT ids_issued FROM leaf_id.tags_detail WHERE tag = tag()");
        assert_eq!(issued, Some(55));
        drop(session);
        server.restart();
        let mut session = server.session_in("d");
        assert_eq!(session.ids("SELECT leaf_segment_next(tag())"), [56]);
        session.run("SELECT leaf_tag_drop(tag())");
        let failure = session.fails("SELECT leaf_segment_next(tag())");
        println!("{failure}");
        failure.is("42704").says("\"caf\\xe9\"");
    });
}
