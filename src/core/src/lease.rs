//! The lease of a worker id, holder side: the decisions of a server that has a lease or requests
//! one. No access to the clocks, the file or the registry.
//!
//! A lease is a segment of time, as a segment of a tag is one of numbers: see [`crate::registry`].
//! The generator's reservation never exceeds R, its end. A restarted server bounds the ids of its
//! last run by its reservation (I7), and proves by a token in a file that it is the server known to
//! the registry. A copy cannot: the file counts only on the device and in the boot that it was written on.
//!
//! No lease ends by a clock: a holder whose R is used up has no time left to reserve. The clocks
//! only pace requests.
//!
//! | state | event | next state |
//! | --- | --- | --- |
//! | start | the file has a grant | holding |
//! | any | a grant | holding |
//! | holding | a refusal, or no answer | holding, up to R |
//! | without a grant | a refusal, or no answer | the same |

use serde::{Deserialize, Serialize};

use crate::sometimes;
use crate::state::Refusal;

/// Both clocks of a server, read at the same time, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Clocks {
    /// CLOCK_BOOTTIME: monotonic, and includes time while suspended.
    pub boot_ms: i64,
    /// Wall clock, in Unix milliseconds.
    pub wall_ms: i64,
}

impl Clocks {
    fn plus(self, ms: i64) -> Self {
        Self {
            boot_ms: self.boot_ms.saturating_add(ms),
            wall_ms: self.wall_ms.saturating_add(ms),
        }
    }
}

/// A segment of time of a worker id. Times in Unix milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Grant {
    /// The worker id.
    pub worker_id: u16,
    /// Ids must have later timestamps.
    pub floor_ms: i64,
    /// R: ids must not have later timestamps.
    pub reserved_until_ms: i64,
}

/// The durable state of a lease: written to the file before a grant is used, and before a request
/// is sent. The next run goes on with the grant in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Lease {
    /// Last grant; `None` if there is none that may be used.
    pub grant: Option<Grant>,
    /// Token that the registry recorded with it; 0 if none.
    pub token: i64,
    /// Token to be recorded next. Reused until an answer arrives: the registry may have recorded it
    /// although the answer was lost. 0 if there was no file.
    pub next_token: i64,
}

/// A question to the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Question {
    /// Token that proves the sender's identity; 0 if none.
    pub token: i64,
    /// Token to be recorded for the next request.
    pub next_token: i64,
    /// The segment that the sender has. A registry that may have forgotten it goes by it.
    pub held: Option<Grant>,
}

/// Why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// No worker id is free, or this server's name or role has as many as it may have.
    Full,
    /// The registry was promoted or restored, and may have forgotten grants.
    Moved,
    /// The clocks differ too much.
    Clock,
    /// The registry is for another epoch.
    Epoch,
    /// The registry is for another layout.
    Layout,
}

impl Status {
    /// The state of a generator that has no grant because of it. `by_ms`: how far the clock is off.
    fn refusal(self, by_ms: i64) -> Refusal {
        match self {
            Self::Full => Refusal::NoFreeWorkerId,
            Self::Moved => Refusal::RegistryMoved,
            Self::Clock => Refusal::ClockSkew { by_ms },
            Self::Epoch => Refusal::OtherEpoch,
            Self::Layout => Refusal::OtherLayout,
        }
    }
}

/// Vote of the other members' clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peers {
    /// Number of votes: of members, or of roles if there are several.
    pub votes: u32,
    /// Median offset from the registry's clock, in milliseconds; positive if ahead.
    pub offset_ms: Option<i64>,
    /// One vote per role.
    pub by_role: bool,
}

/// Answer of the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Registry's clock when the request arrived, in Unix milliseconds.
    pub registry_ms: i64,
    /// Vote of the other members' clocks.
    pub peers: Peers,
    /// Max clock skew that the registry tolerates, in milliseconds.
    pub max_skew_ms: i64,
    /// How far ahead of the clock the registry grants, in milliseconds. It is asked again after a
    /// third of that.
    pub ahead_ms: i64,
    /// The grant, or why there is none.
    pub outcome: Result<Grant, Status>,
}

/// An answer, and the receiver's clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heard {
    /// The answer.
    pub answer: Answer,
    /// Clocks before the request was sent.
    pub sent: Clocks,
    /// Clocks after the answer arrived.
    pub received: Clocks,
}

impl Heard {
    /// Lower bound for the distance of this server's clock from the registry's, or from its peers'
    /// (negative if behind), in milliseconds. `None` if it is within what the registry tolerates. A
    /// slow request proves little, since the two clocks were read at unknown moments in it.
    #[must_use]
    pub fn skew(&self) -> Option<i64> {
        let Answer {
            registry_ms,
            peers,
            max_skew_ms,
            ..
        } = self.answer;
        let (sent_ms, received_ms) = (self.sent.wall_ms, self.received.wall_ms);
        let outside = |reference_ms: i64| {
            let from_ms = sent_ms.min(received_ms).saturating_sub(reference_ms);
            let to_ms = sent_ms.max(received_ms).saturating_sub(reference_ms);
            Some(0.clamp(from_ms, to_ms)).filter(|ms: &i64| ms.saturating_abs() > max_skew_ms)
        };
        outside(registry_ms).or_else(|| {
            let offset_ms = peers.offset_ms.filter(|_| peers.votes >= 2)?;
            outside(registry_ms.saturating_add(offset_ms))
        })
    }
}

/// Next action of a lease holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Send a request; see [`LeaseHolder::ask`].
    Ask,
    /// Wait this many milliseconds, or until an answer arrives.
    Wait(Option<i64>),
}

/// Effect of an answer, or of its absence, on the generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The grant may be used once [`LeaseHolder::lease`] is on disk.
    Use {
        /// The grant.
        grant: Grant,
        /// The grant does not continue the previous one: discard the previous reservation.
        anew: bool,
    },
    /// There is no grant.
    Close(Refusal),
    /// No change.
    Keep,
}

/// State of a server that leases its worker id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseHolder {
    lease: Lease,
    asking: bool,
    /// Time of the next request, by whichever clock comes to it first: the monotonic one does not
    /// see a pause of the virtual machine.
    ask_at: Clocks,
    /// See [`Answer::ahead_ms`]; of the last answer in this run.
    ahead_ms: i64,
    /// Consecutive requests that were not granted.
    failures: u32,
}

/// Initial retry interval, in milliseconds.
const RETRY_MS: i64 = 1000;
/// Max retry interval, in milliseconds. A tenth of what is granted ahead applies if shorter, but at
/// least 100 ms.
const MAX_RETRY_MS: i64 = 30_000;
const MIN_RETRY_MS: i64 = 100;
/// At once.
const NOW: Clocks = Clocks {
    boot_ms: i64::MIN,
    wall_ms: i64::MIN,
};

impl LeaseHolder {
    /// A server that has just started, with the state from its file. `draw` supplies the token for the
    /// first request, unless that has one.
    pub fn new(lease: Lease, draw: impl FnMut() -> i64) -> Self {
        let next_token = match lease.next_token {
            0 => other_token(lease.token, draw),
            drawn => drawn,
        };
        Self {
            lease: Lease {
                next_token,
                ..lease
            },
            asking: false,
            ask_at: NOW,
            ahead_ms: i64::MAX,
            failures: 0,
        }
    }

    /// The state to write to the file, with the grant in use.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The effect of the grant of an earlier run, when the server starts.
    #[must_use]
    pub fn begin(&self) -> Effect {
        match self.lease.grant {
            Some(grant) => Effect::Use { grant, anew: true },
            None => Effect::Keep,
        }
    }

    /// The next action.
    #[must_use]
    pub fn step(&self, now: Clocks) -> Step {
        if self.asking {
            return Step::Wait(None);
        }
        let boot_ms = self.ask_at.boot_ms.saturating_sub(now.boot_ms);
        let wall_ms = self.ask_at.wall_ms.saturating_sub(now.wall_ms);
        match boot_ms.min(wall_ms) {
            ..=0 => Step::Ask,
            ms => Step::Wait(Some(ms)),
        }
    }

    /// The request that is due; it counts as sent from now on. [`LeaseHolder::lease`] must be in the
    /// file before.
    pub fn ask(&mut self) -> Question {
        self.asking = true;
        let Lease {
            grant,
            token,
            next_token,
        } = self.lease;
        Question {
            token,
            next_token,
            held: grant,
        }
    }

    /// Handles a request that was not sent, not answered, or whose answer cannot be written to the file.
    pub fn fail(&mut self, now: Clocks) -> Effect {
        self.again(now, MAX_RETRY_MS);
        match self.lease.grant {
            Some(_) => Effect::Keep,
            None => Effect::Close(Refusal::NoAnswer),
        }
    }

    /// Handles an answer. `draw` supplies the token for the next request.
    pub fn hear(
        &mut self,
        question: &Question,
        heard: &Heard,
        draw: impl FnMut() -> i64,
    ) -> Effect {
        self.ahead_ms = heard.answer.ahead_ms;
        match heard.answer.outcome {
            Ok(grant) => self.granted(question, grant, heard.sent, draw),
            Err(status) => self.refused(status, heard),
        }
    }

    fn refused(&mut self, status: Status, heard: &Heard) -> Effect {
        if self.lease.grant.is_some() {
            sometimes!("lease: kept though refused");
            self.again(heard.received, MAX_RETRY_MS);
            return Effect::Keep;
        }
        let longest_ms = match status {
            // A clock is set right at any time.
            Status::Clock => RETRY_MS,
            _ => MAX_RETRY_MS,
        };
        self.again(heard.received, longest_ms);
        let by_ms = heard.skew();
        if status == Status::Clock && by_ms.is_none() {
            // The request was slow, and the clock may be right.
            return Effect::Keep;
        }
        sometimes!("lease: refused for the clock", status == Status::Clock);
        Effect::Close(status.refusal(by_ms.unwrap_or(0)))
    }

    /// After a request that was not granted.
    fn again(&mut self, now: Clocks, longest_ms: i64) {
        self.asking = false;
        let longest = (self.ahead_ms / 10).clamp(MIN_RETRY_MS, longest_ms);
        let pause = RETRY_MS
            .saturating_mul(1 << self.failures.min(10))
            .min(longest);
        self.failures = self.failures.saturating_add(1);
        self.ask_at = now.plus(pause);
    }

    fn granted(
        &mut self,
        question: &Question,
        grant: Grant,
        sent: Clocks,
        draw: impl FnMut() -> i64,
    ) -> Effect {
        let before = self.lease.grant;
        sometimes!(
            "lease: another worker id than before",
            before.is_some_and(|before| before.worker_id != grant.worker_id)
        );
        self.lease = Lease {
            grant: Some(grant),
            token: question.next_token,
            next_token: other_token(question.next_token, draw),
        };
        self.asking = false;
        self.failures = 0;
        self.ask_at = sent.plus((self.ahead_ms / 3).max(MIN_RETRY_MS));
        let goes_on = before.is_some_and(|before| {
            before.worker_id == grant.worker_id
                && before.floor_ms >= grant.floor_ms
                && before.reserved_until_ms <= grant.reserved_until_ms
        });
        Effect::Use {
            grant,
            anew: !goes_on,
        }
    }

    /// Makes a request due at once.
    pub fn hurry(&mut self) {
        self.ask_at = NOW;
    }
}

/// Draws a token that is neither 0 nor `than`.
fn other_token(than: i64, mut draw: impl FnMut() -> i64) -> i64 {
    loop {
        let token = draw();
        if token != 0 && token != than {
            return token;
        }
    }
}
