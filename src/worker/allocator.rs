//! The allocator: claims segments for the tags of one database.
//!
//! It accepts requests and serves those that are due, one by one; what is done for a request is in
//! [`super::request`]. It never blocks on a source server: local tags, and those of other servers,
//! are served in the meantime. It exits if it is idle, if another session waits for exclusive
//! access to the database (DROP DATABASE), or if others need its worker slot. The [reserve
//! worker](super::reserve) can act as an allocator; it exits sooner in the last case.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pgrx::pg_sys;

use super::handle::WorkerHandle;
use super::request::{self, Next, Request, Services};
use super::settings;
use crate::error::RefillError;
use crate::guc;
use crate::pg::{self, WaitEvent};
use crate::remote::central::Returned;
use crate::shmem::{self, Area};

/// Interval between checks for a session that waits for the database.
const PROBE: Duration = Duration::from_millis(100);
/// Interval between lookups of the database's owner.
const OWNER_INTERVAL: Duration = Duration::from_secs(2);
/// Min tenure of an allocator while databases wait for a worker slot.
const CROWDED_TENURE: Duration = Duration::from_secs(1);
/// The same for the reserve worker, which may be the only one left.
const RESERVE_TENURE: Duration = Duration::from_millis(300);
/// Max extra tenure of the reserve worker while source servers have yet to answer.
const RESERVE_PATIENCE: Duration = Duration::from_millis(1700);
/// Requests that are accepted at a time, at least.
const ROOM: usize = 64;
/// This process's [`WorkerHandle`], packed, for the exit callback; 0 if it has none.
static MY_HANDLE: AtomicU64 = AtomicU64::new(0);
static CONNECTED: AtomicBool = AtomicBool::new(false);

/// Exit callback. Releases the queue however this process ends: canceled, terminated, or because
/// its database is gone.
fn allocator_exit() {
    let Some(area) = shmem::area() else { return };
    request::end_claim(area);
    let Some(handle) = WorkerHandle::unpack(MY_HANDLE.swap(0, Ordering::Relaxed)) else {
        return;
    };
    if CONNECTED.load(Ordering::Relaxed) {
        area.remote_servers().close(pg::database());
        area.queues().close_accepted(pg::database());
    } else {
        area.queues()
            .fail_posted(handle.queue, RefillError::NoAllocator);
    }
    area.queues()
        .detach(handle.queue, handle.registration, false);
}

struct Allocator {
    area: &'static Area,
    handle: WorkerHandle,
    /// Running in the reserve worker.
    in_reserve: bool,
    /// All accepted requests, including those sent to source servers.
    requests: VecDeque<Request>,
    /// Number of requests accepted so far.
    accepted: u64,
    services: Services,
    arrived: Instant,
    worked_at: Instant,
    probed_at: Instant,
    owned_at: Instant,
}

/// Main function of an allocator; the argument is its [`WorkerHandle`].
#[pgrx::pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn leaf_id_allocator_main(argument: pg_sys::Datum) {
    pg::handle_signals_in_transactions();
    let Some(area) = shmem::area() else { return };
    if let Some(handle) = WorkerHandle::unpack(argument.value() as u64) {
        allocate(area, handle, false);
    }
}

/// Attaches to the queue and serves it until there is a reason to exit.
pub fn allocate(area: &'static Area, handle: WorkerHandle, in_reserve: bool) {
    pg::on_exit(allocator_exit);
    MY_HANDLE.store(handle.pack(), Ordering::Relaxed);
    let Some(database) = area
        .queues()
        .attach(handle.queue, handle.registration, pg::my_latch())
    else {
        // Not attached, so there is nothing to release.
        MY_HANDLE.store(0, Ordering::Relaxed);
        return;
    };
    pg::connect(database);
    settings::pin();
    pg::belong_to_owner();
    CONNECTED.store(true, Ordering::Relaxed);
    let now = Instant::now();
    let mut allocator = Allocator {
        area,
        handle,
        in_reserve,
        requests: VecDeque::new(),
        accepted: 0,
        services: Services::new(area),
        arrived: now,
        worked_at: now,
        probed_at: now,
        owned_at: now,
    };
    allocator.run();
}

/// Main loop and reasons to exit.
impl Allocator {
    fn run(&mut self) {
        loop {
            // A claim that never waits never checks for interrupts, and under load nothing else
            // does.
            pg::check_for_interrupts();
            pg::reload_if_asked();
            self.accept_requests();
            if self.must_leave() {
                break;
            }
            let served = self.serve_one();
            let returned = self.services.central.turn(self.area, Instant::now());
            if served || !returned.is_empty() {
                self.worked_at = Instant::now();
            } else {
                if self.may_leave() && self.detach(true) {
                    self.services.central.leave(self.area);
                    return;
                }
                self.wait();
            }
            for returned in returned {
                self.take_back(returned);
            }
        }
        self.detach(false);
        self.services.central.leave(self.area);
        // Waiting sessions will re-request from the next allocator.
        for request in core::mem::take(&mut self.requests) {
            request.give_up(self.area);
        }
    }

    fn detach(&self, only_idle: bool) -> bool {
        let WorkerHandle {
            queue,
            registration,
        } = self.handle;
        let detached = self.area.queues().detach(queue, registration, only_idle);
        if detached {
            MY_HANDLE.store(0, Ordering::Relaxed);
        }
        detached
    }

    fn accept_requests(&mut self) {
        self.requests.reserve(ROOM);
        let room = self.requests.capacity() - self.requests.len();
        let (area, before) = (self.area, self.requests.len());
        let (requests, accepted) = (&mut self.requests, &mut self.accepted);
        area.queues().take_posted(self.handle.queue, room, |slot| {
            if let Some(request) = Request::accept(area, slot, *accepted) {
                *accepted += 1;
                debug_assert!(
                    requests.len() < requests.capacity(),
                    "this may not allocate"
                );
                requests.push_back(request);
            }
        });
        if self.requests.len() == before {
            return;
        }
        self.worked_at = Instant::now();
        // Defensive: the slot was given to another database after it was posted.
        let here = |request: &Request| request.key.database == pg::database();
        self.requests.retain_mut(|request| {
            here(request) || {
                request.give_up(area);
                false
            }
        });
    }

    /// True if a session waits for the database, or databases have waited too long for a worker
    /// slot.
    fn must_leave(&mut self) -> bool {
        if self.probed_at.elapsed() >= PROBE {
            self.probed_at = Instant::now();
            if !pg::database_is_free() {
                return true;
            }
        }
        if self.owned_at.elapsed() >= OWNER_INTERVAL {
            self.owned_at = Instant::now();
            pg::belong_to_owner();
        }
        self.crowded() && self.arrived.elapsed() >= self.tenure()
    }

    /// Tenure while others wait for this worker slot.
    fn tenure(&self) -> Duration {
        let patience = self.services.central.patience();
        if self.in_reserve {
            RESERVE_TENURE + patience.min(RESERVE_PATIENCE)
        } else {
            CROWDED_TENURE + patience
        }
    }

    fn crowded(&self) -> bool {
        self.area.queues().is_crowded()
    }

    fn may_leave(&self) -> bool {
        let idle = u64::try_from(guc::ALLOCATOR_IDLE_TIMEOUT.get()).unwrap_or(0);
        self.requests.is_empty()
            && (self.crowded() || self.worked_at.elapsed() >= Duration::from_millis(idle))
    }

    fn wait(&self) {
        let activity = self.services.central.activity();
        let event = match activity {
            Some(_) => WaitEvent::Remote,
            None => WaitEvent::Allocator,
        };
        pg::report_activity(activity.as_deref());
        pg::wait_for(self.wait_ms(), &self.services.central.sockets(), event);
    }

    fn wait_ms(&self) -> i64 {
        let now = Instant::now();
        let due = self.requests.iter().filter_map(|request| request.due(now));
        let due = due.chain(self.services.central.next_deadline()).min();
        let wait = due.map_or(PROBE, |due| due.saturating_duration_since(now));
        i64::try_from(wait.min(PROBE).as_millis()).unwrap_or(1) + 1
    }

    /// Serves the first request that is due, round robin. False if none is due.
    fn serve_one(&mut self) -> bool {
        let now = Instant::now();
        let is_due = |request: &Request| request.due(now).is_some_and(|due| due <= now);
        let position = self.requests.iter().position(is_due);
        let Some(mut request) = position.and_then(|at| self.requests.remove(at)) else {
            return false;
        };
        let next = request.serve(&mut self.services);
        self.keep(request, next);
        true
    }

    fn keep(&mut self, request: Request, next: Next) {
        if next != Next::Cleared {
            self.requests.push_back(request);
        }
    }

    /// Handles a request returned by the connection to its source server.
    fn take_back(&mut self, (asked, outcome): Returned) {
        let is_it = |request: &Request| request.number == asked.number;
        let position = self.requests.iter().position(is_it);
        let Some(mut request) = position.and_then(|at| self.requests.remove(at)) else {
            return;
        };
        let next = request.take_back(&mut self.services, &asked, outcome);
        self.keep(request, next);
    }
}
