//! Rows and marks of a primary with two standbys: claims, drops, renames, resets, edits, rows saved
//! and restored, tables rewritten by a tool, crashes, restarts and promotions, also of a server that
//! stopped cleanly and comes back, with its own file of saved ranges.

use leaf_id_core::row::{Here, Update};

use super::rows::{self, Row};
use super::search::{self, Histories, Ids, Rules};

/// Ids per claim, ...
const STEP: u8 = 2;
/// ... and after the step was raised.
const WIDE_STEP: u8 = 4;
/// Increment of `max_id` by an edit.
const RAISE: u8 = 8;
const NAMES: usize = 2;
const STANDBYS: usize = 2;

/// A row of the table of tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Tag {
    row: Row,
    /// Bit set of the edits that have raised `max_id`.
    raises: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// A claim starts above the mark of its name.
    ClaimAboveMark,
    /// A claim raises the mark.
    ClaimRaisesMark,
    /// A transaction that creates a tag raises the row by the ids it has issued.
    CreationRaisesRow,
    /// A row that is inserted or restored starts at the mark of its name. (Claims start above the
    /// mark anyway, but the transaction that creates a tag issues from the row.)
    InsertAtMark,
    /// A deleted row leaves its `max_id` in the mark of its name.
    DeleteLeavesMark,
    /// So does a renamed row.
    RenameLeavesMark,
    /// A renamed row starts above the mark of its old name.
    RenameTakesMark,
    /// A tool that copies the table of marks sees marks written by edits, as it sees edits of rows.
    /// Only claims bypass row triggers.
    EditsOfMarksSeen,
    /// An edit writes the mark even if it is high enough already: it may have been raised by a
    /// claim, which the tool has not seen.
    EqualMarkWritten,
    /// An edit deletes the mark that it leaves, and inserts it again: as a claim may have inserted
    /// it, the copy may lack it, and the tool would update nothing.
    MarkInsertedAgain,
    /// An edit does not lower `max_id`: the mark may still be too low for a row that was renamed or
    /// restored.
    LoweringRefused,
    /// Skip the ids that lost claims of an earlier timeline may have taken.
    Skip,
    /// Servers on the timelines in between have skipped as many, and may have claimed above that.
    SkipOfChains,
    /// Skip before a row is deleted or renamed, too, ...
    SettleBeforeMark,
    /// ... and before the limits that applied to the lost claims change.
    SettleBeforeEdit,
    /// A segment is not published if its slot was invalidated since the claim began.
    PublishToSameVersion,
    /// What was saved of a segment is issued only from the row that it was saved from: it may have
    /// been edited while the library was not loaded.
    SavedFitsRow,
    /// It is issued only on the timeline that it was saved on: a server that comes back as a standby,
    /// and is promoted, still has its file.
    SavedOfTimeline,
    /// Assumption: while the library is not loaded, no row is renamed away and back, or deleted and
    /// inserted as it was: what was saved would fit, though other ids may have come under its name.
    SavedRowNotBack,
    /// Assumption: a promotion loses at most `LOST` claims of a name.
    LostClaimsBounded,
    /// Assumption: each promotion gets its own timeline, as with a shared archive.
    OwnTimeline,
    /// Assumption: if the promoted server has lost the creation of a tag, the tag is not created
    /// again at a lower id. The same holds for a name whose row came by a lost rename, and for a
    /// name that a sibling promoted earlier had kept because it had lost the drop.
    CreationKept,
    /// Assumption: no raise of `max_id` is lost together with a later claim, ...
    RaiseKept,
    /// ... and no raise of the step.
    WiderStepKept,
    /// Assumption: if a tool restores a row from before a promotion, so that its lost claims are
    /// skipped again, or a mark that was forgotten, that is not lost together with a later claim.
    PutBackKept,
    /// Assumption: after the promotion of a server, no server that has followed a later timeline
    /// than the promoted one is promoted.
    BranchLeft,
    /// Assumption: the old primary stops after a promotion.
    OldPrimaryStops,
    /// Assumption: a copy is promoted, not just started.
    CopyPromoted,
    /// Assumption: a tool rewrites one of the two tables at a time.
    OneTableAtATime,
}

/// Ids that lost claims may have taken on the timelines since the row's last claim.
fn skip(row: Row, here: &Here, rules: Rules<Rule>) -> u64 {
    let row = row.full();
    let skip = if rules.hold(Rule::SkipOfChains) {
        row.skip(here)
    } else {
        let claimed = row.last_claim.timeline;
        let promotions = here.timeline.saturating_sub(claimed);
        let timeline = claimed + promotions.min(1);
        u64::from(promotions) * row.skip(&Here { timeline, ..*here })
    };
    rules.keep(Rule::Skip, skip)
}

/// A row before it is inserted.
const NEW: Tag = Tag {
    row: Row {
        step: STEP,
        ..Row::new(1)
    },
    raises: 0,
};

/// The two tables of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Database {
    tags: [Option<Tag>; NAMES],
    marks: [u8; NAMES],
}

impl Database {
    /// A row comes under a name, and raises its mark.
    fn come(&mut self, name: usize, tag: Tag) {
        self.tags[name] = Some(tag);
        let mark = &mut self.marks[name];
        *mark = tag.row.max_id.max(*mark);
    }
}

/// Cached state of a name in shared memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Slot {
    /// Incarnation of the row that the segments belong to; 0 for none.
    incarnation: u8,
    /// Remaining ids: the first, and one past the last.
    first: u8,
    end: u8,
    /// A committed claim that is not published: incarnation, first id, and one past the last.
    pending: Option<(u8, u8, u8)>,
    /// The row was edited since that claim began.
    is_edited: bool,
}

/// Changes of a name that a standby lacks, of the primary's timeline.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Missing {
    claims: u32,
    /// A lost edit that makes lost claims higher or larger than the standby can know.
    is_raise: bool,
    /// A change that must not be lost: the standby may not be promoted.
    is_too_much: bool,
}

/// Snapshot of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Standby {
    database: Database,
    timeline: u8,
    missing: [Missing; NAMES],
}

impl Standby {
    fn may_be_promoted(&self) -> bool {
        !self.missing.iter().any(|missing| missing.is_too_much)
    }

    /// Another standby was promoted, which may have kept changes that this one lacks.
    fn compare(&mut self, promoted: &Database, rules: Rules<Rule>) {
        let tags = self.database.tags.iter().zip(&promoted.tags);
        for (missing, tags) in self.missing.iter_mut().zip(tags) {
            match tags {
                (None, Some(_)) => missing.is_too_much |= rules.hold(Rule::CreationKept),
                (Some(here), Some(there)) => {
                    missing.is_raise |=
                        there.raises & !here.raises != 0 && rules.hold(Rule::RaiseKept);
                    let is_wider = there.row.step > here.row.step;
                    missing.is_raise |= is_wider && rules.hold(Rule::WiderStepKept);
                }
                (_, None) => {}
            }
        }
    }
}

/// A promotion loses at most `LOST` claims of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct World<const LOST: u32> {
    database: Database,
    slots: [Slot; NAMES],
    /// The server runs without the library: slots are in a file, and edits do not change them.
    is_unloaded: bool,
    timeline: u8,
    standbys: [Option<Standby>; STANDBYS],
    /// The files of saved ranges that standbys have, as they were primaries before.
    files: [Option<[Slot; NAMES]>; STANDBYS],
    /// Tables that a tool is about to replace, copied without later claims.
    copied_rows: Option<[Option<Tag>; NAMES]>,
    copied_marks: Option<[u8; NAMES]>,
    /// A saved row, as in a dump.
    aside: Option<(usize, Tag)>,
    /// The primary before the last promotion, and its timeline.
    deposed: Option<(Database, u8)>,
    incarnations: u8,
    raises: u8,
    /// Ids issued under each name, including those that a renamed row has brought along.
    issued: [Ids; NAMES],
    is_twice: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Create(usize),
    /// Creates a tag and issues one id in the same transaction.
    CreateAndUse(usize),
    Drop(usize),
    /// Renames to the other name.
    Rename(usize),
    Reset(usize),
    /// Deletes the mark of a name without a tag, as the user wants the ids again.
    Forget(usize),
    Raise(usize),
    Lower(usize),
    Widen(usize),
    Narrow(usize),
    /// Edits a description, which skips what lost claims may have taken, and nothing else.
    Touch(usize),
    Claim(usize),
    Publish(usize),
    /// Takes the next id; claims and publishes a segment if none is left.
    Use(usize),
    Crash,
    /// Restarts after a clean stop, without the library, ...
    Unload,
    /// ... or with it.
    Restart,
    CopyRows,
    PutRows,
    CopyMarks,
    PutMarks,
    PutAside(usize),
    PutBack,
    Follow(usize),
    Promote(usize),
    /// The primary stops cleanly, a standby is promoted, and the old primary becomes a standby in its
    /// place.
    SwitchOver(usize),
    /// Starts a standby's copy in place, without a promotion.
    Start(usize),
    /// Restarts the deposed primary.
    Return,
}

impl<const LOST: u32> World<LOST> {
    /// An edit of a row, and perhaps its mark, was committed.
    fn edited(&mut self, name: usize) {
        if !self.is_unloaded {
            let slot = &mut self.slots[name];
            (slot.incarnation, slot.first, slot.end) = (0, 0, 0);
            slot.is_edited = true;
        }
        if let Some(rows) = &mut self.copied_rows {
            rows[name] = self.database.tags[name];
        }
    }

    /// A row has appeared under a name.
    fn appear(&mut self, name: usize, rules: Rules<Rule>) {
        for standby in self.standbys.iter_mut().flatten() {
            standby.missing[name].is_too_much |= rules.hold(Rule::CreationKept);
        }
    }

    fn here(&self) -> Here {
        Here {
            lost_claims: LOST,
            ..rows::here(self.timeline)
        }
    }

    /// Ids are issued, and what a promotion may have lost of a row is settled, only with the library.
    fn needs_library(&self, step: Step) -> bool {
        match step {
            Step::CreateAndUse(_)
            | Step::Claim(_)
            | Step::Publish(_)
            | Step::Use(_)
            | Step::Crash
            | Step::Unload => true,
            Step::Drop(name)
            | Step::Rename(name)
            | Step::Raise(name)
            | Step::Lower(name)
            | Step::Widen(name)
            | Step::Narrow(name)
            | Step::Touch(name) => self.database.tags[name]
                .is_some_and(|tag| tag.row.full().last_claim.promotions(&self.here()) > 0),
            _ => false,
        }
    }

    /// A row that is inserted or reset, at or above this mark.
    fn begun(&mut self, row: Row, mark: u8) -> Row {
        let begun = row.begun(mark, &self.here(), self.incarnations + 1);
        self.incarnations = self.incarnations.max(begun.incarnation);
        begun
    }

    fn insert(&mut self, name: usize, tag: Tag, rules: Rules<Rule>) {
        let mark = rules.keep(Rule::InsertAtMark, self.database.marks[name]);
        let row = self.begun(tag.row, mark);
        self.database.come(name, Tag { row, ..tag });
        self.edited(name);
        self.appear(name, rules);
    }

    /// Removes a row from its name, leaving the mark if rule `leaves` holds.
    fn remove(&mut self, name: usize, row: Row, leaves: Rule, rules: Rules<Rule>) {
        let skip = rules.keep(Rule::SettleBeforeMark, skip(row, &self.here(), rules));
        let before = self.database.marks[name];
        let left = rows::next(row.max_id, before, skip);
        if rules.hold(leaves) {
            self.database.marks[name] = left;
            let is_written = left != before || rules.hold(Rule::EqualMarkWritten);
            if let Some(marks) = &mut self.copied_marks
                && is_written
                && rules.hold(Rule::EditsOfMarksSeen)
                && (before == 0 || marks[name] > 0 || rules.hold(Rule::MarkInsertedAgain))
            {
                marks[name] = left;
            }
        }
        self.database.tags[name] = None;
        self.edited(name);
    }

    /// The row of a name, updated to `new` under one.
    fn updated(&self, name: usize, to: usize, new: Row, rules: Rules<Rule>) -> Option<Row> {
        let mut old = self.database.tags[name]?.row;
        let (here, is_renamed) = (self.here(), name != to);
        let settles = if is_renamed {
            Rule::SettleBeforeMark
        } else {
            Rule::SettleBeforeEdit
        };
        let [mark, mark_there] = [name, to].map(|name| self.database.marks[name]);
        let update = Update {
            is_renamed,
            skip: rules.keep(settles, skip(old, &here, rules)),
            mark: rules.keep(Rule::RenameTakesMark, mark).into(),
            ..Update::default()
        };
        if !rules.hold(Rule::LoweringRefused) {
            old.max_id = old.max_id.min(new.max_id);
        }
        let mark = rules.keep(Rule::InsertAtMark, mark_there);
        old.updated(new, mark, &here, &update)
    }

    /// Edits limits, or `max_id`.
    fn edit(
        &mut self,
        name: usize,
        lost: Option<Rule>,
        rules: Rules<Rule>,
        edit: impl FnOnce(&mut Tag),
    ) -> Option<()> {
        let old = self.database.tags[name]?;
        let mut new = old;
        edit(&mut new);
        new.row = self.updated(name, name, new.row, rules)?;
        if new == old {
            return None;
        }
        self.database.tags[name] = Some(new);
        self.edited(name);
        if let Some(lost) = lost {
            for standby in self.standbys.iter_mut().flatten() {
                standby.missing[name].is_raise |= rules.hold(lost);
            }
        }
        Some(())
    }

    fn issue(&mut self, name: usize, id: u8) {
        self.is_twice |= self.issued[name].has(id);
        self.issued[name].add(id);
    }

    fn publish(&mut self, name: usize, rules: Rules<Rule>) -> Option<()> {
        let slot = &mut self.slots[name];
        let (incarnation, first, end) = slot.pending.take()?;
        if !(slot.is_edited && rules.hold(Rule::PublishToSameVersion)) {
            (slot.incarnation, slot.first, slot.end) = (incarnation, first, end);
        }
        slot.is_edited = false;
        Some(())
    }

    fn claim(&mut self, name: usize, rules: Rules<Rule>) -> Option<()> {
        let mut tag = self.database.tags[name]?;
        let slot = &mut self.slots[name];
        if slot.first != slot.end || slot.pending.is_some() {
            return None;
        }
        let here = self.here();
        let mark = rules.keep(Rule::ClaimAboveMark, self.database.marks[name]);
        let skip = skip(tag.row, &here, rules);
        let first = tag.row.claim(mark, skip, &here)?;
        let end = tag.row.max_id;
        self.slots[name].pending = Some((tag.row.incarnation, first, end));
        self.slots[name].is_edited = false;
        self.database.tags[name] = Some(tag);
        if rules.hold(Rule::ClaimRaisesMark) {
            let mark = &mut self.database.marks[name];
            *mark = end.max(*mark);
        }
        for standby in self.standbys.iter_mut().flatten() {
            let missing = &mut standby.missing[name];
            missing.claims = (missing.claims + 1).min(LOST + 1);
            let is_bounded = missing.claims <= LOST && !missing.is_raise;
            missing.is_too_much |=
                !is_bounded && (missing.is_raise || rules.hold(Rule::LostClaimsBounded));
        }
        Some(())
    }

    /// False if there are more ids or edits than the model has room for.
    fn fits(&self) -> bool {
        let tags = self.database.tags.iter().flatten();
        let marks = self.database.marks.iter().copied();
        let mut ends = tags.map(|tag| tag.row.max_id).chain(marks);
        ends.all(|end| end <= Ids::LAST) && u32::from(self.raises) < u16::BITS
    }

    /// What a launcher makes of saved ranges.
    fn restored(&self, saved: [Slot; NAMES], rules: Rules<Rule>) -> [Slot; NAMES] {
        let mut slots = [Slot::default(); NAMES];
        for (name, saved) in saved.into_iter().enumerate() {
            let fits = self.database.tags[name].is_some_and(|tag| {
                let (incarnation, end) = (saved.incarnation.into(), saved.end.into());
                tag.row.full().fits(incarnation, end, end - 1)
            }) || !rules.hold(Rule::SavedFitsRow);
            if saved.first < saved.end && fits {
                slots[name] = Slot {
                    pending: None,
                    is_edited: false,
                    ..saved
                };
            }
        }
        slots
    }

    /// Another server takes over.
    fn replace(&mut self, database: Database, timeline: u8) {
        self.database = database;
        self.timeline = timeline;
        self.slots = [Slot::default(); NAMES];
        self.is_unloaded = false;
        self.copied_rows = None;
        self.copied_marks = None;
    }
}

impl<const LOST: u32> search::World for World<LOST> {
    const NAME: &'static str = if LOST == 1 {
        "failover"
    } else {
        "failover that loses two claims"
    };
    type Rule = Rule;
    type Step = Step;

    fn new() -> Self {
        Self {
            database: Database {
                tags: [None; NAMES],
                marks: [0; NAMES],
            },
            slots: [Slot::default(); NAMES],
            is_unloaded: false,
            timeline: 1,
            standbys: [None; STANDBYS],
            files: [None; STANDBYS],
            copied_rows: None,
            copied_marks: None,
            aside: None,
            deposed: None,
            incarnations: 0,
            raises: 0,
            issued: [Ids::default(); NAMES],
            is_twice: false,
        }
    }

    fn after(mut self, step: Step, rules: Rules<Rule>) -> Option<Self> {
        let may_be_back = matches!(step, Step::Rename(_) | Step::PutBack);
        let is_excluded =
            self.needs_library(step) || may_be_back && rules.hold(Rule::SavedRowNotBack);
        if self.is_unloaded && is_excluded {
            return None;
        }
        match step {
            Step::Create(name) | Step::CreateAndUse(name) => {
                if self.database.tags[name].is_some() {
                    return None;
                }
                self.insert(name, NEW, rules);
                if step == Step::CreateAndUse(name) {
                    let row = &mut self.database.tags[name].as_mut()?.row;
                    let id = row.max_id;
                    if rules.hold(Rule::CreationRaisesRow) {
                        row.max_id = id + 1;
                    }
                    self.database.marks[name] = self.database.marks[name].max(id + 1);
                    self.issue(name, id);
                }
            }
            Step::Drop(name) => {
                let row = self.database.tags[name]?.row;
                self.remove(name, row, Rule::DeleteLeavesMark, rules);
            }
            Step::Rename(name) => {
                let to = 1 - name;
                if self.database.tags[to].is_some() {
                    return None;
                }
                let tag = self.database.tags[name]?;
                let row = self.updated(name, to, tag.row, rules)?;
                self.remove(name, tag.row, Rule::RenameLeavesMark, rules);
                self.database.come(to, Tag { row, ..tag });
                self.edited(to);
                self.appear(to, rules);
                // The columns with its ids are the same.
                self.issued[to].add_all(self.issued[name]);
            }
            Step::Reset(name) => {
                self.database.tags[name]?;
                let row = self.begun(NEW.row, 0);
                self.database.tags[name] = Some(Tag { row, ..NEW });
                let marks = &mut self.database.marks[name];
                *marks = 1.min(*marks);
                if let Some(copied) = &mut self.copied_marks {
                    copied[name] = 1.min(copied[name]);
                }
                self.edited(name);
                // The user wants the ids again. Promoting a standby without the reset returns to
                // the state before it.
                self.issued[name] = Ids::default();
                self.standbys = [None; STANDBYS];
            }
            Step::Forget(name) => {
                if self.database.tags[name].is_some() || self.database.marks[name] == 0 {
                    return None;
                }
                // A tool does not see this: its copy has a mark too many.
                self.database.marks[name] = 0;
                self.issued[name] = Ids::default();
                self.standbys = [None; STANDBYS];
            }
            Step::Raise(name) => {
                let number = self.raises;
                self.raises += 1;
                self.edit(name, Some(Rule::RaiseKept), rules, |tag| {
                    tag.row.max_id += RAISE;
                    tag.raises |= 1 << number;
                })?;
            }
            Step::Lower(name) => self.edit(name, None, rules, |tag| tag.row.max_id = 1)?,
            Step::Widen(name) => {
                let lost = Some(Rule::WiderStepKept);
                self.edit(name, lost, rules, |tag| tag.row.step = WIDE_STEP)?;
            }
            Step::Narrow(name) => self.edit(name, None, rules, |tag| tag.row.step = STEP)?,
            Step::Touch(name) => self.edit(name, None, rules, |_| {})?,
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
            Step::Crash => self.slots = [Slot::default(); NAMES],
            Step::Unload => self.is_unloaded = true,
            Step::Restart => {
                self.is_unloaded = false;
                self.slots = self.restored(self.slots, rules);
            }
            Step::CopyRows | Step::CopyMarks => {
                let is_copying = self.copied_rows.is_some() || self.copied_marks.is_some();
                if is_copying && rules.hold(Rule::OneTableAtATime) {
                    return None;
                }
                if step == Step::CopyRows {
                    self.copied_rows = Some(self.database.tags);
                } else {
                    self.copied_marks = Some(self.database.marks);
                }
            }
            Step::PutRows => {
                self.database.tags = self.copied_rows.take()?;
                let missing = self.standbys.iter_mut().flatten();
                for missing in missing.flat_map(|standby| &mut standby.missing) {
                    missing.is_raise |= rules.hold(Rule::PutBackKept);
                }
            }
            Step::PutMarks => {
                let before = self.database.marks;
                self.database.marks = self.copied_marks.take()?;
                for standby in self.standbys.iter_mut().flatten() {
                    for (name, missing) in standby.missing.iter_mut().enumerate() {
                        let is_raised = self.database.marks[name] > before[name];
                        missing.is_raise |= is_raised && rules.hold(Rule::PutBackKept);
                    }
                }
            }
            Step::PutAside(name) => {
                if self.aside.is_some() {
                    return None;
                }
                self.aside = Some((name, self.database.tags[name]?));
            }
            Step::PutBack => {
                let (name, tag) = self.aside.take()?;
                if self.database.tags[name].is_some() {
                    return None;
                }
                self.insert(name, tag, rules);
            }
            Step::Follow(number) => {
                let caught_up = Standby {
                    database: self.database,
                    timeline: self.timeline,
                    missing: [Missing::default(); NAMES],
                };
                if self.standbys[number].replace(caught_up) == Some(caught_up) {
                    return None;
                }
            }
            Step::Promote(number) | Step::SwitchOver(number) | Step::Start(number) => {
                let is_start = step == Step::Start(number);
                if is_start && rules.hold(Rule::CopyPromoted) {
                    return None;
                }
                let standby = self.standbys[number].take()?;
                if !standby.may_be_promoted() {
                    return None;
                }
                if !rules.hold(Rule::OldPrimaryStops) {
                    self.deposed = Some((self.database, self.timeline));
                }
                let timeline = if is_start {
                    standby.timeline
                } else if rules.hold(Rule::OwnTimeline) {
                    self.timeline + 1
                } else {
                    standby.timeline + 1
                };
                let is_stop = step == Step::SwitchOver(number);
                let left = (is_stop || self.is_unloaded).then_some(self.slots);
                let file = std::mem::replace(&mut self.files[number], left);
                self.standbys[number] = is_stop.then_some(Standby {
                    database: self.database,
                    timeline: self.timeline,
                    missing: [Missing::default(); NAMES],
                });
                self.replace(standby.database, timeline);
                if let Some(file) = file
                    && !rules.hold(Rule::SavedOfTimeline)
                {
                    self.slots = self.restored(file, rules);
                }
                // The other standby may lack as many changes of the new timeline as of the old one.
                for other in &mut self.standbys {
                    let is_further = other.is_some_and(|other| other.timeline > standby.timeline);
                    if is_further && rules.hold(Rule::BranchLeft) {
                        *other = None;
                    }
                    if let Some(other) = other {
                        other.compare(&self.database, rules);
                    }
                    if other.is_some_and(|other| !other.may_be_promoted()) {
                        *other = None;
                    }
                    for missing in other.iter_mut().flat_map(|other| &mut other.missing) {
                        missing.claims = 0;
                    }
                }
            }
            Step::Return => {
                let (database, timeline) = self.deposed.take()?;
                self.replace(database, timeline);
            }
        }
        self.fits().then_some(self)
    }

    fn is_broken(&self) -> bool {
        self.is_twice
    }

    fn is_small(&self) -> bool {
        self.timeline < 5 && self.incarnations < 4 && self.raises < 4
    }
}

impl search::Repeated for World<1> {
    fn refuses(&self, step: Step) -> bool {
        let Step::Lower(name) = step else {
            return false;
        };
        self.database.tags[name].is_some_and(|tag| tag.row.max_id > 1)
    }
}

/// The steps that are repeated on servers; those that take ids, more often. A server claims and
/// publishes by itself.
pub(super) fn steps_for_servers() -> Vec<Step> {
    let mut steps = all_steps();
    steps.retain(|step| !matches!(step, Step::Claim(_) | Step::Publish(_)));
    for name in 0..NAMES {
        steps.extend([Step::Use(name); 4]);
        steps.extend([Step::Raise(name), Step::Widen(name), Step::Narrow(name)]);
    }
    steps
}

const FEW: [Step; 13] = [
    Step::Create(0),
    Step::Drop(0),
    Step::Use(0),
    Step::Raise(0),
    Step::Widen(0),
    Step::Narrow(0),
    Step::Touch(0),
    Step::Follow(0),
    Step::Follow(1),
    Step::Promote(0),
    Step::Promote(1),
    Step::Start(0),
    Step::Return,
];

fn all_steps() -> Vec<Step> {
    let mut steps = vec![Step::Crash, Step::Unload, Step::Restart, Step::PutBack];
    steps.extend([
        Step::CopyRows,
        Step::PutRows,
        Step::CopyMarks,
        Step::PutMarks,
    ]);
    for name in 0..NAMES {
        steps.extend([
            Step::Create(name),
            Step::CreateAndUse(name),
            Step::Drop(name),
        ]);
        steps.extend([Step::Rename(name), Step::Reset(name), Step::Forget(name)]);
        steps.extend([Step::Claim(name), Step::Publish(name), Step::Use(name)]);
        steps.extend([Step::Lower(name), Step::PutAside(name)]);
    }
    for number in 0..STANDBYS {
        steps.extend([Step::Follow(number), Step::Promote(number)]);
    }
    steps
}

#[test]
fn no_id_comes_twice() {
    let everything = Histories {
        begin: &[],
        steps: &all_steps(),
        depth: 7,
    };
    search::assert_holds::<World<1>>(everything, 8);
    // One name, and the steps relevant to promotions.
    let promotions = Histories {
        begin: &[Step::Create(0)],
        steps: &FEW,
        depth: 10,
    };
    search::assert_holds::<World<1>>(promotions, 11);
    // The default of leaf_id.failover_skip.
    let promotions = Histories {
        depth: 9,
        ..promotions
    };
    search::assert_holds::<World<2>>(promotions, 11);
}

/// The steps around a server that comes back.
const COMING_BACK: [Step; 12] = [
    Step::Use(0),
    Step::Drop(0),
    Step::Rename(0),
    Step::Rename(1),
    Step::Reset(0),
    Step::Forget(0),
    Step::PutAside(0),
    Step::PutBack,
    Step::Follow(0),
    Step::Promote(0),
    Step::SwitchOver(0),
    Step::SwitchOver(1),
];

#[test]
fn a_server_that_comes_back_repeats_nothing() {
    let coming_back = Histories {
        begin: &[Step::Create(0)],
        steps: &COMING_BACK,
        depth: 11,
    };
    search::assert_holds::<World<1>>(coming_back, 12);
    let with_its_file = Histories {
        begin: &[
            Step::Create(0),
            Step::PutAside(0),
            Step::Use(0),
            Step::Follow(0),
            Step::SwitchOver(0),
        ],
        ..coming_back
    };
    search::assert_needed::<World<1>>("rule", Rule::SavedOfTimeline, with_its_file);
}

/// The rules that some history needs.
pub(super) const RULES: [Rule; 13] = [
    Rule::ClaimAboveMark,
    Rule::ClaimRaisesMark,
    Rule::CreationRaisesRow,
    Rule::InsertAtMark,
    Rule::DeleteLeavesMark,
    Rule::RenameLeavesMark,
    Rule::RenameTakesMark,
    Rule::EditsOfMarksSeen,
    Rule::EqualMarkWritten,
    Rule::MarkInsertedAgain,
    Rule::LoweringRefused,
    Rule::Skip,
    Rule::SettleBeforeMark,
];

/// The history that shows why what was saved must fit its row, which is a longer one.
pub(super) fn broken_after_unload() -> Vec<Vec<Step>> {
    let histories = Histories {
        begin: &[Step::Create(0), Step::Use(0), Step::Unload],
        steps: &steps_for_servers(),
        depth: 6,
    };
    let broken = search::broken::<World<1>>(&[Rule::SavedFitsRow], histories);
    assert!(!broken.is_empty());
    broken
}

#[test]
fn each_rule_is_needed() {
    let everything = Histories {
        begin: &[],
        steps: &all_steps(),
        depth: 7,
    };
    search::assert_all_needed::<World<1>>(&RULES, &[Rule::OneTableAtATime], everything);
    let claim_on_its_way = Histories {
        begin: &[Step::Create(0), Step::Claim(0)],
        ..everything
    };
    search::assert_needed::<World<1>>("rule", Rule::PublishToSameVersion, claim_on_its_way);
    let saved = Histories {
        begin: &[Step::Create(0), Step::Use(0), Step::Unload],
        ..everything
    };
    search::assert_needed::<World<1>>("rule", Rule::SavedFitsRow, saved);
    let saved = Histories {
        begin: &[
            Step::CreateAndUse(0),
            Step::Rename(0),
            Step::Rename(1),
            Step::Reset(0),
            Step::Claim(0),
            Step::Publish(0),
            Step::Unload,
        ],
        ..everything
    };
    search::assert_needed::<World<1>>("assumption", Rule::SavedRowNotBack, saved);
}

#[test]
fn each_assumption_about_promotions_is_needed() {
    let promotions = Histories {
        begin: &[],
        steps: &FEW,
        depth: 9,
    };
    let rules = [Rule::SkipOfChains, Rule::SettleBeforeEdit];
    let assumptions = [
        Rule::LostClaimsBounded,
        Rule::OwnTimeline,
        Rule::CreationKept,
        Rule::RaiseKept,
        Rule::WiderStepKept,
        Rule::OldPrimaryStops,
        Rule::CopyPromoted,
    ];
    search::assert_all_needed::<World<1>>(&rules, &assumptions, promotions);
    let back_to_a_branch = Histories {
        begin: &[
            Step::Create(0),
            Step::Follow(0),
            Step::Use(0),
            Step::Follow(1),
            Step::Promote(0),
        ],
        ..promotions
    };
    search::assert_needed::<World<1>>("assumption", Rule::BranchLeft, back_to_a_branch);
    let older_row = Histories {
        begin: &[
            Step::Create(0),
            Step::Follow(0),
            Step::Promote(0),
            Step::CopyRows,
        ],
        steps: &[
            Step::Use(0),
            Step::PutRows,
            Step::Follow(0),
            Step::Promote(0),
        ],
        ..promotions
    };
    search::assert_needed::<World<1>>("assumption", Rule::PutBackKept, older_row);
    search::assert_holds::<World<1>>(older_row, 11);
}

#[test]
fn random_histories_find_rules_left_out() {
    let histories = Histories {
        begin: &[],
        steps: &all_steps(),
        depth: 7,
    };
    for rule in [Rule::InsertAtMark, Rule::Skip, Rule::EditsOfMarksSeen] {
        search::assert_found_by_walks::<World<1>>(rule, histories);
    }
}
