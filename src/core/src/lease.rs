//! The lease of a worker id: what a server decides that has one, or asks for one. Without
//! the clocks, the file, and the registry that gives it.
//!
//! Why no id comes twice. Let R be what the registry has recorded as reserved of a worker
//! id; it never goes down there.
//! 1. A holder issues ids with times up to an R that was recorded while it was the holder,
//!    and that it was told: [`Grant::reserved_until_ms`]. The reservation in the generator
//!    is never above it.
//! 2. A change of the holder tells the new one a floor of at least R, and from then on the
//!    old one cannot raise R any more. Whoever asks again because an answer was lost is told
//!    that floor again.
//! 3. A server that restarts knows the ids of its last run by its reservation (I7), and
//!    shows by a token in a file that it is the one that the registry knows. A copy does not
//!    show it: see [`Lease::of_file`].
//!
//! So the ids of two holders are apart, whatever their clocks do, and whenever they stop and
//! go on: the lease and its end decide only when the registry may give the id away. It is
//! counted on the monotonic clock, from before the request left.
//!
//! | state | leaves by | to |
//! | --- | --- | --- |
//! | Remembered: a grant of an earlier run | no answer, while it has not ended | Holding |
//! | any | a grant | Holding |
//! | Holding | the end of the grant; a clock that is off; a worker id that is lost or held | Out |
//! | | no answer; a refusal of anything else | Holding, until the grant ends |
//! | Remembered, Out | a refusal | Out |

use serde::{Deserialize, Serialize};

use crate::state::Refusal;

/// Both clocks of a server, read together, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clocks {
    /// CLOCK_BOOTTIME: monotonic, and it goes on while the machine is suspended.
    pub boot_ms: i64,
    /// The time of day: Unix milliseconds.
    pub wall_ms: i64,
}

/// What the settings say, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// How long a lease is asked for.
    pub lease_ms: i64,
    /// How far the clock may be off.
    pub max_skew_ms: i64,
}

/// What the registry has granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grant {
    /// The worker id.
    pub worker_id: u16,
    /// Ids carry later times, in Unix milliseconds.
    pub floor_ms: i64,
    /// Ids carry no later times, in Unix milliseconds.
    pub reserved_until_ms: i64,
    /// Ids lead the clock by no more, in milliseconds.
    pub max_lead_ms: i64,
    /// When it ends, by the monotonic clock.
    pub until_boot_ms: i64,
}

/// What a server has to remember of its lease: it is written down before anything of it is
/// used, and before anything is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lease {
    /// What it was granted last.
    pub grant: Option<Grant>,
    /// What the registry recorded then; 0 for nothing.
    pub token: i64,
    /// What it is to record next. The same one is shown until there is an answer: the
    /// registry may have recorded it, and the answer be lost. 0 if none was drawn.
    pub next_token: i64,
}

/// How a file with a lease was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundFile {
    /// It is the file that was written, and no copy of it.
    pub original: bool,
    /// The machine has not been started anew since, and the disk is the same one.
    pub same_boot: bool,
    /// Nothing was issued after it was written: the server was stopped in good order.
    pub clean: bool,
}

impl Lease {
    /// What of a lease in a file counts at a start.
    ///
    /// A disk may have been copied while its server ran, with all that is on it, and that
    /// server may run still. So after another start of the machine the token is shown only
    /// if the server had been stopped when it was written: then nobody was running, and of
    /// two copies the first one to show it makes the other one unknown. What it would have
    /// shown next is drawn anew: the other copy has it too. What this does not see is an
    /// original that is started again without such a start, and uses its file because the
    /// registry is away for it alone, while its copy shows the token. Not to show it would see
    /// that too; but then each start of the machine would wait for the end of the lease.
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

/// What is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A worker id: the one that this server had, or another one.
    Claim,
    /// More time for the worker id that this server holds.
    Renew,
}

/// A worker id that a server holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// The worker id.
    pub worker_id: u16,
    /// What is reserved of it, in Unix milliseconds.
    pub reserved_until_ms: i64,
}

/// A question to the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// What is asked.
    pub kind: Kind,
    /// What shows who asks; 0 for nothing.
    pub token: i64,
    /// What is to be shown the next time.
    pub next_token: i64,
    /// What is held: only while the lease will not have ended when this arrives, so that nobody else
    /// can have it, even if the registry has forgotten.
    pub held: Option<Held>,
    /// How long a lease is asked for, in milliseconds.
    pub lease_ms: i64,
}

/// A question that is due, and sent once there is a connection: what it shows depends on when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Draft {
    question: Question,
    /// From when on a claim does not show what is held, on this machine's monotonic clock.
    hidden_from_boot_ms: i64,
}

impl Draft {
    /// The question as it is to be sent at `boot_ms`, which is the moment that its `now_ms` says: a
    /// connection takes its time, and the lease may have ended since this was due.
    #[must_use]
    pub fn at(&self, boot_ms: i64) -> Question {
        let shows = self.question.kind == Kind::Renew || boot_ms < self.hidden_from_boot_ms;
        Question {
            held: self.question.held.filter(|_| shows),
            ..self.question
        }
    }
}

/// How the registry has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// The worker id is this server's, for one lease.
    Granted,
    /// Another server, or a copy of this one, has the lease of this node.
    Held,
    /// All worker ids are leased or retired.
    Full,
    /// The registry was promoted or restored, and gives nothing away for a while.
    Grace,
    /// The clocks differ.
    Clock,
    /// The worker id is not to be used any more.
    Retired,
    /// The worker id is not this server's any more.
    Lost,
    /// The registry's servers have another epoch.
    Epoch,
    /// This node's name belongs to another role.
    Role,
    /// The ids of the registry's servers have another layout.
    Layout,
}

/// An answer of the registry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// What it says.
    pub status: Status,
    /// Where granted: the worker id ...
    pub worker_id: u16,
    /// ... the times above which ids of it are free ...
    pub floor_ms: i64,
    /// ... the last one, as recorded ...
    pub reserved_until_ms: i64,
    /// ... how long the lease is: what was asked for, or less ...
    pub lease_ms: i64,
    /// ... and by how much ids may lead the clock, in milliseconds.
    pub max_lead_ms: i64,
    /// How far the registry lets this server's clock be off, in milliseconds.
    pub max_skew_ms: i64,
    /// The registry's clock when it read the question, in Unix milliseconds.
    pub registry_ms: i64,
    /// How many others the clock was compared with.
    pub peers: u32,
    /// The median of their clocks' distance from the registry's, in milliseconds.
    pub peers_offset_ms: i64,
    /// Before the question left.
    pub sent: Clocks,
    /// After the answer came.
    pub received: Clocks,
}

impl Answer {
    /// How far this server's clock is at least ahead of what both the registry and its peers
    /// say, or behind it (negative), in milliseconds, if that is more than is allowed here and
    /// by the registry. A question that took long says little: the clock was read at one
    /// moment of it, and the registry's at another.
    #[must_use]
    pub fn skew(&self, max_skew_ms: i64) -> Option<Skew> {
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
        if let Some(by_ms) = outside(self.registry_ms) {
            return Some(Skew {
                by_ms,
                from_peers: false,
            });
        }
        let peers = (self.peers >= 2).then_some(self.peers_offset_ms)?;
        outside(self.registry_ms.saturating_add(peers)).map(|by_ms| Skew {
            by_ms,
            from_peers: true,
        })
    }
}

/// By how much a clock is off, see [`Answer::skew`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Skew {
    /// Ahead; negative is behind.
    pub by_ms: i64,
    /// From the peers' median; otherwise from the registry.
    pub from_peers: bool,
}

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Stop issuing: the lease has ended.
    Close,
    /// Ask the registry: see [`LeaseHolder::ask`].
    Ask,
    /// Nothing for so many milliseconds, or until there is an answer.
    Wait(Option<i64>),
}

/// What follows from an answer, or from none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// The grant may be used: once [`LeaseHolder::lease`] is written down, and if that was said
    /// `anew`, as that of another holder: nothing of what was reserved before counts.
    Use {
        /// What may be used.
        grant: Grant,
        /// It does not go on from what was used before.
        anew: bool,
    },
    /// Nothing is to be issued.
    Close(Refusal),
    /// All stays as it is.
    Keep,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// The grant is of an earlier run, and not used yet.
    Remembered,
    /// The grant is used.
    Holding,
    /// Nothing is used.
    Out,
}

/// A server that leases its worker id.
#[derive(Debug)]
pub struct LeaseHolder {
    lease: Lease,
    standing: Standing,
    /// The registry has confirmed the grant in this run, and not taken it back.
    renewable: bool,
    asking: bool,
    /// When to ask, by the monotonic clock.
    ask_at_ms: i64,
    /// Questions in a row that were not granted.
    failures: u32,
}

/// The first pause after a question that was not granted, in milliseconds.
const RETRY_MS: i64 = 1000;
/// The longest one; or a tenth of a lease, but no less than [`MIN_RETRY_MS`].
const MAX_RETRY_MS: i64 = 30_000;
const MIN_RETRY_MS: i64 = 100;

/// When a lease ends for its holder that was asked for at that time. Before it ends for the
/// registry: the clocks of two machines run at rates that differ a little.
fn end_of_lease(sent_boot_ms: i64, lease_ms: i64) -> i64 {
    sent_boot_ms.saturating_add(lease_ms - lease_ms / 1000 - 50)
}

impl LeaseHolder {
    /// Of a server that has just started, with what it remembers.
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

    /// What is to be written down.
    #[must_use]
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// What is used.
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

    /// What is due.
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

    /// Draws what the next question needs: then [`LeaseHolder::lease`] is to be written down, if
    /// this says so, before [`LeaseHolder::ask`].
    pub fn prepare(&mut self, draw: impl FnMut() -> i64) -> bool {
        let drawn = self.lease.next_token == 0;
        if drawn {
            self.lease.next_token = other_token(self.lease.token, draw);
        }
        drawn
    }

    /// The question that is due. It is under way from now on.
    pub fn ask(&mut self, boot_ms: i64, rules: Rules) -> Draft {
        self.asking = true;
        let live = self.live(boot_ms);
        let kind = if self.renewable && live.is_some() {
            Kind::Renew
        } else {
            Kind::Claim
        };
        // A question may be under way for long, to a registry that was promoted meanwhile and
        // does not know who has had the worker id since. What is shown is still held when that
        // one reads it: it refuses a question that is older than clocks may differ, and its
        // clock may differ from the last registry's by as much again.
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

    /// There will be no answer. `boot_ms` is now.
    pub fn fail(&mut self, boot_ms: i64, rules: Rules) -> Effect {
        self.asking = false;
        self.again(boot_ms, rules);
        match self.standing {
            Standing::Holding => Effect::Keep,
            // The registry was asked first; what it granted holds.
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

    /// The answer to a question. What `draw` gives is the token after this one's.
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
            Status::Granted => self.granted(question, answer, rules, draw),
            Status::Clock => {
                self.again(now, rules);
                self.ask_at_ms = self.ask_at_ms.min(now.saturating_add(RETRY_MS));
                match answer.skew(rules.max_skew_ms) {
                    Some(skew) => self.out(Refusal::ClockSkew { by_ms: skew.by_ms }),
                    // The question took long, and the clock may be right.
                    None => Effect::Keep,
                }
            }
            Status::Retired | Status::Lost => {
                self.again(now, rules);
                // What the registry gives instead is asked for at once, the first time.
                if core::mem::take(&mut self.renewable) {
                    self.ask_at_ms = now;
                }
                if answer.status == Status::Retired && self.standing == Standing::Holding {
                    // Nobody else gets it, and the rest of the lease is still good.
                    return Effect::Keep;
                }
                self.out(Refusal::WorkerIdLost)
            }
            Status::Held => self.refused(now, rules, Refusal::HeldByOther),
            Status::Full => self.kept(now, rules, Refusal::NoFreeWorkerId),
            Status::Grace => self.kept(now, rules, Refusal::RegistryGrace),
            Status::Epoch => self.kept(now, rules, Refusal::OtherEpoch),
            Status::Role => self.kept(now, rules, Refusal::OtherRole),
            Status::Layout => self.kept(now, rules, Refusal::OtherLayout),
        }
    }

    fn refused(&mut self, boot_ms: i64, rules: Rules, refusal: Refusal) -> Effect {
        self.again(boot_ms, rules);
        self.out(refusal)
    }

    /// Refused, and yet the lease is this server's for as long as it has been told.
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
        rules: Rules,
        draw: impl FnMut() -> i64,
    ) -> Effect {
        let before = self.grant();
        let lease_ms = question.lease_ms.min(answer.lease_ms);
        // A registry that was promoted may not know it any more.
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
        let third = (lease_ms.min(rules.lease_ms) / 3).max(MIN_RETRY_MS);
        self.ask_at_ms = answer.sent.boot_ms.saturating_add(third);
        let goes_on = question.kind == Kind::Renew
            && before.is_some_and(|before| {
                before.worker_id == grant.worker_id
                    && before.floor_ms >= grant.floor_ms
                    && before.reserved_until_ms <= grant.reserved_until_ms
            });
        Effect::Use {
            grant,
            anew: !goes_on,
        }
    }

    /// Asks at once, whatever is planned: the settings have changed.
    pub fn hurry(&mut self) {
        self.ask_at_ms = i64::MIN;
        self.failures = 0;
    }
}

/// A token that is neither none nor that one.
fn other_token(than: i64, mut draw: impl FnMut() -> i64) -> i64 {
    loop {
        let token = draw();
        if token != 0 && token != than {
            return token;
        }
    }
}
