//! The registrar: it asks the worker registry one question, and is gone.
//!
//! The launcher starts one when something is to be asked, with the number under which the
//! question lies in shared memory. It connects to the database of `leaf_id.worker_registry`:
//! the registry is there, or on the foreign server that is defined there. It is not there
//! for longer than one question, and at once gone if somebody waits for the database.
//!
//! It decides nothing and writes nothing down: that is the launcher's.

use std::ffi::CString;
use std::time::{Duration, Instant};

use leaf_id_core::lease::{Answer, Clocks, Kind, Status};
use leaf_id_core::registry;
use pgrx::pg_sys;

use super::settings;
use crate::pg::{self, WaitEvent};
use crate::remote::connection::{Connection, Event, Service};
use crate::remote::foreign_server::{self, Destination};
use crate::shmem::{self, Area, Explanation, Reply, Request};
use crate::{lease, tags};

/// How often it looks whether somebody waits for its database.
const PROBE: Duration = Duration::from_millis(100);

static CLAIM: Service = Service {
    function: "leaf_worker_claim",
    types: "20 25 20 20 23 20 20 20 23 23 23 20 25",
    arguments: 13,
};
static RENEW: Service = Service {
    function: "leaf_worker_renew",
    types: "23 20 25 20 20 20 20 23 23 23 20 25",
    arguments: 12,
};
/// How many columns an answer has.
const COLUMNS: usize = 11;

/// The registrar's main function; the argument is the number of the question.
#[pgrx::pg_guard]
#[unsafe(no_mangle)]
pub extern "C-unwind" fn leaf_id_registrar_main(argument: pg_sys::Datum) {
    pg::handle_signals_in_transactions();
    let Some(area) = shmem::area() else { return };
    ask(area, argument.value() as u64, None);
}

/// Asks the question with this number, if it is still asked; of a registry elsewhere for no
/// longer than `limit`.
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
    let reply = match result {
        // An id with it would have another time.
        Ok((answer, _)) if answer.worker_id > area.snowflake.layout().max_worker_id() => {
            Reply::Failed(Explanation::new(NOT_UNDERSTOOD))
        }
        Ok((answer, detail)) => Reply::Answered(answer, Explanation::new(&detail)),
        Err(message) => Reply::Failed(Explanation::new(&message)),
    };
    area.registry().reply(number, reply);
}

fn clocks() -> Clocks {
    Clocks {
        boot_ms: pg::boot_ms(),
        wall_ms: pg::now_ms(),
    }
}

/// What is asked.
fn asked(request: &Request, sent: Clocks) -> registry::Request {
    let question = request.draft.at(sent.boot_ms);
    // The ids lead the clock, or will.
    let above_ms = sent.wall_ms.max(request.last_ms);
    registry::Request {
        question,
        system_identifier: pg::system_identifier().cast_signed(),
        node_name: request.node_name.get().into_bytes(),
        now_ms: sent.wall_ms,
        reserve_until_ms: above_ms.saturating_add(question.lease_ms),
        max_skew_ms: request.max_skew_ms,
        max_lead_ms: request.max_lead_ms,
        epoch_ms: request.epoch_ms,
        layout: request.layout,
    }
}

/// The same in the words of the registry's functions.
fn arguments(request: registry::Request) -> Vec<Option<CString>> {
    let question = request.question;
    let number = |number: i64| CString::new(number.to_string()).ok();
    let (held, held_until_ms) = question.held.unzip();
    let who = [
        number(request.system_identifier),
        CString::new(request.node_name).ok(),
        number(question.token).filter(|_| question.token != 0),
        number(question.next_token),
    ];
    let held = held.and_then(|worker_id| number(worker_id.into()));
    let held_until_ms = held_until_ms.and_then(number);
    let terms = [
        number(request.now_ms),
        number(request.reserve_until_ms),
        number(question.lease_ms),
        number(request.max_skew_ms),
        number(request.max_lead_ms),
        number(request.epoch_ms),
        CString::new(request.layout.to_string()).ok(),
    ];
    match question.kind {
        Kind::Claim => who
            .into_iter()
            .chain([held, held_until_ms])
            .chain(terms)
            .collect(),
        Kind::Renew => [held].into_iter().chain(who).chain(terms).collect(),
    }
}

/// What the answer says, if it can be understood.
fn understand(
    columns: &[Option<String>],
    sent: Clocks,
    received: Clocks,
) -> Option<(Answer, String)> {
    let text = |column: usize| columns.get(column).cloned().flatten();
    let number = |column: usize| text(column)?.parse::<i64>().ok();
    let status = Status::of(&text(0)?)?;
    let granted = status == Status::Granted;
    // What a grant allows is never guessed.
    let needed = |value: Option<i64>| if granted { value } else { value.or(Some(0)) };
    let is_lease = |ms: &i64| !granted || *ms > 0;
    let answer = Answer {
        status,
        worker_id: u16::try_from(needed(number(1))?).ok()?,
        floor_ms: needed(number(2))?,
        reserved_until_ms: needed(number(3))?,
        registry_ms: number(4)?,
        peers: u32::try_from(number(5).unwrap_or(0)).ok()?,
        peers_offset_ms: number(6).unwrap_or(0),
        lease_ms: needed(number(8)).filter(is_lease)?,
        max_skew_ms: number(9)?,
        max_lead_ms: needed(number(10))?,
        sent,
        received,
    };
    Some((answer, text(7).unwrap_or_default()))
}

const NOT_UNDERSTOOD: &str = "its answer is not understood: is leaf_id there of another version?";

/// Asks the registry in this database.
fn ask_here(request: &Request) -> Result<(Answer, String), String> {
    if pg::in_recovery() {
        return Err("the registry is on this standby, and can give nothing".into());
    }
    let mut sent = clocks();
    let result = pg::transaction(|| {
        if !lease::registry::is_here() {
            return Err("extension \"leaf_id\" is not installed in its database".into());
        }
        sent = clocks();
        let reply = lease::registry::ask(&asked(request, sent), true);
        reply.map_err(|failure| failure.report().message().to_string())
    });
    // A wait for a standby that was canceled is no acknowledgement (I1): this ends then.
    pg::check_for_interrupts();
    let reply = result.map_err(|error| error.message)??;
    let answer = reply.heard(sent, clocks());
    let detail = reply.outcome.err().map(|refusal| refusal.detail);
    Ok((answer, detail.unwrap_or_default()))
}

/// Where the foreign server is that has the registry.
fn destination(request: &Request) -> Result<Destination, String> {
    let server = CString::new(request.server.get()).unwrap_or_default();
    let looked_up = pg::transaction(|| {
        // Without leaf_id here it is whoever runs this server.
        let owner = tags::heap::relation().ok().and_then(pg::relation_owner);
        let owner = owner.unwrap_or_else(pg::user);
        foreign_server::destination(&server, owner)
    });
    match looked_up {
        Ok(Ok(destination)) => Ok(destination),
        Ok(Err(error)) => Err(error.message),
        Err(error) => Err(error.message),
    }
}

/// Asks the registry on the foreign server the question with this number.
fn ask_there(request: &Request, number: u64) -> Result<(Answer, String), String> {
    let destination = destination(request)?;
    let mut connection = Connection::new(match request.draft.kind() {
        Kind::Claim => &CLAIM,
        Kind::Renew => &RENEW,
    });
    // With another one each time: what is silent takes its time.
    connection.begin_with(usize::try_from(number).unwrap_or(0));
    connection.open(destination);
    let timeout = Duration::from_millis(u64::try_from(request.timeout_ms).unwrap_or(0));
    let deadline = Instant::now() + timeout;
    let mut probed_at = Instant::now();
    let mut sent = clocks();
    loop {
        let now = Instant::now();
        match connection.turn(now) {
            Some(Event::Opened) => {
                sent = clocks();
                let arguments = arguments(asked(request, sent));
                let left = deadline.saturating_duration_since(now);
                connection
                    .ask(&arguments, left, now)
                    .map_err(|error| error.message)?;
                continue;
            }
            Some(Event::Answered(rows)) => {
                let received = clocks();
                if rows.is_unacknowledged() {
                    return Err("its answer was not acknowledged by its standby".into());
                }
                let columns: Vec<_> = (0..COLUMNS).map(|column| rows.text(0, column)).collect();
                return understand(&columns, sent, received).ok_or_else(|| NOT_UNDERSTOOD.into());
            }
            Some(Event::Refused(error) | Event::Lost(error)) => return Err(error.message),
            None => {}
        }
        if now >= deadline {
            return Err(format!("no answer within {} ms", timeout.as_millis()));
        }
        if probed_at.elapsed() >= PROBE {
            probed_at = now;
            if !pg::database_is_free() {
                return Err(
                    "somebody waits for the database in which its server is defined".into(),
                );
            }
        }
        let until = connection
            .deadline()
            .map_or(deadline, |at| at.min(deadline));
        let wait = until.saturating_duration_since(now).min(PROBE);
        let sockets: Vec<_> = connection.socket().into_iter().collect();
        let ms = i64::try_from(wait.as_millis()).unwrap_or(1) + 1;
        pg::wait_for(ms, &sockets, WaitEvent::Remote);
    }
}
