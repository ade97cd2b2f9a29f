//! All histories, up to a depth, of a small model of tags whose rows are set back by people, tools
//! and failovers: claims, drops, renames, resets, rows put aside and restored, tables rewritten by
//! a tool, crashes, restarts, standbys and promotions, in any order.
//!
//! Would catch: an id of a name issued twice (I3) because a rule about rows and marks is missing.
//! Each rule is left out once, and the shortest history that needs it is printed; a rule that no
//! history needs fails the test.

#![cfg(not(leaf_id_loom))]
#![allow(clippy::expect_used, reason = "a test that panics fails")]

mod support;

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;

use leaf_id_core::row;

/// A row of the table of tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Row {
    /// Next unclaimed id.
    max_id: u8,
    /// Distinguishes it from other rows of the same name.
    incarnation: u8,
    /// Timeline of its last claim.
    timeline: u8,
}

/// A rule that can be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// A claim starts above the mark of its name.
    ClaimAboveMark,
    /// A claim raises the mark.
    ClaimRaisesMark,
    /// A row inserted under, or restored to, a name starts at the name's mark. (Claims start above
    /// that anyway, but the transaction that creates a tag issues from the row.)
    InsertAtMark,
    /// A deleted row leaves its `max_id` to the mark of its name.
    DeleteLeavesMark,
    /// So does a row that is renamed.
    RenameLeavesMark,
    /// A tool that copies marks sees those written by edits, as it sees edits of rows; only claims
    /// bypass row triggers.
    EditsOfMarksSeen,
    /// Ids of claims lost on an earlier timeline are skipped.
    Skip,
    /// The servers in between have skipped as much, and may have claimed above that.
    SkipOfChains,
    /// The skip is also applied before a row is deleted or renamed.
    SettleBeforeMark,
    /// A segment is not published if its slot was invalidated after the claim began.
    PublishToSameVersion,
}

/// The rules in effect: those of `leaf_id_core::row`, except one.
#[derive(Clone, Copy)]
struct Rules {
    without: Option<Rule>,
    /// Max claims of a name lost in one failover.
    lost_claims: u8,
    /// Ids per claim.
    segment: u8,
}

impl Rules {
    fn hold(&self, rule: Rule) -> bool {
        self.without != Some(rule)
    }

    /// Upper bound for ids of claims lost since the row's timeline.
    fn skip(&self, row: Row, timeline: u8) -> u64 {
        let promotions = row::promotions(row.timeline.into(), timeline.into(), true);
        let lost = u64::from(self.lost_claims) * u64::from(self.segment);
        if !self.hold(Rule::Skip) {
            0
        } else if self.hold(Rule::SkipOfChains) {
            row::skip(promotions, lost)
        } else {
            u64::from(promotions) * lost
        }
    }

    /// First id of a claim.
    fn first(&self, row: Row, mark: u8, timeline: u8) -> u8 {
        let mark = if self.hold(Rule::ClaimAboveMark) {
            mark
        } else {
            0
        };
        let skip = self.skip(row, timeline);
        narrow(row::first(row.max_id.into(), mark.into(), 0, skip))
    }

    fn claimed(&self, mark: u8, end: u8) -> u8 {
        if self.hold(Rule::ClaimRaisesMark) {
            mark.max(end)
        } else {
            mark
        }
    }

    /// `max_id` of an inserted row.
    fn inserted(&self, max_id: u8, mark: u8) -> u8 {
        if self.hold(Rule::InsertAtMark) {
            narrow(row::arriving(max_id.into(), mark.into()))
        } else {
            max_id
        }
    }

    /// The row after its skip.
    fn settled(&self, row: Row, mark: u8, timeline: u8) -> Row {
        if !self.hold(Rule::SettleBeforeMark) {
            return row;
        }
        let skip = self.skip(row, timeline);
        Row {
            max_id: narrow(row::leaving(row.max_id.into(), mark.into(), skip)),
            timeline,
            ..row
        }
    }

    /// The mark left by a row after its skip.
    fn left(&self, rule: Rule, row: Row, mark: u8) -> u8 {
        if self.hold(rule) {
            mark.max(row.max_id)
        } else {
            mark
        }
    }
}

/// Converts an id; ids are small in this model.
fn narrow(id: i64) -> u8 {
    u8::try_from(id).unwrap_or(u8::MAX)
}

const NAMES: usize = 2;
/// Ids are bit numbers.
const LAST: u8 = 60;

/// The two tables of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Database {
    rows: [Option<Row>; NAMES],
    marks: [u8; NAMES],
}

/// Shared memory of a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Slot {
    /// Row that its segments come from; 0 if none.
    incarnation: u8,
    /// The remaining ids: from `first` up to, excluding, the end.
    first: u8,
    end: u8,
    /// A claim committed but not published: incarnation of the row, and ids.
    pending: Option<(u8, u8, u8)>,
    /// Edited since that claim began.
    edited: bool,
}

/// A copy of a server's state, with the number of claims per name that it lacks of the primary's
/// timeline.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Standby {
    database: Database,
    timeline: u8,
    missing: [u8; NAMES],
}

impl Standby {
    fn lacks_more_than(&self, claims: u8) -> bool {
        self.missing.iter().any(|&missing| missing > claims)
    }
}

/// A tool rewrites one table at a time, without seeing concurrent writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Copied {
    Rows([Option<Row>; NAMES]),
    Marks([u8; NAMES]),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    database: Database,
    slots: [Slot; NAMES],
    timeline: u8,
    standbys: [Option<Standby>; 2],
    copied: Option<Copied>,
    /// A row put aside, as in a dump.
    aside: Option<(usize, Row)>,
    incarnations: u8,
    /// Ids issued per name, as bits.
    issued: [u64; NAMES],
    /// An id issued twice.
    twice: Option<(usize, u8)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create(usize),
    /// Create a tag and issue an id in the same transaction.
    CreateAndUse(usize),
    Drop(usize),
    Rename(usize),
    Reset(usize),
    Claim(usize),
    Publish(usize),
    /// Issue the next id, claiming and publishing a segment if needed.
    Use(usize),
    Crash,
    Restart,
    CopyRows,
    CopyMarks,
    PutCopyInPlace,
    PutAside(usize),
    PutBack,
    Follow(usize),
    Promote(usize),
}

impl World {
    fn new() -> Self {
        Self {
            database: Database {
                rows: [None; NAMES],
                marks: [0; NAMES],
            },
            slots: [Slot::default(); NAMES],
            timeline: 1,
            standbys: [None; 2],
            copied: None,
            aside: None,
            incarnations: 0,
            issued: [0; NAMES],
            twice: None,
        }
    }

    /// An edit of a row of this name commits.
    fn invalidate(&mut self, name: usize) {
        let slot = &mut self.slots[name];
        (slot.incarnation, slot.first, slot.end) = (0, 0, 0);
        slot.edited = true;
    }

    /// A name gets a row. A standby that lacks the row may not be promoted. (Assumption: a tag
    /// whose creation is lost is not created again with lower ids; nothing would detect that.)
    fn appear(&mut self, name: usize) {
        for standby in self.standbys.iter_mut().flatten() {
            standby.missing[name] = u8::MAX;
        }
    }

    fn forget_memory(&mut self) {
        self.slots = [Slot::default(); NAMES];
    }

    fn insert(&mut self, name: usize, row: Row, rules: Rules) {
        let max_id = rules.inserted(row.max_id, self.database.marks[name]);
        self.database.rows[name] = Some(Row {
            max_id,
            timeline: self.timeline,
            ..row
        });
        self.invalidate(name);
        self.appear(name);
    }

    fn remove(&mut self, name: usize, row: Row, rule: Rule, rules: Rules) -> Row {
        let row = rules.settled(row, self.database.marks[name], self.timeline);
        let mark = rules.left(rule, row, self.database.marks[name]);
        self.database.marks[name] = mark;
        if let Some(Copied::Marks(marks)) = &mut self.copied
            && rules.hold(Rule::EditsOfMarksSeen)
        {
            marks[name] = mark;
        }
        self.database.rows[name] = None;
        self.invalidate(name);
        row
    }

    /// The state after a step; `None` if the step is impossible.
    fn after(mut self, step: Step, rules: Rules) -> Option<Self> {
        match step {
            Step::Create(name) | Step::CreateAndUse(name) => {
                if self.database.rows[name].is_some() {
                    return None;
                }
                self.incarnations += 1;
                let row = Row {
                    max_id: 1,
                    incarnation: self.incarnations,
                    timeline: self.timeline,
                };
                self.insert(name, row, rules);
                if step == Step::CreateAndUse(name) {
                    let id = self.database.rows[name]?.max_id;
                    self.database.rows[name].as_mut()?.max_id = id + 1;
                    self.issue(name, id);
                }
            }
            Step::Drop(name) => {
                let row = self.database.rows[name]?;
                self.remove(name, row, Rule::DeleteLeavesMark, rules);
            }
            Step::Rename(name) => {
                let to = 1 - name;
                if self.database.rows[to].is_some() {
                    return None;
                }
                let row = self.database.rows[name]?;
                let row = self.remove(name, row, Rule::RenameLeavesMark, rules);
                self.database.rows[to] = Some(row);
                self.invalidate(to);
                self.appear(to);
            }
            Step::Reset(name) => {
                self.database.rows[name]?;
                self.incarnations += 1;
                let row = Row {
                    max_id: 1,
                    incarnation: self.incarnations,
                    timeline: self.timeline,
                };
                self.database.rows[name] = Some(row);
                self.database.marks[name] = 1;
                self.invalidate(name);
                // As requested. Restoring an older row, or promoting a standby without the reset,
                // goes back to before it.
                self.issued[name] = 0;
                self.standbys = [None; 2];
                self.copied = None;
                self.aside = None;
            }
            Step::Claim(name) => self.claim(name, rules)?,
            Step::Publish(name) => self.publish(name, rules)?,
            Step::Use(name) => {
                if self.slots[name].first == self.slots[name].end {
                    self.claim(name, rules)?;
                    self.publish(name, rules)?;
                }
                let slot = &mut self.slots[name];
                let id = slot.first;
                slot.first += 1;
                self.issue(name, id);
            }
            Step::Crash => self.forget_memory(),
            Step::Restart => {
                let saved = self.slots;
                self.forget_memory();
                for (name, slot) in saved.into_iter().enumerate() {
                    let Some(row) = self.database.rows[name] else {
                        continue;
                    };
                    let same = row.incarnation == slot.incarnation && row.max_id == slot.end;
                    if slot.first < slot.end && same {
                        self.slots[name] = Slot {
                            pending: None,
                            edited: false,
                            ..slot
                        };
                    }
                }
            }
            Step::CopyRows => self.copy(Copied::Rows(self.database.rows))?,
            Step::CopyMarks => self.copy(Copied::Marks(self.database.marks))?,
            Step::PutCopyInPlace => match self.copied.take()? {
                // The tool's triggers see people's edits, but not claims.
                Copied::Rows(rows) => {
                    for (here, copied) in self.database.rows.iter_mut().zip(rows) {
                        if let (Some(row), Some(older)) = (here, copied)
                            && row.incarnation == older.incarnation
                        {
                            *row = older;
                        }
                    }
                }
                Copied::Marks(marks) => self.database.marks = marks,
            },
            Step::PutAside(name) => {
                if self.aside.is_some() {
                    return None;
                }
                self.aside = Some((name, self.database.rows[name]?));
            }
            Step::PutBack => {
                let (name, row) = self.aside.take()?;
                if self.database.rows[name].is_some() {
                    return None;
                }
                self.insert(name, row, rules);
            }
            Step::Follow(number) => {
                let caught_up = Standby {
                    database: self.database,
                    timeline: self.timeline,
                    missing: [0; NAMES],
                };
                if self.standbys[number].replace(caught_up) == Some(caught_up) {
                    return None;
                }
            }
            Step::Promote(number) => {
                let standby = self.standbys[number].take()?;
                if standby
                    .missing
                    .iter()
                    .any(|&missing| missing > rules.lost_claims)
                {
                    return None;
                }
                self.database = standby.database;
                // Each promotion has a timeline of its own.
                self.timeline += 1;
                self.forget_memory();
                self.copied = None;
                self.aside = None;
                // The other one may lack as much of this timeline as of the previous one.
                for other in &mut self.standbys {
                    if other.is_some_and(|other| other.lacks_more_than(rules.lost_claims)) {
                        *other = None;
                    }
                    if let Some(other) = other {
                        other.missing = [0; NAMES];
                    }
                }
            }
        }
        (self.timeline < 4 && self.incarnations < 4).then_some(self)
    }

    fn copy(&mut self, copied: Copied) -> Option<()> {
        self.copied.is_none().then(|| self.copied = Some(copied))
    }

    fn issue(&mut self, name: usize, id: u8) {
        if self.issued[name] & 1 << id != 0 {
            self.twice = Some((name, id));
        }
        self.issued[name] |= 1 << id;
    }

    fn publish(&mut self, name: usize, rules: Rules) -> Option<()> {
        let slot = &mut self.slots[name];
        let (incarnation, first, end) = slot.pending.take()?;
        if !(slot.edited && rules.hold(Rule::PublishToSameVersion)) {
            (slot.incarnation, slot.first, slot.end) = (incarnation, first, end);
        }
        slot.edited = false;
        Some(())
    }

    fn claim(&mut self, name: usize, rules: Rules) -> Option<()> {
        let row = self.database.rows[name]?;
        let slot = &mut self.slots[name];
        if slot.first != slot.end || slot.pending.is_some() {
            return None;
        }
        let first = rules.first(row, self.database.marks[name], self.timeline);
        let end = first.saturating_add(rules.segment);
        if end > LAST || first > LAST {
            return None;
        }
        slot.pending = Some((row.incarnation, first, end));
        slot.edited = false;
        self.database.rows[name] = Some(Row {
            max_id: end,
            timeline: self.timeline,
            ..row
        });
        let mark = &mut self.database.marks[name];
        *mark = rules.claimed(*mark, end);
        for standby in self.standbys.iter_mut().flatten() {
            standby.missing[name] = standby.missing[name].saturating_add(1);
        }
        Some(())
    }
}

fn steps() -> Vec<Step> {
    let mut steps = vec![
        Step::Crash,
        Step::Restart,
        Step::CopyRows,
        Step::CopyMarks,
        Step::PutCopyInPlace,
        Step::PutBack,
    ];
    for name in 0..NAMES {
        steps.extend([
            Step::Create(name),
            Step::CreateAndUse(name),
            Step::Drop(name),
        ]);
        steps.extend([Step::Rename(name), Step::Reset(name)]);
        steps.extend([Step::Claim(name), Step::Publish(name), Step::Use(name)]);
        steps.push(Step::PutAside(name));
    }
    for number in 0..2 {
        steps.extend([Step::Follow(number), Step::Promote(number)]);
    }
    steps
}

/// Explores all histories that begin with these steps, shortest first. Returns the number of
/// states, and the first history that issues an id twice.
fn explore(rules: Rules, begin: &[Step], depth: u64) -> (usize, Option<Vec<Step>>) {
    let steps = steps();
    let start = begin.iter().fold(World::new(), |world, &step| {
        world.after(step, rules).expect("a step that can be taken")
    });
    let mut from: HashMap<World, Option<(World, Step)>> = HashMap::from([(start, None)]);
    let mut queue = VecDeque::from([(start, 0)]);
    while let Some((world, length)) = queue.pop_front() {
        if length == depth {
            continue;
        }
        for &step in &steps {
            let Some(next) = world.after(step, rules) else {
                continue;
            };
            if from.contains_key(&next) {
                continue;
            }
            from.insert(next, Some((world, step)));
            if next.twice.is_some() {
                let mut history = Vec::new();
                let mut at = next;
                while let Some(Some((before, step))) = from.get(&at) {
                    history.push(*step);
                    at = *before;
                }
                history.reverse();
                return (from.len(), Some(history));
            }
            queue.push_back((next, length + 1));
        }
    }
    (from.len(), None)
}

fn shown(history: &[Step]) -> String {
    let mut text = String::new();
    for step in history {
        let _ = write!(text, "{step:?} ");
    }
    text
}

const ALL: Rules = Rules {
    without: None,
    lost_claims: 1,
    segment: 2,
};

#[test]
fn no_id_comes_twice() {
    let depth = support::rounds(6, 7);
    let (worlds, history) = explore(ALL, &[], depth);
    println!("{worlds} worlds, all histories of up to {depth} steps");
    assert_eq!(history.as_deref().map(shown), None);
}

#[test]
fn every_rule_is_needed() {
    // One of two siblings is promoted, then the other, which lacks more.
    let siblings = [
        Step::Create(0),
        Step::Follow(1),
        Step::Use(0),
        Step::Follow(0),
        Step::Promote(0),
    ];
    for (rule, begin) in [
        (Rule::ClaimAboveMark, &[][..]),
        (Rule::ClaimRaisesMark, &[]),
        (Rule::InsertAtMark, &[]),
        (Rule::DeleteLeavesMark, &[]),
        (Rule::RenameLeavesMark, &[]),
        (Rule::EditsOfMarksSeen, &[]),
        (Rule::Skip, &[]),
        (Rule::SkipOfChains, &siblings),
        (Rule::SettleBeforeMark, &[]),
        (Rule::PublishToSameVersion, &[]),
    ] {
        let rules = Rules {
            without: Some(rule),
            ..ALL
        };
        let (worlds, history) = explore(rules, begin, 7);
        let history =
            history.unwrap_or_else(|| panic!("no history of {worlds} worlds needs {rule:?}"));
        println!(
            "without {rule:?}: {}{}({worlds} worlds)",
            shown(begin),
            shown(&history)
        );
    }
}
