//! Cost of ordered ids and of a watermark: a measurement without assertions.
//!
//! `make test TESTS=figures::ordered::cost`

use leaf_id_tests::{Server, Session, in_threads, tell, timed};

const IDS: u32 = 1_000_000;
const CALLS: u32 = 2_000;
const SESSIONS: usize = 500;

/// Microseconds of one of `count`, the best of three.
fn us(count: u32, mut work: impl FnMut()) -> f64 {
    let took = (0..3).map(|_| timed(&mut work).1.as_secs_f64());
    took.fold(f64::INFINITY, f64::min) * 1e6 / f64::from(count)
}

fn repeat(session: &mut Session, sql: &str) -> f64 {
    us(CALLS, || (0..CALLS).for_each(|_| session.run(sql)))
}

#[test]
#[ignore = "a figure, half a minute long"]
fn cost() {
    let server = Server::with_leaf_id(&[("max_connections", "600")]);
    let mut session = server.session();
    session.run("SELECT leaf_tag_create('t', step => 1000000)");
    for call in ["hashtext", "leaf_segment_next", "leaf_ordered_next"] {
        let of_one = us(IDS, || {
            session.run(&format!(
                "SELECT count({call}('t')) FROM generate_series(1, {IDS})"
            ));
        });
        let statement = repeat(&mut session, &format!("SELECT {call}('t')"));
        tell(&format!(
            "{call}: {of_one:.3} us in a long statement, {statement:.1} us as a transaction"
        ));
    }
    let mut watermark = |beside: &str| {
        let took = repeat(&mut session, "SELECT leaf_ordered_watermark('t')");
        tell(&format!("a watermark beside {beside}: {took:.0} us"));
    };
    watermark("no session");
    let writers = in_threads(SESSIONS, |_| {
        let mut writer = server.session();
        writer.run("BEGIN; SELECT leaf_ordered_next('t'); SELECT FROM leaf_id.leaf_alloc");
        writer
    });
    watermark(&format!("{SESSIONS} sessions that hold it back"));
    drop(writers);
}
