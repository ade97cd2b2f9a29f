//! The snowflake generator in shared memory: its word and reservation, its state as shown by the
//! launcher, and the right to change it.

use core::cell::UnsafeCell;
use core::sync::atomic::AtomicPtr;
use core::time::Duration;

use leaf_id_core::keeper::FOR_EVER;
use leaf_id_core::layout::Layout;
use leaf_id_core::primitive::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};
use leaf_id_core::reservation::{Floor, Reason};
use leaf_id_core::snowflake::Generator;
use leaf_id_core::state::{LeadReason, State};
use pgrx::pg_sys;

use crate::guc::WorkerId;
use crate::pg;

/// `leaf_id.worker_id` is `auto`.
const LEASED: u32 = u32::MAX;

/// What counts of a slow write, in milliseconds: three times that is the longest `leaf_id.timestamp_reservation`.
const MAX_WRITE_MS: i64 = 20_000;

/// The snowflake generator of this server.
#[repr(C, align(64))]
pub struct Snowflake {
    /// The word and the reservation.
    pub generator: Generator,
    /// `leaf_id.epoch`, fixed at start.
    pub epoch_ms: AtomicI64,
    // Off the hot path, and rarely written.
    /// See [`State::pack`].
    state: AtomicI64,
    /// Time at which the kind of the state last changed, in microseconds since 2000; 0 if it never
    /// has.
    state_since: AtomicI64,
    /// End of the time recorded by the worker registry, in Unix milliseconds; nothing later is
    /// reserved. [`FOR_EVER`] if the worker id is not leased. Written by the [`Writer`].
    recorded_until_ms: AtomicI64,
    /// How long writes of the reservation take of late, in milliseconds.
    write_ms: AtomicI64,
    /// Set by a session that found the reservation used up.
    pub reservation_wanted: AtomicU32,
    /// Number of calls that had to wait.
    pub waits: AtomicU64,
    /// Number of times the clock was found behind the last id.
    rollbacks: AtomicU64,
    /// [`LeadReason`] plus 1; 0 if ids do not lead the clock.
    lead_reason: AtomicU32,
    /// Set by the first session that notices a lead and reports it to the launcher.
    led: AtomicU32,
    /// Ids of this run have later timestamps than this, in Unix milliseconds.
    floor_ms: AtomicI64,
    /// [`Reason`] for the floor, plus 1; 0 if it is not known yet.
    floor_reason: AtomicU32,
    /// Number of `leaf_snowflake_reset` calls; the launcher starts over when it changes.
    pub resets: AtomicU32,
    /// `leaf_id.worker_id` as read by the launcher, plus 1; 0 if unset, or [`LEASED`].
    configured_worker_id: AtomicU32,
    /// The launcher has read a `leaf_id.worker_id` that is not valid.
    worker_id_invalid: AtomicU32,
    /// See [`leaf_id_core::keeper::Keeper::kept_worker_id`], plus 2; 1 if there is none; 0: no
    /// launcher has looked yet.
    kept_worker_id: AtomicU32,
    /// The full millisecond whose end a session is watching for, in Unix milliseconds. Written a
    /// thousand times a second, so not in the generator's cache line.
    watched_ms: AtomicI64,
    /// Pid of the [`Writer`]; 0 if there is none.
    writer: AtomicI32,
    pub(super) waiters: UnsafeCell<pg_sys::ConditionVariable>,
}

const _: () = assert!(core::mem::offset_of!(Snowflake, watched_ms) >= 64);

/// The right to write the reservation file, to open the generator and to raise its reservation. One
/// process at a time. (An exiting launcher closes the generator even without it.)
///
/// Not an LWLock, since it is held across file writes and fsync. A process that waits for it holds
/// nothing else, and its holder handles no interrupts. A holder that is killed takes shared memory
/// with it; one that ends by FATAL, for want of memory, drops nothing, so each writer registers
/// [`release_at_exit`].
pub struct Writer<'a>(&'a Snowflake);

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.0.writer.store(0, Ordering::Release);
    }
}

/// The generator of this process, if [`release_at_exit`] is registered and has not run yet.
static RELEASED_AT_EXIT: AtomicPtr<Snowflake> = AtomicPtr::new(core::ptr::null_mut());

/// Ends the right of a process that exits. The file, the reservation and the generator are safe as it
/// leaves them: what is reserved was written first, and what was closed is opened again by the
/// launcher.
fn release_at_exit() {
    // A callback that runs later and becomes the writer registers this one again.
    let snowflake = RELEASED_AT_EXIT.swap(core::ptr::null_mut(), Ordering::Relaxed);
    // SAFETY: null, or in shared memory, which stays attached until all callbacks have run.
    if let Some(snowflake) = unsafe { snowflake.as_ref() } {
        let writer = &snowflake.writer;
        let _ = writer.compare_exchange(pg::pid(), 0, Ordering::Release, Ordering::Relaxed);
    }
}

impl Snowflake {
    /// `leaf_id.snowflake_layout`, fixed at start.
    pub fn layout(&self) -> Layout {
        self.generator.layout()
    }

    /// Becomes the writer, unless there is one.
    pub fn try_write(&self) -> Option<Writer<'_>> {
        // Before it is the writer: registering may fail.
        if RELEASED_AT_EXIT.load(Ordering::Relaxed).is_null() {
            pg::on_exit(release_at_exit);
            RELEASED_AT_EXIT.store((&raw const *self).cast_mut(), Ordering::Relaxed);
        }
        self.writer
            .compare_exchange(0, pg::pid(), Ordering::Acquire, Ordering::Relaxed)
            .is_ok()
            .then(|| Writer(self))
    }

    /// How long a write of the reservation takes of late, in milliseconds.
    pub fn write_ms(&self) -> i64 {
        self.write_ms.load(Ordering::Relaxed)
    }

    /// Notes how long one took. Forgets a slow one by halves.
    pub fn note_write(&self, took: Duration) {
        let took_ms = i64::try_from(took.as_millis())
            .unwrap_or(i64::MAX)
            .min(MAX_WRITE_MS);
        self.write_ms
            .store(took_ms.max(self.write_ms() / 2), Ordering::Relaxed);
    }

    /// True for the first caller to wait for the end of this full millisecond. It spins, to use the
    /// next one from its start; other callers may oversleep.
    pub fn watch(&self, unix_ms: i64) -> bool {
        self.watched_ms.load(Ordering::Relaxed) != unix_ms
            && self.watched_ms.swap(unix_ms, Ordering::Relaxed) != unix_ms
    }

    /// Worker id to open the generator with, as configured.
    pub fn configured_worker_id(&self) -> WorkerId {
        match self.configured_worker_id.load(Ordering::Acquire) {
            0 => WorkerId::Unset,
            LEASED => WorkerId::Auto,
            number => u16::try_from(number - 1).map_or(WorkerId::Unset, WorkerId::Fixed),
        }
    }

    /// The worker id that the last launcher of this run has kept; `first` if there was none.
    pub fn kept_worker_id(&self, first: impl FnOnce() -> Option<u16>) -> Option<u16> {
        match self.kept_worker_id.load(Ordering::Acquire) {
            0 => first(),
            number => u16::try_from(number.checked_sub(2)?).ok(),
        }
    }

    /// Stores it for the next launcher.
    pub fn keep_worker_id(&self, kept: Option<u16>) {
        let number = kept.map_or(1, |worker_id| u32::from(worker_id) + 2);
        self.kept_worker_id.store(number, Ordering::Release);
    }

    /// True if the configuration has a `leaf_id.worker_id` that is not valid.
    pub fn is_worker_id_invalid(&self) -> bool {
        self.worker_id_invalid.load(Ordering::Acquire) != 0
    }

    /// Stores the worker id that the launcher has read from the configuration, and whether what
    /// stands there now is not valid.
    pub fn configure(&self, worker_id: WorkerId, is_invalid: bool) {
        self.worker_id_invalid
            .store(is_invalid.into(), Ordering::Release);
        let number = match worker_id {
            WorkerId::Unset => 0,
            WorkerId::Fixed(id) => u32::from(id) + 1,
            WorkerId::Auto => LEASED,
        };
        self.configured_worker_id.store(number, Ordering::Release);
    }

    /// Sets the end of the recorded time. It is raised only for the same holder of the same worker
    /// id; otherwise the generator must be closed first.
    pub fn set_recorded(&self, _writer: &Writer<'_>, until_ms: i64) {
        self.recorded_until_ms.store(until_ms, Ordering::Release);
    }

    /// True if the worker id is leased.
    pub fn is_leased(&self) -> bool {
        self.recorded_until_ms() != FOR_EVER
    }

    /// Latest time that may be reserved, in Unix milliseconds.
    pub fn recorded_until_ms(&self) -> i64 {
        self.recorded_until_ms.load(Ordering::Acquire)
    }

    /// Reports an id that leads the clock by `lead_ms`. True if this exceeds a burst and the
    /// launcher has not been notified yet.
    #[cold]
    pub fn notice_lead(&self, lead_ms: i64) -> bool {
        lead_ms > self.generator.lead().burst_ms
            && self.led.load(Ordering::Relaxed) == 0
            && self.led.swap(1, Ordering::Relaxed) == 0
    }

    /// True if a session has reported a lead since the launcher last cleared it.
    pub fn has_led(&self) -> bool {
        self.led.load(Ordering::Relaxed) != 0
    }

    /// Sets the reason why ids lead the clock; `None` clears it.
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

    /// Reason why ids lead the clock; `None` if they do not.
    pub fn lead_reason(&self) -> Option<LeadReason> {
        let number = self.lead_reason.load(Ordering::Relaxed).checked_sub(1)?;
        LeadReason::decode(number, 0)
    }

    /// Number of times the clock was found behind the last id.
    pub fn rollbacks(&self) -> u64 {
        self.rollbacks.load(Ordering::Relaxed)
    }

    /// Floor of this run's ids and its reason; `None` if not known yet.
    pub fn floor(&self) -> Option<Floor> {
        let number = self.floor_reason.load(Ordering::Acquire).checked_sub(1)?;
        let ms = self.floor_ms.load(Ordering::Relaxed);
        match Reason::decode(number, 0) {
            Some(reason) => Some(Floor { ms, reason }),
            None => unreachable!("reason {number} of a floor"),
        }
    }

    /// Sets the floor of this run's ids.
    pub fn show_floor(&self, floor: Floor) {
        let (number, _) = floor.reason.encode();
        self.floor_ms.store(floor.ms, Ordering::Relaxed);
        self.floor_reason.store(number + 1, Ordering::Release);
    }

    /// Current state.
    pub fn state(&self) -> State {
        let word = self.state.load(Ordering::Acquire);
        match State::unpack(word) {
            Some(state) => state,
            None => unreachable!("state {word:#x} of the generator"),
        }
    }

    /// Time since which the generator is in this kind of state, in microseconds since 2000; 0 since
    /// the server started. Read after the state: it is stored before.
    pub fn state_since(&self) -> i64 {
        self.state_since.load(Ordering::Acquire)
    }

    /// Sets the state, and wakes waiters on a change. Called by the [`Writer`]: the launcher, or
    /// `leaf_snowflake_reset`. An exiting launcher that could not become the writer may also set
    /// Starting, which is what the writer sets then, too.
    pub fn show(&self, state: State) {
        let word = state.pack();
        // Not where only the detail changes.
        if self.state().text() != state.text() {
            self.state_since
                .store(pg::now_timestamp(), Ordering::Release);
        }
        if self.state.swap(word, Ordering::AcqRel) != word {
            self.wake();
        }
    }

    /// Wakes the calls that wait for the generator.
    pub fn wake(&self) {
        // SAFETY: initialized at startup; a condition variable has its own lock.
        unsafe { pg_sys::ConditionVariableBroadcast(self.waiters.get()) };
    }

    /// Condition variable of the calls that wait for the generator.
    pub fn waiters(&self) -> pg::Waiters {
        // SAFETY: in shared memory, and initialized at startup.
        unsafe { pg::Waiters::new(self.waiters.get()) }
    }
}
