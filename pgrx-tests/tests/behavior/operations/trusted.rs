//! Would catch: a database owner who installs the extension and gains more privileges than
//! intended; one who cannot use it; and objects prepared by others before the installation.

use leaf_id_tests::{Server, Session};

/// A server, a superuser session in a database owned by owner, and a session of owner.
fn owned_database(conf: &[(&str, &str)]) -> (Server, Session, Session) {
    let server = Server::start(conf);
    server
        .session()
        .run("CREATE ROLE owner LOGIN; CREATE ROLE alice LOGIN; CREATE ROLE mallory LOGIN");
    server.session().run("CREATE DATABASE app OWNER owner");
    let admin = server.session_in("app");
    let owner = server.connect_as("owner", "app");
    (server, admin, owner)
}

#[test]
fn the_owner_of_a_database_installs_manages_and_removes() {
    let (server, _admin, mut owner) = owned_database(&[("leaf_id.worker_id", "1")]);
    owner.run("CREATE EXTENSION leaf_id; SELECT leaf_tag_create('t', step => 10)");
    assert_eq!(owner.take("t", 25).len(), 25);
    owner.run("UPDATE leaf_id.leaf_alloc SET max_id = 5000");
    assert!(owner.next("t") >= 5000);
    owner.run(
        "SELECT leaf_tag_reset('t', 900); SELECT leaf_id.leaf_worker_retire(7);
         INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('u'); DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 'u';
         GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO alice;
         GRANT EXECUTE ON FUNCTION leaf_id.leaf_claim TO alice",
    );
    let mut alice = server.connect_as("alice", "app");
    alice.run("SELECT leaf_tag_create('of alice'); SELECT leaf_tag_drop('of alice')");
    alice.run("SELECT token FROM ts_parse('leaf_id.leaf_claim', json_build_object('version', 1, 'tag', 't', 'n', 5)::text)");
    owner.run("DROP EXTENSION leaf_id; CREATE EXTENSION leaf_id; DROP EXTENSION leaf_id");
    // No other role may.
    alice.fails("CREATE EXTENSION leaf_id").is("42501");
}

/// Ways to attach code to the tables, or to replace objects.
const TAKEOVERS: [&str; 31] = [
    "CREATE TRIGGER t AFTER UPDATE ON leaf_id.leaf_alloc FOR EACH ROW EXECUTE FUNCTION public.trap()",
    "CREATE TRIGGER t AFTER UPDATE ON leaf_id.leaf_worker FOR EACH ROW EXECUTE FUNCTION public.trap()",
    "CREATE RULE r AS ON UPDATE TO leaf_id.leaf_alloc DO INSTEAD NOTHING",
    "CREATE POLICY p ON leaf_id.leaf_alloc",
    "CREATE INDEX ON leaf_id.leaf_alloc (step)",
    "CREATE TABLE child () INHERITS (leaf_id.leaf_alloc)",
    "CREATE TABLE refers (tag text REFERENCES leaf_id.leaf_alloc)",
    "CREATE PUBLICATION p FOR TABLE leaf_id.leaf_alloc",
    "CREATE PUBLICATION p FOR ALL TABLES",
    "CREATE STATISTICS s ON step, max_id FROM leaf_id.leaf_alloc",
    "CREATE TABLE leaf_id.mine ()",
    "ALTER TABLE leaf_id.leaf_alloc ADD extra int",
    "ALTER TABLE leaf_id.leaf_alloc DISABLE TRIGGER ALL",
    "ALTER TABLE leaf_id.leaf_alloc ALTER update_time TYPE text",
    "ALTER TABLE leaf_id.leaf_alloc SET SCHEMA public",
    "ALTER TABLE leaf_id.leaf_alloc OWNER TO owner",
    "TRUNCATE leaf_id.leaf_alloc",
    "DELETE FROM leaf_id.leaf_registry",
    "UPDATE leaf_id.leaf_worker SET token = 0",
    "CLUSTER leaf_id.leaf_alloc USING leaf_alloc_pkey",
    "DROP TABLE leaf_id.leaf_alloc",
    "ALTER SCHEMA leaf_id RENAME TO mine",
    "DROP SCHEMA leaf_id CASCADE",
    "CREATE OR REPLACE FUNCTION leaf_segment_next(tag text) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'",
    "CREATE OR REPLACE VIEW leaf_id.tags_detail AS SELECT 1 AS tag",
    "ALTER FUNCTION leaf_segment_next(text) RENAME TO mine",
    "ALTER EXTENSION leaf_id DROP TABLE leaf_id.leaf_alloc",
    "ALTER EXTENSION leaf_id DROP FUNCTION leaf_segment_next(text)",
    "ALTER EXTENSION leaf_id DROP SCHEMA leaf_id",
    "SELECT leaf_id.leaf_snowflake_reset(now())",
    "ALTER DEFAULT PRIVILEGES FOR ROLE postgres GRANT ALL ON TABLES TO owner",
];

#[test]
fn the_owner_of_a_database_owns_none_of_it() {
    let (_server, mut admin, mut owner) = owned_database(&[]);
    owner.run(
        "CREATE EXTENSION leaf_id;
         CREATE FUNCTION public.trap() RETURNS trigger LANGUAGE plpgsql
             AS 'BEGIN RAISE EXCEPTION ''run as %'', current_user; END'",
    );
    for takeover in TAKEOVERS {
        println!("{takeover}");
        owner.fails(takeover).is("42501");
    }
    // Members of the extension belong to a superuser, whichever role installed it.
    let strange: i64 = admin.value(
        "SELECT count(*) FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner
         WHERE c.relname LIKE 'leaf\\_%' AND c.relkind IN ('r', 'v') AND NOT r.rolsuper",
    );
    assert_eq!(strange, 0);
}

/// All privileges on members of the extension, except for their owner's.
const PRIVILEGES: &str = "
    WITH members AS (
        SELECT d.classid, d.objid FROM pg_depend d JOIN pg_extension e ON e.oid = d.refobjid
        WHERE e.extname = 'leaf_id' AND d.refclassid = 'pg_extension'::regclass AND d.deptype = 'e'
    ), lists AS (
        SELECT classid, objid, nspowner AS owner, nspacl AS acl FROM members, pg_namespace n
            WHERE classid = 'pg_namespace'::regclass AND n.oid = objid
        UNION ALL
        SELECT classid, objid, relowner, relacl FROM members, pg_class c
            WHERE classid = 'pg_class'::regclass AND c.oid = objid
        UNION ALL
        SELECT classid, objid, proowner, coalesce(proacl, acldefault('f', proowner)) FROM members, pg_proc p
            WHERE classid = 'pg_proc'::regclass AND p.oid = objid
    )
    SELECT format('%s: %s to %s %s', pg_describe_object(classid, objid, 0), privilege_type,
        CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END, is_grantable)
    FROM lists, aclexplode(acl) WHERE grantee <> owner ORDER BY 1";

#[test]
fn what_default_privileges_gave_is_taken_back() {
    let (server, mut admin, mut owner) = owned_database(&[]);
    owner.run("CREATE EXTENSION leaf_id");
    let wanted: Vec<String> = owner.column(PRIVILEGES);
    assert!(wanted.len() > 30, "{wanted:?}");
    for privilege in &wanted {
        let to_all = privilege.contains(" to PUBLIC ");
        // Issuing ids; managing tags with the caller's rights, and the functions called for that;
        // USAGE of the schema; the views, which check their readers. No privilege on a table.
        let harmless = [
            "leaf_segment_next",
            "leaf_snowflake_",
            "function leaf_opaque_next",
            "function leaf_ordered_",
            "function leaf_tag_",
            "function leaf_sync",
            "function leaf_check",
            "function leaf_adopt(",
            "function leaf_release(",
            "function leaf_adopt_all(",
            "function leaf_release_all(",
            "function leaf_format",
            "function leaf_parse",
            "function leaf_id.leaf_gapless_create(",
            "function leaf_id.leaf_gapless_drop(",
            "function leaf_id.",
            "function leaf_id_internal.",
            "schema leaf_id: USAGE",
            "schema leaf_id_internal: USAGE",
            "view leaf_id.tags: SELECT",
            "view leaf_id.tags_detail: SELECT",
            "view leaf_id.problems: SELECT",
            "view leaf_id.server: SELECT",
            "view leaf_id.fleet: SELECT",
        ];
        let harmless = harmless.iter().any(|name| privilege.contains(name));
        assert!(!to_all || harmless, "{privilege}");
        for code in ["TRIGGER", "TRUNCATE", "REFERENCES", "CREATE to"] {
            assert!(!privilege.contains(code), "{privilege}");
        }
    }
    owner.run("DROP EXTENSION leaf_id");
    for kind in ["SCHEMAS", "TABLES", "FUNCTIONS"] {
        admin.run(&format!(
            "ALTER DEFAULT PRIVILEGES GRANT ALL ON {kind} TO mallory, owner, pg_monitor WITH GRANT OPTION;
             ALTER DEFAULT PRIVILEGES GRANT ALL ON {kind} TO alice;
             ALTER DEFAULT PRIVILEGES GRANT ALL ON {kind} TO PUBLIC"
        ));
    }
    admin.run("ALTER DEFAULT PRIVILEGES IN SCHEMA public GRANT ALL ON TABLES TO alice");
    owner.run("CREATE EXTENSION leaf_id");
    assert_eq!(owner.column::<String>(PRIVILEGES), wanted);
    owner.run("DROP EXTENSION leaf_id");
    // If a superuser installs it, these are the owner's own privileges, without grants to a role.
    admin.run("CREATE EXTENSION leaf_id");
    let wanted: Vec<String> = wanted
        .into_iter()
        .filter(|privilege| !privilege.contains(" to owner "))
        .collect();
    assert_eq!(admin.column::<String>(PRIVILEGES), wanted);
    let mut mallory = server.connect_as("mallory", "app");
    mallory
        .fails("SELECT * FROM leaf_id.leaf_alloc")
        .is("42501");
    mallory
        .fails("CREATE TRIGGER t AFTER UPDATE ON leaf_id.leaf_alloc FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()")
        .is("42501");
}

/// Operators and functions that match some call better than PostgreSQL's own, created before the
/// extension. Each leaves a row behind if executed.
#[test]
fn what_was_planted_before_takes_no_part() {
    let (server, mut admin, mut owner) = owned_database(&[("leaf_id.worker_id", "1")]);
    owner.run(
        "CREATE TABLE public.caught (who name, what text); GRANT INSERT ON public.caught TO PUBLIC",
    );
    let plant = |function: &str, operator: &str, left: &str, right: &str, result: &str| {
        let arguments = [left, right].map(str::to_owned).into_iter();
        let arguments: Vec<String> = arguments.filter(|name| !name.is_empty()).collect();
        let mut sql = format!(
            "CREATE FUNCTION public.{function}({}) RETURNS {result} LANGUAGE plpgsql AS $$
             BEGIN INSERT INTO public.caught VALUES (current_user, '{function}'); RETURN NULL; END $$;",
            arguments.join(", ")
        );
        if !operator.is_empty() {
            sql += &format!(
                "CREATE OPERATOR public.{operator} (LEFTARG = {left}, RIGHTARG = {right}, FUNCTION = public.{function});"
            );
        }
        sql
    };
    let numbers = ["integer", "bigint", "numeric", "double precision"];
    let mut number = 0;
    for (operator, result) in [
        ("/", "double precision"),
        ("-", "bigint"),
        ("+", "bigint"),
        (">", "boolean"),
        (">=", "boolean"),
        ("<=", "boolean"),
        ("=", "boolean"),
    ] {
        for left in numbers {
            for right in numbers {
                number += 1;
                owner.run(&plant(&format!("f{number}"), operator, left, right, result));
            }
        }
    }
    for (function, operator, left, right, result) in [
        ("f_name", "=", "name", "name", "boolean"),
        ("f_text", "=", "text", "text", "boolean"),
        ("f_char", "=", "\"char\"", "text", "boolean"),
        ("f_oid", "=", "oid", "regclass", "boolean"),
        ("f_concat", "||", "text", "text", "text"),
        ("to_timestamp", "", "numeric", "", "timestamptz"),
        ("to_timestamp", "", "bigint", "", "timestamptz"),
        ("make_interval", "", "numeric", "", "interval"),
        ("octet_length", "", "text", "", "integer"),
        ("now", "", "", "", "timestamptz"),
        ("clock_timestamp", "", "", "", "timestamptz"),
    ] {
        owner.run(&plant(function, operator, left, right, result));
    }
    // He cannot create casts between types of others.
    owner
        .fails("CREATE CAST (bigint AS interval) WITHOUT FUNCTION")
        .is("42501");
    owner.run("CREATE EXTENSION leaf_id; SELECT leaf_tag_create('t', step => 10)");
    owner.take("t", 100);
    admin.run(
        "UPDATE leaf_id.leaf_alloc SET step = 20;
         SELECT leaf_id.leaf_worker_retire(3);
         UPDATE leaf_id.leaf_worker SET reserved_until_ms = 1700000000000",
    );
    let mut monitor = server.session_in("app");
    for view in ["tags", "tags_detail", "problems", "server", "fleet"] {
        monitor.run(&format!("SELECT * FROM leaf_id.{view}"));
    }
    admin.run("SELECT leaf_tag_reset('t', 5); SELECT leaf_tag_drop('t')");
    assert_eq!(
        owner.column::<String>("SELECT what FROM public.caught"),
        Vec::<String>::new()
    );
    // Proof that an execution would have been detected.
    owner.run("SET search_path = public, pg_catalog; SELECT 1::bigint / 2::double precision");
    assert_eq!(
        owner.column::<String>("SELECT who::text FROM public.caught"),
        ["owner"]
    );
}

#[test]
fn what_is_in_the_way_is_an_error() {
    let (_server, _admin, mut owner) = owned_database(&[]);
    owner
        .fails("CREATE EXTENSION leaf_id SCHEMA leaf_id")
        .is("3F000");
    owner.run("CREATE SCHEMA leaf_id");
    owner
        .fails("CREATE EXTENSION leaf_id")
        .is("42P06")
        .hints("Role owner, which owns it, or a superuser can");
    owner
        .fails("CREATE EXTENSION leaf_id SCHEMA leaf_id")
        .is("42P06");
    owner.run(
        "DROP SCHEMA leaf_id;
         CREATE FUNCTION public.leaf_segment_next(tag text) RETURNS bigint LANGUAGE sql AS 'SELECT 1::bigint'",
    );
    owner.fails("CREATE EXTENSION leaf_id").is("42723");
}

/// Tools that compare a schema with a model, or dump it, query the tables of the search path or of
/// schema public. They would drop leaf_id's tables, which are not the application's.
#[test]
fn schema_tools_do_not_see_the_tables() {
    let (_server, _admin, mut owner) = owned_database(&[]);
    owner.run("CREATE EXTENSION leaf_id; CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT leaf_segment_next('orders'))");
    for tables in [
        // Query of SQLAlchemy and Alembic.
        "SELECT c.relname::text FROM pg_catalog.pg_class c
         JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
         WHERE c.relkind = ANY (ARRAY['r', 'p', 'f']) AND c.relpersistence <> 't'
             AND pg_catalog.pg_table_is_visible(c.oid) AND n.nspname <> 'pg_catalog'",
        // Query of Rails.
        "SELECT c.relname::text FROM pg_class c LEFT JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname = ANY (current_schemas(false)) AND c.relkind IN ('r', 'p')",
        // Query of single-schema tools.
        "SELECT table_name::text FROM information_schema.tables
         WHERE table_schema = 'public' AND table_type = 'BASE TABLE'",
        "SELECT tablename::text FROM pg_tables WHERE schemaname = ANY (current_schemas(false))",
    ] {
        assert_eq!(owner.column::<String>(tables), ["orders"], "{tables}");
    }
}
