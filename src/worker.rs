//! The control path: the launcher, and the allocators that it starts.
//!
//! A session cannot claim ids for itself: its transaction may roll back after it has
//! handed them out, and the table would hand them out again (I2). These workers are its
//! autonomous transaction. Waiting, SQL and files happen here, never on the hot path.
//!
//! * The launcher, one per server and without a database, starts an allocator for each
//!   database that asks, and owns the snowflake generator: its file, its opening and
//!   closing, its worker id.
//! * An allocator serves one database: it claims a segment, and only when the claim has
//!   committed and is durable does it publish it (I1). It leaves when there is nothing to
//!   do, when somebody waits for the database, or when others need its worker slot.

#![allow(unsafe_code)]

use std::collections::{HashMap, VecDeque};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leaf_id_core::reservation::{self, Start, Unsafe};
use leaf_id_core::segment::Refused;
use pgrx::bgworkers::{
    BackgroundWorker, BackgroundWorkerBuilder, BackgroundWorkerStatus, BgWorkerStartTime,
    DynamicBackgroundWorker,
};
use pgrx::{IntoDatum, PgMemoryContexts, PgSqlErrorCode, pg_sys};

use crate::catalog::{self, Ask, ClaimProblem};
use crate::guc;
use crate::persist::{self, Reservation};
use crate::pg::{self, Caught, WaitEvent};
use crate::shmem::{self, Area, Key, Slot, SnowflakeState, Trouble};

/// How often an allocator looks whether somebody waits for its database.
const PROBE: Duration = Duration::from_millis(100);
/// How long an allocator may stay although databases wait for a worker slot.
const CROWDED_TENURE: Duration = Duration::from_secs(1);
/// How long the launcher waits before it starts another allocator for a database where
/// one has just ended.
const RESTART_DELAY: Duration = Duration::from_millis(250);
/// How often the launcher tries again for a worker slot, or a file.
const CROWDED_RETRY_MS: i64 = 50;
const FILE_RETRY_MS: i64 = 1000;
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
    snowflake: SnowflakeKeeper,
}

unsafe extern "C-unwind" fn launcher_exit(_code: i32, _arg: pg_sys::Datum) {
    if let Some(area) = shmem::area() {
        area.set_launcher(core::ptr::null_mut());
        area.snowflake.generator.close();
    }
}

/// The launcher's main function.
#[pgrx::pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn leaf_id_launcher_main(_arg: pg_sys::Datum) {
    pg::handle_signals_in_loop();
    BackgroundWorker::connect_worker_to_spi(None, None);
    let Some(area) = shmem::area() else { return };
    pg::on_exit(launcher_exit);
    area.set_launcher(pg::my_latch());
    area.forget_starting();
    let mut launcher = Launcher {
        area,
        hired: Vec::new(),
        resting: HashMap::new(),
        snowflake: SnowflakeKeeper::new(area),
    };
    while !pg::asked_to_stop() {
        let staffing = launcher.staff_desks();
        let reserving = launcher.snowflake.tend();
        let wait = staffing.into_iter().chain(reserving).min();
        pg::wait_latch(wait, WaitEvent::Launcher);
        pg::reload_if_asked();
    }
    launcher.snowflake.stop();
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

// ---- The snowflake generator's keeper ----------------------------------------------

/// What the launcher knows of the generator. Times in Unix milliseconds.
struct SnowflakeKeeper {
    area: &'static Area,
    epoch_ms: i64,
    /// Ids must carry later timestamps; `None` until the file could be read.
    floor_ms: Option<i64>,
    worker_id: Option<u16>,
    /// When the reservation was last renewed.
    renewed_at_ms: i64,
    /// The last file problem, logged once.
    problem: Option<String>,
}

impl SnowflakeKeeper {
    fn new(area: &'static Area) -> Self {
        let epoch_ms = area.snowflake.epoch_ms.load(Ordering::Relaxed);
        Self {
            area,
            epoch_ms,
            floor_ms: None,
            worker_id: None,
            renewed_at_ms: 0,
            problem: None,
        }
    }

    fn reservation_ms() -> i64 {
        i64::from(guc::TIMESTAMP_RESERVATION.get())
    }

    fn close(&mut self, state: SnowflakeState, detail: i64) {
        self.area.snowflake.generator.close();
        self.worker_id = None;
        self.area.snowflake.set_state(state, detail);
    }

    /// Does what is due, and returns when to look again, in milliseconds.
    fn tend(&mut self) -> Option<i64> {
        let wanted = self
            .area
            .snowflake
            .reservation_wanted
            .swap(0, Ordering::AcqRel)
            != 0;
        let now_ms = pg::now_ms();
        // Before there is a worker id too: what has to be waited out passes meanwhile.
        let floor = match self.floor_ms {
            Some(floor_ms) => Ok(floor_ms),
            None => self.find_floor(now_ms),
        };
        self.floor_ms = floor.ok();
        let Some(worker_id) = guc::worker_id() else {
            if self.area.snowflake.state() != SnowflakeState::NoWorkerId {
                self.close(SnowflakeState::NoWorkerId, 0);
            }
            return None;
        };
        let floor_ms = match floor {
            Ok(floor_ms) => floor_ms,
            Err(again) => return again,
        };
        // An open word is above the floor already, whatever the clock does since.
        if self.worker_id.is_none() && now_ms <= floor_ms {
            self.close(SnowflakeState::WaitingOut, floor_ms);
            return Some(floor_ms - now_ms + 1);
        }
        if self.worker_id == Some(worker_id) {
            return self.renew(worker_id, now_ms, wanted);
        }
        // Reserved for the new worker id before the first id with it (I7).
        let until_ms = now_ms + Self::reservation_ms();
        if let Err(again) = self.reserve(worker_id, now_ms, until_ms) {
            return Some(again);
        }
        self.area
            .snowflake
            .generator
            .open(worker_id, floor_ms - self.epoch_ms);
        self.worker_id = Some(worker_id);
        self.area.snowflake.set_state(SnowflakeState::Open, 0);
        Some(Self::reservation_ms() / 2)
    }

    fn find_floor(&mut self, now_ms: i64) -> Result<i64, Option<i64>> {
        // After a launcher that ended alone, the word in shared memory still knows the last
        // id, and nothing needs to be waited out beyond it.
        let last_ms = self.area.snowflake.generator.last().ms;
        if last_ms > 0 {
            return Ok(last_ms + self.epoch_ms);
        }
        let stored = match persist::read() {
            Ok(stored) => stored,
            Err(error) => return Err(Some(self.file_problem(&error))),
        };
        let start = Start {
            now_ms,
            epoch_ms: self.epoch_ms,
            reservation_ms: Self::reservation_ms(),
            system_identifier: pg::system_identifier(),
            timeline: pg::timeline(),
        };
        match reservation::floor(start, stored) {
            Ok(floor_ms) => Ok(floor_ms),
            Err(Unsafe::EpochMovedLater { stored_ms }) => {
                self.close(SnowflakeState::EpochMovedLater, stored_ms);
                Err(None)
            }
            Err(Unsafe::FarAhead {
                reserved_until_ms, ..
            }) => {
                self.close(SnowflakeState::ReservationAhead, reserved_until_ms);
                // The clock may be set right.
                Err(Some(FILE_RETRY_MS))
            }
        }
    }

    /// At half while ids are issued; or because a session found it used up.
    fn renew(&mut self, worker_id: u16, now_ms: i64, wanted: bool) -> Option<i64> {
        let wanted = wanted || self.problem.is_some();
        let generator = &self.area.snowflake.generator;
        let half = Self::reservation_ms() / 2;
        let left = generator.reserved_until() + self.epoch_ms - now_ms;
        let used = generator.last().ms + self.epoch_ms >= self.renewed_at_ms;
        if !wanted && left > half {
            return used.then_some(left - half);
        }
        if !wanted && !used {
            // Idle: the next call asks, and waits for one fsync.
            return None;
        }
        if left < 2 * half
            && let Err(again) = self.reserve(worker_id, now_ms, now_ms + 2 * half)
        {
            return Some(again);
        }
        self.area.snowflake.wake();
        Some(half)
    }

    fn reserve(&mut self, worker_id: u16, now_ms: i64, until_ms: i64) -> Result<(), i64> {
        let generator = &self.area.snowflake.generator;
        let until_ms = until_ms.max(generator.reserved_until() + self.epoch_ms);
        if let Err(error) = self.write(worker_id, until_ms) {
            return Err(self.file_problem(&error));
        }
        if self.problem.take().is_some() {
            pgrx::log!("leaf_id: snowflake timestamps can be reserved again");
            self.area.snowflake.set_state(SnowflakeState::Open, 0);
        }
        self.renewed_at_ms = now_ms;
        // Durable first, usable second (I7).
        self.area
            .snowflake
            .generator
            .reserve(until_ms - self.epoch_ms);
        Ok(())
    }

    fn write(&self, worker_id: u16, reserved_until_ms: i64) -> std::io::Result<()> {
        persist::write(Reservation {
            worker_id,
            reserved_until_ms,
            epoch_ms: self.epoch_ms,
            system_identifier: pg::system_identifier(),
            timeline: pg::timeline(),
        })
    }

    fn file_problem(&mut self, error: &std::io::Error) -> i64 {
        let text = error.to_string();
        if self.problem.as_ref() != Some(&text) {
            pgrx::warning!("leaf_id: could not read or write leaf_id_reservation.json: {text}");
            self.problem = Some(text);
        }
        self.area
            .snowflake
            .set_state(SnowflakeState::FileProblem, 0);
        FILE_RETRY_MS
    }

    /// A clean stop leaves the exact last timestamp: the next start issues at once.
    fn stop(&mut self) {
        let last = self.area.snowflake.generator.close();
        if let Some(worker_id) = self.worker_id
            && let Err(error) = self.write(worker_id, last.ms + self.epoch_ms)
        {
            self.file_problem(&error);
        }
    }
}

// ---- An allocator ------------------------------------------------------------------

/// This process's desk and ticket, as the launcher packed them; 0 when it has none (no
/// ticket is 0). For the exit callback.
static MY_SEAT: AtomicU64 = AtomicU64::new(0);
static CONNECTED: AtomicBool = AtomicBool::new(false);

/// Gives the desk back however this process ends: cancelled, terminated, or because its
/// database is gone.
unsafe extern "C-unwind" fn allocator_exit(_code: i32, _arg: pg_sys::Datum) {
    let Some(area) = shmem::area() else { return };
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
        if job.answered.is_some() || self.claim(&mut job) {
            job.slot.buffer.settle();
            job.slot.wake();
        } else {
            self.jobs.push_back(job);
        }
        self.worked_at = Instant::now();
        true
    }

    /// One claim in one transaction. True when the request is over.
    fn claim(&mut self, job: &mut Job) -> bool {
        let slot = job.slot;
        // Before the transaction begins: an edit from now on drops what it claims.
        let life = slot.buffer.life();
        let (ledger, _) = self.area.look(slot);
        let ask = Ask {
            pace: ledger.pace,
            now_ms: pg::now_ms(),
            hungry: slot.hungry.load(Ordering::Relaxed) != 0,
            wish: job.wish,
            row_life: ledger.row_life,
            high: slot.buffer.high(),
        };
        let key = job.key;
        pg::report_activity(Some(&activity(&key)));
        pg::pin_setting(
            c"synchronous_commit",
            guc::CLAIM_SYNCHRONOUS_COMMIT.get().setting(),
        );
        pg::take_cancelled();
        let result = pg::transaction(|| catalog::claim(&key, &ask));
        // A cancelled wait for a standby returns as if it had been acknowledged (I1).
        let cancelled = pg::take_cancelled();
        match result {
            Ok(Ok(_)) if cancelled => {
                let text = "the claim was cancelled before it was acknowledged";
                self.area.note(slot, life, Trouble::Error, Some(text));
                self.put_off(job)
            }
            Ok(Ok(claimed)) => {
                // Committed and flushed: only now may anybody see it (I1).
                let published = self.area.publish(slot, life, &claimed);
                self.logged.remove(&key);
                // Overtaken by an allocator before us: what it published is there.
                published != Err(Refused::OutOfOrder) || slot.buffer.has_spare()
            }
            Ok(Err(ClaimProblem::NoSuchTag)) => {
                // It may have been replaced while we waited for its lock: look once more,
                // in a new transaction.
                if !core::mem::replace(&mut job.missed, true) {
                    return false;
                }
                self.area.note(slot, life, Trouble::NoSuchTag, None);
                true
            }
            Ok(Err(ClaimProblem::EndOfTag { max_value })) => {
                self.hold(job, life, Trouble::EndOfTag { max_value })
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
    fn put_off(&self, job: &mut Job) -> bool {
        job.due = Instant::now() + job.back_off;
        job.back_off = (job.back_off * 2).min(MAX_BACK_OFF);
        false
    }

    /// The answer is final until the row is edited; but it must not be asked for again with
    /// every id that is taken.
    fn hold(&self, job: &mut Job, life: u64, trouble: Trouble) -> bool {
        self.area.note(job.slot, life, trouble, None);
        job.answered = Some(life);
        job.due = Instant::now() + HOLD;
        false
    }
}

fn activity(key: &Key) -> CString {
    let tag = key.tag.name();
    CString::new(format!("claim ids for tag \"{tag}\"")).unwrap_or_default()
}
