//! Explores every history, up to a depth, of servers that lease worker ids from a registry with
//! standbys, and random ones far beyond that depth; and histories of a few steps that belong
//! together, which random ones of all steps miss, deeper. Time passes in ticks of one second.
//!
//! Would catch: two servers, or two runs of one, that issue the same worker id and millisecond; a
//! server that cannot issue again once all is well; one that cannot issue after an answer, though it
//! could before. Each rule is left out once, and the shortest history that shows why it is needed is
//! printed. The lease and the registry's decision are the code that ships; the word, the files and
//! the launcher are a few lines here. See `lease_sim` for more servers and worker ids, and for what
//! takes long.

#![cfg(not(leaf_id_loom))]
#![allow(clippy::expect_used, reason = "a test that panics fails")]

mod support;

#[path = "row_explorer/report.rs"]
mod report;
#[expect(dead_code, reason = "shared with row_explorer")]
#[path = "row_explorer/search.rs"]
mod search;

#[path = "lease_explorer/node.rs"]
mod node;
#[path = "lease_explorer/world.rs"]
mod world;

use search::Histories;
use world::{Needless, Pair, Recovering, Rule, Step, Three, Two, TwoIds};

const ALL: [Step; 37] = [
    Step::Pass(1),
    Step::Pass(4),
    Step::Ask(0),
    Step::Ask(1),
    Step::AskLost(0),
    Step::AskLost(1),
    Step::AskUnwritten(0),
    Step::Send(0),
    Step::Send(1),
    Step::Wait(0),
    Step::Arrive(0),
    Step::Arrive(1),
    Step::Away(0),
    Step::Away(1),
    Step::Issue(0),
    Step::Issue(1),
    Step::Crash(0),
    Step::Crash(1),
    Step::Reboot(0),
    Step::Reboot(1),
    Step::Restart(0),
    Step::Restart(1),
    Step::CopyImage,
    Step::CopyStopped,
    Step::CopyFiles,
    Step::SetClock(0, -5),
    Step::SetClock(1, -1),
    Step::SetClock(0, 4),
    Step::SetClock(1, 4),
    Step::SetRegistry(-4),
    Step::SetRegistry(4),
    Step::Retire(0),
    Step::Raise,
    Step::Lower,
    Step::Follow,
    Step::Promote(0),
    Step::Promote(-1),
];

const OF_PAIR: [Step; 18] = [
    Step::Pass(1),
    Step::Pass(4),
    Step::Ask(0),
    Step::Ask(1),
    Step::AskLost(0),
    Step::AskLost(1),
    Step::Issue(0),
    Step::Issue(1),
    Step::Crash(0),
    Step::Reboot(0),
    Step::Restart(0),
    Step::SetClock(1, 1),
    Step::SetClock(1, 4),
    Step::Follow,
    Step::Promote(0),
    Step::Promote(-1),
    Step::FailBack(0),
    Step::FailBack(-1),
];

fn histories<'a>(steps: &'a [Step], depth: u64) -> Histories<'a, Step> {
    Histories {
        begin: &[],
        steps,
        depth,
    }
}

#[test]
fn no_id_comes_twice() {
    search::assert_holds::<Two>(histories(&ALL, 5), 6);
    search::assert_holds::<Pair>(histories(&OF_PAIR, 6), 8);
}

/// The first two servers ask and issue, among other steps.
fn with(more: &[Step]) -> Vec<Step> {
    let both = [Step::Ask(0), Step::Ask(1), Step::Issue(0), Step::Issue(1)];
    [&both, more].concat()
}

/// Steps that belong together, and a depth that finds more than any random history: for every run,
/// and for long ones.
#[test]
fn no_id_comes_twice_deeper() {
    use Step::*;
    let drift = with(&[Follow, Promote(-1), SetRegistry(0), Pass(1), Pass(3)]);
    none::<Two>(&drift, 8, 9);
    let second = with(&[Follow, Follow2, Promote(0), Promote2(0), Pass(1), Pass(4)]);
    none::<Two>(&second, 8, 10);
    let copies = with(&[CopyImage, CopyStopped, Follow, Promote(0), Pass(1), Pass(4)]);
    none::<Two>(&copies, 7, 9);
    let restarted = with(&[CopyImage, CopyStopped, Restart(0), Restart(1), Crash(1)]);
    none::<Two>(&restarted, 7, 9);
    let clocks = with(&[
        Restart(0),
        Crash(0),
        SetClock(0, -5),
        SetClock(1, -1),
        Pass(4),
    ]);
    none::<Two>(&clocks, 7, 9);
    let lost = with(&[Restart(0), AskLost(0), Follow, Promote(0), Pass(1), Pass(4)]);
    none::<Two>(&lost, 7, 9);
    let unwritten = with(&[
        AskUnwritten(0),
        Crash(0),
        Restart(0),
        Follow,
        Promote(0),
        Pass(1),
        Pass(4),
    ]);
    none::<Two>(&unwritten, 7, 9);
    let under_way = with(&[
        Send(0),
        Arrive(0),
        Restart(0),
        Crash(0),
        Follow,
        Promote(0),
        Pass(4),
    ]);
    none::<Two>(&under_way, 7, 9);
    let waiting = with(&[
        Send(0),
        Wait(0),
        Arrive(0),
        CopyStopped,
        Follow,
        Promote(0),
        Pass(1),
        Pass(4),
    ]);
    none::<Two>(&waiting, 6, 8);
    let answered = with(&[Arrive(0), CopyStopped, Pass(1), Pass(4)]);
    search::assert_none::<Two>(Histories {
        begin: &[Ask(0), Follow, Promote(0), Ask(0), Send(0), Wait(0)],
        ..histories(&answered, support::rounds(9, 11))
    });
    let corrected = with(&[
        CopyFiles,
        SetRegistry(4),
        SetClock(0, 4),
        SetClock(1, 4),
        Follow,
        Promote(0),
        Pass(1),
    ]);
    none::<Two>(&corrected, 7, 9);
    let away = with(&[
        CopyStopped,
        Away(0),
        Away(1),
        Follow,
        Promote(0),
        Pass(1),
        Pass(4),
        Crash(0),
    ]);
    none::<Two>(&away, 6, 9);
    let passed = with(&[CopyStopped, Follow, Promote(-1), Pass(1), Pass(4)]);
    none::<Two>(&passed, 8, 9);
    let late = with(&[Send(0), Arrive(0), Follow, Promote(0), Pass(1), Pass(4)]);
    none::<Two>(&late, 8, 10);
    let restarts = with(&[
        Crash(0),
        Restart(0),
        AskLost(0),
        AskLost(1),
        Away(0),
        Pass(4),
    ]);
    none::<Two>(&restarts, 8, 10);
    let registry = with(&[SetRegistry(-4), SetRegistry(4), Follow, Promote(0), Pass(4)]);
    none::<Two>(&registry, 7, 9);
    let ahead = with(&[Raise, Lower, Follow, Promote(0), Pass(1), Pass(4)]);
    none::<Two>(&ahead, 7, 9);
    let retired = with(&[Retire(0), Restart(0), Follow, Promote(0), Pass(1), Pass(4)]);
    none::<Two>(&retired, 7, 9);
    let back = with(&[Follow, Promote(0), FailBack(-1), Pass(1), Away(0)]);
    none::<Pair>(&back, 7, 9);
    let pair = with(&[
        Restart(0),
        Crash(0),
        Follow,
        Promote(0),
        FailBack(0),
        Pass(1),
    ]);
    none::<Pair>(&pair, 7, 9);
    let three = [
        with(&[Follow, Promote(0), Pass(1), Pass(4)]),
        vec![Ask(2), Issue(2)],
    ]
    .concat();
    none::<Three>(&three, 7, 9);
    let crashes = [&*three, &[Crash(0), Reboot(1)]].concat();
    none::<TwoIds>(&crashes, 6, 8);
}

fn none<W: search::World<Rule = Rule, Step = Step>>(steps: &[Step], depth: u64, long: u64) {
    search::assert_none::<W>(histories(steps, support::rounds(depth, long)));
}

/// All steps but these: two clocks that are ahead put R ahead, and a lower bound comes late. That
/// takes longer than servers wait otherwise.
fn most() -> Vec<Step> {
    let slow = [Step::SetRegistry(4), Step::Lower];
    ALL.into_iter()
        .filter(|step| !slow.contains(step))
        .collect()
}

#[test]
fn every_server_recovers() {
    use Step::*;
    none::<Recovering<Two>>(&most(), 4, 5);
    none::<Recovering<Pair>>(&OF_PAIR, 5, 6);
    let few = with(&[
        Ask(2),
        Follow,
        Promote(0),
        Crash(0),
        Reboot(1),
        Pass(1),
        Pass(4),
    ]);
    none::<Recovering<Three>>(&few, 5, 7);
    none::<Recovering<TwoIds>>(&few, 5, 7);
}

#[test]
fn no_answer_stops_a_holder() {
    use Step::*;
    none::<Needless<Two>>(&most(), 4, 5);
    none::<Needless<Pair>>(&OF_PAIR, 6, 7);
    let few = with(&[
        Follow,
        Promote(0),
        Promote(-1),
        AskLost(0),
        Restart(0),
        Pass(1),
        Pass(4),
    ]);
    none::<Needless<TwoIds>>(&few, 6, 8);
}

/// With all rules, none of these histories issues an id twice; without this one, one does.
fn needed<W: search::World<Rule = Rule, Step = Step>>(
    kind: &str,
    rule: Rule,
    begin: &[Step],
    steps: &[Step],
    depth: u64,
) {
    let histories = Histories {
        begin,
        steps,
        depth,
    };
    search::assert_needed::<W>(kind, rule, histories);
    search::assert_none::<W>(histories);
}

/// In walks over all steps; the other rules need more luck than that.
#[test]
fn random_histories_find_rules_left_out() {
    for rule in [Rule::Durable, Rule::Original, Rule::OwnFloor, Rule::Token] {
        search::assert_a_walk_finds::<Two>(rule, histories(&ALL, 5));
    }
    search::assert_a_walk_finds::<Pair>(Rule::InheritFloor, histories(&OF_PAIR, 5));
}

#[test]
fn each_rule_is_needed() {
    use Step::*;
    let needed = |rule, begin: &[Step], steps: &[Step], depth| {
        needed::<Two>("rule", rule, begin, steps, depth);
    };
    let alone = [Ask(0), Issue(0), Crash(0)];
    needed(Rule::Durable, &[], &alone, 5);
    needed(Rule::OwnFloor, &[], &alone, 5);

    let passed = with(&[Pass(4), AskLost(1), SetClock(0, -1), SetClock(1, -1)]);
    needed(Rule::Reserved, &[], &passed, 5);
    needed(Rule::Floor, &[], &passed, 7);
    needed(Rule::FloorOfLostAnswer, &[], &passed, 8);

    let image = with(&[CopyImage]);
    needed(Rule::Token, &[], &image, 5);
    needed(Rule::Boot, &[], &image, 5);
    needed(Rule::BootToken, &[], &image, 5);
    needed(Rule::TokenOfRenewal, &[], &with(&[CopyMemory]), 6);
    needed(Rule::Original, &[], &with(&[CopyFiles]), 5);

    let moved = with(&[Pass(1), Pass(4), Promote(0), SetClock(1, -5)]);
    needed(Rule::MovedFloor, &[], &moved, 9);
    let held = [Ask(0), Follow, Pass(4), Ask(1), Issue(1)];
    let promoted = with(&[Pass(1), Pass(4), Promote(0), SetClock(0, -5)]);
    needed(Rule::PassedAfterMove, &held, &promoted, 7);
    needed(Rule::HeldFloor, &held, &promoted, 10);
    let before = [Ask(0), Follow, Pass(3), Ask(0), Promote(-1), Ask(1)];
    let drift = with(&[Pass(1), Pass(3), Promote(-1), SetRegistry(0)]);
    needed(Rule::MovedWait, &before, &drift, 8);
    let used = [
        Ask(0),
        Follow,
        Pass(4),
        Ask(1),
        Promote(0),
        Ask(1),
        Issue(1),
    ];
    let back = with(&[Pass(1), SetRegistry(-4), SetClock(0, -1)]);
    needed(Rule::FirstUseClock, &used, &back, 5);
    let cold = with(&[CopyStopped, Follow, Promote(-1), Pass(4)]);
    needed(Rule::HeldToken, &[], &cold, 9);
    let files = [CopyFiles, Ask(0), SetRegistry(4), SetClock(1, 4)];
    let corrected = with(&[Follow, Promote(0), SetClock(0, 4)]);
    needed(Rule::HeldLast, &files, &corrected, 7);
    let followed = [Ask(0), Follow, Pass(3)];
    needed(
        Rule::GivenWhenPassed,
        &followed,
        &with(&[Pass(2), Promote(-1)]),
        6,
    );
}

#[test]
fn each_rule_of_a_pair_is_needed() {
    use Step::*;
    let needed = |rule, begin: &[Step], steps: &[Step], depth| {
        needed::<Pair>("rule", rule, begin, steps, depth);
    };
    let followed = [Ask(0), Follow];
    needed(
        Rule::InheritFloor,
        &followed,
        &with(&[Pass(2), Promote(0)]),
        4,
    );
    let given = [Ask(0), Follow, Pass(4), Ask(1), SetClock(1, 3)];
    let promoted = with(&[Pass(1), Pass(2), Promote(0)]);
    needed(Rule::HostsOwn, &given, &promoted, 7);
    let back = with(&[Follow, Pass(1), FailBack(0), FailBack(-1), Away(0)]);
    let moved = [Ask(0), Follow, Promote(0), Ask(0)];
    needed(Rule::HeldOnly, &moved, &back, 8);
    needed(Rule::HostsFile, &moved, &back, 9);
}

#[test]
fn each_assumption_is_needed() {
    use Step::*;
    let needed = |assumption, begin: &[Step], steps: &[Step], depth| {
        needed::<Two>("assumption", assumption, begin, steps, depth);
    };
    needed(Rule::SnapshotSeen, &[], &with(&[RestoreSnapshot]), 5);
    let raised = with(&[Raise, Promote(0), Pass(1), Pass(4)]);
    needed(Rule::RaiseKept, &[], &raised, 9);
    let given = [Ask(0), Follow, Pass(4), Ask(1), Issue(1)];
    needed(Rule::RegistryClocks, &given, &with(&[Promote(-2)]), 3);
}
