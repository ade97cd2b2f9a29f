//! The hot path: from a call to an id that lies ready.
//!
//! | call | the tag | taken in |
//! | --- | --- | --- |
//! | [`next_unguarded`] | a constant of the query | this function, where nothing is left to do |
//! | | any other, if it is everybody's | [`next_cached`], from the slot that the session knows |
//! | [`next`], [`next_range`], [`Batch`] | any that the session knows the slot of | [`take`] |
//! | | all others | [`wait::take`]: finds the slot, and waits where nothing lies ready |
//!
//! Each leads to those below it, and none back. No SQL is reached from here.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use leaf_id_core::segment::{Obstacle, Taken};
use leaf_id_core::snowflake::{START_SPREAD, Stall};
use rand::RngExt;

use crate::error::Failure;
use crate::guc::{self, WorkerId};
use crate::pg::{self, WaitEvent};
use crate::shmem::{self, Area, LeaseStatus, SlotRef, SnowflakeState};
use crate::tags::transaction as edits;

use super::slot_cache::SLOT_CACHE;
use super::take::{self, Amount};
use super::wait::{self, for_monitors};

/// How long one sleep lasts at most before the state is looked at again, in milliseconds:
/// the safety net under the broadcasts.
pub const SLEEP_MS: i64 = 200;
/// How often a look that may not block is tried again, in milliseconds.
pub const RETRY_MS: i64 = 10;
/// How long a session waits for the launcher to renew the reservation before it does so
/// itself, in milliseconds: many times what an fsync takes.
const LATE_MS: i64 = 50;
/// Full milliseconds after which a call stays awake for the start of the next one, though
/// another session does: it would come too late each time.
const PATIENT_ROUNDS: u32 = 3;
/// How long a reload may take to reach the launcher, in milliseconds.
pub const RELOAD_GRACE_MS: i64 = SLEEP_MS;

/// What one call site remembers between its calls (PostgreSQL's `fn_extra`): where the ids
/// of its tag come from, if the tag is a constant of the query. Other tags are found anew
/// in each call, by what the session knows.
#[derive(Clone, Copy)]
pub struct CallSite {
    is_constant: bool,
    slot_ref: Option<SlotRef>,
}

impl CallSite {
    /// One that has not been called. Whether its tag is a constant is the caller's to know.
    pub const fn new(is_constant: bool) -> Self {
        Self {
            is_constant,
            slot_ref: None,
        }
    }

    fn note(&mut self, slot_ref: &SlotRef) {
        if self.is_constant {
            self.slot_ref = Some(*slot_ref);
        }
    }
}

/// A call that PostgreSQL has made without a guard: nothing that it reaches may fail or panic,
/// but for what it says it guards.
pub trait Unguarded<'a>: Copy {
    /// An id as PostgreSQL gets it.
    type Id: From<i64>;

    /// The tag, if it can be read at once.
    fn tag(self) -> Option<&'a [u8]>;

    /// Calls [`take::finish`], guarded. Returns the id.
    fn finish(self, slot_ref: &SlotRef, taken: &Taken) -> Self::Id;

    /// Calls [`next`], guarded.
    fn next(self) -> Self::Id;
}

/// The next id of a tag, of a call site that was called before: for the tag that it always
/// names, a few loads and one atomic addition.
#[inline]
pub fn next_unguarded<'a, C: Unguarded<'a>>(site: &CallSite, call: C) -> C::Id {
    if let Some(slot_ref) = &site.slot_ref
        && !edits::open()
    {
        return match slot_ref.buffer.try_take(slot_ref.version) {
            Ok(taken) if taken.leaves_work() => finish_attempt(slot_ref, call, taken.first),
            Ok(taken) => taken.first.into(),
            Err(obstacle) => next_attempt(slot_ref, call, obstacle),
        };
    }
    if site.is_constant {
        return call.next();
    }
    next_cached(call)
}

/// A constant tag whose first attempt has found the spare due, which is all that it can leave to
/// do. What these two are given fits in registers: their caller needs no stack.
#[cold]
#[inline(never)]
fn finish_attempt<'a, C: Unguarded<'a>>(slot_ref: &SlotRef, call: C, first: i64) -> C::Id {
    let taken = Taken {
        first,
        count: 1,
        spare_due: true,
        lost: 0,
    };
    call.finish(slot_ref, &taken)
}

/// A constant tag whose first attempt has failed.
#[cold]
#[inline(never)]
fn next_attempt<'a, C: Unguarded<'a>>(slot_ref: &SlotRef, call: C, obstacle: Obstacle) -> C::Id {
    match slot_ref.buffer.take_again(slot_ref.version, obstacle) {
        Ok(taken) => finished(call, slot_ref, &taken),
        Err(_) => call.next(),
    }
}

/// A tag that differs from call to call. Out of line, so that the other case needs no
/// stack for it.
#[inline(never)]
fn next_cached<'a, C: Unguarded<'a>>(call: C) -> C::Id {
    match call.tag().and_then(take_everybodys) {
        Some((slot_ref, taken)) => finished(call, &slot_ref, &taken),
        None => call.next(),
    }
}

/// The id, after what taking it has left to do.
#[inline]
fn finished<'a, C: Unguarded<'a>>(call: C, slot_ref: &SlotRef, taken: &Taken) -> C::Id {
    if taken.leaves_work() {
        call.finish(slot_ref, taken)
    } else {
        taken.first.into()
    }
}

/// Whether the slots that this session knows are still those of their tags.
#[inline]
fn cache_holds() -> bool {
    !edits::open() && !pg::relation_changed()
}

/// An id of a tag that is everybody's and that this session has used before, and where it was
/// taken from. Nothing here can fail or panic.
#[inline]
fn take_everybodys(tag: &[u8]) -> Option<(SlotRef, Taken)> {
    if !cache_holds() {
        return None;
    }
    let slot_ref = SLOT_CACHE.with(|cache| cache.everybodys(tag))?;
    let taken = slot_ref.buffer.take(slot_ref.version).ok()?;
    Some((slot_ref, taken))
}

/// The next id of a tag.
///
/// # Errors
/// See [`Failure`].
pub fn next(site: &mut CallSite, tag: &[u8]) -> Result<i64, Failure> {
    let Some((slot_ref, taken)) = take_everybodys(tag) else {
        return Ok(take(tag, Amount::One)?.first);
    };
    site.note(&slot_ref);
    if taken.leaves_work() {
        take::finish(&slot_ref, &taken);
    }
    Ok(taken.first)
}

/// `n` contiguous ids of a tag, as the first and the last; `n` is at least 1.
///
/// # Errors
/// See [`Failure`].
pub fn next_range(tag: &[u8], n: u32) -> Result<(i64, i64), Failure> {
    // Not `take`, whose result is large: an error has many parts.
    let amount = Amount::Range(n);
    let taken = match take_ready(tag, amount) {
        Some(taken) => taken,
        None => wait::take(tag, amount)?,
    };
    Ok((taken.first, taken.first + i64::from(n) - 1))
}

/// Takes what lies ready, of a tag that this session has used before. Otherwise waits.
#[inline]
fn take(tag: &[u8], amount: Amount) -> Result<Taken, Failure> {
    match take_ready(tag, amount) {
        Some(taken) => Ok(taken),
        None => wait::take(tag, amount),
    }
}

/// Where this session took ids of a tag last.
#[inline(never)]
fn known_slot(tag: &[u8]) -> Option<SlotRef> {
    if !cache_holds() {
        return None;
    }
    SLOT_CACHE.with(|cache| cache.find(tag))
}

#[inline(always)]
fn take_ready(tag: &[u8], amount: Amount) -> Option<Taken> {
    let slot_ref = known_slot(tag)?;
    let taken = amount.take(shmem::area()?, &slot_ref).ok()??;
    if taken.leaves_work() {
        take::finish(&slot_ref, &taken);
    }
    Some(taken)
}

/// The ids of one batch call, taken as they are read, in as few runs as the segments allow.
pub struct Batch {
    tag: Vec<u8>,
    left: u32,
    next: i64,
    in_run: u32,
}

impl Batch {
    /// `n` ids of a tag.
    pub fn new(tag: &[u8], n: u32) -> Self {
        Self {
            tag: tag.to_vec(),
            left: n,
            next: 0,
            in_run: 0,
        }
    }

    #[cold]
    #[inline(never)]
    fn take_run(&mut self) {
        pg::check_for_interrupts();
        match take(&self.tag, Amount::UpTo(self.left)) {
            Ok(taken) => (self.next, self.in_run) = (taken.first, taken.count),
            Err(failure) => failure.raise(),
        }
    }
}

impl Iterator for Batch {
    type Item = i64;

    #[inline]
    fn next(&mut self) -> Option<i64> {
        if self.left == 0 {
            return None;
        }
        if self.in_run == 0 {
            self.take_run();
        }
        let id = self.next;
        self.next += 1;
        self.in_run -= 1;
        self.left -= 1;
        Some(id)
    }
}

/// The shared area, where ids can be issued at all.
///
/// # Errors
/// The library is not preloaded; the server is a standby, or one of a single process.
pub fn ready() -> Result<&'static Area, Failure> {
    let area = ready_on_standby()?;
    if pg::in_recovery() {
        return Err(Failure::Standby);
    }
    Ok(area)
}

/// The shared area, where ids can be issued that no table is needed for.
fn ready_on_standby() -> Result<&'static Area, Failure> {
    let area = shmem::area().ok_or(Failure::NotPreloaded)?;
    if pg::single_user() {
        return Err(Failure::SingleUser);
    }
    Ok(area)
}

/// How long a call may still wait, by `leaf_id.refill_timeout`.
pub struct Deadline {
    started: Instant,
    timeout: Duration,
}

impl Deadline {
    /// Of a call that begins now.
    pub fn new() -> Self {
        let ms = u64::try_from(guc::REFILL_TIMEOUT.get()).unwrap_or(1);
        Self {
            started: Instant::now(),
            timeout: Duration::from_millis(ms),
        }
    }

    /// `leaf_id.refill_timeout`, in milliseconds.
    pub fn timeout_ms(&self) -> i64 {
        i64::try_from(self.timeout.as_millis()).unwrap_or(i64::MAX)
    }

    /// How long the call has taken so far, in milliseconds.
    pub fn elapsed_ms(&self) -> i64 {
        i64::try_from(self.started.elapsed().as_millis()).unwrap_or(i64::MAX)
    }

    /// What is left, in milliseconds, rounded up; `None` when nothing is.
    pub fn left_ms(&self) -> Option<i64> {
        let left = self.timeout.checked_sub(self.started.elapsed())?;
        i64::try_from(left.as_millis() + 1).ok()
    }
}

/// Why nobody has answered.
pub fn silence(area: &Area) -> &'static str {
    if area.launcher().is_missing() {
        "The launcher of leaf_id is not running. If it never does, \"max_worker_processes\" leaves no room for it."
    } else {
        "No allocator has answered; see the server's log."
    }
}

// ---- Snowflake ---------------------------------------------------------------------

/// The next snowflake id, where most of them come from: the millisecond of the last one.
/// Nothing here can fail or panic. `None` says nothing but that [`next_snowflake`] must be
/// asked.
#[inline]
pub fn next_snowflake_at_once() -> Option<i64> {
    let snowflake = &shmem::area()?.snowflake;
    let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
    let id = snowflake
        .generator
        .next_at_once(|| pg::now_ms() - epoch_ms)?;
    snowflake.issued.fetch_add(1, Ordering::Relaxed);
    Some(id)
}

/// The next snowflake id.
///
/// # Errors
/// See [`Failure`].
#[inline]
pub fn next_snowflake() -> Result<i64, Failure> {
    let area = shmem::area().ok_or(Failure::NotPreloaded)?;
    match try_snowflake(area) {
        Ok(id) => Ok(id),
        Err(stall) => wait_snowflake(area, stall),
    }
}

#[inline]
fn try_snowflake(area: &Area) -> Result<i64, Stall> {
    let snowflake = &area.snowflake;
    let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
    let id = snowflake.generator.next(
        || pg::now_ms() - epoch_ms,
        || {
            let start = || rand::rng().random_range(0..START_SPREAD);
            snowflake.may_issue().then(start)
        },
    )?;
    snowflake.issued.fetch_add(1, Ordering::Relaxed);
    Ok(id)
}

#[cold]
#[inline(never)]
fn wait_snowflake(area: &'static Area, first: Stall) -> Result<i64, Failure> {
    ready_on_standby()?;
    if pg::in_recovery() && guc::worker_id() != WorkerId::Auto {
        return Err(Failure::StandbyWithoutLease);
    }
    let snowflake = &area.snowflake;
    let deadline = Deadline::new();
    let waiting = snowflake.waiters().join();
    if !matches!(first, Stall::Full(_)) {
        snowflake.waits.fetch_add(1, Ordering::Relaxed);
    }
    let mut seen_back = false;
    let mut full_rounds = 0;
    let mut stall = first;
    loop {
        match stall {
            Stall::Full(ms) => {
                pg::check_for_interrupts();
                if deadline.left_ms().is_none() {
                    return Err(Failure::SnowflakeTimeout {
                        timeout_ms: deadline.timeout_ms(),
                        detail: "Other sessions have used every millisecond up.".into(),
                    });
                }
                full_rounds += 1;
                let unix_ms = ms + snowflake.epoch_ms.load(Ordering::Relaxed);
                let exactly = snowflake.watch(unix_ms) || full_rounds > PATIENT_ROUNDS;
                pg::sleep_until((unix_ms + 1) * 1000, exactly, WaitEvent::Snowflake);
            }
            Stall::ClockBack(by_ms) => {
                if !seen_back {
                    seen_back = true;
                    snowflake.rollbacks.fetch_add(1, Ordering::Relaxed);
                }
                let left = deadline.left_ms();
                match left.filter(|_| by_ms <= i64::from(guc::MAX_CLOCK_BACKWARD.get())) {
                    Some(left) => waiting.sleep(by_ms.min(left), WaitEvent::Snowflake),
                    None => {
                        let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
                        let last = pg::format_ms(snowflake.generator.last().ms + epoch_ms);
                        return Err(Failure::ClockBack { by_ms, last });
                    }
                }
            }
            Stall::EndOfTime => return Err(Failure::EndOfTime),
            Stall::Closed | Stall::Unreserved | Stall::Unleased => {
                refused(area, &deadline)?;
                let Some(left) = deadline.left_ms().or_else(|| almost_over(snowflake)) else {
                    // Also where the launcher was not there to close the generator.
                    let ended = snowflake.generator.is_open() && !snowflake.may_issue();
                    return Err(if ended {
                        lease_ended(&area.registry().lease_status())
                    } else {
                        snowflake_timeout(area, &deadline)
                    });
                };
                let late = deadline.elapsed_ms() >= LATE_MS;
                let renewed = stall == Stall::Unreserved
                    && late
                    && crate::snowflake::keeper::renew_late(snowflake)?;
                if !renewed {
                    snowflake.reservation_wanted.store(1, Ordering::Release);
                    area.launcher().wake();
                    let patience = if late { SLEEP_MS } else { LATE_MS };
                    waiting.sleep(left.min(patience), WaitEvent::Snowflake);
                }
            }
        }
        match try_snowflake(area) {
            Ok(id) => return Ok(id),
            Err(next) => stall = next,
        }
    }
}

/// What is left to wait out, in milliseconds, if that is hardly more than nothing. A call
/// right after a crash waits as long as one reservation, and a reservation is as long as
/// the timeout, by default: the few milliseconds between the start and the call must not
/// make it fail.
fn almost_over(snowflake: &shmem::Snowflake) -> Option<i64> {
    let (state, detail) = snowflake.status();
    let left = detail - pg::now_ms() + 1;
    // Long over means that nobody is there to open it.
    let almost = (-SLEEP_MS..2 * SLEEP_MS).contains(&left);
    (state == SnowflakeState::WaitingOut && almost).then_some(left.max(1))
}

/// Whether the launcher has found that waiting is useless.
fn refused(area: &Area, deadline: &Deadline) -> Result<(), Failure> {
    let (state, detail) = area.snowflake.status();
    let said = || for_monitors(area.registry().lease_status().last_error.get());
    match state {
        // Set a moment ago, perhaps, and the launcher has not read it yet.
        SnowflakeState::NoWorkerId
        | SnowflakeState::NoRegistrySet
        | SnowflakeState::OtherEpoch
        | SnowflakeState::Standby
            if deadline.elapsed_ms() < RELOAD_GRACE_MS =>
        {
            Ok(())
        }
        SnowflakeState::NoWorkerId => Err(Failure::WorkerIdUnset),
        SnowflakeState::ReservationAhead => {
            let by_ms = detail - pg::now_ms();
            // No longer, or within what this call waits for anyhow.
            if deadline.left_ms().is_some_and(|left| by_ms <= left) {
                return Ok(());
            }
            Err(Failure::ReservationAhead {
                by_ms,
                until: pg::format_ms(detail),
            })
        }
        SnowflakeState::WorkerIdRetired => Err(Failure::WorkerIdRetired {
            until: pg::format_ms(detail),
        }),
        SnowflakeState::EpochMovedLater => Err(Failure::EpochMovedLater { stored_ms: detail }),
        SnowflakeState::FileProblem => Err(Failure::ReservationFile {
            reason: "the reason is in the server's log.".into(),
        }),
        SnowflakeState::NoRegistrySet => Err(Failure::RegistryUnset),
        SnowflakeState::HeldByOther => Err(Failure::HeldByOther { said: said() }),
        SnowflakeState::NoFreeWorkerId => Err(Failure::NoFreeWorkerId { said: said() }),
        SnowflakeState::ClockSkew => Err(Failure::ClockSkew {
            by_ms: detail,
            said: said(),
        }),
        SnowflakeState::OtherEpoch => Err(Failure::OtherEpoch { said: said() }),
        SnowflakeState::OtherRole => Err(Failure::OtherRole { said: said() }),
        SnowflakeState::Standby => Err(Failure::StandbyWithoutLease),
        SnowflakeState::LeaseEnded => {
            let status = area.registry().lease_status();
            // Otherwise it is being renewed just now.
            match status.away_since_ms {
                Some(_) => Err(lease_ended(&status)),
                None => Ok(()),
            }
        }
        // The registry may answer yet.
        SnowflakeState::NoRegistry
        | SnowflakeState::RegistryGrace
        | SnowflakeState::WorkerIdLost
        | SnowflakeState::Starting
        | SnowflakeState::WaitingOut
        | SnowflakeState::Open => Ok(()),
    }
}

fn lease_ended(status: &LeaseStatus) -> Failure {
    Failure::LeaseEnded {
        worker_id: status.worker_id,
        registry: status.registry.get(),
        away_since: status.away_since_ms.map(pg::format_ms),
        said: for_monitors(status.last_error.get()),
    }
}

fn snowflake_timeout(area: &Area, deadline: &Deadline) -> Failure {
    let (state, detail) = area.snowflake.status();
    let status = area.registry().lease_status();
    let registry = status.registry.get();
    let detail = match state {
        _ if area.launcher().is_missing() => silence(area).into(),
        SnowflakeState::WaitingOut => format!(
            "Timestamps that an earlier run or another server had reserved are being waited out, until {}.",
            pg::format_ms(detail)
        ),
        SnowflakeState::LeaseEnded => return lease_ended(&status),
        SnowflakeState::NoRegistry | SnowflakeState::Starting if !registry.is_empty() => {
            match status.away_since_ms {
                Some(since) => format!(
                    "Worker registry \"{registry}\" has not answered since {}: {}.",
                    pg::format_ms(since),
                    for_monitors(status.last_error.get())
                ),
                None => format!("Worker registry \"{registry}\" has not answered yet."),
            }
        }
        SnowflakeState::RegistryGrace | SnowflakeState::WorkerIdLost => format!(
            "Worker registry \"{registry}\" grants no worker id: {}.",
            for_monitors(status.last_error.get())
        ),
        SnowflakeState::Open => "The reservation of timestamps was not renewed.".into(),
        _ => "The launcher has not started the generator.".into(),
    };
    Failure::SnowflakeTimeout {
        timeout_ms: deadline.timeout_ms(),
        detail,
    }
}
