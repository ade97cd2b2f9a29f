//! The hot path of snowflake ids, and the wait for the next one. No SQL is reached from here.

use std::sync::atomic::Ordering;

use leaf_id_core::snowflake::{START_SPREAD, Stall};
use leaf_id_core::state::State;
use rand::RngExt;

use super::{reservation, state};
use crate::deadline::{self, Deadline, SLEEP_MS};
use crate::error::Failure;
use crate::guc::{self, WorkerId};
use crate::pg::{self, WaitEvent};
use crate::shmem::{self, Area, Snowflake};

/// How long a session waits for the launcher to renew the reservation before it does so
/// itself, in milliseconds: many times what an fsync takes.
const LATE_MS: i64 = 50;
/// Full milliseconds after which a call stays awake for the start of the next one, though
/// another session does: it would come too late each time.
const PATIENT_ROUNDS: u32 = 3;

/// The next snowflake id, where most of them come from: the millisecond of the last one.
/// Nothing here can fail or panic. `None`: take the slow path, [`next`].
#[inline]
pub fn next_at_once() -> Option<i64> {
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
pub fn next() -> Result<i64, Failure> {
    let area = shmem::area().ok_or(Failure::NotPreloaded)?;
    match try_next(area) {
        Ok(id) => Ok(id),
        Err(stall) => wait(area, stall),
    }
}

#[inline]
fn try_next(area: &Area) -> Result<i64, Stall> {
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
fn wait(area: &'static Area, first: Stall) -> Result<i64, Failure> {
    deadline::ready_on_standby()?;
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
                state::check(area, &deadline)?;
                let Some(left) = deadline.left_ms().or_else(|| almost_over(snowflake)) else {
                    // Also where the launcher was not there to close the generator.
                    let ended = snowflake.generator.is_open() && !snowflake.may_issue();
                    return Err(if ended {
                        state::lease_ended(&area.registry().lease_status())
                    } else {
                        state::timed_out(area, &deadline)
                    });
                };
                let late = deadline.elapsed_ms() >= LATE_MS;
                let renewed =
                    stall == Stall::Unreserved && late && reservation::renew_late(snowflake)?;
                if !renewed {
                    snowflake.reservation_wanted.store(1, Ordering::Release);
                    area.launcher().wake();
                    let patience = if late { SLEEP_MS } else { LATE_MS };
                    waiting.sleep(left.min(patience), WaitEvent::Snowflake);
                }
            }
        }
        match try_next(area) {
            Ok(id) => return Ok(id),
            Err(next) => stall = next,
        }
    }
}

/// What is left to wait out, in milliseconds, if that is hardly more than nothing. A call
/// right after a crash waits as long as one reservation, and a reservation is as long as
/// the timeout, by default: the few milliseconds between the start and the call must not
/// make it fail.
fn almost_over(snowflake: &Snowflake) -> Option<i64> {
    let State::WaitingOut { until_ms } = snowflake.state() else {
        return None;
    };
    let left = until_ms - pg::now_ms() + 1;
    // Long over means that nobody is there to open it.
    let almost = (-SLEEP_MS..2 * SLEEP_MS).contains(&left);
    almost.then_some(left.max(1))
}
