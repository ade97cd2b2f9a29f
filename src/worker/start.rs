//! The workers that the launcher has started: allocators and the registrar.
//!
//! | state of an allocator | leaves by | to |
//! | --- | --- | --- |
//! | Started, and its queue awaits it | the worker attaches | Started, and attached |
//! | | the end of the worker: the server could not start it, and the requests fail | Delayed |
//! | Started, and attached | the end of the worker, soon after its start | Delayed |
//! | | the end of the worker | forgotten |
//! | Delayed | its time | forgotten: the next one may be started |
//!
//! Whether it has attached, its queue knows.
//!
//! | state of the registrar | leaves by | to |
//! | --- | --- | --- |
//! | Idle | a question, and a worker slot | Started |
//! | | a question, and none | Waiting |
//! | Waiting | a worker slot | Started |
//! | | its time: the question fails; or there is no question any more | Idle |
//! | Started | the end of the worker; its time: it is ended | Idle |

use std::time::{Duration, Instant};

use pgrx::bgworkers::{
    BackgroundWorkerBuilder, BackgroundWorkerStatus, BgWorkerStartTime, DynamicBackgroundWorker,
};
use pgrx::{IntoDatum, PgMemoryContexts};

use super::handle::WorkerHandle;
use super::reserve;
use crate::error::RefillError;
use crate::guc;
use crate::pg;
use crate::shmem::{Area, Explanation, LeaseReply, Task};

/// How long the launcher waits before it starts another allocator for a database where
/// one has just ended.
const RESTART_DELAY: Duration = Duration::from_millis(250);
/// How often the launcher tries again for a worker slot.
pub const CROWDED_RETRY_MS: i64 = 50;
/// How often the launcher looks whether a registrar still runs: it is told, too.
const REGISTRAR_LOOK_MS: i64 = 1000;
/// How long a question to the worker registry waits for a worker slot.
const CROWDED_LIMIT: Duration = Duration::from_secs(5);
/// How long it leaves the reserve worker to an allocator: longer than that stays by itself while
/// others wait.
const RESERVE_LIMIT: Duration = Duration::from_millis(2500);
/// How long a registrar may run beyond what it is given for its question; and where databases
/// may wait for it to end.
const REGISTRAR_GRACE: Duration = Duration::from_secs(5);
const RESERVE_GRACE: Duration = Duration::from_secs(1);

/// A worker that was started.
enum Worker {
    /// One that was registered.
    Dynamic {
        handle: DynamicBackgroundWorker,
        /// Where the handle lies, freed with it.
        _memory: PgMemoryContexts,
    },
    /// The reserve worker, with the assignment of this number.
    Reserve(u64),
}

impl Worker {
    /// Registers one for a task. `None`: there is no slot for it.
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
            // After the line before, which sets another one.
            .set_start_time(BgWorkerStartTime::ConsistentState);
        let mut memory = PgMemoryContexts::new("leaf_id worker handle");
        // SAFETY: what is allocated there lives as long as the handle does.
        let handle = unsafe { memory.switch_to(|_| builder.load_dynamic()) }.ok()?;
        Some(Self::Dynamic {
            handle,
            _memory: memory,
        })
    }

    /// Has the reserve worker do it, in this database. `None`: it is busy; or somebody has
    /// locked the database, and it would wait there and nobody else could have it.
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

    /// Has it end soon. Nobody waits for that.
    fn terminate(self, area: &Area) {
        match self {
            Self::Dynamic { handle, .. } => {
                let _ = handle.terminate();
            }
            Self::Reserve(number) => area.reserve().end_assignment(Some(number)),
        }
    }
}

/// The allocators; see the table in this file's header.
#[derive(Default)]
pub struct Allocators {
    /// With their databases. A database's next one may be started while the last one ends.
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
    /// Looks who has ended, and who may be started again.
    pub fn look(&mut self, area: &Area) {
        for (database, allocator) in core::mem::take(&mut self.all) {
            if let Some(allocator) = allocator.next(area) {
                self.all.push((database, allocator));
            }
        }
    }

    /// Whether the next one of this database is to wait.
    pub fn is_delayed(&self, database: u32) -> bool {
        self.all.iter().any(|(of, allocator)| {
            *of == database && matches!(allocator, Allocator::Delayed { .. })
        })
    }

    /// Starts one for a queue. `full`: there is no slot for a dynamic worker. False if the
    /// queue has to wait.
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
    /// The state now; `None`: forgotten.
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
        // A dynamic one that never attached: the server could not start it. The reserve
        // worker did run, and was ended.
        if area.queues().retract(handle.queue, handle.registration) && worker.is_dynamic() {
            area.queues()
                .abandon(handle.queue, RefillError::NoAllocator);
        }
        (since.elapsed() < RESTART_DELAY).then(|| Self::Delayed {
            until: Instant::now() + RESTART_DELAY,
        })
    }
}

/// The registrar; see the table in this file's header.
#[derive(Default)]
pub enum Registrar {
    /// There is none.
    #[default]
    Idle,
    /// There is no worker slot for it.
    Waiting {
        /// Since then.
        since: Instant,
    },
    /// It was started and not seen to end.
    Started(StartedRegistrar),
}

/// A registrar that was started.
pub struct StartedRegistrar {
    question: u64,
    since: Instant,
    worker: Worker,
}

impl Registrar {
    /// Whether it needs a worker slot.
    pub fn is_waiting(&self) -> bool {
        matches!(self, Self::Waiting { .. })
    }

    /// Looks whether it has ended, and ends one that hangs.
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
                // In a wait for a standby, perhaps. It is over soon, and the handle not needed.
                started.worker.terminate(area);
                "the registrar had to be ended: it took too long"
            };
            fail(area, started.question, text);
        }
    }

    /// Starts one if a question is to be asked. Returns when to look again, in milliseconds.
    pub fn start(&mut self, area: &Area, question: Option<u64>) -> Option<i64> {
        let waiting = match self {
            Self::Waiting { since } => Some(*since),
            Self::Idle | Self::Started(_) => None,
        };
        if waiting.is_some() {
            *self = Self::Idle;
        }
        let question = question?;
        // An earlier one has to end first.
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

    /// There is no worker slot for it.
    fn wait(area: &Area, question: u64, database: u32, since: Instant) -> Self {
        // Allocators without work make room.
        area.reserve().rouse();
        let waited = since.elapsed();
        if waited >= CROWDED_LIMIT {
            fail(area, question, "all background worker slots are in use");
            return Self::Idle;
        }
        if waited >= RESERVE_LIMIT && pg::is_free(database) {
            // It hangs, in a wait for a standby perhaps, which this ends.
            area.reserve().end_assignment(None);
        }
        Self::Waiting { since }
    }
}

impl StartedRegistrar {
    /// How long it may run.
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
