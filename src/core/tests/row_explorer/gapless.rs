//! Gapless series: row and mark are both written in the caller's transaction. With a savepoint,
//! other sessions, tools, dumps, a standby and prepared transactions. Each number must be one above the
//! last committed one.

use super::rows;
use super::search::{self, Histories, Rules};

const NAMES: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// A number is above the mark of its series, ...
    NextAboveMark,
    /// ... raises the mark, ...
    NextRaisesMark,
    /// ... and the mark rolls back with the transaction.
    MarkRollsBack,
    /// A deleted row leaves its last number in the mark of its name.
    DropLeavesMark,
    /// So does a renamed row.
    RenameLeavesMark,
    /// A renamed row starts above the mark of its old name.
    RenameTakesMark,
    /// A tool that copies the table of marks sees marks written by edits, ...
    EditsOfMarksSeen,
    /// ... even if the mark was high enough already, ...
    EqualMarkWritten,
    /// ... and even if its copy lacks the mark, as a call has inserted it since: an edit deletes the
    /// mark that it leaves, and inserts it again.
    MarkInsertedAgain,
    /// An edit does not lower the last number: the mark may still be too low for a row that was
    /// renamed or restored from a dump.
    LoweringRefused,
    /// A row whose insert has waited for another one of its name to go is raised to the mark that
    /// this has left. (Numbers are above the mark anyway, but a dump has the row alone.)
    RowAtMarkAfterWait,
    /// A commit is durable before it is reported.
    CommitDurable,
    /// A transaction that has taken a number, or edited a series, is not prepared: the session that
    /// commits it need not wait for a standby, since nothing there knows of the number.
    PrepareRefused,
    /// Assumption: a tool rewrites one of the two tables at a time.
    OneTableAtATime,
    /// Assumption: no committed call is lost in a promotion.
    NoCallLost,
    /// Assumption: no call is committed after a dump from which another server continues, or this
    /// one without its marks.
    NoCallAfterDump,
    /// Assumption: no row is dumped that a tool has set back below its mark.
    RowAtMark,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Database {
    /// Last number of each series.
    rows: [Option<u8>; NAMES],
    /// One past the highest number of each name; 0 for none.
    marks: [u8; NAMES],
    /// Highest number that a caller has received for sure, per series.
    reported: [u8; NAMES],
    /// Rows that a tool has set back below their marks.
    is_set_back: [bool; NAMES],
}

/// Uncommitted changes of the open transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct View {
    database: Database,
    /// Names whose rows are locked.
    is_locked: [bool; NAMES],
    /// Changes visible to tools: rows and marks as of the last edit.
    edited_rows: [Option<Option<u8>>; NAMES],
    edited_marks: [Option<EditedMark>; NAMES],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct EditedMark {
    mark: u8,
    /// An edit has inserted it, so that tools insert it, too.
    is_inserted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Transaction {
    view: View,
    savepoint: Option<View>,
    has_taken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct World {
    database: Database,
    open: Option<Transaction>,
    prepared: Option<Transaction>,
    /// Another session is inserting a series of the first name, after this last number.
    inserting: Option<u8>,
    /// Tables that a tool is about to replace, copied without later calls.
    copied_rows: Option<[Option<u8>; NAMES]>,
    copied_marks: Option<[u8; NAMES]>,
    /// Rows in a dump, and the numbers reported by then.
    dumped: Option<([Option<u8>; NAMES], [u8; NAMES])>,
    standby: Option<Database>,
    /// Calls were committed since the dump, or since the standby was in sync.
    is_dump_stale: bool,
    is_standby_stale: bool,
    is_broken: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// In the open transaction.
    Next(usize),
    Create(usize),
    Drop(usize),
    /// Renames to the other name.
    Rename(usize),
    Savepoint,
    RollbackTo,
    Rollback,
    Commit,
    /// Reports a commit before it is durable, then crashes.
    CommitAndCrash,
    Prepare,
    CommitPrepared,
    /// Without a wait for the standby, which is promoted: it has the transaction as prepared.
    CommitPreparedAndFailOver,
    RollbackPrepared,
    /// In other sessions.
    OtherNext(usize),
    OtherInserts,
    /// The insert is done, after waiting for the transaction that had a row of the name.
    OtherHasInserted,
    /// Drops a series and its mark, as the user wants the numbers again.
    DropAndForget(usize),
    Lower(usize),
    CopyRows,
    PutRows,
    CopyMarks,
    PutMarks,
    Dump,
    /// Restores without the marks.
    Restore,
    Follow,
    Promote,
}

impl Database {
    /// Takes the next number. Returns true if it is the expected one.
    fn next(&mut self, name: usize, rules: Rules<Rule>) -> Option<bool> {
        let last = self.rows[name]?;
        let mark = rules.keep(Rule::NextAboveMark, self.marks[name]);
        let number = rows::next(last + 1, mark, 0);
        self.rows[name] = Some(number);
        if rules.hold(Rule::NextRaisesMark) {
            self.marks[name] = self.marks[name].max(number + 1);
        }
        let is_due = number == self.reported[name] + 1;
        self.reported[name] = number;
        Some(is_due)
    }

    /// Last number of a row that is inserted.
    fn begin(&self, name: usize) -> u8 {
        rows::next(1, self.marks[name], 0) - 1
    }

    fn create(&mut self, name: usize) -> Option<()> {
        let begin = self.begin(name);
        self.rows[name].replace(begin).is_none().then_some(())
    }

    fn is_below_mark(&self, name: usize) -> bool {
        self.rows[name].is_some_and(|last| last + 1 < self.marks[name])
    }

    /// Copies the state of a name from another database.
    fn take(&mut self, name: usize, other: &Self) {
        self.rows[name] = other.rows[name];
        self.marks[name] = other.marks[name];
        self.reported[name] = other.reported[name];
        self.is_set_back[name] = other.is_set_back[name];
    }
}

impl World {
    fn is_locked(&self, name: usize) -> bool {
        let mut transactions = self.open.iter().chain(&self.prepared);
        transactions.any(|transaction| transaction.view.is_locked[name])
    }

    fn is_in_transaction(&self) -> bool {
        self.open.is_some() || self.prepared.is_some()
    }

    /// Reports what a transaction has taken, which is then lost.
    fn report(&mut self, lost: &View) {
        for name in 0..NAMES {
            let reported = &mut self.database.reported[name];
            *reported = lost.database.reported[name].max(*reported);
        }
    }

    /// Runs a step in the open transaction, or in a new one.
    fn in_transaction<T>(&mut self, step: impl FnOnce(&mut Transaction) -> Option<T>) -> Option<T> {
        let mut open = self.open.unwrap_or(Transaction {
            view: View {
                database: self.database,
                is_locked: [false; NAMES],
                edited_rows: [None; NAMES],
                edited_marks: [None; NAMES],
            },
            savepoint: None,
            has_taken: false,
        });
        // See changes committed by others.
        for name in 0..NAMES {
            if !open.view.is_locked[name] {
                open.view.database.take(name, &self.database);
            }
        }
        let result = step(&mut open)?;
        // It would wait for the prepared transaction.
        let mut names = 0..NAMES;
        let waits = self.prepared.is_some_and(|prepared| {
            names.any(|name| open.view.is_locked[name] && prepared.view.is_locked[name])
        });
        if waits {
            return None;
        }
        self.open = Some(open);
        Some(result)
    }

    fn commit(&mut self, view: &View) {
        for name in 0..NAMES {
            if view.is_locked[name] {
                self.database.take(name, &view.database);
            }
            if let (Some(rows), Some(row)) = (&mut self.copied_rows, view.edited_rows[name]) {
                rows[name] = row;
            }
            if let (Some(marks), Some(edited)) = (&mut self.copied_marks, view.edited_marks[name])
                && (edited.is_inserted || marks[name] > 0)
            {
                marks[name] = edited.mark;
            }
        }
    }

    fn calls_committed(&mut self) {
        self.is_dump_stale = true;
        self.is_standby_stale = true;
    }
}

impl View {
    fn has_edited(&mut self, name: usize) {
        self.is_locked[name] = true;
        self.edited_rows[name] = Some(self.database.rows[name]);
    }

    /// Removes a row from its name.
    fn leave(&mut self, name: usize, leaves: Rule, rules: Rules<Rule>) -> Option<u8> {
        let last = self.database.rows[name].take()?;
        self.has_edited(name);
        let before = self.database.marks[name];
        let mark = rows::next(last + 1, before, 0);
        if rules.hold(leaves) {
            self.database.marks[name] = mark;
            let is_written = mark != before || rules.hold(Rule::EqualMarkWritten);
            if is_written && rules.hold(Rule::EditsOfMarksSeen) {
                let edited = self.edited_marks[name];
                let was_inserted = edited.is_some_and(|edited| edited.is_inserted);
                let is_inserted = before == 0 || rules.hold(Rule::MarkInsertedAgain);
                self.edited_marks[name] = Some(EditedMark {
                    mark,
                    is_inserted: was_inserted || is_inserted,
                });
            }
        }
        Some(rules.keep(Rule::RenameTakesMark, mark).max(last + 1))
    }
}

impl search::World for World {
    const NAME: &'static str = "gapless";
    type Rule = Rule;
    type Step = Step;

    fn new() -> Self {
        Self {
            database: Database {
                rows: [None; NAMES],
                marks: [0; NAMES],
                reported: [0; NAMES],
                is_set_back: [false; NAMES],
            },
            open: None,
            prepared: None,
            inserting: None,
            copied_rows: None,
            copied_marks: None,
            dumped: None,
            standby: None,
            is_dump_stale: false,
            is_standby_stale: false,
            is_broken: false,
        }
    }

    fn after(mut self, step: Step, rules: Rules<Rule>) -> Option<Self> {
        match step {
            Step::Next(name) => {
                let is_due = self.in_transaction(|open| {
                    open.view.is_locked[name] = true;
                    open.has_taken = true;
                    open.view.database.next(name, rules)
                })?;
                self.is_broken = !is_due;
            }
            Step::Create(name) => self.in_transaction(|open| {
                open.view.database.create(name)?;
                open.view.has_edited(name);
                Some(())
            })?,
            Step::Drop(name) => self.in_transaction(|open| {
                open.view.leave(name, Rule::DropLeavesMark, rules)?;
                Some(())
            })?,
            Step::Rename(name) => self.in_transaction(|open| {
                let to = 1 - name;
                let view = &mut open.view;
                if view.database.rows[to].is_some() {
                    return None;
                }
                let next = view.leave(name, Rule::RenameLeavesMark, rules)?;
                let next = rows::next(next, view.database.marks[to], 0);
                view.database.rows[to] = Some(next - 1);
                view.has_edited(to);
                // The columns with its numbers are the same.
                let reported = view.database.reported;
                view.database.reported[to] = reported[to].max(reported[name]);
                Some(())
            })?,
            Step::Savepoint => self.in_transaction(|open| {
                let is_new = open.savepoint.is_none();
                open.savepoint = Some(open.view);
                is_new.then_some(())
            })?,
            Step::RollbackTo => {
                let open = self.open.as_mut()?;
                let marks = open.view.database.marks;
                open.view = open.savepoint.take()?;
                if !rules.hold(Rule::MarkRollsBack) {
                    open.view.database.marks = marks;
                }
            }
            Step::Rollback => {
                let open = self.open.take()?;
                if !rules.hold(Rule::MarkRollsBack) {
                    self.database.marks = open.view.database.marks;
                }
            }
            Step::Commit => {
                let open = self.open.take()?;
                self.commit(&open.view);
                if open.has_taken {
                    self.calls_committed();
                }
            }
            Step::CommitAndCrash => {
                let open = self.open.take()?;
                if rules.hold(Rule::CommitDurable) {
                    return None;
                }
                self.inserting = None;
                self.report(&open.view);
            }
            Step::Prepare => {
                let open = self.open.take()?;
                let is_changed = open.view.is_locked.contains(&true);
                if !is_changed || rules.hold(Rule::PrepareRefused) || self.prepared.is_some() {
                    return None;
                }
                self.prepared = Some(open);
            }
            Step::CommitPrepared => {
                let prepared = self.prepared.take()?;
                self.commit(&prepared.view);
                self.calls_committed();
            }
            Step::CommitPreparedAndFailOver => {
                let prepared = self.prepared?;
                (self.open, self.inserting) = (None, None);
                self.report(&prepared.view);
            }
            Step::RollbackPrepared => {
                self.prepared.take()?;
            }
            Step::OtherNext(name) => {
                if self.is_locked(name) {
                    return None;
                }
                self.is_broken = !self.database.next(name, rules)?;
                self.calls_committed();
            }
            Step::OtherInserts => {
                if self.inserting.is_some() {
                    return None;
                }
                self.inserting = Some(self.database.begin(0));
            }
            Step::OtherHasInserted => {
                let begin = self.inserting.take()?;
                if self.is_locked(0) || self.database.rows[0].is_some() {
                    return None;
                }
                // A tool sees the insert, but not that the row is raised.
                if let Some(rows) = &mut self.copied_rows {
                    rows[0] = Some(begin);
                }
                let raised = rules.keep(Rule::RowAtMarkAfterWait, self.database.begin(0));
                self.database.rows[0] = Some(begin.max(raised));
            }
            Step::DropAndForget(name) => {
                // An insert that has read the mark may begin there or at 1: the user did both at
                // once.
                let is_inserting = name == 0 && self.inserting.is_some();
                if self.is_locked(name) || is_inserting {
                    return None;
                }
                self.database.rows[name].take()?;
                self.database.marks[name] = 0;
                self.database.reported[name] = 0;
                // Restoring older data returns to the numbers of that time.
                (self.copied_rows, self.copied_marks) = (None, None);
                (self.dumped, self.standby) = (None, None);
            }
            Step::Lower(name) => {
                if self.is_locked(name) || rules.hold(Rule::LoweringRefused) {
                    return None;
                }
                let last = self.database.rows[name].as_mut()?;
                *last = last.checked_sub(1)?;
                if let Some(rows) = &mut self.copied_rows {
                    rows[name] = self.database.rows[name];
                }
            }
            Step::CopyRows | Step::CopyMarks => {
                let is_copying = self.copied_rows.is_some() || self.copied_marks.is_some();
                // The tool waits for open transactions.
                let is_used = self.is_in_transaction() || self.inserting.is_some();
                if is_used || is_copying && rules.hold(Rule::OneTableAtATime) {
                    return None;
                }
                if step == Step::CopyRows {
                    self.copied_rows = Some(self.database.rows);
                } else {
                    self.copied_marks = Some(self.database.marks);
                }
            }
            Step::PutRows | Step::PutMarks => {
                if self.is_in_transaction() || self.inserting.is_some() {
                    return None;
                }
                if step == Step::PutRows {
                    self.database.rows = self.copied_rows.take()?;
                } else {
                    self.database.marks = self.copied_marks.take()?;
                }
                self.database.is_set_back = [true; NAMES];
            }
            Step::Dump => {
                for name in 0..NAMES {
                    if self.database.is_set_back[name] && rules.hold(Rule::RowAtMark) {
                        return None;
                    }
                }
                self.dumped = Some((self.database.rows, self.database.reported));
                self.is_dump_stale = false;
            }
            Step::Restore => {
                let (rows, reported) = self.dumped.take()?;
                if self.is_in_transaction()
                    || self.is_dump_stale && rules.hold(Rule::NoCallAfterDump)
                {
                    return None;
                }
                for name in 0..NAMES {
                    let now = self.database.reported[name];
                    self.database.reported[name] = match rows[name] {
                        // The dump has no information about series that are not in it.
                        None => 0,
                        Some(_) if self.is_dump_stale => now.max(reported[name]),
                        Some(_) => reported[name],
                    };
                }
                self.database.rows = rows;
                self.database.marks = [0; NAMES];
                (self.copied_rows, self.copied_marks) = (None, None);
                (self.standby, self.inserting) = (None, None);
            }
            Step::Follow => {
                if self.standby.replace(self.database) == Some(self.database) {
                    return None;
                }
                self.is_standby_stale = false;
            }
            Step::Promote => {
                let standby = self.standby.take()?;
                if self.is_standby_stale && rules.hold(Rule::NoCallLost) {
                    return None;
                }
                let reported = self.database.reported;
                self.database = Database {
                    reported: if rules.hold(Rule::NoCallLost) {
                        standby.reported
                    } else {
                        reported
                    },
                    ..standby
                };
                (self.open, self.prepared, self.inserting) = (None, None, None);
                (self.copied_rows, self.copied_marks) = (None, None);
            }
        }
        for name in 0..NAMES {
            self.database.is_set_back[name] &= self.database.is_below_mark(name);
        }
        Some(self)
    }

    fn is_broken(&self) -> bool {
        self.is_broken
    }

    fn is_small(&self) -> bool {
        self.database.reported.iter().all(|&number| number < 8)
    }
}

impl search::Repeated for World {
    /// Last number and mark of each name; 0 for no mark.
    fn shown(&self) -> String {
        let names = [0, 1].map(|name| {
            let open = self.open.filter(|open| open.view.is_locked[name]);
            let database = open.map_or(self.database, |open| open.view.database);
            let last = database.rows[name].map_or("-".into(), |last| last.to_string());
            format!("{last},{}", database.marks[name])
        });
        names.join(" ")
    }
}

/// The steps that are repeated on servers: those that wait for nothing, and take no other server.
pub(super) fn steps_for_servers() -> Vec<Step> {
    let mut steps = all_steps();
    steps.retain(|step| {
        !matches!(
            step,
            Step::CommitAndCrash
                | Step::Prepare
                | Step::CommitPrepared
                | Step::CommitPreparedAndFailOver
                | Step::RollbackPrepared
                | Step::Dump
                | Step::Restore
                | Step::Follow
                | Step::Promote
                | Step::OtherInserts
                | Step::OtherHasInserted
        )
    });
    steps
}

fn all_steps() -> Vec<Step> {
    let mut steps = vec![Step::Savepoint, Step::RollbackTo, Step::Rollback];
    steps.extend([Step::Commit, Step::CommitAndCrash]);
    steps.extend([Step::Prepare, Step::CommitPrepared]);
    steps.extend([Step::CommitPreparedAndFailOver, Step::RollbackPrepared]);
    steps.extend([Step::CopyRows, Step::PutRows]);
    steps.extend([Step::CopyMarks, Step::PutMarks]);
    steps.extend([Step::Dump, Step::Restore, Step::Follow, Step::Promote]);
    for name in 0..NAMES {
        steps.extend([Step::Next(name), Step::Create(name), Step::Drop(name)]);
        steps.extend([Step::Rename(name), Step::OtherNext(name)]);
        steps.extend([Step::DropAndForget(name), Step::Lower(name)]);
    }
    steps.extend([Step::OtherInserts, Step::OtherHasInserted]);
    steps
}

#[test]
fn no_number_comes_twice_and_none_is_left_out() {
    let histories = Histories {
        begin: &[],
        steps: &all_steps(),
        depth: 9,
    };
    search::assert_holds::<World>(histories, 10);
}

/// The rules that some history needs.
pub(super) const RULES: [Rule; 12] = [
    Rule::NextAboveMark,
    Rule::NextRaisesMark,
    Rule::MarkRollsBack,
    Rule::DropLeavesMark,
    Rule::RenameLeavesMark,
    Rule::RenameTakesMark,
    Rule::EditsOfMarksSeen,
    Rule::EqualMarkWritten,
    Rule::MarkInsertedAgain,
    Rule::LoweringRefused,
    Rule::CommitDurable,
    Rule::PrepareRefused,
];

#[test]
fn each_rule_is_needed() {
    let histories = Histories {
        begin: &[],
        steps: &all_steps(),
        depth: 9,
    };
    let assumptions = [
        Rule::OneTableAtATime,
        Rule::NoCallLost,
        Rule::NoCallAfterDump,
        Rule::RowAtMark,
    ];
    search::assert_all_needed::<World>(&RULES, &assumptions, histories);
    let waiting = Histories {
        begin: &[Step::OtherInserts, Step::Create(0), Step::Next(0)],
        ..histories
    };
    search::assert_needed::<World>("rule", Rule::RowAtMarkAfterWait, waiting);
}
