//! Would catch: a series that is missing, or behind its numbers, on a subscriber or after a
//! data-only restore. Full dumps and standbys are tested in `survival`.

use std::time::Duration;

use leaf_id_tests::{Server, wait_until};

use super::{next, server_and_session};

const LIMIT: Duration = Duration::from_secs(60);

/// The subscriber already has one series that is behind and one ahead, and lacks one.
#[test]
fn a_subscriber_keeps_the_greater_number() {
    let server = |number| {
        let server = Server::start_unrelated(number, &[("wal_level", "logical")]);
        server.session().run("CREATE EXTENSION leaf_id");
        server
    };
    let (publisher, subscriber) = (server(0), server(1));
    let (mut there, mut here) = (publisher.session(), subscriber.session());
    there.run(
        "SELECT leaf_id.leaf_gapless_create('behind', 100), leaf_id.leaf_gapless_create('ahead', 100),
             leaf_id.leaf_gapless_create('new', 100);
         CREATE PUBLICATION p FOR ALL TABLES",
    );
    here.run(
        "SELECT leaf_id.leaf_gapless_create('behind'), leaf_id.leaf_gapless_create('ahead', 1000)",
    );
    let conninfo = format!("{} dbname=postgres", publisher.conninfo());
    here.run(&format!(
        "CREATE SUBSCRIPTION s CONNECTION '{conninfo}' PUBLICATION p"
    ));
    let mut becomes = |expected: &str| {
        wait_until(LIMIT, expected, || {
            here.value::<String>(
                "SELECT coalesce(string_agg(series || ' ' || last_number, ', ' ORDER BY series), '')
                 FROM leaf_id.leaf_gapless",
            ) == expected
        });
    };
    becomes("ahead 999, behind 99, new 99");
    there.run(
        "SELECT leaf_id.leaf_gapless_next('behind'), leaf_id.leaf_gapless_next('ahead'), leaf_id.leaf_gapless_next('new')",
    );
    becomes("ahead 999, behind 100, new 100");
    there.run(
        "SELECT leaf_id.leaf_gapless_drop('behind'); SELECT leaf_id.leaf_gapless_create('last', 3)",
    );
    becomes("ahead 999, last 2, new 100");
    // The subscriber's marks cover numbers that it has not issued itself.
    here.run("SELECT leaf_id.leaf_gapless_create('behind')");
    let last = "SELECT last_number FROM leaf_id.leaf_gapless WHERE series = 'behind'";
    assert_eq!(here.value::<i64>(last), 100);
}

/// `pg_restore --disable-triggers` leaves the triggers for subscribers enabled for all sessions.
#[test]
fn a_series_that_exists_is_not_created_after_a_restore_of_the_data() {
    let (server, mut session) = server_and_session(&[]);
    session.run("SELECT leaf_id.leaf_gapless_next('s'), leaf_id.leaf_opaque_create('o')");
    let file = server.dir().join("dump").to_str().unwrap().to_owned();
    server.run("pg_dump", &["-Fc", "-f", &file, "postgres"]);
    session.run("CREATE DATABASE copy");
    let mut copy = server.session_in("copy");
    copy.run("CREATE EXTENSION leaf_id");
    let triggers = "SELECT string_agg(tgrelid::regclass || ' ' || tgname || ' ' || tgenabled::text, ', ' ORDER BY tgname)
         FROM pg_trigger WHERE tgrelid::regclass::text LIKE 'leaf_id.%'";
    let fresh: String = copy.value(triggers);
    let options = ["-a", "--disable-triggers", "--exit-on-error", "-d", "copy"];
    server.run("pg_restore", &[&options[..], &[&file]].concat());
    assert_ne!(copy.value::<String>(triggers), fresh);
    copy.fails("SELECT leaf_id.leaf_gapless_create('s', 5000)")
        .is("42710");
    copy.fails("INSERT INTO leaf_id.leaf_opaque_key SELECT * FROM leaf_id.leaf_opaque_key")
        .is("23505");
    assert_eq!(next(&mut copy), 2);

    let page = include_str!("../../../../docs/operations.md");
    for statement in page.lines().filter(|line| line.contains(" TRIGGER leaf_")) {
        copy.run(statement);
    }
    assert_eq!(copy.value::<String>(triggers), fresh);
}
