//! The shared area: what all sessions and workers share. Its layout and its locks: [`area`].

#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};

use leaf_id_core::reservation::Reason;
use leaf_id_core::snowflake::Generator;
use pgrx::pg_sys;

use crate::guc::WorkerId;
use crate::pg;

mod area;
mod databases;
mod directory;
mod eviction;
mod lock;
mod publish;
mod registry;
mod remote_servers;
mod reserve;
mod saved;
mod slot;
mod slots;
mod text;

pub use area::{Area, area, forget_database, init};
pub use directory::RELATIONS;
pub use eviction::ACCOUNTS;
pub use publish::Claimed;
pub use registry::{Explanation, LeaseStatus, Reply, Request, WorkerIdSource};
pub use remote_servers::RemoteServerState;
pub use reserve::Task;
pub use saved::SavedRanges;
pub use slot::{Access, IdRange, Key, MAX_TAG, RefillError, Slot, SlotRef, SlotState, Tag};
pub use text::Text;

const _: () = assert!(core::mem::offset_of!(Snowflake, watched_ms) >= 64);

/// What the snowflake generator is doing.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum SnowflakeState {
    /// The launcher has not looked at it.
    Starting,
    /// `leaf_id.worker_id` is empty.
    NoWorkerId,
    /// Waiting out what an earlier run had reserved.
    WaitingOut,
    /// Issuing.
    Open,
    /// Refused: the reservation lies too far ahead; the detail is its end (Unix ms).
    ReservationAhead,
    /// Refused: a reset has left this worker id behind, with times to come; the detail is
    /// their end (Unix ms).
    WorkerIdRetired,
    /// Refused: the epoch was moved later; the detail is the earlier one.
    EpochMovedLater,
    /// The reservation could not be read or written.
    FileProblem,
    /// `leaf_id.worker_registry` is empty, though a worker id is to be leased.
    NoRegistrySet,
    /// The worker registry has not given a worker id yet.
    NoRegistry,
    /// The lease of the worker id has ended.
    LeaseEnded,
    /// Refused: another server has this node's lease.
    HeldByOther,
    /// Refused: all worker ids are leased.
    NoFreeWorkerId,
    /// Refused: the clock is off; the detail is by how much (ms ahead, negative: behind).
    ClockSkew,
    /// The registry gives nothing away for a while.
    RegistryGrace,
    /// The worker id was taken away; another one is asked for.
    WorkerIdLost,
    /// Refused: the registry's servers have another epoch.
    OtherEpoch,
    /// Refused: this node's name belongs to another role in the registry.
    OtherRole,
    /// A standby without a worker id of its own.
    Standby,
}

impl SnowflakeState {
    fn of(number: u32) -> Self {
        [
            Self::NoWorkerId,
            Self::WaitingOut,
            Self::Open,
            Self::ReservationAhead,
            Self::WorkerIdRetired,
            Self::EpochMovedLater,
            Self::FileProblem,
            Self::NoRegistrySet,
            Self::NoRegistry,
            Self::LeaseEnded,
            Self::HeldByOther,
            Self::NoFreeWorkerId,
            Self::ClockSkew,
            Self::RegistryGrace,
            Self::WorkerIdLost,
            Self::OtherEpoch,
            Self::OtherRole,
            Self::Standby,
        ]
        .into_iter()
        .find(|state| *state as u32 == number)
        .unwrap_or(Self::Starting)
    }
}

/// A lease that does not end, and a time that is later than any.
pub const FOR_EVER: i64 = i64::MAX;
/// `leaf_id.worker_id` is `auto`.
const LEASED: u32 = u32::MAX;

/// The snowflake generator of this server.
#[repr(C, align(64))]
pub struct Snowflake {
    /// The word and the reservation.
    pub generator: Generator,
    /// Ids issued since the server started.
    pub issued: AtomicU64,
    /// `leaf_id.epoch`, fixed at start.
    pub epoch_ms: AtomicI64,
    /// When the lease of the worker id ends, by [`pg::boot_ms`]; [`FOR_EVER`] if it is no
    /// leased one. Zeroed memory has no lease.
    lease_until_boot_ms: AtomicI64,
    // Not on the hot path, and seldom written.
    state: AtomicU32,
    /// See [`SnowflakeState`].
    detail: AtomicI64,
    /// What the worker registry has recorded, in Unix milliseconds: nothing later is ever
    /// reserved. Written by the [`Writer`].
    recorded_until_ms: AtomicI64,
    /// A session found the reservation used up.
    pub reservation_wanted: AtomicU32,
    /// Calls that had to wait.
    pub waits: AtomicU64,
    /// Calls that found the clock behind the last id.
    pub rollbacks: AtomicU64,
    /// Ids of this run carry later times, in Unix milliseconds ...
    floor_ms: AtomicI64,
    /// ... for this [`Reason`].
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
    waiters: UnsafeCell<pg_sys::ConditionVariable>,
}

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

    /// Where this run's ids start, in Unix milliseconds, and why.
    pub fn floor(&self) -> (i64, Reason) {
        let reason = Reason::of(self.floor_reason.load(Ordering::Acquire));
        (self.floor_ms.load(Ordering::Relaxed), reason)
    }

    /// Shows where this run's ids start.
    pub fn show_floor(&self, ms: i64, reason: Reason) {
        self.floor_ms.store(ms, Ordering::Relaxed);
        self.floor_reason.store(reason as u32, Ordering::Release);
    }

    /// What it is doing.
    pub fn state(&self) -> SnowflakeState {
        SnowflakeState::of(self.state.load(Ordering::Acquire))
    }

    /// What it is doing, and the detail of that.
    pub fn status(&self) -> (SnowflakeState, i64) {
        loop {
            let state = self.state();
            let detail = self.detail.load(Ordering::Acquire);
            // Not the detail of another state.
            if self.state() == state {
                return (state, detail);
            }
        }
    }

    /// Set by the launcher and by `leaf_snowflake_reset`; a change wakes the waiters.
    pub fn set_state(&self, state: SnowflakeState, detail: i64) {
        self.detail.store(detail, Ordering::Release);
        if self.state.swap(state as u32, Ordering::AcqRel) != state as u32 {
            self.wake();
        }
    }

    /// Wakes the calls that wait for it.
    pub fn wake(&self) {
        // SAFETY: initialised at start; a condition variable has its own lock.
        unsafe { pg_sys::ConditionVariableBroadcast(self.waiters.get()) };
    }

    /// Where calls wait.
    pub fn waiters(&self) -> pg::Waiters {
        // SAFETY: initialized with the area, which lies in shared memory.
        unsafe { pg::Waiters::new(self.waiters.get()) }
    }
}
