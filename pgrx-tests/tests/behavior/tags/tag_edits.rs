//! Would catch: an id of a tag's previous incarnation issued from another session's cache after an
//! edit, more edits in one transaction than are recorded, and an edit trigger that stops
//! replication. (Single-session behavior is tested in sql/tags.sql.)

use std::collections::HashSet;

use leaf_id_tests::{Server, Session, assert_issued_once, promptly};

use crate::opaque;

/// A server with tag t, of which two sessions have taken 1 to 6 and cached more.
fn server_with_t_in_use() -> (Server, Session, Session) {
    let server = Server::with_leaf_id(&[
        ("max_prepared_transactions", "5"),
        // As long as PATIENCE, to prove that refusals are prompt.
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

/// Checks that a call fails with 55000 and a hint, without waiting.
fn assert_must_commit(session: &mut Session, tag: &str) {
    let refused = promptly(|| session.try_next(tag)).unwrap_err();
    refused.is("55000").says(tag).hints("ommit");
}

/// A row is saved, ids are issued, and the row is restored, as from a dump of the table.
#[test]
fn a_row_that_comes_back_goes_on_above_what_it_has_issued() {
    let (_server, mut a, mut b) = server_with_t_in_use();
    a.run("SELECT leaf_id.leaf_opaque_create('o')");
    a.run("CREATE TABLE keep AS TABLE leaf_id.leaf_alloc");
    let mut opaque: HashSet<i64> = opaque::take(&mut b, "o", 3000).into_iter().collect();
    let mut last = b.take("t", 3000)[2999];
    let delete = "DELETE FROM leaf_id.leaf_alloc";
    let insert = "INSERT INTO leaf_id.leaf_alloc SELECT * FROM keep";
    let renamed = "UPDATE keep SET biz_tag = 't!' WHERE biz_tag = 't'";
    let back = "UPDATE keep SET biz_tag = 't' WHERE biz_tag = 't!';
                UPDATE leaf_id.leaf_alloc SET biz_tag = 't' WHERE biz_tag = 't!'";
    for (edit, in_one) in [
        (format!("{delete}; {insert}"), false),
        (format!("{delete}; {insert}"), true),
        (format!("{renamed}; {delete}; {insert}; {back}"), true),
    ] {
        println!("{edit}");
        if in_one {
            a.run(&format!("BEGIN; {edit}; SAVEPOINT s"));
            // Not before the commit, since the tag existed before.
            a.fails("SELECT leaf_segment_next('t')").is("55000");
            a.run("ROLLBACK TO s; COMMIT");
        } else {
            edit.split("; ").for_each(|statement| a.run(statement));
        }
        for session in [&mut a, &mut b] {
            let ids = session.take("t", 3);
            assert!(ids[0] > last, "{ids:?} after {last}");
            last = ids[2];
        }
        for id in opaque::take(&mut b, "o", 3) {
            assert!(opaque.insert(id), "{id} was issued twice");
        }
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
    // Above all ids of its name.
    assert_eq!((b.next("t"), a.next("t"), c.next("t")), (4000, 4001, 4002));
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
    assert_eq!((b.next("t"), a.next("t")), (1001, 1002));
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
    // Nor where the library is not loaded, but may be later, and at a subscriber.
    let unloaded = Server::start(&[
        ("shared_preload_libraries", ""),
        ("max_prepared_transactions", "5"),
    ]);
    let mut elsewhere = unloaded.session();
    elsewhere.run("CREATE EXTENSION leaf_id; SELECT leaf_tag_create('t')");
    for session in [&mut a, &mut elsewhere] {
        session.run("SELECT leaf_tag_create('gone'); SELECT leaf_tag_drop('gone')");
        for edit in [
            "SELECT leaf_tag_drop('gone', forget => true)",
            "UPDATE leaf_id.leaf_alloc SET max_id = max_id + 1000",
            "UPDATE leaf_id.leaf_alloc SET step = step + 1",
            "INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('new')",
            "DELETE FROM leaf_id.leaf_alloc",
            "INSERT INTO leaf_id.leaf_high_mark VALUES ('t', 1)",
            "SET LOCAL session_replication_role = replica; TRUNCATE leaf_id.leaf_alloc",
        ] {
            session.run("BEGIN");
            session.run(edit);
            session.fails("PREPARE TRANSACTION 'p'").is("0A000");
            session.run("ROLLBACK");
        }
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
    // A publisher's row comes back with ids that were issued here.
    a.run(
        "INSERT INTO leaf_id.leaf_alloc (biz_tag, max_id, granted_to) VALUES ('t', 1, '{public}')",
    );
    assert!(b.next("t") > 50_000);
    a.run("TRUNCATE leaf_id.leaf_alloc");
    b.fails("SELECT leaf_segment_next('u')").is("42704");
}

/// A limited number of edits is remembered. Beyond that, all tags of the database count as edited.
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
    assert_must_commit(&mut a, "t");
    a.run("ROLLBACK TO s");
    assert_eq!(b.next("t"), 7, "nothing is committed");
    a.run("COMMIT");
    for tag in ["t", "tag1", "tag30000", "tag60000"] {
        assert_eq!(b.next(tag), 1_000_000, "{tag}");
        assert_eq!(a.next(tag), 1_000_001, "{tag}");
    }
    assert!(a.next("bystander") > 2);
    // After a rollback, no tag counts as edited.
    a.run("BEGIN; SAVEPOINT s; UPDATE leaf_id.leaf_alloc SET max_id = 2000000");
    a.run("UPDATE leaf_id.leaf_alloc SET max_id = 3000000; ROLLBACK");
    let ids = [a.next("t"), b.next("t"), a.next("t")];
    assert_issued_once([ids]);
    assert!(ids[2] < 2_000_000);
}

/// State remembered about a tag before there were too many edits is no longer valid.
#[test]
fn a_tag_made_again_after_more_edits_than_are_remembered_repeats_nothing() {
    let (_server, mut a, mut b) = server_with_t_in_use();
    a.run("BEGIN; SELECT leaf_tag_create('new')");
    assert_eq!(a.next("new"), 1);
    a.run("INSERT INTO leaf_id.leaf_alloc (biz_tag) SELECT 'tag' || i FROM generate_series(1, 100000) i");
    a.run("DELETE FROM leaf_id.leaf_alloc WHERE biz_tag = 'new'; SAVEPOINT s");
    let deleted = a.try_next("new");
    a.run("ROLLBACK TO s; INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('new'); SAVEPOINT s");
    // Refused, like any tag whose edits are not remembered, or issued permanently.
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
