//! Recorded calls, and server downtime.

use std::fmt;
use std::time::{Duration, Instant};

use crate::session::Failure;

/// Source of ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A tag in the database of the session passed to [`History::settle`].
    Tag(String),
    /// A tag with a key, whose ids are recorded as the numbers behind them.
    Opaque(String),
    /// A gapless series, whose numbers are recorded once they are committed.
    Gapless(String),
    /// The snowflake generator.
    Snowflake,
}

impl Source {
    /// The tag, if ids come from one.
    #[must_use]
    pub fn tag(&self) -> Option<&str> {
        match self {
            Self::Tag(tag) | Self::Opaque(tag) => Some(tag),
            Self::Gapless(_) | Self::Snowflake => None,
        }
    }

    /// A SELECT of the next id, as it is recorded.
    #[must_use]
    pub fn next(&self) -> String {
        match self {
            Self::Tag(tag) => format!("SELECT leaf_segment_next('{tag}')"),
            Self::Opaque(tag) => {
                format!("SELECT leaf_id.leaf_opaque_decode('{tag}', leaf_opaque_next('{tag}'))")
            }
            Self::Gapless(series) => format!("SELECT leaf_id.leaf_gapless_next('{series}')"),
            Self::Snowflake => "SELECT leaf_snowflake_next()".into(),
        }
    }

    /// Kind of ids.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Tag(_) => "segment",
            Self::Opaque(_) => "opaque",
            Self::Gapless(_) => "gapless",
            Self::Snowflake => "snowflake",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tag(tag) => write!(f, "tag {tag}"),
            Self::Opaque(tag) => write!(f, "opaque tag {tag}"),
            Self::Gapless(series) => write!(f, "series {series}"),
            Self::Snowflake => f.write_str("snowflake"),
        }
    }
}

/// Contiguous ids, both ends inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IdRange {
    /// Smallest id.
    pub first: i64,
    /// Largest id.
    pub last: i64,
}

impl IdRange {
    /// Converts ids to ranges, in order.
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

/// Origin of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Index of the server.
    pub server: usize,
    /// Index of the session among those of all servers.
    pub session: usize,
}

/// A call as seen by its session.
pub(super) struct Note {
    pub(super) caller: Caller,
    pub(super) source: usize,
    pub(super) kind: &'static str,
    pub(super) start: Instant,
    pub(super) end: Instant,
    pub(super) asked: u32,
    pub(super) outcome: Result<Vec<IdRange>, Failure>,
}

/// Downtime of a server.
pub(super) struct Outage {
    pub(super) server: usize,
    pub(super) from: Instant,
    pub(super) to: Instant,
}

/// Downtime of all servers.
pub(super) struct Outages(pub(super) Vec<Outage>);

impl Outages {
    /// Time between `start` and `end`, excluding the server's downtime.
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
