//! Explores the histories of two servers that share worker ids by hand: a primary and its standby, or
//! two primaries. Clocks that are hours ahead and right again, full disks, other epochs and layouts,
//! resets. Time passes in ticks of one second. The launcher's state machine, the floors and the resets
//! are the code that ships; the word and the files are a few lines here.
//!
//! Would catch: an id that comes twice, or below one that an epoch or a layout was compared with (I7);
//! a server that issues nothing once all is well, though no id was that far (I10). Each rule and each
//! assumption is left out once. See `clock_explorer` for clocks that differ by little, and load.

#![cfg(not(leaf_id_loom))]
#![allow(clippy::expect_used, reason = "a test that panics fails")]

mod support;

#[path = "row_explorer/report.rs"]
mod report;
#[expect(dead_code, reason = "shared with row_explorer")]
#[path = "row_explorer/search.rs"]
mod search;

#[path = "keeper_explorer/world.rs"]
mod world;

use search::Histories;
use world::{Recovering, Rule, Step, World};

/// Steps that belong together.
struct Set {
    begin: &'static [Step],
    steps: &'static [Step],
    depth: u64,
    /// For long runs.
    long: u64,
}

use Step::{
    Ahead, BeginOther, CopyFile, FullDisk, Issue, Kill, LoseFile, MakeRoom, Promote, Reset, Right,
    SetFormat, SetWorker, Tick, Unset,
};

/// The primary has issued, above all that others may have.
const ISSUED: &[Step] = &[Issue(0), Tick, Issue(0)];

const FIRST_ID: Set = Set {
    begin: &[],
    steps: &[
        Issue(0),
        Tick,
        Kill(0),
        SetFormat(0, 0),
        SetFormat(0, 1),
        SetFormat(0, 2),
        FullDisk(0),
        MakeRoom(0),
    ],
    depth: 9,
    long: 12,
};
const FIRST_ID_OF_PAIR: Set = Set {
    begin: &[],
    steps: &[
        Issue(0),
        Issue(1),
        Tick,
        Kill(0),
        SetFormat(0, 1),
        SetFormat(1, 1),
        SetFormat(1, 2),
        CopyFile,
        Promote,
    ],
    depth: 9,
    long: 11,
};
const AHEAD: Set = Set {
    begin: ISSUED,
    steps: &[
        Issue(0),
        Tick,
        Kill(0),
        Ahead(0),
        Right(0),
        FullDisk(0),
        MakeRoom(0),
        SetWorker(0, 2),
    ],
    depth: 9,
    long: 11,
};
const FAILOVER: Set = Set {
    begin: &[],
    steps: &[
        Issue(0),
        Issue(1),
        Tick,
        Ahead(1),
        Right(1),
        CopyFile,
        LoseFile(1),
        Promote,
        Kill(1),
    ],
    depth: 9,
    long: 11,
};
const FAILOVER_AHEAD: Set = Set {
    begin: ISSUED,
    steps: &[
        Issue(0),
        Issue(1),
        Tick,
        Ahead(0),
        Right(0),
        CopyFile,
        Promote,
        Kill(0),
        Kill(1),
    ],
    depth: 9,
    long: 11,
};
const EPOCHS: Set = Set {
    begin: &[],
    steps: &[
        Issue(0),
        Issue(1),
        Tick,
        SetFormat(0, 0),
        SetFormat(0, 1),
        SetFormat(1, 1),
        CopyFile,
        Promote,
        Kill(1),
    ],
    depth: 9,
    long: 11,
};
const RESETS: Set = Set {
    begin: ISSUED,
    steps: &[
        Issue(0),
        Tick,
        Kill(0),
        Ahead(0),
        Right(0),
        Reset(0),
        SetWorker(0, 1),
        SetWorker(0, 2),
        LoseFile(0),
    ],
    depth: 9,
    long: 11,
};
const RESETS_OF_FORMATS: Set = Set {
    begin: ISSUED,
    steps: &[
        Issue(0),
        Tick,
        Ahead(0),
        Right(0),
        Reset(0),
        SetWorker(0, 2),
        SetFormat(0, 0),
        SetFormat(0, 1),
        SetFormat(0, 2),
    ],
    depth: 9,
    long: 11,
};
const RESETS_OF_PAIR: Set = Set {
    begin: ISSUED,
    steps: &[
        Issue(0),
        Issue(1),
        Tick,
        CopyFile,
        LoseFile(1),
        Promote,
        Reset(1),
        SetWorker(1, 1),
        SetWorker(1, 2),
    ],
    depth: 9,
    long: 11,
};
const SHARED: Set = Set {
    begin: &[
        BeginOther,
        Issue(0),
        Tick,
        Issue(0),
        Unset(0),
        SetWorker(1, 1),
    ],
    steps: &[
        Issue(0),
        Issue(1),
        Tick,
        Unset(0),
        SetWorker(0, 1),
        SetWorker(1, 1),
        SetWorker(1, 2),
        Kill(0),
        FullDisk(0),
        MakeRoom(0),
    ],
    depth: 9,
    long: 11,
};

const SETS: [&Set; 10] = [
    &FIRST_ID,
    &FIRST_ID_OF_PAIR,
    &AHEAD,
    &FAILOVER,
    &FAILOVER_AHEAD,
    &EPOCHS,
    &RESETS,
    &RESETS_OF_FORMATS,
    &RESETS_OF_PAIR,
    &SHARED,
];

impl Set {
    fn histories(&self, depth: u64) -> Histories<'_, Step> {
        Histories {
            begin: self.begin,
            steps: self.steps,
            depth,
        }
    }
}

#[test]
fn no_id_comes_twice() {
    for set in SETS {
        let depth = support::rounds(set.depth, set.long);
        search::assert_none::<World>(set.histories(depth));
    }
}

/// Less deep, since each world is followed until a server issues.
#[test]
fn every_server_recovers() {
    for set in SETS {
        let depth = support::rounds(set.depth, set.long) - 2;
        search::assert_none::<Recovering>(set.histories(depth));
    }
}

fn needed<W>(kind: &str, rule: Rule, set: &Set, depth: u64)
where
    W: search::World<Rule = Rule, Step = Step>,
{
    search::assert_needed::<W>(kind, rule, set.histories(depth));
}

#[test]
fn each_rule_is_needed() {
    needed::<World>("rule", Rule::IssuedFirst, &FIRST_ID, 7);
    needed::<World>("rule", Rule::IssuedOfOriginal, &FIRST_ID_OF_PAIR, 9);
    needed::<World>("rule", Rule::GivenBack, &AHEAD, 9);
    needed::<World>("rule", Rule::Retired, &RESETS, 9);
    needed::<World>("rule", Rule::ResetAboveOthers, &RESETS_OF_PAIR, 7);
    needed::<Recovering>("rule", Rule::Unissued, &FIRST_ID, 7);
    needed::<Recovering>("rule", Rule::LowerReservation, &AHEAD, 7);
    needed::<Recovering>("rule", Rule::LowerReading, &FAILOVER, 7);
    needed::<Recovering>("rule", Rule::FirstLook, &EPOCHS, 7);
}

#[test]
fn each_assumption_is_needed() {
    needed::<World>("assumption", Rule::FormatKept, &FIRST_ID_OF_PAIR, 9);
    needed::<World>("assumption", Rule::ClocksAgree, &FAILOVER_AHEAD, 7);
    needed::<World>("assumption", Rule::KeptWhileAhead, &RESETS, 7);
    needed::<World>("assumption", Rule::ResetVouched, &RESETS_OF_PAIR, 8);
    needed::<World>("assumption", Rule::ResetAfterChange, &RESETS_OF_FORMATS, 8);
    needed::<World>("assumption", Rule::UsedAgain, &SHARED, 9);
}
