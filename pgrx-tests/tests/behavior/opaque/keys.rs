//! Would catch: a name that gets another key, by a rollback, a drop, or a dump and restore, after
//! which ids repeat; and a session that continues as if there were no key. (Read access to keys is
//! tested in sql/opaque.sql.)

use std::time::Duration;

use leaf_id_tests::{Server, Session, disturb_waiting, promptly, wait_until};

use super::{assert_distinct, assert_opaque, create, decoded, take};

const LIMIT: Duration = Duration::from_secs(30);

/// The ids of the first numbers.
fn first_ids(session: &mut Session, tag: &str) -> Vec<i64> {
    session.ids(&format!(
        "SELECT leaf_id.leaf_opaque_encode('{tag}', n) FROM generate_series(1, 5) n"
    ))
}

#[test]
fn a_key_that_is_rolled_back_is_forgotten() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    let create = "SELECT leaf_id.leaf_opaque_create('t')";
    session.run(&format!("BEGIN; {create}"));
    let undone = first_ids(&mut session, "t");
    session.run("ROLLBACK");
    session.fails("SELECT leaf_opaque_next('t')").is("42809");
    session.run(&format!("BEGIN; SAVEPOINT s; {create}"));
    assert_ne!(first_ids(&mut session, "t"), undone);
    session.run(&format!("ROLLBACK TO s; {create}"));
    let kept = first_ids(&mut session, "t");
    session.run("COMMIT");
    assert_eq!(take(&mut server.session(), "t", 5), kept);
    assert_eq!(first_ids(&mut session, "t"), kept);
    assert_ne!(kept, undone);
}

/// Before: the function that makes keys left one without a tag, which could be prepared, too.
#[test]
fn a_key_is_made_by_those_who_create_its_tag() {
    let server = Server::with_leaf_id(&[("max_prepared_transactions", "1")]);
    let mut session = server.session();
    session.run(
        "CREATE ROLE keeper LOGIN; GRANT USAGE ON SCHEMA leaf_id_internal TO keeper;
         GRANT EXECUTE ON FUNCTION leaf_id.leaf_opaque_create TO keeper",
    );
    let make = "SELECT leaf_id_internal.leaf_make_key('t', 1000000, '')";
    server
        .connect_as("keeper", "postgres")
        .fails(make)
        .is("42501");
    session.run(&format!("BEGIN; {make}"));
    session.fails("PREPARE TRANSACTION 'key'").is("0A000");
}

/// The name had plain ids, of a tag that was created, used and dropped while the key waited for it.
/// Before: each opaque id was one of them with probability 0.1.
#[test]
fn a_name_whose_ids_are_in_use_gets_no_key() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    let mut other = server.session();
    other.run(
        "BEGIN; SELECT leaf_tag_create('t'); SELECT count(*) FROM leaf_segment_next_batch('t', 100000);
         SELECT leaf_tag_drop('t')",
    );
    let waits = format!(
        "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = {} AND wait_event_type = 'Lock'",
        session.pid()
    );
    std::thread::scope(|scope| {
        let creating =
            scope.spawn(|| session.try_run("SELECT leaf_id.leaf_opaque_create('t', 1000000)"));
        let mut watcher = server.session();
        wait_until(LIMIT, "the key to wait for the name", || {
            watcher.value(&waits)
        });
        other.run("COMMIT");
        // Both insert the mark of the name.
        creating.join().unwrap().unwrap_err().is("23505");
    });
    session
        .fails("SELECT leaf_id.leaf_opaque_create('t', 1000000)")
        .is("55000")
        .says("is or was the name of a tag");
    assert!(!session.value::<bool>("SELECT leaf_id_internal.leaf_has_key('t')"));
}

/// Of a key alone, no row keeps a tag from being created. Before: sessions issued plain ids of a name
/// that then had a key.
#[test]
fn no_tag_is_created_while_its_name_gets_a_key() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    let mut other = server.session();
    other.run("BEGIN; SELECT leaf_id_internal.leaf_make_key('t', 1000000, '')");
    let waits = format!(
        "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = {} AND wait_event_type = 'Lock'",
        session.pid()
    );
    std::thread::scope(|scope| {
        let creating = scope.spawn(|| session.try_run("SELECT leaf_tag_create('t')"));
        let mut watcher = server.session();
        wait_until(LIMIT, "the tag to wait for the key", || {
            watcher.value(&waits)
        });
        other.run("COMMIT");
        creating.join().unwrap().unwrap_err().is("23505");
    });
}

/// Dropped and recreated, the tag continues with the same key. After a reset to a lower number, ids
/// repeat.
#[test]
fn a_name_keeps_its_key() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    create(&mut session, "t", 100, "");
    let key: String = session.value("SELECT leaf_id.leaf_opaque_key('t')");
    let ids = take(&mut session, "t", 20);
    session.wait_for_spare("t");
    session.run("SELECT leaf_tag_reset('t', 1000)");
    let above = take(&mut session, "t", 20);
    assert_opaque(&mut session, "t", &[ids.clone(), above].concat());
    session.wait_for_spare("t");
    session.run("SELECT leaf_tag_drop('t')");
    session.fails("SELECT leaf_opaque_next('t')").is("42704");
    session
        .fails("SELECT leaf_id.leaf_opaque_create('t')")
        .is("42710");
    session.run("SELECT leaf_tag_create('t')");
    let further = take(&mut server.session(), "t", 20);
    assert_opaque(&mut session, "t", &[ids.clone(), further].concat());
    session.run("SELECT leaf_tag_reset('t', 1)");
    assert_eq!(take(&mut server.session(), "t", 20), ids);
    session
        .run("BEGIN; SET LOCAL leaf_id.allow_truncate = on; TRUNCATE leaf_id.leaf_alloc; COMMIT");
    assert_eq!(
        session.value::<String>("SELECT leaf_id.leaf_opaque_key('t')"),
        key
    );
}

/// In the order of pg_restore or logical replication.
#[test]
fn a_key_that_comes_after_its_tag() {
    let server = Server::with_leaf_id(&[]);
    let (mut session, mut other) = (server.session(), server.session());
    session.run("SELECT leaf_tag_create('t')");
    // A tag without a key is plain.
    let numbers = [session.take("t", 3), other.take("t", 3)].concat();
    assert_eq!(numbers, [1, 2, 3, 4, 5, 6]);
    session.fails("SELECT leaf_opaque_next('t')").is("42809");
    session.run("INSERT INTO leaf_id.leaf_opaque_key VALUES ('t', 1000000, sha256('x'))");
    let ids = take(&mut session, "t", 10);
    assert_opaque(&mut session, "t", &ids);
    for session in [&mut session, &mut other] {
        session.fails("SELECT leaf_segment_next('t')").is("42809");
    }
    // A lock on the table of keys is waited for like any other.
    let mut locker = server.session();
    locker.run("BEGIN; LOCK TABLE leaf_id.leaf_opaque_key");
    let mut new = server.session();
    new.run("SET leaf_id.refill_timeout = '200ms'");
    let refused = promptly(|| new.fails("SELECT leaf_opaque_next('t')"));
    refused.is("55P03").details("leaf_opaque_key");
    // A session that has cached the key needs no table.
    take(&mut session, "t", 1);
    locker.run("ROLLBACK");
    take(&mut new, "t", 1);
}

/// A database with an opaque tag, and its issued ids.
fn shop(server: &Server) -> Vec<i64> {
    server.session().run("CREATE DATABASE shop");
    let mut session = server.session_in("shop");
    session.run("CREATE EXTENSION leaf_id");
    create(&mut session, "orders", 50, "");
    create(&mut session, "unused", 50, "");
    session.run(
        "CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT leaf_opaque_next('orders'), n int);
         INSERT INTO orders SELECT FROM generate_series(1, 500)",
    );
    session.ids("SELECT id FROM orders ORDER BY id")
}

#[track_caller]
fn assert_goes_on(server: &Server, database: &str, ids: &[i64]) {
    let mut session = server.session_in(database);
    assert_eq!(session.ids("SELECT id FROM orders ORDER BY id"), ids);
    let new = take(&mut session, "orders", 200);
    assert_distinct(&[ids, &new].concat());
    assert_opaque(&mut session, "orders", &new);
    let oldest = decoded(&mut session, "orders", ids).into_iter().min();
    assert_eq!(oldest, Some(1), "{database} has another key");
    let unused = take(&mut session, "unused", 3);
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
        server.session_in(database).run(
            "CREATE EXTENSION leaf_id;
             CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT leaf_opaque_next('orders'), n int)",
        );
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
    // Without the keys, the column has no default, and its tag is plain, as documented in
    // docs/opaque-ids.md.
    empty("without");
    psql("without", &tags);
    let mut without = server.session_in("without");
    without
        .fails("INSERT INTO orders DEFAULT VALUES")
        .is("42809")
        .says("tag \"orders\" has no key of opaque ids");
    assert!(without.next("orders") > 500);
    psql("without", &rows);
    psql("without", &keys);
    assert_goes_on(&server, "without", &ids);
    server.run("createdb", &["-T", "shop", "copy"]);
    assert_goes_on(&server, "copy", &ids);
    let elsewhere = Server::start_unrelated(1, &[]);
    elsewhere.session().run("CREATE DATABASE shop");
    elsewhere.run("pg_restore", &["--exit-on-error", "-d", "shop", &custom]);
    assert_goes_on(&elsewhere, "shop", &ids);
}

/// The role that installed the extension can dump and restore it.
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
    let ids = take(&mut owner, "t", 60);
    let file = server.dir().join("dump");
    let file = file.to_str().unwrap();
    server.run("pg_dump", &["-U", "owner", "-Fc", "-f", file, "shop"]);
    server.run(
        "pg_restore",
        &["-U", "owner", "--exit-on-error", "-d", "copy", file],
    );
    let mut copy = server.connect_as("owner", "copy");
    let new = take(&mut copy, "t", 60);
    assert_opaque(&mut copy, "t", &[ids, new].concat());
}

/// As a WARNING recommends where a subscriber has another key than the publisher.
const REPLACED: [&str; 2] = [
    "DELETE FROM leaf_id.leaf_opaque_key; DELETE FROM leaf_id.leaf_alloc;
     INSERT INTO leaf_id.leaf_opaque_key VALUES ('t', 1000000, sha256('another'))",
    "INSERT INTO leaf_id.leaf_alloc (biz_tag, max_value) VALUES ('t', 1000000)",
];

/// Would catch: a session that has used a key goes on with it when the name has another one, here
/// and on a standby, so that its ids are those of others.
#[test]
fn a_key_that_is_replaced_is_forgotten_by_all() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    create(&mut session, "t", 50, ", max_value => 1000000");
    let standby = server.standby(&[]);
    standby.replay_all_of(&server);
    let mut there = standby.session();
    for session in [&mut session, &mut there] {
        first_ids(session, "t");
    }
    take(&mut session, "t", 1);
    for statement in REPLACED {
        server.session().run(statement);
    }
    let ids = first_ids(&mut server.session(), "t");
    assert_eq!(first_ids(&mut session, "t"), ids);
    let next = take(&mut session, "t", 1);
    assert_eq!(
        decoded(&mut server.session(), "t", &next),
        decoded(&mut session, "t", &next)
    );
    standby.replay_all_of(&server);
    assert_eq!(first_ids(&mut there, "t"), ids);
    standby.cut_off();
    standby.promote();
    let next = take(&mut there, "t", 1);
    assert_eq!(
        decoded(&mut standby.session(), "t", &next),
        decoded(&mut there, "t", &next)
    );
    // Each kind of change.
    for change in [
        "UPDATE leaf_id.leaf_opaque_key SET key = sha256('x')",
        "BEGIN; TRUNCATE leaf_id.leaf_opaque_key;
         INSERT INTO leaf_id.leaf_opaque_key VALUES ('t', 1000000, sha256('y')); COMMIT",
        "BEGIN; SET LOCAL session_replication_role = replica; DELETE FROM leaf_id.leaf_opaque_key;
         INSERT INTO leaf_id.leaf_opaque_key VALUES ('t', 1000000, sha256('z')); COMMIT",
    ] {
        let before = first_ids(&mut session, "t");
        server.session().run(change);
        let ids = first_ids(&mut session, "t");
        assert_ne!(ids, before);
        assert_eq!(ids, first_ids(&mut server.session(), "t"));
    }
}

/// Would catch: a number of the new row, for which the session has waited, with the key before.
#[test]
fn a_key_that_is_replaced_during_a_wait_is_not_used() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    create(&mut session, "t", 1, ", max_value => 1000000");
    session.run("CREATE TABLE issued (id bigint); SET leaf_id.refill_timeout = '1ms'");
    let mut other = server.session();
    other.run("BEGIN; LOCK TABLE leaf_id.leaf_alloc");
    wait_until(LIMIT, "the end of the cached numbers", || {
        session.try_run("SELECT leaf_opaque_next('t')").is_err()
    });
    session.be_patient();
    let waits = "INSERT INTO issued SELECT leaf_opaque_next('t')";
    let ended = disturb_waiting(&server, session, waits, |_| {
        for statement in REPLACED {
            other.run(statement);
        }
        other.run("COMMIT");
    });
    ended.result.unwrap();
    let ids = other.ids("SELECT id FROM issued");
    let numbers = decoded(&mut server.session(), "t", &ids);
    assert!(numbers[0] < 10, "{numbers:?}: with the key before");
}

/// Would catch: a number that is dropped because the cache of keys was cleared, as by VACUUM, though
/// the key is the same. Where every lookup clears it, such a call never ends
/// (`slow::discarded_caches`).
#[test]
fn a_key_that_is_looked_up_again_drops_no_number() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    create(&mut session, "t", 1, ", max_value => 1000000");
    session.run("CREATE TABLE issued (n bigserial, id bigint); SET leaf_id.refill_timeout = '1ms'");
    let mut other = server.session();
    other.run("BEGIN; LOCK TABLE leaf_id.leaf_alloc");
    let issue = "INSERT INTO issued (id) SELECT leaf_opaque_next('t')";
    wait_until(LIMIT, "the end of the cached numbers", || {
        session.try_run(issue).is_err()
    });
    session.be_patient();
    let ended = disturb_waiting(&server, session, issue, |_| {
        other.run("ALTER TABLE leaf_id.leaf_alloc SET (autovacuum_enabled = off); COMMIT");
    });
    ended.result.unwrap();
    let ids = other.ids("SELECT id FROM issued ORDER BY n");
    let numbers = decoded(&mut other, "t", &ids);
    assert!(
        numbers.iter().copied().eq(1..=numbers.len() as i64),
        "{numbers:?}"
    );
}
