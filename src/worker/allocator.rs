//! An allocator: it claims segments for the tags of one database.
//!
//! It publishes a segment only when its claim has committed and is durable (I1), here or on
//! the source server of the tag. It never waits for that server: local tags, and those of
//! other servers, are served meanwhile. It leaves when there is nothing to do, when somebody
//! waits for the database, or when others need its worker slot. The [reserve
//! worker](super::reserve) is one for a while, and leaves sooner then.

use std::collections::{HashMap, VecDeque};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leaf_id_core::segment::{Refused, Request};
use pgrx::{PgSqlErrorCode, pg_sys};

use super::{pack, pin_settings, unpack};
use crate::guc::{self, ClaimSynchronousCommit};
use crate::pg::{self, Caught, WaitEvent};
use crate::remote::RemoteError;
use crate::remote::central::{Central, Errand, Outcome};
use crate::shmem::{self, Area, Claimed, IdRange, Key, RefillError, Slot, SlotState};
use crate::tags::blocker;
use crate::tags::claim::{self, Answer, Arrival, ArrivalProblem, Ask, ClaimProblem, TagSource};

/// How often an allocator looks whether somebody waits for its database.
const PROBE: Duration = Duration::from_millis(100);
/// How long an allocator may stay although databases wait for a worker slot.
const CROWDED_TENURE: Duration = Duration::from_secs(1);
/// The same for the reserve worker, where that may be the only one that is left ...
const RESERVE_TENURE: Duration = Duration::from_millis(300);
/// ... and how much longer it waits for other servers' answers.
const RESERVE_PATIENCE: Duration = Duration::from_millis(1700);
/// How an allocator backs off from a tag: first, and at most.
const BACK_OFF: Duration = Duration::from_millis(50);
const MAX_BACK_OFF: Duration = Duration::from_millis(500);
/// How long a request stays closed after an answer that asking again will not change.
const HOLD: Duration = Duration::from_secs(1);

/// This process's queue and registration, as the launcher packed them; 0 when it has none (no
/// registration is 0). For the exit callback.
static MY_HANDLE: AtomicU64 = AtomicU64::new(0);
static CONNECTED: AtomicBool = AtomicBool::new(false);
/// A claim of this process has begun and not ended. For the exit callback.
static CLAIM_BEGUN: AtomicBool = AtomicBool::new(false);

/// Gives the queue back however this process ends: cancelled, terminated, or because its
/// database is gone.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn allocator_exit(_code: i32, _arg: pg_sys::Datum) {
    let Some(area) = shmem::area() else { return };
    end_claim(area);
    let (queue, registration) = match MY_HANDLE.swap(0, Ordering::Relaxed) {
        0 => return,
        slot_ref => unpack(slot_ref),
    };
    if CONNECTED.load(Ordering::Relaxed) {
        area.remote_servers().close(pg::database());
        area.queues().clear_requests_of(pg::database());
    } else {
        area.queues().fail_posted(queue, RefillError::NoAllocator);
    }
    area.queues().detach(queue, registration, false);
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

/// A slot's request. It is dropped once the slot is evicted; until that is noticed, nothing
/// that is done for it touches what is another tag's by now.
pub struct Job {
    /// The slot.
    pub slot: &'static Slot,
    /// Its request, and the longest range a session waits for.
    pub request: Request,
    /// Whose it is, as long as the request is open.
    pub key: Key,
    /// What was claimed on another server of such a range, and must not be published before
    /// the rest.
    pub part: Option<Part>,
    /// What another server has answered, before it is written down here.
    pending: Option<Pending>,
    due: Instant,
    back_off: Duration,
    /// The row was not found once.
    missed: bool,
    /// Nothing is left to do but to let sessions ask again, later or in another version.
    answered: Option<u64>,
}

/// Ids that are claimed and wait for more.
pub struct Part {
    /// The slot's version when they were.
    version: u64,
    /// The ids.
    pub claimed: Claimed,
}

/// Ids that another server has claimed.
#[derive(Clone, Copy)]
struct Pending {
    source: TagSource,
    answer: Answer,
    /// The adaptive step that it was asked with.
    step: u32,
}

impl Job {
    /// When a segment was first asked for since the last one came, in Unix milliseconds.
    pub fn asked_ms(&self) -> i64 {
        (self.slot.wanted_since() + pg::TIMESTAMP_EPOCH_US) / 1000
    }

    fn is_due(&self, now: Instant) -> bool {
        // The row was edited since the answer: it may be another one now.
        let outlived = self
            .answered
            .is_some_and(|version| self.slot.buffer.version() != version);
        self.due <= now || outlived
    }
}

/// How far a request has come.
enum Progress {
    /// It is answered.
    Over,
    /// It stays open, for a later try.
    Later,
    /// This much of a range is claimed, and more must be before it is published.
    Part(Claimed),
    /// Another server is to be asked.
    Elsewhere(TagSource, u64),
}

struct Allocator {
    area: &'static Area,
    queue: u32,
    registration: u32,
    /// It is the reserve worker.
    in_reserve: bool,
    jobs: VecDeque<Job>,
    central: Central,
    arrived: Instant,
    worked_at: Instant,
    probed_at: Instant,
    /// The last message logged for each tag: once per change of state.
    logged: HashMap<Key, String>,
}

/// An allocator's main function; the argument is its queue and its registration.
#[pgrx::pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn leaf_id_allocator_main(argument: pg_sys::Datum) {
    pg::handle_signals_in_transactions();
    let Some(area) = shmem::area() else { return };
    let (queue, registration) = unpack(argument.value() as u64);
    allocate(area, queue, registration, false);
}

/// Serves the queue that awaits an allocator with this registration, until there is a reason to leave.
pub fn allocate(area: &'static Area, queue: u32, registration: u32, in_reserve: bool) {
    pg::on_exit(allocator_exit);
    MY_HANDLE.store(pack(queue, registration), Ordering::Relaxed);
    let Some(database) = area.queues().attach(queue, registration, pg::my_latch()) else {
        // Not ours to give back.
        MY_HANDLE.store(0, Ordering::Relaxed);
        return;
    };
    pg::connect(database);
    CONNECTED.store(true, Ordering::Relaxed);
    pin_settings();
    let now = Instant::now();
    let mut allocator = Allocator {
        area,
        queue,
        registration,
        in_reserve,
        jobs: VecDeque::new(),
        central: Central::default(),
        arrived: now,
        worked_at: now,
        probed_at: now,
        logged: HashMap::new(),
    };
    allocator.run();
}

impl Allocator {
    fn run(&mut self) {
        loop {
            pg::reload_if_asked();
            self.accept_requests();
            if self.must_leave() {
                break;
            }
            let served = self.serve_one();
            let outcomes = self.central.turn(self.area, Instant::now());
            if served || !outcomes.is_empty() {
                self.worked_at = Instant::now();
            } else {
                if self.may_leave()
                    && self
                        .area
                        .queues()
                        .detach(self.queue, self.registration, true)
                {
                    MY_HANDLE.store(0, Ordering::Relaxed);
                    self.central.leave(self.area);
                    return;
                }
                self.wait();
            }
            for outcome in outcomes {
                self.take_back(outcome);
            }
        }
        self.area
            .queues()
            .detach(self.queue, self.registration, false);
        MY_HANDLE.store(0, Ordering::Relaxed);
        // Sessions that still wait ask again, of whoever comes next.
        let elsewhere = self.central.leave(self.area);
        for job in self.jobs.iter().chain(&elsewhere) {
            self.area.queues().clear_request(job.slot, &job.request);
        }
    }

    fn accept_requests(&mut self) {
        let mut posted = Vec::new();
        self.area.queues().collect_requests(self.queue, &mut posted);
        let now = Instant::now();
        for slot in posted {
            if let Some((request, key)) = self.area.queues().accept(slot) {
                if key.database != pg::database() {
                    // Given to another database after it was posted, though it should not be.
                    self.area.queues().clear_request(slot, &request);
                    continue;
                }
                self.jobs.push_back(Job {
                    slot,
                    request,
                    key,
                    part: None,
                    pending: None,
                    due: now,
                    back_off: BACK_OFF,
                    missed: false,
                    answered: None,
                });
                self.worked_at = now;
            }
        }
    }

    /// Somebody waits for the database, or databases wait for a worker slot too long.
    fn must_leave(&mut self) -> bool {
        if self.probed_at.elapsed() >= PROBE {
            self.probed_at = Instant::now();
            if !pg::database_is_free() {
                return true;
            }
        }
        self.crowded() && self.arrived.elapsed() >= self.tenure()
    }

    /// How long it stays while others wait for its worker slot.
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
        self.jobs.is_empty()
            && !self.central.has_work()
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
        let due = self.jobs.iter().map(|job| job.due);
        let due = due.chain(self.central.next_deadline()).min();
        let wait = due.map_or(PROBE, |due| due.saturating_duration_since(now));
        i64::try_from(wait.min(PROBE).as_millis()).unwrap_or(1) + 1
    }

    /// Serves the first request that is due, round robin. False if none is.
    fn serve_one(&mut self) -> bool {
        let now = Instant::now();
        let Some(position) = self.jobs.iter().position(|job| job.is_due(now)) else {
            return false;
        };
        let Some(mut job) = self.jobs.remove(position) else {
            return false;
        };
        let progress = if job.answered.is_some() {
            Progress::Over
        } else {
            self.serve(&mut job)
        };
        self.finish(job, progress);
        true
    }

    fn finish(&mut self, job: Job, progress: Progress) {
        match progress {
            Progress::Over => self.area.queues().clear_request(job.slot, &job.request),
            Progress::Later | Progress::Part(_) => self.jobs.push_back(job),
            Progress::Elsewhere(source, version) => {
                self.central.enqueue(self.area, job, source, version)
            }
        }
    }

    /// A request comes back from the source server of its tag.
    fn take_back(&mut self, outcome: Outcome) {
        let mut job = match outcome {
            Outcome::Answered(errand, answer) => {
                let Errand {
                    mut job,
                    source,
                    step,
                    ..
                } = errand;
                job.pending = Some(Pending {
                    source,
                    answer,
                    step,
                });
                // At once: who leaves first loses it.
                let progress = self.serve(&mut job);
                return self.finish(job, progress);
            }
            Outcome::Refused(errand, error) => self.note_refusal(errand, &error),
            Outcome::Stale(job) => job,
        };
        // The rest does not come now: what there is need not wait for it.
        self.publish_part(&mut job);
        self.jobs.push_back(job);
    }

    /// Gives a saved range back, or claims.
    fn serve(&mut self, job: &mut Job) -> Progress {
        // Before the claim begins, so that nothing can be published once the remainders were
        // taken out; and before its transaction: an edit from now on drops what it claims.
        let seen = self.look(job);
        let Some((version, state, _)) = seen else {
            return self.drop_evicted(job);
        };
        if !begin_claim(self.area) {
            return self.put_off(job);
        }
        let saved = state.next_saved();
        let pending = job.pending.take();
        let mut progress = match (pending, saved) {
            (Some(pending), _) => self.receive(job, version, pending),
            // Asked for again by a session that had looked before it came.
            _ if job.slot.buffer.has_spare() => {
                job.slot.forget_wanted();
                Progress::Over
            }
            (None, Some(rest)) => self.publish_saved(job, version, rest),
            (None, None) => self.claim(job, version, None),
        };
        // One claim to the launcher, which may end.
        while let Progress::Part(part) = progress {
            progress = self.claim(job, version, Some(part));
        }
        end_claim(self.area);
        progress
    }

    /// The slot's version, what is remembered about its tag, and one past the last id published;
    /// `None` if the slot was evicted.
    fn look(&self, job: &Job) -> Option<(u64, SlotState, i64)> {
        let buffer = job.slot.buffer;
        let look = |state: &mut SlotState| (buffer.version(), *state, buffer.high());
        self.area.with_request(job.slot, &job.request, look)
    }

    /// The slot was evicted: what was claimed for it is a gap.
    fn drop_evicted(&self, job: &mut Job) -> Progress {
        let part = job.part.take().map_or(0, |part| part.claimed.len);
        let answer = job.pending.take().map_or(0, |pending| pending.answer.len);
        self.area.lose(job.slot, &job.request, part);
        self.area.lose(job.slot, &job.request, answer);
        Progress::Over
    }

    /// Writes down what another server has claimed, and publishes it. Until it can be
    /// written down it is kept, and that server is not asked again.
    fn receive(&mut self, job: &mut Job, version: u64, pending: Pending) -> Progress {
        let (slot, request, key) = (job.slot, job.request, job.key);
        let Some((_, state, high)) = self.look(job) else {
            job.pending = Some(pending);
            return self.drop_evicted(job);
        };
        let Pending {
            source,
            answer,
            step,
        } = pending;
        let arrival = Arrival {
            source,
            answer,
            pace: state.pace,
            step,
            asked_ms: job.asked_ms(),
            now_ms: pg::now_ms(),
            row_incarnation: state.row_incarnation,
            high,
        };
        pg::report_activity(Some(&activity(&key)));
        // That server has waited for its standbys; this is only a note of it.
        pg::pin_setting(
            c"synchronous_commit",
            ClaimSynchronousCommit::Local.setting(),
        );
        match pg::transaction(|| claim::receive(&key, &arrival)) {
            Ok(Ok(claimed)) => {
                self.area.with_request(slot, &request, |state| {
                    let there = &slot.server_max_step;
                    there.store(answer.max_step, Ordering::Relaxed);
                    // What was given back since is older, and would come out of order (I4).
                    state.drop_saved();
                });
                self.area.note_claim(slot, &request, &claimed);
                self.area.lose(slot, &request, answer.len - claimed.len);
                let part = self.take_part(job, version);
                let progress = match self.arrive(job, version, part, claimed) {
                    Progress::Part(claimed) => {
                        job.part = Some(Part { version, claimed });
                        Progress::Later
                    }
                    progress => progress,
                };
                // Last: whatever is logged looks for interrupts.
                if ![0, answer.incarnation].contains(&source.server_incarnation) {
                    let (tag, server) = (key.tag.name(), source.server.text());
                    let first = answer.first;
                    pgrx::warning!(
                        "leaf_id: tag \"{tag}\" was reset or created anew on server \"{server}\": its ids go on at {first}"
                    );
                }
                progress
            }
            Ok(Err(problem)) => {
                self.area.lose(slot, &request, answer.len);
                self.note_lost_answer(job, version, &source, problem)
            }
            Err(error) => {
                job.pending = Some(pending);
                self.note_error(job, version, &error);
                self.put_off(job)
            }
        }
    }

    fn note_lost_answer(
        &mut self,
        job: &mut Job,
        version: u64,
        source: &TagSource,
        problem: ArrivalProblem,
    ) -> Progress {
        match problem {
            // Whatever stands there now is looked at anew.
            ArrivalProblem::Replaced => Progress::Later,
            ArrivalProblem::EndOfTag { max_value } => self.hold(
                job,
                version,
                RefillError::EndOfTag { max_value, skip: 0 },
                None,
            ),
            ArrivalProblem::ServerBehind { received, answered } => {
                let server = source.server.text();
                let text = format!(
                    "server \"{server}\" has given {answered}, though ids below {received} were in use"
                );
                self.log_once(&job.key, &text);
                let refill_error = RefillError::ServerBehind { received, answered };
                self.hold(job, version, refill_error, Some(&server))
            }
        }
    }

    /// The source server of the tag has refused to.
    fn note_refusal(&mut self, errand: Errand, error: &RemoteError) -> Job {
        let Errand {
            mut job,
            source,
            version,
            ..
        } = errand;
        let link = self
            .area
            .remote_servers()
            .update(pg::database(), &source.server, |_| {});
        let sqlstate = error.sqlstate.unwrap_or(*b"XX000");
        let refill_error = RefillError::There { link, sqlstate };
        let text = Some(error.message.as_str());
        match &sqlstate {
            // No such tag, or none left of it.
            b"42704" | b"2200H" => {
                self.hold(&mut job, version, refill_error, text);
            }
            // Somebody is in the way there for a moment.
            b"40001" | b"40P01" | b"55P03" | b"57014" => {
                self.area.note(job.slot, version, refill_error, text);
                self.put_off(&mut job);
            }
            _ => {
                let server = source.server.text();
                let said = format!("server \"{server}\" has refused: {}", error.message);
                self.log_once(&job.key, &said);
                self.area.note(job.slot, version, refill_error, text);
                self.put_off(&mut job);
            }
        }
        job
    }

    /// What was claimed of a range so far, if it can still be published.
    fn take_part(&self, job: &mut Job, version: u64) -> Option<Claimed> {
        let part = job.part.take()?;
        if part.version != version {
            self.area.lose(job.slot, &job.request, part.claimed.len);
            return None;
        }
        Some(part.claimed)
    }

    /// Publishes what was claimed of a range, as no more comes of it for now.
    fn publish_part(&self, job: &mut Job) {
        let Some(part) = job.part.take() else { return };
        if begin_claim(self.area) {
            let _ = self
                .area
                .publish(job.slot, &job.request, part.version, &part.claimed);
            end_claim(self.area);
        } else {
            self.area.lose(job.slot, &job.request, part.claimed.len);
        }
    }

    /// Publishes what was cached before the launcher's last end, if the row is as it was
    /// then. Otherwise it is a gap, and ids are claimed.
    fn publish_saved(&mut self, job: &mut Job, version: u64, rest: IdRange) -> Progress {
        let slot = job.slot;
        let Some((_, state, _)) = self.look(job) else {
            return self.drop_evicted(job);
        };
        let row = match pg::transaction(|| Ok::<_, ()>(claim::look(&job.key))) {
            Ok(row) => row.ok().flatten(),
            Err(error) => {
                self.note_error(job, version, &error);
                return self.put_off(job);
            }
        };
        let fits = row.filter(|row| {
            (row.incarnation, row.max_id) == (state.row_incarnation, state.max_id)
                && rest.end() - 1 <= row.max_value
        });
        if let Some(row) = fits
            && self
                .area
                .publish_saved_range(slot, version, row.access)
                .is_ok()
        {
            return Progress::Over;
        }
        self.area
            .with_request(slot, &job.request, SlotState::drop_saved);
        self.claim(job, version, None)
    }

    /// One claim in one transaction, to go on after `part` if there is one.
    fn claim(&mut self, job: &mut Job, version: u64, part: Option<Claimed>) -> Progress {
        let (slot, request) = (job.slot, job.request);
        let Some((_, state, high)) = self.look(job) else {
            let claimed = part.map_or(0, |part| part.len);
            self.area.lose(slot, &request, claimed);
            return self.drop_evicted(job);
        };
        let ask = Ask {
            pace: state.pace,
            asked_ms: job.asked_ms(),
            now_ms: pg::now_ms(),
            starved: slot.starved.load(Ordering::Relaxed) != 0,
            range_len: request
                .range_len
                .saturating_sub(part.map_or(0, |part| part.len)),
            continues: part.is_some(),
            row_incarnation: state.row_incarnation,
            high: part.map_or(high, |part| part.end()),
        };
        let key = job.key;
        pg::report_activity(Some(&activity(&key)));
        let acknowledgement = guc::CLAIM_SYNCHRONOUS_COMMIT.get();
        pg::pin_setting(c"synchronous_commit", acknowledgement.setting());
        pg::take_cancelled();
        let result = pg::transaction(|| {
            let claimed = claim::claim(&key, &ask);
            // Once more, for the commit: nothing that ran may have a say in it (I1).
            pg::pin_setting(c"synchronous_commit", acknowledgement.setting());
            claimed
        });
        let cancelled = pg::take_cancelled();
        if !matches!(result, Ok(Ok(_)))
            && let Some(part) = part
        {
            // The rest does not come now: what there is need not wait for it.
            let _ = self.area.publish(slot, &request, version, &part);
        }
        match result {
            Ok(Ok(claimed)) => {
                self.area.note_claim(slot, &request, &claimed);
                // A cancelled wait for a standby returns as if it had been acknowledged
                // (I1). Without a standby there was nothing to wait for.
                let waits = acknowledgement != ClaimSynchronousCommit::Local;
                if cancelled && waits && pg::has_synchronous_standbys() {
                    let text = "the claim was cancelled, not acknowledged";
                    self.area
                        .note(slot, version, RefillError::Failed, Some(text));
                    let part = part.map_or(0, |part| part.len);
                    self.area.lose(slot, &request, claimed.len + part);
                    return self.put_off(job);
                }
                let progress = self.arrive(job, version, part, claimed);
                // Last: whatever is logged looks for interrupts.
                claim::log_skip(&key.tag, claimed.skipped);
                progress
            }
            Ok(Err(ClaimProblem::NoSuchTag)) => {
                // It may have been replaced while we waited for its lock: look once more,
                // in a new transaction.
                if !core::mem::replace(&mut job.missed, true) {
                    return Progress::Later;
                }
                self.hold(job, version, RefillError::NoSuchTag, None)
            }
            Ok(Err(ClaimProblem::EndOfTag { max_value, skip })) => self.hold(
                job,
                version,
                RefillError::EndOfTag { max_value, skip },
                None,
            ),
            Ok(Err(ClaimProblem::MaxIdBackwards { published, found })) => {
                let text = format!("max_id moved backwards, from {published} to {found}");
                self.log_once(&key, &text);
                self.hold(
                    job,
                    version,
                    RefillError::MaxIdBackwards { published, found },
                    None,
                )
            }
            Ok(Err(ClaimProblem::Sourced(source))) => Progress::Elsewhere(source, version),
            // Asked of claims for other servers alone.
            Ok(Err(ClaimProblem::Forbidden)) => self.put_off(job),
            Err(error) => {
                self.note_error(job, version, &error);
                self.put_off(job)
            }
        }
    }

    /// A claim is committed and flushed: only now may anybody see it (I1). A range that is
    /// too long for one claim is claimed piece by piece and published as one.
    fn arrive(
        &mut self,
        job: &Job,
        version: u64,
        part: Option<Claimed>,
        claimed: Claimed,
    ) -> Progress {
        let whole = match part {
            Some(part)
                if part.end() == claimed.first
                    && part.row_incarnation == claimed.row_incarnation =>
            {
                Claimed {
                    len: part.len + claimed.len,
                    ..part
                }
            }
            Some(part) => {
                self.area.lose(job.slot, &job.request, part.len);
                claimed
            }
            None => claimed,
        };
        if claimed.growth_limited && whole.len < job.request.range_len {
            return Progress::Part(whole);
        }
        let published = self.area.publish(job.slot, &job.request, version, &whole);
        self.logged.remove(&job.key);
        // Overtaken by an allocator before us: what it published is there.
        if published == Err(Refused::OutOfOrder) && !job.slot.buffer.has_spare() {
            return Progress::Later;
        }
        Progress::Over
    }

    fn note_error(&mut self, job: &Job, version: u64, error: &Caught) {
        let key = job.key;
        if error.code == PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE {
            let blocker = pg::transaction(|| Ok::<_, ()>(blocker::find(&key)));
            if let Ok(Ok(refill_error)) = blocker {
                self.area.note(job.slot, version, refill_error, None);
                return;
            }
        }
        self.log_once(&key, &error.message);
        self.area
            .note(job.slot, version, RefillError::Failed, Some(&error.message));
    }

    fn log_once(&mut self, key: &Key, text: &str) {
        if self.logged.get(key).is_none_or(|last| last != text) {
            let tag = key.tag.name();
            pgrx::warning!("leaf_id: could not claim ids for tag \"{tag}\": {text}");
            self.logged.insert(*key, text.to_string());
        }
    }

    /// The request stays open, for a later try. No tag holds up another.
    fn put_off(&self, job: &mut Job) -> Progress {
        job.due = Instant::now() + job.back_off;
        job.back_off = (job.back_off * 2).min(MAX_BACK_OFF);
        Progress::Later
    }

    /// The answer is final until the row is edited; but it must not be asked for again with
    /// every id that is taken.
    fn hold(
        &self,
        job: &mut Job,
        version: u64,
        refill_error: RefillError,
        text: Option<&str>,
    ) -> Progress {
        self.area.note(job.slot, version, refill_error, text);
        job.answered = Some(version);
        job.due = Instant::now() + HOLD;
        Progress::Later
    }
}

fn activity(key: &Key) -> CString {
    let tag = key.tag.name();
    CString::new(format!("claim ids for tag \"{tag}\"")).unwrap_or_default()
}
