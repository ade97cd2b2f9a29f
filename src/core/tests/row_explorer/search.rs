//! All histories of a world, the shortest first.

use std::collections::HashSet;
use std::fmt::{Debug, Write as _};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::time::Instant;

use crate::support;

/// The rules and assumptions that hold: all but one.
#[derive(Clone, Copy)]
pub struct Rules<R> {
    without: Option<R>,
}

impl<R: Copy + PartialEq> Rules<R> {
    pub fn hold(self, rule: R) -> bool {
        self.without != Some(rule)
    }
}

/// A world in which steps are taken.
pub trait World: Copy + Eq + Hash {
    /// For the report.
    const NAME: &'static str;
    /// What can be left out: a rule, or an assumption.
    type Rule: Copy + Debug + PartialEq;
    type Step: Copy + Debug;

    /// Before the first step.
    fn new() -> Self;

    /// The world after a step; none where it cannot be taken.
    fn after(self, step: Self::Step, rules: Rules<Self::Rule>) -> Option<Self>;

    /// Whether a promise is broken.
    fn is_broken(&self) -> bool;
}

/// Which histories.
#[derive(Clone, Copy)]
pub struct Histories<'a, S> {
    /// They begin with these steps, ...
    pub begin: &'a [S],
    /// ... and go on with any of these, ...
    pub steps: &'a [S],
    /// ... at most so many.
    pub depth: u64,
}

/// Worlds are hashed by the byte, millions of times: the standard library's takes most of the time.
#[derive(Default)]
struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = (self.0.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}

/// Goes through all histories, the shortest first: how many worlds there are, and the first history
/// that breaks a promise.
fn explore<W: World>(
    rules: Rules<W::Rule>,
    histories: Histories<'_, W::Step>,
) -> (usize, Option<Vec<W::Step>>) {
    let mut start = W::new();
    for &step in histories.begin {
        match start.after(step, rules) {
            Some(next) => start = next,
            None => panic!("{}: {step:?} cannot be taken", W::NAME),
        }
    }
    // Each with the one before it and the step between them; the first with itself.
    let mut worlds = vec![(start, 0, None)];
    let mut seen = HashSet::<W, BuildHasherDefault<Mixer>>::default();
    seen.insert(start);
    let mut from = 0;
    for _ in 0..histories.depth {
        let to = worlds.len();
        for before in from..to {
            for &step in histories.steps {
                let Some(next) = worlds[before].0.after(step, rules) else {
                    continue;
                };
                if !seen.insert(next) {
                    continue;
                }
                worlds.push((next, before, Some(step)));
                if next.is_broken() {
                    let mut history = Vec::new();
                    let mut at = worlds.len() - 1;
                    while let (_, before, Some(step)) = worlds[at] {
                        history.push(step);
                        at = before;
                    }
                    history.extend(histories.begin.iter().rev());
                    history.reverse();
                    return (worlds.len(), Some(history));
                }
            }
        }
        from = to;
    }
    (worlds.len(), None)
}

fn shown<S: Debug>(history: &[S]) -> String {
    let mut text = String::new();
    for step in history {
        let _ = write!(text, " {step:?}");
    }
    text
}

/// With all rules, no history breaks a promise.
pub fn assert_holds<W: World>(histories: Histories<'_, W::Step>, long: u64) {
    let depth = support::rounds(histories.depth, long);
    let histories = Histories { depth, ..histories };
    let begun = Instant::now();
    let (worlds, history) = explore::<W>(Rules { without: None }, histories);
    println!(
        "{}: {worlds} worlds, all histories of up to {depth} steps after{} ({:.1} s)",
        W::NAME,
        shown(histories.begin),
        begun.elapsed().as_secs_f32()
    );
    assert_eq!(history.as_deref().map(shown), None, "{}", W::NAME);
}

/// Without a rule, a history breaks a promise.
pub fn assert_needed<W: World>(kind: &str, rule: W::Rule, histories: Histories<'_, W::Step>) {
    let rules = Rules {
        without: Some(rule),
    };
    let begun = Instant::now();
    let (worlds, history) = explore::<W>(rules, histories);
    let Some(history) = history else {
        panic!("{}: no history of {worlds} worlds needs {rule:?}", W::NAME);
    };
    println!(
        "{}, without the {kind} {rule:?}:{} ({worlds} worlds, {:.1} s)",
        W::NAME,
        shown(&history),
        begun.elapsed().as_secs_f32()
    );
}

/// Each of these rules is needed, and so is each of these assumptions.
pub fn assert_all_needed<W: World>(
    rules: &[W::Rule],
    assumptions: &[W::Rule],
    histories: Histories<'_, W::Step>,
) {
    for &rule in rules {
        assert_needed::<W>("rule", rule, histories);
    }
    for &assumption in assumptions {
        assert_needed::<W>("assumption", assumption, histories);
    }
}

/// Ids of small worlds, by bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ids(u64);

impl Ids {
    /// The highest there can be.
    pub const LAST: u8 = 63;

    pub fn has(self, id: u8) -> bool {
        self.0 >> id & 1 != 0
    }

    pub fn add(&mut self, id: u8) {
        self.0 |= 1 << id;
    }

    pub fn add_all(&mut self, others: Self) {
        self.0 |= others.0;
    }

    /// Whether some are in both.
    pub fn meet(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }
}

/// Ids of small worlds are small.
pub fn narrow(id: i64) -> u8 {
    u8::try_from(id).unwrap_or(u8::MAX)
}
