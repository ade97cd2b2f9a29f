//! Would catch: a sequence dropped while a transaction has taken values from it. Lock waits of a move
//! are tested in pgrx-tests/isolation/specs/adopt.spec.

use super::server;

#[test]
fn a_sequence_in_use_is_waited_for() {
    let server = server();
    let mut session = server.session();
    session.run("CREATE TABLE t (id bigserial PRIMARY KEY, n int); INSERT INTO t (n) VALUES (1)");
    let mut taker = server.session();
    taker.run("BEGIN");
    let taken: i64 = taker.value("SELECT nextval('t_id_seq')");
    let pid: i64 = taker.value("SELECT pg_backend_pid()::bigint");
    session.run("SET lock_timeout = '20ms'");
    session
        .fails("SELECT leaf_adopt('t', 'id')")
        .is("55P03")
        .details(&format!("process {pid}"));
    taker.run(&format!("INSERT INTO t VALUES ({taken}, 0); COMMIT"));
    session.run("SELECT leaf_adopt('t', 'id')");
    assert_eq!(
        session.ids("INSERT INTO t (n) VALUES (9) RETURNING id"),
        [3]
    );
    assert_eq!(
        session.ids("SELECT count(*) FROM pg_class WHERE relname = 't_id_seq'"),
        [0]
    );
}
