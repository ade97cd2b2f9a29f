//! Would catch: a fault that `leaf_id.problems` does not show, one that it still shows once it is
//! over, a problem on a server where all is well, and a remedy that does not help. Those of tags
//! that end are in `pgrx-tests/sql/views.sql`, too few worker slots in `worker::workers`, and lost
//! claims in `operations::failover`.

use std::time::Duration;

use leaf_id_tests::{Fleet, Registry, Server, Session, Stop, wait_until};

const LIMIT: Duration = Duration::from_secs(60);

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
    let (_, advice) = wait_for(&mut session, "critical", what, false);
    session
        .fails("SELECT leaf_snowflake_next()")
        .is("55000")
        .hints(&advice);
    assert!(advice.contains("database of this server"), "{advice}");
    server.set("leaf_id.worker_id", "7");
    session.next_snowflake();
    wait_for_none(&mut session);
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
