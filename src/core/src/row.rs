//! Decisions about the row of a tag and the mark of its name.
//!
//! A row is a name with settings, which people edit, tools rewrite and failovers set back. What must
//! never go back is how far ids of the name were claimed. That is remembered twice: by the row's
//! `max_id`, and by the mark of the name, one past the highest id that was ever claimed under it in
//! this database. What takes back one of the two is corrected by the other with the next claim.
//!
//! Each function is one rule. tests/row_explorer.rs drives them through every history of small
//! worlds, and shows the shortest one in which an id comes twice without each of them.

use crate::step::{self, Limits};

/// Promotions since a row's last claim of which claims may be missing here, by timelines: those of the
/// row and of this server. `is_ours`: the row was last claimed from by this database system. A row of
/// another one was dumped or upgraded, and says nothing of this system's timelines: any promotion may
/// have lost the first claim here.
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

/// The ids to leave out before the next claim, where each promotion may have lost claims of at most
/// `lost` ids. The servers of the timelines in between have left out as many, and may have lost claims
/// made above that: `d` promotions take `2d - 1` times as many.
#[must_use]
pub fn skip(promotions: u32, lost: u64) -> u64 {
    match u64::from(promotions) {
        0 => 0,
        d => lost.saturating_mul(2 * d - 1),
    }
}

/// The ids to leave out before the next claim, where each promotion may have lost this many claims at
/// most, and the last claim that is known left `largest_recent`.
///
/// Of one promotion, those are the claims that can have come next. Of more, the servers in between have
/// left out as much, and may have lost claims made above that, which have grown from claims that are not
/// known here: `d` promotions take `2d - 1` times as many as one, each claim as long as can be.
#[must_use]
pub fn missing(promotions: u32, claims: u32, largest_recent: u32, limits: Limits) -> u64 {
    match u64::from(promotions) {
        0 => 0,
        1 => step::most_taken(claims, largest_recent, limits),
        d => (u64::from(claims) * u64::from(limits.max_step)).saturating_mul(2 * d - 1),
    }
}

/// The first id of a claim: above the row's `max_id`, the mark of its name (0: none), and what the
/// caller remembers of claims of this row (0: nothing), with what is to be left out.
#[must_use]
pub fn first(max_id: i64, mark: i64, remembered: i64, skip: u64) -> i64 {
    above(max_id.max(mark).max(remembered), skip)
}

/// The `max_id` of a row that comes to a name, or comes back.
#[must_use]
pub fn arriving(max_id: i64, mark: i64) -> i64 {
    max_id.max(mark)
}

/// What a row leaves to the mark of its name when it goes. It is settled: lost claims of its name are
/// left out before somebody else begins there.
#[must_use]
pub fn leaving(max_id: i64, mark: i64, skip: u64) -> i64 {
    above(max_id.max(mark), skip)
}

/// With ids left out, at most the largest.
fn above(max_id: i64, skip: u64) -> i64 {
    i64::try_from(skip).map_or(i64::MAX, |skip| max_id.saturating_add(skip))
}
