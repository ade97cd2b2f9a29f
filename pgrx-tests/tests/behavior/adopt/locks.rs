//! Would catch: a sequence dropped while a transaction has taken values from it, or never dropped.
//! Lock waits of a move are tested in pgrx-tests/isolation/specs/adopt.spec.

use super::{assert_told, server};

#[test]
fn a_sequence_in_use_is_left_and_dropped_by_the_next_call() {
    let server = server();
    let mut session = server.session();
    session.run("CREATE TABLE t (id bigserial PRIMARY KEY, n int); INSERT INTO t (n) VALUES (1)");
    let mut taker = server.session();
    taker.run("BEGIN");
    let taken: i64 = taker.value("SELECT nextval('t_id_seq')");
    let details: String = session.value("SELECT details FROM leaf_adopt('t', 'id')");
    assert!(
        details.starts_with("sequence public.t_id_seq is being used, and stays for now"),
        "{details}"
    );
    taker.run(&format!("INSERT INTO t VALUES ({taken}, 0)"));
    taker.run("INSERT INTO t SELECT nextval('t_id_seq'), 0 FROM generate_series(1, 100); COMMIT");
    assert_eq!(
        session.ids("INSERT INTO t (n) VALUES (9) RETURNING id"),
        [1_000_003]
    );
    session.run("SELECT leaf_adopt('t', 'id')");
    assert_told(&server, "the former sequence");
    assert_eq!(
        session.ids("SELECT count(*) FROM pg_class WHERE relname = 't_id_seq'"),
        [0]
    );
}
