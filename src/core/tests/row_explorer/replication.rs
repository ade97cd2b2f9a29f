//! Two servers, one of which publishes its tags to the other. The subscriber's database has, or
//! had, tags of the same names. Takeovers in both directions. The publisher has a standby.

use leaf_id_core::row::{Here, Update};

use super::rows::{self, Row};
use super::search::{self, Histories, Ids, Rules};

const NAMES: usize = 2;
const SERVERS: usize = 2;
/// Max changes in transit.
const QUEUE: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// A replicated INSERT for an existing name raises `max_id` of that row.
    InsertRaises,
    /// So does a replicated rename.
    RenameRaises,
    /// A replicated update does not lower `max_id`.
    UpdateRaises,
    /// A deleted or renamed row leaves its `max_id` in the mark of its name, even if the change was
    /// replicated.
    RowLeavesMark,
    /// A mark that is inserted, as in an initial copy, arrives: its name may have no row. ...
    MarksArrive,
    /// ... It raises the one that is here.
    MarksRise,
    /// Assumption: all changes have been applied before a takeover.
    AllArrived,
    /// Assumption: a subscriber issues no ids of replicated tags. This includes the old publisher
    /// after a takeover.
    PublisherAlone,
    /// Assumption: a subscriber does not drop them: later changes of their rows would be ignored.
    SubscriberKeepsRows,
    /// Assumption: before a takeover, a publisher that was promoted has skipped what lost claims may
    /// have taken, by a claim or an edit of each tag, ...
    SettledBeforeTakeOver,
    /// ... and the promotion has lost at most one claim of a name. (And no tag that came or went: see
    /// the failover world.)
    LostClaimsBounded,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Tag {
    row: Row,
    /// Created locally, and never changed by replication.
    is_own: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Database {
    system: u8,
    timeline: u8,
    tags: [Option<Tag>; NAMES],
    marks: [u8; NAMES],
}

/// A standby of the publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Standby {
    database: Database,
    /// The changes in transit that it knows.
    queue: [Option<Change>; QUEUE],
    missing: [u8; NAMES],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Edit {
    Insert,
    Update,
    /// Renames to the other name.
    Rename,
    Delete,
    /// Inserts a mark, in an initial copy.
    Mark,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Change {
    edit: Edit,
    name: usize,
    /// `max_id` of the row after the change.
    max_id: u8,
    /// Mark of the name after the change.
    mark: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    servers: [Database; SERVERS],
    publisher: usize,
    queue: [Option<Change>; QUEUE],
    standby: Option<Standby>,
    /// The publisher's rows, which a tool is about to replace, copied without later claims.
    copied: Option<[Option<Tag>; NAMES]>,
    /// Ids issued by publishers under each name, ...
    published: [Ids; NAMES],
    /// ... and ids issued by each server.
    issued: [[Ids; NAMES]; SERVERS],
    is_twice: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create(usize),
    Drop(usize),
    /// Renames to the other name.
    Rename(usize),
    /// Edits a description.
    Touch(usize),
    Use(usize),
    CopyRows,
    PutRows,
    SubscriberCreates(usize),
    SubscriberDrops(usize),
    SubscriberUses(usize),
    Arrive,
    /// The subscriber becomes the publisher, starting with an initial copy.
    TakeOver,
    /// The publisher's standby catches up, ...
    Follow,
    /// ... and is promoted.
    Promote,
}

impl Database {
    /// A row comes under a name, and raises its mark.
    fn come(&mut self, name: usize, tag: Tag) -> Option<()> {
        let mark = &mut self.marks[name];
        *mark = tag.row.max_id.max(*mark);
        self.tags[name].replace(tag).is_none().then_some(())
    }

    fn here(&self) -> Here {
        Here {
            system: self.system.into(),
            ..rows::here(self.timeline)
        }
    }

    /// True if a promotion may have lost claims that no claim or edit has skipped.
    fn is_unsettled(&self) -> bool {
        let here = self.here();
        let tags = self.tags.iter().flatten();
        tags.into_iter().any(|tag| tag.row.full().skip(&here) > 0)
    }

    fn create(&mut self, name: usize, max_id: u8, is_own: bool) -> Option<()> {
        let row = Row::new(max_id).begun(self.marks[name], &self.here(), 1);
        self.come(name, Tag { row, is_own })
    }

    /// Removes a row from its name.
    fn remove(&mut self, name: usize, rules: Rules<Rule>) -> Option<Tag> {
        let tag = self.tags[name].take()?;
        if rules.hold(Rule::RowLeavesMark) {
            let skip = tag.row.full().skip(&self.here());
            let mark = &mut self.marks[name];
            *mark = rows::next(tag.row.max_id, *mark, skip);
        }
        Some(tag)
    }

    /// Renames to the other name. `max_id` is replicated.
    fn rename(&mut self, name: usize, max_id: u8, rules: Rules<Rule>) -> Option<()> {
        let to = 1 - name;
        let update = Update {
            is_renamed: true,
            is_replicated: true,
            skip: self.tags[name]?.row.full().skip(&self.here()),
            mark: self.marks[name].into(),
            ..Update::default()
        };
        let tag = self.remove(name, rules)?;
        let new = Row { max_id, ..tag.row };
        let row = tag
            .row
            .updated(new, self.marks[to], &self.here(), &update)?;
        self.come(to, Tag { row, ..tag })
    }

    fn claim(&mut self, name: usize) -> Option<u8> {
        let here = self.here();
        let row = &mut self.tags[name].as_mut()?.row;
        let id = row.claim(self.marks[name], row.full().skip(&here), &here)?;
        self.marks[name] = self.marks[name].max(row.max_id);
        Some(id)
    }

    /// A change for an existing name is not applied, but raises `max_id`.
    fn raise(&mut self, name: usize, max_id: u8, rule: Rule, rules: Rules<Rule>) {
        if let Some(tag) = &mut self.tags[name] {
            tag.is_own = false;
            let raised = tag.row.full().merged(max_id.into());
            if rules.hold(rule) {
                tag.row = raised.map_or(tag.row, Row::from);
            }
        }
    }

    fn apply(&mut self, change: Change, rules: Rules<Rule>) {
        let Change {
            edit,
            name,
            max_id,
            mark,
        } = change;
        match edit {
            Edit::Insert if self.tags[name].is_some() => {
                self.raise(name, max_id, Rule::InsertRaises, rules);
            }
            Edit::Insert => {
                let _ = self.create(name, max_id, false);
            }
            Edit::Update => {
                let here = self.here();
                if let Some(tag) = &mut self.tags[name] {
                    tag.is_own = false;
                    let new = Row { max_id, ..tag.row };
                    let old = if rules.hold(Rule::UpdateRaises) {
                        tag.row
                    } else {
                        new
                    };
                    let update = Update {
                        is_replicated: true,
                        skip: tag.row.full().skip(&here),
                        ..Update::default()
                    };
                    tag.row = old.updated(new, 0, &here, &update).unwrap_or(tag.row);
                }
            }
            // Changes of missing rows are ignored.
            Edit::Rename if self.tags[name].is_none() => {}
            Edit::Rename if self.tags[1 - name].is_some() => {
                self.raise(1 - name, max_id, Rule::RenameRaises, rules);
            }
            Edit::Rename => {
                let _ = self.rename(name, max_id, rules);
                if let Some(tag) = &mut self.tags[1 - name] {
                    tag.is_own = false;
                }
            }
            Edit::Delete => {
                let _ = self.remove(name, rules);
            }
            Edit::Mark => {}
        }
        // Not those of claims: the row has arrived.
        let is_inserted = matches!(edit, Edit::Rename | Edit::Delete | Edit::Mark);
        if is_inserted && rules.hold(Rule::MarksArrive) {
            let before = rules.keep(Rule::MarksRise, self.marks[name]);
            self.marks[name] = before.max(mark);
        }
    }
}

impl World {
    /// Sends a change of the publisher.
    fn publish(&mut self, edit: Edit, name: usize) -> Option<()> {
        if edit != Edit::Update {
            self.copied = None;
            self.standby = None;
        }
        let database = &self.servers[self.publisher];
        let at = if edit == Edit::Rename { 1 - name } else { name };
        let change = Change {
            edit,
            name,
            max_id: database.tags[at].map_or(0, |tag| tag.row.max_id),
            mark: database.marks[name],
        };
        *self.queue.iter_mut().find(|change| change.is_none())? = Some(change);
        Some(())
    }

    fn issue(&mut self, server: usize, name: usize, id: u8) {
        let own = &mut self.issued[server][name];
        self.is_twice |= own.has(id);
        own.add(id);
    }

    fn issue_published(&mut self, server: usize, name: usize, id: u8) {
        self.issue(server, name, id);
        self.is_twice |= self.published[name].has(id);
        self.published[name].add(id);
    }
}

impl search::World for World {
    const NAME: &'static str = "replication";
    type Rule = Rule;
    type Step = Step;

    fn new() -> Self {
        Self {
            servers: [1, 2].map(|system| Database {
                system,
                timeline: 1,
                tags: [None; NAMES],
                marks: [0; NAMES],
            }),
            publisher: 0,
            queue: [None; QUEUE],
            standby: None,
            copied: None,
            published: [Ids::default(); NAMES],
            issued: [[Ids::default(); NAMES]; SERVERS],
            is_twice: false,
        }
    }

    fn after(mut self, step: Step, rules: Rules<Rule>) -> Option<Self> {
        let publisher = self.publisher;
        let subscriber = 1 - publisher;
        match step {
            Step::Create(name) => {
                self.servers[publisher].create(name, 1, true)?;
                self.publish(Edit::Insert, name)?;
            }
            Step::Drop(name) => {
                self.servers[publisher].remove(name, rules)?;
                self.publish(Edit::Delete, name)?;
            }
            Step::Rename(name) => {
                let to = 1 - name;
                if self.servers[publisher].tags[to].is_some() {
                    return None;
                }
                self.servers[publisher].rename(name, 0, rules)?;
                self.publish(Edit::Rename, name)?;
                // The columns with its ids are the same.
                self.published[to].add_all(self.published[name]);
            }
            Step::Touch(name) => {
                let database = &mut self.servers[publisher];
                let here = database.here();
                let row = &mut database.tags[name].as_mut()?.row;
                let update = Update {
                    skip: row.full().skip(&here),
                    ..Update::default()
                };
                *row = row.updated(*row, 0, &here, &update)?;
                self.publish(Edit::Update, name)?;
                self.copied = None;
            }
            Step::CopyRows => {
                self.copied = Some(self.servers[publisher].tags);
            }
            Step::PutRows => self.servers[publisher].tags = self.copied.take()?,
            Step::Use(name) => {
                let id = self.servers[publisher].claim(name)?;
                self.publish(Edit::Update, name)?;
                self.issue_published(publisher, name, id);
                if let Some(standby) = &mut self.standby {
                    standby.missing[name] += 1;
                    if standby.missing[name] > 1 && rules.hold(Rule::LostClaimsBounded) {
                        self.standby = None;
                    }
                }
            }
            Step::SubscriberCreates(name) => self.servers[subscriber].create(name, 1, true)?,
            Step::SubscriberDrops(name) => {
                let tag = self.servers[subscriber].remove(name, rules)?;
                if !tag.is_own && rules.hold(Rule::SubscriberKeepsRows) {
                    return None;
                }
            }
            Step::SubscriberUses(name) => {
                let tag = self.servers[subscriber].tags[name]?;
                let id = self.servers[subscriber].claim(name)?;
                if tag.is_own {
                    self.issue(subscriber, name, id);
                } else if rules.hold(Rule::PublisherAlone) {
                    return None;
                } else {
                    self.issue_published(subscriber, name, id);
                }
            }
            Step::Arrive => {
                let change = self.queue[0]?;
                let known = self.standby.iter_mut().map(|standby| &mut standby.queue);
                for queue in [&mut self.queue].into_iter().chain(known) {
                    queue.rotate_left(1);
                    queue[QUEUE - 1] = None;
                }
                self.servers[subscriber].apply(change, rules);
            }
            Step::TakeOver => {
                if self.queue[0].is_some() && rules.hold(Rule::AllArrived) {
                    return None;
                }
                let is_unsettled = self.servers[publisher].is_unsettled();
                if is_unsettled && rules.hold(Rule::SettledBeforeTakeOver) {
                    return None;
                }
                self.queue = [None; QUEUE];
                self.standby = None;
                self.copied = None;
                self.publisher = subscriber;
                for name in 0..NAMES {
                    let Database { tags, marks, .. } = self.servers[subscriber];
                    if tags[name].is_some() {
                        self.publish(Edit::Insert, name)?;
                    } else if marks[name] > 0 {
                        self.publish(Edit::Mark, name)?;
                    }
                    // Its local ids are published now, too.
                    self.published[name].add_all(self.issued[subscriber][name]);
                }
            }
            Step::Follow => {
                let caught_up = Standby {
                    database: self.servers[publisher],
                    queue: self.queue,
                    missing: [0; NAMES],
                };
                if self.standby.replace(caught_up) == Some(caught_up) {
                    return None;
                }
            }
            Step::Promote => {
                let standby = self.standby.take()?;
                let timeline = self.servers[publisher].timeline + 1;
                self.servers[publisher] = Database {
                    timeline,
                    ..standby.database
                };
                self.queue = standby.queue;
                self.copied = None;
            }
        }
        Some(self)
    }

    fn is_broken(&self) -> bool {
        self.is_twice
    }
}

/// One name, and a publisher that is promoted.
const PROMOTIONS: [Step; 9] = [
    Step::Create(0),
    Step::Drop(0),
    Step::Touch(0),
    Step::Use(0),
    Step::SubscriberUses(0),
    Step::Arrive,
    Step::TakeOver,
    Step::Follow,
    Step::Promote,
];

fn all_steps() -> Vec<Step> {
    let mut steps = vec![Step::Arrive, Step::TakeOver, Step::CopyRows, Step::PutRows];
    for name in 0..NAMES {
        steps.extend([Step::Create(name), Step::Drop(name)]);
        steps.extend([Step::Rename(name), Step::Touch(name), Step::Use(name)]);
        steps.extend([
            Step::SubscriberCreates(name),
            Step::SubscriberDrops(name),
            Step::SubscriberUses(name),
        ]);
    }
    steps
}

#[test]
fn no_id_comes_twice() {
    let histories = Histories {
        begin: &[],
        steps: &all_steps(),
        depth: 10,
    };
    search::assert_holds::<World>(histories, 12);
    let promotions = Histories {
        steps: &PROMOTIONS,
        depth: 13,
        ..histories
    };
    search::assert_holds::<World>(promotions, 15);
}

#[test]
fn each_rule_is_needed() {
    let histories = Histories {
        begin: &[],
        steps: &all_steps(),
        depth: 10,
    };
    let rules = [
        Rule::InsertRaises,
        Rule::RenameRaises,
        Rule::RowLeavesMark,
        Rule::MarksArrive,
        Rule::MarksRise,
    ];
    let assumptions = [
        Rule::AllArrived,
        Rule::PublisherAlone,
        Rule::SubscriberKeepsRows,
    ];
    search::assert_all_needed::<World>(&rules, &assumptions, histories);
    let promotions = Histories {
        steps: &PROMOTIONS,
        ..histories
    };
    let assumptions = [Rule::SettledBeforeTakeOver, Rule::LostClaimsBounded];
    search::assert_all_needed::<World>(&[], &assumptions, promotions);
    let older_row = Histories {
        begin: &[Step::Create(0), Step::Arrive, Step::CopyRows],
        ..histories
    };
    search::assert_needed::<World>("rule", Rule::UpdateRaises, older_row);
}
