//! What `src/shmem` uses of PostgreSQL, of pgrx and of the extension's other modules, under shuttle.
//!
//! All threads of a schedule run in one thread of the system, one at a time, and change places only
//! in `step` and where shuttle blocks them. So plain cells are shared between them.

#![allow(unsafe_code, reason = "shared memory, by address")]

use core::cell::{Cell, RefCell};
use std::rc::Rc;

use leaf_id_core::primitive::step;
use shuttle::future::batch_semaphore::{BatchSemaphore, Fairness};

/// A server: what does not survive a schedule. Its area does, as memory to be used again.
#[derive(Default)]
struct Server {
    locks: Vec<pg_sys::LWLockPadded>,
    /// Closed when the sleepers are to wake.
    asleep: Asleep,
    latches: Vec<Box<pg_sys::Latch>>,
    now: i64,
}

struct Asleep(Rc<BatchSemaphore>);

impl Default for Asleep {
    fn default() -> Self {
        Self(Rc::new(BatchSemaphore::new(0, Fairness::Unfair)))
    }
}

#[derive(Clone, Copy)]
#[repr(align(128))]
struct Line(#[expect(dead_code, reason = "memory")] [u8; 128]);

std::thread_local! {
    static SERVER: RefCell<Server> = RefCell::default();
    static MEMORY: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
    static MAX_TAGS: Cell<i32> = const { Cell::new(0) };
}

/// Starts a server with this many slots.
pub fn start(max_tags: i32) {
    SERVER.take();
    MAX_TAGS.set(max_tags);
    crate::shmem::init();
}

/// A latch, to be published.
pub fn new_latch() -> *mut pg_sys::Latch {
    let mut latch = Box::<pg_sys::Latch>::default();
    let published = &raw mut *latch;
    SERVER.with_borrow_mut(|server| server.latches.push(latch));
    published
}

/// Sleeps until this latch is set, and resets it; or until `or` holds.
pub fn wait_latch(latch: *const pg_sys::Latch, or: impl Fn() -> bool) {
    // SAFETY: of `new_latch`, in this schedule.
    let is_set = unsafe { &(*latch).is_set };
    sleep_until(|| is_set.get() || or());
    is_set.set(false);
    step();
}

/// Sleeps until this holds. The thread that makes it hold wakes the sleepers. No other does, so a
/// wake that is lost is a deadlock, which shuttle reports.
pub fn sleep_until(holds: impl Fn() -> bool) {
    step();
    while !holds() {
        let asleep = SERVER.with_borrow(|server| Rc::clone(&server.asleep.0));
        let _ = asleep.acquire_blocking(1);
    }
}

/// Wakes all sleepers.
pub fn wake_sleepers() {
    let asleep = SERVER.with_borrow_mut(|server| core::mem::take(&mut server.asleep));
    asleep.0.close();
}

#[expect(
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    reason = "PostgreSQL's names"
)]
pub mod pg_sys {
    use core::cell::Cell;
    use core::ffi::{c_char, c_int, c_void};

    use shuttle::future::batch_semaphore::{BatchSemaphore, Fairness};

    use super::{Line, MEMORY, SERVER, step, wake_sleepers};

    const ALL_PERMITS: usize = 1 << 16;

    /// Shared holders have one permit of the semaphore, the exclusive one has all.
    pub struct LWLock {
        permits: BatchSemaphore,
        exclusive: Cell<bool>,
    }

    pub struct LWLockPadded {
        pub lock: LWLock,
    }

    #[derive(Clone, Copy, PartialEq, Eq)]
    pub enum LWLockMode {
        LW_SHARED,
        LW_EXCLUSIVE,
    }

    pub static mut CritSectionCount: u32 = 0;

    pub unsafe fn LWLockAcquire(lock: *mut LWLock, mode: LWLockMode) {
        // SAFETY: a lock of this schedule.
        let lock = unsafe { &*lock };
        let exclusive = mode == LWLockMode::LW_EXCLUSIVE;
        let permits = if exclusive { ALL_PERMITS } else { 1 };
        let _ = lock.permits.acquire_blocking(permits);
        lock.exclusive.set(exclusive);
    }

    pub unsafe fn LWLockRelease(lock: *mut LWLock) {
        // SAFETY: a lock of this schedule.
        let lock = unsafe { &*lock };
        lock.permits
            .release(if lock.exclusive.get() { ALL_PERMITS } else { 1 });
    }

    pub unsafe fn RequestNamedLWLockTranche(_name: *const c_char, locks: c_int) {
        let lock = |_| LWLockPadded {
            lock: LWLock {
                permits: BatchSemaphore::new(ALL_PERMITS, Fairness::Unfair),
                exclusive: Cell::new(false),
            },
        };
        SERVER.with_borrow_mut(|server| server.locks = (0..locks).map(lock).collect());
    }

    pub unsafe fn GetNamedLWLockTranche(_name: *const c_char) -> *mut LWLockPadded {
        SERVER.with_borrow_mut(|server| server.locks.as_mut_ptr())
    }

    pub unsafe fn RequestAddinShmemSpace(size: usize) {
        MEMORY.with_borrow_mut(|memory| memory.resize(size.div_ceil(128), Line([0; 128])));
    }

    pub unsafe fn ShmemInitStruct(
        _name: *const c_char,
        _size: usize,
        _found: *mut bool,
    ) -> *mut c_void {
        MEMORY.with_borrow_mut(|memory| memory.as_mut_ptr().cast())
    }

    /// The number of its broadcasts.
    pub struct ConditionVariable(pub(super) Cell<u64>);

    pub unsafe fn ConditionVariableInit(variable: *mut ConditionVariable) {
        // SAFETY: in the area.
        unsafe { variable.write(ConditionVariable(Cell::new(0))) };
    }

    pub unsafe fn ConditionVariableBroadcast(variable: *mut ConditionVariable) {
        step();
        // SAFETY: in the area.
        unsafe { &(*variable).0 }.update(|broadcasts| broadcasts + 1);
        wake_sleepers();
    }

    #[derive(Default)]
    pub struct Latch {
        pub(super) is_set: Cell<bool>,
    }
}

/// As `pgrx`.
pub trait PgSharedMemoryInitialization {
    type Value;

    unsafe fn on_shmem_request(&'static self);

    unsafe fn on_shmem_startup(&'static self, value: Self::Value);
}

/// Runs both hooks at once.
macro_rules! pg_shmem_init {
    ($area:ident = ()) => {{
        use $crate::server::PgSharedMemoryInitialization;
        // SAFETY: no thread of the schedule has begun.
        unsafe {
            $area.on_shmem_request();
            $area.on_shmem_startup(());
        }
    }};
}
pub(crate) use pg_shmem_init;

/// As `src/pg`.
pub mod pg {
    use leaf_id_core::primitive::step;
    use shuttle::rand::{Rng, thread_rng};

    use super::{SERVER, pg_sys, sleep_until, wake_sleepers};

    pub const TIMESTAMP_EPOCH_US: i64 = 0;

    /// Up to two seconds later each time.
    pub fn now_timestamp() -> i64 {
        let passed = thread_rng().gen_range(1..2_000_000);
        SERVER.with_borrow_mut(|server| {
            server.now += passed;
            server.now
        })
    }

    pub fn format_ms(ms: i64) -> String {
        ms.to_string()
    }

    pub fn strong_random() -> u64 {
        thread_rng().r#gen()
    }

    pub fn pid() -> i32 {
        1
    }

    pub fn database() -> u32 {
        1
    }

    pub fn on_exit(_callback: fn()) {}

    pub fn terminate(_pid: i32) {}

    pub fn nudge_postmaster() {}

    pub fn my_latch() -> *mut pg_sys::Latch {
        core::ptr::null_mut()
    }

    pub unsafe fn set_latch(latch: *mut pg_sys::Latch) {
        step();
        // SAFETY: null, or of `new_latch`, in this schedule.
        if let Some(latch) = unsafe { latch.as_ref() } {
            latch.is_set.set(true);
            wake_sleepers();
        }
    }

    #[derive(Clone, Copy, PartialEq, Eq)]
    pub struct Name;

    impl Name {
        pub fn text(&self) -> String {
            String::new()
        }
    }

    pub struct Waiters(*mut pg_sys::ConditionVariable);

    /// With the number of broadcasts before.
    pub struct Waiting(Waiters, u64);

    impl Waiters {
        pub unsafe fn new(variable: *mut pg_sys::ConditionVariable) -> Self {
            Self(variable)
        }

        fn broadcasts(&self) -> u64 {
            // SAFETY: in the area.
            unsafe { &(*self.0).0 }.get()
        }

        pub fn join(self) -> Waiting {
            let before = self.broadcasts();
            Waiting(self, before)
        }
    }

    impl Waiting {
        /// Until a broadcast, or until `or` holds.
        pub fn sleep(&mut self, or: impl Fn() -> bool) {
            let Self(waiters, before) = self;
            sleep_until(|| waiters.broadcasts() != *before || or());
            *before = waiters.broadcasts();
        }
    }
}

/// As `src/guc`.
pub mod guc {
    use leaf_id_core::layout::Layout;

    pub const MAX_NAME: usize = 63;
    pub static MAX_TAGS: MaxTags = MaxTags;

    pub struct MaxTags;

    impl MaxTags {
        pub fn get(&self) -> i32 {
            super::MAX_TAGS.get()
        }
    }

    #[derive(Clone, Copy)]
    pub enum WorkerId {
        Unset,
        Fixed(u16),
        Auto,
    }

    pub fn epoch_ms() -> i64 {
        0
    }

    pub fn layout() -> Layout {
        Layout::DEFAULT
    }
}

/// As `src/error`.
pub mod error {
    #[derive(Clone, Copy, PartialEq, Eq)]
    pub enum RefillError {
        AwaitsStandby,
        NoSuchTag,
    }

    impl RefillError {
        pub fn is_of_tag(self) -> bool {
            self == Self::NoSuchTag
        }

        pub fn server(self) -> Option<u32> {
            None
        }

        pub fn sentence(self, _server: &str, _text: &str) -> Option<String> {
            None
        }
    }
}
