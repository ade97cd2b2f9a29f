//! Would catch: a pointer into PostgreSQL's caches that is used after a catalog lookup, in which an
//! invalidation may have freed what it points to. Only in builds with assertions: they can discard
//! all caches whenever an invalidation might come, and they overwrite what is freed.

use std::time::Duration;

use leaf_id_tests::{Server, wait_until};

use super::memory::{CRASH, IDS, SETUP, STATEMENTS, lease};

const LIMIT: Duration = Duration::from_secs(1800);

#[test]
fn every_cache_may_be_discarded_at_any_time() {
    let server = Server::with_leaf_id(&[("leaf_id.worker_id", "1")]);
    server.allow(LIMIT);
    let mut session = server.session();
    if session.value::<String>("SHOW debug_assertions") == "off" {
        println!("SKIPPED: PostgreSQL has no assertions, so no cache is discarded");
        return;
    }
    session.be_patient();
    session.run(SETUP);
    session.run("SET debug_discard_caches = 1; SET statement_timeout = 0");
    let ids = IDS.iter().map(|(_, statement)| *statement);
    let lease = lease("node");
    let statements = ids.chain(STATEMENTS.iter().copied()).chain([&*lease]);
    for (number, statement) in statements.enumerate() {
        // Some are refused.
        if let Err(failure) = session.try_run(&statement.replace("{n}", &number.to_string())) {
            println!("{failure}");
            session.run("ROLLBACK");
        }
    }
    // The workers.
    server.set("debug_discard_caches", "1");
    let mut other = server.session();
    other.be_patient();
    other.run("SELECT leaf_tag_create('of workers', step => 1)");
    for _ in 0..5 {
        other.run("SELECT leaf_segment_next('of workers')");
    }
    wait_until(LIMIT, "a snowflake id", || {
        other.try_run("SELECT leaf_snowflake_next()").is_ok()
    });
    let log = server.log();
    assert!(!log.contains(CRASH), "{log}");
}
