//! Would catch: a COPY that inserts row by row, which shows in its amount of WAL; one that inserts
//! in bulk although a default may query the table; and ids out of row order.

use std::path::Path;

use leaf_id_tests::{Session, assert_issued_once};

use super::{file_of_rows, server_and_session};

const ROWS: u32 = 20_000;

/// Bytes of WAL written by a COPY into a table with this column `id`. Checks that the rows are in
/// order of their ids.
fn wal_of(session: &mut Session, column: &str, file: &Path) -> i64 {
    session.run(&format!("CREATE TABLE t (id {column}, i int)"));
    // Warm-up: first segment and lookups of the session.
    session.run(&format!("COPY t (i) FROM '{}'; TRUNCATE t", file.display()));
    let before: String = session.value("SELECT pg_current_wal_insert_lsn()::text");
    session.run(&format!("COPY t (i) FROM '{}'", file.display()));
    let bytes = session.value(&format!(
        "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '{before}')::bigint"
    ));
    println!("{bytes:>9} bytes of WAL: {column}");
    let ids = session.ids("SELECT id::text::bigint FROM t ORDER BY i");
    assert_eq!(ids.len(), ROWS as usize);
    assert_issued_once(&[ids]);
    assert!(session.value::<bool>("SELECT max(i) = count(*) FROM t"));
    session.run("DROP TABLE t");
    bytes
}

#[test]
fn defaults_that_issue_ids_write_no_more_wal_than_a_serial() {
    let (server, mut session) = server_and_session();
    let file = file_of_rows(&server, ROWS);
    session.run(
        "CREATE DOMAIN key AS bigint DEFAULT leaf_segment_next('a') CHECK (VALUE > 0);
         CREATE FUNCTION next_key() RETURNS bigint LANGUAGE sql AS $$SELECT leaf_segment_next('a')$$;
         CREATE FUNCTION next_key(tag text) RETURNS bigint LANGUAGE sql AS 'SELECT leaf_segment_next(tag)'",
    );
    let serial = wal_of(&mut session, "bigserial", &file);
    for column in [
        "bigint DEFAULT leaf_segment_next('a')",
        "bigint DEFAULT leaf_segment_next('a'::varchar)",
        "bigint DEFAULT leaf_segment_next('a' COLLATE \"C\")",
        "bigint DEFAULT leaf_snowflake_next()",
        "bigint DEFAULT 3 * leaf_segment_next('a') + 1",
        "bigint DEFAULT coalesce(leaf_segment_next('a'), 0)",
        "text DEFAULT leaf_segment_next('a')",
        "key",
        "bigint DEFAULT next_key()",
        "bigint DEFAULT next_key('a')",
    ] {
        let bytes = wal_of(&mut session, column, &file);
        assert!(
            bytes <= serial,
            "{column}: {bytes} bytes, a serial {serial}"
        );
    }
}

/// Other volatile functions may query the table, and a tag that is not a constant is looked up for
/// each row.
#[test]
fn other_defaults_are_left_to_postgresql() {
    let (server, mut session) = server_and_session();
    let file = file_of_rows(&server, ROWS);
    session.run(
        "CREATE FUNCTION nothing() RETURNS bigint VOLATILE LANGUAGE plpgsql AS 'BEGIN RETURN 0; END';
         CREATE FUNCTION next_key() RETURNS bigint LANGUAGE plpgsql
             AS $$BEGIN RETURN leaf_segment_next('a'); END$$;
         SELECT leaf_tag_create('postgres')",
    );
    let serial = wal_of(&mut session, "bigserial", &file);
    for column in [
        "bigint DEFAULT leaf_segment_next('a') + nothing()",
        "bigint DEFAULT leaf_segment_next(current_user)",
        "bigint DEFAULT next_key()",
    ] {
        let bytes = wal_of(&mut session, column, &file);
        assert!(
            bytes > 2 * serial,
            "{column}: {bytes} bytes, a serial {serial}"
        );
    }
}
