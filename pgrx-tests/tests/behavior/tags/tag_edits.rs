//! Would catch: an id of a tag's former incarnation served from the cache after an edit, an edit
//! that the own open transaction does not notice or deadlocks on, and an edit trigger that
//! stops replication.

use std::collections::HashSet;

use leaf_id_tests::{Server, Session, assert_issued_once, promptly};

/// A server with the tag t, of which two sessions have taken 1 to 6 and cached more.
fn server_with_t_in_use() -> (Server, Session, Session) {
    let server = Server::with_leaf_id(&[
        ("max_prepared_transactions", "5"),
        // As long as PATIENCE: what is refused is refused promptly.
        ("leaf_id.refill_timeout", "60s"),
    ]);
    let (mut a, mut b) = (server.session(), server.session());
    a.create_tag("t");
    a.run("SET leaf_id.allow_truncate = on");
    assert_eq!(
        (a.take("t", 3), b.take("t", 3)),
        (vec![1, 2, 3], vec![4, 5, 6])
    );
    (server, a, b)
}

/// Checks that a call fails with 55000 without waiting, and says what to do.
fn assert_told_to_commit(session: &mut Session, tag: &str) {
    let refused = promptly(|| session.try_next(tag)).unwrap_err();
    refused.is("55000").says(tag).hints("ommit");
}

/// A row that was put aside and comes back, as from a dump of the table: ids of it were issued since.
#[test]
fn a_row_that_comes_back_goes_on_above_what_it_has_issued() {
    let (_server, mut a, mut b) = server_with_t_in_use();
    a.run("SELECT leaf_tag_create('o', opaque => true)");
    a.run("CREATE TABLE keep AS TABLE leaf_id.leaf_alloc");
    a.run("CREATE TABLE keys AS TABLE leaf_id.leaf_opaque_key");
    let mut opaque: HashSet<i64> = b.take("o", 3000).into_iter().collect();
    let mut last = b.take("t", 3000)[2999];
    let delete = "DELETE FROM leaf_id.leaf_alloc";
    let insert = "INSERT INTO leaf_id.leaf_alloc SELECT * FROM keep";
    let keys = "INSERT INTO leaf_id.leaf_opaque_key SELECT * FROM keys";
    let renamed = "UPDATE keep SET biz_tag = biz_tag || '!'";
    let back = "UPDATE keep SET biz_tag = left(biz_tag, 1);
                UPDATE leaf_id.leaf_alloc SET biz_tag = left(biz_tag, 1)";
    for (edit, in_one) in [
        (format!("{delete}; {keys}; {insert}"), false),
        (format!("{delete}; {insert}"), true),
        (format!("{renamed}; {delete}; {insert}; {back}"), true),
    ] {
        println!("{edit}");
        if in_one {
            a.run(&format!("BEGIN; {edit}"));
        } else {
            edit.split("; ").for_each(|statement| a.run(statement));
        }
        for session in [&mut a, &mut b] {
            let ids = session.take("t", 3);
            assert!(ids[0] > last, "{ids:?} after {last}");
            last = ids[2];
            for id in session.take("o", 3) {
                assert!(opaque.insert(id), "{id} was issued twice");
            }
            // The other one's turn.
            if session.value::<bool>("SELECT pg_current_xact_id_if_assigned() IS NOT NULL") {
                session.run("COMMIT");
            }
        }
    }
}

/// What no trigger has seen, after an edit, with which the ids that were cached have gone.
#[test]
fn a_max_id_that_was_lowered_behind_the_triggers_is_refused() {
    let (_server, mut a, mut b) = server_with_t_in_use();
    a.run("UPDATE leaf_id.leaf_alloc SET max_value = 1000000000");
    a.run("ALTER TABLE leaf_id.leaf_alloc DISABLE TRIGGER ALL");
    a.run("UPDATE leaf_id.leaf_alloc SET max_id = 1");
    a.run(
        "DO $$ DECLARE name name; BEGIN
             FOR name IN SELECT tgname FROM pg_trigger WHERE tgrelid = 'leaf_id.leaf_alloc'::regclass
             LOOP EXECUTE format('ALTER TABLE leaf_id.leaf_alloc ENABLE ALWAYS TRIGGER %I', name); END LOOP;
         END $$",
    );
    let refused = b.try_next("t").unwrap_err();
    refused.is("55000").says("moved backwards");
    a.run("UPDATE leaf_id.leaf_alloc SET max_id = 100000");
    assert_eq!(b.next("t"), 100_000);
}

/// Would catch: an alert that stays on after its cause was mended, until somebody takes an id.
#[test]
fn an_edit_takes_back_what_was_said_of_the_row_before() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run("SELECT leaf_tag_create('t', max_value => 10)");
    session.take("t", 10);
    session.try_next("t").unwrap_err().is("2200H");
    let error = "SELECT last_error IS NOT NULL FROM leaf_segment_status WHERE tag = 't'";
    assert!(session.value::<bool>(error));
    session.run("UPDATE leaf_id.leaf_alloc SET max_value = 1000");
    assert!(!session.value::<bool>(error));
    assert_eq!(session.next("t"), 11);
}

#[test]
fn a_tag_edited_in_the_open_transaction_says_commit_first() {
    let (_server, mut a, mut b) = server_with_t_in_use();
    for (edit, tags) in [
        (
            "UPDATE leaf_id.leaf_alloc SET max_id = max_id + 5000 WHERE biz_tag = 't'",
            &["t"][..],
        ),
        (
            "UPDATE leaf_id.leaf_alloc SET max_value = 1000000 WHERE biz_tag = 't'",
            &["t"],
        ),
        (
            "UPDATE leaf_id.leaf_alloc SET biz_tag = 'new' WHERE biz_tag = 't'",
            &["t", "new"],
        ),
        ("DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 't'", &["t"]),
        ("SELECT leaf_tag_drop('t')", &["t"]),
        ("TRUNCATE leaf_id.leaf_alloc", &["t"]),
    ] {
        println!("{edit}");
        a.run("BEGIN");
        a.next("t");
        a.run(edit);
        for tag in tags {
            a.run("SAVEPOINT s");
            assert_told_to_commit(&mut a, tag);
            a.run("ROLLBACK TO s");
        }
        // The others go on with what is cached, as nothing has been committed.
        let last = b.next("t");
        a.run("ROLLBACK");
        let ids = [last, a.next("t"), b.next("t"), a.next("t")];
        assert_issued_once(&[ids.to_vec()]);
    }
}

#[test]
fn an_edit_undone_by_a_savepoint_is_forgotten() {
    let (_server, mut a, _b) = server_with_t_in_use();
    a.run("BEGIN; SAVEPOINT s; UPDATE leaf_id.leaf_alloc SET max_id = 5000; SAVEPOINT nested");
    assert_told_to_commit(&mut a, "t");
    a.run("ROLLBACK TO nested; RELEASE nested");
    assert_told_to_commit(&mut a, "t");
    a.run("ROLLBACK TO s");
    let id = a.next("t");
    assert!((7..5000).contains(&id));
    a.run("COMMIT");
    assert_eq!(a.next("t"), id + 1);
    a.run("BEGIN; SAVEPOINT s; UPDATE leaf_id.leaf_alloc SET max_id = 5000; RELEASE s");
    assert_told_to_commit(&mut a, "t");
    a.run("ROLLBACK");
    assert_eq!(a.next("t"), id + 2);
}

#[test]
fn step_and_description_can_be_edited_in_the_open_transaction() {
    let (_server, mut a, mut b) = server_with_t_in_use();
    for edit in [
        "step = 50",
        "description = 'x'",
        "step = 70, description = 'y'",
    ] {
        a.run(&format!("BEGIN; UPDATE leaf_id.leaf_alloc SET {edit}"));
        let first = a.next("t");
        assert_eq!(b.next("t"), first + 1, "no cache is dropped");
        a.run("COMMIT");
        assert_eq!(a.next("t"), first + 2, "no cache is dropped");
    }
}

#[test]
fn a_raised_max_id_holds_at_once() {
    let (_server, mut a, mut b) = server_with_t_in_use();
    a.run("UPDATE leaf_id.leaf_alloc SET max_id = 1000000 WHERE biz_tag = 't'");
    assert_eq!((b.next("t"), a.next("t")), (1_000_000, 1_000_001));
    a.run("BEGIN; UPDATE leaf_id.leaf_alloc SET max_id = 2000000 WHERE biz_tag = 't'");
    assert_eq!(b.next("t"), 1_000_002);
    a.run("COMMIT");
    assert_eq!(b.next("t"), 2_000_000);
}

#[test]
fn a_lowered_max_id_is_refused_and_a_reset_is_the_way() {
    let (_server, mut a, mut b) = server_with_t_in_use();
    a.fails("UPDATE leaf_id.leaf_alloc SET max_id = 1 WHERE biz_tag = 't'")
        .is("55000")
        .says("\"t\"")
        .hints("leaf_tag_reset('t', 1)");
    assert_eq!((a.next("t"), b.next("t")), (7, 8));
    a.run("UPDATE leaf_id.leaf_alloc SET description = 'kept' WHERE biz_tag = 't'");
    a.run("SELECT leaf_tag_reset('t', 5)");
    assert_eq!((b.next("t"), a.next("t")), (5, 6));
    a.run("SELECT leaf_tag_reset('t', 9000)");
    assert_eq!((a.next("t"), b.next("t")), (9000, 9001));
    assert_eq!(
        a.value::<String>("SELECT description FROM leaf_id.leaf_alloc"),
        "kept"
    );
    a.fails("SELECT leaf_tag_reset('nope', 1)").is("42704");
    a.fails("SELECT leaf_tag_reset('t', 0)").is("23514");
}

#[test]
fn a_limit_holds_at_once_and_can_be_lifted() {
    let (_server, mut a, mut b) = server_with_t_in_use();
    a.run("UPDATE leaf_id.leaf_alloc SET max_value = 100 WHERE biz_tag = 't'");
    // max_id is beyond it by now: what was claimed is dropped.
    b.fails("SELECT leaf_segment_next('t')")
        .is("2200H")
        .says("(100)");
    a.run("UPDATE leaf_id.leaf_alloc SET max_value = 1000000 WHERE biz_tag = 't'");
    assert!(b.next("t") > 6);
}

#[test]
fn a_deleted_tag_is_gone_for_all_at_commit_and_can_come_again() {
    let (server, mut a, mut b) = server_with_t_in_use();
    let mut c = server.session();
    a.run("BEGIN; DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 't'");
    assert_eq!(b.next("t"), 7);
    a.run("COMMIT");
    for session in [&mut a, &mut b, &mut c] {
        session.fails("SELECT leaf_segment_next('t')").is("42704");
    }
    a.run("INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id) VALUES ('t', 3000)");
    assert_eq!((b.next("t"), a.next("t"), c.next("t")), (3000, 3001, 3002));
    a.run(
        "BEGIN; DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 't';
         INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('t'); COMMIT",
    );
    assert_eq!((b.next("t"), a.next("t"), c.next("t")), (1, 2, 3));
    a.run("SELECT leaf_tag_drop('t')");
    a.fails("SELECT leaf_tag_drop('t')").is("42704");
    b.fails("SELECT leaf_segment_next('t')").is("42704");
}

#[test]
fn truncate_drops_all_tags() {
    let (_server, mut a, mut b) = server_with_t_in_use();
    a.create_tag("u");
    assert_eq!(b.next("u"), 1);
    a.run("TRUNCATE leaf_id.leaf_alloc");
    for tag in ["t", "u"] {
        a.try_next(tag).unwrap_err().is("42704");
        b.try_next(tag).unwrap_err().is("42704");
    }
    a.create_tag("t");
    assert_eq!((b.next("t"), a.next("t")), (1, 2));
}

#[test]
fn a_renamed_tag_goes_on_under_its_new_name_only() {
    let (_server, mut a, mut b) = server_with_t_in_use();
    a.run("UPDATE leaf_id.leaf_alloc SET biz_tag = 'new' WHERE biz_tag = 't'");
    for session in [&mut a, &mut b] {
        session.fails("SELECT leaf_segment_next('t')").is("42704");
    }
    let ids = vec![6, b.next("new"), a.next("new")];
    // Names exchanged: each must go on where its row is.
    a.run("INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id) VALUES ('t', 1000000)");
    assert_eq!(b.next("t"), 1_000_000);
    a.run(
        "UPDATE leaf_id.leaf_alloc SET biz_tag = CASE biz_tag WHEN 't' THEN 'x' ELSE 'y' END;
         UPDATE leaf_id.leaf_alloc SET biz_tag = CASE biz_tag WHEN 'x' THEN 'new' ELSE 't' END",
    );
    assert!(b.next("new") > 1_000_000);
    assert_issued_once(&[[ids, vec![b.next("t"), a.next("t")]].concat()]);
    assert!(a.next("t") < 1_000_000);
}

/// Would catch: a trigger of somebody's, after ours, that brings used ids back.
#[test]
fn no_trigger_lowers_max_id() {
    let (_server, mut a, mut b) = server_with_t_in_use();
    a.run(
        "CREATE FUNCTION lower_it() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN NEW.max_id := 1; RETURN NEW; END';
         CREATE TRIGGER zz BEFORE UPDATE ON leaf_id.leaf_alloc
             FOR EACH ROW EXECUTE FUNCTION lower_it()",
    );
    a.fails("UPDATE leaf_id.leaf_alloc SET step = step + 1 WHERE biz_tag = 't'")
        .is("55000")
        .says("lower");
    assert!(b.next("t") > 1);
}

#[test]
fn a_tag_that_is_used_and_truncated_in_one_transaction_commits() {
    let (_server, mut a, _) = server_with_t_in_use();
    a.run(
        "BEGIN; SELECT leaf_tag_create('new'); SELECT leaf_segment_next('new');
         TRUNCATE leaf_id.leaf_alloc; COMMIT",
    );
    a.try_next("new").unwrap_err().is("42704");
}

#[test]
fn an_edit_cannot_be_prepared_and_use_can() {
    let (_server, mut a, mut b) = server_with_t_in_use();
    for edit in [
        "UPDATE leaf_id.leaf_alloc SET max_id = max_id + 1000",
        "UPDATE leaf_id.leaf_alloc SET step = step + 1",
        "INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('new')",
        "DELETE FROM leaf_id.leaf_alloc",
        "TRUNCATE leaf_id.leaf_alloc",
    ] {
        a.run("BEGIN");
        a.run(edit);
        a.fails("PREPARE TRANSACTION 'p'").is("0A000");
        a.run("ROLLBACK");
    }
    let last = a.next("t");
    a.run("CREATE TABLE used (id bigint); BEGIN; INSERT INTO used SELECT leaf_segment_next('t')");
    a.run("PREPARE TRANSACTION 'p'");
    assert_eq!(b.next("t"), last + 2);
    a.run("COMMIT PREPARED 'p'");
    assert_eq!(a.ids("SELECT id FROM used"), [last + 1]);
    assert_eq!(a.next("t"), last + 3);
}

#[test]
fn replication_is_never_stopped_and_never_takes_a_tag_back() {
    let (_server, mut a, mut b) = server_with_t_in_use();
    a.run("SET session_replication_role = replica");
    // Locked: the allocator may be claiming the next segment.
    a.run("BEGIN");
    let max_id: i64 = a.value("SELECT max_id FROM leaf_id.leaf_alloc FOR UPDATE");
    a.run(
        "UPDATE leaf_id.leaf_alloc SET max_id = 1, description = 'from afar' WHERE biz_tag = 't'",
    );
    let row = a
        .query_one("SELECT max_id, description FROM leaf_id.leaf_alloc", &[])
        .unwrap();
    a.run("COMMIT");
    assert_eq!((row.get(0), row.get(1)), (max_id, "from afar"));
    assert!(b.next("t") > 6);
    a.run("UPDATE leaf_id.leaf_alloc SET max_id = 50000 WHERE biz_tag = 't'");
    assert_eq!(b.next("t"), 50_000);
    a.run(
        "INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('u'); DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 't'",
    );
    b.fails("SELECT leaf_segment_next('t')").is("42704");
    assert_eq!(b.next("u"), 1);
    a.run("TRUNCATE leaf_id.leaf_alloc");
    b.fails("SELECT leaf_segment_next('u')").is("42704");
}

#[test]
fn many_edits_in_one_transaction_are_all_noticed() {
    let (_server, mut a, mut b) = server_with_t_in_use();
    let names = "SELECT 'tag' || i FROM generate_series(1, 5000) i";
    a.run(&format!("INSERT INTO leaf_id.leaf_alloc (biz_tag) {names}"));
    let sample = ["t", "tag1", "tag2500", "tag5000"];
    for tag in sample {
        b.next(tag);
    }
    a.run("UPDATE leaf_id.leaf_alloc SET max_id = 1000000");
    for tag in sample {
        assert_eq!(b.next(tag), 1_000_000);
    }
    a.run("DELETE FROM leaf_id.leaf_alloc");
    for tag in sample {
        b.try_next(tag).unwrap_err().is("42704");
    }
}

/// BEFORE triggers fire for rows that are then not written.
#[test]
fn an_insert_that_writes_nothing_is_no_edit() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.create_tag("t");
    let mut ids = session.take("t", 5);
    for conflict in ["DO NOTHING", "(biz_tag) DO UPDATE SET step = 7 WHERE false"] {
        session.run(&format!(
            "BEGIN; INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('t') ON CONFLICT {conflict}"
        ));
        ids.extend(session.take("t", 5));
        session.run("COMMIT");
    }
    session.run(
        "CREATE FUNCTION skip() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
         CREATE TRIGGER skip BEFORE INSERT ON leaf_id.leaf_alloc FOR EACH ROW EXECUTE FUNCTION skip();
         BEGIN; INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('t')",
    );
    ids.extend(session.take("t", 5));
    session.run("COMMIT");
    assert_issued_once(&[ids]);
}

/// Only so many are remembered one by one: then every tag of the database counts as edited.
#[test]
fn more_edits_than_are_remembered_are_all_noticed() {
    let (_server, mut a, mut b) = server_with_t_in_use();
    a.create_tag("bystander");
    assert_eq!((a.next("bystander"), b.next("bystander")), (1, 2));
    a.run(
        "BEGIN; INSERT INTO leaf_id.leaf_alloc (biz_tag) SELECT 'tag' || i FROM generate_series(1, 60000) i;
         UPDATE leaf_id.leaf_alloc SET max_id = 1000000 WHERE biz_tag <> 'bystander'",
    );
    a.run("SAVEPOINT s");
    assert_told_to_commit(&mut a, "t");
    a.run("ROLLBACK TO s");
    assert_eq!(b.next("t"), 7, "nothing is committed");
    a.run("COMMIT");
    for tag in ["t", "tag1", "tag30000", "tag60000"] {
        assert_eq!(b.next(tag), 1_000_000, "{tag}");
        assert_eq!(a.next(tag), 1_000_001, "{tag}");
    }
    assert!(a.next("bystander") > 2);
    // Undone, nothing counts as edited any more.
    a.run("BEGIN; SAVEPOINT s; UPDATE leaf_id.leaf_alloc SET max_id = 2000000");
    a.run("UPDATE leaf_id.leaf_alloc SET max_id = 3000000; ROLLBACK");
    let ids = [a.next("t"), b.next("t"), a.next("t")];
    assert_issued_once([ids]);
    assert!(ids[2] < 2_000_000);
}

/// What was remembered of a tag before there were too many edits is no longer so.
#[test]
fn a_tag_made_again_after_more_edits_than_are_remembered_repeats_nothing() {
    let (_server, mut a, mut b) = server_with_t_in_use();
    a.run("BEGIN; SELECT leaf_tag_create('new')");
    assert_eq!(a.next("new"), 1);
    a.run("INSERT INTO leaf_id.leaf_alloc (biz_tag) SELECT 'tag' || i FROM generate_series(1, 100000) i");
    a.run("DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 'new'; SAVEPOINT s");
    let deleted = a.try_next("new");
    a.run("ROLLBACK TO s; INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('new'); SAVEPOINT s");
    // Refused, as any tag with edits that are not remembered; or issued, and then for good.
    let again = a.try_take("new", 5);
    a.run(if again.is_ok() {
        "COMMIT"
    } else {
        "ROLLBACK TO s; COMMIT"
    });
    let mut ids = again.unwrap_or_default();
    ids.extend(b.take("new", 10));
    assert_issued_once([ids]);
    assert!(deleted.is_err(), "an id of a tag that is deleted");
}

/// Its new name is among the edits that are not remembered.
#[test]
fn a_new_tag_renamed_after_more_edits_than_are_remembered_repeats_nothing() {
    let (_server, mut a, mut b) = server_with_t_in_use();
    a.run("BEGIN; SELECT leaf_tag_create('old')");
    let mut ids = a.take("old", 9);
    a.run("INSERT INTO leaf_id.leaf_alloc (biz_tag) SELECT 'tag' || i FROM generate_series(1, 100000) i");
    a.run("UPDATE leaf_id.leaf_alloc SET biz_tag = 'new' WHERE biz_tag = 'old'; COMMIT");
    ids.extend(b.take("new", 9));
    assert_issued_once([ids]);
}
