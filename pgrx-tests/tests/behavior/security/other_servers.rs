//! Would catch: a call between servers that runs another role's code, and a function for servers
//! that takes its caller for another role (I9).

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leaf_id_tests::{
    Attack, Attacker, HERS, MALLORY, SHOP, Server, Session, assert_issued_once, call, each,
    lease_message, now_ms, wait_until,
};

use super::code_as_superuser::{LIMIT, claim};

/// Time that the attacker has to win a race.
const RACE: Duration = Duration::from_secs(10);

/// A claim of a worker id for a node.
fn lease(node: &str) -> String {
    let fields = format!(
        "1, '{node}', NULL, 7, NULL, NULL, NULL, {}, 1288834974657, '41/10/12'",
        now_ms()
    );
    call("leaf_worker_lease", &lease_message(&fields))
}

/// Has a table with an index over a function of hers, which does this from now on.
fn index_function(attack: &Attack, body: &str) {
    let mut mallory = attack.mallory();
    let function = |body: &str| {
        format!(
            "CREATE OR REPLACE FUNCTION {HERS}.stable(bigint) RETURNS bigint IMMUTABLE LANGUAGE plpgsql
             AS $f$ BEGIN {body}; RETURN $1; END $f$"
        )
    };
    mallory.run(&function("NULL"));
    mallory.run(&format!(
        "CREATE TABLE {HERS}.rows (id bigint);
         CREATE INDEX ON {HERS}.rows ({HERS}.stable(id));
         INSERT INTO {HERS}.rows SELECT generate_series(1, 200)"
    ));
    mallory.run(&function(body));
}

fn admit(attack: &Attack, role: &str) {
    attack.admin().run(&format!(
        "GRANT EXECUTE ON FUNCTION leaf_id.leaf_claim, leaf_id.leaf_worker_lease TO {role}"
    ));
}

/// Before: the function of an index, in a superuser's ANALYZE, is the superuser to the registry.
#[test]
fn an_index_function_is_no_member_of_the_registry() {
    let attack = Attack::on_installed(Attacker::Stranger, &[]);
    admit(&attack, MALLORY);
    index_function(&attack, &format!("PERFORM * FROM {}", lease("hers")));
    let mut admin = attack.admin();
    if let Err(failure) = admin.try_run(&format!("ANALYZE {HERS}.rows")) {
        println!("{failure}");
    }
    let table = admin.table("leaf_worker");
    let holders: Vec<String> = admin.column(&format!(
        "SELECT coalesce(role_name, 'any') FROM {table} WHERE node_name IS NOT NULL"
    ));
    assert_eq!(holders, [""; 0]);
}

/// Before: the time limit of a claim ends the session of a superuser, and autovacuum's worker.
#[test]
fn a_claim_in_an_index_function_ends_no_session() {
    let attack = Attack::on_installed(
        Attacker::Stranger,
        &[
            ("autovacuum_naptime", "1s"),
            ("autovacuum_analyze_threshold", "10"),
        ],
    );
    let mut admin = attack.admin();
    admin.create_tag("t");
    admit(&attack, MALLORY);
    let claim = claim("t", 10);
    index_function(
        &attack,
        &format!("PERFORM * FROM {claim}; PERFORM pg_sleep(0.1)"),
    );
    admin.fails(&format!("ANALYZE {HERS}.rows")).is("25001");
    admin.run("SELECT 1");
    // Automatic ANALYZE of the rows that were inserted.
    wait_until(LIMIT, "autovacuum to look at the table", || {
        attack.server.log().contains("automatic analyze of table")
    });
    let log = attack.server.log();
    assert!(!log.contains("terminating autovacuum process"), "{log}");
    assert_eq!(admin.max_id("t"), 1);
}

/// Everything that runs in a client's statement, but is not it.
#[test]
fn only_a_clients_statement_claims() {
    let attack = Attack::on_installed(Attacker::Stranger, &[]);
    let mut admin = attack.admin();
    admin.create_tag("t");
    let claim = claim("t", 10);
    let quoted = claim.replace('\'', "''");
    let again = quoted.replace('\'', "''");
    admin.run(&format!(
        "CREATE FUNCTION in_sql() RETURNS text LANGUAGE sql VOLATILE SECURITY DEFINER AS 'SELECT token FROM {quoted}';
         CREATE FUNCTION inlined() RETURNS SETOF text LANGUAGE sql STABLE AS 'SELECT token FROM {quoted}';
         CREATE VIEW in_view AS SELECT token FROM {claim};
         CREATE FUNCTION in_plpgsql() RETURNS text LANGUAGE plpgsql AS 'BEGIN RETURN (SELECT token FROM {quoted}); END';
         CREATE FUNCTION in_cursor() RETURNS text LANGUAGE plpgsql AS
             'DECLARE r record; BEGIN FOR r IN SELECT token FROM {quoted} LOOP RETURN r.token; END LOOP; END';
         CREATE FUNCTION prepared() RETURNS void LANGUAGE plpgsql AS
             'BEGIN EXECUTE ''PREPARE s AS SELECT token FROM {again}''; EXECUTE ''EXECUTE s''; END';
         CREATE FUNCTION fire() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM * FROM {quoted}; RETURN NEW; END';
         CREATE PROCEDURE in_procedure(INOUT answer text) LANGUAGE plpgsql AS
             'BEGIN answer := (SELECT token FROM {quoted}); ROLLBACK; END';
         CREATE TABLE fires (a integer);
         CREATE TRIGGER t BEFORE INSERT ON fires FOR EACH ROW EXECUTE FUNCTION fire();
         CREATE TABLE checks (a integer CHECK (in_plpgsql() IS NOT NULL));
         CREATE TABLE defaults (a text DEFAULT in_plpgsql());
         CREATE MATERIALIZED VIEW kept AS SELECT * FROM {claim} WITH NO DATA"
    ));
    each(
        [
            "SELECT in_sql()".into(),
            "SELECT * FROM inlined()".into(),
            "SELECT * FROM in_view".into(),
            "SELECT in_plpgsql()".into(),
            "SELECT in_cursor()".into(),
            "SELECT prepared()".into(),
            "DO 'BEGIN PERFORM in_plpgsql(); END'".into(),
            format!("DO 'BEGIN PERFORM * FROM {quoted}; END'"),
            "CALL in_procedure(NULL)".into(),
            "INSERT INTO fires VALUES (1)".into(),
            "INSERT INTO checks VALUES (1) RETURNING a".into(),
            "INSERT INTO defaults DEFAULT VALUES RETURNING a".into(),
            format!(
                "WITH w AS (INSERT INTO defaults VALUES ('1') RETURNING a) SELECT a, token FROM w, {claim}"
            ),
            format!("SELECT (SELECT token FROM {claim})"),
            format!("SELECT query_to_xml('SELECT * FROM {quoted}', true, true, '')"),
            "REFRESH MATERIALIZED VIEW kept".into(),
            format!("COPY (SELECT * FROM {claim}) TO '/dev/null'"),
            format!("CREATE TABLE copied AS SELECT * FROM {claim}"),
            format!("EXPLAIN ANALYZE SELECT * FROM {claim}"),
        ],
        |statement: &String| {
            let mut session = attack.admin();
            session.fails(statement).is("25001");
            session.run("SELECT 1");
        },
    );
    assert_eq!(admin.max_id("t"), 1);
    admin.run(&format!("SELECT * FROM {claim}"));
    // In the extended protocol, and with a name.
    let sql = format!("SELECT token FROM {claim}");
    assert_eq!(admin.column::<String>(&sql).len(), 1);
    assert_eq!(admin.max_id("t"), 21);
}

/// `to_tsvector` calls a parser, too, for a configuration that any role can make. Before: a policy, or a
/// virtual column, claims in the name of the role that reads the table.
#[test]
fn reading_a_table_claims_nothing() {
    let attack = Attack::on_installed(Attacker::Stranger, &[]);
    let mut admin = attack.admin();
    admin.create_tag("t");
    admin.run("CREATE ROLE member LOGIN");
    admit(&attack, "member");
    let mut mallory = attack.mallory();
    mallory.run(&format!(
        "CREATE TEXT SEARCH CONFIGURATION {HERS}.claims (PARSER = leaf_id.leaf_claim);
         CREATE TABLE {HERS}.messages (message text);
         INSERT INTO {HERS}.messages SELECT json_build_object('version', 1, 'tag', 't', 'n', 10);
         CREATE POLICY p ON {HERS}.messages USING (to_tsvector('{HERS}.claims', message) IS NOT NULL);
         ALTER TABLE {HERS}.messages ENABLE ROW LEVEL SECURITY;
         GRANT SELECT ON {HERS}.messages TO PUBLIC"
    ));
    let read = format!("SELECT * FROM {HERS}.messages");
    let mut member = attack.server.connect_as("member", SHOP);
    member.fails(&read).is("25001");
    if admin.major() >= 18 {
        mallory.run(&format!(
            "ALTER TABLE {HERS}.messages ADD claimed tsvector
                 GENERATED ALWAYS AS (to_tsvector('{HERS}.claims', message)) VIRTUAL"
        ));
        admin.fails(&read).is("25001");
    }
    assert_eq!(admin.max_id("t"), 1);
}

/// A server of hers, and one that sources the tag t and leases its worker id from there. The role
/// of that has nothing to do with her.
fn hers_and_a_member() -> (Attack, Server) {
    let attack = Attack::on_installed(Attacker::Owner, &[("fsync", "off")]);
    let parallel = match attack.admin().major() {
        15 => "force_parallel_mode",
        _ => "debug_parallel_query",
    };
    attack.admin().run(&format!(
        "CREATE ROLE member LOGIN PASSWORD 'secret';
         GRANT EXECUTE ON FUNCTION leaf_id.leaf_claim, leaf_id.leaf_worker_lease TO member;
         GRANT USAGE ON SCHEMA {HERS} TO member;
         INSERT INTO leaf_id.leaf_registry (grant_ahead_ms) VALUES (1000);
         ALTER DATABASE {SHOP} SET {parallel} = on;
         SELECT leaf_tag_create('t', step => 1, max_step => 1, max_value => 900000)"
    ));
    let member = Server::start_unrelated(1, &[("fsync", "off")]);
    let mut session = member.session();
    session.run(&format!(
        "CREATE EXTENSION leaf_id; CREATE EXTENSION dblink;
         CREATE SERVER hers FOREIGN DATA WRAPPER dblink_fdw OPTIONS (host '{}', dbname '{SHOP}');
         CREATE USER MAPPING FOR CURRENT_USER SERVER hers OPTIONS (user 'member', password 'secret');
         SELECT leaf_tag_create('t', step => 1, max_step => 1, server => 'hers')",
        attack.server.dir().to_str().unwrap()
    ));
    (attack, member)
}

/// Functions that she puts in place of those that members call.
const IMPOSTORS: [(&str, &str); 3] = [
    // Runs what she likes.
    (
        "LANGUAGE plpgsql",
        "BEGIN PERFORM hers.run('impostor'); RETURN NULL; END",
    ),
    // Is a part of the statement itself, once the planner has seen it.
    (
        "LANGUAGE sql",
        r#"SELECT '{"version": 1, "first": 1000000, "len": 1, "incarnation": 7, "max_step": 1, "max_value": 2000000, "skipped": 0}'::pg_catalog.json"#,
    ),
    // Is evaluated by the planner.
    (
        "LANGUAGE plpgsql IMMUTABLE",
        "BEGIN PERFORM hers.run('impostor'); RETURN NULL; END",
    ),
];

/// Takes ids until the time is over, and says which.
fn take_until(mut session: Session, done: &AtomicBool) -> Vec<i64> {
    session.run("SET leaf_id.refill_timeout = '300ms'");
    let mut ids = Vec::new();
    while !done.load(Ordering::Relaxed) {
        if let Ok(id) = session.try_next("t") {
            ids.push(id);
        }
    }
    ids
}

/// The owner of a central server swaps the schema of leaf_id's functions with her own, to and fro.
/// Before: her code runs as the member's role in one call of three.
#[test]
fn a_schema_that_is_swapped_while_members_call() {
    each(IMPOSTORS, |(kind, body)| {
        let (attack, member) = hers_and_a_member();
        let impostor = |name| {
            format!(
                "CREATE FUNCTION evil.{name}(message pg_catalog.json) RETURNS pg_catalog.json {kind} AS $f${body}$f$"
            )
        };
        let made = attack.mallory_tries(&[
            "CREATE SCHEMA evil".to_string(),
            "GRANT USAGE ON SCHEMA evil TO PUBLIC".into(),
            impostor("leaf_claim"),
            impostor("leaf_worker_lease"),
        ]);
        assert_eq!(made, 4);
        // Both connect first, so that what is called is known by its schema's name.
        member.session().next("t");
        let done = AtomicBool::new(false);
        let (ids, swaps) = std::thread::scope(|scope| {
            let taking = scope.spawn(|| take_until(member.session(), &done));
            let mut mallory = attack.mallory();
            let start = Instant::now();
            let mut swaps = 0;
            while start.elapsed() < RACE {
                mallory
                    .run("ALTER SCHEMA public RENAME TO kept; ALTER SCHEMA evil RENAME TO public");
                mallory
                    .run("ALTER SCHEMA public RENAME TO evil; ALTER SCHEMA kept RENAME TO public");
                swaps += 1;
            }
            done.store(true, Ordering::Relaxed);
            (taking.join().unwrap(), swaps)
        });
        let ran = attack.server.log().matches("her code run").count();
        println!("{} ids, {swaps} swaps, her code ran {ran} times", ids.len());
        attack.assert_her_code_did_not_run();
        let highest = ids.iter().max().copied().unwrap_or(0);
        assert!(highest < 900_000, "{highest} comes from her function");
        assert!(ids.len() > 20, "{ids:?}");
        assert_issued_once([ids]);
    });
}

/// Functions of the same name with other arguments make no call ambiguous.
#[test]
fn functions_of_the_same_name_stop_no_member() {
    let (attack, member) = hers_and_a_member();
    let mut session = member.session();
    session.next("t");
    let made = attack.mallory_tries(&[
        "CREATE FUNCTION public.leaf_claim(message json, more integer DEFAULT 1) RETURNS json LANGUAGE sql AS 'SELECT NULL::json'",
        "CREATE FUNCTION public.leaf_claim(message json, more text DEFAULT '') RETURNS json LANGUAGE sql AS 'SELECT NULL::json'",
        "CREATE FUNCTION public.leaf_claim(VARIADIC message json[]) RETURNS json LANGUAGE sql AS 'SELECT NULL::json'",
        "CREATE FUNCTION public.leaf_claim(message anyelement) RETURNS json LANGUAGE sql AS 'SELECT NULL::json'",
    ]);
    assert_eq!(made, 4);
    session.take("t", 20);
}

/// The registrar asks in the same way.
#[test]
fn an_impostor_of_the_registry() {
    each(&IMPOSTORS[..1], |(kind, body)| {
        let (attack, member) = hers_and_a_member();
        member.configure("leaf_id.worker_registry", "postgres/hers");
        member.configure("leaf_id.worker_id", "auto");
        let mut session = member.session();
        wait_until(LIMIT, "a lease", || {
            session.try_run("SELECT leaf_snowflake_next()").is_ok()
        });
        attack.mallory().run(&format!(
            "ALTER SCHEMA public RENAME TO kept; CREATE SCHEMA public; GRANT USAGE ON SCHEMA public TO PUBLIC;
             CREATE FUNCTION public.leaf_worker_lease(message pg_catalog.json) RETURNS pg_catalog.json {kind} AS $f${body}$f$"
        ));
        let mut admin = attack.admin();
        let mut renewed_at =
            || -> String { admin.value("SELECT max(renewed_at)::text FROM leaf_id.leaf_worker") };
        for _ in 0..2 {
            let before = renewed_at();
            wait_until(LIMIT, "a renewal", || renewed_at() != before);
        }
        attack.assert_her_code_did_not_run();
    });
}

/// The oid of the function changes, and the connection stays.
#[test]
fn an_extension_that_is_created_again() {
    let (attack, member) = hers_and_a_member();
    let mut session = member.session();
    session.next("t");
    attack.admin().run(
        "DROP EXTENSION leaf_id; CREATE EXTENSION leaf_id;
         SELECT leaf_tag_create('later'), leaf_tag_grant('later', 'member');
         GRANT EXECUTE ON FUNCTION leaf_id.leaf_claim TO member",
    );
    session.run("SELECT leaf_tag_create('later', server => 'hers')");
    assert_eq!(session.next("later"), 1);
}
