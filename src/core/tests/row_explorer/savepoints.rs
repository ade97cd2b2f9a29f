//! A transaction that edits tags, with a savepoint, concurrent with sessions that issue ids, drop
//! tags and insert tags, with tools that rewrite a table, and with dumps. Models the state in
//! `src/tags/transaction.rs`, and the triggers.

use leaf_id_core::row::{self, Edited, Update};

use super::rows::{self, HERE, Row};
use super::search::{self, Histories, Ids, Rules};

const NAMES: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Rule {
    /// The transaction issues no ids of a tag that it has reset, ...
    NoIdsOfReset,
    /// ... of a tag under a name where it has dropped another one, ...
    NoIdsOfReplaced,
    /// ... or of a tag that it has renamed.
    NoIdsOfRenamed,
    /// The counter of ids of a tag created in the transaction survives a rollback to a savepoint.
    CountOutlivesSavepoint,
    /// If a tag created in the transaction is renamed, its issued ids are renamed with it.
    RenameTakesIssued,
    /// The commit raises the mark of the name by the ids issued in the transaction, even if the tag
    /// is gone. (It raises the row for tools that do not see marks: see the failover world.)
    CommitRaisesMark,
    /// No ids are issued once that is written, for example by a deferred trigger.
    NoIdsOnceWritten,
    /// A row whose insert has waited for another one of its name to go is raised to the mark that
    /// this has left: the transaction that creates a tag issues from the row, and a dump has the
    /// row alone.
    RowAtMarkAfterWait,
    /// A tool that copies the table of marks sees marks written by edits.
    EditsOfMarksSeen,
    /// An edit deletes the mark that it leaves, and inserts it again: as a claim may have inserted
    /// it, the copy may lack it, and the tool would update nothing.
    MarkInsertedAgain,
    /// The mark that an edit leaves includes the ids that its transaction has issued of the tag:
    /// such a tool does not see the commit raise it.
    IssuedLeftToMark,
    /// A dump has the marks of names without a row.
    MarksDumped,
    /// Assumption: a tool rewrites one of the two tables at a time.
    OneTableAtATime,
    /// Assumption: no ids are issued after a dump that is restored elsewhere.
    NoIdAfterDump,
    /// Assumption: no row is dumped that a tool has set back below its mark.
    RowAtMark,
    /// Assumption: no reported commit is lost in a crash.
    CommitKept,
}

/// Contents of both tables, and the state remembered about the edits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct View {
    rows: [Option<u8>; NAMES],
    marks: [u8; NAMES],
    /// Edits of the open transaction, by name. They lock rows and marks.
    edits: [Option<Edited<u8>>; NAMES],
    /// The rules that refuse ids of tags that were edited, not created.
    refusals: [Option<Rule>; NAMES],
    /// The name also has the ids of the other one, whose row was renamed.
    is_renamed: [bool; NAMES],
    is_reset: [bool; NAMES],
    /// What tools see: rows and marks as of the last edit.
    edited_rows: [Option<Option<u8>>; NAMES],
    edited_marks: [Option<EditedMark>; NAMES],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct EditedMark {
    mark: u8,
    /// An edit has inserted it, so that tools insert it, too.
    is_inserted: bool,
}

/// Rows and marks in a dump, and the ids issued by then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Dumped {
    rows: [Option<u8>; NAMES],
    marks: [u8; NAMES],
    issued: [Ids; NAMES],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Transaction {
    view: View,
    savepoint: Option<View>,
    /// One past the last id of each tag created in the transaction.
    issued: [u8; NAMES],
    /// Ids issued of tags created in the transaction, ...
    ids: [Ids; NAMES],
    /// ... and of other tags.
    ids_of_edited: [Ids; NAMES],
    is_written: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    /// Committed state.
    rows: [Option<u8>; NAMES],
    marks: [u8; NAMES],
    open: Option<Transaction>,
    /// Another session is inserting a tag of the first name, and has read this mark.
    inserting: Option<u8>,
    /// Tables that a tool is about to replace, copied without later claims.
    copied_rows: Option<[Option<u8>; NAMES]>,
    copied_marks: Option<[u8; NAMES]>,
    /// Rows that a tool has set back below their marks.
    is_set_back: [bool; NAMES],
    dumped: Option<Dumped>,
    /// Ids were issued since the dump.
    is_dump_stale: bool,
    issued: [Ids; NAMES],
    is_twice: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// In the open transaction.
    Create(usize),
    Drop(usize),
    /// Renames to the other name.
    Rename(usize),
    Reset(usize),
    Use(usize),
    Savepoint,
    RollbackTo,
    Rollback,
    /// First part of a commit, before deferred triggers.
    Write,
    Commit,
    /// Reports a commit before it is durable, then crashes.
    CommitAndCrash,
    /// In other sessions.
    OtherDrops(usize),
    OtherUses(usize),
    OtherInserts,
    /// The insert is done, after waiting for the transaction that had a row of the name, ...
    OtherHasInserted,
    /// ... and its transaction takes an id.
    OtherHasInsertedAndUses,
    Crash,
    CopyRows,
    PutRows,
    CopyMarks,
    PutMarks,
    Dump,
    /// Goes on with what was dumped in another database.
    RestoreElsewhere,
}

impl EditedMark {
    /// The mark that a row leaves where there was this one; 0 for none.
    fn left(max_id: u8, before: u8, rules: Rules<Rule>) -> Self {
        Self {
            mark: rows::next(max_id, before, 0),
            is_inserted: before == 0 || rules.hold(Rule::MarkInsertedAgain),
        }
    }
}

impl Transaction {
    fn of(world: &World) -> Self {
        Self {
            view: View {
                rows: world.rows,
                marks: world.marks,
                edits: [None; NAMES],
                refusals: [None; NAMES],
                is_renamed: [false; NAMES],
                is_reset: [false; NAMES],
                edited_rows: [None; NAMES],
                edited_marks: [None; NAMES],
            },
            savepoint: None,
            issued: [0; NAMES],
            ids: [Ids::default(); NAMES],
            ids_of_edited: [Ids::default(); NAMES],
            is_written: false,
        }
    }

    /// Leaves a mark for a row that goes. `max_id` is what the row says.
    fn leave(&mut self, name: usize, max_id: u8, rules: Rules<Rule>) {
        let issued = rules.keep(Rule::IssuedLeftToMark, self.issued[name]);
        let view = &mut self.view;
        let edited = EditedMark::left(issued.max(max_id), view.marks[name], rules);
        let was_inserted = view.edited_marks[name].is_some_and(|edited| edited.is_inserted);
        view.marks[name] = edited.mark;
        view.edited_marks[name] = Some(EditedMark {
            is_inserted: was_inserted || edited.is_inserted,
            ..edited
        });
    }

    /// A row comes under a name, and raises its mark.
    fn come(&mut self, name: usize, max_id: u8) {
        self.view.rows[name] = Some(max_id);
        let mark = &mut self.view.marks[name];
        *mark = max_id.max(*mark);
    }

    fn next(&self, name: usize) -> u8 {
        let next = match self.view.edits[name] {
            Some(Edited::Created(next)) => next,
            _ => self.view.rows[name].unwrap_or(0),
        };
        next.max(self.issued[name])
    }

    /// Remembers an edit of a row under one name to one under another, or the same. `refusal`: the
    /// rule that refuses ids from now on, unless the tag was created here.
    fn remember(&mut self, names: [usize; 2], old: Option<Row>, new: Option<Row>, refusal: Rule) {
        let [from, to] = names;
        let known = self.view.edits[to];
        let created = new.map(|new| new.max_id);
        let [old, new] = [old, new].map(|row| row.map(Row::full));
        let created = new.as_ref().zip(created);
        let edits = row::edited(known.as_ref(), old.as_ref(), created, from != to, false);
        for (name, edit) in names.into_iter().zip(edits) {
            if edit.is_some() {
                self.view.edits[name] = edit;
                self.view.refusals[name] = (edit == Some(Edited::Changed)).then_some(refusal);
            }
        }
    }

    fn write(&mut self, rules: Rules<Rule>) {
        self.is_written = true;
        for name in 0..NAMES {
            if self.view.edits[name].is_none() {
                continue;
            }
            let issued = self.issued[name];
            if let Some(max_id) = &mut self.view.rows[name] {
                *max_id = issued.max(*max_id);
            }
            if rules.hold(Rule::CommitRaisesMark) {
                let mark = &mut self.view.marks[name];
                *mark = issued.max(*mark);
            }
        }
    }
}

impl World {
    fn is_locked(&self, name: usize) -> bool {
        self.open
            .is_some_and(|open| open.view.edits[name].is_some())
    }

    /// A committed edit, as tools see it.
    fn show(
        &mut self,
        name: usize,
        row: Option<Option<u8>>,
        mark: Option<EditedMark>,
        rules: Rules<Rule>,
    ) {
        if let (Some(rows), Some(row)) = (&mut self.copied_rows, row) {
            rows[name] = row;
        }
        if let (Some(marks), Some(edited)) = (&mut self.copied_marks, mark)
            && rules.hold(Rule::EditsOfMarksSeen)
            && (edited.is_inserted || marks[name] > 0)
        {
            marks[name] = edited.mark;
        }
    }

    fn issue(&mut self, name: usize, id: u8) {
        self.is_dump_stale = true;
        self.is_twice |= self.issued[name].has(id);
        self.issued[name].add(id);
    }

    /// Claims and issues one id.
    fn use_id(&mut self, name: usize) -> Option<()> {
        if self.is_locked(name) {
            return None;
        }
        let mut row = Row::new(self.rows[name]?);
        let id = row.claim(self.marks[name], 0, &HERE)?;
        self.rows[name] = Some(row.max_id);
        self.marks[name] = self.marks[name].max(row.max_id);
        self.issue(name, id);
        Some(())
    }

    fn edit(&mut self, edit: impl FnOnce(&mut Transaction) -> Option<()>) -> Option<()> {
        let mut open = self.open.unwrap_or_else(|| Transaction::of(self));
        if open.is_written {
            return None;
        }
        // See changes committed by others.
        for name in 0..NAMES {
            if open.view.edits[name].is_none() {
                open.view.rows[name] = self.rows[name];
                open.view.marks[name] = self.marks[name];
            }
        }
        let before = open.view;
        edit(&mut open)?;
        for name in 0..NAMES {
            let view = &mut open.view;
            if view.edits[name].is_some()
                && (view.rows[name] != before.rows[name] || before.edits[name].is_none())
            {
                view.edited_rows[name] = Some(view.rows[name]);
            }
        }
        self.open = Some(open);
        Some(())
    }

    /// Issues an id in the open transaction.
    fn use_here(&mut self, name: usize, rules: Rules<Rule>) -> Option<()> {
        let Some(mut open) = self.open else {
            return self.use_id(name);
        };
        if open.is_written && rules.hold(Rule::NoIdsOnceWritten) {
            return None;
        }
        if open.view.edits[name].is_none() {
            return self.use_id(name);
        }
        open.view.rows[name]?;
        let refusal = open.view.refusals[name];
        if refusal.is_some_and(|rule| rules.hold(rule)) {
            return None;
        }
        let id = open.next(name);
        if id >= Ids::LAST {
            return None;
        }
        open.issued[name] = id + 1;
        if refusal.is_some() {
            open.ids_of_edited[name].add(id);
            if refusal == Some(Rule::NoIdsOfRenamed) {
                open.ids_of_edited[1 - name].add(id);
            }
        } else {
            self.is_twice |= self.issued[name].has(id) || open.ids[name].has(id);
            open.ids[name].add(id);
        }
        self.open = Some(open);
        Some(())
    }

    /// Edits were rolled back: ids issued of the edited tags belong to the original tags again.
    fn taken_back(&mut self, edited: &[Ids; NAMES]) {
        for (issued, edited) in self.issued.iter_mut().zip(edited) {
            self.is_twice |= issued.meet(*edited);
            issued.add_all(*edited);
        }
    }

    fn commit(&mut self, mut open: Transaction, rules: Rules<Rule>) {
        if !open.is_written {
            open.write(rules);
        }
        let before = self.issued;
        for name in 0..NAMES {
            if open.view.edits[name].is_none() {
                continue;
            }
            self.rows[name] = open.view.rows[name];
            self.marks[name] = open.view.marks[name];
            let (row, mark) = (open.view.edited_rows[name], open.view.edited_marks[name]);
            self.show(name, row, mark, rules);
            self.is_dump_stale |= open.ids[name] != Ids::default();
            if open.view.is_reset[name] {
                // The user wants the ids again.
                self.issued[name] = Ids::default();
                self.dumped = None;
            } else {
                self.issued[name].add_all(open.ids[name]);
            }
            self.issued[name].add_all(open.ids_of_edited[name]);
            if open.view.is_renamed[name] {
                self.issued[name].add_all(before[1 - name]);
                self.issued[name].add_all(open.ids[1 - name]);
            }
        }
    }
}

impl search::World for World {
    const NAME: &'static str = "savepoints";
    type Rule = Rule;
    type Step = Step;

    fn new() -> Self {
        Self {
            rows: [None; NAMES],
            marks: [0; NAMES],
            open: None,
            inserting: None,
            copied_rows: None,
            copied_marks: None,
            is_set_back: [false; NAMES],
            dumped: None,
            is_dump_stale: false,
            issued: [Ids::default(); NAMES],
            is_twice: false,
        }
    }

    fn after(mut self, step: Step, rules: Rules<Rule>) -> Option<Self> {
        match step {
            Step::Create(name) => self.edit(|open| {
                if open.view.rows[name].is_some() {
                    return None;
                }
                let row = Row::new(1).begun(open.view.marks[name], &HERE, 1);
                open.come(name, row.max_id);
                open.remember([name; 2], None, Some(row), Rule::NoIdsOfReplaced);
                Some(())
            })?,
            Step::Drop(name) => self.edit(|open| {
                let max_id = open.view.rows[name].take()?;
                open.leave(name, max_id, rules);
                let old = Row::new(max_id);
                open.remember([name; 2], Some(old), None, Rule::NoIdsOfReplaced);
                Some(())
            })?,
            Step::Rename(name) => self.edit(|open| {
                let to = 1 - name;
                if open.view.rows[to].is_some() {
                    return None;
                }
                let max_id = open.view.rows[name].take()?;
                let issued = rules.keep(Rule::RenameTakesIssued, open.next(name));
                // Before the mark is left, which includes what was issued.
                let update = Update {
                    is_renamed: true,
                    mark: open.view.marks[name].into(),
                    issued: issued.into(),
                    ..Update::default()
                };
                let old = Row::new(max_id);
                let new = old.updated(old, open.view.marks[to], &HERE, &update)?;
                open.leave(name, max_id, rules);
                open.come(to, new.max_id);
                open.remember([name, to], Some(old), Some(new), Rule::NoIdsOfRenamed);
                open.view.is_renamed[to] = !open.view.is_reset[name];
                Some(())
            })?,
            Step::Reset(name) => self.edit(|open| {
                let old = Row::new(open.view.rows[name]?);
                let new = Row::new(1).begun(0, &HERE, 1);
                open.view.rows[name] = Some(1);
                open.remember([name; 2], Some(old), Some(new), Rule::NoIdsOfReset);
                let mark = &mut open.view.marks[name];
                if *mark > 0 {
                    *mark = 1;
                    let edited = open.view.edited_marks[name];
                    open.view.edited_marks[name] = Some(EditedMark {
                        mark: 1,
                        is_inserted: edited.is_some_and(|edited| edited.is_inserted),
                    });
                }
                open.view.is_renamed[name] = false;
                open.view.is_reset[name] = true;
                Some(())
            })?,
            Step::Use(name) => self.use_here(name, rules)?,
            Step::Savepoint => self.edit(|open| {
                let is_new = open.savepoint.is_none();
                open.savepoint = Some(open.view);
                is_new.then_some(())
            })?,
            Step::RollbackTo => {
                let mut open = self.open?;
                let before = open.savepoint?;
                if open.is_written {
                    return None;
                }
                let edited = open.ids_of_edited;
                open.ids_of_edited = [Ids::default(); NAMES];
                open.view = before;
                open.savepoint = None;
                if !rules.hold(Rule::CountOutlivesSavepoint) {
                    open.issued = [0; NAMES];
                }
                self.open = Some(open);
                self.taken_back(&edited);
            }
            Step::Rollback => {
                let open = self.open.take()?;
                self.taken_back(&open.ids_of_edited);
            }
            Step::Write => {
                let open = self.open.as_mut()?;
                if open.is_written {
                    return None;
                }
                open.write(rules);
            }
            Step::Commit => {
                let open = self.open.take()?;
                self.commit(open, rules);
            }
            Step::CommitAndCrash => {
                let open = self.open.take()?;
                if rules.hold(Rule::CommitKept) {
                    return None;
                }
                for name in 0..NAMES {
                    self.issued[name].add_all(open.ids[name]);
                }
                self.inserting = None;
            }
            Step::OtherDrops(name) => {
                if self.is_locked(name) {
                    return None;
                }
                let max_id = self.rows[name].take()?;
                let edited = EditedMark::left(max_id, self.marks[name], rules);
                self.marks[name] = edited.mark;
                self.show(name, Some(None), Some(edited), rules);
            }
            Step::OtherUses(name) => self.use_id(name)?,
            Step::OtherInserts => {
                if self.inserting.is_some() {
                    return None;
                }
                self.inserting = Some(self.marks[0]);
            }
            Step::OtherHasInserted | Step::OtherHasInsertedAndUses => {
                let mark = self.inserting.take()?;
                if self.is_locked(0) || self.rows[0].is_some() {
                    return None;
                }
                let row = Row::new(1).begun(mark, &HERE, 1);
                // A tool sees the insert, but not that the row is raised.
                self.show(0, Some(Some(row.max_id)), None, rules);
                let mark = rules.keep(Rule::RowAtMarkAfterWait, self.marks[0]);
                let begin = rows::next(row.max_id, mark, 0);
                self.rows[0] = Some(begin);
                self.marks[0] = self.marks[0].max(begin);
                if step == Step::OtherHasInsertedAndUses {
                    if begin >= Ids::LAST {
                        return None;
                    }
                    self.rows[0] = Some(begin + 1);
                    self.marks[0] = self.marks[0].max(begin + 1);
                    self.issue(0, begin);
                }
            }
            Step::Crash => {
                let open = self.open.take()?;
                self.inserting = None;
                self.taken_back(&open.ids_of_edited);
            }
            Step::CopyRows | Step::CopyMarks | Step::PutRows | Step::PutMarks => {
                // The tool waits for open transactions.
                if self.open.is_some() || self.inserting.is_some() {
                    return None;
                }
                let is_copying = self.copied_rows.is_some() || self.copied_marks.is_some();
                match step {
                    Step::PutRows => self.rows = self.copied_rows.take()?,
                    Step::PutMarks => self.marks = self.copied_marks.take()?,
                    _ if is_copying && rules.hold(Rule::OneTableAtATime) => return None,
                    Step::CopyRows => self.copied_rows = Some(self.rows),
                    _ => self.copied_marks = Some(self.marks),
                }
                if matches!(step, Step::PutRows | Step::PutMarks) {
                    self.is_set_back = [true; NAMES];
                }
            }
            Step::Dump => {
                if self.is_set_back != [false; NAMES] && rules.hold(Rule::RowAtMark) {
                    return None;
                }
                let mut marks = self.marks;
                for (mark, row) in marks.iter_mut().zip(self.rows) {
                    if row.is_some() || !rules.hold(Rule::MarksDumped) {
                        *mark = 0;
                    }
                }
                self.dumped = Some(Dumped {
                    rows: self.rows,
                    marks,
                    issued: self.issued,
                });
                self.is_dump_stale = false;
            }
            Step::RestoreElsewhere => {
                let dumped = self.dumped.take()?;
                if self.is_dump_stale && rules.hold(Rule::NoIdAfterDump) {
                    return None;
                }
                for (issued, dumped) in self.issued.iter_mut().zip(dumped.issued) {
                    if self.is_dump_stale {
                        issued.add_all(dumped);
                    } else {
                        *issued = dumped;
                    }
                }
                self.rows = dumped.rows;
                // A row that comes raises its mark.
                for (name, row) in dumped.rows.into_iter().enumerate() {
                    self.marks[name] = row.unwrap_or(dumped.marks[name]);
                }
                (self.open, self.inserting) = (None, None);
                (self.copied_rows, self.copied_marks) = (None, None);
            }
        }
        for name in 0..NAMES {
            let is_below = self.rows[name].is_some_and(|max_id| max_id < self.marks[name]);
            self.is_set_back[name] &= is_below;
        }
        Some(self)
    }

    fn is_broken(&self) -> bool {
        self.is_twice
    }
}

impl search::Repeated for World {
    fn refuses(&self, step: Step) -> bool {
        let (Step::Use(name), Some(open)) = (step, &self.open) else {
            return false;
        };
        open.view.rows[name].is_some() && open.view.refusals[name].is_some()
    }
}

/// The steps that are repeated on servers: those that wait for nothing, and take no other server.
pub(super) fn steps_for_servers() -> Vec<Step> {
    let mut steps = all_steps();
    steps.retain(|step| {
        !matches!(
            step,
            Step::Write
                | Step::CommitAndCrash
                | Step::Crash
                | Step::Dump
                | Step::RestoreElsewhere
                | Step::OtherInserts
                | Step::OtherHasInserted
                | Step::OtherHasInsertedAndUses
        )
    });
    steps
}

fn all_steps() -> Vec<Step> {
    let mut steps = vec![
        Step::Savepoint,
        Step::RollbackTo,
        Step::Rollback,
        Step::Write,
        Step::Commit,
        Step::CommitAndCrash,
        Step::Crash,
        Step::CopyRows,
        Step::PutRows,
        Step::CopyMarks,
        Step::PutMarks,
        Step::Dump,
        Step::RestoreElsewhere,
    ];
    for name in 0..NAMES {
        steps.extend([Step::Create(name), Step::Drop(name)]);
        steps.extend([Step::Rename(name), Step::Reset(name), Step::Use(name)]);
        steps.extend([Step::OtherDrops(name), Step::OtherUses(name)]);
    }
    steps.extend([Step::OtherInserts, Step::OtherHasInserted]);
    steps.push(Step::OtherHasInsertedAndUses);
    steps
}

#[test]
fn no_id_comes_twice() {
    let histories = Histories {
        begin: &[],
        steps: &all_steps(),
        depth: 9,
    };
    search::assert_holds::<World>(histories, 10);
}

/// The rules that some history needs.
pub(super) const RULES: [Rule; 12] = [
    Rule::NoIdsOfReset,
    Rule::NoIdsOfReplaced,
    Rule::NoIdsOfRenamed,
    Rule::CountOutlivesSavepoint,
    Rule::RenameTakesIssued,
    Rule::CommitRaisesMark,
    Rule::NoIdsOnceWritten,
    Rule::RowAtMarkAfterWait,
    Rule::EditsOfMarksSeen,
    Rule::MarkInsertedAgain,
    Rule::IssuedLeftToMark,
    Rule::MarksDumped,
];

#[test]
fn each_rule_is_needed() {
    let histories = Histories {
        begin: &[],
        steps: &all_steps(),
        depth: 8,
    };
    let assumptions = [
        Rule::CommitKept,
        Rule::OneTableAtATime,
        Rule::NoIdAfterDump,
        Rule::RowAtMark,
    ];
    search::assert_all_needed::<World>(&RULES, &assumptions, histories);
    let dump_before_the_first_id = Histories {
        begin: &[],
        steps: &[
            Step::Create(0),
            Step::Drop(0),
            Step::Commit,
            Step::OtherUses(0),
            Step::OtherInserts,
            Step::OtherHasInserted,
            Step::Dump,
            Step::RestoreElsewhere,
        ],
        depth: 12,
    };
    search::assert_needed::<World>("rule", Rule::RowAtMarkAfterWait, dump_before_the_first_id);
    search::assert_holds::<World>(dump_before_the_first_id, 14);
}
