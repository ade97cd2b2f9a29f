//! Source servers of this database's tags, and an allocator's requests to them.
//!
//! The allocator hands over a request ([`Central::enqueue`]) and gets it back with its outcome
//! ([`Central::turn`]). Each server has at most one claim in flight, in the order of the requests.
//! No server holds up another, and nothing here blocks.
//!
//! | state of a server | event | next state |
//! | --- | --- | --- |
//! | Closed | a request | Opening |
//! | Opening | connected to an acceptable host | Open |
//! | | no acceptable host | Away |
//! | Open | a request | Asking |
//! | | idle timeout, or closed by the server | Closed |
//! | Asking | an answer, or a refusal specific to the tag | Open |
//! | | an edit of the row | Abandoned: the answer becomes a gap |
//! | Asking, Abandoned | timeout, connection loss, or a refusal that concerns all tags | Away; the request is queued again |
//! | Abandoned | an answer, whose ids are counted as lost, or a refusal specific to the tag | Open |
//! | Away | end of the back-off, and a request | Opening |
//!
//! The last request to a lost server may still execute there; its ids become a gap. A claim is
//! never repeated; a retry is a new claim.

use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use leaf_id_core::row::ClaimAnswer;
use leaf_id_core::segment::MAX_LEN;
use leaf_id_core::sometimes;
use leaf_id_core::step::Pace;
use rand::RngExt;

use super::connection::{Connection, Event};
use super::foreign_server::{self, Destination};
use super::message::{self, ClaimRequest};
use super::{RemoteError, Rows};
use crate::guc;
use crate::pg::sqlstate::{self, SqlState};
use crate::pg::{self, Name, Readiness};
use crate::random;
use crate::shmem::{Area, Key, RemoteServerState, Slot};
use crate::tags::claim::{self, TagSource};
use crate::tags::receive::Received;

/// Initial and max back-off of a server that is away. Reduced randomly by up to a quarter, so that
/// the members of a fleet do not reconnect at the same time.
const BACK_OFF: Duration = Duration::from_millis(100);
const MAX_BACK_OFF: Duration = Duration::from_secs(2);
/// A request that has waited longer for its server to connect is returned as stale: its row may
/// have been edited.
const FRESH: Duration = Duration::from_secs(1);

/// A request to a server.
#[derive(Clone, Copy)]
pub struct RemoteRequest {
    /// Number of the allocator's request.
    pub number: u64,
    /// The slot, ...
    pub slot: &'static Slot,
    /// ... and its tag.
    pub key: Key,
    /// The tag's row as last read, ...
    pub source: TagSource,
    /// ... and the slot's version before that.
    pub version: u64,
    /// Longest range that a session is waiting for, in ids; 0 if none.
    pub range_len: u32,
}

/// Outcome of a request.
pub enum RemoteOutcome {
    /// The server has claimed ids.
    Answered(Box<Received>),
    /// The server has refused, for a reason specific to the tag.
    Refused(RemoteError),
    /// The request was not sent in time, or its row was edited. Read the row again.
    Stale,
}

/// A request returned to the allocator.
pub type Returned = (RemoteRequest, RemoteOutcome);

/// The servers used by this allocator.
#[derive(Default)]
pub struct Central {
    servers: Vec<SourceServer>,
}

struct Queued {
    request: RemoteRequest,
    since: Instant,
}

/// A request in flight.
struct Asked {
    queued: Queued,
    /// Number of ids requested.
    ids: u32,
    /// Adaptive step of the request.
    step: u32,
}

/// See the table in this file's header.
enum SourceState {
    Closed,
    Opening,
    Open { since: Instant },
    Asking(Box<Asked>),
    Abandoned(Box<Asked>),
    Away { until: Instant },
}

struct SourceServer {
    server: Name,
    connection: Connection,
    state: SourceState,
    queue: VecDeque<Queued>,
    /// Next back-off. Reset by an answer, or if the server accepts a connection when there is no
    /// request: a server that accepts connections only to fail must not be asked all the time.
    back_off: Duration,
    /// [`foreign_server::foreign_changes`] before the options were read.
    changes: u64,
}

impl Central {
    /// Enqueues a request to its server.
    pub fn enqueue(&mut self, request: RemoteRequest) {
        let name = request.source.server;
        let same = |server: &SourceServer| server.server == name;
        let position = self.servers.iter().position(same).unwrap_or_else(|| {
            foreign_server::watch_foreign_servers();
            self.servers.push(SourceServer::new(name));
            self.servers.len() - 1
        });
        if let Some(server) = self.servers.get_mut(position) {
            server.queue.push_back(Queued {
                request,
                since: Instant::now(),
            });
        }
    }

    /// Makes progress on all servers, without blocking.
    pub fn turn(&mut self, area: &Area, now: Instant) -> Vec<Returned> {
        let mut outcomes = Vec::new();
        for server in &mut self.servers {
            server.turn(area, now, &mut outcomes);
        }
        outcomes
    }

    /// Sockets to wait for.
    pub fn sockets(&self) -> Vec<(RawFd, Readiness)> {
        let servers = self.servers.iter();
        servers
            .filter_map(|server| server.connection.socket())
            .collect()
    }

    /// Time of the next call at the latest.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.servers.iter().filter_map(SourceServer::deadline).min()
    }

    /// Max remaining time of operations in flight. An allocator that always exited earlier would
    /// never reach a server's second host.
    pub fn patience(&self) -> Duration {
        let patience = |server: &SourceServer| match server.state {
            SourceState::Opening => server.connection.patience(),
            SourceState::Asking(_) | SourceState::Abandoned(_) => claim_timeout(),
            SourceState::Closed | SourceState::Open { .. } | SourceState::Away { .. } => {
                Duration::ZERO
            }
        };
        self.servers.iter().map(patience).max().unwrap_or_default()
    }

    /// Current activity for `pg_stat_activity`; `None` if idle.
    pub fn activity(&self) -> Option<CString> {
        let activity = self.servers.iter().find_map(|server| {
            let name = server.server.text();
            match &server.state {
                SourceState::Asking(asked) => {
                    let tag = asked.queued.request.key.tag.name();
                    Some(format!("claim ids for tag \"{tag}\" on server \"{name}\""))
                }
                SourceState::Opening => Some(format!("connect to server \"{name}\"")),
                _ => None,
            }
        })?;
        CString::new(activity).ok()
    }

    /// Closes all connections, and drops their requests.
    pub fn leave(&mut self, area: &Area) {
        area.remote_servers().close(pg::database());
        self.servers.clear();
    }
}

fn claim_timeout() -> Duration {
    Duration::from_millis(u64::try_from(guc::CLAIM_TIMEOUT.get()).unwrap_or(0))
}

fn idle_timeout() -> Duration {
    Duration::from_millis(u64::try_from(guc::ALLOCATOR_IDLE_TIMEOUT.get()).unwrap_or(0))
}

/// True if an error concerns the server rather than a tag: shutdown or startup, no session slot
/// free, a standby.
fn concerns_all(error: &RemoteError) -> bool {
    let Some(sqlstate) = error.sqlstate else {
        return error.broken;
    };
    error.broken
        || sqlstate == sqlstate::READ_ONLY_SQL_TRANSACTION
        || sqlstate.starts_with(sqlstate::CONNECTION_EXCEPTION)
        || sqlstate.starts_with(sqlstate::INSUFFICIENT_RESOURCES)
        || sqlstate.starts_with(sqlstate::SHUTDOWN)
        || sqlstate.starts_with(sqlstate::SYSTEM_ERROR)
}

impl SourceServer {
    fn new(server: Name) -> Self {
        Self {
            server,
            connection: Connection::new("leaf_claim"),
            state: SourceState::Closed,
            queue: VecDeque::new(),
            back_off: BACK_OFF,
            changes: 0,
        }
    }

    fn turn(&mut self, area: &Area, now: Instant, outcomes: &mut Vec<Returned>) {
        self.drop_edited(outcomes);
        loop {
            match self.connection.turn(now) {
                Some(Event::Opened) => self.become_open(area, now, outcomes),
                Some(Event::Answered(rows)) => {
                    self.return_asked(area, now, outcomes, |asked| asked.outcome(&rows));
                }
                Some(Event::Refused(error)) if !concerns_all(&error) => {
                    let refused = |_: &Asked| RemoteOutcome::Refused(error);
                    self.return_asked(area, now, outcomes, refused);
                }
                Some(Event::Refused(error) | Event::Lost(error)) => {
                    self.note_away(area, now, &error.message);
                }
                None if self.go_on(area, now) => {}
                None => return,
            }
        }
    }

    fn become_open(&mut self, area: &Area, now: Instant, outcomes: &mut Vec<Returned>) {
        let is_asked = !self.queue.is_empty();
        // The rows may have been edited while the server was away.
        self.return_stale(outcomes, |queued| now - queued.since > FRESH);
        self.state = SourceState::Open { since: now };
        // If the server was away, it still has to answer a request.
        self.tell(area, RemoteServerState::Connected);
        if !is_asked {
            self.note_back(area, false);
        }
    }

    /// Returns requests, queued or in flight, for rows that were edited, or whose remainders were
    /// saved. An answer would be a gap, so the current row need not wait for it.
    fn drop_edited(&mut self, outcomes: &mut Vec<Returned>) {
        let edited =
            |queued: &Queued| queued.request.slot.buffer.version() != queued.request.version;
        self.return_stale(outcomes, edited);
        if let SourceState::Asking(asked) = &self.state
            && edited(&asked.queued)
            && let SourceState::Asking(asked) =
                core::mem::replace(&mut self.state, SourceState::Closed)
        {
            sometimes!("source: the row was edited during a claim");
            outcomes.push((asked.queued.request, RemoteOutcome::Stale));
            self.state = SourceState::Abandoned(asked);
        }
    }

    fn return_stale(&mut self, outcomes: &mut Vec<Returned>, is_stale: impl Fn(&Queued) -> bool) {
        for queued in core::mem::take(&mut self.queue) {
            if is_stale(&queued) {
                outcomes.push((queued.request, RemoteOutcome::Stale));
            } else {
                self.queue.push_back(queued);
            }
        }
    }

    /// Starts the next operation if the connection has no event. False if there is none.
    fn go_on(&mut self, area: &Area, now: Instant) -> bool {
        let is_open = self.connection.is_open();
        let wanted = !self.queue.is_empty();
        match self.state {
            SourceState::Closed if wanted => self.open(area, now),
            SourceState::Away { until } if wanted && until <= now => self.open(area, now),
            // Closed by the server.
            SourceState::Open { .. } if !is_open => {
                self.state = SourceState::Closed;
                self.tell(area, RemoteServerState::Closed);
            }
            SourceState::Open { .. } if wanted => self.ask(area, now),
            SourceState::Open { since } if now - since > idle_timeout() => self.close(area),
            _ => return false,
        }
        true
    }

    fn deadline(&self) -> Option<Instant> {
        match self.state {
            SourceState::Closed => None,
            SourceState::Away { until } => (!self.queue.is_empty()).then_some(until),
            _ => self.connection.deadline(),
        }
    }

    /// Address of the server as currently defined.
    fn destination(&mut self) -> Result<Destination, String> {
        // Before reading the options, so that a concurrent change is noticed.
        self.changes = foreign_server::foreign_changes();
        let server = self.server;
        pg::transaction(|| {
            foreign_server::destination(server.as_c_str()).map_err(|error| error.message)
        })
    }

    fn open(&mut self, area: &Area, now: Instant) {
        match self.destination() {
            Ok(destination) => {
                self.connect(destination);
                self.tell(area, RemoteServerState::Connecting);
            }
            Err(message) => self.note_away(area, now, &message),
        }
    }

    fn connect(&mut self, destination: Destination) {
        self.connection.open(destination);
        self.state = SourceState::Opening;
    }

    /// Sends the first request, unless ALTER SERVER or ALTER USER MAPPING has changed the address.
    fn ask(&mut self, area: &Area, now: Instant) {
        if foreign_server::foreign_changes() != self.changes {
            match self.destination() {
                Ok(destination) if self.connection.leads_to(&destination) => {}
                Ok(destination) => return self.connect(destination),
                Err(message) => return self.note_away(area, now, &message),
            }
        }
        let Some(queued) = self.queue.pop_front() else {
            return;
        };
        let (ids, step) = queued.request.size(area);
        let request = ClaimRequest {
            tag: queued.request.key.tag.bytes().into(),
            n: ids,
        };
        self.state = SourceState::Asking(Box::new(Asked { queued, ids, step }));
        if let Err(error) = self.connection.ask(&request, claim_timeout(), now) {
            self.note_away(area, now, &error.message);
        }
    }

    /// Closes an idle connection. The server accepts connections, so it is not away.
    fn close(&mut self, area: &Area) {
        self.connection.close();
        self.state = SourceState::Closed;
        self.note_back(area, false);
        self.tell(area, RemoteServerState::Closed);
    }

    /// Publishes a state. A server that is away remains so until it answers, or accepts a
    /// connection when there is no request.
    fn tell(&self, area: &Area, state: RemoteServerState) {
        area.remote_servers()
            .update(pg::database(), &self.server, |server| {
                if server.state() != RemoteServerState::Away {
                    server.become_state(state);
                }
            });
    }

    /// The server has answered: returns the request in flight. If that was abandoned, it was returned
    /// before, and the ids are a gap.
    fn return_asked(
        &mut self,
        area: &Area,
        now: Instant,
        outcomes: &mut Vec<Returned>,
        outcome: impl FnOnce(&Asked) -> RemoteOutcome,
    ) {
        self.note_back(area, true);
        match core::mem::replace(&mut self.state, SourceState::Open { since: now }) {
            SourceState::Asking(asked) => {
                let outcome = outcome(&asked);
                outcomes.push((asked.queued.request, outcome));
            }
            SourceState::Abandoned(asked) => {
                if let RemoteOutcome::Answered(received) = outcome(&asked) {
                    let RemoteRequest { slot, key, .. } = asked.queued.request;
                    let ids = received.answer.len.into();
                    area.directory().lose_claimed(slot, &key, ids);
                }
            }
            _ => {}
        }
    }

    /// The server accepts connections, and if `answered`, answers requests.
    fn note_back(&mut self, area: &Area, answered: bool) {
        self.back_off = BACK_OFF;
        let mut away_since = None;
        area.remote_servers()
            .update(pg::database(), &self.server, |server| {
                away_since = (server.state() == RemoteServerState::Away).then(|| server.since());
                server.become_state(RemoteServerState::Connected);
                if answered {
                    server.answer();
                }
            });
        if let Some(since) = away_since {
            sometimes!("source: back");
            let seconds = pg::now_timestamp().saturating_sub(since) / 1_000_000;
            let server = self.server.text();
            pgrx::log!("leaf_id: server \"{server}\" is back, after {seconds} s");
        }
    }

    /// The server is unreachable or unusable: all its requests wait.
    fn note_away(&mut self, area: &Area, now: Instant, message: &str) {
        self.connection.close();
        let shortened = self
            .back_off
            .mul_f64(random::with(|rng| rng.random_range(0.75..1.0)));
        let until = now + shortened;
        self.back_off = (self.back_off * 2).min(MAX_BACK_OFF);
        if let SourceState::Asking(asked) =
            core::mem::replace(&mut self.state, SourceState::Away { until })
        {
            sometimes!("source: away during a claim");
            // To the end of the queue: the server may fail on this tag only.
            self.queue.push_back(asked.queued);
        }
        let mut is_news = false;
        area.remote_servers()
            .update(pg::database(), &self.server, |server| {
                is_news = !server.has_said(message);
                server.fail(message);
            });
        if is_news {
            let server = self.server.text();
            pgrx::warning!(
                "leaf_id: could not claim ids from server \"{server}\"; its tags have only cached ids left: {message}"
            );
        }
    }
}

impl Asked {
    fn outcome(&self, rows: &Rows) -> RemoteOutcome {
        match answer(rows, self.ids) {
            Ok(answer) => RemoteOutcome::Answered(Box::new(Received {
                source: self.queued.request.source,
                answer,
                step: self.step,
            })),
            Err(error) => RemoteOutcome::Refused(error),
        }
    }
}

impl RemoteRequest {
    /// Number of ids to request, and the adaptive step. Computed when the request is sent, from the
    /// consumption up to the time when a segment was first wanted: the time that the server was
    /// away says nothing about consumption.
    fn size(&self, area: &Area) -> (u32, u32) {
        let (state, _) = area.look(self.slot);
        let pace = if state.row_incarnation == self.source.row.incarnation {
            state.pace
        } else {
            Pace::default()
        };
        let starved = self.slot.starved.load(Ordering::Relaxed) != 0;
        let limits = self.source.row.limits;
        let step = pace.next(claim::asked_ms(self.slot), starved, limits);
        let is_at_end = self.source.row.max_id > self.source.row.max_value;
        let was_unusable = self.slot.unusable.load(Ordering::Relaxed) != 0;
        let ids = if is_at_end || was_unusable {
            // Only probe whether that has changed, and leave the ids to other members.
            1
        } else {
            limits.clamp(step.max(self.range_len))
        };
        (ids, step)
    }
}

/// Validates the answer of `leaf_claim`.
fn answer(rows: &Rows, asked: u32) -> Result<ClaimAnswer, RemoteError> {
    let refused = |sqlstate: SqlState, message: String| RemoteError {
        sqlstate: Some(sqlstate),
        message,
        broken: false,
    };
    // No standby has acknowledged the claim (I1).
    if rows.is_unacknowledged() {
        let message = "the claim was canceled, not acknowledged";
        return Err(refused(sqlstate::WARNING, message.into()));
    }
    let unusable = |message| refused(sqlstate::PROTOCOL_VIOLATION, message);
    let answer: ClaimAnswer = message::read(rows.bytes(0, 0).unwrap_or_default())
        .map_err(|failure| unusable(failure.report().message().into()))?;
    // More ids than requested could add up to more than a segment can hold.
    let longest = asked.min(MAX_LEN);
    let is_sound = answer.first >= 1
        && (1..=longest).contains(&answer.len)
        && answer.first.checked_add(answer.len.into()).is_some();
    if is_sound {
        Ok(answer)
    } else {
        Err(unusable("unexpected result from leaf_claim()".into()))
    }
}
