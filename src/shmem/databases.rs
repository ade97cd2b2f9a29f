//! The queues: how a session's request for a segment reaches an allocator.
//!
//! | state of a queue | leaves by | to |
//! | --- | --- | --- |
//! | Free | the first request of a database that has none | Wanted |
//! | Wanted | an announcement: the launcher is about to start an allocator | Starting |
//! | | nothing requested any more, or the end of the database | Free |
//! | Starting | the allocator attaches, by the number of its registration | Attached |
//! | | a retraction, or a launcher that has just started | Wanted |
//! | Attached | the allocator detaches, with requests in the list | Wanted |
//! | | the same, without | Free |
//!
//! 1. A session sets the slot's request (`DoubleBuffer::want`); only the one that
//!    succeeds goes on.
//! 2. Under the directory lock, shared, it pushes the slot onto the list of its database's
//!    queue and sets the latch of whoever serves it: the allocator, or the launcher while
//!    there is none. A database without a queue gets one (directory exclusively). If the slot
//!    has been given to another database meanwhile, the session withdraws the request.
//! 3. The allocator takes the whole list at once, accepts each request and answers it. From
//!    then on the slot can be evicted, in spite of the request: see `eviction`.
//! 4. An allocator leaves only under the directory lock, exclusively, and gives the queue
//!    back as wanted if its list is not empty: no request falls between two allocators.
//! 5. A list that no allocator can be started for is emptied by the launcher, each second, and
//!    the requests are withdrawn: sessions that still wait ask again. A request that nobody
//!    waits for any more keeps its slot no longer.

use core::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, Ordering};

use leaf_id_core::segment::SegmentRequest;
use pgrx::pg_sys;

use super::directory::Directory;
use super::slot::{Key, Slot};
use crate::error::RefillError;
use crate::pg;

/// Databases that can want ids at one time.
pub const QUEUES: usize = 1024;
/// Slots of one list that are told why they wait, each time.
const EXPLAINED: u32 = 1024;

/// What serves a database.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum QueueState {
    /// Nobody's.
    Free,
    /// Requests wait for the launcher to start an allocator.
    Wanted,
    /// An allocator was registered and has not attached.
    Starting,
    /// An allocator serves it.
    Attached,
}

/// A database's queue.
#[repr(C)]
pub struct Queue {
    // Written under the directory lock, exclusively.
    database: AtomicU32,
    state: AtomicU32,
    /// Counts registrations, so that a late starter finds that it is not awaited.
    registration: AtomicU32,
    /// Since when it is wanted, in microseconds since 2000.
    wanted_at: AtomicI64,
    // Plain atomics.
    /// First slot of the list of requests, plus 1. Pushed by sessions, taken whole.
    posted: AtomicU32,
    /// The allocator's latch, while it is attached.
    latch: AtomicPtr<pg_sys::Latch>,
}

impl Queue {
    fn want(&self) {
        self.wanted_at.store(pg::now_timestamp(), Ordering::Relaxed);
        self.state
            .store(QueueState::Wanted as u32, Ordering::Relaxed);
    }

    fn free(&self) {
        self.state.store(QueueState::Free as u32, Ordering::Relaxed);
        self.database.store(0, Ordering::Relaxed);
    }

    fn is(&self, state: QueueState) -> bool {
        self.state.load(Ordering::Relaxed) == state as u32
    }

    /// Whether it is in this state for the allocator with this registration.
    fn is_for(&self, state: QueueState, registration: u32) -> bool {
        self.is(state) && self.registration.load(Ordering::Relaxed) == registration
    }
}

/// The launcher's latch, for whoever needs it; null while there is none.
#[repr(C)]
pub struct Launcher(AtomicPtr<pg_sys::Latch>);

impl Launcher {
    /// Its latch; null when it leaves.
    pub fn set(&self, latch: *mut pg_sys::Latch) {
        self.0.store(latch, Ordering::Release);
    }

    /// Wakes it. If there is none, the postmaster is to start one.
    pub fn wake(&self) {
        let latch = self.0.load(Ordering::Acquire);
        if latch.is_null() {
            pg::nudge_postmaster();
        } else {
            // SAFETY: what the launcher has published: its own latch.
            unsafe { pg::set_latch(latch) };
        }
    }

    /// Whether there is none, so that nobody could answer.
    pub fn is_missing(&self) -> bool {
        self.0.load(Ordering::Acquire).is_null()
    }
}

/// The queues as they lie in the area. All zeroes is none.
#[repr(C)]
pub struct QueueTable {
    /// Queues that were ever used. Directory lock, exclusively.
    used: AtomicU32,
    /// Databases wait because all worker slots are in use: allocators should not linger.
    crowded: AtomicU32,
    queues: [Queue; QUEUES],
}

/// The queues: how requests reach an allocator.
pub struct Queues<'a> {
    table: &'a QueueTable,
    directory: &'a Directory,
    launcher: &'a Launcher,
}

impl<'a> Queues<'a> {
    /// Those of the area.
    pub fn new(table: &'a QueueTable, directory: &'a Directory, launcher: &'a Launcher) -> Self {
        Self {
            table,
            directory,
            launcher,
        }
    }

    /// Whether allocators should not linger: databases wait for a worker slot.
    pub fn is_crowded(&self) -> bool {
        self.table.crowded.load(Ordering::Relaxed) != 0
    }

    /// By the launcher, which alone knows.
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

    /// Hands a request of this slot, which the caller has just set, to the allocator of its
    /// database. Withdraws it if there is no queue left, or if the slot is another database's
    /// by now: it is to be made again later.
    pub fn post(&self, database: u32, slot: &Slot) {
        if !self.try_post(database, slot) {
            slot.buffer.withdraw();
            slot.wake();
        }
    }

    fn try_post(&self, database: u32, slot: &Slot) -> bool {
        // An earlier request may have ended without a segment.
        slot.want_from(pg::now_timestamp());
        {
            let directory = self.directory.read();
            if directory.key(slot).database != database {
                return false;
            }
            if let Some(queue) = self.queue_of(database) {
                self.push(queue, slot);
                return true;
            }
        }
        let directory = self.directory.write();
        if directory.key(slot).database != database {
            return false;
        }
        let queue = self.queue_of(database).or_else(|| self.add_queue(database));
        if let Some(queue) = queue {
            self.push(queue, slot);
        }
        queue.is_some()
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
        queue.want();
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
            // SAFETY: what the queue's allocator has published: its own latch.
            unsafe { pg::set_latch(latch) };
        }
    }

    /// Takes every request posted at a queue, oldest first.
    fn collect(&self, queue: &Queue, into: &mut Vec<&'static Slot>) {
        let mut next = queue.posted.swap(0, Ordering::Acquire);
        let start = into.len();
        while let Some(slot) = self.directory.slots().at(next) {
            next = slot.next_posted.load(Ordering::Relaxed);
            into.push(slot);
        }
        if let Some(new) = into.get_mut(start..) {
            new.reverse();
        }
    }

    /// Queues that need an allocator, the longest waiting first: number and database.
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

    /// A launcher that starts knows of no allocator under way: whoever was registered and
    /// has not attached is not awaited any more.
    pub fn forget_starting(&self) {
        let _directory = self.directory.write();
        for (_, queue) in self
            .used_queues()
            .filter(|(_, queue)| queue.is(QueueState::Starting))
        {
            queue.want();
        }
    }

    /// The launcher is about to register an allocator; it must attach with this registration.
    /// `None` if the queue is not wanted any more.
    pub fn announce(&self, number: u32) -> Option<u32> {
        let queue = self.get(number)?;
        let _directory = self.directory.write();
        queue.is(QueueState::Wanted).then(|| {
            queue
                .state
                .store(QueueState::Starting as u32, Ordering::Relaxed);
            queue
                .registration
                .fetch_add(1, Ordering::Relaxed)
                .wrapping_add(1)
        })
    }

    /// Takes back an announcement: the queue is wanted again, for as long as it has been.
    /// False if it was taken up.
    pub fn retract(&self, number: u32, registration: u32) -> bool {
        let Some(queue) = self.get(number) else {
            return false;
        };
        let _directory = self.directory.write();
        let starting = queue.is_for(QueueState::Starting, registration);
        if starting {
            queue
                .state
                .store(QueueState::Wanted as u32, Ordering::Relaxed);
        }
        starting
    }

    /// Gives up on a wanted queue: every request at it ends with this refill error, and sessions
    /// that still want ids ask again. By the launcher, which alone could announce
    /// somebody for it.
    pub fn abandon(&self, number: u32, refill_error: RefillError) {
        self.fail_posted(number, refill_error);
        self.free_queue(number);
    }

    /// The same, but the queue stays wanted for as long as anybody asks.
    pub fn ask_again(&self, number: u32, refill_error: RefillError) {
        if self.fail_posted(number, refill_error) == 0 {
            self.free_queue(number);
        }
    }

    /// How many requests that were.
    pub fn fail_posted(&self, number: u32, refill_error: RefillError) -> usize {
        let mut posted = Vec::new();
        self.collect_requests(number, &mut posted);
        for slot in &posted {
            self.fail(slot, refill_error);
        }
        posted.len()
    }

    fn free_queue(&self, number: u32) {
        let Some(queue) = self.get(number) else {
            return;
        };
        let _directory = self.directory.write();
        if queue.is(QueueState::Wanted) && queue.posted.load(Ordering::Relaxed) == 0 {
            queue.free();
        }
    }

    /// Withdraws what was asked for a database that is gone.
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
        // Otherwise whoever was started for it finds no database, and leaves.
        if queue.is(QueueState::Wanted) {
            queue.free();
        }
    }

    /// Notes a refill error at the slots that wait at a queue, at the newest of very many, without
    /// ending the requests. By the launcher, which alone could announce somebody for it.
    pub fn explain(&self, number: u32, refill_error: RefillError) {
        let Some(queue) = self.get(number) else {
            return;
        };
        let slots = self.directory.slots();
        // Nobody else takes the list without it.
        let _directory = self.directory.read();
        let mut next = queue.posted.load(Ordering::Acquire);
        for _ in 0..EXPLAINED {
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

    /// An allocator attaches at the queue it was announced for. `None` if it is not
    /// awaited (any more).
    pub fn attach(&self, number: u32, registration: u32, latch: *mut pg_sys::Latch) -> Option<u32> {
        let queue = self.get(number)?;
        let _directory = self.directory.write();
        queue.is_for(QueueState::Starting, registration).then(|| {
            queue
                .state
                .store(QueueState::Attached as u32, Ordering::Relaxed);
            queue.latch.store(latch, Ordering::Release);
            queue.database.load(Ordering::Relaxed)
        })
    }

    /// The requests at the allocator's own queue, oldest first.
    pub fn collect_requests(&self, number: u32, into: &mut Vec<&'static Slot>) {
        if let Some(queue) = self.get(number) {
            self.collect(queue, into);
        }
    }

    /// Accepts the request of a slot that was on the list: with the tag that it is for.
    pub fn accept(&self, slot: &Slot) -> Option<(SegmentRequest, Key)> {
        let directory = self.directory.read();
        Some((slot.buffer.accept()?, directory.key(slot)))
    }

    /// Ends a request, answered or not, and wakes the waiters.
    pub fn clear_request(&self, slot: &Slot, request: &SegmentRequest) {
        slot.buffer.clear(request);
        slot.wake();
    }

    /// The allocator leaves its queue. If `only_idle` and a request has come, it stays:
    /// false. What was accepted and not answered is for the caller to clear.
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
                queue.want();
            } else {
                queue.free();
            }
            wanted
        };
        if wanted || self.is_crowded() {
            self.launcher.wake();
        }
        true
    }

    /// Ends the requests that an allocator had accepted when it was ended itself.
    pub fn clear_requests_of(&self, database: u32) {
        let directory = self.directory.read();
        for slot in directory.slots_of(database, None) {
            if slot.buffer.is_requested() && slot.buffer.close() {
                slot.wake();
            }
        }
    }

    /// Withdraws the request of a slot that was on the list, for this reason.
    fn fail(&self, slot: &Slot, refill_error: RefillError) {
        self.directory
            .slots()
            .note(slot, slot.buffer.version(), refill_error, None);
        slot.buffer.withdraw();
        slot.wake();
    }
}
