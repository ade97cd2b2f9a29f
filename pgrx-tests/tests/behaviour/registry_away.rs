//! Would catch: a server that does not issue because the worker registry is away, though its
//! lease is good; and one that issues though it is not, by a file that is not its own, or
//! from before the machine was started anew.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use leaf_id_tests::{Fleet, Server, Session, Stop, assert_issued_once, timed, wait_until};

const LIMIT: Duration = Duration::from_secs(60);
const EPOCH_MS: i64 = 1_288_834_974_657;
const LONG: [(&str, &str); 2] = [
    ("leaf_id.timestamp_reservation", "200ms"),
    ("leaf_id.worker_lease", "10min"),
];
const SHORT: [(&str, &str); 2] = [LONG[0], ("leaf_id.worker_lease", "3s")];

fn worker_of(id: i64) -> i64 {
    id >> 12 & 1023
}

/// None while the generator is closed.
fn source(session: &mut Session) -> Option<String> {
    session.value("SELECT worker_id_source FROM leaf_snowflake_status")
}

fn lease_file(server: &Server) -> PathBuf {
    server.data_dir().join("leaf_id_lease.json")
}

/// A member with a lease, stopped, and its centre, stopped too; and the ids so far.
fn both_down(stop: impl Fn(&Server)) -> (Fleet, Vec<i64>) {
    let fleet = Fleet::leasing(1, &LONG);
    let ids = vec![fleet.members[0].session().next_snowflake()];
    stop(&fleet.members[0]);
    fleet.centre.stop(Stop::Fast);
    (fleet, ids)
}

/// There are no ids as long as the registry is away, and then there are.
fn only_with_the_registry(fleet: &Fleet, mut ids: Vec<i64>) {
    let member = &fleet.members[0];
    let mut session = member.session();
    session.run("SET leaf_id.refill_timeout = '300ms'");
    let since = "SELECT registry_away_since IS NOT NULL FROM leaf_snowflake_status";
    wait_until(LIMIT, "the first attempt", || session.value(since));
    let failure = session.fails("SELECT leaf_snowflake_next()");
    println!("{failure}");
    failure
        .is("55P03")
        .details("postgres/leaf_central")
        .details("since");
    fleet.centre.launch();
    let free = |session: &mut Session| {
        // What the registry knows as this server is somebody else.
        fleet
            .centre
            .session()
            .run("SELECT leaf_worker_release(worker_id) FROM leaf_worker WHERE node_name = 'm1'");
        session.next_snowflake()
    };
    ids.push(free(&mut session));
    assert_issued_once([ids]);
}

#[test]
fn away_at_start_the_file_serves() {
    let stops: [fn(&Server); 2] = [|server| server.stop(Stop::Fast), Server::kill_9];
    for stop in stops {
        let (fleet, mut ids) = both_down(stop);
        let member = &fleet.members[0];
        member.launch();
        let mut session = member.session();
        for _ in 0..3 {
            ids.push(session.next_snowflake());
        }
        assert_eq!(source(&mut session).as_deref(), Some("file"));
        assert_eq!(worker_of(ids[1]), worker_of(ids[0]));
        let shown: bool = session.value(
            "SELECT registry_away_since <= now() AND last_error IS NOT NULL AND lease_until > now()
             FROM leaf_snowflake_status",
        );
        assert!(shown);
        fleet.centre.launch();
        // It asks by itself, at the latest after half a minute.
        wait_until(LIMIT, "the registry", || {
            source(&mut session).as_deref() == Some("registry")
        });
        ids.push(session.next_snowflake());
        assert_eq!(worker_of(*ids.last().unwrap()), worker_of(ids[0]));
        assert_issued_once([ids]);
    }
}

#[test]
fn away_longer_than_the_lease() {
    let fleet = Fleet::leasing(1, &SHORT);
    let member = &fleet.members[0];
    let mut session = member.session();
    let mut ids = vec![session.next_snowflake()];
    fleet.centre.stop(Stop::Fast);
    let mut failure = None;
    wait_until(LIMIT, "the end of the lease", || {
        match session.try_column::<i64>("SELECT leaf_snowflake_next()") {
            Ok(more) => ids.extend(more),
            Err(error) => failure = Some(error),
        }
        failure.is_some()
    });
    let failure = failure.unwrap();
    println!("{failure}");
    failure.is("55000").says("lease of worker id 0 has ended");
    failure
        .details("has not answered since")
        .hints("leaf_snowflake_status");
    // None after the end of the lease, by the file or otherwise.
    let end: i64 = session.value(
        "SELECT (extract(epoch FROM lease_until) * 1000)::bigint FROM leaf_snowflake_status",
    );
    let last_ms = (ids.last().unwrap() >> 22) + EPOCH_MS;
    assert!(last_ms <= end, "{last_ms} {end}");
    let launcher = session.worker("launcher").unwrap();
    session.run(&format!("SELECT pg_terminate_backend({launcher})"));
    session.run("SET leaf_id.refill_timeout = '2s'");
    session.fails("SELECT leaf_snowflake_next()").is("55P03");
    fleet.centre.launch();
    session.run("RESET leaf_id.refill_timeout");
    ids.push(session.next_snowflake());
    assert_issued_once([ids]);
}

#[test]
fn away_without_a_file() {
    let fleet = Fleet::new(1, &LONG);
    fleet.centre.lease_worker_ids();
    fleet.centre.stop(Stop::Fast);
    let member = &fleet.members[0];
    member.lease_from_link("m1");
    only_with_the_registry(&fleet, Vec::new());
    let log = member.log();
    let told = log.matches("WARNING:  leaf_id: worker registry").count();
    assert_eq!(told, 1, "{log}");
    assert!(log.contains("has granted worker id 0"));
}

#[test]
fn a_copied_file_does_not_serve() {
    let (fleet, ids) = both_down(|server| server.stop(Stop::Fast));
    let member = &fleet.members[0];
    let file = lease_file(member);
    let aside = file.with_extension("aside");
    fs::copy(&file, &aside).unwrap();
    fs::rename(aside, &file).unwrap();
    member.give(&file);
    member.launch();
    only_with_the_registry(&fleet, ids);
}

/// Nobody knows how long the machine was down, or whether it is the same one.
#[test]
fn another_boot_does_not_serve() {
    let stops: [fn(&Server); 2] = [|server| server.stop(Stop::Fast), Server::kill_9];
    for stop in stops {
        let (fleet, ids) = both_down(stop);
        let member = &fleet.members[0];
        boot_anew(member);
        member.launch();
        only_with_the_registry(&fleet, ids);
    }
}

/// Has the lease file say that it was written before the machine was started.
fn boot_anew(server: &Server) {
    let file = lease_file(server);
    let text = fs::read_to_string(&file).unwrap();
    let key = "\"boot_id\":\"";
    let at = text.find(key).unwrap() + key.len();
    let changed = text[..at].to_string() + "f" + &text[at..];
    fs::write(&file, changed).unwrap();
}

/// It may be the copy of a disk whose server runs still, so the lease is waited out.
#[test]
fn after_another_boot_the_lease_is_waited_out() {
    let fleet = Fleet::leasing(1, &[LONG[0], ("leaf_id.worker_lease", "5s")]);
    let member = &fleet.members[0];
    let mut ids = vec![member.session().next_snowflake()];
    let stops: [fn(&Server); 2] = [|server| server.stop(Stop::Fast), Server::kill_9];
    for stop in stops {
        stop(member);
        boot_anew(member);
        let recorded: i64 = fleet
            .centre
            .session()
            .value("SELECT reserved_until_ms FROM leaf_worker WHERE worker_id = 0");
        member.launch();
        let mut session = member.session();
        let id = session.next_snowflake();
        assert_eq!(worker_of(id), worker_of(ids[0]));
        assert!((id >> 22) + EPOCH_MS > recorded);
        ids.push(id);
        // Once it has the lease again, a restart is as any other.
        member.restart();
        let (id, took) = timed(|| member.session().next_snowflake());
        assert!(took < Duration::from_secs(4), "{took:?}");
        ids.push(id);
    }
    assert_issued_once([ids]);
    assert!(
        member
            .log()
            .contains("grants no worker id: worker id 0 is leased until")
    );
}
