//! History of the ids issued to many sessions, recorded outside of the servers while these are
//! subjected to faults, and checks of its consistency.
//!
//! Each call is recorded with its start, its end and its ids, as contiguous ranges. Whenever no
//! call is in flight, [`History::settle`] checks and counts the new calls and discards them; only
//! the merged ranges are kept. So memory use depends on the number of calls between two settlements
//! and on the number of gaps, not on the number of ids.
//!
//! Checks for each source of ids, which may span several servers:
//! - I3, I7: no id is issued twice in an incarnation of a tag, or by the snowflake generators,
//!   regardless of the server.
//! - I4: the ids of a call increase. A call that began after another had ended on the same server
//!   has larger ids, in whichever session.
//! - I1, I8: each id is claimed in the table (or within the reserved time), both on the issuing
//!   server and on its source server. None is above `max_value`, below the start of the
//!   incarnation, or skipped by an edit.
//! - Gapless series: no number is missing, but of transactions whose outcome their clients do not
//!   know. As lost ids, they are counted.
//! - I6: no issued id is still cached, and none is cached by two servers. Ids claimed but neither
//!   issued nor cached are counted as lost. The caller decides whether that is acceptable: see
//!   [`Window::unexplained`].
//!
//! A tag may start a new incarnation below issued ids: [`History::begin_incarnation`].

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
pub use book::{Cut, Fault, Timed, Window};
pub use claims::{Claimed, Claims};
pub use note::{Caller, IdRange, Source};
use note::{Note, Outage, Outages};

/// Ids issued to all sessions.
pub struct History {
    dir: PathBuf,
    began: Instant,
    servers: usize,
    sources: Vec<Source>,
    /// Calls of each session since the last settlement.
    notes: Vec<Mutex<Vec<Note>>>,
    under_way: AtomicUsize,
    outages: Mutex<Vec<Outage>>,
    books: Mutex<Vec<Book>>,
    /// Calls of the last settlement, to analyze a fault.
    settled: Mutex<Vec<Note>>,
}

impl History {
    /// An empty history of `servers` servers. Nothing was issued from the sources, and tags start
    /// at 1. A fault is written to a file in `dir`.
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

    /// The sources. Elsewhere a source is identified by its index in this slice.
    #[must_use]
    pub fn sources(&self) -> &[Source] {
        &self.sources
    }

    /// Records a call for `asked` ids.
    ///
    /// # Errors
    /// Errors of the call.
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

    /// Runs work during which a server does not respond.
    pub fn while_down<T>(&self, server: usize, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.was_down(server, start);
        result
    }

    /// Records that a server did not respond from `since` until now.
    pub fn was_down(&self, server: usize, since: Instant) {
        self.outages.lock().push(Outage {
            server,
            from: since,
            to: Instant::now(),
        });
    }

    /// Records that an edit has raised a tag's `max_id`.
    pub fn skip(&self, source: usize, from: i64, to: i64) {
        if from < to {
            self.books.lock()[source].skipped.push(IdRange {
                first: from,
                last: to - 1,
            });
        }
    }

    /// Starts a new incarnation: all ids from `start` on may be issued again. Call it between two
    /// settlements, with no call in between.
    pub fn begin_incarnation(&self, source: usize, start: i64) {
        self.books.lock()[source] = Book::new(self.servers, start);
    }

    /// Restarts a server cleanly, regardless of the sessions. This resets the counters of the
    /// status view.
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

    /// For each tag: ids counted as lost by the status view, and an upper bound of claimed
    /// segments.
    fn look(&self, server: &Server) -> Vec<Option<(u64, u64)>> {
        let mut session = server.session();
        let sql = "SELECT coalesce(ids_lost, 0), s.max_id / a.step
                   FROM leaf_id.tags_detail s JOIN leaf_id.leaf_alloc a ON biz_tag = tag
                   WHERE tag = $1";
        let mut look = |tag: &str| {
            let row = session.query_one(sql, &[&tag]).unwrap();
            let figure = |column| row.get::<_, i64>(column).unsigned_abs();
            (figure(0), figure(1))
        };
        let sources = self.sources.iter();
        let sources = sources.map(|source| source.tag().map(&mut look));
        sources.collect()
    }

    /// Checks and counts the calls since the last settlement, for each source. No call may be in
    /// flight.
    ///
    /// # Panics
    /// On the first fault.
    #[track_caller]
    pub fn settle(&self, session: &mut Session) -> Vec<Window> {
        let claimed = Claimed::read(session, &self.sources);
        let claims: Vec<_> = claimed.into_iter().map(Claims::from).collect();
        self.settle_by(&claims)
    }

    /// As [`History::settle`], if the tags of all servers are sourced from a central server.
    /// Servers beyond those of `sessions` are gone with all their state.
    ///
    /// # Panics
    /// On the first fault.
    #[track_caller]
    pub fn settle_fleet(&self, sessions: &mut [Session], central: &mut Session) -> Vec<Window> {
        // All servers before the central one, which has claimed their ids for them.
        let servers = sessions.iter_mut();
        let servers: Vec<_> = servers
            .map(|session| Claimed::read(session, &self.sources))
            .collect();
        let central = Claimed::read(central, &self.sources);
        let claims = self.sources.iter().enumerate().map(|(place, source)| {
            let mut servers: Vec<_> = servers.iter().map(|read| read[place].clone()).collect();
            servers.resize(self.servers, Claimed::GONE);
            Claims {
                end: source.tag().map_or(i64::MAX, |_| central[place].end),
                servers,
            }
        });
        let claims: Vec<_> = claims.collect();
        self.settle_by(&claims)
    }

    #[track_caller]
    fn settle_by(&self, claims: &[Claims]) -> Vec<Window> {
        match self.check(claims) {
            Ok(windows) => windows,
            Err((source, fault)) => self.fail(&format!("{source}: {fault}")),
        }
    }

    /// As [`History::settle`], with the claims of each source.
    ///
    /// # Errors
    /// The first fault.
    ///
    /// # Panics
    /// If a call is in flight.
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

    /// Writes the history to a file, and fails the test.
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
