//! Would catch: a role that issues ids of a tag after another session has revoked the right, by any
//! function, in a session that had used the tag before. Other cases are tested in
//! pgrx-tests/sql/tag_rights.sql, and dumps in `survival`.

use std::time::Duration;

use leaf_id_tests::{Server, Session, assert_issued_once, wait_until};

/// Ways to request ids of tag t.
const WAYS: [&str; 5] = [
    "SELECT leaf_segment_next('t')",
    "SELECT leaf_segment_next(tag) FROM (SELECT 't' AS tag OFFSET 0) t",
    "SELECT leaf_segment_next_batch('t', 3)",
    "SELECT leaf_segment_next_range('t', 3)",
    "INSERT INTO public.things DEFAULT VALUES",
];

/// A server with tag t, a table with a key from it, and roles app and mallory.
fn server() -> (Server, Session) {
    let server = Server::with_leaf_id(&[]);
    let mut admin = server.session();
    admin.run(
        "SELECT leaf_tag_create('t', step => 1000);
         CREATE TABLE public.things (id bigint PRIMARY KEY DEFAULT leaf_segment_next('t'));
         GRANT INSERT ON public.things TO public;
         CREATE ROLE app LOGIN; CREATE ROLE mallory LOGIN; CREATE ROLE staff",
    );
    (server, admin)
}

fn may(session: &mut Session) {
    for way in WAYS {
        session.run(way);
    }
}

fn may_not(session: &mut Session) {
    for way in WAYS {
        session.fails(way).is("42501").says("tag \"t\"");
    }
}

#[test]
fn a_prepared_statement_and_a_cached_slot_notice() {
    let (server, mut admin) = server();
    let mut app = server.connect_as("app", "postgres");
    admin.run("SELECT leaf_tag_grant('t', 'public')");
    app.run("PREPARE p AS SELECT leaf_segment_next('t')");
    for _ in 0..20 {
        app.run("EXECUTE p");
    }
    may(&mut app);
    admin.run("SELECT leaf_tag_revoke('t', 'public')");
    app.fails("EXECUTE p").is("42501");
    may_not(&mut app);
    // By a membership.
    admin.run("SELECT leaf_tag_grant('t', 'staff'); GRANT staff TO app");
    may(&mut app);
    admin.run("REVOKE staff FROM app");
    may_not(&mut app);
    admin.run("SELECT leaf_tag_grant('t', 'app')");
    let ids: Vec<i64> = (0..100)
        .map(|_| app.value("SELECT leaf_segment_next('t')"))
        .collect();
    assert_issued_once(&[ids]);
    // In a transaction that has issued some.
    app.run("BEGIN; EXECUTE p");
    admin.run("SELECT leaf_tag_revoke('t', 'app')");
    app.fails("EXECUTE p").is("42501");
    app.run("ROLLBACK");
}

/// Would catch: callers who are taken for one another, or for PUBLIC, where there are more of
/// them than a session's cache has numbers for.
#[test]
fn a_session_of_many_roles_takes_none_for_another() {
    let (_server, mut session) = server();
    session.run(
        "SELECT leaf_tag_grant('t', 'staff');
         DO $$ BEGIN FOR n IN 1..600 LOOP
             EXECUTE format('CREATE ROLE r%s', n);
             IF n % 2 = 0 THEN EXECUTE format('GRANT staff TO r%s', n); END IF;
         END LOOP; END $$",
    );
    let mut ids = Vec::new();
    for n in 1..=600 {
        session.run(&format!("SET ROLE r{n}"));
        for way in &WAYS[..2] {
            match session.try_column::<i64>(way) {
                Ok(id) => ids.extend(id),
                Err(failure) => drop(failure.is("42501")),
            }
        }
        assert_eq!(ids.len(), n / 2 * 2, "r{n}");
    }
    assert_issued_once([ids]);
}

/// Would catch: a role without rights that drops other roles' cached ids.
#[test]
fn a_role_without_the_right_evicts_no_tag() {
    let server = Server::with_leaf_id(&[("leaf_id.max_tags", "4")]);
    let mut admin = server.session();
    admin.run(
        "SELECT leaf_tag_create(t) FROM unnest('{a,b,c}'::text[]) t;
         SELECT leaf_tag_create('secret' || n) FROM generate_series(1, 20) n;
         CREATE ROLE mallory LOGIN",
    );
    for tag in ["a", "b", "c"] {
        assert_eq!(admin.next(tag), 1);
    }
    let mut mallory = server.connect_as("mallory", "postgres");
    for n in 1..=20 {
        mallory
            .fails(&format!("SELECT leaf_segment_next('secret{n}')"))
            .is("42501");
    }
    for tag in ["a", "b", "c"] {
        assert_eq!(admin.next(tag), 2);
    }
    assert_eq!(admin.ids("SELECT evictions FROM leaf_id.server"), [0]);
}

/// With triggers disabled, there is no notification: the edit takes effect with the next segment.
#[test]
fn an_edit_without_triggers_holds_with_the_next_segment() {
    let server = Server::with_leaf_id(&[]);
    let mut admin = server.session();
    admin.create_steady_tag("t", 10);
    admin.run("CREATE ROLE app LOGIN; SELECT leaf_tag_grant('t', 'public')");
    let mut app = server.connect_as("app", "postgres");
    app.next("t");
    admin.run(
        "ALTER TABLE leaf_id.leaf_alloc DISABLE TRIGGER ALL;
         UPDATE leaf_id.leaf_alloc SET granted_to = '{}'",
    );
    let mut issued = 0;
    let refused = loop {
        match app.try_next("t") {
            Ok(_) => issued += 1,
            Err(failure) => break failure,
        }
        assert!(issued < 100, "a session goes on with what it remembers");
    };
    println!("after {issued} ids");
    refused.is("42501");
}

/// A revoke does not wait. An id issued concurrently belongs to a call that had begun before the
/// end of the revoke.
#[test]
fn revokes_under_load() {
    let (server, mut admin) = server();
    let mut app = server.connect_as("app", "postgres");
    for _ in 0..50 {
        admin.run("SELECT leaf_tag_grant('t', 'app')");
        app.run("SELECT leaf_segment_next('t')");
        app.run("SELECT leaf_segment_next('t')");
        admin.run("SELECT leaf_tag_revoke('t', 'app')");
        app.fails("SELECT leaf_segment_next('t')").is("42501");
    }
}

/// Would catch: a right that outlives what it comes from, in a session that has used it, where
/// another session has taken it away.
#[test]
fn a_right_ends_with_what_it_comes_from() {
    let (server, mut admin) = server();
    let mut app = server.connect_as("app", "postgres");
    app.run("PREPARE p AS SELECT leaf_segment_next('t')");
    admin.run("SELECT leaf_tag_grant('t', 'staff')");
    let ends = [
        ("GRANT staff TO app", "REVOKE staff FROM app"),
        (
            "GRANT UPDATE ON leaf_id.leaf_alloc TO app",
            "REVOKE UPDATE ON leaf_id.leaf_alloc FROM app",
        ),
        ("ALTER ROLE app SUPERUSER", "ALTER ROLE app NOSUPERUSER"),
    ];
    for (given, taken) in ends {
        admin.run(given);
        app.run("EXECUTE p");
        app.run("EXECUTE p");
        app.run("SELECT leaf_segment_next('t')");
        admin.run(taken);
        app.fails("EXECUTE p").is("42501");
        app.fails("SELECT leaf_segment_next('t')").is("42501");
    }
}

/// Before: of two call sites of a function, the one whose tag is used again after the other's lets
/// ids out until the transaction ends.
#[test]
fn a_right_on_the_table_ends_within_a_function_of_two_tags() {
    let (server, mut admin) = server();
    let mut app = server.connect_as("app", "postgres");
    let mut other = server.connect_as("app", "postgres");
    // Once both call sites are known, the function waits for the REVOKE, and then for a lock of a
    // table, by which it hears of it.
    admin.run(
        "GRANT UPDATE ON leaf_id.leaf_alloc TO app;
         SELECT leaf_tag_create('u', step => 1000), leaf_tag_grant('u', 'app');
         CREATE FUNCTION public.uses() RETURNS text LANGUAGE plpgsql AS $$
         DECLARE
             id bigint;
         BEGIN
             FOR n IN 1..4 LOOP
                 id := leaf_segment_next('t');
                 IF n = 3 THEN
                     PERFORM pg_advisory_lock(1), pg_advisory_unlock(1);
                     PERFORM FROM pg_am;
                 END IF;
                 id := leaf_segment_next('u');
             END LOOP;
             RETURN id;
         END $$",
    );
    other.run("SELECT pg_advisory_lock(1)");
    let pid = app.pid();
    std::thread::scope(|scope| {
        let using = scope.spawn(|| app.try_run("SELECT public.uses()"));
        let waits = format!(
            "SELECT count(*) = 1 FROM pg_stat_activity WHERE pid = {pid} AND wait_event = 'advisory'"
        );
        wait_until(Duration::from_secs(20), "the function to wait", || {
            admin.value(&waits)
        });
        admin.run("REVOKE UPDATE ON leaf_id.leaf_alloc FROM app");
        other.run("SELECT pg_advisory_unlock(1)");
        using.join().unwrap().unwrap_err().is("42501");
    });
}
