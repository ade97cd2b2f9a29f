//! Rules for the row of a tag and the mark of its name.
//!
//! A row is a name with settings. People edit it, tools rewrite it, and failovers set it back. The
//! position up to which ids of the name were claimed must never go back. It is stored twice: in the
//! row's `max_id`, and in the mark of the name, one past the highest id ever claimed under the name
//! in this database. If one of the two is set back, the next claim corrects it from the other.
//!
//! Each function is one rule. tests/row_explorer.rs runs them through every history of small
//! models, and prints the shortest history that issues an id twice if a rule is left out.

use crate::step::{self, Limits};

/// Number of promotions since the row's last claim whose lost claims may be missing here, from the
/// timelines of the row and of this server. `is_ours`: the row was last claimed from by this
/// database system. Otherwise it was dumped or upgraded, and its timeline does not apply to this
/// system: any promotion may have lost the first claim here.
#[must_use]
pub fn promotions(row_timeline: u32, timeline: u32, is_ours: bool) -> u32 {
    if !is_ours {
        return timeline.saturating_sub(1);
    }
    if row_timeline == timeline {
        return 0;
    }
    timeline.saturating_sub(row_timeline).max(1)
}

/// Number of ids to skip before the next claim, if each promotion may have lost at most `claims`
/// claims, and the last known one left `largest_recent`.
///
/// For one promotion, these are the claims that may have come next. For more, the servers on the
/// timelines in between have skipped as many, and may have lost claims above that. Those grew from
/// claims that are unknown here, so `d` promotions require `2d - 1` times the longest claims.
#[must_use]
pub fn missing(promotions: u32, claims: u32, largest_recent: u32, limits: Limits) -> u64 {
    match u64::from(promotions) {
        0 => 0,
        1 => step::most_taken(claims, largest_recent, limits),
        d => (u64::from(claims) * u64::from(limits.max_step)).saturating_mul(2 * d - 1),
    }
}

/// First id of a claim: above the row's `max_id` and the mark of its name (0: none), plus the ids
/// to skip.
#[must_use]
pub fn first(max_id: i64, mark: i64, skip: u64) -> i64 {
    above(max_id.max(mark), skip)
}

/// `max_id` of a row that is inserted under a name, or renamed to it.
#[must_use]
pub fn arriving(max_id: i64, mark: i64) -> i64 {
    max_id.max(mark)
}

/// The mark that a row leaves behind when it is deleted or renamed. Lost claims of the name are
/// skipped at once, before another row starts there.
#[must_use]
pub fn leaving(max_id: i64, mark: i64, skip: u64) -> i64 {
    above(max_id.max(mark), skip)
}

/// `max_id + skip`, saturating.
fn above(max_id: i64, skip: u64) -> i64 {
    i64::try_from(skip).map_or(i64::MAX, |skip| max_id.saturating_add(skip))
}
