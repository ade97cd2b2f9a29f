//! Assignments of the reserve worker: an idle worker that takes a task when no dynamic worker can
//! be registered.
//!
//! | state | event | next state |
//! | --- | --- | --- |
//! | away | the process starts | waiting |
//! | waiting | the launcher assigns a task | assigned |
//! | assigned | the worker picks the task up | serving |
//! | waiting, assigned, serving | the process ends | away |
//!
//! The launcher, only after it failed to register a dynamic worker:
//!
//! 1. Announces an allocator at the queue, or stores a request for the registry, as for a dynamic
//!    worker.
//! 2. Assigns the task. If the worker is not waiting, the assignment is refused and the
//!    announcement is retracted.
//! 3. Keeps the assignment number as it would keep a dynamic worker's handle. The worker wakes the
//!    launcher when it ends. The assignment has ended if the number has changed, or if it is the
//!    same but the worker is away. Then, if no process attached with the registration, the queue is
//!    wanted again; a request without a reply has failed.
//!
//! The reserve worker, not connected to a database before step 4:
//!
//! 1. Registers its exit callback, then enters the waiting state.
//! 2. Picks up the assignment. No other process can afterwards: however this process ends, its
//!    successor does not repeat the task. A database that refuses connections costs one process,
//!    not one every few milliseconds.
//! 3. Attaches with the registration, or takes the registry request by its number. Exits if neither
//!    is expected any more.
//! 4. Connects and serves like the dynamic worker.
//! 5. Exits with code 1, and the postmaster restarts it at once. From any step, the exit callback
//!    sets the away state and wakes the launcher.
//!
//! A launcher that exits between its steps leaves an orphaned assignment. The worker picks it up.
//! If the next launcher has reset the queue or stored another request by then, the worker exits in
//! step 3; otherwise it serves.
//!
//! Protected by its own lock.

use pgrx::pg_sys;

use super::databases::Launcher;
use super::lock::Locked;
use crate::pg;

/// Max restart time after an exit, in microseconds; then the worker counts as missing.
const COMES_BACK_US: i64 = 1_000_000;

/// A worker's task.
#[derive(Clone, Copy)]
pub enum Task {
    /// Serve as the allocator of a queue.
    Allocate {
        /// The queue's number.
        queue: u32,
        /// The announced registration.
        registration: u32,
    },
    /// Send the registry request with this number.
    AskRegistry(u64),
}

#[derive(Clone, Copy)]
enum ReserveState {
    Away,
    Waiting,
    Assigned(Task),
    Serving,
}

/// State of the reserve worker; see the file header.
pub struct Assignment {
    state: ReserveState,
    /// Counts assignments.
    number: u64,
    /// Valid unless away.
    pid: i32,
    latch: *mut pg_sys::Latch,
    /// Time of the last exit, in microseconds since 2000; 0 if it has never run.
    ended_at: i64,
}

impl Assignment {
    /// Before the first start.
    pub const NEW: Self = Self {
        state: ReserveState::Away,
        number: 0,
        pid: 0,
        latch: core::ptr::null_mut(),
        ended_at: 0,
    };

    fn has(&self, number: u64) -> bool {
        self.number == number
            && matches!(
                self.state,
                ReserveState::Assigned(_) | ReserveState::Serving
            )
    }
}

/// Access to the reserve worker's assignment, for both sides.
pub struct Reserve<'a> {
    assignment: &'a Locked<Assignment>,
    launcher: &'a Launcher,
}

/// Launcher side.
impl<'a> Reserve<'a> {
    /// Access to the area's reserve worker.
    pub fn new(assignment: &'a Locked<Assignment>, launcher: &'a Launcher) -> Self {
        Self {
            assignment,
            launcher,
        }
    }

    /// True if the reserve worker is waiting for an assignment.
    pub fn is_waiting(&self) -> bool {
        self.assignment
            .with(|reserve| matches!(reserve.state, ReserveState::Waiting))
    }

    /// True if there is no reserve worker: it was not registered at server start, or cannot be
    /// started.
    pub fn is_missing(&self) -> bool {
        let now = pg::now_timestamp();
        self.missing_since()
            .is_some_and(|since| now.saturating_sub(since) > COMES_BACK_US)
    }

    /// Time since which it does not run, in microseconds since 2000, or 0: it has not run yet.
    pub fn missing_since(&self) -> Option<i64> {
        self.assignment
            .with(|reserve| matches!(reserve.state, ReserveState::Away).then_some(reserve.ended_at))
    }

    /// Assigns a task if the worker is waiting. Returns the assignment number.
    pub fn assign(&self, task: Task) -> Option<u64> {
        let (number, latch) = self.assignment.with(|reserve| {
            let waiting = matches!(reserve.state, ReserveState::Waiting);
            waiting.then(|| {
                reserve.state = ReserveState::Assigned(task);
                reserve.number += 1;
                (reserve.number, reserve.latch)
            })
        })?;
        // SAFETY: published by `enter`.
        unsafe { pg::set_latch(latch) };
        Some(number)
    }

    /// True until assignment `number` ends.
    pub fn is_assigned(&self, number: u64) -> bool {
        self.assignment.with(|reserve| reserve.has(number))
    }

    /// Terminates the reserve worker if it has this assignment; `None` means any.
    pub fn end_assignment(&self, number: Option<u64>) {
        self.assignment.with(|reserve| {
            if reserve.has(number.unwrap_or(reserve.number)) {
                // Under the lock: the exit callback needs it, so the pid cannot be recycled before.
                pg::terminate(reserve.pid);
            }
        });
    }

    /// Sets the worker's latch, so that a serving worker checks whether it should exit. Wakes the
    /// postmaster if the worker is away.
    pub fn rouse(&self) {
        let latch = self.assignment.with(|reserve| match reserve.state {
            ReserveState::Away => None,
            ReserveState::Waiting | ReserveState::Assigned(_) | ReserveState::Serving => {
                Some(reserve.latch)
            }
        });
        match latch {
            // SAFETY: published by `enter`.
            Some(latch) => unsafe { pg::set_latch(latch) },
            None => pg::nudge_postmaster(),
        }
    }
}

/// Worker side.
impl Reserve<'_> {
    /// Enters the waiting state.
    pub fn enter(&self) {
        self.assignment.with(|reserve| {
            debug_assert!(matches!(reserve.state, ReserveState::Away));
            reserve.state = ReserveState::Waiting;
            reserve.pid = pg::pid();
            reserve.latch = pg::my_latch();
        });
        self.launcher.wake();
    }

    /// Picks up the assignment, if there is one.
    pub fn pick_up(&self) -> Option<Task> {
        self.assignment.with(|reserve| match reserve.state {
            ReserveState::Assigned(task) => {
                reserve.state = ReserveState::Serving;
                Some(task)
            }
            ReserveState::Away | ReserveState::Waiting | ReserveState::Serving => None,
        })
    }

    /// Enters the away state; from the exit callback.
    pub fn leave(&self) {
        let now = pg::now_timestamp();
        self.assignment.with(|reserve| {
            *reserve = Assignment {
                number: reserve.number,
                ended_at: now,
                ..Assignment::NEW
            };
        });
        self.launcher.wake();
    }
}
