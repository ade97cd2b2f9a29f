//! Would catch: a session that runs out of memory, and takes the whole server along; and texts of
//! users that are copied at any length.

use leaf_id_tests::{Server, Session};

/// Limits the address space of a session to what it has, and this much more.
fn limit(admin: &mut Session, session: &mut Session, more_kb: u64) {
    let pid = session.pid();
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmSize:"));
    let size: u64 = line
        .unwrap()
        .split_whitespace()
        .nth(1)
        .unwrap()
        .parse()
        .unwrap();
    let limit = (size + more_kb) * 1024;
    // As the user that the server runs as.
    admin.run(&format!(
        "CREATE TEMP TABLE IF NOT EXISTS said (line text);
         COPY said FROM PROGRAM 'prlimit --pid {pid} --as={limit}'"
    ));
}

/// T2. Before: the first allocation of Rust that fails ends all sessions, and the server recovers.
#[test]
fn a_session_without_memory_ends_alone() {
    let server = Server::with_leaf_id(&[]);
    let mut other = server.session();
    let tags = "INSERT INTO leaf_id.leaf_alloc (biz_tag) SELECT 'tag ' || n FROM generate_series(1, 40000) n";
    for more_kb in (0..20).map(|step| step * 1024) {
        let mut session = server.session();
        // Everything is loaded that another session would load now.
        session
            .run("BEGIN; INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('first'); SAVEPOINT s");
        limit(&mut other, &mut session, more_kb);
        if let Err(failure) = session.try_run(tags) {
            println!("{more_kb} kB: {failure}");
            // The client may find the connection closed before it reads why.
            assert!(["53200", ""].contains(&&*failure.state), "{failure}");
            let _ = session.try_run("ROLLBACK");
        }
        // Not even a lock is left.
        other.run("SET lock_timeout = '5s'; BEGIN; INSERT INTO leaf_id.leaf_alloc (biz_tag) VALUES ('first'); ROLLBACK");
    }
    let log = server.log();
    assert!(
        log.contains("53200 FATAL:  out of memory"),
        "no allocation of Rust has failed"
    );
    assert!(!log.contains("terminating any other active server processes"));
}

/// Lengths are looked at before texts are copied.
#[test]
fn long_texts_are_not_copied() {
    let server = Server::with_leaf_id(&[]);
    let mut admin = server.session();
    let long = "repeat('x', 200000000)";
    for (call, state) in [
        (format!("leaf_parse({long}, '{{N}}')"), "22P02"),
        (format!("leaf_parse('1', {long})"), "22023"),
        (format!("leaf_format(1, {long})"), "22023"),
        (format!("leaf_id.leaf_gapless_next({long})"), "42704"),
        (format!("leaf_segment_next({long})"), "22023"),
        (format!("leaf_opaque_next({long})"), "22023"),
        (format!("leaf_ordered_next({long})"), "22023"),
        (format!("leaf_id.leaf_opaque_encode({long}, 1)"), "22023"),
        (
            format!("leaf_id_internal.leaf_make_key('k', 1000, {long})"),
            "22023",
        ),
        (format!("leaf_snowflake_decode(1, 0, {long})"), "22023"),
    ] {
        let mut session = server.session();
        // The argument, once more where it is compressed or shown, and no third time.
        let _ = session.try_run(&format!("SELECT {call}"));
        limit(&mut admin, &mut session, 450_000);
        let failure = session.fails(&format!("SELECT {call}"));
        println!("{failure}");
        failure.is(state);
        assert!(
            failure.message.len() < 2000,
            "{} bytes",
            failure.message.len()
        );
        session.run("SELECT 1");
    }
}
