//! Many sessions at once, and what must be true of the ids they got.

use std::collections::HashSet;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use std::{io, thread};

use rand::SeedableRng;
use rand::rngs::StdRng;

/// Polls until something is so. For conditions that will come, never as a pause.
///
/// # Panics
/// When the limit has passed.
#[track_caller]
pub fn wait_until(limit: Duration, what: &str, is_so: impl FnMut() -> bool) {
    assert!(becomes(limit, is_so), "waited {limit:?} for {what}");
}

/// As [`wait_until`], for where others must be told before this thread may panic: whether
/// it was so in time.
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

/// Prints a line also where the test passes: a figure that was asked for.
pub fn tell(line: &str) {
    // What print! writes is kept back.
    writeln!(io::stdout().lock(), "{line}").expect("standard output");
}

/// How long a session waits for ids that was told to be patient.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// How long a busy machine may take for what waits for nothing. It is far from [`PATIENCE`],
/// so that the two are told apart, and says nothing of speed.
pub const PROMPTLY: Duration = Duration::from_secs(30);

/// Does what must not wait, in a session that would be patient.
///
/// # Panics
/// When it has waited.
#[track_caller]
pub fn promptly<T>(work: impl FnOnce() -> T) -> T {
    let (result, took) = timed(work);
    assert!(took < PROMPTLY, "it took {took:?}");
    result
}

/// How long something took.
pub fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = work();
    (result, start.elapsed())
}

/// Randomness that a failed run can be repeated with.
///
/// # Panics
/// When `LEAF_ID_SEED` is no number.
#[must_use]
pub fn random() -> StdRng {
    let seed = std::env::var("LEAF_ID_SEED")
        .map_or_else(|_| rand::random(), |seed| seed.parse().expect("a number"));
    println!("LEAF_ID_SEED={seed}");
    StdRng::seed_from_u64(seed)
}

/// Runs the same work in as many threads at once, each told which one it is.
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

/// Runs `disturb` again and again until `work` is done.
pub fn while_repeating<T>(mut disturb: impl FnMut() + Send, work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let disturber = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                disturb();
            }
        });
        // The other thread must end even when this one fails.
        let result = catch_unwind(AssertUnwindSafe(work));
        done.store(true, Ordering::Relaxed);
        let disturbed = disturber.join();
        let result = result.unwrap_or_else(|panic| resume_unwind(panic));
        disturbed.unwrap_or_else(|panic| resume_unwind(panic));
        result
    })
}

/// Runs the same work in many threads, each told which one it is and, by the flag, when to
/// stop: when `act` is done, which runs here.
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
        // The threads must end even when this fails.
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

/// I3, I4, I8: no id twice, none below 1, and those of each session increase.
///
/// # Panics
/// When that is not so.
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

/// One call that issued ids, as its caller saw it.
#[derive(Clone, Copy, Debug)]
pub struct Call {
    /// Before it was sent.
    pub start: Instant,
    /// After the answer was read.
    pub end: Instant,
    /// The smallest id it got.
    pub first: i64,
    /// The largest id it got.
    pub last: i64,
}

impl Call {
    /// Makes a call and notes when. It must return at least one id.
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

/// I4: a call that began after another had returned has the larger ids, whichever
/// sessions they were made in.
///
/// # Panics
/// When that is not so.
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
