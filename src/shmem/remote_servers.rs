//! State of the source servers, as reported by the allocators.
//!
//! Written by a database's allocator on changes; read by the status views and by sessions whose
//! wait timed out. Protected by its own lock.

use super::lock::{Lock, Locked};
use super::text::Text;
use crate::pg::{self, Name};

/// Max entries, all databases together. A further server replaces the entry that changed longest
/// ago; only its status is lost.
pub const REMOTE_SERVERS: usize = 64;
/// Max length of an error, in bytes.
const ERROR_TEXT: usize = 191;

/// State of an allocator's connection to a source server.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum RemoteServerState {
    /// Unused entry.
    Free,
    /// Connection attempt in progress, no failure so far.
    Connecting,
    /// The last request was answered.
    Connected,
    /// The last attempt failed; retrying.
    Away,
    /// No connection, since nothing is requested.
    Closed,
}

/// A source server of one database.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RemoteServer {
    database: u32,
    state: RemoteServerState,
    server: Name,
    /// Time of the last state change, in microseconds since 2000.
    since: i64,
    /// Time of the last answered claim, in microseconds since 2000; 0 for never.
    last_claim: i64,
    /// Failed attempts in the current outage.
    attempts: u32,
    last_error: Text<ERROR_TEXT>,
}

impl RemoteServer {
    /// Name of the foreign server.
    pub fn server(&self) -> Name {
        self.server
    }

    /// Current state.
    pub fn state(&self) -> RemoteServerState {
        self.state
    }

    /// Time of the last state change, in microseconds since 2000.
    pub fn since(&self) -> i64 {
        self.since
    }

    /// Time of the last answered claim, in microseconds since 2000; 0 for never.
    pub fn last_claim(&self) -> i64 {
        self.last_claim
    }

    /// Failed attempts in the current outage.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Error of the current outage.
    pub fn last_error(&self) -> Option<String> {
        (self.state == RemoteServerState::Away).then(|| self.last_error.get())
    }

    /// True if the server is down with this error.
    pub fn has_said(&self, error: &str) -> bool {
        self.state == RemoteServerState::Away && self.last_error == Text::new(error)
    }

    /// Changes the state. `since` is kept if the state is the same.
    pub fn become_state(&mut self, state: RemoteServerState) {
        if self.state != state {
            self.state = state;
            self.since = pg::now_timestamp();
            self.attempts = 0;
        }
    }

    /// Records a failed attempt.
    pub fn fail(&mut self, error: &str) {
        self.become_state(RemoteServerState::Away);
        self.attempts = self.attempts.saturating_add(1);
        self.last_error = Text::new(error);
    }

    /// Records an answered claim.
    pub fn answer(&mut self) {
        self.last_claim = pg::now_timestamp();
    }

    /// DETAIL for a session that waits for this server.
    pub fn explain(&self) -> String {
        let server = self.server.text();
        match self.last_error() {
            None => format!("Server \"{server}\" was asked and has not answered."),
            Some(error) => {
                let since = pg::format_ms((self.since + pg::TIMESTAMP_EPOCH_US) / 1000);
                format!("Server \"{server}\" has given no ids since {since}: {error}.")
            }
        }
    }
}

/// All entries. All zeroes is a free one.
pub struct RemoteServers(Locked<[RemoteServer; REMOTE_SERVERS]>);

impl RemoteServers {
    /// Initializes the entries in zeroed memory.
    ///
    /// # Safety
    /// `this` points to zeroed memory.
    pub unsafe fn init(this: *mut Self, lock: Lock) {
        // SAFETY: a field of the caller's memory. All zeroes is a free entry.
        unsafe { Locked::init(&raw mut (*this).0, lock) };
    }

    /// Updates a server's entry, creating it if needed, and returns its number for [`Self::find`].
    /// The closure must not fail or wait.
    pub fn update(
        &self,
        database: u32,
        server: &Name,
        tell: impl FnOnce(&mut RemoteServer),
    ) -> u32 {
        let is_it = |entry: &RemoteServer| {
            entry.state != RemoteServerState::Free
                && entry.database == database
                && entry.server == *server
        };
        let changed_at = |entry: &RemoteServer| entry.since.max(entry.last_claim);
        let number = self.0.with(|servers| {
            let known = servers.iter().position(is_it);
            let number = known.unwrap_or_else(|| {
                // A free entry is all zeroes, hence the oldest.
                let oldest =
                    (0..REMOTE_SERVERS).min_by_key(|number| servers.get(*number).map(changed_at));
                oldest.unwrap_or(0)
            });
            if let Some(entry) = servers.get_mut(number) {
                if known.is_none() {
                    *entry = RemoteServer {
                        database,
                        state: RemoteServerState::Closed,
                        server: *server,
                        since: pg::now_timestamp(),
                        last_claim: 0,
                        attempts: 0,
                        last_error: Text::EMPTY,
                    };
                }
                tell(entry);
            }
            number
        });
        u32::try_from(number).unwrap_or(0)
    }

    /// The entry with this number, if it belongs to the current database.
    pub fn find(&self, number: u32) -> Option<RemoteServer> {
        let here = pg::database();
        self.0.read(|servers| {
            let entry = servers.get(number as usize)?;
            (entry.state != RemoteServerState::Free && entry.database == here).then_some(*entry)
        })
    }

    /// Marks a database's connections as closed.
    pub fn close(&self, database: u32) {
        self.0.with(|servers| {
            for entry in servers {
                let connects = matches!(
                    entry.state,
                    RemoteServerState::Connecting | RemoteServerState::Connected
                );
                if entry.database == database && connects {
                    entry.become_state(RemoteServerState::Closed);
                }
            }
        });
    }

    /// Frees the entries of a database.
    pub fn forget(&self, database: u32) {
        self.0.with(|servers| {
            for entry in servers {
                if entry.database == database {
                    // SAFETY: all zeroes is a free entry.
                    *entry = unsafe { core::mem::zeroed() };
                }
            }
        });
    }

    /// All entries of a database.
    pub fn of(&self, database: u32) -> Vec<RemoteServer> {
        let mut found = Vec::with_capacity(REMOTE_SERVERS);
        self.0.read(|servers| {
            let is_here = |entry: &&RemoteServer| {
                entry.state != RemoteServerState::Free && entry.database == database
            };
            found.extend(servers.iter().filter(is_here));
        });
        found
    }
}
