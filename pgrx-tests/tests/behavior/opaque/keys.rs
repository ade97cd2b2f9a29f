//! Would catch: a tag that goes on with another key, or in plain, where its own is missing; and a way to
//! dump and restore after which ids come again. (Who reads a key is in sql/opaque.sql.)

use std::fs;

use leaf_id_tests::{Server, Session};

use super::{assert_distinct, assert_opaque, create, decoded};

#[test]
fn a_tag_without_its_key_issues_nothing() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    create(&mut session, "t", 100, "");
    let mut ids = session.take("t", 5);
    session.run("CREATE TABLE kept AS SELECT * FROM leaf_id.leaf_opaque_key; TRUNCATE leaf_id.leaf_opaque_key");
    server.crash();
    let mut session = server.session();
    for _ in 0..2 {
        session
            .fails("SELECT leaf_segment_next('t')")
            .is("55000")
            .says("the key of opaque tag \"t\" is missing")
            .hints("leaf_id.leaf_opaque_key");
    }
    session
        .fails("SELECT leaf_opaque_encode('t', 1)")
        .is("55000");
    session.run("INSERT INTO leaf_id.leaf_opaque_key SELECT * FROM kept");
    leaf_id_tests::wait_until(std::time::Duration::from_secs(10), "ids", || {
        session.try_next("t").is_ok()
    });
    ids.extend(session.take("t", 5));
    assert_opaque(&mut session, "t", &ids);
    // A key that is locked is waited for, and no longer than anything else.
    let mut locker = server.session();
    locker.run("BEGIN; LOCK TABLE leaf_id.leaf_opaque_key");
    let mut other = server.session();
    other.run("SET leaf_id.refill_timeout = '200ms'");
    other
        .fails("SELECT leaf_segment_next('t')")
        .is("55P03")
        .details("leaf_opaque_key");
    // Who knows it needs no table.
    session.next("t");
    locker.run("ROLLBACK");
    other.next("t");
}

/// A database with an opaque tag that has issued, and the ids.
fn shop(server: &Server) -> Vec<i64> {
    server.session().run("CREATE DATABASE shop");
    let mut session = server.session_in("shop");
    session.run(
        "CREATE EXTENSION leaf_id;
         CREATE TABLE orders (id bigint PRIMARY KEY)",
    );
    create(&mut session, "orders", 50, "");
    create(&mut session, "unused", 50, "");
    session.run("INSERT INTO orders SELECT leaf_segment_next_batch('orders', 500)");
    session.ids("SELECT id FROM orders ORDER BY id")
}

#[track_caller]
fn assert_goes_on(server: &Server, database: &str, ids: &[i64]) {
    let mut session = server.session_in(database);
    assert_eq!(session.ids("SELECT id FROM orders ORDER BY id"), ids);
    let new = session.take("orders", 200);
    assert_distinct(&[ids, &new].concat());
    assert_opaque(&mut session, "orders", &new);
    let oldest = decoded(&mut session, "orders", ids).into_iter().min();
    assert_eq!(oldest, Some(1), "{database} has another key");
    let unused = session.take("unused", 3);
    assert_eq!(decoded(&mut session, "unused", &unused), [1, 2, 3]);
}

#[test]
fn every_way_to_dump_and_restore_keeps_the_key() {
    let server = Server::start(&[]);
    let ids = shop(&server);
    let file = |name: &str, args: &[&str]| {
        let file = server.dir().join(name).to_str().unwrap().to_owned();
        server.run("pg_dump", &[args, &["-f", &file, "shop"]].concat());
        file
    };
    let plain = file("plain.sql", &[]);
    let custom = file("custom", &["-Fc"]);
    let data = file("data.sql", &["-a"]);
    let keys = file("keys.sql", &["-a", "-t", "leaf_id.leaf_opaque_key"]);
    let tags = file("tags.sql", &["-a", "-t", "leaf_id.leaf_alloc"]);
    let rows = file("rows.sql", &["-a", "-t", "orders"]);
    let psql = |database: &str, file: &str| {
        let args = ["-Xq", "-v", "ON_ERROR_STOP=1", "-d", database, "-f", file];
        server.run("psql", &args);
    };
    let empty = |database: &str| {
        server.session().run(&format!("CREATE DATABASE {database}"));
        server
            .session_in(database)
            .run("CREATE EXTENSION leaf_id; CREATE TABLE orders (id bigint PRIMARY KEY)");
    };
    server.session().run("CREATE DATABASE plain");
    psql("plain", &plain);
    assert_goes_on(&server, "plain", &ids);
    for (database, args) in [
        ("parallel", &["-j", "4"][..]),
        ("single", &["--single-transaction"]),
        ("disabled", &["--disable-triggers"]),
    ] {
        server.session().run(&format!("CREATE DATABASE {database}"));
        let to = ["--exit-on-error", "-d", database];
        server.run("pg_restore", &[&to, args, &[custom.as_str()]].concat());
        assert_goes_on(&server, database, &ids);
    }
    empty("data");
    psql("data", &data);
    assert_goes_on(&server, "data", &ids);
    for (database, files) in [
        ("keys_last", [&rows, &tags, &keys]),
        ("keys_first", [&keys, &tags, &rows]),
    ] {
        empty(database);
        for file in files {
            psql(database, file);
        }
        assert_goes_on(&server, database, &ids);
    }
    empty("without");
    psql("without", &tags);
    let mut without = server.session_in("without");
    without
        .fails("SELECT leaf_segment_next('orders')")
        .is("55000")
        .hints("same dump");
    psql("without", &rows);
    psql("without", &keys);
    leaf_id_tests::wait_until(std::time::Duration::from_secs(10), "ids", || {
        without.try_next("orders").is_ok()
    });
    assert_goes_on(&server, "without", &ids);
    server.run("createdb", &["-T", "shop", "copy"]);
    assert_goes_on(&server, "copy", &ids);
    let elsewhere = Server::start_unrelated(1, &[]);
    elsewhere.session().run("CREATE DATABASE shop");
    elsewhere.run("pg_restore", &["--exit-on-error", "-d", "shop", &custom]);
    assert_goes_on(&elsewhere, "shop", &ids);
    assert!(
        fs::read_to_string(plain)
            .unwrap()
            .contains("leaf_opaque_key")
    );
}

/// Who has installed the extension dumps it, and restores it.
#[test]
fn the_owner_of_a_database_dumps_and_restores() {
    let server = Server::start(&[]);
    let mut admin = server.session();
    admin.run("CREATE ROLE owner LOGIN");
    for database in ["shop", "copy"] {
        admin.run(&format!("CREATE DATABASE {database} OWNER owner"));
    }
    let mut owner: Session = server.connect_as("owner", "shop");
    owner.run("CREATE EXTENSION leaf_id");
    create(&mut owner, "t", 50, "");
    let ids = owner.take("t", 60);
    let file = server.dir().join("dump");
    let file = file.to_str().unwrap();
    server.run("pg_dump", &["-U", "owner", "-Fc", "-f", file, "shop"]);
    server.run(
        "pg_restore",
        &["-U", "owner", "--exit-on-error", "-d", "copy", file],
    );
    let mut copy = server.connect_as("owner", "copy");
    let new = copy.take("t", 60);
    assert_distinct(&[ids.as_slice(), &new].concat());
    assert_opaque(&mut copy, "t", &[ids, new].concat());
}
