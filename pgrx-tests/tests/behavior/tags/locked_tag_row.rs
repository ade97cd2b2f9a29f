//! Would catch: a DBA's row lock that stops the whole server, a wait that nothing can end
//! (I5), and an error that does not say who is in the way.

use std::time::Duration;

use leaf_id_tests::{
    Disturbed, Failure, PROMPTLY, Server, Session, Stop, assert_issued_once, disturb_waiting,
    promptly, timed,
};
use postgres::NoTls;

const LOCK: &str = "BEGIN; SELECT FROM leaf_id.leaf_alloc WHERE biz_tag = 't' FOR UPDATE";

/// A server with the tags t and u, whose segments are 10 long. One id of t is in use.
fn server_with_t_and_u() -> Server {
    let server = Server::with_leaf_id(&[]);
    let mut session = server.session();
    session.create_steady_tag("t", 10);
    session.create_steady_tag("u", 10);
    assert_eq!(session.next("t"), 1);
    server
}

/// Takes what is cached of t, and how the call after the last cached id failed.
fn drain(session: &mut Session) -> (Vec<i64>, Failure) {
    let mut ids = Vec::new();
    for _ in 0..100 {
        match session.try_next("t") {
            Ok(id) => ids.push(id),
            Err(failure) => return (ids, failure),
        }
    }
    panic!("ids were claimed past the lock: {ids:?}")
}

#[test]
fn sessions_go_on_with_what_is_cached_and_then_say_who_holds_the_row() {
    let server = server_with_t_and_u();
    let (mut holder, mut session) = (server.session(), server.session());
    let pid = holder.pid();
    holder.run(LOCK);
    session.run("SET leaf_id.refill_timeout = '700ms'");
    let (cached, failure) = drain(&mut session);
    println!("{} ids were cached; then {failure}", cached.len());
    // The rest of the segment in use, at the least.
    assert!((9..=19).contains(&cached.len()));
    failure
        .is("55P03")
        .says("\"t\"")
        .says("700 ms")
        .details(&pid.to_string());
    assert_ne!(failure.hint, "");

    let (again, took) = timed(|| session.try_next("t"));
    again.unwrap_err().is("55P03").details(&pid.to_string());
    assert!(
        took >= Duration::from_millis(600) && took < PROMPTLY,
        "{took:?}"
    );

    holder.run("COMMIT");
    session.run("RESET leaf_id.refill_timeout");
    let (after, took) = timed(|| session.next("t"));
    println!("the next id came {took:?} after the lock was gone");
    assert_issued_once(&[vec![1], [cached, vec![after]].concat()]);
}

#[test]
fn a_waiting_session_goes_on_when_the_lock_is_gone() {
    let server = server_with_t_and_u();
    let (mut holder, mut waiter) = (server.session(), server.session());
    holder.run(LOCK);
    waiter.be_patient();
    let statement = "SELECT leaf_segment_next_batch('t', 100)";
    let Disturbed { result, took, .. } =
        disturb_waiting(&server, waiter, statement, |_| holder.run("COMMIT"));
    println!("it took {took:?} from the end of the lock");
    result.unwrap();
}

#[test]
fn no_other_tag_is_held_up() {
    let server = server_with_t_and_u();
    let (mut holder, mut waiter, mut other) =
        (server.session(), server.session(), server.session());
    holder.run(LOCK);
    waiter.be_patient();
    let statement = "SELECT leaf_segment_next_batch('t', 100)";
    let Disturbed { result, .. } = disturb_waiting(&server, waiter, statement, |_| {
        other.be_patient();
        for _ in 0..1000 {
            promptly(|| other.next("u"));
        }
        holder.run("ROLLBACK");
    });
    result.unwrap();
}

#[test]
fn a_wait_can_be_canceled() {
    let server = server_with_t_and_u();
    let mut holder = server.session();
    holder.run(LOCK);
    for (terminated, statement) in (1..).zip([
        "SELECT leaf_segment_next_batch('t', 100)",
        "SELECT leaf_segment_next('t')",
        "SELECT leaf_segment_next_range('t', 5)",
    ]) {
        let patient = || {
            let mut session = server.session();
            session.be_patient();
            session
        };
        let session = patient();
        let token = session.cancel_token();
        let Disturbed { result, took, .. } = disturb_waiting(&server, session, statement, |_| {
            token.cancel_query(NoTls).unwrap();
        });
        println!("{statement} was canceled in {took:?}");
        result.unwrap_err().is("57014");
        assert!(took < PROMPTLY);

        let Disturbed { result, took, .. } =
            disturb_waiting(&server, patient(), statement, |pid| {
                server
                    .session()
                    .run(&format!("SELECT pg_terminate_backend({pid})"));
            });
        println!("{statement} was terminated in {took:?}");
        result.unwrap_err().is_termination();
        assert!(took < PROMPTLY);
        assert_eq!(server.log().matches(" 57P01 FATAL:").count(), terminated);

        let mut session = patient();
        session.run("SET statement_timeout = '300ms'");
        let (failure, took) = timed(|| session.fails(statement));
        println!("{statement} timed out in {took:?}");
        failure.is("57014");
        assert!(took < PROMPTLY);
    }
}

#[test]
fn a_server_with_waiting_sessions_stops() {
    let server = server_with_t_and_u();
    let mut holder = server.session();
    holder.run(LOCK);
    let mut waiter = server.session();
    waiter.be_patient();
    let statement = "SELECT leaf_segment_next_batch('t', 100)";
    let Disturbed { result, took, .. } =
        disturb_waiting(&server, waiter, statement, |_| server.stop(Stop::Fast));
    result.unwrap_err().is_termination();
    println!("it stopped in {took:?}");
    assert!(took < PROMPTLY);
}

#[test]
fn an_uncommitted_edit_of_another_session_is_waited_for() {
    let server = server_with_t_and_u();
    let (mut editor, mut session) = (server.session(), server.session());
    let pid = editor.pid();
    editor.run("BEGIN; UPDATE leaf_id.leaf_alloc SET description = 'x' WHERE biz_tag = 't'");
    session.run("SET leaf_id.refill_timeout = '500ms'");
    let (cached, failure) = drain(&mut session);
    failure.is("55P03").details(&pid.to_string());
    editor.run("COMMIT");
    session.run("RESET leaf_id.refill_timeout");
    assert!(session.next("t") > *cached.last().unwrap());
}

#[test]
fn a_locked_table_is_an_error_in_time_and_leaves_cached_ids_alone() {
    let server = server_with_t_and_u();
    let (mut holder, mut user, mut newcomer) =
        (server.session(), server.session(), server.session());
    let mut last = user.next("t");
    holder.run("BEGIN; LOCK TABLE leaf_id.leaf_alloc IN ACCESS EXCLUSIVE MODE");
    for _ in 0..5 {
        let id = user.next("t");
        assert!(id > last);
        last = id;
    }
    // u has no slot yet: its row cannot be looked at.
    for session in [&mut user, &mut newcomer] {
        session.run("SET leaf_id.refill_timeout = '500ms'");
        let late = promptly(|| session.try_next("u")).unwrap_err();
        late.is("55P03");
    }
    holder.run("COMMIT");
    newcomer.run("RESET leaf_id.refill_timeout");
    assert_eq!(newcomer.next("u"), 1);
}

#[test]
fn a_transaction_that_locks_the_row_itself_is_told_so() {
    let server = server_with_t_and_u();
    let mut session = server.session();
    session.run(LOCK);
    let (cached, failure) = drain(&mut session);
    failure.is("55000");
    assert_ne!(failure.hint, "");
    session.run("ROLLBACK");
    assert!(session.next("t") > *cached.last().unwrap());
}

/// REINDEX leaves the table open to readers, and its index to nobody.
#[test]
fn a_reindexed_table_is_an_error_in_time() {
    let server = server_with_t_and_u();
    let (mut holder, mut session) = (server.session(), server.session());
    session.run("SELECT leaf_tag_create('new'); SET leaf_id.refill_timeout = '300ms'");
    holder.run("BEGIN; REINDEX TABLE leaf_id.leaf_alloc");
    session.try_next("new").unwrap_err().is("55P03");
    holder.run("COMMIT");
    assert_eq!(session.next("new"), 1);
}
