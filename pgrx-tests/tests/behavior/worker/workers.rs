//! Would catch: worker processes although leaf_id is not used, allocators that never exit or cannot
//! be identified, and ids that stop because a worker was terminated.

use std::time::Duration;

use leaf_id_tests::{Server, Session, assert_issued_once, in_threads, wait_until};

const LIMIT: Duration = Duration::from_secs(30);

/// Pids and databases of leaf_id's workers with that name.
fn workers(session: &mut Session, name: &str) -> Vec<(i32, Option<String>)> {
    let sql = "SELECT pid, datname::text FROM pg_stat_activity WHERE backend_type = $1";
    let rows = session.query(sql, &[&name]).unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

fn launchers(session: &mut Session) -> Vec<(i32, Option<String>)> {
    workers(session, "leaf_id launcher")
}

fn allocators(session: &mut Session) -> Vec<(i32, Option<String>)> {
    workers(session, "leaf_id allocator")
}

#[test]
fn without_the_extension_there_is_only_the_launcher() {
    let server = Server::start(&[]);
    let mut session = server.session();
    wait_until(LIMIT, "the launcher", || launchers(&mut session).len() == 1);
    session.fails("SELECT leaf_segment_next('t')").is("42883");
    let [(pid, None)] = launchers(&mut session)[..] else {
        panic!("one, of no database")
    };
    assert_eq!(allocators(&mut session), []);
    let title = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
    assert!(title.contains("leaf_id launcher"), "{title}");
    let all = "SELECT count(*) FROM pg_stat_activity WHERE backend_type LIKE 'leaf_id%'";
    assert_eq!(session.value::<i64>(all), 1);
}

#[test]
fn an_extension_that_is_not_used_has_no_allocator() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.create_tag("t");
    session
        .fails("SELECT leaf_segment_next('nope')")
        .is("42704");
    assert_eq!(allocators(&mut session), []);
}

#[test]
fn an_allocator_comes_with_use_and_leaves_when_idle() {
    let server = Server::with_leaf_id(&[("leaf_id.allocator_idle_timeout", "500ms")]);
    let mut session = server.session();
    session.create_steady_tag("t", 1000);
    let mut last = 0;
    for _ in 0..3 {
        // More than is cached, so an allocator must start.
        let ids = session.take("t", 5000);
        let [(pid, Some(database))] = &allocators(&mut session)[..] else {
            panic!("one allocator")
        };
        assert_eq!(database, "postgres");
        let title = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        assert!(title.contains("leaf_id allocator"), "{title}");
        assert!(ids[0] > last);
        last = ids[4999];
        wait_until(LIMIT, "the allocator to leave", || {
            allocators(&mut session).is_empty()
        });
    }
}

#[test]
fn ids_go_on_when_workers_are_terminated() {
    let server = Server::with_leaf_id(&[("leaf_id.worker_id", "1")]);
    server
        .session()
        .run("SELECT leaf_tag_create('t', step => 10, max_step => 100)");
    let drawn = in_threads(4, |i| {
        let mut session = server.session();
        if i > 0 {
            session.run("SET leaf_id.refill_timeout = '30s'");
            return (0..20).flat_map(|_| session.take("t", 500)).collect();
        }
        for name in [
            "allocator",
            "launcher",
            "allocator",
            "launcher",
            "allocator",
        ] {
            let name = format!("leaf_id {name}");
            let mut ended = None;
            wait_until(LIMIT, &name, || {
                ended = workers(&mut session, &name).first().map(|(pid, _)| *pid);
                // There may be no session left that needs an allocator.
                ended.is_some() || name.ends_with("allocator")
            });
            let Some(ended) = ended else { continue };
            session.run(&format!("SELECT pg_terminate_backend({ended})"));
            wait_until(LIMIT, "it to end", || {
                workers(&mut session, &name)
                    .iter()
                    .all(|(pid, _)| *pid != ended)
            });
        }
        wait_until(LIMIT, "the launcher to come back", || {
            launchers(&mut session).len() == 1
        });
        Vec::new()
    });
    assert_issued_once(&drawn);
    let mut session = server.session();
    let last = session.next("t");
    assert!(drawn.iter().flatten().all(|id| *id < last));
    session.ids("SELECT leaf_snowflake_next()");
}

#[test]
fn a_canceled_allocator_serves_on() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run("SELECT leaf_tag_create('t', step => 10, max_step => 100)");
    let mut ids = Vec::new();
    let mut canceled = 0;
    for _ in 0..20 {
        ids.extend(session.take("t", 500));
        for (pid, _) in allocators(&mut session) {
            session.run(&format!("SELECT pg_cancel_backend({pid})"));
            canceled += 1;
        }
    }
    assert_issued_once(&[ids]);
    assert!(canceled > 0);
}

#[test]
fn want_of_worker_slots_is_reported() {
    // One slot is the launcher's, the other that of logical replication: the reserve worker has
    // none.
    let server = Server::with_leaf_id(&[("max_worker_processes", "2")]);
    let mut session = server.session();
    session.create_tag("t");
    session.run("SET leaf_id.refill_timeout = '1s'");
    session
        .fails("SELECT leaf_segment_next('t')")
        .is("54000")
        .details("the reserve worker is missing")
        .hints("max_worker_processes");
    let warning = |name| {
        format!(
            "WARNING:  leaf_id: no worker slot is left for the {name}: \"max_worker_processes\" (2) is too small"
        )
    };
    assert!(server.log().contains(&warning("reserve worker")));
    assert!(!server.log().contains(&warning("launcher")));
}
