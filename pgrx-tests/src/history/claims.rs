//! Claimed ids as reported by servers.

use std::collections::HashMap;
use std::time::Duration;

use super::note::{IdRange, Source};
use crate::checks::wait_until;
use crate::session::Session;

/// Time limit for a claim in flight when the sessions became idle.
const CLAIM_LIMIT: Duration = Duration::from_secs(30);

/// A server's state of a source while no call is in flight.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// First id not claimed, or not reserved.
    pub end: i64,
    /// Largest id allowed.
    pub max_value: i64,
    /// Ids claimed but not issued.
    pub cached: Vec<IdRange>,
    /// Ids lost since the start of the server, as counted by the status view.
    pub dropped: u64,
}

/// All servers' states of a source.
#[derive(Clone, Debug)]
pub struct Claims {
    /// First id not claimed by any server.
    pub end: i64,
    /// State of each server.
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
    /// A server that is gone. Its issued ids must not be issued by others.
    pub(super) const GONE: Self = Self {
        end: i64::MAX,
        max_value: i64::MAX,
        cached: Vec::new(),
        dropped: 0,
    };

    /// Reads the state of each source, after waiting for claims in flight.
    ///
    /// # Panics
    /// If a claim does not end, or a tag does not exist.
    #[track_caller]
    pub fn read(session: &mut Session, sources: &[Source]) -> Vec<Self> {
        wait_until(CLAIM_LIMIT, "the last claims to end", || {
            session.value(
                "SELECT NOT EXISTS (SELECT FROM leaf_id_internal.leaf_segment_slots() WHERE spare_state = 'in flight')",
            )
        });
        // No session requests ids, so no claim has begun since: the rows and shared memory are
        // consistent.
        let mut tags = Self::read_tags(session, sources);
        let read = sources.iter().map(|source| match source {
            Source::Tag(tag) | Source::Opaque(tag) => {
                tags.remove(tag).unwrap_or_else(|| panic!("no {source}"))
            }
            Source::Gapless(series) => Self::read_series(session, series),
            Source::Snowflake => Self::read_snowflake(session),
        });
        read.collect()
    }

    fn read_tags(session: &mut Session, sources: &[Source]) -> HashMap<String, Self> {
        // Until the next claim, a tool may have set back the row or the mark.
        let sql = "SELECT biz_tag, greatest(max_id, high), max_value, current_next, current_last, spare_first,
                       spare_last, coalesce(ids_lost, 0)
                   FROM leaf_id.leaf_alloc
                   LEFT JOIN leaf_id_internal.leaf_segment_slots() s ON s.tag = biz_tag
                   LEFT JOIN leaf_id.leaf_high_mark m ON m.tag = biz_tag
                   WHERE biz_tag = ANY ($1)";
        let tags: Vec<_> = sources.iter().filter_map(Source::tag).collect();
        let rows = session.query(sql, &[&tags]).unwrap();
        let read = rows.iter().map(|row| {
            let range = |first, last| {
                let first: Option<i64> = row.get(first);
                first.map(|first| IdRange {
                    first,
                    last: row.get(last),
                })
            };
            let claimed = Self {
                end: row.get(1),
                max_value: row.get(2),
                cached: [range(3, 4), range(5, 6)].into_iter().flatten().collect(),
                dropped: row.get::<_, i64>(7).unsigned_abs(),
            };
            (row.get(0), claimed)
        });
        read.collect()
    }

    fn read_series(session: &mut Session, series: &str) -> Self {
        Self {
            end: session.last_number(series) + 1,
            ..Self::GONE
        }
    }

    fn read_snowflake(session: &mut Session) -> Self {
        let sql = "SELECT leaf_snowflake_min(reserved_until + interval '1 ms') FROM leaf_id.server";
        Self {
            // The generator is closed, and has no state to report.
            end: session.value::<Option<i64>>(sql).unwrap_or(i64::MAX),
            ..Self::GONE
        }
    }
}
