//! Would catch: an id of a name issued twice because its row or its mark was set back, or the row
//! was dropped, renamed, reset or restored since then (I3). The rules and their shortest
//! counterexamples are in src/core/tests/row_explorer.rs.

use std::sync::atomic::Ordering;
use std::time::Duration;

use leaf_id_tests::{Fleet, Server, Session, assert_issued_once, in_threads_until, wait_until};

use crate::docs::page::Page;

const LIMIT: Duration = Duration::from_secs(60);

/// The two tables that remember how far ids were claimed.
const TABLES: [&str; 2] = ["leaf_alloc", "leaf_high_mark"];

/// An event afterwards.
type Event = (&'static str, fn(&Server));

#[test]
fn a_table_that_is_set_back_repeats_no_id() {
    let events: [Event; 3] = [
        ("nothing", |_| {}),
        ("a clean restart", Server::restart),
        ("a crash", Server::crash),
    ];
    for table in TABLES {
        let server = Server::with_leaf_id(&[]);
        let mut session = server.session();
        session.run("SELECT leaf_tag_create('t', step => 20, max_step => 20)");
        let mut ids = session.take("t", 30);
        for (event, happen) in events {
            session.keep_copy(table);
            ids.extend(session.take("t", 100));
            session.set_back(table);
            happen(&server);
            session = server.session();
            println!("{table} set back, {event}");
            ids.extend(session.take("t", 100));
        }
        assert_issued_once([ids]);
    }
}

#[test]
fn a_center_whose_table_is_set_back_gives_no_id_twice() {
    for table in TABLES {
        let fleet = Fleet::new(1, &[]);
        fleet.create_tag("t", 20, 20);
        let mut member = fleet.members[0].session();
        let mut central = fleet.central.session();
        let mut ids = member.take("t", 50);
        central.keep_copy(table);
        ids.extend(member.take("t", 100));
        central.set_back(table);
        ids.extend(member.take("t", 100));
        ids.sort_unstable();
        assert_issued_once([ids]);
    }
}

/// The table of tags is set back, and the row is edited before a claim has corrected it.
#[test]
fn a_row_that_is_set_back_and_edited_repeats_no_id() {
    let [table, _] = TABLES;
    let fleet = Fleet::new(1, &[]);
    let mut session = fleet.members[0].session();
    // Rename.
    session.run("SELECT leaf_tag_create('a', step => 20, max_step => 20)");
    session.keep_copy(table);
    let mut ids = session.take("a", 100);
    // No claim comes afterwards, which would correct the row.
    session.wait_for_spare("a");
    session.set_back(table);
    session.run("UPDATE leaf_id.leaf_alloc SET biz_tag = 'b' WHERE biz_tag = 'a'");
    ids.extend(session.take("b", 100));
    assert_issued_once([ids]);
    // Release, with ids cached that another session takes concurrently.
    session.run("SELECT leaf_tag_create('r', step => 20, max_step => 20); CREATE TABLE r (id bigint DEFAULT leaf_segment_next('r'))");
    session.keep_copy(table);
    let mut ids = session.take("r", 99);
    session.wait_for_spare("r");
    session.set_back(table);
    let mut other = fleet.members[0].session();
    session.run("BEGIN; SELECT leaf_release('r', 'id')");
    ids.extend(other.take("r", 5));
    session.run("COMMIT");
    ids.extend(session.ids("INSERT INTO r SELECT FROM generate_series(1, 10) RETURNING id"));
    assert_issued_once([ids]);
    // Drop and create, after ids from a central server.
    fleet.create_tag("t", 20, 20);
    session.keep_copy(table);
    let mut ids = session.take("t", 100);
    session.wait_for_spare("t");
    session.set_back(table);
    session.run("SELECT leaf_tag_drop('t'); SELECT leaf_tag_create('t', step => 20)");
    ids.extend(session.take("t", 100));
    assert_issued_once([ids]);
    // Sourced from a central server whose ids start lower.
    let mut central = fleet.central.session();
    central.run("SELECT leaf_tag_create('b')");
    let server: String = session.value("SELECT srvname::text FROM pg_foreign_server");
    session.keep_copy(table);
    session.take("b", 100);
    session.wait_for_spare("b");
    session.set_back(table);
    session.run(&format!(
        "UPDATE leaf_id.leaf_alloc SET server = '{server}' WHERE biz_tag = 'b'"
    ));
    session.fails("SELECT leaf_segment_next('b')").is("55000");
}

/// A dump has the row of a name, not its mark.
#[track_caller]
fn row_is_above(session: &mut Session, tag: &str, ids: &[i64]) {
    assert!(Some(&session.max_id(tag)) > ids.iter().max(), "{tag}");
}

#[test]
fn a_name_goes_on_whatever_becomes_of_its_row() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run("SELECT leaf_tag_create('a', step => 10), leaf_tag_create('b', step => 10)");
    let (mut a, mut b) = (session.take("a", 25), session.take("b", 7));
    // Drop and create.
    session.run("SELECT leaf_tag_drop('a'); SELECT leaf_tag_create('a', step => 10)");
    row_is_above(&mut session, "a", &a);
    a.extend(session.take("a", 15));
    // Exchanged names.
    session.run(
        "UPDATE leaf_id.leaf_alloc SET biz_tag = 'c' WHERE biz_tag = 'a';
         UPDATE leaf_id.leaf_alloc SET biz_tag = 'a' WHERE biz_tag = 'b';
         UPDATE leaf_id.leaf_alloc SET biz_tag = 'b' WHERE biz_tag = 'c'",
    );
    row_is_above(&mut session, "a", &a);
    row_is_above(&mut session, "b", &b);
    a.extend(session.take("a", 15));
    b.extend(session.take("b", 15));
    // All rows deleted, and one of them restored.
    session.run(
        "CREATE TABLE aside AS TABLE leaf_id.leaf_alloc;
         BEGIN; SET LOCAL leaf_id.allow_truncate = on; TRUNCATE leaf_id.leaf_alloc; COMMIT;
         SELECT leaf_tag_create('b', step => 10)",
    );
    b.extend(session.take("b", 15));
    session.run("INSERT INTO leaf_id.leaf_alloc SELECT * FROM aside WHERE biz_tag = 'a'");
    row_is_above(&mut session, "a", &a);
    a.extend(session.take("a", 15));
    // Deliberately forgotten.
    session.run("SELECT leaf_tag_drop('b', forget => true); SELECT leaf_tag_create('b')");
    assert_eq!(session.next("b"), 1);
    // Each name has its own numbers.
    for mut ids in [a, b] {
        ids.sort_unstable();
        assert_issued_once([ids]);
    }
    // A rename that is rolled back leaves no mark at the other name.
    session.run(
        "BEGIN; UPDATE leaf_id.leaf_alloc SET biz_tag = 'd' WHERE biz_tag = 'a'; ROLLBACK;
         SELECT leaf_tag_create('d')",
    );
    assert_eq!(session.next("d"), 1);
}

/// Would catch: a mark that is left by an UPDATE, where a tool that follows the table by row triggers
/// has no row to update: claims, which inserted it, fire none.
#[test]
fn a_tool_that_follows_the_marks_knows_those_of_names_that_are_gone() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    for (table, name) in [("leaf_high_mark", "tag"), ("leaf_gapless_mark", "series")] {
        session.run(&format!(
            "CREATE TABLE copy_of_{table} AS TABLE leaf_id.{table};
             CREATE FUNCTION follow_{table}() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN
                 CASE TG_OP
                 WHEN 'INSERT' THEN INSERT INTO public.copy_of_{table} VALUES (NEW.*);
                 WHEN 'UPDATE' THEN UPDATE public.copy_of_{table} SET high = NEW.high WHERE {name} = OLD.{name};
                 ELSE DELETE FROM public.copy_of_{table} WHERE {name} = OLD.{name};
                 END CASE;
                 RETURN NULL;
             END $$;
             CREATE TRIGGER follow AFTER INSERT OR UPDATE OR DELETE ON leaf_id.{table}
                 FOR EACH ROW EXECUTE FUNCTION follow_{table}()"
        ));
    }
    session.run("SELECT leaf_tag_create('t', step => 10), leaf_id.leaf_gapless_create('s')");
    session.take("t", 25);
    session.run("SELECT leaf_id.leaf_gapless_next('s') FROM generate_series(1, 5)");
    session.run("SELECT leaf_tag_drop('t'), leaf_id.leaf_gapless_drop('s')");
    // Ids of the transaction that creates the tag are written at its commit.
    session.run(
        "BEGIN; SELECT leaf_tag_create('u');
         SELECT leaf_segment_next('u') FROM generate_series(1, 5);
         SELECT leaf_tag_drop('u'); COMMIT",
    );
    for table in ["leaf_high_mark", "leaf_gapless_mark"] {
        session.run(&format!("DROP TRIGGER follow ON leaf_id.{table}"));
        session.set_back(table);
    }
    session
        .run("SELECT leaf_tag_create('t'), leaf_tag_create('u'), leaf_id.leaf_gapless_create('s')");
    assert!(session.next("t") > 25);
    assert!(session.next("u") > 5);
    assert_eq!(
        session.value::<i64>("SELECT leaf_id.leaf_gapless_next('s')"),
        6
    );
}

/// Would catch: a claim in flight that commits after the row was removed.
#[test]
fn a_row_that_is_put_aside_and_back_under_load_goes_on() {
    let server = Server::with_leaf_id(&[]);
    server
        .session()
        .run("SELECT leaf_tag_create('t', step => 5, max_step => 5)");
    let (ids, ()) = in_threads_until(
        6,
        |_, done| {
            let mut session = server.session();
            let mut ids = Vec::new();
            while !done.load(Ordering::Relaxed) {
                if let Ok(more) = session.try_take("t", 3) {
                    ids.extend(more);
                }
            }
            ids
        },
        || {
            let mut session = server.session();
            for _ in 0..30 {
                session.run(
                    "CREATE TABLE aside AS SELECT * FROM leaf_id.leaf_alloc;
                     DELETE FROM leaf_id.leaf_alloc;
                     INSERT INTO leaf_id.leaf_alloc SELECT * FROM aside;
                     DROP TABLE aside",
                );
                // It continues after each.
                session.be_patient();
                session.next("t");
            }
        },
    );
    let mut ids = ids.concat();
    println!("{} ids", ids.len());
    ids.sort_unstable();
    assert_issued_once([ids]);
}

#[test]
fn an_extension_may_go_in_the_transaction_that_used_it() {
    let server = Server::start(&[]);
    let mut session = server.session();
    session.run(
        "BEGIN; CREATE EXTENSION leaf_id; SELECT leaf_tag_create('t');
         SELECT leaf_segment_next('t'); DROP EXTENSION leaf_id; COMMIT",
    );
    session.run("CREATE EXTENSION leaf_id; SELECT leaf_tag_create('t')");
    assert_eq!(session.next("t"), 1);
}

/// Roles that manage tags cannot read or write marks.
#[test]
fn marks_are_no_managers() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run("SELECT leaf_tag_create('t', step => 10); CREATE ROLE manager LOGIN");
    session.run("GRANT SELECT, INSERT, UPDATE, DELETE ON leaf_id.leaf_alloc TO manager");
    let next = session.take("t", 1)[0];
    let mut manager = server.connect_as("manager", "postgres");
    for statement in [
        "SELECT * FROM leaf_id.leaf_high_mark",
        "DELETE FROM leaf_id.leaf_high_mark",
        "INSERT INTO leaf_id.leaf_high_mark VALUES ('t', 1)",
        "UPDATE leaf_id.leaf_high_mark SET high = 1",
    ] {
        manager.fails(statement).is("42501");
    }
    // Marks are nevertheless written by what a manager may do.
    manager.run("SELECT leaf_tag_drop('t'); SELECT leaf_tag_create('t')");
    assert!(manager.next("t") > next);
}

/// A tag, an opaque one and a series that were used, of names that are gone, and tags and a series that
/// are there. By the role that owns the database.
fn with_names_that_are_gone(session: &mut Session) {
    session.run(
        "SELECT leaf_tag_create('gone', step => 10), leaf_tag_create('away', step => 10),
             leaf_tag_create('kept', step => 10), leaf_id.leaf_opaque_create('o', step => 10),
             leaf_id.leaf_gapless_create('s'), leaf_id.leaf_gapless_create('r'), leaf_id.leaf_gapless_create('k')",
    );
    for tag in ["gone", "away", "kept"] {
        session.take(tag, 25);
    }
    session.run(
        "SELECT leaf_opaque_next('o') FROM generate_series(1, 25);
         SELECT leaf_id.leaf_gapless_next('s'), leaf_id.leaf_gapless_next('r'), leaf_id.leaf_gapless_next('k');
         SELECT leaf_tag_drop('gone'), leaf_tag_drop('o'), leaf_id.leaf_gapless_drop('s');
         UPDATE leaf_id.leaf_alloc SET biz_tag = 'here' WHERE biz_tag = 'away';
         CREATE TABLE part ()",
    );
}

/// A database to which that was brought goes on above.
#[track_caller]
fn goes_on_above(session: &mut Session) {
    session.run("SELECT leaf_tag_create('gone'), leaf_tag_create('away'), leaf_tag_create('o')");
    for tag in ["gone", "away", "kept", "here"] {
        assert!(session.next(tag) > 25, "{tag}");
    }
    let opaque = "SELECT leaf_id.leaf_opaque_decode('o', leaf_opaque_next('o'))";
    assert!(session.value::<i64>(opaque) > 25);
    session.run("SELECT leaf_id.leaf_gapless_create('s')");
    for series in ["s", "k"] {
        let next = format!("SELECT leaf_id.leaf_gapless_next('{series}')");
        assert_eq!(session.value::<i64>(&next), 2, "{series}");
    }
}

/// Would catch: a name that is gone, and is forgotten by a dump. (The marks of the others would be
/// older than their rows after a restore of parts.)
#[test]
fn a_dump_has_the_marks_of_names_that_are_gone() {
    let server = Server::start(&[]);
    let mut admin = server.session();
    admin.run("CREATE ROLE owner LOGIN");
    admin.run("CREATE DATABASE shop OWNER owner");
    let mut owner = server.connect_as("owner", "shop");
    owner.run("CREATE EXTENSION leaf_id");
    with_names_that_are_gone(&mut owner);
    let file = |name: &str, args: &[&str]| {
        let file = server.dir().join(name).to_str().unwrap().to_owned();
        server.run(
            "pg_dump",
            &[&["-U", "owner", "-f", &file], args, &["shop"]].concat(),
        );
        file
    };
    let plain = file("plain.sql", &[]);
    let text = std::fs::read_to_string(&plain).unwrap();
    let marks = text.split("COPY leaf_id.leaf_high_mark").nth(1).unwrap();
    let marks = marks.split("\\.").next().unwrap();
    assert!(
        marks.contains("\ngone\t") && !marks.contains("\nkept\t"),
        "{marks}"
    );
    let data = file("data.sql", &["-a"]);
    let extension = file("extension.sql", &["-t", "part", "-e", "leaf_id"]);
    let clean = file("clean.sql", &["--clean", "--if-exists"]);
    let custom = file("custom", &["-Fc"]);
    for (database, file, is_created) in [
        ("plain", &plain, false),
        ("data", &data, true),
        ("extension", &extension, false),
        ("clean", &clean, true),
        ("custom", &custom, false),
        ("disabled", &custom, false),
    ] {
        println!("{database}");
        admin.run(&format!("CREATE DATABASE {database} OWNER owner"));
        if is_created {
            server
                .connect_as("owner", database)
                .run("CREATE EXTENSION leaf_id; CREATE TABLE public.part ()");
        }
        let to = ["-U", "owner", "-d", database];
        if file == &custom {
            let options = ["--exit-on-error", "-j", "2", &custom];
            let (options, to) = match database {
                "disabled" => (
                    &["--exit-on-error", "--disable-triggers", &custom][..],
                    &["-d", database][..],
                ),
                _ => (&options[..], &to[..]),
            };
            server.run("pg_restore", &[to, options].concat());
        } else {
            let options = ["-Xq", "-v", "ON_ERROR_STOP=1", "-f", file];
            server.run("psql", &[&to[..], &options].concat());
        }
        goes_on_above(&mut server.session_in(database));
    }
    // Where the name was used here, too, the greater one counts.
    let mut plain = server.connect_as("owner", "plain");
    for (arrives, next) in [(1, 2000), (9000, 9000)] {
        plain.run("SELECT leaf_tag_drop('gone', if_exists => true)");
        plain.run(&format!(
            "INSERT INTO leaf_id.leaf_high_mark VALUES ('gone', {arrives})"
        ));
        plain.run("SELECT leaf_tag_create('gone', start => 2000)");
        assert_eq!(plain.next("gone"), next);
    }
}

/// Would catch: a name that is gone on the publisher, and is forgotten when a subscriber takes over.
#[test]
fn a_subscriber_takes_the_marks_of_names_that_are_gone() {
    let blocks = Page::read("docs/fleet-and-failover.md").blocks();
    let of_the_page = blocks
        .iter()
        .find(|block| block.text.starts_with("CREATE PUBLICATION takeover "));
    takes_the_marks(&of_the_page.expect("that publication").text);
    takes_the_marks("CREATE PUBLICATION takeover FOR ALL TABLES");
}

#[track_caller]
fn takes_the_marks(publication: &str) {
    let server = |number| {
        let server = Server::start_unrelated(number, &[("wal_level", "logical")]);
        server.session().run("CREATE EXTENSION leaf_id");
        server
    };
    let (publisher, subscriber) = (server(0), server(1));
    let (mut there, mut here) = (publisher.session(), subscriber.session());
    with_names_that_are_gone(&mut there);
    there.run(publication);
    // A name that both have used.
    here.run("CREATE TABLE part (); SELECT leaf_tag_create('away', step => 10)");
    here.take("away", 1);
    here.run("SELECT leaf_tag_drop('away')");
    let conninfo = format!("{} dbname=postgres", publisher.conninfo());
    here.run(&format!(
        "CREATE SUBSCRIPTION s CONNECTION '{conninfo}' PUBLICATION takeover"
    ));
    wait_until(LIMIT, "the initial copy", || {
        here.value("SELECT count(*) > 0 AND bool_and(srsubstate = 'r') FROM pg_subscription_rel")
    });
    // A tag that comes and goes in one transaction has no row for the subscriber, and a mark.
    there.run(
        "BEGIN; SELECT leaf_tag_create('brief'); SELECT leaf_segment_next('brief') FROM generate_series(1, 25);
         SELECT leaf_tag_drop('brief'); COMMIT",
    );
    let last: String = there.value("SELECT pg_current_wal_lsn()::text");
    wait_until(LIMIT, "the changes", || {
        here.value(&format!(
            "SELECT count(*) = 1 FROM pg_stat_subscription WHERE latest_end_lsn >= '{last}' AND relid IS NULL"
        ))
    });
    here.run("DROP SUBSCRIPTION s");
    goes_on_above(&mut here);
    here.run("SELECT leaf_tag_create('brief')");
    assert!(here.next("brief") > 25);
}

/// Would catch: a COMMIT that waits for the mark of a name, where no timeout works.
#[test]
fn the_commit_of_a_new_tag_waits_for_no_one() {
    const COMES: [&str; 2] = [
        "SELECT leaf_tag_create('gone')",
        "UPDATE leaf_id.leaf_alloc SET biz_tag = 'gone' WHERE biz_tag = 'other'",
    ];
    let server = Server::with_leaf_id(&[]);
    let (mut session, mut other) = (server.session(), server.session());
    session.run("SELECT leaf_tag_create('gone'), leaf_tag_create('other')");
    session.next("gone");
    session.run("SELECT leaf_tag_drop('gone'); SET statement_timeout = '300ms'");
    other.run("SET lock_timeout = '100ms'");
    // Another transaction has the mark: the statement waits.
    other.run("BEGIN; SELECT leaf_tag_drop('gone', forget => true)");
    for comes in COMES {
        session.run("BEGIN");
        session.fails(comes).is("57014");
        session.run("ROLLBACK");
    }
    other.run("ROLLBACK");
    // Once it has returned, the mark and its table are this transaction's. Not only of a name that
    // was used; and after a rollback, of a row that was here by then.
    for (begin, name) in [
        ("SELECT leaf_tag_create('gone')", "gone"),
        ("SELECT leaf_tag_create('new')", "new"),
        ("SAVEPOINT s; SELECT leaf_tag_create('late')", "late"),
    ] {
        session.run(&format!("BEGIN; {begin}"));
        session.take(name, 5);
        if name == "late" {
            session.run("ROLLBACK TO s");
            other.run("SELECT leaf_tag_create('late')");
            session.run("UPDATE leaf_id.leaf_alloc SET max_id = max_id + 1 WHERE biz_tag = 'late'");
        }
        other
            .fails("BEGIN; LOCK TABLE leaf_id.leaf_high_mark")
            .is("55P03");
        other.run("ROLLBACK; BEGIN; INSERT INTO leaf_id.leaf_high_mark VALUES ('earlier', 1)");
        let written = format!(
            "INSERT INTO leaf_id.leaf_high_mark VALUES ('{name}', 1) ON CONFLICT (tag) DO UPDATE SET high = 1"
        );
        other.fails(&written).is("55P03");
        session.run("COMMIT");
        other.run("ROLLBACK");
        assert!(server.session().next(name) > 5, "{name}");
    }
}
