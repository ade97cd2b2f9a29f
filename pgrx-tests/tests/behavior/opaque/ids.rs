//! Would catch: an opaque id issued twice, or a number of an opaque tag issued as an id, by any
//! function that issues ids; ids that reveal how many there are; and a decode that is not the
//! inverse.

use std::fs;

use leaf_id_tests::{Server, Session, in_threads};

use super::{assert_distinct, assert_opaque, create, decoded, take};

const DOMAIN: usize = 1_000_000;
const SESSIONS: usize = 4;

/// Chi-squared statistic of counts that should be equal.
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
        // Less than a quarter: two sessions that switch segments at once lose a number.
        take(
            &mut session,
            "t",
            i32::try_from(DOMAIN / SESSIONS).unwrap() - 500,
        )
    });
    let mut session = server.session();
    let mut rest = Vec::new();
    let end = loop {
        match session.try_column::<i64>("SELECT leaf_opaque_next('t')") {
            Ok(ids) => rest.extend(ids),
            Err(failure) => break failure,
        }
    };
    end.is("2200H");
    let lost = session.figure("t", "ids_lost");
    // Numbers that are not used for ids reach the end, too.
    session.run("UPDATE leaf_id.leaf_alloc SET max_value = 2000000");
    session.fails("SELECT leaf_opaque_next('t')").is("2200H");
    let mut gaps = [0; 100];
    for ids in &taken {
        for pair in ids.windows(2) {
            let gap = (pair[1] - pair[0]).rem_euclid(DOMAIN as i64) as usize;
            gaps[gap * gaps.len() / DOMAIN] += 1;
        }
    }
    let chi_squared = chi_squared(&gaps);
    println!("chi-squared of 100 classes of gaps: {chi_squared:.1}, expected 99 +- 14");
    // Plain ids: a hundred million. A random permutation: above the limit in one of 10^8 runs.
    assert!(chi_squared < 200.0, "{chi_squared}");
    let all = [taken.concat(), rest].concat();
    println!("{lost} numbers were lost");
    assert_distinct(&all);
    assert!(all.iter().all(|id| (1..=DOMAIN as i64).contains(id)));
    assert_eq!(all.len() as i64 + lost, DOMAIN as i64);
}

#[test]
fn every_way_to_an_id_is_opaque() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    create(&mut session, "t", 100, "");
    session.run("CREATE TABLE t (id bigint PRIMARY KEY DEFAULT leaf_opaque_next('t'), i int)");
    // The first call of a session, a constant, and a variable.
    let mut ids = [take(&mut session, "t", 1), take(&mut session, "t", 150)].concat();
    ids.extend(session.ids(
        "SELECT leaf_opaque_next(tag) FROM (VALUES ('t'), ('t')) v (tag), generate_series(1, 30)",
    ));
    for _ in 0..3 {
        ids.extend(session.ids("INSERT INTO t DEFAULT VALUES RETURNING id"));
    }
    let rows: String = (1..=300).map(|row| format!("{row}\n")).collect();
    let file = server.dir().join("rows");
    fs::write(&file, rows).unwrap();
    session.run(&format!("TRUNCATE t; COPY t (i) FROM '{}'", file.display()));
    ids.extend(session.ids("SELECT id FROM t ORDER BY i"));
    // In parallel workers, which have to look up the key, too.
    session.run(
        "CREATE TABLE many AS SELECT i FROM generate_series(1, 20000) i;
         SET parallel_setup_cost = 0; SET parallel_tuple_cost = 0; SET min_parallel_table_scan_size = 0",
    );
    let plan: Vec<String> = session.column("EXPLAIN SELECT leaf_opaque_next('t') FROM many");
    assert!(
        plan.iter().any(|line| line.contains("Parallel")),
        "{plan:?}"
    );
    let parallel = session.ids("SELECT leaf_opaque_next('t') FROM many");
    assert_distinct(&[ids.as_slice(), &parallel].concat());
    let numbers = decoded(&mut session, "t", &parallel);
    assert!(numbers.iter().all(|number| *number < 1_000_000));
    // Rolled back ids become a gap.
    session.run("BEGIN");
    ids.extend(take(&mut session, "t", 1));
    session.run("ROLLBACK");
    ids.extend(take(&mut session, "t", 3));
    assert_opaque(&mut session, "t", &ids);
    assert!(ids.iter().all(|id| (1..1 << 53).contains(id)));
    // Two of 500 ids below 2^40, out of 2^53, would be one in a million.
    let small = ids.iter().filter(|id| **id < 1 << 40).count();
    assert!(small < 5, "{small} small ids");
    let numbers = decoded(&mut session, "t", &ids);
    let encoded = session
        .query_one(
            "SELECT array_agg(leaf_id.leaf_opaque_encode('t', n) ORDER BY i) FROM unnest($1::bigint[]) WITH ORDINALITY u (n, i)",
            &[&numbers],
        )
        .unwrap();
    assert!(encoded.get::<_, Vec<i64>>(0) == ids);
}

/// All ways to request a plain number of t.
const RAW: [&str; 7] = [
    "SELECT leaf_segment_next('t')",
    "SELECT leaf_ordered_next('t')",
    "SELECT leaf_segment_next(tag) FROM (VALUES ('t'), ('t')) v (tag)",
    "SELECT leaf_segment_next_batch('t', 3)",
    "SELECT leaf_segment_next_range('t', 3)",
    "INSERT INTO raw DEFAULT VALUES",
    "COPY raw (i) FROM PROGRAM 'seq 1 300'",
];

#[track_caller]
fn assert_no_numbers(session: &mut Session, when: &str) {
    for call in RAW {
        println!("{when}: {call}");
        session
            .fails(call)
            .is("42809")
            .says("the ids of tag \"t\" are opaque")
            .hints("leaf_opaque_next()");
    }
}

/// A number may be another number's id.
#[test]
fn a_number_is_no_id_in_any_state_of_its_tag() {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    let mut other = server.session();
    session.run("CREATE TABLE raw (id bigint DEFAULT leaf_segment_next('t'), i int)");
    // Both sessions have used the name for a plain tag.
    session.run("SELECT leaf_tag_create('t')");
    session.run("COPY raw (i) FROM PROGRAM 'seq 1 300'");
    other.take("t", 5);
    // Its numbers may be in use as ids.
    session.run("SELECT leaf_tag_drop('t', force => true)");
    session
        .fails("SELECT leaf_id.leaf_opaque_create('t')")
        .is("55000");
    session.run("SELECT leaf_tag_drop('t', forget => true)");
    create(&mut session, "t", 100, "");
    let claim = "SELECT token FROM ts_parse('leaf_id.leaf_claim', json_build_object('version', 1, 'tag', 't', 'n', 10)::text)";
    let mut used = Vec::new();
    for round in 1..=2 {
        assert_no_numbers(&mut session, "unused");
        assert_no_numbers(&mut other, "unused");
        session.fails(claim).is("42809");
        used.extend(take(&mut session, "t", 130));
        assert_no_numbers(&mut session, "used");
        assert_no_numbers(&mut other, "used");
        assert_no_numbers(&mut server.session(), "used");
        session.fails(claim).is("42809");
        match round {
            1 => server.restart(),
            _ => server.crash(),
        }
        (session, other) = (server.session(), server.session());
        assert_no_numbers(&mut session, "after a restart");
        used.extend(take(&mut other, "t", 130));
        assert_no_numbers(&mut other, "used after a restart");
        assert_opaque(&mut session, "t", &used);
    }
    // No ids in the transaction that creates or edits the tag, either.
    for edit in [
        "SELECT leaf_tag_reset('t', 5000)",
        "SELECT leaf_tag_drop('t', force => true), leaf_tag_create('t', start => 5000)",
    ] {
        for call in RAW.into_iter().chain([claim]) {
            session.run(&format!("BEGIN; {edit}"));
            let failure = session.fails(call);
            assert!(
                ["42809", "25001", "55000"].contains(&&*failure.state),
                "{failure}"
            );
            session.run("ROLLBACK");
        }
        session.run(&format!("BEGIN; {edit}"));
        session
            .fails("SELECT leaf_opaque_next('t')")
            .is("55000")
            .hints("ommit");
        session.run("ROLLBACK");
    }
    session.run("BEGIN; SELECT leaf_id.leaf_opaque_create('new')");
    session.fails("SELECT leaf_opaque_next('new')").is("55000");
    session.run("ROLLBACK");
    // Edited without notification: another row, and a name that has a key by now.
    session.run("SELECT leaf_tag_create('quiet', step => 10, max_step => 10)");
    other.take("quiet", 3);
    session.run(
        "ALTER TABLE leaf_id.leaf_alloc DISABLE TRIGGER USER;
         BEGIN;
         INSERT INTO leaf_id.leaf_opaque_key SELECT 'quiet', last, key FROM leaf_id.leaf_opaque_key;
         UPDATE leaf_id.leaf_alloc SET incarnation = 77, max_id = 5000 WHERE biz_tag = 'quiet';
         COMMIT",
    );
    let numbers: Vec<i64> = (0..50)
        .map_while(|_| other.try_next("quiet").ok())
        .collect();
    assert!(numbers.iter().all(|number| *number < 5000), "{numbers:?}");
    other.fails("SELECT leaf_segment_next('quiet')").is("42809");
}
