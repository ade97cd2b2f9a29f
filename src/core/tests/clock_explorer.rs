//! Explores every history, up to a depth, of a small world: a server, and one that takes over from
//! it, that share a fixed worker id. Time passes in ticks of 100 ms.
//!
//! Would catch: an id issued twice (I7), a first id that comes too late after an event, and a call
//! that waits although the clock was set back by less than the max lead. The decisions are the code
//! that ships; the word and the files are a few lines here. Rules can be left out, also several at
//! once: the smallest sets of rules that keep all promises are printed.

#![cfg(not(leaf_id_loom))]
#![allow(clippy::expect_used, reason = "a test that panics fails")]

mod support;

use std::collections::HashSet;

use leaf_id_core::keeper::FOR_EVER;
use leaf_id_core::layout::Layout;
use leaf_id_core::reservation::{
    Decision, Floor, Opening, Reader, Reason, Start, Stored, Terms, floor, late_renewal,
};

/// Has a table of the shortest histories.
const README: &str = include_str!("../README.md");
const TICK_MS: i64 = 100;
/// Also the max difference between the clocks.
const RESERVATION_MS: i64 = 2 * TICK_MS;
const MAX_LEAD_MS: i64 = 4 * TICK_MS;
const TERMS: Terms = Terms {
    write_ms: 0,
    reservation_ms: RESERVATION_MS,
    max_lead_ms: MAX_LEAD_MS,
};
/// True time. The other times are relative to it, so that worlds recur.
const NOW_MS: i64 = 1_000 * TICK_MS;
/// Times that are further back are all the same.
const LONG_AGO_MS: i64 = NOW_MS - 20 * TICK_MS;
/// Min reservation of the shipped code.
const LEAST_MS: i64 = 50;
/// Max ticks to the first id.
const SOON: u8 = 1;
const AFTER_UNKNOWN: u8 = 2;

/// A rule that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// While ids lead, a full millisecond waits for the next tick of the clock.
    Pace,
    /// A reservation does not exceed the max lead.
    Cap,
    /// There is a min reservation.
    Least,
    /// A restarted launcher takes its floor from the word, not from the file.
    WordFloor,
    /// The floor above an unknown predecessor allows for its max lead.
    LeadOfOthers,
    /// The floor above an unknown predecessor allows for the difference of the clocks.
    ClockOfOthers,
}

const RULES: [Rule; 6] = [
    Rule::Pace,
    Rule::Cap,
    Rule::Least,
    Rule::WordFloor,
    Rule::LeadOfOthers,
    Rule::ClockOfOthers,
];

/// The only smallest set of rules that keeps the promises. A min reservation is for disks whose
/// writes take time, which pass at once here.
const SMALLEST: [Rule; 5] = [
    Rule::Pace,
    Rule::Cap,
    Rule::WordFloor,
    Rule::LeadOfOthers,
    Rule::ClockOfOthers,
];

/// A set of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rules(u8);

impl Rules {
    const ALL: Self = Self((1 << RULES.len()) - 1);

    fn hold(self, rule: Rule) -> bool {
        self.0 >> rule as u8 & 1 != 0
    }

    const fn without(self, rule: Rule) -> Self {
        Self(self.0 & !(1 << rule as u8))
    }

    fn is_within(self, other: Self) -> bool {
        self.0 & !other.0 == 0
    }

    fn names(self) -> Vec<Rule> {
        RULES.into_iter().filter(|rule| self.hold(*rule)).collect()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    /// A tick passes, at rest or under full load.
    Tick,
    Load,
    Kill,
    CleanStop,
    /// The launcher restarts; a reservation that it wrote before may not be in force.
    RestartLauncher,
    FailWriteAndRestartLauncher,
    /// The clock is set, in ticks from the earliest that is allowed.
    SetClock(u8),
    /// The other server gets a copy of the file.
    Copy,
    /// The other server is promoted.
    Promote,
    LoseDisk,
}

/// One server, whose clock may be set back by almost the max lead.
const ALONE: [Step; 10] = [
    Step::Tick,
    Step::Load,
    Step::Kill,
    Step::CleanStop,
    Step::RestartLauncher,
    Step::FailWriteAndRestartLauncher,
    Step::SetClock(0),
    Step::SetClock(1),
    Step::SetClock(2),
    Step::SetClock(3),
];

/// Two servers, whose clocks differ by no more than a reservation.
const PAIR: [Step; 9] = [
    Step::Tick,
    Step::Load,
    Step::Kill,
    Step::CleanStop,
    Step::SetClock(0),
    Step::SetClock(2),
    Step::Copy,
    Step::Promote,
    Step::LoseDisk,
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    Twice,
    Late,
    WaitsForClock,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct File {
    until_ms: i64,
    clean: bool,
    original: bool,
    timeline: u32,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Run {
    is_open: bool,
    last_ms: i64,
    /// No more ids of that millisecond.
    is_full: bool,
    reserved_ms: i64,
    /// Once known: its time, and whether the predecessor is unknown.
    floor: Option<(i64, bool)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct World {
    off_ms: [i64; 2],
    files: [Option<File>; 2],
    run: Run,
    live: usize,
    timeline: u32,
    /// Of any id.
    largest_ms: i64,
    /// Max leads that are due to faults, of ids and of the reservation.
    owed_ms: i64,
    owed_until_ms: i64,
    /// Ticks until the first id is due.
    due: Option<u8>,
    is_twice: bool,
    is_late: bool,
    waits: bool,
}

impl World {
    fn new(off: [i64; 2]) -> Self {
        let mut world = Self {
            off_ms: off.map(|ticks| ticks * TICK_MS),
            files: [None; 2],
            run: Run::default(),
            live: 0,
            timeline: 1,
            largest_ms: LONG_AGO_MS,
            owed_ms: 0,
            owed_until_ms: 0,
            due: None,
            is_twice: false,
            is_late: false,
            waits: false,
        };
        // As after a clean stop.
        world.files[0] = Some(File {
            until_ms: LONG_AGO_MS,
            clean: true,
            original: true,
            timeline: 1,
        });
        let _ = world.issue(Rules::ALL);
        world
    }

    fn trouble(&self) -> Option<Trouble> {
        [
            (self.is_twice, Trouble::Twice),
            (self.is_late, Trouble::Late),
            (self.waits, Trouble::WaitsForClock),
        ]
        .into_iter()
        .find_map(|(is, trouble)| is.then_some(trouble))
    }

    fn wall_ms(&self) -> i64 {
        NOW_MS + self.off_ms[self.live]
    }

    fn lead_ms(&self) -> i64 {
        let file_ms = self.files[self.live].map_or(0, |file| file.until_ms);
        let floor_ms = self.run.floor.map_or(file_ms, |(ms, _)| ms);
        let last_ms = self.run.last_ms;
        (if last_ms > 0 { last_ms } else { floor_ms }) - self.wall_ms()
    }

    /// Load and time have not made the leads due to faults any larger.
    fn settle(&mut self) {
        let owed_ms = self.owed_ms.min(self.lead_ms());
        let until_ms = self.files[self.live].map_or(0, |file| file.until_ms) - self.wall_ms();
        let wanted_ms = (owed_ms.max(0) + RESERVATION_MS).min(MAX_LEAD_MS - LEAST_MS);
        self.owed_ms = owed_ms.max(-5 * TICK_MS);
        self.owed_until_ms = (self.owed_until_ms.min(until_ms))
            .max(wanted_ms)
            .max(owed_ms.max(0) + LEAST_MS);
    }

    /// The next id is due in so many ticks, unless faults have added up to more than the max lead.
    fn happened(&mut self, ticks: u8) {
        let is_due = self.owed_ms <= MAX_LEAD_MS;
        self.due = is_due.then(|| self.due.unwrap_or(0).max(ticks));
    }

    fn waits_for_unknown(&self) -> bool {
        self.run.floor.is_some_and(|(_, is_unknown)| is_unknown)
    }

    /// A start, of a run that may have been waiting for an unknown predecessor, and begins again.
    fn happened_to(&mut self, waits_for_unknown: bool) {
        if waits_for_unknown {
            self.owed_ms = MAX_LEAD_MS + RESERVATION_MS;
            self.due = Some(AFTER_UNKNOWN);
        } else {
            self.happened(SOON);
        }
    }

    /// The reservation to write above `from_ms`.
    fn until_ms(rules: Rules, from_ms: i64, until_ms: i64) -> i64 {
        let until_ms = if rules.hold(Rule::Cap) {
            until_ms
        } else {
            from_ms + RESERVATION_MS
        };
        if !rules.hold(Rule::Least) && until_ms - from_ms <= LEAST_MS {
            from_ms + 1
        } else {
            until_ms
        }
    }

    fn write(&mut self, until_ms: i64) {
        self.files[self.live] = Some(File {
            until_ms,
            clean: false,
            original: true,
            timeline: self.timeline,
        });
    }

    fn floor(&self, rules: Rules) -> (i64, bool) {
        if self.run.last_ms > 0 && rules.hold(Rule::WordFloor) {
            return (self.run.last_ms, false);
        }
        let mut terms = TERMS;
        if !rules.hold(Rule::LeadOfOthers) {
            terms.max_lead_ms = 0;
        }
        if !rules.hold(Rule::ClockOfOthers) {
            terms.reservation_ms = 0;
        }
        let start = Start {
            now_ms: self.wall_ms(),
            epoch_ms: 0,
            layout: Layout::DEFAULT,
            above_others_ms: terms.above_others_ms(self.wall_ms()),
            reader: Reader {
                system_identifier: 1,
                timeline: self.timeline,
                leased: false,
            },
            never_issued: false,
        };
        let stored = self.files[self.live].map(|file| Stored {
            reserved_until_ms: file.until_ms,
            epoch_ms: 0,
            layout: Layout::DEFAULT,
            issued: true,
            system_identifier: 1,
            timeline: file.timeline,
            original: file.original,
            clean: file.clean,
            left_behind_until_ms: None,
        });
        let floor = floor(start, stored).expect("the same layout");
        let is_known = matches!(floor.reason, Reason::CleanStop | Reason::Crash);
        (floor.ms, !is_known)
    }

    fn open(&mut self, rules: Rules) {
        let now_ms = self.wall_ms();
        let (ms, _) = *self.run.floor.get_or_insert(self.floor(rules));
        let opening = Opening {
            now_ms,
            last_ms: self.run.last_ms,
            floor: Some(Floor {
                ms,
                reason: Reason::Crash,
            }),
            granted_floor_ms: None,
            others_floor_ms: None,
            retired_until_ms: None,
            terms: TERMS,
        };
        let Decision::Open { floor, until_ms } = opening.decide() else {
            return;
        };
        let until_ms = Self::until_ms(rules, now_ms.max(floor.ms), until_ms);
        self.write(until_ms);
        self.run = Run {
            is_open: true,
            last_ms: floor.ms.max(self.run.last_ms),
            is_full: true,
            reserved_ms: until_ms,
            floor: None,
        };
    }

    /// Renews the reservation for an id at `ms`. False if it remains too short.
    fn reserve(&mut self, rules: Rules, ms: i64) -> bool {
        let run = self.run;
        if ms > run.reserved_ms {
            let now_ms = self.wall_ms();
            let until_ms = late_renewal(now_ms, run.last_ms, TERMS, 0, FOR_EVER).unwrap_or(0);
            let until_ms = Self::until_ms(rules, now_ms.max(run.last_ms), until_ms);
            if until_ms > run.reserved_ms {
                self.write(until_ms);
                self.run.reserved_ms = until_ms;
            }
        }
        ms <= self.run.reserved_ms
    }

    /// An id at `ms`. False if it has to wait.
    fn issue_at(&mut self, rules: Rules, ms: i64) -> bool {
        let lead_ms = ms - self.wall_ms();
        if lead_ms > TERMS.lead(0).max_ms || !self.reserve(rules, ms) {
            return false;
        }
        if ms > self.run.last_ms {
            self.is_twice |= ms <= self.largest_ms;
            self.largest_ms = self.largest_ms.max(ms);
            self.run.last_ms = ms;
            self.run.is_full = false;
        }
        self.owed_ms = self.owed_ms.max(0);
        true
    }

    /// A call. False if it has to wait.
    fn issue(&mut self, rules: Rules) -> bool {
        if !self.run.is_open {
            self.open(rules);
        }
        let last_ms = self.run.last_ms;
        let ms = self.wall_ms().max(last_ms + i64::from(self.run.is_full));
        self.run.is_open && self.issue_at(rules, ms)
    }

    /// Issues as many ids as possible during a tick that has just passed.
    fn load(&mut self, rules: Rules) {
        let (now_ms, last_ms) = (self.wall_ms(), self.run.last_ms);
        if !rules.hold(Rule::Pace) {
            for _ in 0..MAX_LEAD_MS + RESERVATION_MS {
                let ms = self.run.last_ms + 1;
                let _ = self.issue_at(rules, ms);
            }
        } else if last_ms + TICK_MS > now_ms {
            let _ = self.issue_at(rules, now_ms.max(last_ms + TICK_MS));
        }
    }

    /// Makes all times one tick older.
    fn age(&mut self) {
        let older = |ms: i64| {
            if ms > 0 {
                (ms - TICK_MS).max(LONG_AGO_MS)
            } else {
                ms
            }
        };
        for file in self.files.iter_mut().flatten() {
            file.until_ms = older(file.until_ms);
        }
        let run = &mut self.run;
        run.last_ms = older(run.last_ms);
        run.reserved_ms = older(run.reserved_ms);
        run.floor = (run.floor).map(|(ms, is_unknown)| (older(ms), is_unknown));
        self.largest_ms = older(self.largest_ms);
    }

    /// The server stops, and what it reserved counts as used.
    fn crash(&mut self) {
        self.settle();
        if self.run.last_ms > 0 {
            self.owed_ms = self.owed_until_ms;
        }
        self.run = Run::default();
    }

    fn stop(&mut self) {
        self.settle();
        if let Some(file) = &mut self.files[self.live]
            && self.run.is_open
        {
            file.until_ms = self.run.last_ms;
            file.clean = true;
        }
        self.run.is_open = false;
    }

    /// A start with an unknown predecessor.
    fn unknown(&mut self) {
        self.crash();
        self.owed_ms = MAX_LEAD_MS + RESERVATION_MS;
        self.owed_until_ms = self.owed_ms + LEAST_MS;
        self.due = Some(AFTER_UNKNOWN);
    }

    fn after(mut self, step: Step, rules: Rules) -> Option<Self> {
        match step {
            Step::Tick | Step::Load => {
                self.age();
                if step == Step::Load {
                    if !self.run.is_open {
                        return None;
                    }
                    self.load(rules);
                }
            }
            Step::Kill => {
                let waits = self.waits_for_unknown();
                self.crash();
                self.happened_to(waits);
            }
            Step::CleanStop => {
                let waits = self.waits_for_unknown();
                // What was written for a run that was not opened counts as used.
                if self.run.is_open {
                    self.stop();
                    self.run = Run::default();
                } else {
                    self.crash();
                }
                self.happened_to(waits);
            }
            Step::RestartLauncher => {
                self.stop();
                self.happened(SOON);
            }
            Step::FailWriteAndRestartLauncher => {
                if !self.run.is_open {
                    return None;
                }
                self.stop();
                let (now_ms, last_ms) = (self.wall_ms(), self.run.last_ms);
                let until_ms = TERMS.target(now_ms, last_ms);
                let until_ms = Self::until_ms(rules, now_ms.max(last_ms), until_ms);
                self.write(until_ms);
                self.happened(SOON);
            }
            Step::SetClock(ticks) => {
                let off_ms = i64::from(ticks) * TICK_MS;
                let back_ms = self.off_ms[self.live] - off_ms;
                if back_ms == 0 {
                    return None;
                }
                self.settle();
                self.off_ms[self.live] = off_ms;
                self.owed_ms += back_ms;
                self.owed_until_ms += back_ms;
                let is_due = self.due.is_none() && self.owed_ms < MAX_LEAD_MS;
                self.happened(SOON);
                // No wait at all.
                if is_due && self.run.is_open {
                    self.waits = !self.issue(rules);
                }
            }
            Step::Copy => {
                let copy = self.files[self.live].map(|file| File {
                    original: false,
                    ..file
                });
                self.files[1 - self.live] = copy;
            }
            Step::Promote => {
                self.unknown();
                self.live = 1 - self.live;
                self.timeline += 1;
                if self.timeline > 4 {
                    return None;
                }
            }
            Step::LoseDisk => {
                self.unknown();
                self.files[self.live] = None;
            }
        }
        let is_issued = self.issue(rules);
        if is_issued {
            self.due = None;
        } else if let Some(ticks) = self.due
            && matches!(step, Step::Tick | Step::Load)
        {
            self.is_late |= ticks == 0;
            self.due = Some(ticks.saturating_sub(1));
        }
        Some(self)
    }
}

/// Searches all histories, the shortest first: the number of worlds, and the first history that
/// breaks a promise.
fn explore(
    begin: World,
    steps: &[Step],
    depth: u64,
    rules: Rules,
) -> (usize, Option<(Trouble, Vec<Step>)>) {
    // Each with its predecessor and the step from it.
    let mut worlds = vec![(begin, 0, Step::Tick)];
    let mut seen = HashSet::from([begin]);
    let mut from = 0;
    for _ in 0..depth {
        let to = worlds.len();
        for before in from..to {
            for &step in steps {
                let Some(next) = worlds[before].0.after(step, rules) else {
                    continue;
                };
                if !seen.insert(next) {
                    continue;
                }
                worlds.push((next, before, step));
                if let Some(trouble) = next.trouble() {
                    let mut history = Vec::new();
                    let mut at = worlds.len() - 1;
                    while at > 0 {
                        history.push(worlds[at].2);
                        at = worlds[at].1;
                    }
                    history.reverse();
                    return (worlds.len(), Some((trouble, history)));
                }
            }
        }
        from = to;
    }
    (worlds.len(), None)
}

/// Both worlds.
fn explore_all(depth: u64, rules: Rules) -> (usize, Option<(Trouble, Vec<Step>)>) {
    let alone = explore(World::new([3, 0]), &ALONE, depth, rules);
    let mut worlds = alone.0;
    if alone.1.is_some() {
        return alone;
    }
    for off in [[2, 0], [0, 2]] {
        let pair = explore(World::new(off), &PAIR, depth, rules);
        worlds += pair.0;
        if pair.1.is_some() {
            return pair;
        }
    }
    (worlds, None)
}

#[test]
fn the_rules_keep_the_promises() {
    let depth = support::rounds(7, 9);
    let (worlds, found) = explore_all(depth, Rules::ALL);
    println!("{worlds} worlds, all histories of up to {depth} steps");
    assert_eq!(found, None);
}

#[test]
fn shortest_history_without_each_rule() {
    let depth = support::rounds(7, 9);
    for rule in RULES {
        let (worlds, found) = explore_all(depth, Rules::ALL.without(rule));
        println!("without {rule:?}: {found:?} ({worlds} worlds)");
        assert_eq!(found.is_some(), SMALLEST.contains(&rule), "{rule:?}");
        if let Some((_, history)) = found {
            let steps: Vec<_> = history.iter().map(|step| format!("{step:?}")).collect();
            let row = format!("| {rule:?} | {} |", steps.join(" "));
            assert!(README.contains(&row), "not in the README: {row}");
        }
    }
}

#[test]
fn smallest_sets_of_rules() {
    let depth = support::rounds(6, 8);
    let mut sets: Vec<_> = (0..=Rules::ALL.0).map(Rules).collect();
    sets.sort_by_key(|rules| rules.0.count_ones());
    let mut smallest: Vec<Rules> = Vec::new();
    for rules in sets {
        let is_larger = smallest.iter().any(|small| small.is_within(rules));
        if !is_larger && explore_all(depth, rules).1.is_none() {
            println!("enough, up to {depth} steps: {:?}", rules.names());
            smallest.push(rules);
        }
    }
    let names: Vec<_> = smallest.into_iter().map(Rules::names).collect();
    assert_eq!(names, [SMALLEST.to_vec()]);
}
