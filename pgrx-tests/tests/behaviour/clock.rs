//! Would catch: snowflake ids that repeat or go back when the clock is set (I4, I7), at
//! rest, in full use, while the server is down or after a crash; a call that waits for an
//! hour, or does not say how far the clock is behind; and time that wraps at its end (I8).

use leaf_id_tests::{Server, timed};

/// PostgreSQL's own waits must be as long as they say, or these tests test something else.
#[test]
fn a_server_sees_the_clock_that_is_set_and_waits_by_the_real_one() {
    let server = Server::with_clock(-86_400_000, &[]);
    let clock = server.clock();
    let mut session = server.session();
    let mut shown =
        || session.value::<i64>("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint");
    for ahead_ms in [-86_400_000, 3_600_000, -7, 0, 1_700_000_000_000] {
        clock.set(ahead_ms);
        let (before, shown, after) = (clock.now_ms(), shown(), clock.now_ms());
        assert!(
            (before - 1..=after + 1).contains(&shown),
            "{before} {shown} {after}"
        );
    }
    clock.set(0);
    session.run("SET statement_timeout = '300ms'");
    let (failure, took) = timed(|| session.fails("SELECT pg_sleep(60)"));
    failure.is("57014");
    assert!((250..10_000).contains(&took.as_millis()), "{took:?}");
}
