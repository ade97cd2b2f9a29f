//! How the servers that tags are sourced from are getting on, as the allocators tell.
//!
//! Written by the allocator of the database when something changes, read by sessions that
//! have waited in vain and by the status views. Under a lock of its own.

use super::lock::{Lock, Locked};
use super::text::Text;
use crate::pg::{self, Name};

/// Servers that can be told of at one time, all databases together. Of more the one that
/// changed longest ago is forgotten, nothing else.
pub const REMOTE_SERVERS: usize = 64;
/// What is kept of an error, in bytes.
const ERROR_TEXT: usize = 191;

/// How an allocator stands with a server.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum RemoteServerState {
    /// Nobody's.
    Free,
    /// It is being connected to, and has not failed.
    Connecting,
    /// It has answered the last time that it was asked anything.
    Connected,
    /// It has failed, and is tried again.
    Away,
    /// There is nothing to ask: no connection is kept.
    Closed,
}

/// A server that tags of a database are sourced from.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct RemoteServer {
    database: u32,
    state: RemoteServerState,
    server: Name,
    /// Microseconds since 2000.
    since: i64,
    /// Microseconds since 2000; 0 for never.
    last_claim: i64,
    /// Attempts since it is away.
    attempts: u32,
    last_error: Text<ERROR_TEXT>,
}

impl RemoteServer {
    /// Its name.
    pub fn server(&self) -> Name {
        self.server
    }

    /// How it stands.
    pub fn state(&self) -> RemoteServerState {
        self.state
    }

    /// Since when, in microseconds since 2000.
    pub fn since(&self) -> i64 {
        self.since
    }

    /// When it has answered a claim, in microseconds since 2000; 0 for never.
    pub fn last_claim(&self) -> i64 {
        self.last_claim
    }

    /// How often it was tried in vain since it is away.
    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Why it is away.
    pub fn last_error(&self) -> Option<String> {
        (self.state == RemoteServerState::Away).then(|| self.last_error.get())
    }

    /// Whether it is away for what is said in these words.
    pub fn has_said(&self, error: &str) -> bool {
        self.state == RemoteServerState::Away && self.last_error == Text::new(error)
    }

    /// Changes the state. Where it stays the same, so does the time.
    pub fn become_state(&mut self, state: RemoteServerState) {
        if self.state != state {
            self.state = state;
            self.since = pg::now_timestamp();
            self.attempts = 0;
        }
    }

    /// It was tried in vain.
    pub fn fail(&mut self, error: &str) {
        self.become_state(RemoteServerState::Away);
        self.attempts = self.attempts.saturating_add(1);
        self.last_error = Text::new(error);
    }

    /// It has answered a claim.
    pub fn answer(&mut self) {
        self.last_claim = pg::now_timestamp();
    }

    /// What a session is told that waits for it.
    pub fn explain(&self) -> String {
        let server = self.server.text();
        match self.last_error() {
            None => format!("Server \"{server}\" was asked and has not answered."),
            Some(error) => {
                let since = pg::format_ms((self.since + pg::TIMESTAMP_EPOCH_US) / 1000);
                format!("Server \"{server}\" has not answered since {since}: {error}.")
            }
        }
    }
}

/// All of them. Those of all zeroes are free.
pub struct RemoteServers(Locked<[RemoteServer; REMOTE_SERVERS]>);

impl RemoteServers {
    /// Makes them in zeroed memory.
    ///
    /// # Safety
    /// `this` points to zeroed memory.
    pub unsafe fn init(this: *mut Self, lock: Lock) {
        // SAFETY: a field of what the caller owns. All zeroes is a free entry.
        unsafe { Locked::init(&raw mut (*this).0, lock) };
    }

    /// Tells of a server; the closure must do nothing that can fail or wait. The number is
    /// what [`Self::find`] finds it by.
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
                // All zeroes is free, and changed longest ago.
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

    /// What is known of a server of this database, by the number that it was told with.
    pub fn find(&self, number: u32) -> Option<RemoteServer> {
        let here = pg::database();
        self.0.read(|servers| {
            let entry = servers.get(number as usize)?;
            (entry.state != RemoteServerState::Free && entry.database == here).then_some(*entry)
        })
    }

    /// No connection of a database's allocator is left.
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

    /// Nothing is known of servers of a database any more.
    pub fn forget(&self, database: u32) {
        self.0.with(|servers| {
            for entry in servers {
                if entry.database == database {
                    entry.state = RemoteServerState::Free;
                }
            }
        });
    }

    /// All that is known of servers of a database.
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
