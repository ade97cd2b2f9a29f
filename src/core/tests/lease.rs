//! The state machine of a server that leases its worker id: which grant it uses, what it asks and
//! when.
//!
//! Would catch: a grant that is given up without need, or used after the registry has refused it; a
//! question that shows too much or too little; one that comes too late to go on.

#![cfg(not(leaf_id_loom))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics fails"
)]

use leaf_id_core::lease::{
    Answer, Clocks, Effect, Grant, Heard, Lease, LeaseHolder, Peers, Question, Status, Step,
};
use leaf_id_core::state::Refusal;

const AHEAD_MS: i64 = 60_000;
const BEGIN: Clocks = Clocks {
    boot_ms: 1_000_000,
    wall_ms: 1_700_000_000_000,
};
/// Of the file.
const TOKEN: i64 = 5;
const NEXT_TOKEN: i64 = 6;

const GRANT: Grant = Grant {
    worker_id: 7,
    floor_ms: 100,
    reserved_until_ms: 200,
};

const FILE: Lease = Lease {
    grant: Some(GRANT),
    token: TOKEN,
    next_token: NEXT_TOKEN,
};

const USED: Effect = Effect::Use {
    grant: GRANT,
    anew: true,
};
const CONTINUED: Effect = Effect::Use {
    grant: GRANT,
    anew: false,
};
const NO_PEERS: Peers = Peers {
    votes: 0,
    offset_ms: None,
    by_role: false,
};
const NO_ANSWER: Effect = Effect::Close(Refusal::NoAnswer);

const REFUSALS: [(Status, Refusal); 5] = [
    (Status::Full, Refusal::NoFreeWorkerId),
    (Status::Moved, Refusal::RegistryMoved),
    (Status::Clock, Refusal::ClockSkew { by_ms: 5_000 }),
    (Status::Epoch, Refusal::OtherEpoch),
    (Status::Layout, Refusal::OtherLayout),
];

/// A server, and the tokens that it draws: 11, 12, ...
struct Server {
    holder: LeaseHolder,
    drawn: i64,
    now: Clocks,
}

impl Server {
    fn new(lease: Lease) -> Self {
        let mut drawn = 10;
        let holder = LeaseHolder::new(lease, || {
            drawn += 1;
            drawn
        });
        Self {
            holder,
            drawn,
            now: BEGIN,
        }
    }

    /// A server that was granted [`GRANT`] now.
    fn holding() -> Self {
        let mut server = Self::new(Lease::default());
        assert_eq!(server.ask_and_hear(granted(GRANT)), USED);
        server
    }

    /// A server that uses the grant of its file.
    fn restarted() -> Self {
        let server = Self::new(FILE);
        assert_eq!(server.holder.begin(), USED);
        server
    }

    fn ask(&mut self) -> Question {
        self.holder.ask()
    }

    fn hear(&mut self, question: &Question, heard: &Heard) -> Effect {
        let drawn = &mut self.drawn;
        self.holder.hear(question, heard, || {
            *drawn += 1;
            *drawn
        })
    }

    fn ask_and_hear(&mut self, heard: Heard) -> Effect {
        let question = self.ask();
        self.hear(&question, &heard)
    }

    fn ask_and_fail(&mut self) -> Effect {
        self.ask();
        self.holder.fail(self.now)
    }

    /// Time until the next question is due.
    fn asks_after(&self) -> i64 {
        match self.holder.step(self.now) {
            Step::Ask => 0,
            Step::Wait(Some(ms)) => ms,
            other => panic!("{other:?}"),
        }
    }
}

/// An answer to a question sent now. The registry's clock is 5 s behind.
fn answer(outcome: Result<Grant, Status>) -> Heard {
    let answer = Answer {
        outcome,
        ahead_ms: AHEAD_MS,
        max_skew_ms: 1_000,
        registry_ms: BEGIN.wall_ms - 5_000,
        peers: NO_PEERS,
    };
    Heard {
        answer,
        sent: BEGIN,
        received: BEGIN,
    }
}

fn granted(grant: Grant) -> Heard {
    answer(Ok(grant))
}

/// Each row of the table in the header of `lease.rs`.
#[test]
fn each_row_of_the_table_holds() {
    // Without a grant.
    let mut server = Server::new(Lease::default());
    assert_eq!(server.holder.begin(), Effect::Keep);
    assert_eq!(server.ask_and_fail(), NO_ANSWER);
    assert_eq!(server.ask_and_hear(granted(GRANT)), USED);
    // Holding.
    assert_eq!(server.holder.lease().grant, Some(GRANT));
    assert_eq!(server.ask_and_fail(), Effect::Keep);
    assert_eq!(server.ask_and_fail(), Effect::Keep);
    // Restarted.
    let mut server = Server::restarted();
    assert_eq!(server.ask().held, Some(GRANT));
    assert_eq!(server.holder.fail(BEGIN), Effect::Keep);
    assert_eq!(server.ask_and_hear(granted(GRANT)), CONTINUED);
    // Without an answer nothing changes, and the next question is the same.
    for (mut server, effect) in [
        (Server::new(Lease::default()), NO_ANSWER),
        (Server::holding(), Effect::Keep),
        (Server::restarted(), Effect::Keep),
    ] {
        let question = server.ask();
        let lease = *server.holder.lease();
        assert_eq!(server.holder.fail(BEGIN), effect);
        assert_eq!(*server.holder.lease(), lease);
        assert_eq!(server.ask(), question);
    }

    for (status, refusal) in REFUSALS {
        let refused = answer(Err(status));
        for mut server in [Server::holding(), Server::restarted()] {
            let lease = *server.holder.lease();
            assert_eq!(server.ask_and_hear(refused), Effect::Keep, "{status:?}");
            assert_eq!(server.holder.lease().grant, Some(GRANT), "{status:?}");
            assert_eq!(*server.holder.lease(), lease, "{status:?}");
        }
        let token_alone = Lease {
            grant: None,
            ..FILE
        };
        for lease in [token_alone, Lease::default()] {
            let mut server = Server::new(lease);
            let closed = Effect::Close(refusal);
            assert_eq!(server.ask_and_hear(refused), closed, "{status:?}");
            assert_eq!(server.holder.lease().grant, None, "{status:?}");
            assert_eq!(server.holder.lease().token, lease.token, "{status:?}");
            assert_eq!(server.ask_and_fail(), NO_ANSWER, "{status:?}");
        }
    }
}

/// The clocks were read at unknown moments of a slow request.
#[test]
fn a_slow_answer_proves_nothing_of_the_clock() {
    let slow = Heard {
        received: Clocks {
            boot_ms: BEGIN.boot_ms + 11_000,
            wall_ms: BEGIN.wall_ms + 1_000,
        },
        sent: Clocks {
            wall_ms: BEGIN.wall_ms - 10_000,
            ..BEGIN
        },
        ..answer(Err(Status::Clock))
    };
    let mut server = Server::new(Lease::default());
    assert_eq!(server.ask_and_hear(slow), Effect::Keep);
    assert_eq!(server.ask_and_fail(), NO_ANSWER);
}

/// By the registry's clock, or that and the peers' median offset.
#[test]
fn the_distance_of_a_clock_is_what_is_certain() {
    // Sent, received, the registry's clock, peers, their offset.
    for (sent, received, registry, peers, offset, by_ms) in [
        (0, 0, -1_000, 0, 0, None),
        (0, 0, -1_001, 0, 0, Some(1_001)),
        (0, 500, -1_001, 0, 0, Some(1_001)),
        (0, 500, 1_500, 0, 0, None),
        (0, 500, 1_501, 0, 0, Some(-1_001)),
        // Set back on the way.
        (500, 0, -1_001, 0, 0, Some(1_001)),
        (500, 0, 1_501, 0, 0, Some(-1_001)),
        (0, 5_000, 3_000, 0, 0, None),
        (0, 0, 0, 1, 9_000, None),
        (0, 0, 0, 2, 9_000, Some(-9_000)),
        (0, 0, 0, 2, -9_000, Some(9_000)),
        (0, 0, 5_000, 2, -5_000, Some(-5_000)),
    ] {
        let at = |wall_ms| Clocks {
            boot_ms: 0,
            wall_ms,
        };
        let mut heard = Heard {
            sent: at(sent),
            received: at(received),
            ..answer(Err(Status::Clock))
        };
        heard.answer.registry_ms = registry;
        heard.answer.peers.votes = peers;
        heard.answer.peers.offset_ms = Some(offset);
        assert_eq!(heard.skew(), by_ms, "{heard:?}");
    }
}

/// What does not raise the floor or lower R of the same worker id goes on: no other server can have
/// had it.
#[test]
fn a_grant_goes_on_or_begins_anew() {
    let with = |worker_id, floor_ms, reserved_until_ms| Grant {
        worker_id,
        floor_ms,
        reserved_until_ms,
    };
    for (grant, anew) in [
        (GRANT, false),
        (with(7, 100, 201), false),
        (with(7, 0, 200), false),
        (with(8, 100, 200), true),
        (with(7, 101, 200), true),
        (with(7, 100, 199), true),
    ] {
        let used = Effect::Use { grant, anew };
        for mut server in [Server::holding(), Server::restarted()] {
            assert_eq!(server.ask_and_hear(granted(grant)), used, "{grant:?}");
            assert_eq!(server.holder.lease().grant, Some(grant));
        }
    }
}

/// The registry may have recorded the next token although its answer was lost.
#[test]
fn the_next_token_is_kept_until_an_answer_comes() {
    let mut server = Server::new(Lease::default());
    let first = server.ask();
    assert_eq!((first.token, first.next_token, first.held), (0, 11, None));
    server.holder.fail(BEGIN);
    assert_eq!(server.ask(), first);
    server.hear(&first, &answer(Err(Status::Full)));
    assert_eq!(server.ask(), first);
    server.hear(&first, &granted(GRANT));
    let second = server.ask();
    assert_eq!((second.token, second.next_token), (11, 12));
    assert_eq!(second.held, Some(GRANT));
    // Neither none nor the last one.
    let mut drawn = [0, 12, 13].into_iter();
    let draw = || drawn.next().unwrap();
    server.holder.hear(&second, &granted(GRANT), draw);
    let third = server.ask();
    assert_eq!((third.token, third.next_token), (12, 13));
    // That of a file, too; if it has none, one is drawn and written before it is sent.
    assert_eq!(Server::new(FILE).ask().next_token, NEXT_TOKEN);
    for (next_token, expected) in [(NEXT_TOKEN, NEXT_TOKEN), (0, 8)] {
        let mut tokens = [TOKEN, 8].into_iter();
        let file = Lease { next_token, ..FILE };
        let holder = LeaseHolder::new(file, || tokens.next().unwrap());
        assert_eq!(holder.lease().next_token, expected);
    }
}

/// A third of what is granted ahead after a grant, by either clock: the monotonic one does not see
/// a pause of the virtual machine, and the other one may be set back.
#[test]
fn a_grant_is_renewed_after_a_third_of_it() {
    let mut server = Server::new(Lease::default());
    assert_eq!(server.asks_after(), 0, "at the start");
    let question = server.ask();
    assert_eq!(server.holder.step(BEGIN), Step::Wait(None), "under way");
    // From when it was sent, since R is from when it arrived.
    let late = Clocks {
        boot_ms: BEGIN.boot_ms + 4_000,
        wall_ms: BEGIN.wall_ms + 4_000,
    };
    let received = Heard {
        received: late,
        ..granted(GRANT)
    };
    server.hear(&question, &received);
    const THIRD_MS: i64 = AHEAD_MS / 3;
    for (boot_ms, wall_ms, after_ms) in [
        (0, 0, THIRD_MS),
        (4_000, 4_000, THIRD_MS - 4_000),
        (THIRD_MS - 1, 0, 1),
        (0, THIRD_MS - 1, 1),
        (THIRD_MS, -86_400_000, 0),
        (0, THIRD_MS, 0),
        (5, 86_400_000, 0),
    ] {
        server.now = Clocks {
            boot_ms: BEGIN.boot_ms + boot_ms,
            wall_ms: BEGIN.wall_ms + wall_ms,
        };
        assert_eq!(server.asks_after(), after_ms, "{boot_ms}, {wall_ms}");
    }
}

/// After refusals, or no answer, a second, then twice that and so on, up to a tenth of what the
/// registry grants ahead, if it has said so; with a clock that is off, each second.
#[test]
fn questions_are_due_in_time() {
    let doubled = [1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000];
    let up_to_a_tenth = [1_000, 2_000, 4_000, 6_000, 6_000, 6_000, 6_000];
    for (status, pauses) in [
        (Some(Status::Full), up_to_a_tenth),
        (Some(Status::Moved), up_to_a_tenth),
        (Some(Status::Clock), [1_000; 7]),
        (None, doubled),
    ] {
        let again = |server: &mut Server| match status {
            Some(status) => server.ask_and_hear(answer(Err(status))),
            None => server.ask_and_fail(),
        };
        let mut server = Server::new(Lease::default());
        for pause in pauses {
            again(&mut server);
            assert_eq!(server.asks_after(), pause, "{status:?}");
        }
        server.holder.hurry();
        assert_eq!(server.asks_after(), 0);
        // A grant ends the series. A holder's clock may be anything.
        server.ask_and_hear(granted(GRANT));
        for pause in up_to_a_tenth {
            again(&mut server);
            assert_eq!(server.asks_after(), pause, "{status:?}");
        }
    }
    // The bounds of the pauses.
    for (ahead_ms, renewal, most) in [(150, 100, 100), (86_400_000, 28_800_000, 30_000)] {
        let mut server = Server::new(Lease::default());
        let mut heard = granted(GRANT);
        heard.answer.ahead_ms = ahead_ms;
        server.ask_and_hear(heard);
        assert_eq!(server.asks_after(), renewal);
        for _ in 0..20 {
            server.ask_and_fail();
        }
        assert_eq!(server.asks_after(), most);
    }
}
