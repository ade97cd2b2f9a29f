//! Claimed ids as reported by servers.

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

    /// Reads the state of a source, after waiting for a claim in flight.
    ///
    /// # Panics
    /// If the claim does not end, or the tag does not exist.
    #[track_caller]
    pub fn read(session: &mut Session, source: &Source) -> Self {
        match source {
            Source::Tag(tag) => Self::read_tag(session, tag),
            Source::Snowflake => {
                let sql = "SELECT leaf_snowflake_min(reserved_until + interval '1 ms') FROM leaf_id.server";
                Self {
                    // The generator is closed, and has no state to report.
                    end: session.value::<Option<i64>>(sql).unwrap_or(i64::MAX),
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
                   FROM leaf_id.tags_detail
                   WHERE tag = $1 AND spare_state IS DISTINCT FROM 'in flight'";
        let mut row = None;
        wait_until(CLAIM_LIMIT, "the last claim to end", || {
            row = session.query_opt(sql, &[&tag]).unwrap();
            row.is_some()
        });
        // No session requests ids, so no claim has begun since: the row and shared memory are
        // consistent if read again.
        let row = session.query_one(sql, &[&tag]).unwrap();
        let range = |first, last| {
            let first: Option<i64> = row.get(first);
            first.map(|first| IdRange {
                first,
                last: row.get(last),
            })
        };
        Self {
            end: row.get(0),
            max_value: row.get(1),
            cached: [range(2, 3), range(4, 5)].into_iter().flatten().collect(),
            dropped: row.get::<_, i64>(6).unsigned_abs(),
        }
    }
}
