//! The state machine of a server that leases its worker id: which grant it uses, when it stops, what
//! it asks and when.
//!
//! Would catch: a lease that is used after its end, or given up before it without need; a question
//! that shows too much or too little; a refusal after which a server asks too late.

#![cfg(not(leaf_id_loom))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics fails"
)]

mod support;

use leaf_id_core::lease::{
    Answer, Clocks, Effect, FoundFile, Grant, Held, Kind, Lease, LeaseHolder, Question, Rules,
    Status, Step,
};
use leaf_id_core::state::Refusal;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const LEASE_MS: i64 = 60_000;
const SKEW_MS: i64 = 1_000;
const RULES: Rules = Rules {
    lease_ms: LEASE_MS,
    max_skew_ms: SKEW_MS,
};
const BEGIN_MS: i64 = 1_000_000;
/// End of a lease that was asked for at the beginning.
const END_MS: i64 = BEGIN_MS + LEASE_MS - LEASE_MS / 1_000;
/// Of the file.
const TOKEN: i64 = 5;
const NEXT_TOKEN: i64 = 6;

const GRANT: Grant = Grant {
    worker_id: 7,
    floor_ms: 100,
    reserved_until_ms: 200,
    max_lead_ms: 10,
    until_boot_ms: END_MS,
};

const FILE: Lease = Lease {
    grant: Some(GRANT),
    token: TOKEN,
    next_token: NEXT_TOKEN,
};

const REFUSALS: [(Status, Refusal); 8] = [
    (Status::Held, Refusal::HeldByOther),
    (Status::Full, Refusal::NoFreeWorkerId),
    (Status::Grace, Refusal::RegistryGrace),
    (Status::Clock, Refusal::ClockSkew { by_ms: 5_000 }),
    (Status::Retired, Refusal::WorkerIdLost),
    (Status::Lost, Refusal::WorkerIdLost),
    (Status::Epoch, Refusal::OtherEpoch),
    (Status::Layout, Refusal::OtherLayout),
];

/// A server, and the tokens that it draws: 11, 12, ...
struct Server {
    holder: LeaseHolder,
    drawn: i64,
}

impl Server {
    fn new(lease: Lease) -> Self {
        Self {
            holder: LeaseHolder::new(lease),
            drawn: 10,
        }
    }

    /// A server that uses the grant since the beginning.
    fn holding() -> Self {
        let mut server = Self::new(Lease::default());
        let effect = server.ask_and_hear(BEGIN_MS, answer(Status::Granted, BEGIN_MS));
        assert_eq!(
            effect,
            Effect::Use {
                grant: GRANT,
                anew: true
            }
        );
        server
    }

    fn ask(&mut self, boot_ms: i64) -> Question {
        let drawn = &mut self.drawn;
        self.holder.prepare(|| {
            *drawn += 1;
            *drawn
        });
        self.holder.ask(boot_ms, RULES).at(boot_ms)
    }

    fn hear(&mut self, question: &Question, answer: &Answer) -> Effect {
        let drawn = &mut self.drawn;
        self.holder.hear(question, answer, RULES, || {
            *drawn += 1;
            *drawn
        })
    }

    fn ask_and_hear(&mut self, boot_ms: i64, answer: Answer) -> Effect {
        let question = self.ask(boot_ms);
        self.hear(&question, &answer)
    }

    /// Time until the next question is due, at this time.
    fn asks_after(&mut self, boot_ms: i64) -> i64 {
        match self.holder.step(boot_ms) {
            Step::Ask => 0,
            Step::Wait(Some(ms)) => ms,
            other => panic!("{other:?}"),
        }
    }
}

/// An answer to a question sent now. A clock that is off is 5 s ahead.
fn answer(status: Status, boot_ms: i64) -> Answer {
    let clocks = Clocks {
        boot_ms,
        wall_ms: 1_000,
    };
    Answer {
        status,
        worker_id: GRANT.worker_id,
        floor_ms: GRANT.floor_ms,
        reserved_until_ms: GRANT.reserved_until_ms,
        lease_ms: LEASE_MS,
        max_lead_ms: GRANT.max_lead_ms,
        max_skew_ms: SKEW_MS,
        registry_ms: if status == Status::Clock {
            -4_000
        } else {
            1_000
        },
        peers: 0,
        peers_offset_ms: 0,
        sent: clocks,
        received: clocks,
    }
}

/// Each row of the table in the header of `lease.rs`.
#[test]
fn each_row_of_the_table_holds() {
    // Remembered.
    let mut server = Server::new(FILE);
    server.ask(BEGIN_MS);
    assert_eq!(server.holder.grant(), None, "the registry is asked first");
    let used = Effect::Use {
        grant: GRANT,
        anew: true,
    };
    assert_eq!(server.holder.fail(BEGIN_MS, RULES), used);
    assert_eq!(server.holder.grant(), Some(GRANT));
    assert_eq!(server.holder.step(END_MS), Step::Close);
    assert_eq!(server.holder.grant(), None);
    for (boot_ms, file) in [(END_MS, FILE), (BEGIN_MS, Lease::default())] {
        let mut server = Server::new(file);
        server.ask(boot_ms);
        let no_answer = Effect::Close(Refusal::NoAnswer);
        assert_eq!(server.holder.fail(boot_ms, RULES), no_answer);
        // Out.
        server.ask(boot_ms);
        assert_eq!(server.holder.fail(boot_ms, RULES), no_answer);
        let granted = server.ask_and_hear(boot_ms, answer(Status::Granted, boot_ms));
        assert!(matches!(granted, Effect::Use { anew: true, .. }));
    }
    for (status, refusal) in REFUSALS {
        let mut server = Server::new(FILE);
        let effect = server.ask_and_hear(BEGIN_MS, answer(status, BEGIN_MS));
        assert_eq!(effect, Effect::Close(refusal), "{status:?}");
        server.ask(BEGIN_MS);
        let no_answer = Effect::Close(Refusal::NoAnswer);
        assert_eq!(server.holder.fail(BEGIN_MS, RULES), no_answer, "out");
    }
    // Holding.
    let mut server = Server::holding();
    assert_eq!(server.holder.step(END_MS - 1), Step::Ask);
    assert_eq!(server.holder.step(END_MS), Step::Close);
    let mut server = Server::holding();
    server.ask(BEGIN_MS);
    assert_eq!(server.holder.fail(BEGIN_MS, RULES), Effect::Keep);
    for (status, refusal) in REFUSALS {
        let mut server = Server::holding();
        let effect = server.ask_and_hear(BEGIN_MS, answer(status, BEGIN_MS));
        let expected = match status {
            Status::Clock | Status::Lost | Status::Held => Effect::Close(refusal),
            _ => Effect::Keep,
        };
        assert_eq!(effect, expected, "{status:?}");
        let grant = (expected == Effect::Keep).then_some(GRANT);
        assert_eq!(server.holder.grant(), grant, "{status:?}");
    }
}

/// A slow answer proves nothing of the clock.
#[test]
fn a_clock_that_may_be_right_keeps_the_lease() {
    let mut server = Server::holding();
    let late = Clocks {
        boot_ms: BEGIN_MS + 6_000,
        wall_ms: 7_000,
    };
    let slow = Answer {
        received: late,
        sent: Clocks {
            boot_ms: BEGIN_MS,
            wall_ms: -5_000,
        },
        ..answer(Status::Clock, BEGIN_MS)
    };
    assert_eq!(server.ask_and_hear(BEGIN_MS, slow), Effect::Keep);
    assert_eq!(server.holder.grant(), Some(GRANT));
}

/// What does not raise the floor or lower the reservation of the same worker id goes on, asked for
/// in whichever way: nobody else can have had it.
#[test]
fn a_grant_goes_on_or_begins_anew() {
    let same = answer(Status::Granted, BEGIN_MS);
    for (answer, anew) in [
        (same, false),
        (
            Answer {
                worker_id: 8,
                ..same
            },
            true,
        ),
        (
            Answer {
                floor_ms: 101,
                ..same
            },
            true,
        ),
        (
            Answer {
                reserved_until_ms: 199,
                ..same
            },
            true,
        ),
        (
            Answer {
                reserved_until_ms: 201,
                ..same
            },
            false,
        ),
        // A promoted registry has forgotten the floor.
        (
            Answer {
                floor_ms: 0,
                ..same
            },
            false,
        ),
    ] {
        let mut restarted = Server::new(FILE);
        restarted.ask(BEGIN_MS);
        restarted.holder.fail(BEGIN_MS, RULES);
        for (mut server, kind) in [(Server::holding(), Kind::Renew), (restarted, Kind::Claim)] {
            let question = server.ask(BEGIN_MS);
            assert_eq!(question.kind, kind);
            let Effect::Use { grant, anew: is } = server.hear(&question, &answer) else {
                panic!("a grant");
            };
            assert_eq!(is, anew, "{answer:?}");
            let floor_ms = match answer.worker_id {
                7 => answer.floor_ms.max(GRANT.floor_ms),
                _ => answer.floor_ms,
            };
            assert_eq!(grant.floor_ms, floor_ms);
        }
    }
}

/// A renewal names the worker id to the end. A claim does so while nobody else can have got it when
/// the question arrives, at a registry that has forgotten that.
#[test]
fn a_question_shows_what_is_held() {
    let held = Some(Held {
        worker_id: GRANT.worker_id,
        reserved_until_ms: GRANT.reserved_until_ms,
    });
    let mut server = Server::holding();
    let last = server.holder.ask(END_MS - 1, RULES).at(END_MS - 1);
    assert_eq!((last.kind, last.held), (Kind::Renew, held));

    let mut server = Server::new(FILE);
    server.ask(BEGIN_MS);
    server.holder.fail(BEGIN_MS, RULES);
    // Due long before it is sent.
    let draft = server.holder.ask(BEGIN_MS, RULES);
    let hidden_from_ms = END_MS - 2 * SKEW_MS;
    assert_eq!(draft.at(hidden_from_ms - 1).held, held);
    assert_eq!(draft.at(hidden_from_ms - 1).kind, Kind::Claim);
    assert_eq!(draft.at(hidden_from_ms).held, None);
    let ended = server.holder.ask(END_MS, RULES).at(END_MS);
    assert_eq!((ended.kind, ended.held), (Kind::Claim, None));
}

/// A worker id that was taken away is replaced at once, but only once.
#[test]
fn after_a_loss_a_claim_is_due_at_once() {
    for status in [Status::Lost, Status::Retired] {
        let mut server = Server::holding();
        server.ask_and_hear(BEGIN_MS, answer(status, BEGIN_MS));
        assert_eq!(server.asks_after(BEGIN_MS), 0, "{status:?}");
        let question = server.ask(BEGIN_MS);
        assert_eq!(question.kind, Kind::Claim);
        server.hear(&question, &answer(status, BEGIN_MS));
        assert!(server.asks_after(BEGIN_MS) > 0, "{status:?}");
    }
}

/// The registry may have recorded the next token although its answer was lost.
#[test]
fn the_next_token_is_kept_until_an_answer_comes() {
    let mut server = Server::new(Lease::default());
    let first = server.ask(BEGIN_MS);
    assert_eq!((first.token, first.next_token), (0, 11));
    server.holder.fail(BEGIN_MS, RULES);
    assert_eq!(server.ask(BEGIN_MS), first);
    server.hear(&first, &answer(Status::Full, BEGIN_MS));
    assert_eq!(server.ask(BEGIN_MS), first);
    server.hear(&first, &answer(Status::Granted, BEGIN_MS));
    let second = server.ask(BEGIN_MS);
    assert_eq!((second.token, second.next_token), (11, 12));
    // Neither none nor the last one.
    let mut drawn = [0, 12, 13].into_iter();
    let granted = answer(Status::Granted, BEGIN_MS);
    (server.holder).hear(&second, &granted, RULES, || drawn.next().unwrap());
    let third = server.ask(BEGIN_MS);
    assert_eq!((third.token, third.next_token), (12, 13));
}

/// A file of this boot counts as it is; one of another boot, if nothing was running when it was
/// copied, for the token alone.
#[test]
fn a_file_counts_for_what_it_proves() {
    for bits in 0..8 {
        let [original, same_boot, clean] = [1, 2, 4].map(|bit| bits & bit != 0);
        let lease = FILE.of_file(FoundFile {
            original,
            same_boot,
            clean,
        });
        let ended = Grant {
            until_boot_ms: i64::MIN,
            ..GRANT
        };
        let expected = match (original, same_boot, clean) {
            (true, true, _) => FILE,
            (true, false, true) => Lease {
                grant: Some(ended),
                token: TOKEN,
                next_token: 0,
            },
            _ => Lease::default(),
        };
        assert_eq!(lease, expected, "{original}, {same_boot}, {clean}");
    }
}

/// A third of a lease after a grant; after refusals, a second, then twice that and so on, up to a
/// tenth of a lease; with a clock that is off, each second.
#[test]
fn questions_are_due_in_time() {
    let mut server = Server::holding();
    assert_eq!(server.asks_after(BEGIN_MS), LEASE_MS / 3);
    for (status, pauses) in [
        (Status::Held, [1_000, 2_000, 4_000, 6_000, 6_000]),
        (Status::Clock, [1_000; 5]),
    ] {
        let mut server = Server::new(Lease::default());
        for pause in pauses {
            server.ask_and_hear(BEGIN_MS, answer(status, BEGIN_MS));
            assert_eq!(server.asks_after(BEGIN_MS), pause, "{status:?}");
        }
        server.holder.hurry();
        assert_eq!(server.asks_after(BEGIN_MS), 0);
        // A grant ends the series.
        server.ask_and_hear(BEGIN_MS, answer(Status::Granted, BEGIN_MS));
        server.ask_and_hear(BEGIN_MS, answer(status, BEGIN_MS));
        assert_eq!(server.asks_after(BEGIN_MS), 1_000, "{status:?}");
    }
    // While a question is under way, none is due.
    let mut server = Server::new(Lease::default());
    server.ask(BEGIN_MS);
    assert_eq!(server.holder.step(BEGIN_MS), Step::Wait(None));
    // The bounds of the pauses.
    for (lease_ms, granted, refused) in [(150, 100, 100), (86_400_000, 28_800_000, 30_000)] {
        let rules = Rules { lease_ms, ..RULES };
        let mut holder = LeaseHolder::new(Lease::default());
        let question = holder.ask(BEGIN_MS, rules).at(BEGIN_MS);
        for _ in 0..20 {
            holder.hear(&question, &answer(Status::Full, BEGIN_MS), rules, || 1);
        }
        assert_eq!(holder.step(BEGIN_MS), Step::Wait(Some(refused)));
        let granted_lease = Answer {
            lease_ms,
            ..answer(Status::Granted, BEGIN_MS)
        };
        holder.hear(&question, &granted_lease, rules, || 1);
        assert_eq!(holder.step(BEGIN_MS), Step::Wait(Some(granted)));
    }
}

/// Two monotonic clocks that are each slewed by NTP's limit, 1/2000, in opposite directions; to the
/// millisecond.
#[test]
fn a_lease_ends_for_its_holder_before_it_ends_for_the_registry() {
    let mut random = StdRng::seed_from_u64(support::seed());
    for round in 0..10_000 {
        let lease_ms = match round {
            0 => 1,
            1 => 86_400_000,
            _ => random.random_range(1..=86_400_000),
        };
        let mut holder = LeaseHolder::new(Lease::default());
        let question = holder.ask(0, RULES).at(0);
        let granted = Answer {
            lease_ms,
            ..answer(Status::Granted, 0)
        };
        let Effect::Use { grant, .. } = holder.hear(&question, &granted, RULES, || 1) else {
            panic!("a grant");
        };
        // In true time.
        let for_holder_ms = grant.until_boot_ms * 2_000 / 1_999;
        let for_registry_ms = lease_ms * 2_000 / 2_001;
        assert!(for_holder_ms <= for_registry_ms + 1, "{lease_ms} ms");
    }
}
