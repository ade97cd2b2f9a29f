//! Would catch: a session waiting for a locked row that neither a terminated connection nor a
//! shutdown ends (I5). Other effects of a locked row are tested in
//! pgrx-tests/isolation/specs/locked-row.spec.

use leaf_id_tests::{Disturbed, PROMPTLY, Server, Session, Stop, disturb_waiting};

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
