//! Would catch: an id issued by two members of a fleet (I3), a member whose ids decrease (I4), a
//! claim used although the local or the remote row was edited concurrently, and a member that
//! discloses the password.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::Duration;

use leaf_id_tests::{
    CENTRAL, Failure, Fleet, Server, Session, assert_issued_once, impersonate, in_threads,
    wait_until,
};

const LIMIT: Duration = Duration::from_secs(30);

/// Sessions per member.
const SESSIONS: usize = 4;

/// State of the connection to the central server, and the error if it is away.
fn connection(session: &mut Session) -> (String, Option<String>) {
    (
        session.value("SELECT state FROM leaf_id.fleet"),
        session.value("SELECT last_error FROM leaf_id.fleet"),
    )
}

/// Earlier answers of that server may be out of date.
#[test]
fn a_tag_that_is_created_there_can_be_used_at_once() {
    let fleet = Fleet::new(1, &[]);
    let mut member = fleet.members[0].session();
    member.run("SELECT leaf_tag_create('t', server => 'leaf_central')");
    for _ in 0..2 {
        member
            .fails("SELECT leaf_segment_next('t')")
            .is("42704")
            .says("does not exist on server \"leaf_central\"")
            .hints("on that server: SELECT leaf_tag_create('t');");
    }
    fleet.central.session().run("SELECT leaf_tag_create('t')");
    assert_eq!(member.next("t"), 1);
}

#[test]
fn three_members_share_one_tag() {
    let fleet = Fleet::new(3, &[]);
    fleet.create_tag("t", 100, 1_000_000);
    let drawn = in_threads(fleet.members.len() * SESSIONS, |i| {
        let member = &fleet.members[i % fleet.members.len()];
        let mut session = member.session();
        let mut ids = Vec::new();
        while ids.len() < 50_000 {
            let more = session.take("t", [50, 100, 333, 2500][i / fleet.members.len()]);
            // I4, within one session.
            assert!(
                more.first() > ids.last(),
                "{:?} after {:?}",
                more[0],
                ids.last()
            );
            ids.extend(more);
        }
        ids
    });
    assert_issued_once(&drawn);
    // No member had the ids to itself.
    let claimed = fleet.central.session().max_id("t");
    println!("claimed up to {claimed}");
    for mut session in fleet.sessions() {
        let of_it: i64 = session.figure("t", "refills");
        assert!(of_it > 2, "{of_it}");
        let last_error = session
            .value::<Option<String>>("SELECT last_error FROM leaf_id.tags_detail WHERE tag = 't'");
        assert_eq!(last_error, None);
        let (state, last_error) = connection(&mut session);
        assert!(["connected", "closed"].contains(&&*state), "{state}");
        assert_eq!(last_error, None);
    }
}

/// A member's row: `max_id`, its incarnation, and the central row's incarnation when the last
/// segment was claimed.
fn row(session: &mut Session, tag: &str) -> (i64, i64, i64) {
    let row = session
        .query_one(
            "SELECT max_id, incarnation, server_incarnation FROM leaf_id.leaf_alloc WHERE biz_tag = $1",
            &[&tag],
        )
        .unwrap();
    (row.get(0), row.get(1), row.get(2))
}

/// Takes all cached ids of a tag, and one more.
fn take_what_is_cached(session: &mut Session, tag: &str) -> Vec<i64> {
    session.wait_for_spare(tag);
    let left = session.figure(tag, "current_remaining + coalesce(spare_remaining, 0)");
    session.take(tag, i32::try_from(left).unwrap() + 1)
}

#[test]
fn a_member_remembers_how_far_it_has_come() {
    let fleet = Fleet::new(1, &[]);
    let mut central = fleet.central.session();
    let mut member = fleet.members[0].session();
    fleet.create_tag("t", 50, 50);
    central.run("UPDATE leaf_id.leaf_alloc SET max_id = 1001 WHERE biz_tag = 't'");
    assert_eq!(member.take("t", 3), [1001, 1002, 1003]);
    member.wait_for_spare("t");
    let (max_id, incarnation, server_incarnation) = row(&mut member, "t");
    assert_eq!(max_id, 1051);
    assert_eq!(central.max_id("t"), 1051);
    assert_eq!(server_incarnation, row(&mut central, "t").1);
    member.take("t", 100);
    member.wait_for_spare("t");
    let after = row(&mut member, "t");
    assert_eq!(
        after,
        (central.max_id("t"), incarnation, server_incarnation)
    );
    assert!(after.0 > 1101, "{after:?}");

    // Changes at the central server apply to the next segment.
    central.run("UPDATE leaf_id.leaf_alloc SET max_id = 5001, max_step = 70 WHERE biz_tag = 't'");
    let ids = take_what_is_cached(&mut member, "t");
    assert_eq!(ids.last(), Some(&5001), "{ids:?}");
}

/// Otherwise the central server would issue local ids again.
#[test]
fn a_local_tag_that_becomes_a_sourced_one_goes_on_above_its_ids() {
    let fleet = Fleet::new(1, &[]);
    let mut central = fleet.central.session();
    let mut member = fleet.members[0].session();
    central.create_steady_tag("t", 20);
    member.run("SELECT leaf_tag_create('t', step => 20, max_step => 20, start => 101)");
    assert_eq!(member.take("t", 3), [101, 102, 103]);
    member.wait_for_spare("t");
    let max_id = member.max_id("t");
    member.run("UPDATE leaf_id.leaf_alloc SET server = 'leaf_central'");

    let failure = member.try_next("t").unwrap_err();
    failure
        .is("55000")
        .says("server \"leaf_central\" is behind with tag \"t\"")
        .details(&format!("Ids below {max_id}"))
        .hints("Raise its \"max_id\" there");
    assert_eq!(row(&mut member, "t").0, max_id);
    let error: String = member.value("SELECT last_error FROM leaf_id.tags_detail");
    assert!(
        error.starts_with("Server \"leaf_central\" is behind"),
        "{error}"
    );

    central.run(&format!("UPDATE leaf_id.leaf_alloc SET max_id = {max_id}"));
    let mut next = Err(failure);
    wait_until(LIMIT, "an id from there", || {
        next = member.try_next("t");
        next.is_ok()
    });
    assert_eq!(next.unwrap(), max_id);
    let log = fleet.members[0].log();
    assert_eq!(log.matches("though ids below").count(), 1, "once: {log}");
}

#[test]
fn a_reset_at_the_central_server_begins_a_new_incarnation() {
    let fleet = Fleet::new(2, &[]);
    let mut central = fleet.central.session();
    fleet.create_tag("t", 50, 50);
    let mut sessions = fleet.sessions();
    for session in &mut sessions {
        session.take("t", 120);
        session.wait_for_spare("t");
    }
    let before: Vec<_> = sessions.iter_mut().map(|s| row(s, "t")).collect();
    central.run("SELECT leaf_tag_reset('t', 1)");
    let mut issued = Vec::new();
    for session in &mut sessions {
        // Cached ids are from the old incarnation, and are issued until a claim finds the new one.
        let ids = take_what_is_cached(session, "t");
        let old = ids.iter().take_while(|id| **id >= ids[0]).count();
        assert!(ids[..old].is_sorted() && old < ids.len(), "{ids:?}");
        // From then on, all ids are from the new one.
        let new = [&ids[old..], &session.take("t", 120)].concat();
        assert!(new.is_sorted() && new[0] < ids[0], "{ids:?} {new:?}");
        issued.push(new);
    }
    assert_issued_once(&issued);
    let incarnation = row(&mut central, "t").1;
    for (before, session) in before.iter().zip(&mut sessions) {
        session.wait_for_spare("t");
        let after = row(session, "t");
        assert_ne!(before.1, after.1, "the row here has a new incarnation, too");
        assert_eq!(after.2, incarnation);
    }
}

/// Before: the mark of the name stays above, so a tag that is created again refuses the answers.
#[test]
fn a_tag_is_created_again_after_a_reset_at_the_central_server() {
    let fleet = Fleet::new(1, &[]);
    let mut central = fleet.central.session();
    fleet.create_tag("t", 50, 50);
    let mut session = fleet.members[0].session();
    session.take("t", 5000);
    central.run("SELECT leaf_tag_reset('t', 1)");
    while session.next("t") > 5000 {}
    session.wait_for_spare("t");
    session.run("SELECT leaf_tag_drop('t')");
    session.create_sourced_tag("t", 50, 50);
    assert!(session.next("t") < 1000);
}

/// A member does not repeatedly claim ids that it cannot use.
#[test]
fn a_member_at_its_own_end_leaves_the_rest_to_the_others() {
    let fleet = Fleet::new(2, &[]);
    fleet.create_tag("t", 1000, 1_000_000);
    let mut central = fleet.central.session();
    let [mut other, mut ended] = [0, 1].map(|member: usize| fleet.members[member].session());
    ended.run("UPDATE leaf_id.leaf_alloc SET max_value = 10000");
    ended.take("t", 10);
    ended.wait_for_spare("t");
    // The segment with its end belongs to another member.
    while other.take("t", 500)[499] < 20_000 {}
    ids_to_the_end(&mut ended).1.is("2200H").says("(10000)");
    other.wait_for_spare("t");
    let before = central.max_id("t");
    // One request per second.
    let lost = "SELECT ids_lost FROM leaf_id.tags_detail WHERE tag = 't'";
    let start: i64 = ended.value(lost);
    let mut tries = 0;
    wait_until(LIMIT, "three more answers", || {
        ended.try_next("t").unwrap_err().is("2200H");
        tries += 1;
        ended.value::<i64>(lost) >= start + 3
    });
    // Nor after another error in between.
    let mut holder = fleet.central.session();
    holder.run("BEGIN; SELECT FROM leaf_id.leaf_alloc WHERE biz_tag = 't' FOR UPDATE");
    let error = "SELECT last_error FROM leaf_id.tags_detail WHERE tag = 't'";
    wait_until(LIMIT, "a refusal", || {
        ended.try_next("t").unwrap_err();
        let said: Option<String> = ended.value(error);
        said.is_some_and(|said| said.contains("has refused"))
    });
    holder.run("ROLLBACK");
    wait_until(LIMIT, "two more answers", || {
        ended.try_next("t").unwrap_err();
        ended.value::<i64>(lost) >= start + 5
    });
    let gone = central.max_id("t") - before;
    assert!(gone <= 8, "{gone} ids are gone after {tries} calls");
}

/// A tag belongs to the role that created it: a member's role takes a grant.
#[test]
fn a_tag_that_is_not_granted_there_says_the_grant() {
    let fleet = Fleet::new(1, &[]);
    let mut central = fleet.central.session();
    central.run("SELECT leaf_tag_create('t')");
    central.run("SELECT leaf_tag_revoke('t', 'leaf_member')");
    let mut member = fleet.members[0].session();
    member.create_sourced_tag("t", 10, 10);
    member.run("SET leaf_id.refill_timeout = '500ms'");
    let mut hint = String::new();
    wait_until(LIMIT, "the refusal", || {
        hint = member.fails("SELECT leaf_segment_next('t')").hint;
        hint.contains("leaf_tag_grant")
    });
    let (_, grant) = hint.split_once(": ").unwrap();
    central.run(&grant.replace("'user'", "'leaf_member'"));
    member.run("SET leaf_id.refill_timeout = '30s'");
    assert_eq!(member.next("t"), 1);
}

#[test]
fn limits_of_the_central_server_hold() {
    let fleet = Fleet::new(1, &[]);
    let mut central = fleet.central.session();
    let mut member = fleet.members[0].session();
    central.run("SELECT leaf_tag_create('t', step => 10, max_step => 40, max_value => 1000)");
    member.create_sourced_tag("t", 100, 1_000_000);
    assert_eq!(member.take("t", 10)[9], 10);
    member.wait_for_spare("t");
    let longest = "current_last - current_first + 1";
    assert_eq!(member.figure("t", longest), 40);
    assert_eq!(member.figure("t", "spare_last - spare_first + 1"), 40);
    // A range is limited to a segment of the central server.
    member
        .fails("SELECT leaf_segment_next_range('t', 41)")
        .is("22023")
        .details("40");
    let range =
        member.ids("SELECT unnest(ARRAY[first_id, last_id]) FROM leaf_segment_next_range('t', 40)");
    assert_eq!(range[1] - range[0], 39);
    // Nothing is issued beyond the end, either.
    let issued = ids_to_the_end(&mut member);
    assert_eq!(issued.0.last(), Some(&1000));
    issued
        .1
        .is("2200H")
        .says("on server \"leaf_central\"")
        .details("1000")
        .hints("there");
    // The member's own limit applies, too.
    central.run("UPDATE leaf_id.leaf_alloc SET max_value = 5000");
    member.run("UPDATE leaf_id.leaf_alloc SET max_value = 1100");
    let mut ids = Vec::new();
    wait_until(LIMIT, "ids up to the new limit", || {
        let (more, _) = ids_to_the_end(&mut member);
        ids.extend(more);
        ids.last() == Some(&1100)
    });
    assert_eq!(ids, (1001..=1100).collect::<Vec<_>>());
    ids_to_the_end(&mut member).1.is("2200H").says("(1100)");

    // A missing tag.
    member.create_sourced_tag("u", 10, 10);
    member
        .try_next("u")
        .unwrap_err()
        .is("42704")
        .says("tag \"u\" does not exist on server \"leaf_central\"")
        .hints("leaf_tag_create('u')");
    central.create_steady_tag("u", 10);
    wait_until(LIMIT, "the tag to be found there", || {
        member.try_next("u").is_ok()
    });
}

/// Ids of t one by one, and the error of the first failed call.
fn ids_to_the_end(session: &mut Session) -> (Vec<i64>, Failure) {
    let mut ids = Vec::new();
    loop {
        match session.try_next("t") {
            Ok(id) => ids.push(id),
            Err(failure) => return (ids, failure),
        }
        assert!(ids.len() < 10_000);
    }
}

/// Claims there grow step by step, interleaved with other members' claims.
#[test]
fn a_range_longer_than_a_claim() {
    let fleet = Fleet::new(2, &[]);
    fleet.create_tag("t", 10, 1_000_000);
    let ranges = in_threads(fleet.members.len() * 2, |i| {
        let mut session = fleet.members[i % 2].session();
        let mut ids = Vec::new();
        for n in [3_000, 70, 100_000] {
            let range = session.ids(&format!(
                "SELECT unnest(ARRAY[first_id, last_id]) FROM leaf_segment_next_range('t', {n})"
            ));
            assert_eq!(range[1] - range[0], n - 1);
            ids.extend(range[0]..=range[1]);
            ids.extend(session.take("t", 500));
        }
        ids
    });
    assert_issued_once(&ranges);
}

#[test]
fn a_restart_of_a_member_loses_nothing() {
    let fleet = Fleet::new(1, &[]);
    let member = &fleet.members[0];
    fleet.create_tag("t", 50, 50);
    let mut ids = member.session().take("t", 10);
    member.session().wait_for_spare("t");
    for restart in [Server::restart, |member: &Server| {
        let mut session = member.session();
        let launcher = session.worker("launcher").unwrap();
        session.run(&format!("SELECT pg_terminate_backend({launcher})"));
        wait_until(LIMIT, "another launcher", || {
            session
                .worker("launcher")
                .is_some_and(|pid| pid != launcher)
        });
    }] {
        // The remainders are restored without a request to the central server.
        let away = fleet.central.freeze();
        restart(member);
        let mut session = member.session();
        ids.extend(session.take("t", 20));
        drop(away);
        session.wait_for_spare("t");
    }
    ids.extend(member.session().take("t", 300));
    assert_eq!(ids, (1..=ids.len() as i64).collect::<Vec<_>>());
    // A crash loses only cached ids.
    member.crash();
    ids.extend(member.session().take("t", 300));
    assert!(ids.is_sorted());
    assert_issued_once(&[ids]);
}

#[test]
fn members_of_different_speed_keep_their_steps() {
    let fleet = Fleet::new(2, &[]);
    fleet.create_tag("t", 20, 1_000_000);
    let (mut fast, mut slow) = (fleet.members[0].session(), fleet.members[1].session());
    fast.next("t");
    for _ in 0..12 {
        take_what_is_cached(&mut fast, "t");
        slow.take("t", 1);
    }
    fast.wait_for_spare("t");
    let grown = fast.figure("t", "step");
    assert!(grown > 5_000, "{grown}");
    // A hundred claims of the slow member, far shorter than those of the fast one.
    slow.run("UPDATE leaf_id.leaf_alloc SET max_step = 20");
    slow.use_claims("t", 100);
    take_what_is_cached(&mut fast, "t");
    fast.wait_for_spare("t");
    let after = fast.figure("t", "step");
    assert!(after >= grown, "{grown} {after}");
}

#[test]
fn no_role_sees_the_password() {
    let fleet = Fleet::new(1, &[]);
    fleet.central.require_password("leaf_member");
    let member = &fleet.members[0];
    fleet.create_tag("t", 50, 50);
    let mut session = member.session();
    assert_eq!(session.next("t"), 1);
    // A wrong password could be disclosed in messages.
    session.run(
        "ALTER USER MAPPING FOR CURRENT_USER SERVER leaf_central OPTIONS (SET password 'wr0ng')",
    );
    session.run("SET leaf_id.refill_timeout = '500ms'");
    let mut failure = None;
    wait_until(LIMIT, "the password to be refused", || {
        failure = session.try_take("t", 1000).err();
        failure.is_some()
    });
    let failure = failure.unwrap();
    failure
        .is("55P03")
        .details("Server \"leaf_central\" has given no ids since")
        .details("password authentication failed");
    let mut seen = format!("{failure}");
    for sql in [
        "SELECT s::text FROM leaf_id.fleet s",
        "SELECT s::text FROM leaf_id.tags_detail s",
        "SELECT s::text FROM leaf_id.problems s",
        "SELECT query FROM pg_stat_activity",
    ] {
        seen += &session.column::<String>(sql).join("\n");
    }
    seen += &member.log();
    seen += &fleet.central.log();
    // The statement that set it may be shown as the activity of this session.
    for secret in ["'secret'", "password=secret", "password=wr0ng"] {
        assert!(!seen.contains(secret), "{secret} in {seen}");
    }
    session.run(
        "ALTER USER MAPPING FOR CURRENT_USER SERVER leaf_central OPTIONS (SET password 'secret')",
    );
    // It recovers by itself.
    session.run("SET leaf_id.refill_timeout = '30s'");
    session.next("t");
    let log = member.log();
    let count = |text: &str| log.matches(text).count();
    assert_eq!(
        count("could not claim ids from server \"leaf_central\""),
        1,
        "{log}"
    );
    assert_eq!(count("server \"leaf_central\" is back"), 1, "{log}");
}

#[test]
fn a_database_with_a_sourced_tag_is_dropped() {
    let fleet = Fleet::new(1, &[]);
    fleet.create_tag("t", 50, 50);
    let member = &fleet.members[0];
    member.session().run("CREATE DATABASE d");
    let mut session = member.session_in("d");
    session.run("CREATE EXTENSION leaf_id; CREATE EXTENSION dblink");
    session.create_foreign_server(CENTRAL, &[fleet.central.dir()]);
    session.create_sourced_tag("t", 50, 50);
    session.next("t");
    session.wait_for_spare("t");
    drop(session);
    let mut session = member.session();
    let is_connected = |session: &mut Session| {
        session.column::<String>("SELECT backend_type FROM pg_stat_activity WHERE datname = 'd'")
            == ["leaf_id allocator"]
    };
    wait_until(LIMIT, "the allocator alone", || is_connected(&mut session));
    // PostgreSQL waits for other sessions for five seconds, then gives up.
    session.run("DROP DATABASE d");
}

/// Would catch: a user who can create servers and is admitted elsewhere as this server's superuser,
/// by trust or by the password file of this server's operating system user.
#[test]
fn a_server_of_an_ordinary_user_needs_a_password_that_is_asked_for() {
    let fleet = Fleet::new(1, &[]);
    let member = &fleet.members[0];
    fleet.central.session().create_steady_tag("t", 50);
    fleet.central.set("log_connections", "on");
    let mut admin = member.session();
    admin.run(
        "CREATE ROLE mallory LOGIN;
         GRANT USAGE ON FOREIGN DATA WRAPPER dblink_fdw TO mallory;
         GRANT pg_monitor TO mallory; GRANT USAGE ON SCHEMA leaf_id TO mallory; GRANT INSERT ON leaf_id.leaf_alloc TO mallory;
         GRANT CREATE ON DATABASE postgres TO mallory",
    );
    let mut mallory = member.connect_as("mallory", "postgres");
    let dir = fleet.central.dir().display();
    mallory.run(&format!(
        "CREATE SERVER mine FOREIGN DATA WRAPPER dblink_fdw OPTIONS (host '{dir}', dbname 'postgres');
         CREATE USER MAPPING FOR PUBLIC SERVER mine OPTIONS (user 'postgres');
         INSERT INTO leaf_id.leaf_alloc (biz_tag, server) VALUES ('t', 'mine');
         SET leaf_id.refill_timeout = '1s'"
    ));
    let refused = |session: &mut Session, why: &str| {
        wait_until(LIMIT, why, || {
            let failure = session.try_next("t").unwrap_err();
            failure.is("55P03").detail.contains(why)
        });
    };
    refused(&mut mallory, "a password is required in the user mapping");
    // No connection was attempted, since a password file might have been read.
    let tried = || fleet.central.log().contains("application_name=leaf_id");
    assert!(!tried());
    mallory.run("ALTER USER MAPPING FOR PUBLIC SERVER mine OPTIONS (ADD password 'secret')");
    refused(
        &mut mallory,
        "did not ask for the password of the user mapping",
    );
    assert!(tried());
    // A role admitted by that password may continue.
    fleet.central.require_password("leaf_member");
    mallory.run("ALTER USER MAPPING FOR PUBLIC SERVER mine OPTIONS (SET user 'leaf_member')");
    wait_until(LIMIT, "an id", || mallory.try_next("t").is_ok());
    // A server set up by a superuser needs no password.
    admin.run("ALTER SERVER mine OWNER TO postgres; ALTER USER MAPPING FOR PUBLIC SERVER mine OPTIONS (DROP password, SET user 'postgres')");
    assert_issued_once(&[mallory.take("t", 200)]);
}

/// Would catch: a worker that no signal ends, since OpenSSL reads a pipe instead of a certificate.
#[test]
fn a_pipe_instead_of_a_certificate_holds_up_no_worker() {
    let fleet = Fleet::new(1, &[]);
    let member = &fleet.members[0];
    // Agrees to TLS, after which libpq reads the files.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut agreed = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if stream.read_exact(&mut [0; 8]).is_ok() && stream.write_all(b"S").is_ok() {
                agreed.push(stream);
            }
        }
    });
    let mut session = member.session();
    let pipe = member.dir().join("pipe");
    session.run(&format!(
        "COPY (SELECT) TO PROGRAM 'mkfifo {}'",
        pipe.display()
    ));
    for option in ["sslcert", "sslcrl", "sslrootcert"] {
        session.run(&format!(
            "CREATE SERVER {option} FOREIGN DATA WRAPPER dblink_fdw
                 OPTIONS (host '127.0.0.1', port '{port}', sslmode 'require', {option} '{}');
             CREATE USER MAPPING FOR PUBLIC SERVER {option} OPTIONS (user 'x', password 'x');
             SELECT leaf_tag_create('{option}', server => '{option}');
             SET leaf_id.refill_timeout = '1s'",
            pipe.display()
        ));
        wait_until(LIMIT, option, || {
            let failure = session.try_next(option).unwrap_err();
            let why = format!("{option} is not a regular file");
            failure.is("55P03").detail.contains(&why)
        });
    }
    // Instead of the list in the home directory.
    session.run("ALTER SERVER sslcrl OPTIONS (SET sslcrl '/dev/null', ADD connect_timeout '1')");
    wait_until(LIMIT, "a connection attempt", || {
        let failure = session.try_next("sslcrl").unwrap_err();
        !failure.is("55P03").detail.contains("regular file")
    });
}

/// Before: connections to servers that do not answer took the last descriptor, the allocator could not
/// wait, and ended with an error again and again.
#[test]
fn many_silent_servers_leave_a_descriptor_to_wait_with() {
    const SERVERS: usize = 30;
    // A third of what is left may be used for connections.
    let server = Server::with_leaf_id(&[("max_files_per_process", "80")]);
    // Connections are established, and nothing is said.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let mut session = server.session();
    session.run(&format!(
        "CREATE EXTENSION dblink; SELECT leaf_tag_create('here');
         SET leaf_id.refill_timeout = '20ms';
         DO $$ BEGIN FOR n IN 1 .. {SERVERS} LOOP
             EXECUTE format('CREATE SERVER s%s FOREIGN DATA WRAPPER dblink_fdw OPTIONS (host ''127.0.0.1'', port ''{port}'')', n);
             EXECUTE format('CREATE USER MAPPING FOR PUBLIC SERVER s%s OPTIONS (user ''x'', password ''x'')', n);
             PERFORM leaf_tag_create('t' || n, server => 's' || n);
         END LOOP; END $$"
    ));
    let ask = "DO $$ BEGIN FOR n IN 1 .. 30 LOOP
                   BEGIN PERFORM leaf_segment_next('t' || n); EXCEPTION WHEN lock_not_available THEN NULL; END;
               END LOOP; END $$";
    let is_refused = "SELECT EXISTS (SELECT FROM leaf_id_internal.leaf_central_connections() WHERE last_error LIKE '%too many open files%')";
    wait_until(LIMIT, "the last descriptor", || {
        session.run(ask);
        session.value(is_refused)
    });
    session.run("SET leaf_id.refill_timeout = '5s'");
    assert_eq!(session.next("here"), 1);
    let log = server.log();
    assert!(!log.contains("epoll_create1"), "{log}");
}

/// Would catch: a role that has a worker run a library, as OpenSSL does with this `sslkey`, or open
/// files that only libpq and OpenSSL know of.
#[test]
fn what_a_superuser_has_to_name_is_refused() {
    let fleet = Fleet::new(1, &[]);
    let mut session = fleet.members[0].session();
    session.run("CREATE ROLE mallory");
    for (option, value, tried) in [
        ("connect_timeout", "301", "Connection refused"),
        ("service", "x", "definition of service \"x\" not found"),
        ("sslcert", "server.crt", "Connection refused"),
        ("sslcrldir", "/tmp", "Connection refused"),
        ("sslkey", "/tmp/x.so:key", "Connection refused"),
    ] {
        session.run(&format!(
            "CREATE SERVER {option} FOREIGN DATA WRAPPER dblink_fdw
                 OPTIONS (host '127.0.0.1', port '1', {option} '{value}');
             ALTER SERVER {option} OWNER TO mallory;
             CREATE USER MAPPING FOR PUBLIC SERVER {option} OPTIONS (user 'x', password 'x');
             SELECT leaf_tag_create('{option}', server => '{option}');
             SET leaf_id.refill_timeout = '1s'"
        ));
        let mut fails = |why: &str| {
            wait_until(LIMIT, &format!("{option}: {why}"), || {
                let failure = session.try_next(option).unwrap_err();
                failure.is("55P03").detail.contains(why)
            });
        };
        fails("is not allowed: the foreign server is not a superuser's");
        let owned = format!("ALTER SERVER {option} OWNER TO postgres");
        fleet.members[0].session().run(&owned);
        fails(tried);
    }
}

/// A central server restored from a dump issues ids again that members have. This must not be taken
/// for an intentional reset.
#[test]
fn a_central_server_restored_from_a_dump_is_behind_and_not_reset() {
    let fleet = Fleet::new(1, &[]);
    fleet.create_tag("t", 100, 100);
    let mut member = fleet.members[0].session();
    member.take("t", 150);
    let mut central = fleet.central.session();
    // A restored server has no marks, either.
    central.run("CREATE TABLE dump AS SELECT * FROM leaf_id.leaf_alloc");
    let ids = member.take("t", 500);
    central.run("BEGIN; SET LOCAL leaf_id.allow_truncate = on; TRUNCATE leaf_id.leaf_alloc; DELETE FROM leaf_id.leaf_high_mark; INSERT INTO leaf_id.leaf_alloc SELECT * FROM dump; COMMIT");
    member.run("SET leaf_id.refill_timeout = '2s'");
    let failure = loop {
        match member.try_next("t") {
            Ok(id) => assert!(id > ids[ids.len() - 1], "{id}"),
            Err(failure) => break failure,
        }
    };
    failure.is("55000").says("is behind with tag \"t\"");
    // Follow the hint.
    central.run("UPDATE leaf_id.leaf_alloc SET max_id = 100000");
    member.run("SET leaf_id.refill_timeout = '20s'");
    wait_until(LIMIT, "the central server's new ids", || {
        member.try_next("t").is_ok_and(|id| id >= 100_000)
    });
}

#[test]
fn a_tag_has_the_same_name_in_databases_of_different_encodings() {
    let fleet = Fleet::new(1, &[]);
    let [member] = &fleet.members[..] else {
        panic!("one member");
    };
    for (encoding, letter) in [("LATIN1", 'ä'), ("EUC_JP", 'あ'), ("SQL_ASCII", 'ä')] {
        member.session().run(&format!(
            "CREATE DATABASE {encoding} ENCODING '{encoding}' TEMPLATE template0 LOCALE 'C'"
        ));
        let mut session = member.session_in(&encoding.to_lowercase());
        session.run("CREATE EXTENSION leaf_id; CREATE EXTENSION dblink");
        session.create_foreign_server(CENTRAL, &[fleet.central.dir()]);
        let tag = format!("{letter} \"\\\u{1}\u{7f} {encoding}");
        fleet.central.session().create_steady_tag(&tag, 10);
        session.create_sourced_tag(&tag, 10, 10);
        assert_eq!(session.next(&tag), 1, "{encoding}");
        assert!(fleet.central.session().max_id(&tag) > 10, "{encoding}");
    }
}

#[test]
fn an_answer_of_another_version_is_not_read() {
    let fleet = Fleet::new(1, &[]);
    fleet.create_tag("t", 100, 100);
    let answer = impersonate("json_build_object('version', 2, 'first', '1')");
    fleet.central.session().run(&answer);
    let mut member = fleet.members[0].session();
    member.run("SET leaf_id.refill_timeout = '1s'");
    let failure = member.try_next("t").unwrap_err();
    failure.is("55P03");
    assert!(
        failure
            .detail
            .contains("message version 2, not 1: receiver is older"),
        "{failure:?}"
    );
}

#[test]
fn an_absurd_connect_timeout_does_no_harm() {
    let fleet = Fleet::new(1, &[]);
    fleet.create_tag("t", 100, 100);
    let mut member = fleet.members[0].session();
    member.run(&format!(
        "ALTER SERVER {CENTRAL} OPTIONS (SET connect_timeout '18446744073709551615')"
    ));
    assert_eq!(member.next("t"), 1);
}
