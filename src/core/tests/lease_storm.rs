//! Simulation of many servers at one registry: a fleet that starts, and a failover of its registry.
//! The lease and the registry's decision are the code that ships; what a request costs the
//! registry's server was measured (`figures::scale::a_registry_with_ten_thousand_servers`, on two
//! processors).
//!
//! Would catch: retries that come too late, or keep a registry busy that has come back, so that
//! servers lose their worker ids though each of them could renew in time.

#![cfg(not(leaf_id_loom))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test that panics fails"
)]

mod support;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, VecDeque};

use leaf_id_core::layout::Layout;
use leaf_id_core::lease::{Clocks, Draft, Kind, Lease, LeaseHolder, Rules, Step};
use leaf_id_core::registry::{
    Bounds, Here, Hold, LeaseRequest, Next, Place, Registry, Reply, Requester, Row, Tables, decide,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

const MAX_SKEW_MS: i64 = 1_000;
/// `leaf_id.claim_timeout`.
const TIMEOUT_MS: i64 = 10_000;
/// `max_connections` of the registry's server, less what is reserved. Beyond, it refuses at once.
const CONNECTIONS: usize = 97;
const WALL_MS: i64 = 1_700_000_000_000;
/// The fleet starts within this time. One lease later, the registry goes away, silently.
const START_MS: i64 = 180_000;

/// A fleet, and its registry.
#[derive(Clone, Copy)]
struct Fleet {
    servers: usize,
    /// Time that the registry's server needs for a renewal, in microseconds.
    renewal_us: i64,
    /// The same while it holds the registry's lock: for a claim, and for any request after a failover.
    locked_us: i64,
    lease_ms: i64,
    /// Time until a standby is promoted, in milliseconds.
    outage_ms: i64,
}

impl Fleet {
    fn rules(self) -> Rules {
        Rules {
            lease_ms: self.lease_ms,
            max_skew_ms: MAX_SKEW_MS,
        }
    }

    fn failover_ms(self) -> i64 {
        START_MS + self.lease_ms
    }

    fn promoted_ms(self) -> i64 {
        self.failover_ms() + self.outage_ms
    }

    fn end_ms(self) -> i64 {
        self.promoted_ms() + 3 * self.lease_ms
    }
}

/// What has happened.
#[derive(Debug, Default)]
struct Outcome {
    /// Leases that ended with their holder running, ...
    ended: usize,
    /// ... and the longest time that a server was without.
    without_ms: i64,
    /// From the promotion until each server has renewed.
    renewed_ms: i64,
    /// Requests that came too late or found no connection.
    unanswered: usize,
    /// Share of its time that the registry's server works before the failover, in percent.
    busy: i64,
}

struct Server {
    holder: LeaseHolder,
    /// Number of the request that it waits for.
    asked: u64,
    /// Time since when it has had no lease.
    out_since_ms: Option<i64>,
    renewed_at_ms: i64,
}

/// A request that the registry is to answer.
struct Request {
    server: usize,
    number: u64,
    draft: Draft,
    sent_ms: i64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// What a server has to do is due.
    Due(usize),
    /// A request gets no answer.
    Silence(usize, u64),
    /// The registry has worked on the request at the head of its queue.
    Served,
}

struct Storm {
    fleet: Fleet,
    random: StdRng,
    servers: Vec<Server>,
    events: BinaryHeap<Reverse<(i64, Event)>>,
    /// Connected requests. The registry works on one after the other.
    queue: VecDeque<Request>,
    registry: Registry,
    rows: Vec<(Row, Hold)>,
    /// Position in `rows` of each worker id.
    positions: HashMap<u16, usize>,
    timeline: i32,
    now_us: i64,
    worked_us: i64,
    outcome: Outcome,
}

impl Storm {
    fn new(fleet: Fleet, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let server = |_| Server {
            holder: LeaseHolder::new(Lease::default()),
            asked: 0,
            out_since_ms: None,
            renewed_at_ms: 0,
        };
        let events = (0..fleet.servers)
            .map(|server| Reverse((random.random_range(0..START_MS * 1000), Event::Due(server))));
        Self {
            events: events.collect(),
            servers: (0..fleet.servers).map(server).collect(),
            fleet,
            random,
            queue: VecDeque::new(),
            registry: Registry {
                place: Some(place(1)),
                epoch_ms: None,
                layout: None,
                moved_at_ms: None,
                grace: None,
                moved_floor_ms: None,
                bounds: Bounds {
                    max_ids_per_role: None,
                    ..Bounds::DEFAULT
                },
            },
            rows: Vec::new(),
            positions: HashMap::new(),
            timeline: 1,
            now_us: 0,
            worked_us: 0,
            outcome: Outcome::default(),
        }
    }

    fn now_ms(&self) -> i64 {
        self.now_us / 1000
    }

    fn clocks(&self, ms: i64) -> Clocks {
        Clocks {
            boot_ms: ms,
            wall_ms: WALL_MS + ms,
        }
    }

    /// True while the old registry is gone and the new one is not there yet.
    fn is_away(&self) -> bool {
        (self.fleet.failover_ms()..self.fleet.promoted_ms()).contains(&self.now_ms())
    }

    fn run(mut self) -> Outcome {
        while let Some(Reverse((at_us, event))) = self.events.pop() {
            if at_us >= self.fleet.end_ms() * 1000 {
                break;
            }
            let before_ms = self.now_ms();
            self.now_us = at_us;
            if before_ms < self.fleet.failover_ms() && self.now_ms() >= self.fleet.failover_ms() {
                self.outcome.busy = self.worked_us / 10 / self.fleet.lease_ms;
                self.timeline = 2;
                // Connections are gone with it.
                self.queue.clear();
            }
            match event {
                Event::Due(server) => self.attend(server),
                Event::Silence(server, number) => {
                    if self.servers[server].asked == number {
                        self.unanswered(server);
                    }
                }
                Event::Served => self.answer(),
            }
        }
        let promoted_ms = self.fleet.promoted_ms();
        for server in &self.servers {
            assert!(
                server.renewed_at_ms >= promoted_ms,
                "a server never renews again"
            );
            if let Some(since_ms) = server.out_since_ms {
                self.outcome.without_ms =
                    self.outcome.without_ms.max(self.fleet.end_ms() - since_ms);
            }
        }
        self.outcome
    }

    fn due(&mut self, server: usize, in_ms: i64) {
        self.events
            .push(Reverse((self.now_us + in_ms * 1000, Event::Due(server))));
    }

    fn attend(&mut self, index: usize) {
        let now_ms = self.now_ms();
        let server = &mut self.servers[index];
        match server.holder.step(now_ms) {
            Step::Close => {
                self.outcome.ended += 1;
                server.out_since_ms = Some(now_ms);
                self.due(index, 1);
            }
            Step::Wait(Some(ms)) => self.due(index, ms.max(1)),
            // Until the answer.
            Step::Wait(None) => {}
            Step::Ask => {
                let random = &mut self.random;
                server.holder.prepare(|| random.random());
                let draft = server.holder.ask(now_ms, self.fleet.rules());
                server.asked += 1;
                let number = server.asked;
                if !self.is_away() && self.queue.len() >= CONNECTIONS {
                    self.unanswered(index);
                    return;
                }
                let at_us = self.now_us + TIMEOUT_MS * 1000;
                self.events
                    .push(Reverse((at_us, Event::Silence(index, number))));
                if !self.is_away() {
                    self.queue.push_back(Request {
                        server: index,
                        number,
                        draft,
                        sent_ms: now_ms,
                    });
                    if self.queue.len() == 1 {
                        self.serve();
                    }
                }
            }
        }
    }

    fn unanswered(&mut self, index: usize) {
        self.outcome.unanswered += 1;
        let now_ms = self.now_ms();
        let server = &mut self.servers[index];
        server.asked += 1;
        server.holder.fail(now_ms, self.fleet.rules());
        self.due(index, 1);
    }

    /// Begins with the request at the head of the queue.
    fn serve(&mut self) {
        let Some(request) = self.queue.front() else {
            return;
        };
        let is_renewal = request.draft.at(request.sent_ms).kind == Kind::Renew;
        let is_locked = !is_renewal
            || self.registry.grace.is_some()
            || self.registry.place != Some(place(self.timeline));
        let us = match is_locked {
            true => self.fleet.locked_us,
            false => self.fleet.renewal_us,
        };
        if (START_MS..self.fleet.failover_ms()).contains(&self.now_ms()) {
            self.worked_us += us;
        }
        self.events.push(Reverse((self.now_us + us, Event::Served)));
    }

    fn answer(&mut self) {
        // The event of a registry that is gone.
        let Some(request) = self.queue.pop_front() else {
            return;
        };
        self.serve();
        let now_ms = self.now_ms();
        let question = request.draft.at(request.sent_ms);
        let sent = self.clocks(request.sent_ms);
        let received = self.clocks(now_ms);
        let reply = self.decide(&request, sent);
        let server = &mut self.servers[request.server];
        if server.asked != request.number {
            return;
        }
        server.asked += 1;
        let answer = reply.heard(sent, received).unwrap();
        let random = &mut self.random;
        server
            .holder
            .hear(&question, &answer, self.fleet.rules(), || random.random());
        if reply.outcome.is_ok() {
            if let Some(since_ms) = server.out_since_ms.take() {
                self.outcome.without_ms = self.outcome.without_ms.max(now_ms - since_ms);
            }
            let promoted_ms = self.fleet.promoted_ms();
            if now_ms >= promoted_ms && server.renewed_at_ms < promoted_ms {
                self.outcome.renewed_ms = now_ms - promoted_ms;
            }
            server.renewed_at_ms = now_ms;
        }
        self.due(request.server, 0);
    }

    /// The registry's decision, with every lock that it asks for.
    fn decide(&mut self, request: &Request, sent: Clocks) -> Reply {
        let layout = Layout::parse("41/14/8").unwrap();
        let now = self.clocks(self.now_ms());
        let message = LeaseRequest {
            question: request.draft.at(request.sent_ms),
            system_identifier: i64::try_from(request.server).unwrap(),
            node_name: b"node".into(),
            now_ms: sent.wall_ms,
            reserve_until_ms: sent.wall_ms + self.fleet.lease_ms,
            max_skew_ms: MAX_SKEW_MS,
            max_lead_ms: 11_000,
            epoch_ms: 0,
            layout,
        };
        let requester = Requester {
            role: b"leaf_member",
            trusted: false,
            address: None,
            host: false,
        };
        let here = Here {
            place: place(self.timeline),
            server_start: self.timeline.into(),
            epoch_ms: 0,
            layout,
            arrived_ms: sent.wall_ms,
            worker_id: None,
            now,
            format_ms: |ms| ms.to_string(),
        };
        let mut registry_locked = false;
        let decision = loop {
            let tables = Tables {
                registry: &self.registry,
                registry_locked,
                rows: &self.rows,
            };
            match decide(tables, &message, &requester, &here) {
                Next::LockRegistry => registry_locked = true,
                Next::LockRow { worker_id, .. } => {
                    self.rows[self.positions[&worker_id]].1 = Hold::Locked;
                }
                Next::Done(decision) => break *decision,
            }
        };
        self.registry = decision.registry.unwrap_or(self.registry);
        for row in decision.rows {
            let end = self.rows.len();
            let position = *self.positions.entry(row.worker_id).or_insert(end);
            match self.rows.get_mut(position) {
                Some(own) => *own = (row, Hold::Seen),
                None => self.rows.push((row, Hold::Seen)),
            }
        }
        decision.reply
    }
}

fn place(timeline: i32) -> Place {
    Place {
        system_identifier: 1,
        timeline,
        database: 1,
        relation: 1,
    }
}

/// Servers, and microseconds of a renewal without and with the lock, as measured.
const MEASURED: [(usize, i64, i64); 3] = [
    (100, 254, 454),
    (1_000, 525, 1_730),
    (10_000, 3_790, 10_990),
];

const MINUTE_MS: i64 = 60_000;

#[test]
fn a_registry_that_comes_back_renews_all_leases() {
    let seed = support::seed();
    let most = usize::try_from(support::rounds(1_000, 10_000)).unwrap();
    for (servers, renewal_us, locked_us) in MEASURED {
        for (lease_ms, outage_ms) in [
            (5 * MINUTE_MS, 30_000),
            (5 * MINUTE_MS, 150_000),
            (60 * MINUTE_MS, 150_000),
        ] {
            let fleet = Fleet {
                servers,
                renewal_us,
                locked_us,
                lease_ms,
                outage_ms,
            };
            if servers > most {
                continue;
            }
            let outcome = Storm::new(fleet, seed).run();
            println!("{servers} servers, leases of {lease_ms} ms, {outage_ms} ms: {outcome:?}");
            // More than 1,000 need longer leases: see docs/scale.md.
            if servers <= 1_000 || lease_ms > 5 * MINUTE_MS {
                assert_eq!(outcome.ended, 0);
            }
        }
    }
}
