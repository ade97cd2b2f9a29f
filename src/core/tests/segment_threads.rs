//! The double buffer with real threads: sessions that take and invalidate, allocators that claim
//! and publish, and a lock and condition variables like the server's.
//!
//! Would catch: an id issued twice (I3), one smaller than an id returned before its call began
//! (I4), one of another version or of no published segment, ids lost beyond the gaps of discarded
//! takes, a waiter that is never woken.

#![cfg(not(leaf_id_loom))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics fails"
)]

mod support;

use core::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use core::time::Duration;
use std::thread;

use leaf_id_core::segment::{DoubleBuffer, Miss, Remainder, Remainders, Taken};
use parking_lot::{Condvar, Mutex, MutexGuard};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// Parameters of a run.
#[derive(Clone, Copy)]
struct Mix {
    sessions: u64,
    allocators: u64,
    /// Successful calls per session.
    calls: usize,
    /// Segments have 1 to this many ids.
    longest_segment: u32,
    /// Largest n of a take of n or a range; 1 for single takes only.
    largest_n: u32,
    /// One in this many calls is an invalidation; 0 for none.
    invalidate_one_in: u32,
    /// Check I4 in real time. The check itself orders the sessions, so some runs omit it.
    watch: bool,
}

/// The rows. The ids of version n start at (n + 1) * 2^40, so that an id identifies its version.
struct Table {
    version: u64,
    next: i64,
}

/// A waiter that is not woken fails after this time.
const GIVE_UP: Duration = Duration::from_secs(60);

const LIFE_BITS: u32 = 40;

fn first_of(version: u64) -> i64 {
    i64::try_from(version + 1).unwrap() << LIFE_BITS
}

fn version_of(id: i64) -> u64 {
    u64::try_from(id >> LIFE_BITS).unwrap() - 1
}

/// Runs of ids, each as (first, count).
type Runs = Vec<(i64, u64)>;

#[derive(Default)]
struct Tally {
    issued: Runs,
    /// Remainders returned by invalidations.
    returned: Runs,
    published: Runs,
    lost: u64,
    invalidations: u64,
    refused: u64,
}

impl Tally {
    fn add_remainders(&mut self, remainders: &Remainders) {
        let run = |rest: Remainder| (rest.first, rest.count());
        self.returned.extend(remainders.current.map(run));
        self.returned.extend(remainders.spare.map(run));
    }

    fn merge(mut self, other: Self) -> Self {
        self.issued.extend(other.issued);
        self.returned.extend(other.returned);
        self.published.extend(other.published);
        self.lost += other.lost;
        self.invalidations += other.invalidations;
        self.refused += other.refused;
        self
    }
}

struct Slot {
    buffer: DoubleBuffer,
    /// The slot's lock.
    lock: Mutex<()>,
    /// Signaled after a clear or an invalidation, for sessions.
    changed: Condvar,
    /// Signaled after a request and at the end of the run, for allocators.
    wanted: Condvar,
    table: Mutex<Table>,
    /// Largest id returned by any call.
    returned: AtomicI64,
    done: AtomicBool,
}

struct Session<'a> {
    slot: &'a Slot,
    mix: Mix,
    random: StdRng,
    version: u64,
    tally: Tally,
}

impl Session<'_> {
    fn run(mut self) -> Tally {
        let mut last = 0;
        for _ in 0..self.mix.calls {
            let invalidate_one_in = self.mix.invalidate_one_in;
            if invalidate_one_in > 0 && self.random.random_range(0..invalidate_one_in) == 0 {
                self.invalidate();
            }
            let floor = if self.mix.watch {
                self.slot.returned.load(Ordering::SeqCst)
            } else {
                last
            };
            let taken = self.take();
            let end = taken.first + i64::from(taken.count) - 1;
            assert!(
                taken.first > floor,
                "{taken:?}, but {floor} had been returned before"
            );
            assert!(taken.first > last, "a session's own ids increase");
            assert_eq!(
                (version_of(taken.first), version_of(end)),
                (self.version, self.version)
            );
            if self.mix.watch {
                self.slot.returned.fetch_max(end, Ordering::SeqCst);
            }
            last = end;
            self.tally.issued.push((taken.first, taken.count.into()));
            self.tally.lost += u64::from(taken.lost);
            if taken.spare_due && self.slot.buffer.want() {
                self.tell_allocator();
            }
        }
        self.tally
    }

    /// One successful call, with the waits of a server's session.
    fn take(&mut self) -> Taken {
        let n = self.random.random_range(1..=self.mix.largest_n);
        let kind = if self.mix.largest_n == 1 {
            0
        } else {
            self.random.random_range(0..10)
        };
        let mut waiting: Option<MutexGuard<'_, ()>> = None;
        loop {
            let buffer = &self.slot.buffer;
            let (taken, exactly) = match kind {
                0..6 => (buffer.take(self.version), 1),
                6..8 => (buffer.take_up_to(self.version, n), 0),
                _ => (buffer.take_range(self.version, n), n),
            };
            match taken {
                Ok(taken) => {
                    assert!(exactly == 0 || taken.count == exactly);
                    assert!((1..=n.max(1)).contains(&taken.count));
                    return taken;
                }
                Err(Miss::Changed) => self.version = buffer.version(),
                Err(Miss::Short { lost }) => self.tally.lost += u64::from(lost),
                // Try again under the lock before sleeping: an earlier clear is seen, a later one
                // wakes us.
                Err(Miss::Empty) => match &mut waiting {
                    None => waiting = Some(self.slot.lock.lock()),
                    Some(guard) => {
                        let first = if exactly > 1 {
                            buffer.want_range(exactly)
                        } else {
                            buffer.want()
                        };
                        if first {
                            self.slot.wanted.notify_one();
                        }
                        let woken = self.slot.changed.wait_for(guard, GIVE_UP);
                        assert!(!woken.timed_out(), "no thread woke a waiter");
                    }
                },
            }
        }
    }

    fn tell_allocator(&self) {
        let _guard = self.slot.lock.lock();
        self.slot.wanted.notify_one();
    }

    /// Commits an edit: first the row, then the slot. Or evicts the slot, which also closes the
    /// request without its allocator.
    fn invalidate(&mut self) {
        let mut table = self.slot.table.lock();
        let _guard = self.slot.lock.lock();
        if self.random.random_bool(0.5) {
            self.slot.buffer.close();
        }
        self.tally.add_remainders(&self.slot.buffer.invalidate());
        self.tally.invalidations += 1;
        table.version += 1;
        table.next = first_of(table.version);
        self.slot.changed.notify_all();
    }
}

fn allocator(slot: &Slot, mix: Mix, mut random: StdRng) -> Tally {
    let mut tally = Tally::default();
    loop {
        let mut guard = slot.lock.lock();
        // Occasionally without a request, like an allocator whose request was dropped during its
        // claim: so publications come late, twice and out of order.
        let mut range_len = random.random_bool(0.05).then_some(0);
        let mut accepted = None;
        while range_len.is_none() && !slot.done.load(Ordering::SeqCst) {
            accepted = slot.buffer.accept();
            range_len = accepted.map(|request| request.range_len);
            if range_len.is_none() {
                slot.wanted.wait(&mut guard);
            }
        }
        drop(guard);
        let Some(range_len) = range_len else {
            return tally;
        };
        let version = slot.buffer.version();
        let len = random.random_range(1..=mix.longest_segment).max(range_len);
        let claimed = {
            let mut table = slot.table.lock();
            let first = table.next;
            table.next += i64::from(len);
            // The row has the version of its ids; a claim that began before an edit must not be
            // published after it.
            (table.version == version).then_some(first)
        };
        for _ in 0..random.random_range(0..3) {
            thread::yield_now();
        }
        let guard = slot.lock.lock();
        if let Some(first) = claimed {
            match slot.buffer.publish(version, first, len) {
                Ok(()) => tally.published.push((first, len.into())),
                Err(_) => tally.refused += 1,
            }
        }
        if let Some(request) = accepted {
            slot.buffer.clear(&request);
        }
        slot.changed.notify_all();
        drop(guard);
        if slot.done.load(Ordering::SeqCst) {
            return tally;
        }
    }
}

/// Sorts the runs and fails if two of them overlap.
fn disjoint(runs: &mut Runs, what: &str) {
    runs.sort_unstable();
    for pair in runs.windows(2) {
        let end = pair[0].0 + i64::try_from(pair[0].1).unwrap();
        assert!(end <= pair[1].0, "{what}: {:?} and {:?}", pair[0], pair[1]);
    }
}

fn count(runs: &Runs) -> u64 {
    runs.iter().map(|(_, count)| count).sum()
}

fn run(mix: Mix) {
    let seed = support::seed();
    let slot = Slot {
        buffer: DoubleBuffer::new(),
        lock: Mutex::new(()),
        changed: Condvar::new(),
        wanted: Condvar::new(),
        table: Mutex::new(Table {
            version: 0,
            next: first_of(0),
        }),
        returned: AtomicI64::new(0),
        done: AtomicBool::new(false),
    };
    let slot = &slot;
    let mut tally = thread::scope(|scope| {
        let allocators: Vec<_> = (0..mix.allocators)
            .map(|i| {
                let random = StdRng::seed_from_u64(seed.wrapping_add(1_000 + i));
                scope.spawn(move || allocator(slot, mix, random))
            })
            .collect();
        let sessions: Vec<_> = (0..mix.sessions)
            .map(|i| {
                let session = Session {
                    slot,
                    mix,
                    random: StdRng::seed_from_u64(seed.wrapping_add(i)),
                    version: 0,
                    tally: Tally::default(),
                };
                scope.spawn(move || session.run())
            })
            .collect();
        let sessions: Vec<_> = sessions.into_iter().map(|s| s.join()).collect();
        {
            let _guard = slot.lock.lock();
            slot.done.store(true, Ordering::SeqCst);
            slot.wanted.notify_all();
        }
        let allocators: Vec<_> = allocators.into_iter().map(|a| a.join()).collect();
        sessions
            .into_iter()
            .chain(allocators)
            .map(|tally| tally.expect("a thread panicked"))
            .fold(Tally::default(), Tally::merge)
    });
    tally.add_remainders(&slot.buffer.remainders());

    disjoint(&mut tally.published, "published");
    let mut owned = tally.issued.clone();
    owned.extend(&tally.returned);
    disjoint(&mut owned, "issued or returned by an invalidation");
    for (first, count) in &owned {
        let after = tally.published.partition_point(|(p, _)| p <= first);
        let (start, len) = tally.published[after.checked_sub(1).expect("no segment")];
        let end = first + i64::try_from(*count).unwrap();
        assert!(
            end <= start + i64::try_from(len).unwrap(),
            "{first} and {count} from no published segment"
        );
    }
    let published = count(&tally.published);
    let accounted = count(&owned) + tally.lost;
    let gaps = published
        .checked_sub(accounted)
        .expect("more ids than were published");
    // A session discards at most one id per change of the generation.
    let moves = u64::try_from(tally.published.len()).unwrap() + tally.invalidations;
    assert!(gaps <= moves * mix.sessions, "{gaps} ids vanished");
    println!(
        "{} segments, {published} ids: {} issued, {} lost, {gaps} discarded; \
         {} invalidations, {} publications refused",
        tally.published.len(),
        count(&tally.issued),
        tally.lost,
        tally.invalidations,
        tally.refused
    );
}

const MIXED: Mix = Mix {
    sessions: 6,
    allocators: 2,
    calls: 8_000,
    longest_segment: 300,
    largest_n: 40,
    invalidate_one_in: 500,
    watch: true,
};

#[test]
fn everything_at_once() {
    run(MIXED);
}

#[test]
fn everything_at_once_unwatched() {
    run(Mix {
        watch: false,
        ..MIXED
    });
}

#[test]
fn single_takes_from_tiny_segments_switch_all_the_time() {
    run(Mix {
        longest_segment: 4,
        largest_n: 1,
        calls: 3_000,
        invalidate_one_in: 0,
        ..MIXED
    });
}

#[test]
fn ranges_longer_than_the_segments_wait_for_longer_ones() {
    run(Mix {
        longest_segment: 10,
        largest_n: 200,
        calls: 2_000,
        ..MIXED
    });
}

#[test]
fn long_segments_with_hardly_a_switch() {
    run(Mix {
        longest_segment: 1_000_000,
        calls: 20_000,
        invalidate_one_in: 5_000,
        watch: false,
        ..MIXED
    });
}
