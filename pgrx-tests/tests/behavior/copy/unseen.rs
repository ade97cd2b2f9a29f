//! Would catch: the twins that COPY calls being visible: in a dump, in psql, after a restore, or to
//! code other than COPY that plans an expression by itself, like Citus.

use leaf_id_tests::{Server, assert_issued_once};

use super::{copy_in, server_and_session};

/// A dump of the table, without pg_dump's random key.
fn dump(server: &Server) -> String {
    let dump = server.run("pg_dump", &["-s", "-n", "shop", "postgres"]);
    let lines = dump.lines().filter(|line| !line.contains("restrict "));
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn dumps_and_descriptions_do_not_show_it() {
    let (server, mut session) = server_and_session();
    session.run(
        "CREATE SCHEMA shop;
         CREATE DOMAIN shop.key AS bigint DEFAULT leaf_segment_next('a');
         CREATE TABLE shop.t (id bigint DEFAULT leaf_segment_next('a') PRIMARY KEY, k shop.key,
             s bigint DEFAULT leaf_snowflake_next(), i int CHECK (i < leaf_segment_next('a') + 1000))",
    );
    let describe = || {
        server.run(
            "psql",
            &["-X", "-c", "\\d+ shop.t", "-c", "\\dD+ shop.*", "postgres"],
        )
    };
    let (dumped, described) = (dump(&server), describe());
    assert_eq!(
        copy_in(&mut session, "COPY shop.t (i) FROM STDIN", 100),
        Ok(100)
    );
    assert_eq!(
        (dump(&server), describe()),
        (dumped.clone(), described.clone())
    );
    for text in [dumped, described] {
        assert!(text.contains("leaf_segment_next('a'::text)"), "{text}");
        assert!(
            !text.contains("_stable") && !text.contains("support"),
            "{text}"
        );
    }
    // A restored table is copied in bulk, too, so it has the support function.
    server.run("createdb", &["restored"]);
    let file = server.dir().join("dump");
    server.run("pg_dump", &["-f", file.to_str().unwrap(), "postgres"]);
    server.run(
        "psql",
        &[
            "-qX",
            "-v",
            "ON_ERROR_STOP=1",
            "-o",
            "/dev/null",
            "-f",
            file.to_str().unwrap(),
            "restored",
        ],
    );
    let mut restored = server.session_in("restored");
    assert_eq!(
        copy_in(&mut restored, "COPY shop.t (i) FROM STDIN", 100),
        Ok(100)
    );
    assert_issued_once(&[restored.ids("SELECT id FROM shop.t ORDER BY ctid")]);
    let support =
        "SELECT prosupport::regproc::text FROM pg_proc WHERE proname = 'leaf_segment_next'";
    assert_eq!(
        restored.value::<String>(support),
        "leaf_id_internal.leaf_next_support"
    );
}

/// Citus plans an expression outside of a query, and evaluates its parts: a part that stands only
/// for `nextval` is an error there. Functions in C are counted under their own names.
#[test]
fn nothing_else_calls_a_twin() {
    let (_server, mut session) = server_and_session();
    session.run(
        "CREATE TABLE t (i int, id bigint DEFAULT leaf_segment_next('a'), s bigint DEFAULT leaf_snowflake_next());
         CREATE TABLE c (i int CHECK (i < leaf_segment_next('a') + leaf_snowflake_next()));
         CREATE TABLE added (i int); INSERT INTO added VALUES (1);
         CREATE TABLE copied (id bigint);
         CREATE FUNCTION inserts() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN INSERT INTO t (i) VALUES (1); INSERT INTO c VALUES (1); RETURN NEW; END $$;
         CREATE TRIGGER inserts BEFORE INSERT ON copied FOR EACH ROW EXECUTE FUNCTION inserts();
         SET track_functions = 'all'",
    );
    const TWINS: &str =
        "SELECT coalesce(string_agg(proname::text, ' ' ORDER BY proname), '') FROM pg_proc
         WHERE proname ~ '^leaf_.*_next_stable$' AND pg_stat_get_xact_function_calls(oid) > 0";
    for statement in [
        "ALTER TABLE added ADD id bigint DEFAULT leaf_segment_next('a')",
        "ALTER TABLE added ADD s bigint DEFAULT leaf_snowflake_next()",
        "INSERT INTO t (i) VALUES (1), (2)",
        "INSERT INTO c VALUES (1)",
        "PREPARE p AS SELECT $1; EXECUTE p(leaf_segment_next('a'))",
        "DO 'DECLARE id bigint := leaf_segment_next(''a''); BEGIN id := leaf_snowflake_next(); END'",
    ] {
        session.run(&format!("BEGIN; {statement}"));
        assert_eq!(session.value::<String>(TWINS), "", "{statement}");
        session.run("ROLLBACK");
    }
    // Not even under COPY, except for its own defaults.
    for (statement, twins) in [
        ("COPY copied FROM STDIN", ""),
        ("COPY c FROM STDIN", ""),
        (
            "COPY t (i) FROM STDIN",
            "leaf_segment_next_stable leaf_snowflake_next_stable",
        ),
    ] {
        session.run("BEGIN");
        assert_eq!(copy_in(&mut session, statement, 3), Ok(3));
        assert_eq!(session.value::<String>(TWINS), twins, "{statement}");
        session.run("ROLLBACK");
    }
}
