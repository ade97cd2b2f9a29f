//! The hot path of snowflake ids, and the wait for the next one. Runs no SQL.

use std::sync::atomic::Ordering;

use leaf_id_core::snowflake::{Full, Stall};
use leaf_id_core::sometimes;
use rand::RngExt;

use super::{reservation, state};
use crate::deadline::{self, Deadline, SLEEP_MS};
use crate::error::{Failure, SnowflakeError};
use crate::guc::{self, WorkerId};
use crate::pg::{self, WaitEvent};
use crate::random;
use crate::shmem::{self, Area};

/// Time after which a waiting session renews the reservation in place of the launcher, in
/// milliseconds: many times the duration of an fsync.
const LATE_MS: i64 = 50;
/// Full milliseconds after which a call spins for the start of the next one although another
/// session does; otherwise it would be too late each time.
const PATIENT_ROUNDS: u32 = 3;

/// The next snowflake id from the millisecond of the last one, the common case. Cannot fail or
/// panic. `None`: call [`next`].
#[inline]
pub fn next_at_once() -> Option<i64> {
    let snowflake = &shmem::area()?.snowflake;
    let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
    snowflake.generator.next_at_once(|| pg::now_ms() - epoch_ms)
}

/// The next snowflake id.
///
/// # Errors
/// See [`Failure`].
#[inline]
pub fn next() -> Result<i64, Failure> {
    let area = shmem::area().ok_or(Failure::NotPreloaded)?;
    match try_next(area, None) {
        Ok(id) => Ok(id),
        Err(stall) => wait(area, stall),
    }
}

#[inline]
fn try_next(area: &Area, full: Option<Full>) -> Result<i64, Stall> {
    let snowflake = &area.snowflake;
    let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
    let issued = snowflake.generator.next(
        || pg::now_ms() - epoch_ms,
        |most| random::with(|rng| rng.random_range(0..=most)),
        full,
    )?;
    if issued.lead_ms > 0 && snowflake.notice_lead(issued.lead_ms) {
        area.launcher().wake();
    }
    Ok(issued.id)
}

#[cold]
#[inline(never)]
fn wait(area: &'static Area, first: Stall) -> Result<i64, Failure> {
    deadline::ready_on_standby()?;
    if pg::in_recovery() && guc::worker_id() != WorkerId::Auto {
        return Err(Failure::Snowflake(SnowflakeError::StandbyWithoutLease));
    }
    let snowflake = &area.snowflake;
    let deadline = Deadline::new();
    let waiting = snowflake.waiters().join();
    if !matches!(first, Stall::Full(_)) {
        snowflake.waits.fetch_add(1, Ordering::Relaxed);
    }
    let mut full_rounds = 0;
    let mut stall = first;
    loop {
        let mut waited_for = None;
        match stall {
            Stall::Full(full) => {
                pg::check_for_interrupts();
                if deadline.left_ms().is_none() {
                    return Err(Failure::Snowflake(SnowflakeError::Timeout {
                        timeout_ms: deadline.timeout_ms(),
                        detail: "Other sessions have used every millisecond up.".into(),
                        asked: false,
                    }));
                }
                sometimes!("snowflake: all of a millisecond is used");
                full_rounds += 1;
                waited_for = Some(full);
                let until_ms = full.found_at_ms + 1 + snowflake.epoch_ms.load(Ordering::Relaxed);
                let exactly = snowflake.watch(until_ms) || full_rounds > PATIENT_ROUNDS;
                pg::sleep_until(until_ms * 1000, exactly, WaitEvent::Snowflake);
            }
            Stall::TooFarAhead(by_ms) => match deadline.left_ms().filter(|left| by_ms <= *left) {
                Some(_) => {
                    sometimes!("snowflake: waits for the clock");
                    waiting.sleep(by_ms, WaitEvent::Snowflake);
                }
                None => {
                    sometimes!("snowflake: the clock is too far back");
                    let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
                    let last = pg::format_ms(snowflake.generator.last().ms + epoch_ms);
                    let max_lead_ms = snowflake.generator.lead().max_ms;
                    return Err(Failure::Snowflake(SnowflakeError::ClockBack {
                        by_ms: by_ms + max_lead_ms,
                        last,
                        max_lead_ms,
                    }));
                }
            },
            Stall::EndOfTime => return Err(Failure::Snowflake(SnowflakeError::EndOfTime)),
            Stall::Closed | Stall::Unreserved => {
                let is_unreserved = stall == Stall::Unreserved;
                match wait_for_launcher(area, &deadline, is_unreserved)? {
                    Some(ms) => waiting.sleep(ms, WaitEvent::Snowflake),
                    // It was written here, perhaps for so long that it is used up again.
                    None => pg::check_for_interrupts(),
                }
            }
        }
        match try_next(area, waited_for) {
            Ok(id) => return Ok(id),
            Err(next) => stall = next,
        }
    }
}

/// Wakes the launcher, which opens the generator and reserves timestamps. Returns how long to wait
/// for it, in milliseconds; `None` if this session has reserved some in its place.
fn wait_for_launcher(
    area: &Area,
    deadline: &Deadline,
    is_unreserved: bool,
) -> Result<Option<i64>, Failure> {
    let snowflake = &area.snowflake;
    state::check(area, deadline)?;
    let Some(left) = deadline.left_ms() else {
        return Err(state::timed_out(area, deadline));
    };
    let late = deadline.elapsed_ms() >= LATE_MS;
    if is_unreserved && late && reservation::renew_late(snowflake)? {
        sometimes!("snowflake: a session reserves for the launcher");
        return Ok(None);
    }
    snowflake.reservation_wanted.store(1, Ordering::Release);
    area.launcher().wake();
    Ok(Some(left.min(if late { SLEEP_MS } else { LATE_MS })))
}
