//! A tag that moves from one database system to another: by a dump, which contains its row, or the
//! mark of its name if there is none, or by pg_upgrade, which keeps both. There are dumps of two ages.
//! Each system has a standby.

use leaf_id_core::row::Here;

use super::rows::{self, Row};
use super::search::{self, Histories, Ids, Rules};

/// Max claims lost by one promotion, of one id each.
const LOST_CLAIMS: u32 = 1;
const SERVERS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// A claim starts above the mark of its name.
    ClaimAboveMark,
    /// A deleted row leaves its `max_id` in the mark of its name: a row restored from a dump was
    /// not claimed from here.
    DeleteLeavesMark,
    /// Skip the ids that lost claims of an earlier timeline may have taken.
    Skip,
    /// If a row was last claimed from in another system, its timeline has no meaning here: each
    /// promotion of this system counts.
    OtherSystem,
    /// A dump has the mark of a name without a row, which raises the one that is here.
    MarkDumped,
    /// Assumption: no claim is made after a dump whose row is moved to another system, or whose
    /// marks are dropped with the extension.
    NoClaimAfterDump,
    /// Assumption: the old server stops.
    OldServerStops,
    /// Assumption: no row is below the mark of its name when it is dumped, without a claim since a
    /// tool has restored an older row: the dump does not contain the mark.
    RowAtMark,
    /// Assumption: no promotion without a claim since is left unsettled before the dump ...
    SettledBeforeDump,
    /// ... or before the upgrade.
    SettledBeforeUpgrade,
    /// Assumption: a promotion loses at most `LOST_CLAIMS` claims, ...
    LostClaimsBounded,
    /// ... and a tag whose creation is lost, also by a restore, or that of the mark of its name, is not
    /// created again at a lower id.
    CreationKept,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Standby {
    row: Option<Row>,
    mark: u8,
    missing: u32,
    is_too_much: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Server {
    row: Option<Row>,
    mark: u8,
    system: u8,
    timeline: u8,
    standby: Option<Standby>,
}

impl Server {
    fn here(&self) -> Here {
        Here {
            system: self.system.into(),
            ..rows::here(self.timeline)
        }
    }

    fn skip(&self, row: Row, rules: Rules<Rule>) -> u64 {
        let mut row = row.full();
        if !rules.hold(Rule::OtherSystem) {
            row.last_claim.system = self.system.into();
        }
        row.skip(&self.here())
    }

    /// True if no claim since the last promotion has skipped the lost claims.
    fn is_unsettled(&self, rules: Rules<Rule>) -> bool {
        self.row.is_some_and(|row| self.skip(row, rules) > 0)
    }

    /// Inserts a row.
    fn insert(&mut self, row: Row, rules: Rules<Rule>) {
        let row = row.begun(self.mark, &self.here(), 1);
        self.mark = row.max_id.max(self.mark);
        self.row = Some(row);
        if let Some(standby) = &mut self.standby {
            standby.is_too_much |= rules.hold(Rule::CreationKept);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Dumped {
    row: Option<Row>,
    /// The mark of a name without a row.
    mark: u8,
    /// A claim was made since the dump.
    is_stale: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    servers: [Server; SERVERS],
    /// The server in use.
    used: usize,
    /// The last two dumps, the newer one first.
    dumped: [Option<Dumped>; 2],
    systems: u8,
    issued: Ids,
    is_twice: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Create(usize),
    Drop(usize),
    Use(usize),
    Dump(usize),
    Restore(usize),
    /// Restores the older dump.
    RestoreOlder(usize),
    /// Restores with triggers disabled.
    RestoreRaw(usize),
    /// Restores after the extension and its marks were dropped.
    RestoreAll(usize),
    Upgrade(usize),
    Follow(usize),
    Promote(usize),
}

impl World {
    /// Restores the tag's row from a dump. The server may be put into use.
    fn restore(&mut self, to: usize, age: usize, is_raw: bool, rules: Rules<Rule>) -> Option<()> {
        let dumped = self.dumped[age]?;
        let server = &mut self.servers[to];
        if let Some(row) = dumped.row {
            if server.row.is_some() {
                return None;
            }
            server.insert(row, rules);
            if is_raw {
                server.row = Some(row);
            }
        }
        if dumped.mark > server.mark {
            server.mark = dumped.mark;
            if let Some(standby) = &mut server.standby {
                standby.is_too_much |= rules.hold(Rule::CreationKept);
            }
        }
        self.used = to;
        Some(())
    }
}

impl search::World for World {
    const NAME: &'static str = "systems";
    type Rule = Rule;
    type Step = Step;

    fn new() -> Self {
        let server = |system| Server {
            row: None,
            mark: 0,
            system,
            timeline: 1,
            standby: None,
        };
        Self {
            servers: [server(1), server(2)],
            used: 0,
            dumped: [None; 2],
            systems: 2,
            issued: Ids::default(),
            is_twice: false,
        }
    }

    fn after(mut self, step: Step, rules: Rules<Rule>) -> Option<Self> {
        match step {
            Step::Create(at) => {
                let server = &mut self.servers[at];
                if at != self.used || server.row.is_some() {
                    return None;
                }
                server.insert(Row::new(1), rules);
            }
            Step::Drop(at) => {
                let server = &mut self.servers[at];
                let row = server.row?;
                if rules.hold(Rule::DeleteLeavesMark) {
                    let skip = rules.keep(Rule::Skip, server.skip(row, rules));
                    server.mark = rows::next(row.max_id, server.mark, skip);
                }
                server.row = None;
            }
            Step::Use(at) => {
                if at != self.used && rules.hold(Rule::OldServerStops) {
                    return None;
                }
                let server = &mut self.servers[at];
                let mut row = server.row?;
                let skip = rules.keep(Rule::Skip, server.skip(row, rules));
                let mark = rules.keep(Rule::ClaimAboveMark, server.mark);
                let id = row.claim(mark, skip, &server.here())?;
                server.row = Some(row);
                server.mark = server.mark.max(row.max_id);
                if let Some(standby) = &mut server.standby {
                    standby.missing = (standby.missing + 1).min(LOST_CLAIMS + 1);
                    standby.is_too_much |=
                        standby.missing > LOST_CLAIMS && rules.hold(Rule::LostClaimsBounded);
                }
                for dumped in self.dumped.iter_mut().flatten() {
                    dumped.is_stale = true;
                }
                self.is_twice |= self.issued.has(id);
                self.issued.add(id);
            }
            Step::Dump(at) => {
                let server = &self.servers[at];
                let is_unsettled = server.is_unsettled(rules);
                if at != self.used || is_unsettled && rules.hold(Rule::SettledBeforeDump) {
                    return None;
                }
                let (row, mark) = (server.row, server.mark);
                let is_below = row.is_some_and(|row| row.max_id < mark);
                if is_below && rules.hold(Rule::RowAtMark) {
                    return None;
                }
                let mark = if row.is_none() { mark } else { 0 };
                let dumped = Dumped {
                    row,
                    mark: rules.keep(Rule::MarkDumped, mark),
                    is_stale: false,
                };
                if self.dumped[0] == Some(dumped) {
                    return None;
                }
                self.dumped = [Some(dumped), self.dumped[0]];
            }
            Step::Restore(to) | Step::RestoreOlder(to) | Step::RestoreRaw(to) => {
                let age = usize::from(step == Step::RestoreOlder(to));
                let is_stale = self.dumped[age]?.is_stale;
                if to != self.used && is_stale && rules.hold(Rule::NoClaimAfterDump) {
                    return None;
                }
                self.restore(to, age, step == Step::RestoreRaw(to), rules)?;
            }
            Step::RestoreAll(to) => {
                if self.dumped[0]?.is_stale && rules.hold(Rule::NoClaimAfterDump) {
                    return None;
                }
                (self.servers[to].row, self.servers[to].mark) = (None, 0);
                self.restore(to, 0, false, rules)?;
            }
            Step::Upgrade(at) => {
                let server = &mut self.servers[at];
                if server.is_unsettled(rules) && rules.hold(Rule::SettledBeforeUpgrade) {
                    return None;
                }
                self.systems += 1;
                server.system = self.systems;
                server.timeline = 1;
                server.standby = None;
            }
            Step::Follow(at) => {
                let server = &mut self.servers[at];
                let caught_up = Standby {
                    row: server.row,
                    mark: server.mark,
                    missing: 0,
                    is_too_much: false,
                };
                if server.standby.replace(caught_up) == Some(caught_up) {
                    return None;
                }
            }
            Step::Promote(at) => {
                let server = &mut self.servers[at];
                let standby = server.standby.take()?;
                if standby.is_too_much {
                    return None;
                }
                (server.row, server.mark) = (standby.row, standby.mark);
                server.timeline += 1;
            }
        }
        Some(self)
    }

    fn is_broken(&self) -> bool {
        self.is_twice
    }

    fn is_small(&self) -> bool {
        self.systems < 5 && self.servers.iter().all(|server| server.timeline < 5)
    }
}

fn all_steps() -> Vec<Step> {
    let mut steps = Vec::new();
    for at in 0..SERVERS {
        steps.extend([Step::Create(at), Step::Drop(at), Step::Use(at)]);
        steps.extend([Step::Dump(at), Step::Restore(at), Step::RestoreRaw(at)]);
        steps.extend([Step::RestoreOlder(at), Step::RestoreAll(at)]);
        steps.push(Step::Upgrade(at));
        steps.extend([Step::Follow(at), Step::Promote(at)]);
    }
    steps
}

#[test]
fn no_id_comes_twice() {
    let histories = Histories {
        begin: &[],
        steps: &all_steps(),
        depth: 11,
    };
    search::assert_holds::<World>(histories, 13);
    // Without one of the kinds.
    let mut steps = all_steps();
    steps.retain(|step| {
        !matches!(
            step,
            Step::RestoreRaw(_) | Step::RestoreAll(_) | Step::Upgrade(_)
        )
    });
    let of_two_ages = Histories {
        steps: &steps,
        depth: 13,
        ..histories
    };
    search::assert_holds::<World>(of_two_ages, 15);
    let mut steps = all_steps();
    steps.retain(|step| !matches!(step, Step::RestoreOlder(_) | Step::Upgrade(_)));
    let of_one_age = Histories {
        steps: &steps,
        depth: 12,
        ..histories
    };
    search::assert_holds::<World>(of_one_age, 14);
}

#[test]
fn each_rule_is_needed() {
    let histories = Histories {
        begin: &[],
        steps: &all_steps(),
        depth: 9,
    };
    let rules = [
        Rule::DeleteLeavesMark,
        Rule::Skip,
        Rule::OtherSystem,
        Rule::ClaimAboveMark,
        Rule::MarkDumped,
    ];
    let assumptions = [
        Rule::NoClaimAfterDump,
        Rule::OldServerStops,
        Rule::RowAtMark,
        Rule::SettledBeforeDump,
        Rule::SettledBeforeUpgrade,
        Rule::LostClaimsBounded,
        Rule::CreationKept,
    ];
    search::assert_all_needed::<World>(&rules, &assumptions, histories);
}
