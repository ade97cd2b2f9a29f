//! Would catch: a call that cannot be canceled, and takes a whole processor, where more databases ask
//! for segments than there are queues.

use std::time::Duration;

use leaf_id_tests::{Server, promptly};

const QUEUES: usize = 1024;

#[test]
fn a_call_that_finds_no_queue_can_be_canceled() {
    let server = Server::with_leaf_id(&[
        ("fsync", "off"),
        ("max_wal_size", "1GB"),
        ("leaf_id.max_tags", "2000"),
    ]);
    server.allow(Duration::from_secs(600));
    server.session().create_tag("t");
    let mut other = server.session_in("template1");
    for n in 0..=QUEUES {
        other.run(&format!(
            "CREATE DATABASE d{n} TEMPLATE postgres STRATEGY file_copy"
        ));
    }
    let launcher = other.worker("launcher").unwrap();
    let paused = server.pause(launcher);
    // Who leaves, leaves a request behind.
    for n in 0..QUEUES {
        let mut session = server.session_in(&format!("d{n}"));
        session.run("SET statement_timeout = '20ms'");
        session.fails("SELECT leaf_segment_next('t')").is("57014");
    }
    let mut session = server.session_in(&format!("d{QUEUES}"));
    session.run("SET statement_timeout = '300ms'; SET leaf_id.refill_timeout = '60s'");
    promptly(|| session.fails("SELECT leaf_segment_next('t')")).is("57014");
    drop(paused);
    session.run("SET statement_timeout = '60s'");
    assert_eq!(session.next("t"), 1);
}
