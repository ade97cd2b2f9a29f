//! Would catch: a command in docs/fleet-and-failover.md or docs/ha.md that does not do what the
//! page says. Host names on the pages are replaced by socket directories.

use std::fs;
use std::time::Duration;

use leaf_id_tests::Server;
use leaf_id_tests::checks::{assert_issued_once, promptly, wait_until};
use leaf_id_tests::session::Session;

use super::page::{Page, run_statements};

const LIMIT: Duration = Duration::from_secs(60);

/// Blocks of SQL under a heading that are marked for these tests.
fn blocks(heading: &str) -> Vec<String> {
    blocks_of("docs/fleet-and-failover.md", heading)
}

fn blocks_of(page: &str, heading: &str) -> Vec<String> {
    let blocks = Page::read(page).blocks();
    let ours = blocks.into_iter().filter(|block| {
        block.heading == heading
            && block
                .test()
                .is_some_and(|test| test.starts_with("several_servers::"))
    });
    ours.map(|block| block.text).collect()
}

/// Runs a block after replacements.
#[track_caller]
fn run(session: &mut Session, block: &str, replaced: &[(&str, &str)]) {
    let mut sql = block.to_string();
    for (this, that) in replaced {
        assert!(sql.contains(this), "{this} in {sql}");
        sql = sql.replace(this, that);
    }
    run_statements(session, &sql);
}

/// A commit waits for no standby that is not there.
#[track_caller]
fn assert_commits(server: &Server) {
    promptly(|| server.session().run("CREATE TABLE t (); DROP TABLE t"));
}

#[test]
fn the_commands_for_several_servers_and_a_central_pair_work() {
    let primary = Server::start(&[]);
    primary.session().run("CREATE DATABASE ids");
    let member = Server::start_unrelated(1, &[]);
    let mut session = member.session();

    let [on_central, on_member] = &blocks("Several servers, one tag")[..] else {
        panic!("other blocks than expected");
    };
    run(&mut primary.session_in("ids"), on_central, &[]);
    let db1 = primary.dir().to_str().unwrap();
    run(
        &mut session,
        on_member,
        &[
            ("db1.example.com", db1),
            (", sslmode 'verify-full'", ", sslmode 'disable'"),
        ],
    );
    assert_eq!(session.take("orders", 3), [1, 2, 3]);

    // In the order of the page.
    let [
        role,
        base_backup,
        look,
        synchronous,
        for_members,
        on_promoted,
    ] = &blocks("A central pair")[..]
    else {
        panic!("other blocks than expected");
    };
    run(&mut primary.session(), role, &[]);
    assert_commits(&primary);
    let (base_backup, start) = base_backup.split_once('\n').unwrap();
    assert_eq!(start.trim(), "pg_ctl start");
    let backup = primary.backup_by(&base_backup.replace("db1.example.com", db1));
    assert_commits(&primary);
    let standby = backup.start(&[]);
    wait_until(LIMIT, "the standby to be there", || {
        let look = look.trim().trim_end_matches(';');
        primary.session().value(&format!(
            "SELECT count(*) = 1 FROM ({look}) r WHERE application_name = 'db2' AND state = 'streaming'"
        ))
    });
    run(&mut primary.session(), synchronous, &[]);
    assert_commits(&primary);
    let db2 = standby.dir().to_str().unwrap();
    run(
        &mut session,
        for_members,
        &[("db1.example.com", db1), ("db2.example.com", db2)],
    );
    wait_until(LIMIT, "the standby to be a synchronous one", || {
        primary
            .session()
            .value("SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')")
    });
    let before = session.take("orders", 1500);
    primary.kill_9_postmaster();
    run(&mut standby.session(), on_promoted, &[]);
    let after = session.take("orders", 5000);
    assert!(after.first() > before.last(), "{before:?} {after:?}");
}

#[test]
fn the_commands_for_worker_ids_from_a_registry_work() {
    let central = Server::start(&[]);
    central.session().run("CREATE DATABASE ids");
    let member = Server::start_unrelated(1, &[]);
    let mut session = member.session();
    let [on_central, on_member] = &blocks("Several servers, one tag")[..] else {
        panic!("other blocks than expected");
    };
    let mut registry = central.session_in("ids");
    run(&mut registry, on_central, &[]);
    let dir = central.dir().to_str().unwrap();
    let replaced = [
        ("db1.example.com", dir),
        (", sslmode 'verify-full'", ", sslmode 'disable'"),
    ];
    run(&mut session, on_member, &replaced);

    let [on_registry, retire, on_server] = &blocks("Worker ids from a registry")[..] else {
        panic!("other blocks than expected");
    };
    run(&mut registry, on_registry, &[]);
    run(&mut registry, retire, &[]);
    run(&mut session, on_server, &[]);
    wait_until(LIMIT, "a snowflake id", || {
        session
            .try_column::<i64>("SELECT leaf_snowflake_next()")
            .is_ok()
    });
    let holder: String = registry.value("SELECT name FROM leaf_id.fleet WHERE state = 'leased'");
    assert_eq!(holder, leaf_id_tests::default_node_name(&member));
    let free: i64 = registry
        .value("SELECT count(*) FROM leaf_id.fleet WHERE worker_id = 1 AND state <> 'retired'");
    assert_eq!(free, 0);
}

/// From one writer to the other; before PostgreSQL 16, rows would loop forever.
#[test]
fn the_commands_for_logical_replication_work() {
    let writer = |number| {
        let server = Server::start_unrelated(number, &[("wal_level", "logical")]);
        let mut session = server.session();
        session.run("CREATE DATABASE app");
        session.run("CREATE ROLE replicator LOGIN REPLICATION");
        server
    };
    let (db1, db2) = (writer(0), writer(1));
    let [commands] = &blocks("Logical replication with several writers")[..] else {
        panic!("other blocks than expected");
    };
    let mut sessions = [&db1, &db2].map(|server| {
        let mut session = server.session_in("app");
        session.run(
            "CREATE EXTENSION leaf_id;
             CREATE TABLE orders (id bigint PRIMARY KEY); CREATE TABLE events (id bigint PRIMARY KEY)",
        );
        session
    });
    let [subscriber, publisher] = &mut sessions;
    publisher.run("CREATE PUBLICATION writes FOR TABLE orders, events");
    let mut replaced = vec![("db2.example.com", db2.dir().to_str().unwrap())];
    if subscriber.major() < 16 {
        replaced.push((", origin = none", ""));
    }
    run(subscriber, commands, &replaced);
    publisher.run(
        "SELECT leaf_tag_create('orders'); INSERT INTO orders SELECT leaf_segment_next('orders')",
    );
    wait_until(LIMIT, "the row", || {
        subscriber.column::<i64>("SELECT id FROM orders") == [1]
    });
    // Each server has its own rows of the table.
    subscriber
        .fails("SELECT leaf_segment_next('orders')")
        .is("42704");
}

#[test]
fn the_commands_for_a_logical_upgrade_work() {
    let old = Server::start(&[("wal_level", "logical"), ("leaf_id.worker_id", "1")]);
    let new = Server::start_unrelated(1, &[("leaf_id.worker_id", "2")]);
    for server in [&old, &new] {
        server.session().run("CREATE DATABASE app");
    }
    let mut there = old.session_in("app");
    there.run(
        "CREATE ROLE replicator LOGIN REPLICATION;
         GRANT pg_read_all_data TO replicator;
         CREATE EXTENSION leaf_id;
         SELECT leaf_tag_create('orders', step => 100);
         CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT leaf_segment_next('orders'),
             event bigint DEFAULT leaf_snowflake_next());
         INSERT INTO orders SELECT FROM generate_series(1, 250)",
    );
    let schema = old.run("pg_dump", &["-s", "app"]);
    let file = new.dir().join("schema.sql");
    fs::write(&file, schema).unwrap();
    let file = file.to_str().unwrap();
    new.run(
        "psql",
        &["-X", "-v", "ON_ERROR_STOP=1", "-d", "app", "-f", file],
    );
    let [publish, subscribe, copied, caught_up, end] =
        &blocks_of("docs/ha.md", "Logical upgrades")[..]
    else {
        panic!("other blocks than expected");
    };
    run(&mut there, publish, &[]);
    let mut here = new.session_in("app");
    let host = old.dir().to_str().unwrap();
    run(&mut here, subscribe, &[("old.example.com", host)]);
    wait_until(LIMIT, "the initial copy", || here.value(copied));
    // Also tags created and claimed since then.
    there.run(
        "SELECT leaf_tag_create('later', start => 70), leaf_segment_next('later');
         INSERT INTO orders SELECT FROM generate_series(1, 1000)",
    );
    wait_until(LIMIT, "the subscription to catch up", || {
        there.value::<Option<bool>>(caught_up) == Some(true)
    });
    run(&mut here, end, &[]);
    assert!(here.next("later") > 70);
    here.run("INSERT INTO orders SELECT FROM generate_series(1, 500)");
    for column in ["id", "event"] {
        let ids = here.ids(&format!("SELECT {column} FROM orders"));
        assert_eq!(ids.len(), 1750);
        assert_issued_once([ids]);
    }
}
