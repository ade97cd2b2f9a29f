//! Would catch: a claim for another server that could still be rolled back when it was answered
//! (I1, I2), or that overlaps with another one or with local ids (I3). (Results and errors are
//! tested in sql/claim.sql.)

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use leaf_id_tests::{
    Failure, STANDBY, Server, Session, Stop, assert_issued_once, in_threads, random, wait_until,
};
use rand::RngExt;

const LIMIT: Duration = Duration::from_secs(30);

/// Result of a claim.
#[derive(Debug, PartialEq)]
struct Claim {
    first: i64,
    last: i64,
    skipped: i64,
}

impl Claim {
    fn ids(&self) -> Vec<i64> {
        (self.first..=self.last).collect()
    }
}

fn try_claim(session: &mut Session, tag: &str, n: i32) -> Result<Claim, Failure> {
    let row = session
        .query_one(
            "SELECT (token::json ->> 'first')::bigint AS first, (token::json ->> 'len')::bigint AS len,
                 (token::json ->> 'skipped')::bigint AS skipped
             FROM ts_parse('leaf_id.leaf_claim', json_build_object('version', 1, 'tag', $1::text, 'n', $2::integer)::text)",
            &[&tag, &n],
        )
        .map_err(|error| Failure::from(&error))?;
    let (first, len): (i64, i64) = (row.get("first"), row.get("len"));
    Ok(Claim {
        first,
        last: first + len - 1,
        skipped: row.get("skipped"),
    })
}

#[track_caller]
fn claim(session: &mut Session, tag: &str, n: i32) -> Claim {
    try_claim(session, tag, n).unwrap_or_else(|failure| panic!("{n} ids of {tag}: {failure}"))
}

#[test]
fn a_standby_claims_nothing() {
    let server = Server::with_leaf_id(&[]);
    server.session().create_tag("t");
    let standby = server.standby(&[]);
    try_claim(&mut standby.session(), "t", 10)
        .unwrap_err()
        .is("25006");
}

/// Would catch: a claim that waits for a row, and follows it to another tag.
#[test]
fn a_tag_that_is_renamed_concurrently_is_not_claimed() {
    let server = Server::with_leaf_id(&[]);
    let mut holder = server.session();
    holder.create_tag("t");
    let mut watcher = server.session();
    for round in 1.. {
        holder.run("BEGIN; UPDATE leaf_id.leaf_alloc SET biz_tag = 'u'");
        let mut member = server.session();
        let pid = member.pid();
        let claimed = std::thread::spawn(move || try_claim(&mut member, "t", 10));
        wait_until(LIMIT, "the claim to wait, or to give up", || {
            claimed.is_finished()
                || watcher.value(&format!(
                    "SELECT wait_event_type = 'Lock' IS TRUE FROM pg_stat_activity WHERE pid = {pid}"
                ))
        });
        holder.run("COMMIT");
        let failure = claimed.join().unwrap().expect_err("ids of another tag");
        if failure.state == "42704" {
            break;
        }
        // It waits only for a moment, and had given up.
        failure.is("55P03");
        assert!(round < 50, "no claim was waiting at the right time");
        holder.run("UPDATE leaf_id.leaf_alloc SET biz_tag = 't'");
    }
    assert_eq!(holder.max_id("u"), 1);
}

/// Would catch: a member that keeps a tag's row locked.
#[test]
fn a_claim_does_not_keep_the_row_for_long() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.create_tag("t");
    let mut keeper = server.session();
    let kept = std::thread::spawn(move || {
        let result = keeper.try_run(
            "SELECT token, pg_sleep(60) FROM ts_parse('leaf_id.leaf_claim', json_build_object('version', 1, 'tag', 't', 'n', 1)::text)",
        );
        (result, keeper)
    });
    let (result, _keeper) = kept.join().unwrap();
    result.unwrap_err();
    assert_eq!(claim(&mut session, "t", 1).first, 1);
    session.run("SET default_transaction_read_only = on");
    try_claim(&mut session, "t", 1).unwrap_err().is("25006");
}

#[test]
fn two_claims_at_once_do_not_overlap() {
    let server = Server::with_leaf_id(&[]);
    server
        .session()
        .run("SELECT leaf_tag_create('t', step => 10, max_step => 500)");
    let mut random = random();
    let seeds: Vec<i32> = (0..4).map(|_| random.random_range(1..400)).collect();
    let claimed = in_threads(6, |thread| {
        let mut session = server.session();
        let Some(n) = seeds.get(thread) else {
            // Issued locally, at the same time.
            return (0..60).flat_map(|_| session.take("t", 25)).collect();
        };
        // Behind others on a slow machine, a claim waits for the row for longer than it may.
        let mut claim = |n| loop {
            match try_claim(&mut session, "t", n) {
                Ok(claim) => return claim.ids(),
                Err(failure) => {
                    failure.is("55P03");
                }
            }
        };
        (0..200)
            .flat_map(|i| claim((n * i) % 500))
            .collect::<Vec<_>>()
    });
    assert_issued_once(&claimed);
    let highest = claimed.iter().flatten().max();
    assert!(*highest.unwrap() < server.session().max_id("t"));
}

#[test]
fn a_locked_row_is_waited_for_a_moment() {
    let server = Server::with_leaf_id(&[]);
    let (mut holder, mut session) = (server.session(), server.session());
    session.create_tag("t");
    session.run("SET lock_timeout = '5min'");
    holder.run("BEGIN; SELECT FROM leaf_id.leaf_alloc FOR UPDATE");
    try_claim(&mut session, "t", 10).unwrap_err().is("55P03");
    assert_eq!(session.value::<String>("SHOW lock_timeout"), "5min");
    // Replaced while the claim waits for it, not deleted.
    holder.run("SELECT leaf_tag_reset('t', 100)");
    let pid = session.pid();
    let claimed = thread::scope(|scope| {
        // It gives up soon. If it waits when the row is replaced, it gets ids of the new one.
        let waiting = scope.spawn(|| {
            loop {
                match try_claim(&mut session, "t", 10) {
                    Err(failure) if failure.state == "55P03" => {}
                    claimed => break claimed,
                }
            }
        });
        let mut watcher = server.session();
        wait_until(LIMIT, "the claim to wait", || {
            watcher.value(&format!(
                "SELECT count(*) = 1 FROM pg_stat_activity
                 WHERE pid = {pid} AND wait_event_type = 'Lock'"
            ))
        });
        holder.run("COMMIT");
        waiting.join().unwrap()
    });
    assert_eq!(claimed.unwrap().first, 100);
}

/// Starts a claim, and returns once it waits for the standby.
fn claim_and_wait<T>(
    server: &Server,
    mut session: Session,
    statement: &str,
    waits: &str,
    act: impl FnOnce(&mut Session, i32) -> T,
) -> Result<Vec<i64>, Failure> {
    let pid = session.pid();
    let mut watcher = server.session();
    thread::scope(|scope| {
        let waiting = scope.spawn(move || session.try_column(statement));
        wait_until(LIMIT, "the claim to wait for the standby", || {
            assert!(!waiting.is_finished(), "it was answered");
            watcher.value(&format!(
                "SELECT count(*) = 1 FROM pg_stat_activity
                 WHERE pid = {pid} AND wait_event = 'SyncRep' AND {waits}"
            ))
        });
        act(&mut watcher, pid);
        waiting.join().unwrap()
    })
}

#[test]
fn a_canceled_wait_for_a_standby_answers_nothing() {
    let primary = Server::with_leaf_id(&[("synchronous_commit", "off")]);
    let mut admin = primary.session();
    admin.create_tag("t");
    let standby = primary.standby(&[]);
    primary.configure("synchronous_standby_names", STANDBY);
    wait_until(LIMIT, "the standby to be synchronous", || {
        admin.value("SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')")
    });
    assert_eq!(claim(&mut admin, "t", 10).first, 1);
    standby.stop(Stop::Fast);

    let direct = "SELECT (token::json ->> 'first')::bigint FROM ts_parse('leaf_id.leaf_claim', json_build_object('version', 1, 'tag', 't', 'n', 10)::text)";
    let mut next = 11;
    for end in ["pg_cancel_backend", "pg_terminate_backend"] {
        println!("{end}");
        let session = primary.session();
        let result = claim_and_wait(&primary, session, direct, "true", |watcher, pid| {
            assert_eq!(watcher.max_id("t"), next);
            assert!(watcher.value::<bool>(&format!("SELECT {end}({pid})")));
        });
        result.unwrap_err().is_termination();
        // A gap: the claim is committed locally.
        next += 10;
        assert_eq!(admin.max_id("t"), next);
    }

    // A timeout does not end the wait of a statement.
    let mut session = primary.session();
    session.run("SET statement_timeout = '300ms'");
    let long = "query_start < clock_timestamp() - interval '1s'";
    let result = claim_and_wait(&primary, session, direct, long, |_, _| standby.launch());
    assert_eq!(result.unwrap(), [next]);
    // It applies again to the next statement.
    let mut session = primary.session();
    session.run("SET statement_timeout = '300ms'");
    claim(&mut session, "t", 10);
    session.fails("SELECT pg_sleep(60)").is("57014");
}

/// Without a standby to wait for, a cancel works as usual.
#[test]
fn a_session_that_has_claimed_is_canceled_as_any_other() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.create_tag("t");
    claim(&mut session, "t", 10);
    session.run("SET statement_timeout = '100ms'");
    session.fails("SELECT pg_sleep(60)").is("57014");
    session.run("RESET statement_timeout");
    assert_eq!(claim(&mut session, "t", 10).first, 11);
}

#[test]
fn a_promoted_standby_skips_once() {
    let primary = Server::with_leaf_id(&[]);
    let mut session = primary.session();
    session.run("SELECT leaf_tag_create('t', step => 20, max_step => 20)");
    let mut ids = claim(&mut session, "t", 20).ids();
    let standby = primary.standby(&[]);
    standby.replay_all_of(&primary);
    standby.cut_off();
    // The standby never receives these.
    for _ in 0..2 {
        ids.extend(claim(&mut session, "t", 20).ids());
    }
    primary.kill_9();
    standby.promote();
    let mut session = standby.session();
    let first = claim(&mut session, "t", 20);
    assert_eq!((first.skipped, first.first), (40, 61));
    let second = claim(&mut session, "t", 20);
    assert_eq!((second.skipped, second.first), (0, 81));
    ids.extend(first.ids());
    ids.extend(second.ids());
    assert_issued_once([ids]);
    assert_eq!(standby.log().matches("leaf_id: skipped").count(), 1);
}

/// Short claims have made the next ones short. An edit that changes none of the limits makes them as
/// long as the step again, and is lost together with what was claimed after it.
#[test]
fn a_promoted_standby_skips_for_an_edit_that_was_lost() {
    let primary = Server::with_leaf_id(&[]);
    let mut session = primary.session();
    session.run("SELECT leaf_tag_create('t', step => 1000, max_step => 100000)");
    let mut ids = Vec::new();
    while session.value::<i32>("SELECT largest_claim FROM leaf_id.leaf_alloc") > 100 {
        ids.extend(claim(&mut session, "t", 10).ids());
    }
    let standby = primary.standby(&[]);
    standby.replay_all_of(&primary);
    standby.cut_off();
    session.run("UPDATE leaf_id.leaf_alloc SET description = 'orders'");
    for _ in 0..2 {
        ids.extend(claim(&mut session, "t", 8000).ids());
    }
    primary.kill_9();
    standby.promote();
    let first = claim(&mut standby.session(), "t", 10);
    assert!(first.skipped >= 16_000, "{first:?}");
    ids.extend(first.ids());
    assert_issued_once([ids]);
}

/// A message of the frontend/backend protocol.
fn message(kind: Option<u8>, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let len = i32::try_from(body.len() + 4).unwrap().to_be_bytes();
    let mut message = Vec::from_iter(kind);
    message.extend(len);
    message.extend(body);
    message
}

/// A statement of a pipeline.
fn piped(sql: &str) -> Vec<u8> {
    [
        message(Some(b'P'), &[b"\0", sql.as_bytes(), b"\0\0\0"]),
        message(Some(b'B'), &[b"\0\0", &[0; 6]]),
        message(Some(b'E'), &[b"\0", &[0; 4]]),
    ]
    .concat()
}

/// Types of the messages up to ReadyForQuery.
fn kinds(stream: &mut UnixStream) -> String {
    let mut kinds = String::new();
    while !kinds.ends_with('Z') {
        let mut header = [0; 5];
        stream.read_exact(&mut header).unwrap();
        let len = i32::from_be_bytes(header[1..].try_into().unwrap());
        stream
            .read_exact(&mut vec![0; usize::try_from(len).unwrap() - 4])
            .unwrap();
        kinds.push(char::from(header[0]));
    }
    kinds
}

/// Statements after a claim in a pipeline cannot roll it back, since it was answered.
#[test]
fn in_a_pipeline_a_claim_is_committed_before_it_is_answered() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.create_steady_tag("t", 10);
    let mut stream = UnixStream::connect(server.dir().join(".s.PGSQL.5432")).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let parameters = b"user\0postgres\0database\0postgres\0\0";
    let version = 196_608_i32.to_be_bytes();
    stream
        .write_all(&message(None, &[&version, parameters]))
        .unwrap();
    kinds(&mut stream);

    let claim = piped(
        "SELECT token FROM ts_parse('leaf_id.leaf_claim', json_build_object('version', 1, 'tag', 't', 'n', 10)::text)",
    );
    let (failing, sync) = (piped("SELECT 1 / 0"), message(Some(b'S'), &[]));
    stream
        .write_all(&[&claim[..], &failing, &sync].concat())
        .unwrap();
    // ParseComplete, BindComplete, a row, CommandComplete; ParseComplete, and the error.
    assert_eq!(kinds(&mut stream), "12DC1EZ");
    assert_eq!(session.max_id("t"), 11);
    // Nor may it follow a statement that would be committed with it.
    stream
        .write_all(&[&piped("SELECT 1")[..], &claim, &sync].concat())
        .unwrap();
    assert_eq!(kinds(&mut stream), "12DC12EZ");
    assert_eq!(session.max_id("t"), 11);
}
