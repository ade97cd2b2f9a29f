//! Would catch: a dump without tags, a dump whose tags lag behind the ids in its tables (I1),
//! and a restored database that issues ids again which are in its tables.

use std::path::Path;

use leaf_id_tests::{Server, assert_issued_once, in_threads, while_repeating};

const INSERT: &str = "INSERT INTO orders (note) SELECT 'x' FROM generate_series(1, 50)";

/// A database with tags and a table that three sessions have filled.
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
    let dump = dump.to_str().unwrap();
    if dump.ends_with(".sql") {
        server.run(
            "psql",
            &["-Xq", "-v", "ON_ERROR_STOP=1", "-d", database, "-f", dump],
        );
    } else {
        server.run("pg_restore", &["--exit-on-error", "-d", database, dump]);
    }
}

/// All ids in the table, then the next ones: none may come again.
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
fn a_restored_database_goes_on_above() {
    let server = server_with_orders();
    let plain = server.dir().join("dump.sql");
    let custom = server.dir().join("dump.custom");
    server.run("pg_dump", &["-f", plain.to_str().unwrap(), "shop"]);
    server.run("pg_dump", &["-Fc", "-f", custom.to_str().unwrap(), "shop"]);
    restore(&server, &plain, "beside");
    assert_goes_on(&server, "beside");
    let elsewhere = Server::start_unrelated(1, &[]);
    for (dump, database) in [(plain, "shop"), (custom, "again")] {
        restore(&elsewhere, &dump, database);
        assert_goes_on(&elsewhere, database);
    }
    assert_goes_on(&server, "shop");
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
