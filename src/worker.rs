//! The control path: the launcher, and the allocators that it starts.
//!
//! A session cannot claim ids for itself: its transaction may roll back after it has
//! handed them out, and the table would hand them out again (I2). These workers are its
//! autonomous transaction. Waiting, SQL and files happen here, never on the hot path.
//!
//! * The launcher, one per server and without a database, starts an allocator for each
//!   database that asks, and keeps the snowflake generator. When it ends, it takes what
//!   the buffers hold out of shared memory and writes it down; when it starts, it gives
//!   that back (I6). So a restart of the server and the end of the launcher alone are one
//!   case.
//! * An allocator serves one database: it claims a segment, and only when the claim has
//!   committed and is durable does it publish it (I1). It leaves when there is nothing to
//!   do, when somebody waits for the database, or when others need its worker slot.

#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leaf_id_core::segment::Refused;
use pgrx::bgworkers::{
    BackgroundWorker, BackgroundWorkerBuilder, BackgroundWorkerStatus, BgWorkerStartTime,
    DynamicBackgroundWorker,
};
use pgrx::{IntoDatum, PgMemoryContexts, PgSqlErrorCode, pg_sys};

use crate::catalog::{self, Ask, ClaimProblem};
use crate::guc::{self, ClaimSynchronousCommit};
use crate::persist;
use crate::pg::{self, Caught, WaitEvent};
use crate::shmem::{self, Area, Claimed, Key, Ledger, Run, Slot, Trouble};
use crate::snowflake::{self, Keeper};

/// How often an allocator looks whether somebody waits for its database.
const PROBE: Duration = Duration::from_millis(100);
/// How long an allocator may stay although databases wait for a worker slot.
const CROWDED_TENURE: Duration = Duration::from_secs(1);
/// How long the launcher waits before it starts another allocator for a database where
/// one has just ended.
const RESTART_DELAY: Duration = Duration::from_millis(250);
/// How often the launcher tries again for a worker slot.
const CROWDED_RETRY_MS: i64 = 50;
/// How long a launcher that ends waits for claims that have begun.
const CLAIM_GRACE: Duration = Duration::from_secs(1);
/// How an allocator backs off from a tag: first, and at most.
const BACK_OFF: Duration = Duration::from_millis(50);
const MAX_BACK_OFF: Duration = Duration::from_millis(500);
/// How long a request stays closed after an answer that asking again will not change.
const HOLD: Duration = Duration::from_secs(1);

/// Registers the launcher. While the library is being preloaded.
pub fn register_launcher() {
    BackgroundWorkerBuilder::new("leaf_id launcher")
        .set_library("leaf_id")
        .set_function("leaf_id_launcher_main")
        .enable_spi_access()
        .set_start_time(BgWorkerStartTime::RecoveryFinished)
        .set_restart_time(Some(Duration::from_secs(1)))
        .load();
}

// ---- The launcher ------------------------------------------------------------------

/// An allocator that was registered and not seen to end.
struct Hired {
    desk: u32,
    ticket: u32,
    database: u32,
    since: Instant,
    worker: DynamicBackgroundWorker,
    /// Where the handle lies, freed with it.
    _memory: PgMemoryContexts,
}

struct Launcher {
    area: &'static Area,
    hired: Vec<Hired>,
    /// Databases whose last allocator ended a moment ago.
    resting: HashMap<u32, Instant>,
    snowflake: Keeper,
}

/// Whatever the launcher ends for, short of a crash.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn launcher_exit(_code: i32, _arg: pg_sys::Datum) {
    let Some(area) = shmem::area() else { return };
    area.set_launcher(core::ptr::null_mut());
    if let Err(error) = snowflake::stop(&area.snowflake) {
        pgrx::warning!("leaf_id: could not write leaf_id_reservation.json: {error}");
    }
    park_rests(area);
}

/// Takes what the buffers hold out of shared memory, and writes it down. Sessions that still
/// run, while the server stops or until the next launcher comes, find empty buffers.
fn park_rests(area: &Area) {
    let began = Instant::now();
    // What they claim is published first; one that waits for longer is a gap.
    while !area.stop_claims() && began.elapsed() < CLAIM_GRACE {
        pg::sleep_us(1000, WaitEvent::Launcher);
    }
    let rests = area.take_out_rests();
    if rests.is_empty() {
        return;
    }
    if let Err(error) = persist::park(&rests) {
        let tags = rests.len();
        pgrx::warning!(
            "leaf_id: cached ids of {tags} tags are lost: could not write leaf_id_parked.json: {error}"
        );
    }
}

/// Gives back what the last launcher has parked, and lets claims begin.
fn give_back_rests(area: &Area) {
    match persist::take_parked() {
        Ok(rests) => {
            let mut lost = 0;
            for (key, parked) in &rests {
                if !parked.is_sound() || !area.give_back(key, parked) {
                    lost += 1;
                }
            }
            if lost > 0 {
                pgrx::warning!(
                    "leaf_id: cached ids of {lost} tags are lost: leaf_id.max_tags was lowered, or leaf_id_parked.json is damaged"
                );
            }
        }
        Err(error) => {
            pgrx::log!("leaf_id: leaf_id_parked.json is not used, what it holds is a gap: {error}");
        }
    }
    area.resume_claims();
}

/// The launcher's main function.
#[pgrx::pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn leaf_id_launcher_main(_arg: pg_sys::Datum) {
    pg::handle_signals_in_loop();
    BackgroundWorker::connect_worker_to_spi(None, None);
    let Some(area) = shmem::area() else { return };
    pg::on_exit(launcher_exit);
    give_back_rests(area);
    area.set_launcher(pg::my_latch());
    area.forget_starting();
    let mut launcher = Launcher {
        area,
        hired: Vec::new(),
        resting: HashMap::new(),
        snowflake: Keeper::new(area),
    };
    while !pg::asked_to_stop() {
        let staffing = launcher.staff_desks();
        let reserving = launcher.snowflake.tend();
        let wait = staffing.into_iter().chain(reserving).min();
        pg::wait_latch(wait, WaitEvent::Launcher);
        pg::reload_if_asked();
    }
    // 1: exit code 0 would unregister it until the server restarts.
    pg::exit(1);
}

impl Launcher {
    /// Starts an allocator for each database that wants one. Returns when to look again,
    /// in milliseconds, if nothing wakes us earlier.
    fn staff_desks(&mut self) -> Option<i64> {
        self.see_who_ended();
        self.resting
            .retain(|_, since| since.elapsed() < RESTART_DELAY);
        let wanted = self.area.wanted_desks();
        let mut crowded = false;
        let mut again = None;
        for (desk, database) in wanted {
            if self.resting.contains_key(&database) {
                again = Some(CROWDED_RETRY_MS);
            } else if crowded || !self.hire(desk, database) {
                crowded = true;
                self.area.explain(desk, Trouble::NoWorkerSlot);
                again = Some(CROWDED_RETRY_MS);
            }
        }
        self.area
            .crowded
            .store(u32::from(crowded), Ordering::Relaxed);
        again
    }

    fn hire(&mut self, desk: u32, database: u32) -> bool {
        let Some(ticket) = self.area.announce(desk) else {
            return true;
        };
        let argument = pack(desk, ticket).cast_signed();
        let builder = BackgroundWorkerBuilder::new("leaf_id allocator")
            .set_library("leaf_id")
            .set_function("leaf_id_allocator_main")
            .set_argument(argument.into_datum())
            .set_notify_pid(pg::pid())
            .enable_spi_access();
        let mut memory = PgMemoryContexts::new("leaf_id allocator handle");
        // SAFETY: what is allocated there lives as long as `Hired` does.
        let worker = unsafe { memory.switch_to(|_| builder.load_dynamic()) };
        match worker {
            Ok(worker) => {
                self.hired.push(Hired {
                    desk,
                    ticket,
                    database,
                    since: Instant::now(),
                    worker,
                    _memory: memory,
                });
                true
            }
            Err(_) => {
                self.area.retract(desk, ticket);
                false
            }
        }
    }

    fn see_who_ended(&mut self) {
        let (ended, hired) = core::mem::take(&mut self.hired)
            .into_iter()
            .partition(|hired| {
                matches!(
                    hired.worker.pid(),
                    Err(BackgroundWorkerStatus::Stopped | BackgroundWorkerStatus::PostmasterDied)
                )
            });
        self.hired = hired;
        let ended: Vec<Hired> = ended;
        for gone in ended {
            // It never sat down: the server could not start it.
            if self.area.retract(gone.desk, gone.ticket) {
                self.area.abandon(gone.desk, Trouble::NoAllocator);
            }
            if gone.since.elapsed() < RESTART_DELAY {
                self.resting.insert(gone.database, Instant::now());
            }
        }
    }
}

// ---- An allocator ------------------------------------------------------------------

/// This process's desk and ticket, as the launcher packed them; 0 when it has none (no
/// ticket is 0). For the exit callback.
static MY_SEAT: AtomicU64 = AtomicU64::new(0);
static CONNECTED: AtomicBool = AtomicBool::new(false);
/// A claim of this process has begun and not ended. For the exit callback.
static CLAIM_BEGUN: AtomicBool = AtomicBool::new(false);

/// Gives the desk back however this process ends: cancelled, terminated, or because its
/// database is gone.
#[pgrx::pg_guard]
unsafe extern "C-unwind" fn allocator_exit(_code: i32, _arg: pg_sys::Datum) {
    let Some(area) = shmem::area() else { return };
    end_claim(area);
    let (desk, ticket) = match MY_SEAT.swap(0, Ordering::Relaxed) {
        0 => return,
        seat => unpack(seat),
    };
    if CONNECTED.load(Ordering::Relaxed) {
        area.settle_database(pg::database());
    } else {
        let mut posted = Vec::new();
        area.collect_requests(desk, &mut posted);
        for slot in posted {
            area.fail(slot, Trouble::NoAllocator, None);
        }
    }
    area.stand_up(desk, ticket, false);
}

/// Begins a claim, unless the launcher is parking the rests.
fn begin_claim(area: &Area) -> bool {
    let begun = area.begin_claim();
    CLAIM_BEGUN.store(begun, Ordering::Relaxed);
    begun
}

fn end_claim(area: &Area) {
    if CLAIM_BEGUN.swap(false, Ordering::Relaxed) {
        area.end_claim();
    }
}

fn pack(desk: u32, ticket: u32) -> u64 {
    (u64::from(desk) << 32) | u64::from(ticket)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "two halves of what was packed"
)]
fn unpack(seat: u64) -> (u32, u32) {
    ((seat >> 32) as u32, seat as u32)
}

/// A slot's request.
struct Job {
    slot: &'static Slot,
    key: Key,
    /// The longest range a session waits for.
    wish: u32,
    due: Instant,
    back_off: Duration,
    /// The row was not found once.
    missed: bool,
    /// Nothing is left to do but to let sessions ask again, later or in another life.
    answered: Option<u64>,
}

impl Job {
    fn is_due(&self, now: Instant) -> bool {
        // The row was edited since the answer: it may be another one now.
        let outlived = self
            .answered
            .is_some_and(|life| self.slot.buffer.life() != life);
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
}

struct Allocator {
    area: &'static Area,
    desk: u32,
    ticket: u32,
    jobs: VecDeque<Job>,
    arrived: Instant,
    worked_at: Instant,
    probed_at: Instant,
    /// The last message logged for each tag: once per change of state.
    logged: HashMap<Key, String>,
}

/// An allocator's main function; the argument is its desk and its ticket.
#[pgrx::pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn leaf_id_allocator_main(argument: pg_sys::Datum) {
    pg::handle_signals_in_transactions();
    let Some(area) = shmem::area() else { return };
    let seat = argument.value() as u64;
    let (desk, ticket) = unpack(seat);
    pg::on_exit(allocator_exit);
    MY_SEAT.store(seat, Ordering::Relaxed);
    let Some(database) = area.sit_down(desk, ticket, pg::my_latch()) else {
        // Not ours to give back.
        MY_SEAT.store(0, Ordering::Relaxed);
        return;
    };
    pg::connect(database);
    CONNECTED.store(true, Ordering::Relaxed);
    pin_settings();
    let now = Instant::now();
    let mut allocator = Allocator {
        area,
        desk,
        ticket,
        jobs: VecDeque::new(),
        arrived: now,
        worked_at: now,
        probed_at: now,
        logged: HashMap::new(),
    };
    allocator.run();
}

/// What ALTER DATABASE or ALTER ROLE SET may have changed must not stop claims.
fn pin_settings() {
    for (name, value) in [
        (c"role", c"none"),
        (c"session_replication_role", c"origin"),
        (c"search_path", c"pg_catalog, pg_temp"),
        (c"default_transaction_read_only", c"off"),
        (c"default_transaction_isolation", c"read committed"),
        (c"default_transaction_deferrable", c"off"),
        (c"statement_timeout", c"0"),
        (c"transaction_timeout", c"0"),
        (c"idle_in_transaction_session_timeout", c"0"),
        (c"idle_session_timeout", c"0"),
        // Short: no tag holds up another.
        (c"lock_timeout", c"100ms"),
        (c"jit", c"off"),
    ] {
        pg::pin_setting(name, value);
    }
}

impl Allocator {
    fn run(&mut self) {
        loop {
            pg::reload_if_asked();
            self.accept_requests();
            if self.must_leave() {
                break;
            }
            if !self.serve_one() {
                if self.may_leave() && self.area.stand_up(self.desk, self.ticket, true) {
                    MY_SEAT.store(0, Ordering::Relaxed);
                    return;
                }
                pg::report_activity(None);
                pg::wait_latch(Some(self.wait_ms()), WaitEvent::Allocator);
            }
        }
        self.area.stand_up(self.desk, self.ticket, false);
        MY_SEAT.store(0, Ordering::Relaxed);
        // Sessions that still wait ask again, of whoever comes next.
        for job in &self.jobs {
            job.slot.buffer.settle();
            job.slot.wake();
        }
    }

    fn accept_requests(&mut self) {
        let mut posted = Vec::new();
        self.area.collect_requests(self.desk, &mut posted);
        let now = Instant::now();
        for slot in posted {
            if let Some(wish) = slot.buffer.accept() {
                let key = self.area.key_of(slot);
                if key.database != pg::database() {
                    // Given to another tag between the request and its posting.
                    slot.buffer.settle();
                    slot.wake();
                    continue;
                }
                self.jobs.push_back(Job {
                    slot,
                    key,
                    wish,
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
        self.crowded() && self.arrived.elapsed() >= CROWDED_TENURE
    }

    fn crowded(&self) -> bool {
        self.area.crowded.load(Ordering::Relaxed) != 0
    }

    fn may_leave(&self) -> bool {
        let idle = u64::try_from(guc::ALLOCATOR_IDLE_TIMEOUT.get()).unwrap_or(0);
        self.jobs.is_empty()
            && (self.crowded() || self.worked_at.elapsed() >= Duration::from_millis(idle))
    }

    fn wait_ms(&self) -> i64 {
        let now = Instant::now();
        let due = self
            .jobs
            .iter()
            .map(|job| job.due.saturating_duration_since(now))
            .min();
        let wait = due.unwrap_or(PROBE).min(PROBE);
        i64::try_from(wait.as_millis()).unwrap_or(1) + 1
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
        if job.answered.is_some() || self.serve(&mut job) {
            job.slot.buffer.settle();
            job.slot.wake();
        } else {
            self.jobs.push_back(job);
        }
        self.worked_at = Instant::now();
        true
    }

    /// Gives a parked rest back, or claims. True when the request is over.
    fn serve(&mut self, job: &mut Job) -> bool {
        // Before the claim begins, so that nothing can be published once the rests were
        // taken out; and before its transaction: an edit from now on drops what it claims.
        let life = job.slot.buffer.life();
        if !begin_claim(self.area) {
            self.put_off(job);
            return false;
        }
        let parked = self.area.look(job.slot).0.next_parked();
        let mut progress = match parked {
            // Asked for again by a session that had looked before it came.
            _ if job.slot.buffer.has_spare() => Progress::Over,
            Some(rest) => self.publish_rest(job, life, rest),
            None => self.claim(job, life, None),
        };
        // One claim to the launcher, which may end.
        while let Progress::Part(part) = progress {
            progress = self.claim(job, life, Some(part));
        }
        end_claim(self.area);
        matches!(progress, Progress::Over)
    }

    /// Publishes what was cached before the launcher's last end, if the row is as it was
    /// then. Otherwise it is a gap, and ids are claimed.
    fn publish_rest(&mut self, job: &mut Job, life: u64, rest: Run) -> Progress {
        let slot = job.slot;
        let (ledger, _) = self.area.look(slot);
        let row = match pg::transaction(|| Ok::<_, ()>(catalog::look(&job.key))) {
            Ok(row) => row.ok().flatten(),
            Err(error) => {
                self.note_error(job, life, &error);
                return self.put_off(job);
            }
        };
        let fits = row.is_some_and(|row| {
            (row.life, row.max_id) == (ledger.row_life, ledger.max_id)
                && rest.end() - 1 <= row.max_value
        });
        if fits && self.area.publish_parked(slot, life).is_ok() {
            return Progress::Over;
        }
        self.area.with_ledger(slot, Ledger::drop_parked);
        self.claim(job, life, None)
    }

    /// One claim in one transaction, to go on after `part` if there is one.
    fn claim(&mut self, job: &mut Job, life: u64, part: Option<Claimed>) -> Progress {
        let slot = job.slot;
        let (ledger, _) = self.area.look(slot);
        let ask = Ask {
            pace: ledger.pace,
            now_ms: pg::now_ms(),
            hungry: slot.hungry.load(Ordering::Relaxed) != 0,
            wish: job.wish.saturating_sub(part.map_or(0, |part| part.len)),
            continues: part.is_some(),
            row_life: ledger.row_life,
            high: part.map_or(slot.buffer.high(), |part| part.end()),
        };
        let key = job.key;
        pg::report_activity(Some(&activity(&key)));
        let acknowledgement = guc::CLAIM_SYNCHRONOUS_COMMIT.get();
        pg::pin_setting(c"synchronous_commit", acknowledgement.setting());
        pg::take_cancelled();
        let result = pg::transaction(|| catalog::claim(&key, &ask));
        let cancelled = pg::take_cancelled();
        if !matches!(result, Ok(Ok(_)))
            && let Some(part) = part
        {
            // The rest does not come now: what there is need not wait for it.
            let _ = self.area.publish(slot, life, &part);
        }
        match result {
            Ok(Ok(claimed)) => {
                self.area.note_claim(slot, &claimed);
                // A cancelled wait for a standby returns as if it had been acknowledged
                // (I1). Without a standby there was nothing to wait for.
                let waits = acknowledgement != ClaimSynchronousCommit::Local;
                if cancelled && waits && pg::has_synchronous_standbys() {
                    let text = "the claim was cancelled, not acknowledged";
                    self.area.note(slot, life, Trouble::Error, Some(text));
                    self.area
                        .lose(slot, claimed.len + part.map_or(0, |part| part.len));
                    return self.put_off(job);
                }
                let progress = self.arrive(job, life, part, claimed);
                // Last: whatever is logged looks for interrupts.
                catalog::log_skip(&key.tag, claimed.skipped);
                progress
            }
            Ok(Err(ClaimProblem::NoSuchTag)) => {
                // It may have been replaced while we waited for its lock: look once more,
                // in a new transaction.
                if !core::mem::replace(&mut job.missed, true) {
                    return Progress::Later;
                }
                self.hold(job, life, Trouble::NoSuchTag)
            }
            Ok(Err(ClaimProblem::EndOfTag { max_value, skip })) => {
                self.hold(job, life, Trouble::EndOfTag { max_value, skip })
            }
            Ok(Err(ClaimProblem::MaxIdBackwards { published, found })) => {
                let text = format!("max_id moved backwards, from {published} to {found}");
                self.log_once(&key, &text);
                self.hold(job, life, Trouble::MaxIdBackwards { published, found })
            }
            Err(error) => {
                self.note_error(job, life, &error);
                self.put_off(job)
            }
        }
    }

    /// A claim is committed and flushed: only now may anybody see it (I1). A range that is
    /// too long for one claim is claimed piece by piece and published as one.
    fn arrive(
        &mut self,
        job: &Job,
        life: u64,
        part: Option<Claimed>,
        claimed: Claimed,
    ) -> Progress {
        let whole = match part {
            Some(part) if part.end() == claimed.first && part.row_life == claimed.row_life => {
                Claimed {
                    len: part.len + claimed.len,
                    ..part
                }
            }
            Some(part) => {
                self.area.lose(job.slot, part.len);
                claimed
            }
            None => claimed,
        };
        if claimed.climbing && whole.len < job.wish {
            return Progress::Part(whole);
        }
        let published = self.area.publish(job.slot, life, &whole);
        self.logged.remove(&job.key);
        // Overtaken by an allocator before us: what it published is there.
        if published == Err(Refused::OutOfOrder) && !job.slot.buffer.has_spare() {
            return Progress::Later;
        }
        Progress::Over
    }

    fn note_error(&mut self, job: &Job, life: u64, error: &Caught) {
        let key = job.key;
        if error.code == PgSqlErrorCode::ERRCODE_LOCK_NOT_AVAILABLE {
            let blocker = pg::transaction(|| Ok::<_, ()>(catalog::blocker(&key)));
            if let Ok(Ok(trouble)) = blocker {
                self.area.note(job.slot, life, trouble, None);
                return;
            }
        }
        self.log_once(&key, &error.message);
        self.area
            .note(job.slot, life, Trouble::Error, Some(&error.message));
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
    fn hold(&self, job: &mut Job, life: u64, trouble: Trouble) -> Progress {
        self.area.note(job.slot, life, trouble, None);
        job.answered = Some(life);
        job.due = Instant::now() + HOLD;
        Progress::Later
    }
}

fn activity(key: &Key) -> CString {
    let tag = key.tag.name();
    CString::new(format!("claim ids for tag \"{tag}\"")).unwrap_or_default()
}
