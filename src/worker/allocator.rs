//! An allocator: it claims segments for the tags of one database.
//!
//! It publishes a segment only when its claim has committed and is durable (I1). It leaves
//! when there is nothing to do, when somebody waits for the database, or when others need
//! its worker slot.

use std::collections::{HashMap, VecDeque};
use std::ffi::CString;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use leaf_id_core::segment::Refused;
use pgrx::{PgSqlErrorCode, pg_sys};

use super::{pin_settings, unpack};
use crate::catalog::{self, Ask, ClaimProblem};
use crate::guc::{self, ClaimSynchronousCommit};
use crate::pg::{self, Caught, WaitEvent};
use crate::shmem::{self, Area, Claimed, Key, Ledger, Run, Slot, Trouble};

/// How often an allocator looks whether somebody waits for its database.
const PROBE: Duration = Duration::from_millis(100);
/// How long an allocator may stay although databases wait for a worker slot.
const CROWDED_TENURE: Duration = Duration::from_secs(1);
/// How an allocator backs off from a tag: first, and at most.
const BACK_OFF: Duration = Duration::from_millis(50);
const MAX_BACK_OFF: Duration = Duration::from_millis(500);
/// How long a request stays closed after an answer that asking again will not change.
const HOLD: Duration = Duration::from_secs(1);

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
            Ok(Err(ClaimProblem::Fed(feed))) => {
                let server = feed.server.text();
                let text = format!("server \"{server}\" feeds the tag, and cannot be asked");
                self.log_once(&key, &text);
                self.area.note(job.slot, life, Trouble::Error, Some(&text));
                self.put_off(job)
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
