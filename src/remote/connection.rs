//! A connection to leaf_id on another server: tries the hosts of a foreign server, checks the
//! extension there, then sends one request at a time. Nothing here blocks. The owner of a
//! connection calls [`Connection::turn`] whenever the socket is ready or the deadline has passed,
//! and waits with [`crate::pg::wait_for`] in between.
//!
//! ```text
//! let mut connection = Connection::new("leaf_claim");
//! connection.open(destination);                   // from foreign_server::destination
//! loop {
//!     match connection.turn(Instant::now()) {
//!         Some(Event::Opened) => connection.ask(&request, timeout, now),
//!         Some(Event::Answered(rows)) => ...
//!         Some(Event::Refused(error)) => ...      // an SQL error there; still open
//!         Some(Event::Lost(error)) => ...         // closed; reopen it, with a back-off
//!         None => pg::wait_for(ms until connection.deadline(), connection.socket(), ..),
//!     }
//! }
//! ```
//!
//! | stage | in progress | on success | on failure |
//! | --- | --- | --- | --- |
//! | Closed | nothing | `open`: Connecting | |
//! | Connecting | a host, until its deadline | Greeting | the next host; after the last one Closed, `Lost` |
//! | Greeting | same host, same deadline | Open, `Opened` | as Connecting |
//! | Open | nothing | `ask`: Asking | closed by the server, or anything to read: Closed, without an event |
//! | Asking | a request, until the caller's deadline | Open, `Answered` | SQL error: Open, `Refused`; otherwise Closed, `Lost` |
//!
//! A request that timed out may have been executed, or may still be. It is abandoned, never
//! canceled, so the caller must tolerate both.

use std::ffi::CString;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::foreign_server::{Destination, Host};
use super::libpq::{RemoteError, Rows, Wire};
use super::message;
use crate::pg::Readiness;
use crate::pg::sqlstate;

/// Event of a connection.
pub enum Event {
    /// The connection is open; a request may be sent.
    Opened,
    /// The answer to the request.
    Answered(Rows),
    /// The request was refused; the connection remains open.
    Refused(RemoteError),
    /// The connection is closed: no host is reachable and acceptable, or the request was not
    /// answered.
    Lost(RemoteError),
}

/// Stage of a connection; see the table in this file's header.
enum ConnectionState {
    Closed,
    Connecting {
        wire: Wire,
        deadline: Instant,
    },
    Greeting {
        wire: Wire,
        deadline: Instant,
    },
    Open {
        wire: Wire,
        call: CString,
    },
    Asking {
        wire: Wire,
        call: CString,
        deadline: Instant,
        timeout: Duration,
    },
}

/// A connection to leaf_id on another server.
pub struct Connection {
    /// Function of leaf_id to call there, which takes and returns a message.
    function: &'static str,
    hosts: Vec<Host>,
    needs_password: bool,
    /// Index of the current host, or of the last one.
    host: usize,
    /// Number of hosts not tried since the connection was lost.
    untried: usize,
    /// Errors of the hosts tried.
    failures: Vec<String>,
    state: ConnectionState,
}

impl Connection {
    /// A closed connection, for calls of `function`.
    pub fn new(function: &'static str) -> Self {
        Self {
            function,
            hosts: Vec::new(),
            needs_password: true,
            host: 0,
            untried: 0,
            failures: Vec::new(),
            state: ConnectionState::Closed,
        }
    }

    /// True if a request may be sent.
    pub fn is_open(&self) -> bool {
        matches!(self.state, ConnectionState::Open { .. })
    }

    /// Sets the first host to try, modulo their number. For short-lived connections, which do not
    /// remember the last host and would always start with the same, possibly silent one.
    pub fn begin_with(&mut self, host: usize) {
        self.host = host;
    }

    /// Starts to connect, to the last host first. Call [`Self::turn`] next. Closes an open
    /// connection.
    pub fn open(&mut self, destination: Destination) {
        self.state = ConnectionState::Closed;
        self.failures.clear();
        self.untried = destination.hosts.len();
        self.needs_password = destination.needs_password;
        self.host %= self.untried.max(1);
        self.hosts = destination.hosts;
    }

    /// True if it was opened with this destination.
    pub fn leads_to(&self, destination: &Destination) -> bool {
        self.needs_password == destination.needs_password && self.hosts == destination.hosts
    }

    /// Max time to connect, over all hosts.
    pub fn patience(&self) -> Duration {
        self.hosts.iter().map(|host| host.timeout).sum()
    }

    /// Closes the connection, and abandons a request.
    pub fn close(&mut self) {
        self.state = ConnectionState::Closed;
        self.untried = 0;
    }

    /// Socket to wait for.
    pub fn socket(&self) -> Option<(RawFd, Readiness)> {
        match &self.state {
            ConnectionState::Closed => None,
            ConnectionState::Connecting { wire, .. } => wire.connecting_socket(),
            ConnectionState::Greeting { wire, .. }
            | ConnectionState::Open { wire, .. }
            | ConnectionState::Asking { wire, .. } => wire.socket(),
        }
    }

    /// Time of the next call of [`Self::turn`] at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.state {
            ConnectionState::Closed => (self.untried > 0).then(Instant::now),
            ConnectionState::Open { .. } => None,
            ConnectionState::Connecting { deadline, .. }
            | ConnectionState::Greeting { deadline, .. }
            | ConnectionState::Asking { deadline, .. } => Some(*deadline),
        }
    }

    /// Sends a request. If the connection is not open, or turns out to be lost, the request is not
    /// executed, and the connection is closed.
    ///
    /// # Errors
    /// The request was not sent completely.
    pub fn ask<T: Serialize>(
        &mut self,
        request: &T,
        timeout: Duration,
        now: Instant,
    ) -> Result<(), RemoteError> {
        match core::mem::replace(&mut self.state, ConnectionState::Closed) {
            ConnectionState::Open { mut wire, call } => {
                wire.send(&call, &c_string(message::write(request)))?;
                self.state = ConnectionState::Asking {
                    wire,
                    call,
                    deadline: now + timeout,
                    timeout,
                };
                Ok(())
            }
            _ => Err(RemoteError::broken("there is no connection")),
        }
    }

    /// Makes progress without blocking.
    pub fn turn(&mut self, now: Instant) -> Option<Event> {
        loop {
            match core::mem::replace(&mut self.state, ConnectionState::Closed) {
                ConnectionState::Closed => {
                    if self.untried == 0 {
                        return None;
                    }
                    if let Err(error) = self.try_host(now) {
                        return self.pass_over(&error);
                    }
                }
                ConnectionState::Connecting { wire, deadline } => {
                    match self.connect(wire, deadline, now) {
                        Ok(state @ ConnectionState::Connecting { .. }) => {
                            self.state = state;
                            return None;
                        }
                        Ok(state) => self.state = state,
                        Err(error) => return self.pass_over(&error),
                    }
                }
                ConnectionState::Greeting { wire, deadline } => {
                    match self.hear(wire, deadline, now) {
                        Ok(state @ ConnectionState::Greeting { .. }) => {
                            self.state = state;
                            return None;
                        }
                        Ok(state) => {
                            self.state = state;
                            self.untried = 0;
                            self.failures.clear();
                            return Some(Event::Opened);
                        }
                        Err(error) => return self.pass_over(&error),
                    }
                }
                ConnectionState::Open { wire, call } => {
                    if wire.is_alive() {
                        self.state = ConnectionState::Open { wire, call };
                    }
                    return None;
                }
                ConnectionState::Asking {
                    wire,
                    call,
                    deadline,
                    timeout,
                } => return self.await_answer(wire, call, deadline, timeout, now),
            }
        }
    }

    fn try_host(&mut self, now: Instant) -> Result<(), RemoteError> {
        let host = self.hosts.get(self.host);
        let host = host.ok_or_else(|| RemoteError::broken("there is no such host"))?;
        let wire = Wire::start(&host.options)?;
        self.state = ConnectionState::Connecting {
            wire,
            deadline: now + host.timeout,
        };
        Ok(())
    }

    /// Moves on to the next host, in another turn, since libpq may block on the lookup of its name.
    /// `Some` if there is none.
    fn pass_over(&mut self, error: &RemoteError) -> Option<Event> {
        if !self.failures.contains(&error.message) {
            self.failures.push(error.message.clone());
        }
        self.untried = self.untried.saturating_sub(1);
        self.host = self.next_host();
        (self.untried == 0).then(|| {
            let message = core::mem::take(&mut self.failures).join("; ");
            Event::Lost(RemoteError::broken(message))
        })
    }

    fn next_host(&self) -> usize {
        (self.host + 1) % self.hosts.len().max(1)
    }

    fn connect(
        &self,
        mut wire: Wire,
        deadline: Instant,
        now: Instant,
    ) -> Result<ConnectionState, RemoteError> {
        if !wire.connect()? {
            self.in_time(deadline, now)?;
            return Ok(ConnectionState::Connecting { wire, deadline });
        }
        if self.needs_password && !wire.used_password() {
            let host = self.host_name();
            return Err(RemoteError::broken(format!(
                "{host} did not ask for the password of the user mapping"
            )));
        }
        wire.send(GREETING, &c_string(self.function))?;
        Ok(ConnectionState::Greeting { wire, deadline })
    }

    fn hear(
        &self,
        mut wire: Wire,
        deadline: Instant,
        now: Instant,
    ) -> Result<ConnectionState, RemoteError> {
        match wire.receive()? {
            None => {
                self.in_time(deadline, now)?;
                Ok(ConnectionState::Greeting { wire, deadline })
            }
            Some(rows) => {
                let call = self.judge(&rows).map_err(RemoteError::broken)?;
                Ok(ConnectionState::Open { wire, call })
            }
        }
    }

    /// Checks the deadline of the current host.
    fn in_time(&self, deadline: Instant, now: Instant) -> Result<(), RemoteError> {
        if now < deadline {
            return Ok(());
        }
        let timeout = self.hosts.get(self.host).map(|host| host.timeout);
        Err(self.silent(timeout.unwrap_or_default()))
    }

    fn silent(&self, timeout: Duration) -> RemoteError {
        let (host, ms) = (self.host_name(), timeout.as_millis());
        RemoteError::broken(format!("no answer from {host} within {ms} ms"))
    }

    /// Name of the current host, for messages.
    fn host_name(&self) -> String {
        let host = self.hosts.get(self.host);
        host.map_or_else(String::new, |host| host.name.clone())
    }

    /// Checks the greeting's result. Returns the statement that calls the function, or an error.
    fn judge(&self, rows: &Rows) -> Result<CString, String> {
        let (function, host) = (self.function, self.host_name());
        let database = rows.text(0, 0).unwrap_or_default();
        let Some(version) = rows.text(0, 1) else {
            return Err(format!(
                "extension \"leaf_id\" is not installed in database \"{database}\" on {host}"
            ));
        };
        let parser: Option<u32> = rows.text(0, 2).and_then(|oid| oid.parse().ok());
        let Some(parser) = parser else {
            return Err(format!(
                "leaf_id {version} in database \"{database}\" on {host} has no function {function} as it is called here"
            ));
        };
        let [schema, role] = [3, 7].map(|column| rows.text(0, column).unwrap_or_default());
        if rows.boolean(0, 4) != Some(true) {
            return Err(format!(
                "permission denied for schema {schema} on {host}, which takes GRANT USAGE ON SCHEMA {schema} TO {role}"
            ));
        }
        if rows.boolean(0, 5) != Some(true) {
            return Err(format!(
                "permission denied for function {function} on {host}, which takes GRANT EXECUTE ON FUNCTION {schema}.{function} TO {role}"
            ));
        }
        if rows.boolean(0, 6) != Some(false) {
            return Err(format!("{host} is a standby"));
        }
        // By oid: a name could lead to another object by now. No parallel worker, even if
        // "debug_parallel_query" is on, runs a query with a function that is PARALLEL UNSAFE.
        let call = format!(
            "SELECT token, pg_catalog.pg_current_xact_id() \
             FROM pg_catalog.ts_parse({parser}::pg_catalog.oid, $1::pg_catalog.text)"
        );
        Ok(c_string(call))
    }

    fn await_answer(
        &mut self,
        mut wire: Wire,
        call: CString,
        deadline: Instant,
        timeout: Duration,
        now: Instant,
    ) -> Option<Event> {
        match wire.receive() {
            Ok(Some(rows)) => {
                self.state = ConnectionState::Open { wire, call };
                Some(Event::Answered(rows))
            }
            Ok(None) if now < deadline => {
                self.state = ConnectionState::Asking {
                    wire,
                    call,
                    deadline,
                    timeout,
                };
                None
            }
            Ok(None) => {
                let silent = self.silent(timeout);
                // The host may be down for good.
                self.host = self.next_host();
                Some(Event::Lost(silent))
            }
            // PostgreSQL's error for a parser that is gone is an internal one. The greeting looks for
            // that of a newly created extension.
            Err(error) if error.broken || error.sqlstate == Some(sqlstate::INTERNAL_ERROR) => {
                Some(Event::Lost(error))
            }
            Err(error) => {
                self.state = ConnectionState::Open { wire, call };
                Some(Event::Refused(error))
            }
        }
    }
}

/// The text contains no null byte: neither messages nor server answers do.
fn c_string(text: impl Into<Vec<u8>>) -> CString {
    CString::new(text).unwrap_or_default()
}

/// Looks for the parser behind which the function is: one that is the extension's, whose functions
/// are the extension's C functions. Checks that the function may be called. Any role may run this
/// query. All names are qualified, since the role's search_path is unknown.
const GREETING: &std::ffi::CStr = c"SELECT pg_catalog.current_database(), e.extversion, p.oid, \
(SELECT pg_catalog.quote_ident(n.nspname) FROM pg_catalog.pg_namespace n WHERE n.oid OPERATOR(pg_catalog.=) p.schema), \
pg_catalog.has_schema_privilege(p.schema, 'USAGE'), pg_catalog.has_function_privilege(p.start, 'EXECUTE'), \
pg_catalog.pg_is_in_recovery(), pg_catalog.quote_ident(current_user) \
FROM (SELECT 1) one \
LEFT JOIN pg_catalog.pg_extension e ON e.extname OPERATOR(pg_catalog.=) 'leaf_id' \
LEFT JOIN LATERAL (\
SELECT p.oid, pg_catalog.min(f.oid) FILTER (WHERE f.oid OPERATOR(pg_catalog.=) p.prsstart) AS start, \
pg_catalog.min(f.pronamespace) FILTER (WHERE f.oid OPERATOR(pg_catalog.=) p.prsstart) AS schema \
FROM pg_catalog.pg_ts_parser p \
JOIN pg_catalog.pg_proc f ON f.oid OPERATOR(pg_catalog.=) ANY (ARRAY[\
p.prsstart::pg_catalog.oid, p.prstoken::pg_catalog.oid, p.prsend::pg_catalog.oid]) \
JOIN pg_catalog.pg_language l ON l.oid OPERATOR(pg_catalog.=) f.prolang \
JOIN pg_catalog.pg_depend d ON d.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_ts_parser'::pg_catalog.regclass \
AND d.objid OPERATOR(pg_catalog.=) p.oid \
AND d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass \
AND d.refobjid OPERATOR(pg_catalog.=) e.oid AND d.deptype OPERATOR(pg_catalog.=) 'e' \
JOIN pg_catalog.pg_depend m ON m.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass \
AND m.objid OPERATOR(pg_catalog.=) f.oid AND m.refclassid OPERATOR(pg_catalog.=) d.refclassid \
AND m.refobjid OPERATOR(pg_catalog.=) e.oid AND m.deptype OPERATOR(pg_catalog.=) 'e' \
WHERE p.prsname OPERATOR(pg_catalog.=) $1::pg_catalog.name \
AND l.lanname OPERATOR(pg_catalog.=) 'c' \
AND f.probin OPERATOR(pg_catalog.=) '$libdir/leaf_id' \
GROUP BY p.oid HAVING pg_catalog.count(*) OPERATOR(pg_catalog.=) 3) p ON true";
