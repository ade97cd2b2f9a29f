//! Would catch: a fault that `leaf_id.problems` does not show, one that it still shows once it is
//! over, a problem on a server where all is well or where what is wrong passes within two seconds, a
//! remedy that does not help, and a kind of problem that no test makes happen. Those of tags that end
//! are in `pgrx-tests/sql/views.sql`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leaf_id_tests::{
    Fleet, Registry, Server, Session, Stop, in_threads_until, lease_conf, wait_until,
};

const LIMIT: Duration = Duration::from_secs(60);

/// Each kind of problem: how often its severity stands in `sql/views.sql`, a part of its words there,
/// and the test that makes it happen, runs its remedy if it has one, and sees it go.
const KINDS: [(usize, &str, &str); 16] = [
    (1, "gets no ids: %s", "a_locked_row_is_one_with_the_process"),
    (3, "has issued its last id", "sql/views.sql"),
    (
        1,
        "which tags are sourced from, is away",
        "a_source_server_that_is_away_is_one",
    ),
    (
        1,
        "the clock of node",
        "a_registry_that_does_not_answer_is_one_and_a_clock_that_is_off_another",
    ),
    (
        1,
        "worker ids', f.name",
        "a_node_with_several_worker_ids_is_one",
    ),
    (
        1,
        "does not exist, and INSERTs",
        "a_tag_that_columns_name_and_that_is_missing_is_one",
    ),
    (
        1,
        "leaf_missing_grants(NULL)",
        "a_role_without_execute_is_one",
    ),
    (
        1,
        "holds back readers of tag",
        "a_transaction_that_holds_readers_back_for_a_minute_is_one",
    ),
    (
        1,
        "w.tag, w.detail",
        "claims_that_a_promotion_may_have_lost_are_one",
    ),
    (
        1,
        "no snowflake ids are issued",
        "a_generator_that_is_refused_is_one_with_the_hint_of_the_error",
    ),
    (
        1,
        "is not valid: %s stays in force",
        "a_worker_id_that_is_not_valid_is_one",
    ),
    (
        1,
        "does not renew the lease",
        "a_registry_that_does_not_answer_is_one_and_a_clock_that_is_off_another",
    ),
    (1, "the clock was set back", "a_clock_set_back_is_one"),
    (
        1,
        "off those of the other servers",
        "a_registry_that_does_not_answer_is_one_and_a_clock_that_is_off_another",
    ),
    (1, "slots are in use", "too_few_slots_are_one"),
    (
        1,
        "the server runs without the %s",
        "a_worker_without_a_slot_is_one",
    ),
];

#[test]
fn each_kind_is_made_happen_by_a_test() {
    let views = include_str!("../../../../sql/views.sql");
    let kinds = views
        .split("CREATE FUNCTION leaf_id_internal.leaf_tag_problems(")
        .nth(1)
        .and_then(|rest| rest.split("CREATE VIEW leaf_id.problems").next())
        .unwrap();
    let severities: usize = ["'critical'", "'warning'", "'info'"]
        .map(|severity| kinds.matches(severity).count())
        .iter()
        .sum();
    assert_eq!(
        severities,
        KINDS.iter().map(|(count, ..)| count).sum::<usize>()
    );
    for (_, words, test) in KINDS {
        assert_eq!(kinds.matches(words).count(), 1, "{words}");
        let is_here = include_str!("problems.rs").contains(&format!("fn {test}() {{"));
        assert!(is_here || test == "sql/views.sql", "{test}");
    }
}

/// Problems: severity, what, whether it is known since when, remedy, advice.
fn problems(session: &mut Session) -> Vec<(String, String, bool, String, String)> {
    let sql = "SELECT severity, what, since IS NOT NULL, coalesce(remedy, ''), coalesce(advice, '') FROM leaf_id.problems";
    let rows = session.query(sql, &[]).unwrap();
    let read = |row: &postgres::Row| (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4));
    rows.iter().map(read).collect()
}

/// Waits for a single problem that starts like this, and returns its remedy and advice.
#[track_caller]
fn wait_for(session: &mut Session, severity: &str, what: &str, is_since: bool) -> (String, String) {
    let mut seen = Vec::new();
    wait_until(LIMIT, what, || {
        seen = problems(session);
        seen.len() == 1
            && seen[0].0 == severity
            && seen[0].1.starts_with(what)
            && seen[0].2 == is_since
    });
    let (_, _, _, remedy, advice) = seen.remove(0);
    (remedy, advice)
}

#[track_caller]
fn wait_for_none(session: &mut Session) {
    wait_until(LIMIT, "the problem to end", || problems(session).is_empty());
}

/// Before: no row.
#[test]
fn a_missing_opaque_tag_is_one() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "SELECT leaf_id.leaf_opaque_create('o'); CREATE TABLE o (id bigint DEFAULT leaf_opaque_next('o'))",
    );
    session.run("INSERT INTO o DEFAULT VALUES");
    session.run("SELECT leaf_tag_drop('o', force => true)");
    let what = "tag \"o\" does not exist, and INSERTs fail into the columns that take ids from it (1, first id of public.o)";
    let (remedy, advice) = wait_for(&mut session, "critical", what, false);
    assert_eq!(remedy, "");
    assert!(advice.starts_with("Its ids are opaque"), "{advice}");
    session.run("SELECT leaf_tag_create('o')");
    wait_for_none(&mut session);
    session.run("INSERT INTO o DEFAULT VALUES");
    let ids: i64 = session.value("SELECT count(DISTINCT id) FROM o");
    assert_eq!(ids, 2);
}

/// Before: no row, and `leaf_sync('e')` said that no column names the tag.
#[test]
fn a_tag_that_is_missing_in_an_expression_is_one() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session
        .run("CREATE TABLE e (id bigint PRIMARY KEY DEFAULT 2026000000 + leaf_segment_next('e'))");
    let what = "tag \"e\" does not exist, and INSERTs fail into the columns that take ids from it (1, first id of public.e)";
    let (remedy, advice) = wait_for(&mut session, "critical", what, false);
    assert_eq!(remedy, "");
    assert!(
        advice.starts_with("A default has it in an expression"),
        "{advice}"
    );
    session
        .fails("SELECT * FROM leaf_sync('e')")
        .is("42704")
        .details("column \"id\" of table public.e has it in an expression");
    session.run("SELECT leaf_tag_create('e'); INSERT INTO e DEFAULT VALUES");
    wait_for_none(&mut session);
    // Texts that are given to other functions are no tags; beside one, the tag is found.
    session.run(
        "CREATE TABLE by_year (id bigint DEFAULT leaf_segment_next(to_char(now(), 'YYYY')),
             code text DEFAULT leaf_format(leaf_segment_next('e'), 'E-{n:6}'))",
    );
    wait_for_none(&mut session);
    session.run("ALTER TABLE by_year ADD name text DEFAULT 'INV-' || leaf_segment_next('inv')");
    let what = "tag \"inv\" does not exist, and INSERTs fail into the columns that take ids from it (1, first name of public.by_year)";
    wait_for(&mut session, "critical", what, false);
    session.run("DROP TABLE by_year");
    // What is in the column counts for its reset. Before: it did not.
    session
        .fails("SELECT leaf_tag_reset('e', 1)")
        .is("55000")
        .details("Column \"id\" of table public.e holds 2026000001.");
    session.run("SELECT leaf_tag_reset('e', 1, force => true)");
}

/// As after a restore by a superuser. Before: no row for the owner of the database, who has no right to
/// issue ids by that.
#[test]
fn the_owner_of_the_database_without_its_grant_is_one() {
    let server = Server::with_leaf_id(&[]);
    let mut admin = server.session();
    admin.run("CREATE ROLE solo LOGIN");
    admin.run("CREATE DATABASE solo OWNER solo");
    let mut session = server.session_in("solo");
    session.run(
        "CREATE EXTENSION leaf_id; SELECT leaf_tag_create('t'); UPDATE leaf_id.leaf_alloc SET granted_to = '{solo}'",
    );
    let mut owner = server.connect_as("solo", "solo");
    owner.fails("SELECT leaf_segment_next('t')").is("42501");
    let what = "role \"solo\" may not issue ids of tag \"t\", though \"granted_to\" names it";
    let (remedy, advice) = wait_for(&mut session, "critical", what, false);
    assert_eq!(remedy, "");
    let grant = advice
        .split(": ")
        .nth(1)
        .unwrap()
        .split(". ")
        .next()
        .unwrap();
    assert_eq!(grant, "GRANT USAGE ON SCHEMA leaf_id TO solo");
    session.run(grant);
    wait_for_none(&mut session);
    assert_eq!(owner.next("t"), 1);
}

/// Before: the remedy fails with 0A000.
#[test]
fn a_column_that_cannot_be_widened_alone_has_no_remedy() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run("SELECT leaf_tag_create('t', start => 2000000000)");
    let column = "id integer PRIMARY KEY DEFAULT leaf_segment_next('t')";
    for (statements, can_widen) in [
        (format!("CREATE TABLE t ({column})"), true),
        (
            format!("CREATE TABLE t ({column}); CREATE VIEW v AS SELECT id FROM t"),
            false,
        ),
        (
            format!("CREATE TABLE t ({column}, twice bigint GENERATED ALWAYS AS (id * 2::bigint) STORED)"),
            false,
        ),
        (
            format!("CREATE TABLE t ({column}) PARTITION BY LIST (id); CREATE TABLE t1 PARTITION OF t DEFAULT"),
            false,
        ),
        (
            format!("CREATE TABLE t ({column}) PARTITION BY LIST ((id / 9)); CREATE TABLE t1 PARTITION OF t DEFAULT")
                .replace("PRIMARY KEY", ""),
            false,
        ),
        (
            format!("CREATE TYPE y AS (id integer); CREATE TABLE t OF y (PRIMARY KEY (id)); ALTER TABLE t ALTER {}", column.replace("integer PRIMARY KEY", "SET")),
            false,
        ),
    ] {
        session.run(&format!("DROP TABLE IF EXISTS t CASCADE; DROP TYPE IF EXISTS y; {statements}"));
        let what = "tag \"t\" has used 93 % of its ids, which end at 2147483647, as column id of public.t does";
        let (remedy, _) = wait_for(&mut session, "warning", what, false);
        assert_eq!(!remedy.is_empty(), can_widen, "{statements}: {remedy}");
        if can_widen {
            session.run(&remedy);
            wait_for_none(&mut session);
        } else {
            session
                .fails("ALTER TABLE t ALTER id TYPE bigint");
        }
    }
}

#[test]
fn a_locked_row_is_one_with_the_process() {
    let server = Server::with_leaf_id(&[("leaf_id.worker_id", "1")]);
    let mut session = server.session();
    session.create_steady_tag("t", 10);
    session.take("t", 5);
    session.next_snowflake();
    assert_eq!(problems(&mut session), []);
    let mut holder = server.session();
    let pid: i32 = holder.value("SELECT pg_backend_pid()");
    holder.run("BEGIN; SELECT FROM leaf_id.leaf_alloc WHERE biz_tag = 't' FOR UPDATE");
    session.run("SET leaf_id.refill_timeout = '1s'");
    wait_until(LIMIT, "the end of the cached ids", || {
        session.try_next("t").is_err()
    });
    let what = format!(
        "tag \"t\" gets no ids: The row of the tag in leaf_id.leaf_alloc is locked by process {pid}."
    );
    let (remedy, advice) = wait_for(&mut session, "critical", &what, true);
    assert_eq!(remedy, "");
    let process = format!("Process {pid} holds the lock");
    assert!(advice.starts_with(&process), "{advice}");
    let shown = "SELECT pid FROM leaf_id.tags WHERE health = 'locked'";
    assert_eq!(session.column::<i32>(shown), [pid]);
    let since = "SELECT now() - since < interval '1 min' FROM leaf_id.problems";
    assert!(session.value::<bool>(since));
    holder.run("COMMIT");
    session.run("SET leaf_id.refill_timeout = '30s'");
    session.next("t");
    wait_for_none(&mut session);
}

#[test]
fn too_few_slots_are_one() {
    let server = Server::with_leaf_id(&[("leaf_id.max_tags", "2")]);
    let mut session = server.session();
    for tag in ["a", "b", "c"] {
        session.create_steady_tag(tag, 100);
    }
    session.take("a", 1);
    session.take("b", 1);
    assert_eq!(problems(&mut session), []);
    session.take("c", 1);
    let what = "all 2 slots are in use, and 1 tags were evicted with 99 cached ids";
    let (remedy, advice) = wait_for(&mut session, "warning", what, false);
    assert_eq!(advice, "The remedy takes a restart.");
    assert_eq!(remedy, "ALTER SYSTEM SET leaf_id.max_tags = 4");
    session.run(&remedy);
    server.restart();
    let mut session = server.session();
    for tag in ["a", "b", "c"] {
        session.take(tag, 1);
    }
    assert_eq!(problems(&mut session), []);
}

#[test]
fn a_generator_that_is_refused_is_one_with_the_hint_of_the_error() {
    let server = Server::with_leaf_id(&[("leaf_id.worker_id", "auto")]);
    let mut session = server.session();
    let what = "no snowflake ids are issued: no worker registry";
    let (_, advice) = wait_for(&mut session, "critical", what, true);
    session
        .fails("SELECT leaf_snowflake_next()")
        .is("55000")
        .hints(&advice);
    assert!(advice.contains("database of this server"), "{advice}");
    server.set("leaf_id.worker_id", "7");
    session.next_snowflake();
    wait_for_none(&mut session);
}

/// The clock was ahead, and the server has crashed: what helps depends on how long the wait is.
#[test]
fn a_long_wait_is_one_with_advice_and_a_short_one_with_none() {
    let server = Server::with_clock(0, &[("leaf_id.worker_id", "1")]);
    for (ahead_ms, says) in [
        (40_000, "No action is needed"),
        (400_000, "Correct the clock"),
    ] {
        server.clock().set(ahead_ms);
        server.session().next_snowflake();
        server.kill_9();
        server.clock().set(0);
        server.launch();
        let mut session = server.session();
        let what = "no snowflake ids are issued: waiting out an earlier reservation";
        let (remedy, advice) = wait_for(&mut session, "critical", what, true);
        assert_eq!(remedy, "");
        assert!(advice.starts_with(says), "{advice}");
        assert_eq!(
            advice.contains("leaf_snowflake_reset"),
            ahead_ms > 60_000,
            "{advice}"
        );
        // It began at a time that is in the future now.
        server.clock().set(-30_000);
        wait_for(&mut session, "critical", what, true);
    }
}

#[test]
fn a_clock_set_back_is_one() {
    let server = Server::with_clock(0, &[("leaf_id.worker_id", "1")]);
    let mut session = server.session();
    session.next_snowflake();
    wait_until(LIMIT, "the clock to catch up", || {
        session.value("SELECT clock_lead_ms = 0 FROM leaf_id.server")
    });
    server.clock().set(-5000);
    session.next_snowflake();
    let what = "the clock was set back, and times in snowflake ids are ";
    assert_eq!(wait_for(&mut session, "warning", what, false).0, "");
    server.clock().set(0);
    wait_for_none(&mut session);
}

#[test]
fn a_transaction_that_holds_readers_back_for_a_minute_is_one() {
    let server = Server::with_clock(
        0,
        &[
            ("leaf_id.worker_id", "1"),
            ("max_prepared_transactions", "1"),
        ],
    );
    let mut session = server.session();
    // Beside a role that may see what other sessions do.
    session.run(
        "CREATE ROLE monitor LOGIN IN ROLE pg_monitor; SELECT leaf_tag_create('événements'), leaf_tag_create('other')",
    );
    let mut monitor = server.connect_as("monitor", "postgres");
    let mut writer = server.session();
    writer.run("BEGIN; SELECT leaf_ordered_next('événements')");
    let pid = writer.pid();
    assert_eq!(problems(&mut monitor), []);
    server.clock().set(61_000);
    let what = format!("process {pid} holds back readers of tag \"événements\"");
    assert_eq!(wait_for(&mut monitor, "warning", &what, true).0, "");
    writer.run("PREPARE TRANSACTION 'p'");
    wait_for_none(&mut session);
    server.clock().set(122_000);
    let what = "prepared transaction \"p\" holds back readers of tag \"événements\"";
    assert_eq!(wait_for(&mut session, "warning", what, true).0, "");
    session.run("COMMIT PREPARED 'p'");
    wait_for_none(&mut session);
}

#[test]
fn a_source_server_that_is_away_is_one() {
    let fleet = Fleet::new(1, &[]);
    fleet.create_tag("t", 10, 10);
    let mut session = fleet.members[0].session();
    session.take("t", 5);
    assert_eq!(problems(&mut session), []);
    fleet.central.stop(Stop::Fast);
    session.run("SET leaf_id.refill_timeout = '100ms'");
    wait_until(LIMIT, "the end of the cached ids", || {
        session.try_next("t").is_err()
    });
    let what = "server \"leaf_central\", which tags are sourced from, is away: ";
    assert_eq!(wait_for(&mut session, "critical", what, true).0, "");
    // A manager of tags sees that it is, and not what was said.
    session.run(
        "CREATE ROLE manager; GRANT SELECT, UPDATE ON leaf_id.leaf_alloc TO manager; SET ROLE manager",
    );
    let seen = problems(&mut session);
    assert_eq!(seen.len(), 1);
    assert_eq!(
        seen[0].1,
        format!("{what}(shown to roles with the privileges of pg_monitor)")
    );
    session.run("RESET ROLE");
    fleet.central.launch();
    session.run("SET leaf_id.refill_timeout = '30s'");
    session.next("t");
    wait_for_none(&mut session);
}

#[test]
fn a_registry_that_does_not_answer_is_one_and_a_clock_that_is_off_another() {
    let registry = Registry::ahead(Server::with_leaf_id(&[]), 6000);
    let member = registry.member_with_clock("a", 0, &[]);
    let mut in_registry = registry.server.session();
    let mut session = member.session();
    session.next_snowflake();
    assert_eq!(problems(&mut session), []);
    member.clock().set(800);
    let what = "the clock is ";
    assert_eq!(wait_for(&mut session, "warning", what, false).0, "");
    assert_eq!(problems(&mut in_registry), []);
    // It goes on, and the registry says so, too.
    member.clock().set(2500);
    let what = "the clock of node \"a\" is 2";
    assert_eq!(wait_for(&mut in_registry, "warning", what, false).0, "");
    session.next_snowflake();
    member.clock().set(0);
    session.next_snowflake();
    wait_for_none(&mut session);
    wait_for_none(&mut in_registry);
    drop(in_registry);
    registry.server.stop(Stop::Fast);
    let what = "worker registry \"postgres/leaf_central\" does not renew the lease; snowflake ids stop at ";
    assert_eq!(wait_for(&mut session, "warning", what, true).0, "");
    let what = "no snowflake ids are issued: lease is used up: ";
    wait_for(&mut session, "critical", what, true);
    registry.server.launch();
    session.next_snowflake();
    wait_for_none(&mut session);
}

/// Its data directory was lost, or it was copied.
#[test]
fn a_node_with_several_worker_ids_is_one() {
    let registry = Registry::ahead(Server::with_leaf_id(&[]), 6000);
    let member = registry.member("a");
    member.session().next_snowflake();
    let mut session = registry.server.session();
    assert_eq!(problems(&mut session), []);
    let copy = member.backup().start(&[]);
    copy.session().next_snowflake();
    let what = "node \"a\" has 2 worker ids";
    let (remedy, advice) = wait_for(&mut session, "info", what, true);
    assert_eq!(remedy, "");
    assert!(advice.contains("leaf_id.node_name"), "{advice}");
    copy.set("leaf_id.node_name", "b");
    wait_for_none(&mut session);
}

#[test]
fn a_tag_that_columns_name_and_that_is_missing_is_one() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "CREATE TABLE items (id bigint DEFAULT leaf_segment_next('items'), k int) PARTITION BY LIST (k);
         CREATE TABLE item PARTITION OF items FOR VALUES IN (1);
         CREATE TABLE others (id bigint DEFAULT leaf_segment_next('items'));
         CREATE TEMP TABLE passing (id bigint DEFAULT leaf_segment_next('passing'));
         INSERT INTO items VALUES (41, 1);
         CREATE ROLE stranger; GRANT CREATE ON SCHEMA public TO stranger; SET ROLE stranger;
         CREATE TABLE theirs (id bigint DEFAULT leaf_segment_next('theirs'));
         CREATE TABLE small (id smallint DEFAULT leaf_segment_next('items'));
         INSERT INTO small VALUES (32766); RESET ROLE",
    );
    session
        .fails("INSERT INTO items (k) VALUES (1)")
        .is("42704");
    let what = "tag \"items\" does not exist, and INSERTs fail into the columns that take ids from it (2, first id of public.items)";
    let (remedy, _) = wait_for(&mut session, "critical", what, false);
    // By name, the stranger's column would count, too, and leave one id.
    assert_eq!(remedy, "SELECT * FROM public.leaf_sync()");
    session.run(&remedy);
    wait_for_none(&mut session);
    assert_eq!(
        session.ids("INSERT INTO items (k) VALUES (1) RETURNING id"),
        [42]
    );
}

#[test]
fn a_role_without_execute_is_one() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "CREATE ROLE app LOGIN; SELECT leaf_tag_create('t'), leaf_tag_grant('t', 'app');
         REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA public FROM PUBLIC",
    );
    let mut app = server.connect_as("app", "postgres");
    app.fails("SELECT leaf_segment_next('t')").is("42501");
    let what = "role \"app\" may issue ids of tag \"t\", but may not execute public.leaf_segment_next(text)";
    let (remedy, _) = wait_for(&mut session, "critical", what, false);
    session.run(&remedy);
    wait_for_none(&mut session);
    assert_eq!(app.next("t"), 1);
}

#[test]
fn a_worker_id_that_is_not_valid_is_one() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    server.configure("leaf_id.worker_id", "7");
    session.next_snowflake();
    assert_eq!(problems(&mut session), []);
    server.configure("leaf_id.worker_id", "abc");
    let what =
        "what the configuration file sets as \"leaf_id.worker_id\" is not valid: 7 stays in force";
    let (remedy, advice) = wait_for(&mut session, "warning", what, false);
    assert_eq!(remedy, "ALTER SYSTEM SET leaf_id.worker_id = '7'");
    assert!(advice.ends_with("SELECT pg_reload_conf()."), "{advice}");
    session.next_snowflake();
    server.restart();
    let mut session = server.session();
    let what = "no snowflake ids are issued: worker id is not valid";
    let (none, advice) = wait_for(&mut session, "critical", what, true);
    assert_eq!(none, "");
    session
        .fails("SELECT leaf_snowflake_next()")
        .is("55000")
        .says("\"leaf_id.worker_id\" is not valid")
        .details("A worker id is a number from 0 to 1023")
        .hints(&advice);
    // The first remedy, of which the second half is the reload.
    session.run(&remedy);
    server.reload();
    session.next_snowflake();
    wait_for_none(&mut session);
    // What is not set is no problem.
    session.run("ALTER SYSTEM RESET leaf_id.worker_id");
    server.configure("leaf_id.worker_id", "");
    let state = "SELECT snowflake_state FROM leaf_id.server";
    wait_until(LIMIT, "the reload", || {
        session.value::<String>(state) == "no worker id"
    });
    session
        .fails("SELECT leaf_snowflake_next()")
        .is("55000")
        .says("is not set");
    assert_eq!(problems(&mut session), []);
}

/// Before: where the line had never set a value, the alarm stayed after it was removed.
#[test]
fn a_worker_id_that_is_not_valid_is_none_once_its_line_is_removed() {
    let server = Server::with_leaf_id(&[]);
    let name = "leaf_id.worker_id";
    let state = |expected: &str| {
        let mut session = server.session();
        wait_until(LIMIT, expected, || {
            let state =
                "SELECT concat_ws(' ', snowflake_state, worker_id_invalid) FROM leaf_id.server";
            session.value::<String>(state) == expected
        });
    };
    let kill_launcher = || {
        let mut session = server.session();
        let pid: i32 = session
            .value("SELECT pid FROM pg_stat_activity WHERE backend_type = 'leaf_id launcher'");
        session.run(&format!("SELECT pg_terminate_backend({pid})"));
        let waits = format!(
            "SELECT EXISTS (SELECT FROM pg_stat_activity
                 WHERE backend_type = 'leaf_id launcher' AND pid <> {pid} AND wait_event IS NOT NULL)"
        );
        wait_until(LIMIT, "the next launcher", || session.value(&waits));
    };
    state("no worker id f");
    // Added and removed by a reload.
    server.configure(name, "abc");
    state("worker id is not valid t");
    server.remove_lines(name);
    state("no worker id f");
    // There at the start.
    server.configure(name, "abc");
    server.restart();
    state("worker id is not valid t");
    // Read by the launcher again, from the file.
    kill_launcher();
    state("worker id is not valid t");
    // A file with an error of another kind is not used.
    server.configure("no_such_setting", "on");
    kill_launcher();
    state("worker id is not valid t");
    server.remove_lines("no_such_setting");
    server.remove_lines(name);
    state("no worker id f");
    // What the postmaster still has.
    kill_launcher();
    state("no worker id f");
}

#[test]
fn claims_that_a_promotion_may_have_lost_are_one() {
    let primary = Server::with_leaf_id(&[]);
    let mut session = primary.session();
    for tag in ["a", "b"] {
        session.create_steady_tag(tag, 20);
        session.take(tag, 5);
    }
    let standby = primary.standby(&[]);
    standby.replay_all_of(&primary);
    standby.promote();
    let mut session = standby.session();
    let what =
        "tag \"a\": it and 1 more have claimed no ids since a promotion; the next claims skip";
    let (remedy, advice) = wait_for(&mut session, "info", what, false);
    assert!(
        advice.starts_with("No action is needed, unless"),
        "{advice}"
    );
    // What skips is decided at the claim: with 0, the next ones would skip none.
    standby.configure("leaf_id.failover_skip", "0");
    let none = "tag \"a\": it and 1 more have claimed no ids since a promotion, and with";
    let (_, advice) = wait_for(&mut session, "info", none, false);
    assert!(
        advice.contains("set \"leaf_id.failover_skip\" as it was"),
        "{advice}"
    );
    standby.configure("leaf_id.failover_skip", "2");
    wait_for(&mut session, "info", what, false);
    session.run(&remedy);
    wait_for_none(&mut session);
}

/// As a restore by a superuser leaves it: the dump has the names, but not the grant that the installing
/// role had from the extension.
#[test]
fn a_granted_role_without_a_grant_on_the_schema_is_one() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run(
        "CREATE ROLE app LOGIN; SELECT leaf_tag_create('t'), leaf_tag_create('u');
         UPDATE leaf_id.leaf_alloc SET granted_to = '{app}'",
    );
    let mut app = server.connect_as("app", "postgres");
    app.fails("SELECT leaf_segment_next('t')").is("42501");
    let what = "role \"app\" may not issue ids of tag \"t\" and 1 more, though \"granted_to\" names it: it has no grant on schema leaf_id";
    let (remedy, advice) = wait_for(&mut session, "critical", what, false);
    // A role that was dropped, and created again, would have what the former was granted.
    assert_eq!(remedy, "");
    let checked: String =
        session.value("SELECT detail FROM leaf_check('t') WHERE detail LIKE '%granted_to%'");
    assert!(
        checked.contains("no grant on schema leaf_id; If it"),
        "{checked}"
    );
    let grant = "GRANT USAGE ON SCHEMA leaf_id TO app";
    assert!(advice.contains(grant), "{advice}");
    session.run(grant);
    wait_for_none(&mut session);
    assert_eq!([app.next("t"), app.next("u")], [1, 1]);
}

#[test]
fn a_worker_without_a_slot_is_one() {
    // One slot is the launcher's, the other that of logical replication.
    let server = Server::with_leaf_id(&[("max_worker_processes", "2")]);
    let mut session = server.session();
    let what = "the server runs without the reserve worker of leaf_id";
    let (remedy, advice) = wait_for(&mut session, "critical", what, true);
    assert_eq!(remedy, "ALTER SYSTEM SET max_worker_processes = 6");
    assert!(
        advice.contains("with a restart, of standbys first"),
        "{advice}"
    );
    session.run(&remedy);
    server.restart();
    let mut session = server.session();
    session.create_tag("t");
    session.next("t");
    assert_eq!(problems(&mut session), []);
}

/// What a session saw that has asked for the problems every 20 ms, also over restarts: when, what,
/// and for how many seconds, if that is known.
type Seen = (Instant, String, Option<f64>);

fn while_polling(server: &Server, work: impl FnOnce()) -> Vec<Seen> {
    let sql =
        "SELECT what, extract(epoch FROM clock_timestamp() - since)::float8 FROM leaf_id.problems";
    let poll = |_, done: &AtomicBool| {
        let mut seen = Vec::new();
        let mut session: Option<Session> = None;
        loop {
            // Once more after the work: what that has seen is seen here, too.
            let is_last = done.load(Ordering::Acquire);
            let asked = match &mut session {
                Some(session) => session.query(sql, &[]).ok(),
                None => {
                    session = server.try_connect("postgres", "postgres").ok();
                    continue;
                }
            };
            match asked {
                Some(rows) => {
                    let at = Instant::now();
                    seen.extend(rows.iter().map(|row| (at, row.get(0), row.get(1))));
                }
                // The server is not there, or the extension is not.
                None => session = None,
            }
            if is_last {
                break seen;
            }
            thread::sleep(Duration::from_millis(20));
        }
    };
    let (seen, ()) = in_threads_until(1, poll, work);
    seen.into_iter().flatten().collect()
}

/// The shortest time for which a problem has lasted.
const PASSES: Duration = Duration::from_secs(2);

/// What was seen within two seconds of an event had passed by itself, or was no problem.
#[track_caller]
fn assert_calm(seen: &[Seen], events: &[(Instant, &str)]) {
    for (at, what, _) in seen {
        let last = events.iter().rev().find(|(began, _)| began <= at);
        let (began, event) = last.expect("a problem before the first event");
        assert!(*at - *began >= PASSES, "{what} at once after {event}");
    }
}

#[test]
fn what_passes_by_itself_is_none() {
    let server = Server::with_leaf_id(&[("leaf_id.worker_id", "1")]);
    let mut events = Vec::new();
    let seen = while_polling(&server, || {
        let mut session = server.session();
        let mut begin = |event| events.push((Instant::now(), event));
        begin("the first start");
        session.create_steady_tag("t", 10);
        let use_it = || {
            let mut session = server.session();
            session.be_patient();
            session.take("t", 50);
            session.next_snowflake();
        };
        use_it();
        begin("an installation");
        // Who reads a view locks it before its tables: DROP may meet that in the other order.
        wait_until(LIMIT, "no deadlock with the poll", || {
            match session.try_run("DROP EXTENSION leaf_id") {
                Err(failure) if failure.state == "40P01" => false,
                dropped => dropped.map(|()| true).unwrap(),
            }
        });
        session.run("CREATE EXTENSION leaf_id");
        session.create_steady_tag("t", 10);
        use_it();
        begin("a reload");
        server.set("leaf_id.worker_id", "2");
        use_it();
        for worker in ["launcher", "reserve worker", "allocator"] {
            begin(worker);
            let name = format!("leaf_id {worker}");
            server.terminate(server.worker(&name).unwrap());
            use_it();
        }
        begin("a restart");
        drop(session);
        server.restart();
        use_it();
        begin("a crash");
        server.crash();
        use_it();
        begin("a crash of the launcher");
        server.crash_by(server.worker("leaf_id launcher").unwrap());
        use_it();
        // The registrar lives for one question, which waits here.
        begin("the registrar");
        let [mut holder, mut session] = [(); 2].map(|()| server.session());
        holder.run("BEGIN; LOCK TABLE leaf_id.leaf_worker");
        for (name, value) in lease_conf("postgres", "a") {
            server.set(name, &value);
        }
        wait_until(LIMIT, "the registrar", || {
            session.value(
                "SELECT count(pg_terminate_backend(pid)) > 0 FROM pg_stat_activity
                 WHERE backend_type = 'leaf_id registrar' AND wait_event_type = 'Lock'",
            )
        });
        holder.run("COMMIT");
        use_it();
    });
    assert_calm(&seen, &events);
    let standby = server.standby(&[]);
    standby.replay_all_of(&server);
    let mut events = vec![(Instant::now(), "the standby")];
    let seen = while_polling(&standby, || {
        events.push((Instant::now(), "the promotion"));
        standby.promote();
        standby.session().next_snowflake();
    });
    let of_server: Vec<_> = seen
        .into_iter()
        .filter(|(_, what, _)| !what.contains("since a promotion"))
        .collect();
    assert_calm(&of_server, &events);
}

#[test]
fn what_lasts_is_shown_after_two_seconds_and_before_five() {
    let server = Server::with_leaf_id(&[("leaf_id.worker_id", "1")]);
    let mut session = server.session();
    session.create_steady_tag("t", 10);
    session.take("t", 5);
    let mut holder = server.session();
    holder.run("BEGIN; SELECT FROM leaf_id.leaf_alloc WHERE biz_tag = 't' FOR UPDATE");
    session.run("SET leaf_id.refill_timeout = '1s'");
    wait_until(LIMIT, "the end of the cached ids", || {
        session.try_next("t").is_err()
    });
    let lasting = ["tag \"t\" gets no ids", "no snowflake ids are issued"];
    let seen = while_polling(&server, || {
        server.set("leaf_id.worker_id", "auto");
        wait_until(LIMIT, "both", || {
            problems(&mut session).len() == lasting.len()
        });
    });
    for what in lasting {
        let (.., lasted) = seen
            .iter()
            .find(|(_, seen, _)| seen.starts_with(what))
            .unwrap();
        let lasted = lasted.unwrap();
        assert!((2.0..5.0).contains(&lasted), "{what}: {lasted}");
    }
}
