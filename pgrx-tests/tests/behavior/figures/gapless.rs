//! Cost of a gapless number: a measurement without assertions.
//!
//! `make test TESTS=figures::gapless::transactions_a_second`

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use leaf_id_tests::{Server, in_threads_until, tell};

const CLIENTS: usize = 16;
const TIME: Duration = Duration::from_secs(10);

/// Transactions per second of all clients. `sql` returns the statement of a client.
fn rate(server: &Server, sql: impl Fn(usize) -> String + Sync) -> f64 {
    let start = Instant::now();
    let (counts, ()) = in_threads_until(
        CLIENTS,
        |client, done: &AtomicBool| {
            let mut session = server.session();
            let sql = sql(client);
            let mut count = 0_u32;
            while !done.load(Ordering::Relaxed) {
                session.run(&sql);
                count += 1;
            }
            count
        },
        || thread::sleep(TIME),
    );
    let count: u32 = counts.iter().sum();
    f64::from(count) / start.elapsed().as_secs_f64()
}

#[test]
#[ignore = "a figure, a minute long"]
fn transactions_a_second() {
    let server = Server::with_leaf_id(&[("shared_buffers", "256MB")]);
    let mut session = server.session();
    session.run(
        "CREATE TABLE t (id bigint, item text);
         SELECT leaf_id.leaf_gapless_create('s' || n) FROM generate_series(0, 15) n",
    );
    session.create_tag("t");
    let insert = |id: String| format!("INSERT INTO t VALUES ({id}, 'x')");
    let one_series = |_| insert("leaf_id.leaf_gapless_next('s0')".into());
    let plain = rate(&server, |_| insert("leaf_segment_next('t')".into()));
    tell(&format!(
        "{CLIENTS} clients, ids of a tag: {plain:.0} a second"
    ));
    let one = rate(&server, one_series);
    tell(&format!("{CLIENTS} clients, one series: {one:.0} a second"));
    let own = rate(&server, |client| {
        insert(format!("leaf_id.leaf_gapless_next('s{client}')"))
    });
    tell(&format!(
        "{CLIENTS} clients, a series each: {own:.0} a second"
    ));
    session.run("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT");
    session.run("SELECT count(*) FROM t");
    for _ in 0..2 {
        let old = rate(&server, one_series);
        tell(&format!(
            "{CLIENTS} clients, one series, beside an old snapshot: {old:.0} a second"
        ));
    }
    session.run("COMMIT");
    let again = rate(&server, one_series);
    tell(&format!(
        "{CLIENTS} clients, one series, without it again: {again:.0} a second"
    ));
}
