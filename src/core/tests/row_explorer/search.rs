//! Search of the histories of a world: all of them up to a depth, and long random ones.

use std::collections::HashSet;
use std::fmt::{Debug, Write as _};
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::time::Instant;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};

use super::report::{self, Line};
use crate::support;

/// Steps of a random history.
const WALK: usize = 60;
/// Least number of kinds of steps in a random history.
const KINDS: usize = 6;
/// Steps drawn in a row that cannot be taken, before a random history ends.
const REFUSED: u32 = 100;

/// All rules and assumptions except one.
#[derive(Clone, Copy)]
pub struct Rules<R> {
    without: Option<R>,
}

impl<R: Copy + PartialEq> Rules<R> {
    pub const ALL: Self = Self { without: None };

    pub fn hold(self, rule: R) -> bool {
        self.without != Some(rule)
    }

    /// True if none is left out.
    pub fn hold_all(self) -> bool {
        self.without.is_none()
    }

    /// The value, or 0 without the rule.
    pub fn keep<T: Default>(self, rule: R, value: T) -> T {
        if self.hold(rule) { value } else { T::default() }
    }
}

/// State of a model, changed by steps.
pub trait World: Copy + Eq + Hash {
    /// Name in the report.
    const NAME: &'static str;
    /// A rule or an assumption that can be left out.
    type Rule: Copy + Debug + PartialEq;
    type Step: Copy + Debug + PartialEq;

    /// The initial state.
    fn new() -> Self;

    /// The state after a step; `None` if the step is not possible.
    fn after(self, step: Self::Step, rules: Rules<Self::Rule>) -> Option<Self>;

    /// True if a promise is broken.
    fn is_broken(&self) -> bool;

    /// False where the search of all histories ends, to keep their number finite. Random ones go
    /// on.
    fn is_small(&self) -> bool {
        true
    }
}

/// A world whose histories are repeated on servers.
pub trait Repeated: World {
    /// What a server shows after a step; empty if that depends on what it has cached.
    fn shown(&self) -> String {
        String::new()
    }

    /// True if a server refuses the step with an error.
    fn refuses(&self, _step: Self::Step) -> bool {
        false
    }
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

/// Fingerprint of a world, two independent hashes of 64 bits. The search remembers millions of
/// worlds, which take too much memory themselves. That two of them share a fingerprint is less
/// likely than an error of the machine.
#[derive(Default)]
struct Mixer([u64; 2]);

impl Mixer {
    fn of(world: &impl Hash) -> u128 {
        let mut mixer = Self::default();
        world.hash(&mut mixer);
        let [low, high] = mixer.0.map(|half| {
            let half = (half ^ half >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
            half ^ half >> 32
        });
        u128::from(high) << 64 | u128::from(low)
    }
}

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0[0]
    }

    fn write(&mut self, bytes: &[u8]) {
        for bytes in bytes.chunks(8) {
            let mut number = [0; 8];
            number[..bytes.len()].copy_from_slice(bytes);
            self.write_u64(u64::from_le_bytes(number));
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.write_u64(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        let [low, high] = &mut self.0;
        *low = (low.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        *high = (high.rotate_left(23) ^ number).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    }

    fn write_usize(&mut self, number: usize) {
        self.write_u64(number as u64);
    }
}

/// The hash of a fingerprint is its lower half.
#[derive(Default)]
struct Half(u64);

impl Hasher for Half {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for (at, byte) in bytes.iter().take(8).enumerate() {
            self.0 |= u64::from(*byte) << (8 * at);
        }
    }

    fn write_u128(&mut self, number: u128) {
        self.0 = number as u64;
    }
}

/// The world after the first steps.
fn begin<W: World>(rules: Rules<W::Rule>, histories: Histories<'_, W::Step>) -> W {
    let mut world = W::new();
    for &step in histories.begin {
        match world.after(step, rules) {
            Some(next) => world = next,
            None => panic!("{}: {step:?} cannot be taken", W::NAME),
        }
    }
    world
}

/// Searches all histories, the shortest first. Returns the number of worlds, and the first history
/// that breaks a promise.
fn explore<W: World>(
    rules: Rules<W::Rule>,
    histories: Histories<'_, W::Step>,
) -> (usize, Option<Vec<W::Step>>) {
    let start = begin::<W>(rules, histories);
    let mut seen = HashSet::<u128, BuildHasherDefault<Half>>::default();
    seen.insert(Mixer::of(&start));
    // World number n + 1 comes from a world, by number, and by a step.
    let mut origins: Vec<(usize, W::Step)> = Vec::new();
    let mut level = vec![(0, start)];
    for _ in 0..histories.depth {
        let mut deeper = Vec::new();
        for (before, world) in level {
            for &step in histories.steps {
                let Some(next) = world.after(step, rules) else {
                    continue;
                };
                if !next.is_small() || !seen.insert(Mixer::of(&next)) {
                    continue;
                }
                origins.push((before, step));
                if next.is_broken() {
                    let mut history = Vec::new();
                    let mut at = origins.len();
                    while at > 0 {
                        let (before, step) = origins[at - 1];
                        history.push(step);
                        at = before;
                    }
                    history.extend(histories.begin.iter().rev());
                    history.reverse();
                    return (seen.len(), Some(history));
                }
                deeper.push((origins.len(), next));
            }
        }
        level = deeper;
    }
    (seen.len(), None)
}

/// Some of these kinds of steps: a history of a few gets further than one of all.
fn some_of<S: Copy>(steps: &[S], random: &mut impl RngExt) -> Vec<S> {
    let kinds = random.random_range(KINDS..=steps.len().max(KINDS));
    steps.sample(random, kinds).copied().collect()
}

/// Takes random steps, as far as they can be taken. Returns those that break a promise.
fn walk<W: World>(
    rules: Rules<W::Rule>,
    histories: Histories<'_, W::Step>,
    seed: u64,
) -> Option<Vec<W::Step>> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut world = begin::<W>(rules, histories);
    let steps = some_of(histories.steps, &mut random);
    let mut taken = Vec::new();
    let mut refused = 0;
    while taken.len() < WALK && refused < REFUSED {
        let step = *steps.choose(&mut random)?;
        let Some(next) = world.after(step, rules) else {
            refused += 1;
            continue;
        };
        taken.push(step);
        if next.is_broken() {
            return Some(taken);
        }
        (world, refused) = (next, 0);
    }
    None
}

/// The part of these steps, after the first ones, that can be taken and breaks a promise.
fn breaking<W: World>(
    rules: Rules<W::Rule>,
    histories: Histories<'_, W::Step>,
    steps: impl Iterator<Item = W::Step>,
) -> Option<Vec<W::Step>> {
    let mut world = begin::<W>(rules, histories);
    let mut taken = Vec::new();
    for step in steps {
        let Some(next) = world.after(step, rules) else {
            continue;
        };
        taken.push(step);
        if next.is_broken() {
            return Some(taken);
        }
        world = next;
    }
    None
}

/// The shortest history in place of a long one. Leaves out as many of its steps as it can, then
/// searches all shorter histories of those left, and of any steps where that is not too deep.
fn shortened<W: World>(
    rules: Rules<W::Rule>,
    histories: Histories<'_, W::Step>,
    mut history: Vec<W::Step>,
) -> Vec<W::Step> {
    let mut len = history.len() / 2;
    while len > 0 {
        let mut from = 0;
        while from < history.len() {
            let rest = history.iter().take(from);
            let rest = rest.chain(history.iter().skip(from + len));
            match breaking::<W>(rules, histories, rest.copied()) {
                Some(shorter) => history = shorter,
                None => from += len,
            }
        }
        len /= 2;
    }
    let mut own = Vec::new();
    for step in &history {
        if !own.contains(step) {
            own.push(*step);
        }
    }
    let mut shortest = [histories.begin, &history].concat();
    for (steps, deepest) in [(&*own, u64::MAX), (histories.steps, histories.depth)] {
        let depth = (shortest.len() - histories.begin.len()) as u64 - 1;
        let shorter = Histories {
            steps,
            depth: depth.min(deepest),
            ..histories
        };
        if let (_, Some(found)) = explore::<W>(rules, shorter) {
            shortest = found;
        }
    }
    shortest
}

/// Takes random walks until one breaks a promise. Returns the shortest history that does so.
fn wander<W: World>(
    rules: Rules<W::Rule>,
    histories: Histories<'_, W::Step>,
    walks: u64,
    seed: u64,
) -> Option<Vec<W::Step>> {
    let mut seeds = StdRng::seed_from_u64(seed);
    let broken = (0..walks).find_map(|_| walk::<W>(rules, histories, seeds.random()))?;
    println!("{}: found in {} steps", W::NAME, broken.len());
    Some(shortened::<W>(rules, histories, broken))
}

fn shown<S: Debug>(history: &[S]) -> String {
    let mut text = String::new();
    for step in history {
        let space = if text.is_empty() { "" } else { " " };
        let _ = write!(text, "{space}{step:?}");
    }
    text
}

/// Asserts that no history breaks a promise if all rules hold: none of all those up to a depth, and
/// none of many long ones.
pub fn assert_holds<W: World>(histories: Histories<'_, W::Step>, long: u64) {
    let depth = support::rounds(histories.depth, long);
    let histories = Histories { depth, ..histories };
    let rules = Rules::ALL;
    let begun = Instant::now();
    let (worlds, history) = explore::<W>(rules, histories);
    report::keep(&Line {
        world: W::NAME,
        without: "nothing",
        history: history
            .as_deref()
            .map_or_else(|| format!("none after: {}", shown(histories.begin)), shown),
        len: history.as_ref().map_or(0, Vec::len),
        worlds,
        depth,
        seconds: begun.elapsed().as_secs_f32(),
    });
    assert_eq!(history.as_deref().map(shown), None, "{}", W::NAME);
    let walks = support::rounds(20_000, 1_000_000);
    let begun = Instant::now();
    let history = wander::<W>(rules, histories, walks, support::seed());
    println!(
        "{}: {walks} random histories of up to {WALK} steps ({:.1} s)",
        W::NAME,
        begun.elapsed().as_secs_f32()
    );
    assert_eq!(history.as_deref().map(shown), None, "{}", W::NAME);
}

/// Asserts that none of these histories breaks a promise if all rules hold.
pub fn assert_none<W: World>(histories: Histories<'_, W::Step>) {
    let rules = Rules::ALL;
    let begun = Instant::now();
    let (worlds, history) = explore::<W>(rules, histories);
    println!(
        "{}: {worlds} worlds to depth {} of {} steps after: {} ({:.1} s)",
        W::NAME,
        histories.depth,
        histories.steps.len(),
        shown(histories.begin),
        begun.elapsed().as_secs_f32()
    );
    assert_eq!(history.as_deref().map(shown), None, "{}", W::NAME);
}

/// Asserts that one of many random walks breaks a promise without `rule`.
pub fn assert_a_walk_finds<W: World>(rule: W::Rule, histories: Histories<'_, W::Step>) {
    let rules = Rules {
        without: Some(rule),
    };
    let mut seeds = StdRng::seed_from_u64(1);
    let is_found = (0..20_000).any(|_| walk::<W>(rules, histories, seeds.random()).is_some());
    assert!(is_found, "{}, without {rule:?}", W::NAME);
}

/// Asserts that random walks find that `rule` is needed, too, and are shortened to a history as
/// short as any.
pub fn assert_found_by_walks<W: World>(rule: W::Rule, histories: Histories<'_, W::Step>) {
    let rules = Rules {
        without: Some(rule),
    };
    let (_, shortest) = explore::<W>(rules, histories);
    let found = wander::<W>(rules, histories, 1_000, 1);
    assert_eq!(
        found.as_deref().map(<[_]>::len),
        shortest.as_deref().map(<[_]>::len),
        "{}, without {rule:?}: {found:?}, {shortest:?}",
        W::NAME
    );
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
    let line = Line {
        world: W::NAME,
        without: &format!("{kind} {rule:?}"),
        history: shown(&history),
        len: history.len(),
        worlds,
        depth: histories.depth,
        seconds: begun.elapsed().as_secs_f32(),
    };
    report::keep(&line);
    report::assert_in_readme(&line);
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

/// The shortest histories that break a promise without one of these rules; none for a rule that
/// needs other steps, or more of them.
pub fn broken<W: World>(rules: &[W::Rule], histories: Histories<'_, W::Step>) -> Vec<Vec<W::Step>> {
    let without = |rule: &W::Rule| {
        let rules = Rules {
            without: Some(*rule),
        };
        explore::<W>(rules, histories).1
    };
    rules.iter().filter_map(without).collect()
}

/// A history as text: the world, and each step with what a server shows after it, or `refused`.
/// Begins with `begin`, as far as its steps can be taken if all rules hold, and goes on at random.
pub fn history<W: Repeated>(
    begin: &[W::Step],
    histories: Histories<'_, W::Step>,
    random: &mut impl RngExt,
) -> String {
    let rules = Rules::ALL;
    let steps = some_of(histories.steps, random);
    let mut begin = begin.iter();
    let mut world = W::new();
    let mut text = W::NAME.to_owned();
    let (mut taken, mut refused) = (0, 0);
    while taken < histories.depth && refused < REFUSED {
        let Some(&step) = begin.next().or_else(|| steps.choose(random)) else {
            break;
        };
        if let Some(next) = world.after(step, rules) {
            (world, refused) = (next, 0);
            taken += 1;
            let _ = write!(text, "\t{step:?}={}", world.shown());
        } else {
            refused += 1;
            if world.refuses(step) {
                taken += 1;
                let _ = write!(text, "\t{step:?}=refused");
            }
        }
    }
    text
}

/// Bit set of ids.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ids(u128);

impl Ids {
    /// Highest id that fits.
    pub const LAST: u8 = 127;

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
