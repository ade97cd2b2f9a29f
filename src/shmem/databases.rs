//! The desks: how a session's request for a segment reaches an allocator.
//!
//! 1. A session sets the slot's request (`DoubleBuffer::want`); only the one that
//!    succeeds goes on.
//! 2. Under the directory lock, shared, it pushes the slot onto the list of its database's
//!    desk and sets the latch of whoever serves it: the allocator, or the launcher while
//!    there is none. A database without a desk gets one (directory exclusively). If the slot
//!    has been given to another database meanwhile, the session withdraws the request.
//! 3. The allocator takes the whole list at once, accepts each request and answers it. From
//!    then on the slot can be evicted, in spite of the request: see `eviction`.
//! 4. An allocator leaves only under the directory lock, exclusively, and gives the desk
//!    back as wanted if its list is not empty: no request falls between two allocators.
//! 5. A list that no allocator can be started for is emptied by the launcher, each second, and
//!    the requests are withdrawn: sessions that still wait ask again. A request that nobody
//!    waits for any more keeps its slot no longer.

use core::sync::atomic::{AtomicI64, AtomicPtr, AtomicU32, Ordering};

use leaf_id_core::segment::Request;
use pgrx::pg_sys;

use super::{Area, Key, Slot, Text, Trouble};
use crate::pg;

/// Databases that can want ids at one time.
pub const DESKS: usize = 1024;
/// Slots of one list that are told why they wait, each time.
const EXPLAINED: u32 = 1024;

/// What serves a database.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum DeskState {
    /// Nobody's.
    Free,
    /// Requests wait for the launcher to start an allocator.
    Wanted,
    /// An allocator was registered and has not sat down.
    Starting,
    /// An allocator serves it.
    Staffed,
}

/// A database's desk.
#[repr(C)]
pub struct Desk {
    // Written under the directory lock, exclusively.
    database: AtomicU32,
    state: AtomicU32,
    /// Counts registrations, so that a late starter finds that it is not awaited.
    ticket: AtomicU32,
    /// Since when it is wanted, in microseconds since 2000.
    wanted_at: AtomicI64,
    // Plain atomics.
    /// First slot of the list of requests, plus 1. Pushed by sessions, taken whole.
    posted: AtomicU32,
    /// The allocator's latch, while it is staffed.
    latch: AtomicPtr<pg_sys::Latch>,
}

impl Desk {
    fn want(&self) {
        self.wanted_at.store(pg::now_timestamp(), Ordering::Relaxed);
        self.state
            .store(DeskState::Wanted as u32, Ordering::Relaxed);
    }

    fn free(&self) {
        self.state.store(DeskState::Free as u32, Ordering::Relaxed);
        self.database.store(0, Ordering::Relaxed);
    }

    fn is(&self, state: DeskState) -> bool {
        self.state.load(Ordering::Relaxed) == state as u32
    }

    /// Whether it is in this state for the allocator with this ticket.
    fn is_for(&self, state: DeskState, ticket: u32) -> bool {
        self.is(state) && self.ticket.load(Ordering::Relaxed) == ticket
    }
}

/// The desks: how requests reach an allocator.
impl Area {
    fn used_desks(&self) -> impl Iterator<Item = (u32, &Desk)> {
        (0u32..).zip(
            self.desks
                .iter()
                .take(self.desks_used.load(Ordering::Relaxed) as usize),
        )
    }

    fn desk_of(&self, database: u32) -> Option<&Desk> {
        self.used_desks()
            .map(|(_, desk)| desk)
            .find(|desk| desk.database.load(Ordering::Relaxed) == database)
    }

    /// Hands a request of this slot, which the caller has just set, to the allocator of its
    /// database. Withdraws it if there is no desk left, or if the slot is another database's
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
            let _held = self.read_directory();
            if Self::key(slot).database != database {
                return false;
            }
            if let Some(desk) = self.desk_of(database) {
                self.push(desk, slot);
                return true;
            }
        }
        let _held = self.write_directory();
        if Self::key(slot).database != database {
            return false;
        }
        let desk = self.desk_of(database).or_else(|| self.take_desk(database));
        if let Some(desk) = desk {
            self.push(desk, slot);
        }
        desk.is_some()
    }

    fn take_desk(&self, database: u32) -> Option<&Desk> {
        let free = self
            .used_desks()
            .map(|(_, desk)| desk)
            .find(|desk| desk.is(DeskState::Free));
        let desk = free.or_else(|| {
            let used = self.desks_used.load(Ordering::Relaxed);
            let desk = self.desks.get(used as usize)?;
            self.desks_used.store(used + 1, Ordering::Relaxed);
            Some(desk)
        })?;
        desk.database.store(database, Ordering::Relaxed);
        desk.want();
        Some(desk)
    }

    fn push(&self, desk: &Desk, slot: &Slot) {
        let mine = self.index(slot) + 1;
        let mut head = desk.posted.load(Ordering::Relaxed);
        loop {
            slot.next_posted.store(head, Ordering::Relaxed);
            match desk.posted.compare_exchange_weak(
                head,
                mine,
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => break,
                Err(now) => head = now,
            }
        }
        let latch = desk.latch.load(Ordering::Acquire);
        if latch.is_null() {
            self.wake_launcher();
        } else {
            pg::set_latch(latch);
        }
    }

    /// Takes every request posted at a desk, oldest first.
    fn collect(&self, desk: &Desk, into: &mut Vec<&'static Slot>) {
        let mut next = desk.posted.swap(0, Ordering::Acquire);
        let start = into.len();
        while let Some(index) = next.checked_sub(1) {
            let slot = self.slot(index);
            next = slot.next_posted.load(Ordering::Relaxed);
            into.push(slot);
        }
        if let Some(new) = into.get_mut(start..) {
            new.reverse();
        }
    }

    /// The launcher's latch, for sessions that need an allocator; null when it leaves.
    pub fn set_launcher(&self, latch: *mut pg_sys::Latch) {
        self.launcher.store(latch, Ordering::Release);
    }

    /// Wakes the launcher. If there is none, the postmaster is to start one.
    pub fn wake_launcher(&self) {
        let launcher = self.launcher.load(Ordering::Acquire);
        if launcher.is_null() {
            pg::nudge_postmaster();
        } else {
            pg::set_latch(launcher);
        }
    }

    /// Whether there is no launcher, so that nobody could answer.
    pub fn is_orphaned(&self) -> bool {
        self.launcher.load(Ordering::Acquire).is_null()
    }

    /// Desks that need an allocator, the longest waiting first: number and database.
    pub fn wanted_desks(&self) -> Vec<(u32, u32)> {
        let mut wanted = Vec::with_capacity(DESKS);
        {
            let _held = self.read_directory();
            for (number, desk) in self
                .used_desks()
                .filter(|(_, desk)| desk.is(DeskState::Wanted))
            {
                let since = desk.wanted_at.load(Ordering::Relaxed);
                wanted.push((since, number, desk.database.load(Ordering::Relaxed)));
            }
        }
        wanted.sort_unstable();
        wanted
            .into_iter()
            .map(|(_, number, database)| (number, database))
            .collect()
    }

    /// A launcher that starts knows of no allocator under way: whoever was registered and
    /// has not sat down is not awaited any more.
    pub fn forget_starting(&self) {
        let _held = self.write_directory();
        for (_, desk) in self
            .used_desks()
            .filter(|(_, desk)| desk.is(DeskState::Starting))
        {
            desk.want();
        }
    }

    /// The launcher is about to register an allocator; it must sit down with this ticket.
    /// `None` if the desk is not wanted any more.
    pub fn announce(&self, number: u32) -> Option<u32> {
        let desk = self.desks.get(number as usize)?;
        let _held = self.write_directory();
        desk.is(DeskState::Wanted).then(|| {
            desk.state
                .store(DeskState::Starting as u32, Ordering::Relaxed);
            desk.ticket.fetch_add(1, Ordering::Relaxed).wrapping_add(1)
        })
    }

    /// Takes back an announcement: the desk is wanted again, for as long as it has been.
    /// False if it was taken up.
    pub fn retract(&self, number: u32, ticket: u32) -> bool {
        let Some(desk) = self.desks.get(number as usize) else {
            return false;
        };
        let _held = self.write_directory();
        let starting = desk.is_for(DeskState::Starting, ticket);
        if starting {
            desk.state
                .store(DeskState::Wanted as u32, Ordering::Relaxed);
        }
        starting
    }

    /// Gives up on a wanted desk: every request at it ends with this trouble, and sessions
    /// that still want ids ask again. By the launcher, which alone could announce
    /// somebody for it.
    pub fn abandon(&self, number: u32, trouble: Trouble) {
        self.fail_posted(number, trouble);
        self.free_desk(number);
    }

    /// The same, but the desk stays wanted for as long as anybody asks.
    pub fn ask_again(&self, number: u32, trouble: Trouble) {
        if self.fail_posted(number, trouble) == 0 {
            self.free_desk(number);
        }
    }

    /// How many requests that were.
    pub fn fail_posted(&self, number: u32, trouble: Trouble) -> usize {
        let mut posted = Vec::new();
        self.collect_requests(number, &mut posted);
        for slot in &posted {
            self.fail(slot, trouble);
        }
        posted.len()
    }

    fn free_desk(&self, number: u32) {
        let Some(desk) = self.desks.get(number as usize) else {
            return;
        };
        let _held = self.write_directory();
        if desk.is(DeskState::Wanted) && desk.posted.load(Ordering::Relaxed) == 0 {
            desk.free();
        }
    }

    /// Withdraws what was asked for a database that is gone.
    pub(super) fn forget_desk(&self, database: u32) {
        let _held = self.write_directory();
        let Some(desk) = self.desk_of(database) else {
            return;
        };
        let mut next = desk.posted.swap(0, Ordering::Acquire);
        while let Some(index) = next.checked_sub(1) {
            let slot = self.slot(index);
            next = slot.next_posted.load(Ordering::Relaxed);
            slot.buffer.withdraw();
            slot.wake();
        }
        // Otherwise whoever was started for it finds no database, and leaves.
        if desk.is(DeskState::Wanted) {
            desk.free();
        }
    }

    /// Notes a trouble at the slots that wait at a desk, at the newest of very many, without
    /// ending the requests. By the launcher, which alone could announce somebody for it.
    pub fn explain(&self, number: u32, trouble: Trouble) {
        let Some(desk) = self.desks.get(number as usize) else {
            return;
        };
        // Nobody else takes the list without it.
        let _held = self.read_directory();
        let mut next = desk.posted.load(Ordering::Acquire);
        for _ in 0..EXPLAINED {
            let Some(index) = next.checked_sub(1) else {
                break;
            };
            let slot = self.slot(index);
            next = slot.next_posted.load(Ordering::Relaxed);
            let life = slot.buffer.life();
            self.with_ledger(slot, |ledger| {
                ledger.trouble = trouble;
                ledger.trouble_life = life;
                ledger.trouble_at = pg::now_timestamp();
            });
        }
    }

    /// An allocator sits down at the desk it was announced for. `None` if it is not
    /// awaited (any more).
    pub fn sit_down(&self, number: u32, ticket: u32, latch: *mut pg_sys::Latch) -> Option<u32> {
        let desk = self.desks.get(number as usize)?;
        let _held = self.write_directory();
        desk.is_for(DeskState::Starting, ticket).then(|| {
            desk.state
                .store(DeskState::Staffed as u32, Ordering::Relaxed);
            desk.latch.store(latch, Ordering::Release);
            desk.database.load(Ordering::Relaxed)
        })
    }

    /// The requests at the allocator's own desk, oldest first.
    pub fn collect_requests(&self, number: u32, into: &mut Vec<&'static Slot>) {
        if let Some(desk) = self.desks.get(number as usize) {
            self.collect(desk, into);
        }
    }

    /// Accepts the request of a slot that was on the list: with the tag that it is for.
    pub fn accept(&self, slot: &Slot) -> Option<(Request, Key)> {
        let _held = self.read_directory();
        Some((slot.buffer.accept()?, Self::key(slot)))
    }

    /// Ends a request, answered or not, and wakes the waiters.
    pub fn settle(&self, slot: &Slot, request: &Request) {
        slot.buffer.settle(request);
        slot.wake();
    }

    /// The allocator leaves its desk. If `only_idle` and a request has come, it stays:
    /// false. What was accepted and not answered is for the caller to settle.
    pub fn stand_up(&self, number: u32, ticket: u32, only_idle: bool) -> bool {
        let Some(desk) = self.desks.get(number as usize) else {
            return true;
        };
        let wanted = {
            let _held = self.write_directory();
            if !desk.is_for(DeskState::Staffed, ticket) {
                return true;
            }
            let wanted = desk.posted.load(Ordering::Relaxed) != 0;
            if wanted && only_idle {
                return false;
            }
            desk.latch.store(core::ptr::null_mut(), Ordering::Release);
            if wanted {
                desk.want();
            } else {
                desk.free();
            }
            wanted
        };
        if wanted || self.crowded.load(Ordering::Relaxed) != 0 {
            self.wake_launcher();
        }
        true
    }

    /// Ends the requests that an allocator had accepted when it was ended itself.
    pub fn settle_database(&self, database: u32) {
        let _held = self.read_directory();
        for slot in self.slots_locked(database, None) {
            if slot.buffer.is_requested() && slot.buffer.close() {
                slot.wake();
            }
        }
    }

    /// Withdraws the request of a slot that was on the list, for this reason.
    fn fail(&self, slot: &Slot, trouble: Trouble) {
        self.note(slot, slot.buffer.life(), trouble, None);
        slot.buffer.withdraw();
        slot.wake();
    }

    /// Notes a trouble of one life of the slot, if that has not ended, without ending the
    /// request.
    pub fn note(&self, slot: &Slot, life: u64, trouble: Trouble, text: Option<&str>) {
        let text = text.map(Text::new);
        self.with_ledger(slot, |ledger| {
            // It may be another tag's slot, where nobody is to read of this one's.
            if slot.buffer.life() != life {
                return;
            }
            ledger.trouble = trouble;
            ledger.trouble_life = life;
            ledger.trouble_at = pg::now_timestamp();
            if let Some(text) = text {
                ledger.text = text;
            }
        });
        slot.wake();
    }
}
