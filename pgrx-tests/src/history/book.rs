//! What is known of one source of ids, and what cannot be right of it.

use std::collections::BTreeMap;
use std::time::Duration;
use std::{fmt, mem};

use super::claims::Claims;
use super::note::{Caller, IdRange, Note, Outages, Source, total};
use crate::session::Failure;

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

/// What is known of one source on one server for good.
#[derive(Clone)]
pub(super) struct Page {
    /// The largest id it has issued.
    pub(super) highest: i64,
    /// The status view's count when it was last read, and what it has counted since the
    /// last settlement.
    pub(super) dropped_seen: u64,
    pub(super) dropped: u64,
    /// How many it may have counted at most between our last look and a stop: an id for
    /// each session, when a segment takes over from another.
    pub(super) unseen: u64,
}

impl Page {
    /// The count begins anew when the server starts.
    pub(super) fn read_dropped(&mut self, count: u64) {
        self.dropped += count.checked_sub(self.dropped_seen).unwrap_or(count);
        self.dropped_seen = count;
    }
}

/// What is known of one source for good.
pub(super) struct Book {
    /// The first id of its incarnation.
    pub(super) start: i64,
    /// Everything issued, sorted and merged.
    pub(super) issued: Vec<IdRange>,
    /// What edits of `max_id` passed over.
    pub(super) skipped: Vec<IdRange>,
    /// Ids lost until the last settlement.
    pub(super) lost: i64,
    /// By server.
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
            // Everything cached is yet to come.
            let mut cached = claims.servers[server].cached.iter();
            if let Some(range) = cached.find(|range| range.first <= page.highest) {
                return Err(Fault::StillCached(range.first));
            }
        }
        self.check_cached(claims)?;
        let lost = match source {
            Source::Tag(_) => self.lost_of(claims),
            // Its ids are points in time: there are more than will be used.
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

    /// What is cached is claimed, and nobody else's.
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
            // The first that does not lie below.
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

    /// How long it took while its server was up.
    fn up(&self, outages: &Outages) -> Duration {
        outages.up(self.caller.server, self.start, self.end)
    }
}

/// Calls that got ids.
fn answered<'a>(notes: &'a [&'a Note]) -> impl Iterator<Item = (&'a Note, &'a [IdRange])> {
    notes.iter().filter_map(|note| {
        let ranges = note.outcome.as_ref().ok()?;
        (!ranges.is_empty()).then_some((*note, &**ranges))
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
