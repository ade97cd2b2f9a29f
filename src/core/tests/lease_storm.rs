//! Simulation of many servers at one registry: a fleet that starts, and a failover of its registry.
//! The lease and the registry's decision are the code that ships; what a request costs the
//! registry's server was measured (`figures::scale::a_registry_with_ten_thousand_servers`, on two
//! processors).
//!
//! Would catch: retries that come too late, or keep a registry busy that has come back, so that
//! servers use up the time that they were granted, or lose their worker ids.

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
use leaf_id_core::lease::{Clocks, Heard, Lease, LeaseHolder, Question, Step};
use leaf_id_core::registry::{
    Bounds, Here, Hold, LeaseRequest, Next, Place, Registry, Reply, Requester, Row, Tables, decide,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// `leaf_id.claim_timeout`.
const TIMEOUT_MS: i64 = 10_000;
/// Longest pause between requests that get no answer.
const PAUSE_MS: i64 = 30_000;
/// `max_connections` of the registry's server, less what is reserved. Beyond, it refuses at once.
const CONNECTIONS: usize = 97;
const WALL_MS: i64 = 1_700_000_000_000;
/// The fleet starts within this time. As long after it as is granted ahead, the registry goes away,
/// silently.
const START_MS: i64 = 180_000;
/// What the standby lacks then.
const LAG_MS: i64 = 2_000;

/// A fleet, and its registry.
#[derive(Clone, Copy)]
struct Fleet {
    servers: usize,
    /// Time that the registry's server needs for a renewal, in microseconds.
    renewal_us: i64,
    /// The same while it holds the registry's lock: for a first request, and for any after a failover.
    locked_us: i64,
    grant_ahead_ms: i64,
    /// Time until a standby is promoted, in milliseconds.
    outage_ms: i64,
}

impl Fleet {
    fn failover_ms(self) -> i64 {
        START_MS + self.grant_ahead_ms
    }

    fn promoted_ms(self) -> i64 {
        self.failover_ms() + self.outage_ms
    }

    fn end_ms(self) -> i64 {
        self.promoted_ms() + 2 * self.grant_ahead_ms
    }
}

/// What has happened.
#[derive(Debug)]
struct Outcome {
    /// Grants that were used up before the next one, ...
    stopped: usize,
    /// ... and the longest time that a server had to wait for that.
    stopped_ms: i64,
    /// Servers that got another worker id.
    lost: usize,
    /// Least time that a server had left when it got more.
    left_ms: i64,
    /// From the promotion until the registry has granted more to each.
    answered_ms: i64,
    /// Requests that came too late or found no connection.
    unanswered: usize,
    /// Share of its time that the registry's server works before the failover, in percent.
    busy: i64,
}

struct Server {
    holder: LeaseHolder,
    /// Number of the request that it waits for.
    asked: u64,
    leased_at_ms: i64,
}

/// A request that the registry is to answer.
struct Request {
    server: usize,
    number: u64,
    question: Question,
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

/// What a registry has stored.
#[derive(Clone)]
struct Stored {
    registry: Registry,
    rows: Vec<(Row, Hold)>,
    /// Position in `rows` of each worker id.
    positions: HashMap<u16, usize>,
}

struct Storm {
    fleet: Fleet,
    random: StdRng,
    servers: Vec<Server>,
    events: BinaryHeap<Reverse<(i64, Event)>>,
    /// Connected requests. The registry works on one after the other.
    queue: VecDeque<Request>,
    /// What it replies to the one at the head.
    reply: Option<Reply>,
    stored: Stored,
    /// The standby's.
    received: Option<Stored>,
    timeline: i32,
    now_us: i64,
    worked_us: i64,
    outcome: Outcome,
}

impl Storm {
    fn new(fleet: Fleet, seed: u64) -> Self {
        let mut random = StdRng::seed_from_u64(seed);
        let mut tokens = StdRng::seed_from_u64(seed);
        let server = |_| Server {
            holder: LeaseHolder::new(Lease::default(), || tokens.random()),
            asked: 0,
            leased_at_ms: 0,
        };
        let events = (0..fleet.servers)
            .map(|server| Reverse((random.random_range(0..START_MS * 1000), Event::Due(server))));
        Self {
            events: events.collect(),
            servers: (0..fleet.servers).map(server).collect(),
            fleet,
            random,
            queue: VecDeque::new(),
            reply: None,
            stored: Stored {
                registry: Registry {
                    place: Some(place(1)),
                    epoch_ms: None,
                    layout: None,
                    moved_at_ms: None,
                    moved_floor_ms: None,
                    bounds: Bounds {
                        grant_ahead_ms: fleet.grant_ahead_ms,
                        max_ids_per_role: None,
                        ..Bounds::DEFAULT
                    },
                },
                rows: Vec::new(),
                positions: HashMap::new(),
            },
            received: None,
            timeline: 1,
            now_us: 0,
            worked_us: 0,
            outcome: Outcome {
                stopped: 0,
                stopped_ms: 0,
                lost: 0,
                left_ms: fleet.grant_ahead_ms,
                answered_ms: 0,
                unanswered: 0,
                busy: 0,
            },
        }
    }

    fn now_ms(&self) -> i64 {
        self.now_us / 1000
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
            self.now_us = at_us;
            self.fail_over();
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
        let servers = self.servers.iter();
        let answered = servers.map(|server| server.leased_at_ms >= promoted_ms);
        assert!(
            answered.into_iter().all(|is| is),
            "a server never gets more"
        );
        self.outcome
    }

    /// The registry's server goes away, with the connections, and what its standby lacks.
    fn fail_over(&mut self) {
        let failover_ms = self.fleet.failover_ms();
        if self.received.is_none() && self.now_ms() >= failover_ms - LAG_MS {
            self.received = Some(self.stored.clone());
        }
        if self.timeline == 1 && self.now_ms() >= failover_ms {
            self.outcome.busy = self.worked_us / 10 / self.fleet.grant_ahead_ms;
            self.timeline = 2;
            self.queue.clear();
            self.stored = self.received.clone().unwrap();
        }
    }

    fn due(&mut self, server: usize, in_ms: i64) {
        self.events
            .push(Reverse((self.now_us + in_ms * 1000, Event::Due(server))));
    }

    fn attend(&mut self, index: usize) {
        let now_ms = self.now_ms();
        let server = &mut self.servers[index];
        match server.holder.step(clocks(now_ms)) {
            Step::Wait(Some(ms)) => self.due(index, ms.max(1)),
            // Until the answer.
            Step::Wait(None) => {}
            Step::Ask => {
                let question = server.holder.ask();
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
                        question,
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
        let now = clocks(self.now_ms());
        let server = &mut self.servers[index];
        server.asked += 1;
        server.holder.fail(now);
        self.due(index, 1);
    }

    /// Begins with the request at the head of the queue.
    fn serve(&mut self) {
        let Some(request) = self.queue.front() else {
            return;
        };
        let now_ms = self.now_ms();
        let (reply, is_locked) = self.stored.decide(request, self.timeline, now_ms);
        self.reply = Some(reply);
        let us = match is_locked {
            true => self.fleet.locked_us,
            false => self.fleet.renewal_us,
        };
        if (START_MS..self.fleet.failover_ms()).contains(&now_ms) {
            self.worked_us += us;
        }
        self.events.push(Reverse((self.now_us + us, Event::Served)));
    }

    fn answer(&mut self) {
        // The event of a registry that is gone.
        let Some(request) = self.queue.pop_front() else {
            return;
        };
        let reply = self.reply.take().unwrap();
        self.serve();
        let now_ms = self.now_ms();
        let server = &mut self.servers[request.server];
        if server.asked != request.number {
            return;
        }
        server.asked += 1;
        let before = server.holder.lease().grant;
        let heard = Heard {
            answer: reply.answer,
            sent: clocks(request.sent_ms),
            received: clocks(now_ms),
        };
        let random = &mut self.random;
        server
            .holder
            .hear(&request.question, &heard, || random.random());
        if let Ok(granted) = reply.answer.outcome {
            let outcome = &mut self.outcome;
            if let Some(before) = before {
                let left_ms = before.reserved_until_ms - clocks(now_ms).wall_ms;
                outcome.left_ms = outcome.left_ms.min(left_ms);
                outcome.stopped += usize::from(left_ms <= 0);
                outcome.stopped_ms = outcome.stopped_ms.max(-left_ms);
                outcome.lost += usize::from(before.worker_id != granted.worker_id);
            }
            let promoted_ms = self.fleet.promoted_ms();
            if now_ms >= promoted_ms && server.leased_at_ms < promoted_ms {
                outcome.answered_ms = now_ms - promoted_ms;
            }
            server.leased_at_ms = now_ms;
        }
        self.due(request.server, 0);
    }
}

impl Stored {
    /// The registry's decision, with every lock that it asks for; and whether that of the registry
    /// is among them.
    fn decide(&mut self, request: &Request, timeline: i32, now_ms: i64) -> (Reply, bool) {
        let layout = Layout::parse("41/14/8").unwrap();
        let sent_ms = clocks(request.sent_ms).wall_ms;
        let message = LeaseRequest {
            question: request.question,
            system_identifier: i64::try_from(request.server).unwrap(),
            node_name: b"node".into(),
            now_ms: sent_ms,
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
            place: place(timeline),
            epoch_ms: 0,
            layout,
            arrived_ms: sent_ms,
            now_ms: clocks(now_ms).wall_ms,
            worker_id: None,
            max_lead_ms: 11_000,
            format_ms: |ms| ms.to_string(),
        };
        let mut registry_locked = false;
        let mut locked = Vec::new();
        let decision = loop {
            let tables = Tables {
                registry: &self.registry,
                registry_locked,
                rows: &self.rows,
            };
            match decide(tables, &message, &requester, &here) {
                Next::LockRegistry => registry_locked = true,
                Next::LockRow { worker_id, .. } => {
                    let position = self.positions[&worker_id];
                    self.rows[position].1 = Hold::Locked;
                    locked.push(position);
                }
                Next::StartOver { .. } => unreachable!("nothing else is under way"),
                Next::Done(decision) => break *decision,
            }
        };
        for position in locked {
            self.rows[position].1 = Hold::Seen;
        }
        self.registry = decision.registry.unwrap_or(self.registry);
        if let Some(row) = decision.row {
            let end = self.rows.len();
            let position = *self.positions.entry(row.worker_id).or_insert(end);
            match self.rows.get_mut(position) {
                Some(own) => *own = (row, Hold::Seen),
                None => self.rows.push((row, Hold::Seen)),
            }
        }
        (decision.reply, registry_locked)
    }
}

fn clocks(ms: i64) -> Clocks {
    Clocks {
        boot_ms: ms,
        wall_ms: WALL_MS + ms,
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
fn a_registry_that_comes_back_renews_all_grants() {
    let seed = support::seed();
    let most = usize::try_from(support::rounds(1_000, 10_000)).unwrap();
    for (servers, renewal_us, locked_us) in MEASURED {
        for (grant_ahead_ms, outage_ms) in [
            (5 * MINUTE_MS, 30_000),
            (5 * MINUTE_MS, 150_000),
            (60 * MINUTE_MS, 150_000),
        ] {
            let fleet = Fleet {
                servers,
                renewal_us,
                locked_us,
                grant_ahead_ms,
                outage_ms,
            };
            if servers > most {
                continue;
            }
            let outcome = Storm::new(fleet, seed).run();
            println!("{servers} servers, {grant_ahead_ms} ms ahead, {outage_ms} ms: {outcome:?}");
            assert_eq!(outcome.lost, 0);
            // More than 1,000 need more time: see docs/scale.md.
            if servers <= 1_000 || grant_ahead_ms > 5 * MINUTE_MS {
                assert_eq!(outcome.stopped, 0);
                // Each asks when it is due, or after a pause and a request without an answer; then
                // all of them wait for one another.
                let asked_ms = (grant_ahead_ms / 3 - outage_ms).max(PAUSE_MS + TIMEOUT_MS);
                let served_ms = i64::try_from(servers).unwrap() * locked_us / 1_000;
                assert!(outcome.answered_ms <= asked_ms + served_ms);
            }
        }
    }
}
