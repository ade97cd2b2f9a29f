//! Who opens the snowflake generator, and who reserves its timestamps (I7).
//!
//! The launcher's [`Keeper`] finds the floor of a run, opens the generator with its worker
//! id, renews the reservation before it is needed, and closes it when it ends. A session
//! writes the file in two cases: where the launcher is late ([`renew_late`]), and for
//! `leaf_snowflake_reset` ([`reset`]). Whoever does is the one [`Writer`]: what is in the
//! file, what is reserved in shared memory and whether the generator is open change
//! together.

use std::io;
use std::sync::atomic::Ordering;

use leaf_id_core::lease::Grant;
use leaf_id_core::reservation::{self, Floor, Reason, Start, Unsafe};
use leaf_id_core::snowflake::MAX_MS;

use crate::error::Failure;
use crate::guc::{self, WorkerId};
use crate::lease::client::{LeaseClient, Order};
use crate::persist::{self, Reservation, Used};
use crate::pg::{self, WaitEvent};
use crate::segment::issue::{self, Deadline, RELOAD_GRACE_MS};
use crate::shmem::{Area, FOR_EVER, Snowflake, SnowflakeState, Writer};

/// How often a file that cannot be read or written, or a clock that may be set right, is
/// tried again, in milliseconds.
const RETRY_MS: i64 = 1000;
/// How often the launcher of a standby looks whether it still is one, in milliseconds.
const STANDBY_MS: i64 = 1000;
/// How soon the launcher looks again while a session is the writer, in milliseconds.
const BUSY_MS: i64 = 10;
/// How long a launcher that ends waits for a session that is the writer, in milliseconds.
const WRITER_GRACE_MS: i64 = 1000;

fn reservation_ms() -> i64 {
    i64::from(guc::TIMESTAMP_RESERVATION.get())
}

fn start(snowflake: &Snowflake, now_ms: i64) -> Start {
    Start {
        now_ms,
        epoch_ms: snowflake.epoch_ms.load(Ordering::Relaxed),
        reservation_ms: reservation_ms(),
        system_identifier: pg::system_identifier(),
        timeline: pg::timeline(),
        leased: guc::worker_id() == WorkerId::Auto,
    }
}

/// The worker ids that were used before this one. The last of them may issue until the
/// given time, in Unix milliseconds, before it is replaced. What a damaged file knew is
/// gone: the next write heals it, and the damage is returned for the log. Nothing is
/// logged by a session that is the writer: that looks for interrupts, and one that ended
/// it there would leave the server without a writer for good.
fn used_before(worker_id: u16, until_ms: i64) -> io::Result<(Vec<Used>, Option<io::Error>)> {
    let found = match persist::read_reservation() {
        Err(error) if persist::is_damage(&error) => return Ok((Vec::new(), Some(error))),
        result => result?,
    };
    let Some(found) = found else {
        return Ok((Vec::new(), None));
    };
    let mut used = found.used;
    if found.worker_id != worker_id {
        let until_ms = until_ms.max(found.stored.reserved_until_ms);
        Used::add(&mut used, found.worker_id, until_ms);
    }
    Ok((used, None))
}

/// Writes a reservation and then allows its use: durable first, usable second (I7). Never
/// beyond what the worker registry has recorded. Returns the damage that was healed, if any.
fn reserve(
    snowflake: &Snowflake,
    _writer: &Writer<'_>,
    worker_id: u16,
    until_ms: i64,
) -> io::Result<Option<io::Error>> {
    let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
    let until_ms = until_ms
        .max(snowflake.generator.reserved_until() + epoch_ms)
        .min(snowflake.recorded_until_ms());
    let (used, damage) = used_before(worker_id, until_ms)?;
    persist::write_reservation(&Reservation {
        worker_id,
        reserved_until_ms: until_ms,
        epoch_ms,
        clean: false,
        used,
    })?;
    snowflake.generator.reserve(until_ms - epoch_ms);
    Ok(damage)
}

/// What the launcher knows of the generator. Times in Unix milliseconds.
pub struct Keeper {
    area: &'static Area,
    snowflake: &'static Snowflake,
    epoch_ms: i64,
    /// `None` until the file could be read.
    floor: Option<Floor>,
    /// The worker id that the generator was opened with.
    worker_id: Option<u16>,
    /// When the reservation was last renewed.
    renewed_at_ms: i64,
    /// The last file problem, logged once.
    problem: Option<String>,
    /// Resets that were seen.
    resets: u32,
    /// Whether this is a standby.
    standby: bool,
    /// The lease of the worker id, where that is `auto`.
    client: Option<LeaseClient>,
    /// What may be used by it.
    grant: Option<Grant>,
    /// A worker id was leased in this run: what the file says of that is true.
    has_leased: bool,
    /// There was no telling at the start what was issued before: of a leased worker id the
    /// registry knows.
    registry_knows: bool,
}

impl Keeper {
    /// Of a launcher that has just started.
    pub fn new(area: &'static Area) -> Self {
        Self {
            area,
            snowflake: &area.snowflake,
            epoch_ms: area.snowflake.epoch_ms.load(Ordering::Relaxed),
            floor: None,
            worker_id: None,
            renewed_at_ms: 0,
            problem: None,
            resets: area.snowflake.resets.load(Ordering::Acquire),
            standby: pg::in_recovery(),
            client: None,
            grant: None,
            has_leased: false,
            registry_knows: false,
        }
    }

    fn close(&mut self, state: SnowflakeState, detail: i64) {
        self.snowflake.generator.close();
        self.worker_id = None;
        self.snowflake.set_state(state, detail);
    }

    /// The number of a question to the worker registry that a registrar is to ask.
    pub fn question(&self) -> Option<u64> {
        self.client.as_ref()?.question()
    }

    /// Does what is due, and returns when to look again, in milliseconds.
    pub fn tend(&mut self) -> Option<i64> {
        let snowflake = self.snowflake;
        let configured = guc::worker_id();
        snowflake.configure(configured);
        let Some(writer) = snowflake.try_write() else {
            return Some(BUSY_MS);
        };
        let wanted = snowflake.reservation_wanted.swap(0, Ordering::AcqRel) != 0;
        let now_ms = pg::now_ms();
        let resets = snowflake.resets.load(Ordering::Acquire);
        let mut was_reset = false;
        if self.resets != resets {
            self.resets = resets;
            self.floor = None;
            self.worker_id = None;
            was_reset = true;
        }
        if self.standby && !pg::in_recovery() {
            self.standby = false;
            // Promoted: what the file says is looked at anew, on the new timeline. After
            // the first id the word knows better.
            if snowflake.generator.last().ms == 0 {
                self.floor = None;
            }
        }
        // Copied with the primary's configuration, like as not.
        if self.standby && configured != WorkerId::Auto {
            self.stop_leasing();
            if snowflake.state() != SnowflakeState::Standby {
                self.close(SnowflakeState::Standby, 0);
            }
            return Some(STANDBY_MS);
        }
        // Before there is a worker id too: what has to be waited out passes meanwhile.
        if self.floor.is_none() {
            match self.find_floor(now_ms, was_reset) {
                Ok(floor) => {
                    snowflake.show_floor(floor.ms, floor.reason);
                    self.floor = Some(floor);
                }
                Err(again) if configured != WorkerId::Unset => return again,
                Err(_) => {}
            }
        }
        if configured != WorkerId::Auto {
            self.stop_leasing();
        }
        match configured {
            WorkerId::Unset => {
                if snowflake.state() != SnowflakeState::NoWorkerId {
                    self.close(SnowflakeState::NoWorkerId, 0);
                }
                None
            }
            WorkerId::Fixed(worker_id) => {
                snowflake.set_lease(&writer, FOR_EVER, FOR_EVER);
                let floor = self.floor?;
                self.issue_with(&writer, worker_id, floor.ms, now_ms, wanted)
            }
            WorkerId::Auto => {
                let again = self.lease(&writer, wanted);
                let standby = self.standby.then_some(STANDBY_MS);
                again.into_iter().chain(standby).min()
            }
        }
    }

    /// The worker id is known: the generator is to be open with it.
    fn issue_with(
        &mut self,
        writer: &Writer<'_>,
        worker_id: u16,
        floor_ms: i64,
        now_ms: i64,
        wanted: bool,
    ) -> Option<i64> {
        if self.worker_id == Some(worker_id) {
            self.renew(writer, worker_id, now_ms, wanted)
        } else {
            self.open(writer, worker_id, floor_ms, now_ms)
        }
    }

    /// What was leased is not used any more.
    fn stop_leasing(&mut self) {
        if self.client.take().is_some() {
            self.grant = None;
            self.close(SnowflakeState::Starting, 0);
        }
    }

    /// The worker id comes from a registry.
    fn lease(&mut self, writer: &Writer<'_>, wanted: bool) -> Option<i64> {
        let snowflake = self.snowflake;
        let floor = self.floor?;
        let Some(registry) = guc::worker_registry() else {
            self.stop_leasing();
            if snowflake.state() != SnowflakeState::NoRegistrySet {
                self.close(SnowflakeState::NoRegistrySet, 0);
            }
            return None;
        };
        if !self
            .client
            .as_ref()
            .is_some_and(|client| client.is_current(&registry))
        {
            self.stop_leasing();
            // Also one that was set, and not leased.
            self.close(SnowflakeState::Starting, 0);
            let unsound = matches!(
                floor.reason,
                Reason::None | Reason::NoFile | Reason::CopiedFile | Reason::OtherCluster
            );
            let sound = core::mem::replace(&mut self.has_leased, true) || !unsound;
            if !sound {
                // What is leased then is leased as by another server, above all that was
                // ever issued with it: there is nothing else to be waited out.
                self.registry_knows = true;
                snowflake.show_floor(i64::MIN, floor.reason);
            }
            self.client = Some(LeaseClient::new(self.area, registry, sound));
        }
        let client = self.client.as_mut()?;
        let (order, again) = client.tend();
        match order {
            Order::Keep => {}
            Order::Close(state, detail) => {
                self.grant = None;
                self.close(state, detail);
                // Beyond a doubt: nothing is reserved without a lease.
                snowflake.set_lease(writer, 0, 0);
            }
            Order::Use { grant, anew } => {
                // Before anything of it counts: what was reserved for another holder, or
                // for another worker id, must not be used with this one.
                if anew {
                    self.close(SnowflakeState::Starting, 0);
                }
                snowflake.set_lease(writer, grant.until_boot_ms, grant.reserved_until_ms);
                self.grant = Some(grant);
            }
        }
        let Some(grant) = self.grant else {
            return again;
        };
        if !snowflake.may_issue() {
            self.grant = None;
            self.close(SnowflakeState::LeaseEnded, 0);
            return again;
        }
        let now_ms = pg::now_ms();
        if now_ms >= grant.reserved_until_ms {
            // The clock was set ahead: what the registry has recorded is used up.
            if let Some(client) = self.client.as_mut() {
                client.hurry();
            }
            return Some(again.map_or(RETRY_MS, |ms| ms.min(RETRY_MS)));
        }
        let floor_ms = match self.registry_knows {
            true => grant.floor_ms,
            false => floor.ms.max(grant.floor_ms),
        };
        let next = self.issue_with(writer, grant.worker_id, floor_ms, now_ms, wanted);
        again.into_iter().chain(next).min()
    }

    /// Opens the generator, or changes the worker id of an open one.
    fn open(
        &mut self,
        writer: &Writer<'_>,
        worker_id: u16,
        floor_ms: i64,
        now_ms: i64,
    ) -> Option<i64> {
        let snowflake = self.snowflake;
        let retired_until_ms = match used_before(worker_id, i64::MIN) {
            Ok((used, _)) => used
                .iter()
                .filter(|used| used.retired && used.worker_id == worker_id)
                .map(|used| used.until_ms)
                .max(),
            Err(error) => return Some(self.file_problem(&error)),
        };
        let last_ms = snowflake.generator.last().ms + self.epoch_ms;
        // An open word is above the floor, and the clock beside it. But if the clock has gone
        // back, the word must not get another worker id: its time is not that one's.
        let ahead = last_ms - now_ms > i64::from(guc::MAX_CLOCK_BACKWARD.get());
        let floor_ms = match self.worker_id {
            Some(_) if !ahead => None,
            _ => Some(floor_ms.max(last_ms)),
        };
        let floor_ms = floor_ms.max(retired_until_ms).unwrap_or(i64::MIN);
        if now_ms <= floor_ms {
            // The most that a floor found at the start lies ahead.
            let far = floor_ms.saturating_sub(now_ms) > 3 * reservation_ms();
            // What another holder of a leased worker id may have used lies one lease ahead
            // at most, and then this is over by itself.
            let far = far && self.grant.is_none_or(|grant| grant.floor_ms < floor_ms);
            let state = if !far {
                SnowflakeState::WaitingOut
            } else if retired_until_ms == Some(floor_ms) {
                SnowflakeState::WorkerIdRetired
            } else {
                SnowflakeState::ReservationAhead
            };
            self.close(state, floor_ms);
            return Some((floor_ms.saturating_sub(now_ms)).min(RETRY_MS) + 1);
        }
        // Reserved for this worker id before the first id with it (I7).
        let until_ms = now_ms + reservation_ms();
        if let Err(again) = self.reserve(writer, worker_id, now_ms, until_ms) {
            return Some(again);
        }
        let floor_ms = floor_ms.saturating_sub(self.epoch_ms).max(0);
        snowflake.generator.open(worker_id, floor_ms);
        self.worker_id = Some(worker_id);
        snowflake.set_state(SnowflakeState::Open, 0);
        Some(reservation_ms() / 2)
    }

    fn find_floor(&mut self, now_ms: i64, was_reset: bool) -> Result<Floor, Option<i64>> {
        let snowflake = self.snowflake;
        // After a launcher that ended alone, and after a reset, the word in shared memory
        // knows the last id, and nothing needs to be waited out beyond it.
        let last_ms = snowflake.generator.last().ms;
        if last_ms > 0 {
            let reason = if was_reset {
                Reason::Reset
            } else {
                Reason::LauncherRestart
            };
            return Ok(Floor {
                ms: last_ms + self.epoch_ms,
                reason,
            });
        }
        let stored = match persist::read_reservation() {
            Ok(found) => found.map(|found| found.stored),
            // The registry knows what may have been issued, and the next write heals it.
            Err(error) if persist::is_damage(&error) && guc::worker_id() == WorkerId::Auto => None,
            Err(error) => return Err(Some(self.file_problem(&error))),
        };
        match reservation::floor(start(snowflake, now_ms), stored) {
            Ok(floor) => Ok(floor),
            Err(Unsafe::EpochMovedLater { stored_ms }) => {
                self.close(SnowflakeState::EpochMovedLater, stored_ms);
                Err(None)
            }
            Err(Unsafe::FarAhead { reserved_until_ms }) => {
                self.close(SnowflakeState::ReservationAhead, reserved_until_ms);
                Err(Some(RETRY_MS))
            }
        }
    }

    /// At half while ids are issued; or because a session found it used up.
    fn renew(
        &mut self,
        writer: &Writer<'_>,
        worker_id: u16,
        now_ms: i64,
        wanted: bool,
    ) -> Option<i64> {
        let wanted = wanted || self.problem.is_some();
        let generator = &self.snowflake.generator;
        let half = reservation_ms() / 2;
        let left = generator.reserved_until() + self.epoch_ms - now_ms;
        let goal_ms = (now_ms + 2 * half).min(self.snowflake.recorded_until_ms());
        let used = generator.last().ms + self.epoch_ms >= self.renewed_at_ms;
        if !wanted && left > half {
            return used.then_some(left - half);
        }
        if !wanted && !used {
            // Idle: the next call asks, and waits for one fsync.
            return None;
        }
        if now_ms + left < goal_ms
            && let Err(again) = self.reserve(writer, worker_id, now_ms, goal_ms)
        {
            return Some(again);
        }
        self.snowflake.wake();
        Some(half)
    }

    fn reserve(
        &mut self,
        writer: &Writer<'_>,
        worker_id: u16,
        now_ms: i64,
        until_ms: i64,
    ) -> Result<(), i64> {
        let snowflake = self.snowflake;
        match reserve(snowflake, writer, worker_id, until_ms) {
            Ok(None) => {}
            Ok(Some(damage)) => pgrx::log!(
                "leaf_id: leaf_id_reservation.json was written anew, without the worker ids that were used before: {damage}"
            ),
            Err(error) => return Err(self.file_problem(&error)),
        }
        if self.problem.take().is_some() {
            pgrx::log!("leaf_id: snowflake timestamps can be reserved again");
            if self.worker_id.is_some() {
                snowflake.set_state(SnowflakeState::Open, 0);
            }
        }
        self.renewed_at_ms = now_ms;
        Ok(())
    }

    fn file_problem(&mut self, error: &io::Error) -> i64 {
        let text = error.to_string();
        if self.problem.as_ref() != Some(&text) {
            pgrx::warning!("leaf_id: could not read or write leaf_id_reservation.json: {text}");
            self.problem = Some(text);
        }
        self.snowflake.set_state(SnowflakeState::FileProblem, 0);
        RETRY_MS
    }
}

/// Closes the generator because the launcher ends, and leaves the exact last timestamp: the
/// next start issues at once.
///
/// # Errors
/// The file could not be written: the next start waits out what was reserved.
pub fn stop(snowflake: &Snowflake) -> io::Result<()> {
    let mut patience_ms = WRITER_GRACE_MS;
    let mut writer = snowflake.try_write();
    while writer.is_none() && patience_ms > 0 {
        pg::sleep_us(1000, WaitEvent::Launcher);
        patience_ms -= 1;
        writer = snowflake.try_write();
    }
    let was_open = snowflake.generator.is_open();
    let last = snowflake.generator.close();
    snowflake.set_state(SnowflakeState::Starting, 0);
    // Without being the writer: what that one writes is further ahead, and safe.
    if !was_open || writer.is_none() {
        return Ok(());
    }
    let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
    persist::write_reservation(&Reservation {
        worker_id: last.worker_id,
        reserved_until_ms: last.ms + epoch_ms,
        epoch_ms,
        clean: true,
        used: used_before(last.worker_id, i64::MIN)?.0,
    })?;
    if snowflake.is_leased() {
        persist::mark_lease_clean()?;
    }
    Ok(())
}

/// Renews the reservation in place of a launcher that is late. True if it is renewed now,
/// false if somebody else is at it, or the generator is closed. Cannot be cancelled while
/// the file is written.
///
/// # Errors
/// The file could not be written.
pub fn renew_late(snowflake: &Snowflake) -> Result<bool, Failure> {
    let Some(writer) = snowflake.try_write() else {
        return Ok(false);
    };
    let generator = &snowflake.generator;
    if !generator.is_open() || !snowflake.may_issue() {
        return Ok(false);
    }
    let worker_id = generator.last().worker_id;
    let until_ms = (pg::now_ms() + reservation_ms()).min(snowflake.recorded_until_ms());
    let reserved_ms = generator.reserved_until() + snowflake.epoch_ms.load(Ordering::Relaxed);
    if until_ms <= reserved_ms {
        return Ok(false);
    }
    pg::while_waiting(WaitEvent::Snowflake, || {
        reserve(snowflake, &writer, worker_id, until_ms)
    })
    .map_err(file_problem)?;
    snowflake.wake();
    Ok(true)
}

fn file_problem(error: io::Error) -> Failure {
    Failure::ReservationFile {
        reason: error.to_string(),
    }
}

/// `leaf_snowflake_reset`: lets ids carry times later than `until` (a TimestampTz) from now
/// on, whatever was reserved or issued. The way out when the clock once stood far ahead,
/// or the file is damaged.
///
/// # Errors
/// See [`Failure`].
pub fn reset(until: i64) -> Result<(), Failure> {
    if !pg::is_superuser() {
        return Err(Failure::NotSuperuser {
            function: "leaf_snowflake_reset",
        });
    }
    let area = issue::ready()?;
    if guc::worker_id() == WorkerId::Auto {
        return Err(Failure::ResetLeased);
    }
    let snowflake = &area.snowflake;
    let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
    let until_ms = until
        .saturating_add(pg::TIMESTAMP_EPOCH_US)
        .div_euclid(1000);
    if !(0..=MAX_MS).contains(&until_ms.saturating_sub(epoch_ms)) {
        return Err(Failure::ResetOutOfRange);
    }
    let deadline = Deadline::new();
    let worker_id = loop {
        match try_reset(snowflake, until_ms) {
            Ok(Some(worker_id)) => break worker_id,
            Ok(None) => {}
            // Another one was set a moment ago, perhaps, and the launcher has not read it
            // yet; or there is none to read it.
            Err(Failure::WorkerIdUsed { .. } | Failure::WorkerIdUnset | Failure::ResetLeased)
                if deadline.elapsed_ms() < RELOAD_GRACE_MS || area.launcher().is_missing() => {}
            Err(failure) => return Err(failure),
        }
        if deadline.left_ms().is_none() {
            let busy = "The reservation is being written by another process.";
            return Err(Failure::ResetTimeout {
                timeout_ms: deadline.timeout_ms(),
                detail: if area.launcher().is_missing() {
                    issue::silence(area)
                } else {
                    busy
                },
            });
        }
        pg::wait_latch(Some(issue::RETRY_MS), WaitEvent::Snowflake);
    };
    area.launcher().wake();
    let (user, until) = (pg::user_name(), pg::format_ms(until_ms));
    pgrx::log!(
        "leaf_id: snowflake ids were reset by {user} to carry times later than {until}, with worker id {worker_id}"
    );
    Ok(())
}

/// One try. Worker ids that may have issued times later than `until_ms` (Unix milliseconds)
/// are retired until then, and the one that is set now must be none of them. Returns that
/// one; `None` if another process is the writer.
fn try_reset(snowflake: &Snowflake, until_ms: i64) -> Result<Option<u16>, Failure> {
    let worker_id = match snowflake.configured_worker_id() {
        WorkerId::Fixed(worker_id) => worker_id,
        WorkerId::Unset => return Err(Failure::WorkerIdUnset),
        WorkerId::Auto => return Err(Failure::ResetLeased),
    };
    let epoch_ms = snowflake.epoch_ms.load(Ordering::Relaxed);
    let Some(_writer) = snowflake.try_write() else {
        return Ok(None);
    };
    let found = match persist::read_reservation() {
        // One of the reasons to be here.
        Err(error) if persist::is_damage(&error) => None,
        result => result.map_err(file_problem)?,
    };
    let generator = &snowflake.generator;
    let last = generator.last();
    let mut used = Vec::new();
    if let Some(found) = found {
        let stored = found.stored;
        if stored.epoch_ms < epoch_ms {
            let stored_ms = stored.epoch_ms;
            return Err(Failure::EpochMovedLater { stored_ms });
        }
        used = found.used;
        Used::add(&mut used, found.worker_id, stored.reserved_until_ms);
    }
    if last.ms > 0 {
        let until_ms = generator.reserved_until().max(last.ms) + epoch_ms;
        Used::add(&mut used, last.worker_id, until_ms);
    }
    for used in used.iter_mut().filter(|used| used.until_ms > until_ms) {
        if used.worker_id == worker_id {
            return Err(Failure::WorkerIdUsed {
                worker_id,
                until: pg::format_ms(used.until_ms),
            });
        }
        used.retired = true;
    }
    generator.close();
    snowflake.set_state(SnowflakeState::Starting, 0);
    let written = pg::while_waiting(WaitEvent::Snowflake, || {
        persist::write_reservation(&Reservation {
            worker_id,
            reserved_until_ms: until_ms,
            epoch_ms,
            clean: true,
            used,
        })
    });
    if written.is_ok() {
        generator.rewind(worker_id, until_ms - epoch_ms);
    }
    // In any case the launcher begins anew: it opens what was closed here.
    snowflake.resets.fetch_add(1, Ordering::AcqRel);
    written.map_err(file_problem)?;
    Ok(Some(worker_id))
}
