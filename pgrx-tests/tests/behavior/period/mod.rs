//! Tags whose numbers begin anew with each day, month or year, under clocks that tests set.

mod boundary;
mod servers;
mod tags;

use leaf_id_tests::{Clock, Server, Session};

/// 23 November 2026, 0:00 in Berlin, in Unix milliseconds.
const MIDNIGHT_MS: i64 = 1_795_388_400_000;
const DAY_MS: i64 = 86_400_000;
/// The period before that, and the one after.
const BEFORE: i64 = 20_261_122;
const AFTER: i64 = 20_261_123;

/// Sets a clock to a time.
fn set_to(clock: &Clock, ms: i64) {
    clock.set(clock.ahead_ms() + ms - clock.now_ms());
}

/// A server whose clock shows this time.
fn server_at(ms: i64, conf: &[(&str, &str)]) -> Server {
    let server = Server::with_clock(0, conf);
    set_to(&server.clock(), ms);
    server
}

/// How many numbers a day of such a tag has, and one more: more than any machine uses up in a test.
const NUMBERS: i64 = 1_000_000_000;

/// Creates a tag with nine digits, whose days are those of Berlin.
fn create_daily(session: &mut Session, tag: &str, step: i32, max_step: i32) {
    session.run(&format!(
        "SELECT leaf_tag_create('{tag}', step => {step}, max_step => {max_step},
             period => 'day', time_zone => 'Europe/Berlin', digits => 9)"
    ));
}

/// The period of an id of such a tag, and its number there.
fn parts(id: i64) -> (i64, i64) {
    (id / NUMBERS, id % NUMBERS)
}
