//! The snowflake generator in shared memory: the word and its reservation, what the launcher
//! says of it, and the right to change it.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};

use leaf_id_core::keeper::FOR_EVER;
use leaf_id_core::layout::Layout;
use leaf_id_core::reservation::{Floor, Reason};
use leaf_id_core::snowflake::{Generator, Lead};
use leaf_id_core::state::{LeadReason, State};
use pgrx::pg_sys;

use crate::guc::WorkerId;
use crate::pg;

/// `leaf_id.worker_id` is `auto`.
const LEASED: u32 = u32::MAX;

/// The snowflake generator of this server.
#[repr(C, align(64))]
pub struct Snowflake {
    /// The word and the reservation.
    pub generator: Generator,
    /// `leaf_id.epoch`, fixed at start.
    pub epoch_ms: AtomicI64,
    /// When the lease of the worker id ends, by [`pg::boot_ms`]; [`FOR_EVER`] if it is no
    /// leased one. Zeroed memory has no lease.
    lease_until_boot_ms: AtomicI64,
    // Not on the hot path, and seldom written.
    state: AtomicU32,
    /// See [`State::encode`].
    detail: AtomicI64,
    /// What the worker registry has recorded, in Unix milliseconds: nothing later is ever
    /// reserved. Written by the [`Writer`].
    recorded_until_ms: AtomicI64,
    /// A session found the reservation used up.
    pub reservation_wanted: AtomicU32,
    /// Calls that had to wait.
    pub waits: AtomicU64,
    /// How often the clock was found behind the last id.
    rollbacks: AtomicU64,
    /// Why ids lead the clock, as a [`LeadReason`], plus 1; 0 if they do not.
    lead_reason: AtomicU32,
    /// A session has seen it, and the launcher has been told.
    led: AtomicU32,
    /// Ids of this run carry later times, in Unix milliseconds ...
    floor_ms: AtomicI64,
    /// ... for this [`Reason`], plus 1; 0 if it is not known yet.
    floor_reason: AtomicU32,
    /// Counts calls of `leaf_snowflake_reset`: the launcher is to begin anew.
    pub resets: AtomicU32,
    /// `leaf_id.worker_id` as the launcher has read it, plus 1; 0 for none, [`LEASED`].
    configured_worker_id: AtomicU32,
    /// The full millisecond whose end is watched for, in Unix milliseconds. Written a
    /// thousand times a second: not in the cache line of the generator.
    watched_ms: AtomicI64,
    /// The process that writes the reservation file, or opens or closes the generator.
    writer: AtomicI32,
    pub(super) waiters: UnsafeCell<pg_sys::ConditionVariable>,
}

const _: () = assert!(core::mem::offset_of!(Snowflake, watched_ms) >= 64);

/// The right to write the reservation file, to open the generator and to raise its
/// reservation: one process at a time.
///
/// No lock of PostgreSQL's, as it is held while a file is written and synced. Nobody waits
/// for it who holds anything else, its holder handles no interrupts, and a holder that is
/// killed takes shared memory with it.
pub struct Writer<'a>(&'a Snowflake);

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.0.writer.store(0, Ordering::Release);
    }
}

impl Snowflake {
    /// `leaf_id.snowflake_layout`, fixed at start.
    pub fn layout(&self) -> Layout {
        self.generator.layout()
    }

    /// How far ids may lead the clock, with times in Unix milliseconds.
    pub fn lead(&self) -> Lead {
        let lead = self.generator.lead();
        Lead {
            since_ms: lead.since_ms + self.epoch_ms.load(Ordering::Relaxed),
            ..lead
        }
    }

    /// Sets how far ids may lead the clock, with times in Unix milliseconds.
    pub fn set_lead(&self, lead: Lead) {
        self.generator.set_lead(Lead {
            since_ms: lead.since_ms - self.epoch_ms.load(Ordering::Relaxed),
            ..lead
        });
    }

    /// See [`Lead::unknown_since_ms`], in Unix milliseconds.
    pub fn unknown_since_ms(&self) -> Option<i64> {
        self.lead().unknown_since_ms()
    }

    /// Becomes the writer, if there is none.
    pub fn try_write(&self) -> Option<Writer<'_>> {
        self.writer
            .compare_exchange(0, pg::pid(), Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| Writer(self))
    }

    /// Whether the caller is the first to wait for the end of a full millisecond. It stays
    /// awake to use the next one from its start; everybody else may oversleep.
    pub fn watch(&self, unix_ms: i64) -> bool {
        self.watched_ms.load(Ordering::Relaxed) != unix_ms
            && self.watched_ms.swap(unix_ms, Ordering::Relaxed) != unix_ms
    }

    /// The worker id that the launcher is to open the generator with.
    pub fn configured_worker_id(&self) -> WorkerId {
        match self.configured_worker_id.load(Ordering::Acquire) {
            0 => WorkerId::Unset,
            LEASED => WorkerId::Auto,
            number => u16::try_from(number - 1).map_or(WorkerId::Unset, WorkerId::Fixed),
        }
    }

    /// The launcher has read its configuration.
    pub fn configure(&self, worker_id: WorkerId) {
        let number = match worker_id {
            WorkerId::Unset => 0,
            WorkerId::Fixed(id) => u32::from(id) + 1,
            WorkerId::Auto => LEASED,
        };
        self.configured_worker_id.store(number, Ordering::Release);
    }

    /// Whether the worker id may be used now: it is no leased one, or its lease has not ended.
    #[inline]
    pub fn may_issue(&self) -> bool {
        let until = self.lease_until_boot_ms.load(Ordering::Acquire);
        until == FOR_EVER || pg::boot_ms() < until
    }

    /// What a lease allows; for a worker id that is not leased all is [`FOR_EVER`]. Raised
    /// only for the same holder of the same worker id: otherwise the generator is closed
    /// first.
    pub fn set_lease(&self, _writer: &Writer<'_>, until_boot_ms: i64, recorded_until_ms: i64) {
        self.recorded_until_ms
            .store(recorded_until_ms, Ordering::Release);
        self.lease_until_boot_ms
            .store(until_boot_ms, Ordering::Release);
    }

    /// Whether the worker id is a leased one.
    pub fn is_leased(&self) -> bool {
        self.lease_until_boot_ms.load(Ordering::Acquire) != FOR_EVER
    }

    /// The last time that may be reserved, in Unix milliseconds.
    pub fn recorded_until_ms(&self) -> i64 {
        self.recorded_until_ms.load(Ordering::Acquire)
    }

    /// A session has issued an id that leads the clock by so many milliseconds. True if the
    /// launcher does not know yet that this is more than a burst.
    #[cold]
    pub fn notice_lead(&self, lead_ms: i64) -> bool {
        lead_ms > self.generator.lead().burst_ms
            && self.led.load(Ordering::Relaxed) == 0
            && self.led.swap(1, Ordering::Relaxed) == 0
    }

    /// Whether a session has noticed that ids lead the clock since the launcher last said that
    /// they do not.
    pub fn has_led(&self) -> bool {
        self.led.load(Ordering::Relaxed) != 0
    }

    /// Shows why ids lead the clock, or that they do not any more.
    pub fn show_lead(&self, reason: Option<LeadReason>) {
        match reason {
            Some(reason) => {
                if reason == LeadReason::ClockSetBack {
                    self.rollbacks.fetch_add(1, Ordering::Relaxed);
                }
                self.lead_reason
                    .store(reason.encode().0 + 1, Ordering::Relaxed);
            }
            None => {
                self.lead_reason.store(0, Ordering::Relaxed);
                self.led.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Why ids lead the clock; `None`: they do not.
    pub fn lead_reason(&self) -> Option<LeadReason> {
        let number = self.lead_reason.load(Ordering::Relaxed).checked_sub(1)?;
        LeadReason::decode(number, 0)
    }

    /// How often the clock was found behind the last id.
    pub fn rollbacks(&self) -> u64 {
        self.rollbacks.load(Ordering::Relaxed)
    }

    /// Where this run's ids start, and why; `None` if that is not known yet.
    pub fn floor(&self) -> Option<Floor> {
        let number = self.floor_reason.load(Ordering::Acquire).checked_sub(1)?;
        let ms = self.floor_ms.load(Ordering::Relaxed);
        match Reason::decode(number, 0) {
            Some(reason) => Some(Floor {
                ms,
                reason,
                unknown_since_ms: None,
            }),
            None => unreachable!("reason {number} of a floor"),
        }
    }

    /// Shows where this run's ids start.
    pub fn show_floor(&self, floor: Floor) {
        let (number, _) = floor.reason.encode();
        self.floor_ms.store(floor.ms, Ordering::Relaxed);
        self.floor_reason.store(number + 1, Ordering::Release);
    }

    /// What it is doing.
    pub fn state(&self) -> State {
        let (number, detail) = loop {
            let number = self.state.load(Ordering::Acquire);
            let detail = self.detail.load(Ordering::Acquire);
            // Not the detail of another state.
            if self.state.load(Ordering::Acquire) == number {
                break (number, detail);
            }
        };
        match State::decode(number, detail) {
            Some(state) => state,
            None => unreachable!("state {number} of the generator, with {detail}"),
        }
    }

    /// Shows what it is doing. By the [`Writer`]: the launcher, or `leaf_snowflake_reset`; and,
    /// where it did not become that, by a launcher that ends, which shows Starting as the other
    /// one does then. A change wakes the calls that wait.
    pub fn show(&self, state: State) {
        let (number, detail) = state.encode();
        let before = self.state.load(Ordering::Relaxed);
        if (before, self.detail.load(Ordering::Relaxed)) == (number, detail) {
            return;
        }
        // In between it is Starting, of which nothing follows: a reader finds no state with the
        // detail of another one.
        self.state
            .store(State::Starting.encode().0, Ordering::Release);
        self.detail.store(detail, Ordering::Release);
        self.state.store(number, Ordering::Release);
        if before != number {
            self.wake();
        }
    }

    /// Wakes the calls that wait for it.
    pub fn wake(&self) {
        // SAFETY: initialized at start; a condition variable has its own lock.
        unsafe { pg_sys::ConditionVariableBroadcast(self.waiters.get()) };
    }

    /// Where calls wait.
    pub fn waiters(&self) -> pg::Waiters {
        // SAFETY: in shared memory, and initialized when that was.
        unsafe { pg::Waiters::new(self.waiters.get()) }
    }
}
