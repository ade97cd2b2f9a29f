//! What servers say of the ids that are claimed.

use std::time::Duration;

use super::note::{IdRange, Source};
use crate::checks::wait_until;
use crate::session::Session;

/// How long a claim may take that was under way when the sessions fell silent.
const CLAIM_LIMIT: Duration = Duration::from_secs(30);

/// What one server says of a source while no call is under way.
#[derive(Clone, Debug)]
pub struct Claimed {
    /// Ids from here on are not claimed, or not reserved.
    pub end: i64,
    /// The last id there may ever be.
    pub max_value: i64,
    /// What is claimed and was not issued yet.
    pub cached: Vec<IdRange>,
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
    pub(super) const GONE: Self = Self {
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
