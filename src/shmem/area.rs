//! The shared area: its layout and its locks. The only place that knows where it lies.
//!
//! # Locks
//!
//! The area owns one named tranche of LWLocks, `leaf_id`: lock 0 is the directory, the last
//! three are those of the worker registry, of the reserve worker and of the remote servers, the
//! others are shared out among the slots. Where the directory and a slot's are held, the
//! directory comes first.
//! They are held for a few instructions: nothing here waits, allocates, logs, raises an
//! error or runs SQL under one.
//!
//! * To look a tag up, or to read a slot's identity, hold the directory shared:
//!   [`Area::directory`].
//! * To give a slot to a tag or take it away, hold the directory exclusively
//!   ([`Area::directory_mut`]), and the slot's lock while its buffer is invalidated. (What
//!   becomes of an open request then is in `eviction`.)
//! * To publish, to invalidate, or to touch a slot's [`SlotState`], hold the slot's lock; an
//!   allocator looks there whether its request is the open one still.
//! * To ask the worker registry, to reply or to tell of it, hold its lock.
//! * To give the reserve worker a task, or to be it, hold its lock.
//! * To tell of a remote server, or to read what was told, hold the lock of those.
//! * To take ids, or to post a request at a queue that exists: no lock, and the directory
//!   shared, respectively.
//! * Fields that are plain atomics outside those groups say so.
//!
//! # How a session finds that its slot was given away
//!
//! By the version of the buffer, which every invalidation and reuse counts up: a session
//! keeps the version it saw when it looked the tag up and takes only from that.

use core::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use leaf_id_core::segment::DoubleBuffer;
use pgrx::{PgSharedMemoryInitialization, pg_sys};

use super::databases::{Launcher, QueueTable, Queues};
use super::directory::{Directory, ReadGuard, WriteGuard};
use super::lock::{Lock, Locked};
use super::registry::{Registry, RegistryMailbox};
use super::remote_servers::RemoteServers;
use super::reserve::{Assignment, Reserve};
use super::saved::Claims;
use super::slot::{Slot, SlotRef};
use super::slots::{SLOT_LOCKS, Slots};
use super::snowflake::Snowflake;
use crate::guc;

/// The lock of the worker registry.
const REGISTRY_LOCK: usize = 1 + SLOT_LOCKS;
/// The lock of the reserve worker.
const RESERVE_LOCK: usize = 1 + REGISTRY_LOCK;
/// The lock of the remote servers.
const REMOTE_SERVERS_LOCK: usize = 1 + RESERVE_LOCK;
const LOCKS: usize = 1 + REMOTE_SERVERS_LOCK;

/// The name of the area and of its tranche.
const NAME: &core::ffi::CStr = c"leaf_id";

/// The header; the double buffers, the slots and the hash buckets follow it.
#[repr(C, align(128))]
pub struct Area {
    /// The snowflake generator.
    pub snowflake: Snowflake,
    pub(super) directory: Directory,
    launcher: Launcher,
    claims: Claims,
    queues: QueueTable,
    remote_servers: RemoteServers,
    registry: Locked<RegistryMailbox>,
    reserve: Locked<Assignment>,
}

impl Area {
    /// Locks the directory to look something up.
    pub fn directory(&self) -> ReadGuard<'_> {
        self.directory.read()
    }

    /// Locks the directory to change it.
    pub fn directory_mut(&self) -> WriteGuard<'_> {
        self.directory.write()
    }

    /// The queues of the databases.
    pub fn queues(&self) -> Queues<'_> {
        Queues::new(&self.queues, &self.directory, &self.launcher)
    }

    /// The mailbox of the worker registry.
    pub fn registry(&self) -> Registry<'_> {
        Registry::new(&self.registry, &self.launcher)
    }

    /// The reserve worker.
    pub fn reserve(&self) -> Reserve<'_> {
        Reserve::new(&self.reserve, &self.launcher)
    }

    /// The servers that tags are sourced from.
    pub fn remote_servers(&self) -> &RemoteServers {
        &self.remote_servers
    }

    /// Whether claims may begin.
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// The launcher's latch.
    pub fn launcher(&self) -> &Launcher {
        &self.launcher
    }

    /// How many tags fit in.
    pub fn capacity(&self) -> usize {
        self.directory.slots().capacity() as usize
    }

    /// How many slots were ever given out.
    pub fn used(&self) -> usize {
        self.directory.slots().used() as usize
    }

    /// The number of a slot for [`Area::slot_ref`].
    pub fn link(&self, slot: &Slot) -> u32 {
        self.directory.slots().link(slot)
    }

    /// A slot that was looked up in this version.
    #[inline]
    pub fn slot_ref(&self, link: u32, version: u64) -> Option<SlotRef> {
        self.directory.slots().slot_ref(link, version)
    }

    /// Whether the caller should look for slots of its database's gone tables: at most
    /// once a second, when the array is full.
    pub fn may_sweep(&self) -> bool {
        self.directory.may_sweep()
    }

    /// Frees the slots of a table that is gone.
    pub fn sweep(&self, database: u32, relation: u32) {
        self.directory.sweep(database, relation);
    }

    /// Frees everything of a database that is gone, or that is about to come into being with
    /// an oid that another one had. Allocates nothing and cannot fail: it runs in a commit
    /// callback.
    pub fn forget_database(&self, database: u32) {
        self.queues().forget(database);
        self.directory.forget_database(database);
        self.remote_servers.forget(database);
    }
}

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
        // the buckets are written before any other process exists; ShmemInitStruct aligns to a
        // cache line or more, and every part starts at a multiple of 128. The tranche has
        // LOCKS locks, of which 1 to SLOT_LOCKS are the slots'.
        unsafe {
            let area = pg_sys::ShmemInitStruct(NAME.as_ptr(), layout.size(), &raw mut found);
            if !found {
                // The slots are written when they are first used: a million of them take
                // half a gigabyte, and the server starts at once.
                let area = area.cast::<Area>();
                area.write_bytes(0, 1);
                let locks = pg_sys::GetNamedLWLockTranche(NAME.as_ptr());
                let lock = |number| Lock::new(&raw mut (*locks.add(number)).lock);
                let buckets = area.byte_add(layout.buckets_at()).cast::<AtomicU32>();
                buckets.write_bytes(0, layout.buckets as usize);
                let slots = Slots::new(
                    area.byte_add(Layout::buffers_at()).cast(),
                    area.byte_add(layout.slots_at()).cast(),
                    layout.slots,
                    locks.add(1),
                );
                let directory = &raw mut (*area).directory;
                Directory::init(directory, lock(0), slots, buckets, layout.buckets);
                RemoteServers::init(&raw mut (*area).remote_servers, lock(REMOTE_SERVERS_LOCK));
                (&raw mut (*area).registry)
                    .write(Locked::new(lock(REGISTRY_LOCK), RegistryMailbox::NEW));
                (&raw mut (*area).reserve).write(Locked::new(lock(RESERVE_LOCK), Assignment::NEW));
                (*area).snowflake.generator.set_layout(guc::layout());
                (*area).snowflake.generator.close();
                (*area)
                    .snowflake
                    .epoch_ms
                    .store(guc::epoch_ms(), Ordering::Relaxed);
                pg_sys::ConditionVariableInit((*area).snowflake.waiters.get());
            }
            // Also after a crash restart, when the same postmaster makes it anew.
            self.0.store(area.cast(), Ordering::Relaxed);
        }
    }
}
