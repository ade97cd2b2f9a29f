//! How the servers that feed tags are getting on, as the allocators tell.
//!
//! Written by the allocator of the database when something changes, read by sessions that
//! have waited in vain and by the status views. Under the directory lock, exclusively and
//! shared.

use super::{Area, Text};
use crate::pg::{self, Name};

/// Servers that can be told of at one time, all databases together. Of more the one that
/// changed longest ago is forgotten, nothing else.
pub const LINKS: usize = 64;
/// What is kept of an error, in bytes.
const ERROR_TEXT: usize = 191;

/// How an allocator stands with a server.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum LinkState {
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

/// A server that feeds tags of a database.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct LinkStatus {
    database: u32,
    state: LinkState,
    server: Name,
    /// Microseconds since 2000.
    since: i64,
    /// Microseconds since 2000; 0 for never.
    last_claim: i64,
    /// Attempts since it is away.
    attempts: u32,
    last_error: Text<ERROR_TEXT>,
}

impl LinkStatus {
    /// Its name.
    pub fn server(&self) -> Name {
        self.server
    }

    /// How it stands.
    pub fn state(&self) -> LinkState {
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
        (self.state == LinkState::Away).then(|| self.last_error.get())
    }

    /// Whether it is away for what is said in these words.
    pub fn has_said(&self, error: &str) -> bool {
        self.state == LinkState::Away && self.last_error == Text::new(error)
    }

    /// Changes the state. Where it stays the same, so does the time.
    pub fn become_state(&mut self, state: LinkState) {
        if self.state != state {
            self.state = state;
            self.since = pg::now_timestamp();
            self.attempts = 0;
        }
    }

    /// It was tried in vain.
    pub fn fail(&mut self, error: &str) {
        self.become_state(LinkState::Away);
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

impl Area {
    /// Tells of a server; the closure must do nothing that can fail or wait. The number is
    /// what [`Self::link`] finds it by.
    pub fn tell_link(
        &self,
        database: u32,
        server: &Name,
        tell: impl FnOnce(&mut LinkStatus),
    ) -> u32 {
        let _held = self.write_directory();
        // SAFETY: the directory is held exclusively.
        let links = unsafe { &mut *self.links.get() };
        let is_it = |link: &LinkStatus| {
            link.state != LinkState::Free && link.database == database && link.server == *server
        };
        let changed_at = |link: &LinkStatus| link.since.max(link.last_claim);
        let known = links.iter().position(is_it);
        let number = known.unwrap_or_else(|| {
            // All zeroes is free, and changed longest ago.
            let oldest = (0..LINKS).min_by_key(|number| links.get(*number).map(changed_at));
            oldest.unwrap_or(0)
        });
        if let Some(link) = links.get_mut(number) {
            if known.is_none() {
                *link = LinkStatus {
                    database,
                    state: LinkState::Closed,
                    server: *server,
                    since: pg::now_timestamp(),
                    last_claim: 0,
                    attempts: 0,
                    last_error: Text::EMPTY,
                };
            }
            tell(link);
        }
        u32::try_from(number).unwrap_or(0)
    }

    /// What is known of a server of this database, by the number that it was told with.
    pub fn link(&self, number: u32) -> Option<LinkStatus> {
        let _held = self.read_directory();
        // SAFETY: the directory is held shared.
        let links = unsafe { &*self.links.get() };
        let link = links.get(number as usize)?;
        (link.state != LinkState::Free && link.database == pg::database()).then_some(*link)
    }

    /// No connection of a database's allocator is left.
    pub fn close_links(&self, database: u32) {
        let _held = self.write_directory();
        // SAFETY: the directory is held exclusively.
        for link in unsafe { &mut *self.links.get() } {
            if link.database == database
                && matches!(link.state, LinkState::Connecting | LinkState::Connected)
            {
                link.become_state(LinkState::Closed);
            }
        }
    }

    /// Nothing is known of servers of a database any more.
    pub(super) fn forget_links(&self, database: u32) {
        let _held = self.write_directory();
        // SAFETY: the directory is held exclusively.
        for link in unsafe { &mut *self.links.get() } {
            if link.database == database {
                link.state = LinkState::Free;
            }
        }
    }

    /// All that is known of servers of a database.
    pub fn links_of(&self, database: u32) -> Vec<LinkStatus> {
        let mut found = Vec::with_capacity(LINKS);
        let _held = self.read_directory();
        // SAFETY: the directory is held shared.
        let links = unsafe { &*self.links.get() };
        found.extend(
            links
                .iter()
                .filter(|link| link.state != LinkState::Free && link.database == database),
        );
        found
    }
}
