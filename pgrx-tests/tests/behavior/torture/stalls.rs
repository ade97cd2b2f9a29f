//! How long after each event the next id came, of each kind and on each server (I10), and how long
//! calls took during it.
//!
//! An event after which another one began before the next id is not measured: the other one is.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use leaf_id_tests::{Source, Window};

use super::event::Happening;

/// Upper limits of the histogram's columns but the last, in milliseconds.
const COLUMNS_MS: [u64; 6] = [10, 100, 1000, 2000, 5000, 10_000];

/// The next id of a source on a server, after an event.
struct Wait<E> {
    place: usize,
    server: usize,
    event: E,
    since: Instant,
    /// When another event began.
    until: Option<Instant>,
}

struct Row {
    times: [u32; COLUMNS_MS.len() + 1],
    /// Longest time by kind of source.
    longest: BTreeMap<&'static str, Duration>,
    longest_call: Duration,
}

/// Times after events.
pub(super) struct Stalls<E> {
    waits: Vec<Wait<E>>,
    /// Events since the last settlement, from when to when.
    events: Vec<(E, Instant, Instant)>,
    began: Instant,
    rows: BTreeMap<E, Row>,
}

impl<E: Happening> Stalls<E> {
    pub(super) fn new() -> Self {
        Self {
            waits: Vec::new(),
            events: Vec::new(),
            began: Instant::now(),
            rows: BTreeMap::new(),
        }
    }

    /// An event begins.
    pub(super) fn begin(&mut self) {
        self.began = Instant::now();
        for wait in &mut self.waits {
            wait.until.get_or_insert(self.began);
        }
    }

    /// The event is over: ids are to come from these sources on each server.
    pub(super) fn end(&mut self, event: E, places: &[usize], servers: usize) {
        let since = Instant::now();
        self.events.push((event, self.began, since));
        for &place in places {
            self.waits.extend((0..servers).map(|server| Wait {
                place,
                server,
                event,
                since,
                until: None,
            }));
        }
    }

    /// Enters the calls of a source until `now`. Fails if ids have taken too long.
    pub(super) fn enter(
        &mut self,
        place: usize,
        source: &Source,
        window: &Window,
        now: Instant,
    ) -> Result<(), String> {
        for &(event, from, to) in &self.events {
            let during = window.calls.iter().filter(|c| c.start < to && c.end > from);
            let row = self.rows.entry(event).or_insert_with(Row::new);
            row.longest_call = during
                .map(|call| call.took)
                .fold(row.longest_call, Duration::max);
        }
        let (here, others) = std::mem::take(&mut self.waits)
            .into_iter()
            .partition(|wait| wait.place == place);
        self.waits = others;
        let here: Vec<Wait<E>> = here;
        for wait in here {
            let calls = window.calls.iter();
            let first = calls
                .filter(|c| c.got_ids && c.server == wait.server && c.end >= wait.since)
                .map(|call| call.end)
                .min();
            let first = first.filter(|first| wait.until.is_none_or(|until| *first <= until));
            let took = first.unwrap_or(now).saturating_duration_since(wait.since);
            if wait.until.is_none() && took > wait.event.recovers() {
                return Err(format!(
                    "{source}: no id on server {} for {took:?} after {:?}",
                    wait.server, wait.event
                ));
            }
            if first.is_some() {
                let row = self.rows.entry(wait.event).or_insert_with(Row::new);
                row.enter(source.kind(), took);
            } else if wait.until.is_none() {
                self.waits.push(wait);
            }
        }
        Ok(())
    }

    /// The sessions go on, after a pause.
    pub(super) fn settled(&mut self, pause: Duration) {
        self.events.clear();
        for wait in &mut self.waits {
            wait.since += pause;
        }
    }

    pub(super) fn print(&self) {
        print!("first id after an event, within ms  ");
        for ms in COLUMNS_MS {
            print!(" {ms:>6}");
        }
        println!("   more  the longest of each kind, and call during it");
        for (event, row) in &self.rows {
            print!("  {:33} ", format!("{event:?}"));
            for times in row.times {
                print!(" {times:>6}");
            }
            for (kind, took) in &row.longest {
                print!("  {kind} {}", took.as_millis());
            }
            println!("  call {}", row.longest_call.as_millis());
        }
    }
}

impl Row {
    fn new() -> Self {
        Self {
            times: [0; COLUMNS_MS.len() + 1],
            longest: BTreeMap::new(),
            longest_call: Duration::ZERO,
        }
    }

    fn enter(&mut self, kind: &'static str, took: Duration) {
        let column = COLUMNS_MS.partition_point(|ms| Duration::from_millis(*ms) <= took);
        self.times[column] += 1;
        let longest = self.longest.entry(kind).or_default();
        *longest = took.max(*longest);
    }
}

#[cfg(test)]
mod tests {
    use leaf_id_tests::{Failure, Timed};

    use super::*;
    use crate::torture::event::Loss;

    impl Happening for u32 {
        const ALL: &'static [Self] = &[];

        fn is_cheap(self) -> bool {
            false
        }

        fn recovers(self) -> Duration {
            Duration::from_secs(2)
        }

        fn loss(self) -> Loss {
            Loss::Nothing
        }

        fn explains(self, _: &Failure) -> bool {
            false
        }
    }

    /// Two events, then calls: the milliseconds from the second event to their ends, and whether
    /// they got ids. Entered some time after it.
    fn entered(calls: &[(u64, bool)], after_ms: u64) -> (Stalls<u32>, Result<(), String>) {
        let mut stalls = Stalls::new();
        for event in [1, 2] {
            stalls.begin();
            stalls.end(event, &[0], 1);
        }
        let at = |ms| stalls.events[1].2 + Duration::from_millis(ms);
        let calls = calls.iter().map(|&(ms, got_ids)| Timed {
            server: 0,
            start: at(0),
            end: at(ms),
            took: Duration::from_millis(ms),
            got_ids,
        });
        let window = Window {
            calls: calls.collect(),
            ..Window::default()
        };
        let now = at(after_ms);
        let entered = stalls.enter(0, &Source::Snowflake, &window, now);
        (stalls, entered)
    }

    #[test]
    fn an_event_with_no_id_in_time_after_it_is_found() {
        let (stalls, entered) = entered(&[(5, false), (50, true)], 100);
        entered.unwrap();
        assert_eq!(stalls.rows[&2].times, [0, 1, 0, 0, 0, 0, 0]);
        // The first one was not over when the second began.
        assert_eq!(stalls.rows[&1].times, [0; 7]);
        let late = [(5, false), (2100, true)];
        self::entered(&late, 2200).1.unwrap_err();
        self::entered(&late[..1], 2200).1.unwrap_err();
        // It goes on after the pause of a settlement.
        let (mut stalls, entered) = self::entered(&late[..1], 1900);
        entered.unwrap();
        stalls.settled(Duration::from_secs(5));
        let at = |ms| stalls.waits[0].since + Duration::from_millis(ms);
        let (in_time, too_late) = (at(1900), at(2100));
        let mut enter = |now| stalls.enter(0, &Source::Snowflake, &Window::default(), now);
        enter(in_time).unwrap();
        enter(too_late).unwrap_err();
    }
}
