//! What many sessions were given, noted outside of the servers while anything may happen to
//! them, and whether that can be right.
//!
//! Each call is noted with its start, its end and its ids, as runs without a gap. Whenever
//! no call is under way, [`History::settle`] checks what came since the last time, counts
//! it, and forgets the calls; only the merged runs stay. So the memory it takes goes with
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

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::Write;
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::checks::wait_until;
use crate::server::Server;
use crate::session::{Failure, Session};

/// How long a claim may take that was under way when the sessions fell silent.
const CLAIM_LIMIT: Duration = Duration::from_secs(30);

/// Where ids come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A tag of the database that [`History::settle`] is given a session of.
    Tag(String),
    /// The snowflake generator.
    Snowflake,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => write!(f, "tag {tag}"),
            Self::Snowflake => f.write_str("snowflake"),
        }
    }
}

/// Ids without a gap between them, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// The smallest.
    pub first: i64,
    /// The largest.
    pub last: i64,
}

impl Run {
    /// The runs of some ids, in the order they came.
    #[must_use]
    pub fn of(ids: &[i64]) -> Vec<Self> {
        let mut runs: Vec<Self> = Vec::new();
        for &id in ids {
            match runs.last_mut() {
                Some(run) if run.last.checked_add(1) == Some(id) => run.last = id,
                _ => runs.push(Self {
                    first: id,
                    last: id,
                }),
            }
        }
        runs
    }

    fn len(self) -> u64 {
        self.last.abs_diff(self.first) + 1
    }

    fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

fn total(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.len()).sum()
}

/// Who makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Which server it asks.
    pub server: usize,
    /// Which session it is, of those of all servers.
    pub session: usize,
}

/// A call, as its session saw it.
struct Note {
    caller: Caller,
    source: usize,
    kind: &'static str,
    start: Instant,
    end: Instant,
    asked: u32,
    outcome: Result<Vec<Run>, Failure>,
}

/// What one server says of a source while no call is under way.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// Ids from here on are not claimed, or not reserved.
    pub end: i64,
    /// The last id there may ever be.
    pub max_value: i64,
    /// What is claimed and was not issued yet.
    pub cached: Vec<Run>,
    /// What the status view counts as lost since the server started.
    pub dropped: u64,
}

/// What all servers say of a source.
#[derive(Clone, Debug)]
pub struct Claims {
    /// Ids from here on are not claimed by anybody.
    pub end: i64,
    /// What each server says.
    pub servers: Vec<Claimed>,
}

impl From<Claimed> for Claims {
    fn from(claimed: Claimed) -> Self {
        Self {
            end: claimed.end,
            servers: vec![claimed],
        }
    }
}

impl Claimed {
    /// Of a server that cannot be asked any more: what it has issued the others must not.
    const GONE: Self = Self {
        end: i64::MAX,
        max_value: i64::MAX,
        cached: Vec::new(),
        dropped: 0,
    };

    /// Asks the server. A claim that is under way is waited for.
    ///
    /// # Panics
    /// When it never ends, or the tag is not there.
    #[track_caller]
    pub fn read(session: &mut Session, source: &Source) -> Self {
        match source {
            Source::Tag(tag) => Self::read_tag(session, tag),
            Source::Snowflake => {
                let sql = "SELECT leaf_snowflake_max(reserved_until) FROM leaf_snowflake_status";
                Self {
                    // Closed: all it could say is that it issues nothing.
                    end: session
                        .value::<Option<i64>>(sql)
                        .map_or(i64::MAX, |last| last + 1),
                    max_value: i64::MAX,
                    cached: Vec::new(),
                    dropped: 0,
                }
            }
        }
    }

    #[track_caller]
    fn read_tag(session: &mut Session, tag: &str) -> Self {
        let sql = "SELECT max_id, max_value, current_next, current_last, spare_first, spare_last,
                       coalesce(ids_lost, 0)
                   FROM leaf_segment_status
                   WHERE tag = $1 AND spare_state IS DISTINCT FROM 'in flight'";
        let mut row = None;
        wait_until(CLAIM_LIMIT, "the last claim to end", || {
            row = session.query_opt(sql, &[&tag]).unwrap();
            row.is_some()
        });
        // As no session asks for ids, nothing has begun since: what the row says and what
        // the shared memory says belong together, if they are read once more.
        let row = session.query_one(sql, &[&tag]).unwrap();
        let run = |first, last| {
            let first: Option<i64> = row.get(first);
            first.map(|first| Run {
                first,
                last: row.get(last),
            })
        };
        Self {
            end: row.get(0),
            max_value: row.get(1),
            cached: [run(2, 3), run(4, 5)].into_iter().flatten().collect(),
            dropped: row.get::<_, i64>(6).unsigned_abs(),
        }
    }
}

/// What cannot be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A call that succeeded with fewer ids, or more, than it asked for.
    Count {
        /// Ids asked for.
        asked: u32,
        /// Ids got.
        got: u64,
    },
    /// An id that was issued twice.
    Twice(i64),
    /// An id that is smaller than one that was issued before it was asked for.
    Order {
        /// The smaller.
        id: i64,
        /// What had been issued.
        after: i64,
    },
    /// An id that nobody had claimed.
    Unclaimed(i64),
    /// An id that was issued and is still cached, to be issued again.
    StillCached(i64),
    /// An id that two servers have cached, to be issued by both.
    CachedTwice(i64),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count { asked, got } => write!(f, "{got} ids for {asked}"),
            Self::Twice(id) => write!(f, "{id} was issued twice"),
            Self::Order { id, after } => write!(f, "{id} was issued after {after} had been"),
            Self::Unclaimed(id) => write!(f, "{id} was issued and is not claimed"),
            Self::StillCached(id) => write!(f, "{id} was issued and is still cached"),
            Self::CachedTwice(id) => write!(f, "{id} is cached by two servers"),
        }
    }
}

/// A call that failed. It may have taken all that it asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Who made it.
    pub caller: Caller,
    /// What it was.
    pub kind: &'static str,
    /// How many ids it wanted.
    pub asked: u32,
    /// How long it took while its server was up.
    pub took: Duration,
    /// How it failed.
    pub failure: Failure,
}

/// What happened to one source between two settlements.
#[derive(Debug, PartialEq, Eq)]
pub struct Window {
    /// Ids issued, by kind of call.
    pub ids: BTreeMap<&'static str, u64>,
    /// Calls that failed.
    pub cut: Vec<Cut>,
    /// Ids that were claimed and are neither issued nor cached. Less than nothing, where
    /// ids that seemed lost at the last settlement came back.
    pub lost: i64,
    /// Of those, the ones that the status view counts as lost.
    pub dropped: u64,
    /// How many more it may have counted, before a restart, while nobody looked.
    pub unseen: u64,
    /// The longest call that succeeded, without the time in which the server was down.
    pub longest_call: Duration,
    /// The longest time without an id of one server while somebody asked it and it was up.
    pub longest_silence: Duration,
}

impl Window {
    /// How many ids were lost that neither a cut call may have taken nor the status view
    /// tells of.
    #[must_use]
    pub fn unexplained(&self) -> u64 {
        let cut: u64 = self.cut.iter().map(|cut| u64::from(cut.asked)).sum();
        let explained = cut + self.dropped + self.unseen;
        u64::try_from(self.lost)
            .unwrap_or(0)
            .saturating_sub(explained)
    }
}

/// A time in which a server could not answer.
struct Outage {
    server: usize,
    from: Instant,
    to: Instant,
}

/// All such times.
struct Outages(Vec<Outage>);

impl Outages {
    /// How long something took while the server was up.
    fn up(&self, server: usize, start: Instant, end: Instant) -> Duration {
        let outages = self.0.iter().filter(|outage| outage.server == server);
        let down: Duration = outages
            .map(|outage| {
                end.min(outage.to)
                    .saturating_duration_since(start.max(outage.from))
            })
            .sum();
        end.saturating_duration_since(start).saturating_sub(down)
    }
}

/// What is known of one source on one server for good.
#[derive(Clone)]
struct Page {
    /// The largest id it has issued.
    highest: i64,
    /// The status view's count when it was last read, and what it has counted since the
    /// last settlement.
    dropped_seen: u64,
    dropped: u64,
    /// How many it may have counted at most between our last look and a stop: an id for
    /// each session, when a segment takes over from another.
    unseen: u64,
}

impl Page {
    /// The count begins anew when the server starts.
    fn read_dropped(&mut self, count: u64) {
        self.dropped += count.checked_sub(self.dropped_seen).unwrap_or(count);
        self.dropped_seen = count;
    }
}

/// What is known of one source for good.
struct Book {
    /// The first id of its incarnation.
    start: i64,
    /// Everything issued, sorted and merged.
    issued: Vec<Run>,
    /// What edits of `max_id` passed over.
    skipped: Vec<Run>,
    /// Ids lost until the last settlement.
    lost: i64,
    /// By server.
    pages: Vec<Page>,
}

impl Book {
    fn new(servers: usize, start: i64) -> Self {
        let page = Page {
            highest: start - 1,
            dropped_seen: 0,
            dropped: 0,
            unseen: 0,
        };
        Self {
            start,
            issued: Vec::new(),
            skipped: Vec::new(),
            lost: 0,
            pages: vec![page; servers],
        }
    }

    fn settle(
        &mut self,
        source: &Source,
        notes: &[&Note],
        claims: &Claims,
        outages: &Outages,
    ) -> Result<Window, Fault> {
        for note in notes {
            note.check()?;
        }
        self.add(notes)?;
        self.check_claims(notes, claims)?;
        let mut longest_silence = Duration::ZERO;
        for (server, page) in self.pages.iter_mut().enumerate() {
            let notes: Vec<_> = of_server(notes, server).collect();
            check_order(&notes, page.highest)?;
            let issued = answered(&notes).flat_map(|(_, runs)| runs);
            page.highest = issued.map(|run| run.last).fold(page.highest, i64::max);
            page.read_dropped(claims.servers[server].dropped);
            longest_silence = longest_silence.max(silence(server, &notes, outages));
            // Everything cached is yet to come.
            let mut cached = claims.servers[server].cached.iter();
            if let Some(run) = cached.find(|run| run.first <= page.highest) {
                return Err(Fault::StillCached(run.first));
            }
        }
        self.check_cached(claims)?;
        let lost = match source {
            Source::Tag(_) => self.lost_of(claims),
            // Its ids are points in time: there are more than will be used.
            Source::Snowflake => 0,
        };
        let mut ids = BTreeMap::new();
        for (note, runs) in answered(notes) {
            *ids.entry(note.kind).or_default() += total(runs);
        }
        let pages = self.pages.iter_mut();
        let (dropped, unseen) = pages.fold((0, 0), |(dropped, unseen), page| {
            (
                dropped + mem::take(&mut page.dropped),
                unseen + mem::take(&mut page.unseen),
            )
        });
        Ok(Window {
            ids,
            cut: notes.iter().filter_map(|note| note.cut(outages)).collect(),
            lost: lost - mem::replace(&mut self.lost, lost),
            dropped,
            unseen,
            longest_call: answered(notes)
                .map(|(note, _)| note.up(outages))
                .max()
                .unwrap_or_default(),
            longest_silence,
        })
    }

    /// Enters the new ids, each of which must be new.
    fn add(&mut self, notes: &[&Note]) -> Result<(), Fault> {
        let new = answered(notes).flat_map(|(_, runs)| runs);
        self.issued.extend(new);
        self.issued.sort_unstable();
        let mut merged: Vec<Run> = Vec::new();
        for &run in &self.issued {
            match merged.last_mut() {
                Some(last) if run.first <= last.last => return Err(Fault::Twice(run.first)),
                Some(last) if run.first == last.last + 1 => last.last = run.last,
                _ => merged.push(run),
            }
        }
        self.issued = merged;
        Ok(())
    }

    fn check_claims(&self, notes: &[&Note], claims: &Claims) -> Result<(), Fault> {
        for (note, run) in answered(notes).flat_map(|(n, runs)| runs.iter().map(move |r| (n, r))) {
            let claimed = &claims.servers[note.caller.server];
            let last = (claimed.end.min(claims.end) - 1).min(claimed.max_value);
            if run.first < self.start.max(1) {
                return Err(Fault::Unclaimed(run.first));
            }
            if run.last > last {
                return Err(Fault::Unclaimed(run.last));
            }
            if let Some(skipped) = self.skipped.iter().find(|skipped| run.overlaps(**skipped)) {
                return Err(Fault::Unclaimed(run.first.max(skipped.first)));
            }
        }
        Ok(())
    }

    /// What is cached is claimed, and nobody else's.
    fn check_cached(&self, claims: &Claims) -> Result<(), Fault> {
        let cached = claims.servers.iter().flat_map(|claimed| &claimed.cached);
        let mut cached: Vec<_> = cached.copied().collect();
        cached.sort_unstable();
        if let Some(pair) = cached.windows(2).find(|pair| pair[0].overlaps(pair[1])) {
            return Err(Fault::CachedTwice(pair[1].first));
        }
        for run in cached {
            if run.last >= claims.end {
                return Err(Fault::Unclaimed(run.last));
            }
            // The first that does not lie below.
            let next = self
                .issued
                .partition_point(|issued| issued.last < run.first);
            if let Some(issued) = self.issued.get(next).filter(|issued| issued.overlaps(run)) {
                return Err(Fault::StillCached(run.first.max(issued.first)));
            }
        }
        Ok(())
    }

    fn lost_of(&self, claims: &Claims) -> i64 {
        let cached = claims.servers.iter().map(|claimed| total(&claimed.cached));
        let accounted = total(&self.issued) + total(&self.skipped) + cached.sum::<u64>();
        claims.end - self.start - i64::try_from(accounted).unwrap_or(i64::MAX)
    }
}

impl Note {
    fn check(&self) -> Result<(), Fault> {
        let Ok(runs) = &self.outcome else {
            return Ok(());
        };
        let got = total(runs);
        if got != u64::from(self.asked) {
            let asked = self.asked;
            return Err(Fault::Count { asked, got });
        }
        for pair in runs.windows(2) {
            if pair[1].first == pair[0].last {
                return Err(Fault::Twice(pair[1].first));
            }
            if pair[1].first < pair[0].last {
                return Err(Fault::Order {
                    id: pair[1].first,
                    after: pair[0].last,
                });
            }
        }
        Ok(())
    }

    fn cut(&self, outages: &Outages) -> Option<Cut> {
        let failure = self.outcome.as_ref().err()?;
        Some(Cut {
            caller: self.caller,
            kind: self.kind,
            asked: self.asked,
            took: self.up(outages),
            failure: failure.clone(),
        })
    }

    /// How long it took while its server was up.
    fn up(&self, outages: &Outages) -> Duration {
        outages.up(self.caller.server, self.start, self.end)
    }
}

/// Calls that got ids.
fn answered<'a>(notes: &'a [&'a Note]) -> impl Iterator<Item = (&'a Note, &'a [Run])> {
    notes.iter().filter_map(|note| {
        let runs = note.outcome.as_ref().ok()?;
        (!runs.is_empty()).then_some((*note, &**runs))
    })
}

/// Those of one server.
fn of_server<'a>(notes: &'a [&'a Note], server: usize) -> impl Iterator<Item = &'a Note> {
    let notes = notes.iter().copied();
    notes.filter(move |note| note.caller.server == server)
}

/// I4: a call that began after another had ended has the larger ids. Everything up to
/// `highest` was issued before any of these calls.
fn check_order(notes: &[&Note], mut highest: i64) -> Result<(), Fault> {
    let mut by_start: Vec<_> = answered(notes).collect();
    let mut by_end = by_start.clone();
    by_start.sort_by_key(|(note, _)| note.start);
    by_end.sort_by_key(|(note, _)| note.end);
    let mut ended = by_end.iter().peekable();
    for (note, runs) in by_start {
        while let Some((_, earlier)) = ended.next_if(|(earlier, _)| earlier.end < note.start) {
            highest = highest.max(earlier[earlier.len() - 1].last);
        }
        let id = runs[0].first;
        if id <= highest {
            return Err(Fault::Order { id, after: highest });
        }
    }
    Ok(())
}

/// The longest time without an id of a server.
fn silence(server: usize, notes: &[&Note], outages: &Outages) -> Duration {
    let mut ends: Vec<_> = answered(notes).map(|(note, _)| note.end).collect();
    ends.extend(notes.iter().map(|note| note.start).min());
    ends.extend(notes.iter().map(|note| note.end).max());
    ends.sort_unstable();
    ends.windows(2)
        .map(|pair| outages.up(server, pair[0], pair[1]))
        .max()
        .unwrap_or_default()
}

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
        make: impl FnOnce() -> Result<Vec<Run>, Failure>,
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
            self.books.lock()[source].skipped.push(Run {
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

    /// As [`History::settle`], where the tags of all servers are fed from another one.
    /// Servers that come after those of the sessions are gone, with all they had.
    ///
    /// # Panics
    /// At the first fault.
    #[track_caller]
    pub fn settle_fleet(&self, sessions: &mut [Session], centre: &mut Session) -> Vec<Window> {
        let claims: Vec<_> = self
            .sources
            .iter()
            .map(|source| {
                // Of all servers before the centre: what they have, it has given them.
                let servers = sessions.iter_mut();
                let mut servers: Vec<_> = servers
                    .map(|session| Claimed::read(session, source))
                    .collect();
                servers.resize(self.servers, Claimed::GONE);
                let end = match source {
                    Source::Tag(tag) => centre.max_id(tag),
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
            for run in &book.issued {
                writeln!(file, "# {}..{}", run.first, run.last)?;
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
                Ok(runs) => {
                    for run in runs {
                        write!(file, " {}..{}", run.first, run.last)?;
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
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A history of one tag and the snowflake generator, with made-up calls.
    struct Forged(History);

    impl Forged {
        fn new() -> Self {
            let sources = vec![Source::Tag("t".into()), Source::Snowflake];
            Self(History::new(&std::env::temp_dir(), 1, sources, 3))
        }

        /// Of two servers. Session 0 is on the first, 1 on the second; the ids of the tag
        /// are claimed elsewhere.
        fn fleet() -> Self {
            let sources = vec![Source::Tag("t".into())];
            Self(History::new(&std::env::temp_dir(), 2, sources, 2))
        }

        /// Settles a fleet by the ends and what is cached, on each server, and the end of all.
        fn check_fleet(&self, ends: [i64; 3], cached: [&[i64]; 2]) -> Result<Window, Fault> {
            let claimed = |server: usize| Claimed {
                end: ends[server],
                max_value: 1000,
                cached: Run::of(cached[server]),
                dropped: 0,
            };
            let claims = Claims {
                end: ends[2],
                servers: vec![claimed(0), claimed(1)],
            };
            let checked = self.0.check(&[claims]);
            checked.map_or_else(|(_, fault)| Err(fault), |mut windows| Ok(windows.remove(0)))
        }

        /// A call of a session between two seconds, and the ids it got.
        fn got(&self, session: usize, seconds: (u32, u32), ids: &[i64]) -> &Self {
            self.note(session, 0, seconds, ids.len(), Ok(Run::of(ids)))
        }

        fn cut(&self, session: usize, seconds: (u32, u32), asked: usize) -> &Self {
            let failure = Failure {
                state: "57P01".into(),
                message: String::new(),
                detail: String::new(),
                hint: String::new(),
            };
            self.note(session, 0, seconds, asked, Err(failure))
        }

        fn note(
            &self,
            session: usize,
            source: usize,
            (start, end): (u32, u32),
            asked: usize,
            outcome: Result<Vec<Run>, Failure>,
        ) -> &Self {
            self.0.notes[session].lock().push(Note {
                caller: Caller {
                    server: session % self.0.servers,
                    session,
                },
                source,
                kind: "forged",
                start: self.0.began + SECOND * start,
                end: self.0.began + SECOND * end,
                asked: u32::try_from(asked).unwrap(),
                outcome,
            });
            self
        }

        /// Settles with a `max_id`, and what is cached below it.
        fn check(&self, max_id: i64, cached: &[i64]) -> Result<Window, Fault> {
            self.check_dropped(max_id, cached, 0)
        }

        fn check_dropped(&self, end: i64, cached: &[i64], dropped: u64) -> Result<Window, Fault> {
            let claimed = Claimed {
                end,
                max_value: 1000,
                cached: Run::of(cached),
                dropped,
            };
            let endless = Claimed {
                end: i64::MAX,
                max_value: i64::MAX,
                cached: Vec::new(),
                dropped: 0,
            };
            match self.0.check(&[claimed.into(), endless.into()]) {
                Ok(mut windows) => Ok(windows.remove(0)),
                Err((source, fault)) => {
                    println!("{source}: {fault}");
                    Err(fault)
                }
            }
        }
    }

    #[test]
    fn what_is_right_passes() {
        let forged = Forged::new();
        forged
            .got(0, (0, 2), &[1, 2, 5])
            .got(1, (1, 3), &[3, 4])
            .got(0, (3, 4), &[6]);
        let window = forged.check(11, &[7, 8, 9, 10]).unwrap();
        assert_eq!((window.ids["forged"], window.lost), (6, 0));
        assert_eq!(window.longest_call, SECOND * 2);
        assert_eq!(window.longest_silence, SECOND * 2);
        forged.got(2, (5, 6), &[7]);
        let window = forged.check(11, &[8, 9, 10]).unwrap();
        assert_eq!((window.ids["forged"], window.lost), (1, 0));
    }

    #[test]
    fn a_duplicate_is_found() {
        let at_once = Forged::new();
        at_once.got(0, (0, 2), &[1, 2, 3]).got(1, (1, 3), &[3, 4]);
        assert_eq!(at_once.check(11, &[]).unwrap_err(), Fault::Twice(3));
        let within = Forged::new();
        within.got(0, (0, 2), &[1, 2, 2]);
        assert_eq!(within.check(11, &[]).unwrap_err(), Fault::Twice(2));
        let inside = Forged::new();
        inside.got(0, (0, 2), &[1, 2, 3, 4]).got(1, (1, 3), &[2]);
        assert_eq!(inside.check(11, &[]).unwrap_err(), Fault::Twice(2));
        // Of what was settled before.
        let later = Forged::new();
        later.got(0, (0, 1), &[1, 2, 3]).check(11, &[]).unwrap();
        later.got(0, (2, 3), &[4]).check(11, &[]).unwrap();
        later.got(1, (4, 5), &[2]);
        assert_eq!(later.check(11, &[]).unwrap_err(), Fault::Twice(2));
        let snowflake = Forged::new();
        for session in [0, 1] {
            let run = Run { first: 7, last: 7 };
            snowflake.note(session, 1, (0, 1), 1, Ok(vec![run]));
        }
        assert_eq!(snowflake.check(11, &[]).unwrap_err(), Fault::Twice(7));
    }

    #[test]
    fn a_new_life_may_issue_again_and_once_only() {
        let forged = Forged::new();
        forged.got(0, (0, 1), &[5, 6]).check(11, &[]).unwrap();
        forged.0.begin_incarnation(0, 5);
        let window = forged.got(0, (2, 3), &[5, 6]).check(7, &[]).unwrap();
        assert_eq!(window.lost, 0);
        forged.got(1, (4, 5), &[6]);
        assert_eq!(forged.check(11, &[]).unwrap_err(), Fault::Twice(6));
    }

    #[test]
    fn a_broken_order_is_found() {
        let within = Forged::new();
        within.got(0, (0, 1), &[2, 1]);
        let fault = Fault::Order { id: 1, after: 2 };
        assert_eq!(within.check(11, &[]).unwrap_err(), fault);
        let across = Forged::new();
        across.got(0, (0, 2), &[1, 9]).got(1, (3, 4), &[8]);
        let fault = Fault::Order { id: 8, after: 9 };
        assert_eq!(across.check(11, &[]).unwrap_err(), fault);
        // Calls that overlap may come in any order.
        let at_once = Forged::new();
        at_once.got(0, (0, 3), &[1, 9]).got(1, (3, 4), &[8]);
        at_once.check(11, &[]).unwrap();
        at_once.got(2, (5, 6), &[7]);
        let fault = Fault::Order { id: 7, after: 9 };
        assert_eq!(at_once.check(11, &[]).unwrap_err(), fault);
    }

    #[test]
    fn an_id_outside_of_the_claims_is_found() {
        for (ids, unclaimed) in [([9, 11], 11), ([0, 1], 0), ([1000, 1001], 1001)] {
            let forged = Forged::new();
            forged.got(0, (0, 1), &ids);
            let max_id = if unclaimed == 1001 { 2000 } else { 11 };
            let fault = Fault::Unclaimed(unclaimed);
            assert_eq!(forged.check(max_id, &[]).unwrap_err(), fault);
        }
        let skipped = Forged::new();
        skipped.0.skip(0, 3, 6);
        skipped.got(0, (0, 1), &[1, 2, 6]).check(7, &[]).unwrap();
        skipped.0.skip(0, 7, 10);
        skipped.got(0, (2, 3), &[8]);
        let fault = Fault::Unclaimed(8);
        assert_eq!(skipped.check(11, &[]).unwrap_err(), fault);
    }

    #[test]
    fn an_id_that_is_still_cached_is_found() {
        let forged = Forged::new();
        forged.got(0, (0, 1), &[1, 2, 3]);
        let fault = Fault::StillCached(3);
        assert_eq!(forged.check(11, &[3, 4]).unwrap_err(), fault);
    }

    #[test]
    fn a_wrong_number_of_ids_is_found() {
        let forged = Forged::new();
        forged.note(0, 0, (0, 1), 3, Ok(Run::of(&[1, 2])));
        let fault = Fault::Count { asked: 3, got: 2 };
        assert_eq!(forged.check(11, &[]).unwrap_err(), fault);
    }

    #[test]
    fn lost_ids_are_counted() {
        let forged = Forged::new();
        forged.got(0, (0, 1), &[1, 2, 4]);
        let window = forged.check(11, &[6, 7, 8, 9, 10]).unwrap();
        assert_eq!((window.lost, window.unexplained()), (2, 2));
        // Only what is new counts; a call that was cut may have had it.
        forged.got(0, (2, 3), &[7]).cut(1, (2, 3), 1);
        let window = forged.check(11, &[8, 9, 10]).unwrap();
        assert_eq!((window.lost, window.unexplained()), (1, 0));
        // The status view tells of it.
        forged.got(0, (4, 5), &[10]);
        let window = forged.check_dropped(21, &[], 11).unwrap();
        assert_eq!((window.lost, window.unexplained()), (12, 1));
        // Skipped by an edit is not lost.
        forged.0.skip(0, 21, 31);
        assert_eq!(forged.check_dropped(31, &[], 11).unwrap().lost, 0);
        // The view starts at nothing after a restart.
        let window = forged.check_dropped(35, &[], 3).unwrap();
        assert_eq!((window.lost, window.unexplained()), (4, 1));
    }

    #[test]
    fn servers_may_issue_in_any_order_between_them() {
        let fleet = Forged::fleet();
        fleet.got(0, (0, 1), &[11, 12]).got(1, (2, 3), &[1, 2]);
        let window = fleet.check_fleet([21, 11, 31], [&[15], &[3, 4]]).unwrap();
        assert_eq!((window.ids["forged"], window.lost), (4, 30 - 4 - 3));
        fleet.got(0, (4, 5), &[13]).got(1, (4, 5), &[5]);
        let window = fleet.check_fleet([21, 11, 31], [&[15], &[]]).unwrap();
        assert_eq!(window.lost, 0);
        // On each there is an order.
        fleet.got(0, (6, 7), &[14]).got(1, (6, 7), &[4]);
        let fault = Fault::Order { id: 4, after: 5 };
        assert_eq!(fleet.check_fleet([21, 11, 31], [&[]; 2]), Err(fault));
    }

    #[test]
    fn a_duplicate_of_another_server_is_found() {
        let at_once = Forged::fleet();
        at_once.got(0, (0, 1), &[1, 2]).got(1, (0, 1), &[2, 3]);
        let twice = Err(Fault::Twice(2));
        assert_eq!(at_once.check_fleet([11, 11, 11], [&[]; 2]), twice);
        let later = Forged::fleet();
        later.got(0, (0, 1), &[1, 2]);
        later.check_fleet([11, 11, 11], [&[]; 2]).unwrap();
        later.got(1, (2, 3), &[2]);
        assert_eq!(later.check_fleet([11, 11, 11], [&[]; 2]), twice);
    }

    #[test]
    fn an_id_that_only_the_server_itself_or_only_the_centre_knows_is_found() {
        for ends in [[11, 21, 21], [21, 21, 11]] {
            let fleet = Forged::fleet();
            fleet.got(0, (0, 1), &[11]);
            let fault = Err(Fault::Unclaimed(11));
            assert_eq!(fleet.check_fleet(ends, [&[]; 2]), fault);
        }
        // Before it is issued.
        let fleet = Forged::fleet();
        let fault = Err(Fault::Unclaimed(11));
        assert_eq!(fleet.check_fleet([21, 21, 11], [&[10, 11], &[]]), fault);
    }

    #[test]
    fn an_id_that_another_server_has_cached_is_found() {
        let issued = Forged::fleet();
        issued.got(0, (0, 1), &[5, 6]);
        let fault = Err(Fault::StillCached(6));
        assert_eq!(issued.check_fleet([11, 11, 11], [&[], &[6, 7]]), fault);
        let idle = Forged::fleet();
        let fault = Err(Fault::CachedTwice(7));
        assert_eq!(idle.check_fleet([11, 11, 11], [&[6, 7], &[7, 8]]), fault);
    }

    #[test]
    fn a_server_that_is_down_is_no_excuse_for_another_one() {
        let fleet = Forged::fleet();
        let at = |seconds| fleet.0.began + SECOND * seconds;
        fleet.0.outages.lock().push(Outage {
            server: 0,
            from: at(1),
            to: at(9),
        });
        fleet.got(0, (0, 9), &[1]);
        let window = fleet.check_fleet([11, 11, 11], [&[]; 2]).unwrap();
        assert_eq!(window.longest_call, SECOND);
        fleet.got(1, (0, 9), &[2]);
        let window = fleet.check_fleet([11, 11, 11], [&[]; 2]).unwrap();
        assert_eq!(window.longest_call, SECOND * 9);
    }

    #[test]
    fn time_without_a_server_does_not_count() {
        let forged = Forged::new();
        let at = |seconds| forged.0.began + SECOND * seconds;
        forged.0.outages.lock().push(Outage {
            server: 0,
            from: at(2),
            to: at(7),
        });
        forged
            .got(0, (0, 1), &[1])
            .got(0, (1, 9), &[2])
            .cut(1, (6, 8), 1);
        let window = forged.check(3, &[]).unwrap();
        assert_eq!(window.longest_call, SECOND * 3);
        assert_eq!(window.longest_silence, SECOND * 3);
        assert_eq!(window.cut[0].took, SECOND);
    }

    #[test]
    fn a_fault_leaves_the_history_in_a_file() {
        let forged = Forged::new();
        let dir = std::env::temp_dir().join(format!("history-{}", std::process::id()));
        fs::create_dir(&dir).unwrap();
        let forged = Forged(History {
            dir: dir.clone(),
            ..forged.0
        });
        forged.got(0, (0, 1), &[4, 5, 7]).cut(1, (1, 2), 3);
        let failed =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| forged.0.fail("a reason")));
        assert!(failed.is_err());
        let text = fs::read_to_string(dir.join("history")).unwrap();
        fs::remove_dir_all(&dir).unwrap();
        assert!(
            text.contains("0 1000000 0 0 tag t forged 3: 4..5 7..7\n"),
            "{text}"
        );
        assert!(
            text.contains("1000000 2000000 0 1 tag t forged 3: 57P01 \n"),
            "{text}"
        );
    }
}
