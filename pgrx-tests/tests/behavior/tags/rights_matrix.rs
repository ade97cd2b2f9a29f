//! Would catch: a role with more or fewer privileges than SECURITY.md says. The table there is
//! tested with real roles.

use leaf_id_tests::{Server, Session, lease_message, lease_query};

const SECURITY: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../SECURITY.md"));
/// Columns of the table, and the role tested for each.
const ROLES: [(&str, &str); 6] = [
    ("superuser", "postgres"),
    ("installing role", "owner"),
    ("tag manager", "manager"),
    ("member server", "member"),
    ("`pg_monitor`", "monitor"),
    ("any other role", "alice"),
];
/// Current time in Unix milliseconds.
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// Statements for a row of the table: preparation by a superuser, and statements each of which must
/// either succeed, or fail because of a missing privilege. `{role}` stands for the role.
fn statements(action: &str) -> (&'static str, Vec<String>) {
    let lease = |tokens| {
        let fields = format!(
            "1, '{{role}}', {tokens}, NULL, NULL, NULL, {{now}}, 1288834974657, '41/10/12'"
        );
        lease_query(&lease_message(&fields))
    };
    let (claim, renewal) = (lease("0, 2"), lease("2, 3"));
    let (prepare, statements): (&str, &[&str]) = match action {
        "issue ids of a tag that was granted to `public`" => (
            "",
            &[
                "SELECT leaf_segment_next('t')",
                "SELECT leaf_segment_next_batch('t', 3)",
                "SELECT leaf_segment_next_range('t', 3)",
                "SELECT leaf_ordered_next('t')",
                "SELECT leaf_ordered_watermark('t')",
            ],
        ),
        "issue snowflake ids" => (
            "",
            &[
                "SELECT leaf_snowflake_next()",
                "SELECT leaf_snowflake_next_batch(3)",
            ],
        ),
        "decode and compose snowflake ids" => (
            "",
            &[
                "SELECT leaf_snowflake_decode(2124058834992369739)",
                "SELECT leaf_snowflake_decode(2124058834992369739, 0)",
                "SELECT leaf_snowflake_min(now()), leaf_snowflake_min(now(), 0)",
                "SELECT leaf_snowflake_time(1), leaf_snowflake_time(1, 0)",
                "SELECT leaf_snowflake_compose(now(), 1, 1), leaf_snowflake_compose(now(), 1, 1, 0)",
            ],
        ),
        "create, reset and drop tags" => (
            "",
            &[
                "SELECT leaf_tag_create('of {role}')",
                "SELECT leaf_tag_reset('of {role}', 1)",
                "SELECT leaf_tag_drop('of {role}')",
            ],
        ),
        "fit tags to the data" => ("", &["SELECT leaf_sync()"]),
        "issue ids of a tag that was granted to them by name" => (
            "",
            &["SELECT leaf_segment_next('granted')"],
        ),
        "issue ids of any other tag" => (
            "",
            &[
                "SELECT leaf_segment_next('others')",
                "SELECT leaf_segment_next_batch('others', 3)",
                "SELECT leaf_segment_next_range('others', 3)",
                "SELECT leaf_ordered_next('others')",
                "SELECT leaf_ordered_watermark('others')",
            ],
        ),
        "move a column of their own table to a tag" => (
            "CREATE SCHEMA IF NOT EXISTS of_{role} AUTHORIZATION {role};
             DROP TABLE IF EXISTS of_{role}.t;
             CREATE TABLE of_{role}.t (id serial);
             ALTER TABLE of_{role}.t OWNER TO {role}",
            &["SELECT leaf_adopt('of_{role}.t', 'id')"],
        ),
        "grant and revoke a tag" => (
            "",
            &[
                "SELECT leaf_tag_grant('t', 'grantee')",
                "SELECT leaf_tag_revoke('t', 'grantee')",
            ],
        ),
        "read `leaf_alloc`" => ("", &["SELECT * FROM leaf_id.leaf_alloc"]),
        "edit `leaf_alloc`" => (
            "",
            &[
                "INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('of {role}')",
                "UPDATE leaf_id.leaf_alloc SET step = 20 WHERE biz_tag = 'of {role}'",
                "DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 'of {role}'",
            ],
        ),
        "make and read keys of opaque ids (`leaf_opaque_create`, `leaf_opaque_key`), dump and restore them" => (
            "",
            &[
                "SELECT * FROM leaf_id.leaf_opaque_key",
                "INSERT INTO leaf_id.leaf_opaque_key VALUES ('{role}', 1000000, sha256(''))",
                "SELECT leaf_id.leaf_opaque_key('opaque')",
                "SELECT leaf_id.leaf_opaque_create('opaque of {role}')",
            ],
        ),
        "encode and decode opaque ids" => (
            "",
            &[
                "SELECT leaf_id.leaf_opaque_encode('opaque', 1)",
                "SELECT leaf_id.leaf_opaque_decode('opaque', 1)",
            ],
        ),
        "issue opaque ids of a tag that was granted to `public`" => ("", &["SELECT leaf_opaque_next('opaque')"]),
        "reset an opaque tag, or create it again" => (
            "",
            &[
                "SELECT leaf_tag_reset('opaque', 5)",
                "DO $$ BEGIN
                     PERFORM leaf_tag_drop('opaque');
                     PERFORM leaf_tag_create('opaque');
                 END $$",
            ],
        ),
        "grant these to others" => (
            "",
            &[
                // Without a grant option PostgreSQL only warns.
                "DO $$ BEGIN
                     GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO grantee;
                     IF NOT has_table_privilege('grantee', 'leaf_id.leaf_alloc', 'DELETE') THEN
                         RAISE insufficient_privilege;
                     END IF;
                     REVOKE SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc FROM grantee;
                 END $$",
                "DO $$ BEGIN
                     GRANT EXECUTE ON FUNCTION leaf_id.leaf_claim, leaf_id.leaf_worker_lease TO grantee;
                     IF NOT has_function_privilege('grantee', 'leaf_id.leaf_claim(internal, integer)', 'EXECUTE') THEN
                         RAISE insufficient_privilege;
                     END IF;
                     REVOKE EXECUTE ON FUNCTION leaf_id.leaf_claim, leaf_id.leaf_worker_lease FROM grantee;
                 END $$",
            ],
        ),
        "format ids, and read formatted ones" => (
            "",
            &[
                "SELECT leaf_parse(leaf_format(1, 'a{N}'), 'a{N}')",
                "SELECT leaf_parse(leaf_format(1, '{UUID}'), '{UUID}')",
            ],
        ),
        "take gapless numbers" => ("", &["SELECT leaf_id.leaf_gapless_next('s')"]),
        "create and drop gapless series" => (
            "",
            &[
                "SELECT leaf_id.leaf_gapless_create('of {role}')",
                "SELECT leaf_id.leaf_gapless_drop('of {role}')",
            ],
        ),
        "read `leaf_gapless`" => ("", &["SELECT * FROM leaf_id.leaf_gapless"]),
        "edit `leaf_gapless` by hand, and lock its rows" => (
            "",
            &[
                "UPDATE leaf_id.leaf_gapless SET last_number = 5",
                "SELECT FROM leaf_id.leaf_gapless FOR UPDATE",
                "SELECT FROM leaf_id.leaf_gapless FOR KEY SHARE",
            ],
        ),
        "read the views of the tags of this database, and check them" => (
            "",
            &[
                "SELECT * FROM leaf_id.tags",
                "SELECT * FROM leaf_id.tags_detail",
                "SELECT * FROM leaf_id.problems",
                "SELECT * FROM leaf_id.fleet",
                "SELECT * FROM leaf_check()",
            ],
        ),
        "read the view of the server" => ("", &["SELECT * FROM leaf_id.server"]),
        "`leaf_claim`" => ("", &["SELECT token FROM ts_parse('leaf_id.leaf_claim', json_build_object('version', 1, 'tag', 't', 'n', 3)::text)"]),
        "`leaf_worker_lease`" => (
            "",
            &[&claim, &renewal],
        ),
        "`leaf_worker_retire`, `leaf_worker_set_aside`" => (
            "SET session_replication_role = replica; DELETE FROM leaf_id.leaf_worker WHERE worker_id = 902;
             RESET session_replication_role",
            &[
                "SELECT leaf_id.leaf_worker_retire(901)",
                "SELECT leaf_id.leaf_worker_set_aside(902, now())",
            ],
        ),
        "set the terms of the registry" => (
            "",
            &["INSERT INTO leaf_id.leaf_registry (max_ids_per_role) VALUES (512)
               ON CONFLICT (one) DO UPDATE SET max_ids_per_role = excluded.max_ids_per_role"],
        ),
        "read `leaf_registry`" => ("", &["SELECT * FROM leaf_id.leaf_registry"]),
        "read `leaf_worker`" => ("", &["SELECT * FROM leaf_id.leaf_worker"]),
        "alter what the extension made" => (
            "",
            &[
                "ALTER TABLE leaf_id.leaf_alloc ALTER description SET STATISTICS 10",
                "ALTER FUNCTION leaf_id.leaf_claim COST 2",
                "COMMENT ON VIEW leaf_id.tags_detail IS 'of {role}'",
                "CREATE TRIGGER t AFTER UPDATE ON leaf_id.leaf_alloc
                     FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()",
                "SET leaf_id.allow_truncate = on; TRUNCATE leaf_id.leaf_alloc",
            ],
        ),
        "`leaf_snowflake_reset`" => ("", &["SELECT leaf_id.leaf_snowflake_reset(now() + '1 min')"]),
        _ => panic!("SECURITY.md has a row that is not tried: {action}"),
    };
    let statements = statements.iter().map(|sql| sql.replace("{now}", NOW));
    (prepare, statements.collect())
}

/// Cells of a line of a table.
fn cells(line: &str) -> Vec<&str> {
    line.trim_matches('|').split('|').map(str::trim).collect()
}

#[test]
fn each_role_may_do_what_security_md_says() {
    let server = Server::start(&[("leaf_id.worker_id", "1")]);
    let mut admin = server.session();
    admin.run(
        "CREATE ROLE owner LOGIN; CREATE ROLE manager LOGIN; CREATE ROLE member LOGIN;
         CREATE ROLE monitor LOGIN; CREATE ROLE alice LOGIN; CREATE ROLE grantee;
         GRANT pg_monitor TO monitor",
    );
    admin.run("CREATE DATABASE app OWNER owner");
    let mut admin = server.session_in("app");
    // Grants that SECURITY.md recommends to the installing role.
    server.connect_as("owner", "app").run(
        "CREATE EXTENSION leaf_id; SELECT leaf_tag_create('t');
         GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO manager;
         GRANT USAGE ON SCHEMA leaf_id TO manager WITH GRANT OPTION;
         GRANT EXECUTE ON FUNCTION leaf_id.leaf_claim, leaf_id.leaf_worker_lease TO member;
         GRANT SELECT, INSERT, DELETE ON leaf_id.leaf_gapless TO manager;
         SELECT leaf_id.leaf_gapless_create('s');
         SELECT leaf_tag_create('granted'), leaf_tag_create('others'), leaf_id.leaf_opaque_create('opaque');
         SELECT leaf_tag_grant('t', 'public'), leaf_tag_grant('opaque', 'public')",
    );
    for (_, role) in ROLES {
        admin.run(&format!("SELECT leaf_tag_grant('granted', '{role}')"));
    }
    let mut sessions: Vec<Session> = ROLES
        .iter()
        .map(|(_, role)| server.connect_as(role, "app"))
        .collect();

    let mut lines = SECURITY
        .lines()
        .skip_while(|line| !line.starts_with("| what |"));
    let head: Vec<&str> = cells(lines.next().expect("the table of rights"));
    assert_eq!(head[1..], ROLES.map(|(column, _)| column));
    let rows: Vec<Vec<&str>> = lines
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .map(cells)
        .collect();
    assert!(rows.len() >= 18, "{rows:?}");
    let mut wrong = Vec::new();
    for row in rows {
        let (prepare, statements) = statements(row[0]);
        assert_eq!(row.len(), ROLES.len() + 1, "{row:?}");
        for ((session, (_, role)), cell) in sessions.iter_mut().zip(ROLES).zip(&row[1..]) {
            if !prepare.is_empty() {
                admin.run(&prepare.replace("{role}", role));
            }
            for statement in &statements {
                let found = session.try_run(&statement.replace("{role}", role));
                let said = match &found {
                    Ok(()) => "yes",
                    Err(failure) if failure.state == "42501" => "no",
                    Err(failure) => panic!("{statement} by {role}: {failure}"),
                };
                if said != *cell {
                    wrong.push(format!(
                        "{statement} by {role}: {said}, and SECURITY.md says {cell}"
                    ));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
