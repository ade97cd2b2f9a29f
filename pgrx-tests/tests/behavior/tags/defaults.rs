//! Would catch: a default identified by its text instead of its meaning: one that `leaf_sync()`
//! misses or `leaf_adopt()` refuses because of settings, names or casts; a tag mistaken for another
//! one because of special characters in its name.

use leaf_id_tests::{Server, Session};

use super::sync::rows;

fn prepared() -> (Server, Session) {
    let server = Server::with_leaf_id(&[]);
    let session = server.session();
    (server, session)
}

fn tags(session: &mut Session) -> Vec<String> {
    session.column("SELECT biz_tag FROM leaf_id.leaf_alloc ORDER BY biz_tag")
}

#[test]
fn quotes_around_all_names_change_nothing() {
    let (_server, mut session) = prepared();
    session.run(
        "SET quote_all_identifiers = on;
         CREATE TABLE a (id int DEFAULT leaf_segment_next('a')::int);
         CREATE TABLE b (id serial) PARTITION BY LIST (id); CREATE TABLE b1 PARTITION OF b DEFAULT",
    );
    assert_eq!(rows(&mut session, "leaf_sync()"), [r#"a "a" id 1 create"#]);
    session.run("SELECT leaf_adopt('b', 'id')");
    assert_eq!(
        session.ids("INSERT INTO b1 DEFAULT VALUES RETURNING id::bigint"),
        [1]
    );
    session.run("SELECT leaf_release('b', 'id')");
    assert!(session.ids("INSERT INTO b DEFAULT VALUES RETURNING id::bigint")[0] > 1);
    assert_eq!(tags(&mut session), ["a"]);
}

/// A superuser may rename the function; columns still call the same function.
#[test]
fn the_function_may_have_another_name() {
    let (_server, mut session) = prepared();
    session.run(
        r#"CREATE TABLE a (id bigint DEFAULT leaf_segment_next('a')); CREATE TABLE b (id serial);
           ALTER FUNCTION leaf_segment_next(text) RENAME TO "Next ('x'::text)";
           CREATE FUNCTION public.leaf_segment_next(text) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'"#,
    );
    assert_eq!(rows(&mut session, "leaf_sync()"), ["a a id 1 create"]);
    session.run("SELECT leaf_adopt('b', 'id'); INSERT INTO b DEFAULT VALUES");
    assert_eq!(tags(&mut session), ["a", "b"]);
    session.run("SELECT leaf_release('b', 'id')");
    assert_eq!(tags(&mut session), ["a"]);
}

#[test]
fn casts_change_nothing() {
    let (_server, mut session) = prepared();
    session.run(
        r#"CREATE DOMAIN word AS text; CREATE DOMAIN number AS bigint; CREATE DOMAIN small AS int CHECK (value < 100);
           CREATE TABLE a (id bigint DEFAULT leaf_segment_next('a'::word));
           CREATE TABLE b (id number DEFAULT leaf_segment_next('b' COLLATE "C")::number);
           CREATE TABLE c (id small DEFAULT leaf_segment_next('c'::varchar::word)::int)"#,
    );
    assert_eq!(
        rows(&mut session, "leaf_sync()"),
        ["a a id 1 create", "b b id 1 create", "c c id 1 create"]
    );
    session.run(
        "CREATE SEQUENCE s; CREATE TABLE t (id int DEFAULT nextval('s')::int); ALTER SEQUENCE s OWNED BY t.id;
         SELECT leaf_adopt('t', 'id');
         ALTER TABLE t ALTER id SET DEFAULT leaf_segment_next('t')::int; INSERT INTO t DEFAULT VALUES",
    );
    session.run("SELECT leaf_release('t', 'id'), leaf_release('c', 'id')");
    assert_eq!(tags(&mut session), ["a", "b"]);
    assert!(session.ids("INSERT INTO t DEFAULT VALUES RETURNING id::bigint")[0] > 1);
}

/// A text in a default that looks like another tag's name.
#[test]
fn the_text_of_a_tag_means_nothing() {
    let (_server, mut session) = prepared();
    session.run(
        r"CREATE TABLE t (id bigserial); SELECT leaf_adopt('t', 'id');
          CREATE TABLE a (id bigint DEFAULT leaf_segment_next('it''t'));
          CREATE TABLE b (id bigint DEFAULT leaf_segment_next(E'\\''t''::text)%s %I $1 \n'))",
    );
    session.run("SELECT leaf_sync()");
    let others = ["\\'t'::text)%s %I $1 \n", "it't"];
    assert_eq!(tags(&mut session)[..2], others);
    session.run("SELECT leaf_release('t', 'id')");
    assert_eq!(tags(&mut session), others);
    session.run("SELECT leaf_release('a', 'id'), leaf_release('b', 'id')");
    assert!(tags(&mut session).is_empty());
}

/// By another function than the one that is replaced.
#[test]
fn a_tag_of_which_a_default_takes_ranges_stays() {
    let (_server, mut session) = prepared();
    session.run(
        "CREATE TABLE t (id bigserial); SELECT leaf_adopt('t', 'id');
         CREATE TABLE r (id bigint DEFAULT (leaf_segment_next_range('t', 10)).first_id, n int)",
    );
    session.run("SELECT leaf_release('t', 'id')");
    session.run("INSERT INTO r (n) VALUES (1)");
    assert_eq!(tags(&mut session), ["t"]);
}

/// An index has the type of its column, but no default.
#[test]
fn the_index_of_a_domains_column_keeps_no_tag() {
    let (_server, mut session) = prepared();
    session.run(
        "CREATE DOMAIN number AS bigint DEFAULT leaf_segment_next('t'); CREATE TABLE t (id number PRIMARY KEY);
         SELECT leaf_tag_create('t'); ALTER TABLE t ALTER id SET DEFAULT leaf_segment_next('t')",
    );
    session.run("SELECT leaf_release('t', 'id')");
    assert!(tags(&mut session).is_empty());
}

/// Any role that can read the catalogs may pass any expression tree from them.
#[test]
fn any_tree_of_the_catalogs_can_be_asked_about() {
    let (server, mut admin) = prepared();
    admin.run("CREATE ROLE anybody LOGIN");
    let mut session = server.connect_as("anybody", "postgres");
    let columns: Vec<String> = session.column(
        "SELECT format('SELECT leaf_id_internal.leaf_default_source(%I, 0, 16384) FROM %s', attname, attrelid::regclass)
         FROM pg_attribute JOIN pg_class c ON c.oid = attrelid AND relkind = 'r' WHERE atttypid = 'pg_node_tree'::regtype",
    );
    assert!(columns.len() > 5, "{columns:?}");
    for column in columns {
        if let Err(failure) = session.try_run(&column) {
            failure.is("XX000").says("unrecognized node type");
        }
    }
}
