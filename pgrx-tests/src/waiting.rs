//! A session that waits for ids, and what ends that.

use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

use crate::checks::{timed, wait_until};
use crate::server::Server;
use crate::session::{Failure, Session};

/// How long a session may take until it is seen to wait.
const WAITING_LIMIT: Duration = Duration::from_secs(30);

/// What a statement came to that was disturbed while it waited.
pub struct Disturbed {
    /// The session, which goes on unless it was terminated.
    pub session: Session,
    /// What the statement came to.
    pub result: Result<(), Failure>,
    /// How long that took from the disturbance on.
    pub took: Duration,
}

/// Runs a statement that must wait for ids, does something to its session (given by its
/// process id) once `pg_stat_activity` shows that it waits, and returns what came of it.
///
/// # Panics
/// When the session does not come to wait.
#[track_caller]
pub fn disturb_waiting(
    server: &Server,
    mut waiter: Session,
    statement: &str,
    act: impl FnOnce(i32),
) -> Disturbed {
    let pid = waiter.pid();
    let mut watcher = server.session();
    thread::scope(|scope| {
        let waiting = scope.spawn(move || {
            let result = waiter.try_run(statement);
            (waiter, result)
        });
        wait_until(WAITING_LIMIT, "the session to wait", || {
            watcher.value(&format!(
                "SELECT count(*) = 1 FROM pg_stat_activity
                 WHERE pid = {pid} AND state = 'active' AND wait_event_type = 'Extension'"
            ))
        });
        let ((session, result), took) = timed(|| {
            act(pid);
            waiting.join().unwrap_or_else(|panic| resume_unwind(panic))
        });
        Disturbed {
            session,
            result,
            took,
        }
    })
}
