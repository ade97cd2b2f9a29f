//! Would catch: a role that issues ids of a tag that was taken from it, in whatever way it
//! asks, in a session that had used it before; a right that a dropped role leaves to another
//! one of its name. What a dump carries of them is in `survival`.

use leaf_id_tests::{Server, Session, assert_issued_once};

/// The ways to ask for ids of tag t.
const WAYS: [&str; 5] = [
    "SELECT leaf_segment_next('t')",
    "SELECT leaf_segment_next(tag) FROM (SELECT 't' AS tag OFFSET 0) t",
    "SELECT leaf_segment_next_batch('t', 3)",
    "SELECT leaf_segment_next_range('t', 3)",
    "INSERT INTO public.things DEFAULT VALUES",
];

/// A server with tag t, a table whose key is its ids, and the roles app and mallory.
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
fn a_tag_is_everybodys_until_it_is_taken_away() {
    let (server, mut admin) = server();
    let mut app = server.connect_as("app", "postgres");
    let mut mallory = server.connect_as("mallory", "postgres");
    may(&mut app);
    may(&mut mallory);
    admin.run("SELECT leaf_tag_grant('t', 'app')");
    may(&mut mallory);
    // In sessions that know the slot, at once.
    admin.run("SELECT leaf_tag_revoke('t', 'public')");
    may_not(&mut mallory);
    may(&mut app);
    may(&mut admin);
    admin.run("SELECT leaf_tag_revoke('t', 'app')");
    may_not(&mut app);
    may(&mut admin);
    admin.run("SELECT leaf_tag_grant('t', 'public')");
    may(&mut app);
    may(&mut mallory);
}

#[test]
fn a_prepared_statement_and_a_cached_slot_notice() {
    let (server, mut admin) = server();
    let mut app = server.connect_as("app", "postgres");
    app.run("PREPARE p AS SELECT leaf_segment_next('t')");
    for _ in 0..20 {
        app.run("EXECUTE p");
    }
    admin.run("SELECT leaf_tag_revoke('t', 'public')");
    app.fails("EXECUTE p").is("42501");
    admin.run("SELECT leaf_tag_grant('t', 'app')");
    let ids: Vec<i64> = (0..100)
        .map(|_| app.value("SELECT leaf_segment_next('t')"))
        .collect();
    assert_issued_once(&[ids]);
    // Inside a transaction that has issued some.
    app.run("BEGIN; EXECUTE p");
    admin.run("SELECT leaf_tag_revoke('t', 'app')");
    app.fails("EXECUTE p").is("42501");
    app.run("ROLLBACK");
}

#[test]
fn rights_follow_the_effective_user() {
    let (server, mut admin) = server();
    admin.run(
        "ALTER ROLE mallory NOINHERIT; GRANT app TO mallory;
         CREATE FUNCTION public.for_app() RETURNS bigint LANGUAGE sql SECURITY DEFINER
             AS 'SELECT leaf_segment_next(''t'')';
         ALTER FUNCTION public.for_app() OWNER TO app;
         SELECT leaf_tag_revoke('t', 'public'); SELECT leaf_tag_grant('t', 'app')",
    );
    let mut mallory = server.connect_as("mallory", "postgres");
    for _ in 0..3 {
        may_not(&mut mallory);
        mallory.run("SELECT public.for_app()");
        may_not(&mut mallory);
        mallory.run("SET ROLE app");
        may(&mut mallory);
        mallory.run("RESET ROLE");
    }
}

#[test]
fn rights_follow_memberships() {
    let (server, mut admin) = server();
    admin.run("SELECT leaf_tag_revoke('t', 'public'); SELECT leaf_tag_grant('t', 'staff')");
    let mut app = server.connect_as("app", "postgres");
    may_not(&mut app);
    admin.run("GRANT staff TO app");
    may(&mut app);
    admin.run("REVOKE staff FROM app");
    may_not(&mut app);
}

#[test]
fn parallel_workers_ask_too() {
    let (server, mut admin) = server();
    admin.run("SELECT leaf_tag_revoke('t', 'public'); SELECT leaf_tag_grant('t', 'app')");
    let parallel = "SET max_parallel_workers_per_gather = 2; SET parallel_setup_cost = 0;
         SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0";
    admin.run(
        "CREATE TABLE public.numbers AS SELECT i FROM generate_series(1, 50000) i;
         GRANT SELECT ON public.numbers TO public; ANALYZE public.numbers",
    );
    let statement = "SELECT count(leaf_segment_next('t')) FROM public.numbers";
    let mut app = server.connect_as("app", "postgres");
    let mut mallory = server.connect_as("mallory", "postgres");
    for session in [&mut app, &mut mallory] {
        session.run(parallel);
        let plan = session
            .column::<String>(&format!("EXPLAIN {statement}"))
            .join("\n");
        assert!(plan.contains("Parallel"), "{plan}");
    }
    assert_eq!(app.value::<i64>(statement), 50_000);
    mallory.fails(statement).is("42501");
}

#[test]
fn a_tag_of_the_open_transaction_has_its_rights() {
    let (server, mut admin) = server();
    admin.run(
        "GRANT USAGE ON SCHEMA leaf_id TO mallory WITH GRANT OPTION;
         GRANT SELECT, INSERT, UPDATE ON leaf_id.leaf_alloc TO mallory;
         GRANT EXECUTE ON FUNCTION leaf_tag_create, leaf_tag_grant, leaf_tag_revoke TO mallory",
    );
    let mut mallory = server.connect_as("mallory", "postgres");
    mallory.run("BEGIN; SELECT leaf_tag_create('mine'); SELECT leaf_segment_next('mine')");
    mallory.run("SELECT leaf_tag_revoke('mine', 'public')");
    mallory
        .fails("SELECT leaf_segment_next('mine')")
        .is("42501");
    mallory.run("ROLLBACK");
    mallory.run(
        "BEGIN; SELECT leaf_tag_create('mine'); SELECT leaf_tag_revoke('mine', 'public');
         SELECT leaf_tag_grant('mine', 'mallory'); SELECT leaf_segment_next('mine'); COMMIT",
    );
    assert_eq!(mallory.value::<i64>("SELECT leaf_segment_next('mine')"), 2);
    let mut app = server.connect_as("app", "postgres");
    app.fails("SELECT leaf_segment_next('mine')").is("42501");
}

#[test]
fn a_grant_needs_a_role_a_tag_and_the_right_to_grant() {
    let (server, mut admin) = server();
    admin
        .fails("SELECT leaf_tag_grant('t', 'nobody')")
        .is("42704");
    admin
        .fails("SELECT leaf_tag_grant('none', 'app')")
        .is("42704");
    admin
        .fails("SELECT leaf_tag_revoke('none', 'app')")
        .is("42704");
    let mut app = server.connect_as("app", "postgres");
    app.fails("SELECT leaf_tag_grant('t', 'app')").is("42501");
    app.fails("SELECT leaf_tag_revoke('t', 'public')")
        .is("42501");
    admin.run("GRANT EXECUTE ON FUNCTION leaf_tag_grant TO app");
    app.fails("SELECT leaf_tag_grant('t', 'app')").is("42501");
}

#[test]
fn a_member_server_needs_the_tag() {
    let (server, mut admin) = server();
    admin.run("GRANT EXECUTE ON FUNCTION leaf_claim TO app, mallory");
    admin.run("SELECT leaf_tag_revoke('t', 'public'); SELECT leaf_tag_grant('t', 'app')");
    let mut mallory = server.connect_as("mallory", "postgres");
    mallory.fails("SELECT leaf_claim('t', 10)").is("42501");
    let mut app = server.connect_as("app", "postgres");
    app.run("SELECT leaf_claim('t', 10)");
}

#[test]
fn a_dropped_role_leaves_its_rights_to_nobody() {
    let (server, mut admin) = server();
    admin.run("SELECT leaf_tag_revoke('t', 'public'); SELECT leaf_tag_grant('t', 'app')");
    admin.fails("DROP ROLE app").is("2BP01");
    admin.run("DROP OWNED BY app; DROP ROLE app; CREATE ROLE app LOGIN");
    let mut app = server.connect_as("app", "postgres");
    may_not(&mut app);
    // Written by hand, without the grant that goes with it.
    admin.run("UPDATE leaf_id.leaf_alloc SET granted_to = '{app}'");
    may_not(&mut app);
    admin.run("SELECT leaf_tag_grant('t', 'app')");
    may(&mut app);
}

#[test]
fn a_new_role_of_an_old_name_gets_only_what_it_is_granted() {
    let (server, mut admin) = server();
    admin.run("SELECT leaf_tag_create('u')");
    for tag in ["t", "u"] {
        admin.run(&format!("SELECT leaf_tag_revoke('{tag}', 'public')"));
    }
    admin.run(
        "SELECT leaf_tag_grant('t', 'app'); DROP OWNED BY app; DROP ROLE app;
         CREATE ROLE app LOGIN; SELECT leaf_tag_grant('u', 'app')",
    );
    let mut app = server.connect_as("app", "postgres");
    app.run("SELECT leaf_segment_next('u')");
    may_not(&mut app);
}

/// Would catch: a role without rights that drops what others have cached.
#[test]
fn a_role_without_the_right_evicts_nobody() {
    let server = Server::with_leaf_id(&[("leaf_id.max_tags", "4")]);
    let mut admin = server.session();
    admin.run(
        "SELECT leaf_tag_create(t) FROM unnest('{a,b,c}'::text[]) t;
         SELECT leaf_tag_create('secret' || n) FROM generate_series(1, 20) n;
         SELECT leaf_tag_revoke('secret' || n, 'public') FROM generate_series(1, 20) n;
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
    assert_eq!(admin.ids("SELECT evictions FROM leaf_slot_status"), [0]);
}

/// With the triggers off nobody is told: it holds from the next segment on.
#[test]
fn an_edit_without_triggers_holds_with_the_next_segment() {
    let server = Server::with_leaf_id(&[]);
    let mut admin = server.session();
    admin.create_steady_tag("t", 10);
    admin.run("CREATE ROLE app LOGIN");
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

/// A revoke waits for nobody, and an id that is issued beside it belongs to a call that had
/// begun before its end.
#[test]
fn revokes_under_load() {
    let (server, mut admin) = server();
    admin.run("SELECT leaf_tag_revoke('t', 'public')");
    let mut app = server.connect_as("app", "postgres");
    for _ in 0..50 {
        admin.run("SELECT leaf_tag_grant('t', 'app')");
        app.run("SELECT leaf_segment_next('t')");
        app.run("SELECT leaf_segment_next('t')");
        admin.run("SELECT leaf_tag_revoke('t', 'app')");
        app.fails("SELECT leaf_segment_next('t')").is("42501");
    }
}
