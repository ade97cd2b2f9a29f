//! Would catch: a dump whose tags are behind the ids in its tables (I1), and a database whose owner
//! cannot dump or restore it, or loses grants. Each kind of tag is tested in `survival`.

use std::path::Path;

use leaf_id_tests::{Server, assert_issued_once, in_threads, while_repeating};

use crate::docs::page::Page;

const INSERT: &str = "INSERT INTO orders (note) SELECT 'x' FROM generate_series(1, 50)";

/// A database with tags, and a table filled by three sessions.
fn server_with_orders() -> Server {
    let server = Server::start(&[]);
    server.session().run("CREATE DATABASE shop");
    server.session_in("shop").run(
        "CREATE EXTENSION leaf_id;
         SELECT leaf_tag_create('orders', step => 10, description => 'numbers of orders');
         SELECT leaf_tag_create('unused', start => 77);
         CREATE TABLE orders
             (id bigint PRIMARY KEY DEFAULT leaf_segment_next('orders'), note text)",
    );
    in_threads(3, |_| {
        let mut session = server.session_in("shop");
        for _ in 0..40 {
            session.run(INSERT);
        }
    });
    server
}

fn restore(server: &Server, dump: &Path, database: &str) {
    server.session().run(&format!("CREATE DATABASE {database}"));
    restore_into(server, dump, database, "postgres");
}

fn restore_into(server: &Server, dump: &Path, database: &str, role: &str) {
    let options = ["-Xq", "-v", "ON_ERROR_STOP=1", "-U", role, "-d", database];
    let file = ["-f", dump.to_str().unwrap()];
    server.run("psql", &[&options[..], &file].concat());
}

/// Asserts that no id in the table is issued again.
fn assert_goes_on(server: &Server, database: &str) {
    let mut session = server.session_in(database);
    let mut ids = session.ids("SELECT id FROM orders ORDER BY id");
    assert!(ids.len() >= 6000);
    ids.extend(session.ids("INSERT INTO orders (note) VALUES ('a'), ('b') RETURNING id"));
    ids.extend(server.session_in(database).take("orders", 100));
    assert_issued_once(&[ids]);
    assert_eq!(session.next("unused"), 77);
}

#[test]
fn a_dump_taken_under_load_covers_its_own_ids() {
    let server = server_with_orders();
    let mut writer = server.session_in("shop");
    for round in 0..5 {
        let dump = server.dir().join(format!("dump{round}.sql"));
        while_repeating(
            || writer.run(INSERT),
            || server.run("pg_dump", &["-f", dump.to_str().unwrap(), "shop"]),
        );
        let database = format!("copy{round}");
        restore(&server, &dump, &database);
        let (last, max_id) = {
            let mut session = server.session_in(&database);
            let last: i64 = session.value("SELECT max(id) FROM orders");
            (
                last,
                session.value("SELECT max_id FROM leaf_id.leaf_alloc WHERE biz_tag = 'orders'"),
            )
        };
        assert!(last < max_id, "{last} is in the dump, max_id is {max_id}");
        assert_goes_on(&server, &database);
    }
}

/// Privileges on members of the extension, except for its owner's.
const GRANTS: &str = "
    SELECT format('%s: %s to %s by %s', n.nspname || '.' || c.relname, privilege_type,
        grantee::regrole, grantor::regrole)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, aclexplode(c.relacl)
    WHERE c.relname LIKE 'leaf\\_%' AND grantee <> c.relowner
    UNION ALL
    SELECT format('%s: %s to %s by %s', p.proname, privilege_type,
        CASE grantee WHEN 0 THEN 'PUBLIC' ELSE grantee::regrole::text END, grantor::regrole)
    FROM pg_proc p, aclexplode(coalesce(p.proacl, acldefault('f', p.proowner)))
    WHERE p.proname LIKE 'leaf\\_%' AND grantee <> p.proowner
    UNION ALL
    SELECT format('%s: %s to %s by %s', nspname, privilege_type, grantee::regrole, grantor::regrole)
    FROM pg_namespace n, aclexplode(n.nspacl) WHERE nspname = 'leaf_id' AND grantee <> n.nspowner
    ORDER BY 1";

#[test]
fn who_installed_it_dumps_and_restores_it() {
    let server = Server::start(&[]);
    let mut admin = server.session();
    admin.run(
        "CREATE ROLE owner LOGIN; CREATE ROLE manager LOGIN; CREATE ROLE mallory;
         ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO mallory",
    );
    for database in ["app", "his", "ours"] {
        admin.run(&format!("CREATE DATABASE {database} OWNER owner"));
    }
    let mut owner = server.connect_as("owner", "app");
    owner.run(
        "CREATE EXTENSION leaf_id; SELECT leaf_tag_create('orders', step => 10);
         SELECT leaf_id.leaf_worker_retire(7);
         CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT leaf_segment_next('orders'));
         INSERT INTO orders SELECT FROM generate_series(1, 100);
         GRANT USAGE ON SCHEMA leaf_id TO manager;
         GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO manager;
         GRANT EXECUTE ON FUNCTION leaf_tag_create, leaf_id.leaf_claim TO manager",
    );
    let grants: Vec<String> = owner.column(GRANTS);
    let tags = "SELECT biz_tag || max_id FROM leaf_id.leaf_alloc";
    let dumped: Vec<String> = owner.column(tags);
    let dump = server.dir().join("owner.sql");
    let file = dump.to_str().unwrap();
    server.run("pg_dump", &["-U", "owner", "-f", file, "app"]);
    // Unchanged privileges are not dumped, so they do not accumulate.
    let text = std::fs::read_to_string(&dump).unwrap();
    for line in text.lines().filter(|line| line.starts_with("GRANT")) {
        assert!(line.ends_with("TO manager;"), "{line}");
    }

    restore_into(&server, &dump, "his", "owner");
    let mut his = server.connect_as("owner", "his");
    assert_eq!(his.column::<String>(GRANTS), grants);
    assert_eq!(his.column::<String>(tags), dumped);
    assert_eq!(
        his.column::<i32>("SELECT worker_id FROM leaf_id.leaf_worker WHERE retired"),
        [7]
    );
    let mut ids = his.ids("SELECT id FROM orders");
    ids.extend(his.ids("INSERT INTO orders DEFAULT VALUES RETURNING id"));
    assert_issued_once(&[ids]);

    // A dump does not contain the role that installed the extension. So a superuser who restores it
    // recreates the extension as that role first.
    server
        .connect_as("owner", "ours")
        .run("CREATE EXTENSION leaf_id");
    server.run("pg_dump", &["-f", file, "app"]);
    restore_into(&server, &dump, "ours", "postgres");
    let mut ours = server.connect_as("owner", "ours");
    assert_eq!(ours.column::<String>(GRANTS), grants);
    assert_eq!(ours.column::<String>(tags), dumped);
}

/// With the grants of docs/operations.md. pg_dump locks every table that it is to dump.
#[test]
fn the_owner_dumps_what_a_superuser_installed() {
    let server = Server::start(&[]);
    let mut admin = server.session();
    admin.run("CREATE ROLE shop_owner LOGIN");
    for database in ["shop", "without_keys", "with_keys"] {
        admin.run(&format!("CREATE DATABASE {database} OWNER shop_owner"));
    }
    let mut shop = server.session_in("shop");
    shop.run(
        "CREATE EXTENSION leaf_id; SELECT leaf_tag_create('orders', step => 10);
         SELECT leaf_tag_grant('orders', 'shop_owner'); SELECT leaf_id.leaf_gapless_create('invoices');
         SELECT leaf_id.leaf_gapless_next('invoices'); SELECT leaf_id.leaf_worker_retire(7);
         SELECT leaf_id.leaf_opaque_create('codes')",
    );
    server.connect_as("shop_owner", "shop").run(
        "CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT leaf_segment_next('orders'));
         INSERT INTO orders SELECT FROM generate_series(1, 100)",
    );
    let dump = |name: &str, more: &[&str]| {
        let path = server.dir().join(name);
        let file = ["-f", path.to_str().unwrap(), "shop"];
        let program = server
            .program("pg_dump")
            .args(["-U", "shop_owner"])
            .args(more)
            .args(file)
            .output();
        let output = program.unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (path, output.status.success().then_some(()).ok_or(said))
    };
    let blocks = Page::read("docs/operations.md").blocks();
    let mut grants = blocks.iter().filter(|block| {
        block.text.starts_with("GRANT SELECT ON leaf_id.") && block.text.contains("shop_owner")
    });
    let refused = |result: Result<(), String>| {
        let said = result.unwrap_err();
        assert!(said.contains("permission denied for table leaf_"), "{said}");
    };
    let no_keys = ["--exclude-table-data=leaf_id.leaf_opaque_key"];
    refused(dump("refused.sql", &no_keys).1);
    shop.run(&grants.next().unwrap().text);
    refused(dump("refused.sql", &[]).1);
    let (without_keys, result) = dump("without_keys.sql", &no_keys);
    result.unwrap();
    shop.run(&grants.next().unwrap().text);
    let (with_keys, result) = dump("with_keys.sql", &[]);
    result.unwrap();
    assert!(grants.next().is_none());

    for (path, database) in [(without_keys, "without_keys"), (with_keys, "with_keys")] {
        restore_into(&server, &path, database, "shop_owner");
        let mut copy = server.connect_as("shop_owner", database);
        let mut ids = copy.ids("SELECT id FROM orders");
        ids.extend(copy.ids("INSERT INTO orders DEFAULT VALUES RETURNING id"));
        assert_issued_once(&[ids]);
        assert_eq!(
            copy.ids("SELECT leaf_id.leaf_gapless_next('invoices')"),
            [2]
        );
        assert_eq!(
            copy.column::<i32>("SELECT worker_id FROM leaf_id.leaf_worker WHERE retired"),
            [7]
        );
    }
    server
        .session_in("without_keys")
        .fails("SELECT leaf_opaque_next('codes')")
        .is("42809");
    server
        .session_in("with_keys")
        .run("SELECT leaf_opaque_next('codes')");
}

/// Privileges that the DBA granted or revoked, compared with the script.
#[test]
fn a_dump_carries_what_was_granted_and_revoked() {
    let server = Server::start(&[]);
    let mut admin = server.session();
    admin.run("CREATE ROLE app; CREATE ROLE mallory");
    admin.run("CREATE DATABASE shop");
    admin.run("CREATE DATABASE again");
    let mut shop = server.session_in("shop");
    shop.run(
        "ALTER DEFAULT PRIVILEGES GRANT ALL ON TABLES TO mallory;
         ALTER DEFAULT PRIVILEGES GRANT ALL ON FUNCTIONS TO mallory;
         CREATE EXTENSION leaf_id;
         GRANT SELECT, UPDATE ON leaf_id.leaf_alloc TO app; GRANT USAGE ON SCHEMA leaf_id TO app;
         GRANT EXECUTE ON FUNCTION leaf_tag_drop TO app;
         REVOKE EXECUTE ON FUNCTION leaf_snowflake_next() FROM PUBLIC;
         REVOKE SELECT ON leaf_id.server FROM PUBLIC",
    );
    let grants: Vec<String> = shop.column(GRANTS);
    assert!(!grants.iter().any(|grant| grant.contains("mallory")));
    let dump = server.dir().join("shop.sql");
    server.run("pg_dump", &["-f", dump.to_str().unwrap(), "shop"]);
    restore_into(&server, &dump, "again", "postgres");
    assert_eq!(server.session_in("again").column::<String>(GRANTS), grants);
}
