//! Would catch: a column that leaf_adopt and leaf_release cannot move rightly, and move; one that
//! they refuse, and have changed.

use super::server;

#[test]
fn what_cannot_be_moved_is_refused_whole() {
    let server = server();
    let mut session = server.session();
    session.run("CREATE EXTENSION file_fdw; CREATE SERVER files FOREIGN DATA WRAPPER file_fdw");
    for (prepare, reason) in [
        ("CREATE VIEW t AS SELECT 1 AS id", "not a table"),
        ("CREATE MATERIALIZED VIEW t AS SELECT 1 AS id", "not a table"),
        ("CREATE SEQUENCE t", "not a table"),
        ("CREATE FOREIGN TABLE t (id int) SERVER files OPTIONS (filename '/dev/null')", "not a table"),
        ("CREATE TEMP TABLE t (id serial)", "temporary"),
        ("CREATE TABLE t (n int, id int GENERATED ALWAYS AS (n + 1) STORED)", "generated"),
        ("CREATE TABLE t (id text)", "Its type is text"),
        ("CREATE TABLE t (id numeric)", "Its type is numeric"),
        ("CREATE TABLE t (id uuid)", "Its type is uuid"),
        ("CREATE TABLE t (id int DEFAULT 5)", "Its default is 5"),
        ("CREATE SEQUENCE s; CREATE TABLE t (id bigint DEFAULT nextval('s') + 1)", "Its default is (nextval"),
        ("CREATE TABLE t (id int DEFAULT leaf_segment_next('a' || 'b'))", "Its default is"),
        ("CREATE SEQUENCE s INCREMENT BY -1; CREATE TABLE t (id bigint DEFAULT nextval('s'))", "counts down"),
        ("CREATE TABLE t (id int GENERATED ALWAYS AS IDENTITY (CYCLE))", "cycles"),
        ("CREATE TABLE t (id int) PARTITION BY LIST (id);
          CREATE FOREIGN TABLE f PARTITION OF t FOR VALUES IN (1) SERVER files OPTIONS (filename '/dev/null')",
         "in foreign tables"),
    ] {
        session.run(&format!("BEGIN; {prepare}; SAVEPOINT prepared"));
        let relation = if reason == "not a table" { "'t'" } else { "'t'::regclass" };
        let column = if prepare.contains("SEQUENCE t") { "last_value" } else { "id" };
        session
            .fails(&format!("SELECT leaf_adopt({relation}, '{column}')"))
            .is("0A000")
            .says("cannot move column")
            .details(reason);
        session.run("ROLLBACK TO prepared");
        assert_eq!(session.ids("SELECT count(*) FROM leaf_id.leaf_alloc"), [0]);
        session.run("ROLLBACK");
    }
    session.run("CREATE TABLE t (id serial)");
    for (call, state) in [
        ("leaf_adopt('t', 'nothing')", "42703"),
        ("leaf_adopt('t', 'ctid')", "42703"),
        ("leaf_adopt(1234567890::oid::regclass, 'id')", "42P01"),
        ("leaf_adopt(NULL, 'id')", "22004"),
        ("leaf_adopt('t', NULL)", "22004"),
        ("leaf_adopt('pg_class', 'relpages')", "0A000"),
        ("leaf_adopt('leaf_id.leaf_worker', 'worker_id')", "0A000"),
        ("leaf_adopt('t', 'id', '')", "23514"),
        ("leaf_adopt('t', 'id', step => 0)", "23514"),
        ("leaf_release('t', 'id')", "55000"),
        ("leaf_release('t', NULL)", "22004"),
    ] {
        session.fails(&format!("SELECT {call}")).is(state);
    }
    session.run("CREATE SERVER central FOREIGN DATA WRAPPER file_fdw");
    session.run("INSERT INTO leaf_id.leaf_alloc (biz_tag, server) VALUES ('far', 'central')");
    session
        .fails("SELECT leaf_adopt('t', 'id', 'far')")
        .is("55000")
        .says("sourced from server");
    session.run(
        "INSERT INTO t VALUES (2090000005);
         SELECT leaf_tag_create('yearly', period => 'year', time_zone => 'UTC', digits => 6)",
    );
    let max_id = session.max_id("yearly");
    session
        .fails("SELECT leaf_adopt('t', 'id', 'yearly')")
        .is("0A000")
        .says(r#"cannot give column "id" of table public.t to tag "yearly", which has periods"#)
        .details("begin anew with each year");
    assert_eq!(session.max_id("yearly"), max_id);
    session.run("DELETE FROM t");
    session.run("SET leaf_id.adopt_new_columns = on");
    session
        .fails("CREATE TABLE yearly (id serial)")
        .is("0A000")
        .says(r#"no tag for the new column "id" of table public.yearly: cannot give column "id" of table public.yearly to tag "yearly""#)
        .details("begin anew with each year")
        .hints("SET leaf_id.adopt_new_columns = off");
    // Nothing has been changed by all that.
    assert_eq!(
        session.ids("INSERT INTO t DEFAULT VALUES RETURNING id::bigint"),
        [1]
    );
    assert_eq!(session.value::<String>("SHOW lock_timeout"), "0");
}

#[test]
fn an_older_snapshot_is_refused() {
    let server = server();
    let mut session = server.session();
    session.run("CREATE TABLE t (id serial)");
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        session.run(&format!("BEGIN ISOLATION LEVEL {level}"));
        session
            .fails("SELECT leaf_adopt('t', 'id')")
            .is("0A000")
            .says("READ COMMITTED");
        session.run("ROLLBACK");
    }
    session.run("BEGIN READ ONLY");
    session.fails("SELECT leaf_adopt('t', 'id')").is("25006");
    session.run("ROLLBACK");
    // In use by the very statement.
    session.run("INSERT INTO t DEFAULT VALUES");
    session
        .fails("SELECT leaf_adopt('t', 'id') FROM t")
        .is("55006");
}

#[test]
fn whoever_owns_the_table_and_may_create_tags_may_move_it() {
    let server = server();
    let mut admin = server.session();
    admin.run(
        "CREATE ROLE app LOGIN; CREATE ROLE other LOGIN; CREATE ROLE writer LOGIN; GRANT CREATE ON SCHEMA public TO app;
         SET ROLE app; CREATE TABLE t (id serial PRIMARY KEY, n int); GRANT INSERT ON t TO writer; RESET ROLE;
         GRANT USAGE ON SCHEMA leaf_id TO other; GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO other",
    );
    let mut app = server.connect_as("app", "postgres");
    let mut other = server.connect_as("other", "postgres");
    other
        .fails("SELECT leaf_adopt('t', 'id')")
        .is("42501")
        .says("must be owner of table public.t");
    app.fails("SELECT leaf_adopt('t', 'id')").is("42501");
    admin.run("GRANT USAGE ON SCHEMA leaf_id TO app; GRANT SELECT ON leaf_id.leaf_alloc TO app");
    app.fails("SELECT leaf_adopt('t', 'id')")
        .is("42501")
        .says("leaf_alloc");
    admin.run("GRANT INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO app");
    app.run("SELECT leaf_adopt('t', 'id')");
    // Whoever may insert needs nothing else.
    let mut writer = server.connect_as("writer", "postgres");
    writer.run("INSERT INTO t (n) VALUES (1)");
    app.run("ALTER TABLE t DROP CONSTRAINT t_pkey, ALTER id DROP NOT NULL; SELECT leaf_release('t', 'id')");
    writer.run("INSERT INTO t (n) VALUES (2)");
    // As a superuser, too, and the sequence is the owner's.
    app.run("SELECT leaf_adopt('t', 'id')");
    admin.run("SELECT leaf_release('t', 'id')");
    writer.run("INSERT INTO t (n) VALUES (3)");
    let owner: String =
        admin.value("SELECT relowner::regrole::text FROM pg_class WHERE relname = 't_id_seq'");
    assert_eq!(owner, "app");
    // Rows that it must not see count.
    app.run(
        "ALTER TABLE t ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY;
         CREATE POLICY nothing ON t USING (false)",
    );
    app.fails("SELECT leaf_adopt('t', 'id')")
        .is("42501")
        .details("row-level security");
}
