//! libpq's asynchronous calls, used only here.
//!
//! Nothing here waits for the network, except for the lookup of a host name at the start of a
//! connection, which `hostaddr` avoids. The caller waits with [`crate::pg::wait_for`] for
//! [`Wire::socket`], and calls again. The house rules forbid libpq's blocking calls: a process that
//! waits in one does not process interrupts, so any DROP DATABASE on this server would wait for the
//! network, too.
//!
//! None of these functions raises a PostgreSQL error.
//!
//! What the other server sends takes a bounded amount of memory. libpq itself keeps all rows,
//! notifications and settings, and makes room for a message of any announced length. So an answer is
//! one row or one error, a notification breaks the connection, an idle connection is not read, and
//! what the process has grown by in libpq is limited ([`Wire::step`]).
//!
//! The declarations are not from crate pq-sys, because its build script chooses the libpq to link
//! by itself, possibly not that of the PostgreSQL to build for (`build.rs`).

#![allow(unsafe_code)]

use core::cell::Cell;
use core::ffi::{CStr, c_char, c_int, c_uint, c_void};
use core::ptr::NonNull;
use std::ffi::CString;

use pgrx::pg_sys;

use crate::pg::{self, Readiness, shown};

/// `PGconn`.
#[repr(C)]
struct Connection {
    _opaque: [u8; 0],
}

/// `PGresult`.
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
/// Max calls of PQconnectPoll per turn: far more than a well-behaved server needs.
const MAX_POLLS: u32 = 16;
const COMMAND_OK: c_int = 1;
const TUPLES_OK: c_int = 2;
const COPY_OUT: c_int = 3;
const COPY_IN: c_int = 4;
const COPY_BOTH: c_int = 8;
const SINGLE_TUPLE: c_int = 9;
/// Bytes that the process may grow by in libpq, for one connection. An answer takes a few thousand,
/// certificates a few million. Half of it ends an idle connection: the process may also seem to grow
/// because memory was given back elsewhere.
const MOST_GROWN: usize = 32 << 20;

/// Descriptors that connections leave to PostgreSQL. Each wait takes one, and raises an error where there is none,
/// here outside of a transaction; an open WAL segment takes one without asking.
const SPARE: usize = 4;

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
    fn PQsetSingleRowMode(conn: *mut Connection) -> c_int;
    fn PQnotifies(conn: *mut Connection) -> *mut c_void;
    fn PQfreemem(memory: *mut c_void);
    fn PQresultStatus(result: *const Outcome) -> c_int;
    fn PQresultErrorField(result: *const Outcome, field: c_int) -> *const c_char;
    fn PQntuples(result: *const Outcome) -> c_int;
    fn PQnfields(result: *const Outcome) -> c_int;
    fn PQgetisnull(result: *const Outcome, row: c_int, column: c_int) -> c_int;
    fn PQgetvalue(result: *const Outcome, row: c_int, column: c_int) -> *const c_char;
    fn PQclear(result: *mut Outcome);
    fn PQfinish(conn: *mut Connection);
}

/// Connection parameters by libpq keyword. Never display them: they contain the password.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Options(Vec<(CString, CString)>);

impl Options {
    /// Sets an option, replacing its previous value.
    pub fn set(&mut self, keyword: &CStr, value: &CStr) {
        self.0.retain(|(set, _)| set.as_c_str() != keyword);
        self.0.push((keyword.into(), value.into()));
    }

    /// Removes an option.
    pub fn remove(&mut self, keyword: &CStr) {
        self.0.retain(|(set, _)| set.as_c_str() != keyword);
    }

    /// Value of an option, if set.
    pub fn get(&self, keyword: &CStr) -> Option<&CStr> {
        let found = self.0.iter().find(|(set, _)| set.as_c_str() == keyword);
        found.map(|(_, value)| value.as_c_str())
    }
}

/// libpq's connection keywords, except for debug options.
pub fn known_options() -> Vec<CString> {
    let mut names = Vec::new();
    // SAFETY: an array terminated by a null keyword, freed below; the strings are copied.
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

/// Error of a request to another server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteError {
    /// SQLSTATE, if the server has sent one.
    pub sqlstate: Option<[u8; 5]>,
    /// First line of the message from libpq or the server.
    pub message: String,
    /// The connection is unusable.
    pub broken: bool,
}

impl RemoteError {
    /// A connection given up for a local reason.
    pub fn broken(message: impl Into<String>) -> Self {
        Self {
            sqlstate: None,
            message: message.into(),
            broken: true,
        }
    }
}

/// A connection to another server; dropping it closes it without blocking.
pub struct Wire {
    conn: NonNull<Connection>,
    /// Readiness to wait for while connecting.
    connecting: Readiness,
    /// Part of the query is still unsent.
    unsent: bool,
    /// Result of the query so far.
    answer: Option<Result<Rows, RemoteError>>,
    /// Nothing may follow the answer.
    is_answered: bool,
    /// Bytes that the process has grown by in libpq.
    grown: usize,
    /// The server has canceled a wait for a standby since the query was sent. libpq's notice
    /// receiver has a pointer to it, so it cannot be a `Box`, which must not be aliased; freed on
    /// drop.
    warned: NonNull<Cell<bool>>,
}

/// Notice receiver. Detects the warning of a canceled wait for a standby by its source function,
/// since the text may be localized. Other notices are ignored; libpq would print them.
unsafe extern "C" fn note_warning(arg: *mut c_void, result: *const Outcome) {
    const FUNCTION: c_int = pg_sys::PG_DIAG_SOURCE_FUNCTION as c_int;
    // SAFETY: `arg` is the cell of the connection that the result belongs to, and lives as long as
    // it; strings live as long as the result.
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

/// First line of a message.
///
/// # Safety
/// `text` is null, or a null-terminated string that outlives the call.
unsafe fn first_line(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: guaranteed by the caller.
    let text = unsafe { CStr::from_ptr(text) }.to_bytes().trim_ascii();
    let mut lines = text.split(|byte| matches!(byte, b'\r' | b'\n'));
    shown(lines.next().unwrap_or_default())
}

/// Accounts for the descriptor that libpq is about to open; false if fewer than [`SPARE`] would be left.
fn acquire_descriptor() -> bool {
    let mut acquired = 0;
    // SAFETY: counts.
    while acquired <= SPARE && unsafe { pg_sys::AcquireExternalFD() } {
        acquired += 1;
    }
    let is_left = acquired > SPARE;
    for _ in usize::from(is_left)..acquired {
        // SAFETY: what is released was acquired above.
        unsafe { pg_sys::ReleaseExternalFD() };
    }
    is_left
}

impl Wire {
    /// Starts to connect; continue with [`Self::connect`]. Blocks only for the lookup of a host
    /// name.
    ///
    /// # Errors
    /// The options are invalid, or there are too many open files.
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
        if !acquire_descriptor() {
            return Err(RemoteError::broken("there are too many open files"));
        }
        // SAFETY: two null-terminated arrays that outlive the call. The database name is not
        // expanded as a connection string.
        let conn = unsafe { PQconnectStartParams(keywords.as_ptr(), values.as_ptr(), 0) };
        let Some(conn) = NonNull::new(conn) else {
            // SAFETY: releases what was acquired above.
            unsafe { pg_sys::ReleaseExternalFD() };
            return Err(RemoteError::broken("out of memory"));
        };
        let warned = NonNull::from(Box::leak(Box::new(Cell::new(false))));
        let arg = warned.as_ptr().cast();
        // SAFETY: an open connection. `note_warning` gets the cell, which `Drop` frees after
        // closing the connection. Not blocking from the start: libpq would wait for a server that
        // does not read while it logs in. Where that fails, so has the connection.
        unsafe {
            PQsetNoticeReceiver(conn.as_ptr(), Some(note_warning), arg);
            PQsetnonblocking(conn.as_ptr(), 1);
        }
        Ok(Self {
            conn,
            connecting: Readiness::Writing,
            unsent: false,
            answer: None,
            is_answered: false,
            grown: 0,
            warned,
        })
    }

    fn conn(&self) -> *mut Connection {
        self.conn.as_ptr()
    }

    fn warned(&self) -> &Cell<bool> {
        // SAFETY: freed on drop; the only other user, libpq's notice receiver, only sets it.
        unsafe { self.warned.as_ref() }
    }

    /// A step of libpq that may read from the server.
    ///
    /// # Errors
    /// The server has sent what was not asked for.
    fn step<T>(&mut self, call: impl FnOnce(*mut Connection) -> T) -> Result<T, RemoteError> {
        let before = pg::data_size();
        let result = call(self.conn());
        // SAFETY: an open connection; a notification is freed once, and null is not. Parses what has
        // arrived, too.
        let is_notified = unsafe {
            let notification = PQnotifies(self.conn());
            PQfreemem(notification);
            !notification.is_null()
        };
        self.grown += pg::data_size().saturating_sub(before);
        if self.grown > MOST_GROWN {
            return Err(RemoteError::broken("that server sent too much"));
        }
        if is_notified {
            return Err(RemoteError::broken("that server sent a notification"));
        }
        Ok(result)
    }

    /// Last error of the connection.
    fn failure(&self) -> RemoteError {
        // SAFETY: an open connection; the message is copied before the next call.
        let message = unsafe { first_line(PQerrorMessage(self.conn())) };
        RemoteError::broken(if message.is_empty() {
            "the connection was closed".to_string()
        } else {
            message
        })
    }

    /// Continues to connect. True once connected.
    ///
    /// # Errors
    /// The connection failed.
    pub fn connect(&mut self) -> Result<bool, RemoteError> {
        // SAFETY: an open connection.
        if unsafe { PQstatus(self.conn()) } == CONNECTION_BAD {
            return Err(self.failure());
        }
        // libpq takes the call itself as notice that the socket is ready. Bounded, so that a server
        // that never stops sending is given up at its deadline.
        for _ in 0..MAX_POLLS {
            if !self.is_ready(self.connecting) {
                break;
            }
            // SAFETY: as above.
            match self.step(|conn| unsafe { PQconnectPoll(conn) })? {
                POLLING_READING => self.connecting = Readiness::Reading,
                POLLING_WRITING => self.connecting = Readiness::Writing,
                POLLING_OK => return Ok(true),
                _ => return Err(self.failure()),
            }
        }
        Ok(false)
    }

    /// True if the socket is ready.
    fn is_ready(&self, readiness: Readiness) -> bool {
        let mut poll = libc::pollfd {
            // SAFETY: an open connection.
            fd: unsafe { PQsocket(self.conn()) },
            events: match readiness {
                Readiness::Reading => libc::POLLIN,
                Readiness::Writing => libc::POLLOUT,
                Readiness::Both => libc::POLLIN | libc::POLLOUT,
            },
            revents: 0,
        };
        // SAFETY: one local entry; does not block with a timeout of 0.
        unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
    }

    /// True if the server has requested a password and received it.
    pub fn used_password(&self) -> bool {
        // SAFETY: an open connection.
        unsafe { PQconnectionUsedPassword(self.conn()) != 0 }
    }

    /// Starts a query with one text parameter; continue with [`Self::receive`].
    ///
    /// # Errors
    /// The connection is lost.
    pub fn send(&mut self, sql: &CStr, parameter: &CStr) -> Result<(), RemoteError> {
        self.answer = None;
        self.is_answered = false;
        self.warned().set(false);
        // SAFETY: one value, as declared, which outlives the call. The query casts it to its type.
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
        // SAFETY: an open connection, right after the query was sent.
        if sent == 0 || unsafe { PQsetSingleRowMode(self.conn()) } == 0 {
            return Err(self.failure());
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), RemoteError> {
        // SAFETY: an open connection in nonblocking mode.
        match unsafe { PQflush(self.conn()) } {
            0 => self.unsent = false,
            1 => self.unsent = true,
            _ => return Err(self.failure()),
        }
        Ok(())
    }

    /// Result of the query; `None` if still pending.
    ///
    /// # Errors
    /// The server's error, or the connection is lost.
    pub fn receive(&mut self) -> Result<Option<Rows>, RemoteError> {
        if self.unsent {
            self.flush()?;
        }
        // SAFETY: an open connection in nonblocking mode.
        if self.step(|conn| unsafe { PQconsumeInput(conn) })? == 0 {
            return Err(self.failure());
        }
        // SAFETY: as above.
        while self.step(|conn| unsafe { PQisBusy(conn) })? == 0 {
            // SAFETY: a result is taken only if it has arrived.
            let result = self.step(|conn| unsafe { PQgetResult(conn) })?;
            let Some(result) = NonNull::new(result) else {
                let none = || Err(RemoteError::broken("there was no answer"));
                let answer = self.answer.take().unwrap_or_else(none);
                // The commit, and so the warning, comes after the row.
                return answer.map(|rows| {
                    Some(Rows {
                        unacknowledged: self.warned().get(),
                        ..rows
                    })
                });
            };
            self.take(Rows {
                result: Owned(result),
                unacknowledged: false,
            })?;
        }
        Ok(None)
    }

    /// Takes one result: a row, then the end of the rows, or an error instead of either.
    ///
    /// # Errors
    /// It is not part of one answer.
    fn take(&mut self, rows: Rows) -> Result<(), RemoteError> {
        // SAFETY: a valid result.
        let status = unsafe { PQresultStatus(rows.result.0.as_ptr()) };
        if matches!(status, COPY_OUT | COPY_IN | COPY_BOTH) {
            // PQgetResult would return such results forever.
            return Err(RemoteError::broken("that server began to copy"));
        }
        let is_row = status == SINGLE_TUPLE;
        if self.is_answered || is_row && self.answer.is_some() {
            return Err(match self.answer.take() {
                // It says more, such as why the connection ends.
                Some(Err(error)) => RemoteError {
                    broken: true,
                    ..error
                },
                _ => RemoteError::broken("that server answered with more than one row"),
            });
        }
        self.is_answered = !is_row;
        match self.judge(rows) {
            // The end of the rows.
            Ok(_) if self.answer.is_some() => {}
            answer => self.answer = Some(answer),
        }
        Ok(())
    }

    fn judge(&self, rows: Rows) -> Result<Rows, RemoteError> {
        const SQLSTATE: c_int = pg_sys::PG_DIAG_SQLSTATE as c_int;
        const PRIMARY: c_int = pg_sys::PG_DIAG_MESSAGE_PRIMARY as c_int;
        let result = rows.result.0.as_ptr();
        // SAFETY: an open connection and its result; the strings are copied.
        unsafe {
            if matches!(
                PQresultStatus(result),
                COMMAND_OK | TUPLES_OK | SINGLE_TUPLE
            ) {
                return Ok(rows);
            }
            let broken = PQstatus(self.conn()) != CONNECTION_OK;
            let sqlstate = PQresultErrorField(result, SQLSTATE);
            if sqlstate.is_null() {
                // An error of libpq, not of the server.
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

    /// True if an idle connection is still good. One with something to read is not: either the
    /// server has closed it, or it sends what was not asked for.
    pub fn is_alive(&self) -> bool {
        !self.is_ready(Readiness::Reading) && self.grown <= MOST_GROWN / 2
    }

    /// Socket to wait for while connecting.
    pub fn connecting_socket(&self) -> Option<(c_int, Readiness)> {
        self.fd().map(|fd| (fd, self.connecting))
    }

    /// Socket to wait for once connected.
    pub fn socket(&self) -> Option<(c_int, Readiness)> {
        let readiness = if self.unsent {
            Readiness::Both
        } else {
            Readiness::Reading
        };
        self.fd().map(|fd| (fd, readiness))
    }

    fn fd(&self) -> Option<c_int> {
        // SAFETY: an open connection.
        let fd = unsafe { PQsocket(self.conn()) };
        (fd >= 0).then_some(fd)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        // SAFETY: closed once. The cell, which came from a `Box`, is freed once, after libpq has
        // dropped its pointer. PQfinish cannot block: it sends Terminate only on an established
        // connection, whose socket is nonblocking by then.
        unsafe {
            PQfinish(self.conn());
            drop(Box::from_raw(self.warned.as_ptr()));
            pg_sys::ReleaseExternalFD();
        }
    }
}

/// A result, freed on drop.
struct Owned(NonNull<Outcome>);

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: freed once.
        unsafe { PQclear(self.0.as_ptr()) };
    }
}

/// Result of a query.
pub struct Rows {
    result: Owned,
    unacknowledged: bool,
}

impl Rows {
    /// True if the server canceled its wait for a standby: it reports success, with a warning.
    pub fn is_unacknowledged(&self) -> bool {
        self.unacknowledged
    }

    /// A value in text format, in the encoding of this database; `None` if it is NULL, or there is
    /// no such row or column (from 0).
    pub fn bytes(&self, row: usize, column: usize) -> Option<&[u8]> {
        let row = c_int::try_from(row).ok()?;
        let column = c_int::try_from(column).ok()?;
        let result = self.result.0.as_ptr();
        // SAFETY: a valid result, accessed within its bounds; the string lives as long as the
        // result.
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

    /// A value as a boolean.
    pub fn boolean(&self, row: usize, column: usize) -> Option<bool> {
        self.bytes(row, column).map(|text| text == b"t")
    }
}
