//! Would catch: an opaque id that comes twice, or in plain, by any way that issues ids; ids that tell
//! how many there are; and a decode that is not the inverse.

use std::fs;
use std::time::Duration;

use leaf_id_tests::{Server, in_threads, timed};

use super::{assert_distinct, assert_opaque, create, decoded};

const DOMAIN: usize = 1_000_000;
const SESSIONS: usize = 4;

/// How far counts are from being equal.
fn chi_squared(counts: &[u32]) -> f64 {
    let total: u32 = counts.iter().sum();
    let expected = f64::from(total) / counts.len() as f64;
    counts
        .iter()
        .map(|count| (f64::from(*count) - expected).powi(2) / expected)
        .sum()
}

#[test]
fn every_id_of_a_domain_is_issued_once() {
    let server = Server::with_leaf_id(&[]);
    create(&mut server.session(), "t", 50_000, ", max_value => 1000000");
    let taken = in_threads(SESSIONS, |_| {
        let mut session = server.session();
        session.be_patient();
        let share = DOMAIN / SESSIONS;
        session.ids(&format!("SELECT leaf_segment_next_batch('t', {share})"))
    });
    let mut session = server.session();
    session.fails("SELECT leaf_segment_next('t')").is("2200H");
    let mut gaps = [0; 100];
    for ids in &taken {
        for pair in ids.windows(2) {
            let gap = (pair[1] - pair[0]).rem_euclid(DOMAIN as i64) as usize;
            gaps[gap * gaps.len() / DOMAIN] += 1;
        }
    }
    let chi_squared = chi_squared(&gaps);
    println!("chi-squared of 100 classes of gaps: {chi_squared:.1}, expected 99 +- 14");
    // Plain ids: a hundred million. A random permutation: less in all but one of 10^8 runs.
    assert!(chi_squared < 200.0, "{chi_squared}");
    let mut all = taken.concat();
    all.sort_unstable();
    assert!(all.into_iter().eq(1..=DOMAIN as i64));
}

#[test]
fn what_an_id_costs() {
    const IDS: u32 = 200_000;
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    create(&mut session, "opaque", 1_000_000, "");
    session.run("SELECT leaf_tag_create('plain', step => 1000000)");
    let mut cost = |sql: &str| {
        let sql = format!("SELECT count({sql}) FROM generate_series(1, {IDS}) i");
        session.run(&sql);
        let ((), took) = timed(|| session.run(&sql));
        took / IDS
    };
    let nothing = cost("i");
    let plain = cost("leaf_segment_next('plain')").saturating_sub(nothing);
    let opaque = cost("leaf_segment_next('opaque')").saturating_sub(nothing);
    let encoded = cost("leaf_opaque_encode('opaque', i)").saturating_sub(nothing);
    println!("plain {plain:?} an id, opaque {opaque:?}, leaf_opaque_encode {encoded:?}");
    assert!(opaque < Duration::from_micros(50), "{opaque:?}");
}

#[test]
fn every_way_to_an_id_is_opaque() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    create(&mut session, "t", 100, "");
    session.run("CREATE TABLE t (id bigint PRIMARY KEY DEFAULT leaf_segment_next('t'), i int)");
    // The first call of a session, a constant and a variable, a batch over several segments.
    let mut ids = vec![session.next("t"), session.next("t")];
    ids.extend(session.ids("SELECT leaf_segment_next('t') FROM generate_series(1, 150)"));
    ids.extend(session.ids(
        "SELECT leaf_segment_next(tag) FROM (VALUES ('t'), ('t')) v (tag), generate_series(1, 30)",
    ));
    ids.extend(session.ids("SELECT leaf_segment_next_batch('t', 500)"));
    for _ in 0..3 {
        ids.extend(session.ids("INSERT INTO t DEFAULT VALUES RETURNING id"));
    }
    let rows: String = (1..=300).map(|row| format!("{row}\n")).collect();
    let file = server.dir().join("rows");
    fs::write(&file, rows).unwrap();
    session.run(&format!("TRUNCATE t; COPY t (i) FROM '{}'", file.display()));
    ids.extend(session.ids("SELECT id FROM t ORDER BY i"));
    // In parallel workers, which have the key to find too.
    session.run(
        "CREATE TABLE many AS SELECT i FROM generate_series(1, 20000) i;
         SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0",
    );
    let plan: Vec<String> = session.column("EXPLAIN SELECT leaf_segment_next('t') FROM many");
    assert!(
        plan.iter().any(|line| line.contains("Parallel")),
        "{plan:?}"
    );
    let parallel = session.ids("SELECT leaf_segment_next('t') FROM many");
    assert_distinct(&[ids.as_slice(), &parallel].concat());
    let numbers = decoded(&mut session, "t", &parallel);
    assert!(numbers.iter().all(|number| *number < 1_000_000));
    // Rolled back, they are a gap.
    session.run("BEGIN");
    ids.push(session.next("t"));
    session.run("ROLLBACK");
    ids.extend(session.take("t", 3));
    assert_opaque(&mut session, "t", &ids);
    assert!(ids.iter().all(|id| (1..1 << 53).contains(id)));
    // Two of 1,250 ids below 2^40, of 2^53, would be one in four million.
    let small = ids.iter().filter(|id| **id < 1 << 40).count();
    assert!(small < 10, "{small} small ids");
    let numbers = decoded(&mut session, "t", &ids);
    let encoded = session
        .query_one(
            "SELECT array_agg(leaf_opaque_encode('t', n) ORDER BY i) FROM unnest($1::bigint[]) WITH ORDINALITY u (n, i)",
            &[&numbers],
        )
        .unwrap();
    assert!(encoded.get::<_, Vec<i64>>(0) == ids);
}

#[test]
fn ids_of_the_transaction_that_creates_the_tag() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.run("BEGIN");
    create(&mut session, "t", 100, ", start => 1000");
    let mut ids = session.take("t", 5);
    session.run("SAVEPOINT s");
    ids.push(session.next("t"));
    session.run("ROLLBACK TO s");
    ids.push(session.next("t"));
    session.run("COMMIT");
    ids.extend(server.session().take("t", 5));
    ids.extend(session.take("t", 5));
    assert_opaque(&mut session, "t", &ids);
    assert_eq!(decoded(&mut session, "t", &ids[..1]), [1000]);
    // Of one that is not created after all, nothing is left.
    session.run("BEGIN");
    create(&mut session, "gone", 100, "");
    session.take("gone", 5);
    session.run("ROLLBACK");
    let keys: i64 = session.value("SELECT count(*) FROM leaf_id.leaf_opaque_key");
    assert_eq!(keys, 1);
}
