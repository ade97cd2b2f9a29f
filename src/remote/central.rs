//! The servers that tags of this database are sourced from, and what an allocator asks them.
//!
//! The allocator hands over a request whose row names a server ([`Central::enqueue`]) and
//! gets it back with what came of it ([`Central::turn`]). One claim at a time is asked of a
//! server, in the order of the requests; no server holds up another, and nothing here waits.
//!
//! | link | leaves by | to |
//! | --- | --- | --- |
//! | closed, nothing queued | a request | opening |
//! | opening | a host that will do | asking the first request |
//! | | none | away |
//! | asking | an answer, or a refusal of this tag | asking the next one; open, if there is none |
//! | | an edit of the row | asking still: the answer is going to be a gap |
//! | | no answer in time, a broken connection, a refusal of all tags | away, the request is queued again |
//! | away | the end of the back-off | opening |
//! | open | idleness | closed |
//!
//! What a link that is away had asked last may yet be carried out there: a gap. A claim is
//! never repeated, only made anew.

use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::RawFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use leaf_id_core::segment::MAX_LEN;
use leaf_id_core::step::Pace;
use rand::RngExt;

use super::connection::{Connection, Event, Service, Stage};
use super::foreign_server::{self, Destination};
use super::{RemoteError, Rows};
use crate::guc;
use crate::pg::{self, Name, Readiness};
use crate::shmem::{Area, RefillError, RemoteServerState};
use crate::tags::claim::{Answer, TagSource};
use crate::worker::allocator::Job;

/// How a claim is asked for: `leaf_claim(text, integer)`.
static CLAIM: Service = Service {
    function: "leaf_claim",
    types: "25 23",
    arguments: 2,
};

/// How long a server that is away is left alone: first, and at most. Up to a quarter less,
/// so that the members of a fleet do not come all at once.
const BACK_OFF: Duration = Duration::from_millis(100);
const MAX_BACK_OFF: Duration = Duration::from_secs(2);
/// A request that has waited longer for its server is made anew: its row may have been
/// edited.
const FRESH: Duration = Duration::from_secs(1);

/// A request that its server is asked, or is going to be.
pub struct Errand {
    /// The request.
    pub job: Job,
    /// The tag's row when it was read last ...
    pub source: TagSource,
    /// ... and the slot's version before that.
    pub version: u64,
    /// The adaptive step that it was asked with.
    pub step: u32,
    /// How many ids it was asked for.
    asked: u32,
    since: Instant,
}

/// What came of a request.
pub enum Outcome {
    /// The server has claimed ids.
    Answered(Errand, Answer),
    /// It has refused to, for a reason that is this tag's.
    Refused(Errand, RemoteError),
    /// It was not asked in time. The row is to be read again.
    Stale(Job),
}

/// The servers that were asked by this allocator.
#[derive(Default)]
pub struct Central {
    links: Vec<Link>,
}

struct Link {
    server: Name,
    /// The table with the tags, whose owner the server is asked as.
    relation: u32,
    connection: Connection,
    /// [`foreign_server::foreign_changes`] before the options were read.
    changes: u64,
    /// It is away until then.
    not_before: Option<Instant>,
    back_off: Duration,
    used_at: Instant,
    /// What it is asked for. Nothing is, while the answer to what has been dropped is awaited.
    asked: Option<Errand>,
    queue: VecDeque<Errand>,
}

impl Central {
    /// Takes over a request whose row names a server. `version` is that of the slot before the
    /// row was read.
    pub fn enqueue(&mut self, area: &Area, job: Job, source: TagSource, version: u64) {
        let now = Instant::now();
        let same = |link: &Link| link.server == source.server;
        let position = self.links.iter().position(same).unwrap_or_else(|| {
            foreign_server::watch_foreign_servers();
            self.links.push(Link::new(source.server, now));
            self.links.len() - 1
        });
        if let Some(link) = self.links.get_mut(position) {
            link.relation = job.key.relation;
            let number = area
                .remote_servers()
                .update(pg::database(), &link.server, |_| {});
            area.note(
                job.slot,
                version,
                RefillError::Server { link: number },
                None,
            );
            link.queue.push_back(Errand {
                job,
                source,
                version,
                step: 0,
                asked: 0,
                since: now,
            });
        }
    }

    /// Goes on with everything that is under way, as far as that goes without waiting.
    pub fn turn(&mut self, area: &Area, now: Instant) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for link in &mut self.links {
            link.turn(area, now, &mut outcomes);
        }
        outcomes
    }

    /// What is to be waited for.
    pub fn sockets(&self) -> Vec<(RawFd, Readiness)> {
        let sockets = self.links.iter().map(|link| link.connection.socket());
        sockets.flatten().collect()
    }

    /// When to go on at the latest.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.links.iter().filter_map(Link::deadline).min()
    }

    /// Whether requests are here.
    pub fn has_work(&self) -> bool {
        let busy = |link: &Link| link.asked.is_some() || !link.queue.is_empty();
        self.links.iter().any(busy)
    }

    /// How long what is under way may yet take, at most. An allocator that left earlier
    /// each time would never get to the second host of a server.
    pub fn patience(&self) -> Duration {
        let patience = |link: &Link| match link.connection.stage() {
            Stage::Opening => link.connection.patience(),
            Stage::Asking => claim_timeout(),
            Stage::Closed | Stage::Open => Duration::ZERO,
        };
        self.links.iter().map(patience).max().unwrap_or_default()
    }

    /// What it is waiting for, for `pg_stat_activity`; `None` if it is not.
    pub fn activity(&self) -> Option<CString> {
        let activity = self.links.iter().find_map(|link| {
            let server = link.server.text();
            match (&link.asked, link.connection.stage()) {
                (Some(errand), _) => {
                    let tag = errand.job.key.tag.name();
                    Some(format!(
                        "claim ids for tag \"{tag}\" on server \"{server}\""
                    ))
                }
                (None, Stage::Opening) => Some(format!("connect to server \"{server}\"")),
                _ => None,
            }
        })?;
        CString::new(activity).ok()
    }

    /// Ends all connections, and gives back the requests that are open.
    pub fn leave(&mut self, area: &Area) -> Vec<Job> {
        let mut jobs = Vec::new();
        area.remote_servers().close(pg::database());
        for mut link in core::mem::take(&mut self.links) {
            let errands = link.asked.take().into_iter().chain(link.queue);
            jobs.extend(errands.map(|errand| errand.job));
        }
        jobs
    }
}

fn claim_timeout() -> Duration {
    Duration::from_millis(u64::try_from(guc::CLAIM_TIMEOUT.get()).unwrap_or(0))
}

/// Whether a refusal is about the server as it is, and not about one tag: shutting down or
/// starting up, no room for another session, a standby.
fn concerns_all(error: &RemoteError) -> bool {
    let Some(sqlstate) = error.sqlstate else {
        return error.broken;
    };
    error.broken
        || sqlstate == *b"25006"
        || sqlstate.starts_with(b"08")
        || sqlstate.starts_with(b"53")
        || sqlstate.starts_with(b"57P")
        || sqlstate.starts_with(b"58")
}

impl Link {
    fn new(server: Name, now: Instant) -> Self {
        Self {
            server,
            relation: 0,
            connection: Connection::new(&CLAIM),
            changes: 0,
            not_before: None,
            back_off: BACK_OFF,
            used_at: now,
            asked: None,
            queue: VecDeque::new(),
        }
    }

    fn turn(&mut self, area: &Area, now: Instant, outcomes: &mut Vec<Outcome>) {
        let outlived = |errand: &Errand| errand.job.slot.buffer.version() != errand.version;
        self.restore(outcomes, outlived);
        // The row was edited, or remainders were saved. Whatever is answered is a gap; what
        // stands there now need not wait for it.
        outcomes.extend(
            self.asked
                .take_if(|asked| outlived(asked))
                .map(|asked| Outcome::Stale(asked.job)),
        );
        loop {
            match self.connection.turn(now) {
                Some(Event::Opened) => {
                    // The rows may have been edited while it was away.
                    self.restore(outcomes, |errand| now - errand.since > FRESH);
                    // Whether it also answers is still to be seen, if it had not.
                    area.remote_servers()
                        .update(pg::database(), &self.server, |link| {
                            if link.state() != RemoteServerState::Away {
                                link.become_state(RemoteServerState::Connected);
                            }
                        });
                    if self.queue.is_empty() {
                        self.note_back(area, false);
                    }
                }
                Some(Event::Answered(rows)) => {
                    self.note_back(area, true);
                    if let Some(errand) = self.asked.take() {
                        outcomes.push(match answer(&rows, errand.asked) {
                            Ok(answer) => Outcome::Answered(errand, answer),
                            Err(error) => Outcome::Refused(errand, error),
                        });
                    }
                }
                Some(Event::Refused(error)) if !concerns_all(&error) => {
                    self.note_back(area, true);
                    if let Some(errand) = self.asked.take() {
                        outcomes.push(Outcome::Refused(errand, error));
                    }
                }
                Some(Event::Refused(error) | Event::Lost(error)) => {
                    self.note_away(area, now, &error.message, outcomes);
                }
                None => match self.connection.stage() {
                    Stage::Closed if self.is_due(now) => self.open(area, now, outcomes),
                    Stage::Open if !self.queue.is_empty() => self.ask(area, now, outcomes),
                    Stage::Open if self.is_idle(now) => self.close(area),
                    _ => return,
                },
            }
        }
    }

    fn is_due(&self, now: Instant) -> bool {
        !self.queue.is_empty() && self.not_before.is_none_or(|at| at <= now)
    }

    fn is_idle(&self, now: Instant) -> bool {
        let limit = u64::try_from(guc::ALLOCATOR_IDLE_TIMEOUT.get()).unwrap_or(0);
        now - self.used_at > Duration::from_millis(limit)
    }

    fn deadline(&self) -> Option<Instant> {
        match self.connection.stage() {
            Stage::Closed if self.queue.is_empty() => None,
            Stage::Closed => self.not_before,
            _ => self.connection.deadline(),
        }
    }

    fn restore(&mut self, outcomes: &mut Vec<Outcome>, is_stale: impl Fn(&Errand) -> bool) {
        let queue = core::mem::take(&mut self.queue);
        for errand in queue {
            if is_stale(&errand) {
                outcomes.push(Outcome::Stale(errand.job));
            } else {
                self.queue.push_back(errand);
            }
        }
    }

    /// Where the server is, as it is defined now; `None` if the table with the tags is gone.
    fn destination(&mut self) -> Result<Option<Destination>, String> {
        // Before: a change that comes meanwhile is looked at again.
        self.changes = foreign_server::foreign_changes();
        let (server, relation) = (self.server, self.relation);
        let looked_up = pg::transaction(|| {
            let owner = pg::relation_owner(relation);
            owner
                .map(|owner| foreign_server::destination(server.as_c_str(), owner))
                .transpose()
        });
        match looked_up {
            Ok(Ok(destination)) => Ok(destination),
            Ok(Err(error)) => Err(error.message),
            Err(error) => Err(error.message),
        }
    }

    fn open(&mut self, area: &Area, now: Instant, outcomes: &mut Vec<Outcome>) {
        self.used_at = now;
        match self.destination() {
            Ok(None) => self.restore(outcomes, |_| true),
            Ok(Some(destination)) => {
                self.connection.open(destination);
                area.remote_servers()
                    .update(pg::database(), &self.server, |link| {
                        if link.state() != RemoteServerState::Away {
                            link.become_state(RemoteServerState::Connecting);
                        }
                    });
            }
            Err(message) => self.note_away(area, now, &message, outcomes),
        }
    }

    /// Asks the first request, unless ALTER SERVER or ALTER USER MAPPING leads elsewhere now.
    fn ask(&mut self, area: &Area, now: Instant, outcomes: &mut Vec<Outcome>) {
        if foreign_server::foreign_changes() != self.changes {
            match self.destination() {
                Ok(None) => return self.restore(outcomes, |_| true),
                Ok(Some(destination)) if self.connection.leads_to(&destination) => {}
                Ok(Some(destination)) => return self.connection.open(destination),
                Err(message) => return self.note_away(area, now, &message, outcomes),
            }
        }
        let Some(mut errand) = self.queue.pop_front() else {
            return;
        };
        self.used_at = now;
        let n = errand.size(area);
        errand.asked = n;
        let arguments = [
            CString::new(errand.job.key.tag.bytes()).ok(),
            CString::new(n.to_string()).ok(),
        ];
        self.asked = Some(errand);
        if let Err(error) = self.connection.ask(&arguments, claim_timeout(), now) {
            self.note_away(area, now, &error.message, outcomes);
        }
    }

    fn close(&mut self, area: &Area) {
        self.connection.close();
        area.remote_servers()
            .update(pg::database(), &self.server, |link| {
                if link.state() != RemoteServerState::Away {
                    link.become_state(RemoteServerState::Closed);
                }
            });
    }

    /// It is there, and if `answered` it does what it is asked.
    fn note_back(&mut self, area: &Area, answered: bool) {
        self.not_before = None;
        self.back_off = BACK_OFF;
        let mut away_since = None;
        area.remote_servers()
            .update(pg::database(), &self.server, |link| {
                away_since = (link.state() == RemoteServerState::Away).then(|| link.since());
                link.become_state(RemoteServerState::Connected);
                if answered {
                    link.answer();
                }
            });
        if let Some(since) = away_since {
            let seconds = pg::now_timestamp().saturating_sub(since) / 1_000_000;
            let server = self.server.text();
            pgrx::log!("leaf_id: server \"{server}\" is back, after {seconds} s");
        }
    }

    /// It is not there, or of no use: everything waits until it is.
    fn note_away(&mut self, area: &Area, now: Instant, message: &str, outcomes: &mut Vec<Outcome>) {
        self.connection.close();
        if let Some(errand) = self.asked.take() {
            if errand.job.part.is_some() {
                // What there is of it need not wait.
                outcomes.push(Outcome::Stale(errand.job));
            } else {
                self.queue.push_front(errand);
            }
        }
        let shortened = self.back_off.mul_f64(rand::rng().random_range(0.75..1.0));
        self.not_before = Some(now + shortened);
        self.back_off = (self.back_off * 2).min(MAX_BACK_OFF);
        let mut is_news = false;
        area.remote_servers()
            .update(pg::database(), &self.server, |link| {
                is_news = !link.has_said(message);
                link.fail(message);
            });
        if is_news {
            let server = self.server.text();
            pgrx::warning!("leaf_id: could not claim ids from server \"{server}\": {message}");
        }
    }
}

impl Errand {
    /// How many ids to ask for. Decided when it is asked, by how fast ids were used when a
    /// segment was first wanted: how long the server was away says nothing of that.
    fn size(&mut self, area: &Area) -> u32 {
        let slot = self.job.slot;
        let (state, _) = area.look(slot);
        let pace = if state.row_incarnation == self.source.row_incarnation {
            state.pace
        } else {
            Pace::default()
        };
        let starved = slot.starved.load(Ordering::Relaxed) != 0;
        let limits = self.source.limits;
        self.step = pace.next(self.job.asked_ms(), starved, limits);
        // Beyond the row's own end: that server may have begun anew, and that is all that
        // is asked for.
        if self.source.max_id > self.source.max_value {
            return 1;
        }
        let range_len = self.job.request.range_len;
        match &self.job.part {
            Some(part) => range_len.saturating_sub(part.claimed.len).max(1),
            None => limits.clamp(self.step.max(range_len)),
        }
    }
}

/// What `leaf_claim` has answered.
fn answer(rows: &Rows, asked: u32) -> Result<Answer, RemoteError> {
    let refused = |sqlstate: &[u8; 5], message: &str| RemoteError {
        sqlstate: Some(*sqlstate),
        message: message.into(),
        broken: false,
    };
    // No wait for a standby stands behind it (I1).
    if rows.is_unacknowledged() {
        return Err(refused(
            b"01000",
            "the claim was cancelled, not acknowledged",
        ));
    }
    let read = || {
        let first: i64 = rows.number(0, 0)?;
        let last: i64 = rows.number(0, 1)?;
        let len = u32::try_from(last.checked_sub(first)?.checked_add(1)?).ok()?;
        // More than was asked for could add up to more than a segment holds.
        let longest = asked.min(MAX_LEN);
        let is_sound = first >= 1 && last < i64::MAX && (1..=longest).contains(&len);
        is_sound.then_some(Answer {
            first,
            len,
            incarnation: rows.number(0, 2)?,
            max_step: rows.number(0, 3)?,
            max_value: rows.number(0, 4)?,
            skipped: rows.number(0, 5)?,
            growth_limited: rows.boolean(0, 6)?,
        })
    };
    read().ok_or_else(|| refused(b"08P01", "the answer makes no sense"))
}
