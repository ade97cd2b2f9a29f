//! The wire to another server: libpq's asynchronous calls, and the only place that knows
//! them.
//!
//! Nothing here waits for the network (but a host name is looked up when a connection is
//! begun: `hostaddr` avoids that). The caller waits with [`crate::pg::wait_for`] for what
//! [`Wire::socket`] says, and calls again. Calls of libpq that wait are forbidden by the
//! house rules: a process that waits in one of them handles no interrupts, so DROP DATABASE
//! anywhere on this server would wait for the network too.
//!
//! None of these functions raises an error of PostgreSQL's.
//!
//! Not crate pq-sys: its build script looks for a libpq to link by itself, which need not be that of the
//! PostgreSQL that this is built for (`build.rs`).

#![allow(unsafe_code)]

use core::cell::Cell;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::NonNull;
use std::ffi::CString;

use pgrx::pg_sys;

use crate::pg::{Readiness, shown};

/// A connection of libpq's.
#[repr(C)]
struct Connection {
    _opaque: [u8; 0],
}

/// A result of libpq's.
#[repr(C)]
struct Outcome {
    _opaque: [u8; 0],
}

/// `PQconninfoOption`.
#[repr(C)]
struct Known {
    keyword: *const c_char,
    envvar: *const c_char,
    compiled: *const c_char,
    val: *const c_char,
    label: *const c_char,
    dispchar: *const c_char,
    dispsize: c_int,
}

const CONNECTION_OK: c_int = 0;
const CONNECTION_BAD: c_int = 1;
const POLLING_READING: c_int = 1;
const POLLING_WRITING: c_int = 2;
const POLLING_OK: c_int = 3;
/// How often a connecting server is listened to in one turn: far more than an honest one needs.
const MAX_POLLS: u32 = 16;
const COMMAND_OK: c_int = 1;
const TUPLES_OK: c_int = 2;
const COPY_OUT: c_int = 3;
const COPY_IN: c_int = 4;
const COPY_BOTH: c_int = 8;

type NoticeReceiver = unsafe extern "C" fn(*mut c_void, *const Outcome);

unsafe extern "C" {
    fn PQconndefaults() -> *mut Known;
    fn PQconninfoFree(options: *mut Known);
    fn PQconnectStartParams(
        keywords: *const *const c_char,
        values: *const *const c_char,
        expand_dbname: c_int,
    ) -> *mut Connection;
    fn PQconnectPoll(conn: *mut Connection) -> c_int;
    fn PQstatus(conn: *const Connection) -> c_int;
    fn PQsocket(conn: *const Connection) -> c_int;
    fn PQerrorMessage(conn: *const Connection) -> *const c_char;
    fn PQconnectionUsedPassword(conn: *const Connection) -> c_int;
    fn PQsetnonblocking(conn: *mut Connection, on: c_int) -> c_int;
    fn PQsetNoticeReceiver(
        conn: *mut Connection,
        receiver: Option<NoticeReceiver>,
        arg: *mut c_void,
    ) -> Option<NoticeReceiver>;
    fn PQsendQueryParams(
        conn: *mut Connection,
        command: *const c_char,
        count: c_int,
        types: *const c_uint,
        values: *const *const c_char,
        lengths: *const c_int,
        formats: *const c_int,
        result_format: c_int,
    ) -> c_int;
    fn PQflush(conn: *mut Connection) -> c_int;
    fn PQconsumeInput(conn: *mut Connection) -> c_int;
    fn PQisBusy(conn: *mut Connection) -> c_int;
    fn PQgetResult(conn: *mut Connection) -> *mut Outcome;
    fn PQresultStatus(result: *const Outcome) -> c_int;
    fn PQresultErrorField(result: *const Outcome, field: c_int) -> *const c_char;
    fn PQntuples(result: *const Outcome) -> c_int;
    fn PQnfields(result: *const Outcome) -> c_int;
    fn PQgetisnull(result: *const Outcome, row: c_int, column: c_int) -> c_int;
    fn PQgetvalue(result: *const Outcome, row: c_int, column: c_int) -> *const c_char;
    fn PQclear(result: *mut Outcome);
    fn PQfinish(conn: *mut Connection);
}

/// Where to connect, as whom and how, in libpq's words. Not to be shown to anybody: it
/// holds the password.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Options(Vec<(CString, CString)>);

impl Options {
    /// Sets an option, also one that is set already.
    pub fn set(&mut self, keyword: &CStr, value: &CStr) {
        self.0.retain(|(set, _)| set.as_c_str() != keyword);
        self.0.push((keyword.into(), value.into()));
    }

    /// Unsets an option.
    pub fn remove(&mut self, keyword: &CStr) {
        self.0.retain(|(set, _)| set.as_c_str() != keyword);
    }

    /// The value of an option that is set.
    pub fn get(&self, keyword: &CStr) -> Option<&CStr> {
        let found = self.0.iter().find(|(set, _)| set.as_c_str() == keyword);
        found.map(|(_, value)| value.as_c_str())
    }
}

/// What libpq calls the options of a connection, those for debugging left out.
pub fn known_options() -> Vec<CString> {
    let mut names = Vec::new();
    // SAFETY: an array that ends with a null keyword, freed below; the strings are copied.
    unsafe {
        let all = PQconndefaults();
        let mut option = all;
        while let Some(known) = option.as_ref() {
            if known.keyword.is_null() {
                break;
            }
            if known.dispchar.is_null()
                || !CStr::from_ptr(known.dispchar).to_bytes().contains(&b'D')
            {
                names.push(CStr::from_ptr(known.keyword).to_owned());
            }
            option = option.add(1);
        }
        PQconninfoFree(all);
    }
    names
}

/// Why another server did not do what was asked of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteError {
    /// The SQLSTATE, where that server has said one.
    pub sqlstate: Option<[u8; 5]>,
    /// The first line of what libpq or that server says.
    pub message: String,
    /// The connection is of no use any more.
    pub broken: bool,
}

impl RemoteError {
    /// Of a connection that is given up for a reason of ours.
    pub fn broken(message: impl Into<String>) -> Self {
        Self {
            sqlstate: None,
            message: message.into(),
            broken: true,
        }
    }
}

/// A connection to another server; closed on drop, without waiting for anything.
pub struct Wire {
    conn: NonNull<Connection>,
    /// What is waited for while it connects.
    connecting: Readiness,
    /// A part of the query is still to be sent.
    unsent: bool,
    /// What came of the query so far.
    answer: Option<Result<Rows, RemoteError>>,
    /// A wait for a standby was canceled there since the query was sent. Where libpq's
    /// notices find it, so not in a `Box`, which may alias nothing; freed on drop.
    warned: NonNull<Cell<bool>>,
}

/// Remembers the warning that a wait for a standby was canceled, by who says it: its text
/// may be in any language. Others mean nothing here, and libpq would print them.
unsafe extern "C" fn note_warning(arg: *mut c_void, result: *const Outcome) {
    const FUNCTION: c_int = pg_sys::PG_DIAG_SOURCE_FUNCTION as c_int;
    // SAFETY: `arg` is the cell of the connection that this result belongs to, and which lives
    // as long as that; strings of the result live as long as it.
    unsafe {
        let function = PQresultErrorField(result, FUNCTION);
        let is_warning = !function.is_null() && CStr::from_ptr(function) == c"SyncRepWaitForLSN";
        if let Some(warned) = arg.cast::<Cell<bool>>().as_ref()
            && is_warning
        {
            warned.set(true);
        }
    }
}

/// The first line of a message, without what follows it.
///
/// # Safety
/// Null, or a string that ends with null and lives as long as the call.
unsafe fn first_line(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as the caller says.
    let text = shown(unsafe { CStr::from_ptr(text) }.to_bytes());
    text.trim().lines().next().unwrap_or_default().to_string()
}

impl Wire {
    /// Begins to connect: go on with [`Self::connect`]. The lookup of a host name waits,
    /// nothing else does.
    ///
    /// # Errors
    /// The options make no sense, or this process has no file descriptor left.
    pub fn start(options: &Options) -> Result<Self, RemoteError> {
        let pointers = |value: fn(&(CString, CString)) -> &CString| {
            let mut pointers: Vec<*const c_char> = options
                .0
                .iter()
                .map(|option| value(option).as_ptr())
                .collect();
            pointers.push(core::ptr::null());
            pointers
        };
        let keywords = pointers(|(keyword, _)| keyword);
        let values = pointers(|(_, value)| value);
        // SAFETY: takes nothing; counts the descriptor that libpq is about to open.
        if !unsafe { pg_sys::AcquireExternalFD() } {
            return Err(RemoteError::broken("there are too many open files"));
        }
        // SAFETY: two arrays that end with null and outlive the call. The name of the
        // database is not to be taken as a connection string.
        let conn = unsafe { PQconnectStartParams(keywords.as_ptr(), values.as_ptr(), 0) };
        let Some(conn) = NonNull::new(conn) else {
            // SAFETY: gives back what was acquired above.
            unsafe { pg_sys::ReleaseExternalFD() };
            return Err(RemoteError::broken("out of memory"));
        };
        let warned = NonNull::from(Box::leak(Box::new(Cell::new(false))));
        let arg = warned.as_ptr().cast();
        // SAFETY: an open connection. `note_warning` gets the cell, which `Drop` frees after it
        // has closed the connection.
        unsafe { PQsetNoticeReceiver(conn.as_ptr(), Some(note_warning), arg) };
        Ok(Self {
            conn,
            connecting: Readiness::Writing,
            unsent: false,
            answer: None,
            warned,
        })
    }

    fn conn(&self) -> *mut Connection {
        self.conn.as_ptr()
    }

    fn warned(&self) -> &Cell<bool> {
        // SAFETY: freed on drop; whoever else has it, libpq's notices, only sets it.
        unsafe { self.warned.as_ref() }
    }

    /// The last failure of the connection.
    fn failure(&self) -> RemoteError {
        // SAFETY: an open connection of ours, whose message is copied before the next call.
        let message = unsafe { first_line(PQerrorMessage(self.conn())) };
        RemoteError::broken(if message.is_empty() {
            "the connection was closed".to_string()
        } else {
            message
        })
    }

    /// Goes on connecting. True when it is connected.
    ///
    /// # Errors
    /// It cannot be.
    pub fn connect(&mut self) -> Result<bool, RemoteError> {
        // SAFETY: an open connection of ours.
        if unsafe { PQstatus(self.conn()) } == CONNECTION_BAD {
            return Err(self.failure());
        }
        // libpq takes the call itself for the news that the socket is ready. Not for ever: a
        // server that never stops talking is to be left at its deadline.
        for _ in 0..MAX_POLLS {
            if !self.is_ready() {
                break;
            }
            // SAFETY: as above.
            match unsafe { PQconnectPoll(self.conn()) } {
                POLLING_READING => self.connecting = Readiness::Reading,
                POLLING_WRITING => self.connecting = Readiness::Writing,
                POLLING_OK => {
                    // SAFETY: as above.
                    return match unsafe { PQsetnonblocking(self.conn(), 1) } {
                        0 => Ok(true),
                        _ => Err(self.failure()),
                    };
                }
                _ => return Err(self.failure()),
            }
        }
        Ok(false)
    }

    /// Whether what a connecting socket waits for is there.
    fn is_ready(&self) -> bool {
        let mut poll = libc::pollfd {
            // SAFETY: an open connection of ours.
            fd: unsafe { PQsocket(self.conn()) },
            events: match self.connecting {
                Readiness::Reading => libc::POLLIN,
                Readiness::Writing => libc::POLLOUT,
                Readiness::Both => libc::POLLIN | libc::POLLOUT,
            },
            revents: 0,
        };
        // SAFETY: one entry, which is ours to write; with a timeout of 0 it does not wait.
        unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
    }

    /// Whether that server has asked for a password and got it.
    pub fn used_password(&self) -> bool {
        // SAFETY: an open connection of ours.
        unsafe { PQconnectionUsedPassword(self.conn()) != 0 }
    }

    /// Begins a query with one parameter, which is text: go on with [`Self::receive`].
    ///
    /// # Errors
    /// The connection is gone.
    pub fn send(&mut self, sql: &CStr, parameter: &CStr) -> Result<(), RemoteError> {
        self.answer = None;
        self.warned().set(false);
        // SAFETY: as many values as are said, which outlive the call. The query says of which type
        // each is.
        let sent = unsafe {
            PQsendQueryParams(
                self.conn(),
                sql.as_ptr(),
                1,
                core::ptr::null(),
                &parameter.as_ptr(),
                core::ptr::null(),
                core::ptr::null(),
                0,
            )
        };
        if sent == 0 {
            return Err(self.failure());
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), RemoteError> {
        // SAFETY: an open connection of ours, that does not wait.
        match unsafe { PQflush(self.conn()) } {
            0 => self.unsent = false,
            1 => self.unsent = true,
            _ => return Err(self.failure()),
        }
        Ok(())
    }

    /// What the query has answered; `None` if that is still to come.
    ///
    /// # Errors
    /// What that server has raised, or the connection is gone.
    pub fn receive(&mut self) -> Result<Option<Rows>, RemoteError> {
        if self.unsent {
            self.flush()?;
        }
        // SAFETY: an open connection of ours, that does not wait; a result is taken only
        // where it has come.
        unsafe {
            if PQconsumeInput(self.conn()) == 0 {
                return Err(self.failure());
            }
            while PQisBusy(self.conn()) == 0 {
                let Some(result) = NonNull::new(PQgetResult(self.conn())) else {
                    let none = || Err(RemoteError::broken("there was no answer"));
                    let answer = self.answer.take().unwrap_or_else(none);
                    // The commit comes after the rows, and with it the warning.
                    return answer.map(|rows| {
                        Some(Rows {
                            unacknowledged: self.warned().get(),
                            ..rows
                        })
                    });
                };
                let rows = Rows {
                    result: Owned(result),
                    unacknowledged: false,
                };
                if matches!(
                    PQresultStatus(result.as_ptr()),
                    COPY_OUT | COPY_IN | COPY_BOTH
                ) {
                    // There would be such a result again and again.
                    return Err(RemoteError::broken("that server began to copy"));
                }
                let answer = self.judge(rows);
                // Of several the first failure counts.
                if !matches!(self.answer, Some(Err(_))) {
                    self.answer = Some(answer);
                }
            }
        }
        Ok(None)
    }

    fn judge(&self, rows: Rows) -> Result<Rows, RemoteError> {
        const SQLSTATE: c_int = pg_sys::PG_DIAG_SQLSTATE as c_int;
        const PRIMARY: c_int = pg_sys::PG_DIAG_MESSAGE_PRIMARY as c_int;
        let result = rows.result.0.as_ptr();
        // SAFETY: an open connection and a result of ours; the strings are copied.
        unsafe {
            if matches!(PQresultStatus(result), COMMAND_OK | TUPLES_OK) {
                return Ok(rows);
            }
            let broken = PQstatus(self.conn()) != CONNECTION_OK;
            let sqlstate = PQresultErrorField(result, SQLSTATE);
            if sqlstate.is_null() {
                // Of libpq, not of that server.
                return Err(RemoteError {
                    broken,
                    ..self.failure()
                });
            }
            Err(RemoteError {
                sqlstate: CStr::from_ptr(sqlstate).to_bytes().try_into().ok(),
                message: first_line(PQresultErrorField(result, PRIMARY)),
                broken,
            })
        }
    }

    /// Whether a connection on which nothing is asked is still there. Takes in what that
    /// server has to say of itself.
    pub fn is_alive(&mut self) -> bool {
        // SAFETY: an open connection of ours, that does not wait.
        unsafe { PQconsumeInput(self.conn()) != 0 && PQstatus(self.conn()) == CONNECTION_OK }
    }

    /// What is to be waited for while it connects.
    pub fn connecting_socket(&self) -> Option<(c_int, Readiness)> {
        self.fd().map(|fd| (fd, self.connecting))
    }

    /// What is to be waited for once it is connected.
    pub fn socket(&self) -> Option<(c_int, Readiness)> {
        let readiness = if self.unsent {
            Readiness::Both
        } else {
            Readiness::Reading
        };
        self.fd().map(|fd| (fd, readiness))
    }

    fn fd(&self) -> Option<c_int> {
        // SAFETY: an open connection of ours.
        let fd = unsafe { PQsocket(self.conn()) };
        (fd >= 0).then_some(fd)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // SAFETY: closed once, and the cell, which came from a `Box`, freed once, after libpq has
        // forgotten it. PQfinish cannot block: it sends its message of termination only on a
        // connection that was established, whose socket is nonblocking by then.
        unsafe {
            PQfinish(self.conn());
            drop(Box::from_raw(self.warned.as_ptr()));
            pg_sys::ReleaseExternalFD();
        }
    }
}

/// A result that is freed on drop.
struct Owned(NonNull<Outcome>);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: freed once.
        unsafe { PQclear(self.0.as_ptr()) };
    }
}

/// What a query has answered.
pub struct Rows {
    result: Owned,
    unacknowledged: bool,
}

impl Rows {
    /// Whether that server's wait for a standby was canceled: it answers as if all were
    /// well, with a warning.
    pub fn is_unacknowledged(&self) -> bool {
        self.unacknowledged
    }

    /// A value as it is shown, in the encoding of this database; `None` where it is NULL or there
    /// is no such row or column (both count from 0).
    pub fn bytes(&self, row: usize, column: usize) -> Option<&[u8]> {
        let row = c_int::try_from(row).ok()?;
        let column = c_int::try_from(column).ok()?;
        let result = self.result.0.as_ptr();
        // SAFETY: a result of ours, within its bounds; the string lives as long as it.
        unsafe {
            if row >= PQntuples(result)
                || column >= PQnfields(result)
                || PQgetisnull(result, row, column) != 0
            {
                return None;
            }
            Some(CStr::from_ptr(PQgetvalue(result, row, column)).to_bytes())
        }
    }

    /// A value as text.
    pub fn text(&self, row: usize, column: usize) -> Option<String> {
        self.bytes(row, column).map(shown)
    }

    /// A value as yes or no.
    pub fn boolean(&self, row: usize, column: usize) -> Option<bool> {
        self.bytes(row, column).map(|text| text == b"t")
    }
}
