//! Would catch: ids issued by a hot standby, whose claims are somebody else's, and a
//! standby that does not begin to issue when it is promoted.

use std::time::Duration;

use leaf_id_tests::{Server, Stop, wait_until};

#[test]
fn a_standby_issues_nothing_until_it_is_promoted() {
    let server = Server::with_leaf_id(&[("leaf_id.worker_id", "1")]);
    let mut session = server.session();
    session.run("SELECT leaf_tag_create('t', step => 10)");
    let last = *session.take("t", 100).last().unwrap();
    let last_snowflake: i64 = session.value("SELECT leaf_snowflake_next()");
    drop(session);
    server.stop(Stop::Fast);
    let signal = server.data_dir().join("standby.signal");
    std::fs::write(&signal, "").unwrap();
    server.give(&signal);
    server.launch();

    let mut session = server.session();
    session
        .fails("SELECT leaf_segment_next('t')")
        .is("25006")
        .says("recovery");
    session
        .fails("SELECT leaf_segment_next_batch('t', 3)")
        .is("25006");
    session.run("SELECT * FROM leaf_segment_status; SELECT * FROM leaf_snowflake_status");
    session.run("SELECT pg_promote()");
    wait_until(Duration::from_secs(60), "the promotion", || {
        !session.value::<bool>("SELECT pg_is_in_recovery()")
    });
    // The session that was refused before is served now.
    assert!(session.next("t") > last);
    wait_until(
        Duration::from_secs(30),
        "the end of the reservation",
        || {
            session
                .try_column::<i64>("SELECT leaf_snowflake_next()")
                .is_ok_and(|ids| ids[0] > last_snowflake)
        },
    );
}
