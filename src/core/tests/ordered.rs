//! Goes through every history of two writers and a reader of one tag, which reads twice, and once more when
//! the writers have ended.
//!
//! Would catch: a row that the reader passes, or reads twice. Each rule is left out once, and the shortest
//! history that shows why it is needed is printed. What a lock says and the watermark are the code that ships.

#![cfg(not(leaf_id_loom))]

use std::collections::{HashSet, VecDeque};

use leaf_id_core::ordered::{self, LAST_LOW};

const WRITERS: usize = 2;
const ROUNDS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// A transaction's low is taken before its ids.
    LowBeforeId,
    /// Its lock is held before it takes them.
    LockBeforeId,
    /// The lock is released when the transaction is visible as ended.
    LockUntilVisible,
    /// The reader takes its own id before it looks at the locks.
    HereBeforeLocks,
    /// It reads with a snapshot that is taken after that.
    SnapshotAfterLocks,
    /// It goes on behind the last row that it has read, not at the watermark, which may go back: a low that was
    /// taken is locked later.
    PositionOfRows,
}

const RULES: [Rule; 6] = [
    Rule::LowBeforeId,
    Rule::LockBeforeId,
    Rule::LockUntilVisible,
    Rule::HereBeforeLocks,
    Rule::SnapshotAfterLocks,
    Rule::PositionOfRows,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    TakeLow,
    Lock,
    TakeId,
    Commit,
    Rollback,
    Unlock,
    TakeHere,
    /// Looks at the lock of a writer. Not at all of them at once, which the server does.
    Look(usize),
    Snapshot,
    Read,
}

fn of_writer(left_out: Option<Rule>) -> [Step; 5] {
    use Step::{Commit, Lock, TakeId, TakeLow, Unlock};
    match left_out {
        Some(Rule::LowBeforeId) => [TakeId, TakeLow, Lock, Commit, Unlock],
        Some(Rule::LockBeforeId) => [TakeLow, TakeId, Lock, Commit, Unlock],
        Some(Rule::LockUntilVisible) => [TakeLow, Lock, TakeId, Unlock, Commit],
        _ => [TakeLow, Lock, TakeId, Commit, Unlock],
    }
}

fn of_reader(left_out: Option<Rule>) -> [Step; 5] {
    use Step::{Look, Read, Snapshot, TakeHere};
    match left_out {
        Some(Rule::HereBeforeLocks) => [Look(0), Look(1), TakeHere, Snapshot, Read],
        Some(Rule::SnapshotAfterLocks) => [Snapshot, TakeHere, Look(0), Look(1), Read],
        _ => [TakeHere, Look(0), Look(1), Snapshot, Read],
    }
}

#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct Writer {
    done: usize,
    low: i64,
    id: i64,
    lock: Option<(u32, u16)>,
    is_visible: bool,
}

#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct Reader {
    done: usize,
    here: i64,
    lows: Vec<i64>,
    snapshot: Vec<i64>,
    position: i64,
    delivered: Vec<i64>,
}

#[derive(Clone, Default, PartialEq, Eq, Hash)]
struct World {
    last_id: i64,
    writers: [Writer; WRITERS],
    reader: Reader,
}

impl World {
    fn take(&mut self) -> i64 {
        self.last_id += 1;
        self.last_id
    }

    fn visible(&self) -> Vec<i64> {
        let visible = self.writers.iter().filter(|writer| writer.is_visible);
        visible.map(|writer| writer.id).collect()
    }

    fn write(&mut self, number: usize, step: Step) {
        let taken = match step {
            Step::TakeLow | Step::TakeId => self.take(),
            _ => 0,
        };
        let writer = &mut self.writers[number];
        match step {
            Step::TakeLow => writer.low = taken,
            Step::Lock => writer.lock = ordered::numbers(writer.low),
            Step::TakeId => writer.id = taken,
            Step::Commit => writer.is_visible = true,
            Step::Unlock => writer.lock = None,
            _ => {}
        }
        writer.done += 1;
    }

    fn read(&mut self, step: Step, left_out: Option<Rule>) {
        match step {
            Step::TakeHere => self.reader.here = self.take(),
            Step::Look(number) => {
                let low = self.writers[number].lock.and_then(ordered::low);
                self.reader.lows.extend(low);
            }
            Step::Snapshot => self.reader.snapshot = self.visible(),
            _ => self.reader.deliver(left_out),
        }
        self.reader.done += 1;
    }

    /// All steps that may come next, with what they lead to.
    fn next(&self, left_out: Option<Rule>) -> Vec<(String, Self)> {
        let mut worlds = Vec::new();
        for (number, writer) in self.writers.iter().enumerate() {
            let steps = match of_writer(left_out).get(writer.done) {
                Some(Step::Commit) => vec![Step::Commit, Step::Rollback],
                step => step.copied().into_iter().collect(),
            };
            for step in steps {
                let mut world = self.clone();
                world.write(number, step);
                worlds.push((format!("writer {number}: {step:?}"), world));
            }
        }
        let steps = of_reader(left_out);
        if self.reader.done < ROUNDS * steps.len() {
            let step = steps[self.reader.done % steps.len()];
            let mut world = self.clone();
            world.read(step, left_out);
            worlds.push((format!("reader: {step:?}"), world));
        }
        worlds
    }

    /// What is wrong when all has ended, and the reader has read once more.
    fn fault(mut self, left_out: Option<Rule>) -> Option<String> {
        for step in of_reader(None) {
            self.read(step, left_out);
        }
        let mut delivered = self.reader.delivered.clone();
        delivered.sort_unstable();
        delivered.dedup();
        let mut visible = self.visible();
        visible.sort_unstable();
        if delivered.len() < self.reader.delivered.len() {
            Some(format!("read twice: {:?}", self.reader.delivered))
        } else if delivered != visible {
            Some(format!("read {delivered:?} of {visible:?}"))
        } else {
            None
        }
    }
}

impl Reader {
    fn deliver(&mut self, left_out: Option<Rule>) {
        let watermark = ordered::watermark(self.here, self.lows.drain(..));
        let is_next = |id: &i64| *id > self.position && *id < watermark;
        let mut rows: Vec<_> = self.snapshot.drain(..).filter(is_next).collect();
        rows.sort_unstable();
        self.position = match left_out {
            Some(Rule::PositionOfRows) => watermark - 1,
            _ => rows.last().copied().unwrap_or(self.position),
        };
        self.delivered.extend(rows);
    }
}

/// The shortest history that ends wrong, and how many worlds were seen.
fn search(left_out: Option<Rule>) -> (Option<Vec<String>>, usize) {
    let mut seen = HashSet::from([World::default()]);
    let mut queue = VecDeque::from([(World::default(), Vec::new())]);
    while let Some((world, history)) = queue.pop_front() {
        let next = world.next(left_out);
        if next.is_empty()
            && let Some(fault) = world.fault(left_out)
        {
            return (Some([history, vec![fault]].concat()), seen.len());
        }
        for (step, world) in next {
            if seen.insert(world.clone()) {
                queue.push_back((world, [history.clone(), vec![step]].concat()));
            }
        }
    }
    (None, seen.len())
}

#[test]
fn no_row_is_passed_or_read_twice() {
    let (fault, worlds) = search(None);
    println!("{worlds} worlds");
    assert_eq!(fault, None);
    assert!(worlds > 10_000, "{worlds} worlds");
}

#[test]
fn each_rule_is_needed() {
    for rule in RULES {
        let (fault, _) = search(Some(rule));
        let history = fault.unwrap_or_else(|| panic!("nothing goes wrong without {rule:?}"));
        println!("without {rule:?}:\n  {}", history.join("\n  "));
    }
}

#[test]
fn a_lock_says_its_low() {
    let powers = (0..47).flat_map(|bit| [(1 << bit) - 1, 1 << bit, (1 << bit) + 1]);
    for low in powers.chain([LAST_LOW]) {
        let numbers = ordered::numbers(low).unwrap_or_else(|| panic!("no lock says {low}"));
        assert_eq!(ordered::low(numbers), Some(low), "{numbers:?}");
        // Those of others.
        assert_eq!(ordered::low((numbers.0, numbers.1 & 0x7fff)), None);
    }
    for low in [-1, LAST_LOW + 1, i64::MAX] {
        assert_eq!(ordered::numbers(low), None, "{low}");
    }
}
