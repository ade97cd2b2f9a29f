//! Workers started by the launcher: allocators and the registrar.
//!
//! | allocator's state | event | next state |
//! | --- | --- | --- |
//! | Started, its queue is Starting | the worker attaches | Started, attached |
//! | | the worker ends: the server could not start it, so its requests fail | Delayed |
//! | Started, attached | the worker ends soon after its start | Delayed |
//! | | the worker ends | removed |
//! | Delayed | the delay passes | removed: the next one may be started |
//!
//! The queue knows whether the worker has attached.
//!
//! | registrar's state | event | next state |
//! | --- | --- | --- |
//! | Idle | a request, and a worker slot is free | Started |
//! | | a request, and no slot is free | Waiting |
//! | Waiting | a worker slot becomes free | Started |
//! | | timeout: the request fails; or the request was abandoned | Idle |
//! | Started | the worker ends; timeout: it is terminated | Idle |

use std::time::{Duration, Instant};

use pgrx::bgworkers::{
    BackgroundWorkerBuilder, BackgroundWorkerStatus, BgWorkerStartTime, DynamicBackgroundWorker,
};
use pgrx::{IntoDatum, PgMemoryContexts, pg_sys};

use super::handle::WorkerHandle;
use super::reserve;
use crate::error::RefillError;
use crate::guc;
use crate::pg;
use crate::shmem::{Area, Explanation, LeaseReply, Task};

/// Min time between the exit of a database's allocator and the start of the next.
const RESTART_DELAY: Duration = Duration::from_millis(250);
/// Retry interval while no worker slot is free, in milliseconds.
pub const CROWDED_RETRY_MS: i64 = 50;
/// Poll interval for the end of a registrar, in milliseconds. The launcher is notified as well.
const REGISTRAR_LOOK_MS: i64 = 1000;
/// Max wait of a registry request for a worker slot.
const CROWDED_LIMIT: Duration = Duration::from_secs(5);
/// Time after which a waiting registrar has the reserve worker's allocator terminated. Longer than
/// an allocator's own tenure there while others wait.
const RESERVE_LIMIT: Duration = Duration::from_millis(2500);
/// Time a registrar may run beyond the timeout of its request.
const REGISTRAR_GRACE: Duration = Duration::from_secs(5);
/// The same in the reserve worker, which databases may be waiting for.
const RESERVE_GRACE: Duration = Duration::from_secs(1);

/// A memory context, deleted when this is dropped. pgrx's own would leave a copy of its name in the
/// launcher each time, which is twenty times a second while no slot is free.
struct HandleMemory(pg_sys::MemoryContext);

impl HandleMemory {
    fn new() -> Self {
        // SAFETY: a child of the context that every process has; its name is static.
        Self(unsafe {
            pg_sys::AllocSetContextCreateExtended(
                pg_sys::TopMemoryContext,
                c"leaf_id worker handle".as_ptr(),
                pg_sys::ALLOCSET_SMALL_MINSIZE as usize,
                pg_sys::ALLOCSET_SMALL_INITSIZE as usize,
                pg_sys::ALLOCSET_SMALL_MAXSIZE as usize,
            )
        })
    }
}

impl Drop for HandleMemory {
    fn drop(&mut self) {
        // SAFETY: made above, and deleted once.
        unsafe { pg_sys::MemoryContextDelete(self.0) }
    }
}

/// A started worker.
enum Worker {
    /// A registered dynamic worker.
    Dynamic {
        handle: DynamicBackgroundWorker,
        /// Memory context of the handle, freed with it.
        _memory: HandleMemory,
    },
    /// The reserve worker, with its assignment number.
    Reserve(u64),
}

impl Worker {
    /// Registers a dynamic worker for a task. `None` if no slot is free.
    fn register(task: Task) -> Option<Self> {
        let (name, function, argument) = match task {
            Task::Allocate {
                queue,
                registration,
            } => (
                "leaf_id allocator",
                "leaf_id_allocator_main",
                WorkerHandle {
                    queue,
                    registration,
                }
                .pack(),
            ),
            Task::AskRegistry(question) => {
                ("leaf_id registrar", "leaf_id_registrar_main", question)
            }
        };
        let builder = BackgroundWorkerBuilder::new(name)
            .set_library("leaf_id")
            .set_function(function)
            .set_argument(argument.cast_signed().into_datum())
            .set_notify_pid(pg::pid())
            .enable_spi_access()
            // Must follow enable_spi_access, which sets another start time.
            .set_start_time(BgWorkerStartTime::ConsistentState);
        let memory = HandleMemory::new();
        // SAFETY: the context is kept as long as the handle allocated in it.
        let handle =
            unsafe { PgMemoryContexts::For(memory.0).switch_to(|_| builder.load_dynamic()) }
                .ok()?;
        Some(Self::Dynamic {
            handle,
            _memory: memory,
        })
    }

    /// Assigns a task in this database to the reserve worker. `None` if that is busy, or if the
    /// database is locked: it would block there, unavailable to others.
    fn assign(area: &Area, task: Task, database: u32) -> Option<Self> {
        let free = area.reserve().is_waiting() && pg::is_free(database);
        free.then(|| area.reserve().assign(task))
            .flatten()
            .map(Self::Reserve)
    }

    fn is_dynamic(&self) -> bool {
        matches!(self, Self::Dynamic { .. })
    }

    fn has_ended(&self, area: &Area) -> bool {
        match self {
            Self::Dynamic { handle, .. } => matches!(
                handle.pid(),
                Err(BackgroundWorkerStatus::Stopped | BackgroundWorkerStatus::PostmasterDied)
            ),
            Self::Reserve(number) => !area.reserve().is_assigned(*number),
        }
    }

    /// Requests termination, without waiting for it.
    fn terminate(self, area: &Area) {
        match self {
            Self::Dynamic { handle, .. } => {
                let _ = handle.terminate();
            }
            Self::Reserve(number) => area.reserve().end_assignment(Some(number)),
        }
    }
}

/// All allocators; see the table in the file header.
#[derive(Default)]
pub struct Allocators {
    /// With their databases. A database's next allocator may be started before the last one has
    /// ended.
    all: Vec<(u32, Allocator)>,
}

enum Allocator {
    Started {
        handle: WorkerHandle,
        since: Instant,
        worker: Worker,
    },
    Delayed {
        until: Instant,
    },
}

impl Allocators {
    /// Removes allocators that have ended, and delays that have passed.
    pub fn look(&mut self, area: &Area) {
        for (database, allocator) in core::mem::take(&mut self.all) {
            if let Some(allocator) = allocator.next(area) {
                self.all.push((database, allocator));
            }
        }
    }

    /// True if the next allocator of this database must wait.
    pub fn is_delayed(&self, database: u32) -> bool {
        self.all.iter().any(|(of, allocator)| {
            *of == database && matches!(allocator, Allocator::Delayed { .. })
        })
    }

    /// Starts an allocator for a queue. `full`: no slot is free for a dynamic worker. False if the
    /// queue must wait.
    pub fn start(&mut self, area: &Area, queue: u32, database: u32, full: &mut bool) -> bool {
        if *full && !area.reserve().is_waiting() {
            return false;
        }
        let Some(registration) = area.queues().announce(queue) else {
            return true;
        };
        let task = Task::Allocate {
            queue,
            registration,
        };
        let mut worker = None;
        if !*full {
            worker = Worker::register(task);
            *full = worker.is_none();
        }
        let Some(worker) = worker.or_else(|| Worker::assign(area, task, database)) else {
            area.queues().retract(queue, registration);
            return false;
        };
        let started = Allocator::Started {
            handle: WorkerHandle {
                queue,
                registration,
            },
            since: Instant::now(),
            worker,
        };
        self.all.push((database, started));
        true
    }
}

impl Allocator {
    /// The next state; `None` if removed.
    fn next(self, area: &Area) -> Option<Self> {
        let (handle, since, worker) = match self {
            Self::Started {
                handle,
                since,
                worker,
            } if worker.has_ended(area) => (handle, since, worker),
            Self::Delayed { until } if until <= Instant::now() => return None,
            state => return Some(state),
        };
        // A dynamic worker that never attached could not be started by the server. The reserve
        // worker was running, and was terminated.
        if area.queues().retract(handle.queue, handle.registration) && worker.is_dynamic() {
            area.queues()
                .fail_and_free(handle.queue, RefillError::NoAllocator);
        }
        (since.elapsed() < RESTART_DELAY).then(|| Self::Delayed {
            until: Instant::now() + RESTART_DELAY,
        })
    }
}

/// State of the registrar; see the table in the file header.
#[derive(Default)]
pub enum Registrar {
    /// No registrar.
    #[default]
    Idle,
    /// Waiting for a worker slot.
    Waiting {
        /// Start of the wait.
        since: Instant,
    },
    /// Started, and not seen to end.
    Started(StartedRegistrar),
}

/// A started registrar.
pub struct StartedRegistrar {
    question: u64,
    since: Instant,
    worker: Worker,
}

impl Registrar {
    /// True if it is waiting for a worker slot.
    pub fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting { .. })
    }

    /// Checks whether the registrar has ended; terminates it after its timeout.
    pub fn look(&mut self, area: &Area) {
        let Self::Started(started) = self else {
            return;
        };
        let ended = started.worker.has_ended(area);
        if !ended && started.since.elapsed() < started.limit() {
            return;
        }
        if let Self::Started(started) = core::mem::take(self) {
            let text = if ended {
                "the registrar has ended without an answer; see the server's log"
            } else {
                // It may be waiting for a standby. It will end soon, and the handle is not needed.
                started.worker.terminate(area);
                "the registrar had to be ended: it took too long"
            };
            fail(area, started.question, text);
        }
    }

    /// Starts a registrar if there is a request. Returns the time to the next check, in
    /// milliseconds.
    pub fn start(&mut self, area: &Area, question: Option<u64>) -> Option<i64> {
        let waiting = match self {
            Self::Waiting { since } => Some(*since),
            Self::Idle | Self::Started(_) => None,
        };
        if waiting.is_some() {
            *self = Self::Idle;
        }
        let question = question?;
        // The previous registrar has to end first.
        if let Self::Started(_) = self {
            return Some(REGISTRAR_LOOK_MS);
        }
        let database = area.registry().asked_in(question)?;
        let task = Task::AskRegistry(question);
        let worker = Worker::register(task).or_else(|| Worker::assign(area, task, database));
        if let Some(worker) = worker {
            *self = Self::Started(StartedRegistrar {
                question,
                since: Instant::now(),
                worker,
            });
            return Some(REGISTRAR_LOOK_MS);
        }
        let since = waiting.unwrap_or_else(Instant::now);
        *self = Self::wait(area, question, database, since);
        Some(CROWDED_RETRY_MS)
    }

    /// Waits for a worker slot, up to a timeout.
    fn wait(area: &Area, question: u64, database: u32, since: Instant) -> Self {
        // Makes idle allocators exit.
        area.reserve().rouse();
        let waited = since.elapsed();
        if waited >= CROWDED_LIMIT {
            fail(area, question, "all background worker slots are in use");
            return Self::Idle;
        }
        if waited >= RESERVE_LIMIT && pg::is_free(database) {
            // It hangs, perhaps waiting for a standby; termination ends that.
            area.reserve().end_assignment(None);
        }
        Self::Waiting { since }
    }
}

impl StartedRegistrar {
    /// Max run time.
    fn limit(&self) -> Duration {
        match self.worker {
            Worker::Dynamic { .. } => {
                let ms = u64::try_from(guc::CLAIM_TIMEOUT.get()).unwrap_or(0);
                Duration::from_millis(ms) + REGISTRAR_GRACE
            }
            Worker::Reserve(_) => reserve::REGISTRY_LIMIT + RESERVE_GRACE,
        }
    }
}

fn fail(area: &Area, question: u64, text: &str) {
    area.registry()
        .reply(question, LeaseReply::Failed(Explanation::new(text)));
}
