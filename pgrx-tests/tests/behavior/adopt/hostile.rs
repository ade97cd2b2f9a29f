//! Would catch: a table owner whose code runs with the rights of the superuser who moves a column,
//! or who substitutes another function for leaf_segment_next().

use leaf_id_tests::{Failure, Server, Session};

/// A trap that succeeds for all callers, and leaves a trace if the caller is a superuser.
const TRAP: &str = "
    CREATE TABLE mallory.caught (what text);
    CREATE FUNCTION mallory.trap(what text) RETURNS boolean IMMUTABLE LANGUAGE plpgsql AS $$
    BEGIN
        IF current_setting('is_superuser') = 'on' THEN
            RAISE EXCEPTION 'caught a superuser: %', what USING ERRCODE = 'LI666';
        END IF;
        RETURN true;
    END $$;
    CREATE FUNCTION mallory.fire() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM mallory.trap('trigger');
        RETURN NEW;
    END $$";

fn prepared() -> (Server, Session, Session) {
    let server = super::server();
    let mut admin = server.session();
    admin.run("CREATE ROLE mallory LOGIN; CREATE SCHEMA mallory AUTHORIZATION mallory");
    let mut mallory = server.connect_as("mallory", "postgres");
    mallory.run(TRAP);
    (server, admin, mallory)
}

#[test]
fn nothing_of_the_table_runs() {
    let (_server, mut admin, mut mallory) = prepared();
    let traps = [
        "CREATE INDEX ON t (id) WHERE trap('predicate')",
        "CREATE INDEX ON t ((id + trap('expression')::int))",
        "CREATE STATISTICS s ON (id + trap('statistics')::int), n FROM t",
        "CREATE TABLE child (CHECK (trap('child'))) INHERITS (t); CREATE INDEX ON child (id) WHERE trap('of a child')",
        "ALTER TABLE t ADD CHECK (trap('check'))",
        "ALTER TABLE t ADD m boolean DEFAULT trap('default')",
        "ALTER TABLE t ADD g boolean GENERATED ALWAYS AS (trap('generated')) STORED",
        "CREATE TRIGGER r AFTER INSERT OR UPDATE OR DELETE ON t FOR EACH ROW EXECUTE FUNCTION fire();
          CREATE TRIGGER s BEFORE TRUNCATE ON t EXECUTE FUNCTION fire()",
        "CREATE RULE r AS ON UPDATE TO t WHERE trap('rule') DO INSTEAD NOTHING",
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY; CREATE POLICY p ON t USING (trap('policy'))",
        "CREATE DOMAIN d AS bigint CHECK (trap('domain')); ALTER TABLE t ALTER id TYPE d",
        "CREATE VIEW v AS SELECT id FROM t WHERE trap('view')",
    ];
    for (number, trap) in traps.into_iter().enumerate() {
        mallory.run("SET search_path = mallory; DROP TABLE IF EXISTS t CASCADE; DROP DOMAIN IF EXISTS d CASCADE");
        mallory
            .run("CREATE TABLE t (id bigserial PRIMARY KEY, n int); INSERT INTO t (n) VALUES (1)");
        mallory.run(trap);
        let adopted = admin.try_run(&format!(
            "SELECT leaf_adopt('mallory.t', 'id', 'm{number}')"
        ));
        adopted.unwrap_or_else(|failure: Failure| panic!("{trap}: {failure}"));
        admin
            .try_run("SELECT leaf_release('mallory.t', 'id')")
            .unwrap_or_else(|failure: Failure| panic!("{trap}: {failure}"));
    }
    // The owner himself may move it: it is his code.
    admin.run("GRANT USAGE ON SCHEMA leaf_id TO mallory; GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO mallory");
    mallory.run("DROP TABLE t CASCADE; CREATE TABLE t (id bigserial); CREATE INDEX ON t (id) WHERE trap('predicate')");
    mallory.run("SELECT public.leaf_adopt('t', 'id'); SELECT public.leaf_release('t', 'id')");
}

/// The traps catch a superuser.
#[test]
fn the_traps_work() {
    let (_server, mut admin, mut mallory) = prepared();
    mallory.run("SET search_path = mallory; CREATE TABLE t (id bigserial); CREATE INDEX ON t (id) WHERE trap('predicate')");
    admin
        .fails("SELECT max(id) FROM ONLY mallory.t")
        .is("LI666");
}

#[test]
fn what_is_planted_takes_no_part() {
    let server = super::server();
    let mut admin = server.session();
    admin.run("CREATE ROLE mallory LOGIN");
    admin.run("CREATE DATABASE app OWNER mallory");
    let mut admin = server.session_in("app");
    let mut mallory = server.connect_as("mallory", "app");
    mallory.run(
        "CREATE SCHEMA mallory; CREATE EXTENSION leaf_id SCHEMA public;
         CREATE TABLE mallory.t (id serial PRIMARY KEY); INSERT INTO mallory.t DEFAULT VALUES",
    );
    // Rename the schema of the extension, and create look-alike functions under its old name.
    mallory.run(
        r#"ALTER SCHEMA public RENAME TO "its \ place"; CREATE SCHEMA public;
           CREATE FUNCTION public.leaf_segment_next(text) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint';
           CREATE FUNCTION public.max(int) RETURNS int LANGUAGE sql AS 'SELECT 5';
           CREATE FUNCTION mallory.nextval(regclass) RETURNS bigint LANGUAGE sql AS 'SELECT 5::bigint';
           CREATE FUNCTION mallory.format(text, text) RETURNS text LANGUAGE sql AS 'SELECT ''x''';
           CREATE OPERATOR mallory.= (LEFTARG = oid, RIGHTARG = oid, FUNCTION = oidne)"#,
    );
    admin.run(r#"SET search_path = mallory, pg_catalog, "its \ place""#);
    if admin.major() < 19 {
        admin.run("SET standard_conforming_strings = off");
    }
    admin.run("SELECT leaf_adopt('mallory.t', 'id')");
    let default: String = admin.value(
        "SELECT d.refobjid::pg_catalog.regprocedure::text FROM pg_depend d JOIN pg_attrdef f ON f.oid OPERATOR(pg_catalog.=) d.objid
         WHERE d.refclassid::regclass::text LIKE '%pg_proc' AND f.adrelid OPERATOR(pg_catalog.=) 'mallory.t'::regclass",
    );
    assert!(
        default.contains("leaf_segment_next(text)") && !default.contains("public"),
        "{default}"
    );
    admin.run("SELECT leaf_adopt('mallory.t', 'id'); SELECT leaf_release('mallory.t', 'id')");
}
