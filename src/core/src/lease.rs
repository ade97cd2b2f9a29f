//! The lease of a worker id, holder side: the decisions of a server that has a lease or requests
//! one. No access to the clocks, the file or the registry.
//!
//! Uniqueness argument. Let R be the time that the registry has recorded as reserved for a worker
//! id; the registry never lowers it.
//! 1. A holder issues ids with timestamps up to an R that was recorded while it was the holder and
//!    that was reported to it ([`Grant::reserved_until_ms`]). The generator's reservation never
//!    exceeds it.
//! 2. A change of holder returns a floor of at least R to the new holder; from then on the old one
//!    cannot raise R. A server that repeats its request after a lost answer gets the same floor
//!    again.
//! 3. A restarted server bounds the ids of its last run by its reservation (I7), and proves by a
//!    token in a file that it is the server known to the registry. A copy cannot prove it: see
//!    [`Lease::of_file`].
//!
//! So the ids of two holders are disjoint, whatever their clocks do and whenever they stop or
//! resume. The lease and its end only decide when the registry may reassign the worker id. The
//! lease runs on the monotonic clock, starting before the request was sent.
//!
//! | state | event | next state |
//! | --- | --- | --- |
//! | Remembered: a grant of an earlier run | no answer, and the grant has not ended | Holding |
//! | any | a grant | Holding |
//! | Holding | the grant ends; the clock is off; the worker id is lost or held by another server | Out |
//! | | no answer; any other refusal | Holding, until the grant ends |
//! | Remembered, Out | a refusal | Out |

use serde::{Deserialize, Serialize};

use crate::sometimes;
use crate::state::Refusal;

/// Both clocks of a server, read at the same time, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clocks {
    /// CLOCK_BOOTTIME: monotonic, and includes time while suspended.
    pub boot_ms: i64,
    /// Wall clock, in Unix milliseconds.
    pub wall_ms: i64,
}

/// Settings, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// Requested duration of a lease.
    pub lease_ms: i64,
    /// Max difference between clocks.
    pub max_skew_ms: i64,
}

/// A grant by the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Grant {
    /// The worker id.
    pub worker_id: u16,
    /// Ids must have later timestamps, in Unix milliseconds.
    pub floor_ms: i64,
    /// Ids must not have later timestamps, in Unix milliseconds.
    pub reserved_until_ms: i64,
    /// Max lead of ids over the clock, in milliseconds.
    pub max_lead_ms: i64,
    /// End of the lease, by the monotonic clock.
    pub until_boot_ms: i64,
}

/// The durable state of a lease: written to the file before a grant is used, and before a request
/// is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct Lease {
    /// Last grant.
    pub grant: Option<Grant>,
    /// Token that the registry recorded with it; 0 if none.
    pub token: i64,
    /// Token to be recorded next. Reused until an answer arrives: the registry may have recorded it
    /// although the answer was lost. 0 if none was drawn.
    pub next_token: i64,
}

/// Provenance of a lease file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundFile {
    /// The file as written by this server, not a copy.
    pub original: bool,
    /// The machine has not been rebooted since, and the disk is the same.
    pub same_boot: bool,
    /// Written at a clean shutdown: nothing was issued afterwards.
    pub clean: bool,
}

impl Lease {
    /// The part of a lease file that is valid at startup.
    ///
    /// A disk may have been copied while its server ran, and that server may still be running. So
    /// after a reboot the token is used only if it was written at a clean shutdown: nobody was
    /// running then, and of two copies the first to present the token invalidates the other.
    /// `next_token` is redrawn, since the other copy has it, too. Not detected: an original that is
    /// restarted without a reboot and uses its file because only its own connection to the registry
    /// is down, while its copy presents the token. Never presenting the token would cover that, but
    /// then every reboot would have to wait for the end of the lease.
    #[must_use]
    pub fn of_file(self, found: FoundFile) -> Self {
        if !found.original || !(found.same_boot || found.clean) {
            return Self::default();
        }
        if found.same_boot {
            return self;
        }
        let ended = |grant| Grant {
            until_boot_ms: i64::MIN,
            ..grant
        };
        Self {
            grant: self.grant.map(ended),
            token: self.token,
            next_token: 0,
        }
    }
}

/// Kind of request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Request a worker id: the one this server had, or another one.
    Claim,
    /// Extend the lease of the worker id that this server holds.
    Renew,
}

/// A worker id that a server holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Held {
    /// The worker id.
    pub worker_id: u16,
    /// End of its reservation, in Unix milliseconds.
    pub reserved_until_ms: i64,
}

/// A question to the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Question {
    /// Kind of request.
    pub kind: Kind,
    /// Token that proves the sender's identity; 0 if none.
    pub token: i64,
    /// Token to be recorded for the next request.
    pub next_token: i64,
    /// Worker id held and the end of its reservation. Sent only if the lease cannot have ended when
    /// the request arrives: then nobody else can have the worker id, even if the registry has
    /// forgotten it.
    pub held: Option<Held>,
    /// Requested duration of the lease, in milliseconds.
    pub lease_ms: i64,
}

/// A request that is due but not yet sent. Its contents depend on the time of sending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draft {
    question: Question,
    /// Time from which a claim omits `held`, by the monotonic clock.
    hidden_from_boot_ms: i64,
}

impl Draft {
    /// The question to send at `boot_ms`, read together with the request's `now_ms`. Connecting
    /// takes time, and the lease may have ended since the request became due.
    #[must_use]
    pub fn at(&self, boot_ms: i64) -> Question {
        let shows = self.question.kind == Kind::Renew || boot_ms < self.hidden_from_boot_ms;
        Question {
            held: self.question.held.filter(|_| shows),
            ..self.question
        }
    }
}

/// Status of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The worker id is leased to this server.
    Granted,
    /// The lease of this node belongs to another server, or to a copy of this one.
    Held,
    /// All worker ids are leased or retired.
    Full,
    /// The registry was promoted or restored, and assigns no worker ids during its grace.
    Grace,
    /// The clocks differ too much.
    Clock,
    /// The worker id is retired.
    Retired,
    /// The worker id is no longer leased to this server.
    Lost,
    /// The registry is for another epoch.
    Epoch,
    /// The registry is for another layout.
    Layout,
}

/// Answer of the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Status.
    pub status: Status,
    /// If granted: the worker id.
    pub worker_id: u16,
    /// If granted: ids must have later timestamps, in Unix milliseconds.
    pub floor_ms: i64,
    /// If granted: ids must not have later timestamps, in Unix milliseconds.
    pub reserved_until_ms: i64,
    /// If granted: duration of the lease in milliseconds, at most as requested.
    pub lease_ms: i64,
    /// If granted: max lead of ids over the clock, in milliseconds.
    pub max_lead_ms: i64,
    /// Clock skew that the registry tolerates for this server, in milliseconds.
    pub max_skew_ms: i64,
    /// Registry's clock when it read the request, in Unix milliseconds.
    pub registry_ms: i64,
    /// Number of other members that the clock was compared with.
    pub peers: u32,
    /// Median offset of their clocks from the registry's, in milliseconds.
    pub peers_offset_ms: i64,
    /// Clocks before the request was sent.
    pub sent: Clocks,
    /// Clocks after the answer arrived.
    pub received: Clocks,
}

impl Answer {
    /// Lower bound for the distance of this server's clock from both the registry's and its peers'
    /// (negative if behind), in milliseconds. `None` if it is within what this server and the
    /// registry tolerate. A slow request proves little, since the two clocks were read at unknown
    /// moments in it.
    #[must_use]
    pub fn skew(&self, max_skew_ms: i64) -> Option<i64> {
        let max_skew_ms = max_skew_ms.min(self.max_skew_ms);
        let outside = |reference_ms: i64| {
            let ahead = self.sent.wall_ms.saturating_sub(reference_ms);
            let behind = self.received.wall_ms.saturating_sub(reference_ms);
            if ahead > max_skew_ms && behind > max_skew_ms {
                Some(ahead.min(behind))
            } else if behind < -max_skew_ms && ahead < -max_skew_ms {
                Some(ahead.max(behind))
            } else {
                None
            }
        };
        outside(self.registry_ms).or_else(|| {
            let peers = (self.peers >= 2).then_some(self.peers_offset_ms)?;
            outside(self.registry_ms.saturating_add(peers))
        })
    }
}

/// Next action of a lease holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Stop issuing; the lease has ended.
    Close,
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
        /// The grant does not continue the previous one: treat it as another holder's, and discard
        /// the previous reservation.
        anew: bool,
    },
    /// Stop issuing.
    Close(Refusal),
    /// No change.
    Keep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Standing {
    /// The grant is from an earlier run and not in use yet.
    Remembered,
    /// The grant is in use.
    Holding,
    /// No grant is in use.
    Out,
}

/// State of a server that leases its worker id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseHolder {
    lease: Lease,
    standing: Standing,
    /// The registry has confirmed the grant in this run and not revoked it.
    renewable: bool,
    asking: bool,
    /// Time of the next request, by the monotonic clock.
    ask_at_ms: i64,
    /// Consecutive requests that were not granted.
    failures: u32,
}

/// Initial retry interval, in milliseconds.
const RETRY_MS: i64 = 1000;
/// Max retry interval. A tenth of a lease applies if shorter, but at least [`MIN_RETRY_MS`].
const MAX_RETRY_MS: i64 = 30_000;
const MIN_RETRY_MS: i64 = 100;

/// End of a lease for its holder, given the time of the request. A thousandth earlier than for the
/// registry, since the clocks of two machines run at slightly different rates.
fn end_of_lease(sent_boot_ms: i64, lease_ms: i64) -> i64 {
    sent_boot_ms.saturating_add(lease_ms - lease_ms / 1000)
}

impl LeaseHolder {
    /// A server that has just started, with the state from its file.
    #[must_use]
    pub fn new(lease: Lease) -> Self {
        Self {
            lease,
            standing: Standing::Remembered,
            renewable: false,
            asking: false,
            ask_at_ms: i64::MIN,
            failures: 0,
        }
    }

    /// The state to write to the file.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The grant in use.
    #[must_use]
    pub fn grant(&self) -> Option<Grant> {
        self.lease
            .grant
            .filter(|_| self.standing == Standing::Holding)
    }

    fn live(&self, boot_ms: i64) -> Option<Grant> {
        self.lease
            .grant
            .filter(|grant| boot_ms < grant.until_boot_ms)
    }

    /// The next action.
    pub fn step(&mut self, boot_ms: i64) -> Step {
        let until = self.grant().map(|grant| grant.until_boot_ms);
        if until.is_some_and(|until| boot_ms >= until) {
            self.standing = Standing::Out;
            return Step::Close;
        }
        if !self.asking && boot_ms >= self.ask_at_ms {
            return Step::Ask;
        }
        let ask_at = (!self.asking).then_some(self.ask_at_ms);
        let next = until.into_iter().chain(ask_at).min();
        Step::Wait(next.map(|at| at.saturating_sub(boot_ms)))
    }

    /// Draws the token of the next request. If true, [`LeaseHolder::lease`] must be written to the
    /// file before [`LeaseHolder::ask`].
    pub fn prepare(&mut self, draw: impl FnMut() -> i64) -> bool {
        let drawn = self.lease.next_token == 0;
        if drawn {
            self.lease.next_token = other_token(self.lease.token, draw);
        }
        drawn
    }

    /// The request that is due; it counts as sent from now on.
    pub fn ask(&mut self, boot_ms: i64, rules: Rules) -> Draft {
        self.asking = true;
        let live = self.live(boot_ms);
        let kind = if self.renewable && live.is_some() {
            Kind::Renew
        } else {
            Kind::Claim
        };
        // The request may be in transit for long, and arrive at a promoted registry that has
        // forgotten a later holder. Send `held` only if it is still valid when such a registry
        // reads it: that rejects requests older than the max skew, and its clock may differ from
        // its predecessor's by as much again.
        let late_ms = rules.max_skew_ms.saturating_mul(2);
        let until_boot_ms = live.map_or(boot_ms, |grant| grant.until_boot_ms);
        Draft {
            question: Question {
                kind,
                token: self.lease.token,
                next_token: self.lease.next_token,
                held: live.map(|grant| Held {
                    worker_id: grant.worker_id,
                    reserved_until_ms: grant.reserved_until_ms,
                }),
                lease_ms: rules.lease_ms,
            },
            hidden_from_boot_ms: until_boot_ms.saturating_sub(late_ms),
        }
    }

    /// Handles a request that will not be answered. `boot_ms` is the current time.
    pub fn fail(&mut self, boot_ms: i64, rules: Rules) -> Effect {
        self.asking = false;
        self.again(boot_ms, rules);
        match self.standing {
            Standing::Holding => Effect::Keep,
            // The registry was asked first; without an answer the earlier grant is valid.
            Standing::Remembered => match self.live(boot_ms) {
                Some(grant) => {
                    self.standing = Standing::Holding;
                    Effect::Use { grant, anew: true }
                }
                None => Effect::Close(Refusal::NoAnswer),
            },
            Standing::Out => Effect::Close(Refusal::NoAnswer),
        }
    }

    /// Handles an answer. `draw` supplies the token for the next request.
    pub fn hear(
        &mut self,
        question: &Question,
        answer: &Answer,
        rules: Rules,
        draw: impl FnMut() -> i64,
    ) -> Effect {
        self.asking = false;
        let now = answer.received.boot_ms;
        match answer.status {
            Status::Granted => self.granted(question, answer, draw),
            Status::Clock => {
                self.again(now, rules);
                self.ask_at_ms = self.ask_at_ms.min(now.saturating_add(RETRY_MS));
                match answer.skew(rules.max_skew_ms) {
                    Some(by_ms) => {
                        sometimes!("lease: refused for the clock");
                        self.out(Refusal::ClockSkew { by_ms })
                    }
                    // The request was slow, and the clock may be right.
                    None => Effect::Keep,
                }
            }
            Status::Retired | Status::Lost => {
                self.again(now, rules);
                // The first time, request a replacement at once.
                if core::mem::take(&mut self.renewable) {
                    self.ask_at_ms = now;
                }
                if answer.status == Status::Retired && self.standing == Standing::Holding {
                    sometimes!("lease: kept though retired");
                    // A retired worker id is not reassigned, so the rest of the lease remains
                    // valid.
                    return Effect::Keep;
                }
                sometimes!("lease: lost");
                self.out(Refusal::WorkerIdLost)
            }
            Status::Held => self.refused(now, rules, Refusal::HeldByOther),
            Status::Full => self.kept(now, rules, Refusal::NoFreeWorkerId),
            Status::Grace => self.kept(now, rules, Refusal::RegistryGrace),
            Status::Epoch => self.kept(now, rules, Refusal::OtherEpoch),
            Status::Layout => self.kept(now, rules, Refusal::OtherLayout),
        }
    }

    fn refused(&mut self, boot_ms: i64, rules: Rules, refusal: Refusal) -> Effect {
        self.again(boot_ms, rules);
        self.out(refusal)
    }

    /// Handles a refusal that leaves a lease in use valid until its end.
    fn kept(&mut self, boot_ms: i64, rules: Rules, refusal: Refusal) -> Effect {
        if self.standing == Standing::Holding {
            self.again(boot_ms, rules);
            return Effect::Keep;
        }
        self.refused(boot_ms, rules, refusal)
    }

    fn out(&mut self, refusal: Refusal) -> Effect {
        self.standing = Standing::Out;
        Effect::Close(refusal)
    }

    fn again(&mut self, boot_ms: i64, rules: Rules) {
        let longest = (rules.lease_ms / 10).clamp(MIN_RETRY_MS, MAX_RETRY_MS);
        let pause = RETRY_MS
            .saturating_mul(1 << self.failures.min(10))
            .min(longest);
        self.failures = self.failures.saturating_add(1);
        self.ask_at_ms = boot_ms.saturating_add(pause);
    }

    fn granted(
        &mut self,
        question: &Question,
        answer: &Answer,
        draw: impl FnMut() -> i64,
    ) -> Effect {
        let before = self.grant();
        let lease_ms = answer.lease_ms;
        sometimes!(
            "lease: another worker id than before",
            before.is_some_and(|before| before.worker_id != answer.worker_id)
        );
        // A promoted registry may have forgotten the floor.
        let remembered = self.lease.grant.filter(|g| g.worker_id == answer.worker_id);
        let floor_ms = remembered.map_or(answer.floor_ms, |g| g.floor_ms.max(answer.floor_ms));
        let grant = Grant {
            worker_id: answer.worker_id,
            floor_ms,
            reserved_until_ms: answer.reserved_until_ms,
            max_lead_ms: answer.max_lead_ms,
            until_boot_ms: end_of_lease(answer.sent.boot_ms, lease_ms),
        };
        self.lease = Lease {
            grant: Some(grant),
            token: question.next_token,
            next_token: other_token(question.next_token, draw),
        };
        self.renewable = true;
        self.failures = 0;
        self.standing = Standing::Holding;
        let third = (lease_ms / 3).max(MIN_RETRY_MS);
        self.ask_at_ms = answer.sent.boot_ms.saturating_add(third);
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
        self.ask_at_ms = i64::MIN;
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
