//! The allocator: claims segments for the tags of one database.
//!
//! It publishes a segment only once its claim is committed and durable (I1), here or on the tag's
//! source server. It never blocks on a source server: local tags, and those of other servers, are
//! served meanwhile. It exits if it is idle, if another session waits for exclusive access to the
//! database (DROP DATABASE), or if others need its worker slot. The [reserve
//! worker](super::reserve) can act as an allocator; it exits sooner in the last case.

use std::collections::{HashMap, VecDeque};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pgrx::{PgSqlErrorCode, pg_sys};

use super::handle::WorkerHandle;
use super::request::{Next, Outcome, Received, Request, Seen};
use super::settings;
use crate::error::RefillError;
use crate::guc::{self, ClaimSynchronousCommit};
use crate::pg::{self, Caught, WaitEvent, sqlstate};
use crate::remote::RemoteError;
use crate::remote::central::{Central, RemoteOutcome, RemoteRequest, Returned};
use crate::shmem::{self, Area, Claimed, IdRange, Key};
use crate::tags::blocker;
use crate::tags::claim::{self, Ask, TagSource, Unclaimed};
use crate::tags::receive::{self, Arrival, Unreceived};

/// Interval between checks for a session that waits for the database.
const PROBE: Duration = Duration::from_millis(100);
/// Interval between lookups of the database's owner.
const OWNER_INTERVAL: Duration = Duration::from_secs(2);
/// Min tenure of an allocator while databases wait for a worker slot.
const CROWDED_TENURE: Duration = Duration::from_secs(1);
/// The same for the reserve worker, which may be the only one left.
const RESERVE_TENURE: Duration = Duration::from_millis(300);
/// Max extra tenure of the reserve worker while source servers have yet to answer.
const RESERVE_PATIENCE: Duration = Duration::from_millis(1700);
/// This process's [`WorkerHandle`], packed, for the exit callback; 0 if it has none.
static MY_HANDLE: AtomicU64 = AtomicU64::new(0);
static CONNECTED: AtomicBool = AtomicBool::new(false);
/// A claim is in progress in this process. For the exit callback.
static CLAIM_BEGUN: AtomicBool = AtomicBool::new(false);

/// Exit callback. Releases the queue however this process ends: canceled, terminated, or because
/// its database is gone.
fn allocator_exit() {
    let Some(area) = shmem::area() else { return };
    end_claim(area);
    let Some(handle) = WorkerHandle::unpack(MY_HANDLE.swap(0, Ordering::Relaxed)) else {
        return;
    };
    if CONNECTED.load(Ordering::Relaxed) {
        area.remote_servers().close(pg::database());
        area.queues().clear_requests_of(pg::database());
    } else {
        area.queues()
            .fail_posted(handle.queue, RefillError::NoAllocator);
    }
    area.queues()
        .detach(handle.queue, handle.registration, false);
}

/// Begins a claim, unless the launcher is saving the remainders.
fn begin_claim(area: &Area) -> bool {
    let begun = area.claims().begin();
    CLAIM_BEGUN.store(begun, Ordering::Relaxed);
    begun
}

fn end_claim(area: &Area) {
    if CLAIM_BEGUN.swap(false, Ordering::Relaxed) {
        area.claims().end();
    }
}

struct Allocator {
    area: &'static Area,
    handle: WorkerHandle,
    /// Running in the reserve worker.
    in_reserve: bool,
    /// All accepted requests, including those sent to source servers.
    requests: VecDeque<Request>,
    /// Number of requests accepted so far.
    accepted: u64,
    central: Central,
    arrived: Instant,
    worked_at: Instant,
    probed_at: Instant,
    owned_at: Instant,
    /// Last message logged per tag, to log once per change of state.
    logged: HashMap<Key, String>,
}

/// Main function of an allocator; the argument is its [`WorkerHandle`].
#[pgrx::pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn leaf_id_allocator_main(argument: pg_sys::Datum) {
    pg::handle_signals_in_transactions();
    let Some(area) = shmem::area() else { return };
    if let Some(handle) = WorkerHandle::unpack(argument.value() as u64) {
        allocate(area, handle, false);
    }
}

/// Attaches to the queue and serves it until there is a reason to exit.
pub fn allocate(area: &'static Area, handle: WorkerHandle, in_reserve: bool) {
    pg::on_exit(allocator_exit);
    MY_HANDLE.store(handle.pack(), Ordering::Relaxed);
    let Some(database) = area
        .queues()
        .attach(handle.queue, handle.registration, pg::my_latch())
    else {
        // Not attached, so there is nothing to release.
        MY_HANDLE.store(0, Ordering::Relaxed);
        return;
    };
    pg::connect(database);
    pg::belong_to_owner();
    CONNECTED.store(true, Ordering::Relaxed);
    settings::pin();
    let now = Instant::now();
    let mut allocator = Allocator {
        area,
        handle,
        in_reserve,
        requests: VecDeque::new(),
        accepted: 0,
        central: Central::default(),
        arrived: now,
        worked_at: now,
        probed_at: now,
        owned_at: now,
        logged: HashMap::new(),
    };
    allocator.run();
}

/// Main loop and reasons to exit.
impl Allocator {
    fn run(&mut self) {
        loop {
            // A claim that never waits never checks for interrupts, and under load nothing else
            // does.
            pg::check_for_interrupts();
            pg::reload_if_asked();
            self.accept_requests();
            if self.must_leave() {
                break;
            }
            let served = self.serve_one();
            let returned = self.central.turn(self.area, Instant::now());
            if served || !returned.is_empty() {
                self.worked_at = Instant::now();
            } else {
                if self.may_leave() && self.detach(true) {
                    self.central.leave(self.area);
                    return;
                }
                self.wait();
            }
            for returned in returned {
                self.take_back(returned);
            }
        }
        self.detach(false);
        self.central.leave(self.area);
        // Waiting sessions will re-request from the next allocator.
        for mut request in core::mem::take(&mut self.requests) {
            request.complete(self.area, Outcome::Dropped);
        }
    }

    fn detach(&self, only_idle: bool) -> bool {
        let WorkerHandle {
            queue,
            registration,
        } = self.handle;
        let detached = self.area.queues().detach(queue, registration, only_idle);
        if detached {
            MY_HANDLE.store(0, Ordering::Relaxed);
        }
        detached
    }

    fn accept_requests(&mut self) {
        let mut posted = Vec::new();
        self.area
            .queues()
            .collect_requests(self.handle.queue, &mut posted);
        for slot in posted {
            let Some(mut request) = Request::accept(self.area, slot, self.accepted) else {
                continue;
            };
            if request.key.database != pg::database() {
                // Defensive: the slot was given to another database after it was posted.
                request.complete(self.area, Outcome::Dropped);
                continue;
            }
            self.accepted += 1;
            self.requests.push_back(request);
            self.worked_at = Instant::now();
        }
    }

    /// True if a session waits for the database, or databases have waited too long for a worker
    /// slot.
    fn must_leave(&mut self) -> bool {
        if self.probed_at.elapsed() >= PROBE {
            self.probed_at = Instant::now();
            if !pg::database_is_free() {
                return true;
            }
        }
        if self.owned_at.elapsed() >= OWNER_INTERVAL {
            self.owned_at = Instant::now();
            pg::belong_to_owner();
        }
        self.crowded() && self.arrived.elapsed() >= self.tenure()
    }

    /// Tenure while others wait for this worker slot.
    fn tenure(&self) -> Duration {
        let patience = self.central.patience();
        if self.in_reserve {
            RESERVE_TENURE + patience.min(RESERVE_PATIENCE)
        } else {
            CROWDED_TENURE + patience
        }
    }

    fn crowded(&self) -> bool {
        self.area.queues().is_crowded()
    }

    fn may_leave(&self) -> bool {
        let idle = u64::try_from(guc::ALLOCATOR_IDLE_TIMEOUT.get()).unwrap_or(0);
        self.requests.is_empty()
            && (self.crowded() || self.worked_at.elapsed() >= Duration::from_millis(idle))
    }

    fn wait(&self) {
        let activity = self.central.activity();
        let event = match activity {
            Some(_) => WaitEvent::Remote,
            None => WaitEvent::Allocator,
        };
        pg::report_activity(activity.as_deref());
        pg::wait_for(self.wait_ms(), &self.central.sockets(), event);
    }

    fn wait_ms(&self) -> i64 {
        let now = Instant::now();
        let due = self.requests.iter().filter_map(|request| request.due(now));
        let due = due.chain(self.central.next_deadline()).min();
        let wait = due.map_or(PROBE, |due| due.saturating_duration_since(now));
        i64::try_from(wait.min(PROBE).as_millis()).unwrap_or(1) + 1
    }

    /// Serves the first request that is due, round robin. False if none is due.
    fn serve_one(&mut self) -> bool {
        let now = Instant::now();
        let is_due = |request: &Request| request.due(now).is_some_and(|due| due <= now);
        let position = self.requests.iter().position(is_due);
        let Some(mut request) = position.and_then(|at| self.requests.remove(at)) else {
            return false;
        };
        let next = self.serve(&mut request);
        self.keep(request, next);
        true
    }

    fn keep(&mut self, request: Request, next: Next) {
        if next != Next::Cleared {
            self.requests.push_back(request);
        }
    }

    /// Handles a request returned by the connection to its source server.
    fn take_back(&mut self, (asked, outcome): Returned) {
        let is_it = |request: &Request| request.number == asked.number;
        let position = self.requests.iter().position(is_it);
        let Some(mut request) = position.and_then(|at| self.requests.remove(at)) else {
            return;
        };
        let next = match outcome {
            RemoteOutcome::Answered { answer, step } => {
                let source = asked.source;
                let received = Received {
                    source,
                    answer,
                    step,
                };
                request.complete(self.area, Outcome::Answered(received));
                // At once: if this process exits before, the answer is lost.
                self.serve(&mut request)
            }
            RemoteOutcome::Refused(error) => self.refuse(&mut request, &asked, &error),
            RemoteOutcome::Stale => request.complete(self.area, Outcome::Stale),
        };
        self.keep(request, next);
    }
}

/// Processing of a request.
impl Allocator {
    fn serve(&mut self, request: &mut Request) -> Next {
        if request.is_held() {
            return request.complete(self.area, Outcome::Ended);
        }
        // Read the version before begin_claim, so that nothing can be published once the remainders
        // were taken out, and before the transaction, so that any edit from now on discards the
        // claim.
        let Some(Seen { version, .. }) = request.look(self.area) else {
            return request.complete(self.area, Outcome::Dropped);
        };
        if !begin_claim(self.area) {
            return request.complete(self.area, Outcome::Closed);
        }
        // The launcher, which may be exiting, counts this as one claim.
        let mut next = Next::More;
        while next == Next::More {
            next = self.step(request, version);
        }
        end_claim(self.area);
        next
    }

    /// Runs one transaction: records a source server's answer, republishes a saved range, or
    /// claims.
    fn step(&mut self, request: &mut Request, version: u64) -> Next {
        let Some(seen) = request.look(self.area) else {
            return request.complete(self.area, Outcome::Dropped);
        };
        if let Some(received) = request.received() {
            return self.receive(request, version, &seen, received);
        }
        if request.slot.buffer.has_spare() {
            return request.complete(self.area, Outcome::HasSpare);
        }
        if let Some(range) = seen.state.next_saved() {
            return self.restore(request, version, &seen, range);
        }
        self.claim(request, version, &seen)
    }

    /// Records a source server's claim in the local row, then publishes it.
    fn receive(
        &mut self,
        request: &mut Request,
        version: u64,
        seen: &Seen,
        received: Received,
    ) -> Next {
        let Received {
            source,
            answer,
            step,
        } = received;
        let arrival = Arrival {
            source,
            answer,
            pace: seen.state.pace,
            step,
            asked_ms: claim::asked_ms(request.slot),
            now_ms: pg::now_ms(),
            row_incarnation: seen.state.row_incarnation,
            high: seen.high,
            access: request.slot.access(),
        };
        let key = request.key;
        pg::report_activity(Some(&activity(&key)));
        // The source server has waited for its standbys; this is only a record of it.
        pg::pin_setting(
            c"synchronous_commit",
            ClaimSynchronousCommit::Local.setting(),
        );
        match pg::transaction(|| receive::receive(&key, &arrival)) {
            Ok(claimed) => {
                let noted = Outcome::Noted {
                    version,
                    answer,
                    claimed,
                };
                let next = request.complete(self.area, noted);
                self.log_end(&key); // Last, since logging checks for interrupts.
                if ![0, answer.incarnation].contains(&source.server_incarnation) {
                    let (tag, server) = (key.tag.name(), source.server.text());
                    let first = answer.first;
                    pgrx::warning!(
                        "leaf_id: tag \"{tag}\" was reset or created anew on server \"{server}\": its ids go on at {first}"
                    );
                }
                next
            }
            // The new row gets a new request.
            Err(Unreceived::Replaced) => request.complete(self.area, Outcome::Replaced),
            Err(Unreceived::Tag(error)) => {
                self.fail(request, version, error, "", &source.server.text())
            }
            Err(Unreceived::Raised(error)) => self.fail_caught(request, version, &error),
        }
    }

    /// Republishes a saved range, if the row is unchanged since it was saved.
    fn restore(
        &mut self,
        request: &mut Request,
        version: u64,
        seen: &Seen,
        range: IdRange,
    ) -> Next {
        let state = &seen.state;
        let (incarnation, access) = (state.row_incarnation, request.slot.access());
        let look = || Ok::<_, Caught>(claim::look(&request.key, incarnation, access));
        let row = match pg::transaction(look) {
            Ok(row) => row,
            Err(error) => return self.fail_caught(request, version, &error),
        };
        let fits = row.filter(|row| {
            (row.incarnation, row.max_id) == (state.row_incarnation, state.max_id)
                && range.end() - 1 <= row.max_value
        });
        let outcome = fits.map_or(Outcome::Outdated, |row| Outcome::Fits {
            version,
            access: row.access,
        });
        request.complete(self.area, outcome)
    }

    /// Claims from the local row, in one transaction.
    fn claim(&mut self, request: &mut Request, version: u64, seen: &Seen) -> Next {
        let key = request.key;
        let ask = Ask {
            pace: seen.state.pace,
            asked_ms: claim::asked_ms(request.slot),
            now_ms: pg::now_ms(),
            starved: request.slot.starved.load(Ordering::Relaxed) != 0,
            range_len: request.range_len(),
            row_incarnation: seen.state.row_incarnation,
            // The state's max_id remains valid after an edit, which ends the version.
            high: seen.high.max(seen.state.max_id),
            access: request.slot.access(),
        };
        pg::report_activity(Some(&activity(&key)));
        let waits = || {
            self.area
                .note(request.slot, version, RefillError::AwaitsStandby, None);
        };
        match claim_durably(&key, &ask, waits) {
            Ok(claimed) => {
                let next = request.complete(self.area, Outcome::Claimed { version, claimed });
                self.log_end(&key); // As above.
                claim::log_skip(&key.tag, claimed.skipped);
                next
            }
            Err(Unclaimed::Unacknowledged(claimed)) => {
                request.complete(self.area, Outcome::Unacknowledged { version, claimed })
            }
            Err(Unclaimed::Tag(error)) => self.fail(request, version, error, "", ""),
            Err(Unclaimed::Sourced(source)) => self.ask_server(request, version, source),
            Err(Unclaimed::Raised(error)) => self.fail_caught(request, version, &error),
        }
    }

    fn ask_server(&mut self, request: &mut Request, version: u64, source: TagSource) -> Next {
        let server = source.server;
        let next = request.complete(self.area, Outcome::Sourced { version, server });
        self.central.enqueue(RemoteRequest {
            number: request.number,
            slot: request.slot,
            key: request.key,
            source,
            version,
            range_len: request.range_len(),
        });
        next
    }

    /// Handles a refusal by the tag's source server.
    fn refuse(
        &mut self,
        request: &mut Request,
        asked: &RemoteRequest,
        error: &RemoteError,
    ) -> Next {
        let (version, server) = (asked.version, &asked.source.server);
        let number = self
            .area
            .remote_servers()
            .update(pg::database(), server, |_| {});
        let refused = RefillError::Refused {
            server: number,
            sqlstate: error.sqlstate.unwrap_or(sqlstate::INTERNAL_ERROR),
        };
        self.fail(request, version, refused, &server.text(), &error.message)
    }

    /// PostgreSQL has raised an error.
    fn fail_caught(&mut self, request: &mut Request, version: u64, error: &Caught) -> Next {
        let key = request.key;
        if error.code == PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE {
            let blocker = pg::transaction(|| Ok::<_, Caught>(blocker::find(&key)));
            if let Ok(error) = blocker {
                return self.fail(request, version, error, "", "");
            }
        }
        self.fail(request, version, RefillError::Failed, "", &error.message)
    }

    /// There are no ids. `server`: the source server, where the error has its number; `text` goes
    /// with the error.
    fn fail(
        &mut self,
        request: &mut Request,
        version: u64,
        error: RefillError,
        server: &str,
        text: &str,
    ) -> Next {
        let outcome = Outcome::Failed {
            version,
            error,
            text: Some(text),
        };
        let next = request.complete(self.area, outcome);
        if let Some(text) = error.log_text(server, text) {
            self.log_once(&request.key, &text);
        }
        next
    }

    fn log_once(&mut self, key: &Key, text: &str) {
        if self.logged.get(key).is_none_or(|last| last != text) {
            pgrx::warning!(
                "leaf_id: could not claim ids for tag \"{}\", which has only what is cached: {text}",
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

/// Claims in a separate transaction. The second result is false if required standbys did not
/// acknowledge the commit. `about_to_wait` is called before the commit if there are any.
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
