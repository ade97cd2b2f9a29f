//! Would catch: a command of the README's chapter on several servers that does not do what
//! the README says. The names of hosts in it become the directories of sockets.

use std::fs;
use std::path::Path;
use std::time::Duration;

use leaf_id_tests::checks::wait_until;
use leaf_id_tests::cluster::STANDBY;
use leaf_id_tests::server::Server;
use leaf_id_tests::session::Session;

const LIMIT: Duration = Duration::from_secs(60);

/// The SQL under a heading of the README, block by block.
fn blocks(heading: &str) -> Vec<String> {
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = fs::read_to_string(readme).unwrap();
    let (_, section) = readme.split_once(&format!("\n### {heading}\n")).unwrap();
    let section = section.split("\n##").next().unwrap();
    let block = |text: &str| text.split("```").next().unwrap_or_default().to_string();
    section.split("```sql\n").skip(1).map(block).collect()
}

/// Runs a block, statement by statement, with what stands for this in it replaced by that.
#[track_caller]
fn run(session: &mut Session, block: &str, replaced: &[(&str, &str)]) {
    let mut sql = block.to_string();
    for (this, that) in replaced {
        assert!(sql.contains(this), "{this} in {sql}");
        sql = sql.replace(this, that);
    }
    // No statement there holds a semicolon within.
    for statement in sql.split_inclusive(';') {
        if statement.contains(';') {
            session.run(statement);
        }
    }
}

#[test]
fn the_commands_for_several_servers_and_a_central_pair_work() {
    let primary = Server::start(&[]);
    primary.session().run("CREATE DATABASE ids");
    let member = Server::start_unrelated(1, &[]);
    let mut session = member.session();

    let [on_centre, on_member] = &blocks("Several servers, one tag")[..] else {
        panic!("other blocks than expected");
    };
    run(&mut primary.session_in("ids"), on_centre, &[]);
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

    let [on_primary, for_members] = &blocks("A central pair")[..] else {
        panic!("other blocks than expected");
    };
    let standby = primary.standby(&[]);
    run(&mut primary.session(), on_primary, &[("db2", STANDBY)]);
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
    standby.promote();
    standby.set("synchronous_standby_names", "");
    let after = session.take("orders", 5000);
    assert!(after.first() > before.last(), "{before:?} {after:?}");
}

#[test]
fn the_commands_for_worker_ids_from_a_registry_work() {
    let centre = Server::start(&[]);
    centre.session().run("CREATE DATABASE ids");
    let member = Server::start_unrelated(1, &[]);
    let mut session = member.session();
    let [on_centre, on_member] = &blocks("Several servers, one tag")[..] else {
        panic!("other blocks than expected");
    };
    let mut registry = centre.session_in("ids");
    run(&mut registry, on_centre, &[]);
    let dir = centre.dir().to_str().unwrap();
    let replaced = [
        ("db1.example.com", dir),
        (", sslmode 'verify-full'", ", sslmode 'disable'"),
    ];
    run(&mut session, on_member, &replaced);

    let [on_registry, on_server] = &blocks("Worker ids from a registry")[..] else {
        panic!("other blocks than expected");
    };
    run(&mut registry, on_registry, &[]);
    run(&mut session, on_server, &[]);
    wait_until(LIMIT, "a snowflake id", || {
        session
            .try_column::<i64>("SELECT leaf_snowflake_next()")
            .is_ok()
    });
    let holder: String = registry.value("SELECT node_name FROM leaf_worker_status WHERE live");
    assert_eq!(holder, "db3");
    // As for a server that does not come back, and an id that is not to be used any more.
    registry.run("SELECT leaf_worker_release(0); SELECT leaf_worker_retire(0)");
}
