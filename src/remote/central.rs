//! The servers that tags of this database are sourced from, and what an allocator asks them.
//!
//! The allocator hands over what a server is to be asked for ([`Central::enqueue`]) and gets it
//! back with what came of it ([`Central::turn`]). One claim at a time is asked of a server, in
//! the order of the requests; no server holds up another, and nothing here waits.
//!
//! | state of a server | leaves by | to |
//! | --- | --- | --- |
//! | Closed | a request | Opening |
//! | Opening | a host that will do | Open |
//! | | none | Away |
//! | Open | a request | Asking |
//! | | idleness, or the other side went away | Closed |
//! | Asking | an answer, or a refusal of this tag | Open |
//! | | an edit of the row | Abandoned: the answer is going to be a gap |
//! | Asking, Abandoned | no answer in time, a broken connection, a refusal of all tags | Away, the request is queued again |
//! | Abandoned | an answer, or a refusal of that tag | Open |
//! | Away | the end of the back-off, and a request | Opening |
//!
//! What a server that is away was asked last may yet be carried out there: a gap. A claim is
//! never repeated, only made anew.

use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use leaf_id_core::segment::MAX_LEN;
use leaf_id_core::step::Pace;
use rand::RngExt;

use super::connection::{Connection, Event, Stage};
use super::foreign_server::{self, Destination};
use super::message::{self, ClaimRequest};
use super::{RemoteError, Rows};
use crate::guc;
use crate::pg::sqlstate::{self, SqlState};
use crate::pg::{self, Name, Readiness};
use crate::shmem::{Area, Key, RemoteServerState, Slot};
use crate::tags::claim::{self, ClaimAnswer, TagSource};

/// How long a server that is away is left alone: first, and at most. Up to a quarter less,
/// so that the members of a fleet do not come all at once.
const BACK_OFF: Duration = Duration::from_millis(100);
const MAX_BACK_OFF: Duration = Duration::from_secs(2);
/// A request that has waited longer for its server is made anew: its row may have been
/// edited.
const FRESH: Duration = Duration::from_secs(1);

/// What a server is asked for.
pub struct RemoteRequest {
    /// Which of the allocator's requests this is for.
    pub number: u64,
    /// The slot ...
    pub slot: &'static Slot,
    /// ... and its tag.
    pub key: Key,
    /// The tag's row when it was read last ...
    pub source: TagSource,
    /// ... and the slot's version before that.
    pub version: u64,
    /// The longest range that a session waits for; 0 for none.
    pub range_len: u32,
}

/// What came of it.
pub enum RemoteOutcome {
    /// The server has claimed ids.
    Answered {
        /// These.
        answer: ClaimAnswer,
        /// The adaptive step that it was asked with.
        step: u32,
    },
    /// It has refused to, for a reason that is this tag's.
    Refused(RemoteError),
    /// It was not asked in time. The row is to be read again.
    Stale,
}

/// What is given back to the allocator.
pub type Returned = (RemoteRequest, RemoteOutcome);

/// The servers that were asked by this allocator.
#[derive(Default)]
pub struct Central {
    servers: Vec<SourceServer>,
}

struct Queued {
    request: RemoteRequest,
    since: Instant,
}

/// A request that was sent.
struct Asked {
    queued: Queued,
    /// How many ids it asks for.
    ids: u32,
    /// The adaptive step of that.
    step: u32,
}

/// See the table in this file's header.
enum SourceState {
    Closed,
    Opening,
    Open { since: Instant },
    Asking(Box<Asked>),
    Abandoned,
    Away { until: Instant },
}

struct SourceServer {
    server: Name,
    /// The table with the tags, whose owner the server is asked as.
    relation: u32,
    connection: Connection,
    state: SourceState,
    queue: VecDeque<Queued>,
    /// How long it is left alone when it fails next. Until it has answered: a server that lets
    /// us in only to fail is not asked all the time.
    back_off: Duration,
    /// [`foreign_server::foreign_changes`] before the options were read.
    changes: u64,
}

impl Central {
    /// Takes over what a server is to be asked for.
    pub fn enqueue(&mut self, request: RemoteRequest) {
        let name = request.source.server;
        let same = |server: &SourceServer| server.server == name;
        let position = self.servers.iter().position(same).unwrap_or_else(|| {
            foreign_server::watch_foreign_servers();
            self.servers.push(SourceServer::new(name));
            self.servers.len() - 1
        });
        if let Some(server) = self.servers.get_mut(position) {
            server.relation = request.key.relation;
            server.queue.push_back(Queued {
                request,
                since: Instant::now(),
            });
        }
    }

    /// Goes on with everything that is under way, as far as that goes without waiting.
    pub fn turn(&mut self, area: &Area, now: Instant) -> Vec<Returned> {
        let mut outcomes = Vec::new();
        for server in &mut self.servers {
            server.turn(area, now, &mut outcomes);
        }
        outcomes
    }

    /// What is to be waited for.
    pub fn sockets(&self) -> Vec<(RawFd, Readiness)> {
        let servers = self.servers.iter();
        servers
            .filter_map(|server| server.connection.socket())
            .collect()
    }

    /// When to go on at the latest.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.servers.iter().filter_map(SourceServer::deadline).min()
    }

    /// How long what is under way may yet take, at most. An allocator that left earlier
    /// each time would never get to the second host of a server.
    pub fn patience(&self) -> Duration {
        let patience = |server: &SourceServer| match server.state {
            SourceState::Opening => server.connection.patience(),
            SourceState::Asking(_) | SourceState::Abandoned => claim_timeout(),
            SourceState::Closed | SourceState::Open { .. } | SourceState::Away { .. } => {
                Duration::ZERO
            }
        };
        self.servers.iter().map(patience).max().unwrap_or_default()
    }

    /// What it is waiting for, for `pg_stat_activity`; `None` if it is not.
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

    /// Ends all connections, and gives up what the servers were to be asked for.
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

/// Whether a refusal is about the server as it is, and not about one tag: shutting down or
/// starting up, no room for another session, a standby.
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
            relation: 0,
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
                Some(Event::Opened) => {
                    let is_asked = !self.queue.is_empty();
                    // The rows may have been edited while it was away.
                    self.return_stale(outcomes, |queued| now - queued.since > FRESH);
                    self.state = SourceState::Open { since: now };
                    // Whether it also answers is still to be seen, if it had not.
                    self.tell(area, RemoteServerState::Connected);
                    if !is_asked {
                        self.note_back(area, false);
                    }
                }
                Some(Event::Answered(rows)) => {
                    if let Some(asked) = self.note_answer(area, now) {
                        let outcome = match answer(&rows, asked.ids) {
                            Ok(answer) => RemoteOutcome::Answered {
                                answer,
                                step: asked.step,
                            },
                            Err(error) => RemoteOutcome::Refused(error),
                        };
                        outcomes.push((asked.queued.request, outcome));
                    }
                }
                Some(Event::Refused(error)) if !concerns_all(&error) => {
                    if let Some(asked) = self.note_answer(area, now) {
                        outcomes.push((asked.queued.request, RemoteOutcome::Refused(error)));
                    }
                }
                Some(Event::Refused(error) | Event::Lost(error)) => {
                    self.note_away(area, now, &error.message);
                }
                None if self.go_on(area, now, outcomes) => {}
                None => return,
            }
        }
    }

    /// Gives back what is asked, or to be asked, for rows that were edited, or whose
    /// remainders were saved. Whatever is answered is a gap; what stands there now need not
    /// wait for it.
    fn drop_edited(&mut self, outcomes: &mut Vec<Returned>) {
        let edited =
            |queued: &Queued| queued.request.slot.buffer.version() != queued.request.version;
        self.return_stale(outcomes, edited);
        if let SourceState::Asking(asked) = &self.state
            && edited(&asked.queued)
            && let SourceState::Asking(asked) =
                core::mem::replace(&mut self.state, SourceState::Abandoned)
        {
            outcomes.push((asked.queued.request, RemoteOutcome::Stale));
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

    /// Begins what there is to do, if the connection tells nothing. False: nothing now.
    fn go_on(&mut self, area: &Area, now: Instant, outcomes: &mut Vec<Returned>) -> bool {
        let is_open = self.connection.stage() == Stage::Open;
        let wanted = !self.queue.is_empty();
        match self.state {
            SourceState::Closed if wanted => self.open(area, now, outcomes),
            SourceState::Away { until } if wanted && until <= now => self.open(area, now, outcomes),
            // The other side went away.
            SourceState::Open { .. } if !is_open => {
                self.state = SourceState::Closed;
                self.tell(area, RemoteServerState::Closed);
            }
            SourceState::Open { .. } if wanted => self.ask(area, now, outcomes),
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

    /// Where the server is, as it is defined now; `None` if the table with the tags is gone.
    fn destination(&mut self) -> Result<Option<Destination>, String> {
        // Before: a change that comes meanwhile is looked at again.
        self.changes = foreign_server::foreign_changes();
        let (server, relation) = (self.server, self.relation);
        pg::transaction(|| {
            let owner = pg::relation_owner(relation);
            let destination =
                owner.map(|owner| foreign_server::destination(server.as_c_str(), owner));
            destination.transpose().map_err(|error| error.message)
        })
    }

    fn open(&mut self, area: &Area, now: Instant, outcomes: &mut Vec<Returned>) {
        match self.destination() {
            Ok(None) => self.return_stale(outcomes, |_| true),
            Ok(Some(destination)) => {
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

    /// Asks the first request, unless ALTER SERVER or ALTER USER MAPPING leads elsewhere now.
    fn ask(&mut self, area: &Area, now: Instant, outcomes: &mut Vec<Returned>) {
        if foreign_server::foreign_changes() != self.changes {
            match self.destination() {
                Ok(None) => return self.return_stale(outcomes, |_| true),
                Ok(Some(destination)) if self.connection.leads_to(&destination) => {}
                Ok(Some(destination)) => return self.connect(destination),
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

    /// Nobody has asked it for long, and it lets us in.
    fn close(&mut self, area: &Area) {
        self.connection.close();
        self.state = SourceState::Closed;
        self.note_back(area, false);
        self.tell(area, RemoteServerState::Closed);
    }

    /// Tells of this state; but a server that is away is so until it answers, or lets us in
    /// when nobody asks.
    fn tell(&self, area: &Area, state: RemoteServerState) {
        area.remote_servers()
            .update(pg::database(), &self.server, |server| {
                if server.state() != RemoteServerState::Away {
                    server.become_state(state);
                }
            });
    }

    /// It has answered. What it was asked, if anybody still wants to know.
    fn note_answer(&mut self, area: &Area, now: Instant) -> Option<Box<Asked>> {
        self.note_back(area, true);
        match core::mem::replace(&mut self.state, SourceState::Open { since: now }) {
            SourceState::Asking(asked) => Some(asked),
            _ => None,
        }
    }

    /// It is there, and if `answered` it does what it is asked.
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
            let seconds = pg::now_timestamp().saturating_sub(since) / 1_000_000;
            let server = self.server.text();
            pgrx::log!("leaf_id: server \"{server}\" is back, after {seconds} s");
        }
    }

    /// It is not there, or of no use: everything waits until it is.
    fn note_away(&mut self, area: &Area, now: Instant, message: &str) {
        self.connection.close();
        let shortened = self.back_off.mul_f64(rand::rng().random_range(0.75..1.0));
        let until = now + shortened;
        self.back_off = (self.back_off * 2).min(MAX_BACK_OFF);
        if let SourceState::Asking(asked) =
            core::mem::replace(&mut self.state, SourceState::Away { until })
        {
            // Behind the others: it may be this tag alone that the server fails with.
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
                "leaf_id: could not claim ids from server \"{server}\", whose tags have only what is cached: {message}"
            );
        }
    }
}

impl RemoteRequest {
    /// How many ids to ask for, and the adaptive step. Decided when it is asked, by how fast
    /// ids were used when a segment was first wanted: how long the server was away says
    /// nothing of that.
    fn size(&self, area: &Area) -> (u32, u32) {
        let (state, _) = area.look(self.slot);
        let pace = if state.row_incarnation == self.source.row_incarnation {
            state.pace
        } else {
            Pace::default()
        };
        let starved = self.slot.starved.load(Ordering::Relaxed) != 0;
        let limits = self.source.limits;
        let step = pace.next(claim::asked_ms(self.slot), starved, limits);
        let is_at_end = self.source.max_id > self.source.max_value;
        let was_unusable = self.slot.unusable.load(Ordering::Relaxed) != 0;
        let ids = if is_at_end || was_unusable {
            // Only whether that has changed is asked for: the others need the rest.
            1
        } else {
            limits.clamp(step.max(self.range_len))
        };
        (ids, step)
    }
}

/// The answer of `leaf_claim`.
fn answer(rows: &Rows, asked: u32) -> Result<ClaimAnswer, RemoteError> {
    let refused = |sqlstate: SqlState, message: String| RemoteError {
        sqlstate: Some(sqlstate),
        message,
        broken: false,
    };
    // No wait for a standby stands behind it (I1).
    if rows.is_unacknowledged() {
        let message = "the claim was canceled, not acknowledged";
        return Err(refused(sqlstate::WARNING, message.into()));
    }
    let unusable = |message| refused(sqlstate::PROTOCOL_VIOLATION, message);
    let answer: ClaimAnswer = message::read(rows.bytes(0, 0).unwrap_or_default())
        .map_err(|failure| unusable(failure.report().message().into()))?;
    // More than was asked for could add up to more than a segment holds.
    let longest = asked.min(MAX_LEN);
    let is_sound = answer.first >= 1
        && (1..=longest).contains(&answer.len)
        && answer.first.checked_add(answer.len.into()).is_some();
    if is_sound {
        Ok(answer)
    } else {
        Err(unusable("the answer makes no sense".into()))
    }
}
