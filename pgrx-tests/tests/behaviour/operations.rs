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
