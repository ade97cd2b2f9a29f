//! The reserve worker's assignments: how the launcher gives a worker that already runs what
//! it would have started another one for.
//!
//! | state | leaves by | to |
//! | --- | --- | --- |
//! | away | a start of the process | waiting |
//! | waiting | the launcher's assignment | assigned |
//! | assigned | the worker's pick-up | serving |
//! | waiting, assigned, serving | the end of the process | away |
//!
//! The launcher, only after it could not register a dynamic worker:
//!
//! 1. It announces an allocator at the queue, or has a question for the registry, as it does
//!    for a dynamic worker.
//! 2. It assigns that. Refused unless the worker waits; then it takes the announcement back.
//! 3. It keeps the number of the assignment as it keeps the handle of a dynamic worker. The
//!    worker wakes it when it ends; an assignment with another number, or with this one and a
//!    worker that is away, has ended. If nobody has attached with the registration, the queue is wanted
//!    again; a question without a reply has failed.
//!
//! The reserve worker, connected to no database until step 4:
//!
//! 1. It registers its exit callback, and only then says that it waits.
//! 2. It picks the assignment up. From here on nobody else can: whatever ends this process,
//!    the next one does not repeat it, and a database that cannot be connected to costs one
//!    life and not one every few milliseconds.
//! 3. It attaches with the registration, or takes the question by its number. Where it is not awaited
//!    any more, it ends.
//! 4. It connects and serves as the dynamic worker would have.
//! 5. It ends with exit code 1, and the postmaster starts it anew at once. Its exit callback
//!    says that it is away, whichever step it came to, and wakes the launcher.
//!
//! A launcher that ends between its steps leaves an assignment that nobody remembers. The
//! worker picks it up, and the next launcher has made the queue wanted under another registration
//! or asks another question: it ends in step 3, or was quick enough and serves.
//!
//! All of it under a lock of its own.

use pgrx::pg_sys;

use super::databases::Launcher;
use super::lock::Locked;
use crate::pg;

/// A worker that has ended is expected back within this time, in microseconds.
const COMES_BACK_US: i64 = 1_000_000;

/// What a worker is started for.
#[derive(Clone, Copy)]
pub enum Task {
    /// To be the allocator that a queue awaits with this registration.
    Allocate {
        /// The queue's number.
        queue: u32,
        /// See above.
        registration: u32,
    },
    /// To ask the worker registry the question with this number.
    AskRegistry(u64),
}

#[derive(Clone, Copy)]
enum ReserveState {
    Away,
    Waiting,
    Assigned(Task),
    Serving,
}

/// What is known of the worker; see this file's header.
pub struct Assignment {
    state: ReserveState,
    /// Counts assignments.
    number: u64,
    /// While it is not away.
    pid: i32,
    latch: *mut pg_sys::Latch,
    /// When it ended, in microseconds since 2000; 0 if it has never run.
    ended_at: i64,
}

impl Assignment {
    /// It has never run.
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

/// The way to the reserve worker, and its own way to its assignment.
pub struct Reserve<'a> {
    assignment: &'a Locked<Assignment>,
    launcher: &'a Launcher,
}

/// For the launcher.
impl<'a> Reserve<'a> {
    /// That of the area.
    pub fn new(assignment: &'a Locked<Assignment>, launcher: &'a Launcher) -> Self {
        Self {
            assignment,
            launcher,
        }
    }

    /// Whether the reserve worker waits for an assignment.
    pub fn is_waiting(&self) -> bool {
        self.assignment
            .with(|reserve| matches!(reserve.state, ReserveState::Waiting))
    }

    /// Whether there is none: it could not be registered when the server started, or the server
    /// cannot start it.
    pub fn is_missing(&self) -> bool {
        let now = pg::now_timestamp();
        self.assignment.with(|reserve| {
            matches!(reserve.state, ReserveState::Away)
                && now.saturating_sub(reserve.ended_at) > COMES_BACK_US
        })
    }

    /// Assigns it a task, if it waits for one. The number of the assignment.
    pub fn assign(&self, task: Task) -> Option<u64> {
        let (number, latch) = self.assignment.with(|reserve| {
            let waiting = matches!(reserve.state, ReserveState::Waiting);
            waiting.then(|| {
                reserve.state = ReserveState::Assigned(task);
                reserve.number += 1;
                (reserve.number, reserve.latch)
            })
        })?;
        // SAFETY: what `enter_reserve` has published.
        unsafe { pg::set_latch(latch) };
        Some(number)
    }

    /// Whether this assignment has not ended.
    pub fn is_assigned(&self, number: u64) -> bool {
        self.assignment.with(|reserve| reserve.has(number))
    }

    /// Ends the reserve worker if it still has this assignment, or whichever it has.
    pub fn end_assignment(&self, number: Option<u64>) {
        self.assignment.with(|reserve| {
            if reserve.has(number.unwrap_or(reserve.number)) {
                // Under the lock: it is no other process's id before the exit callback has
                // had the lock.
                pg::terminate(reserve.pid);
            }
        });
    }

    /// It is wanted: if it serves, it is to look whether it may leave; if it is away, the
    /// postmaster is to look whom to start.
    pub fn rouse(&self) {
        let latch = self.assignment.with(|reserve| match reserve.state {
            ReserveState::Away => None,
            ReserveState::Waiting | ReserveState::Assigned(_) | ReserveState::Serving => {
                Some(reserve.latch)
            }
        });
        match latch {
            // SAFETY: what `enter_reserve` has published.
            Some(latch) => unsafe { pg::set_latch(latch) },
            None => pg::nudge_postmaster(),
        }
    }
}

/// For the reserve worker.
impl Reserve<'_> {
    /// It has started, and waits.
    pub fn enter(&self) {
        self.assignment.with(|reserve| {
            reserve.state = ReserveState::Waiting;
            reserve.pid = pg::pid();
            reserve.latch = pg::my_latch();
        });
        self.launcher.wake();
    }

    /// Picks the assignment up, if there is one.
    pub fn pick_up(&self) -> Option<Task> {
        self.assignment.with(|reserve| match reserve.state {
            ReserveState::Assigned(task) => {
                reserve.state = ReserveState::Serving;
                Some(task)
            }
            ReserveState::Away | ReserveState::Waiting | ReserveState::Serving => None,
        })
    }

    /// It ends.
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
