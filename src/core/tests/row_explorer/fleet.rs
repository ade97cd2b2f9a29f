//! Two members whose tag is sourced from a central server, and another central server. Claims
//! there, lost or late answers, members with a local tag, and a central server that is promoted or
//! whose rows a tool rewrites.

use leaf_id_core::row::{self, Update};

use super::rows::{self, HERE, Row};
use super::search::{self, Histories, Ids, Rules};

/// Max claims lost by one promotion of a center, of one id each.
const LOST_CLAIMS: u32 = 1;
const CENTERS: usize = 2;
const MEMBERS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// A claim for a member starts above the mark of its name at the center, ...
    CenterClaimsAboveMark,
    /// ... raises it, ...
    CenterRaisesMark,
    /// ... and skips the ids that lost claims may have taken.
    CenterSkips,
    /// A member ignores an answer below ids it already has, from the same row at the center or
    /// local.
    NotBehind,
    /// A member ignores an answer requested for another row.
    AnswerToSameRow,
    /// A tag that becomes sourced starts above the mark of its local claims.
    SourcedAtMark,
    /// An answer raises the member's mark, too. (A deleted row would leave that mark as well,
    /// unless a tool has restored an older row.)
    AnswerRaisesMark,
    /// Assumption: a promotion of a center loses at most `LOST_CLAIMS` claims.
    LostClaimsBounded,
    /// Assumption: the old center stops after a promotion.
    OldCenterStops,
    /// Assumption: a center's tag is not reset below ids that members have.
    CenterNotReset,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Standby {
    row: Row,
    mark: u8,
    missing: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Center {
    row: Row,
    mark: u8,
    timeline: u8,
    standby: Option<Standby>,
    copied: Option<Row>,
    /// The center before the last promotion: row, mark and timeline.
    deposed: Option<(Row, u8, u8)>,
    issued: Ids,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Answer {
    /// The member's row when the request was sent.
    asked: Row,
    source: usize,
    id: u8,
    incarnation: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Member {
    row: Option<Row>,
    mark: u8,
    /// An answer in transit.
    answer: Option<Answer>,
    copied: Option<Row>,
    issued: Ids,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    centers: [Center; CENTERS],
    members: [Member; MEMBERS],
    incarnations: u8,
    is_twice: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Creates a local tag on a member.
    Create(usize),
    /// Creates a tag sourced from a center.
    CreateSourced(usize, u8),
    /// Makes a center the source of a member's tag.
    Source(usize, u8),
    Drop(usize),
    /// Issues a local id.
    Use(usize),
    /// Claims at the center.
    Ask(usize),
    /// Records the answer, and issues its id.
    Receive(usize),
    LoseAnswer(usize),
    MemberCopiesRows(usize),
    MemberPutsRows(usize),
    /// The first center issues a local id, ...
    CenterUses,
    /// ... drops and recreates its tag, ...
    CenterReplaces,
    CenterResets,
    CenterCopiesRows,
    CenterPutsRows,
    CenterFollows,
    CenterPromotes,
    CenterReturns,
}

impl Center {
    fn claim(&mut self, rules: Rules<Rule>) -> Option<u8> {
        let here = rows::here(self.timeline);
        let skip = rules.keep(Rule::CenterSkips, self.row.full().skip(&here));
        let mark = rules.keep(Rule::CenterClaimsAboveMark, self.mark);
        let id = self.row.claim(mark, skip, &here)?;
        if rules.hold(Rule::CenterRaisesMark) {
            self.mark = self.mark.max(self.row.max_id);
        }
        if let Some(standby) = &mut self.standby {
            standby.missing = (standby.missing + 1).min(LOST_CLAIMS + 1);
        }
        Some(id)
    }
}

impl Member {
    fn receive(&mut self, incarnation: u8, rules: Rules<Rule>) -> Option<Answer> {
        let answer = self.answer.take()?;
        let mut row = self.row?.full();
        if !rules.hold(Rule::NotBehind) {
            row.max_id = 0;
        }
        let asked = if rules.hold(Rule::AnswerToSameRow) {
            answer.asked.full()
        } else {
            row
        };
        let answered = row::ClaimAnswer {
            first: answer.id.into(),
            len: 1,
            incarnation: answer.incarnation.into(),
            ..Default::default()
        };
        let received = row.received(&asked, &answered, &HERE, incarnation.into());
        let before = row.incarnation;
        let received = received.ok()?.row;
        let is_reset = received.incarnation != before;
        let row = Row::from(received);
        self.row = Some(row);
        if is_reset {
            self.mark = row.max_id;
        } else if rules.hold(Rule::AnswerRaisesMark) {
            self.mark = self.mark.max(row.max_id);
        }
        Some(answer)
    }
}

impl World {
    fn new_incarnation(&mut self) -> u8 {
        self.incarnations += 1;
        self.incarnations
    }

    fn create(&mut self, at: usize, server: Option<u8>) -> Option<()> {
        let incarnation = self.new_incarnation();
        let member = &mut self.members[at];
        let row = Row {
            server,
            ..Row::new(1)
        };
        let row = row.begun(member.mark, &HERE, incarnation);
        member.mark = row.max_id.max(member.mark);
        member.copied = None;
        member.row.replace(row).is_none().then_some(())
    }

    fn issue_there(&mut self, center: usize, id: u8) {
        let issued = &mut self.centers[center].issued;
        self.is_twice |= issued.has(id);
        issued.add(id);
    }

    fn issue_here(&mut self, member: usize, id: u8) {
        let issued = &mut self.members[member].issued;
        self.is_twice |= issued.has(id);
        issued.add(id);
    }
}

impl search::World for World {
    const NAME: &'static str = "fleet";
    type Rule = Rule;
    type Step = Step;

    fn new() -> Self {
        let center = |incarnation| Center {
            row: Row {
                incarnation,
                ..Row::new(1)
            },
            mark: 0,
            timeline: 1,
            standby: None,
            copied: None,
            deposed: None,
            issued: Ids::default(),
        };
        let member = Member {
            row: None,
            mark: 0,
            answer: None,
            copied: None,
            issued: Ids::default(),
        };
        Self {
            centers: [center(1), center(2)],
            members: [member; MEMBERS],
            incarnations: 2,
            is_twice: false,
        }
    }

    fn after(mut self, step: Step, rules: Rules<Rule>) -> Option<Self> {
        match step {
            Step::Create(at) => self.create(at, None)?,
            Step::CreateSourced(at, center) => self.create(at, Some(center))?,
            Step::Source(at, center) => {
                let member = &mut self.members[at];
                let old = member.row?;
                // The source cannot be changed.
                if old.server.is_some() {
                    return None;
                }
                let new = Row {
                    server: Some(center),
                    ..old
                };
                let mark = rules.keep(Rule::SourcedAtMark, member.mark);
                member.row = Some(old.updated(new, mark, &HERE, &Update::default())?);
                member.copied = None;
            }
            Step::Drop(at) => {
                let member = &mut self.members[at];
                let row = member.row.take()?;
                member.mark = rows::next(row.max_id, member.mark, 0);
                member.copied = None;
            }
            Step::Use(at) => {
                let member = &mut self.members[at];
                let row = member.row.as_mut()?;
                if row.server.is_some() {
                    return None;
                }
                let id = row.claim(member.mark, 0, &HERE)?;
                member.mark = member.mark.max(row.max_id);
                self.issue_here(at, id);
            }
            Step::Ask(at) => {
                let asked = self.members[at].row?;
                let source = usize::from(asked.server?);
                if self.members[at].answer.is_some() {
                    return None;
                }
                let center = &mut self.centers[source];
                let id = center.claim(rules)?;
                self.members[at].answer = Some(Answer {
                    asked,
                    source,
                    id,
                    incarnation: center.row.incarnation,
                });
            }
            Step::Receive(at) => {
                let incarnation = self.new_incarnation();
                if let Some(answer) = self.members[at].receive(incarnation, rules) {
                    self.issue_here(at, answer.id);
                    self.issue_there(answer.source, answer.id);
                }
            }
            Step::LoseAnswer(at) => drop(self.members[at].answer.take()?),
            Step::MemberCopiesRows(at) => {
                let member = &mut self.members[at];
                member.copied = Some(member.row?);
            }
            Step::MemberPutsRows(at) => {
                let member = &mut self.members[at];
                member.row = Some(member.copied.take()?);
            }
            Step::CenterUses => {
                let id = self.centers[0].claim(rules)?;
                self.issue_there(0, id);
            }
            Step::CenterReplaces => {
                let incarnation = self.new_incarnation();
                let center = &mut self.centers[0];
                let (row, here) = (center.row, rows::here(center.timeline));
                center.mark = rows::next(row.max_id, center.mark, row.full().skip(&here));
                center.row = Row::new(1).begun(center.mark, &here, incarnation);
                center.mark = center.row.max_id.max(center.mark);
                (center.standby, center.copied) = (None, None);
            }
            Step::CenterResets => {
                if rules.hold(Rule::CenterNotReset) {
                    return None;
                }
                let incarnation = self.new_incarnation();
                let center = &mut self.centers[0];
                center.row = Row::new(1).begun(0, &rows::here(center.timeline), incarnation);
                center.mark = 1.min(center.mark);
                (center.standby, center.copied) = (None, None);
            }
            Step::CenterCopiesRows => {
                let center = &mut self.centers[0];
                center.copied = Some(center.row);
            }
            Step::CenterPutsRows => {
                let center = &mut self.centers[0];
                center.row = center.copied.take()?;
                // No claim after this may be lost: see the failover world.
                if let Some(standby) = &mut center.standby {
                    standby.missing = standby.missing.max(LOST_CLAIMS);
                }
            }
            Step::CenterFollows => {
                let center = &mut self.centers[0];
                let caught_up = Standby {
                    row: center.row,
                    mark: center.mark,
                    missing: 0,
                };
                if center.standby.replace(caught_up) == Some(caught_up) {
                    return None;
                }
            }
            Step::CenterPromotes => {
                let center = &mut self.centers[0];
                let standby = center.standby.take()?;
                if standby.missing > LOST_CLAIMS && rules.hold(Rule::LostClaimsBounded) {
                    return None;
                }
                if !rules.hold(Rule::OldCenterStops) {
                    center.deposed = Some((center.row, center.mark, center.timeline));
                }
                (center.row, center.mark) = (standby.row, standby.mark);
                center.timeline += 1;
                center.copied = None;
            }
            Step::CenterReturns => {
                let center = &mut self.centers[0];
                (center.row, center.mark, center.timeline) = center.deposed.take()?;
            }
        }
        Some(self)
    }

    fn is_broken(&self) -> bool {
        self.is_twice
    }

    fn is_small(&self) -> bool {
        self.incarnations < 8
    }
}

fn all_steps() -> Vec<Step> {
    let mut steps = vec![
        Step::CenterUses,
        Step::CenterReplaces,
        Step::CenterResets,
        Step::CenterCopiesRows,
        Step::CenterPutsRows,
        Step::CenterFollows,
        Step::CenterPromotes,
        Step::CenterReturns,
        // One member is enough for these.
        Step::Create(0),
        Step::Use(0),
        Step::Drop(0),
        Step::Source(0, 0),
        Step::CreateSourced(0, 1),
        Step::MemberCopiesRows(0),
        Step::MemberPutsRows(0),
        Step::LoseAnswer(0),
    ];
    for at in 0..MEMBERS {
        steps.extend([Step::CreateSourced(at, 0), Step::Ask(at), Step::Receive(at)]);
    }
    steps
}

#[test]
fn no_id_comes_twice() {
    let histories = Histories {
        begin: &[],
        steps: &all_steps(),
        depth: 8,
    };
    search::assert_holds::<World>(histories, 10);
}

#[test]
fn each_rule_is_needed() {
    let histories = Histories {
        begin: &[],
        steps: &all_steps(),
        depth: 8,
    };
    let rules = [
        Rule::CenterClaimsAboveMark,
        Rule::CenterRaisesMark,
        Rule::CenterSkips,
        Rule::NotBehind,
        Rule::AnswerToSameRow,
        Rule::SourcedAtMark,
    ];
    let assumptions = [
        Rule::LostClaimsBounded,
        Rule::OldCenterStops,
        Rule::CenterNotReset,
    ];
    search::assert_all_needed::<World>(&rules, &assumptions, histories);
    let older_row = Histories {
        begin: &[Step::CreateSourced(0, 1), Step::MemberCopiesRows(0)],
        ..histories
    };
    search::assert_needed::<World>("rule", Rule::AnswerRaisesMark, older_row);
}
