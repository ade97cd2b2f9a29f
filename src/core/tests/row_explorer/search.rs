//! Breadth-first search of all histories of a world.

use std::collections::HashSet;
use std::fmt::{Debug, Write as _};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::time::Instant;

use crate::support;

/// All rules and assumptions except one.
#[derive(Clone, Copy)]
pub struct Rules<R> {
    without: Option<R>,
}

impl<R: Copy + PartialEq> Rules<R> {
    pub fn hold(self, rule: R) -> bool {
        self.without != Some(rule)
    }
}

/// State of a model, changed by steps.
pub trait World: Copy + Eq + Hash {
    /// Name in the report.
    const NAME: &'static str;
    /// A rule or an assumption that can be left out.
    type Rule: Copy + Debug + PartialEq;
    type Step: Copy + Debug;

    /// The initial state.
    fn new() -> Self;

    /// The state after a step; `None` if the step is not possible.
    fn after(self, step: Self::Step, rules: Rules<Self::Rule>) -> Option<Self>;

    /// True if a promise is broken.
    fn is_broken(&self) -> bool;
}

/// The histories to search.
#[derive(Clone, Copy)]
pub struct Histories<'a, S> {
    /// First steps, ...
    pub begin: &'a [S],
    /// ... continued by any of these, ...
    pub steps: &'a [S],
    /// ... up to this number.
    pub depth: u64,
}

/// Millions of worlds are hashed, and the standard hasher would take most of the time.
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

/// Searches all histories, the shortest first. Returns the number of worlds, and the first history
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
    // Each with its predecessor and the step from it; the first one refers to itself.
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

/// Asserts that no history breaks a promise if all rules hold.
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

/// Asserts that a history breaks a promise if `rule` is left out.
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

/// Asserts that each of these rules and assumptions is needed.
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

/// Bit set of ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ids(u64);

impl Ids {
    /// Highest id that fits.
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

    /// True if the sets intersect.
    pub fn meet(self, others: Self) -> bool {
        self.0 & others.0 != 0
    }
}

/// Converts an id of a small world.
pub fn narrow(id: i64) -> u8 {
    u8::try_from(id).unwrap_or(u8::MAX)
}
