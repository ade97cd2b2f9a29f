//! State of the generators as seen by a session, and waits for changes.

use std::time::Duration;

use crate::checks::wait_until;
use crate::session::Session;

const LIMIT: Duration = Duration::from_secs(30);

impl Session {
    /// A tag's `max_id`.
    #[track_caller]
    pub fn max_id(&mut self, tag: &str) -> i64 {
        self.value(&format!(
            "SELECT max_id FROM leaf_id.leaf_alloc WHERE biz_tag = '{tag}'"
        ))
    }

    /// The last number of a gapless series, by its row and its mark: a tool may have set back either.
    #[track_caller]
    pub fn last_number(&mut self, series: &str) -> i64 {
        self.value(&format!(
            "SELECT greatest(last_number, high - 1)
             FROM leaf_id.leaf_gapless LEFT JOIN leaf_id.leaf_gapless_mark USING (series)
             WHERE series = '{series}'"
        ))
    }

    /// An expression over a tag's row in `leaf_id.tags_detail`.
    #[track_caller]
    pub fn figure(&mut self, tag: &str, figure: &str) -> i64 {
        self.value(&format!(
            "SELECT ({figure})::bigint FROM leaf_id.tags_detail WHERE tag = '{tag}'"
        ))
    }

    /// Waits until no claim for a tag is in flight.
    #[track_caller]
    pub fn wait_for_spare(&mut self, tag: &str) {
        let tag = tag.replace('\'', "''");
        let sql = format!(
            "SELECT spare_state <> 'in flight' FROM leaf_id.tags_detail WHERE tag = '{tag}'"
        );
        wait_until(LIMIT, "the spare segment", || self.value(&sql));
    }

    /// Takes ids of a tag as fast as possible, until `claims` further segments were claimed and one
    /// id of the last one was taken. Segments must have at least 20 ids.
    #[track_caller]
    pub fn use_claims(&mut self, tag: &str, claims: i64) -> Vec<i64> {
        self.use_claims_with(tag, claims, |session, count| session.take(tag, count))
    }

    /// As [`Session::use_claims`], with another way to take ids.
    #[track_caller]
    pub fn use_claims_with(
        &mut self,
        tag: &str,
        claims: i64,
        mut take: impl FnMut(&mut Self, i32) -> Vec<i64>,
    ) -> Vec<i64> {
        self.wait_for_spare(tag);
        let before = self.figure(tag, "refills");
        let mut ids = Vec::new();
        for claimed in 1..=claims {
            // No segment is so short that its first id requests the next one.
            let left = self.figure(tag, "current_remaining + coalesce(spare_remaining, 0)");
            ids.extend(take(self, i32::try_from(left).unwrap() + 1));
            self.wait_for_spare(tag);
            assert_eq!(self.figure(tag, "refills") - before, claimed);
        }
        ids
    }

    /// The next snowflake id, after waiting for the end of what an earlier run or another server
    /// has reserved.
    #[track_caller]
    pub fn next_snowflake(&mut self) -> i64 {
        let mut ids = Vec::new();
        wait_until(LIMIT, "a snowflake id", || {
            let issued = self.try_column("SELECT leaf_snowflake_next()");
            issued.is_ok_and(|issued| {
                ids = issued;
                true
            })
        });
        ids[0]
    }
}
