//! Two members whose tag is sourced from a central server, and another central server. Claims
//! there, lost or late answers, members with a local tag, and a central server that is promoted or
//! whose rows a tool rewrites.

use leaf_id_core::row;
use leaf_id_core::step::Limits;

use super::search::{self, Histories, Ids, Rules, narrow};

/// Max claims lost by one promotion of a center, of one id each.
const LOST_CLAIMS: u32 = 1;
const LIMITS: Limits = Limits {
    step: 1,
    max_step: 1,
};
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
struct Row {
    max_id: u8,
    incarnation: u8,
    timeline: u8,
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

/// A tag's row on a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct MemberRow {
    max_id: u8,
    incarnation: u8,
    /// The center that the tag is sourced from.
    source: Option<usize>,
    /// Incarnation of the center's row; 0 before the first answer.
    source_incarnation: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Answer {
    /// The member's row when the request was sent.
    asked: MemberRow,
    source: usize,
    id: u8,
    incarnation: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Member {
    row: Option<MemberRow>,
    mark: u8,
    /// An answer in transit.
    answer: Option<Answer>,
    copied: Option<MemberRow>,
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
    CreateSourced(usize, usize),
    /// Makes a center the source of a member's tag.
    Source(usize, usize),
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
        let promotions = row::promotions(self.row.timeline.into(), self.timeline.into(), true);
        let skip = if rules.hold(Rule::CenterSkips) {
            row::missing(promotions, LOST_CLAIMS, LIMITS.step, LIMITS)
        } else {
            0
        };
        let mark = if rules.hold(Rule::CenterClaimsAboveMark) {
            self.mark
        } else {
            0
        };
        let id = narrow(row::first(self.row.max_id.into(), mark.into(), skip));
        if id >= Ids::LAST {
            return None;
        }
        self.row.max_id = id + 1;
        self.row.timeline = self.timeline;
        if rules.hold(Rule::CenterRaisesMark) {
            self.mark = self.mark.max(id + 1);
        }
        if let Some(standby) = &mut self.standby {
            standby.missing = (standby.missing + 1).min(LOST_CLAIMS + 1);
        }
        Some(id)
    }
}

impl Member {
    /// Models `src/tags/receive.rs`.
    fn receive(&mut self, incarnation: u8, rules: Rules<Rule>) -> Option<Answer> {
        let answer = self.answer.take()?;
        let row = self.row.as_mut()?;
        let is_same = row.incarnation == answer.asked.incarnation
            && row.source == Some(answer.source)
            && row.source_incarnation == answer.asked.source_incarnation;
        if !is_same && rules.hold(Rule::AnswerToSameRow) {
            return None;
        }
        let is_reset = row.source_incarnation != 0 && row.source_incarnation != answer.incarnation;
        if !is_reset && answer.id < row.max_id && rules.hold(Rule::NotBehind) {
            return None;
        }
        if is_reset {
            row.incarnation = incarnation;
        }
        row.max_id = answer.id + 1;
        row.source_incarnation = answer.incarnation;
        if rules.hold(Rule::AnswerRaisesMark) {
            self.mark = self.mark.max(answer.id + 1);
        }
        Some(answer)
    }
}

impl World {
    fn new_incarnation(&mut self) -> u8 {
        self.incarnations += 1;
        self.incarnations
    }

    fn create(&mut self, at: usize, source: Option<usize>) -> Option<()> {
        let incarnation = self.new_incarnation();
        let member = &mut self.members[at];
        let row = MemberRow {
            max_id: narrow(row::arriving(1, member.mark.into())),
            incarnation,
            source,
            source_incarnation: 0,
        };
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
                max_id: 1,
                incarnation,
                timeline: 1,
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
                let row = member.row.as_mut()?;
                // The source cannot be changed.
                if row.source.replace(center).is_some() {
                    return None;
                }
                if rules.hold(Rule::SourcedAtMark) {
                    row.max_id = narrow(row::arriving(row.max_id.into(), member.mark.into()));
                }
                member.copied = None;
            }
            Step::Drop(at) => {
                let member = &mut self.members[at];
                let row = member.row.take()?;
                member.mark = narrow(row::leaving(row.max_id.into(), member.mark.into(), 0));
                member.copied = None;
            }
            Step::Use(at) => {
                let member = &mut self.members[at];
                let row = member.row.as_mut()?;
                if row.source.is_some() {
                    return None;
                }
                let first = row::first(row.max_id.into(), member.mark.into(), 0);
                let id = narrow(first);
                if id >= Ids::LAST {
                    return None;
                }
                row.max_id = id + 1;
                member.mark = member.mark.max(id + 1);
                self.issue_here(at, id);
            }
            Step::Ask(at) => {
                let asked = self.members[at].row?;
                let source = asked.source?;
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
                let mark = row::leaving(center.row.max_id.into(), center.mark.into(), 0);
                let promotions =
                    row::promotions(center.row.timeline.into(), center.timeline.into(), true);
                if promotions > 0 {
                    return None;
                }
                center.mark = narrow(mark);
                center.row = Row {
                    max_id: center.mark,
                    incarnation,
                    timeline: center.timeline,
                };
                (center.standby, center.copied) = (None, None);
            }
            Step::CenterResets => {
                if rules.hold(Rule::CenterNotReset) {
                    return None;
                }
                let incarnation = self.new_incarnation();
                let center = &mut self.centers[0];
                center.row.max_id = 1;
                center.row.incarnation = incarnation;
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
