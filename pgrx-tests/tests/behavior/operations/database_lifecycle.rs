//! Would catch: an allocator that blocks DROP DATABASE and similar commands, ids of one database or
//! extension issued in another, and databases that starve when worker slots are scarce.

use std::time::Duration;

use leaf_id_tests::{Server, assert_issued_once, in_threads, timed, wait_until};

const LIMIT: Duration = Duration::from_secs(30);

/// A database with the extension and tag t.
fn create_database(server: &Server, name: &str) {
    server.session().run(&format!("CREATE DATABASE {name}"));
    server
        .session_in(name)
        // Short segments: heavy use always requires an allocator.
        .run("CREATE EXTENSION leaf_id; SELECT leaf_tag_create('t', max_step => 1000)");
}

/// Takes many ids of t. Returns the highest one, once only the allocator remains connected.
fn use_heavily(server: &Server, name: &str) -> i64 {
    let ids = in_threads(4, |_| server.session_in(name).take("t", 20_000));
    assert_issued_once(&ids);
    let mut session = server.session();
    wait_until(LIMIT, "the sessions to leave", || {
        session.column::<String>(&format!(
            "SELECT backend_type FROM pg_stat_activity WHERE datname = '{name}'"
        )) == ["leaf_id allocator"]
    });
    *ids.iter().flatten().max().unwrap()
}

#[test]
fn databases_can_be_dropped_renamed_moved_and_copied_after_use() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    for name in ["away", "away_idle"] {
        let dir = server.dir().join(name);
        std::fs::create_dir(&dir).unwrap();
        server.give(&dir);
        session.run(&format!(
            "CREATE TABLESPACE {name} LOCATION '{}'",
            dir.display()
        ));
    }
    create_database(&server, "used");
    create_database(&server, "idle");
    for action in [
        "CREATE DATABASE {}_copy TEMPLATE {}",
        "ALTER DATABASE {} SET TABLESPACE away",
        "ALTER DATABASE {} SET TABLESPACE pg_default",
        "ALTER DATABASE {} RENAME TO {}_2",
        "ALTER DATABASE {}_2 RENAME TO {}",
        "DROP DATABASE {}",
    ] {
        let name = if action.contains("{}_2 ") {
            "used_2"
        } else {
            "used"
        };
        use_heavily(&server, name);
        session.run(&action.replace("{}", "idle"));
        // PostgreSQL waits for other sessions for five seconds, then gives up.
        session.run(&action.replace("{}", "used"));
    }
}

#[test]
fn a_database_created_again_starts_at_one() {
    let server = Server::with_leaf_id(&[]);
    for _ in 0..3 {
        create_database(&server, "d");
        assert_eq!(server.session_in("d").take("t", 3), [1, 2, 3]);
        use_heavily(&server, "d");
        server.session().run("DROP DATABASE d");
    }
}

#[test]
fn an_extension_created_again_starts_at_one() {
    let server = Server::with_leaf_id(&[]);
    let (mut a, mut b) = (server.session(), server.session());
    for round in 0..3 {
        b.create_tag("t");
        assert_eq!(a.take("t", 2), [1, 2], "round {round}");
        assert_eq!(b.take("t", 2), [3, 4]);
        b.run("DROP EXTENSION leaf_id");
        a.fails("SELECT leaf_segment_next('t')").is("42883");
        b.run("CREATE EXTENSION leaf_id");
        a.fails("SELECT leaf_segment_next('t')").is("42704");
    }
    // Rolled back: the old tags are back, with all cached ids.
    b.create_tag("t");
    assert_eq!(a.next("t"), 1);
    b.run("BEGIN; DROP EXTENSION leaf_id; ROLLBACK");
    assert_eq!(a.next("t"), 2);
}

#[test]
fn a_renamed_database_goes_on_and_a_copy_goes_its_own_way() {
    let server = Server::with_leaf_id(&[]);
    create_database(&server, "d");
    let before = use_heavily(&server, "d");
    let mut session = server.session();
    session.run("CREATE DATABASE copy TEMPLATE d");
    session.run("ALTER DATABASE d RENAME TO e");
    let (mut renamed, mut copy) = (server.session_in("e"), server.session_in("copy"));
    let (renamed, copy) = (renamed.take("t", 5000), copy.take("t", 5000));
    assert_issued_once(&[
        renamed.clone(),
        copy.iter().map(|id| id + (1 << 40)).collect(),
    ]);
    assert!(renamed[0] > before);
    // Ids issued by the template may be in the copy's tables.
    assert!(copy[0] > before);
}

#[test]
fn a_tag_of_the_same_name_in_another_database_is_another_tag() {
    let server = Server::with_leaf_id(&[]);
    create_database(&server, "one");
    create_database(&server, "two");
    let (mut one, mut two) = (server.session_in("one"), server.session_in("two"));
    for id in 1..=2500 {
        assert_eq!((one.next("t"), two.next("t")), (id, id));
    }
}

#[test]
fn forty_databases_share_eight_worker_slots() {
    let server = Server::start(&[("max_worker_processes", "8"), ("fsync", "off")]);
    create_database(&server, "template");
    let mut session = server.session();
    for i in 0..40 {
        session.run(&format!("CREATE DATABASE d{i} TEMPLATE template"));
    }
    for ids in [500, 5000] {
        let (drawn, took) =
            timed(|| in_threads(40, |i| server.session_in(&format!("d{i}")).take("t", ids)));
        println!("{ids} ids in each of 40 databases in {took:?}");
        for ids in drawn {
            assert_issued_once(&[ids]);
        }
    }
}

/// A template with a table whose keys are from leaf_id, and a copy of it with this oid. Both are
/// used; the template and the copy issue the same ids.
fn template_and_copy(server: &Server, oid: u32) {
    let mut session = server.session();
    session.run("CREATE DATABASE template");
    server.session_in("template").run(
        "CREATE EXTENSION leaf_id;
         SELECT leaf_tag_create('orders', step => 1000, max_step => 1000);
         CREATE TABLE orders (id bigint PRIMARY KEY DEFAULT leaf_segment_next('orders'), n int)",
    );
    session.run(&format!("CREATE DATABASE copy TEMPLATE template OID {oid}"));
    insert_orders(server, "copy", 3);
    insert_orders(server, "template", 20);
}

fn insert_orders(server: &Server, database: &str, count: u32) {
    server.session_in(database).run(&format!(
        "INSERT INTO orders (n) SELECT i FROM generate_series(1, {count}) i"
    ));
}

/// S6: cached ids of a dropped copy are already in the template of its successor.
#[test]
fn a_database_with_the_oid_of_a_dropped_one_has_nothing_of_it() {
    let server = Server::start(&[("fsync", "off")]);
    template_and_copy(&server, 54321);
    let mut session = server.session();
    session.run("DROP DATABASE copy");
    session.run("CREATE DATABASE copy TEMPLATE template OID 54321");
    insert_orders(&server, "copy", 100);
}

/// The same with a restart in between: the ids are in slots, to be restored.
#[test]
fn saved_ids_that_wait_in_slots_go_with_their_database() {
    let server = Server::start(&[("fsync", "off")]);
    template_and_copy(&server, 54321);
    server.restart();
    let mut session = server.session();
    session.run("DROP DATABASE copy");
    session.run("CREATE DATABASE copy TEMPLATE template OID 54321");
    insert_orders(&server, "copy", 100);
}

/// The same while leaf_id is not preloaded, so the ids are in a file.
#[test]
fn saved_ids_are_not_given_to_a_database_of_the_same_oid() {
    let server = Server::start(&[("fsync", "off")]);
    template_and_copy(&server, 54321);
    let mut session = server.session();
    session.run("ALTER SYSTEM SET shared_preload_libraries = 'plpgsql'");
    server.restart();
    let mut session = server.session();
    session.run("DROP DATABASE copy");
    session.run("CREATE DATABASE copy TEMPLATE template OID 54321");
    session.run("ALTER SYSTEM RESET shared_preload_libraries");
    server.restart();
    insert_orders(&server, "copy", 100);
    // Those of the template are restored.
    let ids = "INSERT INTO orders DEFAULT VALUES RETURNING id";
    assert_eq!(server.session_in("template").ids(ids), [21]);
}

/// The same between the exit of the launcher and its restart.
#[test]
fn saved_ids_are_not_given_to_a_database_made_while_the_launcher_was_away() {
    let server = Server::start(&[("fsync", "off")]);
    template_and_copy(&server, 54321);
    let mut session = server.session();
    // It restarts after a second.
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE backend_type = 'leaf_id launcher'";
    session.run(end);
    session.run("DROP DATABASE copy");
    session.run("CREATE DATABASE copy TEMPLATE template OID 54321");
    insert_orders(&server, "copy", 100);
}

/// The owner of a database need not be a superuser, as without leaf_id.
#[test]
fn an_owner_drops_a_database_by_force() {
    let server = Server::start(&[]);
    server.session().run("CREATE ROLE app LOGIN CREATEDB");
    server
        .connect_as("app", "postgres")
        .run("CREATE DATABASE mine");
    server
        .connect_as("app", "mine")
        .run("CREATE EXTENSION leaf_id; SELECT leaf_tag_create('t')");
    let mut user = server.connect_as("app", "mine");
    user.next("t");
    let mut admin = server.session();
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = 'mine' AND backend_type = 'leaf_id allocator'";
    assert_eq!(admin.value::<i64>(sql), 1);
    server
        .connect_as("app", "postgres")
        .run("DROP DATABASE mine WITH (FORCE)");
    assert!(user.try_next("t").is_err());
}

/// Even a role that became the owner while an allocator was connected.
#[test]
fn a_new_owner_drops_a_database_by_force() {
    let server = Server::start(&[("leaf_id.allocator_idle_timeout", "10min")]);
    let mut admin = server.session();
    admin.run("CREATE ROLE old LOGIN CREATEDB; CREATE ROLE new LOGIN");
    server
        .connect_as("old", "postgres")
        .run("CREATE DATABASE mine");
    let mut user = server.connect_as("old", "mine");
    user.run("CREATE EXTENSION leaf_id; SELECT leaf_tag_create('t')");
    user.next("t");
    let allocator = "SELECT coalesce(min(pid), 0) FROM pg_stat_activity
                     WHERE datname = 'mine' AND backend_type = 'leaf_id allocator'";
    let pid: i32 = admin.value(allocator);
    assert_ne!(pid, 0);
    drop(user);
    admin.run("ALTER DATABASE mine OWNER TO new");
    let mut new = server.connect_as("new", "postgres");
    // The same privilege, but no lock on the database, which would make the allocator exit.
    let cancel = format!("SELECT pg_cancel_backend({pid})");
    wait_until(LIMIT, "the allocator to be the new owner's", || {
        new.try_column::<bool>(&cancel)
            .is_ok_and(|done| done == [true])
    });
    new.run("DROP DATABASE mine WITH (FORCE)");
}
