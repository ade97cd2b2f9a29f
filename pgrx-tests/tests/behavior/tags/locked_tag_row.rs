//! Would catch: a session waiting for a locked row that neither a terminated connection nor a
//! shutdown ends (I5). Other effects of a locked row are tested in
//! pgrx-tests/isolation/specs/locked-row.spec.

use std::time::Duration;

use leaf_id_tests::{Disturbed, PROMPTLY, Server, Session, Stop, disturb_waiting, wait_until};

const LIMIT: Duration = Duration::from_secs(30);

/// A server whose tag t is locked by the first session; the second one has a long timeout.
fn locked() -> (Server, Session, Session) {
    let server = Server::with_leaf_id(&[]);
    let (mut holder, mut waiter) = (server.session(), server.session());
    holder.create_steady_tag("t", 10);
    assert_eq!(holder.next("t"), 1);
    holder.run("BEGIN; SELECT FROM leaf_id.leaf_alloc WHERE biz_tag = 't' FOR UPDATE");
    waiter.be_patient();
    (server, holder, waiter)
}

#[test]
fn a_session_that_waits_is_terminated() {
    let (server, _holder, mut waiter) = locked();
    for (terminated, statement) in (1..).zip([
        "SELECT leaf_segment_next_batch('t', 100)",
        "SELECT leaf_segment_next('t')",
        "SELECT leaf_segment_next_range('t', 5)",
    ]) {
        let Disturbed { result, took, .. } = disturb_waiting(&server, waiter, statement, |pid| {
            server
                .session()
                .run(&format!("SELECT pg_terminate_backend({pid})"));
        });
        println!("{statement} was terminated in {took:?}");
        result.unwrap_err().is_termination();
        assert!(took < PROMPTLY);
        assert_eq!(server.log().matches(" 57P01 FATAL:").count(), terminated);
        waiter = server.session();
        waiter.be_patient();
    }
}

#[test]
fn a_server_with_waiting_sessions_stops() {
    let (server, _holder, waiter) = locked();
    let statement = "SELECT leaf_segment_next_batch('t', 100)";
    let Disturbed { result, took, .. } =
        disturb_waiting(&server, waiter, statement, |_| server.stop(Stop::Fast));
    result.unwrap_err().is_termination();
    println!("it stopped in {took:?}");
    assert!(took < PROMPTLY);
}

/// Would catch: a DETAIL that blames the row, or names no holder, where the mark of the tag's name is
/// what is locked, or its table.
#[test]
fn the_holder_of_a_mark_is_named() {
    let server = Server::with_leaf_id(&[("max_prepared_transactions", "1")]);
    let (mut holder, mut session) = (server.session(), server.session());
    session.create_steady_tag("t", 10);
    session.next("t");
    session.wait_for_spare("t");
    let by = format!("is locked by process {}.", holder.pid());
    let mark = "The mark of the tag's name in leaf_id.leaf_high_mark";
    let row = "BEGIN; SELECT FROM leaf_id.leaf_high_mark WHERE tag = 't' FOR UPDATE";
    for (lock, what, by, unlock) in [
        (row, mark, by.as_str(), "COMMIT"),
        (
            "BEGIN; LOCK TABLE leaf_id.leaf_high_mark",
            "Table leaf_id.leaf_high_mark",
            &by,
            "COMMIT",
        ),
        (
            &format!("{row}; PREPARE TRANSACTION 'p'"),
            mark,
            "is locked by a prepared transaction.",
            "COMMIT PREPARED 'p'",
        ),
    ] {
        holder.run(lock);
        session.run("SET leaf_id.refill_timeout = '1s'");
        wait_until(LIMIT, "the end of the cached ids", || {
            session.try_next("t").is_err()
        });
        session
            .fails("SELECT leaf_segment_next('t')")
            .is("55P03")
            .details(&format!("{what} {by}"));
        holder.run(unlock);
        session.run("SET leaf_id.refill_timeout = '30s'");
        session.next("t");
        session.wait_for_spare("t");
    }
    // Its own lock ends the wait at once.
    session.run("BEGIN; SELECT FROM leaf_id.leaf_high_mark WHERE tag = 't' FOR UPDATE");
    let failure = (0..30).find_map(|_| session.try_next("t").err());
    failure
        .unwrap()
        .is("55000")
        .says("locked by this transaction");
}
