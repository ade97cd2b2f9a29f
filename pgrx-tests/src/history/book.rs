//! Permanent records of a source, and the faults found in them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use std::{fmt, mem};

use super::claims::Claims;
use super::note::{Caller, IdRange, Note, Outages, Source, total};
use crate::session::Failure;

/// An inconsistency.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A call succeeded with a different number of ids than requested.
    Count {
        /// Ids requested.
        asked: u32,
        /// Ids received.
        got: u64,
    },
    /// An id was issued twice.
    Twice(i64),
    /// An id is smaller than one issued before it was requested.
    Order {
        /// The smaller id.
        id: i64,
        /// The id issued before.
        after: i64,
    },
    /// An id was issued without being claimed.
    Unclaimed(i64),
    /// An issued id is still cached, so it may be issued again.
    StillCached(i64),
    /// An id is cached by two servers, so both may issue it.
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

/// A failed call. It may have used all ids that it requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Server and session.
    pub caller: Caller,
    /// Kind of call.
    pub kind: &'static str,
    /// Number of ids requested.
    pub asked: u32,
    /// Duration, excluding server downtime.
    pub took: Duration,
    /// The error.
    pub failure: Failure,
}

/// When a call was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// Server.
    pub server: usize,
    /// Time before the call.
    pub start: Instant,
    /// Time after it.
    pub end: Instant,
    /// Duration, excluding server downtime.
    pub took: Duration,
    /// True if it got ids.
    pub got_ids: bool,
}

/// Events of one source between two settlements.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Ids issued, by kind of call.
    pub ids: BTreeMap<&'static str, u64>,
    /// Failed calls.
    pub cut: Vec<Cut>,
    /// All calls.
    pub calls: Vec<Timed>,
    /// Ids claimed that are neither issued nor cached. Negative if ids that seemed lost at the last
    /// settlement have reappeared.
    pub lost: i64,
    /// Lost ids counted by the status view.
    pub dropped: u64,
    /// Max number of further ids it may have counted before a restart, after it was last read.
    pub unseen: u64,
    /// Longest successful call, excluding server downtime.
    pub longest_call: Duration,
    /// Longest time without an id of one server, although requested, excluding downtime.
    pub longest_silence: Duration,
}

impl Window {
    /// Number of lost ids that are neither explained by failed calls nor counted by the status
    /// view.
    #[must_use]
    pub fn unexplained(&self) -> u64 {
        let cut: u64 = self.cut.iter().map(|cut| u64::from(cut.asked)).sum();
        let explained = cut + self.dropped + self.unseen;
        u64::try_from(self.lost)
            .unwrap_or(0)
            .saturating_sub(explained)
    }
}

/// Permanent record of one source on one server.
#[derive(Clone)]
pub(super) struct Page {
    /// Largest id issued.
    pub(super) highest: i64,
    /// The status view's counter when last read, and its increase since the last settlement.
    pub(super) dropped_seen: u64,
    pub(super) dropped: u64,
    /// Max increase of the counter between its last reading and a stop: one id per session whenever
    /// a segment is replaced.
    pub(super) unseen: u64,
}

impl Page {
    /// The counter restarts from 0 with the server.
    pub(super) fn read_dropped(&mut self, count: u64) {
        self.dropped += count.checked_sub(self.dropped_seen).unwrap_or(count);
        self.dropped_seen = count;
    }
}

/// Permanent record of one source.
pub(super) struct Book {
    /// First id of its incarnation.
    pub(super) start: i64,
    /// All issued ids, sorted and merged.
    pub(super) issued: Vec<IdRange>,
    /// Ids skipped by edits of `max_id`.
    pub(super) skipped: Vec<IdRange>,
    /// Ids lost until the last settlement.
    pub(super) lost: i64,
    /// Records by server.
    pub(super) pages: Vec<Page>,
}

impl Book {
    pub(super) fn new(servers: usize, start: i64) -> Self {
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

    pub(super) fn settle(
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
            let issued = answered(&notes).flat_map(|(_, ranges)| ranges);
            page.highest = issued.map(|range| range.last).fold(page.highest, i64::max);
            page.read_dropped(claims.servers[server].dropped);
            longest_silence = longest_silence.max(silence(server, &notes, outages));
            // Cached ids must be larger than issued ones.
            let mut cached = claims.servers[server].cached.iter();
            if let Some(range) = cached.find(|range| range.first <= page.highest) {
                return Err(Fault::StillCached(range.first));
            }
        }
        self.check_cached(claims)?;
        let lost = match source {
            Source::Tag(_) | Source::Opaque(_) | Source::Gapless(_) => self.lost_of(claims),
            // Snowflake ids are points in time, most of which are never used.
            Source::Snowflake => 0,
        };
        let mut ids = BTreeMap::new();
        for (note, ranges) in answered(notes) {
            *ids.entry(note.kind).or_default() += total(ranges);
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
            calls: notes.iter().map(|note| note.timed(outages)).collect(),
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

    /// Adds new ids, which must not have been issued before.
    fn add(&mut self, notes: &[&Note]) -> Result<(), Fault> {
        let new = answered(notes).flat_map(|(_, ranges)| ranges);
        self.issued.extend(new);
        self.issued.sort_unstable();
        let mut merged: Vec<IdRange> = Vec::new();
        for &range in &self.issued {
            match merged.last_mut() {
                Some(last) if range.first <= last.last => return Err(Fault::Twice(range.first)),
                Some(last) if range.first == last.last + 1 => last.last = range.last,
                _ => merged.push(range),
            }
        }
        self.issued = merged;
        Ok(())
    }

    fn check_claims(&self, notes: &[&Note], claims: &Claims) -> Result<(), Fault> {
        for (note, range) in
            answered(notes).flat_map(|(n, ranges)| ranges.iter().map(move |r| (n, r)))
        {
            let claimed = &claims.servers[note.caller.server];
            let last = (claimed.end.min(claims.end) - 1).min(claimed.max_value);
            if range.first < self.start.max(1) {
                return Err(Fault::Unclaimed(range.first));
            }
            if range.last > last {
                return Err(Fault::Unclaimed(range.last));
            }
            if let Some(skipped) = self
                .skipped
                .iter()
                .find(|skipped| range.overlaps(**skipped))
            {
                return Err(Fault::Unclaimed(range.first.max(skipped.first)));
            }
        }
        Ok(())
    }

    /// Cached ids must be claimed, and by one server only.
    fn check_cached(&self, claims: &Claims) -> Result<(), Fault> {
        let cached = claims.servers.iter().flat_map(|claimed| &claimed.cached);
        let mut cached: Vec<_> = cached.copied().collect();
        cached.sort_unstable();
        if let Some(pair) = cached.windows(2).find(|pair| pair[0].overlaps(pair[1])) {
            return Err(Fault::CachedTwice(pair[1].first));
        }
        for range in cached {
            if range.last >= claims.end {
                return Err(Fault::Unclaimed(range.last));
            }
            // The first range that is not below.
            let next = self
                .issued
                .partition_point(|issued| issued.last < range.first);
            if let Some(issued) = self
                .issued
                .get(next)
                .filter(|issued| issued.overlaps(range))
            {
                return Err(Fault::StillCached(range.first.max(issued.first)));
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
        let Ok(ranges) = &self.outcome else {
            return Ok(());
        };
        let got = total(ranges);
        if got != u64::from(self.asked) {
            let asked = self.asked;
            return Err(Fault::Count { asked, got });
        }
        for pair in ranges.windows(2) {
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

    fn timed(&self, outages: &Outages) -> Timed {
        Timed {
            server: self.caller.server,
            start: self.start,
            end: self.end,
            took: self.up(outages),
            got_ids: self.ids().is_some(),
        }
    }

    /// The ids, if there are any.
    fn ids(&self) -> Option<&[IdRange]> {
        let ranges = self.outcome.as_ref().ok()?;
        (!ranges.is_empty()).then_some(ranges)
    }

    /// Duration, excluding server downtime.
    fn up(&self, outages: &Outages) -> Duration {
        outages.up(self.caller.server, self.start, self.end)
    }
}

/// Calls that received ids.
fn answered<'a>(notes: &'a [&'a Note]) -> impl Iterator<Item = (&'a Note, &'a [IdRange])> {
    let notes = notes.iter();
    notes.filter_map(|note| Some((*note, note.ids()?)))
}

/// Calls on one server.
fn of_server<'a>(notes: &'a [&'a Note], server: usize) -> impl Iterator<Item = &'a Note> {
    let notes = notes.iter().copied();
    notes.filter(move |note| note.caller.server == server)
}

/// I4: a call that began after another had ended has larger ids. All ids up to `highest` were
/// issued before these calls.
fn check_order(notes: &[&Note], mut highest: i64) -> Result<(), Fault> {
    let mut by_start: Vec<_> = answered(notes).collect();
    let mut by_end = by_start.clone();
    by_start.sort_by_key(|(note, _)| note.start);
    by_end.sort_by_key(|(note, _)| note.end);
    let mut ended = by_end.iter().peekable();
    for (note, ranges) in by_start {
        while let Some((_, earlier)) = ended.next_if(|(earlier, _)| earlier.end < note.start) {
            highest = highest.max(earlier[earlier.len() - 1].last);
        }
        let id = ranges[0].first;
        if id <= highest {
            return Err(Fault::Order { id, after: highest });
        }
    }
    Ok(())
}

/// Longest time without an id of a server.
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
