//! Would catch: an effect that a role reaches by a second door: an id of another's tag twice, an
//! opaque id that it has seen before or whose number it has chosen, another's calls that fail or
//! wait, another's session that ends, another's column, ids of a central server or a worker id in
//! another's name, a tag that another's call grants it or keeps for it, and what plans and locks of views
//! tell and hold.
//!
//! Random sequences of statements, each within a frame (a rollback, a savepoint, an index function
//! that another role's ANALYZE runs), by each role of SECURITY.md that is no superuser. What is
//! checked is not what a statement returns, but what the others get afterwards.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::time::Duration;

use leaf_id_tests::{Server, Session, random};
use postgres::SimpleQueryMessage;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

/// A role.
struct Role {
    name: &'static str,
    /// What a superuser grants it.
    grants: &'static str,
    /// It may edit tags, and is trusted with how far they go.
    manages: bool,
    /// What it does half of the time: what has to do with its rights.
    often: &'static [&'static str],
}

/// What a role that manages no tags says of those of others: by a column of a superuser's table, whose
/// domain is the role's; by views and rules over another, `sales`, where it may insert into one column;
/// and by defaults.
const SAYS: &[&str] = &[
    "CREATE VIEW seen AS SELECT item FROM sales",
    "GRANT INSERT ON seen TO PUBLIC",
    "CREATE RULE takes AS ON INSERT TO {own} DO INSTEAD INSERT INTO sales (item) VALUES ('x')",
    "GRANT INSERT ON {own} TO PUBLIC",
    "ALTER TABLE {own} ALTER id SET DEFAULT leaf_segment_next('w')",
    "ALTER TABLE {own} ALTER id SET DEFAULT leaf_segment_next('sales')",
    "ALTER TABLE {own} ALTER id SET DEFAULT nextval('sales_id_seq')",
    "CREATE TABLE {own} (id smallint)",
    "ALTER DOMAIN big SET DEFAULT leaf_segment_next('v')",
    "ALTER DOMAIN big SET DEFAULT leaf_opaque_next('o')",
    "ALTER DOMAIN big DROP DEFAULT",
    "ALTER TABLE {own} ALTER id SET DEFAULT leaf_segment_next('v')",
    "INSERT INTO {own} (id) VALUES (9000000000000000000)",
    "CREATE TABLE {own} (id bigint)",
    "SELECT leaf_segment_next('v')",
];

const ROLES: [Role; 6] = [
    Role {
        name: "stranger",
        grants: "",
        manages: false,
        often: SAYS,
    },
    Role {
        name: "grantee",
        grants: "SELECT leaf_tag_grant('v', 'grantee')",
        manages: false,
        often: SAYS,
    },
    Role {
        name: "member",
        grants: "SELECT leaf_tag_grant('v', 'member');
             GRANT EXECUTE ON FUNCTION leaf_id.leaf_claim, leaf_id.leaf_worker_lease TO member",
        manages: false,
        often: &[
            CLAIM,
            LEASE,
            "SELECT leaf_segment_next('v')",
            "ALTER DOMAIN big SET DEFAULT leaf_segment_next('v')",
        ],
    },
    Role {
        name: "manager",
        grants: "GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO manager;
             GRANT SELECT, INSERT, DELETE ON leaf_id.leaf_gapless TO manager;
             GRANT USAGE ON SCHEMA leaf_id TO manager WITH GRANT OPTION",
        manages: true,
        often: &[
            "SELECT leaf_tag_create('{own}', step => 10)",
            "UPDATE leaf_id.leaf_alloc SET biz_tag = 'x{n}' WHERE biz_tag = 'v'",
            "UPDATE leaf_id.leaf_alloc SET biz_tag = 'v' WHERE biz_tag = '{own}'",
            "DELETE FROM leaf_id.leaf_alloc WHERE biz_tag IN ('v', 'o')",
            "SELECT leaf_tag_reset('o', {n}, true)",
            "SELECT leaf_tag_drop('o', true, true)",
            "SELECT leaf_tag_create('o', start => {n})",
            "SELECT leaf_opaque_next('o')",
            "SELECT leaf_tag_create('t', server => 'center')",
            "INSERT INTO leaf_id.leaf_alloc (biz_tag, server) VALUES ('t', 'center')",
            "SELECT leaf_segment_next('t')",
        ],
    },
    Role {
        name: "owner",
        grants: "ALTER DATABASE of_owner OWNER TO owner;
             GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO owner;
             GRANT USAGE ON SCHEMA leaf_id TO owner WITH GRANT OPTION",
        manages: true,
        often: &[
            "SELECT leaf_tag_reset('{own}', {n}, true)",
            "CREATE TABLE {own} (id serial)",
            "DROP TABLE {own}",
        ],
    },
    // What a publisher sends is applied in sessions like these.
    Role {
        name: "publisher",
        grants: "GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO publisher;
             ALTER ROLE publisher SET session_replication_role = replica",
        manages: true,
        often: &[
            "DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 'v'",
            "DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 'o'",
            "INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('v')",
            "INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id) VALUES ('v', {n})",
            "INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id) VALUES ('o', {n})",
            "INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('{own}')",
            "UPDATE leaf_id.leaf_alloc SET biz_tag = 'x{n}' WHERE biz_tag = 'v'",
            "UPDATE leaf_id.leaf_alloc SET biz_tag = 'v' WHERE biz_tag = '{own}'",
            "UPDATE leaf_id.leaf_alloc SET max_id = {n}, incarnation = 0 WHERE biz_tag = 'v'",
        ],
    },
];

/// A claim of a member of a fleet.
const CLAIM: &str =
    r#"SELECT token FROM ts_parse('leaf_id.leaf_claim', '{"version": 1, "tag": "v", "n": 5}')"#;

/// A claim of a worker id.
const LEASE: &str = "SELECT token FROM ts_parse('leaf_id.leaf_worker_lease', json_build_object(
         'version', 1,
         'question', json_build_object('token', 0, 'next_token', 7, 'held', NULL),
         'system_identifier', 1, 'node_name', 'n{n}',
         'now_ms', (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
         'epoch_ms', 1288834974657, 'layout', '41/10/12')::text)";

/// No id of a tag is as high, unless a role that does not manage tags has it raised.
const FAR: i64 = 1 << 60;

/// Tags of alice: `v`, and `o` with opaque ids; a gapless series of hers: `s`. `{own}` is a tag of the
/// role. A manager is trusted with resets and with names that are forgotten, so there is none of `v`; with
/// those of `o` it is not.
const STATEMENTS: &[&str] = &[
    "SELECT leaf_segment_next('v')",
    "SELECT leaf_segment_next_batch('v', 3)",
    "SELECT first_id FROM leaf_segment_next_range('v', 5)",
    "SELECT leaf_segment_next('o')",
    "SELECT leaf_segment_next('{own}')",
    "SELECT leaf_ordered_next('v')",
    "SELECT leaf_ordered_next('o')",
    "SELECT leaf_ordered_watermark('v')",
    "SELECT leaf_opaque_next('o')",
    "SELECT leaf_opaque_next('v')",
    "SELECT leaf_id.leaf_opaque_encode('o', {n})",
    "SELECT leaf_id.leaf_opaque_decode('o', {n})",
    "SELECT leaf_id.leaf_opaque_create('v')",
    "SELECT leaf_id.leaf_opaque_create('o')",
    "SELECT leaf_id.leaf_opaque_create('{own}')",
    "SELECT leaf_id.leaf_gapless_next('s')",
    "SELECT leaf_id.leaf_gapless_create('s')",
    "SELECT leaf_id.leaf_gapless_drop('s')",
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
    "SELECT leaf_id_internal.leaf_next_here('v')",
    "SELECT leaf_id_internal.leaf_gapless_raise('s', 1, 't')",
    "SELECT leaf_id_internal.leaf_skip_ids('v', {n})",
    "SELECT leaf_sync()",
    "SELECT leaf_check()",
    "SELECT leaf_sync('v', '{own}', 'id')",
    "SELECT leaf_adopt('{own}', 'id', 'v')",
    "SELECT leaf_release('{own}', 'id')",
    "ALTER TABLE {own} ALTER id SET DEFAULT leaf_segment_next('v')",
    "INSERT INTO {own} (id) VALUES (9000000000000000000)",
    "DROP TABLE {own} CASCADE",
    "CREATE TABLE {own} (id bigint)",
    "CREATE TABLE {own} (id serial)",
    "CREATE VIEW seen AS SELECT item FROM sales",
    "GRANT INSERT ON seen TO PUBLIC",
    "DROP VIEW seen",
    "CREATE RULE takes AS ON INSERT TO {own} DO INSTEAD INSERT INTO sales (item) VALUES ('x')",
    "CREATE PUBLICATION mine FOR TABLE {own}",
    "CREATE PUBLICATION mine FOR TABLE leaf_id.leaf_alloc, leaf_id.leaf_high_mark",
    "CREATE PUBLICATION mine FOR ALL TABLES",
    "DROP PUBLICATION mine",
    "EXPLAIN SELECT * FROM leaf_id.tags",
    "EXPLAIN SELECT * FROM leaf_id.fleet",
    "EXPLAIN SELECT * FROM leaf_id.leaf_alloc",
    "LOCK TABLE leaf_id.tags IN ACCESS SHARE MODE",
    "LOCK TABLE leaf_id.fleet IN ACCESS SHARE MODE",
    "SELECT leaf_id_internal.leaf_require('')",
    "SELECT leaf_snowflake_next()",
    "SELECT leaf_id.leaf_snowflake_reset('2020-01-01')",
    "SELECT leaf_id.leaf_worker_retire(1)",
    CLAIM,
    "SELECT token FROM ts_parse('leaf_id.leaf_claim', '{\"version\": 1, \"tag\": \"o\", \"n\": 5}')",
    "SET session_replication_role = replica",
    "SET leaf_id.failover_skip = 0",
    "SET leaf_id.allow_truncate = on",
    "SET leaf_id.public_tags = on",
    "SET synchronous_commit = off",
    "SET ROLE alice",
    "LOCK leaf_id.leaf_alloc",
    "PREPARE TRANSACTION 'p{n}'",
];

/// Of the statements above, those whose results are ids of the counter that alice uses, too.
fn counter_of(statement: &str) -> Option<Counter> {
    let ids = [
        "SELECT leaf_segment_next",
        "SELECT leaf_ordered_next",
        "SELECT first_id",
    ];
    if ids.iter().any(|ids| statement.starts_with(ids)) {
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
    /// An index function that catches no error: a handler makes a subtransaction, where what must be
    /// a transaction of its own is refused anyway.
    Uncaught,
    /// The same, which goes on after its statements for longer than a claim may be held.
    Slow,
}

const FRAMES: [Frame; 8] = [
    Frame::Plain,
    Frame::Commit,
    Frame::Rollback,
    Frame::Savepoint,
    Frame::Caught,
    Frame::IndexFunction,
    Frame::Uncaught,
    Frame::Slow,
];

/// What is known of alice's counters.
#[derive(Default)]
struct Seen {
    tag: HashSet<i64>,
    opaque: HashSet<i64>,
    /// The opaque ids that the role has got in its last sequence.
    got: Vec<i64>,
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
fn act(
    session: &mut Session,
    statement: &str,
    manages: bool,
    seen: &mut Seen,
) -> Result<(), String> {
    let Ok(messages) = session.simple_query(statement) else {
        return Ok(());
    };
    if !manages {
        let mut lines = messages.iter().filter_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0),
            _ => None,
        });
        let names = |line: &str| line.contains("leaf_alloc") || line.contains("leaf_worker");
        if statement.starts_with("EXPLAIN") && lines.any(names) {
            return Err("a plan tells what is in a table".into());
        }
        let keeps = ["LOCK TABLE", "SELECT leaf_id_internal.leaf_require"];
        if keeps.iter().any(|start| statement.starts_with(start)) && session.value(TABLES_LOCKED) {
            return Err("it locks a table that claims need".into());
        }
    }
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
            if counter == Counter::Opaque {
                seen.got.push(id);
            }
            seen.note(counter, id)?;
        }
    }
    Ok(())
}

/// Whether the session holds the lock of a table of leaf_id.
const TABLES_LOCKED: &str = "SELECT EXISTS (
    SELECT FROM pg_locks l JOIN pg_class c ON c.oid = l.relation AND c.relkind = 'r'
    WHERE l.pid = pg_backend_pid() AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND c.relnamespace = 'leaf_id'::regnamespace)";

/// Runs a sequence within a frame. `admin` is in the way of what index functions do.
fn attempt(
    session: &mut Session,
    admin: &mut Session,
    frame: Frame,
    statements: &[String],
    manages: bool,
    seen: &mut Seen,
) -> Result<(), String> {
    let quoted = |text: &String| format!("'{}'", text.replace('\'', "''"));
    match frame {
        Frame::Plain => {
            for statement in statements {
                act(session, statement, manages, seen)?;
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
                act(session, statement, manages, seen)?;
                // What is rolled back at the end stays until then.
                let stays =
                    matches!(frame, Frame::Rollback) && session.try_run("RELEASE each").is_ok();
                if !stays {
                    let _ = session.try_run("ROLLBACK TO each; RELEASE each");
                }
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
        Frame::IndexFunction | Frame::Uncaught | Frame::Slow => {
            let is_caught = matches!(frame, Frame::IndexFunction);
            let mut body = String::new();
            for statement in statements {
                let execute = format!("EXECUTE {};", quoted(statement));
                let _ = if is_caught {
                    writeln!(
                        body,
                        "BEGIN {execute} EXCEPTION WHEN OTHERS THEN NULL; END;"
                    )
                } else {
                    writeln!(body, "{execute}")
                };
            }
            if matches!(frame, Frame::Slow) {
                body += "PERFORM pg_sleep(0.4);";
            }
            let spring = |body: &str| {
                format!(
                    "CREATE OR REPLACE FUNCTION spring(a int) RETURNS int LANGUAGE plpgsql IMMUTABLE AS $f$ BEGIN {body} RETURN a; END $f$"
                )
            };
            // Where an error would prevent the index, the function gets its body later.
            let at_first = spring(if is_caught { &body } else { "" });
            let _ = session.try_run(&format!(
                "CREATE TABLE trap AS SELECT 1 AS a; {at_first}; CREATE INDEX ON trap (spring(a)); {}",
                spring(&body)
            ));
            let role: String = session.value("SELECT session_user::text");
            let _ = admin.try_run(&format!("ANALYZE {role}.trap"));
            admin
                .try_run("SELECT 1")
                .map_err(|failure| format!("another's session has ended: {failure}"))?;
            let _ = session.try_run("DROP TABLE trap; DROP FUNCTION spring");
        }
    }
    let _ = session.try_run("ROLLBACK");
    Ok(())
}

/// The sessions of others.
struct Others {
    /// A superuser.
    admin: Session,
    alice: Session,
    /// A superuser where the tag `t` is sourced from.
    center: Session,
}

/// What alice gets afterwards, and what others find.
fn observe(others: &mut Others, role: &Role, seen: &mut Seen) -> Result<(), String> {
    let Others {
        admin,
        alice,
        center,
    } = others;
    if !role.manages {
        let _ = admin.try_run("SELECT leaf_sync()");
        observe_superuser(admin)?;
    }
    let id = alice.try_next("v").map_err(|failure| failure.to_string())?;
    seen.note(Counter::Tag, id)?;
    if !role.manages && id >= FAR {
        return Err(format!("Tag: {id} is near the end"));
    }
    let mut one = |call: &str| {
        alice
            .try_column::<i64>(call)
            .map_err(|failure| format!("{call}: {failure}"))
    };
    for id in one("SELECT leaf_opaque_next('o')")? {
        seen.note(Counter::Opaque, id)?;
    }
    let number = one("SELECT leaf_id.leaf_gapless_next('s')")?[0];
    if number <= seen.number {
        return Err(format!("gapless: {number} after {}", seen.number));
    }
    seen.number = number;
    one("SELECT leaf_snowflake_next()")?;
    for id in seen.got.drain(..) {
        // The mark of a name is above all numbers that were claimed.
        let is_ahead: bool = admin.value(&format!(
            "SELECT coalesce((SELECT leaf_id.leaf_opaque_decode('o', {id}) >= high FROM leaf_id.leaf_high_mark WHERE tag = 'o'), false)"
        ));
        if is_ahead {
            return Err(format!("Opaque: {id} is that of a number yet to come"));
        }
    }
    let leased: Vec<i64> = admin.column(&format!(
        "SELECT worker_id::bigint FROM leaf_id.leaf_worker
         WHERE node_name IS NOT NULL AND role_name IS DISTINCT FROM '{}'",
        role.name
    ));
    if !leased.is_empty() {
        return Err(format!("worker ids leased as another: {leased:?}"));
    }
    match center.max_id("t") {
        1 => Ok(()),
        max_id => Err(format!(
            "ids up to {max_id} claimed with another's user mapping"
        )),
    }
}

/// A superuser moves a column to a tag and back, and fits, drops and looks at tags: nothing that the role
/// has said is in the way, or gives it anything.
fn observe_superuser(admin: &mut Session) -> Result<(), String> {
    let mut of = |sql: &str| {
        admin
            .try_column::<String>(sql)
            .map_err(|failure| format!("a superuser's {sql}: {failure}"))
    };
    let granted =
        "SELECT format('%s is granted to %s', biz_tag, granted_to) FROM leaf_id.leaf_alloc
         WHERE biz_tag IN ('w', 'sales') AND granted_to <> ARRAY[current_user]";
    let mut effects = Vec::new();
    of("SELECT tag FROM leaf_adopt('sales', 'id', 'sales')")?;
    of("SELECT action FROM leaf_sync('w')")?;
    effects.extend(of(granted)?);
    of("SELECT 'done' FROM leaf_release('sales', 'id')")?;
    effects.extend(of(
        "SELECT biz_tag || ' is kept' FROM leaf_id.leaf_alloc WHERE biz_tag = 'sales'",
    )?);
    of("SELECT 'done' FROM leaf_tag_reset('w', 40000)")?;
    effects.extend(of(
        "SELECT what FROM leaf_id.problems WHERE severity = 'critical' AND what LIKE 'tag \"w\"%'",
    )?);
    of("SELECT 'done' FROM leaf_tag_drop('w')")?;
    of("SELECT 'done' FROM leaf_tag_create('w')")?;
    if effects.is_empty() {
        Ok(())
    } else {
        Err(effects.join("; "))
    }
}

/// A column of a table that a superuser creates: no other role has it number its rows again. Settings
/// of a database count in new sessions.
fn observe_new_column(server: &Server, role: &Role) -> Result<(), String> {
    let database = format!("of_{}", role.name);
    let mut admin = server.session_in(&database);
    admin.run("DROP TABLE IF EXISTS theirs; CREATE TABLE theirs (id bigserial)");
    let mut insert = || -> i64 { admin.value("INSERT INTO theirs DEFAULT VALUES RETURNING id") };
    let first = insert();
    let mut session = server.connect_as(role.name, &database);
    let _ = session.try_run("SELECT leaf_tag_reset('theirs', 1, true)");
    match insert() {
        id if id > first => Ok(()),
        id => Err(format!("new column: {id} after {first}")),
    }
}

/// Tags of alice that a manager may have dropped, renamed, revoked or exhausted.
const REPAIR: &str = "
    DO $$
    BEGIN
        IF NOT EXISTS (SELECT FROM leaf_id.leaf_alloc WHERE biz_tag = 'v') THEN
            PERFORM leaf_tag_create('v', step => 10, force => true);
        END IF;
        IF NOT EXISTS (SELECT FROM leaf_id.leaf_alloc WHERE biz_tag = 'o') THEN
            PERFORM leaf_tag_create('o', step => 10, max_value => 9007199254740991, force => true);
        END IF;
        IF NOT EXISTS (SELECT FROM leaf_id.leaf_gapless WHERE series = 's') THEN
            PERFORM leaf_id.leaf_gapless_create('s');
        END IF;
        UPDATE leaf_id.leaf_alloc SET server = NULL, step = 10, max_step = 1000 WHERE biz_tag IN ('v', 'o');
        UPDATE leaf_id.leaf_alloc SET max_value = 9223372036854775806 WHERE biz_tag = 'v';
        PERFORM leaf_tag_grant('v', 'alice'), leaf_tag_grant('o', 'alice');
    END $$";

/// Prepares the database of a role.
fn prepare(server: &Server, role: &Role) -> Others {
    let Role { name, grants, .. } = role;
    let database = format!("of_{name}");
    let mut admin = server.session();
    admin.run(&format!("CREATE ROLE {name} LOGIN"));
    admin.run(&format!("CREATE DATABASE {database}"));
    let mut admin = server.session_in(&database);
    admin.run(&format!(
        "CREATE EXTENSION leaf_id; CREATE SCHEMA {name} AUTHORIZATION {name};
         SELECT leaf_tag_create('v', step => 10), leaf_id.leaf_opaque_create('o'), leaf_id.leaf_gapless_create('s');
         GRANT EXECUTE ON FUNCTION leaf_id.leaf_gapless_next TO alice; {grants}"
    ));
    admin.run(REPAIR);
    admin.run(&format!(
        "CREATE DOMAIN {name}.big AS bigint; ALTER DOMAIN {name}.big OWNER TO {name};
         CREATE TABLE accounts (account {name}.big); INSERT INTO accounts VALUES (9223372036854775000);
         CREATE TABLE sales (id serial, item text); GRANT SELECT (item), INSERT (item) ON sales TO {name};
         SELECT leaf_tag_create('w');
         CREATE EXTENSION dblink;
         CREATE SERVER center FOREIGN DATA WRAPPER dblink_fdw
             OPTIONS (host '{}', port '{}', dbname 'center');
         CREATE USER MAPPING FOR CURRENT_USER SERVER center OPTIONS (user 'claimant');
         GRANT USAGE ON FOREIGN SERVER center TO {name}",
        server.dir().display(),
        server.port()
    ));
    let mut alice = server.connect_as("alice", &database);
    // No role may stop her for longer, however busy the machine is.
    alice.run("SET statement_timeout = '30s'; SET leaf_id.refill_timeout = '30s'");
    Others {
        admin,
        alice,
        center: server.session_in("center"),
    }
}

/// Some sequences of a role, in a database of its own.
fn search(server: &Server, role: &Role, rounds: usize, random: &mut StdRng) {
    let name = role.name;
    let mut others = prepare(server, role);
    let mut seen = Seen::default();
    let mut tried = 0;
    observe(&mut others, role, &mut seen).unwrap();
    for round in 0..rounds {
        let frame = *FRAMES.choose(random).unwrap();
        let statements: Vec<String> = (0..random.random_range(1..=4))
            .map(|_| {
                let pool = if random.random_bool(0.5) {
                    role.often
                } else {
                    STATEMENTS
                };
                let statement = pool.choose(random).unwrap();
                let n = [1, 2, 100, 1_000_000].choose(random).unwrap().to_string();
                statement.replace("{own}", "mine").replace("{n}", &n)
            })
            .collect();
        tried += statements.len();
        let mut session = server.connect_as(name, &format!("of_{name}"));
        session.run("SET lock_timeout = '1s'; SET leaf_id.refill_timeout = '1s'");
        let outcome = attempt(
            &mut session,
            &mut others.admin,
            frame,
            &statements,
            role.manages,
            &mut seen,
        );
        drop(session);
        let outcome = outcome.and_then(|()| {
            // A manager may take tags away; its successors go on above them.
            if role.manages {
                others.admin.run(REPAIR);
            }
            observe(&mut others, role, &mut seen)?;
            if role.manages {
                observe_new_column(server, role)?;
            }
            Ok(())
        });
        if let Err(effect) = outcome {
            panic!(
                "{name}, round {round}, after {tried} statements, {frame:?}: {effect}\n{}",
                statements.join(";\n")
            );
        }
    }
    let ids = seen.tag.len() + seen.opaque.len();
    println!("{name}: {rounds} sequences, {ids} ids, none twice");
}

#[test]
fn no_sequence_of_statements_reaches_anothers_ids() {
    // Each database has an allocator.
    let server = Server::start(&[("leaf_id.worker_id", "1"), ("max_worker_processes", "24")]);
    let rounds = if std::env::var_os("LEAF_ID_LONG").is_some() {
        server.allow(Duration::from_secs(3 * 3600));
        2000
    } else {
        60
    };
    let mut admin = server.session();
    admin.run("CREATE ROLE alice LOGIN; CREATE ROLE claimant LOGIN");
    admin.run("CREATE DATABASE center");
    server.session_in("center").run(
        "CREATE EXTENSION leaf_id; SELECT leaf_tag_create('t'), leaf_tag_grant('t', 'claimant');
         GRANT EXECUTE ON FUNCTION leaf_id.leaf_claim TO claimant",
    );
    let mut random = random();
    for role in &ROLES {
        search(&server, role, rounds, &mut random);
    }
    let log = server.log();
    assert!(!log.contains("terminating any other active"), "a crash");
}
