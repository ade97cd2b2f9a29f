//! The double buffer and the snowflake word under loom: every interleaving, up to a bound of
//! preemptions, and every value that the orderings allow a load to see.
//!
//! Would catch: an ordering that is too weak, and a race that threads on one machine hit once a
//! year. Each model is one race; its comment names the wrong result.
//!
//! Run with `RUSTFLAGS="--cfg leaf_id_loom" cargo test -p leaf_id_core --release --test
//! loom_segment` (a minute and a half). The bounds fit that time; `LOOM_MAX_PREEMPTIONS=4` takes an
//! hour and goes further.

#![cfg(leaf_id_loom)]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics fails"
)]

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use leaf_id_core::layout::Layout;
use leaf_id_core::primitive::fail_weak_exchanges;
use leaf_id_core::segment::{
    DoubleBuffer, Miss, Refused, Remainder, Remainders, SegmentRequest, Taken,
};
use leaf_id_core::snowflake::{Full, Generator, Lead, Stall};
use loom::sync::atomic::{AtomicI64, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// Checks a model with at most this many preemptions, unless `LOOM_MAX_PREEMPTIONS` is set. A
/// switch because a thread ends or blocks is not a preemption. Prints the number of executions.
fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    let bound = builder.preemption_bound.unwrap_or(preemptions);
    builder.preemption_bound = Some(bound);
    let executions = std::sync::Arc::new(AtomicU64::new(0));
    let (counted, begun) = (std::sync::Arc::clone(&executions), Instant::now());
    builder.check(move || {
        counted.fetch_add(1, Relaxed);
        model();
    });
    let test = std::thread::current();
    println!(
        "{}\t{bound} preemptions\t{} executions\t{:.1} s",
        test.name().unwrap_or("?"),
        executions.load(Relaxed),
        begun.elapsed().as_secs_f32()
    );
}

/// A slot: the buffer and its lock.
struct Slot {
    buffer: DoubleBuffer,
    lock: Mutex<()>,
}

impl Slot {
    /// A slot in version 0, with this remainder in the current buffer and this spare, both as
    /// (first, count).
    fn new(left: (i64, u32), spare: Option<(i64, u32)>) -> Arc<Self> {
        let slot = Self {
            buffer: DoubleBuffer::new(),
            lock: Mutex::new(()),
        };
        // Publish and use up a segment before it, so that both buffers have held something. The
        // first id of the next makes that the current one.
        slot.buffer.publish(0, 1, 1).unwrap();
        slot.buffer.take(0).unwrap();
        slot.buffer.publish(0, left.0 - 1, left.1 + 1).unwrap();
        slot.buffer.take(0).unwrap();
        if let Some((first, len)) = spare {
            slot.buffer.publish(0, first, len).unwrap();
        }
        Arc::new(slot)
    }

    fn publish(&self, version: u64, first: i64, len: u32) -> Result<(), Refused> {
        let _guard = self.lock.lock().unwrap();
        self.buffer.publish(version, first, len)
    }

    fn invalidate(&self) -> Remainders {
        let _guard = self.lock.lock().unwrap();
        self.buffer.invalidate()
    }
}

fn spawn<T: 'static>(
    slot: &Arc<Slot>,
    body: impl FnOnce(&Slot) -> T + 'static,
) -> thread::JoinHandle<T> {
    let slot = Arc::clone(slot);
    thread::spawn(move || body(&slot))
}

fn expand(taken: Taken) -> Vec<i64> {
    (taken.first..taken.first + i64::from(taken.count)).collect()
}

fn expand_remainders(remainders: Remainders) -> Vec<i64> {
    let run = |rest: Remainder| rest.first..=rest.last;
    remainders
        .current
        .into_iter()
        .chain(remainders.spare)
        .flat_map(run)
        .collect()
}

/// Ids of this many single takes from a version; fewer if it is empty.
fn takes(slot: &Slot, version: u64, times: u32) -> Vec<i64> {
    let mut ids = Vec::new();
    for _ in 0..times {
        if let Ok(taken) = slot.buffer.take(version) {
            assert!(ids.last().is_none_or(|last| *last < taken.first), "I4");
            ids.extend(expand(taken));
        }
    }
    ids
}

/// Checks that the ids are distinct and all in `from`.
fn once(mut ids: Vec<i64>, from: &[i64]) {
    ids.sort_unstable();
    let count = ids.len();
    ids.dedup();
    assert_eq!(ids.len(), count, "an id twice: {ids:?}");
    assert!(ids.iter().all(|id| from.contains(id)), "{ids:?}");
}

/// Two switches at once would skip the spare or reissue a used-up buffer.
#[test]
fn three_takers_over_a_switch() {
    check(2, || {
        let slot = Slot::new((11, 1), Some((20, 3)));
        let takers: Vec<_> = (0..2)
            .map(|_| spawn(&slot, |slot| takes(slot, 0, 1)))
            .collect();
        let mut ids = takes(&slot, 0, 1);
        for taker in takers {
            ids.extend(taker.join().unwrap());
        }
        assert_eq!(ids.len(), 3, "there are ids for all");
        once(ids, &[11, 20, 21, 22]);
    });
}

/// Each taker switches by itself; a discarded take must not reissue an id.
#[test]
fn two_takers_twice_over_a_switch() {
    check(3, || {
        let slot = Slot::new((11, 2), Some((20, 4)));
        let taker = spawn(&slot, |slot| takes(slot, 0, 2));
        let mut ids = takes(&slot, 0, 2);
        ids.extend(taker.join().unwrap());
        assert_eq!(ids.len(), 4);
        once(ids, &[11, 12, 20, 21, 22, 23]);
    });
}

/// If `filled_for` is visible before the segment, the ids of the previous segment are issued.
#[test]
fn a_taker_while_a_segment_is_published() {
    check(4, || {
        let slot = Slot::new((11, 1), None);
        let publisher = spawn(&slot, |slot| slot.publish(0, 20, 2).unwrap());
        let ids = takes(&slot, 0, 3);
        publisher.join().unwrap();
        once(ids.clone(), &[11, 20, 21]);
        let mut all = ids;
        all.extend(takes(&slot, 0, 3));
        once(all.clone(), &[11, 20, 21]);
        assert_eq!(all.len(), 3, "nothing discarded: one taker");
    });
}

/// A taker that missed two switches finds another segment in its buffer.
#[test]
fn a_taker_while_its_buffer_is_filled_again() {
    check(3, || {
        let slot = Slot::new((11, 1), Some((20, 1)));
        let taker = spawn(&slot, |slot| takes(slot, 0, 1));
        let mut ids = takes(&slot, 0, 2);
        let published = slot.publish(0, 30, 1);
        ids.extend(takes(&slot, 0, 1));
        ids.extend(taker.join().unwrap());
        assert!(matches!(published, Ok(()) | Err(Refused::Full)));
        once(ids, &[11, 20, 30]);
    });
}

/// The same for the exchange that takes a run.
#[test]
fn a_run_while_its_buffer_is_filled_again() {
    check(2, || {
        let slot = Slot::new((11, 2), Some((20, 1)));
        let taker = spawn(&slot, |slot| {
            slot.buffer.take_up_to(0, 2).map_or(vec![], expand)
        });
        let mut ids = takes(&slot, 0, 3);
        let published = slot.publish(0, 30, 1);
        ids.extend(takes(&slot, 0, 1));
        ids.extend(taker.join().unwrap());
        assert!(matches!(published, Ok(()) | Err(Refused::Full)));
        once(ids, &[11, 12, 20, 30]);
    });
}

/// A take of the old version must not get an id of the new one, nor vice versa.
#[test]
fn takers_of_two_lives_over_an_invalidation() {
    check(2, || {
        let slot = Slot::new((11, 1), Some((20, 1)));
        let old = spawn(&slot, |slot| takes(slot, 0, 2));
        slot.invalidate();
        slot.publish(1, 100, 2).unwrap();
        // Makes the new segment the current one.
        let new = takes(&slot, 1, 1);
        let old = old.join().unwrap();
        once(old, &[11, 20]);
        assert_eq!(new.len(), 1, "published before it was looked for");
        once(new, &[100, 101]);
    });
}

/// The same for the two takes that use an exchange.
fn a_life_and_its_successor(take: fn(&DoubleBuffer, u64) -> Result<Taken, Miss>) {
    check(2, move || {
        let slot = Slot::new((11, 2), None);
        let old = spawn(&slot, move |slot| take(&slot.buffer, 0));
        slot.invalidate();
        slot.publish(1, 100, 5).unwrap();
        let new = take(&slot.buffer, 1).unwrap();
        assert_eq!(expand(new), [100, 101]);
        match old.join().unwrap() {
            Ok(taken) => assert_eq!(expand(taken), [11, 12]),
            Err(miss) => assert!(matches!(miss, Miss::Changed | Miss::Empty)),
        }
    });
}

#[test]
fn runs_of_two_lives_over_an_invalidation() {
    a_life_and_its_successor(|buffer, version| buffer.take_up_to(version, 2));
}

#[test]
fn ranges_of_two_lives_over_an_invalidation() {
    a_life_and_its_successor(|buffer, version| buffer.take_range(version, 2));
}

/// A session that encounters the new version half-way rereads the version and continues.
#[test]
fn a_taker_that_follows_the_lives() {
    check(2, || {
        let slot = Slot::new((11, 1), None);
        let taker = spawn(&slot, |slot| {
            let mut version = 0;
            for _ in 0..2 {
                match slot.buffer.take(version) {
                    Ok(taken) => return Some((version, taken.first)),
                    Err(Miss::Changed) => version = slot.buffer.version(),
                    Err(_) => (),
                }
            }
            None
        });
        slot.invalidate();
        slot.publish(1, 100, 3).unwrap();
        let new = takes(&slot, 1, 1);
        assert_eq!(new.len(), 1, "one may have been discarded, one taken");
        match taker.join().unwrap() {
            Some((0, id)) => assert_eq!(id, 11),
            Some((1, id)) => once(vec![id, new[0]], &[100, 101, 102]),
            other => assert_eq!(other, None),
        }
    });
}

/// The remainders returned by an invalidation are saved and issued after a restart, so they must
/// not contain ids that a session has taken.
#[test]
fn the_remainders_were_not_taken() {
    check(2, || {
        let slot = Slot::new((11, 2), Some((20, 2)));
        let takers = [
            spawn(&slot, |slot| takes(slot, 0, 1)),
            spawn(&slot, |slot| {
                slot.buffer.take_range(0, 2).map_or(vec![], expand)
            }),
        ];
        let mut ids = expand_remainders(slot.invalidate());
        for taker in takers {
            ids.extend(taker.join().unwrap());
        }
        once(ids, &[11, 12, 20, 21]);
    });
}

/// An allocator's claim: with the version read before, and a first id from the table.
fn claim(slot: &Slot, table: &AtomicI64) -> Result<(), Refused> {
    let version = slot.buffer.version();
    let first = table.fetch_add(1, Ordering::SeqCst);
    slot.publish(version, first, 1)
}

/// After a later claim is published, an earlier one must be refused: its ids are smaller (I4).
#[test]
fn two_allocators_out_of_order() {
    check(3, || {
        let slot = Slot::new((11, 0), None);
        let table = Arc::new(AtomicI64::new(20));
        let theirs = Arc::clone(&table);
        let other = spawn(&slot, move |slot| claim(slot, &theirs));
        let mine = claim(&slot, &table);
        let mut ids = takes(&slot, 0, 1);
        let other = other.join().unwrap();
        ids.extend(takes(&slot, 0, 2));
        assert!(ids.is_sorted_by(|a, b| a < b), "I4: {ids:?}");
        let published = [mine, other].iter().filter(|p| p.is_ok()).count();
        assert_eq!(ids.len(), published);
        once(ids, &[20, 21]);
    });
}

/// A claim that began before an edit must not be published after it.
#[test]
fn two_allocators_and_an_edit() {
    check(2, || {
        let slot = Slot::new((11, 0), None);
        let table = Arc::new(AtomicI64::new(20));
        let theirs = Arc::clone(&table);
        let other = spawn(&slot, move |slot| claim(slot, &theirs));
        let taker = spawn(&slot, |slot| takes(slot, 0, 2));
        let mine = claim(&slot, &table);
        slot.invalidate();
        // The old version's claim was refused in any case; the new version starts empty.
        assert_eq!(slot.publish(0, 30, 1), Err(Refused::Changed));
        let other = other.join().unwrap();
        assert!(mine.is_ok() || other.is_ok());
        once(taker.join().unwrap(), &[20, 21]);
    });
}

/// Runs and single takes share one word: a run past the end would carry into the generation, an
/// exchange that overwrites a take would reissue its id.
#[test]
fn a_run_and_single_takes() {
    check(3, || {
        let slot = Slot::new((11, 2), Some((20, 3)));
        let run = spawn(&slot, |slot| {
            let first = slot.buffer.take_up_to(0, 3).map_or(vec![], expand);
            let second = slot.buffer.take_up_to(0, 1).map_or(vec![], expand);
            assert!((1..=3).contains(&first.len()));
            assert!(
                second.first().is_none_or(|id| first.last() < Some(id)),
                "I4"
            );
            [first, second].concat()
        });
        let mut ids = takes(&slot, 0, 2);
        ids.extend(run.join().unwrap());
        once(ids, &[11, 12, 20, 21, 22]);
    });
}

/// Two runs that both reach the end of their buffer.
#[test]
fn two_runs_over_a_switch() {
    check(3, || {
        let slot = Slot::new((11, 2), Some((20, 2)));
        let runs = |slot: &Slot| {
            let mut ids = Vec::new();
            for _ in 0..2 {
                ids.extend(slot.buffer.take_up_to(0, 2).map_or(vec![], expand));
            }
            ids
        };
        let other = spawn(&slot, runs);
        let mut ids = runs(&slot);
        ids.extend(other.join().unwrap());
        assert_eq!(ids.len(), 4, "an exchange discards nothing");
        once(ids, &[11, 12, 20, 21]);
    });
}

/// A range gives up the rest of the buffer while a taker takes from it: each id is either taken or
/// lost.
#[test]
fn a_range_that_gives_the_rest_up_and_a_taker() {
    check(4, || {
        let slot = Slot::new((11, 2), Some((20, 3)));
        let taker = spawn(&slot, |slot| takes(slot, 0, 2));
        let taken = slot.buffer.take_range(0, 3);
        let mut ids = taker.join().unwrap();
        let lost = match taken {
            Ok(taken) => {
                assert_eq!((taken.first, taken.count), (20, 3));
                ids.extend(expand(taken));
                taken.lost
            }
            // The taker was in the spare already.
            Err(Miss::Empty) => 0,
            Err(other) => panic!("{other:?}"),
        };
        let left = expand_remainders(slot.invalidate());
        let count = ids.len() + left.len() + usize::try_from(lost).unwrap();
        assert!((4..=5).contains(&count), "one discarded take at most");
        ids.extend(left);
        once(ids, &[11, 12, 20, 21, 22]);
    });
}

/// Two ranges must not both get the start of one spare.
#[test]
fn two_ranges_for_one_spare() {
    check(4, || {
        let slot = Slot::new((11, 1), Some((20, 5)));
        let range = |slot: &Slot| slot.buffer.take_range(0, 2).unwrap();
        let other = spawn(&slot, range);
        let mine = range(&slot);
        let other = other.join().unwrap();
        assert_eq!(mine.lost + other.lost, 1);
        once([expand(mine), expand(other)].concat(), &[20, 21, 22, 23]);
    });
}

/// A spare that is too short is switched to once, and each lost id is counted by exactly one of the
/// two.
#[test]
fn two_ranges_and_a_spare_too_short_for_both() {
    check(4, || {
        let slot = Slot::new((11, 2), Some((20, 2)));
        let range = |slot: &Slot| {
            let mut lost = 0;
            loop {
                match slot.buffer.take_range(0, 3) {
                    Err(Miss::Short { lost: more }) => lost += more,
                    Err(Miss::Empty) => return lost,
                    other => panic!("{other:?}"),
                }
            }
        };
        let other = spawn(&slot, range);
        let lost = range(&slot) + other.join().unwrap();
        assert_eq!(lost, 2);
        assert_eq!(expand_remainders(slot.invalidate()), [20, 21]);
    });
}

/// "Empty" makes a session wait, so it must not be concluded from two different moments.
fn never_empty(take: fn(&DoubleBuffer) -> Result<Taken, Miss>) {
    check(2, move || {
        let slot = Slot::new((11, 1), Some((20, 8)));
        let other = spawn(&slot, |slot| {
            // The current buffer or the spare has two ids after each of these.
            assert_eq!(takes(slot, 0, 1).len(), 1);
            assert_eq!(takes(slot, 0, 1).len(), 1);
            slot.publish(0, 30, 20).unwrap();
            slot.buffer.take_range(0, 8).unwrap();
            slot.publish(0, 50, 2).unwrap();
        });
        take(&slot.buffer).unwrap();
        other.join().unwrap();
    });
}

#[test]
fn there_is_always_an_id_and_no_taker_says_empty() {
    never_empty(|buffer| buffer.take(0));
}

#[test]
fn there_is_always_a_run_and_no_taker_says_empty() {
    never_empty(|buffer| buffer.take_up_to(0, 2));
}

#[test]
fn there_is_always_a_range_and_no_taker_says_empty() {
    never_empty(|buffer| buffer.take_range(0, 2));
}

/// The status view must not combine the first id of one segment with the length of another.
#[test]
fn looking_without_a_lock() {
    check(2, || {
        let slot = Slot::new((11, 1), Some((200, 2)));
        let other = spawn(&slot, |slot| {
            takes(slot, 0, 2);
            slot.publish(0, 3_000, 3).unwrap();
            takes(slot, 0, 2);
            slot.publish(0, 40_000, 4).unwrap();
        });
        let remainders = slot.buffer.remainders();
        let segment = remainders.current_segment.expect("one is always in use");
        assert!(
            [(10, 2), (200, 2), (3_000, 3)].contains(&segment),
            "{segment:?}"
        );
        if let Some(spare) = remainders.spare {
            let spare = (spare.first, spare.last);
            let whole = [(200, 201), (3_000, 3_002), (40_000, 40_003)];
            assert!(whole.contains(&spare), "{spare:?}");
        }
        other.join().unwrap();
    });
}

/// A request is dropped or answered while a session is about to wait: the session must be woken,
/// and must find an allocator that claims for it.
#[test]
fn no_request_is_lost() {
    struct Waiting {
        buffer: DoubleBuffer,
        lock: Mutex<()>,
        changed: Condvar,
        wanted: Condvar,
    }
    check(2, || {
        let slot = Arc::new(Waiting {
            buffer: DoubleBuffer::new(),
            lock: Mutex::new(()),
            changed: Condvar::new(),
            wanted: Condvar::new(),
        });
        let session = || {
            let slot = Arc::clone(&slot);
            thread::spawn(move || {
                if let Ok(taken) = slot.buffer.take(0) {
                    return taken.first;
                }
                let mut guard = slot.lock.lock().unwrap();
                loop {
                    match slot.buffer.take(0) {
                        Ok(taken) => return taken.first,
                        Err(miss) => assert_eq!(miss, Miss::Empty),
                    }
                    if slot.buffer.want() {
                        slot.wanted.notify_one();
                    }
                    guard = slot.changed.wait(guard).unwrap();
                }
            })
        };
        let sessions = [session(), session()];
        // Two segments of one id each: the second session must request again.
        for first in [1, 2] {
            let mut guard = slot.lock.lock().unwrap();
            let request = loop {
                match slot.buffer.accept() {
                    Some(request) => break request,
                    None => guard = slot.wanted.wait(guard).unwrap(),
                }
            };
            drop(guard);
            assert!(slot.buffer.is_in_flight(&request));
            {
                let _guard = slot.lock.lock().unwrap();
                slot.buffer.publish(0, first, 1).unwrap();
            }
            slot.buffer.clear(&request);
            let _guard = slot.lock.lock().unwrap();
            slot.changed.notify_all();
        }
        let ids = sessions.map(|s| s.join().unwrap());
        once(ids.to_vec(), &[1, 2]);
    });
}

/// A range requested while an allocator is claiming is served by this claim or the next.
#[test]
fn no_wish_is_lost() {
    check(4, || {
        let slot = Slot::new((11, 1), None);
        let other = spawn(&slot, |slot| slot.buffer.want_range(70));
        let mine = slot.buffer.want_range(30);
        let accepted = slot.buffer.accept();
        let theirs = other.join().unwrap();
        assert!(mine ^ theirs, "one session tells the allocator");
        let Some(request) = accepted else {
            panic!("one of them had asked")
        };
        slot.buffer.clear(&request);
        assert!(slot.buffer.want());
        let next = slot.buffer.accept().unwrap();
        assert_eq!(request.range_len.max(next.range_len), 70);
        assert!(request.range_len >= 30);
    });
}

/// A slot is given to another tag during a claim: the claim could be issued as the new tag's, or
/// the old allocator could end the new tag's request while the slot is on a list, so that it is
/// linked twice.
#[test]
fn a_slot_changes_hands_under_an_open_request() {
    struct Shared {
        slot: Arc<Slot>,
        /// Number of lists that the slot is on.
        linked: AtomicI64,
    }
    impl Shared {
        fn post(&self) {
            if self.slot.buffer.want() {
                let before = self.linked.fetch_add(1, Ordering::SeqCst);
                assert_eq!(before, 0, "linked twice");
            }
        }

        fn accept(&self) -> Option<SegmentRequest> {
            // First taken off the list.
            (self.linked.load(Ordering::SeqCst) > 0).then(|| {
                self.linked.fetch_sub(1, Ordering::SeqCst);
                self.slot.buffer.accept().unwrap()
            })
        }

        /// A claim for the tag that has the slot in this version.
        fn claim(&self, request: &SegmentRequest, first: i64) -> bool {
            let version = {
                let _guard = self.slot.lock.lock().unwrap();
                if !self.slot.buffer.is_in_flight(request) {
                    return false;
                }
                self.slot.buffer.version()
            };
            let published = self.slot.publish(version, first, 1).is_ok();
            self.slot.buffer.clear(request);
            published
        }
    }
    check(3, || {
        let shared = Arc::new(Shared {
            slot: Slot::new((11, 1), None),
            linked: AtomicI64::new(0),
        });
        shared.post();
        let old = shared.accept().unwrap();
        let allocator = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || shared.claim(&old, 20))
        };
        let evicted = {
            let _guard = shared.slot.lock.lock().unwrap();
            assert!(shared.slot.buffer.close(), "no session has asked again");
            shared.slot.buffer.invalidate();
            shared.slot.buffer.version()
        };
        // Session and allocator of the new tag.
        shared.post();
        let new = shared.accept();
        let published = new.is_some_and(|new| shared.claim(&new, 100));
        shared.post();
        allocator.join().unwrap();
        assert!(
            published,
            "its request was ended by the old tag's allocator"
        );
        assert_eq!(shared.slot.buffer.take(evicted).unwrap().first, 100);
        assert_eq!(shared.slot.buffer.take(evicted), Err(Miss::Empty));
    });
}

mod snowflake {
    use super::*;

    const WORKER: u16 = 7;

    fn open_at(floor_ms: i64) -> Arc<Generator> {
        let generator = Generator::new(Layout::DEFAULT);
        generator.reserve(1_000);
        generator.open(WORKER, floor_ms);
        Arc::new(generator)
    }

    fn spawn<T: 'static>(
        generator: &Arc<Generator>,
        body: impl FnOnce(&Generator) -> T + 'static,
    ) -> thread::JoinHandle<T> {
        let generator = Arc::clone(generator);
        thread::spawn(move || body(&generator))
    }

    fn issue(generator: &Generator, ms: i64, sequence: u16) -> Result<i64, Stall> {
        let issued = generator.next(|| ms, |_| sequence, None);
        issued.map(|issued| issued.id)
    }

    /// Issues like a session: by the fast path if possible.
    fn issue_at_once(generator: &Generator, ms: i64) -> Result<i64, Stall> {
        let at_once = generator.next_at_once(|| ms);
        at_once.map_or_else(|| issue(generator, ms, 0), Ok)
    }

    fn worker_of(id: i64) -> u16 {
        Layout::DEFAULT.decompose(id).unwrap().worker_id
    }

    /// Checks a model with each choice of the first four weak exchanges of an execution to fail
    /// spuriously.
    fn check_with_spurious_failures(preemptions: usize, model: fn()) {
        for failing in 1..1 << 4 {
            check(preemptions, move || {
                fail_weak_exchanges(failing);
                model();
            });
        }
    }

    /// Two ids from consecutive calls of one session.
    fn issue_two(generator: &Generator) -> [i64; 2] {
        let first = issue(generator, 100, 0).unwrap();
        let second = issue(generator, 100, 0).unwrap();
        assert!(first < second, "I4");
        [first, second]
    }

    /// Two sessions that exchange the same word would issue the same id.
    #[test]
    fn two_issuers() {
        check(4, two_issue_two);
    }

    /// The word is as it was after an exchange that has failed spuriously. Taken for a success, the
    /// id would be issued again.
    #[test]
    fn two_issuers_whose_exchanges_fail_spuriously() {
        check_with_spurious_failures(4, two_issue_two);
    }

    fn two_issue_two() {
        let generator = open_at(50);
        let other = spawn(&generator, issue_two);
        let mut ids = issue_two(&generator).to_vec();
        ids.extend(other.join().unwrap());
        ids.sort_unstable();
        let expected: Vec<i64> = (ids[0]..ids[0] + 4).collect();
        assert_eq!(ids, expected, "no id twice, none skipped");
    }

    /// Both have waited for the tick after a full millisecond that the clock has not reached.
    #[test]
    fn two_issuers_ahead_of_the_clock() {
        check(4, two_issue_ahead_of_the_clock);
    }

    /// The same: at the next try, they have still waited for it.
    #[test]
    fn two_issuers_ahead_of_the_clock_whose_exchanges_fail_spuriously() {
        check_with_spurious_failures(4, two_issue_ahead_of_the_clock);
    }

    fn two_issue_ahead_of_the_clock() {
        let generator = open_at(50);
        generator.set_lead(Lead {
            max_ms: 100,
            ..Lead::NONE
        });
        let full = Full {
            ms: 50,
            found_at_ms: 44,
        };
        assert_eq!(issue(&generator, 44, 0), Err(Stall::Full(full)));
        let issuer = move |generator: &Generator| {
            let issued = generator.next(|| 45, |_| 0, Some(full)).unwrap();
            assert_eq!(issued.lead_ms, 6);
            issued.id
        };
        let other = spawn(&generator, issuer);
        let mut ids = [issuer(&generator), other.join().unwrap()];
        ids.sort_unstable();
        assert_eq!(ids[1], ids[0] + 1, "one begins it, and the other goes on");
    }

    /// The last ids of a millisecond. An addition in place of the exchange would carry into the
    /// worker id, or take an id that the other has.
    #[test]
    fn at_once_and_next_until_the_millisecond_is_full() {
        check(4, || {
            let layout = Layout::new(41, 10, 2).unwrap();
            let generator = Arc::new(Generator::new(layout));
            generator.reserve(1_000);
            generator.open(WORKER, 50);
            let mut ids = vec![issue(&generator, 100, 0).unwrap()];
            let by_next = spawn(&generator, |generator| {
                [issue(generator, 100, 0), issue(generator, 100, 0)]
            });
            let at_once = [(); 2].map(|()| issue_at_once(&generator, 100));
            for issued in by_next.join().unwrap().into_iter().chain(at_once) {
                match issued {
                    Ok(id) => ids.push(id),
                    Err(stall) => assert!(matches!(stall, Stall::Full(_))),
                }
            }
            ids.sort_unstable();
            let expected: Vec<i64> = (ids[0]..ids[0] + 4).collect();
            assert_eq!(ids, expected, "no id twice, none skipped, none beyond");
        });
    }

    /// A close, and the next open at the same millisecond: an exchange that was prepared before
    /// must not succeed after either.
    #[test]
    fn at_once_and_a_close() {
        check(4, || {
            let generator = open_at(50);
            issue(&generator, 100, 0).unwrap();
            let other = spawn(&generator, |generator| {
                [(); 2].map(|()| generator.next_at_once(|| 100))
            });
            let last = Layout::DEFAULT.compose(generator.close());
            assert_eq!(generator.next_at_once(|| 100), None);
            generator.open(WORKER, 100);
            assert_eq!(generator.next_at_once(|| 100), None);
            for id in other.join().unwrap().into_iter().flatten() {
                assert!(id <= last, "{id} after {last}");
            }
        });
    }

    /// A session that has read the word before a change of the worker id must not issue with the
    /// old one after it, nor with the new one in the old millisecond.
    #[test]
    fn at_once_and_a_change_of_the_worker_id() {
        check(4, || {
            let generator = open_at(50);
            issue(&generator, 100, 0).unwrap();
            let other = spawn(&generator, |generator| {
                let at = |ms| generator.next_at_once(|| ms);
                [at(100), at(100), at(101)]
            });
            generator.open(9, 0);
            let opened = Layout::DEFAULT.compose(generator.last());
            let mine = [(); 2].map(|()| issue_at_once(&generator, 101).unwrap());
            let theirs = other.join().unwrap().into_iter().flatten();
            let (before, after): (Vec<_>, Vec<_>) = theirs.partition(|id| worker_of(*id) == WORKER);
            assert!(before.iter().all(|id| *id < opened), "above what is issued");
            let mut ids = [&mine[..], &after].concat();
            assert!(ids.iter().all(|id| worker_of(*id) == 9 && *id > opened));
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len(), mine.len() + after.len(), "no id twice");
        });
    }

    /// An issuer that has read the word before a change must not issue with the old worker id after
    /// it, nor below it.
    #[test]
    fn two_issuers_and_a_change_of_the_worker_id() {
        check(2, || {
            let generator = open_at(50);
            let issuer = |first_ms: i64| {
                move |generator: &Generator| {
                    let mut ids: Vec<i64> = Vec::new();
                    for ms in [first_ms, first_ms + 1] {
                        match issue(generator, ms, 0) {
                            Ok(id) => ids.push(id),
                            Err(stall) => {
                                assert!(matches!(stall, Stall::Full(_) | Stall::TooFarAhead(_)));
                            }
                        }
                    }
                    assert!(ids.is_sorted_by(|a, b| a < b), "I4");
                    ids
                }
            };
            let other = spawn(&generator, issuer(100));
            let third = spawn(&generator, issuer(101));
            generator.open(9, 0);
            let mine = issue(&generator, 200, Layout::DEFAULT.max_sequence()).unwrap();
            assert_eq!(worker_of(mine), 9);
            let mut ids = [other.join().unwrap(), third.join().unwrap()].concat();
            ids.push(mine);
            ids.sort_unstable();
            let workers: Vec<u16> = ids.iter().map(|id| worker_of(*id)).collect();
            let count = ids.len();
            ids.dedup();
            assert_eq!(ids.len(), count, "no id twice");
            assert_eq!(ids.last(), Some(&mine));
            assert!(workers.is_sorted(), "one change: {workers:?}");
        });
    }

    /// The result of close() is written as the last id, so no issuer may get a later one.
    #[test]
    fn nothing_is_issued_after_a_close() {
        check(3, || {
            let generator = open_at(50);
            let issuer = |generator: &Generator| {
                let first = issue(generator, 100, 0);
                [first, issue(generator, 100, 0)]
            };
            let others = [spawn(&generator, issuer), spawn(&generator, issuer)];
            let last = Layout::DEFAULT.compose(generator.close());
            assert_eq!(issue(&generator, 500, 0), Err(Stall::Closed));
            for other in others {
                for issued in other.join().unwrap() {
                    match issued {
                        Ok(id) => assert!(id <= last, "{id} after {last}"),
                        // Between the two steps of the close; the next attempt returns Closed.
                        Err(stall) => {
                            assert!(matches!(stall, Stall::Closed | Stall::Unreserved));
                        }
                    }
                }
            }
        });
    }

    /// A close writes the exact last timestamp, and an open follows without a new reservation: an
    /// issuer that missed both must not use the old reservation (I7).
    #[test]
    fn nothing_is_issued_on_a_reservation_given_back() {
        check(4, || {
            let generator = open_at(50);
            let other = spawn(&generator, |generator| issue(generator, 500, 0));
            let last = generator.close();
            generator.open(WORKER, last.ms);
            match other.join().unwrap() {
                Ok(id) => assert!(id <= Layout::DEFAULT.compose(last)),
                Err(stall) => assert!(
                    matches!(stall, Stall::Closed | Stall::Unreserved),
                    "{stall:?}"
                ),
            }
        });
    }

    /// Durable first: an issuer that uses a reservation sees what was written before it.
    #[test]
    fn a_reservation_is_seen_after_what_made_it_durable() {
        check(4, || {
            let generator = open_at(50);
            let durable = Arc::new(AtomicI64::new(1_000));
            let seen = Arc::clone(&durable);
            let other = spawn(&generator, move |generator| {
                issue(generator, 1_500, 0).map(|_| seen.load(Ordering::Relaxed))
            });
            durable.store(2_000, Ordering::Relaxed);
            generator.reserve(2_000);
            match other.join().unwrap() {
                Ok(written) => assert_eq!(written, 2_000),
                Err(stall) => assert_eq!(stall, Stall::Unreserved),
            }
        });
    }
}
