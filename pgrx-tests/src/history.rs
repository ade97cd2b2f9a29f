//! What many sessions were given, noted outside of the servers while anything may happen to
//! them, and whether that can be right.
//!
//! Each call is noted with its start, its end and its ids, as ranges without a gap. Whenever
//! no call is under way, [`History::settle`] checks what came since the last time, counts
//! it, and forgets the calls; only the merged ranges stay. So the memory it takes goes with
//! what happens between two settlements and with the number of gaps, not with the number
//! of ids.
//!
//! What is checked of every source of ids, which may be several servers':
//! - I3, I7: no id twice in the incarnation of a tag, nor of the snowflake generators, whichever
//!   servers issued it.
//! - I4: the ids of one call increase, and those of a call that began after another had
//!   ended on the same server are larger, whichever sessions made them.
//! - I1, I8: every id is claimed in the table (or lies within the reserved time), in the
//!   server's own and in the one it comes from; none is above `max_value`, below the start
//!   of the incarnation, or among those that an edit skipped.
//! - I6: no id that was issued is still cached anywhere, and none is cached by two servers;
//!   and what was claimed and is neither issued nor cached is counted as lost. Whether that
//!   may be, the caller decides: see [`Window::unexplained`].
//!
//! A tag may begin a new incarnation below ids that were issued: [`History::begin_incarnation`].

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use std::{fs, mem};

use parking_lot::Mutex;

use crate::server::Server;
use crate::session::{Failure, Session};

mod book;
mod claims;
mod note;

use book::Book;
pub use book::{Cut, Fault, Window};
pub use claims::{Claimed, Claims};
pub use note::{Caller, IdRange, Source};
use note::{Note, Outage, Outages};

/// What all sessions were given.
pub struct History {
    dir: PathBuf,
    began: Instant,
    servers: usize,
    sources: Vec<Source>,
    /// What each session did since the last settlement.
    notes: Vec<Mutex<Vec<Note>>>,
    under_way: AtomicUsize,
    outages: Mutex<Vec<Outage>>,
    books: Mutex<Vec<Book>>,
    /// What was settled last, for who wants to know how it came to a fault.
    settled: Mutex<Vec<Note>>,
}

impl History {
    /// An empty one of so many servers, of sources from which nothing was issued and tags
    /// that start at 1. If something is wrong, it is written to a file in the directory.
    #[must_use]
    pub fn new(dir: &Path, servers: usize, sources: Vec<Source>, sessions: usize) -> Self {
        Self {
            dir: dir.to_path_buf(),
            began: Instant::now(),
            servers,
            notes: (0..sessions).map(|_| Mutex::default()).collect(),
            under_way: AtomicUsize::new(0),
            outages: Mutex::default(),
            books: Mutex::new(sources.iter().map(|_| Book::new(servers, 1)).collect()),
            settled: Mutex::default(),
            sources,
        }
    }

    /// Where the ids come from; elsewhere a source is given by its place in here.
    #[must_use]
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Makes a call for so many ids, and notes it.
    ///
    /// # Errors
    /// Those of the call.
    pub fn call(
        &self,
        caller: Caller,
        source: usize,
        kind: &'static str,
        asked: u32,
        make: impl FnOnce() -> Result<Vec<IdRange>, Failure>,
    ) -> Result<(), Failure> {
        self.under_way.fetch_add(1, Ordering::SeqCst);
        let start = Instant::now();
        let outcome = make();
        let end = Instant::now();
        let result = outcome.as_ref().map(|_| ()).map_err(Clone::clone);
        self.notes[caller.session].lock().push(Note {
            caller,
            source,
            kind,
            start,
            end,
            asked,
            outcome,
        });
        self.under_way.fetch_sub(1, Ordering::SeqCst);
        result
    }

    /// Does what a server does not answer during.
    pub fn while_down<T>(&self, server: usize, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.was_down(server, start);
        result
    }

    /// A server did not answer since then, and does now.
    pub fn was_down(&self, server: usize, since: Instant) {
        self.outages.lock().push(Outage {
            server,
            from: since,
            to: Instant::now(),
        });
    }

    /// An edit has raised a tag's `max_id` from one value to another.
    pub fn skip(&self, source: usize, from: i64, to: i64) {
        if from < to {
            self.books.lock()[source].skipped.push(IdRange {
                first: from,
                last: to - 1,
            });
        }
    }

    /// The source starts anew: all ids from `start` on may come again. Between two
    /// settlements, with no call in between.
    pub fn begin_incarnation(&self, source: usize, start: i64) {
        self.books.lock()[source] = Book::new(self.servers, start);
    }

    /// Stops a server cleanly and starts it again, whatever the sessions do. The status
    /// view begins to count anew then.
    pub fn restart(&self, number: usize, server: &Server) {
        let before = self.look(server);
        self.while_down(number, || server.restart());
        let after = self.look(server);
        let mut books = self.books.lock();
        for (book, (before, after)) in books.iter_mut().zip(before.into_iter().zip(after)) {
            let (Some((dropped, segments)), Some((_, segments_after))) = (before, after) else {
                continue;
            };
            let page = &mut book.pages[number];
            page.read_dropped(dropped);
            page.dropped_seen = 0;
            let switches = segments_after - segments + 2;
            page.unseen += switches * self.notes.len() as u64;
        }
    }

    /// Of each tag: ids that the status view counts as lost, and how many segments were
    /// claimed at most.
    fn look(&self, server: &Server) -> Vec<Option<(u64, u64)>> {
        let mut session = server.session();
        let sql = "SELECT coalesce(ids_lost, 0), s.max_id / a.step
                   FROM leaf_segment_status s JOIN leaf_id.leaf_alloc a ON biz_tag = tag
                   WHERE tag = $1";
        let mut look = |tag: &String| {
            let row = session.query_one(sql, &[tag]).unwrap();
            let figure = |column| row.get::<_, i64>(column).unsigned_abs();
            (figure(0), figure(1))
        };
        let sources = self.sources.iter().map(|source| match source {
            Source::Tag(tag) => Some(look(tag)),
            Source::Snowflake => None,
        });
        sources.collect()
    }

    /// Checks and counts what happened since the last time, for each source. No call may
    /// be under way.
    ///
    /// # Panics
    /// At the first fault.
    #[track_caller]
    pub fn settle(&self, session: &mut Session) -> Vec<Window> {
        let claims: Vec<_> = self
            .sources
            .iter()
            .map(|source| Claims::from(Claimed::read(session, source)))
            .collect();
        self.settle_by(&claims)
    }

    /// As [`History::settle`], where the tags of all servers are sourced from another one.
    /// Servers that come after those of the sessions are gone, with all they had.
    ///
    /// # Panics
    /// At the first fault.
    #[track_caller]
    pub fn settle_fleet(&self, sessions: &mut [Session], central: &mut Session) -> Vec<Window> {
        let claims: Vec<_> = self
            .sources
            .iter()
            .map(|source| {
                // Of all servers before the central server: what they have, it has given them.
                let servers = sessions.iter_mut();
                let mut servers: Vec<_> = servers
                    .map(|session| Claimed::read(session, source))
                    .collect();
                servers.resize(self.servers, Claimed::GONE);
                let end = match source {
                    Source::Tag(tag) => central.max_id(tag),
                    Source::Snowflake => i64::MAX,
                };
                Claims { end, servers }
            })
            .collect();
        self.settle_by(&claims)
    }

    #[track_caller]
    fn settle_by(&self, claims: &[Claims]) -> Vec<Window> {
        match self.check(claims) {
            Ok(windows) => windows,
            Err((source, fault)) => self.fail(&format!("{source}: {fault}")),
        }
    }

    /// As [`History::settle`], by what is claimed of each source.
    ///
    /// # Errors
    /// The first fault.
    ///
    /// # Panics
    /// When a call is under way.
    pub fn check(&self, claims: &[Claims]) -> Result<Vec<Window>, (Source, Fault)> {
        let under_way = self.under_way.load(Ordering::SeqCst);
        assert_eq!(under_way, 0, "settled while calls are under way");
        let mut settled = self.settled.lock();
        *settled = self
            .notes
            .iter()
            .flat_map(|notes| mem::take(&mut *notes.lock()))
            .collect();
        let outages = Outages(mem::take(&mut *self.outages.lock()));
        let mut books = self.books.lock();
        self.sources
            .iter()
            .zip(books.iter_mut().zip(claims))
            .enumerate()
            .map(|(place, (source, (book, claims)))| {
                let notes: Vec<_> = settled.iter().filter(|n| n.source == place).collect();
                book.settle(source, &notes, claims, &outages)
                    .map_err(|fault| (source.clone(), fault))
            })
            .collect()
    }

    /// Writes what is known to a file, and ends the test.
    ///
    /// # Panics
    /// Always.
    #[track_caller]
    pub fn fail(&self, reason: &str) -> ! {
        let path = self.dir.join("history");
        let written = self.write(&path);
        panic!(
            "{reason}\n(the history is in {}: {written:?})",
            path.display()
        );
    }

    fn write(&self, path: &Path) -> std::io::Result<()> {
        let mut file = std::io::BufWriter::new(fs::File::create(path)?);
        for (source, book) in self.sources.iter().zip(&*self.books.lock()) {
            writeln!(file, "# {source} from {} on, issued until now:", book.start)?;
            for range in &book.issued {
                writeln!(file, "# {}..{}", range.first, range.last)?;
            }
        }
        writeln!(
            file,
            "# start_us end_us server session source kind asked: ids"
        )?;
        let us = |at: Instant| at.saturating_duration_since(self.began).as_micros();
        let settled = self.settled.lock();
        let open: Vec<_> = self.notes.iter().map(Mutex::lock).collect();
        for note in settled.iter().chain(open.iter().flat_map(|notes| &**notes)) {
            write!(
                file,
                "{} {} {} {} {} {} {}:",
                us(note.start),
                us(note.end),
                note.caller.server,
                note.caller.session,
                self.sources[note.source],
                note.kind,
                note.asked
            )?;
            match &note.outcome {
                Ok(ranges) => {
                    for range in ranges {
                        write!(file, " {}..{}", range.first, range.last)?;
                    }
                    writeln!(file)?;
                }
                Err(failure) => writeln!(file, " {} {}", failure.state, failure.message)?,
            }
        }
        file.flush()
    }
}

#[cfg(test)]
mod tests;
