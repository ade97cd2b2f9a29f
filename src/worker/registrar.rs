//! The registrar, a background worker that sends one request to the worker registry and exits.
//!
//! The launcher starts it with the number of a request in shared memory. The registrar connects to
//! the database of `leaf_id.worker_registry`: the registry is in that database, or on a foreign
//! server defined there. It stays no longer than for one request, and exits at once if another
//! session waits for the database.
//!
//! It neither decides nor writes anything; the launcher does.

use std::ffi::CString;
use std::time::{Duration, Instant};

use leaf_id_core::layout::Layout;
use leaf_id_core::lease::{Clocks, Heard};
use leaf_id_core::registry;
use pgrx::pg_sys;

use super::settings;
use crate::lease;
use crate::pg::{self, WaitEvent};
use crate::remote::connection::{Connection, Event};
use crate::remote::foreign_server::{self, Destination};
use crate::remote::message;
use crate::shmem::{self, Area, Explanation, LeaseQuestion, LeaseReply};

/// Interval of checks whether another session waits for the database.
const PROBE: Duration = Duration::from_millis(100);

/// The registrar's main function; the argument is the number of the question.
#[pgrx::pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn leaf_id_registrar_main(argument: pg_sys::Datum) {
    pg::handle_signals_in_transactions();
    let Some(area) = shmem::area() else { return };
    ask(area, argument.value() as u64, None);
}

/// Sends the request with this number, if it is still open; to a remote registry with at most
/// `limit` as the timeout.
pub fn ask(area: &Area, number: u64, limit: Option<Duration>) {
    let Some(mut request) = area.registry().take_request(number) else {
        return;
    };
    if let Some(limit) = limit {
        let limit_ms = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
        request.timeout_ms = request.timeout_ms.min(limit_ms);
    }
    pg::connect(request.database);
    settings::pin();
    pg::report_activity(Some(c"ask the worker registry"));
    let result = if request.server.get().is_empty() {
        ask_here(&request)
    } else {
        ask_there(&request, number)
    };
    let reply = result.unwrap_or_else(|message| LeaseReply::Failed(Explanation::new(&message)));
    area.registry().reply(number, reply);
}

/// The request to send.
fn asked(request: &LeaseQuestion, sent: Clocks) -> registry::LeaseRequest {
    registry::LeaseRequest {
        question: request.question,
        system_identifier: pg::system_identifier().cast_signed(),
        node_name: request.node_name.get().into_bytes(),
        now_ms: sent.wall_ms,
        epoch_ms: request.epoch_ms,
        layout: request.layout,
    }
}

/// The answer, with its explanation for people, which is empty if granted.
fn understand(
    reply: registry::Reply,
    layout: Layout,
    sent: Clocks,
    received: Clocks,
) -> Result<LeaseReply, String> {
    let registry::Reply { answer, detail } = reply;
    // A larger worker id would change the timestamp of an id.
    if (answer.outcome).is_ok_and(|grant| grant.worker_id > layout.max_worker_id()) {
        return Err("its answer is not understood".into());
    }
    let heard = Heard {
        answer,
        sent,
        received,
    };
    Ok(LeaseReply::Answered(heard, Explanation::new(&detail)))
}

/// Sends the request to the registry in this database.
fn ask_here(request: &LeaseQuestion) -> Result<LeaseReply, String> {
    if pg::in_recovery() {
        return Err("the registry is on this standby, and can give nothing".into());
    }
    let mut sent = pg::clocks();
    let result = pg::transaction(|| {
        if !lease::registry::is_here() {
            return Err("extension \"leaf_id\" is not installed in its database".to_string());
        }
        sent = pg::clocks();
        let reply = lease::registry::ask(true, || Ok(asked(request, sent)));
        reply.map_err(|failure| failure.report().message().to_string())
    });
    // A canceled wait for a standby is no acknowledgement (I1): raise the cancellation.
    pg::check_for_interrupts();
    understand(result?, request.layout, sent, pg::clocks())
}

/// Address of the foreign server that has the registry.
fn destination(request: &LeaseQuestion) -> Result<Destination, String> {
    let server = CString::new(request.server.get()).unwrap_or_default();
    pg::transaction(|| foreign_server::destination(&server).map_err(|error| error.message))
}

/// Sends the request with this number to the registry on the foreign server.
fn ask_there(request: &LeaseQuestion, number: u64) -> Result<LeaseReply, String> {
    let destination = destination(request)?;
    let mut connection = Connection::new("leaf_worker_lease");
    // Start with a different host each time, since a silent one uses up the timeout.
    connection.begin_with(usize::try_from(number).unwrap_or(0));
    connection.open(destination);
    let mut patience = Patience::new(request);
    let mut sent = pg::clocks();
    loop {
        let now = Instant::now();
        match connection.turn(now) {
            Some(Event::Opened) => {
                sent = pg::clocks();
                let asked = connection.ask(&asked(request, sent), patience.left(now), now);
                asked.map_err(|error| error.message)?;
            }
            Some(Event::Answered(rows)) => {
                let received = pg::clocks();
                if rows.is_unacknowledged() {
                    return Err("its answer was not acknowledged by its standby".into());
                }
                let reply = message::read(rows.bytes(0, 0).unwrap_or_default());
                let reply = reply.map_err(|failure| failure.report().message().to_string())?;
                return understand(reply, request.layout, sent, received);
            }
            Some(Event::Refused(error) | Event::Lost(error)) => return Err(error.message),
            None => patience.wait(&connection, now)?,
        }
    }
}

/// Time limits for an answer.
struct Patience {
    timeout: Duration,
    deadline: Instant,
    probed_at: Instant,
}

impl Patience {
    fn new(request: &LeaseQuestion) -> Self {
        let timeout = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
        let now = Instant::now();
        Self {
            timeout,
            deadline: now + timeout,
            probed_at: now,
        }
    }

    fn left(&self, now: Instant) -> Duration {
        self.deadline.saturating_duration_since(now)
    }

    /// Waits for the connection.
    ///
    /// # Errors
    /// The timeout has passed, or another session waits for the database.
    fn wait(&mut self, connection: &Connection, now: Instant) -> Result<(), String> {
        if now >= self.deadline {
            let ms = self.timeout.as_millis();
            return Err(format!("no answer within {ms} ms"));
        }
        if self.probed_at.elapsed() >= PROBE {
            self.probed_at = now;
            if !pg::database_is_free() {
                return Err(
                    "another session waits for the database in which its server is defined".into(),
                );
            }
        }
        let until = connection
            .deadline()
            .map_or(self.deadline, |at| at.min(self.deadline));
        let wait = until.saturating_duration_since(now).min(PROBE);
        let sockets: Vec<_> = connection.socket().into_iter().collect();
        let ms = i64::try_from(wait.as_millis()).unwrap_or(1) + 1;
        pg::wait_for(ms, &sockets, WaitEvent::Remote);
        Ok(())
    }
}
