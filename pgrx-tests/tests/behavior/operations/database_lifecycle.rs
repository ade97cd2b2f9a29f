//! Would catch: an allocator that blocks DROP DATABASE and similar commands, ids of one database or
//! extension issued in another, and databases that starve when worker slots are scarce.

use std::time::Duration;

use leaf_id_tests::{Server, assert_issued_once, in_threads, timed, wait_until};

const LIMIT: Duration = Duration::from_secs(30);

/// A database with the extension and the tag t.
fn create_database(server: &Server, name: &str) {
    server.session().run(&format!("CREATE DATABASE {name}"));
    server
        .session_in(name)
        // Short segments: using it heavily takes an allocator each time.
        .run("CREATE EXTENSION leaf_id; SELECT leaf_tag_create('t', max_step => 1000)");
}

/// Draws many ids of t, and returns the highest one when only the allocator is left there.
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
        // PostgreSQL waits for five seconds for others to leave it, and gives up then.
        session.run(&action.replace("{}", "used"));
    }
}

#[test]
fn a_database_created_anew_starts_at_one() {
    let server = Server::with_leaf_id(&[]);
    for _ in 0..3 {
        create_database(&server, "d");
        assert_eq!(server.session_in("d").take("t", 3), [1, 2, 3]);
        use_heavily(&server, "d");
        server.session().run("DROP DATABASE d");
    }
}

#[test]
fn an_extension_created_anew_starts_at_one() {
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
    // Undone: the old tags are back, with all that is cached.
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
    // What the template had issued may be in the copy's tables.
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

/// A template whose table of orders has leaf_id keys, and a copy of it with this oid, both of
/// them used. Ids of the template and of the copy are the same ones.
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

/// S6: what is cached of the copy are ids that the next one has from the template.
#[test]
fn a_database_with_the_oid_of_a_dropped_one_has_nothing_of_it() {
    let server = Server::start(&[("fsync", "off")]);
    template_and_copy(&server, 54321);
    let mut session = server.session();
    session.run("DROP DATABASE copy");
    session.run("CREATE DATABASE copy TEMPLATE template OID 54321");
    insert_orders(&server, "copy", 100);
}

/// The same with a restart before it: the ids wait in their slots to be restored.
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

/// The same while leaf_id is not preloaded and sees nothing: the ids wait in a file.
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
    // The template's are restored.
    let ids = "INSERT INTO orders DEFAULT VALUES RETURNING id";
    assert_eq!(server.session_in("template").ids(ids), [21]);
}

/// The same between the end of one launcher and the start of the next one.
#[test]
fn saved_ids_are_not_given_to_a_database_made_while_the_launcher_was_away() {
    let server = Server::start(&[("fsync", "off")]);
    template_and_copy(&server, 54321);
    let mut session = server.session();
    // It comes back after a second.
    let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE backend_type = 'leaf_id launcher'";
    session.run(end);
    session.run("DROP DATABASE copy");
    session.run("CREATE DATABASE copy TEMPLATE template OID 54321");
    insert_orders(&server, "copy", 100);
}

/// As without leaf_id: the owner of a database is no superuser, and need not be one.
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

/// Also who has become its owner while an allocator was connected.
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
    // The same right, without a lock on the database: the allocator leaves if it sees one.
    let cancel = format!("SELECT pg_cancel_backend({pid})");
    wait_until(LIMIT, "the allocator to be the new owner's", || {
        new.try_column::<bool>(&cancel)
            .is_ok_and(|done| done == [true])
    });
    new.run("DROP DATABASE mine WITH (FORCE)");
}
