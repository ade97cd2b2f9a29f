//! State machine of the snowflake generator, one test per row of the table in its header.
//!
//! Would catch: a generator opened before its timestamps are reserved, with a worker id that no
//! longer belongs to this server, or left open when it must be closed (I7); a state that shared
//! memory does not preserve; a message logged once a second.

#![cfg(not(leaf_id_loom))]
#![allow(clippy::expect_used, reason = "a test that panics fails")]

use leaf_id_core::keeper::{
    Action, Configured, FOR_EVER, File, Found, Input, Keeper, Look, Message, Registry, Seen, Step,
    Then,
};
use leaf_id_core::layout::Layout;
use leaf_id_core::lease::{Effect, Grant};
use leaf_id_core::reservation::{Floor, Reason, Stored};
use leaf_id_core::snowflake::Lead;
use leaf_id_core::state::{LeadReason, Refusal, State};

const EPOCH: i64 = 1_288_834_974_657;
const NOW: i64 = 1_800_000_000_000;
const RESERVATION: i64 = 5_000;
const MAX_LEAD: i64 = 10_000;
/// Above everything that another server may have issued.
const OTHERS: i64 = NOW + MAX_LEAD + RESERVATION;

const LEAD: Lead = Lead {
    max_ms: MAX_LEAD,
    burst_ms: 0,
};

/// Clock at `NOW`, and a word that was never opened.
const NEW: Seen = Seen {
    now_ms: NOW,
    last_ms: EPOCH,
    last_worker_id: None,
    is_open: false,
    lead: Lead::NONE,
    reserved_until_ms: EPOCH,
};
/// An id was just issued, and slightly less than half of the reservation is left.
const IN_USE: Seen = Seen {
    last_ms: NOW,
    last_worker_id: Some(5),
    is_open: true,
    lead: LEAD,
    reserved_until_ms: NOW + RESERVATION / 2 + 7,
    ..NEW
};

const GRANT: Grant = Grant {
    worker_id: 9,
    floor_ms: NOW - 10,
    reserved_until_ms: NOW + 60_000,
};

fn look(configured: Configured) -> Look {
    Look {
        configured,
        write_ms: 0,
        in_recovery: false,
        resets: 0,
        wanted: false,
        registry_is_here: false,
        led: false,
        reservation_ms: RESERVATION,
        max_lead_ms: MAX_LEAD,
        max_burst_ms: 0,
    }
}

fn fixed(worker_id: u16) -> Input {
    Input::Look(look(Configured::Fixed(worker_id)))
}

/// The same, and a call waits for an id.
fn asked(worker_id: u16) -> Input {
    Input::Look(Look {
        wanted: true,
        ..look(Configured::Fixed(worker_id))
    })
}

fn unset() -> Input {
    Input::Look(look(Configured::Unset))
}

fn leased(registry: Registry) -> Input {
    Input::Look(look(Configured::Leased(registry)))
}

fn file(found: Found) -> Input {
    Input::File(File {
        system_identifier: 77,
        timeline: 3,
        pristine: false,
        found,
    })
}

/// No file, on this timeline of a cluster where nothing was ever created.
fn pristine(timeline: u32) -> Input {
    Input::File(File {
        system_identifier: 77,
        timeline,
        pristine: true,
        found: Found::Nothing,
    })
}

/// The file of a clean stop.
fn clean(reserved_until_ms: i64) -> Stored {
    Stored {
        reserved_until_ms,
        epoch_ms: EPOCH,
        layout: Layout::DEFAULT,
        issued: true,
        system_identifier: 77,
        timeline: 3,
        original: true,
        clean: true,
        left_behind_until_ms: None,
    }
}

fn contents(stored: Stored) -> Input {
    file(Found::Contents {
        stored,
        worker_id: Some(5),
        retired: Vec::new(),
    })
}

/// Another server's file.
fn of_a_copy() -> Input {
    contents(Stored {
        original: false,
        ..clean(NOW - 100)
    })
}

/// The file of a run that has issued nothing, by this layout, ...
fn noted(worker_id: u16, reserved_until_ms: i64) -> Input {
    file(Found::Contents {
        stored: Stored {
            issued: false,
            ..clean(reserved_until_ms)
        },
        worker_id: Some(worker_id),
        retired: Vec::new(),
    })
}

/// ... or by another one.
fn unissued(worker_id: u16, reserved_until_ms: i64) -> Input {
    file(Found::Contents {
        stored: Stored {
            issued: false,
            layout: Layout::new(40, 11, 12).expect("a layout"),
            ..clean(reserved_until_ms)
        },
        worker_id: Some(worker_id),
        retired: Vec::new(),
    })
}

/// File of a run with a leased worker id.
fn of_lease_before() -> Input {
    file(Found::Contents {
        stored: clean(NOW - 100),
        worker_id: None,
        retired: Vec::new(),
    })
}

fn unreadable() -> Input {
    file(Found::Unreadable("why".into()))
}

fn granted(grant: Grant, anew: bool) -> Input {
    Input::Lease {
        effect: Effect::Use { grant, anew },
        again_ms: Some(700),
    }
}

fn refused(refusal: Refusal) -> Input {
    Input::Lease {
        effect: Effect::Close(refusal),
        again_ms: Some(1),
    }
}

fn written() -> Input {
    Input::Written(Ok(None))
}

fn not_written() -> Input {
    Input::Written(Err("why".into()))
}

fn logged() -> Action {
    Action::Log(Message::FileProblem("why".into()))
}

fn set_recorded(grant: Grant) -> Action {
    Action::SetRecorded(grant.reserved_until_ms)
}

const UNLIMITED: Action = Action::SetRecorded(FOR_EVER);
const NOTHING: Action = Action::SetRecorded(0);

fn floor(ms: i64, reason: Reason) -> Action {
    Action::ShowFloor(Floor { ms, reason })
}

fn reserve(worker_id: u16, until_ms: i64) -> Then {
    Then::Reserve {
        worker_id,
        until_ms,
        issued: true,
    }
}

/// A launcher after these steps.
fn after(inputs: impl IntoIterator<Item = (Seen, Input)>) -> Keeper {
    let mut keeper = new();
    for (seen, input) in inputs {
        keeper.step(&seen, input);
    }
    keeper
}

fn new() -> Keeper {
    Keeper::new(EPOCH, Layout::DEFAULT, 0, false, Some(5))
}

fn standby() -> Keeper {
    Keeper::new(EPOCH, Layout::DEFAULT, 0, true, Some(5))
}

/// Steps to Open with worker id 5.
fn to_open() -> Vec<(Seen, Input)> {
    vec![
        (NEW, fixed(5)),
        (NEW, contents(clean(NOW - 100))),
        (NEW, contents(clean(NOW - 100))),
        (NEW, written()),
    ]
}

/// Steps to the start of a lease, after a clean stop.
fn to_lease() -> Vec<(Seen, Input)> {
    vec![
        (NEW, leased(Registry::Other)),
        (NEW, contents(clean(NOW - 100))),
    ]
}

/// Steps to Open with the worker id of `GRANT`.
fn to_hold() -> Vec<(Seen, Input)> {
    let mut steps = to_lease();
    steps.extend([
        (NEW, granted(GRANT, true)),
        (NEW, contents(clean(NOW - 100))),
        (NEW, written()),
        (IN_USE, leased(Registry::Same)),
    ]);
    steps
}

/// Steps to the reservation above the ids of others, without a file.
fn to_reserve_above_others() -> Vec<(Seen, Input)> {
    vec![
        (NEW, fixed(5)),
        (NEW, file(Found::Nothing)),
        (NEW, file(Found::Nothing)),
        (NEW_WAITED, asked(5)),
        (NEW_WAITED, file(Found::Nothing)),
    ]
}

/// Steps to the wait for the floor of another worker id.
fn to_another() -> Vec<(Seen, Input)> {
    then(
        to_open(),
        [(IN_USE, fixed(6)), (IN_USE, contents(clean(NOW)))],
    )
}

fn then<T>(mut steps: Vec<T>, more: impl IntoIterator<Item = T>) -> Vec<T> {
    steps.extend(more);
    steps
}

/// A row of the table: initial steps, input, and expected result.
struct Row {
    row: &'static str,
    keeper: Keeper,
    seen: Seen,
    input: Input,
    shown: State,
    actions: Vec<Action>,
    then: Then,
}

const OPEN: State = State::Open { worker_id: 5 };
const HELD: State = State::Open { worker_id: 9 };
const FILE: State = State::Refused(Refusal::FileProblem);
const USED_UP: State = State::Refused(Refusal::TimeUsedUp);
/// Until the floor above the ids of others may be used.
const WAITING: State = State::WaitingOut {
    until_ms: NOW + RESERVATION,
};
/// Then.
const WAITED: Seen = Seen {
    now_ms: NOW + RESERVATION,
    ..IN_USE
};
/// A session has closed the generator, or this launcher has.
const CLOSED: Seen = Seen {
    is_open: false,
    ..IN_USE
};
const NEW_LATER: Seen = Seen {
    now_ms: NOW + 1,
    ..NEW
};
const NEW_WAITED: Seen = Seen {
    now_ms: NOW + RESERVATION,
    ..NEW
};

fn rows_of_a_look() -> Vec<Row> {
    let reset = Look {
        resets: 1,
        ..look(Configured::Fixed(5))
    };
    let recovering = |configured| {
        Input::Look(Look {
            in_recovery: true,
            ..look(configured)
        })
    };
    let mut leasing_standby = standby();
    let lease = recovering(Configured::Leased(Registry::Other));
    leasing_standby.step(&NEW, lease);
    leasing_standby.step(&NEW, contents(clean(NOW - 100)));
    let mut found_on_standby = standby();
    found_on_standby.step(&NEW, recovering(Configured::Leased(Registry::Unset)));
    found_on_standby.step(&NEW, contents(clean(NOW - 100)));
    vec![
        Row {
            row: "Look: a reset",
            keeper: after(to_open()),
            seen: IN_USE,
            input: Input::Look(reset),
            shown: State::Starting,
            actions: vec![floor(IN_USE.last_ms, Reason::Reset), UNLIMITED],
            then: Then::Read,
        },
        Row {
            row: "Look: promoted, and nothing issued yet",
            keeper: found_on_standby,
            seen: NEW,
            input: leased(Registry::Unset),
            shown: State::Refused(Refusal::NoRegistrySet),
            actions: vec![],
            then: Then::Read,
        },
        Row {
            row: "Look: a standby, leased from a registry on itself",
            keeper: standby(),
            seen: NEW,
            input: Input::Look(Look {
                in_recovery: true,
                registry_is_here: true,
                ..look(Configured::Leased(Registry::Other))
            }),
            shown: State::Standby,
            actions: vec![Action::Close],
            then: Then::Wait(Some(1000)),
        },
        Row {
            row: "Look: a standby, worker id not leased",
            keeper: standby(),
            seen: NEW,
            input: recovering(Configured::Fixed(5)),
            shown: State::Standby,
            actions: vec![Action::Close],
            then: Then::Wait(Some(1000)),
        },
        Row {
            row: "Look: the same, and it was leased",
            keeper: leasing_standby,
            seen: NEW,
            input: recovering(Configured::Unset),
            shown: State::Standby,
            actions: vec![Action::StopLeasing, Action::Close, Action::Close],
            then: Then::Wait(Some(1000)),
        },
        Row {
            row: "Look: no floor yet, and the word knows the last id",
            keeper: new(),
            seen: IN_USE,
            input: fixed(5),
            shown: State::Starting,
            actions: vec![floor(IN_USE.last_ms, Reason::LauncherRestart), UNLIMITED],
            then: Then::Read,
        },
        Row {
            row: "Look: no floor yet, and it does not",
            keeper: new(),
            seen: NEW,
            input: fixed(5),
            shown: State::Starting,
            actions: vec![],
            then: Then::Read,
        },
    ]
}

fn rows_of_a_floor() -> Vec<Row> {
    let later = Stored {
        epoch_ms: EPOCH - 1,
        ..clean(NOW)
    };
    let wider = Layout::new(40, 11, 12).expect("a layout");
    let other_layout = Stored {
        layout: wider,
        ..clean(NOW)
    };
    let looked = || after([(NEW, fixed(5))]);
    vec![
        Row {
            row: "File: it gives a floor",
            keeper: looked(),
            seen: NEW,
            input: contents(clean(NOW - 100)),
            shown: State::Starting,
            actions: vec![floor(NOW - 100, Reason::CleanStop), UNLIMITED],
            then: Then::Read,
        },
        Row {
            row: "File: there is none, in a new cluster",
            keeper: looked(),
            seen: NEW,
            input: pristine(1),
            shown: State::Starting,
            actions: vec![floor(NOW, Reason::NewCluster), UNLIMITED],
            then: Then::Read,
        },
        Row {
            row: "File: there is none, in a copy of a new cluster that was promoted",
            keeper: looked(),
            seen: NEW,
            input: pristine(2),
            shown: State::Starting,
            actions: vec![floor(OTHERS, Reason::NoFile), UNLIMITED],
            then: Then::Read,
        },
        Row {
            row: "File: the first worker id of a new cluster has no predecessor",
            keeper: after([(NEW, asked(5)), (NEW, pristine(1))]),
            seen: NEW,
            input: pristine(1),
            shown: State::Starting,
            actions: vec![],
            then: reserve(5, NOW + 5000),
        },
        Row {
            row: "File: it gives none: the epoch was moved later",
            keeper: looked(),
            seen: NEW,
            input: contents(later),
            shown: State::Refused(Refusal::EpochMovedLater {
                stored_ms: EPOCH - 1,
            }),
            actions: vec![Action::Close],
            then: Then::Wait(Some(1000)),
        },
        Row {
            row: "File: it gives none: another layout",
            keeper: looked(),
            seen: NEW,
            input: contents(other_layout),
            shown: State::Refused(Refusal::LayoutChanged {
                stored: wider.pack().into(),
            }),
            actions: vec![Action::Close],
            then: Then::Wait(Some(1000)),
        },
        Row {
            row: "File: it gives none: unreadable",
            keeper: looked(),
            seen: NEW,
            input: unreadable(),
            shown: FILE,
            actions: vec![logged(), Action::Close],
            then: Then::Wait(Some(1000)),
        },
        Row {
            row: "File: it gives none: unreadable, and that was logged",
            keeper: after([(NEW, fixed(5)), (NEW, unreadable()), (NEW, fixed(5))]),
            seen: NEW,
            input: unreadable(),
            shown: FILE,
            actions: vec![Action::Close],
            then: Then::Wait(Some(1000)),
        },
        Row {
            row: "File: it gives none: damaged",
            keeper: looked(),
            seen: NEW,
            input: file(Found::Damaged("why".into())),
            shown: FILE,
            actions: vec![logged(), Action::Close],
            then: Then::Wait(Some(1000)),
        },
        Row {
            row: "File: damaged, and the registry knows",
            keeper: after([(NEW, leased(Registry::Other))]),
            seen: NEW,
            input: file(Found::Damaged("why".into())),
            shown: State::Starting,
            actions: vec![
                floor(OTHERS, Reason::NoFile),
                Action::Close,
                floor(i64::MIN, Reason::NoFile),
            ],
            then: Then::Lease { begin: Some(false) },
        },
    ]
}

fn rows_of_the_configuration() -> Vec<Row> {
    let of_lease = Seen {
        last_worker_id: None,
        ..IN_USE
    };
    let another = |row, keeper, seen, own| Row {
        row,
        keeper,
        seen,
        input: leased(Registry::Other),
        shown: State::Starting,
        actions: vec![Action::StopLeasing, Action::Close, Action::Close],
        then: Then::Lease { begin: Some(own) },
    };
    vec![
        Row {
            row: "no worker id is set",
            keeper: after(to_open()),
            seen: IN_USE,
            input: unset(),
            shown: State::Unconfigured,
            actions: vec![Action::Close],
            then: Then::Wait(None),
        },
        Row {
            row: "no worker id is set: known",
            keeper: after(then(to_open(), [(IN_USE, unset())])),
            seen: IN_USE,
            input: unset(),
            shown: State::Unconfigured,
            actions: vec![],
            then: Then::Wait(None),
        },
        Row {
            row: "no worker id is set, and the file gives no floor",
            keeper: after([(NEW, unset())]),
            seen: NEW,
            input: unreadable(),
            shown: State::Unconfigured,
            actions: vec![logged(), Action::Close],
            then: Then::Wait(None),
        },
        Row {
            row: "no registry is set",
            keeper: after(to_hold()),
            seen: IN_USE,
            input: leased(Registry::Unset),
            shown: State::Refused(Refusal::NoRegistrySet),
            actions: vec![Action::StopLeasing, Action::Close, Action::Close],
            then: Then::Wait(None),
        },
        Row {
            row: "it is the first one",
            keeper: after([(NEW, leased(Registry::Other))]),
            seen: NEW,
            input: contents(clean(NOW - 100)),
            shown: State::Starting,
            actions: vec![floor(NOW - 100, Reason::CleanStop), Action::Close],
            then: Then::Lease { begin: Some(true) },
        },
        another("it is another one", after(to_hold()), IN_USE, true),
        another(
            "it is another one, and this server was granted one as another",
            after([
                (NEW, leased(Registry::Other)),
                (NEW, of_a_copy()),
                (NEW, granted(GRANT, true)),
                (NEW, of_a_copy()),
                (NEW, written()),
            ]),
            IN_USE,
            true,
        ),
        another(
            "it is another one, and this server has asked as another",
            after([
                (NEW, leased(Registry::Other)),
                (NEW, of_a_copy()),
                (NEW, refused(Refusal::NoAnswer)),
            ]),
            NEW,
            false,
        ),
        Row {
            row: "a worker id is set that was leased",
            keeper: after(to_hold()),
            seen: IN_USE,
            input: fixed(5),
            shown: State::Starting,
            actions: vec![Action::StopLeasing, Action::Close, UNLIMITED],
            then: Then::Read,
        },
        waits_for_others(
            "a worker id is set that was leased: others may have had it since",
            after(then(to_hold(), [(of_lease, fixed(9))])),
            of_lease,
            contents(clean(NOW - 100)),
        ),
        waits_for_others(
            "a worker id is set that the last run had leased",
            after([(NEW, fixed(9)), (NEW, of_lease_before())]),
            NEW,
            of_lease_before(),
        ),
    ]
}

fn rows_of_the_lease() -> Vec<Row> {
    let kept = || Input::Lease {
        effect: Effect::Keep,
        again_ms: None,
    };
    let recorded_ms = GRANT.reserved_until_ms;
    let set_ahead = Seen {
        now_ms: recorded_ms,
        ..IN_USE
    };
    let led_to_the_end = Seen {
        now_ms: recorded_ms - 3,
        last_ms: recorded_ms,
        reserved_until_ms: recorded_ms,
        ..IN_USE
    };
    let used_up = || then(to_hold(), [(set_ahead, kept())]);
    let used_up_and_asking = || after(then(used_up(), [(set_ahead, leased(Registry::Same))]));
    let more = Grant {
        reserved_until_ms: recorded_ms + 60_000,
        ..GRANT
    };
    vec![
        Row {
            row: "Lease: refused",
            keeper: after(to_hold()),
            seen: IN_USE,
            input: refused(Refusal::ClockSkew { by_ms: 3 }),
            shown: State::Refused(Refusal::ClockSkew { by_ms: 3 }),
            actions: vec![Action::Close, NOTHING],
            then: Then::Wait(Some(1)),
        },
        Row {
            row: "Lease: granted, not a continuation",
            keeper: after(to_hold()),
            seen: IN_USE,
            input: granted(GRANT, true),
            shown: State::Starting,
            actions: vec![Action::Close, set_recorded(GRANT)],
            then: Then::Read,
        },
        Row {
            row: "Lease: granted, to go on",
            keeper: after(to_hold()),
            seen: IN_USE,
            input: granted(GRANT, false),
            shown: HELD,
            actions: vec![set_recorded(GRANT)],
            then: Then::Wait(Some(7)),
        },
        Row {
            row: "the clock has come to the recorded time",
            keeper: after(to_hold()),
            seen: set_ahead,
            input: kept(),
            shown: USED_UP,
            actions: vec![Action::Hurry],
            then: Then::Wait(Some(1000)),
        },
        Row {
            row: "ids have come to the recorded time, ahead of the clock",
            keeper: after(to_hold()),
            seen: led_to_the_end,
            input: kept(),
            shown: USED_UP,
            actions: vec![Action::Hurry],
            then: Then::Wait(Some(1000)),
        },
        Row {
            row: "used up: Look",
            keeper: after(used_up()),
            seen: set_ahead,
            input: leased(Registry::Same),
            shown: USED_UP,
            actions: vec![],
            then: Then::Lease { begin: None },
        },
        Row {
            row: "used up: granted as much as before",
            keeper: used_up_and_asking(),
            seen: set_ahead,
            input: granted(GRANT, false),
            shown: USED_UP,
            actions: vec![set_recorded(GRANT), Action::Hurry],
            then: Then::Wait(Some(700)),
        },
        Row {
            row: "used up: granted more",
            keeper: used_up_and_asking(),
            seen: set_ahead,
            input: granted(more, false),
            shown: HELD,
            actions: vec![set_recorded(more)],
            then: reserve(9, recorded_ms + RESERVATION),
        },
        Row {
            row: "used up: a worker id is set",
            keeper: after(used_up()),
            seen: set_ahead,
            input: fixed(5),
            shown: State::Starting,
            actions: vec![Action::StopLeasing, Action::Close, UNLIMITED],
            then: Then::Read,
        },
    ]
}

/// A row where another server may have used the worker id: its ids are waited out.
fn waits_for_others(row: &'static str, keeper: Keeper, seen: Seen, input: Input) -> Row {
    Row {
        row,
        keeper,
        seen,
        input,
        shown: WAITING,
        actions: vec![Action::Close],
        then: Then::Wait(Some(1000)),
    }
}

fn rows_of_a_failed_reset() -> Vec<Row> {
    vec![Row {
        row: "Open: a session whose reset failed has closed it",
        keeper: after(to_open()),
        seen: CLOSED,
        input: fixed(5),
        shown: State::Starting,
        actions: vec![floor(NOW, Reason::LauncherRestart), UNLIMITED],
        then: Then::Read,
    }]
}

fn rows_of_opening() -> Vec<Row> {
    let reading = || after(to_open().into_iter().take(2));
    let writing = || after(to_open().into_iter().take(3));
    let changing = || after(then(to_open(), [(IN_USE, fixed(6))]));
    let (near_ms, far_ms) = (NOW + 400, NOW + 100_000);
    let ahead = |ms| State::WaitingOut {
        until_ms: ms - MAX_LEAD,
    };
    let until_ms = far_ms - MAX_LEAD;
    let seen = |last_ms| Seen { last_ms, ..NEW };
    let found = |until_ms| {
        file(Found::Contents {
            stored: clean(NOW - 100),
            worker_id: Some(5),
            retired: vec![(6, NOW + 99_000), (5, until_ms)],
        })
    };
    let refuse = |refusal| State::Refused(refusal);
    let recorded_ms = NOW + 20;
    let short = Grant {
        reserved_until_ms: recorded_ms,
        ..GRANT
    };
    let all_used = Grant {
        floor_ms: NOW + MAX_LEAD,
        reserved_until_ms: NOW + MAX_LEAD,
        ..GRANT
    };
    vec![
        Row {
            row: "any other: File, and it is over",
            keeper: reading(),
            seen: NEW,
            input: contents(clean(NOW - 100)),
            shown: State::Starting,
            actions: vec![],
            then: reserve(5, NOW + RESERVATION),
        },
        Row {
            row: "any other: File, and it is over; a lease that records less",
            keeper: after(then(to_lease(), [(NEW, granted(short, true))])),
            seen: NEW,
            input: contents(clean(NOW - 100)),
            shown: State::Starting,
            actions: vec![],
            then: reserve(9, recorded_ms),
        },
        Row {
            row: "any other: File; a lease that records nothing above the floor",
            keeper: after(then(to_lease(), [(NEW, granted(all_used, true))])),
            seen: NEW,
            input: contents(clean(NOW - 100)),
            shown: USED_UP,
            actions: vec![Action::Hurry],
            then: Then::Wait(Some(700)),
        },
        Row {
            row: "any other: File, and it leads by no more than ids may",
            keeper: reading(),
            seen: seen(near_ms),
            input: contents(clean(NOW - 100)),
            shown: State::Starting,
            actions: vec![],
            then: reserve(5, near_ms + RESERVATION),
        },
        Row {
            row: "any other: File, and it leads by more",
            keeper: reading(),
            seen: seen(NOW + MAX_LEAD + 400),
            input: contents(clean(NOW - 100)),
            shown: ahead(NOW + MAX_LEAD + 400),
            actions: vec![Action::Close],
            then: Then::Wait(Some(400)),
        },
        Row {
            row: "any other: File, and the worker id was left behind",
            keeper: reading(),
            seen: NEW,
            input: found(far_ms),
            shown: refuse(Refusal::WorkerIdRetired { until_ms }),
            actions: vec![Action::Close],
            then: Then::Wait(Some(1000)),
        },
        Row {
            row: "any other: File, damaged: healed by the next write",
            keeper: reading(),
            seen: NEW,
            input: file(Found::Damaged("why".into())),
            shown: State::Starting,
            actions: vec![],
            then: reserve(5, NOW + RESERVATION),
        },
        Row {
            row: "any other: File: unreadable",
            keeper: reading(),
            seen: NEW,
            input: unreadable(),
            shown: FILE,
            actions: vec![logged()],
            then: Then::Wait(Some(1000)),
        },
        Row {
            row: "Open with another worker id: File: unreadable",
            keeper: changing(),
            seen: IN_USE,
            input: unreadable(),
            shown: FILE,
            actions: vec![logged()],
            then: Then::Wait(Some(1000)),
        },
        Row {
            row: "any other: Written",
            keeper: writing(),
            seen: NEW,
            input: written(),
            shown: OPEN,
            actions: vec![
                Action::SetLead(LEAD),
                Action::Open {
                    worker_id: 5,
                    above_ms: NOW - 100,
                },
            ],
            then: Then::Wait(Some(RESERVATION / 2)),
        },
        Row {
            row: "any other: Written, and nothing was known",
            keeper: after(to_reserve_above_others()),
            seen: NEW_WAITED,
            input: written(),
            shown: OPEN,
            actions: vec![
                Action::SetLead(LEAD),
                Action::Open {
                    worker_id: 5,
                    above_ms: OTHERS,
                },
            ],
            then: Then::Wait(Some(1)),
        },
        Row {
            row: "any other: Written, and nothing was known, by a file read later than the floor",
            keeper: after(vec![
                (NEW, fixed(5)),
                (NEW, file(Found::Nothing)),
                (NEW_LATER, file(Found::Nothing)),
                (NEW_WAITED, asked(5)),
                (NEW_WAITED, file(Found::Nothing)),
            ]),
            seen: NEW_WAITED,
            input: written(),
            shown: OPEN,
            actions: vec![
                Action::SetLead(LEAD),
                Action::Open {
                    worker_id: 5,
                    above_ms: OTHERS,
                },
            ],
            then: Then::Wait(Some(1)),
        },
        Row {
            row: "nothing was known, and the worker id was not configured for a while: File",
            keeper: after(vec![
                (NEW, fixed(5)),
                (NEW, file(Found::Nothing)),
                (NEW, file(Found::Nothing)),
                (NEW_WAITED, unset()),
                (NEW_WAITED, fixed(5)),
            ]),
            seen: NEW_WAITED,
            input: file(Found::Nothing),
            shown: State::WaitingOut {
                until_ms: NOW + 2 * RESERVATION,
            },
            actions: vec![Action::Close],
            then: Then::Wait(Some(1000)),
        },
        waits_for_others(
            "it was not configured for a while: File",
            after(then(to_open(), [(IN_USE, unset()), (CLOSED, fixed(5))])),
            CLOSED,
            contents(clean(NOW)),
        ),
        waits_for_others(
            "one was to be leased for a while: File",
            after(then(
                to_open(),
                [(IN_USE, leased(Registry::Unset)), (CLOSED, fixed(5))],
            )),
            CLOSED,
            contents(clean(NOW)),
        ),
        waits_for_others(
            "it was not configured for a while, and the launcher was restarted: File",
            {
                let mut keeper = Keeper::new(EPOCH, Layout::DEFAULT, 0, false, None);
                keeper.step(&CLOSED, fixed(5));
                keeper
            },
            CLOSED,
            contents(clean(NOW)),
        ),
        waits_for_others(
            "it came back, and the launcher was restarted while that was waited for: File",
            {
                let before = after(then(
                    to_open(),
                    [
                        (IN_USE, unset()),
                        (CLOSED, fixed(5)),
                        (CLOSED, contents(clean(NOW))),
                    ],
                ));
                let kept = before.kept_worker_id();
                let mut keeper = Keeper::new(EPOCH, Layout::DEFAULT, 0, false, kept);
                keeper.step(&CLOSED, fixed(5));
                keeper
            },
            CLOSED,
            contents(clean(NOW)),
        ),
        Row {
            row: "another one was set before it was opened, and others may have had this one: Look",
            keeper: after(to_another()),
            seen: IN_USE,
            input: fixed(5),
            shown: State::Starting,
            actions: vec![UNLIMITED, Action::Close],
            then: Then::Read,
        },
        Row {
            row: "it was not configured while no turn could be taken: Look",
            keeper: {
                let mut keeper = after(to_open());
                keeper.heed(Configured::Unset);
                keeper
            },
            seen: IN_USE,
            input: fixed(5),
            shown: State::Starting,
            actions: vec![UNLIMITED, Action::Close],
            then: Then::Read,
        },
        waits_for_others(
            "it is that of the file, but was not configured since the start: File",
            after([
                (NEW, unset()),
                (NEW, contents(clean(NOW - 100))),
                (NEW, fixed(5)),
            ]),
            NEW,
            contents(clean(NOW - 100)),
        ),
        waits_for_others(
            "a new cluster, but it was not configured since the start: File",
            after([(NEW, unset()), (NEW, pristine(1)), (NEW, fixed(5))]),
            NEW,
            pristine(1),
        ),
        waits_for_others(
            "a new cluster, whose floor is found again after it was configured: File",
            {
                let mut keeper = Keeper::new(EPOCH, Layout::DEFAULT, 0, false, None);
                keeper.step(&NEW, fixed(5));
                keeper.step(&NEW, pristine(1));
                keeper
            },
            NEW,
            pristine(1),
        ),
        Row {
            row: "it was not configured for a while, and then there was a reset: File",
            keeper: after(then(
                to_open(),
                [
                    (IN_USE, unset()),
                    (
                        CLOSED,
                        Input::Look(Look {
                            resets: 1,
                            ..look(Configured::Fixed(5))
                        }),
                    ),
                ],
            )),
            seen: CLOSED,
            input: contents(clean(NOW)),
            shown: State::Starting,
            actions: vec![],
            then: reserve(5, NOW + RESERVATION),
        },
        Row {
            row: "any other: Written, and healed",
            keeper: writing(),
            seen: NEW,
            input: Input::Written(Ok(Some("damage".into()))),
            shown: OPEN,
            actions: vec![
                Action::Log(Message::FileHealed("damage".into())),
                Action::SetLead(LEAD),
                Action::Open {
                    worker_id: 5,
                    above_ms: NOW - 100,
                },
            ],
            then: Then::Wait(Some(RESERVATION / 2)),
        },
        Row {
            row: "any other: not Written",
            keeper: writing(),
            seen: NEW,
            input: not_written(),
            shown: FILE,
            actions: vec![logged()],
            then: Then::Wait(Some(1000)),
        },
        Row {
            row: "Open with another worker id: File",
            keeper: after(then(to_open(), [(IN_USE, fixed(6))])),
            seen: IN_USE,
            input: contents(clean(NOW)),
            shown: OPEN,
            actions: vec![],
            then: Then::Wait(Some(1000)),
        },
        Row {
            row: "waited for the floor of another worker id, as first computed: File",
            keeper: after(then(to_another(), [(WAITED, fixed(6))])),
            seen: WAITED,
            input: contents(clean(NOW)),
            shown: OPEN,
            actions: vec![],
            then: reserve(6, OTHERS + 50),
        },
        Row {
            row: "another worker id is set again: its floor is computed again",
            keeper: after(then(to_another(), [(WAITED, fixed(5)), (WAITED, fixed(6))])),
            seen: WAITED,
            input: contents(clean(NOW)),
            shown: State::WaitingOut {
                until_ms: NOW + 2 * RESERVATION,
            },
            actions: vec![Action::Close],
            then: Then::Wait(Some(1000)),
        },
        Row {
            row: "waited for the floor of another worker id: Written",
            keeper: after(then(
                to_another(),
                [(WAITED, fixed(6)), (WAITED, contents(clean(NOW)))],
            )),
            seen: WAITED,
            input: written(),
            shown: State::Open { worker_id: 6 },
            actions: vec![
                floor(OTHERS, Reason::OtherWorkerId),
                Action::SetLead(LEAD),
                Action::Open {
                    worker_id: 6,
                    above_ms: OTHERS,
                },
            ],
            then: Then::Wait(Some(1)),
        },
    ]
}

/// Before the first id, and after a clock that was ahead.
fn rows_of_binding_little() -> Vec<Row> {
    let hour = 3_600_000;
    let ahead = Seen {
        now_ms: NOW + hour,
        ..NEW
    };
    let in_use_ahead = Seen {
        now_ms: NOW + hour,
        ..IN_USE
    };
    let note = |until_ms| Then::Reserve {
        worker_id: 5,
        until_ms,
        issued: false,
    };
    let ready = || after([(NEW, fixed(5)), (NEW, unissued(5, NOW - 7))]);
    let reserved_ahead = Seen {
        reserved_until_ms: NOW + hour,
        ..IN_USE
    };
    let ids_ahead = Seen {
        last_ms: NOW + MAX_LEAD + 1,
        ..reserved_ahead
    };
    let full = || then(to_open(), [(IN_USE, asked(5)), (IN_USE, not_written())]);
    vec![
        Row {
            row: "no id was issued, and there is no file: File",
            keeper: after([(NEW, fixed(5)), (NEW, pristine(1))]),
            seen: NEW,
            input: pristine(1),
            shown: State::Starting,
            actions: vec![],
            then: note(NOW),
        },
        Row {
            row: "no id was issued: Written",
            keeper: after([(NEW, fixed(5)), (NEW, pristine(1)), (NEW, pristine(1))]),
            seen: NEW,
            input: written(),
            shown: OPEN,
            actions: vec![],
            then: Then::Wait(None),
        },
        Row {
            row: "no id was issued, as noted: File",
            keeper: after([(NEW, fixed(5)), (NEW, noted(5, NOW - 7))]),
            seen: NEW,
            input: noted(5, NOW - 7),
            shown: OPEN,
            actions: vec![],
            then: Then::Wait(None),
        },
        Row {
            row: "no id was issued, by another layout: File",
            keeper: ready(),
            seen: NEW,
            input: unissued(5, NOW - 7),
            shown: State::Starting,
            actions: vec![],
            then: note(NOW - 7),
        },
        Row {
            row: "no id was issued, and another worker id was set: File",
            keeper: after([
                (NEW, fixed(5)),
                (NEW, unissued(6, NOW - 7)),
                (NEW, unissued(6, NOW - 7)),
                (NEW_WAITED, fixed(5)),
            ]),
            seen: NEW_WAITED,
            input: unissued(6, NOW - 7),
            shown: State::Starting,
            actions: vec![],
            then: note(OTHERS),
        },
        Row {
            row: "a call asks for the first id: File",
            keeper: after([(NEW, asked(5)), (NEW, unissued(5, NOW - 7))]),
            seen: NEW,
            input: unissued(5, NOW - 7),
            shown: State::Starting,
            actions: vec![],
            then: reserve(5, NOW + RESERVATION),
        },
        Row {
            row: "it has asked, and the disk was full: Look, File",
            keeper: after([
                (NEW, asked(5)),
                (NEW, unissued(5, NOW - 7)),
                (NEW, unissued(5, NOW - 7)),
                (NEW, not_written()),
                (NEW, fixed(5)),
            ]),
            seen: NEW,
            input: unissued(5, NOW - 7),
            shown: FILE,
            actions: vec![],
            then: reserve(5, NOW + RESERVATION),
        },
        Row {
            row: "the clock was ahead when the floor was found: Look",
            keeper: after([(ahead, fixed(5)), (ahead, of_a_copy())]),
            seen: NEW,
            input: fixed(5),
            shown: State::Starting,
            actions: vec![],
            then: Then::Read,
        },
        Row {
            row: "the clock was ahead when another worker id was set: File",
            keeper: after(then(
                to_open(),
                [
                    (in_use_ahead, fixed(6)),
                    (in_use_ahead, contents(clean(NOW))),
                    (IN_USE, fixed(6)),
                    (IN_USE, contents(clean(NOW))),
                    (WAITED, fixed(6)),
                ],
            )),
            seen: WAITED,
            input: contents(clean(NOW)),
            shown: OPEN,
            actions: vec![],
            then: reserve(6, OTHERS + 50),
        },
        Row {
            row: "reserved by a clock that was ahead: Look",
            keeper: after(to_open()),
            seen: reserved_ahead,
            input: fixed(5),
            shown: State::Starting,
            actions: vec![UNLIMITED, Action::Close],
            then: Then::Read,
        },
        Row {
            row: "reserved by a clock that was ahead: File",
            keeper: after(then(to_open(), [(reserved_ahead, fixed(5))])),
            seen: CLOSED,
            input: contents(clean(NOW + hour)),
            shown: State::Starting,
            actions: vec![],
            then: reserve(5, NOW + RESERVATION),
        },
        Row {
            row: "reserved by a clock that was ahead, and so are ids: Look",
            keeper: after(to_open()),
            seen: ids_ahead,
            input: fixed(5),
            shown: OPEN,
            actions: then(
                reported(MAX_LEAD + 1, LeadReason::ClockSetBack),
                [UNLIMITED],
            ),
            then: Then::Wait(Some(1001)),
        },
        Row {
            row: "reserved by a clock that was ahead, and the disk is full: Look",
            keeper: after(full()),
            seen: reserved_ahead,
            input: fixed(5),
            shown: FILE,
            actions: vec![UNLIMITED],
            then: reserve(5, NOW + hour),
        },
    ]
}

fn rows_of_renewing() -> Vec<Row> {
    let used = Seen {
        reserved_until_ms: NOW + RESERVATION / 2,
        ..IN_USE
    };
    let half = Seen {
        last_ms: NOW - 3,
        ..used
    };
    let renewing = || after(then(to_open(), [(used, fixed(5))]));
    let failed = || then(to_open(), [(used, fixed(5)), (used, not_written())]);
    vec![
        Row {
            row: "Open with this worker id: idle",
            keeper: after(to_open()),
            seen: half,
            input: fixed(5),
            shown: OPEN,
            actions: vec![UNLIMITED],
            then: Then::Wait(Some(10_000)),
        },
        Row {
            row: "Open with this worker id: half is used",
            keeper: after(to_open()),
            seen: used,
            input: fixed(5),
            shown: OPEN,
            actions: vec![UNLIMITED],
            then: reserve(5, NOW + RESERVATION),
        },
        Row {
            row: "Open with this worker id: Written",
            keeper: renewing(),
            seen: used,
            input: written(),
            shown: OPEN,
            actions: vec![Action::Wake],
            then: Then::Wait(Some(RESERVATION / 2)),
        },
        Row {
            row: "Open with this worker id: not Written",
            keeper: renewing(),
            seen: used,
            input: not_written(),
            shown: FILE,
            actions: vec![logged()],
            then: Then::Wait(Some(1000)),
        },
        Row {
            row: "shown as Refused: FileProblem: tried again",
            keeper: after(failed()),
            seen: half,
            input: fixed(5),
            shown: FILE,
            actions: vec![UNLIMITED],
            then: reserve(5, NOW + RESERVATION),
        },
        Row {
            row: "shown as Refused: FileProblem: Written",
            keeper: after(then(failed(), [(half, fixed(5))])),
            seen: half,
            input: written(),
            shown: OPEN,
            actions: vec![Action::Log(Message::FileMended), Action::Wake],
            then: Then::Wait(Some(RESERVATION / 2)),
        },
    ]
}

fn reported(ms: i64, reason: LeadReason) -> Vec<Action> {
    vec![
        Action::ShowLead(Some(reason)),
        Action::Log(Message::Leading(ms, reason)),
    ]
}

fn rows_of_the_lead() -> Vec<Row> {
    let behind = Seen {
        now_ms: NOW - 40,
        reserved_until_ms: NOW + RESERVATION,
        ..IN_USE
    };
    let led = Input::Look(Look {
        led: true,
        ..look(Configured::Fixed(5))
    });
    let over = || vec![Action::ShowLead(None), Action::Log(Message::LeadOver)];
    let ahead = Seen {
        last_ms: OTHERS,
        reserved_until_ms: OTHERS + 50,
        ..WAITED
    };
    vec![
        Row {
            row: "Open: the clock is behind",
            keeper: after(to_open()),
            seen: behind,
            input: fixed(5),
            shown: OPEN,
            actions: then(reported(40, LeadReason::ClockSetBack), [UNLIMITED]),
            then: Then::Wait(Some(41)),
        },
        Row {
            row: "Open: the clock is behind, and that was said",
            keeper: after(then(to_open(), [(behind, fixed(5))])),
            seen: behind,
            input: fixed(5),
            shown: OPEN,
            actions: vec![UNLIMITED],
            then: Then::Wait(Some(41)),
        },
        Row {
            row: "Open: the clock is not behind any more",
            keeper: after(then(to_open(), [(behind, fixed(5))])),
            seen: IN_USE,
            input: fixed(5),
            shown: OPEN,
            actions: then(over(), [UNLIMITED]),
            then: Then::Wait(Some(7)),
        },
        Row {
            row: "Open: the clock was behind for a moment",
            keeper: after(to_open()),
            seen: IN_USE,
            input: led,
            shown: OPEN,
            actions: then(
                then(reported(1, LeadReason::ClockSetBack), over()),
                [UNLIMITED],
            ),
            then: Then::Wait(Some(7)),
        },
        Row {
            row: "Open: opened ahead of the clock",
            keeper: after(then(to_reserve_above_others(), [(NEW_WAITED, written())])),
            seen: ahead,
            input: fixed(5),
            shown: OPEN,
            actions: then(reported(MAX_LEAD, LeadReason::Unknown), [UNLIMITED]),
            then: Then::Wait(Some(25)),
        },
    ]
}

#[test]
fn each_row_of_the_table_holds() {
    let rows = [
        rows_of_a_look(),
        rows_of_a_floor(),
        rows_of_the_configuration(),
        rows_of_the_lease(),
        rows_of_a_failed_reset(),
        rows_of_opening(),
        rows_of_binding_little(),
        rows_of_renewing(),
        rows_of_the_lead(),
    ];
    for mut row in rows.into_iter().flatten() {
        let step = row.keeper.step(&row.seen, row.input);
        let expected = Step {
            actions: row.actions,
            shown: row.shown,
            then: row.then,
        };
        assert_eq!(step, expected, "{}", row.row);
    }
}

/// A lease substitutes for a floor that this server does not know.
#[test]
fn of_a_worker_id_leased_as_by_another_server_the_registry_knows() {
    let mut keeper = after([
        (NEW, leased(Registry::Other)),
        (NEW, of_a_copy()),
        (NEW, granted(GRANT, true)),
    ]);
    let step = keeper.step(&NEW, of_a_copy());
    assert_eq!(step.then, reserve(9, NOW + RESERVATION), "at once");
    // With a file of its own, it continues above that.
    let mut keeper = after([
        (NEW, leased(Registry::Other)),
        (NEW, contents(clean(NOW + 50))),
        (NEW, granted(GRANT, true)),
    ]);
    let step = keeper.step(&NEW, contents(clean(NOW + 50)));
    assert_eq!(step.then, reserve(9, NOW + 50 + RESERVATION));
}

#[test]
fn each_state_comes_back_from_its_word() {
    let mut states = vec![
        State::Starting,
        State::Unconfigured,
        State::Standby,
        State::WaitingOut { until_ms: NOW },
        State::Open { worker_id: 1023 },
    ];
    let refusals = (0..).map_while(|number| Refusal::decode(number, NOW));
    states.extend(refusals.map(State::Refused));
    assert_eq!(states.len(), 5 + 12);
    assert_eq!(State::Starting.pack(), 0);
    let mut seen = Vec::new();
    for state in states {
        let word = state.pack();
        assert_eq!(State::unpack(word), Some(state));
        assert!(
            !seen.contains(&(word & 0xff, state.text())),
            "{state:?} is two states"
        );
        assert_eq!(usize::try_from(word & 0xff), Ok(seen.len()));
        seen.push((word & 0xff, state.text()));
    }
    for by_ms in [-1, -1_000_000_000_000_000, 1_000_000_000_000_000] {
        let state = State::Refused(Refusal::ClockSkew { by_ms });
        assert_eq!(State::unpack(state.pack()), Some(state));
    }
    let far = State::WaitingOut { until_ms: i64::MAX }.pack();
    let until_ms = i64::MAX >> 8;
    assert_eq!(State::unpack(far), Some(State::WaitingOut { until_ms }));
    assert_eq!(State::unpack(5 + 12), None);
    assert_eq!(State::unpack(0xff), None);
    assert_eq!(State::unpack((-1 << 8) | 4), None);
}
