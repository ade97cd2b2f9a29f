//! A server that leases its worker id: its files, its launcher and its word.

use leaf_id_core::lease::{Clocks, Effect, Grant, Heard, Lease, LeaseHolder, Question};
use leaf_id_core::registry::Reply;
use leaf_id_core::reservation::{self, Floor, Opening, Reason, Terms, late_renewal};

use crate::search::Rules;
use crate::world::Rule;

pub const TICK_MS: i64 = 1_000;
/// Max lead.
pub const LEAD_MS: i64 = TICK_MS + 500;
const TERMS: Terms = Terms {
    write_ms: 0,
    reservation_ms: TICK_MS,
    max_lead_ms: LEAD_MS,
};

/// A question under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sent {
    pub question: Question,
    pub clocks: Clocks,
    /// The server has not asked again.
    pub is_awaited: bool,
    /// By the registry's clock, if it waits for a lock there.
    pub arrived_ms: Option<i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub name: u8,
    pub is_host: bool,
    pub ahead_ms: i64,
    pub boot: u8,
    /// The lease file: contents, the boot that wrote it, and whether it is a copy.
    pub lease: Lease,
    pub lease_boot: u8,
    pub lease_is_copy: bool,
    /// The only token, if none is drawn for each renewal.
    pub token: i64,
    /// The reservation file.
    pub until_ms: i64,
    pub holder: LeaseHolder,
    /// The grant in use.
    pub grant: Option<Grant>,
    /// Floor of this run.
    pub floor_ms: i64,
    pub is_open: bool,
    /// The word.
    pub last_ms: i64,
    pub is_full: bool,
    pub reserved_ms: i64,
    pub sent: Option<Sent>,
    pub run: u8,
    /// Tokens drawn.
    pub drawn: i64,
}

impl Node {
    /// `drawn`: tokens that servers of this name have drawn before.
    pub fn new(name: u8, is_host: bool, drawn: i64) -> Self {
        let drawn = drawn + 1;
        Self {
            name,
            is_host,
            ahead_ms: 0,
            boot: 10 * name,
            lease: Lease::default(),
            lease_boot: 10 * name,
            lease_is_copy: false,
            token: 0,
            until_ms: 0,
            holder: LeaseHolder::new(Lease::default(), || token(name, drawn)),
            grant: None,
            floor_ms: 0,
            is_open: false,
            last_ms: 0,
            is_full: true,
            reserved_ms: 0,
            sent: None,
            run: 0,
            drawn,
        }
    }

    pub fn draw(&mut self) -> i64 {
        self.drawn += 1;
        token(self.name, self.drawn)
    }

    pub fn close(&mut self) {
        self.is_open = false;
        self.reserved_ms = self.last_ms;
    }

    /// Writes the lease file.
    pub fn write(&mut self) {
        self.lease = *self.holder.lease();
        self.lease_boot = self.boot;
        self.lease_is_copy = false;
    }

    pub fn follow(&mut self, effect: Effect) {
        match effect {
            Effect::Keep => {}
            Effect::Close(_) => {
                self.close();
                self.grant = None;
            }
            Effect::Use { grant, anew } => {
                self.write();
                if anew {
                    self.close();
                }
                self.grant = Some(grant);
            }
        }
        // Something makes the next question due at once.
        self.holder.hurry();
    }

    /// A question, as sent now.
    pub fn ask(&mut self, clocks: Clocks, rules: Rules<Rule>) -> Sent {
        self.write();
        if let Some(sent) = &mut self.sent {
            sent.is_awaited = false;
        }
        let mut question = self.holder.ask();
        if !rules.hold(Rule::TokenOfRenewal) {
            if self.token == 0 {
                self.token = question.next_token;
            }
            question.token = self.token;
            question.next_token = self.token;
        }
        Sent {
            question,
            clocks,
            is_awaited: true,
            arrived_ms: None,
        }
    }

    pub fn hear(&mut self, sent: &Sent, reply: &Reply, received: Clocks) {
        let heard = Heard {
            answer: reply.answer,
            sent: sent.clocks,
            received,
        };
        let token = self.draw();
        let effect = self.holder.hear(&sent.question, &heard, || token);
        self.drawn -= i64::from(reply.answer.outcome.is_err());
        self.follow(effect);
    }

    /// The write of the new lease reports an error, but has reached the disk.
    pub fn hear_unwritten(&mut self, sent: &Sent, reply: &Reply) {
        let mut heard = *self;
        heard.hear(sent, reply, sent.clocks);
        self.lease = heard.lease;
        self.drawn = heard.drawn;
        self.fail(sent.clocks);
    }

    pub fn fail(&mut self, clocks: Clocks) {
        let effect = self.holder.fail(clocks);
        self.follow(effect);
    }

    /// The next run, on the files as they are.
    pub fn start(&mut self, rules: Rules<Rule>) {
        let is_original = !(self.lease_is_copy && rules.hold(Rule::Original));
        let is_of_boot = self.lease_boot == self.boot || !rules.hold(Rule::Boot);
        let mut lease = self.lease;
        if is_original && !is_of_boot && !rules.hold(Rule::BootToken) {
            lease.grant = None;
        } else if !(is_original && is_of_boot) {
            lease = Lease::default();
            self.token = 0;
        }
        if self.is_host && rules.hold(Rule::HostsFile) {
            lease.grant = None;
        }
        let token = self.draw();
        self.drawn -= i64::from(lease.next_token != 0);
        self.holder = LeaseHolder::new(lease, || token);
        self.grant = None;
        self.floor_ms = rules.keep(Rule::OwnFloor, self.until_ms);
        self.is_open = false;
        self.last_ms = 0;
        self.is_full = true;
        self.reserved_ms = 0;
        if let Some(sent) = &mut self.sent {
            sent.is_awaited = false;
        }
        self.run += 1;
        self.follow(self.holder.begin());
    }

    pub fn reboot(&mut self, rules: Rules<Rule>) {
        self.boot += 1;
        self.start(rules);
    }

    /// True if its grant goes on after its last id.
    pub fn has_more(&self) -> bool {
        (self.grant).is_some_and(|grant| grant.reserved_until_ms > self.last_ms)
    }

    /// A clean stop.
    pub fn stop(&mut self) {
        if self.is_open {
            self.until_ms = self.last_ms;
        }
    }

    /// Opens the generator, if it is time to.
    pub fn open(&mut self, grant: Grant, wall_ms: i64, rules: Rules<Rule>) -> Option<()> {
        let opening = Opening {
            now_ms: wall_ms,
            last_ms: self.last_ms,
            floor: Some(Floor {
                ms: self.floor_ms,
                reason: Reason::Crash,
            }),
            granted_floor_ms: Some(grant.floor_ms),
            others_floor_ms: None,
            retired_until_ms: None,
            terms: TERMS,
        };
        let reservation::Decision::Open { floor, until_ms } = opening.decide() else {
            return None;
        };
        let recorded_ms = recorded_ms(grant, rules);
        if floor.ms >= recorded_ms {
            return None;
        }
        self.reserve(until_ms.min(recorded_ms), rules);
        self.is_open = true;
        self.last_ms = floor.ms;
        self.is_full = true;
        Some(())
    }

    pub fn reserve(&mut self, until_ms: i64, rules: Rules<Rule>) {
        if rules.hold(Rule::Durable) {
            self.until_ms = until_ms;
        }
        self.reserved_ms = until_ms;
    }

    /// The worker id and the time of the next id.
    pub fn issue(&mut self, now_ms: i64, rules: Rules<Rule>) -> Option<(u16, i64)> {
        let grant = self.grant?;
        let wall_ms = now_ms + self.ahead_ms;
        if !self.is_open {
            self.open(grant, wall_ms, rules)?;
        }
        let next_ms = self.last_ms + i64::from(self.is_full);
        let ms = wall_ms.max(next_ms);
        if ms - wall_ms > TERMS.max_lead_ms {
            return None;
        }
        if ms > self.reserved_ms {
            let recorded_ms = recorded_ms(grant, rules);
            let until_ms =
                late_renewal(wall_ms, self.last_ms, TERMS, self.reserved_ms, recorded_ms)?;
            self.reserve(until_ms, rules);
        }
        if ms > self.reserved_ms {
            return None;
        }
        self.last_ms = ms;
        self.is_full = false;
        Some((grant.worker_id, ms))
    }
}

fn token(name: u8, number: i64) -> i64 {
    i64::from(name) * 1_000_000 + number
}

fn recorded_ms(grant: Grant, rules: Rules<Rule>) -> i64 {
    if rules.hold(Rule::Reserved) {
        grant.reserved_until_ms
    } else {
        i64::MAX
    }
}
