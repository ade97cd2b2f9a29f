//! A slot's request, from its acceptance until it is cleared: the transactions that claim for it, and
//! what it changes in shared memory. It publishes a segment only once its claim is committed and
//! durable (I1), here or on the tag's source server.
//!
//! [`Request::serve`], for a local tag:
//!
//! 1. read the slot's version, then begin a claim that the launcher waits for;
//! 2. claim in one transaction (`tags/claim`), or check the row of a saved range;
//! 3. publish, and clear the request.
//!
//! For a sourced tag, step 2 finds the source and hands the request to [`Central`]. The allocator
//! passes its outcome to [`Request::take_back`], which serves the request again: step 2 then records
//! the answer (`tags/receive`).
//!
//! | state | event | next state |
//! | --- | --- | --- |
//! | Due | due; ids claimed | cleared |
//! | | no row | Missed |
//! | | the row names a source server | Asked |
//! | | an error | Due, later |
//! | Missed | as Due, at once; still no row | Held |
//! | Asked | an answer | Received |
//! | | a refusal, or a timeout | Due, Held |
//! | Received | the answer is recorded in the local row | cleared |
//! | | an error | Received, later; the server is not asked again |
//! | any but Asked | a final error, which a retry would not change | Held |
//! | Held | timeout, or an edit of the row | cleared; sessions request again |
//! | any | eviction of the slot | cleared; ids claimed for it become a gap |
//!
//! Eviction is detected the next time the request is serviced. Until then, nothing done for the
//! request modifies another tag's slot.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use leaf_id_core::row::ClaimAnswer;
use leaf_id_core::segment::{Refused, SegmentRequest};
use leaf_id_core::sometimes;
use pgrx::PgSqlErrorCode;

use crate::error::RefillError;
use crate::guc::{self, ClaimSynchronousCommit};
use crate::pg::{self, Caught, sqlstate};
use crate::remote::RemoteError;
use crate::remote::central::{Central, RemoteOutcome, RemoteRequest};
use crate::shmem::{Area, Claimed, IdRange, Key, Slot, SlotState};
use crate::tags::blocker;
use crate::tags::claim::{self, Ask, TagSource, Unclaimed};
use crate::tags::receive::{self, Received, Unreceived};

/// Initial and max retry interval of a tag.
const BACK_OFF: Duration = Duration::from_millis(50);
const MAX_BACK_OFF: Duration = Duration::from_millis(500);
/// Time for which a request stays closed after a final error.
const HOLD: Duration = Duration::from_secs(1);
/// A claim is in progress in this process. For the exit callback.
static CLAIM_BEGUN: AtomicBool = AtomicBool::new(false);

/// Begins a claim, unless the launcher is saving the remainders.
fn begin_claim(area: &Area) -> bool {
    let begun = area.claims().begin();
    CLAIM_BEGUN.store(begun, Ordering::Relaxed);
    begun
}

/// Ends the claim in progress, if any.
pub fn end_claim(area: &Area) {
    if CLAIM_BEGUN.swap(false, Ordering::Relaxed) {
        area.claims().end();
    }
}

/// State shared by all requests of an allocator.
pub struct Services {
    area: &'static Area,
    /// The source servers.
    pub central: Central,
    /// Last message logged per tag, to log once per change of state.
    logged: HashMap<Key, String>,
}

impl Services {
    /// Services without connections.
    pub fn new(area: &'static Area) -> Self {
        Self {
            area,
            central: Central::default(),
            logged: HashMap::new(),
        }
    }

    fn log_once(&mut self, key: &Key, text: &str) {
        if self.logged.get(key).is_none_or(|last| last != text) {
            pgrx::warning!(
                "leaf_id: could not claim ids for tag \"{}\"; only cached ids are left: {text}",
                key.tag.name()
            );
            self.logged.insert(*key, text.to_string());
        }
    }

    fn log_end(&mut self, key: &Key) {
        if self.logged.remove(key).is_some() {
            let tag = key.tag.name();
            pgrx::log!("leaf_id: ids of tag \"{tag}\" can be claimed again");
        }
    }
}

/// A request that an allocator has accepted.
pub struct Request {
    /// Sequence number of the request in this allocator.
    pub number: u64,
    slot: &'static Slot,
    /// The tag, as long as the request is open.
    pub key: Key,
    accepted: SegmentRequest,
    state: RequestState,
    /// Next retry interval; never reset.
    back_off: Duration,
}

/// See the table in this file's header.
enum RequestState {
    Due(Instant),
    Missed,
    Asked,
    Received {
        received: Box<Received>,
        due: Instant,
    },
    Held {
        version: u64,
        until: Instant,
    },
}

/// Snapshot of a slot.
struct Seen {
    version: u64,
    /// Cached state of the tag.
    state: SlotState,
}

/// Next action for a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// None; the request is cleared.
    Cleared,
    /// Keep the request until it is due.
    Kept,
}

impl Request {
    /// Accepts a posted request; `None` if it was withdrawn.
    pub fn accept(area: &Area, slot: &'static Slot, number: u64) -> Option<Self> {
        let (accepted, key) = area.queues().accept(slot)?;
        Some(Self {
            number,
            slot,
            key,
            accepted,
            state: RequestState::Due(Instant::now()),
            back_off: BACK_OFF,
        })
    }

    /// Time of the next action; `None` while another server has the request.
    pub fn due(&self, now: Instant) -> Option<Instant> {
        match self.state {
            RequestState::Due(at) | RequestState::Received { due: at, .. } => Some(at),
            RequestState::Missed => Some(now),
            RequestState::Asked => None,
            // The row was edited since the error, which may no longer apply.
            RequestState::Held { version, .. } if self.slot.buffer.version() != version => {
                Some(now)
            }
            RequestState::Held { until, .. } => Some(until),
        }
    }

    /// Serves a request that is due.
    pub fn serve(&mut self, services: &mut Services) -> Next {
        let area = services.area;
        debug_assert!(!matches!(self.state, RequestState::Asked), "not answered");
        if let RequestState::Held { .. } = self.state {
            return self.clear(area);
        }
        // Read the version before begin_claim, so that nothing can be published once the remainders
        // were taken out, and before the transaction, so that any edit from now on discards the
        // claim.
        let version = loop {
            let Some(Seen { version, .. }) = self.look(area) else {
                return self.give_up(area);
            };
            if !begin_claim(area) {
                sometimes!("request: put off while ranges are saved");
                return self.put_off();
            }
            if self.slot.buffer.version() == version {
                break version;
            }
            // A launcher has taken the remainders out and the next one has put them back since: in
            // this version they could not be published, and would be given up. Or the row was edited.
            end_claim(area);
        };
        // The launcher, which may be exiting, counts this as one claim.
        let next = loop {
            if let Some(next) = self.step(services, version) {
                break next;
            }
        };
        end_claim(area);
        next
    }

    /// Handles the outcome of a request to the source server.
    pub fn take_back(
        &mut self,
        services: &mut Services,
        asked: &RemoteRequest,
        outcome: RemoteOutcome,
    ) -> Next {
        debug_assert!(matches!(self.state, RequestState::Asked), "not asked");
        match outcome {
            RemoteOutcome::Answered(received) => {
                self.state = RequestState::Received {
                    received,
                    due: Instant::now(),
                };
                // At once: if this process exits before, the answer is lost.
                self.serve(services)
            }
            RemoteOutcome::Refused(error) => self.refuse(services, asked, &error),
            RemoteOutcome::Stale => {
                sometimes!("request: returned unanswered by its source");
                self.start_over(services.area)
            }
        }
    }

    /// Clears the request: the slot was evicted, or the allocator exits. Ids claimed for it become a
    /// gap.
    pub fn give_up(&self, area: &Area) -> Next {
        self.lose_answer(area);
        self.clear(area)
    }

    /// Another server's answer, if not recorded yet.
    fn received(&self) -> Option<Received> {
        match &self.state {
            RequestState::Received { received, .. } => Some(**received),
            _ => None,
        }
    }

    /// Current state of the slot; `None` if it was evicted.
    fn look(&self, area: &Area) -> Option<Seen> {
        let buffer = self.slot.buffer;
        area.with_request(self.slot, &self.accepted, |state| Seen {
            version: buffer.version(),
            state: *state,
        })
    }
}

/// The transactions.
impl Request {
    /// Runs one transaction: records a source server's answer, republishes a saved range, or
    /// claims. `None` if saved ranges were dropped, and the next step is due at once.
    fn step(&mut self, services: &mut Services, version: u64) -> Option<Next> {
        let area = services.area;
        let Some(seen) = self.look(area) else {
            return Some(self.give_up(area));
        };
        if let Some(received) = self.received() {
            return Some(self.receive(services, version, &seen, received));
        }
        // A session requested it just before it was published.
        if self.slot.buffer.has_spare() {
            self.slot.forget_wanted();
            return Some(self.clear(area));
        }
        if let Some(range) = seen.state.next_saved() {
            return self.restore(services, version, &seen, range);
        }
        Some(self.claim(services, version, &seen))
    }

    fn ask(&self, seen: &Seen) -> Ask {
        Ask {
            pace: seen.state.pace,
            asked_ms: claim::asked_ms(self.slot),
            now_ms: pg::now_ms(),
            starved: self.slot.starved.load(Ordering::Relaxed) != 0,
            range_len: self.accepted.range_len,
            row_incarnation: seen.state.row_incarnation,
            access: self.slot.access(),
        }
    }

    /// Records a source server's claim in the local row, then publishes it.
    fn receive(
        &mut self,
        services: &mut Services,
        version: u64,
        seen: &Seen,
        received: Received,
    ) -> Next {
        let area = services.area;
        let ask = self.ask(seen);
        let Received { source, answer, .. } = received;
        let key = self.key;
        pg::report_activity(Some(&activity(&key)));
        // The source server has waited for its standbys; this is only a record of it.
        pg::pin_setting(
            c"synchronous_commit",
            ClaimSynchronousCommit::Local.setting(),
        );
        match pg::transaction(|| receive::receive(&key, &ask, &received)) {
            Ok(claimed) => {
                let next = self.arrive_from_server(area, version, &answer, &claimed);
                services.log_end(&key); // Last, since logging checks for interrupts.
                if ![0, answer.incarnation].contains(&source.row.server_incarnation) {
                    let (tag, server) = (key.tag.name(), source.server.text());
                    let first = answer.first;
                    pgrx::warning!(
                        "leaf_id: tag \"{tag}\" was reset or recreated on server \"{server}\": its ids go on at {first}"
                    );
                }
                next
            }
            // The new row gets a new request.
            Err(Unreceived::Replaced) => {
                sometimes!("request: answered for a row that was replaced");
                self.start_over(area)
            }
            Err(Unreceived::Tag(error)) => {
                self.fail(services, version, error, "", &source.server.text())
            }
            Err(Unreceived::Raised(error)) => self.fail_caught(services, version, &error),
        }
    }

    /// Republishes a saved range, if the row is unchanged since it was saved. Otherwise drops the
    /// saved ranges, which become a gap.
    fn restore(
        &mut self,
        services: &mut Services,
        version: u64,
        seen: &Seen,
        range: IdRange,
    ) -> Option<Next> {
        let area = services.area;
        let state = &seen.state;
        let (incarnation, access) = (state.row_incarnation, self.slot.access());
        let look = || Ok::<_, Caught>(claim::look(&self.key, incarnation, access));
        let row = match pg::transaction(look) {
            Ok(row) => row,
            Err(error) => return Some(self.fail_caught(services, version, &error)),
        };
        let is_published = row.is_some_and(|(row, access)| {
            row.fits(incarnation, state.max_id, range.end() - 1)
                && area.publish_saved_range(self.slot, version, access).is_ok()
        });
        if is_published {
            sometimes!("request: a saved range is back");
            return Some(self.clear(area));
        }
        sometimes!("request: saved ranges do not fit the row");
        area.with_request(self.slot, &self.accepted, SlotState::drop_saved);
        None
    }

    /// Claims from the local row, in one transaction, then publishes the claim.
    fn claim(&mut self, services: &mut Services, version: u64, seen: &Seen) -> Next {
        let area = services.area;
        let key = self.key;
        let ask = self.ask(seen);
        pg::report_activity(Some(&activity(&key)));
        let waits = || area.note(self.slot, version, RefillError::AwaitsStandby, None);
        match claim_durably(&key, &ask, waits) {
            Ok(claimed) => {
                let next = self.arrive(area, version, &claimed);
                services.log_end(&key); // As above.
                claim::log_skip(&key.tag, claimed.skipped);
                next
            }
            Err(Unclaimed::Unacknowledged(claimed)) => {
                self.lose_unacknowledged(area, version, &claimed)
            }
            Err(Unclaimed::Tag(error)) => self.fail(services, version, error, "", ""),
            Err(Unclaimed::Sourced(source)) => self.ask_server(services, version, *source),
            Err(Unclaimed::Raised(error)) => self.fail_caught(services, version, &error),
        }
    }

    fn ask_server(&mut self, services: &mut Services, version: u64, source: TagSource) -> Next {
        let area = services.area;
        let server = area
            .remote_servers()
            .update(self.key.database, &source.server, |_| {});
        area.note(self.slot, version, RefillError::Asked { server }, None);
        self.state = RequestState::Asked;
        services.central.enqueue(RemoteRequest {
            number: self.number,
            slot: self.slot,
            key: self.key,
            source,
            version,
            range_len: self.accepted.range_len,
        });
        Next::Kept
    }

    /// Handles a refusal by the tag's source server.
    fn refuse(
        &mut self,
        services: &mut Services,
        asked: &RemoteRequest,
        error: &RemoteError,
    ) -> Next {
        let (version, server) = (asked.version, &asked.source.server);
        let number = services
            .area
            .remote_servers()
            .update(self.key.database, server, |_| {});
        let refused = RefillError::Refused {
            server: number,
            sqlstate: error.sqlstate.unwrap_or(sqlstate::INTERNAL_ERROR),
        };
        self.fail(services, version, refused, &server.text(), &error.message)
    }

    /// PostgreSQL has raised an error.
    fn fail_caught(&mut self, services: &mut Services, version: u64, error: &Caught) -> Next {
        let key = self.key;
        if error.code == PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE {
            sometimes!("request: the row stays locked");
            let blocker = pg::transaction(|| Ok::<_, Caught>(blocker::find(&key)));
            if let Ok(error) = blocker {
                return self.fail(services, version, error, "", "");
            }
        }
        self.fail(services, version, RefillError::Failed, "", &error.message)
    }

    /// There are no ids. `server`: the source server, where the error has its number; `text` goes
    /// with the error.
    fn fail(
        &mut self,
        services: &mut Services,
        version: u64,
        error: RefillError,
        server: &str,
        text: &str,
    ) -> Next {
        let next = self.note_failure(services.area, version, error, text);
        if let Some(text) = error.log_text(server, text) {
            services.log_once(&self.key, &text);
        }
        next
    }
}

/// Changes in shared memory. If ids were claimed, they are part of the claim that the launcher waits
/// for.
impl Request {
    fn clear(&self, area: &Area) -> Next {
        area.queues().clear_request(self.slot, &self.accepted);
        Next::Cleared
    }

    /// Leaves the request open for a retry. No tag holds up another.
    fn put_off(&mut self) -> Next {
        let at = Instant::now() + self.back_off;
        self.back_off = (self.back_off * 2).min(MAX_BACK_OFF);
        if let RequestState::Received { due, .. } = &mut self.state {
            *due = at;
        } else {
            self.state = RequestState::Due(at);
        }
        Next::Kept
    }

    fn note_failure(&mut self, area: &Area, version: u64, error: RefillError, text: &str) -> Next {
        // The row may have been replaced while its lock was waited for: look again, in a new
        // transaction.
        if error == RefillError::NoSuchTag && !matches!(self.state, RequestState::Missed) {
            sometimes!("request: no row, and another look");
            self.state = RequestState::Missed;
            return Next::Kept;
        }
        let is_final = error.is_final();
        if is_final {
            self.lose_answer(area);
        }
        area.note(self.slot, version, error, Some(text));
        if !is_final {
            return self.put_off();
        }
        sometimes!("request: held after a final error");
        // Otherwise it would be requested again with every id taken.
        self.state = RequestState::Held {
            version,
            until: Instant::now() + HOLD,
        };
        Next::Kept
    }

    /// Makes the request due again, with a new look at the row.
    fn start_over(&mut self, area: &Area) -> Next {
        self.lose_answer(area);
        self.state = RequestState::Due(Instant::now());
        Next::Kept
    }

    /// Publishes a claim that is committed and flushed; no session may see it earlier (I1). If it is
    /// too short for a range, the session requests again, and the next claim is longer.
    fn arrive(&mut self, area: &Area, version: u64, claimed: &Claimed) -> Next {
        area.note_claim(self.slot, &self.accepted, claimed);
        let published = area.publish(self.slot, &self.accepted, version, claimed);
        // Overtaken by a previous allocator, whose segment is no longer the spare: claim again.
        if published == Err(Refused::OutOfOrder) && !self.slot.buffer.has_spare() {
            return Next::Kept;
        }
        self.clear(area)
    }

    fn arrive_from_server(
        &mut self,
        area: &Area,
        version: u64,
        answer: &ClaimAnswer,
        claimed: &Claimed,
    ) -> Next {
        area.with_request(self.slot, &self.accepted, |state| {
            let there = &self.slot.server_max_step;
            there.store(answer.max_step, Ordering::Relaxed);
            // Ranges returned since are older, and would be out of order (I4).
            state.drop_saved();
        });
        self.lose(area, answer.len - claimed.len);
        self.arrive(area, version, claimed)
    }

    /// The ids must not be visible (I1), but the claim is recorded.
    fn lose_unacknowledged(&mut self, area: &Area, version: u64, claimed: &Claimed) -> Next {
        area.note_claim(self.slot, &self.accepted, claimed);
        let text = Some("the claim was canceled, not acknowledged");
        area.note(self.slot, version, RefillError::Failed, text);
        self.lose(area, claimed.len);
        self.put_off()
    }

    fn lose(&self, area: &Area, ids: u32) {
        if ids > 0 {
            area.lose(self.slot, &self.accepted, ids);
        }
    }

    fn lose_answer(&self, area: &Area) {
        self.lose(
            area,
            self.received().map_or(0, |received| received.answer.len),
        );
    }
}

/// Claims in a separate transaction. `about_to_wait` is called before the commit if it has to wait
/// for a standby.
fn claim_durably(key: &Key, ask: &Ask, about_to_wait: impl FnOnce()) -> Result<Claimed, Unclaimed> {
    let acknowledgement = guc::CLAIM_SYNCHRONOUS_COMMIT.get();
    let has_standbys =
        || acknowledgement != ClaimSynchronousCommit::Local && pg::has_synchronous_standbys();
    let will_wait = has_standbys();
    pg::pin_setting(c"synchronous_commit", acknowledgement.setting());
    // Let PostgreSQL process earlier interrupts now. At the commit they would end the wait for a
    // standby, and go unnoticed here.
    pg::take_canceled();
    pg::check_for_interrupts();
    let claimed = pg::transaction(|| {
        let claimed = claim::claim(key, ask);
        // Again for the commit: code that ran in between must not decide on durability (I1).
        pg::pin_setting(c"synchronous_commit", acknowledgement.setting());
        if will_wait && claimed.is_ok() {
            about_to_wait();
        }
        claimed
    });
    // PostgreSQL reports a canceled wait for a standby as success (I1). Without a standby there was
    // no wait.
    let canceled = pg::take_canceled() && has_standbys();
    match claimed {
        Ok(claimed) if canceled => Err(Unclaimed::Unacknowledged(claimed)),
        claimed => claimed,
    }
}

fn activity(key: &Key) -> CString {
    let tag = key.tag.name();
    CString::new(format!("claim ids for tag \"{tag}\"")).unwrap_or_default()
}
