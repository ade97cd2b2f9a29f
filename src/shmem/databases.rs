//! Request queues: how a session's request for a segment reaches an allocator.
//!
//! | queue state | event | method | next state |
//! | --- | --- | --- | --- |
//! | Free | first request in a database without a queue | `post` | Wanted |
//! | Wanted | announcement: the launcher is about to start an allocator | `announce` | Starting |
//! | | no request left once they were failed | `fail_and_free`, `fail_or_free` | Free |
//! | | the database is dropped | `forget` | Free |
//! | Starting | the allocator attaches with its registration number | `attach` | Attached |
//! | | retraction | `retract` | Wanted |
//! | | a new launcher | `retract_all` | Wanted |
//! | Attached | the allocator detaches with requests on the list | `detach` | Wanted |
//! | | the allocator detaches with an empty list | `detach` | Free |
//!
//! 1. A session sets the slot's request (`DoubleBuffer::want`); only the one that succeeds goes on.
//! 2. Holding the directory lock shared, it pushes the slot onto the list of its database's queue
//!    and sets the latch of the allocator, or of the launcher if no allocator is attached. A
//!    database without a queue gets one (directory exclusively). If the slot now belongs to another
//!    database, or no queue is free, the session withdraws the request.
//! 3. The allocator takes requests off the list, accepts each at once, and answers it. From then on
//!    the slot can be evicted despite the open request; see `eviction`.
//! 4. An allocator detaches under the directory lock, exclusively. If its list is not empty, the
//!    queue becomes Wanted, so no request is lost between two allocators.
//! 5. If no allocator can be started, the launcher drains the list once a second and withdraws the
//!    requests. Waiting sessions request again; abandoned requests no longer pin their slots.

use leaf_id_core::primitive::{AtomicI64, AtomicPtr, AtomicU32, Ordering};
use leaf_id_core::segment::SegmentRequest;
use leaf_id_core::sometimes;
use pgrx::pg_sys;

use super::directory::Directory;
use super::slot::{Key, Slot};
use crate::error::RefillError;
use crate::pg;

/// Max databases with a queue at one time.
pub const QUEUES: usize = 1024;
/// Max slots per pass that get an error recorded.
const NOTED: u32 = 1024;

/// State of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum QueueState {
    /// Unused entry.
    Free,
    /// Requests are waiting for the launcher to start an allocator.
    Wanted,
    /// An allocator was registered but has not attached.
    Starting,
    /// An allocator is serving the queue.
    Attached,
}

/// Request queue of one database.
#[repr(C)]
pub struct Queue {
    // Written under the directory lock, exclusively.
    database: AtomicU32,
    state: AtomicU32,
    /// Counts registrations; an allocator with an old number cannot attach.
    registration: AtomicU32,
    /// Time at which the queue became Wanted, in microseconds since 2000.
    wanted_at: AtomicI64,
    // Plain atomics.
    /// Head of the request list, a link. Sessions push; the consumer detaches the whole list.
    posted: AtomicU32,
    /// The attached allocator's latch, or null.
    latch: AtomicPtr<pg_sys::Latch>,
}

impl Queue {
    /// Goes from a state to the next one, as in the table in this file's header.
    fn go(&self, from: QueueState, next: QueueState) {
        debug_assert!(self.is(from), "a queue that is not {from:?}");
        self.state.store(next as u32, Ordering::Relaxed);
    }

    fn want(&self, from: QueueState) {
        self.wanted_at.store(pg::now_timestamp(), Ordering::Relaxed);
        self.go(from, QueueState::Wanted);
    }

    fn free(&self, from: QueueState) {
        self.go(from, QueueState::Free);
        self.database.store(0, Ordering::Relaxed);
    }

    fn is(&self, state: QueueState) -> bool {
        self.state.load(Ordering::Relaxed) == state as u32
    }

    /// True in this state if `registration` is the current one.
    fn is_for(&self, state: QueueState, registration: u32) -> bool {
        self.is(state) && self.registration.load(Ordering::Relaxed) == registration
    }
}

/// The launcher, as other processes see it.
#[repr(C)]
pub struct Launcher {
    /// Its latch; null while no launcher runs.
    latch: AtomicPtr<pg_sys::Latch>,
    /// Time of the last exit, in microseconds since 2000; 0 if none has ended.
    ended_at: AtomicI64,
}

impl Launcher {
    /// Publishes the latch.
    pub fn enter(&self, latch: *mut pg_sys::Latch) {
        self.latch.store(latch, Ordering::Release);
    }

    /// Clears it; from the exit callback.
    pub fn leave(&self) {
        self.ended_at.store(pg::now_timestamp(), Ordering::Relaxed);
        self.latch.store(core::ptr::null_mut(), Ordering::Release);
    }

    /// Wakes the launcher, or the postmaster so that it restarts the launcher.
    pub fn wake(&self) {
        let latch = self.latch.load(Ordering::Acquire);
        if latch.is_null() {
            pg::nudge_postmaster();
        } else {
            // SAFETY: published by the launcher, and cleared in its exit callback.
            unsafe { pg::set_latch(latch) };
        }
    }

    /// True while no launcher runs.
    pub fn is_missing(&self) -> bool {
        self.latch.load(Ordering::Acquire).is_null()
    }

    /// Time since which no launcher runs, in microseconds since 2000, or 0: none has run yet.
    pub fn missing_since(&self) -> Option<i64> {
        self.is_missing()
            .then(|| self.ended_at.load(Ordering::Relaxed))
    }
}

/// The queues in shared memory. All zeroes means none.
#[repr(C)]
pub struct QueueTable {
    /// Number of entries ever used. Directory lock, exclusively.
    used: AtomicU32,
    /// All worker slots are in use and databases are waiting: idle allocators should exit.
    crowded: AtomicU32,
    queues: [Queue; QUEUES],
}

/// Access to the queues.
pub struct Queues<'a> {
    table: &'a QueueTable,
    directory: &'a Directory,
    launcher: &'a Launcher,
}

/// What became of a request.
enum Posted {
    /// It is on the list of its database.
    OnList,
    /// The slot belongs to another database.
    OtherSlot,
    /// All queues are other databases'.
    NoQueue,
}

impl<'a> Queues<'a> {
    /// Access to the area's queues.
    pub fn new(table: &'a QueueTable, directory: &'a Directory, launcher: &'a Launcher) -> Self {
        Self {
            table,
            directory,
            launcher,
        }
    }

    /// True if idle allocators should exit because databases are waiting for a worker slot.
    pub fn is_crowded(&self) -> bool {
        self.table.crowded.load(Ordering::Relaxed) != 0
    }

    /// Sets [`Self::is_crowded`]. Launcher only.
    pub fn set_crowded(&self, crowded: bool) {
        self.table
            .crowded
            .store(u32::from(crowded), Ordering::Relaxed);
    }

    fn get(&self, number: u32) -> Option<&'a Queue> {
        self.table.queues.get(number as usize)
    }

    fn used_queues(&self) -> impl Iterator<Item = (u32, &'a Queue)> {
        let used = self.table.used.load(Ordering::Relaxed);
        (0u32..).zip(self.table.queues.iter().take(used as usize))
    }

    fn queue_of(&self, database: u32) -> Option<&'a Queue> {
        self.used_queues()
            .map(|(_, queue)| queue)
            .find(|queue| queue.database.load(Ordering::Relaxed) == database)
    }

    /// Posts the request that the caller has just set on this slot. Withdraws it if no queue is
    /// free, or if the slot now belongs to another database; it must be made again later.
    pub fn post(&self, database: u32, slot: &Slot) {
        match self.try_post(database, slot) {
            Posted::OnList => {}
            Posted::OtherSlot => {
                slot.buffer.withdraw();
                slot.wake();
            }
            // No wake: the caller waits there, too, and would ask again without a pause.
            Posted::NoQueue => slot.buffer.withdraw(),
        }
    }

    fn try_post(&self, database: u32, slot: &Slot) -> Posted {
        // An earlier request may have ended without a segment, and left its start time.
        slot.want_from(pg::now_timestamp());
        {
            let directory = self.directory.read();
            if directory.key(slot).database != database {
                return Posted::OtherSlot;
            }
            if let Some(queue) = self.queue_of(database) {
                self.push(queue, slot);
                return Posted::OnList;
            }
        }
        let directory = self.directory.write();
        if directory.key(slot).database != database {
            return Posted::OtherSlot;
        }
        let Some(queue) = self.queue_of(database).or_else(|| self.add_queue(database)) else {
            return Posted::NoQueue;
        };
        self.push(queue, slot);
        Posted::OnList
    }

    fn add_queue(&self, database: u32) -> Option<&'a Queue> {
        let free = self
            .used_queues()
            .map(|(_, queue)| queue)
            .find(|queue| queue.is(QueueState::Free));
        let queue = free.or_else(|| {
            let used = self.table.used.load(Ordering::Relaxed);
            let queue = self.get(used)?;
            self.table.used.store(used + 1, Ordering::Relaxed);
            Some(queue)
        })?;
        queue.database.store(database, Ordering::Relaxed);
        queue.want(QueueState::Free);
        Some(queue)
    }

    fn push(&self, queue: &Queue, slot: &Slot) {
        let mine = self.directory.slots().link(slot);
        let mut head = queue.posted.load(Ordering::Relaxed);
        loop {
            slot.next_posted.store(head, Ordering::Relaxed);
            match queue.posted.compare_exchange_weak(
                head,
                mine,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        let latch = queue.latch.load(Ordering::Acquire);
        if latch.is_null() {
            self.launcher.wake();
        } else {
            // SAFETY: published by the queue's allocator, and cleared when it detaches.
            unsafe { pg::set_latch(latch) };
        }
    }

    /// Takes at most `most` requests off the list, oldest first.
    ///
    /// Nothing may fail or allocate in between, `body` included: if this process ended, requests
    /// that are off the list and not accepted would never be served or withdrawn.
    pub fn take_posted(&self, number: u32, most: usize, mut body: impl FnMut(&'static Slot)) {
        let Some(queue) = self.get(number) else {
            return;
        };
        let slots = self.directory.slots();
        let mut newest = queue.posted.swap(0, Ordering::Acquire);
        let mut oldest = 0;
        let mut posted = 0;
        while let Some(slot) = slots.at(newest) {
            posted += 1;
            debug_assert!(posted <= slots.capacity(), "a slot is on the list twice");
            let older = slot.next_posted.load(Ordering::Relaxed);
            slot.next_posted.store(oldest, Ordering::Relaxed);
            (oldest, newest) = (newest, older);
        }
        let mut taken = 0;
        while let Some(slot) = slots.at(oldest) {
            // Before the slot can be posted again.
            oldest = slot.next_posted.load(Ordering::Relaxed);
            if taken < most {
                taken += 1;
                body(slot);
            } else {
                self.push(queue, slot);
            }
        }
    }

    /// Wanted queues as (number, database), longest waiting first.
    pub fn wanted(&self) -> Vec<(u32, u32)> {
        let mut wanted = Vec::with_capacity(QUEUES);
        {
            let _directory = self.directory.read();
            for (number, queue) in self
                .used_queues()
                .filter(|(_, queue)| queue.is(QueueState::Wanted))
            {
                let since = queue.wanted_at.load(Ordering::Relaxed);
                wanted.push((since, number, queue.database.load(Ordering::Relaxed)));
            }
        }
        wanted.sort_unstable();
        wanted
            .into_iter()
            .map(|(_, number, database)| (number, database))
            .collect()
    }

    /// Retracts all announcements. Called by a new launcher, which knows of no registration;
    /// allocators registered by its predecessor can no longer attach.
    pub fn retract_all(&self) {
        let _directory = self.directory.write();
        for (_, queue) in self
            .used_queues()
            .filter(|(_, queue)| queue.is(QueueState::Starting))
        {
            queue.want(QueueState::Starting);
        }
    }

    /// Marks a wanted queue as Starting and returns the registration number that the allocator must
    /// attach with. `None` if the queue is no longer wanted.
    pub fn announce(&self, number: u32) -> Option<u32> {
        let queue = self.get(number)?;
        let _directory = self.directory.write();
        queue.is(QueueState::Wanted).then(|| {
            queue.go(QueueState::Wanted, QueueState::Starting);
            queue
                .registration
                .fetch_add(1, Ordering::Relaxed)
                .wrapping_add(1)
        })
    }

    /// Undoes an announcement; `wanted_at` is kept. False if the allocator has attached.
    pub fn retract(&self, number: u32, registration: u32) -> bool {
        let Some(queue) = self.get(number) else {
            return false;
        };
        let _directory = self.directory.write();
        let starting = queue.is_for(QueueState::Starting, registration);
        if starting {
            queue.go(QueueState::Starting, QueueState::Wanted);
        }
        starting
    }

    /// Fails all requests of a wanted queue with this error, and frees it. Sessions that still need
    /// ids request again. Launcher only, since only the launcher announces.
    pub fn fail_and_free(&self, number: u32, refill_error: RefillError) {
        self.fail_posted(number, refill_error);
        self.free_if_empty(number);
    }

    /// As [`Self::fail_and_free`], but the queue stays wanted if it had any requests.
    pub fn fail_or_free(&self, number: u32, refill_error: RefillError) {
        if self.fail_posted(number, refill_error) == 0 {
            self.free_if_empty(number);
        }
    }

    /// Fails all requests on the list. Returns their number.
    pub fn fail_posted(&self, number: u32, refill_error: RefillError) -> usize {
        let mut failed = 0;
        self.take_posted(number, usize::MAX, |slot| {
            self.fail(slot, refill_error);
            failed += 1;
        });
        failed
    }

    fn free_if_empty(&self, number: u32) {
        let Some(queue) = self.get(number) else {
            return;
        };
        let _directory = self.directory.write();
        if queue.is(QueueState::Wanted) && queue.posted.load(Ordering::Relaxed) == 0 {
            queue.free(QueueState::Wanted);
        }
    }

    /// Withdraws all requests of a dropped database.
    pub fn forget(&self, database: u32) {
        let _directory = self.directory.write();
        let Some(queue) = self.queue_of(database) else {
            return;
        };
        let mut next = queue.posted.swap(0, Ordering::Acquire);
        while let Some(slot) = self.directory.slots().at(next) {
            next = slot.next_posted.load(Ordering::Relaxed);
            slot.buffer.withdraw();
            slot.wake();
        }
        // In other states, an allocator on its way finds no database and exits.
        if queue.is(QueueState::Wanted) {
            queue.free(QueueState::Wanted);
        }
    }

    /// Records an error at the slots that wait in a queue, the newest [`NOTED`] of them,
    /// without ending their requests. Launcher only, since only the launcher announces.
    pub fn note_posted(&self, number: u32, refill_error: RefillError) {
        let Some(queue) = self.get(number) else {
            return;
        };
        let slots = self.directory.slots();
        // Detaching the list needs the directory lock, so the list is stable.
        let _directory = self.directory.read();
        let mut next = queue.posted.load(Ordering::Acquire);
        for _ in 0..NOTED {
            let Some(slot) = slots.at(next) else {
                break;
            };
            next = slot.next_posted.load(Ordering::Relaxed);
            let version = slot.buffer.version();
            slots.with_state(slot, |state| {
                state.refill_error = Some(refill_error);
                state.error_version = version;
                state.error_at = pg::now_timestamp();
            });
        }
    }

    /// Attaches an allocator to the queue it was announced for and returns the database. `None` if
    /// the announcement was retracted.
    pub fn attach(&self, number: u32, registration: u32, latch: *mut pg_sys::Latch) -> Option<u32> {
        let queue = self.get(number)?;
        let _directory = self.directory.write();
        queue.is_for(QueueState::Starting, registration).then(|| {
            queue.go(QueueState::Starting, QueueState::Attached);
            queue.latch.store(latch, Ordering::Release);
            queue.database.load(Ordering::Relaxed)
        })
    }

    /// Accepts the request of a slot taken off the list; also returns the slot's key.
    pub fn accept(&self, slot: &Slot) -> Option<(SegmentRequest, Key)> {
        let directory = self.directory.read();
        Some((slot.buffer.accept()?, directory.key(slot)))
    }

    /// Ends a request, answered or not, and wakes the waiters.
    pub fn clear_request(&self, slot: &Slot, request: &SegmentRequest) {
        slot.buffer.clear(request);
        slot.wake();
    }

    /// Detaches the allocator from its queue. With `only_idle` it stays attached, and the result is
    /// false, if a request has arrived. The caller clears accepted requests that it has not
    /// answered.
    pub fn detach(&self, number: u32, registration: u32, only_idle: bool) -> bool {
        let Some(queue) = self.get(number) else {
            return true;
        };
        let wanted = {
            let _directory = self.directory.write();
            if !queue.is_for(QueueState::Attached, registration) {
                return true;
            }
            let wanted = queue.posted.load(Ordering::Relaxed) != 0;
            if wanted && only_idle {
                return false;
            }
            queue.latch.store(core::ptr::null_mut(), Ordering::Release);
            if wanted {
                sometimes!("queue: requests for the next allocator");
                queue.want(QueueState::Attached);
            } else {
                queue.free(QueueState::Attached);
            }
            wanted
        };
        if wanted || self.is_crowded() {
            self.launcher.wake();
        }
        true
    }

    /// Ends the accepted requests of an allocator that has been terminated.
    pub fn close_accepted(&self, database: u32) {
        let directory = self.directory.read();
        for slot in directory.slots_of(database, None) {
            if slot.buffer.is_requested() && slot.buffer.close() {
                sometimes!("queue: a request of an allocator that was ended");
                slot.wake();
            }
        }
    }

    /// Records the error and withdraws the request of a slot taken off the list.
    fn fail(&self, slot: &Slot, refill_error: RefillError) {
        self.directory
            .slots()
            .note(slot, slot.buffer.version(), refill_error, None);
        slot.buffer.withdraw();
        slot.wake();
    }
}
