//! Growing claims across several promotions. Each claim may be eight times as long as the one
//! before, including claims lost by a promotion and claims that the next server made above those.

use leaf_id_core::row::{self, Here};
use leaf_id_core::step::{self, Decay, Limits};

use super::rows::{self, Row};
use super::search::{self, Histories, Rules};

/// Max claims lost by one promotion, for which servers skip, ...
const LOST_CLAIMS: u32 = 1;
/// ... or for more.
const MORE_CLAIMS: u32 = 2;
const MAX_STEP: u32 = 16;
const STANDBYS: usize = 2;
/// The servers claim for themselves, or for others.
const ALONE: bool = true;
const FLEET: bool = false;
/// Max claims in a history.
const CLAIMS: usize = 24;
/// Max claims in a history of the search of all.
const FEW_CLAIMS: usize = 6;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// After more than one promotion, the skip depends on the longest possible claim, not on the
    /// claims that may have come next here.
    LongestOfChains,
    /// After one promotion, the skip depends on a whole step where claims were shorter: an edit may
    /// have been lost.
    EditsLost,
    /// A claim is at most eight times as long as the largest recent one.
    GrowthBounded,
    /// Assumption: a promotion loses at most `LOST_CLAIMS` claims.
    LostClaimsBounded,
    /// Assumption: after the promotion of a server, no server that has followed a later timeline
    /// than the promoted one is promoted.
    BranchLeft,
    /// Assumption: a promoted server has the same `leaf_id.failover_skip` as the one before, unless
    /// no standby lacks all claims of that one's timeline.
    SameSkip,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Standby {
    row: row::TagRow<u8>,
    timeline: u32,
    missing: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World<const IS_ALONE: bool, const STEP: u32> {
    row: row::TagRow<u8>,
    timeline: u32,
    /// `leaf_id.failover_skip` of the server in use.
    skips: u32,
    standbys: [Option<Standby>; STANDBYS],
    /// Claimed ranges: first id, and one past the last.
    claimed: [Option<(u16, u16)>; CLAIMS],
    is_twice: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The shortest claim.
    ClaimOne,
    /// The longest claim allowed.
    ClaimMost,
    /// An edit that raises nothing, such as of the description.
    Edit,
    Follow(usize),
    Promote(usize),
    /// Promotes a server with a larger `leaf_id.failover_skip`.
    PromoteWithMore(usize),
}

impl<const IS_ALONE: bool, const STEP: u32> World<IS_ALONE, STEP> {
    const LIMITS: Limits = Limits {
        step: STEP,
        max_step: MAX_STEP,
    };

    fn here(&self) -> Here {
        Here {
            lost_claims: self.skips,
            ..rows::here(self.timeline)
        }
    }

    fn claim(&mut self, longest: u32, rules: Rules<Rule>) -> Option<()> {
        let (mut row, here) = (self.row, self.here());
        let skip = if !rules.hold(Rule::EditsLost) && self.timeline - row.last_claim.timeline == 1 {
            step::most_taken(LOST_CLAIMS, row.last_claim.largest, Self::LIMITS)
        } else if rules.hold(Rule::LongestOfChains) {
            row.skip(&here)
        } else {
            let promotions = self.timeline - row.last_claim.timeline;
            let lost = step::most_taken(LOST_CLAIMS, row.last_claim.largest, Self::LIMITS);
            lost * u64::from((2 * promotions).saturating_sub(1))
        };
        if !rules.hold(Rule::GrowthBounded) {
            row.last_claim.largest = MAX_STEP;
        }
        let decay = if IS_ALONE { Decay::Alone } else { Decay::Fleet };
        let claim = row.claim(0, skip, &here, longest, decay)?;
        self.row = claim.row;
        let (first, end) = (claim.first, claim.row.max_id);
        let (first, end) = (u16::try_from(first).ok()?, u16::try_from(end).ok()?);
        let mut others = self.claimed.iter().flatten();
        self.is_twice = others.any(|(from, to)| first < *to && *from < end);
        *self.claimed.iter_mut().find(|claimed| claimed.is_none())? = Some((first, end));
        for standby in self.standbys.iter_mut().flatten() {
            standby.missing += 1;
        }
        if rules.hold(Rule::LostClaimsBounded) {
            for standby in &mut self.standbys {
                if standby.is_some_and(|standby| standby.missing > LOST_CLAIMS) {
                    *standby = None;
                }
            }
        }
        Some(())
    }
}

impl<const IS_ALONE: bool, const STEP: u32> search::World for World<IS_ALONE, STEP> {
    const NAME: &'static str = match (IS_ALONE, STEP) {
        (true, 1) => "chains",
        (true, _) => "chains of long steps",
        (false, 1) => "chains of a fleet",
        (false, _) => "chains of long steps of a fleet",
    };
    type Rule = Rule;
    type Step = Step;

    fn new() -> Self {
        Self {
            row: row::TagRow {
                max_value: i64::MAX - 1,
                limits: Self::LIMITS,
                last_claim: row::LastClaim {
                    largest: STEP,
                    ..Row::new(1).full().last_claim
                },
                ..Row::new(1).full()
            },
            timeline: 1,
            skips: LOST_CLAIMS,
            standbys: [None; STANDBYS],
            claimed: [None; CLAIMS],
            is_twice: false,
        }
    }

    fn after(mut self, step: Step, rules: Rules<Rule>) -> Option<Self> {
        match step {
            Step::ClaimOne => self.claim(1, rules)?,
            Step::ClaimMost => self.claim(MAX_STEP, rules)?,
            Step::Edit => {
                let here = self.here();
                let update = row::Update {
                    is_renamed: false,
                    is_replicated: false,
                    skip: self.row.skip(&here),
                    mark: 0,
                    issued: 0,
                };
                self.row = self.row.updated(&self.row, &here, &update)?;
            }
            Step::Follow(number) => {
                self.standbys[number] = Some(Standby {
                    row: self.row,
                    timeline: self.timeline,
                    missing: 0,
                });
            }
            Step::Promote(number) | Step::PromoteWithMore(number) => {
                let skips = match step {
                    Step::PromoteWithMore(_) => MORE_CLAIMS,
                    _ => LOST_CLAIMS,
                };
                let is_settled = (self.standbys.iter().flatten())
                    .all(|standby| standby.row.last_claim.timeline == self.timeline);
                let standby = self.standbys[number].take()?;
                if skips != self.skips && !is_settled && rules.hold(Rule::SameSkip) {
                    return None;
                }
                self.skips = skips;
                self.row = standby.row;
                self.timeline += 1;
                for other in &mut self.standbys {
                    let is_further = other.is_some_and(|other| other.timeline > standby.timeline);
                    if is_further && rules.hold(Rule::BranchLeft) {
                        *other = None;
                    }
                    if let Some(other) = other {
                        other.missing = 0;
                    }
                }
            }
        }
        Some(self)
    }

    fn is_broken(&self) -> bool {
        self.is_twice
    }

    fn is_small(&self) -> bool {
        self.claimed[FEW_CLAIMS].is_none()
    }
}

const STEPS: [Step; 7] = [
    Step::ClaimOne,
    Step::ClaimMost,
    Step::Edit,
    Step::Follow(0),
    Step::Follow(1),
    Step::Promote(0),
    Step::Promote(1),
];

/// Servers with settings of their own.
const WITH_MORE: [Step; 9] = [
    Step::ClaimOne,
    Step::ClaimMost,
    Step::Edit,
    Step::Follow(0),
    Step::Follow(1),
    Step::Promote(0),
    Step::Promote(1),
    Step::PromoteWithMore(0),
    Step::PromoteWithMore(1),
];

#[test]
fn no_id_comes_twice() {
    let histories = Histories {
        begin: &[],
        steps: &STEPS,
        depth: 12,
    };
    search::assert_holds::<World<ALONE, 1>>(histories, 14);
    search::assert_holds::<World<FLEET, 1>>(histories, 14);
    search::assert_holds::<World<ALONE, 4>>(histories, 14);
    search::assert_holds::<World<FLEET, 4>>(histories, 14);
    let with_more = Histories {
        steps: &WITH_MORE,
        depth: 10,
        ..histories
    };
    search::assert_holds::<World<ALONE, 1>>(with_more, 12);
    search::assert_holds::<World<FLEET, 4>>(with_more, 12);
}

#[test]
fn each_rule_is_needed() {
    let histories = Histories {
        begin: &[],
        steps: &STEPS,
        depth: 11,
    };
    let rules = [Rule::LongestOfChains, Rule::GrowthBounded];
    let assumptions = [Rule::LostClaimsBounded, Rule::BranchLeft];
    search::assert_all_needed::<World<ALONE, 1>>(&rules, &assumptions, histories);
    search::assert_needed::<World<ALONE, 4>>("rule", Rule::EditsLost, histories);
    let with_more = Histories {
        steps: &WITH_MORE,
        ..histories
    };
    search::assert_needed::<World<ALONE, 1>>("assumption", Rule::SameSkip, with_more);
}
