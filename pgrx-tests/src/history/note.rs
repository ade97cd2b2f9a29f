//! Calls, as they are noted, and the times in which they could not be answered.

use std::fmt;
use std::time::{Duration, Instant};

use crate::session::Failure;

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
pub struct IdRange {
    /// The smallest.
    pub first: i64,
    /// The largest.
    pub last: i64,
}

impl IdRange {
    /// The ranges of some ids, in the order they came.
    #[must_use]
    pub fn of(ids: &[i64]) -> Vec<Self> {
        let mut ranges: Vec<Self> = Vec::new();
        for &id in ids {
            match ranges.last_mut() {
                Some(range) if range.last.checked_add(1) == Some(id) => range.last = id,
                _ => ranges.push(Self {
                    first: id,
                    last: id,
                }),
            }
        }
        ranges
    }

    pub(super) fn len(self) -> u64 {
        self.last.abs_diff(self.first) + 1
    }

    pub(super) fn overlaps(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

pub(super) fn total(ranges: &[IdRange]) -> u64 {
    ranges.iter().map(|range| range.len()).sum()
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
pub(super) struct Note {
    pub(super) caller: Caller,
    pub(super) source: usize,
    pub(super) kind: &'static str,
    pub(super) start: Instant,
    pub(super) end: Instant,
    pub(super) asked: u32,
    pub(super) outcome: Result<Vec<IdRange>, Failure>,
}

/// A time in which a server could not answer.
pub(super) struct Outage {
    pub(super) server: usize,
    pub(super) from: Instant,
    pub(super) to: Instant,
}

/// All such times.
pub(super) struct Outages(pub(super) Vec<Outage>);

impl Outages {
    /// How long something took while the server was up.
    pub(super) fn up(&self, server: usize, start: Instant, end: Instant) -> Duration {
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
