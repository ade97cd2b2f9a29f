//! Would catch: the twins that COPY calls being visible: in a dump, in psql, or after a restore.

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
