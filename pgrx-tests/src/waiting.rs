//! A session that waits for ids, and interruptions of the wait.

use std::panic::resume_unwind;
use std::thread;
use std::time::Duration;

use crate::checks::{timed, wait_until};
use crate::server::Server;
use crate::session::{Failure, Session};

/// Time limit for a session to start waiting.
const WAITING_LIMIT: Duration = Duration::from_secs(30);

/// Result of a statement disturbed while it waited.
pub struct Disturbed {
    /// The session, still usable unless it was terminated.
    pub session: Session,
    /// Result of the statement.
    pub result: Result<(), Failure>,
    /// Time from the disturbance to the result.
    pub took: Duration,
}

/// Runs a statement that must wait for ids. Once `pg_stat_activity` shows the wait, disturbs the
/// session, given by its process id. Returns the result.
///
/// # Panics
/// If the session does not wait.
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
