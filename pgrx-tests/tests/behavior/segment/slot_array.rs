//! Would catch: a slot array filled up by names without a tag, tags that stop when there are more
//! tags than slots, and duplicates from a reassigned slot.

use std::collections::HashMap;

use leaf_id_tests::{Server, assert_issued_once, in_threads, random};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

#[test]
fn unknown_tags_take_no_slots() {
    let server = Server::with_leaf_id(&[("leaf_id.max_tags", "4")]);
    let mut session = server.session();
    for tag in ["a", "b", "c", "d"] {
        session.create_tag(tag);
        assert_eq!(session.next(tag), 1);
    }
    for i in 0..1000 {
        let failure = session.try_next(&format!("unknown{i}")).unwrap_err();
        failure.is("42704").hints("leaf_tag_create");
    }
    for tag in ["a", "b", "c", "d"] {
        assert_eq!(session.next(tag), 2, "its segment was evicted");
    }
    let cached = "SELECT tag FROM leaf_id.tags_detail WHERE current_next = 3 ORDER BY tag";
    assert_eq!(session.column::<String>(cached), ["a", "b", "c", "d"]);
}

#[test]
fn six_tags_share_four_slots() {
    let server = Server::with_leaf_id(&[("leaf_id.max_tags", "4")]);
    let mut session = server.session();
    let tags = ["a", "b", "c", "d", "e", "f"];
    for tag in tags {
        session.create_tag(tag);
    }
    let seed: u64 = random().random();
    let drawn = in_threads(6, |i| {
        let mut random = StdRng::seed_from_u64(seed + i as u64);
        let mut session = server.session();
        let mut ids: HashMap<&str, Vec<i64>> = HashMap::new();
        for _ in 0..150 {
            // Its own tag mostly, so that all six stay in use.
            let tag = tags[if random.random_bool(0.7) {
                i
            } else {
                random.random_range(0..6)
            }];
            let count = random.random_range(1..20);
            ids.entry(tag).or_default().extend(session.take(tag, count));
        }
        ids
    });
    for tag in tags {
        assert_issued_once(drawn.iter().filter_map(|ids| ids.get(tag)));
    }
}

#[test]
fn tags_take_turns_on_one_slot() {
    let server = Server::with_leaf_id(&[("leaf_id.max_tags", "1")]);
    let mut session = server.session();
    session.create_tag("a");
    session.create_tag("b");
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for _ in 0..50 {
        a.push(session.next("a"));
        b.push(session.next("b"));
    }
    assert_issued_once(&[a]);
    assert_issued_once(&[b]);
}

#[test]
fn a_full_array_says_so_at_worst() {
    let server = Server::with_leaf_id(&[("leaf_id.max_tags", "1")]);
    let mut session = server.session();
    for tag in ["a", "b", "c"] {
        session.create_tag(tag);
    }
    let drawn = in_threads(3, |i| {
        let tag = ["a", "b", "c"][i];
        let mut session = server.session();
        let mut ids = Vec::new();
        let mut full = 0;
        while ids.len() < 100 {
            match session.try_next(tag) {
                Ok(id) => ids.push(id),
                Err(failure) => {
                    failure.is("54000").hints("leaf_id.max_tags");
                    full += 1;
                    assert!(full < 100_000, "tag {tag} starves");
                }
            }
        }
        println!("tag {tag} found no slot {full} times");
        ids
    });
    for ids in &drawn {
        assert_issued_once([ids]);
    }
}
