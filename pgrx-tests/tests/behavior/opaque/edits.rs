//! Would catch: an edit after which ids repeat, because the key or the domain is another one; and a
//! session that goes on with what was before the edit. (What is refused is in sql/opaque.sql.)

use leaf_id_tests::{Server, Session, in_threads, while_repeating};

use super::{assert_distinct, assert_opaque, create, decoded};

fn bounds(session: &mut Session) -> Vec<i64> {
    session.value("SELECT opaque_bounds FROM leaf_id.leaf_alloc WHERE biz_tag = 't'")
}

fn key(session: &mut Session) -> Vec<u8> {
    session.value(
        "SELECT k.key FROM leaf_id.leaf_opaque_key k JOIN leaf_id.leaf_alloc a ON a.opaque_key = k.id
         WHERE a.biz_tag = 't'",
    )
}

fn keys(session: &mut Session) -> i64 {
    session.value("SELECT count(*) FROM leaf_id.leaf_opaque_key")
}

#[test]
fn a_raised_max_value_adds_a_range() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.be_patient();
    create(&mut session, "t", 1_000, ", max_value => 1000000");
    let mut ids = session.take("t", 10_000);
    session.run("SELECT leaf_tag_reset('t', 995001)");
    ids.extend(session.take("t", 4_500));
    let raise =
        |to: i64| format!("UPDATE leaf_id.leaf_alloc SET max_value = {to} WHERE biz_tag = 't'");
    // What is rolled back was not: nobody goes on with its range.
    session.run(&format!("BEGIN; {}", raise(5_000_000)));
    session.run("SELECT leaf_opaque_encode('t', 4000000)");
    session.run("ROLLBACK");
    session.run(&raise(2_500_000));
    assert_eq!(bounds(&mut session), [1, 1_000_000, 2_500_000]);
    let mut other = server.session();
    other.be_patient();
    ids.extend(other.take("t", 5_000));
    ids.extend(session.take("t", 1_000));
    assert_distinct(&ids);
    let (first, second): (Vec<i64>, Vec<i64>) = ids.iter().partition(|id| **id <= 1_000_000);
    assert!(first.len() > 14_000 && second.len() > 1_000);
    let numbers = decoded(&mut session, "t", &ids);
    let same = |(id, number): (&i64, &i64)| (*id <= 1_000_000) == (*number <= 1_000_000);
    assert!(ids.iter().zip(&numbers).all(same));
}

#[test]
fn a_reset_keeps_the_key() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    create(
        &mut session,
        "t",
        100,
        ", start => 10, max_value => 2000000",
    );
    let before = key(&mut session);
    let ids = session.take("t", 20);
    // An allocator that is late would leave a gap in the row that comes.
    session.wait_for_spare("t");
    session.run("SELECT leaf_tag_reset('t', 1000)");
    let above = session.take("t", 20);
    session.wait_for_spare("t");
    assert_opaque(&mut session, "t", &[ids.clone(), above].concat());
    // Back, and the ids come again that came then: as of every tag that is reset below.
    session.run("SELECT leaf_tag_reset('t', 10)");
    assert_eq!(server.session().take("t", 20), ids);
    // In one transaction with what is issued.
    session.run("BEGIN; SELECT leaf_tag_reset('t', 5000)");
    let number = session.next("t");
    session.run("COMMIT");
    assert_eq!(decoded(&mut session, "t", &[number]), [5000]);
    session.run("BEGIN; SAVEPOINT s; SELECT leaf_tag_reset('t', 9000); ROLLBACK TO s; SELECT leaf_tag_reset('t', 7000); COMMIT");
    assert_eq!(key(&mut session), before);
    assert_eq!(keys(&mut session), 1);
}

#[test]
fn a_key_goes_with_its_tag() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    create(&mut session, "t", 100, "");
    let before = key(&mut session);
    let old = session.take("t", 10);
    // A session that knows the old one, and one in which both are one transaction.
    let mut other = server.session();
    other.next("t");
    session.wait_for_spare("t");
    session.run(
        "BEGIN; SELECT leaf_tag_drop('t'); SELECT leaf_tag_create('t', opaque => true); COMMIT",
    );
    assert_ne!(key(&mut session), before);
    assert_eq!(keys(&mut session), 1);
    let new = [other.take("t", 5), session.take("t", 5)].concat();
    assert_ne!(new[..5], old[..5]);
    assert_opaque(&mut session, "t", &new);
    assert_eq!(decoded(&mut session, "t", &new[..1]), [1]);
    // The same name with ids that are not, and again with ids that are.
    session.wait_for_spare("t");
    session.run("SELECT leaf_tag_drop('t'); SELECT leaf_tag_create('t')");
    assert_eq!(keys(&mut session), 0);
    assert_eq!(other.take("t", 3), [1, 2, 3]);
    session.run("SELECT leaf_tag_drop('t'); SELECT leaf_tag_create('t', opaque => true)");
    let opaque = other.take("t", 3);
    assert_opaque(&mut session, "t", &opaque);
    session
        .run("BEGIN; SET LOCAL leaf_id.allow_truncate = on; TRUNCATE leaf_id.leaf_alloc; COMMIT");
    assert_eq!(keys(&mut session), 0);
}

/// A number of one tag with the key of the next would come again, and one with none at all would show.
#[test]
fn a_tag_that_is_replaced_under_load_mixes_no_keys() {
    let server = Server::with_leaf_id(&[]);
    let mut editor = server.session();
    create(&mut editor, "t", 10, "");
    let taken = while_repeating(
        || {
            editor.run(
                "BEGIN;
                 SELECT leaf_tag_drop('t'), leaf_tag_create('t', step => 10, max_step => 10, opaque => true);
                 COMMIT",
            );
        },
        || {
            in_threads(3, |_| {
                let mut session = server.session();
                let mut ids = Vec::new();
                for _ in 0..1_000 {
                    match session.try_take("t", 2) {
                        Ok(more) => ids.extend(more),
                        Err(failure) => drop(failure.is("55P03")),
                    }
                }
                ids
            })
        },
    );
    let ids = taken.concat();
    println!("{} ids", ids.len());
    assert!(ids.len() > 1_000);
    assert_distinct(&ids);
    // One in eight million.
    assert!(ids.iter().filter(|id| **id < 1 << 30).count() < 2);
}
