//! Would catch: a formatted id that cannot be used where its column is (a generated column, an
//! index, a view, a parallel query), and an error without what the reader needs. What the
//! patterns mean is tested in the core.

use leaf_id_tests::{Server, Session};

fn server_and_session() -> (Server, Session) {
    // It needs no shared memory.
    let server = Server::with_leaf_id(&[("shared_preload_libraries", "")]);
    let session = server.session();
    (server, session)
}

#[test]
fn ids_are_shown_and_found_by_what_is_shown() {
    let (_server, mut session) = server_and_session();
    session.run(
        "CREATE TABLE invoices (
             id bigint PRIMARY KEY,
             number text GENERATED ALWAYS AS (leaf_format(id, 'INV-{YYYY}-{N:6}')) STORED UNIQUE,
             public_id uuid GENERATED ALWAYS AS (leaf_format_uuid(id)) STORED UNIQUE,
             CHECK (leaf_parse(number, 'INV-{YYYY}-{N:6}') = id AND leaf_parse_uuid(public_id) = id));
         INSERT INTO invoices SELECT 2026000000 + n FROM generate_series(1, 1000) n;
         CREATE INDEX ON invoices (leaf_format(id, 'inv_{BASE32}{CHECK}'));
         CREATE VIEW shown AS SELECT leaf_format(id, 'inv_{BASE32}{CHECK}') AS id, number FROM invoices;
         ANALYZE invoices",
    );
    let number: String = session.value("SELECT number FROM invoices WHERE id = 2026000123");
    assert_eq!(number, "INV-2026-000123");
    let shown: String = session.value("SELECT id FROM shown WHERE number = 'INV-2026-000123'");
    let found = format!("SELECT number FROM shown WHERE id = '{shown}'");
    assert_eq!(session.value::<String>(&found), number);
    let plan: Vec<String> = session.column(&format!("EXPLAIN {found}"));
    assert!(plan.join("\n").contains("Index Scan"), "{plan:?}");
    let uuid: String = session.value("SELECT leaf_format_uuid(2026000123)::text");
    assert_eq!(uuid, "00000000-0000-8000-8000-000078c24efb");
    let id = "SELECT leaf_parse_uuid(public_id) FROM invoices WHERE public_id = '00000000-0000-8000-8000-000078c24efb'";
    assert_eq!(session.value::<i64>(id), 2_026_000_123);
}

#[test]
fn they_run_in_parallel_workers() {
    let (_server, mut session) = server_and_session();
    session.run(
        "CREATE TABLE t AS SELECT n AS id FROM generate_series(1, 10000) n; ANALYZE t;
         SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0;
         SET max_parallel_workers_per_gather = 2",
    );
    let sql = "SELECT count(*) FROM t WHERE leaf_parse(leaf_format(id, 'a{N}'), 'a{N}') = id
               AND leaf_parse_uuid(leaf_format_uuid(id)) = id";
    let plan: Vec<String> = session.column(&format!("EXPLAIN {sql}"));
    assert!(plan.join("\n").contains("Gather"), "{plan:?}");
    assert_eq!(session.value::<i64>(sql), 10_000);
}

#[test]
fn what_is_wrong_is_told() {
    let (_server, mut session) = server_and_session();
    for (sql, state, message) in [
        ("SELECT leaf_format(1, 'INV')", "22023", "\"INV\""),
        ("SELECT leaf_parse('1', '{N')", "22023", "\"{N\""),
        ("SELECT leaf_format(-1, '{N}')", "22003", "-1"),
        ("SELECT leaf_format(1000, '{N:3}')", "22003", "1000"),
        ("SELECT leaf_format(123, '{YYYY}-{N:6}')", "22003", "123"),
        ("SELECT leaf_parse('a', '{N}')", "22P02", "\"a\""),
        (
            "SELECT leaf_parse('ord_16JC', 'ord_{BASE32}{CHECK}')",
            "22P02",
            "ord_16JC",
        ),
        (
            "SELECT leaf_parse('9223372036854775808', '{N}')",
            "22P02",
            "9223372036854775808",
        ),
        ("SELECT leaf_format_uuid(-1)", "22003", "-1"),
        (
            "SELECT leaf_parse_uuid('01890a5d-ac96-774b-bcce-b302099a8057')",
            "22P02",
            "01890a5d",
        ),
    ] {
        session.fails(sql).is(state).says(message);
    }
    session
        .fails("SELECT leaf_parse('ord_16JC', 'ord_{BASE32}{CHECK}')")
        .details("check symbol");
    for sql in [
        "SELECT leaf_format(NULL, '{N}')",
        "SELECT leaf_format(1, NULL)",
        "SELECT leaf_format_uuid(NULL)::text",
    ] {
        assert_eq!(session.column::<Option<String>>(sql), [None]);
    }
}

/// A pattern and a text that are longer than a short header, stored out of line and compressed.
#[test]
fn long_texts_are_read_as_they_are_stored() {
    let (_server, mut session) = server_and_session();
    session.run(
        "CREATE TABLE t (pattern text, formatted text);
         INSERT INTO t SELECT repeat('x', 100000) || '{N}';
         UPDATE t SET formatted = leaf_format(7, pattern)",
    );
    assert_eq!(
        session.value::<i64>("SELECT leaf_parse(formatted, pattern) FROM t"),
        7
    );
    assert_eq!(
        session.value::<i32>("SELECT length(formatted) FROM t"),
        100_001
    );
}
