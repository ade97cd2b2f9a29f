//! What a session can see of the generators, and waits for them.

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

    /// A figure of a tag in `leaf_segment_status`.
    #[track_caller]
    pub fn figure(&mut self, tag: &str, figure: &str) -> i64 {
        self.value(&format!(
            "SELECT ({figure})::bigint FROM leaf_segment_status WHERE tag = '{tag}'"
        ))
    }

    /// Waits until no claim is being made for a tag.
    #[track_caller]
    pub fn wait_for_spare(&mut self, tag: &str) {
        let tag = tag.replace('\'', "''");
        let sql = format!(
            "SELECT spare_state <> 'in flight' FROM leaf_segment_status WHERE tag = '{tag}'"
        );
        wait_until(LIMIT, "the spare segment", || self.value(&sql));
    }

    /// Takes ids of a tag as fast as they come, until so many more segments have been
    /// claimed and one id of the last one is taken. They must be 20 ids long, or longer.
    #[track_caller]
    pub fn use_claims(&mut self, tag: &str, claims: i64) -> Vec<i64> {
        self.use_claims_with(tag, claims, |session, count| session.take(tag, count))
    }

    /// The same, with ids that are taken in another way.
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
            // No segment is so short that its first id asks for the next one.
            let left = self.figure(tag, "current_remaining + coalesce(spare_remaining, 0)");
            ids.extend(take(self, i32::try_from(left).unwrap() + 1));
            self.wait_for_spare(tag);
            assert_eq!(self.figure(tag, "refills") - before, claimed);
        }
        ids
    }

    /// The next snowflake id, once there is one: what an earlier run or another server has
    /// reserved is waited out.
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
