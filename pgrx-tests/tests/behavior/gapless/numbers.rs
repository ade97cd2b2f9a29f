//! Would catch: a number issued, or a series edited, in a prepared transaction. Single-session behavior is tested in
//! pgrx-tests/sql/gapless.sql, lock waits in pgrx-tests/isolation/specs/gapless.spec.

use leaf_id_tests::{Server, in_threads};

use super::{next, server_and_session};

#[test]
fn a_transaction_that_has_one_cannot_be_prepared() {
    let (_server, mut session) = server_and_session(&[("max_prepared_transactions", "5")]);
    session.run("BEGIN; SELECT leaf_id.leaf_gapless_next('s')");
    session.fails("PREPARE TRANSACTION 'p'").is("0A000");
    for within in [
        "SAVEPOINT a; SELECT leaf_id.leaf_gapless_next('s'); RELEASE a",
        "SAVEPOINT a; SAVEPOINT b; SELECT leaf_id.leaf_gapless_next('s'); RELEASE b",
        "SELECT leaf_id.leaf_gapless_next('s'); SAVEPOINT a; SELECT leaf_id.leaf_gapless_next('s'); ROLLBACK TO a",
        "SAVEPOINT a; SELECT leaf_id.leaf_gapless_next('s'); SAVEPOINT b; SELECT leaf_id.leaf_gapless_next('s');
         ROLLBACK TO b; RELEASE a",
    ] {
        session.run(&format!("BEGIN; {within}"));
        session.fails("PREPARE TRANSACTION 'p'").is("0A000");
    }
    // It would also keep a series locked whose row it has changed, or forgotten.
    session.run(
        "SELECT leaf_id.leaf_gapless_create('gone'); SELECT leaf_id.leaf_gapless_drop('gone')",
    );
    for edit in [
        "SELECT leaf_id.leaf_gapless_create('new')",
        "SELECT leaf_id.leaf_gapless_drop('s')",
        "SELECT leaf_id.leaf_gapless_drop('gone', forget => true)",
        "UPDATE leaf_id.leaf_gapless SET series = 'other'",
        "UPDATE leaf_id.leaf_gapless SET last_number = 100",
        "TRUNCATE leaf_id.leaf_gapless",
        "INSERT INTO leaf_id.leaf_gapless_mark VALUES ('s', 1)",
    ] {
        session.run(&format!("BEGIN; {edit}"));
        session.fails("PREPARE TRANSACTION 'p'").is("0A000");
    }
    // Allowed if all numbers were rolled back, or none was taken.
    for within in [
        "SAVEPOINT a; SELECT leaf_id.leaf_gapless_next('s'); ROLLBACK TO a",
        "SAVEPOINT a; SAVEPOINT b; SELECT leaf_id.leaf_gapless_next('s'); RELEASE b; ROLLBACK TO a",
        "SAVEPOINT a; SELECT leaf_id.leaf_gapless_create('new'); ROLLBACK TO a",
        "SELECT 1",
    ] {
        session.run(&format!("BEGIN; {within}; PREPARE TRANSACTION 'p'"));
        session.run("COMMIT PREPARED 'p'");
    }
    assert_eq!(next(&mut session), 1);
}

#[test]
fn two_series_in_one_order_are_no_deadlock() {
    let (server, mut session) = server_and_session(&[("deadlock_timeout", "100ms")]);
    session.run("SELECT leaf_id.leaf_gapless_create('t')");
    let failures = in_threads(4, |_| {
        let mut session = server.session();
        let both = "BEGIN; SELECT leaf_id.leaf_gapless_next('s'); SELECT leaf_id.leaf_gapless_next('t'); COMMIT";
        (0..100).filter(|_| session.try_run(both).is_err()).count()
    });
    assert_eq!(failures, [0; 4]);
    assert_eq!(next(&mut session), 401);
}

/// Works without shared memory, so without preloading.
#[test]
fn it_works_where_the_library_is_not_preloaded() {
    let server = Server::with_leaf_id(&[("shared_preload_libraries", "")]);
    let mut session = server.session();
    session.run("SELECT leaf_id.leaf_gapless_create('s')");
    assert_eq!([next(&mut session), next(&mut session)], [1, 2]);
}
