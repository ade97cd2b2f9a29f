//! Numbers that restart with each year or day, as built in docs/guide.md: one tag per period.
//!
//! Would catch: a number issued twice, or an id of no day, when sessions pass midnight at the same
//! time and when the clock is set back and forward; and a wait for the first id of a day.

use std::sync::atomic::Ordering;
use std::time::Duration;

use leaf_id_tests::{Clock, Server, assert_issued_once, in_threads_until, tell, wait_until};

const SESSIONS: usize = 16;
const LIMIT: Duration = Duration::from_secs(30);
/// 1 January 2027, 0:00 in Berlin, in Unix milliseconds.
const NEW_YEAR_MS: i64 = 1_798_758_000_000;
const DAY_MS: i64 = 86_400_000;
/// One more than the max number of a period.
const NUMBERS: i64 = 1_000_000_000;

const NUMBERING: &str = "
    SELECT leaf_tag_create('orders/' || to_char(day, 'YYYYMMDD'), step => 100, max_step => 10000,
               max_value => 999999999)
    FROM generate_series(timestamp '2026-12-25', timestamp '2028-12-31', interval '1 day') day;
    SELECT leaf_tag_create('invoices/' || year, step => 10, max_step => 10, max_value => 999999999)
    FROM generate_series(2026, 2035) year;
    CREATE FUNCTION order_number() RETURNS bigint LANGUAGE plpgsql AS $$
    DECLARE
        day CONSTANT text := to_char(clock_timestamp() AT TIME ZONE 'Europe/Berlin', 'YYYYMMDD');
    BEGIN
        RETURN day::bigint * 1000000000 + leaf_segment_next('orders/' || day);
    END $$;
    CREATE FUNCTION invoice_number() RETURNS bigint LANGUAGE plpgsql AS $$
    DECLARE
        year CONSTANT text := to_char(clock_timestamp() AT TIME ZONE 'Europe/Berlin', 'YYYY');
    BEGIN
        RETURN year::bigint * 1000000000 + leaf_segment_next('invoices/' || year);
    END $$";

fn set_to(clock: &Clock, ms: i64) {
    clock.set(clock.ahead_ms() + ms - clock.now_ms());
}

fn periods(ids: &[Vec<i64>]) -> Vec<i64> {
    let mut periods: Vec<_> = ids.iter().flatten().map(|id| id / NUMBERS).collect();
    periods.sort_unstable();
    periods.dedup();
    periods
}

#[test]
fn sixteen_sessions_go_over_midnight_and_the_clock_goes_back_and_forward() {
    let server = Server::with_clock(0, &[]);
    let clock = server.clock();
    set_to(&clock, NEW_YEAR_MS - 60_000);
    server.session().run(NUMBERING);
    let warm = server
        .session()
        .ids("SELECT order_number() UNION ALL SELECT invoice_number()");
    let (ids, firsts) = in_threads_until(
        SESSIONS,
        |_, done| {
            let mut session = server.session();
            let (mut orders, mut invoices) = (Vec::new(), Vec::new());
            while !done.load(Ordering::Relaxed) {
                orders.extend(session.ids("SELECT order_number() FROM generate_series(1, 20)"));
                invoices.extend(session.ids("SELECT invoice_number()"));
            }
            (orders, invoices)
        },
        || {
            let mut session = server.session();
            let mut firsts = Vec::new();
            for ms in [
                NEW_YEAR_MS - 100,
                NEW_YEAR_MS - 50,
                NEW_YEAR_MS - 3_600_000,
                NEW_YEAR_MS + 3 * DAY_MS - 100,
                NEW_YEAR_MS - 100,
                NEW_YEAR_MS + 400 * DAY_MS - 100,
            ] {
                set_to(&clock, ms);
                let mut first = None;
                wait_until(LIMIT, "that time to pass", || {
                    let began = clock.now_ms();
                    let day = session.ids("SELECT order_number()")[0] / NUMBERS;
                    let took = clock.now_ms() - began;
                    if first.is_none() && began >= ms + 100 {
                        first = Some((day, took));
                    }
                    clock.now_ms() >= ms + 300
                });
                firsts.extend(first);
            }
            firsts
        },
    );
    let (mut orders, mut invoices): (Vec<_>, Vec<_>) = ids.into_iter().unzip();
    invoices.push(vec![warm[1]]);
    // Each id once: if the clock goes back, so do the periods.
    for ids in orders.iter_mut().chain(&mut invoices) {
        ids.sort_unstable();
    }
    assert_issued_once(&orders);
    assert_issued_once(&invoices);
    assert_eq!(
        periods(&orders),
        [
            20_261_231, 20_270_101, 20_270_103, 20_270_104, 20_280_204, 20_280_205
        ]
    );
    assert_eq!(periods(&invoices), [2026, 2027, 2028]);
    tell(&format!(
        "numbers by day: {} ids; the first calls of a time, as day and milliseconds: {firsts:?}",
        orders.iter().map(Vec::len).sum::<usize>()
    ));
}

/// The first id of a day whose tag was not used yet.
#[test]
fn the_first_id_of_a_day_comes_at_once() {
    let server = Server::with_clock(0, &[]);
    let clock = server.clock();
    set_to(&clock, NEW_YEAR_MS - 3_600_000);
    let mut session = server.session();
    session.run(NUMBERING);
    session.ids("SELECT order_number()");
    let mut took = Vec::new();
    for day in 0..20 {
        set_to(&clock, NEW_YEAR_MS + day * DAY_MS);
        let began = std::time::Instant::now();
        let id = session.ids("SELECT order_number()")[0];
        took.push(began.elapsed());
        assert_eq!(id % NUMBERS, 1);
    }
    took.sort_unstable();
    tell(&format!(
        "the first id of a day: median {:.1?}, at most {:.1?}",
        took[10], took[19]
    ));
    // Duration of a claim, with a margin for a busy machine.
    assert!(took[10] < Duration::from_millis(500));
}
