//! Would catch: an effect that a role reaches by a second door: an id of another's tag twice, an
//! opaque id that it has seen before, or another's calls that fail or wait.
//!
//! Random sequences of statements, each within a frame (a rollback, a savepoint, an index function
//! that somebody else's ANALYZE runs), by each role of SECURITY.md that is no superuser. What is
//! checked is not what a statement returns, but what the others get afterwards.

use std::collections::HashSet;
use std::fmt::Write as _;

use leaf_id_tests::{Server, Session, random};
use postgres::SimpleQueryMessage;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// A role, and what a superuser grants it.
const ROLES: [(&str, &str); 4] = [
    ("stranger", ""),
    ("grantee", "SELECT leaf_tag_grant('v', 'grantee')"),
    (
        "member",
        "SELECT leaf_tag_grant('v', 'member');
         GRANT EXECUTE ON FUNCTION leaf_id.leaf_claim, leaf_id.leaf_worker_lease TO member",
    ),
    (
        "manager",
        "GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO manager;
         GRANT SELECT, INSERT, DELETE ON leaf_id.leaf_gapless TO manager;
         GRANT USAGE ON SCHEMA leaf_id TO manager WITH GRANT OPTION",
    ),
];

/// Tags of alice: `v`, and `o` with opaque ids; a gapless series of hers: `s`. `{own}` is a tag of the
/// role. A manager is trusted with resets and with names that are forgotten, so there is none.
const STATEMENTS: &[&str] = &[
    "SELECT leaf_segment_next('v')",
    "SELECT leaf_segment_next_batch('v', 3)",
    "SELECT first_id FROM leaf_segment_next_range('v', 5)",
    "SELECT leaf_segment_next('o')",
    "SELECT leaf_segment_next('{own}')",
    "SELECT leaf_opaque_next('o')",
    "SELECT leaf_opaque_next('v')",
    "SELECT leaf_opaque_encode('o', {n})",
    "SELECT leaf_opaque_decode('o', {n})",
    "SELECT leaf_opaque_create('v')",
    "SELECT leaf_opaque_create('o')",
    "SELECT leaf_opaque_create('{own}')",
    "SELECT leaf_gapless_next('s')",
    "SELECT leaf_gapless_create('s')",
    "SELECT leaf_gapless_drop('s')",
    "SELECT leaf_tag_create('v')",
    "SELECT leaf_tag_create('o')",
    "SELECT leaf_tag_create('{own}', step => 10)",
    "SELECT leaf_tag_drop('v', force => true)",
    "SELECT leaf_tag_drop('o', force => true)",
    "SELECT leaf_tag_drop('{own}')",
    "SELECT leaf_tag_grant('v', 'public')",
    "SELECT leaf_tag_grant('{own}', 'alice')",
    "SELECT leaf_tag_revoke('{own}', 'alice')",
    "UPDATE leaf_id.leaf_alloc SET biz_tag = 'x{n}' WHERE biz_tag = 'v'",
    "UPDATE leaf_id.leaf_alloc SET biz_tag = 'v' WHERE biz_tag = '{own}'",
    "UPDATE leaf_id.leaf_alloc SET biz_tag = 'o' WHERE biz_tag = '{own}'",
    "UPDATE leaf_id.leaf_alloc SET max_id = {n} WHERE biz_tag = 'v'",
    "UPDATE leaf_id.leaf_alloc SET max_id = max_id + {n} WHERE biz_tag IN ('v', 'o')",
    "UPDATE leaf_id.leaf_alloc SET step = {n}, max_step = {n} WHERE biz_tag = 'v'",
    "UPDATE leaf_id.leaf_alloc SET granted_to = '{public}' WHERE biz_tag = 'v'",
    "UPDATE leaf_id.leaf_alloc SET system_identifier = {n}, timeline = {n}, largest_claim = 0",
    "UPDATE leaf_id.leaf_alloc SET server_incarnation = {n} WHERE biz_tag = 'v'",
    "DELETE FROM leaf_id.leaf_alloc WHERE biz_tag IN ('v', 'o')",
    "INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('v')",
    "INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id) VALUES ('o', {n})",
    "INSERT INTO leaf_id.leaf_alloc (biz_tag, incarnation) VALUES ('{own}', {n})",
    "TRUNCATE leaf_id.leaf_alloc",
    "DELETE FROM leaf_id.leaf_high_mark",
    "UPDATE leaf_id.leaf_high_mark SET high = 1",
    "UPDATE leaf_id.leaf_gapless SET last_number = 0",
    "DELETE FROM leaf_id.leaf_gapless",
    "INSERT INTO leaf_id.leaf_gapless VALUES ('s', 0)",
    "UPDATE leaf_id.leaf_opaque_key SET tag = '{own}'",
    "INSERT INTO leaf_id.leaf_opaque_key SELECT '{own}', last, key FROM leaf_id.leaf_opaque_key",
    "SELECT leaf_id.leaf_next_here('v')",
    "SELECT leaf_id.leaf_gapless_raise('s')",
    "SELECT leaf_id.leaf_skip_ids('v', {n})",
    "SELECT leaf_id.leaf_note_adopted('pg_class', 1::smallint, 'v')",
    "SELECT leaf_sync()",
    "SELECT leaf_check()",
    "SELECT leaf_sync('v', '{own}', 'id')",
    "SELECT leaf_adopt('{own}', 'id', 'v')",
    "SELECT leaf_release('{own}', 'id')",
    "ALTER TABLE {own} ALTER id SET DEFAULT leaf_segment_next('v')",
    "INSERT INTO {own} (id) VALUES (9000000000000000000)",
    "DROP TABLE {own}",
    "CREATE TABLE {own} (id bigint)",
    "CREATE TABLE {own} (id serial)",
    "SELECT leaf_snowflake_next()",
    "SELECT leaf_id.leaf_snowflake_reset('2020-01-01')",
    "SELECT leaf_id.leaf_worker_retire(1)",
    "SELECT token FROM ts_parse('leaf_id.leaf_claim', '{\"version\": 1, \"tag\": \"v\", \"n\": 5}')",
    "SELECT token FROM ts_parse('leaf_id.leaf_claim', '{\"version\": 1, \"tag\": \"o\", \"n\": 5}')",
    "SET session_replication_role = replica",
    "SET leaf_id.failover_skip = 0",
    "SET leaf_id.allow_truncate = on",
    "SET leaf_id.adopt_new_columns = on",
    "SET leaf_id.public_tags = on",
    "SET synchronous_commit = off",
    "SET ROLE alice",
    "LOCK leaf_id.leaf_alloc",
    "PREPARE TRANSACTION 'p{n}'",
];

/// Of the statements above, those whose results are ids of the counter that alice uses, too.
fn counter_of(statement: &str) -> Option<Counter> {
    if statement.starts_with("SELECT leaf_segment_next") || statement.starts_with("SELECT first_id")
    {
        statement.contains("'v'").then_some(Counter::Tag)
    } else {
        (statement == "SELECT leaf_opaque_next('o')").then_some(Counter::Opaque)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Counter {
    Tag,
    Opaque,
}

#[derive(Clone, Copy, Debug)]
enum Frame {
    Plain,
    Commit,
    Rollback,
    Savepoint,
    Caught,
    IndexFunction,
}

const FRAMES: [Frame; 6] = [
    Frame::Plain,
    Frame::Commit,
    Frame::Rollback,
    Frame::Savepoint,
    Frame::Caught,
    Frame::IndexFunction,
];

/// What is known of alice's counters.
#[derive(Default)]
struct Seen {
    tag: HashSet<i64>,
    opaque: HashSet<i64>,
    /// The last gapless number of a committed call.
    number: i64,
}

impl Seen {
    fn note(&mut self, counter: Counter, id: i64) -> Result<(), String> {
        let seen = match counter {
            Counter::Tag => &mut self.tag,
            Counter::Opaque => &mut self.opaque,
        };
        if seen.insert(id) {
            Ok(())
        } else {
            Err(format!("{counter:?}: {id} came twice"))
        }
    }
}

/// Runs a statement, and notes the ids that it returns. Whether it fails is of no interest.
fn act(session: &mut Session, statement: &str, seen: &mut Seen) -> Result<(), String> {
    let Ok(messages) = session.simple_query(statement) else {
        return Ok(());
    };
    if statement.starts_with("SELECT leaf_opaque_encode") {
        return Err("it may encode".into());
    }
    let Some(counter) = counter_of(statement) else {
        return Ok(());
    };
    for message in messages {
        if let SimpleQueryMessage::Row(row) = message
            && let Some(id) = row.get(0).and_then(|text| text.parse().ok())
        {
            seen.note(counter, id)?;
        }
    }
    Ok(())
}

/// Runs a sequence within a frame. `admin` is in the way of what index functions do.
fn attempt(
    session: &mut Session,
    admin: &mut Session,
    frame: Frame,
    statements: &[String],
    seen: &mut Seen,
) -> Result<(), String> {
    let quoted = |text: &String| format!("'{}'", text.replace('\'', "''"));
    match frame {
        Frame::Plain => {
            for statement in statements {
                act(session, statement, seen)?;
            }
        }
        Frame::Commit | Frame::Rollback | Frame::Savepoint => {
            session.run("BEGIN");
            for statement in statements {
                // A failed statement does not end the transaction of those after it, but a refused
                // PREPARE does.
                if session.try_run("SAVEPOINT each").is_err() {
                    break;
                }
                act(session, statement, seen)?;
                let _ = session.try_run("ROLLBACK TO each; RELEASE each");
                if matches!(frame, Frame::Commit) {
                    let _ = session.try_run("SAVEPOINT again");
                    if session.try_run(statement).is_err() {
                        let _ = session.try_run("ROLLBACK TO again");
                    }
                }
            }
            let _ = session.try_run(if matches!(frame, Frame::Rollback) {
                "ROLLBACK"
            } else {
                "COMMIT"
            });
        }
        Frame::Caught => {
            let mut body = String::new();
            for statement in statements {
                let _ = writeln!(body, "EXECUTE {};", quoted(statement));
            }
            let _ = session.try_run(&format!(
                "DO $do$ BEGIN BEGIN {body} RAISE 'back'; EXCEPTION WHEN OTHERS THEN NULL; END; END $do$"
            ));
        }
        Frame::IndexFunction => {
            let mut body = String::new();
            for statement in statements {
                let _ = writeln!(
                    body,
                    "BEGIN EXECUTE {}; EXCEPTION WHEN OTHERS THEN NULL; END;",
                    quoted(statement)
                );
            }
            let _ = session.try_run(&format!(
                "CREATE TABLE trap AS SELECT 1 AS a;
                 CREATE FUNCTION spring(a int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $f$ BEGIN {body} RETURN a; END $f$;
                 CREATE INDEX ON trap (spring(a))"
            ));
            let role: String = session.value("SELECT session_user::text");
            let _ = admin.try_run(&format!("ANALYZE {role}.trap"));
            let _ = session.try_run("DROP TABLE trap; DROP FUNCTION spring");
        }
    }
    let _ = session.try_run("ROLLBACK");
    Ok(())
}

/// What alice gets afterwards.
fn observe(alice: &mut Session, seen: &mut Seen) -> Result<(), String> {
    let id = alice.try_next("v").map_err(|failure| failure.to_string())?;
    seen.note(Counter::Tag, id)?;
    let mut one = |call: &str| {
        alice
            .try_column::<i64>(call)
            .map_err(|failure| format!("{call}: {failure}"))
    };
    for id in one("SELECT leaf_opaque_next('o')")? {
        seen.note(Counter::Opaque, id)?;
    }
    let number = one("SELECT leaf_gapless_next('s')")?[0];
    if number <= seen.number {
        return Err(format!("gapless: {number} after {}", seen.number));
    }
    seen.number = number;
    one("SELECT leaf_snowflake_next()").map(|_| ())
}

/// Tags of alice that a manager may have dropped, renamed, revoked or exhausted.
const REPAIR: &str = "
    DO $$
    BEGIN
        IF NOT EXISTS (SELECT FROM leaf_id.leaf_alloc WHERE biz_tag = 'v') THEN
            PERFORM leaf_tag_create('v', step => 10);
        END IF;
        IF NOT EXISTS (SELECT FROM leaf_id.leaf_alloc WHERE biz_tag = 'o') THEN
            PERFORM leaf_tag_create('o', step => 10, max_value => 9007199254740991);
        END IF;
        IF NOT EXISTS (SELECT FROM leaf_id.leaf_gapless WHERE series = 's') THEN
            PERFORM leaf_gapless_create('s');
        END IF;
        UPDATE leaf_id.leaf_alloc SET server = NULL, step = 10, max_step = 1000 WHERE biz_tag IN ('v', 'o');
        UPDATE leaf_id.leaf_alloc SET max_value = 9223372036854775806 WHERE biz_tag = 'v';
        PERFORM leaf_tag_grant('v', 'alice'), leaf_tag_grant('o', 'alice');
    END $$";

/// Some sequences of a role, in a database of its own.
fn search(server: &Server, role: &str, grants: &str, rounds: usize, random: &mut StdRng) {
    let database = format!("of_{role}");
    let mut admin = server.session();
    admin.run(&format!("CREATE ROLE {role} LOGIN"));
    admin.run(&format!("CREATE DATABASE {database}"));
    let mut admin = server.session_in(&database);
    admin.run(&format!(
        "CREATE EXTENSION leaf_id; CREATE SCHEMA {role} AUTHORIZATION {role};
         SELECT leaf_tag_create('v', step => 10), leaf_opaque_create('o'), leaf_gapless_create('s');
         GRANT EXECUTE ON FUNCTION leaf_gapless_next TO alice; {grants}"
    ));
    admin.run(REPAIR);
    let mut alice = server.connect_as("alice", &database);
    // Nobody may stop her for longer, however busy the machine is.
    alice.run("SET statement_timeout = '30s'; SET leaf_id.refill_timeout = '30s'");
    let mut seen = Seen::default();
    observe(&mut alice, &mut seen).unwrap();
    for round in 0..rounds {
        let frame = *FRAMES.choose(random).unwrap();
        let statements: Vec<String> = (0..random.random_range(1..=4))
            .map(|_| {
                let statement = STATEMENTS.choose(random).unwrap();
                let n = [1, 2, 100, 1_000_000].choose(random).unwrap().to_string();
                statement.replace("{own}", "mine").replace("{n}", &n)
            })
            .collect();
        let mut session = server.connect_as(role, &database);
        session.run("SET lock_timeout = '1s'; SET leaf_id.refill_timeout = '1s'");
        let outcome = attempt(&mut session, &mut admin, frame, &statements, &mut seen);
        drop(session);
        let outcome = outcome.and_then(|()| {
            // A manager may take tags away; its successors go on above them.
            if role == "manager" {
                admin.run(REPAIR);
            }
            observe(&mut alice, &mut seen)
        });
        if let Err(effect) = outcome {
            panic!(
                "{role}, round {round}, {frame:?}: {effect}\n{}",
                statements.join(";\n")
            );
        }
    }
    let ids = seen.tag.len() + seen.opaque.len();
    println!("{role}: {rounds} sequences, {ids} ids, none twice");
}

#[test]
fn no_sequence_of_statements_reaches_anothers_ids() {
    let rounds = if std::env::var_os("LEAF_ID_LONG").is_some() {
        5000
    } else {
        60
    };
    let server = Server::start(&[("leaf_id.worker_id", "1")]);
    server.session().run("CREATE ROLE alice LOGIN");
    let mut random = random();
    for (role, grants) in ROLES {
        search(&server, role, grants, rounds, &mut random);
    }
    let log = server.log();
    assert!(!log.contains("terminating any other active"), "a crash");
}
