//! Would catch: a number that a rollback does not give back, or that a commit does; one that is
//! taken where the promise cannot be kept. Who waits for whom is in
//! pgrx-tests/isolation/specs/gapless.spec.

use leaf_id_tests::{Server, in_threads};

use super::{NEXT, last, next, server_and_session};

#[test]
fn they_count_committed_calls() {
    let (_server, mut session) = server_and_session(&[]);
    session.run(
        "SELECT leaf_gapless_create('other', 41);
         CREATE TABLE invoices (number bigint DEFAULT leaf_gapless_next('s'), item text)",
    );
    assert_eq!([next(&mut session), next(&mut session)], [1, 2]);
    assert_eq!(
        session.value::<i64>("SELECT leaf_gapless_next('other')"),
        41
    );
    // Several in one statement, as a default too, and in an aborted one.
    let ids = session.ids("SELECT leaf_gapless_next('s') FROM generate_series(1, 3)");
    assert_eq!(ids, [3, 4, 5]);
    let ids = session.ids("INSERT INTO invoices (item) VALUES ('a'), ('b') RETURNING number");
    assert_eq!(ids, [6, 7]);
    session
        .fails("SELECT leaf_gapless_next('s'), 1 / (leaf_gapless_next('s') - 9)")
        .is("22012");
    session.run("BEGIN; SELECT leaf_gapless_next('s'); ROLLBACK");
    assert_eq!(next(&mut session), 8);
    // A value that is taken and not stored is a hole in the table, as documented.
    session.run("CREATE UNIQUE INDEX ON invoices (item)");
    session.run("INSERT INTO invoices (item) VALUES ('a') ON CONFLICT DO NOTHING");
    assert_eq!((last(&mut session), next(&mut session)), (9, 10));
}

#[test]
fn savepoints_give_back_what_was_taken_since() {
    let (_server, mut session) = server_and_session(&[]);
    session.run("BEGIN");
    assert_eq!(next(&mut session), 1);
    session.run("SAVEPOINT a");
    assert_eq!(next(&mut session), 2);
    session.run("SAVEPOINT b");
    assert_eq!(next(&mut session), 3);
    session.run("ROLLBACK TO b");
    assert_eq!(next(&mut session), 3);
    session.run("RELEASE b; ROLLBACK TO a");
    assert_eq!(next(&mut session), 2);
    session.run("RELEASE a; COMMIT");
    let caught = "DO $$ BEGIN
            BEGIN PERFORM leaf_gapless_next('s'); RAISE division_by_zero;
            EXCEPTION WHEN division_by_zero THEN NULL; END;
            PERFORM leaf_gapless_next('s');
        END $$";
    session.run(caught);
    assert_eq!((last(&mut session), next(&mut session)), (3, 4));
}

#[test]
fn only_read_committed_transactions_take_one() {
    let (_server, mut session) = server_and_session(&[]);
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        session.run(&format!("BEGIN ISOLATION LEVEL {level}"));
        session.fails(NEXT).is("0A000").says("READ COMMITTED");
        session.run("ROLLBACK");
    }
    session.run("BEGIN ISOLATION LEVEL READ UNCOMMITTED; SELECT leaf_gapless_next('s'); COMMIT");
    session.run("BEGIN READ ONLY");
    session.fails(NEXT).is("25006");
    session.run("ROLLBACK");
    assert_eq!(next(&mut session), 2);
}

#[test]
fn a_transaction_that_has_one_cannot_be_prepared() {
    let (_server, mut session) = server_and_session(&[("max_prepared_transactions", "5")]);
    session.run("BEGIN; SELECT leaf_gapless_next('s')");
    session.fails("PREPARE TRANSACTION 'p'").is("0A000");
    for within in [
        "SAVEPOINT a; SELECT leaf_gapless_next('s'); RELEASE a",
        "SAVEPOINT a; SAVEPOINT b; SELECT leaf_gapless_next('s'); RELEASE b",
        "SELECT leaf_gapless_next('s'); SAVEPOINT a; SELECT leaf_gapless_next('s'); ROLLBACK TO a",
        "SAVEPOINT a; SELECT leaf_gapless_next('s'); SAVEPOINT b; SELECT leaf_gapless_next('s');
         ROLLBACK TO b; RELEASE a",
    ] {
        session.run(&format!("BEGIN; {within}"));
        session.fails("PREPARE TRANSACTION 'p'").is("0A000");
    }
    // One that has given its numbers back may, and one that had none.
    for within in [
        "SAVEPOINT a; SELECT leaf_gapless_next('s'); ROLLBACK TO a",
        "SAVEPOINT a; SAVEPOINT b; SELECT leaf_gapless_next('s'); RELEASE b; ROLLBACK TO a",
        "SELECT 1",
    ] {
        session.run(&format!("BEGIN; {within}; PREPARE TRANSACTION 'p'"));
        session.run("COMMIT PREPARED 'p'");
    }
    assert_eq!(next(&mut session), 1);
}

#[test]
fn what_is_wrong_is_told() {
    let (server, mut session) = server_and_session(&[]);
    for (sql, state) in [
        ("SELECT leaf_gapless_next('none')", "42704"),
        ("SELECT leaf_gapless_next('')", "42704"),
        ("SELECT leaf_gapless_next(repeat('x', 100000))", "42704"),
        ("SELECT leaf_gapless_create('s')", "23505"),
        ("SELECT leaf_gapless_create('')", "23514"),
        ("SELECT leaf_gapless_create(repeat('x', 129))", "23514"),
        ("SELECT leaf_gapless_create('t', 0)", "23514"),
        (
            "SELECT leaf_gapless_create('t', -9223372036854775808)",
            "23514",
        ),
        ("SELECT leaf_gapless_create(NULL)", "22004"),
        ("SELECT leaf_gapless_create('t', NULL)", "22004"),
        ("SELECT leaf_gapless_drop('none')", "42704"),
        ("SELECT leaf_gapless_drop(NULL)", "22004"),
    ] {
        session.fails(sql).is(state);
    }
    assert_eq!(
        session.column::<Option<i64>>("SELECT leaf_gapless_next(NULL)"),
        [None]
    );
    session.run("SELECT leaf_gapless_create('end', 9223372036854775806)");
    let end = "SELECT leaf_gapless_next('end')";
    assert_eq!(session.value::<i64>(end), 9_223_372_036_854_775_806);
    session.fails(end).is("2200H");
    session.run("SELECT leaf_gapless_drop('s'); SELECT leaf_gapless_create('s', 5)");
    assert_eq!(next(&mut session), 5);
    // A table that is not the extension's own shape is left alone.
    session.run("ALTER TABLE leaf_id.leaf_gapless ALTER last_number TYPE numeric");
    session.fails(NEXT).is("42804");
    session.run("ALTER TABLE leaf_id.leaf_gapless ALTER last_number TYPE bigint");
    assert_eq!(next(&mut server.session()), 6);
}

#[test]
fn two_series_in_one_order_are_no_deadlock() {
    let (server, mut session) = server_and_session(&[("deadlock_timeout", "100ms")]);
    session.run("SELECT leaf_gapless_create('t')");
    let failures = in_threads(4, |_| {
        let mut session = server.session();
        let both = "BEGIN; SELECT leaf_gapless_next('s'); SELECT leaf_gapless_next('t'); COMMIT";
        (0..100).filter(|_| session.try_run(both).is_err()).count()
    });
    assert_eq!(failures, [0; 4]);
    assert_eq!(next(&mut session), 401);
}

/// It needs no shared memory, so not to be preloaded either.
#[test]
fn it_works_where_the_library_is_not_preloaded() {
    let server = Server::with_leaf_id(&[("shared_preload_libraries", "")]);
    let mut session = server.session();
    session.run("SELECT leaf_gapless_create('s')");
    assert_eq!([next(&mut session), next(&mut session)], [1, 2]);
}
