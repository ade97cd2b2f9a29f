//! Concurrent sessions, and checks of the ids they received.

use std::collections::HashSet;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

use rand::SeedableRng;
use rand::rngs::StdRng;

/// Polls until a condition is true. Only for conditions that will become true, never as a pause.
///
/// # Panics
/// On timeout.
#[track_caller]
pub fn wait_until(limit: Duration, what: &str, is_so: impl FnMut() -> bool) {
    assert!(becomes(limit, is_so), "waited {limit:?} for {what}");
}

/// As [`wait_until`], but returns false on timeout, for callers that must notify other threads
/// before they panic.
#[must_use]
pub fn becomes(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !is_so() {
        if start.elapsed() > limit {
            return false;
        }
        thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Prints a line even if the test passes, for measurements.
pub fn tell(line: &str) {
    // `print!` would be captured.
    writeln!(io::stdout().lock(), "{line}").expect("standard output");
}

/// `leaf_id.refill_timeout` of patient sessions.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Time limit on a busy machine for work that does not wait. Far from [`PATIENCE`], so that the two
/// can be distinguished; not a measure of performance.
pub const PROMPTLY: Duration = Duration::from_secs(30);

/// Runs work that must not wait, in a patient session.
///
/// # Panics
/// If it took as long as [`PROMPTLY`].
#[track_caller]
pub fn promptly<T>(work: impl FnOnce() -> T) -> T {
    let (result, took) = timed(work);
    assert!(took < PROMPTLY, "it took {took:?}");
    result
}

/// Measures elapsed time.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

/// Random generator. A failed run can be repeated with its seed.
///
/// # Panics
/// If `LEAF_ID_SEED` is not a number.
#[must_use]
pub fn random() -> StdRng {
    let seed = std::env::var("LEAF_ID_SEED")
        .map_or_else(|_| rand::random(), |seed| seed.parse().expect("a number"));
    println!("LEAF_ID_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// Runs the same work in several threads, each with its number.
pub fn in_threads<T: Send>(threads: usize, work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let work = &work;
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|i| scope.spawn(move || work(i))).collect();
        threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)))
            .collect()
    })
}

/// Repeats `disturb` until `work` is done.
pub fn while_repeating<T>(mut disturb: impl FnMut() + Send, work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let disturber = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                disturb();
            }
        });
        // The other thread must end even if this one panics.
        let result = catch_unwind(AssertUnwindSafe(work));
        done.store(true, Ordering::Relaxed);
        let disturbed = disturber.join();
        let result = result.unwrap_or_else(|panic| resume_unwind(panic));
        disturbed.unwrap_or_else(|panic| resume_unwind(panic));
        result
    })
}

/// Runs the same work in several threads, each with its number and a flag that is set once `act`,
/// which runs in this thread, is done.
pub fn in_threads_until<T: Send, R>(
    threads: usize,
    work: impl Fn(usize, &AtomicBool) -> T + Sync,
    act: impl FnOnce() -> R,
) -> (Vec<T>, R) {
    let done = AtomicBool::new(false);
    let (work, flag) = (&work, &done);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads)
            .map(|i| scope.spawn(move || work(i, flag)))
            .collect();
        // The threads must end even if this one panics.
        let acted = catch_unwind(AssertUnwindSafe(act));
        done.store(true, Ordering::Relaxed);
        let results: Vec<_> = threads
            .into_iter()
            .map(thread::ScopedJoinHandle::join)
            .collect();
        let results = results
            .into_iter()
            .map(|result| result.unwrap_or_else(|panic| resume_unwind(panic)))
            .collect();
        (results, acted.unwrap_or_else(|panic| resume_unwind(panic)))
    })
}

/// I3, I4, I8: no id is issued twice or below 1, and the ids of each session increase.
///
/// # Panics
/// On a violation.
#[track_caller]
pub fn assert_issued_once(sessions: impl IntoIterator<Item = impl AsRef<[i64]>>) {
    let mut seen = HashSet::new();
    for ids in sessions {
        let mut last = 0;
        for &id in ids.as_ref() {
            assert!(id > last, "{id} was issued after {last} in one session");
            assert!(seen.insert(id), "{id} was issued twice");
            last = id;
        }
    }
}

/// A call that issued ids, as seen by its client.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Time before the call was sent.
    pub start: Instant,
    /// Time after the result was read.
    pub end: Instant,
    /// Smallest id returned.
    pub first: i64,
    /// Largest id returned.
    pub last: i64,
}

impl Call {
    /// Times a call. It must return at least one id.
    pub fn make(call: impl FnOnce() -> Vec<i64>) -> Self {
        let start = Instant::now();
        let ids = call();
        let end = Instant::now();
        Self {
            start,
            end,
            first: ids[0],
            last: ids[ids.len() - 1],
        }
    }
}

/// I4: a call that began after another had returned has larger ids, in whichever session.
///
/// # Panics
/// On a violation.
#[track_caller]
pub fn assert_in_order(mut calls: Vec<Call>) {
    let mut by_end = calls.clone();
    by_end.sort_by_key(|call| call.end);
    calls.sort_by_key(|call| call.start);
    let mut ended = by_end.iter().peekable();
    let mut highest = 0;
    for call in calls {
        while let Some(earlier) = ended.next_if(|earlier| earlier.end < call.start) {
            highest = highest.max(earlier.last);
        }
        assert!(
            call.first > highest,
            "{} was issued after {highest} had been",
            call.first
        );
    }
}
