//! What a call costs, in instructions, which are nearly the same on every x86 machine and in
//! every run. Would catch: a lock, an allocation, a copy, a guard or a slow look-up on the hot
//! path. `make bench` says what that is in time.

use leaf_id_tests::Server;

/// What is measured, and how many instructions it may take: what it took when it was
/// written, and a fifth for another compiler or libc.
struct Limit {
    what: &'static str,
    instructions: f64,
    /// Makes `:n` calls.
    statement: &'static str,
}

const LIMITS: [Limit; 6] = [
    Limit {
        what: "a segment id, constant tag",
        instructions: 54.0,
        statement: "SELECT count(leaf_segment_next('a')) FROM generate_series(1, :n)",
    },
    Limit {
        what: "a segment id, tag from a column",
        instructions: 355.0,
        statement: "SELECT count(leaf_segment_next(tag)) FROM (
            SELECT CASE i % 3 WHEN 0 THEN 'a' WHEN 1 THEN 'b' ELSE 'the_third_of_them' END AS tag
            FROM generate_series(1, :n) i OFFSET 0) tags",
    },
    Limit {
        what: "a segment id, one in each statement",
        instructions: 650.0,
        statement: "DO $$ DECLARE id bigint; BEGIN
            FOR i IN 1..:n LOOP EXECUTE 'SELECT leaf_segment_next(''a'')' INTO id; END LOOP;
            END $$",
    },
    Limit {
        what: "a segment id of a batch",
        instructions: 119.0,
        statement: "SELECT count(*) FROM leaf_segment_next_batch('a', :n)",
    },
    Limit {
        what: "a range",
        instructions: 1360.0,
        statement: "SELECT count(leaf_segment_next_range('a', 10)) FROM generate_series(1, :n)",
    },
    Limit {
        // With its share of new milliseconds: more of them where the machine is slow.
        what: "a snowflake id",
        instructions: 110.0,
        statement: "SELECT count(leaf_snowflake_next()) FROM generate_series(1, :n)",
    },
];

#[test]
#[cfg(target_arch = "x86_64")]
fn a_call_takes_no_more_instructions_than_it_did() {
    let functions = [
        "leaf_segment_next",
        "leaf_segment_next_batch_wrapper",
        "leaf_segment_next_range_wrapper",
        "leaf_snowflake_next",
    ];
    let Some(server) = Server::counting(&functions, &[("leaf_id.worker_id", "1")]) else {
        println!("SKIPPED: there is no valgrind here");
        eprintln!("SKIPPED: there is no valgrind here, so no instructions are counted");
        return;
    };
    let mut session = server.session();
    for tag in ["a", "b", "the_third_of_them"] {
        // So long that none is refilled meanwhile.
        session.run(&format!(
            "SELECT leaf_tag_create('{tag}', step => 100000000)"
        ));
        session.next(tag);
    }
    session.run("SELECT leaf_snowflake_next()");
    let mut costly = Vec::new();
    for limit in LIMITS {
        let count =
            server.instructions_per_call(|calls| limit.statement.replace(":n", &calls.to_string()));
        println!("{:>7.1} {}", count, limit.what);
        if count > limit.instructions {
            costly.push(format!(
                "{}: {count:.1}, limit {}",
                limit.what, limit.instructions
            ));
        }
    }
    assert!(costly.is_empty(), "{costly:#?}");
}
