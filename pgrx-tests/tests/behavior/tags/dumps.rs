//! Would catch: a way to dump and restore, or to copy, a schema or its data after which ids in the
//! tables are issued again although `leaf_sync()` was called once.

use std::fs;

use leaf_id_tests::{Server, assert_issued_once};

/// An application's tables, each with a tag. orders and lines have 500 rows, and cached ids.
fn server_with_shop() -> Server {
    let server = Server::start(&[]);
    server.session().run("CREATE DATABASE shop");
    server.session_in("shop").run(
        "CREATE EXTENSION leaf_id;
         CREATE SCHEMA app;
         SELECT leaf_tag_create('orders', step => 100), leaf_tag_create('order lines', step => 100);
         CREATE TABLE app.orders (id bigint PRIMARY KEY DEFAULT leaf_segment_next('orders'), note text);
         CREATE TABLE app.lines (id integer PRIMARY KEY DEFAULT leaf_segment_next('order lines'),
             order_id bigint REFERENCES app.orders);
         INSERT INTO app.orders (note) SELECT 'x' FROM generate_series(1, 500);
         INSERT INTO app.lines (order_id) SELECT id FROM app.orders",
    );
    server
}

/// Calls `leaf_sync()` once in a database with both tables. Asserts that ids continue above.
#[track_caller]
fn assert_goes_on(server: &Server, database: &str, rows: usize) {
    let mut session = server.session_in(database);
    session.run("SELECT leaf_sync()");
    let left: i64 = session.value("SELECT count(*) FROM leaf_check() WHERE action <> 'none'");
    assert_eq!(left, 0);
    for (table, tag) in [("orders", "orders"), ("lines", "order lines")] {
        let mut ids = session.ids(&format!("SELECT id::bigint FROM app.{table} ORDER BY id"));
        assert_eq!(ids.len(), rows, "{table}");
        for _ in 0..3 {
            ids.extend(session.ids(&format!(
                "INSERT INTO app.{table} DEFAULT VALUES RETURNING id::bigint"
            )));
        }
        ids.extend(server.session_in(database).take(tag, 300));
        assert_issued_once(&[ids]);
    }
}

fn dump(server: &Server, name: &str, args: &[&str]) -> String {
    let file = server.dir().join(name).to_str().unwrap().to_owned();
    server.run("pg_dump", &[args, &["-f", &file, "shop"]].concat());
    file
}

fn psql(server: &Server, database: &str, args: &[&str], file: &str) {
    let options = ["-Xq", "-v", "ON_ERROR_STOP=1", "-d", database, "-f", file];
    server.run("psql", &[&options[..], args].concat());
}

#[test]
fn the_schema_alone() {
    let server = server_with_shop();
    let schema = dump(&server, "schema.sql", &["-s"]);
    server.session().run("CREATE DATABASE copy");
    psql(&server, "copy", &[], &schema);
    assert_goes_on(&server, "copy", 0);
}

/// Like Rails' structure.sql: without owners and grants. Another role loads the data.
#[test]
fn a_structure_file_and_fixtures() {
    let server = server_with_shop();
    let structure = dump(
        &server,
        "structure.sql",
        &["-s", "--no-privileges", "--no-owner"],
    );
    server.session().run("CREATE DATABASE test");
    psql(&server, "test", &[], &structure);
    let mut session = server.session_in("test");
    session.run(
        "INSERT INTO app.orders VALUES (1), (2), (980190962);
         INSERT INTO app.lines VALUES (1, 1), (2, 2), (298486374, 2)",
    );
    assert_goes_on(&server, "test", 3);
    // A cleanup between two tests, and fixtures again.
    session.run("TRUNCATE app.orders, app.lines RESTART IDENTITY");
    session.run("INSERT INTO app.orders VALUES (7); INSERT INTO app.lines VALUES (7, 7)");
    assert_goes_on(&server, "test", 1);
}

/// Migrations have created the schema, with the tags. The rows of the table of tags then fail as
/// duplicates, or are omitted.
#[test]
fn the_data_alone() {
    let server = server_with_shop();
    let schema = dump(&server, "schema.sql", &["-s"]);
    let data = dump(&server, "data.sql", &["-a"]);
    let without = dump(
        &server,
        "without.sql",
        &["-a", "--exclude-table-data=leaf_id.*"],
    );
    let migrate = |database: &str| {
        server.session().run(&format!("CREATE DATABASE {database}"));
        psql(&server, database, &[], &schema);
        server
            .session_in(database)
            .run("SELECT leaf_tag_create('orders'), leaf_tag_create('order lines')");
    };
    migrate("failing");
    let said = server
        .program("psql")
        .args(["-Xq", "-d", "failing", "-f", &data])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("leaf_alloc_pkey"), "{said}");
    assert_goes_on(&server, "failing", 500);
    migrate("without");
    psql(&server, "without", &["--single-transaction"], &without);
    assert_goes_on(&server, "without", 500);
    // Without tags, which are restored with the data.
    server.session().run("CREATE DATABASE plain");
    psql(&server, "plain", &[], &schema);
    psql(&server, "plain", &["--single-transaction"], &data);
    assert_goes_on(&server, "plain", 500);
}

#[test]
fn custom_archives_in_parallel_and_in_one_transaction() {
    let server = server_with_shop();
    let archive = dump(&server, "all.custom", &["-Fc"]);
    for (number, args) in [
        &["-j", "4"][..],
        &["--single-transaction"],
        &["--clean", "--if-exists"],
    ]
    .into_iter()
    .enumerate()
    {
        let database = format!("custom{number}");
        server.session().run(&format!("CREATE DATABASE {database}"));
        server.run(
            "pg_restore",
            &[
                &["--exit-on-error", "-d", &database],
                args,
                &[archive.as_str()],
            ]
            .concat(),
        );
        assert_goes_on(&server, &database, 500);
    }
    // In sections, as if migrations had created the rest.
    server.session().run("CREATE DATABASE parts");
    for section in ["pre-data", "data", "post-data"] {
        let option = format!("--section={section}");
        server.run(
            "pg_restore",
            &["--exit-on-error", "-d", "parts", &option, &archive],
        );
    }
    assert_goes_on(&server, "parts", 500);
}

#[test]
fn chosen_tables_and_schemas() {
    let server = server_with_shop();
    let tables = dump(&server, "tables.sql", &["-t", "app.*"]);
    let schema = dump(&server, "schema.sql", &["-n", "app"]);
    for (database, before, file) in [
        ("tables", "CREATE SCHEMA app", &tables),
        ("schemas", "SELECT 1", &schema),
    ] {
        let text = fs::read_to_string(file).unwrap();
        assert!(!text.contains("leaf_alloc"), "{database}");
        server.session().run(&format!("CREATE DATABASE {database}"));
        let mut session = server.session_in(database);
        session.run("CREATE EXTENSION leaf_id");
        session.run(before);
        psql(&server, database, &[], file);
        assert_goes_on(&server, database, 500);
    }
}

#[test]
fn a_database_from_a_template() {
    let server = server_with_shop();
    server.run("createdb", &["-T", "shop", "copy"]);
    assert_goes_on(&server, "copy", 500);
    // The original is unaffected.
    assert_goes_on(&server, "shop", 500);
}
