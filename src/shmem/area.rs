//! The shared area: layout and locking rules. Only this file knows its address.
//!
//! # Locks
//!
//! The area owns one named tranche of LWLocks, `leaf_id`. Lock 0 is the directory lock. The last
//! three belong to the worker registry, the reserve worker and the remote servers. The rest are
//! partitioned among the slots. Lock order: the directory before a slot.
//! LWLocks are held for a few instructions. Under one, nothing waits, allocates, logs, raises an
//! error or runs SQL.
//!
//! * Looking up a tag, or reading a slot's key: the directory shared ([`Area::directory`]).
//! * Assigning or freeing a slot: the directory exclusively ([`Area::directory_mut`]), plus the
//!   slot's lock while its buffer is invalidated. `eviction` covers slots with an open request.
//! * Publishing, invalidating, or accessing [`SlotState`]: the slot's lock. Under it an allocator
//!   rechecks that its request is still the open one.
//! * The worker registry's mailbox (request, reply, lease status): its lock.
//! * Assigning a task to the reserve worker, and the worker's own state changes: its lock.
//! * Reading or writing the state of a remote server: the lock of the remote servers.
//! * Taking ids: no lock. Posting a request to an existing queue: the directory shared.
//! * Plain atomics outside those groups are marked as such.
//!
//! # Detecting reassigned slots
//!
//! Every invalidation and every reuse of a slot increments the version of its buffer. A session
//! remembers the version from its lookup and takes ids only from that version.

use leaf_id_core::primitive::{AtomicPtr, AtomicU32, Ordering};
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
use crate::{guc, pg};

const REGISTRY_LOCK: usize = 1 + SLOT_LOCKS;
const RESERVE_LOCK: usize = 1 + REGISTRY_LOCK;
const REMOTE_SERVERS_LOCK: usize = 1 + RESERVE_LOCK;
const LOCKS: usize = 1 + REMOTE_SERVERS_LOCK;

/// Name of the area and of its LWLock tranche.
const NAME: &core::ffi::CStr = c"leaf_id";

/// Header of the area, followed by the double buffers, the slots and the hash buckets.
#[repr(C, align(128))]
pub struct Area {
    /// The snowflake generator.
    pub snowflake: Snowflake,
    /// When this shared memory was created, in microseconds since 2000.
    pub started_at: i64,
    pub(super) directory: Directory,
    launcher: Launcher,
    claims: Claims,
    queues: QueueTable,
    remote_servers: RemoteServers,
    registry: Locked<RegistryMailbox>,
    reserve: Locked<Assignment>,
}

impl Area {
    /// Locks the directory shared.
    pub fn directory(&self) -> ReadGuard<'_> {
        self.directory.read()
    }

    /// Locks the directory exclusively.
    pub fn directory_mut(&self) -> WriteGuard<'_> {
        self.directory.write()
    }

    /// The request queues of the databases.
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

    /// State of the source servers.
    pub fn remote_servers(&self) -> &RemoteServers {
        &self.remote_servers
    }

    /// The gate for claims.
    pub fn claims(&self) -> &Claims {
        &self.claims
    }

    /// The launcher's published latch.
    pub fn launcher(&self) -> &Launcher {
        &self.launcher
    }

    /// Number of slots in the array.
    pub fn capacity(&self) -> usize {
        self.directory.slots().capacity() as usize
    }

    /// Number of slots ever assigned, free ones included.
    pub fn used(&self) -> usize {
        self.directory.slots().used() as usize
    }

    /// The slot's link, as passed to [`Area::slot_ref`].
    pub fn link(&self, slot: &Slot) -> u32 {
        self.directory.slots().link(slot)
    }

    /// The slot with this link, for takes from the version seen at lookup.
    #[inline]
    pub fn slot_ref(&self, link: u32, version: u64) -> Option<SlotRef> {
        self.directory.slots().slot_ref(link, version)
    }

    /// True if the caller should free the slots of dropped tables in its database: the array is
    /// full, and no session has swept it for one second.
    pub fn may_sweep(&self) -> bool {
        self.directory.may_sweep()
    }

    /// Frees the slots of a dropped table.
    pub fn sweep(&self, database: u32, relation: u32) {
        self.directory.free_all(database, Some(relation));
    }

    /// Frees everything of a dropped database, or of one about to be created with a recycled oid.
    /// Runs in a commit callback: allocates nothing and cannot fail.
    pub fn forget_database(&self, database: u32) {
        self.queues().forget(database);
        self.directory.free_all(database, None);
        self.remote_servers.forget(database);
    }
}

struct AreaPointer(AtomicPtr<Area>);

static AREA: AreaPointer = AreaPointer(AtomicPtr::new(core::ptr::null_mut()));

/// The area; `None` if the library is not in `shared_preload_libraries`.
#[inline]
pub fn area() -> Option<&'static Area> {
    // SAFETY: set by the postmaster whenever it creates shared memory, before it forks. The mapping
    // lasts for the life of the process; all mutable state is atomic or in a cell.
    unsafe { AREA.0.load(Ordering::Relaxed).as_ref() }
}

/// Frees all shared state of a dropped database, or of one about to be created with a recycled oid.
/// Does nothing if the library was not preloaded.
pub fn forget_database(database: u32) {
    if let Some(area) = area() {
        area.forget_database(database);
    }
}

/// Installs the shared memory hooks. Only while the library is being preloaded.
pub fn init() {
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
        // SAFETY: called from shmem_request_hook, where both calls are allowed.
        unsafe {
            pg_sys::RequestAddinShmemSpace(Layout::configured().size());
            pg_sys::RequestNamedLWLockTranche(NAME.as_ptr(), locks);
        }
    }

    unsafe fn on_shmem_startup(&'static self, (): ()) {
        let layout = Layout::configured();
        let mut found = false;
        // SAFETY: called from shmem_startup_hook with the sizes requested above. No other process
        // exists while the area and the buckets are initialized. ShmemInitStruct aligns to a cache
        // line or more, and every part starts at a multiple of 128. The tranche has LOCKS locks; 1
        // to SLOT_LOCKS belong to the slots.
        unsafe {
            let area = pg_sys::ShmemInitStruct(NAME.as_ptr(), layout.size(), &raw mut found);
            if !found {
                // Slots are initialized on first use: a million of them take half a gigabyte, which
                // would delay startup.
                let area = area.cast::<Area>();
                area.write_bytes(0, 1);
                (*area).started_at = pg::now_timestamp();
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
            // After a crash the same postmaster creates the area again.
            self.0.store(area.cast(), Ordering::Relaxed);
        }
    }
}
