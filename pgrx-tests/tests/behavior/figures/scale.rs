//! What gives first in large installations: measurements without assertions, cited in docs/scale.md.
//!
//! `make test TESTS=figures::scale::NAME`

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leaf_id_tests::{Server, Session, call, in_threads_until, now_ms, tell, timed};

/// Sessions that call at the same time: those of members, between two of their requests.
const SESSIONS: usize = 8;
const TIME: Duration = Duration::from_secs(10);
const LIMIT: Duration = Duration::from_secs(3600);

/// Calls per second of [`SESSIONS`] sessions. `sql` returns a session's statement number `n`. A call
/// that has waited too long for a lock is refused and repeated, as a member does.
fn rate(server: &Server, sql: impl Fn(usize, usize) -> String + Sync) -> f64 {
    let start = Instant::now();
    let refused = AtomicUsize::new(0);
    let (counts, ()) = in_threads_until(
        SESSIONS,
        |number, done: &AtomicBool| {
            let mut session = server.session();
            let calls = (0..).take_while(|_| !done.load(Ordering::Relaxed));
            let call = |n| {
                while let Err(failure) = session.try_run(&sql(number, n)) {
                    failure.is("55P03");
                    refused.fetch_add(1, Ordering::Relaxed);
                }
            };
            calls.map(call).count()
        },
        || thread::sleep(TIME),
    );
    let refused = refused.into_inner();
    if refused > 0 {
        tell(&format!("{refused} calls had waited too long for a lock"));
    }
    counts.iter().sum::<usize>() as f64 / start.elapsed().as_secs_f64()
}

/// Some number below `below`, another one for each call.
fn scattered(session: usize, n: usize, below: usize) -> usize {
    (session * 7_919 + n * 104_729) % below
}

/// A message to the registry. Both tokens alternate, so the same message can be sent again. What is
/// held counts after a move only.
fn lease(server: usize) -> String {
    let now = now_ms();
    let message = format!(
        r#"{{"version": 1, "question": {{"token": 1, "next_token": 2,
                "held": {{"worker_id": {server}, "floor_ms": 0, "reserved_until_ms": 0}}}},
            "system_identifier": 1, "node_name": "n{server}", "now_ms": {now},
            "epoch_ms": 1288834974657, "layout": "41/14/8"}}"#
    );
    let call = call("leaf_worker_lease", &format!("'{message}'"));
    format!("SELECT 1 / strpos(token, 'Ok') FROM {call}")
}

/// A registry with this many servers.
fn registry(servers: usize) -> Server {
    let server = Server::with_leaf_id(&[("leaf_id.snowflake_layout", "41/14/8")]);
    let mut session = server.session();
    session.run("INSERT INTO leaf_id.leaf_registry (grant_ahead_ms, max_ids_per_role) VALUES (3600000, NULL)");
    session.run(&lease(0));
    session.run(&format!(
        "INSERT INTO leaf_id.leaf_worker (worker_id, system_identifier, node_name, role_name, token, leased_at,
             renewed_at, reserved_until_ms, floor_ms, clock_offset_ms)
         SELECT n, 1, 'n' || n, role_name, 1, leased_at, renewed_at, reserved_until_ms, floor_ms, clock_offset_ms
         FROM leaf_id.leaf_worker, generate_series(1, {servers} - 1) n"
    ));
    session.run("VACUUM ANALYZE leaf_id.leaf_worker");
    server
}

#[test]
#[ignore = "a figure, minutes long"]
fn a_registry_with_ten_thousand_servers() {
    for servers in [10, 100, 1_000, 10_000] {
        let server = registry(servers);
        let mut session = server.session();
        let renew = |session, n| lease(scattered(session, n, servers));
        let ((), took) = timed(|| (0..200).for_each(|n| session.run(&renew(0, n))));
        let rate_of_renewals = rate(&server, renew);
        // Moved here from elsewhere a moment ago.
        session.run("UPDATE leaf_id.leaf_registry SET timeline = 7");
        session.run(&renew(0, 0));
        let rate_after_move = rate(&server, renew);
        tell(&format!(
            "{servers} servers: a renewal {:.1?}; {SESSIONS} sessions {rate_of_renewals:.0} a second, after a \
             failover {rate_after_move:.0}",
            took / 200
        ));
    }
}

fn claim(tag: &str) -> String {
    let message = format!(r#"'{{"version": 1, "tag": "{tag}", "n": 1000}}'"#);
    format!("SELECT FROM {}", call("leaf_claim", &message))
}

#[test]
#[ignore = "a figure, a minute long"]
fn a_central_server_of_a_thousand_members() {
    let server = Server::with_leaf_id(&[("max_connections", "1200")]);
    let mut session = server.session();
    session.run("SELECT leaf_tag_create('t' || n) FROM generate_series(0, 99) n");
    for tags in [1, 10, 100] {
        let claims = rate(&server, |session, n| {
            claim(&format!("t{}", scattered(session, n, tags)))
        });
        tell(&format!(
            "{SESSIONS} sessions, {tags} tags: {claims:.0} claims a second"
        ));
    }
    // Each on a connection of its own, as after a failover.
    let reconnecting = rate(&server, |session, n| {
        server
            .session()
            .run(&claim(&format!("t{}", scattered(session, n, 100))));
        "SELECT".into()
    });
    tell(&format!(
        "{SESSIONS} sessions, 100 tags, a connection for each: {reconnecting:.0} claims a second"
    ));
    let ((), took) = timed(|| {
        let mut members: Vec<_> = (0..1_000).map(|_| server.session()).collect();
        for (n, member) in members.iter_mut().enumerate() {
            member.run(&claim(&format!("t{}", n % 100)));
        }
    });
    tell(&format!(
        "a thousand members connect, each claims once, one after the other: {took:.1?}"
    ));
}

fn sizes(session: &mut Session) -> String {
    session.value(
        "SELECT string_agg(format('%s %s, its indexes %s', t, pg_size_pretty(pg_relation_size(t)),
             pg_size_pretty(pg_indexes_size(t))), '; ')
         FROM unnest('{leaf_id.leaf_alloc,leaf_id.leaf_high_mark}'::regclass[]) t",
    )
}

/// `LEAF_ID_CLAIMS` in place of the default.
#[test]
#[ignore = "a figure, an hour long"]
fn ten_million_claims() {
    let claims: usize = std::env::var("LEAF_ID_CLAIMS").map_or(10_000_000, |n| n.parse().unwrap());
    let server = Server::with_leaf_id(&[
        ("fsync", "off"),
        ("max_wal_size", "4GB"),
        ("autovacuum_naptime", "5s"),
    ]);
    server.allow(4 * LIMIT);
    let mut session = server.session();
    session.run("SELECT leaf_tag_create('t' || n, step => 1) FROM generate_series(0, 99) n");
    tell(&format!("before: {}", sizes(&mut session)));
    let mut made = 0;
    while made < claims {
        let start = Instant::now();
        let rate = rate(&server, |session, n| {
            claim(&format!("t{}", scattered(session, n, 100)))
        });
        made += (rate * start.elapsed().as_secs_f64()) as usize;
    }
    let vacuums: i64 = session.value(
        "SELECT sum(autovacuum_count)::bigint FROM pg_stat_all_tables WHERE schemaname = 'leaf_id'",
    );
    tell(&format!(
        "after {made} claims of 100 tags: {}; {vacuums} autovacuums",
        sizes(&mut session)
    ));
}

/// Minutes that the old snapshot is held.
const OLD_MINUTES: u64 = 10;

/// Seconds of 500 calls.
fn seconds(session: &mut Session, sql: &str) -> f64 {
    timed(|| (0..500).for_each(|_| session.run(sql)))
        .1
        .as_secs_f64()
}

/// Under a snapshot held for ten minutes, and 50,000 claims and numbers.
#[test]
#[ignore = "a figure, half an hour long"]
fn an_old_snapshot() {
    for (what, setup, sql) in [
        ("claims", "SELECT leaf_tag_create('t')", claim("t")),
        (
            "gapless numbers",
            "SELECT leaf_id.leaf_gapless_create('s')",
            "SELECT leaf_id.leaf_gapless_next('s')".into(),
        ),
    ] {
        let server = Server::with_leaf_id(&[]);
        server.allow(LIMIT);
        let mut session = server.session();
        session.run(setup);
        let before: Vec<f64> = (0..9).map(|_| seconds(&mut session, &sql)).collect();
        let mut holder = server.session();
        holder.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class");
        let since = Instant::now();
        let mut made = 0;
        while made < 50_000 || since.elapsed() < Duration::from_secs(60 * OLD_MINUTES) {
            seconds(&mut session, &sql);
            made += 500;
        }
        let during: Vec<f64> = (0..9).map(|_| seconds(&mut session, &sql)).collect();
        holder.run("COMMIT");
        session.run("VACUUM leaf_id.leaf_alloc, leaf_id.leaf_high_mark, leaf_id.leaf_gapless, leaf_id.leaf_gapless_mark");
        let after: Vec<f64> = (0..9).map(|_| seconds(&mut session, &sql)).collect();
        let median = |mut figures: Vec<f64>| {
            figures.sort_by(f64::total_cmp);
            500.0 / figures[4]
        };
        let [before, during, after] = [before, during, after].map(median);
        tell(&format!(
            "{what} a second: {before:.0} before; {during:.0} under a snapshot held for {:.1?} and {made} {what}; \
             {after:.0} after its end",
            since.elapsed()
        ));
    }
}

const DATABASES: usize = 1_000;

/// Time to the first id of a tag in each of a thousand databases.
#[test]
#[ignore = "a figure, minutes long"]
fn a_thousand_databases() {
    let server = Server::with_leaf_id(&[
        ("fsync", "off"),
        ("leaf_id.max_tags", "2000"),
        ("max_wal_size", "4GB"),
    ]);
    server.allow(LIMIT);
    let mut session = server.session();
    session.create_tag("t");
    drop(session);
    let mut other = server.session_in("template1");
    let ((), took) = timed(|| {
        for n in 0..DATABASES {
            other.run(&format!("CREATE DATABASE d{n} TEMPLATE postgres"));
        }
    });
    tell(&format!("{DATABASES} databases created in {took:.1?}"));
    for what in ["the first id in each", "the next id in each"] {
        let mut times: Vec<_> = (0..DATABASES)
            .map(|n| {
                let mut session = server.session_in(&format!("d{n}"));
                timed(|| session.next("t")).1
            })
            .collect();
        times.sort();
        let [half, most] = [times[DATABASES / 2], times[DATABASES - 1]];
        tell(&format!("{what}: median {half:.1?}, longest {most:.1?}"));
    }
    let ((), took) = timed(|| server.restart());
    tell(&format!("a clean restart: {took:.1?}"));
}

/// Sessions that take an id at the same time, and what each of them costs in memory.
#[test]
#[ignore = "a figure, a minute long"]
fn five_hundred_sessions() {
    let server = Server::with_leaf_id(&[("max_connections", "600"), ("shared_buffers", "256MB")]);
    let mut session = server.session();
    session.run("SELECT leaf_tag_create('t' || n) FROM generate_series(0, 99) n");
    let mut sessions: Vec<_> = (0..500).map(|_| server.session()).collect();
    for what in ["the first", "the next"] {
        let ((), took) = timed(|| {
            thread::scope(|scope| {
                for session in &mut sessions {
                    scope.spawn(move || {
                        session.run("SELECT count(leaf_segment_next('t' || n % 100)) FROM generate_series(1, 1000) n");
                    });
                }
            });
        });
        tell(&format!(
            "{what} 1,000 ids of 100 tags in each of 500 sessions: {took:.1?}"
        ));
    }
    let memory = "SELECT pg_size_pretty(sum(total_bytes)) FROM pg_backend_memory_contexts";
    let used: String = sessions[0].value(memory);
    let unused: String = server.session().value(memory);
    tell(&format!(
        "memory contexts of such a session: {used}, of one without ids: {unused}"
    ));
}
