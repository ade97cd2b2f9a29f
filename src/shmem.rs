//! The shared area: layout, locks, lookup. The only place that knows where it lies.
//!
//! # Locks
//!
//! The area owns one named tranche of LWLocks, `leaf_id`: lock 0 is the directory, the last
//! two are those of the lease and of the reserve worker, the others are shared out among the
//! slots. Where the directory and a slot's are held, the directory comes first.
//! They are held for a few instructions: nothing here waits, allocates, logs, raises an
//! error or runs SQL under one.
//!
//! * To look a tag up, or to read a slot's identity, hold the directory shared.
//! * To give a slot to a tag or take it away, hold the directory exclusively, and the
//!   slot's lock while its buffer is invalidated. (What becomes of an open request then is in
//!   `eviction`.)
//! * To publish, to invalidate, or to touch a slot's [`SlotState`], hold the slot's lock; an
//!   allocator looks there whether its request is the open one still.
//! * To ask the worker registry, to reply or to tell of it, hold the lock of the lease.
//! * To give the reserve worker a task, or to be it, hold its lock.
//! * To take ids, or to post a request at a queue that exists: no lock, and the directory
//!   shared, respectively.
//! * Fields that are plain atomics outside those groups say so.
//!
//! # How a session finds that its slot was given away
//!
//! By the version of the buffer, which every invalidation and reuse counts up: a session
//! keeps the version it saw when it looked the tag up and takes only from that.

#![allow(unsafe_code)]

use core::cell::UnsafeCell;
use core::hash::{Hash, Hasher};
use core::sync::atomic::{
    AtomicI32, AtomicI64, AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering,
};
use std::hash::DefaultHasher;

use leaf_id_core::segment::{DoubleBuffer, Refused, Remainders, Request as SegmentRequest};
use leaf_id_core::step::Pace;
use pgrx::{PgSharedMemoryInitialization, pg_sys};

use crate::guc;
use crate::pg;
use crate::tags::rights::Access;

mod databases;
mod eviction;
mod registry;
mod remote_servers;
mod reserve;
mod slot;
mod snowflake;

use databases::{QUEUES, Queue};
use eviction::{ACCOUNTS, SlotAccount};
use registry::RegistryMailbox;
pub use registry::{Explanation, LeaseStatus, Reply, Request, WorkerIdSource};
use remote_servers::REMOTE_SERVERS;
pub use remote_servers::{RemoteServer, RemoteServerState};
use reserve::Reserve;
pub use reserve::Task;
pub use slot::{IdRange, SavedRanges, SlotState, Text};
pub use snowflake::{Snowflake, Writer};

/// The longest tag, in bytes (Leaf: varchar(128)).
pub const MAX_TAG: usize = 128;
/// Locks shared out among the slots.
const SLOT_LOCKS: usize = 64;
/// The lock of the lease.
const LEASE_LOCK: usize = 1 + SLOT_LOCKS;
/// The lock of the reserve worker.
const RESERVE_LOCK: usize = 1 + LEASE_LOCK;
const LOCKS: usize = 1 + RESERVE_LOCK;

/// The name of the area and of its tranche.
const NAME: &core::ffi::CStr = c"leaf_id";

/// A tag's bytes, in the encoding of its database.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Tag {
    len: u8,
    bytes: [u8; MAX_TAG],
}

impl Tag {
    /// An empty one, equal to no valid tag.
    pub const EMPTY: Self = Self {
        len: 0,
        bytes: [0; MAX_TAG],
    };

    /// `None` if it is empty or longer than [`MAX_TAG`].
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let len = u8::try_from(bytes.len()).ok()?;
        let mut tag = Self { len, ..Self::EMPTY };
        tag.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        (len > 0).then_some(tag)
    }

    /// The bytes that were given.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// For messages, which pgrx carries as UTF-8: what is none is escaped as in an `E''` string.
    pub fn name(&self) -> String {
        let mut name = String::with_capacity(usize::from(self.len));
        for chunk in self.bytes().utf8_chunks() {
            name.push_str(chunk.valid());
            name.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
        }
        name
    }
}

impl Hash for Tag {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.bytes().hash(state);
    }
}

/// What a slot is for. The relation is `leaf_alloc` by its oid: another database, or the
/// extension created anew, is another key.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Key {
    /// Oid of the database.
    pub database: u32,
    /// Oid of its `leaf_alloc`.
    pub relation: u32,
    /// The tag.
    pub tag: Tag,
}

impl Key {
    const FREE: Self = Self {
        database: 0,
        relation: 0,
        tag: Tag::EMPTY,
    };

    fn is_free(&self) -> bool {
        self.database == 0
    }
}

/// One tag in use. Its double buffer lies apart, among the others' in a line of the cache
/// each: sessions that use many tags touch little else.
#[repr(C)]
pub struct Slot {
    /// What sessions take from, without a lock.
    pub buffer: &'static DoubleBuffer,

    // Plain atomics.
    /// The row's `max_step` as last seen, in ids; where the tag is sourced from another server, that
    /// server's if it is smaller.
    pub max_step: AtomicU32,
    /// A session has waited since the last publication (it is starved).
    pub starved: AtomicU8,
    /// Who may take from it: an [`Access`], written under the slot's lock.
    access: AtomicU8,
    /// The process whose open transaction has edited this tag's row; 0 for none. For its
    /// parallel workers, which do not have its list of edits.
    pub edited_by: AtomicI32,
    /// Next slot in a queue's list, plus 1.
    next_posted: AtomicU32,
    /// Calls that had to wait.
    pub waits: AtomicU64,
    /// How long, together, in microseconds.
    pub waited_us: AtomicU64,
    /// When a segment was first asked for since the last one came, in microseconds since
    /// 2000; 0 when it was not.
    pub wanted_at: AtomicI64,

    // Written under the directory lock, exclusively.
    key: UnsafeCell<Key>,
    /// Next slot in the chain or in the free list, plus 1.
    next: AtomicU32,
    /// When an eviction last found it used, in slots that were given out until then, and the
    /// buffer's mark then.
    used_at: AtomicU32,
    seen_mark: AtomicU32,
    /// The slots of the same database, in a ring, plus 1.
    ring_next: AtomicU32,
    ring_before: AtomicU32,

    // Under the slot's lock.
    state: UnsafeCell<SlotState>,

    /// The `max_step` of the source server of the tag; 0 where there is none. A plain atomic,
    /// here where there is room for it.
    pub server_max_step: AtomicU32,
    waiters: UnsafeCell<pg_sys::ConditionVariable>,
}

/// What a tag costs: a slot, a double buffer, and two hash buckets at most.
const _: () =
    assert!(size_of::<Slot>() + size_of::<DoubleBuffer>() + 2 * size_of::<AtomicU32>() <= 512);

/// The header; the double buffers, the slots and the hash buckets follow it.
#[repr(C, align(128))]
pub struct Area {
    /// The snowflake generator.
    pub snowflake: Snowflake,
    locks: *mut pg_sys::LWLockPadded,
    buffers: *mut DoubleBuffer,
    /// The first `used` of them are initialised.
    slots: *mut Slot,
    buckets: *mut AtomicU32,
    slot_count: u32,
    bucket_count: u32,
    /// Slots that were ever given out. Directory lock, exclusively.
    used: AtomicU32,
    /// First slot of the free list, plus 1. Directory lock, exclusively.
    free: AtomicU32,
    /// Counts slots that were given to tags: the clock of evictions. Directory lock,
    /// exclusively.
    gives: AtomicU32,
    /// See [`eviction::SlotCounts`].
    evictions: AtomicU64,
    evicted_ids: AtomicU64,
    /// What the hash of a tag begins with: drawn at each start, so that nobody can choose
    /// tags that share a bucket.
    hash_key: [u64; 2],
    /// When gone tables were last looked for, in microseconds since 2000.
    swept_at: AtomicI64,
    /// Entries of `accounts` that were ever used. Directory lock, exclusively.
    accounts_used: AtomicU32,
    /// The databases that hold slots. Directory lock.
    accounts: [SlotAccount; ACCOUNTS],
    /// Queues that were ever used. Directory lock, exclusively.
    queues_used: AtomicU32,
    /// Databases wait because all worker slots are in use: allocators should not linger.
    pub crowded: AtomicU32,
    /// The launcher takes the remainders out, or they are saved: no claim may begin.
    saving: AtomicU32,
    /// Claims between their begin and their publication.
    claims: AtomicU32,
    launcher: AtomicPtr<pg_sys::Latch>,
    queues: [Queue; QUEUES],
    /// Servers that tags are sourced from. Directory lock.
    remote_servers: UnsafeCell<[RemoteServer; REMOTE_SERVERS]>,
    /// The worker registry. The lock of the lease.
    lease: UnsafeCell<RegistryMailbox>,
    /// The lock of the reserve worker.
    reserve: UnsafeCell<Reserve>,
}

// SAFETY: everything that changes is an atomic or in a cell guarded by the locks in the
// header of this file.
unsafe impl Sync for Slot {}
// SAFETY: as above.
unsafe impl Sync for Area {}

/// A tag's slot, in the version in which it was looked up.
#[derive(Clone, Copy)]
pub struct SlotRef {
    /// What ids are taken from.
    pub buffer: &'static DoubleBuffer,
    /// The slot it belongs to.
    pub slot: &'static Slot,
    /// What takes must name.
    pub version: u64,
}

impl SlotRef {
    /// In its present version.
    fn of(slot: &'static Slot) -> Self {
        Self {
            buffer: slot.buffer,
            slot,
            version: slot.buffer.version(),
        }
    }
}

/// No slot that was looked at could be given away.
pub struct Full;

struct AreaPointer(AtomicPtr<Area>);

static AREA: AreaPointer = AreaPointer(AtomicPtr::new(core::ptr::null_mut()));

/// The area; `None` if the library was not preloaded.
#[inline]
pub fn area() -> Option<&'static Area> {
    // SAFETY: set once per (re)start of shared memory by the postmaster, which maps it for
    // the life of every process it forks; everything mutable in it is atomic or in a cell.
    unsafe { AREA.0.load(Ordering::Relaxed).as_ref() }
}

/// Frees all that is cached of a database: it is gone, or another one of its oid is about to
/// come into being.
pub fn forget_database(database: u32) {
    if let Some(area) = area() {
        area.forget_database(database);
    }
}

/// Arranges for the shared memory. While the library is being preloaded.
pub fn init() {
    // The macro expects it in scope.
    use pgrx::pg_guard;
    pgrx::pg_shmem_init!(AREA = ());
}

const fn aligned(bytes: usize) -> usize {
    bytes.next_multiple_of(128)
}

struct Layout {
    slots: u32,
    buckets: u32,
}

impl Layout {
    fn configured() -> Self {
        let slots = u32::try_from(guc::MAX_TAGS.get()).unwrap_or(1).max(1);
        Self {
            slots,
            buckets: slots.next_power_of_two(),
        }
    }

    fn buffers_at() -> usize {
        aligned(size_of::<Area>())
    }

    fn slots_at(&self) -> usize {
        Self::buffers_at() + aligned(size_of::<DoubleBuffer>() * self.slots as usize)
    }

    fn buckets_at(&self) -> usize {
        self.slots_at() + aligned(size_of::<Slot>() * self.slots as usize)
    }

    fn size(&self) -> usize {
        self.buckets_at() + aligned(size_of::<AtomicU32>() * self.buckets as usize)
    }
}

impl PgSharedMemoryInitialization for AreaPointer {
    type Value = ();

    unsafe fn on_shmem_request(&'static self) {
        let locks = i32::try_from(LOCKS).unwrap_or(1);
        // SAFETY: called from shmem_request_hook, the place for both.
        unsafe {
            pg_sys::RequestAddinShmemSpace(Layout::configured().size());
            pg_sys::RequestNamedLWLockTranche(NAME.as_ptr(), locks);
        }
    }

    unsafe fn on_shmem_startup(&'static self, (): ()) {
        let layout = Layout::configured();
        let mut found = false;
        // SAFETY: called from shmem_startup_hook with what was requested above. The area and
        // the buckets are written before any other process exists; ShmemInitStruct aligns to a cache line
        // or more, and every part starts at a multiple of 128.
        unsafe {
            let area = pg_sys::ShmemInitStruct(NAME.as_ptr(), layout.size(), &raw mut found);
            if !found {
                // The slots are written when they are first used: a million of them take
                // half a gigabyte, and the server starts at once.
                let area = area.cast::<Area>();
                area.write_bytes(0, 1);
                (*area).locks = pg_sys::GetNamedLWLockTranche(NAME.as_ptr());
                (*area).buffers = area.byte_add(Layout::buffers_at()).cast();
                (*area).slots = area.byte_add(layout.slots_at()).cast();
                (*area).buckets = area.byte_add(layout.buckets_at()).cast();
                (*area).buckets.write_bytes(0, layout.buckets as usize);
                (*area).slot_count = layout.slots;
                (*area).bucket_count = layout.buckets;
                (*area).hash_key = [pg::strong_random(), pg::strong_random()];
                (*area).snowflake.generator.close();
                (*area)
                    .snowflake
                    .epoch_ms
                    .store(guc::epoch_ms(), Ordering::Relaxed);
                pg_sys::ConditionVariableInit((*area).snowflake.waiters.get());
                (*area).lease.get().write(RegistryMailbox::NEW);
                (*area).reserve.get().write(Reserve::NEW);
            }
            // Also after a crash restart, when the same postmaster makes it anew.
            self.0.store(area.cast(), Ordering::Relaxed);
        }
    }
}

/// An LWLock, released on drop.
struct Held(*mut pg_sys::LWLock);

impl Drop for Held {
    fn drop(&mut self) {
        // SAFETY: acquired by `Area::lock`, and nothing between can have raised an error.
        unsafe { pg_sys::LWLockRelease(self.0) };
    }
}

impl Slot {
    /// Wakes the calls that wait for this slot's segment.
    pub fn wake(&self) {
        // SAFETY: initialised with the slot; a condition variable has its own lock.
        unsafe { pg_sys::ConditionVariableBroadcast(self.waiters.get()) };
    }

    /// Who may take from it in a version of its buffer that was read before this is.
    pub fn access(&self) -> Access {
        Access::from_number(self.access.load(Ordering::Acquire))
    }

    /// A row was published from that says who may. Under the slot's lock.
    fn allow(&self, access: Access) {
        self.access.store(access as u8, Ordering::Release);
    }

    /// Drops what is cached. Under the slot's lock. First the access, then the version: see
    /// [`crate::tags::rights`].
    fn invalidate(&self) -> Remainders {
        self.allow(Access::Unknown);
        self.buffer.invalidate()
    }

    fn mark_edited(&self, edited: bool) {
        let me = pg::pid();
        if edited {
            self.edited_by.store(me, Ordering::Relaxed);
        } else {
            // Not the mark of another transaction that came after ours.
            let _ = self
                .edited_by
                .compare_exchange(me, 0, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// When a segment was first asked for since the last one came, in microseconds since
    /// 2000; now, if none was.
    pub fn wanted_since(&self) -> i64 {
        match self.wanted_at.load(Ordering::Relaxed) {
            0 => pg::now_timestamp(),
            at => at,
        }
    }

    /// The same; from now on, if none was.
    fn want_from(&self, now: i64) -> i64 {
        let free = self
            .wanted_at
            .compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        free.map_or_else(|since| since, |_| now)
    }

    /// The segment that was asked for has come, or is there.
    pub fn forget_wanted(&self) {
        self.wanted_at.store(0, Ordering::Relaxed);
    }

    /// Where calls wait for this slot's segment.
    pub fn waiters(&self) -> pg::Waiters {
        // SAFETY: in shared memory, and initialized when that was.
        unsafe { pg::Waiters::new(self.waiters.get()) }
    }
}

impl Area {
    fn lock(&self, index: usize, mode: pg_sys::LWLockMode::Type) -> Held {
        // SAFETY: index is below LOCKS, what the tranche was requested with.
        unsafe {
            let lock = &raw mut (*self.locks.add(index)).lock;
            pg_sys::LWLockAcquire(lock, mode);
            Held(lock)
        }
    }

    fn directory(&self, mode: pg_sys::LWLockMode::Type) -> Held {
        self.lock(0, mode)
    }

    fn read_directory(&self) -> Held {
        self.directory(pg_sys::LWLockMode::LW_SHARED)
    }

    fn write_directory(&self) -> Held {
        self.directory(pg_sys::LWLockMode::LW_EXCLUSIVE)
    }

    /// How many tags fit in.
    pub fn capacity(&self) -> usize {
        self.slot_count as usize
    }

    fn slot(&self, index: u32) -> &'static Slot {
        debug_assert!(index < self.slot_count);
        debug_assert!(index < self.used.load(Ordering::Relaxed));
        // SAFETY: within the array, which lives as long as the process, and initialised: an
        // index is below `used`.
        unsafe { &*self.slots.add(index as usize) }
    }

    fn index(&self, slot: &Slot) -> u32 {
        // SAFETY: every Slot there is lies in the array.
        let index = unsafe { core::ptr::from_ref(slot).offset_from(self.slots) };
        u32::try_from(index).unwrap_or(0)
    }

    fn bucket(&self, key: &Key) -> &AtomicU32 {
        let mut hasher = DefaultHasher::new();
        self.hash_key.hash(&mut hasher);
        key.hash(&mut hasher);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "any bits of the hash will do"
        )]
        let index = hasher.finish() as u32 & (self.bucket_count - 1);
        // SAFETY: masked to the power of two that is the array's length.
        unsafe { &*self.buckets.add(index as usize) }
    }

    /// The slot's identity. Under the directory lock.
    fn key(slot: &Slot) -> Key {
        // SAFETY: written only under the directory lock, exclusively.
        unsafe { *slot.key.get() }
    }

    fn find_locked(&self, key: &Key) -> Option<&'static Slot> {
        let mut next = self.bucket(key).load(Ordering::Relaxed);
        while let Some(index) = next.checked_sub(1) {
            let slot = self.slot(index);
            // SAFETY: as in `key`; compared in place, as it is large.
            if unsafe { &*slot.key.get() } == key {
                return Some(slot);
            }
            next = slot.next.load(Ordering::Relaxed);
        }
        None
    }

    /// The slot of a tag, if it has one.
    pub fn find(&self, key: &Key) -> Option<SlotRef> {
        let _held = self.read_directory();
        self.find_locked(key).map(SlotRef::of)
    }

    /// The slot of a tag whose row the caller has seen; made room for if need be.
    ///
    /// # Errors
    /// [`Full`] if no slot that this tag may have can be taken away.
    pub fn find_or_create(&self, key: &Key) -> Result<SlotRef, Full> {
        let _held = self.write_directory();
        let slot = match self.find_locked(key) {
            Some(slot) => slot,
            None => {
                let evict = || self.evict(key.database);
                let slot = self.free_slot().or_else(evict).ok_or(Full)?;
                self.give(slot, key);
                slot
            }
        };
        Ok(SlotRef::of(slot))
    }

    fn free_slot(&self) -> Option<&'static Slot> {
        if let Some(index) = self.free.load(Ordering::Relaxed).checked_sub(1) {
            let slot = self.slot(index);
            self.free
                .store(slot.next.load(Ordering::Relaxed), Ordering::Relaxed);
            return Some(slot);
        }
        let used = self.used.load(Ordering::Relaxed);
        (used < self.slot_count).then(|| {
            self.init_slot(used);
            self.used.store(used + 1, Ordering::Relaxed);
            self.slot(used)
        })
    }

    /// Makes a slot that was never used. The directory is held exclusively.
    fn init_slot(&self, index: u32) {
        // SAFETY: both lie in their arrays, and nobody has a reference to a slot that was
        // never given out. All zeroes is an empty double buffer, and a slot but for what is
        // written here.
        unsafe {
            let buffer = self.buffers.add(index as usize);
            buffer.write_bytes(0, 1);
            let slot = self.slots.add(index as usize);
            slot.write_bytes(0, 1);
            (&raw mut (*slot).buffer).write(&*buffer);
            (*slot).state.get().write(SlotState::NEW);
            pg_sys::ConditionVariableInit((*slot).waiters.get());
        }
    }

    /// Whether the caller should look for slots of its database's gone tables: at most
    /// once a second, when the array is full.
    pub fn may_sweep(&self) -> bool {
        let now = pg::now_timestamp();
        let swept_at = self.swept_at.load(Ordering::Relaxed);
        self.used.load(Ordering::Relaxed) == self.slot_count
            && self.free.load(Ordering::Relaxed) == 0
            && now.abs_diff(swept_at) > 1_000_000
            && self
                .swept_at
                .compare_exchange(swept_at, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }

    /// Runs a closure with a slot's state, under the slot's lock. The closure must do
    /// nothing that can fail or wait.
    pub fn with_state<T>(&self, slot: &Slot, body: impl FnOnce(&mut SlotState) -> T) -> T {
        let lock = 1 + self.index(slot) as usize % SLOT_LOCKS;
        let _held = self.lock(lock, pg_sys::LWLockMode::LW_EXCLUSIVE);
        // SAFETY: the slot's lock is held exclusively, and the closure cannot get another
        // reference: it would have to lock it again.
        body(unsafe { &mut *slot.state.get() })
    }

    /// Runs a closure with the mailbox of the worker registry, under its lock. The closure must
    /// do nothing that can fail or wait.
    fn with_lease<T>(&self, body: impl FnOnce(&mut RegistryMailbox) -> T) -> T {
        let _held = self.lock(LEASE_LOCK, pg_sys::LWLockMode::LW_EXCLUSIVE);
        // SAFETY: its lock is held exclusively, and the closure cannot get another
        // reference: it would have to lock it again.
        body(unsafe { &mut *self.lease.get() })
    }

    /// Runs a closure with what is known of the reserve worker, under its lock. The closure
    /// must do nothing that can fail or wait.
    fn with_reserve<T>(&self, body: impl FnOnce(&mut Reserve) -> T) -> T {
        let _held = self.lock(RESERVE_LOCK, pg_sys::LWLockMode::LW_EXCLUSIVE);
        // SAFETY: its lock is held exclusively, and the closure cannot get another
        // reference: it would have to lock it again.
        body(unsafe { &mut *self.reserve.get() })
    }

    fn retire_locked(&self, slot: &Slot) {
        self.with_state(slot, |state| {
            state.lost += slot.invalidate().count();
            state.drop_saved();
        });
        slot.edited_by.store(0, Ordering::Relaxed);
        slot.server_max_step.store(0, Ordering::Relaxed);
        slot.wake();
    }

    /// Drops what is cached of a tag, in every session. Allocates nothing and cannot
    /// fail: it runs in commit callbacks.
    pub fn retire(&self, key: &Key) {
        let _held = self.read_directory();
        if let Some(slot) = self.find_locked(key) {
            self.retire_locked(slot);
        }
    }

    /// The same for every tag of a table, or of a database.
    pub fn retire_all(&self, database: u32, relation: Option<u32>) {
        let _held = self.read_directory();
        for slot in self.slots_locked(database, relation) {
            self.retire_locked(slot);
        }
    }

    /// Marks a tag as edited by this process's open transaction, or no longer.
    pub fn mark_edited(&self, key: &Key, edited: bool) {
        let _held = self.read_directory();
        if let Some(slot) = self.find_locked(key) {
            slot.mark_edited(edited);
        }
    }

    /// The same for every tag of a table, or of a database.
    pub fn mark_all_edited(&self, database: u32, relation: Option<u32>, edited: bool) {
        let _held = self.read_directory();
        for slot in self.slots_locked(database, relation) {
            slot.mark_edited(edited);
        }
    }
}

/// A committed claim on its way into shared memory.
#[derive(Clone, Copy)]
pub struct Claimed {
    /// The lowest id.
    pub first: i64,
    /// How many ids.
    pub len: u32,
    /// `incarnation` of the row.
    pub row_incarnation: i64,
    /// The adaptive step after this claim.
    pub pace: Pace,
    /// The row's `max_step`.
    pub max_step: u32,
    /// Ids left out before the first one, because of a failover.
    pub skipped: u64,
    /// It is shorter than was wished for, only because claims grow step by step.
    pub growth_limited: bool,
    /// Who may take from it.
    pub access: Access,
}

impl Claimed {
    /// One past the last id.
    pub fn end(&self) -> i64 {
        self.first + i64::from(self.len)
    }
}

impl Area {
    /// Publishes a claim that was made for a request, began in the given version of the slot and
    /// is durable now (I1). A row that was replaced since the last publication starts a new
    /// version first.
    ///
    /// # Errors
    /// See [`Refused`]; the claimed ids are then a gap and counted as lost.
    pub fn publish(
        &self,
        slot: &Slot,
        request: &SegmentRequest,
        version: u64,
        claimed: &Claimed,
    ) -> Result<(), Refused> {
        let now = pg::now_timestamp();
        let us = now.saturating_sub(slot.wanted_since()).max(0);
        let published = self.with_request(slot, request, |state| {
            slot.max_step.store(claimed.max_step, Ordering::Relaxed);
            let mut version = version;
            let replaced =
                state.row_incarnation != 0 && state.row_incarnation != claimed.row_incarnation;
            // An edit that no trigger has told of: what sessions remember ends with the version.
            let regranted = ![Access::Unknown, claimed.access].contains(&slot.access());
            if slot.buffer.version() == version && (replaced || regranted) {
                state.lost += slot.invalidate().count();
                version = slot.buffer.version();
            }
            let issued = state.issued(&slot.buffer.remainders());
            let published = slot.buffer.publish(version, claimed.first, claimed.len);
            match published {
                Ok(()) => {
                    slot.allow(claimed.access);
                    if state.last_refill > 0 {
                        let us = now.saturating_sub(state.last_refill);
                        state.paced_us = u64::try_from(us).unwrap_or(0);
                        state.paced_ids = issued.saturating_sub(state.issued_at_refill);
                    }
                    state.issued_at_refill = issued;
                    state.row_incarnation = claimed.row_incarnation;
                    state.pace = claimed.pace;
                    state.refills = state.refills.saturating_add(1);
                    state.last_refill = now;
                    state.last_refill_us = u32::try_from(us).unwrap_or(u32::MAX);
                    state.refill_error = None;
                    // Who waited until now has waited for this.
                    slot.starved.store(0, Ordering::Relaxed);
                    slot.forget_wanted();
                }
                Err(_) => state.lost += u64::from(claimed.len),
            }
            state.published += u64::from(claimed.len);
            published
        });
        published.unwrap_or_else(|| {
            self.lose_evicted(claimed.len.into());
            Err(Refused::Changed)
        })
    }

    /// As [`Self::with_state`], by the allocator that has accepted this request; `None` if the
    /// slot was evicted since, and may be another tag's.
    pub fn with_request<T>(
        &self,
        slot: &Slot,
        request: &SegmentRequest,
        body: impl FnOnce(&mut SlotState) -> T,
    ) -> Option<T> {
        self.with_state(slot, |state| {
            slot.buffer.is_in_flight(request).then(|| body(state))
        })
    }

    /// Remembers a claim that has committed: the row's `max_id`, and what it has left out.
    pub fn note_claim(&self, slot: &Slot, request: &SegmentRequest, claimed: &Claimed) {
        self.with_request(slot, request, |state| {
            state.max_id = claimed.end();
            state.skipped += claimed.skipped;
        });
    }

    /// Counts a committed claim of this many ids that is not going to be published.
    pub fn lose(&self, slot: &Slot, request: &SegmentRequest, ids: u32) {
        let counted = self.with_request(slot, request, |state| {
            state.published += u64::from(ids);
            state.lost += u64::from(ids);
        });
        if counted.is_none() {
            self.lose_evicted(ids.into());
        }
    }

    /// Gives the next saved range back, whose row was seen to fit in the given version of the
    /// slot.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn publish_saved_range(
        &self,
        slot: &Slot,
        version: u64,
        access: Access,
    ) -> Result<(), Refused> {
        self.with_state(slot, |state| {
            let Some(run) = state.next_saved() else {
                return Ok(());
            };
            slot.buffer.publish(version, run.first, run.len)?;
            slot.allow(access);
            state.published += u64::from(run.len);
            if let Some(saved) = state.saved.iter_mut().find(|saved| **saved == run) {
                *saved = IdRange::NONE;
            }
            state.refill_error = None;
            slot.forget_wanted();
            Ok(())
        })
    }

    /// The state and what both buffers hold, at one moment.
    pub fn look(&self, slot: &Slot) -> (SlotState, Remainders) {
        self.with_state(slot, |state| (*state, slot.buffer.remainders()))
    }
}

/// How the remainders survive the launcher: a restart of the server, and the end of the
/// launcher alone, lose no ids (I6).
impl Area {
    /// Begins a claim; false if none may begin, because the remainders are being saved.
    pub fn begin_claim(&self) -> bool {
        // Counted first, looked second; `stop_claims` does it the other way round.
        self.claims.fetch_add(1, Ordering::SeqCst);
        let may = self.saving.load(Ordering::SeqCst) == 0;
        if !may {
            self.end_claim();
        }
        may
    }

    /// Ends a claim, published or not.
    pub fn end_claim(&self) {
        self.claims.fetch_sub(1, Ordering::SeqCst);
    }

    /// From now on no claim begins. True if none is under way either.
    pub fn stop_claims(&self) -> bool {
        self.saving.store(1, Ordering::SeqCst);
        self.claims.load(Ordering::SeqCst) == 0
    }

    /// Claims may begin again.
    pub fn resume_claims(&self) {
        self.saving.store(0, Ordering::SeqCst);
    }

    /// Takes what both buffers of every tag hold out of shared memory: nobody can take it
    /// any more. A claim that is still under way is not going to be published.
    pub fn take_out_ranges(&self) -> Vec<(Key, SavedRanges)> {
        let mut taken = Vec::with_capacity(self.used.load(Ordering::Relaxed) as usize);
        let _held = self.read_directory();
        for index in 0..self.used.load(Ordering::Relaxed) {
            // Never beyond what was allocated before the lock.
            if taken.len() == taken.capacity() {
                break;
            }
            let slot = self.slot(index);
            let key = Self::key(slot);
            if key.is_free() {
                continue;
            }
            let saved = self.with_state(slot, |state| {
                let remainders = slot.invalidate();
                state.published -= remainders.count().min(state.published);
                let saved = SavedRanges::of(state, &remainders);
                state.saved = [IdRange::NONE; 2];
                saved
            });
            slot.wake();
            taken.extend(saved.map(|saved| (key, saved)));
        }
        taken
    }

    /// Puts remainders beside a tag's buffers, for its allocator to publish once it has seen
    /// that they fit the row. False if there is no room: they are a gap.
    pub fn restore(&self, key: &Key, saved: &SavedRanges) -> bool {
        let _held = self.write_directory();
        let slot = self.find_locked(key).or_else(|| {
            let slot = self.free_slot()?;
            self.give(slot, key);
            Some(slot)
        });
        let Some(slot) = slot else { return false };
        self.with_state(slot, |state| {
            state.row_incarnation = saved.incarnation;
            state.max_id = saved.max_id;
            state.saved = saved.ranges;
        });
        slot.wake();
        true
    }
}
